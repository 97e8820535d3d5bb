//! What was really done for a source.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// The way bytes came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Route {
    /// Bytes that were in this process's memory.
    Memory,
    /// `pread` through the page cache.
    Pread,
    /// `pread` past the page cache (`O_DIRECT`).
    PreadDirect,
    /// A mapping of the file.
    Mmap,
    /// `io_uring` through the page cache.
    Uring,
    /// `io_uring` past the page cache (`O_DIRECT`).
    UringDirect,
    /// cuFile, from the drive into a device's memory.
    Gds,
    /// An engine from outside this crate.
    Other,
}

impl Route {
    /// All of them.
    pub const ALL: &'static [Route] = &[
        Route::Memory,
        Route::Pread,
        Route::PreadDirect,
        Route::Mmap,
        Route::Uring,
        Route::UringDirect,
        Route::Gds,
        Route::Other,
    ];

    /// The name of the engine that this is, as errors and reports spell it, and [`str::parse`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            Route::Memory => "memory",
            Route::Pread => "pread",
            Route::PreadDirect => "pread-direct",
            Route::Mmap => "mmap",
            Route::Uring => "uring",
            Route::UringDirect => "uring-direct",
            Route::Gds => "gds",
            Route::Other => "other",
        }
    }
}

impl std::str::FromStr for Route {
    type Err = Error;

    /// The route with this [name](Route::name).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], naming all there are.
    fn from_str(name: &str) -> Result<Self> {
        let found = Route::ALL
            .iter()
            .copied()
            .find(|route| route.name() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = Route::ALL.iter().map(|route| route.name()).collect();
            let names = names.join(", ");
            let what = format!("{name:?} is no route; there are {names}").into();
            Error::new(ErrorKind::InvalidOption { what })
        })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const ROUTES: usize = Route::ALL.len();

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident, $add:ident;)*) => {
        /// Running totals of a source, shared by all readers of it. Reading and adding never waits.
        #[derive(Debug, Default)]
        pub struct Counters {
            routes: [AtomicU64; ROUTES],
            in_flight: AtomicU64,
            most_in_flight: AtomicU64,
            $($name: AtomicU64,)*
        }

        /// The totals at one moment. Counters move on independently, so sums may be off by work in flight.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct CounterSnapshot {
            routes: [u64; ROUTES],
            /// Most requests that were with the system at once: the depth that was really reached. Views of a mapping and
            /// what `submit` copied without waiting are none. 0: the engine does not count them.
            pub most_in_flight: u64,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            $(
                $(#[$doc])*
                pub fn $add(&self, n: u64) {
                    self.$name.fetch_add(n, Ordering::Relaxed);
                }
            )*

            /// All totals now.
            pub fn snapshot(&self) -> CounterSnapshot {
                CounterSnapshot {
                    routes: std::array::from_fn(|i| self.routes[i].load(Ordering::Relaxed)),
                    most_in_flight: self.most_in_flight.load(Ordering::Relaxed),
                    $($name: self.$name.load(Ordering::Relaxed),)*
                }
            }
        }
    };
}

counters! {
    /// Reads asked for, empty and failed ones included.
    reads, add_reads;
    /// Bytes asked for in valid ranges.
    requested, add_requested;
    /// Requests made to the system (calls that moved bytes, or tried to), or views made of a mapping.
    requests, add_requests;
    /// Bytes that the system delivered.
    read, add_read;
    /// Bytes read only because they lay between or around ranges that were asked for.
    wasted, add_wasted;
    /// Bytes copied once more for alignment, out of a block that a small slice would have pinned, or through
    /// staging memory to a device.
    bounced, add_bounced;
    /// Requests repeated after a short read or `EINTR`. Not those that found nothing in the page cache and were
    /// handed to a thread.
    retried, add_retried;
    /// Bytes known to have come from the page cache, as `submit` copied them without waiting. (`read_now` waits, and
    /// does not know.)
    from_cache, add_from_cache;
}

impl Counters {
    /// One more request is with the system, until [`end_request`](Self::end_request): for engines, in pairs.
    pub fn begin_request(&self) {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        if now > self.most_in_flight.load(Ordering::Relaxed) {
            self.most_in_flight.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// A request of [`begin_request`](Self::begin_request) is no longer with the system.
    pub fn end_request(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Bytes delivered by `route`.
    pub fn add_route(&self, route: Route, bytes: u64) {
        let at = Route::ALL.iter().position(|r| *r == route).unwrap_or(0);
        self.routes[at].fetch_add(bytes, Ordering::Relaxed);
    }
}

impl CounterSnapshot {
    /// Bytes delivered by `route`.
    pub fn route(&self, route: Route) -> u64 {
        let at = Route::ALL.iter().position(|r| *r == route).unwrap_or(0);
        self.routes[at]
    }

    /// The route with the most bytes, if any byte was delivered.
    pub fn main_route(&self) -> Option<Route> {
        Route::ALL
            .iter()
            .copied()
            .filter(|route| self.route(*route) > 0)
            .max_by_key(|route| self.route(*route))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_found_by_its_name() {
        for route in Route::ALL {
            assert_eq!(route.name().parse::<Route>().unwrap(), *route);
        }
        let error = "fast".parse::<Route>().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
    }

    #[test]
    fn the_depth_that_was_reached_stays() {
        let counters = Counters::default();
        counters.begin_request();
        counters.begin_request();
        counters.end_request();
        counters.begin_request();
        counters.end_request();
        counters.end_request();
        assert_eq!(counters.snapshot().most_in_flight, 2);
    }

    #[test]
    fn routes_are_counted_apart() {
        let counters = Counters::default();
        assert_eq!(counters.snapshot().main_route(), None);
        counters.add_route(Route::Pread, 5);
        counters.add_route(Route::Mmap, 7);
        counters.add_route(Route::Pread, 3);
        let now = counters.snapshot();
        assert_eq!((now.route(Route::Pread), now.route(Route::Mmap)), (8, 7));
        assert_eq!(now.main_route(), Some(Route::Pread));
    }
}
