//! Columns decoded in the memory of a GPU: pages and values by kernels, and what these leave out by the host.

mod batches;
#[cfg(feature = "cache")]
mod cached;
mod codecs;
mod group;
mod inflate;
mod lanes;
mod leaf;
mod lists;
mod nesting;
mod page_plan;
mod pieces;
#[cfg(feature = "testing")]
pub mod planning;
mod report;
mod scan;
mod shape;
mod wanted;

pub use batches::{DeviceBatchStream, DeviceBatches};
pub use report::{
    Decompressed, DeviceColumnPlan, DeviceColumnReport, DevicePlan, DeviceScanReport,
};
pub use scan::DeviceScan;
