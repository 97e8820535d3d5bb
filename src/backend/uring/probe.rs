//! Whether io_uring works in this process: asked of the system by doing it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{opcode, types};

use super::ring::{Ring, refusal};
use crate::error::Refusal;
use crate::sys::{self, PerProcess};

/// What was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// How rings are set up here.
    pub(crate) setup: &'static str,
}

/// Whether and how io_uring works, found out once in a process: a ring is made, asked which operations it knows, and
/// made to read. A refusal that may pass (too many open files, say) is found out again.
pub(crate) fn facts() -> Result<Facts, Refusal> {
    static FACTS: PerProcess<Result<Facts, Refusal>> = PerProcess::new();
    if let Some(known) = FACTS.peek() {
        return known.clone();
    }
    match probe() {
        Err(Refusal::Os { op, source }) if sys::is_passing(&source) => {
            Err(Refusal::Os { op, source })
        }
        found => FACTS.get(|| found).clone(),
    }
}

const CONTENT: &[u8; 16] = b"feedwater probes";

fn probe() -> Result<Facts, Refusal> {
    let mut ring = Ring::new(4)?;
    let setup = ring.describe();
    ring.begin(1)
        .map_err(|error| refusal("io_uring_register", Some(error)))?;
    // All of them came with Linux 5.6 or before.
    let needed = [
        opcode::Read::CODE,
        opcode::PollAdd::CODE,
        opcode::OpenAt::CODE,
        opcode::Statx::CODE,
        opcode::Close::CODE,
    ];
    let known = ring
        .knows(&needed)
        .map_err(|error| refusal("io_uring_register", Some(error)))?;
    if !known {
        return Err(Refusal::NotOnThisSystem {
            what: "reading by io_uring (Linux 5.6)".into(),
        });
    }
    read_once(&mut ring).map_err(|error| refusal("a read by io_uring", Some(error)))?;
    Ok(Facts { setup })
}

/// One real read: there are systems that make rings and refuse to serve them.
fn read_once(ring: &mut Ring) -> io::Result<()> {
    let file = sys::file_in_memory(CONTENT)?;
    // Of its own, so that it can be left behind if the read never ends.
    let mut buffer = Box::new([0u8; CONTENT.len()]);
    let target = buffer.as_mut_ptr();
    let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), target, CONTENT.len() as u32);
    // SAFETY: file and buffer are kept until the completion was seen, or leaked.
    let pushed = unsafe { ring.push(&entry.build()) };
    let mut seen = Vec::new();
    // Bounded: a signal now and then is no reason to give up.
    for _ in 0..100 {
        match ring.enter(1) {
            Ok(_) => {}
            Err(error) => {
                std::mem::forget((buffer, file));
                return Err(error);
            }
        }
        ring.completions(&mut seen);
        if !seen.is_empty() {
            break;
        }
    }
    match seen.first() {
        Some((_, n)) if *n == CONTENT.len() as i32 && *buffer == *CONTENT && pushed => Ok(()),
        Some((_, n)) if *n < 0 => Err(io::Error::from_raw_os_error(-n)),
        Some(_) => Err(io::Error::other("it read something else")),
        None => {
            std::mem::forget((buffer, file));
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_answer_stays_the_same() {
        let say = |facts: Result<super::Facts, _>| match facts {
            Ok(facts) => facts.setup.to_owned(),
            Err(refusal) => format!("{refusal}"),
        };
        assert_eq!(say(super::facts()), say(super::facts()));
    }
}
