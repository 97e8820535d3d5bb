//! One load at a time for each entry; none that ends badly holds up others; invalidated ones are not kept.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};

use feedwater::ErrorKind;
use feedwater::cache::{ManualClock, MetadataCache};

use crate::support::{Door, Fake, options, tag};

fn one_file() -> (Arc<Fake>, MetadataCache) {
    let (fake, clock) = (Arc::new(Fake::with(["/a/f"])), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).build().unwrap();
    (fake, cache)
}

#[test]
fn many_misses_at_once_are_one_call() {
    const THREADS: usize = 16;
    for _ in 0..20 {
        let (fake, cache) = one_file();
        let (door, start) = (Arc::new(Door::default()), Barrier::new(THREADS));
        let inside = door.clone();
        fake.on_call(move |_| inside.pass());
        let asking = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (cache, start, asking) = (&cache, &start, &asking);
            for _ in 0..THREADS {
                scope.spawn(move || {
                    start.wait();
                    asking.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(cache.stat("/a/f").unwrap().size(), 1);
                });
            }
            door.came(1);
            while asking.load(Ordering::SeqCst) < THREADS {
                std::thread::yield_now();
            }
            door.open();
        });
        assert_eq!(fake.stats(), 1);
        let metrics = cache.metrics();
        assert_eq!(metrics.hits + metrics.misses, THREADS as u64);
    }
}

#[test]
fn a_load_that_panics_leaves_the_next_in_line_to_load() {
    let (fake, cache) = one_file();
    let door = Arc::new(Door::default());
    let (inside, calls) = (door.clone(), AtomicU64::new(0));
    fake.on_call(move |_| {
        if calls.fetch_add(1, Ordering::SeqCst) == 0 {
            inside.pass();
            panic!("as the test wants it");
        }
    });
    std::thread::scope(|scope| {
        let first = scope.spawn(|| cache.stat("/a/f"));
        door.came(1);
        let others: Vec<_> = (0..4).map(|_| scope.spawn(|| cache.stat("/a/f"))).collect();
        door.open();
        assert!(first.join().is_err());
        for other in others {
            assert_eq!(other.join().unwrap().unwrap().size(), 1);
        }
    });
    assert_eq!(fake.stats(), 2);
}

#[test]
fn a_failure_is_shared_and_not_kept() {
    let (fake, cache) = one_file();
    let door = Arc::new(Door::default());
    let inside = door.clone();
    fake.on_call(move |_| inside.pass());
    fake.remove("/a/f");
    fake.put("/a/g", 1);
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(|| cache.stat("/a/f"))).collect();
        door.came(1);
        door.open();
        for one in asking {
            let error = one.join().unwrap().unwrap_err();
            assert_eq!(error.io_kind(), std::io::ErrorKind::NotFound);
        }
    });
    fake.put("/a/f", 5);
    assert_eq!(cache.stat("/a/f").unwrap().size(), 5);
}

#[test]
fn a_parse_that_fails_or_is_dropped_leaves_the_next_in_line_to_load() {
    let (_, cache) = one_file();
    let version = tag(1);
    let failed = cache.parsed::<u8>("/a/f", &version, || Err(ErrorKind::TimedOut.into()));
    assert!(matches!(failed.unwrap_err().kind(), ErrorKind::TimedOut));

    let mut context = Context::from_waker(Waker::noop());
    {
        let never = std::future::pending();
        let mut first = Box::pin(cache.parsed_async::<u8>("/a/f", &version, never));
        assert!(first.as_mut().poll(&mut context).is_pending());
        let ready = async { Ok((2, 1)) };
        let mut second = Box::pin(cache.parsed_async::<u8>("/a/f", &version, ready));
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(first);
        match second.as_mut().poll(&mut context) {
            Poll::Ready(value) => assert_eq!(*value.unwrap(), 2),
            Poll::Pending => panic!("nobody woke the second"),
        }
    }
    let kept = cache.parsed::<u8>("/a/f", &version, || panic!("it is kept"));
    assert_eq!(*kept.unwrap(), 2);
}

#[test]
fn many_parses_at_once_are_one() {
    let (_, cache) = one_file();
    let (loads, start) = (AtomicU64::new(0), Barrier::new(8));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                let load = || Ok((loads.fetch_add(1, Ordering::SeqCst), 8));
                assert_eq!(*cache.parsed::<u64>("/a/f", &tag(1), load).unwrap(), 0);
            });
        }
    });
    assert_eq!(loads.load(Ordering::SeqCst), 1);
}

#[test]
fn a_load_that_was_in_flight_when_its_path_was_invalidated_is_not_kept() {
    type Invalidate = fn(&MetadataCache);
    let ways: [Invalidate; 3] = [
        |cache| cache.invalidate("/a/f"),
        |cache| cache.invalidate_tree("/a"),
        |cache| cache.invalidate_tree("/"),
    ];
    for way in ways {
        let (fake, cache) = one_file();
        let door = Arc::new(Door::default());
        let inside = door.clone();
        fake.on_call(move |_| inside.pass());
        std::thread::scope(|scope| {
            let early = scope.spawn(|| cache.stat("/a/f").unwrap().size());
            let listed = scope.spawn(|| cache.list("/a").unwrap().len());
            door.came(2);
            fake.put("/a/f", 2);
            fake.put("/a/g", 1);
            way(&cache);
            door.open();
            assert_eq!((early.join().unwrap(), listed.join().unwrap()), (1, 1));
        });
        assert_eq!(cache.stat("/a/f").unwrap().size(), 2);
        assert_eq!(cache.list("/a").unwrap().len(), 2);
    }
}

#[test]
fn who_invalidates_sees_its_own_writes_whatever_others_load() {
    const FILES: usize = 4;
    let files: Vec<String> = (0..FILES).map(|n| format!("/r/a/b/c/{n}")).collect();
    let (fake, clock) = (Arc::new(Fake::with(&files)), Arc::new(ManualClock::new()));
    let prefetch = feedwater::cache::PrefetchOptions::new()
        .root("/r")
        .run(feedwater::cache::PrefetchRun::Inline)
        .allowance(u64::MAX);
    let cache = options(&fake, &clock).prefetch(prefetch).build().unwrap();
    std::thread::scope(|scope| {
        for (index, file) in files.iter().enumerate() {
            let (fake, cache, files) = (&fake, &cache, &files);
            scope.spawn(move || {
                for version in 2..400 {
                    fake.put(file, version);
                    if version % 16 == 0 {
                        cache.invalidate_tree("/r/a/b");
                    } else {
                        cache.invalidate(file);
                    }
                    // The only one who writes it.
                    assert_eq!(cache.stat(file).unwrap().size(), version);
                    cache.stat(&files[(index + 1) % FILES]).unwrap();
                    assert_eq!(cache.list("/r/a/b/c").unwrap().len(), FILES);
                }
            });
        }
    });
    assert!(cache.metrics().invalidations > 0);
}
