//! Columns decoded in the memory of a GPU: pages by the host, values by kernels, and what these leave out by the host.

mod group;
mod inflate;
mod lanes;
mod page_plan;
mod report;
mod scan;
mod shape;

pub use report::{DeviceColumnPlan, DeviceColumnReport, DevicePlan, DeviceScanReport};
pub use scan::{DeviceBatches, DeviceScan};
