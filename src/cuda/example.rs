//! Columns of `tf.train.Example`s on a device.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::dense::PerRow;
use super::device::Device;
use super::frames::{self, Frame, bytes_of};
use super::launch::{Output, Words, Work};
use super::modules::Family;
use super::scan;
use super::stream::Stream;
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
const COPY: usize = 48;
const TENSOR: usize = 104;

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
    /// The columns of a batch of at least one record, made in `stream`. Waits for them, and once before, for how many values each has; once
    /// more if records are odd.
    ///
    /// Takes 16 bytes of the device's memory for each feature of each record, 32 for each that varies in number or length, and what
    /// the columns have.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for bytes of another device, [`OutOfMemory`](crate::ErrorKind::OutOfMemory),
    /// [`Cuda`](crate::ErrorKind::Cuda), [`DeviceLost`](crate::ErrorKind::DeviceLost), [`Forked`](crate::ErrorKind::Forked).
    pub(crate) fn examples(
        &self,
        stream: &Stream,
        plan: &Plan,
        batch: &Batch<'_>,
    ) -> Result<Outcome> {
        // Before the work, as that may still go on when this returns with an error.
        let mut made: Vec<Making> = Vec::new();
        let mut work = Work::in_stream(self, stream);
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
        let (rows, sum_rows) = sum_rows(plan);
        let features = plan.features.len() as u64;
        let found = Findings::new(&mut work, features, sum_rows)?;
        if let Some(check) = batch.check {
            let bytes = batch.records.iter().map(|record| at(record).1).sum();
            let data = check == Check::All;
            // SAFETY: records with their headers and footers, in bytes that the caller holds until this returns, and a number.
            unsafe { frames::check(&mut work, records, count, bytes, data, found.bad())? };
        }
        let constants = upload_constants(&mut work, plan)?;
        let lists = |made: &[Making]| -> Result<Words> {
            let mut words = Words::with_capacity(plan.features.len() * FEATURE)?;
            let each = plan.features.iter().zip(&rows).zip(&constants.features);
            for (at, ((feature, rows), constant)) in each.enumerate() {
                describe(&mut words, plan, feature, *rows, *constant, made.get(at));
            }
            Ok(words)
        };
        let slots = work.scratch(bytes_of(features.saturating_mul(count), SLOT)?)?;
        let odd = work.scratch(bytes_of(count, 8)?)?;
        let sums = work.scratch(bytes_of(sum_rows.saturating_mul(count), 8)?)?;
        let job = |features_at: u64, firsts: u64| {
            let mut job = Words::default();
            job.u64(records).u64(count).u64(features_at).u64(features);
            job.u64(constants.table).u64(plan.table.len() as u64 - 1);
            job.u64(slots).u64(odd).u64(found.status());
            job.u64(sums).u64(firsts).u64(found.nulls());
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
            // SAFETY: rows of numbers that the kernel before has written, and a place for the sum of each.
            rows => unsafe { scan::rows_and_totals(&mut work, sums, rows, count, found.totals())? },
        };
        // SAFETY: words that were filled; the kernels that write them are queued.
        let found = unsafe { found.read(&mut work)? };
        if found.bad != u64::MAX {
            return Ok(Outcome::Corrupt);
        }
        if found.fault != u64::MAX {
            return Ok(Outcome::Fault);
        }
        let odds = found.odd.min(count);
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
        let total = |row: Option<u64>| row.and_then(|row| found.totals.get(row as usize).copied());
        for ((feature, rows), nulls) in plan.features.iter().zip(&rows).zip(&found.nulls) {
            let values = total(rows.count).unwrap_or(count * feature.count.unwrap_or(0));
            let bytes = total(rows.bytes).unwrap_or(0);
            if !plan.large && values.max(bytes) > i32::MAX as u64 {
                return Ok(Outcome::Full);
            }
            let making = make(&mut work, plan, feature, count, (values, bytes, *nulls));
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
        // SAFETY: the addresses and ends that the kernel before has written.
        unsafe {
            copy_bytes(&mut work, plan, &made)?;
            fill_tensors(&mut work, plan, &constants, &made, count)?;
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
}

/// Room for the column of a feature that has so many values, bytes and nulls.
fn make(
    work: &mut Work<'_>,
    plan: &Plan,
    feature: &Feature,
    records: u64,
    (values, bytes, nulls): (u64, u64, u64),
) -> Result<Making> {
    let addresses = match feature.values.are_bytes() {
        true => work.scratch(bytes_of(values, 8)?)?,
        false => 0,
    };
    let output = |count: u64, each: u64| work.output(bytes_of(count, each as usize)?);
    let offsets = |count: u64| output(count.saturating_add(1), plan.offset());
    let mut making = Making {
        count: values,
        bytes,
        nulls,
        addresses,
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
        making.ends = Some(offsets(values)?);
    }
    Ok(making)
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

/// What kernels find of a batch: words beside each other, which the host reads at once. The first record with a wrong checksum; the first
/// that is a fault, and how many are odd (a `Status`); then nulls of each feature, and the sums of each row.
struct Findings {
    at: u64,
    features: u64,
    rows: u64,
}

/// The same, read.
struct Found {
    bad: u64,
    fault: u64,
    odd: u64,
    nulls: Vec<u64>,
    totals: Vec<u64>,
}

impl Findings {
    fn new(work: &mut Work<'_>, features: u64, rows: u64) -> Result<Self> {
        let counts = bytes_of(features.saturating_add(rows).saturating_add(1), 8)?;
        let at = work.take(counts.saturating_add(16))?;
        // SAFETY: what was just taken: two numbers of which the least stays, and counts.
        unsafe {
            work.fill(at, 0xff, 16)?;
            work.fill(at + 16, 0, counts)?;
        }
        Ok(Findings { at, features, rows })
    }

    fn bad(&self) -> u64 {
        self.at
    }

    fn status(&self) -> u64 {
        self.at + 8
    }

    fn nulls(&self) -> u64 {
        self.at + 24
    }

    fn totals(&self) -> u64 {
        self.nulls() + self.features * 8
    }

    /// Waits for all that was queued.
    ///
    /// # Safety
    /// As for [`Work::look`].
    unsafe fn read(&self, work: &mut Work<'_>) -> Result<Found> {
        let count = (3 + self.features + self.rows) as usize;
        // SAFETY: so many words were filled.
        let words = unsafe { work.look::<8>(self.at, count)? };
        let mut words = words.into_iter().map(u64::from_ne_bytes);
        let mut next = || words.next().unwrap_or_default();
        let (bad, fault, odd) = (next(), next(), next());
        let nulls = words.by_ref().take(self.features as usize).collect();
        let totals = words.collect();
        Ok(Found {
            bad,
            fault,
            odd,
            nulls,
            totals,
        })
    }
}

/// Where what does not depend on the batch is, on the device.
struct Constants {
    /// [`Plan::table`].
    table: u64,
    features: Vec<Constant>,
}

/// That of a feature; 0 for what it does not have.
#[derive(Clone, Copy, Default)]
struct Constant {
    name: u64,
    /// Values, and of bytes where each begins.
    defaults: (u64, u64),
    /// Scales and biases.
    numbers: (u64, u64),
}

/// All of it in one copy.
fn upload_constants(work: &mut Work<'_>, plan: &Plan) -> Result<Constants> {
    let mut all = Words::with_capacity(plan.table.len() * 4)?;
    plan.table.iter().for_each(|number| {
        all.u32(*number);
    });
    let floats = |all: &mut Words, floats: &[f32]| {
        let at = begin(all);
        floats.iter().for_each(|value| {
            all.f32(*value);
        });
        at
    };
    let mut features = Vec::with_capacity(plan.features.len());
    for feature in &plan.features {
        let mut constant = Constant::default();
        if let Absent::Default(defaults) = &feature.absent {
            let values = match defaults {
                Defaults::Floats(values) => floats(&mut all, values),
                Defaults::Integers(values) => {
                    let at = begin(&mut all);
                    values.iter().for_each(|value| {
                        all.u64(value.cast_unsigned());
                    });
                    at
                }
                Defaults::Bytes(values) => {
                    let at = begin(&mut all);
                    values.iter().for_each(|value| {
                        all.bytes(value);
                    });
                    at
                }
            };
            let offsets = begin(&mut all);
            if let Defaults::Bytes(values) = defaults {
                let mut at = 0;
                all.u64(at);
                for value in values {
                    at += value.len() as u64;
                    all.u64(at);
                }
            }
            constant.defaults = (values, offsets);
        }
        if let Some((scales, biases)) = feature.tensor.as_ref().and_then(PerRow::numbers) {
            constant.numbers = (floats(&mut all, scales), floats(&mut all, biases));
        }
        constant.name = begin(&mut all);
        all.bytes(feature.name.as_bytes());
        features.push(constant);
    }
    let table = work.upload(all)?;
    let move_by = |offset: &mut u64| {
        // The table is at 0.
        if *offset > 0 {
            *offset += table;
        }
    };
    for constant in &mut features {
        move_by(&mut constant.name);
        for pair in [&mut constant.defaults, &mut constant.numbers] {
            move_by(&mut pair.0);
            move_by(&mut pair.1);
        }
    }
    Ok(Constants { table, features })
}

/// Where the next part begins: at a multiple of 8.
fn begin(all: &mut Words) -> u64 {
    while !all.len().is_multiple_of(8) {
        all.bytes(&[0]);
    }
    all.len() as u64
}

/// A `Feature` of the kernel.
fn describe(
    words: &mut Words,
    plan: &Plan,
    feature: &Feature,
    rows: Rows,
    constant: Constant,
    made: Option<&Making>,
) {
    let (name, (defaults, default_offsets)) = (constant.name, constant.defaults);
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

/// Queues the copies of the bytes of all features that have some, and are no tensors.
///
/// # Safety
/// Addresses and ends of all their values are written by what was queued before, and the bytes at these addresses stay until the work
/// is done.
unsafe fn copy_bytes(work: &mut Work<'_>, plan: &Plan, made: &[Making]) -> Result<()> {
    let mut copies = Words::with_capacity(made.len() * COPY)?;
    let mut tiles = 0;
    for (feature, making) in plan.features.iter().zip(made) {
        let (Some(values), Some(ends)) = (&making.values, &making.ends) else {
            continue;
        };
        if feature.tensor.is_some() || making.bytes == 0 {
            continue;
        }
        copies.u64(ends.address()).u64(making.addresses);
        copies.u64(making.count).u64(making.bytes);
        copies.u64(values.address()).u64(tiles);
        tiles += making.bytes.div_ceil(COPY_TILE);
    }
    if tiles == 0 {
        return Ok(());
    }
    let count = copies.len() / COPY;
    let mut job = Words::default();
    job.u64(work.upload(copies)?).u64(count as u64);
    job.u64(tiles).u32(u32::from(plan.large)).u32(0);
    let threads = tiles.saturating_mul(u64::from(BLOCK));
    // SAFETY: the job is a `CopyJob` of so many copies, each with as many bytes of output as its ends say.
    unsafe { work.launch(EXAMPLE, "example_copy", BLOCK, threads, job) }
}

/// Queues what makes tensors of bytes.
///
/// # Safety
/// As for [`copy_bytes`].
unsafe fn fill_tensors(
    work: &mut Work<'_>,
    plan: &Plan,
    constants: &Constants,
    made: &[Making],
    records: u64,
) -> Result<()> {
    let (mut tensors, mut threads) = (Words::default(), 0);
    let each = plan.features.iter().zip(&constants.features).zip(made);
    for ((feature, constant), making) in each {
        let (Some(tensor), Some(values)) = (&feature.tensor, &making.values) else {
            continue;
        };
        tensors.u64(making.addresses).u64(records);
        tensors.u64(values.address());
        let (scale, bias) = constant.numbers;
        tensor.describe(&mut tensors, scale, bias);
        threads = threads.max(records.saturating_mul(tensor.elements()));
    }
    let count = tensors.len() / TENSOR;
    if count == 0 {
        return Ok(());
    }
    let mut job = Words::default();
    job.u64(work.upload(tensors)?).u64(count as u64);
    // SAFETY: the job is a `TensorJob` of so many tensors: each address has the bytes that the row wants, as the kernel before has checked.
    unsafe { work.launch(EXAMPLE, "example_tensor", BLOCK, threads, job) }
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
