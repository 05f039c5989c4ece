//! What a service sees of a call, and what the call layer wants of a service.

use crate::bulk::{Bulk, Output};
use crate::shared::{SharedBytes, SharedBytesMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;
use zazen_core::{Credentials, Result};

/// Who is calling. The kernel identifies local callers. Remote callers have proven the cluster key;
/// their uid, gid and host are what they claim.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Identity for permission checks.
    pub credentials: Credentials,
    /// Process id on the caller's host; 0 if unknown.
    pub pid: u32,
    /// Host name of a remote caller; `None` for a local one.
    pub host: Option<String>,
    /// Identifies the caller among all of one server's; never reused. All lanes of a caller have
    /// the number of the first.
    pub connection: u64,
}

impl Caller {
    /// Whether the caller is on this machine, over the unix socket: only then can it be given
    /// descriptors.
    pub fn is_local(&self) -> bool {
        self.host.is_none()
    }
}

/// A request as a service sees it.
pub struct Call<'a> {
    /// Function number.
    pub function: u16,
    /// Encoded arguments.
    pub payload: &'a [u8],
    /// Bytes announced to follow.
    pub bulk_bytes: u64,
    /// The bulk bytes, exactly `bulk_bytes` of them. The server discards what the service leaves
    /// unread.
    pub bulk: &'a mut Bulk,
    /// Where to write the reply's bulk bytes, and how many the caller has room for.
    pub output: &'a mut Output,
    /// Descriptors that came along (unix socket only).
    pub fds: Vec<OwnedFd>,
    /// Tells whether the caller is still there.
    pub line: Line,
    /// When the call's head had arrived.
    pub began: Instant,
}

/// A caller's connection, as far as a service needs it: a service that works for long checks now
/// and then whether the caller still waits.
#[derive(Clone, Debug)]
pub struct Line {
    socket: Arc<OwnedFd>,
    /// Whether all that the caller sends comes over this socket, and the call at hand was the last
    /// that came.
    is_whole: bool,
}

impl Line {
    pub(crate) fn new(socket: &Arc<OwnedFd>) -> Line {
        Line { socket: Arc::clone(socket), is_whole: false }
    }

    pub(crate) fn of_whole(socket: &Arc<OwnedFd>, is_whole: bool) -> Line {
        Line { is_whole, ..Line::new(socket) }
    }

    /// The connection's socket, where another process can go on with it: see [`Reply::handed`].
    pub fn to_hand_over(&self) -> Option<BorrowedFd<'_>> {
        self.is_whole.then(|| self.socket.as_fd())
    }

    /// Whether the caller has closed its end, or died. One system call.
    pub fn is_cut(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut look = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        poll(&mut look, Some(&now)).is_ok() && look[0].revents().intersects(gone)
    }
}

impl<'a> Call<'a> {
    /// Takes the next `bytes` bulk bytes where they lie, if they are in shared memory in one piece.
    /// `None` takes nothing: read them from [`Call::bulk`] instead. They stay valid until the call
    /// returns, and the caller can change them at any moment: copy them once, or hand them to the
    /// kernel.
    pub fn lend_input(&mut self, bytes: usize) -> Option<SharedBytes<'a>> {
        let (start, length) = self.bulk.lend(bytes)?;
        // SAFETY: the bulk lends ranges of the region that its connection keeps mapped, and
        // `self.bulk` borrows the connection for `'a`.
        Some(unsafe { SharedBytes::new(start, length) })
    }

    /// Takes the next `bytes` bytes of the caller's own output buffer, if it lies in shared memory
    /// in one piece. They count as written from now on, so fill them. `None` changes nothing: write
    /// to [`Call::output`] instead. They stay valid until the call returns.
    pub fn lend_output(&mut self, bytes: usize) -> Option<SharedBytesMut<'a>> {
        let (start, length) = self.output.lend(bytes)?;
        // SAFETY: as above; no reference of this process to the region exists.
        Some(unsafe { SharedBytesMut::new(start, length) })
    }
}

/// A service's answer.
#[derive(Debug, Default)]
pub struct Reply {
    /// Encoded results.
    pub payload: Vec<u8>,
    /// Descriptors to pass (unix socket only).
    pub fds: Vec<OwnedFd>,
    /// Bulk bytes to send after the payload, and after what was written to [`Call::output`].
    pub bulk: Vec<u8>,
    /// When it was ready, if the service looked at a clock: whoever measures calls need not look
    /// again.
    pub ended: Option<Instant>,
    /// Another process serves the caller's connection once this reply is sent: it has got
    /// [`Line::to_hand_over`]. This descriptor becomes readable when that process ends; then this
    /// server lets go of the connection.
    pub handed: Option<OwnedFd>,
}

/// One service. Called from many threads at once: the calls of one lane come one after another,
/// those of a caller's several lanes ([`crate::Lanes`]) at the same time.
pub trait Service: Send + Sync {
    /// The service number.
    fn id(&self) -> u16;
    /// Answers one call. An `Err` travels to the caller as its kind and message.
    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply>;
    /// The answer of the last call is on its way, or could not be sent. Called in that call's
    /// thread, before the thread's next call: the place for what need not delay the answer. A
    /// carrier that is no part of this crate sends the answer only after this. A service that
    /// stands in front of another one hands this on.
    fn answered(&self, _caller: &Caller) {}
    /// The caller is gone (closed, died, timed out), with its last lane: release what it held.
    /// Called exactly once for each caller, after its last call has returned.
    fn detach(&self, caller: &Caller);
}
