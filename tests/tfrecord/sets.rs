//! Many files as one.

use std::path::Path;

use feedwater::tfrecord::{AtMost, Compression, OnCorrupt, RecordOptions, ShardSet};
use feedwater::{CachePolicy, ErrorKind, OpenOptions, RecordCheck};
use futures::StreamExt;
use futures::executor::block_on;

use crate::support::write;

/// Three records in each of `count` shards, named `{prefix}-…-of-…{suffix}`; returns the names.
fn shards(dir: &Path, prefix: &str, suffix: &str, count: usize) -> Vec<String> {
    let compression = if suffix == ".gz" {
        Compression::Gzip
    } else {
        Compression::None
    };
    let name = |shard| format!("{prefix}-{shard:05}-of-{count:05}{suffix}");
    for shard in 0..count {
        let records: Vec<_> = (0..3).map(|i| format!("{shard}.{i}")).collect();
        write(&dir.join(name(shard)), &records, compression);
    }
    (0..count).map(name).collect()
}

fn names(set: &ShardSet) -> Vec<String> {
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    set.paths().iter().map(name).collect()
}

#[test]
fn a_set_is_found_by_every_kind_of_name() {
    let dir = tempfile::tempdir().unwrap();
    let expected = shards(dir.path(), "train", ".gz", 12);
    shards(dir.path(), "train", ".other", 2);
    for name in [
        "train@12.gz",
        "train-*.gz",
        "train-?????-of-00012.gz",
        "tr*-of-00012.gz",
        "train-00007-of-00012.gz",
    ] {
        let set = ShardSet::find(dir.path().join(name)).unwrap();
        assert_eq!(names(&set), expected, "{name}");
    }
    // A glob that means a part gets that part.
    let set = ShardSet::find(dir.path().join("train-0000[2-4]-of-*.gz")).unwrap();
    assert_eq!(names(&set), expected[2..5]);
    let plain = dir.path().join("alone@2");
    write(&plain, &["x"], Compression::None);
    assert_eq!(names(&ShardSet::find(&plain).unwrap()), ["alone@2"]);
}

#[test]
fn a_missing_shard_is_noticed_however_the_pattern_is_spelled() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let expected = shards(&dir.path().join("sub"), "train", "", 3);
    std::fs::remove_file(dir.path().join("sub").join(&expected[1])).unwrap();
    for pattern in [
        "sub/train-*",
        "sub//train-*",
        ".//sub/./train-*",
        "sub/../sub/train-*",
        "*/train-*-of-00003",
        "**/train-*",
    ] {
        let error = ShardSet::find(dir.path().join(pattern)).unwrap_err();
        let ErrorKind::NotFound { what } = error.kind() else {
            panic!("{pattern}: {error}");
        };
        assert!(what.contains("train-00001-of-00003"), "{pattern}: {what}");
    }
}

#[test]
fn a_folder_is_no_shard() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("run-00001-of-00002.d");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("data");
    write(&file, &["x"], Compression::None);
    assert_eq!(ShardSet::find(&file).unwrap().paths(), [file]);
    let other = dir.path().join("run@2.d/other");
    assert_eq!(ShardSet::find(&other).unwrap().paths(), [other]);
}

#[test]
fn records_come_in_order_with_numbers_of_their_own_file() {
    let dir = tempfile::tempdir().unwrap();
    shards(dir.path(), "train", ".gz", 11);
    for policy in [CachePolicy::Auto, CachePolicy::Keep] {
        let set = ShardSet::find(dir.path().join("train@11.gz"))
            .unwrap()
            .open_with(OpenOptions::new().cache(policy));
        let options = RecordOptions::new();
        let blocking: Vec<_> = set.records(&options).map(Result::unwrap).collect();
        assert_eq!(blocking.len(), 33);
        for (i, record) in blocking.iter().enumerate() {
            assert_eq!((record.shard, record.number), (i / 3, i as u64 % 3));
            assert_eq!(record.data, format!("{}.{}", i / 3, i % 3));
        }
        let tasks = block_on(
            set.records(&options)
                .stream()
                .map(Result::unwrap)
                .collect::<Vec<_>>(),
        );
        assert_eq!(tasks, blocking);
        let frames: Vec<_> = set.frames(&options).map(Result::unwrap).collect();
        assert_eq!(frames.len(), 11);
        assert!(
            frames
                .iter()
                .enumerate()
                .all(|(i, f)| f.shard() == i && f.len() == 3)
        );
        let frames = block_on(set.frames(&options).stream().collect::<Vec<_>>());
        assert_eq!(frames.len(), 11);
    }
}

fn not_found(name: &Path) -> String {
    let error = ShardSet::find(name).unwrap_err();
    assert_eq!(error.name(), Some(name.to_str().unwrap()));
    match error.kind() {
        ErrorKind::NotFound { what } => what.to_string(),
        other => panic!("{other}"),
    }
}

#[test]
fn missing_shards_are_an_error_that_names_them() {
    let dir = tempfile::tempdir().unwrap();
    let all = shards(dir.path(), "train", "", 20);
    std::fs::remove_file(dir.path().join(&all[3])).unwrap();
    std::fs::remove_file(dir.path().join(&all[19])).unwrap();
    for name in [
        "train@20",
        "train-*",
        "train-00000-of-00020",
        "train-00003-of-00020",
    ] {
        let what = not_found(&dir.path().join(name));
        assert!(what.contains(&all[3]) && what.contains(&all[19]), "{what}");
        assert!(!what.contains(&all[4]) && !what.contains("more"), "{what}");
    }
    let set = ShardSet::find(dir.path().join("train-0001[0-8]-*")).unwrap();
    assert_eq!(set.paths().len(), 9);
    let what = not_found(&dir.path().join("nothing@1000"));
    assert!(
        what.contains("nothing-00009-of-01000") && what.contains("more"),
        "{what}"
    );
    assert!(!what.contains("nothing-00010-of-01000"), "{what}");
    assert_eq!(
        not_found(&dir.path().join("nothing-*")),
        "file that matches"
    );
}

#[test]
fn names_that_make_no_sense_are_refused() {
    for name in ["x@0", "x@1000001", "x-[-of", "a/***"] {
        let error = ShardSet::find(name).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{name}: {error}"
        );
    }
}

#[test]
fn a_file_that_is_gone_is_an_error_when_its_turn_comes() {
    let dir = tempfile::tempdir().unwrap();
    let all = shards(dir.path(), "train", "", 3);
    let set = ShardSet::find(dir.path().join("train@3")).unwrap();
    std::fs::remove_file(dir.path().join(&all[1])).unwrap();
    for stream in [false, true] {
        let records = set.records(&RecordOptions::new());
        let got: Vec<_> = if stream {
            block_on(records.stream().collect())
        } else {
            records.collect()
        };
        assert_eq!(got.len(), 4);
        assert!(got[..3].iter().all(Result::is_ok));
        let error = got[3].as_ref().unwrap_err();
        assert!(error.name().unwrap().ends_with(&all[1]), "{error}");
        assert!(
            matches!(error.kind(), ErrorKind::Io { op: "open", .. }),
            "{error}"
        );
    }
}

#[test]
fn damage_is_counted_over_all_files_and_placed_in_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let all = shards(dir.path(), "train", "", 3);
    for shard in [0, 2] {
        let path = dir.path().join(&all[shard]);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[19 + 12] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let set = ShardSet::of(all.iter().map(|name| dir.path().join(name)));
    let with = |most| {
        let at_most = AtMost::Records(most);
        set.records(&RecordOptions::new().on_corrupt(OnCorrupt::Skip { at_most }))
    };
    let mut records = with(2);
    assert_eq!(records.by_ref().filter(Result::is_ok).count(), 7);
    let skipped = records.skipped().list();
    let places: Vec<_> = skipped
        .iter()
        .map(|s| (s.shard, s.record, s.offset, s.check))
        .collect();
    let check = RecordCheck::DataChecksum;
    assert_eq!(places, [(0, 1, 19, check), (2, 1, 19, check)]);
    assert!(skipped[1].name.ends_with(&all[2]));
    let error = with(1).find_map(Result::err).unwrap();
    assert!(error.name().unwrap().ends_with(&all[2]), "{error}");
}

#[test]
fn a_set_of_no_files_has_no_records() {
    let set = ShardSet::of(Vec::<&str>::new());
    assert_eq!(set.records(&RecordOptions::new()).count(), 0);
    assert_eq!(
        block_on(set.records(&RecordOptions::new()).stream().count()),
        0
    );
}
