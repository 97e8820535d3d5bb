//! No answer is older than it may be; what was written is seen at once after it was invalidated.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedwater::cache::{Departure, ManualClock, Presence, Validation};
use feedwater::{ErrorKind, Version};
use proptest::prelude::*;

use crate::support::{Door, Fake, attributes, options, tag};

#[test]
fn a_second_question_costs_no_call_until_the_answer_is_too_old() {
    let (fake, clock) = (Arc::new(Fake::with(["/a/f"])), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).build().unwrap();
    assert_eq!(cache.stat("/a/f").unwrap(), attributes(1));
    fake.put("/a/f", 2);
    clock.advance(Duration::from_millis(1999));
    assert_eq!(cache.stat("/a//f/").unwrap().size(), 1);
    assert_eq!(fake.stats(), 1);
    clock.advance(Duration::from_millis(1));
    assert_eq!(cache.stat("/a/f").unwrap().size(), 2);
    assert_eq!(cache.list("/a").unwrap().len(), 1);
    fake.put("/a/g", 1);
    clock.advance(Duration::from_secs(29));
    assert_eq!(cache.list("/a").unwrap().len(), 1);
    clock.advance(Duration::from_secs(1));
    assert_eq!(cache.list("/a/.").unwrap().len(), 2);
    let metrics = cache.metrics();
    assert_eq!((metrics.hits, metrics.misses, metrics.stale), (2, 4, 2));
    assert_eq!(metrics.backend_calls, 4);
}

#[test]
fn immutable_answers_never_grow_too_old_but_can_be_invalidated() {
    let (fake, clock) = (Arc::new(Fake::with(["/a/f"])), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).immutable(true).build().unwrap();
    cache.stat("/a/f").unwrap();
    cache.list("/a").unwrap();
    fake.put("/a/f", 2);
    fake.put("/a/g", 2);
    clock.advance(Duration::from_secs(1_000_000));
    assert_eq!(cache.stat("/a/f").unwrap().size(), 1);
    assert_eq!(cache.list("/a").unwrap().len(), 1);
    cache.invalidate("/a/f");
    assert_eq!(cache.stat("/a/f").unwrap().size(), 2);
    assert_eq!(cache.list("/a").unwrap().len(), 2);
}

#[test]
fn an_absent_path_is_asked_each_time_unless_that_is_wanted_otherwise() {
    let (fake, clock) = (Arc::new(Fake::with(["/a/f"])), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).build().unwrap();
    for _ in 0..3 {
        let error = cache.stat("/a/no").unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io { op: "stat", .. }));
        assert_eq!(error.io_kind(), std::io::ErrorKind::NotFound);
    }
    assert_eq!(fake.stats(), 3);
    let why = cache.explain("/a/no").attributes;
    assert!(
        matches!(
            why,
            Presence::Gone {
                why: Departure::Failed,
                ..
            }
        ),
        "{why:?}"
    );

    let second = Some(Duration::from_secs(1));
    let cache = options(&fake, &clock).negative_ttl(second).build().unwrap();
    cache.stat("/a/no").unwrap_err();
    fake.put("/a/no", 1);
    cache.stat("/a/no").unwrap_err();
    assert_eq!(fake.stats(), 4);
    clock.advance(Duration::from_secs(1));
    cache.stat("/a/no").unwrap();
    fake.remove("/a/no");
    cache.invalidate("/a/no");
    cache.stat("/a/no").unwrap_err();
}

#[test]
fn a_parsed_value_lasts_as_long_as_the_version() {
    let (fake, clock) = (Arc::new(Fake::default()), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).build().unwrap();
    let get = |version: &Version, text: &'static str| {
        let load = || Ok((text.to_owned(), 100));
        (*cache.parsed::<String>("/f", version, load).unwrap()).clone()
    };
    assert_eq!(get(&tag(1), "one"), "one");
    assert_eq!((cache.metrics().hits, cache.metrics().misses), (0, 1));
    clock.advance(Duration::from_secs(1_000_000));
    assert_eq!(get(&tag(1), "again"), "one");
    assert_eq!(get(&tag(2), "two"), "two");
    // Another type is another value.
    let number = cache.parsed::<u64>("/f", &tag(2), || Ok((7, 8))).unwrap();
    assert_eq!((*number, get(&tag(2), "again")), (7, "two".to_owned()));
    assert_eq!(cache.explain("/f").parsed, 2);
    cache.invalidate("/f");
    assert_eq!(cache.explain("/f").parsed, 0);
    assert_eq!(get(&tag(2), "anew"), "anew");
    assert_eq!(cache.metrics().stale, 1);
}

#[test]
fn an_open_file_is_compared_with_what_is_kept_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "one").unwrap();
    let hour = Duration::from_secs(3600);
    let cache = feedwater::cache::CacheOptions::new()
        .file_ttl(hour)
        .build()
        .unwrap();
    let version = |path: &Path| {
        let reader = cache.open(path).unwrap();
        feedwater::Reader::source(&*reader).version().clone()
    };
    let first = version(&path);
    assert_eq!(cache.validate(&path, &first), Validation::Unknown);
    assert_eq!(cache.stat(&path).unwrap().version, first);
    assert_eq!(cache.validate(&path, &first), Validation::Same);
    let load = || Ok((1u32, 4));
    cache.parsed::<u32>(&path, &first, load).unwrap();

    // Another name for it changes only the change time.
    std::fs::hard_link(&path, dir.path().join("g")).unwrap();
    let touched = feedwater::open(&path).unwrap();
    let touched = feedwater::Reader::source(&*touched).version().clone();
    assert_eq!(touched, first);
    assert_eq!(cache.validate(&path, &touched), Validation::Revalidate);
    let reloaded = cache.parsed::<u32>(&path, &touched, || Ok((2, 4))).unwrap();
    assert_eq!(*reloaded, 2);

    assert_eq!(cache.stat(&path).unwrap().size(), 3);
    std::fs::write(&path, "three").unwrap();
    assert_eq!(cache.stat(&path).unwrap().size(), 3);
    let changed = version(&path); // `open` validates
    assert_eq!(cache.stat(&path).unwrap().version, changed);
    assert_eq!(cache.stat(&path).unwrap().size(), 5);
}

#[test]
fn objects_are_compared_by_their_entity_tags() {
    let (fake, clock) = (Arc::new(Fake::with(["/a/f"])), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).immutable(true).build().unwrap();
    assert_eq!(cache.validate("/a/f", &tag(1)), Validation::Unknown);
    assert_eq!(cache.stat("/a/f").unwrap().version, tag(1));
    assert_eq!(cache.validate("/a/f", &tag(1)), Validation::Same);
    fake.put("/a/f", 2);
    assert_eq!(cache.validate("/a/f", &tag(2)), Validation::Changed);
    assert_eq!(cache.stat("/a/f").unwrap().version, tag(2));
    // One that was absent and is there.
    let second = Some(Duration::from_secs(1));
    let cache = options(&fake, &clock).negative_ttl(second).build().unwrap();
    cache.stat("/a/g").unwrap_err();
    fake.put("/a/g", 1);
    assert_eq!(cache.validate("/a/g", &tag(1)), Validation::Changed);
    assert_eq!(cache.stat("/a/g").unwrap().size(), 1);
}

#[test]
fn what_is_being_loaded_is_explained_so() {
    let (fake, clock) = (Arc::new(Fake::with(["/a/f"])), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).build().unwrap();
    let door = Arc::new(Door::default());
    let inside = door.clone();
    fake.on_call(move |_| inside.pass());
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| cache.stat("/a/f"));
        door.came(1);
        assert_eq!(cache.explain("/a/f").attributes, Presence::Loading);
        door.open();
        asking.join().unwrap().unwrap();
    });
    let text = cache.explain("/a/f").to_string();
    assert!(
        text.contains("attributes: there, since somebody asked"),
        "{text}"
    );
    clock.advance(Duration::from_secs(2));
    let why = cache.explain("/a/f").attributes;
    assert_eq!(
        why,
        Presence::TooOld {
            age: Duration::from_secs(2)
        }
    );
}

#[derive(Clone, Debug)]
enum Step {
    Stat(u8),
    StatAll,
    List,
    Write(u8),
    Create,
    Remove,
    Invalidate(u8),
    InvalidateTree,
    Wait(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u8..6).prop_map(Step::Stat),
        1 => Just(Step::StatAll),
        2 => Just(Step::List),
        3 => (0u8..6).prop_map(Step::Write),
        1 => Just(Step::Create),
        1 => Just(Step::Remove),
        1 => (0u8..6).prop_map(Step::Invalidate),
        1 => Just(Step::InvalidateTree),
        3 => (0u16..1500).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..120)
}

/// What something was, until when.
#[derive(Debug)]
struct Past<T> {
    was: Vec<(T, Until)>,
    /// The step of the last invalidation.
    since: usize,
}

/// Time, and step, at which it was replaced.
type Until = Option<(u64, usize)>;

impl<T: PartialEq> Past<T> {
    fn new(first: T) -> Self {
        Past {
            was: vec![(first, None)],
            since: 0,
        }
    }

    fn now(&self) -> &T {
        &self.was.last().unwrap().0
    }

    fn replace(&mut self, new: T, now: u64, step: usize) {
        self.was.last_mut().unwrap().1 = Some((now, step));
        self.was.push((new, None));
    }

    /// Whether it was this less than `ttl` ago and after the last invalidation.
    fn may_be(&self, got: &T, now: u64, ttl: u64) -> bool {
        let held =
            |until: Until| until.is_none_or(|(at, step)| now < at + ttl && step >= self.since);
        self.was
            .iter()
            .any(|(was, until)| was == got && held(*until))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With and without passes, each answer is one that was true within the time to live, and since the last invalidation.
    #[test]
    fn no_answer_is_older_than_it_may_be(steps in steps(), prefetch: bool) {
        const FILE_TTL: u64 = 2000;
        const LISTING_TTL: u64 = 5000;
        let clock = Arc::new(ManualClock::new());
        let path = |n: u8| format!("/r/a/b/c/{n}");
        let fake = Arc::new(Fake::with((0..6).map(path)));
        let mut asked = feedwater::cache::PrefetchOptions::new()
            .run(feedwater::cache::PrefetchRun::Inline);
        if prefetch {
            asked = asked.root("/r");
        }
        let cache = options(&fake, &clock)
            .listing_ttl(Duration::from_millis(LISTING_TTL))
            .prefetch(asked)
            .build()
            .unwrap();
        let mut now = 0u64;
        let mut files: [Past<u64>; 6] = std::array::from_fn(|_| Past::new(1));
        // How many names there are: six, and those that were created.
        let mut names = Past::new(6usize);
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Stat(n) => {
                    let got = cache.stat(path(n)).unwrap().size();
                    prop_assert!(files[n as usize].may_be(&got, now, FILE_TTL), "{}", got);
                }
                Step::StatAll => {
                    let all = cache.stat_many((0..6).map(path));
                    for (file, got) in files.iter().zip(all) {
                        let got = got.unwrap().size();
                        prop_assert!(file.may_be(&got, now, FILE_TTL), "{}", got);
                    }
                }
                Step::List => {
                    let got = cache.list("/r/a/b/c").unwrap().len();
                    prop_assert!(names.may_be(&got, now, LISTING_TTL), "{}", got);
                }
                Step::Write(n) => {
                    let new = files[n as usize].now() + 1;
                    files[n as usize].replace(new, now, number);
                    fake.put(path(n), new);
                }
                Step::Create => {
                    let count = *names.now();
                    fake.put(path(count as u8), 1);
                    names.replace(count + 1, now, number);
                }
                Step::Remove if *names.now() > 6 => {
                    let count = *names.now() - 1;
                    fake.remove(path(count as u8));
                    names.replace(count, now, number);
                }
                Step::Remove => {}
                Step::Invalidate(n) => {
                    cache.invalidate(path(n));
                    files[n as usize].since = number;
                    // Its directory's listing goes too.
                    names.since = number;
                }
                Step::InvalidateTree => {
                    cache.invalidate_tree("/r/a");
                    files.iter_mut().for_each(|file| file.since = number);
                    names.since = number;
                }
                Step::Wait(by) => {
                    clock.advance(Duration::from_millis(u64::from(by)));
                    now += u64::from(by);
                }
            }
        }
    }
}
