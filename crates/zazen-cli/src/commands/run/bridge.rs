//! Between a forwarded program and a daemon of another node: a socket here, a proven TCP connection
//! there for each of the program's.
//!
//! Invariant: only this user's processes are served, and where this user is root, those that the
//! program started and that became other users. The far side is told who calls, as the kernel says
//! it. A caller's connection ends with the caller.

use super::shared_read::{CONNECT_WITHIN, SharedRead};
use super::spares::{Far, Spares};
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_call::{
    Call, Caller, ClusterKey, Connection, Identity, Reply, Server, ServerLimits, Service, UnixListening,
};
use zazen_core::{Credentials, Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::plugins::{self, AnswerHead, OpenPlugin, plugins_fn};
use zazen_wire::service;

/// A running go-between; it ends when dropped.
pub(crate) struct Bridge {
    folder: PathBuf,
    passing: Arc<Passing>,
    _server: Server,
}

impl Bridge {
    /// Starts listening for the programs of this user.
    /// `shared`: folders of the far side whose files they share.
    pub(crate) fn start(node: &str, key: ClusterKey, shared: Vec<Vec<u8>>) -> Result<Bridge> {
        let folder = make_folder()?;
        let shared = (!shared.is_empty()).then(|| SharedRead::new(shared, node, &key));
        let guests = Arc::new(Guests::default());
        let passing = Passing {
            node: node.to_owned(),
            key,
            connections: Mutex::default(),
            shared,
            guests: guests.clone(),
            spares: Arc::default(),
        };
        let passing = Arc::new(passing);
        let server = Server::new(vec![passing.clone()], None, ServerLimits::default());
        let bridge = Bridge { folder, passing, _server: server };
        let listening = UnixListening::new(&bridge.socket())?;
        let socket = listening.as_fd().try_clone_to_owned();
        let socket = socket.map_err(|error| Error::io("the go-between's socket", error))?;
        bridge._server.listen_given(socket, move |caller, process| may_connect(caller, process, &guests))?;
        Ok(bridge)
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// Whether programs or guests are connected still.
    pub(crate) fn has_callers(&self) -> bool {
        !self.passing.connections().is_empty()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// A folder for the socket. $TMPDIR may be a path that is only forwarded, or too long for a
/// socket's.
fn make_folder() -> Result<PathBuf> {
    // Nobody can guess it and make it first.
    let name = format!("zazen-run-{}-{:08x}", std::process::id(), zazen_env::random_u128()? as u32);
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let bases = runtime.into_iter().chain([std::env::temp_dir(), "/tmp".into(), "/dev/shm".into()]);
    // Programs of root's may become other users, who must get to the socket: see `may_connect`.
    let is_root = rustix::process::geteuid().is_root();
    let (open, closed): (Vec<PathBuf>, _) = bases.partition(|base| !is_root || is_open_to_all(base));
    let mode = if is_root { 0o711 } else { 0o700 };
    let mut first = None;
    for folder in open.into_iter().chain(closed).map(|base| base.join(&name)) {
        if folder.as_os_str().len() > FOLDER_BYTES_MAX {
            continue;
        }
        let made = std::fs::DirBuilder::new().mode(0o700).create(&folder).and_then(|()| {
            // Whatever the umask is.
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode))
        });
        match made {
            Ok(()) => return Ok(folder),
            Err(error) => {
                first.get_or_insert_with(|| Error::io(format!("folder {}", folder.display()), error));
            }
        }
    }
    Err(first.unwrap_or_else(|| Error::new(ErrorKind::Config, "no folder for a socket: set $TMPDIR to one")))
}

/// Whether every user may pass through all folders of a path.
fn is_open_to_all(folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    folder.ancestors().all(|each| each.metadata().is_ok_and(|stat| stat.mode() & 0o001 != 0))
}

/// A socket's path has at most 107 bytes.
const FOLDER_BYTES_MAX: usize = 90;

fn remove(folder: &Path) {
    // What can't be removed is empty and named after us.
    let _ = std::fs::remove_dir_all(folder);
}

/// The processes whose programs this go-between serves beside its own, by connection.
type Guests = Mutex<HashMap<u64, u32>>;

/// Whether a process may use this go-between: one of this user's, or where this user is root, one
/// that the program or a guest's started and that became another user.
///
/// A number may be another process's by now. Its user is looked at, too: who gets in by a number
/// that is used again is the user who is served already.
fn may_connect(caller: &Credentials, process: u32, guests: &Guests) -> bool {
    let own = rustix::process::geteuid();
    caller.uid == own.as_raw()
        || (own.is_root() && {
            let guests = guests.lock().unwrap_or_else(PoisonError::into_inner);
            let served: Vec<u32> = guests.values().copied().chain([std::process::id()]).collect();
            drop(guests);
            descends_from(&served, process, caller.uid)
        })
}

/// Whether a process, one of `uid`'s, was started by one of `served`, at any remove. Orphans of
/// their programs are these processes' children.
fn descends_from(served: &[u32], process: u32, uid: u32) -> bool {
    let Some(caller) = Process::of(process).filter(|caller| caller.has_user(uid)) else { return false };
    let Some(mut line) = caller.line() else { return false };
    for _ in 0..GENERATIONS_MAX {
        if served.contains(&line.parent) {
            return true;
        }
        let parent = Process::of(line.parent).and_then(|parent| parent.line());
        // A parent that began after its child only got the number of the real one.
        match parent.filter(|parent| line.parent > 1 && parent.began <= line.began) {
            Some(parent) => line = parent,
            None => return false,
        }
    }
    false
}

/// Parents of a process that are looked at.
const GENERATIONS_MAX: usize = 500;

/// A process's folder in /proc: what is read there is of this process, or fails.
struct Process(std::fs::File);

struct Line {
    parent: u32,
    /// In ticks since boot.
    began: u64,
}

impl Process {
    fn of(number: u32) -> Option<Process> {
        std::fs::File::open(format!("/proc/{number}")).ok().map(Process)
    }

    fn path(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()).into()
    }

    fn line(&self) -> Option<Line> {
        let text = std::fs::read(self.path("stat")).ok()?;
        // The name, in brackets, may have anything in it.
        let end = text.iter().rposition(|byte| *byte == b')')?;
        let mut words = std::str::from_utf8(&text[end + 1..]).ok()?.split_whitespace();
        Some(Line { parent: words.nth(1)?.parse().ok()?, began: words.nth(17)?.parse().ok()? })
    }

    /// Whether one of its threads is this user's: a thread may be another user's than the process.
    fn has_user(&self, uid: u32) -> bool {
        let Ok(threads) = std::fs::read_dir(self.path("task")) else { return false };
        threads.flatten().any(|thread| {
            let status = std::fs::read(thread.path().join("status")).unwrap_or_default();
            let status = String::from_utf8_lossy(&status);
            let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
            users.split_whitespace().any(|user| user.parse() == Ok(uid))
        })
    }
}

struct Passing {
    node: String,
    key: ClusterKey,
    /// By the caller's number.
    connections: Mutex<HashMap<u64, Arc<Mutex<Connection>>>>,
    shared: Option<SharedRead>,
    guests: Arc<Guests>,
    spares: Arc<Spares>,
}

impl Passing {
    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<Mutex<Connection>>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self, caller: &Caller) -> Result<Arc<Mutex<Connection>>> {
        let mut connections = self.connections();
        if let Some(connection) = connections.get(&caller.connection) {
            return Ok(connection.clone());
        }
        let mut identity = Identity::of_this_process();
        (identity.pid, identity.credentials) = (caller.pid, caller.credentials.clone());
        let connection = Connection::tcp(&self.node, &self.key, &identity, CONNECT_WITHIN)?;
        let connection = Arc::new(Mutex::new(connection));
        connections.insert(caller.connection, connection.clone());
        Ok(connection)
    }
}

impl Passing {
    /// Opens the plug-in at the far side, and gives the caller the connection itself. Only to this
    /// user's processes: what goes over it is not looked at any more, and who may read the key may
    /// send what they like anyway.
    fn open_over(&self, caller: &Caller, payload: &[u8]) -> Result<Reply> {
        if self.shared.is_some() || caller.credentials.uid != rustix::process::geteuid().as_raw() {
            let text = "this go-between passes on each of the caller's calls";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let message = OpenPlugin { stay: true, ..OpenPlugin::decode(payload)? }.encode();
        let mut identity = Identity::of_this_process();
        identity.credentials = caller.credentials.clone();
        let far = Far { node: self.node.clone(), key: self.key.clone(), identity, message };
        let reply = match self.spares.take(&far) {
            Some(reply) => reply,
            None => {
                let mut far = far.clone();
                far.identity.pid = caller.pid;
                far.open()?
            }
        };
        if !reply.fds.is_empty() {
            self.spares.refill(far);
        }
        Ok(reply)
    }
}

/// Bytes of a call's only output, by what the answer says: out of shared memory a daemon may have
/// passed on all the room, which would then be written over what the program has there.
fn told(payload: &[u8]) -> Option<u64> {
    let (head, sizes, _) = AnswerHead::take(payload).ok()?;
    let only = head.status == 0 && head.out_count == 1;
    if only { plugins::sizes(sizes).next() } else { None }
}

/// Makes a call of a caller's at the far side.
fn pass_on(
    connection: &mut Connection,
    function: u16,
    payload: &[u8],
    bulk: &[u8],
    room: usize,
) -> Result<Reply> {
    let mut output = vec![0; room];
    let answer = connection.exchange(
        service::PLUGINS,
        function,
        payload,
        &[IoSlice::new(bulk)],
        &mut [IoSliceMut::new(&mut output)],
    )?;
    let told = if function == plugins_fn::CALL { told(&answer.payload) } else { None };
    let come = told.unwrap_or(u64::MAX).min(answer.bulk_bytes);
    output.truncate(usize::try_from(come).unwrap_or(usize::MAX));
    Ok(Reply { payload: answer.payload, fds: answer.fds, bulk: output, ..Reply::default() })
}

impl Service for Passing {
    fn id(&self) -> u16 {
        service::PLUGINS
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        if call.function == plugins_fn::OPEN_OVER {
            return self.open_over(caller, call.payload);
        }
        let connection = self.connection(caller)?;
        let mut bulk = Vec::new();
        let read = call.bulk.read_to_end(&mut bulk);
        read.map_err(|error| Error::io("read a call's bulk bytes", error))?;
        let room = usize::try_from(call.output.room().unwrap_or(0)).map_err(|_| {
            let text = "the far side's answer finds no room in memory; read less at once";
            Error::new(ErrorKind::TooLarge, text)
        })?;
        let pass = |function: u16, payload: &[u8], bulk: &[u8], room: usize| {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            pass_on(&mut connection, function, payload, bulk, room)
        };
        match (&self.shared, call.function) {
            (shared, plugins_fn::OPEN) => {
                // The plug-in's own socket, if it has one, is over there.
                let message = OpenPlugin { stay: true, ..OpenPlugin::decode(call.payload)? }.encode();
                let reply = pass(call.function, &message, &bulk, room)?;
                if let Some(shared) = shared {
                    shared.opened(caller, &message);
                }
                Ok(reply)
            }
            (Some(_), plugins_fn::PING) => {
                // A program does not ask so: another `zazen run` does, for its program.
                if caller.credentials.uid == rustix::process::geteuid().as_raw() {
                    let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
                    guests.insert(caller.connection, caller.pid);
                }
                pass(call.function, call.payload, &bulk, room)
            }
            (Some(shared), plugins_fn::CALL) => {
                shared.answer(caller, call.payload.to_vec(), &bulk, room, &|payload, bulk, room| {
                    pass(plugins_fn::CALL, payload, bulk, room)
                })
            }
            _ => pass(call.function, call.payload, &bulk, room),
        }
    }

    fn detach(&self, caller: &Caller) {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner).remove(&caller.connection);
        if let Some(shared) = &self.shared {
            shared.detach(caller);
        }
        self.connections().remove(&caller.connection);
    }
}
