//! Many files at once: their contents, their attributes, and what is below a directory.

mod answer;
mod calls;
mod desk;
mod iter;
mod job;
mod kind;
mod listing;
mod options;
mod paths;
mod ready;
mod report;
mod rings;
mod walk;

pub use answer::{EntryKind, FileAttributes, FileContent, FileResult};
pub use iter::{FileStream, Files};
pub use kind::Answer;
pub use options::{ManyFiles, read_files, stat_files};
pub use report::{FilesReport, FilesWay};
pub use walk::{Entries, Walk, WalkEntry, WalkStream, walk};
