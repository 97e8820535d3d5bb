//! Reads PTX and runs its kernels on the host, warp by warp, with checks.
//!
//! The text is what NVRTC 12.0 makes of our kernels (PTX 8.0, sm_75 and up). [`Module::parse`] turns it into an
//! [intermediate form](ir); [`launch`] runs one kernel of it. What is not known is an error with its line, never a
//! guess: an instruction that is parsed is also carried out.
//!
//! A warp is 32 lanes. Lanes that take different branches become groups of their own; the [`Schedule`] says which group runs
//! next and when groups join again, so that a kernel can be run in several of the orders that hardware is free to
//! choose. With [`Checks`] on, every access is compared with those before it: races, reads of what nobody wrote,
//! barriers that not all threads reach. Accesses outside of memory and misaligned ones are always found.
//!
//! What it does not model: time, caches, weak memory order, and blocks that run side by side (they run one after another, so
//! a block that spins for a later one never ends, and is stopped).
//!
//! ```
//! use software_cuda_ptx::{Grid, HostMemory, Module, Options, launch};
//!
//! let module = Module::parse(
//!     ".version 8.0
//!      .target sm_75
//!      .address_size 64
//!      .visible .entry answer(.param .u64 out) {
//!          .reg .b64 %rd<2>;
//!          ld.param.u64 %rd1, [out];
//!          st.global.u32 [%rd1], 42;
//!          ret;
//!      }",
//! )?;
//! let mut memory = HostMemory::new();
//! let out = memory.allocate(&[0; 4]);
//! launch(&module, "answer", Grid::line(1, 1), &out.to_le_bytes(), &[], &mut memory, &Options::default())?;
//! assert_eq!(memory.bytes(out), [42, 0, 0, 0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod alu;
mod check;
mod collective;
mod convert;
mod error;
mod execute;
pub mod ir;
mod launch;
mod memory;
mod parse;
mod reach;
mod schedule;
mod warp;
mod wide;

pub use check::{Checks, Finding, FindingKind, Place};
pub use error::{ParseError, ParseErrorKind};
pub use ir::{Function, Module};
pub use launch::{Grid, LaunchError, Options, Report, Traffic, launch};
pub use memory::{Fetched, HostMemory, Memory};
pub use schedule::Schedule;
