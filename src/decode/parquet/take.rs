//! Rows by their numbers, in any order.

use std::future::poll_fn;
use std::pin::Pin;

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use arrow_select::interleave::interleave_record_batch;
use futures_core::Stream;

use super::failure;
use super::scan::Scan;
use crate::decode::wait::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::parquet::malformed;
use crate::reader::Reader;

impl<R: Reader + ?Sized + 'static> Scan<R> {
    /// The rows of these numbers, in this order, as one batch; a number may come more than once.
    ///
    /// With a page index only pages that hold one of the rows are read, and the dictionaries of their columns; without one,
    /// the column chunks of the row groups that have any of the rows. Numbers count the rows of the whole file. It takes
    /// the columns, schema, threads and window of the scan; row groups, rows and predicates do not go with it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use arrow_array::{Int64Array, RecordBatch};
    /// # use arrow_array::cast::AsArray;
    /// # use arrow_array::types::Int64Type;
    /// # use arrow_schema::{DataType, Field, Schema};
    /// use feedwater::MemoryReader;
    /// use feedwater::parquet::{Metadata, scan};
    ///
    /// # let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    /// # let ids = Arc::new(Int64Array::from_iter_values(0..1000));
    /// # let mut file = Vec::new();
    /// # let mut writer = parquet::arrow::ArrowWriter::try_new(&mut file, schema.clone(), None)?;
    /// # writer.write(&RecordBatch::try_new(schema, vec![ids])?)?;
    /// # writer.close()?;
    /// let reader = Arc::new(MemoryReader::new(file));
    /// let metadata = Metadata::read(&*reader)?; // once, for any number of takes
    /// let batch = scan(reader).metadata(metadata).take(&[700, 3, 700])?;
    /// assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[700, 3, 700]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`batches`](Self::batches); [`NotFound`](ErrorKind::NotFound) for a row that is not there;
    /// [`InvalidOption`](ErrorKind::InvalidOption) if row groups, rows or a predicate were set;
    /// [`UnsupportedFeature`](ErrorKind::UnsupportedFeature) if the strings of the rows outgrow the 32-bit offsets of one
    /// batch.
    pub fn take(self, rows: &[u64]) -> Result<RecordBatch> {
        block_on(self.take_async(rows))
    }

    /// The same in a task: [`take`](Self::take) on any executor, without blocking it.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub async fn take_async(self, rows: &[u64]) -> Result<RecordBatch> {
        let name = self.source_name().clone();
        if self.is_narrowed() {
            return Err(Error::new(ErrorKind::InvalidOption {
                what:
                    "`take` names its rows by itself: leave out row groups, rows and the predicate"
                        .into(),
            })
            .named(&name));
        }
        let mut sorted = rows.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.last() == Some(&u64::MAX) {
            return Err(Error::new(ErrorKind::NotFound {
                what: format!("row {}", u64::MAX).into(),
            })
            .named(&name));
        }
        let mut scan = self.no_rows();
        for row in &sorted {
            scan = scan.rows(*row..*row + 1);
        }
        let batches = scan.in_order().start().await?;
        let schema = batches.schema().clone();
        let mut batches = batches.stream();
        let (mut parts, mut starts, mut found) = (Vec::new(), Vec::new(), 0u64);
        while let Some(batch) = poll_fn(|cx| Pin::new(&mut batches).poll_next(cx)).await {
            let batch = batch?;
            starts.push(found);
            found += batch.num_rows() as u64;
            parts.push(batch);
        }
        if found != sorted.len() as u64 {
            let what = format!("{found} rows were decoded of {}", sorted.len());
            return Err(malformed(None, what).named(&name));
        }
        let in_order = rows.len() == sorted.len() && rows.is_sorted();
        if in_order || parts.is_empty() {
            return failure::contain_arrow(None, || concat_batches(&schema, &parts));
        }
        let mut places = Vec::with_capacity(rows.len());
        for row in rows {
            let position = sorted.partition_point(|other| other < row) as u64;
            let part = starts
                .partition_point(|start| *start <= position)
                .saturating_sub(1);
            let start = starts.get(part).copied().unwrap_or(0);
            places.push((part, (position - start) as usize));
        }
        let parts: Vec<&RecordBatch> = parts.iter().collect();
        failure::contain_arrow(None, || interleave_record_batch(&parts, &places))
    }
}
