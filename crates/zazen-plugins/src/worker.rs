//! A plug-in's own process: the program `zazend`, begun again with [`WORKER_FLAG`].
//!
//! Invariants: it ends when its daemon does, whatever the plug-in is doing; a call that does not
//! end ends the process, unless its function is `blocking`. It ignores the terminal's signals: its
//! daemon tells it when to stop.

use crate::config::Recorder;
use crate::confine::confine;
use crate::control::{self, EXIT_HUNG, FromWorker, Start, ToWorker};
use crate::identity::{Identity, become_identity};
use crate::instance::{Guest, Instance, InstanceOptions, sole};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use zazen_call::{Adopted, Adopter, Call, Caller, CallerLimits, Reply, Server, ServerLimits, Service};
use zazen_core::{Credentials, Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::plugins::{Cancel, OpenPlugin, OpenPluginFor, Pong, plugins_fn};
use zazen_wire::service;

/// The argument that makes a worker of the daemon's program.
pub const WORKER_FLAG: &str = "--plugin-worker";
/// How often the worker looks after its calls.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often it gives a sign of life.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// A client that stalls in the middle of a message for so long is cut off.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The whole life of a worker. Its standard input is the control socket; logging must be set up
/// before.
///
/// `recorder` is asked to record its calls, if the daemon was told to.
pub fn worker_main(recorder: Recorder) -> ExitCode {
    match begin().and_then(|given| serve(given, recorder)) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What a worker is begun with.
struct Given {
    control: OwnedFd,
    start: Start,
    object: OwnedFd,
    listener: Option<OwnedFd>,
    /// The file of the counters that the daemon reads.
    counters: Option<OwnedFd>,
    /// The file in which calls are recorded.
    spans: Option<OwnedFd>,
    /// The folders of mounts.
    mounted: Vec<OwnedFd>,
}

fn begin() -> Result<Given> {
    let context = |errno: rustix::io::Errno| Error::io("set up a plug-in's process", errno.into());
    // The call itself: libc has had a function for it since glibc 2.34 only.
    // SAFETY: nobody of this process has a descriptor above the standard ones yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
    ignore_signals();
    // Whoever acts for a caller is confined below, and cannot look at the machine's CPUs then.
    zazen_call::count_cpus();
    let control = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).map_err(context)?;
    // The plug-in must not read or write the control socket by mistake.
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let null = null.map_err(context)?;
    // SAFETY: replaces the standard input, which nobody of this process has a handle of.
    if unsafe { libc::dup2(null.as_raw_fd(), libc::STDIN_FILENO) } < 0 {
        return Err(Error::io("set up a plug-in's process", std::io::Error::last_os_error()));
    }
    let mut fds = control::receive_fds(control.as_fd()).unwrap_or_default().into_iter();
    match (fds.next(), control::receive(control.as_fd())?) {
        (Some(object), Some(ToWorker::Start(start))) => {
            let (listener, counters) = (fds.next(), fds.next());
            let spans = start.recorded_as.as_ref().and_then(|_| fds.next());
            let mounted = fds.collect();
            Ok(Given { control, start, object, listener, counters, spans, mounted })
        }
        _ => Err(Error::new(
            ErrorKind::Protocol,
            format!("{WORKER_FLAG} is for zazend itself: it was not told what to run"),
        )),
    }
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// A handler that does nothing rather than SIG_IGN: programs that the plug-in begins get the
/// default back.
fn ignore_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: an all-zero sigaction is a valid one; the handler does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

fn limit(start: &Start) {
    let bound = |resource: Resource, wanted: Option<u64>| {
        let Some(wanted) = wanted else { return };
        let hard = getrlimit(resource).maximum;
        let wanted = hard.map_or(wanted, |hard| wanted.min(hard));
        if setrlimit(resource, Rlimit { current: Some(wanted), maximum: Some(wanted) }).is_err() {
            tracing::warn!("plug-in {}: a limit could not be set", start.path.display());
        }
    };
    if start.memory_bytes.is_some() {
        // Each of glibc's arenas reserves 64 MiB of address space.
        // SAFETY: a setting of malloc's, made before threads begin.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
    }
    bound(Resource::As, start.memory_bytes);
    bound(Resource::Nofile, start.open_files);
    if start.identity.is_some() {
        // A core would hold what its callers read.
        bound(Resource::Core, Some(0));
    }
}

fn serve(given: Given, recorder: Recorder) -> Result<ExitCode> {
    let Given { control, start, object, listener, counters, spans, mounted } = given;
    let (control, start) = (&control, &start);
    limit(start);
    let refuse = |error: Error| {
        control::send(control.as_fd(), &FromWorker::Refused { why: error.to_string() })?;
        Ok(ExitCode::from(2))
    };
    if mounted.len() != start.mounted.len() {
        return refuse(Error::new(ErrorKind::Protocol, "a folder that callers may reach did not come along"));
    }
    let own = Identity::own()?;
    if let Some(identity) = &start.identity {
        // Whoever makes files says with which mask; what is made without is private.
        rustix::process::umask(Mode::from_raw_mode(0o077));
        if let Err(error) = become_identity(identity, &own) {
            return refuse(error);
        }
    }
    let Some(listener) = listener.filter(|_| start.serve) else {
        return match Instance::check(&start.path) {
            Ok(description) => {
                control::send(control.as_fd(), &FromWorker::Ready(description))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => refuse(error),
        };
    };
    let options = InstanceOptions {
        process_count: start.process_count,
        segment_bytes_max: start.segment_bytes_max,
        generation: start.generation,
        exports: start.exports.clone(),
        mounted: start.mounted.iter().cloned().zip(mounted).collect(),
    };
    // By its number where this process may not be allowed to search the folders above; by its name
    // where others of its folder may have to be found.
    let (opened, confined) = match &start.identity {
        Some(_) => (Some(&object), true),
        None => (None, false),
    };
    let confine = |options: &InstanceOptions| match confined {
        true => confine(&options.exports, &options.mounted),
        false => Ok(false),
    };
    let instance = match Instance::start_opened(&start.path, opened, counters, options, confine) {
        Ok(instance) => Arc::new(instance),
        Err(error) => return refuse(error),
    };
    crate::host::name_sole_plugin(&instance.description().name);
    drop(object);
    let daemon = (start.daemon_uid, start.daemon_pid);
    let adopter = Arc::new(OnceLock::new());
    let mut service: Arc<dyn Service> = Arc::new(WorkerService {
        instance: instance.clone(),
        daemon,
        whom: start.identity.clone(),
        adopter: adopter.clone(),
    });
    if let (Some(name), Some(file)) = (&start.recorded_as, spans) {
        let names = instance.description().function_names().collect();
        service = recorder(file.into(), name, service, names);
    }
    // Where all callers are one identity, all that this process has is that identity's share.
    let whole = CallerLimits {
        connections_max: start.connections_max,
        calls_max: start.connections_max,
        ..CallerLimits::default()
    };
    let limits = ServerLimits {
        caller: if start.identity.is_some() { whole } else { CallerLimits::default() },
        connections_max: start.connections_max,
        stall_timeout: STALL_TIMEOUT,
        ..ServerLimits::default()
    };
    let server = Server::new(vec![service], None, limits);
    adopter.get_or_init(|| server.adopter());
    let whom = start.identity.clone();
    let admits = move |credentials: &Credentials, pid: u32| {
        (credentials.uid, pid) == daemon
            || whom.as_ref().is_none_or(|whom| may_be_served(&Identity::of(credentials), whom, &own))
    };
    if let Err(error) = server.listen_given(listener, admits) {
        return refuse(error);
    }
    control::send(control.as_fd(), &FromWorker::Ready(instance.description().clone()))?;
    let patience = look_after(control.as_fd(), start, &instance)?;
    instance.begin_stop();
    server.drain(patience);
    drop(server);
    match sole(instance) {
        Ok(instance) => {
            instance.stop();
        }
        Err(instance) => tracing::warn!(
            "plug-in {}: a call is still running; its fini is left out",
            instance.description().name
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives signs of life and looks for calls that do not end, until the daemon says stop or is gone;
/// how long calls may then take to finish.
fn look_after(control: BorrowedFd<'_>, start: &Start, instance: &Instance) -> Result<Duration> {
    let mut told_alive = Instant::now();
    loop {
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_EVERY.subsec_nanos()) };
        let mut waits = [PollFd::from_borrowed_fd(control, PollFlags::IN)];
        if rustix::event::poll(&mut waits, Some(&wait)) == Ok(1) {
            return Ok(match control::receive(control)? {
                Some(ToWorker::Stop { patience_ms }) => Duration::from_millis(patience_ms),
                _ => Duration::ZERO,
            });
        }
        if told_alive.elapsed() >= ALIVE_EVERY {
            told_alive = Instant::now();
            let clients = instance.client_count() as u64;
            control::send(control, &FromWorker::Alive { clients })?;
        }
        instance.look_for_the_dead();
        if start.call_timeout_ms > 0 {
            end_if_hung(control, start, instance);
        }
    }
}

fn end_if_hung(control: BorrowedFd<'_>, start: &Start, instance: &Instance) {
    let hung =
        instance.running().into_iter().find(|call| !call.patient && call.for_ms > start.call_timeout_ms);
    if let Some(call) = hung {
        let why = format!(
            "{} has run for {} ms for client {}, longer than call_timeout allows",
            instance.function_name(call.function),
            call.for_ms,
            call.client
        );
        let _ = control::send(control, &FromWorker::Hung { why });
        // At once: nothing of the plug-in's, not even an exit handler, can be trusted to end.
        // SAFETY: ends the process.
        unsafe { libc::_exit(EXIT_HUNG) }
    }
}

/// The plug-ins service of a worker: one plug-in.
struct WorkerService {
    instance: Arc<Instance>,
    /// Its user and process.
    daemon: (u32, u32),
    /// Whom this process has become; `None`: it serves everybody.
    whom: Option<Identity>,
    /// Takes connections that the daemon gives to this process.
    adopter: Arc<OnceLock<Adopter>>,
}

/// Whether a worker that is `whom` serves that caller. The daemon, which is `own`, sends whom it
/// can't become only to a worker that gives them nothing.
fn may_be_served(caller: &Identity, whom: &Identity, own: &Identity) -> bool {
    let is_his = |group: &u32| *group == caller.gid || caller.groups.contains(group);
    let gains_nothing =
        || (caller.uid, caller.gid) == (whom.uid, whom.gid) && whom == own && whom.groups.iter().all(is_his);
    caller == whom || gains_nothing()
}

/// Whether a caller is the daemon of this user and process. A caller of another node is not: its
/// process is what it says itself, also over a connection that the daemon gave to this process.
fn is_daemon(caller: &Caller, daemon: (u32, u32)) -> bool {
    caller.is_local() && (caller.credentials.uid, caller.pid) == daemon
}

impl WorkerService {
    /// Opens the plug-in for a caller whom the daemon names. `socket`: the caller's own, over which
    /// its calls come from now on.
    fn open_for(&self, caller: &Caller, payload: &[u8], socket: Option<OwnedFd>) -> Result<Vec<u8>> {
        if !is_daemon(caller, self.daemon) {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                "only the daemon opens a plug-in for others",
            ));
        }
        let told = OpenPluginFor::decode(payload)?;
        let own = Identity::own()?;
        let is_another = |whom: &Identity| !may_be_served(&Identity::of(&told.credentials), whom, &own);
        if self.whom.as_ref().is_some_and(is_another) {
            return Err(Error::new(ErrorKind::PermissionDenied, "this process serves another user"));
        }
        let adopter = || {
            let none = || Error::new(ErrorKind::Unavailable, "this process only begins; try again");
            self.adopter.get().ok_or_else(none)
        };
        let adopted = socket.map(|socket| adopter()?.admit(socket, &told.credentials)).transpose()?;
        let connection = adopted.as_ref().map_or(caller.connection, Adopted::number);
        let guest = Guest {
            caller: connection,
            credentials: &told.credentials,
            pid: told.pid,
            host: &told.host,
            is_local: false,
        };
        let opened = self.instance.open(&guest, &told.open);
        if let Some(adopted) = adopted.filter(|_| opened.status == 0) {
            let (credentials, pid, host) = (told.credentials, told.pid, Some(told.host));
            let served = adopted.serve(Caller { credentials, pid, host, connection });
            served.inspect_err(|_| self.instance.detach(connection))?;
        }
        Ok(opened.encode())
    }
}

impl Service for WorkerService {
    fn id(&self) -> u16 {
        service::PLUGINS
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let instance = &self.instance;
        let payload = match call.function {
            plugins_fn::CALL => return Ok(instance.call(caller.connection, call)),
            plugins_fn::OPEN => {
                let open = OpenPlugin::decode(call.payload)?;
                open_here(instance, caller, &open).encode()
            }
            plugins_fn::OPEN_FOR => {
                let mut fds = call.fds;
                self.open_for(caller, call.payload, fds.pop())?
            }
            plugins_fn::PING => pong(instance).encode(),
            plugins_fn::STATS => report_json(&instance.report())?,
            plugins_fn::CLOSE => {
                instance.say_goodbye(caller.connection);
                Vec::new()
            }
            plugins_fn::CANCEL => {
                instance.cancel(caller.connection, Some(Cancel::decode(call.payload)?.tag));
                Vec::new()
            }
            other => return Err(no_function(other)),
        };
        Ok(Reply { payload, ..Reply::default() })
    }

    fn detach(&self, caller: &Caller) {
        self.instance.detach(caller.connection);
    }
}

/// Opens a plug-in of this process for a caller of its server.
pub(crate) fn open_here(
    instance: &Instance,
    caller: &Caller,
    open: &OpenPlugin,
) -> zazen_wire::plugins::PluginOpened {
    let host = caller.host.clone().unwrap_or_else(own_host);
    let guest = Guest {
        caller: caller.connection,
        credentials: &caller.credentials,
        pid: caller.pid,
        host: &host,
        is_local: caller.is_local(),
    };
    instance.open(&guest, open)
}

fn own_host() -> String {
    static NAME: Mutex<Option<String>> = Mutex::new(None);
    let mut name = NAME.lock().unwrap_or_else(PoisonError::into_inner);
    name.get_or_insert_with(|| rustix::system::uname().nodename().to_string_lossy().into_owned()).clone()
}

pub(crate) fn pong(instance: &Instance) -> Pong {
    Pong { generation: instance.generation(), clients: instance.client_count() as u64 }
}

pub(crate) fn report_json(report: &impl serde::Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(report)
        .map_err(|error| Error::new(ErrorKind::Io, format!("write a plug-in's counters: {error}")))
}

pub(crate) fn no_function(function: u16) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("the plug-ins service has no function {function}; install the same release on both sides"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A remote caller's user and process are what it says.
    #[test]
    fn only_a_local_caller_is_the_daemon() {
        let check = |uid, pid, host: Option<&str>, expected| {
            let credentials = Credentials { uid, gid: 7, groups: Vec::new() };
            let caller = Caller { credentials, pid, host: host.map(str::to_owned), connection: 1 };
            assert_eq!(is_daemon(&caller, (7, 40)), expected, "{uid} {pid} {host:?}");
        };
        check(7, 40, None, true);
        check(7, 40, Some("n3"), false);
        check(7, 41, None, false);
        check(8, 40, None, false);
    }
}
