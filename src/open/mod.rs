//! Opening a source: which engines can serve it, which one does, and why.

mod choice;
mod engine;
mod explain;
mod opened;
mod opening;
mod options;
mod profile;
mod report;
mod routes;

pub use engine::{Engine, EngineOptions, Shutdown};
pub use opened::Opened;
pub use opening::Opening;
pub use options::{OpenOptions, open, open_async};
pub use profile::DeviceProfile;
pub use report::{Candidate, Report, Verdict};
