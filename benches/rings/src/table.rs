//! Prints a row: a table for people, and with `--json` also one line for each way.

use std::fmt::Write;

use crate::turns::{Lane, Spread, paired, spread};

/// Whose way it is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Side {
    /// One that ours are compared with, if it is the fastest of them.
    Peer,
    Ours,
    /// A peer once more in the same turns.
    Control,
    /// Does less or something else, so nothing is compared with it.
    Information,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Peer => "peer",
            Side::Ours => "ours",
            Side::Control => "control",
            Side::Information => "information",
        }
    }
}

pub(crate) struct Table<'a> {
    pub(crate) row: &'a str,
    pub(crate) turns: usize,
    /// What one run reads.
    pub(crate) bytes: u64,
    pub(crate) reads: u64,
    pub(crate) lanes: &'a [Lane],
    pub(crate) sides: &'a [Side],
}

impl Table<'_> {
    /// The table goes to the standard output, or beside it if that is for JSON.
    pub(crate) fn print(&self, json: bool) {
        let fastest = self.fastest();
        let mut table = self.head(fastest);
        let mut lines = String::new();
        for (lane, &side) in self.lanes.iter().zip(self.sides) {
            // The control is compared with the way that it repeats, all others with the fastest peer.
            let base = match side {
                Side::Control => self.named(lane.name.trim_end_matches(" again")),
                _ => fastest,
            };
            table += &self.line(lane, side, base);
            lines += &self.json(lane, side, base);
        }
        if json {
            eprint!("{table}");
            print!("{lines}");
        } else {
            print!("{table}");
        }
    }

    /// The fastest of the peers that were measured.
    fn fastest(&self) -> Option<&Lane> {
        let lanes = self.lanes.iter().zip(self.sides);
        lanes
            .filter(|(lane, side)| **side == Side::Peer && lane.left_out.is_none())
            .map(|(lane, _)| lane)
            .min_by(|a, b| f64::total_cmp(&wall(a).median, &wall(b).median))
    }

    fn named(&self, name: &str) -> Option<&Lane> {
        let mut lanes = self.lanes.iter();
        lanes.find(|lane| lane.name == name && lane.left_out.is_none())
    }

    fn head(&self, fastest: Option<&Lane>) -> String {
        format!(
            "\n{}: {} reads, {} MiB, {} turns; beside {}\n  {:<42} {:>9} {:>9} {:>7} {:>9}  {:<18}  how\n",
            self.row,
            self.reads,
            self.bytes >> 20,
            self.turns,
            fastest.map_or("nobody", |lane| &lane.name),
            "way",
            "median s",
            "CPU s",
            "GB/s",
            "us/read",
            "ratio (range)"
        )
    }

    fn line(&self, lane: &Lane, side: Side, base: Option<&Lane>) -> String {
        let side = match side {
            Side::Control => "control: ",
            Side::Information => "for information: ",
            Side::Peer | Side::Ours => "",
        };
        if let Some(why) = &lane.left_out {
            return format!("  {:<42} {side}left out: {why}\n", lane.name);
        }
        let wall = wall(lane).median;
        let ratio = base.map_or_else(String::new, |base| {
            let pairs = paired(&base.samples, &lane.samples);
            format!("{:.2} ({:.2}-{:.2})", pairs.median, pairs.least, pairs.most)
        });
        format!(
            "  {:<42} {:>9.4} {:>9.4} {:>7.2} {:>9.2}  {:<18}  {side}{}\n",
            lane.name,
            wall,
            cpu(lane),
            self.bytes as f64 / wall / 1e9,
            wall * 1e6 / self.reads as f64,
            ratio,
            lane.how
        )
    }

    fn json(&self, lane: &Lane, side: Side, base: Option<&Lane>) -> String {
        let mut fields = vec![
            ("row", quoted(self.row)),
            ("way", quoted(&lane.name)),
            ("side", quoted(side.name())),
        ];
        if let Some(why) = &lane.left_out {
            fields.push(("left_out", quoted(why)));
            return object(&fields);
        }
        let walls = wall(lane);
        fields.extend([
            ("turns", self.turns.to_string()),
            ("bytes", self.bytes.to_string()),
            ("reads", self.reads.to_string()),
            ("median_s", format!("{:.6}", walls.median)),
            ("least_s", format!("{:.6}", walls.least)),
            ("most_s", format!("{:.6}", walls.most)),
            ("cpu_s", format!("{:.6}", cpu(lane))),
        ]);
        if let Some(base) = base {
            let pairs = paired(&base.samples, &lane.samples);
            fields.extend([
                ("base", quoted(&base.name)),
                ("ratio", format!("{:.4}", pairs.median)),
                ("ratio_least", format!("{:.4}", pairs.least)),
                ("ratio_most", format!("{:.4}", pairs.most)),
            ]);
        }
        fields.push(("how", quoted(&lane.how)));
        object(&fields)
    }
}

fn wall(lane: &Lane) -> Spread {
    spread(lane.samples.iter().map(|sample| sample.wall))
}

fn cpu(lane: &Lane) -> f64 {
    spread(lane.samples.iter().map(|sample| sample.cpu)).median
}

/// A route that cannot be measured here, said once for all rows.
pub(crate) fn print_left_out(route: &str, why: &str, json: bool) {
    if json {
        let fields = [("route", quoted(route)), ("left_out", quoted(why))];
        print!("{}", object(&fields));
        eprintln!("left out: route {route}: {why}");
    } else {
        println!("left out: route {route}: {why}");
    }
}

/// A line of JSON.
fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields
        .iter()
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    format!("{{{}}}\n", fields.join(","))
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char < ' ' => {
                // Writing to a string does not fail.
                let _ = write!(quoted, "\\u{:04x}", u32::from(char));
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}
