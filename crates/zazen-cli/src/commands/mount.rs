//! `zazen mount` and `zazen unmount`: file trees of daemons as folders of this machine.

use crate::output;
use crate::target::one_socket;
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use zazen_client::nodes::address;
use zazen_core::{Error, ErrorKind, Result};
use zazen_mount::forwarded::{Daemon, ForwardedTree};
use zazen_mount::namespace::NamespaceTree;
use zazen_mount::{Options, Tree, mount};

/// What the process in the background writes to its standard output when the mount is there.
const READY: &str = "mounted";

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen mount /job                       # the namespace of this machine's daemon
  zazen mount /job --read-only
  zazen mount --node n7 --key key --forward /data        # /data of the machine n7, here, too
  zazen mount --node n7 --key key --forward /far=/srv/data
  zazen unmount /job

The command returns when the folder is mounted; a process in the background serves it. As root, all
users may enter, and the kernel itself reads and writes files that this node holds. A user's own
mount needs fusermount3 (package fuse3), is for that user only, and has no such shortcut.
docs/namespace.md says what programs may expect.

With --forward, a folder of a daemon's machine is mounted, for programs that zazen run cannot serve.
The daemon needs the posix plug-in. The mount is for the user who mounts only, root or not, and the
far machine decides with that user's rights. docs/forwarding.md says what programs may expect.")]
pub(crate) struct Mount {
    /// The folder to mount on
    #[arg(value_name = "MOUNTPOINT", required_unless_present = "forward")]
    mountpoint: Option<PathBuf>,
    /// Mount a folder of the daemon's machine: where it is mounted here, and its path there
    #[arg(long, value_name = "PREFIX[=FAR]", conflicts_with = "mountpoint")]
    forward: Option<OsString>,
    /// The daemon of another node, at this address; needs the cluster key [default port: 7345]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = address)]
    #[arg(requires = "forward", conflicts_with = "socket")]
    node: Option<String>,
    /// The cluster key's file, for --node [default: $ZAZEN_KEY]
    #[arg(long, value_name = "FILE", env = "ZAZEN_KEY", hide_env = true)]
    key: Option<PathBuf>,
    /// The daemon behind this socket [default: on a testbed its first node's, else this machine's]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Only the user who mounts may enter
    #[arg(long)]
    private: bool,
    /// Nothing can be changed through the mount
    #[arg(long)]
    read_only: bool,
    /// The kernel does not read and write local files itself: for tests
    #[arg(long, hide = true)]
    no_passthrough: bool,
    /// What `df` and the list of mounts call it
    #[arg(long, value_name = "NAME", default_value = "zazen")]
    source: String,
    /// Seconds that the kernel keeps names and attributes: for tests
    #[arg(long, value_name = "SECONDS", hide = true)]
    keep: Option<u64>,
    /// Serve in this process, until a signal or an unmount ends it
    #[arg(long)]
    foreground: bool,
    /// Where the process in the background writes its log [default: nowhere]
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    log: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen unmount /job        # open files stay usable until they are closed")]
pub(crate) struct Unmount {
    /// Where it is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
}

pub(crate) fn run(arguments: &Mount) -> Result<()> {
    if arguments.foreground { serve(arguments, || {}) } else { background() }
}

pub(crate) fn unmount(arguments: &Unmount) -> Result<()> {
    mount::unmount(&arguments.mountpoint)
}

fn serve(arguments: &Mount, ready: impl FnOnce()) -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    let read_only = arguments.read_only;
    let (tree, mountpoint, options): (Arc<dyn Tree>, _, _) = match (&arguments.forward, &arguments.mountpoint)
    {
        (Some(forward), _) => {
            let (mountpoint, tree) = forwarded(arguments, forward)?;
            if root {
                output::note("a mount of forwarded files is for its user only: here, for root");
            }
            let options = Options {
                source: arguments.source.clone(),
                allow_other: false,
                read_only,
                passthrough: false,
            };
            (Arc::new(tree), mountpoint, options)
        }
        (None, Some(mountpoint)) => {
            let socket = one_socket(arguments.socket.as_deref())?;
            let tree = NamespaceTree::through(&socket)?;
            if !root {
                output::note(
                    "a user's own mount: for this user only, and the kernel has no shortcut to local files",
                );
            }
            let options = Options {
                source: arguments.source.clone(),
                allow_other: root && tree.vouches() && !arguments.private,
                read_only,
                passthrough: root && !arguments.no_passthrough,
            };
            let tree = match arguments.keep {
                Some(seconds) => tree.keeping(Duration::from_secs(seconds)),
                None => tree,
            };
            (Arc::new(tree), mountpoint.clone(), options)
        }
        (None, None) => return Err(Error::new(ErrorKind::InvalidArgument, "nothing says where to mount")),
    };
    let is_told = std::env::var_os(BACKGROUND).is_some();
    mount::serve(tree, &mountpoint, &options, || {
        if is_told {
            tell_ready();
        }
        ready();
    })
}

/// Where a forwarded folder is mounted, and its tree.
fn forwarded(arguments: &Mount, forward: &OsStr) -> Result<(PathBuf, ForwardedTree)> {
    let bytes = forward.as_bytes();
    let (here, there) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, bytes),
    };
    let (mountpoint, folder) = (Path::new(OsStr::from_bytes(here)), Path::new(OsStr::from_bytes(there)));
    if let Some(bad) = [mountpoint, folder].into_iter().find(|path| !path.is_absolute()) {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("--forward wants absolute paths, PREFIX or PREFIX=FAR; {} is none", bad.display()),
        ));
    }
    // The process in the background leaves the working directory, and may connect again.
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|error| Error::io(path.display().to_string(), error));
    let daemon = match (&arguments.node, &arguments.key) {
        (Some(node), Some(key)) => Daemon::There(node.clone(), absolute(key)?),
        (Some(node), None) => {
            return Err(Error::new(
                ErrorKind::Config,
                format!("--node {node} needs the cluster key: --key FILE, or $ZAZEN_KEY"),
            ));
        }
        (None, _) => Daemon::Here(absolute(&one_socket(arguments.socket.as_deref())?)?),
    };
    let tree = ForwardedTree::of(&daemon, folder)?;
    if tree.is_at(mountpoint) {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{} is that folder itself: the daemon runs on this machine, so programs can use it as it is",
                mountpoint.display()
            ),
        ));
    }
    let tree = match arguments.keep {
        Some(seconds) => tree.keeping(Duration::from_secs(seconds)),
        None => tree,
    };
    Ok((mountpoint.to_owned(), tree))
}

/// Set for the process in the background.
const BACKGROUND: &str = "ZAZEN_MOUNT_BACKGROUND";

/// Starts this program again, as a process that serves, and waits until it has mounted.
fn background() -> Result<()> {
    let failed = |error| Error::io("start the process that serves the mount", error);
    let mut arguments = std::env::args_os();
    let program = std::env::current_exe().map_err(failed)?;
    arguments.next();
    let mut log = None;
    let mut kept = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument == "--log" {
            log = arguments.next();
        } else if let Some(file) = argument.to_str().and_then(|text| text.strip_prefix("--log=")) {
            log = Some(file.into());
        } else {
            kept.push(argument);
        }
    }
    if let Some(log) = &log {
        // Here somebody reads what is wrong with it.
        drop(open_log(Path::new(log))?);
    }
    let mut command = Command::new(program);
    command.args(kept).arg("--foreground").env(BACKGROUND, log.as_deref().unwrap_or(NOWHERE.as_ref()));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // A session of its own: the terminal's signals are not for it.
    // SAFETY: setsid touches nothing but the new process, and may be called after a fork.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(std::io::Error::from));
    }
    let mut child = command.spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
    }
    if line.trim_end() == READY {
        return Ok(());
    }
    // It has said why on standard error.
    let status = child.wait().map_err(failed)?;
    std::process::exit(status.code().unwrap_or(1))
}

/// The log that nobody wants.
const NOWHERE: &str = "/dev/null";

/// Opens the log to add to it. In a folder like /tmp another user may have put something in its
/// place: nothing of another user is written to, followed or waited for.
fn open_log(path: &Path) -> Result<std::fs::File> {
    let failed = |error| Error::io(format!("log {}", path.display()), error);
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw() && found.nlink() == 1;
    let takes_lines = found.file_type().is_char_device() || found.is_file() && is_own;
    if !takes_lines {
        let text = format!("log {}: is no file of this user's own; name another one", path.display());
        return Err(Error::new(ErrorKind::Conflict, text));
    }
    Ok(file)
}

/// Tells the waiting command, and lets go of its terminal.
fn tell_ready() {
    let log = std::env::var_os(BACKGROUND).unwrap_or(NOWHERE.into());
    let log = open_log(Path::new(&log)).or_else(|_| open_log(Path::new(NOWHERE)));
    let mut output = std::io::stdout();
    // If the command is gone, nobody waits.
    _ = writeln!(output, "{READY}").and_then(|()| output.flush());
    if let Ok(log) = log {
        for number in [1, 2] {
            // SAFETY: both descriptors are open; the standard ones are nobody's own here.
            unsafe { libc::dup2(log.as_raw_fd(), number) };
        }
    }
    _ = std::env::set_current_dir("/");
}
