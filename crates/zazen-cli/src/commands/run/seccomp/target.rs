//! The program as seen from outside: its memory, who it is, where it is.
//!
//! Invariant: what is read here is believed only after the listener said that the call still waits.

use super::far::Identity;
use std::os::unix::ffi::OsStringExt;

/// One thread of the program.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) tid: i32,
}

/// Bytes of a path with its NUL.
const PATH_MAX: usize = 4096;
const PAGE: u64 = 4096;

impl Target {
    /// False if not all of it could be read.
    pub(super) fn read(self, address: u64, to: &mut [u8]) -> bool {
        let here = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: to.len() };
        // SAFETY: room for as much as is said; the kernel checks the other side.
        let got = unsafe { libc::process_vm_readv(self.tid, &raw const here, 1, &raw const there, 1, 0) };
        got == to.len() as isize
    }

    /// EFAULT if not all of it could be written.
    pub(super) fn write(self, address: u64, from: &[u8]) -> Result<(), i32> {
        if from.is_empty() {
            return Ok(());
        }
        let here = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: from.len() };
        // SAFETY: as many bytes as are said; the kernel checks the other side.
        let put = unsafe { libc::process_vm_writev(self.tid, &raw const here, 1, &raw const there, 1, 0) };
        if put == from.len() as isize { Ok(()) } else { Err(libc::EFAULT) }
    }

    /// Whole numbers of 8 bytes.
    pub(super) fn words<const COUNT: usize>(self, address: u64) -> Result<[u64; COUNT], i32> {
        let mut bytes = vec![0; COUNT * 8];
        if !self.read(address, &mut bytes) {
            return Err(libc::EFAULT);
        }
        let mut words = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("chunks of eight bytes")));
        Ok(std::array::from_fn(|_| words.next().unwrap_or(0)))
    }

    /// A string without its NUL; `None` where there is none of a path's size.
    pub(super) fn string(self, address: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while text.len() < PATH_MAX {
            let at = address.checked_add(text.len() as u64)?;
            // What lies on the next page may not be there.
            let length = ((PAGE - at % PAGE) as usize).min(PATH_MAX - text.len()).min(256);
            let begin = text.len();
            text.resize(begin + length, 0);
            if !self.read(at, &mut text[begin..]) {
                return None;
            }
            if let Some(end) = text[begin..].iter().position(|byte| *byte == 0) {
                text.truncate(begin + end);
                return Some(text);
            }
        }
        None
    }

    /// Where a link of its /proc leads: `cwd`, `fd/3`.
    pub(super) fn link(self, what: &str) -> Option<Vec<u8>> {
        let name = std::fs::read_link(format!("/proc/{}/{what}", self.tid)).ok()?;
        Some(name.into_os_string().into_vec())
    }

    pub(super) fn status(self) -> Result<Status, i32> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.tid)).map_err(|_| libc::ESRCH)?;
        Ok(Status { text })
    }
}

/// /proc/PID/status.
pub(super) struct Status {
    text: String,
}

impl Status {
    fn field(&self, name: &str) -> &str {
        let found = self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or_default().trim()
    }

    fn number(&self, name: &str, column: usize) -> u32 {
        self.field(name).split_whitespace().nth(column).and_then(|word| word.parse().ok()).unwrap_or(u32::MAX)
    }

    pub(super) fn umask(&self) -> u32 {
        u32::from_str_radix(self.field("Umask"), 8).unwrap_or(0o022)
    }

    pub(super) fn process(&self) -> i32 {
        self.number("Tgid", 0).cast_signed()
    }

    pub(super) fn parent(&self) -> i32 {
        self.number("PPid", 0).cast_signed()
    }

    /// Who it is for files; with `real`, who started it.
    pub(super) fn identity(&self, real: bool) -> Identity {
        let column = if real { 0 } else { 3 };
        let groups = self.field("Groups").split_whitespace().filter_map(|group| group.parse().ok());
        Identity {
            uid: self.number("Uid", column),
            gid: self.number("Gid", column),
            groups: groups.collect(),
        }
    }

    /// Whether a signal is there that it would handle now.
    pub(super) fn is_signalled(&self) -> bool {
        let set = |name| u64::from_str_radix(self.field(name), 16).unwrap_or(0);
        (set("SigPnd") | set("ShdPnd")) & set("SigCgt") & !set("SigBlk") != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_at_their_nul_or_at_the_end_of_memory() {
        let own = Target { tid: std::process::id().cast_signed() };
        let text = [b'x'; 5000];
        assert_eq!(own.string(text.as_ptr() as u64), None);
        let mut long = vec![b'y'; 4095];
        long.push(0);
        assert_eq!(own.string(long.as_ptr() as u64).unwrap(), &long[..4095]);
        assert_eq!(own.string(c"abc".as_ptr() as u64).unwrap(), b"abc");
        assert_eq!(own.string(c"".as_ptr() as u64).unwrap(), b"");
        assert_eq!(own.string(8), None);
        // A page with nothing behind it.
        // SAFETY: a new mapping of two pages, of which the second is taken away.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page =
                libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            libc::munmap(page.wrapping_byte_add(4096), 4096);
            let end = page.wrapping_byte_add(4092).cast::<u8>();
            std::ptr::copy_nonoverlapping(c"end".as_ptr().cast(), end, 4);
            assert_eq!(own.string(end as u64).unwrap(), b"end");
            *end.add(3) = b'!';
            assert_eq!(own.string(end as u64), None);
        }
    }

    #[test]
    fn status_says_who() {
        let text = "Umask:\t0027\nTgid:\t7\nPPid:\t3\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n\
            SigPnd:\t0000000000000000\nShdPnd:\t0000000000002000\nSigBlk:\t0000000000000000\nSigCgt:\t0000000000002000\n";
        let status = Status { text: text.to_owned() };
        assert_eq!((status.umask(), status.process(), status.parent()), (0o027, 7, 3));
        assert_eq!(status.identity(false), Identity { uid: 4, gid: 8, groups: vec![9, 10] });
        assert_eq!(status.identity(true), Identity { uid: 1, gid: 5, groups: vec![9, 10] });
        assert!(status.is_signalled());
    }
}
