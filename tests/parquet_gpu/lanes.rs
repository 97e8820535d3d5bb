//! Two row groups at a time, each in a stream of its own.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::result;
use feedwater::cuda::{Device, DeviceOptions};
use feedwater::parquet::scan;
use feedwater::{Batch, MemoryReader, Pending, Processor, ReadInto, Reader, Result, Source};

use crate::common::alone::alone;
use crate::cuda::{STREAMS, is_software, nothing_left, session};
use crate::faults::file;
use crate::support::{by_host, joined, on_device, whole};

/// No kernel is queued in a stream that both have, and both have some queued at one time.
#[test]
fn each_lane_works_in_its_own_stream() {
    if !is_software(&session("lazy")) {
        return;
    }
    let file = file();
    let right = by_host(&file, &whole).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let session = session("lazy");
        {
            let gpu = Device::open(0).unwrap();
            let (rows, _) = on_device(&gpu, &file, Processor::Gpu, &whole).unwrap();
            assert!(rows == right);
        }
        let counts = session.counts();
        assert!((1..=2).contains(&counts.kernel_streams), "{counts:?}");
        nothing_left(&session);
        // One thread may have done both row groups before the other had begun.
        if counts.streams_at_once == 2 {
            break;
        }
        assert!(Instant::now() < deadline, "{counts:?}");
    }
}

/// Whatever the order in which threads of kernels run, and with memory that is used again and again, as long as batches are held.
#[test]
fn values_are_right_in_every_order() {
    let file = file();
    let right = by_host(&file, &whole).unwrap();
    for streams in STREAMS {
        for schedule in ["in-order", "reversed", "shuffled:7", "apart"] {
            let mut session = session(streams);
            session.set("SCHEDULE", schedule);
            session.set("CHECKS", "all");
            {
                let gpu = DeviceOptions::default().chunk(1 << 16).open(0).unwrap();
                let mut held = Vec::new();
                for _ in 0..3 {
                    let reader = Arc::new(MemoryReader::new(file.clone()));
                    let scan = scan(reader).on_device(&gpu).processor(Processor::Gpu);
                    let batches: feedwater::Result<Vec<_>> = scan.batches().unwrap().collect();
                    held.push(batches.unwrap());
                }
                for batches in held {
                    let host = batches.iter().map(|batch| batch.to_host().unwrap());
                    let host: Vec<_> = host.collect();
                    assert!(
                        joined(&right.schema(), &host) == right,
                        "{streams} {schedule}"
                    );
                }
            }
            assert_eq!(
                session.findings(),
                Vec::<String>::new(),
                "{streams} {schedule}"
            );
            nothing_left(&session);
        }
    }
}

/// Notes whether the threads that decode have a CUDA context, when they ask for bytes.
#[derive(Debug)]
struct Looking {
    inner: MemoryReader,
    found: Mutex<Vec<bool>>,
}

impl Reader for Looking {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        if thread::current().name() == Some("feedwater-dec") {
            let current = result::ctx::get_current().unwrap();
            self.found.lock().unwrap().push(current.is_some());
        }
        self.inner.submit(batch)
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.inner.read_now(reads)
    }
}

/// Threads that decoded for the device do so for others afterwards, whose readers may use CUDA in their own way.
#[test]
fn threads_leave_no_context_behind() {
    alone("lanes::threads_alone");
}

#[test]
#[ignore = "run by `threads_leave_no_context_behind`, in a process whose threads no other test has"]
fn threads_alone() {
    let file = file();
    let session = session("eager");
    let mut looks = 0;
    for _ in 0..10 {
        let gpu = Device::open(0).unwrap();
        on_device(&gpu, &file, Processor::Gpu, &whole).unwrap();
        drop(gpu);
        let reader = Arc::new(Looking {
            inner: MemoryReader::new(file.clone()),
            found: Mutex::default(),
        });
        let batches = scan(reader.clone()).threads(2).batches().unwrap();
        assert!(
            batches
                .map(|batch| batch.unwrap().num_rows())
                .sum::<usize>()
                > 0
        );
        let found = reader.found.lock().unwrap();
        looks += found.len();
        assert!(!found.contains(&true), "{found:?}");
    }
    assert!(looks > 0);
    nothing_left(&session);
}
