//! A model in several files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::file::{TensorFile, begin, finish, not_found};
use super::load::{Load, Part};
use crate::decode::wait::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::safetensors::{INDEX_MOST, ShardIndex, TensorInfo};
use crate::open::{OpenOptions, Opened};
use crate::reader::{Reader, ReaderExt};

/// Opens a model in several files by its index (`model.safetensors.index.json`), and every shard that it names, with
/// `options`.
///
/// Parks this thread while it reads the index, and then the headers of all shards, which are asked for together. A file stays
/// open for each shard.
///
/// ```
/// use feedwater::{OpenOptions, safetensors::{self, Dtype, NewTensor}};
///
/// # let dir = tempfile::tempdir()?;
/// # let folder = dir.path();
/// for (shard, name) in [("1.safetensors", "a"), ("2.safetensors", "b")] {
///     let tensor = NewTensor::new(name, Dtype::U8, [4], *b"data");
///     safetensors::save(folder.join(shard), &[tensor], &Default::default())?;
/// }
/// let index = folder.join("model.safetensors.index.json");
/// std::fs::write(&index, r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#)?;
///
/// let model = safetensors::open_sharded(&index, &OpenOptions::new())?;
/// let tensors = model.load().wait()?;
/// assert_eq!(tensors.tensor("b")?.bytes(), &b"data"[..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Malformed`](ErrorKind::Malformed), naming the tensor, if the index is not valid (at most 100 MB), names a file outside its
/// folder (an absolute path, `..`), or a tensor that its shard does not have; those of [`open`](super::open); and those of opening a file.
/// A symbolic link in the folder is followed, wherever it leads: caches of models are made of them.
pub fn open_sharded(index: impl AsRef<Path>, options: &OpenOptions) -> Result<ShardedTensors> {
    block_on(open_sharded_async(index, options))
}

/// The same in a task: [`open_sharded`] on any executor, without blocking it.
///
/// # Errors
/// As [`open_sharded`].
pub async fn open_sharded_async(
    index: impl AsRef<Path>,
    options: &OpenOptions,
) -> Result<ShardedTensors> {
    let path = index.as_ref();
    let reader = options.open_async(path).await?;
    let name = reader.source().name();
    if reader.len() > INDEX_MOST {
        let what = format!(
            "its index has {} bytes, more than {INDEX_MOST}",
            reader.len()
        );
        return Err(malformed(None, what).named(name));
    }
    let json = reader.read_all().await?;
    let index = ShardIndex::parse(&json).map_err(|error| error.named(name))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut shards = Vec::with_capacity(index.shards.len());
    let mut by_name = BTreeMap::new();
    let opening: Vec<_> = index
        .shards
        .into_iter()
        .map(|(file, names)| (options.open_async(folder.join(&file)), file, names))
        .collect();
    let mut asked = Vec::with_capacity(opening.len());
    for (opening, file, names) in opening {
        let reader = opening.await?;
        asked.push((file, names, begin(&*reader), reader));
    }
    for (file, names, head, reader) in asked {
        let shard = finish(reader, head).await?;
        for tensor in names {
            let Ok(info) = shard.info(&tensor) else {
                let what = format!("the index says it is in {file:?}, where it is not");
                return Err(malformed(Some(&tensor), what).named(name));
            };
            by_name.insert(tensor, (shards.len(), info.clone()));
        }
        shards.push(shard);
    }
    let metadata = serde_json::Value::Object(index.metadata).to_string();
    Ok(ShardedTensors {
        shards,
        by_name,
        metadata,
        name: name.clone(),
    })
}

/// A model in several files, whose headers were read.
pub struct ShardedTensors {
    /// Sorted by their file names.
    shards: Vec<TensorFile<Opened>>,
    /// The shard of each tensor, and what it says of it.
    by_name: BTreeMap<String, (usize, TensorInfo)>,
    metadata: String,
    /// Of the index.
    name: Arc<str>,
}

impl ShardedTensors {
    /// The files, by name.
    pub fn shards(&self) -> &[TensorFile<Opened>] {
        &self.shards
    }

    /// How many tensors the index names.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether the index names none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The tensors that the index names, by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.by_name.values().map(|(_, info)| info)
    }

    /// What its shard says of a tensor.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if the index does not name it.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        let found = self.by_name.get(name).map(|(_, info)| info);
        found.ok_or_else(|| {
            not_found(name, self.by_name.keys().map(String::as_str)).named(&self.name)
        })
    }

    /// The index's metadata, as JSON; `{}` if it has none.
    pub fn metadata(&self) -> &str {
        &self.metadata
    }

    /// Reading the tensors that the index names, shard by shard. What a shard has beside them is left out.
    pub fn load(&self) -> Load<Opened> {
        let mut parts: Vec<Part<Opened>> = self
            .shards
            .iter()
            .map(|shard| Part {
                reader: shard.reader().clone(),
                tensors: Vec::new(),
            })
            .collect();
        for (shard, info) in self.by_name.values() {
            if let Some(part) = parts.get_mut(*shard) {
                part.tensors.push(info.clone());
            }
        }
        for part in &mut parts {
            part.tensors
                .sort_by_key(|info| (info.range().start, info.range().end));
        }
        Load::of_parts(parts, &self.name)
    }
}

impl fmt::Debug for ShardedTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedTensors")
            .field("shards", &self.shards)
            .field("tensors", &self.by_name.len())
            .finish_non_exhaustive()
    }
}

fn malformed(part: Option<&str>, what: String) -> Error {
    Error::new(ErrorKind::Malformed {
        format: "safetensors",
        part: part.map(Into::into),
        what: what.into(),
    })
}
