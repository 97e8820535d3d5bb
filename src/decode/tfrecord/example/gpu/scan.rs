//! Files of examples as batches in the memory of a GPU: what is asked for, and the batches in order.

use std::fmt;
use std::sync::Arc;
use std::task::Poll;

use arrow_schema::SchemaRef;

use super::ahead::{Ahead, Wanted};
use super::decode::{Decoder, Done};
use super::feed::{Feed, Taken, Walked, by_host};
use super::output::DeviceExamples;
use super::plan::Plan;
use super::report::DeviceReport;
use super::stream::DeviceBatchStream;
use super::window::{Way, Windows, start_of};
use crate::cuda::example::Check;
use crate::cuda::{Dense, Device, Stream};
use crate::decode::device::Processor;
use crate::decode::tfrecord::example::pull::{Cut, Pull};
use crate::decode::tfrecord::example::scan::ExampleScan;
use crate::decode::tfrecord::example::schema::ExampleSchema;
use crate::decode::tfrecord::inflate::recognise;
use crate::decode::tfrecord::{Compression, ExampleDecoder, Index, OnCorrupt};
use crate::decode::wait::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::reader::Reader;

/// Most bytes of a window, unless the caller says otherwise.
const WINDOW: usize = 32 << 20;

/// The same of batches that are not yet taken: one waits while the next is made.
const AHEAD: usize = 2;

/// What finds where records begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Boundaries {
    /// An [index](DeviceScan::index), if one is given; else the host.
    #[default]
    Auto,
    /// The host, while bytes pass on their way to the device.
    Host,
    /// The GPU, by a scan of windows of the file: for readers that bring bytes to the device past the host. It goes over them once (where many
    /// look like records, twice), takes all places at which a length and its checksum stand, and follows the chain from the first. Compressed
    /// files, sets of shards, and those of which corrupt records are left out, are the host's all the same.
    Device,
}

impl ExampleScan {
    /// The same columns in the memory of a GPU, where kernels check and decode the records.
    ///
    /// [`threads`](Self::threads) and [`ahead`](Self::ahead) mean nothing there, but must not be 0: one batch is decoded at a time, while
    /// what follows is read, and [before it is asked for](DeviceScan::ahead). What kernels do, what the host does, and why:
    /// [`tfrecord`](crate::tfrecord#on-a-gpu).
    ///
    /// ```
    /// use feedwater::cuda::{Device, Dense, ElementType};
    /// use feedwater::tfrecord::{self, ExampleSchema, Feature, ValueType};
    ///
    /// # fn batches(path: &std::path::Path) -> feedwater::Result<()> {
    /// let schema = ExampleSchema::new()
    ///     .with(Feature::scalar("image", ValueType::Binary).required()) // raw pixels
    ///     .with(Feature::scalar("label", ValueType::Int64).required());
    /// let gpu = Device::open(0)?;
    /// let scan = tfrecord::examples(feedwater::open(path)?).schema(schema).batch_rows(256);
    /// // [height, width, channel] of bytes becomes [channel, height, width] of floats from -1 to 1.
    /// let image = Dense::cast(&[3, 224, 224], ElementType::U8, ElementType::F32)
    ///     .strides(&[1, 224 * 3, 3])
    ///     .affine(0, &[2.0 / 255.0; 3], &[-1.0; 3]);
    /// for batch in scan.on_device(&gpu).tensor("image", image).batches()? {
    ///     let batch = batch?;
    ///     let images = batch.tensor("image").map(|tensor| tensor.dlpack()).transpose()?;
    ///     let labels = batch.columns().column("label").map(|column| column.tensor()).transpose()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_device(self, gpu: &Arc<Device>) -> DeviceScan {
        DeviceScan {
            scan: self,
            gpu: gpu.clone(),
            processor: Processor::Auto,
            boundaries: Boundaries::Auto,
            offsets: None,
            window: WINDOW,
            ahead: AHEAD,
            tensors: Vec::new(),
        }
    }
}

/// How examples become batches in the memory of a GPU. Made by [`ExampleScan::on_device`], run by [`batches`](Self::batches) or
/// [`stream`](Self::stream). What kernels do, what the host does, and why: [`tfrecord`](crate::tfrecord#on-a-gpu).
#[must_use = "a scan does nothing before `batches` or `stream`"]
pub struct DeviceScan {
    scan: ExampleScan,
    gpu: Arc<Device>,
    processor: Processor,
    boundaries: Boundaries,
    offsets: Option<Arc<[u64]>>,
    window: usize,
    ahead: usize,
    tensors: Vec<(Arc<str>, Dense)>,
}

impl DeviceScan {
    /// Which processor decodes. Default [`Processor::Auto`]: the GPU, but for what it has no kernels for, and batches of less than 64 KiB
    /// of records that the host has.
    pub fn processor(mut self, processor: Processor) -> Self {
        self.processor = processor;
        self
    }

    /// What finds where records begin. Default [`Boundaries::Auto`]. With [`Boundaries::Device`] windows of the file are read into
    /// memory of the device: the reader has to be opened with [`OpenOptions::device`](crate::OpenOptions::device).
    pub fn boundaries(mut self, boundaries: Boundaries) -> Self {
        self.boundaries = boundaries;
        self
    }

    /// Where the records of the file begin, so that nobody has to look for them. Each is checked against it all the same: a record that
    /// is not, or no longer, where the index has it is an error, as for [`Index::get`]. Windows of the file are read into memory of the
    /// device: the reader has to be opened with [`OpenOptions::device`](crate::OpenOptions::device).
    pub fn index<R: Reader + ?Sized>(mut self, index: &Index<R>) -> Self {
        self.offsets = Some(index.offsets().into());
        self
    }

    /// Bytes of a window of the file, for [`Boundaries::Device`] and an index. At least a record; two windows are on the device at a
    /// time. Default 32 MiB. Where the device has no memory for one, it is halved, and so are those that follow for a while, down to a
    /// single record; the [report](DeviceBatches::report) says so.
    pub fn window_bytes(mut self, bytes: usize) -> Self {
        self.window = bytes;
        self
    }

    /// Most batches that are decoded, or being decoded, and not yet taken: a thread begins with them as soon as the scan does, so that the
    /// device works while the caller does. Default 2. With 0 there is no such thread: a batch is decoded by the thread that takes it, when it does.
    ///
    /// Each takes the device's memory for its columns, about as much as its [records](ExampleScan::batch_bytes), and one at a time that for its
    /// records, too. Where there is no more memory, what is ahead waits until it is asked for, as if nothing was decoded ahead. If there is
    /// none then, either, the records are decoded half by half, in batches of their own, down to one record, which the host decodes, and
    /// whose columns are copied; the [report](DeviceBatches::report) says so. A [stream](Self::stream) makes at least one ahead.
    pub fn ahead(mut self, batches: usize) -> Self {
        self.ahead = batches;
        self
    }

    /// Makes a feature, whose schema is a scalar of [`Binary`](crate::tfrecord::ValueType::Binary) that cannot be null, a dense
    /// tensor in place of a column: a cast of one to three dimensions for each example. What an example has there are exactly as
    /// many elements as its shape has; else it is an error. The schema has to be [given](ExampleScan::schema), as an inferred feature can be
    /// null. Of two for one feature, the last counts.
    pub fn tensor(mut self, feature: impl Into<Arc<str>>, row: Dense) -> Self {
        self.tensors.push((feature.into(), row));
        self
    }

    /// The batches, in the order of the records. Where a schema is to be inferred, this reads the first examples. Batches that are
    /// found in windows end with their window, too.
    ///
    /// # Errors
    /// As [`ExampleScan::batches`]; [`ErrorKind::InvalidOption`] for [tensors](Self::tensor) that there cannot be, windows of no
    /// bytes, and an [index](Self::index) of another length of the file, of a set, or of a file that is compressed. The first batch is
    /// [`ErrorKind::Unsupported`] with an [index](Self::index) or [`Boundaries::Device`] if the reader was opened without
    /// [`OpenOptions::device`](crate::OpenOptions::device).
    pub fn batches(self) -> Result<DeviceBatches> {
        let ahead = self.ahead;
        let begun = self.begin()?;
        let mut maker = begun.maker;
        let (arrow, report) = (maker.schema().clone(), maker.decoder.report.clone());
        let by = match ahead {
            0 => By::Caller(Box::new(maker)),
            ahead => By::Thread(Ahead::start(ahead, move |wanted| maker.make(wanted))?),
        };
        Ok(DeviceBatches {
            by: Some(by),
            name: begun.name,
            arrow,
            schema: begun.schema,
            report,
            done: Done::default(),
        })
    }

    /// The same as a stream on any executor, which waits for nothing, neither file nor device: a thread does, also where nothing is to be
    /// made [ahead](Self::ahead). Nothing begins before it is polled; errors of the start come first.
    pub fn stream(self) -> DeviceBatchStream {
        DeviceBatchStream::new(self)
    }

    /// Finds out what there is to do. Waits for the file.
    pub(super) fn begin(mut self) -> Result<Begun> {
        self.scan.check()?;
        if self.window == 0 {
            return Err(invalid(
                "windows of no bytes: `window_bytes` has to be at least 1",
            ));
        }
        let schema = match self.scan.schema.take() {
            Some(schema) => schema,
            None => self.infer()?,
        };
        let plan = Plan::new(&schema, &self.tensors)?;
        let host = ExampleDecoder::new(&schema)?;
        let cut = Cut {
            rows: self.scan.rows,
            bytes: self.scan.bytes,
            row_bytes: host.row_bytes(),
        };
        let names: Arc<[Arc<str>]> = self.scan.names.clone().into();
        // One of its own, so that it waits for nothing of others.
        let stream = self.gpu.stream()?;
        let feed = self.feed(cut, &stream)?;
        let name = self.name();
        let on = (&self.gpu, stream);
        let mut decoder = Decoder::new(on, &schema, plan, names, self.processor)?;
        (decoder.report.boundaries, decoder.report.checksums) = feed.ways();
        if self.processor == Processor::Cpu {
            let options = self.scan.origin.options();
            decoder.report.checksums = by_host(options.verify_data).into();
        }
        Ok(Begun {
            maker: Maker {
                feed: Some(feed),
                rest: Vec::new(),
                decoder,
            },
            name,
            schema,
        })
    }

    /// The file, or the first.
    pub(super) fn name(&self) -> Arc<str> {
        self.scan.names.first().cloned().unwrap_or_default()
    }

    /// How many batches are to be made before they are taken.
    pub(super) fn made_ahead(&self) -> usize {
        self.ahead
    }

    /// The schema of the first examples. They are read once more with the others.
    fn infer(&self) -> Result<ExampleSchema> {
        let mut scan = self.scan.origin.scan();
        scan.infer_from = self.scan.infer_from;
        block_on(scan.infer(&mut Vec::new()))
    }

    fn feed(&self, cut: Cut, stream: &Stream) -> Result<Box<dyn Feed>> {
        let origin = &self.scan.origin;
        let options = origin.options();
        let fails = options.on_corrupt == OnCorrupt::Fail;
        let wants_window = self.offsets.is_some() || self.boundaries == Boundaries::Device;
        if self.offsets.is_some() && self.boundaries == Boundaries::Device {
            return Err(invalid("an index, and a scan for what it has"));
        }
        let mut why = match (origin.reader(), self.boundaries) {
            (None, Boundaries::Device) => ", as it is a set",
            (Some(_), Boundaries::Device) if !fails => ", as corrupt records are left out",
            _ => "",
        };
        if let (Some(reader), true) = (origin.reader(), wants_window && fails) {
            let compression = match options.compression {
                Some(compression) => compression,
                None => recognise(&start_of(reader)?),
            };
            if let Some(offsets) = &self.offsets
                && (compression != Compression::None
                    || offsets.last() != Some(&reader.source().len()))
            {
                return Err(invalid("an index of another file, or another state of it")
                    .named(reader.source().name()));
            }
            if compression == Compression::None {
                let way = Way {
                    window: self.window as u64,
                    cut,
                    most: options.most(Compression::None),
                    verify_data: options.verify_data,
                };
                let (gpu, stream) = (self.gpu.clone(), stream.clone());
                let (reader, offsets) = (reader.clone(), self.offsets.clone());
                let windows = Windows::new(reader, gpu, stream, way, offsets);
                return Ok(Box::new(windows));
            }
            why = ", as the file is compressed";
        } else if self.offsets.is_some() {
            return Err(invalid(
                "an index of a set of files, or of one of which corrupt records are left out",
            ));
        }
        // Whether records are left out has to be known before they are decoded.
        let verify = options.verify_data && fails;
        let walked = match verify {
            true => options.clone().verify_data(false),
            false => options.clone(),
        };
        let source = origin.source(&walked);
        let pull = Pull::new(source, Vec::new(), self.scan.names.clone(), cut);
        let check = verify.then_some(Check::All);
        let walked = Walked::new(pull, check, options.verify_data, why);
        Ok(Box::new(walked))
    }
}

/// A scan whose start is over.
pub(super) struct Begun {
    pub(super) maker: Maker,
    /// Of the file, or the first.
    name: Arc<str>,
    pub(super) schema: ExampleSchema,
}

/// Of columns, and of examples.
pub(super) type Schemas = Box<(SchemaRef, ExampleSchema)>;

/// Makes batches.
pub(super) struct Maker {
    /// `None`: there are no more records.
    feed: Option<Box<dyn Feed>>,
    /// Parts of what was taken, for all of which there was no memory; the next one last.
    rest: Vec<Taken>,
    decoder: Decoder,
}

/// What became of some records, and what ran where up to there; nothing is told of what failed before it began.
pub(super) struct Made {
    pub(super) done: Done,
    pub(super) report: Option<DeviceReport>,
    /// With the first of a stream.
    pub(super) schemas: Option<Schemas>,
}

impl From<Error> for Made {
    fn from(error: Error) -> Self {
        Made {
            done: error.into(),
            report: None,
            schemas: None,
        }
    }
}

impl Maker {
    /// Of the columns.
    pub(super) fn schema(&self) -> &SchemaRef {
        self.decoder.plan().schema()
    }

    /// What becomes of the next records; `None` behind the last.
    pub(super) fn make(&mut self, wanted: Wanted<'_>) -> Option<Made> {
        let taken = match self.rest.pop() {
            Some(part) => part,
            None => {
                let feed = self.feed.as_mut()?;
                let taken = feed.next(wanted);
                feed.tell(&mut self.decoder.report);
                taken
            }
        };
        if taken.last {
            self.feed = None;
        }
        let done = self.decoder.decode(taken, &mut self.rest, wanted);
        if done.error.is_some() {
            self.feed = None;
            self.rest.clear();
        }
        Some(Made {
            done,
            report: Some(self.decoder.report.clone()),
            schemas: None,
        })
    }
}

/// Who makes batches.
enum By {
    /// The thread that takes them, as it does.
    Caller(Box<Maker>),
    Thread(Ahead<Made>),
}

/// Batches of examples in the memory of a GPU, in order: an iterator that blocks its thread while bytes are read and kernels run, unless
/// that is [done ahead](DeviceScan::ahead). Dropping it ends that work as soon as the batch is made that is being made; batches that were taken
/// stay.
///
/// Tasks have [`DeviceScan::stream`].
///
/// # Errors
/// Those of [`ExampleBatches`](crate::tfrecord::ExampleBatches), word for word; [`OutOfMemory`](ErrorKind::OutOfMemory),
/// [`Cuda`](ErrorKind::Cuda), [`DeviceLost`](ErrorKind::DeviceLost) of the device. All rows before the error are delivered
/// first; after it there are no more.
#[must_use = "iterators do nothing unless used"]
pub struct DeviceBatches {
    /// `None`: there are no more.
    by: Option<By>,
    /// Of the file, or the first.
    name: Arc<str>,
    arrow: SchemaRef,
    schema: ExampleSchema,
    report: DeviceReport,
    done: Done,
}

impl DeviceBatches {
    /// The schema of the columns of all batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.arrow
    }

    /// The features that become columns and tensors: what was given, or what was inferred.
    pub fn example_schema(&self) -> &ExampleSchema {
        &self.schema
    }

    /// What ran where so far, and why: of the batches that were taken, and those that came of the same records.
    pub fn report(&self) -> &DeviceReport {
        &self.report
    }
}

impl Iterator for DeviceBatches {
    type Item = Result<DeviceExamples>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.done.batches.pop_front() {
                return Some(Ok(batch));
            }
            if let Some(error) = self.done.error.take() {
                self.by = None;
                return Some(Err(error));
            }
            let made = match self.by.as_mut()? {
                By::Caller(maker) => Ok(maker.make(&|| false)),
                By::Thread(ahead) => match ahead.take(None) {
                    Poll::Ready(made) => made.map_err(|error| error.named(&self.name)),
                    Poll::Pending => return None, // not without a task
                },
            };
            let Some(made) = made.unwrap_or_else(|error| Some(error.into())) else {
                self.by = None;
                return None;
            };
            self.done = made.done;
            if let Some(report) = made.report {
                self.report = report;
            }
        }
    }
}

impl std::iter::FusedIterator for DeviceBatches {}

impl fmt::Debug for DeviceScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceScan")
            .field("scan", &self.scan)
            .field("gpu", &self.gpu)
            .field("processor", &self.processor)
            .field("boundaries", &self.boundaries)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for DeviceBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBatches")
            .field("schema", self.schema())
            .field("report", self.report())
            .finish_non_exhaustive()
    }
}

fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOption { what: what.into() })
}
