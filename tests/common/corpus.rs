//! The corpus: small public files of others, beside the checkout.

use std::fs;
use std::path::{Path, PathBuf};

use super::skip::require;

/// A folder of the corpus, or `None` after saying aloud that it is skipped. It is looked for in `FEEDWATER_CORPUS`, and else
/// in `../shared/corpus`.
pub(crate) fn folder(name: &str) -> Option<PathBuf> {
    let corpus = match std::env::var_os("FEEDWATER_CORPUS") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus"),
    };
    let folder = corpus.join(name);
    let found = match folder.is_dir() {
        true => Ok(folder),
        false => Err(format!("no folder {}", folder.display())),
    };
    require("corpus", found)
}

/// All files below `folder`, by their paths from there, sorted.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let below = path.strip_prefix(folder).unwrap();
                found.push(below.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Fails unless exactly the files of `folder` are claimed, each once.
pub(crate) fn assert_claimed<'a>(folder: &Path, claims: impl IntoIterator<Item = &'a str>) {
    let mut claims: Vec<_> = claims.into_iter().map(str::to_owned).collect();
    claims.sort();
    let files = files(folder);
    let unclaimed: Vec<_> = files.iter().filter(|name| !claims.contains(name)).collect();
    assert!(unclaimed.is_empty(), "no test claims {unclaimed:?}");
    let gone: Vec<_> = claims.iter().filter(|name| !files.contains(name)).collect();
    assert!(gone.is_empty(), "claimed, but not there: {gone:?}");
    assert_eq!(claims, files, "claimed twice");
}
