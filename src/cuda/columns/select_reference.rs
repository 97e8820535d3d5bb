//! What the kernels do with rows that are wanted, one slot after the other, on bytes of the host.

use std::ops::Range;

use super::nested_reference::HostLeaf;
use super::reference::{HostOutcome, bitmap};
use super::{List, Offsets, Slots, Valid};

/// The rows of a leaf that are wanted. What is a fault stays one.
pub fn select(
    leaf: &HostLeaf,
    kind: Slots,
    lists: &[List],
    valid: &[Valid],
    rows: &[Range<u64>],
) -> HostLeaf {
    let HostLeaf::Done {
        values,
        slots: _,
        offsets,
        valid: bitmaps,
    } = leaf
    else {
        return leaf.clone();
    };
    // The slots of each depth that are wanted, by number.
    let mut depths: Vec<Vec<u64>> = vec![rows.iter().flat_map(Range::clone).collect()];
    let mut begins = Vec::new();
    for (list, offsets) in lists.iter().zip(offsets) {
        let items = |slot: u64| match (list.offsets, offsets) {
            (Offsets::Fixed { size }, _) => {
                let size = u64::from(size);
                slot * size..(slot + 1) * size
            }
            (_, Some(offsets)) => offsets[slot as usize]..offsets[slot as usize + 1],
            (_, None) => 0..0,
        };
        let of = depths.last().map_or(&[][..], Vec::as_slice);
        let (mut own, mut all) = (vec![0], Vec::new());
        for slot in of {
            all.extend(items(*slot));
            own.push(all.len() as u64);
        }
        begins.push(offsets.as_ref().map(|_| own));
        depths.push(all);
    }
    let valid = valid.iter().zip(bitmaps).map(|(valid, (bits, _))| {
        let bits = some_bits(bits, &depths[valid.depth as usize]);
        let nulls = bits.iter().filter(|bit| !**bit).count() as u64;
        (bitmap(&bits), nulls)
    });
    let valid = valid.collect();
    let deepest = depths.last().map_or(&[][..], Vec::as_slice);
    HostLeaf::Done {
        values: some_values(values, kind, deepest),
        valid,
        offsets: begins,
        slots: depths.iter().map(|depth| depth.len() as u64).collect(),
    }
}

fn some_bits(bits: &[u8], slots: &[u64]) -> Vec<bool> {
    let bit = |slot: &u64| bits[*slot as usize / 8] >> (slot % 8) & 1 == 1;
    slots.iter().map(bit).collect()
}

fn some_values(values: &HostOutcome, kind: Slots, slots: &[u64]) -> HostOutcome {
    let of_validity = |validity: &Option<Vec<u8>>| {
        let bits = validity.as_ref().map(|bits| some_bits(bits, slots));
        let nulls = bits.iter().flatten().filter(|bit| !**bit).count() as u64;
        (bits.map(|bits| bitmap(&bits)), nulls)
    };
    let of_width = |values: &[u8]| match kind {
        Slots::Fixed { width } => {
            let width = width as usize;
            let value = |slot: &u64| &values[*slot as usize * width..][..width];
            slots.iter().flat_map(value).copied().collect()
        }
        _ => bitmap(&some_bits(values, slots)),
    };
    match values {
        HostOutcome::Done {
            values, validity, ..
        } => {
            let (validity, nulls) = of_validity(validity);
            HostOutcome::Done {
                values: of_width(values),
                validity,
                nulls,
                rows: slots.len() as u64,
            }
        }
        HostOutcome::Strings {
            offsets,
            bytes,
            validity,
            ..
        } => {
            let (validity, nulls) = of_validity(validity);
            let (mut own, mut all) = (vec![0], Vec::new());
            for slot in slots {
                let range = offsets[*slot as usize] as usize..offsets[*slot as usize + 1] as usize;
                all.extend_from_slice(&bytes[range]);
                own.push(all.len() as u64);
            }
            HostOutcome::Strings {
                offsets: own,
                bytes: all,
                validity,
                nulls,
            }
        }
        HostOutcome::Indices {
            values,
            offsets,
            bytes,
            validity,
            ..
        } => {
            let (validity, nulls) = of_validity(validity);
            HostOutcome::Indices {
                values: of_width(values),
                offsets: offsets.clone(),
                bytes: bytes.clone(),
                validity,
                nulls,
            }
        }
        fault @ HostOutcome::Fault { .. } => fault.clone(),
    }
}
