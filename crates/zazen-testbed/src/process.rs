//! Processes of a testbed: recorded by pid, boot, start time and user, so that a pid that the
//! kernel has given to someone else since is never signalled.

use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zazen_core::{Error, Result};

/// A process that the testbed started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
    /// Whose it is.
    pub uid: u32,
    /// Of the machine's boot (`/proc/sys/kernel/random/boot_id`): ticks begin anew with each.
    pub boot: u64,
}

impl Process {
    /// Starts `command` in the background, its output to `log`, out of reach of the terminal's
    /// Ctrl-C.
    pub fn spawn(command: &mut Command, log: File) -> Result<Process> {
        let name = command.get_program().to_string_lossy().into_owned();
        let errors = log.try_clone().map_err(|e| Error::io(format!("log file of {name}"), e))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(|e| Error::io(format!("start {name}"), e))?;
        let pid = child.id() as i32;
        // A child that is already gone reads as a zombie until it is reaped: its start time is
        // still there.
        let start_ticks = stat(pid).map_or(0, |stat| stat.start_ticks);
        Ok(Process { pid, start_ticks, uid: rustix::process::geteuid().as_raw(), boot: boot() })
    }

    /// Whether any of it still runs. A process that is being killed may be a zombie by its first
    /// thread while others still hold its files and locks; it is gone when no thread is left.
    pub fn is_alive(&self) -> bool {
        let is_recorded =
            |now: ProcStat| now.start_ticks == self.start_ticks && now.uid == self.uid && now.runs;
        self.boot == boot() && stat(self.pid).is_some_and(is_recorded)
    }

    /// Sends `signal` if the process is still the recorded one; false if it is gone.
    pub fn signal(&self, signal: Signal) -> bool {
        // The descriptor is taken before the start time is looked at: from then on the pid cannot
        // change hands.
        let Some(pid) = Pid::from_raw(self.pid) else { return false };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        self.is_alive() && pidfd_send_signal(handle, signal).is_ok()
    }

    /// Waits until it is gone; false if it is still there after `patience`.
    pub fn wait_gone(&self, patience: Duration) -> bool {
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
    pub fn stop(&self, patience: Duration) {
        if self.signal(Signal::TERM) {
            self.see_off(patience);
        }
    }

    /// Waits for a process that was asked to end; kills it if it is still there after `patience`. A
    /// second SIGTERM would end a daemon at once, before it has written what it still holds.
    pub fn see_off(&self, patience: Duration) {
        if !self.wait_gone(patience) {
            self.signal(Signal::KILL);
            self.wait_gone(Duration::from_secs(5));
        }
    }
}

struct ProcStat {
    /// Not a zombie whose threads have all ended.
    runs: bool,
    start_ticks: u64,
    uid: u32,
}

fn stat(pid: i32) -> Option<ProcStat> {
    // Both files speak of the process whose folder this is, whatever has the number by now.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty()).ok()?;
    let read = |name: &str| {
        let file = openat(&folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        std::io::read_to_string(File::from(file)).ok()
    };
    let status = read("status")?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    parse_stat(&read("stat")?, uids.split_ascii_whitespace().nth(1)?.parse().ok()?)
}

/// A number for this boot of the machine.
fn boot() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// `pid (name) state ppid …`; the name may itself hold blanks and parentheses.
fn parse_stat(text: &str, uid: u32) -> Option<ProcStat> {
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let runs = !["Z", "X"].contains(&state) || threads > 1;
    Some(ProcStat { runs, start_ticks: fields.nth(1)?.parse().ok()?, uid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = "42 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20 21";
        let stat = parse_stat(text, 0).unwrap();
        assert_eq!((stat.runs, stat.start_ticks), (true, 777));
        assert!(parse_stat("42 (a", 0).is_none());
        assert!(parse_stat("", 0).is_none());
    }

    #[test]
    fn a_process_is_alive_until_its_last_thread_has_ended() {
        // Its first thread ends, the second one stays.
        let script = "import ctypes, threading, time\n\
                      threading.Thread(target=time.sleep, args=(600,)).start()\n\
                      ctypes.CDLL(None).pthread_exit(None)";
        let mut command = Command::new("python3");
        let process = Process::spawn(command.args(["-c", script]), tempfile::tempfile().unwrap()).unwrap();
        let is_zombie = || {
            let text = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap();
            text[text.rfind(')').unwrap() + 1..].trim_start().starts_with('Z')
        };
        while !is_zombie() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(process.is_alive());
        assert!(process.signal(Signal::KILL));
        assert!(process.wait_gone(Duration::from_secs(600)));
        assert!(!process.is_alive());
    }

    #[test]
    fn a_stranger_with_the_same_pid_is_left_alone() {
        let process =
            Process::spawn(Command::new("sleep").arg("600"), tempfile::tempfile().unwrap()).unwrap();
        assert!(process.is_alive());
        for stranger in [
            Process { start_ticks: process.start_ticks + 1, ..process },
            Process { uid: process.uid + 1, ..process },
            Process { boot: process.boot + 1, ..process },
        ] {
            assert!(!stranger.is_alive());
            assert!(!stranger.signal(Signal::KILL));
            stranger.stop(Duration::from_millis(10));
            assert!(process.is_alive());
        }
        process.stop(Duration::from_secs(10));
        assert!(!process.is_alive());
    }
}
