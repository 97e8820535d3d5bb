//! Nested leaves for tests of kernels: levels by chance, in pages that are cut anywhere.

use feedwater::cuda::columns::{Column, Encoding, Levels, List, Nested, Offsets, Page, Valid};

use crate::pages::*;
use crate::words::{Kind, column};

/// Repetition and definition levels of a page.
pub(crate) type Pairs = (Vec<u32>, Vec<u32>);

/// A step on the way to a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It can be null: the list or the struct that comes next, or the value.
    Optional,
    /// A list of any length.
    List,
    /// One of so many items.
    Fixed(u32),
}

/// What a leaf is in, and how often there is something.
#[derive(Clone, Debug)]
pub(crate) struct Nest {
    pub(crate) steps: Vec<Step>,
    pub(crate) lists: Vec<List>,
    pub(crate) valid: Vec<Valid>,
    pub(crate) max_def: u32,
    /// Whether a slot can be without a value.
    pub(crate) nullable: bool,
    /// Of 256: how often it is not null.
    pub(crate) there: u64,
    /// Of 256: how often a list goes on.
    pub(crate) more: u64,
}

impl Nest {
    pub(crate) fn of(steps: &[Step]) -> Self {
        let (mut def, mut full, mut lists, mut valid) = (0, 0, Vec::new(), Vec::new());
        let mut nullable = false;
        for (at, step) in steps.iter().enumerate() {
            def += 1;
            let depth = lists.len() as u32;
            let offsets = match step {
                Step::Optional => {
                    nullable = true;
                    // The value's own bitmap is always made.
                    if at + 1 < steps.len() {
                        valid.push(Valid { depth, def });
                    }
                    continue;
                }
                Step::List if lists.len() % 2 == 0 => Offsets::Small,
                Step::List => Offsets::Large,
                Step::Fixed(size) => Offsets::Fixed { size: *size },
            };
            // A fixed-size list that is null has slots of nothing.
            nullable = matches!(step, Step::Fixed(_)) && def > full + 1;
            full = def;
            lists.push(List { full, offsets });
        }
        Nest {
            steps: steps.to_vec(),
            lists,
            valid,
            max_def: def,
            nullable,
            there: 200,
            more: 140,
        }
    }

    /// A list that can be null, of values that can.
    pub(crate) fn list() -> Self {
        Nest::lists(1)
    }

    /// Lists in lists that can be null, of values that can.
    pub(crate) fn lists(count: usize) -> Self {
        let mut steps = [Step::Optional, Step::List].repeat(count);
        steps.push(Step::Optional);
        Nest::of(&steps)
    }

    /// Fixed-size lists of values that can be null.
    pub(crate) fn fixed(size: u32) -> Self {
        Nest::of(&[Step::Optional, Step::Fixed(size), Step::Optional])
    }

    /// Levels of at least so many entries, whole rows.
    fn levels(&self, entries: usize, random: &mut Random) -> (Vec<u32>, Vec<u32>) {
        let mut levels = (Vec::new(), Vec::new());
        while levels.0.len() < entries {
            self.item(&self.steps, 0, 0, 0, random, &mut levels);
        }
        levels
    }

    /// Levels for pages of about these many entries.
    fn pages(&self, pages: &[usize], v1: bool, random: &mut Random) -> Vec<Pairs> {
        let (reps, defs) = self.levels(pages.iter().sum(), random);
        let mut all = Vec::new();
        let mut at = 0;
        for (number, len) in pages.iter().enumerate() {
            let mut end = (at + len).min(reps.len());
            if number + 1 == pages.len() {
                end = reps.len();
            }
            if !v1 {
                end += reps[end..].iter().take_while(|rep| **rep > 0).count();
            }
            all.push((reps[at..end].to_vec(), defs[at..end].to_vec()));
            at = end;
        }
        all
    }

    /// How many values each page has.
    fn values(&self, pages: &[Pairs]) -> Vec<usize> {
        let is_value = |def: &&u32| **def == self.max_def;
        pages
            .iter()
            .map(|(_, defs)| defs.iter().filter(is_value).count())
            .collect()
    }

    fn item(
        &self,
        steps: &[Step],
        rep: u32,
        def: u32,
        depth: u32,
        random: &mut Random,
        out: &mut (Vec<u32>, Vec<u32>),
    ) {
        let mut end = || {
            out.0.push(rep);
            out.1.push(def);
        };
        let Some((step, rest)) = steps.split_first() else {
            return end();
        };
        let len = match step {
            Step::Optional if random.below(256) < self.there => {
                return self.item(rest, rep, def + 1, depth, random, out);
            }
            Step::Optional => return end(),
            Step::Fixed(size) => *size,
            Step::List => {
                let mut len = 0;
                while len < 3000 && random.below(256) < self.more {
                    len += 1;
                }
                len
            }
        };
        if len == 0 {
            return end();
        }
        for item in 0..len {
            let rep = if item == 0 { rep } else { depth + 1 };
            self.item(rest, rep, def + 1, depth + 1, random, out);
        }
    }
}

/// All kinds of ways to a leaf, up to four lists.
pub(crate) fn nests() -> Vec<Nest> {
    use Step::{Fixed, List, Optional};
    [
        &[List][..],
        &[Optional, List],
        &[List, Optional],
        &[Optional, List, Optional],
        // Structs, without a list and around, between and in lists.
        &[Optional, Optional],
        &[Optional, Optional, Optional, Optional],
        &[Optional, Optional, List, Optional, Optional],
        &[List, Optional, List],
        &[Optional, List, Optional, Optional, List, Optional],
        &[List, List],
        &[List, List, List],
        &[Optional, List, List, Optional, List, Optional],
        &[List, List, List, List],
        &[
            Optional, List, Optional, List, Optional, List, Optional, List, Optional,
        ],
        &[Fixed(3)],
        &[Fixed(1), Optional],
        &[Optional, Fixed(4)],
        &[Optional, Fixed(700), Optional],
        &[Optional, Optional, Fixed(2), Optional, Optional],
        &[List, Optional, Fixed(5)],
        &[Fixed(2), Optional, List, Optional],
        &[Fixed(2), Fixed(3)],
    ]
    .iter()
    .map(|steps| Nest::of(steps))
    .collect()
}

/// Leaves whose bytes are in one arena; flat columns can be there as well.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) arena: Arena,
    pub(crate) leaves: Vec<Nested>,
}

impl Written {
    /// A leaf with pages of about these many entries: cut anywhere in version 1, before a row in version 2.
    pub(crate) fn leaf(&mut self, nest: &Nest, shape: Shape, pages: &[usize], random: &mut Random) {
        let pages = nest.pages(pages, shape.v1, random);
        self.pages(nest, shape, &pages, random);
    }

    /// The same of values of any length.
    pub(crate) fn words(&mut self, nest: &Nest, kind: Kind, pages: &[usize], random: &mut Random) {
        let pages = nest.pages(pages, kind.v1, random);
        let flat = Kind {
            nullable: false,
            ..kind
        };
        column(&mut self.arena, flat, &nest.values(&pages), random);
        self.described(nest, (kind.v1, kind.style), &pages, random);
    }

    /// A leaf of these levels.
    pub(crate) fn pages(
        &mut self,
        nest: &Nest,
        shape: Shape,
        pages: &[Pairs],
        random: &mut Random,
    ) {
        let flat = Shape {
            nullable: false,
            ..shape
        };
        self.arena.column(flat, &nest.values(pages), random);
        self.described(nest, (shape.v1, shape.style), pages, random);
    }

    /// A leaf of these levels, whose values are those of the last flat column.
    fn described(
        &mut self,
        nest: &Nest,
        (v1, style): (bool, Style),
        pages: &[Pairs],
        random: &mut Random,
    ) {
        let column = self.arena.columns.remove(self.arena.columns.len() - 1);
        let width = |most: u32| u32::BITS - most.leading_zeros();
        let rep_bits = width(nest.lists.len() as u32);
        let mut described = Vec::new();
        let mut repetition = Vec::new();
        for ((reps, defs), values) in pages.iter().zip(&column.pages) {
            // Of levels, nothing is to follow the last one.
            let reps = match nest.lists.is_empty() {
                true => Vec::new(),
                false => hybrid(reps, rep_bits, style, random),
            };
            let levels = hybrid(defs, width(nest.max_def), style, random);
            let range = values.body.start as usize..values.body.end as usize;
            let values_of = self.arena.bytes[range].to_vec();
            let mut body = Vec::new();
            for (stream, is_there) in [(&reps, !nest.lists.is_empty()), (&levels, true)] {
                if v1 && is_there {
                    body.extend_from_slice(&(stream.len() as u32).to_le_bytes());
                }
                body.extend_from_slice(stream);
            }
            body.extend(values_of);
            let nulls = defs.len() as u64 - values.entries;
            repetition.push(reps.len() as u32);
            described.push(Page {
                body: self.arena.push(&body),
                v1,
                def_len: levels.len() as u32,
                entries: defs.len() as u64,
                nulls: (!v1).then_some(nulls),
                encoding: values.encoding,
            });
        }
        let rows = pages.iter().flat_map(|(reps, _)| reps);
        let rows = rows.filter(|rep| **rep == 0).count() as u64;
        self.leaves.push(Nested {
            leaf: Column {
                nullable: nest.nullable,
                pages: described,
                ..column
            },
            levels: Levels {
                max_def: nest.max_def,
                lists: nest.lists.clone(),
                valid: nest.valid.clone(),
                repetition,
                page_rows: None,
                rows,
                most: u64::MAX,
            },
        });
    }

    /// A leaf of one page of version 1, with these streams of levels for so many entries of one row, and these values.
    pub(crate) fn streams(
        &mut self,
        nest: &Nest,
        shape: Shape,
        entries: u64,
        reps: &[u8],
        defs: &[u8],
        values: &[u8],
    ) {
        let mut body = Vec::new();
        for stream in [reps, defs] {
            body.extend_from_slice(&(stream.len() as u32).to_le_bytes());
            body.extend_from_slice(stream);
        }
        body.extend_from_slice(values);
        let page = Page {
            body: self.arena.push(&body),
            v1: true,
            def_len: 0,
            entries,
            nulls: None,
            encoding: Encoding::Plain,
        };
        self.leaves.push(Nested {
            leaf: Column {
                values: shape.values,
                nullable: nest.nullable,
                dictionary: None,
                pages: vec![page],
                convert: shape.convert,
            },
            levels: Levels {
                max_def: nest.max_def,
                lists: nest.lists.clone(),
                valid: nest.valid.clone(),
                repetition: vec![0],
                page_rows: None,
                rows: entries,
                most: u64::MAX,
            },
        });
    }
}
