//! A file, and requests for it, for the tests of this engine.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;

use crate::backend::file::OpenFile;
use crate::backend::requests::{
    Access, Batched, Context, DirectFile, Look, Piece, buffered_limits, direct_limits,
};
use crate::backend::workers::Workers;
use crate::buffer::Pool;
use crate::reader::{Batch, Pending, Route, Source, VersionCheck};
use crate::version::Version;

/// Says that a test was skipped for want of `name`, which is a failure if `FEEDWATER_REQUIRE` has it.
pub(super) fn skipped(name: &str, why: impl std::fmt::Display) {
    let required = std::env::var("FEEDWATER_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|required| required == name),
        "FEEDWATER_REQUIRE has {name}, which is not here: {why}"
    );
    eprintln!("skipped: needs {name}: {why}");
}

pub(super) struct Fixture {
    _dir: TempDir,
    file: Arc<OpenFile>,
    content: Vec<u8>,
}

impl Fixture {
    /// A file of so many bytes.
    pub(super) fn new(len: usize) -> Self {
        let content: Vec<u8> = (0..len).map(|i| (i * 31 + i / 251) as u8).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, &content).unwrap();
        Fixture {
            file: Arc::new(OpenFile::open(&path).unwrap()),
            content,
            _dir: dir,
        }
    }

    /// The same with another file, of whose content nothing is known.
    pub(super) fn with_file(self, path: &Path) -> Self {
        Fixture {
            file: Arc::new(OpenFile::open(path).unwrap()),
            ..self
        }
    }

    pub(super) fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }

    pub(super) fn bytes(&self, range: &Range<u64>) -> &[u8] {
        &self.content[range.start as usize..range.end as usize]
    }

    pub(super) fn buffered(&self) -> Context {
        let access = Access::buffered(self.file.clone(), Route::Uring, false);
        self.context(Route::Uring, access, buffered_limits(4))
    }

    /// Past the page cache; `None` where that is not offered.
    pub(super) fn direct(&self, fall_back: bool) -> Option<Context> {
        let direct = match DirectFile::open(&self.file) {
            Ok(direct) => Arc::new(direct),
            Err(why) => {
                skipped("odirect", why);
                return None;
            }
        };
        let limits = direct_limits(4, &direct);
        let access = Access::direct(self.file.clone(), direct, Route::UringDirect, fall_back);
        Some(self.context(Route::UringDirect, access, limits))
    }

    fn context(&self, route: Route, access: Access, limits: crate::reader::Limits) -> Context {
        let version = Version::File(self.file.version());
        let source = Source::new(self.file.name().clone(), route.name(), version, limits);
        let workers = Arc::new(Workers::new(2));
        let pool = Pool::default();
        Context::new(source, access, pool, VersionCheck::Always, workers).apart()
    }

    /// The requests of a batch, cut at multiples of `piece` bytes.
    pub(super) fn batched(context: &Context, batch: Batch, piece: u64) -> (Arc<Batched>, Pending) {
        let (started, options, pending) = batch.start(context.source());
        let mut jobs = Vec::new();
        context.requests(started, &options, Look::Cold, usize::MAX, |made| {
            jobs = made
        });
        (Batched::new(context.clone(), jobs, piece), pending)
    }

    /// All pieces of them.
    pub(super) fn pieces(context: &Context, batch: Batch, piece: u64) -> (Vec<Piece>, Pending) {
        let (work, pending) = Fixture::batched(context, batch, piece);
        let claimed = std::iter::from_fn(|| work.claim());
        (claimed.filter_map(Piece::if_wanted).collect(), pending)
    }
}
