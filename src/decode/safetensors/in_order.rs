//! Tensors one after the other, with a window of them in flight.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::iter::FusedIterator;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::load::{Asked, Cutting, Options, Part};
use super::tensor::Tensor;
use crate::buffer::Block;
use crate::error::{Error, Result};
use crate::format::safetensors::{CONGRUENT, Group, TensorInfo, groups};
use crate::reader::Reader;

/// Bytes that are asked for together: two of the largest requests of a stream past the page cache.
const PIECE: u64 = 8 << 20;

/// The tensors of a [`Load`](super::Load) in the order of their files: an iterator that parks the thread;
/// [`stream`](Self::stream) for tasks. After an error there are no more tensors. Dropping it cancels what has not been sent
/// to the system.
#[must_use = "iterators do nothing unless used"]
pub struct InOrder<R: Reader + ?Sized> {
    /// What has not been asked for.
    rest: VecDeque<Piece<R>>,
    ahead: VecDeque<Asked>,
    /// Tensors that are there.
    ready: VecDeque<Tensor>,
    in_flight: u64,
    options: Options,
    /// Why there will be nothing more; delivered once.
    failed: Option<Error>,
}

struct Piece<R: Reader + ?Sized> {
    reader: Arc<R>,
    tensors: Arc<[TensorInfo]>,
    group: Group,
}

impl<R: Reader + ?Sized> InOrder<R> {
    pub(super) fn new(parts: Vec<Part<R>>, options: Options, failed: Option<Error>) -> Self {
        // Two pieces at least in the window, so that one is read while the other is used.
        let size = PIECE.min((options.window / 2).saturating_sub(CONGRUENT));
        let mut rest = VecDeque::new();
        if failed.is_none() {
            for Part { reader, tensors } in parts {
                let shape = options.shape(&*reader);
                let tensors: Arc<[TensorInfo]> = tensors.into();
                rest.extend(
                    groups(&tensors, size, shape)
                        .into_iter()
                        .map(|group| Piece {
                            reader: reader.clone(),
                            tensors: tensors.clone(),
                            group,
                        }),
                );
            }
        }
        InOrder {
            rest,
            ahead: VecDeque::new(),
            ready: VecDeque::new(),
            in_flight: 0,
            options,
            failed,
        }
    }

    /// The same as a `Stream`.
    pub fn stream(self) -> InOrderStream<R> {
        InOrderStream(self)
    }

    /// Asks for as much as the window allows.
    fn top_up(&mut self) {
        while self.failed.is_none()
            && let Some(next) = self.rest.front()
        {
            let bytes = next.group.bytes();
            if !self.ahead.is_empty() && self.in_flight + bytes > self.options.window {
                return;
            }
            let Some(Piece {
                reader,
                tensors,
                group,
            }) = self.rest.pop_front()
            else {
                return;
            };
            match Asked::start(&reader, tensors, group, &self.options) {
                Ok(asked) => {
                    self.in_flight += bytes;
                    self.ahead.push_back(asked);
                }
                // What was asked for before is delivered first.
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// Takes the blocks of the piece that was asked for first.
    fn arrived(&mut self, cutting: &Cutting, blocks: Result<Vec<Block>>) {
        self.in_flight -= cutting.bytes();
        let ready = &mut self.ready;
        let cut = blocks.and_then(|blocks| cutting.cut(blocks, |tensor| ready.push_back(tensor)));
        if let Err(error) = cut {
            self.ahead.clear();
            self.in_flight = 0;
            self.failed = Some(error);
        }
    }

    /// The end: an error once, then nothing.
    fn end(&mut self) -> Option<Result<Tensor>> {
        self.rest.clear();
        self.failed.take().map(Err)
    }
}

impl<R: Reader + ?Sized> Iterator for InOrder<R> {
    type Item = Result<Tensor>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(tensor) = self.ready.pop_front() {
                return Some(Ok(tensor));
            }
            self.top_up();
            let Some(Asked { pending, cutting }) = self.ahead.pop_front() else {
                return self.end();
            };
            self.arrived(&cutting, pending.wait());
        }
    }
}

impl<R: Reader + ?Sized> FusedIterator for InOrder<R> {}

impl<R: Reader + ?Sized> fmt::Debug for InOrder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InOrder")
            .field("in_flight", &self.in_flight)
            .field("pieces_left", &(self.rest.len() + self.ahead.len()))
            .finish_non_exhaustive()
    }
}

/// See [`InOrder::stream`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct InOrderStream<R: Reader + ?Sized>(InOrder<R>);

impl<R: Reader + ?Sized> Stream for InOrderStream<R> {
    type Item = Result<Tensor>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut self.0;
        loop {
            if let Some(tensor) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(tensor)));
            }
            this.top_up();
            let Some(Asked { pending, .. }) = this.ahead.front_mut() else {
                return Poll::Ready(this.end());
            };
            let blocks = std::task::ready!(Pin::new(pending).poll(cx));
            if let Some(Asked { cutting, .. }) = this.ahead.pop_front() {
                this.arrived(&cutting, blocks);
            }
        }
    }
}
