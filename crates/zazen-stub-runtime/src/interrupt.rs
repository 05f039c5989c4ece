//! Interrupts a call that a thread waits for.
//!
//! `zazen_interrupt` runs in signal handlers, so it only writes to a pipe. A thread reads the pipe
//! and tells the far side over another lane of the same client. Then the function ends, and its
//! answer comes over the call's own lane.

use crate::lanes::Pool;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use zazen_env::fork::PerProcess;
use zazen_wire::Message;
use zazen_wire::plugins::{Cancel, plugins_fn};

#[derive(Default)]
struct Table {
    begun: OnceLock<()>,
    /// The pipe's end for handlers; -1 before the first blocking call.
    pipe: AtomicI32,
    waiting: Mutex<Vec<WaitingCall>>,
}

struct WaitingCall {
    thread: i32,
    plugin: u16,
    tag: u64,
    pool: Arc<Pool>,
}

static TABLE: PerProcess<Table> = PerProcess::new();

/// A number that the client gives to a call.
pub(crate) fn next_tag() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The ID of a call in spans, from its number ([`next_tag`]).
pub(crate) fn call_id(tag: u64) -> u64 {
    static PROCESS: PerProcess<u32> = PerProcess::new();
    // Without randomness calls have the IDs of other processes' calls: only people would notice.
    let process = PROCESS.get_or(|_| zazen_env::random_u128().map_or(0, |number| number as u32));
    zazen_wire::plugins::call_id(*process, tag)
}

fn this_thread() -> i32 {
    // The call itself: libc has had a function for it since glibc 2.30 only.
    // SAFETY: no arguments, no failure.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

impl Table {
    fn waiting(&self) -> MutexGuard<'_, Vec<WaitingCall>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&'static self) {
        self.begun.get_or_init(|| {
            self.pipe.store(-1, Ordering::Release);
            let Ok((reader, writer)) = pipe() else { return };
            let listen = move || self.listen(&reader);
            // Without this thread no call can be interrupted.
            if std::thread::Builder::new().name("zazen-interrupt".into()).spawn(listen).is_ok() {
                self.pipe.store(std::os::fd::IntoRawFd::into_raw_fd(writer), Ordering::Release);
            }
        });
    }

    fn listen(&self, reader: &OwnedFd) {
        let mut thread = [0u8; 4];
        loop {
            // SAFETY: four bytes on this stack frame; a small write to a pipe arrives whole.
            let got = unsafe { libc::read(reader.as_raw_fd(), thread.as_mut_ptr().cast(), 4) };
            match got {
                4 => self.cancel(i32::from_ne_bytes(thread)),
                0 => return,
                _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }

    fn cancel(&self, thread: i32) {
        let meant: Vec<(u16, u64, Arc<Pool>)> = self
            .waiting()
            .iter()
            .filter(|entry| thread == 0 || entry.thread == thread)
            .map(|entry| (entry.plugin, entry.tag, entry.pool.clone()))
            .collect();
        for (plugin, tag, pool) in meant {
            // If the far side is gone, the call ends anyway.
            let _ = pool.ask(plugins_fn::CANCEL, &Cancel { plugin, tag }.encode());
        }
    }
}

fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = std::io::pipe()?;
    Ok((reader.into(), writer.into()))
}

/// While this value lives, the calling thread waits for a call.
pub(crate) struct Waiting {
    tag: u64,
}

impl Waiting {
    pub(crate) fn begin(plugin: u16, tag: u64, pool: &Arc<Pool>) -> Waiting {
        let table = TABLE.get();
        table.begin();
        table.waiting().push(WaitingCall { thread: this_thread(), plugin, tag, pool: pool.clone() });
        Waiting { tag }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        TABLE.get().waiting().retain(|entry| entry.tag != self.tag);
    }
}

/// See zazen_connect.h.
pub(crate) fn interrupt(thread: i32) -> bool {
    let pipe = TABLE.get().pipe.load(Ordering::Acquire);
    if pipe <= 0 {
        return false;
    }
    let bytes = thread.to_ne_bytes();
    // SAFETY: four bytes of this frame's; write is async-signal-safe.
    unsafe { libc::write(pipe, bytes.as_ptr().cast(), bytes.len()) == 4 }
}
