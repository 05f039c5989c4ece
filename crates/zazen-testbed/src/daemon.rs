//! One daemon: the flags it is started with, its process, and how its readiness shows.

use crate::without_variables;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};

/// How long a process may take to answer after its start; a large cache takes a while to recover.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How often the readiness file is looked for.
const READY_LOOK: Duration = Duration::from_millis(2);
/// Lines of a log that are shown when its process does not come up.
const LOG_LINES: usize = 5;

/// How a daemon is started: `zazend`'s flags.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The cache's directory.
    pub cache: PathBuf,
    /// The backing stores, as `--backing` takes them.
    pub backing: Vec<OsString>,
    /// The unix socket.
    pub socket: PathBuf,
    /// `host:port` of the TCP listener; it needs `key`.
    pub listen: Option<String>,
    /// The cluster key's file.
    pub key: Option<PathBuf>,
    /// The node's name.
    pub name: Option<String>,
    /// Bytes that the cache may take.
    pub budget: Option<String>,
    /// Bytes of the disk that stay free.
    pub free_floor: Option<String>,
    /// More flags, as they are.
    pub more: Vec<OsString>,
}

impl Launch {
    /// A daemon for frames beneath `backing`, with this cache and socket.
    pub fn new(
        cache: impl Into<PathBuf>,
        backing: impl Into<OsString>,
        socket: impl Into<PathBuf>,
    ) -> Launch {
        Launch {
            cache: cache.into(),
            backing: vec![backing.into()],
            socket: socket.into(),
            ..Launch::default()
        }
    }

    /// The same with more flags.
    pub fn with(mut self, more: impl IntoIterator<Item = impl Into<OsString>>) -> Launch {
        self.more.extend(more.into_iter().map(Into::into));
        self
    }

    /// The command line after the program's name.
    pub fn flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = vec!["--cache".into(), self.cache.clone().into()];
        for backing in &self.backing {
            flags.extend(["--backing".into(), backing.clone()]);
        }
        flags.extend(["--socket".into(), self.socket.clone().into()]);
        if let Some(key) = &self.key {
            flags.extend(["--key".into(), key.clone().into()]);
        }
        let texts = [
            ("--listen", &self.listen),
            ("--name", &self.name),
            ("--budget", &self.budget),
            ("--free-floor", &self.free_floor),
        ];
        for (flag, value) in texts {
            flags.extend(value.iter().flat_map(|value| [flag.into(), value.into()]));
        }
        flags.extend(self.more.iter().cloned());
        flags
    }

    /// `program` with these flags, in this process's environment without the testbed's variables.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        without_variables(command.args(self.flags()));
        command
    }
}

/// What a daemon tells of itself once it serves: the JSON of `--ready-file` and `--ready-fd`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Ready {
    /// Its unix socket.
    pub socket: PathBuf,
    /// `host:port` of its TCP listener, if it has one.
    pub listen: Option<String>,
    /// `host:port` of its metrics, if it serves them.
    pub metrics: Option<String>,
    /// Its process.
    pub pid: u32,
    /// Its node's identity.
    pub node: String,
}

impl Ready {
    /// Reads the JSON; `None` if it is none.
    pub fn parse(text: &str) -> Option<Ready> {
        serde_json::from_str(text).ok()
    }
}

/// A daemon's process; killed when dropped.
pub struct Daemon {
    child: Child,
    ready: Ready,
    log: PathBuf,
    start_time: Duration,
}

impl Daemon {
    /// Starts `program` as `launch` says and waits until it serves. Its log is `folder`/zazend.log;
    /// it tells its readiness in `folder`/ready.json.
    pub fn start(program: &Path, launch: &Launch, folder: &Path) -> Result<Daemon> {
        let (log, ready) = (folder.join("zazend.log"), folder.join("ready.json"));
        let failed = |what: &str, error| Error::io(format!("{what} in {}", folder.display()), error);
        match std::fs::remove_file(&ready) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed("remove ready.json", error));
            }
            _ => {}
        }
        let file = File::create(&log).map_err(|error| failed("make zazend.log", error))?;
        let mut command = launch.command(program);
        command.arg("--ready-file").arg(&ready);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let begin = Instant::now();
        let child =
            command.spawn().map_err(|error| Error::io(format!("start {}", program.display()), error))?;
        // Killed by its drop if it does not come up.
        let mut daemon = Daemon { child, ready: Ready::default(), log, start_time: Duration::ZERO };
        let child = &mut daemon.child;
        let alive = || matches!(child.try_wait(), Ok(None));
        daemon.ready = wait_for("zazend", &daemon.log, alive, || Ready::parse(&read(&ready)?))?;
        daemon.start_time = begin.elapsed();
        Ok(daemon)
    }

    /// What it told of itself.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Its process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The time from its start until it served.
    pub fn start_time(&self) -> Duration {
        self.start_time
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends it `signal`.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|errno| Error::io(format!("signal process {}", self.child.id()), errno.into()))
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it, as a crash would, and waits for its end.
    pub fn kill(&mut self) {
        // One that has ended by itself is as dead.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end: its exit code, if it was not killed, and its whole log.
    pub fn wait(mut self) -> Result<(Option<i32>, String)> {
        let status = self.child.wait().map_err(|error| Error::io("wait for zazend", error))?;
        Ok((status.code(), self.log()))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The text of a file that may not be there yet.
pub(crate) fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Asks `ready` again and again until it answers. `Unavailable`, with the end of `log`, if the
/// process is not `alive` any more or takes too long.
pub(crate) fn wait_for<T>(
    what: &str,
    log: &Path,
    mut alive: impl FnMut() -> bool,
    mut ready: impl FnMut() -> Option<T>,
) -> Result<T> {
    let until = Instant::now() + READY_WITHIN;
    loop {
        // Looked at before readiness: a process that tells and then ends was ready.
        let alive = alive();
        if let Some(answer) = ready() {
            return Ok(answer);
        }
        if !alive || Instant::now() >= until {
            let how = match alive {
                true => format!("does not answer within {} s", READY_WITHIN.as_secs()),
                false => "ended at once".to_owned(),
            };
            let text = read(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("{what}: {how}; its log {} ends with:\n  {tail}", log.display()),
            ));
        }
        std::thread::sleep(READY_LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_spelled_as_the_daemon_reads_them() {
        let mut launch = Launch::new("/c", "/b", "/s").with(["--readers", "2"]);
        assert_eq!(launch.flags(), ["--cache", "/c", "--backing", "/b", "--socket", "/s", "--readers", "2"]);
        launch.listen = Some("127.0.0.1:0".into());
        launch.key = Some("/k".into());
        launch.more.clear();
        launch.backing.push("/d".into());
        let expected = [
            "--cache",
            "/c",
            "--backing",
            "/b",
            "--backing",
            "/d",
            "--socket",
            "/s",
            "--key",
            "/k",
            "--listen",
            "127.0.0.1:0",
        ];
        assert_eq!(launch.flags(), expected);
    }

    /// Starts a shell script in the daemon's place.
    ///
    /// A process of its own writes the script. Were it open for writing in this process, a process
    /// that another test starts at that moment would inherit the descriptor until it calls `exec`,
    /// and the kernel would refuse to run the script (ETXTBSY).
    fn start(script: &str) -> Result<Daemon> {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("zazend");
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let written = Command::new("/bin/sh").args(["-c", write]).arg(&program).arg(script).status().unwrap();
        assert!(written.success());
        Daemon::start(&program, &Launch::new("/c", "/b", "/s"), folder.path())
    }

    #[test]
    fn a_daemon_is_ready_when_it_says_so() {
        let tell = r#"for last; do :; done; echo '{"socket":"/s","pid":1,"node":"7"}' > "$last"; sleep 600"#;
        let mut daemon = start(tell).unwrap();
        let ready = Ready { socket: "/s".into(), pid: 1, node: "7".into(), ..Ready::default() };
        assert_eq!(daemon.ready(), &ready);
        assert!(daemon.is_alive());
        daemon.kill();
        assert!(!daemon.is_alive());
    }

    #[test]
    fn a_daemon_that_ends_is_explained_by_its_log() {
        let error = start("echo no luck today >&2; exit 3").map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("no luck today"), "{error}");
    }
}
