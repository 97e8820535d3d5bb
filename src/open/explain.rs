//! What `report` says of a file: the facts, and what became of each route.

use std::borrow::Cow;

use super::choice::{Why, describe};
use super::report::Verdict;
use super::routes::FileRoutes;
use crate::backend::uring;
use crate::error::Refusal;
use crate::reader::{CachePolicy, Route};
use crate::sys::FileSystem;

impl FileRoutes {
    /// Facts that the choice rests on, as far as they were asked for.
    pub(super) fn facts(&self, resident: Option<u64>) -> Vec<(&'static str, String)> {
        let mut facts = vec![("on", self.file.file_system().name().to_owned())];
        let device = self.device();
        if let Some(name) = device.name() {
            facts.push(("device", name.to_owned()));
        }
        if let Some(queue) = device.queue() {
            facts.push(("device queue", queue.to_string()));
        }
        if let Some(rates) = device.rates() {
            facts.push(("streams", describe(rates)));
        }
        if let Ok(direct) = self.direct_file() {
            facts.push(("direct alignment", direct.strictest().to_string()));
        }
        if let Ok(found) = uring::facts() {
            facts.push(("rings", found.setup.to_owned()));
        }
        if device.most_requests() > 0 {
            facts.push((
                "most in flight by rings",
                device.most_requests().to_string(),
            ));
        }
        let reasons = self.reasons_in_words();
        if !reasons.is_empty() {
            facts.push(("ranges through the page cache", reasons));
        }
        if let Some(resident) = resident {
            facts.push(("bytes in page cache", resident.to_string()));
        }
        facts
    }

    /// What became of each route, in the order in which they are thought of.
    pub(super) fn verdicts(&self) -> Vec<(Route, Verdict)> {
        let memory = Verdict::Refused(Refusal::NotForThisFile {
            what: "the bytes are in a file".into(),
        });
        let mut verdicts = vec![(Route::Memory, memory)];
        for route in [
            Route::Mmap,
            Route::UringDirect,
            Route::PreadDirect,
            Route::Uring,
            Route::Pread,
        ] {
            verdicts.push((route, self.verdict(route)));
        }
        verdicts
    }

    fn used(&self, route: Route) -> bool {
        self.source.counters().snapshot().route(route) > 0
    }

    fn verdict(&self, route: Route) -> Verdict {
        if self.used(route) || self.rules.only == Some(route) {
            return Verdict::Used;
        }
        if let Some(refusal) = self.refusal(route) {
            return Verdict::Refused(refusal);
        }
        if let Some(only) = self.rules.only {
            return Verdict::NotChosen(format!("{only} was asked for, and no other").into());
        }
        match route {
            Route::Mmap => Verdict::NotChosen("all destinations were given".into()),
            Route::UringDirect => Verdict::NotChosen(self.why_not_direct()),
            Route::PreadDirect => Verdict::NotChosen(match self.refusal(Route::UringDirect) {
                None => "past the page cache, uring-direct is better".into(),
                Some(_) => self.why_not_direct(),
            }),
            Route::Uring => Verdict::NotChosen(
                "no scattered ranges were to be brought into the page cache".into(),
            ),
            _ => self.buffered_verdict(),
        }
    }

    fn buffered_verdict(&self) -> Verdict {
        if self.rules.policy == CachePolicy::Bypass {
            return Verdict::NotChosen("the page cache was to be bypassed".into());
        }
        let others = [
            Route::UringDirect,
            Route::PreadDirect,
            Route::Uring,
            Route::Mmap,
        ];
        if others.into_iter().any(|route| self.used(route)) {
            return Verdict::NotChosen("no range was better read through the page cache".into());
        }
        Verdict::Used
    }

    fn why_not_direct(&self) -> Cow<'static, str> {
        match self.file.file_system() {
            FileSystem::Local(_) => {}
            FileSystem::Memory(_) => return "the file is in memory".into(),
            FileSystem::Network(_) | FileSystem::Pseudo => {
                return "the file is not on a device of this machine".into();
            }
        }
        match self.rules.policy {
            CachePolicy::DropBehind | CachePolicy::Keep => {
                return "the cache policy has all reads go through the page cache".into();
            }
            CachePolicy::Auto | CachePolicy::Bypass => {}
        }
        match self.reasons_in_words() {
            reasons if reasons.is_empty() => "nothing was read".into(),
            reasons => format!("ranges read through the page cache: {reasons}").into(),
        }
    }

    /// Why ranges were read through the page cache, and how many.
    fn reasons_in_words(&self) -> String {
        let words = |(why, count): (Why, u64)| format!("{count} {}", why.text());
        let reasons: Vec<_> = self.reasons().map(words).collect();
        reasons.join(", ")
    }
}
