//! Skipping aloud what the system does not offer, or failing where it must.

use std::fmt::Display;

/// What a test needs from the system, or `None` after saying aloud that it is skipped and why. If the list
/// `FEEDWATER_REQUIRE` (names with commas between) has `name`, the skip is a failure.
///
/// What the list `FEEDWATER_LEAVE_OUT` has is left out though it is there: for tools that do not see what it does.
pub(crate) fn require<T>(name: &str, found: Result<T, impl Display>) -> Option<T> {
    if listed("FEEDWATER_LEAVE_OUT", name) {
        eprintln!("skipped: {name} is to be left out");
        return None;
    }
    let why = match found {
        Ok(found) => return Some(found),
        Err(why) => why,
    };
    assert!(
        !listed("FEEDWATER_REQUIRE", name),
        "FEEDWATER_REQUIRE has {name}, which is not here: {why}"
    );
    eprintln!("skipped: needs {name}: {why}");
    None
}

fn listed(variable: &str, name: &str) -> bool {
    let list = std::env::var(variable).unwrap_or_default();
    list.split(',').any(|listed| listed.trim() == name)
}
