//! Starts the disk while the ranks still agree on the assignment. A rank of this node will read the
//! natives that the node holds. So the first of them are brought into memory in the meantime.
//!
//! This is only advice to the kernel. Nothing waits for it or fails with it. At worst, [`BYTES`]
//! are read that nobody needs. It is not done if readers take turns at the disk.

use super::access::jobs_of;
use super::job::Data;
use super::turn::AllTurns;
use super::window;
use crate::cluster::Target;
use crate::daemon_spec::DaemonSpec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{Result, RunSet};

/// What a disk reads in the tens of milliseconds that an assignment takes.
const BYTES: u64 = 8 << 20;
/// The most frames to bring into memory. Small frames follow each other in one file.
const FRAMES: usize = 16;

/// Work that goes on until this is dropped.
pub(crate) struct Early {
    stop: Arc<AtomicBool>,
}

impl Early {
    /// Begins with the first natives of `range` (begin, end, stride; `None`: all). Returns `None`
    /// if nothing can be gained or no thread can be started.
    pub(crate) fn begin(daemon: &DaemonSpec, range: Option<(u64, u64, u64)>) -> Option<Early> {
        match &daemon.target {
            Target::Local(socket) if AllTurns::at(socket).is_empty() => {}
            _ => return None,
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (daemon, stopped) = (daemon.clone(), stop.clone());
        let work = move || {
            if let Err(error) = bring_first(&daemon, range, &stopped) {
                tracing::debug!("{error}; nothing is read before the ranks agree");
            }
        };
        let spawned = std::thread::Builder::new().name("zazen-early".to_owned()).spawn(work);
        spawned.ok().map(|_| Early { stop })
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn bring_first(daemon: &DaemonSpec, range: Option<(u64, u64, u64)>, stop: &AtomicBool) -> Result<()> {
    let (mut remote, handle) = daemon.open()?;
    let (begin, end, stride) = range.unwrap_or((0, FRAME_NO_MAX, 1));
    let native = remote.query(handle, begin, end, stride)?.native;
    let first = RunSet::from_ascending(native.iter().take(FRAMES));
    if first.is_empty() || stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    let scan = remote.scan_open(handle, first)?.scan;
    let mut left = BYTES;
    for (_, job) in jobs_of(remote.scan_next(scan, FRAMES as u16, BYTES)?) {
        let Ok(job) = job else { continue };
        let Data::Descriptor(file, offset) = &job.data else { continue };
        let end = offset.saturating_add(job.length.min(left));
        let mut at = *offset;
        while at < end && !stop.load(Ordering::Relaxed) {
            let Some(next) = window::bring(file, at) else { return Ok(()) };
            at = next;
        }
        left = left.saturating_sub(job.length);
    }
    Ok(())
}
