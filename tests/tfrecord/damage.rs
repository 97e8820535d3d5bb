//! Files that are damaged, cut, or something else.

use feedwater::tfrecord::{AtMost, Compression, OnCorrupt, RecordOptions, Skipped};
use feedwater::{ErrorKind, RecordCheck};

use crate::support::{Outcome, data_of, every_way, file_of, memory, small_chunks, varied};

const RECORDS: [&str; 5] = ["zero", "one", "two", "three", "four"];
/// Where the frame of each of them begins.
const STARTS: [u64; 5] = [0, 20, 39, 58, 79];

fn five() -> Vec<u8> {
    file_of(&RECORDS, Compression::None)
}

fn skip(at_most: AtMost) -> RecordOptions {
    RecordOptions::new().on_corrupt(OnCorrupt::Skip { at_most })
}

/// With damage left out: what is left, and the report.
fn left_out(options: &RecordOptions, bytes: &[u8]) -> (Outcome, Skipped) {
    let outcome = every_way(options, &memory(bytes.to_vec()));
    let mut records = options.records(memory(bytes.to_vec()));
    records.by_ref().for_each(drop);
    (outcome, records.skipped().clone())
}

fn check_of(outcome: &Outcome) -> (u64, RecordCheck, u64) {
    let error = outcome.1.as_ref().expect("an error");
    assert_eq!(error.name(), Some("records"));
    let ErrorKind::CorruptRecord { record, check } = *error.kind() else {
        panic!("{error}");
    };
    (record, check, error.offset().expect("an offset"))
}

#[test]
fn the_first_damage_is_an_error_that_says_what_and_where() {
    let cases = [
        (0, 3, 0, RecordCheck::LengthChecksum),
        (20, 9, 1, RecordCheck::LengthChecksum),
        (39, 13, 2, RecordCheck::DataChecksum),
        (58, 20, 3, RecordCheck::DataChecksum),
    ];
    for (start, at, record, check) in cases {
        let mut bytes = five();
        bytes[start + at] ^= 0x10;
        let outcome = every_way(&RecordOptions::new(), &memory(bytes));
        assert_eq!(check_of(&outcome), (record, check, start as u64));
        assert_eq!(data_of(&outcome.0).len(), record as usize);
    }
    let mut bytes = five();
    bytes[39 + 13] ^= 1;
    let outcome = every_way(&RecordOptions::new().verify_data(false), &memory(bytes));
    assert!(outcome.1.is_none(), "nobody asked");
    assert_eq!(outcome.0.len(), 5);
}

#[test]
fn wrong_data_costs_its_record_and_a_wrong_length_what_follows_until_a_sound_one() {
    let mut bytes = five();
    bytes[20 + 12] ^= 1; // data of "one"
    bytes[58] ^= 1; // length of "three"
    for size in [1, 30, 4096] {
        let options = small_chunks(size).on_corrupt(OnCorrupt::Skip {
            at_most: AtMost::Any,
        });
        let (outcome, skipped) = left_out(&options, &bytes);
        assert!(outcome.1.is_none());
        let found: Vec<_> = outcome.0.iter().map(|f| (f.0, f.1, &f.2[..])).collect();
        assert_eq!(
            found,
            [
                (0, 0, &b"zero"[..]),
                (2, STARTS[2], b"two"),
                (4, STARTS[4], b"four")
            ]
        );
        assert_eq!((skipped.records(), skipped.bytes()), (2, 19 + 21));
        let list: Vec<_> = skipped
            .list()
            .iter()
            .map(|s| (s.record, s.offset, s.length, s.check, &*s.name, s.shard))
            .collect();
        assert_eq!(
            list,
            [
                (1, 20, 19, RecordCheck::DataChecksum, "records", 0),
                (3, 58, 21, RecordCheck::LengthChecksum, "records", 0)
            ]
        );
    }
}

#[test]
fn it_stops_at_the_number_or_share_that_was_given() {
    let mut bytes = file_of(&[b"x"; 200], Compression::None);
    for i in [10, 20, 30, 40] {
        bytes[i * 17 + 12] ^= 1;
    }
    let with = |at_most| every_way(&skip(at_most), &memory(bytes.clone()));
    assert!(with(AtMost::Records(4)).1.is_none());
    assert!(with(AtMost::Any).1.is_none());
    assert!(with(AtMost::Share(0.02)).1.is_none());
    let third = (40, RecordCheck::DataChecksum, 680);
    let outcome = with(AtMost::Records(3));
    assert_eq!(check_of(&outcome), third);
    assert_eq!(outcome.0.len(), 37);
    // A share of few records is judged at their end.
    let outcome = with(AtMost::Share(0.01));
    assert_eq!(check_of(&outcome), third);
    assert_eq!(outcome.0.len(), 196);
    for nonsense in [-0.1, 1.1, f64::NAN] {
        let error = with(AtMost::Share(nonsense)).1.unwrap();
        assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }));
    }
}

#[test]
fn a_file_that_was_cut_is_an_error_or_the_end() {
    let whole = five();
    // In the header, in the data, in the footer of the last one.
    for cut in [80, 90, 91, 93, 95, 98] {
        let bytes = &whole[..cut];
        let outcome = every_way(&RecordOptions::new(), &memory(bytes.to_vec()));
        assert_eq!(check_of(&outcome), (4, RecordCheck::Truncated, 79));
        assert_eq!(outcome.0.len(), 4);
        let (outcome, skipped) = left_out(&skip(AtMost::Any), bytes);
        assert!(outcome.1.is_none());
        assert_eq!(outcome.0.len(), 4);
        assert_eq!(skipped.bytes(), cut as u64 - 79);
    }
}

#[test]
fn a_length_near_the_largest_number_takes_no_memory() {
    // A header with length 2^64 - 1 and its right checksum.
    let mut header = vec![0xff; 8];
    header.extend(masked(&[0xff; 8]).to_le_bytes());
    let mut bytes = file_of(&["zero"], Compression::None);
    bytes.extend(&header);
    bytes.extend([0; 100]);
    let (length, most) = (u64::MAX, 100 - 4);
    let check = RecordCheck::Length { length, most };
    let outcome = every_way(&RecordOptions::new(), &memory(bytes.clone()));
    assert_eq!(check_of(&outcome), (1, check, 20));
    let (outcome, skipped) = left_out(&skip(AtMost::Any), &bytes);
    assert!(outcome.1.is_none());
    assert_eq!((outcome.0.len(), skipped.bytes()), (1, 112));
}

#[test]
fn records_of_a_compressed_stream_are_capped() {
    let bytes = file_of(
        &[vec![1; 10], vec![2; 5000], vec![3; 10]],
        Compression::Gzip,
    );
    let options = RecordOptions::new().max_record(4999);
    let outcome = every_way(&options, &memory(bytes.clone()));
    let (length, most) = (5000, 4999);
    let check = RecordCheck::Length { length, most };
    assert_eq!(check_of(&outcome), (1, check, 26));
    let options = skip(AtMost::Any).max_record(4999);
    let (outcome, skipped) = left_out(&options, &bytes);
    assert_eq!(data_of(&outcome.0), [[1; 10], [3; 10]]);
    assert_eq!(skipped.bytes(), 5016);
}

#[test]
fn a_compressed_stream_that_is_damaged_is_an_error_behind_what_it_had() {
    let records = varied(200);
    for (compression, part) in [
        (Compression::Gzip, "its GZIP stream"),
        (Compression::Zlib, "its ZLIB stream"),
    ] {
        let bytes = file_of(&records, compression);
        let mut damaged = bytes.clone();
        *damaged.last_mut().unwrap() ^= 1;
        for bytes in [
            &damaged[..],
            &bytes[..bytes.len() - 1],
            &bytes[..bytes.len() / 2],
        ] {
            for options in [RecordOptions::new(), skip(AtMost::Any)] {
                let (found, error) = every_way(&options, &memory(bytes.to_vec()));
                let error = error.expect("the stream is not whole");
                let ErrorKind::Malformed { part: p, .. } = error.kind() else {
                    panic!("{error}");
                };
                assert_eq!(p.as_deref(), Some(part));
                assert_eq!(error.name(), Some("records"));
                assert!(
                    records.starts_with(
                        &data_of(&found)
                            .iter()
                            .map(|d| d.to_vec())
                            .collect::<Vec<_>>()
                    )
                );
                assert!(!found.is_empty());
            }
        }
    }
}

#[test]
fn a_git_lfs_pointer_is_called_by_its_name() {
    let text = "version https://git-lfs.github.com/spec/v1\n\
        oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
    for size in [1, 1000] {
        let outcome = every_way(&small_chunks(size), &memory(text));
        let error = outcome.1.expect("no records");
        assert!(
            matches!(error.kind(), ErrorKind::Malformed { .. }),
            "{error}"
        );
        assert!(error.to_string().contains("Git LFS"), "{error}");
        assert_eq!(error.name(), Some("records"));
    }
}

/// Any byte changed, a few at a time, in plain and compressed files: records or a typed error; whatever comes is a
/// record that was written.
#[test]
fn mutations_never_panic_nor_invent_records() {
    let records = varied(40);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    for compression in [Compression::None, Compression::Gzip, Compression::Zlib] {
        let bytes = file_of(&records, compression);
        for round in 0..400 {
            let mut mutated = bytes.clone();
            for _ in 0..=next(3) {
                let at = next(mutated.len());
                match next(4) {
                    0 => mutated[at] = next(256) as u8,
                    1 => mutated[at] ^= 1 << next(8),
                    2 => mutated.truncate(at.max(1)),
                    _ => drop(mutated.splice(at..at, vec![next(256) as u8; 1 + next(20)])),
                }
            }
            let at_most = AtMost::Any;
            let options = small_chunks(1 + next(3000)).on_corrupt(OnCorrupt::Skip { at_most });
            let mut all = options.records(memory(mutated.clone()));
            let mut found = 0;
            for record in all.by_ref() {
                match record {
                    Ok(record) => {
                        found += 1;
                        assert!(
                            records.iter().any(|r| *r == record.data),
                            "{compression:?} {round}"
                        );
                    }
                    Err(error) => assert!(
                        matches!(
                            error.kind(),
                            ErrorKind::Malformed { .. } | ErrorKind::CorruptRecord { .. }
                        ),
                        "{error}"
                    ),
                }
            }
            assert!(found <= records.len(), "{compression:?} {round}");
            let strict = small_chunks(4096).records(memory(mutated));
            let sound = strict.take_while(Result::is_ok).count();
            assert!(sound <= found, "{compression:?} {round}");
        }
    }
}

/// Bit by bit, apart from the crate's.
fn masked(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}
