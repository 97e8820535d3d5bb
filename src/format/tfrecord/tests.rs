//! The parser against a slow and obvious one that sees the whole stream at once.

use bytes::Bytes;
use proptest::prelude::*;

use super::frame::{FOOTER, HEADER, OVERHEAD, footer, header, length, masked_crc};
use super::parser::{Bad, Parser, Rules, Step};
use crate::error::RecordCheck;

/// Number, offset of the frame, data.
type Found = (u64, u64, Vec<u8>);

#[derive(Debug, PartialEq)]
enum Last {
    End,
    Corrupt(Bad),
    Pointer,
}

#[derive(Debug, PartialEq)]
struct Outcome {
    records: Vec<Found>,
    skipped: Vec<Bad>,
    last: Last,
}

fn rules(total: Option<usize>, skip: bool) -> Rules {
    Rules {
        verify_data: true,
        most: u64::MAX,
        total: total.map(|n| n as u64),
        skip,
    }
}

fn frame(data: &[u8]) -> Vec<u8> {
    let mut bytes = header(data.len() as u64).to_vec();
    bytes.extend_from_slice(data);
    bytes.extend(footer(data));
    bytes
}

fn stream<T: AsRef<[u8]>>(records: &[T]) -> Vec<u8> {
    records
        .iter()
        .flat_map(|data| frame(data.as_ref()))
        .collect()
}

/// What comes out if `bytes` go in by pieces of these sizes, over and over.
fn parse(rules: Rules, bytes: &[u8], sizes: &[usize]) -> Outcome {
    let mut parser = Parser::new(rules);
    let mut outcome = Outcome {
        records: Vec::new(),
        skipped: Vec::new(),
        last: Last::End,
    };
    let (mut at, mut sizes) = (0, sizes.iter().cycle());
    let mut ended = false;
    // Each call delivers something, or uses up a chunk.
    for _ in 0..8 * bytes.len() + 100 {
        match parser.next().unwrap() {
            Step::Frames(frames) => {
                assert!(!frames.is_empty());
                for i in 0..frames.len() {
                    let data = frames.get(i).unwrap().to_vec();
                    assert_eq!(frames.bytes(i).unwrap(), data);
                    let number = frames.first() + i as u64;
                    outcome
                        .records
                        .push((number, frames.offset(i).unwrap(), data));
                }
            }
            Step::Skipped(bad) => outcome.skipped.push(bad),
            Step::Corrupt(bad) => {
                outcome.last = Last::Corrupt(bad);
                return outcome;
            }
            Step::Pointer => {
                outcome.last = Last::Pointer;
                return outcome;
            }
            Step::End => return outcome,
            Step::Want(n) => {
                assert!(n > 0 && !ended);
                if at == bytes.len() {
                    parser.finish();
                    ended = true;
                    continue;
                }
                let n = (*sizes.next().unwrap()).max(1).min(bytes.len() - at);
                parser.push(Bytes::copy_from_slice(&bytes[at..at + n]));
                at += n;
            }
        }
    }
    panic!("it does not end");
}

/// A record that begins at `at` and has both sums right: its data.
fn sound(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let len = length(bytes.get(at..at + HEADER)?.try_into().unwrap())?;
    let data = bytes
        .get(at + HEADER..)?
        .get(..usize::try_from(len).ok()?)?;
    let sum = bytes.get(at + HEADER + data.len()..)?.get(..FOOTER)?;
    (sum == masked_crc(data).to_le_bytes()).then_some(data)
}

/// The same by looking at everything at once. Lengths with right sums are those of records, or less than 2^40.
fn oracle(bytes: &[u8], skip: bool) -> Outcome {
    let mut outcome = Outcome {
        records: Vec::new(),
        skipped: Vec::new(),
        last: Last::End,
    };
    let (mut at, mut record) = (0, 0);
    while at < bytes.len() {
        if let Some(data) = sound(bytes, at) {
            outcome.records.push((record, at as u64, data.to_vec()));
            record += 1;
            at += data.len() + OVERHEAD as usize;
            continue;
        }
        let head = bytes
            .get(at..at + HEADER)
            .map(|h| length(h.try_into().unwrap()));
        let (check, mut end) = match head {
            None => (RecordCheck::Truncated, bytes.len()),
            Some(None) => (RecordCheck::LengthChecksum, at + HEADER),
            Some(Some(len)) if len + OVERHEAD > (bytes.len() - at) as u64 => {
                (RecordCheck::Truncated, bytes.len())
            }
            Some(Some(len)) => (RecordCheck::DataChecksum, at + (len + OVERHEAD) as usize),
        };
        if skip && check == RecordCheck::LengthChecksum {
            let next = (at + 1..bytes.len()).find(|p| sound(bytes, *p).is_some());
            end = next.unwrap_or(bytes.len());
        }
        let bad = Bad {
            record,
            check,
            start: at as u64,
            end: end as u64,
        };
        if !skip {
            outcome.last = Last::Corrupt(bad);
            return outcome;
        }
        outcome.skipped.push(bad);
        record += 1;
        at = end;
    }
    outcome
}

fn records() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let len = prop_oneof![Just(0_usize), 1_usize..40, 100_usize..400];
    let data = len.prop_flat_map(|len| proptest::collection::vec(any::<u8>(), len));
    proptest::collection::vec(data, 0..12)
}

/// Flips a byte, takes some out, or puts some in.
#[derive(Clone, Debug)]
enum Damage {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    End(prop::sample::Index),
}

impl Damage {
    fn to(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Damage::Flip(at, flip) => {
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
            }
            Damage::Cut(at, n) => {
                let at = at.index(bytes.len());
                bytes.drain(at..(at + n).min(bytes.len()));
            }
            Damage::Insert(at, more) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
            Damage::End(at) => bytes.truncate(at.index(bytes.len())),
        }
    }
}

fn damage() -> impl Strategy<Value = Vec<Damage>> {
    let index = any::<prop::sample::Index>;
    let one = prop_oneof![
        4 => (index(), 1_u8..).prop_map(|(at, flip)| Damage::Flip(at, flip)),
        1 => (index(), 1_usize..30).prop_map(|(at, n)| Damage::Cut(at, n)),
        1 => (index(), proptest::collection::vec(any::<u8>(), 1..30))
            .prop_map(|(at, more)| Damage::Insert(at, more)),
        1 => index().prop_map(Damage::End),
    ];
    proptest::collection::vec(one, 0..5)
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        Just(vec![1]),
        Just(vec![usize::MAX]),
        proptest::collection::vec(1_usize..200, 1..8),
    ]
}

proptest! {
    #[test]
    fn records_come_back_whatever_the_chunks(records in records(), sizes in sizes()) {
        let bytes = stream(&records);
        for total in [Some(bytes.len()), None] {
            let outcome = parse(rules(total, false), &bytes, &sizes);
            prop_assert_eq!(&outcome.last, &Last::End);
            prop_assert!(outcome.skipped.is_empty());
            let mut at = 0;
            prop_assert_eq!(outcome.records.len(), records.len());
            for (i, (number, offset, data)) in outcome.records.iter().enumerate() {
                prop_assert_eq!((*number, *offset), (i as u64, at));
                prop_assert_eq!(data, &records[i]);
                at += data.len() as u64 + OVERHEAD;
            }
        }
    }

    #[test]
    fn damage_is_met_as_the_oracle_meets_it(
        records in records(), damage in damage(), sizes in sizes(), skip: bool,
    ) {
        let mut bytes = stream(&records);
        damage.iter().for_each(|damage| damage.to(&mut bytes));
        let expected = oracle(&bytes, skip);
        for total in [Some(bytes.len()), None] {
            prop_assert_eq!(&parse(rules(total, skip), &bytes, &sizes), &expected);
        }
    }
}

fn bad(record: u64, check: RecordCheck, start: u64, end: u64) -> Bad {
    Bad {
        record,
        check,
        start,
        end,
    }
}

#[test]
fn a_file_may_end_anywhere_inside_a_record() {
    let bytes = stream(&["first", "second"]);
    let start = 5 + OVERHEAD;
    for cut in start as usize + 1..bytes.len() {
        for total in [Some(cut), None] {
            for size in [1, 10, 1000] {
                let outcome = parse(rules(total, false), &bytes[..cut], &[size]);
                let bad = bad(1, RecordCheck::Truncated, start, cut as u64);
                assert_eq!(outcome.last, Last::Corrupt(bad), "{cut} {total:?} {size}");
                assert_eq!(outcome.records.len(), 1);
                let outcome = parse(rules(total, true), &bytes[..cut], &[size]);
                assert_eq!((outcome.last, outcome.skipped), (Last::End, vec![bad]));
            }
        }
    }
}

#[test]
fn lengths_that_cannot_be_reserve_nothing() {
    for length in [u64::MAX, u64::MAX - 15, 1 << 62, (1 << 40) + 1] {
        let mut bytes = frame(b"first");
        bytes.extend(header(length));
        bytes.extend([0; 50]);
        for total in [Some(bytes.len()), None] {
            for size in [1, 1000] {
                let outcome = parse(rules(total, false), &bytes, &[size]);
                if total.is_none() && length <= 1 << 62 {
                    // It may be, as far as is known: what comes is kept, and no room taken for the rest.
                    let bad = bad(1, RecordCheck::Truncated, 21, 83);
                    assert_eq!(outcome.last, Last::Corrupt(bad));
                    continue;
                }
                let Last::Corrupt(bad) = outcome.last else {
                    panic!("{outcome:?}");
                };
                assert!(matches!(bad.check, RecordCheck::Length { length: l, .. } if l == length));
                assert_eq!((bad.record, bad.start), (1, 21));
                assert_eq!(outcome.records.len(), 1);
            }
        }
    }
}

#[test]
fn what_is_above_the_cap_is_left_out_by_its_length() {
    let bytes = stream(&[&b"small"[..], &[7; 1000], b"small too"]);
    for total in [Some(bytes.len()), None] {
        for size in [1, 100, 5000] {
            let rules = Rules {
                most: 100,
                ..rules(total, true)
            };
            let outcome = parse(rules, &bytes, &[size]);
            let check = RecordCheck::Length {
                length: 1000,
                most: 100,
            };
            assert_eq!(outcome.skipped, [bad(1, check, 21, 21 + 1016)]);
            let numbers: Vec<_> = outcome.records.iter().map(|r| (r.0, r.1)).collect();
            assert_eq!(numbers, [(0, 0), (2, 1037)]);
            let rules = Rules {
                skip: false,
                ..rules
            };
            let outcome = parse(rules, &bytes, &[size]);
            assert_eq!(outcome.last, Last::Corrupt(bad(1, check, 21, 21 + 1016)));
        }
    }
}

#[test]
fn checks_of_data_can_be_left_out() {
    let mut bytes = stream(&["abc", "def"]);
    bytes[HEADER] ^= 1;
    let rules = Rules {
        verify_data: false,
        ..rules(Some(bytes.len()), false)
    };
    let outcome = parse(rules, &bytes, &[7]);
    assert_eq!(outcome.last, Last::End);
    assert_eq!(outcome.records[0].2, b"`bc");
}

#[test]
fn a_pointer_of_git_lfs_is_told_apart_even_where_damage_is_skipped() {
    let text = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    for size in [1, 5, 1000] {
        for skip in [false, true] {
            let outcome = parse(rules(Some(text.len()), skip), text, &[size]);
            assert_eq!(outcome.last, Last::Pointer);
        }
    }
}

/// Every twelfth byte begins a header whose length reaches nearly to the end: without a bound on the work, each
/// would be summed.
#[test]
fn promising_headers_without_end_do_not_take_for_ever() {
    let n = 100_000_u64;
    let mut bytes = vec![1; HEADER];
    for i in 0..n {
        bytes.extend(header((n - i) * HEADER as u64 / 2));
    }
    let outcome = parse(rules(Some(bytes.len()), true), &bytes, &[usize::MAX]);
    let bad = bad(0, RecordCheck::LengthChecksum, 0, HEADER as u64);
    assert_eq!(outcome.last, Last::Corrupt(bad));
    let outcome = parse(rules(Some(bytes.len()), true), &bytes, &[4096]);
    assert_eq!(outcome.last, Last::Corrupt(bad));
}

/// A record of many chunks is gathered by moving each byte once.
#[test]
fn a_record_larger_than_its_chunks_is_moved_once() {
    let data = vec![5; 3 << 20];
    let bytes = stream(&[&data[..], b"next"]);
    for total in [Some(bytes.len()), None] {
        let outcome = parse(rules(total, false), &bytes, &[1000]);
        assert_eq!(outcome.records.len(), 2);
        assert!(outcome.records[0].2 == data);
    }
}
