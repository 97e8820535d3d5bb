//! The text that Git LFS leaves in place of a file that was not fetched: the most common reason why a file is not what its
//! name says.

/// What the text begins with; see the specification of Git LFS, "The Pointer".
const START: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Bytes that are enough to tell: no file of a format here begins so.
const ENOUGH: usize = 12;

/// What an error says of it.
pub(crate) const POINTER: &str =
    "it is the pointer that Git LFS leaves in place of a file, which `git lfs pull` brings";

/// Whether the first bytes of a file are those of a pointer.
pub(crate) fn is_pointer(start: &[u8]) -> bool {
    let n = start.len().min(START.len());
    n >= ENOUGH && start.get(..n) == START.get(..n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_recognised_by_its_start() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
        assert!(is_pointer(pointer));
        assert!(is_pointer(&pointer[..ENOUGH]));
        assert!(!is_pointer(&pointer[..ENOUGH - 1]));
        assert!(!is_pointer(b"version http://example.com"));
        assert!(!is_pointer(b""));
    }
}
