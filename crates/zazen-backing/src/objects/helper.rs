//! The program that reads an object store for a daemon: `zazen-objects`. Code for HTTP, TLS and XML
//! stays out of the daemon, and what a hostile server makes of it too.
//!
//! Its standard input is one end of a socket pair. Each message through it brings one descriptor:
//! the program's end of a new connection. On that connection it answers the questions of
//! [`crate::served`]. It ends when the daemon closes the pair.
//!
//! Invariants: a program that ended is started again, at most once in [`RESTART_AFTER`]. A call
//! that was under way meanwhile fails with `Unavailable`.

use crate::served::{Carrier, Dial};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};

/// The program's name.
pub const PROGRAM: &str = "zazen-objects";
/// Names another program, for tests and for trees that are built in place.
pub const PROGRAM_VARIABLE: &str = "ZAZEN_OBJECTS";
/// The flag before the location with which it also writes. A daemon never gives it.
pub const WRITES: &str = "--write";
/// How often a program that is to end is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How long a program that ended is left alone.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// The program: `$ZAZEN_OBJECTS`, the one beside this process's own program, or the one in
/// `../lib/zazen` from there, where the packages put it.
pub fn program() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(PROGRAM_VARIABLE).filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    let own = std::env::current_exe().map_err(|error| Error::io("the path of this program", error))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let beside = folder.join(PROGRAM);
    let installed = folder.parent().map(|above| above.join("lib/zazen").join(PROGRAM));
    if let Some(found) = [Some(beside.clone()), installed].into_iter().flatten().find(|path| path.is_file()) {
        return Ok(found);
    }
    Err(Error::new(
        ErrorKind::Config,
        format!(
            "object stores are read and written by the program {PROGRAM}, and there is no {}; install it \
             (the packages and the wheel have it, `make objects` builds it), or set ${PROGRAM_VARIABLE} to \
             its path",
            beside.display()
        ),
    ))
}

/// The program of one store.
pub(super) struct Helper {
    program: PathBuf,
    /// The location, as the program is told it, behind a flag if it shall write.
    told: Vec<String>,
    /// What it may take to end by itself, once nothing more comes through the pair.
    patience: Duration,
    /// For messages.
    describe: String,
    running: Mutex<Option<Running>>,
}

struct Running {
    child: Child,
    control: OwnedFd,
    started: Instant,
    patience: Duration,
}

impl Drop for Running {
    fn drop(&mut self) {
        // A duplicate may be with a child that was forked meanwhile: closing is not enough.
        rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both).ok();
        let end = Instant::now() + self.patience;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        // Nothing happens to one that has ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Helper {
    pub(super) fn new(program: PathBuf, told: Vec<String>, patience: Duration, describe: String) -> Helper {
        Helper { program, told, patience, describe, running: Mutex::default() }
    }

    fn unavailable(&self, why: &str, error: std::io::Error) -> Error {
        let what = format!("{}: {} {why}", self.describe, self.program.display());
        Error::new(ErrorKind::Unavailable, what).caused_by(error)
    }

    fn start(&self) -> Result<Running> {
        let broken = |error| self.unavailable("cannot be started", error);
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| broken(errno.into()))?;
        let child = Command::new(&self.program)
            .args(&self.told)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Ctrl-C is for the program that started this one, which may end what is under way.
            .process_group(0)
            .spawn()
            .map_err(broken)?;
        Ok(Running { child, control: ours, started: Instant::now(), patience: self.patience })
    }

    /// Gives the program its end of a new connection.
    fn connect(&self) -> Result<UnixStream> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = running.as_mut()
            && let Ok(Some(status)) = found.child.try_wait()
        {
            if found.started.elapsed() < RESTART_AFTER {
                let text = format!(
                    "{}: {} ended ({status}); the daemon's log has its last words",
                    self.describe,
                    self.program.display()
                );
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            tracing::warn!(
                "{}: {} ended ({status}) and is started again",
                self.describe,
                self.program.display()
            );
            *running = None;
        }
        if running.is_none() {
            *running = Some(self.start()?);
        }
        let broken = |error| self.unavailable("takes no connection", error);
        let (ours, theirs) = UnixStream::pair().map_err(broken)?;
        if let Some(found) = running.as_ref() {
            let fds = [theirs.as_fd()];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
            // Without a wait: a program that takes no connections must not hold this lock.
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            sendmsg(&found.control, &[IoSlice::new(b"c")], &mut ancillary, flags)
                .map_err(|errno| broken(errno.into()))?;
        }
        Ok(ours)
    }
}

impl Dial for Helper {
    fn describe(&self) -> String {
        self.describe.clone()
    }

    fn dial(&self) -> Result<Box<dyn Carrier>> {
        Ok(Box::new(self.connect()?))
    }
}
