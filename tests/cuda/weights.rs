//! Tensors of safetensors files in the device's memory, equal to those in the host's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use feedwater::cuda::{Device, DeviceOptions, ElementType};
use feedwater::safetensors::{self, DeviceTensor, Dtype, NewTensor, TensorFile};
use feedwater::{ErrorKind, OpenOptions, Opened, Staged, StagingOptions};
use half::{bf16, f16};
use software_cuda_preload::Device as On;

use crate::support::*;

/// Tensors of several types; the larger ones are more than a block of the ring.
fn save(path: &Path) {
    let floats: Vec<u8> = (0..50_000u32)
        .flat_map(|i| (i as f32 * 0.37 - 9000.0).to_le_bytes())
        .collect();
    let halves: Vec<u8> = (0..3000u16)
        .flat_map(|i| i.wrapping_mul(21).to_le_bytes())
        .collect();
    let tensors = [
        NewTensor::new("a.weight", Dtype::F32, [250, 200], &floats[..]),
        NewTensor::new("b.half", Dtype::F16, [3000], &halves[..]),
        NewTensor::new("b.brain", Dtype::BF16, [30, 100], &halves[..]),
        NewTensor::new("c.bytes", Dtype::U8, [7], &floats[..7]),
        NewTensor::new("d.none", Dtype::F32, [0, 4], &floats[..0]),
        NewTensor::new("e.scalar", Dtype::I64, [], &floats[..8]),
    ];
    safetensors::save(path, &tensors, &Default::default()).unwrap();
}

fn open(gpu: &Arc<Device>, path: &Path) -> TensorFile<Opened> {
    let staging = StagingOptions::default().block(64 << 10).depth(3);
    let options = OpenOptions::new().device(gpu.clone()).staging(staging);
    safetensors::open(options.open(path).unwrap()).unwrap()
}

/// A folder, and a file of tensors in it.
fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    save(&path);
    (dir, path)
}

fn on_host(gpu: &Device, tensor: &DeviceTensor) -> Vec<u8> {
    gpu.to_host(tensor.bytes()).unwrap()
}

#[test]
fn they_are_those_of_the_host_bit_by_bit() {
    let (_dir, path) = file();
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let file = open(&gpu, &path);
            let host = file.load().wait().unwrap();
            let loads = [
                file.load().on_device(&gpu),
                file.load().align(512).on_device(&gpu),
            ];
            for (load, align) in loads.into_iter().zip([8, 512]) {
                let device = load.wait().unwrap();
                assert_eq!(device.len(), host.len());
                for (there, here) in device.iter().zip(&host) {
                    assert_eq!(there.name(), here.name());
                    assert_eq!((there.dtype(), there.shape()), (here.dtype(), here.shape()));
                    assert_eq!(on_host(&gpu, there), *here.bytes(), "{}", here.name());
                    let address = there.bytes().ptr() as usize;
                    assert!(there.bytes().is_empty() || address.is_multiple_of(align));
                    drop(there.dlpack().unwrap());
                }
                // All are views of one piece of memory.
                let memory = |name: &str| device.tensor(name).unwrap().bytes().memory().ptr();
                assert_eq!(memory("a.weight"), memory("c.bytes"));
            }
            // As a task, some of them, through a wrapper around a reader that knows no device.
            let plain = feedwater::open(&path).unwrap();
            let staged = Staged::new(plain, gpu.clone(), StagingOptions::default());
            let staged = safetensors::open(Arc::new(staged)).unwrap();
            let pending = staged.load().names(["b.half"]).on_device(&gpu).submit();
            assert_eq!(
                (pending.progress().reads, pending.progress().bytes >= 6000),
                (1, true)
            );
            let some = futures::executor::block_on(pending).unwrap();
            let half = some.tensor("b.half").unwrap();
            assert_eq!(on_host(&gpu, half), *host.tensor("b.half").unwrap().bytes());
            let missing = some.tensor("a.weight").unwrap_err();
            assert!(matches!(missing.kind(), ErrorKind::NotFound { .. }));
        }
        nothing_left(&session);
    }
}

#[test]
fn casts_are_those_of_a_processor_and_other_types_stay() {
    let (_dir, path) = file();
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let file = open(&gpu, &path);
            let host = file.load().wait().unwrap();
            for to in [ElementType::F16, ElementType::BF16, ElementType::F32] {
                let device = file.load().on_device(&gpu).cast(to).wait().unwrap();
                for (there, here) in device.iter().zip(&host) {
                    let value = |bytes: &[u8]| match here.dtype() {
                        Dtype::F16 => Some(f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()),
                        Dtype::BF16 => Some(bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()),
                        Dtype::F32 => Some(f32::from_le_bytes(bytes.try_into().unwrap())),
                        _ => None,
                    };
                    let made = |value: f32| match to {
                        ElementType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
                        ElementType::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
                        _ => value.to_le_bytes().to_vec(),
                    };
                    let size = here.dtype().bitsize() / 8;
                    let casts = matches!(here.dtype(), Dtype::F16 | Dtype::BF16 | Dtype::F32);
                    let same = format!("{:?}", here.dtype()) == format!("{to:?}");
                    let wanted: Vec<u8> = if casts && !same {
                        let parts = here.bytes().chunks(size);
                        parts.flat_map(|part| made(value(part).unwrap())).collect()
                    } else {
                        here.bytes().to_vec()
                    };
                    assert_eq!(on_host(&gpu, there), wanted, "{} to {to:?}", here.name());
                    let dtype = format!("{:?}", there.dtype());
                    let now = if casts {
                        format!("{to:?}")
                    } else {
                        format!("{:?}", here.dtype())
                    };
                    assert_eq!((dtype, there.shape()), (now, here.shape()));
                }
            }
            let wrong = file.load().on_device(&gpu).cast(ElementType::U8).wait();
            let wrong = wrong.unwrap_err();
            assert!(
                matches!(wrong.kind(), ErrorKind::InvalidOption { .. }),
                "{wrong}"
            );
        }
        nothing_left(&session);
    }
}

#[test]
fn a_file_that_aligns_nothing_is_aligned_on_the_way() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let header = br#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(&[1, 2, 3]);
        bytes.extend_from_slice(&1.5f32.to_le_bytes());
        bytes.extend_from_slice(&(-2.0f32).to_le_bytes());
        let file = safetensors::open(reader(&gpu, &bytes.into())).unwrap();
        let tensors = file.load().on_device(&gpu).wait().unwrap();
        let b = tensors.tensor("b").unwrap();
        assert_eq!(b.bytes().ptr() as usize % 256, 0);
        assert_eq!(
            on_host(&gpu, b),
            [1.5f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat()
        );
        let halves = file
            .load()
            .on_device(&gpu)
            .cast(ElementType::BF16)
            .wait()
            .unwrap();
        let b = halves.tensor("b").unwrap();
        assert_eq!(on_host(&gpu, b), [0xc0, 0x3f, 0x00, 0xc0]);
    }
    nothing_left(&session);
}

#[test]
fn shards_are_read_together_and_errors_give_everything_back() {
    let dir = tempfile::tempdir().unwrap();
    let one = 1.0f32.to_le_bytes();
    let two = 2.0f32.to_le_bytes();
    let shard = |name: &str, tensor: &str, bytes: &[u8]| {
        let tensors = [NewTensor::new(tensor, Dtype::F32, [1], bytes)];
        safetensors::save(dir.path().join(name), &tensors, &Default::default()).unwrap();
    };
    shard("m-00001-of-00002.safetensors", "x", &one);
    shard("m-00002-of-00002.safetensors", "y", &two);
    let index = dir.path().join("m.safetensors.index.json");
    let map = r#"{"metadata":{},"weight_map":{"x":"m-00001-of-00002.safetensors","y":"m-00002-of-00002.safetensors"}}"#;
    std::fs::write(&index, map).unwrap();
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let options = OpenOptions::new().device(gpu.clone());
            let shards = safetensors::open_sharded(&index, &options).unwrap();
            let both = shards.load().on_device(&gpu).wait().unwrap();
            assert_eq!(on_host(&gpu, both.tensor("x").unwrap()), one);
            assert_eq!(on_host(&gpu, both.tensor("y").unwrap()), two);
            let missing = shards.load().names(["z"]).on_device(&gpu).wait();
            assert!(matches!(
                missing.unwrap_err().kind(),
                ErrorKind::NotFound { .. }
            ));
            // Given up before it is there.
            drop(shards.load().on_device(&gpu).submit());
            // A reader that knows no device says so.
            let plain = OpenOptions::new();
            let plain = safetensors::open_sharded(&index, &plain).unwrap();
            let error = plain.load().on_device(&gpu).wait().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Unsupported { .. }),
                "{error}"
            );
        }
        {
            // The device is too small, and is asked for nothing.
            let gpu = DeviceOptions::default().memory(2).open(0).unwrap();
            let options = OpenOptions::new().device(gpu.clone());
            let shards = safetensors::open_sharded(&index, &options).unwrap();
            let error = shards.load().on_device(&gpu).wait().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
                "{error}"
            );
        }
        nothing_left(&session);
    }
}

/// What weights take of the host's memory on their way is the ring, however large they are.
#[test]
fn the_host_needs_the_ring_and_nothing_else() {
    const BLOCK: usize = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.safetensors");
    let bytes = data(6 << 20);
    let tensors = [
        NewTensor::new("small", Dtype::F32, [3], &bytes[..12]),
        NewTensor::new("large", Dtype::BF16, [1 << 20, 3], &bytes[..]),
        NewTensor::new("last", Dtype::F16, [50_000], &bytes[..100_000]),
    ];
    safetensors::save(&path, &tensors, &Default::default()).unwrap();
    for streams in STREAMS {
        for depth in [1, 4] {
            for cast in [None, Some(ElementType::BF16)] {
                let session = session(streams);
                {
                    let options = DeviceOptions::default()
                        .pinned_block(BLOCK)
                        .pinned(depth * BLOCK);
                    let gpu = options.open(0).unwrap();
                    let staging = StagingOptions::default().block(BLOCK).depth(depth);
                    let options = OpenOptions::new().device(gpu.clone()).staging(staging);
                    let file = safetensors::open(options.open(&path).unwrap()).unwrap();
                    let load = file.load().on_device(&gpu);
                    let load = match cast {
                        Some(to) => load.cast(to),
                        None => load,
                    };
                    let weights = load.wait().unwrap();
                    assert_eq!(on_host(&gpu, weights.tensor("large").unwrap()), bytes);
                    let stats = gpu.stats();
                    // Blocks stay once they are pinned, so this is the most that there was; and none was of other memory.
                    assert!(
                        stats.pinned > 0 && stats.pinned <= (depth * BLOCK) as u64,
                        "{stats:?}"
                    );
                    if depth == 1 {
                        assert_eq!(stats.pinned, BLOCK as u64);
                    }
                    assert_eq!(stats.unpinned, 0);
                    if session.device() == On::Software {
                        let pinned = session.counts().pinned_allocations;
                        assert_eq!(pinned * BLOCK as u64, stats.pinned);
                    }
                    // All of it went that way.
                    let report = file.reader().report().to_string();
                    let ranges = file.load().ranges();
                    let all: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                    assert!(all >= 6 << 20);
                    assert!(
                        report.contains(&format!(" {all} bytes through pinned memory")),
                        "{report}"
                    );
                }
                nothing_left(&session);
            }
        }
    }
}
