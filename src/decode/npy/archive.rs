//! Several arrays in a zip archive.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use flate2::Crc;
use flate2::read::DeflateDecoder;

use super::file::{ArrayFile, open_async};
use crate::decode::part::in_part;
use crate::decode::wait::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::npy::{Member, Method, TAIL, data_range, directory, members};
use crate::open::OpenOptions;
use crate::reader::{ChunkOptions, Reader, ReaderExt};

/// Most bytes that deflate makes of one: a block of the shortest codes for the longest matches.
const RATIO_MOST: u64 = 1032;

/// Opens a .npz file: reads the directory of the archive, in one request if it has less than 64 KiB.
///
/// ```no_run
/// let archive = feedwater::npy::open_npz(feedwater::open("arrays.npz")?)?;
/// for name in archive.names() {
///     println!("{name}: {:?}", archive.array(name)?);
/// }
/// let x = archive.array("x")?.read_all().wait()?;
/// # Ok::<(), feedwater::Error>(())
/// ```
///
/// # Errors
/// [`Malformed`](ErrorKind::Malformed) if it is no zip archive, has bytes in front or behind, or its directory is not right;
/// [`UnsupportedFeature`](ErrorKind::UnsupportedFeature) for several volumes or a directory of over 64 MiB; and those of the reader.
pub fn open_npz<R: Reader + ?Sized>(reader: Arc<R>) -> Result<Archive<R>> {
    block_on(open_npz_async(reader))
}

/// The same in a task: [`open_npz`] on any executor, without blocking it.
///
/// # Errors
/// As [`open_npz`].
pub async fn open_npz_async<R: Reader + ?Sized>(reader: Arc<R>) -> Result<Archive<R>> {
    let source = reader.source();
    let len = source.len();
    let tail = reader.tail(TAIL).await?;
    let start = len - tail.len() as u64;
    let whole = |error: Error| source.place(error, 0..len);
    let directory = directory(&tail, len).map_err(whole)?;
    let range = directory.range.clone();
    let there = range.start.checked_sub(start).and_then(|from| {
        tail.get(usize::try_from(from).ok()?..usize::try_from(range.end - start).ok()?)
    });
    let members = match there {
        Some(bytes) => members(bytes, &directory),
        None => members(&reader.read(range).await?, &directory),
    };
    let members = members.map_err(whole)?;
    let full: HashSet<String> = members.iter().map(|member| member.name.clone()).collect();
    let named = members.into_iter().map(|member| {
        let short = member.name.strip_suffix(".npy");
        // Beside a member that really has the short name, it keeps its own.
        let name = short.filter(|short| !full.contains(*short));
        (name.unwrap_or(&member.name).to_owned(), member)
    });
    Ok(Archive {
        members: Arc::new(named.collect()),
        most: crate::sys::total_memory() / 2,
        reader,
    })
}

/// A .npz file whose directory was read. Cheap to clone.
pub struct Archive<R: Reader + ?Sized> {
    reader: Arc<R>,
    members: Arc<BTreeMap<String, Member>>,
    most: u64,
}

impl<R: Reader + ?Sized> Archive<R> {
    /// The archive itself.
    pub fn reader(&self) -> &Arc<R> {
        &self.reader
    }

    /// The names of the members, sorted, without the `.npy` at the end.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Whether the member of this name has `.npy` at the end of its full name, as NumPy has it for arrays. Others can be anything
    /// (a text beside the arrays); those that are arrays all the same are read as such.
    pub fn is_npy(&self, name: &str) -> bool {
        let member = self.members.get(name);
        member.is_some_and(|member| member.name.ends_with(".npy"))
    }

    /// Most bytes that a compressed member may have when it is inflated. Default: half of the machine's memory.
    #[must_use]
    pub fn max_inflated(mut self, bytes: u64) -> Self {
        self.most = bytes;
        self
    }

    /// Opens an array; parks this thread until it is there.
    ///
    /// One that is stored as it is (what `numpy.savez` writes) is a range of the archive: two small requests for its headers, and
    /// its elements are read, or viewed, like those of a file of its own. Its checksum is not looked at: see
    /// [`verify`](Self::verify). One that is compressed (`numpy.savez_compressed`) is read and inflated here, into memory, its
    /// length and checksum checked.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is none of this name; [`Malformed`](ErrorKind::Malformed), naming the member, if it
    /// is no array, or not what the directory says; [`UnsupportedFeature`](ErrorKind::UnsupportedFeature) if it is encrypted or compressed in another way;
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) past [`max_inflated`](Self::max_inflated); and those of [`open`](super::open).
    pub fn array(&self, name: &str) -> Result<ArrayFile<dyn Reader>> {
        block_on(self.array_async(name))
    }

    /// The same in a task: [`array`](Self::array) on any executor. No read blocks it; a compressed member is
    /// inflated while it is polled, all at once. Where that is too much for a task, call [`array`](Self::array) where your
    /// executor lets threads block (`spawn_blocking` of tokio).
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub async fn array_async(&self, name: &str) -> Result<ArrayFile<dyn Reader>> {
        let (member, data) = self.find(name).await?;
        let reader: Arc<dyn Reader> = match member.method {
            Method::Stored => Arc::new(self.reader.slice(data)?),
            _ => {
                let content = self.inflate(member, data).await?;
                let name = format!("{}[{}]", self.reader.source().name(), member.name);
                OpenOptions::new().open_bytes(content, &name)?
            }
        };
        let array = open_async(reader).await;
        array.map_err(|error| in_part(error, &member.name))
    }

    /// Reads all of a member, in chunks, and compares its checksum (CRC-32) with that of the directory. Blocks this thread: from
    /// a task, call it where your executor lets threads block (`spawn_blocking` of tokio).
    ///
    /// # Errors
    /// [`Malformed`](ErrorKind::Malformed) if it is another; and those of [`array`](Self::array).
    pub fn verify(&self, name: &str) -> Result<()> {
        let (member, data) = block_on(self.find(name))?;
        if member.method != Method::Stored {
            return block_on(self.inflate(member, data)).map(drop);
        }
        let mut crc = Crc::new();
        for chunk in self.reader.chunks(data.clone(), ChunkOptions::default()) {
            crc.update(&chunk?);
        }
        self.check(member, &data, crc.sum())
    }

    /// The member of a name, and where its bytes are.
    async fn find(&self, name: &str) -> Result<(&Member, Range<u64>)> {
        let source = self.reader.source();
        let Some(member) = self.members.get(name) else {
            let what = format!(
                "array {name:?} among the {} that there are, which `Archive::names` lists",
                self.members.len()
            );
            return Err(Error::new(ErrorKind::NotFound { what: what.into() }).named(source.name()));
        };
        let unsupported = |feature: String| {
            let kind = ErrorKind::UnsupportedFeature {
                format: "npz",
                part: Some(member.name.as_str().into()),
                feature: feature.into(),
            };
            Err(source.error(kind, member.local()))
        };
        if member.encrypted {
            return unsupported("encryption".into());
        }
        if let Method::Other(number) = member.method {
            return unsupported(format!("compression method {number}"));
        }
        let local = self.reader.read(member.local()).await?;
        let data =
            data_range(&local, member).map_err(|error| source.place(error, member.local()))?;
        Ok((member, data))
    }

    /// The content of a deflated member.
    async fn inflate(&self, member: &Member, data: Range<u64>) -> Result<Vec<u8>> {
        let source = self.reader.source();
        let wrong = |what: String| self.malformed(member, &data, what);
        if member.len > self.most {
            let kind = ErrorKind::OutOfMemory {
                wanted: member.len,
                cap: self.most,
            };
            return Err(source.error(kind, data));
        }
        if member.len > member.stored.saturating_mul(RATIO_MOST) {
            return Err(wrong(format!(
                "{} bytes cannot inflate to {}",
                member.stored, member.len
            )));
        }
        let deflated = self.reader.read(data.clone()).await?;
        // Not more than the bytes that are there can come to, which may be more than can be had.
        let mut content = Vec::new();
        if content.try_reserve_exact(member.len as usize).is_err() {
            let kind = ErrorKind::OutOfMemory {
                wanted: member.len,
                cap: self.most,
            };
            return Err(source.error(kind, data));
        }
        let mut inflater = DeflateDecoder::new(&deflated[..]);
        let inflated = inflater.by_ref().take(member.len).read_to_end(&mut content);
        inflated.map_err(|error| wrong(format!("it does not inflate: {error}")))?;
        let more = inflater.read(&mut [0]);
        let more = more.map_err(|error| wrong(format!("it does not inflate: {error}")))?;
        if content.len() as u64 != member.len || more > 0 {
            let than = if more > 0 { "more" } else { "fewer" };
            return Err(wrong(format!(
                "it inflates to {than} bytes than the {} it is to have",
                member.len
            )));
        }
        let mut crc = Crc::new();
        crc.update(&content);
        self.check(member, &data, crc.sum())?;
        Ok(content)
    }

    fn check(&self, member: &Member, data: &Range<u64>, found: u32) -> Result<()> {
        if found == member.crc {
            return Ok(());
        }
        let what = format!(
            "its checksum is {found:#010x}, and the directory says {:#010x}",
            member.crc
        );
        Err(self.malformed(member, data, what))
    }

    fn malformed(&self, member: &Member, data: &Range<u64>, what: String) -> Error {
        let kind = ErrorKind::Malformed {
            format: "npz",
            part: Some(member.name.as_str().into()),
            what: what.into(),
        };
        self.reader.source().error(kind, data.clone())
    }
}

impl<R: Reader + ?Sized> Clone for Archive<R> {
    fn clone(&self) -> Self {
        Archive {
            reader: self.reader.clone(),
            members: self.members.clone(),
            most: self.most,
        }
    }
}

impl<R: Reader + ?Sized> fmt::Debug for Archive<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive")
            .field("name", &self.reader.source().name())
            .field("members", &self.members.len())
            .finish_non_exhaustive()
    }
}
