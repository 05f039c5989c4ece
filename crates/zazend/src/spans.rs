//! Records a span for each call, if the daemon was started with `--spans DIR`.
//!
//! A span costs two looks at a clock and about a microsecond of formatting; lines are written to
//! the file 64 KiB at a time, or after a second. Without the flag the services are called directly.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zazen_call::{Call, Caller, Reply, Service};
use zazen_core::{Error, Result};
use zazen_spans::{SUFFIX, Span, VERSION, op_name};

/// Bytes of lines that wait to be written.
const HELD_BYTES_MAX: usize = 64 << 10;
/// How long lines wait at most while calls come.
const HELD_FOR: Duration = Duration::from_secs(1);

thread_local! {
    /// Of the call that this thread serves: nanoseconds that it waited, and bytes moved for it.
    static SO_FAR: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Runs `wait`: what it takes counts as the present call's time in a queue.
pub(crate) fn queued<T>(wait: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = wait();
    let waited_ns = began.elapsed().as_nanos() as u64;
    SO_FAR.with(|so_far| so_far.set((so_far.get().0.saturating_add(waited_ns), so_far.get().1)));
    result
}

/// Counts bytes that this thread's call had read or fetched, and that do not go with its answer.
pub(crate) fn moved(bytes: u64) {
    SO_FAR.with(|so_far| so_far.set((so_far.get().0, so_far.get().1.saturating_add(bytes))));
}

/// The file of spans of one daemon. What waits is written when it is dropped.
pub(crate) struct Spans {
    node: String,
    held: Mutex<Held>,
}

struct Held {
    file: File,
    lines: String,
    written: Instant,
    has_failed: bool,
}

impl Spans {
    /// Adds to `folder`/`node`.spans.jsonl; makes both if need be.
    pub(crate) fn begin(folder: &Path, node: &str) -> Result<Arc<Spans>> {
        std::fs::create_dir_all(folder)
            .map_err(|error| Error::io(format!("spans {}", folder.display()), error))?;
        let safe: String =
            node.chars().map(|letter| if letter == '/' || letter == '\0' { '_' } else { letter }).collect();
        let path = folder.join(format!("{safe}{SUFFIX}"));
        let file = crate::told_files::add_to(&path);
        let file = file.map_err(|error| Error::io(format!("spans {}", path.display()), error))?;
        let held = Held { file, lines: String::new(), written: Instant::now(), has_failed: false };
        Ok(Arc::new(Spans { node: node.to_owned(), held: Mutex::new(held) }))
    }

    /// `service`, with a span for each of its calls.
    pub(crate) fn around(self: &Arc<Spans>, service: Arc<dyn Service>) -> Arc<dyn Service> {
        Arc::new(Recorded { spans: self.clone(), service })
    }

    fn add(&self, span: &Span) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        span.write(&mut held.lines);
        if held.lines.len() >= HELD_BYTES_MAX || held.written.elapsed() >= HELD_FOR {
            held.flush();
        }
    }
}

impl Held {
    /// Writes what waits. A full disk must not stop the daemon: it is told of once.
    fn flush(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        self.written = Instant::now();
        if let Err(error) = self.file.write_all(lines.as_bytes())
            && !std::mem::replace(&mut self.has_failed, true)
        {
            tracing::warn!("spans are lost from now on: {error}");
        }
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}

struct Recorded {
    spans: Arc<Spans>,
    service: Arc<dyn Service>,
}

impl Service for Recorded {
    fn id(&self) -> u16 {
        self.service.id()
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let (function, bytes_in) = (call.function, call.bulk_bytes);
        let Call { payload, bulk_bytes, bulk, output, fds, line, .. } = call;
        let start = SystemTime::now();
        let began = Instant::now();
        let written_before = output.written();
        SO_FAR.set((0, 0));
        let inner = Call { function, payload, bulk_bytes, bulk: &mut *bulk, output: &mut *output, fds, line };
        let answer = self.service.call(caller, inner);
        let duration_ns = began.elapsed().as_nanos() as u64;
        let (queue_ns, bytes_moved) = SO_FAR.take();
        let replied = answer.as_ref().map_or(0, |reply| reply.bulk.len() as u64);
        let peer = match &caller.host {
            Some(host) => format!("{}:{}@{host}", caller.credentials.uid, caller.pid),
            None => format!("{}:{}", caller.credentials.uid, caller.pid),
        };
        self.spans.add(&Span {
            v: VERSION,
            start_ns: start.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64),
            duration_ns,
            queue_ns,
            node: self.spans.node.clone(),
            op: op_name(self.service.id(), function).into_owned(),
            bytes_in,
            bytes_out: output.written() - written_before + replied,
            bytes_moved,
            connection: caller.connection,
            peer,
            outcome: answer.as_ref().map_or_else(|error| error.kind().to_string(), |_| "ok".to_owned()),
        });
        answer
    }

    fn detach(&self, caller: &Caller) {
        self.service.detach(caller);
    }
}
