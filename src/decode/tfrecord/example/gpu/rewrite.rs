//! Examples in a form that no writer makes, written as writers do.

use arrow_array::RecordBatch;

use crate::cuda::frames::Frame;
use crate::decode::tfrecord::example::schema::ExampleSchema;
use crate::decode::tfrecord::{ExampleDecoder, ExampleEncoder};

/// Bytes behind the last example: the kernels read whole words.
const PADDING: usize = 16;

/// Decodes examples, and encodes what the schema wants of them.
pub(super) struct Rewriter {
    decoder: ExampleDecoder,
}

/// Examples beside each other, and where each is.
pub(super) type Rewritten = (Vec<u8>, Vec<Frame>);

impl Rewriter {
    /// `None` for a schema that there cannot be.
    pub(super) fn new(schema: &ExampleSchema) -> Option<Self> {
        let mut schema = schema.clone();
        // The encoder calls features as columns are called.
        for feature in &mut schema.context {
            feature.column = feature.name.clone();
        }
        let decoder = ExampleDecoder::new(&schema).ok()?;
        Some(Rewriter { decoder })
    }

    /// The same examples in the usual form, defaults written out. `None` if one of them is refused, or they are too many for one batch.
    pub(super) fn rewrite<'a>(
        &mut self,
        examples: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Rewritten> {
        let mut fine = true;
        for example in examples {
            fine = fine && matches!(self.decoder.push(example), Ok(true));
        }
        // In any case, so that no row stays for the next batch.
        let batch = self.decoder.finish().ok()?;
        if fine { encode(&batch) } else { None }
    }
}

fn encode(batch: &RecordBatch) -> Option<Rewritten> {
    let mut encoder = ExampleEncoder::new(batch).ok()?;
    let (mut bytes, mut frames) = (Vec::new(), Vec::new());
    for row in 0..encoder.rows() {
        let data = bytes.len() as u64;
        encoder.encode(row, &mut bytes).ok()?;
        let len = bytes.len() as u64 - data;
        frames.push(Frame { data, len });
    }
    bytes.resize(bytes.len() + PADDING, 0);
    Some((bytes, frames))
}
