//! Files that other software wrote.

use std::path::{Path, PathBuf};

use feedwater::tfrecord::{Compression, Index, RecordOptions};

use crate::common::skip::require;
use crate::support::{OVERHEAD, data_of, every_way, file_of};

fn corpus() -> Option<PathBuf> {
    let dir = match std::env::var_os("FEEDWATER_CORPUS") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus"),
    };
    let dir = dir.join("tfrecord");
    let found = std::fs::read_dir(&dir).map(|_| dir.clone());
    require(
        "corpus",
        found.map_err(|error| format!("{}: {error}", dir.display())),
    )
}

#[test]
fn each_file_has_its_records_and_is_written_the_same() {
    let Some(dir) = corpus() else { return };
    let mut files = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = std::fs::read(&path).unwrap();
        let reader = feedwater::open(&path).unwrap();
        let (found, error) = every_way(&RecordOptions::new(), &reader);
        assert!(error.is_none(), "{name}: {error:?}");
        assert_eq!(found.len(), 4, "{name}");
        let data: usize = found.iter().map(|(_, _, data)| data.len()).sum();
        assert_eq!(data + 4 * OVERHEAD, bytes.len());
        assert_eq!(
            file_of(&data_of(&found), Compression::None),
            bytes,
            "{name}"
        );
        let index = Index::build(reader).unwrap();
        let all = index.get_many(0..4).wait().unwrap();
        assert_eq!(data_of(&found), all);
        match &*name {
            "pytorch-data_example.tfrecord" => assert_eq!(bytes.len(), 523),
            "pytorch-data_sequence_example.tfrecord" => assert_eq!(bytes.len(), 2760),
            other => panic!("{other} is claimed by no test"),
        }
        files += 1;
    }
    assert_eq!(files, 2);
}
