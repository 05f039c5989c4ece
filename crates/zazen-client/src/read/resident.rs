//! Whether a file's bytes are in memory, asked without touching the disk.
//!
//! A read with `RWF_NOWAIT` cannot be used: it does not wait, but it may start a read-ahead.

use std::os::fd::{AsRawFd, OwnedFd};

/// The system call's number, which is the same on all architectures that this runs on; Linux 6.5
/// brought it.
const CACHESTAT: libc::c_long = 451;
const PAGE: u64 = 4096;

/// `struct cachestat_range`
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat`, in pages
#[repr(C)]
#[derive(Default)]
struct Cached {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether all of `length` bytes from `offset` on are in memory. `false` also if the kernel does
/// not report it, because it is too old or the file belongs to another user.
pub(crate) fn is_resident(file: &OwnedFd, offset: u64, length: u64) -> bool {
    if length == 0 {
        return true;
    }
    let (range, mut found) = (Range { offset, length }, Cached::default());
    // SAFETY: the descriptor is open; both pointers are to live values of the layouts that the call
    // expects, of which it writes the second only; the last argument is reserved flags.
    let outcome = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut found, 0) };
    outcome == 0 && found.cached >= (offset + length).div_ceil(PAGE) - offset / PAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_was_written_is_in_memory_and_what_is_not_there_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("frame");
        std::fs::write(&path, vec![1; 10_000]).unwrap();
        let file = OwnedFd::from(File::open(&path).unwrap());
        if !is_resident(&file, 0, 1) {
            println!("skipped: this kernel does not tell");
            return;
        }
        for (offset, length, expected) in
            [(0, 10_000, true), (9_999, 1, true), (5, 0, true), (0, 20_000, false), (1 << 20, 1, false)]
        {
            assert_eq!(is_resident(&file, offset, length), expected, "{length} bytes from {offset}");
        }
    }
}
