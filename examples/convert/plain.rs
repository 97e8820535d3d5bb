//! Dictionaries as plain values: an IPC file has one dictionary for all batches, a Parquet file one for each row group.

use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::error::ArrowError;

/// The schema without dictionaries.
pub(crate) fn schema(schema: &Schema) -> Schema {
    let fields: Vec<_> = schema.fields().iter().map(field).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

/// The batch in such a schema. Nothing is copied of columns that have no dictionaries.
pub(crate) fn batch(
    batch: &RecordBatch,
    schema: &std::sync::Arc<Schema>,
) -> Result<RecordBatch, ArrowError> {
    let fields = schema.fields().iter();
    let columns = batch.columns().iter().zip(fields).map(|(column, field)| {
        match column.data_type() == field.data_type() {
            true => Ok(column.clone()),
            false => cast(column, field.data_type()),
        }
    });
    let columns = columns.collect::<Result<_, _>>()?;
    let rows = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns, &rows)
}

fn field(field: &FieldRef) -> FieldRef {
    let of = data_type(field.data_type());
    if of == *field.data_type() {
        return field.clone();
    }
    Field::new(field.name(), of, field.is_nullable())
        .with_metadata(field.metadata().clone())
        .into()
}

fn data_type(of: &DataType) -> DataType {
    match of {
        DataType::Dictionary(_, values) => data_type(values),
        DataType::List(item) => DataType::List(field(item)),
        DataType::LargeList(item) => DataType::LargeList(field(item)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(field(item), *length),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect()),
        DataType::Map(entries, sorted) => DataType::Map(field(entries), *sorted),
        of => of.clone(),
    }
}
