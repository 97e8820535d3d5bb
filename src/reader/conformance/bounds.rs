//! Lengths, borders, and what lies outside.

use super::Verdict;
use super::support::{Context, in_order, is_out_of_bounds, same};
use crate::reader::{Batch, ReadInto, ReaderExt};

const LENGTHS: [u64; 13] = [
    0,
    1,
    511,
    512,
    513,
    4095,
    4096,
    4097,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    3 << 20,
    (5 << 20) + 3,
];

pub(super) fn lengths(cx: &Context) -> Verdict {
    for len in LENGTHS {
        let f = cx.open(len);
        let reader = f.reader();
        let all = 0..len;
        same(&all, &reader.read_all().wait().unwrap(), &f.bytes);
        let mut buf = vec![0xa5; len as usize];
        reader.read_at(0, &mut buf).unwrap();
        same(&all, &buf, &f.bytes);
        let (third, last) = (len / 3, len.saturating_sub(1));
        f.read(&[
            third..last.max(third),
            last..len,
            len..len,
            0..0,
            0..len.min(1),
        ]);
        reader.read_at(len, &mut []).unwrap();
        for range in [len..len + 1, last..len + 1, len + 1..len + 1] {
            let error = reader.read(range.clone()).wait().unwrap_err();
            is_out_of_bounds(&error, reader, &range);
        }
    }
    Ok(())
}

pub(super) fn borders(cx: &Context) -> Verdict {
    let f = cx.open(3 * 4096 + 5);
    let around = |border: u64| [border.saturating_sub(1), border, border + 1];
    let starts = [0, 512, 4096, 8192].into_iter().flat_map(around);
    let ranges: Vec<_> = starts
        .flat_map(|start| {
            let lengths = [1, 512, 1024, 4096, 8192].into_iter().flat_map(around);
            lengths.map(move |len| start..start + len)
        })
        .filter(|range| range.end <= f.len())
        .collect();
    f.read(&ranges);
    for range in &ranges {
        let mut buf = vec![0xa5; (range.end - range.start) as usize];
        f.reader().read_at(range.start, &mut buf).unwrap();
        same(range, &buf, f.at(range));
    }
    Ok(())
}

#[allow(clippy::reversed_empty_ranges)]
pub(super) fn out_of_bounds(cx: &Context) -> Verdict {
    let len = 10_000;
    let f = cx.open(len);
    let reader = f.reader();
    let bad = [
        0..len + 1,
        len - 1..len + 1,
        len..len + 1,
        len + 1..len + 1,
        len + 1..len + 4096,
        5..4,
        len..0,
        len + 7..len + 3,
    ];
    for range in &bad {
        let error = reader.read(range.clone()).wait().unwrap_err();
        is_out_of_bounds(&error, reader, range);
        if range.start < range.end {
            let mut buf = vec![0; (range.end - range.start) as usize];
            let error = reader.read_at(range.start, &mut buf).unwrap_err();
            is_out_of_bounds(&error, reader, range);
        }
    }
    let error = reader.read_at(len + 1, &mut []).unwrap_err();
    is_out_of_bounds(&error, reader, &(len + 1..len + 1));
    let pending = reader.submit(Batch::of(bad.iter().cloned()));
    for (outcome, range) in in_order(pending, bad.len()).into_iter().zip(&bad) {
        is_out_of_bounds(&outcome.unwrap_err().error, reader, range);
    }
    // A reader can be used on after errors.
    f.read(&[0..len]);
    Ok(())
}

pub(super) fn end_of_offsets(cx: &Context) -> Verdict {
    let f = cx.open(4096);
    let reader = f.reader();
    let end = u64::MAX;
    for range in [end..end, end - 1..end, 0..end, 4096..end, end - 4096..end] {
        let error = reader.read(range.clone()).wait().unwrap_err();
        is_out_of_bounds(&error, reader, &range);
    }
    for offset in [end, end - 1, end - 7, 1 << 63, i64::MAX as u64, 1 << 32] {
        let mut buf = [0; 8];
        let range = ReadInto::new(offset, &mut buf).range();
        let error = reader.read_at(offset, &mut buf).unwrap_err();
        is_out_of_bounds(&error, reader, &range);
    }
    f.read(&[0..4096]);
    Ok(())
}
