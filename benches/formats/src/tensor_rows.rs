//! Tensors of a safetensors file in memory of their own.

use std::fs::File;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use feedwater::ReaderExt;

use crate::files::{make_cold, make_warm, touch_memory};
use crate::table::measure;
use crate::{Bench, Row, data, ratio, way};

pub(crate) fn all() -> Vec<Row> {
    vec![
        ("tensors-warm".into(), Box::new(warm)),
        ("tensors-cold".into(), Box::new(cold)),
    ]
}

fn said(tensors: usize, bytes: usize) -> String {
    format!("{tensors} tensors, {} MiB", bytes >> 20)
}

/// Two threads copy the tensors out of a map of the file.
fn peer(path: &Path) -> String {
    let file = File::open(path).expect("open");
    // SAFETY: nobody changes the file of a bench.
    let map = unsafe { memmap2::Mmap::map(&file) }.expect("map");
    let tensors = safetensors::SafeTensors::deserialize(&map)
        .expect("header")
        .tensors();
    let next = AtomicUsize::new(0);
    let copy = || {
        let mut copies = Vec::new();
        while let Some((_, tensor)) = tensors.get(next.fetch_add(1, Ordering::Relaxed)) {
            copies.push(tensor.data().to_vec());
        }
        copies
    };
    let copies = std::thread::scope(|scope| {
        let threads = [scope.spawn(copy), scope.spawn(copy)];
        threads.map(|thread| thread.join().expect("thread"))
    });
    let bytes = copies.iter().flatten().map(Vec::len).sum();
    black_box(copies);
    said(tensors.len(), bytes)
}

fn load(path: &Path) -> String {
    let file = feedwater::safetensors::open(feedwater::open(path).expect("open")).expect("header");
    let tensors = file.load().wait().expect("load");
    let bytes = tensors.iter().map(|tensor| tensor.bytes().len()).sum();
    said(black_box(&tensors).len(), bytes)
}

fn read_all(path: &Path) -> String {
    let reader = feedwater::open(path).expect("open");
    let bytes = reader.read_all().wait().expect("read");
    format!("{} MiB", black_box(bytes).len() >> 20)
}

fn warm(bench: &Bench, name: &str) {
    let path = bench.file("model", |path| data::model(path, bench.mib));
    let path = path.as_path();
    assert_eq!(load(path), peer(path));
    let len = std::fs::metadata(path).expect("metadata").len();
    let prepare = || {
        make_warm(path);
        touch_memory(len as usize + (64 << 20));
    };
    measure(
        name,
        len,
        1,
        bench.turns,
        &mut [
            way("safetensors, map and copy", prepare, || peer(path)),
            way("map and copy again", prepare, || peer(path)),
            way("load", prepare, || load(path)),
        ],
        &[
            ratio("map and copy again", "safetensors, map and copy", 1.0),
            ratio("load", "safetensors, map and copy", 1.5),
        ],
    );
}

fn cold(bench: &Bench, name: &str) {
    let path = bench.file("model", |path| data::model(path, bench.mib));
    let path = path.as_path();
    let len = std::fs::metadata(path).expect("metadata").len();
    let prepare = || {
        make_cold(path);
        touch_memory(2 * len as usize + (64 << 20));
    };
    measure(
        name,
        len,
        1,
        bench.turns,
        &mut [
            way("read_all", prepare, || read_all(path)),
            way("read_all again", prepare, || read_all(path)),
            way("load", prepare, || load(path)),
        ],
        &[
            ratio("read_all again", "read_all", 1.0),
            ratio("load", "read_all", 0.95),
        ],
    );
}
