//! Warm-ups: what they fetch, in which order, and that they can be held.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use feedwater::cache::{
    ManualClock, MetadataCache, Origin, PrefetchOptions, PrefetchRun, Presence, WarmupBudget,
    WarmupScore,
};

use crate::support::{Door, Fake, options};

fn old_entries(count: usize) -> (Arc<Fake>, Arc<ManualClock>, MetadataCache, Vec<String>) {
    let paths: Vec<String> = (0..count).map(|n| format!("/d/{n:03}")).collect();
    let (fake, clock) = (Arc::new(Fake::with(&paths)), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).build().unwrap();
    // The later ones more often, so that they score higher.
    for (n, path) in paths.iter().enumerate() {
        (0..=n).for_each(|_| drop(cache.stat(path).unwrap()));
    }
    clock.advance(Duration::from_secs(10));
    (fake, clock, cache, paths)
}

fn is_warm(cache: &MetadataCache, path: &str) -> bool {
    let why = cache.explain(path).attributes;
    matches!(
        why,
        Presence::Fresh {
            origin: Origin::Warmed,
            ..
        }
    )
}

#[test]
fn the_best_come_first_and_the_budget_holds() {
    for score in [WarmupScore::Classic, WarmupScore::CostAware] {
        let (fake, _, cache, paths) = old_entries(30);
        let calls = fake.stats();
        let budget = WarmupBudget::new().score(score).entries(10);
        let report = cache.warm_up(budget).unwrap().wait();
        assert_eq!(
            (report.candidates, report.fetched, report.complete),
            (10, 10, true)
        );
        for (n, path) in paths.iter().enumerate() {
            assert_eq!(is_warm(&cache, path), n >= 20, "{path} {score:?}");
        }
        cache.stat(&paths[29]).unwrap();
        assert_eq!(fake.stats(), calls);
        // What is there is fetched by no other.
        let again = cache
            .warm_up(WarmupBudget::new().score(score))
            .unwrap()
            .wait();
        assert_eq!(again.fetched, 20);
        let bytes = WarmupBudget::new().bytes(0);
        assert_eq!(cache.warm_up(bytes).unwrap().wait().fetched, 0);
    }
}

#[test]
fn children_that_nobody_asked_for_are_fetched_by_cost_and_not_by_classic() {
    for (score, fetched) in [(WarmupScore::Classic, 1), (WarmupScore::CostAware, 40)] {
        let paths: Vec<String> = (0..40).map(|n| format!("/d/{n:03}")).collect();
        let (fake, clock) = (Arc::new(Fake::with(&paths)), Arc::new(ManualClock::new()));
        let cache = options(&fake, &clock).build().unwrap();
        cache.list("/d").unwrap();
        cache.stat(&paths[3]).unwrap();
        clock.advance(Duration::from_secs(3));
        let report = cache
            .warm_up(WarmupBudget::new().score(score))
            .unwrap()
            .wait();
        assert_eq!(report.fetched, fetched, "{score:?}");
    }
}

#[test]
fn a_warm_up_can_be_paused_resumed_and_stopped() {
    let (fake, _, cache, paths) = old_entries(200);
    let door = Arc::new(Door::default());
    let inside = door.clone();
    fake.on_call(move |_| inside.pass());
    let warmup = cache.warm_up(WarmupBudget::new()).unwrap();
    door.came(1);
    warmup.pause();
    door.open();
    // The batch that it was in is done, and no other begins.
    let warm = || paths.iter().filter(|path| is_warm(&cache, path)).count();
    while warm() < 64 {
        std::thread::yield_now();
    }
    assert_eq!(warmup.report(), None);
    assert_eq!(warm(), 64);
    warmup.resume();
    let report = warmup.wait();
    assert_eq!((report.fetched, report.complete), (200, true));
    assert_eq!(warmup.report(), Some(report));

    let (_, _, cache, _) = old_entries(3);
    let held = Arc::new(Door::default());
    let warmup = {
        // Paused before it begins or in its only batch; either way it ends when it is stopped.
        let warmup = cache.warm_up(WarmupBudget::new()).unwrap();
        warmup.pause();
        warmup.stop();
        warmup
    };
    assert!(warmup.wait().fetched <= 3);
    held.open();
}

#[test]
fn a_warm_up_ends_with_its_cache_and_with_its_backend() {
    let (fake, _, cache, _) = old_entries(200);
    fake.on_call(|_| panic!("as the test wants it"));
    assert_eq!(
        cache.warm_up(WarmupBudget::new()).unwrap().wait().fetched,
        0
    );

    let (_, _, cache, _) = old_entries(200);
    let warmup = cache.warm_up(WarmupBudget::new()).unwrap();
    warmup.pause();
    drop(cache);
    let report = warmup.wait();
    assert!(report.fetched <= 200);
}

#[test]
fn contents_are_fetched_within_their_budget() {
    let (fake, clock, cache, _) = old_entries(0);
    for n in 0..10 {
        let path = format!("/d/{n}");
        fake.put(&path, 1000);
        cache.stat(&path).unwrap();
    }
    clock.advance(Duration::from_secs(10));
    let budget = WarmupBudget::new().contents(2500);
    let report = cache.warm_up(budget).unwrap().wait();
    assert_eq!((report.fetched, report.contents), (10, 2500));
    let fetched = fake.fetched.load(Ordering::SeqCst);
    assert_eq!(fetched, 2500);
}

#[test]
fn contents_are_fetched_too_where_attributes_are_known() {
    let paths: Vec<String> = (0..10).map(|n| format!("/r/a/b/c/{n}")).collect();
    for prefetch in [false, true] {
        let (fake, clock) = (Arc::new(Fake::default()), Arc::new(ManualClock::new()));
        paths.iter().for_each(|path| fake.put(path, 1000));
        let ahead = PrefetchOptions::new().run(PrefetchRun::Inline);
        let ahead = if prefetch { ahead.root("/r") } else { ahead };
        let options = options(&fake, &clock).immutable(true);
        let cache = options.prefetch(ahead).build().unwrap();
        paths
            .iter()
            .for_each(|path| drop(cache.stat(path).unwrap()));
        let calls = fake.stats() + fake.lists();
        let budget = WarmupBudget::new().contents(1 << 20);
        let report = cache.warm_up(budget).unwrap().wait();
        assert_eq!((report.candidates, report.fetched), (10, 0), "{prefetch}");
        assert_eq!((report.contents, report.complete), (10_000, true));
        assert_eq!(fake.stats() + fake.lists(), calls);
        assert_eq!(fake.batches.load(Ordering::SeqCst), 0);
        // Without contents there is nothing to do.
        let again = cache.warm_up(WarmupBudget::new()).unwrap().wait();
        assert_eq!(again.candidates, 0);
    }
}

#[test]
fn what_a_pass_brought_is_fetched_again_when_it_is_too_old() {
    let paths: Vec<String> = (0..20).map(|n| format!("/r/a/b/c/{n:02}")).collect();
    for (score, fetched) in [(WarmupScore::Classic, 5), (WarmupScore::CostAware, 20)] {
        let (fake, clock) = (Arc::new(Fake::with(&paths)), Arc::new(ManualClock::new()));
        let ahead = PrefetchOptions::new().root("/r").run(PrefetchRun::Inline);
        let cache = options(&fake, &clock).prefetch(ahead).build().unwrap();
        // The pass comes with the third.
        paths[..5]
            .iter()
            .for_each(|path| drop(cache.stat(path).unwrap()));
        assert_eq!(cache.metrics().prefetched, 20);
        clock.advance(Duration::from_secs(3));
        let budget = WarmupBudget::new().score(score);
        assert_eq!(
            cache.warm_up(budget).unwrap().wait().fetched,
            fetched,
            "{score:?}"
        );
        let calls = cache.metrics().backend_calls;
        paths[..fetched]
            .iter()
            .for_each(|path| drop(cache.stat(path).unwrap()));
        assert_eq!(cache.metrics().backend_calls, calls, "{score:?}");
    }
}

#[test]
fn a_pause_is_noticed_between_two_files() {
    let (fake, clock, cache, _) = old_entries(0);
    for n in 0..10 {
        let path = format!("/d/{n}");
        fake.put(&path, 1000);
        cache.stat(&path).unwrap();
    }
    clock.advance(Duration::from_secs(10));
    let door = Arc::new(Door::default());
    let inside = door.clone();
    fake.on_fetch(move |_| inside.pass());
    let budget = WarmupBudget::new().contents(1 << 20);
    let warmup = cache.warm_up(budget).unwrap();
    door.came(1);
    warmup.pause();
    door.open();
    let fetched = || fake.fetched.load(Ordering::SeqCst);
    while fetched() == 0 {
        std::thread::yield_now();
    }
    assert_eq!((warmup.report(), fetched()), (None, 1000));
    warmup.stop();
    let report = warmup.wait();
    assert_eq!((report.contents, report.complete), (1000, false));
}

#[test]
fn a_warm_up_that_is_paused_ends_with_its_time() {
    let (fake, clock, cache, _) = old_entries(200);
    let door = Arc::new(Door::default());
    let inside = door.clone();
    fake.on_call(move |_| inside.pass());
    let budget = WarmupBudget::new().time(Duration::from_secs(60));
    let warmup = cache.warm_up(budget).unwrap();
    door.came(1);
    warmup.pause();
    clock.advance(Duration::from_secs(61));
    door.open();
    let (send, ended) = mpsc::channel();
    std::thread::spawn(move || send.send(warmup.wait()));
    let report = ended.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!((report.fetched, report.complete), (64, false));
}

#[test]
fn a_backend_that_boasts_breaks_no_count() {
    let (fake, _, cache, _) = old_entries(3);
    fake.boasts.store(true, Ordering::SeqCst);
    let budget = WarmupBudget::new().contents(u64::MAX);
    let report = cache.warm_up(budget).unwrap().wait();
    // Each has one byte and more, and none more than it has.
    assert_eq!((report.contents, report.complete), (3, true));
}
