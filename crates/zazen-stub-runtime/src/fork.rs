//! Forks are noticed: a child must not use what its parent has connected.
//!
//! A page of memory that the kernel clears in a child says so, whichever system call made it. The number of forks
//! that this process is away from its first ancestor's state is its *epoch*.

use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A page that is zeros in a child; `None` where the kernel can't do it (before 4.14).
fn page() -> Option<&'static AtomicU64> {
    static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *PAGE.get_or_init(|| {
        // SAFETY: a fresh private page, never unmapped; an atomic number is at home in zeroed memory.
        unsafe {
            let bytes = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0);
            if page == libc::MAP_FAILED || libc::madvise(page, bytes, libc::MADV_WIPEONFORK) != 0 {
                return None;
            }
            Some(&*page.cast::<AtomicU64>())
        }
    })
}

/// Different in each process that a fork made of this one.
pub(crate) fn epoch() -> u64 {
    match page() {
        Some(page) => match page.load(Ordering::Relaxed) {
            0 => {
                let pid = u64::from(std::process::id());
                page.store(pid, Ordering::Relaxed);
                pid
            }
            epoch => epoch,
        },
        None => u64::from(std::process::id()),
    }
}

/// A value that each process has of its own: after a fork the child begins with a fresh one, and the parent's is
/// left alone, whatever its locks were doing.
pub(crate) struct PerProcess<T> {
    current: AtomicPtr<Entry<T>>,
}

struct Entry<T> {
    epoch: u64,
    value: T,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(null_mut()) }
    }

    pub(crate) fn get(&self) -> &T {
        let epoch = epoch();
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: an entry is freed only by `drop`, when nobody has a reference to `self` any more.
            if let Some(entry) = unsafe { current.as_ref() }
                && entry.epoch == epoch
            {
                return &entry.value;
            }
            let fresh = Box::into_raw(Box::new(Entry { epoch, value: T::default() }));
            if self.current.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: made above, and seen by nobody.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let current = *self.current.get_mut();
        // SAFETY: as in `get`; the box is this value's own.
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

    #[test]
    fn a_child_has_another_epoch() {
        let ours = epoch();
        assert_eq!(epoch(), ours);
        // SAFETY: the child calls nothing that could wait for a lock of its parent's threads, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(epoch() == ours));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        }
        assert_eq!(epoch(), ours);
    }
}
