//! One object a line, with keys that stay.

use std::path::Path;

use serde_json::{Value, json};

use crate::compare::{Comparison, Row};
use crate::decode::Decoded;
use crate::print;
use crate::read::Done;

/// `done`: of reading it from end to end, or if that was not asked for, of decoding it.
/// With what `--explain` shows, if it is asked for.
pub(crate) fn done(path: &Path, done: &Done, decoded: Option<&Decoded>, explain: bool) -> String {
    object(&[
        ("path", path_value(path)),
        ("bytes", done.report.len.into()),
        ("seconds", done.spent.seconds.into()),
        ("cpu_seconds", done.spent.cpu_seconds.into()),
        (
            "engine",
            done.report.route().map(|route| route.name()).into(),
        ),
        ("cache", done.cache.map(|cache| cache.name()).into()),
        ("requests", done.report.counters.requests.into()),
        ("refused", refused(done.report.refused())),
        ("device", done.device.clone().into()),
        ("device_refused", done.why_not_device.clone().into()),
        ("format", decoded.map(|d| d.format.name()).into()),
        ("rows", decoded.map(|d| d.rows).into()),
        ("columns", decoded.map(|d| d.schema.fields().len()).into()),
        ("decode_seconds", decoded.map(|d| d.spent.seconds).into()),
        ("decoded_bytes", decoded.map(|d| d.bytes).into()),
        (
            "explain",
            decoded.filter(|_| explain).map(print::explained).into(),
        ),
    ])
}

pub(crate) fn row(path: &Path, comparison: &Comparison, row: &Row) -> String {
    object(&[
        ("path", path_value(path)),
        ("bytes", comparison.bytes.into()),
        ("seconds", row.seconds.into()),
        ("cpu_seconds", row.cpu_seconds.into()),
        ("engine", row.name.into()),
        ("cache", row.cache.name().into()),
        (
            "requests",
            row.report.as_ref().map(|r| r.counters.requests).into(),
        ),
        (
            "refused",
            refused(row.report.iter().flat_map(|r| r.refused())),
        ),
    ])
}

pub(crate) fn failure(path: &Path, failure: &dyn std::error::Error) -> String {
    object(&[
        ("path", path_value(path)),
        ("error", failure.to_string().into()),
    ])
}

fn path_value(path: &Path) -> Value {
    path.to_string_lossy().into()
}

fn refused(routes: impl Iterator<Item = (feedwater::Route, String)>) -> Value {
    routes
        .map(|(route, why)| json!({ "engine": route.name(), "why": why }))
        .collect()
}

/// With its keys in the order given, which a map of `serde_json` does not keep.
fn object(pairs: &[(&str, Value)]) -> String {
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(key, value)| format!("{}:{value}", json!(key)))
        .collect();
    format!("{{{}}}", pairs.join(","))
}
