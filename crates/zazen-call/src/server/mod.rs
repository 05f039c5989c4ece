//! The server: listeners, admission, draining. What happens on one connection is in `peer.rs` and
//! `lane.rs`.

mod accept;
mod adopted;
mod attached;
mod callers;
mod lane;
mod lobby;
mod parking;
mod peer;
mod peer_group;
mod registry;
mod services;
mod state;
mod strangers;

pub use adopted::{Adopted, Adopter};
pub use attached::Attached;

use crate::carriers::account::Accounts;
use crate::carriers::shm::memory::Treasury;
use crate::carriers::unix::SocketFile;
use crate::carriers::{tcp, unix};
use crate::key::ClusterKey;
use crate::limits::{CallerLimits, ServerLimits, ShmLimits};
use crate::server::accept::accept_callers;
use crate::server::callers::Callers;
use crate::server::registry::Registry;
use crate::server::services::Services;
use crate::server::state::{Carrier, Shared};
use crate::server::strangers::Strangers;
use crate::service::Service;
use rustix::event::EventfdFlags;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use zazen_core::{Credentials, Error, ErrorKind, Result};

/// How long drain waits after the last call for services to hear of their callers' ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// A running server: accepts on any number of listeners, and dispatches calls to its services.
/// Dropping it drains it without waiting.
///
/// Threads: one per listener, one per connection on a socket, and one per connection in shared
/// memory while it makes calls.
pub struct Server {
    shared: Arc<Shared>,
    acceptors: Mutex<Acceptors>,
}

#[derive(Default)]
struct Acceptors {
    threads: Vec<JoinHandle<()>>,
    files: Vec<SocketFile>,
}

impl Server {
    /// A server of `services` (of two with one number, the later). `key` is needed to accept TCP
    /// peers. Callers of the unix socket are offered shared memory within the default
    /// [`ShmLimits`].
    pub fn new(services: Vec<Arc<dyn Service>>, key: Option<ClusterKey>, limits: ServerLimits) -> Server {
        Server::with_shm(services, key, limits, ShmLimits::default())
    }

    /// [`Server::new`] with other bounds of shared memory; bounds that [`ShmLimits::check`] refuses
    /// offer none.
    pub fn with_shm(
        services: Vec<Arc<dyn Service>>,
        key: Option<ClusterKey>,
        limits: ServerLimits,
        mut shm: ShmLimits,
    ) -> Server {
        if let Err(error) = shm.check() {
            tracing::warn!("{error}; no shared memory is offered");
            shm.enabled = false;
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let services = Arc::new(Services::new(services));
        let treasury = Arc::new(Treasury::new(&shm));
        let shared = Shared {
            key,
            registry: Registry::new(&limits),
            accounts: Accounts::new(&limits.caller),
            callers: Callers::new(&services, &shm, &treasury),
            services,
            treasury,
            shm,
            parking: OnceLock::new(),
            admits: OnceLock::new(),
            limits,
            host: crate::handshake::printable_host(&host),
            stop: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok(),
        };
        Server { shared: Arc::new(shared), acceptors: Mutex::default() }
    }

    /// Listens on a unix socket at `path` (mode 0666: identity comes from the kernel). A stale
    /// socket is replaced, a live one is `Busy`; anything else in its place is `Conflict`.
    pub fn listen_unix(&self, path: &Path) -> Result<()> {
        self.refuse_if_draining()?;
        let (listener, file) = unix::listen(path)?;
        self.acceptors().files.push(file);
        self.accept_on(listener, Carrier::Unix)
    }

    /// Listens on a unix socket that this process was given. `admits` decides by the credentials
    /// and the process that the kernel reports who may connect. Others are refused before they take
    /// a connection's place.
    pub fn listen_given(
        &self,
        listener: OwnedFd,
        admits: impl Fn(&Credentials, u32) -> bool + Send + Sync + 'static,
    ) -> Result<()> {
        self.refuse_if_draining()?;
        self.shared.admits.get_or_init(|| Box::new(admits));
        self.accept_on(listener, Carrier::Unix)
    }

    /// Listens on `addr` ("host:port", port 0 picks one); returns the bound address. Needs a key.
    pub fn listen_tcp(&self, addr: &str) -> Result<std::net::SocketAddr> {
        self.refuse_if_draining()?;
        if self.shared.key.is_none() {
            return Err(Error::new(
                ErrorKind::Config,
                format!(
                    "listening on {addr} needs a cluster key: make one with `zazen key new FILE` and give it \
                     to every daemon"
                ),
            ));
        }
        let (listener, bound) = tcp::listen(addr)?;
        self.accept_on(listener, Carrier::Tcp)?;
        Ok(bound)
    }

    /// Takes a caller that comes over a carrier which this crate does not know. The carrier vouches
    /// for `credentials` and `pid`, and for the address and host name of a remote caller. `line` is
    /// a connected socket on which nothing is sent: the server learns of the caller's end by the
    /// socket's end, and shuts it down when it drains.
    ///
    /// Fails with `Busy` if there are too many connections, `ShuttingDown` while the server drains.
    pub fn attach(
        &self,
        line: OwnedFd,
        credentials: Credentials,
        pid: u32,
        host: Option<(IpAddr, String)>,
    ) -> Result<Attached> {
        Attached::new(&self.shared, line, credentials, pid, host)
    }

    /// Takes connections that another process has accepted.
    pub fn adopter(&self) -> Adopter {
        Adopter::new(&self.shared)
    }

    /// Bounds callers by these limits from now on. Connections and calls that were admitted before
    /// stay.
    pub fn set_limits(&self, connections_max: usize, caller: &CallerLimits) {
        self.shared.registry.set_connections_max(connections_max);
        self.shared.accounts.set_limits(caller);
    }

    /// Takes the bytes of `key` as the cluster key, and closes all connections over TCP, because
    /// they were proven with the key before. Returns how many. Does nothing on a server that was
    /// made without a key.
    pub fn replace_key(&self, key: &ClusterKey) -> usize {
        let Some(own) = &self.shared.key else { return 0 };
        own.replace(key);
        self.shared.registry.close_remote()
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.shared.registry.len()
    }

    /// Bytes of shared memory granted to callers now.
    pub fn granted_bytes(&self) -> u64 {
        self.shared.treasury.granted()
    }

    /// Stops accepting, lets calls in progress finish for at most `patience`, then closes every
    /// connection. Returns how many calls were cut off. The unix socket file is removed.
    ///
    /// A service that is blocked in a call is not interrupted. Its thread ends with the call, and
    /// `detach` follows then.
    pub fn drain(&self, patience: Duration) -> usize {
        self.shared.registry.begin_drain();
        if let Some(stop) = &self.shared.stop {
            let _ = rustix::io::write(stop, &1u64.to_ne_bytes());
        }
        let Acceptors { threads, files } = std::mem::take(&mut *self.acceptors());
        for thread in threads {
            let _ = thread.join();
        }
        files.iter().for_each(SocketFile::remove);
        let cut_off = self.shared.registry.finish_drain(patience);
        self.shared.registry.wait_until_left(cut_off, FAREWELL);
        cut_off
    }

    fn acceptors(&self) -> std::sync::MutexGuard<'_, Acceptors> {
        self.acceptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse_if_draining(&self) -> Result<()> {
        if self.shared.registry.is_draining() {
            return Err(Error::new(ErrorKind::ShuttingDown, "the server drains and listens no more"));
        }
        Ok(())
    }

    fn accept_on(&self, listener: OwnedFd, carrier: Carrier) -> Result<()> {
        let context = |error: std::io::Error| Error::io("start accepting connections", error);
        if self.shared.stop.is_none() {
            return Err(Error::new(
                ErrorKind::Io,
                "the kernel gave no eventfd; raise the limit of open files",
            ));
        }
        rustix::io::ioctl_fionbio(&listener, true).map_err(|errno| context(errno.into()))?;
        let shared = Arc::clone(&self.shared);
        let name = format!("accept-{}", carrier.name());
        let thread = std::thread::Builder::new().name(name);
        let thread = match carrier {
            Carrier::Unix => thread.spawn(move || accept_callers(&shared, &listener)),
            Carrier::Tcp => {
                let strangers = Strangers::new(&shared, listener)?;
                thread.spawn(move || strangers.run())
            }
        };
        let thread = thread.map_err(context)?;
        self.acceptors().threads.push(thread);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.drain(Duration::ZERO);
    }
}
