//! A daemon that stopped answering: warns once, and tries the daemon again after a growing pause.

use crate::cluster::answers;
use crate::daemon_spec::DaemonSpec;
use crate::warn::warn_once;
use std::path::Path;
use std::time::{Duration, Instant};
use zazen_core::Error;

/// Tries may take at most this share (1 in 20) of the time, because each try of a daemon that hangs
/// costs its silence.
const PAUSES_PER_TRY: u32 = 20;
/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// When to look for a lost daemon again.
#[derive(Debug)]
pub(crate) struct Retry {
    at: Instant,
    pause: Duration,
}

impl Retry {
    /// For a daemon that was lost just now and may be silent for `silence`.
    pub(crate) fn new(silence: Duration) -> Retry {
        Retry { at: Instant::now() + silence, pause: silence }
    }

    /// Whether it is time for a try and the daemon answers. Takes at most the allowed silence. A
    /// failed try doubles the pause before the next.
    pub(crate) fn finds(&mut self, spec: &DaemonSpec) -> bool {
        let begin = Instant::now();
        if begin < self.at {
            return false;
        }
        let found = answers(&spec.target, spec.patience());
        self.pause = (self.pause * 2).max(begin.elapsed() * PAUSES_PER_TRY).min(PAUSE_MAX);
        self.at = Instant::now() + self.pause;
        found
    }
}

/// Warns, once per process and daemon, that the daemon stopped answering while `path` was read.
pub(crate) fn warn_of_lost_daemon(spec: &DaemonSpec, path: &Path, error: &Error) {
    let text = format!(
        "the Zazen {} of node {} stopped answering ({error}); {} is read from the backing store until it \
         answers again. Results are the same, only slower; restart it with `zazend`",
        spec.target,
        spec.node,
        path.display()
    );
    warn_once(&format!("lost {}", spec.target), &text);
}
