//! A file system whose reads are answered when a test says so: FUSE, spoken by a process of its own.
//!
//! That process answers what the kernel asks, but for what a test has it hold. It is no thread of the test: a process
//! that ends while a thread of it waits for an answer of another one could wait for ever. However the test ends, the
//! server ends as well, and with it the connection; the kernel then fails what still waits.
//!
//! Files are reached through an overlay, which hides that they are of FUSE: engines take it for a file system of a
//! device. All of it is mounted nowhere (fsmount(2)), so nothing is left behind. Needs root.
//!
//! Protocol: linux/fuse.h.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

/// Seconds that a server lives at most: a test that is stuck in the kernel comes free then.
const SERVER_SECONDS: u32 = 300;

/// Seconds that a test waits for the kernel to ask.
const PATIENCE_SECONDS: i64 = 60;

/// What can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Reads,
    /// What `fstat` asks for after a read.
    Attributes,
}

/// How a held request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Right,
    /// With so many bytes of those asked for.
    Short(u64),
    /// With this error number.
    Error(i32),
}

/// A request of the kernel that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    unique: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A file system in which any name of one small letter is a file of [`content`](Hanging::content).
pub(crate) struct Hanging {
    overlay: OwnedFd,
    fuse: OwnedFd,
    _below: TempDir,
    control: OwnedFd,
    _server: Process,
    len: u64,
    held: Mutex<Vec<Held>>,
}

impl Hanging {
    /// Files of `len` bytes. `direct`: each read is one request to the server, straight into the reader's memory;
    /// else they go through the page cache, by pages.
    pub(crate) fn new(len: u64, direct: bool) -> io::Result<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let fd = device.as_raw_fd().to_string();
        let fuse = mount(
            c"fuse",
            &[
                (c"fd", &fd),
                (c"rootmode", "40000"),
                (c"user_id", "0"),
                (c"group_id", "0"),
                (c"allow_other", ""),
            ],
        )?;
        let (control, theirs) = socket_pair()?;
        let mut server = Server::new(device.as_raw_fd(), theirs.as_raw_fd(), len, direct);
        let test = std::process::id();
        // SAFETY: the child makes system calls and moves bytes in memory that was allocated before; it leaves through
        // `_exit` in any case.
        let pid = unsafe {
            match libc::fork() {
                0 => {
                    libc::alarm(SERVER_SECONDS);
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    if libc::getppid() as u32 == test {
                        let _ = catch_unwind(AssertUnwindSafe(|| server.serve()));
                    }
                    libc::_exit(0)
                }
                pid => pid,
            }
        };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        let server = Process(pid);
        // Nothing is written, and the last layer has nothing: there have to be two.
        let below = tempfile::tempdir()?;
        let layers = format!("{}:{}", root(&fuse).display(), below.path().display());
        Ok(Hanging {
            overlay: mount(c"overlay", &[(c"lowerdir", &layers)])?,
            fuse,
            _below: below,
            control,
            _server: server,
            len,
            held: Mutex::default(),
        })
    }

    /// Where the file `name` is, for processes that have this value.
    pub(crate) fn path(&self, name: char) -> PathBuf {
        root(&self.overlay).join(name.to_string())
    }

    /// The same as a file of FUSE.
    pub(crate) fn bare_path(&self, name: char) -> PathBuf {
        root(&self.fuse).join(name.to_string())
    }

    /// What the file `name` has there.
    pub(crate) fn content(&self, name: char, range: Range<u64>) -> Vec<u8> {
        assert!(range.end <= self.len);
        range.map(|at| byte(node_of(name as u8), at)).collect()
    }

    /// Holds all requests of this kind from now on.
    pub(crate) fn hold(&self, what: What) {
        let mut held = self.lock();
        self.tell([HOLD, what as u64, 0, 0]);
        while let Some(request) = self.next(&held) {
            held.push(request);
        }
    }

    /// What is held, once it is `count` requests or more, in the order in which they came.
    pub(crate) fn wait_for(&self, count: usize) -> Vec<Held> {
        let mut held = self.lock();
        while held.len() < count {
            let next = self.next(&held);
            held.extend(next);
        }
        held.clone()
    }

    /// What is held now.
    pub(crate) fn held(&self) -> Vec<Held> {
        let mut held = self.lock();
        self.tell([NOTHING, 0, 0, 0]);
        while let Some(request) = self.next(&held) {
            held.push(request);
        }
        held.clone()
    }

    /// Answers a request that is held.
    pub(crate) fn answer(&self, request: Held, answer: Answer) {
        self.lock().retain(|held| held.unique != request.unique);
        let (how, with) = match answer {
            Answer::Right => (RIGHT, 0),
            Answer::Short(bytes) => (SHORT, bytes),
            Answer::Error(number) => (ERROR, number as u64),
        };
        self.tell([ANSWER, request.unique, how, with]);
    }

    /// Answers everything, from now on as well.
    pub(crate) fn release(&self) {
        let mut held = self.lock();
        self.tell([RELEASE, 0, 0, 0]);
        while self.next(&held).is_some() {}
        held.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, message: Message) {
        send(self.control.as_raw_fd(), &message);
    }

    /// The next request that is held; `None` when the server has done what it was told.
    fn next(&self, held: &[Held]) -> Option<Held> {
        match receive(self.control.as_raw_fd()) {
            Ok([DONE, ..]) => None,
            Ok([_, unique, offset, len]) => Some(Held {
                unique,
                offset,
                len,
            }),
            Err(error) => {
                // So that nobody hangs for it.
                self.tell([RELEASE, 0, 0, 0]);
                panic!("no other request after {}: {error}", held.len())
            }
        }
    }
}

/// A child, which ends with this value.
struct Process(libc::pid_t);

impl Drop for Process {
    fn drop(&mut self) {
        // With the server its end of the connection is closed: the kernel fails what was not answered.
        // SAFETY: a child of this process that nobody else waits for; `status` is a valid place.
        unsafe {
            let mut status = 0;
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, &mut status, 0);
        }
    }
}

/// Where a mount is that is mounted nowhere.
fn root(mount: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", mount.as_raw_fd()).into()
}

/// The byte of a file at an offset.
fn byte(node: u64, at: u64) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ node) as u8
}

/// A file system of this kind, mounted nowhere. An option without a value is a flag.
fn mount(kind: &CStr, options: &[(&CStr, &str)]) -> io::Result<OwnedFd> {
    const SET_FLAG: libc::c_ulong = 0;
    const SET_STRING: libc::c_ulong = 1;
    const CREATE: libc::c_ulong = 6;
    const CLOEXEC: libc::c_ulong = 1;
    let new_fd = |result: libc::c_long| match RawFd::try_from(result) {
        // SAFETY: the kernel made it for this call.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: a string that outlives the system call of fsopen(2).
    let context = new_fd(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), CLOEXEC) })?;
    let configure =
        |command: libc::c_ulong, key: *const libc::c_char, value: *const libc::c_char| {
            let (call, fd) = (libc::SYS_fsconfig, context.as_raw_fd());
            // SAFETY: strings that outlive the system call of fsconfig(2), or null where it takes none.
            match unsafe { libc::syscall(call, fd, command, key, value, 0 as libc::c_long) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
    let null = std::ptr::null();
    for (key, value) in options {
        if value.is_empty() {
            configure(SET_FLAG, key.as_ptr(), null)?;
        } else {
            let value = CString::new(*value)?;
            configure(SET_STRING, key.as_ptr(), value.as_ptr())?;
        }
    }
    configure(CREATE, null, null)?;
    let (call, fd) = (libc::SYS_fsmount, context.as_raw_fd());
    // SAFETY: the system call of fsmount(2), which takes no memory.
    new_fd(unsafe { libc::syscall(call, fd, CLOEXEC, 0 as libc::c_ulong) })
}

/// Two ends that pass messages whole. The first one gives up waiting in the end.
fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the array has room for both descriptors, which the kernel makes for this call.
    let ends = unsafe {
        if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    let patience = libc::timeval {
        tv_sec: PATIENCE_SECONDS,
        tv_usec: 0,
    };
    let room: libc::c_int = 8 << 20; // for what is held and has not been looked at
    // SAFETY: option values of the sizes that are given.
    unsafe {
        let set = |end: &OwnedFd, option, value: *const libc::c_void, len: usize| {
            let end = end.as_raw_fd();
            libc::setsockopt(end, libc::SOL_SOCKET, option, value, len as libc::socklen_t)
        };
        let len = size_of_val(&patience);
        set(
            &ends.0,
            libc::SO_RCVTIMEO,
            (&raw const patience).cast(),
            len,
        );
        let len = size_of_val(&room);
        set(&ends.1, libc::SO_SNDBUFFORCE, (&raw const room).cast(), len);
    }
    Ok(ends)
}

/// To the server: a command and its arguments. From it: what is held, as kind, number, offset and length.
type Message = [u64; 4];

const HOLD: u64 = 1;
const ANSWER: u64 = 2;
const RELEASE: u64 = 3;
const NOTHING: u64 = 4;
const RIGHT: u64 = 0;
const SHORT: u64 = 1;
const ERROR: u64 = 2;
const DONE: u64 = u64::MAX;

fn send(socket: RawFd, message: &Message) {
    // SAFETY: reads the message, which outlives the call.
    unsafe {
        let len = size_of::<Message>();
        libc::send(socket, message.as_ptr().cast(), len, libc::MSG_NOSIGNAL);
    }
}

fn receive(socket: RawFd) -> io::Result<Message> {
    loop {
        let mut message: Message = [0; 4];
        let len = size_of::<Message>();
        // SAFETY: the message has room for so many bytes.
        let came = unsafe { libc::recv(socket, message.as_mut_ptr().cast(), len, 0) };
        if came == len as isize {
            return Ok(message);
        }
        let error = io::Error::last_os_error();
        if came >= 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

// Of linux/fuse.h.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const RELEASE_FILE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;
const FOPEN_DIRECT_IO: u32 = 1;
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;

const ROOT: u64 = 1;

/// The node of a name of one letter.
fn node_of(name: u8) -> u64 {
    2 + u64::from(name.wrapping_sub(b'a'))
}

/// Most bytes that the kernel asks for at once (32 pages, as nothing else is agreed on).
const MOST: usize = 32 << 12;

/// More than a test holds at once.
const MOST_HELD: usize = 4096;

/// The process that answers the kernel. It allocates nothing while it does.
struct Server {
    fuse: RawFd,
    control: RawFd,
    len: u64,
    direct: bool,
    holds: [bool; 2],
    /// Kind, number, node, offset and length.
    held: Vec<(u32, u64, u64, u64, u64)>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Server {
    fn new(fuse: RawFd, control: RawFd, len: u64, direct: bool) -> Self {
        Server {
            fuse,
            control,
            len,
            direct,
            holds: [false; 2],
            held: Vec::with_capacity(MOST_HELD),
            request: vec![0; 64 << 10],
            reply: Vec::with_capacity(OUT_HEADER + MOST),
        }
    }

    /// Until the file system or the test is gone.
    fn serve(&mut self) {
        self.keep_only_mine();
        loop {
            let wanted = |fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            let mut fds = [wanted(self.control), wanted(self.fuse)];
            // SAFETY: the array has as many entries.
            unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
            if fds[0].revents != 0 && !self.obey() {
                return;
            }
            if fds[1].revents != 0 && !self.ask() {
                return;
            }
        }
    }

    /// Lets go of all descriptors of the test, which would otherwise live as long as this process.
    fn keep_only_mine(&mut self) {
        // SAFETY: descriptors of this process, of which nothing else uses any.
        unsafe {
            let fuse = libc::fcntl(self.fuse, libc::F_DUPFD, 0);
            let control = libc::fcntl(self.control, libc::F_DUPFD, 0);
            // Both above all others, then down to 3 and 4.
            let (high, higher) = (fuse.max(control) + 1, fuse.max(control) + 2);
            libc::dup2(fuse, high);
            libc::dup2(control, higher);
            libc::dup2(high, 3);
            libc::dup2(higher, 4);
            libc::syscall(libc::SYS_close_range, 5, u32::MAX, 0);
            let flags = libc::fcntl(3, libc::F_GETFL);
            libc::fcntl(3, libc::F_SETFL, flags | libc::O_NONBLOCK);
        }
        (self.fuse, self.control) = (3, 4);
    }

    /// Does what the test says. `false`: it is gone.
    fn obey(&mut self) -> bool {
        match receive(self.control) {
            Ok([HOLD, what, ..]) => {
                self.holds[what as usize & 1] = true;
                send(self.control, &[DONE, 0, 0, 0]);
            }
            Ok([ANSWER, unique, how, with]) => {
                let at = self.held.iter().position(|held| held.1 == unique);
                if let Some(at) = at {
                    let held = self.held.remove(at);
                    self.answer(held, how, with);
                }
            }
            Ok([RELEASE, ..]) => {
                self.holds = [false; 2];
                while let Some(held) = self.held.pop() {
                    self.answer(held, RIGHT, 0);
                }
                send(self.control, &[DONE, 0, 0, 0]);
            }
            Ok([NOTHING, ..]) => send(self.control, &[DONE, 0, 0, 0]),
            Ok(_) => {}
            Err(_) => return false,
        }
        true
    }

    fn answer(&mut self, held: (u32, u64, u64, u64, u64), how: u64, with: u64) {
        let (kind, unique, node, offset, len) = held;
        match (how, kind) {
            (ERROR, _) => self.reply(unique, with as i32),
            (SHORT, READ) => self.bytes(unique, node, offset, len.min(with)),
            (_, READ) => self.bytes(unique, node, offset, len),
            _ => self.attributes(unique, node),
        }
    }

    /// Takes what the kernel asks next. `false`: nobody uses the file system any more.
    fn ask(&mut self) -> bool {
        // SAFETY: the buffer has that length.
        let came = unsafe {
            let (to, len) = (self.request.as_mut_ptr(), self.request.len());
            libc::read(self.fuse, to.cast(), len)
        };
        if came < IN_HEADER as isize {
            let error = io::Error::last_os_error().raw_os_error();
            return came < 0 && matches!(error, Some(libc::EINTR | libc::EAGAIN | libc::ENOENT));
        }
        let (kind, unique, node) = (self.u32_at(4), self.u64_at(8), self.u64_at(16));
        match kind {
            INIT => {
                self.reply.clear();
                // Version 7.31, and nothing that is optional: not even reading ahead.
                self.put_u32(&[7, 31, 0, 0, 1024 | 1024 << 16, 4096, 1, 0]);
                self.put_u32(&[0; 8]);
                self.reply(unique, 0);
            }
            LOOKUP => {
                let node = node_of(self.request[IN_HEADER]);
                self.reply.clear();
                self.put_u64(&[node, 0, 1 << 20, 1 << 20, 0]);
                self.put_attributes(node);
                self.reply(unique, 0);
            }
            GETATTR if self.holds[What::Attributes as usize] => self.hold(kind, unique, node, 0, 0),
            GETATTR => self.attributes(unique, node),
            OPEN => {
                self.reply.clear();
                self.put_u64(&[0]);
                self.put_u32(&[if self.direct { FOPEN_DIRECT_IO } else { 0 }, 0]);
                self.reply(unique, 0);
            }
            READ => {
                let offset = self.u64_at(IN_HEADER + 8);
                let asked = u64::from(self.u32_at(IN_HEADER + 16));
                let len = asked.min(self.len.saturating_sub(offset));
                if self.holds[What::Reads as usize] {
                    self.hold(kind, unique, node, offset, len);
                } else {
                    self.bytes(unique, node, offset, len);
                }
            }
            STATFS => {
                self.reply.clear();
                self.put_u64(&[0; 10]);
                self.reply(unique, 0);
            }
            RELEASE_FILE | FLUSH => {
                self.reply.clear();
                self.reply(unique, 0);
            }
            FORGET | BATCH_FORGET | INTERRUPT | DESTROY => {}
            _ => self.reply(unique, libc::ENOSYS),
        }
        true
    }

    fn hold(&mut self, kind: u32, unique: u64, node: u64, offset: u64, len: u64) {
        if self.held.len() < MOST_HELD {
            self.held.push((kind, unique, node, offset, len));
            send(self.control, &[u64::from(kind), unique, offset, len]);
        }
    }

    fn bytes(&mut self, unique: u64, node: u64, offset: u64, len: u64) {
        self.reply.clear();
        let bytes = offset..offset + len.min(MOST as u64);
        self.reply.extend(bytes.map(|at| byte(node, at)));
        self.reply(unique, 0);
    }

    fn attributes(&mut self, unique: u64, node: u64) {
        self.reply.clear();
        self.put_u64(&[1 << 20, 0]);
        self.put_attributes(node);
        self.reply(unique, 0);
    }

    fn put_attributes(&mut self, node: u64) {
        let (mode, len) = match node {
            ROOT => (libc::S_IFDIR | 0o755, 0),
            _ => (libc::S_IFREG | 0o644, self.len),
        };
        // Number, size, blocks, three times; their nanoseconds, mode, links, owner, device, block size.
        self.put_u64(&[node, len, len / 512, 7, 7, 7]);
        self.put_u32(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]);
    }

    /// Sends what was put together, or an error.
    fn reply(&mut self, unique: u64, error: i32) {
        let body = if error == 0 { self.reply.len() } else { 0 };
        let mut header = [0u8; OUT_HEADER];
        header[..4].copy_from_slice(&((OUT_HEADER + body) as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&(-error).to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        let part = |bytes: &[u8]| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let parts = [part(&header), part(&self.reply[..body])];
        // SAFETY: reads both parts, which outlive the call. Whoever asked may be gone: then there is an error.
        unsafe { libc::writev(self.fuse, parts.as_ptr(), 2) };
    }

    fn put_u32(&mut self, words: &[u32]) {
        for word in words {
            self.reply.extend_from_slice(&word.to_ne_bytes());
        }
    }

    fn put_u64(&mut self, words: &[u64]) {
        for word in words {
            self.reply.extend_from_slice(&word.to_ne_bytes());
        }
    }

    fn u32_at(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.request[at..at + 4]);
        u32::from_ne_bytes(bytes)
    }

    fn u64_at(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.request[at..at + 8]);
        u64::from_ne_bytes(bytes)
    }
}
