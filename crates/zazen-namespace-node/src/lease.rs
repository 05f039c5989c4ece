//! Asks the kernel who uses a file.

use std::fs::File;
use std::os::fd::AsRawFd;

/// `F_SETSIG` of Linux, which libc does not name.
const F_SETSIG: libc::c_int = 10;

/// Whether nothing but `file` itself has the file open or mapped, on this machine, now. False if
/// the kernel does not say.
///
/// The kernel gives a write lease on those terms only. The lease is given back at once; whoever
/// opens the file meanwhile waits for that.
pub(crate) fn is_only_user(file: &File) -> bool {
    let set = |command: libc::c_int, value: libc::c_int| {
        // SAFETY: fcntl with a number as its argument reads and writes no memory of this process.
        unsafe { libc::fcntl(file.as_raw_fd(), command, value) == 0 }
    };
    // Whoever opens the file meanwhile makes the kernel send a signal. SIGURG is ignored by
    // default; SIGIO would end the process.
    let given = set(F_SETSIG, libc::SIGURG) && set(libc::F_SETLEASE, libc::c_int::from(libc::F_WRLCK));
    if given {
        set(libc::F_SETLEASE, libc::c_int::from(libc::F_UNLCK));
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};

    #[test]
    fn a_descriptor_and_a_mapping_alone_both_count() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        std::fs::write(&path, [1; 4096]).expect("a file");
        let open = || File::options().read(true).write(true).open(&path).expect("the file");
        let file = open();
        assert!(is_only_user(&file) && is_only_user(&file));
        let reader = File::open(&path).expect("the file");
        assert!(!is_only_user(&file));
        drop(reader);
        let mapped = open();
        let (protection, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a fresh mapping of a file of that length, unmapped below, which nothing refers
        // to.
        let map = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, shared, &mapped, 0) };
        let map = map.expect("a mapping");
        drop(mapped);
        assert!(!is_only_user(&file));
        // SAFETY: as above.
        unsafe { rustix::mm::munmap(map, 4096) }.expect("unmapped");
        assert!(is_only_user(&file));
    }
}
