//! Every way gives the same, and says that it was it.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use feedwater::{
    ErrorKind, FileContent, FileResult, Files, FilesWay, Priority, read_files, stat_files,
};
use futures::StreamExt;

use super::common::skip::require;
use super::support::*;

#[test]
fn every_way_and_shape_gives_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 500);
    let paths = paths(&files);
    for way in ways() {
        for outcomes in read_in_all_shapes(&paths, way) {
            assert_right(&outcomes, &files);
        }
    }
    assert_eq!(open_below(dir.path()), 0);
}

#[test]
fn cold_files_come_whole_by_every_way() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 300);
    let paths = paths(&files);
    for way in ways() {
        evict(&files);
        let outcomes = collect(read_files(&paths).priority(Priority::Prefetch));
        assert_right(&outcomes, &files);
        for outcomes in read_in_all_shapes(&paths, way) {
            assert_right(&outcomes, &files);
        }
    }
}

#[test]
fn parts_give_each_file_once_by_every_way() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 700);
    let paths = paths(&files);
    for (way, cold) in ways()
        .into_iter()
        .flat_map(|way| [(way, true), (way, false)])
    {
        if cold {
            evict(&files);
        }
        let many = read_files(&paths).in_order();
        let many = match way {
            Some(way) => many.only(way),
            None => many,
        };
        let parts = many.split(NonZeroUsize::new(3).unwrap());
        let given: Vec<Vec<_>> = thread::scope(|scope| {
            let taker = |part: Files<_, _>| scope.spawn(move || part.collect());
            let takers: Vec<_> = parts.into_iter().map(taker).collect();
            takers
                .into_iter()
                .map(|taker| taker.join().unwrap())
                .collect()
        });
        for of_one in &given {
            assert!(of_one.is_sorted_by_key(|file: &FileResult<FileContent>| file.index));
        }
        assert_right(&collect(given.into_iter().flatten()), &files);
    }
    assert_eq!(open_below(dir.path()), 0);
}

#[test]
fn parts_take_paths_as_they_need_them_and_share_the_windows() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 100);
    let taken = AtomicUsize::new(0);
    let paths = paths(&files);
    let lazily = paths.iter().inspect(|_| {
        taken.fetch_add(1, Ordering::Relaxed);
    });
    let most = NonZeroUsize::new(20).unwrap();
    let many = read_files(lazily).window_files(most).in_order();
    let mut parts = many.split(NonZeroUsize::new(2).unwrap());
    let (mut second, mut first) = (parts.pop().unwrap(), parts.pop().unwrap());
    assert_eq!(taken.load(Ordering::Relaxed), 0);
    assert_eq!(first.next().unwrap().index, 0);
    assert_eq!(taken.load(Ordering::Relaxed), 10);
    assert_eq!(second.next().unwrap().index, 10);
    assert_eq!(taken.load(Ordering::Relaxed), 20);
    // What the first had begun goes with it, and nothing else.
    drop(first);
    let rest: Vec<_> = second.by_ref().map(|file| file.index).collect();
    assert_eq!(rest, (11..100).collect::<Vec<_>>());
    assert_eq!(second.report().files, 90);
    assert!(second.next().is_none());
}

/// A part whose turn it is while another one is at the paths has as much of them as before.
#[test]
fn a_part_waits_for_the_paths_that_another_is_at() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 100);
    let ((begun, is_begun), (about, is_about)) = (mpsc::channel(), mpsc::channel::<()>());
    let mut first = true;
    let slowly = paths(&files).into_iter().inspect(move |_| {
        if std::mem::take(&mut first) {
            begun.send(()).unwrap();
            is_about.recv().unwrap();
            // The other one asks by now, or soon: nobody tells from here, and if it does not, less is tested. That it does not take paths
            // that another one is at for the end of them is for certain in the unit tests of `files::paths`.
            (0..1000).for_each(|_| thread::yield_now());
        }
    });
    let most = NonZeroUsize::new(20).unwrap();
    let mut parts = read_files(slowly)
        .window_files(most)
        .split(NonZeroUsize::new(2).unwrap());
    let (second, mut first) = (parts.pop().unwrap(), parts.pop().unwrap());
    thread::scope(|scope| {
        let first = scope.spawn(move || (first.next().unwrap(), first));
        is_begun.recv().unwrap();
        about.send(()).unwrap();
        assert_eq!(second.count(), 90);
        let (one, rest) = first.join().unwrap();
        assert_right(&collect([one].into_iter().chain(rest)), &files[..10]);
    });
}

#[test]
fn what_cannot_be_read_is_told_by_the_part_that_took_it() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 200);
    let (mut paths, gone) = (paths(&files), [0, 77, 199]);
    gone.into_iter()
        .for_each(|at| paths[at] = dir.path().join(format!("gone {at}")));
    for way in ways() {
        let many = read_files(&paths).in_order();
        let many = match way {
            Some(way) => many.only(way),
            None => many,
        };
        let mut parts = many.split(NonZeroUsize::new(2).unwrap());
        // In turns, so that both have some.
        let (mut given, mut over) = (Vec::new(), 0);
        while over < parts.len() {
            over = 0;
            for part in &mut parts {
                match part.next() {
                    Some(file) => given.push(file),
                    None => over += 1,
                }
            }
        }
        let errors: u64 = parts.iter().map(|part| part.report().errors).sum();
        assert_eq!(errors, 3, "{way:?}");
        let mut outcomes = collect(given);
        assert_eq!(outcomes.len(), 200, "{way:?}");
        for at in gone {
            let (path, result) = outcomes.remove(&(at as u64)).unwrap();
            let error = result.unwrap_err();
            assert_eq!(error.io_kind(), std::io::ErrorKind::NotFound, "{error}");
            assert_eq!(path.to_str(), error.name());
        }
        assert!(outcomes.values().all(|(_, result)| result.is_ok()));
    }
}

#[test]
fn more_parts_than_paths_end_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 2);
    let many = read_files(paths(&files)).window_bytes(1);
    let parts = many.split(NonZeroUsize::new(5).unwrap());
    assert_eq!(parts.len(), 5);
    assert_right(&collect(parts.into_iter().flatten()), &files);
}

#[test]
fn the_report_says_which_way_they_went() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 100);
    let bytes: usize = files.iter().map(|(_, content)| content.len()).sum();
    for way in ways().into_iter().flatten() {
        let mut all = read_files(paths(&files)).only(way).into_iter();
        assert_eq!(all.by_ref().count(), 100);
        let report = all.report();
        assert_eq!((report.way(), report.by(way)), (Some(way), 100), "{report}");
        assert_eq!((report.bytes, report.errors), (bytes as u64, 0));
        assert!(report.to_string().contains(way.name()), "{report}");
    }
}

#[test]
fn few_that_are_in_memory_are_read_on_the_spot() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 20);
    let paths = paths(&files);
    assert_right(&collect(read_files(&paths)), &files);
    let mut again = read_files(&paths).into_iter();
    assert_right(&collect(again.by_ref()), &files);
    let report = again.report();
    // The kernel may have dropped one of them.
    if super::common::confinement().as_deref() != Some("on-fuse") {
        assert!(report.by(FilesWay::Spot) >= 15, "{report}");
    }
}

#[test]
fn a_way_that_cannot_be_had_is_said_for_each_file() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 3);
    let known: Vec<_> = stat_files(paths(&files))
        .only(FilesWay::Rings)
        .into_iter()
        .collect();
    assert_eq!(known.len(), 3);
    for file in known {
        let error = file.result.unwrap_err();
        let ErrorKind::Unavailable { engine, .. } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!(*engine, "uring");
        assert_eq!(error.name(), Some(&*file.path.to_string_lossy()));
    }
}

#[test]
fn a_stream_runs_in_tasks_of_a_runtime_beside_others() {
    let dir = tempfile::tempdir().unwrap();
    let files = Arc::new(make(dir.path(), 200));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let tasks: Vec<_> = (0..4)
        .map(|i| {
            let files = files.clone();
            runtime.spawn(async move {
                if i % 2 == 0 {
                    evict(&files);
                }
                let all: Vec<_> = read_files(paths(&files)).stream().collect().await;
                assert_right(&collect(all), &files);
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
}

#[test]
fn an_engine_that_is_shut_down_reads_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 300);
    let engine = engine();
    let mut all = read_files(paths(&files)).engine(engine.clone()).into_iter();
    assert!(all.next().unwrap().result.is_ok());
    assert!(engine.shut_down(Duration::from_secs(60)).is_complete());
    let rest: Vec<_> = all.collect();
    assert_eq!(rest.len(), 299);
    // What had been read by then is delivered.
    for error in rest.iter().filter_map(|one| one.result.as_ref().err()) {
        assert!(matches!(error.kind(), ErrorKind::Abandoned), "{error}");
    }
    assert_eq!(open_below(dir.path()), 0);
}

#[test]
fn dropped_midway_everything_ends_and_nothing_stays_open() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 400);
    for way in ways() {
        for taken in [0, 1, 100] {
            evict(&files);
            let engine = engine();
            let pool = engine.pool().clone();
            let many = read_files(paths(&files)).engine(engine.clone());
            let many = match way {
                Some(way) => many.only(way),
                None => many,
            };
            let mut all = many.into_iter();
            for _ in 0..taken {
                all.next().unwrap().result.unwrap();
            }
            drop(all);
            // What was with the system ends, and the engine with it.
            assert!(engine.shut_down(Duration::from_secs(60)).is_complete());
            assert_eq!(open_below(dir.path()), 0, "{way:?} {taken}");
            drop(engine);
            pool.trim();
        }
    }
}

/// Paths that say when they have been dropped.
struct Paths<I>(I, Arc<AtomicBool>);

impl<I: Iterator> Iterator for Paths<I> {
    type Item = I::Item;
    fn next(&mut self) -> Option<I::Item> {
        self.0.next()
    }
}

impl<I> Drop for Paths<I> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_stream_that_is_not_polled_again_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 100);
    evict(&files);
    let gone = Arc::new(AtomicBool::new(false));
    let many = read_files(Paths(paths(&files).into_iter(), gone.clone()));
    let mut stream = many.only(FilesWay::Threads).stream();
    let (woken, wakes) = mpsc::channel();
    let waker = waker_fn(move || {
        let _ = woken.send(());
    });
    let mut cx = std::task::Context::from_waker(&waker);
    use futures::Stream;
    if pinned(&mut stream).poll_next(&mut cx).is_pending() {
        let woken = wakes
            .recv_timeout(Duration::from_secs(60))
            .map_err(|e| e.to_string());
        require("processes", woken).unwrap();
        assert!(pinned(&mut stream).poll_next(&mut cx).is_ready());
    }
    drop(stream);
    assert!(gone.load(Ordering::SeqCst));
}

fn waker_fn(wake: impl Fn() + Send + Sync + 'static) -> std::task::Waker {
    struct Wake<F>(F);
    impl<F: Fn() + Send + Sync> std::task::Wake for Wake<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Arc::new(Wake(wake)).into()
}
