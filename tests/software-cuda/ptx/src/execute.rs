//! One instruction of one group of lanes.

use crate::alu;
use crate::check::{Finding, FindingKind, Place, Shadow};
use crate::collective::answer;
use crate::ir::{Flag, Instruction, Op, Operand, Space, Special, Type};
use crate::launch::{Launch, Sectors};
use crate::memory::Memory;
use crate::warp::{Group, Lanes, State, Warp, lanes};
use crate::wide;

/// What stops a launch.
pub(crate) type Fault = Box<Finding>;

/// Where shared, local and parameter memory appear among generic addresses: far from any address of the host.
pub(crate) const SHARED_WINDOW: u64 = 1 << 60;
pub(crate) const LOCAL_WINDOW: u64 = 2 << 60;
pub(crate) const PARAMETER_WINDOW: u64 = 4 << 60;
pub(crate) const WINDOWS: u64 = 7 << 60;

/// Calls inside of calls, at most.
const DEEPEST_CALL: u32 = 64;

/// A block while it runs.
pub(crate) struct Block<'l, 'a, M> {
    pub(crate) launch: &'l mut Launch<'a, M>,
    index: [u32; 3],
    /// Number in the grid, from 1.
    pub(crate) number: u64,
    pub(crate) shared: Vec<u8>,
    pub(crate) shared_belongs: Vec<bool>,
    pub(crate) shared_written: Vec<bool>,
    pub(crate) shared_shadow: Shadow,
    /// How many barriers there were.
    pub(crate) epoch: u32,
    /// Sectors of global memory that were loaded, and stored to, where that is counted.
    pub(crate) loaded: Sectors,
    pub(crate) stored: Sectors,
}

impl<'l, 'a, M: Memory> Block<'l, 'a, M> {
    pub(crate) fn new(
        launch: &'l mut Launch<'a, M>,
        index: [u32; 3],
        number: u64,
        shared_belongs: Vec<bool>,
    ) -> Self {
        let len = shared_belongs.len();
        Self {
            launch,
            index,
            number: number + 1,
            shared: vec![0xa5; len],
            shared_belongs,
            shared_written: vec![false; len],
            shared_shadow: Shadow::default(),
            epoch: 0,
            loaded: Sectors::default(),
            stored: Sectors::default(),
        }
    }

    /// Runs a warp for so many steps, or until all its groups wait.
    pub(crate) fn run(&mut self, warp: &mut Warp, burst: u64, last: u64) -> Result<(), Fault> {
        for _ in 0..burst {
            let Some(group) = warp.choose(self.launch.options.schedule, &mut self.launch.random)
            else {
                return self.stuck(warp);
            };
            self.launch.steps += 1;
            if self.launch.steps > last {
                let Group { lanes, at, .. } = warp.groups[group];
                let instruction = &self.launch.module.code[at];
                return Err(self.fault(
                    FindingKind::Endless,
                    instruction,
                    warp,
                    lanes.trailing_zeros() as usize,
                    format!("still here after {} steps", self.launch.options.most_steps),
                ));
            }
            self.step(warp, group)?;
        }
        Ok(())
    }

    /// No group is ready: a fault if one waits for lanes that are elsewhere, as nothing outside of the warp brings them.
    fn stuck(&mut self, warp: &Warp) -> Result<(), Fault> {
        let code = &self.launch.module.code;
        let waiting = warp.groups.iter().filter_map(|group| {
            if let State::Lanes(wanted) = group.state {
                Some((group, wanted))
            } else {
                None
            }
        });
        // A shuffle or vote says more than the lanes that wait behind it.
        let Some((group, wanted)) =
            waiting.min_by_key(|(group, _)| matches!(code[group.at].op, Op::WarpBarrier { .. }))
        else {
            return Ok(());
        };
        let instruction = &self.launch.module.code[group.at];
        let missing = wanted & warp.alive() & !group.lanes;
        let elsewhere: Vec<String> = warp
            .groups
            .iter()
            .filter(|other| other.lanes & missing != 0)
            .map(|other| {
                format!(
                    "{:08x} at line {}",
                    other.lanes & missing,
                    self.launch.module.code[other.at].line
                )
            })
            .collect();
        let detail = format!(
            "lanes {:08x} wait for lanes {missing:08x}, which are elsewhere: {}",
            group.lanes,
            elsewhere.join(", ")
        );
        Err(self.fault(
            FindingKind::DivergentLanes,
            instruction,
            warp,
            group.lanes.trailing_zeros() as usize,
            detail,
        ))
    }

    fn step(&mut self, warp: &mut Warp, group: usize) -> Result<(), Fault> {
        let Group {
            lanes: inside,
            at,
            frame,
            ..
        } = warp.groups[group];
        let instruction = &self.launch.module.code[at];
        let active = instruction
            .guard
            .map_or(inside, |guard| inside & flag(warp, frame, guard));
        if active == 0 {
            warp.groups[group].at = at + 1;
            return Ok(());
        }
        match &instruction.op {
            Op::Branch { .. }
            | Op::BranchTable { .. }
            | Op::Call { .. }
            | Op::Return
            | Op::Exit => {
                warp.split(group, active, at + 1);
                return self.go(warp, group, instruction);
            }
            Op::Barrier { .. } => {
                warp.split(group, active, at + 1);
                warp.groups[group].state = State::Barrier;
                return Ok(());
            }
            Op::WarpBarrier { .. }
            | Op::Shuffle { .. }
            | Op::Vote { .. }
            | Op::MatchAny { .. }
            | Op::MatchAll { .. }
            | Op::Reduce { .. }
            | Op::MultiplyBytes { .. } => {
                warp.split(group, active, at + 1);
                return self.together(warp, group, instruction);
            }
            Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } => {
                self.reach_memory(warp, frame, active, instruction)?
            }
            Op::Trap => {
                return Err(self.fault(
                    FindingKind::Trap,
                    instruction,
                    warp,
                    active.trailing_zeros() as usize,
                    "trap".into(),
                ));
            }
            _ => self.calculate(warp, frame, active, &instruction.op),
        }
        warp.groups[group].at = at + 1;
        Ok(())
    }

    /// What leads elsewhere, for all lanes of the group.
    fn go(
        &mut self,
        warp: &mut Warp,
        group: usize,
        instruction: &'a Instruction,
    ) -> Result<(), Fault> {
        let Group {
            lanes: inside,
            at,
            frame,
            ..
        } = warp.groups[group];
        let first = inside.trailing_zeros() as usize;
        match &instruction.op {
            Op::Branch { target } => warp.groups[group].at = *target,
            Op::BranchTable { index, targets } => {
                let choice = self.value(warp, frame, *index);
                let same = mask(inside, |lane| choice[lane] as u32 == choice[first] as u32);
                // The others stay here, and take their own way later.
                warp.split(group, same, at);
                match targets.get(choice[first] as u32 as usize) {
                    Some(target) => warp.groups[group].at = *target,
                    None => {
                        return Err(self.fault(
                            FindingKind::Trap,
                            instruction,
                            warp,
                            first,
                            format!("{} is not in the table of branches", choice[first] as u32),
                        ));
                    }
                }
            }
            Op::Call {
                function,
                arguments,
                ..
            } => {
                if warp.frame(frame).depth >= DEEPEST_CALL {
                    return Err(self.fault(
                        FindingKind::Trap,
                        instruction,
                        warp,
                        first,
                        format!("calls {DEEPEST_CALL} deep"),
                    ));
                }
                let callee = &self.launch.module.functions[*function];
                let inner = warp.enter(group, *function, callee, at + 1);
                for (ours, theirs) in arguments.iter().zip(&callee.parameters) {
                    copy_parameters(
                        warp,
                        inside,
                        (frame, ours.offset),
                        (inner, theirs.offset),
                        ours.len,
                    );
                }
            }
            Op::Return => {
                let Some(caller) = warp.frame(frame).caller else {
                    warp.exit(group);
                    return Ok(());
                };
                let callee = &self.launch.module.functions[warp.frame(frame).function];
                let back = warp.frame(frame).back;
                if let Op::Call { results, .. } = &self.launch.module.code[back - 1].op {
                    for (ours, theirs) in results.iter().zip(&callee.results) {
                        copy_parameters(
                            warp,
                            inside,
                            (frame, theirs.offset),
                            (caller, ours.offset),
                            ours.len,
                        );
                    }
                }
                warp.go_back(group);
            }
            _ => warp.exit(group),
        }
        Ok(())
    }

    /// What each lane does with its registers alone.
    fn calculate(&mut self, warp: &mut Warp, frame: usize, active: u32, op: &Op) {
        let set =
            |warp: &mut Warp, dst, values: Lanes| warp.frame_mut(frame).set(dst, active, &values);
        match op {
            Op::Move { dst, src } => {
                let values = self.value(warp, frame, *src);
                set(warp, *dst, values);
            }
            Op::Pack { dst, parts } => {
                let width = u32::from(dst.bits) / parts.len() as u32;
                let mut values = [0; 32];
                for (index, part) in parts.iter().enumerate() {
                    let part = self.value(warp, frame, *part);
                    each(active, |lane| {
                        values[lane] |=
                            (part[lane] & (u64::MAX >> (64 - width))) << (width * index as u32)
                    });
                }
                set(warp, *dst, values);
            }
            Op::Unpack { dsts, src } => {
                let whole = self.value(warp, frame, *src);
                for (index, dst) in dsts.iter().enumerate() {
                    if let Some(dst) = dst {
                        set(
                            warp,
                            *dst,
                            whole.map(|value| value >> (u32::from(dst.bits) * index as u32)),
                        );
                    }
                }
            }
            Op::Unary {
                f,
                ty,
                flush,
                dst,
                a,
            } => {
                let a = self.value(warp, frame, *a);
                set(warp, *dst, a.map(|a| alu::unary(*f, *ty, *flush, a)));
            }
            Op::Binary {
                f,
                ty,
                flush,
                saturate,
                dst,
                a,
                b,
            } => {
                let (a, b) = (self.value(warp, frame, *a), self.value(warp, frame, *b));
                set(warp, *dst, wide::binary(*f, *ty, *flush, *saturate, &a, &b));
            }
            Op::Ternary {
                f,
                ty,
                flush,
                saturate,
                dst,
                a,
                b,
                c,
            } => {
                let (a, b, c) = (
                    self.value(warp, frame, *a),
                    self.value(warp, frame, *b),
                    self.value(warp, frame, *c),
                );
                set(
                    warp,
                    *dst,
                    wide::ternary(*f, *ty, *flush, *saturate, [&a, &b, &c]),
                );
            }
            Op::InsertBits {
                ty,
                dst,
                a,
                b,
                position,
                len,
            } => {
                let (a, b) = (self.value(warp, frame, *a), self.value(warp, frame, *b));
                let (position, len) = (
                    self.value(warp, frame, *position),
                    self.value(warp, frame, *len),
                );
                set(
                    warp,
                    *dst,
                    std::array::from_fn(|lane| {
                        alu::insert(*ty, a[lane], b[lane], position[lane], len[lane])
                    }),
                );
            }
            Op::Carry {
                subtract,
                reads,
                writes,
                ty,
                dst,
                a,
                b,
            } => {
                let (a, b) = (self.value(warp, frame, *a), self.value(warp, frame, *b));
                let before = warp.frame(frame).carry;
                let mut carries = 0;
                let mut values = [0; 32];
                each(active, |lane| {
                    let (value, carry) = alu::carry(
                        *subtract,
                        *ty,
                        a[lane],
                        b[lane],
                        *reads && before >> lane & 1 == 1,
                    );
                    values[lane] = value;
                    carries |= u32::from(carry) << lane;
                });
                set(warp, *dst, values);
                if *writes {
                    warp.frame_mut(frame).carry = (before & !active) | carries;
                }
            }
            Op::Convert {
                conversion,
                dst,
                src,
            } => {
                let src = self.value(warp, frame, *src);
                set(warp, *dst, wide::converted(conversion, &src));
            }
            Op::Compare {
                relation,
                ty,
                flush,
                combine,
                dst,
                complement,
                a,
                b,
            } => {
                let (a, b) = (self.value(warp, frame, *a), self.value(warp, frame, *b));
                let holds = wide::compare(*relation, *ty, *flush, &a, &b);
                let combined = |value: u32| {
                    combine.map_or(value, |(f, with)| {
                        alu::logic(f, value, flag(warp, frame, with))
                    })
                };
                let (holds, opposite) = (combined(holds), combined(!holds));
                let frame = warp.frame_mut(frame);
                dst.iter()
                    .for_each(|dst| frame.set_flag(*dst, active, holds));
                complement
                    .iter()
                    .for_each(|dst| frame.set_flag(*dst, active, opposite));
            }
            Op::Set {
                relation,
                ty,
                to,
                dst,
                a,
                b,
            } => {
                let (a, b) = (self.value(warp, frame, *a), self.value(warp, frame, *b));
                let yes = if *to == Type::F32 {
                    1f32.to_bits().into()
                } else {
                    u64::MAX
                };
                set(
                    warp,
                    *dst,
                    std::array::from_fn(|lane| {
                        if alu::compare(*relation, *ty, false, a[lane], b[lane]) {
                            yes
                        } else {
                            0
                        }
                    }),
                );
            }
            Op::Select {
                ty,
                dst,
                a,
                b,
                flag: by,
            } => {
                let (a, b) = (self.value(warp, frame, *a), self.value(warp, frame, *b));
                let by = flag(warp, frame, *by);
                set(
                    warp,
                    *dst,
                    std::array::from_fn(|lane| {
                        (if by >> lane & 1 == 1 {
                            a[lane]
                        } else {
                            b[lane]
                        }) & ty.mask()
                    }),
                );
            }
            Op::Logic { f, dst, a, b } => {
                let value = alu::logic(*f, flag(warp, frame, *a), flag(warp, frame, *b));
                warp.frame_mut(frame).set_flag(*dst, active, value);
            }
            Op::ToGeneric { space, dst, src } => {
                let window = window(*space);
                let src = self.value(warp, frame, *src);
                set(warp, *dst, src.map(|address| address | window));
            }
            Op::FromGeneric { space, dst, src } => {
                let window = window(*space);
                let src = self.value(warp, frame, *src);
                set(warp, *dst, src.map(|address| address & !window));
            }
            Op::IsSpace { space, dst, src } => {
                let window = window(*space);
                let src = self.value(warp, frame, *src);
                warp.frame_mut(frame).set_flag(
                    *dst,
                    active,
                    mask(active, |lane| src[lane] & WINDOWS == window),
                );
            }
            Op::ActiveMask { dst } => set(warp, *dst, [active.into(); 32]),
            // Fences and hints: every access is carried out when its turn comes. The rest is dealt with elsewhere.
            _ => {}
        }
    }

    /// The value of an operand for each lane.
    pub(crate) fn value(&self, warp: &Warp, frame: usize, operand: Operand) -> Lanes {
        match operand {
            Operand::Register(register) => warp.frame(frame).registers[register.index as usize],
            Operand::Constant(bits) => [bits; 32],
            Operand::Global(variable, offset) => {
                [self.launch.globals[variable].wrapping_add_signed(offset); 32]
            }
            Operand::Shared(variable, offset) => {
                let place = self
                    .launch
                    .kernel
                    .shared
                    .get(&variable)
                    .map_or(0, |slot| slot.offset as u64);
                [place.wrapping_add_signed(offset); 32]
            }
            Operand::Local(offset) => [offset.wrapping_add(warp.frame(frame).local as u64); 32],
            Operand::Special(special) => self.special(warp, special),
        }
    }

    fn special(&self, warp: &Warp, special: Special) -> Lanes {
        let below = |lane: usize| (1u64 << lane) - 1;
        let all = u64::from(u32::MAX);
        let same = |value: u64| [value; 32];
        match special {
            Special::ThreadInBlock(axis) => {
                std::array::from_fn(|lane| self.thread(warp.number * 32 + lane as u32)[axis].into())
            }
            Special::BlockSize(axis) => same(self.launch.grid.threads[axis].into()),
            Special::BlockInGrid(axis) => same(self.index[axis].into()),
            Special::GridSize(axis) => same(self.launch.grid.blocks[axis].into()),
            Special::Lane => std::array::from_fn(|lane| lane as u64),
            Special::WarpInBlock => same(warp.number.into()),
            Special::WarpsOfBlock => same(
                self.launch
                    .grid
                    .threads
                    .iter()
                    .product::<u32>()
                    .div_ceil(32)
                    .into(),
            ),
            Special::WarpSize => same(32),
            Special::LanesBelow => std::array::from_fn(below),
            Special::LanesUpTo => std::array::from_fn(|lane| below(lane) << 1 | 1),
            Special::LanesAbove => std::array::from_fn(|lane| all & !(below(lane) << 1 | 1)),
            Special::LanesFrom => std::array::from_fn(|lane| all & !below(lane)),
            Special::LaneAlone => std::array::from_fn(|lane| 1 << lane),
            Special::Clock => same(self.launch.steps),
            Special::DynamicShared => same(self.launch.grid.dynamic_shared as u64),
            Special::TotalShared => {
                same((self.launch.kernel.shared_bytes + self.launch.grid.dynamic_shared) as u64)
            }
        }
    }

    pub(crate) fn thread(&self, linear: u32) -> [u32; 3] {
        let [x, y, _] = self.launch.grid.threads;
        [linear % x, linear / x % y, linear / (x * y)]
    }

    fn finding(
        &self,
        kind: FindingKind,
        instruction: &Instruction,
        warp: &Warp,
        lane: usize,
        detail: String,
    ) -> Finding {
        let source = instruction
            .source
            .and_then(|(file, line)| Some((self.launch.module.files.get(&file)?.clone(), line)));
        let place = Place {
            block: self.index,
            thread: self.thread(warp.number * 32 + lane as u32),
        };
        Finding {
            kind,
            kernel: self.launch.kernel.name.clone(),
            line: instruction.line,
            source,
            place,
            detail,
        }
    }

    /// Something that stops the launch.
    pub(crate) fn fault(
        &self,
        kind: FindingKind,
        instruction: &Instruction,
        warp: &Warp,
        lane: usize,
        detail: String,
    ) -> Fault {
        Box::new(self.finding(kind, instruction, warp, lane, detail))
    }

    /// Something wrong after which the kernel goes on.
    pub(crate) fn find(
        &mut self,
        kind: FindingKind,
        instruction: &Instruction,
        warp: &Warp,
        lane: usize,
        detail: impl FnOnce() -> String,
    ) {
        if self.launch.findings.is_new(kind, instruction.line) {
            let finding = self.finding(kind, instruction, warp, lane, detail());
            self.launch.findings.list.push(finding);
        }
    }

    /// All threads are at a barrier: lets them go on.
    pub(crate) fn release(&mut self, warps: &mut [Warp]) -> Result<(), Fault> {
        let module = self.launch.module;
        let site = warps
            .iter()
            .find_map(|warp| warp.groups.first())
            .map_or(0, |group| group.at);
        for warp in warps.iter() {
            if let Some(group) = warp.groups.iter().find(|group| group.at != site) {
                let line = module.code[site].line;
                self.find(
                    FindingKind::DivergentBarrier,
                    &module.code[group.at],
                    warp,
                    group.lanes.trailing_zeros() as usize,
                    || format!("other threads of the block wait at line {line}"),
                );
            }
            if warp.exited != 0 {
                let lane = warp.exited.trailing_zeros() as usize;
                self.find(
                    FindingKind::DivergentBarrier,
                    &module.code[site],
                    warp,
                    lane,
                    || format!("lanes {:08x} have ended, others wait", warp.exited),
                );
            }
        }
        let (mut yes, mut all) = (0, 0);
        for (warp, group) in warps
            .iter()
            .flat_map(|warp| warp.groups.iter().map(move |group| (warp, group)))
        {
            if let Op::Barrier {
                vote: Some((_, by)),
                ..
            } = &module.code[group.at].op
            {
                yes += (flag(warp, group.frame, *by) & group.lanes).count_ones();
                all += group.lanes.count_ones();
            }
        }
        for warp in warps.iter_mut() {
            for index in 0..warp.groups.len() {
                let Group {
                    lanes, at, frame, ..
                } = warp.groups[index];
                if let Op::Barrier {
                    vote: Some((vote, _)),
                    ..
                } = &module.code[at].op
                {
                    answer(warp.frame_mut(frame), *vote, lanes, yes, all);
                }
                warp.groups[index].state = State::Ready;
                warp.groups[index].at = at + 1;
            }
        }
        self.epoch += 1;
        Ok(())
    }
}

/// For which lanes a flag holds.
pub(crate) fn flag(warp: &Warp, frame: usize, flag: Flag) -> u32 {
    match flag {
        Flag::Predicate { index, negated } => {
            let value = warp.frame(frame).predicates[index as usize];
            if negated { !value } else { value }
        }
        Flag::Constant(value) => {
            if value {
                u32::MAX
            } else {
                0
            }
        }
    }
}

/// The lanes among `active` for which something holds.
pub(crate) fn mask(active: u32, mut holds: impl FnMut(usize) -> bool) -> u32 {
    lanes(active, false).fold(0, |mask, lane| mask | u32::from(holds(lane)) << lane)
}

fn each(active: u32, f: impl FnMut(usize)) {
    lanes(active, false).for_each(f);
}

fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Parameter => PARAMETER_WINDOW,
        Space::Generic | Space::Global | Space::Constant => 0,
    }
}

fn copy_parameters(
    warp: &mut Warp,
    inside: u32,
    from: (usize, usize),
    to: (usize, usize),
    len: usize,
) {
    for lane in lanes(inside, false) {
        let source = warp.frame(from.0);
        let start = lane * source.frame_bytes + from.1;
        let bytes = source.parameters[start..start + len].to_vec();
        let target = warp.frame_mut(to.0);
        let start = lane * target.frame_bytes + to.1;
        target.parameters[start..start + len].copy_from_slice(&bytes);
    }
}
