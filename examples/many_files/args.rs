//! What was asked for on the command line.

use std::path::PathBuf;

use lexopt::{Arg, Parser, ValueExt};

pub(crate) const USAGE: &str =
    "Usage: many_files [OPTION…] [--] DIR\n`many_files --help` explains the options.";

const HELP: &str = "\
many_files: reads every file below a directory, whole, and says how fast

Usage: many_files [OPTION…] [--] DIR

DIR is walked; symbolic links are not followed. Every regular file below it is
read from its first byte to its last. A file that cannot be read is counted and
named on stderr; it stops no other, and makes the exit status 1.

Options:
  --engine ENGINE   Read by this way and no other: auto (the default), spot
                    (this thread), threads, rings.
  --in-order        Take results in the order of the walk, not as they come.
  --compare         Read beside a plain loop of std::fs::read, a pool of threads
                    that call it, and tokio::fs::read, in alternating turns.
  --turns N         Turns of --compare. Default 5.
  --cold            Before every turn, drop the pages of all files from the page
                    cache. What the kernel knows of names and inodes stays.
  --json            Print one JSON object a line and nothing else.
  -h, --help        Print this and exit.
  -V, --version     Print the version and exit.

--compare walks once, and gives every way the same paths. Each way holds a file
no longer than it takes to count its bytes. The ratio is the median over the
turns of the time of the plain loop divided by that of the way: above 1 is
faster. The row `plain loop again` is that loop against itself, which shows the
noise.

--json keys:
  files        results, errors included
  bytes        of all contents
  seconds      of wall time, the walk included; with --compare the median of the
               turns, without the walk
  cpu_seconds  of all threads, as seconds
  errors       files that could not be read
  engine       the way that most files went: spot, threads or rings; null if
               there were none; with --compare the row's name, where it is none
               of ours
";

pub(crate) struct Args {
    pub(crate) dir: PathBuf,
    pub(crate) only: Option<feedwater::FilesWay>,
    pub(crate) in_order: bool,
    pub(crate) compare: bool,
    pub(crate) turns: usize,
    pub(crate) cold: bool,
    pub(crate) json: bool,
}

pub(crate) enum Command {
    Show(String),
    Read(Args),
}

pub(crate) fn parse() -> Result<Command, lexopt::Error> {
    let mut parser = Parser::from_env();
    let mut dir = None;
    let mut args = Args {
        dir: PathBuf::new(),
        only: None,
        in_order: false,
        compare: false,
        turns: 5,
        cold: false,
        json: false,
    };
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("engine") => args.only = way(&parser.value()?.string()?)?,
            Arg::Long("in-order") => args.in_order = true,
            Arg::Long("compare") => args.compare = true,
            Arg::Long("turns") => {
                let turns: std::num::NonZeroUsize = parser.value()?.parse()?;
                args.turns = turns.get();
            }
            Arg::Long("cold") => args.cold = true,
            Arg::Long("json") => args.json = true,
            Arg::Short('h') | Arg::Long("help") => return Ok(Command::Show(HELP.into())),
            Arg::Short('V') | Arg::Long("version") => {
                let version = concat!("many_files ", env!("CARGO_PKG_VERSION"), "\n");
                return Ok(Command::Show(version.into()));
            }
            Arg::Value(value) if dir.is_none() => dir = Some(PathBuf::from(value)),
            other => return Err(other.unexpected()),
        }
    }
    args.dir = dir.ok_or("no directory was given")?;
    Ok(Command::Read(args))
}

fn way(name: &str) -> Result<Option<feedwater::FilesWay>, lexopt::Error> {
    if name == "auto" {
        return Ok(None);
    }
    let ways = feedwater::FilesWay::ALL.iter().copied();
    let found = ways.into_iter().find(|way| way.name() == name);
    let wrong = || format!("{name:?} is no engine; there are auto, spot, threads, rings").into();
    found.map(Some).ok_or_else(wrong)
}
