//! The policies: what each does with a question.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedwater::Result;
use feedwater::cache::trace::{Trace, Tree};
use feedwater::cache::{
    Attributes, CacheOptions, Detail, ManualClock, MetadataBackend, MetadataCache, PrefetchOptions,
    PrefetchRun, WarmupBudget, WarmupScore,
};

use crate::backend::Simulated;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    None,
    Lru,
    Moka,
    QuickCache,
    NoPrefetch,
    Classic,
    CostAware,
}

impl Policy {
    pub(crate) const ALL: [Policy; 7] = [
        Policy::None,
        Policy::Lru,
        Policy::Moka,
        Policy::QuickCache,
        Policy::NoPrefetch,
        Policy::Classic,
        Policy::CostAware,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Policy::None => "none",
            Policy::Lru => "lru",
            Policy::Moka => "moka",
            Policy::QuickCache => "quick_cache",
            Policy::NoPrefetch => "no_prefetch",
            Policy::Classic => "classic",
            Policy::CostAware => "cost_aware",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Policy::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// An answer of a cache that knows nothing of metadata.
#[derive(Clone)]
pub(crate) enum Answer {
    Attributes(Box<Attributes>),
    Names(Arc<Vec<String>>),
}

/// Attributes and listings under one limit: a listing is its path with a slash at the end.
pub(crate) type Asked = String;

pub(crate) enum Cache {
    None,
    Lru(lru::LruCache<Asked, Answer>),
    Moka(moka::sync::Cache<Asked, Answer>),
    Quick(quick_cache::sync::Cache<Asked, Answer>),
    Ours {
        cache: MetadataCache,
        warm_up: Option<WarmupBudget>,
    },
}

impl Cache {
    pub(crate) fn new(
        policy: Policy,
        trace: &Trace,
        capacity: usize,
        backend: &Arc<Simulated>,
        clock: &Arc<ManualClock>,
    ) -> Result<Self> {
        let ours = |prefetch: PrefetchOptions| {
            CacheOptions::new()
                .capacity(bytes_of_one(trace)? * capacity as u64)
                .immutable(true)
                // One, as which of several an entry falls into is decided by a hash that is another in each run.
                .shards(1)
                .backend(backend.clone())
                .clock(clock.clone())
                .prefetch(prefetch)
                .build()
        };
        let ahead = PrefetchOptions::new()
            .root(Tree::ROOT)
            // More than there are, so that chance does not decide which are forgotten.
            .directories(1 << 16)
            .run(PrefetchRun::Inline);
        let warming = |score| {
            Some(
                WarmupBudget::new()
                    .score(score)
                    .entries(capacity / 4)
                    .bytes(u64::MAX)
                    .time(Duration::from_secs(30)),
            )
        };
        Ok(match policy {
            Policy::None => Cache::None,
            Policy::Lru => Cache::Lru(lru::LruCache::new(
                NonZeroUsize::new(capacity).unwrap_or(NonZeroUsize::MIN),
            )),
            Policy::Moka => Cache::Moka(moka::sync::Cache::new(capacity as u64)),
            Policy::QuickCache => Cache::Quick(one_shard(capacity)),
            Policy::NoPrefetch => Cache::Ours {
                cache: ours(PrefetchOptions::new())?,
                warm_up: None,
            },
            Policy::Classic => Cache::Ours {
                cache: ours(ahead)?,
                warm_up: warming(WarmupScore::Classic),
            },
            Policy::CostAware => Cache::Ours {
                cache: ours(ahead)?,
                warm_up: warming(WarmupScore::CostAware),
            },
        })
    }

    /// Asks for attributes. The second is whether it was a hit, for those who do not count themselves.
    pub(crate) fn stat(&mut self, path: &str, backend: &Simulated) -> Result<(u64, bool)> {
        if let Cache::Ours { cache, .. } = self {
            return Ok((cache.stat(path)?.size(), false));
        }
        let (answer, hit) = self.ask(path.to_owned(), || {
            Ok(Answer::Attributes(Box::new(backend.stat(Path::new(path))?)))
        })?;
        match answer {
            Answer::Attributes(attributes) => Ok((attributes.size(), hit)),
            Answer::Names(_) => Ok((0, hit)),
        }
    }

    /// Asks for a listing: how many names, and whether it was a hit.
    pub(crate) fn list(&mut self, path: &str, backend: &Simulated) -> Result<(u64, bool)> {
        if let Cache::Ours { cache, .. } = self {
            return Ok((cache.list(path)?.len() as u64, false));
        }
        let (answer, hit) = self.ask(format!("{path}/"), || {
            let mut names = Vec::new();
            backend.list(Path::new(path), Detail::Names, &mut |entry| {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                ControlFlow::Continue(())
            })?;
            Ok(Answer::Names(Arc::new(names)))
        })?;
        match answer {
            Answer::Names(names) => Ok((names.len() as u64, hit)),
            Answer::Attributes(_) => Ok((0, hit)),
        }
    }

    pub(crate) fn idle(&self) -> Result<()> {
        if let Cache::Ours {
            cache,
            warm_up: Some(budget),
        } = self
        {
            cache.warm_up(budget.clone())?.wait();
        }
        Ok(())
    }

    fn ask(
        &mut self,
        asked: Asked,
        load: impl FnOnce() -> Result<Answer>,
    ) -> Result<(Answer, bool)> {
        let known = match self {
            Cache::Lru(cache) => cache.get(&asked).cloned(),
            Cache::Moka(cache) => cache.get(&asked),
            Cache::Quick(cache) => cache.get(&asked),
            Cache::None | Cache::Ours { .. } => None,
        };
        if let Some(known) = known {
            return Ok((known, true));
        }
        let answer = load()?;
        match self {
            Cache::Lru(cache) => drop(cache.put(asked, answer.clone())),
            Cache::Moka(cache) => cache.insert(asked, answer.clone()),
            Cache::Quick(cache) => cache.insert(asked, answer.clone()),
            Cache::None | Cache::Ours { .. } => {}
        }
        Ok((answer, false))
    }
}

fn one_shard(capacity: usize) -> quick_cache::sync::Cache<Asked, Answer> {
    let options = quick_cache::OptionsBuilder::new()
        .estimated_items_capacity(capacity)
        .weight_capacity(capacity as u64)
        .shards(1)
        .build();
    match options {
        Ok(options) => quick_cache::sync::Cache::with_options(
            options,
            Default::default(),
            Default::default(),
            Default::default(),
        ),
        // Both numbers that it asks for are set.
        Err(_) => quick_cache::sync::Cache::new(capacity),
    }
}

/// Bytes that the attributes of one file take when they are asked for alone.
fn bytes_of_one(trace: &Trace) -> Result<u64> {
    let clock = Arc::new(ManualClock::new());
    let trace = Arc::new(trace.clone());
    let none = Duration::ZERO;
    let backend = Arc::new(Simulated::new(trace.clone(), clock.clone(), none, none));
    let cache = CacheOptions::new().backend(backend).clock(clock).build()?;
    let tree = trace.tree();
    let mut path = String::new();
    if let Some(file) = tree.dirs().find_map(|dir| tree.files_of(dir).next()) {
        tree.file_path(file, &mut path);
        cache.stat(&path)?;
    }
    Ok(cache.metrics().bytes)
}
