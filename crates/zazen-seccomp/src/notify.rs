//! The kernel's side of supervision: notifications of system calls, and answers to them.
//!
//! Invariant: each notification is answered once, unless its program is gone.

use std::os::fd::{AsRawFd, OwnedFd};

/// One system call that waits for an answer.
#[derive(Clone, Copy)]
pub(crate) struct Notice {
    id: u64,
    /// The thread.
    pub(crate) tid: i32,
    pub(crate) number: libc::c_long,
    pub(crate) arguments: [u64; 6],
}

/// What becomes of a call.
pub(crate) enum Reply {
    /// The kernel does the call itself.
    Continue,
    /// The call's result.
    Value(i64),
    /// The call's result is a copy of this descriptor, with `O_CLOEXEC` or without.
    Descriptor(OwnedFd, bool),
    /// Another thread answers.
    Later,
}

/// A reply, or an errno.
pub(crate) type Outcome = Result<Reply, i32>;

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`.
const SYNC_WAKE_UP: u64 = 1;

pub(crate) struct Listener {
    fd: OwnedFd,
    /// Whether only a fatal signal ends the wait for an answer.
    killable: bool,
}

impl Listener {
    pub(crate) fn new(fd: OwnedFd, killable: bool) -> Listener {
        // Program and supervisor never run at the same time: this tells the scheduler (Linux 6.6).
        // SAFETY: a number.
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
        Listener { fd, killable }
    }

    fn ioctl<T>(&self, request: libc::Ioctl, argument: &mut T) -> Result<i32, i32> {
        // SAFETY: each request is used with the structure that its number says.
        let got = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, &raw mut *argument) };
        if got < 0 { Err(errno()) } else { Ok(got) }
    }

    /// The next call; `None` when no process is left that could make one.
    pub(crate) fn receive(&self) -> Option<Notice> {
        loop {
            // SAFETY: the kernel wants zeros.
            let mut got: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut got) {
                Ok(_) => {
                    return Some(Notice {
                        id: got.id,
                        tid: got.pid.cast_signed(),
                        number: got.data.nr.into(),
                        arguments: got.data.args,
                    });
                }
                // ENOENT: the program was killed meanwhile, or no process is left.
                Err(libc::EINTR) => {}
                Err(libc::ENOENT) if !self.is_deserted() => {}
                Err(_) => return None,
            }
        }
    }

    /// Whether no supervised process is left.
    fn is_deserted(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one element.
        unsafe { libc::poll(&raw mut poll, 1, 0) };
        poll.revents & libc::POLLHUP != 0
    }

    /// Whether the call still waits. Then the thread's number still means that thread.
    pub(crate) fn is_waiting(&self, notice: &Notice) -> bool {
        let mut id = notice.id;
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id).is_ok()
    }

    /// Answers the call; without effect if the program is gone.
    pub(crate) fn answer(&self, notice: &Notice, outcome: Result<Reply, i32>) {
        let mut answer = libc::seccomp_notif_resp { id: notice.id, val: 0, error: 0, flags: 0 };
        match outcome {
            Ok(Reply::Continue) => answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            Ok(Reply::Value(value)) => answer.val = value,
            Ok(Reply::Descriptor(fd, cloexec)) => match self.inject(notice, fd, cloexec) {
                Ok(Some(number)) => answer.val = number.into(),
                Ok(None) => return,
                Err(error) => answer.error = -error,
            },
            Ok(Reply::Later) => return,
            Err(error) => answer.error = -error,
        }
        let _ = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer);
    }

    /// Makes a copy of the descriptor in the program, at its lowest free number; the number, unless
    /// the call has its answer already.
    ///
    /// Our own descriptor is closed before the program goes on: else the file would stay open when
    /// the program closes it, with its locks, its lease, or a FIFO's end. A call that a signal
    /// interrupts would begin again and leave the copy behind: there the kernel gives copy and
    /// answer in one, and ours is closed a moment later.
    fn inject(&self, notice: &Notice, fd: OwnedFd, cloexec: bool) -> Result<Option<i32>, i32> {
        let mut given = libc::seccomp_notif_addfd {
            id: notice.id,
            flags: if self.killable { 0 } else { libc::SECCOMP_ADDFD_FLAG_SEND as u32 },
            srcfd: fd.as_raw_fd().cast_unsigned(),
            newfd: 0,
            newfd_flags: if cloexec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        let made = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &mut given);
        drop(fd);
        match made {
            Ok(number) => Ok(self.killable.then_some(number)),
            // Gone, or asked for again: there is no answer to give.
            Err(libc::ENOENT | libc::EINPROGRESS) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// This thread's errno.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
