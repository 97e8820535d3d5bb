//! Launches of few blocks, which go on to the next records and parts until nothing is left, as those of large windows do.

use feedwater::Processor;
use feedwater::cuda::{DeviceOptions, Guard, testing};
use feedwater::tfrecord::{Boundaries, ExampleScan, RecordOptions};

use crate::beside::*;
use crate::support::*;
use crate::values::record;

#[test]
fn records_and_their_columns() {
    for (blocks, order) in [(1, "shuffled:7"), (3, "apart")] {
        let mut session = session("lazy");
        session.set("CHECKS", "all");
        session.set("SCHEDULE", order);
        {
            let options = DeviceOptions::default().guard(Guard::Separate);
            let gpu = options.blocks(blocks).open(0).unwrap();
            let records: Vec<_> = (0..140).map(record).collect();
            let bytes = file(&records[..40]);
            // Several tiles of 4 KiB.
            assert!(bytes.len() > 3 << 12, "{}", bytes.len());
            let reader = reader(&gpu, &bytes.clone().into());
            let block = read(&gpu, &reader, 0..bytes.len() as u64).unwrap();
            let window = block.into_device().unwrap();
            let left = bytes.len() as u64;
            let wanted = testing::chain(&testing::candidates(&bytes, left, u64::MAX));
            assert_eq!(wanted.len(), 40);
            let found = testing::frames(&gpu, &window, left, u64::MAX).unwrap();
            assert_eq!(found, wanted);
            let scan = || ExampleScan::new(open(&gpu, &file(&records)), &RecordOptions::new());
            let scan = || scan().schema(all_kinds()).batch_rows(140);
            let host = by_host(scan());
            let on_device = scan().on_device(&gpu).processor(Processor::Gpu);
            let (rows, report) = by_device(on_device.boundaries(Boundaries::Device));
            same(&host, &rows, order);
            assert_eq!(
                (rows.rows.num_rows(), report.gpu.rows),
                (140, 140),
                "{report}"
            );
        }
        nothing_left(&session);
        assert_eq!(session.counts().findings, 0, "{order}");
    }
}
