//! Tensors in the memory of a GPU.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::load::{Load, Options, Part};
use super::tensor::Tensors;
use crate::buffer::{Block, DeviceBytes};
use crate::cuda::{Dense, Device, DlTensor, DlType, ElementType};
use crate::error::{Error, ErrorKind, Result};
use crate::format::safetensors::{Dtype, Group, TensorInfo, groups};
use crate::reader::{Batch, Pending, Progress, Reader};

/// Runs begin at an address that is congruent to their offset in the file modulo this: GPUDirect Storage then reads straight into
/// them, and tensors are as aligned as the file has them.
const CONGRUENT: usize = 4096;

/// What tensors of files that do not align them are aligned to, as memory of `cudaMalloc` is.
const ALIGN: usize = 256;

/// Bytes that are read before they are cast, and so many pieces of it at once.
const PIECE: u64 = 64 << 20;
const PIECES: usize = 2;

impl<R: Reader + ?Sized> Load<R> {
    /// The same tensors into the memory of a GPU. The reader has to deliver to it: one that was opened with
    /// [`OpenOptions::device`](crate::OpenOptions::device), or a [`Staged`](crate::Staged) around any other.
    ///
    /// ```no_run
    /// use feedwater::cuda::{Device, ElementType};
    /// use feedwater::{OpenOptions, safetensors};
    ///
    /// let gpu = Device::open(0)?;
    /// let options = OpenOptions::new().device(gpu.clone());
    /// let file = safetensors::open(options.open("model.safetensors")?)?;
    /// let weights = file.load().on_device(&gpu).cast(ElementType::BF16).wait()?;
    /// for tensor in &weights {
    ///     let managed = tensor.dlpack()?.into_raw(); // a `DLManagedTensor`
    ///     # let _ = managed;
    /// }
    /// # Ok::<(), feedwater::Error>(())
    /// ```
    ///
    /// All tensors of a file share one piece of its memory, and are views of it. In host memory there are never more than the
    /// blocks that are on their way ([`StagingOptions`](crate::StagingOptions)). Tensors that the file does not align to their
    /// elements are [aligned](Self::align) to 256 bytes; [`pool`](Self::pool) and [`window`](Self::window) do nothing here. There is no
    /// choice of a [`Processor`](crate::Processor): nothing is decoded, and casts are made by the device.
    pub fn on_device(self, gpu: &Arc<Device>) -> DeviceLoad<R> {
        DeviceLoad {
            load: self,
            gpu: gpu.clone(),
            cast: None,
        }
    }
}

/// Tensors to be read into the memory of a GPU; made by [`Load::on_device`]. Nothing is read before one of
/// [`wait`](Self::wait), [`submit`](Self::submit) and `.await`.
#[must_use = "nothing is read before `wait` or `submit`"]
pub struct DeviceLoad<R: Reader + ?Sized> {
    load: Load<R>,
    gpu: Arc<Device>,
    cast: Option<ElementType>,
}

impl<R: Reader + ?Sized> DeviceLoad<R> {
    /// Makes tensors of `F16`, `BF16` and `F32` into this one of the three types on the device, as they come; others stay as they
    /// are. Rounded to the nearest, ties to even; what is too large for `F16` is infinite.
    ///
    /// A file is then read in pieces of 64 MiB, two at a time; a tensor that is cast has memory of its own, and a piece is given
    /// back when all tensors in it were. So the device needs little more than the result has bytes.
    pub fn cast(mut self, to: ElementType) -> Self {
        self.cast = Some(to);
        self
    }

    /// Starts reading all of them: await it on any executor, or [wait](PendingDeviceTensors::wait).
    pub fn submit(self) -> PendingDeviceTensors<R> {
        let DeviceLoad { load, gpu, cast } = self;
        let (parts, options, mut failed) = load.into_parts();
        if let Some(to) = cast.filter(|to| dtype_of(*to).is_none()) {
            let what = format!("cast to {to:?}; F16, BF16 or F32").into();
            failed.get_or_insert(Error::new(ErrorKind::InvalidOption { what }));
        }
        let mut rest = VecDeque::new();
        let mut total = Progress::default();
        for part in parts {
            let size = if cast.is_some() { PIECE } else { u64::MAX };
            for piece in Piece::of(part, &options, size) {
                total.reads += piece.group.runs.len();
                total.bytes += piece.group.bytes();
                rest.push_back(piece);
            }
        }
        let mut pending = PendingDeviceTensors {
            gpu,
            cast,
            options,
            ahead: VecDeque::new(),
            most: if cast.is_some() { PIECES } else { rest.len() },
            rest,
            tensors: Vec::new(),
            total,
            failed,
        };
        pending.top_up();
        pending
    }

    /// Reads all of them, and parks this thread until they are there.
    ///
    /// # Errors
    /// Those of the reader, [`Unsupported`](ErrorKind::Unsupported) if it does not deliver to the device;
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) of the device or of the host; [`Cuda`](ErrorKind::Cuda) and
    /// [`DeviceLost`](ErrorKind::DeviceLost); [`NotFound`](ErrorKind::NotFound) for a [name](Load::names) that is not there;
    /// [`InvalidOption`](ErrorKind::InvalidOption) for an [alignment](Load::align) or a type that cannot be.
    pub fn wait(self) -> Result<DeviceTensors> {
        self.submit().wait()
    }
}

impl<R: Reader + ?Sized> IntoFuture for DeviceLoad<R> {
    type Output = Result<DeviceTensors>;
    type IntoFuture = PendingDeviceTensors<R>;

    fn into_future(self) -> PendingDeviceTensors<R> {
        self.submit()
    }
}

impl<R: Reader + ?Sized> fmt::Debug for DeviceLoad<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceLoad")
            .field("load", &self.load)
            .field("device", &self.gpu)
            .field("cast", &self.cast)
            .finish()
    }
}

/// Neighbours that are read together.
struct Piece<R: Reader + ?Sized> {
    reader: Arc<R>,
    tensors: Arc<[TensorInfo]>,
    group: Group,
    /// Whether each tensor has a place, rather than each run.
    aligned: bool,
}

impl<R: Reader + ?Sized> Piece<R> {
    fn of(part: Part<R>, options: &Options, size: u64) -> Vec<Self> {
        let Part { reader, tensors } = part;
        let by_file = |info: &TensorInfo| {
            let bytes = (info.dtype().bitsize() / 8) as u64;
            bytes == 0 || info.range().start.is_multiple_of(bytes)
        };
        let mut options = options.clone();
        if options.align.is_none() && !tensors.iter().all(by_file) {
            options.align = Some(ALIGN);
        }
        let tensors: Arc<[TensorInfo]> = tensors.into();
        groups(&tensors, size, options.shape(&*reader))
            .into_iter()
            .map(|group| Piece {
                reader: reader.clone(),
                tensors: tensors.clone(),
                group,
                aligned: options.align.is_some(),
            })
            .collect()
    }

    /// Asks for it, in one piece of the device's memory.
    fn send(self, gpu: &Device, options: &Options) -> Result<Sent<R>> {
        // Where in the memory each run begins, and how long all of it is.
        let mut places = Vec::with_capacity(self.group.runs.len());
        let mut end = 0usize;
        for run in &self.group.runs {
            let place = if self.aligned {
                run.at
            } else {
                let offset = (run.range.start % CONGRUENT as u64) as usize;
                end.next_multiple_of(CONGRUENT) + offset
            };
            end = place + (run.range.end - run.range.start) as usize;
            places.push(place);
        }
        let memory = gpu.allocate(end);
        let mut memory = memory.map_err(|error| error.named(self.reader.source().name()))?;
        let mut batch = Batch::new().options(options.read.clone());
        let mut at = 0;
        for (run, place) in self.group.runs.iter().zip(places) {
            let len = (run.range.end - run.range.start) as usize;
            drop(memory.split_to(place - at));
            batch = batch.read_into(run.range.clone(), memory.split_to(len));
            at = place + len;
        }
        Ok(Sent {
            pending: self.reader.submit(batch),
            piece: self,
        })
    }
}

/// A piece that was asked for.
struct Sent<R: Reader + ?Sized> {
    pending: Pending,
    piece: Piece<R>,
}

/// Tensors on their way to a GPU: await it on any executor, or [`wait`](Self::wait). Dropping it cancels what has not been sent
/// to the system; memory that is written to stays until that is over.
///
/// With a [cast](DeviceLoad::cast), waiting and polling take the time of its kernels as well: an executor's thread is blocked as long.
#[must_use = "dropping it cancels reads that have not begun"]
pub struct PendingDeviceTensors<R: Reader + ?Sized> {
    gpu: Arc<Device>,
    cast: Option<ElementType>,
    options: Options,
    rest: VecDeque<Piece<R>>,
    ahead: VecDeque<Sent<R>>,
    /// Pieces that are asked for at once, at most.
    most: usize,
    tensors: Vec<DeviceTensor>,
    /// Done: of the pieces that are all there.
    total: Progress,
    failed: Option<Error>,
}

impl<R: Reader + ?Sized> PendingDeviceTensors<R> {
    /// Parks this thread until all tensors are there.
    ///
    /// # Errors
    /// As [`DeviceLoad::wait`].
    pub fn wait(mut self) -> Result<DeviceTensors> {
        while let Some(Sent { pending, piece }) = self.next()? {
            let blocks = pending.wait()?;
            self.take(&piece, blocks)?;
        }
        Ok(Tensors::new(self.tensors, DeviceTensor::name, None))
    }

    /// How far it is, of all files together: ranges and bytes that are on the device, and that are wanted.
    pub fn progress(&self) -> Progress {
        let mut sum = self.total;
        for sent in &self.ahead {
            let progress = sent.pending.progress();
            sum.reads_done += progress.reads_done;
            sum.bytes_done += progress.bytes_done;
        }
        sum
    }

    /// Asks for as much as may be under way.
    fn top_up(&mut self) {
        while self.failed.is_none()
            && self.ahead.len() < self.most
            && let Some(piece) = self.rest.pop_front()
        {
            match piece.send(&self.gpu, &self.options) {
                Ok(sent) => self.ahead.push_back(sent),
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// The next piece that was asked for.
    fn next(&mut self) -> Result<Option<Sent<R>>> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(self.ahead.pop_front()),
        }
    }

    /// The tensors of a piece that is there.
    fn take(&mut self, piece: &Piece<R>, blocks: Vec<Block>) -> Result<()> {
        self.total.reads_done += piece.group.runs.len();
        self.total.bytes_done += piece.group.bytes();
        let name = piece.reader.source().name();
        for (run, block) in piece.group.runs.iter().zip(blocks) {
            let here = |error: Error| error.named(name).at(run.range.clone());
            let bytes = block.into_device().map_err(here)?;
            let infos = piece.tensors.get(run.tensors.clone());
            for info in infos.unwrap_or_default() {
                let from = (info.range().start - run.range.start) as usize;
                let part = bytes.slice(from..from + info.byte_len());
                let tensor = DeviceTensor {
                    dtype: info.dtype(),
                    info: info.clone(),
                    bytes: part,
                };
                let tensor = tensor.cast(&self.gpu, self.cast);
                self.tensors.push(tensor.map_err(here)?);
            }
        }
        self.top_up();
        Ok(())
    }
}

impl<R: Reader + ?Sized> Future for PendingDeviceTensors<R> {
    type Output = Result<DeviceTensors>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            if let Some(error) = &this.failed {
                return Poll::Ready(Err(error.clone()));
            }
            let Some(sent) = this.ahead.front_mut() else {
                break;
            };
            let blocks = std::task::ready!(Pin::new(&mut sent.pending).poll(cx));
            let taken = match (blocks, this.ahead.pop_front()) {
                (Ok(blocks), Some(sent)) => this.take(&sent.piece, blocks),
                (Err(error), _) => Err(error),
                (Ok(_), None) => Ok(()),
            };
            if let Err(error) = taken {
                this.failed = Some(error);
            }
        }
        // Polled once more, it has nothing to give, which is no empty set of tensors.
        this.failed = Some(Error::new(ErrorKind::Abandoned));
        Poll::Ready(Ok(Tensors::new(
            std::mem::take(&mut this.tensors),
            DeviceTensor::name,
            None,
        )))
    }
}

impl<R: Reader + ?Sized> Unpin for PendingDeviceTensors<R> {}

impl<R: Reader + ?Sized> fmt::Debug for PendingDeviceTensors<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingDeviceTensors")
            .field("progress", &self.progress())
            .finish_non_exhaustive()
    }
}

/// A tensor in the memory of a GPU; cheap to clone. Its memory is given back with the last tensor of it: kernels that you queue on it have to be
/// done then, or to be [told of](Device::used_in).
#[derive(Clone, Debug)]
pub struct DeviceTensor {
    info: TensorInfo,
    dtype: Dtype,
    bytes: DeviceBytes,
}

impl DeviceTensor {
    /// What the file says of it.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.info.name()
    }

    /// What its elements are on the device, which a [cast](DeviceLoad::cast) changed.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its dimensions, the slowest first.
    pub fn shape(&self) -> &[usize] {
        self.info.shape()
    }

    /// Its elements, in the order of the shape.
    pub fn bytes(&self) -> &DeviceBytes {
        &self.bytes
    }

    /// It as `DLPack` has it, for PyTorch, JAX, CuPy and others; shares the memory.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for types that `DLPack` does not name (those of 4, 6 and 8 bits that are floating-point
    /// numbers, and complex ones).
    pub fn dlpack(&self) -> Result<DlTensor> {
        let element = match self.dtype {
            Dtype::BOOL => DlType::Bool,
            Dtype::U8 => DlType::UInt(8),
            Dtype::U16 => DlType::UInt(16),
            Dtype::U32 => DlType::UInt(32),
            Dtype::U64 => DlType::UInt(64),
            Dtype::I8 => DlType::Int(8),
            Dtype::I16 => DlType::Int(16),
            Dtype::I32 => DlType::Int(32),
            Dtype::I64 => DlType::Int(64),
            Dtype::F16 => DlType::Float(16),
            Dtype::F32 => DlType::Float(32),
            Dtype::F64 => DlType::Float(64),
            Dtype::BF16 => DlType::BFloat16,
            other => {
                let what = format!("DLPack of {other:?}").into();
                return Err(Error::new(ErrorKind::Unsupported { what }));
            }
        };
        let shape: Vec<u64> = self.shape().iter().map(|dim| *dim as u64).collect();
        DlTensor::new(self.bytes.clone(), element, &shape)
    }

    /// It in another type, if it is one that is cast and has not got it.
    fn cast(mut self, gpu: &Device, to: Option<ElementType>) -> Result<Self> {
        let Some(to) = to else { return Ok(self) };
        let from = match self.dtype {
            Dtype::F16 => ElementType::F16,
            Dtype::BF16 => ElementType::BF16,
            Dtype::F32 => ElementType::F32,
            _ => return Ok(self),
        };
        if let Some(dtype) = dtype_of(to).filter(|_| from != to) {
            let count = self.bytes.len() as u64 / from.size();
            self.bytes = gpu.dense(&Dense::cast(&[count], from, to), &self.bytes)?;
            self.dtype = dtype;
        }
        Ok(self)
    }
}

fn dtype_of(element: ElementType) -> Option<Dtype> {
    match element {
        ElementType::F16 => Some(Dtype::F16),
        ElementType::BF16 => Some(Dtype::BF16),
        ElementType::F32 => Some(Dtype::F32),
        _ => None,
    }
}

/// Tensors that were read together into the memory of a GPU, in the order of their files.
pub type DeviceTensors = Tensors<DeviceTensor>;
