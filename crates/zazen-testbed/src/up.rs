//! Making a testbed: plan, record, then build; whatever fails is taken down again.

use crate::state::{Host, KEY_NAME, Limits, NODES_NAME, Namespace, Net, Role, SERVER_NAME, State, VERSION};
use crate::{Disk, DiskLimits, Folder, Programs, disk, hosts, namespace, net, take_down};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

/// A unix socket's path has to fit into 108 bytes with its end mark.
const SOCKET_PATH_MAX: usize = 100;

/// What a testbed consists of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Nodes: 1 to [`crate::state::NODES_MAX`].
    pub nodes: usize,
    /// Bytes that each node's cache may take.
    pub budget: u64,
    /// The directory that plays the file server; `None`: one in the testbed's folder.
    pub backing: Option<PathBuf>,
    /// Bytes per second that the file server gives all readers together; not with `net`.
    pub server_bytes_per_s: Option<u64>,
    /// A network namespace for each host, with shaped links. Needs root and iproute2.
    pub net: Option<LinkRates>,
    /// What the disks give. Where they can't be limited, they stay unlimited.
    pub disk: DiskLimits,
    /// Readers that each daemon lets at its disk; `None`: by the kind of disk.
    pub readers: Option<u16>,
    /// The daemons hand frames out without a look at their sources.
    pub trust_copies: bool,
    /// The daemons record each call in this folder.
    pub spans: Option<PathBuf>,
    /// The nodes have a namespace.
    pub namespace: Option<Namespace>,
}

/// The rates of shaped links, each way.
#[derive(Clone, Copy, Debug)]
pub struct LinkRates {
    /// Bits per second of each node's link.
    pub node_bits_per_s: u64,
    /// Bits per second of the file server's link.
    pub server_bits_per_s: u64,
}

/// Brings up a testbed in `dir`. What a crash or a reboot has left there is taken down first; a
/// testbed that runs there is `Busy`. `remark` gets what the user should know beside the outcome.
pub fn up(dir: &Path, plan: &Plan, programs: &Programs, remark: &mut dyn FnMut(String)) -> Result<State> {
    if plan.net.is_some() {
        net::check_possible()?;
    }
    namespace::check(plan.namespace.as_ref())?;
    let folder = Folder::make(dir)?;
    let _held = folder.lock()?;
    // Daemons and clients must spell the backing store alike: links in the path are resolved here.
    clear_old(folder.path(), remark)?;
    let made = plan.state(&folder, remark).and_then(|mut state| {
        state.save()?;
        match build(&mut state, programs) {
            Ok(()) => Ok(state),
            Err(error) => take_down(&state, remark).and(Err(error)),
        }
    });
    if made.is_err() {
        folder.remove_lock();
    }
    made
}

impl Plan {
    fn state(&self, folder: &Folder, remark: &mut dyn FnMut(String)) -> Result<State> {
        let dir = folder.path();
        let tag = fresh_tag()?;
        let netns = |name: &str| self.net.map(|_| format!("{tag}-{name}"));
        let host = |name: String, role| Host {
            dir: dir.join(&name),
            netns: netns(&name),
            name,
            role,
            socket: None,
            addr: None,
            process: None,
        };
        let socket_dir = (dir.as_os_str().len() + "/n63/zazend.sock".len() > SOCKET_PATH_MAX)
            .then(|| socket_dir(&tag))
            .transpose()?;
        let nodes = (0..self.nodes).map(|index| {
            let node = host(format!("n{index}"), Role::Node);
            let socket = match &socket_dir {
                Some(short) => short.join(format!("{}.sock", node.name)),
                None => node.dir.join("zazend.sock"),
            };
            Host { socket: Some(socket), ..node }
        });
        let nodes = nodes.collect();
        let backing_root = self.backing_root(folder)?;
        let how = match (self.net, self.server_bytes_per_s) {
            (Some(_), _) => "shaped links",
            (None, Some(_)) => "token bucket",
            (None, None) => "none",
        };
        let over_links = self.net.map(|links| links.server_bits_per_s / 8);
        Ok(State {
            version: VERSION,
            dir: dir.to_path_buf(),
            key: dir.join(KEY_NAME),
            nodes_file: dir.join(NODES_NAME),
            backing: format!("{}=", backing_root.display()),
            backing_root,
            limits: Limits {
                how: how.to_owned(),
                server_bytes_per_s: over_links.or(self.server_bytes_per_s),
            },
            net: self.net.map(|links| Net {
                switch: format!("{tag}-sw"),
                link_bits_per_s: links.node_bits_per_s,
                server_link_bits_per_s: links.server_bits_per_s,
            }),
            disk: self.limited_disks(dir, &tag, remark),
            socket_dir,
            budget: self.budget,
            readers: self.readers,
            trust_copies: self.trust_copies,
            spans: self.spans.clone(),
            namespace: self.namespace.clone(),
            nodes,
            server: host("fs".to_owned(), Role::Server),
            sim: host("sim".to_owned(), Role::Simulation),
            tag,
        })
    }

    fn backing_root(&self, folder: &Folder) -> Result<PathBuf> {
        let Some(root) = &self.backing else {
            folder.make_folder(SERVER_NAME)?;
            return Ok(folder.path().join(SERVER_NAME));
        };
        let within = |error| Error::io(format!("file server's directory {}", root.display()), error);
        std::fs::create_dir_all(root).map_err(within)?;
        root.canonicalize().map_err(within)
    }

    fn limited_disks(&self, dir: &Path, tag: &str, remark: &mut dyn FnMut(String)) -> Option<Disk> {
        let limits = self.disk;
        limits.bytes_per_s.or(limits.iops).or(limits.server_bytes_per_s)?;
        match disk::plan(dir, tag, limits) {
            Ok(disk) => Some(disk),
            Err(error) => {
                remark(error.to_string());
                None
            }
        }
    }
}

/// The path of a folder for sockets that nobody could know before.
fn socket_dir(tag: &str) -> Result<PathBuf> {
    Ok(std::env::temp_dir().join(format!("{tag}-{:08x}", zazen_env::random_u128()? as u32)))
}

/// Makes it; one that is there already is somebody else's.
fn make_socket_dir(dir: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o755).create(dir);
    made.map_err(|error| Error::io(format!("testbed: folder for sockets {}", dir.display()), error))
}

/// Takes down what a crash or a reboot has left; a testbed that runs is not touched.
fn clear_old(dir: &Path, remark: &mut dyn FnMut(String)) -> Result<()> {
    let old = match State::load(dir) {
        Ok(old) => old,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if old.is_alive() {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "testbed {}: is up with {} nodes; `zazen testbed down` first",
                dir.display(),
                old.nodes.len()
            ),
        ));
    }
    take_down(&old, remark)
}

fn build(state: &mut State, programs: &Programs) -> Result<()> {
    if let Some(net) = &state.net {
        net::set_up(state, net)?;
    }
    if let Some(limited) = &state.disk {
        disk::set_up(state, limited)?;
    }
    let folder = state.folder()?;
    let key = zazen_call::ClusterKey::generate()?;
    folder.write(KEY_NAME, &format!("{}\n", key.trim_end()), 0o600)?;
    state.hosts().try_for_each(|host| folder.make_folder(&host.name))?;
    state.socket_dir.as_deref().map_or(Ok(()), make_socket_dir)?;
    hosts::start_server(state, programs)?;
    for index in 0..state.nodes.len() {
        hosts::start_node(state, index, programs)?;
    }
    hosts::write_nodes_file(state)?;
    namespace::begin(state, programs)
}

/// A name for this testbed's namespaces and groups that nothing on this machine has: what bears it
/// later is ours.
fn fresh_tag() -> Result<String> {
    loop {
        let tag = format!("zz{:06x}", zazen_env::random_u128()? & 0xff_ffff);
        if !net::is_taken(&tag) && !disk::is_taken(&tag) {
            return Ok(tag);
        }
    }
}
