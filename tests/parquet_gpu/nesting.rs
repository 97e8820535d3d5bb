//! Nested columns: all kinds of lists, structs and maps, as writers write them and as none does.
#![allow(unsafe_code)]

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int32Array, LargeListArray, ListArray, RecordBatch};
use arrow_buffer::OffsetBuffer;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions, DlTensor, ElementType, Guard, lend};
use feedwater::{ErrorKind, MemoryReader, Processor};
use parquet::basic::{Compression, Encoding};
use parquet::data_type::Int32Type;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::cuda::{STREAMS, nothing_left, session};
use crate::mutations::{Random, mutate};
use crate::nested::*;
use crate::support::{Agreed, agree, whole};
use crate::tables::written;

const ROWS: usize = 130;

pub(crate) fn base(version: WriterVersion) -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_writer_version(version)
        .set_data_page_row_count_limit(30)
        .set_write_batch_size(10)
        .set_max_row_group_row_count(Some(80))
}

const VERSIONS: [WriterVersion; 2] = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];

/// Fails unless the GPU decoded all of it.
fn all_by_gpu(gpu: &Arc<Device>, what: &str, file: &Bytes) {
    match agree(gpu, what, file, &whole) {
        Agreed::Rows(rows, report) => {
            assert_eq!(rows.num_columns(), report.columns.len());
            for column in &report.columns {
                let by_gpu = column.by_gpu > 0 && column.by_host == 0;
                assert!(by_gpu, "{what}: {column:?}");
            }
        }
        Agreed::Failed => panic!("{what}"),
    }
}

#[test]
fn every_kind_in_both_versions_with_and_without_dictionaries() {
    for (number, version) in VERSIONS.into_iter().enumerate() {
        let session = session(STREAMS[number]);
        {
            let gpu = Device::open(0).unwrap();
            for dictionary in [true, false] {
                let set = base(version)
                    .set_dictionary_enabled(dictionary)
                    .set_encoding(Encoding::PLAIN)
                    .set_compression(match dictionary {
                        true => Compression::SNAPPY,
                        false => Compression::UNCOMPRESSED,
                    });
                let batch = batch(fields(), ROWS, 1 + number as u64);
                let file = written(&batch, set.build());
                all_by_gpu(&gpu, &format!("{version:?}, {dictionary}"), &file);
            }
        }
        nothing_left(&session);
    }
}

/// Row counts at which words end, each with other values.
#[test]
fn few_rows_of_every_kind() {
    let session = session("eager");
    {
        let gpu = DeviceOptions::default()
            .guard(Guard::Separate)
            .open(0)
            .unwrap();
        for rows in [1, 2, 8, 31, 32, 33] {
            let batch = batch(fields(), rows, rows as u64);
            let set = base(VERSIONS[rows % 2]);
            let file = written(&batch, set.build());
            all_by_gpu(&gpu, &format!("{rows} rows"), &file);
        }
        let none = written(&batch(fields(), 0, 1), base(VERSIONS[0]).build());
        let agreed = agree(&gpu, "no rows", &none, &whole);
        assert!(matches!(agreed, Agreed::Rows(rows, _) if rows.num_rows() == 0));
    }
    nothing_left(&session);
}

/// Types made by chance.
#[test]
fn types_by_chance() {
    fn kind(random: &mut Random, lists: usize, structs: usize) -> DataType {
        let leaves = [DataType::Int32, DataType::Int64, DataType::Boolean];
        let nullable = random.below(2) == 0;
        match random.below(6) {
            0 | 1 if lists > 0 => list(kind(random, lists - 1, structs), nullable),
            // In a struct that is null the crate makes null items of them, also where these cannot be.
            2 if lists > 0 && structs == 2 => fixed(
                kind(random, lists - 1, structs),
                nullable,
                1 + random.below(3) as i32,
            ),
            3 if lists > 0 => map(DataType::Int32, kind(random, lists - 1, structs), nullable),
            4 if structs > 0 => {
                let (a, b) = (
                    kind(random, lists, structs - 1),
                    kind(random, lists, structs - 1),
                );
                structure(&[("a", a, nullable), ("b", b, random.below(2) == 0)])
            }
            other => leaves[other % 3].clone(),
        }
    }
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let mut random = Random::new(77);
        let (mut by_gpu, mut by_host) = (0, 0);
        for round in 0..6 {
            let fields: Vec<Field> = (0..12)
                .map(|at| {
                    let kind = kind(&mut random, 4, 2);
                    field(&format!("f{at}"), kind, random.below(2) == 0)
                })
                .collect();
            let batch = batch(fields, 25, round);
            let file = written(&batch, base(VERSIONS[round as usize % 2]).build());
            let agreed = agree(&gpu, &format!("round {round}"), &file, &whole);
            let (gpu, host) = agreed.counts();
            (by_gpu, by_host) = (by_gpu + gpu, by_host + host);
        }
        eprintln!("{by_gpu} by the GPU, {by_host} by the host");
        // The host has fixed-size lists of lists that are null.
        assert!(by_gpu > 55 && by_host < by_gpu / 5, "{by_gpu}, {by_host}");
    }
    nothing_left(&session);
}

const LIST: &str =
    "message m { optional group f (LIST) { repeated group list { optional int32 element; } } }";

fn page<'a>(v2: bool, reps: &'a [u8], defs: &'a [u8], values: &'a [i32]) -> Page<'a> {
    Page {
        v2,
        reps,
        defs,
        values,
    }
}

/// Pages of version 1 that end inside of a list, and some in which no row begins.
#[test]
fn rows_that_go_on_in_later_pages() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let pages = vec![
            page(false, &[0, 1, 0, 0], &[3, 2, 0, 3], &[1, 2]),
            page(false, &[1, 1, 1], &[3, 3, 2], &[3, 4]),
            page(false, &[1], &[3], &[5]),
            page(false, &[1, 0, 0], &[2, 1, 3], &[6]),
            page(true, &[0, 1, 1], &[3, 3, 3], &[7, 8, 9]),
            page(false, &[1, 0], &[3, 3], &[10, 11]),
        ];
        all_by_gpu(&gpu, "cut", &by_hand(LIST, 7, &[pages]));
        // One row of many pages.
        let reps = [1; 40];
        let defs = [3; 40];
        let values: Vec<i32> = (0..40).collect();
        let mut pages = vec![page(false, &[0], &[3], &values[..1])];
        pages.extend((0..30).map(|_| page(false, &reps, &defs, &values)));
        all_by_gpu(&gpu, "one row", &by_hand(LIST, 1, &[pages]));
    }
    nothing_left(&session);
}

/// What the kernels refuse, the host decodes or refuses.
#[test]
fn levels_that_are_not_right() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let cases = [
            vec![page(false, &[1, 0], &[3, 3], &[1, 2])],
            vec![page(false, &[0, 1], &[0, 3], &[1])],
            vec![page(false, &[0, 1], &[1, 3], &[1])],
            vec![page(false, &[0, 1], &[3, 1], &[1])],
            vec![page(false, &[0, 1], &[3, 0], &[1])],
            vec![
                page(true, &[0], &[3], &[1]),
                page(true, &[1, 0], &[3, 3], &[2, 3]),
            ],
            vec![
                page(false, &[0], &[3], &[1]),
                page(true, &[1, 0], &[3, 3], &[2, 3]),
            ],
            vec![page(false, &[0, 0, 0], &[3, 3, 3], &[1, 2, 3])],
            vec![page(false, &[0], &[3], &[1])],
            vec![page(false, &[0, 0], &[3, 3], &[1])],
            vec![page(false, &[0, 0], &[3, 2], &[1, 2])],
        ];
        for (number, pages) in cases.into_iter().enumerate() {
            let file = by_hand(LIST, 2, &[pages]);
            let agreed = agree(&gpu, &format!("case {number}"), &file, &whole);
            assert_eq!(agreed.counts().0, 0, "case {number}");
        }
    }
    nothing_left(&session);
}

/// Leaves of one list that say different things of it.
#[test]
fn leaves_that_do_not_agree() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let schema =
            "message m { optional group f (LIST) { repeated group list { optional group element {
            required int32 a; optional int32 b; } } } }";
        let a = || vec![page(false, &[0, 1, 0], &[3, 3, 3], &[1, 2, 3])];
        let same = vec![page(true, &[0, 1, 0], &[4, 3, 2], &[1])];
        all_by_gpu(&gpu, "same", &by_hand(schema, 2, &[a(), same]));
        let other = vec![page(false, &[0, 0], &[4, 4], &[1, 2])];
        let agreed = agree(&gpu, "other", &by_hand(schema, 2, &[a(), other]), &whole);
        assert_eq!(agreed.counts().0, 0);
        // As many items, otherwise spread: what the first one says holds.
        let spread = vec![page(false, &[0, 0, 1], &[4, 4, 4], &[1, 2, 3])];
        agree(&gpu, "spread", &by_hand(schema, 2, &[a(), spread]), &whole);
    }
    nothing_left(&session);
}

/// A file of one leaf with these levels, by the crate's writer.
fn of_levels(schema: &str, leaves: &[(&[i16], &[i16])]) -> Bytes {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, schema, Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (reps, defs) in leaves {
        let mut column = group.next_column().unwrap().unwrap();
        let most = *defs.iter().max().unwrap();
        let count = defs.iter().filter(|def| **def == most).count();
        let values: Vec<i32> = (0..count as i32).collect();
        let typed = column.typed::<Int32Type>();
        typed.write_batch(&values, Some(defs), Some(reps)).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    file.into()
}

/// Lists as old writers have them, and keys of maps that could be null.
#[test]
fn schemas_of_old_writers() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        for (schema, reps, defs) in [
            (
                "message m { optional group f (LIST) { repeated int32 element; } }",
                &[0, 1, 0, 0][..],
                &[2, 2, 1, 0][..],
            ),
            ("message m { repeated int32 f; }", &[0, 1, 0], &[1, 1, 0]),
            (
                "message m { optional group f (LIST) { repeated group array { required int32 a; } } }",
                &[0, 1, 0, 0],
                &[2, 2, 1, 0],
            ),
            (
                "message m { optional group f (LIST) { repeated group f_tuple { optional int32 a; } } }",
                &[0, 1, 0, 0],
                &[3, 2, 1, 0],
            ),
            (
                "message m { repeated group f { optional int32 a; } }",
                &[0, 1, 0],
                &[2, 1, 0],
            ),
            (
                "message m { optional group f (MAP) { repeated group key_value { required int32 key; } } }",
                &[0, 1, 0, 0],
                &[2, 2, 1, 0],
            ),
        ] {
            all_by_gpu(&gpu, schema, &of_levels(schema, &[(reps, defs)]));
        }
        let map = "message m { optional group f (MAP) { repeated group key_value {
            optional int32 key; optional int32 value; } } }";
        let (reps, values) = (&[0, 1, 0, 0][..], &[3, 2, 1, 0][..]);
        let keys = of_levels(map, &[(reps, &[3, 3, 1, 0]), (reps, values)]);
        all_by_gpu(&gpu, "optional keys", &keys);
        let null = of_levels(map, &[(reps, &[3, 2, 1, 0]), (reps, values)]);
        // Arrow has no null keys; the crate makes an array all the same, which is no good to look at.
        let scan = feedwater::parquet::scan(Arc::new(MemoryReader::new(null))).on_device(&gpu);
        let mut batches = scan.processor(Processor::Gpu).batches().unwrap();
        assert_eq!(batches.by_ref().map(Result::unwrap).count(), 1);
        let why = &batches.report().columns[0].host_because[0].0;
        assert!(why.contains("a key of a map is null"), "{why}");
        drop(batches);
    }
    nothing_left(&session);
}

/// Not all fields of a struct are asked for.
#[test]
fn some_leaves_only() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let batch = batch(fields(), 40, 9);
        let file = written(&batch, base(VERSIONS[0]).build());
        for columns in [
            &["deep.y.z"][..],
            &["deep.v", "of_deep.list.element.y.w"],
            &["of_pairs.list.element.b", "two"],
        ] {
            let columns = columns.to_vec();
            let asked = move |scan: feedwater::parquet::Scan<_>| scan.columns(columns.clone());
            let agreed = agree(&gpu, "some leaves", &file, &asked);
            let (by_gpu, by_host) = agreed.counts();
            assert!(by_gpu > 0 && by_host == 0, "{by_gpu}, {by_host}");
        }
    }
    nothing_left(&session);
}

/// As Arrow's C data interface has it.
#[repr(C)]
struct Exported {
    length: i64,
    nulls: i64,
    offset: i64,
    buffers: i64,
    children: i64,
    buffer: *const *const u8,
    child: *const *const Exported,
}

/// Fails unless an exported array has the parts of one of the host.
fn has_parts(exported: &Exported, data: &ArrayData) {
    let what = data.data_type();
    assert_eq!((exported.length, exported.offset), (data.len() as i64, 0));
    assert_eq!(exported.nulls, data.null_count() as i64, "{what}");
    assert_eq!(exported.buffers, data.buffers().len() as i64 + 1, "{what}");
    assert_eq!(exported.children, data.child_data().len() as i64, "{what}");
    // SAFETY: the interface has as many buffers.
    let validity = unsafe { *exported.buffer };
    assert_eq!(validity.is_null(), data.null_count() == 0, "{what}");
    for (at, child) in data.child_data().iter().enumerate() {
        // SAFETY: and as many children.
        has_parts(unsafe { &**exported.child.add(at) }, child);
    }
}

#[test]
fn exported_with_all_that_is_below() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let file = written(&batch(fields(), 30, 3), base(VERSIONS[1]).build());
        let reader = Arc::new(MemoryReader::new(file));
        let scan = feedwater::parquet::scan(reader).on_device(&gpu);
        for batch in scan.processor(Processor::Gpu).batches().unwrap() {
            let batch = batch.unwrap();
            let host = batch.to_host().unwrap();
            let exported = batch.export().unwrap();
            drop(batch);
            // SAFETY: an `ArrowDeviceArray` begins with its array, a struct of the columns.
            let all = unsafe { &*std::ptr::from_ref(&exported).cast::<Exported>() };
            assert_eq!(all.children, host.num_columns() as i64);
            for (at, column) in host.columns().iter().enumerate() {
                // SAFETY: as many as there are columns.
                has_parts(unsafe { &**all.child.add(at) }, &column.to_data());
            }
        }
    }
    nothing_left(&session);
}

/// As `dlpack.h` has it, up to the offset.
#[repr(C)]
struct Tensor {
    data: *mut u8,
    device: [i32; 2],
    dims: i32,
    dtype: [u8; 4],
    shape: *const i64,
    strides: *const i64,
    offset: u64,
}

/// The elements of four bytes of a tensor of this shape.
fn numbers(gpu: &Arc<Device>, tensor: DlTensor, shape: &[i64]) -> Vec<i32> {
    // SAFETY: a `DLManagedTensor` begins with its tensor.
    let raw = unsafe { &*tensor.as_ptr().cast::<Tensor>() };
    assert_eq!(raw.dims as usize, shape.len());
    // SAFETY: as many numbers as there are dimensions.
    let dims = unsafe { std::slice::from_raw_parts(raw.shape, shape.len()) };
    assert_eq!(dims, shape);
    let (data, len) = (raw.data, shape.iter().product::<i64>() as usize * 4);
    // SAFETY: the tensor has as many bytes, which were written, and is kept.
    let bytes = unsafe {
        let mut block = lend(gpu.place(), data, len, Arc::new(tensor));
        block.advance(len);
        gpu.to_host(&block.freeze().into_device().unwrap()).unwrap()
    };
    let word = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().unwrap());
    bytes.chunks_exact(4).map(word).collect()
}

/// Lists of one length as tensors, and which row is not so long.
#[test]
fn lists_as_tensors() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let of = |lens: &[usize], large: bool| -> ArrayRef {
            let items: Int32Array = (0..lens.iter().sum::<usize>() as i32).collect();
            let item = Arc::new(field("element", DataType::Int32, false));
            match large {
                false => Arc::new(ListArray::new(
                    item,
                    OffsetBuffer::from_lengths(lens.iter().copied()),
                    Arc::new(items),
                    None,
                )),
                true => Arc::new(LargeListArray::new(
                    item,
                    OffsetBuffer::from_lengths(lens.iter().copied()),
                    Arc::new(items),
                    None,
                )),
            }
        };
        let inner = of(&[2; 18], false);
        let outer = ListArray::new(
            Arc::new(field("element", inner.data_type().clone(), false)),
            OffsetBuffer::from_lengths([3; 6]),
            inner,
            None,
        );
        let fields = vec![field("fixed", fixed(DataType::Float32, false, 4), false)];
        let even = batch(fields, 6, 1).column(0).clone();
        let columns: [(&str, ArrayRef); 6] = [
            ("even", of(&[3; 6], false)),
            ("large", of(&[3; 6], true)),
            ("odd", of(&[3, 3, 3, 3, 2, 4], false)),
            ("first", of(&[1, 5, 3, 3, 3, 3], true)),
            ("matrices", Arc::new(outer)),
            ("fixed", even),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let file = written(&batch, WriterProperties::builder().build());
        let reader = Arc::new(MemoryReader::new(file));
        let scan = feedwater::parquet::scan(reader).on_device(&gpu);
        let batches = scan.processor(Processor::Gpu).batches().unwrap();
        let batches: Vec<_> = batches.map(Result::unwrap).collect();
        let column = |name: &str| batches[0].column(name).unwrap();
        let numbers = |tensor: DlTensor, shape: &[i64]| numbers(&gpu, tensor, shape);
        let all: Vec<i32> = (0..18).collect();
        for name in ["even", "large"] {
            let tensor = column(name).tensor_of_lists(&[3]).unwrap();
            assert_eq!(numbers(tensor, &[6, 3]), all);
            let floats = column(name).cast_of_lists(&[3], ElementType::F32).unwrap();
            let wanted: Vec<i32> = all.iter().map(|n| (*n as f32).to_bits() as i32).collect();
            assert_eq!(numbers(floats, &[6, 3]), wanted);
        }
        let tensor = column("matrices").tensor_of_lists(&[3, 2]).unwrap();
        assert_eq!(numbers(tensor, &[6, 3, 2])[35], 35);
        let tensor = column("fixed").tensor_of_lists(&[4]).unwrap();
        assert_eq!(numbers(tensor, &[6, 4]).len(), 24);
        for (name, dims, row) in [
            ("odd", &[3][..], "row 4 of the batch has one of 2"),
            ("first", &[3], "row 0 of the batch has one of 1"),
            ("even", &[4], "row 0 of the batch has one of 3"),
            ("matrices", &[3, 1], "row 0 of the batch has one of 2"),
            ("fixed", &[5], "row 0 of the batch has one of 4"),
        ] {
            let error = column(name).tensor_of_lists(dims).unwrap_err();
            let is_named = error.to_string().contains(row);
            assert!(
                matches!(error.kind(), ErrorKind::InvalidOption { .. }) && is_named,
                "{error}"
            );
        }
        let error = column("even").tensor_of_lists(&[3, 1]).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unsupported { .. }),
            "{error}"
        );
    }
    nothing_left(&session);
}

#[test]
fn files_with_changed_bytes() {
    const ROUNDS: usize = 120;
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let wanted = ["optional", "two", "of_pairs", "map", "fixed_nulls", "deep"];
        let mut fields = fields();
        fields.retain(|field| wanted.contains(&field.name().as_str()));
        let batch = batch(fields, 20, 5);
        let files: Vec<Bytes> = VERSIONS
            .iter()
            .map(|version| {
                let none = parquet::file::properties::EnabledStatistics::None;
                let set = base(*version).set_statistics_enabled(none);
                written(&batch, set.set_dictionary_enabled(false).build())
            })
            .collect();
        let mut random = Random::new(0x5eed_0008);
        let (mut right, mut wrong, mut by_gpu, mut by_host) = (0, 0, 0, 0);
        for round in 0..ROUNDS {
            let mut file = files[round % 2].to_vec();
            let end = file.len() - 8;
            let footer = u32::from_le_bytes(file[end..end + 4].try_into().unwrap());
            mutate(&mut file[4..end - footer as usize], &mut random);
            let agreed = agree(&gpu, &format!("round {round}"), &file.into(), &whole);
            match &agreed {
                Agreed::Rows(..) => right += 1,
                Agreed::Failed => wrong += 1,
            }
            let (gpu, host) = agreed.counts();
            (by_gpu, by_host) = (by_gpu + gpu, by_host + host);
        }
        eprintln!("{right} right, {wrong} wrong; columns: {by_gpu} by the GPU, {by_host} not");
        assert!(right > 15 && wrong > 15 && by_gpu > 60, "{right} {wrong}");
        assert!(by_host > 0);
    }
    nothing_left(&session);
}
