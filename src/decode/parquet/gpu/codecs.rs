//! Who decompresses a page: a kernel, or the threads of the host.
//!
//! Kernels have Snappy and LZ4_RAW; all other codecs are undone by the host. With [`Processor::Gpu`] they get all pages that they can
//! undo. With [`Processor::Auto`] they get those that are worth it, by this rule: a page is the work of one warp, which takes about as
//! long as a thread of the host takes for [`PAGES`] pages of that length; all pages are done side by side. So a page goes to the GPU
//! if the host's threads would need longer for all of them than the GPU for this one. With few pages in flight, or few that are
//! much longer than the others, threads are faster.

use std::collections::BTreeMap;
use std::sync::Arc;

use parquet::basic::Compression;

use super::page_plan::{Body, By};
use crate::cuda::decompress::Codec;
use crate::decode::device::Processor;

/// Pages that a thread of the host decompresses while a warp does one of them: 1 GB/s beside 0.1 GB/s. A thread of a Xeon of 2.8 GHz made 1.1
/// to 1.4 GB/s of Snappy and 1.3 to 2.4 of LZ4 (`benches/gpu`); what a warp does is what the kernel is meant to do, and was not measured.
const PAGES: u64 = 10;

/// Stored pages begin at multiples of this on the device.
const ALIGN: u64 = 64;

/// Who could undo `codec`.
pub(super) fn undone_by(codec: Compression) -> By {
    let codec = match codec {
        Compression::SNAPPY => Codec::Snappy,
        Compression::LZ4_RAW => Codec::Lz4,
        Compression::LZ4 => return By::Host(Some("the codec LZ4 of Hadoop")),
        Compression::GZIP(_) => return By::Host(Some("the codec GZIP")),
        Compression::BROTLI(_) => return By::Host(Some("the codec BROTLI")),
        Compression::ZSTD(_) => return By::Host(Some("the codec ZSTD")),
        Compression::LZO => return By::Host(Some("the codec LZO")),
        Compression::UNCOMPRESSED => return By::Host(None),
    };
    By::Device { codec, source: 0 }
}

/// Decides for the pages of `chunks`, which are in the order of their places, of which the last gap ends at `end`, and says how many bytes are
/// to be brought to the device as they are stored; not more than `room`. What kernels could do is marked so.
pub(super) fn assign<'a>(
    chunks: impl Iterator<Item = &'a mut [Body]>,
    end: u64,
    processor: Processor,
    threads: usize,
    room: u64,
) -> u64 {
    let mut chunks: Vec<_> = chunks.collect();
    let (mut next, mut total) = (end, 0u64);
    for body in chunks.iter_mut().flat_map(|bodies| bodies.iter_mut()).rev() {
        // Less than 128: `Arena` begins each place at the next multiple of 64 and ends 64 bytes behind that of the last; and a chunk that is not
        // planned takes no room in it, as `Groups::plans_of` sees to.
        let gap = next.saturating_sub(body.place.end);
        body.gap = u32::try_from(gap).unwrap_or(u32::MAX);
        next = body.place.start;
        if body.compressed && body.made() == 0 {
            body.by = By::Host(Some("nothing in it"));
        }
        if let By::Device { .. } = body.by {
            total = total.saturating_add(body.made());
        }
    }
    let most = match processor {
        Processor::Gpu => u64::MAX,
        _ => total / PAGES.saturating_mul(threads.max(1) as u64),
    };
    let mut len = 0;
    if total == 0 {
        return len;
    }
    for body in chunks.iter_mut().flat_map(|bodies| bodies.iter_mut()) {
        let is_few = body.made() > most;
        let By::Device { source, .. } = &mut body.by else {
            continue;
        };
        if is_few {
            body.by = By::Host(Some(
                "too few pages of its length: threads of the host are faster",
            ));
            continue;
        }
        *source = len;
        len = (len + body.stored.len() as u64).next_multiple_of(ALIGN);
    }
    if len <= room {
        return len;
    }
    for body in chunks.into_iter().flatten() {
        if let By::Device { .. } = body.by {
            body.by = By::Host(Some("no memory for it beside what it becomes"));
        }
    }
    0
}

/// Pages that were decompressed, and the bytes that they became.
#[derive(Clone, Debug, Default)]
pub(super) struct Undone {
    pub(super) by_gpu: (u64, u64),
    pub(super) by_host: (u64, u64),
    /// Why, and how many pages each.
    pub(super) reasons: BTreeMap<Arc<str>, u64>,
}

impl Undone {
    /// Adds these pages; `refused` says why the device did not take the page of this number.
    pub(super) fn add(&mut self, bodies: &[Body], refused: impl Fn(usize) -> Option<Arc<str>>) {
        for (number, body) in bodies.iter().enumerate() {
            if !body.compressed {
                continue;
            }
            let by_gpu = match body.by {
                By::Host(why) => {
                    let why = why.unwrap_or("it was not asked");
                    match self.reasons.get_mut(why) {
                        Some(count) => *count += 1,
                        None => _ = self.reasons.insert(why.into(), 1),
                    }
                    false
                }
                By::Device { .. } => match refused(number) {
                    Some(why) => {
                        *self.reasons.entry(why).or_default() += 1;
                        false
                    }
                    None => true,
                },
            };
            let count = match by_gpu {
                true => &mut self.by_gpu,
                false => &mut self.by_host,
            };
            count.0 += 1;
            count.1 += body.made();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(codec: Compression, len: u64, at: u64) -> Body {
        Body {
            stored: 7..107,
            place: at..at + len,
            by: undone_by(codec),
            crc: None,
            header: 7,
            plain: 0,
            gap: 0,
            compressed: codec != Compression::UNCOMPRESSED,
        }
    }

    /// Which of these pages the device gets, and the bytes that are brought there.
    fn assigned(
        pages: &[(Compression, u64)],
        processor: Processor,
        threads: usize,
        room: u64,
    ) -> (Vec<bool>, u64) {
        let mut at = 0u64;
        let mut bodies: Vec<_> = pages
            .iter()
            .map(|(codec, len)| {
                let body = body(*codec, *len, at);
                at = body.place.end.next_multiple_of(64);
                body
            })
            .collect();
        let stored = assign(
            std::iter::once(&mut bodies[..]),
            at + 64,
            processor,
            threads,
            room,
        );
        let mut end = 0;
        for body in &bodies {
            assert_eq!(body.place.start, end);
            end = body.place.end + u64::from(body.gap);
            if let By::Device { source, .. } = body.by {
                assert_eq!(source % 64, 0);
                assert!(body.compressed);
            }
        }
        assert_eq!(end, at + 64);
        let by_device = bodies
            .iter()
            .map(|body| matches!(body.by, By::Device { .. }));
        (by_device.collect(), stored)
    }

    #[test]
    fn many_pages_of_one_length_go_to_the_device_and_long_ones_do_not() {
        let (snappy, lz4) = (Compression::SNAPPY, Compression::LZ4_RAW);
        let mut pages = vec![(snappy, 1000); 40];
        assert_eq!(assigned(&pages, Processor::Auto, 4, u64::MAX).0, [true; 40]);
        assert_eq!(
            assigned(&pages, Processor::Auto, 5, u64::MAX).0,
            [false; 40]
        );
        // One that is much longer is done by the host, meanwhile.
        pages.push((lz4, 9000));
        let (by_device, stored) = assigned(&pages, Processor::Auto, 4, u64::MAX);
        assert_eq!((&by_device[..40], by_device[40]), (&[true; 40][..], false));
        assert_eq!(stored, 40 * 128);
        assert_eq!(assigned(&pages, Processor::Gpu, 4, u64::MAX).0, [true; 41]);
        // There has to be room for what is stored.
        let (by_device, stored) = assigned(&pages, Processor::Gpu, 4, 41 * 128 - 1);
        assert_eq!((by_device, stored), (vec![false; 41], 0));
    }

    #[test]
    fn codecs_without_kernels_and_pages_without_bytes_are_the_hosts() {
        let pages = [
            (Compression::GZIP(Default::default()), 100),
            (Compression::LZ4, 100),
            (Compression::UNCOMPRESSED, 100),
            (Compression::SNAPPY, 0),
            (Compression::SNAPPY, 65),
        ];
        let (by_device, stored) = assigned(&pages, Processor::Gpu, 1, u64::MAX);
        assert_eq!(
            (by_device, stored),
            (vec![false, false, false, false, true], 128)
        );
    }
}
