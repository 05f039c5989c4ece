//! Where other programs find a frame's bytes: a file with exactly these bytes, or a part of a
//! larger file.
//!
//! Packed frames and pieces are parts of larger files, and a daemon that serves several users does
//! not let them open its cache's files. A program that still needs a file gets one of its own: the
//! bytes in memory, under a name in a folder that only its user may search. The file is made on
//! request and removed with the frame.
//!
//! Invariants: a path that is given leads to exactly the frame's bytes. Only links are written to a
//! disk. The next process that makes such a file removes what a killed process left.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use zazen_core::{Error, FrameNo, Layout, Result};
use zazen_env::fork::Mine;

const PREFIX: &str = "zazen-frames-";

/// Where a frame's bytes are, if this process knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameFile {
    /// The file; `None` if there is none that this process may open.
    pub path: Option<Arc<Path>>,
    /// Where the frame begins in it.
    pub offset: u64,
    /// The file holds only the frame.
    pub whole: bool,
}

impl FrameFile {
    /// The file, if it holds only the frame.
    pub(crate) fn own(&self) -> Option<&Path> {
        self.path.as_deref().filter(|_| self.whole)
    }
}

/// A frame's file that was made on request for this process. A clone makes another file.
#[derive(Default)]
pub(crate) struct OwnFile(OnceLock<Option<Box<Link>>>);

impl Clone for OwnFile {
    fn clone(&self) -> OwnFile {
        OwnFile::default()
    }
}

impl OwnFile {
    /// The path of a file with `bytes`; `None` if it cannot be made (this is logged).
    pub(crate) fn path(&self, number: u64, layout: Option<&Layout>, bytes: &[u8]) -> Option<&Path> {
        let link = self.0.get_or_init(|| {
            let made = Link::make(&name_of(number, layout), bytes);
            made.map(Box::new).map_err(|error| tracing::warn!("frame {number} gets no path: {error}")).ok()
        });
        link.as_ref().map(|link| link.path.as_path())
    }
}

/// The name of the frame's file on the backing store. Some programs depend on its ending.
fn name_of(number: u64, layout: Option<&Layout>) -> String {
    let source = layout.and_then(|layout| layout.source(FrameNo::new(number).ok()?));
    // The name of a trajectory would suggest the whole trajectory.
    let source = source.filter(|source| source.offset == 0 && source.length.is_none());
    let name = source.and_then(|source| source.path.split().map(|(_, name)| name.to_owned()));
    name.unwrap_or_else(|| format!("frame-{number}"))
}

/// A link to bytes in memory.
struct Link {
    path: PathBuf,
    folder: PathBuf,
    _memory: OwnedFd,
    /// A forked child has a copy of this, and must leave the link alone.
    mine: Mine,
}

impl Link {
    fn make(name: &str, bytes: &[u8]) -> Result<Link> {
        use rustix::fs::{MemfdFlags, SealFlags};
        let failed = |what: &str, error: std::io::Error| Error::io(format!("file of a frame: {what}"), error);
        let memory = rustix::fs::memfd_create("zazen-frame", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|errno| failed("memfd_create", errno.into()))?;
        let mut file = File::from(memory);
        file.write_all(bytes).map_err(|error| failed("write", error))?;
        let memory = OwnedFd::from(file);
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, seals).map_err(|errno| failed("seal", errno.into()))?;
        let folder = Folders::of_this_process().new_folder()?;
        let path = folder.join(name);
        let target = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        if let Err(error) = symlink(target, &path) {
            Folders::of_this_process().removed(&folder);
            return Err(Error::io(path.display().to_string(), error));
        }
        Ok(Link { path, folder, _memory: memory, mine: Mine::of_this_process() })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.mine.is_mine() {
            std::fs::remove_file(&self.path).ok();
            Folders::of_this_process().removed(&self.folder);
        }
    }
}

/// The folder of this process, and how many links it has.
#[derive(Default)]
struct Folders {
    root: Option<(u32, PathBuf)>,
    next: u64,
    links: u64,
}

impl Folders {
    fn of_this_process() -> MutexGuard<'static, Folders> {
        static FOLDERS: Mutex<Folders> = Mutex::new(Folders { root: None, next: 0, links: 0 });
        FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_folder(&mut self) -> Result<PathBuf> {
        let id = std::process::id();
        // A forked child makes a folder of its own.
        let root = match &self.root {
            Some((of, root)) if *of == id => root.clone(),
            _ => {
                let base = base();
                remove_leftovers(&base);
                let random = zazen_env::random_u128()? as u64;
                let root = base.join(format!("{PREFIX}{id}-{}-{random:016x}", start_of(id).unwrap_or(0)));
                make_folder(&root)?;
                (self.root, self.links) = (Some((id, root.clone())), 0);
                root
            }
        };
        self.next += 1;
        let folder = root.join(self.next.to_string());
        make_folder(&folder)?;
        self.links += 1;
        Ok(folder)
    }

    fn removed(&mut self, folder: &Path) {
        std::fs::remove_dir(folder).ok();
        self.links = self.links.saturating_sub(1);
        if self.links == 0
            && let Some((_, root)) = self.root.take()
        {
            std::fs::remove_dir(root).ok();
        }
    }
}

/// Removes this process's folder with its links. For a process that is about to end.
pub fn remove_frame_files() {
    let mut folders = Folders::of_this_process();
    if let Some((_, root)) = folders.root.take().filter(|(of, _)| *of == std::process::id()) {
        folders.links = 0;
        remove_links(&root);
    }
}

fn make_folder(path: &Path) -> Result<()> {
    // Fails if somebody else's is there.
    let made = std::fs::DirBuilder::new().mode(0o700).create(path);
    made.map_err(|error| Error::io(path.display().to_string(), error))
}

fn base() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let runtime = set("XDG_RUNTIME_DIR").filter(|path| path.is_dir());
    runtime.unwrap_or_else(std::env::temp_dir)
}

/// When process `id` started, in ticks since the boot; `None` if there is none.
fn start_of(id: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Removes the folders of this user's processes that are gone.
fn remove_leftovers(base: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let mut words = rest.split('-');
        let (Some(Ok(id)), Some(Ok(start))) =
            (words.next().map(str::parse::<u32>), words.next().map(str::parse::<u64>))
        else {
            continue;
        };
        let ours =
            std::fs::symlink_metadata(entry.path()).is_ok_and(|found| found.is_dir() && found.uid() == own);
        if ours && start_of(id) != Some(start) {
            remove_links(&entry.path());
        }
    }
}

/// Removes this user's folder with its folders of links. Other contents are left alone.
fn remove_links(root: &Path) {
    for folder in std::fs::read_dir(root).into_iter().flatten().flatten() {
        if !folder.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        for link in std::fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            if link.file_type().is_ok_and(|kind| kind.is_symlink() && !kind.is_socket()) {
                std::fs::remove_file(link.path()).ok();
            }
        }
        std::fs::remove_dir(folder.path()).ok();
    }
    std::fs::remove_dir(root).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_ones_own_has_the_bytes_and_goes_with_the_frame() {
        let layout = Layout::Files(zazen_core::NameTemplate::parse("a/f{n:03}.npy").unwrap());
        let file = OwnFile::default();
        let path = file.path(7, Some(&layout), b"seven").unwrap().to_owned();
        assert_eq!(path.file_name().unwrap(), "f007.npy");
        assert_eq!(std::fs::read(&path).unwrap(), b"seven");
        assert!(
            std::fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|mut file| file.write(b"x"))
                .is_err()
        );
        let folder = path.parent().unwrap().parent().unwrap().to_owned();
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        let other = OwnFile::default();
        let second = other.path(7, None, b"other").unwrap().to_owned();
        assert_eq!(other.path(7, None, b"other"), Some(second.as_path()), "made once");
        assert_eq!(second.file_name().unwrap(), "frame-7");
        drop(file);
        assert!(!path.exists() && std::fs::symlink_metadata(&path).is_err());
        assert_eq!(std::fs::read(&second).unwrap(), b"other");
        drop(other);
        assert!(!folder.exists());
    }

    #[test]
    fn leftovers_of_dead_processes_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let id = std::process::id();
        let make = |id: u32, start: u64| {
            let root = base.path().join(format!("{PREFIX}{id}-{start}-00"));
            std::fs::create_dir_all(root.join("1")).unwrap();
            symlink("/proc/1/fd/0", root.join("1/f.npy")).unwrap();
            root
        };
        let (alive, dead) = (make(id, start_of(id).unwrap()), make(id, 1));
        std::fs::write(base.path().join(format!("{PREFIX}x")), "").unwrap();
        remove_leftovers(base.path());
        assert!(alive.exists() && !dead.exists());
    }
}
