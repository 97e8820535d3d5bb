//! Copies into dense tensors on a device.
#![allow(unsafe_code)]

use super::device::Device;
use super::launch::{Words, Work};
use super::modules::Family;
use super::stream::Stream;
use crate::buffer::DeviceBytes;
use crate::error::{Error, ErrorKind, Result};

/// The kernels.
pub(super) const DENSE: Family = Family::new("dense", include_str!("kernels/dense.ptx"));

/// Threads of a block (`kernels/dense.cu`).
const BLOCK: u32 = 256;

/// The type of a tensor's elements; in the byte order of the device, which is little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// 8 bits without sign.
    U8,
    /// 8 bits with sign.
    I8,
    /// 16 bits without sign.
    U16,
    /// 16 bits with sign.
    I16,
    /// 32 bits with sign. As a `f32` it is rounded to the nearest.
    I32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// IEEE 754 binary32.
    F32,
}

impl ElementType {
    /// Bytes of an element.
    pub const fn size(self) -> u64 {
        match self {
            ElementType::U8 | ElementType::I8 => 1,
            ElementType::U16 | ElementType::I16 | ElementType::F16 | ElementType::BF16 => 2,
            ElementType::I32 | ElementType::F32 => 4,
        }
    }

    /// As `Element` in the kernel.
    const fn number(self) -> u32 {
        match self {
            ElementType::U8 => 0,
            ElementType::I8 => 1,
            ElementType::U16 => 2,
            ElementType::I16 => 3,
            ElementType::I32 => 4,
            ElementType::F16 => 5,
            ElementType::BF16 => 6,
            ElementType::F32 => 7,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Change {
    /// Elements of so many bytes, as they are.
    Copy(u64),
    Cast(ElementType, ElementType),
}

/// How elements of some bytes become a dense, row-major tensor: which, in which order, and as what.
///
/// | you want | say |
/// |---|---|
/// | a part, or another order | [`copy`](Self::copy) with [`strides`](Self::strides) |
/// | some rows | [`rows`](Self::rows) |
/// | images `[n, h, w, c]` of bytes as `[n, c, h, w]` of floats, normalised | [`cast`](Self::cast), [`strides`](Self::strides), [`affine`](Self::affine) |
///
/// ```no_run
/// use feedwater::cuda::{Dense, Device, ElementType};
///
/// # fn images(gpu: &Device, bytes: &feedwater::DeviceBytes) -> feedwater::Result<()> {
/// let (n, h, w) = (32, 224, 224);
/// let tensor = Dense::cast(&[n, 3, h, w], ElementType::U8, ElementType::F32)
///     .strides(&[h * w * 3, 1, w * 3, 3])            // of the source, in elements
///     .affine(1, &[1.0 / 255.0; 3], &[-0.5; 3]);     // x · scale + bias, for each of dimension 1
/// let floats = gpu.dense(&tensor, bytes)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Dense {
    shape: Vec<u64>,
    strides: Option<Vec<u64>>,
    change: Change,
    rows: Option<Vec<u64>>,
    affine: Option<(usize, Vec<f32>, Vec<f32>)>,
}

impl Dense {
    /// A tensor of this shape, of one to four dimensions, whose elements are `size` bytes (1, 2, 4 or 8) of the source, unchanged.
    #[must_use]
    pub fn copy(shape: &[u64], size: u64) -> Self {
        Dense::of(shape, Change::Copy(size))
    }

    /// A tensor of this shape, of one to four dimensions, whose elements are those of the source in another type: by way of
    /// `f32`, rounded to the nearest and ties to even. Into `U8` what is past its ends is its end, and not-a-number 0; into `F16`
    /// what is too large is infinite. Other integers can be read, and not be made.
    #[must_use]
    pub fn cast(shape: &[u64], from: ElementType, to: ElementType) -> Self {
        Dense::of(shape, Change::Cast(from, to))
    }

    fn of(shape: &[u64], change: Change) -> Self {
        Dense {
            shape: shape.to_vec(),
            strides: None,
            change,
            rows: None,
            affine: None,
        }
    }

    /// How far the next one of each dimension is in the source, in elements; 0 repeats one. Default: row-major and dense, as
    /// the output.
    #[must_use]
    pub fn strides(mut self, elements: &[u64]) -> Self {
        self.strides = Some(elements.to_vec());
        self
    }

    /// Which row of the source each row of the output is, by number; a row is an index of the first dimension. As many as the
    /// shape says. Default: the same.
    #[must_use]
    pub fn rows(mut self, rows: &[u64]) -> Self {
        self.rows = Some(rows.to_vec());
        self
    }

    /// Makes each `x` of a [`cast`](Self::cast) `x · scale + bias`, with a scale and a bias for each index of dimension `channel`.
    /// In `f32`, rounded after each of both operations.
    #[must_use]
    pub fn affine(mut self, channel: usize, scale: &[f32], bias: &[f32]) -> Self {
        self.affine = Some((channel, scale.to_vec(), bias.to_vec()));
        self
    }

    /// Checks it against `bytes` of the source, and brings it into the form of the kernel.
    fn plan(&self, bytes: &DeviceBytes) -> Result<Plan> {
        let from = match self.change {
            Change::Copy(size) => size,
            Change::Cast(from, _) => from.size(),
        };
        let plan = self.plan_for(bytes.len() as u64)?;
        if !(bytes.ptr().addr() as u64).is_multiple_of(from) {
            let what = format!("a source that does not begin at a multiple of {from} bytes");
            return Err(Error::new(ErrorKind::Unsupported { what: what.into() }).by("cuda"));
        }
        Ok(plan)
    }

    /// The same for `len` bytes.
    fn plan_for(&self, len: u64) -> Result<Plan> {
        let dims = self.shape.len();
        if !(1..=4).contains(&dims) {
            return Err(invalid(format!("{dims} dimensions; 1 to 4 are possible")));
        }
        let (from, to) = match self.change {
            Change::Copy(size) if [1, 2, 4, 8].contains(&size) => (size, size),
            Change::Copy(size) => {
                return Err(invalid(format!("elements of {size} bytes; 1, 2, 4 or 8")));
            }
            Change::Cast(
                from,
                to @ (ElementType::U8 | ElementType::F16 | ElementType::BF16 | ElementType::F32),
            ) => (from.size(), to.size()),
            Change::Cast(_, to) => {
                return Err(invalid(format!(
                    "to {to:?}; U8, F16, BF16 and F32 can be made"
                )));
            }
        };
        let too_large = || invalid(format!("{:?}: more bytes than there can be", self.shape));
        let mut count = 1u64;
        for dim in &self.shape {
            count = count.checked_mul(*dim).ok_or_else(too_large)?;
        }
        let output = count.checked_mul(to).ok_or_else(too_large)?;
        let output = usize::try_from(output).map_err(|_| too_large())?;
        if let Some(rows) = &self.rows
            && rows.len() as u64 != self.shape[0]
        {
            let what = format!("{} rows where the shape has {}", rows.len(), self.shape[0]);
            return Err(invalid(what));
        }
        let given = match &self.strides {
            Some(strides) if strides.len() == dims => strides.clone(),
            Some(strides) => {
                let what = format!("{} strides for {dims} dimensions", strides.len());
                return Err(invalid(what));
            }
            None => row_major(&self.shape),
        };
        // Those behind the last are of one element: that of rows has to stay the first.
        let mut shape = [1; 4];
        let mut strides = [0; 4];
        for ((shape, strides), (dim, stride)) in shape
            .iter_mut()
            .zip(&mut strides)
            .zip(self.shape.iter().zip(&given))
        {
            *shape = *dim;
            // A tensor of no elements reads nothing.
            if count > 0 {
                *strides = stride.checked_mul(from).ok_or_else(too_large)?;
            }
        }
        let mut source_rows = shape[0];
        if count > 0 {
            // How far the last element of one row is behind the first, and that of the last row. The dimensions are together no more
            // than 64 bits have, so that this is no more than 128 have.
            let reach = |from: usize| {
                let dims = shape.iter().zip(&strides).skip(from);
                dims.map(|(dim, stride)| u128::from(dim - 1) * u128::from(*stride))
                    .sum::<u128>()
            };
            let row = reach(1) + u128::from(from);
            let outside = || Error::new(ErrorKind::OutOfBounds { len }).by("cuda");
            if let Some(rows) = &self.rows {
                if row > u128::from(len) {
                    return Err(outside());
                }
                // Those that begin early enough.
                source_rows = match strides[0] {
                    0 => u64::MAX,
                    stride => ((u128::from(len) - row) / u128::from(stride)) as u64 + 1,
                };
                if let Some(row) = rows.iter().find(|row| **row >= source_rows) {
                    let start = row.saturating_mul(strides[0]);
                    return Err(outside().at(start..start.saturating_add(from)));
                }
            } else if reach(0) + u128::from(from) > u128::from(len) {
                let end = u64::try_from(reach(0) + u128::from(from)).unwrap_or(u64::MAX);
                return Err(outside().at(0..end));
            }
        }
        if let Some((channel, scale, bias)) = &self.affine {
            if matches!(self.change, Change::Copy(_)) {
                let what = "a scale and a bias for a copy: only a cast has them";
                return Err(invalid(what.into()));
            }
            let dim = shape.get(*channel).filter(|_| *channel < dims);
            let dim = dim.ok_or_else(|| {
                let what = "a scale and a bias for each index of dimension";
                invalid(format!("{what} {channel}, of {dims} dimensions"))
            })?;
            if (scale.len() as u64, bias.len() as u64) != (*dim, *dim) {
                let given = format!("{} scales and {} biases", scale.len(), bias.len());
                return Err(invalid(format!(
                    "{given} for the {dim} of dimension {channel}"
                )));
            }
        }
        Ok(Plan {
            shape,
            strides,
            count,
            output,
            source_rows,
        })
    }
}

/// One row of many, each of which is a tensor by itself at an address of its own.
#[derive(Clone, Debug)]
pub(crate) struct PerRow {
    shape: [u64; 3],
    /// In bytes.
    strides: [u64; 3],
    source: u64,
    from: ElementType,
    to: ElementType,
    affine: Option<(usize, Vec<f32>, Vec<f32>)>,
}

// For examples: a tensor of each row.
#[cfg_attr(not(feature = "tfrecord"), allow(dead_code))]
impl Dense {
    /// The same for each of many rows, none of which has to be aligned: a cast of one to three dimensions, whose source has
    /// exactly as many elements as the shape.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for anything else.
    pub(crate) fn per_row(&self) -> Result<PerRow> {
        let Change::Cast(from, to) = self.change else {
            return Err(invalid("a copy of each row; a cast is possible".into()));
        };
        if self.shape.len() > 3 || self.rows.is_some() {
            let what = format!(
                "rows of {:?}, or some of them; 1 to 3 dimensions",
                self.shape
            );
            return Err(invalid(what));
        }
        let elements = self
            .shape
            .iter()
            .try_fold(from.size(), |n, d| n.checked_mul(*d));
        let Some(source) = elements.filter(|bytes| *bytes > 0 && *bytes < 1 << 40) else {
            return Err(invalid(format!("rows of {:?}", self.shape)));
        };
        let plan = self.plan_for(source)?;
        let [a, b, c, _] = plan.shape;
        let [d, e, f, _] = plan.strides;
        Ok(PerRow {
            shape: [a, b, c],
            strides: [d, e, f],
            source,
            from,
            to,
            affine: self.affine.clone(),
        })
    }

    /// The same for each of `count` rows that lie one behind the other.
    pub(crate) fn repeated(&self, count: u64) -> Dense {
        let dense = row_major(&self.shape);
        let inner = self.strides.as_ref().unwrap_or(&dense);
        let row: u64 = self.shape.iter().product();
        let ahead =
            |first: u64, rest: &[u64]| std::iter::once(first).chain(rest.iter().copied()).collect();
        Dense {
            shape: ahead(count, &self.shape),
            strides: Some(ahead(row, inner)),
            change: self.change,
            rows: None,
            affine: self
                .affine
                .clone()
                .map(|(channel, scale, bias)| (channel + 1, scale, bias)),
        }
    }

    /// Its shape.
    pub(crate) fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The type of its elements; `None` for a copy.
    pub(crate) fn element(&self) -> Option<ElementType> {
        match self.change {
            Change::Cast(_, to) => Some(to),
            Change::Copy(_) => None,
        }
    }
}

impl PerRow {
    /// Elements of a row.
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes that the source of a row has.
    pub(crate) fn source_bytes(&self) -> u64 {
        self.source
    }

    /// Its scales and biases, if it has some.
    pub(super) fn numbers(&self) -> Option<(&[f32], &[f32])> {
        let (_, scales, biases) = self.affine.as_ref()?;
        Some((scales, biases))
    }

    /// Bytes of a row.
    pub(super) fn row_bytes(&self) -> u64 {
        self.elements() * self.to.size()
    }

    /// The part of a `Tensor` that is the same for all batches (`kernels/example.cu`).
    pub(super) fn describe(&self, job: &mut Words, scale: u64, bias: u64) {
        self.shape.iter().chain(&self.strides).for_each(|number| {
            job.u64(*number);
        });
        let channel = self
            .affine
            .as_ref()
            .map_or(0, |(channel, ..)| *channel as u32);
        job.u64(scale).u64(bias).u32(channel);
        job.u32(self.from.size() as u32);
        job.u32(self.from.number()).u32(self.to.number());
    }
}

/// What the kernel is told.
struct Plan {
    shape: [u64; 4],
    /// In bytes.
    strides: [u64; 4],
    count: u64,
    /// Bytes of the output.
    output: usize,
    source_rows: u64,
}

/// Strides of a dense tensor, in elements.
fn row_major(shape: &[u64]) -> Vec<u64> {
    let mut stride = 1u64;
    let mut strides: Vec<u64> = shape
        .iter()
        .rev()
        .map(|dim| {
            let this = stride;
            stride = stride.saturating_mul(*dim);
            this
        })
        .collect();
    strides.reverse();
    strides
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidOption { what: what.into() }).by("cuda")
}

impl Device {
    /// Makes a dense tensor out of `bytes`, in memory of its own. Waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] if what [`Dense`] says does not fit together; [`ErrorKind::OutOfBounds`] if it reaches past
    /// the bytes; [`ErrorKind::Unsupported`] for bytes of another device, or that are not aligned to their elements;
    /// [`ErrorKind::OutOfMemory`], [`ErrorKind::Cuda`], [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub fn dense(&self, tensor: &Dense, bytes: &DeviceBytes) -> Result<DeviceBytes> {
        self.dense_in(self.own(), tensor, bytes)
    }

    /// The same in another stream.
    pub(crate) fn dense_in(
        &self,
        stream: &Stream,
        tensor: &Dense,
        bytes: &DeviceBytes,
    ) -> Result<DeviceBytes> {
        let plan = tensor.plan(bytes)?;
        let mut work = Work::in_stream(self, stream);
        let source = work.reads(bytes)?;
        let made = work.output(plan.output)?;
        if plan.count > 0 {
            let output = made.address();
            let rows = match &tensor.rows {
                None => 0,
                Some(rows) => {
                    let mut words = Words::with_capacity(rows.len() * 8)?;
                    rows.iter().for_each(|row| {
                        words.u64(*row);
                    });
                    work.upload(words)?
                }
            };
            let error = work.filled(8, 0xff)?;
            let (mut scale, mut bias, mut channel) = (0, 0, 0);
            if let Some((dimension, scales, biases)) = &tensor.affine {
                for (numbers, address) in [(scales, &mut scale), (biases, &mut bias)] {
                    let mut words = Words::with_capacity(numbers.len() * 4)?;
                    numbers.iter().for_each(|number| {
                        words.f32(*number);
                    });
                    *address = work.upload(words)?;
                }
                channel = *dimension as u32;
            }
            let mut job = Words::default();
            job.u64(source).u64(output);
            plan.shape.iter().chain(&plan.strides).for_each(|number| {
                job.u64(*number);
            });
            job.u64(rows).u64(plan.source_rows).u64(error);
            job.u64(scale).u64(bias).u32(channel);
            match tensor.change {
                Change::Copy(size) => job.u32(0).u32(size as u32).u32(0).u32(0),
                Change::Cast(from, to) => job.u32(1).u32(0).u32(from.number()).u32(to.number()),
            };
            job.u32(0); // to a multiple of 8 bytes
            // SAFETY: the job is a `DenseJob`; the plan was checked to stay inside of `bytes`, which the caller holds, and the
            // output has a place for each element.
            unsafe { work.launch(DENSE, "dense", BLOCK, plan.count, job)? };
            // SAFETY: a word.
            let error = unsafe { work.finish::<8>(error, 1)? };
            if error.first().is_some_and(|row| *row != [0xff; 8]) {
                // The rows were checked above; the device saw others.
                let len = bytes.len() as u64;
                return Err(Error::new(ErrorKind::OutOfBounds { len }).by("cuda"));
            }
        }
        // SAFETY: the kernel wrote each byte of it.
        unsafe { made.written() }
    }
}
