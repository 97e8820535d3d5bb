//! What was asked for on the command line.

use std::num::NonZeroU32;
use std::ops::Range;
use std::path::PathBuf;

use feedwater::{Format, Route};
use lexopt::{Arg, Parser, ValueExt};

use crate::device::Wanted;

pub(crate) const USAGE: &str =
    "Usage: feed [OPTION…] [--] [PATH…]\n`feed --help` explains the options.";

const HELP: &str = "\
feed: reads files as fast as this machine allows, and says how it did it

Usage: feed [OPTION…] [--] [PATH…]

Each PATH is opened, read from its first byte to its last, and described: size,
speed, requests, the route taken, and why the other routes were not. Files up
to 1 GiB (or a quarter of the memory, if that is less) are read into one block
of memory, larger ones are streamed in chunks, of which at most 64 MiB are held.
What is Parquet, TFRecord, safetensors, .npy or .npz by its content is decoded
then, by a reader of its own: rows, columns and the rate are shown. Without a
PATH a small data set is made in a temporary folder and removed at the end.

Options:
  --engine ENGINE      Read by this engine and no other:
                       {engines}.
                       If it cannot be used that is the PATH's error. `auto`,
                       the default, lets the library choose for each range.
  --device DEVICE      Where the bytes go: `cpu`, the default, is the memory of
                       this process; `gpu` is the memory of the first NVIDIA
                       GPU, and an error without one; `auto` is the GPU if there
                       is one, and says why if there is none. What is decoded is
                       decoded on the CPU.
  --assume-immutable   Promise that nobody changes the files meanwhile. Needed
                       for mmap: should somebody truncate a mapped file, this
                       program is killed by SIGBUS.
  --compare            Read by every engine that can, beside std::fs::read and
                       tokio::fs::read, and print how they compare. With
                       --engine only that engine beside them.
  --turns N            Turns of --compare, in which all ways take part one after
                       the other. Default 5.
  --profiles FILE      Use what FILE says of how fast devices stream, if it is
                       there, and write what is known at the end to it.
  --format FORMAT      Decode as parquet, tfrecord, safetensors, npy or npz,
                       whatever the content says.
  --columns A,B        Decode only these columns, features or tensors. Blanks
                       are part of the names.
  --rows A..B          Decode only these rows: from A, counted from 0, to before
                       B.
  --threads N          Threads that decode. Default: the library's.
  --explain            Show what is read to decode it and why: ranges, bytes
                       needed and read, row groups and pages left out.
                       With any of these five a PATH is only decoded, not read
                       from end to end before, and has to have a format.
  --json               Print one JSON object a line and nothing else.
  -h, --help           Print this and exit.
  -V, --version        Print the version and exit.

Units: KiB, MiB, GiB are powers of 1024 bytes; MB/s and GB/s are 10^6 and 10^9
bytes a second. Times run from before the open to the last byte in memory.

--compare reads each file whole into fresh memory, by all ways alike, and drops
it before the next read. After a round that is not measured come N turns warm
(the file is in the page cache), then N turns cold: before each read the file's
pages are written back and dropped, and it is checked that none is left. Where
that cannot be done a line on stderr says why, and the cold rows are left out.
The ratio is the median over the turns of the time of std::fs::read divided by
that of the way: above 1 is faster. The row `std::fs::read again` is that read
against itself, which shows the noise. Files larger than half the memory are an
error. The mmap engine has `read` a page when it touched a byte of it.

--json keys:
  path         as given; bytes that are not UTF-8 are replaced
  bytes        length of what was read
  seconds      of wall time; with --compare the median of the turns
  cpu_seconds  user and system time of this process in that time
  engine       the route that brought most bytes; null for an empty file.
               With --compare the way that was compared: auto, an engine, or
               std::fs::read or tokio::fs
  cache        warm or cold: all or none of the file was in the page cache at
               the start. null: something between, or not known
  requests     made to the system (null for std::fs::read and tokio::fs)
  refused      list of {engine, why}: the routes not used
  device       the GPU that has the bytes; null for the memory of this process
  device_refused  why it is no GPU, with `--device auto`; else null
  format       what it was decoded as; null, as the next five, if it was not
  rows         that were decoded: rows, records, tensors
  columns      of a row
  decode_seconds  of wall time
  decoded_bytes   of the columns in memory
  explain      with --explain: the lines that it shows. Else null
With --compare there is one object for each way and cache state, without the
last eight. A PATH that
fails gives {path, error}.

Exit status: 0 if every PATH was read, 1 if one was not, 2 for a wrong option.
A file that has a format and cannot be decoded is a failure, although its bytes
were read. An empty file is none.
";

pub(crate) enum Command {
    Feed(Args),
    Show(String),
}

pub(crate) struct Args {
    pub(crate) paths: Vec<PathBuf>,
    /// `None`: not said.
    pub(crate) engine: Option<Choice>,
    pub(crate) device: Wanted,
    pub(crate) assume_immutable: bool,
    pub(crate) compare: bool,
    pub(crate) turns: NonZeroU32,
    /// Where to keep what was found out about devices.
    pub(crate) profiles: Option<PathBuf>,
    pub(crate) json: bool,
    /// `None`: by its content.
    pub(crate) format: Option<Format>,
    pub(crate) columns: Option<Vec<String>>,
    pub(crate) rows: Option<Range<u64>>,
    pub(crate) threads: Option<usize>,
    pub(crate) explain: bool,
}

impl Args {
    /// Something is said about decoding: that is what is wanted, not all bytes.
    pub(crate) fn only_decode(&self) -> bool {
        let asked = self.format.is_some() || self.columns.is_some() || self.rows.is_some();
        asked || self.threads.is_some() || self.explain
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    Auto,
    Only(Route),
}

impl Choice {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Choice::Auto => "auto",
            Choice::Only(route) => route.name(),
        }
    }

    /// All that can be asked for.
    pub(crate) fn all() -> impl Iterator<Item = Choice> {
        let own = Route::ALL
            .iter()
            .copied()
            .filter(|route| !matches!(route, Route::Gds | Route::Other));
        [Choice::Auto].into_iter().chain(own.map(Choice::Only))
    }
}

const TURNS: NonZeroU32 = NonZeroU32::new(5).unwrap();

pub(crate) fn parse() -> Result<Command, lexopt::Error> {
    let mut args = Args {
        paths: Vec::new(),
        engine: None,
        device: Wanted::Cpu,
        assume_immutable: false,
        compare: false,
        turns: TURNS,
        profiles: None,
        json: false,
        format: None,
        columns: None,
        rows: None,
        threads: None,
        explain: false,
    };
    let mut turns = None;
    let mut parser = Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("engine") => args.engine = Some(parser.value()?.parse_with(engine)?),
            Arg::Long("device") => args.device = parser.value()?.parse_with(device)?,
            Arg::Long("assume-immutable") => args.assume_immutable = true,
            Arg::Long("compare") => args.compare = true,
            Arg::Long("turns") => turns = Some(parser.value()?.parse()?),
            Arg::Long("profiles") => args.profiles = Some(parser.value()?.into()),
            Arg::Long("json") => args.json = true,
            Arg::Long("format") => args.format = Some(parser.value()?.parse()?),
            Arg::Long("columns") => {
                let names = parser.value()?.string()?;
                args.columns = Some(names.split(',').map(String::from).collect());
            }
            Arg::Long("rows") => args.rows = Some(parser.value()?.parse_with(rows)?),
            Arg::Long("threads") => {
                let threads: NonZeroU32 = parser.value()?.parse()?;
                args.threads = Some(threads.get() as usize);
            }
            Arg::Long("explain") => args.explain = true,
            Arg::Short('h') | Arg::Long("help") => {
                let engines = engines().replace(" mmap", "\n                       mmap");
                return Ok(Command::Show(HELP.replace("{engines}", &engines)));
            }
            Arg::Short('V') | Arg::Long("version") => {
                let version = format!("feed {}\n", env!("CARGO_PKG_VERSION"));
                return Ok(Command::Show(version));
            }
            Arg::Value(path) => args.paths.push(path.into()),
            Arg::Short(_) | Arg::Long(_) => return Err(arg.unexpected()),
        }
    }
    if turns.is_some() && !args.compare {
        return Err("--turns is for --compare".into());
    }
    if args.compare && args.only_decode() {
        return Err("--compare reads files, and does not decode them".into());
    }
    if args.device != Wanted::Cpu && args.compare {
        return Err("--device is for reading alone, not for --compare".into());
    }
    if args.device != Wanted::Cpu && args.only_decode() {
        let others = "the examples parquet_to_gpu, tfrecord_to_gpu and convert decode on one";
        return Err(format!("--device is for reading alone: {others}").into());
    }
    args.turns = turns.unwrap_or(TURNS);
    Ok(Command::Feed(args))
}

fn rows(text: &str) -> Result<Range<u64>, String> {
    let bounds = text.split_once("..");
    let bounds = bounds.and_then(|(start, end)| Some(start.parse().ok()?..end.parse().ok()?));
    bounds
        .filter(|rows: &Range<u64>| rows.start <= rows.end)
        .ok_or_else(|| "rows are given as FROM..TO, FROM not after TO, as in 0..100".into())
}

fn device(name: &str) -> Result<Wanted, String> {
    match name {
        "cpu" => Ok(Wanted::Cpu),
        "gpu" => Ok(Wanted::Gpu),
        "auto" => Ok(Wanted::Auto),
        _ => Err("the devices are auto, cpu, gpu".into()),
    }
}

fn engine(name: &str) -> Result<Choice, String> {
    Choice::all()
        .find(|choice| choice.name() == name)
        .ok_or_else(|| format!("the engines are {}", engines()))
}

fn engines() -> String {
    let names: Vec<_> = Choice::all().map(Choice::name).collect();
    names.join(", ")
}
