//! Text for people.

use std::io::{self, Write};
use std::path::Path;

use feedwater::Report;

use crate::compare::{Comparison, Row};
use crate::decode::Decoded;
use crate::read::Done;

pub(crate) fn done(out: &mut dyn Write, path: &Path, done: &Done) -> io::Result<()> {
    let path = printable(&path.to_string_lossy());
    let report = &done.report;
    if report.len == 0 {
        return writeln!(out, "{path}: 0 bytes");
    }
    writeln!(
        out,
        "{path}: {} in {}, {}, {}, CPU {}",
        size(report.len),
        time(done.spent.seconds),
        speed(report.len, done.spent.seconds),
        count(report.counters.requests, "request"),
        time(done.spent.cpu_seconds),
    )?;
    let cache = done.cache.map_or("", |cache| match cache.name() {
        "cold" => ", cold",
        _ => ", warm",
    });
    for used in report.candidates.iter().filter(|c| c.bytes > 0) {
        let (route, bytes) = (used.route, size(used.bytes));
        writeln!(out, "  route {route}: {bytes}{}{cache}", place(report))?;
    }
    if let Some(device) = &done.device {
        writeln!(out, "  into {}", printable(device))?;
    }
    if let Some(why) = &done.why_not_device {
        writeln!(out, "  not into a GPU: {}", printable(why))?;
    }
    let facts = report.facts.iter().filter(|(name, _)| *name != "on");
    let facts: Vec<_> = facts
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    if !facts.is_empty() {
        writeln!(out, "  facts: {}", printable(&facts.join("; ")))?;
    }
    for (route, why) in report.refused() {
        writeln!(out, "  not {route}: {}", printable(&why))?;
    }
    Ok(())
}

/// The file system, if it is known.
fn place(report: &Report) -> String {
    let on = report.facts.iter().find(|(name, _)| *name == "on");
    on.map_or(String::new(), |(_, system)| format!(" from {system}"))
}

/// The line for a file that was only decoded.
pub(crate) fn path(out: &mut dyn Write, path: &Path) -> io::Result<()> {
    writeln!(out, "{}:", printable(&path.to_string_lossy()))
}

pub(crate) fn decoded(out: &mut dyn Write, decoded: &Decoded, explain: bool) -> io::Result<()> {
    let seconds = decoded.spent.seconds;
    writeln!(
        out,
        "  {}: {} of {}, {} of them decoded in {}, {}, {}, CPU {}",
        decoded.format,
        count(decoded.rows, "row"),
        count(decoded.schema.fields().len() as u64, "column"),
        size(decoded.bytes),
        time(seconds),
        rate(decoded.rows, seconds),
        speed(decoded.bytes, seconds),
        time(decoded.spent.cpu_seconds),
    )?;
    for field in decoded.schema.fields() {
        let null = if field.is_nullable() { ", or null" } else { "" };
        let line = format!("{}: {}{null}", field.name(), field.data_type());
        writeln!(out, "    {}", printable(&line))?;
    }
    if !explain {
        return Ok(());
    }
    for line in explained(decoded) {
        writeln!(out, "  {}", printable(&line))?;
    }
    Ok(())
}

/// What was read to decode it, and why.
pub(crate) fn explained(decoded: &Decoded) -> Vec<String> {
    let counters = &decoded.done.report.counters;
    let mut lines = vec![format!(
        "read for it: {}, {} of {}",
        count(counters.requests, "request"),
        size(counters.read),
        size(decoded.done.report.len),
    )];
    if let Some(plan) = &decoded.plan {
        let plan = plan.to_string();
        lines.extend(plan.lines().map(|line| format!("  {line}")));
    }
    lines.extend(decoded.ranges.iter().map(|range| {
        let len = size(range.end - range.start);
        format!("  {}..{}: {len}", range.start, range.end)
    }));
    lines
}

fn rate(rows: u64, seconds: f64) -> String {
    let rate = rows as f64 / seconds.max(1e-9);
    match rate {
        r if r >= 1e6 => format!("{:.2} M rows/s", r / 1e6),
        r if r >= 1e3 => format!("{:.2} k rows/s", r / 1e3),
        r => format!("{r:.2} rows/s"),
    }
}

pub(crate) fn comparison(
    out: &mut dyn Write,
    path: &Path,
    comparison: &Comparison,
) -> io::Result<()> {
    let path = printable(&path.to_string_lossy());
    let bytes = comparison.bytes;
    let turns = count(comparison.turns.into(), "turn");
    writeln!(out, "{path}: {}, medians of {turns}", size(bytes))?;
    writeln!(
        out,
        "  {:<22}{:<7}{:>11}{:>12}{:>11}{:>10}{:>18}",
        "way", "cache", "time", "speed", "CPU", "requests", "vs std::fs::read"
    )?;
    for row in &comparison.rows {
        let requests = match &row.report {
            Some(report) => report.counters.requests.to_string(),
            None => "-".into(),
        };
        writeln!(
            out,
            "  {:<22}{:<7}{:>11}{:>12}{:>11}{requests:>10}{:>17.2}x",
            way(row),
            row.cache.name(),
            time(row.seconds),
            speed(bytes, row.seconds),
            time(row.cpu_seconds),
            row.ratio,
        )?;
    }
    for (route, why) in &comparison.refused {
        writeln!(out, "  not {route}: {}", printable(why))?;
    }
    Ok(())
}

/// Of the choice of the crate also what it chose.
fn way(row: &Row) -> String {
    let route = row.report.as_ref().and_then(Report::route);
    match route {
        Some(route) if route.name() != row.name => format!("{} ({route})", row.name),
        _ => row.name.into(),
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return count(bytes, "byte");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

fn speed(bytes: u64, seconds: f64) -> String {
    let rate = bytes as f64 / seconds.max(1e-9);
    if rate >= 1e8 {
        format!("{:.2} GB/s", rate / 1e9)
    } else {
        format!("{:.2} MB/s", rate / 1e6)
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Names of files and columns may hold anything: they stay on their line and do not drive the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}
