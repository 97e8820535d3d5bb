//! The layers: imports run downwards only, and the lowest ones stay light.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

/// Each layer, and the layers it may name. `sys` and `version` stand below all.
const LAYERS: &[(&str, &[&str])] = &[
    ("sys", &[]),
    ("version", &[]),
    ("error", &["version"]),
    ("buffer", &["error", "sys"]),
    ("reader", &["buffer", "error", "version", "sys"]),
    ("cuda", &["reader", "buffer", "error", "version", "sys"]),
    (
        "backend",
        &["cuda", "reader", "buffer", "error", "version", "sys"],
    ),
    (
        "open",
        &[
            "backend", "cuda", "reader", "buffer", "error", "version", "sys",
        ],
    ),
    (
        "files",
        &["open", "reader", "buffer", "error", "version", "sys"],
    ),
    (
        "cache",
        &[
            "files", "open", "reader", "buffer", "error", "version", "sys",
        ],
    ),
    ("write", &["reader", "buffer", "error", "version", "sys"]),
    ("format", &["error"]),
    (
        "decode",
        &[
            "format", "cache", "write", "open", "cuda", "reader", "buffer", "error", "version",
            "sys",
        ],
    ),
];

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

/// The code of a file without its tests, comments and documentation.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("\n#[cfg(test)]").next().unwrap();
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// What follows each `crate::` in `code`.
fn named(code: &str) -> impl Iterator<Item = String> + '_ {
    code.split("crate::").skip(1).map(|rest| {
        rest.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    })
}

#[test]
fn imports_run_downwards() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    assert!(files.len() > 30, "{}", files.len());
    for path in files {
        let below = path.strip_prefix(&src).unwrap();
        let first = below.components().next().unwrap();
        let layer = first.as_os_str().to_str().unwrap().trim_end_matches(".rs");
        if layer == "lib" || below.ends_with("tests.rs") {
            continue;
        }
        let (_, allowed) = LAYERS
            .iter()
            .find(|(name, _)| *name == layer)
            .unwrap_or_else(|| panic!("{layer} is no layer: {}", below.display()));
        for name in named(&code(&path)) {
            assert!(
                name == layer || allowed.contains(&name.as_str()),
                "{} names crate::{name}, which is not below {layer}",
                below.display()
            );
        }
    }
}

#[test]
fn engines_do_not_know_each_other() {
    let backend = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend");
    let mut files = Vec::new();
    rust_files(&backend, &mut files);
    let engines = ["memory", "pread", "mmap", "uring", "gds"];
    for path in files {
        let below = path.strip_prefix(&backend).unwrap();
        let Some(engine) = engines.iter().find(|engine| {
            let first = below.components().next().unwrap().as_os_str();
            first.to_str().unwrap().trim_end_matches(".rs") == **engine
        }) else {
            continue;
        };
        let code = code(&path);
        for other in engines.iter().filter(|other| *other != engine) {
            for way in ["backend::", "super::", "super::super::"] {
                assert!(
                    !code.contains(&format!("{way}{other}::")),
                    "{} names {other}",
                    below.display()
                );
            }
        }
    }
}
