//! What a nested column is made of, by its Arrow type; and the column itself, of its leaves on the device.
//!
//! The Arrow type says all that levels mean: what can be null has a definition level, and so has each list. Whether that fits the leaves
//! is checked; where the `parquet` crate has more to it than the type shows, the host decodes the column.

use std::sync::Arc;

use arrow_schema::{DataType, Field};
use parquet::schema::types::ColumnDescriptor;

use super::leaf::leaf_array;
use super::shape::LeafShape;
use crate::cuda::Device;
use crate::cuda::columns::{Leaf, List, MOST_DEF, MOST_LISTS, Offsets, Valid};
use crate::decode::device::DeviceArray;

/// A top-level column that the kernels decode.
#[derive(Clone, Debug)]
pub(super) struct RootShape {
    /// Its leaves, in their order.
    pub(super) leaves: Vec<LeafShape>,
    /// What they are in; `None`: the one leaf is the column.
    pub(super) tree: Option<Node>,
}

/// Where a leaf is, as far as its levels tell.
#[derive(Clone, Debug)]
pub(super) struct LeafLevels {
    pub(super) lists: Vec<List>,
    /// Bitmaps that come of this leaf.
    pub(super) valid: Vec<Valid>,
}

/// An array of a nested column.
#[derive(Clone, Debug)]
pub(super) struct Node {
    data_type: DataType,
    /// How many lists it is in.
    depth: usize,
    /// The definition level from which on it is not null; `None`: it cannot be.
    def: Option<u32>,
    /// Its first leaf, which its offsets and its bitmap come of.
    first: usize,
    /// Which bitmap of that leaf.
    bitmap: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// With its name, and whether nothing in it may be null although it could.
    Leaf(Arc<str>, bool),
    Struct(Vec<Node>),
    /// Lists and maps, with the definition level from which on there are items.
    List(u32, Offsets, Box<Node>),
}

impl RootShape {
    /// The shape of a column that is to become `field`, of leaves that are read.
    ///
    /// # Errors
    /// Why the kernels do not decode it, in words.
    pub(super) fn of(leaves: &[&ColumnDescriptor], field: &Field) -> Result<Self, String> {
        let is_flat = |leaf: &ColumnDescriptor| {
            leaf.max_rep_level() == 0 && leaf.max_def_level() <= 1 && leaf.path().parts().len() == 1
        };
        if let [leaf] = leaves
            && is_flat(leaf)
        {
            return Ok(RootShape {
                leaves: vec![LeafShape::of(leaf, field)?],
                tree: None,
            });
        }
        let mut walk = Walk { leaves, next: 0 };
        let mut tree = walk.node(field, 0, 0, false)?;
        if walk.next != leaves.len() {
            return Err("it has more leaves than its type".into());
        }
        let mut levels = Vec::with_capacity(leaves.len());
        tree.levels(&mut Vec::new(), Vec::new(), &mut levels);
        let mut shapes = Vec::with_capacity(leaves.len());
        for ((leaf, levels), data_type) in leaves.iter().zip(levels).zip(tree.leaf_types()) {
            let shape = LeafShape::nested(leaf, data_type, levels);
            shapes.push(shape.map_err(|why| format!("of {}: {why}", leaf.path().string()))?);
        }
        Ok(RootShape {
            leaves: shapes,
            tree: Some(tree),
        })
    }

    /// The array of the column, of its leaves.
    ///
    /// # Errors
    /// Why it is none, in words: leaves that do not agree, or null keys of maps.
    pub(super) fn array(&self, gpu: &Arc<Device>, leaves: &[Leaf]) -> Result<DeviceArray, String> {
        match (&self.tree, self.leaves.as_slice(), leaves) {
            (Some(tree), shapes, leaves) => tree.array(gpu, shapes, leaves),
            (None, [shape], [leaf]) => Ok(leaf_array(gpu, shape, leaf.values.clone())),
            _ => Err("a leaf is missing".into()),
        }
    }
}

/// The way through the leaves of a column.
struct Walk<'a> {
    leaves: &'a [&'a ColumnDescriptor],
    next: usize,
}

impl Walk<'_> {
    /// The array of `field`, in so many lists, and with this definition level around it. `of_map`: it is the entries of a map, or the keys.
    fn node(
        &mut self,
        field: &Field,
        depth: usize,
        def: u32,
        of_map: bool,
    ) -> Result<Node, String> {
        let data_type = field.data_type();
        let first = self.next;
        let (mut def, mut own) = (def, None);
        if field.is_nullable() {
            def += 1;
            own = Some(def);
        }
        if depth > MOST_LISTS || def > MOST_DEF {
            return Err(format!("more than {MOST_LISTS} lists in each other"));
        }
        let mut list = |item: &Field, offsets, of_map| {
            let child = self.node(item, depth + 1, def + 1, of_map)?;
            Ok::<_, String>(Kind::List(def + 1, offsets, Box::new(child)))
        };
        let kind = match data_type {
            DataType::List(item) => list(item, Offsets::Small, false)?,
            DataType::LargeList(item) => list(item, Offsets::Large, false)?,
            DataType::FixedSizeList(item, size) => match u32::try_from(*size) {
                Ok(size @ 1..) => list(item, Offsets::Fixed { size }, false)?,
                _ => return Err("its lists have no items".into()),
            },
            DataType::Map(entries, _) => list(entries, Offsets::Small, true)?,
            DataType::Struct(fields) => {
                let mut children = Vec::with_capacity(fields.len());
                for (number, field) in fields.iter().enumerate() {
                    children.push(self.node(field, depth, def, of_map && number == 0)?);
                }
                if children.is_empty() {
                    return Err("a struct without fields".into());
                }
                Kind::Struct(children)
            }
            _ => {
                let leaf = self.leaves.get(self.next);
                let leaf = leaf.ok_or("its type has more leaves than it")?;
                self.next += 1;
                let level = |level: i16| u32::try_from(level).unwrap_or(u32::MAX);
                let max_def = level(leaf.max_def_level());
                // Some writers have keys of maps that could be null; Arrow has not.
                let is_odd = of_map && max_def == def + 1 && leaf.self_type().is_optional();
                if is_odd {
                    def += 1;
                    own = Some(def);
                }
                if max_def != def || level(leaf.max_rep_level()) as usize != depth {
                    return Err("its levels are not those of its type".into());
                }
                Kind::Leaf(leaf.path().string().into(), is_odd)
            }
        };
        Ok(Node {
            data_type: data_type.clone(),
            depth,
            def: own,
            first,
            bitmap: 0,
            kind,
        })
    }
}

impl Node {
    /// Says of each leaf below what it is in, and where the bitmap of each array will be. `lists` and `valid` are of what is around.
    fn levels(&mut self, lists: &mut Vec<List>, mut valid: Vec<Valid>, out: &mut Vec<LeafLevels>) {
        match &mut self.kind {
            Kind::Leaf(..) => {
                out.push(LeafLevels {
                    lists: lists.clone(),
                    valid,
                });
                return;
            }
            Kind::Struct(_) | Kind::List(..) => {
                self.bitmap = valid.len();
                if let Some(def) = self.def {
                    let depth = self.depth as u32;
                    valid.push(Valid { depth, def });
                }
            }
        }
        match &mut self.kind {
            Kind::List(full, offsets, child) => {
                let (full, offsets) = (*full, *offsets);
                lists.push(List { full, offsets });
                child.levels(lists, valid, out);
                lists.pop();
            }
            Kind::Struct(children) => {
                let mut children = children.iter_mut();
                if let Some(first) = children.next() {
                    first.levels(lists, valid, out);
                }
                // What is around comes of the first one; the others only have to agree on it.
                let mut others: Vec<List> = lists.clone();
                for list in &mut others {
                    if matches!(list.offsets, Offsets::Small | Offsets::Large) {
                        list.offsets = Offsets::None;
                    }
                }
                for child in children {
                    child.levels(&mut others, Vec::new(), out);
                }
            }
            Kind::Leaf(..) => {}
        }
    }

    /// The types of the leaves.
    fn leaf_types(&self) -> Vec<&DataType> {
        match &self.kind {
            Kind::Leaf(..) => vec![&self.data_type],
            Kind::List(_, _, child) => child.leaf_types(),
            Kind::Struct(children) => children.iter().flat_map(Node::leaf_types).collect(),
        }
    }

    /// As [`RootShape::array`].
    fn array(
        &self,
        gpu: &Arc<Device>,
        shapes: &[LeafShape],
        leaves: &[Leaf],
    ) -> Result<DeviceArray, String> {
        let missing = || "a leaf is missing".to_owned();
        let leaf = leaves.get(self.first).ok_or_else(missing)?;
        let len = leaf.slots.get(self.depth).copied().unwrap_or(0);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let (buffers, children) = match &self.kind {
            Kind::Leaf(path, is_odd) => {
                let shape = shapes.get(self.first).ok_or_else(missing)?;
                let mut values = leaf.values.clone();
                if self.def.is_none() {
                    // Where it has no value, what is around it is null.
                    (values.validity, values.nulls) = (None, 0);
                }
                if *is_odd && values.nulls > 0 {
                    return Err(format!("of {path}: a key of a map is null"));
                }
                return Ok(leaf_array(gpu, shape, values));
            }
            Kind::List(_, offsets, child) => {
                let offsets = match offsets {
                    Offsets::Fixed { .. } => Vec::new(),
                    _ => {
                        let own = leaf.offsets.get(self.depth).cloned().flatten();
                        vec![own.ok_or_else(missing)?]
                    }
                };
                (offsets, vec![child.array(gpu, shapes, leaves)?])
            }
            Kind::Struct(children) => {
                let of = |child: &Node| child.array(gpu, shapes, leaves);
                let children = children.iter().map(of).collect::<Result<Vec<_>, _>>()?;
                if children.iter().any(|child| child.len() != len) {
                    return Err("its leaves do not agree on their lists".into());
                }
                (Vec::new(), children)
            }
        };
        let array = DeviceArray::new(gpu, self.data_type.clone(), len, buffers, children);
        let Some((bits, nulls)) = leaf.valid.get(self.bitmap).filter(|_| self.def.is_some()) else {
            return Ok(array);
        };
        let nulls = usize::try_from(*nulls).unwrap_or(usize::MAX);
        Ok(array.nulls(Some(bits.clone()), nulls))
    }
}
