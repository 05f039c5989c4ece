//! The front: the process that the user started, while another one of ours attends to the program.
//! It passes signals on and ends as the program does. The attendant is its child, and the program's
//! parent; it lives until no process is left of all that the program started.
//!
//! Invariant: the program starts with the signals blocked and ignored that this process was started
//! with.

use crate::notify::errno;
use crate::target::Target;
use std::ffi::c_int;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_core::{Error, ErrorKind, Result};

/// What attendant and program tell the front: one of these, and a number.
pub(crate) const STARTED: i32 = 1;
const ENDED: i32 = 2;
pub(crate) const NOT_EXECUTED: i32 = 3;
pub(crate) const NOT_FILTERED: i32 = 4;
pub(crate) const NOT_SUPERVISED: i32 = 5;
/// A text follows.
const NOT_SERVED: i32 = 6;

/// Signals that the front passes on to the program: those that people and batch systems send.
const HANDED_ON: [c_int; 10] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGXCPU,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// Why there is no program: one of the constants, and errno.
pub(crate) type Failure = (i32, i32);

/// The end of a pipe on which the front listens.
pub(crate) struct News(PipeWriter);

impl News {
    pub(crate) fn tell(&mut self, what: i32, number: i32) {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&what.to_ne_bytes());
        bytes[4..].copy_from_slice(&number.to_ne_bytes());
        // A front that is gone needs no news.
        let _ = self.0.write_all(&bytes);
    }
}

/// Whether this process was started with SIGPIPE ignored. Rust's run-time changes that before main.
static IGNORES_PIPES: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look_at_signals;

extern "C" fn look_at_signals() {
    // SAFETY: all zeros is a valid action; the kernel fills it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action);
        IGNORES_PIPES.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
}

/// Lets a program start with SIGPIPE ignored, if this process was started so.
pub fn keep_ignored_signals(command: &mut Command) {
    // The linker leaves out what nothing names.
    std::hint::black_box(&LOOK);
    if IGNORES_PIPES.load(Ordering::Relaxed) {
        let ignore = || {
            // SAFETY: a number; the call is safe in a forked process.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: as above.
        unsafe { command.pre_exec(ignore) };
    }
}

/// Runs a program while something of ours serves it: `serve` is called in another process, may
/// start threads, and what it returns is dropped when no process is left of those that the program
/// started. Returns the exit code to end with. Must be called before this process has other
/// threads.
pub fn run_beside<T>(mut command: Command, serve: impl FnOnce(&mut Command) -> Result<T>) -> Result<i32> {
    let name = name_of(&command);
    accompany(&name, |news, mask| {
        keep_mask(&mut command, mask);
        let served = match serve(&mut command) {
            Ok(served) => served,
            Err(error) => {
                news.tell(NOT_SERVED, 0);
                let _ = news.0.write_all(error.to_string().as_bytes());
                return Ok(());
            }
        };
        become_subreaper();
        let started = command.spawn();
        let program = started.map_err(|error| (NOT_EXECUTED, error.raw_os_error().unwrap_or(libc::EIO)))?;
        let program = program.id() as i32;
        news.tell(STARTED, program);
        reap(program, news);
        drop(served);
        Ok(())
    })
}

pub(crate) fn name_of(command: &Command) -> String {
    Path::new(command.get_program()).display().to_string()
}

/// Orphans of the program become children of this process.
pub(crate) fn become_subreaper() {
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Lets a program start with the signals blocked that `mask` says, and what else was inherited.
pub(crate) fn keep_mask(command: &mut Command, mask: libc::sigset_t) {
    let restore = move || {
        // SAFETY: a set of our own; the call is safe in a forked process.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) };
        Ok(())
    };
    // SAFETY: as above.
    unsafe { command.pre_exec(restore) };
    keep_ignored_signals(command);
}

/// Forks: the child runs `attend`, which gets the mask of signals for the program; this process
/// becomes the front.
pub(crate) fn accompany(
    name: &str,
    attend: impl FnOnce(&mut News, libc::sigset_t) -> std::result::Result<(), Failure>,
) -> Result<i32> {
    let failed = |what: &str| Error::io(what.to_owned(), std::io::Error::last_os_error());
    let (news, told) = std::io::pipe().map_err(|error| Error::io("a pipe".to_owned(), error))?;
    let (signals, mask) = block_signals().map_err(|_| failed("signals"))?;
    // SAFETY: this process has one thread yet.
    match unsafe { libc::fork() } {
        -1 => Err(failed("start the process that attends to the program")),
        0 => {
            drop(news);
            let mut told = News(told);
            if let Err((what, error)) = attend(&mut told, mask) {
                told.tell(what, error);
            }
            std::process::exit(0)
        }
        attendant => {
            drop(told);
            listen(news, &signals, name, attendant)
        }
    }
}

/// Blocks the signals and opens a descriptor from which they are read; with it, the mask before.
fn block_signals() -> std::result::Result<(OwnedFd, libc::sigset_t), i32> {
    // SAFETY: a set of our own; the descriptor is new.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in HANDED_ON {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC);
        if fd < 0 { Err(errno()) } else { Ok((OwnedFd::from_raw_fd(fd), before)) }
    }
}

/// The front's part: passes signals on until the program has ended.
fn listen(mut news: PipeReader, signals: &OwnedFd, name: &str, attendant: i32) -> Result<i32> {
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
            let text = "the process that attends to the program ended before it: see the kernel's log";
            return Err(Error::new(ErrorKind::Io, text));
        }
        let number = |at: usize| i32::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let error = || std::io::Error::from_raw_os_error(number(4));
        match number(0) {
            STARTED => program = open_program(number(4), attendant),
            ENDED => return Ok(number(4)),
            NOT_SERVED => {
                let mut text = String::new();
                let _ = news.read_to_string(&mut text);
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
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

/// A descriptor of the program. Its number may be another process's as soon as the attendant has
/// seen its end.
fn open_program(program: i32, attendant: i32) -> Option<OwnedFd> {
    // SAFETY: numbers only; the descriptor is new.
    let opened = unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, program, 0);
        if fd < 0 { None } else { Some(OwnedFd::from_raw_fd(fd as RawFd)) }
    };
    // The attendant is a child of ours that was not waited for, so a child of that number's is its
    // program.
    let parent = Target::by_number(program).and_then(|target| target.status()).map(|status| status.parent());
    opened.filter(|_| parent == Ok(attendant))
}

/// Waits for all children; tells the front how the program ended.
pub(crate) fn reap(program: i32, news: &mut News) {
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
            news.tell(ENDED, code);
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
