//! From an instruction's words and operands to what it does.

use super::body::Body;
use super::operand::Written;
use super::reach::{atomic, load, store};
use super::threads::{barrier, call, multiply_bytes, pair, sync, vote};
use super::words::{Args, SPACES, Words};
use crate::error::{ParseError, ParseErrorKind};
use crate::ir::{
    Binary, Conversion, Flag, Logic, Op, Relation, Rounding, Shuffle, Ternary, Type, Unary,
};

const INTEGERS: &[Type] = &[
    Type::U16,
    Type::U32,
    Type::U64,
    Type::S16,
    Type::S32,
    Type::S64,
];
const NUMBERS: &[Type] = &[
    Type::U16,
    Type::U32,
    Type::U64,
    Type::S16,
    Type::S32,
    Type::S64,
    Type::F32,
    Type::F64,
];
const BITS: &[Type] = &[Type::B16, Type::B32, Type::B64];

pub(super) fn lower<'a>(
    body: &mut Body<'_, 'a>,
    words: &mut Words<'a>,
    operands: &[Written<'a>],
) -> Result<Op, ParseError> {
    let line = words.line;
    let args = &mut Args {
        body,
        operands,
        word: words.whole.to_owned(),
        line,
    };
    let name = words.name;
    let op = match name {
        "mov" => return move_value(words, args),
        "add" | "sub" if words.has("cc") => carry(words, args, false)?,
        "addc" | "subc" => carry(words, args, true)?,
        "add" => float_or_integer(words, args, Binary::Add, Binary::AddSaturating)?,
        "sub" => float_or_integer(words, args, Binary::Subtract, Binary::SubtractSaturating)?,
        "mul" => {
            let f = words.one_of(&[
                ("lo", Binary::Multiply),
                ("hi", Binary::MultiplyHigh),
                ("wide", Binary::MultiplyWide),
            ]);
            match f {
                Some(f) => {
                    let ty = words.ty_of(INTEGERS)?;
                    binary(args, f, ty, false, false)?
                }
                None => {
                    words.has("rn");
                    let (flush, saturate) = (words.has("ftz"), words.has("sat"));
                    let ty = words.ty_of(&[Type::F32, Type::F64])?;
                    binary(args, Binary::Multiply, ty, flush, saturate)?
                }
            }
        }
        "div" => {
            let (rounded, flush) = (words.has("rn"), words.has("ftz"));
            let ty = words.ty_of(NUMBERS)?;
            if ty.float() && !rounded {
                return Err(words.missing("the rounding .rn"));
            }
            binary(args, Binary::Divide, ty, flush, false)?
        }
        "rem" => {
            let ty = words.ty_of(INTEGERS)?;
            binary(args, Binary::Remainder, ty, false, false)?
        }
        "min" | "max" => {
            let (flush, nan) = (words.has("ftz"), words.has("NaN"));
            let ty = words.ty_of(NUMBERS)?;
            let f = match (words.name, nan) {
                ("min", false) => Binary::Minimum,
                ("min", true) => Binary::MinimumNan,
                (_, false) => Binary::Maximum,
                (_, true) => Binary::MaximumNan,
            };
            binary(args, f, ty, flush, false)?
        }
        "and" | "or" | "xor" if words.has("pred") => {
            args.count(3)?;
            Op::Logic {
                f: logic(words.name),
                dst: args.predicate(0)?,
                a: args.flag(1)?,
                b: args.flag(2)?,
            }
        }
        "not" if words.has("pred") => {
            args.count(2)?;
            Op::Logic {
                f: Logic::Xor,
                dst: args.predicate(0)?,
                a: args.flag(1)?,
                b: Flag::Constant(true),
            }
        }
        "and" | "or" | "xor" => {
            let ty = words.ty_of(BITS)?;
            let f = match words.name {
                "and" => Binary::And,
                "or" => Binary::Or,
                _ => Binary::Xor,
            };
            binary(args, f, ty, false, false)?
        }
        "shl" => {
            let ty = words.ty_of(BITS)?;
            binary(args, Binary::ShiftLeft, ty, false, false)?
        }
        "shr" => {
            let ty = words.ty()?;
            binary(args, Binary::ShiftRight, ty, false, false)?
        }
        "copysign" => {
            let ty = words.ty_of(&[Type::F32, Type::F64])?;
            binary(args, Binary::CopySign, ty, false, false)?
        }
        "not" | "cnot" | "popc" | "clz" | "brev" | "bfind" | "neg" | "abs" | "sqrt" | "rcp" => {
            unary(words, args)?
        }
        "mad" => {
            let f = words.needs(
                "lo, hi or wide",
                &[
                    ("lo", Ternary::MultiplyAdd),
                    ("hi", Ternary::MultiplyHighAdd),
                    ("wide", Ternary::MultiplyWideAdd),
                ],
            )?;
            let ty = words.ty_of(INTEGERS)?;
            ternary(args, f, ty, false, false)?
        }
        "fma" => {
            if !words.has("rn") {
                return Err(words.missing("the rounding .rn"));
            }
            let (flush, saturate) = (words.has("ftz"), words.has("sat"));
            let ty = words.ty_of(&[Type::F32, Type::F64])?;
            ternary(args, Ternary::FusedMultiplyAdd, ty, flush, saturate)?
        }
        "sad" => {
            let ty = words.ty_of(INTEGERS)?;
            ternary(args, Ternary::SumOfDifferences, ty, false, false)?
        }
        "bfe" => {
            let ty = words.ty_of(&[Type::U32, Type::U64, Type::S32, Type::S64])?;
            ternary(args, Ternary::ExtractBits, ty, false, false)?
        }
        "bfi" => {
            let ty = words.ty_of(&[Type::B32, Type::B64])?;
            args.count(5)?;
            Op::InsertBits {
                ty,
                dst: args.register(0)?,
                a: args.value(1)?,
                b: args.value(2)?,
                position: args.value(3)?,
                len: args.value(4)?,
            }
        }
        "prmt" => {
            let ty = words.ty_of(&[Type::B32])?;
            ternary(args, Ternary::Permute, ty, false, false)?
        }
        "shf" => {
            let left = words.needs("l or r", &[("l", true), ("r", false)])?;
            let wrap = words.needs("wrap or clamp", &[("wrap", true), ("clamp", false)])?;
            let ty = words.ty_of(&[Type::B32])?;
            ternary(
                args,
                if left {
                    Ternary::FunnelLeft { wrap }
                } else {
                    Ternary::FunnelRight { wrap }
                },
                ty,
                false,
                false,
            )?
        }
        "lop3" => {
            let ty = words.ty_of(&[Type::B32])?;
            args.count(5)?;
            let Written::Number(table @ 0..=255) = *args.written(4)? else {
                return Err(args.bad("a table of 8 bits"));
            };
            let f = Ternary::Logic { table: table as u8 };
            Op::Ternary {
                f,
                ty,
                flush: false,
                saturate: false,
                dst: args.register(0)?,
                a: args.value(1)?,
                b: args.value(2)?,
                c: args.value(3)?,
            }
        }
        "dp4a" => {
            let a = words.ty_of(&[Type::U32, Type::S32])?;
            let b = words.ty_of(&[Type::U32, Type::S32])?;
            ternary(
                args,
                Ternary::DotFourBytes {
                    signed: a.signed(),
                    signed_b: b.signed(),
                },
                Type::B32,
                false,
                false,
            )?
        }
        "slct" => {
            let ty = words.ty()?;
            if words.ty()? != Type::S32 {
                return Err(words.missing("a selector of .s32"));
            }
            ternary(args, Ternary::SelectBySign, ty, false, false)?
        }
        "setp" => compare(words, args)?,
        "set" => {
            let relation = relation(words)?;
            let to = words.ty_of(&[Type::U32, Type::S32, Type::F32])?;
            let ty = words.ty()?;
            args.count(3)?;
            Op::Set {
                relation,
                ty,
                to,
                dst: args.register(0)?,
                a: args.value(1)?,
                b: args.value(2)?,
            }
        }
        "selp" => {
            let ty = words.ty()?;
            args.count(4)?;
            Op::Select {
                ty,
                dst: args.register(0)?,
                a: args.value(1)?,
                b: args.value(2)?,
                flag: args.flag(3)?,
            }
        }
        "cvt" => convert(words, args)?,
        "cvta" => {
            let to = words.has("to");
            let space = words.needs("a kind of memory", SPACES)?;
            words.ty_of(&[Type::U64])?;
            args.count(2)?;
            let (dst, src) = (args.register(0)?, args.value(1)?);
            if to {
                Op::FromGeneric { space, dst, src }
            } else {
                Op::ToGeneric { space, dst, src }
            }
        }
        "isspacep" => {
            let space = words.needs("a kind of memory", SPACES)?;
            args.count(2)?;
            Op::IsSpace {
                space,
                dst: args.predicate(0)?,
                src: args.value(1)?,
            }
        }
        "ld" | "ldu" => load(words, args)?,
        "st" => store(words, args)?,
        "atom" | "red" => atomic(words, args)?,
        "prefetch" | "prefetchu" => {
            words.hints();
            words.one_of(SPACES);
            words.one_of(&[("L1", ()), ("L2", ())]);
            Op::Nothing
        }
        "bra" => {
            words.has("uni");
            args.count(1)?;
            let label = args.name(0)?;
            args.body.branch(label, line);
            Op::Branch { target: 0 }
        }
        "brx" => {
            words.has("uni");
            if !words.has("idx") {
                return Err(words.missing("idx"));
            }
            args.count(2)?;
            let (index, label) = (args.value(0)?, args.name(1)?);
            args.body.branch(label, line);
            Op::BranchTable {
                index,
                targets: Vec::new(),
            }
        }
        "call" => call(words, args)?,
        "ret" => {
            words.has("uni");
            args.count(0)?;
            Op::Return
        }
        "exit" => Op::Exit,
        "trap" => Op::Trap,
        "membar" | "fence" => {
            words.hints();
            words.one_of(&[("gl", ()), ("sc", ()), ("acq_rel", ())]);
            words.has("sc");
            Op::Nothing
        }
        "nanosleep" => {
            words.ty_of(&[Type::U32])?;
            args.count(1)?;
            Op::Nothing
        }
        "bar" | "barrier" => barrier(words, args)?,
        "shfl" => {
            sync(words)?;
            let f = words.needs(
                "up, down, bfly or idx",
                &[
                    ("up", Shuffle::Up),
                    ("down", Shuffle::Down),
                    ("bfly", Shuffle::Butterfly),
                    ("idx", Shuffle::Index),
                ],
            )?;
            words.ty_of(&[Type::B32])?;
            args.count(5)?;
            let (dst, valid) = pair(args)?;
            Op::Shuffle {
                f,
                dst,
                valid,
                src: args.value(1)?,
                lane: args.value(2)?,
                clamp: args.value(3)?,
                members: args.value(4)?,
            }
        }
        "vote" => {
            sync(words)?;
            args.count(3)?;
            let f = vote(words, args, "ballot")?;
            Op::Vote {
                f,
                flag: args.flag(1)?,
                members: args.value(2)?,
            }
        }
        "match" => {
            let all = words.needs("any or all", &[("any", false), ("all", true)])?;
            sync(words)?;
            let ty = words.ty_of(&[Type::B32, Type::B64])?;
            args.count(3)?;
            let (dst, flag) = pair(args)?;
            let (src, members) = (args.value(1)?, args.value(2)?);
            if all {
                Op::MatchAll {
                    ty,
                    dst,
                    all: flag,
                    src,
                    members,
                }
            } else {
                Op::MatchAny {
                    ty,
                    dst,
                    src,
                    members,
                }
            }
        }
        "redux" => {
            sync(words)?;
            let choices = [
                ("add", Binary::Add),
                ("min", Binary::Minimum),
                ("max", Binary::Maximum),
                ("and", Binary::And),
                ("or", Binary::Or),
                ("xor", Binary::Xor),
            ];
            let f = words.needs("what to do", &choices)?;
            let ty = words.ty_of(&[Type::U32, Type::S32, Type::B32])?;
            args.count(3)?;
            Op::Reduce {
                f,
                ty,
                dst: args.register(0)?,
                src: args.value(1)?,
                members: args.value(2)?,
            }
        }
        "activemask" => {
            words.ty_of(&[Type::B32])?;
            args.count(1)?;
            Op::ActiveMask {
                dst: args.register(0)?,
            }
        }
        "mma" => multiply_bytes(words, args)?,
        _ => {
            return Err(ParseError {
                line,
                kind: ParseErrorKind::UnknownInstruction(words.whole.to_owned()),
            });
        }
    };
    Ok(op)
}

fn logic(name: &str) -> Logic {
    match name {
        "and" => Logic::And,
        "or" => Logic::Or,
        _ => Logic::Xor,
    }
}

fn binary(
    args: &mut Args<'_, '_, '_, '_>,
    f: Binary,
    ty: Type,
    flush: bool,
    saturate: bool,
) -> Result<Op, ParseError> {
    args.count(3)?;
    Ok(Op::Binary {
        f,
        ty,
        flush,
        saturate,
        dst: args.register(0)?,
        a: args.value(1)?,
        b: args.value(2)?,
    })
}

fn ternary(
    args: &mut Args<'_, '_, '_, '_>,
    f: Ternary,
    ty: Type,
    flush: bool,
    saturate: bool,
) -> Result<Op, ParseError> {
    args.count(4)?;
    Ok(Op::Ternary {
        f,
        ty,
        flush,
        saturate,
        dst: args.register(0)?,
        a: args.value(1)?,
        b: args.value(2)?,
        c: args.value(3)?,
    })
}

fn float_or_integer(
    words: &mut Words<'_>,
    args: &mut Args<'_, '_, '_, '_>,
    f: Binary,
    saturating: Binary,
) -> Result<Op, ParseError> {
    let (rounded, flush, saturate) = (words.has("rn"), words.has("ftz"), words.has("sat"));
    let ty = words.ty_of(NUMBERS)?;
    if !ty.float() && (rounded || flush || (saturate && ty != Type::S32)) {
        return Err(words.missing("a floating-point type"));
    }
    if ty.float() {
        binary(args, f, ty, flush, saturate)
    } else {
        binary(
            args,
            if saturate { saturating } else { f },
            ty,
            false,
            false,
        )
    }
}

fn carry(
    words: &mut Words<'_>,
    args: &mut Args<'_, '_, '_, '_>,
    reads: bool,
) -> Result<Op, ParseError> {
    let writes = !reads || words.has("cc");
    let ty = words.ty_of(INTEGERS)?;
    args.count(3)?;
    let subtract = words.name.starts_with("sub");
    Ok(Op::Carry {
        subtract,
        reads,
        writes,
        ty,
        dst: args.register(0)?,
        a: args.value(1)?,
        b: args.value(2)?,
    })
}

fn unary(words: &mut Words<'_>, args: &mut Args<'_, '_, '_, '_>) -> Result<Op, ParseError> {
    args.count(2)?;
    let signs: &[Type] = &[Type::S16, Type::S32, Type::S64, Type::F32, Type::F64];
    let wide: &[Type] = &[Type::B32, Type::B64];
    let floats: &[Type] = &[Type::F32, Type::F64];
    let name = words.name;
    let (f, allowed) = match name {
        "not" => (Unary::Not, BITS),
        "cnot" => (Unary::LogicalNot, BITS),
        "popc" => (Unary::CountOnes, wide),
        "clz" => (Unary::LeadingZeros, wide),
        "brev" => (Unary::ReverseBits, wide),
        "bfind" if words.has("shiftamt") => (Unary::FindHighestShift, INTEGERS),
        "bfind" => (Unary::FindHighest, INTEGERS),
        "neg" => (Unary::Negate, signs),
        "abs" => (Unary::Absolute, signs),
        name => {
            if !words.has("rn") {
                return Err(words.missing("the rounding .rn"));
            }
            (
                if name == "sqrt" {
                    Unary::SquareRoot
                } else {
                    Unary::Reciprocal
                },
                floats,
            )
        }
    };
    let flush = words.has("ftz");
    let ty = words.ty_of(allowed)?;
    Ok(Op::Unary {
        f,
        ty,
        flush,
        dst: args.register(0)?,
        a: args.value(1)?,
    })
}

fn move_value(words: &mut Words<'_>, args: &mut Args<'_, '_, '_, '_>) -> Result<Op, ParseError> {
    args.count(2)?;
    if words.has("pred") {
        return Ok(Op::Logic {
            f: Logic::Or,
            dst: args.predicate(0)?,
            a: args.flag(1)?,
            b: Flag::Constant(false),
        });
    }
    let ty = words.ty()?;
    let fits = |count: usize| count == 2 || (count == 4 && ty.bits() >= 32);
    if let Written::Vector(parts) = args.written(1)? {
        let (count, dst) = (parts.len(), args.register(0)?);
        if !fits(count) || u32::from(dst.bits) != ty.bits() {
            return Err(args.bad("parts that fill the register"));
        }
        return Ok(Op::Pack {
            dst,
            parts: args.values(1, count)?,
        });
    }
    if let Written::Vector(parts) = args.written(0)? {
        let dsts = args.registers(0, parts.len())?;
        let part = ty.bits() / dsts.len().max(1) as u32;
        if !fits(dsts.len()) || dsts.iter().flatten().any(|dst| u32::from(dst.bits) != part) {
            return Err(args.bad("parts that the register fills"));
        }
        return Ok(Op::Unpack {
            dsts,
            src: args.value(1)?,
        });
    }
    Ok(Op::Move {
        dst: args.register(0)?,
        src: args.value(1)?,
    })
}

fn relation(words: &mut Words<'_>) -> Result<Relation, ParseError> {
    use Relation::*;
    let choices = [
        ("eq", Equal),
        ("ne", NotEqual),
        ("lt", Less),
        ("le", LessEqual),
        ("gt", Greater),
        ("ge", GreaterEqual),
        ("lo", Less),
        ("ls", LessEqual),
        ("hi", Greater),
        ("hs", GreaterEqual),
        ("equ", EqualUnordered),
        ("neu", NotEqualUnordered),
        ("ltu", LessUnordered),
        ("leu", LessEqualUnordered),
        ("gtu", GreaterUnordered),
        ("geu", GreaterEqualUnordered),
        ("num", BothNumbers),
        ("nan", AnyNan),
    ];
    words.needs("a comparison", &choices)
}

fn compare(words: &mut Words<'_>, args: &mut Args<'_, '_, '_, '_>) -> Result<Op, ParseError> {
    let relation = relation(words)?;
    let combine = words.one_of(&[("and", Logic::And), ("or", Logic::Or), ("xor", Logic::Xor)]);
    let flush = words.has("ftz");
    let ty = words.ty()?;
    args.count(if combine.is_some() { 4 } else { 3 })?;
    let (dst, complement) = match *args.written(0)? {
        Written::Pair(dst, complement) => {
            let flag = |name: &str| {
                if name == "_" {
                    Ok(None)
                } else {
                    args.body.predicate(name, args.line).map(Some)
                }
            };
            (flag(dst)?, flag(complement)?)
        }
        Written::Sink => (None, None),
        _ => (Some(args.predicate(0)?), None),
    };
    let combine = match combine {
        Some(logic) => Some((logic, args.flag(3)?)),
        None => None,
    };
    Ok(Op::Compare {
        relation,
        ty,
        flush,
        combine,
        dst,
        complement,
        a: args.value(1)?,
        b: args.value(2)?,
    })
}

fn convert(words: &mut Words<'_>, args: &mut Args<'_, '_, '_, '_>) -> Result<Op, ParseError> {
    let integral = words.one_of(&[
        ("rni", Rounding::NearestEven),
        ("rzi", Rounding::Zero),
        ("rmi", Rounding::Down),
        ("rpi", Rounding::Up),
    ]);
    let rounded = words.one_of(&[
        ("rn", Rounding::NearestEven),
        ("rz", Rounding::Zero),
        ("rm", Rounding::Down),
        ("rp", Rounding::Up),
    ]);
    let (flush, saturate) = (words.has("ftz"), words.has("sat"));
    let (to, from) = (words.ty()?, words.ty()?);
    args.count(2)?;
    // Where a result may have to be rounded, the instruction has to say how; elsewhere it may not.
    let wanted = match (from.float(), to.float()) {
        (true, false) => integral.is_some() && rounded.is_none(),
        (false, true) => rounded.is_some() && integral.is_none(),
        (false, false) => integral.is_none() && rounded.is_none(),
        (true, true) if to.bytes() < from.bytes() => rounded.is_some() && integral.is_none(),
        (true, true) if to == from => rounded.is_none(),
        (true, true) => integral.is_none() && (rounded.is_none() || to.bytes() == from.bytes()),
    };
    if !wanted {
        return Err(words.missing("the rounding that belongs to these types"));
    }
    let integral_float = from.float() && to.float() && integral.is_some();
    let conversion = Conversion {
        to,
        from,
        rounding: integral.or(rounded).unwrap_or(Rounding::NearestEven),
        integral: integral_float,
        saturate,
        flush,
    };
    Ok(Op::Convert {
        conversion,
        dst: args.register(0)?,
        src: args.value(1)?,
    })
}
