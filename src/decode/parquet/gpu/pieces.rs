//! Pages on their way to the device: cut into pieces that are copied at once, decompressed by threads or there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::group::{Chunk, Groups};
use super::inflate::inflate;
use super::leaf::Planned;
use super::page_plan::{Arena, Body, By};
use crate::cuda::decompress::{Body as Compressed, Checks, Sums};
use crate::cuda::{Filling, To, Work};
use crate::decode::parquet::failure;
use crate::error::Result;
use crate::format::parquet::GroupPlan;

/// A page: its position among the chunks, among the leaves of that, and among their pages.
type At = (usize, usize, usize);

/// Bytes that are copied together: a range of an arena, and the pages in it.
pub(super) struct Piece {
    to: To,
    place: Range<u64>,
    bodies: Vec<At>,
}

impl Groups {
    /// Writes the pages of a piece, and sends it off. A page that cannot be decompressed is a matter of its chunk.
    pub(super) fn fill(
        &self,
        filling: &Filling,
        piece: &Piece,
        group: &GroupPlan,
        chunks: &[Chunk<'_>],
    ) -> Result<()> {
        let start = piece.place.start;
        let len = usize::try_from(piece.place.end - start).unwrap_or(usize::MAX);
        let mut stage = filling.stage(len)?;
        let bytes = stage.bytes();
        let mut written = 0;
        for at in &piece.bodies {
            let Some((chunk, planned, body)) = body_of(chunks, *at) else {
                continue;
            };
            let place = match (body.by, piece.to) {
                (By::Device { source, .. }, To::Stored) => body.source(source),
                _ => body.place.clone(),
            };
            let from = usize::try_from(place.start - start).unwrap_or(usize::MAX);
            let to = usize::try_from(place.end - start).unwrap_or(usize::MAX);
            if let Some(gap) = bytes.get_mut(written..from) {
                gap.fill(0);
            }
            let Some(page) = bytes.get_mut(from..to) else {
                continue;
            };
            written = to;
            if chunk.reason.get().is_some() {
                page.fill(0);
                continue;
            }
            match (piece.to, planned.bytes.get(body.stored.clone())) {
                (To::Stored, Some(stored)) if stored.len() == page.len() => {
                    page.copy_from_slice(&stored);
                }
                _ => self.inflate(group, chunk, planned, body, piece.to, page),
            }
        }
        if let Some(rest) = bytes.get_mut(written..) {
            rest.fill(0);
        }
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        filling.send(piece.to, start, stage)
    }

    /// Brings a page to where it is copied from.
    fn inflate(
        &self,
        group: &GroupPlan,
        chunk: &Chunk<'_>,
        planned: &Planned,
        body: &Body,
        to: To,
        page: &mut [u8],
    ) {
        let of = self.task.metadata.row_group(group.index);
        let of = of.column(planned.leaf);
        // The device looks at the checksum of what is only copied.
        let with_crc = body.compressed || to == To::Again;
        let inflated = failure::contain(None, || inflate(of, &planned.bytes, body, with_crc, page));
        if let Err(error) = inflated {
            chunk.leave(error.to_string());
            page.fill(0);
        }
    }

    /// Queues what decompresses the pages that the device is to, and what looks at checksums.
    pub(super) fn undo(
        &self,
        filling: &Filling,
        work: &mut Work<'_>,
        chunks: &[Chunk<'_>],
    ) -> Result<Undoing> {
        let (mut bodies, mut numbers) = (Vec::new(), Vec::new());
        let (mut plain, mut plain_numbers) = (Vec::new(), Vec::new());
        for (at, body) in bodies_of(chunks) {
            match (body.by, body.crc) {
                (By::Device { codec, source }, crc) => {
                    bodies.push(Compressed {
                        source: body.source(source),
                        plain: u64::from(body.plain),
                        codec,
                        target: body.place.clone(),
                        gap: u64::from(body.gap),
                        crc,
                    });
                    numbers.push(at);
                }
                (By::Host(_), Some(crc)) if !body.compressed => {
                    plain.push((body.place.clone(), crc));
                    plain_numbers.push(at);
                }
                _ => {}
            }
        }
        Ok(Undoing {
            checks: filling.decompress(work, &bodies)?,
            numbers,
            sums: filling.checksums(work, &plain)?,
            plain_numbers,
        })
    }

    /// The pages that the device refused, and why; counts who decompressed which. Waits, if nobody did since they were queued.
    pub(super) fn refused(
        &self,
        work: &mut Work<'_>,
        undoing: Undoing,
        chunks: &mut [Chunk<'_>],
    ) -> Result<Refused> {
        let mut refused = Refused::new();
        let checks = undoing.checks.found(work)?.into_iter();
        for (check, at) in checks.zip(undoing.numbers) {
            if check != 0 {
                refused.insert(at, format!("the GPU refused it, check {check}").into());
            }
        }
        let right = undoing.sums.found(work)?.into_iter();
        for (right, at) in right.zip(undoing.plain_numbers) {
            if !right {
                refused.insert(at, "another checksum".into());
            }
        }
        for (at, chunk) in chunks.iter_mut().enumerate() {
            for (leaf, planned) in chunk.plans.iter().enumerate() {
                let why = |number| refused.get(&(at, leaf, number)).cloned();
                chunk.undone.add(&planned.chunk.bodies, why);
            }
        }
        Ok(refused)
    }

    /// Brings the pages that the device refused there by the host, whose answer or error counts.
    pub(super) fn fill_again(
        &self,
        filling: &Filling,
        refused: &Refused,
        group: &GroupPlan,
        chunks: &[Chunk<'_>],
    ) -> Result<()> {
        let numbers: Vec<_> = refused.keys().copied().collect();
        self.in_parallel(numbers.len(), |at| {
            let body = numbers
                .get(at)
                .and_then(|at| Some((body_of(chunks, *at)?, *at)));
            match body {
                Some(((_, _, body), at)) => {
                    let (to, place, bodies) = (To::Again, body.place.clone(), vec![at]);
                    self.fill(filling, &Piece { to, place, bodies }, group, chunks)
                }
                None => Ok(()),
            }
        })
    }
}

/// Pages that the device decompresses, or whose checksums it looks at.
pub(super) struct Undoing {
    checks: Checks,
    numbers: Vec<At>,
    sums: Sums,
    plain_numbers: Vec<At>,
}

/// Pages that the device did not take, and why.
pub(super) type Refused = BTreeMap<At, Arc<str>>;

/// The pages of all chunks in the order of the arena, and where each is named.
fn bodies_of<'a>(chunks: &'a [Chunk<'_>]) -> impl Iterator<Item = (At, &'a Body)> {
    chunks.iter().enumerate().flat_map(|(at, chunk)| {
        let leaves = chunk.plans.iter().enumerate();
        leaves.flat_map(move |(leaf, planned)| {
            let bodies = planned.chunk.bodies.iter().enumerate();
            bodies.map(move |(number, body)| ((at, leaf, number), body))
        })
    })
}

/// The page that is named so, and what it is of.
fn body_of<'a, 'c>(
    chunks: &'a [Chunk<'c>],
    (at, leaf, number): At,
) -> Option<(&'a Chunk<'c>, &'a Planned, &'a Body)> {
    let chunk = chunks.get(at)?;
    let planned = chunk.plans.get(leaf)?;
    Some((chunk, planned, planned.chunk.bodies.get(number)?))
}

/// Both arenas cut into pieces between pages, so that nothing of what the host brings there is left out: its pages with the gaps behind them,
/// and pages as they are stored. None has more than `most` bytes, unless it is of one page.
pub(super) fn pieces_of(chunks: &[Chunk<'_>], arena: &Arena, stored: u64, most: u64) -> Vec<Piece> {
    let (mut pieces, mut compressed): (Vec<Piece>, Vec<Piece>) = (Vec::new(), Vec::new());
    let add = |pieces: &mut Vec<Piece>, to, place: Range<u64>, body| match pieces.last_mut() {
        Some(piece) if piece.place.end == place.start && place.end - piece.place.start <= most => {
            piece.place.end = place.end;
            piece.bodies.push(body);
        }
        _ => pieces.push(Piece {
            to,
            place,
            bodies: vec![body],
        }),
    };
    let mut next = None;
    for (at, body) in bodies_of(chunks) {
        match body.by {
            By::Host(_) => {
                let place = body.place.start..body.place.end + u64::from(body.gap);
                add(&mut pieces, To::Buffer, place, at);
            }
            By::Device { source, .. } => {
                // Each up to the next one.
                let source = body.source(source);
                let start = next.unwrap_or(source.start);
                let end = source.end.next_multiple_of(64).min(stored);
                add(&mut compressed, To::Stored, start..end, at);
                next = Some(end);
            }
        }
    }
    if pieces.is_empty() && compressed.is_empty() {
        pieces.push(Piece {
            to: To::Buffer,
            place: 0..arena.len(),
            bodies: Vec::new(),
        });
    }
    // What is decompressed here first, since it takes longest.
    pieces.append(&mut compressed);
    pieces
}
