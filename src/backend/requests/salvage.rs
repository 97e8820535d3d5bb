//! What is left to do of a joined request that failed.
#![allow(unsafe_code)]

use std::ops::Range;

use bytes::Bytes;

use super::Context;
use crate::buffer::BlockMut;
use crate::error::Result;

/// Reads each of `parts` alone to its place in the memory of the whole `span`, so that one bad spot fails only those
/// that touch it. Waits for the device.
///
/// # Safety
/// `target..target + span.len()` is valid for writes, and nobody else uses it until this returns. The parts lie within
/// the span.
pub(super) unsafe fn salvage(
    span: &Range<u64>,
    target: *mut u8,
    parts: &[Range<u64>],
    context: &Context,
) -> Vec<Result<()>> {
    let align = context.access.align();
    let read = |part: &Range<u64>| {
        let start = part.start - part.start % align;
        let end = part.end.next_multiple_of(align).min(span.end);
        let target = target.wrapping_add((start - span.start) as usize);
        let counters = context.source.counters();
        // SAFETY: within the span, whose memory the caller vouches for.
        let read = unsafe {
            context
                .access
                .read(&(start..end), target, counters, &context.pool)
        };
        read.and_then(|()| context.verify())
    };
    parts.iter().map(read).collect()
}

/// The bytes of `range`, which were just read to their place in `block`.
pub(super) fn copy_of(
    block: &BlockMut,
    span: &Range<u64>,
    range: &Range<u64>,
    context: &Context,
) -> Bytes {
    let from = (range.start - span.start) as usize;
    let len = (range.end - range.start) as usize;
    // SAFETY: this part of the block was read, and nobody writes to it any more.
    let read =
        unsafe { std::slice::from_raw_parts(block.unfilled_ptr().add(from).cast_const(), len) };
    context.source.counters().add_bounced(len as u64);
    Bytes::copy_from_slice(read)
}
