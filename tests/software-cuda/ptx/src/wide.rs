//! The commonest operations for all lanes of a warp at once, in loops that compilers make vector code of.
//!
//! What they give is what [`alu`] and [`convert`](crate::convert) give for each lane, which do the rest.

use crate::alu;
use crate::convert::{convert, sign_extended};
use crate::ir::{Binary, Conversion, Relation, Ternary, Type};
use crate::warp::Lanes;

/// Two operands, cut to the width of the type.
pub(crate) fn binary(
    f: Binary,
    ty: Type,
    flush: bool,
    saturate: bool,
    a: &Lanes,
    b: &Lanes,
) -> Lanes {
    let (mask, bits) = (ty.mask(), ty.bits());
    if !ty.float() {
        match f {
            Binary::Add => return both(a, b, |a, b| a.wrapping_add(b) & mask),
            Binary::Subtract => return both(a, b, |a, b| a.wrapping_sub(b) & mask),
            Binary::Multiply => return both(a, b, |a, b| a.wrapping_mul(b) & mask),
            Binary::And => return both(a, b, |a, b| a & b & mask),
            Binary::Or => return both(a, b, |a, b| (a | b) & mask),
            Binary::Xor => return both(a, b, |a, b| (a ^ b) & mask),
            Binary::ShiftLeft => return both(a, b, |a, b| left(a & mask, b, bits) & mask),
            Binary::ShiftRight if !ty.signed() => {
                return both(a, b, |a, b| right(a & mask, b, bits));
            }
            Binary::MultiplyWide if ty == Type::U32 => {
                return both(a, b, |a, b| u64::from(a as u32) * u64::from(b as u32));
            }
            Binary::MultiplyWide if ty == Type::S32 => {
                return both(a, b, |a, b| {
                    (i64::from(a as i32) * i64::from(b as i32)) as u64
                });
            }
            Binary::Minimum if !ty.signed() => return both(a, b, |a, b| (a & mask).min(b & mask)),
            Binary::Maximum if !ty.signed() => return both(a, b, |a, b| (a & mask).max(b & mask)),
            Binary::Minimum if ty == Type::S32 => {
                return both(a, b, |a, b| (a as i32).min(b as i32) as u32 as u64);
            }
            Binary::Maximum if ty == Type::S32 => {
                return both(a, b, |a, b| (a as i32).max(b as i32) as u32 as u64);
            }
            _ => {}
        }
    }
    both(a, b, |a, b| alu::binary(f, ty, flush, saturate, a, b))
}

/// Three operands.
pub(crate) fn ternary(
    f: Ternary,
    ty: Type,
    flush: bool,
    saturate: bool,
    [a, b, c]: [&Lanes; 3],
) -> Lanes {
    let mask = ty.mask();
    match (f, ty) {
        (Ternary::MultiplyAdd, _) if !ty.float() => three([a, b, c], |a, b, c| {
            a.wrapping_mul(b).wrapping_add(c) & mask
        }),
        (Ternary::MultiplyWideAdd, Type::U32) => three([a, b, c], |a, b, c| {
            (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c)
        }),
        (Ternary::MultiplyWideAdd, Type::S32) => three([a, b, c], |a, b, c| {
            ((i64::from(a as i32) * i64::from(b as i32)) as u64).wrapping_add(c)
        }),
        _ => three([a, b, c], |a, b, c| {
            alu::ternary(f, ty, flush, saturate, a, b, c)
        }),
    }
}

/// The lanes for which a comparison holds.
pub(crate) fn compare(relation: Relation, ty: Type, flush: bool, a: &Lanes, b: &Lanes) -> u32 {
    if ty.float() {
        return holds(a, b, |a, b| alu::compare(relation, ty, flush, a, b));
    }
    // The order of numbers with a sign is that of others once the bit of the sign is turned.
    let (mask, sign) = (
        ty.mask(),
        if ty.signed() { 1 << (ty.bits() - 1) } else { 0 },
    );
    let bits = |value: u64| (value & mask) ^ sign;
    match relation {
        Relation::Equal => holds(a, b, |a, b| bits(a) == bits(b)),
        Relation::NotEqual => holds(a, b, |a, b| bits(a) != bits(b)),
        Relation::Less => holds(a, b, |a, b| bits(a) < bits(b)),
        Relation::LessEqual => holds(a, b, |a, b| bits(a) <= bits(b)),
        Relation::Greater => holds(a, b, |a, b| bits(a) > bits(b)),
        Relation::GreaterEqual => holds(a, b, |a, b| bits(a) >= bits(b)),
        _ => holds(a, b, |a, b| alu::compare(relation, ty, flush, a, b)),
    }
}

/// A conversion; a result with a sign has it in all upper bits.
pub(crate) fn converted(conversion: &Conversion, src: &Lanes) -> Lanes {
    let Conversion {
        to, from, saturate, ..
    } = *conversion;
    let sign = |value: u64| {
        if to.signed() {
            sign_extended(to, value) as u64
        } else {
            value & to.mask()
        }
    };
    if from.float() || to.float() || saturate {
        return src.map(|value| sign(convert(conversion, value)));
    }
    if from.signed() {
        src.map(|value| sign(sign_extended(from, value) as u64))
    } else {
        src.map(|value| sign(value & from.mask()))
    }
}

fn both(a: &Lanes, b: &Lanes, f: impl Fn(u64, u64) -> u64) -> Lanes {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

fn three([a, b, c]: [&Lanes; 3], f: impl Fn(u64, u64, u64) -> u64) -> Lanes {
    std::array::from_fn(|lane| f(a[lane], b[lane], c[lane]))
}

fn holds(a: &Lanes, b: &Lanes, f: impl Fn(u64, u64) -> bool) -> u32 {
    (0..32).fold(0, |all, lane| all | u32::from(f(a[lane], b[lane])) << lane)
}

fn left(value: u64, count: u64, bits: u32) -> u64 {
    let count = count as u32;
    if count >= bits {
        0
    } else {
        value << (count & 63)
    }
}

fn right(value: u64, count: u64, bits: u32) -> u64 {
    let count = count as u32;
    if count >= bits {
        0
    } else {
        value >> (count & 63)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Rounding;

    const INTEGERS: [Type; 12] = [
        Type::U8,
        Type::S8,
        Type::B8,
        Type::U16,
        Type::S16,
        Type::B16,
        Type::U32,
        Type::S32,
        Type::B32,
        Type::U64,
        Type::S64,
        Type::B64,
    ];
    const NUMBERS: [u64; 12] = [
        0,
        1,
        2,
        31,
        33,
        0x7f,
        0x80,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 63,
        u64::MAX - 4,
    ];

    /// All pairs of numbers, 32 at a time, with a third.
    fn lanes() -> impl Iterator<Item = [Lanes; 3]> {
        let pairs: Vec<_> = NUMBERS
            .iter()
            .flat_map(|a| NUMBERS.iter().map(move |b| (*a, *b)))
            .collect();
        (0..pairs.len().div_ceil(32)).map(move |turn| {
            let pair = |lane: usize| pairs[(turn * 32 + lane) % pairs.len()];
            [
                std::array::from_fn(|lane| pair(lane).0),
                std::array::from_fn(|lane| pair(lane).1),
                std::array::from_fn(|lane| NUMBERS[lane % NUMBERS.len()]),
            ]
        })
    }

    #[test]
    fn all_lanes_at_once_are_each_lane_alone() {
        use Binary::*;
        let two = [
            Add,
            Subtract,
            Multiply,
            And,
            Or,
            Xor,
            ShiftLeft,
            ShiftRight,
            MultiplyWide,
            Minimum,
            Maximum,
            Divide,
            MultiplyHigh,
        ];
        let three = [
            Ternary::MultiplyAdd,
            Ternary::MultiplyWideAdd,
            Ternary::MultiplyHighAdd,
            Ternary::Permute,
        ];
        let relations = [
            Relation::Equal,
            Relation::NotEqual,
            Relation::Less,
            Relation::LessEqual,
            Relation::Greater,
            Relation::GreaterEqual,
            Relation::BothNumbers,
            Relation::AnyNan,
        ];
        for [a, b, c] in lanes() {
            for ty in INTEGERS {
                for f in two {
                    let all = binary(f, ty, false, false, &a, &b);
                    let each = both(&a, &b, |a, b| alu::binary(f, ty, false, false, a, b));
                    assert_eq!(all, each, "{f:?} {ty:?}");
                }
                for f in three {
                    let all = ternary(f, ty, false, false, [&a, &b, &c]);
                    let each = super::three([&a, &b, &c], |a, b, c| {
                        alu::ternary(f, ty, false, false, a, b, c)
                    });
                    assert_eq!(all, each, "{f:?} {ty:?}");
                }
                for relation in relations {
                    let all = compare(relation, ty, false, &a, &b);
                    let each = holds(&a, &b, |a, b| alu::compare(relation, ty, false, a, b));
                    assert_eq!(all, each, "{relation:?} {ty:?}");
                }
                for to in INTEGERS {
                    for saturate in [false, true] {
                        let conversion = Conversion {
                            to,
                            from: ty,
                            rounding: Rounding::NearestEven,
                            integral: false,
                            saturate,
                            flush: false,
                        };
                        let each = a.map(|value| {
                            let value = convert(&conversion, value);
                            if to.signed() {
                                sign_extended(to, value) as u64
                            } else {
                                value
                            }
                        });
                        assert_eq!(converted(&conversion, &a), each, "{conversion:?}");
                    }
                }
            }
        }
    }
}
