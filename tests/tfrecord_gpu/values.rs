//! Values of all kinds, beside the host.

use feedwater::cuda::{Device, DeviceOptions, Guard};
use feedwater::tfrecord::{
    Boundaries, Compression, ExampleSchema, Feature, RecordOptions, ShardSet, ValueType, Writer,
    WriterOptions,
};
use feedwater::{ErrorKind, Processor};

use crate::beside::*;
use crate::messages::{Kind, bytes, example, floats, ints};
use crate::support::*;

/// A record in which some features are missing, and the others have values of all lengths on the wire.
pub(crate) fn record(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let integer = |bits: u64, value: u64| (value & (u64::MAX >> (63 - bits % 64))).cast_signed();
    let text = |value: u64| "tëxt € 😀 ".repeat(value as usize % 5);
    let mut features: Vec<(&str, Kind)> = vec![("byte", ints([draw(256) as i64]))];
    let mut other = |name: &'static str, kind: Kind| {
        if draw(4) > 0 {
            features.push((name, kind));
        }
    };
    let mut state = seed.wrapping_add(77).wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    other("label", ints([integer(next(), next())]));
    other("small", ints([i64::from(next() as i32)]));
    other("x", floats([f32::from_bits(next() as u32)]));
    let image: Vec<u8> = (0..next() % 300).map(|i| i as u8).collect();
    other("image", bytes([&image]));
    other("text", bytes([text(next()).as_bytes()]));
    other("box", floats([0.0, -1.0, f32::NAN, next() as f32]));
    let many: Vec<f32> = (0..40).map(|_| f32::from_bits(next() as u32)).collect();
    other("many", floats(many));
    other("pair", ints([next() as i64, 5]));
    other("words", bytes([b"", text(next()).as_bytes()]));
    let count = [0, 1, 3, 31, 32, 33, 70][next() as usize % 7];
    let ids: Vec<i64> = (0..count).map(|_| integer(next(), next())).collect();
    other("ids", ints(ids));
    let count = [0, 1, 16, 17, 100][next() as usize % 5];
    let list: Vec<f32> = (0..count).map(|_| next() as f32).collect();
    other("floats", floats(list));
    other("tags", bytes([&image[..image.len() / 2], b"", b"x"]));
    let small: Vec<i64> = (0..next() % 90).map(|_| (next() % 256) as i64).collect();
    other("bytes", ints(small));
    other(
        "texts",
        bytes([text(next()).as_bytes(), text(next()).as_bytes()]),
    );
    other("not wanted", ints([1, 2, 3]));
    example(features)
}

pub(crate) fn records(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(record).collect()
}

#[test]
fn columns_of_all_kinds_are_those_of_the_host() {
    let bytes = file(&records(120));
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let options = RecordOptions::new();
            let (outcome, report) = compare(&gpu, &bytes, &options, &all_kinds(), |scan| scan);
            assert_eq!((outcome.rows.num_rows(), report.gpu.rows), (120, 120));
            assert_eq!((report.gpu.batches, report.rewritten), (3, 0));
            let large = all_kinds().large_offsets(true);
            let (_, report) = compare(&gpu, &bytes, &options, &large, |scan| scan);
            assert_eq!(report.gpu.rows, 120);
        }
        nothing_left(&session);
    }
}

#[test]
fn no_race_and_no_access_outside_in_any_order_of_threads() {
    let bytes = file(&records(33));
    for order in ["in-order", "reversed", "shuffled:3", "apart"] {
        let mut session = session("lazy");
        session.set("CHECKS", "all");
        session.set("SCHEDULE", order);
        {
            let gpu = DeviceOptions::default()
                .guard(Guard::Separate)
                .open(0)
                .unwrap();
            let options = RecordOptions::new();
            let (_, report) = compare(&gpu, &bytes, &options, &all_kinds(), |scan| scan);
            assert_eq!(report.gpu.rows, 33, "{order}");
        }
        nothing_left(&session);
    }
}

#[test]
fn gaps_between_buffers_stay_as_they_are() {
    let session = session("eager");
    {
        let gpu = DeviceOptions::default().guard(Guard::Gaps).open(0).unwrap();
        for count in [1, 31, 32, 33, 65] {
            let bytes = file(&records(count));
            compare(&gpu, &bytes, &RecordOptions::new(), &all_kinds(), |scan| {
                scan
            });
        }
        gpu.trim();
        assert_eq!(gpu.stats().overruns, 0);
    }
    nothing_left(&session);
}

#[test]
fn whoever_is_asked_for_decodes() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let bytes = file(&records(70));
        let options = RecordOptions::new();
        for (processor, on_gpu) in [
            (Processor::Auto, 0),
            (Processor::Gpu, 70),
            (Processor::Cpu, 0),
        ] {
            let (_, report) = compare(&gpu, &bytes, &options, &all_kinds(), |scan| {
                scan.processor(processor)
            });
            assert_eq!(report.gpu.rows, on_gpu);
            assert_eq!(report.host.rows, 70 - on_gpu);
            let said = report.to_string();
            let why = match processor {
                Processor::Auto => "2 batches: less than 65536 bytes",
                _ => "2 batches: the caller wants the host to decode",
            };
            assert_eq!(said.contains(why), on_gpu == 0, "{said}");
        }
    }
    nothing_left(&session);
}

#[test]
fn small_batches_are_the_hosts_unless_the_device_is_asked_for() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let large = |id: i64| {
            let image = vec![id as u8; 1_500];
            example([("id", ints([id])), ("image", bytes([&image]))])
        };
        let all: Vec<_> = (0..110).map(large).collect();
        let file = file(&all);
        let schema = ExampleSchema::new().with(Feature::scalar("image", ValueType::Binary));
        let on_gpu = |processor, boundaries| {
            let options = RecordOptions::new();
            let (_, report) = compare(&gpu, &file, &options, &schema, |scan| {
                scan.processor(processor).boundaries(boundaries)
            });
            (report.gpu.rows, report.reasons)
        };
        let why = vec![("less than 65536 bytes".into(), 1)];
        let (host, device) = (Boundaries::Host, Boundaries::Device);
        assert_eq!(on_gpu(Processor::Auto, host), (100, why));
        assert_eq!(on_gpu(Processor::Gpu, host), (110, Vec::new()));
        // They are there.
        assert_eq!(on_gpu(Processor::Auto, device), (110, Vec::new()));
    }
    nothing_left(&session);
}

#[test]
fn views_and_feature_lists_are_the_hosts() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let bytes = file(&records(5));
        let schema = ExampleSchema::new()
            .with(Feature::scalar("label", ValueType::Int64))
            .with_list(Feature::variable("steps", ValueType::Float32));
        let views = ExampleSchema::new()
            .with(Feature::scalar("image", ValueType::BinaryView))
            .with(Feature::variable("texts", ValueType::Utf8View));
        for (schema, why) in [
            (schema, "there is no kernel for feature lists"),
            (views, "there is no kernel for views"),
        ] {
            let (_, report) = compare(&gpu, &bytes, &RecordOptions::new(), &schema, |scan| scan);
            assert_eq!((report.gpu.rows, report.host.rows), (0, 5));
            assert_eq!(report.reasons[0].0, why);
        }
    }
    nothing_left(&session);
}

#[test]
fn compressed_files_are_inflated_by_the_host() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for compression in [Compression::Gzip, Compression::Zlib] {
            let path = dir.path().join(format!("{compression:?}"));
            let mut writer = WriterOptions::new()
                .compression(compression)
                .create(&path)
                .unwrap();
            for record in records(60) {
                writer.write(&record).unwrap();
            }
            writer.commit().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            for boundaries in [
                feedwater::tfrecord::Boundaries::Host,
                feedwater::tfrecord::Boundaries::Device,
            ] {
                let options = RecordOptions::new();
                let (_, report) = compare(&gpu, &bytes, &options, &all_kinds(), |scan| {
                    scan.boundaries(boundaries)
                });
                assert_eq!(report.gpu.rows, 60);
                let why = match boundaries {
                    feedwater::tfrecord::Boundaries::Device => ", as the file is compressed",
                    _ => "",
                };
                let said = format!("the host, while bytes pass{why}");
                assert_eq!(report.boundaries, said);
            }
        }
    }
    nothing_left(&session);
}

#[test]
fn shards_follow_each_other() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let paths = [0, 1, 2].map(|shard| dir.path().join(format!("shard {shard}")));
        for (shard, path) in (0..).zip(&paths) {
            let mut writer = Writer::create(path).unwrap();
            for at in 0..30 {
                writer.write(&record(shard * 1000 + at)).unwrap();
            }
            writer.commit().unwrap();
        }
        // A bit of the last record of the second falls over.
        let mut bytes = std::fs::read(&paths[1]).unwrap();
        let at = bytes.len() - 10;
        bytes[at] ^= 1;
        std::fs::write(&paths[1], bytes).unwrap();
        let set = ShardSet::of(paths.clone());
        let scan = || {
            let scan = feedwater::tfrecord::ExampleScan::of_shards(&set, &RecordOptions::new());
            scan.schema(all_kinds())
        };
        let host = by_host(scan());
        let device = scan().batch_rows(25).on_device(&gpu);
        let (device, report) = by_device(device.boundaries(Boundaries::Device));
        let said = "the host, while bytes pass, as it is a set";
        assert_eq!(report.boundaries, said);
        same(&host, &device, &report.to_string());
        assert_eq!(device.rows.num_rows(), 59);
        let error = device.error.unwrap();
        assert!(
            matches!(error.kind(), ErrorKind::CorruptRecord { record: 29, .. }),
            "{error}"
        );
        assert_eq!(error.name(), paths[1].to_str());
    }
    nothing_left(&session);
}

#[test]
fn a_schema_is_inferred_and_no_column_is_a_column_too() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let bytes = file(&records(20));
        let scan = || feedwater::tfrecord::examples(open(&gpu, &bytes));
        let host = by_host(scan());
        let (device, report) = by_device(scan().on_device(&gpu));
        same(&host, &device, &report.to_string());
        assert!(device.rows.num_columns() > 10);
        let (rows, _) = compare(
            &gpu,
            &bytes,
            &RecordOptions::new(),
            &ExampleSchema::new(),
            |scan| scan,
        );
        assert_eq!((rows.rows.num_rows(), rows.rows.num_columns()), (20, 0));
        let empty = feedwater::tfrecord::examples(open(&gpu, b"")).schema(all_kinds());
        assert!(empty.on_device(&gpu).batches().unwrap().next().is_none());
    }
    nothing_left(&session);
}
