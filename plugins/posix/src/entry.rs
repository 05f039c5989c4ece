//! The edge to the host: its function table, who is calling, and the frame that every function runs in.

use crate::session::{self, Session};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A result, or the errno of a failure.
pub(crate) type Outcome<T> = Result<T, c_int>;

/// `struct zazen_caller`, as much of it as is asked for.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    struct_size: u32,
    pub(crate) pid: u32,
    pub(crate) client: u64,
    pub(crate) generation: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// `struct zazen_host`.
#[repr(C)]
struct Host {
    struct_size: u32,
    abi: u32,
    process_count: i32,
    flags: u32,
    caller: Option<unsafe extern "C" fn(*mut Caller) -> c_int>,
    log: Option<unsafe extern "C" fn(c_int, *const c_char)>,
    allocate: Option<unsafe extern "C" fn(u64) -> *mut c_void>,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
    register_userbuf: Option<unsafe extern "C" fn(*const c_void, *mut c_void, *mut c_void) -> c_int>,
    // Of later hosts: there only if struct_size says so.
    groups: Option<unsafe extern "C" fn(*mut u32, u32) -> c_int>,
    cancelled: Option<unsafe extern "C" fn() -> c_int>,
    exported: Option<unsafe extern "C" fn(u32) -> *const c_char>,
}

unsafe extern "C" {
    fn zazen_plugin_host() -> *const Host;
    static zazen_posix_table: Table;
}

/// `struct zazen_plugin` as bytes with its alignment: the host reads as much as its `struct_size` says.
#[repr(C, align(8))]
pub(crate) struct Table([u8; TABLE_BYTES]);

/// `sizeof(struct zazen_plugin)`: 4 × 4, 2 pointers, 2 hashes, pointer, stride, 4 functions, 2 × 4.
const TABLE_BYTES: usize = 16 + 16 + 16 + 16 + 32 + 8;

/// The entry table that hosts look for: a copy of the generated one, made when the object is loaded.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static mut zazen_plugin_v1: Table = Table([0; TABLE_BYTES]);

#[used]
#[unsafe(link_section = ".init_array")]
static COPY_TABLE: extern "C" fn() = copy_table;

extern "C" fn copy_table() {
    // SAFETY: runs once, before anybody can look; both are TABLE_BYTES long, as the test below asks of C.
    unsafe {
        std::ptr::copy_nonoverlapping(&raw const zazen_posix_table, &raw mut zazen_plugin_v1, 1);
    }
}

/// The host, as far as it is as new as the field at `end`.
fn host(end: usize) -> Option<&'static Host> {
    // SAFETY: valid from init to fini, when functions run; NULL before.
    let host = unsafe { zazen_plugin_host().as_ref() }?;
    (host.struct_size as usize >= end).then_some(host)
}

/// Who calls the function that this thread is running.
pub(crate) fn caller() -> Outcome<Caller> {
    let mut caller = Caller { struct_size: size_of::<Caller>() as u32, ..Caller::default() };
    let ask = host(std::mem::offset_of!(Host, log)).and_then(|host| host.caller).ok_or(libc::EIO)?;
    // SAFETY: the host fills no more than struct_size bytes.
    if unsafe { ask(&raw mut caller) } == 0 { Ok(caller) } else { Err(libc::EIO) }
}

/// Whether the caller is gone, so that nobody waits for the running call.
pub(crate) fn is_cancelled() -> bool {
    let ask = host(std::mem::offset_of!(Host, exported)).and_then(|host| host.cancelled);
    // SAFETY: no arguments.
    ask.is_some_and(|ask| unsafe { ask() } != 0)
}

/// The folders that the operator lets callers reach, as absolute paths.
pub(crate) fn exported() -> Vec<std::ffi::CString> {
    let Some(ask) = host(size_of::<Host>()).and_then(|host| host.exported) else { return Vec::new() };
    // SAFETY: strings that live until the end of fini, NULL behind the last.
    (0..)
        .map_while(|index| unsafe {
            ask(index).as_ref().map(|text| std::ffi::CStr::from_ptr(text).to_owned())
        })
        .collect()
}

/// `ZAZEN_HOST_CONFINED`.
const CONFINED: u32 = 1;

/// Whether the kernel lets this process make, remove and rename names beneath the exports only.
pub(crate) fn is_confined() -> bool {
    host(std::mem::offset_of!(Host, caller)).is_some_and(|host| host.flags & CONFINED != 0)
}

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
    let session = session::of_client(caller.client, caller.generation).ok_or(libc::EBADFD)?;
    LAST.with(|last| {
        *last.borrow_mut() = Some((caller.client, caller.generation, session.clone()));
    });
    Ok(session)
}

/// A whole number that a function of the interface returns.
pub(crate) trait Answer {
    /// -1.
    fn failed() -> Self;
}

impl Answer for i32 {
    fn failed() -> i32 {
        -1
    }
}

impl Answer for i64 {
    fn failed() -> i64 {
        -1
    }
}

/// Runs a function's body for the caller's session: errors become -1 and errno, so do panics (EIO).
pub(crate) fn answer<T: Answer>(body: impl FnOnce(&Arc<Session>) -> Outcome<T>) -> T {
    guarded(|| {
        let session = session_here()?;
        body(&session)
    })
}

/// The same without a session.
pub(crate) fn guarded<T: Answer>(body: impl FnOnce() -> Outcome<T>) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::EIO));
    let (value, error) = match outcome {
        Ok(value) => (value, 0),
        Err(error) => (T::failed(), error),
    };
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = error };
    value
}

/// This thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// What a C function returned, or its errno.
pub(crate) fn checked<T: PartialOrd + From<i8>>(value: T) -> Outcome<T> {
    if value < T::from(0) { Err(errno()) } else { Ok(value) }
}

/// A path of the interface.
///
/// # Safety
///
/// `path` is a string that lives as long as the call.
pub(crate) unsafe fn text<'a>(path: *const c_char) -> &'a std::ffi::CStr {
    // SAFETY: the dispatcher checked it; the caller's promise.
    unsafe { std::ffi::CStr::from_ptr(path) }
}

/// Called once, before any call.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_init(_host: *const c_void) -> c_int {
    crate::reach::begin();
    session::begin();
    0
}

/// Called once, after the last call.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn px_fini() {
    session::end_all();
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
    // SAFETY: the host's struct begins with these fields.
    let caller = unsafe { *caller.cast::<Caller>() };
    let _ = catch_unwind(|| session::leave(caller.client, caller.generation));
}
