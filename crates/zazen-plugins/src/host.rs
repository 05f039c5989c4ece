//! `struct zazen_host`: what a plug-in may ask of its host at any time.
//!
//! The functions know which call they are about by the thread that they run on: C gives them no
//! other context.

use crate::running;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use zazen_core::{Error, ErrorKind, Result};
use zazen_plugin_abi::plugin::{self as abi, Caller, Completion, Host};

/// Buffers begin at a page, as direct input and output want.
const BUFFER_ALIGN: usize = 4096;

/// The plug-in of a process that has but one: whoever logs outside of a call, it is that one.
static SOLE: OnceLock<String> = OnceLock::new();

/// Names this process's only plug-in.
pub(crate) fn name_sole_plugin(name: &str) {
    SOLE.get_or_init(|| name.to_owned());
}

/// Each export as C has it. One list for all plug-ins of a process: they have the same operator.
static EXPORTED: OnceLock<Vec<CString>> = OnceLock::new();

/// The same of folders that no path leads to, with their descriptors, which stay open.
static MOUNTED: OnceLock<Vec<(CString, OwnedFd)>> = OnceLock::new();

/// Names the folders that callers may reach; the first time counts.
pub(crate) fn export(folders: &[PathBuf], mounted: Vec<(PathBuf, OwnedFd)>) -> Result<()> {
    let text = |folder: &PathBuf| {
        CString::new(folder.as_os_str().as_bytes()).map_err(|_| {
            Error::new(ErrorKind::Config, format!("export {}: a path has no NUL", folder.display()))
        })
    };
    let texts = folders.iter().map(text).collect::<Result<Vec<CString>>>()?;
    let with_root = |(folder, root): (PathBuf, OwnedFd)| Ok((text(&folder)?, root));
    let mounted = mounted.into_iter().map(with_root).collect::<Result<Vec<_>>>()?;
    EXPORTED.get_or_init(|| texts);
    MOUNTED.get_or_init(|| mounted);
    Ok(())
}

unsafe extern "C" fn host_exported(index: u32) -> *const c_char {
    let folders = EXPORTED.get().map_or(&[][..], Vec::as_slice);
    folders.get(index as usize).map_or(null(), |folder| folder.as_ptr())
}

unsafe extern "C" fn host_mounted(index: u32, root: *mut c_int) -> *const c_char {
    let folders = MOUNTED.get().map_or(&[][..], Vec::as_slice);
    let Some((path, folder)) = folders.get(index as usize).filter(|_| !root.is_null()) else { return null() };
    // SAFETY: the plug-in's own memory.
    unsafe { *root = folder.as_raw_fd() };
    path.as_ptr()
}

/// The table for a plug-in that may expect `process_count` clients (-1: unknown), in a process that
/// the kernel keeps within the exports if it `is_confined`.
pub(crate) fn table(process_count: i32, is_confined: bool) -> Host {
    Host {
        struct_size: size_of::<Host>() as u32,
        abi: abi::ABI,
        process_count,
        flags: if is_confined { abi::HOST_CONFINED } else { 0 },
        caller: Some(host_caller),
        log: Some(host_log),
        allocate: Some(host_allocate),
        release: Some(host_release),
        register_userbuf: Some(host_register_userbuf),
        groups: Some(host_groups),
        cancelled: Some(host_cancelled),
        exported: Some(host_exported),
        mounted: Some(host_mounted),
    }
}

unsafe extern "C" fn host_caller(into: *mut Caller) -> c_int {
    if into.is_null() {
        return -1;
    }
    let copied = running::current(|running| {
        // SAFETY: the plug-in's own struct, of which it says how large it is.
        unsafe {
            let bytes = ((*into).struct_size as usize).min(size_of::<Caller>());
            let from = (&raw const running.client.caller).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, into.cast(), bytes);
            if bytes >= size_of::<u32>() {
                (*into).struct_size = bytes as u32;
            }
        }
    });
    if copied.is_some() { 0 } else { -1 }
}

unsafe extern "C" fn host_groups(into: *mut u32, room: u32) -> c_int {
    let count = running::current(|running| {
        let groups = &running.client.groups;
        let copied = if into.is_null() { 0 } else { groups.len().min(room as usize) };
        // SAFETY: the plug-in has room for `room` numbers.
        unsafe { std::ptr::copy_nonoverlapping(groups.as_ptr(), into, copied) };
        groups.len() as c_int
    });
    count.unwrap_or(-1)
}

unsafe extern "C" fn host_cancelled() -> c_int {
    running::current(|running| c_int::from(running.busy.is_cancelled())).unwrap_or(0)
}

unsafe extern "C" fn host_log(level: c_int, text: *const c_char) {
    if text.is_null() {
        return;
    }
    // SAFETY: a NUL-terminated string of the plug-in's.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim_end();
    let name = running::current(|running| running.plugin.to_owned());
    let name = name.or_else(|| SOLE.get().cloned()).unwrap_or_default();
    let gap = if name.is_empty() { "" } else { " " };
    match level {
        1 => tracing::error!("plug-in{gap}{name}: {text}"),
        2 => tracing::warn!("plug-in{gap}{name}: {text}"),
        3 => tracing::info!("plug-in{gap}{name}: {text}"),
        4 => tracing::debug!("plug-in{gap}{name}: {text}"),
        _ => {}
    }
}

/// What precedes a buffer: how large it is with this.
fn layout(bytes: u64) -> Option<Layout> {
    let bytes = usize::try_from(bytes).ok()?.checked_add(BUFFER_ALIGN)?;
    Layout::from_size_align(bytes, BUFFER_ALIGN).ok()
}

unsafe extern "C" fn host_allocate(bytes: u64) -> *mut c_void {
    let Some(layout) = layout(bytes) else { return null_mut() };
    // SAFETY: the size is at least a page.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return null_mut();
    }
    // SAFETY: the first page is the host's own, and has room for a number.
    unsafe {
        start.cast::<u64>().write(bytes);
        start.add(BUFFER_ALIGN).cast()
    }
}

unsafe extern "C" fn host_release(buffer: *mut c_void) {
    if buffer.is_null() {
        return;
    }
    // SAFETY: the plug-in gives back what `host_allocate` gave, once: the page before it says how
    // large it is.
    unsafe {
        let start = buffer.cast::<u8>().sub(BUFFER_ALIGN);
        if let Some(layout) = layout(start.cast::<u64>().read()) {
            dealloc(start, layout);
        }
    }
}

unsafe extern "C" fn host_register_userbuf(
    buffer: *const c_void,
    completion: Option<Completion>,
    argument: *mut c_void,
) -> c_int {
    let taken = running::current(|running| running.register_userbuf(buffer, completion, argument));
    if taken == Some(true) { 0 } else { -1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_pages_and_given_back() {
        for bytes in [0, 1, 4096, 100_000] {
            // SAFETY: used within its bytes, given back once.
            unsafe {
                let buffer = host_allocate(bytes).cast::<u8>();
                assert_eq!(buffer.addr() % BUFFER_ALIGN, 0);
                let bytes = std::slice::from_raw_parts_mut(buffer, bytes as usize);
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.fill(1);
                host_release(buffer.cast());
            }
        }
        // SAFETY: no memory is touched.
        unsafe {
            // Seen by the test, or the compiler would do without the allocation.
            let refused = [u64::MAX, 1 << 62].map(|bytes| std::hint::black_box(host_allocate(bytes)));
            assert!(refused.iter().all(|buffer| buffer.is_null()));
            host_release(null_mut());
        }
    }

    #[test]
    fn outside_of_a_function_there_is_no_caller() {
        // SAFETY: a caller of this frame's, as large as it says.
        unsafe {
            let mut caller: Caller = std::mem::zeroed();
            caller.struct_size = size_of::<Caller>() as u32;
            assert_eq!(host_caller(&raw mut caller), -1);
            assert_eq!(host_register_userbuf(std::ptr::null(), None, null_mut()), -1);
            assert_eq!((host_cancelled(), host_groups(null_mut(), 0)), (0, -1));
        }
    }
}
