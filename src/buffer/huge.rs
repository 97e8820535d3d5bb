//! Blocks of medium size as parts of huge pages.
//!
//! A device is given a request for each contiguous piece of memory: 64 KiB are sixteen of small pages, and one of a huge
//! page. Reading 1,000 ranges of 64 KiB by a ring took 98 µs each into the former and 56 µs into the latter.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::memory::HostMemory;

/// Length of a huge page.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Sizes of parts. A single survivor of smaller ones would keep too much memory; larger ones would waste too much of a page.
const PARTS: RangeInclusive<usize> = 16 << 10..=512 << 10;

/// As many bytes of a size have to be in use before there is a page for it: few blocks would not fill it.
const IN_USE: usize = 1 << 20;

/// The pages of a pool, by the size of their parts.
#[derive(Debug, Default)]
pub(super) struct HugePages(Vec<Class>);

#[derive(Debug)]
struct Class {
    size: usize,
    /// Blocks of the size that somebody has, parts or not.
    in_use: usize,
    pages: Vec<Option<HugePage>>,
    /// Pages with free parts; the last one is used first.
    ready: Vec<usize>,
}

#[derive(Debug)]
struct HugePage {
    memory: Arc<HostMemory>,
    /// Indexes of its free parts; the last one is used first.
    free: Vec<usize>,
}

/// A part of a page, which belongs to whoever has this value.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) memory: Arc<HostMemory>,
    size: usize,
    page: usize,
    index: usize,
}

impl Part {
    /// Where it begins in the memory of the page.
    pub(super) fn offset(&self) -> usize {
        self.index * self.size
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }
}

impl HugePages {
    /// Whether blocks of this size may be parts.
    pub(super) fn serve(size: usize) -> bool {
        PARTS.contains(&size)
    }

    fn class(&mut self, size: usize) -> &mut Class {
        let at = match self.0.iter().position(|class| class.size == size) {
            Some(at) => at,
            None => {
                self.0.push(Class {
                    size,
                    in_use: 0,
                    pages: Vec::new(),
                    ready: Vec::new(),
                });
                self.0.len() - 1
            }
        };
        &mut self.0[at]
    }

    /// One more block of the size is in use. `Some`: it is this part.
    pub(super) fn take(&mut self, size: usize) -> Option<Part> {
        let class = self.class(size);
        class.in_use += 1;
        class.part()
    }

    /// Whether there are enough blocks of the size in use for a page.
    pub(super) fn want_more(&mut self, size: usize) -> bool {
        let class = self.class(size);
        class.in_use * size >= IN_USE
    }

    /// Takes a page, and a part of it.
    pub(super) fn add(&mut self, size: usize, memory: HostMemory) -> Option<Part> {
        let page = HugePage {
            memory: Arc::new(memory),
            free: (0..HUGE_PAGE / size).rev().collect(),
        };
        let class = self.class(size);
        let at = match class.pages.iter().position(Option::is_none) {
            Some(at) => at,
            None => {
                class.pages.push(None);
                class.pages.len() - 1
            }
        };
        class.pages[at] = Some(page);
        class.ready.push(at);
        class.part()
    }

    /// Takes back a part.
    pub(super) fn give_back(&mut self, part: Part) {
        let class = self.class(part.size);
        class.in_use = class.in_use.saturating_sub(1);
        if let Some(Some(page)) = class.pages.get_mut(part.page) {
            if page.free.is_empty() {
                class.ready.push(part.page);
            }
            page.free.push(part.index);
        }
    }

    /// A block of the size that was no part is no longer in use.
    pub(super) fn returned(&mut self, size: usize) {
        let class = self.class(size);
        class.in_use = class.in_use.saturating_sub(1);
    }

    /// Moves pages to `unused` that nobody has a part of, until their free bytes come to `enough`. The bytes.
    pub(super) fn release(&mut self, enough: usize, unused: &mut Vec<Arc<HostMemory>>) -> usize {
        let mut released = 0;
        for class in &mut self.0 {
            let parts = HUGE_PAGE / class.size;
            for (at, slot) in class.pages.iter_mut().enumerate() {
                if released >= enough {
                    return released;
                }
                if slot.as_ref().is_some_and(|page| page.free.len() == parts) {
                    unused.extend(slot.take().map(|page| page.memory));
                    class.ready.retain(|ready| *ready != at);
                    released += parts * class.size;
                }
            }
        }
        released
    }
}

impl Class {
    fn part(&mut self) -> Option<Part> {
        let at = *self.ready.last()?;
        let page = self.pages.get_mut(at)?.as_mut()?;
        let index = page.free.pop()?;
        if page.free.is_empty() {
            self.ready.pop();
        }
        Some(Part {
            memory: page.memory.clone(),
            size: self.size,
            page: at,
            index,
        })
    }
}
