//! Arithmetic on the bits of one lane.
//!
//! Results have zeros above the width of their type. What PTX leaves open is settled as hardware does it: division by zero gives
//! all ones, a shift by the width or more gives zero (or the sign).

use crate::convert::{integer, sign_extended, to_f64};
use crate::ir::{Atomic, Binary, Logic, Relation, Ternary, Type, Unary};

/// The one NaN that f32 arithmetic gives.
const NAN32: u32 = 0x7fff_ffff;

pub(crate) fn unary(f: Unary, ty: Type, flush: bool, a: u64) -> u64 {
    let mask = ty.mask();
    let a = a & mask;
    let bits = u64::from(ty.bits());
    match f {
        Unary::Not => !a & mask,
        Unary::LogicalNot => u64::from(a == 0),
        Unary::Negate if ty.float() => flushed(ty, flush, a ^ (1 << (bits - 1))),
        Unary::Absolute if ty.float() => flushed(ty, flush, a & (mask >> 1)),
        Unary::Negate => a.wrapping_neg() & mask,
        Unary::Absolute => sign_extended(ty, a).unsigned_abs() & mask,
        Unary::CountOnes => a.count_ones().into(),
        Unary::LeadingZeros => u64::from(a.leading_zeros()) - (64 - bits),
        Unary::ReverseBits => a.reverse_bits() >> (64 - bits),
        Unary::FindHighest | Unary::FindHighestShift => {
            let found = if ty.signed() && sign_extended(ty, a) < 0 {
                !a & mask
            } else {
                a
            };
            match (found, f) {
                (0, _) => u32::MAX.into(),
                (_, Unary::FindHighest) => 63 - u64::from(found.leading_zeros()),
                _ => u64::from(found.leading_zeros()) - (64 - bits),
            }
        }
        Unary::SquareRoot => float1(ty, flush, a, f32::sqrt, f64::sqrt),
        Unary::Reciprocal => float1(ty, flush, a, f32::recip, f64::recip),
    }
}

pub(crate) fn binary(f: Binary, ty: Type, flush: bool, saturate: bool, a: u64, b: u64) -> u64 {
    if ty.float() {
        return float_binary(f, ty, flush, saturate, a, b);
    }
    let mask = ty.mask();
    let bits = ty.bits();
    let (x, y) = (a & mask, b & mask);
    let exact = |operation: fn(i128, i128) -> i128| operation(integer(ty, a), integer(ty, b));
    let result = match f {
        Binary::Add => x.wrapping_add(y),
        Binary::Subtract => x.wrapping_sub(y),
        Binary::AddSaturating => {
            exact(|a, b| (a + b).clamp(i32::MIN.into(), i32::MAX.into())) as u64
        }
        Binary::SubtractSaturating => {
            exact(|a, b| (a - b).clamp(i32::MIN.into(), i32::MAX.into())) as u64
        }
        Binary::Multiply => x.wrapping_mul(y),
        Binary::MultiplyHigh if bits == 64 && !ty.signed() => {
            ((u128::from(x) * u128::from(y)) >> 64) as u64
        }
        Binary::MultiplyHigh => (exact(|a, b| a * b) >> bits) as u64,
        // Twice as wide as the type.
        Binary::MultiplyWide => return exact(|a, b| a.wrapping_mul(b)) as u64 & wide(ty),
        Binary::Divide if y == 0 => u64::MAX,
        Binary::Remainder if y == 0 => x,
        Binary::Divide => exact(|a, b| a / b) as u64,
        Binary::Remainder => exact(|a, b| a % b) as u64,
        Binary::Minimum | Binary::MinimumNan => exact(i128::min) as u64,
        Binary::Maximum | Binary::MaximumNan => exact(i128::max) as u64,
        Binary::And => x & y,
        Binary::Or => x | y,
        Binary::Xor => x ^ y,
        Binary::ShiftLeft => {
            let count = b as u32;
            if count >= bits { 0 } else { x << count }
        }
        Binary::ShiftRight if ty.signed() => {
            (sign_extended(ty, a) >> (b as u32).min(bits - 1)) as u64
        }
        Binary::ShiftRight => {
            let count = b as u32;
            if count >= bits { 0 } else { x >> count }
        }
        Binary::CopySign => y,
    };
    result & mask
}

pub(crate) fn ternary(
    f: Ternary,
    ty: Type,
    flush: bool,
    saturate: bool,
    a: u64,
    b: u64,
    c: u64,
) -> u64 {
    let mask = ty.mask();
    match f {
        Ternary::MultiplyAdd => {
            binary(Binary::Multiply, ty, false, false, a, b).wrapping_add(c) & mask
        }
        Ternary::MultiplyHighAdd => {
            binary(Binary::MultiplyHigh, ty, false, false, a, b).wrapping_add(c) & mask
        }
        Ternary::MultiplyWideAdd => {
            binary(Binary::MultiplyWide, ty, false, false, a, b).wrapping_add(c) & wide(ty)
        }
        Ternary::FusedMultiplyAdd if ty == Type::F32 => {
            let input = |bits| f32::from_bits(flushed(ty, flush, bits) as u32);
            finish32(input(a).mul_add(input(b), input(c)), flush, saturate)
        }
        Ternary::FusedMultiplyAdd => f64::from_bits(a)
            .mul_add(f64::from_bits(b), f64::from_bits(c))
            .to_bits(),
        Ternary::ExtractBits => extract(ty, a, b, c),
        Ternary::Permute => permute(a, b, c),
        Ternary::FunnelLeft { wrap } => ((joined(a, b) << funnel(c, wrap)) >> 32) as u32 as u64,
        Ternary::FunnelRight { wrap } => (joined(a, b) >> funnel(c, wrap)) as u32 as u64,
        Ternary::Logic { table } => {
            let mut result = 0;
            for row in 0..8u32 {
                if table >> row & 1 == 1 {
                    let pick =
                        |value: u64, bit: u32| if row >> bit & 1 == 1 { value } else { !value };
                    result |= pick(a, 2) & pick(b, 1) & pick(c, 0);
                }
            }
            result & mask
        }
        Ternary::SumOfDifferences => {
            c.wrapping_add(integer(ty, a).abs_diff(integer(ty, b)) as u64) & mask
        }
        Ternary::DotFourBytes { signed, signed_b } => {
            let byte = |value: u64, index: u32, signed| {
                integer(
                    if signed { Type::S8 } else { Type::U8 },
                    value >> (8 * index),
                ) as i64
            };
            let sum: i64 = (0..4)
                .map(|index| byte(a, index, signed) * byte(b, index, signed_b))
                .sum();
            c.wrapping_add(sum as u64) & mask
        }
        Ternary::SelectBySign => (if (c as u32 as i32) >= 0 { a } else { b }) & mask,
    }
}

/// Copies the low `len` bits of `a` into `b`, from `position` on.
pub(crate) fn insert(ty: Type, a: u64, b: u64, position: u64, len: u64) -> u64 {
    let (position, len) = (position & 0xff, len & 0xff);
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    let place = if position >= 64 { 0 } else { ones << position };
    let moved = if position >= 64 { 0 } else { a << position };
    ((b & !place) | (moved & place)) & ty.mask()
}

/// Sum or difference and the carry out of it.
pub(crate) fn carry(subtract: bool, ty: Type, a: u64, b: u64, carry: bool) -> (u64, bool) {
    let (a, b) = (u128::from(a & ty.mask()), u128::from(b & ty.mask()));
    let wide = if subtract {
        a.wrapping_sub(b).wrapping_sub(carry.into())
    } else {
        a + b + u128::from(carry)
    };
    (wide as u64 & ty.mask(), wide >> ty.bits() & 1 == 1)
}

pub(crate) fn compare(relation: Relation, ty: Type, flush: bool, a: u64, b: u64) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = if ty.float() {
        to_f64(ty, flushed(ty, flush, a)).partial_cmp(&to_f64(ty, flushed(ty, flush, b)))
    } else if ty.signed() {
        Some(sign_extended(ty, a).cmp(&sign_extended(ty, b)))
    } else {
        Some((a & ty.mask()).cmp(&(b & ty.mask())))
    };
    match relation {
        Relation::Equal => order == Some(Equal),
        Relation::NotEqual => matches!(order, Some(Less | Greater)),
        Relation::Less => order == Some(Less),
        Relation::LessEqual => matches!(order, Some(Less | Equal)),
        Relation::Greater => order == Some(Greater),
        Relation::GreaterEqual => matches!(order, Some(Greater | Equal)),
        Relation::EqualUnordered => matches!(order, None | Some(Equal)),
        Relation::NotEqualUnordered => order != Some(Equal),
        Relation::LessUnordered => matches!(order, None | Some(Less)),
        Relation::LessEqualUnordered => order != Some(Greater),
        Relation::GreaterUnordered => matches!(order, None | Some(Greater)),
        Relation::GreaterEqualUnordered => order != Some(Less),
        Relation::BothNumbers => order.is_some(),
        Relation::AnyNan => order.is_none(),
    }
}

pub(crate) fn logic(f: Logic, a: u32, b: u32) -> u32 {
    match f {
        Logic::And => a & b,
        Logic::Or => a | b,
        Logic::Xor => a ^ b,
    }
}

/// What an atomic operation leaves in memory.
pub(crate) fn atomic(f: Atomic, ty: Type, old: u64, a: u64, b: u64) -> u64 {
    let plain = |f| binary(f, ty, false, false, old, a);
    match f {
        Atomic::Add => plain(Binary::Add),
        Atomic::Minimum => plain(Binary::Minimum),
        Atomic::Maximum => plain(Binary::Maximum),
        Atomic::And => plain(Binary::And),
        Atomic::Or => plain(Binary::Or),
        Atomic::Xor => plain(Binary::Xor),
        Atomic::Exchange => a & ty.mask(),
        Atomic::CompareAndSwap => (if old == a & ty.mask() { b } else { old }) & ty.mask(),
        Atomic::Increment => {
            if old >= a & ty.mask() {
                0
            } else {
                old + 1
            }
        }
        Atomic::Decrement => {
            if old == 0 || old > a & ty.mask() {
                a & ty.mask()
            } else {
                old - 1
            }
        }
    }
}

fn wide(ty: Type) -> u64 {
    if ty.bits() >= 32 {
        u64::MAX
    } else {
        (1 << (2 * ty.bits())) - 1
    }
}

fn joined(low: u64, high: u64) -> u64 {
    high << 32 | (low & 0xffff_ffff)
}

fn funnel(count: u64, wrap: bool) -> u32 {
    if wrap {
        count as u32 & 31
    } else {
        (count as u32).min(32)
    }
}

fn extract(ty: Type, a: u64, position: u64, len: u64) -> u64 {
    let (position, len, bits) = ((position & 0xff) as u32, (len & 0xff) as u32, ty.bits());
    if len == 0 {
        return 0;
    }
    // Above the field: zeros, or copies of its last bit (of the type's last bit if the field goes beyond).
    let wide = integer(ty, a);
    let field = wide >> position.min(127);
    let len = len.min(bits);
    if !ty.signed() {
        return field as u64 & if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    }
    let unused = 128 - len;
    ((field << unused) >> unused) as u64 & ty.mask()
}

fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = joined(a, b);
    (0..4).fold(0, |result, index| {
        let select = selector >> (4 * index);
        let byte = bytes >> (8 * (select & 7)) & 0xff;
        // With the fourth bit, the sign of the byte, eight times.
        let byte = if select & 8 == 0 {
            byte
        } else {
            (byte >> 7) * 0xff
        };
        result | byte << (8 * index)
    })
}

fn flushed(ty: Type, flush: bool, bits: u64) -> u64 {
    if flush && ty == Type::F32 && f32::from_bits(bits as u32).is_subnormal() {
        bits & 0x8000_0000
    } else {
        bits
    }
}

fn finish32(result: f32, flush: bool, saturate: bool) -> u64 {
    // Also NaN becomes zero.
    let result = if saturate {
        if result > 0.0 { result.min(1.0) } else { 0.0 }
    } else {
        result
    };
    let bits = if result.is_nan() {
        NAN32
    } else {
        result.to_bits()
    };
    flushed(Type::F32, flush, bits.into())
}

fn float1(ty: Type, flush: bool, a: u64, single: fn(f32) -> f32, double: fn(f64) -> f64) -> u64 {
    if ty == Type::F32 {
        finish32(
            single(f32::from_bits(flushed(ty, flush, a) as u32)),
            flush,
            false,
        )
    } else {
        double(f64::from_bits(a)).to_bits()
    }
}

fn float_binary(f: Binary, ty: Type, flush: bool, saturate: bool, a: u64, b: u64) -> u64 {
    let (a, b) = (flushed(ty, flush, a), flushed(ty, flush, b));
    if f == Binary::CopySign {
        // The sign is that of the first operand.
        let sign = 1 << (ty.bits() - 1);
        return (a & sign) | (b & ty.mask() & !sign);
    }
    if matches!(
        f,
        Binary::Minimum | Binary::MinimumNan | Binary::Maximum | Binary::MaximumNan
    ) {
        return extreme(f, ty, a, b);
    }
    if ty == Type::F32 {
        let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
        let result = match f {
            Binary::Add => a + b,
            Binary::Subtract => a - b,
            Binary::Multiply => a * b,
            _ => a / b,
        };
        return finish32(result, flush, saturate);
    }
    let (a, b) = (f64::from_bits(a), f64::from_bits(b));
    match f {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        _ => a / b,
    }
    .to_bits()
}

/// Minimum or maximum: a number wins over NaN unless NaN is wanted, and -0 is below +0.
fn extreme(f: Binary, ty: Type, a: u64, b: u64) -> u64 {
    let (x, y) = (to_f64(ty, a), to_f64(ty, b));
    let nan = if ty == Type::F32 {
        NAN32.into()
    } else {
        0x7fff_ffff_ffff_ffff
    };
    match (x.is_nan(), y.is_nan()) {
        (true, true) => return nan,
        (true, false) | (false, true) if matches!(f, Binary::MinimumNan | Binary::MaximumNan) => {
            return nan;
        }
        (true, false) => return b & ty.mask(),
        (false, true) => return a & ty.mask(),
        (false, false) => {}
    }
    let first_is_less = x.total_cmp(&y).is_lt();
    let wants_less = matches!(f, Binary::Minimum | Binary::MinimumNan);
    (if first_is_less == wants_less { a } else { b }) & ty.mask()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(f: Binary, ty: Type, a: u64, b: u64) -> u64 {
        binary(f, ty, false, false, a, b)
    }

    #[test]
    fn integers() {
        assert_eq!(two(Binary::Add, Type::U8, 250, 10), 4);
        assert_eq!(two(Binary::Subtract, Type::U16, 0, 1), 0xffff);
        assert_eq!(
            two(Binary::MultiplyHigh, Type::U64, u64::MAX, u64::MAX),
            u64::MAX - 1
        );
        assert_eq!(two(Binary::MultiplyHigh, Type::S64, u64::MAX, 2), u64::MAX);
        assert_eq!(
            two(Binary::MultiplyHigh, Type::S32, i32::MIN as u32 as u64, 2),
            0xffff_ffff
        );
        assert_eq!(
            two(Binary::MultiplyWide, Type::U32, 0xffff_ffff, 0xffff_ffff),
            0xffff_fffe_0000_0001
        );
        assert_eq!(two(Binary::MultiplyWide, Type::S16, 0xffff, 2), 0xffff_fffe);
        assert_eq!(
            two(
                Binary::Divide,
                Type::S32,
                i32::MIN as u32 as u64,
                0xffff_ffff
            ),
            0x8000_0000
        );
        assert_eq!(two(Binary::Divide, Type::U32, 7, 0), 0xffff_ffff);
        assert_eq!(
            two(Binary::Remainder, Type::S32, (-7i32) as u32 as u64, 3) as u32 as i32,
            -1
        );
        assert_eq!(
            two(Binary::ShiftRight, Type::S32, 0x8000_0000, 40),
            0xffff_ffff
        );
        assert_eq!(two(Binary::ShiftRight, Type::U32, 0x8000_0000, 32), 0);
        assert_eq!(two(Binary::ShiftLeft, Type::B64, 1, 63), 1 << 63);
        assert_eq!(two(Binary::Minimum, Type::S16, 0xffff, 1), 0xffff);
        assert_eq!(
            two(Binary::AddSaturating, Type::S32, 0x7fff_ffff, 1),
            0x7fff_ffff
        );
    }

    #[test]
    fn bits() {
        assert_eq!(unary(Unary::LeadingZeros, Type::B32, false, 0), 32);
        assert_eq!(unary(Unary::LeadingZeros, Type::B64, false, 1), 63);
        assert_eq!(unary(Unary::ReverseBits, Type::B32, false, 1), 0x8000_0000);
        assert_eq!(unary(Unary::FindHighest, Type::U32, false, 0), 0xffff_ffff);
        assert_eq!(unary(Unary::FindHighest, Type::S32, false, 0xffff_fff0), 3);
        assert_eq!(unary(Unary::FindHighestShift, Type::U32, false, 1), 31);
        assert_eq!(unary(Unary::Absolute, Type::S32, false, 0xffff_fffe), 2);
        let three = |f, a, b, c| ternary(f, Type::B32, false, false, a, b, c);
        assert_eq!(
            three(Ternary::Permute, 0x8070_6050, 0x0302_0100, 0x4b30),
            0x00ff_8050
        );
        assert_eq!(
            three(Ternary::Logic { table: 0xe8 }, 0b1100, 0b1010, 0b1001),
            0b1000
        );
        assert_eq!(
            three(Ternary::Logic { table: 0x96 }, 0b1100, 0b1010, 0b1001),
            0b1111
        );
        assert_eq!(
            three(
                Ternary::FunnelRight { wrap: true },
                0x89ab_cdef,
                0x0123_4567,
                36
            ),
            0x789a_bcde
        );
        assert_eq!(
            three(
                Ternary::FunnelLeft { wrap: false },
                0x89ab_cdef,
                0x0123_4567,
                40
            ),
            0x89ab_cdef
        );
        assert_eq!(
            three(
                Ternary::FunnelLeft { wrap: true },
                0x89ab_cdef,
                0x0123_4567,
                4
            ),
            0x1234_5678
        );
        assert_eq!(
            ternary(Ternary::ExtractBits, Type::S32, false, false, 0xf0, 4, 4),
            0xffff_ffff
        );
        assert_eq!(
            ternary(Ternary::ExtractBits, Type::U32, false, false, 0xf0, 4, 4),
            0xf
        );
        assert_eq!(
            ternary(
                Ternary::ExtractBits,
                Type::U64,
                false,
                false,
                u64::MAX,
                60,
                10
            ),
            0xf
        );
        assert_eq!(
            ternary(
                Ternary::ExtractBits,
                Type::S32,
                false,
                false,
                0x8000_0000,
                200,
                4
            ),
            0xffff_ffff
        );
        assert_eq!(insert(Type::B32, 0xff, 0, 4, 4), 0xf0);
        assert_eq!(insert(Type::B32, 0xff, 0x1234, 32, 8), 0x1234);
        assert_eq!(
            three(
                Ternary::DotFourBytes {
                    signed: true,
                    signed_b: true
                },
                0xff01_0203,
                0x0101_0101,
                10
            ),
            15
        );
        assert_eq!(
            ternary(
                Ternary::SumOfDifferences,
                Type::S32,
                false,
                false,
                0xffff_ffff,
                1,
                5
            ),
            7
        );
    }

    #[test]
    fn carries() {
        assert_eq!(carry(false, Type::U32, 0xffff_ffff, 0, true), (0, true));
        assert_eq!(carry(true, Type::U64, 0, 1, false), (u64::MAX, true));
        assert_eq!(carry(true, Type::U64, 2, 1, true), (0, false));
    }

    #[test]
    fn floats() {
        let one = u64::from(1f32.to_bits());
        let nan = u64::from(f32::NAN.to_bits());
        let minus_zero = u64::from((-0f32).to_bits());
        assert_eq!(two(Binary::Add, Type::F32, nan, one), NAN32.into());
        assert_eq!(two(Binary::Minimum, Type::F32, nan, one), one);
        assert_eq!(two(Binary::MinimumNan, Type::F32, nan, one), NAN32.into());
        assert_eq!(two(Binary::Minimum, Type::F32, 0, minus_zero), minus_zero);
        assert_eq!(two(Binary::Maximum, Type::F32, minus_zero, 0), 0);
        let tiny = 1u64;
        assert_eq!(
            binary(Binary::Multiply, Type::F32, true, false, tiny, one),
            0
        );
        assert_eq!(
            binary(Binary::Multiply, Type::F32, false, false, tiny, one),
            1
        );
        assert_eq!(binary(Binary::Add, Type::F32, false, true, one, one), one);
        // One rounding, not two.
        let (a, b) = (1.0 + 2f32.powi(-12), 1.0 - 2f32.powi(-12));
        let fused = ternary(
            Ternary::FusedMultiplyAdd,
            Type::F32,
            false,
            false,
            a.to_bits().into(),
            b.to_bits().into(),
            (-1f32).to_bits().into(),
        );
        assert_eq!(f32::from_bits(fused as u32), -2f32.powi(-24));
        assert_eq!(
            two(Binary::CopySign, Type::F32, minus_zero, one),
            u64::from((-1f32).to_bits())
        );
    }

    #[test]
    fn comparisons() {
        let nan = f64::NAN.to_bits();
        let check = |relation, a: u64, b: u64| compare(relation, Type::F64, false, a, b);
        assert!(!check(Relation::NotEqual, nan, 0) && check(Relation::NotEqualUnordered, nan, 0));
        assert!(
            !check(Relation::LessEqual, nan, nan) && check(Relation::LessEqualUnordered, nan, nan)
        );
        assert!(check(Relation::AnyNan, 0, nan) && check(Relation::BothNumbers, 0, 0));
        assert!(check(Relation::Equal, 0f64.to_bits(), (-0f64).to_bits()));
        assert!(compare(Relation::Less, Type::S32, false, 0xffff_ffff, 0));
        assert!(compare(Relation::Greater, Type::U32, false, 0xffff_ffff, 0));
    }

    #[test]
    fn atomics() {
        assert_eq!(atomic(Atomic::CompareAndSwap, Type::B32, 5, 5, 9), 9);
        assert_eq!(atomic(Atomic::CompareAndSwap, Type::B32, 4, 5, 9), 4);
        assert_eq!(
            atomic(Atomic::Minimum, Type::S32, 0, 0xffff_ffff, 0),
            0xffff_ffff
        );
        assert_eq!(atomic(Atomic::Increment, Type::U32, 7, 7, 0), 0);
        assert_eq!(atomic(Atomic::Decrement, Type::U32, 0, 7, 0), 7);
    }
}
