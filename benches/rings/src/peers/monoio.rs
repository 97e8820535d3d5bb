//! monoio, with its io_uring driver.

use std::rc::Rc;

use monoio::buf::{IoBuf, IoBufMut};
use monoio::fs::File;
use monoio::{IoUringDriver, RuntimeBuilder};

use crate::job::{Job, Pages, Queue, Ran, Tally, drain};
use crate::turns::Clock;

// SAFETY: the memory neither moves nor ends while the value lives, and all of it is initialised.
unsafe impl IoBuf for Pages {
    fn read_ptr(&self) -> *const u8 {
        self.ptr()
    }
    fn bytes_init(&self) -> usize {
        self.capacity()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Pages {
    fn write_ptr(&mut self) -> *mut u8 {
        self.ptr()
    }
    fn bytes_total(&mut self) -> usize {
        self.capacity()
    }
    unsafe fn set_init(&mut self, len: usize) {
        self.filled = len;
    }
}

/// As many tasks as the depth.
pub(crate) fn read(job: &Job, clock: &mut Clock) -> Ran {
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new().build()?;
    runtime.block_on(async {
        let file = Rc::new(File::from_std(job.open()?)?);
        let queue = Rc::new(Queue::of(job));
        let buffers: Vec<Pages> = (0..job.depth).map(|_| Pages::new(job.size)).collect();
        let mut tally = Tally::by(clock);
        clock.start();
        let tasks: Vec<_> = buffers
            .into_iter()
            .map(|pages| {
                let (file, queue) = (file.clone(), queue.clone());
                monoio::spawn(async move {
                    drain(&queue, pages, tally, async |pages, at| {
                        file.read_at(pages, at).await
                    })
                    .await
                })
            })
            .collect();
        for task in tasks {
            tally.add(task.await?);
        }
        clock.stop();
        Ok((tally, format!("{} in flight", job.depth)))
    })
}
