//! A connected stream socket: vectored sends with descriptors, buffered receives, faults by name.
//!
//! Invariants: a send never raises SIGPIPE. A received descriptor is close-on-exec, and owned from
//! the moment it arrives. Descriptors are received only together with header bytes (the kernel
//! closes those that come with other bytes).

use crate::carriers::account::Account;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_core::limits::FDS_PER_MESSAGE_MAX;
use zazen_core::{Error, ErrorKind};
use zazen_lane::Broken;
use zazen_wire::header::{HEADER_BYTES, Header, Kind};

/// Bytes that one receive may bring beyond the header: a small payload comes in the same system
/// call.
const READ_AHEAD_BYTES: usize = 16 << 10;
/// The kernel's bound on the pieces of one vectored send (UIO_MAXIOV).
const SLICES_PER_SEND_MAX: usize = 1024;
/// A vector that receives an announced length grows by at least this many bytes at a time.
const GROWTH_BYTES_MIN: usize = 64 << 10;

/// Why a transfer ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The peer closed, died or reset the connection.
    Closed,
    /// Nothing moved within the time allowed.
    Stalled,
    /// Any other error of the kernel's.
    Kernel(Errno),
    /// The peer broke the rules of shared memory, in these words.
    Broken(&'static str),
}

impl From<Broken> for Fault {
    fn from(Broken(why): Broken) -> Fault {
        Fault::Broken(why)
    }
}

impl Fault {
    fn from_errno(errno: Errno) -> Fault {
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::CONNABORTED | Errno::NOTCONN => Fault::Closed,
            Errno::AGAIN => Fault::Stalled,
            other => Fault::Kernel(other),
        }
    }

    /// The fault as an error about `peer`.
    pub(crate) fn into_error(self, peer: &str, while_doing: &str) -> Error {
        match self {
            Fault::Closed => Error::new(
                ErrorKind::Unavailable,
                format!("{peer} closed the connection {while_doing}; reconnect"),
            ),
            Fault::Stalled => {
                let what =
                    format!("{peer} fell silent {while_doing}: no byte came or went in the time allowed");
                Error::new(
                    ErrorKind::TimedOut,
                    what + "; the daemon hangs or is overloaded: see `zazen status`",
                )
            }
            Fault::Kernel(errno) => Error::io(format!("{while_doing}, {peer}"), errno.into()),
            Fault::Broken(why) => Error::new(
                ErrorKind::Protocol,
                format!("{peer} broke the rules of shared memory: {why}; reconnect"),
            ),
        }
    }
}

/// A stream socket, and the bytes and descriptors that were received but not yet used.
pub(crate) struct Stream {
    socket: Arc<OwnedFd>,
    /// Whether descriptors can travel (unix sockets).
    passes_fds: bool,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    fds: Vec<OwnedFd>,
    /// The kernel could not hand over all descriptors that came.
    fds_cut: bool,
    /// The timeout that is set in the kernel.
    receive_timeout: Option<Duration>,
    deadline: Option<Deadline>,
    watch: Option<Watch>,
    /// In a server: whose descriptors these are. `fds_in` came and are held for a call; `fds_out`
    /// were sent and may not be taken yet.
    account: Option<Arc<Account>>,
    fds_in: usize,
    fds_out: usize,
}

/// Looks whether a silent peer is still there: tells one that hangs from one that is busy.
pub(crate) struct Watch {
    /// It asks after each silence of this length.
    pub every: Duration,
    /// Whether to go on waiting.
    pub still_there: Box<dyn FnMut() -> bool + Send>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.release_fds_in();
        if let Some(account) = &self.account {
            account.release_fds(self.fds_out);
        }
    }
}

/// Bytes that were sent on the unix socket `socket` and not yet read by the peer; `None` if the
/// kernel does not say.
fn unread_bytes(socket: &OwnedFd) -> Option<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the kernel writes one integer.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if asked == 0 { usize::try_from(bytes).ok() } else { None }
}

/// When receiving must be over.
struct Deadline {
    at: Instant,
    /// The kernel's timeout was set together with the deadline, so the first receive needs no
    /// system call for it.
    fresh: bool,
}

impl Stream {
    pub(crate) fn new(socket: OwnedFd, passes_fds: bool) -> Stream {
        Stream {
            socket: Arc::new(socket),
            passes_fds,
            buffer: vec![0; READ_AHEAD_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            fds: Vec::new(),
            fds_cut: false,
            receive_timeout: None,
            deadline: None,
            watch: None,
            account: None,
            fds_in: 0,
            fds_out: 0,
        }
    }

    /// Descriptors are counted against `account` from now on.
    pub(crate) fn set_account(&mut self, account: &Arc<Account>) {
        self.release_fds_in();
        self.account = Some(Arc::clone(account));
    }

    /// The call that brought descriptors is over.
    pub(crate) fn release_fds_in(&mut self) {
        let count = std::mem::take(&mut self.fds_in);
        if let Some(account) = self.account.as_ref().filter(|_| count > 0) {
            account.release_fds(count);
        }
    }

    /// Counts `count` descriptors that are about to be sent. Descriptors that were sent before stop
    /// counting once the peer has taken them: when at most `unread_max` bytes wait for the peer
    /// (bells may wait there).
    pub(crate) fn hold_fds_out(&mut self, count: usize, unread_max: usize) -> zazen_core::Result<()> {
        let Some(account) = self.account.clone().filter(|_| count > 0) else { return Ok(()) };
        self.look_at_fds_out(unread_max);
        if self.fds_out > 0 {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!(
                    "{} descriptors of earlier replies have not been taken yet; read them first",
                    self.fds_out
                ),
            ));
        }
        account.hold_fds(count)?;
        self.fds_out = count;
        Ok(())
    }

    /// Stops counting sent descriptors that the peer has taken.
    pub(crate) fn look_at_fds_out(&mut self, unread_max: usize) {
        if self.fds_out > 0 && unread_bytes(&self.socket).is_none_or(|unread| unread <= unread_max) {
            let count = std::mem::take(&mut self.fds_out);
            if let Some(account) = &self.account {
                account.release_fds(count);
            }
        }
    }

    /// From the next [`Stream::allow_in_all`] on, `watch` is asked when the peer is silent.
    pub(crate) fn set_watch(&mut self, watch: Option<Watch>) {
        self.watch = watch;
    }

    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Another descriptor of the socket.
    pub(crate) fn copy_socket(&self) -> Option<OwnedFd> {
        self.socket.try_clone().ok()
    }

    pub(crate) fn passes_fds(&self) -> bool {
        self.passes_fds
    }

    /// From now on each receive may take `timeout`.
    pub(crate) fn allow_each(&mut self, timeout: Option<Duration>) -> Result<(), Fault> {
        self.deadline = None;
        self.set_receive_timeout(timeout)
    }

    /// From now on all receives together may take `timeout`.
    pub(crate) fn allow_in_all(&mut self, timeout: Option<Duration>) -> Result<(), Fault> {
        self.deadline = timeout.map(|timeout| Deadline { at: Instant::now() + timeout, fresh: true });
        self.set_receive_timeout(self.until_watch(timeout))
    }

    /// `timeout`, or the time until the watch asks, if that is sooner.
    pub(crate) fn until_watch(&self, timeout: Option<Duration>) -> Option<Duration> {
        let every = self.watch.as_ref().map(|watch| watch.every);
        timeout.into_iter().chain(every).min()
    }

    /// Nothing came for a while: decides whether to wait on.
    fn waits_on(&mut self) -> bool {
        let in_time = self.deadline.as_ref().is_none_or(|deadline| Instant::now() < deadline.at);
        in_time && self.watch.as_mut().is_some_and(|watch| (watch.still_there)())
    }

    /// Makes a system call only if the timeout changes.
    fn set_receive_timeout(&mut self, timeout: Option<Duration>) -> Result<(), Fault> {
        if self.receive_timeout != timeout {
            set_timeout(&self.socket, Timeout::Recv, timeout)?;
            self.receive_timeout = timeout;
        }
        Ok(())
    }

    /// Before each receive: reduces the kernel's timeout to what is left until the deadline.
    fn arm(&mut self) -> Result<(), Fault> {
        let Some(deadline) = &mut self.deadline else { return Ok(()) };
        if std::mem::take(&mut deadline.fresh) {
            return Ok(());
        }
        let left = deadline.at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Fault::Stalled);
        }
        self.set_receive_timeout(self.until_watch(Some(left)))
    }

    /// A send fails if it makes no progress for this long.
    pub(crate) fn set_send_timeout(&self, timeout: Option<Duration>) -> Result<(), Fault> {
        set_timeout(&self.socket, Timeout::Send, timeout)
    }

    /// Sends all of `parts` without copying them; `fds` go with the first byte.
    pub(crate) fn send(&self, parts: &mut [IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> Result<(), Fault> {
        let mut left = parts;
        IoSlice::advance_slices(&mut left, 0);
        let mut fds = fds;
        while !left.is_empty() {
            let now = &left[..left.len().min(SLICES_PER_SEND_MAX)];
            match self.send_once(now, fds) {
                Ok(sent) => {
                    fds = &[];
                    IoSlice::advance_slices(&mut left, sent);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Fault::from_errno(errno)),
            }
        }
        Ok(())
    }

    fn send_once(&self, parts: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        rustix::net::sendmsg(&*self.socket, parts, &mut control, SendFlags::NOSIGNAL)
    }

    /// Whether received bytes wait to be used.
    pub(crate) fn has_ahead(&self) -> bool {
        self.start < self.end
    }

    /// Whether something has come, or the connection has ended. One system call.
    pub(crate) fn has_come(&self) -> bool {
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(&*self.socket, &mut [0; 1], look).map(|_| ()) != Err(Errno::AGAIN)
    }

    /// The CPU on which the last message of a TCP peer of this machine was sent.
    pub(crate) fn cpu_of_peer(&self) -> u32 {
        sockopt::socket_incoming_cpu(&*self.socket).unwrap_or(u32::MAX)
    }

    /// Whether descriptors came that belong to no message in the buffer.
    pub(crate) fn has_stray_fds(&self) -> bool {
        !self.fds.is_empty() && !self.has_ahead()
    }

    /// Sends a bare header of service 0, with descriptors, or as a bell. A bell is dropped if the
    /// socket is full.
    pub(crate) fn send_frame(
        &self,
        kind: Kind,
        function: u16,
        call: u64,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Fault> {
        let header = Header {
            kind,
            service: 0,
            function,
            status: 0,
            call,
            payload_bytes: 0,
            fd_count: fds.len() as u16,
            bulk_bytes: 0,
            payload_crc: 0,
            flags: 0,
            room: None,
        };
        let bytes = header.encode();
        if fds.is_empty() {
            // A bell. If the socket is full, its reader has something to wake up for anyway.
            return match rustix::net::send(&*self.socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(HEADER_BYTES) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
                Ok(_) => Err(Fault::Broken("a bell was cut in two")),
                Err(errno) => Err(Fault::from_errno(errno)),
            };
        }
        self.send(&mut [IoSlice::new(&bytes)], fds)
    }

    /// Waits for the next header. `Ok(None)`: the peer closed between messages.
    pub(crate) fn header(&mut self) -> Result<Option<[u8; HEADER_BYTES]>, Fault> {
        while self.end - self.start < HEADER_BYTES {
            self.arm()?;
            match self.fill() {
                Ok(0) if self.start == self.end => return Ok(None),
                Ok(0) => return Err(Fault::Closed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.waits_on() => {}
                Err(errno) => return Err(Fault::from_errno(errno)),
            }
        }
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&self.buffer[self.start..self.start + HEADER_BYTES]);
        self.start += HEADER_BYTES;
        Ok(Some(header))
    }

    /// [`Stream::header`] for a server: waits for ever for the first byte; from then on the header
    /// must be whole within `patience`, which afterwards bounds each receive.
    pub(crate) fn header_when_it_comes(
        &mut self,
        patience: Duration,
    ) -> Result<Option<[u8; HEADER_BYTES]>, Fault> {
        self.release_fds_in();
        self.allow_each(Some(patience))?;
        while self.start == self.end {
            match self.fill() {
                Ok(0) => return Ok(None),
                Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(Fault::from_errno(errno)),
            }
        }
        if self.end - self.start < HEADER_BYTES {
            self.allow_in_all(Some(patience))?;
        }
        let header = self.header()?;
        self.look_at_fds_out(0);
        self.allow_each(Some(patience))?;
        Ok(header)
    }

    /// One receive into the buffer, with descriptors.
    fn fill(&mut self) -> Result<usize, Errno> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = &mut self.buffer[self.end..];
        if !self.passes_fds {
            let (received, _) = rustix::net::recv(&*self.socket, room, RecvFlags::empty())?;
            self.end += received;
            return Ok(received);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(room)];
        let got = rustix::net::recvmsg(&*self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let before = self.fds.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        let came = self.fds.len() - before;
        if let Some(account) = self.account.as_ref().filter(|_| came > 0) {
            match account.hold_fds(came) {
                Ok(()) => self.fds_in += came,
                Err(_) => {
                    self.fds.truncate(before);
                    self.fds_cut = true;
                }
            }
        }
        self.fds_cut |= got.flags.contains(ReturnFlags::CTRUNC);
        // A peer that sends header bytes one by one, with descriptors on each, must not fill our
        // table.
        if self.fds.len() > FDS_PER_MESSAGE_MAX {
            self.fds.clear();
            self.fds_cut = true;
        }
        self.end += got.bytes;
        Ok(got.bytes)
    }

    /// The descriptors that came with the header, if there are exactly `announced`; else all are
    /// closed.
    pub(crate) fn take_fds(&mut self, announced: u16) -> zazen_core::Result<Vec<OwnedFd>> {
        let fds = std::mem::take(&mut self.fds);
        let cut = std::mem::take(&mut self.fds_cut);
        if fds.len() == usize::from(announced) {
            return Ok(fds);
        }
        if cut && fds.len() < usize::from(announced) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{} of {announced} descriptors could be received: this process, or what its caller may \
                     have of it, is at its limit of open files; raise it (`ulimit -n`) or ask for fewer \
                     frames at a time",
                    fds.len()
                ),
            ));
        }
        Err(Error::new(
            ErrorKind::Protocol,
            format!("a message announces {announced} descriptors, {} came with it", fds.len()),
        ))
    }

    /// Reads once what comes after a header: from the buffer, else straight into `into`. Returns 0
    /// only if `into` is empty; the peer's end is [`Fault::Closed`].
    pub(crate) fn read_some(&mut self, into: &mut [u8]) -> Result<usize, Fault> {
        if into.is_empty() {
            return Ok(0);
        }
        if self.start < self.end {
            let count = into.len().min(self.end - self.start);
            into[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
            self.start += count;
            return Ok(count);
        }
        loop {
            self.arm()?;
            match rustix::net::recv(&*self.socket, &mut *into, RecvFlags::empty()) {
                Ok((0, _)) => return Err(Fault::Closed),
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.waits_on() => {}
                Err(errno) => return Err(Fault::from_errno(errno)),
            }
        }
    }

    /// Reads exactly `length` bytes into `into`, replacing what it held. Memory grows as bytes
    /// arrive, so an announcement alone costs nothing.
    pub(crate) fn read_vec(&mut self, into: &mut Vec<u8>, length: usize) -> Result<(), Fault> {
        into.clear();
        let mut have = 0;
        while have < length {
            if have == into.len() {
                let target = length.min(have + have.max(GROWTH_BYTES_MIN));
                into.try_reserve_exact(target - have).map_err(|_| Fault::Kernel(Errno::NOMEM))?;
                into.resize(target, 0);
            }
            have += self.read_some(&mut into[have..])?;
        }
        Ok(())
    }

    /// Receives `length` bytes and drops them.
    pub(crate) fn skip(&mut self, length: usize) -> Result<(), Fault> {
        let mut scratch = [0; 16 << 10];
        let mut left = length;
        while left > 0 {
            let piece = left.min(scratch.len());
            left -= self.read_some(&mut scratch[..piece])?;
        }
        Ok(())
    }

    /// Ends the sending side, then discards what still comes, for at most `patience` and
    /// `bytes_max`. Closing at once would make the kernel reset the connection, and the peer might
    /// lose the last message.
    pub(crate) fn linger(&mut self, patience: Duration, bytes_max: u64) {
        let _ = rustix::net::shutdown(&*self.socket, Shutdown::Write);
        if self.allow_in_all(Some(patience)).is_err() {
            return;
        }
        let mut scratch = vec![0; GROWTH_BYTES_MIN];
        let mut left = bytes_max;
        while left > 0 {
            match self.read_some(&mut scratch) {
                Ok(count) => left = left.saturating_sub(count as u64),
                Err(_) => return,
            }
        }
    }
}

fn set_timeout(socket: &OwnedFd, which: Timeout, timeout: Option<Duration>) -> Result<(), Fault> {
    // The kernel takes 0 for "no bound".
    let timeout = timeout.map(|timeout| timeout.max(Duration::from_millis(1)));
    sockopt::set_socket_timeout(socket, which, timeout).map_err(Fault::from_errno)
}
