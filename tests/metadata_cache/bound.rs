//! The bound on bytes holds at every moment, loads in flight counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use feedwater::ErrorKind;
use feedwater::cache::{
    CacheOptions, Departure, LEAST_CAPACITY, ManualClock, PrefetchOptions, PrefetchRun, Presence,
};
use proptest::prelude::*;

use crate::support::{Fake, options, tag};

#[derive(Clone, Debug)]
enum Step {
    Stat(u16),
    List(u16),
    Parsed(u16, u32),
    Invalidate(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => any::<u16>().prop_map(Step::Stat),
        2 => any::<u16>().prop_map(Step::List),
        2 => (any::<u16>(), 0u32..40_000).prop_map(|(n, bytes)| Step::Parsed(n, bytes)),
        1 => any::<u16>().prop_map(Step::Invalidate),
    ];
    prop::collection::vec(step, 1..300)
}

/// 40 directories of 1 to 40 files.
fn files() -> Vec<String> {
    let dir = |d: usize| (0..=d).map(move |f| format!("/r/a/b/dir{d:02}/file-{f:02}"));
    (0..40).flat_map(dir).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_bytes_never_pass_the_bound(steps in steps(), capacity in LEAST_CAPACITY..300_000) {
        let files = files();
        let (fake, clock) = (Arc::new(Fake::with(&files)), Arc::new(ManualClock::new()));
        let prefetch = PrefetchOptions::new().root("/r").run(PrefetchRun::Inline);
        let cache = options(&fake, &clock)
            .capacity(capacity)
            .prefetch(prefetch)
            .build()
            .unwrap();
        // Also while the backend is being asked.
        let (seen, inside) = (cache.clone(), Arc::new(AtomicBool::new(true)));
        let ok = inside.clone();
        fake.on_call(move |_| {
            if seen.metrics().bytes > capacity {
                ok.store(false, Ordering::SeqCst);
            }
        });
        for step in steps {
            let file = |n: u16| &files[n as usize % files.len()];
            match step {
                Step::Stat(n) => drop(cache.stat(file(n)).unwrap()),
                Step::List(n) => drop(cache.list(format!("/r/a/b/dir{:02}", n % 40)).unwrap()),
                Step::Parsed(n, bytes) => {
                    let load = || Ok((vec![0u8; 1], u64::from(bytes)));
                    cache.parsed::<Vec<u8>>(file(n), &tag(1), load).unwrap();
                }
                Step::Invalidate(n) => cache.invalidate(file(n)),
            }
            let bytes = cache.metrics().bytes;
            prop_assert!(bytes <= capacity, "{} of {}", bytes, capacity);
        }
        prop_assert!(inside.load(Ordering::SeqCst));
        fake.on_call(|_| {}); // the hook holds the cache
    }
}

#[test]
fn the_bound_holds_under_contention() {
    const CAPACITY: u64 = 96 << 10;
    let files = files();
    let (fake, clock) = (Arc::new(Fake::with(&files)), Arc::new(ManualClock::new()));
    let prefetch = PrefetchOptions::new().root("/r").run(PrefetchRun::Inline);
    let cache = options(&fake, &clock)
        .capacity(CAPACITY)
        .shards(2)
        .prefetch(prefetch)
        .build()
        .unwrap();
    let done = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Acquire) {
                most = most.max(cache.metrics().bytes);
            }
            most
        });
        let workers: Vec<_> = (0..4u64)
            .map(|worker| {
                let (cache, files) = (&cache, &files);
                scope.spawn(move || {
                    let mut state = worker + 1;
                    for _ in 0..4000 {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                        let file = &files[(state >> 33) as usize % files.len()];
                        match state >> 60 {
                            0 => drop(cache.list(file.rsplit_once('/').unwrap().0).unwrap()),
                            1 => cache.invalidate(file),
                            2 => {
                                let load = || Ok(((), state >> 48 & 0x1fff));
                                cache.parsed::<()>(file, &tag(state >> 50), load).unwrap();
                            }
                            _ => drop(cache.stat(file).unwrap()),
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Release);
        watcher.join().unwrap()
    });
    assert!(most <= CAPACITY, "{most}");
    let metrics = cache.metrics();
    assert!(
        metrics.bytes <= CAPACITY && metrics.evictions > 0,
        "{metrics:?}"
    );
}

#[test]
fn what_does_not_fit_is_handed_out_and_not_kept() {
    let files: Vec<String> = (0..2000).map(|n| format!("/big/name-{n:06}")).collect();
    let (fake, clock) = (Arc::new(Fake::with(&files)), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock)
        .capacity(LEAST_CAPACITY)
        .build()
        .unwrap();
    for round in 1..=2 {
        assert_eq!(cache.list("/big").unwrap().len(), 2000);
        assert_eq!(fake.lists(), round);
        assert_eq!(cache.metrics().bypassed, round);
    }
    let why = cache.explain("/big").listing;
    assert!(
        matches!(
            why,
            Presence::Gone {
                why: Departure::NotKept,
                ..
            }
        ),
        "{why:?}"
    );
    let large = cache
        .parsed::<u8>("/x", &tag(1), || Ok((1, u64::MAX)))
        .unwrap();
    assert_eq!((*large, cache.explain("/x").parsed), (1, 0));
    assert!(cache.metrics().bytes < LEAST_CAPACITY);
}

#[test]
fn evicted_entries_are_remembered_as_such() {
    let files: Vec<String> = (0..500).map(|n| format!("/d/{n}")).collect();
    let (fake, clock) = (Arc::new(Fake::with(&files)), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).capacity(64 << 10).build().unwrap();
    files
        .iter()
        .for_each(|file| drop(cache.stat(file).unwrap()));
    let gone = |file: &&String| {
        let why = cache.explain(file).attributes;
        matches!(
            why,
            Presence::Gone {
                why: Departure::Evicted,
                ..
            }
        )
    };
    let remembered = files.iter().filter(gone).count() as u64;
    let metrics = cache.metrics();
    assert_eq!(metrics.entries + metrics.evictions, 500);
    assert!(
        remembered > 0 && remembered <= metrics.evictions,
        "{remembered} {metrics:?}"
    );
    assert_eq!(cache.explain("/never").attributes, Presence::NotKnown);
}

#[test]
fn senseless_options_are_refused() {
    let refused = |options: CacheOptions| {
        let error = options.build().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
    };
    refused(CacheOptions::new().capacity(LEAST_CAPACITY - 1));
    refused(CacheOptions::new().shards(0));
    refused(CacheOptions::new().shards(usize::MAX));
    refused(CacheOptions::new().shards(4097).capacity(1 << 30));
    // Parts in which hardly an entry fits.
    refused(CacheOptions::new().shards(17).capacity(LEAST_CAPACITY));
    for prefetch in [
        PrefetchOptions::new().hits(0),
        PrefetchOptions::new().hits(9),
        PrefetchOptions::new().waste(1.0),
        PrefetchOptions::new().waste(f64::NAN),
        PrefetchOptions::new().directories(0),
    ] {
        refused(CacheOptions::new().prefetch(prefetch));
    }
}

#[test]
fn the_extremes_that_are_allowed_work() {
    let fake = Arc::new(Fake::with(["/d/a"]));
    for options in [
        CacheOptions::new().shards(16).capacity(LEAST_CAPACITY),
        CacheOptions::new().shards(4096).capacity(1 << 30),
        CacheOptions::new().capacity(u64::MAX),
        CacheOptions::new()
            .file_ttl(Duration::MAX)
            .listing_ttl(Duration::MAX)
            .negative_ttl(Some(Duration::MAX))
            .half_life(Duration::ZERO),
    ] {
        let cache = options.backend(fake.clone()).build().unwrap();
        let before = fake.stats();
        (0..2).for_each(|_| drop(cache.stat("/d/a").unwrap()));
        assert_eq!(fake.stats() - before, 1, "{cache:?}");
    }
}
