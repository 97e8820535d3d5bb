//! Calls of the driver that fail, and memory that there is not: the values, or a typed error; and nothing left.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions};
use feedwater::{Error, ErrorKind, Processor, Result};
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use software_cuda_preload::{Counts, Session};

use crate::cuda::{STREAMS, is_software, nothing_left, session};
use crate::nested;
use crate::strings::strings;
use crate::support::{by_host, on_device, whole};
use crate::tables::{Nulls, flat, other, written};

/// Two row groups with something of each kind.
pub(crate) fn file() -> Bytes {
    let set = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(40));
    let numbers = flat(70, &[Nulls::Some]).project(&[0, 3, 11]).unwrap();
    let texts = strings(70, &[Nulls::Some]).project(&[0]).unwrap();
    let mut wanted = [nested::fields(), nested::texts()].concat();
    wanted.retain(|field| ["of_pairs", "fixed_nulls", "people"].contains(&field.name().as_str()));
    let lists = nested::batch(wanted, 70, 1);
    let batches = [numbers, texts, lists];
    let fields = batches.each_ref().map(|batch| (*batch.schema()).clone());
    let schema = Schema::try_merge(fields).unwrap();
    let columns = batches.iter().flat_map(RecordBatch::columns).cloned();
    let batch = RecordBatch::try_new(Arc::new(schema), columns.collect()).unwrap();
    written(&batch, set.build())
}

fn scenario(file: &Bytes) -> Result<RecordBatch> {
    let gpu = Device::open(0)?;
    Ok(on_device(&gpu, file, Processor::Gpu, &whole)?.0)
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

/// Runs the scenario with a failure at each of the indexes, which ascend, to past the end of what `counted` counts. How many of them failed.
fn at_indexes(
    streams: &str,
    counted: impl Fn(&Counts) -> u64,
    indexes: impl Iterator<Item = u64>,
    inject: impl Fn(&mut Session, u64),
) -> u64 {
    let mut session = session(streams);
    let file = file();
    let right = by_host(&file, &whole).unwrap();
    let before = session.counts();
    assert!(scenario(&file).unwrap() == right);
    nothing_left(&session);
    // Threads take turns, so that the number of calls is not always the same.
    let most = counted(&session.counts()) - counted(&before) + 20;
    let mut failed = 0;
    for index in indexes.take_while(|index| *index < most) {
        inject(&mut session, index);
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
    assert!(scenario(&file).unwrap() == right);
    nothing_left(&session);
    failed
}

#[test]
fn an_error_at_one_call_of_four() {
    if !is_software(&session("eager")) {
        return;
    }
    // Each of any four in turn, so that what follows a pattern is not always passed over; the two ways have none in common.
    for (first, streams, code) in [(0, "eager", 1), (2, "lazy", 700)] {
        let failed = at_indexes(
            streams,
            |counts| counts.calls,
            (0..).map(|four| 4 * four + (four + first) % 4),
            |session, index| session.fail_call(index, code),
        );
        assert!(failed > 10, "{streams} {code}: {failed}");
    }
}

/// Where nobody can know whether work that was queued is over, it does not write to what others have after that: row groups of the same shapes,
/// in memory that is used again.
#[test]
fn after_calls_that_fail_the_device_gives_the_same() {
    if !is_software(&session("lazy")) {
        return;
    }
    let file = file();
    let right = by_host(&file, &whole).unwrap();
    // Where more of them fail, copies cannot be waited for, and what they copy from stays for good.
    let ways = STREAMS
        .into_iter()
        .flat_map(|streams| [(streams, Processor::Gpu), (streams, Processor::Cpu)]);
    for (streams, processor) in ways {
        let (mut failed, mut index, mut calls) = (0, 0, 1);
        while index < calls {
            let mut session = session(streams);
            let gpu = DeviceOptions::default().chunk(64 << 10).open(0).unwrap();
            let scanned =
                || -> Result<RecordBatch> { Ok(on_device(&gpu, &file, processor, &whole)?.0) };
            // The kernels are loaded.
            assert!(scanned().unwrap() == right);
            let before = session.counts().calls;
            assert!(scanned().unwrap() == right);
            calls = session.counts().calls - before;
            session.fail_calls(index, 2, 1);
            match scanned() {
                Ok(got) => assert!(
                    got == right,
                    "{streams}, {processor:?}, from call {index} on"
                ),
                Err(error) => {
                    assert!(is_of_cuda(&error), "{error}");
                    failed += 1;
                }
            }
            session.fail_nothing();
            for _ in 0..2 {
                let got = scanned().unwrap();
                assert!(
                    got == right,
                    "{streams}, {processor:?}, from call {index} on"
                );
            }
            drop(gpu);
            nothing_left(&session);
            index += calls.div_ceil(20);
        }
        assert!(failed > 3, "{processor:?}: {failed}");
    }
}

#[test]
fn no_memory_at_every_allocation() {
    if !is_software(&session("eager")) {
        return;
    }
    // What does not fit is decoded by the host in smaller batches, which need memory as well.
    at_indexes(
        "lazy",
        |counts| counts.allocations,
        0..,
        Session::fail_allocation,
    );
}

#[test]
fn what_does_not_fit_is_divided() {
    let session = session("eager");
    {
        let file = written(&other(3000), WriterProperties::builder().build());
        let right = by_host(&file, &whole).unwrap();
        let gpu = DeviceOptions::default().chunk(1 << 16).open(0).unwrap();
        let reader = feedwater::MemoryReader::new(file);
        let scan = feedwater::parquet::scan(Arc::new(reader)).on_device(&gpu);
        let mut batches = scan
            .processor(Processor::Gpu)
            .memory(64 << 10)
            .batches()
            .unwrap();
        let schema = batches.schema().clone();
        let parts: Vec<_> = batches
            .by_ref()
            .map(|batch| batch.unwrap().to_host().unwrap())
            .collect();
        assert!(parts.len() > 1, "{}", parts.len());
        let all = arrow::compute::concat_batches(&schema, &parts).unwrap();
        assert!(all == right);
        let report = batches.report();
        assert_eq!(report.rows, 3000);
        let ids = &report.columns[0];
        assert_eq!((ids.by_gpu, ids.by_host), (0, 1));
        let (why, _) = &ids.host_because[0];
        assert!(why.contains("more than the 32768 for a row group"), "{why}");
    }
    nothing_left(&session);
}
