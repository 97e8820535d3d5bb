//! Names of shards: `train-00003-of-00010`, with anything behind, and the short form `train@10`.

use std::collections::BTreeMap;

/// Most shards that a name may speak of.
pub(crate) const MOST: u32 = 1_000_000;

/// A name taken apart: `{prefix}-{index}-of-{count}{suffix}`, both numbers with five digits at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardName<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) suffix: &'a str,
    /// Digits of the numbers.
    digits: usize,
}

impl<'a> ShardName<'a> {
    /// Takes a path apart, at the last `-of-` of its file name that stands between numbers. A folder is no shard.
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        let mut end = name.len();
        while let Some(at) = name.get(..end)?.rfind("-of-") {
            end = at;
            if let Some(found) = Self::at(name, at) {
                return Some(found);
            }
        }
        None
    }

    fn at(name: &'a str, of: usize) -> Option<Self> {
        let (before, behind) = (name.get(..of)?, name.get(of + "-of-".len()..)?);
        let (prefix, index) = before.rsplit_once('-')?;
        let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
        let (count, suffix) = behind.split_at_checked(digits)?;
        if suffix.contains('/') {
            return None;
        }
        let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(index) || !is_number(count) || index.len() != count.len() {
            return None;
        }
        let (index, count) = (index.parse().ok()?, count.parse().ok()?);
        (index < count && count <= MOST).then_some(ShardName {
            prefix,
            index,
            count,
            suffix,
            digits,
        })
    }

    /// The name of another shard of the same set.
    pub(crate) fn sibling(&self, index: u32) -> String {
        let ShardName {
            prefix,
            count,
            suffix,
            digits,
            ..
        } = self;
        format!("{prefix}-{index:0digits$}-of-{count:0digits$}{suffix}")
    }
}

/// The names that `{prefix}@{count}{suffix}` stands for, if it is of that form. What follows the number is empty or
/// begins with a dot.
pub(crate) fn expand_at(spec: &str) -> Option<Result<ShardName<'_>, u64>> {
    let (prefix, behind) = spec.rsplit_once('@')?;
    let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = behind.split_at_checked(digits)?;
    let named = !prefix.is_empty() && !prefix.ends_with('/');
    let of_file = suffix.is_empty() || suffix.starts_with('.') && !suffix.contains('/');
    if digits == 0 || !named || !of_file {
        return None;
    }
    let count = number.parse().unwrap_or(u64::MAX);
    match u32::try_from(count) {
        Ok(small) if small > 0 && small <= MOST => Some(Ok(ShardName {
            prefix,
            index: 0,
            count: small,
            suffix,
            digits: 5,
        })),
        _ => Some(Err(count)),
    }
}

/// The names of shards that `names` are siblings of, that are not among them, and that are wanted: the first `most`.
pub(crate) fn missing(names: &[&str], most: usize, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut sets: BTreeMap<(&str, &str, u32), Vec<ShardName<'_>>> = BTreeMap::new();
    for name in names {
        if let Some(shard) = ShardName::parse(name) {
            let key = (shard.prefix, shard.suffix, shard.count);
            sets.entry(key).or_default().push(shard);
        }
    }
    let mut missing = Vec::new();
    for shards in sets.values_mut() {
        shards.sort_unstable_by_key(|shard| shard.index);
        let mut there = shards.iter().map(|shard| shard.index).peekable();
        let Some(first) = shards.first() else {
            continue;
        };
        for index in 0..first.count {
            if missing.len() >= most {
                return missing;
            }
            while there.next_if(|next| *next < index).is_some() {}
            if there.peek() != Some(&index) {
                let name = first.sibling(index);
                if wanted(&name) {
                    missing.push(name);
                }
            }
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_and_put_together() {
        let name = "dir-of-x/train-00003-of-00010.tfrecord.gz";
        let shard = ShardName::parse(name).unwrap();
        assert_eq!(
            (shard.prefix, shard.suffix),
            ("dir-of-x/train", ".tfrecord.gz")
        );
        assert_eq!((shard.index, shard.count), (3, 10));
        assert_eq!(shard.sibling(3), name);
        assert_eq!(
            shard.sibling(9),
            "dir-of-x/train-00009-of-00010.tfrecord.gz"
        );
        let long = ShardName::parse("x-000001-of-100000").unwrap();
        assert_eq!(long.sibling(99_999), "x-099999-of-100000");
        let twice = ShardName::parse("x-00001-of-00002-of-y").unwrap();
        assert_eq!((twice.index, twice.suffix), (1, "-of-y"));
    }

    #[test]
    fn other_names_are_no_shards() {
        for name in [
            "",
            "-of-",
            "train",
            "train-3-of-10",
            "train-00010-of-00010",
            "train-00000-of-00000",
            "00000-of-00010",
            "train-0000x-of-00010",
            "train-000001-of-00010",
            "train-0000000-of-9999999",
            "train-99999999999-of-99999999999",
            "train-00000-of-00010/part",
            "train-00000-of-00010.d/part-of-x",
        ] {
            assert_eq!(ShardName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn the_short_form_expands_within_a_bound() {
        let shard = expand_at("a/train@3.gz").unwrap().unwrap();
        let names: Vec<_> = (0..shard.count).map(|i| shard.sibling(i)).collect();
        assert_eq!(names[2], "a/train-00002-of-00003.gz");
        assert_eq!(names.len(), 3);
        assert_eq!(expand_at("train@1000000").unwrap().unwrap().count, MOST);
        assert_eq!(expand_at("train@1000001").unwrap(), Err(1_000_001));
        assert_eq!(expand_at("train@0").unwrap(), Err(0));
        let huge = format!("train@{}", "9".repeat(40));
        assert_eq!(expand_at(&huge).unwrap(), Err(u64::MAX));
        for other in [
            "train",
            "@10",
            "a/@10",
            "train@",
            "train@x",
            "train@10x",
            "train@10.d/part",
        ] {
            assert_eq!(expand_at(other), None, "{other}");
        }
    }

    #[test]
    fn missing_ones_are_named_if_they_are_wanted() {
        let two = ["a-00001-of-00004", "a-00003-of-00004", "a-00003-of-00004"];
        let names = missing(&two, 10, |_| true);
        assert_eq!(names, ["a-00000-of-00004", "a-00002-of-00004"]);
        assert_eq!(
            missing(&two, 10, |name| !name.contains("00000")),
            ["a-00002-of-00004"]
        );
        let whole = [
            "a-00000-of-00002",
            "a-00001-of-00002",
            "other",
            "b-00000-of-00001",
        ];
        assert!(missing(&whole, 10, |_| true).is_empty());
        let most = missing(&["a-00000-of-99999"], 3, |_| true);
        assert_eq!(
            most,
            ["a-00001-of-99999", "a-00002-of-99999", "a-00003-of-99999"]
        );
    }
}
