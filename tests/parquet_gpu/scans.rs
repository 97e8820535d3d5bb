//! What is asked for, who decodes it, and what is said about it.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use feedwater::cuda::{Device, DlType};
use feedwater::parquet::{column, scan};
use feedwater::{ErrorKind, MemoryReader, Processor};
use parquet::file::properties::WriterProperties;

use crate::cuda::{nothing_left, session};
use crate::support::{Agreed, agree, by_host, on_device, whole};
use crate::tables::{Nulls, flat, other, written};

fn file() -> bytes::Bytes {
    let set = WriterProperties::builder()
        .set_data_page_row_count_limit(50)
        .set_write_batch_size(10)
        .set_max_row_group_row_count(Some(300));
    written(&other(1000), set.build())
}

#[test]
fn some_columns_groups_and_rows() {
    let session = session("eager");
    {
        let (gpu, file) = (Device::open(0).unwrap(), file());
        let ids = agree(&gpu, "ids", &file, &|scan| scan.columns(["ids"]));
        assert_eq!(ids.counts(), (4, 0));
        let lists = agree(&gpu, "ids and lists", &file, &|scan| {
            scan.columns(["lists", "ids"])
        });
        assert_eq!(lists.counts(), (8, 0));
        let both = agree(&gpu, "ids and texts", &file, &|scan| {
            scan.columns(["texts", "ids"])
        });
        assert_eq!(both.counts(), (8, 0));
        let groups = agree(&gpu, "groups", &file, &|scan| scan.row_groups([3, 1]));
        let Agreed::Rows(rows, report) = &groups else {
            panic!();
        };
        assert_eq!(rows.num_rows(), 400);
        let text = report.to_string();
        assert!(
            text.contains("ids: 2 row groups by the GPU, 0 by the host"),
            "{text}"
        );
        assert!(
            text.contains("texts: 2 row groups by the GPU, 0 by the host"),
            "{text}"
        );
        // Whole row groups, and parts of some.
        let rows = agree(&gpu, "rows", &file, &|scan| {
            scan.columns(["ids"]).rows(250..700)
        });
        let Agreed::Rows(rows, report) = rows else {
            panic!();
        };
        assert_eq!(rows.num_rows(), 450);
        assert_eq!(
            (report.columns[0].by_gpu, report.columns[0].by_host),
            (3, 0)
        );
        let filtered = agree(&gpu, "predicate", &file, &|scan| {
            scan.filter(column("ids").lt(5))
        });
        let Agreed::Rows(_, report) = filtered else {
            panic!();
        };
        assert!(report.columns[0].by_gpu > 0);
        assert_eq!(report.columns[0].by_host, 0);
        let none: [&str; 0] = [];
        let nothing = agree(&gpu, "no columns", &file, &|scan| scan.columns(none));
        assert!(matches!(nothing, Agreed::Rows(rows, _) if rows.num_rows() == 1000));
    }
    nothing_left(&session);
}

#[test]
fn who_decodes_is_chosen_and_said() {
    let session = session("eager");
    {
        let (gpu, file) = (Device::open(0).unwrap(), file());
        let right = by_host(&file, &whole).unwrap();
        let small = |processor| {
            let (rows, report) = on_device(&gpu, &file, processor, &whole).unwrap();
            assert!(rows == right);
            report.columns[0].clone()
        };
        let ids = small(Processor::Gpu);
        assert_eq!((ids.by_gpu, ids.by_host), (4, 0));
        let ids = small(Processor::Cpu);
        assert_eq!((ids.by_gpu, ids.by_host), (0, 4));
        assert_eq!(&*ids.host_because[0].0, "that was asked for");
        // 300 rows of 8 bytes.
        let ids = small(Processor::Auto);
        assert_eq!((ids.by_gpu, ids.by_host), (0, 4));
        assert_eq!(&*ids.host_because[0].0, "less than 65536 bytes");
        let large = written(&other(9000), WriterProperties::builder().build());
        let (_, report) = on_device(&gpu, &large, Processor::Auto, &whole).unwrap();
        assert_eq!(
            (report.columns[0].by_gpu, report.columns[0].by_host),
            (1, 0)
        );

        let planned = |file: &bytes::Bytes, processor| {
            let reader = Arc::new(MemoryReader::new(file.clone()));
            let scan = scan(reader).on_device(&gpu).processor(processor);
            scan.explain().unwrap()
        };
        let plan = planned(&file, Processor::Gpu);
        let why: Vec<_> = plan
            .columns
            .iter()
            .map(|column| column.host_because.as_deref())
            .collect();
        assert_eq!(why[0], None);
        assert_eq!(why[1], None);
        assert_eq!(why[2], None);
        let text = plan.to_string();
        assert!(text.contains("\nids: by the GPU"), "{text}");
        assert!(text.ends_with("words: by the GPU"), "{text}");
        // What is left to the host is said before, too.
        let text = planned(&file, Processor::Auto).to_string();
        let said = "\nids: by the host, because less than 65536 bytes";
        assert!(text.contains(said), "{text}");
        let text = planned(&large, Processor::Auto).to_string();
        assert!(text.contains("\nids: by the GPU"), "{text}");
        // One row group of 8,500 rows, and one of 500.
        let set = WriterProperties::builder().set_max_row_group_row_count(Some(8500));
        let uneven = written(&other(9000), set.build());
        let text = planned(&uneven, Processor::Auto).to_string();
        assert!(text.contains("\nids: by the GPU"), "{text}");
    }
    nothing_left(&session);
}

#[test]
fn tensors_and_exports() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let batch = flat(40, &[Nulls::Required, Nulls::Some]);
        let file = written(&batch, WriterProperties::builder().build());
        let reader = Arc::new(MemoryReader::new(file));
        let scan = scan(reader).on_device(&gpu).processor(Processor::Gpu);
        let batches: Vec<_> = scan.batches().unwrap().map(Result::unwrap).collect();
        let [batch] = batches.as_slice() else {
            panic!("{}", batches.len());
        };
        let ids = batch.column("i64_Required").unwrap();
        assert_eq!((ids.len(), ids.null_count()), (40, 0));
        drop(ids.tensor().unwrap());
        drop(ids.tensor_of(&[8, 5]).unwrap());
        let error = ids.tensor_of(&[8, 6]).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
        let some = batch.column("i64_Some").unwrap();
        assert!(some.null_count() > 0);
        let error = some.tensor().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unsupported { .. }),
            "{error}"
        );
        // Vectors of four floats, and what is none.
        let vectors = batch.column("fixed_16_Required").unwrap();
        drop(vectors.tensor().unwrap());
        drop(vectors.tensor_of_rows(DlType::Float(32)).unwrap());
        let odd = batch.column("fixed_37_Required").unwrap();
        let error = odd.tensor_of_rows(DlType::Float(32)).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
        let error = ids.tensor_of_rows(DlType::Float(32)).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unsupported { .. }),
            "{error}"
        );
        drop(batch.export().unwrap());
        let host = ids.to_host().unwrap();
        assert_eq!(host.as_primitive::<Int64Type>().values()[4], 4);
    }
    nothing_left(&session);
}

/// Threads end, and give everything back, whenever the consumer goes.
#[test]
fn dropped_half_way() {
    let session = session("lazy");
    for taken in 0..3 {
        let gpu = Device::open(0).unwrap();
        let reader = Arc::new(MemoryReader::new(file()));
        let scan = scan(reader).on_device(&gpu).processor(Processor::Gpu);
        let mut batches = scan.batches().unwrap();
        for _ in 0..taken {
            batches.next().unwrap().unwrap();
        }
        drop((batches, gpu));
        nothing_left(&session);
    }
}
