//! The bytes of files: one plain file on the node's disk for each object.
//!
//! An object is named by inode and generation, so a descriptor of an old generation never reaches
//! new bytes. Only the daemon makes objects, and only when the metadata says that this node holds
//! one that never had any bytes: an object that is missing otherwise was lost, and is an error,
//! never an empty file.

use crate::folder::sub;
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::{Errno as Kernel, ReadWriteFlags};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use zazen_core::fnv::mixed;
use zazen_namespace::service::{ObjectCall, namespace_fn};
use zazen_namespace::{Errno, InodeId};
use zazen_wire::checksum::frame_checksum;

/// Folders that objects are spread over.
pub(crate) const FOLDERS: u64 = 1024;
/// Open objects that are kept for calls of other nodes.
const OPEN_MAX: usize = 512;
/// The longest file, as the kernel has it.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Names an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// The file.
    pub id: InodeId,
    /// Its generation.
    pub generation: u64,
}

impl ObjectName {
    pub(crate) fn folder(self) -> String {
        format!("{:03x}", mixed(self.id.0) % FOLDERS)
    }

    pub(crate) fn file(self) -> String {
        format!("{:016x}-{:x}", self.id.0, self.generation)
    }

    /// Folder and file.
    pub(crate) fn path(self) -> String {
        format!("{}/{}", self.folder(), self.file())
    }

    /// A call of another daemon about it, without bytes.
    pub(crate) fn call(self, what: u16, offset: u64, bytes: u64, flags: u32) -> ObjectCall {
        let sum = frame_checksum(&[]);
        let (id, generation) = (self.id, self.generation);
        ObjectCall { id, generation, what, offset, bytes, flags, sum, call: 0, again: 0 }
    }

    /// The object that a file's name stands for.
    pub(crate) fn parse(name: &str) -> Option<ObjectName> {
        let (id, generation) = name.split_once('-')?;
        let id = InodeId(u64::from_str_radix(id, 16).ok()?);
        let name_of = ObjectName { id, generation: u64::from_str_radix(generation, 16).ok()? };
        (name_of.file() == name).then_some(name_of)
    }
}

/// An open object.
pub type Object = Arc<File>;

/// Who has the bytes of objects that are not here.
pub(crate) trait Absent: Send + Sync {
    /// Brings the object back, if its bytes are elsewhere. False if they never went.
    fn bring_back(&self, objects: &Objects, name: ObjectName) -> Result<bool, Errno>;
    /// The object is gone for good, or is another node's.
    fn gone(&self, name: ObjectName);
}

/// The objects of a node. For any thread.
pub struct Objects {
    root: OwnedFd,
    open: Mutex<OpenObjects>,
    absent: OnceLock<Box<dyn Absent>>,
}

/// Objects that are kept open, the oldest first.
#[derive(Default)]
struct OpenObjects {
    files: HashMap<ObjectName, Object>,
    order: VecDeque<ObjectName>,
    /// Counts removals and replacements: what was opened before one may be dead after it.
    changes: u64,
}

impl OpenObjects {
    fn forget(&mut self, name: ObjectName) {
        self.changes += 1;
        if self.files.remove(&name).is_some() {
            self.order.retain(|other| *other != name);
        }
    }
}

/// The kernel's error as the namespace has it.
pub(crate) fn errno(error: Kernel) -> Errno {
    u16::try_from(error.raw_os_error()).map_or(Errno::EIO, Errno::of)
}

impl Objects {
    /// The objects in the folder `root`.
    pub fn new(root: OwnedFd) -> Objects {
        Objects { root, open: Mutex::default(), absent: OnceLock::new() }
    }

    /// From now on, objects that are not here may come back.
    pub(crate) fn bring_back_by(&self, absent: Box<dyn Absent>) {
        self.absent.set(absent).ok();
    }

    fn bring_back(&self, name: ObjectName) -> Result<bool, Errno> {
        self.absent.get().map_or(Ok(false), |absent| absent.bring_back(self, name))
    }

    /// Whether the disk has the object now.
    pub(crate) fn is_there(&self, name: ObjectName) -> bool {
        rustix::fs::statat(&self.root, name.path(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// What the disk says of the object, if it has it now.
    pub(crate) fn look(&self, name: ObjectName) -> Option<std::fs::Metadata> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::openat(&self.root, name.path(), flags, Mode::empty());
        File::from(opened.ok()?).metadata().ok()
    }

    /// Lets the object's bytes go, if it may go once nobody can open it any more. `folder` is where
    /// it is meanwhile. Whoever wants to open it meanwhile asks [`Absent::bring_back`], which must
    /// wait.
    pub(crate) fn set_aside(
        &self,
        name: ObjectName,
        folder: BorrowedFd<'_>,
        may_go: &dyn Fn(&File) -> Result<bool, Errno>,
    ) -> Result<bool, Errno> {
        rustix::fs::renameat(&self.root, name.path(), folder, name.file()).map_err(errno)?;
        self.kept().forget(name);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::openat(folder, name.file(), flags, Mode::empty()).map_err(errno);
        let goes = opened.and_then(|object| may_go(&File::from(object)));
        if goes == Ok(true) {
            rustix::fs::unlinkat(folder, name.file(), rustix::fs::AtFlags::empty()).map_err(errno)?;
            return goes;
        }
        self.put_back(name, folder)?;
        goes
    }

    /// Puts an object back that was set aside, unless there is one again.
    pub(crate) fn put_back(&self, name: ObjectName, folder: BorrowedFd<'_>) -> Result<(), Errno> {
        let into = sub(self.root.as_fd(), &name.folder()).map_err(|_| Errno::EIO)?;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let renamed = rustix::fs::renameat_with(folder, name.file(), &into, name.file(), flags);
        self.kept().forget(name);
        match renamed {
            Err(Kernel::EXIST) => Ok(()),
            renamed => renamed.map_err(errno),
        }
    }

    fn kept(&self) -> MutexGuard<'_, OpenObjects> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the object, or opens it if it is there already.
    pub fn make(&self, name: ObjectName) -> Result<Object, Errno> {
        match self.open(name) {
            Err(Errno::ESTALE) => {}
            opened => return opened,
        }
        let flags = OFlags::RDWR | OFlags::CREATE;
        let before = self.kept().changes;
        let made = match self.openat(name, flags) {
            Err(Kernel::NOENT) => {
                sub(self.root.as_fd(), &name.folder()).map_err(|_| Errno::EIO)?;
                self.openat(name, flags)
            }
            made => made,
        };
        Ok(self.keep(name, made.map_err(errno)?, before))
    }

    /// Makes the object of a new file. What an earlier life of the namespace left under its name,
    /// with bytes from before `since_ns`, is removed: a new file never shows the bytes of another.
    pub fn make_new(&self, name: ObjectName, since_ns: i64) -> Result<Object, Errno> {
        match self.open(name) {
            Err(Errno::ESTALE) => {}
            opened => {
                let opened = opened?;
                let stat = stat(&opened)?;
                let meta = opened.metadata().map_err(|_| Errno::EIO)?;
                let made = meta.created().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
                let made_ns = made.map_or(stat.modified_ns, |at| at.as_nanos() as i64);
                // Somebody else may have opened the new file first, and have made its object.
                if stat.bytes == 0 || made_ns >= since_ns {
                    return Ok(opened);
                }
                tracing::warn!("namespace: removing an object that was left under a new file's name");
                self.remove(name)?;
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
                let before = self.kept().changes;
                return Ok(self.keep(name, self.openat(name, flags).map_err(errno)?, before));
            }
        }
        self.make(name)
    }

    /// Opens the object. `ESTALE` if it is not here.
    pub fn open(&self, name: ObjectName) -> Result<Object, Errno> {
        let before = {
            let kept = self.kept();
            if let Some(file) = kept.files.get(&name) {
                return Ok(Arc::clone(file));
            }
            kept.changes
        };
        match self.openat(name, OFlags::RDWR) {
            Err(Kernel::NOENT) if self.bring_back(name)? => {
                let before = self.kept().changes;
                match self.openat(name, OFlags::RDWR) {
                    Ok(file) => Ok(self.keep(name, file, before)),
                    Err(Kernel::NOENT) => Err(Errno::ESTALE),
                    Err(error) => Err(errno(error)),
                }
            }
            Ok(file) => Ok(self.keep(name, file, before)),
            Err(Kernel::NOENT) => Err(Errno::ESTALE),
            Err(error) => Err(errno(error)),
        }
    }

    /// A descriptor of its own for another program.
    pub fn descriptor(&self, name: ObjectName, write: bool) -> Result<OwnedFd, Errno> {
        let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let opened = match self.openat(name, flags) {
            Err(Kernel::NOENT) if self.bring_back(name)? => self.openat(name, flags),
            opened => opened,
        };
        match opened {
            Err(Kernel::NOENT) => Err(Errno::ESTALE),
            opened => opened.map_err(errno),
        }
    }

    fn openat(&self, name: ObjectName, flags: OFlags) -> Result<OwnedFd, Kernel> {
        let path = name.path();
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
        rustix::fs::openat(&self.root, path, flags, Mode::from_raw_mode(0o600))
    }

    /// Puts a whole file in the place of the object, if there is one. The disk has it under its new
    /// name when this returns, if it had its bytes before.
    pub fn put(&self, name: ObjectName, folder: BorrowedFd<'_>, file: &str) -> Result<(), Errno> {
        let into = sub(self.root.as_fd(), &name.folder()).map_err(|_| Errno::EIO)?;
        let renamed = rustix::fs::renameat(folder, file, &into, name.file()).map_err(errno);
        self.kept().forget(name);
        renamed?;
        rustix::fs::fsync(&into).and_then(|()| rustix::fs::fsync(&self.root)).map_err(errno)
    }

    /// Keeps what was opened when the count of changes was `before`, unless it may be dead by now.
    fn keep(&self, name: ObjectName, file: OwnedFd, before: u64) -> Object {
        let mut kept = self.kept();
        if let Some(there) = kept.files.get(&name) {
            return Arc::clone(there);
        }
        if kept.changes != before {
            return Arc::new(File::from(file));
        }
        while kept.order.len() >= OPEN_MAX {
            if let Some(oldest) = kept.order.pop_front() {
                kept.files.remove(&oldest);
            }
        }
        let file = Arc::new(File::from(file));
        kept.order.push_back(name);
        kept.files.insert(name, Arc::clone(&file));
        file
    }

    /// Ends the object. What has it open keeps its bytes.
    pub fn remove(&self, name: ObjectName) -> Result<(), Errno> {
        let unlinked = rustix::fs::unlinkat(&self.root, name.path(), rustix::fs::AtFlags::empty());
        self.removed(name, unlinked)
    }

    /// The same, at once: the bytes stay in `folder`, until somebody removes them there.
    pub(crate) fn remove_by(&self, name: ObjectName, folder: BorrowedFd<'_>) -> Result<(), Errno> {
        match rustix::fs::renameat(&self.root, name.path(), folder, name.file()) {
            Ok(()) => self.removed(name, Ok(())),
            Err(_) => self.remove(name),
        }
    }

    fn removed(&self, name: ObjectName, unlinked: Result<(), Kernel>) -> Result<(), Errno> {
        self.kept().forget(name);
        if let Some(absent) = self.absent.get() {
            absent.gone(name);
        }
        match unlinked {
            Ok(()) | Err(Kernel::NOENT) => Ok(()),
            Err(error) => Err(errno(error)),
        }
    }

    /// All objects of the `at`-th folder; `None` behind the last folder. An error if not all of
    /// them could be listed: then nobody may count the folder as done.
    pub fn folder(&self, at: u64) -> Option<Result<Vec<ObjectName>, Errno>> {
        (at < FOLDERS).then(|| self.list(&format!("{at:03x}")).map_err(errno))
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectName>, Kernel> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = match rustix::fs::openat(&self.root, folder, flags, Mode::empty()) {
            // A folder is made for its first object.
            Err(Kernel::NOENT) => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd)? {
            names.extend(entry?.file_name().to_str().ok().and_then(ObjectName::parse));
        }
        Ok(names)
    }

    /// The disk that they are on.
    pub fn disk(&self) -> Result<Disk, Errno> {
        let stat = rustix::fs::fstatvfs(&self.root).map_err(errno)?;
        Ok(Disk {
            bytes: stat.f_blocks * stat.f_frsize,
            bytes_free: stat.f_bavail * stat.f_frsize,
            inodes: stat.f_files,
            inodes_free: stat.f_favail,
        })
    }
}

/// A disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Bytes.
    pub bytes: u64,
    /// Bytes that the daemon may still use.
    pub bytes_free: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes that the daemon may still make.
    pub inodes_free: u64,
}

/// What the disk says of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    /// Its bytes.
    pub bytes: u64,
    /// Its units of 512 bytes on disk.
    pub blocks: u64,
    /// When it was changed last, in nanoseconds since the epoch.
    pub modified_ns: i64,
}

/// A function on an object's bytes, all numbers as a caller sent them.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    /// READ, WRITE, TRUNCATE, ALLOCATE, SEEK of [`namespace_fn`].
    pub what: u16,
    /// First byte, or new length.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// As the function says.
    pub flags: u32,
}

/// Reads at `offset`, to the end of `into` or of the file.
pub fn read(object: &File, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut got = 0;
    while got < into.len() {
        let mut rest = [IoSliceMut::new(&mut into[got..])];
        match rustix::io::preadv(object, &mut rest, offset + got as u64) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(Kernel::INTR) => {}
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(got)
}

/// Writes all at `offset`, or at the file's end. How many were written before the disk was full; an
/// error only if none were.
pub fn write(object: &File, bytes: &[u8], offset: u64, append: bool) -> Result<usize, Errno> {
    let flags = if append { ReadWriteFlags::APPEND } else { ReadWriteFlags::empty() };
    let mut put = 0;
    while put < bytes.len() {
        let rest = [IoSlice::new(&bytes[put..])];
        match rustix::io::pwritev2(object, &rest, offset + put as u64, flags) {
            Ok(0) => break,
            Ok(count) => put += count,
            Err(Kernel::INTR) => {}
            Err(_) if put > 0 => break,
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(put)
}

/// Does TRUNCATE, ALLOCATE or SEEK.
pub fn act(object: &File, act: Act) -> Result<u64, Errno> {
    if act.offset > FILE_BYTES_MAX || act.bytes > FILE_BYTES_MAX - act.offset {
        return Err(if act.what == namespace_fn::SEEK { Errno::ENXIO } else { Errno::EFBIG });
    }
    match act.what {
        namespace_fn::TRUNCATE => {
            rustix::fs::ftruncate(object, act.offset).map(|()| act.offset).map_err(errno)
        }
        namespace_fn::ALLOCATE => {
            let known = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
            let flags = FallocateFlags::from_bits(act.flags).filter(|flags| known.contains(*flags));
            let flags = flags.ok_or(Errno::EOPNOTSUPP)?;
            let done = rustix::fs::fallocate(object, flags, act.offset, act.bytes);
            done.map(|()| 0).map_err(errno)
        }
        namespace_fn::SEEK => {
            let from = match act.flags {
                0 => SeekFrom::Data(act.offset),
                1 => SeekFrom::Hole(act.offset),
                _ => return Err(Errno::EINVAL),
            };
            // The position of the descriptor is nobody's: all reads and writes name their place.
            rustix::fs::seek(object, from).map_err(errno)
        }
        _ => Err(Errno::ENOSYS),
    }
}

/// When anything of an object changed last, in nanoseconds since the epoch.
pub fn changed_ns(object: &File) -> Result<i64, Errno> {
    let meta = object.metadata().map_err(|_| Errno::EIO)?;
    Ok(meta.ctime().saturating_mul(1_000_000_000).saturating_add(meta.ctime_nsec()))
}

/// What the disk says of an object.
pub fn stat(object: &File) -> Result<ObjectStat, Errno> {
    let meta = object.metadata().map_err(|_| Errno::EIO)?;
    Ok(ObjectStat {
        bytes: meta.len(),
        blocks: meta.blocks(),
        modified_ns: meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects() -> (tempfile::TempDir, Objects) {
        let dir = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(File::open(dir.path()).unwrap());
        (dir, Objects::new(root))
    }

    fn name(id: u64, generation: u64) -> ObjectName {
        ObjectName { id: InodeId(id), generation }
    }

    #[test]
    fn a_generation_has_its_own_bytes_and_a_missing_one_is_stale() {
        let (_dir, objects) = objects();
        assert_eq!(objects.open(name(7, 1)).unwrap_err(), Errno::ESTALE);
        let first = objects.make(name(7, 1)).unwrap();
        write(&first, b"one", 0, false).unwrap();
        let second = objects.make(name(7, 2)).unwrap();
        write(&second, b"second", 0, false).unwrap();
        let mut got = [0; 16];
        assert_eq!(read(&objects.open(name(7, 1)).unwrap(), &mut got, 0), Ok(3));
        assert_eq!(&got[..3], b"one");
        objects.remove(name(7, 1)).unwrap();
        assert_eq!(objects.open(name(7, 1)).unwrap_err(), Errno::ESTALE);
        assert_eq!(read(&first, &mut got, 0), Ok(3), "what is open keeps its bytes");
        let listed: Vec<ObjectName> =
            (0..).map_while(|at| objects.folder(at)).flat_map(|names| names.unwrap()).collect();
        assert_eq!(listed, [name(7, 2)]);
    }

    #[test]
    fn an_object_goes_at_once_and_its_bytes_later() {
        let (dir, objects) = objects();
        let gone = sub(File::open(dir.path()).unwrap().as_fd(), "gone").unwrap();
        let object = objects.make(name(7, 1)).unwrap();
        write(&object, b"bytes", 0, false).unwrap();
        assert_eq!(objects.remove_by(name(7, 1), gone.as_fd()), Ok(()));
        assert_eq!(objects.open(name(7, 1)).unwrap_err(), Errno::ESTALE);
        assert_eq!(std::fs::read(dir.path().join("gone").join(name(7, 1).file())).unwrap(), b"bytes");
        assert_eq!(read(&object, &mut [0; 9], 0), Ok(5), "what is open keeps its bytes");
        assert_eq!(objects.remove_by(name(7, 1), gone.as_fd()), Ok(()), "it is gone already");
        // Where there is no such folder any more.
        objects.make(name(7, 2)).unwrap();
        std::fs::remove_dir_all(dir.path().join("gone")).unwrap();
        assert_eq!(objects.remove_by(name(7, 2), gone.as_fd()), Ok(()));
        assert_eq!(objects.open(name(7, 2)).unwrap_err(), Errno::ESTALE);
    }

    #[test]
    fn a_folder_that_cannot_be_listed_is_not_empty() {
        let (dir, objects) = objects();
        objects.make(name(7, 1)).unwrap();
        let folder = name(7, 1).folder();
        let at = u64::from_str_radix(&folder, 16).unwrap();
        assert_eq!(objects.folder(at), Some(Ok(vec![name(7, 1)])));
        std::fs::rename(dir.path().join(&folder), dir.path().join("elsewhere")).unwrap();
        assert_eq!(objects.folder(at), Some(Ok(Vec::new())), "not made yet");
        std::fs::write(dir.path().join(&folder), b"").unwrap();
        assert!(matches!(objects.folder(at), Some(Err(_))));
        assert_eq!(objects.folder(FOLDERS), None);
    }

    #[test]
    fn what_was_opened_before_a_replacement_is_not_kept_after_it() {
        let (dir, objects) = objects();
        let incoming = sub(File::open(dir.path()).unwrap().as_fd(), "incoming").unwrap();
        write(&objects.make(name(7, 1)).unwrap(), b"old", 0, false).unwrap();
        objects.kept().forget(name(7, 1));
        // As a thread that was stopped between opening and keeping.
        let before = objects.kept().changes;
        let late = objects.openat(name(7, 1), OFlags::RDWR).unwrap();
        std::fs::write(dir.path().join("incoming/copy"), b"fresh").unwrap();
        objects.put(name(7, 1), incoming.as_fd(), "copy").unwrap();
        objects.keep(name(7, 1), late, before);
        let mut got = [0; 16];
        assert_eq!(read(&objects.open(name(7, 1)).unwrap(), &mut got, 0), Ok(5));
        assert_eq!(&got[..5], b"fresh");
        let before = objects.kept().changes;
        objects.kept().files.clear();
        let late = objects.openat(name(7, 1), OFlags::RDWR).unwrap();
        objects.remove(name(7, 1)).unwrap();
        objects.keep(name(7, 1), late, before);
        assert_eq!(objects.open(name(7, 1)).unwrap_err(), Errno::ESTALE);
    }

    #[test]
    fn a_new_file_never_has_the_bytes_of_an_old_object() {
        let (_dir, objects) = objects();
        let since = crate::driver::wall_ns();
        write(&objects.make(name(7, 1)).unwrap(), b"old", 0, false).unwrap();
        assert_eq!(stat(&objects.make_new(name(7, 1), since - 1_000_000_000).unwrap()).unwrap().bytes, 3);
        let new = objects.make_new(name(7, 1), since + 1_000_000_000).unwrap();
        assert_eq!(stat(&new).unwrap().bytes, 0);
        assert_eq!(stat(&objects.open(name(7, 1)).unwrap()).unwrap().bytes, 0);
        assert_eq!(stat(&objects.make_new(name(8, 1), since).unwrap()).unwrap().bytes, 0);
    }

    #[test]
    fn more_objects_than_may_be_open() {
        let (_dir, objects) = objects();
        let names: Vec<ObjectName> = (0..OPEN_MAX as u64 + 50).map(|id| name(id, 1)).collect();
        for name in &names {
            write(&objects.make(*name).unwrap(), &name.id.0.to_string().into_bytes(), 0, false).unwrap();
        }
        for name in &names {
            let mut got = [0; 8];
            let count = read(&objects.open(*name).unwrap(), &mut got, 0).unwrap();
            assert_eq!(got[..count], name.id.0.to_string().into_bytes());
        }
        assert!(objects.kept().files.len() <= OPEN_MAX);
        let kept = objects.kept();
        assert_eq!(kept.files.len(), kept.order.len());
    }

    #[test]
    fn absurd_numbers_are_refused_without_harm() {
        let (_dir, objects) = objects();
        let object = objects.make(name(1, 1)).unwrap();
        write(&object, b"0123456789", 0, false).unwrap();
        let ask = |what, offset, bytes, flags| act(&object, Act { what, offset, bytes, flags });
        use namespace_fn::{ALLOCATE, SEEK, TRUNCATE};
        assert_eq!(ask(TRUNCATE, u64::MAX, 0, 0), Err(Errno::EFBIG));
        assert_eq!(ask(ALLOCATE, 5, u64::MAX, 0), Err(Errno::EFBIG));
        assert_eq!(ask(ALLOCATE, 0, 0, 0), Err(Errno::EINVAL));
        assert_eq!(ask(ALLOCATE, 0, 4096, 0x08), Err(Errno::EOPNOTSUPP), "collapse moves bytes");
        assert_eq!(ask(ALLOCATE, 0, 4096, 0x8000_0000), Err(Errno::EOPNOTSUPP));
        assert_eq!(ask(SEEK, u64::MAX, 0, 0), Err(Errno::ENXIO));
        assert_eq!(ask(SEEK, 0, 0, 9), Err(Errno::EINVAL));
        assert_eq!(ask(SEEK, 3, 0, 0), Ok(3));
        assert_eq!(ask(SEEK, 3, 0, 1), Ok(10));
        assert_eq!(ask(ALLOCATE, 2, 3, 0x03), Ok(0));
        let mut got = [0; 10];
        assert_eq!(read(&object, &mut got, 0), Ok(10));
        assert_eq!(&got, b"01\0\0\x0056789");
        assert_eq!(write(&object, b"ab", 0, true), Ok(2));
        assert_eq!(stat(&object).unwrap().bytes, 12);
    }
}
