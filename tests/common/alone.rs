//! Tests in processes of their own: what they change, or count, is the process's.

use std::process::Command;

/// Runs an ignored test of this file in a process of its own. What it skips, it says aloud as well.
pub(crate) fn alone(test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    eprint!("{err}");
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{test}: {}\n{out}{err}",
        output.status
    );
}
