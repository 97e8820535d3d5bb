//! Parquet files as Arrow record batches.

// Called by what reads columns.
#[allow(dead_code)]
mod failure;
