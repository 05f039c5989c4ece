//! Opens that may wait, each on a thread of its own: a FIFO waits for its other end, a file with a
//! lease for the lease's end. A signal for the waiting program ends the wait.
//!
//! Invariant: the file is opened with the rights of the waiting program's user, since the path may
//! have led to another file when its rights were checked.

use crate::far::Far;
use crate::identity::Identity;
use crate::notify::{Listener, Notice, Outcome, Reply, errno};
use crate::target::Target;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often to check that the program still waits.
const PAUSE: Duration = Duration::from_millis(20);
/// The kernel's ERESTARTSYS: with `SA_RESTART` the call begins again, else it fails with EINTR.
const RESTART: i32 = 512;

extern "C" fn nothing(_: i32) {}

/// Gives the signal that ends our own waits a handler that does nothing else.
pub(crate) fn prepare() {
    // SAFETY: a handler that does nothing; without SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as libc::sighandler_t;
        libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut());
    }
}

/// Opens `fifo`, an O_PATH descriptor, on another thread, which also answers the call.
pub(crate) fn open_later(
    listener: &'static Listener,
    far: &'static Far,
    notice: Notice,
    fifo: OwnedFd,
    flags: i32,
    identity: Identity,
) -> Outcome {
    let begun = std::thread::Builder::new()
        .name("fifo".to_owned())
        .spawn(move || wait(listener, far, notice, fifo, flags, identity));
    begun.map(|_| Reply::Later).map_err(|_| libc::EAGAIN)
}

fn wait(
    listener: &'static Listener,
    far: &'static Far,
    notice: Notice,
    fifo: OwnedFd,
    flags: i32,
    identity: Identity,
) {
    let (send, outcome) = channel();
    let opener = std::thread::Builder::new().name("fifo-open".to_owned()).spawn(move || {
        let _ = send.send(far.as_them(&identity, || open(&fifo, flags)));
    });
    let Ok(opener) = opener else { return listener.answer(&notice, Err(libc::EAGAIN)) };
    let target = Target::of_call(listener, notice);
    let mut given_up = None;
    let opened = loop {
        match outcome.recv_timeout(PAUSE) {
            Ok(opened) => break opened,
            Err(RecvTimeoutError::Disconnected) => break Err(libc::EIO),
            Err(RecvTimeoutError::Timeout) => {
                let signalled = || target.status().is_ok_and(|status| status.is_signalled());
                if !target.still_waits() {
                    given_up = Some(libc::ESRCH);
                } else if signalled() {
                    given_up = Some(RESTART);
                }
                if given_up.is_some() {
                    // SAFETY: the thread is not joined yet, so it is still its handle.
                    unsafe { libc::pthread_kill(opener.as_pthread_t(), libc::SIGURG) };
                }
            }
        }
    };
    let outcome = match (opened, given_up) {
        (Err(libc::EINTR), Some(error)) => Err(error),
        (opened, _) => opened.map(|fd| Reply::Descriptor(fd, flags & libc::O_CLOEXEC != 0)),
    };
    listener.answer(&notice, outcome);
}

fn open(fifo: &OwnedFd, flags: i32) -> Result<OwnedFd, i32> {
    let name =
        std::ffi::CString::new(format!("/proc/self/fd/{}", fifo.as_raw_fd())).map_err(|_| libc::EINVAL)?;
    // The file exists, and the name is a link of /proc.
    let made = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    // SAFETY: a string that lives for the call; the descriptor is new.
    unsafe {
        let fd = libc::open(name.as_ptr(), flags & !made | libc::O_CLOEXEC | libc::O_NOCTTY);
        if fd < 0 { Err(errno()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}
