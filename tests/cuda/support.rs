//! What the tests of GPUs share.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use feedwater::cuda::Device;
use feedwater::{Batch, Block, OpenOptions, Opened, Reader, StagingOptions};
use software_cuda_preload::{Device as On, Session};

use crate::common::skip::require;

/// Both ways in which the device does what is queued: at once, and when somebody waits for it.
pub(crate) const STREAMS: [&str; 2] = ["eager", "lazy"];

/// Bytes that differ at every offset that tests could mix up.
pub(crate) fn data(len: usize) -> Bytes {
    (0..len)
        .map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8)
        .collect::<Vec<_>>()
        .into()
}

/// A session with streams of this kind.
pub(crate) fn session(streams: &str) -> Session {
    let mut session = Session::begin();
    session.set("STREAMS", streams);
    session
}

/// Bytes in memory behind a reader that delivers to the device, in small pieces.
pub(crate) fn reader(gpu: &Arc<Device>, bytes: &Bytes) -> Arc<Opened> {
    let staging = StagingOptions::default().block(64 << 10).depth(3);
    OpenOptions::new()
        .device(gpu.clone())
        .staging(staging)
        .open_bytes(bytes.clone(), "bytes")
        .unwrap()
}

/// What a block has, which must be the device's.
pub(crate) fn on_device(gpu: &Device, block: &Block) -> Vec<u8> {
    gpu.to_host(&block.clone().into_device().unwrap()).unwrap()
}

/// Reads a range to the device.
pub(crate) fn read(
    gpu: &Device,
    reader: &Opened,
    range: std::ops::Range<u64>,
) -> feedwater::Result<Block> {
    let batch = Batch::new().any_at(range, gpu.place());
    reader
        .submit(batch)
        .wait()
        .map(|mut blocks| blocks.remove(0))
}

/// Whether what follows can be tested: injected errors and made-up limits, which a real device does not have. Says so if not.
pub(crate) fn is_software(session: &Session) -> bool {
    let software = match session.device() {
        On::Software => Ok(()),
        On::Real => Err("the tests run on a real device"),
    };
    require("software-cuda", software).is_some()
}

/// Waits for threads that end by themselves, until nothing is in use any more; fails if something stays.
pub(crate) fn nothing_left(session: &Session) {
    if session.device() == On::Real {
        return;
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Some(left) = session.counts().leaks() {
        assert!(Instant::now() < deadline, "left: {left:?}");
        std::thread::yield_now();
    }
}

/// Most bytes that may be moved for each of the least.
const MOST: f64 = 1.3;

/// What was moved is not below the least that the stages need, or that is none, and not much more.
pub(crate) fn near(name: &str, all: f64, least: f64) {
    assert!(
        all >= least && all <= least * MOST,
        "{name}: {all} bytes each, the least is {least}"
    );
}

/// Holds a table of counts to the one in the repository: numbers may differ by 5 %. `FEEDWATER_WRITE_COUNTS` writes it.
pub(crate) fn held(name: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("FEEDWATER_WRITE_COUNTS").is_some() {
        std::fs::write(&path, table).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert_eq!(committed.lines().count(), table.lines().count(), "{table}");
    for (was, is) in committed.lines().zip(table.lines()) {
        for (was_one, is_one) in was.split('\t').zip(is.split('\t')) {
            let near = match (was_one.parse::<f64>(), is_one.parse::<f64>()) {
                (Ok(was), Ok(is)) => (was - is).abs() <= 0.05 * was + 0.002,
                _ => was_one == is_one,
            };
            assert!(near, "was {was}\nis {is}");
        }
    }
}
