//! Making a file cold.

use std::fs::File;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

/// Pages that another processor is just putting on its lists stay the first time.
const TRIES: usize = 4;

/// Writes back and drops all pages of the file, and checks that none is left; else says why.
pub(crate) fn evict(path: &Path) -> Result<(), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut left = 0;
    for _ in 0..TRIES {
        // Pages that differ from the disk are not dropped.
        file.sync_data()
            .map_err(|error| format!("it cannot be written back: {error}"))?;
        fadvise(&file, 0, None, Advice::DontNeed)
            .map_err(|error| format!("its pages cannot be dropped: {error}"))?;
        let report = feedwater::open(path)
            .map_err(|error| error.to_string())?
            .report();
        match report.resident {
            Some(0) => return Ok(()),
            Some(n) => left = n,
            None => return Err("the system does not tell what of it is in the page cache".into()),
        }
    }
    Err(format!(
        "{left} bytes stay in the page cache (a file system in memory, or a mapping of the file)"
    ))
}
