//! Modules, functions and launches, with the limits that a GPU would set.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use software_cuda_ptx::{
    FindingKind, Function, Grid, Module, Options as RunOptions, ParseError, launch,
};

use crate::codes::{Code, Outcome};
use crate::device::Device;
use crate::memory::Kind;
use crate::profile::{PARAMETER_BYTES, PTX_VERSION, REGISTERS_PER_BLOCK, SHARED_PER_BLOCK};

/// A module in memory.
pub struct Loaded {
    module: Arc<Module>,
    /// Addresses of its variables.
    globals: Arc<Vec<u64>>,
}

/// A function of a module.
#[derive(Clone)]
pub struct LoadedFunction {
    module: usize,
    name: String,
    /// Most bytes of dynamic shared memory.
    dynamic: usize,
}

/// A launch in a stream.
pub struct Queued {
    module: Arc<Module>,
    globals: Arc<Vec<u64>>,
    name: String,
    grid: Grid,
    parameters: Vec<u8>,
}

/// Attributes of a function (`CUfunction_attribute`).
const MAX_DYNAMIC_SHARED: i32 = 8;

/// Modules that are remembered.
const KNOWN: usize = 64;

/// What a text says. It is remembered: a test that opens a device a hundred times loads the same modules each time.
fn parsed(text: &str) -> Result<Arc<Module>, ParseError> {
    static PARSED: Mutex<BTreeMap<String, Arc<Module>>> = Mutex::new(BTreeMap::new());
    let mut parsed = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(module) = parsed.get(text) {
        return Ok(module.clone());
    }
    let module = Arc::new(Module::parse(text)?);
    if parsed.len() >= KNOWN {
        parsed.clear();
    }
    parsed.insert(text.to_owned(), module.clone());
    Ok(module)
}

impl Device {
    /// Reads PTX and puts its variables into memory; with an error comes what the JIT's log would say.
    pub fn load_module(&mut self, image: &[u8], ordinal: i32) -> Result<usize, (Code, String)> {
        let text = std::str::from_utf8(image).map_err(|_| {
            (
                Code::INVALID_IMAGE,
                "the image is no text: only PTX is taken here".to_owned(),
            )
        })?;
        let module = parsed(text).map_err(|error| {
            (
                Code::INVALID_PTX,
                format!("ptxas application ptx input, {error}"),
            )
        })?;
        if module.version > PTX_VERSION {
            let (major, minor) = module.version;
            return Err((
                Code::UNSUPPORTED_PTX_VERSION,
                format!(
                    "ptxas fatal: unsupported .version {major}.{minor}; the driver takes {}.{}",
                    PTX_VERSION.0, PTX_VERSION.1
                ),
            ));
        }
        if module.target > self.options.profile.sm {
            return Err((
                Code::NO_BINARY_FOR_GPU,
                format!(
                    "the PTX is for sm_{}, the device is an sm_{}",
                    module.target, self.options.profile.sm
                ),
            ));
        }
        if let Some(kernel) = module
            .functions
            .iter()
            .find(|function| function.parameter_bytes > PARAMETER_BYTES)
        {
            return Err((
                Code::INVALID_PTX,
                format!(
                    "{}: more than {PARAMETER_BYTES} bytes of parameters",
                    kernel.name
                ),
            ));
        }
        if let Some(kernel) = module
            .functions
            .iter()
            .find(|function| function.shared_bytes > SHARED_PER_BLOCK)
        {
            return Err((
                Code::INVALID_PTX,
                format!(
                    "{}: uses too much shared data ({:#x} bytes, {SHARED_PER_BLOCK:#x} max)",
                    kernel.name, kernel.shared_bytes
                ),
            ));
        }
        let mut globals = Vec::new();
        for variable in &module.globals {
            let address = self
                .allocate(variable.bytes.len().max(1), Kind::Managed, ordinal)
                .map_err(|code| (code, format!("no memory for {}", variable.name)));
            match address {
                Ok(address) => {
                    // SAFETY: the memory was just taken, as long as the bytes.
                    unsafe {
                        self.copy(
                            address,
                            variable.bytes.as_ptr() as usize,
                            variable.bytes.len(),
                        )
                    };
                    globals.push(address as u64);
                }
                Err(error) => {
                    self.free_globals(&globals);
                    return Err(error);
                }
            }
        }
        let handle = self.handle();
        self.modules.insert(
            handle,
            Loaded {
                module,
                globals: Arc::new(globals),
            },
        );
        Ok(handle)
    }

    fn free_globals(&mut self, globals: &[u64]) {
        for address in globals {
            // They are ours, so this does not fail.
            let _ = self.free(*address as usize, &[Kind::Managed]);
        }
    }

    /// Takes a module away, with its functions.
    pub fn unload_module(&mut self, handle: usize) -> Outcome {
        let Some(loaded) = self.modules.remove(&handle) else {
            return self.freed_wrong(handle, Code::INVALID_HANDLE);
        };
        self.functions
            .retain(|_, function| function.module != handle);
        self.free_globals(&loaded.globals);
        self.forget(handle);
        Ok(())
    }

    /// Address and length of a variable of a module.
    pub fn global(&self, module: usize, name: &str) -> Outcome<(u64, usize)> {
        let loaded = self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let found = loaded
            .module
            .globals
            .iter()
            .zip(loaded.globals.iter())
            .find(|(variable, _)| variable.name == name);
        found
            .map(|(variable, address)| (*address, variable.bytes.len()))
            .ok_or(Code::NOT_FOUND)
    }

    /// A kernel of a module.
    pub fn function(&mut self, module: usize, name: &str) -> Outcome<usize> {
        let loaded = self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let kernel = loaded.module.kernel(name).ok_or(Code::NOT_FOUND)?;
        let dynamic = SHARED_PER_BLOCK - kernel.shared_bytes;
        let existing = self
            .functions
            .iter()
            .find(|(_, function)| function.module == module && function.name == name)
            .map(|(handle, _)| *handle);
        if let Some(handle) = existing {
            return Ok(handle);
        }
        let handle = self.handle();
        self.functions.insert(
            handle,
            LoadedFunction {
                module,
                name: name.to_owned(),
                dynamic,
            },
        );
        Ok(handle)
    }

    fn parts(&self, function: usize) -> Outcome<(LoadedFunction, Arc<Module>, Arc<Vec<u64>>)> {
        let function = self.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
        let loaded = self
            .modules
            .get(&function.module)
            .ok_or(Code::INVALID_HANDLE)?;
        Ok((
            function.clone(),
            loaded.module.clone(),
            loaded.globals.clone(),
        ))
    }

    /// Places and lengths of the parameters of a function, and the bytes of all.
    pub fn parameters(&self, function: usize) -> Outcome<(Vec<(usize, usize)>, usize)> {
        let (function, module, _) = self.parts(function)?;
        let kernel = module.kernel(&function.name).ok_or(Code::NOT_FOUND)?;
        Ok((
            kernel
                .parameters
                .iter()
                .map(|slot| (slot.offset, slot.len))
                .collect(),
            kernel.parameter_bytes,
        ))
    }

    /// Registers of each thread: what a test says, else as many as every kernel has at least.
    fn registers_of(&self, name: &str) -> u32 {
        self.registers.get(name).copied().unwrap_or(32)
    }

    fn most_threads(&self, kernel: &Function) -> u32 {
        let bound = kernel
            .max_threads
            .or(kernel.required_threads)
            .map_or(1024, |threads| threads.iter().product());
        bound
            .min(REGISTERS_PER_BLOCK / self.registers_of(&kernel.name).max(1))
            .min(1024)
    }

    /// An attribute of a function.
    pub fn function_attribute(&self, handle: usize, attribute: i32) -> Outcome<i32> {
        let (function, module, _) = self.parts(handle)?;
        let kernel = module.kernel(&function.name).ok_or(Code::NOT_FOUND)?;
        Ok(match attribute {
            0 => self.most_threads(kernel) as i32,
            1 => kernel.shared_bytes as i32,
            2 => 0,
            3 => kernel.local_bytes as i32,
            4 => self.registers_of(&function.name) as i32,
            5 => (module.version.0 * 10 + module.version.1) as i32,
            6 => self.options.profile.sm as i32,
            7 => 0,
            MAX_DYNAMIC_SHARED => function.dynamic as i32,
            9 => -1,
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    /// Sets an attribute of a function.
    pub fn set_function_attribute(&mut self, handle: usize, attribute: i32, value: i32) -> Outcome {
        let (function, module, _) = self.parts(handle)?;
        let kernel = module.kernel(&function.name).ok_or(Code::NOT_FOUND)?;
        match attribute {
            MAX_DYNAMIC_SHARED => {
                let most = self.options.profile.shared_opt_in - kernel.shared_bytes;
                let bytes = usize::try_from(value)
                    .ok()
                    .filter(|bytes| *bytes <= most)
                    .ok_or(Code::INVALID_VALUE)?;
                if let Some(function) = self.functions.get_mut(&handle) {
                    function.dynamic = bytes;
                }
                Ok(())
            }
            // How shared memory and the cache share their place.
            9 if (-1..=100).contains(&value) => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// How many blocks of a function a multiprocessor can hold.
    pub fn blocks_per_multiprocessor(
        &self,
        handle: usize,
        threads: i32,
        dynamic: usize,
    ) -> Outcome<i32> {
        let (function, module, _) = self.parts(handle)?;
        let kernel = module.kernel(&function.name).ok_or(Code::NOT_FOUND)?;
        let profile = &self.options.profile;
        if threads <= 0 || threads as u32 > self.most_threads(kernel) {
            return Err(Code::INVALID_VALUE);
        }
        let by_registers = REGISTERS_PER_BLOCK as i32
            / (self.registers_of(&function.name) as i32 * threads).max(1);
        let shared = kernel.shared_bytes + dynamic;
        let by_shared = profile
            .shared_per_multiprocessor
            .checked_div(shared)
            .map_or(i32::MAX, |blocks| blocks as i32);
        Ok((profile.threads_per_multiprocessor / threads)
            .min(profile.blocks_per_multiprocessor)
            .min(by_registers)
            .min(by_shared))
    }

    /// Checks a launch against all limits.
    pub fn prepare(&self, handle: usize, grid: Grid, parameters: Vec<u8>) -> Outcome<Queued> {
        let (function, module, globals) = self.parts(handle)?;
        let kernel = module.kernel(&function.name).ok_or(Code::NOT_FOUND)?;
        let [x, y, z] = grid.threads;
        let threads = u64::from(x) * u64::from(y) * u64::from(z);
        let [blocks_x, blocks_y, blocks_z] = grid.blocks;
        let blocks_fit = blocks_x > 0
            && blocks_x <= i32::MAX as u32
            && (1..=65_535).contains(&blocks_y)
            && (1..=65_535).contains(&blocks_z);
        let threads_fit = threads > 0 && threads <= 1024 && x <= 1024 && y <= 1024 && z <= 64;
        if !blocks_fit || !threads_fit || grid.dynamic_shared > function.dynamic {
            return Err(Code::INVALID_VALUE);
        }
        if kernel
            .required_threads
            .is_some_and(|required| required != grid.threads)
        {
            return Err(Code::INVALID_VALUE);
        }
        if threads > self.most_threads(kernel).into() {
            return Err(Code::LAUNCH_OUT_OF_RESOURCES);
        }
        Ok(Queued {
            module,
            globals,
            name: function.name,
            grid,
            parameters,
        })
    }

    /// Runs a kernel. What is wrong with it is said on standard error, kept for tests, and breaks the device.
    pub fn run_kernel(&mut self, queued: Queued) -> Outcome {
        let Queued {
            module,
            globals,
            name,
            grid,
            parameters,
        } = queued;
        self.counts.launches += 1;
        let options = RunOptions {
            schedule: self.options.schedule,
            checks: self.options.checks,
            traffic: self.options.traffic,
            ..RunOptions::default()
        };
        let report = launch(
            &module,
            &name,
            grid,
            &parameters,
            &globals,
            &mut self.memory,
            &options,
        )
        .map_err(|_| Code::INVALID_VALUE)?;
        let work = self.works.entry(name).or_default();
        work.launches += 1;
        work.steps += report.steps;
        work.loaded += report.by_blocks.loaded;
        work.stored += report.by_blocks.stored;
        work.distinct_loaded += report.by_launch.loaded;
        work.distinct_stored += report.by_launch.stored;
        for finding in &report.findings {
            eprintln!("software CUDA device: {finding}");
        }
        let code = report
            .fault()
            .or(report.findings.first())
            .map(|finding| match finding.kind {
                FindingKind::OutOfBounds => Code::ILLEGAL_ADDRESS,
                FindingKind::Misaligned => Code::MISALIGNED_ADDRESS,
                FindingKind::Endless => Code::LAUNCH_TIMEOUT,
                _ => Code::LAUNCH_FAILED,
            });
        self.findings.extend(report.findings);
        code.map_or(Ok(()), Err)
    }
}
