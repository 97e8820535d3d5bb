//! Relative paths: the directory of a single name is `.`, and below that are all of them.

use std::sync::Arc;

use feedwater::cache::{ManualClock, MetadataCache, PrefetchOptions, PrefetchRun, WarmupBudget};

use crate::support::{Fake, options};

/// Files by their names, and as they are found in a listing of `.`.
fn cache(paths: &[&str], prefetch: PrefetchOptions) -> (Arc<Fake>, MetadataCache) {
    let fake = Arc::new(Fake::with(paths));
    paths.iter().for_each(|path| put(&fake, path, 1));
    let options = options(&fake, &Arc::new(ManualClock::new())).immutable(true);
    (fake, options.prefetch(prefetch).build().unwrap())
}

fn put(fake: &Fake, path: &str, version: u64) {
    fake.put(path, version);
    fake.put(format!("./{path}"), version);
}

#[test]
fn who_invalidates_a_single_name_sees_it_in_the_listing() {
    let (fake, cache) = cache(&["a"], PrefetchOptions::new());
    assert_eq!(cache.list(".").unwrap().len(), 1);
    put(&fake, "b", 1);
    cache.invalidate("b");
    assert_eq!(cache.list(".").unwrap().len(), 2);
}

#[test]
fn the_tree_below_the_working_directory_is_all_relative_paths() {
    let (fake, cache) = cache(&["a", "d/a", "../a", "/a"], PrefetchOptions::new());
    let sizes = || ["a", "d/a", "../a", "/a"].map(|path| cache.stat(path).unwrap().size());
    assert_eq!(sizes(), [1; 4]);
    ["a", "d/a", "../a", "/a"]
        .iter()
        .for_each(|path| fake.put(path, 2));
    cache.invalidate_tree(".");
    assert_eq!(sizes(), [2, 2, 1, 1]);
}

#[test]
fn passes_run_below_a_root_that_is_the_working_directory() {
    let prefetch = PrefetchOptions::new().root(".").depth(2);
    let (fake, cache) = cache(&["d/a", "d/b", "d/c"], prefetch.run(PrefetchRun::Inline));
    (0..3).for_each(|_| drop(cache.stat("d/a").unwrap()));
    cache.stat("d/b").unwrap();
    assert_eq!((fake.stats(), fake.lists()), (1, 1));
}

#[test]
fn a_warm_up_fetches_single_names_under_the_names_that_are_asked_for() {
    let (fake, cache) = cache(&["a", "b"], PrefetchOptions::new());
    cache.list(".").unwrap();
    cache.stat("a").unwrap();
    let report = cache.warm_up(WarmupBudget::new()).unwrap().wait();
    assert_eq!(report.fetched, 1);
    cache.stat("b").unwrap();
    assert_eq!(fake.stats(), 1);
}
