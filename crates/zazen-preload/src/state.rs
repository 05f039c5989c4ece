//! What this process knows of itself: forwarded prefixes, umask, working directory.
//!
//! Invariants: settings are read once, when the library is loaded, from the environment that it was loaded with,
//! and stay; the far working directory is a description that the session holds.

use crate::table::{self, Entry};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use zazen_forward_api::paths::{PATH_MAX, PREFIXES_MAX, Prefix, Text, below, prefixes};
use zazen_forward_api::variables;

static ACTIVE: AtomicBool = AtomicBool::new(false);
static DIRECT: AtomicBool = AtomicBool::new(false);
static SOCKETS: AtomicBool = AtomicBool::new(false);
static ABORTS: AtomicBool = AtomicBool::new(false);
/// `u32::MAX`: none; the kernel gives it to no user.
static DAEMON: AtomicU32 = AtomicU32::new(u32::MAX);
static UMASK: AtomicU32 = AtomicU32::new(0o22);
/// Packed entry of the far working directory, its id + 1; 0 if it is local.
static FAR_CWD: AtomicU64 = AtomicU64::new(0);

struct Settings {
    text: Text,
    socket: Text,
    /// Parts of `text`.
    prefixes: [Prefix<'static>; PREFIXES_MAX],
    count: usize,
}

// Written by the constructor before there is a second thread, read-only afterwards.
static mut SETTINGS: Settings = Settings {
    text: Text::new(),
    socket: Text::new(),
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

/// Reads the settings; called once, when the library is loaded.
pub(crate) fn begin() {
    let Some(forward) = variable(variables::FORWARD) else { return };
    // SAFETY: see SETTINGS.
    let settings: &'static mut Settings = unsafe { &mut *(&raw mut SETTINGS) };
    if !settings.text.set(forward) || !settings.socket.set(variable(variables::SOCKET).unwrap_or_default()) {
        return;
    }
    let Settings { text, prefixes: all, count, .. } = settings;
    let text: &'static Text = text;
    for (to, prefix) in all.iter_mut().zip(prefixes(text.as_bytes())) {
        *to = prefix;
        *count += 1;
    }
    let daemon_uid =
        variable(variables::DAEMON_UID).and_then(|text| str::from_utf8(text).ok()?.trim().parse().ok());
    DAEMON.store(daemon_uid.unwrap_or(u32::MAX), Ordering::Relaxed);
    let options = variable(variables::OPTIONS).unwrap_or_default();
    DIRECT.store(options.contains(&variables::DIRECT), Ordering::Relaxed);
    SOCKETS.store(options.contains(&variables::SOCKETS), Ordering::Relaxed);
    ABORTS.store(options.contains(&variables::ABORT_ON_ESCAPE), Ordering::Relaxed);
    {
        let mask = crate::real::system_call(libc::SYS_umask, [0o77, 0, 0, 0, 0, 0]).unwrap_or(0o22);
        let _ = crate::real::system_call(libc::SYS_umask, [mask, 0, 0, 0, 0, 0]);
        UMASK.store(mask as u32, Ordering::Relaxed);
    }
    refresh_local_cwd();
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

/// The user besides root and this process's own whose daemons are believed.
pub(crate) fn daemon_uid() -> Option<u32> {
    Some(DAEMON.load(Ordering::Relaxed)).filter(|uid| *uid != u32::MAX)
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

struct Cwd {
    /// The kernel's, if it is known.
    local: Text,
    /// What the far one is called here; counts while FAR_CWD is set.
    far_name: Text,
}

struct Locked {
    busy: AtomicBool,
    cwd: UnsafeCell<Cwd>,
}

// SAFETY: the cell is touched only by who made it busy.
unsafe impl Sync for Locked {}

// Not a mutex of std's: after fork its state would be another thread's.
static CWD: Locked = Locked {
    busy: AtomicBool::new(false),
    cwd: UnsafeCell::new(Cwd { local: Text::new(), far_name: Text::new() }),
};

fn with_cwd<T>(body: impl FnOnce(&mut Cwd) -> T) -> T {
    while CWD.busy.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        std::hint::spin_loop();
    }
    // SAFETY: see Locked.
    let result = body(unsafe { &mut *CWD.cwd.get() });
    CWD.busy.store(false, Ordering::Release);
    result
}

/// The far working directory.
pub(crate) fn far_cwd() -> Option<Entry> {
    let id = FAR_CWD.load(Ordering::Acquire);
    (id != 0).then(|| Entry::new(id as u32, libc::S_IFDIR))
}

/// Moves to a far directory (`name` is what it is called here), or back to where the kernel thinks we are.
/// Gives the description that was held before, if nobody else holds it.
pub(crate) fn set_far_cwd(to: Option<(Entry, &[u8])>) -> Option<Entry> {
    let id = to.map_or(0, |(entry, _)| u64::from(entry.id()));
    let before = with_cwd(|cwd| {
        if let Some((entry, name)) = to {
            table::hold(entry);
            cwd.far_name.set(name);
        }
        FAR_CWD.swap(id, Ordering::AcqRel)
    });
    let before = (before != 0).then(|| Entry::new(before as u32, libc::S_IFDIR))?;
    table::release(before).then_some(before)
}

/// Whether the local working directory has a prefix below it: only then can a relative path that doesn't climb be
/// forwarded.
static IS_ABOVE: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_above_a_prefix() -> bool {
    IS_ABOVE.load(Ordering::Relaxed)
}

/// Looks where the kernel thinks we are.
pub(crate) fn refresh_local_cwd() {
    let mut bytes = [0_u8; PATH_MAX];
    let arguments = [bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0, 0];
    let length = crate::real::system_call(libc::SYS_getcwd, arguments).unwrap_or(0);
    let name = bytes.get(..length.saturating_sub(1)).filter(|name| name.starts_with(b"/"));
    let name = name.unwrap_or_default();
    let above = all_prefixes().iter().any(|prefix| below(prefix.local, name).is_some());
    IS_ABOVE.store(above, Ordering::Relaxed);
    with_cwd(|cwd| cwd.local.set(name));
}

/// The name of the working directory here, into `out`; whether it is a far one. Empty if unknown.
pub(crate) fn cwd_name(out: &mut Text) -> bool {
    let far = far_cwd().is_some();
    with_cwd(|cwd| out.set(if far { cwd.far_name.as_bytes() } else { cwd.local.as_bytes() }));
    far
}

/// After fork: it may have been busy with another thread.
pub(crate) fn after_fork() {
    CWD.busy.store(false, Ordering::Release);
}
