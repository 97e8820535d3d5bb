//! Offsets and lengths that do not fit into 31 or 32 bits.

use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

use super::support::{Context, arena, host, is_out_of_bounds, same};
use super::{Content, Verdict};
use crate::reader::{Batch, ChunkOptions, ReadOptions, Reader, ReaderExt};

const GIB: u64 = 1 << 30;
const LEN: u64 = 4 * GIB + (3 << 20) + 123;

/// Bytes at both ends and around 2 and 4 GiB; zeroes between.
fn content(cx: &Context) -> Content {
    let around = |at: u64| at - 300_000..at + 300_000;
    let islands = [
        0..100_000,
        around(2 * GIB),
        around(4 * GIB),
        LEN - 300_000..LEN,
    ];
    Content::sparse(cx.subject.seed(), LEN, islands)
}

pub(super) fn past_4gib(cx: &Context) -> Verdict {
    if !cx.can.past_4gib {
        return Err("the subject does not open so much".into());
    }
    let content = content(cx);
    let opened = cx.open_content(&content);
    let reader = opened.reader();
    let check =
        |range: &Range<u64>, found: &[u8]| same(range, found, &content.range(range.clone()));

    let mut ranges = vec![
        0..10,
        LEN - 1..LEN,
        LEN - 100_000..LEN,
        3 * GIB..3 * GIB + 9,
        LEN..LEN,
    ];
    for border in [2 * GIB, 4 * GIB] {
        for (before, after) in [
            (1, 1),
            (0, 1),
            (1, 0),
            (4_097, 4_095),
            (200_000, 400_000),
            (512, 0),
            (0, 4_096),
        ] {
            ranges.push(border - before..border + after);
        }
    }
    let blocks = reader.read_many(&ranges).wait().unwrap();
    for (range, block) in ranges.iter().zip(&blocks) {
        check(range, host(block));
    }
    let batch = ranges.iter().fold(Batch::new(), |batch, range| {
        let block = arena((range.end - range.start) as usize);
        batch.read_into(range.clone(), block)
    });
    let options = ReadOptions::default().gap(4096);
    let blocks = reader.submit(batch.options(options)).wait().unwrap();
    for (range, block) in ranges.iter().zip(&blocks) {
        check(range, host(block));
    }
    for range in &ranges {
        let mut buf = vec![0xa5; (range.end - range.start) as usize];
        reader.read_at(range.start, &mut buf).unwrap();
        check(range, &buf);
    }
    check(&(LEN - 1_000..LEN), &reader.tail(1_000).wait().unwrap());
    for range in [LEN - 1..LEN + 1, 5 * GIB..5 * GIB + 1, LEN..LEN + 4 * GIB] {
        let error = reader.read(range.clone()).wait().unwrap_err();
        is_out_of_bounds(&error, reader, &range);
    }

    let range = 4 * GIB - 250_001..4 * GIB + 250_001;
    let mut at = range.start;
    let options = ChunkOptions::default().size(65_536).window(200_000);
    for chunk in reader.clone().chunks(range.clone(), options) {
        let chunk = chunk.unwrap();
        let here = at..at + chunk.len() as u64;
        check(&here, &chunk);
        at = here.end;
    }
    assert_eq!(at, range.end);
    let mut cursor = reader.clone().cursor();
    let mut buf = vec![0; 50_000];
    for border in [4 * GIB, 2 * GIB] {
        cursor.seek(SeekFrom::Start(border - 25_000)).unwrap();
        cursor.read_exact(&mut buf).unwrap();
        check(&(border - 25_000..border + 25_000), &buf);
    }
    let slice = reader.clone().slice(2 * GIB - 5..LEN).unwrap();
    let far = 2 * GIB..2 * GIB + 10;
    let found = slice.read(far.clone()).wait().unwrap();
    check(&(far.start + 2 * GIB - 5..far.end + 2 * GIB - 5), &found);
    Ok(())
}

pub(super) fn large_read(cx: &Context) -> Verdict {
    if !(cx.can.past_4gib && cx.can.large_read) {
        return Err("one read of more than 2 GiB would copy it".into());
    }
    let content = content(cx);
    let opened = cx.open_content(&content);
    let range = 50_000..LEN - 7;
    let found = opened.reader().read(range.clone()).wait().unwrap();
    assert_eq!(found.len() as u64, range.end - range.start);
    // All islands, and a page of each 16 MiB of the zeroes.
    let islands = [
        50_000..100_000,
        2 * GIB - 300_000..2 * GIB + 300_000,
        4 * GIB - 300_000..4 * GIB + 300_000,
        LEN - 300_000..LEN - 7,
    ];
    let samples = (1..LEN / (16 << 20)).map(|i| i * (16 << 20)..i * (16 << 20) + 4_096);
    for part in islands.into_iter().chain(samples) {
        let within = (part.start - range.start) as usize..(part.end - range.start) as usize;
        same(&part, &found[within], &content.range(part.clone()));
    }
    Ok(())
}
