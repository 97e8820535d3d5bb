//! The index of a model in several files: which shard has which tensor.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde_json::{Map, Value};

use super::malformed;
use super::unique::check_keys;
use crate::error::Result;

/// Longest index in bytes. One of 92,000 tensors has 9 MB.
pub(crate) const INDEX_MOST: u64 = 100_000_000;

/// `model.safetensors.index.json`.
#[derive(Debug)]
pub(crate) struct ShardIndex {
    /// Names of tensors by the file name of their shard, both sorted.
    pub(crate) shards: BTreeMap<String, Vec<String>>,
    /// What else it says, as it stands there.
    pub(crate) metadata: Map<String, Value>,
}

impl ShardIndex {
    /// Parses an index.
    ///
    /// # Errors
    /// `Malformed` if it is not an object with a `weight_map` of strings, has a key twice, or names a file outside its folder.
    pub(crate) fn parse(json: &[u8]) -> Result<ShardIndex> {
        let wrong = |error| malformed(None, format!("its index: {error}"));
        check_keys(json).map_err(wrong)?;
        let mut index: Map<String, Value> = serde_json::from_slice(json).map_err(wrong)?;
        let Some(Value::Object(weights)) = index.remove("weight_map") else {
            return Err(malformed(None, "its index has no object `weight_map`"));
        };
        let metadata = match index.remove("metadata") {
            Some(Value::Object(metadata)) => metadata,
            _ => Map::new(),
        };
        let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, shard) in weights {
            let Value::String(shard) = shard else {
                return Err(malformed(Some(&name), "its index names no file for it"));
            };
            if !is_within(&shard) {
                let what = format!("its index names {shard:?}, which is no file of its folder");
                return Err(malformed(Some(&name), what));
            }
            shards.entry(shard).or_default().push(name);
        }
        for names in shards.values_mut() {
            names.sort_unstable();
        }
        Ok(ShardIndex { shards, metadata })
    }
}

/// Whether a path leads nowhere but into its folder and those below it.
fn is_within(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some()
        && parts.all(|part| matches!(part, Component::Normal(_)))
        && !path.contains('\0')
        && !path.ends_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn tensors_stand_by_their_shards() {
        let json = br#"{"metadata":{"total_size":12},"weight_map":{"b":"2.st","a":"2.st","c":"sub/1.st"}}"#;
        let index = ShardIndex::parse(json).unwrap();
        let shards: Vec<_> = index.shards.into_iter().collect();
        assert_eq!(
            shards,
            [
                ("2.st".into(), vec!["a".into(), "b".into()]),
                ("sub/1.st".into(), vec!["c".into()]),
            ]
        );
        assert_eq!(index.metadata["total_size"], 12);
    }

    #[test]
    fn paths_do_not_leave_the_folder() {
        for path in [
            "../x",
            "/x",
            "",
            ".",
            "./x",
            "a/../../x",
            "a/..",
            "..",
            "a/",
            "a\\u0000b",
        ] {
            let json = format!(r#"{{"weight_map":{{"t":"{path}"}}}}"#);
            let error = ShardIndex::parse(json.as_bytes()).unwrap_err();
            let ErrorKind::Malformed { part, what, .. } = error.kind() else {
                panic!("{path}: {error}");
            };
            assert_eq!(part.as_deref(), Some("t"), "{path}");
            assert!(what.contains("no file of its folder"), "{what}");
        }
    }

    #[test]
    fn what_is_no_index_is_refused() {
        for json in [
            "",
            "[]",
            "{}",
            r#"{"weight_map":[]}"#,
            r#"{"weight_map":{"t":1}}"#,
            "{\"weight_map\":{}} x",
            r#"{"weight_map":{"t":"1.st","t":"2.st"}}"#,
            r#"{"weight_map":{},"weight_map":{}}"#,
        ] {
            let error = ShardIndex::parse(json.as_bytes()).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Malformed { .. }),
                "{json}: {error}"
            );
        }
    }
}
