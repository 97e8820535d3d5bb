//! What `convert` writes is the same file, whoever decoded it; and what arrays say that are no tensors.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Int64Array, RecordBatch};
use feedwater::cuda::Device;
use feedwater::{DeviceArray, MemoryReader, Processor, parquet as pq};
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::cuda::{nothing_left, session};
use crate::nested;
use crate::programs::{run, shown};
use crate::strings::strings;
use crate::table::{Expected, FILES};
use crate::tables::{Nulls, flat, other, written};
use crate::{common, corpus};

/// More rows than a batch of the host has, with values that nulls are written over.
fn long() -> RecordBatch {
    let rows = 0..8192 + 301i64;
    let ids: Int64Array = rows
        .clone()
        .map(|row| (row % 3 != 1).then_some(row))
        .collect();
    let bits: BooleanArray = rows
        .clone()
        .map(|row| (row % 5 > 1).then_some(row % 2 == 0))
        .collect();
    let all: BooleanArray = rows.map(|row| Some(row % 7 == 0)).collect();
    let columns: [(&str, ArrayRef); 3] = [
        ("ids", Arc::new(ids)),
        ("bits", Arc::new(bits)),
        ("all", Arc::new(all)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

#[test]
fn the_same_bytes_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let ways = [Nulls::Required, Nulls::None, Nulls::Some, Nulls::All];
    for (name, batch) in [
        ("flat", flat(200, &ways)),
        ("other", other(200)),
        ("strings", strings(200, &ways)),
        ("nested", nested::batch(nested::fields(), 60, 7)),
        ("texts", nested::batch(nested::texts(), 60, 8)),
        ("long", long()),
    ] {
        let set = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(batch.num_rows() * 2 / 3));
        let input = dir.path().join(name);
        std::fs::write(&input, written(&batch, set.build())).unwrap();
        let by = |device: &str| {
            let output = dir.path().join(format!("{name}.{device}"));
            let args: [&Path; 4] = ["--device".as_ref(), device.as_ref(), &input, &output];
            let (_, said) = shown("convert", &args);
            (std::fs::read(output).unwrap(), said)
        };
        let ((host, _), (gpu, said)) = (by("cpu"), by("gpu"));
        assert!(
            host == gpu,
            "{name}: {} and {} bytes",
            host.len(),
            gpu.len()
        );
        assert!(
            said.contains(" row groups by the GPU, 0 by the host"),
            "{said}"
        );
    }
}

/// Of real files, too, as their writers made pages, types and names; one that cannot be converted fails either way.
#[test]
fn the_same_bytes_are_written_of_the_corpus() {
    // Of thousands of pages, which take the software device ten seconds each; `corpus` compares their arrays.
    const SLOW: &[&str] = &[
        "alltypes_tiny_pages.parquet",
        "alltypes_tiny_pages_plain.parquet",
        "overflow_i16_page_cnt.parquet",
    ];
    let Some(folder) = common::corpus::folder("parquet") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (mut same, mut by_gpu) = (0, 0);
    for name in corpus::names(&folder) {
        let (_, expected) = FILES.iter().find(|(file, _)| *file == name).unwrap();
        if matches!(expected, Expected::Csv | Expected::Aside) || SLOW.contains(&name.as_str()) {
            continue;
        }
        let input = folder.join(&name);
        let by = |device: &str| {
            let output = dir.path().join(device);
            let args: [&Path; 4] = ["--device".as_ref(), device.as_ref(), &input, &output];
            let ran = run("convert", &args);
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            let written = ran.status.success().then(|| std::fs::read(output).unwrap());
            (written, said)
        };
        let ((host, host_said), (gpu, said)) = (by("cpu"), by("gpu"));
        assert!(host == gpu, "{name}: {host_said}; {said}");
        let is_malformed = matches!(expected, Expected::Malformed { .. });
        assert_eq!(host.is_none(), is_malformed, "{name}: {host_said}");
        same += u32::from(host.is_some());
        by_gpu += u32::from(said.contains(" by the GPU, 0 by the host"));
    }
    eprintln!("{same} files, of {by_gpu} a column by the GPU alone");
    assert!(
        same > 50 && by_gpu > 30,
        "{same} files, {by_gpu} by the GPU"
    );
}

#[test]
fn what_is_no_tensor_says_why() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let column = |batch: RecordBatch, number: usize| -> DeviceArray {
            let batch = batch.project(&[number]).unwrap();
            let file = written(&batch, WriterProperties::builder().build());
            let scan = pq::scan(Arc::new(MemoryReader::new(file))).on_device(&gpu);
            let mut batches = scan.processor(Processor::Gpu).batches().unwrap();
            let batch = batches.next().unwrap().unwrap();
            batch.columns()[0].clone()
        };
        let of = |batch: RecordBatch, name: &str| {
            let at = batch.schema().index_of(name).unwrap();
            column(batch, at)
        };
        let ids = of(long(), "ids");
        let texts = of(other(20), "texts");
        let lists = of(other(20), "lists");
        let words = of(other(20), "words");
        for (array, said) in [
            (
                &ids,
                "a tensor of Int64: it has 2831 nulls, for which a tensor has no place; `validity` says which",
            ),
            (
                &of(long(), "all"),
                "a tensor of Boolean: it has bits, and DLPack bytes",
            ),
            (
                &texts,
                "a tensor of Utf8: its values may differ in length; offsets and bytes are in `buffers`",
            ),
            (
                &words,
                "it has indices of a dictionary; they are in `buffers`",
            ),
            (
                &lists,
                "it has 4 nulls, for which a tensor has no place; `validity` says which, and the items are in `children`",
            ),
        ] {
            let error = array.tensor().unwrap_err().to_string();
            assert!(
                error.starts_with("not supported: a tensor of ") && error.contains(said),
                "{error}"
            );
        }
        let error = ids.tensor_of_lists(&[2]).unwrap_err().to_string();
        assert!(error.contains("it has 2831 nulls"), "{error}");
        let error = words.tensor_of_lists(&[2]).unwrap_err().to_string();
        assert!(error.contains("which is no list"), "{error}");
        let error = texts.tensor_of_rows(feedwater::cuda::DlType::UInt(8));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("only values of FixedSizeBinary"), "{error}");
    }
    nothing_left(&session);
}

/// A small file comes as a whole with its footer: who asks where its bytes are is told so, by either.
#[test]
fn what_came_with_the_footer_is_said() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let file = written(&other(1), WriterProperties::builder().build());
        let scan = || pq::scan(Arc::new(MemoryReader::new(file.clone())));
        let mut batches = scan().batches().unwrap();
        let plan = batches.plan().clone();
        let bytes = plan.bytes_with_footer;
        assert_eq!((bytes, plan.requests()), (plan.bytes_read(), 1));
        let said = format!("read in 1 request, of which {bytes} bytes came with the footer");
        assert!(plan.to_string().ends_with(&said), "{plan}");
        assert_eq!(batches.by_ref().count(), 1);
        let report = batches.report();
        assert_eq!((report.requests, report.bytes), (0, 0));
        assert_eq!(report.bytes_with_footer, bytes);
        let mut batches = scan().on_device(&gpu).batches().unwrap();
        assert_eq!(batches.by_ref().count(), 1);
        let report = batches.report().to_string();
        let said = format!(
            "1 row in 1 batch; 0 bytes in 0 requests, and {bytes} bytes that had come with the footer\n"
        );
        assert!(report.starts_with(&said), "{report}");
    }
    nothing_left(&session);
}
