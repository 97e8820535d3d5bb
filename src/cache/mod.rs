//! Metadata that is known already: attributes, directory listings, and what was parsed from files.
//!
//! Training sets of millions of small files spend their time in `stat` and `open`, query engines in listings and
//! footers. [`MetadataCache`] keeps what was asked for within a hard bound on bytes, fetches a directory's children in one pass once
//! it is clear that they will be asked for ([`PrefetchOptions`]), and [warms up](MetadataCache::warm_up) in the background. It
//! [counts](CacheMetrics) what it does and [explains](MetadataCache::explain) why an entry is there or not.
//!
//! [`trace`] makes sequences of accesses as training and query jobs make them, to measure with; the example `metadata_replay` does.

mod attributes;
mod backend;
mod clock;
mod costs;
mod directory;
mod explain;
mod history;
mod inner;
mod key;
mod metadata;
mod metrics;
mod node;
mod options;
mod pass;
mod root;
mod score;
mod store;
pub mod trace;
mod warmup;
mod worker;

pub use attributes::{Attributes, EntryKind, Listing};
pub use backend::{Detail, ListEntry, LocalFiles, MetadataBackend};
pub use clock::{Clock, ManualClock, MonotonicClock};
pub use explain::{Explanation, Presence};
pub use history::Departure;
pub use metadata::{MetadataCache, Validation};
pub use metrics::CacheMetrics;
pub use node::Origin;
pub use options::{CacheOptions, LEAST_CAPACITY, PrefetchOptions, PrefetchRun};
pub use root::RootState;
pub use score::{ScoreInput, UNKNOWN_SIZE, WarmupScore};
pub use warmup::{Warmup, WarmupBudget, WarmupReport};
