//! The same files by other means.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::args::Args;
use crate::measure::{Done, make_cold, measured};
use crate::read;

/// Threads of the pool, and tasks of tokio at once.
const TOGETHER: usize = 32;

/// One way, and its turns.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) is_control: bool,
    /// The medians of the turns.
    pub(crate) done: Done,
    /// Median over the turns of the plain loop's time divided by this one's.
    pub(crate) ratio: f64,
}

type Way<'a> = (&'static str, Box<dyn Fn() -> Done + 'a>);

pub(crate) fn compare(args: &Args, paths: &[Arc<Path>]) -> std::io::Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut ways: Vec<Way<'_>> = vec![
        ("plain loop", Box::new(|| plain_loop(paths))),
        ("plain loop again", Box::new(|| plain_loop(paths))),
        ("32 threads", Box::new(|| threads(paths))),
        ("tokio::fs", Box::new(|| runtime.block_on(tokio_fs(paths)))),
        ("feedwater", Box::new(|| read::read(args, paths.iter()))),
    ];
    let mut turns: Vec<Vec<Done>> = ways.iter().map(|_| Vec::new()).collect();
    // The first turn is not counted. Each second one goes backwards.
    for turn in 0..=args.turns {
        let mut order: Vec<usize> = (0..ways.len()).collect();
        if turn % 2 == 1 {
            order.reverse();
        }
        for at in order {
            if args.cold {
                paths.iter().for_each(|path| make_cold(path));
            }
            let done = measured(&ways[at].1);
            if turn > 0 {
                turns[at].push(done);
            }
        }
    }
    let rows = ways.drain(..).enumerate().map(|(at, (name, _))| {
        let ratios = turns[0].iter().zip(&turns[at]);
        let ratios = ratios.map(|(plain, this)| plain.seconds / this.seconds.max(1e-9));
        let last = turns[at].last().cloned().unwrap_or_default();
        Row {
            name: name.into(),
            is_control: at == 1,
            ratio: median(ratios.collect()),
            done: Done {
                seconds: median(turns[at].iter().map(|done| done.seconds).collect()),
                cpu_seconds: median(turns[at].iter().map(|done| done.cpu_seconds).collect()),
                engine: last.engine.or_else(|| Some(name.into())),
                ..last
            },
        }
    });
    Ok(rows.collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn plain_loop(paths: &[Arc<Path>]) -> Done {
    let mut done = Done::default();
    for path in paths {
        done.add(fs::read(path).ok().map(|bytes| bytes.len()));
    }
    done
}

fn threads(paths: &[Arc<Path>]) -> Done {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let work = || {
            let mut done = Done::default();
            while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                done.add(fs::read(path).ok().map(|bytes| bytes.len()));
            }
            done
        };
        let threads: Vec<_> = (0..TOGETHER).map(|_| scope.spawn(work)).collect();
        let mut all = Done::default();
        for thread in threads {
            let done = thread.join().unwrap_or_default();
            all.files += done.files;
            all.bytes += done.bytes;
            all.errors += done.errors;
        }
        all
    })
}

async fn tokio_fs(paths: &[Arc<Path>]) -> Done {
    use futures::StreamExt;
    let mut all = Done::default();
    let reads = futures::stream::iter(paths.iter().cloned());
    let mut reads = reads
        .map(|path| tokio::spawn(async move { tokio::fs::read(path).await.ok() }))
        .buffer_unordered(TOGETHER);
    while let Some(read) = reads.next().await {
        all.add(read.ok().flatten().map(|bytes| bytes.len()));
    }
    all
}
