//! Bytes of the host to the device, when the caller waits for them anyway.
#![allow(unsafe_code)]

use super::device::Device;
use super::launch::Work;
use super::stream::Stream;
use crate::buffer::DeviceBytes;
use crate::error::Result;

impl Device {
    /// Copies of these bytes, each in memory of its own. By way of the pinned ring, in `stream`; waits for them.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory), [`Cuda`](crate::ErrorKind::Cuda), [`DeviceLost`](crate::ErrorKind::DeviceLost),
    /// [`Forked`](crate::ErrorKind::Forked).
    pub(crate) fn upload_all(&self, stream: &Stream, parts: &[&[u8]]) -> Result<Vec<DeviceBytes>> {
        let mut work = Work::in_stream(self, stream);
        let outputs = parts.iter().map(|part| work.output(part.len()));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        for (part, output) in parts.iter().zip(&outputs) {
            // SAFETY: the output has as many bytes, is new, and goes back in the order of the work.
            unsafe { work.stage(&[part], output.address())? };
        }
        work.wait()?;
        drop(work);
        // SAFETY: the copies filled them, and are done.
        let written = outputs
            .into_iter()
            .map(|output| unsafe { output.written() });
        written.collect()
    }

    /// One copy of these bytes, one part behind the other. By way of the pinned ring, in `stream`; waits for it.
    ///
    /// # Errors
    /// As [`upload_all`](Self::upload_all).
    #[cfg_attr(not(feature = "tfrecord"), allow(dead_code))]
    pub(crate) fn upload_joined(&self, stream: &Stream, parts: &[&[u8]]) -> Result<DeviceBytes> {
        let mut work = Work::in_stream(self, stream);
        let output = work.output(parts.iter().map(|part| part.len()).sum())?;
        // SAFETY: the output has as many bytes, is new, and goes back in the order of the work.
        unsafe { work.stage(parts, output.address())? };
        work.wait()?;
        drop(work);
        // SAFETY: the copies filled it, and are done.
        unsafe { output.written() }
    }
}
