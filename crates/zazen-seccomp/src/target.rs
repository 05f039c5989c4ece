//! The program as seen from outside: its memory, its identity, its directories.
//!
//! A thread's number may mean another thread as soon as its call no longer waits. Invariants: a
//! thread's folder in /proc is opened once, and used only after the listener has said that the call
//! still waits; what is read from its memory is used only after the listener was asked again; what
//! is written goes to the memory of that folder's process or nowhere.

use crate::identity::Identity;
use crate::notify::{Listener, Notice, errno};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fstat, openat, readlinkat, statat, statx};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use zazen_forward_api::paths::PATH_MAX;

/// One thread of the program, or of this one.
pub(crate) struct Target {
    pub(crate) tid: i32,
    /// The call that it makes, and the listener, which knows whether the call still waits.
    call: Option<(&'static Listener, Notice)>,
    /// Its folder in /proc, opened when first needed. It stays this thread's, whoever gets its
    /// number.
    folder: OnceLock<OwnedFd>,
}

/// A directory, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whereabouts {
    device: u64,
    inode: u64,
}

/// A program's root directory and its mount, whose number differs between mount namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    device: (u32, u32),
    inode: u64,
    mount: u64,
}

impl From<&rustix::fs::Stat> for Whereabouts {
    fn from(stat: &rustix::fs::Stat) -> Whereabouts {
        Whereabouts { device: stat.st_dev, inode: stat.st_ino }
    }
}

const PAGE: u64 = 4096;

impl Target {
    /// The thread that makes the call.
    pub(crate) fn of_call(listener: &'static Listener, notice: Notice) -> Target {
        Target { tid: notice.tid, call: Some((listener, notice)), folder: OnceLock::new() }
    }

    /// The process of this number, now; ESRCH if there is none.
    pub(crate) fn by_number(process: i32) -> Result<Target, i32> {
        let target = Target { tid: process, call: None, folder: OnceLock::new() };
        target.folder().map(drop)?;
        Ok(target)
    }

    /// This process.
    pub(crate) fn own() -> Target {
        Target { tid: std::process::id().cast_signed(), call: None, folder: OnceLock::new() }
    }

    /// Whether its call still waits. If not, nothing may be done for it.
    pub(crate) fn still_waits(&self) -> bool {
        self.call.as_ref().is_none_or(|(listener, notice)| listener.is_waiting(notice))
    }

    fn folder(&self) -> Result<&OwnedFd, i32> {
        if let Some(folder) = self.folder.get() {
            return Ok(folder);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(format!("/proc/{}", self.tid), flags, Mode::empty());
        let folder = folder.map_err(|_| libc::ESRCH)?;
        // Only now it is certain that the folder is this thread's.
        if !self.still_waits() {
            return Err(libc::ESRCH);
        }
        Ok(self.folder.get_or_init(|| folder))
    }

    fn text_of(&self, name: &str) -> Result<String, i32> {
        let file = openat(self.folder()?, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let (mut file, mut text) = (File::from(file.map_err(|_| libc::ESRCH)?), Vec::with_capacity(PATH_MAX));
        file.read_to_end(&mut text).map_err(|_| libc::ESRCH)?;
        // A program's name may hold any bytes.
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// False if not all of it could be read.
    pub(crate) fn read(&self, address: u64, to: &mut [u8]) -> bool {
        let here = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: to.len() };
        // SAFETY: room for as much as is said; the kernel checks the other side.
        let got = unsafe { libc::process_vm_readv(self.tid, &raw const here, 1, &raw const there, 1, 0) };
        got == to.len() as isize
    }

    /// EFAULT if not all of it could be written.
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> Result<(), i32> {
        if from.is_empty() {
            return Ok(());
        }
        // By number (process_vm_writev) this could be another process's memory: between asking and
        // writing the program may be killed.
        let memory = openat(self.folder()?, "mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let memory = File::from(memory.map_err(|_| libc::EFAULT)?);
        // If it executed another program before the memory was opened, its call no longer waits.
        if !self.still_waits() {
            return Err(libc::ESRCH);
        }
        memory.write_all_at(from, address).map_err(|_| libc::EFAULT)
    }

    /// Whole numbers of 8 bytes.
    pub(crate) fn words<const COUNT: usize>(&self, address: u64) -> Result<[u64; COUNT], i32> {
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
    pub(crate) fn string(&self, address: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while text.len() < PATH_MAX {
            let at = address.checked_add(text.len() as u64)?;
            // The next page may not be mapped.
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

    /// The target of a link in its /proc folder, such as `cwd` or `fd/3`.
    pub(crate) fn link(&self, what: &str) -> Option<Vec<u8>> {
        readlinkat(self.folder().ok()?, what, Vec::new()).ok().map(std::ffi::CString::into_bytes)
    }

    /// The directory that a link in its /proc folder leads to; ENOTDIR if it is no directory.
    pub(crate) fn directory(&self, what: &str) -> Result<Whereabouts, i32> {
        let stat = statat(self.folder()?, what, AtFlags::empty()).map_err(rustix::io::Errno::raw_os_error)?;
        match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::Directory => Ok(Whereabouts::from(&stat)),
            _ => Err(libc::ENOTDIR),
        }
    }

    /// Its view: programs with another view see other files by the same paths.
    pub(crate) fn view(&self) -> Result<View, i32> {
        let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
        let root = statx(self.folder()?, "root", AtFlags::empty(), wanted).map_err(|_| libc::ESRCH)?;
        let device = (root.stx_dev_major, root.stx_dev_minor);
        Ok(View { device, inode: root.stx_ino, mount: root.stx_mnt_id })
    }

    /// Its root directory.
    pub(crate) fn root(&self) -> Result<OwnedFd, i32> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(self.folder()?, "root", flags, Mode::empty()).map_err(rustix::io::Errno::raw_os_error)
    }

    /// Its descriptor `fd`, as an O_PATH descriptor.
    pub(crate) fn descriptor(&self, fd: i32) -> Result<OwnedFd, i32> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = openat(self.folder()?, format!("fd/{fd}"), flags, Mode::empty());
        opened.map_err(rustix::io::Errno::raw_os_error)
    }

    /// A copy of its descriptor `fd`: of the same open file description.
    pub(crate) fn copy_descriptor(&self, fd: i32) -> Result<OwnedFd, i32> {
        let process = self.status()?.process();
        let owned = |got: libc::c_long| {
            if got < 0 {
                return Err(errno());
            }
            // SAFETY: new, and nobody else's.
            Ok(unsafe { OwnedFd::from_raw_fd(got as i32) })
        };
        // SAFETY: numbers only.
        let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
        // Only now it is certain that the number is its process's.
        if !self.still_waits() {
            return Err(libc::ESRCH);
        }
        // SAFETY: a descriptor of ours and numbers.
        owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) })
    }

    pub(crate) fn status(&self) -> Result<Status, i32> {
        Ok(Status { text: self.text_of("status")? })
    }

    /// When it started, in ticks since boot: a number that is used again is not the same process.
    pub(crate) fn started(&self) -> Option<u64> {
        let text = self.text_of("stat").ok()?;
        // The name, in brackets, may have anything in it.
        text.get(text.rfind(')')? + 1..)?.split_whitespace().nth(19)?.parse().ok()
    }

    /// How long a file it may make; `None`: any.
    pub(crate) fn largest_file(&self) -> Option<u64> {
        let text = self.text_of("limits").ok()?;
        let limit = text.lines().find_map(|line| line.strip_prefix("Max file size"))?;
        limit.split_whitespace().next()?.parse().ok()
    }

    /// The living children of its process.
    pub(crate) fn children(&self) -> Vec<i32> {
        let open = |name: &str| {
            openat(self.folder().ok()?, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
        };
        let Some(Ok(threads)) = open("task").map(rustix::fs::Dir::new) else { return Vec::new() };
        let lists = threads.flatten().filter_map(|thread| {
            let name = thread.file_name().to_str().ok()?.to_owned();
            std::io::read_to_string(File::from(open(&format!("task/{name}/children"))?)).ok()
        });
        let numbers = |list: String| list.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        lists.flat_map::<Vec<i32>, _>(numbers).collect()
    }
}

/// The directory at `path` below the root directory `root`, if this thread may enter it.
pub(crate) fn enterable(root: &OwnedFd, path: &[u8]) -> Result<Whereabouts, i32> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = rustix::fs::ResolveFlags::IN_ROOT;
    let directory = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve);
    may_enter(&directory.map_err(rustix::io::Errno::raw_os_error)?)
}

/// Where `directory` is, if this thread may enter it.
pub(crate) fn may_enter(directory: &OwnedFd) -> Result<Whereabouts, i32> {
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: a descriptor of ours, an empty string, numbers.
    let may = unsafe {
        libc::syscall(libc::SYS_faccessat2, directory.as_raw_fd(), c"".as_ptr(), libc::X_OK, flags)
    };
    if may != 0 {
        return Err(errno());
    }
    let stat = fstat(directory).map_err(rustix::io::Errno::raw_os_error)?;
    Ok(Whereabouts::from(&stat))
}

/// /proc/PID/status.
pub(crate) struct Status {
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

    pub(crate) fn umask(&self) -> u32 {
        u32::from_str_radix(self.field("Umask"), 8).unwrap_or(0o022)
    }

    /// The rights of root's that it has, a bit each.
    pub(crate) fn capabilities(&self) -> u64 {
        u64::from_str_radix(self.field("CapEff"), 16).unwrap_or(0)
    }

    pub(crate) fn process(&self) -> i32 {
        self.number("Tgid", 0).cast_signed()
    }

    pub(crate) fn parent(&self) -> i32 {
        self.number("PPid", 0).cast_signed()
    }

    /// Its identity for files; with `real`, that of the user who started it.
    pub(crate) fn identity(&self, real: bool) -> Identity {
        let column = if real { 0 } else { 3 };
        let groups = self.field("Groups").split_whitespace().filter_map(|group| group.parse().ok());
        Identity {
            uid: self.number("Uid", column),
            gid: self.number("Gid", column),
            groups: groups.collect(),
        }
    }

    /// Whether a signal is pending that it would handle now.
    pub(crate) fn is_signalled(&self) -> bool {
        let set = |name| u64::from_str_radix(self.field(name), 16).unwrap_or(0);
        (set("SigPnd") | set("ShdPnd")) & set("SigCgt") & !set("SigBlk") != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_at_their_nul_or_at_the_end_of_memory() {
        let own = Target::own();
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
    fn nothing_is_read_of_or_written_to_who_got_a_number() {
        let mut first = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let target = Target::by_number(first.id().cast_signed()).unwrap();
        assert!(target.started().is_some() && target.link("cwd").is_some());
        first.kill().unwrap();
        first.wait().unwrap();
        // As if the number were this process's now: all that was of the first one is gone, and
        // nothing else is found.
        let target = Target { tid: std::process::id().cast_signed(), ..target };
        let word = 7_u64;
        assert_eq!(target.status().err(), Some(libc::ESRCH));
        assert_eq!((target.started(), target.link("cwd"), target.children()), (None, None, Vec::new()));
        assert!(target.view().is_err() && target.directory("cwd").is_err());
        assert!(target.write((&raw const word) as u64, &[0; 8]).is_err());
        assert_eq!(word, 7);
    }

    #[test]
    fn results_are_written_where_they_belong() {
        let (word, own) = ([0_u8; 4], Target::own());
        own.write(word.as_ptr() as u64, b"done").unwrap();
        assert_eq!(std::hint::black_box(&word), b"done");
        assert_eq!(own.write(8, b"x"), Err(libc::EFAULT));
        assert_eq!(own.view().unwrap(), own.view().unwrap());
        let enterable = |path: &str| enterable(&own.root().unwrap(), path.as_bytes());
        assert_eq!(enterable("/tmp").unwrap(), enterable("/../tmp/.").unwrap());
        assert_eq!(enterable("/proc/version"), Err(libc::ENOTDIR));
        assert_eq!(enterable("/no/such"), Err(libc::ENOENT));
    }

    #[test]
    fn status_says_who() {
        let text = "Umask:\t0027\nTgid:\t7\nPPid:\t3\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n\
                    SigPnd:\t0000000000000000\nShdPnd:\t0000000000002000\n\
                    SigBlk:\t0000000000000000\nSigCgt:\t0000000000002000\n";
        let status = Status { text: text.to_owned() };
        assert_eq!((status.umask(), status.process(), status.parent()), (0o027, 7, 3));
        assert_eq!(status.identity(false), Identity { uid: 4, gid: 8, groups: vec![9, 10] });
        assert_eq!(status.identity(true), Identity { uid: 1, gid: 5, groups: vec![9, 10] });
        assert!(status.is_signalled());
    }
}
