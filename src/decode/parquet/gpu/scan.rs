//! Scans to the memory of a GPU: what is asked for, and how it begins.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::batches::{DeviceBatchStream, DeviceBatches};
use super::group::{Groups, Root, too_small};
use super::lanes::{Item, LANES, Lanes};
use super::lists::Lists;
use super::nesting::RootShape;
use super::report::{DeviceColumnPlan, DevicePlan, Tally};
use crate::cuda::Device;
use crate::decode::device::Processor;
use crate::decode::parquet::job::Task;
use crate::decode::parquet::scan::Scan;
use crate::decode::wait::block_on;
use crate::error::Result;
use crate::format::parquet::{invalid, roots_of};
use crate::reader::Reader;

impl<R: Reader + ?Sized + 'static> Scan<R> {
    /// The same rows and columns into the memory of a GPU, as Arrow arrays there.
    ///
    /// Pages are read by the host, and decompressed and decoded by the GPU as far as its kernels [do](crate::parquet#on-a-gpu) and it pays; the
    /// rest is done by the host and copied. The reader may be any: it delivers to the host.
    ///
    /// ```no_run
    /// use feedwater::{cuda, parquet};
    ///
    /// let gpu = cuda::Device::open(0)?;
    /// let scan = parquet::scan(feedwater::open("table.parquet")?).on_device(&gpu);
    /// let mut batches = scan.batches()?;
    /// for batch in batches.by_ref() {
    ///     let batch = batch?;
    ///     let ids = batch.column("id").unwrap();
    ///     let tensor = ids.tensor()?; // DLPack
    ///     let array = batch.export()?; // Arrow's C device interface
    ///     # let _ = (tensor, array);
    /// }
    /// println!("{}", batches.report());
    /// # Ok::<(), feedwater::Error>(())
    /// ```
    pub fn on_device(self, gpu: &Arc<Device>) -> DeviceScan<R> {
        DeviceScan {
            scan: self,
            gpu: gpu.clone(),
            processor: Processor::default(),
            memory: None,
            lists: Lists::default(),
        }
    }
}

/// A scan to the memory of a GPU to be; made by [`Scan::on_device`].
///
/// A batch is a row group, in the order of the file, or what is wanted of it; row groups that are decoded by the host alone come in batches
/// of about a million rows, or of fewer if the [memory](Self::memory) is short. [`Scan::as_ready`] has no meaning here, nor has
/// [`Scan::batch_rows`], but that a predicate is evaluated on as many rows at once.
///
/// Of [some rows](Scan::rows), the device gets the pages that have them, as the host would read and decode them, and copies the rows once
/// they are decoded. A [predicate](Scan::filter) is evaluated by the host, which decodes its columns for that; then the device gets pages with
/// rows that it is true for, also of these columns if they are wanted.
#[must_use = "a scan does nothing before `batches`, `stream` or `explain`"]
pub struct DeviceScan<R: Reader + ?Sized> {
    pub(super) scan: Scan<R>,
    gpu: Arc<Device>,
    processor: Processor,
    memory: Option<u64>,
    pub(super) lists: Lists,
}

impl<R: Reader + ?Sized + 'static> DeviceScan<R> {
    /// Who decodes. Default: [`Processor::Auto`], which leaves columns of less than 64 KiB in a row group to the host, and decompresses
    /// [few pages](crate::parquet#on-a-gpu) there.
    pub fn processor(mut self, processor: Processor) -> Self {
        self.processor = processor;
        self
    }

    /// Most bytes of the device for the row groups that are decoded and not yet taken, counted by rows and widths; two are at
    /// once. Default: half of what the device could give at the start: what the driver has free and this device keeps for the next
    /// buffers, but no more than is left of [`DeviceOptions::memory`].
    ///
    /// A row group that takes more than its half is decoded by the host, and comes in smaller batches. Nor is it an error if the
    /// device has less than it said: the same happens, and the batches become smaller still, down to a row, until they fit. Batches that
    /// were taken count until they are dropped. With 1 each row is a batch; 0 is [`InvalidOption`](crate::ErrorKind::InvalidOption).
    ///
    /// [`DeviceOptions::memory`]: crate::cuda::DeviceOptions::memory
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Starts the scan; an iterator that parks its thread for each batch, and this call while the footer and indexes are read. Tasks
    /// have [`stream`](Self::stream).
    ///
    /// # Errors
    /// Those of [`Scan::batches`]; of the GPU: [`ErrorKind::Cuda`], [`ErrorKind::OutOfMemory`] if the driver has none for a stream,
    /// [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`]. Each batch has [errors](DeviceBatches#errors) of its own.
    ///
    /// [`ErrorKind::Cuda`]: crate::ErrorKind::Cuda
    /// [`ErrorKind::OutOfMemory`]: crate::ErrorKind::OutOfMemory
    /// [`ErrorKind::DeviceLost`]: crate::ErrorKind::DeviceLost
    /// [`ErrorKind::Forked`]: crate::ErrorKind::Forked
    pub fn batches(self) -> Result<DeviceBatches> {
        block_on(self.start())
    }

    /// The same as a stream on any executor, which makes a few calls of the driver when it begins, and then waits for nothing, neither file
    /// nor device: threads do. Nothing begins before it is polled; errors of the start come first.
    pub fn stream(self) -> DeviceBatchStream {
        DeviceBatchStream::starting(Box::pin(self.start()))
    }

    async fn start(self) -> Result<DeviceBatches> {
        let DeviceScan {
            scan,
            gpu,
            processor,
            memory,
            lists,
        } = self;
        check_memory(memory, &scan)?;
        let (task, plan, threads) = scan.tasked().await?;
        let memory = match memory {
            Some(memory) => memory,
            None => gpu.available()? / 2,
        };
        let roots = roots(&task, processor);
        let items = items(&task, &roots);
        let groups = Groups {
            task,
            gpu,
            processor,
            roots,
            buffers: Arc::default(),
            threads,
            memory: memory / LANES as u64,
            lists,
            tally: Mutex::new(Tally::default()),
            stopped: AtomicBool::new(false),
        };
        DeviceBatches::start(Lanes::new(groups, plan.clone(), items), plan)
    }

    /// What [`batches`](Self::batches) would read, and who would decode it, as far as the footer tells. By [`Processor::Auto`] a column is
    /// the host's if it is small in each of the row groups; if in some, the [report](DeviceBatches::report) tells.
    ///
    /// # Errors
    /// As [`Scan::explain`].
    pub fn explain(self) -> Result<DevicePlan> {
        block_on(self.explain_async())
    }

    /// The same in a task: [`explain`](Self::explain) on any executor, without blocking it.
    ///
    /// # Errors
    /// As [`Scan::explain`].
    pub async fn explain_async(self) -> Result<DevicePlan> {
        check_memory(self.memory, &self.scan)?;
        let (task, scan, _) = self.scan.tasked().await?;
        let roots = roots(&task, self.processor);
        let groups = &task.plan.groups;
        let columns = roots.into_iter().map(|root| {
            let small = |group| too_small(&task, self.processor, &root, group);
            // `None` as soon as one of them is not.
            let why: Option<Vec<_>> = groups.iter().map(small).collect();
            let why = why.and_then(|why| why.into_iter().next());
            DeviceColumnPlan {
                column: root.name,
                host_because: root.shape.err().or(why),
            }
        });
        Ok(DevicePlan {
            scan,
            columns: columns.collect(),
        })
    }
}

impl<R: Reader + ?Sized> fmt::Debug for DeviceScan<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceScan")
            .field("scan", &self.scan)
            .field("device", &self.gpu)
            .field("processor", &self.processor)
            .finish_non_exhaustive()
    }
}

/// Refuses memory of no bytes, in which not even a row has room; with any, there are batches of a row.
fn check_memory<R: Reader + ?Sized + 'static>(memory: Option<u64>, scan: &Scan<R>) -> Result<()> {
    if memory != Some(0) {
        return Ok(());
    }
    let what = "row groups of no memory: `memory` has to be at least 1; unless told, it is half of what the device could give";
    Err(invalid(what).named(scan.source_name()))
}

/// The top-level columns of a scan.
fn roots(task: &Task, processor: Processor) -> Vec<Root> {
    let schema = task.metadata.file_metadata().schema_descr();
    let roots = roots_of(schema, &task.leaves);
    let fields = task.schema.fields().iter();
    let of = |(root, field): (usize, &arrow_schema::FieldRef)| {
        let leaves = task.leaves.iter().copied();
        let leaves: Vec<_> = leaves
            .filter(|leaf| schema.get_column_root_idx(*leaf) == root)
            .collect();
        let of: Option<Vec<_>> = leaves
            .iter()
            .map(|leaf| schema.columns().get(*leaf).map(|leaf| &**leaf))
            .collect();
        let shape = match (processor, of) {
            (Processor::Cpu, _) => Err(ASKED.into()),
            (_, Some(of)) => RootShape::of(&of, field).map_err(Into::into),
            (_, None) => Err("it is no column".into()),
        };
        Root {
            name: field.name().as_str().into(),
            leaves,
            shape,
        }
    };
    roots.into_iter().zip(fields).map(of).collect()
}

const ASKED: &str = "that was asked for";

/// The row groups: all in one, if the host decodes each of their columns.
fn items(task: &Task, roots: &[Root]) -> Vec<Item> {
    let groups = task.plan.groups.len();
    if groups > 0 && roots.iter().all(|root| root.shape.is_err()) {
        // Each column has a reason of its own, which is told instead.
        return vec![Item::Host(0..groups, "it has no kernels".into())];
    }
    (0..groups).map(Item::Group).collect()
}
