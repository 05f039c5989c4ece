//! What came along with an open: attributes, all bytes of a small file, entries of a directory.
//!
//! Invariants: a slot belongs to one description, whose offset at the far side is a file's
//! beginning, or behind the entries that came. The program's own place is in the slot, and whether
//! it has read; before the slot goes, the far side gets to know it ([`settle`]).

use super::kept::{Shared, device_of, lock, may_keep};
use super::{looks, opens};
use crate::far::{OFFSET, PxOpened, PxStat, far};
use crate::heard::{self, Asked, is_alone, is_any};
use crate::transport;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use zazen_forward_api::structures::{AHEAD_STAT, AHEAD_WHOLE};

const SLOTS: usize = 4;
/// Larger files are read as usual.
const BYTES: usize = opens::FILE_BYTES;
/// The number of a slot that is being filled.
const FILLING: u32 = u32::MAX;
/// A place in a file that any file system knows.
const PLACE_MAX: i64 = 1 << 40;
/// What statx(2) was asked for at the far side.
const MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME | 0x1000;

/// The descriptions of the slots; 0 where free.
static IDS: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];

#[derive(Clone, Copy)]
struct Slot {
    asked: Asked,
    /// As the attributes say; none for a description whose attributes are not known.
    stat: Option<PxStat>,
    is_folder: bool,
    /// Bytes that came, and whether they are all that there is.
    bytes: usize,
    is_whole: bool,
    /// Where the program is: in the file, or in the bytes of the entries.
    place: i64,
    /// For the far side: where the entries go on.
    cookie: i64,
    /// The bytes were read without a trace, and the program has read some of them: the far side has
    /// to read, too.
    is_quiet: bool,
    was_read: bool,
}

static STATE: Shared<[Slot; SLOTS]> = Shared(std::cell::UnsafeCell::new(
    [Slot {
        asked: Asked::NEVER,
        stat: None,
        is_folder: false,
        bytes: 0,
        is_whole: false,
        place: 0,
        cookie: 0,
        is_quiet: false,
        was_read: false,
    }; SLOTS],
));
static BYTES_OF: [Shared<[u64; BYTES / 8]>; SLOTS] =
    [const { Shared(std::cell::UnsafeCell::new([0; BYTES / 8])) }; SLOTS];

impl Slot {
    /// Where the far side's offset must be, if it is not there.
    fn owed(&self) -> Option<i64> {
        if self.is_folder {
            return ((self.place as usize) < self.bytes).then_some(self.cookie);
        }
        (self.place != 0).then_some(self.place)
    }

    /// Whether the far side has to read, so that the time of access moves.
    fn owes_reading(&self) -> bool {
        self.is_quiet && self.was_read
    }
}

fn slot_of(id: u32) -> Option<usize> {
    IDS.iter().position(|slot| slot.load(Ordering::Acquire) == id)
}

/// Whether anything is known of a description.
pub(crate) fn has(id: u32) -> bool {
    slot_of(id).is_some()
}

/// Uses the slot of a description, if it has one; `None` from `body` ends the slot.
fn with_slot<T>(id: u32, body: impl FnOnce(&mut Slot, &[u8]) -> Option<T>) -> Option<T> {
    let at = slot_of(id)?;
    let locked = lock();
    if IDS[at].load(Ordering::Acquire) != id {
        return None;
    }
    // SAFETY: this thread has the lock; a slot that has a number is filled.
    let (slot, bytes) = unsafe {
        let bytes = &*BYTES_OF[at].0.get();
        (&mut (*STATE.0.get())[at], std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), BYTES))
    };
    let bytes = &bytes[..slot.bytes];
    let found = body(slot, bytes);
    drop(locked);
    if found.is_none() {
        settle(at, id);
    }
    found
}

/// Ends a slot: the far side goes on where the program is.
fn settle(at: usize, id: u32) {
    let (owed, owes_reading) = {
        let _locked = lock();
        if IDS[at].load(Ordering::Acquire) != id {
            return;
        }
        IDS[at].store(0, Ordering::Release);
        // SAFETY: as above.
        let slot = unsafe { &(&*STATE.0.get())[at] };
        (slot.owed(), slot.owes_reading())
    };
    if owes_reading {
        let (mut byte, mut count) = (0_u8, 1);
        let read = || far!(px_read(id, 0, 0, (&raw mut byte).cast(), &raw mut count));
        let _ = transport::without_waiting(read);
    }
    let Some(place) = owed else { return };
    let seek = || far!(px_seek(id, place, libc::SEEK_SET));
    // Of such files it never fails; with one thread, its calls have an order.
    let _ = if is_alone() { transport::without_waiting(seek) } else { seek() };
}

/// Ends all slots.
pub(super) fn settle_all() {
    for (at, id) in IDS.iter().enumerate() {
        let id = id.load(Ordering::Acquire);
        if id != 0 && id != FILLING {
            settle(at, id);
        }
    }
}

/// The numbers mean nothing any more.
pub(super) fn forget_all() {
    let _locked = lock();
    IDS.iter().for_each(|id| id.store(0, Ordering::Release));
}

/// Whoever filled a slot is not there any more.
pub(super) fn left() {
    if is_alone() {
        for id in &IDS {
            let _ = id.compare_exchange(FILLING, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// The description is closed.
pub(super) fn closed(id: u32) -> bool {
    let Some(at) = slot_of(id) else { return false };
    let _locked = lock();
    if IDS[at].load(Ordering::Acquire) != id {
        return false;
    }
    IDS[at].store(0, Ordering::Release);
    // SAFETY: this thread has the lock.
    unsafe { (&(*STATE.0.get()))[at].owes_reading() }
}

/// A slot to fill.
fn reserve() -> Option<usize> {
    let free = || {
        IDS.iter()
            .position(|slot| slot.compare_exchange(0, FILLING, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    };
    free().or_else(|| {
        let _ = oldest().map(|(at, id)| settle(at, id));
        free()
    })
}

fn oldest() -> Option<(usize, u32)> {
    let _locked = lock();
    let all = IDS.iter().map(|id| id.load(Ordering::Acquire)).enumerate();
    // SAFETY: this thread has the lock.
    all.filter(|(_, id)| *id != 0 && *id != FILLING)
        .min_by_key(|(at, _)| unsafe { (&(*STATE.0.get()))[*at].asked.at_ns })
}

/// Opens for reading, with what programs ask for next. `None`: open as usual.
pub(crate) fn open(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    opened: &mut PxOpened,
) -> Option<Result<c_int, c_int>> {
    const TMPFILE: c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;
    const MORE: c_int = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_PATH | TMPFILE;
    if flags & MORE != libc::O_RDONLY || !may_keep() {
        return None;
    }
    let at = reserve()?;
    let data = BYTES_OF[at].0.get().cast::<u8>();
    let outcome = opens::open(dir, path, flags, data).unwrap_or_else(|| opens::alone(dir, path, flags, data));
    let kind = outcome.as_ref().map_or(0, |file| file.came.opened.mode & libc::S_IFMT);
    let file = match outcome {
        Ok(file) if matches!(kind, libc::S_IFREG | libc::S_IFDIR) => file,
        other => {
            IDS[at].store(0, Ordering::Release);
            return Some(other.map(|file| {
                *opened = file.came.opened;
                0
            }));
        }
    };
    let (stat, bits) = (file.came.stat, file.came.bits);
    *opened = file.came.opened;
    // Reading may have moved the time of access, which a look before told otherwise.
    if bits & AHEAD_STAT == 0 {
        heard::hear();
    } else if file.is_quiet() {
        // It may yet move.
        looks::touched(stat.ino, device_of(&stat), None);
    } else {
        looks::touched(stat.ino, device_of(&stat), Some(&stat));
    }
    let slot = Slot {
        asked: file.asked,
        stat: (bits & AHEAD_STAT != 0).then_some(stat),
        is_folder: kind == libc::S_IFDIR,
        bytes: file.came.bytes as usize,
        is_whole: bits & AHEAD_WHOLE != 0,
        place: 0,
        cookie: 0,
        is_quiet: file.is_quiet(),
        was_read: false,
    };
    let _locked = lock();
    // SAFETY: this thread has the lock.
    unsafe { (&mut (*STATE.0.get()))[at] = slot };
    IDS[at].store(opened.id, Ordering::Release);
    Some(Ok(0))
}

/// The attributes of a description; `None`: ask the far side.
pub(crate) fn stat(id: u32, mask: u32) -> Option<PxStat> {
    if !is_any() || mask & !MASK != 0 {
        return None;
    }
    let at = slot_of(id)?;
    let _locked = lock();
    if IDS[at].load(Ordering::Acquire) != id {
        return None;
    }
    // SAFETY: this thread has the lock.
    let slot = unsafe { (*STATE.0.get())[at] };
    slot.stat.filter(|_| slot.asked.is_good())
}

/// A file is written: what is known of it is no good any more, if it is open for reading, too.
pub(super) fn touched(ino: u64, device: (u32, u32)) {
    for (at, id) in IDS.iter().enumerate() {
        let id = id.load(Ordering::Acquire);
        if id == FILLING {
            // By a signal's handler: the answer on its way may be from before.
            heard::hear();
        }
        if id == 0 || id == FILLING {
            continue;
        }
        let is_it = {
            let _locked = lock();
            // SAFETY: this thread has the lock.
            let stat = unsafe { (*STATE.0.get())[at].stat };
            stat.is_none_or(|stat| stat.ino == ino && device_of(&stat) == device)
        };
        if is_it {
            settle(at, id);
        }
    }
}

/// Reads a file's bytes; `None`: ask the far side, whose offset is the program's then. `data` has
/// room for `count` bytes.
pub(crate) fn read(id: u32, data: *mut c_void, count: usize, offset: i64) -> Option<usize> {
    with_slot(id, |slot, bytes| {
        if slot.is_folder || !slot.is_whole || !slot.asked.is_good() {
            return None;
        }
        let from = if offset == OFFSET { slot.place } else { offset };
        let rest = bytes.get(usize::try_from(from).ok()?..).unwrap_or_default();
        let count = count.min(rest.len());
        // SAFETY: the caller's room.
        unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), data.cast::<u8>(), count) };
        if offset == OFFSET {
            slot.place += count as i64;
        }
        slot.was_read |= count > 0;
        Some(count)
    })
}

/// Goes to a place in a file or directory.
pub(crate) fn seek(id: u32, offset: i64, whence: c_int) -> Result<i64, c_int> {
    match seek_here(id, offset, whence) {
        Some(to) => Ok(to),
        None => far!(px_seek(id, offset, whence)),
    }
}

/// The same in a file whose bytes came along; otherwise the far side's offset is the program's.
fn seek_here(id: u32, offset: i64, whence: c_int) -> Option<i64> {
    with_slot(id, |slot, bytes| {
        if slot.is_folder || !slot.is_whole {
            return None;
        }
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => slot.place,
            libc::SEEK_END if slot.asked.is_good() => bytes.len() as i64,
            _ => return None,
        };
        let to = from.checked_add(offset).filter(|to| (0..=PLACE_MAX).contains(to))?;
        slot.place = to;
        Some(to)
    })
}

/// A directory's next entries, as many as there is room for; `None`: ask the far side.
pub(crate) fn entries(id: u32, data: *mut c_void, room: usize) -> Option<Result<i64, c_int>> {
    const LENGTH_AT: usize = 16;
    with_slot(id, |slot, bytes| {
        if !slot.is_folder || !slot.asked.is_good() {
            return None;
        }
        let rest = bytes.get(slot.place as usize..)?;
        if rest.is_empty() {
            return slot.is_whole.then_some(Ok(0));
        }
        let (mut end, mut cookie) = (0, slot.cookie);
        while end < rest.len() {
            let entry = &rest[end..];
            let length = u16::from_ne_bytes([*entry.get(LENGTH_AT)?, *entry.get(LENGTH_AT + 1)?]) as usize;
            if length <= LENGTH_AT || length > entry.len() {
                return None;
            }
            if end + length > room {
                break;
            }
            cookie = i64::from_ne_bytes(entry[8..16].try_into().ok()?);
            end += length;
        }
        if end == 0 {
            return Some(Err(libc::EINVAL));
        }
        // SAFETY: the caller's room.
        unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), data.cast::<u8>(), end) };
        slot.place += end as i64;
        slot.cookie = cookie;
        Some(Ok(end as i64))
    })
}
