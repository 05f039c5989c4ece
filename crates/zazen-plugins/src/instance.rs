//! A plug-in that runs in this process: from its init to its fini.
//!
//! Invariants: init comes before any call, fini after the last one; if a call does not end, fini is
//! left out and the object stays loaded. No lock of the host's is held while the plug-in's code
//! runs.

use crate::clients::{Client, Clients, Who};
use crate::counters::Counters;
use crate::host;
use crate::object::{Description, Object};
use crate::running::{self, Answer, Request};
use crate::stats::{PluginReport, Sample};
use crate::watch::{self, Busy, Seen, Work};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zazen_core::limits::PAYLOAD_BYTES_MAX;
use zazen_core::{Credentials, Error, ErrorKind, Result};
use zazen_plugin_abi::plugin::{self as abi, Caller, DetachReason};
use zazen_plugin_abi::segment::FUNCTION_BLOCKING;
use zazen_wire::plugins::{CallHead, OpenPlugin, PluginOpened, sizes, status};

/// Segments' sizes and head are within a payload's limit as well as the message.
const MESSAGE_BYTES_MAX: u64 = (PAYLOAD_BYTES_MAX - (1 << 20)) as u64;

/// A call that has run for so long is worth asking whether its client still lives.
const LONG_MS: u64 = 300;

/// What a plug-in runs with.
#[derive(Debug)]
pub struct InstanceOptions {
    /// Clients to expect, for INIT's `nproc`; -1 if unknown.
    pub process_count: i32,
    /// The most bytes of all segments of a call.
    pub segment_bytes_max: u64,
    /// Counts the starts of the plug-in.
    pub generation: u64,
    /// Folders that callers may reach by a plug-in that acts as they, as absolute paths.
    pub exports: Vec<PathBuf>,
    /// Folders that they may reach besides, with what callers call them: no path leads to these.
    pub mounted: Vec<(PathBuf, OwnedFd)>,
}

impl Default for InstanceOptions {
    /// Any number of clients, 16 GiB, the first start, nothing exported.
    fn default() -> InstanceOptions {
        InstanceOptions {
            process_count: -1,
            segment_bytes_max: 16 << 30,
            generation: 1,
            exports: Vec::new(),
            mounted: Vec::new(),
        }
    }
}

/// A running plug-in. Calls may come from any number of threads.
pub struct Instance {
    /// Unloaded by [`Instance::stop`] only: whoever drops an instance otherwise can't know that the
    /// plug-in's own threads are at rest.
    object: ManuallyDrop<Object>,
    path: PathBuf,
    options: InstanceOptions,
    /// Tells this instance's calls from others' in this process.
    number: u64,
    clients: Clients,
    clients_ever: AtomicU64,
    counters: Arc<Counters>,
    stopping: AtomicBool,
}

/// Who opens a plug-in.
#[derive(Clone, Debug)]
pub struct Guest<'a> {
    /// The caller's number ([`zazen_call::Caller::connection`]).
    pub caller: u64,
    /// Identity.
    pub credentials: &'a Credentials,
    /// Process on its machine; 0 if unknown.
    pub pid: u32,
    /// Its machine.
    pub host: &'a str,
    /// Whether that is this one, so that `pid` says when it ends.
    pub is_local: bool,
}

/// The value, once nobody else has it: threads that are done with it may take a moment to let go.
pub(crate) fn sole<T>(mut shared: Arc<T>) -> std::result::Result<T, Arc<T>> {
    for _ in 0..100 {
        match Arc::try_unwrap(shared) {
            Ok(value) => return Ok(value),
            Err(still_shared) => shared = still_shared,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(shared)
}

/// Whether the process of this machine has ended; false if nobody can tell.
fn has_ended(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(errno) => errno == Errno::SRCH,
        Ok(process) => {
            let mut waits = [PollFd::new(&process, PollFlags::IN)];
            rustix::event::poll(&mut waits, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
        }
    }
}

impl Instance {
    /// Loads the object and runs its init. Fails with `Config`, naming what is wrong.
    pub fn start(path: &Path, options: InstanceOptions) -> Result<Instance> {
        Instance::start_opened(path, None, None, options, |_| Ok(false))
    }

    /// The same with the object's file as it was opened before, `path` being its name in messages,
    /// and with counters in the file `counters`, where the daemon reads them. `confine` runs once
    /// the object is loaded, and tells whether the kernel keeps the process within the exports from
    /// then on.
    pub(crate) fn start_opened(
        path: &Path,
        opened: Option<&OwnedFd>,
        counters: Option<OwnedFd>,
        mut options: InstanceOptions,
        confine: impl FnOnce(&InstanceOptions) -> Result<bool>,
    ) -> Result<Instance> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let object = Object::load(path, opened)?;
        // An object that was replaced under a running daemon may have another number of functions;
        // then nobody else reads its counters.
        let function_count = object.description.functions.len();
        let shared = counters.and_then(|file| Counters::of_file(&file, function_count));
        let counters = shared.map_or_else(|| Counters::private(function_count), Ok)?;
        let is_confined = confine(&options)?;
        host::export(&options.exports, std::mem::take(&mut options.mounted))?;
        // For ever: the plug-in has a pointer to it.
        let host: &'static abi::Host = Box::leak(Box::new(host::table(options.process_count, is_confined)));
        if let Some(init) = object.plugin().init {
            // SAFETY: the plug-in's init, once, with a table that outlives it.
            let refused = unsafe { init(host) };
            if refused != 0 {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!("plug-in {}: its init refused ({refused})", path.display()),
                ));
            }
        }
        Ok(Instance {
            object: ManuallyDrop::new(object),
            path: path.to_owned(),
            options,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            clients: Clients::default(),
            clients_ever: AtomicU64::new(0),
            counters: Arc::new(counters),
            stopping: AtomicBool::new(false),
        })
    }

    /// Loads the object and checks it, without running its init.
    pub fn check(path: &Path) -> Result<Description> {
        Object::load(path, None).map(|object| object.description.clone())
    }

    /// What the plug-in is.
    pub fn description(&self) -> &Description {
        &self.object.description
    }

    /// Attaches a client, unless it was made from another header.
    pub fn open(&self, guest: &Guest<'_>, open: &OpenPlugin) -> PluginOpened {
        let refuse = |status: i32| PluginOpened { status: status.cast_unsigned(), ..PluginOpened::default() };
        let ours = self.description();
        if open.plugin != ours.id || open.name != ours.name || self.is_stopping() {
            return refuse(status::NO_SERVICE);
        }
        if open.schema_hash != ours.schema_hash || open.layout_hash != ours.layout_hash {
            return refuse(status::SCHEMA);
        }
        let client = self.clients.get(guest.caller).unwrap_or_else(|| self.attach(guest, open));
        PluginOpened {
            status: 0,
            elsewhere: String::new(),
            generation: self.options.generation,
            client: client.caller.client,
            message_bytes_max: MESSAGE_BYTES_MAX,
            segment_bytes_max: self.options.segment_bytes_max,
        }
    }

    fn attach(&self, guest: &Guest<'_>, open: &OpenPlugin) -> Arc<Client> {
        let client = Arc::new(Client::new(&Who {
            credentials: guest.credentials,
            pid: guest.pid,
            host: guest.host,
            is_local: guest.is_local,
            rank: open.rank.cast_signed(),
            ranks: open.ranks.cast_signed(),
            client: self.clients_ever.fetch_add(1, Ordering::Relaxed) + 1,
            generation: self.options.generation,
            counters: self.counters.clone(),
        }));
        let entered = self.clients.enter(guest.caller, client.clone());
        if Arc::ptr_eq(&entered, &client) {
            self.counters.gauges().clients.fetch_add(1, Ordering::Relaxed);
            if let Some(attach) = self.object.plugin().client_attach {
                let (_running, _busy) = (self.counters.running(), self.busy_with(&client));
                // SAFETY: the plug-in's function, with a struct that lives on.
                unsafe { attach(&raw const client.caller) };
            }
            client.set_attached();
        }
        entered
    }

    /// The calling thread attaches or detaches the client.
    fn busy_with(&self, client: &Client) -> Busy {
        Busy::begin(&Work {
            instance: self.number,
            client: client.caller.client,
            function: u32::MAX,
            tag: 0,
            patient: false,
            began: Instant::now(),
        })
    }

    /// The client, if there is one of this caller, broke the protocol: it is served no more.
    pub(crate) fn expel(&self, caller: u64) {
        if let Some(client) = self.clients.get(caller) {
            client.expel();
        }
    }

    /// Runs one call of an attached client. Whatever goes wrong is the answer's status.
    pub fn call(&self, caller: u64, carried: zazen_call::Call<'_>) -> zazen_call::Reply {
        let began = carried.began;
        let bytes_in = carried.payload.len() as u64 + carried.bulk_bytes;
        let (head, answer) = match CallHead::take(carried.payload) {
            Err(_) => {
                self.expel(caller);
                (None, Answer::refusal(status::MALFORMED))
            }
            Ok((head, sizes_bytes, message_at)) => {
                let all: Vec<u64> = sizes(sizes_bytes).collect();
                (Some(head), self.answer(caller, &head, all, message_at, carried, began))
            }
        };
        let ended = Instant::now();
        if let Some(stats) = head.and_then(|head| self.counters.function(head.function as usize)) {
            stats.add(&Sample {
                failed: answer.status != 0,
                bytes_in,
                bytes_out: answer.bytes,
                took: ended.saturating_duration_since(began),
            });
        }
        zazen_call::Reply {
            payload: answer.payload,
            fds: answer.fds,
            ended: Some(ended),
            ..zazen_call::Reply::default()
        }
    }

    fn answer(
        &self,
        caller: u64,
        head: &CallHead,
        all: Vec<u64>,
        message_at: usize,
        carried: zazen_call::Call<'_>,
        began: Instant,
    ) -> Answer {
        let Some(client) = self.clients.get(caller).filter(|client| client.is_served()) else {
            return Answer::refusal(status::NO_SERVICE);
        };
        let Some(function) = self.object.function(head.function) else {
            return Answer::refusal(status::NO_FUNCTION);
        };
        let Some(dispatch) = function.dispatch else { return Answer::refusal(status::NO_FUNCTION) };
        let in_count = head.in_count as usize;
        if let Err(refusal) = self.check_sizes(&all, in_count, &carried) {
            return Answer::refusal(refusal);
        }
        let _running = self.counters.running();
        let busy = Busy::begin(&Work {
            instance: self.number,
            client: client.caller.client,
            function: head.function,
            tag: head.tag,
            patient: function.flags & FUNCTION_BLOCKING != 0,
            began,
        });
        running::run(
            dispatch,
            Request {
                plugin: &self.description().name,
                client: &client,
                busy: &busy,
                carried,
                message_at,
                sizes: all,
                in_count,
                reply_bytes_max: head.reply_bytes_max.min(MESSAGE_BYTES_MAX),
            },
        )
    }

    /// Sizes are the client's word: what it announces must be what comes, and within the limit.
    fn check_sizes(
        &self,
        all: &[u64],
        in_count: usize,
        carried: &zazen_call::Call<'_>,
    ) -> std::result::Result<(), i32> {
        let sum = |sizes: &[u64]| {
            sizes.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes)).ok_or(status::TOO_LARGE)
        };
        let (input, output) = (sum(&all[..in_count])?, sum(&all[in_count..])?);
        let max = self.options.segment_bytes_max;
        if input > max || output > max - input {
            return Err(status::TOO_LARGE);
        }
        let room = carried.output.room().unwrap_or(u64::MAX);
        if input != carried.bulk_bytes || output > room {
            return Err(status::MALFORMED);
        }
        Ok(())
    }

    /// The client says that its end will be no accident.
    pub fn say_goodbye(&self, caller: u64) {
        if let Some(client) = self.clients.get(caller) {
            client.say_goodbye();
        }
    }

    /// Ends calls of a client early: the one with `tag`, or all for `None`.
    pub fn cancel(&self, caller: u64, tag: Option<u64>) {
        if let Some(client) = self.clients.get(caller) {
            watch::cancel(self.number, client.caller.client, tag);
        }
    }

    /// Calls that run for long may have lost their client: those are told to end.
    pub(crate) fn look_for_the_dead(&self) {
        let long: Vec<u64> =
            self.running().iter().filter(|call| call.for_ms >= LONG_MS).map(|call| call.client).collect();
        if long.is_empty() {
            return;
        }
        for client in self.clients.all() {
            let Caller { client: number, pid, .. } = client.caller;
            if client.is_local && long.contains(&number) && has_ended(pid) {
                watch::nudge(self.number, number);
            }
        }
    }

    /// The caller is gone, after its last call. Once for each caller.
    pub fn detach(&self, caller: u64) {
        let Some(client) = self.clients.remove(caller) else { return };
        self.counters.gauges().clients.fetch_sub(1, Ordering::Relaxed);
        client.drop_handles();
        let Some(detach) = self.object.plugin().client_detach else { return };
        let reason = match client.reason() {
            DetachReason::Died if self.is_stopping() => DetachReason::Shutdown,
            other => other,
        };
        let (_running, _busy) = (self.counters.running(), self.busy_with(&client));
        // SAFETY: the plug-in's function, with a struct that lives on.
        unsafe { detach(&raw const client.caller, reason as i32) };
    }

    /// Calls in progress.
    pub(crate) fn running(&self) -> Vec<Seen> {
        watch::calls_of(self.number)
    }

    /// The function's name, for messages.
    pub(crate) fn function_name(&self, index: u32) -> &str {
        let function = self.description().functions.get(index as usize);
        function.map_or("attaching or detaching", |function| &function.name)
    }

    /// Clients attached.
    pub fn client_count(&self) -> usize {
        self.clients.all().len()
    }

    /// Counts the starts of the plug-in.
    pub fn generation(&self) -> u64 {
        self.options.generation
    }

    /// Counters and state.
    pub fn report(&self) -> PluginReport {
        PluginReport {
            path: self.path.display().to_string(),
            placement: "in-process".to_owned(),
            state: "running".to_owned(),
            generation: self.options.generation,
            pid: std::process::id(),
            ..self.counters.read(self.description())
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// From now on nobody is attached, who goes is told of the host's end, and functions that may
    /// block are told to return.
    pub fn begin_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        watch::cancel_blocking(self.number);
    }

    /// Runs fini, unless clients are still attached: then false, and the object stays loaded for
    /// ever.
    pub fn stop(self) -> bool {
        if !self.clients.all().is_empty() {
            tracing::warn!(
                "plug-in {}: calls are still running in it; its fini is left out",
                self.description().name
            );
            return false;
        }
        if let Some(fini) = self.object.plugin().fini {
            // SAFETY: the plug-in's fini, once, after the last call.
            unsafe { fini() };
        }
        drop(ManuallyDrop::into_inner(self.object));
        true
    }
}
