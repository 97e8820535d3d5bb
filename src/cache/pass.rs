//! One batched pass over a directory: its children with their attributes, within caps.

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::attributes::{Attributes, NameTable};
use super::backend::Detail;
use super::clock::nanos;
use super::inner::Inner;
use super::key::{Key, Kind, stem};
use super::metadata::{CHARGE, as_path};
use super::node::{Children, Node, Origin, Value, When, weight};
use super::options::PrefetchRun;
use super::root::Root;
use super::store::Found;
use crate::files::EntryKind;

/// The clock is asked once for so many children.
const PER_LOOK: usize = 64;

/// Begins a pass over a directory that the trigger named, if its root is on. True if it has ended already.
pub(crate) fn begin(inner: &Arc<Inner>, path: &[u8], dir: u64, now: u64) -> bool {
    let Some((root, _)) = inner.root_of(path) else {
        return false;
    };
    let (may, switched_off) = root.may_begin(now);
    inner
        .metrics
        .prefetch_switched_off
        .add(u64::from(switched_off));
    // Also where the root is off: hits there need not be noted.
    inner.directories.rest(dir);
    if !may {
        return false;
    }
    match inner.prefetch.run {
        PrefetchRun::Inline => {
            run(inner, path, dir, root);
            true
        }
        PrefetchRun::Background => {
            inner.worker.push(inner, path.into(), dir);
            false
        }
    }
}

/// What the worker does for a directory.
pub(crate) fn run_queued(inner: &Inner, path: &[u8], dir: u64) {
    if let Some((root, _)) = inner.root_of(path) {
        let root = root.clone();
        run(inner, path, dir, &root);
    }
}

fn run(inner: &Inner, path: &[u8], dir: u64, root: &Arc<Root>) {
    let key = Key::new(Kind::CHILDREN, path);
    let now = inner.now();
    // One flight for each directory; and none if what the last one brought is still good: then those who miss ask for
    // what is not there.
    let good = |node: &Node| match &node.value {
        Value::Children(children) => !children.is_outdated() && inner.is_fresh(node, now),
        _ => false,
    };
    let Some(Found::Flight(flight)) = inner.store.join_now(&key, good) else {
        return;
    };
    inner.metrics.prefetch_passes.add(1);
    let Some(gathered) = Gathered::of(inner, path, now) else {
        root.failed();
        return;
    };
    let count = gathered.table.rows.len() as u64;
    inner.metrics.backend_entries.add(count);
    inner.metrics.prefetched.add(count);
    root.spend(count.max(1));
    let answered = inner.now();
    inner.costs.pass(count, answered.saturating_sub(now));
    let children = Children::new(
        gathered.table,
        gathered.lists,
        root.clone(),
        inner.costs.children_per_call(),
        inner.metrics.clone(),
    );
    let when = When {
        asked: now,
        answered,
    };
    let value = Value::Children(Box::new(children));
    let mut node = if inner.file_ttl == 0 {
        Node::not_kept(value, when)
    } else {
        Node::new(&key, value, 0, when, Origin::Prefetched)
    };
    node.dir = dir;
    inner.land(flight, &key, node, now);
    drop(gathered.room);
    inner.directories.rest(dir);
}

struct Gathered<'a> {
    table: NameTable<Attributes>,
    /// Whether it is a listing: complete, and without symbolic links.
    lists: bool,
    room: super::store::Room<'a>,
}

impl<'a> Gathered<'a> {
    /// What the backend tells of a directory, up to the caps; `None` if it fails, or if there is no room for a load.
    fn of(inner: &'a Inner, path: &[u8], began: u64) -> Option<Self> {
        let options = &inner.prefetch;
        let most = options.max_bytes.min(inner.store.most() / 2);
        let latest = began.saturating_add(nanos(options.max_time));
        let mut room = inner.store.room(weight(path, CHARGE))?;
        let mut table = NameTable::<Attributes>::new();
        let mut without: Vec<PathBuf> = Vec::new();
        let stem = stem(path);
        let child = |name: &[u8]| as_path(&[&stem[..], name].concat()).into_owned();
        let mut lists = true;
        // What a pass holds with one child more of this name, counted from above.
        let mut held = weight(path, 256);
        let mut complete = true;
        let result = inner.ask_list(path, Detail::Attributes, &mut |entry| {
            let count = table.rows.len() + without.len();
            let more = NameTable::<Attributes>::bytes_of(entry.name) + 1;
            let etag = entry.attributes.as_ref().map_or(0, Attributes::more_bytes);
            held = held.saturating_add((more + etag) as u64);
            let late = count % PER_LOOK == PER_LOOK - 1 && inner.now() > latest;
            if count >= options.max_entries || held > most || late {
                complete = false;
                return ControlFlow::Break(());
            }
            if held > room.bytes() && !room.grow(CHARGE.max(held - room.bytes())) {
                complete = false;
                return ControlFlow::Break(());
            }
            lists &= entry.kind != EntryKind::Symlink;
            match entry.attributes {
                Some(attributes) => complete &= table.push(entry.name, attributes),
                None => without.push(child(entry.name)),
            }
            ControlFlow::Continue(())
        });
        result.ok()?;
        if !without.is_empty() {
            let told = inner.ask_many(&without);
            complete &= told.len() == without.len();
            for (child, found) in without.iter().zip(told) {
                match (child.file_name(), found) {
                    (Some(name), Ok(attributes)) => {
                        complete &= table.push(name.as_bytes(), attributes);
                    }
                    _ => complete = false,
                }
            }
        }
        Some(Gathered {
            table,
            lists: lists && complete,
            room,
        })
    }
}
