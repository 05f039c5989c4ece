//! Runs a rank of MPICH's mpiexec so that the job ends if the rank ends before MPI_Init.
//!
//! mpiexec waits in that case: the other ranks wait in MPI_Init for one that never comes. A rank
//! talks to mpiexec over the socket that `$PMI_FD` names, from MPI_Init on. This process stands
//! between the two and passes on what they say, so it knows whether the rank ever spoke. If the
//! rank never did and failed, this process ends by a signal, and that ends the job.

use crate::output;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, getpid, kill_process};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_core::{Error, Result};

/// Names the socket to MPICH's mpiexec.
const PMI_FD: &str = "PMI_FD";

/// Whether `command` is to be run by [`supervise`]: a rank of several, of MPICH's mpiexec.
pub(super) fn is_wanted() -> bool {
    let variable = |name: &str| std::env::var(name).ok();
    let ranks = zazen_core::launcher::rank_of_ranks(variable).map_or(1, |(_, ranks)| ranks);
    ranks > 1 && socket().is_some()
}

fn socket() -> Option<RawFd> {
    std::env::var(PMI_FD).ok()?.parse().ok().filter(|fd| *fd > 2)
}

/// Runs `command` as rank `rank`, and ends as it ends. Returns only if it could not be started.
pub(super) fn supervise(command: &mut Command, rank: usize) -> Result<()> {
    let what = || format!("start {}", command.get_program().to_string_lossy());
    let failed = |error| Error::io(what(), error);
    let Some(fd) = socket() else { return Ok(()) };
    // SAFETY: mpiexec opened it for this process, whose other parts do not know of it.
    let launcher = unsafe { UnixStream::from_raw_fd(fd) };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    fcntl_setfd(&launcher, FdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| failed(error.into()))?;
    let (to_launcher, to_rank) = (launcher.try_clone().map_err(failed)?, ours.try_clone().map_err(failed)?);
    let failed_to_start = what();
    command.env(PMI_FD, theirs.as_raw_fd().to_string());
    // SAFETY: one system call, which allocates nothing.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(Into::into)
        });
    }
    let mut child = command.spawn().map_err(|error| Error::io(failed_to_start, error))?;
    drop(theirs);
    let spoke = Arc::new(AtomicBool::new(false));
    let heard = spoke.clone();
    std::thread::spawn(move || pass_on(ours, to_launcher, &heard));
    std::thread::spawn(move || pass_on(launcher, to_rank, &AtomicBool::new(false)));
    let status = child.wait().map_err(|error| Error::io(format!("wait for rank {rank}"), error))?;
    if !status.success() && !spoke.load(Ordering::SeqCst) {
        output::note(format!("rank {rank} ended before MPI_Init ({status}), so the job ends"));
        let _ = kill_process(getpid(), Signal::KILL);
    }
    end_as(status)
}

/// Passes bytes on until there are no more; `any`: whether there was one.
fn pass_on(mut from: UnixStream, mut to: UnixStream, any: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        any.store(true, Ordering::SeqCst);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Ends this process as another has ended.
fn end_as(status: ExitStatus) -> ! {
    if let Some(signal) = status.signal().and_then(Signal::from_named_raw) {
        let _ = kill_process(getpid(), signal);
    }
    std::process::exit(status.code().unwrap_or(1))
}
