//! The call layer: a call is (service, function, payload, bulk, descriptors) → reply.
//!
//! A service knows nothing of transports; a transport knows nothing of services. Carriers: a unix socket
//! (identity by SO_PEERCRED, descriptors) and TCP (peers prove the cluster key before a byte of theirs is
//! believed). Blocking: the server gives each connection a thread, within a bound.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zazen_core::{Credentials, Result};

/// The shared secret of a cluster's daemons and tools. Never printed.
#[derive(Clone)]
pub struct ClusterKey(pub(crate) Arc<[u8]>);

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
#[derive(Default)]
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

/// A running server: accepts on any number of listeners, dispatches to its services.
pub struct Server {
    _private: (),
}

#[allow(unused_variables)]
impl Server {
    /// A server of `services`. `key` is needed to accept TCP peers.
    pub fn new(services: Vec<Arc<dyn Service>>, key: Option<ClusterKey>, limits: ServerLimits) -> Server {
        todo!()
    }
    /// Listens on a unix socket at `path` (mode 0666: identity comes from the kernel). A stale socket is
    /// replaced, a live one is `Busy`.
    pub fn listen_unix(&self, path: &Path) -> Result<()> {
        todo!()
    }
    /// Listens on `addr` ("host:port", port 0 picks one); returns the bound address. Needs a key.
    pub fn listen_tcp(&self, addr: &str) -> Result<std::net::SocketAddr> {
        todo!()
    }
    /// Connections now.
    pub fn connections(&self) -> usize {
        todo!()
    }
    /// Stops accepting, lets calls in progress finish for at most `patience`, then closes every connection.
    /// Returns how many calls were cut off. The unix socket file is removed.
    pub fn drain(&self, patience: Duration) -> usize {
        todo!()
    }
}

/// A client's connection to one daemon. One call at a time; not shared between threads (open several).
pub struct Connection {
    _private: (),
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

#[allow(unused_variables)]
impl Connection {
    /// Connects to the daemon of this machine.
    pub fn unix(path: &Path, timeout: Duration) -> Result<Connection> {
        todo!()
    }
    /// Connects to a remote daemon and proves the key, both ways.
    pub fn tcp(addr: &str, key: &ClusterKey, identity: &Identity, timeout: Duration) -> Result<Connection> {
        todo!()
    }
    /// Calls and waits. `bulk` is sent after the payload. Replies later than `timeout` (as set) are `TimedOut`
    /// and the connection is dead from then on. After `Unavailable`, `TimedOut` or `Protocol`, reconnect.
    pub fn call(&mut self, service: u16, function: u16, payload: &[u8], bulk: &[&[u8]]) -> Result<Reply> {
        todo!()
    }
    /// The time allowed for each reply (default: no bound; the peer's death is noticed all the same).
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        todo!()
    }
}

#[allow(unused_variables)]
impl ClusterKey {
    /// Reads a key file: at least 16 bytes after trimming white space; refused (`Config`) if others than its
    /// owner and group can read it.
    pub fn from_file(path: &Path) -> Result<ClusterKey> {
        todo!()
    }
    /// A fresh random key as printable text, for `zazen key new`.
    pub fn generate() -> Result<String> {
        todo!()
    }
}
