//! The works of many small files: each is delivered, then dropped.

use std::path::PathBuf;

use feedwater::{EntryKind, FileContent, FileResult, ManyFiles, read_files, stat_files, walk};

use crate::{Args, Outcome};

/// `small read|in-order|parts`, the files that `small.list` names; in parts, by as many threads as there are processors.
pub(crate) fn small(args: &Args, files: &[PathBuf]) -> Outcome {
    let engine = args.engine();
    let many = read_files(files).engine(engine);
    let many = match args.words.get(1).map(String::as_str) {
        Some("read") => many,
        Some("in-order") => many.in_order(),
        Some("parts") => return in_parts(args, many),
        _ => return Err("small: read, in-order or parts".into()),
    };
    taken(args, many)
}

fn in_parts(args: &Args, many: ManyFiles<&[PathBuf], FileContent>) -> Outcome {
    let parts = std::thread::available_parallelism()?;
    let told = std::thread::scope(|scope| {
        let take = |part| scope.spawn(move || taken(args, part).map_err(|error| error.to_string()));
        let takers: Vec<_> = many.split(parts).into_iter().map(take).collect();
        takers
            .into_iter()
            .map(|taker| taker.join())
            .collect::<Vec<_>>()
    });
    let (mut bytes, mut items, mut sum) = (0, 0, 0u64);
    for one in told {
        let one = one.map_err(|_| "a taker panicked")??;
        bytes += one.0;
        items += one.1;
        sum = sum.wrapping_add(one.2);
    }
    Ok((bytes, items, sum))
}

fn taken(args: &Args, many: impl IntoIterator<Item = FileResult<FileContent>>) -> Outcome {
    let (mut bytes, mut items, mut sum) = (0, 0, 0u64);
    for file in many {
        let content = file.result?.bytes;
        bytes += content.len() as u64;
        items += 1;
        sum = sum.wrapping_add(args.sum(&content));
    }
    Ok((bytes, items, sum))
}

/// `stat known|walk`, the same files, or all in `small`.
pub(crate) fn stat(args: &Args, files: &[PathBuf]) -> Outcome {
    let engine = args.engine();
    let (mut bytes, mut items) = (0, 0);
    match args.words.get(1).map(String::as_str) {
        Some("known") => {
            for file in stat_files(files).engine(engine) {
                bytes += file.result?.version.size;
                items += 1;
            }
        }
        Some("walk") => {
            for found in walk(args.file("small")).stat().engine(engine) {
                let entry = found.result?;
                if let Some(attributes) = entry.attributes.filter(|_| entry.kind == EntryKind::File)
                {
                    bytes += attributes.version.size;
                    items += 1;
                }
            }
        }
        _ => return Err("stat: known or walk".into()),
    }
    Ok((bytes, items, 0))
}
