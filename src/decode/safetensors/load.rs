//! Reading tensors: which, where to, and how.

use std::collections::HashSet;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::file::not_found;
use super::in_order::InOrder;
use super::tensor::{Tensor, Tensors};
use crate::buffer::{Block, Pool};
use crate::decode::element::aligned;
use crate::error::{Error, ErrorKind, Result};
use crate::format::safetensors::{Group, Shape, TensorInfo, group};
use crate::open::Engine;
use crate::reader::{Batch, Pending, Progress, ReadOptions, Reader};

/// Alignments up to the size of a page can be had, as blocks begin on the boundary of one.
const ALIGN_MOST: usize = 4096;

/// Default of [`Load::window`].
const WINDOW: u64 = 64 << 20;

/// Tensors to be read: all, until some are chosen. Nothing is read before one of [`wait`](Self::wait),
/// [`submit`](Self::submit), `.await` and [`in_order`](Self::in_order). Made by [`TensorFile::load`](super::TensorFile::load) and
/// [`ShardedTensors::load`](super::ShardedTensors::load).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.safetensors");
/// use feedwater::safetensors::{self, Dtype, NewTensor};
///
/// let bytes = [7u8; 96];
/// let tensors = ["a", "b", "c"].map(|name| NewTensor::new(name, Dtype::U8, [96], &bytes[..]));
/// safetensors::save(&path, &tensors, &Default::default())?;
///
/// let file = safetensors::open(feedwater::open(&path)?)?;
/// let some = file.load().names(["c", "a"]).align(64).wait()?;
/// assert_eq!(some.len(), 2);
/// assert_eq!(some.tensor("c")?.bytes().as_ptr() as usize % 64, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is read before `wait`, `submit` or `in_order`"]
pub struct Load<R: Reader + ?Sized> {
    parts: Vec<Part<R>>,
    /// Of the file, or of the index of the files.
    name: Arc<str>,
    options: Options,
    failed: Option<Error>,
}

/// Tensors of one file.
pub(super) struct Part<R: Reader + ?Sized> {
    pub(super) reader: Arc<R>,
    /// In the order of the file.
    pub(super) tensors: Vec<TensorInfo>,
}

/// How tensors are read.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) align: Option<usize>,
    pub(super) pool: Option<Pool>,
    pub(super) window: u64,
    pub(super) read: ReadOptions,
}

impl<R: Reader + ?Sized> Load<R> {
    pub(super) fn of(reader: Arc<R>, tensors: Vec<TensorInfo>) -> Self {
        let name = reader.source().name().clone();
        Load::of_parts(vec![Part { reader, tensors }], &name)
    }

    pub(super) fn of_parts(parts: Vec<Part<R>>, name: &Arc<str>) -> Self {
        Load {
            parts,
            name: name.clone(),
            options: Options {
                align: None,
                pool: None,
                window: WINDOW,
                read: ReadOptions::default(),
            },
            failed: None,
        }
    }

    /// Only tensors whose names `wanted` says yes to, of those chosen so far.
    pub fn matching(mut self, mut wanted: impl FnMut(&str) -> bool) -> Self {
        for part in &mut self.parts {
            part.tensors.retain(|info| wanted(info.name()));
        }
        self
    }

    /// Only the tensors of these names, of those chosen so far. They come in the order of the file all the same.
    ///
    /// A name that is not there is [`NotFound`](ErrorKind::NotFound), when they are read.
    pub fn names<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<N> = names.into_iter().collect();
        let mut missing: HashSet<&str> = names.iter().map(AsRef::as_ref).collect();
        let wanted = missing.clone();
        let there = || self.parts.iter().flat_map(|part| &part.tensors);
        for info in there() {
            missing.remove(info.name());
        }
        if let Some(name) = names
            .iter()
            .map(AsRef::as_ref)
            .find(|name| missing.contains(name))
        {
            let error = not_found(name, there().map(TensorInfo::name)).named(&self.name);
            self.failed.get_or_insert(error);
        }
        for part in &mut self.parts {
            part.tensors.retain(|info| wanted.contains(info.name()));
        }
        self
    }

    /// Puts each tensor at an address that is a multiple of `bytes`: a power of two, 4096 at most.
    ///
    /// All tensors of a file then share one block of a [pool](Self::pool), with up to `bytes` between them. Neighbours that
    /// are aligned one behind the other anyway (those of most models, for 64) are read in one request as before, others in
    /// one each. What it costs: no views of a mapping any more; and past the page cache, where memory has to be congruent to
    /// the file, one copy more.
    pub fn align(mut self, bytes: usize) -> Self {
        if bytes.is_power_of_two() && bytes <= ALIGN_MOST {
            self.options.align = Some(bytes);
        } else {
            let what = format!("align {bytes} is no power of two from 1 to {ALIGN_MOST}").into();
            let error = Error::new(ErrorKind::InvalidOption { what });
            self.failed.get_or_insert(error);
        }
        self
    }

    /// Where the blocks of [aligned](Self::align) tensors come from. Default: the pool of the default
    /// [`Engine`]. Without alignment, memory is the reader's choice.
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.options.pool = Some(pool.clone());
        self
    }

    /// Most bytes that [`in_order`](Self::in_order) has asked for and not delivered; one request is always allowed. Default
    /// 64 MiB.
    pub fn window(mut self, bytes: usize) -> Self {
        self.options.window = bytes as u64;
        self
    }

    /// How each range is read: deadline, priority, depth, gap.
    pub fn read(mut self, options: ReadOptions) -> Self {
        self.options.read = options;
        self
    }

    /// What would be asked of the reader of each file, without reading: for explaining and for tests.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let of_part = |part: &Part<R>| {
            let runs = self.options.group(part).runs;
            runs.into_iter().map(|run| run.range)
        };
        self.parts.iter().flat_map(of_part).collect()
    }

    /// Which tensors of which files, how, and what is wrong with it already.
    #[cfg(feature = "cuda")]
    pub(super) fn into_parts(self) -> (Vec<Part<R>>, Options, Option<Error>) {
        (self.parts, self.options, self.failed)
    }

    /// Starts reading all of them: await it on any executor, or [wait](PendingTensors::wait).
    pub fn submit(self) -> PendingTensors {
        let mut asked = Vec::with_capacity(self.parts.len());
        let mut failed = self.failed;
        for part in self.parts {
            if failed.is_some() {
                break;
            }
            let group = self.options.group(&part);
            match Asked::start(&part.reader, part.tensors.into(), group, &self.options) {
                Ok(started) => asked.push(started),
                Err(error) => failed = Some(error),
            }
        }
        PendingTensors {
            name: self.name,
            asked,
            at: 0,
            tensors: Vec::new(),
            failed,
        }
    }

    /// Reads all of them, and parks this thread until they are there.
    ///
    /// # Errors
    /// Those of the reader; [`NotFound`](ErrorKind::NotFound) for a [name](Self::names) that is not there;
    /// [`InvalidOption`](ErrorKind::InvalidOption) for an [alignment](Self::align) that cannot be.
    pub fn wait(self) -> Result<Tensors> {
        self.submit().wait()
    }

    /// Each tensor as soon as it and those before it are there, in the order of the file: an iterator, or a stream by
    /// [`InOrder::stream`]. So what is done with them (converting, copying to a device) overlaps with reading.
    ///
    /// Asks for about 8 MiB at a time (a larger tensor is asked for alone), as far ahead as the [window](Self::window) goes.
    /// Each of these pieces is memory of its own, released with the last of its tensors: a loop that drops each tensor
    /// needs no more than the window and its largest tensor.
    pub fn in_order(self) -> InOrder<R> {
        InOrder::new(self.parts, self.options, self.failed)
    }
}

impl<R: Reader + ?Sized> IntoFuture for Load<R> {
    type Output = Result<Tensors>;
    type IntoFuture = PendingTensors;

    fn into_future(self) -> PendingTensors {
        self.submit()
    }
}

impl<R: Reader + ?Sized> fmt::Debug for Load<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors: usize = self.parts.iter().map(|part| part.tensors.len()).sum();
        f.debug_struct("Load")
            .field("files", &self.parts.len())
            .field("tensors", &tensors)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// How ranges of a source are made.
    pub(super) fn shape<R: Reader + ?Sized>(&self, reader: &R) -> Shape {
        // Between aligned tensors, nothing else has room.
        let gap = match self.align {
            Some(_) => 0,
            None => self.read.gap.unwrap_or(reader.source().limits().gap),
        };
        Shape {
            gap,
            align: self.align,
        }
    }

    /// One group of all tensors.
    fn group<R: Reader + ?Sized>(&self, part: &Part<R>) -> Group {
        group(
            &part.tensors,
            0..part.tensors.len(),
            self.shape(&*part.reader),
        )
    }
}

/// Ranges that were asked for.
pub(super) struct Asked {
    pub(super) pending: Pending,
    pub(super) cutting: Cutting,
}

/// How tensors are cut from the blocks that come.
pub(super) struct Cutting {
    group: Group,
    /// Those whose positions the runs of the group have.
    tensors: Arc<[TensorInfo]>,
    align: Option<usize>,
    name: Arc<str>,
}

impl Asked {
    /// Asks for a group of `tensors`.
    pub(super) fn start<R: Reader + ?Sized>(
        reader: &Arc<R>,
        tensors: Arc<[TensorInfo]>,
        group: Group,
        options: &Options,
    ) -> Result<Asked> {
        let name = reader.source().name().clone();
        let mut batch = Batch::new().options(options.read.clone());
        if options.align.is_some() {
            let pool = options.pool.clone();
            let pool = pool.unwrap_or_else(|| Engine::default().pool().clone());
            let arena = pool.take(group.arena);
            let mut arena = arena.map_err(|error| error.named(&name))?;
            let mut at = 0;
            for run in &group.runs {
                let len = (run.range.end - run.range.start) as usize;
                drop(arena.split_to(run.at - at));
                batch = batch.read_into(run.range.clone(), arena.split_to(len));
                at = run.at + len;
            }
        } else {
            for run in &group.runs {
                batch = batch.any(run.range.clone());
            }
        }
        Ok(Asked {
            pending: reader.submit(batch),
            cutting: Cutting {
                group,
                tensors,
                align: options.align,
                name,
            },
        })
    }
}

impl Cutting {
    /// Bytes that were asked for.
    pub(super) fn bytes(&self) -> u64 {
        self.group.bytes()
    }

    /// The tensors in the blocks that came, one for each run.
    pub(super) fn cut(&self, blocks: Vec<Block>, mut take: impl FnMut(Tensor)) -> Result<()> {
        for (run, block) in self.group.runs.iter().zip(blocks) {
            let bytes = block
                .into_host()
                .map_err(|error| error.named(&self.name).at(run.range.clone()))?;
            for info in self.tensors.get(run.tensors.clone()).unwrap_or_default() {
                let from = (info.range().start - run.range.start) as usize;
                let part = bytes.slice(from..from + info.byte_len());
                take(Tensor::new(info.clone(), self.settled(info, part)));
            }
        }
        Ok(())
    }

    /// The bytes of a tensor, moved if the memory (of a small or an odd block), and not the file, keeps them unaligned.
    fn settled(&self, info: &TensorInfo, bytes: Bytes) -> Bytes {
        let align = info.dtype().bitsize() / 8;
        let by_file = align.is_power_of_two() && info.range().start.is_multiple_of(align as u64);
        match self.align {
            None if by_file => aligned(bytes, align),
            _ => bytes,
        }
    }
}

/// Tensors being read: await it on any executor, or [`wait`](Self::wait). Dropping it cancels what has not been sent to the
/// system.
#[must_use = "dropping it cancels reads that have not begun"]
pub struct PendingTensors {
    name: Arc<str>,
    asked: Vec<Asked>,
    /// Those before are in `tensors`.
    at: usize,
    tensors: Vec<Tensor>,
    failed: Option<Error>,
}

impl PendingTensors {
    /// Parks this thread until all tensors are there.
    ///
    /// # Errors
    /// As [`Load::wait`].
    pub fn wait(mut self) -> Result<Tensors> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        for Asked { pending, cutting } in self.asked.into_iter().skip(self.at) {
            cutting.cut(pending.wait()?, |tensor| self.tensors.push(tensor))?;
        }
        Ok(Tensors::new(self.tensors, Tensor::name, Some(self.name)))
    }

    /// How far it is, of all files together: ranges and bytes that are there, and that were asked for.
    pub fn progress(&self) -> Progress {
        let mut sum = Progress::default();
        for asked in &self.asked {
            let progress = asked.pending.progress();
            sum.reads_done += progress.reads_done;
            sum.reads += progress.reads;
            sum.bytes_done += progress.bytes_done;
            sum.bytes += progress.bytes;
        }
        sum
    }
}

impl Future for PendingTensors {
    type Output = Result<Tensors>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(error) = &this.failed {
            return Poll::Ready(Err(error.clone()));
        }
        while let Some(asked) = this.asked.get_mut(this.at) {
            let blocks = std::task::ready!(Pin::new(&mut asked.pending).poll(cx))?;
            asked
                .cutting
                .cut(blocks, |tensor| this.tensors.push(tensor))?;
            this.at += 1;
        }
        // Polled once more, it has nothing to give, which is no empty set of tensors.
        this.failed = Some(Error::new(ErrorKind::Abandoned));
        let (tensors, name) = (std::mem::take(&mut this.tensors), this.name.clone());
        Poll::Ready(Ok(Tensors::new(tensors, Tensor::name, Some(name))))
    }
}

impl fmt::Debug for PendingTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingTensors")
            .field("progress", &self.progress())
            .finish_non_exhaustive()
    }
}
