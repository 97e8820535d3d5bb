//! Passes: when they begin, what they bring, and when they stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use feedwater::cache::{
    Departure, ManualClock, MetadataCache, Origin, PrefetchOptions, PrefetchRun, Presence,
};

use crate::support::{Door, Fake, options};

const SECOND: Duration = Duration::from_secs(1);

fn files(dir: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{dir}/{n:03}")).collect()
}

fn inline() -> PrefetchOptions {
    PrefetchOptions::new().root("/r").run(PrefetchRun::Inline)
}

fn cache(
    paths: &[String],
    prefetch: PrefetchOptions,
) -> (Arc<Fake>, Arc<ManualClock>, MetadataCache) {
    let (fake, clock) = (Arc::new(Fake::with(paths)), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).immutable(true).prefetch(prefetch);
    (fake, clock, cache.build().unwrap())
}

#[test]
fn the_third_access_within_five_minutes_brings_all_children() {
    let paths = files("/r/a/b/c", 100);
    let (fake, clock, cache) = cache(&paths, inline());
    cache.stat(&paths[0]).unwrap();
    clock.advance(150 * SECOND);
    cache.stat(&paths[1]).unwrap();
    assert_eq!((fake.stats(), fake.lists()), (2, 0));
    clock.advance(150 * SECOND);
    cache.stat(&paths[2]).unwrap();
    assert_eq!((fake.stats(), fake.lists()), (2, 1));
    for path in &paths {
        cache.stat(path).unwrap();
    }
    assert_eq!(cache.list("/r/a/b/c").unwrap().len(), 100);
    assert_eq!((fake.stats(), fake.lists()), (2, 1));
    let metrics = cache.metrics();
    assert_eq!((metrics.prefetch_passes, metrics.prefetched), (1, 100));
    // The first two were there already, and the third had been asked for before the pass.
    assert_eq!((metrics.prefetch_useful, metrics.prefetch_wasted), (97, 0));
    let why = cache.explain(&paths[50]);
    assert!(
        matches!(
            why.among_children,
            Presence::Fresh {
                origin: Origin::Prefetched,
                ..
            }
        ),
        "{why}"
    );
    assert_eq!(why.attributes, Presence::NotKnown);
    cache.invalidate_tree("/r");
    assert_eq!(cache.metrics().prefetch_wasted, 2);
}

#[test]
fn hits_count_towards_a_pass_too() {
    let paths = files("/r/a/b/c", 10);
    let (fake, _, cache) = cache(&paths, inline());
    for _ in 0..3 {
        cache.stat(&paths[0]).unwrap();
    }
    assert_eq!((fake.stats(), fake.lists()), (1, 1));
    cache.stat(&paths[9]).unwrap();
    assert_eq!((fake.stats(), fake.lists()), (1, 1));
}

#[test]
fn accesses_too_far_apart_too_shallow_or_outside_bring_nothing() {
    let far = files("/r/a/b/c", 9);
    let shallow = files("/r/a/b", 9);
    let outside = files("/s/a/b/c", 9);
    let all: Vec<String> = [&far[..], &shallow, &outside].concat();
    let (fake, clock, cache) = cache(&all, inline());
    for path in &far {
        cache.stat(path).unwrap();
        clock.advance(150 * SECOND + Duration::from_nanos(1));
    }
    for path in shallow.iter().chain(&outside) {
        cache.stat(path).unwrap();
    }
    assert_eq!((fake.stats(), fake.lists()), (27, 0));
    let why = cache.explain(&far[0]);
    assert_eq!((why.accesses_in_window, why.mean_depth), (Some(1), 4.0));
    assert!(
        cache
            .explain(&outside[0])
            .to_string()
            .contains("below no root")
    );
}

#[test]
fn numbers_of_the_trigger_are_what_the_options_say() {
    let paths = files("/r/a", 9);
    let prefetch = inline().hits(5).depth(2).window(4 * SECOND);
    let (fake, clock, cache) = cache(&paths, prefetch);
    for path in &paths[..5] {
        assert_eq!(fake.lists(), 0);
        cache.stat(path).unwrap();
        clock.advance(SECOND);
    }
    assert_eq!(fake.lists(), 1);
}

#[test]
fn a_pass_ends_at_its_caps_and_what_it_brought_is_good() {
    let paths = files("/r/a/b/c", 900);
    for prefetch in [inline().max_entries(50), inline().max_bytes(6_000)] {
        let (fake, _, cache) = cache(&paths, prefetch);
        paths[..3]
            .iter()
            .for_each(|path| drop(cache.stat(path).unwrap()));
        let brought = cache.metrics().prefetched as usize;
        assert!((20..=50).contains(&brought), "{brought}");
        cache.stat(&paths[brought - 1]).unwrap();
        assert_eq!(fake.stats(), 2);
        cache.stat(&paths[brought]).unwrap();
        assert_eq!(fake.stats(), 3);
        // Not all are known, so the listing is asked for.
        assert_eq!(cache.list("/r/a/b/c").unwrap().len(), 900);
        assert_eq!(fake.lists(), 2);
    }
    let (fake, clock, cache) = {
        let paths = files("/r/a/b/c", 900);
        cache(&paths, inline().max_time(SECOND))
    };
    let slow = clock.clone();
    fake.on_call(move |_| slow.advance(2 * SECOND));
    paths[..3]
        .iter()
        .for_each(|path| drop(cache.stat(path).unwrap()));
    assert_eq!(
        cache.metrics().prefetched,
        63,
        "the clock is looked at every 64 children"
    );
}

#[test]
fn a_backend_whose_listings_have_no_attributes_is_asked_for_all_at_once() {
    let paths = files("/r/a/b/c", 40);
    let mut fake = Fake::with(&paths);
    fake.bare = true;
    let (fake, clock) = (Arc::new(fake), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).prefetch(inline()).build().unwrap();
    paths
        .iter()
        .for_each(|path| drop(cache.stat(path).unwrap()));
    let batches = fake.batches.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!((fake.stats(), fake.lists(), batches), (2, 1, 1));
}

#[test]
fn an_invalidated_child_is_asked_for_and_the_others_stay() {
    let paths = files("/r/a/b/c", 40);
    let (fake, _, cache) = cache(&paths, inline());
    paths[..3]
        .iter()
        .for_each(|path| drop(cache.stat(path).unwrap()));
    fake.put(&paths[7], 9);
    cache.invalidate(&paths[7]);
    let why = cache.explain(&paths[7]).among_children;
    assert!(
        matches!(
            why,
            Presence::Gone {
                why: Departure::Invalidated,
                ..
            }
        ),
        "{why:?}"
    );
    assert_eq!(cache.stat(&paths[7]).unwrap().size(), 9);
    cache.stat(&paths[8]).unwrap();
    assert_eq!(fake.stats(), 3);
}

#[test]
fn passes_grow_too_old_like_everything_else() {
    let paths = files("/r/a/b/c", 10);
    let (fake, clock) = (Arc::new(Fake::with(&paths)), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).prefetch(inline()).build().unwrap();
    paths[..3]
        .iter()
        .for_each(|path| drop(cache.stat(path).unwrap()));
    fake.put(&paths[5], 2);
    clock.advance(2 * SECOND);
    assert_eq!(cache.stat(&paths[5]).unwrap().size(), 2);
}

#[test]
fn in_the_background_one_flight_for_each_directory_and_nobody_waits() {
    let paths = files("/r/a/b/c", 100);
    let (fake, _, cache) = cache(&paths, PrefetchOptions::new().root("/r"));
    let door = Arc::new(Door::default());
    let inside = door.clone();
    fake.on_call(move |path| {
        if path.ends_with("c") {
            inside.pass();
        }
    });
    for path in &paths[..3] {
        cache.stat(path).unwrap();
    }
    door.came(1);
    // The pass hangs; questions are answered all the same, and begin no other.
    for path in &paths[3..30] {
        cache.stat(path).unwrap();
    }
    assert!(!cache.settle(Duration::ZERO));
    assert_eq!((fake.stats(), fake.lists()), (30, 1));
    door.open();
    assert!(cache.settle(60 * SECOND));
    for path in &paths {
        cache.stat(path).unwrap();
    }
    assert_eq!(fake.stats(), 30);
    assert_eq!(cache.metrics().prefetch_useful, 70);
}

#[test]
fn a_backend_that_panics_costs_its_pass_and_no_more() {
    let one = files("/r/a/b/c", 9);
    let two = files("/r/a/b/d", 9);
    let (fake, _, cache) = cache(
        &[&one[..], &two].concat(),
        PrefetchOptions::new().root("/r"),
    );
    fake.on_call(|path| assert!(!path.ends_with("c"), "as the test wants it"));
    one[..3]
        .iter()
        .for_each(|path| drop(cache.stat(path).unwrap()));
    assert!(cache.settle(60 * SECOND));
    two[..3]
        .iter()
        .for_each(|path| drop(cache.stat(path).unwrap()));
    assert!(cache.settle(60 * SECOND));
    assert_eq!(cache.metrics().prefetched, 9);
    two.iter().for_each(|path| drop(cache.stat(path).unwrap()));
    assert_eq!(fake.stats(), 6);
}

#[test]
fn a_root_that_wastes_is_off_until_it_cooled_down_and_on_when_it_is_useful() {
    let dirs: Vec<Vec<String>> = (0..40)
        .map(|d| files(&format!("/r/a/b/dir{d:02}"), 100))
        .collect();
    let all = dirs.concat();
    let prefetch = inline()
        .allowance(1000)
        .waste(0.5)
        .probe(100)
        .cool_down(60 * SECOND);
    let (fake, clock, cache) = cache(&all, prefetch);
    let three_of = |dir: &[String]| {
        dir[..3]
            .iter()
            .for_each(|path| drop(cache.stat(path).unwrap()))
    };
    // Nobody asks for more than the first three.
    dirs[..20].iter().for_each(|dir| three_of(dir));
    let passes = fake.lists();
    assert_eq!(passes, 10);
    assert_eq!(cache.metrics().prefetch_switched_off, 1);
    assert!(!cache.roots()[0].on);
    assert!(cache.explain(&all[0]).to_string().contains("is off"));
    // It is tried again once it cooled down.
    clock.advance(60 * SECOND);
    three_of(&dirs[20]);
    assert_eq!(fake.lists(), passes + 1);
    three_of(&dirs[21]);
    assert_eq!(fake.lists(), passes + 1);
    // What is there and asked for brings it back.
    for dir in &dirs[..3] {
        dir.iter().for_each(|path| drop(cache.stat(path).unwrap()));
    }
    assert!(cache.roots()[0].on);
    three_of(&dirs[22]);
    assert_eq!(fake.lists(), passes + 2);
}

#[test]
fn of_nested_roots_the_innermost_counts() {
    let paths = files("/r/x/a/b/c", 10);
    let prefetch = inline().root("/r/x/a");
    let (fake, _, cache) = cache(&paths, prefetch);
    paths
        .iter()
        .for_each(|path| drop(cache.stat(path).unwrap()));
    assert_eq!((fake.stats(), fake.lists()), (10, 0));
}

#[test]
fn a_new_file_that_was_invalidated_is_in_the_listing_that_a_pass_brought() {
    let paths = files("/r/a/b/c", 40);
    let (fake, _, cache) = cache(&paths, inline());
    paths[..3]
        .iter()
        .for_each(|path| drop(cache.stat(path).unwrap()));
    assert_eq!(cache.list("/r/a/b/c").unwrap().len(), 40);
    assert_eq!(fake.lists(), 1);
    fake.put("/r/a/b/c/new", 1);
    cache.invalidate("/r/a/b/c/new");
    let listing = cache.list("/r/a/b/c").unwrap();
    assert_eq!(
        (listing.len(), listing.get("new").is_some()),
        (41, true),
        "own writes are seen"
    );
    // The others are still known.
    cache.stat(&paths[30]).unwrap();
    assert_eq!(fake.stats(), 2);
}

#[test]
fn a_listing_that_a_pass_brought_is_no_older_than_listings_may_be() {
    let paths = files("/r/a/b/c", 40);
    let (fake, clock) = (Arc::new(Fake::with(&paths)), Arc::new(ManualClock::new()));
    let options = options(&fake, &clock).prefetch(inline());
    let options = options.file_ttl(60 * SECOND).listing_ttl(SECOND);
    let cache = options.build().unwrap();
    paths[..3]
        .iter()
        .for_each(|path| drop(cache.stat(path).unwrap()));
    fake.put("/r/a/b/c/new", 1);
    assert_eq!(cache.list("/r/a/b/c").unwrap().len(), 40);
    clock.advance(SECOND);
    assert_eq!(cache.list("/r/a/b/c").unwrap().len(), 41);
    // The attributes hold on.
    cache.stat(&paths[30]).unwrap();
    assert_eq!(fake.stats(), 2);
}

#[test]
fn a_pass_that_lacks_answers_makes_no_listing() {
    let paths = files("/r/a/b/c", 40);
    let mut fake = Fake::with(&paths);
    fake.bare = true;
    fake.short.store(true, Ordering::SeqCst);
    let (fake, clock) = (Arc::new(fake), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).prefetch(inline()).build().unwrap();
    paths[..3]
        .iter()
        .for_each(|path| drop(cache.stat(path).unwrap()));
    assert_eq!(cache.metrics().prefetched, 39);
    assert_eq!(cache.list("/r/a/b/c").unwrap().len(), 40);
}
