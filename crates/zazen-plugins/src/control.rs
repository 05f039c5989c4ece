//! What a daemon and a plug-in's worker process tell each other, over the socket that is the
//! worker's standard input: small JSON messages, one a packet.
//!
//! Invariant: whatever a plug-in sends in the worker's place, the daemon waits no longer than
//! [`REST_WAIT`] for the rest of it, and takes no more than [`MESSAGE_BYTES_MAX`].

use crate::identity::Identity;
use crate::object::Description;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};

/// The largest message: a description with many functions.
const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// A packet must fit into the sockets' buffers: longer messages come in several.
const PACKET_BYTES_MAX: usize = 32 << 10;

/// Folders of mounts that a start can bring.
pub(crate) const MOUNTED_MAX: usize = 4;

/// Room for the descriptors of a start: of the object, the listening socket, the counters, the file
/// of spans, and the folders of mounts.
const FDS_SPACE: usize = rustix::cmsg_space!(ScmRights(4 + MOUNTED_MAX));

/// How long the rest of a message may take.
const REST_WAIT: Duration = Duration::from_secs(2);

/// The exit code of a worker that ended itself because a call did not end.
pub(crate) const EXIT_HUNG: i32 = 86;

/// From the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToWorker {
    /// The first message.
    Start(Start),
    /// Calls in progress may finish for so long; then end.
    Stop { patience_ms: u64 },
}

/// What to run, and within which bounds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) path: PathBuf,
    /// Listen at the socket that came along, and serve; else only check the object.
    pub(crate) serve: bool,
    /// Become this caller before the object is loaded, and serve nobody else.
    pub(crate) identity: Option<Identity>,
    /// What callers may reach by a plug-in that acts as they.
    pub(crate) exports: Vec<PathBuf>,
    pub(crate) daemon_pid: u32,
    pub(crate) daemon_uid: u32,
    pub(crate) generation: u64,
    pub(crate) process_count: i32,
    pub(crate) segment_bytes_max: u64,
    pub(crate) connections_max: usize,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) open_files: Option<u64>,
    /// 0: no bound.
    pub(crate) call_timeout_ms: u64,
    /// The paths of folders of mounts, which came along in this order, behind everything else.
    pub(crate) mounted: Vec<PathBuf>,
    /// Record each call in the file that came along, as this node's.
    pub(crate) recorded_as: Option<String>,
}

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    /// It serves.
    Ready(Description),
    /// It can't; it ends.
    Refused { why: String },
    /// A sign of life.
    Alive { clients: u64 },
    /// A call did not end: it ends itself.
    Hung { why: String },
}

/// Two connected ends; closed on exec, but for what becomes a child's standard input.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Error::io("make a socket pair for a plug-in's process", errno.into()))
}

fn lost(what: &str, errno: Errno) -> Error {
    Error::new(ErrorKind::Unavailable, format!("a plug-in's process and its daemon: {what}: {errno}"))
}

/// Sends one message; never blocks for long, since messages are few. Each packet's first byte says
/// whether more follow.
pub(crate) fn send(socket: BorrowedFd<'_>, message: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(message)
        .map_err(|error| Error::new(ErrorKind::Io, format!("write a message to a plug-in: {error}")))?;
    let mut parts = text.chunks(PACKET_BYTES_MAX).peekable();
    while let Some(part) = parts.next() {
        let mut packet = vec![u8::from(parts.peek().is_some())];
        packet.extend_from_slice(part);
        loop {
            match rustix::net::send(socket, &packet, SendFlags::NOSIGNAL) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(lost("send", errno)),
            }
        }
    }
    Ok(())
}

/// Sends one packet that has descriptors with it and must be followed by a message.
pub(crate) fn send_fds(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); FDS_SPACE];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(fds));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)
        .map(|_| ())
        .map_err(|errno| lost("send descriptors", errno))
}

/// Receives what [`send_fds`] sent.
pub(crate) fn receive_fds(socket: BorrowedFd<'_>) -> Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); FDS_SPACE];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .map_err(|errno| lost("receive descriptors", errno))?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    Ok(fds)
}

/// Whether one of them has something to read, or is closed, within that time.
pub(crate) fn readable(fds: &[BorrowedFd<'_>], patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let mut waits: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match rustix::event::poll(&mut waits, Some(&wait)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Whether the other end is gone. Messages of it may wait still.
pub(crate) fn is_closed(socket: BorrowedFd<'_>) -> bool {
    let mut waits = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let found = rustix::event::poll(&mut waits, Some(&Timespec::default()));
    found.is_ok() && waits[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Receives one message; `None` if the other end is gone. Waits as long as it takes for a message's
/// beginning only.
pub(crate) fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> Result<Option<T>> {
    let mut text = Vec::new();
    let mut packet = vec![0; PACKET_BYTES_MAX + 1];
    let mut until = None;
    loop {
        if let Some(until) = until
            && !readable(&[socket], Instant::saturating_duration_since(&until, Instant::now()))
        {
            return Err(Error::new(ErrorKind::Protocol, "a plug-in's process broke off in a message"));
        }
        let got = match rustix::net::recv(socket, &mut packet[..], RecvFlags::empty()) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(None),
            Ok((got, _)) => got,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(lost("receive", errno)),
        };
        text.extend_from_slice(&packet[1..got]);
        if packet[0] == 0 {
            break;
        }
        let until = *until.get_or_insert_with(|| Instant::now() + REST_WAIT);
        if text.len() > MESSAGE_BYTES_MAX || Instant::now() > until {
            return Err(Error::new(ErrorKind::TooLarge, "a plug-in's process says too much"));
        }
    }
    let message = serde_json::from_slice(&text)
        .map_err(|error| Error::new(ErrorKind::Protocol, format!("a plug-in's process: {error}")))?;
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::FunctionDescription;
    use std::os::fd::AsFd;

    #[test]
    fn nonsense_and_half_a_message_are_errors_within_their_time() {
        let check = |packets: &[&[u8]], says: &str| {
            let (ours, theirs) = pair().unwrap();
            for packet in packets {
                rustix::net::send(&theirs, packet, SendFlags::empty()).unwrap();
            }
            let error = receive::<FromWorker>(ours.as_fd()).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        check(&[b"\0no JSON"], "a plug-in's process: ");
        check(&[b"\0\"Unknown\""], "unknown variant");
        check(&[b"\x01\"Ali"], "broke off in a message");
    }

    #[test]
    fn a_message_without_end_is_cut() {
        let (ours, theirs) = pair().unwrap();
        let babbler =
            std::thread::spawn(
                move || {
                    while rustix::net::send(&theirs, b"\x01 ", SendFlags::NOSIGNAL).is_ok() {}
                },
            );
        assert!(receive::<FromWorker>(ours.as_fd()).is_err());
        drop(ours);
        babbler.join().unwrap();
    }

    #[test]
    fn long_messages_come_in_one_piece() {
        let (ours, theirs) = pair().unwrap();
        let function =
            |number| FunctionDescription { name: format!("function_{number}_of_many"), flags: number };
        let description = Description {
            id: 3,
            name: "many".into(),
            schema_hash: u64::MAX,
            layout_hash: 1,
            acts_as_caller: true,
            functions: (0..5000).map(function).collect(),
        };
        let sent = description.clone();
        let sender = std::thread::spawn(move || {
            send(theirs.as_fd(), &FromWorker::Ready(sent)).unwrap();
            send(theirs.as_fd(), &FromWorker::Alive { clients: 3 }).unwrap();
        });
        let Some(FromWorker::Ready(got)) = receive(ours.as_fd()).unwrap() else { panic!("not ready") };
        assert_eq!(got, description);
        assert!(matches!(receive(ours.as_fd()).unwrap(), Some(FromWorker::Alive { clients: 3 })));
        sender.join().unwrap();
        assert!(receive::<FromWorker>(ours.as_fd()).unwrap().is_none());
    }
}
