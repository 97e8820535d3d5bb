//! Kernels: PTX that is compiled by the driver when it is first used.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::context::{Context, Handle};
use super::device::Device;
use super::library::{CUfunction, CUmodule};
use crate::error::{Error, ErrorKind, Result};

/// Kernels that are compiled together: their PTX, and a name for it.
#[derive(Clone, Copy)]
pub struct Family {
    name: &'static str,
    ptx: &'static str,
}

impl Family {
    /// A family that is called `name`; the PTX may not have zero bytes.
    pub const fn new(name: &'static str, ptx: &'static str) -> Self {
        Family { name, ptx }
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Family")
            .field("name", &self.name)
            .field("bytes", &self.ptx.len())
            .finish()
    }
}

/// All kernels of this crate. Each is loaded when it is first needed; [`Device::module`] of them does it before.
pub const FAMILIES: &[Family] = &[
    super::checksum::CRC,
    super::decompress::DECOMPRESS,
    super::dense::DENSE,
    super::columns::WALK,
    super::columns::RLE,
    super::columns::FIXED,
    super::columns::DELTA,
    super::columns::DELTA_STRINGS,
    super::columns::STRINGS,
    super::columns::NESTING,
    super::columns::SELECT,
    super::example::EXAMPLE,
    super::frames::FRAMES,
    super::scan::SCAN,
];

/// Modules of a device by the PTX that they are of.
#[derive(Default)]
pub(super) struct Modules(Mutex<HashMap<(*const u8, usize), Arc<Module>>>);

// SAFETY: the pointers are names of texts that live for ever; they are compared, and never followed.
unsafe impl Send for Modules {}
// SAFETY: as above.
unsafe impl Sync for Modules {}

impl Device {
    /// The kernels of a family. The first time the driver compiles them, which takes it some milliseconds to some hundred (it keeps
    /// what it made in a cache of its own); [`Module::load_time`] says how long.
    ///
    /// # Errors
    /// [`ErrorKind::Cuda`] with the compiler's log if the driver does not take them; [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub fn module(&self, family: Family) -> Result<Arc<Module>> {
        self.context().check()?;
        let key = (family.ptx.as_ptr(), family.ptx.len());
        // Held while it is compiled: others that want it wait for it.
        let mut modules = self
            .modules()
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(&key) {
            return Ok(module.clone());
        }
        let module = Arc::new(Module::load(self.context(), family)?);
        modules.insert(key, module.clone());
        Ok(module)
    }
}

/// Kernels on a device.
pub struct Module {
    context: Arc<Context>,
    handle: Handle<CUmodule>,
    name: &'static str,
    time: Duration,
    log: String,
    /// Those that were looked up.
    functions: Mutex<HashMap<Box<str>, Handle<CUfunction>>>,
}

/// Bytes for what the compiler says.
const LOG: usize = 8 << 10;

impl Module {
    fn load(context: &Arc<Context>, family: Family) -> Result<Self> {
        // `CUjit_option`: buffers and lengths for what the compiler says, and for its errors.
        const INFO_LOG_BUFFER: u32 = 3;
        const INFO_LOG_BUFFER_SIZE_BYTES: u32 = 4;
        const ERROR_LOG_BUFFER: u32 = 5;
        const ERROR_LOG_BUFFER_SIZE_BYTES: u32 = 6;
        let image = CString::new(family.ptx).map_err(|_| {
            Error::new(ErrorKind::InvalidOption {
                what: format!("the PTX of {} has a zero byte", family.name).into(),
            })
        })?;
        let (mut info, mut errors) = (vec![0u8; LOG], vec![0u8; LOG]);
        let mut options = [
            INFO_LOG_BUFFER,
            INFO_LOG_BUFFER_SIZE_BYTES,
            ERROR_LOG_BUFFER,
            ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // Lengths are numbers in the place of pointers; one less, so that there is a zero byte in any case.
        let len = ptr::without_provenance_mut(LOG - 1);
        let mut values: [*mut c_void; 4] = [
            info.as_mut_ptr().cast(),
            len,
            errors.as_mut_ptr().cast(),
            len,
        ];
        let mut handle = ptr::null_mut();
        let begun = Instant::now();
        // SAFETY: the image is a text with a zero byte at its end; options and values are four each, and the buffers as long as they say.
        let loaded = context.allocate(image.as_bytes().len(), |driver| unsafe {
            driver.cuModuleLoadDataEx(
                &mut handle,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        let time = begun.elapsed();
        loaded.map_err(|error| with_log(error, &text(&errors)))?;
        let log = text(&info);
        tracing::debug!(name = family.name, ?time, log, "kernels loaded");
        Ok(Module {
            context: context.clone(),
            handle: Handle(handle),
            name: family.name,
            time,
            log,
            functions: Mutex::default(),
        })
    }

    /// What its family is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How long the driver took to load it, which is mostly to compile it.
    pub fn load_time(&self) -> Duration {
        self.time
    }

    /// What the compiler said; often nothing.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// A kernel by its name, as a `CUfunction`; it is gone with the module. The driver is asked once for each.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none of that name; else as [`Device::module`].
    pub fn function(&self, name: &str) -> Result<*mut c_void> {
        const NOT_FOUND: u32 = 500;
        let missing = || {
            let what = format!("kernel {name} in {}", self.name).into();
            Error::new(ErrorKind::NotFound { what }).by("cuda")
        };
        self.context.check()?;
        // Nothing panics while it is held.
        let mut functions = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(name) {
            return Ok(function.0.cast());
        }
        let text = CString::new(name).map_err(|_| missing())?;
        let mut function: CUfunction = ptr::null_mut();
        // SAFETY: the module lives as long as `self`; a place for the function, and a text with a zero byte at its end.
        let found = self.context.call(|driver| unsafe {
            driver.cuModuleGetFunction(&mut function, self.handle.0, text.as_ptr())
        });
        match found {
            Ok(()) => {
                functions.insert(name.into(), Handle(function));
                Ok(function.cast())
            }
            Err(error) => Err(match error.kind() {
                ErrorKind::Cuda {
                    code: NOT_FOUND, ..
                } => missing(),
                _ => error,
            }),
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let handle = self.handle.0;
        // SAFETY: made by `load`, unloaded once.
        self.context
            .release(|driver| unsafe { driver.cuModuleUnload(handle) });
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("name", &self.name)
            .field("load_time", &self.time)
            .finish_non_exhaustive()
    }
}

/// The text in a buffer of the driver's.
fn text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|byte| *byte == 0);
    let text = buffer
        .get(..end.unwrap_or(buffer.len()))
        .unwrap_or_default();
    String::from_utf8_lossy(text).trim().to_owned()
}

/// The same error, with what the compiler said.
fn with_log(error: Error, said: &str) -> Error {
    match error.kind() {
        ErrorKind::Cuda {
            call, code, name, ..
        } if !said.is_empty() => Error::new(ErrorKind::Cuda {
            call,
            code: *code,
            name: name.clone(),
            log: Some(said.into()),
        })
        .by("cuda"),
        _ => error,
    }
}
