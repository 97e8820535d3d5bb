//! `run` puts a program that knows nothing of the stand-ins on both of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::Command;

fn run(variable: (&str, &str)) -> (bool, String) {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(Path::parent).unwrap();
    let output = Command::new("bash")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../run"))
        .arg(built.join("examples/names"))
        .env(variable.0, variable.1)
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    (output.status.success(), format!("{out}{err}"))
}

#[test]
fn both_names_are_one_library() {
    let wanted = "\"libcufile.so\" 0 1\n\"libcufile.so.0\" 0 2\n";
    assert_eq!(
        run(("SOFTWARE_CUFILE_OPEN", "works")),
        (true, wanted.into())
    );
    let refused = "\"libcufile.so\" 5001 0\n\"libcufile.so.0\" 5001 0\n";
    assert_eq!(
        run(("SOFTWARE_CUFILE_OPEN", "refused")),
        (true, refused.into())
    );
}

#[test]
fn modes_that_are_not_known_stop_the_program() {
    let (succeeded, text) = run(("SOFTWARE_CUFILE_MODE", "fast"));
    assert!(
        !succeeded && text.contains("SOFTWARE_CUFILE_MODE=fast is not known"),
        "{text}"
    );
}
