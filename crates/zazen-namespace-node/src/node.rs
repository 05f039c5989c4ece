//! A node of the namespace, as its service uses it.

use crate::archive::recall;
use crate::archive::state::{Archive, ArchiveTold};
use crate::away::Away;
use crate::books::Quotas;
use crate::driver::{Bytes, Driver, wall_ns};
use crate::engine::{Engine as _, Forming};
use crate::folder::DataFolder;
use crate::gone::Gone;
use crate::handles::{Session, lock};
use crate::incoming::Incoming;
use crate::leaving::Work;
use crate::links::Links;
use crate::objects::{ObjectName, Objects};
use crate::peers::Peers;
use crate::per_user::OfUsers;
use crate::repeats::Repeats;
use crate::reserve::Reserve;
use crate::seals::Seals;
use crate::waiting::Waiting;
use crate::watchers::Watchers;
use std::collections::{HashMap, HashSet};
use std::hash::RandomState;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use zazen_call::{Caller, ClusterKey};
use zazen_core::fnv::mixed;
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace::map::State;
use zazen_namespace::service::{Hello, Leave, Leaving, MapView, NodeView, namespace_fn};
use zazen_namespace::split::Layouts;
use zazen_namespace::{Epoch, Incarnation, InodeId, NodeNo};

/// Inodes with the same number below this share a lock.
const TELLINGS: usize = 1024;

/// The nodes that a namespace begins with, or that a new node asks to let it in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeList {
    /// In a file, one `host:port` a line. It may come later.
    File(PathBuf),
    /// Written out.
    Nodes(Vec<String>),
}

/// When a change counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// In the memory of the primary and of the first backup; on disk within a second.
    Memory,
    /// Written to the files of both; survives that all daemons are killed.
    #[default]
    Written,
    /// Synced to the disks of both; survives that the power fails.
    Synced,
}

/// Who may join a namespace, of those who have the cluster key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admit {
    /// Every node.
    #[default]
    Key,
    /// Nodes at the listed addresses.
    Listed,
}

/// What a node of the namespace is told.
#[derive(Clone, Debug)]
pub struct Told {
    /// Its folder, on a disk of its own.
    pub data: PathBuf,
    /// Its name, for people.
    pub name: String,
    /// The cluster key.
    pub key: Option<ClusterKey>,
    /// The first nodes; `None` for a namespace of this node alone.
    pub nodes: Option<NodeList>,
    /// Whether this is one of the first nodes of a new namespace, if its folder is empty.
    pub format: bool,
    /// Nodes that keep each partition of a new namespace.
    pub replicas: u8,
    /// Partitions of a new namespace; `None`: by the number of nodes.
    pub partitions: Option<u32>,
    /// When a change counts as done.
    pub durability: Durability,
    /// Whether the daemon reads all bytes itself, to check each read, instead of the kernel.
    pub verify_always: bool,
    /// How long a node must be down before copies of its files are made elsewhere.
    pub repair_after: Duration,
    /// Who may join.
    pub admit: Admit,
    /// Whether root of this node is root in the namespace. Otherwise it is nobody there.
    pub trusts_root: bool,
    /// Where closed files go; `None`: nowhere.
    pub archive: Option<ArchiveTold>,
}

/// How long another node may take to say its name.
const NAME_WITHIN: Duration = Duration::from_secs(1);

/// A node of the namespace. For any thread.
pub struct NamespaceNode {
    pub(crate) driver: Arc<Driver>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) seals: Arc<Seals>,
    pub(crate) waiting: Waiting,
    pub(crate) archive: Arc<Archive>,
    /// What is done to leave the namespace.
    pub(crate) leave: Work,
    /// Copies that are coming in.
    pub(crate) incoming: Incoming,
    pub(crate) links: Arc<Links>,
    pub(crate) sessions: Mutex<HashMap<u64, Arc<Session>>>,
    pub(crate) slots: Slots,
    /// Other nodes that were waited for in vain.
    pub(crate) away: Away,
    /// How large directories are split, as far as operations met them.
    pub(crate) layouts: Mutex<Layouts>,
    /// Length, blocks and time of objects as the metadata was told last.
    pub(crate) committed: Mutex<HashMap<ObjectName, (u64, u64, i64)>>,
    /// Objects whose bytes a sync failed to bring to the disk. The kernel tells it once only.
    pub(crate) unsynced: Mutex<HashSet<ObjectName>>,
    /// Locks of those that tell the metadata of an object, by the inode: an older length must not
    /// come last.
    pub(crate) tellings: Vec<Mutex<()>>,
    /// Keys the hash that makes owners of locks: no caller can find the owner of another.
    pub(crate) owners: RandomState,
    map: Mutex<Arc<MapView>>,
    /// What nodes call themselves, by address.
    names: Mutex<HashMap<String, String>>,
    /// The daemon's user, who may vouch as root may.
    uid: u32,
    /// Numbers handles; the upper bits tell one life of the daemon from the next.
    next_handle: AtomicU64,
    /// Numbers calls of other daemons.
    next_call: AtomicU64,
    /// Calls of other daemons that come again.
    pub(crate) repeats: Repeats,
    pub(crate) watchers: Arc<Watchers>,
    /// What users and directories may take.
    pub(crate) quotas: Quotas,
    /// What users have open.
    pub(crate) of_users: OfUsers,
    /// What connections of other daemons have proved.
    pub(crate) peers: Peers,
    pub(crate) stopping: AtomicBool,
    pub(crate) folder: DataFolder,
    pub(crate) told: Told,
}

/// Numbers of clients that the daemon asks with: each has one batch of requests under way at a
/// time, so a partition keeps the answers of one batch for each.
#[derive(Default)]
pub(crate) struct Slots {
    free: Mutex<Vec<Slot>>,
    next: AtomicU64,
}

/// A client number, and its next request.
pub(crate) struct Slot {
    /// Unique for good.
    pub(crate) client: u64,
    /// The number of its next request.
    pub(crate) number: u64,
}

/// Whether a node may ask with this client number. Partitions keep answers by it, so nobody may use
/// another node's.
pub(crate) fn is_client_of(client: u64, node: NodeNo) -> bool {
    client >> 48 == u64::from(node.0) & 0xffff
}

impl Slots {
    pub(crate) fn take(&self, node: NodeNo, incarnation: Incarnation) -> Slot {
        let mut free = lock(&self.free);
        while let Some(slot) = free.pop() {
            // This node may have got another number since.
            if is_client_of(slot.client, node) {
                return slot;
            }
        }
        drop(free);
        // 16 bits of node, 24 of life, 24 of number: a life has as many slots as it ever had calls
        // under way at once.
        let next = self.next.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        let life = incarnation.0 & 0xff_ffff;
        Slot { client: u64::from(node.0) << 48 | life << 24 | next, number: 1 }
    }

    pub(crate) fn give(&self, slot: Slot) {
        lock(&self.free).push(slot);
    }
}

/// How far a node is that leaves, as JSON.
fn leaving_shown(leaving: &Leaving) -> serde_json::Value {
    serde_json::json!({
        "partitions": leaving.partitions,
        "is_steward": leaving.is_steward,
        "files": leaving.files,
        "bytes": leaving.bytes,
        "in_use": leaving.in_use,
        "moved": leaving.moved,
        "moved_bytes": leaving.moved_bytes,
        "open_files": leaving.open_files,
    })
}

impl NamespaceNode {
    /// Opens the node's folder and serves.
    pub fn start(told: &Told) -> Result<Arc<NamespaceNode>> {
        let folder = DataFolder::open(&told.data)?;
        let objects = Arc::new(Objects::new(folder.sub("objects")?));
        let incoming = Incoming::open(folder.sub("incoming")?)?;
        let seals = Arc::new(Seals::open(folder.sub("sums")?)?);
        let archive = Arc::new(Archive::open(told.archive.as_ref(), &folder, &objects)?);
        recall::install(&archive, &objects, &seals, &folder)?;
        let links = Arc::new(Links::new(told.key.clone(), &told.name));
        let waits_for = "the daemon to listen".to_owned();
        let engine = Box::new(Forming { waits_for });
        let map = Arc::new(engine.map());
        let of_metadata = folder.sub("node")?;
        let reserve = Reserve::open(folder.fd())
            .map_err(|error| Error::io(format!("reserve in {}", told.data.display()), error))?;
        let gone = Gone::begin(folder.sub("gone")?)?;
        let bytes = Bytes { objects: Arc::clone(&objects), seals: Arc::clone(&seals), gone };
        let driver = Driver::start(engine, of_metadata, bytes, Arc::clone(&links), Arc::new(reserve))?;
        let node = Arc::new(NamespaceNode {
            driver,
            objects,
            seals,
            waiting: Waiting::default(),
            archive,
            leave: Work::default(),
            incoming,
            links,
            sessions: Mutex::default(),
            slots: Slots::default(),
            away: Away::default(),
            layouts: Mutex::default(),
            committed: Mutex::default(),
            unsynced: Mutex::default(),
            tellings: std::iter::repeat_with(Mutex::default).take(TELLINGS).collect(),
            owners: RandomState::new(),
            map: Mutex::new(map),
            names: Mutex::default(),
            uid: rustix::process::geteuid().as_raw(),
            next_handle: AtomicU64::new(wall_ns().unsigned_abs()),
            next_call: AtomicU64::new(zazen_env::random_u128()? as u64),
            repeats: Repeats::default(),
            watchers: Arc::default(),
            quotas: Quotas::default(),
            of_users: OfUsers::default(),
            peers: Peers::default(),
            stopping: AtomicBool::new(false),
            folder,
            told: told.clone(),
        });
        node.remember_leave();
        Ok(node)
    }

    /// Who this node is. `Unavailable` while it has not joined.
    pub(crate) fn identity(&self) -> Result<(NodeNo, Incarnation)> {
        if let Some(why) = self.driver.broken() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("the namespace on {} answers nobody any more: {why}", self.told.name),
            ));
        }
        if self.is_gone() {
            return Err(Error::new(ErrorKind::Unavailable, self.has_left()));
        }
        match self.driver.ask(|engine| engine.identity()) {
            (Some(node), incarnation) => Ok((node, incarnation)),
            (None, _) => Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the namespace on {} has not joined the others yet; see `zazen namespace status`",
                    self.told.name
                ),
            )),
        }
    }

    /// The newest map that this node knows.
    pub(crate) fn map(&self) -> Arc<MapView> {
        let epoch = self.driver.ask(|engine| engine.epoch());
        let mut map = lock(&self.map);
        if map.epoch != epoch || epoch == Epoch(0) {
            *map = Arc::new(self.driver.ask(|engine| engine.map()));
        }
        Arc::clone(&map)
    }

    /// The map with the names that the nodes call themselves, for people and schedulers. A node
    /// that does not answer has none: its address is no name, and nobody must take it for one.
    pub(crate) fn named_map(&self) -> MapView {
        let mut map = MapView::clone(&self.map());
        let own = self.identity().ok().map(|(node, _)| node);
        for node in &mut map.nodes {
            let known = match own == Some(node.node) {
                true => Some(self.told.name.clone()),
                false => lock(&self.names).get(&node.addr).cloned(),
            };
            let name = known.or_else(|| {
                if !node.up {
                    return None;
                }
                let reply = self.links.call(&node.addr, namespace_fn::STATUS, &[], &[], NAME_WITHIN).ok()?;
                let status: serde_json::Value = serde_json::from_slice(&reply.payload).ok()?;
                let name = status["name"].as_str()?.to_owned();
                lock(&self.names).insert(node.addr.clone(), name.clone());
                Some(name)
            });
            node.name = name.unwrap_or_default();
        }
        map
    }

    /// Whether `caller` may speak for others: a local process of root or of the daemon's user, or
    /// somebody who has proven the cluster key.
    pub(crate) fn vouches(&self, caller: &Caller) -> bool {
        !caller.is_local() || caller.credentials.uid == 0 || caller.credentials.uid == self.uid
    }

    /// The right to tell the metadata of an inode's object.
    pub(crate) fn telling(&self, id: InodeId) -> MutexGuard<'_, ()> {
        lock(&self.tellings[(mixed(id.0) % TELLINGS as u64) as usize])
    }

    /// A number for a call of another daemon. All daemons begin at random, so no two have the same.
    pub(crate) fn fresh_call(&self) -> u64 {
        self.next_call.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn fresh_handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Who the daemon is, and who the caller is to it.
    pub(crate) fn hello(&self, caller: &Caller) -> Result<Hello> {
        let (node, incarnation) = self.identity()?;
        let map = self.map();
        Ok(Hello {
            node,
            incarnation,
            epoch: map.epoch,
            partition_bits: map.partitions.len().max(1).ilog2() as u8,
            vouches: self.vouches(caller),
            squashes_root: !self.told.trusts_root,
        })
    }

    /// The state, as JSON.
    pub fn status(&self, caller: &Caller) -> serde_json::Value {
        let disk = self.objects.disk().unwrap_or_default();
        let lists_quotas = caller.is_local() && self.administers(caller);
        // Another daemon asks for this node's name only.
        let map = if caller.is_local() { self.named_map() } else { MapView::clone(&self.map()) };
        let nodes: Vec<_> = map
            .nodes
            .iter()
            .map(|node| {
                let primary = map.partitions.iter().filter(|seat| seat.primary == node.node).count();
                let backup = map.partitions.iter().filter(|seat| seat.backups.contains(&node.node)).count();
                serde_json::json!({
                    "node": node.node.0,
                    "name": (!node.name.is_empty()).then_some(&node.name),
                    "address": node.addr,
                    "state": match node.state {
                        State::Gone => "left",
                        _ if !node.up => "down",
                        State::Leaving => "leaving",
                        _ => "up",
                    },
                    "primary_of": primary,
                    "backup_of": backup,
                    "leaving": caller.is_local().then(|| self.leaving_of(node)).flatten(),
                })
            })
            .collect();
        let (node, incarnation) = self.driver.ask(|engine| engine.identity());
        let leaving = self.leaves().then(|| leaving_shown(&self.leaving()));
        let sessions = lock(&self.sessions);
        let handles: usize = sessions.values().map(|session| session.handles()).sum();
        serde_json::json!({
            "node": node.map(|node| node.0),
            "name": self.told.name,
            "incarnation": incarnation.0,
            "epoch": map.epoch.0,
            "partitions": map.partitions.len(),
            "data": self.folder.path(),
            "bytes_free": disk.bytes_free,
            "bytes": disk.bytes,
            "programs": sessions.len(),
            "open_files": handles,
            "damaged_files": self.seals.damaged_count(),
            "waits_for_checksums": self.waiting.seals_left(),
            "waits_for_copies": self.waiting.copies.len(),
            "archive": self.archive.status(),
            "quotas": lists_quotas.then(|| self.quotas(None).quotas.iter().map(|quota| serde_json::json!({
                "user": quota.user,
                "path": quota.path,
                "bytes": quota.counted.then_some(quota.bytes),
                "bytes_max": quota.bytes_max,
                "files": quota.counted.then_some(quota.files),
                "files_max": quota.files_max,
            })).collect::<Vec<_>>()),
            "broken": self.driver.broken().or_else(|| self.is_gone().then(|| self.has_left())),
            "leaving": leaving,
            "engine": self.driver.ask(|engine| engine.status()),
            "nodes": nodes,
            "links": self.links.status().iter().map(|(address, dropped)| {
                serde_json::json!({"address": address, "envelopes_dropped": dropped})
            }).collect::<Vec<_>>(),
        })
    }

    /// How far another node is that leaves, for people.
    fn leaving_of(&self, node: &NodeView) -> Option<serde_json::Value> {
        if node.state != State::Leaving || !node.up {
            return None;
        }
        let asked = Leave { node: Some(node.node), run: None };
        self.leave(&asked).ok().map(|leaving| leaving_shown(&leaving))
    }

    /// Serves nobody any more.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.watchers.stop();
        let sessions: Vec<_> = lock(&self.sessions).drain().collect();
        sessions.iter().for_each(|(_, session)| self.end_session(session));
        self.driver.stop();
        self.links.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_numbers_say_whose_they_are() {
        let slots = Slots::default();
        for number in [1, 2, 0xffff, 0x1_0000] {
            let node = NodeNo(number);
            let first = slots.take(node, Incarnation(5));
            let second = slots.take(node, Incarnation(5));
            assert!(first.client != second.client);
            for client in [first.client, second.client] {
                assert!(is_client_of(client, node) && !is_client_of(client, NodeNo(number % 0xffff + 1)));
            }
            // What is free is used again, by the same node.
            slots.give(Slot { number: 9, ..first });
            assert_eq!(slots.take(node, Incarnation(6)).number, 9);
            slots.give(second);
        }
    }
}
