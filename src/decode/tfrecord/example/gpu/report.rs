//! What ran where, and why.

use std::borrow::Cow;
use std::fmt;

use crate::decode::tfrecord::Skipped;
use crate::error::counted;

/// So many batches, and rows in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Share {
    /// Batches.
    pub batches: u64,
    /// Rows.
    pub rows: u64,
}

/// What a scan for a device did so far, and why; see [`DeviceBatches::report`](super::DeviceBatches::report).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DeviceReport {
    /// What found where records begin.
    pub boundaries: Cow<'static, str>,
    /// What checked the checksums of data; in batches that the host decodes, the host does what the GPU does in others.
    pub checksums: Cow<'static, str>,
    /// What the GPU decoded.
    pub gpu: Share,
    /// What the processor of the host decoded, to be copied to the device.
    pub host: Share,
    /// Records in a form that kernels do not walk, which the host wrote anew for them.
    pub rewritten: u64,
    /// How often the device had no memory for a batch or a window of the file, so that its records were decoded half by half, or those that
    /// it had none for by themselves, in batches of their own, or windows became smaller.
    pub halved: u64,
    /// The corrupt records that were left out so far. Records are read some ahead of the batches.
    pub skipped: Skipped,
    /// Why batches were the host's, and how many for each reason.
    pub reasons: Vec<(Cow<'static, str>, u64)>,
}

impl DeviceReport {
    pub(super) fn on_gpu(&mut self, rows: usize) {
        self.gpu.batches += 1;
        self.gpu.rows += rows as u64;
    }

    pub(super) fn on_host(&mut self, rows: usize, why: Cow<'static, str>) {
        self.host.batches += 1;
        self.host.rows += rows as u64;
        match self.reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, times)) => *times += 1,
            None => self.reasons.push((why, 1)),
        }
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "records found by: {}", self.boundaries)?;
        writeln!(f, "checksums of data by: {}", self.checksums)?;
        let (gpu, host) = (self.gpu, self.host);
        writeln!(
            f,
            "decoded by the GPU: {} in {}",
            counted(gpu.rows, "row"),
            counted(gpu.batches, "batch")
        )?;
        if self.rewritten > 0 {
            let rows = counted(self.rewritten, "row");
            writeln!(f, "  of which the host wrote anew: {rows}")?;
        }
        writeln!(
            f,
            "decoded by the host: {} in {}",
            counted(host.rows, "row"),
            counted(host.batches, "batch")
        )?;
        for (why, times) in &self.reasons {
            writeln!(f, "  {}: {why}", counted(*times, "batch"))?;
        }
        if self.skipped.records() > 0 {
            let records = counted(self.skipped.records(), "record");
            let bytes = counted(self.skipped.bytes(), "byte");
            writeln!(f, "left out, as they are corrupt: {records} of {bytes}")?;
        }
        if self.halved > 0 {
            let times = counted(self.halved, "time");
            writeln!(f, "halved for want of the device's memory: {times}")?;
        }
        Ok(())
    }
}
