//! Which column a name belongs to: asked for each feature of each example, so mostly answered by one comparison.

use std::sync::Arc;

/// The names of columns.
///
/// Examples of one writer nearly always have their features in the same order, so the column that followed last time is
/// compared first. Behind that is a table with open addressing. Its names are those of the schema, so no bytes of a file can
/// make its chains longer.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    names: Vec<Arc<str>>,
    /// A power of two, at most half full; `EMPTY` or the number of a name.
    table: Vec<u32>,
    /// After each column, and at the end after none: the column that followed it last.
    next: Vec<u32>,
    last: usize,
}

const EMPTY: u32 = u32::MAX;

impl Keys {
    /// The names are all different.
    pub(super) fn new(names: Vec<Arc<str>>) -> Self {
        let slots = (2 * names.len()).next_power_of_two().max(4);
        let mut table = vec![EMPTY; slots];
        for (number, name) in (0..).zip(&names) {
            for slot in chain(slots, name.as_bytes()) {
                if let Some(free @ &mut EMPTY) = table.get_mut(slot) {
                    *free = number;
                    break;
                }
            }
        }
        // At first, as the schema has them.
        let mut next: Vec<u32> = (1..=names.len() as u32).collect();
        next.push(0);
        Keys {
            last: names.len(),
            names,
            table,
            next,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// A new example begins.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.last = self.names.len();
    }

    /// The number of the name, if it is one of them.
    #[inline]
    pub(super) fn find(&mut self, name: &[u8]) -> Option<usize> {
        let guess = self.next.get(self.last).map_or(0, |next| *next as usize);
        if self
            .names
            .get(guess)
            .is_some_and(|is| is.as_bytes() == name)
        {
            self.last = guess;
            return Some(guess);
        }
        self.look_up(name)
    }

    fn look_up(&mut self, name: &[u8]) -> Option<usize> {
        for slot in chain(self.table.len(), name) {
            let number = *self.table.get(slot)?;
            // There is an empty slot always.
            let is = self.names.get(number as usize)?;
            if is.as_bytes() == name {
                if let Some(next) = self.next.get_mut(self.last) {
                    *next = number;
                }
                self.last = number as usize;
                return Some(self.last);
            }
        }
        None
    }
}

/// The slots where a name can be, in order.
fn chain(slots: usize, name: &[u8]) -> impl Iterator<Item = usize> {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word.iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(word)
    };
    let tail = name.get(name.len().saturating_sub(8)..).unwrap_or_default();
    let mixed = (word(name) ^ word(tail).rotate_left(29) ^ name.len() as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = (mixed >> 32) as usize;
    (0..slots).map(move |step| (first + step) & (slots - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_order_and_others_are_not() {
        let names: Vec<Arc<str>> = (0..100)
            .map(|at| format!("feature/of/some/length/{at}").into())
            .chain(["".into(), "x".into()])
            .collect();
        let mut keys = Keys::new(names.clone());
        for step in [1, 7, 31, 101] {
            keys.begin();
            for at in (0..names.len()).map(|at| at * step % names.len()) {
                assert_eq!(keys.find(names[at].as_bytes()), Some(at));
                assert_eq!(keys.find(b"feature/of/some/length/100"), None);
                assert_eq!(keys.find(b"y"), None);
            }
        }
        assert_eq!(Keys::new(Vec::new()).find(b""), None);
    }

    #[test]
    fn the_order_of_the_last_example_is_expected() {
        let mut keys = Keys::new(vec!["a".into(), "b".into(), "c".into()]);
        for _ in 0..2 {
            keys.begin();
            for (name, at) in [(b"c", 2), (b"a", 0), (b"b", 1)] {
                assert_eq!(keys.find(name), Some(at));
            }
        }
        assert_eq!(keys.next, [1, 2, 0, 2]);
    }
}
