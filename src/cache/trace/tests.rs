use std::collections::HashSet;

use super::*;
use crate::cache::key::depth_below;

fn small(kind: TraceKind, seed: u64) -> Trace {
    let options = TraceOptions::new().seed(seed).entries(3000).accesses(9000);
    Trace::new(kind, &options)
}

#[test]
fn a_seed_gives_one_trace_and_another_seed_another() {
    for kind in TraceKind::ALL {
        assert_eq!(TraceKind::named(kind.name()), Some(kind));
        let trace = small(kind, 1);
        assert_eq!(trace.operations(), small(kind, 1).operations(), "{kind:?}");
        let other = small(kind, 2);
        let walks = matches!(kind, TraceKind::RecursiveListing);
        assert_eq!(trace.operations() == other.operations(), walks, "{kind:?}");
    }
}

#[test]
fn every_operation_names_what_the_tree_has() {
    for kind in TraceKind::ALL {
        let trace = small(kind, 7);
        let tree = trace.tree();
        assert!(
            (2500..=3600).contains(&tree.files()),
            "{kind:?} {}",
            tree.files()
        );
        let mut path = String::new();
        let mut stats = 0u64;
        for operation in trace.operations() {
            match *operation {
                Operation::Stat(file) => {
                    tree.file_path(file, &mut path);
                    let attributes = tree.attributes(&path).unwrap_or_else(|| panic!("{path}"));
                    assert!(attributes.size() > 0);
                    stats += 1;
                }
                Operation::List(dir) => assert!(tree.list(tree.dir_path(dir), |_, _| true)),
                Operation::Idle(time) => assert!(!time.is_zero()),
            }
        }
        let wanted = match kind {
            TraceKind::ScanOnce => tree.files(),
            _ => 9000,
        };
        assert_eq!(stats, wanted, "{kind:?}");
    }
}

#[test]
fn the_smallest_trees_have_traces_too() {
    for kind in TraceKind::ALL {
        for (entries, accesses) in [(1, 0), (1, 40), (3, 40), (5, 40)] {
            let options = TraceOptions::new().entries(entries).accesses(accesses);
            let trace = Trace::new(kind, &options);
            let stats = trace.operations().iter();
            let stats = stats.filter(|operation| matches!(operation, Operation::Stat(_)));
            let count = stats.count() as u64;
            assert!(
                count <= accesses && (count > 0) == (accesses > 0),
                "{kind:?}"
            );
        }
    }
}

#[test]
fn listings_and_attributes_agree() {
    let trace = small(TraceKind::HivePartitions, 3);
    let tree = trace.tree();
    let mut all = 1;
    for dir in tree.dirs() {
        let dir = tree.dir_path(dir).to_owned();
        tree.list(&dir, |name, attributes| {
            assert_eq!(tree.attributes(&format!("{dir}/{name}")), Some(attributes));
            all += 1;
            true
        });
    }
    assert_eq!(all, tree.entries());
    assert_eq!(tree.attributes("/data/nothing"), None);
    assert!(!tree.list("/data/nothing", |_, _| true));
}

#[test]
fn images_lie_four_names_deep_and_a_scan_has_each_once() {
    let trace = small(TraceKind::ScanOnce, 1);
    let mut seen = HashSet::new();
    let mut path = String::new();
    for operation in trace.operations() {
        let Operation::Stat(file) = *operation else {
            panic!("{operation:?}");
        };
        trace.tree().file_path(file, &mut path);
        assert_eq!(depth_below(b"/data", path.as_bytes()), Some(4), "{path}");
        assert!(seen.insert(file));
    }
}

#[test]
fn a_flat_prefix_of_a_million_names_takes_no_memory_for_them() {
    let trace = Trace::new(TraceKind::FlatPrefix, &TraceOptions::new().accesses(1000));
    assert_eq!(trace.tree().files(), 1_000_000);
    let mut different = HashSet::new();
    different.extend(trace.operations().iter().map(|op| format!("{op:?}")));
    assert!(
        (300..1000).contains(&different.len()),
        "{}",
        different.len()
    );
}
