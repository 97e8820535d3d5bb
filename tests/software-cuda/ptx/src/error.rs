//! What can be wrong with PTX text.

use std::fmt;

/// Why a text is not PTX that this crate can run, and in which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Line of the text, from 1.
    pub line: u32,
    /// What is wrong there.
    pub kind: ParseErrorKind,
}

/// What is wrong with a line of PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// Something else was expected here.
    Unexpected {
        /// What the text has, or nothing at its end.
        found: String,
        /// What would have been right.
        wanted: &'static str,
    },
    /// A directive that this crate does not know.
    UnknownDirective(String),
    /// An instruction that this crate does not know.
    UnknownInstruction(String),
    /// An instruction is known, but not with this modifier.
    UnknownModifier {
        /// The whole instruction word.
        instruction: String,
        /// The part that is not known.
        modifier: String,
    },
    /// An instruction lacks a modifier that it cannot do without.
    MissingModifier {
        /// The whole instruction word.
        instruction: String,
        /// What is missing.
        wanted: &'static str,
    },
    /// An instruction has too few, too many or wrong operands.
    BadOperand {
        /// The whole instruction word.
        instruction: String,
        /// What would have been right.
        wanted: &'static str,
    },
    /// A register, variable, parameter or function that nothing declares.
    UnknownName(String),
    /// A label that nothing marks.
    UnknownLabel(String),
    /// A name that is declared twice.
    Repeated(String),
    /// A number that does not fit or is none.
    BadNumber(String),
    /// Larger than any kernel needs: what, and the limit.
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The most that is taken.
        limit: u64,
    },
    /// No `.version` line: this is not PTX.
    NoVersion,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        match &self.kind {
            ParseErrorKind::Unexpected { found, wanted } if found.is_empty() => {
                write!(f, "the text ends, {wanted} expected")
            }
            ParseErrorKind::Unexpected { found, wanted } => {
                write!(f, "`{found}`, {wanted} expected")
            }
            ParseErrorKind::UnknownDirective(word) => write!(f, "unknown directive `{word}`"),
            ParseErrorKind::UnknownInstruction(word) => write!(f, "unknown instruction `{word}`"),
            ParseErrorKind::UnknownModifier {
                instruction,
                modifier,
            } => write!(f, "`{instruction}`: `.{modifier}` is not known here"),
            ParseErrorKind::MissingModifier {
                instruction,
                wanted,
            } => write!(f, "`{instruction}`: {wanted} is missing"),
            ParseErrorKind::BadOperand {
                instruction,
                wanted,
            } => write!(f, "`{instruction}`: {wanted} expected"),
            ParseErrorKind::UnknownName(name) => write!(f, "`{name}` is not declared"),
            ParseErrorKind::UnknownLabel(name) => write!(f, "no label `{name}`"),
            ParseErrorKind::Repeated(name) => write!(f, "`{name}` is declared twice"),
            ParseErrorKind::BadNumber(text) => write!(f, "`{text}` is not a number that fits"),
            ParseErrorKind::TooLarge { what, limit } => write!(f, "{what}: more than {limit}"),
            ParseErrorKind::NoVersion => write!(f, "no .version: not PTX"),
        }
    }
}

impl std::error::Error for ParseError {}
