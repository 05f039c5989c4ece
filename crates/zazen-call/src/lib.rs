//! The call layer: a call is (service, function, payload, bulk, descriptors) → reply.
//!
//! A service knows nothing of transports; a transport knows nothing of services. Carriers: a unix socket
//! (identity by SO_PEERCRED, descriptors), shared memory beside it (rings and a pool; `shm`), and TCP (peers prove the
//! cluster key before a byte of theirs is believed). Blocking: the server gives each connection a thread, within a bound,
//! but for those in shared memory that rest.
//!
//! What a peer must do: one call at a time on a connection; the next request follows the reply. The server
//! reads all bulk bytes of a call, or discards what the service left, before it replies; so a call that is
//! refused (a frame in conflict, say) costs the transfer of its bulk and keeps its connection.
//!
//! What is not promised: messages over TCP are authenticated at the connection's beginning only and are not
//! encrypted; the CRCs of header and payload guard against damage, not against attackers on the network.
//! Bulk bytes carry no checksum of this layer: frames have their own, end to end.

mod account;
mod belief;
mod bulk;
mod callers;
mod connection;
mod handshake;
mod key;
mod message;
mod pool;
mod quiet;
mod registry;
mod serve;
mod server;
mod shared;
mod shm;
mod spare;
mod stream;
mod tcp;
mod unix;

pub use belief::{DAEMON_UID_VARIABLE, believes, check_file};
pub use bulk::{Bulk, Output};
pub use connection::{Carrier, Connection, Exchanged, Lanes, Pool};
pub use key::{ClusterKey, KEY_BYTES_MIN};
pub use pool::{POOL_ALIGN, PoolBuffer};
pub use quiet::{LeftOut, may_say};
pub use server::Server;
pub use shared::{SharedBytes, SharedBytesMut};
pub use shm::ShmLimits;
#[doc(hidden)]
pub use shm::die_at_fault_point;
pub use unix::UnixListening;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use zazen_core::{Credentials, Result};

/// Who is calling. Local callers are known by the kernel; remote ones by the key, and their uid, gid and
/// host are the key holder's word.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Identity for permission checks.
    pub credentials: Credentials,
    /// Process id on the caller's host; 0 if unknown.
    pub pid: u32,
    /// Host name of a remote caller; `None` for a local one.
    pub host: Option<String>,
    /// Distinguishes callers of one server; never reused. All lanes of a caller have its first one's number.
    pub connection: u64,
}

impl Caller {
    /// Whether the caller is on this machine, over the unix socket: only such may be handed descriptors.
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
    /// The bulk bytes, exactly `bulk_bytes` of them; what the service leaves unread is drained by the server.
    pub bulk: &'a mut Bulk,
    /// Where to write the reply's bulk bytes, and how many the caller has room for.
    pub output: &'a mut Output,
    /// Descriptors that came along (unix socket only).
    pub fds: Vec<OwnedFd>,
    /// Tells whether the caller is still there.
    pub line: Line,
}

/// A caller's connection, as far as a service needs it: whoever works long for a call looks now and then whether anybody
/// waits for the answer.
#[derive(Clone, Debug)]
pub struct Line(Arc<OwnedFd>);

impl Line {
    pub(crate) fn new(socket: &Arc<OwnedFd>) -> Line {
        Line(Arc::clone(socket))
    }

    /// Whether the caller has closed its end, or died. One system call.
    pub fn is_cut(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut look = [PollFd::new(&*self.0, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        poll(&mut look, Some(&now)).is_ok() && look[0].revents().intersects(gone)
    }
}

impl<'a> Call<'a> {
    /// The next `bytes` bulk bytes where they lie, if they are in shared memory in one piece; they are taken then.
    /// `None` takes nothing: read them from [`Call::bulk`] instead. They stay where they are until the call returns,
    /// and the caller can change them at any moment: copy them once, or hand them to the kernel.
    pub fn lend_input(&mut self, bytes: usize) -> Option<SharedBytes<'a>> {
        let (start, length) = self.bulk.lend(bytes)?;
        // SAFETY: the bulk lends ranges of the region that its connection keeps mapped, and `self.bulk` borrows the
        // connection for `'a`.
        Some(unsafe { SharedBytes::new(start, length) })
    }

    /// The next `bytes` bytes of the caller's own output buffer, if it lies in shared memory in one piece; they count
    /// as written from now on, so fill them. `None` changes nothing: write to [`Call::output`] instead. Stays valid
    /// until the call returns.
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
}

/// One service. Called from many threads at once: calls of one lane come one after another, those of a caller's
/// several lanes ([`Lanes`]) at the same time.
pub trait Service: Send + Sync {
    /// The service number.
    fn id(&self) -> u16;
    /// Answers one call. An `Err` travels to the caller as its kind and message.
    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply>;
    /// The caller is gone (closed, died, timed out), with its last lane: whatever it held is to be released. Called
    /// exactly once for each caller, after the last of its calls has returned.
    fn detach(&self, caller: &Caller);
}

/// Bounds of each identity that calls a server: a user of this machine, or a key holder's address and user. Root and the
/// server's own user have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerLimits {
    /// Connections at once; one more is answered `Busy` and closed.
    pub connections_max: usize,
    /// Calls at once; further ones wait, each in its own connection's thread.
    pub calls_max: usize,
    /// How long a call waits for its turn before it is `Busy`.
    pub queue_max: Duration,
    /// Bytes of payloads and answers that the server holds at once; a message that finds no room is `Busy`. Messages of up
    /// to 64 KiB are not counted.
    pub bytes_max: u64,
    /// Descriptors that are on their way, in either direction.
    pub descriptors_max: usize,
}

impl Default for CallerLimits {
    /// 512 connections and calls, 30 seconds, 256 MiB, 16,384 descriptors.
    fn default() -> CallerLimits {
        CallerLimits {
            connections_max: 512,
            calls_max: 512,
            queue_max: Duration::from_secs(30),
            bytes_max: 256 << 20,
            descriptors_max: 16_384,
        }
    }
}

/// Bounds of a server.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Connections at once; one more is answered `Busy` and closed. Strangers are not among them.
    pub connections_max: usize,
    /// Each identity's share.
    pub caller: CallerLimits,
    /// TCP peers that have not proven the cluster key yet, at once: the oldest goes for a new one.
    pub strangers_max: usize,
    /// How long such a peer may take for the whole proof.
    pub proof_timeout: Duration,
    /// A connection that sends nothing for so long in the middle of a message or of the handshake is closed.
    /// Between calls a connection may idle for ever.
    pub stall_timeout: Duration,
}

impl Default for ServerLimits {
    /// 1024 connections, 30 seconds; 64 strangers, 5 seconds for each.
    fn default() -> ServerLimits {
        ServerLimits {
            connections_max: 1024,
            caller: CallerLimits::default(),
            strangers_max: 64,
            proof_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// How a client presents itself to a remote daemon.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Credentials claimed.
    pub credentials: Credentials,
    /// This host's name.
    pub host: String,
    /// This process.
    pub pid: u32,
}

impl Identity {
    /// This process as it is: effective ids, groups, pid, host name.
    pub fn of_this_process() -> Identity {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Identity {
            credentials: Credentials {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
                groups: groups.into_iter().map(|group| group.as_raw()).collect(),
            },
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            pid: rustix::process::getpid().as_raw_nonzero().get().unsigned_abs(),
        }
    }
}
