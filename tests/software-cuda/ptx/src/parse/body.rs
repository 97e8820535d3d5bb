//! The inside of a function: declarations, labels and statements, in scopes.

use std::collections::{BTreeSet, HashMap};

use super::instruction::lower;
use super::lexer::Kind;
use super::operand::{self, Written};
use super::words::Words;
use super::{MOST_LOCAL_BYTES, MOST_REGISTERS, Parser, PendingCall, Symbol};
use crate::error::{ParseError, ParseErrorKind};
use crate::ir::{
    Address, FRAME, Flag, Function, Instruction, Op, Operand, Register, Slot, Special, Type,
};

/// What a name inside of a function means.
#[derive(Clone, Copy)]
enum Name {
    Register(Register),
    Predicate(u32),
    Parameter { slot: Slot, tag: u64 },
    Shared(usize),
    Local(u64),
}

#[derive(Default)]
struct Scope {
    parent: Option<usize>,
    names: HashMap<String, Name>,
    labels: HashMap<String, usize>,
    tables: HashMap<String, Vec<(String, u32)>>,
}

/// A branch whose label may stand further below.
struct PendingBranch {
    code: usize,
    label: String,
    scope: usize,
    line: u32,
}

/// A function while it is read.
pub(super) struct Body<'p, 'a> {
    parser: &'p mut Parser<'a>,
    function: Function,
    scopes: Vec<Scope>,
    scope: usize,
    branches: Vec<PendingBranch>,
    pub(super) uses: BTreeSet<usize>,
    registers: u64,
}

impl<'a> Parser<'a> {
    /// Reads a function after its opening brace.
    pub(super) fn body(
        &mut self,
        function: Function,
        parameters: Vec<(String, Slot)>,
    ) -> Result<(Function, BTreeSet<usize>), ParseError> {
        let tag = if function.entry { 0 } else { FRAME };
        let mut body = Body {
            parser: self,
            function,
            scopes: vec![Scope::default()],
            scope: 0,
            branches: Vec::new(),
            uses: BTreeSet::new(),
            registers: 0,
        };
        let line = body.parser.cursor.line();
        for (name, slot) in parameters {
            body.declare(&name, Name::Parameter { slot, tag }, line)?;
        }
        body.statements()?;
        body.resolve()?;
        Ok((body.function, body.uses))
    }
}

impl<'a> Body<'_, 'a> {
    fn statements(&mut self) -> Result<(), ParseError> {
        let mut source = None;
        loop {
            let token = self.parser.cursor.peek();
            if self.parser.cursor.eat("{") {
                self.scopes.push(Scope {
                    parent: Some(self.scope),
                    ..Scope::default()
                });
                self.scope = self.scopes.len() - 1;
                continue;
            }
            if self.parser.cursor.eat("}") {
                match self.scopes[self.scope].parent {
                    Some(parent) => self.scope = parent,
                    None => break,
                }
                continue;
            }
            if self.parser.cursor.eat(";") {
                continue;
            }
            if token.kind == Kind::Word && self.parser.cursor.peek_at(1).is(":") {
                self.parser.cursor.next();
                self.parser.cursor.next();
                self.label(token.text, token.line)?;
                continue;
            }
            if token.kind == Kind::Word && token.text.starts_with('.') {
                self.parser.cursor.next();
                match token.text {
                    ".loc" => {
                        source = self.location()?;
                        self.parser.cursor.rest_of_line(token.line);
                    }
                    ".file" => self.parser.file(token.line)?,
                    ".pragma" => {
                        self.parser.cursor.next();
                        self.parser.cursor.expect(";")?;
                    }
                    ".reg" => self.registers()?,
                    ".shared" => {
                        let index = self.parser.shared_variable(false)?;
                        let name = self.parser.module.shared[index].name.clone();
                        self.declare(&name, Name::Shared(index), token.line)?;
                        self.parser.cursor.expect(";")?;
                    }
                    ".local" => self.local(token.line)?,
                    ".param" => self.call_parameter(token.line)?,
                    other => {
                        return Err(ParseError {
                            line: token.line,
                            kind: ParseErrorKind::UnknownDirective(other.to_owned()),
                        });
                    }
                }
                continue;
            }
            self.instruction(source)?;
        }
        // A function that does not end with `ret` returns at its end.
        let line = self.parser.cursor.line();
        self.parser.module.code.push(Instruction {
            guard: None,
            op: Op::Return,
            line,
            source,
        });
        Ok(())
    }

    fn instruction(&mut self, source: Option<(u32, u32)>) -> Result<(), ParseError> {
        let mut guard = None;
        if self.parser.cursor.eat("@") {
            let negated = self.parser.cursor.eat("!");
            let line = self.parser.cursor.line();
            let name = self.parser.cursor.word("a predicate")?;
            guard = Some(Flag::Predicate {
                index: self.predicate(name, line)?,
                negated,
            });
        }
        let line = self.parser.cursor.line();
        let word = self.parser.cursor.word("an instruction")?;
        let operands = operand::list(&mut self.parser.cursor)?;
        let mut words = Words::new(word, line);
        let op = lower(self, &mut words, &operands)?;
        words.done()?;
        self.parser.module.code.push(Instruction {
            guard,
            op,
            line,
            source,
        });
        Ok(())
    }

    fn location(&mut self) -> Result<Option<(u32, u32)>, ParseError> {
        let file = self.parser.cursor.number()?;
        let line = self.parser.cursor.number()?;
        Ok(u32::try_from(file).ok().zip(u32::try_from(line).ok()))
    }

    fn label(&mut self, name: &str, line: u32) -> Result<(), ParseError> {
        if self.parser.cursor.eat_word(".branchtargets") {
            let mut targets = Vec::new();
            loop {
                let line = self.parser.cursor.line();
                targets.push((self.parser.cursor.word("a label")?.to_owned(), line));
                if !self.parser.cursor.eat(",") {
                    break;
                }
            }
            self.parser.cursor.expect(";")?;
            self.scopes[self.scope]
                .tables
                .insert(name.to_owned(), targets);
            return Ok(());
        }
        match self.scopes[self.scope]
            .labels
            .insert(name.to_owned(), self.parser.module.code.len())
        {
            None => Ok(()),
            Some(_) => Err(ParseError {
                line,
                kind: ParseErrorKind::Repeated(name.to_owned()),
            }),
        }
    }

    /// `.reg .b32 %r<23>, %x;`
    fn registers(&mut self) -> Result<(), ParseError> {
        let line = self.parser.cursor.line();
        let word = self.parser.cursor.word("a type")?;
        let kind = word.strip_prefix('.').unwrap_or("");
        let bits = match (kind, Type::named(kind)) {
            ("pred", _) => None,
            (_, Some(ty)) => Some(ty.bits() as u8),
            _ => {
                return Err(ParseError {
                    line,
                    kind: ParseErrorKind::UnknownDirective(word.to_owned()),
                });
            }
        };
        loop {
            let line = self.parser.cursor.line();
            let name = self.parser.cursor.word("a register")?;
            if self.parser.cursor.eat("<") {
                let count = self.parser.cursor.number()?;
                self.parser.cursor.expect(">")?;
                // Checked before the names are made.
                if count > MOST_REGISTERS {
                    return Err(too_many_registers(line));
                }
                for number in 0..count {
                    self.register_declared(&format!("{name}{number}"), bits, line)?;
                }
            } else {
                self.register_declared(name, bits, line)?;
            }
            if !self.parser.cursor.eat(",") {
                return self.parser.cursor.expect(";");
            }
        }
    }

    fn register_declared(
        &mut self,
        name: &str,
        bits: Option<u8>,
        line: u32,
    ) -> Result<(), ParseError> {
        self.registers += 1;
        if self.registers > MOST_REGISTERS {
            return Err(too_many_registers(line));
        }
        let meaning = match bits {
            None => {
                self.function.predicates += 1;
                Name::Predicate(self.function.predicates as u32 - 1)
            }
            Some(bits) => {
                self.function.registers += 1;
                Name::Register(Register {
                    index: self.function.registers as u32 - 1,
                    bits,
                })
            }
        };
        self.declare(name, meaning, line)
    }

    fn local(&mut self, line: u32) -> Result<(), ParseError> {
        let declared = self.parser.declared()?;
        let len = declared.bytes("a local variable, in bytes", MOST_LOCAL_BYTES, line)?;
        let len = len.ok_or_else(|| {
            self.parser
                .cursor
                .unexpected("the length of a local variable")
        })?;
        let offset = self.function.local_bytes.next_multiple_of(declared.align);
        self.function.local_bytes = offset + len;
        if self.function.local_bytes as u64 > MOST_LOCAL_BYTES {
            return Err(ParseError {
                line,
                kind: ParseErrorKind::TooLarge {
                    what: "local variables, in bytes",
                    limit: MOST_LOCAL_BYTES,
                },
            });
        }
        self.declare(&declared.name, Name::Local(offset as u64), line)?;
        self.parser.cursor.expect(";")
    }

    /// A parameter of a function that is called from here.
    fn call_parameter(&mut self, line: u32) -> Result<(), ParseError> {
        let mut names = Vec::new();
        let slot = self
            .parser
            .parameter(&mut self.function.frame_bytes, line, &mut names)?;
        for (name, _) in names {
            self.declare(&name, Name::Parameter { slot, tag: FRAME }, line)?;
        }
        self.parser.cursor.expect(";")
    }

    fn declare(&mut self, name: &str, meaning: Name, line: u32) -> Result<(), ParseError> {
        match self.scopes[self.scope]
            .names
            .insert(name.to_owned(), meaning)
        {
            None => Ok(()),
            Some(_) => Err(ParseError {
                line,
                kind: ParseErrorKind::Repeated(name.to_owned()),
            }),
        }
    }

    /// The scopes from `scope` outwards.
    fn outwards(&self, scope: usize) -> impl Iterator<Item = &Scope> {
        std::iter::successors(self.scopes.get(scope), |scope| {
            scope.parent.and_then(|parent| self.scopes.get(parent))
        })
    }

    fn find(&self, name: &str, line: u32) -> Result<Name, ParseError> {
        let found = self
            .outwards(self.scope)
            .find_map(|scope| scope.names.get(name).copied());
        found.ok_or_else(|| ParseError {
            line,
            kind: ParseErrorKind::UnknownName(name.to_owned()),
        })
    }

    pub(super) fn register(&self, name: &str, line: u32) -> Result<Option<Register>, ParseError> {
        Ok(match self.find(name, line)? {
            Name::Register(register) => Some(register),
            _ => None,
        })
    }

    pub(super) fn predicate(&self, name: &str, line: u32) -> Result<u32, ParseError> {
        match self.find(name, line) {
            Ok(Name::Predicate(index)) => Ok(index),
            _ => Err(ParseError {
                line,
                kind: ParseErrorKind::UnknownName(name.to_owned()),
            }),
        }
    }

    /// The frame's bytes behind the name of a parameter of a call.
    pub(super) fn call_slot(&self, name: &str, line: u32) -> Result<Option<Slot>, ParseError> {
        Ok(match self.find(name, line)? {
            Name::Parameter { slot, tag: FRAME } => Some(slot),
            _ => None,
        })
    }

    /// The value of an operand; none if it has no value as a number.
    pub(super) fn value(
        &mut self,
        written: &Written<'_>,
        line: u32,
    ) -> Result<Option<Operand>, ParseError> {
        let (text, offset) = match *written {
            Written::Number(bits) => return Ok(Some(Operand::Constant(bits))),
            Written::Name {
                text,
                offset,
                negated: false,
            } => (text, offset),
            _ => return Ok(None),
        };
        if let Some(special) = special(text) {
            return Ok(Some(special));
        }
        let local = self
            .outwards(self.scope)
            .find_map(|scope| scope.names.get(text).copied());
        Ok(match (local, self.parser.symbols.get(text).copied()) {
            (Some(Name::Register(register)), _) if offset == 0 => Some(Operand::Register(register)),
            (Some(Name::Register(_) | Name::Predicate(_)), _) => None,
            (Some(Name::Parameter { slot, tag }), _) => Some(Operand::Constant(
                (tag | slot.offset as u64).wrapping_add_signed(offset),
            )),
            (Some(Name::Local(place)), _) => {
                Some(Operand::Local(place.wrapping_add_signed(offset)))
            }
            (Some(Name::Shared(index)), _) | (None, Some(Symbol::Shared(index))) => {
                self.uses.insert(index);
                Some(Operand::Shared(index, offset))
            }
            (None, Some(Symbol::Global(index))) => Some(Operand::Global(index, offset)),
            (None, None) => {
                return Err(ParseError {
                    line,
                    kind: ParseErrorKind::UnknownName(text.to_owned()),
                });
            }
        })
    }

    pub(super) fn address(
        &mut self,
        written: &Written<'_>,
        line: u32,
    ) -> Result<Option<Address>, ParseError> {
        let Written::Address { base, offset } = written else {
            return Ok(None);
        };
        Ok(self.value(base, line)?.map(|base| Address {
            base,
            offset: *offset,
        }))
    }

    pub(super) fn branch(&mut self, label: &str, line: u32) {
        let code = self.parser.module.code.len();
        self.branches.push(PendingBranch {
            code,
            label: label.to_owned(),
            scope: self.scope,
            line,
        });
    }

    pub(super) fn call(&mut self, name: &str, line: u32) {
        let code = self.parser.module.code.len();
        self.parser.calls.push(PendingCall {
            code,
            name: name.to_owned(),
            line,
        });
    }

    /// Puts the places of labels into branches.
    fn resolve(&mut self) -> Result<(), ParseError> {
        for pending in std::mem::take(&mut self.branches) {
            let place = |label: &str, line: u32| {
                let found = self
                    .outwards(pending.scope)
                    .find_map(|scope| scope.labels.get(label).copied());
                found.ok_or_else(|| ParseError {
                    line,
                    kind: ParseErrorKind::UnknownLabel(label.to_owned()),
                })
            };
            let is_table = matches!(
                self.parser
                    .module
                    .code
                    .get(pending.code)
                    .map(|instruction| &instruction.op),
                Some(Op::BranchTable { .. })
            );
            let places = if is_table {
                let unknown = || ParseError {
                    line: pending.line,
                    kind: ParseErrorKind::UnknownLabel(pending.label.clone()),
                };
                let table = self
                    .outwards(pending.scope)
                    .find_map(|scope| scope.tables.get(&pending.label))
                    .ok_or_else(unknown)?;
                table
                    .iter()
                    .map(|(label, line)| place(label, *line))
                    .collect::<Result<Vec<_>, _>>()?
            } else {
                vec![place(&pending.label, pending.line)?]
            };
            match self
                .parser
                .module
                .code
                .get_mut(pending.code)
                .map(|instruction| &mut instruction.op)
            {
                Some(Op::Branch { target }) => *target = places.first().copied().unwrap_or(*target),
                Some(Op::BranchTable { targets, .. }) => *targets = places,
                _ => {}
            }
        }
        Ok(())
    }
}

fn too_many_registers(line: u32) -> ParseError {
    ParseError {
        line,
        kind: ParseErrorKind::TooLarge {
            what: "registers of a function",
            limit: MOST_REGISTERS,
        },
    }
}

/// Registers that hardware fills, and the two names of constants.
fn special(name: &str) -> Option<Operand> {
    let axis = |base: &str| {
        let axis = name.strip_prefix(base)?.strip_prefix('.')?;
        ["x", "y", "z"].iter().position(|known| *known == axis)
    };
    if let Some(axis) = axis("%tid") {
        return Some(Operand::Special(Special::ThreadInBlock(axis)));
    }
    if let Some(axis) = axis("%ntid") {
        return Some(Operand::Special(Special::BlockSize(axis)));
    }
    if let Some(axis) = axis("%ctaid") {
        return Some(Operand::Special(Special::BlockInGrid(axis)));
    }
    if let Some(axis) = axis("%nctaid") {
        return Some(Operand::Special(Special::GridSize(axis)));
    }
    Some(match name {
        "%laneid" => Operand::Special(Special::Lane),
        "%warpid" => Operand::Special(Special::WarpInBlock),
        "%nwarpid" => Operand::Special(Special::WarpsOfBlock),
        "WARP_SZ" => Operand::Special(Special::WarpSize),
        "%lanemask_lt" => Operand::Special(Special::LanesBelow),
        "%lanemask_le" => Operand::Special(Special::LanesUpTo),
        "%lanemask_gt" => Operand::Special(Special::LanesAbove),
        "%lanemask_ge" => Operand::Special(Special::LanesFrom),
        "%lanemask_eq" => Operand::Special(Special::LaneAlone),
        "%clock" | "%clock64" | "%globaltimer" => Operand::Special(Special::Clock),
        "%dynamic_smem_size" => Operand::Special(Special::DynamicShared),
        "%total_smem_size" => Operand::Special(Special::TotalShared),
        _ => return None,
    })
}
