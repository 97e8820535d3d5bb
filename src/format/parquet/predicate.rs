//! Conditions on rows, and what they mean for a file.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow_schema::DataType;
use parquet::basic::Repetition;
use parquet::schema::types::SchemaDescriptor;

use super::invalid;
use super::leaves::leaves_of;
use crate::error::Result;

/// A condition on the rows of a file. Begins with [`column()`].
///
/// Three-valued, as in SQL: a comparison with a null is neither true nor false, and rows are kept only where the whole is
/// true. Floating-point numbers compare as IEEE 754 says, so that NaN equals nothing and is neither smaller nor larger
/// than anything (`ne` is true for it), and the two zeros are equal.
///
/// ```
/// use feedwater::parquet::column;
///
/// let recent = column("ts").ge(1_700_000_000_000_000i64);
/// let predicate = recent.and(column("user.country").is_in(["DE", "FR"]));
/// assert_eq!(
///     predicate.to_string(),
///     r#"(ts >= 1700000000000000 and user.country in ["DE", "FR"])"#
/// );
/// ```
#[derive(Clone, Debug)]
#[must_use = "a predicate does nothing by itself"]
pub struct Predicate(Expression);

#[derive(Clone, Debug)]
enum Expression {
    Test(Arc<str>, Test<Value>),
    And(Vec<Predicate>),
    Or(Vec<Predicate>),
    Not(Box<Predicate>),
}

#[derive(Clone, Debug)]
enum Test<V> {
    Compare(Operator, V),
    In(Vec<V>),
    IsNull,
}

/// A column that a [`Predicate`] is about.
#[derive(Clone, Debug)]
#[must_use = "a column is compared with something"]
pub struct Column(Arc<str>);

/// The column of a name, or of a dotted path into structs. Columns inside lists and maps cannot be compared.
pub fn column(path: impl Into<Arc<str>>) -> Column {
    Column(path.into())
}

macro_rules! comparisons {
    ($($name:ident $operator:ident $doc:literal,)*) => {$(
        #[doc = $doc]
        pub fn $name(self, value: impl Into<Value>) -> Predicate {
            self.test(Test::Compare(Operator::$operator, value.into()))
        }
    )*};
}

impl Column {
    comparisons! {
        eq Eq "Equal to `value`.",
        ne Ne "Not equal to `value`.",
        lt Lt "Smaller than `value`.",
        le Le "Smaller than `value`, or equal.",
        gt Gt "Larger than `value`.",
        ge Ge "Larger than `value`, or equal.",
    }

    /// Equal to one of `values`.
    pub fn is_in<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Predicate {
        self.test(Test::In(values.into_iter().map(Into::into).collect()))
    }

    /// Null, or inside a struct that is null. Never undecided.
    pub fn is_null(self) -> Predicate {
        self.test(Test::IsNull)
    }

    /// Not null.
    pub fn is_not_null(self) -> Predicate {
        self.is_null().negate()
    }

    fn test(self, test: Test<Value>) -> Predicate {
        Predicate(Expression::Test(self.0, test))
    }
}

impl Predicate {
    /// True where both are.
    pub fn and(self, other: Predicate) -> Predicate {
        Predicate(Expression::And(vec![self, other]))
    }

    /// True where one of both is.
    pub fn or(self, other: Predicate) -> Predicate {
        Predicate(Expression::Or(vec![self, other]))
    }

    /// True where it is false; undecided where it is undecided. Also written `!predicate`.
    pub fn negate(self) -> Predicate {
        Predicate(Expression::Not(Box::new(self)))
    }
}

/// [`Predicate::negate`].
impl std::ops::Not for Predicate {
    type Output = Predicate;

    fn not(self) -> Predicate {
        self.negate()
    }
}

/// What a column is compared with.
///
/// Booleans for boolean columns; integers for integers, dates, times and timestamps (in the unit of the column's Arrow
/// type) and, as whole numbers, for decimals and floating point; strings and bytes for strings and binaries.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A boolean.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// A floating-point number.
    Float(f64),
    /// Text, compared byte by byte.
    Text(Arc<str>),
    /// Bytes, compared byte by byte as unsigned numbers.
    Bytes(Arc<[u8]>),
}

macro_rules! values {
    ($($variant:ident: $($from:ty),*;)*) => {$($(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Value::$variant(value.into())
            }
        }
    )*)*};
}
values! {
    Bool: bool;
    Int: i8, i16, i32, i64, i128, u8, u16, u32, u64;
    Float: f32, f64;
    Text: &str, String, Arc<str>;
    Bytes: &[u8], Vec<u8>, Arc<[u8]>;
}

/// How two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Operator {
    /// Whether it holds for values of this order; `None`: one of them is NaN.
    pub(crate) fn holds(self, order: Option<Ordering>) -> bool {
        match self {
            Operator::Eq => order == Some(Ordering::Equal),
            Operator::Ne => order != Some(Ordering::Equal),
            Operator::Lt => order == Some(Ordering::Less),
            Operator::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Operator::Gt => order == Some(Ordering::Greater),
            Operator::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

/// A value in the terms of a column, where all comparisons are exact.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Key {
    /// Booleans too; the unscaled value of a decimal.
    Int(i128),
    Float(f64),
    Bytes(Arc<[u8]>),
}

impl Key {
    /// The order of two keys of a kind; `None` for NaN.
    pub(crate) fn order(&self, other: &Key) -> Option<Ordering> {
        match (self, other) {
            (Key::Int(a), Key::Int(b)) => Some(a.cmp(b)),
            (Key::Float(a), Key::Float(b)) => a.partial_cmp(b),
            (Key::Bytes(a), Key::Bytes(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }
}

/// A leaf that a condition is about.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) leaf: usize,
    pub(crate) name: Arc<str>,
    /// Its Arrow type; of its values where that is a dictionary.
    pub(crate) data_type: DataType,
}

/// A [`Predicate`] in the terms of a file.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) node: Node,
    /// Each leaf once, ascending.
    pub(crate) targets: Vec<Target>,
}

#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// One comparison with the target of this position.
    Compare(usize, Operator, Key),
    In(usize, Vec<Key>),
    IsNull(usize),
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
}

impl Bound {
    /// `predicate` on a file of `schema`; `type_of` gives the Arrow type of a leaf.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) for an unknown column, [`InvalidOption`](crate::ErrorKind::InvalidOption)
    /// for a comparison that has no meaning.
    pub(crate) fn new(
        predicate: &Predicate,
        schema: &SchemaDescriptor,
        type_of: &dyn Fn(usize) -> Result<DataType>,
    ) -> Result<Self> {
        let mut targets = Vec::new();
        let node = bind(predicate, schema, type_of, &mut targets, 0)?;
        Ok(Bound { node, targets })
    }

    /// The leaves it needs, ascending.
    pub(crate) fn leaves(&self) -> Vec<usize> {
        let mut leaves: Vec<_> = self.targets.iter().map(|target| target.leaf).collect();
        leaves.sort_unstable();
        leaves
    }
}

/// Where a comparison is (or may be) true, and where it is (or may be) false.
pub(crate) type Sides<S> = (S, S);

impl Node {
    /// Evaluates it bottom up: `leaf` gives where a comparison is (or may be) true, and where false; `and` and `or` join
    /// such sets.
    pub(crate) fn fold<S: Clone, E>(
        &self,
        leaf: &mut dyn FnMut(&Node) -> Result<Sides<S>, E>,
        and: &dyn Fn(&S, &S) -> S,
        or: &dyn Fn(&S, &S) -> S,
    ) -> Result<Option<Sides<S>>, E> {
        let mut all =
            |nodes: &[Node], on_true: &dyn Fn(&S, &S) -> S, on_false: &dyn Fn(&S, &S) -> S| {
                let mut joined: Option<Sides<S>> = None;
                for node in nodes {
                    let Some(next) = node.fold(leaf, and, or)? else {
                        continue;
                    };
                    joined = Some(match joined {
                        None => next,
                        Some(before) => (on_true(&before.0, &next.0), on_false(&before.1, &next.1)),
                    });
                }
                Ok(joined)
            };
        match self {
            Node::And(nodes) => all(nodes, and, or),
            Node::Or(nodes) => all(nodes, or, and),
            Node::Not(node) => Ok(node.fold(leaf, and, or)?.map(|(yes, no)| (no, yes))),
            leaf_node => leaf(leaf_node).map(Some),
        }
    }
}

/// Deeper conditions than any that are written by hand; they are walked recursively.
const DEEPEST: usize = 256;

fn bind(
    predicate: &Predicate,
    schema: &SchemaDescriptor,
    type_of: &dyn Fn(usize) -> Result<DataType>,
    targets: &mut Vec<Target>,
    depth: usize,
) -> Result<Node> {
    if depth > DEEPEST {
        return Err(invalid(format!("a predicate nested deeper than {DEEPEST}")));
    }
    let all = |parts: &[Predicate], targets: &mut Vec<Target>| -> Result<Vec<Node>> {
        parts
            .iter()
            .map(|part| bind(part, schema, type_of, targets, depth + 1))
            .collect()
    };
    Ok(match &predicate.0 {
        Expression::And(parts) => Node::And(all(parts, targets)?),
        Expression::Or(parts) => Node::Or(all(parts, targets)?),
        Expression::Not(part) => {
            Node::Not(Box::new(bind(part, schema, type_of, targets, depth + 1)?))
        }
        Expression::Test(name, test) => {
            let at = target(name, schema, type_of, targets)?;
            let to_key = |value: &Value| match targets.get(at) {
                Some(target) => key(target, value),
                None => Err(invalid("a predicate without a column")),
            };
            match test {
                Test::IsNull => Node::IsNull(at),
                Test::Compare(operator, value) => Node::Compare(at, *operator, to_key(value)?),
                Test::In(values) => Node::In(at, values.iter().map(to_key).collect::<Result<_>>()?),
            }
        }
    })
}

fn target(
    name: &Arc<str>,
    schema: &SchemaDescriptor,
    type_of: &dyn Fn(usize) -> Result<DataType>,
    targets: &mut Vec<Target>,
) -> Result<usize> {
    let leaves = leaves_of(schema, &[name])?;
    let [leaf] = leaves[..] else {
        return Err(invalid(format!(
            "a predicate on {name}, which is not one column but has {} below it",
            leaves.len()
        )));
    };
    let descriptor = schema.column(leaf);
    let repeated = descriptor.max_rep_level() > 0
        || descriptor.self_type().get_basic_info().has_repetition()
            && descriptor.self_type().get_basic_info().repetition() == Repetition::REPEATED;
    if repeated {
        return Err(invalid(format!(
            "a predicate on {name}, which is inside a list or map"
        )));
    }
    if let Some(at) = targets.iter().position(|target| target.leaf == leaf) {
        return Ok(at);
    }
    targets.push(Target {
        leaf,
        name: name.clone(),
        data_type: type_of(leaf)?,
    });
    Ok(targets.len() - 1)
}

/// `value` in the terms of `target`.
fn key(target: &Target, value: &Value) -> Result<Key> {
    use DataType::*;
    let mismatch = || {
        let takes = match &target.data_type {
            Boolean => "booleans",
            Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Duration(_) => {
                "whole numbers in the unit of that type"
            }
            Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 => "whole numbers",
            Decimal32(..) | Decimal64(..) | Decimal128(..) => "whole numbers that fit into it",
            Float16 | Float32 | Float64 => "floats, and whole numbers that a float has exactly",
            Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView
            | FixedSizeBinary(_) => "text and bytes",
            _ => "none, only `is_null` and `is_not_null`",
        };
        invalid(format!(
            "comparing {} of type {} with {value}; the values that it takes: {takes}",
            target.name, target.data_type
        ))
    };
    Ok(match (&target.data_type, value) {
        (Boolean, Value::Bool(value)) => Key::Int(i128::from(*value)),
        (
            Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 | Date32 | Date64
            | Time32(_) | Time64(_) | Timestamp(..) | Duration(_),
            Value::Int(value),
        ) => Key::Int(*value),
        (Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale), Value::Int(value)) => {
            let unscaled = u32::try_from(*scale)
                .ok()
                .and_then(|scale| 10i128.checked_pow(scale))
                .and_then(|factor| value.checked_mul(factor));
            Key::Int(unscaled.ok_or_else(mismatch)?)
        }
        (Float16 | Float32 | Float64, Value::Float(value)) => Key::Float(*value),
        (Float16 | Float32 | Float64, Value::Int(value)) => {
            let float = *value as f64;
            // The conversion back saturates, so the largest number would come back from a float that is larger.
            if float as i128 != *value || *value == i128::MAX {
                return Err(mismatch());
            }
            Key::Float(float)
        }
        (
            Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | FixedSizeBinary(_),
            Value::Text(text),
        ) => Key::Bytes(text.as_bytes().into()),
        (
            Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | FixedSizeBinary(_),
            Value::Bytes(bytes),
        ) => Key::Bytes(bytes.clone()),
        _ => return Err(mismatch()),
    })
}

mod display {
    use super::*;
    use std::fmt::{Display, Formatter, Result};

    impl Display for Predicate {
        fn fmt(&self, f: &mut Formatter<'_>) -> Result {
            let list = |f: &mut Formatter<'_>, parts: &[Predicate], word: &str| {
                f.write_str("(")?;
                for (index, part) in parts.iter().enumerate() {
                    if index > 0 {
                        write!(f, " {word} ")?;
                    }
                    part.fmt(f)?;
                }
                f.write_str(")")
            };
            match &self.0 {
                Expression::And(parts) => list(f, parts, "and"),
                Expression::Or(parts) => list(f, parts, "or"),
                Expression::Not(part) => write!(f, "not {part}"),
                Expression::Test(name, Test::IsNull) => write!(f, "{name} is null"),
                Expression::Test(name, Test::Compare(operator, value)) => {
                    write!(f, "{name} {operator} {value}")
                }
                Expression::Test(name, Test::In(values)) => {
                    write!(f, "{name} in [")?;
                    for (index, value) in values.iter().enumerate() {
                        if index > 0 {
                            f.write_str(", ")?;
                        }
                        value.fmt(f)?;
                    }
                    f.write_str("]")
                }
            }
        }
    }

    impl Display for Operator {
        fn fmt(&self, f: &mut Formatter<'_>) -> Result {
            f.write_str(match self {
                Operator::Eq => "=",
                Operator::Ne => "!=",
                Operator::Lt => "<",
                Operator::Le => "<=",
                Operator::Gt => ">",
                Operator::Ge => ">=",
            })
        }
    }

    impl Display for Value {
        fn fmt(&self, f: &mut Formatter<'_>) -> Result {
            match self {
                Value::Bool(value) => value.fmt(f),
                Value::Int(value) => value.fmt(f),
                Value::Float(value) => value.fmt(f),
                Value::Text(value) => write!(f, "{value:?}"),
                Value::Bytes(value) => write!(f, "b\"{}\"", value.escape_ascii()),
            }
        }
    }
}
