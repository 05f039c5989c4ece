//! A carrier that this crate does not know (channels between threads) passes the contract: the seam
//! is whole.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use zazen_call::carriers::{Answered, Ask, ClientEnd, Exchanged, Sink};
use zazen_call::contract::{PATIENCE, Rig, Running, run};
use zazen_call::{Attached, Connection, Identity, Reply, Server, ServerLimits, Service};
use zazen_core::{Error, ErrorKind, Result};

/// How often either end looks whether the other is there.
const LOOK: Duration = Duration::from_millis(2);

struct Request {
    to: (u16, u16),
    payload: Vec<u8>,
    bulk: Vec<u8>,
    room: Option<u64>,
    fds: Vec<OwnedFd>,
}

struct ChannelEnd {
    line: UnixStream,
    requests: Sender<Request>,
    replies: Receiver<Result<Reply>>,
    timeout: Option<Duration>,
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "the server is gone")
}

impl ChannelEnd {
    fn is_cut(&self) -> bool {
        let mut look = [PollFd::new(&self.line, PollFlags::RDHUP)];
        poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        !look[0].revents().is_empty()
    }

    fn reply(&self) -> Result<Result<Reply>> {
        let start = Instant::now();
        loop {
            match self.replies.recv_timeout(LOOK) {
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Disconnected) => return Err(unavailable()),
                Err(RecvTimeoutError::Timeout) if self.is_cut() => return Err(unavailable()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
                return Err(Error::new(ErrorKind::TimedOut, "the server is too slow"));
            }
        }
    }
}

impl ClientEnd for ChannelEnd {
    fn exchange(&mut self, ask: &Ask<'_>, sink: &mut Sink<'_, '_>) -> Result<Answered> {
        if self.is_cut() {
            return Err(unavailable());
        }
        let request = Request {
            to: (ask.service, ask.function),
            payload: ask.payload.to_vec(),
            bulk: ask.input.iter().flat_map(|part| part.to_vec()).collect(),
            room: sink.room(),
            fds: ask.fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect(),
        };
        self.requests.send(request).map_err(|_| unavailable())?;
        let outcome = self.reply()?.map(|Reply { payload, fds, bulk, .. }| {
            let bulk_bytes = bulk.len() as u64;
            match sink {
                Sink::Grow(all) => *all = bulk,
                Sink::Fill(parts) => {
                    let mut rest = &bulk[..];
                    for part in parts.iter_mut() {
                        let (now, later) = rest.split_at(part.len().min(rest.len()));
                        part[..now.len()].copy_from_slice(now);
                        rest = later;
                    }
                }
            }
            Exchanged { payload, bulk_bytes, fds }
        });
        Ok(Answered { outcome, goes_on: true })
    }

    fn passes_fds(&self) -> bool {
        true
    }

    fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    fn watch(&mut self, _: Duration, _: Box<dyn FnMut() -> bool + Send>) {}
}

/// Serves one connection until either end is gone.
fn serve(mut caller: Attached, requests: &Receiver<Request>, replies: &Sender<Result<Reply>>) {
    loop {
        match requests.recv_timeout(LOOK) {
            Ok(request) => {
                let Request { to, payload, bulk, room, fds } = request;
                if replies.send(caller.call(to, &payload, bulk, room, fds)).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) if !caller.line().is_cut() => {}
            Err(_) => return,
        }
    }
}

struct Channels;

struct Runs(Arc<Server>);

impl Rig for Channels {
    fn start(&self, services: Vec<Arc<dyn Service>>, limits: ServerLimits) -> Box<dyn Running> {
        Box::new(Runs(Arc::new(Server::new(services, None, limits))))
    }

    fn passes_fds(&self) -> bool {
        true
    }

    fn sends_first(&self) -> bool {
        false
    }
}

impl Running for Runs {
    fn server(&self) -> &Server {
        &self.0
    }

    fn connect(&self) -> Result<Connection> {
        let server = Arc::clone(&self.0);
        let mut connection = Connection::over("a server in this process", move || {
            let (line, theirs) = UnixStream::pair().unwrap();
            let me = Identity::of_this_process();
            let caller = server.attach(theirs.into(), me.credentials, me.pid, None);
            let caller = caller.map_err(|error| match error.kind() {
                ErrorKind::ShuttingDown => unavailable(),
                _ => error,
            })?;
            let (requests, asked) = channel();
            let (answers, replies) = channel();
            std::thread::spawn(move || serve(caller, &asked, &answers));
            Ok(Box::new(ChannelEnd { line, requests, replies, timeout: None }) as Box<dyn ClientEnd>)
        })?;
        connection.set_timeout(Some(PATIENCE));
        Ok(connection)
    }
}

#[test]
fn another_carrier_keeps_the_contract() {
    run(&Channels);
}
