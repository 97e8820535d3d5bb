//! What a schema asks of the kernels.

use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef};

use super::output::{DeviceExamples, FeatureTensor, no_tensor};
use crate::buffer::DeviceBytes;
use crate::cuda::example::{self, Absent, Column, Defaults, Values};
use crate::cuda::{Dense, Device};
use crate::decode::device::{DeviceArray, DeviceBatch};
use crate::decode::tfrecord::example::schema::{
    DefaultValues, ExampleSchema, Feature, Missing, Shape, ValueType,
};
use crate::error::{Error, ErrorKind, Result};

/// A schema as the kernels take it, and how their output becomes columns.
pub(super) struct Plan {
    pub(super) kernels: example::Plan,
    /// Of all features, tensors included.
    full: SchemaRef,
    /// Of the columns.
    schema: SchemaRef,
    tensors: Vec<Option<Dense>>,
}

impl Plan {
    /// # Errors
    /// As [`ExampleSchema::arrow_schema`]; [`ErrorKind::InvalidOption`] for tensors of features that are not one value of bytes in
    /// each record.
    pub(super) fn new(schema: &ExampleSchema, tensors: &[(Arc<str>, Dense)]) -> Result<Self> {
        let full = schema.arrow_schema()?;
        for (name, _) in tensors {
            if !schema.context.iter().any(|feature| feature.name == *name) {
                return Err(invalid(name, "there is none of that name"));
            }
        }
        let of = |feature: &Feature| tensors.iter().rev().find(|(name, _)| *name == feature.name);
        let wanted = schema.context.iter();
        let wanted: Vec<Option<Dense>> = wanted
            .map(|feature| of(feature).map(|(_, dense)| dense.clone()))
            .collect();
        let features = schema.context.iter().zip(&wanted);
        let features = features.map(|(feature, tensor)| kernel_feature(feature, tensor.as_ref()));
        let kernels = example::Plan::new(features.collect::<Result<_>>()?, schema.large);
        let columns = full.fields().iter().enumerate();
        let columns = columns.filter(|(at, _)| !matches!(wanted.get(*at), Some(Some(_))));
        let columns: Vec<_> = columns.map(|(_, field)| field.clone()).collect();
        Ok(Plan {
            kernels,
            full,
            schema: Arc::new(Schema::new(columns)),
            tensors: wanted,
        })
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(super) fn has_tensors(&self) -> bool {
        self.tensors.iter().any(Option::is_some)
    }

    /// The tensor that a feature becomes, by the number of its column among all.
    pub(super) fn tensor(&self, column: usize) -> Option<&Dense> {
        self.tensors.get(column)?.as_ref()
    }

    /// Bytes that each value has to have of a feature that becomes a tensor.
    pub(super) fn exact(&self, column: usize) -> Option<u64> {
        let feature = self.kernels.features().get(column)?;
        Some(feature.tensor.as_ref()?.source_bytes())
    }

    /// Name of the feature of a column.
    pub(super) fn name(&self, column: usize) -> Option<&Arc<str>> {
        Some(&self.kernels.features().get(column)?.name)
    }

    /// The columns and tensors that the kernels made.
    pub(super) fn assemble(
        &self,
        gpu: &Arc<Device>,
        rows: usize,
        made: Vec<Column>,
    ) -> Result<DeviceExamples> {
        let (mut columns, mut tensors) = (Vec::new(), Vec::new());
        let each = made.into_iter().zip(self.full.fields()).enumerate();
        for (at, (column, field)) in each {
            match (self.tensor(at), self.name(at)) {
                (Some(dense), Some(name)) => {
                    let bytes = there(column.values)?;
                    tensors.push(FeatureTensor::new(name, dense, rows, bytes)?);
                }
                _ => columns.push(array(gpu, field.data_type(), rows, column)?),
            }
        }
        let columns = DeviceBatch::new(self.schema.clone(), rows, columns);
        Ok(DeviceExamples::new(columns, tensors))
    }
}

/// The array of a column.
fn array(
    gpu: &Arc<Device>,
    data_type: &DataType,
    rows: usize,
    column: Column,
) -> Result<DeviceArray> {
    let (validity, nulls) = (column.validity.clone(), column.nulls as usize);
    let array = match data_type {
        DataType::FixedSizeList(item, _) => {
            let values = values(gpu, item.data_type(), column)?;
            DeviceArray::new(gpu, data_type.clone(), rows, Vec::new(), vec![values])
        }
        DataType::List(item) | DataType::LargeList(item) => {
            let offsets = there(column.offsets.clone())?;
            let values = values(gpu, item.data_type(), column)?;
            DeviceArray::new(gpu, data_type.clone(), rows, vec![offsets], vec![values])
        }
        _ => values(gpu, data_type, column)?,
    };
    Ok(array.nulls(validity, nulls))
}

fn values(gpu: &Arc<Device>, data_type: &DataType, column: Column) -> Result<DeviceArray> {
    let len = column.count as usize;
    let values = there(column.values)?;
    let buffers = match column.ends {
        Some(ends) => vec![ends, values],
        None => vec![values],
    };
    Ok(DeviceArray::new(
        gpu,
        data_type.clone(),
        len,
        buffers,
        Vec::new(),
    ))
}

/// What the kernels make of every such column.
fn there(bytes: Option<DeviceBytes>) -> Result<DeviceBytes> {
    bytes.ok_or_else(|| Error::new(ErrorKind::Abandoned))
}

fn kernel_feature(feature: &Feature, tensor: Option<&Dense>) -> Result<example::Feature> {
    let absent = match &feature.missing {
        Missing::Null => Absent::Null,
        Missing::Error => Absent::Fault,
        Missing::Default(values) => Absent::Default(match values {
            DefaultValues::Float(values) => Defaults::Floats(values.clone()),
            DefaultValues::Int64(values) => Defaults::Integers(values.clone()),
            DefaultValues::Bytes(values) => Defaults::Bytes(values.clone()),
        }),
    };
    let tensor = match tensor {
        None => None,
        Some(dense) => {
            let row = dense.per_row();
            let row = row.map_err(|error| of_tensor(&feature.name, error))?;
            let is_one = feature.shape == Shape::Fixed(Vec::new());
            if feature.values != ValueType::Binary || !is_one {
                return Err(invalid(
                    &feature.name,
                    "only a scalar of bytes becomes a tensor",
                ));
            }
            match &absent {
                Absent::Null => {
                    let what =
                        "rows of a tensor cannot be null: it has to be required, or have a default";
                    return Err(invalid(&feature.name, what));
                }
                Absent::Default(Defaults::Bytes(values))
                    if values
                        .iter()
                        .any(|value| value.len() as u64 != row.source_bytes()) =>
                {
                    let what =
                        "its default has not as many bytes as a row of the tensor is made of";
                    return Err(invalid(&feature.name, what));
                }
                _ => Some(row),
            }
        }
    };
    Ok(example::Feature {
        name: feature.name.clone(),
        values: match feature.values {
            ValueType::Float32 => Values::F32,
            ValueType::Int64 => Values::I64,
            ValueType::Int32 => Values::I32,
            ValueType::UInt8 => Values::U8,
            ValueType::Binary | ValueType::BinaryView => Values::Binary,
            ValueType::Utf8 | ValueType::Utf8View => Values::Utf8,
        },
        count: feature.count().map(|count| count as u64),
        absent,
        tensor,
    })
}

/// With the name of the feature, where the error is about what its tensor is to be.
pub(super) fn of_tensor(name: &str, error: Error) -> Error {
    let what = match error.kind() {
        ErrorKind::InvalidOption { what } => what.to_string(),
        ErrorKind::OutOfBounds { len } => {
            format!("it reaches past the {len} bytes of its elements")
        }
        _ => return error,
    };
    no_tensor(name, &what)
}

fn invalid(name: &str, what: &str) -> Error {
    Error::new(ErrorKind::InvalidOption {
        what: format!("feature {name:?}: {what}").into(),
    })
}
