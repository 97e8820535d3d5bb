//! What a footer must hold before anything is asked for or allocated by its numbers.

use std::sync::Arc;

use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataBuilder, RowGroupMetaData,
};

use super::malformed;
use crate::error::{Error, ErrorKind, Result};

/// Rows of one group, and of a file: what fits the readers' counters with room to add.
const MOST_ROWS: i64 = i64::MAX >> 8;

/// `metadata` with what writers are known to get wrong put right, or an error about what cannot be.
///
/// - A dictionary page at offset 0 means that there is none: the magic is there.
/// - The row count of the file is that of its row groups.
///
/// All data lies before `end`, where the footer begins.
pub(super) fn checked(metadata: ParquetMetaData, end: u64) -> Result<ParquetMetaData> {
    let file = metadata.file_metadata();
    let leaves = file.schema_descr().num_columns();
    let mut rows = 0i64;
    let mut groups = Vec::with_capacity(metadata.num_row_groups());
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let count = group.num_rows();
        if !(0..=MOST_ROWS).contains(&count) {
            return Err(malformed(
                None,
                format!("row group {index} has {count} rows"),
            ));
        }
        if group.num_columns() != leaves {
            return Err(malformed(
                None,
                format!(
                    "row group {index} has {} columns, the schema has {leaves}",
                    group.num_columns()
                ),
            ));
        }
        rows = rows
            .checked_add(count)
            .filter(|rows| *rows <= MOST_ROWS)
            .ok_or_else(|| malformed(None, "the row groups have more rows than can be counted"))?;
        groups.push(checked_group(index, group, end)?);
    }
    let file = FileMetaData::new(
        file.version(),
        rows,
        file.created_by().map(str::to_owned),
        file.key_value_metadata().cloned(),
        file.schema_descr_ptr(),
        file.column_orders().cloned(),
    );
    Ok(ParquetMetaDataBuilder::new(file)
        .set_row_groups(groups)
        .build())
}

fn checked_group(index: usize, group: &RowGroupMetaData, end: u64) -> Result<RowGroupMetaData> {
    let mut columns = Vec::with_capacity(group.num_columns());
    for column in group.columns() {
        columns.push(checked_column(column, end).map_err(|what| {
            let part = Arc::from(column.column_path().string());
            match what {
                Fault::Malformed(what) => {
                    malformed(Some(part), format!("row group {index}: {what}"))
                }
                Fault::Unsupported(feature) => Error::new(ErrorKind::UnsupportedFeature {
                    format: super::FORMAT,
                    part: Some(part),
                    feature: feature.into(),
                }),
            }
        })?);
    }
    group
        .clone()
        .into_builder()
        .set_column_metadata(columns)
        .build()
        .map_err(|error| malformed(None, format!("row group {index}: {error}")))
}

enum Fault {
    Malformed(String),
    Unsupported(&'static str),
}

fn checked_column(column: &ColumnChunkMetaData, end: u64) -> Result<ColumnChunkMetaData, Fault> {
    let wrong = |what: String| Err(Fault::Malformed(what));
    if column.file_path().is_some_and(|path| !path.is_empty()) {
        return Err(Fault::Unsupported("column chunks in other files"));
    }
    let data = column.data_page_offset();
    if data < 0 {
        return wrong(format!("its data begin at offset {data}"));
    }
    // The crate takes the offset of the dictionary as the start of the chunk whatever it is.
    let dictionary = column.dictionary_page_offset().filter(|at| *at != 0);
    if let Some(at) = dictionary.filter(|at| *at < 0) {
        return wrong(format!("its dictionary is at offset {at}"));
    }
    let start = dictionary.unwrap_or(data);
    let len = column.compressed_size();
    let stop = u64::try_from(len)
        .ok()
        .and_then(|len| (start as u64).checked_add(len));
    match stop {
        Some(stop) if stop <= end => {}
        _ => {
            return wrong(format!(
                "{len} bytes at offset {start} are not inside the {end} bytes before the footer"
            ));
        }
    }
    for (what, number) in [
        ("values", column.num_values()),
        ("uncompressed bytes", column.uncompressed_size()),
    ] {
        if number < 0 {
            return wrong(format!("it has {number} {what}"));
        }
    }
    let mut column = column.clone();
    if dictionary != column.dictionary_page_offset() {
        column = column
            .into_builder()
            .set_dictionary_page_offset(dictionary)
            .build()
            .map_err(|error| Fault::Malformed(error.to_string()))?;
    }
    Ok(column)
}
