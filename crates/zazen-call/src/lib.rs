//! The call layer: a call is (service, function, payload, bulk, descriptors) → reply.
//!
//! A service knows nothing of transports; a transport knows nothing of services. Carriers: a unix socket
//! (identity by SO_PEERCRED, descriptors) and TCP (peers prove the cluster key before a byte of theirs is
//! believed). Blocking: the server gives each connection a thread, within a bound.
//!
//! What a peer must do: one call at a time on a connection; the next request follows the reply. The server
//! reads all bulk bytes of a call, or discards what the service left, before it replies; so a call that is
//! refused (a frame in conflict, say) costs the transfer of its bulk and keeps its connection.
//!
//! What is not promised: messages over TCP are authenticated at the connection's beginning only and are not
//! encrypted; the CRCs of header and payload guard against damage, not against attackers on the network.
//! Bulk bytes carry no checksum of this layer: frames have their own, end to end.

mod bulk;
mod connection;
mod handshake;
mod key;
mod message;
mod registry;
mod serve;
mod server;
mod stream;
mod tcp;
mod unix;

pub use connection::Connection;
pub use key::{ClusterKey, KEY_BYTES_MIN};
pub use server::Server;

use std::io::Read;
use std::os::fd::OwnedFd;
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
    /// Distinguishes connections of one server; never reused.
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
    pub bulk: &'a mut dyn Read,
    /// Descriptors that came along (unix socket only).
    pub fds: Vec<OwnedFd>,
}

/// A service's answer.
#[derive(Debug, Default)]
pub struct Reply {
    /// Encoded results.
    pub payload: Vec<u8>,
    /// Descriptors to pass (unix socket only).
    pub fds: Vec<OwnedFd>,
    /// Bulk bytes to send after the payload.
    pub bulk: Vec<u8>,
}

/// One service. Called from many threads at once; calls of one connection come one after another.
pub trait Service: Send + Sync {
    /// The service number.
    fn id(&self) -> u16;
    /// Answers one call. An `Err` travels to the caller as its kind and message.
    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply>;
    /// The connection is gone (closed, died, timed out): whatever it held is to be released.
    fn detach(&self, caller: &Caller);
}

/// Bounds of a server.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Connections at once; one more is answered `Busy` and closed.
    pub connections_max: usize,
    /// A connection that sends nothing for so long in the middle of a message or of the handshake is closed.
    /// Between calls a connection may idle for ever.
    pub stall_timeout: Duration,
}

impl Default for ServerLimits {
    /// 1024 connections, 30 seconds.
    fn default() -> ServerLimits {
        ServerLimits { connections_max: 1024, stall_timeout: Duration::from_secs(30) }
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
