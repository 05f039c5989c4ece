//! How many CPUs there are to spin on.

use std::sync::OnceLock;

/// Counts the machine's CPUs, once for the whole life of this process. A process that is about to
/// give up its view of `/sys` calls this before: afterwards libc counts only the CPUs that the
/// process is bound to, and an end that is bound to one would never spin.
pub fn count_cpus() {
    cpus_online();
}

/// CPUs of this machine that are online. This counts CPUs that the thread may not use, too: a rank
/// that is bound to one core may well spin for a daemon on another.
pub(crate) fn cpus_online() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| {
        // SAFETY: takes a number and only asks.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        usize::try_from(online).unwrap_or(1).max(1)
    })
}

/// Whether a thread may spin at all: false on a machine with one CPU.
pub(crate) fn has_cpus_to_spin() -> bool {
    cpus_online() > 1
}

/// How many threads of a daemon may spin at a time. It leaves a CPU for clients to run on.
pub(crate) fn spinners_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| {
        let mine = std::thread::available_parallelism().map_or(1, usize::from);
        mine.min(cpus_online() - 1)
    })
}
