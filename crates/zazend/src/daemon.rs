//! Puts a daemon together from its settings, and takes it down in order.

use crate::backing_roots::{BackingRoots, CacheState};
use crate::config::{CacheSpec, Config, DEFAULT_BUDGET_PERCENT};
use crate::counters::Counters;
use crate::disk_readers::{READERS_MAX, SPINNING_READERS, disk_kind};
use crate::fetcher::Fetcher;
use crate::forward::ForwardMount;
use crate::latency::timed;
use crate::layouts::Layouts;
use crate::metrics::MetricsPage;
use crate::neighbours::AllNeighbours;
use crate::node::Node;
use crate::node_store::{AbsentDisk, CacheDisk, CacheDisks};
use crate::peers::Peers;
use crate::placement::check_placement;
use crate::push_buffers::PushBuffers;
use crate::quotas;
use crate::scan_records::ScanRecords;
use crate::service_control::ControlService;
use crate::service_frames::FramesService;
use crate::service_plugins;
use crate::shares::AllShares;
use crate::spans::Spans;
use crate::viewer::Powers;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::{Duration, Instant};
use zazen_backing::Backing;
use zazen_backing::trajectory::Indexes;
use zazen_call::{ClusterKey, Server, ServerLimits};
use zazen_core::byte_size::show;
use zazen_core::limits::{NEXT_TURN_SUFFIX, OWN_DIR, TURN_SUFFIX};
use zazen_core::{Error, ErrorKind, RelPath, Result};
use zazen_env::ownership::Trust;
use zazen_env::{Disk, RealDisk, Seldom, WatchedDisk, identity, is_trouble};
use zazen_namespace_node::{NamespaceNode, NamespaceService, Told};
use zazen_plugins::Plugins;
use zazen_store::{PACKED_BYTES_MAX, Store, StoreConfig, Stores};

/// The folder of trajectory indexes, among the cache's own files.
const INDEX_FOLDER: &str = "trajectories";

/// A peer that stalls in the middle of a message for so long is cut off.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Frames that the cache could not give or take are told of once in this time.
const CACHE_FAILURES_EVERY: Duration = Duration::from_secs(60);

/// A running daemon. Dropping it without [`Daemon::stop`] stops its listeners at once.
pub struct Daemon {
    node: Arc<Node>,
    server: Arc<Server>,
    plugins: Arc<Plugins>,
    namespace: Option<Arc<NamespaceNode>>,
    forward: Option<ForwardMount>,
    spans: Option<Arc<Spans>>,
    listen: Option<SocketAddr>,
    metrics: Option<MetricsPage>,
}

/// Bytes that the cache may use of a disk and bytes that stay free, as the settings and the disk
/// say. `(free, capacity)` is what [`disk_space`] says.
pub fn space_limits(
    config: &Config,
    spec: &CacheSpec,
    (free, capacity): (u64, u64),
    state: &mut CacheState,
) -> StoreConfig {
    let budget_bytes = spec.budget_bytes.unwrap_or_else(|| {
        // Kept from the first start on: what is free later depends on what the cache holds by then.
        *state.default_budget_bytes.get_or_insert(free / 100 * DEFAULT_BUDGET_PERCENT)
    });
    let free_floor_bytes = config.free_floor_bytes.unwrap_or_else(|| (5 << 30).min(capacity / 20));
    StoreConfig { budget_bytes, free_floor_bytes, packed_bytes_max: PACKED_BYTES_MAX }
}

/// (free bytes for this user, all bytes) of the file system that holds `directory`.
pub fn disk_space(directory: &Path) -> Result<(u64, u64)> {
    let stat = rustix::fs::statvfs(directory)
        .map_err(|errno| Error::io(format!("free space of {}", directory.display()), errno.into()))?;
    Ok((stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize))
}

impl Daemon {
    /// Opens the cache, recovers it, and serves. Once it returns, clients can connect.
    ///
    /// Fails with `Busy` if another daemon has the cache or the socket, `Config` for settings that
    /// don't hold. A backing store that doesn't answer is warned of, not an error: the cache can be
    /// served without it.
    pub fn start(config: Config) -> Result<Daemon> {
        let started = Instant::now();
        check_placement(&config)?;
        let key = config.key.as_deref().map(ClusterKey::from_file).transpose()?;
        raise_descriptor_limit();
        let powers = Powers::of_this_process();
        if powers.others {
            // Its threads act for users; none of them shall look into it.
            identity::forbid_inspection()?;
        }
        let (disks, mut states) = open_disks(&config)?;
        let store = Arc::new(Stores::new(disks.serving.iter().map(|disk| disk.store.clone()).collect())?);
        let cache_root = disks.first_root().to_path_buf();
        let mut state = CacheState::of_all(&states)?;
        state.keep_apart(store.datasets().iter().map(|dataset| dataset.dataset.as_str()));
        let indexes = Arc::new(Indexes::in_folder(cache_root.join(OWN_DIR).join(INDEX_FOLDER)));
        let roots = BackingRoots::new(&config.backing, &mut state, &indexes)?;
        for (own, disk) in states.iter_mut().zip(&disks.serving) {
            own.1.prefixes.clone_from(&state.prefixes);
            disk.store.keep_beside(|disk| own.1.write(disk)).map_err(without_disk)?;
        }
        let readers = config.readers.unwrap_or_else(|| advised_readers(&disks));
        let peers = Peers::new(config.peers.clone(), key.clone(), &config.name, store.node());
        let node = Arc::new(Node {
            store,
            disks,
            cache_failures: Seldom::every(CACHE_FAILURES_EVERY),
            roots,
            counters: Counters::default(),
            calls: Arc::default(),
            layouts: Layouts::default(),
            fetcher: Fetcher::new(config.fetchers),
            neighbours: AllNeighbours::default(),
            peers,
            shares: AllShares::default(),
            records: ScanRecords::default(),
            unfinished: Arc::default(),
            push_buffers: PushBuffers::default(),
            readers: readers.into(),
            cache_root: cache_root.to_string_lossy().into_owned(),
            powers,
            started,
            draining: false.into(),
            server: OnceLock::new(),
            plugins: OnceLock::new(),
            key,
            measuring: Mutex::default(),
            left_undone: Mutex::default(),
            config: RwLock::new(Arc::new(config)),
        });
        quotas::apply(&node, &node.config().quotas)?;
        // Asked once now, so that a wrong path shows in the log at the start. A store that is
        // mounted late must not keep the daemon from serving its cache.
        for root in &node.roots.roots {
            if let Err(error) = root.backing.stat(&RelPath::default()) {
                tracing::error!(
                    "backing store {} is not in order at the start: {error}. Cached frames are served, and \
                     the store is used as soon as it answers. If its path is wrong, correct `backing` and \
                     restart",
                    root.directory
                );
            }
        }
        Daemon::serve(node)
    }

    fn serve(node: Arc<Node>) -> Result<Daemon> {
        let (config, key) = (&*node.config(), node.key.clone());
        let limits = ServerLimits {
            connections_max: config.connections_max,
            caller: config.caller.clone(),
            stall_timeout: STALL_TIMEOUT,
            ..ServerLimits::default()
        };
        make_socket_folder(&config.socket)?;
        let namespace = start_namespace(config, key.as_ref())?;
        let forward = ForwardMount::start(config, namespace.as_ref(), &node.calls)?;
        let mounted = forward.as_ref().map(ForwardMount::folder).transpose()?;
        let options = service_plugins::host_options(config, mounted.into_iter().collect());
        let plugins = Plugins::start(&config.plugins_to_serve()?, &options)?;
        node.plugins.get_or_init(|| Arc::downgrade(&plugins));
        let mut services: Vec<Arc<dyn zazen_call::Service>> = vec![
            timed(&node.calls, Arc::new(ControlService::new(node.clone()))),
            timed(&node.calls, Arc::new(FramesService::new(node.clone()))),
            plugins.clone(),
        ];
        if let Some(namespace) = &namespace {
            services.push(timed(&node.calls, Arc::new(NamespaceService::new(namespace.clone()))));
        }
        let begin = |folder| Spans::begin(folder, &config.name, plugins.function_names());
        let spans = config.spans.as_deref().map(begin).transpose()?;
        let services = match &spans {
            Some(spans) => services.into_iter().map(|service| spans.around(service)).collect(),
            None => services,
        };
        let server = Arc::new(Server::new(services, key, limits));
        node.server.get_or_init(|| Arc::downgrade(&server));
        let metrics = config.metrics.as_deref().map(|addr| MetricsPage::serve(addr, &node)).transpose()?;
        let listen = config.listen.as_deref().map(|addr| server.listen_tcp(addr)).transpose()?;
        if let Some(namespace) = &namespace {
            namespace.form(listen.map(|addr| addr.to_string()))?;
        }
        offer_turns(&config.socket, &disks_with_turns(config.readers, &node.disks))?;
        server.listen_unix(&config.socket)?;
        Ok(Daemon { node, server, plugins, namespace, forward, spans, listen, metrics })
    }

    /// What the services share: for tests and for whoever embeds a daemon.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Where other nodes connect.
    pub fn listen_addr(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// Where the metrics page is.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|page| page.addr)
    }

    /// One line: who, where, budget, backing, socket.
    pub fn describe(&self) -> String {
        let node = &self.node;
        let space = node.store.space();
        let listen = self.listen.map_or("no other nodes".to_owned(), |addr| addr.to_string());
        let metrics =
            self.metrics_addr().map_or(String::new(), |addr| format!(", metrics http://{addr}/metrics"));
        let backing: Vec<String> = node
            .roots
            .roots
            .iter()
            .map(|root| {
                let describe = root.backing.describe();
                if describe.ends_with(&root.directory) {
                    root.directory.clone()
                } else {
                    format!("{} ({describe})", root.directory)
                }
            })
            .collect();
        format!(
            "zazend {} on {}: cache {} ({} of {} used, {} readers), backing {}, socket {}, listens to \
             {listen}{metrics}, {}",
            env!("CARGO_PKG_VERSION"),
            node.config().name,
            node.disks.roots(),
            show(space.used),
            show(space.budget),
            node.readers(),
            backing.join(", "),
            node.config().socket.display(),
            node.powers.describe(),
        )
    }

    /// The JSON that tells whoever started the daemon that it serves.
    pub fn ready_json(&self) -> String {
        let text = |addr: Option<SocketAddr>| addr.map(|addr| addr.to_string());
        serde_json::json!({
            "socket": self.node.config().socket,
            "listen": text(self.listen),
            "metrics": text(self.metrics_addr()),
            "pid": std::process::id(),
            "node": format!("{:032x}", self.node.store.node()),
        })
        .to_string()
    }

    /// Takes no new work, lets calls in progress finish within the configured time, syncs the
    /// store. Returns how many calls were cut off.
    pub fn stop(self) -> Result<usize> {
        self.node.draining.store(true, Ordering::SeqCst);
        self.plugins.begin_stop();
        let cut_off = self.server.drain(self.node.config().drain);
        // The server has the plug-ins service: with it gone, nobody else has.
        drop(self.server);
        if let Some(spans) = &self.spans {
            spans.end();
        }
        // Their calls may wait for the namespace.
        self.plugins.stop();
        if let Some(forward) = self.forward {
            forward.stop();
        }
        if let Some(namespace) = &self.namespace {
            namespace.stop();
        }
        self.node.store.sync()?;
        Ok(cut_off)
    }
}

/// Opens the disks that the settings name. One that fails is left out, as long as another one
/// serves.
fn open_disks(config: &Config) -> Result<(CacheDisks, Vec<(PathBuf, CacheState)>)> {
    let mut disks = CacheDisks { serving: Vec::new(), absent: Vec::new() };
    let (mut states, mut first) = (Vec::new(), None);
    for spec in &config.caches {
        match open_disk(config, spec) {
            Ok((disk, state)) => {
                states.push((disk.root.clone(), state));
                disks.serving.push(disk);
            }
            // A wrong setting, or another daemon that has the disk, is for a person to mend before
            // anything starts.
            Err(error) if config.caches.len() == 1 || !is_trouble(&error) => return Err(without_disk(error)),
            Err(error) => {
                tracing::error!(
                    "cache {}: {error}; the daemon starts without this disk, \
                     whose frames are read from the backing store",
                    spec.root.display()
                );
                disks.absent.push(AbsentDisk { root: spec.root.clone(), why: error.to_string() });
                first = first.or(Some(error));
            }
        }
    }
    match (disks.serving.is_empty(), first) {
        (true, Some(error)) => Err(without_disk(error)),
        _ => Ok((disks, states)),
    }
}

fn open_disk(config: &Config, spec: &CacheSpec) -> Result<(CacheDisk, CacheState)> {
    let is_new = !spec.root.exists();
    let disk = WatchedDisk::new(RealDisk::new(&spec.root)?);
    let (health, root) = (disk.health(), disk.root().to_path_buf());
    let mut state = CacheState::read(&disk)?;
    let limits = space_limits(config, spec, disk_space(&root)?, &mut state);
    let (store, recovered) = Store::open(disk, limits)?;
    if is_new {
        // It lies on the wrong disk if its own one is not mounted.
        tracing::info!("cache {} is new: there was no such folder", root.display());
    }
    if recovered.log_bytes_cut + recovered.frames_dropped + recovered.temporaries_removed > 0 {
        tracing::info!(
            "recovered {}: {} frames of {} datasets kept, {} frames dropped, {} log bytes cut, {} unfinished \
             files removed",
            root.display(),
            recovered.frames,
            recovered.datasets,
            recovered.frames_dropped,
            recovered.log_bytes_cut,
            recovered.temporaries_removed
        );
    }
    Ok((CacheDisk { root, health, store }, state))
}

/// Readers that programs should have in flight: what all disks take together, one for a spinning
/// disk.
pub(crate) fn advised_readers(disks: &CacheDisks) -> u16 {
    let kinds = disks.serving.iter().map(|disk| disk_kind(&disk.root).readers());
    kinds.sum::<u16>().clamp(1, READERS_MAX)
}

fn start_namespace(config: &Config, key: Option<&ClusterKey>) -> Result<Option<Arc<NamespaceNode>>> {
    let Some(of) = &config.namespace else { return Ok(None) };
    let told = Told {
        data: of.data.clone(),
        name: config.name.clone(),
        key: key.cloned(),
        nodes: of.nodes.clone(),
        format: of.format,
        replicas: of.replicas,
        partitions: of.partitions,
        durability: of.durability,
        verify_always: of.verify_always,
        repair_after: of.repair_after,
        admit: of.admit,
        trusts_root: of.trusts_root,
        archive: of.archive.clone(),
    };
    NamespaceNode::start(&told).map(Some)
}

/// What to do when the cache's disk does not let the daemon start.
fn without_disk(error: Error) -> Error {
    if error.kind() == ErrorKind::NoSpace {
        return error.within("the cache disk is full; make room on it, or give --cache another place");
    }
    if !is_trouble(&error) {
        return error;
    }
    error.within(
        "the cache disk fails; look at it and at the kernel's log, or give --cache another place (until then \
         analyses read the backing store by themselves)",
    )
}

/// Makes the socket's folder, searchable by all. One beneath a directory that anybody can write to
/// must be ours.
fn make_socket_folder(socket: &Path) -> Result<()> {
    let Some(folder) = socket.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
    made.map_err(|error| {
        Error::io(format!("make the socket's folder {}; choose another --socket", folder.display()), error)
    })?;
    let meta = std::fs::metadata(folder).map_err(|error| Error::io(folder.display().to_string(), error))?;
    let uid = rustix::process::geteuid().as_raw();
    if meta.uid() != uid && meta.uid() != 0 {
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "the socket's folder {} belongs to user {}, who could replace the socket; \
                 choose another --socket",
                folder.display(),
                meta.uid()
            ),
        ));
    }
    let own_gid = Trust::of_this_process().gid;
    let group_writes = meta.mode() & 0o020 != 0 && meta.gid() != own_gid;
    let everybody_writes = meta.mode() & 0o002 != 0;
    if (everybody_writes || group_writes) && meta.mode() & 0o1000 == 0 {
        let who = match everybody_writes {
            true => "everybody".to_owned(),
            false => format!("group {}", meta.gid()),
        };
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "{who} can write to the socket's folder {} (mode {:03o}) and could replace the socket; \
                 run `chmod go-w` on it, or choose another --socket",
                folder.display(),
                meta.mode() & 0o777
            ),
        ));
    }
    Ok(())
}

/// Each frame on its way to a client is a descriptor: the usual soft limit of 1024 is too low.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, wanted).is_err() {
        tracing::debug!("the limit of open files stays at {:?}", limit.current);
    }
}

/// Suffixes of the lock files, the turn's and the next turn's, of one of several spinning disks:
/// that with this device number (`st_dev`). `None`: the only disk. `turn.rs` of zazen-client has
/// the same names.
fn turn_suffixes(device: Option<u64>) -> [String; 2] {
    [TURN_SUFFIX, NEXT_TURN_SUFFIX].map(|suffix| match device {
        Some(device) => format!("{suffix}-{device:x}"),
        None => suffix.to_owned(),
    })
}

/// The device number in the name of a turn's lock file: `rest` is what follows [`TURN_SUFFIX`].
fn turn_device(rest: &str) -> Option<u64> {
    u64::from_str_radix(rest.strip_prefix('-')?, 16).ok()
}

/// The disks at which programs take turns, by the device numbers in the names of lock files; `None`
/// is the only disk. Where the settings give the readers, all disks count as spinning or none does.
pub(crate) fn disks_with_turns(readers: Option<u16>, disks: &CacheDisks) -> BTreeSet<Option<u64>> {
    let spins = |disk: &&CacheDisk| match readers {
        Some(readers) => readers == SPINNING_READERS,
        None => disk_kind(&disk.root).readers() == SPINNING_READERS,
    };
    let device = |disk: &CacheDisk| match disks.serving.len() {
        1 => Some(None),
        _ => std::fs::metadata(&disk.root).ok().map(|found| Some(found.dev())),
    };
    disks.serving.iter().filter(spins).filter_map(device).collect()
}

/// Puts the lock files by which readers take turns at these disks beside the socket, and removes
/// all others.
pub(crate) fn offer_turns(socket: &Path, disks: &BTreeSet<Option<u64>>) -> Result<()> {
    for device in [None].into_iter().chain(left_turns(socket)) {
        turn_suffixes(device).iter().try_for_each(|suffix| offer_lock(socket, suffix, false))?;
    }
    for device in disks {
        // The turn's own file last: readers that find it look for the other one, too.
        turn_suffixes(*device).iter().rev().try_for_each(|suffix| offer_lock(socket, suffix, true))?;
    }
    Ok(())
}

/// Puts the lock files of `new` in the place of those of `old`. Lock files of a disk that has turns
/// before and after stay, because readers hold them. If it fails, the lock files are as before.
pub(crate) fn change_turns(
    socket: &Path,
    old: &BTreeSet<Option<u64>>,
    new: &BTreeSet<Option<u64>>,
) -> Result<()> {
    let offer = |device: Option<u64>, wanted: bool| {
        turn_suffixes(device).iter().rev().try_for_each(|suffix| offer_lock(socket, suffix, wanted))
    };
    let made = new.difference(old).try_for_each(|device| offer(*device, true));
    if made.is_err() {
        new.difference(old).for_each(|device| drop(offer(*device, false)));
        return made;
    }
    // A file that cannot be removed costs readers a turn at a disk that needs none.
    for device in old.difference(new) {
        if let Err(error) = offer(*device, false) {
            tracing::warn!("{error}");
        }
    }
    Ok(())
}

/// The devices of lock files that are there.
fn left_turns(socket: &Path) -> Vec<Option<u64>> {
    let (Some(folder), Some(name)) = (socket.parent(), socket.file_name().and_then(|name| name.to_str()))
    else {
        return Vec::new();
    };
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let device =
        |found: String| Some(Some(turn_device(found.strip_prefix(name)?.strip_prefix(TURN_SUFFIX)?)?));
    names.filter_map(device).collect()
}

fn offer_lock(socket: &Path, suffix: &str, wanted: bool) -> Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let mut path = socket.as_os_str().to_owned();
    path.push(suffix);
    let path = PathBuf::from(path);
    // Made anew each time: in a folder where others may make files, what is there may be a link, or
    // somebody's own.
    let removed = match std::fs::remove_file(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    let made = removed.and_then(|()| match wanted {
        // Readable by everyone: a lock needs no more.
        true => std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|file| file.set_permissions(std::fs::Permissions::from_mode(0o644))),
        false => Ok(()),
    });
    made.map_err(|error| Error::io(format!("lock file for readers {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lock files beside a socket, with their inodes.
    fn locks(folder: &Path) -> std::collections::BTreeMap<String, u64> {
        let found = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        found
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().ino()))
            .collect()
    }

    #[test]
    fn a_lock_file_that_is_still_wanted_stays_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("z.sock");
        let disks = |of: &[u64]| of.iter().map(|device| Some(*device)).collect::<BTreeSet<_>>();
        offer_turns(&socket, &disks(&[1, 2])).unwrap();
        let before = locks(folder.path());
        assert_eq!(before.len(), 4, "{before:?}");
        change_turns(&socket, &disks(&[1, 2]), &disks(&[2, 3])).unwrap();
        let after = locks(folder.path());
        let of = |device: &str| after.iter().filter(|(name, _)| name.ends_with(device)).collect::<Vec<_>>();
        assert_eq!((of("-1").len(), of("-2").len(), of("-3").len()), (0, 2, 2), "{after:?}");
        assert!(of("-2").iter().all(|(name, inode)| before.get(*name) == Some(inode)));
        // What cannot be made leaves all as it was.
        std::fs::create_dir(folder.path().join("z.sock.turn-5")).unwrap();
        change_turns(&socket, &disks(&[2, 3]), &disks(&[4, 5])).unwrap_err();
        let mut left = locks(folder.path());
        left.remove("z.sock.turn-5");
        assert_eq!(left, after);
    }
}
