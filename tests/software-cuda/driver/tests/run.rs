//! `run` puts a program that knows nothing of the device on it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Output};

fn run(program: &str, variables: &[(&str, &str)]) -> Output {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("../run");
    Command::new("bash")
        .arg(run)
        .arg(program)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// The example that cargo built with the tests.
fn example() -> String {
    let test = std::env::current_exe().unwrap();
    test.parent()
        .and_then(Path::parent)
        .unwrap()
        .join("examples/sum")
        .to_str()
        .unwrap()
        .to_owned()
}

#[test]
fn a_program_on_the_device() {
    for streams in ["eager", "lazy"] {
        let output = run(
            &example(),
            &[
                ("SOFTWARE_CUDA_STREAMS", streams),
                ("SOFTWARE_CUDA_PROFILE", "sm_90"),
                ("SOFTWARE_CUDA_CHECKS", "all"),
            ],
        );
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            text, "software CUDA device (sm_90)\nsum 799980000\n",
            "{output:?}"
        );
        assert!(output.status.success());
    }
}

#[test]
fn modes_that_are_not_known_stop_the_program() {
    let output = run(&example(), &[("SOFTWARE_CUDA_STREAMS", "sometimes")]);
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("SOFTWARE_CUDA_STREAMS=sometimes is not known"),
        "{output:?}"
    );
}
