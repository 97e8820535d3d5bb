//! What passes below a root may cost, and whether they are worth it.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::clock::nanos;
use super::key::depth_below;
use super::options::PrefetchOptions;

/// What a useful child gives back at least: half of the children may be wasted even where each costs as much as a call.
const LEAST_BACK: f64 = 2.0;

/// A directory below which directories are fetched ahead, and its account.
pub(crate) struct Root {
    pub(crate) path: Box<[u8]>,
    /// The most that a useful child gives back, in children.
    back: f64,
    /// The account never holds more, so that old merits do not pay for long waste.
    most: f64,
    probe: f64,
    cool_down: u64,
    max_cool_down: u64,
    account: Mutex<Account>,
}

#[derive(Clone, Copy, Debug)]
struct Account {
    /// Children that may be fetched; below 1 the root is off.
    left: f64,
    fetched: u64,
    useful: u64,
    /// Since when it is off, and how long it cools down this time.
    off: Option<(u64, u64)>,
    next_cool_down: u64,
}

/// Whether passes run below a root, and the account that says so.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct RootState {
    /// The root.
    pub path: std::path::PathBuf,
    /// Whether passes run.
    pub on: bool,
    /// Children that may be fetched before one more has to prove useful.
    pub allowance: u64,
    /// Children that passes brought.
    pub fetched: u64,
    /// Children of those that were asked for.
    pub useful: u64,
}

impl Root {
    pub(crate) fn new(path: &[u8], options: &PrefetchOptions) -> Self {
        let allowance = options.allowance as f64;
        let probe = (options.probe.max(1)) as f64;
        Root {
            path: path.into(),
            back: 1.0 / (1.0 - options.waste),
            most: (allowance * 4.0).max(probe),
            probe,
            cool_down: nanos(options.cool_down),
            max_cool_down: nanos(options.max_cool_down),
            account: Mutex::new(Account {
                left: allowance,
                fetched: 0,
                useful: 0,
                off: None,
                next_cool_down: nanos(options.cool_down),
            }),
        }
    }

    /// How many names `path` has below this root.
    pub(crate) fn depth(&self, path: &[u8]) -> Option<u32> {
        depth_below(&self.path, path)
    }

    /// Whether a pass may begin now. The second is true if this question switched the root off.
    pub(crate) fn may_begin(&self, now: u64) -> (bool, bool) {
        let mut account = self.account();
        if account.left >= 1.0 {
            account.off = None;
            return (true, false);
        }
        match account.off {
            None => {
                let cool_down = account.next_cool_down;
                account.off = Some((now, cool_down));
                account.next_cool_down = cool_down.saturating_mul(2).min(self.max_cool_down);
                (false, true)
            }
            Some((since, cool_down)) if now.saturating_sub(since) >= cool_down => {
                account.off = None;
                account.left = self.probe;
                (true, false)
            }
            Some(_) => (false, false),
        }
    }

    /// A pass took `children` from the account; it may be overdrawn by one pass, as half a directory is of little use.
    pub(crate) fn spend(&self, children: u64) {
        let mut account = self.account();
        account.left -= children as f64;
        account.fetched = account.fetched.saturating_add(children);
    }

    /// A pass failed: as dear as a probe, so that a directory that cannot be listed is not tried for ever.
    pub(crate) fn failed(&self) {
        self.account().left -= self.probe;
    }

    /// A child was asked for. It saved a call, so it gives back as many children as cost that much, but two at least, and
    /// no more than the share of waste allows.
    pub(crate) fn useful(&self, children_per_call: Option<f64>) {
        let back =
            children_per_call.map_or(self.back, |ratio| ratio.max(LEAST_BACK).min(self.back));
        let mut account = self.account();
        account.useful = account.useful.saturating_add(1);
        account.left = (account.left + back).min(self.most);
        if account.left >= 1.0 {
            account.off = None;
            account.next_cool_down = self.cool_down;
        }
    }

    pub(crate) fn state(&self) -> RootState {
        use std::os::unix::ffi::OsStrExt;
        let account = *self.account();
        RootState {
            path: std::ffi::OsStr::from_bytes(&self.path).into(),
            on: account.left >= 1.0,
            allowance: account.left.max(0.0) as u64,
            fetched: account.fetched,
            useful: account.useful,
        }
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Root")
            .field(&String::from_utf8_lossy(&self.path))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MINUTE: u64 = 60_000_000_000;

    fn root() -> Root {
        let options = PrefetchOptions::new().allowance(100).probe(10).waste(0.5);
        Root::new(b"/r", &options.cool_down(Duration::from_secs(60)))
    }

    #[test]
    fn waste_switches_off_and_use_switches_on_again() {
        let root = root();
        assert_eq!(root.may_begin(0), (true, false));
        root.spend(100);
        assert_eq!(root.may_begin(1), (false, true));
        assert_eq!(root.may_begin(2), (false, false));
        assert!(!root.state().on);
        root.useful(None);
        assert_eq!(root.may_begin(3), (true, false));
    }

    #[test]
    fn half_useful_is_enough_for_ever_and_less_is_not() {
        for (useful, lasts) in [(50, true), (40, false)] {
            let root = root();
            let passes = (0..1000).take_while(|_| {
                let (on, _) = root.may_begin(0);
                if on {
                    root.spend(100);
                    (0..useful).for_each(|_| root.useful(None));
                }
                on
            });
            assert_eq!(passes.count() == 1000, lasts, "{useful}");
        }
    }

    #[test]
    fn what_a_useful_child_gives_back_follows_what_was_measured() {
        let options = PrefetchOptions::new().allowance(1000).waste(0.9);
        for (measured, back) in [(None, 10), (Some(0.1), 2), (Some(5.0), 5), (Some(83.0), 10)] {
            let root = Root::new(b"/r", &options);
            root.spend(900);
            root.useful(measured);
            assert_eq!(root.state().allowance, 100 + back, "{measured:?}");
        }
    }

    #[test]
    fn probes_come_at_doubled_distances_while_they_are_wasted() {
        let root = root();
        root.spend(100);
        let mut at = Vec::new();
        for minute in 0..40 {
            if root.may_begin(minute * MINUTE).0 {
                root.spend(10);
                at.push(minute);
            }
        }
        // Off when first asked after each probe, so a minute later than the doubled distance.
        assert_eq!(at, [1, 4, 9, 18, 35]);
    }
}
