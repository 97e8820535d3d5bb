//! cuFile in front of the way through the host, for devices that it reaches.

use std::any::Any;
use std::sync::Arc;

use super::options::OpenOptions;
use super::report::Verdict;
use crate::backend::gds::{Gds, GdsOptions, GdsState};
use crate::cuda::Device;
use crate::error::{Refusal, Result};
use crate::reader::{Reader, Route, Transfer};

/// How cuFile is used.
#[derive(Clone, Debug, Default)]
pub(super) struct Front(GdsOptions);

/// For each device, the reader with cuFile in front, if there is one; for reports.
pub(super) type Fronted = Vec<Option<Arc<Gds<dyn Reader>>>>;

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
            fronted.push(None);
            return Ok(reader);
        };
        let gds = Arc::new(Gds::new(reader, &device, self.0.clone())?);
        fronted.push(Some(gds.clone()));
        Ok(gds)
    }
}

/// What reports say of cuFile in front of the `device`-th device.
pub(super) fn fact(fronted: &Fronted, device: usize) -> Option<String> {
    let gds = fronted.get(device)?.as_ref()?;
    Some(gds.report().to_string())
}

/// What became of cuFile, if it is in front of anything.
pub(super) fn verdict(fronted: &Fronted) -> Option<(Route, Verdict)> {
    let mut verdict = None;
    for gds in fronted.iter().flatten() {
        let report = gds.report();
        verdict = Some(match (report.bytes, report.state) {
            (1.., _) => return Some((Route::Gds, Verdict::Used)),
            (0, GdsState::Off { why }) => Verdict::Refused(Refusal::NotForThisFile {
                what: why.to_string().into(),
            }),
            (0, _) => Verdict::NotChosen(match report.why {
                Some(why) => why.to_string().into(),
                None => "nothing was read to the device".into(),
            }),
        });
    }
    verdict.map(|verdict| (Route::Gds, verdict))
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
