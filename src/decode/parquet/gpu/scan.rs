//! Scans to the memory of a GPU: what is asked for, and how it begins.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use arrow_schema::SchemaRef;

use super::group::{Groups, Root};
use super::lanes::{Item, LANES, Lanes};
use super::lists::Lists;
use super::nesting::RootShape;
use super::report::{DeviceColumnPlan, DevicePlan, DeviceScanReport, Tally};
use crate::cuda::{Device, Stream};
use crate::decode::device::{DeviceBatch, Processor};
use crate::decode::parquet::explain::Plan;
use crate::decode::parquet::job::Task;
use crate::decode::parquet::scan::Scan;
use crate::decode::threads;
use crate::decode::wait::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::parquet::roots_of;
use crate::reader::Reader;
use crate::sys::Generation;

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
#[must_use = "a scan does nothing before `batches` or `explain`"]
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
    /// once. Default: half of what is free at the start.
    ///
    /// A row group that takes more than its half is decoded by the host, and comes in smaller batches. Nor is it an error if the
    /// device has less than it said: the same happens.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Starts the scan; an iterator that parks its thread for each batch, and this call while the footer and indexes are read.
    ///
    /// # Errors
    /// Those of [`Scan::batches`]; of the GPU: [`ErrorKind::Cuda`], [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub fn batches(self) -> Result<DeviceBatches> {
        let DeviceScan {
            scan,
            gpu,
            processor,
            memory,
            lists,
        } = self;
        let (task, plan, threads) = block_on(scan.tasked())?;
        let memory = match memory {
            Some(memory) => memory,
            None => gpu.memory()?.0 / 2,
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

    /// What [`batches`](Self::batches) would read, and who would decode it, as far as the footer tells.
    ///
    /// # Errors
    /// As [`Scan::explain`].
    pub fn explain(self) -> Result<DevicePlan> {
        let (task, scan, _) = block_on(self.scan.tasked())?;
        let roots = roots(&task, self.processor);
        let columns = roots.into_iter().map(|root| DeviceColumnPlan {
            column: root.name,
            host_because: root.shape.err(),
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

/// The batches of a scan to the memory of a GPU: an iterator that parks its thread.
///
/// Threads decode two row groups ahead. After an error there are no more batches. Dropping it ends their work as soon as each has done
/// what it is at; batches that were taken stay.
#[must_use = "iterators do nothing unless used"]
pub struct DeviceBatches {
    lanes: Arc<Lanes>,
    plan: Plan,
    threads: Vec<Thread>,
    generation: Generation,
    told: bool,
    rows: u64,
    batches: u64,
}

impl DeviceBatches {
    fn start(lanes: Lanes, plan: Plan) -> Result<Self> {
        let lanes = Arc::new(lanes);
        let mut started = DeviceBatches {
            lanes: lanes.clone(),
            plan,
            threads: Vec::new(),
            generation: Generation::current(),
            told: false,
            rows: 0,
            batches: 0,
        };
        for _ in 0..lanes.count() {
            let lanes = lanes.clone();
            let stream = Stream::clone(&lanes.groups.gpu.stream()?);
            let thread = threads::spawn(move || lanes.work(&stream))?;
            started.threads.push(thread);
        }
        Ok(started)
    }

    /// The schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.lanes.groups.task.schema
    }

    /// What was planned to be read.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What has been done so far, and by whom.
    pub fn report(&self) -> DeviceScanReport {
        let (done, groups) = (&self.lanes.done, &self.lanes.groups);
        let names = groups.roots.iter().map(|root| &root.name);
        let (page_lists_walked, page_lists_known) = groups.lists.counts();
        DeviceScanReport {
            rows: self.rows,
            batches: self.batches,
            requests: done.requests.load(Ordering::Relaxed),
            bytes: done.bytes.load(Ordering::Relaxed),
            bytes_with_footer: done.with_footer.load(Ordering::Relaxed),
            page_lists_walked,
            page_lists_known,
            pages_marked: groups.lists.marked(),
            columns: groups.tally().report(names),
        }
    }
}

impl Iterator for DeviceBatches {
    type Item = Result<DeviceBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.generation.is_current() {
            // The threads stayed with the parent, and their locks may be held for ever.
            let told = std::mem::replace(&mut self.told, true);
            let name = &self.lanes.groups.task.name;
            return (!told).then(|| Err(Error::new(ErrorKind::Forked).named(name)));
        }
        let next = self.lanes.next();
        if let Some(Ok(batch)) = &next {
            self.rows += batch.num_rows() as u64;
            self.batches += 1;
        }
        next
    }
}

impl Drop for DeviceBatches {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            std::mem::forget(self.lanes.clone());
            return;
        }
        self.lanes.stop();
        for thread in &self.threads {
            thread.unpark();
        }
    }
}

impl fmt::Debug for DeviceBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBatches")
            .field("plan", &self.plan)
            .field("rows", &self.rows)
            .field("batches", &self.batches)
            .finish_non_exhaustive()
    }
}
