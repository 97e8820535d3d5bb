//! The examples `convert --device` and `parquet_to_gpu`, run as a user runs them.

use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::programs::{converted, shown};
use crate::strings::strings;
use crate::tables::{Nulls, flat, other, written};

#[test]
fn a_file_is_converted_to_the_same_by_either() {
    let dir = tempfile::tempdir().unwrap();
    for (name, batch) in [
        ("flat", flat(300, &[Nulls::Required, Nulls::Some])),
        ("other", other(500)),
        ("strings", strings(300, &[Nulls::Required, Nulls::Some])),
    ] {
        let set = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(200));
        let input = dir.path().join(name);
        std::fs::write(&input, written(&batch, set.build())).unwrap();
        let (host, said) = converted(&dir, "cpu", &input);
        assert_eq!(said, "");
        let (gpu, said) = converted(&dir, "gpu", &input);
        assert!(host == gpu, "{name}");
        assert_eq!(host.num_rows(), batch.num_rows());
        let columns = match name {
            "flat" => &["i64_Some: 2"][..],
            "strings" => &["utf8_Some: 2", "large_binary_Required: 2"],
            _ => &["ids: 3", "texts: 3", "words: 3"],
        };
        for column in columns {
            let by_gpu = format!("{column} row groups by the GPU, 0 by the host");
            assert!(said.contains(&by_gpu), "{said}");
        }
    }
}

#[test]
fn what_others_can_take_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("table.parquet");
    let set = WriterProperties::builder().build();
    std::fs::write(&input, written(&other(100), set)).unwrap();
    let (out, _) = shown("parquet_to_gpu", &[&input]);
    for said in [
        "ids: by the GPU\n",
        "lists: by the GPU\n",
        "batch 0: 100 rows\n",
        "ids: 100 of Int64, 0 nulls, 800 bytes on the device\n",
        "as a tensor: DlTensor { shape: [",
        "texts: 100 of Utf8, 17 nulls, ",
        "    offsets: 404 bytes at 0x",
        "words: 100 of Dictionary(Int32, Utf8), 0 nulls, 419 bytes on the device\n",
        "  words, its entries: 3 of Utf8, 0 nulls, 19 bytes on the device\n",
        "as an ArrowDeviceArray",
        "ids: 1 row group by the GPU, 0 by the host",
    ] {
        assert!(out.contains(said), "{said:?} is not in {out}");
    }
}
