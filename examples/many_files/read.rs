//! What a program of yours would do.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use feedwater::{EntryKind, read_files, walk};

use crate::args::Args;
use crate::measure::Done;

/// The regular files below a directory. What cannot be listed is told to `complain`.
pub(crate) fn files_below<'a>(
    dir: &Path,
    mut complain: impl FnMut(&feedwater::Error) + 'a,
) -> impl Iterator<Item = Arc<Path>> + 'a {
    let entries = walk(dir).into_iter();
    entries.filter_map(move |entry| match entry.result {
        Ok(found) => (found.kind == EntryKind::File).then_some(entry.path),
        Err(error) => {
            complain(&error);
            None
        }
    })
}

/// Reads all of them, and names those that cannot be read on stderr.
pub(crate) fn read<P: AsRef<Path>>(args: &Args, paths: impl IntoIterator<Item = P>) -> Done {
    let mut many = read_files(paths);
    if args.in_order {
        many = many.in_order();
    }
    if let Some(way) = args.only {
        many = many.only(way);
    }
    let mut done = Done::default();
    let mut all = many.into_iter();
    for file in &mut all {
        if let (Err(error), false) = (&file.result, args.compare) {
            let _ = writeln!(io::stderr(), "many_files: {error}");
        }
        done.add(file.result.ok().map(|content| content.bytes.len()));
    }
    done.engine = all.report().way().map(|way| way.name().to_owned());
    done
}
