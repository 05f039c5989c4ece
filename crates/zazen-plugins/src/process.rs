//! One process of an isolated plug-in: how it is begun, watched and ended.
//!
//! Invariants: it gets nothing of the daemon's but what it needs: a clean environment, the control
//! socket, the object's file and its listening socket; the object's file and the folders above it
//! are checked before each start; no lock is held here.

use crate::config::{HostOptions, MountedFolder, PluginConfig, Recording};
use crate::control::{self, EXIT_HUNG, FromWorker, MOUNTED_MAX, Start, ToWorker, readable};
use crate::counters::Counters;
use crate::identity::Identity;
use crate::object::Description;
use crate::worker::WORKER_FLAG;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_call::UnixListening;
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::ownership::{self, Trust};
use zazen_wire::plugins::FateKind;

/// Beyond the time for calls in progress, a process may take so long to end.
const END_WAIT: Duration = Duration::from_secs(5);
/// How long a process waits for its socket's name, and how often it looks: where a daemon was
/// killed and is started again, the process of the one before may take a while to be gone.
const NAME_WAIT: Duration = Duration::from_secs(30);
const NAME_LOOK: Duration = Duration::from_millis(20);
/// Where a plug-in's process finds programs.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What of the daemon's environment a plug-in's process gets: how much is logged.
const INHERITED: [&str; 2] = ["ZAZEN_LOG", "RUST_BACKTRACE"];

/// A process that serves.
pub(crate) struct Begun {
    pub(crate) child: Child,
    pub(crate) control: Arc<OwnedFd>,
    process: Option<OwnedFd>,
    pub(crate) counters: Arc<Counters>,
    listening: UnixListening,
}

/// What a process is begun with.
pub(crate) struct Launch<'a> {
    pub(crate) config: &'a PluginConfig,
    pub(crate) options: &'a HostOptions,
    /// Tells this plug-in's sockets from those of others.
    pub(crate) index: usize,
    pub(crate) generation: u64,
    /// Whom it is to become.
    pub(crate) identity: Option<&'a Identity>,
    /// Functions that there are counters for.
    pub(crate) function_count: usize,
}

/// Where that process of that plug-in listens.
pub(crate) fn socket(options: &HostOptions, index: usize, generation: u64) -> PathBuf {
    let mut name = options.socket.as_os_str().to_owned();
    name.push(format!(".plugin-{index}-{generation}"));
    name.into()
}

/// Opens the object's file, if nobody but root and the daemon's user can have put something else
/// there.
pub(crate) fn open_object(path: &Path) -> Result<OwnedFd> {
    let trust = Trust::of_this_process();
    ownership::check(path, trust).map_err(|error| error.within(format!("plug-in {}", path.display())))?;
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| {
        Error::new(
            ErrorKind::Config,
            format!(
                "plug-in {}: there is no such file ({errno}); build it, or mend the path in the settings",
                path.display()
            ),
        )
    })
}

impl<'a> Launch<'a> {
    /// For [`Launch::check`] only.
    pub(crate) fn to_check(config: &'a PluginConfig, options: &'a HostOptions, index: usize) -> Launch<'a> {
        Launch { config, options, index, generation: 0, identity: None, function_count: 0 }
    }

    fn start_message(&self, serve: bool) -> ToWorker {
        let config = self.config;
        ToWorker::Start(Start {
            path: config.path.clone(),
            serve,
            identity: self.identity.cloned(),
            exports: self.options.exports.clone(),
            mounted: self.mounted().map(|folder| folder.path.clone()).collect(),
            daemon_pid: std::process::id(),
            daemon_uid: rustix::process::geteuid().as_raw(),
            generation: self.generation,
            process_count: config.process_count,
            segment_bytes_max: config.segment_bytes_max,
            connections_max: self.options.connections_max,
            memory_bytes: config.memory_bytes,
            open_files: config.open_files,
            call_timeout_ms: u64::try_from(config.call_timeout().as_millis()).unwrap_or(u64::MAX),
            recorded_as: self.recording().filter(|_| serve).map(|(_, name)| name),
        })
    }

    /// The folders of mounts that the process gets: only one that has become its caller.
    fn mounted(&self) -> impl Iterator<Item = &MountedFolder> {
        self.options.mounted.iter().filter(|_| self.identity.is_some()).take(MOUNTED_MAX)
    }

    /// Where and under which name the process records its calls.
    fn recording(&self) -> Option<(&Recording, String)> {
        let recording = self.options.recording.as_ref()?;
        let object = self.config.path.file_stem().unwrap_or_default().to_string_lossy();
        Some((recording, format!("{}.{object}-{}", recording.node, self.generation)))
    }

    /// Begins a process that serves.
    pub(crate) fn begin(&self) -> Result<Begun> {
        let object = open_object(&self.config.path)?;
        let listening = listen(&socket(self.options, self.index, self.generation))?;
        let begun = Counters::shared(self.function_count).and_then(|(counters, file)| {
            let spans = self.recording().map(|(recording, name)| (recording.open)(&recording.folder, &name));
            let spans = spans.transpose()?;
            let mut fds = vec![object.as_fd(), listening.as_fd(), file.as_fd()];
            fds.extend(spans.as_ref().map(AsFd::as_fd));
            fds.extend(self.mounted().map(|folder| folder.root.as_fd()));
            let begun = self.spawn(&fds, true)?;
            Ok((begun, Arc::new(counters)))
        });
        match begun {
            Ok(((child, control, process, _), counters)) => {
                Ok(Begun { child, control: Arc::new(control), process, counters, listening })
            }
            Err(error) => {
                listening.remove();
                Err(error.within(format!("plug-in {}", self.config.path.display())))
            }
        }
    }

    /// Loads the object in a process of its own and says what it is; nothing of it runs but its
    /// constructors.
    pub(crate) fn check(&self) -> Result<Description> {
        let object = open_object(&self.config.path)?;
        let (mut child, _, _, description) = self
            .spawn(&[object.as_fd()], false)
            .map_err(|error| error.within(format!("plug-in {}", self.config.path.display())))?;
        end_group(&mut child);
        Ok(description)
    }

    fn spawn(
        &self,
        fds: &[std::os::fd::BorrowedFd<'_>],
        serve: bool,
    ) -> Result<(Child, OwnedFd, Option<OwnedFd>, Description)> {
        let (mut child, control, process) = spawn(&self.options.worker, self.config)?;
        let told = control::send_fds(control.as_fd(), fds)
            .and_then(|()| control::send(control.as_fd(), &self.start_message(serve)));
        // A process that ended already says why.
        drop(told);
        match await_ready(&control, self.options.start_timeout) {
            Ok(description) => Ok((child, control, process, description)),
            Err(error) => {
                end_group(&mut child);
                Err(error)
            }
        }
    }
}

/// Listens there, once nobody else does.
fn listen(path: &Path) -> Result<UnixListening> {
    let until = Instant::now() + NAME_WAIT;
    loop {
        match UnixListening::new(path) {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < until => {
                std::thread::sleep(NAME_LOOK);
            }
            listening => return listening,
        }
    }
}

/// Begins the worker program; its process group is its own, so that the terminal's signals don't
/// reach it and all that it began can be ended with it.
fn spawn(worker: &Path, config: &PluginConfig) -> Result<(Child, OwnedFd, Option<OwnedFd>)> {
    let (ours, theirs) = control::pair()?;
    let inherited = INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let child = Command::new(worker)
        .arg0("zazend-plugin")
        .arg(WORKER_FLAG)
        .env_clear()
        .env("PATH", SEARCH_PATH)
        .envs(inherited)
        .envs(&config.environment)
        .current_dir("/")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| Error::io(format!("begin a plug-in's process ({})", worker.display()), error))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let process = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    Ok((child, ours, process))
}

/// Ends the process, whatever it does, and all that it began and left in its group.
pub(crate) fn end_group(child: &mut Child) -> Option<std::process::ExitStatus> {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Before the wait: until then the group's number can't be anybody else's.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
    child.kill().ok();
    child.wait().ok()
}

fn await_ready(control: &OwnedFd, patience: Duration) -> Result<Description> {
    let refuse = |why: String| Error::new(ErrorKind::Config, why);
    if !readable(&[control.as_fd()], patience) {
        return Err(refuse(format!("loading and init took longer than {patience:?}")));
    }
    match control::receive(control.as_fd())? {
        Some(FromWorker::Ready(description)) => Ok(description),
        Some(FromWorker::Refused { why }) => Err(refuse(why)),
        _ => Err(refuse("its process ended while it was loaded or in its init".to_owned())),
    }
}

/// What a watcher asks of whoever keeps the process.
pub(crate) trait Keeper {
    /// Its process's name in messages.
    fn name(&self) -> String;
    /// Whether the process was told to end.
    fn is_stopping(&self) -> bool;
    /// It gave a sign of life, and has so many clients.
    fn heard(&self, clients: u64);
}

/// Until the process has ended; what became of it.
pub(crate) fn watch_over(
    keeper: &impl Keeper,
    config: &PluginConfig,
    options: &HostOptions,
    mut begun: Begun,
) -> FateKind {
    let (mut heard, mut hung) = (Instant::now(), None);
    let mut told_to_stop: Option<Instant> = None;
    let mut fds = vec![begun.control.as_fd()];
    fds.extend(begun.process.as_ref().map(AsFd::as_fd));
    loop {
        // Not more than one before the rest is looked at: a plug-in that babbles must not keep the
        // daemon from stopping.
        if readable(&fds[..1], Duration::ZERO) {
            heard = Instant::now();
            match control::receive::<FromWorker>(begun.control.as_fd()) {
                Ok(Some(FromWorker::Hung { why })) => hung = Some(why),
                Ok(Some(FromWorker::Alive { clients })) => keeper.heard(clients),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    tracing::error!("plug-in {}: {error}", keeper.name());
                    break;
                }
            }
        } else if fds.len() > 1 && readable(&fds[1..], Duration::ZERO) {
            break;
        }
        if told_to_stop.is_none() && keeper.is_stopping() {
            told_to_stop = Some(Instant::now());
        }
        if told_to_stop.is_some_and(|at| at.elapsed() > options.drain + END_WAIT) {
            tracing::warn!("plug-in {}: did not end in time; killed", keeper.name());
            break;
        }
        if heard.elapsed() > config.silence && told_to_stop.is_none() {
            hung = Some(format!("no sign of life for {:?}", config.silence));
            break;
        }
        readable(&fds, Duration::from_millis(200));
    }
    let silent_end = told_to_stop.is_some() || keeper.is_stopping();
    // One that is about to end by itself shows its own status.
    if hung.is_none() && fds.len() > 1 {
        readable(&fds[1..], Duration::from_millis(500));
    }
    let status = end_group(&mut begun.child);
    begun.listening.remove();
    let name = keeper.name();
    if silent_end {
        return FateKind::Stopped;
    }
    if hung.is_some() || status.and_then(|status| status.code()) == Some(EXIT_HUNG) {
        let why = hung.unwrap_or_else(|| "a call did not end".to_owned());
        tracing::error!("plug-in {name}: {why}; its process was ended");
        return FateKind::Hung;
    }
    let how = match status {
        Some(status) if status.signal().is_some() => {
            format!("was killed by signal {}", status.signal().unwrap_or_default())
        }
        Some(status) => format!("ended with exit code {}", status.code().unwrap_or_default()),
        None => "ended".to_owned(),
    };
    tracing::error!("plug-in {name}: its process {how}; calls in progress fail, it is begun again");
    FateKind::Crashed
}
