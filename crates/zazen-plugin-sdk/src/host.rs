//! The host's functions.

use crate::outcome::Outcome;
use std::ffi::{CStr, CString, c_void};
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::RawFd;
use zazen_plugin_abi::plugin::{self, Completion, Host};

unsafe extern "C" {
    // Defined by the generated dispatcher; NULL before init.
    fn zazen_plugin_host() -> *const Host;
}

/// A function of the host's table; `None` if the host is older than it, or there is no host yet.
macro_rules! host {
    ($field:ident) => {{
        // SAFETY: no arguments. The table is valid from init to the end of fini, when functions
        // run, and has `struct_size` bytes.
        unsafe {
            let host = zazen_plugin_host();
            let end = offset_of!(Host, $field) + size_of::<usize>();
            if host.is_null() || ((*host).struct_size as usize) < end { None } else { (*host).$field }
        }
    }};
}

/// Who is calling: the fields of `struct zazen_caller` that plug-ins ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The caller's process; 0 if unknown.
    pub pid: u32,
    /// The client's number.
    pub client: u64,
    /// The host's generation; with `client` it never comes twice.
    pub generation: u64,
    /// The caller's user.
    pub uid: u32,
    /// The caller's group.
    pub gid: u32,
}

impl Caller {
    /// The caller of an attach or detach callback.
    ///
    /// # Safety
    ///
    /// `caller` is what the host passed to the callback.
    #[inline]
    pub unsafe fn of_callback(caller: *const plugin::Caller) -> Caller {
        // SAFETY: hosts of all versions fill these fields.
        unsafe {
            Caller {
                pid: (*caller).pid,
                client: (*caller).client,
                generation: (*caller).generation,
                uid: (*caller).uid,
                gid: (*caller).gid,
            }
        }
    }
}

/// The caller of the function that this thread runs; EIO outside of a function.
#[inline]
pub fn caller() -> Outcome<Caller> {
    let ask = host!(caller).ok_or(libc::EIO)?;
    // Only the fields up to here are filled: a host's name is long, and this is asked in every
    // call.
    const BYTES: usize = offset_of!(plugin::Caller, rank);
    let mut caller = MaybeUninit::<plugin::Caller>::uninit();
    // SAFETY: the host fills no more than struct_size bytes, and all of them if it succeeds.
    unsafe {
        (&raw mut (*caller.as_mut_ptr()).struct_size).write(BYTES as u32);
        if ask(caller.as_mut_ptr()) == 0 { Ok(Caller::of_callback(caller.as_ptr())) } else { Err(libc::EIO) }
    }
}

/// Whether nobody waits for the running function any more.
#[inline]
pub fn is_cancelled() -> bool {
    // SAFETY: no arguments.
    host!(cancelled).is_some_and(|ask| unsafe { ask() } != 0)
}

/// Whether the kernel lets this process make, remove and rename names beneath the exports only.
#[inline]
pub fn is_confined() -> bool {
    // SAFETY: as in `host!`; the flags are in every version of the table.
    unsafe {
        let host = zazen_plugin_host();
        !host.is_null() && (*host).flags & plugin::HOST_CONFINED != 0
    }
}

/// The folders that the operator lets callers reach, as absolute paths.
pub fn exported() -> Vec<CString> {
    let Some(ask) = host!(exported) else { return Vec::new() };
    // SAFETY: strings that live until the end of fini, NULL behind the last.
    let folder = |index| unsafe { ask(index).as_ref().map(|text| CStr::from_ptr(text).to_owned()) };
    (0..).map_while(folder).collect()
}

/// The folders that callers may reach besides, and that no path leads to: the absolute path by
/// which callers name each, and a descriptor of it, which is the host's.
pub fn mounted() -> Vec<(CString, RawFd)> {
    let Some(ask) = host!(mounted) else { return Vec::new() };
    let folder = |index| {
        let mut root = -1;
        // SAFETY: room for a number; strings that live until the end of fini, NULL behind the last.
        let path = unsafe { ask(index, &raw mut root).as_ref().map(|text| CStr::from_ptr(text).to_owned()) };
        path.map(|path| (path, root))
    };
    (0..).map_while(folder).collect()
}

/// Names the memory of the running function's zerocopy:userbuf output. EIO if the host refuses;
/// then nobody calls `completion`.
///
/// # Safety
///
/// `buffer` stays valid until the host calls `completion` with `argument`, on any thread.
pub unsafe fn register_userbuf(
    buffer: *const c_void,
    completion: Completion,
    argument: *mut c_void,
) -> Outcome<()> {
    let ask = host!(register_userbuf).ok_or(libc::EIO)?;
    // SAFETY: the caller's promise.
    if unsafe { ask(buffer, Some(completion), argument) } == 0 { Ok(()) } else { Err(libc::EIO) }
}
