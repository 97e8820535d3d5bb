//! One batch of examples in the memory of a GPU.

use std::sync::Arc;

use crate::buffer::DeviceBytes;
use crate::cuda::{Dense, DlTensor, DlType, ElementType};
use crate::decode::device::DeviceBatch;
use crate::error::{Error, ErrorKind, Result};

/// Examples in the memory of a GPU: columns as Arrow has them, and the features that became [tensors](super::DeviceScan::tensor).
#[derive(Clone, Debug)]
pub struct DeviceExamples {
    columns: DeviceBatch,
    tensors: Vec<FeatureTensor>,
}

impl DeviceExamples {
    pub(super) fn new(columns: DeviceBatch, tensors: Vec<FeatureTensor>) -> Self {
        DeviceExamples { columns, tensors }
    }

    /// Number of examples.
    pub fn num_rows(&self) -> usize {
        self.columns.num_rows()
    }

    /// The columns, without the features that became tensors.
    pub fn columns(&self) -> &DeviceBatch {
        &self.columns
    }

    /// The tensors, in the order of the schema.
    pub fn tensors(&self) -> &[FeatureTensor] {
        &self.tensors
    }

    /// The tensor of a feature.
    pub fn tensor(&self, feature: &str) -> Option<&FeatureTensor> {
        let mut tensors = self.tensors.iter();
        tensors.find(|tensor| *tensor.feature == *feature)
    }
}

/// A feature of all examples of a batch as one dense tensor; cloning shares it.
#[derive(Clone, Debug)]
pub struct FeatureTensor {
    feature: Arc<str>,
    element: ElementType,
    shape: Vec<u64>,
    bytes: DeviceBytes,
}

impl FeatureTensor {
    pub(super) fn new(
        feature: &Arc<str>,
        dense: &Dense,
        rows: usize,
        bytes: DeviceBytes,
    ) -> Result<Self> {
        let element = dense.element();
        let element = element.ok_or_else(|| no_tensor(feature, "a copy of each row"))?;
        let rows = std::iter::once(rows as u64);
        Ok(FeatureTensor {
            feature: feature.clone(),
            element,
            shape: rows.chain(dense.shape().iter().copied()).collect(),
            bytes,
        })
    }

    /// Name of the feature.
    pub fn feature(&self) -> &str {
        &self.feature
    }

    /// Type of its elements.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Its shape: the number of examples, and that of one of them.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Its elements, dense and row-major.
    pub fn bytes(&self) -> &DeviceBytes {
        &self.bytes
    }

    /// The same for `torch.from_dlpack` and its kin, sharing the memory.
    ///
    /// # Errors
    /// As [`DlTensor::new`].
    pub fn dlpack(&self) -> Result<DlTensor> {
        let element = match self.element {
            ElementType::F32 => DlType::Float(32),
            ElementType::F16 => DlType::Float(16),
            ElementType::BF16 => DlType::BFloat16,
            _ => DlType::UInt(8),
        };
        DlTensor::new(self.bytes.clone(), element, &self.shape)
    }
}

/// That there cannot be a tensor of this feature, and why.
pub(super) fn no_tensor(feature: &str, why: &str) -> Error {
    let what = format!("feature {feature:?}: its tensor: {why}");
    Error::new(ErrorKind::InvalidOption { what: what.into() })
}
