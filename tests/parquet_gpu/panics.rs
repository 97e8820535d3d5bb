//! A panic on a thread of a scan is an error where its row group would be.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use feedwater::cuda::Device;
use feedwater::parquet::{Metadata, scan};
use feedwater::{
    Batch, ErrorKind, MemoryReader, Pending, Processor, ReadInto, Reader, Result, Source,
};
use parquet::file::properties::WriterProperties;

use crate::cuda::{nothing_left, session};
use crate::tables::written;

/// Panics when it is asked for data.
#[derive(Debug)]
struct Panicking(MemoryReader);

impl Reader for Panicking {
    fn source(&self) -> &Source {
        self.0.source()
    }

    fn submit(&self, _: Batch) -> Pending {
        // Without the hook's line in the output of tests.
        std::panic::resume_unwind(Box::new("on purpose"));
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.0.read_now(reads)
    }
}

#[test]
fn a_panic_of_the_reader_is_told() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let numbers: ArrayRef = Arc::new((0..100_000i64).collect::<Int64Array>());
        let batch = RecordBatch::try_from_iter([("numbers", numbers)]).unwrap();
        let set = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_max_row_group_row_count(Some(30_000));
        let reader = MemoryReader::new(written(&batch, set.build()));
        let metadata = Metadata::read(&reader).unwrap();
        let reader = Arc::new(Panicking(reader));
        for processor in [Processor::Gpu, Processor::Cpu] {
            let scan = scan(reader.clone()).metadata(metadata.clone());
            let scan = scan.on_device(&gpu).processor(processor);
            let mut batches = scan.batches().unwrap();
            let error = batches.next().unwrap().unwrap_err();
            let ErrorKind::Panicked { message, .. } = error.kind() else {
                panic!("{processor:?}: {error}");
            };
            assert_eq!(&**message, "on purpose");
            assert!(error.name().is_some(), "{error}");
            assert!(batches.next().is_none());
        }
    }
    nothing_left(&session);
}
