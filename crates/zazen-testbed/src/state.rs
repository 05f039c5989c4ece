//! `testbed.json`: what a testbed is made of. Every other command of the testbed starts by reading
//! it.
//!
//! Readers outside this crate (the client library, analyses) may rely on `nodes[].name`,
//! `nodes[].socket`, `key` and `backing`; new fields are added, none is renamed.

use crate::disk_record::Disk;
use crate::variables::TESTBED;
use crate::{Folder, Process};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

/// Of the record's format.
pub const VERSION: u32 = 2;
/// The cluster key in the testbed's directory.
pub const KEY_NAME: &str = "key";
/// The nodes' addresses there.
pub const NODES_NAME: &str = "nodes.txt";
/// What plays the backing store there, unless it lies elsewhere.
pub const SERVER_NAME: &str = "server";
/// The record there.
pub const FILE_NAME: &str = "testbed.json";
/// Nodes at most: one private /24 network holds them all.
pub const NODES_MAX: usize = 64;
/// Where a testbed lies unless told otherwise.
pub const DEFAULT_DIR: &str = ".testbed";

/// A testbed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// Of this file's format.
    pub version: u32,
    /// The testbed's directory.
    pub dir: PathBuf,
    /// Distinguishes this testbed's namespaces and control groups from all others on the machine.
    pub tag: String,
    /// The cluster key's file.
    pub key: PathBuf,
    /// The nodes' addresses, for `--nodes`.
    pub nodes_file: PathBuf,
    /// The directory that plays the backing store; its files are the truth.
    pub backing_root: PathBuf,
    /// The same as the daemons and direct readers get it: `ROOT=tcp://host:port`.
    pub backing: String,
    /// What is limited, and how.
    pub limits: Limits,
    /// The shaped network, if there is one.
    pub net: Option<Net>,
    /// The limited disks, if they are.
    pub disk: Option<Disk>,
    /// Folder of the sockets, where the testbed's own path is too long for them.
    pub socket_dir: Option<PathBuf>,
    /// Byte budget of each node's cache.
    pub budget: u64,
    /// Readers that each daemon lets at its disk, where not by the kind of disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readers: Option<u16>,
    /// The daemons do not compare copies with their sources.
    #[serde(default)]
    pub trust_copies: bool,
    /// The daemons record each call in this folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spans: Option<PathBuf>,
    /// The namespace, if the nodes have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// The nodes.
    pub nodes: Vec<Host>,
    /// The file server.
    pub server: Host,
    /// The machine that runs the simulation: no daemon, a place to run commands.
    pub sim: Host,
}

/// The namespace of a testbed's nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Namespace {
    /// Nodes that keep each partition; `None`: the daemon's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
    /// When a change counts as done; `None`: the daemon's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// Seconds that a node must be down before its files are copied anew; `None`: the daemon's
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair_after: Option<u32>,
    /// Whether root is nobody in the namespace.
    #[serde(default)]
    pub root_squash: bool,
    /// The path by which forwarded programs reach it without a mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<PathBuf>,
    /// The folder with a mount for each node: `0`, `1`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounts: Option<PathBuf>,
    /// The uppermost folder that was made for it, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<PathBuf>,
    /// The processes of the mounts, by node.
    #[serde(default)]
    pub processes: Vec<Process>,
}

/// What a host is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Holds a cache and runs ranks.
    Node,
    /// Serves the backing store.
    Server,
    /// Runs the simulation.
    Simulation,
}

/// One machine of the testbed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Host {
    /// `n0`, `n1`, …, `fs`, `sim`.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its folder: cache and log.
    pub dir: PathBuf,
    /// The daemon's unix socket (nodes).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// `host:port` of its TCP listener, once known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addr: Option<String>,
    /// Its network namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Its process, while it is meant to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

/// What is limited.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// `shaped links`, `token bucket` or `none`: how the file server is slowed.
    pub how: String,
    /// Bytes per second that all readers together get from the file server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_bytes_per_s: Option<u64>,
}

/// A private network: one namespace per host, all on a bridge in a namespace of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Net {
    /// Namespace of the bridge.
    pub switch: String,
    /// Bits per second of each node's link, each way.
    pub link_bits_per_s: u64,
    /// Bits per second of the file server's link, each way.
    pub server_link_bits_per_s: u64,
}

impl State {
    /// Reads the testbed at `dir`; `NotFound` tells how to make one, `Config` that others could
    /// have written it.
    pub fn load(dir: &Path) -> Result<State> {
        let folder = match Folder::open(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(there_is_none(dir)),
            other => other?,
        };
        let text = folder.read(FILE_NAME)?.ok_or_else(|| there_is_none(dir))?;
        let path = folder.path().join(FILE_NAME);
        let refuse = |why: String| {
            Error::new(
                ErrorKind::Corrupt,
                format!("testbed {}: not a record of this testbed: {why}; remove the file", path.display()),
            )
        };
        let state: State = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
        state.must_be_of(folder.path()).map_err(refuse)?;
        Ok(state)
    }

    /// Whether each name in the record is the one that `up` would have chosen in the folder `dir`:
    /// nothing else is ever opened, entered, signalled or removed.
    fn must_be_of(&self, dir: &Path) -> std::result::Result<(), String> {
        let same = |what: &str, found: &Path, expected: &Path| match found == expected {
            true => Ok(()),
            false => Err(format!("its {what} is {}, not {}", found.display(), expected.display())),
        };
        if self.version != VERSION {
            return Err(format!("it is of version {}, this program writes version {VERSION}", self.version));
        }
        same("folder", &self.dir, dir)?;
        same("key", &self.key, &dir.join(KEY_NAME))?;
        same("nodes file", &self.nodes_file, &dir.join(NODES_NAME))?;
        let plain = self
            .tag
            .strip_prefix("zz")
            .is_some_and(|digits| digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        if !plain || self.nodes.is_empty() || self.nodes.len() > NODES_MAX {
            return Err(format!("it has {} nodes and the tag {:?}", self.nodes.len(), self.tag));
        }
        let sockets = self.socket_dir.as_deref();
        if let Some(sockets) = sockets {
            let named = sockets.file_name().and_then(|name| name.to_str());
            if !sockets.is_absolute() || !named.is_some_and(|name| name.starts_with(&self.tag)) {
                return Err(format!("its folder of sockets is {}", sockets.display()));
            }
        }
        let names = (0..self.nodes.len()).map(|index| format!("n{index}"));
        let expected = names.map(|name| (name, Role::Node));
        let others = [("fs", Role::Server), ("sim", Role::Simulation)];
        let expected = expected.chain(others.map(|(name, role)| (name.to_owned(), role)));
        for (host, (name, role)) in self.hosts().zip(expected) {
            if host.name != name || host.role != role {
                return Err(format!("it calls {name} {:?}", host.name));
            }
            same("host's folder", &host.dir, &dir.join(&name))?;
            let socket = match (role, sockets) {
                (Role::Node, None) => Some(host.dir.join("zazend.sock")),
                (Role::Node, Some(sockets)) => Some(sockets.join(format!("{name}.sock"))),
                _ => None,
            };
            if host.socket != socket {
                return Err(format!("{name} has another socket"));
            }
            if host.netns != self.net.as_ref().map(|_| format!("{}-{name}", self.tag)) {
                return Err(format!("{name} has another network namespace"));
            }
        }
        match &self.net {
            Some(net) if net.switch != format!("{}-sw", self.tag) => {
                return Err("its switch has another network namespace".to_owned());
            }
            _ => {}
        }
        match &self.disk {
            Some(limited) => limited.must_be_of(&self.tag),
            None => Ok(()),
        }
    }

    /// Writes the record, whole or not at all.
    pub fn save(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|e| {
            Error::new(ErrorKind::InvalidArgument, format!("testbed {}: {e}", self.dir.display()))
        })?;
        self.folder()?.write(FILE_NAME, &text, 0o644)
    }

    /// Its folder, looked at anew.
    pub fn folder(&self) -> Result<Folder> {
        Folder::open(&self.dir)
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.nodes.iter().chain([&self.server, &self.sim])
    }

    /// The host called `name`; a bare number is a node's.
    pub fn host(&self, name: &str) -> Result<&Host> {
        let numbered = format!("n{name}");
        self.hosts().find(|host| host.name == name || host.name == numbered).ok_or_else(|| self.unknown(name))
    }

    /// Index of the node called `name`.
    pub fn node_index(&self, name: &str) -> Result<usize> {
        let host = self.host(name)?;
        self.nodes.iter().position(|node| node.name == host.name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> Error {
        let last = self.nodes.last().map_or("n0", |node| node.name.as_str());
        Error::new(
            ErrorKind::InvalidArgument,
            format!("node {name}: not on the testbed {}; give n0 to {last}", self.dir.display()),
        )
    }

    /// Whether any of its processes runs.
    pub fn is_alive(&self) -> bool {
        self.hosts().any(|host| host.process.is_some_and(|process| process.is_alive()))
    }
}

/// The testbed's directory as given, or `$ZAZEN_TESTBED`, or `.testbed`; absolute, not necessarily
/// there.
pub fn directory(given: Option<&Path>) -> Result<PathBuf> {
    let chosen = given
        .map(Path::to_path_buf)
        .or_else(|| std::env::var_os(TESTBED).filter(|dir| !dir.is_empty()).map(PathBuf::from))
        .unwrap_or_else(|| PathBuf::from(DEFAULT_DIR));
    let absolute = std::path::absolute(&chosen)
        .map_err(|error| Error::io(format!("directory {}", chosen.display()), error))?;
    // What `..` means depends on links: only the kernel can say.
    match absolute.components().any(|part| part == std::path::Component::ParentDir) {
        true => absolute
            .canonicalize()
            .map_err(|error| Error::io(format!("directory {}", absolute.display()), error)),
        false => Ok(absolute),
    }
}

fn there_is_none(dir: &Path) -> Error {
    let dir = dir.display();
    Error::new(
        ErrorKind::NotFound,
        format!("testbed {dir}: there is none; make one with `zazen testbed up 4 --dir {dir}`"),
    )
}
