//! A caller that comes over a carrier of another crate.

use crate::bulk::{Bulk, Output};
use crate::carriers::account::Payer;
use crate::carriers::seam::check_message;
use crate::server::callers::Group;
use crate::server::registry::{Admitted, Begin};
use crate::server::services::check_room;
use crate::server::state::Shared;
use crate::service::{Call, Caller, Line, Reply};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use zazen_core::{Credentials, Error, ErrorKind, Result};

/// One caller's connection over a carrier that this crate does not know: see
/// [`crate::Server::attach`]. It counts among the server's connections, within its limits. The
/// services hear of the caller's end when it is dropped.
pub struct Attached {
    shared: Arc<Shared>,
    place: Admitted,
    /// `None` once the services have heard of its end.
    group: Option<Arc<Group>>,
    line: Line,
}

impl Attached {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        line: OwnedFd,
        credentials: Credentials,
        pid: u32,
        host: Option<(IpAddr, String)>,
    ) -> Result<Attached> {
        let (payer, host) = match host {
            Some((address, name)) => (Payer::Remote(address, credentials.uid), Some(name)),
            None => (Payer::Local(credentials.uid), None),
        };
        let account = shared.accounts.of(&payer);
        let line = Arc::new(line);
        let place = shared.registry.admit(&line, Arc::clone(&account))?;
        let caller = Caller { credentials, pid, host, connection: place.number };
        let group = Some(Group::new(caller, &shared.callers, &account));
        Ok(Attached { shared: Arc::clone(shared), place, group, line: Line::new(&line) })
    }

    /// Tells whether either end has closed the connection.
    pub fn line(&self) -> &Line {
        &self.line
    }

    /// Serves one call: the bulk bytes are there already; `room` bounds the bulk bytes of the
    /// reply, which all come in [`Reply::bulk`].
    ///
    /// Fails with what the service says; with `Busy` if the caller has too many calls, and with
    /// `ShuttingDown` if the server drains: then the carrier ends the connection.
    pub fn call(
        &mut self,
        (service, function): (u16, u16),
        payload: &[u8],
        bulk: Vec<u8>,
        room: Option<u64>,
        fds: Vec<OwnedFd>,
    ) -> Result<Reply> {
        let draining =
            || Error::new(ErrorKind::ShuttingDown, "the daemon is shutting down; go on without it");
        let Some(group) = &self.group else { return Err(draining()) };
        match self.shared.registry.begin_call(&self.place) {
            Begin::Go => {}
            Begin::Busy(error) => return Err(error),
            Begin::Draining => return Err(draining()),
        }
        let bulk_bytes = bulk.len() as u64;
        let mut input = Bulk::in_memory(bulk);
        let mut output = Output::in_memory(room, &self.place.account);
        let call = Call {
            function,
            payload,
            bulk_bytes,
            bulk: &mut input,
            output: &mut output,
            fds,
            line: self.line.clone(),
            began: Instant::now(),
        };
        let answer = self.shared.services.dispatch(service, &group.caller, call);
        self.shared.services.answered(service, &group.caller);
        let answer = answer.and_then(|reply| {
            check_room(room, output.written(), &reply)?;
            check_message((service, function), &reply.payload, 0, reply.fds.len(), true)?;
            Ok(reply)
        });
        let answer = answer.map(|mut reply| {
            let (mut bulk, _charge) = output.into_memory();
            bulk.append(&mut reply.bulk);
            Reply { bulk, ..reply }
        });
        self.shared.registry.end_call(&self.place);
        answer
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Tell the registry last: a thread that waits for it to be empty has then seen every
        // detach.
        self.group = None;
        self.shared.registry.remove(self.place.number);
    }
}
