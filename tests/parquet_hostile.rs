//! Files that are damaged, and made to do damage: values or a typed error, never a panic, a hang, or memory past a cap. All
//! of it runs once more in a process whose memory is limited.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "parquet_hostile/files.rs"]
mod files;
#[path = "parquet_hostile/mutations.rs"]
mod mutations;
#[path = "parquet_hostile/table.rs"]
mod table;

use std::sync::Arc;

use arrow_array::RecordBatch;
use bytes::Bytes;
use feedwater::parquet::{Source, scan};
use feedwater::{Error, ErrorKind, MemoryReader};
use futures::TryStreamExt;
use futures::executor::block_on;
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// So many rows.
    Rows(usize),
    Malformed,
    Unsupported,
    /// The `parquet` crate panicked, and that was contained.
    Panicked,
}

/// Fails for errors that are not about the bytes.
fn outcome_of(outcome: Result<usize, Error>) -> Outcome {
    let error = match outcome {
        Ok(rows) => return Outcome::Rows(rows),
        Err(error) => error,
    };
    assert!(error.name().is_some(), "no name: {error}");
    match error.kind() {
        ErrorKind::Malformed { what, .. } => {
            assert!(!what.is_empty());
            Outcome::Malformed
        }
        ErrorKind::UnsupportedFeature { .. } => Outcome::Unsupported,
        ErrorKind::Panicked { library, .. } => {
            assert_eq!(*library, "parquet");
            Outcome::Panicked
        }
        kind => panic!("{kind:?}: {error}"),
    }
}

fn scanned(file: &Bytes, threads: usize) -> Outcome {
    let read = || {
        let reader = Arc::new(MemoryReader::new(file.clone()));
        let mut rows = 0;
        for batch in scan(reader).threads(threads).batches()? {
            rows += whole(&batch?);
        }
        Ok(rows)
    };
    outcome_of(read())
}

/// The rows of a batch whose arrays are what Arrow says they are.
fn whole(batch: &RecordBatch) -> usize {
    for column in batch.columns() {
        column.to_data().validate_full().unwrap();
        assert_eq!(column.len(), batch.num_rows());
    }
    batch.num_rows()
}

/// The `parquet` crate through `Source`. Its errors and panics are its own here; what is looked for is whether it ends.
/// Where memory is limited it is left out: the crate allocates by numbers of the file, which only scans look at before.
fn through_source(file: &Bytes) {
    if common::confinement().is_some() {
        return;
    }
    let read = || {
        block_on(async {
            let file = Source::new(Arc::new(MemoryReader::new(file.clone())));
            let stream = ParquetRecordBatchStreamBuilder::new(file).await?.build()?;
            stream.try_for_each(async |_| Ok(())).await
        })
    };
    drop(std::panic::catch_unwind(read));
}

#[cfg(target_os = "linux")]
mod again {
    use super::common::confined::{Confinement, FREE, again};

    /// Address space in bytes. A page may be 2 GiB by its format, and threads have stacks and arenas of their own.
    const CAP: libc::rlim_t = 4 << 30;

    #[test]
    fn with_little_memory() {
        let how = Confinement {
            name: "little-memory",
            needs: "rlimits",
            limit: Some((libc::RLIMIT_AS as i32, CAP)),
            // Memory of tests that run side by side would add up.
            threads: Some(1),
            ..FREE
        };
        again(&how, &[], 5);
    }
}
