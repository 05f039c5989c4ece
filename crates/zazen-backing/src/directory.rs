//! A mounted directory as backing store.
//!
//! Invariants: no call takes longer than the deadline, except looks at a few files in a folder that
//! was on a disk of this machine a moment ago. A view's calls run only on threads that have
//! assumed its user's identity. If a view's calls meet a hung mount or a vanished root, no other
//! view loses a thread or waits for a lock.

use crate::look::{now_ns, source_stat};
use crate::tree::{Look, STATS_AT_ONCE, Tree};
use crate::watchdog::Watchdog;
use crate::{Backing, DirectoryNames, HANGS_MAX, Rights, SourceFile, SourceStat};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result};
use zazen_env::Identity;

/// How long a call may take before the mount counts as hung.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(20);
/// The largest single read that goes to the file system.
const READ_BYTES_MAX: usize = 4 << 20;
/// Deadlines that a listing may take.
const LIST_DEADLINES: u32 = 6;
/// Read buffers that are kept for reuse. A new buffer costs a page fault every 4 KiB.
const SPARE_BUFFERS: usize = 16;
/// Directories that one call asks for permissions.
const ALLOWS_AT_ONCE: usize = 256;
/// Threads that bring in what will be looked at. They wait for the disk most of their time.
const BRINGERS: usize = 4;
/// This many fast stats are worth one more thread.
const STATS_A_THREAD: usize = 64;

/// A directory of this machine, typically a network file system's mount point. Shared by threads.
pub struct DirectoryBacking {
    tree: Arc<Tree>,
    watchdog: Arc<Watchdog>,
}

/// Permissions of some directories, as far as they are known.
#[derive(Default)]
struct Told {
    answers: Vec<Result<bool>>,
    /// Nobody waits for more.
    is_left: bool,
}

impl DirectoryBacking {
    /// The directory `root`, with the default deadline of [`DEFAULT_DEADLINE`] per call. The
    /// directory need not exist yet; while it does not, calls are `Unavailable`. `Config` if `root`
    /// is not absolute.
    pub fn new(root: impl Into<PathBuf>) -> Result<DirectoryBacking> {
        DirectoryBacking::with_deadline(root, Some(DEFAULT_DEADLINE))
    }

    /// As [`DirectoryBacking::new`] with another deadline per call. `None` runs each call on the
    /// caller's thread, without a deadline and without the cost of a thread switch.
    pub fn with_deadline(root: impl Into<PathBuf>, deadline: Option<Duration>) -> Result<DirectoryBacking> {
        let root = root.into();
        if root.to_string_lossy().starts_with(crate::objects::SCHEME) {
            let what = format!(
                "{}: this needs a mounted directory; frames of an object store are read through the node's \
                 daemon, and put there with the store's own tools",
                root.display()
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if !root.is_absolute() {
            return Err(Error::new(
                ErrorKind::Config,
                format!("backing directory {}: give an absolute path", root.display()),
            ));
        }
        Ok(DirectoryBacking {
            tree: Arc::new(Tree::new(root, Arc::default())),
            watchdog: Arc::new(Watchdog::new(deadline)),
        })
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
    /// Listing a directory of a million names takes many round trips, so it gets several deadlines'
    /// time.
    fn list_entries(
        &self,
        path: &RelPath,
        files_only: bool,
        bytes_max: u64,
    ) -> Result<Option<DirectoryNames>> {
        let (tree, owned) = (self.tree.clone(), path.clone());
        let what = || format!("list {}", self.tree.root.join(path.as_str()).display());
        let listed =
            self.watchdog.run_long(LIST_DEADLINES, what, move || tree.list(&owned, files_only, bytes_max));
        Ok(listed?.map(DirectoryNames::from))
    }

    /// Stats many files, in parallel if each takes long.
    fn look_beneath(
        &self,
        how: Look,
        folder: &RelPath,
        paths: &Arc<[RelPath]>,
    ) -> Result<Vec<Result<SourceStat>>> {
        // To hand a few calls to another thread and to wait for it takes longer than they do.
        if how == Look::Stat
            && paths.len() <= STATS_A_THREAD
            && self.watchdog.is_own()
            && let Some(stats) = self.tree.look_near(folder, paths)
        {
            return Ok(stats.into_iter().map(Ok).collect());
        }
        let describe = || format!("stat beneath {}", self.tree.root.join(folder.as_str()).display());
        let part = |range: Range<usize>, all: bool| {
            let (tree, folder, paths) = (self.tree.clone(), folder.clone(), paths.clone());
            move || tree.look_beneath(how, &folder, &paths[range], all)
        };
        let at_once = (paths.len() / STATS_A_THREAD).clamp(1, self.tree.threads_for_looks());
        let ranges = parts_of(0..paths.len(), at_once);
        let since = Instant::now();
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
        self.tree.looked(paths.len(), ranges.len(), since.elapsed());
        Ok(stats)
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

    fn list(&self, path: &RelPath) -> Result<DirectoryNames> {
        Ok(self.list_entries(path, false, u64::MAX)?.unwrap_or_default())
    }

    fn list_files(&self, path: &RelPath) -> Result<DirectoryNames> {
        Ok(self.list_entries(path, true, u64::MAX)?.unwrap_or_default())
    }

    fn list_within(
        &self,
        path: &RelPath,
        files_only: bool,
        bytes_max: u64,
    ) -> Result<Option<DirectoryNames>> {
        self.list_entries(path, files_only, bytes_max)
    }

    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        self.run("look at", path, move |tree, path| tree.allows(path, rights))
    }

    fn allows_many(&self, paths: &[RelPath], rights: Rights) -> Result<Vec<Result<bool>>> {
        let mut answers = Vec::with_capacity(paths.len());
        let mut hangs = 0;
        while answers.len() < paths.len() && hangs < HANGS_MAX {
            let rest = &paths[answers.len()..];
            let group = rest[..rest.len().min(ALLOWS_AT_ONCE)].to_vec();
            let (tree, told) = (self.tree.clone(), Arc::<Mutex<Told>>::default());
            let what = || format!("look at directories beneath {}", self.tree.root.display());
            let tell = told.clone();
            let asked = self.watchdog.run(what, move || {
                for path in &group {
                    let answer = tree.allows(path, rights);
                    let mut told = tell.lock().unwrap_or_else(PoisonError::into_inner);
                    if told.is_left {
                        break;
                    }
                    told.answers.push(answer);
                }
                Ok(())
            });
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            told.is_left = true;
            answers.append(&mut told.answers);
            if let Err(error) = asked {
                // The one that was asked last hangs; it costs a thread.
                hangs += 1;
                answers.push(Err(error));
            }
        }
        Ok(answers)
    }

    fn seen_by(&self, who: &Credentials) -> Result<Arc<dyn Backing>> {
        let deadline = self.watchdog.deadline().unwrap_or(DEFAULT_DEADLINE);
        let watchdog = Arc::new(Watchdog::of(Identity::of(who)?, deadline));
        // The view has a tree of its own, because the tree's state depends on what this user can
        // see.
        Ok(Arc::new(DirectoryBacking {
            tree: Arc::new(Tree::new(self.tree.root.clone(), self.tree.traffic.clone())),
            watchdog,
        }))
    }

    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        self.stat_beneath(&RelPath::default(), &paths.into())
    }

    fn stat_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        self.look_beneath(Look::Stat, folder, paths)
    }

    fn probe_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        self.look_beneath(Look::Open, folder, paths)
    }

    fn will_look_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) {
        // Nobody waits for these calls, so none may hang.
        if paths.is_empty() || self.watchdog.deadline().is_none() || !self.tree.is_known_near(folder) {
            return;
        }
        let next = Arc::new(AtomicUsize::new(0));
        let call = || {
            let (tree, folder, paths, next) =
                (self.tree.clone(), folder.clone(), paths.clone(), next.clone());
            move || tree.bring_in(&folder, &paths, &next)
        };
        self.watchdog.run_aside((0..BRINGERS).map(|_| call()).collect());
    }

    fn near_folders(&self, folder: &RelPath, inner: &Arc<[RelPath]>) -> Result<Vec<bool>> {
        let inner = inner.clone();
        self.run("look at folders of", folder, move |tree, folder| tree.near_folders(folder, &inner))
    }

    fn traffic(&self) -> (u64, u64) {
        (self.tree.traffic.reads.load(Ordering::Relaxed), self.tree.traffic.bytes.load(Ordering::Relaxed))
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
        // The bytes go through a buffer of the call's own, because a call that hangs must not hold
        // the caller's buffer.
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
        self.tree.traffic.reads.fetch_add(1, Ordering::Relaxed);
        self.tree.traffic.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn stat(&self) -> SourceStat {
        self.stat
    }

    fn stat_now(&self) -> Result<SourceStat> {
        let (file, name) = (self.file.clone(), self.name.clone());
        self.watchdog.run(
            || format!("stat {}", self.name.display()),
            move || {
                let now = now_ns();
                let stat = rustix::fs::fstat(&*file);
                stat.map(|stat| source_stat(&stat, now))
                    .map_err(|errno| Error::io(name.display().to_string(), errno.into()))
            },
        )
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        self.file.try_clone().ok()
    }

    fn has_descriptor(&self) -> bool {
        true
    }
}

/// `range` in at most `parts` parts of about the same length, none of them empty.
fn parts_of(range: Range<usize>, parts: usize) -> Vec<Range<usize>> {
    let step = range.len().div_ceil(parts.max(1)).max(1);
    range.clone().step_by(step).map(|start| start..range.end.min(start + step)).collect()
}

pub use crate::look::{stat_file, stat_local, stat_name};

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
        assert_eq!(backing.list(&path("")).err().unwrap().kind(), ErrorKind::Unavailable);

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
        // Only folders: no file is found, but the root is not empty.
        assert!(backing.list_files(&path("")).unwrap().is_empty());
        assert_eq!(backing.stat(&path("none")).unwrap_err().kind(), ErrorKind::NotFound);

        std::fs::remove_dir_all(dir.path().join("sim")).unwrap();
        assert!(backing.list(&path("")).unwrap().is_empty());
        assert_eq!(backing.stat(&path("sim/a")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn wanted_files_whose_names_are_not_utf8_are_told_and_others_ignored() {
        use std::os::unix::ffi::OsStrExt as _;
        let indexes = crate::trajectory::Indexes::in_memory();
        let check = |names: &[&[u8]], pattern: Option<&str>, told: Option<&str>| {
            let dir = tempfile::tempdir().unwrap();
            for name in names {
                let file = dir.path().join(std::ffi::OsStr::from_bytes(name));
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, "1").unwrap();
            }
            let backing = DirectoryBacking::new(dir.path()).unwrap();
            let finder = crate::trajectory::Finder { indexes: &indexes, store: "/s", stops: None };
            match (crate::dataset::describe(finder, &backing, &path(""), pattern), told) {
                (Ok(found), None) => assert_eq!(found.extent.len(), 2),
                (Err(error), Some(name)) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                    let text = error.to_string();
                    assert!(text.contains(name) && text.contains("not UTF-8"), "{text}");
                }
                (found, _) => panic!("{found:?} of {names:?}"),
            }
        };
        check(&[b"a.jpg", b"b.jpg", b"c\xe9.jpg"], Some("*.jpg"), Some("c\u{fffd}.jpg"));
        check(&[b"a.jpg", b"b.jpg", b"c\xe9.txt", b".\xe9.jpg"], Some("*.jpg"), None);
        check(&[b"a.jpg", b"b.jpg", b"k\xe9/c.jpg"], Some("**/*.jpg"), Some("k\u{fffd}"));
        check(&[b"a.jpg", b"b.jpg", b"k\xe9/c.jpg"], Some("*.jpg"), None);
        check(&[b"f\xe9-1.x", b"f\xe9-2.x"], None, Some("f\u{fffd}-{n}.x"));
        check(&[b"f-1.x", b"f-2.x", b"\xe9", b"run\xe9-7.log"], None, None);
        check(&[b"\xe9.xtc", b"top.gro"], None, Some("\u{fffd}.xtc"));
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
                // Neither advice nor what earlier looks took changes an answer.
                if count % 2 == 0 {
                    backing.will_look_beneath(&path("sim"), &paths);
                    backing.tree.looked(1, 1, Duration::from_secs(count as u64));
                }
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
    fn advice_is_for_folders_that_are_near_and_brings_in_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sim")).unwrap();
        let names: Vec<RelPath> = (0..200).map(|at| path(&format!("frame{at}"))).collect();
        for name in &names {
            std::fs::write(dir.path().join("sim").join(name.as_str()), "1").unwrap();
        }
        let paths: Arc<[RelPath]> = names.into();
        let backing = DirectoryBacking::new(dir.path()).unwrap();
        let next = AtomicUsize::new(0);
        backing.tree.bring_in(&path("sim"), &paths, &next);
        assert_eq!(next.load(Ordering::Relaxed), 0, "nobody has found the folder to be near");
        backing.stat_beneath(&path("sim"), &paths).unwrap();
        backing.tree.bring_in(&path("sim"), &paths, &next);
        // It is not near if it is on no file system of this machine, or the machine is too busy.
        let is_near = backing.tree.is_known_near(&path("sim"));
        // It stops at files that are in memory, as these probably are.
        assert!(next.load(Ordering::Relaxed) > 0 || !is_near);
    }

    /// A FUSE mount whose server never answers.
    struct Hung {
        at: PathBuf,
        server: Option<std::fs::File>,
    }

    impl Hung {
        fn mount(at: &std::path::Path) -> std::io::Result<Hung> {
            let server = std::fs::File::options().read(true).write(true).open("/dev/fuse")?;
            let options = format!(
                "fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0",
                std::os::fd::AsRawFd::as_raw_fd(&server)
            );
            let target = std::ffi::CString::new(at.as_os_str().as_encoded_bytes())?;
            let flags = libc::MS_NOSUID | libc::MS_NODEV;
            let (source, kind) = (c"zazen-test".as_ptr(), c"fuse".as_ptr());
            // SAFETY: strings that end with a zero and live during the call.
            let status =
                unsafe { libc::mount(source, target.as_ptr(), kind, flags, options.as_ptr().cast()) };
            if status != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(Hung { at: at.to_owned(), server: Some(server) })
        }
    }

    impl Drop for Hung {
        fn drop(&mut self) {
            let target = std::ffi::CString::new(self.at.as_os_str().as_encoded_bytes()).unwrap();
            // SAFETY: a string that ends with a zero.
            unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
            // All who wait get an error now.
            self.server = None;
        }
    }

    #[test]
    fn a_hung_folder_keeps_no_other_from_its_answer() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c", "hung"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let _hung = match Hung::mount(&dir.path().join("hung")) {
            Ok(hung) => hung,
            Err(error) => {
                println!("skipped: no FUSE mount can be made here: {error}");
                return;
            }
        };
        // Long enough for a busy machine to answer for the others.
        let backing = DirectoryBacking::with_deadline(dir.path(), Some(Duration::from_secs(4))).unwrap();
        let ask = |names: &[&str]| {
            let paths: Vec<RelPath> = names.iter().map(|name| path(name)).collect();
            let answers = backing.allows_many(&paths, Rights::READ).unwrap();
            let told = |answer: Result<bool>| answer.map_err(|error| error.kind());
            answers.into_iter().map(told).collect::<Vec<_>>()
        };
        let hangs = Err(ErrorKind::TimedOut);
        // Each that hangs costs a thread: no more than two in one call.
        assert_eq!(ask(&["hung/x", "a", "hung/y", "b", "c"]), [hangs, Ok(true), hangs]);
        assert_eq!(ask(&["a", "b", "c"]), [Ok(true), Ok(true), Ok(true)]);
        assert_eq!(ask(&[]), []);
    }

    #[test]
    fn few_looks_at_a_folder_of_this_machine_are_those_of_the_long_way() {
        let dir = tempfile::tempdir().unwrap();
        let sim = dir.path().join("sim");
        std::fs::create_dir_all(sim.join("in")).unwrap();
        for (name, bytes) in [("a", 1), ("b", 2), ("in/c", 3)] {
            std::fs::write(sim.join(name), vec![0; bytes]).unwrap();
        }
        std::os::unix::fs::symlink("b", sim.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", sim.join("out")).unwrap();
        let backing = DirectoryBacking::new(dir.path()).unwrap();
        let look = |names: &[&str]| {
            let paths: Arc<[RelPath]> = names.iter().map(|name| path(name)).collect();
            let stats = backing.stat_beneath(&path("sim"), &paths).unwrap();
            let told = |stat: Result<SourceStat>| match stat {
                Ok(stat) => Ok(stat.validator.size),
                Err(error) => Err(error.kind()),
            };
            stats.into_iter().map(told).collect::<Vec<_>>()
        };
        let near = |names: &[&str]| {
            let paths: Vec<RelPath> = names.iter().map(|name| path(name)).collect();
            backing.tree.look_near(&path("sim"), &paths).is_some()
        };
        assert!(!near(&["a"]), "nobody knows yet where the folder is");
        for _ in 0..2 {
            assert_eq!(look(&["a", "b"]), [Ok(1), Ok(2)]);
            assert_eq!(look(&["link", "in/c", "a"]), [Ok(2), Ok(3), Ok(1)]);
            assert_eq!(look(&["a", "none"]), [Ok(1), Err(ErrorKind::NotFound)]);
            assert_eq!(look(&["out"]), [Err(ErrorKind::PermissionDenied)]);
        }
        if backing.tree.look_near(&path("sim"), &[]).is_none() {
            println!("skipped: temporary files are on a file system that is not known to be local");
            return;
        }
        assert!(near(&["a", "b"]));
        for long in ["link", "in/c", "none", "out", ""] {
            assert!(!near(&[long]), "{long}");
        }
        assert!(backing.tree.look_near(&path("sim/in"), &[path("c")]).is_none(), "another folder");
        let near: Arc<[RelPath]> = ["", "in"].map(path).into();
        assert_eq!(backing.near_folders(&path("sim"), &near).unwrap(), [true, true]);
        assert_eq!(backing.near_folders(&path(""), &[path("sim/in")].into()).unwrap(), [true]);
        assert!(backing.near_folders(&path("sim"), &[path("none")].into()).is_err());
        if std::path::Path::new("/proc/self/fd").is_dir() {
            let kernels = DirectoryBacking::new("/proc").unwrap();
            assert_eq!(kernels.near_folders(&path("self"), &near[..1].into()).unwrap(), [false]);
        }
        // What took the folder's place is what is looked at.
        std::fs::rename(&sim, dir.path().join("old")).unwrap();
        assert_eq!(look(&["a"]), [Err(ErrorKind::NotFound)]);
        std::fs::create_dir(&sim).unwrap();
        std::fs::write(sim.join("a"), "12345").unwrap();
        assert_eq!(look(&["a"]), [Ok(5)]);
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let backing = DirectoryBacking::with_deadline(dir.path(), None).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("pipe"), rustix::fs::Mode::RUSR).unwrap();
        for odd in ["pipe", ""] {
            let refused = backing.open(&path(odd)).map(|_| ()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        }
        assert_eq!(DirectoryBacking::new("relative").err().unwrap().kind(), ErrorKind::Config);
    }
}
