//! Many files at once: contents, attributes, walks.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

#[path = "files/bounds.rs"]
mod bounds;
#[path = "files/kinds.rs"]
mod kinds;
#[path = "files/support.rs"]
mod support;
#[path = "files/trees.rs"]
mod trees;
#[path = "files/walks.rs"]
mod walks;
#[path = "files/ways.rs"]
mod ways;

/// Where the system offers less.
#[cfg(target_os = "linux")]
mod again {
    use super::common::confined::{
        FEW_DESCRIPTORS, NO_IO_URING, NO_IO_URING_CALLS, OLD_KERNEL, UNPRIVILEGED, again,
    };
    use super::common::file_systems::{FileSystem, again_on};

    const LEAST: usize = 28;

    #[test]
    fn without_io_uring() {
        for how in [NO_IO_URING, NO_IO_URING_CALLS] {
            again(&how, &[], LEAST);
        }
    }

    #[test]
    fn old_kernel() {
        again(&OLD_KERNEL, &[], LEAST);
    }

    #[test]
    fn unprivileged() {
        again(&UNPRIVILEGED, &[], LEAST);
    }

    #[test]
    fn with_64_descriptors() {
        again(&FEW_DESCRIPTORS, &[], LEAST);
    }

    #[test]
    fn looking_needs_no_descriptor() {
        let inside = [
            "--exact",
            "--ignored",
            "bounds::looking_needs_no_descriptor_alone",
        ];
        again(&FEW_DESCRIPTORS, &inside, 1);
    }

    #[test]
    fn on_other_file_systems() {
        for on in [
            FileSystem::Tmpfs,
            FileSystem::Overlay,
            FileSystem::Xfs,
            FileSystem::Btrfs,
            FileSystem::Fuse,
        ] {
            again_on(on, &[], LEAST);
        }
    }
}
