//! POSIX asynchronous I/O of forwarded files. Each request is done at once and then reported as
//! done, because libc's threads would bypass the hooks.
//!
//! Invariant: a request holds its result, where libc's `aio_error`, `aio_return` and `aio_suspend`
//! look for it, before anybody is notified.

use crate::far::{BYTES_MAX, OFFSET, far};
use crate::real::{aliases, give, hooks, system_call};
use crate::table::{self, FarFile};
use crate::{data, fault, state, transport, wal};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

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

impl Request {
    fn store(&mut self, outcome: Result<isize, c_int>) {
        (self.error, self.value) = match outcome {
            Ok(value) => (0, value),
            Err(error) => (error, -1),
        };
    }
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
        libc::LIO_NOP => Ok(0),
        // Not at the description's own place, which this number means elsewhere.
        _ if entry.is_prompt() && offset < 0 => Err(libc::EINVAL),
        libc::LIO_READ => data::read_far(entry, request.data, request.bytes, offset, 0),
        libc::LIO_WRITE => data::write_far(entry, request.data, request.bytes, offset, 0),
        _ => Err(libc::EINVAL),
    };
    request.store(outcome);
}

/// A read or a write at a place in a file: one of several.
struct Part {
    entry: FarFile,
    data: *mut c_void,
    bytes: usize,
    offset: i64,
}

/// Reads or writes several parts, where all of them together can take the time of one call to the
/// far side. `done` gets the outcome of each, which is that of [`data::read_far`] or
/// [`data::write_far`]. Whether that was possible; else nothing has happened.
fn at_once(parts: &[Part], writes: bool, mut done: impl FnMut(usize, Result<isize, c_int>)) -> bool {
    let is_fit = |part: &Part| {
        part.entry.is_prompt()
            && part.offset >= 0
            && part.bytes <= BYTES_MAX
            && fault::backed(part.data, part.bytes, !writes) == Ok(part.bytes)
            && (!writes || data::FILE_BYTES_MAX.load(Ordering::Relaxed) == u64::MAX)
            && (!writes || wal::look(part.entry, part.data.cast(), part.bytes, part.offset).is_ok())
    };
    if !parts.iter().all(is_fit) {
        return false;
    }
    let call = |at: usize| {
        let Part { entry, data, bytes, offset } = parts[at];
        let mut count = bytes as u64;
        if writes {
            far!(px_write(entry.id(), offset, 0, data.cast_const(), count))
        } else {
            far!(px_read(entry.id(), offset, 0, data, &raw mut count))
        }
    };
    transport::at_once(parts.len(), call, |at, moved| done(at, moved.map(|moved| moved as isize)))
}

/// Performs requests in their order. Those that follow each other and all read, or all write, are
/// on their way at once, if the far side is another machine.
unsafe fn perform_all(requests: &[(*mut Request, FarFile)]) {
    // SAFETY: the program's requests.
    unsafe {
        for run in requests.chunk_by(|(first, _), (next, _)| (**first).operation == (**next).operation) {
            let part = |&(request, entry): &(*mut Request, FarFile)| {
                let Request { data, bytes, offset, .. } = *request;
                Part { entry, data, bytes, offset }
            };
            let parts = run.iter().map(part).collect::<Vec<_>>();
            let done = |at: usize, outcome| {
                let (request, _) = run[at];
                (*request).store(outcome);
            };
            let all = match (*run[0].0).operation {
                libc::LIO_READ => at_once(&parts, false, done),
                libc::LIO_WRITE => at_once(&parts, true, done),
                _ => false,
            };
            if !all {
                for &(request, entry) in run {
                    perform(&mut *request, entry);
                }
            }
        }
    }
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
        let is_known = matches!(mode, libc::LIO_WAIT | libc::LIO_NOWAIT);
        if !state::is_active() || !table::any() || count < 0 || !is_known {
            return next(mode, list, count, event);
        }
        let (mut local, mut far) = (Vec::new(), Vec::new());
        for at in 0..count as usize {
            let request = *list.add(at);
            match (!request.is_null()).then(|| table::entry((*request).fd)).flatten() {
                None => local.push(request),
                Some(entry) => far.push((request, entry)),
            }
        }
        perform_all(&far);
        far.iter().for_each(|(request, _)| notify(&(**request).event));
        let failed = far.iter().any(|(request, _)| (**request).error != 0);
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
