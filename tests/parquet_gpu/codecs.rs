//! Pages that the device decompresses, and their checksums: who did it and why, what the device refuses, and damage.

use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeBinaryArray, Int64Array, RecordBatch};
use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions, Guard};
use feedwater::parquet::DeviceColumnReport;
use feedwater::{ErrorKind, Processor};
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaDataBuilder, ParquetMetaDataReader, ParquetMetaDataWriter,
};
use parquet::file::properties::{
    EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion,
};

use crate::cuda::{STREAMS, nothing_left, session};
use crate::support::{Agreed, agree, by_host, on_device, whole};
use crate::tables::{Nulls, flat, other, written};

fn base() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_data_page_row_count_limit(60)
        .set_write_batch_size(10)
        .set_max_row_group_row_count(Some(150))
}

const VERSIONS: [WriterVersion; 2] = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
const CODECS: [Compression; 2] = [Compression::SNAPPY, Compression::LZ4_RAW];

/// Some columns of the many, each with nulls or without.
fn table(rows: usize) -> RecordBatch {
    let batch = flat(rows, &[Nulls::Required, Nulls::Some]);
    let schema = batch.schema();
    let wanted = ["boolean", "i32", "f64", "decimal_20", "fixed_37"];
    let columns = schema.fields().iter().enumerate();
    let columns: Vec<_> = columns
        .filter(|(_, field)| wanted.iter().any(|name| field.name().starts_with(name)))
        .map(|(at, _)| at)
        .collect();
    batch.project(&columns).unwrap()
}

fn report(agreed: Agreed) -> Vec<DeviceColumnReport> {
    match agreed {
        Agreed::Rows(_, report) => report.columns,
        Agreed::Failed => panic!(),
    }
}

/// All pages of all columns, by the GPU and by the host.
fn pages(columns: &[DeviceColumnReport]) -> (u64, u64) {
    let by_gpu = columns
        .iter()
        .map(|column| column.decompressed_by_gpu.pages);
    let by_host = columns
        .iter()
        .map(|column| column.decompressed_by_host.pages);
    (by_gpu.sum(), by_host.sum())
}

fn chunks(file: &[u8]) -> Vec<ColumnChunkMetaData> {
    let metadata = ParquetMetaDataReader::new();
    let metadata = metadata.parse_and_finish(&Bytes::copy_from_slice(file));
    let groups = metadata.unwrap();
    let groups = groups.row_groups().iter();
    groups.flat_map(|group| group.columns().to_vec()).collect()
}

#[test]
fn kernels_decompress_what_they_have_and_it_is_said() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let guard = DeviceOptions::default().guard(Guard::Separate);
            let gpu = guard.open(0).unwrap();
            let batch = table(280);
            for codec in CODECS {
                for (version, dictionary) in VERSIONS.into_iter().zip([true, false]) {
                    let set = base()
                        .set_compression(codec)
                        .set_writer_version(version)
                        .set_encoding(Encoding::PLAIN)
                        .set_dictionary_enabled(dictionary);
                    let file = written(&batch, set.build());
                    let what = format!("{codec}, {version:?}");
                    let columns = report(agree(&gpu, &what, &file, &whole));
                    for column in &columns {
                        assert_eq!((column.by_gpu, column.by_host), (2, 0), "{column:?}");
                    }
                    // The writer leaves pages of version 2 alone that a codec makes no shorter.
                    let by_gpu = pages(&columns).0;
                    assert!(by_gpu > 12, "{what}: {by_gpu}");
                    let bytes = columns.iter().map(|it| it.decompressed_by_gpu.bytes);
                    assert!(bytes.sum::<u64>() > by_gpu * 30, "{what}");
                    // Whatever the host did had nothing in it, or was not compressed.
                    for (why, _) in columns
                        .iter()
                        .flat_map(|it| &it.decompressed_by_host_because)
                    {
                        assert_eq!(&**why, "nothing in it", "{what}");
                    }
                }
            }
            for (codec, name) in [
                (Compression::GZIP(Default::default()), "the codec GZIP"),
                (Compression::LZ4, "the codec LZ4 of Hadoop"),
            ] {
                let set = base().set_compression(codec);
                let file = written(&batch, set.build());
                let columns = report(agree(&gpu, name, &file, &whole));
                assert_eq!(pages(&columns).0, 0);
                let (why, count) = &columns[2].decompressed_by_host_because[0];
                assert_eq!(&**why, name);
                assert_eq!(*count, columns[2].decompressed_by_host.pages);
            }
            let file = written(&batch, base().build());
            let columns = report(agree(&gpu, "no codec", &file, &whole));
            assert_eq!(pages(&columns), (0, 0));
        }
        nothing_left(&session);
    }
}

/// Columns of different codecs in one arena, in all orders, so that pages of the host and of the device lie beside each other.
#[test]
fn pages_of_both_lie_beside_each_other() {
    let session = session("lazy");
    {
        let guard = DeviceOptions::default().guard(Guard::Separate);
        let gpu = guard.open(0).unwrap();
        let batch = table(200);
        let codecs = [
            Compression::SNAPPY,
            Compression::ZSTD(Default::default()),
            Compression::UNCOMPRESSED,
            Compression::LZ4_RAW,
        ];
        for turn in 0..codecs.len() {
            let mut set = base();
            for (number, field) in batch.schema().fields().iter().enumerate() {
                let codec = codecs[(number + turn) % codecs.len()];
                set = set.set_column_compression(field.name().as_str().into(), codec);
            }
            let file = written(&batch, set.build());
            let columns = report(agree(&gpu, &format!("turn {turn}"), &file, &whole));
            let (by_gpu, by_host) = pages(&columns);
            assert!(by_gpu > 10 && by_host > 10, "{by_gpu} {by_host}");
            assert!(columns.iter().all(|column| column.by_host == 0));
        }
    }
    nothing_left(&session);
}

#[test]
fn few_pages_are_left_to_threads_of_the_host() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        // 72,000 bytes in 9 pages, or 72.
        let batch = other(9000).project(&[0]).unwrap();
        for (rows, by_gpu, by_host) in [(1000, 0, 9), (125, 72, 0)] {
            let set = WriterProperties::builder()
                .set_data_page_row_count_limit(rows)
                .set_write_batch_size(rows)
                .set_dictionary_enabled(false)
                .set_compression(Compression::SNAPPY);
            let file = written(&batch, set.build());
            let right = by_host_rows(&file);
            let (got, report) = on_device(&gpu, &file, Processor::Auto, &whole).unwrap();
            assert!(got == right);
            let ids = &report.columns[0];
            assert_eq!(ids.by_gpu, 1);
            assert_eq!(pages(&report.columns), (by_gpu, by_host), "{report}");
            if by_host > 0 {
                let (why, _) = &ids.decompressed_by_host_because[0];
                assert!(why.starts_with("too few pages"), "{why}");
                let text = report.to_string();
                let said = "decompressed: 0 pages (0 bytes) by the GPU, 9 (";
                assert!(text.contains(said), "{text}");
            }
            let (_, report) = on_device(&gpu, &file, Processor::Gpu, &whole).unwrap();
            assert_eq!(pages(&report.columns), (by_gpu + by_host, 0));
        }
    }
    nothing_left(&session);
}

fn by_host_rows(file: &Bytes) -> RecordBatch {
    by_host(file, &whole).unwrap()
}

/// What is stored counts in the memory of a row group: without room for it the host decompresses, with less it comes in parts.
#[test]
fn what_is_stored_needs_room_as_well() {
    let session = session("eager");
    {
        let gpu = DeviceOptions::default().chunk(1 << 16).open(0).unwrap();
        // Of numbers that Snappy makes no less of, so that what is stored takes as much as what it becomes.
        let numbers = (0..2000u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) as i64);
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        let batch = RecordBatch::try_from_iter([("ids", ids)]).unwrap();
        let set = base()
            .set_max_row_group_row_count(None)
            .set_dictionary_enabled(false)
            .set_compression(Compression::LZ4_RAW);
        let file = written(&batch, set.build());
        let right = by_host_rows(&file);
        let scan = |memory: u64| {
            let reader = Arc::new(feedwater::MemoryReader::new(file.clone()));
            let scan = feedwater::parquet::scan(reader).on_device(&gpu);
            let scan = scan.processor(Processor::Gpu).memory(memory);
            let mut batches = scan.batches().unwrap();
            let rows: Vec<_> = batches
                .by_ref()
                .map(|it| it.unwrap().to_host().unwrap())
                .collect();
            let rows = arrow::compute::concat_batches(&right.schema(), &rows).unwrap();
            assert!(rows == right, "{memory}");
            batches.report().columns.remove(0)
        };
        // For two row groups: the numbers, their pages, and what is stored.
        let ids = scan(2 * 60_000);
        assert!(ids.decompressed_by_gpu.pages > 30, "{ids:?}");
        let ids = scan(2 * 45_000);
        assert_eq!(
            (ids.by_gpu, ids.decompressed_by_gpu.pages),
            (1, 0),
            "{ids:?}"
        );
        let (why, _) = &ids.decompressed_by_host_because[0];
        assert!(why.starts_with("no memory for it"), "{why}");
        let ids = scan(2 * 20_000);
        assert_eq!((ids.by_gpu, ids.by_host), (0, 1), "{ids:?}");
    }
    nothing_left(&session);
}

/// Checksums of all pages, compressed or not, are looked at as the host does it: a wrong one is the host's error.
#[test]
fn checksums_are_looked_at() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let batch = table(150);
        for codec in [CODECS[0], CODECS[1], Compression::UNCOMPRESSED] {
            for version in VERSIONS {
                let set = base()
                    .set_compression(codec)
                    .set_writer_version(version)
                    .set_statistics_enabled(EnabledStatistics::None);
                let right = checksummed(&written(&batch, set.build()));
                let columns = report(agree(&gpu, "right", &right, &whole));
                assert!(columns.iter().all(|column| column.by_host == 0));
                // A bit of the last byte of each chunk, which is one of values, so that nothing else is wrong with most.
                for chunk in chunks(&right) {
                    let (start, len) = chunk.byte_range();
                    let mut wrong = right.to_vec();
                    wrong[(start + len) as usize - 1] ^= 0x40;
                    let what = format!("{codec}, {version:?}, {}", chunk.column_path());
                    let agreed = agree(&gpu, &what, &wrong.into(), &whole);
                    assert!(matches!(agreed, Agreed::Failed), "{what}");
                }
            }
        }
    }
    nothing_left(&session);
}

/// The same file with a checksum in each page header, which the writer of the crate does not make.
pub(crate) fn checksummed(file: &Bytes) -> Bytes {
    let metadata = ParquetMetaDataReader::new();
    let metadata = metadata.parse_and_finish(file).unwrap();
    let mut out = file[..4].to_vec();
    let mut groups = Vec::new();
    for group in metadata.row_groups() {
        let mut columns = Vec::new();
        for chunk in group.columns() {
            let (start, len) = chunk.byte_range();
            let mut rest = &file[start as usize..(start + len) as usize];
            let begin = out.len();
            let mut first_data = None;
            while !rest.is_empty() {
                let header = header_len(rest);
                // Type, sizes; then the struct of the type.
                let mut sizes = &rest[1..];
                let kind = varint(&mut sizes);
                sizes = &sizes[1..];
                varint(&mut sizes);
                sizes = &sizes[1..];
                let size = (varint(&mut sizes) >> 1) as usize;
                let fixed = rest.len() - sizes.len();
                let body = &rest[header..header + size];
                if kind != 2 << 1 {
                    first_data.get_or_insert(out.len());
                }
                out.extend_from_slice(&rest[..fixed]);
                out.push(0x15);
                let crc = crc_32(body) as i32;
                let mut number = ((crc << 1) ^ (crc >> 31)) as u32;
                while number >= 0x80 {
                    out.push(number as u8 | 0x80);
                    number >>= 7;
                }
                out.push(number as u8);
                out.push(rest[fixed] - 0x10);
                out.extend_from_slice(&rest[fixed + 1..header]);
                out.extend_from_slice(body);
                rest = &rest[header + size..];
            }
            let dictionary = chunk.dictionary_page_offset().map(|_| begin as i64);
            let chunk = chunk.clone().into_builder();
            let chunk = chunk
                .set_data_page_offset(first_data.unwrap() as i64)
                .set_dictionary_page_offset(dictionary)
                .set_total_compressed_size((out.len() - begin) as i64)
                .set_offset_index_offset(None)
                .set_offset_index_length(None)
                .set_column_index_offset(None)
                .set_column_index_length(None);
            columns.push(chunk.build().unwrap());
        }
        let group = group.clone().into_builder();
        groups.push(group.set_column_metadata(columns).build().unwrap());
    }
    let metadata = ParquetMetaDataBuilder::new(metadata.file_metadata().clone());
    let metadata = metadata.set_row_groups(groups).build();
    let footer = out.len();
    let mut tail = Vec::new();
    ParquetMetaDataWriter::new(&mut tail, &metadata)
        .finish()
        .unwrap();
    assert!(footer > 4);
    out.extend_from_slice(&tail);
    out.into()
}

fn varint(rest: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let byte = rest[0];
        *rest = &rest[1..];
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return number;
        }
    }
}

/// Bytes of the struct that `bytes` begin with, in Thrift's compact protocol.
fn header_len(bytes: &[u8]) -> usize {
    fn walk(rest: &mut &[u8]) {
        loop {
            let head = rest[0];
            *rest = &rest[1..];
            match head & 15 {
                0 => return,
                1 | 2 => {}
                5 | 6 => _ = varint(rest),
                8 => {
                    let len = varint(rest) as usize;
                    *rest = &rest[len..];
                }
                12 => walk(rest),
                other => panic!("{other}"),
            }
        }
    }
    let mut rest = bytes;
    walk(&mut rest);
    bytes.len() - rest.len()
}

fn crc_32(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    });
    !crc
}

/// Values that are changed inside of compressed pages: what the device takes the host takes, and the same; what it refuses the host
/// looks at, whose answer or error counts.
#[test]
fn damaged_streams_are_the_hosts_to_judge() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let batch = table(90).project(&[1, 2, 5, 9]).unwrap();
        let (mut right, mut wrong, mut by_gpu, mut by_host) = (0, 0, 0, 0);
        for codec in CODECS {
            for version in VERSIONS {
                let set = base()
                    .set_compression(codec)
                    .set_writer_version(version)
                    .set_statistics_enabled(EnabledStatistics::None)
                    .set_encoding(Encoding::PLAIN)
                    .set_dictionary_enabled(version == VERSIONS[0]);
                let file = written(&batch, set.build());
                let chunks = chunks(&file);
                for round in 0..48u64 {
                    let mut random = 0x9E37_79B9 * (round + 1) + u64::from(codec == CODECS[0]);
                    let mut next = |below: usize| {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        (random >> 3) as usize % below
                    };
                    let mut bytes = file.to_vec();
                    let (start, len) = chunks[next(chunks.len())].byte_range();
                    let (start, len) = (start as usize, len as usize);
                    // Past the first header, more or less.
                    for _ in 0..=next(2) {
                        let at = start + 20 + next(len - 20);
                        bytes[at] = [bytes[at] ^ 1 << next(8), 0xff, 0][next(3)];
                    }
                    let what = format!("{codec}, {version:?}, {round}");
                    let agreed = agree(&gpu, &what, &bytes.into(), &whole);
                    match &agreed {
                        Agreed::Rows(..) => right += 1,
                        Agreed::Failed => wrong += 1,
                    }
                    let (gpu, host) = agreed.counts();
                    (by_gpu, by_host) = (by_gpu + gpu, by_host + host);
                }
            }
        }
        eprintln!("{right} right, {wrong} wrong; chunks: {by_gpu} by the GPU, {by_host} not");
        assert!(
            right > 20 && wrong > 20 && by_gpu > 80,
            "{right} {wrong} {by_gpu}"
        );
    }
    nothing_left(&session);
}

/// A page that is right for the host and not for the device alone does not exist; but one that the device refuses beside others that it
/// takes: the column is the host's error, or its own if it is empty of values.
#[test]
fn a_page_of_another_length_is_refused_with_its_reason() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let values = (0..120).map(|row| [row as u8; 4]);
        let array = FixedSizeBinaryArray::try_from_iter(values).unwrap();
        let array: ArrayRef = Arc::new(array);
        let batch = RecordBatch::try_from_iter([("fixed", array)]).unwrap();
        let set = base()
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_compression(Compression::SNAPPY);
        let file = written(&batch, set.build());
        let (start, _) = chunks(&file)[0].byte_range();
        let at = start as usize + header_len(&file[start as usize..]);
        // The length of 240 that Snappy has in front, of which one less is not what its elements make.
        assert_eq!(file[at..at + 2], [0xf0, 1]);
        let mut wrong = file.to_vec();
        wrong[at] = 0xef;
        let wrong = Bytes::from(wrong);
        let host = by_host(&wrong, &whole).unwrap_err();
        let device = on_device(&gpu, &wrong, Processor::Gpu, &whole).unwrap_err();
        assert!(matches!(host.kind(), ErrorKind::Malformed { .. }), "{host}");
        assert_eq!(host.to_string(), device.to_string());
    }
    nothing_left(&session);
}
