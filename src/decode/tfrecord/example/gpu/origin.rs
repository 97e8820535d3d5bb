//! The records of a scan, gone through anew.

use std::sync::Arc;

use crate::decode::tfrecord::RecordOptions;
use crate::decode::tfrecord::example::pull::Source;
use crate::decode::tfrecord::example::scan::{ExampleScan, Origin};
use crate::reader::Reader;

impl Origin {
    /// A scan of the same records.
    pub(super) fn scan(&self) -> ExampleScan {
        match self {
            Origin::Reader(reader, options) => ExampleScan::new(reader.clone(), options),
            Origin::Set(set, options) => ExampleScan::of_shards(set, options),
        }
    }

    /// The records themselves, with other options.
    pub(super) fn source(&self, options: &RecordOptions) -> Box<dyn Source> {
        match self {
            Origin::Reader(reader, _) => Box::new(options.frames(reader.clone())),
            Origin::Set(set, _) => Box::new(set.frames(options)),
        }
    }

    /// The one reader, if they are of one.
    pub(super) fn reader(&self) -> Option<&Arc<dyn Reader>> {
        match self {
            Origin::Reader(reader, _) => Some(reader),
            Origin::Set(..) => None,
        }
    }

    /// How they are read.
    pub(super) fn options(&self) -> &RecordOptions {
        match self {
            Origin::Reader(_, options) | Origin::Set(_, options) => options,
        }
    }
}
