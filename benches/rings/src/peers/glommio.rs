//! glommio: `BufferedFile`, `DmaFile` (`O_DIRECT`, buffers of its own), and its stream reader.

use std::rc::Rc;

use glommio::io::{BufferedFile, DmaFile, DmaStreamReaderBuilder, ReadResult};
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement};

use crate::job::{Fault, Job, PAGE, Queue, Ran, Tally, whole};
use crate::turns::Clock;

enum Open {
    Buffered(BufferedFile),
    Direct(DmaFile),
}

impl Open {
    async fn read(&self, at: u64, size: usize) -> Result<ReadResult, String> {
        let result = match self {
            Open::Buffered(file) => file.read_at(at, size).await,
            Open::Direct(file) => file.read_at_aligned(at, size).await,
        };
        result.map_err(|error| error.to_string())
    }

    async fn close(self) -> Result<(), Fault> {
        let result = match self {
            Open::Buffered(file) => file.close().await,
            Open::Direct(file) => file.close().await,
        };
        result.map_err(fault)
    }
}

/// Its errors can hold what cannot leave the thread.
fn fault(error: glommio::GlommioError<()>) -> Fault {
    error.to_string().into()
}

fn executor() -> Result<LocalExecutor, Fault> {
    // Its default depth is just our largest, and it needs some entries for itself.
    let builder = LocalExecutorBuilder::new(Placement::Unbound).ring_depth(256);
    builder.make().map_err(fault)
}

/// As many tasks as the depth.
pub(crate) fn read(job: &Job, clock: &mut Clock) -> Ran {
    executor()?.run(async {
        let file = Rc::new(if job.direct {
            Open::Direct(DmaFile::open(&job.path).await.map_err(fault)?)
        } else {
            Open::Buffered(BufferedFile::open(&job.path).await.map_err(fault)?)
        });
        let queue = Rc::new(Queue::of(job));
        let mut tally = Tally::by(clock);
        clock.start();
        let tasks: Vec<_> = (0..job.depth)
            .map(|_| {
                let (file, queue, size) = (file.clone(), queue.clone(), job.size);
                let mut tally = tally;
                glommio::spawn_local(async move {
                    while let Some(at) = queue.next() {
                        let bytes = file.read(at, size).await?;
                        whole(bytes.len(), size).map_err(|error| error.to_string())?;
                        tally.take(at, &bytes);
                    }
                    Ok::<Tally, String>(tally)
                })
                .detach()
            })
            .collect();
        for task in tasks {
            tally.add(task.await.ok_or("a task was cancelled")??);
        }
        clock.stop();
        if let Ok(file) = Rc::try_unwrap(file) {
            file.close().await?;
        }
        Ok((tally, format!("{} in flight", job.depth)))
    })
}

/// One task over the stream reader, which reads ahead and lends its buffers.
pub(crate) fn stream(job: &Job, clock: &mut Clock) -> Ran {
    executor()?.run(async {
        let file = DmaFile::open(&job.path).await.map_err(fault)?;
        let mut reader = DmaStreamReaderBuilder::new(file)
            .with_buffer_size(job.size)
            .with_read_ahead(job.depth)
            .build();
        let mut tally = Tally::by(clock);
        clock.start();
        let mut at = 0;
        loop {
            let bytes = reader.get_buffer_aligned(job.size as u64).await;
            let bytes = bytes.map_err(fault)?;
            if bytes.is_empty() {
                break;
            }
            if bytes.len() % PAGE != 0 {
                return Err("a piece that is no number of whole pages".into());
            }
            tally.take(at, &bytes);
            at += bytes.len() as u64;
        }
        clock.stop();
        reader.close().await.map_err(fault)?;
        Ok((tally, format!("{} ahead", job.depth)))
    })
}
