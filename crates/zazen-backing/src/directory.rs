//! A mounted directory as backing store.
//!
//! Invariants: every path is resolved beneath a descriptor of the root, so that no spelling and no symbolic
//! link leaves it; the root is looked up at each call, so that a mount that vanished or was replaced is
//! noticed, and noticed as `Unavailable`, never as files that don't exist; no call outlasts the deadline.

use crate::watchdog::Watchdog;
use crate::{Backing, SourceFile, SourceStat, may_search_by_stat};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result, Validator};

/// How long a call may take before the mount counts as hung.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(20);
/// The largest single read that goes to the file system.
const READ_BYTES_MAX: usize = 4 << 20;
/// Deadlines that a listing may take.
const LIST_DEADLINES: u32 = 6;
/// Read buffers kept for reuse: fresh ones cost a page fault every 4 KiB.
const SPARE_BUFFERS: usize = 16;
/// Stats slower than this (a network's round trip) are worth asking for in parallel.
const SLOW_STAT: Duration = Duration::from_micros(60);
/// Stats after which that is decided.
const STATS_PROBED: usize = 4;
/// Stats in flight where they are slow.
const STATS_AT_ONCE: usize = 8;
/// Fast ones that pay for another processor's thread.
const STATS_A_THREAD: usize = 64;

/// A directory of this machine, typically a network file system's mount point. Shared by threads.
pub struct DirectoryBacking {
    tree: Arc<Tree>,
    watchdog: Arc<Watchdog>,
}

impl DirectoryBacking {
    /// The directory `root`, with the default deadline of [`DEFAULT_DEADLINE`] per call. The directory need not
    /// be there yet: a call that finds none is `Unavailable`. `Config` if `root` is not absolute.
    pub fn new(root: impl Into<PathBuf>) -> Result<DirectoryBacking> {
        DirectoryBacking::with_deadline(root, Some(DEFAULT_DEADLINE))
    }

    /// As [`DirectoryBacking::new`] with a deadline per call of one's own. `None` runs each call on the caller's
    /// thread, without a bound and without the cost of a thread switch.
    pub fn with_deadline(root: impl Into<PathBuf>, deadline: Option<Duration>) -> Result<DirectoryBacking> {
        let root = root.into();
        if !root.is_absolute() {
            return Err(Error::new(
                ErrorKind::Config,
                format!("backing directory {}: give an absolute path", root.display()),
            ));
        }
        let tree = Tree {
            root,
            held: Mutex::default(),
            populated: Mutex::default(),
            no_openat2: AtomicBool::new(false),
            spare_buffers: Mutex::default(),
            processors: std::thread::available_parallelism()
                .map_or(1, std::num::NonZero::get)
                .min(STATS_AT_ONCE),
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        Ok(DirectoryBacking { tree: Arc::new(tree), watchdog: Arc::new(Watchdog::new(deadline)) })
    }

    fn run<T: Send + 'static>(
        &self,
        verb: &str,
        path: &RelPath,
        call: impl FnOnce(&Tree, &RelPath) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tree, owned) = (self.tree.clone(), path.clone());
        self.watchdog.run(
            || format!("{verb} {}", self.tree.root.join(path.as_str()).display()),
            move || call(&tree, &owned),
        )
    }
}

impl DirectoryBacking {
    /// A directory of a million names is many round trips: it gets several deadlines' time.
    fn list_entries(&self, path: &RelPath, files_only: bool) -> Result<Vec<String>> {
        let (tree, owned) = (self.tree.clone(), path.clone());
        let what = || format!("list {}", self.tree.root.join(path.as_str()).display());
        self.watchdog.run_long(LIST_DEADLINES, what, move || tree.list(&owned, files_only))
    }
}

impl Backing for DirectoryBacking {
    fn describe(&self) -> String {
        format!("directory {}", self.tree.root.display())
    }

    fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        self.run("stat", path, |tree, path| tree.stat(path))
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        let (file, stat) = self.run("open", path, |tree, path| tree.open_file(path))?;
        let name = self.tree.root.join(path.as_str());
        let (tree, watchdog) = (self.tree.clone(), self.watchdog.clone());
        Ok(Box::new(DirectoryFile { file: Arc::new(file), stat, name, tree, watchdog }))
    }

    fn list(&self, path: &RelPath) -> Result<Vec<String>> {
        self.list_entries(path, false)
    }

    fn list_files(&self, path: &RelPath) -> Result<Vec<String>> {
        self.list_entries(path, true)
    }

    fn may_search(&self, who: &Credentials, directory: &RelPath) -> Result<bool> {
        let owned = who.clone();
        // A mount beneath a closed directory is as closed to a caller as that directory.
        let above = self.run("stat", &RelPath::default(), move |tree, _| tree.ancestors_allow(&owned))?;
        Ok(above && may_search_by_stat(self, who, directory)?)
    }

    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        self.stat_beneath(&RelPath::default(), &paths.into())
    }

    fn stat_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        let describe = || format!("stat beneath {}", self.tree.root.join(folder.as_str()).display());
        let part = |range: Range<usize>, all: bool| {
            let (tree, folder, paths) = (self.tree.clone(), folder.clone(), paths.clone());
            move || tree.stat_beneath(&folder, &paths[range], all)
        };
        let at_once = (paths.len() / STATS_A_THREAD).clamp(1, self.tree.processors);
        let ranges = parts_of(0..paths.len(), at_once);
        let calls = ranges.iter().map(|range| part(range.clone(), false)).collect();
        let begun = self.watchdog.run_all(describe, calls).into_iter().collect::<Result<Vec<_>>>()?;
        let rests = ranges.iter().zip(&begun).map(|(range, stats)| {
            let rest = range.start + stats.len()..range.end;
            parts_of(rest, STATS_AT_ONCE.div_ceil(ranges.len()))
        });
        let rests: Vec<_> = rests.collect();
        let calls = rests.iter().flatten().map(|range| part(range.clone(), true)).collect();
        let mut answers = self.watchdog.run_all(describe, calls).into_iter();
        let mut stats = Vec::with_capacity(paths.len());
        for (some, rest) in begun.into_iter().zip(&rests) {
            stats.extend(some);
            for answer in answers.by_ref().take(rest.len()) {
                stats.extend(answer?);
            }
        }
        Ok(stats)
    }

    fn traffic(&self) -> (u64, u64) {
        (self.tree.reads.load(Ordering::Relaxed), self.tree.bytes.load(Ordering::Relaxed))
    }
}

struct DirectoryFile {
    file: Arc<OwnedFd>,
    stat: SourceStat,
    name: PathBuf,
    tree: Arc<Tree>,
    watchdog: Arc<Watchdog>,
}

impl SourceFile for DirectoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let wanted = buffer.len().min(READ_BYTES_MAX);
        let what = || format!("read {} at byte {offset}", self.name.display());
        let (file, tree) = (self.file.clone(), self.tree.clone());
        // The bytes go through a buffer of the call's own: a call that hangs must not hold the caller's.
        let read = self.watchdog.run(what, move || {
            let mut bytes = tree.spare_buffers().pop().unwrap_or_default();
            if bytes.len() < wanted {
                bytes.resize(wanted, 0);
            }
            loop {
                match rustix::io::pread(&*file, &mut bytes[..wanted], offset) {
                    Ok(read) => return Ok((bytes, read)),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(Error::io(format!("read at byte {offset}"), errno.into())),
                }
            }
        });
        let (bytes, read) = read.map_err(|error| error.within(self.name.display()))?;
        buffer[..read].copy_from_slice(&bytes[..read]);
        let mut spare = self.tree.spare_buffers();
        if spare.len() < SPARE_BUFFERS {
            spare.push(bytes);
        }
        drop(spare);
        self.tree.reads.fetch_add(1, Ordering::Relaxed);
        self.tree.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn stat(&self) -> SourceStat {
        self.stat
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        self.file.try_clone().ok()
    }
}

/// Which directory the root path led to when it was opened.
struct HeldRoot {
    device: u64,
    inode: u64,
    fd: Arc<OwnedFd>,
}

/// The blocking half: what runs on the watchdog's threads.
struct Tree {
    root: PathBuf,
    held: Mutex<Option<HeldRoot>>,
    /// The directory, by device and inode, in which something was found last. If the root path leads to
    /// another directory later and that one is empty, a mount has gone; a directory that was emptied is not gone.
    populated: Mutex<Option<(u64, u64)>>,
    /// The kernel (or a sandbox around us) has no openat2.
    no_openat2: AtomicBool,
    spare_buffers: Mutex<Vec<Vec<u8>>>,
    /// Threads that are of use to calls that wait for nothing.
    processors: usize,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl Tree {
    fn spare_buffers(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
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
                Err(Errno::NOSYS | Errno::PERM) => self.no_openat2.store(true, Ordering::Relaxed),
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
                format!("{full} leads out of {} through a symbolic link", self.root.display()),
            ),
            Errno::LOOP => Error::new(
                ErrorKind::PermissionDenied,
                format!("{full} is or passes through a symbolic link that cannot be followed here"),
            ),
            // Opened without waiting: a lease (F_SETLEASE) that its owner has not given back yet.
            Errno::AGAIN => Error::new(
                ErrorKind::Busy,
                format!("{full} is leased by another process, which was told to let go; try again"),
            ),
            // One stale handle, or a mount of somebody's beneath the root, says nothing of the root itself.
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

    fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        let fd = self.open_beneath(path, OFlags::PATH)?;
        rustix::fs::fstat(&fd).map(source_stat).map_err(|errno| self.path_error(path, errno))
    }

    /// Stats of `paths` beneath `folder`: one walk from the root for each folder in a row, then one call a name.
    /// Unless `all` are wanted it leaves off early where each takes long, for the rest to be asked for in parallel.
    fn stat_beneath(
        &self,
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
            let stat = self.stat_in(folder, &mut held, path);
            match stat {
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut) => {
                    return Err(error);
                }
                stat => stats.push(stat),
            }
        }
        Ok(stats)
    }

    fn stat_in<'a>(
        &self,
        folder: &RelPath,
        held: &mut Option<(&'a str, OwnedFd)>,
        path: &'a RelPath,
    ) -> Result<SourceStat> {
        let (inner, name) = path.as_str().rsplit_once('/').unwrap_or(("", path.as_str()));
        if held.as_ref().is_none_or(|(of, _)| *of != inner) {
            let fd = self.open_beneath(&folder.join(inner)?, OFlags::PATH | OFlags::DIRECTORY)?;
            *held = Some((inner, fd));
        }
        let whole = || folder.join(path.as_str());
        let Some((_, fd)) = held.as_ref().filter(|_| !path.is_root()) else { return self.stat(&whole()?) };
        match rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
            // Only the kernel's own walk may follow a link, so that it stays beneath the root.
            Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_symlink() => self.stat(&whole()?),
            Ok(stat) => Ok(source_stat(stat)),
            Err(errno) => Err(self.path_error(&whole()?, errno)),
        }
    }

    fn open_file(&self, path: &RelPath) -> Result<(OwnedFd, SourceStat)> {
        // Without O_NONBLOCK the opening of a FIFO would wait for its writer.
        let fd = self.open_beneath(path, OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK)?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.path_error(path, errno))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{} is not a regular file", self.root.join(path.as_str()).display()),
            ));
        }
        Ok((fd, source_stat(stat)))
    }

    fn list(&self, path: &RelPath, files_only: bool) -> Result<Vec<String>> {
        let fd = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let entries = Dir::new(fd).map_err(|errno| self.path_error(path, errno))?;
        let mut names = Vec::new();
        let mut is_empty = true;
        for entry in entries {
            let entry = entry.map_err(|errno| self.path_error(path, errno))?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            is_empty = false;
            if files_only && entry.file_type() == FileType::Directory {
                continue;
            }
            // A name that isn't UTF-8 cannot be spelled in a RelPath, so it is no frame.
            if let Ok(name) = entry.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        if !is_empty {
            self.is_populated();
        } else if path.is_root() && self.was_populated_elsewhere() {
            return Err(self.gone("is empty, though it held files before"));
        }
        Ok(names)
    }

    fn ancestors_allow(&self, who: &Credentials) -> Result<bool> {
        for folder in self.root.ancestors().skip(1) {
            let stat = rustix::fs::stat(folder).map_err(|errno| self.root_error(errno))?;
            if !who.may_search(stat.st_uid, stat.st_gid, stat.st_mode) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// `range` in at most `parts` parts of about the same length, none of them empty.
fn parts_of(range: Range<usize>, parts: usize) -> Vec<Range<usize>> {
    let step = range.len().div_ceil(parts.max(1)).max(1);
    range.clone().step_by(step).map(|start| start..range.end.min(start + step)).collect()
}

/// For kernels without openat2: the same walk, one component at a time, refusing every symbolic link.
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

fn source_stat(stat: rustix::fs::Stat) -> SourceStat {
    let mtime_ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64);
    SourceStat {
        validator: Validator { size: stat.st_size as u64, mtime_ns },
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode & 0o7777,
        is_dir: FileType::from_raw_mode(stat.st_mode).is_dir(),
    }
}

/// What a local path looks like, as a backing store would say it: for writers that record a source's validator.
pub fn stat_local(path: &Path) -> Result<SourceStat> {
    rustix::fs::stat(path)
        .map(source_stat)
        .map_err(|errno| Error::io(path.display().to_string(), errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    #[test]
    fn a_root_that_vanishes_is_unavailable_and_may_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let (root, away) = (dir.path().join("root"), dir.path().join("away"));
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("a"), "1").unwrap();
        let backing = DirectoryBacking::new(&root).unwrap();
        assert!(backing.stat(&path("a")).is_ok());
        assert_eq!(backing.stat(&path("b")).unwrap_err().kind(), ErrorKind::NotFound);

        std::fs::rename(&root, &away).unwrap();
        let missing = backing.stat(&path("a")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Unavailable, "{missing}");
        assert!(missing.to_string().contains(root.to_str().unwrap()), "{missing}");

        std::fs::create_dir(&root).unwrap();
        for result in [backing.stat(&path("a")).map(|_| ()), backing.open(&path("a")).map(|_| ())] {
            let unmounted = result.unwrap_err();
            assert_eq!(unmounted.kind(), ErrorKind::Unavailable, "{unmounted}");
        }
        assert_eq!(backing.list(&path("")).unwrap_err().kind(), ErrorKind::Unavailable);

        std::fs::remove_dir(&root).unwrap();
        std::fs::rename(&away, &root).unwrap();
        assert!(backing.stat(&path("a")).is_ok());
    }

    #[test]
    fn a_root_without_files_of_its_own_and_one_that_was_emptied_are_not_gone() {
        let dir = tempfile::tempdir().unwrap();
        let backing = DirectoryBacking::new(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join("sim")).unwrap();
        std::fs::write(dir.path().join("sim/a"), "1").unwrap();
        assert!(backing.stat(&path("sim/a")).is_ok());
        // Folders only: there is nothing among the files, but the root is far from empty.
        assert!(backing.list_files(&path("")).unwrap().is_empty());
        assert_eq!(backing.stat(&path("none")).unwrap_err().kind(), ErrorKind::NotFound);

        std::fs::remove_dir_all(dir.path().join("sim")).unwrap();
        assert!(backing.list(&path("")).unwrap().is_empty());
        assert_eq!(backing.stat(&path("sim/a")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn links_within_are_followed_and_links_out_refused_with_and_without_openat2() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(root.join("sub/a"), "1").unwrap();
        for (link, target) in [("in", "sub/a"), ("out", "../secret"), ("abs", "/etc/passwd"), ("up", "..")] {
            std::os::unix::fs::symlink(target, root.join(link)).unwrap();
        }
        let backing = DirectoryBacking::new(&root).unwrap();
        assert_eq!(backing.stat(&path("in")).unwrap().validator.size, 1);
        let many = backing.stat_many(&[path("in"), path("out"), path("sub/a")]).unwrap();
        assert_eq!(many.iter().map(|stat| stat.is_ok()).collect::<Vec<_>>(), [true, false, true]);
        for leaving in ["out", "abs", "up/secret"] {
            let refused = backing.open(&path(leaving)).map(|_| ()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
        }
        backing.tree.no_openat2.store(true, Ordering::Relaxed);
        assert!(backing.open(&path("sub/a")).is_ok());
        for link in ["in", "out", "abs", "up/secret"] {
            assert!(backing.open(&path(link)).is_err(), "{link}");
            assert!(backing.stat(&path(link)).is_err(), "{link}");
        }
    }

    #[test]
    fn many_stats_are_those_of_each_in_order_whatever_their_number_and_folder() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["sim/a/b", "sim/c"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let all: Vec<String> = (0..700)
            .map(|at| match at % 7 {
                0 => format!("a/b/{at}"),
                1 => format!("c/{at}"),
                2 => format!("none/{at}"),
                3 => format!("missing{at}"),
                _ => format!("frame{at}"),
            })
            .collect();
        for (at, name) in all.iter().enumerate() {
            if ![2, 3].contains(&(at % 7)) {
                std::fs::write(dir.path().join("sim").join(name), vec![0; at]).unwrap();
            }
        }
        for deadline in [None, Some(Duration::from_secs(60))] {
            let backing = DirectoryBacking::with_deadline(dir.path(), deadline).unwrap();
            for count in [0, 1, 2, 63, 64, 127, 128, 700] {
                let paths: Arc<[RelPath]> = all[..count].iter().map(|name| path(name)).collect();
                let stats = backing.stat_beneath(&path("sim"), &paths).unwrap();
                assert_eq!(stats.len(), count);
                for (at, stat) in stats.iter().enumerate() {
                    let size = stat.as_ref().ok().map(|stat| stat.validator.size);
                    assert_eq!(size, (![2, 3].contains(&(at % 7))).then_some(at as u64), "{}", all[at]);
                    let kind = stat.as_ref().err().map(Error::kind);
                    assert!([None, Some(ErrorKind::NotFound)].contains(&kind), "{}", all[at]);
                }
            }
        }
        for (range, parts) in [(0..0, 3), (5..6, 3), (0..10, 3), (7..100, 8), (0..3, 0)] {
            let split = parts_of(range.clone(), parts);
            assert!(split.len() <= parts.max(1) && split.iter().all(|part| !part.is_empty()));
            assert_eq!(split.into_iter().flatten().collect::<Vec<_>>(), range.collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let backing = DirectoryBacking::with_deadline(dir.path(), None).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("pipe"), Mode::RUSR).unwrap();
        for odd in ["pipe", ""] {
            let refused = backing.open(&path(odd)).map(|_| ()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        }
        assert_eq!(DirectoryBacking::new("relative").err().unwrap().kind(), ErrorKind::Config);
    }
}
