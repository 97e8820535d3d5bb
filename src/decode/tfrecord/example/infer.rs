//! A schema from the first examples.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::column::{Fault, kind_name};
use super::decoder::format_name;
use super::schema::{ExampleSchema, Feature, ValueType};
use crate::error::{Error, ErrorKind, Result};
use crate::format::tfrecord::example::{
    Kind, Pieces, Place, WireError, check_feature, count, feature, steps, walk,
};

impl ExampleSchema {
    /// The schema that `examples`, all of them, agree with: take the first hundred or so of a file.
    ///
    /// A feature with one value in each example that has it becomes a scalar, one with the same number of values a list of
    /// that size, others variable; floats become [`Float32`](ValueType::Float32), integers [`Int64`](ValueType::Int64), bytes
    /// [`Binary`](ValueType::Binary). All are nullable. Columns are sorted by name, as writers do not keep an order. Examples
    /// with feature lists are `SequenceExample`s; the column of one that has the name of a feature of the context is called
    /// `feature_lists/` and the name.
    ///
    /// An example that disagrees later, in kind or in number, is an error that names it, the feature, and how many examples this
    /// came from. A feature that none of these examples has is not read.
    ///
    /// ```
    /// use feedwater::tfrecord::{ExampleSchema, ValueType};
    ///
    /// // features { feature { key: "label" value { int64_list { value: 7 } } } }
    /// let record = b"\x0a\x10\x0a\x0e\x0a\x05label\x12\x05\x1a\x03\x0a\x01\x07";
    /// let schema = ExampleSchema::infer([record])?;
    /// assert_eq!(schema.features()[0].name(), "label");
    /// assert_eq!(schema.features()[0].value_type(), ValueType::Int64);
    /// # Ok::<(), feedwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] if one of them is no example, or two of them have a feature of different kinds.
    pub fn infer<R: AsRef<[u8]>>(examples: impl IntoIterator<Item = R>) -> Result<Self> {
        let mut inference = Inference::default();
        for example in examples {
            inference.push(inference.examples as u64, example.as_ref())?;
        }
        Ok(inference.finish())
    }
}

/// What the examples so far have.
#[derive(Debug, Default)]
pub(super) struct Inference {
    pub(super) examples: usize,
    seen: BTreeMap<(Listed, Arc<str>), Seen>,
}

/// `Place`, in the order of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Listed {
    Context,
    List,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    kind: Kind,
    /// Values in each; `None` if the number varies.
    count: Option<usize>,
}

impl Inference {
    pub(super) fn push(&mut self, record: u64, example: &[u8]) -> Result<()> {
        let mut last = BTreeMap::new();
        let walked = walk(example, true, |place, name, value| {
            let name = std::str::from_utf8(name).map_err(|_| WireError::Name)?;
            let listed = match place {
                Place::Context => Listed::Context,
                Place::Lists => Listed::List,
            };
            if let Some(replaced) = last.insert((listed, name), value) {
                for feature in features(listed, &replaced) {
                    check_feature(place, &feature?)?;
                }
            }
            Ok(())
        });
        walked.map_err(|fault: WireError| error(record, None, &fault.into()))?;
        for ((listed, name), value) in last {
            self.add(listed, name, &value)
                .map_err(|fault| error(record, Some((listed, name)), &fault))?;
        }
        self.examples += 1;
        Ok(())
    }

    fn add(&mut self, listed: Listed, name: &str, value: &Pieces<'_>) -> Result<(), Fault> {
        let place = listed.place();
        for one in features(listed, value) {
            let Some((found, lists)) = feature(place, &one?)? else {
                continue;
            };
            let values = count(place, found, &lists)?;
            let seen = self.seen.entry((listed, name.into())).or_insert(Seen {
                kind: found,
                count: Some(values),
            });
            if seen.kind != found {
                let wanted = seen.kind;
                return Err(Fault::Kind { found, wanted });
            }
            if seen.count != Some(values) {
                seen.count = None;
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> ExampleSchema {
        let mut schema = ExampleSchema::new();
        schema.inferred_from = self.examples;
        let in_both = |name: &Arc<str>| self.seen.contains_key(&(Listed::Context, name.clone()));
        for ((listed, name), seen) in &self.seen {
            let values = match seen.kind {
                Kind::Bytes => ValueType::Binary,
                Kind::Float => ValueType::Float32,
                Kind::Int64 => ValueType::Int64,
            };
            let feature = match seen.count {
                Some(1) => Feature::scalar(name.clone(), values),
                // Lists of 2^31 values are no shape.
                Some(count @ 2..) if i32::try_from(count).is_ok() => {
                    Feature::fixed(name.clone(), values, [count])
                }
                _ => Feature::variable(name.clone(), values),
            };
            schema = match listed {
                Listed::Context => schema.with(feature),
                Listed::List if in_both(name) => {
                    schema.with_list(feature.column(format!("feature_lists/{name}")))
                }
                Listed::List => schema.with_list(feature),
            };
        }
        schema
    }
}

impl Listed {
    fn place(self) -> Place {
        match self {
            Listed::Context => Place::Context,
            Listed::List => Place::Lists,
        }
    }
}

/// The `Feature`s of an entry: itself, or those of each step.
fn features<'p, 'a>(
    listed: Listed,
    value: &'p Pieces<'a>,
) -> impl Iterator<Item = Result<Pieces<'a>, WireError>> + use<'p, 'a> {
    let itself = (listed == Listed::Context).then(|| Ok(value.clone()));
    let steps = (listed == Listed::List).then(|| steps(value));
    itself.into_iter().chain(steps.into_iter().flatten())
}

#[cold]
fn error(record: u64, feature: Option<(Listed, &str)>, fault: &Fault) -> Error {
    let what = match fault {
        Fault::Kind { found, wanted } => format!(
            "record {record}: it has {}, and {} in a record before",
            kind_name(*found),
            kind_name(*wanted)
        ),
        fault => format!("record {record}: {fault}"),
    };
    Error::new(ErrorKind::Malformed {
        format: format_name(feature.is_some_and(|(listed, _)| listed == Listed::List)),
        part: feature.map(|(_, name)| name.into()),
        what: what.into(),
    })
}
