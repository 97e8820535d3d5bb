//! What is measured.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use feedwater::{
    Batch, BlockMut, ChunkOptions, CopyOptions, Engine, EngineOptions, OpenOptions, Opened, Reader,
    ReaderExt, SinkOptions, SyncMode, copy,
};

use crate::files::{make_cold, make_warm, touch_memory};
use crate::table::{Ratio, measure};
use crate::turns::Way;

pub(crate) struct Bench {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    pub(crate) turns: usize,
}

type Work = fn(&Bench, &str);

pub(crate) const ALL: &[(&str, Work)] = &[
    ("small-warm", small_warm),
    ("small-cold", small_cold),
    ("stream-warm", stream_warm),
    ("view-warm", view_warm),
    ("whole-warm-prefaulted", whole_prefaulted),
    ("whole-warm-fresh", whole_fresh),
    ("whole-cold", whole_cold),
    ("stream-cold", stream_cold),
    ("copy-warm", copy_warm),
    ("copy-cold-fsync", copy_cold),
];

fn engine(threads: usize) -> Engine {
    Engine::new(EngineOptions::default().threads(NonZeroUsize::new(threads).unwrap()))
}

fn how(reader: &Opened) -> String {
    let counters = reader.source().counters().snapshot();
    let route = counters
        .main_route()
        .map_or("nothing", |route| route.name());
    format!("{route}, {} requests", counters.requests)
}

fn plain() -> String {
    "plain".into()
}

fn random_offsets(len: u64, count: usize) -> Vec<u64> {
    let mut x = 88_172_645_463_325_252u64;
    (0..count)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 11) % (len / 4096) * 4096
        })
        .collect()
}

fn small_warm(bench: &Bench, name: &str) {
    make_warm(&bench.path);
    let file = File::open(&bench.path).unwrap();
    let reader = feedwater::open(&bench.path).unwrap();
    let count = 200_000usize;
    // One hot page: what is measured is the way there, not the memory.
    let mut buf = vec![0u8; 4096];
    let buf = RefCell::new(&mut buf[..]);
    let plain_loop = || {
        let buf = &mut **buf.borrow_mut();
        for i in 0..count {
            file.read_exact_at(buf, (i % 8) as u64 * 4096).unwrap();
            black_box(file.metadata().unwrap().len());
        }
        plain()
    };
    let ways = &mut [
        way("pread + fstat", || {}, plain_loop),
        way("pread + fstat again", || {}, plain_loop),
        way(
            "read_at",
            || {},
            || {
                let buf = &mut **buf.borrow_mut();
                for i in 0..count {
                    reader.read_at((i % 8) as u64 * 4096, buf).unwrap();
                }
                how(&reader)
            },
        ),
        way(
            "read + wait",
            || {},
            || {
                for i in 0..count as u64 {
                    let at = i % 8 * 4096;
                    black_box(reader.read(at..at + 4096).wait().unwrap());
                }
                how(&reader)
            },
        ),
        way(
            "read + block_on",
            || {},
            || {
                for i in 0..count as u64 {
                    let at = i % 8 * 4096;
                    black_box(futures::executor::block_on(reader.read(at..at + 4096)).unwrap());
                }
                how(&reader)
            },
        ),
    ];
    let ratios = [
        ratio("pread + fstat again", "pread + fstat", 1.0),
        ratio("read_at", "pread + fstat", 0.8),
    ];
    let bytes = count as u64 * 4096;
    measure(name, bytes, count as u64, bench.turns, ways, &ratios);
}

fn small_cold(bench: &Bench, name: &str) {
    let file = File::open(&bench.path).unwrap();
    let offsets = random_offsets(bench.len, 4000);
    let cold = || make_cold(&bench.path);
    let buf = RefCell::new(vec![0u8; 4096]);
    let plain_loop = || {
        let mut buf = buf.borrow_mut();
        for &at in &offsets {
            file.read_exact_at(&mut buf, at).unwrap();
        }
        plain()
    };
    let reader = feedwater::open(&bench.path).unwrap();
    let ways = &mut [
        way("pread", cold, plain_loop),
        way("pread again", cold, plain_loop),
        way("read_at", cold, || {
            let mut buf = buf.borrow_mut();
            for &at in &offsets {
                reader.read_at(at, &mut buf).unwrap();
            }
            how(&reader)
        }),
        way("read + wait", cold, || {
            for &at in &offsets {
                black_box(reader.read(at..at + 4096).wait().unwrap());
            }
            how(&reader)
        }),
    ];
    let ratios = [
        ratio("pread again", "pread", 1.0),
        ratio("read_at", "pread", 0.95),
        ratio("read + wait", "pread", 0.95),
    ];
    let count = offsets.len() as u64;
    measure(name, count * 4096, count, bench.turns, ways, &ratios);
}

fn stream_warm(bench: &Bench, name: &str) {
    make_warm(&bench.path);
    let plain_loop = || {
        let mut file = File::open(&bench.path).unwrap();
        let mut buf = vec![0u8; 1 << 20];
        loop {
            let n = file.read(&mut buf).unwrap();
            if n == 0 {
                return plain();
            }
            black_box(buf[n - 1]);
        }
    };
    let ways = &mut [
        way("std read loop 1M", || {}, plain_loop),
        way("std read loop 1M again", || {}, plain_loop),
        way(
            "chunks",
            || {},
            || {
                let reader = feedwater::open(&bench.path).unwrap();
                for chunk in reader.clone().chunks(0..bench.len, ChunkOptions::default()) {
                    black_box(chunk.unwrap().last());
                }
                how(&reader)
            },
        ),
    ];
    let ratios = [
        ratio("std read loop 1M again", "std read loop 1M", 1.0),
        ratio("chunks", "std read loop 1M", 0.95),
    ];
    measure(name, bench.len, bench.len >> 20, bench.turns, ways, &ratios);
}

fn stream_cold(bench: &Bench, name: &str) {
    let prepare = || make_cold(&bench.path);
    let plain_loop = || {
        let mut file = File::open(&bench.path).unwrap();
        let mut buf = vec![0u8; 1 << 20];
        loop {
            let n = file.read(&mut buf).unwrap();
            if n == 0 {
                return plain();
            }
            black_box(buf[n - 1]);
        }
    };
    let chunks = |options: ChunkOptions| {
        let reader = feedwater::open(&bench.path).unwrap();
        for chunk in reader.clone().chunks(0..bench.len, options) {
            black_box(chunk.unwrap().last());
        }
        how(&reader)
    };
    let large = || ChunkOptions::default().size(8 << 20).window(32 << 20);
    let ways = &mut [
        way("std read loop 1M", prepare, plain_loop),
        way("std read loop 1M again", prepare, plain_loop),
        way("chunks", prepare, || chunks(ChunkOptions::default())),
        way("chunks of 8M", prepare, || chunks(large())),
    ];
    let ratios = [
        ratio("std read loop 1M again", "std read loop 1M", 1.0),
        ratio("chunks", "std read loop 1M", 1.0),
        ratio("chunks of 8M", "std read loop 1M", 1.0),
    ];
    measure(name, bench.len, bench.len >> 20, bench.turns, ways, &ratios);
}

/// Half of the large file, as a file of its own beside it, and where copies of it go.
fn copy_paths(bench: &Bench) -> (PathBuf, PathBuf, u64) {
    let source = bench.path.with_file_name("copy-source");
    let len = bench.len / 2;
    let mut from = File::open(&bench.path).unwrap().take(len);
    let mut to = File::create(&source).unwrap();
    std::io::copy(&mut from, &mut to).unwrap();
    to.sync_all().unwrap();
    (source, bench.path.with_file_name("copy-target"), len)
}

fn our_copy(from: &PathBuf, to: &PathBuf, sync: SyncMode) -> String {
    let reader = feedwater::open(from).unwrap();
    let mut sink = SinkOptions::new().sync(sync).create(to).unwrap();
    let report = copy(&reader, &mut sink, &CopyOptions::default()).unwrap();
    sink.commit().unwrap();
    format!("{:?}", report.route())
}

fn copy_warm(bench: &Bench, name: &str) {
    let (from, to, len) = copy_paths(bench);
    let prepare = || {
        let _ = std::fs::remove_file(&to);
        make_warm(&from);
    };
    let std_copy = || {
        std::fs::copy(&from, &to).unwrap();
        plain()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let tokio_copy = || {
        runtime.block_on(async {
            let mut from = tokio::fs::File::open(&from).await.unwrap();
            let mut to = tokio::fs::File::create(&to).await.unwrap();
            tokio::io::copy(&mut from, &mut to).await.unwrap();
            tokio::io::AsyncWriteExt::flush(&mut to).await.unwrap();
        });
        plain()
    };
    let ways = &mut [
        way("std::fs::copy", prepare, std_copy),
        way("std::fs::copy again", prepare, std_copy),
        way("tokio::io::copy", prepare, tokio_copy),
        way("copy", prepare, || our_copy(&from, &to, SyncMode::None)),
    ];
    let ratios = [
        ratio("std::fs::copy again", "std::fs::copy", 1.0),
        ratio("copy", "std::fs::copy", 1.0),
        ratio("copy", "tokio::io::copy", 10.0),
    ];
    measure(name, len, 1, bench.turns, ways, &ratios);
    let _ = (std::fs::remove_file(&from), std::fs::remove_file(&to));
}

fn copy_cold(bench: &Bench, name: &str) {
    let (from, to, len) = copy_paths(bench);
    let prepare = || {
        let _ = std::fs::remove_file(&to);
        make_cold(&from);
    };
    let std_copy = || {
        std::fs::copy(&from, &to).unwrap();
        File::options()
            .write(true)
            .open(&to)
            .unwrap()
            .sync_all()
            .unwrap();
        plain()
    };
    let ways = &mut [
        way("std::fs::copy + fsync", prepare, std_copy),
        way("std::fs::copy + fsync again", prepare, std_copy),
        way("copy + commit", prepare, || {
            our_copy(&from, &to, SyncMode::Full)
        }),
    ];
    let ratios = [
        ratio("std::fs::copy + fsync again", "std::fs::copy + fsync", 1.0),
        ratio("copy + commit", "std::fs::copy + fsync", 1.0),
    ];
    measure(name, len, 1, bench.turns, ways, &ratios);
    let _ = (std::fs::remove_file(&from), std::fs::remove_file(&to));
}

fn touch(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .step_by(4096)
        .fold(0u64, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

fn view_warm(bench: &Bench, name: &str) {
    make_warm(&bench.path);
    let plain_map = || {
        let file = File::open(&bench.path).unwrap();
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        black_box(touch(&map));
        plain()
    };
    let ways = &mut [
        way("memmap2 touch", || {}, plain_map),
        way("memmap2 touch again", || {}, plain_map),
        way(
            "promised view",
            || {},
            || {
                let options = unsafe { OpenOptions::new().assume_immutable() };
                let reader = options.open(&bench.path).unwrap();
                black_box(touch(&reader.read_all().wait().unwrap()));
                how(&reader)
            },
        ),
    ];
    let ratios = [
        ratio("memmap2 touch again", "memmap2 touch", 1.0),
        ratio("promised view", "memmap2 touch", 0.91),
    ];
    measure(
        name,
        bench.len,
        bench.len / 4096,
        bench.turns,
        ways,
        &ratios,
    );
}

fn whole_prefaulted(bench: &Bench, name: &str) {
    make_warm(&bench.path);
    let file = File::open(&bench.path).unwrap();
    let len = bench.len as usize;
    let pool = Engine::default().pool().clone();
    let mut block = pool.take(len).unwrap();
    for page in block.unfilled().chunks_mut(4096) {
        page[0].write(0);
    }
    // The block goes to whoever reads next, and comes back.
    let block = Cell::new(Some(block));
    let plain_threads = |threads: usize| {
        let mut memory = block.take().unwrap();
        // SAFETY: every page was written, so the memory is initialised; the slice ends before the block moves on.
        let slice = unsafe { std::slice::from_raw_parts_mut(memory.unfilled_ptr(), len) };
        let share = len.div_ceil(threads);
        std::thread::scope(|scope| {
            for (i, part) in slice.chunks_mut(share).enumerate() {
                let file = &file;
                scope.spawn(move || file.read_exact_at(part, (i * share) as u64).unwrap());
            }
        });
        memory.clear();
        block.set(Some(memory));
        plain()
    };
    let readers: Vec<Arc<Opened>> = [1, 2]
        .map(|threads| {
            let options = OpenOptions::new().engine(engine(threads));
            options.open(&bench.path).unwrap()
        })
        .into();
    let ours = |reader: &Arc<Opened>| {
        let memory = block.take().unwrap();
        // A piece of the block, so that the memory outlives the bytes read.
        let (memory, rest) = share_of(memory, len);
        reader
            .submit(Batch::new().read_into(0..bench.len, memory))
            .wait()
            .unwrap();
        block.set(Some(rest));
        how(reader)
    };
    let ways = &mut [
        way("read_exact_at", || {}, || plain_threads(1)),
        way("read_exact_at again", || {}, || plain_threads(1)),
        way("read_exact_at, 2 threads", || {}, || plain_threads(2)),
        way("1 thread", || {}, || ours(&readers[0])),
        way("2 threads", || {}, || ours(&readers[1])),
    ];
    let ratios = [
        ratio("read_exact_at again", "read_exact_at", 1.0),
        ratio("1 thread", "read_exact_at", 1.0),
        ratio("2 threads", "read_exact_at, 2 threads", 1.0),
        ratio("2 threads", "1 thread", 1.5),
    ];
    measure(name, bench.len, 1, bench.turns, ways, &ratios);
}

/// Two blocks over the same memory, of which only the first is used until it is gone.
fn share_of(memory: BlockMut, len: usize) -> (BlockMut, BlockMut) {
    struct Lent(*mut u8, usize);
    unsafe impl Send for Lent {}
    unsafe impl Sync for Lent {}
    // SAFETY: the pool's block lives in `rest`, and is not touched before this one has been dropped.
    unsafe impl feedwater::Memory for Lent {
        fn place(&self) -> feedwater::Place {
            feedwater::Place::Host
        }
        fn ptr(&self) -> *mut u8 {
            self.0
        }
        fn len(&self) -> usize {
            self.1
        }
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }
    }
    (BlockMut::new(Lent(memory.unfilled_ptr(), len)), memory)
}

fn whole_fresh(bench: &Bench, name: &str) {
    make_warm(&bench.path);
    let prepare = || touch_memory(bench.len as usize + (64 << 20));
    let read = || {
        black_box(std::fs::read(&bench.path).unwrap());
        plain()
    };
    let ways = &mut [
        way("std::fs::read", prepare, read),
        way("std::fs::read again", prepare, read),
        way("read_all", prepare, || {
            let reader = feedwater::open(&bench.path).unwrap();
            black_box(reader.read_all().wait().unwrap());
            how(&reader)
        }),
    ];
    let ratios = [
        ratio("std::fs::read again", "std::fs::read", 1.0),
        ratio("read_all", "std::fs::read", 2.5),
    ];
    measure(name, bench.len, 1, bench.turns, ways, &ratios);
}

fn whole_cold(bench: &Bench, name: &str) {
    let prepare = || {
        make_cold(&bench.path);
        touch_memory(2 * bench.len as usize + (64 << 20));
    };
    let read = || {
        black_box(std::fs::read(&bench.path).unwrap());
        plain()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ways = &mut [
        way("std::fs::read", prepare, read),
        way("std::fs::read again", prepare, read),
        way("tokio::fs::read", prepare, || {
            black_box(runtime.block_on(tokio::fs::read(&bench.path)).unwrap());
            plain()
        }),
        way("read_all", prepare, || {
            let reader = feedwater::open(&bench.path).unwrap();
            black_box(reader.read_all().wait().unwrap());
            how(&reader)
        }),
    ];
    let ratios = [
        ratio("std::fs::read again", "std::fs::read", 1.0),
        ratio("read_all", "std::fs::read", 1.2),
        ratio("read_all", "tokio::fs::read", 1.2),
    ];
    measure(name, bench.len, 1, bench.turns, ways, &ratios);
}

fn way<'a>(
    name: &'static str,
    prepare: impl FnMut() + 'a,
    mut run: impl FnMut() -> String + 'a,
) -> Way<'a> {
    Way {
        name: name.into(),
        prepare: Box::new(prepare),
        run: Box::new(move |clock| Ok(clock.time(&mut run))),
    }
}

fn ratio(ours: &'static str, base: &'static str, aim: f64) -> Ratio {
    Ratio { ours, base, aim }
}
