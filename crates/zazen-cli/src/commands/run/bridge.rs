//! Between a forwarded program and a daemon of another node: a socket here, a proven TCP connection
//! there for each of the program's.
//!
//! Invariant: only this user's processes are served; a caller's connection ends with the caller.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zazen_call::{Call, Caller, ClusterKey, Connection, Identity, Reply, Server, ServerLimits, Service};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::plugins::{self, AnswerHead, OpenPlugin, plugins_fn};
use zazen_wire::service;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A running go-between; it ends when dropped.
pub(crate) struct Bridge {
    folder: PathBuf,
    _server: Server,
}

impl Bridge {
    /// Starts listening for the programs of this user.
    pub(crate) fn start(node: &str, key: ClusterKey) -> Result<Bridge> {
        let folder = make_folder()?;
        let passing = Passing { node: node.to_owned(), key, connections: Mutex::default() };
        let server = Server::new(vec![Arc::new(passing)], None, ServerLimits::default());
        let bridge = Bridge { folder, _server: server };
        bridge._server.listen_unix(&bridge.socket())?;
        Ok(bridge)
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// A private folder for the socket. $TMPDIR may be a path that is only forwarded, or too long for a
/// socket's.
fn make_folder() -> Result<PathBuf> {
    // Nobody can guess it and make it first.
    let name = format!("zazen-run-{}-{:08x}", std::process::id(), zazen_env::random_u128()? as u32);
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let bases = runtime.into_iter().chain([std::env::temp_dir(), "/tmp".into(), "/dev/shm".into()]);
    let mut first = None;
    for folder in bases.map(|base| base.join(&name)) {
        if folder.as_os_str().len() > FOLDER_BYTES_MAX {
            continue;
        }
        match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) => {
                first.get_or_insert_with(|| Error::io(format!("folder {}", folder.display()), error));
            }
        }
    }
    Err(first.unwrap_or_else(|| Error::new(ErrorKind::Config, "no folder for a socket: set $TMPDIR to one")))
}

/// A socket's path has at most 107 bytes.
const FOLDER_BYTES_MAX: usize = 90;

fn remove(folder: &Path) {
    // What can't be removed is empty, private, and named after us.
    let _ = std::fs::remove_dir_all(folder);
}

struct Passing {
    node: String,
    key: ClusterKey,
    /// By the caller's number.
    connections: Mutex<HashMap<u64, Arc<Mutex<Connection>>>>,
}

impl Passing {
    fn connection(&self, caller: &Caller) -> Result<Arc<Mutex<Connection>>> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = connections.get(&caller.connection) {
            return Ok(connection.clone());
        }
        let mut identity = Identity::of_this_process();
        identity.pid = caller.pid;
        let connection = Connection::tcp(&self.node, &self.key, &identity, CONNECT_WITHIN)?;
        let connection = Arc::new(Mutex::new(connection));
        connections.insert(caller.connection, connection.clone());
        Ok(connection)
    }
}

/// Bytes of a call's only output, by what the answer says: out of shared memory a daemon may have
/// passed on all the room, which would then be written over what the program has there.
fn told(payload: &[u8]) -> Option<u64> {
    let (head, sizes, _) = AnswerHead::take(payload).ok()?;
    let only = head.status == 0 && head.out_count == 1;
    if only { plugins::sizes(sizes).next() } else { None }
}

impl Service for Passing {
    fn id(&self) -> u16 {
        service::PLUGINS
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        if caller.credentials.uid != rustix::process::geteuid().as_raw() {
            return Err(Error::new(ErrorKind::PermissionDenied, "this go-between serves its own user only"));
        }
        let connection = self.connection(caller)?;
        let mut bulk = Vec::new();
        let read = call.bulk.read_to_end(&mut bulk);
        read.map_err(|error| Error::io("read a call's bulk bytes", error))?;
        let payload = if call.function == plugins_fn::OPEN {
            // The plug-in's own socket, if it has one, is over there.
            OpenPlugin { stay: true, ..OpenPlugin::decode(call.payload)? }.encode()
        } else {
            call.payload.to_vec()
        };
        let room = usize::try_from(call.output.room().unwrap_or(0));
        let mut output = vec![
            0;
            room.map_err(|_| Error::new(
                ErrorKind::TooLarge,
                "the far side's answer finds no room in memory; read less at once"
            ))?
        ];
        let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = connection.exchange(
            service::PLUGINS,
            call.function,
            &payload,
            &[IoSlice::new(&bulk)],
            &mut [IoSliceMut::new(&mut output)],
        )?;
        let told = if call.function == plugins_fn::CALL { told(&answer.payload) } else { None };
        let come = told.unwrap_or(u64::MAX).min(answer.bulk_bytes);
        output.truncate(usize::try_from(come).unwrap_or(usize::MAX));
        Ok(Reply { payload: answer.payload, fds: answer.fds, bulk: output })
    }

    fn detach(&self, caller: &Caller) {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).remove(&caller.connection);
    }
}
