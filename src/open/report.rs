//! What was chosen, and why.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::error::{Refusal, counted};
use crate::reader::{CounterSnapshot, Route};

/// Which routes a source can be read by, which were used, and why the others were not.
///
/// Prints as a few lines of text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The source.
    pub name: Arc<str>,
    /// Its length in bytes.
    pub len: u64,
    /// Bytes of it in the page cache now. `None`: the system does not tell (Linux before 6.5, or a file that this
    /// process may neither own nor write), or there is no file.
    pub resident: Option<u64>,
    /// Facts that the choice rests on, as name and value, as far as they are known: `on` (the file system), `device`,
    /// `device queue` (requests), `streams` (the rates found), `direct alignment` (bytes), `rings` (how they are set up),
    /// `most in flight by rings` (requests on the device, of all readers), `bytes in page cache`, and for each device that was given `to the
    /// device` (its name, and how many bytes went to it by cuFile and through pinned memory). For people: values may be worded otherwise
    /// in another version.
    pub facts: Vec<(&'static str, String)>,
    /// All routes that there are, in the order in which they are thought of; [`Route::Gds`] if a GPU was given.
    pub candidates: Vec<Candidate>,
    /// What was read so far.
    pub counters: CounterSnapshot,
}

/// One route, and what became of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The route.
    pub route: Route,
    /// What became of it.
    pub verdict: Verdict,
    /// Bytes it delivered.
    pub bytes: u64,
}

/// What became of a route.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// It serves reads of the source.
    Used,
    /// It could, but another is better for what was read.
    NotChosen(Cow<'static, str>),
    /// It cannot be used.
    Refused(Refusal),
}

impl Report {
    /// The route that delivered most bytes.
    pub fn route(&self) -> Option<Route> {
        self.counters.main_route()
    }

    /// The routes that were not used, each with its reason.
    pub fn refused(&self) -> impl Iterator<Item = (Route, String)> + '_ {
        self.candidates
            .iter()
            .filter_map(|candidate| match &candidate.verdict {
                Verdict::Used => None,
                verdict => Some((candidate.route, verdict.to_string())),
            })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Used => f.write_str("used"),
            Verdict::NotChosen(why) => f.write_str(why),
            Verdict::Refused(why) => why.fmt(f),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, counted(self.len, "byte"))?;
        for (name, value) in &self.facts {
            write!(f, ", {name} {value}")?;
        }
        for candidate in &self.candidates {
            write!(f, "\n  {}: ", candidate.route)?;
            match &candidate.verdict {
                Verdict::Used => write!(f, "used, {}", counted(candidate.bytes, "byte"))?,
                verdict => write!(f, "not used: {verdict}")?,
            }
        }
        Ok(())
    }
}
