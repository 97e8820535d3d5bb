//! What is asked of cuFile, and what came of it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::cuda::Distance;
use crate::error::{Error, ErrorKind, Result, counted};

/// Whether cuFile is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GdsMode {
    /// Not at all: its library is not even looked for.
    Off,
    /// Where it reads straight into the device's memory, or may do so; all else goes the other way.
    #[default]
    Auto,
    /// In any case, also in its compatibility mode, or it is an error.
    Require,
}

/// How reads by cuFile go; the default is right for most.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GdsOptions {
    /// Whether it is used. Default: what the environment variable `FEEDWATER_GDS` says (`off`, `auto`, `require`), or else
    /// [`Auto`](GdsMode::Auto).
    pub mode: Option<GdsMode>,
    /// How long opening cuFile may take, which a process does once. After that it is left alone for good, with the thread that
    /// waits for it. Default 20 s; some seconds are common.
    pub open_limit: Duration,
    /// The kernel's list of modules, without which cuFile is not opened: a release of it looks for it without end. For tests of
    /// stand-ins, on machines without modules.
    #[doc(hidden)]
    pub kernel_modules: PathBuf,
}

impl Default for GdsOptions {
    fn default() -> Self {
        GdsOptions {
            mode: None,
            open_limit: Duration::from_secs(20),
            kernel_modules: "/proc/modules".into(),
        }
    }
}

impl GdsOptions {
    /// Sets the [mode](Self::mode), whatever the environment says.
    #[must_use]
    pub fn mode(mut self, mode: GdsMode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Sets the [limit](Self::open_limit) of opening.
    #[must_use]
    pub fn open_limit(mut self, limit: Duration) -> Self {
        self.open_limit = limit;
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub fn kernel_modules(mut self, path: impl Into<PathBuf>) -> Self {
        self.kernel_modules = path.into();
        self
    }

    /// The mode that holds.
    pub(super) fn resolve(&self) -> Result<GdsMode> {
        match (self.mode, std::env::var("FEEDWATER_GDS")) {
            (Some(mode), _) => Ok(mode),
            (None, Ok(text)) => text.parse(),
            (None, Err(std::env::VarError::NotPresent)) => Ok(GdsMode::Auto),
            (None, Err(std::env::VarError::NotUnicode(text))) => text.to_string_lossy().parse(),
        }
    }
}

impl FromStr for GdsMode {
    type Err = Error;

    /// `off`, `auto` or `require`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`].
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(GdsMode::Off),
            "auto" | "" => Ok(GdsMode::Auto),
            "require" => Ok(GdsMode::Require),
            _ => {
                let what = format!("FEEDWATER_GDS is {text:?}; it can be off, auto or require");
                Err(Error::new(ErrorKind::InvalidOption { what: what.into() }))
            }
        }
    }
}

/// The way by which cuFile brings the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GdsState {
    /// From the drive into the device's memory: cuFile is not allowed anything else.
    PeerToPeer,
    /// Through the host's memory, by cuFile itself.
    Compatibility,
    /// One of both: the driver allows both and does not tell.
    Unknown,
    /// cuFile is not used.
    Off {
        /// Why not.
        why: Arc<str>,
    },
}

impl fmt::Display for GdsState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GdsState::PeerToPeer => f.write_str("peer-to-peer"),
            GdsState::Compatibility => f.write_str("compatibility mode"),
            GdsState::Unknown => f.write_str("peer-to-peer or compatibility mode"),
            GdsState::Off { why } => write!(f, "off: {why}"),
        }
    }
}

/// What was read by cuFile, and what was not, for one reader.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GdsReport {
    /// The way, for this file.
    pub state: GdsState,
    /// Bytes asked for that cuFile brought.
    pub bytes: u64,
    /// Reads that it brought.
    pub reads: u64,
    /// Reads for the device that went the other way.
    pub elsewhere: u64,
    /// Why the last of them did.
    pub why: Option<Arc<str>>,
    /// From the device to the drives that hold the file.
    pub distance: Distance,
}

impl fmt::Display for GdsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cuFile ({}; drive: {}): {}, {}",
            self.state,
            self.distance,
            counted(self.reads, "read"),
            counted(self.bytes, "byte")
        )?;
        let elsewhere = counted(self.elsewhere, "read");
        match (&self.why, &self.state) {
            (_, _) if self.elsewhere == 0 => Ok(()),
            // Said already.
            (Some(why), GdsState::Off { why: off }) if why == off => {
                write!(f, "; {elsewhere} went another way")
            }
            (Some(why), _) => {
                write!(f, "; {elsewhere} went another way: {why}")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_by_name() {
        for (text, mode) in [
            ("off", GdsMode::Off),
            ("auto", GdsMode::Auto),
            ("", GdsMode::Auto),
            ("require", GdsMode::Require),
        ] {
            assert_eq!(text.parse::<GdsMode>().unwrap(), mode);
        }
        let error = "on".parse::<GdsMode>().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
    }
}
