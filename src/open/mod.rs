//! Opening a source: which engines can serve it, which one does, and why.

mod engine;
mod opened;
mod opening;
mod options;
mod report;

pub use engine::{Engine, EngineOptions};
pub use opened::Opened;
pub use opening::Opening;
pub use options::{OpenOptions, open, open_async};
pub use report::{Candidate, Report, Verdict};
