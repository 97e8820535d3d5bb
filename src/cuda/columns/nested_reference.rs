//! What the kernels do with nested leaves, one entry after the other, on bytes of the host: lists and structs are put together item by
//! item, as one would read the levels aloud.

use std::ops::Range;

use super::reference::{HostOutcome, Words, bitmap, made, runs, values};
use super::{Nested, Offsets, Page, check};

/// What came of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostLeaf {
    /// All of it.
    Done {
        /// The values of the slots, as those of a flat column's rows.
        values: HostOutcome,
        /// Slots of each depth.
        slots: Vec<u64>,
        /// Offsets, of lists that they are wanted of.
        offsets: Vec<Option<Vec<u64>>>,
        /// The bitmaps that are wanted, and how many bits are zero.
        valid: Vec<(Vec<u8>, u64)>,
    },
    /// Where something is wrong first, and what.
    Fault {
        /// The page.
        page: u32,
        /// One of [`check`].
        check: u32,
    },
}

/// Decodes leaves.
pub fn nested(arena: &[u8], leaves: &[Nested]) -> Vec<HostLeaf> {
    leaves
        .iter()
        .map(|one| match leaf(arena, one) {
            Ok(done) => done,
            Err((page, check)) => HostLeaf::Fault { page, check },
        })
        .collect()
}

/// An entry: its page, whether it is the first there, and its levels.
struct Entry {
    page: u32,
    first: bool,
    rep: usize,
    def: u32,
}

/// What is on a depth: for each slot the definition level that made it, or `None` in a fixed-size list that is null.
type Depth = Vec<Option<u32>>;

fn leaf(arena: &[u8], nested: &Nested) -> Result<HostLeaf, (u32, u32)> {
    nested.shape(arena.len() as u64)?;
    let (leaf, levels) = (&nested.leaf, &nested.levels);
    let part = |range: &Range<u64>| &arena[range.start as usize..range.end as usize];
    let mut entries = Vec::new();
    let mut sections = Vec::new();
    for (number, page) in leaf.pages.iter().enumerate() {
        let body = part(&page.body);
        let at = |check| (number as u32, check);
        let (reps, defs, section) = sections_of(body, nested, number, page).map_err(at)?;
        let before = entries.len();
        for (index, (rep, def)) in reps.into_iter().zip(defs).enumerate() {
            let entry = Entry {
                page: number as u32,
                first: index == 0 && (!page.v1 || levels.page_rows.is_some() || before == 0),
                rep: rep as usize,
                def: def as u32,
            };
            if !is_possible(nested, &entry) {
                return Err(at(check::LEVEL));
            }
            entries.push(entry);
        }
        let own = entries.get(before..).unwrap_or_default();
        let count = own.iter().filter(|entry| entry.def == levels.max_def);
        let nulls = (own.len() - count.count()) as u64;
        if page.nulls.is_some_and(|told| told != nulls) {
            return Err(at(check::NULLS));
        }
        let rows = own.iter().filter(|entry| entry.rep == 0).count() as u64;
        let told = levels.page_rows.as_ref();
        if told.is_some_and(|told| told.get(number) != Some(&rows)) {
            return Err(at(check::ROWS));
        }
        sections.push(section);
    }
    let lists = levels.lists.len();
    let pad = lists.checked_sub(1).map_or(0, |at| size_of(nested, at));
    // How many there are comes before what they are.
    let full = |depth: usize| depth.checked_sub(1).map_or(0, |at| levels.lists[at].full);
    let mut counts = vec![0u64; lists + 1];
    let mut of_pages = vec![0u64; leaf.pages.len()];
    for entry in &entries {
        for (depth, count) in counts.iter_mut().enumerate() {
            let own = match entry.rep <= depth && entry.def >= full(depth) {
                true => 1,
                false if depth == lists && is_absent(nested, entry) => pad,
                false => 0,
            };
            *count += own;
            if depth == lists {
                of_pages[entry.page as usize] += own;
            }
        }
    }
    if counts[0] != levels.rows {
        return Err((0, check::ROWS));
    }
    let small = |(list, count): (&super::List, &u64)| {
        list.offsets == Offsets::Small && *count > i32::MAX as u64
    };
    let most = i32::MAX as u64;
    if counts[lists] > levels.most
        || of_pages.iter().any(|slots| *slots > most)
        || levels.lists.iter().zip(&counts[1..]).any(small)
    {
        return Err((0, check::SLOTS));
    }
    // Now, item by item.
    let mut depths: Vec<Depth> = vec![Vec::new(); lists + 1];
    let mut offsets: Vec<Vec<u64>> = vec![Vec::new(); lists];
    let mut faults = Vec::new();
    let mut before: Option<&Entry> = None;
    for entry in &entries {
        if entry.rep > 0 {
            if entry.first {
                faults.push((entry.page, check::BEGIN));
            } else if before.is_none_or(|before| before.def < full(entry.rep)) {
                faults.push((entry.page, check::CONTINUED));
            }
        }
        before = Some(entry);
        // The outermost list that it is an item of goes on; what is in that item begins.
        for depth in entry.rep..=lists {
            if entry.def < full(depth) {
                if depth == lists && is_absent(nested, entry) {
                    let items = depths[depth].len() + pad as usize;
                    depths[depth].resize(items, None);
                }
                break;
            }
            depths[depth].push(Some(entry.def));
            if let (Some(begins), Some(items)) = (offsets.get_mut(depth), depths.get(depth + 1)) {
                begins.push(items.len() as u64);
                let wanted = (begins.len() as u64 - 1).checked_mul(size_of(nested, depth));
                if is_fixed(nested, depth) && begins.last().copied() != wanted {
                    faults.push((entry.page, check::FIXED_SIZE));
                }
            }
        }
    }
    for (depth, begins) in offsets.iter_mut().enumerate() {
        let end = depths[depth + 1].len() as u64;
        let wanted = (begins.len() as u64).checked_mul(size_of(nested, depth));
        if is_fixed(nested, depth) && wanted != Some(end) {
            let last = entries.last().map_or(0, |entry| entry.page);
            faults.push((last, check::FIXED_SIZE));
        }
        begins.push(end);
    }
    if let Some(first) = faults.into_iter().min() {
        return Err(first);
    }
    // The values, page by page.
    let words = Words::of(&part, leaf)?;
    let mut found = Vec::new();
    for (number, (page, section)) in leaf.pages.iter().zip(&sections).enumerate() {
        let own = entries.iter().filter(|entry| entry.page == number as u32);
        let count = own.filter(|entry| entry.def == levels.max_def).count();
        let section = &part(&page.body)[*section..];
        let encoding = (page.encoding, of_pages[number]);
        let of_page = values(section, count, &words.entries, leaf, encoding);
        found.extend(of_page.map_err(|check| (number as u32, check))?);
    }
    let mut found = found.into_iter();
    let is_value = |slot: &Option<u32>| *slot == Some(levels.max_def);
    let rows: Vec<Option<Vec<u8>>> = depths[lists]
        .iter()
        .map(|slot| is_value(slot).then(|| found.next()).flatten())
        .collect();
    let values = made(leaf, &words.words, &rows, of_pages.into_iter())?;
    let valid = levels.valid.iter().map(|valid| {
        let is_valid = |slot: &Option<u32>| slot.is_some_and(|def| def >= valid.def);
        let bits: Vec<bool> = depths[valid.depth as usize].iter().map(is_valid).collect();
        let nulls = bits.iter().filter(|bit| !**bit).count() as u64;
        (bitmap(&bits), nulls)
    });
    let offsets = offsets.into_iter().zip(&levels.lists);
    let wanted = |list: &super::List| matches!(list.offsets, Offsets::Small | Offsets::Large);
    Ok(HostLeaf::Done {
        values,
        slots: counts,
        valid: valid.collect(),
        offsets: offsets
            .map(|(offsets, list)| wanted(list).then_some(offsets))
            .collect(),
    })
}

/// Repetition levels, definition levels, and where the values begin.
fn sections_of(
    body: &[u8],
    nested: &Nested,
    number: usize,
    page: &Page,
) -> Result<(Vec<u64>, Vec<u64>, usize), u32> {
    let entries = page.entries as usize;
    let outside = check::LEVELS_LENGTH;
    let has_lists = !nested.levels.lists.is_empty();
    let with_length = |bytes: &mut usize| {
        let len = body.get(*bytes..*bytes + 4).ok_or(outside)?;
        let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize;
        let stream = body.get(*bytes + 4..).and_then(|rest| rest.get(..len));
        *bytes += 4 + len;
        stream.ok_or(outside)
    };
    let (reps, defs, section) = match page.v1 {
        true => {
            let mut at = 0;
            let reps = match has_lists {
                true => with_length(&mut at)?,
                false => &[],
            };
            let defs = with_length(&mut at)?;
            (reps, defs, at)
        }
        false => {
            let repetition = nested.levels.repetition[number] as usize;
            let (reps, rest) = body.split_at_checked(repetition).ok_or(outside)?;
            let (defs, _) = rest
                .split_at_checked(page.def_len as usize)
                .ok_or(outside)?;
            (reps, defs, repetition + page.def_len as usize)
        }
    };
    let width = |most: u32| u32::BITS - most.leading_zeros();
    let reps = match has_lists {
        true => {
            let bits = width(nested.levels.lists.len() as u32);
            let (levels, rest) = runs(reps, bits, entries).map_err(|why| check::REPEATS | why)?;
            if !rest.is_empty() {
                return Err(check::REPEATS_REST);
            }
            levels
        }
        false => vec![0; entries],
    };
    let bits = width(nested.levels.max_def);
    let (defs, _) = runs(defs, bits, entries).map_err(|why| check::LEVELS | why)?;
    Ok((reps, defs, section))
}

/// Whether an entry can be, looked at alone.
fn is_possible(nested: &Nested, entry: &Entry) -> bool {
    let lists = &nested.levels.lists;
    if entry.rep > lists.len() || entry.def > nested.levels.max_def {
        return false;
    }
    if entry.rep > 0 && entry.def < lists[entry.rep - 1].full {
        return false;
    }
    // The first list that it has no item of is the one that is empty or null.
    let missing = lists.iter().position(|list| entry.def < list.full);
    match missing {
        Some(at) if is_fixed(nested, at) => is_absent(nested, entry),
        _ => true,
    }
}

/// Whether it is a fixed-size list of the deepest depth that is null.
fn is_absent(nested: &Nested, entry: &Entry) -> bool {
    let lists = &nested.levels.lists;
    let missing = lists.iter().position(|list| entry.def < list.full);
    let Some(at) = missing.filter(|at| at + 1 == lists.len()) else {
        return false;
    };
    is_fixed(nested, at) && entry.def + 1 < lists[at].full
}

fn is_fixed(nested: &Nested, list: usize) -> bool {
    matches!(nested.levels.lists[list].offsets, Offsets::Fixed { .. })
}

fn size_of(nested: &Nested, list: usize) -> u64 {
    match nested.levels.lists[list].offsets {
        Offsets::Fixed { size } => size.into(),
        _ => 0,
    }
}
