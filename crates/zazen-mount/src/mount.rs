//! Mounting, replacing what a killed process left, unmounting.

use crate::adapter::Adapter;
use crate::place;
use crate::tree::{Change, Tree};
use fuser::{INodeNo, MountOption, Notifier, Session, SessionACL};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};

/// The type that mounts show, as `fuse.zazen`.
pub const SUBTYPE: &str = "zazen";
/// How long open files may keep a mount process alive after a signal.
const GRACE: Duration = Duration::from_secs(10);
/// Threads that read requests, and serve most. More than cores, because requests wait for other
/// nodes.
const READERS_MIN: usize = 8;

/// How a tree is mounted.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the mount shows as its source.
    pub source: String,
    /// Other users than the one who mounts may enter.
    pub allow_other: bool,
    /// Nothing can be changed through the mount.
    pub read_only: bool,
    /// The kernel may read and write local files itself.
    pub passthrough: bool,
}

/// A mounted tree. Dropping it unmounts.
pub struct Mounted {
    mountpoint: PathBuf,
    session: Option<JoinHandle<std::io::Result<()>>>,
}

impl Mounted {
    /// Mounts `tree` on the directory `mountpoint`. Replaces a mount of ours whose process is gone;
    /// refuses a living one.
    pub fn new(tree: Arc<dyn Tree>, mountpoint: &Path, options: &Options) -> Result<Mounted> {
        let mountpoint = absolute(mountpoint)?;
        replace_dead(&mountpoint)?;
        place::check(&mountpoint)?;
        let session = begin(tree, options, |adapter, config| {
            Session::new(adapter, &mountpoint, config)
                .map_err(|error| refused(&mountpoint, error, has_fusermount))
        })?;
        Ok(Mounted { mountpoint, session: Some(session) })
    }

    /// Unmounts, and waits until the last open file is closed.
    pub fn unmount(mut self) -> Result<()> {
        detach(&self.mountpoint)?;
        self.join()
    }

    fn join(&mut self) -> Result<()> {
        match self.session.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(Error::io(format!("serve {}", self.mountpoint.display()), error)),
            Some(Err(_)) => Err(Error::new(ErrorKind::Io, "a thread of the mount panicked")),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.session.is_some() {
            _ = detach(&self.mountpoint);
        }
    }
}

/// Begins to serve `tree` in threads of its own; `open` begins the session with the kernel. What is
/// returned ends when the kernel ends the session.
pub(crate) fn begin(
    tree: Arc<dyn Tree>,
    options: &Options,
    open: impl FnOnce(Adapter, &fuser::Config) -> Result<Session<Adapter>>,
) -> Result<JoinHandle<std::io::Result<()>>> {
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::CUSTOM(format!("subtype={SUBTYPE}")),
        MountOption::DefaultPermissions,
        if options.read_only { MountOption::RO } else { MountOption::RW },
    ];
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let readers = cores.max(READERS_MIN);
    config.n_threads = Some(readers);
    config.clone_fd = true;
    let changes = tree.changes();
    let notifier = Arc::new(OnceLock::new());
    let adapter = Adapter::new(tree, options.passthrough, Arc::clone(&notifier), readers);
    let keeper = adapter.keeper();
    let session = open(adapter, &config)?;
    _ = notifier.set(session.notifier());
    let forgetter = session.notifier();
    spawn("pages", move || keeper.run(&forgetter))?;
    if let Some(changes) = changes {
        let notifier = session.notifier();
        spawn("invalidate", move || invalidate(&changes, &notifier))?;
    }
    std::thread::Builder::new()
        .name("mount".into())
        .spawn(move || session.run())
        .map_err(|error| Error::io("start the mount's thread", error))
}

/// Mounts as [`Mounted::new`] does, calls `ready`, and serves until somebody unmounts. SIGTERM,
/// SIGINT and SIGHUP unmount.
pub fn serve(tree: Arc<dyn Tree>, mountpoint: &Path, options: &Options, ready: impl FnOnce()) -> Result<()> {
    // From before the mount: a signal in between must not leave it behind.
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Error::io("listen for signals", error))?;
    let mut mounted = Mounted::new(tree, mountpoint, options)?;
    let mountpoint = mounted.mountpoint.clone();
    spawn("signals", move || {
        if signals.forever().next().is_none() {
            return;
        }
        if let Err(error) = detach(&mountpoint) {
            tracing::error!(%error, "the mount stays");
        }
        // Files that are open keep the session alive for a while; a second signal ends it at once.
        _ = spawn("grace", || {
            std::thread::sleep(GRACE);
            std::process::exit(0);
        });
        signals.forever().next();
        std::process::exit(0);
    })?;
    ready();
    mounted.join()
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.into()).spawn(work);
    started.map(drop).map_err(|error| Error::io(format!("start the thread {name}"), error))
}

/// Tells the kernel what changed elsewhere.
fn invalidate(changes: &Receiver<Change>, notifier: &Notifier) {
    while let Ok(change) = changes.recv() {
        let told = match &change {
            // A negative offset: attributes only.
            Change::Attributes(node) => notifier.inval_inode(INodeNo(*node), -1, 0),
            Change::Bytes(node) => notifier.inval_inode(INodeNo(*node), 0, 0),
            Change::Entry(node, name) => {
                notifier.inval_entry(INodeNo(*node), OsStr::from_bytes(name.as_bytes()))
            }
        };
        match told {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
            Err(error) => tracing::debug!(%error, ?change, "the kernel was not told"),
            Ok(()) => {}
        }
    }
}

/// The mount point's path without links above it. The last component may be a dead mount, so
/// nothing looks at it.
fn absolute(mountpoint: &Path) -> Result<PathBuf> {
    let failed = |error| Error::io(format!("find {}", mountpoint.display()), error);
    let full = std::path::absolute(mountpoint).map_err(failed)?;
    match (full.parent(), full.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize().map_err(failed)?.join(name)),
        _ => full.canonicalize().map_err(failed),
    }
}

/// What is mounted on exactly this path, the last first: its type.
fn mounted_on(mountpoint: &Path, mountinfo: &[u8]) -> Option<String> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let mut found = lines.filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let kind = fields.iter().position(|field| *field == b"-").and_then(|dash| fields.get(dash + 1))?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(unescape(fields.get(4)?)));
        (path == mountpoint).then(|| String::from_utf8_lossy(kind).into_owned())
    });
    found.next_back()
}

/// The kernel writes a blank and the like in paths as `\040`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        match digits {
            Some(digits) if *first == b'\\' => {
                bytes.push(digits.iter().fold(0_u8, |value, digit| (value << 3) | (digit - b'0')));
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

fn our_mount(mountpoint: &Path) -> Result<bool> {
    let mountinfo =
        std::fs::read("/proc/thread-self/mountinfo").map_err(|error| Error::io("read mountinfo", error))?;
    Ok(mounted_on(mountpoint, &mountinfo).is_some_and(|kind| kind == format!("fuse.{SUBTYPE}")))
}

/// Removes a mount of ours whose process is gone.
fn replace_dead(mountpoint: &Path) -> Result<()> {
    if !our_mount(mountpoint)? {
        return Ok(());
    }
    match rustix::fs::statfs(mountpoint) {
        Err(rustix::io::Errno::NOTCONN) => {
            tracing::info!(mountpoint = %mountpoint.display(), "replacing a mount whose process is gone");
            detach(mountpoint)
        }
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{0} is mounted already; run: zazen unmount {0}", mountpoint.display()),
        )),
    }
}

/// Unmounts what `zazen mount` has mounted, also if its process is gone.
pub fn unmount(mountpoint: &Path) -> Result<()> {
    let mountpoint = absolute(mountpoint)?;
    if !our_mount(&mountpoint)? {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("{} is no mount of Zazen's; findmnt -t fuse.{SUBTYPE} lists them", mountpoint.display()),
        ));
    }
    detach(&mountpoint)
}

/// Takes the mount out of the tree. Open files stay usable until they are closed.
fn detach(mountpoint: &Path) -> Result<()> {
    let path = CString::new(mountpoint.as_os_str().as_bytes())
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, "a path has no NUL"))?;
    // SAFETY: the path is NUL-terminated and lives until the call returns.
    let done = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) };
    if done == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        // Somebody was faster.
        Some(libc::EINVAL | libc::ENOENT) => Ok(()),
        Some(libc::EPERM) => {
            let run = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(mountpoint).output();
            match run {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) => Err(Error::new(
                    ErrorKind::Io,
                    format!(
                        "unmount {}: {}",
                        mountpoint.display(),
                        String::from_utf8_lossy(&output.stderr).trim()
                    ),
                )),
                Err(error) => Err(Error::io("run fusermount3; install the package fuse3", error)),
            }
        }
        _ => Err(Error::io(format!("unmount {}", mountpoint.display()), error)),
    }
}

/// Whether the program that mounts for users is there. Where it is not, what comes of starting it
/// may be "permission denied": of a folder in PATH that this user may not search.
fn has_fusermount() -> bool {
    ["fusermount3", "fusermount"].iter().any(|program| Command::new(program).arg("-V").output().is_ok())
}

fn refused(mountpoint: &Path, error: std::io::Error, has_fusermount: fn() -> bool) -> Error {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    let hint = match error.kind() {
        NotFound if !Path::new("/dev/fuse").exists() => "; this kernel has no FUSE: load the module fuse",
        NotFound if !mountpoint.exists() => "; make this folder first",
        PermissionDenied if std::fs::File::open("/dev/fuse").is_err() => {
            "; this user may not open /dev/fuse: on most systems its mode is 0666"
        }
        NotFound | PermissionDenied if !has_fusermount() => {
            "; a user's mount needs fusermount3: install the package fuse3"
        }
        PermissionDenied => "; for other users' access, /etc/fuse.conf needs the line user_allow_other",
        _ => "",
    };
    Error::new(ErrorKind::Io, format!("mount {}: {error}{hint}", mountpoint.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_is_not_taken_for_a_missing_program() {
        let folder = tempfile::tempdir().unwrap();
        let told = |path: &Path| refused(path, std::io::ErrorKind::NotFound.into(), || false).to_string();
        let missing = told(&folder.path().join("none"));
        assert!(!missing.contains("fuse3"), "{missing}");
        assert!(!told(folder.path()).contains("make this folder"));
    }

    #[test]
    fn a_missing_program_is_named_though_it_was_permission_that_lacked() {
        if std::fs::File::open("/dev/fuse").is_err() {
            eprintln!("skipped: this user may not open /dev/fuse");
            return;
        }
        let told = |has_fusermount: fn() -> bool| {
            let error = std::io::ErrorKind::PermissionDenied.into();
            refused(Path::new("/job"), error, has_fusermount).to_string()
        };
        let (missing, there) = (told(|| false), told(|| true));
        assert!(missing.contains("install the package fuse3") && !missing.contains("fuse.conf"), "{missing}");
        assert!(there.contains("user_allow_other"), "{there}");
    }

    #[test]
    fn the_last_mount_on_exactly_the_path_counts() {
        let text = b"22 1 0:20 / / rw - ext4 /dev/vda rw\n\
            40 22 0:50 / /job rw shared:1 - fuse.zazen zazen rw\n\
            41 40 0:51 / /job rw - tmpfs none rw\n\
            42 22 0:52 / /with\\040blank rw - fuse.zazen zazen rw\n";
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(mounted_on(Path::new(path), text).as_deref(), expected, "{path}");
        };
        check("/", Some("ext4"));
        check("/job", Some("tmpfs"));
        check("/with blank", Some("fuse.zazen"));
        check("/jo", None);
    }
}
