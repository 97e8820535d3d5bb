//! Kernels beside scalar references.

use std::ops::Range;
use std::sync::Arc;

use feedwater::cuda::{Checksum, Dense, Device, DeviceOptions, ElementType, Guard};
use feedwater::{DeviceBytes, ErrorKind};
use half::{bf16, f16};
use software_cuda_preload::Session;

use crate::support::*;

/// Bytes of the host on the device, at `offset` from an aligned address.
pub(crate) fn put(gpu: &Arc<Device>, bytes: &[u8], offset: usize) -> DeviceBytes {
    let mut padded = vec![0xa5; offset];
    padded.extend_from_slice(bytes);
    let reader = reader(gpu, &padded.into());
    let len = (offset + bytes.len()) as u64;
    let block = read(gpu, &reader, 0..len).unwrap();
    block.into_device().unwrap().slice(offset..)
}

/// One bit after the other.
pub(crate) fn crc_reference(kind: Checksum, bytes: &[u8]) -> u32 {
    let polynomial = match kind {
        Checksum::Crc32 => 0xedb8_8320u32,
        _ => 0x82f6_3b78,
    };
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { polynomial } else { 0 };
        }
    }
    !crc
}

/// All checks of the device on, in each order of its warps.
pub(crate) fn checked(order: &str) -> Session {
    let mut session = session("lazy");
    session.set("CHECKS", "all");
    session.set("SCHEDULE", order);
    session
}

pub(crate) const ORDERS: [&str; 4] = ["in-order", "reversed", "shuffled:7", "apart"];

#[test]
fn checksums_of_segments_of_all_lengths_and_places() {
    assert_eq!(crc_reference(Checksum::Crc32, b"123456789"), 0xcbf4_3926);
    assert_eq!(crc_reference(Checksum::Crc32c, b"123456789"), 0xe306_9283);
    for order in ORDERS {
        let session = checked(order);
        {
            let gpu = DeviceOptions::default()
                .guard(Guard::Separate)
                .open(0)
                .unwrap();
            let bytes = data(3000);
            // Other orders show races, which do not depend on where and what the bytes are.
            let (offsets, kinds) = match order {
                "in-order" => (0..2, &[Checksum::Crc32, Checksum::Crc32c][..]),
                _ => (1..2, &[Checksum::Crc32c][..]),
            };
            for offset in offsets {
                let there = put(&gpu, &bytes, offset);
                let lens = [
                    0, 1, 2, 3, 4, 5, 31, 32, 33, 127, 128, 129, 130, 255, 257, 1000,
                ];
                let segments: Vec<Range<u64>> = lens
                    .iter()
                    .flat_map(|len| (0..3).map(move |at| at..at + len))
                    .chain([0..3000, 2999..3000, 3000..3000])
                    .collect();
                for &kind in kinds {
                    let found = gpu.checksums(kind, &there, &segments).unwrap();
                    for (segment, found) in segments.iter().zip(&found) {
                        let part = &bytes[segment.start as usize..segment.end as usize];
                        let wanted = crc_reference(kind, part);
                        assert_eq!(*found, wanted, "{kind:?} {segment:?} + {offset}, {order}");
                    }
                }
            }
        }
        nothing_left(&session);
    }
}

#[test]
fn a_long_segment_is_put_together_from_pieces() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let bytes = data(300_000);
        let there = put(&gpu, &bytes, 1);
        let segments = [
            0..300_000,
            7..65_543,
            7..65_544,
            100..131_172,
            65_536..131_072,
        ];
        let found = gpu.checksums(Checksum::Crc32c, &there, &segments).unwrap();
        for (segment, found) in segments.iter().zip(found) {
            let part = &bytes[segment.start as usize..segment.end as usize];
            assert_eq!(found, crc_reference(Checksum::Crc32c, part), "{segment:?}");
        }
        assert!(
            gpu.checksums(Checksum::Crc32, &there, &[])
                .unwrap()
                .is_empty()
        );
        let error = gpu.checksums(Checksum::Crc32, &there, &[0..1, 299_999..300_001]);
        let error = error.unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::OutOfBounds { len: 300_000 }
        ));
        assert_eq!((error.offset(), error.length()), (Some(299_999), Some(2)));
    }
    nothing_left(&session);
}

/// An element as the kernel sees it.
fn load(bytes: &[u8], from: ElementType) -> f32 {
    let two = || [bytes[0], bytes[1]];
    let four = || [bytes[0], bytes[1], bytes[2], bytes[3]];
    match from {
        ElementType::U8 => f32::from(bytes[0]),
        ElementType::I8 => f32::from(bytes[0] as i8),
        ElementType::U16 => f32::from(u16::from_le_bytes(two())),
        ElementType::I16 => f32::from(i16::from_le_bytes(two())),
        ElementType::I32 => i32::from_le_bytes(four()) as f32,
        ElementType::F16 => f16::from_le_bytes(two()).to_f32(),
        ElementType::BF16 => bf16::from_le_bytes(two()).to_f32(),
        _ => f32::from_le_bytes(four()),
    }
}

fn store(value: f32, to: ElementType) -> Vec<u8> {
    match to {
        ElementType::U8 => vec![value.round_ties_even() as u8],
        ElementType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        ElementType::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

const SOURCES: [ElementType; 8] = [
    ElementType::U8,
    ElementType::I8,
    ElementType::U16,
    ElementType::I16,
    ElementType::I32,
    ElementType::F16,
    ElementType::BF16,
    ElementType::F32,
];
const TARGETS: [ElementType; 4] = [
    ElementType::U8,
    ElementType::F16,
    ElementType::BF16,
    ElementType::F32,
];

/// Patterns of bits at and around all edges of the types.
fn edges() -> Vec<u8> {
    let mut bytes = Vec::new();
    for exponent in 0..256u32 {
        for fraction in [
            0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0x40_0000, 0x7f_ffff,
        ] {
            for sign in [0, 1] {
                let bits = sign << 31 | exponent << 23 | fraction;
                bytes.extend_from_slice(&u32::to_le_bytes(bits));
            }
        }
    }
    bytes
}

#[test]
fn casts_are_those_of_a_processor_bit_by_bit() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let all_halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for from in SOURCES {
            let bytes = match from.size() {
                2 => all_halves.chunks(2).step_by(7).flatten().copied().collect(),
                _ => edges(),
            };
            let count = bytes.len() as u64 / from.size();
            let there = put(&gpu, &bytes, 0);
            for to in TARGETS {
                let made = gpu.dense(&Dense::cast(&[count], from, to), &there).unwrap();
                let made = gpu.to_host(&made).unwrap();
                let size = from.size() as usize;
                for (part, found) in bytes.chunks(size).zip(made.chunks(to.size() as usize)) {
                    let wanted = store(load(part, from), to);
                    assert_eq!(found, wanted, "{from:?} {part:?} to {to:?}");
                }
            }
        }
    }
    nothing_left(&session);
}

#[test]
fn images_are_normalised_and_transposed() {
    for order in ORDERS {
        let session = checked(order);
        {
            let gpu = DeviceOptions::default().guard(Guard::Gaps).open(0).unwrap();
            let (n, c, h, w) = (2u64, 3, 5, 7);
            let bytes = data((n * c * h * w) as usize);
            let there = put(&gpu, &bytes, 1);
            let (scale, bias) = ([0.017, 0.018, 0.019], [-2.1, -2.0, -1.8]);
            let tensor = Dense::cast(&[n, c, h, w], ElementType::U8, ElementType::F32)
                .strides(&[h * w * c, 1, w * c, c])
                .affine(1, &scale, &bias);
            let made = gpu.to_host(&gpu.dense(&tensor, &there).unwrap()).unwrap();
            let mut wanted = Vec::new();
            for image in 0..n {
                for channel in 0..c {
                    for pixel in 0..h * w {
                        let byte = bytes[(image * h * w * c + pixel * c + channel) as usize];
                        let channel = channel as usize;
                        let value = f32::from(byte) * scale[channel] + bias[channel];
                        wanted.extend_from_slice(&value.to_le_bytes());
                    }
                }
            }
            assert_eq!(made, wanted, "{order}");
            assert_eq!(gpu.stats().overruns, 0);
        }
        nothing_left(&session);
    }
}

#[test]
fn rows_are_gathered_and_parts_copied() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        for size in [1u64, 2, 4, 8] {
            for count in [0u64, 1, 31, 32, 33, 255, 256, 257, 1000] {
                let bytes = data((10 * 12 * size) as usize);
                let there = put(&gpu, &bytes, size as usize);
                // Rows of 12 elements, of which the 3rd to 7th.
                let rows: Vec<u64> = (0..count).map(|i| (i * 7 + 3) % 10).collect();
                let part = there.slice(2 * size as usize..);
                let tensor = Dense::copy(&[count, 5], size).strides(&[12, 1]).rows(&rows);
                let made = gpu.to_host(&gpu.dense(&tensor, &part).unwrap()).unwrap();
                let mut wanted = Vec::new();
                for row in rows {
                    let from = ((row * 12 + 2) * size) as usize;
                    wanted.extend_from_slice(&bytes[from..from + 5 * size as usize]);
                }
                assert_eq!(made, wanted, "{size} {count}");
            }
        }
    }
    nothing_left(&session);
}

#[test]
fn what_does_not_fit_is_said_before_the_device_is_asked() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let there = put(&gpu, &data(100), 0);
        let u8s = |shape: &[u64]| Dense::cast(shape, ElementType::U8, ElementType::F32);
        let invalid = [
            u8s(&[]),
            u8s(&[1, 1, 1, 1, 1]),
            u8s(&[u64::MAX, 2]),
            u8s(&[1 << 62]),
            u8s(&[10]).strides(&[1, 1]),
            u8s(&[10]).strides(&[u64::MAX]).rows(&[0]),
            u8s(&[10]).rows(&[0; 9]),
            u8s(&[10]).affine(0, &[1.0; 9], &[0.0; 10]),
            u8s(&[10]).affine(1, &[1.0], &[0.0]),
            Dense::copy(&[10], 1).affine(0, &[1.0; 10], &[0.0; 10]),
            Dense::copy(&[10], 3),
            Dense::cast(&[10], ElementType::U8, ElementType::I16),
        ];
        for tensor in &invalid {
            let error = gpu.dense(tensor, &there).unwrap_err();
            let kind = error.kind();
            assert!(
                matches!(kind, ErrorKind::InvalidOption { .. }),
                "{tensor:?}: {error}"
            );
        }
        let outside = [
            u8s(&[101]),
            u8s(&[10, 10]).strides(&[11, 1]),
            u8s(&[2, 10]).strides(&[10, 1]).rows(&[0, 10]),
            u8s(&[1, 101]).rows(&[0]),
            u8s(&[2]).strides(&[u64::MAX]),
        ];
        for tensor in &outside {
            let error = gpu.dense(tensor, &there).unwrap_err();
            let kind = error.kind();
            assert!(
                matches!(kind, ErrorKind::OutOfBounds { len: 100 }),
                "{tensor:?}: {error}"
            );
        }
        let unaligned = Dense::cast(&[4], ElementType::F32, ElementType::F16);
        let error = gpu.dense(&unaligned, &there.slice(1..)).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unsupported { .. }),
            "{error}"
        );
        assert_eq!(gpu.stats().in_use, 100);
    }
    nothing_left(&session);
}
