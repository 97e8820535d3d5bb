//! Records by number, and the file that an index is kept in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use feedwater::tfrecord::{AtMost, Compression, Index, OnCorrupt, RecordOptions, Sidecar};
use feedwater::{ErrorKind, Opened, Reader, ReaderExt, RecordCheck};
use futures::executor::block_on;

use crate::support::{OVERHEAD, file_of, memory, small_chunks, varied, write};

struct File {
    dir: tempfile::TempDir,
    records: Vec<Vec<u8>>,
}

impl File {
    fn new(count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let records = varied(count);
        write(&dir.path().join("records"), &records, Compression::None);
        File { dir, records }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("records")
    }

    fn sidecar(&self) -> PathBuf {
        self.dir.path().join("records.index")
    }

    fn beside(&self) -> Index<Opened> {
        Index::with_sidecar(feedwater::open(self.path()).unwrap(), self.sidecar()).unwrap()
    }
}

#[test]
fn the_file_is_not_replaced_by_its_own_index() {
    let file = File::new(3);
    let before = std::fs::read(file.path()).unwrap();
    let link = file.dir.path().join("link");
    std::os::unix::fs::symlink(file.path(), &link).unwrap();
    for path in [file.path(), link] {
        let reader = feedwater::open(file.path()).unwrap();
        let error = Index::with_sidecar(reader, &path).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
        assert_eq!(std::fs::read(file.path()).unwrap(), before);
    }
}

#[test]
fn records_come_by_number_in_any_order_and_any_number_of_times() {
    let records = varied(300);
    let reader = memory(file_of(&records, Compression::None));
    for size in [5, 1000, 1 << 20] {
        let index = small_chunks(size).index(reader.clone()).unwrap();
        assert_eq!((index.len(), index.is_empty()), (300, false));
        assert!(matches!(index.sidecar(), Sidecar::None));
        for number in [0, 1, 150, 299] {
            assert_eq!(index.get(number).wait().unwrap(), records[number as usize]);
            assert_eq!(
                block_on(index.get(number)).unwrap(),
                records[number as usize]
            );
            let range = index.range(number).unwrap();
            let len = records[number as usize].len() + OVERHEAD;
            assert_eq!(range.end - range.start, len as u64);
        }
        let numbers: Vec<u64> = (0..500).map(|i| i * 7919 % 300).collect();
        let expected: Vec<_> = numbers.iter().map(|n| &records[*n as usize][..]).collect();
        assert_eq!(index.get_many(numbers.clone()).wait().unwrap(), expected);
        assert_eq!(block_on(index.get_many(numbers)).unwrap(), expected);
        assert!(index.get_many([]).wait().unwrap().is_empty());
    }
    let none = Index::build(memory("")).unwrap();
    assert_eq!((none.len(), none.range(0)), (0, None));
    let in_a_task = block_on(small_chunks(1000).index_async(reader.clone())).unwrap();
    assert_eq!(in_a_task.get(150).wait().unwrap(), records[150]);
    let in_a_task = block_on(Index::build_async(reader)).unwrap();
    assert_eq!(in_a_task.len(), 300);
}

#[test]
fn what_is_not_there_is_not_found() {
    let index = Index::build(memory(file_of(&varied(4), Compression::None))).unwrap();
    for number in [4, u64::MAX] {
        assert_eq!(index.range(number), None);
        for error in [
            index.get(number).wait().unwrap_err(),
            block_on(index.get_many([0, number])).unwrap_err(),
        ] {
            assert!(
                matches!(error.kind(), ErrorKind::NotFound { .. }),
                "{error}"
            );
            assert!(
                error
                    .to_string()
                    .contains(&format!("record {number}: there are 4"))
            );
        }
    }
}

/// Building asks for each byte once; getting asks for the frames of the records alone.
#[test]
fn requests_are_those_that_are_needed() {
    let bytes = file_of(&varied(300), Compression::None);
    let len = bytes.len() as u64;
    let reader = memory(bytes);
    let index = small_chunks(4096).index(reader.clone()).unwrap();
    let built = reader.source().counters().snapshot();
    assert_eq!((built.requested, built.requests), (len, len.div_ceil(4096)));
    let numbers = [5, 200, 7];
    index.get_many(numbers).wait().unwrap();
    let frames: u64 = numbers
        .iter()
        .map(|n| index.range(*n).unwrap())
        .map(|range| range.end - range.start)
        .sum();
    let after = reader.source().counters().snapshot();
    assert_eq!(after.requested - built.requested, frames);
}

#[test]
fn each_record_is_checked_when_it_is_read() {
    let file = File::new(5);
    let bytes = std::fs::read(file.path()).unwrap();
    let index = Index::build(memory(bytes.clone())).unwrap();
    let start = index.range(4).unwrap().start as usize;
    // An index that is right for the file but not for these bytes, as a hostile sidecar would make.
    let cases = [
        (start, RecordCheck::LengthChecksum),
        (start + 9, RecordCheck::LengthChecksum),
        (start + 12, RecordCheck::DataChecksum),
        (bytes.len() - 1, RecordCheck::DataChecksum),
    ];
    for (at, check) in cases {
        let _ = std::fs::remove_file(file.sidecar());
        std::fs::write(file.path(), &bytes).unwrap();
        drop(file.beside());
        let mtime = std::fs::metadata(file.path()).unwrap().modified().unwrap();
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        std::fs::write(file.path(), damaged).unwrap();
        std::fs::File::options()
            .append(true)
            .open(file.path())
            .unwrap()
            .set_modified(mtime)
            .unwrap();
        let index = file.beside();
        assert!(matches!(index.sidecar(), Sidecar::Read));
        assert_eq!(index.get(3).wait().unwrap(), file.records[3]);
        for error in [
            index.get(4).wait().unwrap_err(),
            block_on(index.get(4)).unwrap_err(),
        ] {
            assert!(
                matches!(*error.kind(), ErrorKind::CorruptRecord { record: 4, check: c } if c == check),
                "{error}"
            );
            assert_eq!(error.offset(), Some(start as u64));
            assert_eq!(error.name(), file.path().to_str());
        }
    }
}

#[test]
fn an_index_is_kept_beside_the_file_until_that_changes() {
    let mut file = File::new(40);
    assert!(matches!(file.beside().sidecar(), Sidecar::Written));
    let reader = feedwater::open(file.path()).unwrap();
    let index = Index::with_sidecar(reader.clone(), file.sidecar()).unwrap();
    assert!(matches!(index.sidecar(), Sidecar::Read));
    assert_eq!(
        reader.source().counters().snapshot().requested,
        0,
        "nothing of the file was read"
    );
    assert_eq!(index.get(39).wait().unwrap(), file.records[39]);
    // Two or three bytes for each record.
    let size = std::fs::metadata(file.sidecar()).unwrap().len();
    assert!(size < 60 + 3 * 40, "{size}");
    // Another file in its place, of the same length.
    file.records.reverse();
    write(&file.path(), &file.records, Compression::None);
    let index = file.beside();
    assert!(matches!(index.sidecar(), Sidecar::Written));
    assert_eq!(index.get(0).wait().unwrap(), file.records[0]);
    assert!(matches!(file.beside().sidecar(), Sidecar::Read));
}

#[test]
fn a_damaged_sidecar_is_as_good_as_none() {
    let file = File::new(40);
    drop(file.beside());
    let good = std::fs::read(file.sidecar()).unwrap();
    let longer = [&good[..], &good].concat();
    let cut = &good[..good.len() - 1];
    let mut flipped = good.clone();
    flipped[50] ^= 1;
    for bad in [&longer[..], cut, &flipped, &good[..5], b""] {
        std::fs::write(file.sidecar(), bad).unwrap();
        let index = file.beside();
        assert!(matches!(index.sidecar(), Sidecar::Written));
        assert_eq!(index.get(17).wait().unwrap(), file.records[17]);
        assert_eq!(std::fs::read(file.sidecar()).unwrap(), good);
    }
}

/// Who confuses two paths loses no file.
#[test]
fn a_file_that_is_no_index_is_not_replaced_by_one() {
    let file = File::new(40);
    let other = file_of(&varied(3), Compression::None);
    for content in [
        &b"text"[..],
        &[0; 1 << 20],
        b"FWTFRIX2 of another version",
        &other,
    ] {
        std::fs::write(file.sidecar(), content).unwrap();
        let index = file.beside();
        let Sidecar::NotWritten(error) = index.sidecar() else {
            panic!("{:?}", index.sidecar());
        };
        assert!(matches!(error.kind(), ErrorKind::AlreadyExists), "{error}");
        assert_eq!(error.name(), file.sidecar().to_str());
        assert_eq!(index.get(17).wait().unwrap(), file.records[17]);
        assert_eq!(std::fs::read(file.sidecar()).unwrap(), content);
    }
}

#[test]
fn an_index_that_cannot_be_kept_is_good_all_the_same() {
    let file = File::new(40);
    for path in [
        file.dir.path().join("no-such/index"),
        file.dir.path().to_owned(),
    ] {
        let index = Index::with_sidecar(feedwater::open(file.path()).unwrap(), &path).unwrap();
        let Sidecar::NotWritten(error) = index.sidecar() else {
            panic!("{:?}", index.sidecar());
        };
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Io { .. } | ErrorKind::AlreadyExists
            ),
            "{error}"
        );
        assert_eq!(index.get(3).wait().unwrap(), file.records[3]);
    }
    let error = Index::with_sidecar(memory(""), file.sidecar()).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unsupported { .. }),
        "{error}"
    );
    assert!(!Path::new(&file.sidecar()).exists());
}

#[test]
fn files_that_have_no_index_say_why() {
    for compression in [Compression::Gzip, Compression::Zlib] {
        for count in [0, 20] {
            let reader = memory(file_of(&varied(count), compression));
            let error = Index::build(reader).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::UnsupportedFeature { .. }),
                "{error}"
            );
            assert_eq!(error.name(), Some("records"));
        }
    }
    let mut bytes = file_of(&varied(20), Compression::None);
    let at = bytes.len() - 1;
    bytes[at] ^= 1;
    let reader: Arc<dyn Reader> = memory(bytes);
    let error = Index::build(reader.clone()).unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::CorruptRecord {
                record: 19,
                check: RecordCheck::DataChecksum
            }
        ),
        "{error}"
    );
    let at_most = AtMost::Any;
    let skip = RecordOptions::new().on_corrupt(OnCorrupt::Skip { at_most });
    let error = skip.index(reader.clone()).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidOption { .. }),
        "{error}"
    );
    let index = RecordOptions::new()
        .verify_data(false)
        .index(reader)
        .unwrap();
    assert_eq!(index.len(), 20);
    assert_eq!(index.reader().len(), at as u64 + 1);
}
