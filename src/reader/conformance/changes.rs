//! Files that change, are replaced or unlinked under an open reader.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::support::{Context, Fixture, host, in_order, same};
use super::{Changes, Content, Verdict};
use crate::error::{Error, ErrorKind};
use crate::reader::{Batch, ReaderExt};
use crate::version::{FileVersion, Version};

const LEN: u64 = 100_003;

/// The version of a file by what std tells, so that it does not rest on the code under test.
fn version(path: &Path) -> FileVersion {
    FileVersion::from(&fs::metadata(path).expect("metadata"))
}

/// A reader of a file that may be changed.
fn file(cx: &Context) -> Result<(Fixture, PathBuf), &'static str> {
    let f = cx.open(LEN);
    let path = f.opened.path().map(Path::to_owned);
    let path = path.ok_or("no file behind it that could be changed")?;
    Ok((f, path))
}

/// As [`file`], unless the subject does not notice changes that leave reads whole.
fn noticing(cx: &Context) -> Result<(Fixture, PathBuf), &'static str> {
    match cx.can.changes {
        Changes::Promised => Err("the caller promised that the file does not change"),
        Changes::NoticedWhenShort => Err("versions are compared only after short reads"),
        Changes::Noticed => file(cx),
    }
}

fn is_changed(error: &Error, opened: &FileVersion, path: &Path) {
    let ErrorKind::Changed {
        opened: Version::File(was),
        found: Version::File(is),
    } = error.kind()
    else {
        panic!("Changed, naming two versions of a file, expected; got: {error}");
    };
    assert_eq!(was, opened, "the version that was opened");
    assert_eq!(is, &version(path), "the version that was found");
    assert!(error.offset().is_some(), "no offset in: {error}");
}

/// Reads in all ways; each has to fail, also when tried again.
fn all_changed(f: &Fixture, opened: &FileVersion, path: &Path) {
    for _ in 0..2 {
        let batch = Batch::of([0..LEN, 60_000..70_000, LEN - 1..LEN]);
        for outcome in in_order(f.reader().submit(batch), 3) {
            is_changed(&outcome.unwrap_err().error, opened, path);
        }
        let error = f.reader().read_at(70_000, &mut [0; 100]).unwrap_err();
        is_changed(&error, opened, path);
    }
}

pub(super) fn truncated(cx: &Context) -> Verdict {
    if cx.can.changes == Changes::Promised {
        return Err("the caller promised that the file does not change".into());
    }
    let (f, path) = file(cx)?;
    let opened = version(&path);
    f.read(&[0..10_000]);
    let before = f.reader().read(0..50_000).wait().unwrap();
    File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(10_000))
        .expect("truncating");
    let reads = [
        0..5_000,
        5_000..LEN,
        20_000..30_000,
        9_999..10_001,
        LEN - 1..LEN,
    ];
    let outcomes = in_order(f.reader().submit(Batch::of(reads.clone())), reads.len());
    for (range, outcome) in reads.iter().zip(outcomes) {
        match outcome {
            // Bytes that are still there may be delivered if a read that is not short is not checked.
            Ok(block) if range.end <= 10_000 => same(range, host(&block), f.at(range)),
            Ok(_) => panic!("{range:?} of a file of 10000 bytes was delivered"),
            Err(failed) => is_changed(&failed.error, &opened, &path),
        }
    }
    let mut buf = [0; 4_096];
    for offset in [9_000, 50_000] {
        let error = f.reader().read_at(offset, &mut buf).unwrap_err();
        is_changed(&error, &opened, &path);
    }
    same(&(0..50_000), &before, f.at(&(0..50_000)));
    Ok(())
}

pub(super) fn rewritten(cx: &Context) -> Verdict {
    let (f, path) = noticing(cx)?;
    let opened = version(&path);
    f.read(&[0..LEN]);
    let other = Content::dense(!cx.subject.seed(), LEN);
    let file = File::options().write(true).open(&path).expect("the file");
    file.write_all_at(&other.range(0..LEN), 0).expect("writing");
    let modified = file.metadata().and_then(|data| data.modified());
    // Set by hand, as a clock that ticks slowly may not have moved yet.
    let later = modified.expect("mtime") + Duration::from_secs(10);
    file.set_modified(later).expect("setting mtime");
    all_changed(&f, &opened, &path);
    Ok(())
}

pub(super) fn appended(cx: &Context) -> Verdict {
    let (f, path) = noticing(cx)?;
    let opened = version(&path);
    let file = File::options().write(true).open(&path).expect("the file");
    file.write_all_at(b"more", LEN).expect("writing");
    all_changed(&f, &opened, &path);
    Ok(())
}

/// The content that was opened, in all ways.
fn all_old(f: &Fixture) {
    f.read(&[0..LEN, 60_000..70_000, LEN - 1..LEN]);
    let range = 512..4_608;
    let mut buf = [0; 4_096];
    f.reader().read_at(range.start, &mut buf).unwrap();
    same(&range, &buf, f.at(&range));
}

pub(super) fn replaced(cx: &Context) -> Verdict {
    let (f, path) = file(cx)?;
    let mut new = path.clone().into_os_string();
    new.push(".new");
    let other = Content::dense(!cx.subject.seed(), LEN);
    other.write_to(Path::new(&new)).expect("writing");
    fs::rename(&new, &path).expect("renaming");
    all_old(&f);
    Ok(())
}

pub(super) fn unlinked(cx: &Context) -> Verdict {
    let (f, path) = file(cx)?;
    fs::remove_file(&path).expect("unlinking");
    all_old(&f);
    Ok(())
}
