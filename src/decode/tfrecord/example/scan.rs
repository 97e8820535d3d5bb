//! Files of examples as record batches: what is asked for, and the batches in order.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures_core::Stream;

use super::decoder::ExampleDecoder;
use super::infer::Inference;
use super::pool::Pool;
use super::pull::{Cut, Pull, Source, place};
use super::schema::ExampleSchema;
use crate::decode::tfrecord::{RecordOptions, ShardSet, Skipped};
use crate::decode::wait::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::tfrecord::frames::Frames;
use crate::reader::Reader;

/// The examples in the records of `reader`, as Arrow columns; see [`ExampleScan`].
///
/// ```
/// use feedwater::tfrecord::{self, ExampleSchema, Feature, ValueType, Writer};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data.tfrecord");
/// let mut writer = Writer::create(&path)?;
/// // features { feature { key: "label" value { int64_list { value: 7 } } } }
/// writer.write(b"\x0a\x10\x0a\x0e\x0a\x05label\x12\x05\x1a\x03\x0a\x01\x07")?;
/// writer.commit()?;
///
/// let schema = ExampleSchema::new().with(Feature::scalar("label", ValueType::Int64));
/// let reader = feedwater::open(&path)?;
/// for batch in tfrecord::examples(reader).schema(schema).batch_rows(64).batches()? {
///     let batch = batch?;
///     println!("{} rows of {}", batch.num_rows(), batch.schema());
/// #   assert_eq!(batch.num_rows(), 1);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn examples<R: Reader + ?Sized>(reader: Arc<R>) -> ExampleScan {
    ExampleScan::new(reader, &RecordOptions::new())
}

/// How examples become record batches. Made by [`examples`] or [`ExampleScan::of_shards`], run by [`batches`](Self::batches).
///
/// Threads of its own cut the file into batches of records, one after the other, and decode these side by side: see
/// [`ExampleDecoder`] for what that does. They stop when they are [`ahead`](Self::ahead) batches ahead of what was taken, and end
/// when the batches are dropped.
#[must_use = "a scan does nothing before `batches`"]
pub struct ExampleScan {
    source: Box<dyn Source>,
    pub(super) names: Vec<Arc<str>>,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(super) origin: Origin,
    pub(super) schema: Option<ExampleSchema>,
    pub(super) infer_from: usize,
    pub(super) rows: usize,
    pub(super) bytes: usize,
    threads: Option<usize>,
    ahead: Option<usize>,
}

impl ExampleScan {
    /// The examples in the records of `reader`, read with `options`.
    pub fn new<R: Reader + ?Sized>(reader: Arc<R>, options: &RecordOptions) -> Self {
        let names = vec![reader.source().name().clone()];
        let source = Box::new(options.frames(reader.clone()));
        let origin = Origin::Reader(Arc::new(reader), options.clone());
        ExampleScan::of(source, names, origin)
    }

    /// The examples in the records of all files of `set`.
    pub fn of_shards(set: &ShardSet, options: &RecordOptions) -> Self {
        let names = set.paths().iter();
        let names = names.map(|path| path.to_string_lossy().into()).collect();
        let origin = Origin::Set(set.clone(), options.clone());
        ExampleScan::of(Box::new(set.frames(options)), names, origin)
    }

    fn of(source: Box<dyn Source>, names: Vec<Arc<str>>, origin: Origin) -> Self {
        ExampleScan {
            source,
            names,
            origin,
            schema: None,
            infer_from: 100,
            rows: 4096,
            bytes: 32 << 20,
            threads: None,
            ahead: None,
        }
    }

    /// What becomes a column. Default: inferred.
    pub fn schema(mut self, schema: ExampleSchema) -> Self {
        self.schema = Some(schema);
        self
    }

    /// From how many of the first examples a schema is [inferred](ExampleSchema::infer), where none is given. Default 100.
    /// Their records are in memory meanwhile. A feature that none of them has is left out.
    pub fn infer_from(mut self, examples: usize) -> Self {
        self.infer_from = examples;
        self
    }

    /// Rows of a batch; the last one has fewer, and those that end earlier by [`batch_bytes`](Self::batch_bytes). Default
    /// 4096.
    pub fn batch_rows(mut self, rows: usize) -> Self {
        self.rows = rows;
        self
    }

    /// A batch ends with the record with which its records have so many bytes. Default 32 MiB.
    ///
    /// A record counts at least what stands for it if all features are missing. A batch in work holds its records and its
    /// columns, which are about as large; integers of one byte on the wire become 8 in the column.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// Threads that decode. Default: as many as there are processors, at most 8.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Most batches that are decoded, or being decoded, and not yet taken. Default: two for each thread.
    pub fn ahead(mut self, batches: usize) -> Self {
        self.ahead = Some(batches);
        self
    }

    /// The batches, in the order of the records. Where a schema is to be inferred, this reads the first examples, and parks
    /// this thread until they are there; else nothing is read before the first batch is asked for.
    ///
    /// # Errors
    /// As [`ExampleSchema::arrow_schema`] for a schema that was given, as [`ExampleSchema::infer`] and those of reading for one that is
    /// inferred; [`ErrorKind::NotFound`] if it is to be inferred and there is no record; [`ErrorKind::InvalidOption`] for batches of
    /// no rows, no threads, no batches ahead, and a schema from no examples.
    pub fn batches(self) -> Result<ExampleBatches> {
        block_on(self.batches_async())
    }

    /// The same in a task: [`batches`](Self::batches) on any executor, without blocking it. Take them by
    /// [`ExampleBatches::stream`].
    ///
    /// ```
    /// # use std::error::Error;
    /// # use std::sync::Arc;
    /// # async fn read(reader: Arc<feedwater::Opened>) -> Result<(), Box<dyn Error>> {
    /// use feedwater::tfrecord;
    /// use futures::StreamExt;
    ///
    /// let mut batches = tfrecord::examples(reader).batches_async().await?.stream();
    /// while let Some(batch) = batches.next().await {
    ///     println!("{} rows", batch?.num_rows());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`batches`](Self::batches).
    pub async fn batches_async(mut self) -> Result<ExampleBatches> {
        self.check()?;
        let mut first = Vec::new();
        let schema = match self.schema.take() {
            Some(schema) => schema,
            None => self.infer(&mut first).await?,
        };
        let threads = self.threads.unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, |threads| threads.get().min(8))
        });
        let decoders = (0..threads)
            .map(|_| ExampleDecoder::new(&schema))
            .collect::<Result<Vec<_>>>()?;
        let arrow = schema.arrow_schema()?;
        let cut = Cut {
            rows: self.rows,
            bytes: self.bytes,
            row_bytes: decoders.first().map_or(0, ExampleDecoder::row_bytes),
        };
        let pull = Pull::new(self.source, first, self.names, cut);
        let ahead = self.ahead.unwrap_or(2 * threads);
        Ok(ExampleBatches {
            pool: Pool::new(pull, decoders, ahead),
            examples: schema,
            schema: arrow,
            ready: VecDeque::new(),
            failed: None,
            over: false,
        })
    }

    pub(super) fn check(&self) -> Result<()> {
        let none = [
            (self.rows == 0, "batch_rows(0): a batch has a row at least"),
            (
                self.threads == Some(0),
                "threads(0): a scan has a thread at least; unless told, as many as the machine runs",
            ),
            (self.ahead == Some(0), "a scan of no batches ahead"),
            (self.infer_from == 0, "a schema from no examples"),
        ];
        match none.into_iter().find(|(is_none, _)| *is_none) {
            Some((_, what)) => Err(Error::new(ErrorKind::InvalidOption { what: what.into() })),
            None => Ok(()),
        }
    }

    /// The schema of the first examples, which are read into `first`.
    pub(super) async fn infer(&mut self, first: &mut Vec<Frames>) -> Result<ExampleSchema> {
        let mut inference = Inference::default();
        while inference.examples < self.infer_from {
            let Some(frames) = poll_fn(|cx| self.source.next(Some(cx))).await else {
                break;
            };
            let frames = frames?;
            for (at, record) in frames.iter().enumerate() {
                if inference.examples == self.infer_from {
                    break;
                }
                let pushed = inference.push(frames.first() + at as u64, record);
                pushed.map_err(|error| place(error, &self.names, &frames, at))?;
            }
            first.push(frames);
        }
        if inference.examples == 0 {
            let error = Error::new(ErrorKind::NotFound {
                what: "record to infer a schema from".into(),
            });
            return Err(match self.names.first() {
                Some(name) => error.named(name),
                None => error,
            });
        }
        Ok(inference.finish())
    }
}

/// Where the records of a scan are from, for those who go through them in another way.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(super) enum Origin {
    Reader(Arc<dyn Reader>, RecordOptions),
    Set(ShardSet, RecordOptions),
}

/// Record batches of examples, in order: an iterator that blocks its thread; [`stream`](Self::stream) for tasks.
///
/// # Errors
/// Those of [`Records`](crate::tfrecord::Records) and of [`ExampleDecoder::push`], with the name of the file and the offset and length of the
/// frame of the record (in a compressed file: of what is compressed). All rows before the error are delivered first; after it
/// there are no more.
#[must_use = "iterators do nothing unless used"]
pub struct ExampleBatches {
    pool: Pool,
    examples: ExampleSchema,
    schema: SchemaRef,
    ready: VecDeque<RecordBatch>,
    failed: Option<Error>,
    /// The end, or an error, was delivered.
    over: bool,
}

impl ExampleBatches {
    /// The schema of all batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The features that become columns: what was given, or what was inferred.
    pub fn example_schema(&self) -> &ExampleSchema {
        &self.examples
    }

    /// The corrupt records that were left out so far. Records are read some ahead of the batches.
    pub fn skipped(&self) -> Skipped {
        self.pool.skipped()
    }

    /// The same as a `Stream`. Decoding goes on on the threads of the scan, whatever the executor does.
    pub fn stream(self) -> ExampleStream {
        ExampleStream(self)
    }

    /// `None` for the waker: waits.
    fn poll(&mut self, mut task: Option<&mut Context<'_>>) -> Poll<Option<Result<RecordBatch>>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(batch)));
            }
            if let Some(error) = self.failed.take() {
                self.pool.close();
                self.over = true;
                return Poll::Ready(Some(Err(error)));
            }
            if self.over {
                return Poll::Ready(None);
            }
            let waker = task.as_mut().map(|task| task.waker());
            match self.pool.take(waker) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => self.over = true,
                Poll::Ready(Some(done)) => {
                    self.ready = done.batches.into();
                    self.failed = done.error;
                }
            }
        }
    }
}

impl Iterator for ExampleBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.poll(None) {
            Poll::Ready(item) => item,
            // Without a task to wake it waits.
            Poll::Pending => None,
        }
    }
}

impl std::iter::FusedIterator for ExampleBatches {}

/// See [`ExampleBatches::stream`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct ExampleStream(ExampleBatches);

impl ExampleStream {
    /// As [`ExampleBatches::schema`].
    pub fn schema(&self) -> &SchemaRef {
        self.0.schema()
    }

    /// As [`ExampleBatches::skipped`].
    pub fn skipped(&self) -> Skipped {
        self.0.skipped()
    }
}

impl Stream for ExampleStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll(Some(cx))
    }
}

impl fmt::Debug for ExampleScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExampleScan")
            .field("names", &self.names)
            .field("schema", &self.schema)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ExampleBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExampleBatches")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::decode::tfrecord::example::{Feature, ValueType};
    use crate::decode::tfrecord::walk::Waiter;
    use crate::format::tfrecord::frames::Place;

    /// Long enough for any machine; only a hang reaches it.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Empty records, one at a time, without end.
    struct Endless {
        pulled: usize,
        taken: Arc<AtomicUsize>,
        ahead: usize,
        panics_at: usize,
        skipped: Skipped,
        dropped: mpsc::Sender<()>,
    }

    impl Source for Endless {
        fn next(&mut self, _: Waiter<'_, '_>) -> Poll<Option<Result<Frames>>> {
            assert!(self.pulled != self.panics_at, "a bug");
            let most = self.taken.load(Ordering::SeqCst) + self.ahead;
            assert!(self.pulled < most, "more ahead than {}", self.ahead);
            self.pulled += 1;
            Poll::Ready(Some(Ok(Frames {
                block: Bytes::from_static(&[0; 16]),
                places: vec![Place { start: 12, len: 0 }],
                first: self.pulled as u64 - 1,
                base: 0,
                shard: 0,
            })))
        }

        fn skipped(&self) -> &Skipped {
            &self.skipped
        }
    }

    impl Drop for Endless {
        fn drop(&mut self) {
            let _ = self.dropped.send(());
        }
    }

    /// Batches of one row, how many were taken as the test has to say, and what tells that all threads are gone.
    fn endless(
        threads: usize,
        ahead: usize,
        panics_at: usize,
    ) -> (ExampleBatches, Arc<AtomicUsize>, mpsc::Receiver<()>) {
        let taken = Arc::new(AtomicUsize::new(0));
        let (dropped, gone) = mpsc::channel();
        let source = Endless {
            pulled: 0,
            taken: taken.clone(),
            ahead,
            panics_at,
            skipped: Skipped::default(),
            dropped,
        };
        let schema = ExampleSchema::new().with(Feature::scalar("x", ValueType::Int64));
        let scan = ExampleScan::of(
            Box::new(source),
            Vec::new(),
            Origin::Set(ShardSet::of::<&str>([]), RecordOptions::new()),
        )
        .schema(schema);
        let scan = scan.batch_rows(1).threads(threads).ahead(ahead);
        (scan.batches().unwrap(), taken, gone)
    }

    #[test]
    fn no_more_is_begun_than_was_allowed_and_threads_end_with_the_batches() {
        for (threads, ahead) in [(1, 1), (3, 2), (2, 7)] {
            let (mut batches, taken, gone) = endless(threads, ahead, usize::MAX);
            for _ in 0..200 {
                taken.fetch_add(1, Ordering::SeqCst);
                assert_eq!(batches.next().unwrap().unwrap().num_rows(), 1);
            }
            drop(batches);
            gone.recv_timeout(PATIENCE).unwrap();
        }
        // Without a batch taken there is no thread.
        let (batches, _, gone) = endless(2, 2, usize::MAX);
        drop(batches);
        gone.try_recv().unwrap();
    }

    #[test]
    fn a_panic_where_records_come_from_is_an_error_in_its_place() {
        let (mut batches, _, gone) = endless(2, 100, 9);
        for _ in 0..9 {
            assert_eq!(batches.next().unwrap().unwrap().num_rows(), 1);
        }
        let error = batches.next().unwrap().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Panicked { .. }),
            "{error}"
        );
        assert_eq!(
            error.to_string(),
            "the reader or feedwater panicked while it decoded: a bug"
        );
        assert!(batches.next().is_none());
        drop(batches);
        gone.recv_timeout(PATIENCE).unwrap();
    }
}
