//! Leaf columns by name.

use std::collections::BTreeSet;

use parquet::schema::types::SchemaDescriptor;

use crate::error::{Error, ErrorKind, Result};

/// The leaves that `names` select, ascending: a dotted path selects all leaves below it.
///
/// # Errors
/// [`ErrorKind::NotFound`] for a name that selects none.
pub(crate) fn leaves_of<S: AsRef<str>>(
    schema: &SchemaDescriptor,
    names: &[S],
) -> Result<Vec<usize>> {
    let mut leaves = BTreeSet::new();
    for name in names {
        let name = name.as_ref();
        let mut found = false;
        for (leaf, descriptor) in schema.columns().iter().enumerate() {
            if is_below(descriptor.path().parts(), name) {
                found = true;
                leaves.insert(leaf);
            }
        }
        if !found {
            return Err(unknown(schema, name));
        }
    }
    Ok(leaves.into_iter().collect())
}

/// The top-level column of each of `leaves`, ascending, each once.
pub(crate) fn roots_of(schema: &SchemaDescriptor, leaves: &[usize]) -> Vec<usize> {
    let roots: BTreeSet<_> = leaves
        .iter()
        .map(|leaf| schema.get_column_root_idx(*leaf))
        .collect();
    roots.into_iter().collect()
}

/// Whether `name`, which may have dots in its parts, is `parts` or leads to them.
fn is_below(parts: &[String], name: &str) -> bool {
    let mut rest = name;
    for part in parts {
        rest = match rest.strip_prefix(part.as_str()) {
            Some("") => return true,
            Some(rest) => match rest.strip_prefix('.') {
                Some(rest) => rest,
                None => return false,
            },
            None => return false,
        };
    }
    false
}

fn unknown(schema: &SchemaDescriptor, name: &str) -> Error {
    const SHOWN: usize = 20;
    let roots = schema.root_schema().get_fields();
    // Quoted, since names may have blanks and commas.
    let shown = roots.iter().take(SHOWN);
    let mut there: Vec<_> = shown.map(|root| format!("{:?}", root.name())).collect();
    if roots.len() > SHOWN {
        there.push("…".into());
    }
    Error::new(ErrorKind::NotFound {
        what: format!(
            "column {name:?}; the columns of the file: {}",
            there.join(", ")
        )
        .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_parts() {
        let parts: Vec<String> = ["a", "b.c", "d"].map(String::from).to_vec();
        for name in ["a", "a.b.c", "a.b.c.d"] {
            assert!(is_below(&parts, name), "{name}");
        }
        for name in ["", "a.", "a.b", "b.c", "a.b.c.d.e", "a.b.c.dd", "aa"] {
            assert!(!is_below(&parts, name), "{name}");
        }
    }
}
