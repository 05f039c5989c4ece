//! A directory of the machine as a [`Disk`].
//!
//! Every path is resolved beneath the root's descriptor with `openat2` (`RESOLVE_BENEATH`, no
//! symbolic and no magic links), so that neither spelling nor a planted link leads out of it. Where
//! the kernel lacks `openat2` (before 5.6, or filtered), each component is opened with `O_NOFOLLOW`
//! instead; the result is the same.
//!
//! Nothing that another user could have written is trusted. The root and the folders above it are
//! checked when the disk is made, the folders of a dataset when the dataset is opened, and each
//! file when it is opened.

use crate::disk::{Disk, DiskFile, DiskPath, FileStat, MARK_BIT};
use crate::ownership::{self, Trust};
use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags,
    Timespec, Timestamps,
};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_core::limits::OWN_DIR;
use zazen_core::{Error, ErrorKind, RelPath, Result};

const SECOND_NS: i64 = 1_000_000_000;

/// A directory tree of the machine. Shared by threads.
pub struct RealDisk {
    root: PathBuf,
    root_fd: OwnedFd,
    trust: Trust,
    lock: Mutex<Option<OwnedFd>>,
    no_openat2: AtomicBool,
}

/// An open file of a [`RealDisk`].
pub struct RealFile {
    file: File,
    path: PathBuf,
}

impl RealDisk {
    /// The tree at `root`, which is made if it doesn't exist. `root` itself may be or pass through
    /// a symbolic link.
    ///
    /// `Config` if another user than root and this process's could change it, or a folder above it.
    pub fn new(root: &Path) -> Result<RealDisk> {
        let what = || format!("cache root {}", root.display());
        let trust = Trust::of_this_process();
        // Check before anything is made there, and again afterwards.
        ownership::check(root, trust).map_err(|error| error.within(what()))?;
        if !root.is_dir() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(root);
            made.map_err(|cause| Error::io(format!("make {}", what()), cause))?;
            ownership::check(root, trust).map_err(|error| error.within(what()))?;
        }
        let disk = RealDisk::as_it_is(root)?;
        close_root(&disk.root)?;
        Ok(disk)
    }

    /// The tree at `root` for one who only reads: nothing is made, and modes stay as they are.
    pub fn as_it_is(root: &Path) -> Result<RealDisk> {
        let what = || format!("cache root {}", root.display());
        let trust = Trust::of_this_process();
        ownership::check(root, trust).map_err(|error| error.within(what()))?;
        let root = root.canonicalize().map_err(|cause| Error::io(what(), cause))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root_fd = rustix::fs::openat(CWD, &root, flags, Mode::empty())
            .map_err(|errno| failed(errno, "open", root.display()))?;
        let disk =
            RealDisk { root, root_fd, trust, lock: Mutex::new(None), no_openat2: AtomicBool::new(false) };
        disk.check_folders(&DiskPath::own_dir(&RelPath::default()))?;
        Ok(disk)
    }

    /// What [`RealDisk::new`] would refuse about `root`, without making it.
    pub fn check_root(root: &Path) -> Result<()> {
        let trust = Trust::of_this_process();
        let checked = match rustix::fs::stat(root) {
            Ok(stat) => ownership::check_folder(&stat, root, trust),
            Err(_) => Ok(()),
        };
        let checked = ownership::check(root, trust).and(checked);
        let checked =
            checked.and_then(|()| if root.is_dir() { open_root_to_close(root).map(drop) } else { Ok(()) });
        checked.map_err(|error| error.within(format!("cache root {}", root.display())))
    }

    /// The same without `openat2`, for kernels that lack it and for tests.
    pub fn without_openat2(root: &Path) -> Result<RealDisk> {
        let disk = RealDisk::new(root)?;
        disk.no_openat2.store(true, Ordering::Relaxed);
        Ok(disk)
    }

    fn absolute(&self, path: &DiskPath) -> PathBuf {
        self.root.join(path.as_str())
    }

    fn open_beneath(&self, path: &str, flags: OFlags, mode: Mode) -> std::result::Result<OwnedFd, Errno> {
        let path = if path.is_empty() { "." } else { path };
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if !self.no_openat2.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
            match rustix::fs::openat2(&self.root_fd, path, flags, mode, resolve) {
                // EAGAIN: a rename elsewhere raced with the resolution; the kernel asks to try
                // again.
                Err(Errno::AGAIN) => return self.open_beneath(path, flags, mode),
                Err(Errno::NOSYS | Errno::PERM) => self.no_openat2.store(true, Ordering::Relaxed),
                other => return other,
            }
        }
        self.open_by_component(path, flags, mode)
    }

    fn open_by_component(
        &self,
        path: &str,
        flags: OFlags,
        mode: Mode,
    ) -> std::result::Result<OwnedFd, Errno> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut held: Option<OwnedFd> = None;
        for part in folder.split('/').filter(|part| !part.is_empty()) {
            let at = held.as_ref().map_or(self.root_fd.as_fd(), |fd| fd.as_fd());
            held = Some(rustix::fs::openat(at, part, step, Mode::empty())?);
        }
        let at = held.as_ref().map_or(self.root_fd.as_fd(), |fd| fd.as_fd());
        rustix::fs::openat(at, name, flags, mode)
    }

    fn folder(&self, folder: &str) -> std::result::Result<OwnedFd, Errno> {
        self.open_beneath(folder, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
    }

    /// Opens `folder`, making what is missing of it.
    fn make_folder(&self, folder: &str) -> std::result::Result<OwnedFd, Errno> {
        match self.folder(folder) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let (above, name) = folder.rsplit_once('/').unwrap_or(("", folder));
        let above = self.make_folder(above)?;
        match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => self.folder(folder),
            Err(errno) => Err(errno),
        }
    }

    fn open_made(&self, path: &DiskPath, flags: OFlags, what: &str) -> Result<RealFile> {
        let mode = Mode::from_raw_mode(0o600);
        let mut opened = self.open_beneath(path.as_str(), flags, mode);
        if opened.as_ref().err() == Some(&Errno::NOENT) {
            opened =
                self.make_folder(path.split().0).and_then(|_| self.open_beneath(path.as_str(), flags, mode));
        }
        let fd = opened.map_err(|errno| self.in_the_way(errno, what, path))?;
        Ok(RealFile { file: File::from(fd), path: self.absolute(path) })
    }

    /// A file that only this process's user and root could have written. A file that is changed in
    /// place must have no second name, because that name could be another user's file.
    fn believed(&self, fd: OwnedFd, path: PathBuf, write: bool) -> Result<RealFile> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| failed(errno, "stat", path.display()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let text = format!("open {}: not a regular file; move it out of the cache", path.display());
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        ownership::check_file(&stat, &path, self.trust)?;
        if write && stat.st_nlink > 1 {
            let text = format!("{} has {} names, and is not believed", path.display(), stat.st_nlink);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(RealFile { file: File::from(fd), path })
    }

    fn rename_with(&self, from: &DiskPath, to: &DiskPath, flags: RenameFlags) -> Result<()> {
        let fail = |errno| self.in_the_way(errno, "name", to);
        let (from_folder, from_name) = from.split();
        let (to_folder, to_name) = to.split();
        let from_fd = self.folder(from_folder).map_err(|errno| failed(errno, "rename", from))?;
        let to_fd = self.make_folder(to_folder).map_err(fail)?;
        match rustix::fs::renameat_with(&from_fd, from_name, &to_fd, to_name, flags) {
            // The file system does not know NOREPLACE: look first; only foreigners could come in
            // between.
            Err(Errno::INVAL | Errno::NOSYS) if !flags.is_empty() => match self.stat(to)? {
                None => self.rename_with(from, to, RenameFlags::empty()),
                Some(_) => Err(fail(Errno::EXIST)),
            },
            other => other.map_err(fail),
        }
    }

    /// The error for a path at which something else is.
    fn in_the_way(&self, errno: Errno, what: &str, path: &DiskPath) -> Error {
        match errno {
            Errno::ISDIR | Errno::NOTDIR | Errno::EXIST | Errno::NOTEMPTY | Errno::LOOP => Error::new(
                ErrorKind::Conflict,
                format!(
                    "{what} {}: another file, directory or link is in the way ({errno}); \
                     move it out of the cache",
                    self.absolute(path).display()
                ),
            ),
            _ => failed(errno, what, self.absolute(path).display()),
        }
    }
}

fn failed(errno: Errno, what: &str, path: impl std::fmt::Display) -> Error {
    let cause = std::io::Error::from_raw_os_error(errno.raw_os_error());
    match errno {
        Errno::LOOP | Errno::XDEV => {
            let text = format!(
                "{what} {path}: a symbolic link lies on the way, and the cache follows none; remove it"
            );
            Error::new(ErrorKind::PermissionDenied, text).caused_by(cause)
        }
        _ => Error::io(format!("{what} {path}"), cause),
    }
}

/// Closes the root to all but its owner, because others must not read frames by their paths.
fn close_root(root: &Path) -> Result<()> {
    match open_root_to_close(root)? {
        Some(open) => rustix::fs::fchmod(&open, Mode::from_raw_mode(0o700))
            .map_err(|errno| failed(errno, "close to other users", root.display())),
        None => Ok(()),
    }
}

/// The root, if it is this user's and open to others. A folder with other things than a cache is
/// refused, because closing it would take them from their users.
fn open_root_to_close(root: &Path) -> Result<Option<OwnedFd>> {
    let fail = |errno: Errno| failed(errno, "open", root.display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(root, flags, Mode::empty()).map_err(fail)?;
    let stat = rustix::fs::fstat(&open).map_err(fail)?;
    if stat.st_mode & 0o077 == 0 || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Ok(None);
    }
    let entries = Dir::read_from(&open).map_err(fail)?;
    let names = entries.map(|entry| Ok(entry.map_err(fail)?.file_name().to_bytes().to_vec()));
    let names: Vec<Vec<u8>> = names.collect::<Result<_>>()?;
    let is_empty = names.iter().all(|name| matches!(&name[..], b"." | b".." | b"lost+found"));
    if is_empty || names.iter().any(|name| name == OWN_DIR.as_bytes()) {
        return Ok(Some(open));
    }
    let root = root.display();
    Err(Error::new(
        ErrorKind::Config,
        format!(
            "{root} holds other files and is open to other users, whom a cache is closed to; give it a \
             folder of its own, such as {root}/zazen"
        ),
    ))
}

impl Disk for RealDisk {
    type File = RealFile;

    fn root(&self) -> &Path {
        &self.root
    }

    fn lock(&self) -> Result<()> {
        let path = DiskPath::own(&RelPath::default(), "lock");
        let remedy = "if no daemon uses this cache, remove it";
        let file = self.open_append(&path).map_err(|error| match error.kind() {
            ErrorKind::Corrupt => Error::new(ErrorKind::Config, format!("{}; {remedy}", error.context())),
            _ => error,
        })?;
        match rustix::fs::flock(&file.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut held_by = [0; 24];
                let count = file.read_full_at(&mut held_by, 0).unwrap_or(0);
                let held_by = String::from_utf8_lossy(&held_by[..count]);
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "cache root {} is in use by process {}; stop it, or give this daemon another root",
                        self.root.display(),
                        held_by.trim()
                    ),
                ));
            }
            Err(errno) => return Err(failed(errno, "lock", self.absolute(&path).display())),
        }
        // Only a message names the process, so a full disk is no reason to refuse the cache.
        let holder = format!("{}\n", std::process::id());
        match file.write_all_at(holder.as_bytes(), 0) {
            Ok(()) => file.truncate(holder.len() as u64)?,
            Err(error) if error.kind() == ErrorKind::NoSpace => {}
            Err(error) => return Err(error),
        }
        let mut held = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *held = Some(OwnedFd::from(file.file));
        Ok(())
    }

    fn create(&self, path: &DiskPath) -> Result<RealFile> {
        self.open_made(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, "create")
    }

    fn open(&self, path: &DiskPath, write: bool) -> Result<RealFile> {
        // NONBLOCK: a planted FIFO must not hang the daemon; it means nothing to a regular file.
        let flags = if write { OFlags::RDWR } else { OFlags::RDONLY } | OFlags::NONBLOCK;
        let absolute = self.absolute(path);
        let fd = self
            .open_beneath(path.as_str(), flags, Mode::empty())
            .map_err(|errno| failed(errno, "open", absolute.display()))?;
        self.believed(fd, absolute, write)
    }

    fn open_append(&self, path: &DiskPath) -> Result<RealFile> {
        let file = self.open_made(path, OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK, "open")?;
        self.believed(OwnedFd::from(file.file), file.path, true)
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    fn rename_new(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        self.rename_with(from, to, RenameFlags::NOREPLACE)
    }

    fn remove(&self, path: &DiskPath) -> Result<()> {
        let fail = |errno| failed(errno, "remove", self.absolute(path).display());
        let folder = self.folder(path.split().0).map_err(fail)?;
        rustix::fs::unlinkat(&folder, path.split().1, AtFlags::empty()).map_err(fail)
    }

    fn remove_dir_if_empty(&self, path: &DiskPath) -> Result<()> {
        let removed = self
            .folder(path.split().0)
            .and_then(|folder| rustix::fs::unlinkat(&folder, path.split().1, AtFlags::REMOVEDIR));
        match removed {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::BUSY) => {
                Ok(())
            }
            Err(errno) => Err(failed(errno, "remove", self.absolute(path).display())),
        }
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<(String, bool)>> {
        let fail = |errno| failed(errno, "list", self.absolute(path).display());
        let fd = match self.open_beneath(path.as_str(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            other => other.map_err(fail)?,
        };
        let mut found = Vec::new();
        for entry in Dir::new(fd).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            // A name that is not UTF-8 is not one of Zazen's files, so leave it alone.
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            let is_dir = match entry.file_type() {
                FileType::Unknown => self.stat(&path.child(name))?.is_some_and(|stat| stat.is_dir),
                kind => kind == FileType::Directory,
            };
            found.push((name.to_owned(), is_dir));
        }
        Ok(found)
    }

    fn stat(&self, path: &DiskPath) -> Result<Option<FileStat>> {
        let found = self.folder(path.split().0).and_then(|folder| {
            let name = if path.as_str().is_empty() { "." } else { path.split().1 };
            rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
        });
        match found {
            Ok(stat) => Ok(Some(seen(&stat))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(failed(errno, "stat", self.absolute(path).display())),
        }
    }

    /// A quarter of the files that the process may open, because frames on their way to readers
    /// need most of them.
    fn open_files_max(&self) -> usize {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        (limit / 4).clamp(8, 256) as usize
    }

    fn free_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.root_fd)
            .map_err(|errno| failed(errno, "statvfs", self.root.display()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn check_folders(&self, path: &DiskPath) -> Result<()> {
        let mut folder = path.as_str();
        loop {
            let absolute = self.root.join(folder);
            match self.folder(folder) {
                // Missing directories will be made.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed(errno, "open", absolute.display())),
                Ok(fd) => {
                    let stat = rustix::fs::fstat(&fd);
                    let stat = stat.map_err(|errno| failed(errno, "stat", absolute.display()))?;
                    ownership::check_folder(&stat, &absolute, self.trust)
                        .map_err(|error| error.within("the cache"))?;
                }
            }
            if folder.is_empty() {
                return Ok(());
            }
            folder = folder.rsplit_once('/').map_or("", |(above, _)| above);
        }
    }

    fn sync_dir(&self, path: &DiskPath) -> Result<()> {
        let mut folder = path.as_str();
        loop {
            self.open_beneath(folder, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                .and_then(rustix::fs::fsync)
                .map_err(|errno| failed(errno, "sync", self.root.join(folder).display()))?;
            if folder.is_empty() {
                return Ok(());
            }
            folder = folder.rsplit_once('/').map_or("", |(above, _)| above);
        }
    }

    fn sync_all(&self) -> Result<()> {
        self.open_beneath("", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .and_then(rustix::fs::syncfs)
            .map_err(|errno| failed(errno, "sync", self.root.display()))
    }
}

/// The kernel's data about a file or directory.
fn seen(stat: &rustix::fs::Stat) -> FileStat {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let time_ns =
        |seconds: i64, nanoseconds: u64| seconds.saturating_mul(SECOND_NS).saturating_add(nanoseconds as i64);
    FileStat {
        is_file: kind == FileType::RegularFile,
        is_dir: kind == FileType::Directory,
        len: stat.st_size as u64,
        marked: stat.st_mode & MARK_BIT != 0,
        // The kernel counts in units of 512 bytes, whatever the file system's blocks are.
        allocated_bytes: stat.st_blocks as u64 * 512,
        accessed_ns: time_ns(stat.st_atime, stat.st_atime_nsec),
        modified_ns: time_ns(stat.st_mtime, stat.st_mtime_nsec),
    }
}

impl RealFile {
    fn told<T>(&self, what: &str, result: std::result::Result<T, Errno>) -> Result<T> {
        result.map_err(|errno| self.fail(what, errno.into()))
    }

    fn fail(&self, what: &str, cause: std::io::Error) -> Error {
        Error::io(format!("{what} {}", self.path.display()), cause)
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        loop {
            match self.file.read_at(buffer, offset) {
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => continue,
                other => return other.map_err(|cause| self.fail("read", cause)),
            }
        }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|cause| self.fail("write", cause))
    }

    fn stat(&self) -> Result<FileStat> {
        let stat = self.told("stat", rustix::fs::fstat(&self.file))?;
        Ok(seen(&stat))
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes).map_err(|cause| self.fail("truncate", cause))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|cause| self.fail("sync", cause))
    }

    fn sync_data(&self) -> Result<()> {
        self.file.sync_data().map_err(|cause| self.fail("sync", cause))
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.told("allocate", rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, bytes))
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.told("punch a hole into", rustix::fs::fallocate(&self.file, flags, offset, bytes))
    }

    fn set_times(&self, accessed_ns: i64, modified_ns: i64) -> Result<()> {
        let time = |ns: i64| Timespec { tv_sec: ns.div_euclid(SECOND_NS), tv_nsec: ns.rem_euclid(SECOND_NS) };
        let times = Timestamps { last_access: time(accessed_ns), last_modification: time(modified_ns) };
        self.told("date", rustix::fs::futimens(&self.file, &times))
    }

    fn reflink_from(&self, source: &RealFile) -> Result<()> {
        match rustix::fs::ioctl_ficlone(&self.file, &source.file) {
            // Which of these a file system without reflinks gives differs from one to the next.
            Err(errno @ (Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS)) => {
                let text = format!("reflink {}: its file system cannot", self.path.display());
                Err(Error::new(ErrorKind::Unsupported, text).caused_by(std::io::Error::from(errno)))
            }
            other => self.told("reflink", other),
        }
    }

    fn mark(&self, handed_out: bool) -> Result<()> {
        let mode = MARK_BIT | if handed_out { 0o644 } else { 0o600 };
        self.told("mark", rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode)))
    }

    fn to_std(&self) -> Result<File> {
        self.file.try_clone().map_err(|cause| self.fail("duplicate the descriptor of", cause))
    }

    fn into_std(self) -> Result<File> {
        Ok(self.file)
    }
}

/// The root's descriptor, for callers that watch or measure the same directory.
impl AsFd for RealDisk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root_fd.as_fd()
    }
}
