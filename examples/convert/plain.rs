//! What is written, whoever decoded it. Dictionaries are plain values: an IPC file has one dictionary for all batches, a Parquet file one
//! for each row group. What is in the slots of nulls, which Arrow leaves open, is zero.

use arrow::array::{Array, ArrayData, ArrayRef, RecordBatch, make_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::error::ArrowError;
use arrow_data::transform::MutableArrayData;

/// Rows of a batch at most: as many as the host decodes at once. Of a GPU a batch is a row group.
const ROWS: usize = 8192;

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

/// The same rows in batches of [`ROWS`] at most, with zeros in the slots of nulls.
pub(crate) fn cut(
    batch: &RecordBatch,
) -> impl Iterator<Item = Result<RecordBatch, ArrowError>> + '_ {
    let rows = batch.num_rows();
    // One without rows is written as well.
    (0..rows.max(1)).step_by(ROWS).map(move |first| {
        let part = batch.slice(first, ROWS.min(rows - first));
        let columns = part.columns().iter().map(zeroed);
        let columns = columns.collect::<Result<_, _>>()?;
        let rows = arrow::array::RecordBatchOptions::new().with_row_count(Some(part.num_rows()));
        RecordBatch::try_new_with_options(part.schema(), columns, &rows)
    })
}

/// The same values, whose bytes say nothing else; copied only where they could.
fn zeroed(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let data = column.to_data();
    match is_open(&data) {
        true => Ok(make_array(without_rest(&data)?)),
        false => Ok(column.clone()),
    }
}

/// Whether there can be nulls in it, or bits behind its last one.
fn is_open(data: &ArrayData) -> bool {
    let own = data.nulls().is_some() || *data.data_type() == DataType::Boolean;
    own || data.child_data().iter().any(is_open)
}

fn without_rest(data: &ArrayData) -> Result<ArrayData, ArrowError> {
    let children = data.child_data().iter().map(without_rest);
    let children = children.collect::<Result<_, _>>()?;
    let data = data.clone().into_builder().child_data(children).build()?;
    let mut copy = MutableArrayData::new(vec![&data], true, data.len());
    let mut at = 0;
    let valid: Vec<_> = match data.nulls() {
        Some(nulls) => nulls.valid_slices().collect(),
        None => vec![(0, data.len())],
    };
    for (begin, end) in valid.into_iter().chain([(data.len(), data.len())]) {
        copy.try_extend_nulls(begin - at)?;
        copy.try_extend(0, begin, end)?;
        at = end;
    }
    Ok(copy.freeze())
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
