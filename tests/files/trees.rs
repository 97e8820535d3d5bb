//! Random trees beside a plain loop.

use std::fs;
use std::path::PathBuf;

use feedwater::{FilesWay, read_files};
use proptest::prelude::*;

use super::support::*;

#[derive(Clone, Debug)]
enum Node {
    File(usize),
    Directory,
    Nothing,
    Loop,
    LinkToFirst,
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        6 => (0usize..20_000).prop_map(Node::File),
        2 => (0usize..200_000).prop_map(Node::File),
        1 => Just(Node::File(0)),
        1 => Just(Node::Directory),
        1 => Just(Node::Nothing),
        1 => Just(Node::Loop),
        1 => Just(Node::LinkToFirst),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn as_a_plain_loop_reads_them(
        nodes in proptest::collection::vec(node(), 1..80),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 1..200),
        in_order in any::<bool>(),
        apart in any::<bool>(),
        window_files in 1usize..40,
        window_bytes in prop_oneof![Just(1u64), 1u64..300_000, Just(1 << 30)],
        way in prop_oneof![Just(None), Just(Some(FilesWay::Spot)), Just(Some(FilesWay::Threads))],
        in_task in any::<bool>(),
        cold in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut paths: Vec<PathBuf> = Vec::new();
        for (i, node) in nodes.iter().enumerate() {
            let below = dir.path().join(format!("{}", i % 4));
            fs::create_dir_all(&below).unwrap();
            let path = below.join(format!("{i}"));
            match node {
                Node::File(len) => fs::write(&path, pattern(i, *len)).unwrap(),
                Node::Directory => fs::create_dir(&path).unwrap(),
                Node::Nothing => {}
                Node::Loop => std::os::unix::fs::symlink(&path, &path).unwrap(),
                Node::LinkToFirst => {
                    let first = paths.first().cloned().unwrap_or_default();
                    // A link to nothing can be made all the same, but not one without a target.
                    if !first.as_os_str().is_empty() {
                        std::os::unix::fs::symlink(first, &path).unwrap();
                    }
                }
            }
            paths.push(path);
        }
        // The same path may come several times.
        let asked: Vec<PathBuf> = order.iter().map(|at| at.get(&paths).clone()).collect();
        let expected: Vec<_> = asked.iter().map(fs::read).collect();
        if cold {
            let files: Vec<_> = paths
                .iter()
                .filter(|path| path.is_file())
                .map(|path| (path.clone(), Vec::new()))
                .collect();
            evict(&files);
        }
        let mut many = read_files(&asked)
            .window_files(window_files.try_into().unwrap())
            .window_bytes(window_bytes);
        if in_order {
            many = many.in_order();
        }
        if apart {
            many = many.apart();
        }
        if let Some(way) = way {
            many = many.only(way);
        }
        let outcomes = if in_task {
            let stream = many.stream();
            collect(futures::executor::block_on(futures::StreamExt::collect::<Vec<_>>(stream)))
        } else {
            collect(many)
        };
        prop_assert_eq!(outcomes.len(), asked.len());
        for (i, expected) in expected.into_iter().enumerate() {
            let (path, result) = &outcomes[&(i as u64)];
            prop_assert_eq!(&**path, &*asked[i]);
            match (expected, result) {
                (Ok(expected), Ok(read)) => prop_assert_eq!(&read.bytes[..], &expected[..]),
                (Err(expected), Err(error)) => {
                    let raw = raw(error);
                    let is_directory = expected.raw_os_error() == Some(libc::EISDIR);
                    prop_assert!(raw == expected.raw_os_error() || (raw.is_none() && is_directory), "{}", error);
                }
                (expected, read) => prop_assert!(false, "{:?} {:?}", expected, read),
            }
        }
        prop_assert_eq!(open_below(dir.path()), 0);
    }
}
