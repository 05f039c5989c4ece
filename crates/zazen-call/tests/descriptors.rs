//! Descriptors on the unix socket: they arrive, close on exec, and none is ever left open. The only
//! test of its process, since it counts the process's open files.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

mod common;

use common::*;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Resource, Rlimit};
use std::io::{IoSlice, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use zazen_core::ErrorKind;

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What they are, for the message of a failure.
fn open_files_named() -> Vec<String> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let named = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
    named.map(|target| target.display().to_string()).collect()
}

/// Sends `bytes` with `count` descriptors on the first.
fn send_with(socket: &UnixStream, bytes: &[u8], count: usize) {
    let null = std::fs::File::open("/dev/null").unwrap();
    let fds = vec![null.as_fd(); count];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

fn with_fd_count(mut bytes: Vec<u8>, count: u16) -> Vec<u8> {
    bytes[28..30].copy_from_slice(&count.to_le_bytes());
    resealed(bytes)
}

#[test]
fn descriptors_arrive_and_never_leak() {
    let bench = Bench::new();
    bench.assert_serves();
    bench.assert_all_detached(2);
    let settled = || {
        while bench.server.connections() > 0 {
            std::thread::yield_now();
        }
    };
    settled();
    let before = open_files();
    let named_before = open_files_named();
    // A connection that was dropped at once may still wait to be accepted: only a leak stays for
    // good.
    let assert_none_left = || {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while bench.server.connections() > 0 || open_files() != before {
            let now = open_files_named();
            assert!(std::time::Instant::now() < deadline, "{named_before:?}, then {now:?}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };

    for carrier in [Carrier::Unix, Carrier::Shm] {
        there_and_back(&bench, carrier);
        assert_none_left();
    }
    shared_memory_goes_with_its_caller(&bench);
    assert_none_left();

    // More or fewer than announced, more than allowed, on the wrong bytes, with a dying peer.
    let message = request(ECHO, 1, b"payload", b"bulk");
    for (sent, announced) in [(1, 0), (2, 1), (1, 2), (64, 0), (65, 64), (200, 3), (3, 65)] {
        let mut socket = UnixStream::connect(&bench.socket).unwrap();
        send_with(&socket, &with_fd_count(message.clone(), announced), sent);
        let mut answer = [0; 64];
        socket.read_exact(&mut answer).unwrap();
        assert_ne!(answer[12..16], [0; 4], "{sent} sent, {announced} announced");
    }
    // One more on each dribbled byte of the header.
    let socket = UnixStream::connect(&bench.socket).unwrap();
    for at in 0..64 {
        send_with(&socket, &message[at..at + 1], 3);
    }
    drop(socket);
    // On payload and bulk: the kernel closes them, the call is served.
    let mut raw = bench.raw(Carrier::Unix);
    let socket = UnixStream::connect(&bench.socket).unwrap();
    send_with(&socket, &message[..64], 1);
    send_with(&socket, &message[64..], 1);
    drop(socket);
    raw.send(&message);
    assert_eq!(raw.reply().unwrap().1, b"payload");
    drop(raw);
    let socket = UnixStream::connect(&bench.socket).unwrap();
    send_with(&socket, &with_fd_count(message[..64].to_vec(), 1)[..30], 1);
    drop(socket);
    assert_none_left();
    bench.assert_serves();

    // At the limit of open files the caller learns why, and nothing stays open.
    let mut connection = bench.connect(Carrier::Unix);
    connection.call(SERVICE, ECHO, b"", &[]).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let used = open_files();
    let old = rustix::process::getrlimit(Resource::Nofile);
    let low = Rlimit { current: Some(used as u64 + 4), ..old };
    rustix::process::setrlimit(Resource::Nofile, low).unwrap();
    let refused = connection.call_with_fds(SERVICE, FDS, b"", &[], &[file.as_fd(); 20]);
    rustix::process::setrlimit(Resource::Nofile, old).unwrap();
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    drop((connection, file));
    assert_none_left();

    // With the server everything of it goes: threads, epoll sets, sockets.
    drop(bench);
    let mine = || {
        let tasks = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        tasks.filter(|name| name.starts_with("call-") || name.starts_with("accept-")).count()
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while mine() > 0 || open_files_named().iter().any(|name| name.contains("eventpoll")) {
        assert!(std::time::Instant::now() < deadline, "{} threads, {:?}", mine(), open_files_named());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Sixty-four at once, there and back, in order, close-on-exec.
fn there_and_back(bench: &Bench, carrier: Carrier) {
    let mut connection = bench.connect(carrier);
    let files: Vec<std::fs::File> = (0..64)
        .map(|number| {
            let mut file = tempfile::tempfile().unwrap();
            write!(file, "file {number}").unwrap();
            file
        })
        .collect();
    for count in [64, 0, 1, 17] {
        let fds: Vec<BorrowedFd<'_>> = files[..count].iter().map(AsFd::as_fd).collect();
        let reply = connection.call_with_fds(SERVICE, FDS, b"", &[], &fds).unwrap();
        assert_eq!(reply.fds.len(), count);
        for (number, fd) in reply.fds.into_iter().enumerate() {
            assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
            let mut file = std::fs::File::from(fd);
            assert_eq!(file.metadata().unwrap().ino(), files[number].metadata().unwrap().ino());
            file.rewind().unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, format!("file {number}"));
        }
    }
    let too_many = vec![files[0].as_fd(); 65];
    let error = connection.call_with_fds(SERVICE, FDS, b"", &[], &too_many).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    // A service that does not take them, or panics, does not keep them.
    for function in [ECHO, REFUSE, PANIC] {
        let _ = connection.call_with_fds(SERVICE, function, b"", &[], &[files[0].as_fd()]);
    }
}

fn mapped_regions() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("zazen-lanes").count()
}

/// Regions, grants and threads end with their callers, however those end.
fn shared_memory_goes_with_its_caller(bench: &Bench) {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let mut most = 0;
    let bytes = pattern(300_000);
    for round in 0..60 {
        let mut connection = bench.connect(Carrier::Shm);
        let mut lane = connection.lane().unwrap();
        let pooled = lane.allocate(100_000);
        connection.call(SERVICE, SINK, b"", &[&bytes, &pooled]).unwrap();
        if round % 2 == 0 {
            // Timed out or not: a late reply is left behind.
            lane.set_timeout(Some(std::time::Duration::from_millis(1)));
            let _ = lane.call(SERVICE, NAP, &5u64.to_le_bytes(), &[]);
        }
        assert!(mapped_regions() >= 2);
        drop((connection, lane, pooled));
        while bench.server.connections() > 0 || bench.server.granted_bytes() > 0 {
            std::thread::yield_now();
        }
        if round == 10 {
            most = threads() + 2;
        }
    }
    // The server counts a connection as gone before the connection's thread unmaps its region.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while mapped_regions() > 0 || threads() > most {
        let left = (mapped_regions(), threads());
        assert!(std::time::Instant::now() < deadline, "{left:?} regions and threads, {most} threads before");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
