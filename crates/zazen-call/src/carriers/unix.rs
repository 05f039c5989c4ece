//! The unix socket: binding (carefully, if something is at the path), connecting, and who the
//! kernel says is calling.
//!
//! The socket's mode is 0666: everybody on the machine may connect, and each service decides by the
//! credentials that the kernel reports. A socket file that nobody listens on is replaced; a live
//! one never is.

use crate::belief::{DAEMON_UID_VARIABLE, believes};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zazen_core::{Credentials, Error, ErrorKind, Result};

/// Connections that may wait to be accepted: a job's ranks come all at once.
pub(crate) const BACKLOG: i32 = 4096;
/// The kernel's limit for a socket's path, without the final NUL.
const SUN_PATH_BYTES_MAX: usize = 107;
/// How often to try for the lock on the socket's folder, 10 ms apart.
const LOCK_TRIES: u32 = 100;

/// A bound socket file, removed on request if it is still ours.
pub(crate) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Unlinks the file unless another daemon has replaced it.
    pub(crate) fn remove(&self) {
        if let Ok(stat) = rustix::fs::lstat(&self.path)
            && (stat.st_dev, stat.st_ino) == (self.device, self.inode)
        {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// A listening unix socket that is made here and served by another process, which gets its
/// descriptor.
pub struct UnixListening {
    socket: OwnedFd,
    file: SocketFile,
}

impl UnixListening {
    /// Listens at `path`, as [`crate::Server::listen_unix`] does. The kernel tells clients that
    /// this process listens, whichever process serves.
    pub fn new(path: &Path) -> Result<UnixListening> {
        let (socket, file) = listen(path)?;
        Ok(UnixListening { socket, file })
    }

    /// Unlinks the socket's file.
    pub fn remove(&self) {
        self.file.remove();
    }
}

impl AsFd for UnixListening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Listens at `path`; see [`crate::Server::listen_unix`].
pub(crate) fn listen(path: &Path) -> Result<(OwnedFd, SocketFile)> {
    let context = |errno: Errno| Error::io(format!("listen on unix socket {}", path.display()), errno.into());
    let (folder, name) = split(path)?;
    let folder =
        rustix::fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| {
                Error::io(
                    format!("folder {} of the daemon's socket; create it", folder.display()),
                    errno.into(),
                )
            })?;
    // Two daemons that start together must not both find the same stale file: the second would
    // unlink the first one's fresh socket. If somebody else holds the lock, the check still works,
    // though less strictly.
    for _ in 0..LOCK_TRIES {
        if rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) != Err(Errno::AGAIN) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let address = address(path, folder.as_fd())?;
    let socket = socket().map_err(context)?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            clear_stale(path, &address)?;
            rustix::net::bind(&socket, &address).map_err(context)?;
        }
        bound => bound.map_err(context)?,
    }
    // Before listen(), so that nobody connects while the umask decides the mode.
    let stat = open_to_all(&folder, name, path)?;
    rustix::net::listen(&socket, BACKLOG).map_err(context)?;
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Ok((socket, SocketFile { path: absolute, device: stat.st_dev, inode: stat.st_ino }))
}

/// Lets everybody connect to the socket that was bound as `name` in `folder`. Whoever may write to
/// the folder could put a link in its place meanwhile, so the mode goes to what was looked at.
fn open_to_all(folder: &OwnedFd, name: &std::ffi::OsStr, path: &Path) -> Result<rustix::fs::Stat> {
    let shown = path.display();
    let context = |errno: Errno| Error::io(format!("let users connect to {shown}"), errno.into());
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let bound = rustix::fs::openat(folder, name, flags, Mode::empty()).map_err(context)?;
    let stat = rustix::fs::fstat(&bound).map_err(context)?;
    let is_socket = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket;
    if !is_socket || stat.st_uid != rustix::process::geteuid().as_raw() {
        let why =
            "is not the socket that was just made there: others can write to its folder; choose another";
        return Err(Error::new(ErrorKind::Conflict, format!("{shown} {why} socket path")));
    }
    let by_number = format!("/proc/self/fd/{}", bound.as_raw_fd());
    rustix::fs::chmod(by_number, Mode::from_raw_mode(0o666)).map_err(context)?;
    Ok(stat)
}

/// Removes what is at `path` if it is a socket that nobody listens on.
fn clear_stale(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    let shown = path.display();
    let stat = rustix::fs::lstat(path).map_err(|errno| Error::io(format!("socket {shown}"), errno.into()))?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::Socket {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!("{shown} exists and is not a socket; remove it or configure another socket path"),
        ));
    }
    let probe = socket().map_err(|errno| Error::io("create a socket", errno.into()))?;
    let _ = sockopt::set_socket_timeout(&probe, Timeout::Send, Some(Duration::from_secs(1)));
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => rustix::fs::unlink(path)
            .map_err(|errno| Error::io(format!("remove the stale socket {shown}"), errno.into())),
        Err(Errno::NOENT) => Ok(()),
        _ => Err(Error::new(
            ErrorKind::Busy,
            format!("a daemon already listens on {shown}; stop it or configure another socket path"),
        )),
    }
}

/// Connects to the daemon at `path`. It must belong to a user that this process believes, or to
/// user `expected`.
pub(crate) fn connect(path: &Path, timeout: Duration, expected: Option<u32>) -> Result<OwnedFd> {
    let shown = path.display();
    let start = "start one with `zazend --cache DIR --backing DIR`, or name its socket";
    let (folder, _) = split(path)?;
    let explain = |errno: Errno| match errno {
        Errno::NOENT | Errno::NOTDIR => Error::new(
            ErrorKind::Unavailable,
            format!("no daemon runs here: there is no socket {shown}; {start}"),
        ),
        Errno::CONNREFUSED => Error::new(
            ErrorKind::Unavailable,
            format!("no daemon runs here: nobody listens on the socket {shown} any more; {start}"),
        ),
        Errno::AGAIN => Error::new(
            ErrorKind::TimedOut,
            format!("the daemon at {shown} did not accept a connection within {timeout:?}"),
        ),
        other => Error::io(format!("connect to the daemon at {shown}"), other.into()),
    };
    let folder = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(explain)?;
    let address = address(path, folder.as_fd())?;
    let socket = socket().map_err(|errno| Error::io("create a socket", errno.into()))?;
    // A full backlog blocks connect() for as long as a send may take.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(timeout.max(Duration::from_millis(1))))
        .map_err(explain)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(explain(errno)),
        }
    }
    sockopt::set_socket_timeout(&socket, Timeout::Send, None).map_err(explain)?;
    check_listener(socket.as_fd(), path, expected)?;
    Ok(socket)
}

/// Refuses a socket whose listener is neither a user that this process believes nor `expected`.
fn check_listener(socket: BorrowedFd<'_>, path: &Path, expected: Option<u32>) -> Result<()> {
    let uid = peer_ids(socket)?.uid;
    if expected == Some(uid) || believes(uid)? {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Authentication,
        format!(
            "the daemon at {} is user {uid}'s, neither root's nor user {}'s own: nothing it says is \
             believed; name another socket, or set {DAEMON_UID_VARIABLE}={uid} if you trust that user",
            path.display(),
            rustix::process::geteuid().as_raw()
        ),
    ))
}

fn socket() -> std::result::Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

fn split(path: &Path) -> Result<(&Path, &std::ffi::OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => {
            Ok((if folder.as_os_str().is_empty() { Path::new(".") } else { folder }, name))
        }
        _ => Err(Error::new(ErrorKind::Config, format!("socket path {:?} names no file", path.display()))),
    }
}

/// The address of `path`. A path that is longer than the kernel's 107 bytes goes through its open
/// folder.
fn address(path: &Path, folder: BorrowedFd<'_>) -> Result<SocketAddrUnix> {
    let short;
    let path_used = if path.as_os_str().as_bytes().len() <= SUN_PATH_BYTES_MAX {
        path
    } else {
        let (_, name) = split(path)?;
        short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        &short
    };
    SocketAddrUnix::new(path_used).map_err(|_| {
        Error::new(
            ErrorKind::Config,
            format!(
                "the socket's file name in {} is too long for the kernel ({SUN_PATH_BYTES_MAX} bytes for a \
                 socket path); choose a shorter one",
                path.display()
            ),
        )
    })
}

/// Who is at the other end of `socket`: credentials as of its connect(), and the pid (0 if it is in
/// another pid namespace).
pub(crate) fn peer(socket: BorrowedFd<'_>) -> Result<(Credentials, u32)> {
    let context = |error: std::io::Error| Error::io("ask the kernel who the caller is", error);
    let ucred = peer_ids(socket)?;
    let mut groups = vec![0u32; 64];
    loop {
        match get_option(socket, libc::SO_PEERGROUPS, &mut groups) {
            Ok(bytes) => {
                groups.truncate(bytes / size_of::<u32>());
                break;
            }
            // NGROUPS_MAX is 65536.
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) && groups.len() <= 1 << 16 => {
                groups.resize(groups.len() * 4, 0);
            }
            Err(error) => return Err(context(error)),
        }
    }
    let pid = u32::try_from(ucred.pid).unwrap_or(0);
    Ok((Credentials { uid: ucred.uid, gid: ucred.gid, groups }, pid))
}

/// The other end of `socket`: a caller as it was at its connect(), a listener as it was at its
/// listen().
pub(crate) fn peer_ids(socket: BorrowedFd<'_>) -> Result<libc::ucred> {
    // Not through rustix, whose SO_PEERCRED cannot return pid 0.
    let mut ucred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let length = get_option(socket, libc::SO_PEERCRED, std::slice::from_mut(&mut ucred))
        .map_err(|error| Error::io("ask the kernel who is at the other end of a socket", error))?;
    if length != size_of::<libc::ucred>() {
        return Err(Error::new(ErrorKind::Io, "the kernel's answer to SO_PEERCRED has a wrong length"));
    }
    Ok(ucred)
}

/// `getsockopt` at the socket level into plain integers; returns the bytes written.
fn get_option<T: Copy>(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    into: &mut [T],
) -> std::io::Result<usize> {
    let mut length = size_of_val(into) as libc::socklen_t;
    // SAFETY: `into` is valid for writes of `length` bytes, the kernel writes no more than that and
    // sets `length`; T is `ucred` or u32, for which every bit pattern is a value.
    let status = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, into.as_mut_ptr().cast(), &mut length)
    };
    if status != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(length as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    /// Whoever may write to the folder has put something else in the place of the new socket.
    #[test]
    fn what_took_the_sockets_place_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::fs::set_permissions(&victim, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let path = folder.path().join("s");
        let (open, name) =
            (OwnedFd::from(std::fs::File::open(folder.path()).unwrap()), std::ffi::OsStr::new("s"));
        let refusal = || open_to_all(&open, name, &path).err().map(|error| error.kind());
        symlink(&victim, &path).unwrap();
        assert_eq!(refusal(), Some(ErrorKind::Conflict));
        std::fs::remove_file(&path).unwrap();
        std::fs::hard_link(&victim, &path).unwrap();
        assert_eq!(refusal(), Some(ErrorKind::Conflict));
        assert_eq!(std::fs::metadata(&victim).unwrap().mode() & 0o7777, 0o600);
        // The socket itself is for everybody.
        std::fs::remove_file(&path).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        open_to_all(&open, name, &path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
    }
}
