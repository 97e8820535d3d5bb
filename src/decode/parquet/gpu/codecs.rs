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

/// Decides for `bodies`, which are in the order of their places, of which the last gap ends at `end`, and says how many bytes are to be brought
/// to the device as they are stored; not more than `room`.
pub(super) fn assign<'a>(
    bodies: impl Iterator<Item = &'a mut Body>,
    end: u64,
    processor: Processor,
    threads: usize,
    room: u64,
) -> u64 {
    let mut bodies: Vec<_> = bodies.collect();
    let mut next = end;
    for body in bodies.iter_mut().rev() {
        body.gap = next.saturating_sub(body.place.end);
        next = body.place.start;
    }
    bodies.retain(|body| body.compressed);
    let mut total = 0u64;
    for body in &mut bodies {
        body.by = match (codec_of(body.codec), made(body)) {
            (_, 0) => By::Host(Some("nothing in it".into())),
            (Err(name), _) => By::Host(Some(format!("the codec {name}").into())),
            (Ok(codec), bytes) => {
                total = total.saturating_add(bytes);
                By::Device {
                    codec,
                    source: 0..0,
                }
            }
        };
    }
    let most = match processor {
        Processor::Gpu => u64::MAX,
        _ => total / PAGES.saturating_mul(threads.max(1) as u64),
    };
    let few: Arc<str> = "too few pages of its length: threads of the host are faster".into();
    let mut len = 0;
    for body in &mut bodies {
        let bytes = made(body);
        let By::Device { source, .. } = &mut body.by else {
            continue;
        };
        if bytes > most {
            body.by = By::Host(Some(few.clone()));
            continue;
        }
        *source = len..len + body.stored.len() as u64;
        len = source.end.next_multiple_of(ALIGN);
    }
    if len <= room {
        return len;
    }
    let short: Arc<str> = "no memory for it beside what it becomes".into();
    for body in bodies {
        if let By::Device { .. } = body.by {
            body.by = By::Host(Some(short.clone()));
        }
    }
    0
}

/// Bytes that are decompressed out of a page.
fn made(body: &Body) -> u64 {
    (body.place.end - body.place.start).saturating_sub(body.plain as u64)
}

fn codec_of(codec: Compression) -> Result<Codec, &'static str> {
    match codec {
        Compression::SNAPPY => Ok(Codec::Snappy),
        Compression::LZ4_RAW => Ok(Codec::Lz4),
        Compression::LZ4 => Err("LZ4 of Hadoop"),
        Compression::GZIP(_) => Err("GZIP"),
        Compression::BROTLI(_) => Err("BROTLI"),
        Compression::ZSTD(_) => Err("ZSTD"),
        Compression::LZO => Err("LZO"),
        Compression::UNCOMPRESSED => Err("UNCOMPRESSED"),
    }
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
            let why = match &body.by {
                By::Host(why) => why.clone().or_else(|| Some("it was not asked".into())),
                By::Device { .. } => refused(number),
            };
            let count = match why {
                None => &mut self.by_gpu,
                Some(why) => {
                    *self.reasons.entry(why).or_default() += 1;
                    &mut self.by_host
                }
            };
            count.0 += 1;
            count.1 += made(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(codec: Compression, len: u64, at: u64) -> Body {
        Body {
            stored: 7..107,
            compressed: codec != Compression::UNCOMPRESSED,
            plain: 0,
            place: at..at + len,
            crc: None,
            header: 7,
            codec,
            by: By::Host(None),
            gap: 0,
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
        let stored = assign(bodies.iter_mut(), at + 64, processor, threads, room);
        let mut end = 0;
        for body in &bodies {
            assert_eq!(body.place.start, end);
            end = body.place.end + body.gap;
            if let By::Device { source, .. } = &body.by {
                assert_eq!(
                    (
                        source.start % 64,
                        source.end - source.start,
                        body.compressed
                    ),
                    (0, 100, true)
                );
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
