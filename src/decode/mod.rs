//! Columns, records and tensors from the bytes that a reader brings.

#[cfg(all(feature = "cuda", any(feature = "parquet", feature = "tfrecord")))]
pub(crate) mod device;
#[cfg(any(feature = "npy", feature = "safetensors"))]
mod element;
#[cfg(any(feature = "parquet", feature = "tfrecord"))]
mod panics;
#[cfg(any(feature = "npy", feature = "parquet"))]
mod part;
mod recognise;
#[cfg(any(feature = "parquet", feature = "tfrecord"))]
mod threads;
#[cfg(any(
    feature = "npy",
    feature = "parquet",
    feature = "safetensors",
    feature = "tfrecord"
))]
mod wait;

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

    use std::sync::Arc;

    use super::{npy, parquet, safetensors, tfrecord};
    use crate::format::detect::Format;
    use crate::open::{OpenOptions, Opened};

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

    fn moves<F: Future<Output: Send> + Send>(_: F) {}

    /// Executors of many threads move tasks between them.
    #[test]
    fn forms_for_tasks_go_to_any_thread() {
        // Nothing happens before they are polled.
        let _ = |reader: Arc<Opened>, archive: npy::Archive<Opened>, options: OpenOptions| {
            moves(Format::of_async(&*reader));
            moves(parquet::Metadata::read_async(&*reader));
            moves(parquet::scan(reader.clone()).take_async(&[1]));
            moves(parquet::scan(reader.clone()).explain_async());
            moves(tfrecord::examples(reader.clone()).batches_async());
            moves(tfrecord::Index::build_async(reader.clone()));
            moves(tfrecord::RecordOptions::new().index_async(reader.clone()));
            moves(npy::open_async(reader.clone()));
            moves(npy::open_npz_async(reader.clone()));
            moves(archive.array_async("x"));
            moves(safetensors::open_async(reader));
            moves(safetensors::open_sharded_async("x", &options));
        };
    }
}
