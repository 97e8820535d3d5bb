//! Names of entries: a kind and a path, as bytes.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use quick_cache::Equivalent;

/// What an entry holds. Numbers from [`Kind::PARSED`] on are parsed values, one for each type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind(pub(crate) u32);

impl Kind {
    pub(crate) const ATTRIBUTES: Kind = Kind(0);
    pub(crate) const LISTING: Kind = Kind(1);
    /// The attributes of all children of a directory, from one pass.
    pub(crate) const CHILDREN: Kind = Kind(2);
    pub(crate) const PARSED: u32 = 3;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) path: Arc<[u8]>,
    pub(crate) kind: Kind,
}

impl Key {
    pub(crate) fn new(kind: Kind, path: &[u8]) -> Self {
        Key {
            path: path.into(),
            kind,
        }
    }
}

/// A key that owns nothing, to look up by.
#[derive(Debug)]
pub(crate) struct KeyRef<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) kind: Kind,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(state, &self.path, self.kind);
    }
}

impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(state, self.path, self.kind);
    }
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.kind == key.kind && *self.path == *key.path
    }
}

fn hash<H: Hasher>(state: &mut H, path: &[u8], kind: Kind) {
    state.write(path);
    state.write_u32(kind.0);
}

/// One spelling for paths that differ in doubled slashes, `.` and a slash at the end only. `..` stays, as it means something
/// else behind a symbolic link. Copies nothing if the path is spelled so already.
pub(crate) fn spelled(path: &[u8]) -> Cow<'_, [u8]> {
    let begins_odd = path.starts_with(b"./");
    let ends_odd = path.len() > 1 && path.ends_with(b"/") || path.ends_with(b"/.");
    // To the end, whatever is found: so the compiler takes many at once.
    let two = path.iter().zip(path.iter().skip(1));
    let doubled = two.fold(0, |odd, (a, b)| {
        odd | u8::from(*a == b'/') & u8::from(*b == b'/')
    });
    let three = path
        .iter()
        .zip(path.iter().skip(1))
        .zip(path.iter().skip(2));
    let dots = three.fold(0, |odd, ((a, b), c)| {
        odd | u8::from(*a == b'/') & u8::from(*b == b'.') & u8::from(*c == b'/')
    });
    if !begins_odd && !ends_odd && (doubled | dots) == 0 && !path.is_empty() {
        return Cow::Borrowed(path);
    }
    let mut out = Vec::with_capacity(path.len());
    if path.first() == Some(&b'/') {
        out.push(b'/');
    }
    for part in path.split(|byte| *byte == b'/') {
        if part.is_empty() || part == b"." {
            continue;
        }
        if !out.is_empty() && out.last() != Some(&b'/') {
            out.push(b'/');
        }
        out.extend_from_slice(part);
    }
    if out.is_empty() {
        out.push(b'.');
    }
    Cow::Owned(out)
}

/// The directory and the name in it; that of a single relative name is `.`. `None` for the root, for `.`, and for what
/// ends in `..`.
pub(crate) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let (dir, name): (&[u8], _) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (b"/", path.get(1..)?),
        Some(slash) => (path.get(..slash)?, path.get(slash + 1..)?),
        None => (b".", path),
    };
    let is_name = !name.is_empty() && name != b"." && name != b"..";
    is_name.then_some((dir, name))
}

/// What the paths of all names in a directory begin with.
pub(crate) fn stem(dir: &[u8]) -> Vec<u8> {
    match dir {
        b"." => Vec::new(),
        b"/" => dir.to_vec(),
        _ => [dir, b"/"].concat(),
    }
}

/// How many names `path` has below `root`; `None` if it is not below it. All relative paths that do not begin with `..` are
/// below `.`.
pub(crate) fn depth_below(root: &[u8], path: &[u8]) -> Option<u32> {
    if path == root {
        return Some(0);
    }
    let rest = match root {
        b"." if path.starts_with(b"/") || path == b".." || path.starts_with(b"../") => return None,
        b"." => path,
        b"/" => path.strip_prefix(b"/")?,
        _ => path.strip_prefix(root)?.strip_prefix(b"/")?,
    };
    let slashes = rest.iter().filter(|byte| **byte == b'/').count();
    u32::try_from(slashes).ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spell(path: &str) -> String {
        String::from_utf8(spelled(path.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn spellings_of_one_path_are_one() {
        for (path, one) in [
            ("/a/b", "/a/b"),
            ("/a//b", "/a/b"),
            ("/a/./b/", "/a/b"),
            ("//", "/"),
            ("/", "/"),
            ("./a", "a"),
            (".", "."),
            ("a/.", "a"),
            ("/a/.hidden", "/a/.hidden"),
            ("/a/../b", "/a/../b"),
            (".hidden", ".hidden"),
            ("/a/.hidden/", "/a/.hidden"),
            ("", "."),
            ("/.", "/"),
        ] {
            assert_eq!(spell(path), one, "{path}");
        }
        for path in [
            "/a/b.c",
            "/a/.hidden/b",
            ".hidden",
            "/a/..",
            "../a",
            "/",
            ".",
        ] {
            assert!(
                matches!(spelled(path.as_bytes()), Cow::Borrowed(_)),
                "{path}"
            );
        }
    }

    #[test]
    fn depths_and_parents() {
        assert_eq!(depth_below(b"/data", b"/data/a/b/c/f"), Some(4));
        assert_eq!(depth_below(b"/data", b"/data"), Some(0));
        assert_eq!(depth_below(b"/data", b"/database/x"), None);
        assert_eq!(depth_below(b"/", b"/a/b"), Some(2));
        assert_eq!(split(b"/a/b"), Some((&b"/a"[..], &b"b"[..])));
        assert_eq!(split(b"/a"), Some((&b"/"[..], &b"a"[..])));
        assert_eq!(split(b"/"), None);
        for path in ["", "/a/..", "..", ".", "a/../.."] {
            assert_eq!(split(path.as_bytes()), None, "{path}");
        }
        assert_eq!(depth_below(b".", b"a/b"), Some(2));
        assert_eq!(depth_below(b".", b".hidden"), Some(1));
        assert_eq!(depth_below(b".", b"..a"), Some(1));
        assert_eq!(depth_below(b".", b"."), Some(0));
        assert_eq!(depth_below(b"/", b"/"), Some(0));
        for path in ["/a", "..", "../a"] {
            assert_eq!(depth_below(b".", path.as_bytes()), None, "{path}");
        }
        assert_eq!(split(b"a"), Some((&b"."[..], &b"a"[..])));
        for path in ["/a/b", "/a", "a", "a/b", "../a"] {
            let (dir, name) = split(path.as_bytes()).unwrap();
            assert_eq!([&stem(dir)[..], name].concat(), path.as_bytes());
        }
    }

    #[test]
    fn a_borrowed_key_hashes_as_the_owned() {
        use std::hash::BuildHasher;
        let state = std::collections::hash_map::RandomState::new();
        let owned = Key::new(Kind::LISTING, b"/x/y");
        let borrowed = KeyRef {
            path: b"/x/y",
            kind: Kind::LISTING,
        };
        assert!(borrowed.equivalent(&owned));
        assert_eq!(state.hash_one(&owned), state.hash_one(&borrowed));
    }
}
