//! Pages for tests of kernels, written in more ways than writers do.

use std::ops::Range;

use feedwater::cuda::columns::{Column, Convert, Encoding, Page, Values};

/// Numbers that are the same each time.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// Less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// How runs are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// One packed run of all, its last group cut off after the last value.
    Cut,
    /// Packed runs of 504 values, as the writer of the `parquet` crate makes them.
    Groups,
    /// Each run as long as values repeat.
    Repeats,
    /// Lengths and kinds by chance, headers with more bytes than they need among them.
    Mixed,
}

pub(crate) const STYLES: [Style; 4] = [Style::Cut, Style::Groups, Style::Repeats, Style::Mixed];

fn header(out: &mut Vec<u8>, mut header: u64, mut extra: u64) {
    loop {
        let more = header >= 0x80 || extra > 0;
        out.push(header as u8 & 0x7f | if more { 0x80 } else { 0 });
        if !more {
            return;
        }
        extra -= u64::from(header < 0x80);
        header >>= 7;
    }
}

fn packed(out: &mut Vec<u8>, values: &[u32], bits: u32, cut: bool) {
    let begin = out.len();
    let bytes = match cut {
        true => (values.len() * bits as usize).div_ceil(8),
        false => values.len().div_ceil(8) * bits as usize,
    };
    out.resize(begin + bytes, 0);
    for (at, value) in values.iter().enumerate() {
        for bit in 0..bits as usize {
            let place = at * bits as usize + bit;
            out[begin + place / 8] |= ((value >> bit & 1) << (place % 8)) as u8;
        }
    }
}

/// The hybrid of runs and packed groups.
pub(crate) fn hybrid(values: &[u32], bits: u32, style: Style, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = values;
    while !rest.is_empty() {
        let same = rest.iter().take_while(|value| **value == rest[0]).count();
        let (len, repeat) = match style {
            Style::Cut => (rest.len(), false),
            Style::Groups => (rest.len().min(504), false),
            Style::Repeats => (same, true),
            Style::Mixed => match random.below(3) {
                0 => (same.min(1 + random.below(2000) as usize), true),
                1 => (same.min(1 + random.below(9) as usize), true),
                _ => (rest.len().min(8 * (1 + random.below(12) as usize)), false),
            },
        };
        let extra = match style {
            Style::Mixed => random.below(8).saturating_sub(6),
            _ => 0,
        };
        if repeat {
            header(&mut out, (len as u64) << 1, extra);
            out.extend_from_slice(&rest[0].to_le_bytes()[..bits.div_ceil(8) as usize]);
        } else {
            header(&mut out, (len.div_ceil(8) as u64) << 1 | 1, extra);
            packed(&mut out, &rest[..len], bits, style == Style::Cut);
        }
        rest = &rest[len..];
    }
    out
}

/// What a column is written like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) values: Values,
    pub(crate) encoding: Encoding,
    pub(crate) nullable: bool,
    /// Rows of 256 that are not null.
    pub(crate) valid: u64,
    pub(crate) v1: bool,
    pub(crate) convert: Convert,
    pub(crate) style: Style,
    /// Width of dictionary indices, and with [`Style::Groups`] of deltas.
    pub(crate) bits: u32,
}

impl Shape {
    /// Numbers of four bytes, PLAIN, none null.
    pub(crate) const PLAIN: Shape = Shape {
        values: Values::Fixed { width: 4 },
        encoding: Encoding::Plain,
        nullable: false,
        valid: 256,
        v1: true,
        convert: Convert::Same,
        style: Style::Groups,
        bits: 0,
    };
}

/// Columns whose bytes are in one arena, with `gap` bytes between bodies.
#[derive(Default)]
pub(crate) struct Arena {
    pub(crate) bytes: Vec<u8>,
    pub(crate) columns: Vec<Column>,
    pub(crate) gap: usize,
}

impl Arena {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Range<u64> {
        self.bytes.resize(self.bytes.len() + self.gap, 0xee);
        let begin = self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        begin..self.bytes.len() as u64
    }

    /// A column with pages of these many rows. Gives its values, and which rows are not null.
    pub(crate) fn column(&mut self, shape: Shape, pages: &[usize], random: &mut Random) {
        let width = match shape.values {
            Values::Fixed { width } => width as usize,
            // Strings are in a file of their own.
            Values::Boolean | Values::Bytes { .. } => 1,
        };
        let entries = match shape.encoding {
            Encoding::Dictionary => (1u64 << shape.bits.min(12)).min(700),
            _ => 1 << 20,
        };
        let mut dictionary = None;
        if shape.encoding == Encoding::Dictionary {
            let bytes: Vec<u8> = (0..entries as usize * width)
                .map(|_| random.next() as u8)
                .collect();
            dictionary = Some((self.push(&bytes), entries));
        }
        let mut last = 0;
        let mut described = Vec::new();
        for &rows in pages {
            let valid: Vec<u32> = (0..rows)
                .map(|_| u32::from(!shape.nullable || random.below(256) < shape.valid))
                .collect();
            let count = valid.iter().filter(|valid| **valid == 1).count();
            // Numbers that often repeat.
            let numbers: Vec<u32> = (0..count)
                .map(|_| {
                    if random.below(4) == 0 {
                        last = random.below(entries) as u32;
                    }
                    last
                })
                .collect();
            let mut body = Vec::new();
            let mut def_len = 0;
            if shape.nullable {
                let levels = hybrid(&valid, 1, shape.style, random);
                if shape.v1 {
                    body.extend_from_slice(&(levels.len() as u32).to_le_bytes());
                }
                def_len = levels.len() as u32;
                body.extend_from_slice(&levels);
            }
            match (shape.encoding, shape.values) {
                (Encoding::Dictionary, _) => {
                    body.push(shape.bits as u8);
                    body.extend(hybrid(&numbers, shape.bits, shape.style, random));
                }
                (Encoding::Rle, _) => {
                    let bits: Vec<u32> = numbers.iter().map(|number| number & 1).collect();
                    let runs = hybrid(&bits, 1, shape.style, random);
                    body.extend_from_slice(&(runs.len() as u32).to_le_bytes());
                    body.extend(runs);
                }
                (Encoding::DeltaBinaryPacked, _) => {
                    // As writers make them, or in any way.
                    body.extend(match shape.style {
                        Style::Groups => {
                            let layout = Layout {
                                width: width as u32,
                                block: (width as u64 * 32, 4),
                                bits: Some(shape.bits),
                                cut: false,
                            };
                            stream(&layout, count, random)
                        }
                        _ => any_stream(width, count, rows, random),
                    });
                }
                (_, Values::Boolean) => {
                    let bits: Vec<u32> = numbers.iter().map(|number| number & 1).collect();
                    packed(&mut body, &bits, 1, true);
                }
                _ => body.extend((0..count * width).map(|_| random.next() as u8)),
            }
            described.push(Page {
                body: self.push(&body),
                v1: shape.v1,
                def_len,
                entries: rows as u64,
                nulls: (!shape.v1).then_some((rows - count) as u64),
                encoding: shape.encoding,
            });
        }
        self.columns.push(Column {
            values: shape.values,
            nullable: shape.nullable,
            dictionary,
            pages: described,
            convert: shape.convert,
        });
    }
}

/// Values of a block, and its miniblocks: those of writers, and others that readers have to take. Of the last, some are of more values than a
/// tile, some more than a warp has lanes.
pub(crate) const LAYOUTS: [(u64, u64); 12] = [
    (128, 4),
    (256, 4),
    (128, 1),
    (128, 2),
    (384, 4),
    (384, 3),
    (640, 4),
    (1024, 32),
    (1280, 40),
    (2048, 64),
    (4096, 2),
    (8192, 1),
];

pub(crate) fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn signed(out: &mut Vec<u8>, value: i64) {
    varint(out, (value << 1 ^ value >> 63) as u64);
}

/// What a stream is like.
pub(crate) struct Layout {
    pub(crate) width: u32,
    /// Values of a block, and its miniblocks.
    pub(crate) block: (u64, u64),
    /// The width of all deltas; any where there is none.
    pub(crate) bits: Option<u32>,
    /// Whether it ends with the last bit that is wanted.
    pub(crate) cut: bool,
}

impl Layout {
    pub(crate) fn any(width: u32, random: &mut Random) -> Layout {
        let common = random.below(3) > 0;
        let layout = random.below(if common { 2 } else { LAYOUTS.len() as u64 });
        Layout {
            width,
            block: LAYOUTS[layout as usize],
            bits: (random.below(2) == 0).then(|| random.below(u64::from(width) * 8 + 1) as u32),
            cut: random.below(2) == 0,
        }
    }

    /// A number of the type, of any size.
    fn value(&self, random: &mut Random) -> i64 {
        let all = (random.next() << 32 ^ random.next()) as i64;
        let value = all >> random.below(64);
        match self.width {
            4 => value as i32 as i64,
            _ => value,
        }
    }
}

/// A stream of any deltas.
pub(crate) fn stream(layout: &Layout, count: usize, random: &mut Random) -> Vec<u8> {
    stream_of(layout, count, count, random)
}

/// The same that says it has more values than there are.
fn stream_of(layout: &Layout, count: usize, said: usize, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    let (block, minis) = layout.block;
    varint(&mut out, block);
    varint(&mut out, minis);
    varint(&mut out, said as u64);
    signed(&mut out, layout.value(random));
    let mut left = (count as u64).saturating_sub(1);
    while left > 0 {
        signed(&mut out, layout.value(random));
        let widths = out.len();
        let mut data = Vec::new();
        for mini in 0..minis {
            let deltas = left.saturating_sub(mini * (block / minis));
            let most = u64::from(layout.width) * 8;
            let bits = layout
                .bits
                .map_or_else(|| random.below(most + 1), u64::from);
            if deltas == 0 {
                // Nobody looks at these.
                out.push(random.next() as u8);
                continue;
            }
            out.push(bits as u8);
            let stored = match layout.cut {
                true => deltas.min(block / minis),
                false => block / minis,
            };
            data.extend((0..(stored * bits).div_ceil(8)).map(|_| random.next() as u8));
        }
        assert_eq!(out.len(), widths + minis as usize);
        out.extend(data);
        left = left.saturating_sub(block);
    }
    out
}

/// The same for a page of so many values and rows.
fn any_stream(width: usize, count: usize, rows: usize, random: &mut Random) -> Vec<u8> {
    let layout = Layout::any(width as u32, random);
    let said = count + random.below((rows - count) as u64 + 1) as usize;
    stream_of(&layout, count, said, random)
}
