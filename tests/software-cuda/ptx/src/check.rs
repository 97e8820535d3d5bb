//! What is found wrong with a kernel, and the memory of accesses that finds it.
//!
//! Two accesses to a byte are a race if one of them writes, different threads do them, they are not both strong (atomic,
//! volatile), and nothing orders them. A block's barrier orders all its threads; `bar.warp.sync` orders the lanes it
//! names, followed exactly by a clock for each pair of lanes; shuffles and votes order nothing, and neither does
//! anything between two blocks of a launch. Of the reads since the last write, two threads are remembered.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use crate::ir::{Order, Space};

/// Which of the checks that cost time are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Unordered accesses to shared and global memory, and `ld.global.nc` of what the launch writes.
    pub races: bool,
    /// Reads of bytes that nobody has written.
    pub unwritten: bool,
}

impl Checks {
    /// All of them.
    pub const ALL: Self = Self {
        races: true,
        unwritten: true,
    };
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// Two accesses that nothing orders, one of them a write.
    Race,
    /// `ld.global.nc` of memory that the same launch writes.
    NonCoherentRead,
    /// An access to memory that is not there.
    OutOfBounds,
    /// An access whose address is no multiple of its length.
    Misaligned,
    /// A read of bytes that nobody has written.
    Unwritten,
    /// A block's barrier that some of its threads wait at elsewhere, or never reach.
    DivergentBarrier,
    /// A warp's instruction that some of the lanes that it names never reach.
    DivergentLanes,
    /// A value from a lane that does not take part, or a mask with lanes that have ended.
    AbsentLane,
    /// `trap`, or a call that goes too deep.
    Trap,
    /// More steps than any kernel should need.
    Endless,
}

impl FindingKind {
    /// Whether the device stops the kernel there.
    pub fn is_fault(self) -> bool {
        matches!(
            self,
            Self::OutOfBounds
                | Self::Misaligned
                | Self::DivergentLanes
                | Self::Trap
                | Self::Endless
        )
    }
}

/// A thread of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its block.
    pub block: [u32; 3],
    /// The thread in the block.
    pub thread: [u32; 3],
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {:?} of block {:?}", self.thread, self.block)
    }
}

/// Something wrong with a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub kind: FindingKind,
    /// In which kernel.
    pub kernel: String,
    /// Line of the PTX text.
    pub line: u32,
    /// File and line of the source, where the text says.
    pub source: Option<(String, u32)>,
    /// Which thread.
    pub place: Place,
    /// More about it, in words.
    pub detail: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} in {}, PTX line {}",
            self.kind, self.kernel, self.line
        )?;
        if let Some((file, line)) = &self.source {
            write!(f, " ({file}:{line})")?;
        }
        write!(f, ", {}: {}", self.place, self.detail)
    }
}

/// Findings of one launch: each kind once for a line, and not very many.
#[derive(Default)]
pub(crate) struct Findings {
    seen: HashSet<(FindingKind, u32)>,
    pub(crate) list: Vec<Finding>,
}

impl Findings {
    /// Whether one like this is new.
    pub(crate) fn is_new(&mut self, kind: FindingKind, line: u32) -> bool {
        self.list.len() < 64 && self.seen.insert((kind, line))
    }
}

/// Who accesses, when, from where.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Access {
    /// Number of the block, from 1: zero is nobody.
    pub(crate) block: u64,
    pub(crate) thread: u32,
    /// How many barriers of the block came before.
    pub(crate) epoch: u32,
    /// How often the lane has met others of its warp.
    pub(crate) clock: u32,
    pub(crate) strong: bool,
    pub(crate) line: u32,
}

/// An access with what its lane knows of the clocks of its warp.
pub(crate) struct Now<'a> {
    pub(crate) access: Access,
    pub(crate) known: &'a [u32; 32],
    pub(crate) order: Order,
}

impl Now<'_> {
    fn comes_after(&self, before: &Access) -> bool {
        let now = &self.access;
        if before.block == 0 {
            return true;
        }
        if before.block != now.block {
            return false;
        }
        let same_warp = before.thread / 32 == now.thread / 32;
        before.thread == now.thread
            || before.epoch < now.epoch
            || same_warp && self.known[before.thread as usize % 32] >= before.clock
    }

    fn races_with(&self, before: &Access) -> bool {
        !(self.comes_after(before) || self.access.strong && before.strong)
    }
}

#[derive(Clone, Copy, Default)]
struct Cell {
    write: Access,
    reads: [Access; 2],
    non_coherent: Access,
}

/// What an access collides with.
pub(crate) struct Clash {
    pub(crate) kind: FindingKind,
    pub(crate) before: Access,
    pub(crate) before_wrote: bool,
}

impl Cell {
    fn read(&mut self, now: &Now<'_>) -> Option<Clash> {
        let clash = |kind| {
            Some(Clash {
                kind,
                before: self.write,
                before_wrote: true,
            })
        };
        if now.order == Order::NonCoherent {
            self.non_coherent = now.access;
            if self.write.block != 0 {
                return clash(FindingKind::NonCoherentRead);
            }
        }
        if now.races_with(&self.write) {
            return clash(FindingKind::Race);
        }
        // Into the place of a read that this one comes after, else into the second.
        let place = usize::from(!now.comes_after(&self.reads[0]));
        self.reads[place] = now.access;
        None
    }

    fn write(&mut self, now: &Now<'_>) -> Option<Clash> {
        let before = [self.write, self.reads[0], self.reads[1]]
            .into_iter()
            .zip([true, false, false])
            .find(|(before, _)| now.races_with(before));
        let non_coherent = self.non_coherent;
        *self = Self {
            write: now.access,
            non_coherent,
            ..Self::default()
        };
        if non_coherent.block != 0 {
            return Some(Clash {
                kind: FindingKind::NonCoherentRead,
                before: non_coherent,
                before_wrote: false,
            });
        }
        before.map(|(before, before_wrote)| Clash {
            kind: FindingKind::Race,
            before,
            before_wrote,
        })
    }
}

const PAGE: u64 = 256;

/// The accesses to a memory so far, for each byte.
#[derive(Default)]
pub(crate) struct Shadow {
    pages: HashMap<u64, Box<[Cell; PAGE as usize]>, BuildHasherDefault<Mixed>>,
}

/// A hash of numbers that nobody chooses to collide.
#[derive(Default)]
pub(crate) struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Shadow {
    /// Notes an access, and gives what it collides with.
    pub(crate) fn note(
        &mut self,
        address: u64,
        len: usize,
        write: bool,
        now: &Now<'_>,
    ) -> Option<Clash> {
        let mut clash = None;
        let mut rest = address..address + len as u64;
        while !rest.is_empty() {
            let page = self
                .pages
                .entry(rest.start / PAGE)
                .or_insert_with(empty_page);
            let start = (rest.start % PAGE) as usize;
            let end = (PAGE as usize).min(start + (rest.end - rest.start) as usize);
            for cell in &mut page[start..end] {
                let found = if write {
                    cell.write(now)
                } else {
                    cell.read(now)
                };
                clash = clash.or(found);
            }
            rest.start += (end - start) as u64;
        }
        clash
    }
}

/// Out of line, as it goes over the stack.
#[cold]
#[inline(never)]
fn empty_page() -> Box<[Cell; PAGE as usize]> {
    Box::new([Cell::default(); PAGE as usize])
}

/// Name of a kind of memory, for messages.
pub(crate) fn name(space: Space) -> &'static str {
    match space {
        Space::Generic | Space::Global => "global",
        Space::Constant => "constant",
        Space::Shared => "shared",
        Space::Local => "local",
        Space::Parameter => "parameter",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(block: u64, thread: u32, epoch: u32, clock: u32, strong: bool) -> Access {
        Access {
            block,
            thread,
            epoch,
            clock,
            strong,
            line: 1,
        }
    }

    fn now(access: Access, known: &[u32; 32]) -> Now<'_> {
        Now {
            access,
            known,
            order: Order::Weak,
        }
    }

    #[test]
    fn what_orders_two_accesses() {
        let nothing = [0; 32];
        let mut met = [0; 32];
        met[3] = 1;
        let first = access(1, 3, 0, 1, false);
        let race = |second: Access, known: &[u32; 32]| {
            let mut shadow = Shadow::default();
            assert!(shadow.note(8, 4, true, &now(first, &nothing)).is_none());
            shadow.note(11, 1, false, &now(second, known)).is_some()
        };
        assert!(race(access(1, 4, 0, 1, false), &nothing));
        assert!(!race(access(1, 4, 0, 1, false), &met), "the lanes have met");
        assert!(
            !race(access(1, 4, 1, 1, false), &nothing),
            "a barrier was between"
        );
        assert!(
            !race(access(1, 3, 0, 1, false), &nothing),
            "the same thread"
        );
        assert!(race(access(1, 36, 0, 1, false), &met), "another warp");
        assert!(race(access(2, 3, 9, 1, false), &met), "another block");
    }

    #[test]
    fn strong_accesses_meet_only_their_kind() {
        let nothing = [0; 32];
        let mut shadow = Shadow::default();
        assert!(
            shadow
                .note(0, 4, true, &now(access(1, 0, 0, 1, true), &nothing))
                .is_none()
        );
        assert!(
            shadow
                .note(0, 4, true, &now(access(2, 0, 0, 1, true), &nothing))
                .is_none()
        );
        assert!(
            shadow
                .note(0, 4, false, &now(access(3, 0, 0, 1, false), &nothing))
                .is_some()
        );
    }

    #[test]
    fn a_write_after_the_reads_of_others() {
        let nothing = [0; 32];
        let mut shadow = Shadow::default();
        for thread in 0..3 {
            assert!(
                shadow
                    .note(0, 4, false, &now(access(1, thread, 0, 1, false), &nothing))
                    .is_none()
            );
        }
        assert_eq!(
            shadow
                .note(0, 4, true, &now(access(1, 0, 0, 1, false), &nothing))
                .unwrap()
                .kind,
            FindingKind::Race
        );
    }

    #[test]
    fn the_cache_that_does_not_see_writes() {
        let nothing = [0; 32];
        let read = Now {
            access: access(1, 0, 0, 1, false),
            known: &nothing,
            order: Order::NonCoherent,
        };
        let mut shadow = Shadow::default();
        assert!(shadow.note(0, 4, false, &read).is_none());
        let later = now(access(1, 0, 5, 1, false), &nothing);
        assert_eq!(
            shadow.note(0, 4, true, &later).unwrap().kind,
            FindingKind::NonCoherentRead
        );
    }
}
