//! The descriptor for reading past the page cache, and what alignment it needs.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use crate::backend::file::OpenFile;
use crate::buffer::{HostMemory, Memory};
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::sys::{self, ReadMode};

/// Taken where the system does not tell: no device and no file system is known to need more.
const UNKNOWN_ALIGN: u64 = 4096;

/// Larger alignments than this are not met by our blocks.
const MOST_ALIGN: u64 = 1 << 20;

/// A file opened for direct I/O; the same inode as the buffered descriptor, which was compared.
#[derive(Debug)]
pub(crate) struct DirectFile {
    file: File,
    memory: u64,
    offset: u64,
}

impl DirectFile {
    /// Opens `file` once more. `Err` is the reason why direct I/O does not work for it.
    ///
    /// Asks `statx` for the alignment (Linux 6.1), and takes 4096 bytes where it does not say. Reads nothing.
    pub(crate) fn open(file: &OpenFile) -> Result<Self, Refusal> {
        let refused = |what: &'static str| Refusal::NotForThisFile { what: what.into() };
        let (memory, offset) = match sys::direct_align(file.fd()) {
            Ok(Some(align)) if align.memory == 0 || align.offset == 0 => {
                return Err(refused("the file system offers no direct I/O for it"));
            }
            Ok(Some(align)) => (align.memory as u64, align.offset),
            Ok(None) => (UNKNOWN_ALIGN, UNKNOWN_ALIGN),
            Err(source) if source.kind() == std::io::ErrorKind::Unsupported => {
                return Err(Refusal::NotOnThisSystem {
                    what: "direct I/O".into(),
                });
            }
            // Whatever keeps it from telling; direct I/O there is.
            Err(_) => (UNKNOWN_ALIGN, UNKNOWN_ALIGN),
        };
        let aligned = |n: u64| n.is_power_of_two() && n <= MOST_ALIGN;
        if !aligned(memory) || !aligned(offset) {
            return Err(refused(
                "direct I/O needs an alignment that is not supported",
            ));
        }
        let direct = DirectFile {
            file: file.reopen_direct().map_err(refusal)?,
            memory,
            offset,
        };
        Ok(direct)
    }

    /// Reads one block: some file systems take the flag at the open and refuse the read. Waits for the device.
    pub(crate) fn probe(&self, file_len: u64) -> Result<(), Refusal> {
        if file_len == 0 {
            return Ok(());
        }
        let block = HostMemory::new(self.strictest() as usize).map_err(refusal)?;
        // SAFETY: the block is ours and has that length.
        let read = unsafe {
            let len = block.len();
            sys::pread(self.fd(), block.ptr(), len, 0, ReadMode::default())
        };
        match read {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(Refusal::Os {
                op: "a direct read",
                source: error.into(),
            }),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What offsets and lengths are multiples of.
    pub(crate) fn align(&self) -> u64 {
        self.offset
    }

    /// Whether bytes of the file from `offset` on may be read to `target`.
    pub(crate) fn fits(&self, offset: u64, target: *const u8) -> bool {
        offset.is_multiple_of(self.offset) && (target.addr() as u64).is_multiple_of(self.memory)
    }

    /// Alignment in bytes of offset, length and address alike.
    pub(crate) fn strictest(&self) -> u64 {
        self.offset.max(self.memory)
    }
}

/// Why the second opening failed.
fn refusal(error: Error) -> Refusal {
    match error.kind() {
        ErrorKind::Io { op, source } => Refusal::Os {
            op,
            source: source.clone(),
        },
        kind => Refusal::NotForThisFile {
            what: kind.to_string().into(),
        },
    }
}
