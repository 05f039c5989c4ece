//! The blocking part of a directory as backing store. It runs on the watchdog's threads, with their
//! identity.
//!
//! Invariants: every path is resolved beneath a descriptor of the root, so no spelling and no
//! symbolic link leaves it. The root is looked up at each call, so a mount that vanished or was
//! replaced is `Unavailable`, never a set of missing files. Only regular files on file systems that
//! hold data are opened, and opening never waits for another process.

use crate::look::{now_ns, source_stat};
use crate::names::{bytes_of, text_of};
use crate::{Rights, SourceStat};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, RelPath, Result};

/// Stats slower than this (a network's round trip) are done in parallel.
const SLOW_STAT: Duration = Duration::from_micros(60);
/// Parallel stats, if they are slow or wait for the disk.
pub(crate) const STATS_AT_ONCE: usize = 8;
/// Looks that take longer than this on average wait for the disk now and then: a look at a file
/// that the kernel knows takes 1 to 2 µs, and one that it has to bring in 8 µs and the disk's time.
const COLD_STAT: Duration = Duration::from_micros(4);
/// Files that a thread brings in at a time.
const BROUGHT_AT_ONCE: usize = 64;
/// The number of stats after which this is decided.
const STATS_PROBED: usize = 4;
/// File systems that show the kernel's own state and hold no data, by the numbers in
/// `linux/magic.h` (proc, sysfs, debugfs, tracefs, securityfs, cgroup, cgroup2, bpf, devpts,
/// configfs). On proc, a daemon that acts for a user could open the daemon's own memory.
const KERNELS_OWN: [u64; 10] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x0027_e0eb,
    0x6367_7270,
    0xcafe_4a11,
    0x1cd1,
    0x6265_6570,
];

/// File systems on disks of this machine and in its memory, by the numbers in `linux/magic.h` (ext2
/// to ext4, xfs, btrfs, f2fs, tmpfs). No other machine can keep a call to them waiting.
const NEAR: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
/// For how long a folder that was on such a file system is taken to be there.
const NEAR_FOR: Duration = Duration::from_secs(1);

/// How to look at a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// By its name.
    Stat,
    /// By opening it for reading.
    Open,
}

/// Flags for opening a file to read. Without O_NONBLOCK, opening a FIFO, or a file on which another
/// process holds a lease, would wait for that process.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NOCTTY).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Which directory the root path led to when it was opened.
struct HeldRoot {
    device: u64,
    inode: u64,
    fd: Arc<OwnedFd>,
}

/// A directory as one identity sees it.
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    held: Mutex<Option<HeldRoot>>,
    /// The directory, by device and inode, in which something was found last. If the root path
    /// later leads to another directory and that one is empty, a mount has vanished. A directory
    /// that was emptied has not.
    populated: Mutex<Option<(u64, u64)>>,
    /// The kernel (or a sandbox around us) has no openat2.
    pub(crate) no_openat2: AtomicBool,
    spare_buffers: Mutex<Vec<Vec<u8>>>,
    /// The device of the file opened last, found to hold data.
    good_device: AtomicU64,
    /// The folder to which the way from the root was last found to be on one file system of this
    /// machine, and when.
    near: Mutex<Option<(RelPath, Instant)>>,
    /// The number of threads that help calls which do not wait.
    pub(crate) processors: usize,
    /// The last looks waited for the disk.
    waits: AtomicBool,
    pub(crate) traffic: Arc<Traffic>,
}

/// Reads and bytes, of all views of a directory together.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) reads: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Tree {
    pub(crate) fn new(root: PathBuf, traffic: Arc<Traffic>) -> Tree {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Tree {
            root,
            held: Mutex::default(),
            populated: Mutex::default(),
            no_openat2: AtomicBool::new(false),
            spare_buffers: Mutex::default(),
            good_device: AtomicU64::new(u64::MAX),
            near: Mutex::default(),
            processors: processors.min(STATS_AT_ONCE),
            waits: AtomicBool::new(false),
            traffic,
        }
    }

    pub(crate) fn spare_buffers(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.spare_buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self, why: &str) -> Error {
        let root = self.root.display();
        Error::new(ErrorKind::Unavailable, format!("backing directory {root} {why}; check its mount"))
    }

    /// A descriptor of the directory that the root path leads to now.
    fn root_fd(&self) -> Result<Arc<OwnedFd>> {
        let now = rustix::fs::stat(&self.root).map_err(|errno| self.root_error(errno))?;
        if !FileType::from_raw_mode(now.st_mode).is_dir() {
            return Err(self.gone("is not a directory"));
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(root) = held.as_ref().filter(|root| (root.device, root.inode) == (now.st_dev, now.st_ino))
        {
            return Ok(root.fd.clone());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(&self.root, flags, Mode::empty()).map_err(|errno| self.root_error(errno))?;
        let fd = Arc::new(fd);
        *held = Some(HeldRoot { device: now.st_dev, inode: now.st_ino, fd: fd.clone() });
        Ok(fd)
    }

    fn root_error(&self, errno: Errno) -> Error {
        match errno {
            Errno::NOENT | Errno::NOTDIR => self.gone("is not there"),
            Errno::STALE | Errno::NOTCONN | Errno::HOSTDOWN | Errno::IO => self.gone("does not answer"),
            errno => Error::io(format!("backing directory {}", self.root.display()), errno.into()),
        }
    }

    /// Opens `path` beneath the root. `NotFound` means that the root is there and the path isn't.
    fn open_beneath(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd> {
        let root = self.root_fd()?;
        let opened = self.open_from(&root, path, flags | OFlags::CLOEXEC);
        let opened = opened.map_err(|errno| self.path_error(path, errno))?;
        if !path.is_root() {
            self.is_populated();
        }
        Ok(opened)
    }

    fn open_from(&self, root: &OwnedFd, path: &RelPath, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let spelled = if path.is_root() { "." } else { path.as_str() };
        let mut tries_left = 8;
        while !self.no_openat2.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(root, spelled, flags, Mode::empty(), resolve) {
                // A rename elsewhere in the tree disturbed the walk.
                Err(Errno::AGAIN) if tries_left > 0 => tries_left -= 1,
                Err(Errno::NOSYS) => self.no_openat2.store(true, Ordering::Relaxed),
                // Either a sandbox forbids the call or the file system forbids the path. A test on
                // the root shows which.
                Err(Errno::PERM) => {
                    match rustix::fs::openat2(root, ".", OFlags::PATH, Mode::empty(), resolve) {
                        Ok(_) => return Err(Errno::PERM),
                        Err(_) => self.no_openat2.store(true, Ordering::Relaxed),
                    }
                }
                opened => return opened,
            }
        }
        open_without_links(root, spelled, flags)
    }

    fn path_error(&self, path: &RelPath, errno: Errno) -> Error {
        let full = self.root.join(path.as_str());
        let full = full.display();
        match errno {
            Errno::NOENT | Errno::NOTDIR if self.was_populated_elsewhere() && self.is_empty() => {
                self.gone("is empty, though it held files before")
            }
            Errno::XDEV => Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "{full} leads out of {} through a symbolic link; name the place that it leads to",
                    self.root.display()
                ),
            ),
            Errno::LOOP => Error::new(
                ErrorKind::PermissionDenied,
                format!("{full} is or passes through a symbolic link that cannot be followed here"),
            ),
            // The file was opened without waiting. Its lease (F_SETLEASE) is still held.
            Errno::AGAIN => Error::new(
                ErrorKind::Busy,
                format!("{full} is leased by another process, which was told to let go; try again"),
            ),
            // A stale handle, or another mount beneath the root, does not mean that the root has
            // vanished.
            Errno::STALE | Errno::NOTCONN | Errno::HOSTDOWN if rustix::fs::stat(&self.root).is_err() => {
                self.gone("does not answer")
            }
            errno => Error::io(full.to_string(), errno.into()),
        }
    }

    fn populated(&self) -> MutexGuard<'_, Option<(u64, u64)>> {
        self.populated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held_identity(&self) -> Option<(u64, u64)> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|root| (root.device, root.inode))
    }

    /// Notes that something was found in the directory that the root path leads to.
    fn is_populated(&self) {
        let here = self.held_identity();
        *self.populated() = here;
    }

    /// Whether files were found before, in another directory than the root path leads to now.
    fn was_populated_elsewhere(&self) -> bool {
        let here = self.held_identity();
        self.populated().is_some_and(|populated| Some(populated) != here)
    }

    fn is_empty(&self) -> bool {
        let names = self.root_fd().and_then(|root| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = self.open_from(&root, &RelPath::default(), flags);
            fd.map_err(|errno| self.root_error(errno))
        });
        let Ok(mut entries) = names.and_then(|fd| Dir::new(fd).map_err(|errno| self.root_error(errno)))
        else {
            return false;
        };
        !entries.any(|entry| entry.is_ok_and(|entry| !matches!(entry.file_name().to_bytes(), b"." | b"..")))
    }

    pub(crate) fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        let fd = self.open_beneath(path, OFlags::PATH)?;
        let now = now_ns();
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.path_error(path, errno))?;
        Ok(source_stat(&stat, now))
    }

    /// Stats `paths` beneath `folder`: one walk from the root for consecutive paths in one folder,
    /// then one or two calls for each name. Unless `all` are wanted, it stops early if each stat
    /// takes long, so the caller can do the rest in parallel.
    pub(crate) fn look_beneath(
        &self,
        how: Look,
        folder: &RelPath,
        paths: &[RelPath],
        all: bool,
    ) -> Result<Vec<Result<SourceStat>>> {
        let mut held: Option<(&str, OwnedFd)> = None;
        let mut stats = Vec::with_capacity(paths.len());
        let begun = Instant::now();
        for path in paths {
            if !all && stats.len() == STATS_PROBED && begun.elapsed() > SLOW_STAT * STATS_PROBED as u32 {
                break;
            }
            let stat = self.look_in(how, folder, &mut held, path);
            match stat {
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut) => {
                    return Err(error);
                }
                stat => stats.push(stat),
            }
        }
        Ok(stats)
    }

    /// Threads for looks that are not known to be slow.
    pub(crate) fn threads_for_looks(&self) -> usize {
        if self.waits.load(Ordering::Relaxed) { STATS_AT_ONCE } else { self.processors }
    }

    /// Notes that looks at so many files took this time, on `threads` threads.
    pub(crate) fn looked(&self, files: usize, threads: usize, time: Duration) {
        let threads = threads.min(self.processors) as u32;
        self.waits.store(time * threads > COLD_STAT * files as u32, Ordering::Relaxed);
    }

    fn near(&self) -> MutexGuard<'_, Option<(RelPath, Instant)>> {
        self.near.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the root and the folder were found on one file system of this machine a moment ago.
    pub(crate) fn is_known_near(&self, folder: &RelPath) -> bool {
        self.near().as_ref().is_some_and(|(near, found)| near == folder && found.elapsed() < NEAR_FOR)
    }

    /// The folder, if it was near a moment ago and the walk from the root enters no other mount.
    fn near_folder(&self, folder: &RelPath) -> Option<OwnedFd> {
        if !self.is_known_near(folder) {
            return None;
        }
        let root = self.root_fd().ok()?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let spelled = if folder.is_root() { "." } else { folder.as_str() };
        rustix::fs::openat2(&*root, spelled, flags, Mode::empty(), resolve).ok()
    }

    /// Brings in what the file system knows of `paths`, files in `folder` itself, if the folder is
    /// near. Threads that are given the same `next` share the work, in the order of the paths. A
    /// thread stops at files that the kernel has in memory: the next ones probably are there too.
    pub(crate) fn bring_in(&self, folder: &RelPath, paths: &[RelPath], next: &AtomicUsize) {
        let Some(fd) = self.near_folder(folder) else { return };
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        loop {
            let from = next.fetch_add(BROUGHT_AT_ONCE, Ordering::Relaxed);
            let Some(rest) = paths.get(from..).filter(|rest| !rest.is_empty()) else { return };
            let begun = Instant::now();
            for path in rest.iter().take(BROUGHT_AT_ONCE).filter(|path| !path.as_str().contains('/')) {
                // Whoever looks at it finds out what is wrong with it.
                let _ = rustix::fs::statat(&fd, path.as_str(), flags);
            }
            if begun.elapsed() < COLD_STAT * BROUGHT_AT_ONCE as u32 {
                return;
            }
        }
    }

    /// Stats `paths`, all of them files in `folder` itself, if the root and the folder were found
    /// on one file system of this machine a moment ago. Such calls wait for no other machine, so
    /// they need no thread that may be left behind. The walk from the root enters no other mount.
    /// `None` if one of them needs the long way: through a link, to tell why it fails, or because
    /// the folder is another one by now.
    pub(crate) fn look_near(&self, folder: &RelPath, paths: &[RelPath]) -> Option<Vec<SourceStat>> {
        let fd = self.near_folder(folder)?;
        let look = |path: &RelPath| {
            if path.is_root() || path.as_str().contains('/') {
                return None;
            }
            let now = now_ns();
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            let stat = rustix::fs::statat(&fd, path.as_str(), flags).ok()?;
            let is_link = FileType::from_raw_mode(stat.st_mode).is_symlink();
            (!is_link).then(|| source_stat(&stat, now))
        };
        paths.iter().map(look).collect()
    }

    /// For each of these folders in `folder`: whether a walk to it stays on this machine.
    pub(crate) fn near_folders(&self, folder: &RelPath, inner: &[RelPath]) -> Result<Vec<bool>> {
        self.root_fd()?;
        let root = self.root_is_near();
        let is_near = |inner: &RelPath| {
            let fd = self.open_beneath(&folder.join(inner.as_str())?, OFlags::PATH | OFlags::DIRECTORY)?;
            Ok(self.is_on_root(&fd))
        };
        inner.iter().map(|inner| Ok(root && is_near(inner)?)).collect()
    }

    /// Whether a walk to the root, and from there to this folder, stays on this machine: all
    /// folders above the root are on file systems of this machine, and the folder is on the root's.
    fn is_near(&self, folder: &OwnedFd) -> bool {
        self.is_on_root(folder) && self.root_is_near()
    }

    fn is_on_root(&self, folder: &OwnedFd) -> bool {
        let root = self.held_identity().map(|(device, _)| device);
        is_on_this_machine(folder) && rustix::fs::fstat(folder).is_ok_and(|found| Some(found.st_dev) == root)
    }

    fn root_is_near(&self) -> bool {
        let is_near = |path: &Path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            path.as_os_str().is_empty()
                || rustix::fs::open(path, flags, Mode::empty()).is_ok_and(|fd| is_on_this_machine(&fd))
        };
        self.root.ancestors().all(is_near)
            && self.root.canonicalize().is_ok_and(|real| real.ancestors().all(is_near))
    }

    fn look_in<'a>(
        &self,
        how: Look,
        folder: &RelPath,
        held: &mut Option<(&'a str, OwnedFd)>,
        path: &'a RelPath,
    ) -> Result<SourceStat> {
        let (inner, name) = path.as_str().rsplit_once('/').unwrap_or(("", path.as_str()));
        if held.as_ref().is_none_or(|(of, _)| *of != inner) {
            let fd = self.open_beneath(&folder.join(inner)?, OFlags::PATH | OFlags::DIRECTORY)?;
            if inner.is_empty() && !self.is_known_near(folder) && self.is_near(&fd) {
                *self.near() = Some((folder.clone(), Instant::now()));
            }
            *held = Some((inner, fd));
        }
        let whole = || folder.join(path.as_str());
        let by_walk = || match how {
            Look::Stat => self.stat(&whole()?),
            Look::Open => self.open_file(&whole()?).map(|(_, stat)| stat),
        };
        let Some((_, fd)) = held.as_ref().filter(|_| !path.is_root()) else { return by_walk() };
        // Only the kernel's own walk may follow a link, because only that walk stays beneath the
        // root.
        match how {
            Look::Stat => {
                let now = now_ns();
                match rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
                    Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_symlink() => by_walk(),
                    Ok(stat) => Ok(source_stat(&stat, now)),
                    Err(errno) => Err(self.path_error(&whole()?, errno)),
                }
            }
            Look::Open => match rustix::fs::openat(fd, name, READ | OFlags::NOFOLLOW, Mode::empty()) {
                Err(Errno::LOOP) => by_walk(),
                Ok(fd) => self.regular(&whole()?, &fd),
                Err(errno) => Err(self.path_error(&whole()?, errno)),
            },
        }
    }

    pub(crate) fn open_file(&self, path: &RelPath) -> Result<(OwnedFd, SourceStat)> {
        let fd = self.open_beneath(path, READ)?;
        let stat = self.regular(path, &fd)?;
        Ok((fd, stat))
    }

    /// What the opened `path` looks like; an error if frames cannot be in such a file.
    fn regular(&self, path: &RelPath, fd: &OwnedFd) -> Result<SourceStat> {
        let now = now_ns();
        let stat = rustix::fs::fstat(fd).map_err(|errno| self.path_error(path, errno))?;
        let refuse = |why: &str| {
            let full = self.root.join(path.as_str());
            Err(Error::new(ErrorKind::InvalidArgument, format!("{} {why}", full.display())))
        };
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return refuse("is not a regular file");
        }
        if stat.st_dev != self.good_device.load(Ordering::Relaxed) {
            if self.is_kernels_own(path, fd)? {
                return refuse(
                    "shows the kernel's state, which is not served; give a directory that holds data",
                );
            }
            self.good_device.store(stat.st_dev, Ordering::Relaxed);
        }
        Ok(source_stat(&stat, now))
    }

    fn is_kernels_own(&self, path: &RelPath, fd: &OwnedFd) -> Result<bool> {
        let of = rustix::fs::fstatfs(fd).map_err(|errno| self.path_error(path, errno))?;
        Ok(KERNELS_OWN.contains(&(of.f_type as u64 & 0xffff_ffff)))
    }

    /// Whether the kernel lets this thread use `path` with these rights.
    pub(crate) fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        let fd = match self.open_beneath(path, OFlags::PATH) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(false),
            opened => opened?,
        };
        let mode = [(Rights::READ, libc::R_OK), (Rights::WRITE, libc::W_OK), (Rights::SEARCH, libc::X_OK)]
            .into_iter()
            .filter(|(right, _)| rights.contains(*right))
            .fold(0, |mode, (_, bit)| mode | bit);
        let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
        // SAFETY: a descriptor that is open during the call, an empty string that ends with a zero,
        // and numbers. libc's own function would ask for the real user where the kernel lacks the
        // call; this fails instead.
        let got = unsafe { libc::syscall(libc::SYS_faccessat2, fd.as_raw_fd(), c"".as_ptr(), mode, flags) };
        if got == 0 {
            return Ok(true);
        }
        let cause = std::io::Error::last_os_error();
        match cause.raw_os_error() {
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => Ok(false),
            Some(libc::ENOSYS) => Err(Error::new(
                ErrorKind::Unsupported,
                "zazend cannot ask the kernel what another user may do before Linux 5.8; use a newer kernel",
            )),
            _ => Err(Error::io(self.root.join(path.as_str()).display().to_string(), cause)),
        }
    }

    /// The names in a directory; `None` if they take more than `bytes_max` of memory.
    pub(crate) fn list(
        &self,
        path: &RelPath,
        files_only: bool,
        bytes_max: u64,
    ) -> Result<Option<Vec<String>>> {
        let fd = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if self.is_kernels_own(path, &fd)? {
            let full = self.root.join(path.as_str());
            let what = format!("{} shows the kernel's state, which is not served", full.display());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let mut entries = Dir::new(fd).map_err(|errno| self.path_error(path, errno))?;
        let (mut names, mut is_empty, mut bytes) = (Vec::new(), true, 0);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| self.path_error(path, errno))?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            is_empty = false;
            if files_only && entry.file_type() == FileType::Directory {
                continue;
            }
            let name = text_of(entry.file_name().to_bytes());
            // Some file systems do not say of what type their entries are.
            if files_only && entry.file_type() == FileType::Unknown {
                let fd = entries.fd().map_err(|errno| self.path_error(path, errno))?;
                let stat = rustix::fs::statat(fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                if stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
                    continue;
                }
            }
            bytes += bytes_of(&name);
            if bytes > bytes_max {
                return Ok(None);
            }
            names.push(name.into_owned());
        }
        if !is_empty {
            self.is_populated();
        } else if path.is_root() && self.was_populated_elsewhere() {
            return Err(self.gone("is empty, though it held files before"));
        }
        Ok(Some(names))
    }
}

fn is_on_this_machine(fd: &OwnedFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|of| NEAR.contains(&(of.f_type as u64 & 0xffff_ffff)))
}

/// For kernels without openat2: the same walk, one component at a time, refusing every symbolic
/// link.
fn open_without_links(root: &OwnedFd, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    for folder in folders.split('/').filter(|folder| !folder.is_empty()) {
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from = at.as_ref().map_or(root.as_fd(), |fd| fd.as_fd());
        at = Some(rustix::fs::openat(from, folder, step, Mode::empty())?);
    }
    let from = at.as_ref().map_or(root.as_fd(), |fd| fd.as_fd());
    let fd = rustix::fs::openat(from, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    // O_PATH with O_NOFOLLOW opens the link itself.
    if flags.contains(OFlags::PATH) && FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode).is_symlink() {
        return Err(Errno::LOOP);
    }
    Ok(fd)
}
