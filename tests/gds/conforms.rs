//! The suite that every reader goes through, with each host destination replaced by one on the device.

use std::path::Path;
use std::sync::Arc;

use feedwater::conformance::{self, Capabilities};
use feedwater::cuda::Device;
use feedwater::gds::{Gds, GdsMode};
use feedwater::{
    Batch, BlockMut, Dest, Failed, Opened, Pending, Place, ReadInto, Reader, Result, Source,
    Staged, Ticket,
};
use software_cuda_preload::cufile::Cufile;

use crate::common::subjects::FileSubject;
use crate::support::*;

/// Reads to the device, and hands out what is there then.
#[derive(Debug)]
struct ByDevice {
    inner: Arc<Gds<Staged<Opened>>>,
    gpu: Arc<Device>,
}

/// Where the bytes of a read were wanted.
enum Wanted {
    Any,
    Into(BlockMut),
    /// Nothing to be copied.
    AsItIs,
}

impl ByDevice {
    /// The same read, to the device.
    fn on_device(&self, batch: Batch, dest: Dest, range: std::ops::Range<u64>) -> (Batch, Wanted) {
        let place = self.gpu.place();
        match dest {
            Dest::Any(Place::Host) => (batch.any_at(range, place), Wanted::Any),
            Dest::Into(block) if block.place() == Place::Host => {
                let len = usize::try_from(range.end - range.start).unwrap();
                let there = self.gpu.allocate(len).unwrap();
                (batch.read_into(range, there), Wanted::Into(block))
            }
            Dest::Any(place) => (batch.any_at(range, place), Wanted::AsItIs),
            Dest::Into(block) => (batch.read_into(range, block), Wanted::AsItIs),
            _ => (batch.prefetch(range), Wanted::AsItIs),
        }
    }
}

fn hand_over(
    gpu: &Device,
    ticket: Ticket,
    wanted: Wanted,
    outcome: Result<feedwater::Block, Failed>,
) {
    let copied = |block: feedwater::Block| gpu.to_host(&block.into_device()?);
    ticket.finish(match (outcome, wanted) {
        (outcome, Wanted::AsItIs) => outcome,
        (Ok(block), Wanted::Any) => copied(block)
            .map(|bytes| bytes::Bytes::from(bytes).into())
            .map_err(Failed::from),
        (Ok(block), Wanted::Into(mut to)) => match copied(block).and_then(|bytes| to.put(&bytes)) {
            Ok(()) => Ok(to.freeze()),
            Err(error) => Err(Failed {
                error,
                dest: Some(to),
            }),
        },
        (Err(failed), Wanted::Any) => Err(failed.error.into()),
        (Err(failed), Wanted::Into(to)) => Err(Failed {
            error: failed.error,
            dest: Some(to),
        }),
    });
}

impl Reader for ByDevice {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        let source = self.source();
        let tickets = Source::new(
            source.name().clone(),
            source.engine(),
            source.version().clone(),
            source.limits(),
        );
        let all = batch.reads.len();
        let (started, options, pending) = batch.start(&tickets);
        // The reader below does not hear of those that no reader could do.
        let refused = all - started.len();
        source.counters().add_reads(refused as u64);
        let mut down = Batch::new().options(options);
        let mut waiting = Vec::new();
        for (read, ticket) in started {
            let (next, wanted) = self.on_device(down, read.dest, read.range);
            down = next;
            waiting.push(Some((ticket, wanted)));
        }
        let (mut below, gpu) = (self.inner.submit(down), self.gpu.clone());
        std::thread::spawn(move || {
            while let Some((index, outcome)) = below.wait_next() {
                if let Some((ticket, wanted)) = waiting[index].take() {
                    hand_over(&gpu, ticket, wanted, outcome);
                }
            }
        });
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        feedwater::read_now_by_submit(self, reads)
    }
}

fn suite(name: &'static str, gpu: &Arc<Device>) -> conformance::Report {
    let gpu = gpu.clone();
    let open = move |path: &Path| {
        let options = options(path.parent().unwrap()).mode(GdsMode::Require);
        let inner = Arc::new(Gds::new(staged(path, &gpu), &gpu, options)?);
        Ok(Arc::new(ByDevice {
            inner,
            gpu: gpu.clone(),
        }) as _)
    };
    let subject = FileSubject::new(name, open).under(env!("CARGO_TARGET_TMPDIR"));
    conformance::run(subject.capabilities(Capabilities::default().device(true)))
}

#[test]
fn to_the_device_and_back() {
    for streams in STREAMS {
        let session = session(streams);
        let cufile = Cufile::begin(&session);
        {
            let gpu = Device::open(0).unwrap();
            let report = suite(streams, &gpu);
            let passed: Vec<_> = report.passed().collect();
            assert!(passed.len() > 20, "{passed:?}");
            let counts = cufile.counts();
            assert!(counts.reads > 100 && counts.entries > 1000, "{counts:?}");
        }
        nothing_left(&session, &cufile);
    }
}
