//! The conformance suite with every byte on its way through the device's memory.

use std::sync::Arc;

use bytes::Bytes;
use feedwater::conformance::{self, Capabilities, Content, Opened, Subject};
use feedwater::cuda::{Device, DeviceOptions, Guard};
use feedwater::{
    Batch, Block, Dest, Failed, OpenOptions, Pending, ReadInto, Reader, Result, Route, Source,
    StagingOptions, read_now_by_submit,
};

use crate::support::*;

/// Reads to the device, and from there to the host: what arrives is what the device had.
#[derive(Debug)]
struct ThroughDevice {
    gpu: Arc<Device>,
    inner: Arc<feedwater::Opened>,
    /// With counters of its own: the inner reader counts its reads.
    source: Source,
}

impl ThroughDevice {
    fn new(gpu: Arc<Device>, inner: Arc<feedwater::Opened>) -> Self {
        let found = inner.source();
        let source = Source::new(
            found.name().clone(),
            found.engine(),
            found.version().clone(),
            found.limits(),
        );
        ThroughDevice { gpu, inner, source }
    }
}

impl Reader for ThroughDevice {
    fn source(&self) -> &Source {
        &self.source
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, options, pending) = batch.start(&self.source);
        let place = self.gpu.place();
        let batch = started.iter().fold(Batch::new(), |batch, (read, _)| {
            let range = read.range.clone();
            match &read.dest {
                Dest::Prefetch => batch.prefetch(range),
                _ => batch.any_at(range, place),
            }
        });
        let mut inner = self.inner.submit(batch.options(options));
        let (gpu, counters) = (self.gpu.clone(), self.source.counters().clone());
        std::thread::spawn(move || {
            let mut started: Vec<_> = started.into_iter().map(Some).collect();
            while let Some((index, outcome)) = inner.wait_next() {
                let Some((read, ticket)) = started[index].take() else {
                    continue;
                };
                if outcome.is_ok() && !matches!(read.dest, Dest::Prefetch) {
                    let bytes = read.len();
                    counters.add_read(bytes);
                    counters.add_route(Route::Other, bytes);
                }
                ticket.finish(back(&gpu, read.dest, outcome));
                if started.iter().flatten().all(|(_, ticket)| !ticket.wanted()) {
                    break;
                }
            }
        });
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        read_now_by_submit(self, reads)
    }
}

/// What the device has, where the caller wants it.
fn back(gpu: &Device, dest: Dest, outcome: Result<Block, Failed>) -> Result<Block, Failed> {
    let bytes = match outcome.map(Block::into_device) {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return Ok(Block::Host(Bytes::new())), // a hint
        Err(failed) => return Err(Failed::new(failed.error, dest)),
    };
    let bytes = match gpu.to_host(&bytes) {
        Ok(bytes) => bytes,
        Err(error) => return Err(Failed::new(error, dest)),
    };
    match dest {
        Dest::Into(mut block) => match block.put(&bytes) {
            Ok(()) => Ok(block.freeze()),
            Err(error) => Err(Failed::new(error, Dest::Into(block))),
        },
        _ => Ok(Block::Host(bytes.into())),
    }
}

struct Files {
    streams: &'static str,
    guard: Guard,
}

impl Subject for Files {
    fn name(&self) -> String {
        format!("through a device, {} streams", self.streams)
    }

    fn open(&self, content: &Content) -> Result<Opened> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("content");
        content.write_to(&path).unwrap();
        let gpu = DeviceOptions::default().guard(self.guard).open(0)?;
        let inner = OpenOptions::new()
            .device(gpu.clone())
            .staging(StagingOptions::default().block(256 << 10))
            .open(&path)?;
        let reader = ThroughDevice::new(gpu, inner);
        Ok(Opened::new(reader).file(path).keep(dir))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().device(true)
    }
}

#[test]
fn eager_streams() {
    suite("eager", Guard::None);
}

#[test]
fn lazy_streams_with_gaps() {
    suite("lazy", Guard::Gaps);
}

fn suite(streams: &'static str, guard: Guard) {
    let session = session(streams);
    let report = conformance::run(Files { streams, guard });
    let skipped: Vec<_> = report.skipped().collect();
    eprintln!("{skipped:?}");
    nothing_left(&session);
}
