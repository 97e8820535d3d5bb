//! Where records begin, found on the device, beside the host.

use feedwater::cuda::{Device, DeviceOptions, Guard};
use feedwater::tfrecord::{
    AtMost, Boundaries, ExampleSchema, Feature, Index, OnCorrupt, RecordOptions, ValueType,
};
use feedwater::{ErrorKind, RecordCheck};

use crate::beside::*;
use crate::messages::{bytes, example, ints};
use crate::support::*;
use crate::values::records;

fn schema() -> ExampleSchema {
    ExampleSchema::new()
        .with(Feature::scalar("id", ValueType::Int64).required())
        .with(Feature::scalar("file", ValueType::Binary))
}

/// Examples that hold TFRecord files: theirs, and headers that lead anywhere.
fn nested(count: i64) -> Vec<Vec<u8>> {
    let inner = |id: i64| {
        let mut inner = Vec::new();
        for at in 0..id % 4 {
            inner.extend(framed(&vec![at as u8; (id as usize * 13) % 40]));
        }
        match id % 5 {
            // A header whose record would reach far behind this one, or to the end of the file and beyond.
            1 => inner.extend(header(100 + id as u64 * 3)),
            2 => inner.extend(header(u64::MAX - 20)),
            3 => inner.extend(header(1 << 40)),
            _ => {}
        }
        inner
    };
    let record = |id: i64| example([("id", ints([id])), ("file", bytes([&inner(id)]))]);
    (0..count).map(record).collect()
}

/// All ways to find them, for one file. The device's has to be the device's to the end.
fn every_way(
    gpu: &std::sync::Arc<Device>,
    bytes: &[u8],
    schema: &ExampleSchema,
    windows: &[usize],
) {
    let options = RecordOptions::new();
    compare(gpu, bytes, &options, schema, |scan| scan);
    for &window in windows {
        let (_, report) = compare(gpu, bytes, &options, schema, |scan| {
            scan.boundaries(Boundaries::Device).window_bytes(window)
        });
        assert_eq!(report.boundaries, "the GPU, in windows of the file");
    }
    // Whoever has the offsets, of a file that is sound.
    if let Ok(index) = Index::build(open(gpu, bytes)) {
        for &window in windows {
            let (_, report) = compare(gpu, bytes, &options, schema, |scan| {
                scan.index(&index).window_bytes(window)
            });
            assert_eq!(report.boundaries, "an index");
        }
    }
}

#[test]
fn records_that_hold_records_are_not_taken_for_several() {
    let bytes = file(&nested(21));
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            // All of it; windows that end anywhere; windows of less than a header.
            every_way(&gpu, &bytes, &schema(), &[1 << 20, 257, 5]);
        }
        nothing_left(&session);
    }
}

#[test]
fn no_race_and_no_access_outside_in_any_order_of_threads() {
    let bytes = file(&nested(12));
    for order in ["in-order", "reversed", "shuffled:3", "apart"] {
        let mut session = session("lazy");
        session.set("CHECKS", "all");
        session.set("SCHEDULE", order);
        {
            let gpu = DeviceOptions::default()
                .guard(Guard::Separate)
                .open(0)
                .unwrap();
            every_way(&gpu, &bytes, &schema(), &[1 << 20, 301]);
        }
        nothing_left(&session);
    }
}

#[test]
fn files_without_records_and_with_empty_ones() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let optional = ExampleSchema::new().with(Feature::scalar("id", ValueType::Int64));
        for records in [0, 1, 40] {
            let bytes = file(&vec![Vec::new(); records]);
            every_way(&gpu, &bytes, &optional, &[1 << 20, 40, 3]);
        }
        every_way(&gpu, &file(&records(40)), &all_kinds(), &[4096]);
    }
    nothing_left(&session);
}

/// A file that ends at each of its bytes.
#[test]
fn the_end_of_a_file_that_was_cut_is_the_hosts_error() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let bytes = file(&nested(4));
        for end in 0..bytes.len() {
            // All around the end of the last record but one, and some within.
            let last = bytes.len() - end;
            if end % 19 == 0 || end < 14 || (last % 3 == 0 && last < 100) {
                compare(
                    &gpu,
                    &bytes[..end],
                    &RecordOptions::new(),
                    &schema(),
                    |scan| scan.boundaries(Boundaries::Device).window_bytes(100),
                );
            }
        }
    }
    nothing_left(&session);
}

#[test]
fn headers_that_are_wrong_are_the_hosts_error() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let good = file(&nested(5));
        let lengths = [
            1u64 << 63,
            u64::MAX,
            u64::MAX - 11,
            u64::MAX - 15,
            u64::MAX - 16,
            1 << 40,
            1 << 41,
            good.len() as u64,
            good.len() as u64 - 15,
            3,
        ];
        for length in lengths {
            for behind in [&[][..], &[7; 50]] {
                let bytes = [&good[..], &header(length), behind].concat();
                every_way(&gpu, &bytes, &schema(), &[333]);
            }
            // As the first one.
            every_way(&gpu, &header(length), &schema(), &[1 << 20]);
        }
        // Other files: a pointer of Git LFS, text, zeros.
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nsize 12345\n";
        every_way(&gpu, pointer.as_bytes(), &schema(), &[1 << 20, 50]);
        every_way(&gpu, &[b'x'; 5000], &schema(), &[1 << 20, 50]);
        every_way(&gpu, &[0; 5000], &schema(), &[1 << 20, 50]);
    }
    nothing_left(&session);
}

#[test]
fn a_cap_on_records_holds_on_the_device() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let bytes = file(&records(30));
        let options = RecordOptions::new().max_record(500);
        for boundaries in [Boundaries::Host, Boundaries::Device] {
            let (outcome, _) = compare(&gpu, &bytes, &options, &all_kinds(), |scan| {
                scan.boundaries(boundaries).window_bytes(2000)
            });
            let error = outcome.error.unwrap();
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::CorruptRecord {
                        check: RecordCheck::Length { most: 500, .. },
                        ..
                    }
                ),
                "{error}"
            );
        }
    }
    nothing_left(&session);
}

#[test]
fn an_index_of_another_file_is_refused_and_one_that_is_stale_is_seen() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let bytes = file(&nested(20));
        let index = Index::build(open(&gpu, &bytes)).unwrap();
        let scan = |bytes: &[u8]| {
            let scan = feedwater::tfrecord::examples(open(&gpu, bytes)).schema(schema());
            scan.on_device(&gpu).index(&index)
        };
        let error = scan(&bytes[..bytes.len() - 1]).batches().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
        // Two records changed places: the first of them is not where the index has it.
        let mut moved: Vec<_> = nested(20);
        moved.swap(6, 8);
        let moved = file(&moved);
        assert_eq!(moved.len(), bytes.len());
        let (outcome, report) = by_device(scan(&moved));
        assert_eq!(outcome.rows.num_rows(), 6, "{report}");
        let error = outcome.error.unwrap();
        let range = index.range(6).unwrap();
        let theirs = Index::build(open(&gpu, &bytes)).unwrap();
        drop(theirs);
        assert_eq!(error.offset(), Some(range.start));
        assert_eq!(error.length(), Some(range.end - range.start));
        assert!(
            matches!(
                error.kind(),
                ErrorKind::CorruptRecord {
                    record: 6,
                    check: RecordCheck::Length { .. }
                }
            ),
            "{error}"
        );
        // Not even without checksums of data, as everything behind a wrong length is wrong.
        let unchecked = RecordOptions::new().verify_data(false);
        let scan = feedwater::tfrecord::ExampleScan::new(open(&gpu, &moved), &unchecked);
        let (outcome, _) = by_device(scan.schema(schema()).on_device(&gpu).index(&index));
        assert_eq!(outcome.rows.num_rows(), 6);
        assert!(outcome.error.is_some());
    }
    nothing_left(&session);
}

#[test]
fn corrupt_records_are_left_out_by_the_host() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut bytes = file(&records(40));
        let at = file(&records(20)).len() + 40;
        bytes[at] ^= 8;
        let at = file(&records(30)).len() + 3;
        bytes[at] ^= 8;
        let options = RecordOptions::new().on_corrupt(OnCorrupt::Skip {
            at_most: AtMost::Any,
        });
        let (outcome, report) = compare(&gpu, &bytes, &options, &all_kinds(), |scan| {
            scan.boundaries(Boundaries::Device)
        });
        assert_eq!(outcome.rows.num_rows(), 38);
        assert_eq!(report.gpu.rows, 38);
        let why = "the host, while bytes pass, as corrupt records are left out";
        assert_eq!((&*report.boundaries, &*report.checksums), (why, "the host"));
        let mut rest = records(40);
        rest.remove(30);
        rest.remove(20);
        let lost = file(&records(40)).len() - file(&rest).len();
        let skipped = (report.skipped.records(), report.skipped.bytes());
        assert_eq!(skipped, (2, lost as u64));
        assert_eq!(report.skipped.list()[1].record, 30);
        let said = format!("left out, as they are corrupt: 2 records of {lost} bytes\n");
        assert!(report.to_string().contains(&said), "{report}");
    }
    nothing_left(&session);
}
