//! Instructions that threads do together, and calls.

use super::operand::Written;
use super::words::{Args, Words};
use crate::error::ParseError;
use crate::ir::{Op, Register, Slot, Type, Vote};

pub(super) fn sync(words: &mut Words<'_>) -> Result<(), ParseError> {
    // Those without `.sync` do not say who takes part: not for sm_70 and up.
    if words.has("sync") {
        Ok(())
    } else {
        Err(words.missing("sync"))
    }
}

pub(super) fn barrier(
    words: &mut Words<'_>,
    args: &mut Args<'_, '_, '_, '_>,
) -> Result<Op, ParseError> {
    words.has("cta");
    words.has("aligned");
    if words.has("warp") {
        sync(words)?;
        args.count(1)?;
        return Ok(Op::WarpBarrier {
            members: args.value(0)?,
        });
    }
    if words.has("red") {
        args.count(3)?;
        let vote = vote(words, args, "popc")?;
        return Ok(Op::Barrier {
            id: args.value(1)?,
            vote: Some((vote, args.flag(2)?)),
        });
    }
    sync(words)?;
    // With a second operand only some of the threads take part, which is not followed.
    args.count(1)?;
    Ok(Op::Barrier {
        id: args.value(0)?,
        vote: None,
    })
}

/// All, any, uniform, or `counted` (which gives a number); its destination is the first operand.
pub(super) fn vote(
    words: &mut Words<'_>,
    args: &Args<'_, '_, '_, '_>,
    counted: &'static str,
) -> Result<Vote, ParseError> {
    if words.has(counted) {
        words.ty_of(&[Type::B32, Type::U32])?;
        return Ok(Vote::Which(args.register(0)?));
    }
    type Kind = fn(u32) -> Vote;
    let choices: &[(&str, Kind)] = &[
        ("all", Vote::All),
        ("and", Vote::All),
        ("any", Vote::Any),
        ("or", Vote::Any),
        ("uni", Vote::Uniform),
    ];
    let kind = words.needs("what to ask", choices)?;
    if words.has("pred") {
        Ok(kind(args.predicate(0)?))
    } else {
        Err(words.missing("pred"))
    }
}

/// `d` or `d|p`
pub(super) fn pair(args: &Args<'_, '_, '_, '_>) -> Result<(Register, Option<u32>), ParseError> {
    match *args.written(0)? {
        Written::Pair(dst, flag) => {
            let dst = args
                .body
                .register(dst, args.line)?
                .ok_or_else(|| args.bad("a register"))?;
            Ok((dst, Some(args.body.predicate(flag, args.line)?)))
        }
        _ => Ok((args.register(0)?, None)),
    }
}

pub(super) fn call(
    words: &mut Words<'_>,
    args: &mut Args<'_, '_, '_, '_>,
) -> Result<Op, ParseError> {
    words.has("uni");
    let (mut results, mut arguments) = (Vec::new(), Vec::new());
    let mut at = 0;
    if let Written::Tuple(parts) = args.written(0)? {
        results = slots(args, parts)?;
        at = 1;
    }
    let name = args.name(at)?;
    if let Some(written) = args.operands.get(at + 1) {
        let Written::Tuple(parts) = written else {
            return Err(args.bad("arguments in parentheses"));
        };
        arguments = slots(args, parts)?;
    }
    args.count(args.operands.len().min(at + 2))?;
    args.body.call(name, args.line);
    Ok(Op::Call {
        function: usize::MAX,
        arguments,
        results,
    })
}

pub(super) fn slots(
    args: &Args<'_, '_, '_, '_>,
    parts: &[Written<'_>],
) -> Result<Vec<Slot>, ParseError> {
    let slot = |part: &Written<'_>| match part {
        Written::Name {
            text,
            offset: 0,
            negated: false,
        } => args
            .body
            .call_slot(text, args.line)?
            .ok_or_else(|| args.bad("parameters of this call")),
        _ => Err(args.bad("parameters of this call")),
    };
    parts.iter().map(slot).collect()
}

pub(super) fn multiply_bytes(
    words: &mut Words<'_>,
    args: &mut Args<'_, '_, '_, '_>,
) -> Result<Op, ParseError> {
    sync(words)?;
    for part in ["aligned", "m8n8k16", "row", "col"] {
        if !words.has(part) {
            return Err(words.missing("aligned.m8n8k16.row.col"));
        }
    }
    let saturate = words.has("satfinite");
    let bytes = &[Type::U8, Type::S8];
    words.ty_of(&[Type::S32])?;
    let (a, b) = (words.ty_of(bytes)?, words.ty_of(bytes)?);
    words.ty_of(&[Type::S32])?;
    args.count(4)?;
    let both = |registers: Vec<Option<Register>>| match registers.as_slice() {
        [Some(first), Some(second)] => Some([*first, *second]),
        _ => None,
    };
    let dst = both(args.registers(0, 2)?).ok_or_else(|| args.bad("two registers"))?;
    let (left, right, sums) = (args.values(1, 1)?, args.values(2, 1)?, args.values(3, 2)?);
    let (&[left], &[right], &[first, second]) =
        (left.as_slice(), right.as_slice(), sums.as_slice())
    else {
        return Err(args.bad("matrices"));
    };
    Ok(Op::MultiplyBytes {
        signed_a: a.signed(),
        signed_b: b.signed(),
        saturate,
        dst,
        a: left,
        b: right,
        c: [first, second],
    })
}
