//! Finishing what the system began: the loop that turns partial reads into complete ones.

use std::io;

/// How a completion loop ended.
#[derive(Debug)]
pub(crate) enum Step {
    /// Every byte is there.
    Done,
    /// The source ended early: nothing came at this many bytes from the start of the range.
    Ended { at: u64 },
    /// The system failed for good.
    Failed(io::Error),
}

/// Calls `step(done)` until `len` bytes are there, where `step` reads on behind the first `done` bytes and says
/// how many came. `EINTR` is tried again without limit, since signals are not ours to count; so is a short read,
/// which makes progress. `retried` counts both.
pub(crate) fn fill(
    len: u64,
    retried: &mut u64,
    mut step: impl FnMut(u64) -> io::Result<usize>,
) -> Step {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(0) => return Step::Ended { at: done },
            Ok(n) => {
                done += n as u64;
                *retried += u64::from(done < len);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => *retried += 1,
            Err(error) => return Step::Failed(error),
        }
    }
    Step::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(len: u64, script: Vec<io::Result<usize>>) -> (Step, u64, Vec<u64>) {
        let mut script = script.into_iter();
        let (mut retried, mut calls) = (0, Vec::new());
        let step = fill(len, &mut retried, |done| {
            calls.push(done);
            script.next().unwrap()
        });
        (step, retried, calls)
    }

    #[test]
    fn short_reads_and_interruptions_are_finished() {
        let eintr = || Err(io::ErrorKind::Interrupted.into());
        let (step, retried, calls) = run(10, vec![eintr(), Ok(3), eintr(), eintr(), Ok(6), Ok(1)]);
        assert!(matches!(step, Step::Done));
        assert_eq!((retried, calls), (5, vec![0, 0, 3, 3, 3, 9]));
    }

    #[test]
    fn an_early_end_says_where() {
        let (step, ..) = run(10, vec![Ok(4), Ok(0)]);
        assert!(matches!(step, Step::Ended { at: 4 }));
    }

    #[test]
    fn other_errors_end_it() {
        let (step, ..) = run(10, vec![Ok(4), Err(io::Error::from_raw_os_error(5))]);
        assert!(matches!(step, Step::Failed(e) if e.raw_os_error() == Some(5)));
    }

    #[test]
    fn nothing_is_asked_for_nothing() {
        assert!(matches!(run(0, vec![]).0, Step::Done));
    }
}
