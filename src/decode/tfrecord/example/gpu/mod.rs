//! Examples decoded where they will be used: in the memory of a GPU. What is done there, and what by the host, is told by the documentation of
//! the format's module.

mod ahead;
mod decode;
mod feed;
mod origin;
mod output;
mod plan;
mod report;
mod rewrite;
mod scan;
mod stream;
mod window;

pub use output::{DeviceExamples, FeatureTensor};
pub use report::{DeviceReport, Share};
pub use scan::{Boundaries, DeviceBatches, DeviceScan};
pub use stream::DeviceBatchStream;
