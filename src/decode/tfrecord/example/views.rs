//! Values that stay where they were read, with a view of each.

use std::sync::Arc;

use arrow_array::builder::make_view;
use arrow_array::{ArrayRef, BinaryViewArray, StringViewArray};
use arrow_buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow_schema::ArrowError;
use bytes::Bytes;

use super::column::Fault;

/// Views as Arrow has them: values of up to 12 bytes inside, of others the place in a buffer. Buffer 0 is memory of our own, for
/// what lies in no block.
#[derive(Debug, Default)]
pub(super) struct Views {
    views: Vec<u128>,
    own: Vec<u8>,
    /// Those that views point into.
    blocks: Vec<Bytes>,
    /// Where the next values lie, as far as is known.
    block: Bytes,
    /// Whether that is the last one of `blocks`.
    is_listed: bool,
}

impl Views {
    /// The next values lie in `block`.
    pub(super) fn read_from(&mut self, block: &Bytes) {
        self.block = block.clone();
        self.is_listed = false;
    }

    pub(super) fn len(&self) -> usize {
        self.views.len()
    }

    #[inline]
    pub(super) fn push(&mut self, value: &[u8]) -> Result<(), Fault> {
        let view = match (inline(value), self.place(value)) {
            (true, _) => make_view(value, 0, 0),
            (false, Some((buffer, offset))) => make_view(value, buffer, offset),
            (false, None) => {
                // Both are signed in Arrow.
                let end = self.own.len() + value.len();
                i32::try_from(end).map_err(|_| Fault::Full)?;
                let offset = self.own.len() as u32;
                self.own.extend_from_slice(value);
                make_view(value, 0, offset)
            }
        };
        self.views.push(view);
        Ok(())
    }

    /// Number of the buffer and offset in it, of a value that lies in the block.
    fn place(&mut self, value: &[u8]) -> Option<(u32, u32)> {
        let start = value.as_ptr().addr();
        let offset = start.checked_sub(self.block.as_ptr().addr())?;
        let end = offset.checked_add(value.len())?;
        if end > self.block.len() || i32::try_from(end).is_err() {
            return None;
        }
        if !self.is_listed {
            self.blocks.push(self.block.clone());
            self.is_listed = true;
        }
        let buffer = u32::try_from(self.blocks.len()).ok()?;
        Some((buffer, offset as u32))
    }

    /// Takes back the values from `len` on.
    pub(super) fn truncate(&mut self, len: usize) {
        // What they have in memory of our own stays till the batch ends: other values may follow it.
        self.views.truncate(len);
    }

    /// The array of all values; none are left.
    pub(super) fn finish(
        &mut self,
        text: bool,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef, ArrowError> {
        let views = ScalarBuffer::from(std::mem::take(&mut self.views));
        let own = Buffer::from_vec(std::mem::take(&mut self.own));
        let blocks = std::mem::take(&mut self.blocks).into_iter();
        let buffers: Vec<Buffer> = [own].into_iter().chain(blocks.map(Buffer::from)).collect();
        self.is_listed = false;
        Ok(match text {
            false => Arc::new(BinaryViewArray::try_new(views, buffers, nulls)?),
            true => Arc::new(StringViewArray::try_new(views, buffers, nulls)?),
        })
    }
}

fn inline(value: &[u8]) -> bool {
    value.len() <= arrow_data::MAX_INLINE_VIEW_LEN as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::Array;

    #[test]
    fn values_in_the_block_stay_there_and_others_are_copied() {
        let block = Bytes::from((0..200).collect::<Vec<u8>>());
        let other = Bytes::from(vec![7u8; 50]);
        let mut views = Views::default();
        let elsewhere = [9u8; 40];
        for _ in 0..2 {
            views.push(&block[..20]).unwrap(); // before it is told
            views.read_from(&block);
            views.push(&block[10..190]).unwrap();
            views.push(&elsewhere).unwrap();
            views.push(b"short").unwrap();
            views.push(&block[180..]).unwrap();
            views.truncate(4);
            views.read_from(&other);
            views.push(&other[..]).unwrap();
            assert_eq!(views.len(), 5);
            let array = views.finish(false, None).unwrap();
            let array = array.as_any().downcast_ref::<BinaryViewArray>().unwrap();
            let values: Vec<&[u8]> = array.iter().flatten().collect();
            let wanted: [&[u8]; 5] = [
                &block[..20],
                &block[10..190],
                &elsewhere,
                b"short",
                &other[..],
            ];
            assert_eq!(values, wanted);
            assert_eq!(array.value(1).as_ptr(), block[10..].as_ptr());
            assert_eq!(array.value(4).as_ptr(), other.as_ptr());
            assert_eq!(array.data_buffers().len(), 3);
            views.read_from(&Bytes::new());
        }
        assert_eq!(views.finish(true, None).unwrap().len(), 0);
    }
}
