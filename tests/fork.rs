//! What a forked child may still do with readers, batches and bytes of its parent.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::skip::require;
use common::subjects::PlainFile;
use feedwater::fault::{Faults, Faulty};
use feedwater::{
    Batch, BlockMut, Engine, EngineOptions, Error, ErrorKind, Failed, FileContent, FileResult,
    MemoryReader, OpenOptions, Pending, ReadInto, ReadOptions, Reader, ReaderExt, Result, Route,
    Source, Started,
};

/// One fork at a time: a child has only the thread that forked, and locks that another test's thread holds at
/// that moment (of the allocator, of std) are best held by none.
static FORKING: Mutex<()> = Mutex::new(());

/// Seconds after which a child that hangs is ended by a signal, which the parent reports.
const CHILD_SECONDS: u32 = 30;

/// Runs `child` in a forked process; it says what went wrong by a number that is not 0.
fn in_child(child: impl FnOnce() -> u8) {
    let _alone = FORKING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the child runs on the only thread it has, touches no lock but those of the code under test and of
    // the allocator (which glibc makes usable again in a child), and leaves through `_exit` in any case.
    let pid = unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(CHILD_SECONDS);
                let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(255);
                libc::_exit(i32::from(code))
            }
            pid => pid,
        }
    };
    assert!(pid > 0, "fork: {}", io::Error::last_os_error());
    let mut status = 0;
    loop {
        // SAFETY: waits for the child made above; `status` is a valid place for the answer.
        let done = unsafe { libc::waitpid(pid, &mut status, 0) };
        if done == pid {
            break;
        }
        let error = io::Error::last_os_error();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted, "waitpid: {error}");
    }
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let hung = if signal == libc::SIGALRM {
            " (it hung)"
        } else {
            ""
        };
        panic!("the child was ended by signal {signal}{hung}");
    }
    match libc::WEXITSTATUS(status) {
        0 => {}
        255 => panic!("the child panicked"),
        code => panic!("check {code} failed in the child"),
    }
}

const LEN: u64 = 100_000;

fn content() -> Vec<u8> {
    (0..LEN).map(|i| (i * 31 % 251) as u8).collect()
}

fn is_forked(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Forked)
}

/// Whether all outcomes of the batch that are left are `Forked`, and there are `count` of them.
fn all_forked(mut pending: Pending, count: usize) -> bool {
    let mut seen = 0;
    while let Some((_, outcome)) = pending.wait_next() {
        if !outcome.is_err_and(|failed| is_forked(&failed.error)) || seen > count {
            return false;
        }
        seen += 1;
    }
    seen == count
}

/// Evaluates the checks of a child in turn; the first that does not hold gives its number.
macro_rules! checks {
    ($($number:literal: $check:expr;)*) => {{
        $(if !$check { return $number; })*
        0
    }};
}

/// Checks a reader of [`content`] that `open` gives, in a child and then in the parent.
fn check(open: impl Fn() -> Arc<dyn Reader>) {
    let content = content();
    let reader = open();
    let ranges: Vec<_> = (0..8).map(|i| i * 10_000..i * 10_000 + 20_000).collect();
    let delivered = reader.read(10..50_000).wait().unwrap();
    // In flight, or finished and not taken, as the engine has it.
    let waited = reader.read_many(&ranges);
    let polled = reader.read_many(&ranges);
    let dropped = reader.read_many(&ranges);
    let mut partly = reader.read_many(&ranges);
    let first = partly.wait_next().unwrap();
    assert!(first.1.is_ok());
    let far = ReadOptions::default().deadline(Instant::now() + Duration::from_secs(3600));
    let dated = reader.submit(Batch::of(ranges.clone()).options(far));
    let given = BlockMut::with_capacity(20_000);
    let into = reader.submit(Batch::new().read_into(0..20_000, given));
    let kept = reader.clone();

    // The child owns what the parent needs afterwards as copies in its own memory.
    let mut parents = Some((waited, polled, dropped, partly, dated, into));
    in_child(|| {
        let (waited, polled, dropped, partly, dated, into) = parents.take().unwrap();
        let block = BlockMut::with_capacity(64);
        checks! {
            1: delivered[..] == content[10..50_000];
            2: all_forked(waited, 8);
            3: futures::executor::block_on(polled).is_err_and(|error| is_forked(&error));
            4: { drop(dropped); true };
            5: all_forked(partly, 7);
            6: dated.wait().is_err_and(|error| is_forked(&error));
            7: all_forked(into, 1);
            8: reader.read(0..10).wait().is_err_and(|error| is_forked(&error));
            9: reader.read_at(0, &mut [0; 10]).is_err_and(|error| is_forked(&error));
            10: all_forked(reader.submit(Batch::new().read_into(0..64, block)), 1);
            11: all_forked(reader.read_many(&[5..10, 0..20_000]), 2);
            12: reader.source().len() == LEN;
            // Other mistakes are still told from this one.
            13: reader.read(0..LEN + 1).wait().is_err_and(|error| {
                matches!(error.kind(), ErrorKind::OutOfBounds { len: LEN })
            });
            14: {
                let new = open();
                let read = new.read(100..70_000).wait();
                let mut buf = [0; 64];
                let now = new.read_at(7, &mut buf);
                read.is_ok_and(|bytes| bytes[..] == content[100..70_000])
                    && now.is_ok()
                    && buf == content[7..71]
            };
            15: { drop(delivered.clone()); drop(kept); true };
            16: delivered[..] == content[10..50_000];
        }
    });

    let (waited, polled, dropped, partly, dated, into) = parents.take().unwrap();
    let right = |blocks: Result<Vec<feedwater::Block>>| {
        for (block, range) in blocks.unwrap().iter().zip(&ranges) {
            let expected = &content[range.start as usize..range.end as usize];
            assert!(block.as_host().unwrap()[..] == *expected, "{range:?}");
        }
    };
    right(waited.wait());
    right(futures::executor::block_on(polled));
    drop(dropped);
    assert_eq!(
        partly
            .into_iter()
            .filter(|(_, outcome)| outcome.is_ok())
            .count(),
        7
    );
    right(dated.wait());
    assert_eq!(
        into.wait().unwrap()[0].as_host().unwrap()[..],
        content[..20_000]
    );
    right(reader.read_many(&ranges).wait());
    let mut buf = [0; 64];
    reader.read_at(7, &mut buf).unwrap();
    assert_eq!(buf, content[7..71]);
    assert!(delivered[..] == content[10..50_000]);
}

#[test]
fn memory() {
    check(|| Arc::new(MemoryReader::new(content())));
}

#[test]
fn slice() {
    check(|| {
        let mut more = vec![1; 77];
        more.extend(content());
        more.push(2);
        Arc::new(
            Arc::new(MemoryReader::new(more))
                .slice(77..77 + LEN)
                .unwrap(),
        )
    });
}

#[test]
fn faulty_and_its_thread() {
    check(|| {
        let memory = Arc::new(MemoryReader::new(content()));
        let millis = Duration::from_millis;
        Arc::new(Faulty::new(
            memory,
            Faults::seeded(3).short(0.5).slow(millis(1)..millis(9)),
        ))
    });
}

#[test]
fn engine_from_outside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("content");
    std::fs::write(&path, content()).unwrap();
    check(|| Arc::new(PlainFile::open(&path).unwrap()));
}

#[test]
fn files_by_every_route() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("content");
    std::fs::write(&path, content()).unwrap();
    check(|| feedwater::open(&path).unwrap());
    // SAFETY: nobody changes the file.
    let promised = unsafe { OpenOptions::new().assume_immutable() };
    check(|| promised.open(&path).unwrap());
    let uring = OpenOptions::new().only(Route::Uring);
    if require("uring", uring.open(&path)).is_some() {
        check(|| uring.open(&path).unwrap());
    }
    let direct = OpenOptions::new().only(Route::PreadDirect);
    if require("odirect", direct.open(&path)).is_some() {
        check(|| direct.open(&path).unwrap());
        let uring = OpenOptions::new().only(Route::UringDirect);
        if require("uring", uring.open(&path)).is_some() {
            check(|| uring.open(&path).unwrap());
        }
    }
    // A child has no threads of its parent's engine, and makes its own.
    let engine = || Engine::new(EngineOptions::default());
    check(|| {
        direct
            .clone()
            .engine(engine())
            .open(&path)
            .unwrap_or_else(|_| feedwater::open(&path).unwrap())
    });
}

/// Reads several ranges on this thread; whether they are right.
#[cfg(target_os = "linux")]
fn read_here(reader: &impl Reader) -> Result<bool> {
    let content = content();
    let mut buffers = [[0; 700]; 5];
    let places = [0, 1, 9_999, 50_000, 99_300];
    let mut reads: Vec<_> = std::iter::zip(places, &mut buffers)
        .map(|(at, buffer)| ReadInto::new(at, buffer))
        .collect();
    reader.read_now(&mut reads)?;
    let right = |at: u64| content[at as usize..at as usize + 700].to_vec();
    Ok(std::iter::zip(places, buffers).all(|(at, buffer)| buffer[..] == right(at)))
}

/// The thread that forks has a ring of its own, the engine has one with reads that the kernel has not answered.
///
/// They go through the page cache, so that bytes are copied into the parent when they come. Past it, the kernel would
/// write to pages that parent and child share by then (open(2)).
#[cfg(target_os = "linux")]
#[test]
fn with_reads_in_rings() {
    use common::hanging::{Hanging, What};

    const PAGE: u64 = 4096;
    let Some(fs) = require("fuse", Hanging::new(20 * PAGE, false)) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("content");
    std::fs::write(&path, content()).unwrap();
    let uring = OpenOptions::new().only(Route::Uring);
    let Some(plain) = require("uring", uring.open(&path)) else {
        return;
    };
    let engine = Engine::new(EngineOptions::default());
    let hung = uring.clone().engine(engine.clone());
    let hung = hung.open(fs.path('a')).unwrap();
    let ranges: Vec<_> = (0..6).map(|i| 3 * i * PAGE..(3 * i + 1) * PAGE).collect();
    let options = ReadOptions::default().gap(0);
    let submit = || hung.submit(Batch::of(ranges.clone()).options(options.clone()));

    let kept = uring.open(&path).unwrap();
    // Idle rings: of this thread, and of the engine that the process has.
    assert!(read_here(&plain).unwrap());
    assert_eq!(plain.read(7..99).wait().unwrap(), content()[7..99]);
    fs.hold(What::Reads);
    let (waited, polled) = (submit(), submit());
    let block = BlockMut::with_capacity(PAGE as usize);
    let into = hung.submit(Batch::new().read_into(19 * PAGE..20 * PAGE, block));
    // A page that two reads want is asked for once.
    fs.wait_for(ranges.len() + 1);

    let mut parents = Some((waited, polled, into));
    in_child(|| {
        let (waited, polled, into) = parents.take().unwrap();
        let own = || Engine::new(EngineOptions::default());
        checks! {
            1: all_forked(waited, 6);
            2: futures::executor::block_on(polled).is_err_and(|error| is_forked(&error));
            3: { drop(into); true };
            4: hung.read(0..PAGE).wait().is_err_and(|error| is_forked(&error));
            5: read_here(&hung).is_err_and(|error| is_forked(&error));
            6: plain.read(0..10).wait().is_err_and(|error| is_forked(&error));
            7: read_here(&plain).is_err_and(|error| is_forked(&error));
            // There is nothing to wait for: its threads are the parent's.
            8: engine.shut_down(Duration::MAX).is_complete();
            9: { drop((hung, plain)); true };
            // By rings of the child's own, of its engine and of this thread.
            10: uring.open(&path).is_ok_and(|new| {
                new.read(100..70_000).wait().is_ok_and(|bytes| bytes[..] == content()[100..70_000])
                    && read_here(&new).is_ok_and(|right| right)
            });
            11: {
                let engine = own();
                let new = uring.clone().engine(engine.clone()).open(&path);
                new.is_ok_and(|new| {
                    new.read_all().wait().is_ok_and(|bytes| bytes[..] == content())
                        && engine.shut_down(Duration::MAX).is_complete()
                        && read_here(&new).is_ok_and(|right| right)
                })
            };
        }
    });

    let (mut waited, polled, into) = parents.take().unwrap();
    assert!(waited.try_next().is_none(), "the kernel has not answered");
    fs.release();
    for (index, outcome) in waited {
        let right = fs.content('a', ranges[index].clone());
        assert!(outcome.unwrap().as_host().unwrap()[..] == right);
    }
    for (block, range) in futures::executor::block_on(polled)
        .unwrap()
        .iter()
        .zip(&ranges)
    {
        assert!(block.as_host().unwrap()[..] == fs.content('a', range.clone()));
    }
    let right = fs.content('a', 19 * PAGE..20 * PAGE);
    assert!(into.wait().unwrap()[0].as_host().unwrap()[..] == right);
    // The rings serve on, after the readers that the child had were dropped here as well.
    assert!(read_here(&kept).unwrap());
    assert_eq!(kept.read(7..99).wait().unwrap(), content()[7..99]);
}

/// An engine that has everything in flight until it is told to finish.
#[derive(Debug)]
struct Held {
    inner: MemoryReader,
    started: Mutex<Vec<Started>>,
}

impl Held {
    fn finish(&self) {
        for (read, ticket) in self.started.lock().unwrap().drain(..) {
            let mut one = Batch::new();
            one.reads.push(read);
            let outcome = self.inner.submit(one).wait_next();
            let gone = || Err(Failed::from(Error::new(ErrorKind::Abandoned)));
            ticket.finish(outcome.map_or_else(gone, |(_, outcome)| outcome));
        }
    }
}

impl Reader for Held {
    fn source(&self) -> &Source {
        self.inner.source()
    }
    fn submit(&self, batch: Batch) -> Pending {
        let (started, _, pending) = batch.start(self.source());
        self.started.lock().unwrap().extend(started);
        pending
    }
    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.inner.read_now(reads)
    }
}

#[test]
fn in_flight_for_certain() {
    let reader = Held {
        inner: MemoryReader::new(content()),
        started: Mutex::default(),
    };
    let dest = || BlockMut::with_capacity(10);
    let submit = || reader.submit(Batch::new().any(0..10).read_into(10..20, dest()));
    let (waited, polled, dropped) = (submit(), submit(), submit());
    let mut parents = Some((waited, polled, dropped));
    // As by a thread that is just finishing something in the parent: the child must not wait for it.
    let queue = reader.started.lock().unwrap();
    in_child(|| {
        let (waited, polled, dropped) = parents.take().unwrap();
        checks! {
            1: all_forked(waited, 2);
            2: futures::executor::block_on(polled).is_err_and(|error| is_forked(&error));
            3: { drop(dropped); true };
        }
    });
    drop(queue);
    let (waited, mut polled, dropped) = parents.take().unwrap();
    assert!(polled.try_next().is_none());
    drop(dropped);
    reader.finish();
    let blocks = waited.wait().unwrap();
    assert_eq!(blocks[1].as_host().unwrap()[..], content()[10..20]);
    assert_eq!(futures::executor::block_on(polled).unwrap().len(), 2);
}

#[test]
fn tickets_in_a_child_do_nothing_to_the_parent() {
    let reader = Held {
        inner: MemoryReader::new(content()),
        started: Mutex::default(),
    };
    let pending = reader.submit(Batch::of([0..10, 10..20]));
    let mut tickets = Some(std::mem::take(&mut *reader.started.lock().unwrap()));
    in_child(|| {
        let mut tickets = tickets.take().unwrap();
        let (_, finished) = tickets.pop().unwrap();
        finished.finish(Ok(bytes::Bytes::from_static(b"0123456789").into()));
        drop(tickets);
        0
    });
    reader
        .started
        .lock()
        .unwrap()
        .extend(tickets.take().unwrap());
    reader.finish();
    let blocks = pending.wait().unwrap();
    assert_eq!(blocks[0].as_host().unwrap()[..], content()[..10]);
}

/// Threads that decoded and wait for more stay with the parent.
#[test]
fn scans_and_their_threads() {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use feedwater::parquet::{Batches, scan};

    const ROWS: usize = 10_000;
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
    let table = RecordBatch::try_from_iter([("n", column.clone()), ("m", column)]).unwrap();
    let mut file = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut file, table.schema(), None).unwrap();
    writer.write(&table).unwrap();
    writer.close().unwrap();
    let begin = || {
        let reader = Arc::new(MemoryReader::new(file.clone()));
        scan(reader).threads(2).batch_rows(100).batches()
    };
    let rows = |batches: Batches| -> Result<usize> {
        let mut rows = 0;
        for batch in batches {
            rows += batch?.num_rows();
        }
        Ok(rows)
    };

    assert_eq!(rows(begin().unwrap()).unwrap(), ROWS);
    let mut begun = begin().unwrap();
    assert_eq!(begun.next().unwrap().unwrap().num_rows(), 100);
    let mut parents = Some(begun);
    in_child(|| {
        let mut begun = parents.take().unwrap();
        checks! {
            1: begun.next().is_some_and(|next| next.is_err_and(|error| is_forked(&error)));
            2: begun.next().is_none();
            3: { drop(begun); true };
            4: begin().and_then(rows).is_ok_and(|rows| rows == ROWS);
            5: begin().and_then(rows).is_ok_and(|rows| rows == ROWS);
            6: begin().is_ok();
        }
    });
    assert_eq!(rows(parents.take().unwrap()).unwrap(), ROWS - 100);
    assert_eq!(rows(begin().unwrap()).unwrap(), ROWS);
}

/// All of these once more, where the system offers less.
#[cfg(target_os = "linux")]
mod again {
    use super::common::confined::{
        FEW_DESCRIPTORS, MEMLOCK_0, NO_IO_URING, OLD_KERNEL, UNPRIVILEGED, again,
    };

    #[test]
    fn without_io_uring() {
        again(&NO_IO_URING, &[], 7);
    }

    #[test]
    fn old_kernel() {
        again(&OLD_KERNEL, &[], 7);
    }

    #[test]
    fn unprivileged() {
        again(&UNPRIVILEGED, &[], 7);
    }

    #[test]
    fn with_64_descriptors() {
        again(&FEW_DESCRIPTORS, &[], 7);
    }

    #[test]
    fn memlock_0() {
        again(&MEMLOCK_0, &[], 7);
    }
}

#[test]
fn many_files_that_were_begun_are_the_parents_and_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..100).map(|i| dir.path().join(format!("{i}"))).collect();
    for path in &paths {
        std::fs::write(path, content()).unwrap();
    }
    let mut files = feedwater::read_files(&paths).into_iter();
    let two = std::num::NonZeroUsize::new(2).unwrap();
    let mut parts = feedwater::read_files(&paths).split(two);
    assert!(parts[0].next().unwrap().result.is_ok());
    let mut few = feedwater::read_files(&paths[..3]).into_iter();
    assert!(few.next().unwrap().result.is_ok());
    let mut entries = feedwater::walk(dir.path()).into_iter();
    assert!(files.next().unwrap().result.is_ok());
    assert!(entries.next().unwrap().result.is_ok());
    in_child(|| {
        // The error names the path of the result.
        let forked = |path: &Path, result: Result<()>| {
            let named = path.to_str();
            result.is_err_and(|error| is_forked(&error) && error.name() == named)
        };
        let of_files = |file: FileResult<FileContent>| {
            let is_of = paths.get(file.index as usize).map(PathBuf::as_path) == Some(&file.path);
            is_of && forked(&file.path, file.result.map(drop))
        };
        if !files.next().is_some_and(of_files) {
            return 1;
        }
        if !entries
            .next()
            .is_some_and(|entry| forked(&entry.path, entry.result.map(drop)))
        {
            return 2;
        }
        // All of its paths were begun before.
        if !few.next().is_some_and(of_files) || few.next().is_some() {
            return 7;
        }
        if files.next().is_some() || entries.next().is_some() {
            return 3;
        }
        for part in &mut parts {
            if !part.next().is_some_and(of_files) || part.next().is_some() {
                return 6;
            }
        }
        let again = feedwater::read_files(&paths).into_iter();
        if again.filter(|file| file.result.is_ok()).count() != 100 {
            return 4;
        }
        let again = feedwater::walk(dir.path()).into_iter();
        if again.filter(|entry| entry.result.is_ok()).count() != 100 {
            return 5;
        }
        0
    });
    assert_eq!((files.count(), entries.count()), (99, 99));
    assert_eq!(few.count(), 2);
    assert_eq!(parts.into_iter().flatten().count(), 99);
}
