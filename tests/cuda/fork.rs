//! A child of a fork, where CUDA does not work: every call says so, and dropping touches nothing.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use feedwater::cuda::{self, Device, Family, NoCuda};
use feedwater::{Batch, Error, ErrorKind, Reader, ReaderExt};

use crate::common::alone::alone;
use crate::support::*;

#[test]
fn in_a_child_everything_is_forked() {
    alone("fork::in_a_child_alone");
}

fn forked<T>(outcome: Result<T, Error>) -> bool {
    outcome.is_err_and(|error| matches!(error.kind(), ErrorKind::Forked))
}

#[test]
#[ignore = "run by `in_a_child_everything_is_forked`, in a process of its own"]
fn in_a_child_alone() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let bytes = data(300_000);
        let reader = reader(&gpu, &bytes);
        let block = read(&gpu, &reader, 0..300_000).unwrap();
        let device_bytes = block.clone().into_device().unwrap();
        let stream = gpu.stream().unwrap();
        let event = stream.record().unwrap();
        let (pinned, managed) = (gpu.pinned(10).unwrap(), gpu.managed(10).unwrap());
        let pending = reader.submit(Batch::new().any_at(0..300_000, gpu.place()));
        // SAFETY: the child runs on the only thread it has, touches no lock but those of the code under test and of the allocator (which
        // glibc makes usable again in a child), and leaves through `_exit` in any case.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let checks = AssertUnwindSafe(|| {
                let module = gpu.module(Family::new("none", ""));
                let answers = [
                    cuda::available().is_err_and(|why| why == NoCuda::Forked),
                    forked(Device::open(0)),
                    forked(gpu.allocate(5)),
                    forked(gpu.allocate(0)),
                    forked(gpu.allocate_in(&stream, 5)),
                    forked(gpu.pinned(5)),
                    forked(gpu.managed(5)),
                    forked(gpu.memory()),
                    forked(gpu.stream()),
                    forked(gpu.to_host(&device_bytes)),
                    forked(gpu.used_in(&stream, &device_bytes)),
                    forked(module),
                    forked(stream.synchronize()),
                    forked(stream.record()),
                    forked(stream.wait_for(&event)),
                    forked(event.is_done()),
                    forked(read(&gpu, &reader, 0..10)),
                    forked(reader.read(0..10).wait()),
                    forked(pending.wait()),
                    gpu.stats() == Default::default(),
                ];
                gpu.trim();
                let wrong = answers.iter().position(|answer| !answer);
                drop((
                    block,
                    device_bytes,
                    stream,
                    event,
                    pinned,
                    managed,
                    reader,
                    gpu,
                ));
                wrong.map_or(0, |index| index + 1)
            });
            // SAFETY: ends a child that hangs, and leaves without running anything of the parent's.
            unsafe {
                libc::alarm(30);
                libc::_exit(catch_unwind(checks).map_or(255, |code| code as i32))
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above, with a place for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(
            status,
            0,
            "{:#x}: the check that failed is {}",
            status,
            status >> 8
        );
        // The parent goes on as if nothing had been.
        let blocks = pending.wait().unwrap();
        assert_eq!(on_device(&gpu, &blocks[0]), bytes);
        assert_eq!(on_device(&gpu, &block), bytes);
    }
    nothing_left(&session);
}
