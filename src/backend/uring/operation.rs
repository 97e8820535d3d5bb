//! A piece of a request on its way through a ring, as a machine of two steps: what to ask next, and what the answer
//! means. Pure, but for the memory it copies from a bounce block at the end.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use crate::backend::requests::{DirectFile, Piece, no_bytes};
use crate::buffer::BlockMut;
use crate::error::{Error, Result};
use crate::reader::Counters;

/// Most bytes of one read: below 2 GiB, where results stop fitting, and a multiple of any alignment that is met.
pub(super) const MOST: u64 = 1 << 30;

/// So many answers in a row that say "not now" are taken for a no.
pub(super) const MOST_REFUSALS: u32 = 1000;

/// Whether asking again may do. `ECANCELED` although nobody cancels: a signal came while the kernel was starting a
/// thread of its own for it.
pub(super) fn is_not_now(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::ECANCELED)
    )
}

/// One read to ask the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) fd: RawFd,
    pub(super) offset: u64,
    pub(super) target: *mut u8,
    pub(super) len: u32,
    /// A thread of the kernel is to do it: on the spot, it was said that it would wait.
    pub(super) may_wait: bool,
}

/// What an answer means.
#[derive(Debug)]
pub(super) enum Step {
    /// Ask again, by what [`ReadOperation::call`] says now.
    Again,
    /// All bytes are there, or none will come.
    Done(Result<()>),
}

#[derive(Debug)]
enum Way {
    Buffered,
    Direct,
    /// By way of aligned memory that begins `before` bytes ahead of the piece.
    Bounced {
        block: BlockMut,
        before: u64,
    },
}

/// A piece being read.
#[derive(Debug)]
pub(super) struct ReadOperation {
    piece: Piece,
    way: Way,
    /// Bytes wanted from the start of what is read, and those that are there.
    wanted: u64,
    done: u64,
    refusals: u32,
    may_wait: bool,
}

impl ReadOperation {
    /// Decides how the piece is to be read. Without memory to bounce it through, it is finished with the error.
    pub(super) fn new(piece: Piece) -> Result<Self, (Piece, Error)> {
        let mut operation = ReadOperation {
            piece,
            way: Way::Buffered,
            wanted: 0,
            done: 0,
            refusals: 0,
            may_wait: false,
        };
        match operation.choose_way() {
            Ok(()) => Ok(operation),
            Err(error) => Err((operation.piece, error)),
        }
    }

    fn choose_way(&mut self) -> Result<()> {
        let context = self.piece.context();
        let range = self.piece.range();
        let within = range.end.min(context.access().file().len());
        self.done = 0;
        self.wanted = within.saturating_sub(range.start);
        let Some(direct) = context.access().direct_file() else {
            self.way = Way::Buffered;
            return Ok(());
        };
        let aligned = range.end.is_multiple_of(direct.align());
        if aligned && direct.fits(range.start, self.piece.target()) {
            self.way = Way::Direct;
            return Ok(());
        }
        let align = direct.strictest();
        let before = range.start % align;
        let start = range.start - before;
        let end = within.checked_next_multiple_of(align).unwrap_or(within);
        let block = context.pool().take_over_cap((end - start) as usize)?;
        self.wanted = within - start;
        self.way = Way::Bounced { block, before };
        Ok(())
    }

    pub(super) fn piece(&self) -> &Piece {
        &self.piece
    }

    /// It is with the kernel from now on.
    pub(super) fn launched(&self) {
        self.counters().begin_request();
    }

    /// It is no longer with the kernel.
    pub(super) fn landed(&self) {
        self.counters().end_request();
    }

    pub(super) fn into_piece(self) -> Piece {
        self.piece
    }

    fn counters(&self) -> &Counters {
        self.piece.context().source().counters()
    }

    /// Gives it up while the kernel may still write to its memory, none of which is ever freed.
    pub(super) fn leak(self) {
        std::mem::forget(self.way);
        self.piece.leak();
    }

    /// The descriptor for what is not read through the page cache.
    fn direct(&self) -> Option<&DirectFile> {
        match self.way {
            Way::Buffered => None,
            // Refused meanwhile by an answer to another piece: this one is in the middle of it all the same.
            Way::Direct | Way::Bounced { .. } => self.piece.context().access().opened_direct(),
        }
    }

    /// Bytes at the end of what is done that have to be read again to stay aligned.
    fn again(&self) -> u64 {
        self.direct()
            .map_or(0, |direct| self.done % direct.strictest())
    }

    /// What to ask for. The memory stays valid until the operation is finished, dropped, or asked again.
    pub(super) fn call(&self) -> Call {
        let range = self.piece.range();
        let from = self.done - self.again();
        let (start, target, len) = match &self.way {
            Way::Buffered => (range.start, self.piece.target(), self.wanted),
            Way::Direct => (range.start, self.piece.target(), range.end - range.start),
            Way::Bounced { block, before } => {
                let start = range.start - before;
                (start, block.unfilled_ptr(), block.remaining() as u64)
            }
        };
        let fd = match self.direct() {
            Some(direct) => direct.fd().as_raw_fd(),
            None => self.piece.context().access().file().fd().as_raw_fd(),
        };
        Call {
            fd,
            offset: start + from,
            target: target.wrapping_add(from as usize),
            len: (len - from).min(MOST) as u32,
            may_wait: self.may_wait,
        }
    }

    /// What the answer to the last [`call`](Self::call) means: bytes that came, or an error number below 0.
    pub(super) fn answer(&mut self, result: i32) -> Step {
        self.counters().add_requests(1);
        let Ok(came) = u64::try_from(result) else {
            return self.failed(io::Error::from_raw_os_error(result.saturating_neg()));
        };
        let again = self.again();
        if came <= again {
            // No byte that was not there before: the source ends here.
            let at = self.call().offset + came;
            return Step::Done(Err(no_bytes("read", at)));
        }
        self.refusals = 0;
        self.may_wait = false;
        self.done += came - again;
        if self.done < self.wanted {
            self.counters().add_retried(1);
            return Step::Again;
        }
        self.counters().add_read(self.done);
        self.bring_home();
        Step::Done(Ok(()))
    }

    fn failed(&mut self, error: io::Error) -> Step {
        let not_now = is_not_now(&error);
        if not_now && self.refusals < MOST_REFUSALS {
            self.refusals += 1;
            // What cannot be done without waiting is done by a thread that waits.
            self.may_wait = error.raw_os_error() == Some(libc::EAGAIN);
            self.counters().add_retried(1);
            return Step::Again;
        }
        let error = Error::io("read", error);
        if self.direct().is_some() && self.piece.context().access().refuse_direct(&error) {
            self.way = Way::Buffered;
            return match self.choose_way() {
                Ok(()) => Step::Again,
                Err(error) => Step::Done(Err(error)),
            };
        }
        Step::Done(Err(error))
    }

    /// Copies what was bounced to where it belongs.
    fn bring_home(&mut self) {
        let Way::Bounced { block, before } = &self.way else {
            return;
        };
        let range = self.piece.range();
        let context = self.piece.context();
        let end = range.end.min(context.access().file().len());
        let len = end - range.start;
        // SAFETY: the block holds everything from `before` bytes ahead of the piece to `end`, which was read; the
        // target is the piece's, is as long as it, and is not this block.
        unsafe {
            std::ptr::copy_nonoverlapping(
                block.unfilled_ptr().add(*before as usize).cast_const(),
                self.piece.target(),
                len as usize,
            );
        }
        let counters = context.source().counters();
        counters.add_bounced(len);
        counters.add_wasted(self.done - len);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::ops::Range;

    use proptest::prelude::*;

    use super::super::fixture::Fixture;
    use super::*;
    use crate::backend::requests::{Batched, Context, Job};
    use crate::error::ErrorKind;
    use crate::reader::CounterSnapshot;

    /// Memory to read into, with bytes around it that must stay.
    struct Target {
        bytes: Vec<u8>,
        at: usize,
        len: usize,
    }

    const AROUND: u8 = 0xee;

    impl Target {
        /// `off` bytes behind an address that is as aligned as any device needs.
        fn new(len: u64, off: usize) -> Self {
            let bytes = vec![AROUND; len as usize + 3 * 4096];
            let at = bytes.as_ptr().align_offset(4096) + 4096 + off;
            let len = len as usize;
            Target { bytes, at, len }
        }

        fn ptr(&mut self) -> *mut u8 {
            self.bytes[self.at..].as_mut_ptr()
        }

        fn holds(&self, right: &[u8]) -> bool {
            let (before, rest) = self.bytes.split_at(self.at);
            let (read, after) = rest.split_at(self.len);
            let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == AROUND);
            read == right && untouched(before) && untouched(after)
        }
    }

    /// The operation of a piece that is `range` itself.
    fn operation(context: &Context, range: Range<u64>, target: *mut u8) -> ReadOperation {
        // SAFETY: the tests keep the memory for longer than the operation, and write to it as a kernel would.
        let job = unsafe { Job::borrowed(range.clone(), target) };
        let work = Batched::new(context.clone(), vec![job], u64::MAX);
        let pieces: Vec<_> = std::iter::from_fn(|| work.claim()).collect();
        let piece = pieces.into_iter().find(|piece| *piece.range() == range);
        ReadOperation::new(piece.unwrap()).unwrap()
    }

    fn counters(context: &Context) -> CounterSnapshot {
        context.source().counters().snapshot()
    }

    /// Reads `most` bytes of what was asked for, as a kernel would.
    fn give(call: Call, fixture: &Fixture, most: u64) -> i32 {
        let end = (call.offset + u64::from(call.len).min(most)).min(fixture.file().len());
        let bytes = fixture.bytes(&(call.offset..end));
        // SAFETY: the call names memory of that length.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), call.target, bytes.len()) };
        bytes.len() as i32
    }

    fn again(step: Step) -> bool {
        matches!(step, Step::Again)
    }

    fn done(step: Step) -> bool {
        matches!(step, Step::Done(Ok(())))
    }

    fn failure(step: Step) -> Error {
        match step {
            Step::Done(Err(error)) => error,
            step => panic!("{step:?}"),
        }
    }

    fn code(error: &Error) -> Option<i32> {
        match error.kind() {
            ErrorKind::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    #[test]
    fn short_reads_go_on_where_they_ended() {
        let fixture = Fixture::new(5000);
        let context = fixture.buffered();
        let mut target = Target::new(1000, 3);
        let start = target.ptr();
        let mut read = operation(&context, 100..1100, start);
        let call = read.call();
        assert_eq!((call.offset, call.target, call.len), (100, start, 1000));
        assert!(!call.may_wait);
        assert!(again(read.answer(give(call, &fixture, 300))));
        let call = read.call();
        assert_eq!((call.offset, call.len), (400, 700));
        assert_eq!(call.target, start.wrapping_add(300));
        assert!(again(read.answer(-libc::EINTR)));
        assert_eq!(read.call(), call, "asked as before");
        assert!(done(read.answer(give(call, &fixture, 700))));
        let now = counters(&context);
        assert_eq!((now.requests, now.retried, now.read), (3, 2, 1000));
        assert!(target.holds(fixture.bytes(&(100..1100))));
    }

    #[test]
    fn past_the_cache_short_reads_begin_again_at_the_last_aligned_offset() {
        let fixture = Fixture::new(3 * 4096 + 5);
        let Some(context) = fixture.direct(false) else {
            return;
        };
        let align = context.access().align();
        let mut target = Target::new(2 * align, 0);
        let mut read = operation(&context, align..3 * align, target.ptr());
        let call = read.call();
        assert_eq!((call.offset, u64::from(call.len)), (align, 2 * align));
        assert!(again(read.answer(give(call, &fixture, align + 1))));
        let call = read.call();
        assert_eq!((call.offset, u64::from(call.len)), (2 * align, align));
        // The one byte that was there already is no progress.
        let error = failure(read.answer(give(call, &fixture, 1)));
        assert_eq!(error.io_kind(), io::ErrorKind::UnexpectedEof);
        let at = format!("offset {}", 2 * align + 1);
        assert!(error.to_string().contains(&at), "{error}");

        let mut read = operation(&context, align..3 * align, target.ptr());
        for most in [align + 1, 2, 3, align] {
            let call = read.call();
            let step = read.answer(give(call, &fixture, most));
            assert_eq!(done(step), most == align);
        }
        assert!(target.holds(fixture.bytes(&(align..3 * align))));
    }

    #[test]
    fn nothing_within_the_length_is_an_error_that_says_where() {
        let fixture = Fixture::new(5000);
        let context = fixture.buffered();
        let mut target = Target::new(5000, 0);
        let mut read = operation(&context, 0..5000, target.ptr());
        assert!(again(read.answer(give(read.call(), &fixture, 1234))));
        let error = failure(read.answer(0));
        assert_eq!(error.io_kind(), io::ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("offset 1234"), "{error}");
        assert_eq!(counters(&context).read, 0, "not complete, so not delivered");
    }

    #[test]
    fn not_now_is_asked_again_and_not_for_ever() {
        let fixture = Fixture::new(5000);
        let context = fixture.buffered();
        for (number, may_wait) in [
            (libc::EAGAIN, true),
            (libc::EINTR, false),
            (libc::ECANCELED, false),
        ] {
            let mut target = Target::new(5000, 0);
            let mut read = operation(&context, 0..5000, target.ptr());
            // Progress in between begins a new count.
            for _ in 0..2 {
                for _ in 0..MOST_REFUSALS {
                    assert!(again(read.answer(-number)));
                    assert_eq!(read.call().may_wait, may_wait);
                }
                assert!(again(read.answer(give(read.call(), &fixture, 100))));
                assert!(!read.call().may_wait);
            }
            for _ in 0..MOST_REFUSALS {
                assert!(again(read.answer(-number)));
            }
            assert_eq!(code(&failure(read.answer(-number))), Some(number));
        }
    }

    #[test]
    fn what_is_refused_past_the_cache_goes_through_it_if_that_is_allowed() {
        let fixture = Fixture::new(9000);
        for number in [libc::EINVAL, libc::EOPNOTSUPP] {
            let Some(context) = fixture.direct(true) else {
                return;
            };
            // The second one bounces, and neither its memory nor its alignment matters any more.
            for (range, off) in [(0..4096, 0), (5001..8000, 5)] {
                let mut target = Target::new(range.end - range.start, off);
                let mut read = operation(&context, range.clone(), target.ptr());
                let direct = read.call();
                if !context.access().was_refused() {
                    assert!(again(read.answer(-number)));
                    assert!(context.access().was_refused());
                    assert_ne!(read.call().fd, direct.fd);
                }
                let call = read.call();
                assert_eq!((call.offset, call.target), (range.start, target.ptr()));
                assert_eq!(u64::from(call.len), range.end - range.start);
                assert!(again(read.answer(give(call, &fixture, 1))));
                assert!(done(read.answer(give(read.call(), &fixture, 9000))));
                assert!(target.holds(fixture.bytes(&range)));
            }
            assert_eq!(counters(&context).bounced, 0);
        }
    }

    #[test]
    fn one_that_was_in_flight_when_another_was_refused_goes_on() {
        let fixture = Fixture::new(9000);
        let Some(context) = fixture.direct(true) else {
            return;
        };
        let align = context.access().align();
        let (mut first, mut second) = (Target::new(align, 0), Target::new(100, 1));
        let mut refused = operation(&context, 0..align, first.ptr());
        let mut flying = operation(&context, align + 7..align + 107, second.ptr());
        let call = flying.call();
        assert!(again(refused.answer(-libc::EINVAL)));
        assert!(again(flying.answer(give(call, &fixture, 9))));
        assert_eq!(flying.call().fd, call.fd, "as it began");
        assert!(done(flying.answer(give(flying.call(), &fixture, align))));
        assert!(second.holds(fixture.bytes(&(align + 7..align + 107))));
    }

    #[test]
    fn other_errors_end_it() {
        let fixture = Fixture::new(9000);
        let Some(direct) = fixture.direct(true) else {
            return;
        };
        let Some(demanded) = fixture.direct(false) else {
            return;
        };
        for (context, number) in [
            (&fixture.buffered(), libc::EINVAL),
            (&direct, libc::EIO),
            (&demanded, libc::EINVAL),
        ] {
            let mut target = Target::new(4096, 0);
            let mut read = operation(context, 0..4096, target.ptr());
            assert_eq!(code(&failure(read.answer(-number))), Some(number));
            assert!(!context.access().was_refused());
        }
    }

    #[test]
    fn more_than_a_result_can_tell_is_asked_for_in_parts() {
        let fixture = Fixture::new(0);
        let len = (5 << 30) + 7;
        // The operation does not look at the file.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large");
        File::create(&path).unwrap().set_len(len).unwrap();
        let fixture = fixture.with_file(&path);
        let context = fixture.buffered();
        // SAFETY: nothing is written.
        let nowhere = std::ptr::without_provenance_mut(1 << 20);
        let mut read = operation(&context, 0..len, nowhere);
        for part in 0..5u64 {
            let call = read.call();
            assert_eq!((call.offset, call.len), (part << 30, 1 << 30));
            assert_eq!(call.target.addr() as u64, (1 << 20) + (part << 30));
            assert!(again(read.answer(call.len as i32)));
        }
        assert_eq!(read.call().len, 7);
        assert!(done(read.answer(7)));
        assert_eq!(counters(&context).read, len);
    }

    #[test]
    fn a_bounce_copies_what_was_asked_for_and_counts_the_rest() {
        let fixture = Fixture::new(3 * 4096 + 5);
        let Some(context) = fixture.direct(false) else {
            return;
        };
        let align = context.access().align();
        let end = 3 * 4096 + 5;
        for (range, wasted) in [
            // In the middle, over an edge, and at the end of the file, behind which there is nothing to waste.
            (10..30, align - 20),
            (align - 1..align + 1, 2 * align - 2),
            (end - 3..end, 2),
        ] {
            let before = counters(&context);
            let mut target = Target::new(range.end - range.start, 1);
            let mut read = operation(&context, range.clone(), target.ptr());
            let call = read.call();
            assert!(call.offset.is_multiple_of(align) && u64::from(call.len).is_multiple_of(align));
            assert!((call.target.addr() as u64).is_multiple_of(align));
            assert!(done(read.answer(give(call, &fixture, u64::MAX))));
            assert!(target.holds(fixture.bytes(&range)), "{range:?}");
            let now = counters(&context);
            let len = range.end - range.start;
            assert_eq!(now.bounced - before.bounced, len, "{range:?}");
            assert_eq!(now.wasted - before.wasted, wasted, "{range:?}");
            assert_eq!(now.read - before.read, len + wasted, "{range:?}");
        }
    }

    /// How a kernel may answer.
    #[derive(Clone, Copy, Debug)]
    enum Answer {
        Bytes(u64),
        Error(i32),
    }

    fn answers() -> impl Strategy<Value = Vec<Answer>> {
        let one = prop_oneof![
            4 => (1u64..6000).prop_map(Answer::Bytes),
            1 => Just(Answer::Error(libc::EINTR)),
            1 => Just(Answer::Error(libc::EAGAIN)),
        ];
        proptest::collection::vec(one, 0..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn bytes_are_right_however_they_come(
            start in 0u64..9000, len in prop_oneof![1u64..9000, 64_000u64..100_000], off in 0usize..4096, aligned in any::<bool>(),
            past in any::<bool>(), answers in answers(),
        ) {
            let fixture = Fixture::new(90_001);
            let context = match past {
                true => fixture.direct(false),
                false => Some(fixture.buffered()),
            };
            let Some(context) = context else { return Ok(()) };
            let end = (start + len).min(90_001);
            let off = if aligned { 0 } else { off };
            let mut target = Target::new(end - start, off);
            // SAFETY: as above.
            let job = unsafe { Job::borrowed(start..end, target.ptr()) };
            let work = Batched::new(context.clone(), vec![job], 4096);
            let mut answers = answers.into_iter();
            while let Some(piece) = work.claim() {
                let mut read = ReadOperation::new(piece).unwrap();
                loop {
                    let call = read.call();
                    if past {
                        prop_assert!(call.offset.is_multiple_of(context.access().align()));
                    }
                    let result = match answers.next() {
                        Some(Answer::Error(number)) => -number,
                        // What makes no progress would say that the file has ended.
                        Some(Answer::Bytes(n)) => give(call, &fixture, n + read.again()),
                        None => give(call, &fixture, u64::MAX),
                    };
                    match read.answer(result) {
                        Step::Again => {}
                        Step::Done(outcome) => {
                            prop_assert!(outcome.is_ok());
                            read.into_piece().finish(Ok(()), |_| Ok(()));
                            break;
                        }
                    }
                }
            }
            prop_assert!(target.holds(fixture.bytes(&(start..end))));
        }
    }
}
