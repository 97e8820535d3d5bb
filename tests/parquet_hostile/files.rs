//! The damaged files of the corpus.

use bytes::Bytes;

use crate::common::corpus;
use crate::table::{BAD, Expected, FUZZ};
use crate::{Outcome, scanned, through_source};

fn each(folder: &str, table: &[(&str, Expected)]) {
    let Some(folder) = corpus::folder(folder) else {
        return;
    };
    corpus::assert_claimed(&folder, table.iter().map(|(name, _)| *name));
    for (name, expected) in table {
        if *expected == Expected::Aside {
            continue;
        }
        let file = Bytes::from(std::fs::read(folder.join(name)).unwrap());
        for threads in [1, 3] {
            let outcome = scanned(&file, threads);
            let right = match expected {
                Expected::Rows(rows) => outcome == Outcome::Rows(*rows),
                Expected::Malformed => outcome == Outcome::Malformed,
                Expected::MalformedOrPanicked => {
                    matches!(outcome, Outcome::Malformed | Outcome::Panicked)
                }
                Expected::Aside => true,
            };
            assert!(right, "{name}: {outcome:?}, not {expected:?}");
        }
        through_source(&file);
    }
}

#[test]
fn bad_files_are_errors_or_the_right_rows() {
    each("parquet-bad", BAD);
}

#[test]
fn files_of_fuzzers_are_errors() {
    each("parquet-fuzz", FUZZ);
}
