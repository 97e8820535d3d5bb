//! What was thrown by a panic that was caught.

use std::any::Any;
use std::sync::Arc;

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
