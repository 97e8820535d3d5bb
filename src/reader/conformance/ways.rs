//! The other ways to read: on the spot, in chunks, through a cursor, in slices.

use std::io::{BufRead, Read, Seek, SeekFrom};
use std::sync::Arc;

use super::Verdict;
use super::support::{Context, Fixture, collect, in_order, is_out_of_bounds, same};
use crate::error::{Error, Result};
use crate::reader::{Batch, ChunkOptions, Priority, ReadInto, ReadOptions, Reader, ReaderExt};
use bytes::Bytes;

const LEN: u64 = 300_001;

pub(super) fn read_now(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let reader = f.reader();
    reader.read_now(&mut []).unwrap();
    let mut rng = cx.rng(6);
    for count in [1, 2, 33] {
        let mut ranges: Vec<_> = (0..count).map(|_| rng.range(LEN, 20_000)).collect();
        ranges.extend([0..0, 1..8, 0..9, LEN..LEN]);
        let mut buffers: Vec<_> = ranges
            .iter()
            .map(|range| vec![0xa5; (range.end - range.start) as usize])
            .collect();
        let mut reads: Vec<_> = ranges
            .iter()
            .zip(&mut buffers)
            .map(|(range, buf)| ReadInto::new(range.start, buf))
            .collect();
        reader.read_now(&mut reads).unwrap();
        for (range, buffer) in ranges.iter().zip(&buffers) {
            same(range, buffer, f.at(range));
        }
    }
    // The first bad one is the error, wherever it stands.
    let (mut a, mut b, mut c) = ([0; 4], [0; 4], [0; 4]);
    let error = reader
        .read_now(&mut [
            ReadInto::new(0, &mut a),
            ReadInto::new(LEN - 3, &mut b),
            ReadInto::new(LEN, &mut c),
        ])
        .unwrap_err();
    is_out_of_bounds(&error, reader, &(LEN - 3..LEN + 1));
    reader.read_at(8, &mut a).unwrap();
    same(&(8..12), &a, f.at(&(8..12)));
    Ok(())
}

pub(super) fn read_at(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let mut memory = vec![0u8; 20_000];
    for (offset, shift, len) in [
        (0, 0, 4_096),
        (1, 1, 4_096),
        (4_096, 7, 8_192),
        (513, 3, 1),
        (LEN - 512, 0, 512),
    ] {
        memory.fill(0xa5);
        let buf = &mut memory[shift..shift + len];
        f.reader().read_at(offset, buf).unwrap();
        let range = offset..offset + len as u64;
        same(&range, buf, f.at(&range));
        let outside = memory[..shift].iter().chain(&memory[shift + len..]);
        assert!(
            outside.clone().all(|b| *b == 0xa5),
            "memory beside the buffer was written"
        );
    }
    Ok(())
}

pub(super) fn tail(cx: &Context) -> Verdict {
    for len in [0, 1, LEN] {
        let f = cx.open(len);
        for n in [0, 1, 8, len, len + 1, u64::MAX] {
            let range = len.saturating_sub(n)..len;
            same(&range, &f.reader().tail(n).wait().unwrap(), f.at(&range));
        }
    }
    Ok(())
}

/// Options and ranges that the two kinds of chunks are tried with: (range, size, window).
fn chunkings() -> Vec<(std::ops::Range<u64>, usize, usize)> {
    let mut all = Vec::new();
    for size in [1_000, 4_096, 65_536, 1 << 20] {
        for window in [0, 1, 150_000, 8 << 20] {
            all.push((0..LEN, size, window));
            all.push((4_095..200_001, size, window));
        }
    }
    all.extend([(7..7, 16, 16), (LEN..LEN, 16, 16), (5..50, 0, 3)]);
    all
}

fn check_chunks(
    f: &Fixture,
    range: &std::ops::Range<u64>,
    size: usize,
    chunks: impl IntoIterator<Item = Result<Bytes>>,
) {
    let (mut at, size) = (range.start, size.max(1) as u64);
    for chunk in chunks {
        let chunk = chunk.unwrap();
        let here = at..at + chunk.len() as u64;
        assert!(
            !chunk.is_empty() && here.end <= range.end,
            "chunk {here:?} of {range:?}"
        );
        same(&here, &chunk, f.at(&here));
        let ends_well = here.end % size == 0 || here.end == range.end;
        assert!(ends_well, "chunk {here:?} in chunks of {size}");
        at = here.end;
    }
    assert_eq!(at, range.end, "end of the chunks of {range:?}");
}

fn options(size: usize, window: usize) -> ChunkOptions {
    ChunkOptions::default().size(size).window(window)
}

pub(super) fn chunks(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    for (range, size, window) in chunkings() {
        let mut chunks = f
            .reader()
            .clone()
            .chunks(range.clone(), options(size, window));
        assert_eq!(chunks.remaining(), range.end - range.start);
        check_chunks(&f, &range, size, &mut chunks);
        assert_eq!(chunks.remaining(), 0);
        assert!(chunks.next().is_none());
    }
    let in_background =
        ChunkOptions::default().read(ReadOptions::default().priority(Priority::Prefetch));
    let mut chunks = f.reader().clone().chunks(0..LEN, in_background.size(4_096));
    let first = chunks.next().unwrap().unwrap();
    same(&(0..4_096), &first, f.at(&(0..4_096)));
    drop(chunks); // with some in flight
    let bad = 5..LEN + 1;
    let mut chunks = f.reader().clone().chunks(bad.clone(), options(10, 10));
    is_out_of_bounds(&chunks.next().unwrap().unwrap_err(), f.reader(), &bad);
    assert!(chunks.next().is_none(), "chunks after an error");
    Ok(())
}

pub(super) fn chunk_stream(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    for (range, size, window) in chunkings() {
        let chunks = f
            .reader()
            .clone()
            .chunks(range.clone(), options(size, window));
        check_chunks(&f, &range, size, collect(chunks.stream()));
    }
    let bad = 5..LEN + 1;
    let chunks = f.reader().clone().chunks(bad.clone(), options(10, 10));
    let errors: Vec<Result<Bytes, Error>> = collect(chunks.stream());
    assert_eq!(errors.len(), 1);
    is_out_of_bounds(errors[0].as_ref().unwrap_err(), f.reader(), &bad);
    Ok(())
}

pub(super) fn cursor(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let mut ours = f.reader().clone().cursor();
    let mut theirs = std::io::Cursor::new(&f.bytes);
    let mut rng = cx.rng(7);
    for step in 0..400 {
        match rng.below(7) {
            0 => {
                let to = SeekFrom::Start(rng.below(LEN + 100));
                assert_eq!(ours.seek(to).unwrap(), theirs.seek(to).unwrap());
            }
            1 | 2 => {
                let by = rng.below(60_000) as i64 - 30_000;
                let to = if step % 2 == 0 {
                    SeekFrom::Current(by)
                } else {
                    SeekFrom::End(by)
                };
                match (ours.seek(to), theirs.seek(to)) {
                    (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs),
                    (Err(ours), Err(theirs)) => assert_eq!(ours.kind(), theirs.kind()),
                    (ours, theirs) => panic!("seek {to:?}: {ours:?}, a file's: {theirs:?}"),
                }
            }
            3 => {
                let available = ours.fill_buf().unwrap();
                let left = &f.bytes[(theirs.position() as usize).min(f.bytes.len())..];
                assert!(
                    left.starts_with(available),
                    "buffered bytes at {}",
                    theirs.position()
                );
                assert_eq!(available.is_empty(), left.is_empty());
                let some = rng.below(available.len() as u64 + 1) as usize;
                ours.consume(some);
                theirs.consume(some);
            }
            _ => {
                let n = rng.below(if step % 3 == 0 { 70_000 } else { 500 });
                let at = theirs.position();
                let (mut found, mut expected) = (Vec::new(), Vec::new());
                ours.by_ref().take(n).read_to_end(&mut found).unwrap();
                theirs.by_ref().take(n).read_to_end(&mut expected).unwrap();
                same(&(at..at + expected.len() as u64), &found, &expected);
            }
        }
        assert_eq!(ours.position(), theirs.position());
    }
    ours.seek(SeekFrom::Start(LEN - 3)).unwrap();
    let error = ours.read_exact(&mut [0; 4]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    Ok(())
}

#[allow(clippy::reversed_empty_ranges)]
pub(super) fn slice(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let whole = f.reader();
    for bad in [0..LEN + 1, LEN + 1..LEN + 1, 9..3] {
        let error = whole.clone().slice(bad.clone()).unwrap_err();
        is_out_of_bounds(&error, whole, &bad);
    }
    for (range, inner) in [
        (0..LEN, 0..LEN),
        (4_095..200_001, 1..9_000),
        (77..77, 0..0),
        (LEN - 9..LEN, 8..9),
    ] {
        let slice = Arc::new(whole.clone().slice(range.clone()).unwrap());
        let len = range.end - range.start;
        assert_eq!(slice.source().len(), len);
        same(&range, &slice.read_all().wait().unwrap(), f.at(&range));
        let outside = len..len + 1;
        let bad = slice.read(outside.clone()).wait().unwrap_err();
        is_out_of_bounds(&bad, &*slice, &outside);
        // Inside the whole, but not the slice: the others of the batch are read.
        let reads = [0..len, len..len + 1, inner.clone()];
        let mut outcomes = in_order(slice.submit(Batch::of(reads)), 3);
        is_out_of_bounds(&outcomes.remove(1).unwrap_err().error, &*slice, &outside);
        assert!(outcomes.iter().all(Result::is_ok), "good reads of a slice");

        let within = range.start + inner.start..range.start + inner.end;
        let again = Arc::new(slice.clone().slice(inner).unwrap());
        same(&within, &again.read_all().wait().unwrap(), f.at(&within));
        let mut buf = vec![0; (within.end - within.start) as usize];
        again.read_at(0, &mut buf).unwrap();
        same(&within, &buf, f.at(&within));
        let past = buf.len() as u64;
        let error = again.read_at(past, &mut [0]).unwrap_err();
        is_out_of_bounds(&error, &*again, &(past..past + 1));
        let mut read = Vec::new();
        // Bounded, should it not end by itself.
        slice.cursor().take(len + 1).read_to_end(&mut read).unwrap();
        same(&range, &read, f.at(&range));
    }
    Ok(())
}
