//! Pages of strings, for tests of kernels.

use feedwater::cuda::columns::Encoding::{Dictionary, Plain};
use feedwater::cuda::columns::{Column, Convert, Encoding, Page, Values};

use super::pages::*;

/// What values are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Words {
    Ascii,
    Unicode,
    Bytes,
    /// Up to this many bytes, for decimals.
    Short(u64),
}

/// What a column is written like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// The encodings of pages, in turn.
    pub(crate) encodings: &'static [Encoding],
    pub(crate) nullable: bool,
    /// Rows of 256 that are not null.
    pub(crate) valid: u64,
    pub(crate) v1: bool,
    pub(crate) style: Style,
    pub(crate) words: Words,
    pub(crate) large: bool,
    /// Characters at most, most of the time.
    pub(crate) len: u64,
    pub(crate) convert: Convert,
    /// Width of indices.
    pub(crate) bits: u32,
}

pub(crate) const KIND: Kind = Kind {
    encodings: &[Plain],
    nullable: false,
    valid: 256,
    v1: true,
    style: Style::Groups,
    words: Words::Ascii,
    large: false,
    len: 12,
    convert: Convert::Same,
    bits: 5,
};

pub(crate) fn word(kind: &Kind, random: &mut Random) -> Vec<u8> {
    let len = match random.below(12) {
        0 => 0,
        1 => kind.len * 4,
        _ => random.below(kind.len + 1),
    };
    match kind.words {
        Words::Ascii => (0..len).map(|_| random.below(128) as u8).collect(),
        Words::Bytes => (0..len).map(|_| random.next() as u8).collect(),
        Words::Short(most) => (0..random.below(most + 1))
            .map(|_| random.next() as u8)
            .collect(),
        Words::Unicode => {
            let ends = [0x80, 0x800, 0xd800, 0x1_0000, 0x11_0000];
            let char = |_| {
                let end = ends[random.below(5) as usize];
                char::from_u32(random.below(end) as u32)
            };
            (0..len).filter_map(char).collect::<String>().into_bytes()
        }
    }
}

pub(crate) fn plain<'a>(words: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let mut body = Vec::new();
    for word in words {
        body.extend_from_slice(&(word.len() as u32).to_le_bytes());
        body.extend_from_slice(word);
    }
    body
}

/// Adds a column with pages of these many rows.
pub(crate) fn column(arena: &mut Arena, kind: Kind, pages: &[usize], random: &mut Random) {
    let has_dictionary = kind.encodings.contains(&Dictionary);
    let entries = if has_dictionary { 1 << kind.bits } else { 0 };
    let words: Vec<_> = (0..entries).map(|_| word(&kind, random)).collect();
    let dictionary = has_dictionary.then(|| (arena.push(&plain(&words)), entries));
    let mut described = Vec::new();
    for (number, &rows) in pages.iter().enumerate() {
        let encoding = kind.encodings[number % kind.encodings.len()];
        let valid: Vec<u32> = (0..rows)
            .map(|_| u32::from(!kind.nullable || random.below(256) < kind.valid))
            .collect();
        let count = valid.iter().filter(|valid| **valid == 1).count();
        let mut body = Vec::new();
        let mut def_len = 0;
        if kind.nullable {
            let levels = hybrid(&valid, 1, kind.style, random);
            if kind.v1 {
                body.extend_from_slice(&(levels.len() as u32).to_le_bytes());
            }
            def_len = levels.len() as u32;
            body.extend_from_slice(&levels);
        }
        match encoding {
            Dictionary => {
                let indices: Vec<u32> = (0..count).map(|_| random.below(entries) as u32).collect();
                body.push(kind.bits as u8);
                body.extend(hybrid(&indices, kind.bits, kind.style, random));
            }
            _ => {
                let words: Vec<_> = (0..count).map(|_| word(&kind, random)).collect();
                body.extend(plain(&words));
            }
        }
        described.push(Page {
            body: arena.push(&body),
            v1: kind.v1,
            def_len,
            entries: rows as u64,
            nulls: (!kind.v1).then_some((rows - count) as u64),
            encoding,
        });
    }
    arena.columns.push(Column {
        values: Values::Bytes {
            large: kind.large,
            utf8: matches!(kind.words, Words::Ascii | Words::Unicode),
        },
        nullable: kind.nullable,
        dictionary,
        pages: described,
        convert: kind.convert,
    });
}
