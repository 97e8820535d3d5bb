//! Reads files as fast as this machine allows, and says how it did it.
//!
//! ```sh
//! cargo run --release --example feed -- PATH…
//! cargo run --release --example feed -- --compare PATH…
//! ```
//!
//! `args.rs` has the manual, `read.rs` is what a program of yours would do.

mod args;
#[path = "../common/mod.rs"]
mod common;
mod compare;
mod dataset;
mod decode;
mod device;
#[cfg(target_os = "linux")]
mod evict;
#[cfg(not(target_os = "linux"))]
#[path = "no_evict.rs"]
mod evict;
mod json;
mod print;
mod process;
mod profiles;
mod progress;
mod read;

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use args::{Args, Command};
use dataset::DataSet;
use decode::Decoded;
use device::Found;
use feedwater::Engine;
use read::Done;

/// Why a path could not be served: one line of text for whoever gave it.
type Failure = Box<dyn std::error::Error>;

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
        Command::Feed(args) => feed(args, &mut out, &mut failed),
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

/// Serves every path, whatever becomes of the others. Fails only if the output cannot be written.
fn feed(args: &Args, out: &mut dyn Write, failed: &mut bool) -> io::Result<()> {
    let made;
    let paths = if args.paths.is_empty() {
        made = match DataSet::make() {
            Ok(made) => made,
            Err(error) => {
                complain(&format!("cannot make a data set: {error}"));
                *failed = true;
                return Ok(());
            }
        };
        if !args.json {
            writeln!(out, "No paths given: a small data set in {}", made)?;
        }
        made.paths()
    } else {
        &args.paths
    };
    let engine = match profiles::engine(args.profiles.as_deref()) {
        Ok(engine) => engine,
        Err(error) => {
            complain(&error.to_string());
            *failed = true;
            return Ok(());
        }
    };
    let target = match device::find(args.device) {
        Ok(target) => target,
        Err(error) => {
            complain(&error.to_string());
            *failed = true;
            return Ok(());
        }
    };
    for path in paths {
        let served = if args.compare {
            serve_compared(args, &engine, path, out)
        } else {
            serve(args, &engine, &target, path, out)
        };
        if let Err(failure) = served? {
            *failed = true;
            if args.json {
                writeln!(out, "{}", json::failure(path, &*failure))?;
            } else {
                complain(&failure.to_string());
            }
        }
    }
    if let Err(error) = profiles::save(args.profiles.as_deref(), &engine) {
        complain(&error.to_string());
        *failed = true;
    }
    Ok(())
}

/// The outer error: the output cannot be written. The inner one: this path cannot be read.
type Served = io::Result<Result<(), Failure>>;

fn serve(args: &Args, engine: &Engine, target: &Found, path: &Path, out: &mut dyn Write) -> Served {
    if args.only_decode() {
        return match decode::decode(path, args, engine) {
            Ok(Some(decoded)) => told(args, path, None, Some(&decoded), out).map(Ok),
            Ok(None) => Ok(Err(format!(
                "{}: an empty file has no format",
                path.display()
            )
            .into())),
            Err(failure) => Ok(Err(failure)),
        };
    }
    let done = match read::read(path, args, engine, target, &progress::bar(path, args)) {
        Ok(done) => done,
        Err(failure) => return Ok(Err(failure)),
    };
    match decode::decode(path, args, engine) {
        Ok(decoded) => told(args, path, Some(&done), decoded.as_ref(), out).map(Ok),
        Err(failure) => {
            if !args.json {
                print::done(out, path, &done)?;
            }
            Ok(Err(failure))
        }
    }
}

/// Prints what came of a path.
fn told(
    args: &Args,
    path: &Path,
    done: Option<&Done>,
    decoded: Option<&Decoded>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let of_decoding = decoded.map(|decoded| &decoded.done);
    let Some(shown) = done.or(of_decoding) else {
        return Ok(());
    };
    if args.json {
        return writeln!(out, "{}", json::done(path, shown, decoded, args.explain));
    }
    match done {
        Some(done) => print::done(out, path, done)?,
        None => print::path(out, path)?,
    }
    match decoded {
        Some(decoded) => print::decoded(out, decoded, args.explain),
        None => Ok(()),
    }
}

fn serve_compared(args: &Args, engine: &Engine, path: &Path, out: &mut dyn Write) -> Served {
    let comparison = match compare::compare(path, args, engine) {
        Ok(comparison) => comparison,
        Err(failure) => return Ok(Err(failure)),
    };
    if comparison.rows.is_empty() {
        // An empty file: there is nothing to compare, and that is no failure.
        return serve(args, engine, &Found::default(), path, out);
    }
    if let Some(why) = &comparison.not_cold {
        complain(&format!("{}: not compared cold: {why}", path.display()));
    }
    if args.json {
        for row in comparison.rows.iter().filter(|row| !row.is_control) {
            writeln!(out, "{}", json::row(path, &comparison, row))?;
        }
    } else {
        print::comparison(out, path, &comparison)?;
    }
    Ok(Ok(()))
}

/// One line on stderr, whose being closed is no reason to stop.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "feed: {}", print::printable(text));
}
