//! The edge to the host: the session that a call belongs to, and what the host calls at the beginning and the end.

use crate::session::Session;
use crate::{reach, sessions};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::sync::Arc;
use zazen_plugin_sdk::{Answer, Caller, Outcome, caller, guarded};

thread_local! {
    /// The session of the last caller on this thread: connections tend to keep their threads.
    static LAST: RefCell<Option<(u64, u64, Arc<Session>)>> = const { RefCell::new(None) };
}

/// The session that the running call belongs to.
fn session_here() -> Outcome<Arc<Session>> {
    let caller = caller()?;
    let known = LAST.with(|last| {
        last.borrow()
            .as_ref()
            .filter(|(client, generation, session)| {
                (*client, *generation) == (caller.client, caller.generation) && !session.has_ended()
            })
            .map(|(_, _, session)| session.clone())
    });
    if let Some(session) = known {
        return Ok(session);
    }
    // EBADFD: a connection that has not said hello.
    let session = sessions::of_client(caller.client, caller.generation).ok_or(libc::EBADFD)?;
    LAST.with(|last| {
        *last.borrow_mut() = Some((caller.client, caller.generation, session.clone()));
    });
    Ok(session)
}

/// Runs a function's body for the caller's session, as [`guarded`] does.
pub(crate) fn answer<T: Answer>(body: impl FnOnce(&Arc<Session>) -> Outcome<T>) -> T {
    guarded(|| {
        let session = session_here()?;
        body(&session)
    })
}

/// Called once, before any call.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_init(_host: *const c_void) -> c_int {
    reach::begin();
    sessions::begin();
    0
}

/// Called once, after the last call.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_fini() {
    sessions::end_all();
}

/// A connection came; it says hello by itself.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_attach(_caller: *const c_void) {}

/// A connection went.
///
/// # Safety
///
/// `caller` is the host's `struct zazen_caller`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn px_detach(caller: *const c_void, _reason: i32) {
    // SAFETY: the host's word.
    let caller = unsafe { Caller::of_callback(caller.cast()) };
    let _ = catch_unwind(|| sessions::leave(caller.client, caller.generation));
}
