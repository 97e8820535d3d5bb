//! One batch: by the kernels, and by the host where they do not take it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;

use super::ahead::Wanted;
use super::feed::{Row, Taken, corrupt, data_of, frames_of, is_short};
use super::output::{DeviceExamples, FeatureTensor};
use super::plan::{Plan, of_tensor};
use super::report::DeviceReport;
use super::rewrite::Rewriter;
use crate::cuda::example::{Batch, Outcome, Record};
use crate::cuda::frames::Frame;
use crate::cuda::{Device, Stream};
use crate::decode::device::{DeviceArray, DeviceBatch, Processor};
use crate::decode::tfrecord::ExampleDecoder;
use crate::decode::tfrecord::example::decoder::format_name;
use crate::decode::tfrecord::example::schema::{ExampleSchema, Feature, ValueType};
use crate::error::{Error, ErrorKind, Result};

/// What became of the records of one batch: batches, and then the error that ends them all.
#[derive(Default)]
pub(super) struct Done {
    pub(super) batches: VecDeque<DeviceExamples>,
    pub(super) error: Option<Error>,
}

impl Done {
    /// With the first of `parts`, one behind the other, up to one that there cannot be; an error if that is the first of them.
    fn of_parts(parts: impl IntoIterator<Item = Result<DeviceExamples>>) -> Result<Self> {
        let mut done = Done::default();
        for part in parts {
            match part {
                Ok(part) => done.batches.push_back(part),
                Err(error) if done.batches.is_empty() => return Err(error),
                Err(error) => {
                    done.error = Some(error);
                    break;
                }
            }
        }
        Ok(done)
    }

    /// With what comes behind the records that it is of. Where some are there, and there was no memory for the others, these are left in `rest`
    /// to be decoded by themselves, which the report counts as other splits for want of memory.
    fn leaving(
        mut self,
        mut taken: Taken,
        rest: &mut Vec<Taken>,
        report: &mut DeviceReport,
    ) -> Self {
        if self.error.as_ref().is_some_and(is_short) {
            let rows = self.batches.iter().map(DeviceExamples::num_rows).sum();
            match taken.split_at(rows) {
                Ok((_, others)) => {
                    rest.push(others);
                    report.halved += 1;
                    self.error = None;
                    return self;
                }
                Err(all) => taken = all,
            }
        }
        self.error = self.error.or(taken.error);
        self
    }
}

impl From<Error> for Done {
    fn from(error: Error) -> Self {
        Done {
            batches: VecDeque::new(),
            error: Some(error),
        }
    }
}

/// Bytes of records that are worth launches, where the caller does not say so.
const LEAST: u64 = 64 << 10;

/// Decodes batch after batch.
pub(super) struct Decoder {
    gpu: Arc<Device>,
    /// That of the scan.
    stream: Stream,
    plan: Plan,
    host: ExampleDecoder,
    rewriter: Option<Rewriter>,
    names: Arc<[Arc<str>]>,
    /// Why nothing is for the kernels, if nothing is.
    never: Option<Cow<'static, str>>,
    /// Whether all is for the kernels that they do, however small.
    always: bool,
    pub(super) report: DeviceReport,
}

/// What the kernels made of a batch, or why they did not.
enum Tried {
    Made(DeviceExamples),
    Not(Cow<'static, str>),
}

impl Decoder {
    pub(super) fn new(
        (gpu, stream): (&Arc<Device>, Stream),
        schema: &ExampleSchema,
        plan: Plan,
        names: Arc<[Arc<str>]>,
        processor: Processor,
    ) -> Result<Self> {
        let never = match processor {
            Processor::Cpu => Some("the caller wants the host to decode".into()),
            _ if !schema.lists.is_empty() => Some("there is no kernel for feature lists".into()),
            _ if schema.context.iter().any(are_views) => {
                Some("there is no kernel for views".into())
            }
            _ => None,
        };
        Ok(Decoder {
            gpu: gpu.clone(),
            stream,
            plan,
            host: ExampleDecoder::new(schema)?,
            rewriter: Rewriter::new(schema),
            names,
            never,
            always: processor == Processor::Gpu,
            report: DeviceReport::default(),
        })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What becomes of the records. What fails for want of memory is tried once more if it is [wanted](Wanted); then the first half of
    /// the records is, and so on down to one, which the host decodes. `rest` gets the others, those that come first last.
    pub(super) fn decode(
        &mut self,
        mut taken: Taken,
        rest: &mut Vec<Taken>,
        wanted: Wanted<'_>,
    ) -> Done {
        let rows = loop {
            if taken.rows.is_empty() {
                break Ok(Done::default());
            }
            let report = self.report.clone();
            let rows = self.rows(&taken);
            if !rows.as_ref().is_err_and(is_short) {
                break rows;
            }
            self.report = report;
            self.gpu.trim();
            if wanted() {
                continue;
            }
            taken = match taken.halves() {
                Ok((first, second)) => {
                    self.report.halved += 1;
                    rest.push(second);
                    first
                }
                Err(one) => {
                    let why = "the device has no memory for a record beside its columns";
                    let rows = match self.never {
                        None => self.by_host(&one, why.into()),
                        Some(_) => rows,
                    };
                    taken = one;
                    break rows;
                }
            };
        };
        rows.unwrap_or_else(Done::from)
            .leaving(taken, rest, &mut self.report)
    }

    fn rows(&mut self, taken: &Taken) -> Result<Done> {
        let tried = match &self.never {
            Some(why) => Tried::Not(why.clone()),
            None if !self.always && taken.bytes_to_upload().is_some_and(|bytes| bytes < LEAST) => {
                Tried::Not(format!("less than {LEAST} bytes").into())
            }
            None => self.by_kernels(taken)?,
        };
        match tried {
            Tried::Made(batch) => {
                self.report.on_gpu(batch.num_rows());
                Ok(Done {
                    batches: VecDeque::from([batch]),
                    error: None,
                })
            }
            Tried::Not(why) => self.by_host(taken, why),
        }
    }

    fn by_kernels(&mut self, taken: &Taken) -> Result<Tried> {
        let framed = taken.framed.on_device(&self.gpu, &self.stream)?;
        let records = taken.rows.iter().map(|row| Record::Framed(row.frame));
        let mut records: Vec<_> = records.collect();
        let mut batch = Batch {
            framed: &framed,
            rewritten: None,
            records: &records,
            check: taken.check,
        };
        let (gpu, plan) = (&self.gpu, &self.plan.kernels);
        let mut outcome = gpu.examples(&self.stream, plan, &batch)?;
        let bytes;
        if let Outcome::Odd(odd) = &outcome {
            let Some((rewritten, frames)) = self.rewrite(taken, odd)? else {
                return Ok(Tried::Not("a record is not what is asked for".into()));
            };
            bytes = self.gpu.upload_joined(&self.stream, &[&rewritten])?;
            for (number, frame) in odd.iter().zip(frames) {
                if let Some(record) = records.get_mut(*number as usize) {
                    *record = Record::Rewritten(frame);
                }
            }
            batch = Batch {
                framed: &framed,
                rewritten: Some(&bytes),
                records: &records,
                check: None,
            };
            let count = odd.len() as u64;
            let (gpu, plan) = (&self.gpu, &self.plan.kernels);
            outcome = gpu.examples(&self.stream, plan, &batch)?;
            if matches!(outcome, Outcome::Done(_)) {
                self.report.rewritten += count;
            }
        }
        Ok(match outcome {
            Outcome::Done(made) => {
                Tried::Made(self.plan.assemble(&self.gpu, taken.rows.len(), made)?)
            }
            Outcome::Corrupt => Tried::Not("a checksum is wrong".into()),
            Outcome::Fault | Outcome::Odd(_) => {
                Tried::Not("a record is not what is asked for".into())
            }
            Outcome::Full => Tried::Not("offsets of 32 bits do not reach that far".into()),
        })
    }

    /// Odd records in the usual form; `None` if one is refused.
    fn rewrite(&mut self, taken: &Taken, odd: &[u64]) -> Result<Option<(Vec<u8>, Vec<Frame>)>> {
        let framed = &taken.framed;
        let (parts, begin) = framed.on_host(&self.gpu, &self.stream, &taken.rows)?;
        let rows = odd
            .iter()
            .filter_map(|number| taken.rows.get(*number as usize));
        let datas = frames_of(&parts, begin, rows.copied()).map(|(row, framed)| {
            // Their checksums are right, as the kernels have seen.
            let data = data_of(&row, framed, None).unwrap_or_default();
            framed.get(data).unwrap_or_default()
        });
        Ok(self
            .rewriter
            .as_mut()
            .and_then(|rewriter| rewriter.rewrite(datas)))
    }

    /// As the host does it, copied to the device.
    fn by_host(&mut self, taken: &Taken, why: Cow<'static, str>) -> Result<Done> {
        let framed = &taken.framed;
        let (parts, begin) = framed.on_host(&self.gpu, &self.stream, &taken.rows)?;
        let (mut batches, mut error, mut rows) = (Vec::new(), None, Vec::new());
        'records: for (row, framed) in frames_of(&parts, begin, taken.rows.iter().copied()) {
            let data = match data_of(&row, framed, taken.check) {
                Ok(data) => framed.get(data).unwrap_or_default(),
                Err(check) => {
                    error = Some(self.named(&row, corrupt(&row, check)));
                    break;
                }
            };
            loop {
                match self.host.push_record(row.number, data) {
                    Ok(true) => break,
                    Ok(false) => batches.push((self.host.finish()?, std::mem::take(&mut rows))),
                    Err(refused) => {
                        error = Some(self.named(&row, refused.at(row.range())));
                        break 'records;
                    }
                }
            }
            rows.push(row);
        }
        if self.host.rows() > 0 {
            batches.push((self.host.finish()?, rows));
        }
        let mut parts = Vec::with_capacity(batches.len());
        for (batch, rows) in batches {
            let Some((at, wrong)) = self.first_of_other_length(&batch) else {
                parts.push(batch);
                continue;
            };
            parts.push(batch.slice(0, at));
            error = rows.get(at).map(|row| {
                let wrong = wrong(row.number);
                self.named(row, wrong.at(row.range()))
            });
            break;
        }
        parts.retain(|part| part.num_rows() > 0);
        let mut done = Done::of_parts(parts.iter().map(|part| self.upload(part)))?;
        for part in &done.batches {
            self.report.on_host(part.num_rows(), why.clone());
        }
        done.error = done.error.or(error);
        Ok(done)
    }

    fn named(&self, row: &Row, error: Error) -> Error {
        match self.names.get(row.shard) {
            Some(name) => error.named(name),
            None => error,
        }
    }

    /// The first row whose bytes do not become a row of a tensor, and the error for its number.
    fn first_of_other_length(
        &self,
        batch: &RecordBatch,
    ) -> Option<(usize, impl Fn(u64) -> Error + use<>)> {
        let columns = batch.columns().iter().enumerate();
        let found = columns.filter_map(|(at, column)| {
            let wanted = self.plan.exact(at)?;
            let lengths: Box<dyn Iterator<Item = usize>> = match column.as_binary_opt::<i32>() {
                Some(small) => Box::new(small.offsets().lengths()),
                None => Box::new(column.as_binary_opt::<i64>()?.offsets().lengths()),
            };
            let (row, found) = lengths
                .enumerate()
                .find(|(_, length)| *length as u64 != wanted)?;
            Some((row, self.plan.name(at)?.clone(), found, wanted))
        });
        let (row, name, found, wanted) = found.min_by_key(|(row, ..)| *row)?;
        let error = move |number: u64| {
            Error::new(ErrorKind::Malformed {
                format: format_name(false),
                part: Some(name.clone()),
                what: format!(
                    "record {number}: it has {found} bytes, and a row of the tensor is made of {wanted}"
                )
                .into(),
            })
        };
        Some((row, error))
    }

    /// The columns and tensors of a batch of the host.
    fn upload(&self, batch: &RecordBatch) -> Result<DeviceExamples> {
        if !self.plan.has_tensors() {
            let columns = DeviceBatch::upload(&self.gpu, &self.stream, batch)?;
            return Ok(DeviceExamples::new(columns, Vec::new()));
        }
        let (mut columns, mut tensors) = (Vec::new(), Vec::new());
        for (at, column) in batch.columns().iter().enumerate() {
            // One by one: a tensor takes the place of each.
            let column = std::slice::from_ref(column);
            let mut array = DeviceArray::upload_all(&self.gpu, &self.stream, column)?;
            let Some(array) = array.pop() else { continue };
            let (Some(dense), Some(name)) = (self.plan.tensor(at), self.plan.name(at)) else {
                columns.push(array);
                continue;
            };
            let rows = batch.num_rows();
            let source = array.buffers().last();
            let source = source.ok_or_else(|| Error::new(ErrorKind::Abandoned))?;
            let all = dense.repeated(rows as u64);
            let bytes = self.gpu.dense_in(&self.stream, &all, source);
            let bytes = bytes.map_err(|error| of_tensor(name, error))?;
            tensors.push(FeatureTensor::new(name, dense, rows, bytes)?);
        }
        let columns = DeviceBatch::new(self.plan.schema().clone(), batch.num_rows(), columns);
        Ok(DeviceExamples::new(columns, tensors))
    }
}

/// Whether the column of a feature points into what was read.
fn are_views(feature: &Feature) -> bool {
    matches!(feature.values, ValueType::BinaryView | ValueType::Utf8View)
}

#[cfg(test)]
mod tests {
    use arrow_schema::Schema;

    use super::super::feed::tests::taken;
    use super::*;

    /// Parts of so many rows, each an error where that is said.
    fn parts(of: &[std::result::Result<usize, ErrorKind>]) -> Result<Done> {
        let part = |part: &std::result::Result<usize, ErrorKind>| match part {
            Ok(rows) => {
                let columns = DeviceBatch::new(Arc::new(Schema::empty()), *rows, Vec::new());
                Ok(DeviceExamples::new(columns, Vec::new()))
            }
            Err(kind) => Err(Error::new(kind.clone())),
        };
        Done::of_parts(of.iter().map(part))
    }

    const SHORT: ErrorKind = ErrorKind::OutOfMemory { wanted: 9, cap: 8 };

    fn rows_of(done: &Done) -> Vec<usize> {
        done.batches.iter().map(DeviceExamples::num_rows).collect()
    }

    #[test]
    fn parts_before_one_that_fails_are_delivered() {
        let done = parts(&[Ok(2), Ok(1), Err(ErrorKind::Forked), Ok(2)]).unwrap();
        let (mut rest, mut report) = (Vec::new(), DeviceReport::default());
        let done = done.leaving(taken(&[&[1, 2, 3, 4, 5]]), &mut rest, &mut report);
        assert_eq!((rows_of(&done), report.halved), (vec![2, 1], 0));
        assert!(matches!(done.error.unwrap().kind(), ErrorKind::Forked));
        assert!(rest.is_empty());
    }

    #[test]
    fn what_there_was_no_memory_for_behind_other_parts_is_left_for_the_next_turn() {
        let done = parts(&[Ok(2), Ok(1), Err(SHORT)]).unwrap();
        let (mut rest, mut report) = (Vec::new(), DeviceReport::default());
        let done = done.leaving(taken(&[&[1, 2], &[3, 4, 5]]), &mut rest, &mut report);
        assert_eq!((rows_of(&done), report.halved), (vec![2, 1], 1));
        assert!(done.error.is_none());
        let others = rest.pop().unwrap();
        let numbers: Vec<_> = others.rows.iter().map(|row| row.number).collect();
        assert_eq!((numbers, rest.len()), (vec![3, 4], 0));
        // What comes behind all of them comes behind these.
        assert!(others.last && others.error.is_some());
        // The first of them fails as a whole, to be halved.
        assert!(is_short(&parts(&[Err(SHORT), Ok(1)]).err().unwrap()));
        assert!(is_short(&parts(&[Err(SHORT)]).err().unwrap()));
    }

    #[test]
    fn what_comes_behind_records_comes_behind_all_of_their_parts() {
        let (mut rest, mut report) = (Vec::new(), DeviceReport::default());
        let done = parts(&[Ok(2), Ok(3)]).unwrap();
        let done = done.leaving(taken(&[&[1, 2, 3, 4, 5]]), &mut rest, &mut report);
        assert_eq!((rows_of(&done), report.halved), (vec![2, 3], 0));
        assert!(matches!(done.error.unwrap().kind(), ErrorKind::Abandoned));
        assert!(rest.is_empty());
    }
}
