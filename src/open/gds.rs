//! cuFile in front of the way through the host, for devices that it reaches.

use std::any::Any;
use std::sync::Arc;

use super::options::OpenOptions;
use crate::backend::gds::{Gds, GdsOptions};
use crate::cuda::Device;
use crate::error::Result;
use crate::reader::{Reader, Transfer};

/// How cuFile is used.
#[derive(Clone, Debug, Default)]
pub(super) struct Front(GdsOptions);

/// Readers that cuFile is in front of, for reports.
pub(super) type Fronted = Vec<Arc<Gds<dyn Reader>>>;

impl Front {
    /// `reader`, which delivers to `device` through the host, with cuFile in front if the device is a GPU. Adds it to `fronted` then.
    pub(super) fn put(
        &self,
        reader: Arc<dyn Reader>,
        device: &Arc<dyn Transfer>,
        fronted: &mut Fronted,
    ) -> Result<Arc<dyn Reader>> {
        let device: Arc<dyn Any + Send + Sync> = device.clone();
        let Ok(device) = device.downcast::<Device>() else {
            return Ok(reader);
        };
        let gds = Arc::new(Gds::new(reader, &device, self.0.clone())?);
        fronted.push(gds.clone());
        Ok(gds)
    }
}

/// What the reports of a source say of them.
pub(super) fn facts(fronted: &Fronted) -> impl Iterator<Item = (&'static str, String)> + '_ {
    fronted
        .iter()
        .map(|gds| ("to the device", gds.report().to_string()))
}

impl OpenOptions {
    /// How cuFile is used for reads to the [devices](Self::device) that are GPUs. Default: where it reads straight into their memory, or as
    /// the environment variable `FEEDWATER_GDS` says; see [`Gds`].
    ///
    /// The first open of a process with a GPU opens cuFile, which may take seconds where it is installed.
    #[must_use]
    pub fn gds(mut self, options: GdsOptions) -> Self {
        self.front = Front(options);
        self
    }
}
