//! Operands as they are written, before it is known what an instruction wants.

use super::lexer::{Cursor, Kind, number};
use crate::error::{ParseError, ParseErrorKind};

/// An operand in the text.
#[derive(Clone, Debug)]
pub(super) enum Written<'a> {
    /// A register, variable, label or function; with an offset, or `!` before it.
    Name {
        text: &'a str,
        offset: i64,
        negated: bool,
    },
    /// A number, as bits.
    Number(u64),
    /// `[base+offset]`; the base is a name or a number.
    Address { base: Box<Written<'a>>, offset: i64 },
    /// `{a, b}`
    Vector(Vec<Written<'a>>),
    /// `(a, b)`
    Tuple(Vec<Written<'a>>),
    /// `d|p`
    Pair(&'a str, &'a str),
    /// `_`
    Sink,
}

/// Reads operands up to the semicolon.
pub(super) fn list<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<Written<'a>>, ParseError> {
    let mut operands = Vec::new();
    if cursor.eat(";") {
        return Ok(operands);
    }
    loop {
        operands.push(one(cursor)?);
        if cursor.eat(";") {
            return Ok(operands);
        }
        cursor.expect(",")?;
    }
}

fn one<'a>(cursor: &mut Cursor<'a>) -> Result<Written<'a>, ParseError> {
    if cursor.eat("{") {
        return Ok(Written::Vector(group(cursor, "}")?));
    }
    if cursor.eat("(") {
        return Ok(Written::Tuple(group(cursor, ")")?));
    }
    if cursor.eat("[") {
        let base = simple(cursor, false)?;
        let offset = offset(cursor)?;
        cursor.expect("]")?;
        return Ok(Written::Address {
            base: Box::new(base),
            offset,
        });
    }
    let first = simple(cursor, true)?;
    if cursor.eat("|") {
        let (Written::Name { text, .. }, second) = (first, cursor.word("a predicate")?) else {
            return Err(cursor.unexpected("a register before |"));
        };
        return Ok(Written::Pair(text, second));
    }
    Ok(first)
}

fn group<'a>(cursor: &mut Cursor<'a>, end: &'static str) -> Result<Vec<Written<'a>>, ParseError> {
    let mut parts = Vec::new();
    if cursor.eat(end) {
        return Ok(parts);
    }
    loop {
        parts.push(simple(cursor, true)?);
        if cursor.eat(end) {
            return Ok(parts);
        }
        cursor.expect(",")?;
    }
}

/// A name or a number; a name with its offset if `offsets`.
fn simple<'a>(cursor: &mut Cursor<'a>, offsets: bool) -> Result<Written<'a>, ParseError> {
    let negated = cursor.eat("!");
    let minus = !negated && cursor.eat("-");
    let token = cursor.peek();
    if token.kind != Kind::Word {
        return Err(cursor.unexpected("an operand"));
    }
    cursor.next();
    if token.text == "_" {
        return Ok(Written::Sink);
    }
    if token.text.starts_with(|first: char| first.is_ascii_digit()) {
        let value = number(token.text).ok_or_else(|| ParseError {
            line: token.line,
            kind: ParseErrorKind::BadNumber(token.text.to_owned()),
        })?;
        return Ok(Written::Number(if minus {
            value.wrapping_neg()
        } else {
            value
        }));
    }
    if minus {
        return Err(ParseError {
            line: token.line,
            kind: ParseErrorKind::BadNumber(format!("-{}", token.text)),
        });
    }
    let offset = if offsets { offset(cursor)? } else { 0 };
    Ok(Written::Name {
        text: token.text,
        offset,
        negated,
    })
}

/// `+4`, `+-4`, `-4` or nothing.
fn offset(cursor: &mut Cursor<'_>) -> Result<i64, ParseError> {
    let plus = cursor.eat("+");
    let minus = cursor.eat("-");
    if !plus && !minus {
        return Ok(0);
    }
    let line = cursor.line();
    let value = cursor.number()?;
    let signed = i64::try_from(value).map_err(|_| ParseError {
        line,
        kind: ParseErrorKind::BadNumber(value.to_string()),
    })?;
    Ok(if minus { -signed } else { signed })
}
