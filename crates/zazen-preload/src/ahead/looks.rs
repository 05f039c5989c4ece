//! Attributes of names in the order of a listing: a program that looks at one after the other gets
//! those of the next ones along with one look. A program that looks at names of a folder in their
//! alphabetical order, and has not listed it, gets a listing made for it.
//!
//! Invariants: each answer is kept under the path that was asked for, as the program spells it, so
//! a wrong guess of what comes next costs time and nothing else. How many names are asked for
//! follows from how many of the last ones were used.

use super::kept::{Shared, device_of, lock, may_keep};
use crate::far::{PxOpened, PxStat, far};
use crate::heard::{Asked, hear, is_alone, is_any, may_come};
use crate::{fault, transport};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_forward_api::paths::{PATH_MAX, Text};
use zazen_forward_api::structures::{AHEAD_WHOLE, Found};

/// Names of one call, at most, and at least.
const NAMES_MAX: usize = 32;
const NAMES_MIN: usize = 4;
/// And of the first.
const NAMES_FIRST: usize = 16;
const NAME_BYTES: usize = 4096;
/// Listings that are remembered, and bytes of each: what is beyond them is looked at one by one.
const LISTINGS: usize = 4;
const LISTING_BYTES: usize = 256 << 10;
/// How many names a program may pass over.
const PASSED_OVER: usize = 4;
/// Looks in a listing's order, before the next ones are asked for; and how many count.
const STEPS_MIN: u32 = 2;
const STEPS_MAX: u32 = 16;
/// Looks in alphabetical order, before a folder is listed for them; it may have so many bytes.
const ORDERED_MIN: u32 = 3;
const ORDERED_BYTES: usize = 32 << 10;
/// The number of a listing whose description is closed.
const CLOSED: u32 = u32::MAX;
/// Room for a name and what stands before it in an entry.
const NAME_AT: usize = 19;

/// Names in the order in which a program got them.
struct Listing {
    /// The description that was listed; 0 for none.
    id: u32,
    bytes: usize,
    /// Behind the name that was looked at last.
    at: usize,
    /// When it was last of use, as State::turn counts.
    turn: u64,
}

/// The answers of one call.
struct Batch {
    asked: Asked,
    dir: c_int,
    flags: c_int,
    mask: u32,
    /// Whether the two attributes were asked for.
    also: bool,
    folder: Text,
    names: [u8; NAME_BYTES],
    /// Where each name begins and ends.
    spans: [(u16, u16); NAMES_MAX],
    count: usize,
    /// The name that was asked for last.
    last: usize,
    used: usize,
    used_also: bool,
    /// Names of the next call.
    size: usize,
}

/// Looks at names of one folder in their alphabetical order.
struct Ordered {
    dir: c_int,
    folder: Text,
    name: Text,
    looks: u32,
}

struct State {
    listings: [Listing; LISTINGS],
    /// The answers for names of each listing.
    batches: [Batch; LISTINGS],
    turn: u64,
    /// How many looks in a row were in a listing's order.
    steps: u32,
    ordered: Ordered,
    /// Whether the program asks for the two attributes, too.
    wants_also: bool,
    /// A call for a batch is under way: a signal's handler asks alone meanwhile.
    is_asking: bool,
}

static STATE: Shared<State> = Shared(UnsafeCell::new(State {
    listings: [const { Listing { id: 0, bytes: 0, at: 0, turn: 0 } }; LISTINGS],
    batches: [const {
        Batch {
            asked: Asked::NEVER,
            dir: 0,
            flags: 0,
            mask: 0,
            also: false,
            folder: Text::new(),
            names: [0; NAME_BYTES],
            spans: [(0, 0); NAMES_MAX],
            count: 0,
            last: 0,
            used: 0,
            used_also: false,
            size: NAMES_FIRST,
        }
    }; LISTINGS],
    turn: 0,
    steps: 0,
    ordered: Ordered { dir: 0, folder: Text::new(), name: Text::new(), looks: 0 },
    wants_also: false,
    is_asking: false,
}));
/// Whether there was ever a listing or a batch.
static IS_USED: AtomicBool = AtomicBool::new(false);
static LISTED: Shared<[[u8; LISTING_BYTES]; LISTINGS]> =
    Shared(UnsafeCell::new([[0; LISTING_BYTES]; LISTINGS]));
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

/// The program has got these entries of a directory.
pub(crate) fn listed(id: u32, data: *const c_void, bytes: usize) {
    if bytes == 0 || !may_keep() {
        return;
    }
    let _locked = lock();
    // SAFETY: this thread has the lock; the caller's bytes.
    unsafe {
        let state = &mut *STATE.0.get();
        let known = state.listings.iter().position(|listing| listing.id == id);
        let which = known.unwrap_or_else(|| state.new_listing(id));
        state.append(which, std::slice::from_raw_parts(data.cast::<u8>(), bytes));
    }
}

/// In a child: another thread may have been in the middle of a change.
pub(super) fn forget_all() {
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    let _locked = lock();
    // SAFETY: this thread has the lock.
    let state = unsafe { &mut *STATE.0.get() };
    for listing in &mut state.listings {
        *listing = Listing { id: 0, bytes: 0, at: 0, turn: 0 };
    }
    state.batches.iter_mut().for_each(|batch| batch.count = 0);
    (state.ordered.looks, state.is_asking) = (0, false);
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
    for listing in state.listings.iter_mut().filter(|listing| listing.id == id) {
        // The names stay: programs list a directory, close it, and then look.
        listing.id = CLOSED;
    }
    for batch in state.batches.iter_mut().filter(|batch| batch.dir == id as c_int) {
        batch.count = 0;
    }
    if state.ordered.dir == id as c_int {
        state.ordered.looks = 0;
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
        hear();
    }
    for (batch, found) in state.batches.iter_mut().zip(found) {
        for (one, span) in found.iter_mut().zip(&mut batch.spans).take(batch.count) {
            if one.error == 0 && one.stat.ino == ino && device_of(&one.stat) == device {
                match now {
                    Some(now) => one.stat = *now,
                    // No name is empty.
                    None => *span = (0, 0),
                }
            }
        }
    }
}

/// The folder of a path, up to its last slash, and the name behind it.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let name_at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (folder, name) = path.split_at(name_at);
    (!matches!(name, b"" | b"." | b"..")).then_some((folder, name))
}

impl Batch {
    fn name(&self, at: usize) -> &[u8] {
        let (from, to) = self.spans[at];
        &self.names[from as usize..to as usize]
    }

    /// Which of the answers is that path's.
    fn position(&self, dir: c_int, folder: &[u8], name: &[u8]) -> Option<usize> {
        if dir != self.dir || folder != self.folder.as_bytes() {
            return None;
        }
        (self.last..self.count).chain(0..self.last.min(self.count)).find(|at| self.name(*at) == name)
    }
}

/// An entry of a listing: its name, and where the next one begins.
fn entry(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let length = u16::from_ne_bytes([*bytes.get(at + 16)?, *bytes.get(at + 17)?]) as usize;
    let text = bytes.get(at + NAME_AT..at + length)?;
    let end = text.iter().position(|byte| *byte == 0)?;
    Some((&text[..end], at + length))
}

/// The next name behind `at`, which is none of the directory's own.
fn next_name(bytes: &[u8], mut at: usize) -> Option<(&[u8], usize)> {
    loop {
        let (name, next) = entry(bytes, at)?;
        if !matches!(name, b"." | b"..") {
            return Some((name, next));
        }
        at = next;
    }
}

impl State {
    /// Makes room for a listing, in place of the one that was of no use for longest.
    fn new_listing(&mut self, id: u32) -> usize {
        IS_USED.store(true, Ordering::Relaxed);
        let oldest = (0..LISTINGS).min_by_key(|which| self.listings[*which].turn);
        let which = oldest.unwrap_or(0);
        self.listings[which] = Listing { id, bytes: 0, at: 0, turn: 0 };
        (self.batches[which].count, self.batches[which].size) = (0, NAMES_FIRST);
        which
    }

    /// Adds entries to a listing, if there is room.
    fn append(&mut self, which: usize, more: &[u8]) {
        self.turn += 1;
        let listing = &mut self.listings[which];
        listing.turn = self.turn;
        // SAFETY: the caller has the lock.
        let all = unsafe { &mut *LISTED.0.get() };
        if let Some(to) = all[which].get_mut(listing.bytes..listing.bytes + more.len()) {
            to.copy_from_slice(more);
            listing.bytes += more.len();
        }
    }

    /// Takes a step in the listing where `name` comes next, or was the last: which one.
    fn step(&mut self, name: &[u8]) -> Option<usize> {
        // SAFETY: the caller has the lock.
        let all = unsafe { &*LISTED.0.get() };
        self.turn += 1;
        for (which, listing) in self.listings.iter_mut().enumerate() {
            let bytes = &all[which][..listing.bytes];
            let mut at = listing.at;
            for _ in 0..=PASSED_OVER {
                let Some((next, end)) = next_name(bytes, at) else { break };
                at = end;
                if next == name {
                    (listing.at, listing.turn) = (end, self.turn);
                    return Some(which);
                }
            }
        }
        None
    }

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

    /// Fills a batch with `name` and those that come next; how many bytes the names have.
    fn begin(&mut self, name: &[u8], which: usize) -> usize {
        let Listing { bytes, mut at, .. } = self.listings[which];
        // SAFETY: the caller has the lock.
        let bytes = unsafe { &(&*LISTED.0.get())[which][..bytes] };
        let batch = &mut self.batches[which];
        let (mut end, mut name) = (0, name);
        batch.count = 0;
        while batch.count < batch.size && end + name.len() < NAME_BYTES {
            batch.names[end..end + name.len()].copy_from_slice(name);
            batch.spans[batch.count] = (end as u16, (end + name.len()) as u16);
            end += name.len();
            batch.names[end] = 0;
            end += 1;
            batch.count += 1;
            match next_name(bytes, at) {
                Some((next, behind)) => (name, at) = (next, behind),
                None => break,
            }
        }
        end
    }

    /// Counts a look that is in no listing; whether its folder is to be listed.
    fn is_ordered(&mut self, dir: c_int, folder: &[u8], name: &[u8]) -> bool {
        let ordered = &mut self.ordered;
        let goes_on = ordered.dir == dir && ordered.folder.as_bytes() == folder;
        if !goes_on || name <= ordered.name.as_bytes() {
            ordered.looks = 0;
        }
        ordered.looks = ordered.looks.saturating_add(1);
        ordered.dir = dir;
        let fits = (goes_on || ordered.folder.set(folder)) && ordered.name.set(name);
        // Once: what could not be listed is not tried again at the next look.
        fits && ordered.looks == ORDERED_MIN
    }
}

/// Lists a folder that a program looks through in alphabetical order, and leaves no trace there:
/// not in its time of access either. Whether that was possible.
fn list_in_order(dir: c_int, folder: &[u8], name: &[u8]) -> bool {
    let mut path = Text::new();
    if !path.set(if folder.is_empty() { b"." } else { folder }) {
        return false;
    }
    let (mut opened, mut stat) = (PxOpened::default(), PxStat::default());
    let mut bytes = vec![0_u8; ORDERED_BYTES];
    let mut count = bytes.len() as u64;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_NOATIME;
    let (out, told, data) =
        ((&raw mut opened).cast(), (&raw mut stat).cast(), bytes.as_mut_ptr().cast::<c_void>());
    let outcome = far!(px_open_ahead(dir, path.as_ptr(), flags, out, told, data, &raw mut count));
    let Ok(bits) = outcome else { return false };
    let _ = transport::without_waiting(|| far!(px_close(opened.id, 1)));
    if bits & AHEAD_WHOLE == 0 {
        return false;
    }
    let bytes = &bytes[..(count as usize).min(ORDERED_BYTES)];
    let mut entries = Vec::new();
    let mut at = 0;
    while let Some((name, next)) = entry(bytes, at) {
        entries.push((name, &bytes[at..next]));
        at = next;
    }
    entries.sort_unstable_by_key(|(name, _)| *name);
    let _locked = lock();
    // SAFETY: this thread has the lock.
    let state = unsafe { &mut *STATE.0.get() };
    let which = state.new_listing(CLOSED);
    for (this, bytes) in entries {
        if this < name {
            continue;
        }
        state.append(which, bytes);
    }
    state.steps = STEPS_MAX;
    true
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
        Prepared::Unlisted if !list_in_order(dir, folder, name) => return None,
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
    if let Err(error) = outcome {
        batch.count = 0;
        return Some(Err(error));
    }
    if came == 0 || came > batch.count {
        batch.count = 0;
        return None;
    }
    batch.count = came;
    batch.asked = asked.come();
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
    let state = unsafe { &mut *STATE.0.get() };
    let step = state.step(name);
    if let Some(found) = state.known(dir, folder, name, how) {
        let known = answer(found);
        if step.is_some() {
            state.steps = (state.steps + 1).min(STEPS_MAX);
        }
        return Prepared::Known(known);
    }
    let Some(which) = step else {
        state.steps /= 2;
        return if state.is_ordered(dir, folder, name) { Prepared::Unlisted } else { Prepared::Alone };
    };
    state.steps = (state.steps + 1).min(STEPS_MAX);
    if state.steps <= STEPS_MIN || state.is_asking {
        return Prepared::Alone;
    }
    let batch = &mut state.batches[which];
    if batch.count > 0 {
        let all = batch.used + 1 >= batch.count;
        batch.size = if all { batch.size * 2 } else { batch.used * 2 }.clamp(NAMES_MIN, NAMES_MAX);
        state.wants_also &= batch.used_also || !batch.also;
    }
    batch.count = 0;
    if !batch.folder.set(folder) {
        return Prepared::Alone;
    }
    let bytes = state.begin(name, which);
    let also = state.wants_also;
    let batch = &mut state.batches[which];
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
