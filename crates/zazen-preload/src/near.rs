//! Prefixes whose far folders this machine's kernel has itself. Calls on their paths go to this
//! kernel, under the far side's names, and nothing is forwarded.
//!
//! `zazen run` asks the daemon which folder a prefix stands for, and puts device, inode and mount
//! into the environment. A mount belongs to one mount namespace. If this process finds the same
//! folder on the same mount by the far side's name, the daemon and this process see the same files
//! below it, by the same names. Then this kernel answers what the daemon's kernel would answer at
//! that moment; this library keeps nothing.
//!
//! Invariants: either all prefixes are near or none counts as near. A process that changes its root
//! directory or its namespaces looks again.

use crate::real::system_call;
use crate::{signals, state, table};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use zazen_forward_api::near::{Folder, folders};
use zazen_forward_api::paths::{PATH_MAX, PREFIXES_MAX, Text, below};

const UNKNOWN: u8 = 0;
const NEAR: u8 = 1;
const FAR: u8 = 2;
/// Another thread looks.
const LOOKING: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
/// Whether a near folder has another name here than its prefix.
static RENAMES: AtomicBool = AtomicBool::new(false);
/// The names without links of the far folders. Written by whoever made STATE LOOKING.
static mut CANONICAL: [Text; PREFIXES_MAX] = [const { Text::new() }; PREFIXES_MAX];

/// Whether forwarded paths are this kernel's own.
#[inline]
pub(crate) fn all() -> bool {
    match STATE.load(Ordering::Acquire) {
        NEAR => true,
        FAR => false,
        _ => look(),
    }
}

/// Whether names of this kernel's are to be shown as others.
#[inline]
pub(crate) fn renames() -> bool {
    state::is_active() && all() && RENAMES.load(Ordering::Relaxed)
}

/// After this process got another root directory or other mounts.
pub(crate) fn look_again() {
    if STATE.load(Ordering::Acquire) != UNKNOWN {
        STATE.store(UNKNOWN, Ordering::Release);
    }
}

#[cold]
fn look() -> bool {
    let before = signals::block();
    let found = look_once();
    signals::restore(before);
    found
}

/// The same, while no signal's handler can begin to look, too, and wait for ever.
fn look_once() -> bool {
    loop {
        match STATE.compare_exchange(UNKNOWN, LOOKING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(NEAR) => return true,
            Err(FAR) => return false,
            Err(_) => {
                let _ = system_call(libc::SYS_sched_yield, [0; 6]);
            }
        }
    }
    let found = compare();
    STATE.store(if found { NEAR } else { FAR }, Ordering::Release);
    found
}

/// After fork: a thread that the child does not have may have been looking.
pub(crate) fn after_fork() {
    let _ = STATE.compare_exchange(LOOKING, UNKNOWN, Ordering::AcqRel, Ordering::Relaxed);
}

fn compare() -> bool {
    let prefixes = state::all_prefixes();
    let told = state::near();
    if told.is_empty() || folders(told).count() != prefixes.len() {
        return false;
    }
    // SAFETY: see CANONICAL.
    let names = unsafe { &mut *(&raw mut CANONICAL) };
    let mut renames = false;
    for ((prefix, folder), name) in prefixes.iter().zip(folders(told)).zip(names) {
        let Some(folder) = folder else { return false };
        let mut path = Text::new();
        if !path.set(prefix.far) || !is_here(&path, folder, name) {
            return false;
        }
        renames |= name.as_bytes() != prefix.local;
    }
    RENAMES.store(renames, Ordering::Relaxed);
    true
}

/// Whether this kernel has that folder by that path. `name` gets the path without links.
fn is_here(path: &Text, folder: Folder, name: &mut Text) -> bool {
    let flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    let opened = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0];
    let Ok(fd) = system_call(libc::SYS_openat, opened) else { return false };
    // SAFETY: all zeros is a valid statx.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (empty, mask) = (c"".as_ptr() as usize, (libc::STATX_INO | libc::STATX_MNT_ID) as usize);
    let asked = [fd, empty, libc::AT_EMPTY_PATH as usize, mask, (&raw mut stat) as usize, 0];
    let found = system_call(libc::SYS_statx, asked).is_ok()
        && stat.stx_mask & libc::STATX_MNT_ID != 0
        && folder
            == Folder {
                device: [stat.stx_dev_major, stat.stx_dev_minor],
                inode: stat.stx_ino,
                mount: stat.stx_mnt_id,
            };
    name.cut(0);
    kernel_name(fd as c_int, name);
    table::close_kernel(fd as c_int);
    found && name.as_bytes().starts_with(b"/")
}

/// The name here of a file of this kernel's, into `out`: below its prefix, if it lies below a near
/// folder. Whether it does.
pub(crate) fn shown(path: &[u8], out: &mut Text) -> bool {
    if all() {
        // SAFETY: complete since all() said so.
        let names = unsafe { &*(&raw const CANONICAL) };
        for (prefix, name) in state::all_prefixes().iter().zip(names) {
            for far in [name.as_bytes(), prefix.far] {
                if let Some(rest) = below(path, far) {
                    out.set(prefix.local);
                    return (!needs_slash(far, rest) || out.push(b"/")) && out.push(rest);
                }
            }
        }
    }
    out.set(path);
    false
}

/// `/` as a far folder: what follows it begins without a slash.
fn needs_slash(far: &[u8], rest: &[u8]) -> bool {
    far == b"/" && !rest.is_empty() && !rest.starts_with(b"/")
}

/// What a link of this kernel's says, into `out` as shown here; its errno.
pub(crate) fn read_link(dir: c_int, path: *const std::ffi::c_char, out: &mut Text) -> Result<(), c_int> {
    let mut bytes = [0_u8; PATH_MAX];
    let asked = [dir as usize, path as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0];
    let length = system_call(libc::SYS_readlinkat, asked)?;
    let target = bytes.get(..length).unwrap_or_default();
    if target.starts_with(b"/") {
        shown(target, out);
    } else {
        out.set(target);
    }
    Ok(())
}

/// What the kernel calls the file of one of its descriptors; empty if it has no name for it.
pub(crate) fn kernel_name(fd: c_int, out: &mut Text) {
    let mut link = [0_u8; 32];
    let mut at = link.len() - 1;
    let mut number = fd.max(0);
    loop {
        at -= 1;
        link[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    let mut full = Text::new();
    full.set(b"/proc/self/fd/");
    full.push(&link[at..link.len() - 1]);
    let mut bytes = [0_u8; PATH_MAX];
    let arguments =
        [libc::AT_FDCWD as usize, full.as_ptr() as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0];
    let length = system_call(libc::SYS_readlinkat, arguments).unwrap_or(0);
    out.set(&bytes[..length]);
}
