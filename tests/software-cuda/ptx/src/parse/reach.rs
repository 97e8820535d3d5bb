//! Instructions that reach memory: loads, stores, atomics.

use super::words::{Args, SPACES, Words};
use crate::error::ParseError;
use crate::ir::{Atomic, Op, Operand, Order, Space, Type};

pub(super) fn order(words: &mut Words<'_>) -> Order {
    let weak = words.has("weak");
    let strong = words
        .one_of(&[
            ("volatile", ()),
            ("relaxed", ()),
            ("acquire", ()),
            ("release", ()),
        ])
        .is_some();
    if strong && !weak {
        Order::Strong
    } else {
        Order::Weak
    }
}

pub(super) fn lanes(words: &mut Words<'_>) -> usize {
    words.one_of(&[("v2", 2), ("v4", 4)]).unwrap_or(1)
}

pub(super) fn load(
    words: &mut Words<'_>,
    args: &mut Args<'_, '_, '_, '_>,
) -> Result<Op, ParseError> {
    let mut order = order(words);
    if words.has("nc") || words.name == "ldu" {
        order = Order::NonCoherent;
    }
    words.hints();
    let space = words.one_of(SPACES).unwrap_or(Space::Generic);
    let count = lanes(words);
    let ty = words.ty()?;
    args.count(2)?;
    if ty.bytes() * count > 16 {
        return Err(words.bad("16 bytes at most"));
    }
    Ok(Op::Load {
        space,
        ty,
        order,
        dsts: args.registers(0, count)?,
        address: args.address(1)?,
    })
}

pub(super) fn store(
    words: &mut Words<'_>,
    args: &mut Args<'_, '_, '_, '_>,
) -> Result<Op, ParseError> {
    let order = order(words);
    words.hints();
    let space = words.one_of(SPACES).unwrap_or(Space::Generic);
    let count = lanes(words);
    let ty = words.ty()?;
    args.count(2)?;
    if ty.bytes() * count > 16 {
        return Err(words.bad("16 bytes at most"));
    }
    Ok(Op::Store {
        space,
        ty,
        order,
        address: args.address(0)?,
        values: args.values(1, count)?,
    })
}

pub(super) fn atomic(
    words: &mut Words<'_>,
    args: &mut Args<'_, '_, '_, '_>,
) -> Result<Op, ParseError> {
    words.one_of(&[
        ("relaxed", ()),
        ("acquire", ()),
        ("release", ()),
        ("acq_rel", ()),
    ]);
    words.hints();
    let space = words.one_of(SPACES).unwrap_or(Space::Generic);
    let choices = [
        ("add", Atomic::Add),
        ("min", Atomic::Minimum),
        ("max", Atomic::Maximum),
        ("and", Atomic::And),
        ("or", Atomic::Or),
        ("xor", Atomic::Xor),
        ("exch", Atomic::Exchange),
        ("cas", Atomic::CompareAndSwap),
        ("inc", Atomic::Increment),
        ("dec", Atomic::Decrement),
    ];
    let f = words.needs("what to do", &choices)?;
    let ty = words.ty_of(&[
        Type::B32,
        Type::B64,
        Type::U32,
        Type::U64,
        Type::S32,
        Type::S64,
        Type::F32,
        Type::F64,
    ])?;
    if ty.float() && f != Atomic::Add
        || matches!(f, Atomic::Increment | Atomic::Decrement) && ty != Type::U32
    {
        return Err(words.missing("a type that the instruction has"));
    }
    let returns = usize::from(words.name == "atom");
    let second = f == Atomic::CompareAndSwap;
    args.count(returns + 2 + usize::from(second))?;
    let dst = if returns == 1 {
        args.register_or_sink(args.written(0)?)?
    } else {
        None
    };
    let (address, a) = (args.address(returns)?, args.value(returns + 1)?);
    let b = if second {
        args.value(returns + 2)?
    } else {
        Operand::Constant(0)
    };
    Ok(Op::Atomic {
        space,
        f,
        ty,
        dst,
        address,
        a,
        b,
    })
}
