//! Parquet files as Arrow record batches.
//!
//! [`scan`] reads what is asked for (columns, row groups, rows, rows that a [predicate](Predicate) is true for) and decodes it
//! on threads of its own, as an iterator or a stream; [`Scan::take`] brings rows in any order. [`Metadata`] are read once for
//! any number of scans, and [`Scan::explain`] says what a scan would read, and why not more.
//!
//! [`Source`] is a reader as the `parquet` crate's own readers want a file, for code that uses them already. [`Writer`] writes
//! record batches to a file that appears whole or not at all.
//!
//! # What is read
//! The footer, in one request for most files. Page indexes and Bloom filters, where they can spare more than they cost. Of
//! the column chunks, those that are asked for; with a page index and fewer rows than all, only pages with rows that are
//! wanted, and the dictionaries of their columns. Ranges close together are one request, and the next row groups are asked
//! for while one is decoded, within a [window](Scan::window). Row groups that the page cache has already are read page by
//! page right before each page is decoded, which keeps them in the processor's cache.
//!
//! # What is decoded by whom
//! Columns of numbers, flags, strings and bytes, and lists of numbers, whose pages are PLAIN or have a dictionary, are decoded
//! here, where all rows of a row group are wanted; so are Snappy and Zstandard undone. All else is decoded by the `parquet`
//! crate. Values and types are those that it gives: what is not as it should be is given to it, to decode or to refuse.
//! Planning, reading and threads are ours. A row group is cut into sets of
//! top-level columns of about the same weight, so that even a file of one row group is decoded by several threads; but a
//! column of a row group is decoded by one.
//!
//! # On a GPU
//! With the feature `cuda`, `Scan::on_device` gives the same rows and columns as Arrow arrays in the memory of an NVIDIA GPU,
//! a batch for each row group. Of rows that are wanted, only pages that the host would decode are copied, and the rows are picked out of
//! what these became. Pages are copied to the device through pinned memory: those of Snappy and LZ4_RAW as they are
//! stored, to be decompressed there, and those of other codecs decompressed by threads of the host. Then kernels decode whole
//! column chunks. What they do not decompress or decode, or find anything wrong
//! with, the host does as above, and its page or array is copied, or its error is the answer: so whoever decodes, values and
//! errors are the same; of several errors, which one comes first is open. `DeviceBatches::report` says for each column who did it, and
//! why, and by whom its pages were decompressed.
//!
//! | decoded by the GPU | as far as |
//! |---|---|
//! | columns | required or optional, and structs, lists and maps of them, with up to 4 lists in each other, also as old writers have them; `FixedSizeList`, where the Arrow schema in the file names it. Rows may go on in later pages |
//! | physical types | BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY of 1 byte to 1 MiB |
//! | Arrow types | of BYTE_ARRAY `Utf8`, `LargeUtf8`, `Binary`, `LargeBinary`, decimals of 128 and 256 bits, dictionaries of strings and binaries; of the others all that the `parquet` crate makes of them but dictionaries: integers of 8 to 64 bits, floats of 16 to 64, dates, times, timestamps, durations, intervals, decimals of 32 to 256 bits, `FixedSizeBinary` |
//! | encodings | PLAIN, both dictionary encodings, also mixed with PLAIN in a chunk; RLE of booleans; BYTE_STREAM_SPLIT of fixed lengths; DELTA_BINARY_PACKED; DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY of strings and binaries |
//! | UTF-8 | of each string and each entry of a dictionary of strings, as the host checks it |
//! | dictionaries | their indices stay, and the entries are an array beside them, where the Arrow type is a dictionary: by the schema that the file has for Arrow, or that [`Scan::schema`] asks for; if all pages of the chunk have indices |
//! | codecs | Snappy and LZ4_RAW: a page is the work of 32 threads, so it takes many pages at once to be fast |
//! | pages | versions 1 and 2, with and without checksums; these are compared by whom the stored bytes get to |
//! | rows | whole row groups, and any rows of them: with a page index by pages that have them, without one by all pages of nested columns, and those of flat ones that have them |
//!
//! | decoded by the host | because |
//! |---|---|
//! | views of strings; DELTA encodings of FIXED_LEN_BYTE_ARRAY and of decimals of any length; structs, lists and maps with such a leaf | there are no kernels for them yet |
//! | FIXED_LEN_BYTE_ARRAY of more than 1 MiB | the kernels count the bytes of 1,024 rows in 32 bits |
//! | decimals with a precision or a scale that Arrow does not have | the error is that of the host |
//! | more than 4 lists in each other, list views; fixed-size lists of lists where one is null | the kernels do not know them |
//! | leaves of a struct that do not agree on a list around them; maps with a null key; levels that make no list | the `parquet` crate says what becomes of them |
//! | predicates are evaluated, on columns that the host decodes for that | there are no kernels for them; what the rows have in the columns that are wanted is decoded by the GPU then |
//! | chunks with a page index that has other rows than their pages, or pages that do not begin with a row | the rows are those that the `parquet` crate finds |
//! | chunks with anything odd: levels in BIT_PACKED, pages without entries before others, sizes that their headers do not have right, bytes behind the last value | the kernels take nothing that the `parquet` crate might not |
//! | pages of GZIP, BROTLI, ZSTD and of Hadoop's LZ4 are decompressed | there are no kernels for them; they are decoded by the GPU all the same |
//! | pages of Snappy and LZ4_RAW, unless `Processor::Gpu` is asked for: all if there are fewer than ten of about one length in a row group for each thread of the host, else those that are much longer than the others | threads are faster then: a page that takes one warp longer than all threads take for all of them is theirs, as one thread is reckoned to do ten pages meanwhile; this figure was not measured |
//! | columns that become dictionaries, of chunks with PLAIN pages | their values have to be looked up first |
//! | columns of less than 64 KiB in a row group, unless `Processor::Gpu` is asked for | a launch costs more; this figure was not measured |
//! | row groups that take more than half of the memory that may be used (`DeviceScan::memory`), or with more bytes of strings in a column than offsets of 32 bits can tell | they come in smaller batches |
//!
//! A nested column is decoded by the GPU only if all its leaves that are asked for are. Lists that all have the same length become dense
//! tensors: `DeviceArray::tensor_of_lists`.
//!
//! The device's memory is counted by rows and widths (of nested columns by levels and widths), once more for rows that are picked out, and
//! the pages of one row group,
//! decompressed and, where the device does it, as they are stored; if that is too much, the host decompresses them. What strings take is
//! known when the kernels have followed their lengths; before, it is what the footer or the dictionary tell. Two row groups are decoded
//! or wait at once.
//!
//! Where pages are is known from their headers, which are walked over for each scan. With the feature `cache`, `DeviceScan::page_lists`
//! keeps that for the next epoch, within the bound of a `MetadataCache`, and where each 1,024 rows begin in large pages, which otherwise
//! one warp has to follow from their start. Not of dictionary pages.
//!
//! What is in the slots of nulls, Arrow leaves open: it is zero where kernels decode, and anything where the host does.
//!
//! # What is not read
//! These are [`UnsupportedFeature`](crate::ErrorKind::UnsupportedFeature), with the column and the offset of the page where it
//! is about one: encryption; the codec LZO; pages of Hadoop's LZ4 codec in several frames, of which a later one is not larger
//! than the one before; levels in the deprecated BIT_PACKED encoding; encodings that the `parquet` crate does not have for
//! the type; column chunks in other files; single fields of the entries of a map. A panic of the `parquet` crate is
//! contained and is [`Panicked`](crate::ErrorKind::Panicked), but the panic hook of the process runs before, and
//! the default one prints.

mod batches;
mod buffers;
mod checked;
mod direct;
mod explain;
mod failure;
mod filter;
#[cfg(feature = "cuda")]
mod gpu;
mod job;
mod metadata;
mod pages;
mod prefetch;
mod queues;
mod resident;
mod scan;
mod source;
mod take;
mod unit;
mod write;

pub use batches::{BatchStream, Batches};
pub use explain::{ColumnChunkPlan, Plan, RowGroupPlan, ScanReport};
#[cfg(all(feature = "cuda", feature = "testing"))]
#[doc(hidden)]
pub use gpu::planning;
#[cfg(feature = "cuda")]
pub use gpu::{
    Decompressed, DeviceBatchStream, DeviceBatches, DeviceColumnPlan, DeviceColumnReport,
    DevicePlan, DeviceScan, DeviceScanReport,
};
pub use metadata::Metadata;
pub use scan::{Scan, scan};
pub use source::{Source, SourceStream};
pub use write::{Writer, WriterOptions};

pub use crate::format::parquet::{Column, Predicate, SkipReason, SkippedRows, Value, column};
