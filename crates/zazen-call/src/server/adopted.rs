//! Connections that another process has accepted: it has identified the caller, and gives the
//! socket to this process, which serves the calls.

use crate::carriers::account::Payer;
use crate::carriers::stream::Stream;
use crate::server::peer::serve_adopted;
use crate::server::registry::Admitted;
use crate::server::state::Shared;
use crate::service::Caller;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use zazen_core::{Credentials, Error, ErrorKind, Result};

/// Takes connections for a server, as long as there is one: see [`crate::Server::adopter`].
#[derive(Clone)]
pub struct Adopter(Weak<Shared>);

impl Adopter {
    pub(crate) fn new(shared: &Arc<Shared>) -> Adopter {
        Adopter(Arc::downgrade(shared))
    }

    /// A place for a connection of a user's, within the server's limits. `socket` is a stream
    /// socket over which the caller sends its next call, and on which no other process reads.
    ///
    /// Fails with `Busy` if there are too many connections, `ShuttingDown` while the server drains.
    pub fn admit(&self, socket: OwnedFd, credentials: &Credentials) -> Result<Adopted> {
        let gone = || Error::new(ErrorKind::ShuttingDown, "the server has ended");
        let shared = self.0.upgrade().ok_or_else(gone)?;
        let mut stream = Stream::new(socket, false);
        let account = shared.accounts.of(&Payer::Local(credentials.uid));
        let place = shared.registry.admit(stream.socket(), account)?;
        stream.set_account(&place.account);
        Ok(Adopted { number: place.number, shared, connection: Some((stream, place)) })
    }
}

/// A connection that has its place and is not served yet. It is given up when dropped.
pub struct Adopted {
    number: u64,
    shared: Arc<Shared>,
    connection: Option<(Stream, Admitted)>,
}

impl Adopted {
    /// The caller's number: [`Caller::connection`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Serves the calls of `caller`, whose number must be [`Adopted::number`], on a thread of its
    /// own. At the end the connection is shut down, whoever has its socket open.
    pub fn serve(mut self, caller: Caller) -> Result<()> {
        let Some((stream, place)) = self.connection.take() else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(format!("call-{}", self.number));
        let spawned = thread.spawn(move || serve_adopted(&shared, stream, place, caller));
        spawned.map(|_| ()).map_err(|error| {
            self.shared.registry.remove(self.number);
            Error::io("start a connection's thread", error)
        })
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        if self.connection.take().is_some() {
            self.shared.registry.remove(self.number);
        }
    }
}
