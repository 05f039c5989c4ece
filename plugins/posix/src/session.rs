//! Sessions and the open file descriptions that they hold.
//!
//! Invariants: a description's kernel descriptor is closed when no session and no fork token holds it; a
//! session ends once, and its table is empty from then on whoever still has the session; the global lock is
//! never held over a system call that can block.

use crate::entry::answer;
use crate::record_locks;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use zazen_forward_api::structures::{HELLO_EXEC, HELLO_FORK, HELLO_JOIN, HELLO_NEW, Hello};
use zazen_plugin_sdk::{Outcome, caller, guarded};

/// Open file descriptions of one session, at most.
const DESCRIPTIONS_MAX: usize = 1 << 20;
/// A process that announced an exec has so long to come back.
const EXEC_WITHIN: Duration = Duration::from_secs(30);
/// A forked child has so long to take over its parent's descriptions.
const FORK_WITHIN: Duration = Duration::from_secs(30);

/// One open file description.
pub(crate) struct Description {
    fd: OwnedFd,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    /// st_mode.
    pub(crate) mode: u32,
}

impl Description {
    pub(crate) fn new(fd: OwnedFd) -> Outcome<Description> {
        // SAFETY: all zeros is a valid stat; fstat fills it.
        let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
        // SAFETY: a descriptor of ours and room for the answer.
        zazen_plugin_sdk::checked(unsafe { libc::fstat64(fd.as_raw_fd(), &raw mut stat) })?;
        Ok(Description { fd, dev: stat.st_dev, ino: stat.st_ino, mode: stat.st_mode })
    }

    /// The kernel's number.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

type Table = Vec<Option<Arc<Description>>>;

/// One process's view.
pub(crate) struct Session {
    /// The client's secret, and the owner of its locks.
    pub(crate) key: u64,
    /// As `F_GETLK` tells others.
    pub(crate) pid: AtomicU32,
    table: RwLock<Table>,
    /// Numbers that were given back; some may be taken.
    free: Mutex<Vec<u32>>,
    ended: AtomicBool,
    /// Whether the session ever set a record lock.
    pub(crate) locked: AtomicBool,
    /// Tags of calls to be interrupted.
    pub(crate) interrupted: Mutex<HashMap<u32, Arc<crate::blocking::Interrupt>>>,
}

impl Session {
    fn new(key: u64, pid: u32, table: Table) -> Arc<Session> {
        Arc::new(Session {
            key,
            pid: pid.into(),
            table: RwLock::new(table),
            free: Mutex::default(),
            ended: false.into(),
            locked: false.into(),
            interrupted: Mutex::default(),
        })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The description of that number.
    pub(crate) fn description(&self, id: u32) -> Outcome<Arc<Description>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(id as usize).and_then(Option::clone).ok_or(libc::EBADF)
    }

    /// A number for a new description.
    pub(crate) fn enter(&self, description: Description) -> Outcome<u32> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if self.has_ended() {
            return Err(libc::EBADFD);
        }
        let returned = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let returned = returned.filter(|id| table.get(*id as usize).is_some_and(Option::is_none));
        let id = match returned {
            Some(id) => id as usize,
            None => {
                // 0 is nobody's.
                let length = (table.len() + 1).max(2);
                table.resize_with(length, || None);
                table.len() - 1
            }
        };
        if id >= DESCRIPTIONS_MAX {
            table.pop();
            return Err(libc::EMFILE);
        }
        table[id] = Some(Arc::new(description));
        Ok(id as u32)
    }

    /// Enters a description under a number that is free.
    fn enter_as(&self, id: u32, description: Description) -> Outcome<()> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let at = id as usize;
        if self.has_ended() {
            return Err(libc::EBADFD);
        }
        if at == 0 || at >= DESCRIPTIONS_MAX || table.get(at).is_some_and(Option::is_some) {
            return Err(libc::EINVAL);
        }
        let length = table.len().max(at + 1);
        table.resize_with(length, || None);
        table[at] = Some(Arc::new(description));
        Ok(())
    }

    fn remove(&self, id: u32) -> Outcome<Arc<Description>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let taken = table.get_mut(id as usize).and_then(Option::take).ok_or(libc::EBADF)?;
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        Ok(taken)
    }

    /// Drops all but `keep`.
    fn retain(&self, keep: &[u32]) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let dropped = retained(&mut table, keep);
        drop(table);
        for description in dropped {
            record_locks::closed(self, &description);
        }
    }

    fn end(&self) {
        let table = {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            self.ended.store(true, Ordering::Release);
            std::mem::take(&mut *table)
        };
        crate::blocking::interrupt_all(self);
        record_locks::session_ended(self);
        drop(table);
    }
}

fn retained(table: &mut Table, keep: &[u32]) -> Vec<Arc<Description>> {
    let mut kept: Table = (0..table.len()).map(|_| None).collect();
    for id in keep {
        if let Some(slot) = table.get_mut(*id as usize) {
            kept[*id as usize] = slot.take();
        }
    }
    std::mem::replace(table, kept).into_iter().flatten().collect()
}

struct Joined {
    session: Arc<Session>,
    connections: usize,
    /// An exec was announced.
    exec: Option<Instant>,
}

struct Token {
    made: Instant,
    table: Table,
}

#[derive(Default)]
struct All {
    sessions: HashMap<u64, Joined>,
    /// (client, generation) → session's key.
    clients: HashMap<(u64, u64), u64>,
    tokens: HashMap<u64, Token>,
    stopping: bool,
}

static ALL: LazyLock<Mutex<All>> = LazyLock::new(Mutex::default);
static CHANGED: Condvar = Condvar::new();

fn all() -> MutexGuard<'static, All> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts looking for processes that never came back.
pub(crate) fn begin() {
    all().stopping = false;
    let _ = std::thread::Builder::new().name("posix-sweeper".to_owned()).spawn(sweep);
}

fn sweep() {
    let mut guard = all();
    while !guard.stopping {
        let now = Instant::now();
        let late: Vec<u64> = guard
            .sessions
            .iter()
            .filter(|(_, joined)| {
                joined.connections == 0
                    && joined.exec.is_none_or(|since| now.duration_since(since) > EXEC_WITHIN)
            })
            .map(|(key, _)| *key)
            .collect();
        let sessions: Vec<Joined> = late.iter().filter_map(|key| guard.sessions.remove(key)).collect();
        let old: Vec<u64> = guard
            .tokens
            .iter()
            .filter(|(_, token)| now.duration_since(token.made) > FORK_WITHIN)
            .map(|(key, _)| *key)
            .collect();
        let tokens: Vec<Token> = old.iter().filter_map(|key| guard.tokens.remove(key)).collect();
        drop(guard);
        for joined in sessions {
            joined.session.end();
        }
        drop(tokens);
        guard = all();
        if guard.stopping {
            break;
        }
        guard = CHANGED.wait_timeout(guard, Duration::from_secs(5)).unwrap_or_else(PoisonError::into_inner).0;
    }
    guard.stopping = false;
    drop(guard);
    CHANGED.notify_all();
}

/// Ends every session; the sweeper too.
pub(crate) fn end_all() {
    let mut guard = all();
    let sessions = std::mem::take(&mut guard.sessions);
    let tokens = std::mem::take(&mut guard.tokens);
    guard.clients.clear();
    guard.stopping = true;
    CHANGED.notify_all();
    // The sweeper's code is unloaded with us: it must have left.
    let (guard, _) = CHANGED
        .wait_timeout_while(guard, Duration::from_secs(5), |all| all.stopping)
        .unwrap_or_else(PoisonError::into_inner);
    drop(guard);
    for joined in sessions.into_values() {
        joined.session.end();
    }
    drop(tokens);
}

/// The session that this connection joined.
pub(crate) fn of_client(client: u64, generation: u64) -> Option<Arc<Session>> {
    let all = all();
    let key = all.clients.get(&(client, generation))?;
    all.sessions.get(key).map(|joined| joined.session.clone())
}

/// The connection is gone.
pub(crate) fn leave(client: u64, generation: u64) {
    let mut guard = all();
    let Some(key) = guard.clients.remove(&(client, generation)) else { return };
    let Some(joined) = guard.sessions.get_mut(&key) else { return };
    joined.connections -= 1;
    if joined.connections > 0 || joined.exec.is_some() {
        return;
    }
    let gone = guard.sessions.remove(&key);
    drop(guard);
    if let Some(joined) = gone {
        joined.session.end();
    }
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_hello(hello: *const Hello, keep: *const u32, keep_count: u32) -> c_int {
    guarded(|| {
        let caller = caller()?;
        // SAFETY: the dispatcher checked both and holds them for the call.
        let (hello, keep) = unsafe {
            let keep =
                if keep_count == 0 { &[] } else { std::slice::from_raw_parts(keep, keep_count as usize) };
            (*hello, keep)
        };
        leave(caller.client, caller.generation);
        let mut guard = all();
        let mut pruned = None;
        match hello.kind {
            HELLO_NEW | HELLO_FORK => {
                if guard.sessions.contains_key(&hello.key) {
                    return Err(libc::EEXIST);
                }
                let session = if hello.kind == HELLO_NEW {
                    Session::new(hello.key, hello.pid, Table::new())
                } else {
                    let token = guard.tokens.remove(&hello.token).ok_or(libc::ESTALE)?;
                    Session::new(hello.key, hello.pid, token.table)
                };
                guard
                    .sessions
                    .insert(hello.key, Joined { session: session.clone(), connections: 0, exec: None });
                if hello.kind == HELLO_FORK && hello.keep_all == 0 {
                    pruned = Some(session);
                }
            }
            HELLO_JOIN | HELLO_EXEC => {
                let joined = guard.sessions.get_mut(&hello.key).ok_or(libc::ESTALE)?;
                if hello.kind == HELLO_EXEC {
                    joined.exec = None;
                    joined.session.pid.store(hello.pid, Ordering::Relaxed);
                    pruned = Some(joined.session.clone());
                }
            }
            _ => return Err(libc::EINVAL),
        }
        if let Some(joined) = guard.sessions.get_mut(&hello.key) {
            joined.connections += 1;
        }
        guard.clients.insert((caller.client, caller.generation), hello.key);
        drop(guard);
        if let Some(session) = pruned {
            session.retain(keep);
        }
        Ok(0)
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_fork(token: *mut u64) -> c_int {
    answer(|session| {
        let table = session.table.read().unwrap_or_else(PoisonError::into_inner).clone();
        let number = random()?;
        all().tokens.insert(number, Token { made: Instant::now(), table });
        // SAFETY: the dispatcher's memory.
        unsafe { *token = number };
        Ok(0)
    })
}

fn random() -> Outcome<u64> {
    let mut bytes = [0; 8];
    // SAFETY: room for as many bytes as are asked for.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 { Ok(u64::from_ne_bytes(bytes)) } else { Err(libc::EIO) }
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_exec(coming: c_int) -> c_int {
    answer(|session| {
        let mut all = all();
        let joined = all.sessions.get_mut(&session.key).ok_or(libc::EBADFD)?;
        joined.exec = (coming != 0).then(Instant::now);
        Ok(0)
    })
}

/// See posix.h.
///
/// # Safety
///
/// The dispatcher's pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_give(id: u32, fd: *mut c_int) -> c_int {
    answer(|session| {
        let description = session.description(id)?;
        // SAFETY: a descriptor of ours; the dispatcher's memory; the host closes what it sent.
        unsafe { *fd = zazen_plugin_sdk::checked(libc::fcntl(description.fd(), libc::F_DUPFD_CLOEXEC, 3))? };
        Ok(0)
    })
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_take(id: u32, fd: c_int) -> c_int {
    answer(|session| {
        // SAFETY: the host's, for the length of the call; the copy is new.
        let own = unsafe {
            OwnedFd::from_raw_fd(zazen_plugin_sdk::checked(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3))?)
        };
        session.enter_as(id, Description::new(own)?)?;
        Ok(0)
    })
}

/// See posix.h.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_close(id: u32, last: c_int) -> c_int {
    answer(|session| {
        let description = if last != 0 { session.remove(id)? } else { session.description(id)? };
        record_locks::closed(session, &description);
        let Some(description) = Arc::into_inner(description).filter(|_| last != 0) else { return Ok(0) };
        // What close(2) says of delayed writes belongs to the one who closes.
        let fd = std::os::fd::IntoRawFd::into_raw_fd(description.fd);
        // SAFETY: ours, and nobody else's any more.
        zazen_plugin_sdk::checked(unsafe { libc::close(fd) })
    })
}
