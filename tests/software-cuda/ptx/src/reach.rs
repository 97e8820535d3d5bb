//! Accesses to memory: where they go, whether they may, and what they meet there.

use crate::alu;
use crate::check::{Access, Clash, FindingKind, Now, Place, name};
use crate::convert::sign_extended;
use crate::execute::{Block, Fault, LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW, WINDOWS};
use crate::ir::{Address, FRAME, Instruction, Op, Order, Space};
use crate::launch::SECTOR;
use crate::memory::Memory;
use crate::warp::{Warp, lanes};

/// Parts of a vector, at most.
pub(crate) const MOST_PARTS: usize = 4;

/// An access of one lane.
#[derive(Clone, Copy)]
struct Reach {
    space: Space,
    address: u64,
    len: usize,
    write: bool,
    order: Order,
    strong: bool,
}

impl<'a, M: Memory> Block<'_, 'a, M> {
    /// A load, a store or an atomic operation, lane by lane.
    pub(crate) fn reach_memory(
        &mut self,
        warp: &mut Warp,
        frame: usize,
        active: u32,
        instruction: &'a Instruction,
    ) -> Result<(), Fault> {
        let last_first = self.launch.options.schedule.last_lane_first();
        let place = |block: &Self, warp: &Warp, address: &Address| {
            let offset = address.offset;
            block
                .value(warp, frame, address.base)
                .map(|base| base.wrapping_add_signed(offset))
        };
        match &instruction.op {
            Op::Load {
                space,
                ty,
                order,
                dsts,
                address,
            } => {
                let addresses = place(self, warp, address);
                let mut loaded = [[0; 32]; MOST_PARTS];
                let part = ty.bytes();
                for lane in lanes(active, last_first) {
                    let reach = Reach {
                        len: part * dsts.len(),
                        write: false,
                        order: *order,
                        strong: *order == Order::Strong,
                        ..generic(*space, addresses[lane])
                    };
                    self.check(warp, lane, reach, instruction)?;
                    for (index, loaded) in loaded[..dsts.len()].iter_mut().enumerate() {
                        let value =
                            self.fetch(warp, frame, lane, reach, index * part, part, instruction)?;
                        loaded[lane] = if ty.signed() {
                            sign_extended(*ty, value) as u64
                        } else {
                            value
                        };
                    }
                }
                for (dst, loaded) in dsts.iter().zip(&loaded) {
                    if let Some(dst) = dst {
                        warp.frame_mut(frame).set(*dst, active, loaded);
                    }
                }
            }
            Op::Store {
                space,
                ty,
                order,
                values,
                address,
            } => {
                let addresses = place(self, warp, address);
                let mut stored = [[0; 32]; MOST_PARTS];
                let stored = &mut stored[..values.len()];
                for (stored, value) in stored.iter_mut().zip(values) {
                    *stored = self.value(warp, frame, *value);
                }
                for lane in lanes(active, last_first) {
                    let reach = Reach {
                        len: ty.bytes() * stored.len(),
                        write: true,
                        order: *order,
                        strong: *order == Order::Strong,
                        ..generic(*space, addresses[lane])
                    };
                    self.check(warp, lane, reach, instruction)?;
                    for (index, value) in stored.iter().enumerate() {
                        self.put(
                            warp,
                            frame,
                            lane,
                            reach,
                            index * ty.bytes(),
                            ty.bytes(),
                            value[lane],
                            instruction,
                        )?;
                    }
                }
            }
            Op::Atomic {
                space,
                f,
                ty,
                dst,
                address,
                a,
                b,
            } => {
                let addresses = place(self, warp, address);
                let (a, b) = (self.value(warp, frame, *a), self.value(warp, frame, *b));
                let mut before = [0; 32];
                for lane in lanes(active, last_first) {
                    let reach = Reach {
                        len: ty.bytes(),
                        write: true,
                        order: Order::Strong,
                        strong: true,
                        ..generic(*space, addresses[lane])
                    };
                    self.check(warp, lane, reach, instruction)?;
                    let old = self.fetch(warp, frame, lane, reach, 0, ty.bytes(), instruction)?;
                    before[lane] = old;
                    self.put(
                        warp,
                        frame,
                        lane,
                        reach,
                        0,
                        ty.bytes(),
                        alu::atomic(*f, *ty, old, a[lane], b[lane]),
                        instruction,
                    )?;
                }
                if let Some(dst) = dst {
                    warp.frame_mut(frame).set(*dst, active, &before);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Alignment, and races.
    fn check(
        &mut self,
        warp: &Warp,
        lane: usize,
        reach: Reach,
        instruction: &'a Instruction,
    ) -> Result<(), Fault> {
        let Reach {
            space,
            address,
            len,
            write,
            ..
        } = reach;
        if !address.is_multiple_of(len as u64) {
            let detail = format!("{} bytes of {} memory at {address:#x}", len, name(space));
            return Err(self.fault(FindingKind::Misaligned, instruction, warp, lane, detail));
        }
        let shared = space == Space::Shared;
        if self.launch.options.traffic && matches!(space, Space::Global | Space::Generic) {
            let sectors = if write {
                &mut self.stored
            } else {
                &mut self.loaded
            };
            // No access is longer than a sector, and none lies across two: it is aligned.
            sectors.insert(address / SECTOR);
        }
        if self.launch.options.checks.races
            && (shared || matches!(space, Space::Global | Space::Generic | Space::Constant))
        {
            self.note(warp, lane, reach, instruction);
        }
        Ok(())
    }

    /// Remembers an access, and says so if nothing orders it and one before.
    fn note(&mut self, warp: &Warp, lane: usize, reach: Reach, instruction: &'a Instruction) {
        let Reach {
            space,
            address,
            len,
            write,
            order,
            strong,
        } = reach;
        let shared = space == Space::Shared;
        let access = Access {
            block: self.number,
            thread: warp.number * 32 + lane as u32,
            epoch: self.epoch,
            clock: warp.clocks[lane][lane],
            strong,
            line: instruction.line,
        };
        let now = Now {
            access,
            known: &warp.clocks[lane],
            order,
        };
        let shadow = if shared {
            &mut self.shared_shadow
        } else {
            &mut self.launch.global_shadow
        };
        if let Some(Clash {
            kind,
            before,
            before_wrote,
        }) = shadow.note(address, len, write, &now)
        {
            let [x, y, z] = self.launch.grid.blocks.map(u64::from);
            let number = before.block - 1;
            let other = Place {
                block: [
                    (number % x) as u32,
                    (number / x % y) as u32,
                    (number / x / y % z) as u32,
                ],
                thread: self.thread(before.thread),
            };
            let verb = |write| if write { "wrote" } else { "read" };
            self.find(kind, instruction, warp, lane, || {
                format!("{} {} memory at {address:#x}, which {other} {} in line {}, with nothing that orders the two", verb(write), name(space), verb(before_wrote), before.line)
            });
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn fetch(
        &mut self,
        warp: &Warp,
        frame: usize,
        lane: usize,
        reach: Reach,
        offset: usize,
        len: usize,
        instruction: &'a Instruction,
    ) -> Result<u64, Fault> {
        let address = reach.address.wrapping_add(offset as u64);
        let start = usize::try_from(address).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(len);
        let found = match reach.space {
            Space::Shared => {
                let belongs = self
                    .shared_belongs
                    .get(range.clone())
                    .is_some_and(|bytes| bytes.iter().all(|belongs| *belongs));
                belongs.then(|| {
                    (
                        number(&self.shared[range.clone()]),
                        self.shared_written[range].iter().all(|written| *written),
                    )
                })
            }
            Space::Local => {
                let local = &warp.local[lane];
                local.bytes.get(range.clone()).map(|bytes| {
                    (
                        number(bytes),
                        local.written[range].iter().all(|written| *written),
                    )
                })
            }
            Space::Parameter if address & FRAME != 0 => {
                let start = (address & !FRAME) as usize;
                let frame = warp.frame(frame);
                let own = frame
                    .parameters
                    .get(lane * frame.frame_bytes..(lane + 1) * frame.frame_bytes);
                own.and_then(|bytes| bytes.get(start..start.saturating_add(len)))
                    .map(|bytes| (number(bytes), true))
            }
            Space::Parameter => self
                .launch
                .parameters
                .get(range)
                .map(|bytes| (number(bytes), true)),
            Space::Generic | Space::Global | Space::Constant => self
                .launch
                .memory
                .fetch(address, len)
                .map(|fetched| (fetched.value, fetched.written)),
        };
        let Some((value, written)) = found else {
            return Err(self.outside(warp, lane, reach, address, len, instruction));
        };
        if !written && self.launch.options.checks.unwritten {
            self.find(FindingKind::Unwritten, instruction, warp, lane, || {
                format!(
                    "{len} bytes of {} memory at {address:#x}, which nobody has written",
                    name(reach.space)
                )
            });
        }
        Ok(value)
    }

    #[allow(clippy::too_many_arguments)]
    fn put(
        &mut self,
        warp: &mut Warp,
        frame: usize,
        lane: usize,
        reach: Reach,
        offset: usize,
        len: usize,
        value: u64,
        instruction: &'a Instruction,
    ) -> Result<(), Fault> {
        let address = reach.address.wrapping_add(offset as u64);
        let start = usize::try_from(address).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(len);
        let bytes = value.to_le_bytes();
        let bytes = &bytes[..len];
        let done = match reach.space {
            Space::Shared => {
                let belongs = self
                    .shared_belongs
                    .get(range.clone())
                    .is_some_and(|bytes| bytes.iter().all(|belongs| *belongs));
                if belongs {
                    self.shared[range.clone()].copy_from_slice(bytes);
                    self.shared_written[range].fill(true);
                }
                belongs
            }
            Space::Local => {
                let local = &mut warp.local[lane];
                let place = local.bytes.get_mut(range.clone());
                let inside = place.is_some();
                if let Some(place) = place {
                    place.copy_from_slice(bytes);
                    local.written[range].fill(true);
                }
                inside
            }
            Space::Parameter if address & FRAME != 0 => {
                let start = (address & !FRAME) as usize;
                let frame = warp.frame_mut(frame);
                let own = frame
                    .parameters
                    .get_mut(lane * frame.frame_bytes..(lane + 1) * frame.frame_bytes);
                let place = own.and_then(|own| own.get_mut(start..start.saturating_add(len)));
                let inside = place.is_some();
                if let Some(place) = place {
                    place.copy_from_slice(bytes);
                }
                inside
            }
            Space::Parameter | Space::Constant => false,
            Space::Generic | Space::Global => self.launch.memory.put(address, len, value),
        };
        if done {
            Ok(())
        } else {
            Err(self.outside(warp, lane, reach, address, len, instruction))
        }
    }

    fn outside(
        &mut self,
        warp: &Warp,
        lane: usize,
        reach: Reach,
        address: u64,
        len: usize,
        instruction: &'a Instruction,
    ) -> Fault {
        let limit = match reach.space {
            Space::Shared => format!(", of which the block has {} bytes", self.shared.len()),
            Space::Local => format!(
                ", of which the thread has {} bytes",
                warp.local[lane].bytes.len()
            ),
            _ => String::new(),
        };
        let detail = format!(
            "{} of {len} bytes of {} memory at {address:#x}{limit}",
            if reach.write { "a write" } else { "a read" },
            name(reach.space)
        );
        self.fault(FindingKind::OutOfBounds, instruction, warp, lane, detail)
    }
}

/// The access to an address; a generic one is told apart by its window.
fn generic(space: Space, address: u64) -> Reach {
    let (space, address) = match (space, address & WINDOWS) {
        (Space::Generic, SHARED_WINDOW) => (Space::Shared, address & !WINDOWS),
        (Space::Generic, LOCAL_WINDOW) => (Space::Local, address & !WINDOWS),
        (Space::Generic, PARAMETER_WINDOW) => (Space::Parameter, address & !WINDOWS),
        _ => (space, address),
    };
    Reach {
        space,
        address,
        len: 1,
        write: false,
        order: Order::Weak,
        strong: false,
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}
