//! The local file system, and a forked child.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::time::Duration;

use feedwater::cache::{
    Attributes, CacheOptions, MetadataCache, PrefetchOptions, PrefetchRun, WarmupBudget,
    WarmupReport,
};
use feedwater::{EntryKind, ErrorKind};

#[test]
fn attributes_and_listings_are_those_of_the_system() {
    let dir = tempfile::tempdir().unwrap();
    let odd = OsStr::from_bytes(b"not \xff utf-8");
    std::fs::write(dir.path().join(odd), "12345").unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    symlink(dir.path().join(odd), dir.path().join("link")).unwrap();
    symlink(dir.path().join("nothing"), dir.path().join("dangling")).unwrap();
    let cache = MetadataCache::new();
    for name in [odd, OsStr::new("sub"), OsStr::new("link")] {
        let path = dir.path().join(name);
        let theirs = Attributes::from(&std::fs::metadata(&path).unwrap());
        assert_eq!(cache.stat(&path).unwrap(), theirs);
        assert_eq!(cache.stat(&path).unwrap(), theirs);
    }
    assert_eq!(cache.metrics().hits, 3);
    let error = cache.stat(dir.path().join("dangling")).unwrap_err();
    assert_eq!(error.io_kind(), std::io::ErrorKind::NotFound);
    let listing = cache.list(dir.path()).unwrap();
    assert_eq!(listing.get(odd), Some(EntryKind::File));
    assert_eq!(listing.get("sub"), Some(EntryKind::Directory));
    assert_eq!(listing.get("link"), Some(EntryKind::Symlink));
    assert_eq!(listing.get("dangling"), Some(EntryKind::Symlink));
    assert_eq!((listing.get("no"), listing.len()), (None, 4));
    let error = cache.list(dir.path().join(odd)).unwrap_err();
    assert_eq!(error.io_kind(), std::io::ErrorKind::NotADirectory);
}

#[test]
fn a_pass_tells_what_stat_tells_links_followed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("a/b/c");
    std::fs::create_dir_all(&dir).unwrap();
    for n in 0..20 {
        std::fs::write(dir.join(n.to_string()), vec![0; n]).unwrap();
    }
    symlink(dir.join("9"), dir.join("link")).unwrap();
    symlink(dir.join("nothing"), dir.join("dangling")).unwrap();
    let prefetch = PrefetchOptions::new()
        .root(root.path())
        .run(PrefetchRun::Inline);
    let cache = CacheOptions::new()
        .immutable(true)
        .prefetch(prefetch)
        .build()
        .unwrap();
    for name in ["0", "1", "2"] {
        cache.stat(dir.join(name)).unwrap();
    }
    let calls = cache.metrics().backend_calls;
    for name in (0..20).map(|n| n.to_string()).chain(["link".to_owned()]) {
        let theirs = Attributes::from(&std::fs::metadata(dir.join(&name)).unwrap());
        assert_eq!(cache.stat(dir.join(&name)).unwrap(), theirs, "{name}");
    }
    assert_eq!(cache.metrics().backend_calls, calls);
    // A pass follows links, a listing does not: so it is asked for.
    assert_eq!(
        cache.list(&dir).unwrap().get("link"),
        Some(EntryKind::Symlink)
    );
}

#[test]
fn contents_are_fetched_into_the_page_cache() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, vec![7; 300_000]).unwrap();
    let cache = CacheOptions::new()
        .file_ttl(Duration::from_nanos(1))
        .build()
        .unwrap();
    cache.stat(&path).unwrap();
    let budget = WarmupBudget::new().contents(1 << 20);
    let report = cache.warm_up(budget).unwrap().wait();
    assert_eq!((report.fetched, report.contents), (1, 300_000));
    assert!(report.complete);
}

#[test]
fn a_child_is_told_that_the_cache_is_not_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let prefetch = PrefetchOptions::new().root("/").depth(1);
    let cache = CacheOptions::new().prefetch(prefetch).build().unwrap();
    for _ in 0..4 {
        cache.stat(dir.path()).unwrap(); // also starts the thread
    }
    let warmup = cache.warm_up(WarmupBudget::new()).unwrap();
    let done = warmup.wait();
    assert_ne!(done, WarmupReport::default());
    let forked = |error: feedwater::Error| matches!(error.kind(), ErrorKind::Forked);
    // SAFETY: the child looks at a generation, drops what takes no lock, and leaves through `_exit`.
    let status = unsafe {
        match libc::fork() {
            0 => {
                let ok = cache.stat(dir.path()).is_err_and(forked)
                    && cache.list(dir.path()).is_err_and(forked)
                    && cache.warm_up(WarmupBudget::new()).is_err_and(forked)
                    && cache.roots().is_empty()
                    && warmup.report().is_none()
                    && warmup.wait() == WarmupReport::default();
                warmup.pause();
                warmup.resume();
                warmup.stop();
                cache.invalidate(dir.path());
                drop(cache);
                libc::_exit(if ok { 0 } else { 1 })
            }
            child => {
                let mut status = -1;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                status
            }
        }
    };
    assert_eq!(status, 0);
    cache.stat(dir.path()).unwrap();
}
