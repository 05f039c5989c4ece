//! Processes of a testbed: recorded by pid and start time, so that a pid that the kernel has given to someone
//! else since is never signalled.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zazen_core::{Error, Result};

/// A process that the testbed started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) pid: i32,
    /// When it started, in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub(crate) start_ticks: u64,
}

impl Process {
    /// Starts `command` in the background, its output to `log`, out of reach of the terminal's Ctrl-C.
    pub(crate) fn spawn(command: &mut Command, log: &Path) -> Result<Process> {
        let name = command.get_program().to_string_lossy().into_owned();
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .map_err(|e| Error::io(format!("log file {}", log.display()), e))?;
        let errors = file.try_clone().map_err(|e| Error::io(format!("log file {}", log.display()), e))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(|e| Error::io(format!("start {name}"), e))?;
        let pid = child.id() as i32;
        // A child that is already gone reads as a zombie until it is reaped: its start time is still there.
        let start_ticks = stat(pid).map_or(0, |stat| stat.start_ticks);
        Ok(Process { pid, start_ticks })
    }

    /// Whether it still runs (a zombie does not).
    pub(crate) fn is_alive(&self) -> bool {
        stat(self.pid).is_some_and(|now| now.start_ticks == self.start_ticks && !"ZX".contains(now.state))
    }

    /// Sends `signal` if the process is still the recorded one; false if it is gone.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        // The descriptor is taken before the start time is looked at: from then on the pid cannot change hands.
        let Some(pid) = Pid::from_raw(self.pid) else { return false };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        self.is_alive() && pidfd_send_signal(handle, signal).is_ok()
    }

    /// Waits until it is gone; false if it is still there after `patience`.
    pub(crate) fn wait_gone(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while self.is_alive() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Asks it to end, then makes it.
    pub(crate) fn stop(&self, patience: Duration) {
        if self.signal(Signal::TERM) && !self.wait_gone(patience) {
            self.signal(Signal::KILL);
            self.wait_gone(Duration::from_secs(5));
        }
    }
}

struct Stat {
    state: char,
    start_ticks: u64,
}

fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `pid (name) state ppid …`; the name may itself hold blanks and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some(Stat { state, start_ticks: fields.nth(18)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = "42 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20 21";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.state, stat.start_ticks), ('S', 777));
        assert!(parse_stat("42 (a").is_none());
        assert!(parse_stat("").is_none());
    }

    #[test]
    fn a_stranger_with_the_same_pid_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let process = Process::spawn(Command::new("sleep").arg("600"), &log).unwrap();
        assert!(process.is_alive());
        let stranger = Process { start_ticks: process.start_ticks + 1, ..process };
        assert!(!stranger.is_alive());
        assert!(!stranger.signal(Signal::KILL));
        stranger.stop(Duration::from_millis(10));
        assert!(process.is_alive());
        process.stop(Duration::from_secs(10));
        assert!(!process.is_alive());
    }
}
