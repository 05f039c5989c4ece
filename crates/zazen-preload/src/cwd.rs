//! The working directory: the kernel's, or a far one.
//!
//! Invariant: the session holds the description of the far working directory.

use crate::real::system_call;
use crate::signals::Lock;
use crate::table::{self, FarFile};
use crate::{near, state};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zazen_forward_api::paths::{PATH_MAX, Text, below};

/// The ID of the far working directory; 0 if the working directory is local.
static FAR_CWD: AtomicU64 = AtomicU64::new(0);

struct Cwd {
    /// The kernel's; empty if unknown.
    local: Text,
    /// The name here of the far one; valid while FAR_CWD is set.
    far_name: Text,
}

struct Locked {
    lock: Lock,
    cwd: UnsafeCell<Cwd>,
}

// SAFETY: the cell is touched only by who has the lock.
unsafe impl Sync for Locked {}

// Not std's mutex: a fork while another thread holds it would leave it locked in the child, and a
// signal's handler would wait for it for ever.
static CWD: Locked =
    Locked { lock: Lock::new(), cwd: UnsafeCell::new(Cwd { local: Text::new(), far_name: Text::new() }) };

fn with_cwd<T>(body: impl FnOnce(&mut Cwd) -> T) -> T {
    let _locked = CWD.lock.lock();
    // SAFETY: see Locked.
    body(unsafe { &mut *CWD.cwd.get() })
}

/// The far working directory.
pub(crate) fn far() -> Option<FarFile> {
    let id = FAR_CWD.load(Ordering::Acquire);
    (id != 0).then(|| FarFile::new(id as u32, libc::S_IFDIR))
}

/// Moves to a far directory, whose name here is `name`, or back to the kernel's own working
/// directory. Returns the description that was held before, if nothing else holds it.
pub(crate) fn set_far(to: Option<(FarFile, &[u8])>) -> Option<FarFile> {
    let id = to.map_or(0, |(entry, _)| u64::from(entry.id()));
    let before = with_cwd(|cwd| {
        if let Some((entry, name)) = to {
            table::hold(entry);
            cwd.far_name.set(name);
        }
        FAR_CWD.swap(id, Ordering::AcqRel)
    });
    let before = (before != 0).then(|| FarFile::new(before as u32, libc::S_IFDIR))?;
    table::release(before).then_some(before)
}

/// Whether the local working directory has a prefix below it. Otherwise a relative path without
/// `..` is never forwarded.
static IS_ABOVE: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_above_a_prefix() -> bool {
    IS_ABOVE.load(Ordering::Relaxed)
}

/// Asks the kernel for its working directory.
pub(crate) fn refresh_local() {
    let mut text = Text::new();
    let _ = ask_kernel(&mut text);
    let name = text.as_bytes();
    let above = state::all_prefixes().iter().any(|prefix| below(prefix.local, name).is_some());
    let inside = state::all_prefixes().iter().any(|prefix| below(name, prefix.local).is_some());
    IS_ABOVE.store(above, Ordering::Relaxed);
    IS_NEAR.store(inside && near::all(), Ordering::Relaxed);
    with_cwd(|cwd| cwd.local.set(name));
}

/// Whether the kernel's working directory lies in a near folder.
static IS_NEAR: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_near() -> bool {
    IS_NEAR.load(Ordering::Relaxed)
}

/// The kernel's working directory as it is called here; empty if it has no name.
pub(crate) fn ask_kernel(out: &mut Text) -> Result<(), c_int> {
    let mut bytes = [0_u8; PATH_MAX];
    let arguments = [bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0, 0];
    out.cut(0);
    let length = system_call(libc::SYS_getcwd, arguments)?;
    let name = bytes.get(..length.saturating_sub(1)).filter(|name| name.starts_with(b"/"));
    near::shown(name.ok_or(libc::ENOENT)?, out);
    Ok(())
}

/// The name of the working directory here, into `out`; whether it is a far one. Empty if unknown.
pub(crate) fn name(out: &mut Text) -> bool {
    let far = far().is_some();
    with_cwd(|cwd| out.set(if far { cwd.far_name.as_bytes() } else { cwd.local.as_bytes() }));
    far
}

/// After fork: a thread that the child does not have may have had it.
pub(crate) fn after_fork() {
    CWD.lock.after_fork();
}

/// Moves the kernel's working directory to where nothing can land by mistake: a directory that is
/// removed at once. What finds its way past this library, such as a core file or `gmon.out`, gets
/// ENOENT there. Where no directory can be made: one of /proc's, in which the kernel creates
/// nothing.
pub(crate) fn go_nowhere() -> Result<(), c_int> {
    let here = libc::AT_FDCWD as usize;
    let pid = system_call(libc::SYS_getpid, [0; 6]).unwrap_or(0);
    let change = |name: &CStr| system_call(libc::SYS_chdir, [name.as_ptr() as usize, 0, 0, 0, 0, 0]);
    for folder in [&b"/dev/shm"[..], b"/tmp", b"/var/tmp", b"/run"] {
        for attempt in 0..4 {
            let mut name = Text::new();
            name.set(folder);
            name.push(b"/zazen-nowhere-");
            push_number(&mut name, pid);
            name.push(&[b'-', b'0' + attempt]);
            let path = name.as_ptr() as usize;
            match system_call(libc::SYS_mkdirat, [here, path, 0o555, 0, 0, 0]) {
                // Left behind by a process that was killed, or somebody else's.
                Err(libc::EEXIST) => continue,
                Err(_) => break,
                Ok(_) => {}
            }
            // SAFETY: a string of ours.
            let changed = change(unsafe { CStr::from_ptr(name.as_ptr()) });
            let _ = system_call(libc::SYS_unlinkat, [here, path, libc::AT_REMOVEDIR as usize, 0, 0, 0]);
            if changed.is_ok() {
                return Ok(());
            }
            break;
        }
    }
    change(c"/proc/self/fdinfo").map(|_| ())
}

fn push_number(text: &mut Text, number: usize) {
    if number >= 10 {
        push_number(text, number / 10);
    }
    text.push(&[b'0' + (number % 10) as u8]);
}
