//! What a daemon is told: flags, a TOML file, defaults; in that order of precedence.
//!
//! Invariant: an unknown key or a bad value is an error that names file or flag; nothing is
//! silently ignored.

use crate::cores::{CpuShare, Cpus};
use crate::namespace_settings::{NamespaceArgs, NamespaceConfig, NamespaceTable};
use crate::peers::PeerList;
use crate::plugin_settings::{self, PluginEntry};
use crate::quota_settings::QuotaSettings;
use crate::settings_text::settings_text;
use clap::Parser;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zazen_backing::objects;
use zazen_call::CallerLimits;
use zazen_core::{DEFAULT_PORT, Error, ErrorKind, Result, byte_size};
use zazen_plugins::PluginConfig;

pub use zazen_frames::stale::Validate;

/// Fetches from the backing store at once where nothing else is said.
pub const DEFAULT_FETCHERS: usize = 8;
/// Datasets that the metrics may name: a monitoring keeps a series of numbers for each.
const METRICS_DATASETS_MAX: usize = 1000;
/// Share of the file system's free space that the budget takes where none is given.
pub const DEFAULT_BUDGET_PERCENT: u64 = 80;

/// The smallest budget that does anything.
pub const BUDGET_BYTES_MIN: u64 = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  zazend --cache /ssd/zazen --backing /lustre
  zazend --cache /ssd/zazen --backing /lustre --listen 0.0.0.0 --key /etc/zazen/key --budget 800G
  zazend --config /etc/zazen/zazend.toml --check";

/// zazend: keeps frames of scientific data on this node's disk and hands them to the programs that
/// compute here.
///
/// Run one per node. Flags win over the file given with --config. SIGTERM drains and stops, a
/// second one stops at once; SIGUSR1 writes the whole state to the log (or to --dump-file); SIGHUP
/// reads the file and the key again, takes what a running daemon can change, and names in the log
/// what needs a restart.
#[derive(Parser, Clone, Debug, Default)]
#[command(name = "zazend", version, max_term_width = 110, after_help = EXAMPLES)]
pub struct Args {
    /// Directory for cached frames, on a local disk, once for each disk; made if it doesn't exist
    #[arg(long, value_name = "DIR")]
    pub cache: Vec<PathBuf>,
    /// Backing store as users spell it, once for each: an absolute directory, s3://BUCKET/PREFIX,
    /// or DIR=tcp://HOST:PORT for the same spelling read through a file server. Settings of an
    /// object store follow a `?`: s3://BUCKET/PREFIX?endpoint=URL&owner=UID&group=GID&mode=0440
    #[arg(long, value_name = "DIR|s3://BUCKET/PREFIX")]
    pub backing: Vec<String>,
    /// Accept writers and tools of other nodes at this address (needs --key); port 7345 if none is
    /// given, 0 picks one
    #[arg(long, value_name = "HOST[:PORT]")]
    pub listen: Option<String>,
    /// Unix socket for this node's programs [default: $ZAZEN_SOCKET, /run/zazen/zazend.sock as
    /// root, else $XDG_RUNTIME_DIR/zazen/zazend.sock or ~/.zazen/zazend-HOST.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Cluster key file, the same on all nodes (`zazen key new FILE` makes one)
    #[arg(long, value_name = "FILE", env = "ZAZEN_KEY")]
    pub key: Option<PathBuf>,
    /// Other nodes, which are asked for blocks of files before the backing store: a file with one
    /// host:port a line, or host:port,host:port; the same list on all nodes (needs --key) [default:
    /// none]
    #[arg(long, value_name = "FILE|LIST")]
    pub peers: Option<String>,
    /// Bytes that the cache may use of each disk, such as 200G; or once for each --cache, in their
    /// order [default: 80 % of what is free at the first start]
    #[arg(long, value_name = "SIZE")]
    pub budget: Vec<String>,
    /// Free bytes of the cache's file system that are never used [default: 5G, or 5 % of a smaller
    /// disk]
    #[arg(long, value_name = "SIZE")]
    pub free_floor: Option<String>,
    /// Bytes of each disk that the frames of one user's files may take: SIZE for each user,
    /// NAME=SIZE for one, none for no bound; once for each [default: none]
    #[arg(long, value_name = "[USER=]SIZE")]
    pub user_budget: Vec<String>,
    /// Bytes of each disk that one dataset may take: SIZE for each, /PATH=SIZE for all datasets at
    /// and beneath a path together; once for each [default: none]
    #[arg(long, value_name = "[/PATH=]SIZE")]
    pub dataset_budget: Vec<String>,
    /// Serve Prometheus metrics at http://HOST:PORT/metrics; port 0 picks one [default: off]
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<String>,
    /// The metrics name the N datasets with most bytes; without it they name none, because nobody
    /// proves there who he is [default: 0]
    #[arg(long, value_name = "N")]
    pub metrics_datasets: Option<usize>,
    /// Name of this node in messages and in `zazen status` [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Read settings from this TOML file; flags win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What is logged: error, warn, info, debug, trace or off; or per part, such as
    /// warn,zazen_store=debug; with the word json, as JSON lines: json,warn [default: info]
    #[arg(long, value_name = "LEVEL", env = "ZAZEN_LOG")]
    pub log: Option<String>,
    /// Check every setting, say what the daemon would do, and exit (0: good, 1: bad)
    #[arg(long)]
    pub check: bool,
    /// Readers that programs should have in flight on the cache's disk, or auto: 1 on a spinning
    /// disk, 8 on flash
    #[arg(long, value_name = "N|auto")]
    pub readers: Option<String>,
    /// Compare a cached frame with its source before handing it out: always, or never (sources
    /// never change)
    #[arg(long, value_name = "always|never")]
    pub validate: Option<String>,
    /// Fetches from the backing store at once for each user [default: 8]
    #[arg(long, value_name = "N")]
    pub fetchers: Option<usize>,
    /// Connections at once [default: 4096, or half of the descriptors that the system gives]
    #[arg(long, value_name = "N")]
    pub connections_max: Option<usize>,
    /// Connections of one user of this machine, or of one on another [default: half of
    /// --connections-max]
    #[arg(long, value_name = "N")]
    pub caller_connections_max: Option<usize>,
    /// Calls of one user at once; more wait [default: 512]
    #[arg(long, value_name = "N")]
    pub caller_calls_max: Option<usize>,
    /// Seconds that a call waits for its user's other calls before it is refused [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub caller_queue_seconds: Option<u64>,
    /// Bytes of one user's messages that the daemon holds at once [default: 256M]
    #[arg(long, value_name = "SIZE")]
    pub caller_bytes_max: Option<String>,
    /// How long a stopping daemon lets calls finish, in seconds [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub drain_seconds: Option<u64>,
    /// Keep the daemon and its plug-ins on these cores, such as 0-3,8 [default: all that it may
    /// use]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Percent of a core that a thread of the daemon gets while another program wants all of it
    /// [default: 50, as any program]
    #[arg(long, value_name = "PERCENT")]
    pub cpu_share: Option<i64>,
    /// Write the state that SIGUSR1 asks for to this file instead of the log
    #[arg(long, value_name = "FILE")]
    pub dump_file: Option<PathBuf>,
    /// Record each call in DIR/NAME.spans, for `zazen sim calibrate` [default: off]
    #[arg(long, value_name = "DIR")]
    pub spans: Option<PathBuf>,
    /// Serve this plug-in (posix, stream, or a file), in a process of its own, or with :in-process
    /// in the daemon's; once for each
    #[arg(long, value_name = "PLUGIN[:in-process]")]
    pub plugin: Vec<String>,
    /// Let programs forward files below this folder, once for each [default: the folders of
    /// --backing]
    #[arg(long, value_name = "DIR")]
    pub export: Vec<PathBuf>,
    /// The namespace.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Once serving, write {"socket","listen","metrics","pid","node"} as JSON to this file
    /// descriptor
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<i32>,
    /// Once serving, write the same JSON to this file
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,
}

/// The TOML file; the keys are the flags' names with underscores.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    cache: OneOrMany<PathBuf>,
    #[serde(default)]
    backing: OneOrMany<String>,
    listen: Option<String>,
    socket: Option<PathBuf>,
    key: Option<PathBuf>,
    peers: Option<String>,
    #[serde(default)]
    budget: OneOrMany<String>,
    free_floor: Option<String>,
    #[serde(default)]
    user_budget: OneOrMany<String>,
    #[serde(default)]
    dataset_budget: OneOrMany<String>,
    metrics: Option<String>,
    metrics_datasets: Option<usize>,
    name: Option<String>,
    log: Option<String>,
    readers: Option<toml::Value>,
    validate: Option<String>,
    fetchers: Option<usize>,
    connections_max: Option<usize>,
    caller_connections_max: Option<usize>,
    caller_calls_max: Option<usize>,
    caller_queue_seconds: Option<u64>,
    caller_bytes_max: Option<String>,
    drain_seconds: Option<u64>,
    cpus: Option<toml::Value>,
    cpu_share: Option<i64>,
    dump_file: Option<PathBuf>,
    spans: Option<PathBuf>,
    export: Option<OneOrMany<PathBuf>>,
    #[serde(default)]
    plugin: Vec<PluginEntry>,
    namespace: Option<NamespaceTable>,
}

/// A setting that is one value, or a list of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "give one value in quotes, such as \"800G\", or a list of such values")]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> Default for OneOrMany<T> {
    fn default() -> OneOrMany<T> {
        OneOrMany::Many(Vec::new())
    }
}

impl<T: Clone> OneOrMany<T> {
    /// The flags, or the file's values where there are none.
    fn beneath(self, flags: &[T]) -> Vec<T> {
        match self {
            _ if !flags.is_empty() => flags.to_vec(),
            OneOrMany::One(one) => vec![one],
            OneOrMany::Many(many) => many,
        }
    }
}

/// One disk of the cache, as told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Directory for cached frames.
    pub root: PathBuf,
    /// Bytes that the cache may use of it; `None`: [`DEFAULT_BUDGET_PERCENT`] of what is free at
    /// the first start.
    pub budget_bytes: Option<u64>,
}

/// One backing store, as told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingSpec {
    /// Absolute directory or `s3://BUCKET/PREFIX`, as users spell it, without a trailing slash.
    pub directory: String,
    /// `tcp://host:port` of the file server that is read in its place, or an object store with its
    /// settings.
    pub server: Option<String>,
}

/// A daemon's settings, complete and checked for form.
#[derive(Clone, Debug)]
pub struct Config {
    /// The disks of the cache; at least one.
    pub caches: Vec<CacheSpec>,
    /// Backing stores; at least one.
    pub backing: Vec<BackingSpec>,
    /// `host:port` to accept other nodes at.
    pub listen: Option<String>,
    /// Unix socket for local programs.
    pub socket: PathBuf,
    /// Cluster key file.
    pub key: Option<PathBuf>,
    /// The other nodes that may have blocks of files.
    pub peers: Option<PeerList>,
    /// Free bytes never used; `None`: 5 GiB, or 5 % of a smaller disk.
    pub free_floor_bytes: Option<u64>,
    /// What users and datasets may take of each disk.
    pub quotas: QuotaSettings,
    /// `host:port` of the metrics page.
    pub metrics: Option<String>,
    /// Datasets that the metrics name.
    pub metrics_datasets: usize,
    /// Name of this node.
    pub name: String,
    /// What is logged; [`check_log`] has passed it.
    pub log: String,
    /// Readers in flight on the disk; `None`: by the kind of disk.
    pub readers: Option<u16>,
    /// Whether sources are compared with their copies.
    pub validate: Validate,
    /// Fetches at once.
    pub fetchers: usize,
    /// Connections at once.
    pub connections_max: usize,
    /// What each user may have of the daemon.
    pub caller: CallerLimits,
    /// Time for calls in progress when stopping.
    pub drain: Duration,
    /// The cores that the daemon and its plug-ins keep to; `None`: all.
    pub cpus: Option<Cpus>,
    /// How much of a core a thread gets that another program wants; `None`: as any program.
    pub cpu_share: Option<CpuShare>,
    /// Where SIGUSR1 writes the state; `None`: the log.
    pub dump_file: Option<PathBuf>,
    /// Where each call is recorded; `None`: nowhere.
    pub spans: Option<PathBuf>,
    /// Folders that programs may reach by forwarding.
    pub exports: Vec<PathBuf>,
    /// The namespace, if this node takes part in it.
    pub namespace: Option<NamespaceConfig>,
    /// Plug-ins to serve.
    pub plugins: Vec<PluginConfig>,
    /// The program of isolated plug-ins' processes.
    pub plugin_worker: PathBuf,
    /// Descriptor to tell readiness to.
    pub ready_fd: Option<i32>,
    /// File to tell readiness to.
    pub ready_file: Option<PathBuf>,
}

/// Connections where nobody says and there are descriptors enough.
const CONNECTIONS_MAX: usize = 4096;

/// Descriptors that the daemon can have: it raises its own limit as far as it may.
fn descriptors_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(1 << 20)
}

fn refuse(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, what)
}

impl Config {
    /// The path by which forwarded programs reach the namespace.
    pub fn forward(&self) -> Option<&Path> {
        self.namespace.as_ref().and_then(|namespace| namespace.forward.as_deref())
    }

    /// The plug-ins, with the one that forwarding the namespace needs.
    pub fn plugins_to_serve(&self) -> Result<Vec<PluginConfig>> {
        plugin_settings::with_posix(self.plugins.clone(), self.forward())
    }

    /// Flags over file over defaults. `Config` errors name the flag or the file's key.
    pub fn assemble(args: &Args) -> Result<Config> {
        let file = args.config.as_deref().map(read_file).transpose()?.unwrap_or_default();
        let caches = caches(&file.cache.beneath(&args.cache), &file.budget.beneath(&args.budget))?;
        let backing = parse_backing(&file.backing.beneath(&args.backing))?;
        let (listen, key) = (args.listen.clone().or(file.listen), args.key.clone().or(file.key));
        if listen.is_some() && key.is_none() {
            return Err(refuse(
                "listen is set but no cluster key: give --key FILE (`zazen key new FILE` makes one; the same \
                 on all nodes)",
            ));
        }
        let peers = args.peers.clone().or(file.peers).as_deref().map(PeerList::parse).transpose()?;
        if peers.is_some() && key.is_none() {
            return Err(refuse("peers is set but no cluster key: give --key FILE, the same on all nodes"));
        }
        let size = |name: &str, flag: &Option<String>, key: Option<String>| {
            let text = flag.clone().or(key);
            text.map(|text| byte_size::parse(&text).map_err(|error| error.within(name))).transpose()
        };
        let as_text = |value: toml::Value| match value {
            toml::Value::String(text) => text,
            other => other.to_string(),
        };
        let readers = args.readers.clone().or(file.readers.map(as_text));
        let cpus = args.cpus.clone().or(file.cpus.map(as_text));
        let connections_max = bounded(
            "connections_max",
            args.connections_max.or(file.connections_max),
            CONNECTIONS_MAX.min((descriptors_max() / 2).max(64)),
            65_536,
        )?;
        let caller = CallerLimits {
            connections_max: bounded(
                "caller_connections_max",
                args.caller_connections_max.or(file.caller_connections_max),
                connections_max.div_ceil(2),
                connections_max,
            )?,
            calls_max: bounded(
                "caller_calls_max",
                args.caller_calls_max.or(file.caller_calls_max),
                CallerLimits::default().calls_max,
                65_536,
            )?,
            queue_max: args
                .caller_queue_seconds
                .or(file.caller_queue_seconds)
                .map_or(CallerLimits::default().queue_max, Duration::from_secs),
            bytes_max: size("caller_bytes_max", &args.caller_bytes_max, file.caller_bytes_max)?
                .unwrap_or(CallerLimits::default().bytes_max),
            descriptors_max: descriptors_max() / 2,
        };
        let namespace = NamespaceConfig::assemble(&args.namespace, file.namespace, listen.is_some())?;
        let forward = namespace.as_ref().and_then(|namespace| namespace.forward.as_deref());
        let plugins = plugin_settings::plugin_configs(&args.plugin, &file.plugin)?;
        // Whoever asks for no plug-in wants the namespace forwarded, and nothing else.
        let usual = if plugins.is_empty() && forward.is_some() { &[][..] } else { &backing };
        let exports = exports(args, file.export, usual)?;
        check_forward(forward, &exports)?;
        Ok(Config {
            namespace,
            listen: listen.map(|listen| with_port("listen", &listen)).transpose()?,
            socket: match absolute("socket", args.socket.clone().or(file.socket))? {
                Some(socket) => socket,
                None => zazen_env::socket_path::daemon_socket_path()?,
            },
            key: absolute("key", key)?,
            peers,
            free_floor_bytes: size("free_floor", &args.free_floor, file.free_floor)?,
            quotas: QuotaSettings::parse(
                &file.user_budget.beneath(&args.user_budget),
                &file.dataset_budget.beneath(&args.dataset_budget),
            )?,
            metrics: args
                .metrics
                .clone()
                .or(file.metrics)
                .map(|addr| checked_addr("metrics", addr))
                .transpose()?,
            metrics_datasets: match args.metrics_datasets.or(file.metrics_datasets) {
                None | Some(0) => 0,
                named => bounded("metrics_datasets", named, 0, METRICS_DATASETS_MAX)?,
            },
            name: args.name.clone().or(file.name).unwrap_or_else(host_name),
            log: check_log(args.log.clone().or(file.log))?,
            readers: parse_readers(readers.as_deref())?,
            validate: parse_validate(args.validate.clone().or(file.validate).as_deref())?,
            fetchers: bounded("fetchers", args.fetchers.or(file.fetchers), DEFAULT_FETCHERS, 256)?,
            connections_max,
            caller,
            drain: Duration::from_secs(args.drain_seconds.or(file.drain_seconds).unwrap_or(30)),
            cpus: cpus.as_deref().map(Cpus::parse).transpose()?,
            cpu_share: args.cpu_share.or(file.cpu_share).map(CpuShare::new).transpose()?,
            dump_file: absolute("dump_file", args.dump_file.clone().or(file.dump_file))?,
            spans: absolute("spans", args.spans.clone().or(file.spans))?,
            exports,
            backing,
            plugins,
            plugin_worker: plugin_settings::SELF.into(),
            ready_fd: args.ready_fd,
            ready_file: args.ready_file.clone(),
            caches,
        })
    }
}

/// The disks of the cache: `budgets` has none, one for all, or one for each of `roots`.
fn caches(roots: &[PathBuf], budgets: &[String]) -> Result<Vec<CacheSpec>> {
    if roots.is_empty() {
        let text = "no cache directory: give --cache DIR (or cache = \"DIR\" in the file of --config)";
        return Err(refuse(text));
    }
    if budgets.len() > 1 && budgets.len() != roots.len() {
        let (given, disks) = (budgets.len(), roots.len());
        return Err(refuse(format!(
            "budget: {given} are given for {disks} caches; give one for all, or one for each in their order"
        )));
    }
    let mut specs: Vec<CacheSpec> = Vec::new();
    for (at, root) in roots.iter().enumerate() {
        let root = absolute("cache", Some(root.clone()))?.unwrap_or_default();
        if specs.iter().any(|spec| spec.root == root) {
            return Err(refuse(format!("cache {} is given twice; keep one", root.display())));
        }
        let told = budgets.get(at).or(budgets.first());
        let budget = told.map(|text| byte_size::parse(text).map_err(|error| error.within("budget")));
        specs.push(CacheSpec { root, budget_bytes: budget.transpose()? });
    }
    if specs.len() > zazen_store::DISKS_MAX {
        return Err(refuse(format!(
            "{} caches are given; the limit is {}",
            specs.len(),
            zazen_store::DISKS_MAX
        )));
    }
    Ok(specs)
}

/// Flags over file over the backing stores that are folders here.
fn exports(args: &Args, file: Option<OneOrMany<PathBuf>>, backing: &[BackingSpec]) -> Result<Vec<PathBuf>> {
    let usual = || {
        let here = backing.iter().filter(|backing| backing.server.is_none());
        here.map(|backing| PathBuf::from(&backing.directory)).collect()
    };
    let told = match file {
        None if args.export.is_empty() => usual(),
        file => file.unwrap_or_default().beneath(&args.export),
    };
    if let Some(bad) = told.iter().find(|export| {
        !export.is_absolute() || export.components().any(|part| part == std::path::Component::ParentDir)
    }) {
        return Err(refuse(format!("export {}: give an absolute directory without `..`", bad.display())));
    }
    Ok(told)
}

/// Refuses a path of the namespace at which callers may reach something else, too: a link could
/// lead to either.
fn check_forward(forward: Option<&Path>, exports: &[PathBuf]) -> Result<()> {
    let Some(forward) = forward else { return Ok(()) };
    match exports.iter().find(|export| export.starts_with(forward) || forward.starts_with(export)) {
        None => Ok(()),
        Some(export) => Err(refuse(format!(
            "namespace forward {}: export {} is, holds or lies in the same folder; give another path, or \
             other exports (without --export, they are the folders of --backing)",
            forward.display(),
            export.display()
        ))),
    }
}

fn read_file(path: &Path) -> Result<File> {
    let text = settings_text(path).map_err(|error| {
        refuse(format!("config file {}: cannot be read; check --config", path.display())).caused_by(error)
    })?;
    let parsed = toml::from_str(&text);
    parsed
        .map_err(|error| refuse(format!("config file {}: {}", path.display(), error.to_string().trim_end())))
}

fn parse_backing(told: &[String]) -> Result<Vec<BackingSpec>> {
    if told.is_empty() {
        return Err(refuse(
            "no backing store: give --backing DIR (or backing = [\"DIR\"] in the file of --config)",
        ));
    }
    let mut specs: Vec<BackingSpec> = Vec::new();
    for text in told {
        if text.starts_with(objects::SCHEME) {
            let location = objects::ObjectLocation::parse(text, own_objects())
                .map_err(|error| refuse(format!("backing {text:?}: {error}")))?;
            add_backing(&mut specs, BackingSpec { directory: location.root(), server: Some(text.clone()) })?;
            continue;
        }
        let (directory, server) = match text.split_once('=') {
            Some((directory, server)) => (directory, Some(server.to_owned())),
            None => (text.as_str(), None),
        };
        let directory = match directory.trim_end_matches('/') {
            "" if directory.starts_with('/') => "/".to_owned(),
            trimmed => trimmed.to_owned(),
        };
        if !directory.starts_with('/') || Path::new(&directory).components().any(|c| c.as_os_str() == "..") {
            return Err(refuse(format!(
                "backing {text:?}: give an absolute directory without `..`, s3://BUCKET/PREFIX, or \
                 DIR=tcp://HOST:PORT"
            )));
        }
        if server.as_ref().is_some_and(|server| !server.starts_with("tcp://")) {
            return Err(refuse(format!("backing {text:?}: a file server is spelled DIR=tcp://HOST:PORT")));
        }
        add_backing(&mut specs, BackingSpec { directory, server })?;
    }
    Ok(specs)
}

fn add_backing(specs: &mut Vec<BackingSpec>, spec: BackingSpec) -> Result<()> {
    if specs.iter().any(|other| other.directory == spec.directory) {
        return Err(refuse(format!("backing {} is given twice; keep one", spec.directory)));
    }
    specs.push(spec);
    Ok(())
}

/// Whose objects are, where no setting says so: the daemon's own user's, because its credentials
/// open the store.
pub fn own_objects() -> objects::Owner {
    let gid = rustix::process::getegid().as_raw();
    objects::Owner { uid: zazen_env::identity::own_uid(), gid, mode: 0o400 }
}

/// Refuses what the log's filter would take for the name of a part of the program: with `log =
/// "verbose"` nothing would be logged.
fn check_log(text: Option<String>) -> Result<String> {
    let text = text.unwrap_or_else(|| crate::logging::DEFAULT_LOG.to_owned());
    let is_level = |level: &str| {
        ["off", "error", "warn", "info", "debug", "trace"].contains(&level.to_lowercase().as_str())
    };
    let is_meant = |part: &str| match part.rsplit_once('=') {
        None if crate::logging::is_form(part.trim()) => true,
        Some((name, level)) => !name.trim().is_empty() && is_level(level.trim()),
        None => is_level(part.trim()),
    };
    match text.split(',').all(is_meant) {
        true => Ok(text),
        false => Err(refuse(format!(
            "log {text:?}: give error, warn, info, debug, trace or off, or levels of parts, such as \
             warn,zazen_store=debug; json makes it JSON lines"
        ))),
    }
}

fn parse_readers(text: Option<&str>) -> Result<Option<u16>> {
    match text {
        None | Some("auto") => Ok(None),
        Some(text) => match text.parse::<u16>() {
            Ok(readers @ 1..=256) => Ok(Some(readers)),
            _ => Err(refuse(format!("readers {text:?}: give auto or a number from 1 to 256"))),
        },
    }
}

fn parse_validate(text: Option<&str>) -> Result<Validate> {
    match text {
        None | Some("always") => Ok(Validate::Always),
        Some("never") => Ok(Validate::Never),
        Some(other) => Err(refuse(format!("validate {other:?}: give always or never"))),
    }
}

fn bounded(name: &str, value: Option<usize>, default: usize, max: usize) -> Result<usize> {
    match value.unwrap_or(default) {
        value if (1..=max).contains(&value) => Ok(value),
        value => Err(refuse(format!("{name} {value}: give a number from 1 to {max}"))),
    }
}

/// Refuses a budget that a person can only have given by mistake.
pub fn check_budget(config: &Config) -> Result<()> {
    match config.caches.iter().filter_map(|spec| spec.budget_bytes).min() {
        None | Some(BUDGET_BYTES_MIN..) => Ok(()),
        Some(bytes) => Err(refuse(format!(
            "budget: {} holds next to nothing, for logs count too; give at least {}, or leave it out for {} \
             % of the free space",
            byte_size::show(bytes),
            byte_size::show(BUDGET_BYTES_MIN),
            DEFAULT_BUDGET_PERCENT
        ))),
    }
}

fn absolute(name: &str, path: Option<PathBuf>) -> Result<Option<PathBuf>> {
    path.map(|path| {
        std::path::absolute(&path).map_err(|error| {
            refuse(format!("{name} {}: cannot be made absolute", path.display())).caused_by(error)
        })
    })
    .transpose()
}

fn with_port(name: &str, addr: &str) -> Result<String> {
    let bare_v6 =
        addr.matches(':').count() > 1 && !addr.ends_with(|c: char| c.is_ascii_digit() && addr.contains("]:"));
    match addr.rsplit_once(':') {
        Some(_) if !bare_v6 => checked_addr(name, addr.to_owned()),
        _ => checked_addr(name, format!("{addr}:{DEFAULT_PORT}")),
    }
}

fn checked_addr(name: &str, addr: String) -> Result<String> {
    let port = addr.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    match port.map(str::parse::<u16>) {
        Some(Ok(_)) => Ok(addr),
        _ => Err(refuse(format!("{name} {addr:?}: give HOST:PORT, such as 0.0.0.0:{DEFAULT_PORT}"))),
    }
}

/// The machine's host name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
