//! Detects forks. A child must not use its parent's connections, nor wait for a lock that a thread
//! of its parent held.
//!
//! The kernel clears one page of memory in a child, whichever system call made the child. The
//! *epoch* of a process counts the forks between it and its first ancestor.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use zazen_core::{Error, ErrorKind, Result};

const PAGE_BYTES: usize = 4096;

/// A page that is zeros in a child; `None` where the kernel can't do it (before 4.14).
fn page() -> Option<&'static AtomicU64> {
    static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *PAGE.get_or_init(|| {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private page, never unmapped; an atomic number is at home in zeroed
        // memory.
        unsafe {
            let page = rustix::mm::mmap_anonymous(null_mut(), PAGE_BYTES, protection, MapFlags::PRIVATE);
            let page = page.ok()?;
            rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork).ok()?;
            Some(&*page.cast::<AtomicU64>())
        }
    })
}

/// Epochs given to this process and those that it descends from.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// Different in each process that a fork made of this one, and never 0.
pub fn epoch() -> u64 {
    let Some(page) = page() else { return u64::from(std::process::id()) };
    match page.load(Ordering::Relaxed) {
        0 => {
            let fresh = GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
            // If two threads find the zero, the first one's number counts.
            match page.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => fresh,
                Err(earlier) => earlier,
            }
        }
        epoch => epoch,
    }
}

/// A value that belongs to the process that made it. A forked child must not use its threads and
/// locks.
#[derive(Clone, Copy, Debug)]
pub struct Mine(u64);

impl Default for Mine {
    fn default() -> Mine {
        Mine::of_this_process()
    }
}

impl Mine {
    /// This process's.
    pub fn of_this_process() -> Mine {
        Mine(epoch())
    }

    /// Whether this process made it. Ask before any lock of it is taken.
    pub fn is_mine(self) -> bool {
        self.0 == epoch()
    }

    /// Refuses `what` in a forked child with `InvalidArgument`; `instead` says what to do.
    pub fn check(self, what: &str, instead: &str) -> Result<()> {
        if self.is_mine() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{what} belongs to the process that this one was forked from; {instead}"),
        ))
    }
}

/// A value of which each process has its own. After a fork the child begins with a new value and
/// does not touch the parent's, whatever the state of its locks.
pub struct PerProcess<T> {
    current: AtomicPtr<Remembered<T>>,
    value: PhantomData<T>,
}

struct Remembered<T> {
    epoch: u64,
    value: T,
}

impl<T> PerProcess<T> {
    /// Nothing yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(null_mut()), value: PhantomData }
    }

    /// This process's value. If there is none yet, `make` makes it from the parent's value, if
    /// there was one. Threads that do not exist in this process may hold the parent value's locks.
    pub fn get_or(&self, make: impl Fn(Option<&T>) -> T) -> &T {
        let epoch = epoch();
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: an entry is freed only by `drop`, when nobody has a reference to `self` any
            // more.
            let entry = unsafe { current.as_ref() };
            if let Some(entry) = entry.filter(|entry| entry.epoch == epoch) {
                return &entry.value;
            }
            let value = make(entry.map(|entry| &entry.value));
            let fresh = Box::into_raw(Box::new(Remembered { epoch, value }));
            if self.current.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: made above, and seen by nobody.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

impl<T: Default> PerProcess<T> {
    /// This process's value, a fresh one in a child.
    pub fn get(&self) -> &T {
        self.get_or(|_| T::default())
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let current = *self.current.get_mut();
        // SAFETY: as in `get_or`; the box is this value's own.
        if let Some(entry) = unsafe { current.as_ref() }
            && entry.epoch == epoch()
        {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(current) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, WaitOptions};
    use std::sync::Mutex;

    /// Whether `test` holds in a forked child.
    fn holds_in_child(test: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child waits for no lock of its parent's threads, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = i32::from(!test());
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(status) };
        }
        let (_, status) =
            rustix::process::waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap().unwrap();
        status.exit_status() == Some(0)
    }

    #[test]
    fn a_child_has_another_epoch() {
        let ours = epoch();
        assert_eq!(epoch(), ours);
        assert!(holds_in_child(|| epoch() != ours && epoch() == epoch()));
        assert!(holds_in_child(|| {
            let child = epoch();
            holds_in_child(|| epoch() != child && epoch() != ours)
        }));
        assert_eq!(epoch(), ours);
    }

    #[test]
    fn a_child_does_not_wait_for_its_parents_locks() {
        let shared: PerProcess<Mutex<u32>> = PerProcess::new();
        let mine = Mine::of_this_process();
        let mut held = shared.get().lock().unwrap();
        *held = 7;
        assert!(holds_in_child(|| !mine.is_mine()
            && mine.check("it", "make another").unwrap_err().to_string().contains("make another")
            && *shared.get().lock().unwrap() == 0));
        assert!(holds_in_child(|| {
            let seen = shared.get_or(|older| Mutex::new(u32::from(older.unwrap().try_lock().is_err())));
            *seen.lock().unwrap() == 1
        }));
        drop(held);
        assert!(mine.is_mine() && *shared.get().lock().unwrap() == 7);
    }
}
