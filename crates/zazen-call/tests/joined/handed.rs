//! Connections that one server accepts and another one serves: the contract of a carrier, and what
//! becomes of them when either server ends.

use crate::common::*;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use zazen_call::{Adopter, Call, Caller, Connection, Reply, Server, ServerLimits, Service, contract};
use zazen_core::{Error, ErrorKind, Result};

const GIVER: u16 = 8;

/// Gives its callers' connections to another server.
struct Giver {
    to: Adopter,
    /// The other server's life: the end for writing, and the one that callers are told.
    life: Mutex<Option<(OwnedFd, OwnedFd)>>,
}

impl Giver {
    fn new(to: Adopter) -> Arc<Giver> {
        let (read, write) = rustix::pipe::pipe().unwrap();
        Arc::new(Giver { to, life: Mutex::new(Some((write, read))) })
    }

    /// As if the other server's process had ended.
    fn end_life(&self) {
        *self.life.lock().unwrap() = None;
    }
}

impl Service for Giver {
    fn id(&self) -> u16 {
        GIVER
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let alone = Error::new(ErrorKind::Unsupported, "this connection is no socket alone");
        let socket = call.line.to_hand_over().ok_or(alone)?.try_clone_to_owned().unwrap();
        let adopted = self.to.admit(socket, &caller.credentials)?;
        let connection = adopted.number();
        adopted.serve(Caller { connection, ..caller.clone() })?;
        let ends = self.life.lock().unwrap().as_ref().map(|(_, read)| read.try_clone().unwrap());
        Ok(Reply { handed: ends, ..Reply::default() })
    }

    fn detach(&self, _: &Caller) {}
}

/// A server that accepts, and one that serves.
struct Pair {
    front: Bench,
    giver: Arc<Giver>,
    back: Server,
}

impl Pair {
    fn new(services: Vec<Arc<dyn Service>>, limits: ServerLimits) -> Pair {
        let back = Server::new(services, None, limits);
        let giver = Giver::new(back.adopter());
        let limits = ServerLimits { connections_max: 64, stall_timeout: PATIENCE, ..ServerLimits::default() };
        let front = Bench::of(Arc::default(), vec![giver.clone()], limits, Default::default());
        Pair { front, giver, back }
    }

    fn with_probe() -> (Pair, Arc<Probe>) {
        let probe = Arc::new(Probe::default());
        let limits = ServerLimits { connections_max: 64, stall_timeout: PATIENCE, ..ServerLimits::default() };
        (Pair::new(vec![probe.clone()], limits), probe)
    }
}

impl Running for Pair {
    fn server(&self) -> &Server {
        &self.back
    }

    fn connect(&self) -> Result<Connection> {
        let mut connection = self.front.try_connect(Carrier::Tcp)?;
        let given = connection.call(GIVER, 1, b"", &[]);
        given.map_err(|error| match error.kind() {
            // The front knows more than a caller would who finds the server closed.
            ErrorKind::ShuttingDown => Error::new(ErrorKind::Unavailable, error.to_string()),
            _ => error,
        })?;
        Ok(connection)
    }
}

struct Handed;

impl Rig for Handed {
    fn start(&self, services: Vec<Arc<dyn Service>>, limits: ServerLimits) -> Box<dyn Running> {
        Box::new(Pair::new(services, limits))
    }

    fn passes_fds(&self) -> bool {
        false
    }
}

#[test]
fn a_connection_that_was_handed_over_keeps_the_contract() {
    contract::run(&Handed);
}

#[test]
fn the_caller_stays_who_it_is() {
    let (pair, _probe) = Pair::with_probe();
    let told = pair.connect().unwrap().call(SERVICE, WHOAMI, b"", &[]).unwrap().payload;
    let told = String::from_utf8(told).unwrap();
    assert!(told.contains("uid: 1234, gid: 567, groups: [8, 9, 10]"), "{told}");
    assert!(told.contains("pid: 4321, host: Some(\"testhost\")") && told.contains("local=false"), "{told}");
}

#[test]
fn only_a_connection_that_is_a_socket_alone_is_handed_over() {
    let (pair, _probe) = Pair::with_probe();
    for carrier in [Carrier::Unix, Carrier::Shm] {
        let error = pair.front.connect(carrier).call(GIVER, 1, b"", &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    // Bytes of the next call have come already: they would be lost.
    let mut raw = pair.front.raw(Carrier::Tcp);
    raw.send(&[request_to(GIVER, 1, 1, b"", b""), request_to(GIVER, 1, 2, b"", b"")].concat());
    assert_eq!(raw.reply().unwrap().0, ErrorKind::Unsupported as u32);
}

/// Both servers count it until it ends, and each frees its place.
#[test]
fn its_places_are_free_again() {
    let (pair, probe) = Pair::with_probe();
    let mut connection = pair.connect().unwrap();
    connection.call(SERVICE, ECHO, b"", &[]).unwrap();
    assert_eq!((pair.front.server.connections(), pair.back.connections()), (1, 1));
    drop(connection);
    probe.assert_all_detached(1);
    while pair.front.server.connections() + pair.back.connections() > 0 {
        std::thread::yield_now();
    }
}

/// The front must not keep the socket open: then the caller would wait for ever.
#[test]
fn the_front_lets_go_when_the_process_that_serves_ends() {
    let (pair, probe) = Pair::with_probe();
    let mut connection = pair.connect().unwrap();
    std::thread::scope(|scope| {
        let call = scope.spawn(move || connection.call(SERVICE, GATE, b"", &[]).map(|reply| reply.payload));
        probe.wait("the call is in progress", |state| state.waiting == 1);
        pair.giver.end_life();
        while pair.front.server.connections() > 0 {
            std::thread::yield_now();
        }
        probe.open_gate();
        assert_eq!(call.join().unwrap().unwrap(), b"through");
    });
}

#[test]
fn a_front_that_drains_lets_the_call_in_progress_end() {
    let (pair, probe) = Pair::with_probe();
    let mut connection = pair.connect().unwrap();
    std::thread::scope(|scope| {
        let call = scope.spawn(move || {
            let first = connection.call(SERVICE, GATE, b"", &[]).map(|reply| reply.payload);
            // A call that is on its way may still get in.
            let error = loop {
                match connection.call(SERVICE, ECHO, b"", &[]) {
                    Ok(_) => std::thread::yield_now(),
                    Err(error) => break error,
                }
            };
            (first, error)
        });
        probe.wait("the call is in progress", |state| state.waiting == 1);
        pair.front.server.drain(PATIENCE);
        probe.open_gate();
        let (first, error) = call.join().unwrap();
        assert_eq!(first.unwrap(), b"through");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    });
    probe.assert_all_detached(1);
}

#[test]
fn another_key_ends_it() {
    let (pair, probe) = Pair::with_probe();
    let mut connection = pair.connect().unwrap();
    assert_eq!(pair.front.server.replace_key(&key(b"another key of good length")), 1);
    probe.assert_all_detached(1);
    assert_eq!(connection.call(SERVICE, ECHO, b"", &[]).unwrap_err().kind(), ErrorKind::Unavailable);
}
