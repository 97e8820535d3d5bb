//! Varints, keys, lengths, and skipping what is not known.

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// The bytes end inside a field.
    #[error("the bytes end inside a field")]
    Truncated,
    /// A varint of more than 64 bits.
    #[error("a varint has more than 64 bits")]
    Varint,
    /// A length that is more than what is left.
    #[error("a length of {length} bytes where {left} are left")]
    Length { length: u64, left: usize },
    /// A key whose field number is 0 or has more than 29 bits.
    #[error("{key} is not the key of a field")]
    Key { key: u64 },
    /// A known field with another wire type than its own, or a wire type that there is not.
    #[error("field {field} has wire type {wire}")]
    WireType { field: u32, wire: u8 },
    /// The end of a group that did not begin.
    #[error("the end of group {field}, which did not begin")]
    EndGroup { field: u32 },
    /// Groups inside groups, deeper than protobuf allows.
    #[error("messages and groups lie more than 100 deep in each other")]
    Depth,
    /// The name of a feature is not UTF-8.
    #[error("the name of a feature is not UTF-8")]
    Name,
    /// Packed floats whose length is not a multiple of 4.
    #[error("packed floats of {length} bytes, which is no multiple of 4")]
    FloatLength { length: usize },
}

/// How deep messages and groups may lie in each other: protobuf's own default.
pub(crate) const DEPTH: u8 = 100;

/// Wire types.
pub(crate) const VARINT: u8 = 0;
pub(crate) const FIXED64: u8 = 1;
pub(crate) const LEN: u8 = 2;
pub(crate) const GROUP: u8 = 3;
pub(crate) const END_GROUP: u8 = 4;
pub(crate) const FIXED32: u8 = 5;

/// What is left of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        match self.0 {
            [first, rest @ ..] if *first < 0x80 => {
                self.0 = rest;
                Ok(u64::from(*first))
            }
            [first, second, rest @ ..] if *second < 0x80 => {
                self.0 = rest;
                Ok(u64::from(*first & 0x7f) | u64::from(*second) << 7)
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0;
        for (at, byte) in self.0.iter().take(10).enumerate() {
            if at == 9 && *byte > 1 {
                return Err(WireError::Varint);
            }
            value |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.0 = self.0.get(at + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(WireError::Truncated)
    }

    /// The field number and the wire type of the field that follows.
    #[inline]
    pub(crate) fn key(&mut self) -> Result<(u32, u8), WireError> {
        let key = self.varint()?;
        let field = u32::try_from(key).map_or(0, |key| key >> 3);
        if field == 0 {
            return Err(WireError::Key { key });
        }
        Ok((field, (key & 7) as u8))
    }

    #[inline]
    pub(crate) fn take(&mut self, length: u64) -> Result<&'a [u8], WireError> {
        let left = self.0.len();
        let cut = usize::try_from(length)
            .ok()
            .and_then(|length| self.0.split_at_checked(length));
        let (taken, rest) = cut.ok_or(WireError::Length { length, left })?;
        self.0 = rest;
        Ok(taken)
    }

    /// A length, and as many bytes.
    #[inline]
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let length = self.varint()?;
        self.take(length)
    }

    /// Skips the value of a field, of which the key has been read. `depth`: how much deeper groups may lie.
    pub(crate) fn skip(&mut self, field: u32, wire: u8, depth: u8) -> Result<(), WireError> {
        let deeper = depth.checked_sub(1).ok_or(WireError::Depth)?;
        match wire {
            VARINT => drop(self.varint()?),
            FIXED64 => drop(self.fixed(8)?),
            FIXED32 => drop(self.fixed(4)?),
            LEN => drop(self.bytes()?),
            GROUP => loop {
                match self.key()? {
                    (end, END_GROUP) if end == field => break,
                    (field, wire) => self.skip(field, wire, deeper)?,
                }
            },
            END_GROUP => return Err(WireError::EndGroup { field }),
            _ => return Err(WireError::WireType { field, wire }),
        }
        Ok(())
    }

    pub(crate) fn fixed(&mut self, length: u64) -> Result<&'a [u8], WireError> {
        self.take(length).map_err(|_| WireError::Truncated)
    }
}

/// That the wire type of a known field is its own.
#[inline]
pub(crate) fn expect(field: u32, wire: u8, own: u8) -> Result<(), WireError> {
    if wire == own {
        Ok(())
    } else {
        Err(WireError::WireType { field, wire })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_end_at_64_bits() {
        let all = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Cursor(&all).varint(), Ok(u64::MAX));
        let mut more = all;
        more[9] = 2;
        assert_eq!(Cursor(&more).varint(), Err(WireError::Varint));
        assert_eq!(Cursor(&[0x80; 11]).varint(), Err(WireError::Varint));
        for cut in 0..10 {
            assert_eq!(Cursor(&all[..cut]).varint(), Err(WireError::Truncated));
        }
        // Longer than it need be, which writers may.
        let mut cursor = Cursor(&[0x81, 0x80, 0x00, 7]);
        assert_eq!((cursor.varint(), cursor.0), (Ok(1), &[7][..]));
    }

    #[test]
    fn lengths_are_compared_before_anything_is_taken() {
        let mut cursor = Cursor(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 5]);
        let (length, left) = (u64::MAX, 1);
        assert_eq!(cursor.bytes(), Err(WireError::Length { length, left }));
    }

    #[test]
    fn groups_end_with_their_own_number_and_have_a_depth() {
        // Group 1 { group 2 {} varint 3: 5 } and one byte more.
        let mut cursor = Cursor(&[0x13, 0x14, 0x18, 5, 0x0c, 9]);
        assert_eq!(cursor.skip(1, GROUP, 2), Ok(()));
        assert_eq!(cursor.0, [9]);
        let mut cursor = Cursor(&[0x13, 0x14, 0x0c]);
        assert_eq!(cursor.skip(1, GROUP, 1), Err(WireError::Depth));
        let mut cursor = Cursor(&[0x14]);
        let wrong = WireError::EndGroup { field: 2 };
        assert_eq!(cursor.skip(1, GROUP, 9), Err(wrong));
        let endless = [0x0b; 1000];
        let mut cursor = Cursor(&endless);
        assert_eq!(cursor.skip(1, GROUP, DEPTH), Err(WireError::Depth));
    }

    #[test]
    fn keys_have_a_number_and_32_bits() {
        assert_eq!(Cursor(&[2]).key(), Err(WireError::Key { key: 2 }));
        let most = [0xff, 0xff, 0xff, 0xff, 0x0f];
        assert_eq!(Cursor(&most).key(), Ok(((1 << 29) - 1, 7)));
        let key = 1 << 32;
        let more = [0x80, 0x80, 0x80, 0x80, 0x10];
        assert_eq!(Cursor(&more).key(), Err(WireError::Key { key }));
    }
}
