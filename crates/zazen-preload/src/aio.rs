//! POSIX asynchronous I/O of forwarded files. Each request is done at once and then reported as
//! done, because libc's threads would bypass the hooks.
//!
//! Invariant: a request holds its result, where libc's `aio_error`, `aio_return` and `aio_suspend`
//! look for it, before anybody is notified.

use crate::far::{OFFSET, far};
use crate::real::{aliases, give, hooks, system_call};
use crate::table::{self, FarFile};
use crate::{data, state};
use std::ffi::{c_int, c_void};

/// `struct aiocb` as glibc has it.
#[repr(C)]
pub(crate) struct Request {
    fd: c_int,
    operation: c_int,
    priority: c_int,
    data: *mut c_void,
    bytes: usize,
    event: Event,
    next: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    value: isize,
    offset: i64,
    reserved: [u8; 32],
}

/// `struct sigevent`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Event {
    value: *mut c_void,
    signal: c_int,
    notify: c_int,
    function: Option<extern "C" fn(*mut c_void)>,
    attributes: *const libc::pthread_attr_t,
    rest: [u64; 4],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::aiocb>());
const _: () = assert!(size_of::<Event>() == size_of::<libc::sigevent>());

/// `siginfo_t` of a request's end.
#[repr(C)]
struct Told {
    signal: c_int,
    errno: c_int,
    code: c_int,
    pad: c_int,
    pid: c_int,
    uid: u32,
    value: *mut c_void,
    rest: [u64; 12],
}

fn notify(event: &Event) {
    match event.notify {
        libc::SIGEV_SIGNAL => {
            let pid = system_call(libc::SYS_getpid, [0; 6]).unwrap_or(0);
            let uid = system_call(libc::SYS_getuid, [0; 6]).unwrap_or(0) as u32;
            let told = Told {
                signal: event.signal,
                errno: 0,
                code: libc::SI_ASYNCIO,
                pad: 0,
                pid: pid as c_int,
                uid,
                value: event.value,
                rest: [0; 12],
            };
            let about = (&raw const told) as usize;
            let _ = system_call(libc::SYS_rt_sigqueueinfo, [pid, event.signal as usize, about, 0, 0, 0]);
        }
        libc::SIGEV_THREAD => {
            let Some(function) = event.function else { return };
            let mut thread = 0;
            // SAFETY: a function of no result takes the place of one whose result nobody asks for:
            // the thread is detached.
            unsafe {
                let start: extern "C" fn(*mut c_void) -> *mut c_void =
                    std::mem::transmute::<extern "C" fn(*mut c_void), _>(function);
                if libc::pthread_create(&raw mut thread, event.attributes, start, event.value) == 0 {
                    libc::pthread_detach(thread);
                }
            }
        }
        _ => {}
    }
}

/// Performs a request and stores its result in it.
fn perform(request: &mut Request, entry: FarFile) {
    let offset = if entry.is_prompt() { request.offset } else { OFFSET };
    let outcome = match request.operation {
        libc::LIO_READ => data::read_far(entry, request.data, request.bytes, offset, 0),
        libc::LIO_WRITE => data::write_far(entry, request.data, request.bytes, offset, 0),
        _ => Ok(0),
    };
    (request.error, request.value) = match outcome {
        Ok(value) => (0, value),
        Err(error) => (error, -1),
    };
}

fn begin(request: &mut Request, entry: FarFile, operation: c_int) -> c_int {
    if operation != libc::LIO_NOP && entry.is_prompt() && request.offset < 0 {
        return give(Err(libc::EINVAL));
    }
    request.operation = operation;
    perform(request, entry);
    notify(&request.event);
    0
}

hooks! {
    fn aio_read(request: *mut Request) -> c_int {
        match table::entry((*request).fd) {
            None => next(request),
            Some(entry) => begin(&mut *request, entry, libc::LIO_READ),
        }
    }

    fn aio_write(request: *mut Request) -> c_int {
        match table::entry((*request).fd) {
            None => next(request),
            Some(entry) => begin(&mut *request, entry, libc::LIO_WRITE),
        }
    }

    fn aio_fsync(operation: c_int, request: *mut Request) -> c_int {
        let Some(entry) = table::entry((*request).fd) else { return next(operation, request) };
        let what = match operation {
            libc::O_SYNC => 0,
            libc::O_DSYNC => 1,
            _ => return give(Err(libc::EINVAL)),
        };
        ((*request).error, (*request).value) = match far!(px_sync(entry.id(), what)) {
            Ok(_) => (0, 0),
            Err(error) => (error, -1),
        };
        notify(&(*request).event);
        0
    }

    fn lio_listio(mode: c_int, list: *const *mut Request, count: c_int, event: *mut Event) -> c_int {
        if !state::is_active() || !table::any() || count < 0 {
            return next(mode, list, count, event);
        }
        let mut local = Vec::new();
        let mut failed = false;
        for at in 0..count as usize {
            let request = *list.add(at);
            match (!request.is_null()).then(|| table::entry((*request).fd)).flatten() {
                None => local.push(request),
                Some(entry) => {
                    perform(&mut *request, entry);
                    failed |= (*request).error != 0;
                    notify(&(*request).event);
                }
            }
        }
        if !local.is_empty() {
            let outcome = next(mode, local.as_ptr(), local.len() as c_int, event);
            if outcome < 0 {
                return outcome;
            }
        } else if mode == libc::LIO_NOWAIT && !event.is_null() {
            notify(&*event);
        }
        if failed && mode == libc::LIO_WAIT { give(Err(libc::EIO)) } else { 0 }
    }
}

aliases! {
    aio_read64 = aio_read, (request: *mut Request) -> c_int;
    aio_write64 = aio_write, (request: *mut Request) -> c_int;
    aio_fsync64 = aio_fsync, (operation: c_int, request: *mut Request) -> c_int;
    lio_listio64 = lio_listio,
        (mode: c_int, list: *const *mut Request, count: c_int, event: *mut Event) -> c_int;
}
