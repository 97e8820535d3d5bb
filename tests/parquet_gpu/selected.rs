//! Some rows of row groups, and those that a predicate is true for: pages that have them, with and without a page index.

use std::sync::Arc;

use arrow_array::{RecordBatch, StringArray};
use arrow_schema::{DataType, Schema};
use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions, Guard};
use feedwater::parquet::{Scan, column, scan};
use feedwater::{Error, ErrorKind, MemoryReader, Processor, Result};
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};

use crate::common::corpus;
use crate::cuda::{STREAMS, is_software, nothing_left, session};
use crate::generated::versions;
use crate::mutations::{Random, mutate};
use crate::nested;
use crate::strings::strings;
use crate::support::{Agreed, agree, by_host, on_device};
use crate::table::{Expected, FILES};
use crate::tables::{Nulls, flat, other, written};

/// Columns that take different ways, in one batch.
fn beside(batches: &[RecordBatch]) -> RecordBatch {
    let schemas = batches.iter().map(|batch| (*batch.schema()).clone());
    let schema = Arc::new(Schema::try_merge(schemas).unwrap());
    let columns = batches.iter().flat_map(RecordBatch::columns);
    RecordBatch::try_new(schema, columns.cloned().collect()).unwrap()
}

/// Those of a batch whose names begin so.
fn named(batch: &RecordBatch, names: &[&str]) -> RecordBatch {
    let schema = batch.schema();
    let fields = schema.fields().iter().enumerate();
    let wanted =
        fields.filter(|(_, field)| names.iter().any(|name| field.name().starts_with(name)));
    let at: Vec<_> = wanted.map(|(at, _)| at).collect();
    batch.project(&at).unwrap()
}

fn mixed(rows: usize) -> RecordBatch {
    let ways = [Nulls::Required, Nulls::Some];
    let numbers = ["boolean", "i8", "i64", "decimal_20", "fixed_3", "fixed_37"];
    let words = named(&other(rows), &["words"]);
    beside(&[
        named(&flat(rows, &ways), &numbers),
        named(&strings(rows, &ways), &["utf8", "large_binary"]),
        words,
    ])
}

/// Pages of columns end at different rows, as values are of different lengths.
fn base() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_data_page_size_limit(250)
        .set_data_page_row_count_limit(130)
        .set_write_batch_size(10)
        .set_max_row_group_row_count(Some(400))
}

/// Some ranges of rows, with gaps that are decoded and gaps that are not.
fn ranges(rows: u64, random: &mut Random) -> Vec<std::ops::Range<u64>> {
    let count = 1 + random.below(6);
    let range = |_| {
        let start = random.below(rows as usize) as u64;
        let len = [1, 2, 9, 70, 150][random.below(5)];
        start..(start + len).min(rows)
    };
    (0..count).map(range).collect()
}

fn some_rows(
    ranges: &[std::ops::Range<u64>],
    indexes: bool,
) -> impl Fn(Scan<MemoryReader>) -> Scan<MemoryReader> {
    let ranges = ranges.to_vec();
    move |scan| {
        let scan = scan.indexes(indexes);
        ranges
            .iter()
            .fold(scan, |scan, range| scan.rows(range.clone()))
    }
}

/// Fails unless both executors agree, the GPU decoded all that was asked for, and no more was read than the host would read.
fn all_by_gpu(
    gpu: &Arc<Device>,
    what: &str,
    file: &Bytes,
    asked: &dyn Fn(Scan<MemoryReader>) -> Scan<MemoryReader>,
) -> RecordBatch {
    let Agreed::Rows(rows, report) = agree(gpu, what, file, asked) else {
        panic!("{what}");
    };
    for column in &report.columns {
        assert!(
            column.by_gpu > 0 && column.by_host == 0,
            "{what}: {column:?}"
        );
    }
    let plan = asked(scan(Arc::new(MemoryReader::new(file.clone()))));
    let plan = plan.explain().unwrap();
    assert!(report.bytes <= plan.bytes_read(), "{what}: {report} {plan}");
    assert!(
        report.requests <= plan.requests() as u64,
        "{what}: {report} {plan}"
    );
    rows
}

#[test]
fn flat_columns_in_every_encoding_and_version() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let batch = mixed(500);
        let mut random = Random::new(41);
        for version in versions() {
            let set = |dictionary| {
                base()
                    .set_writer_version(version)
                    .set_dictionary_enabled(dictionary)
                    // Its dictionary has to have all.
                    .set_column_dictionary_enabled("words".into(), true)
            };
            let ways = [
                ("dictionaries", set(true)),
                (
                    "plain",
                    named(&batch, &["i", "d", "f", "u", "l"])
                        .schema()
                        .fields()
                        .iter()
                        .fold(set(false), |set, field| {
                            set.set_column_encoding(field.name().as_str().into(), Encoding::PLAIN)
                        }),
                ),
            ];
            for (way, set) in ways {
                let file = written(&batch, set.build());
                for indexes in [true, false] {
                    let ranges = ranges(500, &mut random);
                    let what = format!("{way}, {version:?}, {indexes}, {ranges:?}");
                    all_by_gpu(&gpu, &what, &file, &some_rows(&ranges, indexes));
                }
            }
        }
    }
    nothing_left(&session);
}

/// Columns whose names begin so.
fn ways_of<'a>(batch: &'a RecordBatch, name: &'a str) -> impl Iterator<Item = String> + 'a {
    let fields = batch.schema_ref().fields().iter();
    let names = fields.map(|field| field.name().clone());
    names.filter(move |field| field.starts_with(name))
}

#[test]
fn other_encodings_and_codecs() {
    let batch = named(&mixed(300), &["i64", "utf8", "fixed_3"]);
    let mut random = Random::new(42);
    let codecs = [
        Compression::SNAPPY,
        Compression::ZSTD(Default::default()),
        Compression::LZ4_RAW,
        Compression::GZIP(Default::default()),
    ];
    let ways = |set: WriterPropertiesBuilder, name: &str, encoding| {
        ways_of(&batch, name).fold(set, |set, name| {
            set.set_column_encoding(name.into(), encoding)
        })
    };
    let delta = |set: WriterPropertiesBuilder| {
        let set = set.set_dictionary_enabled(false);
        let set = set.set_column_encoding("i64_Some".into(), Encoding::DELTA_BINARY_PACKED);
        let set = ways(set, "fixed_3", Encoding::BYTE_STREAM_SPLIT);
        let set = set.set_column_encoding("utf8_Some".into(), Encoding::DELTA_BYTE_ARRAY);
        set.set_column_encoding("utf8_Required".into(), Encoding::DELTA_LENGTH_BYTE_ARRAY)
    };
    for (number, codec) in codecs.into_iter().enumerate() {
        let session = session(STREAMS[number % 2]);
        {
            let gpu = Device::open(0).unwrap();
            let version = versions()[number % 2];
            let set = base().set_compression(codec).set_writer_version(version);
            let set = if number < 2 { delta(set) } else { set };
            let file = written(&batch, set.build());
            let ranges = ranges(300, &mut random);
            let what = format!("{codec}, {ranges:?}");
            all_by_gpu(&gpu, &what, &file, &some_rows(&ranges, number != 1));
        }
        nothing_left(&session);
    }
}

#[test]
fn rows_at_the_borders_of_pages_and_groups() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let batch = named(&mixed(900), &["boolean", "i8_Some", "utf8_Some"]);
        // Pages of 130 rows, in groups of 400.
        let set = base().set_data_page_size_limit(1 << 20);
        let file = written(&batch, set.build());
        for ranges in [
            vec![0..1],
            vec![899..900],
            vec![129..131],
            vec![130..260],
            vec![131..259, 260..261],
            vec![399..401],
            // A group as a whole between others.
            vec![390..810],
            // A gap that is decoded, and one that is not, of which a page is left out.
            vec![10..12, 60..70, 200..201, 390..391],
            (0..40).map(|row| row * 3..row * 3 + 1).collect(),
            vec![0..900],
        ] {
            for indexes in [true, false] {
                let what = format!("{ranges:?}, {indexes}");
                let rows = all_by_gpu(&gpu, &what, &file, &some_rows(&ranges, indexes));
                let wanted: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                assert_eq!(rows.num_rows() as u64, wanted);
            }
        }
    }
    nothing_left(&session);
}

#[test]
fn lists_structs_and_maps() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut random = Random::new(43);
        let batch = nested::batch([nested::fields(), nested::texts()].concat(), 90, 5);
        for (number, version) in versions().into_iter().enumerate() {
            let set = WriterProperties::builder()
                .set_writer_version(version)
                .set_data_page_row_count_limit(20)
                .set_data_page_size_limit(400)
                .set_write_batch_size(5)
                .set_max_row_group_row_count(Some(70));
            let file = written(&batch, set.build());
            for indexes in [true, false] {
                let ranges = match number {
                    0 => ranges(90, &mut random),
                    _ => vec![2..5, 66..73],
                };
                let what = format!("{version:?}, {indexes}, {ranges:?}");
                all_by_gpu(&gpu, &what, &file, &some_rows(&ranges, indexes));
            }
        }
    }
    nothing_left(&session);
}

/// Buffers with gaps between them, and each an allocation of its own.
#[test]
fn buffers_kept_apart() {
    for guard in [Guard::Gaps, Guard::Separate] {
        let session = session("lazy");
        {
            let gpu = DeviceOptions::default().guard(guard).open(0).unwrap();
            let wanted = ["of_pairs", "fixed_nulls", "people", "two"];
            let mut fields = [nested::fields(), nested::texts()].concat();
            fields.retain(|field| wanted.contains(&field.name().as_str()));
            let batch = beside(&[mixed(200), nested::batch(fields, 200, 7)]);
            let file = written(&batch, base().build());
            let asked = some_rows(&[3..40, 111..113, 190..200], true);
            all_by_gpu(&gpu, "buffers", &file, &asked);
            assert_eq!(gpu.stats().overruns, 0);
        }
        nothing_left(&session);
    }
}

/// What the host decodes is cut to the same rows.
#[test]
fn columns_of_the_host_beside_those_of_the_gpu() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let batch = named(&mixed(500), &["i64", "utf8_Some", "utf8_Required"]);
        let file = written(&batch, base().build());
        let schema = batch.schema();
        let fields = schema.fields().iter().map(|field| {
            let field = (**field).clone();
            match field.name().as_str() {
                "utf8_Some" => field.with_data_type(DataType::Utf8View),
                _ => field,
            }
        });
        let views = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let rows = some_rows(&[5..20, 150..151, 333..480], true);
        let asked = |scan: Scan<MemoryReader>| rows(scan).schema(views.clone());
        let Agreed::Rows(got, report) = agree(&gpu, "views", &file, &asked) else {
            panic!();
        };
        assert_eq!(got.num_rows(), 163);
        for column in &report.columns {
            let by_host = if &*column.column == "utf8_Some" { 2 } else { 0 };
            assert_eq!((column.by_host, column.by_gpu), (by_host, 2 - by_host));
        }
        // And where it is all that is asked for, its own reason is told.
        let alone = |scan: Scan<MemoryReader>| asked(scan).columns(["utf8_Some"]);
        let Agreed::Rows(_, report) = agree(&gpu, "a view", &file, &alone) else {
            panic!();
        };
        let why = "no kernel makes Utf8View of BYTE_ARRAY";
        assert_eq!(report.columns[0].host_because, [(why.into(), 2)]);
        let reader = Arc::new(MemoryReader::new(file.clone()));
        let plan = alone(scan(reader)).on_device(&gpu).explain().unwrap();
        assert_eq!(plan.columns[0].host_because.as_deref(), Some(why));
    }
    nothing_left(&session);
}

#[test]
fn predicates() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let rows = 700i64;
        // In ascending order, so that pages can be left out.
        let order: arrow_array::Int64Array = (0..rows).map(|row| Some(row * 2)).collect();
        let order = RecordBatch::try_from_iter([("order", Arc::new(order) as _)]).unwrap();
        let lists = nested::batch(
            vec![nested::field(
                "tags",
                nested::list(DataType::Utf8, true),
                true,
            )],
            rows as usize,
            3,
        );
        let some = named(
            &mixed(rows as usize),
            &["i64_Some", "utf8_Some", "i8_Req", "boolean_S"],
        );
        let file = written(&beside(&[order, some, lists]), base().build());
        let mut number = 0;
        let mut check = |predicate: feedwater::parquet::Predicate, wanted: Option<usize>| {
            let streams = format!("predicate {number}");
            number += 1;
            for indexes in [true, false] {
                let asked =
                    |scan: Scan<MemoryReader>| scan.indexes(indexes).filter(predicate.clone());
                let got = all_by_gpu_or_none(&gpu, &streams, &file, &asked);
                assert!(
                    wanted.is_none_or(|wanted| wanted == got.num_rows()),
                    "{streams}"
                );
            }
        };
        check(column("order").lt(300), Some(150));
        check(
            column("order").ge(790).and(column("order").lt(830)),
            Some(20),
        );
        check(column("i64_Some").is_null(), None);
        check(column("utf8_Some").eq("the same each time"), None);
        check(
            column("i8_Required").gt(5).and(column("order").gt(600)),
            None,
        );
        check(column("order").ge(0), Some(700));
        check(column("order").eq(3), Some(0));
        // With rows, and of columns that are not delivered.
        let both = |scan: Scan<MemoryReader>| {
            scan.rows(100..450)
                .filter(column("order").ge(300))
                .columns(["utf8_Some", "tags"])
        };
        let got = all_by_gpu(&gpu, "both", &file, &both);
        assert_eq!((got.num_rows(), got.num_columns()), (300, 2));
    }
    nothing_left(&session);
}

/// The same, where there may be no rows at all.
fn all_by_gpu_or_none(
    gpu: &Arc<Device>,
    what: &str,
    file: &Bytes,
    asked: &dyn Fn(Scan<MemoryReader>) -> Scan<MemoryReader>,
) -> RecordBatch {
    match agree(gpu, what, file, asked) {
        Agreed::Rows(rows, report) if rows.num_rows() == 0 => {
            assert_eq!((report.rows, report.batches), (0, 0), "{what}");
            rows
        }
        _ => all_by_gpu(gpu, what, file, asked),
    }
}

/// Where the memory is short, the host does it, and the rows are the same.
#[test]
fn what_does_not_fit_is_the_hosts() {
    let session = session("eager");
    {
        let file = written(&other(3000), WriterProperties::builder().build());
        let rows = some_rows(&[1..2500, 2700..2701], true);
        let right = by_host(&file, &rows).unwrap();
        let gpu = Device::open(0).unwrap();
        let reader = Arc::new(MemoryReader::new(file));
        let scan = rows(scan(reader)).on_device(&gpu);
        let scan = scan.processor(Processor::Gpu).memory(64 << 10);
        let mut batches = scan.batches().unwrap();
        let schema = batches.schema().clone();
        let parts: Vec<_> = batches
            .by_ref()
            .map(|batch| batch.unwrap().to_host().unwrap())
            .collect();
        assert!(parts.len() > 1);
        assert!(arrow::compute::concat_batches(&schema, &parts).unwrap() == right);
        assert!(
            batches
                .report()
                .columns
                .iter()
                .all(|column| column.by_gpu == 0)
        );
    }
    nothing_left(&session);
}

fn scenario(file: &Bytes) -> Result<RecordBatch> {
    let gpu = Device::open(0)?;
    let asked = |scan: Scan<MemoryReader>| scan.rows(3..9).rows(20..33);
    Ok(on_device(&gpu, file, Processor::Gpu, &asked)?.0)
}

fn is_of_cuda(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Cuda { .. }
            | ErrorKind::DeviceLost { .. }
            | ErrorKind::OutOfMemory { .. }
            | ErrorKind::Unavailable { .. }
    )
}

/// Injected failures: the values or a typed error, and nothing left.
#[test]
fn an_error_at_every_other_call() {
    if !is_software(&session("eager")) {
        return;
    }
    let field = nested::field("tags", nested::list(DataType::Utf8, true), true);
    let batch = beside(&[
        named(&mixed(40), &["boolean_Some", "utf8_Some"]),
        nested::batch(vec![field], 40, 3),
    ]);
    let file = written(&batch, base().build());
    let asked = |scan: Scan<MemoryReader>| scan.rows(3..9).rows(20..33);
    let right = by_host(&file, &asked).unwrap();
    for (streams, memory) in [("lazy", false), ("eager", true)] {
        let mut session = session(streams);
        let before = session.counts();
        assert!(scenario(&file).unwrap() == right);
        nothing_left(&session);
        let after = session.counts();
        let (most, step) = match memory {
            true => (after.allocations - before.allocations + 10, 1),
            false => (after.calls - before.calls + 10, 2),
        };
        let mut failed = 0;
        for index in (0..most).step_by(step) {
            match memory {
                true => session.fail_allocation(index),
                false => session.fail_call(index, 700),
            }
            match scenario(&file) {
                Ok(got) => assert!(got == right, "{streams}, index {index}"),
                Err(error) => {
                    assert!(is_of_cuda(&error), "{streams}, index {index}: {error}");
                    failed += 1;
                }
            }
            session.fail_nothing();
            nothing_left(&session);
        }
        assert!(memory || failed > 10, "{streams}: {failed}");
    }
}

/// Of rows that are chosen, strings are in memory twice for a while: what is not known before the kernels have followed their lengths
/// (here: one long entry of a dictionary, of which nearly every row is) is held to that as well.
#[test]
fn strings_of_chosen_rows_have_to_fit_twice() {
    let session = session("eager");
    {
        let gpu = DeviceOptions::default().chunk(1 << 16).open(0).unwrap();
        let long = "x".repeat(600);
        let texts = (0..96).map(|row| match row % 16 {
            0 => row.to_string(),
            _ => long.clone(),
        });
        let texts = StringArray::from_iter_values(texts);
        let batch = RecordBatch::try_from_iter([("text", Arc::new(texts) as _)]).unwrap();
        let pages = WriterProperties::builder().set_data_page_row_count_limit(32);
        let file = written(&batch, pages.set_write_batch_size(32).build());
        // Two of three pages; of these, all rows or not.
        for (rows, fits) in [(0..64, true), (0..63, false)] {
            let asked = |scan: Scan<MemoryReader>| scan.rows(rows.clone());
            let right = by_host(&file, &asked).unwrap();
            let reader = Arc::new(MemoryReader::new(file.clone()));
            let scan = asked(scan(reader)).on_device(&gpu);
            let scan = scan.processor(Processor::Gpu).memory(140_000);
            let mut batches = scan.batches().unwrap();
            let schema = batches.schema().clone();
            let got: Vec<_> = batches
                .by_ref()
                .map(|batch| batch.unwrap().to_host().unwrap())
                .collect();
            assert!(arrow::compute::concat_batches(&schema, &got).unwrap() == right);
            let report = batches.report();
            let text = &report.columns[0];
            assert_eq!(text.by_gpu > 0, fits, "{rows:?}: {report}");
        }
    }
    nothing_left(&session);
}

/// Bytes of pages and indexes changed by chance: what the GPU gives, the host gives as well.
#[test]
fn mutated_files() {
    const SEED: u64 = 0x5e1e_c7ed;
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let batch = named(&mixed(120), &["boolean_Some", "i64", "utf8_Some"]);
        let lists = nested::batch(
            vec![nested::field(
                "tags",
                nested::list(DataType::Int32, true),
                true,
            )],
            120,
            9,
        );
        let batch = beside(&[batch, lists]);
        let set = |version: WriterVersion| {
            base()
                .set_writer_version(version)
                .set_data_page_row_count_limit(20)
                .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        };
        let files = versions().map(|version| written(&batch, set(version).build()).to_vec());
        let asked = some_rows(&[15..17, 55..62, 119..120], true);
        let mut random = Random::new(SEED);
        let (mut right, mut wrong, mut by_gpu) = (0, 0, 0);
        for round in 0..160 {
            let mut file = files[round % 2].clone();
            let end = file.len() - 8;
            let footer = u32::from_le_bytes(file[end..end + 4].try_into().unwrap()) as usize;
            // Half of them in the indexes, which are in front of the footer.
            let to = end - footer;
            let from = if round % 4 < 2 { 4 } else { to - to / 5 };
            mutate(&mut file[from..to], &mut random);
            let what = format!("seed {SEED:#x}, round {round}");
            let agreed = agree(&gpu, &what, &file.into(), &asked);
            match &agreed {
                Agreed::Rows(..) => right += 1,
                Agreed::Failed => wrong += 1,
            }
            by_gpu += agreed.counts().0;
        }
        eprintln!("{right} right, {wrong} wrong, {by_gpu} by the GPU");
        assert!(
            right > 30 && wrong > 10 && by_gpu > 150,
            "{right} {wrong} {by_gpu}"
        );
    }
    nothing_left(&session);
}

/// Larger ones take long to be interpreted, and are decoded as a whole elsewhere.
const LARGEST: usize = 150 << 10;

#[test]
fn the_middle_third_of_every_file_of_the_corpus() {
    let Some(folder) = corpus::folder("parquet") else {
        return;
    };
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let (mut files, mut by_gpu, mut by_host) = (0, 0, 0);
        for name in corpus::files(&folder) {
            let (_, expected) = FILES.iter().find(|(file, _)| *file == name).unwrap();
            let Expected::Rows(rows) = expected else {
                continue;
            };
            let file: Bytes = std::fs::read(folder.join(&name)).unwrap().into();
            let footer = ParquetMetaDataReader::new().parse_and_finish(&file);
            let (Ok(footer), true) = (footer, file.len() <= LARGEST && *rows > 0) else {
                continue;
            };
            assert_eq!(footer.file_metadata().num_rows(), *rows as i64, "{name}");
            let third = *rows as u64 / 3;
            let asked = |scan: Scan<MemoryReader>| scan.rows(third..(third * 2).max(third + 1));
            let agreed = agree(&gpu, &name, &file, &asked);
            assert!(matches!(agreed, Agreed::Rows(..)), "{name}");
            let (gpu, host) = agreed.counts();
            (files, by_gpu, by_host) = (files + 1, by_gpu + gpu, by_host + host);
        }
        eprintln!("{files} files; chunks: {by_gpu} by the GPU, {by_host} by the host");
        assert!(files > 30 && by_gpu > 200, "{files} {by_gpu}");
    }
    nothing_left(&session);
}
