//! The parts of an instruction, asked for one by one.
//!
//! Every modifier has to be asked for: what nobody asked for is an error, so nothing is left out silently.

use super::body::Body;
use super::operand::Written;
use crate::error::{ParseError, ParseErrorKind};
use crate::ir::{Address, Flag, Operand, Register, Space, Type};

/// An instruction word, in its parts.
pub(super) struct Words<'a> {
    pub(super) whole: &'a str,
    pub(super) name: &'a str,
    /// Modifiers that nobody has asked for yet.
    parts: Vec<&'a str>,
    pub(super) line: u32,
}

impl<'a> Words<'a> {
    pub(super) fn new(whole: &'a str, line: u32) -> Self {
        let mut parts = whole.split('.');
        let name = parts.next().unwrap_or("");
        Self {
            whole,
            name,
            parts: parts.collect(),
            line,
        }
    }

    /// Whether there is this modifier; it counts as known from now on.
    pub(super) fn has(&mut self, modifier: &str) -> bool {
        let found = self.parts.iter().position(|part| *part == modifier);
        if let Some(index) = found {
            self.parts.remove(index);
        }
        found.is_some()
    }

    /// The first of these modifiers that there is.
    pub(super) fn one_of<T: Copy>(&mut self, choices: &[(&str, T)]) -> Option<T> {
        choices
            .iter()
            .find(|(modifier, _)| self.has(modifier))
            .map(|(_, value)| *value)
    }

    pub(super) fn needs<T: Copy>(
        &mut self,
        wanted: &'static str,
        choices: &[(&str, T)],
    ) -> Result<T, ParseError> {
        self.one_of(choices).ok_or_else(|| self.missing(wanted))
    }

    /// The first type.
    pub(super) fn ty(&mut self) -> Result<Type, ParseError> {
        let (index, ty) = self
            .parts
            .iter()
            .enumerate()
            .find_map(|(index, part)| Some((index, Type::named(part)?)))
            .ok_or_else(|| self.missing("a type"))?;
        self.parts.remove(index);
        Ok(ty)
    }

    /// The first type, which has to be one of these.
    pub(super) fn ty_of(&mut self, allowed: &[Type]) -> Result<Type, ParseError> {
        let ty = self.ty()?;
        if allowed.contains(&ty) {
            Ok(ty)
        } else {
            Err(self.missing("a type that the instruction has"))
        }
    }

    /// Left out: hints to caches and scopes, which change nothing here.
    pub(super) fn hints(&mut self) {
        self.parts.retain(|part| {
            !matches!(
                *part,
                "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "cta" | "gpu" | "sys"
            ) && !part.starts_with("L1::")
                && !part.starts_with("L2::")
        });
    }

    pub(super) fn missing(&self, wanted: &'static str) -> ParseError {
        ParseError {
            line: self.line,
            kind: ParseErrorKind::MissingModifier {
                instruction: self.whole.to_owned(),
                wanted,
            },
        }
    }

    pub(super) fn bad(&self, wanted: &'static str) -> ParseError {
        ParseError {
            line: self.line,
            kind: ParseErrorKind::BadOperand {
                instruction: self.whole.to_owned(),
                wanted,
            },
        }
    }

    /// An error if a modifier is left.
    pub(super) fn done(&self) -> Result<(), ParseError> {
        match self.parts.first() {
            None => Ok(()),
            Some(part) => {
                let kind = ParseErrorKind::UnknownModifier {
                    instruction: self.whole.to_owned(),
                    modifier: (*part).to_owned(),
                };
                Err(ParseError {
                    line: self.line,
                    kind,
                })
            }
        }
    }
}

/// Operands of one instruction, asked for one by one.
pub(super) struct Args<'w, 'b, 'p, 'a> {
    pub(super) body: &'b mut Body<'p, 'a>,
    pub(super) operands: &'w [Written<'a>],
    pub(super) word: String,
    pub(super) line: u32,
}

impl<'w, 'a> Args<'w, '_, '_, 'a> {
    pub(super) fn bad(&self, wanted: &'static str) -> ParseError {
        ParseError {
            line: self.line,
            kind: ParseErrorKind::BadOperand {
                instruction: self.word.clone(),
                wanted,
            },
        }
    }

    pub(super) fn written(&self, index: usize) -> Result<&'w Written<'a>, ParseError> {
        self.operands
            .get(index)
            .ok_or_else(|| self.bad("more operands"))
    }

    pub(super) fn count(&self, wanted: usize) -> Result<(), ParseError> {
        if self.operands.len() == wanted {
            Ok(())
        } else {
            Err(self.bad("another number of operands"))
        }
    }

    pub(super) fn value(&mut self, index: usize) -> Result<Operand, ParseError> {
        let written = self.written(index)?;
        self.body
            .value(written, self.line)?
            .ok_or_else(|| self.bad("a register or a number"))
    }

    pub(super) fn register_of(&self, written: &Written<'_>) -> Result<Register, ParseError> {
        let Written::Name {
            text,
            offset: 0,
            negated: false,
        } = written
        else {
            return Err(self.bad("a register"));
        };
        self.body
            .register(text, self.line)?
            .ok_or_else(|| self.bad("a register"))
    }

    pub(super) fn register(&self, index: usize) -> Result<Register, ParseError> {
        self.register_of(self.written(index)?)
    }

    /// A destination that may be `_`.
    pub(super) fn register_or_sink(
        &self,
        written: &Written<'_>,
    ) -> Result<Option<Register>, ParseError> {
        if matches!(written, Written::Sink) {
            Ok(None)
        } else {
            self.register_of(written).map(Some)
        }
    }

    pub(super) fn predicate(&self, index: usize) -> Result<u32, ParseError> {
        let Written::Name {
            text,
            offset: 0,
            negated: false,
        } = self.written(index)?
        else {
            return Err(self.bad("a predicate"));
        };
        self.body.predicate(text, self.line)
    }

    pub(super) fn flag(&self, index: usize) -> Result<Flag, ParseError> {
        match self.written(index)? {
            Written::Name {
                text,
                offset: 0,
                negated,
            } => Ok(Flag::Predicate {
                index: self.body.predicate(text, self.line)?,
                negated: *negated,
            }),
            Written::Number(value) => Ok(Flag::Constant(*value != 0)),
            _ => Err(self.bad("a predicate")),
        }
    }

    pub(super) fn address(&mut self, index: usize) -> Result<Address, ParseError> {
        let written = self.written(index)?;
        self.body
            .address(written, self.line)?
            .ok_or_else(|| self.bad("an address"))
    }

    /// Parts of a vector, or the one operand; `count` of them.
    pub(super) fn parts(
        &self,
        index: usize,
        count: usize,
    ) -> Result<&'w [Written<'a>], ParseError> {
        let parts = match self.written(index)? {
            Written::Vector(parts) => parts.as_slice(),
            _ => self.operands.get(index..index + 1).unwrap_or(&[]),
        };
        if parts.len() == count {
            Ok(parts)
        } else {
            Err(self.bad("a vector of another length"))
        }
    }

    pub(super) fn registers(
        &self,
        index: usize,
        count: usize,
    ) -> Result<Vec<Option<Register>>, ParseError> {
        self.parts(index, count)?
            .iter()
            .map(|part| self.register_or_sink(part))
            .collect()
    }

    pub(super) fn values(
        &mut self,
        index: usize,
        count: usize,
    ) -> Result<Vec<Operand>, ParseError> {
        let parts = self.parts(index, count)?;
        parts
            .iter()
            .map(|part| {
                self.body
                    .value(part, self.line)?
                    .ok_or_else(|| self.bad("registers or numbers"))
            })
            .collect()
    }

    pub(super) fn name(&self, index: usize) -> Result<&'a str, ParseError> {
        match self.written(index)? {
            Written::Name {
                text,
                offset: 0,
                negated: false,
            } => Ok(text),
            _ => Err(self.bad("a name")),
        }
    }
}

pub(super) const SPACES: &[(&str, Space)] = &[
    ("global", Space::Global),
    ("const", Space::Constant),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("local", Space::Local),
    ("param", Space::Parameter),
];
