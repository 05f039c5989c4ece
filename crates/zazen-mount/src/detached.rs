//! A mount that no path of the machine leads to: only who is given its root reaches it.
//!
//! The mount lies in a small tree of its own: folders for a path, and the mount on the last of
//! them. No process has this tree in its view of the machine's mounts, and no table of mounts lists
//! it. The kernel still names the files by that path, and `..` from the mount's root ends at the
//! tree's own, which holds nothing else.
//!
//! Invariants: this process's view of mounts stays as it is; the mount ends when this process ends,
//! however it does, or when [`Detached`] is dropped and no file is open.

use crate::mount::{self, Options, SUBTYPE};
use crate::tree::Tree;
use fuser::Session;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Error as Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::null;
use std::sync::Arc;
use zazen_core::{Error, ErrorKind, Result};

/// Of `open_tree`: a copy of the tree that is in nobody's view.
const OPEN_TREE_CLONE: libc::c_uint = 1;
/// What the small tree may take: a few folders.
const TREE: &CStr = c"mode=0755,size=64k,nr_inodes=1k";

/// A mounted tree without a place. Dropping it ends it once no file is open.
pub struct Detached {
    root: OwnedFd,
    /// The kernel takes the small tree apart when this is closed.
    _whole: OwnedFd,
}

impl Detached {
    /// Mounts `tree` as `path`, an absolute path that need not exist. `lent` is any folder of the
    /// machine: it is used while the mount is made, in a view of mounts that ends then.
    pub fn new(tree: Arc<dyn Tree>, path: &Path, lent: &Path, options: &Options) -> Result<Detached> {
        let device = device().map_err(|error| refused("open /dev/fuse", error))?;
        let (whole, root) = in_own_view(|| attach(&device, path, lent, options))?;
        mount::begin(tree, options, |adapter, config| {
            Session::from_fd(adapter, device.into(), config.acl, config.clone())
                .map_err(|error| refused("begin to serve", error))
        })?;
        Ok(Detached { root, _whole: whole })
    }

    /// The mount's root, as an `O_PATH` descriptor.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Whether this process may make such a mount.
    pub fn check() -> Result<()> {
        device().map_err(|error| refused("open /dev/fuse", error))?;
        in_own_view(|| Ok(()))
    }
}

fn device() -> std::io::Result<File> {
    File::options().read(true).write(true).open("/dev/fuse")
}

fn refused(step: &str, error: Errno) -> Error {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "; the daemon must be root with CAP_SYS_ADMIN, which containers and systemd units withhold"
        }
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => "; this kernel has no FUSE: load the module fuse",
        Some(libc::ENOSYS) => "; this needs Linux 5.2",
        _ => "",
    };
    Error::new(ErrorKind::Config, format!("{step}: {error}{hint}"))
}

/// The result of a system call.
fn checked(outcome: i64, step: &str) -> Result<i64> {
    if outcome < 0 { Err(refused(step, Errno::last_os_error())) } else { Ok(outcome) }
}

/// Runs `work` on a thread that has a view of the machine's mounts to itself, from which nothing
/// reaches others. The view ends with the thread.
fn in_own_view<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let own = || {
        // SAFETY: concerns the calling thread only.
        checked(unsafe { libc::unshare(libc::CLONE_NEWNS) }.into(), "take a view of mounts of its own")?;
        mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None, "make this view private")?;
        work()
    };
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("mounting".into()).spawn_scoped(scope, own);
        thread.map(std::thread::ScopedJoinHandle::join)
    });
    match done {
        Ok(Ok(done)) => done,
        Ok(Err(_)) => Err(Error::new(ErrorKind::Io, "the thread that mounts panicked")),
        Err(error) => Err(Error::io("start the thread that mounts", error)),
    }
}

fn mount(
    source: Option<&CStr>,
    on: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    data: Option<&CStr>,
    step: &str,
) -> Result<()> {
    let text = |text: Option<&CStr>| text.map_or(null(), CStr::as_ptr);
    // SAFETY: strings that live for the call, or none.
    let done = unsafe { libc::mount(text(source), on.as_ptr(), text(kind), flags, text(data).cast()) };
    checked(done.into(), step).map(drop)
}

fn text(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, "a path has no NUL"))
}

/// Builds the small tree on `lent`, in the calling thread's own view, and takes a copy that is in
/// no view: the whole, and the root of the mount in it.
fn attach(device: &File, path: &Path, lent: &Path, options: &Options) -> Result<(OwnedFd, OwnedFd)> {
    let plain = libc::MS_NOSUID | libc::MS_NODEV;
    let (source, inside) = (text(Path::new(&options.source))?, path.strip_prefix("/").unwrap_or(path));
    let (on, place) = (text(lent)?, lent.join(inside));
    mount(Some(&source), &on, Some(c"tmpfs"), plain | libc::MS_NOEXEC, Some(TREE), "mount a small tree")?;
    std::fs::create_dir_all(&place).map_err(|error| refused("make folders in a small tree", error))?;
    let rest = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | libc::MS_NOEXEC;
    mount(None, &on, None, plain | rest, None, "protect a small tree")?;
    let owner = rustix::process::geteuid().as_raw();
    let data = format!(
        "fd={},rootmode=40755,user_id={owner},group_id={},default_permissions{}",
        device.as_raw_fd(),
        rustix::process::getegid().as_raw(),
        if options.allow_other { ",allow_other" } else { "" },
    );
    let (data, kind) = (CString::new(data), CString::new(format!("fuse.{SUBTYPE}")));
    let (Ok(data), Ok(kind)) = (data, kind) else {
        return Err(Error::new(ErrorKind::InvalidArgument, "a mount's options have no NUL"));
    };
    let flags = if options.read_only { plain | libc::MS_RDONLY } else { plain };
    mount(Some(&source), &text(&place)?, Some(&kind), flags, Some(&data), "mount")?;
    let flags = OPEN_TREE_CLONE | (libc::AT_RECURSIVE | libc::O_CLOEXEC).cast_unsigned();
    // SAFETY: a string that lives for the call, and numbers.
    let whole = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, on.as_ptr(), flags) };
    // SAFETY: new, and nobody else's.
    let whole = unsafe { OwnedFd::from_raw_fd(checked(whole, "take the mount out of this view")? as i32) };
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let root = rustix::fs::openat(&whole, inside, flags, rustix::fs::Mode::empty())
        .map_err(|errno| refused("open the mount's root", errno.into()))?;
    Ok((whole, root))
}

/// The path that a mount can have: an absolute one of plain names, below the machine's root.
pub fn plain_path(path: &Path) -> Option<PathBuf> {
    use std::path::Component::{Normal, RootDir};
    let plain: PathBuf = path.components().collect();
    let is_plain = plain.components().enumerate().all(|(at, part)| match part {
        RootDir => at == 0,
        Normal(_) => at > 0,
        _ => false,
    });
    (is_plain && plain.parent().is_some()).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounts_path_is_absolute_and_plain() {
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(plain_path(Path::new(path)).as_deref(), expected.map(Path::new), "{path}");
        };
        check("/job", Some("/job"));
        check("/a//b/./c/", Some("/a/b/c"));
        check("/", None);
        check("job", None);
        check("", None);
        check("/a/../b", None);
    }
}
