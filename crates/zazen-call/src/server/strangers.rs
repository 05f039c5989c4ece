//! Accepts TCP peers. Nobody knows who they are until they prove the cluster key: they are
//! strangers, and each may be one of a flood.
//!
//! The acceptor therefore empties the kernel's queue as fast as it can, because the kernel drops
//! everybody's connections while that queue is full. A peer that has left already is dropped. All
//! others wait in the lobby, without a thread, until they have sent something and it is their
//! group's turn.

use crate::carriers::stream::Stream;
use crate::carriers::tcp;
use crate::quiet::may_say;
use crate::server::accept::{ACCEPT_REST, begin, say_starved};
use crate::server::lobby::Lobby;
use crate::server::peer_group::{PeerGroup, PeerGroups};
use crate::server::state::{Carrier, Shared};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_core::{Error, Result};

/// How long the acceptor pauses when all strangers have just come.
const REST: Duration = Duration::from_millis(5);
/// Peers that are accepted before those in the lobby get their turns.
const ACCEPTED_AT_ONCE: usize = 256;
/// Peers in the lobby, at most; and the part of the process's descriptors that they may take.
const LOBBY_MAX: usize = 2048;
const LOBBY_SHARE: u64 = 8;

struct Waiter {
    socket: OwnedFd,
    host: IpAddr,
}

/// The acceptor of one TCP listener.
pub(super) struct Strangers {
    shared: Arc<Shared>,
    listener: OwnedFd,
    lobby: Lobby<Waiter>,
    /// Tells which peers in the lobby have sent something, or have left.
    heard: OwnedFd,
    peer_groups: PeerGroups,
    starved: bool,
}

impl Strangers {
    /// Accepts on `listener`, which does not block.
    pub(super) fn new(shared: &Arc<Shared>, listener: OwnedFd) -> Result<Strangers> {
        let heard = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|errno| Error::io("start accepting connections", errno.into()))?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let share =
            limit.map_or(LOBBY_MAX, |limit| usize::try_from(limit / LOBBY_SHARE).unwrap_or(LOBBY_MAX));
        Ok(Strangers {
            shared: Arc::clone(shared),
            listener,
            lobby: Lobby::new(share.min(LOBBY_MAX)),
            heard,
            peer_groups: PeerGroups::new(),
            starved: false,
        })
    }

    /// Accepts until the server drains.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let Some(stop) = &shared.stop else { return };
        loop {
            let mut waits = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.heard, PollFlags::IN),
                PollFd::new(stop, PollFlags::IN),
            ];
            let patience = self.patience().and_then(|patience| Timespec::try_from(patience).ok());
            // If poll fails (EINTR, no memory), go on: accept says what is wrong.
            let _ = rustix::event::poll(&mut waits, patience.as_ref());
            if shared.registry.is_draining() {
                return;
            }
            self.accept();
            self.hear();
            self.give_places();
        }
    }

    /// How long nothing needs to be done unless something happens.
    fn patience(&self) -> Option<Duration> {
        if self.lobby.is_anyone_ready() {
            return Some(REST);
        }
        let until = self.lobby.oldest()?.checked_add(self.shared.limits.proof_timeout)?;
        // Not a moment too early: then the wait would be for nothing.
        Some(until.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match rustix::net::acceptfrom_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok((socket, peer)) => {
                    self.starved = false;
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    self.enter(socket, peer);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    if !std::mem::replace(&mut self.starved, true) {
                        say_starved(Carrier::Tcp, errno);
                    }
                    std::thread::sleep(ACCEPT_REST);
                    return;
                }
            }
        }
    }

    fn enter(&mut self, socket: OwnedFd, peer: Option<SocketAddr>) {
        if has_left(&socket) {
            return;
        }
        let own = rustix::net::getsockname(&socket).ok().and_then(|own| SocketAddr::try_from(own).ok());
        let peer_group = match (peer, own) {
            (Some(peer), Some(own)) => self.peer_groups.of(peer, own),
            _ => PeerGroup::Here(None),
        };
        let host = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
        let (number, gone) = self.lobby.enter(peer_group, Waiter { socket, host }, Instant::now());
        if let Some((whose, _)) = gone {
            let whose = whose.to_string();
            if let Some(left_out) = may_say("lobby", &whose) {
                tracing::warn!(
                    "{whose} opens more connections than this daemon can look at; some were closed{left_out}"
                );
            }
        }
        let Some(waiter) = self.lobby.get(number) else { return };
        let wanted = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        if epoll::add(&self.heard, &waiter.socket, EventData::new_u64(number), wanted).is_err() {
            self.lobby.spoke(number);
        }
    }

    /// Notes which peers have sent something, and drops those that have left.
    fn hear(&mut self) {
        let mut events = Vec::with_capacity(ACCEPTED_AT_ONCE);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let buffer = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.heard, buffer, Some(&now)).is_err() {
            return;
        }
        let left = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        for event in events {
            let (number, flags) = (event.data.u64(), event.flags);
            if flags.intersects(left) {
                self.lobby.take(number);
            } else {
                self.lobby.spoke(number);
            }
        }
    }

    /// Gives places to peers that have sent something, and closes those that stay too long.
    fn give_places(&mut self) {
        if let Some(past) = Instant::now().checked_sub(self.shared.limits.proof_timeout) {
            while self.lobby.overdue(past).is_some() {}
        }
        while self.lobby.is_anyone_ready() && self.shared.registry.makes_room() {
            let Some((peer_group, waiter)) = self.lobby.next() else { return };
            if !has_left(&waiter.socket) {
                let _ = epoll::delete(&self.heard, &waiter.socket);
                self.admit(peer_group, waiter);
            }
        }
    }

    fn admit(&self, peer_group: PeerGroup, waiter: Waiter) {
        tcp::set_options(waiter.socket.as_fd());
        let stream = Stream::new(waiter.socket, false);
        let admitted = self.shared.registry.admit_stranger(stream.socket(), waiter.host, peer_group);
        begin(&self.shared, stream, Carrier::Tcp, admitted);
    }
}

/// Whether the peer has closed its end, or its side of it: no caller does that while it waits for
/// an answer.
fn has_left(socket: &OwnedFd) -> bool {
    let left = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut asked = [PollFd::new(socket, left)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().intersects(left)
}
