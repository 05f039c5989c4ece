//! All sessions, and which connection joined which.
//!
//! Invariants: a session ends once. The global lock is never held during a system call that can
//! block.

use crate::record_locks;
use crate::session::{Session, Table};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_forward_api::structures::{HELLO_EXEC, HELLO_FORK, HELLO_JOIN, HELLO_NEW, Hello};
use zazen_plugin_sdk::{Outcome, caller, guarded};

/// How long a process that announced an exec may take to come back.
const EXEC_WITHIN: Duration = Duration::from_secs(30);
/// How long a forked child may take to take over its parent's descriptions.
const FORK_WITHIN: Duration = Duration::from_secs(30);

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

/// Starts the thread that ends sessions of processes that never came back.
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
            end(&joined.session);
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
    // The sweeper's code is unloaded with this plug-in, so wait until the sweeper has ended.
    let (guard, _) = CHANGED
        .wait_timeout_while(guard, Duration::from_secs(5), |all| all.stopping)
        .unwrap_or_else(PoisonError::into_inner);
    drop(guard);
    for joined in sessions.into_values() {
        end(&joined.session);
    }
    drop(tokens);
}

fn end(session: &Session) {
    let table = session.end();
    session.interrupt_all();
    // Calls that wait for a lock notice the interrupt.
    record_locks::wake();
    record_locks::session_ended(session);
    drop(table);
}

/// Keeps the caller's descriptions for a child. The child takes them over by the returned token.
pub(crate) fn fork(session: &Session) -> Outcome<u64> {
    let table = session.copy_table();
    let token = random()?;
    all().tokens.insert(token, Token { made: Instant::now(), table });
    Ok(token)
}

/// An exec is coming, or failed: the session outlives its connections meanwhile.
pub(crate) fn announce_exec(session: &Session, is_coming: bool) -> Outcome<()> {
    let mut all = all();
    let joined = all.sessions.get_mut(&session.key).ok_or(libc::EBADFD)?;
    joined.exec = is_coming.then(Instant::now);
    Ok(())
}

fn random() -> Outcome<u64> {
    let mut bytes = [0; 8];
    // SAFETY: room for as many bytes as are asked for.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 { Ok(u64::from_ne_bytes(bytes)) } else { Err(libc::EIO) }
}

/// The session that this connection joined.
pub(crate) fn of_client(client: u64, generation: u64) -> Option<Arc<Session>> {
    let all = all();
    let key = all.clients.get(&(client, generation))?;
    all.sessions.get(key).map(|joined| joined.session.clone())
}

/// A connection is gone.
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
        end(&joined.session);
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
                    // A client whose session was lost asks for numbers that it has not had.
                    Session::new(hello.key, hello.pid, Table::new(), hello.token)
                } else {
                    let token = guard.tokens.remove(&hello.token).ok_or(libc::ESTALE)?;
                    Session::new(hello.key, hello.pid, token.table, 0)
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
            for description in session.retain(keep) {
                record_locks::closed(&session, &description);
            }
        }
        Ok(0)
    })
}
