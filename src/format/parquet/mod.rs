//! Parquet: which bytes of a file hold what was asked for.
