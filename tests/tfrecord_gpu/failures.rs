//! Calls of the driver that fail, and memory that there is not: the same rows or a typed error, and nothing left.

use std::sync::Arc;

use bytes::Bytes;
use feedwater::cuda::{Dense, Device, DeviceOptions, ElementType};
use feedwater::tfrecord::{Boundaries, ExampleSchema, Feature, ValueType, examples};
use feedwater::{Error, ErrorKind, OpenOptions, Result};
use software_cuda_preload::Session;

use crate::beside::{file, header};
use crate::messages::{bytes, example, ints};
use crate::support::*;

/// A record that is odd, one that holds a header, and one that is not what is asked for at the end.
fn data_of() -> Vec<u8> {
    let mut records: Vec<_> = (0..20i64)
        .map(|id| example([("id", ints([id])), ("pixels", bytes([&[id as u8; 4]]))]))
        .collect();
    // An unknown field behind the features.
    records[5].extend([0x50, 1]);
    records[9] = example([
        ("id", ints([9])),
        ("pixels", bytes([&[9; 4]])),
        ("other", bytes([&header(70)])),
    ]);
    records[17] = example([("id", ints([17])), ("pixels", bytes([&[1; 5]]))]);
    file(&records)
}

fn scenario(data: &Bytes, boundaries: Boundaries, ahead: usize) -> Result<(usize, Vec<u8>)> {
    scanned(&Device::open(0)?, data, boundaries, ahead)
}

fn scanned(
    gpu: &Arc<Device>,
    data: &Bytes,
    boundaries: Boundaries,
    ahead: usize,
) -> Result<(usize, Vec<u8>)> {
    let reader = OpenOptions::new()
        .device(gpu.clone())
        .open_bytes(data.clone(), "data")?;
    let schema = ExampleSchema::new()
        .with(Feature::scalar("id", ValueType::Int64).required())
        .with(Feature::scalar("pixels", ValueType::Binary).required());
    let scan = examples(reader).schema(schema).batch_rows(8);
    let pixels = Dense::cast(&[4], ElementType::U8, ElementType::F32);
    let scan = scan.on_device(gpu).tensor("pixels", pixels).ahead(ahead);
    let (mut rows, mut all) = (0, Vec::new());
    for batch in scan.boundaries(boundaries).window_bytes(700).batches()? {
        match batch {
            Ok(batch) => {
                rows += batch.columns().to_host()?.num_rows();
                all.extend(gpu.to_host(batch.tensors()[0].bytes())?);
            }
            Err(error) if matches!(error.kind(), ErrorKind::Malformed { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    Ok((rows, all))
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

/// Runs the scenario so many times, each with a failure at another index.
fn at_indexes(
    streams: &str,
    (boundaries, ahead): (Boundaries, usize),
    runs: u64,
    inject: impl Fn(&mut Session, u64),
) -> u64 {
    let mut session = session(streams);
    let data: Bytes = data_of().into();
    let before = session.counts();
    let wanted = scenario(&data, boundaries, ahead).unwrap();
    assert_eq!(wanted.0, 17);
    nothing_left(&session);
    let most = session.counts().calls - before.calls;
    let mut failed = 0;
    for run in 0..runs {
        // Spread over all of it, and not always at the same call of a batch.
        let index = run * most / runs + run % 5;
        inject(&mut session, index);
        match scenario(&data, boundaries, ahead) {
            Ok(got) => assert_eq!(got, wanted, "{streams}, index {index}"),
            Err(error) => {
                assert!(is_of_cuda(&error), "{streams}, index {index}: {error}");
                failed += 1;
            }
        }
        session.fail_nothing();
        nothing_left(&session);
    }
    assert_eq!(scenario(&data, boundaries, ahead).unwrap(), wanted);
    nothing_left(&session);
    failed
}

#[test]
fn an_error_at_calls_of_the_driver() {
    if !is_software(&session("eager")) {
        return;
    }
    for (streams, boundaries, ahead, code, runs) in [
        ("eager", Boundaries::Host, 2, 1, 20),
        ("lazy", Boundaries::Host, 0, 700, 16),
        ("eager", Boundaries::Device, 2, 700, 10),
        ("lazy", Boundaries::Device, 1, 1, 20),
    ] {
        let failed = at_indexes(streams, (boundaries, ahead), runs, |session, index| {
            session.fail_call(index, code);
        });
        assert!(failed > 5, "{streams} {code}: {failed}");
    }
}

#[test]
fn no_memory_at_allocations() {
    if !is_software(&session("eager")) {
        return;
    }
    for (streams, boundaries, ahead) in [
        ("eager", Boundaries::Device, 0),
        ("lazy", Boundaries::Host, 0),
        ("lazy", Boundaries::Device, 2),
        ("eager", Boundaries::Host, 2),
    ] {
        let failed = at_indexes(streams, (boundaries, ahead), 16, |session, index| {
            session.fail_allocation(index / 4);
        });
        // What fails ahead is tried again.
        assert!(failed > 0 || ahead > 0, "{streams}: {failed}");
    }
}

/// Where nobody can know whether work that was queued is over, it does not write to what others have after that: batches of the same shapes, in
/// memory that is used again.
#[test]
fn after_calls_that_fail_the_device_gives_the_same() {
    if !is_software(&session("lazy")) {
        return;
    }
    let data: Bytes = data_of().into();
    // Where more of them fail, copies cannot be waited for, and what they copy from stays for good.
    for (boundaries, ahead) in [
        (Boundaries::Host, 2),
        (Boundaries::Host, 0),
        (Boundaries::Device, 2),
    ] {
        let (mut failed, mut index, mut calls) = (0, 0, 1);
        while index < calls {
            let mut session = session("lazy");
            let gpu = DeviceOptions::default().chunk(64 << 10).open(0).unwrap();
            // The kernels are loaded.
            let right = scanned(&gpu, &data, boundaries, ahead).unwrap();
            let before = session.counts().calls;
            assert!(scanned(&gpu, &data, boundaries, ahead).unwrap() == right);
            calls = session.counts().calls - before;
            session.fail_calls(index, 2, 1);
            match scanned(&gpu, &data, boundaries, ahead) {
                Ok(got) => assert!(got == right, "{boundaries:?} {ahead}, from call {index} on"),
                Err(error) => {
                    assert!(is_of_cuda(&error), "{error}");
                    failed += 1;
                }
            }
            session.fail_nothing();
            for _ in 0..2 {
                let got = scanned(&gpu, &data, boundaries, ahead).unwrap();
                assert!(got == right, "{boundaries:?} {ahead}, from call {index} on");
            }
            drop(gpu);
            nothing_left(&session);
            index += calls.div_ceil(16);
        }
        assert!(failed > 3, "{failed}");
    }
}
