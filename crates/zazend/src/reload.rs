//! SIGHUP: reads the settings and the key again, and takes what a running daemon can change.
//!
//! Invariants: settings are taken as a whole or not at all; each setting either changes, or is
//! named as one that needs a restart. A setting that this file does not know does not compile.

use crate::backing_roots::CacheState;
use crate::config::{Args, CacheSpec, Config, check_budget};
use crate::daemon::{advised_readers, change_turns, disk_space, disks_with_turns, space_limits};
use crate::logging::{LogFilter, LogLevel};
use crate::node::{LeftUndone, Node};
use crate::node_store::CacheDisk;
use crate::peers::PeerList;
use crate::quota_settings::QuotaSettings;
use crate::quotas;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use zazen_call::ClusterKey;
use zazen_core::byte_size::show;
use zazen_core::{Error, ErrorKind, Result};

/// Reads settings again as they were told at the start.
pub struct Reloader {
    args: Args,
    log: LogLevel,
}

/// What became of a reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Settings that changed, with their old and new values.
    pub taken: Vec<String>,
    /// Settings that need a restart.
    pub needs_restart: Vec<String>,
    /// What a person should know besides.
    pub notes: Vec<String>,
}

impl Reloader {
    /// `args`: the flags of the start, which still win over the file.
    pub fn new(args: Args, log: LogLevel) -> Reloader {
        Reloader { args, log }
    }

    /// Takes what changed, and says in the log what it took, what it did not, and why.
    pub fn reload(&self, node: &Node) {
        let taken = Config::assemble(&self.args).and_then(|new| take(node, new, &self.log));
        let mut left = LeftUndone::default();
        match taken {
            Ok(outcome) => {
                outcome.notes.iter().for_each(|note| tracing::warn!("SIGHUP: {note}"));
                match outcome.taken.is_empty() {
                    true => tracing::info!(
                        "SIGHUP: no setting changed that can change now (flags win over the file)"
                    ),
                    false => tracing::info!("SIGHUP: took {}", outcome.taken.join(", ")),
                }
                if !outcome.needs_restart.is_empty() {
                    let named = outcome.needs_restart.join(", ");
                    tracing::warn!("SIGHUP: restart zazend (SIGTERM, then start it) for {named}");
                }
                left.needs_restart = outcome.needs_restart;
            }
            Err(error) => {
                tracing::error!("SIGHUP: {error}; no setting was changed, and the daemon goes on as before");
                left.refused = Some(error.to_string());
            }
        }
        *node.left_undone.lock().unwrap_or_else(PoisonError::into_inner) = left;
    }
}

/// Takes `new`, or nothing of it.
fn take(node: &Node, new: Config, log: &LogLevel) -> Result<Outcome> {
    let now = node.config();
    check_budget(&new)?;
    let key = match (&node.key, &new.key) {
        (Some(own), Some(path)) => {
            let read = ClusterKey::from_file(path)?;
            (!read.is_same(own)).then_some(read)
        }
        _ => None,
    };
    let mut outcome = Outcome::default();
    let merged = merge(&now, new, node.key.is_some(), &mut outcome);
    let mut limits = Vec::new();
    for (spec, disk) in serving(node, &merged) {
        let (free, capacity) = disk_space(&disk.root)?;
        let mut state = disk.store.keep_beside(CacheState::read)?;
        let new = space_limits(&merged, spec, (free, capacity), &mut state);
        if merged.caches != now.caches && new.budget_bytes > capacity {
            let (budget, has) = (show(new.budget_bytes), show(capacity));
            let text = format!(
                "the budget of {budget} is more than the {has} of disk {}; lower budget",
                disk.root.display()
            );
            return Err(Error::new(ErrorKind::Config, text));
        }
        limits.push((disk, new));
    }
    let readers = merged.readers.unwrap_or_else(|| advised_readers(&node.disks));
    let quotas = quotas::of(&merged.quotas, &node.roots)?;
    // What can fail comes first, and the only change that can fail comes last of it.
    let filter = LogFilter::parse(&merged.log)?;
    let turns = disks_with_turns(merged.readers, &node.disks);
    change_turns(&merged.socket, &disks_with_turns(now.readers, &node.disks), &turns)?;
    log.take(filter);
    node.readers.store(readers, Ordering::Relaxed);
    node.fetcher.set_at_once(merged.fetchers);
    node.peers.set_list(merged.peers.clone());
    let server = node.server.get().and_then(std::sync::Weak::upgrade);
    if let Some(server) = &server {
        server.set_limits(merged.connections_max, &merged.caller);
    }
    if let (Some(key), Some(server)) = (key, &server) {
        let closed = server.replace_key(&key);
        outcome.taken.push(format!("the key ({closed} connections of other nodes and writers were closed)"));
    }
    node.disks.serving.iter().for_each(|disk| disk.store.set_quotas(quotas.clone()));
    for (disk, new) in limits {
        if (&merged.caches, merged.free_floor_bytes) == (&now.caches, now.free_floor_bytes) {
            break;
        }
        let root = disk.root.display();
        match disk.store.set_limits(new.budget_bytes, new.free_floor_bytes) {
            Ok(0) => {}
            Ok(over) => outcome.notes.push(format!(
                "{} more than the budget of {root} are in use, because the rest is pinned or being read; the \
                 next frames evict it, or unpin a dataset",
                show(over)
            )),
            Err(error) => outcome.notes.push(format!(
                "{root} could not be evicted down to its new budget: \
                                                      {error}"
            )),
        }
    }
    node.set_config(merged);
    Ok(outcome)
}

/// The disks that serve, with their settings.
fn serving<'a>(node: &'a Node, config: &'a Config) -> impl Iterator<Item = (&'a CacheSpec, &'a CacheDisk)> {
    let absent = |spec: &&CacheSpec| node.disks.absent.iter().any(|disk| disk.root == spec.root);
    config.caches.iter().filter(move |spec| !absent(spec)).zip(&node.disks.serving)
}

/// The settings of a daemon that has `now` and is told `new`: those that can change are of `new`.
/// `has_key`: the daemon has a key, whose bytes are read again whatever its path.
fn merge(now: &Config, new: Config, has_key: bool, outcome: &mut Outcome) -> Config {
    let mut stays = Listed { now, named: Vec::new() };
    let mut goes = Listed { now, named: Vec::new() };
    let Config {
        caches,
        backing,
        listen,
        socket,
        key,
        peers,
        free_floor_bytes,
        quotas,
        metrics,
        metrics_datasets,
        name,
        log,
        readers,
        validate,
        fetchers,
        connections_max,
        caller,
        drain,
        cpus,
        cpu_share,
        dump_file,
        spans,
        exports,
        namespace,
        plugins,
        plugin_worker,
        ready_fd: _,
        ready_file: _,
    } = new;
    let path = |path: &Option<std::path::PathBuf>| {
        path.as_ref().map_or("none".to_owned(), |path| path.display().to_string())
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "off".to_owned());
    let size = |bytes: &Option<u64>| bytes.map_or("its default".to_owned(), show);

    let roots = |caches: &[CacheSpec]| {
        let roots: Vec<String> = caches.iter().map(|cache| cache.root.display().to_string()).collect();
        roots.join(", ")
    };
    let caches_stay = roots(&now.caches) != roots(&caches);
    if caches_stay {
        stays.look("cache", |config| &config.caches, &caches, |caches| roots(caches));
    } else {
        let budgets = |caches: &Vec<CacheSpec>| {
            let budgets: Vec<String> = caches.iter().map(|cache| size(&cache.budget_bytes)).collect();
            match budgets.iter().all(|budget| *budget == budgets[0]) {
                true => budgets[0].clone(),
                false => budgets.join(", "),
            }
        };
        goes.look("budget", |config| &config.caches, &caches, budgets);
    }
    stays.name("backing", |config| &config.backing, &backing);
    stays.look("listen", |config| &config.listen, &listen, text);
    stays.look("socket", |config| &config.socket, &socket, |socket| socket.display().to_string());
    stays.look("metrics", |config| &config.metrics, &metrics, text);
    stays.look("name", |config| &config.name, &name, String::clone);
    stays.look("spans", |config| &config.spans, &spans, path);
    stays.look("cpus", |config| &config.cpus, &cpus, |cpus| shown(cpus, "all"));
    stays.look("cpu_share", |config| &config.cpu_share, &cpu_share, |share| shown(share, "off"));
    stays.name("export", |config| &config.exports, &exports);
    stays.name("namespace", |config| &config.namespace, &namespace);
    stays.name("plugin", |config| &config.plugins, &plugins);
    let key_stays = has_key != key.is_some();
    if key_stays {
        stays.look("key", |config| &config.key, &key, path);
    } else {
        goes.look("key", |config| &config.key, &key, path);
    }
    // Without a key no peer can be asked.
    let peers_stay = !has_key && peers.is_some();
    let listed = |list: &Option<PeerList>| match list {
        None => "none".to_owned(),
        Some(PeerList::File(path)) => path.display().to_string(),
        Some(PeerList::Nodes(nodes)) => nodes.join(","),
    };
    if peers_stay {
        stays.look("peers", |config| &config.peers, &peers, listed);
    } else {
        goes.look("peers", |config| &config.peers, &peers, listed);
    }

    goes.look("free_floor", |config| &config.free_floor_bytes, &free_floor_bytes, size);
    goes.look("user_budget and dataset_budget", |config| &config.quotas, &quotas, QuotaSettings::shown);
    goes.look("log", |config| &config.log, &log, String::clone);
    let readers_text =
        |readers: &Option<u16>| readers.map_or("auto".to_owned(), |readers| readers.to_string());
    goes.look("readers", |config| &config.readers, &readers, readers_text);
    goes.look("validate", |config| &config.validate, &validate, |it| format!("{it:?}").to_lowercase());
    goes.look("fetchers", |config| &config.fetchers, &fetchers, usize::to_string);
    goes.look("metrics_datasets", |config| &config.metrics_datasets, &metrics_datasets, usize::to_string);
    goes.look("connections_max", |config| &config.connections_max, &connections_max, usize::to_string);
    let caller_text = |limits: &zazen_call::CallerLimits| {
        format!(
            "{} connections, {} calls that wait {} s, {}",
            limits.connections_max,
            limits.calls_max,
            limits.queue_max.as_secs(),
            show(limits.bytes_max)
        )
    };
    goes.look("limits of each caller", |config| &config.caller, &caller, caller_text);
    goes.look("drain_seconds", |config| &config.drain, &drain, |drain| drain.as_secs().to_string());
    goes.look("dump_file", |config| &config.dump_file, &dump_file, path);
    outcome.taken.append(&mut goes.named);
    outcome.needs_restart.append(&mut stays.named);

    Config {
        caches: if caches_stay { now.caches.clone() } else { caches },
        key: if key_stays { now.key.clone() } else { key },
        peers: if peers_stay { now.peers.clone() } else { peers },
        free_floor_bytes,
        quotas,
        metrics_datasets,
        log,
        readers,
        validate,
        fetchers,
        connections_max,
        caller,
        drain,
        dump_file,
        plugin_worker,
        ..now.clone()
    }
}

fn shown<T: ToString>(value: &Option<T>, without: &str) -> String {
    value.as_ref().map_or_else(|| without.to_owned(), T::to_string)
}

/// The settings of one list that differ.
struct Listed<'a> {
    now: &'a Config,
    named: Vec<String>,
}

impl Listed<'_> {
    fn look<T: PartialEq>(
        &mut self,
        name: &str,
        of: impl Fn(&Config) -> &T,
        new: &T,
        text: impl Fn(&T) -> String,
    ) {
        let now = of(self.now);
        if now != new {
            self.named.push(format!("{name} {} (it was {})", text(new), text(now)));
        }
    }

    /// For settings that are too long for a line.
    fn name<T: PartialEq>(&mut self, name: &str, of: impl Fn(&Config) -> &T, new: &T) {
        if of(self.now) != new {
            self.named.push(name.to_owned());
        }
    }
}
