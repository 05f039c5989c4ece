//! Space on the node's disk that is kept for metadata.
//!
//! Files of users fill the disk. Then a log that could not grow would stop all metadata, and nobody
//! could remove a file any more. So a file of some size lies in the folder from the start, and
//! gives its bytes to the log when the disk is full. Meanwhile nothing new is made; what is removed
//! goes on. The file grows again when there is space.

use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The reserve of a large disk.
const BYTES_MAX: u64 = 64 << 20;
/// The part of a small disk: one of so many.
const PART: u64 = 16;
/// What is given at a time.
const STEP: u64 = 1 << 20;

/// The reserve of a disk.
pub struct Reserve {
    file: OwnedFd,
    whole: u64,
    left: Mutex<u64>,
    low: AtomicBool,
}

impl Reserve {
    /// Takes the reserve in `folder`, as far as the disk has room.
    pub fn open(folder: BorrowedFd<'_>) -> std::io::Result<Reserve> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(folder, "reserve", flags, Mode::from_raw_mode(0o600))?;
        let disk = rustix::fs::fstatvfs(&file)?;
        let whole = (disk.f_blocks * disk.f_frsize / PART).min(BYTES_MAX) / STEP * STEP;
        let left = Mutex::new(rustix::fs::fstat(&file)?.st_size as u64);
        let reserve = Reserve { file, whole, left, low: AtomicBool::new(true) };
        reserve.refill();
        Ok(reserve)
    }

    /// Whether the disk is so full that the reserve had to be used.
    pub fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    /// Whether less than half of it is left.
    pub fn is_nearly_out(&self) -> bool {
        *crate::handles::lock(&self.left) < self.whole / 2
    }

    /// Gives some bytes back to the disk. False if there are none left.
    pub fn give(&self) -> bool {
        let mut left = crate::handles::lock(&self.left);
        self.low.store(true, Ordering::Relaxed);
        let less = left.saturating_sub(STEP);
        let given = *left > 0 && rustix::fs::ftruncate(&self.file, less).is_ok();
        if given {
            *left = less;
        }
        given
    }

    /// Takes back what was given, if the disk has room again.
    pub fn refill(&self) {
        if !self.is_low() {
            return;
        }
        let mut left = crate::handles::lock(&self.left);
        let Ok(disk) = rustix::fs::fstatvfs(&self.file) else { return };
        let free = disk.f_bavail * disk.f_frsize;
        let missing = self.whole.saturating_sub(*left);
        if free < missing + self.whole / 2 {
            return;
        }
        let flags = FallocateFlags::empty();
        let taken = missing == 0 || rustix::fs::fallocate(self.file.as_fd(), flags, 0, self.whole).is_ok();
        if taken {
            *left = self.whole.max(*left);
            self.low.store(false, Ordering::Relaxed);
        }
    }
}
