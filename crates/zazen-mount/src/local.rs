//! A plain directory of this machine as a tree.
//!
//! Proves the adapter without any daemon: what a program sees under the mount must be what it sees
//! in the directory. As root, each operation takes the caller's user, group and groups, so that the
//! kernel decides as it does for the caller. Mounts below the directory are refused (`EXDEV`).
//! Locks are known to this tree only.

use crate::local_io::errno_of;
use crate::lock_table::LockTable;
use crate::tree::{
    Blocking, Changes, Credentials, Errno, Handle, How, InodeStat, Io, Kind, Listed, Lock, Name, Node,
    Opened, Owner, ROOT, Range, Result, Space, Tree, When,
};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::process::{Gid, Uid};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Cookies of a listing are its places, from here on.
const COOKIES_FROM: u64 = 256;

/// An inode that the kernel knows.
struct Known {
    at: Arc<OwnedFd>,
    lookups: u64,
}

/// What was opened.
enum Open {
    File(Node, Arc<OwnedFd>),
    Directory(Arc<OwnedFd>, Vec<(Name, Node, Kind)>),
}

/// A directory of this machine.
pub struct LocalTree {
    root: Arc<OwnedFd>,
    root_node: u64,
    device: u64,
    as_callers: bool,
    known: Mutex<HashMap<Node, Known>>,
    open: Mutex<HashMap<Handle, Open>>,
    next: AtomicU64,
    locks: LockTable,
}

/// The calling thread has the caller's file-system identity until this is dropped.
struct Acting {
    changed: bool,
}

impl Acting {
    fn as_caller(who: &Credentials, wanted: bool) -> Result<Acting> {
        let acting = Acting { changed: wanted };
        if wanted {
            let groups: Vec<Gid> = who.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
            rustix::thread::set_thread_groups(&groups).map_err(errno_of)?;
            set_fs_ids(who.uid, who.gid);
        }
        Ok(acting)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        if self.changed {
            set_fs_ids(0, 0);
            _ = rustix::thread::set_thread_groups(&[]);
        }
    }
}

fn set_fs_ids(uid: u32, gid: u32) {
    // SAFETY: both take a number and return one; they change the calling thread alone.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}

impl LocalTree {
    /// The tree below `directory`. Sets the process's umask to 0: the kernel has applied the
    /// caller's.
    pub fn new(directory: &Path) -> std::io::Result<LocalTree> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(directory, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&root)?;
        rustix::process::umask(Mode::empty());
        Ok(LocalTree {
            root: Arc::new(root),
            root_node: stat.st_ino,
            device: stat.st_dev,
            as_callers: rustix::process::geteuid().is_root(),
            known: Mutex::default(),
            open: Mutex::default(),
            next: AtomicU64::new(1),
            locks: LockTable::default(),
        })
    }

    fn acting(&self, who: &Credentials) -> Result<Acting> {
        Acting::as_caller(who, self.as_callers)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Node, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self) -> MutexGuard<'_, HashMap<Handle, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, node: Node) -> Result<Arc<OwnedFd>> {
        if node == ROOT {
            return Ok(Arc::clone(&self.root));
        }
        self.known().get(&node).map(|known| Arc::clone(&known.at)).ok_or(Errno::ESTALE)
    }

    fn node_of(&self, inode: u64) -> Result<Node> {
        match inode {
            inode if inode == self.root_node => Ok(ROOT),
            ROOT => Err(Errno::EIO),
            inode => Ok(inode),
        }
    }

    fn stat_of(&self, file: &OwnedFd) -> Result<InodeStat> {
        let stat = rustix::fs::fstat(file).map_err(errno_of)?;
        if stat.st_dev != self.device {
            return Err(Errno::EXDEV);
        }
        let ns = |seconds: i64, nanos: u64| seconds * 1_000_000_000 + nanos as i64;
        Ok(InodeStat {
            node: self.node_of(stat.st_ino)?,
            kind: Kind::of((stat.st_mode >> 12) as u8).ok_or(Errno::EIO)?,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            links: stat.st_nlink as u32,
            bytes: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            accessed_ns: ns(stat.st_atime, stat.st_atime_nsec),
            modified_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
            changed_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
            device: stat.st_rdev as u32,
            keep: true,
        })
    }

    /// Enters what a name leads to: one lookup.
    fn enter(&self, parent: &OwnedFd, name: &OsStr) -> Result<InodeStat> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(errno_of)?;
        let stat = self.stat_of(&at)?;
        let mut known = self.known();
        known.entry(stat.node).or_insert_with(|| Known { at: Arc::new(at), lookups: 0 }).lookups += 1;
        Ok(stat)
    }

    fn enter_handle(&self, open: Open) -> Handle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.opened().insert(handle, open);
        handle
    }

    fn file(&self, handle: Handle) -> Result<(Node, Arc<OwnedFd>)> {
        match self.opened().get(&handle) {
            Some(Open::File(node, file)) => Ok((*node, Arc::clone(file))),
            _ => Err(Errno::EBADF),
        }
    }

    fn enter_file(&self, node: Node, file: OwnedFd, mode: u32) -> Opened {
        let file = Arc::new(file);
        let handle = self.enter_handle(Open::File(node, Arc::clone(&file)));
        Opened { handle, io: Io::Local(file), mode: Some(mode), stale: false }
    }

    /// Opens a known inode anew; the caller's rights were checked before.
    fn reopen(&self, at: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
        rustix::fs::open(path_of(at), flags | OFlags::CLOEXEC, Mode::empty()).map_err(errno_of)
    }
}

/// The path by which a descriptor without rights is opened again.
fn path_of(at: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", at.as_raw_fd()))
}

fn os(name: &Name) -> &OsStr {
    OsStr::from_bytes(name.as_bytes())
}

fn timespec(when: Option<When>) -> Timespec {
    let (tv_sec, tv_nsec) = match when {
        None => (0, rustix::fs::UTIME_OMIT),
        Some(When::Now) => (0, rustix::fs::UTIME_NOW),
        Some(When::At(ns)) => (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000)),
    };
    Timespec { tv_sec, tv_nsec: tv_nsec as _ }
}

fn change_mode(at: &OwnedFd, mode: u32) -> Result<()> {
    // SAFETY: the path is a NUL-terminated literal and the descriptor is open until the call ends.
    let done = unsafe {
        libc::syscall(libc::SYS_fchmodat2, at.as_raw_fd(), c"".as_ptr(), mode, libc::AT_EMPTY_PATH)
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

fn last_errno() -> Errno {
    Errno::of(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) as u16)
}

impl Tree for LocalTree {
    fn lookup(&self, who: &Credentials, parent: Node, name: &Name) -> Result<InodeStat> {
        let parent = self.at(parent)?;
        let _acting = self.acting(who)?;
        self.enter(&parent, os(name))
    }

    fn forget(&self, node: Node, count: u64) {
        let mut known = self.known();
        if let Some(entry) = known.get_mut(&node) {
            entry.lookups = entry.lookups.saturating_sub(count);
            if entry.lookups == 0 {
                known.remove(&node);
            }
        }
    }

    fn stat(&self, _who: &Credentials, node: Node, handle: Option<Handle>) -> Result<InodeStat> {
        if let Some((_, file)) = handle.and_then(|handle| self.file(handle).ok()) {
            return self.stat_of(&file);
        }
        self.stat_of(&*self.at(node)?)
    }

    fn set(
        &self,
        who: &Credentials,
        node: Node,
        handle: Option<Handle>,
        changes: &Changes,
    ) -> Result<InodeStat> {
        let at = self.at(node)?;
        if let Some(bytes) = changes.bytes {
            let file = match handle.and_then(|handle| self.file(handle).ok()) {
                Some((_, file)) => file,
                None => Arc::new(self.reopen(&at, OFlags::WRONLY)?),
            };
            let _acting = self.acting(who)?;
            rustix::fs::ftruncate(&*file, bytes).map_err(errno_of)?;
        }
        let _acting = self.acting(who)?;
        if changes.uid.is_some() || changes.gid.is_some() || *changes == Changes::default() {
            let (uid, gid) = (changes.uid.map(Uid::from_raw), changes.gid.map(Gid::from_raw));
            rustix::fs::chownat(&*at, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(errno_of)?;
        }
        if let Some(mode) = changes.mode {
            change_mode(&at, mode)?;
        }
        if changes.accessed.is_some() || changes.modified.is_some() {
            let times = Timestamps {
                last_access: timespec(changes.accessed),
                last_modification: timespec(changes.modified),
            };
            rustix::fs::utimensat(&*at, c"", &times, AtFlags::EMPTY_PATH).map_err(errno_of)?;
        }
        self.stat_of(&at)
    }

    fn read_link(&self, _who: &Credentials, node: Node) -> Result<Vec<u8>> {
        let at = self.at(node)?;
        rustix::fs::readlinkat(&*at, c"", Vec::new()).map(std::ffi::CString::into_bytes).map_err(errno_of)
    }

    fn make_node(
        &self,
        who: &Credentials,
        parent: Node,
        name: &Name,
        kind: Kind,
        mode: u32,
        device: u32,
    ) -> Result<InodeStat> {
        let parent = self.at(parent)?;
        let _acting = self.acting(who)?;
        let file_type = rustix::fs::FileType::from_raw_mode(u32::from(kind as u8) << 12);
        let mode = Mode::from_raw_mode(mode);
        rustix::fs::mknodat(&*parent, os(name), file_type, mode, u64::from(device)).map_err(errno_of)?;
        self.enter(&parent, os(name))
    }

    fn make_directory(&self, who: &Credentials, parent: Node, name: &Name, mode: u32) -> Result<InodeStat> {
        let parent = self.at(parent)?;
        let _acting = self.acting(who)?;
        rustix::fs::mkdirat(&*parent, os(name), Mode::from_raw_mode(mode)).map_err(errno_of)?;
        self.enter(&parent, os(name))
    }

    fn make_link(&self, who: &Credentials, parent: Node, name: &Name, target: &[u8]) -> Result<InodeStat> {
        let parent = self.at(parent)?;
        let _acting = self.acting(who)?;
        rustix::fs::symlinkat(OsStr::from_bytes(target), &*parent, os(name)).map_err(errno_of)?;
        self.enter(&parent, os(name))
    }

    fn unlink(&self, who: &Credentials, parent: Node, name: &Name) -> Result<()> {
        let parent = self.at(parent)?;
        let _acting = self.acting(who)?;
        rustix::fs::unlinkat(&*parent, os(name), AtFlags::empty()).map_err(errno_of)
    }

    fn remove_directory(&self, who: &Credentials, parent: Node, name: &Name) -> Result<()> {
        let parent = self.at(parent)?;
        let _acting = self.acting(who)?;
        rustix::fs::unlinkat(&*parent, os(name), AtFlags::REMOVEDIR).map_err(errno_of)
    }

    fn rename(
        &self,
        who: &Credentials,
        parent: Node,
        name: &Name,
        new_parent: Node,
        new_name: &Name,
        flags: u32,
    ) -> Result<()> {
        let (parent, new_parent) = (self.at(parent)?, self.at(new_parent)?);
        let _acting = self.acting(who)?;
        let flags = RenameFlags::from_bits_retain(flags);
        rustix::fs::renameat_with(&*parent, os(name), &*new_parent, os(new_name), flags).map_err(errno_of)
    }

    fn link(&self, _who: &Credentials, node: Node, parent: Node, name: &Name) -> Result<InodeStat> {
        let (at, parent) = (self.at(node)?, self.at(parent)?);
        // Needs a capability that no other user has; the kernel has checked the caller's rights.
        rustix::fs::linkat(&*at, c"", &*parent, os(name), AtFlags::EMPTY_PATH).map_err(errno_of)?;
        self.enter(&parent, os(name))
    }

    fn open(&self, who: &Credentials, node: Node, how: How) -> Result<Opened> {
        let at = self.at(node)?;
        let mut flags = match (how.read, how.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        flags.set(OFlags::APPEND, how.append);
        let stat = self.stat_of(&at)?;
        let file = self.reopen(&at, flags | OFlags::NONBLOCK)?;
        if how.truncate {
            let _acting = self.acting(who)?;
            rustix::fs::ftruncate(&file, 0).map_err(errno_of)?;
        }
        Ok(self.enter_file(node, file, stat.mode))
    }

    fn create(
        &self,
        who: &Credentials,
        parent: Node,
        name: &Name,
        mode: u32,
        how: How,
    ) -> Result<(InodeStat, Opened)> {
        let parent = self.at(parent)?;
        let mut flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        flags.set(OFlags::APPEND, how.append);
        flags.set(OFlags::TRUNC, how.truncate);
        flags.set(OFlags::EXCL, how.exclusive);
        let mode = Mode::from_raw_mode(mode);
        let file = {
            let _acting = self.acting(who)?;
            rustix::fs::openat(&*parent, os(name), flags, mode).map_err(errno_of)?
        };
        let stat = self.stat_of(&file)?;
        let at = self.reopen(&file, OFlags::PATH)?;
        let mut known = self.known();
        known.entry(stat.node).or_insert_with(|| Known { at: Arc::new(at), lookups: 0 }).lookups += 1;
        drop(known);
        let opened = self.enter_file(stat.node, file, stat.mode);
        Ok((stat, opened))
    }

    fn read(&self, handle: Handle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        crate::local_io::read(&self.file(handle)?.1, offset, buffer)
    }

    fn write(&self, handle: Handle, offset: u64, bytes: &[u8], append: bool) -> Result<usize> {
        crate::local_io::write(&self.file(handle)?.1, offset, bytes, append)
    }

    fn flush(&self, _handle: Handle) -> Result<()> {
        Ok(())
    }

    fn release(&self, handle: Handle) {
        self.opened().remove(&handle);
    }

    fn sync(&self, _handle: Handle, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn seek(&self, handle: Handle, offset: u64, data: bool) -> Result<u64> {
        crate::local_io::seek(&self.file(handle)?.1, offset, data)
    }

    fn open_directory(&self, _who: &Credentials, node: Node) -> Result<Handle> {
        let directory = self.reopen(&*self.at(node)?, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(self.enter_handle(Open::Directory(Arc::new(directory), Vec::new())))
    }

    fn list(
        &self,
        handle: Handle,
        cookie: u64,
        plus: bool,
        take: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<()> {
        let directory = match self.opened().get(&handle) {
            Some(Open::Directory(directory, _)) => Arc::clone(directory),
            _ => return Err(Errno::EBADF),
        };
        // What a listing shows is as of its start: a cookie is a place in it.
        let start = cookie.saturating_sub(COOKIES_FROM);
        if cookie == 0 {
            let mut found = Vec::new();
            for entry in rustix::fs::Dir::read_from(&*directory).map_err(errno_of)? {
                let entry = entry.map_err(errno_of)?;
                let Ok(name) = Name::new(entry.file_name().to_bytes()) else { continue };
                let kind = Kind::of((entry.file_type().as_raw_mode() >> 12) as u8).unwrap_or(Kind::File);
                found.push((name, self.node_of(entry.ino())?, kind));
            }
            if let Some(Open::Directory(_, kept)) = self.opened().get_mut(&handle) {
                *kept = found;
            }
        }
        for place in start.. {
            let (name, node, kind) = match self.opened().get(&handle) {
                Some(Open::Directory(_, kept)) => match kept.get(place as usize) {
                    Some(entry) => entry.clone(),
                    None => break,
                },
                _ => return Err(Errno::EBADF),
            };
            let mut listed = Listed { cookie: COOKIES_FROM + place + 1, name, node, kind, stat: None };
            if plus {
                // It is gone, or leads to another file system.
                let Ok(stat) = self.enter(&directory, os(&listed.name)) else { continue };
                (listed.node, listed.kind, listed.stat) = (stat.node, stat.kind, Some(stat));
            }
            let node = listed.node;
            if !take(listed) {
                if plus {
                    self.forget(node, 1);
                }
                break;
            }
        }
        Ok(())
    }

    fn release_directory(&self, handle: Handle) {
        self.opened().remove(&handle);
    }

    fn sync_directory(&self, handle: Handle) -> Result<()> {
        let directory = match self.opened().get(&handle) {
            Some(Open::Directory(directory, _)) => Arc::clone(directory),
            _ => return Err(Errno::EBADF),
        };
        rustix::fs::fsync(&*directory).map_err(errno_of)
    }

    fn space(&self, _node: Node) -> Result<Space> {
        let stat = rustix::fs::fstatvfs(&*self.root).map_err(errno_of)?;
        Ok(Space {
            bytes: stat.f_blocks * stat.f_frsize,
            bytes_free: stat.f_bavail * stat.f_frsize,
            inodes: stat.f_files,
            inodes_free: stat.f_favail,
        })
    }

    fn get_xattr(&self, _who: &Credentials, node: Node, name: &Name) -> Result<Vec<u8>> {
        let mut value = vec![0; 64 << 10];
        let bytes =
            rustix::fs::getxattr(path_of(&*self.at(node)?), os(name), &mut value).map_err(errno_of)?;
        value.truncate(bytes);
        Ok(value)
    }

    fn set_xattr(&self, _who: &Credentials, node: Node, name: &Name, value: &[u8], flags: i32) -> Result<()> {
        let flags = XattrFlags::from_bits_retain(flags as u32);
        rustix::fs::setxattr(path_of(&*self.at(node)?), os(name), value, flags).map_err(errno_of)
    }

    fn remove_xattr(&self, _who: &Credentials, node: Node, name: &Name) -> Result<()> {
        rustix::fs::removexattr(path_of(&*self.at(node)?), os(name)).map_err(errno_of)
    }

    fn list_xattr(&self, _who: &Credentials, node: Node) -> Result<Vec<Name>> {
        let mut names = vec![0; 64 << 10];
        let bytes = rustix::fs::listxattr(path_of(&*self.at(node)?), &mut names).map_err(errno_of)?;
        let names = names[..bytes].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        names.map(Name::new).collect()
    }

    fn test_lock(&self, handle: Handle, owner: Owner, range: Range, lock: Lock) -> Result<Option<Blocking>> {
        Ok(self.locks.test(self.file(handle)?.0, owner, range, lock))
    }

    fn lock(&self, handle: Handle, owner: Owner, range: Range, lock: Lock) -> Result<()> {
        self.locks.set(self.file(handle)?.0, owner, range, lock)
    }
}
