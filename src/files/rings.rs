//! Files that a ring reads, as far as they are known to be on a device of this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::answer::FileContent;
use super::calls::Attempt;
use super::desk::Task;
use super::job::Job;
use super::report::FilesWay;
use crate::buffer::BlockMut;
use crate::error::Result;
use crate::open::{Want, WholeFile};
use crate::sys::FileSystem;
use crate::version::FileVersion;

/// Files that go to a ring together.
pub(super) struct Portion {
    /// The `st_dev` of all of them, as far as their directories tell.
    pub(super) dev: u64,
    pub(super) tasks: Vec<Task>,
}

/// Hands files to the ring of their device.
pub(super) fn send(job: &Arc<Job<FileContent>>, portion: Portion) {
    let paths = portion.tasks.iter().map(|task| task.path.clone()).collect();
    let sent = Arc::new(Sent {
        job: job.clone(),
        files: portion.tasks.into_iter().map(OnItsWay::new).collect(),
    });
    let options = &job.desk.options;
    let engine = &options.engine;
    let want = sent.clone();
    let handed_in = engine.read_by_ring(portion.dev, paths, want, options.check, options.priority);
    if let Err(why) = handed_in {
        let tasks = sent.files.iter().map(|file| file.task.clone());
        job.refused_by_rings(tasks, why);
    }
}

struct Sent {
    job: Arc<Job<FileContent>>,
    files: Vec<OnItsWay>,
}

struct OnItsWay {
    task: Task,
    /// Bytes that it has room for.
    held: AtomicU64,
    /// Bytes that it found no room for; [`ELSEWHERE`] if no ring is to read it.
    wanted: AtomicU64,
}

const ELSEWHERE: u64 = u64::MAX;

impl OnItsWay {
    fn new(task: Task) -> Self {
        OnItsWay {
            task,
            held: AtomicU64::new(0),
            wanted: AtomicU64::new(ELSEWHERE),
        }
    }
}

impl Want for Sent {
    fn is_wanted(&self) -> bool {
        !self.job.desk.cancelled.load(Ordering::Relaxed)
    }

    fn room(&self, index: usize, version: &FileVersion) -> Result<Option<BlockMut>> {
        let Some(file) = self.files.get(index) else {
            return Ok(None);
        };
        let desk = &self.job.desk;
        // A link, or a mount of one file, led out of its directory's file system.
        let on = desk.known_file_system(version.dev);
        if !matches!(on, Some(FileSystem::Local(_) | FileSystem::Memory(_))) {
            return Ok(None);
        }
        let block = desk.room(file.task.turn, version.size)?;
        let cell = match block {
            Some(_) => &file.held,
            None => &file.wanted,
        };
        cell.store(version.size, Ordering::Relaxed);
        Ok(block)
    }

    fn tell(&self, index: usize, outcome: Result<Option<WholeFile>>) {
        let Some(file) = self.files.get(index) else {
            return;
        };
        let attempt = match outcome {
            Ok(Some(WholeFile { version, bytes })) => {
                Attempt::Done(Ok(FileContent { bytes, version }))
            }
            Ok(None) => match file.wanted.load(Ordering::Relaxed) {
                ELSEWHERE => Attempt::NotByRings,
                len => Attempt::NoRoom(len),
            },
            Err(error) => {
                self.job.desk.release(file.held.swap(0, Ordering::Relaxed));
                Attempt::Done(Err(error))
            }
        };
        let told = [(file.task.clone(), attempt)];
        self.job.deliver(told, FilesWay::Rings);
    }
}
