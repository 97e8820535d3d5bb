//! Parquet: which bytes of a file hold what was asked for.
//!
//! Bytes go in and wanted ranges come out: [`Footer`] for the metadata, [`Planner`] for the rest. What comes out in the end
//! is a [`ReadPlan`], which every executor shares. `page` and `thrift` look at page headers.

mod bounds;
mod check;
mod footer;
mod index;
mod leaves;
mod page;
#[cfg(feature = "cuda")]
mod page_header;
mod pieces;
mod plan;
mod predicate;
mod rows;
mod thrift;

pub(crate) use footer::{Footer, FooterStep};
pub(crate) use leaves::{leaves_of, roots_of};
pub(crate) use page::{Levels, PageFault, PageHeader, hadoop_frames, least_bits};
#[cfg(feature = "cuda")]
pub(crate) use page_header::{DataPage, DictionaryPage, OnePage, PageLevels, PageList};
pub(crate) use pieces::{Chunk, Pieces};
#[cfg(feature = "cuda")]
pub(crate) use plan::ColumnPlan;
pub(crate) use plan::{DECODED_GAP, GroupPlan, Planner, ReadPlan, Request, joined};
pub use plan::{SkipReason, SkippedRows};
pub(crate) use predicate::{Bound, Key, Node, Operator};
pub use predicate::{Column, Predicate, Value, column};
pub(crate) use rows::Rows;

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};

/// The name of the format in errors.
pub(crate) const FORMAT: &str = "parquet";

/// An error about bytes that are not Parquet.
pub(crate) fn malformed(part: Option<Arc<str>>, what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Malformed {
        format: FORMAT,
        part,
        what: what.into(),
    })
}

/// An error about what the caller asked for.
pub(crate) fn invalid(what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOption { what: what.into() })
}
