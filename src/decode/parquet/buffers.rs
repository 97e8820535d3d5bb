//! Memory for pages, used again and again by the threads of a scan.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Buffers that are kept. Each has the size of a page, often 1 MiB.
const KEPT: usize = 16;

/// Larger ones are given back to the system.
const LARGEST: usize = 16 << 20;

/// Memory for pages. What was a page a moment ago is still in the processor's cache, and needs no zeroing.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// `len` bytes that `fill` writes; what it leaves unwritten is what some page had there.
    pub(super) fn filled<E>(
        self: &Arc<Self>,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Bytes, E> {
        let mut lease = Lease {
            buffer: self.take(len),
            len,
            buffers: self.clone(),
        };
        if let Some(bytes) = lease.buffer.get_mut(..len) {
            fill(bytes)?;
        }
        Ok(Bytes::from_owner(lease))
    }

    /// A buffer of at least `len` bytes.
    fn take(&self, len: usize) -> Vec<u8> {
        let kept = {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // The one that was used last, of those that are large enough.
            match kept.iter().rposition(|buffer| buffer.len() >= len) {
                Some(at) => Some(kept.remove(at)),
                None => kept.pop(),
            }
        };
        match kept {
            Some(buffer) if buffer.len() >= len => buffer,
            // Nothing of a smaller one is worth copying.
            _ => vec![0; len],
        }
    }

    fn give_back(&self, buffer: Vec<u8>) {
        if buffer.len() > LARGEST {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(buffer);
        }
    }
}

/// A buffer that comes back when nobody has it any more.
struct Lease {
    buffer: Vec<u8>,
    len: usize,
    buffers: Arc<Buffers>,
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.buffers.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_the_last_has_dropped_it() {
        let buffers = Arc::new(Buffers::default());
        let fill = |len: usize, value: u8| {
            let filled: Result<_, ()> = buffers.filled(len, |bytes| {
                bytes.fill(value);
                Ok(())
            });
            filled.unwrap()
        };
        let first = fill(100, 1);
        let part = first.slice(50..);
        let at = first.as_ptr();
        drop(first);
        let second = fill(10, 2);
        assert_ne!(second.as_ptr(), at);
        assert_eq!(part, [1; 50][..]);
        drop(part);
        let third = fill(80, 3);
        assert_eq!((third.as_ptr(), third.len()), (at, 80));
        assert_eq!(second, [2; 10][..]);
        assert!(buffers.filled(5, |_| Err(())).is_err());
        assert!(fill(0, 0).is_empty());
    }
}
