//! Addresses on the PCI bus.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// Address of a PCI function: domain, bus, device, function.
///
/// ```
/// use feedwater::cuda::PciAddress;
///
/// let address: PciAddress = "00000000:3B:00.0".parse()?; // as nvidia-smi writes it
/// assert_eq!(address.to_string(), "0000:3b:00.0"); // as the kernel does
/// # Ok::<(), feedwater::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for PciAddress {
    type Err = Error;

    /// `domain:bus:device.function`, in hexadecimal digits of either case.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`].
    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| {
            let what = format!("{text:?} is no PCI address (domain:bus:device.function)");
            Error::new(ErrorKind::InvalidOption { what: what.into() })
        })
    }
}

/// The address that a text is.
pub(super) fn parse(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let number = |digits: &str, lengths: std::ops::RangeInclusive<usize>, most: u32| {
        let hex = lengths.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let number = hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten();
        number.filter(|number| *number <= most)
    };
    Some(PciAddress {
        domain: number(domain, 4..=8, u32::MAX)?,
        bus: u8::try_from(number(bus, 2..=2, 0xff)?).ok()?,
        device: u8::try_from(number(device, 2..=2, 31)?).ok()?,
        function: u8::try_from(number(function, 1..=1, 7)?).ok()?,
    })
}
