//! What is left to do of a joined request that failed.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::Context;
use super::job::{Part, hand_out};
use crate::backend::workers::Work;
use crate::buffer::BlockMut;
use crate::error::{Error, Result};
use crate::reader::Priority;

/// Reads each part of a request alone, so that one bad spot fails only those that touch it.
#[derive(Debug)]
pub(super) struct Salvage {
    span: Range<u64>,
    /// As long as the span; used by nobody else any more.
    block: BlockMut,
    parts: Vec<Part>,
}

impl Salvage {
    pub(super) fn new(span: Range<u64>, block: BlockMut, parts: Vec<Part>) -> Self {
        Salvage { span, block, parts }
    }

    /// Here, or by a thread that may wait if this one may not.
    pub(super) fn deliver(self, context: &Context) {
        if !context.apart {
            return self.read(context);
        }
        let work: Arc<dyn Work> = Arc::new(Apart(Mutex::new(Some((self, context.clone())))));
        // Without a thread the tickets are dropped with the work, which tells those who wait.
        let _ = context.workers.run(&work, 1, Priority::Foreground);
    }

    fn read(self, context: &Context) {
        let Salvage { span, block, parts } = self;
        let align = context.access.align();
        let mut outcomes = Vec::with_capacity(parts.len());
        for part in &parts {
            let start = part.range.start - part.range.start % align;
            let end = part.range.end.next_multiple_of(align).min(span.end);
            let target = block
                .unfilled_ptr()
                .wrapping_add((start - span.start) as usize);
            let counters = context.source.counters();
            // SAFETY: within the span, so within the block, which nobody else uses.
            let read = unsafe {
                context
                    .access
                    .read(&(start..end), target, counters, &context.pool)
            };
            outcomes.push(read.and_then(|()| context.verify()));
        }
        for (part, outcome) in parts.into_iter().zip(outcomes) {
            let outcome = outcome.map(|()| copy_of(&block, &span, &part.range, context));
            hand_out(part, outcome, context);
        }
    }
}

/// The bytes of `range`, which were just read.
fn copy_of(block: &BlockMut, span: &Range<u64>, range: &Range<u64>, context: &Context) -> Bytes {
    let from = (range.start - span.start) as usize;
    let len = (range.end - range.start) as usize;
    // SAFETY: this part of the block was read, and nobody writes to it any more.
    let read =
        unsafe { std::slice::from_raw_parts(block.unfilled_ptr().add(from).cast_const(), len) };
    context.source.counters().add_bounced(len as u64);
    Bytes::copy_from_slice(read)
}

struct Apart(Mutex<Option<(Salvage, Context)>>);

impl Apart {
    fn take(&self) -> Option<(Salvage, Context)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Work for Apart {
    fn step(self: Arc<Self>) -> bool {
        let Some((salvage, context)) = self.take() else {
            return false;
        };
        salvage.read(&context);
        true
    }

    fn abandon(self: Arc<Self>, error: &Error) -> usize {
        let Some((salvage, context)) = self.take() else {
            return 0;
        };
        for part in salvage.parts {
            let failed: Result<Bytes> = Err(error.clone());
            hand_out(part, failed, &context);
        }
        1
    }
}
