//! The plug-ins service of a daemon: each call goes to the plug-in in this process, or on to the
//! plug-in's own.
//!
//! Local callers of an isolated plug-in are told where its process listens and go there themselves;
//! for those who cannot (other nodes), calls are passed on.

use crate::config::{FunctionNames, HostOptions, PluginConfig};
use crate::identity::Identity;
use crate::instance::{Instance, InstanceOptions, sole};
use crate::object::Description;
use crate::process::{Launch, open_object};
use crate::relay::{Relays, hand_over};
use crate::stats::PluginReport;
use crate::supervisor::Supervisor;
use crate::worker::{no_function, open_here, pong, report_json};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use zazen_call::{Call, Caller, Reply, Service};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::plugins::{
    About, CallHead, Cancel, Fate, FateKind, OpenPlugin, PluginOpened, Pong, plugins_fn, status,
};
use zazen_wire::service;

/// How long a plug-in's process may take to answer a ping.
const PING_WAIT: Duration = Duration::from_secs(5);
/// How often calls in this process are looked after.
const LOOK_EVERY: Duration = Duration::from_millis(500);

enum Hosted {
    Here(Box<Instance>, PluginConfig),
    Elsewhere(Supervisor, Relays),
}

/// All plug-ins of a daemon; its plug-ins service.
pub struct Plugins {
    hosted: BTreeMap<u16, Hosted>,
    exports: Vec<PathBuf>,
    /// The paths of those that are mounts in nobody's view.
    mounted: Vec<PathBuf>,
    /// Whether calls are recorded.
    records: bool,
    stopping: AtomicBool,
    watchdog: Mutex<Option<JoinHandle<()>>>,
}

impl Plugins {
    /// Starts them all. Fails with `Config` if one can't be loaded, refuses, or has the ID of
    /// another.
    pub fn start(configs: &[PluginConfig], options: &HostOptions) -> Result<Arc<Plugins>> {
        remove_stale_sockets(options);
        let mut hosted = BTreeMap::new();
        for (index, config) in configs.iter().enumerate() {
            let (description, plugin) = Plugins::start_one(config, options, index)?;
            if let Some(other) = hosted.insert(description.id, plugin) {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!(
                        "plug-ins {} and {} have the same ID {}; change one header's and generate again",
                        other.description().name,
                        description.name,
                        description.id
                    ),
                ));
            }
        }
        let plugins = Arc::new(Plugins {
            hosted,
            exports: options.exports.clone(),
            mounted: options.mounted.iter().map(|folder| folder.path.clone()).collect(),
            records: options.recording.is_some(),
            stopping: AtomicBool::new(false),
            watchdog: Mutex::new(None),
        });
        if plugins.hosted.values().any(|hosted| matches!(hosted, Hosted::Here(..))) {
            let ours = Arc::downgrade(&plugins);
            let look = move || {
                while let Some(plugins) = ours.upgrade().filter(|plugins| !plugins.is_stopping()) {
                    plugins.look_after();
                    drop(plugins);
                    std::thread::park_timeout(LOOK_EVERY);
                }
            };
            let thread = std::thread::Builder::new().name("plugins".into()).spawn(look);
            let thread = thread.map_err(|error| Error::io("start the plug-ins' watchdog", error))?;
            *plugins.watchdog.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        }
        Ok(plugins)
    }

    fn start_one(
        config: &PluginConfig,
        options: &HostOptions,
        index: usize,
    ) -> Result<(Description, Hosted)> {
        if config.isolate {
            let isolated = Supervisor::start(config, options, index)?;
            return Ok((isolated.description().clone(), Hosted::Elsewhere(isolated, Relays::default())));
        }
        drop(open_object(&config.path)?);
        let instance = Instance::start(
            &config.path,
            InstanceOptions {
                process_count: config.process_count,
                segment_bytes_max: config.segment_bytes_max,
                generation: 1,
                exports: options.exports.clone(),
                mounted: Vec::new(),
            },
        )?;
        if config.acts_as_caller && !instance.description().acts_as_caller {
            return Err(Error::new(
                ErrorKind::Config,
                format!(
                    "plug-in {}: identity = \"caller\" needs processes of its own; drop isolate = false",
                    config.path.display()
                ),
            ));
        }
        Ok((instance.description().clone(), Hosted::Here(Box::new(instance), config.clone())))
    }

    /// Loads the object in a process of its own, and says what it is.
    pub fn check(config: &PluginConfig, options: &HostOptions) -> Result<Description> {
        Launch::to_check(config, options, 0).check()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.hosted.len()
    }

    /// Counters and state of all, by ID.
    pub fn reports(&self) -> Vec<PluginReport> {
        self.hosted.values().map(Hosted::report).collect()
    }

    /// What all functions of all plug-ins are called.
    pub fn function_names(&self) -> FunctionNames {
        self.hosted.values().flat_map(|hosted| hosted.description().function_names()).collect()
    }

    /// From now on nobody is attached; processes are told to end.
    pub fn begin_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for hosted in self.hosted.values() {
            match hosted {
                Hosted::Here(instance, _) => instance.begin_stop(),
                Hosted::Elsewhere(isolated, _) => isolated.begin_stop(),
            }
        }
        if let Some(thread) = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner).take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    /// Ends all plug-ins, after the last call: runs their fini, waits for their processes.
    pub fn stop(self: Arc<Plugins>) {
        self.begin_stop();
        match sole(self) {
            Ok(plugins) => {
                for hosted in plugins.hosted.into_values() {
                    match hosted {
                        Hosted::Here(instance, _) => {
                            instance.stop();
                        }
                        Hosted::Elsewhere(isolated, _) => isolated.stop(),
                    }
                }
            }
            Err(plugins) => {
                for hosted in plugins.hosted.values() {
                    match hosted {
                        Hosted::Here(instance, _) => tracing::warn!(
                            "plug-in {}: a call is still running; its fini is left out",
                            instance.description().name
                        ),
                        Hosted::Elsewhere(isolated, _) => isolated.stop(),
                    }
                }
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// In the daemon's own process a call that does not end can only be told of.
    fn look_after(&self) {
        for hosted in self.hosted.values() {
            let Hosted::Here(instance, config) = hosted else { continue };
            instance.look_for_the_dead();
            let timeout = config.call_timeout().as_millis() as u64;
            let every = LOOK_EVERY.as_millis() as u64;
            for call in instance.running() {
                let first = call.for_ms > timeout && call.for_ms <= timeout + every;
                if timeout > 0 && first && !call.patient {
                    tracing::warn!(
                        "plug-in {}: {} has run for {} ms for client {}; in the daemon's process nobody can \
                         end it (isolate = true could)",
                        instance.description().name,
                        instance.function_name(call.function),
                        call.for_ms,
                        call.client
                    );
                }
            }
        }
    }

    fn open(&self, caller: &Caller, payload: &[u8]) -> Result<Vec<u8>> {
        let open = OpenPlugin::decode(payload)?;
        let refuse = |status: i32| PluginOpened { status: status.cast_unsigned(), ..PluginOpened::default() };
        let opened = match self.hosted.get(&open.plugin) {
            None => refuse(status::NO_SERVICE),
            Some(Hosted::Here(instance, _)) => {
                if instance.description().acts_as_caller {
                    only_for_own_user(instance.description(), caller)?;
                }
                open_here(instance, caller, &open)
            }
            Some(Hosted::Elsewhere(isolated, relays)) => {
                let ours = isolated.description();
                if open.name != ours.name || self.is_stopping() {
                    refuse(status::NO_SERVICE)
                } else if open.schema_hash != ours.schema_hash || open.layout_hash != ours.layout_hash {
                    refuse(status::SCHEMA)
                } else if open.stay || !caller.is_local() {
                    relays.open(isolated, caller, &open)?
                } else {
                    match isolated.socket(&caller.credentials) {
                        Err(error) if error.kind() == ErrorKind::Unavailable => refuse(status::NO_SERVICE),
                        found => {
                            let (socket, generation) = found?;
                            let elsewhere = socket.to_string_lossy().into_owned();
                            PluginOpened { elsewhere, generation, ..PluginOpened::default() }
                        }
                    }
                }
            }
        };
        Ok(opened.encode())
    }

    /// The same for a connection that carries this plug-in's calls only: a caller of another node
    /// is served by the plug-in's process itself. Not where calls are recorded: those of such
    /// callers are followed through this process, too.
    fn open_over(&self, caller: &Caller, call: &Call<'_>) -> Result<Reply> {
        let open = OpenPlugin::decode(call.payload)?;
        if let (Some(Hosted::Elsewhere(isolated, _)), Some(socket)) =
            (self.hosted.get(&open.plugin), call.line.to_hand_over().filter(|_| !self.records))
            && is_same_plugin(&open, isolated.description())
            && !self.is_stopping()
        {
            let (opened, handed) = hand_over(isolated, caller, &open, socket)?;
            return Ok(Reply { payload: opened.encode(), handed, ..Reply::default() });
        }
        Ok(Reply { payload: self.open(caller, call.payload)?, ..Reply::default() })
    }

    fn forward(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let Ok((head, ..)) = CallHead::take(call.payload) else {
            // Which plug-in it meant is not known: those that it is a client of.
            for hosted in self.hosted.values() {
                if let Hosted::Here(instance, _) = hosted {
                    instance.expel(caller.connection);
                }
            }
            return Ok(crate::relay::refusal(status::MALFORMED));
        };
        match self.hosted.get(&head.plugin) {
            None => Ok(crate::relay::refusal(status::NO_SERVICE)),
            Some(Hosted::Here(instance, _)) => Ok(instance.call(caller.connection, call)),
            Some(Hosted::Elsewhere(isolated, relays)) => Ok(relays.call(isolated, caller, call)),
        }
    }

    fn about(&self, payload: &[u8]) -> Result<(&Hosted, About)> {
        let about = About::decode(payload)?;
        let hosted = self.hosted.get(&about.plugin).ok_or_else(|| {
            let known: Vec<String> = self
                .hosted
                .iter()
                .map(|(id, hosted)| format!("{id} ({})", hosted.description().name))
                .collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Error::new(
                ErrorKind::NotFound,
                format!("this daemon has no plug-in {}; it has {known}", about.plugin),
            )
        })?;
        Ok((hosted, about))
    }

    fn ping(&self, caller: &Caller, payload: &[u8]) -> Result<Vec<u8>> {
        Ok(match self.about(payload)?.0 {
            Hosted::Here(instance, _) => {
                if instance.description().acts_as_caller {
                    only_for_own_user(instance.description(), caller)?;
                }
                pong(instance).encode()
            }
            Hosted::Elsewhere(isolated, _) => {
                let (mut connection, _) = isolated.connect(&caller.credentials, Some(PING_WAIT))?;
                let reply = connection.call(service::PLUGINS, plugins_fn::PING, payload, &[])?;
                Pong::decode(&reply.payload)?.encode()
            }
        })
    }

    fn exports(&self) -> Vec<u8> {
        let text = |export: &PathBuf| [export.as_os_str().as_bytes(), b"\0"].concat();
        let mut all: Vec<u8> = self.exports.iter().flat_map(text).collect();
        if !self.mounted.is_empty() {
            all.push(0);
            all.extend(self.mounted.iter().flat_map(text));
        }
        all
    }

    fn stats(&self, payload: &[u8]) -> Result<Vec<u8>> {
        if payload.is_empty() || About::decode(payload)?.plugin == 0 {
            return report_json(&self.reports());
        }
        report_json(&[self.about(payload)?.0.report()])
    }

    fn fate(&self, payload: &[u8]) -> Result<Vec<u8>> {
        let (hosted, about) = self.about(payload)?;
        let fate = match hosted {
            Hosted::Here(..) => Fate { kind: FateKind::Running as u8, call_timeout_ms: 0 },
            Hosted::Elsewhere(isolated, _) => isolated.fate(about.generation),
        };
        Ok(fate.encode())
    }
}

/// Whether a client was made for this plug-in, as it is.
fn is_same_plugin(open: &OpenPlugin, ours: &Description) -> bool {
    (&open.name, open.schema_hash, open.layout_hash) == (&ours.name, ours.schema_hash, ours.layout_hash)
}

impl Hosted {
    fn description(&self) -> &Description {
        match self {
            Hosted::Here(instance, _) => instance.description(),
            Hosted::Elsewhere(isolated, _) => isolated.description(),
        }
    }

    fn report(&self) -> PluginReport {
        match self {
            Hosted::Here(instance, _) => instance.report(),
            Hosted::Elsewhere(isolated, _) => isolated.report(),
        }
    }
}

impl Service for Plugins {
    fn id(&self) -> u16 {
        service::PLUGINS
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let payload = match call.function {
            plugins_fn::CALL => return self.forward(caller, call),
            plugins_fn::OPEN => self.open(caller, call.payload)?,
            plugins_fn::OPEN_OVER => return self.open_over(caller, &call),
            plugins_fn::PING => self.ping(caller, call.payload)?,
            plugins_fn::STATS => self.stats(call.payload)?,
            plugins_fn::EXPORTS => self.exports(),
            plugins_fn::FATE => self.fate(call.payload)?,
            plugins_fn::CLOSE => {
                match self.about(call.payload)?.0 {
                    Hosted::Here(instance, _) => instance.say_goodbye(caller.connection),
                    Hosted::Elsewhere(_, relays) => relays.say_goodbye(caller),
                }
                Vec::new()
            }
            plugins_fn::CANCEL => {
                let cancel = Cancel::decode(call.payload)?;
                match self.hosted.get(&cancel.plugin) {
                    Some(Hosted::Here(instance, _)) => instance.cancel(caller.connection, Some(cancel.tag)),
                    Some(Hosted::Elsewhere(_, relays)) => relays.cancel(caller, call.payload),
                    None => {}
                }
                Vec::new()
            }
            other => return Err(no_function(other)),
        };
        Ok(Reply { payload, ..Reply::default() })
    }

    fn detach(&self, caller: &Caller) {
        for hosted in self.hosted.values() {
            match hosted {
                Hosted::Here(instance, _) => instance.detach(caller.connection),
                Hosted::Elsewhere(_, relays) => relays.detach(caller),
            }
        }
    }
}

/// A plug-in that acts as its caller does in this process what this process may: for its own user
/// only.
fn only_for_own_user(plugin: &Description, caller: &Caller) -> Result<()> {
    let own = Identity::own()?;
    let whom = Identity::of(&caller.credentials);
    let is_his = |group: &u32| *group == whom.gid || whom.groups.contains(group);
    if (whom.uid, whom.gid) == (own.uid, own.gid) && own.groups.iter().all(is_his) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::PermissionDenied,
        format!(
            "plug-in {} runs in the daemon's own process and acts as its user {} only, not as user {} with \
             group {}; give it processes of its own (--plugin {} without :in-process)",
            plugin.name, own.uid, whom.uid, whom.gid, plugin.name
        ),
    ))
}

/// Sockets of processes that ended together with a daemon that was killed.
fn remove_stale_sockets(options: &HostOptions) {
    let (Some(folder), Some(name)) = (options.socket.parent(), options.socket.file_name()) else { return };
    let prefix = format!("{}.plugin-", name.to_string_lossy());
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(&prefix);
        let path = entry.path();
        if is_ours && std::os::unix::net::UnixStream::connect(&path).is_err() {
            std::fs::remove_file(path).ok();
        }
    }
}
