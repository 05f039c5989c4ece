//! Stores sums: one thread per stream writes records to a file or a socket.
//!
//! A record is a header of 64 bytes, little endian, and the sum's elements: `"ZSUM"`, u32 version
//! 1, u32 element, u32 part, u64 first block, u64 time of its first sample, u32 blocks of a group,
//! u32 results in the sum, u64 weight, u64 bytes that follow, u64 zero.
//!
//! Invariant: records are written whole and in the order in which they were put, or are counted as
//! lost.

use crate::config::Config;
use crate::integrate::Whole;
use crate::lock::lock;
use crate::memory::Landing;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a record's header.
pub(crate) const RECORD_HEADER_BYTES: usize = 64;
/// The most records that wait. Beyond this, callers that bring more wait too.
const QUEUE_MAX: usize = 8;
const PATIENCE: Duration = Duration::from_millis(50);
/// How long storage may take for the waiting records when the stream ends.
const PARTING: Duration = Duration::from_secs(10);

/// A sum that leaves.
pub(crate) struct LeavingSum {
    pub(crate) whole: Whole,
    pub(crate) config: Config,
    /// The stream's first block.
    pub(crate) first: u64,
    /// `None` if all results were skipped.
    pub(crate) sum: Option<Landing>,
}

impl LeavingSum {
    fn header(&self) -> [u8; RECORD_HEADER_BYTES] {
        let block = self.first.wrapping_add(self.whole.index);
        let bytes = self.sum.as_ref().map_or(0, |sum| sum.bytes().len() as u64);
        let mut header = Vec::with_capacity(RECORD_HEADER_BYTES);
        header.extend(*b"ZSUM");
        header.extend(1u32.to_le_bytes());
        header.extend(self.config.element.to_le_bytes());
        header.extend(self.whole.key.part.to_le_bytes());
        header.extend(block.to_le_bytes());
        header.extend(block.wrapping_mul(self.config.block_samples()).to_le_bytes());
        header.extend(self.config.integrate.to_le_bytes());
        header.extend(self.whole.results.to_le_bytes());
        header.extend(self.whole.weight.to_le_bytes());
        header.extend(bytes.to_le_bytes());
        header.extend(0u64.to_le_bytes());
        let mut all = [0; RECORD_HEADER_BYTES];
        all.copy_from_slice(&header);
        all
    }
}

#[derive(Default)]
struct State {
    queue: VecDeque<LeavingSum>,
    sink: Option<Arc<File>>,
    /// Where a record is going right now.
    writing: Option<Arc<File>>,
    has_failed: bool,
    is_stopping: bool,
    bytes: u64,
    lost: u64,
}

impl State {
    fn is_busy(&self) -> bool {
        self.writing.is_some() || !self.queue.is_empty()
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module.
pub(crate) struct Store {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    pub(crate) fn start() -> Store {
        let shared = Arc::new(Shared::default());
        let its = shared.clone();
        let name = "stream-store".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(move || run(&its)).ok();
        Store { shared, thread: Mutex::new(thread) }
    }

    /// Sums go there from now on.
    pub(crate) fn set_sink(&self, sink: Option<OwnedFd>) {
        let mut state = lock(&self.shared.state);
        state.sink = sink.map(|sink| Arc::new(File::from(sink)));
        state.has_failed = false;
    }

    /// Waits for room in the queue. If the caller is gone, it does not wait, so that the sum is not
    /// lost.
    pub(crate) fn put(&self, record: LeavingSum, cancelled: &dyn Fn() -> bool) {
        let mut state = lock(&self.shared.state);
        while state.queue.len() >= QUEUE_MAX && !cancelled() {
            let waited = self.shared.changed.wait_timeout(state, PATIENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.queue.push_back(record);
        self.shared.changed.notify_all();
    }

    /// Until all records are written.
    pub(crate) fn wait(&self, cancelled: &dyn Fn() -> bool) -> Result<(), c_int> {
        let mut state = lock(&self.shared.state);
        while state.is_busy() {
            if cancelled() {
                return Err(libc::EINTR);
            }
            let waited = self.shared.changed.wait_timeout(state, PATIENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.has_failed { Err(libc::EIO) } else { Ok(()) }
    }

    /// Bytes written, and groups lost.
    pub(crate) fn written(&self) -> (u64, u64) {
        let state = lock(&self.shared.state);
        (state.bytes, state.lost)
    }

    /// Writes what waits, for some seconds; then the thread has ended, unless a file keeps it.
    pub(crate) fn stop(&self) {
        let until = Instant::now() + PARTING;
        let mut state = lock(&self.shared.state);
        state.is_stopping = true;
        self.shared.changed.notify_all();
        while state.is_busy() && Instant::now() < until {
            let waited = self.shared.changed.wait_timeout(state, PATIENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(stuck) = &state.writing {
            // SAFETY: an open descriptor; of a file it does nothing.
            unsafe { libc::shutdown(stuck.as_raw_fd(), libc::SHUT_RDWR) };
        }
        // The remaining records are dropped.
        state.sink = None;
        state.has_failed |= state.is_busy();
        while state.is_busy() && Instant::now() < until + PATIENCE * 10 {
            let waited = self.shared.changed.wait_timeout(state, PATIENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let has_ended = !state.is_busy();
        drop(state);
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread.filter(|_| has_ended) {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    let mut state = lock(&shared.state);
    loop {
        let Some(record) = state.queue.pop_front() else {
            if state.is_stopping {
                return;
            }
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let sink = state.sink.clone();
        // A record without a sink takes no time.
        state.writing.clone_from(&sink);
        drop(state);
        shared.changed.notify_all();
        let written = sink.as_deref().map(|sink| write(sink, &record));
        if let Some(sum) = record.sum {
            sum.recycle();
        }
        state = lock(&shared.state);
        let was = state.writing.take();
        match written {
            // No sink is set, or an earlier one failed.
            None if !state.has_failed => {}
            Some(Ok(bytes)) => state.bytes += bytes,
            _ => {
                state.has_failed = true;
                state.lost += 1;
                // Unless another sink was set meanwhile.
                if state.sink.as_ref().zip(was).is_some_and(|(sink, was)| Arc::ptr_eq(sink, &was)) {
                    state.sink = None;
                }
            }
        }
        shared.changed.notify_all();
    }
}

fn write(mut sink: &File, record: &LeavingSum) -> std::io::Result<u64> {
    let header = record.header();
    let sum = record.sum.as_ref().map_or(&[][..], Landing::bytes);
    sink.write_all(&header)?;
    sink.write_all(sum)?;
    Ok((header.len() + sum.len()) as u64)
}
