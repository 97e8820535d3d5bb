//! Skipping aloud what the system does not offer, or failing where it must.

use std::fmt::Display;

/// What a test needs from the system, or `None` after saying aloud that it is skipped and why. If the list
/// `FEEDWATER_REQUIRE` (names with commas between) has `name`, the skip is a failure.
pub(crate) fn require<T>(name: &str, found: Result<T, impl Display>) -> Option<T> {
    let why = match found {
        Ok(found) => return Some(found),
        Err(why) => why,
    };
    let required = std::env::var("FEEDWATER_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|r| r.trim() == name),
        "FEEDWATER_REQUIRE has {name}, which is not here: {why}"
    );
    eprintln!("skipped: needs {name}: {why}");
    None
}
