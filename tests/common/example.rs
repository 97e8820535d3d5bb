//! The examples, run as a user runs them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The example beside this test, built if `cargo test --test …` did not.
pub(crate) fn example(name: &str) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let built = built.get_or_insert_default();
    if let Some(program) = built.get(name) {
        return program.clone();
    }
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--example", name, "--target-dir"]);
    build.arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        build.arg("--release");
    }
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(build.status().unwrap().success());
    let program = profile.join("examples").join(name);
    built.insert(name.into(), program.clone());
    program
}
