//! What is measured: each row a job, the peers that do it, and the ways of this crate.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use feedwater::ChunkOptions;
use tokio::runtime::{Builder, Runtime};

use crate::files::{make_cold, make_warm, touch_memory};
use crate::job::{Fault, Job, PAGE, Ran, Tally};
use crate::ours::{Opener, Openers};
use crate::peers::{compio, fio, glommio, monoio, store, system, tokio_fs, tokio_uring};
use crate::table::{Side, Table};
use crate::turns::{Clock, Way, measure};

pub(crate) struct Bench {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    pub(crate) turns: usize,
    /// Random reads of a run.
    pub(crate) reads: usize,
    pub(crate) openers: Openers,
    pub(crate) json: bool,
}

/// Whether all ways read the right bytes.
pub(crate) type Right = Result<(), Fault>;

type Row = fn(&Bench, &str) -> Right;

pub(crate) const ALL: &[(&str, Row)] = &[
    ("rand4k-qd32-cold", rand_qd32),
    ("rand4k-qd128-cold", rand_qd128),
    ("rand4k-qd1-cold", rand_qd1),
    ("stream-cold", stream_cold),
    ("stream-warm", stream_warm),
    ("scattered-64k-cold", scattered),
    ("async-4k-warm", async_warm),
];

const MIB: usize = 1 << 20;

type Read = fn(&Job, &mut Clock) -> Ran;

/// The runtimes over io_uring, one thread each.
const RINGS: [(&str, Read); 4] = [
    ("tokio-uring", tokio_uring::read),
    ("compio", compio::read),
    ("monoio", monoio::read),
    ("glommio", glommio::read),
];

#[derive(Clone, Copy, PartialEq)]
enum Cache {
    Cold,
    Warm,
}

/// The ways of one row, as they are gathered.
struct Ways<'a> {
    bench: &'a Bench,
    name: &'a str,
    cache: Cache,
    job: Job,
    expected: Tally,
    ways: Vec<Way<'a>>,
    sides: Vec<Side>,
    wrong: Arc<AtomicBool>,
}

impl<'a> Ways<'a> {
    fn of(bench: &'a Bench, name: &'a str, cache: Cache, job: Job) -> Result<Self, Fault> {
        Ok(Ways {
            expected: job.expected()?,
            bench,
            name,
            cache,
            job,
            ways: Vec::new(),
            sides: Vec::new(),
            wrong: Arc::default(),
        })
    }

    /// A way whose bytes are compared with what had to be read.
    fn add(
        &mut self,
        side: Side,
        name: impl Into<String>,
        direct: bool,
        run: impl Fn(&Job, &mut Clock) -> Ran + Sync + 'a,
    ) {
        let job = self.job.direct(direct);
        let (expected, wrong) = (self.expected, self.wrong.clone());
        self.push(side, name.into(), move |clock| {
            let (tally, how) = run(&job, clock)?;
            tally
                .check(&expected)
                .inspect_err(|_| wrong.store(true, Ordering::Relaxed))?;
            Ok(how)
        });
    }

    fn push(
        &mut self,
        side: Side,
        name: String,
        run: impl Fn(&mut Clock) -> Result<String, Fault> + Sync + 'a,
    ) {
        let (path, cache) = (&self.bench.path, self.cache);
        let fresh = self.job.bytes() as usize + 64 * MIB;
        self.sides.push(side);
        self.ways.push(Way {
            name,
            prepare: Box::new(move || match cache {
                Cache::Warm => make_warm(path),
                Cache::Cold => {
                    make_cold(path);
                    touch_memory(fresh);
                }
            }),
            run: Box::new(move |clock| on_a_thread(&run, clock).map_err(|why| why.to_string())),
        });
    }

    /// A runtime over io_uring, through the page cache or past it.
    fn ring(&mut self, name: &str, direct: bool, read: Read) {
        let cache = if direct { "O_DIRECT" } else { "buffered" };
        self.add(Side::Peer, format!("{name}, {cache}"), direct, read);
    }

    /// fio on the same file, for information.
    fn fio(&mut self, direct: bool) {
        let job = self.job.direct(direct);
        let cache = if direct { "O_DIRECT" } else { "buffered" };
        let name = format!("fio io_uring, {cache}");
        self.push(Side::Information, name, move |clock| {
            fio::random(&job, clock)
        });
    }

    fn ours(
        &mut self,
        opener: &Opener,
        what: &str,
        run: impl Fn(&Opener, &Job, &mut Clock) -> Ran + Sync + 'a,
    ) {
        let opener = opener.clone();
        let name = format!("feedwater {}: {what}", opener.name);
        self.add(Side::Ours, name, false, move |job, clock| {
            run(&opener, job, clock)
        });
    }

    fn measure(mut self) -> Right {
        let peers: Vec<usize> = (0..self.ways.len())
            .filter(|&at| self.sides[at] == Side::Peer)
            .collect();
        let lanes = measure(self.bench.turns, &mut self.ways, &peers);
        self.sides.resize(lanes.len(), Side::Control);
        let table = Table {
            row: self.name,
            turns: self.bench.turns,
            bytes: self.job.bytes(),
            reads: self.job.offsets.len() as u64,
            lanes: &lanes,
            sides: &self.sides,
        };
        table.print(self.bench.json);
        if self.wrong.load(Ordering::Relaxed) {
            return Err(format!("{}: a way read wrong bytes", self.name).into());
        }
        Ok(())
    }
}

/// Runs a way on a thread of its own, since runtimes leave something in theirs, and a panic is only the way's end.
fn on_a_thread(
    run: &(impl Fn(&mut Clock) -> Result<String, Fault> + Sync),
    clock: &mut Clock,
) -> Result<String, Fault> {
    std::thread::scope(|scope| match scope.spawn(|| run(clock)).join() {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            Err(format!("it panicked: {}", text.unwrap_or("no message")).into())
        }
    })
}

fn rand_qd32(bench: &Bench, name: &str) -> Right {
    rand_deep(bench, name, 32)
}

fn rand_qd128(bench: &Bench, name: &str) -> Right {
    rand_deep(bench, name, 128)
}

fn rand_deep(bench: &Bench, name: &str, depth: usize) -> Right {
    let job = random(bench, PAGE, bench.reads, depth);
    let mut ways = Ways::of(bench, name, Cache::Cold, job)?;
    for (name, read) in RINGS {
        ways.ring(name, false, read);
        ways.ring(name, true, read);
    }
    ways.add(
        Side::Peer,
        "pread by threads, buffered",
        false,
        system::pool,
    );
    ways.add(Side::Peer, "pread by threads, O_DIRECT", true, system::pool);
    for opener in &bench.openers.usable {
        let opener = opener.depth(depth);
        ways.ours(&opener, "submit", Opener::submit);
        ways.ours(&opener, "submit, batches of 256", Opener::batches);
        ways.ours(&opener, "read_now", Opener::read_now);
        ways.ours(&opener, "read().await", Opener::awaited);
    }
    ways.fio(false);
    ways.fio(true);
    ways.measure()
}

fn rand_qd1(bench: &Bench, name: &str) -> Right {
    // Each waits for the device, so fewer are as long.
    let job = random(bench, PAGE, bench.reads / 5, 1);
    let mut ways = Ways::of(bench, name, Cache::Cold, job)?;
    ways.add(Side::Peer, "pread, buffered", false, system::pread);
    ways.add(Side::Peer, "pread, O_DIRECT", true, system::pread);
    for opener in &bench.openers.usable {
        ways.ours(opener, "read_at", Opener::read_at);
        ways.ours(opener, "read().wait()", Opener::read_wait);
    }
    ways.fio(false);
    ways.fio(true);
    ways.measure()
}

fn stream_cold(bench: &Bench, name: &str) -> Right {
    stream(bench, name, Cache::Cold)
}

fn stream_warm(bench: &Bench, name: &str) -> Right {
    stream(bench, name, Cache::Warm)
}

fn stream(bench: &Bench, name: &str, cache: Cache) -> Right {
    let one = Job {
        path: bench.path.clone(),
        offsets: (0..bench.len).step_by(MIB).collect(),
        size: MIB,
        depth: 1,
        direct: false,
    };
    let eight = Job {
        depth: 8,
        ..one.clone()
    };
    let mut ways = Ways::of(bench, name, cache, eight)?;
    ways.add(Side::Peer, "std read loop", false, system::stream);
    for (name, read) in RINGS {
        // From the cache one buffer that stays warm is best, from a device several in flight.
        let one = one.clone();
        ways.add(
            Side::Peer,
            format!("{name}, buffered x1"),
            false,
            move |_, clock| read(&one, clock),
        );
        ways.add(Side::Peer, format!("{name}, buffered x8"), false, read);
        ways.add(Side::Peer, format!("{name}, O_DIRECT x8"), true, read);
    }
    ways.add(
        Side::Peer,
        "glommio stream reader x8",
        true,
        glommio::stream,
    );
    for opener in &bench.openers.usable {
        ways.ours(opener, "chunks", |opener, job, clock| {
            opener.chunks(job, clock, &ChunkOptions::default())
        });
        ways.ours(opener, "chunks of 8M", |opener, job, clock| {
            let options = ChunkOptions::default().size(8 * MIB).window(32 * MIB);
            opener.chunks(job, clock, &options)
        });
    }
    ways.measure()
}

fn scattered(bench: &Bench, name: &str) -> Right {
    let job = random(bench, 64 << 10, 1000, 32);
    let mut ways = Ways::of(bench, name, Cache::Cold, job)?;
    ways.add(Side::Peer, "object_store get_ranges", false, store::ranges);
    ways.add(Side::Peer, "pread loop, buffered", false, system::pread);
    ways.add(Side::Peer, "pread loop, O_DIRECT", true, system::pread);
    // What those would do who write such a batch themselves.
    for (name, read) in RINGS {
        ways.ring(&format!("{name} x32"), false, read);
        ways.ring(&format!("{name} x32"), true, read);
    }
    for opener in &bench.openers.usable {
        ways.ours(opener, "read_many", Opener::read_many);
        ways.ours(opener, "read_now", Opener::read_now);
    }
    ways.measure()
}

fn async_warm(bench: &Bench, name: &str) -> Right {
    // A few hot pages: what is measured is the way there, not the memory.
    let job = Job {
        path: bench.path.clone(),
        offsets: (0..bench.reads as u64)
            .map(|i| i % 8 * PAGE as u64)
            .collect(),
        size: PAGE,
        depth: 1,
        direct: false,
    };
    let one: Runtime = Builder::new_current_thread().build()?;
    let many: Runtime = Builder::new_multi_thread().build()?;
    let mut ways = Ways::of(bench, name, Cache::Warm, job)?;
    for (threads, runtime) in [("one thread", &one), ("many threads", &many)] {
        ways.add(
            Side::Peer,
            format!("tokio::fs, {threads}"),
            false,
            move |job, clock| tokio_fs::seek_read(job, clock, runtime),
        );
    }
    for (name, read) in RINGS {
        ways.ring(name, false, read);
    }
    // A device is no part of this row, so no direct routes.
    for opener in &bench.openers.usable {
        if opener.name.ends_with("-direct") {
            continue;
        }
        for (threads, runtime) in [("one thread", &one), ("many threads", &many)] {
            ways.ours(
                opener,
                &format!("read().await, {threads}"),
                move |opener, job, clock| opener.awaited_one(job, clock, runtime),
            );
        }
        ways.ours(opener, "read_at, blocking", Opener::read_at);
    }
    ways.add(Side::Information, "pread, blocking", false, system::pread);
    ways.measure()
}

/// Random reads, each once and no two of them touching: only every other place is used, and at most a quarter of those.
fn random(bench: &Bench, size: usize, wanted: usize, depth: usize) -> Job {
    let places = bench.len / (2 * size as u64);
    let count = wanted.min(places as usize / 4).max(1);
    let mut shuffled: Vec<u64> = (0..places).collect();
    let mut x = 88_172_645_463_325_252u64;
    for at in 0..count {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let other = at + ((x >> 11) % (places - at as u64)) as usize;
        shuffled.swap(at, other);
    }
    Job {
        path: bench.path.clone(),
        offsets: shuffled[..count]
            .iter()
            .map(|place| place * 2 * size as u64)
            .collect(),
        size,
        depth,
        direct: false,
    }
}
