//! A warp: lanes in groups, and the calls that they are in.

use crate::ir::{Function, Register};
use crate::schedule::{Random, Schedule};

/// A value for each lane.
pub(crate) type Lanes = [u64; 32];

/// What a group waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// At a barrier of the block.
    Barrier,
    /// At an instruction of the warp, for these lanes.
    Lanes(u32),
}

/// Lanes that are at the same instruction in the same call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) lanes: u32,
    /// Next instruction.
    pub(crate) at: usize,
    pub(crate) frame: usize,
    pub(crate) state: State,
}

/// A call: registers and parameters of the lanes that are in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) function: usize,
    pub(crate) registers: Vec<Lanes>,
    pub(crate) predicates: Vec<u32>,
    pub(crate) carry: u32,
    /// Parameters of this call and of those that it makes; all bytes of one lane together.
    pub(crate) parameters: Vec<u8>,
    pub(crate) frame_bytes: usize,
    /// Where its local variables begin in each lane's local memory.
    pub(crate) local: usize,
    pub(crate) caller: Option<usize>,
    /// Where the caller goes on.
    pub(crate) back: usize,
    pub(crate) depth: u32,
    /// Lanes that are in this call or in one that it made.
    pub(crate) live: u32,
}

/// Local memory of one lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Local {
    pub(crate) bytes: Vec<u8>,
    pub(crate) written: Vec<bool>,
}

pub(crate) struct Warp {
    /// Number in the block.
    pub(crate) number: u32,
    /// Lanes that there are.
    pub(crate) all: u32,
    pub(crate) exited: u32,
    pub(crate) groups: Vec<Group>,
    frames: Vec<Frame>,
    free: Vec<usize>,
    pub(crate) local: Vec<Local>,
    /// `clocks[a][b]`: up to which of its meetings lane `a` knows what lane `b` did.
    pub(crate) clocks: [[u32; 32]; 32],
    /// A lane of the group that ran last.
    favoured: u32,
    /// For how many steps it has, while others could.
    streak: u64,
}

/// After so many steps of one group while others are ready, another one runs: it may be what the first waits for.
const LONGEST_STREAK: u64 = 1_000;

impl Warp {
    pub(crate) fn new(
        number: u32,
        all: u32,
        function: usize,
        kernel: &Function,
        schedule: Schedule,
    ) -> Self {
        let frame = Frame::new(function, kernel, None, 0, 0, 0, all);
        let group = |lanes| Group {
            lanes,
            at: kernel.start,
            frame: 0,
            state: State::Ready,
        };
        let groups = if schedule.joins() {
            vec![group(all)]
        } else {
            lanes(all, schedule.last_lane_first())
                .map(|lane| group(1 << lane))
                .collect()
        };
        let local = Local {
            bytes: vec![0xa5; kernel.local_bytes],
            written: vec![false; kernel.local_bytes],
        };
        let mut clocks = [[0; 32]; 32];
        (0..32).for_each(|lane| clocks[lane][lane] = 1);
        Self {
            number,
            all,
            exited: 0,
            groups,
            frames: vec![frame],
            free: Vec::new(),
            local: vec![local; 32],
            clocks,
            favoured: 0,
            streak: 0,
        }
    }

    pub(crate) fn frame(&self, index: usize) -> &Frame {
        &self.frames[index]
    }

    pub(crate) fn frame_mut(&mut self, index: usize) -> &mut Frame {
        &mut self.frames[index]
    }

    /// Lanes that have not ended.
    pub(crate) fn alive(&self) -> u32 {
        self.all & !self.exited
    }

    pub(crate) fn has_ready(&self) -> bool {
        self.groups.iter().any(|group| group.state == State::Ready)
    }

    /// The group that runs next.
    pub(crate) fn choose(&mut self, schedule: Schedule, random: &mut Random) -> Option<usize> {
        if let [group] = self.groups.as_slice() {
            return (group.state == State::Ready).then_some(0);
        }
        // Each group has a lane at least.
        let (mut ready, mut count) = ([0; 32], 0);
        for (index, group) in self.groups.iter().enumerate() {
            if group.state == State::Ready {
                ready[count] = index;
                count += 1;
            }
        }
        let ready = &ready[..count];
        let favoured = ready
            .iter()
            .copied()
            .find(|index| self.groups[*index].lanes >> self.favoured & 1 == 1);
        let tired = self.streak > LONGEST_STREAK && ready.len() > 1;
        let mut chosen = match (schedule, favoured) {
            _ if tired => {
                self.streak = 0;
                let others: Vec<usize> = ready
                    .iter()
                    .copied()
                    .filter(|index| Some(*index) != favoured)
                    .collect();
                others
                    .get(random.below(others.len().max(1) as u64) as usize)
                    .copied()?
            }
            (Schedule::Shuffled(_), _) if !ready.is_empty() && random.below(4) == 0 => {
                ready[random.below(ready.len() as u64) as usize]
            }
            (Schedule::Shuffled(_) | Schedule::Apart, Some(favoured)) => favoured,
            (Schedule::Shuffled(_) | Schedule::Apart, None) => *ready.first()?,
            // A call ends before its caller goes on, and what is further up runs first: so groups meet again where the
            // branches join.
            (Schedule::InOrder | Schedule::Reversed, _) => {
                let order = |index: &usize| {
                    let group = &self.groups[*index];
                    (std::cmp::Reverse(self.frames[group.frame].depth), group.at)
                };
                ready.iter().copied().min_by_key(order)?
            }
        };
        let lane = self.groups[chosen].lanes.trailing_zeros();
        self.streak = if Some(chosen) == favoured {
            self.streak + 1
        } else {
            0
        };
        self.favoured = lane;
        if schedule.joins() {
            for other in ready.iter().copied().rev() {
                if other != chosen
                    && self.groups[other].at == self.groups[chosen].at
                    && self.join(chosen, other)
                {
                    chosen = self.position(lane);
                }
            }
        }
        Some(chosen)
    }

    /// The group that a lane is in; it has not ended.
    fn position(&self, lane: u32) -> usize {
        self.groups
            .iter()
            .position(|group| group.lanes >> lane & 1 == 1)
            .unwrap_or(0)
    }

    /// Leaves only `lanes` in the group; the others go on at `at`.
    pub(crate) fn split(&mut self, group: usize, lanes: u32, at: usize) {
        let rest = Group {
            lanes: self.groups[group].lanes & !lanes,
            at,
            ..self.groups[group]
        };
        self.groups[group].lanes &= lanes;
        if rest.lanes != 0 {
            self.groups.push(rest);
        }
    }

    /// Adds the second group to the first, if both are in the same calls. The order of groups changes.
    pub(crate) fn join(&mut self, first: usize, second: usize) -> bool {
        let (into, from) = (self.groups[first], self.groups[second]);
        if !self.same_calls(into.frame, from.frame) {
            return false;
        }
        self.merge(into.frame, from.frame, from.lanes);
        self.groups[first].lanes |= from.lanes;
        self.groups.swap_remove(second);
        true
    }

    fn same_calls(&self, a: usize, b: usize) -> bool {
        let (mut a, mut b) = (a, b);
        while a != b {
            let (x, y) = (&self.frames[a], &self.frames[b]);
            match (x.caller, y.caller) {
                (Some(next_a), Some(next_b)) if x.function == y.function && x.back == y.back => {
                    (a, b) = (next_a, next_b)
                }
                _ => return false,
            }
        }
        true
    }

    /// Moves lanes from one call to another of the same function, and their callers too.
    fn merge(&mut self, into: usize, from: usize, moved: u32) {
        let (mut into, mut from) = (into, from);
        while into != from {
            let source = std::mem::take(&mut self.frames[from]);
            let target = &mut self.frames[into];
            for lane in lanes(moved, false) {
                for (target, source) in target.registers.iter_mut().zip(&source.registers) {
                    target[lane] = source[lane];
                }
                let range = lane * source.frame_bytes..(lane + 1) * source.frame_bytes;
                target.parameters[range.clone()].copy_from_slice(&source.parameters[range]);
            }
            let mix =
                |target: &mut u32, source: u32| *target = (*target & !moved) | (source & moved);
            target
                .predicates
                .iter_mut()
                .zip(&source.predicates)
                .for_each(|(target, source)| mix(target, *source));
            mix(&mut target.carry, source.carry);
            target.live |= moved;
            let next = target.caller.zip(source.caller);
            self.frames[from] = source;
            self.leave(from, moved);
            match next {
                Some((next_into, next_from)) => (into, from) = (next_into, next_from),
                None => return,
            }
        }
    }

    /// Takes lanes out of a call, and forgets the call if they were the last.
    fn leave(&mut self, frame: usize, lanes: u32) {
        self.frames[frame].live &= !lanes;
        if self.frames[frame].live == 0 {
            self.free.push(frame);
        }
    }

    /// Enters a call with all lanes of the group, and gives its number.
    pub(crate) fn enter(
        &mut self,
        group: usize,
        function: usize,
        callee: &Function,
        back: usize,
    ) -> usize {
        let Group {
            lanes: inside,
            frame: caller,
            ..
        } = self.groups[group];
        let depth = self.frames[caller].depth + 1;
        let local = self.local_end(caller);
        let frame = Frame::new(function, callee, Some(caller), back, depth, local, inside);
        let end = local + callee.local_bytes;
        for lane in lanes(inside, false) {
            // What an earlier call left there counts as not written.
            self.local[lane].bytes.resize(end.max(local), 0xa5);
            self.local[lane].written.truncate(local);
            self.local[lane].written.resize(end, false);
        }
        let index = match self.free.pop() {
            Some(index) => {
                self.frames[index] = frame;
                index
            }
            None => {
                self.frames.push(frame);
                self.frames.len() - 1
            }
        };
        self.groups[group].frame = index;
        self.groups[group].at = callee.start;
        index
    }

    fn local_end(&self, caller: usize) -> usize {
        let lane = self.frames[caller].live.trailing_zeros() as usize;
        let end = self.local.get(lane).map_or(0, |local| local.bytes.len());
        self.frames[caller].local.max(end).next_multiple_of(16)
    }

    /// Goes back to the caller with all lanes of the group; false if there is none.
    pub(crate) fn go_back(&mut self, group: usize) -> bool {
        let Group {
            lanes: inside,
            frame,
            ..
        } = self.groups[group];
        let Some(caller) = self.frames[frame].caller else {
            return false;
        };
        for lane in lanes(inside, false) {
            let end = self.frames[frame].local;
            self.local[lane].bytes.truncate(end);
            self.local[lane].written.truncate(end);
        }
        self.groups[group].at = self.frames[frame].back;
        self.groups[group].frame = caller;
        self.leave(frame, inside);
        true
    }

    /// Ends all lanes of the group. Who waits for them looks again.
    pub(crate) fn exit(&mut self, group: usize) {
        let ended = self.groups.swap_remove(group);
        self.exited |= ended.lanes;
        for group in &mut self.groups {
            if matches!(group.state, State::Lanes(_)) {
                group.state = State::Ready;
            }
        }
    }

    /// Lanes that meet know from now on what each of them did.
    pub(crate) fn meet(&mut self, members: u32) {
        let mut known = [0; 32];
        for lane in lanes(members, false) {
            known
                .iter_mut()
                .zip(&self.clocks[lane])
                .for_each(|(known, clock)| *known = (*known).max(*clock));
        }
        for lane in lanes(members, false) {
            self.clocks[lane] = known;
            self.clocks[lane][lane] += 1;
        }
    }
}

impl Frame {
    fn new(
        function: usize,
        callee: &Function,
        caller: Option<usize>,
        back: usize,
        depth: u32,
        local: usize,
        live: u32,
    ) -> Self {
        Self {
            function,
            registers: vec![[0; 32]; callee.registers],
            predicates: vec![0; callee.predicates],
            carry: 0,
            parameters: vec![0; callee.frame_bytes * 32],
            frame_bytes: callee.frame_bytes,
            local,
            caller,
            back,
            depth,
            live,
        }
    }

    /// Sets a register for some lanes, cut to its width.
    pub(crate) fn set(&mut self, register: Register, lanes_set: u32, values: &Lanes) {
        let mask = u64::MAX >> (64 - u32::from(register.bits));
        let target = &mut self.registers[register.index as usize];
        if lanes_set == u32::MAX {
            target
                .iter_mut()
                .zip(values)
                .for_each(|(target, value)| *target = value & mask);
        } else {
            lanes(lanes_set, false).for_each(|lane| target[lane] = values[lane] & mask);
        }
    }

    /// Sets a predicate for some lanes.
    pub(crate) fn set_flag(&mut self, predicate: u32, lanes_set: u32, values: u32) {
        let target = &mut self.predicates[predicate as usize];
        *target = (*target & !lanes_set) | (values & lanes_set);
    }
}

/// The lanes of a mask, one by one.
pub(crate) fn lanes(mask: u32, last_first: bool) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = if last_first {
            31 - rest.leading_zeros()
        } else {
            rest.trailing_zeros()
        };
        rest &= !(1 << lane);
        Some(lane as usize)
    })
}
