//! Conversions between types, rounded as PTX says (`cvt`).
//!
//! Sources: PTX ISA 8.0, "Data Movement and Conversion Instructions: cvt". Every f16, bf16 and f32 is an f64 exactly, so all
//! floating-point sources go through f64, and every narrower result is rounded once, from it.

use crate::ir::{Conversion, Rounding, Type};

/// Converts the bits `value` of type `from` into bits of type `to`.
pub(crate) fn convert(conversion: &Conversion, value: u64) -> u64 {
    let Conversion {
        to,
        from,
        rounding,
        integral,
        saturate,
        flush,
    } = *conversion;
    if !from.float() {
        let exact = integer(from, value);
        return if to.float() {
            from_integer(exact, to, rounding, saturate)
        } else {
            narrow(exact, to, saturate)
        };
    }
    if from == to && !integral && !saturate && !flush {
        return value & to.mask();
    }
    let mut number = to_f64(from, value);
    if flush && from == Type::F32 && f32::from_bits(value as u32).is_subnormal() {
        number = 0f64.copysign(number);
    }
    if !to.float() {
        return to_integer(number, from, to, rounding);
    }
    if integral {
        number = round_to_integer(number, rounding);
    }
    if saturate {
        // Also for NaN.
        number = if number > 0.0 { number.min(1.0) } else { 0.0 };
    }
    from_f64(
        number,
        to,
        if integral {
            Rounding::NearestEven
        } else {
            rounding
        },
    )
}

/// An integer of that type as a number.
pub(crate) fn integer(ty: Type, value: u64) -> i128 {
    if ty.signed() {
        i128::from(sign_extended(ty, value))
    } else {
        i128::from(value & ty.mask())
    }
}

/// The bits of an integer type with its sign in all upper bits.
pub(crate) fn sign_extended(ty: Type, value: u64) -> i64 {
    let unused = 64 - ty.bits();
    ((value << unused) as i64) >> unused
}

fn narrow(exact: i128, to: Type, saturate: bool) -> u64 {
    let (least, most) = range(to);
    let exact = if saturate {
        exact.clamp(least, most)
    } else {
        exact
    };
    exact as u64 & to.mask()
}

fn range(ty: Type) -> (i128, i128) {
    let bits = ty.bits();
    if ty.signed() {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

fn to_integer(number: f64, from: Type, to: Type, rounding: Rounding) -> u64 {
    if number.is_nan() {
        let wide = from == Type::F64 || to.bits() == 64;
        return if wide { 1 << (to.bits() - 1) } else { 0 };
    }
    let (least, most) = range(to);
    // The cast clamps, and so does the instruction.
    (round_to_integer(number, rounding) as i128).clamp(least, most) as u64 & to.mask()
}

fn round_to_integer(number: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::NearestEven => number.round_ties_even(),
        Rounding::Zero => number.trunc(),
        Rounding::Down => number.floor(),
        Rounding::Up => number.ceil(),
    }
}

fn from_integer(exact: i128, to: Type, rounding: Rounding, saturate: bool) -> u64 {
    if saturate {
        return from_f64(exact.clamp(0, 1) as f64, to, rounding);
    }
    let nearest = exact as f64;
    let (below, above) = match (nearest as i128).cmp(&exact) {
        std::cmp::Ordering::Equal => (nearest, nearest),
        std::cmp::Ordering::Less => (nearest, nearest.next_up()),
        std::cmp::Ordering::Greater => (nearest.next_down(), nearest),
    };
    if to == Type::F64 {
        let rounded = match rounding {
            Rounding::NearestEven => nearest,
            Rounding::Zero => {
                if exact < 0 {
                    above
                } else {
                    below
                }
            }
            Rounding::Down => below,
            Rounding::Up => above,
        };
        return rounded.to_bits();
    }
    // To the neighbour whose last bit is one: it is inexact on the same side as the integer, so that rounding it once more gives what
    // rounding the integer would.
    let odd = if below.to_bits() & 1 == 1 {
        below
    } else {
        above
    };
    from_f64(odd, to, rounding)
}

/// The value of a floating-point type.
pub(crate) fn to_f64(ty: Type, value: u64) -> f64 {
    match ty {
        Type::F64 => f64::from_bits(value),
        Type::F32 => f64::from(f32::from_bits(value as u32)),
        Type::Bf16 => f64::from(f32::from_bits((value as u32 & 0xffff) << 16)),
        _ => half_to_f64(value as u16),
    }
}

fn half_to_f64(bits: u16) -> f64 {
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f64::from(bits & 0x3ff);
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (fraction + 1024.0) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// The bits of a number, rounded to a floating-point type.
pub(crate) fn from_f64(number: f64, ty: Type, rounding: Rounding) -> u64 {
    match ty {
        Type::F32 => round(number, 8, 23, rounding),
        Type::Bf16 => round(number, 8, 7, rounding),
        Type::F16 => round(number, 5, 10, rounding),
        _ => number.to_bits(),
    }
}

/// Rounds to a type with so many bits of exponent and fraction.
fn round(number: f64, exponent_bits: u32, fraction_bits: u32, rounding: Rounding) -> u64 {
    let negative = number.is_sign_negative();
    let sign = u64::from(negative) << (exponent_bits + fraction_bits);
    let infinity = ((1u64 << exponent_bits) - 1) << fraction_bits;
    if number.is_nan() {
        // The one NaN that results have: all ones below the sign.
        return (1 << (exponent_bits + fraction_bits)) - 1;
    }
    if number.is_infinite() {
        return sign | infinity;
    }
    if number == 0.0 {
        return sign;
    }
    let bits = number.to_bits();
    let (mut exponent, mut significand) =
        ((bits >> 52 & 0x7ff) as i32 - 1023, bits & ((1 << 52) - 1));
    if exponent == -1023 {
        // A subnormal f64: moved up until its first bit is where that of others is.
        let up = significand.leading_zeros() - 11;
        significand <<= up;
        exponent = -1022 - up as i32;
    } else {
        significand |= 1 << 52;
    }
    let target = exponent + (1 << (exponent_bits - 1)) - 1;
    let drop = 52 - fraction_bits
        + if target >= 1 {
            0
        } else {
            1u32.saturating_add(target.unsigned_abs())
        };
    let (kept, lost, half) = if drop < 64 {
        (
            significand >> drop,
            significand & ((1 << drop) - 1),
            1 << (drop - 1),
        )
    } else {
        (0, significand, u64::MAX)
    };
    let away = match rounding {
        Rounding::NearestEven => lost > half || (lost == half && kept & 1 == 1),
        Rounding::Zero => false,
        Rounding::Down => negative && lost > 0,
        Rounding::Up => !negative && lost > 0,
    };
    // The first bit of `kept` counts as one more in the exponent; a carry out of the fraction does too.
    let base = if target >= 1 {
        (target as u64 - 1) << fraction_bits
    } else {
        0
    };
    let size = base + kept + u64::from(away);
    if size < infinity {
        return sign | size;
    }
    let to_infinity = match rounding {
        Rounding::NearestEven => true,
        Rounding::Zero => false,
        Rounding::Down => negative,
        Rounding::Up => !negative,
    };
    sign | if to_infinity { infinity } else { infinity - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(to: Type, from: Type, rounding: Rounding) -> Conversion {
        Conversion {
            to,
            from,
            rounding,
            integral: false,
            saturate: false,
            flush: false,
        }
    }

    #[test]
    fn f32_from_f64_is_rounded_as_the_host_does() {
        let mut state = 7u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            // Exponents around those of f32, so that subnormal and infinite results are among them.
            let exponent = 1023 - 160 + (state >> 33) % 300;
            let number = f64::from_bits((state & 0x800f_ffff_ffff_ffff) | exponent << 52);
            let ours = |rounding| f32::from_bits(from_f64(number, Type::F32, rounding) as u32);
            assert_eq!(
                ours(Rounding::NearestEven).to_bits(),
                (number as f32).to_bits(),
                "{number:e}"
            );
            let (down, up) = (ours(Rounding::Down), ours(Rounding::Up));
            assert!(
                f64::from(down) <= number && f64::from(up) >= number,
                "{number:e}"
            );
            assert!(down == up || down.next_up() == up, "{number:e}");
            assert_eq!(
                ours(Rounding::Zero),
                if number < 0.0 { up } else { down },
                "{number:e}"
            );
        }
    }

    #[test]
    fn every_half_comes_back() {
        for bits in 0..=u16::MAX {
            let number = half_to_f64(bits);
            let back = from_f64(number, Type::F16, Rounding::NearestEven);
            if number.is_nan() {
                assert_eq!(back, 0x7fff);
            } else {
                assert_eq!(back, u64::from(bits));
            }
        }
    }

    #[test]
    fn halves_and_bfloats_at_their_edges() {
        let f16 = |number: f32| {
            convert(
                &plain(Type::F16, Type::F32, Rounding::NearestEven),
                number.to_bits().into(),
            )
        };
        assert_eq!(f16(65504.0), 0x7bff);
        assert_eq!(f16(65519.996), 0x7bff);
        assert_eq!(f16(65520.0), 0x7c00);
        assert_eq!(f16(2.0f32.powi(-25)), 0);
        assert_eq!(f16(2.0f32.powi(-25) * 1.001), 1);
        assert_eq!(f16(-0.0), 0x8000);
        assert_eq!(f16(1.0 + 2.0f32.powi(-11)), 0x3c00);
        assert_eq!(f16(1.0 + 3.0 * 2.0f32.powi(-11)), 0x3c02);
        let bf16 = |number: f32, rounding| {
            convert(
                &plain(Type::Bf16, Type::F32, rounding),
                number.to_bits().into(),
            )
        };
        assert_eq!(bf16(1.0 + 2.0f32.powi(-8), Rounding::NearestEven), 0x3f80);
        assert_eq!(bf16(f32::MAX, Rounding::NearestEven), 0x7f80);
        assert_eq!(bf16(f32::MAX, Rounding::Zero), 0x7f7f);
        assert_eq!(bf16(f32::NAN, Rounding::Zero), 0x7fff);
    }

    #[test]
    fn integers_from_floats_clamp() {
        let to = |ty, number: f32, rounding| {
            convert(&plain(ty, Type::F32, rounding), number.to_bits().into())
        };
        assert_eq!(to(Type::U8, 300.0, Rounding::Zero), 255);
        assert_eq!(to(Type::U32, -1.0, Rounding::Zero), 0);
        assert_eq!(to(Type::S32, -1e20, Rounding::Zero), 0x8000_0000);
        assert_eq!(to(Type::S32, 2.5, Rounding::NearestEven), 2);
        assert_eq!(to(Type::S32, -2.5, Rounding::Down) as u32 as i32, -3);
        assert_eq!(to(Type::S32, 2.1, Rounding::Up), 3);
        assert_eq!(to(Type::S32, f32::NAN, Rounding::Zero), 0);
        assert_eq!(to(Type::S64, f32::NAN, Rounding::Zero), 1 << 63);
        assert_eq!(to(Type::U64, 1e30, Rounding::Zero), u64::MAX);
    }

    #[test]
    fn floats_from_integers_round_once() {
        for value in [
            0u64,
            1,
            (1 << 24) + 1,
            (1 << 53) + 1,
            u64::MAX,
            (1 << 63) + (1 << 39),
            (1 << 63) + (1 << 39) + 1,
            (1 << 40) + (1 << 16) + 1,
        ] {
            let to = |ty, rounding| convert(&plain(ty, Type::U64, rounding), value);
            assert_eq!(
                to(Type::F32, Rounding::NearestEven),
                u64::from((value as f32).to_bits()),
                "{value}"
            );
            assert_eq!(
                to(Type::F64, Rounding::NearestEven),
                (value as f64).to_bits(),
                "{value}"
            );
            assert!(
                f32::from_bits(to(Type::F32, Rounding::Zero) as u32) as u128 <= u128::from(value)
            );
            assert!(f64::from_bits(to(Type::F64, Rounding::Up)) as u128 >= u128::from(value));
        }
        assert_eq!(
            convert(&plain(Type::F32, Type::S8, Rounding::NearestEven), 0xff),
            u64::from((-1f32).to_bits())
        );
    }

    #[test]
    fn integers_wrap_or_saturate() {
        let mut conversion = plain(Type::U8, Type::S32, Rounding::NearestEven);
        assert_eq!(convert(&conversion, 300), 44);
        conversion.saturate = true;
        assert_eq!(convert(&conversion, 300), 255);
        assert_eq!(convert(&conversion, (-5i64) as u64), 0);
        assert_eq!(
            convert(&plain(Type::S32, Type::S8, Rounding::NearestEven), 0x80),
            0xffff_ff80
        );
    }
}
