//! The two things that are asked of files, for what does both in the same way.

use std::sync::Arc;

use super::answer::{FileAttributes, FileContent};
use super::calls::{self, Attempt, Patience};
use super::desk::{Desk, Task};
use super::job::Job;
use super::rings::{self, Portion};

/// What can be asked of many files: [`FileContent`] or [`FileAttributes`].
pub trait Answer: Ask {}

impl<T: Ask> Answer for T {}

/// How it is asked. Not for others to implement.
pub trait Ask: Sized + Send + 'static {
    /// Of so many files one is tried without waiting, where several calls more tell whether it is in memory.
    #[doc(hidden)]
    const TRIED: u32;

    /// Most that are begun and not taken, where nothing else is said.
    #[doc(hidden)]
    const WINDOW: usize;

    /// Paths that a thread takes at once, at most: those beside each other.
    #[doc(hidden)]
    const PORTION: usize;

    /// Whether each that is being worked on has a descriptor open.
    #[doc(hidden)]
    const OPENS: bool;

    /// Bytes that it holds.
    #[doc(hidden)]
    fn bytes(&self) -> u64;

    /// Whether rings can do it.
    #[doc(hidden)]
    const RINGS: bool;

    /// Hands some to a ring.
    #[allow(private_interfaces)]
    #[doc(hidden)]
    fn send(job: &Arc<Job<Self>>, portion: Portion);

    /// Finds out where a file lives.
    #[allow(private_interfaces)]
    #[doc(hidden)]
    fn find_out(desk: &Desk, task: &Task) -> Attempt<Self>;

    #[allow(private_interfaces)]
    #[doc(hidden)]
    fn attempt(desk: &Desk, task: &Task, patience: Patience) -> Attempt<Self>;
}

impl Ask for FileContent {
    const TRIED: u32 = 1;
    const RINGS: bool = true;
    /// As many as keep a fast disk busy several times over.
    const WINDOW: usize = 512;
    const PORTION: usize = 8;
    const OPENS: bool = true;

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    #[allow(private_interfaces)]
    fn attempt(desk: &Desk, task: &Task, patience: Patience) -> Attempt<Self> {
        calls::read(desk, task, patience)
    }

    #[allow(private_interfaces)]
    fn send(job: &Arc<Job<Self>>, portion: Portion) {
        rings::send(job, portion);
    }

    #[allow(private_interfaces)]
    fn find_out(desk: &Desk, task: &Task) -> Attempt<Self> {
        calls::find_out(desk, task)
    }
}

impl Ask for FileAttributes {
    const TRIED: u32 = 16;
    const RINGS: bool = false;
    // Names beside each other have inodes in the same blocks of the disk. So each thread gets some blocks for itself, and
    // there are enough for all threads; where they share them, all wait for the same.
    const WINDOW: usize = 4096;
    const PORTION: usize = 64;
    const OPENS: bool = false;

    fn bytes(&self) -> u64 {
        0
    }

    #[allow(private_interfaces)]
    fn attempt(desk: &Desk, task: &Task, patience: Patience) -> Attempt<Self> {
        calls::stat(desk, task, patience)
    }

    #[allow(private_interfaces)]
    fn send(_: &Arc<Job<Self>>, _: Portion) {} // not asked for

    #[allow(private_interfaces)]
    fn find_out(desk: &Desk, task: &Task) -> Attempt<Self> {
        calls::stat(desk, task, Patience::All)
    }
}
