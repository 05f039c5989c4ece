//! What this process was told and remembers: forwarded prefixes, options, umask.
//!
//! Invariant: settings are read once, when the library is loaded, from the environment of that
//! moment, and stay.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use zazen_forward_api::paths::{PREFIXES_MAX, Prefix, Text, prefixes};
use zazen_forward_api::variables;

static ACTIVE: AtomicBool = AtomicBool::new(false);
static DIRECT: AtomicBool = AtomicBool::new(false);
static SOCKETS: AtomicBool = AtomicBool::new(false);
static ABORTS: AtomicBool = AtomicBool::new(false);
static IS_HERE: AtomicBool = AtomicBool::new(false);
/// `u32::MAX`: none; the kernel gives it to no user.
static DAEMON: AtomicU32 = AtomicU32::new(u32::MAX);
static UMASK: AtomicU32 = AtomicU32::new(0o22);
/// Whether this process has asked for locks, or has files of a process that may have: then a close
/// may release a lock, for which others wait.
static USES_LOCKS: AtomicBool = AtomicBool::new(false);
struct Settings {
    text: Text,
    socket: Text,
    near: Text,
    /// Parts of `text`.
    prefixes: [Prefix<'static>; PREFIXES_MAX],
    count: usize,
}

// Written by the constructor before there is a second thread, read-only afterwards.
static mut SETTINGS: Settings = Settings {
    text: Text::new(),
    socket: Text::new(),
    near: Text::new(),
    prefixes: [Prefix { local: b"", far: b"" }; PREFIXES_MAX],
    count: 0,
};

fn settings() -> &'static Settings {
    // SAFETY: see SETTINGS.
    unsafe { &*(&raw const SETTINGS) }
}

/// A variable of the environment, past every hook.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: a name; what comes back lives as long as nobody changes the variable.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Reads the settings; called once, when the library is loaded, with the environment that the
/// loader gives.
pub(crate) fn begin(environment: *mut *mut c_char) {
    // SAFETY: there is one thread; libc's own constructor, which may come later, stores the same.
    unsafe {
        if environ.is_null() {
            environ = environment;
        }
    }
    let Some(forward) = variable(variables::FORWARD) else { return };
    // SAFETY: see SETTINGS.
    let settings: &'static mut Settings = unsafe { &mut *(&raw mut SETTINGS) };
    if !settings.text.set(forward) || !settings.socket.set(variable(variables::SOCKET).unwrap_or_default()) {
        return;
    }
    settings.near.set(variable(variables::NEAR).unwrap_or_default());
    let Settings { text, prefixes: all, count, .. } = settings;
    let text: &'static Text = text;
    for (to, prefix) in all.iter_mut().zip(prefixes(text.as_bytes())) {
        *to = prefix;
        *count += 1;
    }
    let daemon_uid =
        variable(variables::DAEMON_UID).and_then(|text| str::from_utf8(text).ok()?.trim().parse().ok());
    DAEMON.store(daemon_uid.unwrap_or(u32::MAX), Ordering::Relaxed);
    IS_HERE.store(variable(variables::RUN).is_some(), Ordering::Relaxed);
    let options = variable(variables::OPTIONS).unwrap_or_default();
    DIRECT.store(options.contains(&variables::DIRECT), Ordering::Relaxed);
    SOCKETS.store(options.contains(&variables::SOCKETS), Ordering::Relaxed);
    ABORTS.store(options.contains(&variables::ABORT_ON_ESCAPE), Ordering::Relaxed);
    {
        let mask = crate::real::system_call(libc::SYS_umask, [0o77, 0, 0, 0, 0, 0]).unwrap_or(0o22);
        let _ = crate::real::system_call(libc::SYS_umask, [mask, 0, 0, 0, 0, 0]);
        UMASK.store(mask as u32, Ordering::Relaxed);
    }
    ACTIVE.store(true, Ordering::Release);
}

/// Whether anything can be forwarded in this process.
#[inline(always)]
pub(crate) fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// Whether opening gives real descriptors.
pub(crate) fn is_direct() -> bool {
    DIRECT.load(Ordering::Relaxed)
}

/// Whether the daemon is on this machine, and hands over descriptors: only then is there a program
/// that supervises.
pub(crate) fn daemon_is_here() -> bool {
    IS_HERE.load(Ordering::Relaxed)
}

/// Whether internet sockets are forwarded.
pub(crate) fn forwards_sockets() -> bool {
    SOCKETS.load(Ordering::Relaxed)
}

/// Whether an escape ends the process: for tests.
pub(crate) fn aborts_on_escape() -> bool {
    ABORTS.load(Ordering::Relaxed)
}

/// The daemon's socket.
pub(crate) fn socket() -> &'static [u8] {
    settings().socket.as_bytes()
}

/// What `zazen run` said of the prefixes' folders; empty if nothing.
pub(crate) fn near() -> &'static [u8] {
    settings().near.as_bytes()
}

/// The user besides root and this process's own whose daemons are believed.
pub(crate) fn daemon_uid() -> Option<u32> {
    Some(DAEMON.load(Ordering::Relaxed)).filter(|uid| *uid != u32::MAX)
}

/// The process uses locks from now on: closes are waited for.
pub(crate) fn note_locks() {
    USES_LOCKS.store(true, Ordering::Relaxed);
}

pub(crate) fn uses_locks() -> bool {
    USES_LOCKS.load(Ordering::Relaxed)
}

pub(crate) fn umask() -> u32 {
    UMASK.load(Ordering::Relaxed)
}

pub(crate) fn set_umask(mask: u32) {
    UMASK.store(mask & 0o777, Ordering::Relaxed);
}

/// The forwarded prefixes.
pub(crate) fn all_prefixes() -> &'static [Prefix<'static>] {
    let settings = settings();
    &settings.prefixes[..settings.count]
}
