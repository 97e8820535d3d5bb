//! The kernels that copy rows which are wanted, beside their scalar reference.

use std::ops::Range;
use std::sync::Arc;

use feedwater::cuda::columns::nested_reference::{self, HostLeaf};
use feedwater::cuda::columns::reference::HostOutcome;
use feedwater::cuda::columns::select_reference;
use feedwater::cuda::columns::{
    Decoded, Leaf, List, Nested, NestedOutcome, Offsets, Selection, Slots, Valid, check,
};
use feedwater::cuda::testing::Kernels as _;
use feedwater::cuda::{Device, DeviceOptions, Guard};
use feedwater::{DeviceBytes, ErrorKind};

use crate::columns::trimmed;
use crate::kernels::{ORDERS, checked, put};
use crate::levels::{Nest, Written};
use crate::pages::{Random, Shape};
use crate::support::*;

/// A leaf on the host, and on the device.
pub(crate) struct Both {
    pub(crate) host: HostLeaf,
    pub(crate) there: Leaf,
    pub(crate) slots: Slots,
    pub(crate) lists: Vec<List>,
    pub(crate) valid: Vec<Valid>,
}

/// What a leaf is to be.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub(crate) slots: Slots,
    pub(crate) nullable: bool,
    pub(crate) lists: Vec<Offsets>,
    /// Items of a list, and bytes of a string, at most.
    pub(crate) most: u64,
    /// Of the values: how far behind a word they begin.
    pub(crate) skew: usize,
}

pub(crate) const PLAIN: Form = Form {
    slots: Slots::Fixed { width: 4 },
    nullable: false,
    lists: Vec::new(),
    most: 5,
    skew: 0,
};

fn upload(gpu: &Arc<Device>, bytes: &[u8], skew: usize) -> DeviceBytes {
    match bytes {
        [] => put(gpu, &[0], 0).slice(0..0),
        _ => put(gpu, bytes, skew),
    }
}

/// A bitmap by chance, and as many as `count` bits of it as the host has them.
fn bits(gpu: &Arc<Device>, count: u64, random: &mut Random) -> (Vec<u8>, DeviceBytes, u64) {
    let mut bytes = vec![0u8; (count.div_ceil(32) * 4) as usize];
    let mut nulls = 0;
    for bit in 0..count {
        match random.below(4) > 0 {
            true => bytes[bit as usize / 8] |= 1 << (bit % 8),
            false => nulls += 1,
        }
    }
    let there = upload(gpu, &bytes, 0);
    bytes.truncate(count.div_ceil(8) as usize);
    (bytes, there, nulls)
}

/// Offsets of so many lists or strings, of which many are empty.
fn offsets(
    gpu: &Arc<Device>,
    count: u64,
    most: u64,
    wide: bool,
    random: &mut Random,
) -> (Vec<u64>, DeviceBytes) {
    let mut offsets = vec![0u64];
    for _ in 0..count {
        let len = random.below(most + 1) * random.below(3).min(1);
        offsets.push(offsets.last().unwrap() + len);
    }
    let bytes: Vec<u8> = match wide {
        true => offsets
            .iter()
            .flat_map(|offset| offset.to_le_bytes())
            .collect(),
        false => offsets
            .iter()
            .flat_map(|offset| (*offset as u32).to_le_bytes())
            .collect(),
    };
    (offsets, upload(gpu, &bytes, 0))
}

impl Both {
    pub(crate) fn of(gpu: &Arc<Device>, form: &Form, rows: u64, random: &mut Random) -> Self {
        let (mut slots, mut lists, mut valid) = (vec![rows], Vec::new(), Vec::new());
        let (mut host_offsets, mut there_offsets) = (Vec::new(), Vec::new());
        let (mut host_valid, mut there_valid) = (Vec::new(), Vec::new());
        for (depth, wanted) in form.lists.iter().enumerate() {
            let count = *slots.last().unwrap();
            lists.push(List {
                full: depth as u32 * 2 + 2,
                offsets: *wanted,
            });
            valid.push(Valid {
                depth: depth as u32,
                def: 1,
            });
            let (host, there, nulls) = bits(gpu, count, random);
            host_valid.push((host, nulls));
            there_valid.push((there, nulls));
            if let Offsets::Fixed { size } = wanted {
                slots.push(count * u64::from(*size));
                host_offsets.push(None);
                there_offsets.push(None);
                continue;
            }
            let wide = *wanted == Offsets::Large;
            let (host, there) = offsets(gpu, count, form.most, wide, random);
            slots.push(*host.last().unwrap());
            host_offsets.push(Some(host));
            there_offsets.push(Some(there));
        }
        let count = *slots.last().unwrap();
        let validity = form.nullable.then(|| bits(gpu, count, random));
        let nulls = validity.as_ref().map_or(0, |(_, _, nulls)| *nulls);
        let mut noise = |len: u64| (0..len).map(|_| random.next() as u8).collect::<Vec<_>>();
        let mut own = None;
        let (host, values) = match form.slots {
            Slots::Bits => {
                let (host, there, _) = bits(gpu, count, random);
                (host, there)
            }
            Slots::Fixed { width } => {
                let bytes = noise(count * u64::from(width));
                let there = upload(gpu, &bytes, form.skew);
                (bytes, there)
            }
            Slots::Text { large } => {
                let (host, there) = offsets(gpu, count, form.most, large, random);
                let mut noise =
                    |len: u64| (0..len).map(|_| random.next() as u8).collect::<Vec<_>>();
                let bytes = noise(*host.last().unwrap());
                own = Some((host, there));
                let there = upload(gpu, &bytes, form.skew);
                (bytes, there)
            }
        };
        let host_validity = validity.as_ref().map(|(host, ..)| host.clone());
        let (text, offsets) = own.unzip();
        let host_values = match text {
            Some(offsets) => HostOutcome::Strings {
                offsets,
                bytes: host,
                validity: host_validity,
                nulls,
            },
            None => HostOutcome::Done {
                values: host,
                validity: host_validity,
                nulls,
                rows: count,
            },
        };
        Both {
            host: HostLeaf::Done {
                values: host_values,
                slots: slots.clone(),
                offsets: host_offsets,
                valid: host_valid,
            },
            there: Leaf {
                values: Decoded {
                    values,
                    offsets,
                    dictionary: None,
                    validity: validity.map(|(_, there, _)| there),
                    nulls,
                    rows: count,
                },
                slots,
                offsets: there_offsets,
                valid: there_valid,
            },
            slots: form.slots,
            lists,
            valid,
        }
    }

    pub(crate) fn selection(&self, rows: &[Range<u64>]) -> Selection {
        Selection {
            leaf: self.there.clone(),
            slots: self.slots,
            lists: self.lists.clone(),
            valid: self.valid.clone(),
            rows: rows.to_vec(),
        }
    }

    /// What came of it, as the reference has it.
    fn on_the_host(&self, gpu: &Device, leaf: Leaf) -> HostLeaf {
        let host = |bytes: &DeviceBytes| gpu.to_host(bytes).unwrap();
        let numbers = |bytes: &DeviceBytes, wide: bool| match wide {
            true => {
                let bytes = host(bytes);
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|word| u64::from_le_bytes(*word))
                    .collect()
            }
            false => {
                let bytes = host(bytes);
                let small = bytes.as_chunks().0.iter();
                small
                    .map(|word| u32::from_le_bytes(*word).into())
                    .collect::<Vec<u64>>()
            }
        };
        let values = leaf.values;
        let validity = values.validity.as_ref();
        let validity = validity.map(|bits| trimmed(host(bits), values.rows));
        let nulls = values.nulls;
        let all = host(&values.values);
        let values = match (self.slots, &values.offsets) {
            (Slots::Text { large }, Some(offsets)) => HostOutcome::Strings {
                offsets: numbers(offsets, large),
                bytes: all,
                validity,
                nulls,
            },
            (slots, _) => HostOutcome::Done {
                values: match slots {
                    Slots::Bits => trimmed(all, values.rows),
                    _ => all,
                },
                validity,
                nulls,
                rows: values.rows,
            },
        };
        let offsets = self.lists.iter().zip(&leaf.offsets);
        let offsets = offsets.map(|(list, offsets)| {
            let offsets = offsets.as_ref();
            offsets.map(|offsets| numbers(offsets, list.offsets == Offsets::Large))
        });
        let valid = self.valid.iter().zip(&leaf.valid);
        let valid = valid.map(|(valid, (bits, nulls))| {
            (
                trimmed(host(bits), leaf.slots[valid.depth as usize]),
                *nulls,
            )
        });
        HostLeaf::Done {
            values,
            offsets: offsets.collect(),
            valid: valid.collect(),
            slots: leaf.slots,
        }
    }
}

/// Compares what becomes of each leaf by each choice of its rows.
fn compare(gpu: &Device, chosen: &[(&Both, Vec<Range<u64>>)], what: &str) {
    let selections = chosen.iter().map(|(leaf, rows)| leaf.selection(rows));
    let found = gpu.select(&selections.collect::<Vec<_>>()).unwrap();
    assert_eq!(found.len(), chosen.len());
    for ((leaf, rows), found) in chosen.iter().zip(found) {
        let found = leaf.on_the_host(gpu, found);
        let (lists, valid) = (&leaf.lists, &leaf.valid);
        let wanted = select_reference::select(&leaf.host, leaf.slots, lists, valid, rows);
        assert!(
            found == wanted,
            "{what}: {:?} {lists:?} {rows:?}\nis {}\nnot {}",
            leaf.slots,
            short(&found),
            short(&wanted)
        );
    }
}

fn short(leaf: &HostLeaf) -> String {
    let mut text = format!("{leaf:?}");
    text.truncate(2000);
    text
}

fn separate() -> Arc<Device> {
    let options = DeviceOptions::default().guard(Guard::Separate);
    options.open(0).unwrap()
}

/// Ways to choose some of so many rows.
fn choices(rows: u64, random: &mut Random) -> Vec<Vec<Range<u64>>> {
    let mut choices = vec![
        vec![0..rows],
        vec![],
        vec![0..0],
        (0..rows).step_by(2).map(|at| at..at + 1).collect(),
    ];
    if rows > 0 {
        let one = random.below(rows);
        choices.push(vec![one..one + 1]);
        choices.push(vec![0..1, rows - 1..rows]);
        choices.push(vec![rows / 3..rows * 2 / 3, rows..rows]);
        let (mut ranges, mut at) = (Vec::new(), 0);
        while at < rows {
            let start = at + random.below(7);
            let end = start + random.below(40);
            if end <= rows {
                ranges.push(start..end);
            }
            at = end + 1;
        }
        choices.push(ranges);
    }
    for choice in &mut choices {
        // Those that touch, or begin where the one before ends.
        choice.dedup_by(|next, before| next.start < before.end);
    }
    choices
}

fn flat() -> Vec<Form> {
    let of = |slots, nullable, skew| Form {
        slots,
        nullable,
        skew,
        ..PLAIN
    };
    let fixed = |width| Slots::Fixed { width };
    vec![
        of(Slots::Bits, false, 0),
        of(Slots::Bits, true, 0),
        of(fixed(1), false, 3),
        of(fixed(2), true, 0),
        of(fixed(3), false, 1),
        of(fixed(4), true, 0),
        of(fixed(5), false, 0),
        of(fixed(8), false, 0),
        of(fixed(8), true, 4),
        of(fixed(12), false, 2),
        of(fixed(16), true, 0),
        of(fixed(37), false, 0),
        of(Slots::Text { large: false }, true, 1),
        of(Slots::Text { large: true }, false, 0),
    ]
}

fn nested() -> Vec<Form> {
    use Offsets::{Fixed, Large, Small};
    let of = |slots, lists: &[Offsets]| Form {
        slots,
        nullable: true,
        lists: lists.to_vec(),
        ..PLAIN
    };
    let eight = Slots::Fixed { width: 8 };
    vec![
        of(eight, &[Small]),
        of(Slots::Bits, &[Large]),
        of(Slots::Text { large: false }, &[Small]),
        of(eight, &[Small, Large]),
        of(Slots::Text { large: true }, &[Large, Small]),
        of(eight, &[Fixed { size: 3 }]),
        of(Slots::Bits, &[Small, Fixed { size: 2 }]),
        of(Slots::Text { large: false }, &[Fixed { size: 2 }, Small]),
        Form {
            most: 2,
            ..of(eight, &[Small, Small, Large, Small])
        },
    ]
}

#[test]
fn rows_around_words_and_pieces() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = separate();
            let mut random = Random::new(61);
            for rows in [0, 1, 31, 32, 33] {
                let forms = flat();
                let leaves = forms
                    .iter()
                    .map(|form| Both::of(&gpu, form, rows, &mut random));
                let leaves: Vec<_> = leaves.collect();
                let mut chosen = Vec::new();
                for leaf in &leaves {
                    for choice in choices(rows, &mut random) {
                        chosen.push((leaf, choice));
                    }
                }
                compare(&gpu, &chosen, &format!("{streams}, {rows} rows"));
            }
        }
        nothing_left(&session);
    }
}

/// A piece is 8,192 bytes, 16,384 bits or 1,024 offsets.
#[test]
fn rows_of_many_pieces() {
    let session = session("eager");
    {
        let gpu = separate();
        let mut random = Random::new(62);
        let forms = [2, 5, 7, 11, 12].map(|at| flat()[at].clone());
        for rows in [1023, 1024, 1025, 2600] {
            let at = random.below(4) as usize;
            for form in [&forms[at], &forms[4], &flat()[1]] {
                let leaf = Both::of(&gpu, form, rows, &mut random);
                let chosen = choices(rows, &mut random).into_iter();
                let chosen: Vec<_> = chosen.map(|choice| (&leaf, choice)).collect();
                compare(&gpu, &chosen, &format!("{rows} rows"));
            }
        }
        let bits = Both::of(&gpu, &flat()[0], 40_000, &mut random);
        compare(&gpu, &[(&bits, vec![5..16_390, 16_391..39_999])], "bits");
    }
    nothing_left(&session);
}

#[test]
fn lists_and_strings_in_them() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = separate();
            let mut random = Random::new(63);
            for rows in [0, 1, 33, 70] {
                let forms = nested();
                let leaves = forms
                    .iter()
                    .map(|form| Both::of(&gpu, form, rows, &mut random));
                let leaves: Vec<_> = leaves.collect();
                let mut chosen = Vec::new();
                for leaf in &leaves {
                    for choice in choices(rows, &mut random) {
                        chosen.push((leaf, choice));
                    }
                }
                compare(&gpu, &chosen, &format!("{streams}, {rows} rows"));
            }
        }
        nothing_left(&session);
    }
}

#[test]
fn every_order_of_warps() {
    for order in ORDERS {
        let session = checked(order);
        {
            let gpu = separate();
            let mut random = Random::new(64);
            let forms = [flat(), nested()].concat();
            let leaves = forms.iter().step_by(2);
            let leaves = leaves.map(|form| Both::of(&gpu, form, 40, &mut random));
            let leaves: Vec<_> = leaves.collect();
            let mut chosen = Vec::new();
            for leaf in &leaves {
                chosen.push((leaf, vec![3..4, 9..30, 31..31, 38..40]));
            }
            compare(&gpu, &chosen, order);
        }
        nothing_left(&session);
    }
}

#[test]
fn dictionaries_stay() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut random = Random::new(65);
        let entries = Both::of(&gpu, &flat()[13], 9, &mut random).there.values;
        let mut indices = Both::of(&gpu, &PLAIN, 50, &mut random);
        indices.there.values.dictionary = Some(Box::new(entries.clone()));
        let made = gpu.select(&[indices.selection(&[7..9])]).unwrap();
        let kept = made[0].values.dictionary.as_ref().unwrap();
        assert_eq!((kept.rows, kept.values.ptr()), (9, entries.values.ptr()));
        assert_eq!((made[0].values.rows, made[0].values.values.len()), (2, 8));
        assert!(gpu.select(&[]).unwrap().is_empty());
    }
    nothing_left(&session);
}

/// What is not there is refused before anything is queued.
#[test]
fn rows_and_buffers_that_are_not_there() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut random = Random::new(66);
        let leaf = Both::of(&gpu, &nested()[2], 20, &mut random);
        let right = leaf.selection(&[1..2, 2..9, 20..20]);
        gpu.select(std::slice::from_ref(&right)).unwrap();
        let refused = |change: &dyn Fn(&mut Selection)| {
            let mut wrong = right.clone();
            change(&mut wrong);
            let error = gpu.select(&[right.clone(), wrong]).unwrap_err();
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::InvalidOption { .. }), "{error}");
        };
        let cut = |bytes: &mut DeviceBytes, by: usize| *bytes = bytes.slice(by..);
        refused(&|wrong| wrong.rows.push(20..21));
        refused(&|wrong| wrong.rows.push(19..20));
        refused(&|wrong| wrong.rows = vec![5..7, 6..8]);
        #[expect(clippy::reversed_empty_ranges)]
        refused(&|wrong| wrong.rows = vec![5..4]);
        refused(&|wrong| wrong.slots = Slots::Bits);
        refused(&|wrong| wrong.slots = Slots::Fixed { width: 0 });
        refused(&|wrong| wrong.slots = Slots::Text { large: true });
        refused(&|wrong| wrong.lists[0].offsets = Offsets::None);
        refused(&|wrong| wrong.lists[0].offsets = Offsets::Large);
        refused(&|wrong| wrong.lists[0].offsets = Offsets::Fixed { size: 9 });
        refused(&|wrong| wrong.valid[0].depth = 2);
        refused(&|wrong| wrong.valid.clear());
        refused(&|wrong| wrong.leaf.slots[0] = 21);
        refused(&|wrong| wrong.leaf.slots[0] = u64::MAX);
        refused(&|wrong| wrong.leaf.values.rows += 1);
        refused(&|wrong| cut(wrong.leaf.offsets[0].as_mut().unwrap(), 4));
        refused(&|wrong| cut(wrong.leaf.values.offsets.as_mut().unwrap(), 1));
        refused(&|wrong| cut(wrong.leaf.values.validity.as_mut().unwrap(), 4));
        refused(&|wrong| cut(&mut wrong.leaf.valid[0].0, 4));
    }
    nothing_left(&session);
}

/// Offsets that go back, or past the items: nothing outside of the buffers is looked at.
#[test]
fn offsets_that_are_not_right() {
    let session = checked("shuffled:5");
    {
        let gpu = separate();
        let mut random = Random::new(67);
        for _ in 0..20 {
            let mut leaf = Both::of(&gpu, &nested()[2], 30, &mut random);
            let there = leaf.there.offsets[0].as_mut().unwrap();
            let mut bytes = gpu.to_host(there).unwrap();
            for _ in 0..3 {
                let at = random.below(31) as usize * 4;
                bytes[at..at + 4]
                    .copy_from_slice(&(random.next() as u32 >> random.below(32)).to_le_bytes());
            }
            *there = put(&gpu, &bytes, 0);
            let made = gpu
                .select(&[leaf.selection(&[0..3, 7..20, 29..30])])
                .unwrap();
            assert_eq!(made[0].slots[0], 17);
        }
    }
    nothing_left(&session);
}

/// Pages that an index chose have the rows that it says, and begin with one.
#[test]
fn rows_that_an_index_tells_of_nested_pages() {
    let session = session("eager");
    {
        let gpu = separate();
        let mut random = Random::new(68);
        let (mut done, mut begin) = (0, 0);
        for round in 0..12 {
            let mut written = Written::default();
            let shape = Shape {
                v1: round % 3 > 0,
                ..Shape::PLAIN
            };
            written.leaf(
                &Nest::lists(1 + round % 2),
                shape,
                &[30, 5, 1, 40],
                &mut random,
            );
            let leaves = &mut written.leaves;
            leaves[0].levels.page_rows = Some(vec![0; 4]);
            let bytes = &written.arena.bytes;
            let there = put(&gpu, bytes, 0);
            let agree = |leaves: &[Nested]| {
                let (_, found) = gpu.nested(&there, &[], leaves, u64::MAX).unwrap();
                let wanted = nested_reference::nested(bytes, leaves);
                match (&found[0], &wanted[0]) {
                    (NestedOutcome::Done(leaf), HostLeaf::Done { slots, .. }) => {
                        assert_eq!(leaf.slots, *slots);
                        None
                    }
                    (
                        NestedOutcome::Fault { page, check },
                        HostLeaf::Fault {
                            page: wanted_page,
                            check: wanted_check,
                        },
                    ) => {
                        assert_eq!((page, check), (wanted_page, wanted_check));
                        Some((*page, *check))
                    }
                    (found, wanted) => panic!("{found:?}, not {wanted:?}"),
                }
            };
            // As many as the pages turn out to have.
            let told = (0..100).find_map(|_| {
                let fault = match nested_reference::nested(bytes, leaves).remove(0) {
                    HostLeaf::Fault {
                        page,
                        check: check::ROWS,
                    } => page as usize,
                    _ => return leaves[0].levels.page_rows.clone(),
                };
                leaves[0].levels.page_rows.as_mut().unwrap()[fault] += 1;
                None
            });
            let told = told.unwrap();
            match agree(leaves) {
                None => done += 1,
                Some((_, check::BEGIN)) => begin += 1,
                other => panic!("{other:?}"),
            }
            for page in 0..4 {
                let mut other = told.clone();
                other[page] += 1;
                leaves[0].levels.page_rows = Some(other);
                assert_eq!(agree(leaves), Some((page as u32, check::ROWS)));
            }
            leaves[0].levels.page_rows = Some(told[1..].to_vec());
            assert_eq!(agree(leaves), Some((0, check::SHAPE)));
        }
        assert!(done > 3 && begin > 3, "{done} {begin}");
    }
    nothing_left(&session);
}
