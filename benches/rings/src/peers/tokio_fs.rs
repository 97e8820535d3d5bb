//! `tokio::fs`.

use std::io::SeekFrom;

use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::runtime::Runtime;

use crate::job::{Job, Ran, Tally};
use crate::turns::Clock;

/// `seek` and `read_exact`, one after another, in a task of `runtime`.
pub(crate) fn seek_read(job: &Job, clock: &mut Clock, runtime: &Runtime) -> Ran {
    let mut file = runtime.block_on(File::open(&job.path))?;
    file.set_max_buf_size(job.size);
    let mut block = vec![0; job.size];
    let mut tally = Tally::by(clock);
    let offsets = job.offsets.clone();
    let task = async move {
        for &at in &*offsets {
            file.seek(SeekFrom::Start(at)).await?;
            file.read_exact(&mut block).await?;
            tally.take(at, &block);
        }
        Ok::<Tally, std::io::Error>(tally)
    };
    let done = clock.time(|| runtime.block_on(runtime.spawn(task)))?;
    Ok((done?, "1 in flight".into()))
}
