//! Attributes of names in the order of a listing: a program that looks at one after the other gets
//! those of the next ones along with one look. A program that looks at names of a folder in their
//! alphabetical order, and has not listed it, gets a listing made for it.
//!
//! Invariants: each answer is kept under the path that was asked for, as the program spells it, so
//! a wrong guess of what comes next costs time and nothing else. How many names are asked for
//! follows from how many of the last ones were used.

use super::kept::{Shared, device_of, lock, may_keep};
use super::listings::{list_in_order, listings};
use crate::far::{PxStat, far};
use crate::fault;
use crate::heard::{Asked, end_answers, is_alone, is_any, may_come};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_forward_api::in_order::{LISTINGS, NAMES_MAX, Names, Walk, split};
use zazen_forward_api::paths::{PATH_MAX, Text};
use zazen_forward_api::structures::Found;

/// Where a file's attributes have the time of its last change.
const CHANGED: usize = 2;

/// The answers of one call.
struct Batch {
    asked: Asked,
    dir: c_int,
    flags: c_int,
    mask: u32,
    /// Whether the two attributes were asked for.
    also: bool,
    folder: Text,
    names: Names,
    /// The name that was asked for last.
    last: usize,
    used: usize,
    used_also: bool,
}

struct State {
    /// The answers for names of each listing.
    batches: [Batch; LISTINGS],
    /// Whether the program asks for the two attributes, too.
    wants_also: bool,
    /// A call for a batch is under way: a signal's handler asks alone meanwhile.
    is_asking: bool,
}

static STATE: Shared<State> = Shared(UnsafeCell::new(State {
    batches: [const {
        Batch {
            asked: Asked::NEVER,
            dir: 0,
            flags: 0,
            mask: 0,
            also: false,
            folder: Text::new(),
            names: Names::NONE,
            last: 0,
            used: 0,
            used_also: false,
        }
    }; LISTINGS],
    wants_also: false,
    is_asking: false,
}));
/// Whether there was ever a batch.
static IS_USED: AtomicBool = AtomicBool::new(false);
static FOUND: Shared<[[Found; NAMES_MAX]; LISTINGS]> = Shared(UnsafeCell::new(
    [[Found {
        error: 0,
        acl: 0,
        label: 0,
        reserved: 0,
        stat: PxStat {
            mask: 0,
            blksize: 0,
            attributes: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            mode: 0,
            ino: 0,
            size: 0,
            blocks: 0,
            attributes_mask: 0,
            seconds: [0; 4],
            nanoseconds: [0; 4],
            devices: [0; 4],
            mnt_id: 0,
        },
    }; NAMES_MAX]; LISTINGS],
));

/// In a child: another thread may have been in the middle of a change.
pub(super) fn forget_all() {
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    let _locked = lock();
    // SAFETY: this thread has the lock.
    let state = unsafe { &mut *STATE.0.get() };
    state.batches.iter_mut().for_each(|batch| batch.names.count = 0);
    state.is_asking = false;
}

/// Whoever asked for a batch is not there any more.
pub(super) fn left() {
    if IS_USED.load(Ordering::Relaxed) && is_alone() {
        let _locked = lock();
        // SAFETY: this thread has the lock.
        unsafe { (*STATE.0.get()).is_asking = false };
    }
}

/// A description is closed: its number may come to mean another directory.
pub(super) fn closed(id: u32) {
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    let _locked = lock();
    // SAFETY: this thread has the lock.
    let state = unsafe { &mut *STATE.0.get() };
    for batch in state.batches.iter_mut().filter(|batch| batch.dir == id as c_int) {
        batch.names.count = 0;
    }
}

/// A file was read or written: its times may have moved, and its size. `now`: what they are.
pub(super) fn touched(ino: u64, device: (u32, u32), now: Option<&PxStat>) {
    if !IS_USED.load(Ordering::Relaxed) || !may_come() {
        return;
    }
    let _locked = lock();
    // SAFETY: this thread has the lock.
    let (state, found) = unsafe { (&mut *STATE.0.get(), &mut *FOUND.0.get()) };
    if state.is_asking {
        // By a signal's handler: the answers on their way may be from before.
        end_answers();
    }
    for (batch, found) in state.batches.iter_mut().zip(found) {
        for (at, one) in found.iter_mut().enumerate().take(batch.names.count) {
            if one.error == 0 && one.stat.ino == ino && device_of(&one.stat) == device {
                match now {
                    Some(now) => one.stat = *now,
                    None => batch.names.forget(at),
                }
            }
        }
    }
}

/// Whether a look that is still good tells of another file by that name, or of a change of it. The
/// caller has the lock.
pub(super) fn contradict(dir: c_int, folder: &[u8], name: &[u8], stat: &PxStat) -> bool {
    if !IS_USED.load(Ordering::Relaxed) {
        return false;
    }
    let what = |stat: &PxStat| (stat.ino, device_of(stat), stat.seconds[CHANGED], stat.nanoseconds[CHANGED]);
    // SAFETY: the caller has the lock.
    let (state, found) = unsafe { (&*STATE.0.get(), &*FOUND.0.get()) };
    state.batches.iter().zip(found).any(|(batch, found)| {
        batch.position(dir, folder, name).is_some_and(|at| {
            (found[at].error != 0 || what(&found[at].stat) != what(stat)) && batch.asked.is_good()
        })
    })
}

impl Batch {
    /// Which of the answers is that path's.
    fn position(&self, dir: c_int, folder: &[u8], name: &[u8]) -> Option<usize> {
        if dir != self.dir || folder != self.folder.as_bytes() {
            return None;
        }
        self.names.position(name, self.last)
    }
}

impl State {
    /// The answer for a path, if it is there and still good.
    fn known(&mut self, dir: c_int, folder: &[u8], name: &[u8], how: (c_int, u32)) -> Option<&Found> {
        for (which, batch) in self.batches.iter_mut().enumerate() {
            if (batch.flags, batch.mask) == how
                && let Some(at) = batch.position(dir, folder, name)
            {
                if !batch.asked.is_good() {
                    return None;
                }
                batch.used += usize::from(at != batch.last);
                batch.last = at;
                // SAFETY: the caller has the lock.
                return Some(unsafe { &(&*FOUND.0.get())[which][at] });
            }
        }
        None
    }
}

/// Flags whose looks are kept: of the name itself, where nobody asked for the newest answer.
fn is_kept(flags: c_int) -> bool {
    const KNOWN: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_STATX_DONT_SYNC;
    flags & libc::AT_SYMLINK_NOFOLLOW != 0 && flags & !KNOWN == 0
}

/// What a look at a path finds, if the answer is there or comes with others; `None`: ask alone.
pub(crate) fn look(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
) -> Option<Result<PxStat, c_int>> {
    if !is_kept(flags) || !may_keep() {
        return None;
    }
    let path = fault::string(path)?.to_bytes();
    let (folder, name) = split(path).filter(|_| path.len() < PATH_MAX)?;
    let (which, bytes, also) = match prepare(dir, folder, name, (flags, mask)) {
        Prepared::Known(known) => return Some(known),
        Prepared::Alone => return None,
        Prepared::Unlisted if !list_in_order(Walk::Looks, dir, folder, name) => return None,
        Prepared::Unlisted => match prepare(dir, folder, name, (flags, mask)) {
            Prepared::Known(known) => return Some(known),
            Prepared::Several { which, bytes, also } => (which, bytes, also),
            _ => return None,
        },
        Prepared::Several { which, bytes, also } => (which, bytes, also),
    };
    let asked = Asked::now();
    // SAFETY: alone, as may_keep() says; a signal's handler begins no batch meanwhile.
    let (folder, names, found) = unsafe {
        let batch = &(&(*STATE.0.get()).batches)[which];
        let found = (&raw mut (*FOUND.0.get())[which]).cast::<c_void>();
        (batch.folder.as_ptr(), batch.names.as_ptr().cast::<c_void>(), found)
    };
    let mut room = (NAMES_MAX * size_of::<Found>()) as u64;
    // What was not asked for must not mount anything.
    let how = flags | libc::AT_NO_AUTOMOUNT;
    let also = c_int::from(also);
    let outcome =
        far!(px_stat_several(dir, folder, how, mask, also, names, bytes as u64, found, &raw mut room));
    let _locked = lock();
    // SAFETY: this thread has the lock.
    let (state, found) = unsafe { (&mut *STATE.0.get(), &(&*FOUND.0.get())[which]) };
    state.is_asking = false;
    let batch = &mut state.batches[which];
    let came = room as usize / size_of::<Found>();
    let news = match outcome {
        Ok(news) => news != 0,
        Err(error) => {
            batch.names.count = 0;
            end_answers();
            return Some(Err(error));
        }
    };
    if came == 0 || came > batch.names.count {
        batch.names.count = 0;
        return None;
    }
    batch.names.count = came;
    batch.asked = asked.come(news);
    Some(answer(&found[0]))
}

fn answer(found: &Found) -> Result<PxStat, c_int> {
    if found.error == 0 { Ok(found.stat) } else { Err(found.error) }
}

/// What a look has to do.
enum Prepared {
    Known(Result<PxStat, c_int>),
    Alone,
    /// In order, in a folder that was not listed.
    Unlisted,
    /// Ask for the names of a batch, and the attributes, too.
    Several {
        which: usize,
        bytes: usize,
        also: bool,
    },
}

fn prepare(dir: c_int, folder: &[u8], name: &[u8], how: (c_int, u32)) -> Prepared {
    let _locked = lock();
    // SAFETY: this thread has the lock.
    let (state, listings) = unsafe { (&mut *STATE.0.get(), listings()) };
    let step = listings.step(Walk::Looks, name);
    if let Some(found) = state.known(dir, folder, name, how) {
        return Prepared::Known(answer(found));
    }
    let Some(which) = step else {
        listings.strays(Walk::Looks);
        let is_ordered = listings.is_ordered(Walk::Looks, dir, folder, name);
        return if is_ordered { Prepared::Unlisted } else { Prepared::Alone };
    };
    if !listings.goes_in_order(Walk::Looks) || state.is_asking {
        return Prepared::Alone;
    }
    IS_USED.store(true, Ordering::Relaxed);
    let batch = &mut state.batches[which];
    let last = (batch.names.count > 0).then(|| (batch.names.count - 1, batch.used));
    if last.is_some() {
        state.wants_also &= batch.used_also || !batch.also;
    }
    let size = listings.looks(which, last);
    batch.names.count = 0;
    if !batch.folder.set(folder) {
        return Prepared::Alone;
    }
    let bytes = batch.names.fill(name, (listings, Walk::Looks, which), size);
    let also = state.wants_also;
    (batch.dir, batch.flags, batch.mask, batch.also) = (dir, how.0, how.1, also);
    (batch.last, batch.used, batch.used_also) = (0, 0, false);
    // Until the answers are there.
    batch.asked = Asked::NEVER;
    state.is_asking = true;
    Prepared::Several { which, bytes, also }
}

/// errno of asking a file for an extended attribute that it has not, if that is known.
pub(crate) fn lacks(dir: c_int, path: *const c_char, flags: c_int, name: *const c_char) -> Option<c_int> {
    let follows = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    // SAFETY: a string, as the caller has looked.
    let is_acl = match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"system.posix_acl_access" if follows => true,
        b"security.selinux" => false,
        _ => return None,
    };
    if !is_any() {
        return None;
    }
    let (folder, name) = split(fault::string(path)?.to_bytes())?;
    let _locked = lock();
    // SAFETY: this thread has the lock.
    let (state, found) = unsafe { (&mut *STATE.0.get(), &*FOUND.0.get()) };
    let position = |batch: &Batch| batch.position(dir, folder, name);
    let (which, at) =
        state.batches.iter().enumerate().find_map(|(which, batch)| Some((which, position(batch)?)))?;
    state.wants_also = true;
    let (batch, found) = (&mut state.batches[which], &found[which][at]);
    batch.used_also = true;
    let error = if is_acl { found.acl } else { found.label };
    let lacks = matches!(error, libc::ENODATA | libc::EOPNOTSUPP);
    (batch.also && found.error == 0 && lacks && batch.asked.is_good()).then_some(error)
}
