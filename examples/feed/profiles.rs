//! What is known of how fast devices stream, kept in a file between runs.

use std::io::{ErrorKind, Write};
use std::path::Path;

use feedwater::{Engine, EngineOptions, SinkOptions};

use crate::Failure;

/// The engine that reads everything, which knows what the file says.
pub(crate) fn engine(path: Option<&Path>) -> Result<Engine, Failure> {
    let Some(path) = path else {
        return Ok(Engine::default());
    };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(format!("{}: {error}", path.display()).into()),
    };
    let mut options = EngineOptions::default();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let profile = line.parse();
        let profile = profile.map_err(|error| format!("{}: {error}", path.display()))?;
        options = options.profile(profile);
    }
    Ok(Engine::new(options))
}

/// Writes what the engine knows of the devices that were read.
pub(crate) fn save(path: Option<&Path>, engine: &Engine) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let lines: String = engine
        .profiles()
        .iter()
        .map(|profile| format!("{profile}\n"))
        .collect();
    // Whole or not at all, whatever happens meanwhile.
    let mut sink = SinkOptions::new().create(path)?;
    sink.write_all(lines.as_bytes())
        .map_err(|error| format!("{}: {error}", path.display()))?;
    sink.commit()?;
    Ok(())
}
