//! compio, with its io_uring driver.

use std::mem::MaybeUninit;
use std::rc::Rc;

use compio::BufResult;
use compio::buf::{IoBuf, IoBufMut, SetLen};
use compio::fs::OpenOptions;
use compio::io::AsyncReadAt;
use compio::runtime::Runtime;

use crate::job::{Job, Pages, Queue, Ran, Tally, drain};
use crate::turns::Clock;

impl IoBuf for Pages {
    fn as_init(&self) -> &[u8] {
        self.bytes(self.filled)
    }
}

impl SetLen for Pages {
    unsafe fn set_len(&mut self, len: usize) {
        self.filled = len;
    }
}

impl IoBufMut for Pages {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: inside the memory, borrowed mutably with the value; only initialised bytes are ever written.
        unsafe { std::slice::from_raw_parts_mut(self.ptr().cast(), self.capacity()) }
    }
}

/// As many tasks as the depth.
pub(crate) fn read(job: &Job, clock: &mut Clock) -> Ran {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(job.flags());
        let file = Rc::new(options.open(&job.path).await?);
        let queue = Rc::new(Queue::of(job));
        let buffers: Vec<Pages> = (0..job.depth).map(|_| Pages::new(job.size)).collect();
        let mut tally = Tally::by(clock);
        clock.start();
        let tasks: Vec<_> = buffers
            .into_iter()
            .map(|pages| {
                let (file, queue) = (file.clone(), queue.clone());
                compio::runtime::spawn(async move {
                    drain(&queue, pages, tally, async |pages, at| {
                        let BufResult(result, pages) = file.read_at(pages, at).await;
                        (result, pages)
                    })
                    .await
                })
            })
            .collect();
        for task in tasks {
            let done = task.await.map_err(|error| error.to_string())?;
            tally.add(done?);
        }
        clock.stop();
        Ok((tally, format!("{} in flight", job.depth)))
    })
}
