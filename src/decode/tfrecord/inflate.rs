//! GZIP and ZLIB streams, inflated piece by piece: what comes out is bounded by the piece, whatever goes in.

use bytes::{Buf, Bytes};
use flate2::{Decompress, FlushDecompress, Status};

use super::options::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::format::tfrecord::frame;

/// Bytes that come out at once, at most.
const PIECE: usize = 256 << 10;
/// Bytes of the window of every stream, as a power of two.
const WINDOW_BITS: u8 = 15;
/// The first byte of a member.
const GZIP_MAGIC: u8 = 0x1f;

/// What to do next.
#[derive(Debug)]
pub(super) enum Inflated {
    /// Bytes came out.
    Piece(Bytes),
    /// [`push`](Inflate::push) more, or [`finish`](Inflate::finish).
    Want,
    /// The stream ended.
    End,
}

/// One compressed stream.
#[derive(Debug)]
pub(super) struct Inflate {
    compression: Compression,
    state: Decompress,
    input: Bytes,
    /// Bytes taken so far.
    taken: u64,
    /// Between members, or behind the end.
    between: bool,
    finished: bool,
    /// What came out and was not delivered.
    piece: Vec<u8>,
    failed: Option<Error>,
}

/// How a file is compressed that begins with `start`, of at least 12 bytes if it has as many.
pub(super) fn recognise(start: &[u8]) -> Compression {
    let is_record = start
        .first_chunk()
        .is_some_and(|header| frame::length(header).is_some());
    match *start {
        _ if is_record => Compression::None,
        [0x1f, 0x8b, 8, ..] => Compression::Gzip,
        // CMF and FLG, RFC 1950, 2.2: deflate, a window of 32 KiB at most, and a sum of both. The length of a record
        // can look like that, though its upper bytes are zero, which deflated data hardly has there.
        [cmf, flg, _, _, _, f, g, h, ..]
            if cmf & 15 == 8
                && cmf >> 4 <= 7
                && (u16::from(cmf) << 8 | u16::from(flg)).is_multiple_of(31)
                && (f, g, h) != (0, 0, 0) =>
        {
            Compression::Zlib
        }
        _ => Compression::None,
    }
}

impl Inflate {
    /// `None` for what is not compressed.
    pub(super) fn new(compression: Compression) -> Option<Self> {
        Some(Inflate {
            compression,
            state: start(compression)?,
            input: Bytes::new(),
            taken: 0,
            between: false,
            finished: false,
            piece: Vec::new(),
            failed: None,
        })
    }

    /// The next bytes of the file, after [`Inflated::Want`].
    pub(super) fn push(&mut self, bytes: Bytes) {
        self.input = bytes;
    }

    /// No more bytes follow.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    /// Goes on with the bytes at hand.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] for bytes that are no such stream, a wrong checksum, or a stream that ends early.
    pub(super) fn next(&mut self) -> Result<Inflated> {
        loop {
            if let Some(error) = self.failed.clone() {
                // Behind what came out before.
                return self.deliver().map(Inflated::Piece).ok_or(error);
            }
            if self.piece.len() >= PIECE {
                return Ok(self.deliver().map_or(Inflated::Want, Inflated::Piece));
            }
            if self.between && !self.begin_member() {
                if !self.finished && self.input.is_empty() {
                    return Ok(Inflated::Want);
                }
                if !self.input.is_empty() {
                    self.fail("something else follows its end".into());
                    continue;
                }
                return Ok(self.deliver().map_or(Inflated::End, Inflated::Piece));
            }
            if self.input.is_empty() && !self.finished {
                return Ok(Inflated::Want);
            }
            self.inflate();
        }
    }

    /// Fills the piece from the bytes at hand.
    fn inflate(&mut self) {
        if self.piece.capacity() == 0 {
            self.piece.reserve_exact(PIECE);
        }
        let (before_in, before_out) = (self.state.total_in(), self.state.total_out());
        let outcome =
            self.state
                .decompress_vec(&self.input, &mut self.piece, FlushDecompress::None);
        let consumed = self.state.total_in() - before_in;
        self.input.advance(self.input.len().min(consumed as usize));
        self.taken += consumed;
        let stuck = consumed == 0 && self.state.total_out() == before_out;
        match outcome {
            Err(error) => self.fail(error.to_string()),
            Ok(Status::StreamEnd) => self.between = true,
            Ok(_) if stuck && self.input.is_empty() => self.fail("it ends early".into()),
            Ok(_) if stuck => self.fail("it does not go on".into()),
            Ok(_) => {}
        }
    }

    fn deliver(&mut self) -> Option<Bytes> {
        let piece = std::mem::take(&mut self.piece);
        (!piece.is_empty()).then(|| piece.into())
    }

    /// Whether there is another member to go on with; begins it.
    fn begin_member(&mut self) -> bool {
        if self.compression != Compression::Gzip {
            return false;
        }
        // Tapes pad with zeros; gzip(1) passes over them as well.
        let zeros = self.input.iter().take_while(|byte| **byte == 0).count();
        self.input.advance(zeros);
        self.taken += zeros as u64;
        if self.input.first() != Some(&GZIP_MAGIC) {
            return false;
        }
        self.between = false;
        self.state = Decompress::new_gzip(WINDOW_BITS);
        true
    }

    fn fail(&mut self, what: String) {
        let part = match self.compression {
            Compression::Zlib => "its ZLIB stream",
            _ => "its GZIP stream",
        };
        let error = Error::new(ErrorKind::Malformed {
            format: "TFRecord",
            part: Some(part.into()),
            what: what.into(),
        });
        let end = self.taken + self.input.len() as u64;
        self.failed = Some(error.at(self.taken..end));
    }
}

fn start(compression: Compression) -> Option<Decompress> {
    match compression {
        Compression::None => None,
        Compression::Gzip => Some(Decompress::new_gzip(WINDOW_BITS)),
        Compression::Zlib => Some(Decompress::new(true)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// All that comes out, if `bytes` go in `step` at a time.
    fn inflate(compression: Compression, bytes: &[u8], step: usize) -> (Vec<u8>, Result<()>) {
        let mut inflate = Inflate::new(compression).unwrap();
        let mut chunks = bytes.chunks(step);
        let mut out = Vec::new();
        loop {
            match inflate.next() {
                Ok(Inflated::Piece(piece)) => {
                    assert!(!piece.is_empty() && piece.len() <= PIECE);
                    out.extend_from_slice(&piece);
                }
                Ok(Inflated::Want) => match chunks.next() {
                    Some(chunk) => inflate.push(Bytes::copy_from_slice(chunk)),
                    None => inflate.finish(),
                },
                Ok(Inflated::End) => return (out, Ok(())),
                Err(error) => return (out, Err(error)),
            }
        }
    }

    fn content() -> Vec<u8> {
        (0..700_000_u64).map(|i| ((i * i) >> 7) as u8).collect()
    }

    fn what(outcome: Result<()>) -> String {
        match outcome.unwrap_err().kind() {
            ErrorKind::Malformed { what, .. } => what.to_string(),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn streams_come_back_whatever_the_chunks() {
        let content = content();
        for step in [1, 7, 4096, usize::MAX] {
            let (out, end) = inflate(Compression::Gzip, &gzip(&content), step);
            end.unwrap();
            assert!(out == content, "{step}");
            let (out, end) = inflate(Compression::Zlib, &zlib(&content), step);
            end.unwrap();
            assert!(out == content, "{step}");
        }
        let (out, end) = inflate(Compression::Gzip, &gzip(b""), 3);
        end.unwrap();
        assert!(out.is_empty());
    }

    #[test]
    fn members_follow_each_other_and_zeros_may_stand_behind() {
        let mut bytes = gzip(b"one ");
        bytes.extend(gzip(b""));
        bytes.extend(gzip(b"two"));
        bytes.extend([0; 100]);
        for step in [1, 5, 1000] {
            let (out, end) = inflate(Compression::Gzip, &bytes, step);
            end.unwrap();
            assert_eq!(out, b"one two");
        }
        bytes.extend(b"more");
        let (out, end) = inflate(Compression::Gzip, &bytes, 9);
        assert_eq!(out, b"one two");
        assert_eq!(what(end), "something else follows its end");
        let mut bytes = zlib(b"one");
        bytes.push(0);
        let (out, end) = inflate(Compression::Zlib, &bytes, 9);
        assert_eq!(out, b"one");
        assert_eq!(what(end), "something else follows its end");
    }

    #[test]
    fn a_stream_that_ends_early_is_an_error_behind_what_it_had() {
        let content = content();
        let bytes = gzip(&content);
        for cut in [0, 1, 5, 10, 100, bytes.len() - 1] {
            for step in [1000, usize::MAX] {
                let (out, end) = inflate(Compression::Gzip, &bytes[..cut], step);
                assert_eq!(what(end), "it ends early", "{cut}");
                assert!(content.starts_with(&out));
                assert!(cut < bytes.len() - 8 || out.len() == content.len());
            }
        }
    }

    #[test]
    fn a_wrong_checksum_is_an_error() {
        let mut bytes = gzip(b"some bytes");
        let at = bytes.len() - 6;
        bytes[at] ^= 1;
        assert!(inflate(Compression::Gzip, &bytes, 1000).1.is_err());
        let mut bytes = zlib(b"some bytes");
        *bytes.last_mut().unwrap() ^= 1;
        assert!(inflate(Compression::Zlib, &bytes, 1000).1.is_err());
    }

    #[test]
    fn compression_is_recognised_by_the_first_bytes() {
        assert_eq!(recognise(&gzip(b"x")), Compression::Gzip);
        assert_eq!(recognise(&zlib(b"some bytes more")), Compression::Zlib);
        assert_eq!(recognise(b""), Compression::None);
        assert_eq!(recognise(b"not a record"), Compression::None);
        // Lengths that look like the one or the other.
        for length in [0x08_8b1f, 0x9c78, 0x0178] {
            assert_eq!(recognise(&frame::header(length)), Compression::None);
        }
        let mut damaged = frame::header(0x9c78);
        damaged[11] ^= 1;
        assert_eq!(recognise(&damaged), Compression::None);
    }
}
