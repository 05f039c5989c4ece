//! Calls passed on to a plug-in's process for callers whom only the daemon can reach (other nodes).
//!
//! Each caller has connections of its own to the process, one for each call in progress, so that it
//! is one client there as well. The data are copied once on their way.
//!
//! A caller that uses its connection for one plug-in only may say so: then the process gets the
//! connection's socket, and serves the caller without the daemon between them.

use crate::supervisor::Supervisor;
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_call::{Call, Caller, Connection, Lanes, Reply};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::plugins::{
    About, AnswerHead, FateKind, OpenPlugin, OpenPluginFor, PluginOpened, plugins_fn, status,
};
use zazen_wire::service;

/// An answer that says only why there is none.
pub(crate) fn refusal(status: i32) -> Reply {
    let mut payload = Vec::new();
    AnswerHead { status: status.cast_unsigned(), out_count: 0 }.put(std::iter::empty(), &mut payload);
    Reply { payload, ..Reply::default() }
}

/// The callers of one isolated plug-in that are passed on.
#[derive(Default)]
pub(crate) struct Relays(Mutex<HashMap<u64, Arc<Relay>>>);

struct Relay {
    plugin: u16,
    generation: u64,
    lanes: Lanes,
    idle: Mutex<Vec<Connection>>,
}

impl Relay {
    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Result<Connection> {
        let idle = self.idle().pop();
        idle.map_or_else(|| self.lanes.open(), Ok)
    }

    fn give_back(&self, connection: Connection) {
        if connection.is_alive() {
            self.idle().push(connection);
        }
    }
}

/// Opens the plug-in's process for `caller`: for what comes over `connection`, or over the
/// caller's own socket.
fn open_for(
    connection: &mut Connection,
    caller: &Caller,
    open: &OpenPlugin,
    socket: &[BorrowedFd<'_>],
) -> Result<PluginOpened> {
    let told = OpenPluginFor {
        open: OpenPlugin { stay: false, ..open.clone() },
        credentials: caller.credentials.clone(),
        pid: caller.pid,
        host: caller.host.clone().unwrap_or_default(),
    };
    let function = plugins_fn::OPEN_FOR;
    let reply = connection.call_with_fds(service::PLUGINS, function, &told.encode(), &[], socket)?;
    PluginOpened::decode(&reply.payload)
}

/// What became of a wish to open a plug-in's process. Of what goes wrong, the caller is told what
/// it can do something about.
fn told(isolated: &Supervisor, outcome: Result<PluginOpened>) -> Result<PluginOpened> {
    outcome.or_else(|error| match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::Busy => Err(error),
        _ => {
            tracing::warn!("plug-in {}: {error}", isolated.description().name);
            Ok(PluginOpened { status: status::NO_SERVICE.cast_unsigned(), ..PluginOpened::default() })
        }
    })
}

/// Gives the caller's connection, whose socket is `socket`, to the plug-in's process. That
/// process serves it once the answer is sent; the descriptor tells of the process's end.
pub(crate) fn hand_over(
    isolated: &Supervisor,
    caller: &Caller,
    open: &OpenPlugin,
    socket: BorrowedFd<'_>,
) -> Result<(PluginOpened, Option<OwnedFd>)> {
    let mut ends = None;
    let opened = isolated.asked(&caller.credentials, |mut connection, _| {
        let opened = open_for(&mut connection, caller, open, &[socket])?;
        if opened.status == 0 {
            let lost = || Error::new(ErrorKind::Io, "the connection to the plug-in's process has no socket");
            ends = Some(connection.into_socket().ok_or_else(lost)?);
        }
        Ok(opened)
    });
    Ok((told(isolated, opened)?, ends))
}

impl Relays {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<Relay>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, caller: &Caller) -> Option<Arc<Relay>> {
        self.all().get(&caller.connection).cloned()
    }

    /// Opens the plug-in's process for `caller`; anew if it has become another since.
    pub(crate) fn open(
        &self,
        isolated: &Supervisor,
        caller: &Caller,
        open: &OpenPlugin,
    ) -> Result<PluginOpened> {
        told(isolated, self.try_open(isolated, caller, open))
    }

    fn try_open(&self, isolated: &Supervisor, caller: &Caller, open: &OpenPlugin) -> Result<PluginOpened> {
        isolated.asked(&caller.credentials, |mut connection, generation| {
            let opened = open_for(&mut connection, caller, open, &[])?;
            if opened.status == 0 {
                let lanes = connection.lanes()?;
                let idle = Mutex::new(vec![connection]);
                let relay = Arc::new(Relay { plugin: open.plugin, generation, lanes, idle });
                self.all().insert(caller.connection, relay);
            }
            Ok(opened)
        })
    }

    /// Passes a call on. Whatever goes wrong is the answer's status.
    pub(crate) fn call(&self, isolated: &Supervisor, caller: &Caller, call: Call<'_>) -> Reply {
        let Some(relay) = self.get(caller) else { return refusal(status::NO_SERVICE) };
        let began = Instant::now();
        relay.pass_on(call).unwrap_or_else(|failure| match failure {
            Failure::Status(status) => refusal(status),
            Failure::Lost => refusal(why_lost(isolated, relay.generation, began.elapsed())),
        })
    }

    pub(crate) fn say_goodbye(&self, caller: &Caller) {
        if let Some(relay) = self.get(caller) {
            let about = About { plugin: relay.plugin, generation: relay.generation };
            relay.tell(plugins_fn::CLOSE, &about.encode());
        }
    }

    pub(crate) fn cancel(&self, caller: &Caller, payload: &[u8]) {
        if let Some(relay) = self.get(caller) {
            relay.tell(plugins_fn::CANCEL, payload);
        }
    }

    pub(crate) fn detach(&self, caller: &Caller) {
        let relay = self.all().remove(&caller.connection);
        drop(relay);
    }
}

enum Failure {
    Status(i32),
    Lost,
}

impl Relay {
    /// Says something that has no answer; the process may be gone.
    fn tell(&self, function: u16, payload: &[u8]) {
        if let Ok(mut connection) = self.take()
            && connection.call(service::PLUGINS, function, payload, &[]).is_ok()
        {
            self.give_back(connection);
        }
    }

    fn pass_on(&self, call: Call<'_>) -> std::result::Result<Reply, Failure> {
        let memory = |bytes: u64| -> std::result::Result<Vec<u8>, Failure> {
            let bytes = usize::try_from(bytes).map_err(|_| Failure::Status(status::TOO_LARGE))?;
            let mut vec = Vec::new();
            vec.try_reserve_exact(bytes).map_err(|_| Failure::Status(status::NO_MEMORY))?;
            vec.resize(bytes, 0);
            Ok(vec)
        };
        let room = call.output.room().unwrap_or(0);
        let (mut input, mut output) = (memory(call.bulk_bytes)?, memory(room)?);
        call.bulk.read_exact(&mut input).map_err(|_| Failure::Status(status::DISCONNECTED))?;
        let mut connection = self.take().map_err(|_| Failure::Lost)?;
        let fds: Vec<BorrowedFd<'_>> = call.fds.iter().map(AsFd::as_fd).collect();
        let exchanged = connection.exchange_with_fds(
            service::PLUGINS,
            plugins_fn::CALL,
            call.payload,
            &[IoSlice::new(&input)],
            &mut [IoSliceMut::new(&mut output)],
            &fds,
        );
        let answer = exchanged.map_err(|error| match error.kind() {
            ErrorKind::TooLarge => Failure::Status(status::TOO_LARGE),
            _ => Failure::Lost,
        })?;
        self.give_back(connection);
        let come = usize::try_from(answer.bulk_bytes).unwrap_or(usize::MAX).min(output.len());
        call.output.write_all(&output[..come]).map_err(|_| Failure::Status(status::DISCONNECTED))?;
        Ok(Reply { payload: answer.payload, fds: answer.fds, ..Reply::default() })
    }
}

/// What a caller is told whose process went away in a call that had run for `elapsed`.
fn why_lost(isolated: &Supervisor, generation: u64, elapsed: Duration) -> i32 {
    let fate = isolated.fate(generation);
    match FateKind::from_code(fate.kind) {
        FateKind::Crashed => status::CRASHED,
        FateKind::Hung if elapsed.as_millis() >= u128::from(fate.call_timeout_ms) => status::TIMED_OUT,
        FateKind::Hung => status::CRASHED,
        FateKind::Running | FateKind::Stopped => status::DISCONNECTED,
    }
}
