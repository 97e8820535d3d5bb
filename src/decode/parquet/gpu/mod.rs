//! Columns decoded in the memory of a GPU: pages and values by kernels, and what these leave out by the host.

mod codecs;
mod group;
mod inflate;
mod lanes;
mod page_plan;
mod report;
mod scan;
mod shape;

pub use report::{
    Decompressed, DeviceColumnPlan, DeviceColumnReport, DevicePlan, DeviceScanReport,
};
pub use scan::{DeviceBatches, DeviceScan};
