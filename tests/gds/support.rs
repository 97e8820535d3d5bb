//! What the tests of cuFile share.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use feedwater::cuda::Device;
use feedwater::gds::{Gds, GdsMode, GdsOptions};
use feedwater::{
    Batch, Block, BlockMut, Failed, OpenOptions, Opened, Reader, Staged, StagingOptions,
};
use software_cuda_preload::cufile::{Counts, Cufile};
use software_cuda_preload::{Device as On, Session};

/// Both ways in which the device does what is queued: at once, and when somebody waits for it.
pub(crate) const STREAMS: [&str; 2] = ["eager", "lazy"];

/// Long enough for any machine; reached only when a test fails.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Bytes that differ at every offset that tests could mix up.
pub(crate) fn data(len: usize) -> Bytes {
    (0..len)
        .map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8)
        .collect::<Vec<_>>()
        .into()
}

/// A session with streams of this kind.
pub(crate) fn session(streams: &str) -> Session {
    let mut session = Session::begin();
    session.set("STREAMS", streams);
    session
}

/// A folder where files can be read past the page cache, which the system's folder for such files need not be.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Options for a kernel with modules, whose list is made up in `folder`.
pub(crate) fn options(folder: &Path) -> GdsOptions {
    let list = folder.join("modules");
    std::fs::write(&list, "nvidia_fs 1 0 - Live\n").unwrap();
    GdsOptions::default().kernel_modules(list)
}

/// A file with content that the tests know, and a device.
pub(crate) struct Setting {
    pub(crate) gpu: Arc<Device>,
    pub(crate) bytes: Bytes,
    pub(crate) path: PathBuf,
    _folder: tempfile::TempDir,
}

pub(crate) type Reading = Gds<Staged<Opened>>;

impl Setting {
    pub(crate) fn new(len: usize) -> Self {
        let folder = folder();
        let path = folder.path().join("file");
        let bytes = data(len);
        std::fs::write(&path, &bytes).unwrap();
        Setting {
            gpu: Device::open(0).unwrap(),
            bytes,
            path,
            _folder: folder,
        }
    }

    /// Options for a machine whose kernel has modules, as those with a GPU have.
    pub(crate) fn options(&self, mode: GdsMode) -> GdsOptions {
        options(self.path.parent().unwrap()).mode(mode)
    }

    /// The file, by cuFile where that works.
    pub(crate) fn reader(&self) -> Reading {
        self.open(self.options(GdsMode::Auto)).unwrap()
    }

    /// The file, by cuFile or not at all.
    pub(crate) fn required(&self) -> Reading {
        self.open(self.options(GdsMode::Require)).unwrap()
    }

    pub(crate) fn open(&self, options: GdsOptions) -> feedwater::Result<Reading> {
        Gds::new(staged(&self.path, &self.gpu), &self.gpu, options)
    }

    /// What a block has, which must be the device's.
    pub(crate) fn content(&self, block: &Block) -> Vec<u8> {
        self.gpu
            .to_host(&block.clone().into_device().unwrap())
            .unwrap()
    }

    pub(crate) fn wanted(&self, range: &Range<u64>) -> &[u8] {
        &self.bytes[range.start as usize..range.end as usize]
    }

    /// Reads ranges into memory of the engine's choice, and compares them.
    pub(crate) fn check(&self, reader: &dyn Reader, ranges: &[Range<u64>]) {
        let blocks = reader.submit(self.any(ranges)).wait().unwrap();
        for (block, range) in blocks.iter().zip(ranges) {
            assert!(self.content(block) == self.wanted(range), "{range:?}");
        }
    }

    pub(crate) fn any(&self, ranges: &[Range<u64>]) -> Batch {
        let add = |batch: Batch, range: &Range<u64>| batch.any_at(range.clone(), self.gpu.place());
        ranges.iter().fold(Batch::new(), add)
    }

    /// An unfilled block of the device.
    pub(crate) fn block(&self, len: usize) -> BlockMut {
        self.gpu.allocate(len).unwrap()
    }
}

/// A file behind a reader that delivers to the device by way of the host, in small pieces.
pub(crate) fn staged(path: &Path, gpu: &Arc<Device>) -> Arc<Staged<Opened>> {
    let options = StagingOptions::default().block(64 << 10).depth(3);
    let below = OpenOptions::new().open(path).unwrap();
    Arc::new(Staged::new(below, gpu.clone(), options))
}

/// The only outcome of a batch, which must have failed.
pub(crate) fn failure(reader: &dyn Reader, batch: Batch) -> Failed {
    let mut outcomes: Vec<_> = reader.submit(batch).into_iter().collect();
    assert_eq!(outcomes.len(), 1);
    outcomes.pop().unwrap().1.unwrap_err()
}

/// Waits until the counts of cuFile are as wanted; fails if they do not come to it.
pub(crate) fn until(cufile: &Cufile<'_>, wanted: impl Fn(&Counts) -> bool) {
    let deadline = Instant::now() + SOON;
    while !wanted(&cufile.counts()) {
        assert!(Instant::now() < deadline, "{:?}", cufile.counts());
        std::thread::yield_now();
    }
}

/// Waits for threads that end by themselves, until nothing is in use any more; fails if something stays.
pub(crate) fn nothing_left(session: &Session, cufile: &Cufile<'_>) {
    if session.device() == On::Real {
        return;
    }
    let deadline = Instant::now() + SOON;
    while session.counts().leaks().is_some() || cufile.counts().leaks().is_some() {
        let left = (session.counts().leaks(), cufile.counts().leaks());
        assert!(Instant::now() < deadline, "left: {left:?}");
        std::thread::yield_now();
    }
}
