//! A connection of generated stubs: what a client knows about one daemon, and about the plug-ins
//! that it calls there.
//!
//! Invariants: a client opens a plug-in once, before its first call. A binding whose far side went
//! away is not used again: the next call opens the plug-in as a new client.

use crate::lanes::Pool;
use crate::settings::Settings;
use std::ffi::CStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use zazen_call::Connection;
use zazen_core::{Error, ErrorKind};
use zazen_env::fork::PerProcess;
use zazen_plugin_abi::stub::StubService;
use zazen_wire::Message;
use zazen_wire::plugins::{About, Fate, FateKind, OpenPlugin, PluginOpened, plugins_fn, status};
use zazen_wire::service;

/// How often a client asks for a plug-in's process that vanishes while the client opens it …
const OPEN_TRIES: usize = 500;
/// … and how long it waits in between: a killed process may take a while to be gone.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// `struct zazen_stub_connection`.
pub struct Link {
    settings: Settings,
    state: PerProcess<State>,
}

#[derive(Default)]
struct State {
    /// The daemon, after it was first needed.
    home: Mutex<Option<Arc<Pool>>>,
    bindings: RwLock<Vec<Arc<Binding>>>,
}

/// One plug-in as this client reaches it.
pub(crate) struct Binding {
    pub(crate) plugin: u16,
    schema_hash: u64,
    layout_hash: u64,
    pub(crate) pool: Arc<Pool>,
    /// For a plug-in with a process of its own: the generation of that process, and the daemon,
    /// which knows how the process ended.
    elsewhere: Option<(u64, Arc<Pool>)>,
    pub(crate) message_bytes_max: u64,
    pub(crate) segment_bytes_max: u64,
    dead: AtomicBool,
}

/// Why something failed: a status, and a message for people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: i32,
    pub(crate) words: String,
}

impl Failure {
    pub(crate) fn new(status: i32, words: impl Into<String>) -> Failure {
        Failure { status, words: words.into() }
    }
}

/// The failure of making a connection.
fn unreachable_far_side(error: &Error) -> Failure {
    let status = match error.kind() {
        ErrorKind::TimedOut => status::TIMED_OUT,
        _ => status::NO_SERVICE,
    };
    Failure::new(status, error.to_string())
}

impl Binding {
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Its far side is gone, so nobody may use it again.
    pub(crate) fn bury(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    fn suits(&self, service: &StubService) -> bool {
        u32::from(self.plugin) == service.id
            && self.schema_hash == service.schema_hash
            && self.layout_hash == service.layout_hash
            && !self.is_dead()
    }

    /// The outcome of a call that had run for `elapsed` when its far side went away.
    pub(crate) fn why_lost(&self, elapsed: Duration) -> i32 {
        let Some((generation, home)) = &self.elsewhere else { return status::DISCONNECTED };
        let about = About { plugin: self.plugin, generation: *generation };
        let fate = home.ask(plugins_fn::FATE, &about.encode()).and_then(|answer| Fate::decode(&answer));
        let Ok(fate) = fate else { return status::DISCONNECTED };
        match FateKind::from_code(fate.kind) {
            FateKind::Crashed => status::CRASHED,
            FateKind::Hung if elapsed.as_millis() >= u128::from(fate.call_timeout_ms) => status::TIMED_OUT,
            FateKind::Hung => status::CRASHED,
            FateKind::Running | FateKind::Stopped => status::DISCONNECTED,
        }
    }
}

impl State {
    fn home(&self) -> MutexGuard<'_, Option<Arc<Pool>>> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bound(&self, service: &StubService) -> Option<Arc<Binding>> {
        let bindings = self.bindings.read().unwrap_or_else(PoisonError::into_inner);
        bindings.iter().find(|binding| binding.suits(service)).cloned()
    }
}

impl Link {
    /// A connection that connects when it is first needed.
    pub fn new(settings: Settings) -> Link {
        Link { settings, state: PerProcess::new() }
    }

    /// Connects to the daemon now. The error is the call layer's.
    pub fn connect(&self) -> zazen_core::Result<()> {
        let state = self.state.get();
        let mut home = state.home();
        if home.is_none() {
            *home = Some(Arc::new(self.reach_home()?));
        }
        Ok(())
    }

    fn reach_home(&self) -> zazen_core::Result<Pool> {
        Pool::new(self.settings.connect()?, self.settings.call_timeout)
    }

    /// The plug-in, opened.
    ///
    /// # Safety
    /// As for [`Link::bind`].
    pub(crate) unsafe fn binding(&self, service: &StubService) -> Result<Arc<Binding>, Failure> {
        let state = self.state.get();
        if let Some(binding) = state.bound(service) {
            return Ok(binding);
        }
        // SAFETY: the caller's promise.
        let open = unsafe { self.words_to_open(service) }?;
        // One thread opens the plug-in. The others wait, and then find the binding.
        let mut home = state.home();
        if let Some(binding) = state.bound(service) {
            return Ok(binding);
        }
        let binding = Arc::new(self.open(&mut home, &open)?);
        let mut bindings = state.bindings.write().unwrap_or_else(PoisonError::into_inner);
        bindings.retain(|binding| !binding.is_dead());
        bindings.push(binding.clone());
        Ok(binding)
    }

    unsafe fn words_to_open(&self, service: &StubService) -> Result<OpenPlugin, Failure> {
        let none = || {
            Failure::new(status::NO_SERVICE, format!("plug-in {} has no valid number or name", service.id))
        };
        let plugin = u16::try_from(service.id).map_err(|_| none())?;
        if service.name.is_null() {
            return Err(none());
        }
        // SAFETY: a NUL-terminated string in static storage, by zazen_stub.h.
        let name = unsafe { CStr::from_ptr(service.name) }.to_str().map_err(|_| none())?;
        Ok(OpenPlugin {
            plugin,
            name: name.to_owned(),
            schema_hash: service.schema_hash,
            layout_hash: service.layout_hash,
            rank: self.settings.rank.cast_unsigned(),
            ranks: self.settings.ranks.cast_unsigned(),
            stay: self.settings.is_remote(),
        })
    }

    fn open(&self, home: &mut Option<Arc<Pool>>, open: &OpenPlugin) -> Result<Binding, Failure> {
        let mut open = open.clone();
        let mut last = None;
        for _ in 0..OPEN_TRIES {
            let fresh = home.is_none();
            let pool = match home {
                Some(pool) => pool.clone(),
                None => {
                    let pool = Arc::new(self.reach_home().map_err(|error| unreachable_far_side(&error))?);
                    home.insert(pool).clone()
                }
            };
            let asked = pool.ask(plugins_fn::OPEN, &open.encode());
            let opened = match asked.and_then(|answer| PluginOpened::decode(&answer)) {
                Ok(opened) => opened,
                // This daemon was reached earlier; another one may run now.
                Err(error) if is_gone(&error) && !fresh => {
                    *home = None;
                    continue;
                }
                Err(error) => return Err(unreachable_far_side(&error)),
            };
            check(&open, opened.status)?;
            if opened.elsewhere.is_empty() {
                return Ok(Binding::new(&open, &opened, pool, None));
            }
            match self.open_elsewhere(&open, &opened.elsewhere) {
                Ok((there, opened)) => {
                    check(&open, opened.status)?;
                    let generation = opened.generation;
                    return Ok(Binding::new(&open, &opened, Arc::new(there), Some((generation, pool))));
                }
                // A program in a container may not see the socket; then the daemon passes calls on.
                // If the plug-in's process went away, the next try finds its successor.
                Err(error) => {
                    open.stay = !Path::new(&opened.elsewhere).exists() && last.is_some();
                    last = Some(unreachable_far_side(&error));
                    std::thread::sleep(TRY_AGAIN);
                }
            }
        }
        let none = || Failure::new(status::NO_SERVICE, "the daemon goes away again and again");
        Err(last.unwrap_or_else(none))
    }

    fn open_elsewhere(&self, open: &OpenPlugin, socket: &str) -> zazen_core::Result<(Pool, PluginOpened)> {
        let settings = &self.settings;
        let mut connection =
            Connection::local(Path::new(socket), settings.carrier, settings.connect_timeout)?;
        connection.set_timeout(settings.call_timeout);
        let reply = connection.call(service::PLUGINS, plugins_fn::OPEN, &open.encode(), &[])?;
        let opened = PluginOpened::decode(&reply.payload)?;
        Ok((Pool::new(connection, settings.call_timeout)?, opened))
    }

    /// Lanes to the host of plug-in `plugin`, if it is open; else to the daemon.
    pub(crate) fn pool_of(&self, plugin: u32) -> Result<Arc<Pool>, Failure> {
        let state = self.state.get();
        let bound = {
            let bindings = state.bindings.read().unwrap_or_else(PoisonError::into_inner);
            let found =
                bindings.iter().find(|binding| u32::from(binding.plugin) == plugin && !binding.is_dead());
            found.map(|binding| binding.pool.clone())
        };
        match bound {
            Some(pool) => Ok(pool),
            None => {
                self.connect().map_err(|error| unreachable_far_side(&error))?;
                let none = || Failure::new(status::NO_SERVICE, "the connection was closed meanwhile");
                state.home().clone().ok_or_else(none)
            }
        }
    }

    /// Says goodbye to all plug-ins.
    pub fn close(self) {
        let bindings =
            std::mem::take(&mut *self.state.get().bindings.write().unwrap_or_else(PoisonError::into_inner));
        for binding in bindings.iter().filter(|binding| !binding.is_dead()) {
            let about = About { plugin: binding.plugin, generation: 0 };
            // A plug-in whose process is gone needs no goodbye.
            let _ = binding.pool.ask(plugins_fn::CLOSE, &about.encode());
        }
    }
}

impl Binding {
    fn new(
        open: &OpenPlugin,
        opened: &PluginOpened,
        pool: Arc<Pool>,
        elsewhere: Option<(u64, Arc<Pool>)>,
    ) -> Binding {
        Binding {
            plugin: open.plugin,
            schema_hash: open.schema_hash,
            layout_hash: open.layout_hash,
            pool,
            elsewhere,
            message_bytes_max: opened.message_bytes_max,
            segment_bytes_max: opened.segment_bytes_max,
            dead: AtomicBool::new(false),
        }
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Protocol | ErrorKind::ShuttingDown)
}

fn check(open: &OpenPlugin, answered: u32) -> Result<(), Failure> {
    let (name, id) = (&open.name, open.plugin);
    match answered.cast_signed() {
        status::OK => Ok(()),
        status::NO_SERVICE => Err(Failure::new(
            status::NO_SERVICE,
            format!("the daemon has no plug-in {name} (ID {id}) at present"),
        )),
        status::SCHEMA => Err(Failure::new(
            status::SCHEMA,
            format!("plug-in {name} was made from another header than this client; generate both again"),
        )),
        other => Err(Failure::new(other, format!("plug-in {name} refused to be opened (status {other})"))),
    }
}
