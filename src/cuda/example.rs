//! Columns of `tf.train.Example`s on a device.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::dense::{PerRow, put_numbers};
use super::device::Device;
use super::frames::{self, Frame, bytes_of, number};
use super::launch::{Output, Words, Work};
use super::modules::Family;
use super::scan;
use crate::buffer::DeviceBytes;
use crate::error::Result;

/// The kernels.
pub(super) const EXAMPLE: Family = Family::new("example", include_str!("kernels/example.ptx"));

/// As in `kernels/example.cu`.
const BLOCK: u32 = 128;
const LANES: u64 = 32;
const COPY_TILE: u64 = 4096;
const NONE: u32 = u32::MAX;
const FEATURE: usize = 128;
const SLOT: usize = 16;

/// What the values of a feature become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    F32,
    I64,
    I32,
    U8,
    Binary,
    Utf8,
}

impl Values {
    /// The list that they are in: as the field of it is numbered, and as `Kind` in the kernel.
    const fn kind(self) -> u32 {
        match self {
            Values::Binary | Values::Utf8 => 1,
            Values::F32 => 2,
            Values::I64 | Values::I32 | Values::U8 => 3,
        }
    }

    /// As `Output` in the kernel.
    const fn number(self) -> u32 {
        match self {
            Values::F32 => 0,
            Values::I64 => 1,
            Values::I32 => 2,
            Values::U8 => 3,
            Values::Binary => 4,
            Values::Utf8 => 5,
        }
    }

    /// Bytes of a value; of bytes, none.
    const fn width(self) -> u64 {
        match self {
            Values::Binary | Values::Utf8 => 0,
            Values::U8 => 1,
            Values::F32 | Values::I32 => 4,
            Values::I64 => 8,
        }
    }

    const fn are_bytes(self) -> bool {
        self.kind() == 1
    }
}

/// What stands where a record does not have a feature.
#[derive(Clone, Debug)]
pub(crate) enum Absent {
    Null,
    Fault,
    Default(Defaults),
}

/// Values that stand where there are none.
#[derive(Clone, Debug)]
pub(crate) enum Defaults {
    Floats(Vec<f32>),
    Integers(Vec<i64>),
    Bytes(Vec<Vec<u8>>),
}

impl Defaults {
    fn len(&self) -> u64 {
        (match self {
            Defaults::Floats(values) => values.len(),
            Defaults::Integers(values) => values.len(),
            Defaults::Bytes(values) => values.len(),
        }) as u64
    }

    /// Bytes of the values of bytes features.
    fn bytes(&self) -> u64 {
        match self {
            Defaults::Bytes(values) => values.iter().map(|value| value.len() as u64).sum(),
            _ => 0,
        }
    }
}

/// One feature, and what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct Feature {
    pub(crate) name: Arc<str>,
    pub(crate) values: Values,
    /// How many values each record has; `None`: any number.
    pub(crate) count: Option<u64>,
    pub(crate) absent: Absent,
    /// One value of bytes in each record: rows of a tensor, instead of a column.
    pub(crate) tensor: Option<PerRow>,
}

/// What becomes columns, of batch after batch.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    features: Vec<Feature>,
    /// Offsets of 64 bits.
    large: bool,
    /// Numbers of features by the hash of their names: at most half full.
    table: Vec<u32>,
}

impl Plan {
    /// The names are all different.
    pub(crate) fn new(features: Vec<Feature>, large: bool) -> Self {
        let slots = (2 * features.len()).next_power_of_two().max(4);
        let mut table = vec![NONE; slots];
        for (number, feature) in (0..).zip(&features) {
            let first = hash(feature.name.as_bytes()) as usize;
            let mut chain = (0..slots).map(|step| (first + step) & (slots - 1));
            let free = chain.find(|at| table.get(*at) == Some(&NONE));
            if let Some(slot) = free.and_then(|at| table.get_mut(at)) {
                *slot = number;
            }
        }
        Plan {
            features,
            large,
            table,
        }
    }

    pub(crate) fn features(&self) -> &[Feature] {
        &self.features
    }

    const fn offset(&self) -> u64 {
        if self.large { 8 } else { 4 }
    }
}

/// FNV-1a, as in the kernel.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// The records of one batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    /// Where they were framed.
    pub(crate) framed: &'a DeviceBytes,
    /// What odd ones became. Four bytes follow the last of them.
    pub(crate) rewritten: Option<&'a DeviceBytes>,
    /// The records; the bytes of those in `rewritten` are of that.
    pub(crate) records: &'a [Record],
    /// Whether checksums are checked: of lengths, and of data.
    pub(crate) check: Option<Check>,
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Framed(Frame),
    Rewritten(Frame),
}

/// Which checksums are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Lengths,
    All,
}

/// What came of a batch.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Vec<Column>),
    /// A checksum is wrong.
    Corrupt,
    /// A record is not what is asked for, or no example.
    Fault,
    /// These records have a form that the kernels do not walk.
    Odd(Vec<u64>),
    /// Offsets of 32 bits do not reach that far.
    Full,
}

/// What a feature became. Which of these there are depends on the feature.
#[derive(Debug, Default)]
pub(crate) struct Column {
    /// Numbers; or bytes beside each other; or the tensor.
    pub(crate) values: Option<DeviceBytes>,
    /// How many values.
    pub(crate) count: u64,
    /// Of bytes: where each value begins, and the end.
    pub(crate) ends: Option<DeviceBytes>,
    /// Of a variable number: where the values of each record begin, and the end.
    pub(crate) offsets: Option<DeviceBytes>,
    pub(crate) validity: Option<DeviceBytes>,
    pub(crate) nulls: u64,
}

/// A column in the making.
#[derive(Default)]
struct Making {
    values: Option<Output>,
    count: u64,
    bytes: u64,
    ends: Option<Output>,
    offsets: Option<Output>,
    validity: Option<Output>,
    nulls: u64,
    addresses: u64,
}

/// Which rows of the sums are a feature's.
#[derive(Clone, Copy)]
struct Rows {
    count: Option<u64>,
    bytes: Option<u64>,
}

impl Device {
    /// The columns of a batch of at least one record. Waits for them.
    ///
    /// Takes 16 bytes of the device's memory for each feature of each record, 32 for each that varies in number or length, and what
    /// the columns have.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for bytes of another device, [`OutOfMemory`](crate::ErrorKind::OutOfMemory),
    /// [`Cuda`](crate::ErrorKind::Cuda), [`DeviceLost`](crate::ErrorKind::DeviceLost), [`Forked`](crate::ErrorKind::Forked).
    pub(crate) fn examples(&self, plan: &Plan, batch: &Batch<'_>) -> Result<Outcome> {
        // Before the work, as that may still go on when this returns with an error.
        let mut made: Vec<Making> = Vec::new();
        let mut work = Work::new(self);
        let framed = work.reads(batch.framed)?;
        let rewritten = match batch.rewritten {
            Some(bytes) => work.reads(bytes)?,
            None => 0,
        };
        let count = batch.records.len() as u64;
        let at = |record: &Record| match record {
            Record::Framed(frame) => (framed + frame.data, frame.len),
            Record::Rewritten(frame) => (rewritten + frame.data, frame.len),
        };
        let records = frames::upload(&mut work, batch.records.iter().map(at))?;
        let bad = match batch.check {
            None => work.filled(8, 0xff)?,
            Some(check) => {
                let bytes = batch.records.iter().map(|record| at(record).1).sum();
                let data = check == Check::All;
                // SAFETY: records with their headers and footers, in bytes that the caller holds until this returns.
                unsafe { frames::check(&mut work, records, count, bytes, data)? }
            }
        };
        let (rows, sum_rows) = sum_rows(plan);
        let names = upload_names(&mut work, plan)?;
        let defaults = upload_defaults(&mut work, plan)?;
        let features = plan.features.len() as u64;
        let lists = |made: &[Making]| -> Result<Words> {
            let mut words = Words::with_capacity(plan.features.len() * FEATURE)?;
            let each = plan.features.iter().zip(&rows).zip(&names).zip(&defaults);
            for (at, (((feature, rows), name), defaults)) in each.enumerate() {
                describe(
                    &mut words,
                    plan,
                    feature,
                    *rows,
                    *name,
                    *defaults,
                    made.get(at),
                );
            }
            Ok(words)
        };
        let mut table = Words::with_capacity(plan.table.len() * 4)?;
        plan.table.iter().for_each(|number| {
            table.u32(*number);
        });
        let table = work.upload(table)?;
        let slots = work.scratch(bytes_of(features.saturating_mul(count), SLOT)?)?;
        let odd = work.scratch(bytes_of(count, 8)?)?;
        let sums = work.scratch(bytes_of(sum_rows.saturating_mul(count), 8)?)?;
        let nulls = work.filled(bytes_of(features, 8)?, 0)?;
        let status = work.filled(16, 0xff)?;
        // SAFETY: its second word, the number of odd records.
        unsafe { work.fill(status + 8, 0, 8)? };
        let job = |features_at: u64, firsts: u64| {
            let mut job = Words::default();
            job.u64(records).u64(count).u64(features_at).u64(features);
            job.u64(table).u64(plan.table.len() as u64 - 1).u64(slots);
            job.u64(odd).u64(status).u64(sums).u64(firsts).u64(nulls);
            job
        };
        let described = work.upload(lists(&[])?)?;
        let warps = count.div_ceil(LANES) * features * LANES;
        // SAFETY: the job is an `ExampleJob`: records in bytes that the caller holds, features with their names and defaults, a place for
        // each slot, odd record, sum and count of nulls. Kernels stay inside of the records, whatever is in them.
        unsafe {
            work.launch(EXAMPLE, "example_index", BLOCK, count, job(described, 0))?;
            work.launch(EXAMPLE, "example_counts", BLOCK, warps, job(described, 0))?;
        }
        let firsts = match sum_rows {
            0 => 0,
            // SAFETY: rows of numbers that the kernel before has written.
            rows => unsafe { scan::rows(&mut work, sums, rows, count)? },
        };
        // All at once: what is waited for first has the others done.
        // SAFETY: words that were filled.
        let bad = number(&unsafe { work.look::<8>(bad, 1)? });
        if bad != u64::MAX {
            return Ok(Outcome::Corrupt);
        }
        // SAFETY: as above.
        let status = unsafe { work.look::<8>(status, 2)? };
        let (fault, odds) = (
            number(&status),
            number(status.get(1..).unwrap_or_default()).min(count),
        );
        if fault != u64::MAX {
            return Ok(Outcome::Fault);
        }
        if odds > 0 {
            // SAFETY: as many numbers were written.
            let odd = unsafe { work.finish::<8>(odd, odds as usize)? };
            let mut odd: Vec<u64> = odd
                .iter()
                .map(|number| u64::from_ne_bytes(*number))
                .collect();
            odd.sort_unstable();
            return Ok(Outcome::Odd(odd));
        }
        // SAFETY: a number for each feature.
        let nulls = unsafe { work.look::<8>(nulls, features as usize)? };
        let totals = (0..sum_rows).map(|row| {
            // SAFETY: the last of each row of sums.
            let total = unsafe { work.look::<8>(firsts + (row * (count + 1) + count) * 8, 1)? };
            Ok(number(&total))
        });
        let totals = totals.collect::<Result<Vec<_>>>()?;
        let total = |row: Option<u64>| row.and_then(|row| totals.get(row as usize).copied());
        for ((feature, rows), nulls) in plan.features.iter().zip(&rows).zip(&nulls) {
            let values = total(rows.count).unwrap_or(count * feature.count.unwrap_or(0));
            let bytes = total(rows.bytes).unwrap_or(0);
            if !plan.large && values.max(bytes) > i32::MAX as u64 {
                return Ok(Outcome::Full);
            }
            let nulls = u64::from_ne_bytes(*nulls);
            let making = self.make(&mut work, plan, feature, count, (values, bytes, nulls));
            made.push(making?);
        }
        let described = work.upload(lists(&made)?)?;
        // SAFETY: as above, with room for the values of each feature.
        unsafe {
            work.launch(
                EXAMPLE,
                "example_emit",
                BLOCK,
                warps,
                job(described, firsts),
            )?
        };
        for (feature, making) in plan.features.iter().zip(&made) {
            // SAFETY: the addresses and ends that the kernel before has written.
            unsafe { fill_bytes(&mut work, plan, feature, making, count)? };
        }
        work.wait()?;
        drop(work);
        let columns = made.into_iter().map(|making| {
            let written = |output: Option<Output>| {
                // SAFETY: all of them were written, and that is done.
                let output = output.map(|output| unsafe { output.written() });
                output.transpose()
            };
            Ok(Column {
                values: written(making.values)?,
                count: making.count,
                ends: written(making.ends)?,
                offsets: written(making.offsets)?,
                validity: written(making.validity)?,
                nulls: making.nulls,
            })
        });
        columns.collect::<Result<_>>().map(Outcome::Done)
    }

    /// Room for the column of a feature that has so many values, bytes and nulls.
    fn make(
        &self,
        work: &mut Work<'_>,
        plan: &Plan,
        feature: &Feature,
        records: u64,
        (values, bytes, nulls): (u64, u64, u64),
    ) -> Result<Making> {
        let output = |count: u64, each: u64| self.output(bytes_of(count, each as usize)?);
        let offsets = |count: u64| output(count.saturating_add(1), plan.offset());
        let mut making = Making {
            count: values,
            bytes,
            nulls,
            ..Making::default()
        };
        if feature.count.is_none() {
            making.offsets = Some(offsets(records)?);
        }
        if nulls > 0 {
            making.validity = Some(output(records.div_ceil(LANES), 4)?);
        }
        match (&feature.tensor, feature.values.are_bytes()) {
            (Some(tensor), _) => making.values = Some(output(values, tensor.row_bytes())?),
            (None, true) => making.values = Some(output(bytes, 1)?),
            (None, false) => making.values = Some(output(values, feature.values.width())?),
        }
        if feature.values.are_bytes() {
            making.addresses = work.scratch(bytes_of(values, 8)?)?;
            making.ends = Some(offsets(values)?);
        }
        Ok(making)
    }
}

/// Which rows of the sums the features have, and how many there are.
fn sum_rows(plan: &Plan) -> (Vec<Rows>, u64) {
    let mut next = 0;
    let mut row = |wanted: bool| {
        wanted.then(|| {
            next += 1;
            next - 1
        })
    };
    let features = plan.features.iter();
    let rows = features
        .map(|feature| Rows {
            count: row(feature.count.is_none()),
            bytes: row(feature.values.are_bytes()),
        })
        .collect();
    (rows, next)
}

/// Where the name of each feature is.
fn upload_names(work: &mut Work<'_>, plan: &Plan) -> Result<Vec<u64>> {
    let features = plan.features.iter();
    let mut all = Words::with_capacity(features.clone().map(|feature| feature.name.len()).sum())?;
    let mut starts = Vec::with_capacity(plan.features.len());
    for feature in features {
        starts.push(all.len() as u64);
        all.bytes(feature.name.as_bytes());
    }
    let address = work.upload(all)?;
    Ok(starts.into_iter().map(|start| address + start).collect())
}

/// Where the defaults of each feature are: values, and of bytes where each begins.
fn upload_defaults(work: &mut Work<'_>, plan: &Plan) -> Result<Vec<(u64, u64)>> {
    let upload = |work: &mut Work<'_>, feature: &Feature| {
        let Absent::Default(defaults) = &feature.absent else {
            return Ok((0, 0));
        };
        let (mut values, mut offsets) = (Words::default(), Words::default());
        match defaults {
            Defaults::Floats(floats) => floats.iter().for_each(|value| {
                values.f32(*value);
            }),
            Defaults::Integers(integers) => integers.iter().for_each(|value| {
                values.u64(value.cast_unsigned());
            }),
            Defaults::Bytes(all) => {
                let mut at = 0;
                offsets.u64(at);
                for value in all {
                    values.bytes(value);
                    at += value.len() as u64;
                    offsets.u64(at);
                }
            }
        }
        Ok((work.upload(values)?, work.upload(offsets)?))
    };
    let features = plan.features.iter();
    features.map(|feature| upload(work, feature)).collect()
}

/// A `Feature` of the kernel.
fn describe(
    words: &mut Words,
    plan: &Plan,
    feature: &Feature,
    rows: Rows,
    name: u64,
    (defaults, default_offsets): (u64, u64),
    made: Option<&Making>,
) {
    let (absent, default_count, default_bytes) = match &feature.absent {
        Absent::Null => (0, 0, 0),
        Absent::Fault => (1, 0, 0),
        Absent::Default(defaults) => (2, defaults.len(), defaults.bytes()),
    };
    let exact = feature
        .tensor
        .as_ref()
        .map_or(u64::MAX, PerRow::source_bytes);
    let row = |row: Option<u64>| row.map_or(NONE, |row| row as u32);
    // No name is longer than a record's, which is compared with this.
    let name_len = u32::try_from(feature.name.len()).unwrap_or(u32::MAX);
    words
        .u64(name)
        .u32(name_len)
        .u32(feature.values.kind())
        .u32(feature.values.number())
        .u32(absent)
        .u32(u32::from(feature.count.is_none()))
        .u32(u32::from(plan.large))
        .u64(feature.count.unwrap_or(0))
        .u64(exact)
        .u32(row(rows.count))
        .u32(row(rows.bytes))
        .u64(default_count)
        .u64(default_bytes)
        .u64(defaults)
        .u64(default_offsets);
    let address = |of: fn(&Making) -> &Option<Output>| {
        made.and_then(|made| of(made).as_ref())
            .map_or(0, Output::address)
    };
    words
        .u64(address(|made| &made.values))
        .u64(address(|made| &made.offsets))
        .u64(address(|made| &made.ends))
        .u64(made.map_or(0, |made| made.addresses))
        .u64(address(|made| &made.validity));
}

/// Queues what makes the values of a bytes feature.
///
/// # Safety
/// The addresses and ends of all its values are written by what was queued before, and the bytes at these addresses stay until the work
/// is done.
unsafe fn fill_bytes(
    work: &mut Work<'_>,
    plan: &Plan,
    feature: &Feature,
    making: &Making,
    records: u64,
) -> Result<()> {
    let (Some(values), Some(ends)) = (&making.values, &making.ends) else {
        return Ok(());
    };
    if let Some(tensor) = &feature.tensor {
        let mut job = Words::default();
        job.u64(making.addresses).u64(records).u64(values.address());
        let (scale, bias) = put_numbers(work, tensor)?;
        tensor.describe(&mut job, scale, bias);
        let threads = records.saturating_mul(tensor.elements());
        // SAFETY: the job is a `TensorJob`: each address has the bytes that the row wants, as the kernel before has checked.
        return unsafe { work.launch(EXAMPLE, "example_tensor", BLOCK, threads, job) };
    }
    if making.bytes == 0 {
        return Ok(());
    }
    let mut job = Words::default();
    job.u64(ends.address()).u64(making.addresses);
    job.u64(making.count)
        .u64(making.bytes)
        .u64(values.address());
    job.u32(u32::from(plan.large)).u32(0);
    let threads = making.bytes.div_ceil(COPY_TILE) * u64::from(BLOCK);
    // SAFETY: the job is a `CopyJob`, with as many bytes of output as the ends say.
    unsafe { work.launch(EXAMPLE, "example_copy", BLOCK, threads, job) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_the_table() {
        let features = (0..77).map(|at| Feature {
            name: format!("feature {at}").into(),
            values: Values::I64,
            count: Some(1),
            absent: Absent::Null,
            tensor: None,
        });
        let plan = Plan::new(features.collect(), false);
        let mask = plan.table.len() - 1;
        for (number, feature) in plan.features.iter().enumerate() {
            let mut slot = hash(feature.name.as_bytes()) as usize;
            while plan.table[slot & mask] != number as u32 {
                assert_ne!(plan.table[slot & mask], NONE);
                slot += 1;
            }
        }
        assert!(Plan::new(Vec::new(), false).table.contains(&NONE));
    }
}
