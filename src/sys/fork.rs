//! Noticing a fork: which process, in a line of forks, something was made in.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The generation of the process that made a thing. After a fork the child has another one, so that what it
/// inherited (locks that another thread held, queues of threads that do not exist here) is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

/// Counts generations; inherited by a child, so a child's number is always new in its line.
static LAST: AtomicU64 = AtomicU64::new(1);

enum Mark {
    /// A word in a page that the kernel hands to a child as zeroes (`MADV_WIPEONFORK`, Linux 4.14).
    Wiped(&'static AtomicU64),
    /// No such page here: the process id is asked for each time.
    ProcessId,
}

fn mark() -> &'static Mark {
    static MARK: OnceLock<Mark> = OnceLock::new();
    MARK.get_or_init(|| match super::word_wiped_on_fork() {
        Some(word) => {
            word.store(LAST.load(Ordering::Relaxed), Ordering::Relaxed);
            Mark::Wiped(word)
        }
        None => Mark::ProcessId,
    })
}

impl Generation {
    /// That of this process. Costs a load where the kernel wipes pages on fork, else a `getpid`.
    pub(crate) fn current() -> Self {
        match mark() {
            Mark::Wiped(word) => match word.load(Ordering::Relaxed) {
                0 => {
                    let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                    // Another thread of this child may have come first: its number stays.
                    match word.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) => Generation(new),
                        Err(theirs) => Generation(theirs),
                    }
                }
                number => Generation(number),
            },
            Mark::ProcessId => Generation(u64::from(std::process::id())),
        }
    }

    /// Whether this is still the process that the value was made in.
    pub(crate) fn is_current(self) -> bool {
        self == Generation::current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_another_generation_and_the_parent_keeps_its_own() {
        let mine = Generation::current();
        // SAFETY: the child only loads and stores words and leaves through `_exit`.
        let status = unsafe {
            match libc::fork() {
                0 => {
                    let new = Generation::current();
                    let ok = new != mine && new == Generation::current() && !mine.is_current();
                    libc::_exit(if ok { 0 } else { 1 })
                }
                child => {
                    let mut status = -1;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    status
                }
            }
        };
        assert_eq!(status, 0);
        assert!(mine.is_current());
    }
}
