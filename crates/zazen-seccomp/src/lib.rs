//! `zazen run --seccomp`: forwards statically linked programs, on the same machine only. The kernel
//! stops each system call that takes a path and asks a supervisor about it (`seccomp(2)`, user
//! notifications).
//!
//! There are three processes. The *front* is the one that the user started. Its child, the
//! *supervisor*, answers system calls until no process is left that makes any. The program is the
//! supervisor's child, so that the supervisor may read its memory.
//!
//! - [`run`] starts the three, as [`front`] does for anything that attends to a program; `filter`
//!   says which calls the kernel asks about, `notify` is the kernel's side of it;
//! - `calls` has one function for each system call; `places` says where its paths lead;
//! - [`near`] asks which folders prefixes stand for;
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
pub mod front;
mod identity;
pub mod near;
mod notify;
mod places;
mod records;
mod target;

use calls::Supervisor;
use far::Far;
use front::{Failure, News};
use identity::Identity;
use notify::{Listener, errno};
use places::Places;
use std::ffi::{CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use target::Target;
use zazen_core::Result;
use zazen_forward_api::paths::{self, Prefix, Text};
use zazen_forward_api::variables;

/// How many threads answer calls at first: a call that waits for a disk must not hold up others.
const THREADS: usize = 8;

/// Runs the program and returns the exit code to end with. `forward` is in the form that the
/// preload library reads; `socket` is the daemon's. Must be called before this process has other
/// threads.
pub fn run(mut command: Command, forward: &OsStr, socket: &Path) -> Result<i32> {
    let name = front::name_of(&command);
    command.env(OsStr::from_bytes(variables::SUPERVISED.to_bytes()), "1");
    front::accompany(&name, |news, mask| supervise(command, mask, forward, socket, news))
}

/// The supervisor's part: returns when the program and all that it started have ended.
fn supervise(
    mut command: Command,
    mask: libc::sigset_t,
    forward: &OsStr,
    socket: &Path,
    news: &mut News,
) -> std::result::Result<(), Failure> {
    let supervised = |error: i32| (front::NOT_SUPERVISED, error);
    front::keep_mask(&mut command, mask);
    // Or this process might not read the memory of orphans.
    front::become_subreaper();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()
        .map_err(|error| supervised(error.raw_os_error().unwrap_or(libc::EIO)))?;
    // SAFETY: this process has one thread yet.
    let program = match unsafe { libc::fork() } {
        -1 => return Err(supervised(errno())),
        0 => {
            drop(ours);
            let failure = become_program(command, &theirs);
            news.tell(failure.0, failure.1);
            // SAFETY: ends this process without running its parent's exit handlers.
            unsafe { libc::_exit(127) }
        }
        program => program,
    };
    drop(theirs);
    // What is made for the program gets the program's umask.
    // SAFETY: a number; only this process's, which makes no files of its own.
    unsafe { libc::umask(0) };
    news.tell(front::STARTED, program);
    if let Ok((listener, killable)) = receive_listener(&ours) {
        fifo::prepare();
        let far = Far::connect(socket).map_err(supervised)?;
        let places = Places::new(canonical(forward, &far));
        let view = Target::own().view().map_err(supervised)?;
        let all = Supervisor::new(Listener::new(listener, killable), far, places, view);
        let all: &'static Supervisor = Box::leak(Box::new(all));
        for _ in 0..THREADS {
            let begun = all.begin_thread();
            begun.map_err(|error| supervised(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        }
    }
    front::reap(program, news);
    Ok(())
}

/// Becomes the program; returns only if that fails.
fn become_program(mut command: Command, to: &std::os::unix::net::UnixStream) -> Failure {
    match filter::install() {
        Err(error) => (front::NOT_FILTERED, error.raw_os_error().unwrap_or(libc::EIO)),
        Ok((listener, killable)) => {
            if let Err(error) = send_listener(to, &listener, killable) {
                return (front::NOT_FILTERED, error);
            }
            drop(listener);
            (front::NOT_EXECUTED, command.exec().raw_os_error().unwrap_or(libc::EIO))
        }
    }
}

fn send_listener(
    to: &std::os::unix::net::UnixStream,
    fd: &OwnedFd,
    killable: bool,
) -> std::result::Result<(), i32> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [std::os::fd::AsFd::as_fd(fd)];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let byte = [u8::from(killable)];
    let part = [std::io::IoSlice::new(&byte)];
    sendmsg(to, &part, &mut control, SendFlags::NOSIGNAL).map(|_| ()).map_err(|error| error.raw_os_error())
}

fn receive_listener(from: &std::os::unix::net::UnixStream) -> std::result::Result<(OwnedFd, bool), i32> {
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
    let fd = fds.next().and_then(|mut fds| fds.next()).ok_or(libc::EPROTO)?;
    drop(fds);
    Ok((fd, byte != [0]))
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
