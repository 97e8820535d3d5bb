//! Columns, records and tensors from the bytes that a reader brings.

#[cfg(any(feature = "npy", feature = "safetensors"))]
mod element;
#[cfg(any(feature = "parquet", feature = "tfrecord"))]
mod panics;
mod recognise;
#[cfg(any(feature = "parquet", feature = "tfrecord"))]
mod threads;

#[cfg(feature = "npy")]
pub mod npy;
#[cfg(feature = "parquet")]
pub mod parquet;
#[cfg(feature = "safetensors")]
pub mod safetensors;
#[cfg(feature = "tfrecord")]
pub mod tfrecord;

#[cfg(all(test, feature = "full"))]
mod tests {
    use std::fmt::Debug;

    use super::{npy, parquet, safetensors, tfrecord};
    use crate::open::Opened;

    fn is_shared<T: Clone + Debug + Send + Sync>() {}
    fn is_handed_on<T: Debug + Send + Unpin>() {}

    #[test]
    fn what_is_read_can_be_shared_and_what_reads_handed_on() {
        is_shared::<npy::Array>();
        is_shared::<npy::ArrayFile<Opened>>();
        is_shared::<npy::Archive<Opened>>();
        is_handed_on::<npy::PendingArray>();
        is_shared::<safetensors::Tensors>();
        is_shared::<safetensors::TensorFile<Opened>>();
        is_handed_on::<safetensors::Load<Opened>>();
        is_handed_on::<safetensors::PendingTensors>();
        is_handed_on::<safetensors::InOrderStream<Opened>>();
        is_shared::<tfrecord::Frames>();
        is_shared::<tfrecord::RecordOptions>();
        is_shared::<tfrecord::ExampleSchema>();
        is_handed_on::<tfrecord::RecordStream<Opened>>();
        is_handed_on::<tfrecord::FrameStream<Opened>>();
        is_handed_on::<tfrecord::PendingRecords>();
        is_handed_on::<tfrecord::ExampleScan>();
        is_handed_on::<tfrecord::ExampleStream>();
        is_handed_on::<tfrecord::ExampleDecoder>();
        is_handed_on::<tfrecord::Writer>();
        is_shared::<parquet::Metadata>();
        is_shared::<parquet::Predicate>();
        is_shared::<parquet::Source>();
        is_handed_on::<parquet::Scan<Opened>>();
        is_handed_on::<parquet::Batches>();
        is_handed_on::<parquet::BatchStream>();
        is_handed_on::<parquet::Writer>();
    }
}
