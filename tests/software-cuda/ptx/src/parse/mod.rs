//! From text to a [`Module`]: what stands outside of functions.

mod body;
mod instruction;
mod lexer;
mod operand;
mod reach;
mod threads;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::error::{ParseError, ParseErrorKind};
use crate::ir::{Function, Instruction, Module, Op, SharedVariable, Slot, Type, Variable};
use lexer::{Cursor, Kind};

/// Limits far above what any kernel has, so that damaged text does not take memory.
const MOST_GLOBAL_BYTES: u64 = 256 << 20;
const MOST_LOCAL_BYTES: u64 = 512 << 10;
const MOST_PARAMETER_BYTES: u64 = 32 << 10;
const MOST_REGISTERS: u64 = 1 << 16;
/// Bytes between two shared variables that belong to none.
const SHARED_GAP: usize = 32;

impl Module {
    /// Reads PTX.
    ///
    /// # Errors
    /// The first thing in the text that is not PTX, or that this crate does not carry out, with its line.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        // A text for the driver ends with a zero byte.
        let text = text.trim_end_matches('\0');
        let mut parser = Parser::new(text)?;
        parser.module()?;
        parser.finish()
    }
}

/// What a name outside of functions means.
#[derive(Clone, Copy)]
enum Symbol {
    Global(usize),
    Shared(usize),
}

/// A call whose function may stand further below.
struct PendingCall {
    code: usize,
    name: String,
    line: u32,
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    module: Module,
    symbols: HashMap<String, Symbol>,
    calls: Vec<PendingCall>,
    /// Bytes of all globals so far.
    global_bytes: u64,
    /// Shared variables that each function names.
    uses: Vec<BTreeSet<usize>>,
}

/// What stands before a variable's or function's name.
#[derive(Default)]
struct Linkage {
    external: bool,
}

/// A declared variable.
struct Declared {
    name: String,
    ty: Type,
    align: usize,
    /// None where the brackets are empty.
    count: Option<u64>,
}

impl Declared {
    fn bytes(
        &self,
        what: &'static str,
        limit: u64,
        line: u32,
    ) -> Result<Option<usize>, ParseError> {
        let Some(count) = self.count else {
            return Ok(None);
        };
        match count.checked_mul(self.ty.bytes() as u64) {
            Some(bytes) if bytes <= limit => Ok(Some(bytes as usize)),
            _ => Err(ParseError {
                line,
                kind: ParseErrorKind::TooLarge { what, limit },
            }),
        }
    }
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Self, ParseError> {
        Ok(Self {
            cursor: Cursor::new(text)?,
            module: Module {
                version: (0, 0),
                target: 0,
                globals: Vec::new(),
                shared: Vec::new(),
                functions: Vec::new(),
                files: BTreeMap::new(),
                code: Vec::new(),
            },
            symbols: HashMap::new(),
            calls: Vec::new(),
            global_bytes: 0,
            uses: Vec::new(),
        })
    }

    fn module(&mut self) -> Result<(), ParseError> {
        let mut linkage = Linkage::default();
        loop {
            let token = self.cursor.peek();
            if token.kind == Kind::End {
                break;
            }
            if self.module.version == (0, 0)
                && !(token.kind == Kind::Word
                    && matches!(token.text, ".version" | ".file" | ".loc"))
            {
                return Err(ParseError {
                    line: token.line,
                    kind: ParseErrorKind::NoVersion,
                });
            }
            let word = self.cursor.word("a directive")?;
            match word {
                ".version" => self.version(token.line)?,
                ".target" => self.target()?,
                ".address_size" => {
                    if self.cursor.number()? != 64 {
                        return Err(ParseError {
                            line: token.line,
                            kind: ParseErrorKind::UnknownDirective(
                                ".address_size other than 64".into(),
                            ),
                        });
                    }
                }
                ".file" => self.file(token.line)?,
                ".loc" => self.cursor.rest_of_line(token.line),
                ".section" => {
                    self.cursor.word("the name of a section")?;
                    self.cursor.expect("{")?;
                    self.cursor.skip_block()?;
                }
                ".visible" | ".weak" | ".common" => {}
                ".extern" => linkage.external = true,
                ".global" | ".const" => {
                    self.global(word == ".const")?;
                    linkage = Linkage::default();
                }
                ".shared" => {
                    self.shared(linkage.external)?;
                    linkage = Linkage::default();
                }
                ".entry" | ".func" => {
                    self.function(word == ".entry")?;
                    linkage = Linkage::default();
                }
                other => {
                    return Err(ParseError {
                        line: token.line,
                        kind: ParseErrorKind::UnknownDirective(other.to_owned()),
                    });
                }
            }
        }
        if self.module.version == (0, 0) {
            Err(ParseError {
                line: 1,
                kind: ParseErrorKind::NoVersion,
            })
        } else {
            Ok(())
        }
    }

    fn version(&mut self, line: u32) -> Result<(), ParseError> {
        let word = self.cursor.word("a version")?;
        let parts = word.split_once('.').and_then(|(major, minor)| {
            Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
        });
        match parts {
            Some(version) if version != (0, 0) => self.module.version = version,
            _ => {
                return Err(ParseError {
                    line,
                    kind: ParseErrorKind::BadNumber(word.to_owned()),
                });
            }
        }
        Ok(())
    }

    fn target(&mut self) -> Result<(), ParseError> {
        let line = self.cursor.line();
        let word = self.cursor.word("a target")?;
        let digits = word
            .strip_prefix("sm_")
            .map(|rest| rest.trim_end_matches('a'))
            .and_then(|digits| digits.parse().ok());
        self.module.target = digits.ok_or_else(|| ParseError {
            line,
            kind: ParseErrorKind::BadNumber(word.to_owned()),
        })?;
        while self.cursor.eat(",") {
            let line = self.cursor.line();
            match self.cursor.word("a property of the target")? {
                "debug" | "texmode_unified" | "texmode_independent" => {}
                other => {
                    return Err(ParseError {
                        line,
                        kind: ParseErrorKind::UnknownDirective(other.to_owned()),
                    });
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, line: u32) -> Result<(), ParseError> {
        let number = self.cursor.number()?;
        let token = self.cursor.peek();
        if token.kind != Kind::Quoted {
            return Err(self.cursor.unexpected("the name of a file"));
        }
        if let Ok(number) = u32::try_from(number) {
            self.module.files.insert(number, token.text.to_owned());
        }
        self.cursor.rest_of_line(line);
        Ok(())
    }

    /// `.align 4 .b8 name[128]`, after the kind of memory.
    fn declared(&mut self) -> Result<Declared, ParseError> {
        let mut align = None;
        let mut ty = None;
        loop {
            let line = self.cursor.line();
            let word = self.cursor.word("the name of a variable")?;
            if word == ".align" {
                let value = self.cursor.number()?;
                if !value.is_power_of_two() || value > 4096 {
                    return Err(ParseError {
                        line,
                        kind: ParseErrorKind::BadNumber(value.to_string()),
                    });
                }
                align = Some(value as usize);
            } else if word == ".ptr" || matches!(word, ".global" | ".shared" | ".const" | ".local")
            {
                // Of a parameter that is a pointer: nothing that changes how it is read.
            } else if let Some(name) = word.strip_prefix('.') {
                ty = Some(Type::named(name).ok_or_else(|| ParseError {
                    line,
                    kind: ParseErrorKind::UnknownDirective(word.to_owned()),
                })?);
            } else {
                let ty = ty.ok_or_else(|| ParseError {
                    line,
                    kind: ParseErrorKind::MissingModifier {
                        instruction: word.to_owned(),
                        wanted: "a type",
                    },
                })?;
                let mut count = Some(1u64);
                while self.cursor.eat("[") {
                    if self.cursor.eat("]") {
                        count = None;
                        continue;
                    }
                    let line = self.cursor.line();
                    let length = self.cursor.number()?;
                    count = match count.map(|count| count.checked_mul(length)) {
                        Some(Some(count)) => Some(count),
                        Some(None) => {
                            return Err(ParseError {
                                line,
                                kind: ParseErrorKind::BadNumber(length.to_string()),
                            });
                        }
                        None => None,
                    };
                    self.cursor.expect("]")?;
                }
                return Ok(Declared {
                    name: word.to_owned(),
                    ty,
                    align: align.unwrap_or(ty.bytes()).max(ty.bytes()),
                    count,
                });
            }
        }
    }

    fn global(&mut self, constant: bool) -> Result<(), ParseError> {
        loop {
            let line = self.cursor.line();
            let declared = self.declared()?;
            let too_large = ParseError {
                line,
                kind: ParseErrorKind::TooLarge {
                    what: "global variables",
                    limit: MOST_GLOBAL_BYTES,
                },
            };
            let len = declared
                .bytes("global variables", MOST_GLOBAL_BYTES, line)?
                .ok_or_else(|| self.cursor.unexpected("the length of a global variable"))?;
            self.global_bytes += len as u64;
            if self.global_bytes > MOST_GLOBAL_BYTES {
                return Err(too_large);
            }
            let mut bytes = Vec::new();
            if self.cursor.eat("=") {
                self.initial(declared.ty, len, &mut bytes)?;
            }
            bytes.resize(len, 0);
            self.add_symbol(
                &declared.name,
                Symbol::Global(self.module.globals.len()),
                line,
            )?;
            self.module.globals.push(Variable {
                name: declared.name,
                align: declared.align,
                bytes,
                constant,
            });
            if !self.cursor.eat(",") {
                return self.cursor.expect(";");
            }
        }
    }

    /// Values of a variable, in braces or alone.
    fn initial(&mut self, ty: Type, len: usize, bytes: &mut Vec<u8>) -> Result<(), ParseError> {
        let mut depth = 0u32;
        loop {
            if self.cursor.eat("{") {
                depth += 1;
                continue;
            }
            let line = self.cursor.line();
            let negative = self.cursor.eat("-");
            let value = self.cursor.number()?;
            let value = if negative {
                value.wrapping_neg()
            } else {
                value
            };
            if bytes.len() + ty.bytes() > len {
                return Err(ParseError {
                    line,
                    kind: ParseErrorKind::TooLarge {
                        what: "values of a variable, in bytes",
                        limit: len as u64,
                    },
                });
            }
            bytes.extend_from_slice(value.to_le_bytes().get(..ty.bytes()).unwrap_or(&[]));
            while depth > 0 && self.cursor.eat("}") {
                depth -= 1;
            }
            if depth == 0 {
                return Ok(());
            }
            self.cursor.expect(",")?;
        }
    }

    fn shared(&mut self, external: bool) -> Result<(), ParseError> {
        let line = self.cursor.line();
        let index = self.shared_variable(external)?;
        let name = self
            .module
            .shared
            .get(index)
            .map(|variable| variable.name.clone())
            .unwrap_or_default();
        self.add_symbol(&name, Symbol::Shared(index), line)?;
        self.cursor.expect(";")
    }

    /// A shared variable, inside of a function or not; gives its number.
    fn shared_variable(&mut self, external: bool) -> Result<usize, ParseError> {
        let line = self.cursor.line();
        let declared = self.declared()?;
        let len = declared.bytes("a shared variable, in bytes", MOST_LOCAL_BYTES, line)?;
        // Only one whose length the launch gives may have none.
        let len = match (len, external) {
            (Some(len), false) => Some(len),
            (_, true) => None,
            (None, false) => return Err(self.cursor.unexpected("the length of a shared variable")),
        };
        self.module.shared.push(SharedVariable {
            name: declared.name,
            align: declared.align,
            len,
        });
        Ok(self.module.shared.len() - 1)
    }

    fn add_symbol(&mut self, name: &str, symbol: Symbol, line: u32) -> Result<(), ParseError> {
        match self.symbols.insert(name.to_owned(), symbol) {
            None => Ok(()),
            Some(_) => Err(ParseError {
                line,
                kind: ParseErrorKind::Repeated(name.to_owned()),
            }),
        }
    }

    /// Adds parameters in parentheses to `slots`, and their names with their slots to `names`.
    fn parameters(
        &mut self,
        bytes: &mut usize,
        slots: &mut Vec<Slot>,
        names: &mut Vec<(String, Slot)>,
    ) -> Result<(), ParseError> {
        self.cursor.expect("(")?;
        if self.cursor.eat(")") {
            return Ok(());
        }
        loop {
            let line = self.cursor.line();
            if !self.cursor.eat_word(".param") {
                return Err(self.cursor.unexpected(".param"));
            }
            let slot = self.parameter(bytes, line, names)?;
            slots.push(slot);
            if !self.cursor.eat(",") {
                return self.cursor.expect(")");
            }
        }
    }

    /// One parameter after its `.param`, placed after `bytes`.
    fn parameter(
        &mut self,
        bytes: &mut usize,
        line: u32,
        names: &mut Vec<(String, Slot)>,
    ) -> Result<Slot, ParseError> {
        let declared = self.declared()?;
        let len = declared
            .bytes("a parameter, in bytes", MOST_PARAMETER_BYTES, line)?
            .ok_or_else(|| self.cursor.unexpected("the length of a parameter"))?;
        let offset = bytes.next_multiple_of(declared.align);
        *bytes = offset + len;
        if *bytes as u64 > MOST_PARAMETER_BYTES {
            return Err(ParseError {
                line,
                kind: ParseErrorKind::TooLarge {
                    what: "parameters, in bytes",
                    limit: MOST_PARAMETER_BYTES,
                },
            });
        }
        let slot = Slot { offset, len };
        names.push((declared.name, slot));
        Ok(slot)
    }

    fn function(&mut self, entry: bool) -> Result<(), ParseError> {
        let mut function = Function {
            entry,
            start: self.module.code.len(),
            ..Function::default()
        };
        let mut names = Vec::new();
        let mut bytes = 0;
        while self.cursor.eat_word(".attribute") {
            self.cursor.expect("(")?;
            while !self.cursor.eat(")") {
                if self.cursor.next().kind == Kind::End {
                    return Err(self.cursor.unexpected(")"));
                }
            }
        }
        if !entry && self.cursor.peek().is("(") {
            self.parameters(&mut bytes, &mut function.results, &mut names)?;
        }
        let line = self.cursor.line();
        function.name = self.cursor.word("the name of a function")?.to_owned();
        if self.cursor.peek().is("(") {
            self.parameters(&mut bytes, &mut function.parameters, &mut names)?;
        }
        if entry {
            function.parameter_bytes = bytes;
        } else {
            function.frame_bytes = bytes;
        }
        self.limits(&mut function)?;
        if self.cursor.eat(";") {
            // Only said, not written; a call of it finds the one that is, or an error.
            return Ok(());
        }
        if self
            .module
            .functions
            .iter()
            .any(|other| other.name == function.name)
        {
            return Err(ParseError {
                line,
                kind: ParseErrorKind::Repeated(function.name),
            });
        }
        self.cursor.expect("{")?;
        let (function, uses) = self.body(function, names)?;
        self.module.functions.push(function);
        self.uses.push(uses);
        Ok(())
    }

    /// Directives between a function's parameters and its body.
    fn limits(&mut self, function: &mut Function) -> Result<(), ParseError> {
        loop {
            let token = self.cursor.peek();
            if token.kind != Kind::Word {
                return Ok(());
            }
            self.cursor.next();
            match token.text {
                ".maxntid" => function.max_threads = Some(self.three()?),
                ".reqntid" => function.required_threads = Some(self.three()?),
                ".minnctapersm" => function.min_blocks = u32::try_from(self.cursor.number()?).ok(),
                ".maxnreg" => {
                    self.cursor.number()?;
                }
                ".noreturn" => {}
                ".pragma" => {
                    self.cursor.next();
                    self.cursor.expect(";")?;
                }
                other => {
                    return Err(ParseError {
                        line: token.line,
                        kind: ParseErrorKind::UnknownDirective(other.to_owned()),
                    });
                }
            }
        }
    }

    /// One to three numbers with commas between; those that are missing are 1.
    fn three(&mut self) -> Result<[u32; 3], ParseError> {
        let mut values = [1; 3];
        for (index, value) in values.iter_mut().enumerate() {
            if index > 0 && !self.cursor.eat(",") {
                break;
            }
            let line = self.cursor.line();
            let number = self.cursor.number()?;
            *value = u32::try_from(number).map_err(|_| ParseError {
                line,
                kind: ParseErrorKind::BadNumber(number.to_string()),
            })?;
        }
        Ok(values)
    }

    /// Finds the functions of calls, and gives each kernel its shared memory.
    fn finish(mut self) -> Result<Module, ParseError> {
        let names: HashMap<String, usize> = self
            .module
            .functions
            .iter()
            .enumerate()
            .map(|(index, function)| (function.name.clone(), index))
            .collect();
        for call in &self.calls {
            let unknown = || ParseError {
                line: call.line,
                kind: ParseErrorKind::UnknownName(call.name.clone()),
            };
            let index = *names.get(&call.name).ok_or_else(unknown)?;
            let target = self.module.functions.get(index).ok_or_else(unknown)?;
            let Some(Instruction {
                op:
                    Op::Call {
                        function,
                        arguments,
                        results,
                    },
                ..
            }) = self.module.code.get_mut(call.code)
            else {
                return Err(unknown());
            };
            let fits = |ours: &[Slot], theirs: &[Slot]| {
                ours.len() == theirs.len()
                    && ours
                        .iter()
                        .zip(theirs)
                        .all(|(ours, theirs)| ours.len == theirs.len)
            };
            if target.entry
                || !fits(arguments, &target.parameters)
                || !fits(results, &target.results)
            {
                let wanted = "arguments and results as the function has them";
                return Err(ParseError {
                    line: call.line,
                    kind: ParseErrorKind::BadOperand {
                        instruction: format!("call {}", call.name),
                        wanted,
                    },
                });
            }
            *function = index;
        }
        for index in 0..self.module.functions.len() {
            if self.module.functions[index].entry {
                self.place_shared(index);
            }
        }
        Ok(self.module)
    }

    /// Places the shared variables that a kernel or its functions use, in the order of their declaration.
    fn place_shared(&mut self, kernel: usize) {
        let mut reached = BTreeSet::from([kernel]);
        let mut todo = vec![kernel];
        let mut used = BTreeSet::new();
        while let Some(index) = todo.pop() {
            used.extend(self.uses.get(index).into_iter().flatten().copied());
            let start = self.module.functions[index].start;
            let end = self
                .module
                .functions
                .get(index + 1)
                .map_or(self.module.code.len(), |next| next.start);
            for instruction in self.module.code.get(start..end).unwrap_or(&[]) {
                if let Op::Call { function, .. } = instruction.op
                    && reached.insert(function)
                {
                    todo.push(function);
                }
            }
        }
        // `bytes` is what hardware would need; `at` has gaps, which catch what runs out of a variable.
        let (mut at, mut bytes) = (0usize, 0usize);
        let mut places = BTreeMap::new();
        let variable = |index: &usize| self.module.shared.get(*index);
        for (index, variable, len) in used.iter().filter_map(|index| {
            variable(index).and_then(|variable| Some((*index, variable, variable.len?)))
        }) {
            bytes = bytes.next_multiple_of(variable.align) + len;
            let offset = at.next_multiple_of(variable.align);
            places.insert(index, Slot { offset, len });
            at = offset + len + SHARED_GAP;
        }
        let align = used
            .iter()
            .filter_map(variable)
            .filter(|variable| variable.len.is_none())
            .map(|variable| variable.align)
            .max()
            .unwrap_or(1)
            .max(16);
        let dynamic = at.next_multiple_of(align);
        for index in used {
            places.entry(index).or_insert(Slot {
                offset: dynamic,
                len: 0,
            });
        }
        let function = &mut self.module.functions[kernel];
        function.shared = places;
        function.shared_bytes = bytes;
        function.dynamic_offset = dynamic;
    }
}
