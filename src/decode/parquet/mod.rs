//! Parquet files as Arrow record batches.
