//! What a process can have heard: how long answers that came along with others are good
//! (`ahead.rs`).
//!
//! Such an answer stands in for the far side's own only while the program cannot have heard, by
//! anything that this library sees, that somebody changed the file meanwhile. It goes
//! - when the process calls what changes anything at the far side, or takes a lock;
//! - when an answer of the far side's may be somebody's word: it is of a file that changed just
//!   now, says that something is not there, or comes without the time of its file's last change;
//! - when the process reads from, waits for, or looks at anything of this machine: a pipe, a
//!   socket, a stream, a name ([`hear`]);
//! - when a call that this library does not see has waited for something;
//! - [`AGE_NS_MAX`] after it came: for a signal's handler, and for what goes past this library.
//!
//! A process with a second thread, with memory that others may write, or that has started other
//! processes keeps nothing.

use crate::real::system_call;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use zazen_forward_api::structures::function;

/// How long an answer may be there: a thousandth of a second.
const AGE_NS_MAX: u64 = 1_000_000;
/// How long it may have been on its way: shorter than a change counts as news at the far side.
const WAY_NS_MAX: u64 = 500_000_000;

/// Counts what ends all answers. Those of an earlier round are no good.
static ROUND: AtomicU64 = AtomicU64::new(1);
/// The round of the youngest answer.
static KEPT_IN: AtomicU64 = AtomicU64::new(0);
/// What [`waits`] was at the end of the last call to the far side.
static WAITS: AtomicU64 = AtomicU64::new(0);
/// Whether this process has started others.
static HAS_STARTED: AtomicBool = AtomicBool::new(false);
/// Whether it has memory that other processes may write.
static SHARES: AtomicBool = AtomicBool::new(false);

/// The round in which somebody asked last, or the one that begins with the answer.
static ASKED_IN: AtomicU64 = AtomicU64::new(0);
/// Whether something is open at the far side for answers that may come to be used.
static HOLDS: AtomicBool = AtomicBool::new(false);

/// Whether there is an answer that could be used, or one may be on its way: a signal's handler runs
/// while its program waits for it.
pub(crate) fn may_come() -> bool {
    ASKED_IN.load(Ordering::Relaxed) >= ROUND.load(Ordering::Relaxed)
}

/// Whether there is an answer that could be used.
pub(crate) fn is_any() -> bool {
    KEPT_IN.load(Ordering::Relaxed) == ROUND.load(Ordering::Relaxed)
}

/// The process may have heard something of others, or has changed something itself.
#[inline]
pub(crate) fn hear() {
    end_answers();
    if HOLDS.load(Ordering::Relaxed) {
        tell(Told::Over);
    }
}

/// The same for the keepers themselves, who have what is open in hand.
pub(crate) fn end_answers() {
    if may_come() {
        ROUND.fetch_add(1, Ordering::Relaxed);
    }
}

/// The keepers have something open at the far side for their answers, or nothing any more.
pub(crate) fn note_held(holds: bool) {
    HOLDS.store(holds, Ordering::Relaxed);
}

/// The process starts another one, or begins to.
pub(crate) fn note_start() {
    HAS_STARTED.store(true, Ordering::Relaxed);
    hear();
}

/// The process maps memory that others may write.
pub(crate) fn note_sharing() {
    SHARES.store(true, Ordering::Relaxed);
    hear();
}

/// In a child: it has started nobody.
pub(crate) fn after_fork() {
    HAS_STARTED.store(false, Ordering::Relaxed);
    // What is open is its parent's.
    tell(Told::Forked);
    hear();
}

/// A signal's handler jumped out of a call.
pub(crate) fn note_left() {
    hear();
    tell(Told::Left);
}

/// The far side has begun a new session, which knows none of the old numbers.
pub(crate) fn begin_again() {
    tell(Told::Forget);
    hear();
}

/// Whether this is the process's only thread, as libc knows.
pub(crate) fn is_alone() -> bool {
    static FLAG: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut flag = FLAG.load(Ordering::Relaxed);
    if flag.is_null() {
        // SAFETY: a name.
        flag = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
        if flag.is_null() {
            return false;
        }
        FLAG.store(flag, Ordering::Relaxed);
    }
    // SAFETY: libc's variable of this type, which others only read.
    unsafe { flag.cast::<c_char>().read_volatile() != 0 }
}

/// Whether no other process and no other thread can tell this one anything without a call.
pub(crate) fn is_by_itself() -> bool {
    !HAS_STARTED.load(Ordering::Relaxed) && !SHARES.load(Ordering::Relaxed) && is_alone()
}

/// How often this thread has waited in the kernel.
fn waits() -> u64 {
    // SAFETY: all zeros is a valid answer.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    let asked = [libc::RUSAGE_THREAD as usize, (&raw mut used) as usize, 0, 0, 0, 0];
    match system_call(libc::SYS_getrusage, asked) {
        Ok(_) => used.ru_nvcsw as u64,
        // No answer is like no other.
        Err(_) => ROUND.fetch_add(1, Ordering::Relaxed),
    }
}

fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// When an answer was asked for, and since when it is there.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    round: u64,
    pub(crate) at_ns: u64,
}

impl Asked {
    pub(crate) const NEVER: Asked = Asked { round: 0, at_ns: 0 };

    pub(crate) fn now() -> Asked {
        let round = ROUND.load(Ordering::Relaxed);
        ASKED_IN.store(round, Ordering::Relaxed);
        Asked { round, at_ns: now_ns() }
    }

    /// The answer is there: the program has not run since it was asked for. `news`: it ends those
    /// that were there before.
    pub(crate) fn come(self, news: bool) -> Asked {
        let mut round = self.round;
        if news && ROUND.load(Ordering::Relaxed) == round {
            // First, so that a handler that runs now ends this answer, too.
            ASKED_IN.store(round + 1, Ordering::Relaxed);
            let begun = ROUND.compare_exchange(round, round + 1, Ordering::Relaxed, Ordering::Relaxed);
            round += u64::from(begun.is_ok());
        }
        WAITS.store(waits(), Ordering::Relaxed);
        KEPT_IN.store(round, Ordering::Relaxed);
        let now = now_ns();
        let at_ns = if now.wrapping_sub(self.at_ns) <= WAY_NS_MAX { now } else { 0 };
        Asked { round, at_ns }
    }

    /// Whether its answer still stands for the far side's.
    pub(crate) fn is_good(self) -> bool {
        if self.round != ROUND.load(Ordering::Relaxed) {
            return false;
        }
        if !is_by_itself() || waits() != WAITS.load(Ordering::Relaxed) {
            end_answers();
            return false;
        }
        now_ns().wrapping_sub(self.at_ns) <= AGE_NS_MAX
    }
}

/// What the keepers of answers are told.
pub(crate) enum Told {
    /// No answer that there is will be used: nothing is to be held open for one.
    Over,
    /// The next call changes nothing: only what is too old is not to be held open.
    Ages,
    /// The next call may need the offsets as the program has them, or change anything.
    Settle,
    /// The next call writes to that description. Whether the keepers know which file that is: then
    /// they have dropped what they know of it.
    Writes(u32),
    /// The far side has begun a new session, which knows none of the old numbers.
    Forget,
    /// This is a child, with no other thread.
    Forked,
    /// A signal's handler jumped out of a call: what was asked for is not there.
    Left,
}

/// What [`tell_by`] was given.
static TELL: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Says whom to tell.
pub(crate) fn tell_by(tell: fn(Told) -> bool) {
    TELL.store(tell as *mut (), Ordering::Release);
}

fn tell(told: Told) -> bool {
    // SAFETY: a function of `tell_by`, or none.
    let tell: Option<fn(Told) -> bool> = unsafe { std::mem::transmute(TELL.load(Ordering::Acquire)) };
    tell.is_some_and(|tell| tell(told))
}

/// The description that the next call writes to.
static WRITES: AtomicU32 = AtomicU32::new(0);

/// The next call writes to that description.
pub(crate) fn note_write(id: u32) {
    if is_any() {
        WRITES.store(id, Ordering::Relaxed);
    }
}

/// Before a call to the far side. `unawaited`: nobody waits for its answer.
pub(crate) fn before_call(function: u32, unawaited: bool) {
    let changes_nothing = match function {
        // Nobody waits for the bytes that a time of access needs.
        function::CLOSE | function::CLOSE_SEVERAL | function::ADVISE | function::READ => unawaited,
        // Nothing changes, but nobody knows whether what is told is old.
        function::SEEK
        | function::STATFS
        | function::ACCESS
        | function::REALPATH
        | function::GETXATTR
        | function::LISTXATTR => {
            if !unawaited {
                hear();
            }
            true
        }
        // Whoever asks says whether the answer was news.
        function::HELLO
        | function::STAT
        | function::FCNTL
        | function::OPEN_AHEAD
        | function::STAT_SEVERAL
        | function::OPEN_SEVERAL => true,
        _ => false,
    };
    // Writing changes no other file.
    let written = if function == function::WRITE { WRITES.swap(0, Ordering::Relaxed) } else { 0 };
    let changes_nothing = changes_nothing || (written != 0 && tell(Told::Writes(written)));
    if !changes_nothing {
        hear();
        tell(Told::Settle);
    } else if is_any() && waits() != WAITS.load(Ordering::Relaxed) {
        hear();
    } else if HOLDS.load(Ordering::Relaxed) {
        tell(Told::Ages);
    }
}

/// After it: while the call waited, the program did not run.
pub(crate) fn after_call() {
    if is_any() {
        WAITS.store(waits(), Ordering::Relaxed);
    }
}

/// Before several calls that read or write.
pub(crate) fn before_calls() {
    hear();
    tell(Told::Settle);
}
