//! How the library behaves: from the environment, or set by tests.
//!
//! | variable | values | default |
//! |---|---|---|
//! | `SOFTWARE_CUFILE_OPEN` | `works`, `refused`, `hangs`: what opening the driver does | `works` |
//! | `SOFTWARE_CUFILE_MODE` | `peer-to-peer`; `compatibility`: only that works, and only where it is allowed | `peer-to-peer` |
//! | `SOFTWARE_CUFILE_PARAMETERS` | `on`, `off`: whether settings can be changed, which older versions lack | `on` |
//! | `SOFTWARE_CUFILE_BATCH` | most entries of a batch; 0: no batches | 128 |
//!
//! A value that is not known is said on standard error, and stops the program.

/// What opening the driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It succeeds.
    Works,
    /// It fails.
    Refused,
    /// It does not return until this is set to something else.
    Hangs,
}

/// How the library behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What opening the driver does.
    pub opening: Opening,
    /// Only the compatibility mode works.
    pub compatibility: bool,
    /// Settings can be changed.
    pub parameters: bool,
    /// Most entries of a batch.
    pub batch: u32,
}

const NAMES: [&str; 4] = ["OPEN", "MODE", "PARAMETERS", "BATCH"];

impl Options {
    /// What the environment says.
    pub fn from_environment() -> Self {
        let mut options = Self {
            opening: Opening::Works,
            compatibility: false,
            parameters: true,
            batch: 128,
        };
        for name in NAMES {
            let Ok(value) = std::env::var(format!("SOFTWARE_CUFILE_{name}")) else {
                continue;
            };
            if !options.set(name, &value) {
                eprintln!("software cuFile: SOFTWARE_CUFILE_{name}={value} is not known");
                std::process::abort();
            }
        }
        options
    }

    /// Sets what the variable of that name (without its beginning) sets; false if it cannot be.
    pub fn set(&mut self, name: &str, value: &str) -> bool {
        match (name, value) {
            ("OPEN", "works") => self.opening = Opening::Works,
            ("OPEN", "refused") => self.opening = Opening::Refused,
            ("OPEN", "hangs") => self.opening = Opening::Hangs,
            ("MODE", "peer-to-peer") => self.compatibility = false,
            ("MODE", "compatibility") => self.compatibility = true,
            ("PARAMETERS", "on") => self.parameters = true,
            ("PARAMETERS", "off") => self.parameters = false,
            ("BATCH", _) => match value.parse() {
                Ok(most) => self.batch = most,
                Err(_) => return false,
            },
            _ => return false,
        }
        true
    }
}
