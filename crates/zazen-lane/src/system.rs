//! What a lane needs of the operating system.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// The calls that an end of a lane makes to wait and to wake. Each program brings its own: the
/// preload library goes past its own hooks, tests play both ends without a kernel. Used as a type
/// parameter, never as `dyn`.
pub trait System {
    /// Sleeps while `word` is `value`, at most `at_most`; may return early for any reason. False:
    /// the time is up.
    ///
    /// The other end is another process, so the futex must not be private.
    fn sleep_on(&self, word: &AtomicU32, value: u32, at_most: Duration) -> bool;

    /// Wakes everybody who sleeps on `word`.
    fn wake(&self, word: &AtomicU32);

    /// Gives the CPU to another thread that can run (`sched_yield`).
    fn give_way(&self);

    /// The CPU that this thread runs on; any number where the kernel can't say.
    fn cpu(&self) -> u32;

    /// A clock that never goes back.
    fn now(&self) -> Duration;

    /// A place where a test kills the process; nothing in a release build.
    #[inline(always)]
    fn fault_point(&self) {}
}
