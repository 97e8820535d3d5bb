//! Columns beside each other in the memory of a GPU.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions, make_array};
use arrow_schema::SchemaRef;

use super::array::{DeviceArray, refused, rows_of};
use crate::cuda::{ArrowDevice, ArrowDeviceArray, Device, Stream};
use crate::error::Result;

/// A record batch whose columns are in the memory of a GPU; cloning shares them.
#[derive(Clone, Debug)]
pub struct DeviceBatch {
    schema: SchemaRef,
    rows: usize,
    columns: Vec<DeviceArray>,
}

impl DeviceBatch {
    /// `columns` are those of the schema, each with `rows` elements.
    pub(crate) fn new(schema: SchemaRef, rows: usize, columns: Vec<DeviceArray>) -> Self {
        debug_assert!(columns.iter().all(|column| column.len() == rows));
        DeviceBatch {
            schema,
            rows,
            columns,
        }
    }

    /// A copy of a batch of the host, made in `stream`. Waits for it.
    ///
    /// # Errors
    /// Those of [`Device::allocate`] and of copies to the device.
    pub(crate) fn upload(gpu: &Arc<Device>, stream: &Stream, batch: &RecordBatch) -> Result<Self> {
        let columns = DeviceArray::upload_all(gpu, stream, batch.columns())?;
        Ok(DeviceBatch::new(batch.schema(), batch.num_rows(), columns))
    }

    /// The same of some rows, with no bytes of others but for the values of dictionaries.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(crate) fn upload_rows(
        gpu: &Arc<Device>,
        stream: &Stream,
        batch: &RecordBatch,
        rows: Range<usize>,
    ) -> Result<Self> {
        if rows == (0..batch.num_rows()) {
            return DeviceBatch::upload(gpu, stream, batch);
        }
        let columns = batch.columns().iter();
        let columns =
            columns.map(|column| rows_of(&column.to_data(), rows.clone()).map(make_array));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let columns = DeviceArray::upload_all(gpu, stream, &columns)?;
        Ok(DeviceBatch::new(batch.schema(), rows.len(), columns))
    }

    /// Its schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.rows
    }

    /// The columns, in the order of the schema.
    pub fn columns(&self) -> &[DeviceArray] {
        &self.columns
    }

    /// A column by its name.
    pub fn column(&self, name: &str) -> Option<&DeviceArray> {
        let at = self.schema.index_of(name).ok()?;
        self.columns.get(at)
    }

    /// A copy in the memory of the host. For tests and small results.
    ///
    /// # Errors
    /// Those of [`Device::to_host`].
    pub fn to_host(&self) -> Result<RecordBatch> {
        let columns = self.columns.iter().map(DeviceArray::to_host);
        let columns = columns.collect::<Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|error| refused(&error))
    }

    /// The batch by Arrow's C device interface, with its memory: a struct array, as the interface has record batches. Its `release`
    /// waits for the device: [`ArrowDeviceArray::move_to`].
    ///
    /// # Errors
    /// As [`DeviceArray::export`].
    pub fn export(&self) -> Result<ArrowDeviceArray> {
        let columns = self.columns.iter().map(DeviceArray::arrow);
        let arrow = ArrowDevice {
            length: self.rows as u64,
            null_count: Some(0),
            buffers: vec![None],
            children: columns.collect::<Result<_>>()?,
            ..ArrowDevice::default()
        };
        arrow.export()
    }
}
