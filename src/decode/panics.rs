//! Panics that are caught, as errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// Whose code runs where that of callers does as well.
pub(super) const OURS: &str = "the reader or feedwater";

/// A panic as an error, since who waits has to be told. `library`: whose code runs. What `work` borrows mutably may be half done then.
pub(super) fn contained<T>(library: &'static str, work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        Error::new(ErrorKind::Panicked {
            library,
            part: None,
            message: message(payload),
        })
    })
}

/// The message of a panic.
pub(super) fn message(payload: Box<dyn Any + Send>) -> Arc<str> {
    match payload.downcast::<String>() {
        Ok(message) => (*message).into(),
        Err(payload) => match payload.downcast::<&'static str>() {
            Ok(message) => (*message).into(),
            Err(payload) => {
                // Dropping what somebody threw may panic as well, and this is where panics end.
                std::mem::forget(payload);
                "a panic without a message".into()
            }
        },
    }
}
