//! `zazen run --seccomp`: forwards statically linked programs, on the same machine only. The kernel
//! stops each system call that takes a path and asks a supervisor about it (`seccomp(2)`, user
//! notifications).
//!
//! There are three processes. The *front* is the one that the user started; it passes signals on
//! and ends as the program does. Its child, the *supervisor*, answers system calls until no process
//! is left that makes any. The program is the supervisor's child, so that the supervisor may read
//! its memory.
//!
//! - [`run`] starts the three; `filter` says which calls the kernel asks about, `notify` is the
//!   kernel's side of it;
//! - `calls` has one function for each system call; `places` says where its paths lead;
//! - `target` reads the program's memory and `/proc`; `far` calls the posix plug-in, as the
//!   program's user.
//!
//! Invariants: the kernel itself does what is not forwarded, with the program's own rights and
//! restrictions. All that the supervisor does is done and checked as the program's user, so a
//! thread that changes a path after the supervisor has read it reaches only what its own rights
//! allow. What is done for a process is never done for another one that got its number.

mod calls;
mod far;
mod fifo;
mod filter;
mod identity;
mod notify;
mod places;
mod records;
mod target;

use calls::Supervisor;
use far::Far;
use identity::Identity;
use notify::{Listener, errno};
use places::Places;
use std::ffi::{CString, OsStr, c_int};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use target::Target;
use zazen_core::{Error, ErrorKind, Result};
use zazen_forward_api::paths::{self, Prefix, Text};

/// How many threads answer calls at first: a call that waits for a disk must not hold up others.
const THREADS: usize = 8;

/// What supervisor and program tell the front: one of these, and a number.
const STARTED: i32 = 1;
const ENDED: i32 = 2;
const NOT_EXECUTED: i32 = 3;
const NOT_FILTERED: i32 = 4;
const NOT_SUPERVISED: i32 = 5;

/// Signals that the front passes on to the program.
const HANDED_ON: [c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// Runs the program and returns the exit code to end with. `forward` is in the form that the
/// preload library reads; `socket` is the daemon's. Must be called before this process has other
/// threads.
pub fn run(command: Command, forward: &OsStr, socket: &Path) -> Result<i32> {
    let failed = |what: &str| Error::io(what.to_owned(), std::io::Error::last_os_error());
    let (news, mut told) = std::io::pipe().map_err(|error| Error::io("a pipe".to_owned(), error))?;
    let name = Path::new(command.get_program()).display().to_string();
    let signals = block_signals().map_err(|_| failed("signals"))?;
    // SAFETY: this process has one thread yet.
    match unsafe { libc::fork() } {
        -1 => Err(failed("start the supervisor")),
        0 => {
            drop(news);
            let outcome = supervise(command, forward, socket, &mut told);
            if let Err((what, error)) = outcome {
                tell(&mut told, what, error);
            }
            std::process::exit(0)
        }
        supervisor => {
            drop(told);
            listen(news, &signals, &name, supervisor)
        }
    }
}

/// Blocks the signals and opens a descriptor from which they are read.
fn block_signals() -> std::result::Result<OwnedFd, i32> {
    // SAFETY: a set of our own; the descriptor is new.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in HANDED_ON {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC);
        if fd < 0 { Err(errno()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

fn tell(to: &mut impl Write, what: i32, number: i32) {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&what.to_ne_bytes());
    bytes[4..].copy_from_slice(&number.to_ne_bytes());
    // A front that is gone needs no news.
    let _ = to.write_all(&bytes);
}

/// The front's part: passes signals on until the program has ended.
fn listen(mut news: std::io::PipeReader, signals: &OwnedFd, name: &str, supervisor: i32) -> Result<i32> {
    let mut program = None;
    loop {
        let entry = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // Signals wait until there is a program to pass them to.
        let signals_fd = if program.is_some() { signals.as_raw_fd() } else { -1 };
        let mut polls = [entry(news.as_raw_fd()), entry(signals_fd)];
        // SAFETY: two elements.
        unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) };
        if polls[1].revents != 0 {
            hand_on(signals, program.as_ref());
        }
        if polls[0].revents == 0 {
            continue;
        }
        let mut bytes = [0; 8];
        if news.read_exact(&mut bytes).is_err() {
            let text = "the supervisor of system calls ended before the program: see the kernel's log";
            return Err(Error::new(ErrorKind::Io, text));
        }
        let number = |at: usize| i32::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let error = || std::io::Error::from_raw_os_error(number(4));
        match number(0) {
            STARTED => program = open_program(number(4), supervisor),
            ENDED => return Ok(number(4)),
            NOT_EXECUTED => return Err(Error::io(format!("start {name}"), error())),
            NOT_FILTERED if number(4) == libc::EBUSY => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "--seccomp: system calls are supervised already; one supervisor is all the kernel allows",
                ));
            }
            NOT_FILTERED => {
                return Err(Error::io(
                    "--seccomp needs user notifications (Linux 5.14) that nobody forbids".to_owned(),
                    error(),
                ));
            }
            _ => return Err(Error::io("supervise system calls".to_owned(), error())),
        }
    }
}

/// Passes a signal on to the program, unless the terminal sent it: the program gets that one
/// itself.
fn hand_on(signals: &OwnedFd, program: Option<&OwnedFd>) {
    // SAFETY: all zeros is a valid record; room for one.
    unsafe {
        let mut info: libc::signalfd_siginfo = std::mem::zeroed();
        let bytes = size_of_val(&info);
        let got = libc::read(signals.as_raw_fd(), (&raw mut info).cast(), bytes);
        let Some(program) = program.filter(|_| got == bytes as isize && info.ssi_code <= 0) else { return };
        let none = std::ptr::null::<libc::siginfo_t>();
        libc::syscall(libc::SYS_pidfd_send_signal, program.as_raw_fd(), info.ssi_signo, none, 0);
    }
}

/// A descriptor of the program. Its number may be another process's as soon as the supervisor has
/// seen its end.
fn open_program(program: i32, supervisor: i32) -> Option<OwnedFd> {
    // SAFETY: numbers only; the descriptor is new.
    let opened = unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, program, 0);
        if fd < 0 { None } else { Some(OwnedFd::from_raw_fd(fd as RawFd)) }
    };
    // The supervisor is a child of ours that was not waited for, so a child of that number's is its
    // program.
    let parent = Target::by_number(program).and_then(|target| target.status()).map(|status| status.parent());
    opened.filter(|_| parent == Ok(supervisor))
}

type Failure = (i32, i32);

/// The supervisor's part: returns when the program and all that it started have ended.
fn supervise(
    command: Command,
    forward: &OsStr,
    socket: &Path,
    told: &mut std::io::PipeWriter,
) -> std::result::Result<(), Failure> {
    let supervised = |error: i32| (NOT_SUPERVISED, error);
    // Orphans of the program become children of this process, or it might not read their memory.
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()
        .map_err(|error| supervised(error.raw_os_error().unwrap_or(libc::EIO)))?;
    // SAFETY: this process has one thread yet.
    let program = match unsafe { libc::fork() } {
        -1 => return Err(supervised(errno())),
        0 => {
            drop(ours);
            let failure = become_program(command, &theirs);
            tell(told, failure.0, failure.1);
            // SAFETY: ends this process without running its parent's exit handlers.
            unsafe { libc::_exit(127) }
        }
        program => program,
    };
    drop(theirs);
    tell(told, STARTED, program);
    if let Ok(listener) = receive_descriptor(&ours) {
        fifo::prepare();
        let far = Far::connect(socket).map_err(supervised)?;
        let places = Places::new(canonical(forward, &far));
        let view = Target::own().view().map_err(supervised)?;
        let all = Supervisor::new(Listener::new(listener), far, places, view);
        let all: &'static Supervisor = Box::leak(Box::new(all));
        for _ in 0..THREADS {
            let begun = all.begin_thread();
            begun.map_err(|error| supervised(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        }
    }
    reap(program, told);
    Ok(())
}

/// Waits for all children; tells the front how the program ended.
fn reap(program: i32, told: &mut std::io::PipeWriter) {
    let mut has_ended = false;
    loop {
        let mut status = 0;
        // SAFETY: room for the status.
        let ended = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        if ended < 0 && errno() != libc::EINTR {
            return;
        }
        // Later this number may be that of an orphan.
        if ended == program && !has_ended {
            has_ended = true;
            let signalled = libc::WIFSIGNALED(status);
            let code = if signalled { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) };
            tell(told, ENDED, code);
            leave_streams();
        }
    }
}

/// Closes the inherited streams: whoever reads them shall not wait while other processes of the
/// program live on.
fn leave_streams() {
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        for stream in 0..3 {
            // SAFETY: numbers only.
            unsafe { libc::dup2(null.as_raw_fd(), stream) };
        }
    }
}

/// Becomes the program; returns only if that fails.
fn become_program(mut command: Command, to: &std::os::unix::net::UnixStream) -> Failure {
    match filter::install() {
        Err(error) => (NOT_FILTERED, error.raw_os_error().unwrap_or(libc::EIO)),
        Ok(listener) => {
            if let Err(error) = send_descriptor(to, &listener) {
                return (NOT_FILTERED, error);
            }
            drop(listener);
            (NOT_EXECUTED, command.exec().raw_os_error().unwrap_or(libc::EIO))
        }
    }
}

fn send_descriptor(to: &std::os::unix::net::UnixStream, fd: &OwnedFd) -> std::result::Result<(), i32> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [std::os::fd::AsFd::as_fd(fd)];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let part = [std::io::IoSlice::new(b"l")];
    sendmsg(to, &part, &mut control, SendFlags::NOSIGNAL).map(|_| ()).map_err(|error| error.raw_os_error())
}

fn receive_descriptor(from: &std::os::unix::net::UnixStream) -> std::result::Result<OwnedFd, i32> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut part = [std::io::IoSliceMut::new(&mut byte)];
    recvmsg(from, &mut part, &mut control, RecvFlags::CMSG_CLOEXEC).map_err(|error| error.raw_os_error())?;
    let mut fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    fds.next().and_then(|mut fds| fds.next()).ok_or(libc::EPROTO)
}

/// The prefixes, each far path made canonical: the daemon's kernel names directories by canonical
/// paths, and the prefix of such a name must be found again.
fn canonical(forward: &OsStr, far: &Far) -> Vec<u8> {
    let mut all = Vec::new();
    let own = Target::own().status().map(|status| status.identity(false));
    for Prefix { local, far: given } in paths::prefixes(forward.as_bytes()) {
        let real = own.as_ref().ok().and_then(|own: &Identity| {
            let path = CString::new(given).ok()?;
            far.acting(own, || far::real_path(&path)).ok()
        });
        // A path that has no form in the settings stays as it was given.
        let real = real.filter(|real| !real.contains(&b':') && Text::new().push(real));
        if !all.is_empty() {
            all.push(b':');
        }
        all.extend_from_slice(local);
        all.push(b'=');
        all.extend(real.as_deref().unwrap_or(given));
    }
    all
}
