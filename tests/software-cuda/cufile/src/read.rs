//! One read.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_int;

use crate::codes;
use crate::driver;
use crate::state::{State, state, wait_while};

/// What is to be read where.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The file.
    pub handle: usize,
    /// The address that the caller gave: of a registered buffer, if the bytes are to be known as parts of it.
    pub base: u64,
    /// Where the first byte goes, from there.
    pub behind: i64,
    /// How many bytes.
    pub len: usize,
    /// Where in the file.
    pub offset: i64,
}

const ALIGN: usize = 4096;

impl Asked {
    /// Device address of the first byte.
    fn to(self) -> u64 {
        self.base.wrapping_add_signed(self.behind)
    }

    /// Reads: how many bytes came, or a code of cuFile, or an errno. `call` is what tests name it by.
    pub fn read(self, call: &str) -> Result<usize, c_int> {
        let mut state = state();
        if state.held {
            state.counts.waiting += 1;
            state = wait_while(state, |state| state.held);
            state.counts.waiting -= 1;
        }
        state.count(self, call);
        let file = *state
            .handles
            .get(&self.handle)
            .ok_or(codes::HANDLE_NOT_REGISTERED)?;
        if let Some(code) = state.failure(call) {
            return Err(code);
        }
        let len = state.shortened(self.len);
        drop(state);
        if self.offset < 0 {
            return Err(codes::INVALID_VALUE);
        }
        if !driver::has_context() {
            return Err(codes::CUDA_CONTEXT_MISMATCH);
        }
        if !driver::reaches(self.to(), self.len) {
            return Err(codes::CUDA_POINTER_INVALID);
        }
        // As the file may be open for direct reads, which take whole blocks at aligned addresses.
        let front = self.offset as usize % ALIGN;
        let mut bounce = Bounce::new((front + len).next_multiple_of(ALIGN));
        let got = bounce.fill(file, self.offset - front as i64)?;
        let bytes = &bounce.bytes()[..got.min(front + len)];
        let bytes = bytes.get(front..).unwrap_or_default();
        if !bytes.is_empty() && !driver::write(self.to(), bytes) {
            return Err(codes::CUDA_DRIVER_ERROR);
        }
        Ok(bytes.len())
    }
}

impl State {
    fn count(&mut self, asked: Asked, call: &str) {
        match call {
            "entry" => self.counts.entries += 1,
            _ => self.counts.reads += 1,
        }
        let aligned = [asked.to() as usize, asked.len, asked.offset as usize]
            .iter()
            .all(|n| n % ALIGN == 0);
        self.counts.unaligned += u64::from(!aligned);
        // cuFile's reference allows an offset from the start of a registered buffer alone.
        let known = self.buffers.contains_key(&asked.base);
        self.counts.wrong += u64::from(asked.behind != 0 && !known);
        let end = asked.behind as u64 + asked.len as u64;
        let registered = self
            .buffers
            .get(&asked.base)
            .is_some_and(|len| end <= *len as u64);
        self.counts.registered += u64::from(registered);
    }

    /// The bytes that this read is to give, at most.
    fn shortened(&mut self, len: usize) -> usize {
        match &mut self.short {
            Some((0, most)) => {
                let len = len.min(*most);
                self.short = None;
                len
            }
            Some((after, _)) => {
                *after -= 1;
                len
            }
            None => len,
        }
    }
}

/// Memory that direct reads can go to.
struct Bounce {
    start: *mut u8,
    layout: Layout,
}

impl Bounce {
    fn new(len: usize) -> Self {
        let layout =
            Layout::from_size_align(len.max(ALIGN), ALIGN).unwrap_or_else(|_| unreachable!());
        // SAFETY: the layout has bytes.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Self { start, layout }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: all of it is initialised, and it lives as long as this value.
        unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) }
    }

    /// Reads from `offset` on until it is full or the file ends.
    fn fill(&mut self, file: c_int, offset: i64) -> Result<usize, c_int> {
        let mut done = 0;
        while done < self.layout.size() {
            // SAFETY: the rest of the memory may be written.
            let got = unsafe {
                libc::pread(
                    file,
                    self.start.add(done).cast(),
                    self.layout.size() - done,
                    offset + done as i64,
                )
            };
            match usize::try_from(got) {
                Ok(0) => break,
                Ok(got) => done += got,
                Err(_) => match std::io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => {}
                    // What follows the last, partial block of a direct read.
                    Some(libc::EINVAL) if done % ALIGN != 0 => break,
                    error => return Err(error.unwrap_or(libc::EIO)),
                },
            }
        }
        Ok(done)
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}
