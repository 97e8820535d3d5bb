//! Encoding of features: lengths first, as each message begins with its own.

/// The key of field 1 with a length: of `Example.features` and `SequenceExample.context`, of an entry of a map and of a name in
/// it, of a step.
pub(crate) const LEN_1: u8 = 0x0a;
/// The key of field 2 with a length: of `SequenceExample.feature_lists`, and of a value in an entry of a map.
pub(crate) const LEN_2: u8 = 0x12;

/// Bytes of a varint.
#[inline]
pub(crate) const fn varint_len(value: u64) -> usize {
    // One byte for each seven bits that are used, and one for 0.
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// Bytes of a field with a key of one byte, a length, and `len` bytes.
#[inline]
pub(crate) const fn field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

/// Bytes inside the entry of a map: a name of `name` bytes, a value of `value` bytes.
#[inline]
pub(crate) const fn entry_len(name: usize, value: usize) -> usize {
    field_len(name) + field_len(value)
}

#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the key and the length of a field; its `len` bytes follow.
#[inline]
pub(crate) fn put_field(out: &mut Vec<u8>, key: u8, len: usize) {
    out.push(key);
    put_varint(out, len as u64);
}

/// Appends an entry of a map up to its value, of which the `value` bytes follow.
#[inline]
pub(crate) fn put_entry(out: &mut Vec<u8>, name: &[u8], value: usize) {
    put_field(out, LEN_1, entry_len(name.len(), value));
    put_field(out, LEN_1, name.len());
    out.extend_from_slice(name);
    put_field(out, LEN_2, value);
}

/// Appends a `Feature` of bytes; `len` is the sum of [`field_len`] of the values.
pub(crate) fn put_bytes_list<'a>(
    out: &mut Vec<u8>,
    len: usize,
    values: impl Iterator<Item = &'a [u8]>,
) {
    put_field(out, 0x0a, len);
    for value in values {
        put_field(out, LEN_1, value.len());
        out.extend_from_slice(value);
    }
}

/// Appends a `Feature` of packed floats.
pub(crate) fn put_float_list(out: &mut Vec<u8>, values: &[f32]) {
    let bytes = size_of_val(values);
    put_field(out, 0x12, packed_len(bytes));
    if bytes > 0 {
        put_field(out, LEN_1, bytes);
        out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
}

/// Appends a `Feature` of packed integers; `bytes` is the sum of [`varint_len`] of the values.
pub(crate) fn put_int64_list(out: &mut Vec<u8>, bytes: usize, values: impl Iterator<Item = i64>) {
    put_field(out, 0x1a, packed_len(bytes));
    if bytes > 0 {
        put_field(out, LEN_1, bytes);
        for value in values {
            put_varint(out, value.cast_unsigned());
        }
    }
}

/// Bytes of a list with `bytes` bytes of packed values: no values are no field.
#[inline]
pub(crate) const fn packed_len(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { field_len(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_the_length_that_is_said() {
        for bits in 0..64 {
            for value in [1 << bits, (1 << bits) - 1, u64::MAX >> bits] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value), "{value}");
            }
        }
    }
}
