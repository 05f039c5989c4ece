//! `zazen run`: an unmodified program whose files are a daemon's: the preload library, its
//! settings, and for daemons of other nodes a go-between; or a supervisor of its system calls.

mod bridge;
mod elf;
mod shared_read;
mod spares;
mod together;

use crate::target::one_socket;
use clap::Args;
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use zazen_call::{ClusterKey, Connection, Identity};
use zazen_client::nodes::address;
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::installed;
use zazen_forward_api::paths::{self, PREFIXES_MAX};
use zazen_forward_api::structures::PLUGIN_ID;
use zazen_forward_api::variables::{self, FORWARD_BYTES_MAX};
use zazen_wire::Message;
use zazen_wire::plugins::{About, plugins_fn};
use zazen_wire::service;

const LIBRARY: &str = "libzazen_preload.so";
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen run --forward /data -- ls -l /data               # /data as this machine's daemon has it
  zazen run --forward /far=/srv/data -- tar cf /far/x.tar . # /far here is /srv/data there
  zazen run --forward /data --node n7 --key key -- python3 a.py
  zazen run --forward /apps --shared-read /apps --node n7 --key key -- mpiexec -n 64 ./a
  zazen run --forward /data --relay -- sqlite3 /data/db  # each call goes to the daemon
  zazen run --forward /data --sockets -- ./receive       # internet sockets are the far side's, too
  zazen run --forward /data --seccomp -- ./static /data/a # statically linked, or Go

The daemon needs the posix plug-in: zazend --plugin posix …
docs/forwarding.md says what is forwarded and what is not.")]
pub(crate) struct Run {
    /// What to forward: a folder's path, here and at the far side; may be given several times
    #[arg(long = "forward", value_name = "PREFIX[=FAR]", required = true)]
    forward: Vec<OsString>,
    /// The daemon of another node, at this address; needs the cluster key [default port: 7345]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = address)]
    #[arg(conflicts_with_all = ["socket", "direct"])]
    node: Option<String>,
    /// The cluster key's file, for --node [default: $ZAZEN_KEY]
    #[arg(long, value_name = "FILE", env = "ZAZEN_KEY", hide_env = true)]
    key: Option<PathBuf>,
    /// What programs look up, open and read below this forwarded folder reaches the node once, and
    /// all of them share it: for software and inputs that nobody changes meanwhile; may be given
    /// several times
    #[arg(long = "shared-read", value_name = "PREFIX", requires = "node")]
    shared_read: Vec<OsString>,
    /// The daemon behind this socket [default: on a testbed its first node's, else this machine's]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Let this machine's kernel do what it can do itself: the default, with a daemon on this
    /// machine
    #[arg(long)]
    direct: bool,
    /// Send every call to the daemon, though it is on this machine
    #[arg(long, conflicts_with_all = ["direct", "seccomp"])]
    relay: bool,
    /// Forward all internet sockets, too
    #[arg(long)]
    sockets: bool,
    /// Supervise system calls instead of preloading: for statically linked programs; same machine
    /// only
    #[arg(long, conflicts_with_all = ["node", "sockets", "abort_on_escape"])]
    seccomp: bool,
    /// End the program when something reaches a forwarded descriptor past the library: for tests
    #[arg(long)]
    abort_on_escape: bool,
    /// The preload library [default: as installed with this program]
    #[arg(long, value_name = "FILE", env = "ZAZEN_PRELOAD", hide_env = true)]
    library: Option<PathBuf>,
    /// What the program is told its name is; the preload library gives it
    #[arg(long, hide = true, requires = "seccomp")]
    program_name: Option<OsString>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(crate) fn run(arguments: &Run) -> Result<()> {
    let forward = settings(&arguments.forward)?;
    let program = find_program(&arguments.program[0])?;
    if let Some(program) = &program {
        elf::can_be_run(program, arguments.seccomp)?;
    }
    let mut command = Command::new(&arguments.program[0]);
    command.args(&arguments.program[1..]);
    if let Some(name) = &arguments.program_name {
        command.arg0(name);
    }
    if arguments.seccomp {
        let code = zazen_seccomp::run(command, &forward, &this_machines_daemon(arguments, &forward)?.0)?;
        std::process::exit(code);
    }
    let library = library(arguments.library.as_deref())?;
    let here = match arguments.node {
        Some(_) => None,
        None => Some(this_machines_daemon(arguments, &forward)?),
    };
    // The detector of escapes takes what is this kernel's own for one. And a mount that is the
    // daemon's alone has no name for this kernel.
    let kept = arguments.relay || arguments.abort_on_escape;
    let is_alone = here.as_ref().is_some_and(|(_, exports)| exports.mounts_any(forward.as_bytes()));
    let direct = here.is_some() && (arguments.direct || !kept && !is_alone);
    let options = [
        (direct, variables::DIRECT),
        (arguments.sockets, variables::SOCKETS),
        (arguments.abort_on_escape, variables::ABORT_ON_ESCAPE),
    ];
    let options: Vec<u8> = options.iter().filter(|(on, _)| *on).map(|(_, letter)| *letter).collect();
    command.env(name(variables::FORWARD), &forward);
    command.env(name(variables::OPTIONS), OsStr::from_bytes(&options));
    command.env("LD_PRELOAD", preload(&library)).env_remove(name(variables::HANDED));
    for setting in [variables::RUN, variables::SUPERVISED, variables::NEAR] {
        command.env_remove(name(setting));
    }
    let start = |error| Error::io(format!("start {}", Path::new(&arguments.program[0]).display()), error);
    if let Some((socket, _)) = here {
        if direct && let Some(folders) = zazen_seccomp::near::folders(&forward, &socket) {
            command.env(name(variables::NEAR), folders);
        }
        command.env(name(variables::SOCKET), socket);
        if let Ok(own) = std::env::current_exe() {
            command.env(name(variables::RUN), own);
        }
        zazen_seccomp::front::keep_ignored_signals(&mut command);
        return Err(start(command.exec()));
    }
    let Some(node) = &arguments.node else { unreachable!("without a node the daemon is here") };
    let key = arguments.key.as_ref().ok_or_else(|| {
        Error::new(
            ErrorKind::Config,
            format!("--node {node} needs the cluster key: --key FILE, or $ZAZEN_KEY"),
        )
    })?;
    let key_file = key;
    let key = ClusterKey::from_file(key_file)?;
    let mut connection = Connection::tcp(node, &key, &Identity::of_this_process(), PATIENCE)?;
    ask_for_plugin(&mut connection, &forward)?;
    drop(connection);
    let shared = shared_folders(&arguments.shared_read, forward.as_bytes())?;
    let code = zazen_seccomp::front::run_beside(command, |command| {
        let go_between = together::start(node, key, key_file, shared)?;
        command.env(name(variables::SOCKET), go_between.socket());
        Ok(go_between)
    })?;
    std::process::exit(code)
}

/// A variable's name as the standard library takes it.
fn name(variable: &'static CStr) -> &'static OsStr {
    OsStr::from_bytes(variable.to_bytes())
}

/// The socket of a daemon that is there and can do it, and what it exports.
fn this_machines_daemon(arguments: &Run, forward: &OsStr) -> Result<(PathBuf, Exports)> {
    let socket = one_socket(arguments.socket.as_deref())?;
    let socket = std::path::absolute(&socket).map_err(|e| Error::io(socket.display().to_string(), e))?;
    let exports = ask_for_plugin(&mut Connection::unix(&socket, PATIENCE)?, forward)?;
    if is_first() {
        warn_of_missing(forward.as_bytes(), &exports);
    }
    Ok((socket, exports))
}

/// Whether nothing is there. Where this user may not look, there may be something.
fn is_nothing(path: &Path) -> bool {
    path.metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Whether no forwarded program has started this one. Otherwise, whoever started that was told.
fn is_first() -> bool {
    std::env::var_os(name(variables::FORWARD)).is_none()
}

/// The folders that a daemon lets programs reach.
#[derive(Debug, Default)]
struct Exports {
    all: Vec<PathBuf>,
    /// Those of them that are mounts to which no path of its machine leads.
    mounted: Vec<PathBuf>,
}

impl Exports {
    /// From the daemon's answer.
    fn of(answer: &[u8]) -> Exports {
        let (mut exports, mut is_mounted) = (Exports::default(), false);
        for path in answer.strip_suffix(b"\0").unwrap_or_default().split(|byte| *byte == 0) {
            let folder = PathBuf::from(OsStr::from_bytes(path));
            match (path, is_mounted) {
                (b"", _) => is_mounted = true,
                (_, true) => {
                    exports.mounted.push(folder.clone());
                    exports.all.push(folder);
                }
                (_, false) => exports.all.push(folder),
            }
        }
        exports
    }

    /// Whether a prefix stands for something in such a mount.
    fn mounts_any(&self, forward: &[u8]) -> bool {
        far_folders(forward).any(|folder| self.mounted.iter().any(|mount| folder.starts_with(mount)))
    }
}

/// The far folder of each prefix.
fn far_folders(forward: &[u8]) -> impl Iterator<Item = &Path> {
    forward.split(|byte| *byte == b':').map(|prefix| {
        let far = prefix.iter().position(|byte| *byte == b'=').map_or(prefix, |at| &prefix[at + 1..]);
        Path::new(OsStr::from_bytes(far))
    })
}

/// Warns of folders that are missing, for a daemon on this machine. Another node's daemon would
/// have to be asked, by a session that stays as long as the program.
fn warn_of_missing(forward: &[u8], exports: &Exports) {
    // What the daemon alone has mounted, this process cannot see.
    let is_alone = |folder: &Path| exports.mounted.iter().any(|mount| folder.starts_with(mount));
    for folder in far_folders(forward).filter(|folder| !is_alone(folder) && is_nothing(folder)) {
        crate::output::note(format!(
            "warning: {} is not there, on the daemon's machine: make it, or name another folder by =FAR",
            folder.display()
        ));
    }
}

/// Whether the daemon can do it for this user, before a program finds out; what it exports.
fn ask_for_plugin(connection: &mut Connection, forward: &OsStr) -> Result<Exports> {
    connection.set_timeout(Some(PATIENCE));
    let about = About { plugin: PLUGIN_ID, generation: 0 }.encode();
    connection
        .call(service::PLUGINS, plugins_fn::PING, &about, &[])
        .map_err(|error| error.within("forwarding needs the posix plug-in (zazend --plugin posix)"))?;
    let reply = connection.call(service::PLUGINS, plugins_fn::EXPORTS, &[], &[])?;
    let exports = Exports::of(&reply.payload);
    if is_first() {
        for folder in not_exported(forward.as_bytes(), &exports) {
            crate::output::note(format!("warning: {folder}"));
        }
    }
    Ok(exports)
}

/// What to say of far folders that lie beneath none that the daemon exports. Links over there may
/// lead to one all the same, so it is a warning.
fn not_exported(forward: &[u8], exports: &Exports) -> Vec<String> {
    let shown: Vec<String> = exports.all.iter().map(|export| export.display().to_string()).collect();
    let shown = if shown.is_empty() { "nothing".to_owned() } else { shown.join(", ") };
    far_folders(forward)
        .filter(|folder| !exports.all.iter().any(|export| folder.starts_with(export)))
        .map(|folder| {
            format!(
                "the daemon exports {shown}: files in {} will be refused (EACCES) unless links lead there; \
                 the daemon's operator can add --export {}",
                folder.display(),
                folder.display()
            )
        })
        .collect()
}

/// The prefixes as the preload library reads them.
fn settings(forward: &[OsString]) -> Result<OsString> {
    if forward.len() > PREFIXES_MAX {
        return Err(refuse(&forward[PREFIXES_MAX], format!("at most {PREFIXES_MAX} can be forwarded")));
    }
    let mut all: Vec<u8> = Vec::new();
    for given in forward {
        let bytes = given.as_bytes();
        let (local, far) = match bytes.iter().position(|byte| *byte == b'=') {
            Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
            None => (bytes, None),
        };
        if !all.is_empty() {
            all.push(b':');
        }
        all.extend(plain(given, local, true)?);
        if let Some(far) = far {
            all.push(b'=');
            all.extend(plain(given, far, false)?);
        }
    }
    if all.len() > FORWARD_BYTES_MAX {
        return Err(refuse(
            &forward[0],
            format!("all prefixes together have more than {FORWARD_BYTES_MAX} bytes"),
        ));
    }
    Ok(OsString::from_vec(all))
}

fn refuse(given: &OsStr, why: impl std::fmt::Display) -> Error {
    let shown = given.to_string_lossy();
    Error::new(ErrorKind::InvalidArgument, format!("--forward {shown}: {why}"))
}

/// What the folders of --shared-read are called at the far side.
fn shared_folders(given: &[OsString], forward: &[u8]) -> Result<Vec<Vec<u8>>> {
    let far = |given: &OsString| {
        let wrong = |why: String| {
            let shown = given.to_string_lossy();
            Error::new(ErrorKind::InvalidArgument, format!("--shared-read {shown}: {why}"))
        };
        let path = std::path::absolute(given).map_err(|error| wrong(error.to_string()))?;
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(wrong("what .. means depends on links; give the path without it".into()));
        }
        let path: PathBuf = path.components().collect();
        let path = path.as_os_str().as_bytes();
        let found = paths::prefixes(forward).find_map(|prefix| {
            let rest = paths::below(path, prefix.local)?;
            Some(if prefix.far == b"/" && !rest.is_empty() {
                rest.to_vec()
            } else {
                [prefix.far, rest].concat()
            })
        });
        found.ok_or_else(|| wrong("it is below no folder of --forward".into()))
    };
    given.iter().map(far).collect()
}

/// An absolute path without `.`, `..`, doubled or trailing slashes.
fn plain(given: &OsStr, path: &[u8], here: bool) -> Result<Vec<u8>> {
    let path = Path::new(OsStr::from_bytes(path));
    let absolute = if here { std::path::absolute(path) } else { Ok(path.to_owned()) };
    let absolute = absolute.map_err(|error| refuse(given, error))?;
    if !absolute.is_absolute() {
        return Err(refuse(given, "the far side's path must begin with /"));
    }
    if absolute.components().any(|part| part == Component::ParentDir) {
        return Err(refuse(given, "what .. means depends on links; give the path without it"));
    }
    let plain: PathBuf = absolute.components().collect();
    if plain.as_os_str().as_bytes().contains(&b':') {
        return Err(refuse(given, "a colon cannot be in it"));
    }
    if here && plain == Path::new("/") {
        return Err(refuse(given, "all of / would include the programs themselves; name a folder"));
    }
    Ok(plain.into_os_string().into_vec())
}

fn library(given: Option<&Path>) -> Result<PathBuf> {
    let found = match given {
        Some(given) => given.canonicalize().ok(),
        None => installed::find_library(LIBRARY).and_then(|path| path.canonicalize().ok()),
    };
    found.ok_or_else(|| {
        let looked = match given {
            Some(given) => given.display().to_string(),
            None => installed::library_folders()
                .iter()
                .map(|folder| folder.join(LIBRARY).display().to_string())
                .collect::<Vec<_>>()
                .join(" or "),
        };
        let text = format!("the preload library is not at {looked}; name it with --library");
        Error::new(ErrorKind::NotFound, text)
    })
}

/// Ours behind what is preloaded already.
fn preload(library: &Path) -> OsString {
    let mut all = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty()).unwrap_or_default();
    if !all.is_empty() {
        all.push(":");
    }
    all.push(library);
    all
}

/// The file that will run, if it is a local one.
fn find_program(name: &OsStr) -> Result<Option<PathBuf>> {
    if name.as_bytes().contains(&b'/') {
        return Ok(Some(PathBuf::from(name)).filter(|path| path.exists()));
    }
    let paths = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let found = std::env::split_paths(&paths).map(|folder| folder.join(name)).find(|path| path.is_file());
    match found {
        Some(found) => Ok(Some(found)),
        None => Err(Error::new(
            ErrorKind::NotFound,
            format!("program {}: not found in $PATH", name.to_string_lossy()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: &[&str], expected: Option<&str>) {
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        assert_eq!(settings(&given).ok(), expected.map(OsString::from), "{given:?}");
    }

    #[test]
    fn what_is_not_exported_is_named() {
        let said = not_exported(b"/x=/a/b:/c:/y=/ab", &Exports::of(b"/a\0/c/d\0"));
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("/a, /c/d") && said[0].contains("--export /c"), "{said:?}");
        assert!(not_exported(b"/x=/a/b", &Exports::of(b"/\0")).is_empty());
        assert!(not_exported(b"/x", &Exports::of(b""))[0].contains("exports nothing"));
    }

    #[test]
    fn mounts_of_the_daemon_alone_are_told_from_other_exports() {
        let check = |answer: &[u8], forward: &[u8], is_alone: bool| {
            let exports = Exports::of(answer);
            assert!(not_exported(forward, &exports).is_empty(), "{exports:?}");
            assert_eq!(exports.mounts_any(forward), is_alone, "{exports:?}");
        };
        check(b"/a\0/b\0", b"/x=/a:/b/c", false);
        check(b"/a\0\0/job\0", b"/x=/a", false);
        check(b"/a\0\0/job\0", b"/x=/a:/y=/job/run1", true);
        check(b"\0/job\0", b"/job", true);
    }

    #[test]
    fn shared_folders_have_the_far_sides_names() {
        let shared = |given: &str, forward: &str| {
            let found = shared_folders(&[given.into()], forward.as_bytes()).ok()?;
            String::from_utf8(found.concat()).ok()
        };
        assert_eq!(shared("/a/b/", "/x=/y:/a=/far").as_deref(), Some("/far/b"));
        assert_eq!(shared("/a", "/a").as_deref(), Some("/a"));
        assert_eq!(shared("/a/b", "/a=/").as_deref(), Some("/b"));
        assert_eq!(shared("/a", "/a=/").as_deref(), Some("/"));
        assert_eq!(shared("/ab", "/a=/far"), None);
        assert_eq!(shared("/a/../b", "/a=/far"), None);
    }

    #[test]
    fn prefixes_become_plain() {
        check(&["/a"], Some("/a"));
        check(&["/a//b/./c/", "/d=/e/"], Some("/a/b/c:/d=/e"));
        check(&["/far=/"], Some("/far=/"));
        check(&["/"], None);
        check(&["/a/../b"], None);
        check(&["/a:b"], None);
        check(&["/a=b"], None);
    }
}
