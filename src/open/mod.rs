//! Opening a source: which engines can serve it, which one does, and why.

mod choice;
mod engine;
mod explain;
#[cfg(feature = "gds")]
mod gds;
#[cfg(not(feature = "gds"))]
#[path = "no_gds.rs"]
mod gds;
mod many;
mod opened;
mod opening;
mod options;
mod profile;
mod report;
mod routes;

pub use engine::{Engine, EngineOptions, Shutdown};
pub(crate) use many::{Want, WholeFile, Work, no_rings};
pub use opened::Opened;
pub use opening::Opening;
pub use options::{OpenOptions, open, open_async};
pub use profile::DeviceProfile;
pub use report::{Candidate, Report, Verdict};
