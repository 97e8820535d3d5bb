//! From the bytes of an example to those of the lists of its features.

use super::lists;
use super::wire::{Cursor, DEPTH, LEN, WireError, expect};

/// Which member of the `oneof` a feature has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Bytes,
    Float,
    Int64,
}

/// The encoding of one message: one piece nearly always, several where its field occurs several times and the
/// occurrences are to be merged. Merging is as if the pieces were one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pieces<'a> {
    One(&'a [u8]),
    Many(Vec<&'a [u8]>),
}

impl<'a> Pieces<'a> {
    #[inline]
    pub(crate) fn as_slice(&self) -> &[&'a [u8]] {
        match self {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Many(pieces) => pieces,
        }
    }

    fn from_vec(mut pieces: Vec<&'a [u8]>) -> Self {
        match (pieces.len(), pieces.pop()) {
            (_, None) => Pieces::One(&[]),
            (1, Some(piece)) => Pieces::One(piece),
            (_, Some(last)) => {
                pieces.push(last);
                Pieces::Many(pieces)
            }
        }
    }
}

/// Where in the example a feature was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// `Example.features` or `SequenceExample.context`.
    Context,
    /// `SequenceExample.feature_lists`.
    Lists,
}

/// How much deeper groups may lie inside a `Feature`, by where it is.
const fn feature_depth(place: Place) -> u8 {
    match place {
        Place::Context => DEPTH - 3,
        Place::Lists => DEPTH - 4,
    }
}

/// Calls `found` for each entry of the maps of an example, in the order of the bytes: the last of those with the same
/// name counts. `sequence`: field 2 are feature lists; else it is an unknown field.
///
/// The pieces are those of a `Feature` in the context, of a `FeatureList` in the lists.
#[inline]
pub(crate) fn walk<'a, E: From<WireError>>(
    example: &'a [u8],
    sequence: bool,
    mut found: impl FnMut(Place, &'a [u8], Pieces<'a>) -> Result<(), E>,
) -> Result<(), E> {
    let mut cursor = Cursor(example);
    while !cursor.is_empty() {
        let (field, wire) = cursor.key()?;
        let place = match field {
            1 => Place::Context,
            2 if sequence => Place::Lists,
            _ => {
                cursor.skip(field, wire, DEPTH)?;
                continue;
            }
        };
        expect(field, wire, LEN)?;
        let mut map = Cursor(cursor.bytes()?);
        while !map.is_empty() {
            let (field, wire) = map.key()?;
            if field != 1 {
                map.skip(field, wire, DEPTH - 1)?;
                continue;
            }
            expect(field, wire, LEN)?;
            let entry = map.bytes()?;
            let (name, value) = match plain_entry(entry) {
                Some((name, value)) => (name, Pieces::One(value)),
                None => any_entry(entry)?,
            };
            found(place, name, value)?;
        }
    }
    Ok(())
}

/// An entry as writers write it: the name, then the value, and nothing else.
#[inline]
fn plain_entry(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let [0x0a, length, rest @ ..] = entry else {
        return None;
    };
    if *length >= 0x80 {
        return None;
    }
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let [0x12, rest @ ..] = rest else {
        return None;
    };
    Some((name, whole(rest)?))
}

/// What follows a length that is all of it.
#[inline]
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let mut cursor = Cursor(bytes);
    let length = cursor.varint().ok()?;
    (length == cursor.0.len() as u64).then_some(cursor.0)
}

#[cold]
fn any_entry(entry: &[u8]) -> Result<(&[u8], Pieces<'_>), WireError> {
    let (mut name, mut pieces) = (&[][..], Vec::new());
    let mut cursor = Cursor(entry);
    while !cursor.is_empty() {
        let (field, wire) = cursor.key()?;
        match field {
            1 => {
                expect(field, wire, LEN)?;
                name = cursor.bytes()?;
                // One that a later one replaces, too: a reader of messages looks at each.
                std::str::from_utf8(name).map_err(|_| WireError::Name)?;
            }
            2 => {
                expect(field, wire, LEN)?;
                pieces.push(cursor.bytes()?);
            }
            _ => cursor.skip(field, wire, DEPTH - 2)?,
        }
    }
    Ok((name, Pieces::from_vec(pieces)))
}

/// The kind of a `Feature` and the pieces of its list. `None`: it has none, and so no value.
#[inline]
pub(crate) fn feature<'a>(
    place: Place,
    feature: &Pieces<'a>,
) -> Result<Option<(Kind, Pieces<'a>)>, WireError> {
    if let Pieces::One([key, rest @ ..]) = feature
        && let Some(list) = whole(rest)
    {
        let kind = match key {
            0x0a => Kind::Bytes,
            0x12 => Kind::Float,
            0x1a => Kind::Int64,
            _ => return any_feature(place, feature),
        };
        return Ok(Some((kind, Pieces::One(list))));
    }
    any_feature(place, feature)
}

#[cold]
fn any_feature<'a>(
    place: Place,
    feature: &Pieces<'a>,
) -> Result<Option<(Kind, Pieces<'a>)>, WireError> {
    let depth = feature_depth(place);
    let (mut last, mut lists) = (None, Vec::new());
    for piece in feature.as_slice() {
        let mut cursor = Cursor(piece);
        while !cursor.is_empty() {
            let (field, wire) = cursor.key()?;
            let kind = match field {
                1 => Kind::Bytes,
                2 => Kind::Float,
                3 => Kind::Int64,
                _ => {
                    cursor.skip(field, wire, depth)?;
                    continue;
                }
            };
            expect(field, wire, LEN)?;
            let list = cursor.bytes()?;
            if last.is_some_and(|last| last != kind) {
                // Another member of the `oneof` replaces it; it still has to be one.
                if let Some(last) = last {
                    let _ = lists::count(place, last, &Pieces::Many(std::mem::take(&mut lists)))?;
                }
            }
            last = Some(kind);
            lists.push(list);
        }
    }
    Ok(last.map(|kind| (kind, Pieces::from_vec(lists))))
}

/// That a `Feature` is one, all of it.
#[cold]
pub(crate) fn check_feature(place: Place, pieces: &Pieces<'_>) -> Result<(), WireError> {
    if let Some((kind, lists)) = feature(place, pieces)? {
        let _ = lists::count(place, kind, &lists)?;
    }
    Ok(())
}

/// The depth left inside a list.
pub(super) const fn list_depth(place: Place) -> u8 {
    feature_depth(place) - 1
}

/// The `Feature`s of a `FeatureList`.
pub(crate) fn steps<'p, 'a>(
    list: &'p Pieces<'a>,
) -> impl Iterator<Item = Result<Pieces<'a>, WireError>> + use<'p, 'a> {
    Repeated::new(list, DEPTH - 3).map(|step| step.map(Pieces::One))
}

/// The values of a repeated field: of field 1 of a message, each with a length. Other fields are skipped. After an error there
/// are no more.
#[derive(Debug)]
pub(crate) struct Repeated<'p, 'a> {
    pieces: std::slice::Iter<'p, &'a [u8]>,
    cursor: Cursor<'a>,
    depth: u8,
}

impl<'p, 'a> Repeated<'p, 'a> {
    /// `depth`: how much deeper groups may lie inside the message.
    #[inline]
    pub(super) fn new(message: &'p Pieces<'a>, depth: u8) -> Self {
        Repeated {
            pieces: message.as_slice().iter(),
            cursor: Cursor(&[]),
            depth,
        }
    }

    #[inline]
    fn value(&mut self) -> Result<Option<&'a [u8]>, WireError> {
        loop {
            if self.cursor.is_empty() {
                let Some(piece) = self.pieces.next() else {
                    return Ok(None);
                };
                self.cursor = Cursor(piece);
                continue;
            }
            let (field, wire) = self.cursor.key()?;
            if field == 1 {
                expect(field, wire, LEN)?;
                return self.cursor.bytes().map(Some);
            }
            self.cursor.skip(field, wire, self.depth)?;
        }
    }
}

impl<'a> Iterator for Repeated<'_, 'a> {
    type Item = Result<&'a [u8], WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let value = self.value().transpose()?;
        if value.is_err() {
            // The rest cannot be found any more.
            (self.cursor, self.pieces) = (Cursor(&[]), [].iter());
        }
        Some(value)
    }
}
