//! A launch: all blocks of a grid, with their warps and barriers.

use std::collections::HashSet;
use std::fmt;
use std::hash::BuildHasherDefault;

use crate::check::{Checks, Finding, Findings, Mixed, Shadow};
use crate::execute::{Block, Fault};
use crate::ir::{Function, Module};
use crate::memory::Memory;
use crate::schedule::{Random, Schedule};
use crate::warp::Warp;

/// How many blocks, threads and bytes of shared memory a launch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: [u32; 3],
    /// Threads of a block; 1,024 at most in all.
    pub threads: [u32; 3],
    /// Bytes of shared memory for each block, beyond what the kernel declares.
    pub dynamic_shared: usize,
}

impl Grid {
    /// Blocks and threads in one dimension.
    pub fn line(blocks: u32, threads: u32) -> Self {
        Self {
            blocks: [blocks, 1, 1],
            threads: [threads, 1, 1],
            dynamic_shared: 0,
        }
    }
}

/// How a kernel is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// In which order.
    pub schedule: Schedule,
    /// With which checks.
    pub checks: Checks,
    /// Steps of warps in one block after which it is taken for endless.
    pub most_steps: u64,
    /// Whether traffic is counted, which takes time.
    pub traffic: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schedule: Schedule::InOrder,
            checks: Checks::default(),
            most_steps: 1 << 28,
            traffic: false,
        }
    }
}

/// What came of a launch.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong with the kernel. The last one stopped it if it [is a fault](FindingKind::is_fault).
    pub findings: Vec<Finding>,
    /// Steps of all warps: each is one instruction, for the lanes that are at it.
    pub steps: u64,
    /// Bytes of global memory that were moved, if asked for: sectors of 32 bytes, each once for a block, as if its cache had room for
    /// all.
    pub by_blocks: Traffic,
    /// The same with each once for the launch, as if the cache of all blocks had room for all.
    pub by_launch: Traffic,
}

/// Bytes of global memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Loaded.
    pub loaded: u64,
    /// Stored, by atomics too.
    pub stored: u64,
}

impl Report {
    /// What stopped the kernel before its end.
    pub fn fault(&self) -> Option<&Finding> {
        self.findings
            .last()
            .filter(|finding| finding.kind.is_fault())
    }
}

/// Why a launch did not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchError {
    /// No kernel of that name.
    NoKernel(String),
    /// No threads, too many, or others than the kernel says.
    Threads([u32; 3]),
    /// A dimension without blocks.
    Blocks([u32; 3]),
    /// The parameters are not as long as those of the kernel.
    Parameters {
        /// What was given, in bytes.
        given: usize,
        /// What the kernel has.
        wanted: usize,
    },
    /// Not an address for each variable of the module.
    Globals {
        /// How many were given.
        given: usize,
        /// How many variables there are.
        wanted: usize,
    },
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKernel(name) => write!(f, "no kernel {name}"),
            Self::Threads(threads) => {
                write!(f, "{threads:?} threads are not what the kernel may have")
            }
            Self::Blocks(blocks) => write!(f, "{blocks:?} blocks are none"),
            Self::Parameters { given, wanted } => {
                write!(f, "{given} bytes of parameters, the kernel has {wanted}")
            }
            Self::Globals { given, wanted } => {
                write!(f, "{given} addresses of variables, the module has {wanted}")
            }
        }
    }
}

impl std::error::Error for LaunchError {}

/// Bytes that memory moves at a time.
pub(crate) const SECTOR: u64 = 32;

/// Numbers of them.
pub(crate) type Sectors = HashSet<u64, BuildHasherDefault<Mixed>>;

/// What all blocks of a launch share.
pub(crate) struct Launch<'a, M> {
    pub(crate) module: &'a Module,
    pub(crate) kernel: &'a Function,
    pub(crate) kernel_index: usize,
    pub(crate) parameters: &'a [u8],
    pub(crate) globals: &'a [u64],
    pub(crate) memory: &'a mut M,
    pub(crate) grid: Grid,
    pub(crate) options: Options,
    pub(crate) findings: Findings,
    pub(crate) global_shadow: Shadow,
    pub(crate) random: Random,
    pub(crate) steps: u64,
    pub(crate) by_blocks: Traffic,
    /// Sectors that blocks loaded and stored to.
    pub(crate) loaded: Sectors,
    pub(crate) stored: Sectors,
}

/// Runs a kernel to its end, or to the first fault.
///
/// `parameters` are laid out as the kernel declares them, `globals` are the addresses of [`Module::globals`] in `memory`.
///
/// # Errors
/// If the launch does not fit the kernel. What goes wrong in the kernel is in the [`Report`].
pub fn launch<M: Memory>(
    module: &Module,
    kernel: &str,
    grid: Grid,
    parameters: &[u8],
    globals: &[u64],
    memory: &mut M,
    options: &Options,
) -> Result<Report, LaunchError> {
    let found = module
        .functions
        .iter()
        .enumerate()
        .find(|(_, function)| function.entry && function.name == kernel);
    let (kernel_index, kernel) = found.ok_or_else(|| LaunchError::NoKernel(kernel.to_owned()))?;
    let threads = grid
        .threads
        .iter()
        .try_fold(1u32, |all, one| all.checked_mul(*one));
    let within = |limit: [u32; 3]| {
        threads.is_some_and(|threads| {
            u64::from(threads) <= limit.iter().map(|one| u64::from(*one)).product()
        })
    };
    let exact = kernel
        .required_threads
        .is_none_or(|required| required == grid.threads);
    if !threads.is_some_and(|threads| (1..=1024).contains(&threads))
        || !kernel.max_threads.is_none_or(within)
        || !exact
    {
        return Err(LaunchError::Threads(grid.threads));
    }
    if grid.blocks.contains(&0) {
        return Err(LaunchError::Blocks(grid.blocks));
    }
    if parameters.len() != kernel.parameter_bytes {
        return Err(LaunchError::Parameters {
            given: parameters.len(),
            wanted: kernel.parameter_bytes,
        });
    }
    if globals.len() != module.globals.len() {
        return Err(LaunchError::Globals {
            given: globals.len(),
            wanted: module.globals.len(),
        });
    }
    let mut launch = Launch {
        module,
        kernel,
        kernel_index,
        parameters,
        globals,
        memory,
        grid,
        options: *options,
        findings: Findings::default(),
        global_shadow: Shadow::default(),
        random: options.schedule.random(),
        steps: 0,
        by_blocks: Traffic::default(),
        loaded: Sectors::default(),
        stored: Sectors::default(),
    };
    let [x, y, z] = grid.blocks.map(u64::from);
    let order = options
        .schedule
        .order(x.saturating_mul(y).saturating_mul(z), &mut launch.random);
    for number in order {
        let index = [number % x, number / x % y, number / x / y].map(|part| part as u32);
        if let Err(fault) = run_block(&mut launch, index, number) {
            launch.findings.list.push(*fault);
            break;
        }
    }
    Ok(Report {
        findings: launch.findings.list,
        steps: launch.steps,
        by_blocks: launch.by_blocks,
        by_launch: Traffic {
            loaded: SECTOR * launch.loaded.len() as u64,
            stored: SECTOR * launch.stored.len() as u64,
        },
    })
}

fn run_block<M: Memory>(
    launch: &mut Launch<'_, M>,
    index: [u32; 3],
    number: u64,
) -> Result<(), Fault> {
    let (schedule, kernel) = (launch.options.schedule, launch.kernel);
    let threads: u32 = launch.grid.threads.iter().product();
    let last = launch.steps.saturating_add(launch.options.most_steps);
    let kernel_index = launch.kernel_index;
    let warp = |number: u32| {
        let count = (threads - number * 32).min(32);
        Warp::new(
            number,
            u32::MAX >> (32 - count),
            kernel_index,
            kernel,
            schedule,
        )
    };
    let mut warps: Vec<Warp> = (0..threads.div_ceil(32)).map(warp).collect();
    let launch_dynamic = launch.grid.dynamic_shared;
    let mut block = Block::new(launch, index, number, shared_layout(kernel, launch_dynamic));
    loop {
        let order: Vec<u64> = {
            let random = &mut block.launch.random;
            schedule.order(warps.len() as u64, random).collect()
        };
        for position in order {
            let warp = &mut warps[position as usize];
            let burst = schedule.burst(&mut block.launch.random);
            block.run(warp, burst, last)?;
        }
        if warps.iter().any(Warp::has_ready) {
            continue;
        }
        if warps.iter().all(|warp| warp.groups.is_empty()) {
            let loaded = std::mem::take(&mut block.loaded);
            let stored = std::mem::take(&mut block.stored);
            block.launch.by_blocks.loaded += SECTOR * loaded.len() as u64;
            block.launch.by_blocks.stored += SECTOR * stored.len() as u64;
            block.launch.loaded.extend(loaded);
            block.launch.stored.extend(stored);
            return Ok(());
        }
        block.release(&mut warps)?;
    }
}

/// Whether each byte of a block's shared memory belongs to a variable, or lies between two.
fn shared_layout(kernel: &Function, dynamic: usize) -> Vec<bool> {
    let mut belongs = Vec::new();
    let variables = kernel
        .shared
        .values()
        .map(|slot| (slot.offset, slot.len))
        .chain([(kernel.dynamic_offset, dynamic)]);
    for (offset, len) in variables.filter(|(_, len)| *len > 0) {
        if belongs.len() < offset + len {
            belongs.resize(offset + len, false);
        }
        belongs[offset..offset + len].fill(true);
    }
    belongs
}
