//! Accepts callers of the unix socket, and begins connections.

use crate::carriers::account::Payer;
use crate::carriers::message::send_error;
use crate::carriers::stream::Stream;
use crate::carriers::unix;
use crate::quiet::may_say;
use crate::server::peer::serve;
use crate::server::registry::Admitted;
use crate::server::state::{Carrier, Shared};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};

/// How long an acceptor pauses when the process is out of descriptors or memory.
pub(super) const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Accepts on `listener` until the server drains.
pub(super) fn accept_callers(shared: &Arc<Shared>, listener: &OwnedFd) {
    let Some(stop) = &shared.stop else { return };
    let mut starved = false;
    loop {
        let mut waits = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        // If poll fails (EINTR, no memory), go on: accept says what is wrong.
        let _ = rustix::event::poll(&mut waits, None);
        if shared.registry.is_draining() {
            return;
        }
        match rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC) {
            Ok(socket) => {
                starved = false;
                admit(shared, socket);
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => {
                if !std::mem::replace(&mut starved, true) {
                    say_starved(Carrier::Unix, errno);
                }
                std::thread::sleep(ACCEPT_REST);
            }
        }
    }
}

/// Logs that accept failed.
pub(super) fn say_starved(carrier: Carrier, errno: Errno) {
    let name = carrier.name();
    if let Some(left_out) = may_say("accept", name) {
        tracing::warn!("no new {name} connections for now: {errno}; raise `ulimit -n`?{left_out}");
    }
}

fn admit(shared: &Arc<Shared>, socket: OwnedFd) {
    let stream = Stream::new(socket, true);
    if let Some(admits) = shared.admits.get()
        && !unix::peer(stream.socket().as_fd()).is_ok_and(|(credentials, pid)| admits(&credentials, pid))
    {
        refuse(stream, &Error::new(ErrorKind::PermissionDenied, "this socket serves another user"));
        return;
    }
    let admitted = unix::peer_ids(stream.socket().as_fd()).and_then(|peer| {
        let account = shared.accounts.of(&Payer::Local(peer.uid));
        let admitted = shared.registry.admit(stream.socket(), Arc::clone(&account));
        if let Err(error) = &admitted
            && let Some(left_out) = may_say("admit", account.who())
        {
            tracing::warn!("{} refused a connection: {error}{left_out}", account.who());
        }
        admitted
    });
    begin(shared, stream, Carrier::Unix, admitted);
}

/// Serves a connection on a thread of its own, or tells the peer why not.
pub(super) fn begin(shared: &Arc<Shared>, mut stream: Stream, carrier: Carrier, admitted: Result<Admitted>) {
    let place = match admitted {
        Ok(place) => place,
        Err(error) => {
            refuse(stream, &error);
            return;
        }
    };
    stream.set_account(&place.account);
    let number = place.number;
    let for_thread = Arc::clone(shared);
    let spawned = std::thread::Builder::new().name(format!("call-{number}")).spawn(move || {
        serve(&for_thread, stream, carrier, place);
    });
    if let Err(error) = spawned {
        shared.registry.remove(number);
        if let Some(left_out) = may_say("thread", "") {
            tracing::warn!("connection {number} refused: no thread for it ({error}){left_out}");
        }
    }
}

/// Tells a caller that there are too many, without ever blocking the acceptor.
fn refuse(mut stream: Stream, error: &Error) {
    // A fresh socket's send buffer holds these few bytes: this can't block.
    let _ = send_error(&stream, (0, 0, 0), error);
    stream.linger(Duration::from_millis(1), 0);
}
