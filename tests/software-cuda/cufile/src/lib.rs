//! cuFile for the software CUDA device: `libcufile.so.0`, which reads files into that device's memory.
//!
//! The bytes come by `pread`, and go to the device past all its streams. The library asks the driver for
//! every address and for the context of the calling thread: what is not in one allocation, or comes without a context, is refused as cuFile would.
//!
//! What a program must not count on is taken away from it: batches finish in another order than they were submitted in and
//! are told of one by one, reads ask nothing of streams, reads may be short. Tests make calls fail, wait or hang by [`control`];
//! the environment variables of [`options`] do so for a whole program.
//!
//! | file | what |
//! |---|---|
//! | [`api`] | the functions of cuFile |
//! | [`batch`] | those for batches |
//! | [`read`] | one read: of a call, of a batch, of a stream |
//! | [`state`] | what is open and registered, injected errors, counts |
//! | [`driver`] | what is asked of the device's driver |
//!
//! Not there: writes, polling, files of user space, statistics. A stream read is done when it is queued, after the work of its stream.

#[allow(missing_docs, non_snake_case, clippy::missing_safety_doc)]
pub mod api;
#[allow(missing_docs, non_snake_case, clippy::missing_safety_doc)]
pub mod batch;
pub mod codes;
pub mod control;
pub mod driver;
pub mod options;
pub mod read;
pub mod state;
