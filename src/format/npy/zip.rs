//! The directory of an archive: which members it has, and where they are.
//!
//! Strict, where programs that unpack for people are lenient: the directory stands right before its end records, as every
//! writer puts it, and nothing is looked for elsewhere. Section numbers are those of APPNOTE.TXT.

use std::ops::Range;

use super::{malformed, unsupported};
use crate::error::{Error, Result};

const FORMAT: &str = "npz";

/// Bytes that are read first: the end record with the longest comment, which the directories of most archives fit in front
/// of.
pub(crate) const TAIL: u64 = (64 << 10) + END as u64 + LOCATOR as u64 + END64 as u64;

/// Bytes of the end record without its comment (4.3.16), of the locator (4.3.15) and the end record (4.3.14) of zip64, of
/// an entry of the directory (4.3.12) and of the header of a member (4.3.7) without their strings.
const END: usize = 22;
const LOCATOR: usize = 20;
const END64: usize = 56;
const ENTRY: usize = 46;
const LOCAL: u64 = 30;

/// Longest directory: of a million members.
const DIRECTORY_MOST: u64 = 64 << 20;

/// Where the directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    pub(crate) range: Range<u64>,
    entries: u64,
}

/// How the bytes of a member are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Stored,
    Deflated,
    /// Another one, by its number.
    Other(u16),
}

/// What the directory says of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) method: Method,
    pub(crate) encrypted: bool,
    pub(crate) crc: u32,
    /// Bytes in the archive.
    pub(crate) stored: u64,
    /// Bytes of the content.
    pub(crate) len: u64,
    /// Where its own header is.
    header: u64,
    /// Where the directory begins: all members are before it.
    end: u64,
}

impl Member {
    /// Where its own header is, without the strings behind it.
    pub(crate) fn local(&self) -> Range<u64> {
        self.header..self.header + LOCAL
    }
}

/// Little-endian numbers, one after the other. What is not there reads as an error.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

fn wrong(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    malformed(FORMAT, what)
}

/// Where the directory of an archive of `len` bytes is, of which `tail` are the last ones ([`TAIL`], or all).
///
/// # Errors
/// `Malformed` if it is no archive, or one that ends in something else; `UnsupportedFeature` for several volumes or a directory
/// of over 64 MiB.
pub(crate) fn directory(tail: &[u8], len: u64) -> Result<Directory> {
    let whole = || 0..len;
    let at = (0..=tail.len().saturating_sub(END))
        .rev()
        .find(|&at| is_end(tail, at))
        .ok_or_else(|| wrong("it does not end as a zip archive").at(whole()))?;
    let start = len - tail.len() as u64;
    let end = parse_end(tail, at).ok_or_else(|| wrong("its end record is cut off").at(whole()))?;
    let (end, position) = match locator(tail, at, start) {
        None => (end, start + at as u64),
        Some(record) => {
            let position = record.position;
            let fields = position
                .checked_sub(start)
                .and_then(|at| tail.get(usize::try_from(at).ok()?..))
                .and_then(parse_end64);
            match fields {
                Some((end, length)) if position.checked_add(length) == Some(record.locator) => {
                    (end, position)
                }
                _ => {
                    return Err(
                        wrong("its zip64 end record is not in front of its locator").at(whole())
                    );
                }
            }
        }
    };
    let End {
        disks,
        entries,
        size,
        offset,
    } = end;
    if disks != (0, 0) {
        return Err(unsupported(FORMAT, None, "archives of several volumes").at(whole()));
    }
    if offset.checked_add(size) != Some(position) {
        let what = format!(
            "its directory of {size} bytes at {offset} does not end at {position}, where its end record is"
        );
        return Err(wrong(what).at(whole()));
    }
    if size > DIRECTORY_MOST {
        let what = format!("a directory of {size} bytes, more than {DIRECTORY_MOST}");
        return Err(unsupported(FORMAT, None, what).at(offset..position));
    }
    if entries > size / ENTRY as u64 {
        let what = format!("its directory of {size} bytes cannot have {entries} entries");
        return Err(wrong(what).at(offset..position));
    }
    Ok(Directory {
        range: offset..position,
        entries,
    })
}

/// Whether an end record begins at `at`, whose comment goes to the end of the file.
fn is_end(tail: &[u8], at: usize) -> bool {
    let Some(record) = tail.get(at..) else {
        return false;
    };
    let comment = record.get(20..).and_then(|rest| Fields(rest).u16());
    record.starts_with(b"PK\x05\x06")
        && comment.map(|comment| END + usize::from(comment)) == Some(record.len())
}

/// What an end record says, of either kind.
struct End {
    /// Number of this volume, and of the one where the directory begins.
    disks: (u32, u32),
    entries: u64,
    size: u64,
    offset: u64,
}

fn parse_end(tail: &[u8], at: usize) -> Option<End> {
    let mut fields = Fields(tail.get(at + 4..)?);
    let disks = (fields.u16()?.into(), fields.u16()?.into());
    let (_, entries) = (fields.u16()?, fields.u16()?);
    Some(End {
        disks,
        entries: entries.into(),
        size: fields.u32()?.into(),
        offset: fields.u32()?.into(),
    })
}

/// The end record of zip64 at the start of `bytes`, and its length.
fn parse_end64(bytes: &[u8]) -> Option<(End, u64)> {
    let mut fields = Fields(bytes.strip_prefix(b"PK\x06\x06")?);
    let length = fields.u64()?.checked_add(12)?;
    fields.take(4)?; // versions
    let disks = (fields.u32()?, fields.u32()?);
    let (_, entries) = (fields.u64()?, fields.u64()?);
    let end = End {
        disks,
        entries,
        size: fields.u64()?,
        offset: fields.u64()?,
    };
    (length >= END64 as u64).then_some((end, length))
}

/// Where the end record of zip64 is.
struct Locator {
    position: u64,
    /// Where this is said.
    locator: u64,
}

/// The locator in front of the end record at `at`, in a tail that begins at `start`.
fn locator(tail: &[u8], at: usize, start: u64) -> Option<Locator> {
    let from = at.checked_sub(LOCATOR)?;
    let mut fields = Fields(tail.get(from..at)?.strip_prefix(b"PK\x06\x07")?);
    fields.u32()?;
    Some(Locator {
        position: fields.u64()?,
        locator: start + from as u64,
    })
}

/// The members that a directory lists.
///
/// # Errors
/// `Malformed` if it is not as long as its entries, a name is there twice, or a member does not lie before the directory.
pub(crate) fn members(bytes: &[u8], directory: &Directory) -> Result<Vec<Member>> {
    let Directory { range, entries } = directory;
    let mut fields = Fields(bytes);
    let mut members = Vec::new();
    let mut names = std::collections::HashSet::new();
    for _ in 0..*entries {
        let at = range.start + (bytes.len() - fields.0.len()) as u64;
        let cut = || wrong("its directory has no whole entry here").at(at..range.end);
        let member = member(&mut fields, range.start).ok_or_else(cut)?;
        let header = member.header.checked_add(LOCAL);
        if header
            .and_then(|end| end.checked_add(member.stored))
            .is_none_or(|end| end > range.start)
        {
            let what = format!("member {:?} does not lie before the directory", member.name);
            return Err(wrong(what).at(at..range.end));
        }
        if member.method == Method::Stored && !member.encrypted && member.stored != member.len {
            let what = format!(
                "member {:?} is stored, in {} bytes for {}",
                member.name, member.stored, member.len
            );
            return Err(wrong(what).at(at..range.end));
        }
        if !names.insert(member.name.clone()) {
            let what = format!("two members are called {:?}", member.name);
            return Err(wrong(what).at(at..range.end));
        }
        members.push(member);
    }
    if !fields.0.is_empty() {
        return Err(
            wrong(format!("its directory has more than its {entries} entries")).at(range.clone()),
        );
    }
    Ok(members)
}

/// One entry of a directory that begins at `end`.
fn member(fields: &mut Fields<'_>, end: u64) -> Option<Member> {
    let mut entry = Fields(fields.take(ENTRY)?.strip_prefix(b"PK\x01\x02")?);
    entry.take(4)?; // versions
    let (flags, method) = (entry.u16()?, entry.u16()?);
    entry.take(4)?; // time
    let crc = entry.u32()?;
    let (stored, len) = (entry.u32()?, entry.u32()?);
    let (name, extra, comment) = (entry.u16()?, entry.u16()?, entry.u16()?);
    entry.take(8)?; // volume and attributes
    let header = entry.u32()?;
    let name = String::from_utf8_lossy(fields.take(name.into())?).into_owned();
    let mut large = large_fields(fields.take(extra.into())?);
    fields.take(comment.into())?;
    // Those that do not fit into 32 bits.
    let mut wide = |field: u32| match field {
        u32::MAX => large.u64(),
        field => Some(field.into()),
    };
    // In this order (4.5.3), whatever the order of the 32 bits.
    let (len, stored) = (wide(len)?, wide(stored)?);
    Some(Member {
        name,
        method: match method {
            0 => Method::Stored,
            8 => Method::Deflated,
            other => Method::Other(other),
        },
        encrypted: flags & 1 != 0,
        crc,
        stored,
        len,
        header: wide(header)?,
        end,
    })
}

/// The extra field of zip64 among `extra`, empty if there is none.
fn large_fields(extra: &[u8]) -> Fields<'_> {
    let mut fields = Fields(extra);
    while let (Some(id), Some(len)) = (fields.u16(), fields.u16()) {
        let Some(data) = fields.take(len.into()) else {
            break;
        };
        if id == 1 {
            return Fields(data);
        }
    }
    Fields(&[])
}

/// Where the bytes of a member are, from its own header without the strings behind it.
///
/// # Errors
/// `Malformed` if there is no header, or one of another method, or the bytes reach into the directory.
pub(crate) fn data_range(local: &[u8], member: &Member) -> Result<Range<u64>> {
    let fault = |what: &str| {
        let what = format!("member {:?} {what}", member.name);
        wrong(what).at(member.local())
    };
    let fields = || {
        let mut fields = Fields(local.strip_prefix(b"PK\x03\x04")?);
        fields.take(4)?; // version and flags
        let method = fields.u16()?;
        fields.take(16)?; // time, checksum and lengths, which are in the directory too, and here maybe not yet
        Some((method, fields.u16()?, fields.u16()?))
    };
    let Some((method, name, extra)) = fields() else {
        return Err(fault("has no header where the directory says"));
    };
    let same = match member.method {
        Method::Stored => method == 0,
        Method::Deflated => method == 8,
        Method::Other(other) => method == other,
    };
    if !same {
        return Err(fault("is stored in another way than the directory says"));
    }
    let start = member.header + LOCAL + u64::from(name) + u64::from(extra);
    match start.checked_add(member.stored) {
        Some(end) if end <= member.end => Ok(start..end),
        _ => Err(fault("reaches into the directory")),
    }
}
