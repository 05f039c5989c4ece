//! The namespace for forwarded programs: a mount in nobody's view, whose root goes to the processes
//! of plug-ins that act as their callers.
//!
//! The mount is this process's own, so it ends with the daemon, however that ends. It asks a server
//! of its own: calls of programs, which wait for the mount, never take the places of the calls that
//! the mount makes for them.

use crate::config::Config;
use crate::latency::{Calls, timed};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zazen_call::{Call, Caller, Reply, Server, ServerLimits, Service, UnixListening};
use zazen_core::{Error, ErrorKind, Result};
use zazen_mount::namespace::NamespaceTree;
use zazen_mount::{Detached, Options};
use zazen_namespace_client::Namespace;
use zazen_namespace_node::{NamespaceNode, NamespaceService};
use zazen_plugins::MountedFolder;

/// What the mount's calls may still take when the programs that wait for them have ended.
const DRAIN: Duration = Duration::from_secs(1);
/// Tells the mount's callers from those of the daemon's other server: both count from one.
const OWN: u64 = 1 << 63;

/// The mount, and what serves it.
pub(crate) struct ForwardMount {
    path: PathBuf,
    mount: Detached,
    server: Server,
    listening: UnixListening,
}

impl ForwardMount {
    /// Mounts the namespace of `node`, if the settings say so. The node need not have joined it.
    pub(crate) fn start(
        config: &Config,
        node: Option<&Arc<NamespaceNode>>,
        calls: &Arc<Calls>,
    ) -> Result<Option<ForwardMount>> {
        let (Some(told), Some(node)) = (&config.namespace, node) else { return Ok(None) };
        let Some(path) = told.forward.clone() else { return Ok(None) };
        let service = OfMount(timed(calls, Arc::new(NamespaceService::new(node.clone()))));
        let server = Server::new(vec![Arc::new(service)], None, ServerLimits::default());
        let mut socket = config.socket.as_os_str().to_owned();
        socket.push(".namespace");
        let socket = PathBuf::from(socket);
        let listening = UnixListening::new(&socket)?;
        let begun = || {
            let listener = listening.as_fd().try_clone_to_owned();
            let listener = listener.map_err(|error| Error::io(socket.display().to_string(), error))?;
            let own = std::process::id();
            server.listen_given(listener, move |_, pid| pid == own)?;
            let tree = NamespaceTree::known(Namespace::local_later(&socket), true, !told.trusts_root);
            let options = Options {
                source: "zazen".to_owned(),
                allow_other: true,
                read_only: false,
                passthrough: true,
            };
            Detached::new(Arc::new(tree), &path, &told.data, &options).map_err(|error| refused(&path, &error))
        };
        match begun() {
            Ok(mount) => Ok(Some(ForwardMount { path, mount, server, listening })),
            Err(error) => {
                listening.remove();
                Err(error)
            }
        }
    }

    /// What plug-ins' processes get.
    pub(crate) fn folder(&self) -> Result<MountedFolder> {
        let root = self.mount.root().try_clone_to_owned();
        let root = root.map_err(|error| Error::io(self.path.display().to_string(), error))?;
        Ok(MountedFolder { path: self.path.clone(), root: Arc::new(root) })
    }

    /// Once the processes that had the mount are gone. What programs still have open of it fails
    /// when this process ends.
    pub(crate) fn stop(self) {
        self.server.drain(DRAIN);
    }
}

impl Drop for ForwardMount {
    fn drop(&mut self) {
        self.listening.remove();
    }
}

/// Whether a daemon with these settings could mount; what it would do.
pub(crate) fn check(path: &Path) -> Result<String> {
    Detached::check().map_err(|error| refused(path, &error))?;
    Ok(format!("programs reach the namespace as {} by zazen run --forward", path.display()))
}

/// What goes without such a mount is said, too.
fn refused(path: &Path, error: &Error) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Config,
        format!(
            "namespace forward {path}: {error}. Without this setting, root can run `zazen mount {path}`, and \
             the daemon can export that mount (--plugin posix --export {path})"
        ),
    )
}

/// The namespace's service for the mount.
struct OfMount(Arc<dyn Service>);

impl OfMount {
    fn as_own(caller: &Caller) -> Caller {
        Caller { connection: caller.connection | OWN, ..caller.clone() }
    }
}

impl Service for OfMount {
    fn id(&self) -> u16 {
        self.0.id()
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        self.0.call(&OfMount::as_own(caller), call)
    }

    fn answered(&self, caller: &Caller) {
        self.0.answered(&OfMount::as_own(caller));
    }

    fn detach(&self, caller: &Caller) {
        self.0.detach(&OfMount::as_own(caller));
    }
}
