//! Instructions that lanes of a warp do together.
//!
//! They wait until all living lanes that the mask names are at the same instruction with the same mask. PTX would also let
//! two shuffles in different places meet; our kernels have no use for it, and here it counts as divergence.

use crate::alu;
use crate::check::FindingKind;
use crate::convert::integer;
use crate::execute::{Block, Fault, flag, mask};
use crate::ir::{Instruction, Op, Operand, Shuffle, Type, Vote};
use crate::memory::Memory;
use crate::warp::{Frame, Group, Lanes, State, Warp, lanes};

impl<'a, M: Memory> Block<'_, 'a, M> {
    /// Such an instruction, for all lanes of the group: carried out if all are there, else they wait.
    pub(crate) fn together(
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
        let members = self.value(warp, frame, members(&instruction.op));
        let first = inside.trailing_zeros();
        let wanted = members[first as usize] as u32;
        if wanted >> first & 1 == 0 {
            return Err(self.fault(
                FindingKind::DivergentLanes,
                instruction,
                warp,
                first as usize,
                format!("the lane is not in its own mask {wanted:08x}"),
            ));
        }
        if wanted & warp.exited != 0 {
            // Hardware does without them; a kernel that was written for all of them has forgotten some.
            let ended = wanted & warp.exited;
            self.find(
                FindingKind::AbsentLane,
                instruction,
                warp,
                first as usize,
                || format!("the mask {wanted:08x} names lanes {ended:08x}, which have ended"),
            );
        }
        // Lanes with another mask make a meeting of their own.
        let same = mask(inside, |lane| members[lane] as u32 == wanted);
        warp.split(group, same, at);
        if let Op::WarpBarrier { .. } = instruction.op {
            self.meet(warp, group, wanted);
            return Ok(());
        }
        let mut group = group;
        while let Some(other) = (0..warp.groups.len()).find(|other| {
            *other != group
                && warp.groups[*other].state == State::Lanes(wanted)
                && warp.groups[*other].at == at
        }) {
            if !warp.join(group, other) {
                break;
            }
            group = warp
                .groups
                .iter()
                .position(|group| group.lanes >> first & 1 == 1)
                .unwrap_or(group);
        }
        let here = warp.groups[group].lanes;
        if wanted & warp.alive() & !here != 0 {
            warp.groups[group].state = State::Lanes(wanted);
            return Ok(());
        }
        warp.groups[group].state = State::Ready;
        warp.groups[group].at = at + 1;
        let frame = warp.groups[group].frame;
        self.carry_out(warp, frame, here, instruction)
    }

    /// `bar.warp.sync`: lanes may come to it in different places.
    fn meet(&mut self, warp: &mut Warp, group: usize, wanted: u32) {
        let code = &self.launch.module.code;
        let waits = |group: &Group| {
            group.state == State::Lanes(wanted)
                && matches!(code[group.at].op, Op::WarpBarrier { .. })
        };
        let here = warp
            .groups
            .iter()
            .filter(|group| waits(group))
            .fold(warp.groups[group].lanes, |lanes, group| lanes | group.lanes);
        warp.groups[group].state = State::Lanes(wanted);
        if wanted & warp.alive() & !here != 0 {
            return;
        }
        for group in warp.groups.iter_mut().filter(|group| waits(group)) {
            group.state = State::Ready;
            group.at += 1;
        }
        warp.meet(here);
    }

    fn carry_out(
        &mut self,
        warp: &mut Warp,
        frame: usize,
        here: u32,
        instruction: &'a Instruction,
    ) -> Result<(), Fault> {
        let value = |block: &Self, warp: &Warp, operand: Operand| block.value(warp, frame, operand);
        match &instruction.op {
            Op::Shuffle {
                f,
                dst,
                valid,
                src,
                lane,
                clamp,
                ..
            } => {
                let (src, by, clamp) = (
                    value(self, warp, *src),
                    value(self, warp, *lane),
                    value(self, warp, *clamp),
                );
                let (mut values, mut inside) = (src, 0);
                for lane in lanes(here, false) {
                    let (from, is_inside) =
                        source_lane(*f, lane as u32, by[lane] as u32, clamp[lane] as u32);
                    inside |= u32::from(is_inside) << lane;
                    values[lane] = src[from as usize] & 0xffff_ffff;
                    if here >> from & 1 == 0 {
                        self.find(FindingKind::AbsentLane, instruction, warp, lane, || {
                            format!("takes from lane {from}, which is not among {here:08x}")
                        });
                    }
                }
                warp.frame_mut(frame).set(*dst, here, &values);
                valid
                    .iter()
                    .for_each(|valid| warp.frame_mut(frame).set_flag(*valid, here, inside));
            }
            Op::Vote { f, flag: by, .. } => {
                let yes = flag(warp, frame, *by) & here;
                match f {
                    Vote::Which(dst) => warp.frame_mut(frame).set(*dst, here, &[yes.into(); 32]),
                    other => answer(
                        warp.frame_mut(frame),
                        *other,
                        here,
                        yes.count_ones(),
                        here.count_ones(),
                    ),
                }
            }
            Op::MatchAny { ty, dst, src, .. } => {
                let src = value(self, warp, *src);
                let values: Lanes = std::array::from_fn(|lane| {
                    mask(here, |other| {
                        src[other] & ty.mask() == src[lane] & ty.mask()
                    })
                    .into()
                });
                warp.frame_mut(frame).set(*dst, here, &values);
            }
            Op::MatchAll {
                ty, dst, all, src, ..
            } => {
                let src = value(self, warp, *src);
                let first = here.trailing_zeros() as usize;
                let same =
                    lanes(here, false).all(|lane| src[lane] & ty.mask() == src[first] & ty.mask());
                warp.frame_mut(frame)
                    .set(*dst, here, &[if same { here.into() } else { 0 }; 32]);
                all.iter().for_each(|all| {
                    warp.frame_mut(frame)
                        .set_flag(*all, here, if same { here } else { 0 })
                });
            }
            Op::Reduce {
                f, ty, dst, src, ..
            } => {
                let src = value(self, warp, *src);
                let result = lanes(here, false)
                    .map(|lane| src[lane])
                    .reduce(|a, b| alu::binary(*f, *ty, false, false, a, b))
                    .unwrap_or(0);
                warp.frame_mut(frame).set(*dst, here, &[result; 32]);
            }
            Op::MultiplyBytes {
                signed_a,
                signed_b,
                saturate,
                dst,
                a,
                b,
                c,
            } => {
                if here != u32::MAX {
                    let lane = here.trailing_zeros() as usize;
                    return Err(self.fault(
                        FindingKind::DivergentLanes,
                        instruction,
                        warp,
                        lane,
                        format!("a matrix needs all 32 lanes, only {here:08x} are here"),
                    ));
                }
                let sums = [value(self, warp, c[0]), value(self, warp, c[1])];
                let result = multiply_bytes(
                    &value(self, warp, *a),
                    &value(self, warp, *b),
                    &sums,
                    *signed_a,
                    *signed_b,
                    *saturate,
                );
                for (dst, result) in dst.iter().zip(&result) {
                    warp.frame_mut(frame).set(*dst, here, result);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn members(op: &Op) -> Operand {
    match op {
        Op::WarpBarrier { members }
        | Op::Shuffle { members, .. }
        | Op::Vote { members, .. }
        | Op::MatchAny { members, .. }
        | Op::MatchAll { members, .. }
        | Op::Reduce { members, .. } => *members,
        _ => Operand::Constant(u32::MAX.into()),
    }
}

/// Gives lanes the answer of a vote in which `yes` of `all` were for it.
pub(crate) fn answer(frame: &mut Frame, vote: Vote, here: u32, yes: u32, all: u32) {
    let flag = |holds: bool| if holds { u32::MAX } else { 0 };
    match vote {
        Vote::All(dst) => frame.set_flag(dst, here, flag(yes == all)),
        Vote::Any(dst) => frame.set_flag(dst, here, flag(yes > 0)),
        Vote::Uniform(dst) => frame.set_flag(dst, here, flag(yes == all || yes == 0)),
        Vote::Which(dst) => frame.set(dst, here, &[yes.into(); 32]),
    }
}

/// From which lane a shuffle takes, and whether that lies in the segment (else it is the lane's own value).
fn source_lane(f: Shuffle, lane: u32, by: u32, clamp: u32) -> (u32, bool) {
    let (by, segments, clamp) = (by & 31, clamp >> 8 & 31, clamp & 31);
    let most = (lane & segments) | (clamp & !segments);
    let (from, inside) = match f {
        // The limit is the lowest lane here.
        Shuffle::Up => (
            lane.wrapping_sub(by),
            lane as i32 - by as i32 >= most as i32,
        ),
        Shuffle::Down => (lane + by, lane + by <= most),
        Shuffle::Butterfly => (lane ^ by, lane ^ by <= most),
        Shuffle::Index => {
            let from = (lane & segments) | (by & !segments);
            (from, from <= most)
        }
    };
    if inside { (from, true) } else { (lane, false) }
}

/// `mma.m8n8k16` of bytes. Lane `l` holds row `l / 4` of A, columns from `4 (l % 4)`; column `l / 4` of B, rows from `4 (l % 4)`;
/// and of C and D row `l / 4`, columns `2 (l % 4)` and the next.
fn multiply_bytes(
    a: &Lanes,
    b: &Lanes,
    c: &[Lanes; 2],
    signed_a: bool,
    signed_b: bool,
    saturate: bool,
) -> [Lanes; 2] {
    let byte = |lanes: &Lanes, line: usize, k: usize, signed| {
        integer(
            if signed { Type::S8 } else { Type::U8 },
            lanes[line * 4 + k / 4] >> (8 * (k % 4)),
        ) as i64
    };
    let mut result = [[0; 32]; 2];
    for lane in 0..32 {
        for (index, result) in result.iter_mut().enumerate() {
            let (row, column) = (lane / 4, lane % 4 * 2 + index);
            let product: i64 = (0..16)
                .map(|k| byte(a, row, k, signed_a) * byte(b, column, k, signed_b))
                .sum();
            let sum = product + i64::from(c[index][lane] as u32 as i32);
            let kept = if saturate {
                sum.clamp(i32::MIN.into(), i32::MAX.into())
            } else {
                sum
            };
            result[lane] = kept as u64 & 0xffff_ffff;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Binary;

    #[test]
    fn where_shuffles_take_from() {
        // As `__shfl_*_sync` with width 32 and 8.
        assert_eq!(source_lane(Shuffle::Up, 5, 2, 0), (3, true));
        assert_eq!(source_lane(Shuffle::Up, 1, 2, 0), (1, false));
        assert_eq!(source_lane(Shuffle::Down, 30, 1, 31), (31, true));
        assert_eq!(source_lane(Shuffle::Down, 31, 1, 31), (31, false));
        assert_eq!(source_lane(Shuffle::Butterfly, 3, 16, 31), (19, true));
        assert_eq!(source_lane(Shuffle::Index, 9, 3, 31), (3, true));
        let width_8 = (32 - 8) << 8;
        assert_eq!(source_lane(Shuffle::Index, 9, 3, width_8 | 31), (11, true));
        assert_eq!(source_lane(Shuffle::Up, 8, 1, width_8), (8, false));
        assert_eq!(source_lane(Shuffle::Down, 15, 1, width_8 | 31), (15, false));
    }

    #[test]
    fn a_product_of_matrices() {
        let a: Lanes =
            std::array::from_fn(|lane| 0x0102_0304u64.wrapping_mul(lane as u64 + 1) & 0xffff_ffff);
        // One: row k of B has its one in column k.
        let b: Lanes = std::array::from_fn(|lane| {
            let column = lane / 4;
            (0..4).fold(0, |word, byte| {
                word | u64::from(lane % 4 * 4 + byte == column) << (8 * byte)
            })
        });
        let c = [[10; 32], [20; 32]];
        let product = multiply_bytes(&a, &b, &c, false, false, false);
        for lane in 0..32 {
            for index in 0..2 {
                let (row, column) = (lane / 4, lane % 4 * 2 + index);
                let wanted =
                    (a[row * 4 + column / 4] >> (8 * (column % 4)) & 0xff) + c[index][lane];
                assert_eq!(product[index][lane], wanted, "{row} {column}");
            }
        }
    }

    #[test]
    fn votes() {
        assert_eq!(
            alu::binary(Binary::Minimum, Type::S32, false, false, 0xffff_ffff, 1),
            0xffff_ffff
        );
        let mut frame = Frame {
            predicates: vec![0],
            ..Frame::default()
        };
        answer(&mut frame, Vote::Uniform(0), 0b110, 0, 2);
        assert_eq!(frame.predicates[0], 0b110);
        answer(&mut frame, Vote::All(0), 0b010, 1, 2);
        assert_eq!(frame.predicates[0], 0b100);
    }
}
