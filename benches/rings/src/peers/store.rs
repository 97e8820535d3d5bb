//! object_store's `LocalFileSystem`.

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;

use crate::job::{Job, Ran, Tally};
use crate::turns::Clock;

/// All ranges by one `get_ranges`, under a runtime of one thread.
pub(crate) fn ranges(job: &Job, clock: &mut Clock) -> Ran {
    let (dir, name) = (job.path.parent(), job.path.file_name());
    let (Some(dir), Some(name)) = (dir, name.and_then(|name| name.to_str())) else {
        return Err("no name".into());
    };
    let store = LocalFileSystem::new_with_prefix(dir)?;
    let location = Path::from(name);
    let size = job.size as u64;
    let ranges: Vec<_> = job.offsets.iter().map(|&at| at..at + size).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut tally = Tally::by(clock);
    clock.time(|| {
        let blocks = runtime.block_on(store.get_ranges(&location, &ranges))?;
        for (range, block) in ranges.iter().zip(blocks) {
            tally.take(range.start, &block);
        }
        Ok((tally, "1 call".into()))
    })
}
