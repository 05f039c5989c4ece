//! Opens in the order of a listing: a program that opens one file after the other, to read them,
//! gets the next ones opened along with one, with their attributes and bytes.
//!
//! Invariants: what is kept is a real description of the far side's, opened with the flags and by
//! the path that the program asks with, as it spells them. Each is the program's, or is closed when
//! its answer is no good any more: at the next call or wait of the program's that this library
//! sees. How many are opened follows from how many of the last ones were used.

use super::kept::{Shared, device_of, lock};
use super::listings::{list_in_order, listings};
use super::looks;
use crate::far::{PxStat, far};
use crate::heard::{Asked, end_answers, is_alone, note_held};
use crate::{fault, state, table, transport};
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_forward_api::in_order::{Guesses, NAMES_MAX, Names, Walk, split};
use zazen_forward_api::paths::{PATH_MAX, Text};
use zazen_forward_api::structures::{AHEAD_NEWS, AHEAD_QUIET, CLOSE_LAST, Came};

/// Bytes of one file, at most.
pub(super) const FILE_BYTES: usize = 32 << 10;
/// Bytes of all files that one call opens, and of what is said of them.
const BYTES: usize = FILE_BYTES + (64 << 10) + NAMES_MAX * size_of::<Came>();

/// A file that is open, and not the program's yet.
#[derive(Clone, Copy)]
struct Kept {
    came: Came,
    /// Where its bytes are.
    at: usize,
    is_taken: bool,
}

struct State {
    asked: Asked,
    dir: c_int,
    flags: c_int,
    folder: Text,
    names: Names,
    kept: [Option<Kept>; NAMES_MAX],
    /// The name that was opened last.
    last: usize,
    /// How many came along, and how many of them the program opened.
    came: usize,
    used: usize,
    guesses: Guesses,
    /// The flags of the last open: with others, the program begins something else.
    last_flags: c_int,
    /// A call is under way: a signal's handler asks alone meanwhile.
    is_asking: bool,
    /// What the program has closed while others wait for it: numbers, and what px_close() is told.
    closed: [[u32; 2]; NAMES_MAX],
    closed_count: usize,
}

static STATE: Shared<State> = Shared(UnsafeCell::new(State {
    asked: Asked::NEVER,
    dir: 0,
    flags: 0,
    folder: Text::new(),
    names: Names::NONE,
    kept: [None; NAMES_MAX],
    last: 0,
    came: 0,
    used: 0,
    guesses: Guesses::NONE,
    last_flags: 0,
    is_asking: false,
    closed: [[0; 2]; NAMES_MAX],
    closed_count: 0,
}));
static BYTES_OF_ALL: Shared<[u64; BYTES / 8]> = Shared(UnsafeCell::new([0; BYTES / 8]));
/// Whether there was ever a call.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// A file that is the program's now. Its bytes are where `open` was told.
pub(super) struct Taken {
    pub(super) came: Came,
    pub(super) asked: Asked,
}

impl Taken {
    /// Whether its time of access is that of before its bytes were read.
    pub(super) fn is_quiet(&self) -> bool {
        self.came.bits & AHEAD_QUIET != 0 && self.came.bytes > 0
    }
}

/// In a child, or in a session that knows none of the numbers.
pub(super) fn forget_all() {
    note_held(false);
    if IS_USED.load(Ordering::Relaxed) {
        let _locked = lock();
        // SAFETY: this thread has the lock.
        let state = unsafe { &mut *STATE.0.get() };
        state.names.count = 0;
        state.is_asking = false;
        state.closed_count = 0;
    }
}

/// Whoever asked is not there any more.
pub(super) fn left() {
    if IS_USED.load(Ordering::Relaxed) && is_alone() {
        let _locked = lock();
        // SAFETY: this thread has the lock.
        unsafe { (*STATE.0.get()).is_asking = false };
    }
}

/// Does something with the state, and says whether all that is kept is to go.
fn goes_if(goes: impl FnOnce(&State) -> bool) -> bool {
    if !IS_USED.load(Ordering::Relaxed) {
        return false;
    }
    let _locked = lock();
    // SAFETY: this thread has the lock.
    let state = unsafe { &*STATE.0.get() };
    state.names.count > 0 && !state.is_asking && goes(state)
}

/// A call is made: what is too old is closed.
pub(super) fn ages() {
    if goes_if(|state| !state.asked.is_good()) {
        let_go();
    }
}

/// A description is closed: its number may come to mean another directory.
pub(super) fn closed(id: u32) {
    if goes_if(|state| state.dir == id as c_int) {
        let_go();
    }
}

/// A file is written: what is known of it is no good any more.
pub(super) fn touched(ino: u64, device: (u32, u32)) {
    let is_it = |kept: &Kept| (kept.came.stat.ino, device_of(&kept.came.stat)) == (ino, device);
    if goes_if(|state| state.kept[..state.names.count].iter().flatten().any(is_it)) {
        let_go();
    }
}

/// Closes all that the program did not take.
pub(super) fn let_go() {
    note_held(false);
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    let (mut closes, mut count);
    {
        let _locked = lock();
        // SAFETY: this thread has the lock.
        let state = unsafe { &mut *STATE.0.get() };
        if state.is_asking {
            return;
        }
        (closes, count) = (state.closed, std::mem::take(&mut state.closed_count));
        for kept in state.waiting() {
            closes[count] = [kept.came.opened.id, CLOSE_LAST as u32];
            count += 1;
        }
        state.guesses.judge(state.came, state.used);
        (state.names.count, state.came, state.used) = (0, 0, 0);
    }
    close_all(&closes[..count]);
}

/// Closes these at the far side.
fn close_all(closes: &[[u32; 2]]) {
    let (all, bytes) = (closes.as_ptr().cast::<c_void>(), size_of_val(closes) as u64);
    let close = || match closes {
        [] => Ok(0),
        [[id, how]] => far!(px_close(*id, *how as c_int)),
        _ => far!(px_close_several(all, bytes)),
    };
    // With one thread, its calls have an order: a close ends no lock that is taken after it.
    let _ = if is_alone() { transport::without_waiting(close) } else { close() };
}

/// The program closes a file: whether that is done, or is done with those that wait for the program
/// meanwhile, in one message. There are never more open for it than came along.
pub(crate) fn close_later(id: u32, how: c_int) -> bool {
    if !IS_USED.load(Ordering::Relaxed) {
        return false;
    }
    let (closes, count, is_done);
    {
        let _locked = lock();
        // SAFETY: this thread has the lock.
        let state = unsafe { &mut *STATE.0.get() };
        let (is_last, is_full) = (state.waiting().next().is_none(), state.closed_count > state.used);
        if state.is_asking || (is_last && state.closed_count == 0) {
            return false;
        }
        if !is_full {
            state.closed[state.closed_count] = [id, how as u32];
            state.closed_count += 1;
            if !is_last {
                return true;
            }
        }
        (closes, count, is_done) = (state.closed, std::mem::take(&mut state.closed_count), !is_full);
    }
    close_all(&closes[..count]);
    is_done
}

/// What an open has to do.
enum Prepared {
    Known(Taken),
    Alone,
    /// In order, in a folder that was not listed.
    Unlisted,
    /// Others along with it, which follow in that listing.
    Several(usize),
}

/// Opens a file for reading, if it is open already or others come along; `None`: open it alone.
/// `data` has room for [`FILE_BYTES`].
pub(super) fn open(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    data: *mut u8,
) -> Option<Result<Taken, c_int>> {
    // A close of a file takes this process's locks of it along.
    if flags & libc::O_DIRECTORY != 0 || state::uses_locks() {
        return None;
    }
    let path = fault::string(path)?.to_bytes();
    let (folder, name) = split(path).filter(|_| path.len() < PATH_MAX)?;
    let mut prepared = prepare(dir, folder, name, flags, data);
    if matches!(prepared, Prepared::Unlisted) && list_in_order(Walk::Opens, dir, folder, name) {
        prepared = prepare(dir, folder, name, flags, data);
    }
    let which = match prepared {
        Prepared::Known(opened) => return Some(Ok(opened)),
        Prepared::Alone | Prepared::Unlisted => return None,
        Prepared::Several(which) => which,
    };
    let_go();
    let bytes = begin(dir, folder, name, flags, which)?;
    ask(dir, flags, bytes, data)
}

fn prepare(dir: c_int, folder: &[u8], name: &[u8], flags: c_int, data: *mut u8) -> Prepared {
    let _locked = lock();
    // SAFETY: this thread has the lock.
    let (state, listings) = unsafe { (&mut *STATE.0.get(), listings()) };
    if std::mem::replace(&mut state.last_flags, flags) != flags {
        listings.begins_anew(Walk::Opens);
    }
    let step = listings.step(Walk::Opens, name);
    // SAFETY: the caller's room.
    if let Some(opened) = unsafe { state.take(dir, folder, name, flags, data) } {
        return Prepared::Known(opened);
    }
    let Some(which) = step else {
        listings.strays(Walk::Opens);
        let is_ordered = listings.is_ordered(Walk::Opens, dir, folder, name);
        return if is_ordered && !state.is_asking { Prepared::Unlisted } else { Prepared::Alone };
    };
    if !listings.goes_in_order(Walk::Opens) || state.is_asking {
        return Prepared::Alone;
    }
    Prepared::Several(which)
}

impl State {
    /// Those that the program has not taken.
    fn waiting(&self) -> impl Iterator<Item = &Kept> {
        self.kept[..self.names.count].iter().flatten().filter(|kept| !kept.is_taken)
    }

    /// The open file of a path, if it is there and still good.
    ///
    /// # Safety
    ///
    /// The caller has the lock, and `data` room for [`FILE_BYTES`].
    unsafe fn take(
        &mut self,
        dir: c_int,
        folder: &[u8],
        name: &[u8],
        flags: c_int,
        data: *mut u8,
    ) -> Option<Taken> {
        if self.is_asking || (dir, flags) != (self.dir, self.flags) || folder != self.folder.as_bytes() {
            return None;
        }
        let at = self.names.position(name, self.last)?;
        let kept = self.kept[at].as_mut().filter(|kept| !kept.is_taken)?;
        // A look that came later may tell that the name stands for something else by now.
        if !self.asked.is_good() || looks::contradict(dir, folder, name, &kept.came.stat) {
            return None;
        }
        kept.is_taken = true;
        (self.last, self.used) = (at, self.used + 1);
        // SAFETY: the bytes are within what came, and fit.
        unsafe {
            let from = BYTES_OF_ALL.0.get().cast::<u8>().add(kept.at);
            std::ptr::copy_nonoverlapping(from, data, kept.came.bytes as usize);
        }
        Some(Taken { came: kept.came, asked: self.asked })
    }
}

/// Has the names that one call opens; how many bytes they take, or `None`: the first opens alone.
fn begin(dir: c_int, folder: &[u8], name: &[u8], flags: c_int, which: usize) -> Option<usize> {
    IS_USED.store(true, Ordering::Relaxed);
    let _locked = lock();
    // SAFETY: this thread has the lock.
    let (state, listings) = unsafe { (&mut *STATE.0.get(), listings()) };
    let most = state.guesses.size();
    if most == 0 || state.is_asking || !state.folder.set(folder) {
        return None;
    }
    let bytes = state.names.fill(name, (listings, Walk::Opens, which), most + 1);
    if state.names.count < 2 {
        state.names.count = 0;
        return None;
    }
    (state.dir, state.flags, state.last) = (dir, flags, 0);
    // Until the answers are there.
    state.asked = Asked::NEVER;
    state.kept = [None; NAMES_MAX];
    state.is_asking = true;
    Some(bytes)
}

/// Makes the call for the names that the state has.
fn ask(dir: c_int, flags: c_int, bytes: usize, data: *mut u8) -> Option<Result<Taken, c_int>> {
    let asked = Asked::now();
    // SAFETY: alone, as may_keep() says; a signal's handler begins no call meanwhile.
    let (folder, names) = unsafe {
        let state = &*STATE.0.get();
        (state.folder.as_ptr(), state.names.as_ptr().cast::<c_void>())
    };
    let files = BYTES_OF_ALL.0.get().cast::<c_void>();
    let mut room = BYTES as u64;
    let outcome = far!(px_open_several(dir, folder, flags, names, bytes as u64, files, &raw mut room));
    let opened = {
        let _locked = lock();
        // SAFETY: this thread has the lock.
        let state = unsafe { &mut *STATE.0.get() };
        state.is_asking = false;
        let count = match outcome {
            Ok(count) => count,
            Err(error) => {
                state.names.count = 0;
                end_answers();
                return Some(Err(error));
            }
        };
        // SAFETY: as above.
        let came = unsafe { std::slice::from_raw_parts(files.cast::<u8>(), (room as usize).min(BYTES)) };
        state.enter(came, count as usize);
        let Some(first) = state.kept[0].as_mut() else {
            state.names.count = 0;
            return Some(Err(libc::EIO));
        };
        first.is_taken = true;
        let (came, from) = (first.came, &came[first.at..first.at + first.came.bytes as usize]);
        // SAFETY: the caller's room.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), data, from.len()) };
        let news = state.kept.iter().flatten().any(|kept| kept.came.bits & AHEAD_NEWS != 0);
        state.asked = asked.come(news);
        note_held(state.came > 0);
        Taken { came, asked: state.asked }
    };
    // A signal's handler may have changed something meanwhile.
    ages();
    Some(Ok(opened))
}

impl State {
    /// Has the files that came, of those that were asked for.
    fn enter(&mut self, all: &[u8], count: usize) {
        let (mut at, mut entered) = (0, 0);
        for slot in self.kept.iter_mut().take(count.min(self.names.count)) {
            let from = at + size_of::<Came>();
            let Some(head) = all.get(at..from) else { break };
            // SAFETY: any bytes are a value; there are as many.
            let came = unsafe { head.as_ptr().cast::<Came>().read_unaligned() };
            let bytes = came.bytes as usize;
            if bytes > FILE_BYTES || all.len() - from < bytes {
                break;
            }
            // No session after this one gives that number to another file.
            table::note_number(came.opened.id);
            *slot = Some(Kept { came, at: from, is_taken: false });
            entered += 1;
            at = from + bytes.next_multiple_of(8);
        }
        self.names.count = entered;
        (self.came, self.used) = (entered.saturating_sub(1), 0);
    }
}

/// What the far side says of a file that it has opened alone.
pub(super) fn alone(dir: c_int, path: *const c_char, flags: c_int, data: *mut u8) -> Result<Taken, c_int> {
    let asked = Asked::now();
    let (mut came, mut bytes) = (Came::default(), FILE_BYTES as u64);
    let mut stat = PxStat::default();
    let (out, told) = ((&raw mut came.opened).cast(), (&raw mut stat).cast());
    came.bits = far!(px_open_ahead(dir, path, flags, out, told, data.cast(), &raw mut bytes))
        .inspect_err(|_| end_answers())?;
    (came.stat, came.bytes) = (stat, (bytes as usize).min(FILE_BYTES) as u32);
    Ok(Taken { came, asked: asked.come(came.bits & AHEAD_NEWS != 0) })
}
