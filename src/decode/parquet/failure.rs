//! Failures of the libraries that decode, as errors of this crate.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_schema::ArrowError;
use parquet::errors::ParquetError;

use crate::decode::panics;
use crate::error::{Error, ErrorKind, Result};
use crate::format::parquet::{FORMAT, malformed};

/// Most errors that hide in each other before the innermost is taken as it is.
const DEPTH: usize = 8;

/// An error of the `parquet` crate as one of ours; `part` is the column it is about, where known.
///
/// - An error of a [`Reader`](crate::Reader) that travelled inside comes out as it went in.
/// - What the crate does not read is [`UnsupportedFeature`](ErrorKind::UnsupportedFeature).
/// - All else is said about bytes that were delivered whole, so these are
///   [`Malformed`](ErrorKind::Malformed).
pub(crate) fn from_parquet(error: ParquetError, part: Option<Arc<str>>) -> Error {
    match error {
        ParquetError::External(inner) => from_boxed(inner, part, DEPTH),
        ParquetError::NYI(what) => unsupported(what, part),
        ParquetError::General(what) | ParquetError::EOF(what) | ParquetError::ArrowError(what) => {
            from_text(&what, part)
        }
        ParquetError::NeedMoreData(bytes) => malformed(
            part,
            format!("the footer needs {bytes} bytes more than there are"),
        ),
        ParquetError::NeedMoreDataRange(range) => malformed(
            part,
            format!(
                "the footer points at bytes {}..{}, which are not there",
                range.start, range.end
            ),
        ),
        ParquetError::IndexOutOfBound(index, bound) => {
            malformed(part, format!("there is no column {index} among {bound}"))
        }
        other => malformed(part, other.to_string()),
    }
}

/// An error of the `arrow` crates as one of ours, by the rules of [`from_parquet`].
pub(crate) fn from_arrow(error: ArrowError, part: Option<Arc<str>>) -> Error {
    match error {
        ArrowError::ExternalError(inner) => from_boxed(inner, part, DEPTH),
        ArrowError::IoError(_, inner) => from_io(inner, part, DEPTH),
        ArrowError::NotYetImplemented(what) => unsupported(what, part),
        ArrowError::OffsetOverflowError(_) | ArrowError::DictionaryKeyOverflowError => {
            unsupported(OVERFLOW, part)
        }
        // The record batch reader makes text of every error of the crate's own.
        ArrowError::ParquetError(what) => from_text(&what, part),
        other => from_text(&other.to_string(), part),
    }
}

/// Runs a library that decodes; a panic of it is [`Panicked`](ErrorKind::Panicked) with its message, a failure what
/// [`from_parquet`] makes of it.
///
/// The panic is contained, not silenced: the process's panic hook runs first, and the default one prints a line to the
/// standard error. The hook belongs to the whole process, whose other threads may panic at the same moment, so
/// no library may replace it. In a program built with `panic = "abort"` nothing can be contained.
///
/// What `f` borrows mutably may be half done after a panic: the caller must not use it again.
pub(crate) fn contain<T>(
    part: Option<Arc<str>>,
    f: impl FnOnce() -> parquet::errors::Result<T>,
) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(outcome) => outcome.map_err(|error| from_parquet(error, part)),
        Err(payload) => Err(panicked(payload, part)),
    }
}

/// [`contain`] for calls that fail with an [`ArrowError`].
pub(crate) fn contain_arrow<T>(
    part: Option<Arc<str>>,
    f: impl FnOnce() -> std::result::Result<T, ArrowError>,
) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(outcome) => outcome.map_err(|error| from_arrow(error, part)),
        Err(payload) => Err(panicked(payload, part)),
    }
}

/// Whether the batch was too large for 32-bit offsets or for the keys of its dictionary: a smaller one may do.
pub(crate) fn is_too_large_a_batch(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::UnsupportedFeature { feature, .. } if feature == OVERFLOW)
}

/// Of 32-bit offsets.
const OVERFLOW: &str = "more than 2 GiB of values of one column in a batch";

fn unsupported(feature: impl Into<Cow<'static, str>>, part: Option<Arc<str>>) -> Error {
    Error::new(ErrorKind::UnsupportedFeature {
        format: FORMAT,
        part,
        feature: feature.into(),
    })
}

fn panicked(payload: Box<dyn Any + Send>, part: Option<Arc<str>>) -> Error {
    Error::new(ErrorKind::Panicked {
        library: FORMAT,
        part,
        message: panics::message(payload),
    })
}

fn from_boxed(
    error: Box<dyn StdError + Send + Sync>,
    part: Option<Arc<str>>,
    depth: usize,
) -> Error {
    let error = match error.downcast::<Error>() {
        Ok(ours) => return *ours,
        Err(error) => error,
    };
    if depth == 0 {
        return from_text(&error.to_string(), part);
    }
    let error = match error.downcast::<io::Error>() {
        Ok(error) => return from_io(*error, part, depth - 1),
        Err(error) => error,
    };
    let error = match error.downcast::<ParquetError>() {
        Ok(error) => {
            return match *error {
                ParquetError::External(inner) => from_boxed(inner, part, depth - 1),
                other => from_parquet(other, part),
            };
        }
        Err(error) => error,
    };
    match error.downcast::<ArrowError>() {
        Ok(error) => match *error {
            ArrowError::ExternalError(inner) => from_boxed(inner, part, depth - 1),
            ArrowError::IoError(_, inner) => from_io(inner, part, depth - 1),
            other => from_arrow(other, part),
        },
        Err(error) => from_text(&error.to_string(), part),
    }
}

fn from_io(error: io::Error, part: Option<Arc<str>>, depth: usize) -> Error {
    if error.raw_os_error().is_some() {
        return Error::io("read", error);
    }
    // Decompressors speak of bad bytes through `io::Error` without a number of the system.
    match error.into_inner() {
        Some(inner) => from_boxed(inner, part, depth),
        None => malformed(
            part,
            "the compressed bytes of a page are not what its codec writes",
        ),
    }
}

/// Classifies what the crate tells in words alone.
fn from_text(text: &str, part: Option<Arc<str>>) -> Error {
    // How the crate shows its variants (`Display` of `ParquetError` and `ArrowError`), which nest.
    const SHOWN: [&str; 4] = ["Parquet error: ", "EOF: ", "External: ", "Arrow: "];
    const SHOWN_UNSUPPORTED: [&str; 2] = ["NYI: ", "Not yet implemented: "];
    /// Errors of the crate's general kind that are about what it does not read. `tests/parquet/refusals.rs` provokes them.
    const FEATURES: [&str; 2] = ["not supported", "unsupported encoding"];
    /// The first is provoked by `tests/parquet_edges.rs`, the third by `refusals.rs`, and the fourth and sixth are what
    /// `ArrowError` shows; the others take more than 2 GiB to provoke.
    const OVERFLOWS: [&str; 6] = [
        "index overflow decoding",
        "offset overflow building dictionary",
        "dictionary key overflow",
        "Offset overflow error",
        "would overflow list array",
        "Dictionary key bigger than the key type",
    ];
    let mut what = text;
    for _ in 0..DEPTH {
        if let Some(rest) = SHOWN_UNSUPPORTED
            .iter()
            .find_map(|shown| what.strip_prefix(shown))
        {
            return unsupported(rest.to_owned(), part);
        }
        match SHOWN.iter().find_map(|shown| what.strip_prefix(shown)) {
            Some(rest) => what = rest,
            None => break,
        }
    }
    if OVERFLOWS.iter().any(|overflow| what.contains(overflow)) {
        return unsupported(OVERFLOW, part);
    }
    if FEATURES.iter().any(|feature| what.contains(feature)) {
        return unsupported(what.to_owned(), part);
    }
    malformed(part, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Option<Arc<str>> {
        Some("a.b".into())
    }

    fn ours() -> Error {
        Error::new(ErrorKind::TimedOut).at(5..9)
    }

    #[test]
    fn an_error_of_a_reader_comes_out_as_it_went_in() {
        let io = || io::Error::from(ours());
        let carried = [
            from_parquet(ParquetError::External(Box::new(ours())), part()),
            from_parquet(ParquetError::External(Box::new(io())), part()),
            from_parquet(io().into(), None),
            from_parquet(
                ParquetError::External(Box::new(ParquetError::from(io()))),
                part(),
            ),
            from_parquet(ArrowError::ExternalError(Box::new(ours())).into(), None),
            from_arrow(ArrowError::ExternalError(Box::new(ours())), part()),
            from_arrow(ArrowError::from(io()), part()),
        ];
        for error in carried {
            assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
            assert_eq!((error.offset(), error.length()), (Some(5), Some(4)));
        }
    }

    #[test]
    fn errors_that_hide_in_each_other_without_end_are_told() {
        let mut error = ParquetError::General("inner".into());
        for _ in 0..1000 {
            error = ParquetError::External(Box::new(error));
        }
        let error = from_parquet(error, None);
        assert!(
            matches!(error.kind(), ErrorKind::Malformed { .. }),
            "{error}"
        );
    }

    #[test]
    fn an_error_of_the_system_keeps_its_number() {
        let error = from_parquet(io::Error::from_raw_os_error(5).into(), part());
        let ErrorKind::Io { source, .. } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!(source.raw_os_error(), Some(5));
    }

    #[test]
    fn what_the_crate_does_not_read_is_a_feature() {
        let told = [
            from_parquet(ParquetError::NYI("codec LZO".into()), part()),
            from_arrow(ParquetError::NYI("codec LZO".into()).into(), part()),
            from_arrow(ArrowError::NotYetImplemented("codec LZO".into()), part()),
        ];
        for error in told {
            let ErrorKind::UnsupportedFeature {
                format: FORMAT,
                part: Some(column),
                feature,
            } = error.kind()
            else {
                panic!("{error}");
            };
            assert_eq!((&**column, &**feature), ("a.b", "codec LZO"));
        }
        let general = "Page type INDEX_PAGE is not supported";
        let error = from_parquet(ParquetError::General(general.into()), None);
        assert!(
            matches!(
                error.kind(),
                ErrorKind::UnsupportedFeature { part: None, .. }
            ),
            "{error}"
        );
        assert_eq!(error.io_kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn bad_bytes_are_malformed_and_name_the_column() {
        let utf8 = String::from_utf8(vec![0xff]).unwrap_err().utf8_error();
        let told = [
            from_parquet(ParquetError::General("bad".into()), part()),
            from_parquet(ParquetError::EOF("bad".into()), part()),
            from_parquet(ParquetError::NeedMoreData(9), part()),
            from_parquet(ParquetError::NeedMoreDataRange(1..9), part()),
            from_parquet(ParquetError::IndexOutOfBound(3, 2), part()),
            from_parquet(utf8.into(), part()),
            from_parquet(io::Error::from(io::ErrorKind::InvalidData).into(), part()),
            from_parquet(io::Error::other("corrupt deflate stream").into(), part()),
            from_arrow(ArrowError::InvalidArgumentError("bad".into()), part()),
            from_arrow(ParquetError::EOF("bad".into()).into(), part()),
        ];
        for error in told {
            let ErrorKind::Malformed {
                format: FORMAT,
                part: Some(column),
                what,
            } = error.kind()
            else {
                panic!("{error}");
            };
            assert_eq!(&**column, "a.b");
            assert!(!what.starts_with("EOF") && !what.is_empty(), "{what}");
        }
    }

    #[test]
    fn too_large_a_batch_is_told_apart() {
        let shown = |error: ArrowError| ParquetError::ArrowError(error.to_string());
        for error in [
            from_arrow(ArrowError::OffsetOverflowError(1 << 31), part()),
            from_arrow(ArrowError::DictionaryKeyOverflowError, part()),
            from_parquet(shown(ArrowError::OffsetOverflowError(1 << 31)), None),
            from_parquet(shown(ArrowError::DictionaryKeyOverflowError), None),
            from_parquet(
                ParquetError::General("index overflow decoding byte array".into()),
                None,
            ),
        ] {
            assert!(is_too_large_a_batch(&error), "{error}");
        }
        let other = from_parquet(ParquetError::NYI("codec LZO".into()), None);
        assert!(!is_too_large_a_batch(&other));
    }

    /// Some of the words that [`from_text`] looks for take gigabytes to provoke, so their absence would not be noticed.
    #[test]
    fn the_words_are_those_of_the_version_that_is_used() {
        let lock = include_str!("../../../Cargo.lock");
        assert!(
            lock.contains("name = \"parquet\"\nversion = \"60.1.0\"\n"),
            "another version of the parquet crate: look for OVERFLOWS and FEATURES in its source, and then say here which it is"
        );
    }

    #[test]
    fn panics_are_contained_with_their_message() {
        let thrown: [fn() -> parquet::errors::Result<()>; 3] = [
            || panic!("at {}", 7),
            || panic!("plain"),
            || std::panic::panic_any(7_u8),
        ];
        let said = ["at 7", "plain", "a panic without a message"];
        for (throw, said) in thrown.into_iter().zip(said) {
            let error = contain(part(), throw).unwrap_err();
            let ErrorKind::Panicked {
                library: "parquet",
                part: Some(column),
                message,
            } = error.kind()
            else {
                panic!("{error}");
            };
            assert_eq!((&**column, &**message), ("a.b", said));
        }
        assert_eq!(contain(None, || Ok(7)).unwrap(), 7);
        assert_eq!(contain_arrow(None, || Ok(7)).unwrap(), 7);
        let error = contain_arrow::<()>(None, || panic!("arrow")).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Panicked { .. }),
            "{error}"
        );
    }
}
