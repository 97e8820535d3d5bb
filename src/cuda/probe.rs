//! The three questions to CUDA: is there a driver, is there a device, is it new enough; each "no" with its reason.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::OnceLock;

use super::library::{self, CUdevice, Driver, Failure, Missing, code};
use crate::error::{Error, ErrorKind, Refusal};
use crate::sys::Generation;

/// The oldest driver that takes the kernels, which are PTX 8.0: that of CUDA 12.0, as `cuDriverGetVersion` has it.
pub(super) const OLDEST_DRIVER: c_int = 12_000;

/// The least compute capability that the kernels are made for.
pub(super) const LEAST_CAPABILITY: (u32, u32) = (7, 5);

/// Why CUDA cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoCuda {
    /// There is no driver: the library cannot be opened.
    #[error("there is no CUDA driver: {why}")]
    NoDriver {
        /// What the system's loader said.
        why: String,
    },
    /// The driver is older than CUDA 12.0, whose kernels (PTX 8.0) it would refuse.
    #[error(
        "the CUDA driver is too old: it is for CUDA {}.{}, and 12.0 is needed",
        found.0, found.1
    )]
    OldDriver {
        /// Major and minor version of CUDA that it is for.
        found: (u32, u32),
    },
    /// The library lacks a function that is needed: it is damaged, or something else of that name.
    #[error("the CUDA driver lacks the function {function}")]
    MissingFunction {
        /// The function.
        function: &'static str,
    },
    /// There is a driver, and no device for this process.
    #[error("there is no CUDA device{}", hidden(visible_devices.as_deref()))]
    NoDevice {
        /// The environment variable `CUDA_VISIBLE_DEVICES`, where it is set: it can hide devices.
        visible_devices: Option<String>,
    },
    /// No device has this ordinal.
    #[error("there is no CUDA device {ordinal}: {}", devices(*count))]
    NoSuchDevice {
        /// What was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The device is older than compute capability 7.5 (Turing).
    #[error(
        "CUDA device {ordinal} has compute capability {}.{}, and 7.5 is needed",
        found.0, found.1
    )]
    OldDevice {
        /// Its ordinal.
        ordinal: u32,
        /// Major and minor compute capability.
        found: (u32, u32),
    },
    /// A call of the driver failed, as where the driver's library and its kernel module do not fit together.
    #[error("{call} failed: {name} ({code})")]
    Failed {
        /// The function.
        call: &'static str,
        /// Its `CUresult`.
        code: u32,
        /// The name of that.
        name: String,
    },
    /// This process was forked from one that had used CUDA, which does not work in the child.
    #[error(
        "this process was forked from one that had used CUDA; CUDA works in the first of them only"
    )]
    Forked,
}

fn devices(count: u32) -> Cow<'static, str> {
    match count {
        1 => "device 0 is the only one".into(),
        count => format!("the {count} are numbered from 0").into(),
    }
}

fn hidden(visible: Option<&str>) -> Cow<'static, str> {
    match visible {
        None => "".into(),
        Some("") => ": CUDA_VISIBLE_DEVICES is set to nothing, which hides all".into(),
        Some(visible) => {
            format!(" (CUDA_VISIBLE_DEVICES is {visible:?}, which may hide some)").into()
        }
    }
}

impl From<NoCuda> for Error {
    /// [`ErrorKind::Unavailable`] of the engine "cuda"; [`ErrorKind::Forked`] after a fork.
    fn from(why: NoCuda) -> Self {
        if why == NoCuda::Forked {
            return Error::new(ErrorKind::Forked).by("cuda");
        }
        Error::new(ErrorKind::Unavailable {
            engine: "cuda",
            why: Refusal::NotOnThisSystem {
                what: why.to_string().into(),
            },
        })
    }
}

/// What there is of CUDA; see [`available`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Available {
    /// Major and minor version of CUDA that the driver is for.
    pub driver: (u32, u32),
    /// The devices, by ordinal; at least one can be used.
    pub devices: Vec<DeviceInfo>,
}

/// A device, as the driver describes it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its number in this process, from 0.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Bytes of memory.
    pub memory: u64,
    /// Address on the PCI bus, as sysfs writes it: `0000:01:00.0`.
    pub pci: Option<String>,
    /// Why it cannot be used, if it cannot.
    pub refused: Option<NoCuda>,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.capability;
        let gib = self.memory as f64 / f64::from(1 << 30);
        write!(
            f,
            "device {}: {}, compute capability {major}.{minor}, {gib:.1} GiB",
            self.ordinal, self.name
        )
    }
}

/// Whether CUDA can be used here: the driver and its devices, or the reason why not.
///
/// The driver's library is opened once in a process; on a machine without one, that failed `dlopen` is all this ever costs. The
/// devices are asked for each time. Nothing is allocated on a device, and no context is made. It initialises the driver, though, after which
/// CUDA does not work in processes that are forked from this one.
///
/// ```
/// match feedwater::cuda::available() {
///     Ok(found) => println!("{}", found.devices[0]),
///     Err(why) => println!("reading into host memory: {why}"),
/// }
/// ```
///
/// # Errors
/// The first reason that holds: no driver, one that is too old or not whole, no device, and, if no device is new enough, what is
/// wrong with the first. Never panics.
pub fn available() -> Result<Available, NoCuda> {
    let driver = driver()?;
    let count = device_count(driver)?;
    let devices = (0..count)
        .map(|ordinal| describe(driver, ordinal))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(why) = devices.iter().find_map(|device| device.refused.clone())
        && devices.iter().all(|device| device.refused.is_some())
    {
        return Err(why);
    }
    let version = library::version().unwrap_or(OLDEST_DRIVER);
    Ok(Available {
        driver: major_minor(version),
        devices,
    })
}

/// The driver, initialised.
pub(super) fn driver() -> Result<&'static Driver, NoCuda> {
    /// The process that first initialised it.
    static FIRST: OnceLock<Generation> = OnceLock::new();
    let driver = library::driver().map_err(|missing| match missing {
        Missing::Library(why) => NoCuda::NoDriver { why },
        Missing::Function(function) => NoCuda::MissingFunction { function },
        Missing::Failed(Failure { call, code }) => NoCuda::Failed {
            call,
            code,
            name: match code {
                code::STUB_LIBRARY => "a library for linking is in the place of the driver".into(),
                _ => "an unknown error".into(),
            },
        },
        Missing::Old(version) => NoCuda::OldDriver {
            found: major_minor(version),
        },
    })?;
    if FIRST.get().is_some_and(|first| !first.is_current()) {
        return Err(NoCuda::Forked);
    }
    // SAFETY: needs nothing; doing it again does nothing.
    match unsafe { driver.cuInit(0) } {
        Ok(()) => {}
        Err(failure) if failure.code == code::NO_DEVICE => return Err(no_device()),
        // Somebody else used CUDA before the fork.
        Err(failure) if failure.code == code::NOT_INITIALIZED => return Err(NoCuda::Forked),
        Err(failure) => return Err(failed(driver, failure)),
    }
    FIRST.get_or_init(Generation::current);
    Ok(driver)
}

/// A device that can be used.
pub(super) fn device(ordinal: u32) -> Result<(&'static Driver, CUdevice, DeviceInfo), NoCuda> {
    let driver = driver()?;
    let count = device_count(driver)?;
    if ordinal >= count {
        return Err(NoCuda::NoSuchDevice { ordinal, count });
    }
    let info = describe(driver, ordinal)?;
    match &info.refused {
        Some(why) => Err(why.clone()),
        None => Ok((driver, handle(driver, ordinal)?, info)),
    }
}

/// An attribute of a device, by its number in `cuda.h`.
pub(super) fn attribute(
    driver: &Driver,
    device: CUdevice,
    attribute: u32,
) -> Result<c_int, Failure> {
    let mut value = 0;
    // SAFETY: a place for the number; the driver checks the rest.
    unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, device) }?;
    Ok(value)
}

fn device_count(driver: &Driver) -> Result<u32, NoCuda> {
    let mut count = 0;
    // SAFETY: a place for the number.
    match unsafe { driver.cuDeviceGetCount(&mut count) } {
        Ok(()) if count > 0 => Ok(count.unsigned_abs()),
        Ok(()) => Err(no_device()),
        Err(failure) if failure.code == code::NO_DEVICE => Err(no_device()),
        Err(failure) => Err(failed(driver, failure)),
    }
}

fn handle(driver: &Driver, ordinal: u32) -> Result<CUdevice, NoCuda> {
    let mut device = 0;
    // SAFETY: a place for the handle.
    match unsafe { driver.cuDeviceGet(&mut device, ordinal.cast_signed()) } {
        Ok(()) => Ok(device),
        Err(failure) if failure.code == code::INVALID_DEVICE => Err(no_device()),
        Err(failure) => Err(failed(driver, failure)),
    }
}

fn describe(driver: &Driver, ordinal: u32) -> Result<DeviceInfo, NoCuda> {
    const MAJOR: u32 = 75;
    const MINOR: u32 = 76;
    let device = handle(driver, ordinal)?;
    let failed = |failure| failed(driver, failure);
    let number = |which| attribute(driver, device, which).map(c_int::unsigned_abs);
    let capability = (
        number(MAJOR).map_err(failed)?,
        number(MINOR).map_err(failed)?,
    );
    let mut memory = 0;
    // SAFETY: a place for the number.
    unsafe { driver.cuDeviceTotalMem_v2(&mut memory, device) }.map_err(failed)?;
    let name = text(|buffer, len| {
        // SAFETY: the buffer is as long as it says.
        unsafe { driver.cuDeviceGetName(buffer, len, device) }
    });
    let pci = text(|buffer, len| {
        // SAFETY: the buffer is as long as it says.
        unsafe { driver.cuDeviceGetPCIBusId(buffer, len, device) }
    });
    let refused = (capability < LEAST_CAPABILITY).then_some(NoCuda::OldDevice {
        ordinal,
        found: capability,
    });
    Ok(DeviceInfo {
        ordinal,
        name: name.map_err(failed)?,
        capability,
        memory: memory as u64,
        pci: pci.ok().map(|id| id.to_ascii_lowercase()),
        refused,
    })
}

/// A text that the driver writes.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<(), Failure>) -> Result<String, Failure> {
    let mut buffer = [0u8; 256];
    // One less, so that there is a zero byte in any case.
    write(buffer.as_mut_ptr().cast(), buffer.len() as c_int - 1)?;
    let text = CStr::from_bytes_until_nul(&buffer).map(CStr::to_string_lossy);
    Ok(text.unwrap_or_default().into_owned())
}

fn no_device() -> NoCuda {
    NoCuda::NoDevice {
        visible_devices: std::env::var_os("CUDA_VISIBLE_DEVICES")
            .map(|visible| visible.to_string_lossy().into_owned()),
    }
}

fn failed(driver: &Driver, failure: Failure) -> NoCuda {
    NoCuda::Failed {
        call: failure.call,
        code: failure.code,
        name: name_of(driver, failure.code),
    }
}

/// What the driver calls a result, or says that it has no name.
pub(super) fn name_of(driver: &Driver, code: u32) -> String {
    driver
        .name_of(code)
        .unwrap_or_else(|| "an unknown error".into())
}

fn major_minor(version: c_int) -> (u32, u32) {
    let version = version.unsigned_abs();
    (version / 1000, version % 1000 / 10)
}
