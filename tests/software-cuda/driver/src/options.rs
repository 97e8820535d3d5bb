//! How the device behaves: from the environment, or set by tests.
//!
//! | variable | values | default |
//! |---|---|---|
//! | `SOFTWARE_CUDA_STREAMS` | `eager`, `lazy` | `eager` |
//! | `SOFTWARE_CUDA_SCHEDULE` | `in-order`, `reversed`, `shuffled:7`, `apart` | `in-order` |
//! | `SOFTWARE_CUDA_CHECKS` | names with commas between: `races`, `unwritten`; or `all` | none |
//! | `SOFTWARE_CUDA_PROFILE` | `sm_70`, `sm_75`, `sm_80`, `sm_90` | `sm_75` |
//! | `SOFTWARE_CUDA_MEMORY` | bytes of device memory | 8 GiB |
//! | `SOFTWARE_CUDA_DEVICES` | how many devices | 1 |
//! | `SOFTWARE_CUDA_TRAFFIC` | `on`, `off`: whether the bytes that kernels move are counted | `off` |
//! | `SOFTWARE_CUDA_POOLS` | `on`, `off`: whether there are memory pools | `on` |
//!
//! `CUDA_VISIBLE_DEVICES` with nothing or `-1` in it hides all devices, as the real driver does. A value that is not known is said on
//! standard error, and stops the program: a test that runs in another mode than it says is worse than none.

use software_cuda_ptx::{Checks, Schedule};

use crate::profile::Profile;

/// How the device behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Work waits until somebody waits for it.
    pub lazy: bool,
    /// Order of threads in kernels.
    pub schedule: Schedule,
    /// Checks of kernels.
    pub checks: Checks,
    /// Limits.
    pub profile: Profile,
    /// Bytes of device memory.
    pub memory: usize,
    /// How many devices there are.
    pub devices: i32,
    /// Whether there are memory pools.
    pub pools: bool,
    /// Whether the bytes that kernels move are counted.
    pub traffic: bool,
}

impl Options {
    /// What the environment says.
    pub fn from_environment() -> Self {
        let mut options = Self {
            lazy: false,
            schedule: Schedule::InOrder,
            checks: Checks::default(),
            profile: Profile::named("sm_75").unwrap_or_else(|| unreachable!()),
            memory: 8 << 30,
            devices: 1,
            pools: true,
            traffic: false,
        };
        for name in [
            "STREAMS", "SCHEDULE", "CHECKS", "PROFILE", "MEMORY", "DEVICES", "POOLS", "TRAFFIC",
        ] {
            let Ok(value) = std::env::var(format!("SOFTWARE_CUDA_{name}")) else {
                continue;
            };
            if !options.set(name, &value) {
                eprintln!("software CUDA device: SOFTWARE_CUDA_{name}={value} is not known");
                std::process::abort();
            }
        }
        if std::env::var("CUDA_VISIBLE_DEVICES")
            .is_ok_and(|value| matches!(value.trim(), "" | "-1"))
        {
            options.devices = 0;
        }
        options
    }

    /// Sets what the variable of that name (without its beginning) sets; false if it cannot be.
    pub fn set(&mut self, name: &str, value: &str) -> bool {
        fn put<T>(place: &mut T, value: Option<T>) -> bool {
            let known = value.is_some();
            if let Some(value) = value {
                *place = value;
            }
            known
        }
        match name {
            "STREAMS" => put(
                &mut self.lazy,
                [("eager", false), ("lazy", true)]
                    .into_iter()
                    .find_map(|(name, lazy)| (name == value).then_some(lazy)),
            ),
            "POOLS" => put(&mut self.pools, switch(value)),
            "TRAFFIC" => put(&mut self.traffic, switch(value)),
            "SCHEDULE" => put(&mut self.schedule, schedule(value)),
            "CHECKS" => put(&mut self.checks, checks(value)),
            "PROFILE" => put(&mut self.profile, Profile::named(value)),
            "MEMORY" => put(&mut self.memory, value.parse().ok()),
            "DEVICES" => put(
                &mut self.devices,
                value.parse().ok().filter(|count| (0..=16).contains(count)),
            ),
            _ => false,
        }
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn schedule(value: &str) -> Option<Schedule> {
    Some(match value {
        "in-order" => Schedule::InOrder,
        "reversed" => Schedule::Reversed,
        "apart" => Schedule::Apart,
        _ => Schedule::Shuffled(value.strip_prefix("shuffled:")?.parse().ok()?),
    })
}

fn checks(value: &str) -> Option<Checks> {
    let mut checks = Checks::default();
    for name in value.split(',').filter(|name| !name.is_empty()) {
        match name {
            "races" => checks.races = true,
            "unwritten" => checks.unwritten = true,
            "all" => checks = Checks::ALL,
            _ => return None,
        }
    }
    Some(checks)
}
