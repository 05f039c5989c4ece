//! Open files, and which of them the kernel reads and writes itself.
//!
//! The kernel wants one backing id for each inode at a time: all passthrough opens of an inode
//! share the [`BackingId`] of the first. It ends with the last of them. The kernel has ended its
//! own use before it sends RELEASE, so the id lives at least as long as the kernel needs it.

use crate::convert::how;
use crate::tree::{Credentials, Errno, Handle, Io, Node, Opened, Result, Tree};
use fuser::{BackingId, FileHandle, FopenFlags};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// An open file, as the adapter knows it.
pub(crate) struct OpenFile {
    /// The inode.
    pub(crate) node: Node,
    /// What the tree calls it.
    pub(crate) handle: Handle,
    /// The file on this machine, if it has one.
    pub(crate) local: Option<Arc<OwnedFd>>,
    /// Whether the kernel keeps its bytes, until the next open or a change that it is told of.
    pub(crate) is_cached: bool,
    /// The user who opened it.
    opener: u32,
    /// Identity of the local file that the kernel reads and writes itself.
    backed: Option<(u64, u64)>,
}

/// How an open is answered.
pub(crate) struct Answer {
    pub(crate) file: FileHandle,
    pub(crate) flags: FopenFlags,
    pub(crate) backing: Option<Arc<BackingId>>,
}

/// One backing id in use.
struct Backed {
    id: Arc<BackingId>,
    opens: usize,
}

/// All open files.
pub(crate) struct Opens {
    files: RwLock<HashMap<u64, Arc<OpenFile>>>,
    /// With the users who opened them.
    directories: RwLock<HashMap<u64, (Handle, u32)>>,
    next: AtomicU64,
    backed: Mutex<HashMap<(Node, u64, u64), Backed>>,
    passthrough: AtomicBool,
}

impl Opens {
    /// `passthrough`: whether the kernel offers it.
    pub(crate) fn new() -> Opens {
        Opens {
            files: RwLock::default(),
            directories: RwLock::default(),
            next: AtomicU64::new(1),
            backed: Mutex::default(),
            passthrough: AtomicBool::new(false),
        }
    }

    /// The kernel has agreed to passthrough.
    pub(crate) fn allow_passthrough(&self) {
        self.passthrough.store(true, Ordering::Relaxed);
    }

    /// Enters a file that user `opener` has opened. `register` gives a local file to the kernel.
    pub(crate) fn enter(
        &self,
        node: Node,
        opened: Opened,
        opener: u32,
        register: impl Fn(BorrowedFd<'_>) -> std::io::Result<BackingId>,
    ) -> Answer {
        let mut flags = FopenFlags::empty();
        let mut backing = None;
        let mut backed = None;
        let mut local = None;
        let is_cached = matches!(opened.io, Io::Cached);
        match opened.io {
            Io::Cached => {}
            Io::Direct => flags |= FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            Io::Local(file) => {
                if let Some((key, id)) = self.back(node, &file, register) {
                    (backed, backing) = (Some(key), Some(id));
                } else {
                    // Others may write the file too: nothing of it stays in the page cache here.
                    flags |= FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
                }
                local = Some(file);
            }
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let file = Arc::new(OpenFile { node, handle: opened.handle, local, is_cached, opener, backed });
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(number, file);
        Answer { file: FileHandle(number), flags, backing }
    }

    /// The backing id of a local file, shared with its other opens; `None` if the kernel refuses.
    fn back(
        &self,
        node: Node,
        file: &OwnedFd,
        register: impl Fn(BorrowedFd<'_>) -> std::io::Result<BackingId>,
    ) -> Option<((u64, u64), Arc<BackingId>)> {
        if !self.passthrough.load(Ordering::Relaxed) {
            return None;
        }
        let stat = rustix::fs::fstat(file).ok()?;
        let key = (stat.st_dev, stat.st_ino);
        let mut backed = self.backed();
        if let Some(shared) = backed.get_mut(&(node, key.0, key.1)) {
            shared.opens += 1;
            return Some((key, Arc::clone(&shared.id)));
        }
        match register(file.as_fd()) {
            Ok(id) => {
                let id = Arc::new(id);
                backed.insert((node, key.0, key.1), Backed { id: Arc::clone(&id), opens: 1 });
                Some((key, id))
            }
            Err(error) => {
                let is_for_good =
                    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ELOOP | libc::ENOTTY));
                if is_for_good && self.passthrough.swap(false, Ordering::Relaxed) {
                    tracing::info!(%error, "the kernel does not read and write local files itself");
                }
                None
            }
        }
    }

    /// The open file with this number.
    pub(crate) fn get(&self, file: FileHandle) -> Option<Arc<OpenFile>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(&file.0).cloned()
    }

    /// The user who opened this file or directory.
    pub(crate) fn opener(&self, file: FileHandle) -> Option<u32> {
        let directories = self.directories.read().unwrap_or_else(PoisonError::into_inner);
        let of_directory = directories.get(&file.0).map(|(_, opener)| *opener);
        of_directory.or_else(|| self.get(file).map(|file| file.opener))
    }

    /// The inodes of all open files.
    pub(crate) fn nodes(&self) -> HashSet<Node> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.values().map(|file| file.node).collect()
    }

    /// Ends an open file.
    pub(crate) fn leave(&self, file: FileHandle) -> Option<Arc<OpenFile>> {
        let file = self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&file.0)?;
        if let Some((dev, ino)) = file.backed {
            let mut backed = self.backed();
            if let Some(shared) = backed.get_mut(&(file.node, dev, ino)) {
                shared.opens -= 1;
                if shared.opens == 0 {
                    backed.remove(&(file.node, dev, ino));
                }
            }
        }
        Some(file)
    }

    /// Enters a directory that user `opener` has opened.
    pub(crate) fn enter_directory(&self, handle: Handle, opener: u32) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.directories.write().unwrap_or_else(PoisonError::into_inner).insert(number, (handle, opener));
        FileHandle(number)
    }

    /// The tree's handle of an open directory.
    pub(crate) fn directory(&self, file: FileHandle) -> Option<Handle> {
        self.directories
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&file.0)
            .map(|(handle, _)| *handle)
    }

    /// Ends an open directory.
    pub(crate) fn leave_directory(&self, file: FileHandle) -> Option<Handle> {
        let mut directories = self.directories.write().unwrap_or_else(PoisonError::into_inner);
        directories.remove(&file.0).map(|(handle, _)| handle)
    }

    fn backed(&self) -> MutexGuard<'_, HashMap<(Node, u64, u64), Backed>> {
        self.backed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The flag of an open for `execve`, which only the kernel sets (`__FMODE_EXEC`).
const FOR_EXEC: i32 = 0x20;

/// Opens a file with the flags of `open`, as the kernel has them.
///
/// For `execve` the kernel has asked for the right to execute already, and the caller needs no
/// right to read: without it, the kernel lets nobody look into the process.
pub(crate) fn open_with(tree: &dyn Tree, who: &Credentials, node: Node, flags: i32) -> Result<Opened> {
    match tree.open(who, node, how(flags)) {
        Err(Errno::EACCES) if flags & FOR_EXEC != 0 => {
            tree.open(&Credentials { uid: 0, gid: 0, groups: Vec::new() }, node, how(flags))
        }
        opened => opened,
    }
}
