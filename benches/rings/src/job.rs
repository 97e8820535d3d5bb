//! What is to be read, and what is made of it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::turns::Clock;

pub(crate) const PAGE: usize = 4096;

/// Why a way cannot be measured.
pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// What a run read, and how.
pub(crate) type Ran = Result<(Tally, String), Fault>;

/// Reads of one size: where, and how many at once.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) path: PathBuf,
    /// Whole pages from the start of the file.
    pub(crate) offsets: Arc<[u64]>,
    pub(crate) size: usize,
    pub(crate) depth: usize,
    /// Past the page cache, where there is a choice.
    pub(crate) direct: bool,
}

impl Job {
    pub(crate) fn bytes(&self) -> u64 {
        self.offsets.len() as u64 * self.size as u64
    }

    pub(crate) fn direct(&self, direct: bool) -> Job {
        let job = self.clone();
        Job { direct, ..job }
    }

    pub(crate) fn flags(&self) -> i32 {
        if self.direct { libc::O_DIRECT } else { 0 }
    }

    pub(crate) fn open(&self) -> io::Result<File> {
        let mut options = File::options();
        options.read(true).custom_flags(self.flags());
        options.open(&self.path)
    }

    /// What every way has to come to, read without any of them.
    pub(crate) fn expected(&self) -> io::Result<Tally> {
        let file = self.direct(false).open()?;
        let mut block = vec![0; self.size];
        let mut tally = Tally::new(true);
        for &at in &*self.offsets {
            file.read_exact_at(&mut block, at)?;
            tally.take(at, &block);
        }
        Ok(tally)
    }
}

/// The offsets of a job, handed out to tasks of one thread.
pub(crate) struct Queue {
    offsets: Arc<[u64]>,
    at: Cell<usize>,
}

impl Queue {
    pub(crate) fn of(job: &Job) -> Queue {
        Queue {
            offsets: job.offsets.clone(),
            at: Cell::new(0),
        }
    }

    pub(crate) fn next(&self) -> Option<u64> {
        let at = self.at.get();
        self.at.set(at + 1);
        self.offsets.get(at).copied()
    }
}

/// What was read: a byte of each page is looked at, and in the first turn, which is not counted, all of them.
/// The order of the reads makes no difference, but which bytes were read at which offset does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    whole: bool,
    reads: u64,
    bytes: u64,
    touched: u64,
    sum: u64,
}

impl Tally {
    /// For a run by `clock`.
    pub(crate) fn by(clock: &Clock) -> Tally {
        Tally::new(clock.turn == 0)
    }

    pub(crate) fn new(whole: bool) -> Tally {
        Tally {
            whole,
            reads: 0,
            bytes: 0,
            touched: 0,
            sum: 0,
        }
    }

    pub(crate) fn take(&mut self, offset: u64, bytes: &[u8]) {
        self.reads += 1;
        self.bytes += bytes.len() as u64;
        let first_bytes = bytes.iter().step_by(PAGE).map(|byte| u64::from(*byte));
        self.touched += black_box(first_bytes.sum::<u64>());
        if self.whole {
            for (page, at) in bytes.chunks(PAGE).zip((offset..).step_by(PAGE)) {
                self.sum = self.sum.wrapping_add(digest(at, page));
            }
        }
    }

    /// Adds what another task read.
    pub(crate) fn add(&mut self, other: Tally) {
        self.reads += other.reads;
        self.bytes += other.bytes;
        self.touched += other.touched;
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Compares with what had to be read. A way may read in other pieces than the job says.
    pub(crate) fn check(&self, expected: &Tally) -> Result<(), String> {
        let same = (self.bytes, self.touched) == (expected.bytes, expected.touched)
            && (!self.whole || self.sum == expected.sum);
        if same {
            return Ok(());
        }
        Err(format!("WRONG BYTES: {self:?}, expected {expected:?}"))
    }
}

/// A sum over one page that depends on each byte, on their order, and on where the page is.
fn digest(offset: u64, page: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = (offset ^ page.len() as u64).wrapping_mul(ODD);
    for word in page.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        hash = (hash.rotate_left(23) ^ u64::from_le_bytes(bytes)).wrapping_mul(ODD);
    }
    hash
}

/// Page-aligned memory, as `O_DIRECT` wants it, all of it touched.
pub(crate) struct Pages {
    ptr: NonNull<u8>,
    capacity: usize,
    /// How much of it a runtime says is filled.
    pub(crate) filled: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Pages {}

impl Pages {
    pub(crate) fn new(capacity: usize) -> Pages {
        assert!(capacity > 0, "no memory asked for");
        // SAFETY: the layout is not empty; a null pointer ends the program.
        let ptr = unsafe { alloc_zeroed(Pages::layout(capacity)) };
        let Some(ptr) = NonNull::new(ptr) else {
            handle_alloc_error(Pages::layout(capacity));
        };
        for page in (0..capacity).step_by(PAGE) {
            // SAFETY: inside the memory just allocated.
            unsafe { ptr.add(page).write_volatile(0) };
        }
        Pages {
            ptr,
            capacity,
            filled: 0,
        }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, PAGE).expect("a size that memory can have")
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn all(&mut self) -> &mut [u8] {
        // SAFETY: all of it is initialised since `new`, and borrowed mutably with the value.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(), self.capacity) }
    }

    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= self.capacity, "more bytes than there is room");
        // SAFETY: all of it is initialised since `new`, and `len` is inside.
        unsafe { std::slice::from_raw_parts(self.ptr(), len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.ptr(), Pages::layout(self.capacity)) };
    }
}

/// One task of a runtime of one thread: takes offsets as long as there are any, and reads there, into the same memory.
pub(crate) async fn drain(
    queue: &Queue,
    mut pages: Pages,
    mut tally: Tally,
    read: impl AsyncFn(Pages, u64) -> (io::Result<usize>, Pages),
) -> io::Result<Tally> {
    while let Some(at) = queue.next() {
        let (result, back) = read(pages, at).await;
        pages = back;
        whole(result?, pages.capacity())?;
        tally.take(at, pages.bytes(pages.capacity()));
    }
    Ok(tally)
}

/// None of the reads ends at the end of the file, so a short one would be work left undone.
pub(crate) fn whole(got: usize, wanted: usize) -> io::Result<()> {
    if got == wanted {
        return Ok(());
    }
    let what = format!("{got} bytes read of {wanted}");
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
}
