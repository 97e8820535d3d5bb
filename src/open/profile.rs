//! What is known of a device's speed, in a form that can be kept.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::backend::device::Device;
use crate::error::{Error, ErrorKind};

/// How fast a block device streams what is not in the page cache, found out by reading it.
///
/// Prints as one line of text, and is read back from it.
///
/// ```
/// use feedwater::{DeviceProfile, Engine, EngineOptions};
///
/// let saved = "nvme0n1 buffered=2100000000 direct=6800000000";
/// let profile: DeviceProfile = saved.parse()?;
/// assert_eq!(profile.to_string(), saved);
/// let engine = Engine::new(EngineOptions::default().profile(profile));
/// // … read, and save what was found:
/// let lines: Vec<String> = engine.profiles().iter().map(|p| p.to_string()).collect();
/// assert_eq!(lines, [saved], "no other device was read");
/// # Ok::<(), feedwater::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProfile {
    /// The kernel's name of the device, as `/sys/block` has it. A partition counts as its disk.
    pub device: Arc<str>,
    /// Bytes per second through the page cache.
    pub buffered: u64,
    /// Bytes per second past it.
    pub direct: u64,
}

impl DeviceProfile {
    /// Of a device with this name, in bytes per second.
    pub fn new(device: impl Into<Arc<str>>, buffered: u64, direct: u64) -> Self {
        DeviceProfile {
            device: device.into(),
            buffered,
            direct,
        }
    }

    pub(super) fn of(device: &Device) -> Option<Self> {
        let rates = device.rates()?;
        let name = device.name()?;
        Some(DeviceProfile::new(
            name,
            rates.buffered as u64,
            rates.direct as u64,
        ))
    }
}

impl fmt::Display for DeviceProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceProfile {
            device,
            buffered,
            direct,
        } = self;
        write!(f, "{device} buffered={buffered} direct={direct}")
    }
}

impl FromStr for DeviceProfile {
    type Err = Error;

    /// Reads the line that [`Display`](fmt::Display) prints.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for anything else.
    fn from_str(line: &str) -> Result<Self, Error> {
        let invalid = || {
            let what = format!("{line:?} is no profile; it is `NAME buffered=BYTES direct=BYTES`");
            Error::new(ErrorKind::InvalidOption { what: what.into() })
        };
        let mut words = line.split_whitespace();
        let mut next = |prefix: &str| words.next()?.strip_prefix(prefix);
        let device = next("").ok_or_else(invalid)?;
        let rate = |word: Option<&str>| word.and_then(|n| n.parse().ok()).ok_or_else(invalid);
        let buffered = rate(next("buffered="))?;
        let direct = rate(next("direct="))?;
        if words.next().is_some() {
            return Err(invalid());
        }
        Ok(DeviceProfile::new(device, buffered, direct))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_back_from_what_it_prints() {
        let profile = DeviceProfile::new("vda", 17, u64::MAX);
        assert_eq!(
            profile.to_string().parse::<DeviceProfile>().unwrap(),
            profile
        );
        for bad in [
            "",
            "vda",
            "vda buffered=1",
            "vda buffered=x direct=1",
            "vda direct=1 buffered=1",
            "a buffered=1 direct=1 b",
        ] {
            let error = bad.parse::<DeviceProfile>().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::InvalidOption { .. }),
                "{bad}: {error}"
            );
        }
    }
}
