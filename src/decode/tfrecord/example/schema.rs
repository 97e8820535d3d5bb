//! What the features of examples are to become.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::error::{Error, ErrorKind, Result};
use crate::format::tfrecord::example::Kind;

/// Which features of `tf.train.Example`s or `SequenceExample`s become columns, and of what type.
///
/// Features that it does not name are skipped unread. The columns are in the order in which the features were added:
/// the counterpart of the dictionary that `tf.io.parse_example` takes. [`infer`](Self::infer) makes one from examples.
///
/// ```
/// use feedwater::tfrecord::{ExampleSchema, Feature, ValueType};
///
/// let schema = ExampleSchema::new()
///     .with(Feature::scalar("image", ValueType::Binary).required())
///     .with(Feature::scalar("label", ValueType::Int64).or_default(-1i64))
///     .with(Feature::fixed("embedding", ValueType::Float32, [128]))
///     .with(Feature::variable("tags", ValueType::Utf8));
/// assert_eq!(schema.arrow_schema()?.field(2).name(), "embedding");
/// # Ok::<(), feedwater::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExampleSchema {
    pub(super) context: Vec<Feature>,
    pub(super) lists: Vec<Feature>,
    pub(super) large: bool,
    /// How many examples it was inferred from; 0: it was given.
    pub(super) inferred_from: usize,
}

/// One feature: its name, the type and shape of its values, and what stands where an example does not have it.
///
/// | made by | column | like |
/// |---|---|---|
/// | [`scalar`](Self::scalar) | the values | `FixedLenFeature([], …)` |
/// | [`fixed`](Self::fixed) | `FixedSizeList` of the product of the shape | `FixedLenFeature(shape, …)` |
/// | [`variable`](Self::variable) | `List` | `VarLenFeature`, `RaggedFeature` |
///
/// A shape of more than one dimension is kept in the field's metadata as the canonical extension type
/// `arrow.fixed_shape_tensor`, row-major.
///
/// An example that does not have the feature, or has it without a list, gets null, unless [`required`](Self::required) or
/// [`or_default`](Self::or_default) say otherwise. A list without values is not missing: it is an empty list where the
/// feature is variable, and an error where it is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Feature {
    pub(super) name: Arc<str>,
    /// Name of the column.
    pub(super) column: Arc<str>,
    pub(super) values: ValueType,
    pub(super) shape: Shape,
    pub(super) missing: Missing,
}

/// Type of the values of a feature in Arrow, and with it the kind of list that an example has to have.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// `float_list`, as it is.
    Float32,
    /// `int64_list`, as it is.
    Int64,
    /// `int64_list`, with an error for a value that does not fit.
    Int32,
    /// `int64_list`, with an error for a value that does not fit.
    UInt8,
    /// `bytes_list`, as it is.
    Binary,
    /// `bytes_list`, with an error for a value that is not UTF-8.
    Utf8,
    /// `bytes_list` as `BinaryView`: values of more than 12 bytes are not copied, they stay in the memory that the file was read
    /// into, which the batch keeps. For images and other large values that are looked at soon.
    BinaryView,
    /// The same as `Utf8View`, with an error for a value that is not UTF-8.
    Utf8View,
}

/// Values that stand where an example does not have a feature; see [`Feature::or_default`].
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum DefaultValues {
    /// For [`ValueType::Float32`].
    Float(Vec<f32>),
    /// For the integer types.
    Int64(Vec<i64>),
    /// For [`ValueType::Binary`], [`ValueType::Utf8`] and their views.
    Bytes(Vec<Vec<u8>>),
}

/// How many values a feature has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Variable,
    /// Empty: one value, in a column of its own type.
    Fixed(Vec<usize>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Missing {
    Null,
    Error,
    Default(DefaultValues),
}

impl ExampleSchema {
    /// No features yet.
    pub fn new() -> Self {
        ExampleSchema::default()
    }

    /// Adds a feature of `Example.features`, or of `SequenceExample.context`, which has the same place in the bytes.
    #[must_use]
    pub fn with(mut self, feature: Feature) -> Self {
        self.context.push(feature);
        self
    }

    /// Adds a feature of `SequenceExample.feature_lists`: a column of `List`, each element what `feature` says of one step.
    ///
    /// So a variable one becomes `List<List<…>>`. What the feature says of what is missing holds for steps without a list;
    /// an example without the feature gets null, an error ([`required`](Feature::required)), or with
    /// [`or_default`](Feature::or_default) a list without steps.
    #[must_use]
    pub fn with_list(mut self, feature: Feature) -> Self {
        self.lists.push(feature);
        self
    }

    /// Offsets of 64 bits: `LargeList`, `LargeBinary`, `LargeUtf8`. Default `false`: a batch whose values of one column would
    /// pass 2 GiB, or 2³¹ elements, ends before.
    #[must_use]
    pub fn large_offsets(mut self, large: bool) -> Self {
        self.large = large;
        self
    }

    /// The features of examples, in the order of the columns.
    pub fn features(&self) -> &[Feature] {
        &self.context
    }

    /// The features of the feature lists; their columns follow those of [`features`](Self::features).
    pub fn list_features(&self) -> &[Feature] {
        &self.lists
    }

    /// The schema of the record batches.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] if two columns have the same name, a shape has a dimension of 0 or more than 2³¹ values, or a
    /// default does not have the type and number of the values that it stands for.
    pub fn arrow_schema(&self) -> Result<SchemaRef> {
        let mut fields = Vec::with_capacity(self.context.len() + self.lists.len());
        let (mut names, mut columns) = (HashSet::new(), HashSet::new());
        let context = self.context.iter().map(|feature| (false, feature));
        let lists = self.lists.iter().map(|feature| (true, feature));
        for (is_list, feature) in context.chain(lists) {
            feature.check()?;
            if !names.insert((is_list, &feature.name)) || !columns.insert(&feature.column) {
                return Err(invalid(&feature.name, "there is another of the same name"));
            }
            let field = feature.field(self.large);
            fields.push(if is_list {
                let nullable = feature.missing == Missing::Null;
                let item = field.with_name(ITEM);
                Field::new(&*feature.column, list(item, self.large), nullable)
            } else {
                field
            });
        }
        Ok(Arc::new(Schema::new(fields)))
    }
}

impl Feature {
    /// One value in each example: a column of the values.
    pub fn scalar(name: impl Into<Arc<str>>, values: ValueType) -> Self {
        Feature::fixed(name, values, [])
    }

    /// As many values in each example as the product of `shape`; an error in an example with another number.
    pub fn fixed(
        name: impl Into<Arc<str>>,
        values: ValueType,
        shape: impl IntoIterator<Item = usize>,
    ) -> Self {
        let name = name.into();
        Feature {
            column: name.clone(),
            name,
            values,
            shape: Shape::Fixed(shape.into_iter().collect()),
            missing: Missing::Null,
        }
    }

    /// Any number of values: a column of `List`.
    pub fn variable(name: impl Into<Arc<str>>, values: ValueType) -> Self {
        let name = name.into();
        Feature {
            column: name.clone(),
            name,
            values,
            shape: Shape::Variable,
            missing: Missing::Null,
        }
    }

    /// An example without it is an error. The column is then not nullable.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.missing = Missing::Error;
        self
    }

    /// An example without it gets these values: one that is repeated, or as many as the shape has; any number for a variable one.
    /// The column is then not nullable.
    ///
    /// ```
    /// use feedwater::tfrecord::{Feature, ValueType};
    ///
    /// let zeros = Feature::fixed("x", ValueType::Float32, [28, 28]).or_default(0f32);
    /// let empty = Feature::variable("ids", ValueType::Int64).or_default(Vec::<i64>::new());
    /// let words = Feature::scalar("word", ValueType::Utf8).or_default("unknown");
    /// ```
    #[must_use]
    pub fn or_default(mut self, values: impl Into<DefaultValues>) -> Self {
        self.missing = Missing::Default(values.into());
        self
    }

    /// Calls its column otherwise than the feature.
    #[must_use]
    pub fn column(mut self, name: impl Into<Arc<str>>) -> Self {
        self.column = name.into();
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its values.
    pub fn value_type(&self) -> ValueType {
        self.values
    }

    /// Its shape; empty for a scalar, `None` for a variable number of values.
    pub fn shape(&self) -> Option<&[usize]> {
        match &self.shape {
            Shape::Variable => None,
            Shape::Fixed(shape) => Some(shape),
        }
    }

    /// How many values it has. `None`: any number.
    pub(super) fn count(&self) -> Option<usize> {
        self.shape().map(|shape| shape.iter().product())
    }

    fn check(&self) -> Result<()> {
        if let Some(shape) = self.shape() {
            let product = shape.iter().try_fold(1i32, |product, dimension| {
                product.checked_mul(i32::try_from(*dimension).ok()?)
            });
            if product.is_none_or(|product| product <= 0) {
                let what =
                    "each dimension of a shape is at least 1, and their product fits 31 bits";
                return Err(invalid(&self.name, what));
            }
        }
        let Missing::Default(default) = &self.missing else {
            return Ok(());
        };
        let fits = match default {
            DefaultValues::Float(_) => self.values == ValueType::Float32,
            DefaultValues::Int64(values) => match self.values {
                ValueType::Int64 => true,
                ValueType::Int32 => values.iter().all(|value| i32::try_from(*value).is_ok()),
                ValueType::UInt8 => values.iter().all(|value| u8::try_from(*value).is_ok()),
                _ => false,
            },
            DefaultValues::Bytes(values) => match self.values {
                ValueType::Binary | ValueType::BinaryView => true,
                ValueType::Utf8 | ValueType::Utf8View => values
                    .iter()
                    .all(|value| std::str::from_utf8(value).is_ok()),
                _ => false,
            },
        };
        if !fits {
            return Err(invalid(
                &self.name,
                "its default is not of the type of its values",
            ));
        }
        if let Some(count) = self.count()
            && default.len() != count
            && default.len() != 1
        {
            let what = "its default has neither one value nor as many as its shape";
            return Err(invalid(&self.name, what));
        }
        Ok(())
    }

    /// The field of a column of it.
    fn field(&self, large: bool) -> Field {
        let values = self.values.data_type(large);
        let nullable = self.missing == Missing::Null;
        let item = || Arc::new(Field::new(ITEM, values.clone(), false));
        match &self.shape {
            Shape::Variable => {
                let item = Field::new(ITEM, values.clone(), false);
                Field::new(&*self.column, list(item, large), nullable)
            }
            Shape::Fixed(shape) if shape.is_empty() => Field::new(&*self.column, values, nullable),
            Shape::Fixed(shape) => {
                // `check` has seen that it fits.
                let count = i32::try_from(shape.iter().product::<usize>()).unwrap_or(i32::MAX);
                let list = DataType::FixedSizeList(item(), count);
                let field = Field::new(&*self.column, list, nullable);
                if shape.len() == 1 {
                    return field;
                }
                let shape: Vec<_> = shape.iter().map(usize::to_string).collect();
                field.with_metadata(HashMap::from([
                    (
                        "ARROW:extension:name".to_owned(),
                        "arrow.fixed_shape_tensor".to_owned(),
                    ),
                    (
                        "ARROW:extension:metadata".to_owned(),
                        format!("{{\"shape\":[{}]}}", shape.join(",")),
                    ),
                ]))
            }
        }
    }
}

/// Name of the field of the elements of lists, as Arrow has it by default.
const ITEM: &str = "item";

fn list(item: Field, large: bool) -> DataType {
    match large {
        false => DataType::List(Arc::new(item)),
        true => DataType::LargeList(Arc::new(item)),
    }
}

fn invalid(name: &str, what: &str) -> Error {
    Error::new(ErrorKind::InvalidOption {
        what: format!("feature {name:?}: {what}").into(),
    })
}

impl ValueType {
    /// The list that a feature has to have.
    pub(super) fn kind(self) -> Kind {
        match self {
            ValueType::Float32 => Kind::Float,
            ValueType::Int64 | ValueType::Int32 | ValueType::UInt8 => Kind::Int64,
            ValueType::Binary | ValueType::Utf8 | ValueType::BinaryView | ValueType::Utf8View => {
                Kind::Bytes
            }
        }
    }

    pub(super) fn data_type(self, large: bool) -> DataType {
        match self {
            ValueType::Float32 => DataType::Float32,
            ValueType::Int64 => DataType::Int64,
            ValueType::Int32 => DataType::Int32,
            ValueType::UInt8 => DataType::UInt8,
            ValueType::Binary if large => DataType::LargeBinary,
            ValueType::Binary => DataType::Binary,
            ValueType::Utf8 if large => DataType::LargeUtf8,
            ValueType::Utf8 => DataType::Utf8,
            ValueType::BinaryView => DataType::BinaryView,
            ValueType::Utf8View => DataType::Utf8View,
        }
    }
}

impl DefaultValues {
    pub(super) fn len(&self) -> usize {
        match self {
            DefaultValues::Float(values) => values.len(),
            DefaultValues::Int64(values) => values.len(),
            DefaultValues::Bytes(values) => values.len(),
        }
    }

    /// Bytes of the values themselves.
    pub(super) fn bytes(&self) -> usize {
        match self {
            DefaultValues::Float(values) => 4 * values.len(),
            DefaultValues::Int64(values) => 8 * values.len(),
            DefaultValues::Bytes(values) => values.iter().map(Vec::len).sum(),
        }
    }
}

impl From<f32> for DefaultValues {
    fn from(value: f32) -> Self {
        DefaultValues::Float(vec![value])
    }
}

impl From<Vec<f32>> for DefaultValues {
    fn from(values: Vec<f32>) -> Self {
        DefaultValues::Float(values)
    }
}

impl From<i64> for DefaultValues {
    fn from(value: i64) -> Self {
        DefaultValues::Int64(vec![value])
    }
}

impl From<Vec<i64>> for DefaultValues {
    fn from(values: Vec<i64>) -> Self {
        DefaultValues::Int64(values)
    }
}

impl From<&str> for DefaultValues {
    fn from(value: &str) -> Self {
        DefaultValues::Bytes(vec![value.into()])
    }
}

impl From<&[u8]> for DefaultValues {
    fn from(value: &[u8]) -> Self {
        DefaultValues::Bytes(vec![value.into()])
    }
}

impl From<Vec<Vec<u8>>> for DefaultValues {
    fn from(values: Vec<Vec<u8>>) -> Self {
        DefaultValues::Bytes(values)
    }
}
