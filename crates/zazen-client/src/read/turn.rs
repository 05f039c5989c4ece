//! Turns at a spinning disk: one frame at a time is read from it, by whichever process of the node. Several at once
//! make its heads seek and cost most of its bandwidth (Zazen paper §5.2, Figure 6).
//!
//! The daemon puts a lock file beside its socket where it advises a single reader. Frames that are in memory need no
//! turn. Whoever keeps a turn for too long, by a hang or on purpose, delays the others by [`PATIENCE`] a frame.

use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};
use zazen_core::limits::TURN_SUFFIX;

/// The longest wait for a turn; then the frame is read all the same.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks; a frame takes a spinning disk several times as long.
const PAUSE: Duration = Duration::from_micros(500);

/// This process's place in the queue for one disk.
pub(crate) struct Turns(File);

/// A turn; over when dropped.
pub(crate) struct Turn<'a>(&'a File);

impl Turns {
    /// Where the daemon at `socket` wants readers to take turns. `None` if it doesn't.
    pub(crate) fn at(socket: &Path) -> Option<Turns> {
        let mut path = socket.as_os_str().to_owned();
        path.push(TURN_SUFFIX);
        File::open(path).ok().map(Turns)
    }

    /// Waits for a turn; `None` after [`PATIENCE`], or where the file system has no locks.
    pub(crate) fn take(&self) -> Option<Turn<'_>> {
        let begin = Instant::now();
        loop {
            match rustix::fs::flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Turn(&self.0)),
                Err(rustix::io::Errno::WOULDBLOCK) if begin.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_at_a_time_and_nobody_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("zazend.sock");
        assert!(Turns::at(&socket).is_none(), "no lock file, no turns");
        std::fs::write(folder.path().join("zazend.sock.turn"), "").unwrap();
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let turns = Turns::at(&socket).unwrap();
                    for _ in 0..20 {
                        let _turn = turns.take().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at the disk");
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        let (greedy, patient) = (Turns::at(&socket).unwrap(), Turns::at(&socket).unwrap());
        let kept = greedy.take().unwrap();
        assert!(patient.take().is_none(), "a kept turn is done without");
        drop(kept);
        assert!(patient.take().is_some());
    }
}
