//! The functions of `zazen_stub.h` and `zazen_connect.h`.
//!
//! Invariant: no panic crosses into C.

use crate::call::{end, keep_words, last_status, last_words, set_last_status, told};
use crate::link::{Failure, Link};
use crate::settings::{Address, Settings};
use crate::{buffers, interrupt};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;
use zazen_call::Carrier;
use zazen_core::ErrorKind;
use zazen_plugin_abi::stub::{ConnectOptions, StubCall, StubService};
use zazen_wire::plugins::status;

/// The connection that the program set by `zazen_stub_set_default`.
static CHOSEN: AtomicPtr<Link> = AtomicPtr::new(null_mut());

thread_local! {
    /// The connection that this thread uses by [`through`].
    static OF_THREAD: Cell<*const Link> = const { Cell::new(null()) };
}

/// Runs `work`; its calls on this thread go through `link`. Other threads are not affected.
pub fn through<T>(link: &'static Link, work: impl FnOnce() -> T) -> T {
    struct Restore(*const Link);
    impl Drop for Restore {
        fn drop(&mut self) {
            OF_THREAD.set(self.0);
        }
    }
    let _restore = Restore(OF_THREAD.replace(link));
    work()
}

/// The connection of programs that made none. It leads to this machine's daemon.
fn own() -> &'static Link {
    static OWN: OnceLock<Link> = OnceLock::new();
    OWN.get_or_init(|| Link::new(Settings::new(Address::Default)))
}

/// # Safety
/// `connection` must be NULL or a connection that lives on during the call.
unsafe fn chosen<'a>(connection: *mut Link) -> &'a Link {
    let connection = match (connection.is_null(), OF_THREAD.get()) {
        (false, _) => connection.cast_const(),
        (true, of_thread) if !of_thread.is_null() => of_thread,
        _ => CHOSEN.load(Ordering::Acquire).cast_const(),
    };
    // SAFETY: the caller's promise, here and to `zazen_stub_set_default`.
    unsafe { connection.as_ref() }.unwrap_or_else(own)
}

/// Returns what `work` returns. If it panics, which is a bug of ours, returns `otherwise` and keeps
/// a message.
fn guarded<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        keep_words("the client runtime met a bug of its own; please report it".to_owned());
        otherwise
    })
}

/// See zazen_stub.h.
///
/// # Safety
/// As zazen_stub.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_stub_bind(connection: *mut Link, service: *const StubService) -> i32 {
    // SAFETY: as zazen_stub.h says.
    guarded(status::NO_SERVICE, || unsafe { chosen(connection).bind(&*service) })
}

/// See zazen_stub.h.
///
/// # Safety
/// As zazen_stub.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_stub_call(
    connection: *mut Link,
    service: *const StubService,
    call: *mut StubCall,
) -> i32 {
    // SAFETY: as zazen_stub.h says.
    guarded(status::DISCONNECTED, || unsafe { chosen(connection).call(&*service, &mut *call) })
}

/// See zazen_stub.h.
///
/// # Safety
/// As zazen_stub.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_stub_end(call: *mut StubCall, status: i32) {
    set_last_status(status);
    // SAFETY: as zazen_stub.h says.
    guarded((), || unsafe { end(&mut *call) });
}

/// See zazen_stub.h.
///
/// # Safety
/// As zazen_stub.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_stub_set_default(connection: *mut Link) {
    CHOSEN.store(connection, Ordering::Release);
}

/// See zazen_stub.h.
#[unsafe(no_mangle)]
pub extern "C" fn zazen_stub_error() -> i32 {
    last_status()
}

/// See zazen_connect.h.
#[unsafe(no_mangle)]
pub extern "C" fn zazen_connect_error() -> *const c_char {
    last_words()
}

/// See zazen_connect.h.
///
/// # Safety
/// As zazen_connect.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_connect(
    address: *const c_char,
    options: *const ConnectOptions,
    connection: *mut *mut Link,
) -> i32 {
    // SAFETY: the caller's variable.
    unsafe { *connection = null_mut() };
    guarded(status::NO_SERVICE, || {
        // SAFETY: as zazen_connect.h says.
        let made = unsafe { settings(address, options) }.and_then(|settings| {
            let link = Link::new(settings);
            link.connect().map(|()| link)
        });
        let made = made.map_err(|error| {
            let status = match error.kind() {
                ErrorKind::TimedOut => status::TIMED_OUT,
                ErrorKind::InvalidArgument => status::MALFORMED,
                _ => status::NO_SERVICE,
            };
            Failure::new(status, error.to_string())
        });
        told(made.map(|link| {
            // SAFETY: as above.
            unsafe { *connection = Box::into_raw(Box::new(link)) };
        }))
    })
}

/// # Safety
/// As zazen_connect.h says.
unsafe fn settings(address: *const c_char, options: *const ConnectOptions) -> zazen_core::Result<Settings> {
    let text = |pointer: *const c_char| {
        // SAFETY: NULL or a NUL-terminated string, by zazen_connect.h.
        (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
    };
    let mut settings = Settings::new(Address::parse(text(address).as_deref())?);
    if options.is_null() {
        return Ok(settings);
    }
    // SAFETY: an all-zero struct means the defaults; no more is copied than the caller's struct
    // has.
    let options = unsafe {
        let mut copy: ConnectOptions = std::mem::zeroed();
        let bytes = ((*options).struct_size as usize).min(size_of::<ConnectOptions>());
        std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut copy).cast(), bytes);
        copy
    };
    settings.carrier = match options.carrier {
        1 => Carrier::Unix,
        2 => Carrier::Shm,
        _ => Carrier::Auto,
    };
    if options.ranks > 0 {
        (settings.rank, settings.ranks) = (options.rank, options.ranks);
    }
    if options.connect_ms > 0 {
        settings.connect_timeout = Duration::from_millis(options.connect_ms.into());
    }
    if options.call_ms > 0 {
        settings.call_timeout = Some(Duration::from_millis(options.call_ms.into()));
    }
    if let Some(file) = text(options.key_file) {
        settings.key_file = Some(file.into());
    }
    Ok(settings)
}

/// See zazen_connect.h.
///
/// # Safety
/// As zazen_connect.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_disconnect(connection: *mut Link) {
    if connection.is_null() {
        return;
    }
    let _ = CHOSEN.compare_exchange(connection, null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    // SAFETY: made by `zazen_connect`, and given back once.
    guarded((), || unsafe { Box::from_raw(connection) }.close());
}

/// See zazen_connect.h.
///
/// # Safety
/// As zazen_connect.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_alloc(connection: *mut Link, plugin: u32, bytes: u64) -> *mut c_void {
    guarded(null_mut(), || {
        // SAFETY: as zazen_connect.h says.
        let allocated = buffers::allocate(unsafe { chosen(connection) }, plugin, bytes);
        match allocated {
            Ok(buffer) => buffer,
            Err(failure) => {
                told::<()>(Err(failure));
                null_mut()
            }
        }
    })
}

/// See zazen_connect.h.
#[unsafe(no_mangle)]
pub extern "C" fn zazen_free(buffer: *mut c_void) {
    guarded((), || buffers::free(buffer));
}

/// See zazen_connect.h.
#[unsafe(no_mangle)]
pub extern "C" fn zazen_interrupt(thread: c_int) -> c_int {
    if interrupt::interrupt(thread) { 0 } else { -1 }
}
