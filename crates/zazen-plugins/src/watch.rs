//! What each thread is doing in a plug-in, for whoever must end it: the watchdog and a client that
//! goes.
//!
//! A thread has one slot, which says which call it runs and since when. A call is ended early by a
//! flag (`zazen_host.cancelled`) and a signal, which interrupts a system call that it blocks in;
//! both are repeated until the call is over, since a signal that comes just before the system call
//! is lost.
//!
//! Invariant: nothing here takes a lock on a call's way.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Interrupts a system call of a thread: its usual action is none, so nobody is hurt who gets one.
const INTERRUPT: libc::c_int = libc::SIGURG;

/// One thread's doings.
#[derive(Default)]
pub(crate) struct Slot {
    /// Milliseconds of [`ms_at`] at which the call began, or began anew; 0: no call.
    started_ms: AtomicU64,
    /// Counts this thread's calls: tells one from the next.
    sequence: AtomicU64,
    instance: AtomicU64,
    client: AtomicU64,
    tag: AtomicU64,
    function: AtomicU32,
    thread: AtomicU32,
    /// It may take as long as it likes.
    patient: AtomicBool,
    cancelled: AtomicBool,
}

/// A call in progress, as of a moment ago.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) client: u64,
    pub(crate) function: u32,
    pub(crate) for_ms: u64,
    pub(crate) patient: bool,
}

fn registry() -> &'static Mutex<Vec<Weak<Slot>>> {
    static REGISTRY: OnceLock<Mutex<Vec<Weak<Slot>>>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default)
}

thread_local! {
    static MINE: OnceCell<Arc<Slot>> = const { OnceCell::new() };
}

/// Milliseconds from some moment, about that of the first call, to `moment`; never 0.
fn ms_at(moment: Instant) -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    moment.saturating_duration_since(*EPOCH.get_or_init(|| moment)).as_millis() as u64 + 1
}

fn now_ms() -> u64 {
    ms_at(Instant::now())
}

/// The calling thread is in a call until this is dropped.
pub(crate) struct Busy {
    slot: Arc<Slot>,
}

/// What a [`Busy`] is about.
pub(crate) struct Work {
    pub(crate) instance: u64,
    pub(crate) client: u64,
    pub(crate) function: u32,
    pub(crate) tag: u64,
    pub(crate) patient: bool,
    pub(crate) began: Instant,
}

impl Busy {
    pub(crate) fn begin(work: &Work) -> Busy {
        let slot = MINE.with(|mine| mine.get_or_init(register).clone());
        slot.instance.store(work.instance, Ordering::Relaxed);
        slot.client.store(work.client, Ordering::Relaxed);
        slot.function.store(work.function, Ordering::Relaxed);
        slot.tag.store(work.tag, Ordering::Relaxed);
        slot.patient.store(work.patient, Ordering::Relaxed);
        slot.cancelled.store(false, Ordering::Relaxed);
        slot.sequence.fetch_add(1, Ordering::Relaxed);
        slot.started_ms.store(ms_at(work.began), Ordering::Release);
        Busy { slot }
    }

    /// Time spent until now was the client's, not the plug-in's.
    pub(crate) fn restart_clock(&self) {
        self.slot.started_ms.store(now_ms(), Ordering::Release);
    }

    /// While `work` waits for the client, nobody takes the call to hang.
    pub(crate) fn while_waiting<T>(&self, work: impl FnOnce() -> T) -> T {
        let was = self.slot.patient.swap(true, Ordering::Relaxed);
        let done = work();
        self.restart_clock();
        self.slot.patient.store(was, Ordering::Relaxed);
        done
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.slot.cancelled.load(Ordering::Relaxed)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.slot.started_ms.store(0, Ordering::Release);
    }
}

fn register() -> Arc<Slot> {
    let slot = Arc::new(Slot::default());
    // The call itself: libc has had a function for it since glibc 2.30 only.
    // SAFETY: no arguments, no failure.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) as i32 };
    slot.thread.store(thread.unsigned_abs(), Ordering::Relaxed);
    let mut all = registry().lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|slot| slot.strong_count() > 0);
    all.push(Arc::downgrade(&slot));
    slot
}

fn slots() -> Vec<Arc<Slot>> {
    let all = registry().lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().filter_map(Weak::upgrade).collect()
}

/// Calls of `instance` in progress.
pub(crate) fn calls_of(instance: u64) -> Vec<Seen> {
    let now = now_ms();
    let seen = slots().into_iter().filter_map(|slot| {
        let started = slot.started_ms.load(Ordering::Acquire);
        (started != 0 && slot.instance.load(Ordering::Relaxed) == instance).then(|| Seen {
            client: slot.client.load(Ordering::Relaxed),
            function: slot.function.load(Ordering::Relaxed),
            for_ms: now.saturating_sub(started),
            patient: slot.patient.load(Ordering::Relaxed),
        })
    });
    seen.collect()
}

/// Calls of `instance` in progress for which `which` holds, and their numbers among their thread's.
fn calls_meant(instance: u64, which: impl Fn(&Slot) -> bool) -> Vec<(Arc<Slot>, u64)> {
    let meant = |slot: &Arc<Slot>| {
        slot.started_ms.load(Ordering::Acquire) != 0
            && slot.instance.load(Ordering::Relaxed) == instance
            && which(slot)
    };
    let with_sequence = |slot: Arc<Slot>| {
        let sequence = slot.sequence.load(Ordering::Relaxed);
        (slot, sequence)
    };
    slots().into_iter().filter(meant).map(with_sequence).collect()
}

/// Tells all calls of `client` once that nobody waits for them any more.
pub(crate) fn nudge(instance: u64, client: u64) {
    install_handler();
    for (slot, sequence) in calls_meant(instance, |slot| slot.client.load(Ordering::Relaxed) == client) {
        interrupt(&slot, sequence);
    }
}

/// Ends early all calls of functions that may block, as [`cancel`] does: the host stops.
pub(crate) fn cancel_blocking(instance: u64) {
    cancel_all(calls_meant(instance, |slot| slot.patient.load(Ordering::Relaxed)));
}

/// Ends the calls of `client` early: the one with `tag`, or all for `None`. Comes back at once; a
/// thread sees to it until they are over, or for a minute.
pub(crate) fn cancel(instance: u64, client: u64, tag: Option<u64>) {
    cancel_all(calls_meant(instance, |slot| {
        slot.client.load(Ordering::Relaxed) == client
            && tag.is_none_or(|tag| slot.tag.load(Ordering::Relaxed) == tag)
    }));
}

fn cancel_all(meant: Vec<(Arc<Slot>, u64)>) {
    install_handler();
    if meant.is_empty() {
        return;
    }
    let persist = move || {
        let until = Instant::now() + Duration::from_secs(60);
        let mut rest = Duration::from_millis(1);
        while meant.iter().filter(|(slot, sequence)| interrupt(slot, *sequence)).count() > 0
            && Instant::now() < until
        {
            std::thread::sleep(rest);
            rest = (rest * 2).min(Duration::from_millis(50));
        }
    };
    // Without a thread the calls end when they end.
    let _ = std::thread::Builder::new().name("cancel".into()).spawn(persist);
}

/// Whether the call was still in progress, and got flag and signal.
fn interrupt(slot: &Slot, sequence: u64) -> bool {
    let still =
        slot.started_ms.load(Ordering::Acquire) != 0 && slot.sequence.load(Ordering::Relaxed) == sequence;
    if still {
        slot.cancelled.store(true, Ordering::Relaxed);
        // SAFETY: a signal with a handler of ours, to a thread of this process; one that ended
        // meanwhile is ESRCH.
        unsafe {
            libc::syscall(
                libc::SYS_tgkill,
                libc::getpid(),
                slot.thread.load(Ordering::Relaxed) as libc::pid_t,
                INTERRUPT,
            );
        }
    }
    still
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// A handler, so that the signal interrupts; without SA_RESTART, so that the system call is not
/// begun again. One that is there already is somebody's who needs it (a language's runtime): calls
/// then end when they end.
fn install_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: an all-zero sigaction is a valid one; the handler does nothing, so it is safe at
        // any moment.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(INTERRUPT, std::ptr::null(), &raw mut action) != 0
                || ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction)
            {
                return;
            }
            action = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            libc::sigaction(INTERRUPT, &raw const action, std::ptr::null_mut());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(instance: u64) -> Work {
        Work { instance, client: 5, function: 3, tag: 9, patient: false, began: Instant::now() }
    }

    #[test]
    fn a_call_is_seen_while_it_runs() {
        assert!(calls_of(71).is_empty());
        let busy = Busy::begin(&work(71));
        let seen = calls_of(71);
        assert_eq!((seen.len(), seen[0].client, seen[0].function, seen[0].patient), (1, 5, 3, false));
        busy.while_waiting(|| assert!(calls_of(71)[0].patient));
        assert!(!calls_of(71)[0].patient && calls_of(72).is_empty());
        drop(busy);
        assert!(calls_of(71).is_empty());
    }

    #[test]
    fn a_blocked_system_call_is_interrupted_and_only_the_one_meant() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let (started, wait) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let busy = Busy::begin(&work(73));
            started.send(()).unwrap();
            let mut byte = [0; 1];
            loop {
                match rustix::io::read(&reader, &mut byte) {
                    Err(rustix::io::Errno::INTR) if busy.is_cancelled() => return true,
                    Err(rustix::io::Errno::INTR) => {}
                    _ => return false,
                }
            }
        });
        wait.recv().unwrap();
        cancel(73, 5, Some(8));
        cancel(73, 6, None);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!thread.is_finished());
        cancel(73, 5, Some(9));
        assert!(thread.join().unwrap());
    }
}
