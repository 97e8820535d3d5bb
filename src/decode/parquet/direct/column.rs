//! One column chunk, from pages to arrays.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, StringArray, make_array};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, BooleanBufferBuilder, Buffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use parquet::basic::{ConvertedType, Encoding, Type};
use parquet::column::page::{self, PageReader};
use parquet::file::metadata::ColumnChunkMetaData;

use super::list::{Scratch, Shape};
use super::runs::Runs;
use super::text::{Text, Valid, Words, words};

/// Most values that memory is taken for before they are there.
pub(super) const AHEAD: usize = 64 << 10;

/// How values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bits,
    /// Numbers of 4 bytes.
    Four,
    /// Numbers of 8 bytes.
    Eight,
    Bytes,
    /// Bytes that are UTF-8.
    Text,
}

/// What a column chunk can be decoded to.
#[derive(Clone, Debug)]
pub(in crate::decode::parquet) struct Target {
    kind: Kind,
    /// Of the values.
    data_type: DataType,
    /// The highest definition level.
    full: u32,
    /// `None`: it is flat.
    lists: Option<Shape>,
}

impl Target {
    /// `field` of `chunk`, if it can be decoded here, as far as the footer tells.
    pub(in crate::decode::parquet) fn of(
        chunk: &ColumnChunkMetaData,
        field: &Field,
    ) -> Option<Target> {
        let descriptor = chunk.column_descr();
        let full = u32::try_from(descriptor.max_def_level()).ok()?;
        let (data_type, lists, levels) = match field.data_type() {
            DataType::List(item) => {
                let empty = u32::from(field.is_nullable());
                let full = empty + 1 + u32::from(item.is_nullable());
                let item = item.clone();
                let data_type = item.data_type().clone();
                (data_type, Some(Shape { item, empty, full }), (1, full))
            }
            flat => (flat.clone(), None, (0, u32::from(field.is_nullable()))),
        };
        if levels != (descriptor.max_rep_level(), full) {
            return None;
        }
        #[allow(deprecated)] // Footers name it beside RLE.
        let is_simple = chunk.encodings().all(|encoding| {
            matches!(
                encoding,
                Encoding::PLAIN
                    | Encoding::RLE
                    | Encoding::BIT_PACKED
                    | Encoding::PLAIN_DICTIONARY
                    | Encoding::RLE_DICTIONARY
            )
        });
        if !is_simple {
            return None;
        }
        let is_utf8 = descriptor.converted_type() == ConvertedType::UTF8;
        use DataType as To;
        // Where the bits stay as they are. The crate narrows and widens the others.
        let kind = match (chunk.column_type(), &data_type) {
            (Type::BOOLEAN, To::Boolean) => Kind::Bits,
            (Type::INT32, To::Int32 | To::UInt32 | To::Date32 | To::Time32(_)) => Kind::Four,
            (Type::INT64, To::Int64 | To::UInt64 | To::Date64 | To::Duration(_)) => Kind::Eight,
            (Type::INT64, To::Timestamp(..) | To::Time64(_)) => Kind::Eight,
            (Type::FLOAT, To::Float32) => Kind::Four,
            (Type::DOUBLE, To::Float64) => Kind::Eight,
            (Type::BYTE_ARRAY, To::Utf8) if is_utf8 => Kind::Text,
            (Type::BYTE_ARRAY, To::Binary) if !is_utf8 => Kind::Bytes,
            _ => return None,
        };
        let is_number = matches!(kind, Kind::Four | Kind::Eight);
        (is_number || lists.is_none()).then_some(Target {
            kind,
            data_type,
            full,
            lists,
        })
    }
}

/// A column chunk that is decoded from its first row on.
pub(in crate::decode::parquet) struct Column {
    pages: Box<dyn PageReader>,
    target: Target,
    pub(super) dictionary: Option<Dictionary>,
    pub(super) page: Option<Page>,
    pub(super) scratch: Scratch,
}

pub(super) enum Dictionary {
    /// Bytes of numbers.
    Numbers(Bytes),
    Words(Words),
}

/// The page that is decoded.
pub(super) struct Page {
    /// Levels that are left; rows, where it is flat.
    pub(super) levels_left: usize,
    /// Most values that are left.
    values_left: usize,
    /// Of lists: 0 where one begins.
    pub(super) repeats: Option<Runs>,
    /// `None`: there is a value for each level.
    pub(super) definitions: Option<Runs>,
    /// Whether a list must begin with it.
    pub(super) must_begin: bool,
    body: Body,
}

enum Body {
    /// Values, and where the next one begins.
    Plain(Bytes, usize),
    Bits(Runs),
    Indices(Runs),
}

impl Column {
    /// `rows`: of the row group.
    pub(in crate::decode::parquet) fn new(
        pages: Box<dyn PageReader>,
        chunk: &ColumnChunkMetaData,
        target: Target,
        rows: u64,
    ) -> Self {
        Column {
            pages,
            target,
            dictionary: None,
            page: None,
            scratch: Scratch {
                levels_of_row: chunk.num_values() as f64 / rows as f64,
                ..Scratch::default()
            },
        }
    }

    /// The next `rows` rows. `None`: it cannot be done here, and the column is not to be used again.
    pub(in crate::decode::parquet) fn next(&mut self, rows: usize) -> Option<ArrayRef> {
        if let Some(shape) = self.target.lists.clone() {
            return match self.target.kind {
                Kind::Four => self.lists::<u32, 4>(&shape, rows),
                Kind::Eight => self.lists::<u64, 8>(&shape, rows),
                Kind::Bits | Kind::Bytes | Kind::Text => None,
            };
        }
        match self.target.kind {
            Kind::Bits => self.bits(rows),
            Kind::Four => self.numbers::<u32, 4>(rows),
            Kind::Eight => self.numbers::<u64, 8>(rows),
            Kind::Bytes | Kind::Text => self.text(rows),
        }
    }

    fn bits(&mut self, rows: usize) -> Option<ArrayRef> {
        let mut validity = BooleanBufferBuilder::new(0);
        let mut out = BooleanBufferBuilder::new(rows.min(AHEAD));
        let mut dense = BooleanBufferBuilder::new(0);
        let mut left = rows;
        while left > 0 {
            let page = self.page()?;
            let valid = page.rows(&mut left, &mut validity)?;
            let Body::Bits(values) = &mut page.body else {
                return None;
            };
            let Some((bits, start)) = valid.bits else {
                values.read_bits(valid.count, &mut out)?;
                page.close()?;
                continue;
            };
            dense.truncate(0);
            values.read_bits(valid.count, &mut dense)?;
            let mut from = 0;
            for (word, len) in words(bits, start, valid.rows) {
                let mut spread = 0;
                for at in 0..len {
                    let is_valid = word >> at & 1;
                    let byte = dense.as_slice().get(from / 8).copied().unwrap_or(0);
                    let bit = u64::from(byte >> (from % 8)) & is_valid;
                    spread |= bit << at;
                    from += is_valid as usize;
                }
                out.append_word(spread, len);
            }
            page.close()?;
        }
        let values = out.finish().into_inner();
        self.array(rows, values, nulls(validity))
    }

    fn numbers<T: ArrowNativeType + From<Little<W>>, const W: usize>(
        &mut self,
        rows: usize,
    ) -> Option<ArrayRef> {
        let mut validity = BooleanBufferBuilder::new(0);
        let mut out: Vec<T> = Vec::with_capacity(rows.min(AHEAD));
        let mut left = rows;
        while left > 0 {
            self.page()?;
            let page = self.page.as_mut()?;
            let valid = page.rows(&mut left, &mut validity)?;
            let dictionary = self.dictionary.as_ref();
            page.numbers(&valid, dictionary, &mut self.scratch.indices, &mut out)?;
            page.close()?;
        }
        self.array(rows, Buffer::from_vec(out), nulls(validity))
    }

    fn text(&mut self, rows: usize) -> Option<ArrayRef> {
        let mut validity = BooleanBufferBuilder::new(0);
        let mut out = Text::new(rows.min(AHEAD));
        let mut left = rows;
        while left > 0 {
            self.page()?;
            let page = self.page.as_mut()?;
            let valid = page.rows(&mut left, &mut validity)?;
            match &mut page.body {
                Body::Plain(bytes, at) => {
                    // As many as this share of the page has.
                    let left = bytes.len().checked_sub(*at)?;
                    let share = left as f64 * valid.rows as f64;
                    let expected = share / (valid.rows + page.levels_left) as f64;
                    *at = out.plain(bytes, *at, &valid, expected as usize)?;
                }
                Body::Indices(runs) => {
                    let Some(Dictionary::Words(words)) = &self.dictionary else {
                        return None;
                    };
                    let indices = &mut self.scratch.indices;
                    runs.read(valid.count, indices)?;
                    out.indexed(words, indices, &valid)?;
                }
                Body::Bits(_) => return None,
            }
            page.close()?;
        }
        let (offsets, bytes) = out.finish();
        let nulls = nulls(validity);
        Some(match self.target.kind {
            Kind::Text => Arc::new(StringArray::try_new(offsets, bytes, nulls).ok()?),
            _ => Arc::new(BinaryArray::try_new(offsets, bytes, nulls).ok()?),
        })
    }

    pub(super) fn array(
        &self,
        rows: usize,
        values: Buffer,
        nulls: Option<NullBuffer>,
    ) -> Option<ArrayRef> {
        let data = ArrayData::builder(self.target.data_type.clone())
            .len(rows)
            .add_buffer(values)
            .nulls(nulls);
        Some(make_array(data.build().ok()?))
    }

    /// The page with the next row.
    fn page(&mut self) -> Option<&mut Page> {
        self.page_if_any()?.then_some(self.page.as_mut())?
    }

    /// Goes to the page with the next level. `Some(false)`: there are no more.
    pub(super) fn page_if_any(&mut self) -> Option<bool> {
        while self.page.as_ref().is_none_or(|page| page.levels_left == 0) {
            match self.pages.get_next_page().ok()? {
                None => return Some(false),
                Some(page::Page::DictionaryPage {
                    buf,
                    num_values,
                    encoding,
                    ..
                }) => self.learn(buf, usize::try_from(num_values).ok()?, encoding)?,
                Some(page) => self.page = Some(self.begin(page)?),
            }
        }
        Some(true)
    }

    /// Keeps a dictionary. There is one at most, and it comes first.
    fn learn(&mut self, page: Bytes, count: usize, encoding: Encoding) -> Option<()> {
        let is_plain = matches!(encoding, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY);
        if !is_plain || self.dictionary.is_some() || self.page.is_some() {
            return None;
        }
        let width = match self.target.kind {
            Kind::Bits => return None,
            Kind::Four => 4,
            Kind::Eight => 8,
            Kind::Bytes | Kind::Text => {
                let words = Words::new(&page, count, self.target.kind == Kind::Text)?;
                self.dictionary = Some(Dictionary::Words(words));
                return Some(());
            }
        };
        // Not a part of the page, whose memory is to be used again.
        let numbers = page.get(..count.checked_mul(width)?)?;
        self.dictionary = Some(Dictionary::Numbers(Bytes::copy_from_slice(numbers)));
        Some(())
    }

    /// A data page that has rows.
    fn begin(&self, page: page::Page) -> Option<Page> {
        let is_repeated = self.target.lists.is_some();
        let is_defined = self.target.full > 0;
        let must_begin = matches!(page, page::Page::DataPageV2 { .. });
        let (count, values, repeats, definitions, body, encoding) = match page {
            page::Page::DataPage {
                mut buf,
                num_values,
                encoding,
                def_level_encoding,
                rep_level_encoding,
                ..
            } => {
                let mut levels = |are_there: bool, encoding: Encoding| {
                    if !are_there {
                        return Some(None);
                    }
                    if encoding != Encoding::RLE {
                        return None;
                    }
                    let (levels, rest) = sized(&buf)?;
                    buf = rest;
                    Some(Some(levels))
                };
                let repeats = levels(is_repeated, rep_level_encoding)?;
                let definitions = levels(is_defined, def_level_encoding)?;
                (num_values, num_values, repeats, definitions, buf, encoding)
            }
            page::Page::DataPageV2 {
                mut buf,
                num_values,
                encoding,
                num_nulls,
                num_rows,
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => {
                let values = num_values.checked_sub(num_nulls)?;
                let mut levels = |are_there: bool, len: u32| {
                    let len = usize::try_from(len).ok()?;
                    if len > buf.len() || (len > 0 && !are_there) {
                        return None;
                    }
                    let levels = buf.split_to(len);
                    Some(are_there.then_some(levels))
                };
                let repeats = levels(is_repeated, rep_levels_byte_len)?;
                let definitions = levels(is_defined, def_levels_byte_len)?;
                // The crate leaves out pages by this number, if it goes on from where this decoder gave up.
                let count = usize::try_from(num_values).ok()?;
                let rows = match &repeats {
                    Some(levels) => Runs::new(levels.clone(), 1)?.zeros(count)?,
                    None => count,
                };
                if usize::try_from(num_rows) != Ok(rows) {
                    return None;
                }
                (num_values, values, repeats, definitions, buf, encoding)
            }
            page::Page::DictionaryPage { .. } => return None,
        };
        // The crate stops at a page without rows.
        if count == 0 {
            return None;
        }
        let is_bits = self.target.kind == Kind::Bits;
        let body = match encoding {
            Encoding::PLAIN if is_bits => Body::Bits(Runs::bits(body)),
            Encoding::PLAIN => Body::Plain(body, 0),
            Encoding::RLE if is_bits => Body::Bits(Runs::begun(sized(&body)?.0, 1)?),
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => {
                let width = *body.first()?;
                Body::Indices(Runs::begun(body.slice(1..), width)?)
            }
            _ => return None,
        };
        let runs = |levels: Option<Bytes>, most: u32| match levels {
            Some(levels) => Runs::new(levels, (32 - most.leading_zeros()) as u8).map(Some),
            None => Some(None),
        };
        Some(Page {
            levels_left: usize::try_from(count).ok()?,
            values_left: usize::try_from(values).ok()?,
            repeats: runs(repeats, 1)?,
            definitions: runs(definitions, self.target.full)?,
            must_begin,
            body,
        })
    }
}

impl Page {
    /// Goes on by the rows of this page, `left` at most, and takes them from `left`. Which of them have a value is appended
    /// to `validity`.
    fn rows<'a>(
        &mut self,
        left: &mut usize,
        validity: &'a mut BooleanBufferBuilder,
    ) -> Option<Valid<'a>> {
        let rows = self.levels_left.min(*left);
        self.levels_left -= rows;
        *left -= rows;
        let valid = match &mut self.definitions {
            None => Valid::all(rows),
            Some(levels) => {
                let start = validity.len();
                levels.read_bits(rows, validity)?;
                Valid::of(validity.as_slice(), start, rows)
            }
        };
        self.use_up(valid.count)?;
        Some(valid)
    }

    /// To be called when values have been read. `None`: there is more behind the last ones than there should be.
    pub(super) fn close(&self) -> Option<()> {
        let body = match &self.body {
            Body::Plain(..) => None,
            Body::Bits(runs) | Body::Indices(runs) => Some(runs),
        };
        let mut runs = [&self.repeats, &self.definitions]
            .into_iter()
            .flatten()
            .chain(body);
        (self.levels_left > 0 || runs.all(Runs::is_spent)).then_some(())
    }

    pub(super) fn use_up(&mut self, values: usize) -> Option<()> {
        self.values_left = self.values_left.checked_sub(values)?;
        Some(())
    }

    /// Appends the values of the rows or items that have one, and zeros for the others.
    pub(super) fn numbers<T: Copy + Default + From<Little<W>>, const W: usize>(
        &mut self,
        valid: &Valid<'_>,
        dictionary: Option<&Dictionary>,
        indices: &mut Vec<u32>,
        out: &mut Vec<T>,
    ) -> Option<()> {
        let value = |bytes: &[u8; W]| T::from(Little(*bytes));
        match &mut self.body {
            Body::Plain(bytes, at) => {
                let end = valid.count.checked_mul(W)?.checked_add(*at)?;
                let values = bytes.get(*at..end)?.as_chunks::<W>().0;
                *at = end;
                match valid.bits {
                    None => out.extend(values.iter().map(value)),
                    Some(_) => spread(out, valid, |at| {
                        values.get(at).map(value).unwrap_or_default()
                    }),
                }
            }
            Body::Indices(runs) => {
                let Some(Dictionary::Numbers(numbers)) = dictionary else {
                    return None;
                };
                let numbers = numbers.as_chunks::<W>().0;
                runs.read(valid.count, indices)?;
                let highest = indices.iter().max();
                if highest.is_some_and(|most| *most as usize >= numbers.len()) {
                    return None;
                }
                // All of them are there.
                let value = |index: &u32| match numbers.get(*index as usize) {
                    Some(bytes) => value(bytes),
                    None => T::default(),
                };
                match valid.bits {
                    None => out.extend(indices.iter().map(value)),
                    Some(_) => spread(out, valid, |at| {
                        indices.get(at).map(value).unwrap_or_default()
                    }),
                }
            }
            Body::Bits(_) => return None,
        }
        Some(())
    }
}

/// Bytes of a number as files have it.
pub(super) struct Little<const W: usize>([u8; W]);

impl From<Little<4>> for u32 {
    fn from(bytes: Little<4>) -> u32 {
        u32::from_le_bytes(bytes.0)
    }
}

impl From<Little<8>> for u64 {
    fn from(bytes: Little<8>) -> u64 {
        u64::from_le_bytes(bytes.0)
    }
}

/// Appends the values that there are to the rows that have one, and zeros to the others.
fn spread<T: Copy + Default>(out: &mut Vec<T>, valid: &Valid<'_>, value: impl Fn(usize) -> T) {
    let Some((bits, start)) = valid.bits else {
        return;
    };
    let mut from = 0;
    for (word, len) in words(bits, start, valid.rows) {
        out.extend((0..len).map(|at| {
            let is_valid = word >> at & 1 == 1;
            let value = value(from);
            from += usize::from(is_valid);
            if is_valid { value } else { T::default() }
        }));
    }
}

/// What is behind a length of 4 bytes, and what is behind that.
fn sized(bytes: &Bytes) -> Option<(Bytes, Bytes)> {
    let len = usize::try_from(u32::from_le_bytes(*bytes.first_chunk()?)).ok()?;
    let end = len.checked_add(4)?;
    (end <= bytes.len()).then(|| (bytes.slice(4..end), bytes.slice(end..)))
}

/// What is null, if anything is.
pub(super) fn nulls(mut validity: BooleanBufferBuilder) -> Option<NullBuffer> {
    if validity.is_empty() {
        return None;
    }
    let bits: BooleanBuffer = validity.finish();
    let nulls = NullBuffer::new(bits);
    (nulls.null_count() > 0).then_some(nulls)
}
