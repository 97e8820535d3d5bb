//! Examples in, record batches out, one at a time and without I/O.

use std::fmt;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, SchemaRef};
use bytes::Bytes;

use super::column::{Column, Fault};
use super::keys::Keys;
use super::schema::{ExampleSchema, Feature};
use crate::error::{Error, ErrorKind, Result};
use crate::format::tfrecord::example::{Pieces, Place, WireError, check_feature, steps, walk};

/// Decodes `tf.train.Example`s or `SequenceExample`s, one record a row, into the columns of an [`ExampleSchema`].
///
/// For records that come from elsewhere than a reader of this crate. It walks the wire format without building messages: each value is
/// copied once, from the record to its column, or with [`read_from`](Self::read_from) not at all where views are asked for. What the
/// encoding rules of protobuf say holds: features in any order, the last of several with the same name, unknown fields skipped, packed
/// values and others, and parts of a message merged. It is strict where readers of protobuf differ: a known field of another wire type
/// and a varint of more than 64 bits are errors. It is lenient in one way: a feature that the schema does not name is skipped by its
/// length and not looked into.
///
/// ```
/// use feedwater::tfrecord::{ExampleDecoder, ExampleSchema, Feature, ValueType};
///
/// let schema = ExampleSchema::new().with(Feature::scalar("label", ValueType::Int64));
/// let mut decoder = ExampleDecoder::new(&schema)?;
/// // features { feature { key: "label" value { int64_list { value: 7 } } } }
/// let record = b"\x0a\x10\x0a\x0e\x0a\x05label\x12\x05\x1a\x03\x0a\x01\x07";
/// assert!(decoder.push(record)?);
/// assert!(decoder.push(b"")?);
/// let batch = decoder.finish()?;
/// assert_eq!((batch.num_rows(), batch.column(0).null_count()), (2, 1));
/// # Ok::<(), feedwater::Error>(())
/// ```
pub struct ExampleDecoder {
    schema: SchemaRef,
    format: &'static str,
    inferred_from: usize,
    context: Keys,
    lists: Keys,
    columns: Vec<Column>,
    names: Vec<Arc<str>>,
    /// What the example at hand has for each column; empty between examples.
    slots: Vec<Option<Pieces<'static>>>,
    rows: usize,
    /// Most bytes of a row that has none of the features.
    row_bytes: usize,
    /// Number of the next example, for errors.
    record: u64,
}

/// Which column a fault is about, if it is about one.
#[derive(Debug)]
struct Failure {
    column: Option<usize>,
    fault: Fault,
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        let fault = Fault::Wire(error);
        Failure {
            column: None,
            fault,
        }
    }
}

impl ExampleDecoder {
    /// A decoder without rows.
    ///
    /// # Errors
    /// As [`ExampleSchema::arrow_schema`].
    pub fn new(schema: &ExampleSchema) -> Result<Self> {
        let arrow = schema.arrow_schema()?;
        let of = |features: &[Feature]| -> Vec<Arc<str>> {
            features
                .iter()
                .map(|feature| feature.name.clone())
                .collect()
        };
        let (context, lists) = (of(&schema.context), of(&schema.lists));
        let features = schema.context.iter().zip(std::iter::repeat(Place::Context));
        let features = features.chain(schema.lists.iter().zip(std::iter::repeat(Place::Lists)));
        let columns: Vec<_> = features
            .zip(arrow.fields())
            .map(|((feature, place), field)| {
                Column::new(feature, place, field.clone(), schema.large)
            })
            .collect();
        Ok(ExampleDecoder {
            format: format_name(!lists.is_empty()),
            inferred_from: schema.inferred_from,
            names: context.iter().chain(&lists).cloned().collect(),
            context: Keys::new(context),
            lists: Keys::new(lists),
            slots: Vec::new(),
            rows: 0,
            row_bytes: columns.iter().map(Column::missing_bytes).sum(),
            record: 0,
            schema: arrow,
            columns,
        })
    }

    /// The schema of the batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows of the batch so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Most bytes that an example of no bytes takes.
    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The next examples lie in `block`: columns of views then point into it, and keep it. Values of examples that lie
    /// elsewhere are copied, as all are before this is called.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use feedwater::tfrecord::{ExampleDecoder, ExampleSchema, Feature, ValueType};
    ///
    /// # let example = b"\x0a\x18\x0a\x16\x0a\x01x\x12\x11\x0a\x0f\x0a\x0d0123456789abc".to_vec();
    /// let schema = ExampleSchema::new().with(Feature::scalar("x", ValueType::BinaryView));
    /// let mut decoder = ExampleDecoder::new(&schema)?;
    /// let block = Bytes::from(example);
    /// decoder.read_from(&block);
    /// decoder.push(&block)?;
    /// let batch = decoder.finish()?;
    /// # let views = batch.column(0).as_any().downcast_ref::<arrow_array::BinaryViewArray>().unwrap();
    /// # assert_eq!(views.value(0), b"0123456789abc");
    /// # assert!(block.as_ptr_range().contains(&views.value(0).as_ptr()));
    /// # Ok::<(), feedwater::Error>(())
    /// ```
    pub fn read_from(&mut self, block: &Bytes) {
        for column in &mut self.columns {
            column.read_from(block);
        }
    }

    /// Decodes one example as the next row. `false`: it was not, as offsets of 32 bits do not reach that far in one batch;
    /// [`finish`](Self::finish) this one first, and push it again.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] if it is no example, or does not have what the schema asks for, with the name of the feature, and the
    /// number of the record, which is counted from 0 by the calls that have decoded or refused one.
    /// [`ErrorKind::UnsupportedFeature`] if one example alone passes what offsets of 32 bits reach. The rows so far
    /// stay, and the decoder can be used on.
    pub fn push(&mut self, example: &[u8]) -> Result<bool> {
        let pushed = self.push_record(self.record, example);
        if !matches!(pushed, Ok(false)) {
            self.record += 1;
        }
        pushed
    }

    /// The same, with the number of the record.
    pub(super) fn push_record(&mut self, record: u64, example: &[u8]) -> Result<bool> {
        let failure = match self.push_row(example) {
            Ok(()) => {
                self.rows += 1;
                return Ok(true);
            }
            Err(failure) => failure,
        };
        for column in &mut self.columns {
            column.truncate(self.rows);
        }
        if failure.fault == Fault::Full && self.rows > 0 {
            return Ok(false);
        }
        Err(self.error(record, &failure))
    }

    fn push_row(&mut self, example: &[u8]) -> Result<(), Failure> {
        let mut slots = fresh(std::mem::take(&mut self.slots), self.columns.len());
        let found = self.find(example, &mut slots);
        let pushed = found.and_then(|()| {
            for (at, (column, slot)) in self.columns.iter_mut().zip(&mut slots).enumerate() {
                column.push(slot.take()).map_err(|fault| Failure {
                    column: Some(at),
                    fault,
                })?;
            }
            Ok(())
        });
        self.slots = fresh(slots, 0);
        pushed
    }

    /// Fills the slots of the features that the example has.
    #[inline]
    fn find<'a>(
        &mut self,
        example: &'a [u8],
        slots: &mut [Option<Pieces<'a>>],
    ) -> Result<(), Failure> {
        let (context, lists) = (&mut self.context, &mut self.lists);
        context.begin();
        lists.begin();
        let lists_from = context.len();
        walk(example, lists.len() > 0, |place, name, value| {
            let column = match place {
                Place::Context => context.find(name),
                Place::Lists => lists.find(name).map(|column| lists_from + column),
            };
            let slot = column.and_then(|column| slots.get_mut(column));
            let Some(slot) = slot else {
                std::str::from_utf8(name).map_err(|_| WireError::Name)?;
                return Ok(());
            };
            if let Some(replaced) = slot.replace(value) {
                check(place, &replaced).map_err(|error| Failure {
                    column,
                    fault: error.into(),
                })?;
            }
            Ok(())
        })
    }

    #[cold]
    fn error(&self, record: u64, failure: &Failure) -> Error {
        let part = failure.column.and_then(|at| self.names.get(at)).cloned();
        let format = self.format;
        Error::new(match failure.fault {
            Fault::Full => ErrorKind::UnsupportedFeature {
                format,
                part,
                feature: format!("record {record}: {}", failure.fault).into(),
            },
            fault => {
                let disagrees = !matches!(fault, Fault::Wire(_) | Fault::Utf8);
                let schema = match self.inferred_from {
                    examples @ 1.. if disagrees => {
                        format!(" (its type was inferred from the first {examples} examples)")
                    }
                    _ => String::new(),
                };
                ErrorKind::Malformed {
                    format,
                    part,
                    what: format!("record {record}: {fault}{schema}").into(),
                }
            }
        })
    }

    /// The rows so far as a batch, which may have none; the decoder then has none.
    ///
    /// # Errors
    /// None that bytes of examples could cause; what Arrow refuses is a bug of this crate, and is told as
    /// [`ErrorKind::Malformed`].
    pub fn finish(&mut self) -> Result<RecordBatch> {
        let rows = std::mem::take(&mut self.rows);
        self.batch(rows).map_err(|error| {
            Error::new(ErrorKind::Malformed {
                format: self.format,
                part: None,
                what: format!("Arrow refuses the columns: {error}").into(),
            })
        })
    }

    fn batch(&mut self, rows: usize) -> Result<RecordBatch, ArrowError> {
        let columns = self.columns.iter_mut().map(Column::finish);
        let columns = columns.collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
    }
}

pub(super) fn format_name(sequence: bool) -> &'static str {
    match sequence {
        false => "tf.train.Example",
        true => "tf.train.SequenceExample",
    }
}

/// That what a later entry of the same name replaces is what it should be.
#[cold]
fn check(place: Place, replaced: &Pieces<'_>) -> Result<(), WireError> {
    match place {
        Place::Context => check_feature(place, replaced),
        Place::Lists => steps(replaced).try_for_each(|step| check_feature(place, &step?)),
    }
}

/// The same allocation with `len` empty slots, for bytes that live otherwise long.
#[inline]
fn fresh<'a>(mut slots: Vec<Option<Pieces<'_>>>, len: usize) -> Vec<Option<Pieces<'a>>> {
    slots.clear();
    // Nothing is there to be converted: collecting in place leaves only the allocation.
    let mut slots: Vec<Option<Pieces<'a>>> = slots.into_iter().map(|_| None).collect();
    slots.resize(len, None);
    slots
}

impl fmt::Debug for ExampleDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExampleDecoder")
            .field("schema", &self.schema)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::tfrecord::example::ValueType;
    use crate::format::tfrecord::example::{
        LEN_1, entry_len, field_len, put_bytes_list, put_entry, put_field,
    };

    /// An example whose feature "x" has these bytes.
    fn example(values: &[&[u8]]) -> Vec<u8> {
        let list: usize = values.iter().map(|value| field_len(value.len())).sum();
        let mut out = Vec::new();
        put_field(&mut out, LEN_1, field_len(entry_len(1, field_len(list))));
        put_entry(&mut out, b"x", field_len(list));
        put_bytes_list(&mut out, list, values.iter().copied());
        out
    }

    #[test]
    fn a_batch_ends_before_offsets_would_pass_what_they_reach() {
        let four = example(&[b"four"]);
        let long = example(&[b"a long one"]);
        let many = example(&[b"", b"", b"", b"", b"", b"", b"", b"", b""]);
        for (feature, whole, refused) in [
            (Feature::scalar("x", ValueType::Binary), &four, &long),
            (Feature::variable("x", ValueType::Utf8), &four, &long),
            (Feature::variable("x", ValueType::Binary), &four, &many),
        ] {
            let mut decoder = ExampleDecoder::new(&ExampleSchema::new().with(feature)).unwrap();
            decoder.columns[0].limit(8);
            for _ in 0..2 {
                assert!(decoder.push(whole).unwrap());
                assert!(decoder.push(whole).unwrap());
                // Twice, as nothing of it may stay.
                assert!(!decoder.push(whole).unwrap());
                assert!(!decoder.push(whole).unwrap());
                assert_eq!(decoder.finish().unwrap().num_rows(), 2);
            }
            let error = decoder.push(refused).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::UnsupportedFeature { .. }),
                "{error}"
            );
            assert!(
                error.to_string().contains("(x): not supported: record 4: "),
                "{error}"
            );
            assert!(decoder.push(whole).unwrap());
            assert_eq!(decoder.finish().unwrap().num_rows(), 1);
        }
    }

    #[test]
    fn slots_are_the_same_memory_from_example_to_example() {
        let schema = ExampleSchema::new().with(Feature::scalar("x", ValueType::Binary));
        let mut decoder = ExampleDecoder::new(&schema).unwrap();
        assert!(decoder.push(&example(&[b"1"])).unwrap());
        let before = decoder.slots.as_ptr();
        for _ in 0..10 {
            assert!(decoder.push(&example(&[b"2"])).unwrap());
            assert_eq!(decoder.slots.as_ptr(), before);
        }
    }
}
