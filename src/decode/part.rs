//! Errors that say which part of a file they are about.

use crate::error::{Error, ErrorKind};

/// The error with the column or member that it is about, where its kind has room for one and does not say so yet.
pub(super) fn in_part(error: Error, part: &str) -> Error {
    let mut kind = error.kind().clone();
    match &mut kind {
        ErrorKind::Malformed { part: found, .. }
        | ErrorKind::UnsupportedFeature { part: found, .. }
        | ErrorKind::Panicked { part: found, .. }
            if found.is_none() =>
        {
            *found = Some(part.into());
        }
        _ => return error,
    }
    let mut told = Error::new(kind);
    if let Some(name) = error.name() {
        told = told.named(&name.into());
    }
    if let (Some(offset), Some(length)) = (error.offset(), error.length()) {
        told = told.at(offset..offset.saturating_add(length));
    }
    match error.engine() {
        Some(engine) => told.by(engine),
        None => told,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn malformed(part: Option<&str>) -> Error {
        Error::new(ErrorKind::Malformed {
            format: "npy",
            part: part.map(Into::into),
            what: "bad".into(),
        })
    }

    #[test]
    fn a_part_is_added_where_there_is_none_and_the_rest_stays() {
        let error = malformed(None).named(&"x.npz".into()).at(3..9).by("memory");
        let told = in_part(error, "note");
        assert_eq!(
            told.to_string(),
            "x.npz: offset 3, length 6: malformed npy (note): bad (engine memory)"
        );
        let told = in_part(told, "other");
        assert!(told.to_string().contains("(note)"), "{told}");
        assert_eq!(
            in_part(malformed(None), "a").to_string(),
            "malformed npy (a): bad"
        );
        let other = in_part(Error::new(ErrorKind::TimedOut), "a");
        assert!(matches!(other.kind(), ErrorKind::TimedOut));
    }
}
