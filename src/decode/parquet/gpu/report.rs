//! Which columns were decoded by whom, and why, for people.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::codecs::Undone;
use crate::decode::parquet::explain::Plan;
use crate::error::counted;

/// What a scan to the memory of a GPU is going to read, and who is to decode it. `Display` is a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DevicePlan {
    /// What is read.
    pub scan: Plan,
    /// The top-level columns, in the order of the schema.
    pub columns: Vec<DeviceColumnPlan>,
}

/// A column of a [`DevicePlan`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceColumnPlan {
    /// Its name.
    pub column: Arc<str>,
    /// Why the processor of the host decodes it; `None`: kernels do, as far as its pages are of encodings that they have,
    /// and not in row groups in which it is too small for [`Processor::Auto`](crate::Processor::Auto).
    pub host_because: Option<Arc<str>>,
}

impl fmt::Display for DevicePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.scan)?;
        for column in &self.columns {
            match &column.host_because {
                None => write!(f, "\n{}: by the GPU", column.column)?,
                Some(why) => write!(f, "\n{}: by the host, because {why}", column.column)?,
            }
        }
        Ok(())
    }
}

/// What a scan to the memory of a GPU has done so far. `Display` is a table.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DeviceScanReport {
    /// Rows delivered.
    pub rows: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Requests made of the reader for data.
    pub requests: u64,
    /// Bytes of those requests.
    pub bytes: u64,
    /// Bytes of data that had come with the footer, and were not asked for again: the end of the file, or all of a small one.
    pub bytes_with_footer: u64,
    /// Column chunks whose page headers were walked over, to find their pages for the kernels.
    pub page_lists_walked: u64,
    /// Column chunks whose pages a cache knew (`DeviceScan::page_lists`).
    pub page_lists_known: u64,
    /// Pages that kernels began to decode at many places at once, which a cache knew.
    pub pages_marked: u64,
    /// The top-level columns by name.
    pub columns: Vec<DeviceColumnReport>,
}

/// A column of a [`DeviceScanReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceColumnReport {
    /// Its name.
    pub column: Arc<str>,
    /// Row groups of it that kernels decoded.
    pub by_gpu: u64,
    /// Row groups of it that the processor of the host decoded.
    pub by_host: u64,
    /// Why, and how many row groups each: the commonest first.
    pub host_because: Vec<(Arc<str>, u64)>,
    /// Pages of the row groups that kernels decoded, which kernels decompressed, too.
    pub decompressed_by_gpu: Decompressed,
    /// Pages of these row groups that threads of the host decompressed.
    pub decompressed_by_host: Decompressed,
    /// Why, and how many pages each: the commonest first.
    pub decompressed_by_host_because: Vec<(Arc<str>, u64)>,
}

/// Pages that were compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decompressed {
    /// How many.
    pub pages: u64,
    /// Bytes that they became.
    pub bytes: u64,
}

impl Decompressed {
    fn add(&mut self, (pages, bytes): (u64, u64)) {
        self.pages += pages;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl fmt::Display for DeviceScanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} in {}; {} in {}",
            counted(self.rows, "row"),
            counted(self.batches, "batch"),
            counted(self.bytes, "byte"),
            counted(self.requests, "request")
        )?;
        if self.bytes_with_footer > 0 {
            let bytes = counted(self.bytes_with_footer, "byte");
            write!(f, ", and {bytes} that had come with the footer")?;
        }
        let lists = [
            (self.page_lists_known, "that a cache knew the pages of"),
            (
                self.page_lists_walked,
                "whose pages were found by a walk over their headers",
            ),
        ];
        for (count, what) in lists.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "\n{} {what}", counted(count, "column chunk"))?;
        }
        if self.pages_marked > 0 {
            let pages = counted(self.pages_marked, "page");
            write!(
                f,
                "\n{pages} decoded from places in them that were known before"
            )?;
        }
        for column in &self.columns {
            write!(
                f,
                "\n{}: {} by the GPU, {} by the host",
                column.column,
                counted(column.by_gpu, "row group"),
                column.by_host
            )?;
            for (why, count) in &column.host_because {
                write!(f, "\n  {count}: {why}")?;
            }
            let (gpu, host) = (column.decompressed_by_gpu, column.decompressed_by_host);
            if gpu.pages + host.pages > 0 {
                write!(
                    f,
                    "\n  decompressed: {} ({}) by the GPU, {} ({}) by the host",
                    counted(gpu.pages, "page"),
                    counted(gpu.bytes, "byte"),
                    host.pages,
                    host.bytes
                )?;
            }
            for (why, count) in &column.decompressed_by_host_because {
                write!(f, "\n    {count}: {why}")?;
            }
        }
        Ok(())
    }
}

/// Reasons that are kept for a column; the others are counted together.
const REASONS: usize = 16;

/// What is counted for a report.
#[derive(Debug, Default)]
pub(super) struct Tally {
    columns: Vec<(Arc<str>, Counted)>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    by_gpu: u64,
    by_host: u64,
    reasons: BTreeMap<Arc<str>, u64>,
    undone_by_gpu: Decompressed,
    undone_by_host: Decompressed,
    undone_reasons: BTreeMap<Arc<str>, u64>,
}

impl Tally {
    pub(super) fn by_gpu(&mut self, column: &Arc<str>, undone: &Undone) {
        let counted = self.of(column);
        counted.by_gpu += 1;
        counted.undone_by_gpu.add(undone.by_gpu);
        counted.undone_by_host.add(undone.by_host);
        for (why, pages) in &undone.reasons {
            count(&mut counted.undone_reasons, why, *pages);
        }
    }

    pub(super) fn by_host(&mut self, column: &Arc<str>, why: &Arc<str>) {
        let counted = self.of(column);
        counted.by_host += 1;
        count(&mut counted.reasons, why, 1);
    }

    fn of(&mut self, column: &Arc<str>) -> &mut Counted {
        let at = match self.columns.iter().position(|(name, _)| name == column) {
            Some(at) => at,
            None => {
                self.columns.push((column.clone(), Counted::default()));
                self.columns.len() - 1
            }
        };
        &mut self.columns[at].1
    }

    /// The columns of these names, in this order.
    pub(super) fn report<'a>(
        &self,
        names: impl Iterator<Item = &'a Arc<str>>,
    ) -> Vec<DeviceColumnReport> {
        let of = |column: &Arc<str>| {
            let found = self.columns.iter().find(|(name, _)| name == column);
            let counted = found
                .map(|(_, counted)| counted.clone())
                .unwrap_or_default();
            DeviceColumnReport {
                column: column.clone(),
                by_gpu: counted.by_gpu,
                by_host: counted.by_host,
                host_because: commonest_first(counted.reasons),
                decompressed_by_gpu: counted.undone_by_gpu,
                decompressed_by_host: counted.undone_by_host,
                decompressed_by_host_because: commonest_first(counted.undone_reasons),
            }
        };
        names.map(of).collect()
    }
}

/// Counts a reason, or puts it to the others.
fn count(reasons: &mut BTreeMap<Arc<str>, u64>, why: &Arc<str>, times: u64) {
    let full = reasons.len() >= REASONS && !reasons.contains_key(why);
    let why = if full {
        "other reasons".into()
    } else {
        why.clone()
    };
    *reasons.entry(why).or_default() += times;
}

fn commonest_first(reasons: BTreeMap<Arc<str>, u64>) -> Vec<(Arc<str>, u64)> {
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    reasons
}
