//! Whole files, as an engine reads them for somebody.

use bytes::Bytes;

use crate::buffer::BlockMut;
use crate::error::Result;
use crate::version::FileVersion;

/// What one file held.
#[derive(Clone, Debug)]
pub(crate) struct WholeFile {
    pub(crate) version: FileVersion,
    pub(crate) bytes: Bytes,
}

/// Who wants files, by their positions. Asked and told on the engine's thread: it must not wait.
pub(crate) trait Want: Send + Sync {
    /// Whether somebody still waits: nothing more is begun otherwise.
    fn is_wanted(&self) -> bool {
        true
    }

    /// Memory for the file, which was found to be so. `Ok(None)`: it is not to be read, and told so.
    fn room(&self, index: usize, version: &FileVersion) -> Result<Option<BlockMut>>;

    /// What became of the file: told once. `Ok(None)`: there was no [`room`](Self::room).
    fn tell(&self, index: usize, outcome: Result<Option<WholeFile>>);
}
