//! Reads every file below a directory, and says how fast.
//!
//! ```sh
//! cargo run --release --example many_files -- DIR
//! cargo run --release --example many_files -- --compare DIR
//! ```
//!
//! `args.rs` has the manual, `read.rs` is what a program of yours would do.

mod args;
mod compare;
mod measure;
mod read;

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use args::{Args, Command};
use measure::{Done, measured};

fn main() -> ExitCode {
    let command = match args::parse() {
        Ok(command) => command,
        Err(error) => {
            complain(&error.to_string());
            let _ = writeln!(io::stderr(), "{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    let mut failed = false;
    let mut out = io::stdout().lock();
    let done = match &command {
        Command::Show(text) => out.write_all(text.as_bytes()),
        Command::Read(args) if args.compare => compared(args, &mut out, &mut failed),
        Command::Read(args) => read(args, &mut out, &mut failed),
    };
    match done.and_then(|()| out.flush()) {
        Ok(()) => {}
        // Whoever read our output has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            complain(&error.to_string());
            failed = true;
        }
    }
    ExitCode::from(u8::from(failed))
}

fn read(args: &Args, out: &mut dyn Write, failed: &mut bool) -> io::Result<()> {
    if args.cold {
        read::files_below(&args.dir, |_| {}).for_each(|path| measure::make_cold(&path));
    }
    let mut unlisted = 0;
    let done = measured(|| {
        let paths = read::files_below(&args.dir, |error| {
            unlisted += 1;
            complain(&error.to_string());
        });
        read::read(args, paths)
    });
    let done = Done {
        errors: done.errors + unlisted,
        ..done
    };
    *failed = done.errors > 0;
    if args.json {
        return writeln!(out, "{}", json(&done));
    }
    writeln!(out, "{}", text(&done))
}

fn compared(args: &Args, out: &mut dyn Write, failed: &mut bool) -> io::Result<()> {
    let mut unlisted = 0;
    let paths: Vec<Arc<Path>> = read::files_below(&args.dir, |error| {
        unlisted += 1;
        complain(&error.to_string());
    })
    .collect();
    let rows = compare::compare(args, &paths)?;
    *failed = unlisted > 0 || rows.iter().any(|row| row.done.errors > 0);
    for row in &rows {
        if !args.json {
            writeln!(
                out,
                "{:<18} {:>6.2}×  {}",
                row.name,
                row.ratio,
                text(&row.done)
            )?;
        } else if !row.is_control {
            writeln!(out, "{}", json(&row.done))?;
        }
    }
    Ok(())
}

fn text(done: &Done) -> String {
    let seconds = done.seconds.max(1e-9);
    format!(
        "{}, {}, {} in {:.4} s ({:.4} s of processors): {:.0} files/s, {:.0} MB/s, by {}",
        counted(done.files, "file"),
        counted(done.bytes, "byte"),
        counted(done.errors, "error"),
        done.seconds,
        done.cpu_seconds,
        done.files as f64 / seconds,
        done.bytes as f64 / seconds / 1e6,
        done.engine.as_deref().unwrap_or("nobody"),
    )
}

/// `1 file`, `2 files`.
fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

fn json(done: &Done) -> String {
    let engine = done.engine.as_ref().map(|name| format!("{name:?}"));
    format!(
        "{{\"files\":{},\"bytes\":{},\"seconds\":{:.6},\"cpu_seconds\":{:.6},\"errors\":{},\"engine\":{}}}",
        done.files,
        done.bytes,
        done.seconds,
        done.cpu_seconds,
        done.errors,
        engine.as_deref().unwrap_or("null"),
    )
}

/// One line on stderr, whose being closed is no reason to stop.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "many_files: {text}");
}
