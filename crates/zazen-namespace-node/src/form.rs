//! How a node begins: as a first node of a new namespace, from what its folder holds, or as a new
//! node that asks the others to let it in.

use crate::engine::{Forming, Replicated};
use crate::keeper;
use crate::node::{Durability, NamespaceNode, NodeList};
use crate::proof::NodeSecret;
use rustix::fs::{Mode, OFlags};
use std::io::Read;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use zazen_core::fnv::fnv1a_128;
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::random_u128;
use zazen_namespace::map::Genesis;
use zazen_namespace::node::{Config, File, Files, Level, Start, key_in};
use zazen_namespace::partition::Settings;

/// Partitions for each node that a namespace begins with.
const PARTITIONS_PER_NODE: usize = 16;
/// How often what is missing is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// How often a node that lives is looked at.
const WATCH: Duration = Duration::from_millis(500);
/// A node that broke begins anew after this.
const REST: Duration = Duration::from_secs(1);
/// The address of a node that is alone and listens to nobody.
const ALONE: &str = "alone:0";
/// The longest list of nodes.
const LIST_BYTES_MAX: u64 = 16 << 20;

impl NamespaceNode {
    /// Begins the node's life, as soon as it has what it needs, in a thread of its own. `address`
    /// is where the daemon listens: `host:port`.
    pub fn form(self: &Arc<Self>, address: Option<String>) -> Result<()> {
        keeper::start(self)?;
        let node = Arc::downgrade(self);
        let run = move || run(&node, address.as_deref());
        let thread = std::thread::Builder::new().name("ns-form".to_owned()).spawn(run);
        thread.map(drop).map_err(|error| Error::io("start the namespace's thread", error))
    }

    /// The list of nodes; `None` while it is not there.
    pub(crate) fn listed(&self) -> Result<Option<Vec<String>>> {
        match &self.told.nodes {
            None => Ok(Some(Vec::new())),
            Some(NodeList::Nodes(nodes)) => Ok(Some(nodes.clone())),
            Some(NodeList::File(path)) => {
                let within = |error| Error::io(format!("namespace nodes {}", path.display()), error);
                let mut text = String::new();
                match std::fs::File::open(path) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                    Err(error) => return Err(within(error)),
                    Ok(file) => {
                        file.take(LIST_BYTES_MAX).read_to_string(&mut text).map_err(within)?;
                    }
                }
                let lines = text.lines().map(str::trim);
                let nodes = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
                Ok(Some(nodes.map(str::to_owned).collect()))
            }
        }
    }

    /// Begins a life; false while something is missing.
    fn begin(&self, listen: Option<&str>) -> Result<bool> {
        let Some(nodes) = self.listed()? else { return Ok(false) };
        let address = match own_address(&nodes, listen) {
            Some(address) => address,
            None if nodes.is_empty() => listen.unwrap_or(ALONE).to_owned(),
            None => listen.unwrap_or_default().to_owned(),
        };
        let files = self.files()?;
        // A node that has a number keeps its key; what is drawn now tells its lives apart. A new
        // one has its key for good, and nobody has met its earlier ones.
        let secret = match files.files.contains_key(&File::Identity) {
            true => NodeSecret::load(self.folder.fd())?,
            false => NodeSecret::make(self.folder.fd())?,
        };
        let key = match files.files.get(&File::Identity) {
            None => secret.key(),
            Some(bytes) if key_in(bytes)? == secret.key() => random_u128()?,
            Some(_) => return Err(foreign_secret()),
        };
        self.links.prove_as(secret);
        let start = if files.files.contains_key(&File::Identity) || !(self.told.format || nodes.is_empty()) {
            Start::Open { key }
        } else {
            let addresses = if nodes.is_empty() { vec![address.clone()] } else { nodes.clone() };
            Start::Format { key, genesis: self.genesis(addresses)? }
        };
        let mut config = Config::new(&address);
        config.seeds = nodes.into_iter().filter(|node| *node != address).collect();
        config.level = match self.told.durability {
            Durability::Memory => Level::Memory,
            Durability::Written => Level::Written,
            Durability::Synced => Level::Synced,
        };
        let engine = Replicated::open(config, &files, start, self.driver.now_ns())?;
        self.driver.install(Box::new(engine));
        Ok(true)
    }

    fn genesis(&self, addresses: Vec<String>) -> Result<Genesis> {
        let replicas = self.told.replicas.min(u8::try_from(addresses.len()).unwrap_or(u8::MAX)).max(1);
        let usual = (PARTITIONS_PER_NODE * addresses.len()).next_power_of_two();
        let settings = Settings {
            partitions: self.told.partitions.unwrap_or(u32::try_from(usual).unwrap_or(1 << 20)),
            root_mode: 0o1777,
            root_uid: rustix::process::geteuid().as_raw(),
            root_gid: rustix::process::getegid().as_raw(),
            ..Settings::default()
        };
        // All first nodes must come to the same number. Two that begin alone must not.
        let namespace = match addresses.len() {
            1 => random_u128()?,
            _ => fnv1a_128(addresses.join(",").as_bytes()).max(1),
        };
        Ok(Genesis {
            namespace,
            settings,
            replicas,
            synchronous: u8::from(replicas > 1),
            stewards: Genesis::stewards_of(addresses.len()),
            addresses,
        })
    }

    /// The files of the node's folder.
    fn files(&self) -> Result<Files> {
        let folder = self.folder.sub("node")?;
        let within = |error: std::io::Error| Error::io("files of the namespace's folder", error);
        let mut files = Files::default();
        let entries = rustix::fs::Dir::read_from(folder.as_fd()).map_err(|errno| within(errno.into()))?;
        for entry in entries {
            let entry = entry.map_err(|errno| within(errno.into()))?;
            let Some(file) = entry.file_name().to_str().ok().and_then(File::named) else { continue };
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let opened = rustix::fs::openat(&folder, entry.file_name(), flags, Mode::empty());
            let mut bytes = Vec::new();
            std::fs::File::from(opened.map_err(|errno| within(errno.into()))?)
                .read_to_end(&mut bytes)
                .map_err(within)?;
            files.files.insert(file, bytes);
        }
        Ok(files)
    }
}

fn foreign_secret() -> Error {
    let why = "the file `secret` in the namespace's folder is another node's: restore the node's own, or \
               empty the folder, which makes the node a new one";
    Error::new(ErrorKind::Config, why)
}

/// Which of the listed nodes this one is.
fn own_address(nodes: &[String], listen: Option<&str>) -> Option<String> {
    let listen = listen?;
    if let Some(same) = nodes.iter().find(|node| *node == listen) {
        return Some(same.clone());
    }
    let port = listen.rsplit_once(':')?.1;
    let is_here = |ip: IpAddr| UdpSocket::bind((ip, 0)).is_ok();
    let here = nodes.iter().filter(|node| node.rsplit_once(':').is_some_and(|(_, at)| at == port));
    let mut here =
        here.filter(|node| node.to_socket_addrs().is_ok_and(|mut found| found.any(|at| is_here(at.ip()))));
    here.next().cloned()
}

fn run(node: &Weak<NamespaceNode>, listen: Option<&str>) {
    let mut begun = false;
    loop {
        let Some(node) = node.upgrade() else { return };
        if node.stopping.load(Ordering::Relaxed) {
            return;
        }
        let mut pause = LOOK;
        if let Some(why) = node.driver.broken() {
            tracing::warn!("namespace: beginning anew from the disk, because {why}");
            node.driver.install(Box::new(Forming { waits_for: "the disk".to_owned() }));
            node.driver.settle();
            begun = false;
            pause = REST;
        } else if !begun {
            match node.begin(listen) {
                Ok(now) => begun = now,
                Err(error) => {
                    tracing::error!("namespace: cannot begin: {error}");
                    let waits_for = format!("a cure: {error}");
                    node.driver.install(Box::new(Forming { waits_for }));
                    if matches!(error.kind(), ErrorKind::Config | ErrorKind::Corrupt) {
                        return;
                    }
                    pause = REST;
                }
            }
        }
        drop(node);
        std::thread::sleep(if begun { WATCH } else { pause });
    }
}
