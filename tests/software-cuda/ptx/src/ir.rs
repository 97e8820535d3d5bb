//! A module of PTX in the form that is run: names resolved, instructions decoded.
//!
//! Addresses of variables are settled late: globals when the module is loaded, shared variables for each kernel (it pays
//! only for those that it or its functions use), local variables for each call.

use std::collections::BTreeMap;

/// A module: its kernels, functions and variables.
#[derive(Clone, Debug)]
pub struct Module {
    /// Version of the PTX language, as major and minor number.
    pub version: (u32, u32),
    /// The `sm_` number of the target.
    pub target: u32,
    /// Variables in global and constant memory.
    pub globals: Vec<Variable>,
    /// Variables in shared memory.
    pub shared: Vec<SharedVariable>,
    /// All functions: kernels and those that are called.
    pub functions: Vec<Function>,
    /// Names of the files of `.loc` lines.
    pub files: BTreeMap<u32, String>,
    /// Instructions of all functions, one after another: a branch's target is an index into it.
    pub code: Vec<Instruction>,
}

impl Module {
    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<&Function> {
        self.functions
            .iter()
            .find(|function| function.entry && function.name == name)
    }

    /// Names of all kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.functions
            .iter()
            .filter(|function| function.entry)
            .map(|function| function.name.as_str())
    }
}

/// A variable in global or constant memory.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Alignment in bytes.
    pub align: usize,
    /// First contents; as long as the variable.
    pub bytes: Vec<u8>,
    /// Whether it lies in constant memory.
    pub constant: bool,
}

/// A variable in shared memory.
#[derive(Clone, Debug)]
pub struct SharedVariable {
    /// Its name.
    pub name: String,
    /// Alignment in bytes.
    pub align: usize,
    /// Length in bytes; none if the launch decides (`extern __shared__`).
    pub len: Option<usize>,
}

/// A kernel or a function that is called.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Whether it is a kernel.
    pub entry: bool,
    /// Index of its first instruction.
    pub start: usize,
    /// How many general registers it has.
    pub registers: usize,
    /// How many predicates it has.
    pub predicates: usize,
    /// Place and length of each parameter: of a kernel in the launch's parameters, of a function in its frame.
    pub parameters: Vec<Slot>,
    /// Place and length of what it returns, in its frame.
    pub results: Vec<Slot>,
    /// Bytes of the parameters of a kernel.
    pub parameter_bytes: usize,
    /// Bytes of parameters in the frame of a call: its own (not a kernel's) and those of functions that it calls.
    pub frame_bytes: usize,
    /// Bytes of local memory for one call.
    pub local_bytes: usize,
    /// Of a kernel: most threads of a block, by dimension (`__launch_bounds__`).
    pub max_threads: Option<[u32; 3]>,
    /// Of a kernel: threads of a block, exactly.
    pub required_threads: Option<[u32; 3]>,
    /// Of a kernel: blocks that should fit a multiprocessor.
    pub min_blocks: Option<u32>,
    /// Of a kernel: place in shared memory of each variable of [`Module::shared`] that it or its functions use. There are
    /// gaps between them; one whose length the launch gives has none here.
    pub shared: BTreeMap<usize, Slot>,
    /// Of a kernel: bytes of shared memory that it declares, as hardware would place them.
    pub shared_bytes: usize,
    /// Of a kernel: where the memory that the launch adds begins.
    pub dynamic_offset: usize,
}

/// Marks an address in parameter memory that lies in the frame of a call, not in the kernel's parameters.
pub const FRAME: u64 = 1 << 40;

/// Bytes of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Where they begin.
    pub offset: usize,
    /// How many they are.
    pub len: usize,
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// Only for lanes where this holds.
    pub guard: Option<Flag>,
    /// What it does.
    pub op: Op,
    /// Line of the PTX text.
    pub line: u32,
    /// File number and line of the source, if the text says.
    pub source: Option<(u32, u32)>,
}

/// A type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Type {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    B8,
    B16,
    B32,
    B64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Type {
    /// The type of that name, without the dot.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Length in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::S8 | Self::B8 => 1,
            Self::U16 | Self::S16 | Self::B16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::S32 | Self::B32 | Self::F32 => 4,
            Self::U64 | Self::S64 | Self::B64 | Self::F64 => 8,
        }
    }

    /// Length in bits.
    pub fn bits(self) -> u32 {
        self.bytes() as u32 * 8
    }

    /// Ones in the bits of the type.
    pub fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// Whether it is an integer with a sign.
    pub fn signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// Whether it is a floating-point type.
    pub fn float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }
}

/// A general register: its number in the function and its width in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Number in the function.
    pub index: u32,
    /// Width in bits.
    pub bits: u8,
}

/// A source of a truth value for each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// A predicate, or its opposite.
    Predicate {
        /// Number in the function.
        index: u32,
        /// Whether the opposite is meant.
        negated: bool,
    },
    /// The same for all.
    Constant(bool),
}

/// A source of a value for each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Register(Register),
    /// A number, as bits.
    Constant(u64),
    /// What hardware says of a lane.
    Special(Special),
    /// Address of a variable of [`Module::globals`], with an offset.
    Global(usize, i64),
    /// Address of a variable of [`Module::shared`] in shared memory, with an offset.
    Shared(usize, i64),
    /// Address in the local memory of this call.
    Local(u64),
}

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Special {
    ThreadInBlock(usize),
    BlockSize(usize),
    BlockInGrid(usize),
    GridSize(usize),
    Lane,
    WarpInBlock,
    WarpsOfBlock,
    WarpSize,
    LanesBelow,
    LanesUpTo,
    LanesAbove,
    LanesFrom,
    LaneAlone,
    Clock,
    DynamicShared,
    TotalShared,
}

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Space {
    Generic,
    Global,
    Constant,
    Shared,
    Local,
    Parameter,
}

/// An address: base and offset in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Where.
    pub base: Operand,
    /// Added to it.
    pub offset: i64,
}

/// How an access is ordered with those of other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Not at all: nobody else may touch it meanwhile.
    Weak,
    /// Volatile, relaxed or stronger: may meet others of its kind.
    Strong,
    /// Through the cache that does not see writes (`ld.global.nc`).
    NonCoherent,
}

/// How a floating-point result is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Rounding {
    NearestEven,
    Zero,
    Down,
    Up,
}

/// A function of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Unary {
    Not,
    LogicalNot,
    Negate,
    Absolute,
    CountOnes,
    LeadingZeros,
    ReverseBits,
    FindHighest,
    FindHighestShift,
    SquareRoot,
    Reciprocal,
}

/// A function of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Binary {
    Add,
    AddSaturating,
    Subtract,
    SubtractSaturating,
    Multiply,
    MultiplyHigh,
    MultiplyWide,
    Divide,
    Remainder,
    Minimum,
    MinimumNan,
    Maximum,
    MaximumNan,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    CopySign,
}

/// A function of three values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Ternary {
    MultiplyAdd,
    MultiplyHighAdd,
    MultiplyWideAdd,
    FusedMultiplyAdd,
    ExtractBits,
    Permute,
    FunnelLeft { wrap: bool },
    FunnelRight { wrap: bool },
    Logic { table: u8 },
    SumOfDifferences,
    DotFourBytes { signed: bool, signed_b: bool },
    SelectBySign,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Relation {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    EqualUnordered,
    NotEqualUnordered,
    LessUnordered,
    LessEqualUnordered,
    GreaterUnordered,
    GreaterEqualUnordered,
    BothNumbers,
    AnyNan,
}

/// A function of two truth values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Logic {
    And,
    Or,
    Xor,
}

/// What an atomic operation does with the value that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Atomic {
    Add,
    Minimum,
    Maximum,
    And,
    Or,
    Xor,
    Exchange,
    CompareAndSwap,
    Increment,
    Decrement,
}

/// A conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Type of the result.
    pub to: Type,
    /// Type of the source.
    pub from: Type,
    /// How a floating-point result is rounded; or, for an integer or `integral` one, to which integer.
    pub rounding: Rounding,
    /// Round a floating-point result to an integer.
    pub integral: bool,
    /// Clamp: integers to the range of the type, floating-point to 0..=1.
    pub saturate: bool,
    /// Subnormal f32 become zero.
    pub flush: bool,
}

/// From which lane a shuffle takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What is asked of all lanes, or of all threads at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// Holds for all.
    All(u32),
    /// Holds for one at least.
    Any(u32),
    /// The same for all.
    Uniform(u32),
    /// Which (lanes), or how many (threads at a barrier).
    Which(Register),
}

/// What an instruction does.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Op {
    Nothing,
    Move {
        dst: Register,
        src: Operand,
    },
    Pack {
        dst: Register,
        parts: Vec<Operand>,
    },
    Unpack {
        dsts: Vec<Option<Register>>,
        src: Operand,
    },
    Unary {
        f: Unary,
        ty: Type,
        flush: bool,
        dst: Register,
        a: Operand,
    },
    Binary {
        f: Binary,
        ty: Type,
        flush: bool,
        saturate: bool,
        dst: Register,
        a: Operand,
        b: Operand,
    },
    Ternary {
        f: Ternary,
        ty: Type,
        flush: bool,
        saturate: bool,
        dst: Register,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    InsertBits {
        ty: Type,
        dst: Register,
        a: Operand,
        b: Operand,
        position: Operand,
        len: Operand,
    },
    /// Add or subtract with the carry flag.
    Carry {
        subtract: bool,
        reads: bool,
        writes: bool,
        ty: Type,
        dst: Register,
        a: Operand,
        b: Operand,
    },
    Convert {
        conversion: Conversion,
        dst: Register,
        src: Operand,
    },
    /// Sets `dst` to the comparison (with `combine`), and `complement` to its opposite (with `combine`).
    Compare {
        relation: Relation,
        ty: Type,
        flush: bool,
        combine: Option<(Logic, Flag)>,
        dst: Option<u32>,
        complement: Option<u32>,
        a: Operand,
        b: Operand,
    },
    /// Comparison as a number: all ones, or 1.0.
    Set {
        relation: Relation,
        ty: Type,
        to: Type,
        dst: Register,
        a: Operand,
        b: Operand,
    },
    Select {
        ty: Type,
        dst: Register,
        a: Operand,
        b: Operand,
        flag: Flag,
    },
    Logic {
        f: Logic,
        dst: u32,
        a: Flag,
        b: Flag,
    },
    Load {
        space: Space,
        ty: Type,
        order: Order,
        dsts: Vec<Option<Register>>,
        address: Address,
    },
    Store {
        space: Space,
        ty: Type,
        order: Order,
        values: Vec<Operand>,
        address: Address,
    },
    Atomic {
        space: Space,
        f: Atomic,
        ty: Type,
        dst: Option<Register>,
        address: Address,
        a: Operand,
        b: Operand,
    },
    ToGeneric {
        space: Space,
        dst: Register,
        src: Operand,
    },
    FromGeneric {
        space: Space,
        dst: Register,
        src: Operand,
    },
    IsSpace {
        space: Space,
        dst: u32,
        src: Operand,
    },
    Branch {
        target: usize,
    },
    BranchTable {
        index: Operand,
        targets: Vec<usize>,
    },
    /// Calls a function: arguments from the caller's frame to the callee's, results the other way.
    Call {
        function: usize,
        arguments: Vec<Slot>,
        results: Vec<Slot>,
    },
    Return,
    Exit,
    Trap,
    Barrier {
        id: Operand,
        vote: Option<(Vote, Flag)>,
    },
    WarpBarrier {
        members: Operand,
    },
    Shuffle {
        f: Shuffle,
        dst: Register,
        valid: Option<u32>,
        src: Operand,
        lane: Operand,
        clamp: Operand,
        members: Operand,
    },
    Vote {
        f: Vote,
        flag: Flag,
        members: Operand,
    },
    MatchAny {
        ty: Type,
        dst: Register,
        src: Operand,
        members: Operand,
    },
    MatchAll {
        ty: Type,
        dst: Register,
        all: Option<u32>,
        src: Operand,
        members: Operand,
    },
    Reduce {
        f: Binary,
        ty: Type,
        dst: Register,
        src: Operand,
        members: Operand,
    },
    ActiveMask {
        dst: Register,
    },
    /// Matrix product of bytes, 8×16 by 16×8, added to 8×8 of 32 bits.
    MultiplyBytes {
        signed_a: bool,
        signed_b: bool,
        saturate: bool,
        dst: [Register; 2],
        a: Operand,
        b: Operand,
        c: [Operand; 2],
    },
}
