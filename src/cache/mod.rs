//! Metadata that is known already: attributes, directory listings, and what was parsed from files.
//!
//! Training sets of millions of small files spend their time in `stat` and `open`, query engines in listings and
//! footers. [`MetadataCache`] keeps what was asked for within a hard bound on bytes, fetches a directory's children in one pass once
//! it is clear that they will be asked for ([`PrefetchOptions`]), and [warms up](MetadataCache::warm_up) in the background. It
//! [counts](CacheMetrics) what it does and [explains](MetadataCache::explain) why an entry is there or not.
//!
//! | what you want to be known already | ask |
//! |---|---|
//! | size, times, owner of a path, or of many | [`MetadataCache::stat`], [`MetadataCache::stat_many`] |
//! | the names in a directory | [`MetadataCache::list`] |
//! | a footer or an index, as long as the file is the same | [`MetadataCache::parsed`], [`MetadataCache::parsed_async`] |
//! | where the pages of column chunks are, of a Parquet file that a GPU decodes again and again | `parquet::DeviceScan::page_lists` |
//! | that a file which is opened is what is kept of it | [`MetadataCache::open`], [`MetadataCache::validate`] |
//! | your own writes | [`MetadataCache::invalidate`] |
//!
//! Metadata comes from the local file system, or from any [`MetadataBackend`], such as a store of objects.
//! [`trace`] makes sequences of accesses as training and query jobs make them, to measure with; the example `metadata_replay` does.

mod attributes;
mod backend;
mod candidates;
mod clock;
mod costs;
mod directory;
mod explain;
mod history;
mod inner;
mod key;
mod local;
mod many;
mod metadata;
mod metrics;
mod node;
mod options;
mod parsed;
mod pass;
mod root;
mod score;
mod store;
pub mod trace;
mod validate;
mod warmup;
mod worker;

pub use attributes::{Attributes, Listing};
pub use backend::{Detail, ListEntry, MetadataBackend};
pub use clock::{Clock, ManualClock, MonotonicClock};
pub use explain::{Explanation, Presence};
pub use history::Departure;
pub use local::LocalFiles;
pub use metadata::MetadataCache;
pub use metrics::CacheMetrics;
pub use node::Origin;
pub use options::{CacheOptions, LEAST_CAPACITY, PrefetchOptions, PrefetchRun};
#[cfg_attr(not(all(feature = "cuda", feature = "parquet")), allow(unused_imports))]
pub(crate) use parsed::part_of;
pub use root::RootState;
pub use score::{ScoreInput, UNKNOWN_SIZE, WarmupScore};
pub use validate::Validation;
pub use warmup::{Warmup, WarmupBudget, WarmupReport};
