//! What a call costs: planning, opening, and one small read by each path, blocking and async.
//!
//! Everything is in the page cache and small, so that what is measured is this crate and the system call.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs::File;
use std::hint::black_box;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use feedwater::plan::coalesce;
use feedwater::{MemoryReader, Reader, ReaderExt};

fn planning(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    let count = 100_000u64;
    let scattered: Vec<Range<u64>> = (0..count)
        .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24)
        .map(|start| start..start + 4096)
        .collect();
    group.throughput(Throughput::Elements(count));
    group.bench_function("coalesce 100000 scattered ranges", |b| {
        b.iter(|| coalesce(black_box(&scattered), 4096, 4 << 20));
    });
    group.finish();
}

fn opening(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![1u8; 4096]).unwrap();
    let mut group = c.benchmark_group("open");
    group.bench_function("std open + fstat + close", |b| {
        b.iter(|| File::open(&path).unwrap().metadata().unwrap().len());
    });
    group.bench_function("feedwater::open + close", |b| {
        b.iter(|| feedwater::open(&path).unwrap().source().len());
    });
    group.finish();
}

fn small_reads(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![1u8; 64 << 10]).unwrap();
    let file = File::open(&path).unwrap();
    let reader = feedwater::open(&path).unwrap();
    let memory = MemoryReader::new(vec![1u8; 64 << 10]);
    let mut buf = vec![0u8; 4096];
    let mut group = c.benchmark_group("4 KiB warm");
    group.throughput(Throughput::Bytes(4096));
    group.bench_function("pread + fstat", |b| {
        b.iter(|| {
            file.read_exact_at(&mut buf, 8192).unwrap();
            file.metadata().unwrap().len()
        });
    });
    group.bench_function("pread: read_at", |b| {
        b.iter(|| reader.read_at(8192, &mut buf).unwrap());
    });
    group.bench_function("pread: read().wait()", |b| {
        b.iter(|| reader.read(8192..12288).wait().unwrap());
    });
    group.bench_function("pread: block_on(read())", |b| {
        b.iter(|| futures::executor::block_on(reader.read(8192..12288)).unwrap());
    });
    group.bench_function("memory: read().wait()", |b| {
        b.iter(|| memory.read(8192..12288).wait().unwrap());
    });
    let ranges: Vec<Range<u64>> = (0..64).map(|i| i * 1000..i * 1000 + 100).collect();
    group.bench_function("pread: 64 ranges of 100 bytes, one batch", |b| {
        b.iter(|| reader.read_many(&ranges).wait().unwrap());
    });
    group.finish();
}

criterion_group!(benches, planning, opening, small_reads);
criterion_main!(benches);
