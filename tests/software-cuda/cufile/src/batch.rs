//! Batches: the last entry comes first, and events are told of one by one.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

use crate::api::{Status, opened};
use crate::codes;
use crate::read::Asked;
use crate::state::state;

/// `CUfileIOParams_t`
#[repr(C)]
pub struct Submitted {
    mode: c_int,
    base: u64,
    file_offset: i64,
    device_offset: i64,
    len: usize,
    handle: usize,
    operation: c_int,
    cookie: usize,
}

/// `CUfileIOEvents_t`
#[repr(C)]
pub struct Event {
    cookie: usize,
    status: c_int,
    result: usize,
}

/// A batch.
#[derive(Default)]
pub struct Batch {
    /// Most entries.
    pub most: usize,
    /// Submitted and not yet told of, with what the caller knows each by; the last one comes first.
    pub waiting: VecDeque<(usize, Asked)>,
    /// Given up.
    pub canceled: bool,
}

const CANCELED: c_int = 8;
const COMPLETE: c_int = 16;
const FAILED: c_int = 64;
/// The only mode.
const BATCH: c_int = 1;
/// The operation that reads.
const READ: c_int = 0;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIOSetUp(place: *mut usize, most: c_uint) -> Status {
    opened("cuFileBatchIOSetUp", |state| {
        if most == 0 || most > state.options.batch {
            return codes::INVALID_VALUE;
        }
        let handle = state.handle();
        let batch = Batch {
            most: most as usize,
            ..Batch::default()
        };
        state.batches.insert(handle, batch);
        // SAFETY: the caller gives a place for the handle.
        unsafe { place.write(handle) };
        codes::SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIOSubmit(
    batch: usize,
    count: c_uint,
    entries: *mut Submitted,
    _flags: c_uint,
) -> Status {
    opened("cuFileBatchIOSubmit", |state| {
        let Some(batch) = state.batches.get_mut(&batch) else {
            return codes::INVALID_VALUE;
        };
        // SAFETY: the caller gives so many entries.
        let entries = unsafe { std::slice::from_raw_parts(entries, count as usize) };
        if count == 0 || batch.waiting.len() + entries.len() > batch.most {
            return codes::INVALID_VALUE;
        }
        if entries
            .iter()
            .any(|entry| entry.mode != BATCH || entry.operation != READ)
        {
            return codes::IO_NOT_SUPPORTED;
        }
        for entry in entries {
            let (base, behind) = (entry.base, entry.device_offset);
            let asked = Asked {
                handle: entry.handle,
                base,
                behind,
                len: entry.len,
                offset: entry.file_offset,
            };
            batch.waiting.push_front((entry.cookie, asked));
        }
        batch.canceled = false;
        state.counts.submits += 1;
        codes::SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIOGetStatus(
    batch: usize,
    least: c_uint,
    count: *mut c_uint,
    events: *mut Event,
    _timeout: *mut c_void,
) -> Status {
    // SAFETY: the caller says how much room there is for events.
    let room = unsafe { *count };
    let mut told = 0;
    // No more than is asked for, so that callers have to come again; at least one.
    while told < room.min(least.max(1)) {
        let mut next = None;
        let status = opened("cuFileBatchIOGetStatus", |state| {
            if least > room || !state.batches.contains_key(&batch) {
                return codes::INVALID_VALUE;
            }
            if state.delay > 0 {
                // As if the time were over.
                state.delay -= 1;
                return codes::SUCCESS;
            }
            if let Some(batch) = state.batches.get_mut(&batch) {
                next = batch
                    .waiting
                    .pop_front()
                    .map(|entry| (entry, batch.canceled));
            }
            codes::SUCCESS
        });
        if status.cufile != codes::SUCCESS {
            return status;
        }
        let Some(((cookie, asked), canceled)) = next else {
            break;
        };
        let (status, result) = match (canceled, asked.read_unless(canceled)) {
            (true, _) => (CANCELED, 0),
            (_, Ok(bytes)) => (COMPLETE, bytes),
            (_, Err(code)) => (FAILED, (-(code as isize)) as usize),
        };
        // SAFETY: `told` is less than the room that the caller says there is.
        unsafe {
            events.add(told as usize).write(Event {
                cookie,
                status,
                result,
            })
        };
        told += 1;
    }
    // SAFETY: as above.
    unsafe { count.write(told) };
    Status {
        cufile: codes::SUCCESS,
        cuda: 0,
    }
}

impl Asked {
    fn read_unless(self, canceled: bool) -> Result<usize, c_int> {
        if canceled { Ok(0) } else { self.read("entry") }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIOCancel(batch: usize) -> Status {
    opened("cuFileBatchIOCancel", |state| {
        match state.batches.get_mut(&batch) {
            Some(batch) => {
                batch.canceled = true;
                state.counts.cancels += 1;
                codes::SUCCESS
            }
            None => codes::INVALID_VALUE,
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIODestroy(batch: usize) {
    let mut state = state();
    let known = state.batches.remove(&batch);
    // What still waits would be written to memory that the caller takes to be its own again.
    state.counts.wrong += u64::from(!known.is_some_and(|batch| batch.waiting.is_empty()));
}
