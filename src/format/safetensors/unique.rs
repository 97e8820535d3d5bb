//! JSON in which no key comes twice.
//!
//! Parsers disagree on which of two values counts, so a file with both has one content for one reader and another for the
//! next.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// That `json` is JSON, and that no object in it has a key twice.
pub(super) fn check_keys(json: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<Unique>(json).map(drop)
}

/// Any value, of which nothing is kept.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Values)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Unique, A::Error> {
        while values.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Unique, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format_args!(
                    "the key {key:?} comes twice"
                )));
            }
            keys.insert(key);
            entries.next_value::<Unique>()?;
        }
        Ok(Unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_come_once_in_each_object() {
        for json in [
            "{}",
            r#"{"a":{"a":1,"b":-1.5e3},"b":[{"a":null},{"a":true}],"c":"a"}"#,
            r#"[18446744073709551615,-3,"\u00e9",[]]"#,
        ] {
            check_keys(json.as_bytes()).unwrap();
        }
        for json in [
            r#"{"a":1,"a":1}"#,
            r#"{"b":{"a":1,"b":2,"a":3}}"#,
            r#"[[{"a":1,"a":{}}]]"#,
            // The same key, written otherwise.
            r#"{"a":1,"\u0061":2}"#,
        ] {
            let error = check_keys(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("the key \"a\" comes twice"), "{error}");
        }
        for json in ["", "{", r#"{"a":1}}"#, r#"{"a"}"#, "{1:2}"] {
            check_keys(json.as_bytes()).unwrap_err();
        }
    }
}
