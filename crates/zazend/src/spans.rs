//! Records a span for each call, if the daemon was started with `--spans DIR`.
//!
//! A span costs its call a row in memory; the call is timed anyhow. A thread of its own makes
//! blocks of the rows and writes them: when some thousand have come, or after a second. Without the
//! flag the services are called directly.
//!
//! Threads that serve calls put their rows into different shards, so they don't wait for each
//! other.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zazen_call::{Call, Caller, Reply, Service};
use zazen_core::{Error, ErrorKind, Result};
use zazen_plugins::FunctionNames;
use zazen_spans::{Block, Row, SUFFIX, op_name};
use zazen_wire::plugins::{AnswerHead, CallHead, plugins_fn};
use zazen_wire::service;

/// Shards. Threads beyond share them.
const SHARDS: usize = 16;
/// A shard may grow by so many calls at once; when it has so many, they are written.
const CHUNK: usize = 1 << 12;
/// As many chunks wait at most, in all shards; further calls wait for the disk. 28 MB.
const CHUNKS_MAX: usize = 64;
/// How long a call waits at most until it is written.
const HELD_FOR: Duration = Duration::from_secs(1);
/// The writing thread's: calls come first, but it gets a tenth of a processor that they fill.
const NICE: i32 = 10;
/// A process does not look for a free name beyond this number.
const FILES_MAX: u32 = 100_000;

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

/// The spans of one process. What waits is written when it is dropped.
pub(crate) struct Spans {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

/// Between those who serve calls and the thread that writes.
struct Shared {
    /// Calls' times count from here.
    epoch: Instant,
    shards: [Shard; SHARDS],
    /// Chunks that the shards may still take.
    chunks: Mutex<usize>,
    /// Chunks were given back.
    room: Condvar,
    wishes: Mutex<Wishes>,
    /// There is a wish.
    to_write: Condvar,
}

/// On cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<Vec<Done>>);

/// What the writing thread is asked for.
#[derive(Default)]
struct Wishes {
    /// A shard has its first row.
    soon: bool,
    /// A shard has a chunk.
    now: bool,
    is_ending: bool,
}

/// A call, as it is kept until it is written.
struct Done {
    /// Since the epoch.
    began_ns: u64,
    duration_ns: u64,
    queue_ns: u64,
    bytes_in: u64,
    bytes_out: u64,
    bytes_moved: u64,
    connection: u64,
    uid: u32,
    pid: u32,
    host: Option<Box<str>>,
    /// 0 for calls that have none.
    id: u64,
    what: What,
    outcome: Outcome,
}

/// What was called.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct What {
    service: u16,
    function: u16,
    /// A plug-in's ID and its function's index.
    plugin: Option<(u16, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Ok,
    /// A plug-in's.
    Status(u32),
    Failed(ErrorKind),
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds one of these locks.
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of the calling thread's shard.
fn own_shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(SHARDS) };
    }
    OWN.with(|own| {
        if own.get() == SHARDS {
            own.set(THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        own.get()
    })
}

impl Shared {
    fn new() -> Shared {
        Shared {
            epoch: Instant::now(),
            shards: std::array::from_fn(|_| Shard::default()),
            chunks: Mutex::new(CHUNKS_MAX),
            room: Condvar::new(),
            wishes: Mutex::default(),
            to_write: Condvar::new(),
        }
    }

    fn add(&self, done: Done) {
        let shard = &self.shards[own_shard()].0;
        let mut rows = lock(shard);
        while rows.len().is_multiple_of(CHUNK) && !self.take_chunk() {
            drop(rows);
            self.wait_for_room();
            rows = lock(shard);
        }
        rows.push(done);
        let count = rows.len();
        drop(rows);
        if count == 1 || count == CHUNK {
            let mut wishes = lock(&self.wishes);
            wishes.soon = true;
            wishes.now |= count == CHUNK;
            drop(wishes);
            self.to_write.notify_one();
        }
    }

    /// False: there is none left.
    fn take_chunk(&self) -> bool {
        let mut chunks = lock(&self.chunks);
        let is_left = *chunks > 0;
        *chunks -= usize::from(is_left);
        is_left
    }

    fn wait_for_room(&self) {
        let is_full = |chunks: &mut usize| *chunks == 0;
        drop(self.room.wait_while(lock(&self.chunks), is_full).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until there is something to write; false at the end.
    fn wait(&self) -> bool {
        let mut wishes = lock(&self.wishes);
        while !wishes.soon && !wishes.is_ending {
            wishes = self.to_write.wait(wishes).unwrap_or_else(PoisonError::into_inner);
        }
        let waits_on = |wishes: &mut Wishes| !wishes.now && !wishes.is_ending;
        let (mut wishes, _) = self
            .to_write
            .wait_timeout_while(wishes, HELD_FOR, waits_on)
            .unwrap_or_else(PoisonError::into_inner);
        (wishes.soon, wishes.now) = (false, false);
        !wishes.is_ending
    }

    /// Puts a shard's rows into `rows`, which is empty, and gives it the memory of `rows`.
    fn take(&self, shard: &Shard, rows: &mut Vec<Done>) {
        std::mem::swap(&mut *lock(&shard.0), rows);
        if !rows.is_empty() {
            *lock(&self.chunks) += rows.len().div_ceil(CHUNK);
            self.room.notify_all();
        }
    }
}

impl Spans {
    /// Writes to a new file of `node` in `folder`; makes the folder if need be.
    pub(crate) fn begin(folder: &Path, node: &str, names: FunctionNames) -> Result<Arc<Spans>> {
        Spans::writing_to(open(folder, node)?, node, names)
    }

    /// `names` are those of plug-ins' functions.
    fn writing_to(file: File, node: &str, names: FunctionNames) -> Result<Arc<Spans>> {
        let shared = Arc::new(Shared::new());
        let mut blocks = Blocks::new(file, node, names);
        let rows = shared.clone();
        let writer = std::thread::Builder::new()
            .name("spans".to_owned())
            .spawn(move || blocks.write_all_of(&rows))
            .map_err(|error| Error::io("a thread for spans", error))?;
        Ok(Arc::new(Spans { shared, writer: Some(writer) }))
    }

    /// `service`, with a span for each of its calls.
    pub(crate) fn around(self: &Arc<Spans>, service: Arc<dyn Service>) -> Arc<dyn Service> {
        Arc::new(Recorded { spans: self.clone(), service })
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        lock(&self.shared.wishes).is_ending = true;
        self.shared.to_write.notify_one();
        if let Some(writer) = self.writer.take() {
            // It has warned if it failed.
            let _ = writer.join();
        }
    }
}

/// The writing thread's part.
struct Blocks {
    file: File,
    names: FunctionNames,
    block: Block,
    /// The block's numbers of what was called.
    ops: HashMap<What, u16>,
    /// The last row's numbers: most rows are of the same caller, and do the same, as one before.
    last: Option<Last>,
    has_failed: bool,
}

#[derive(Clone, Copy)]
struct Last {
    connection: u64,
    what: What,
    outcome: Outcome,
    caller: u32,
    op: u16,
    outcome_text: u16,
}

impl Blocks {
    fn new(file: File, node: &str, names: FunctionNames) -> Blocks {
        let block = Block::new(node);
        Blocks { file, names, block, ops: HashMap::new(), last: None, has_failed: false }
    }

    fn write_all_of(&mut self, shared: &Shared) {
        // Of this thread only. Where it may not, it writes all the same.
        let _ = rustix::process::setpriority_process(None, NICE);
        let mut spare: [Vec<Done>; SHARDS] = Default::default();
        loop {
            let goes_on = shared.wait();
            // Between the two clocks, as they are now: the node's may have been set.
            let epoch_ns = since_1970_ns().saturating_sub(shared.epoch.elapsed().as_nanos() as u64);
            for (shard, rows) in shared.shards.iter().zip(&mut spare) {
                shared.take(shard, rows);
                rows.drain(..).for_each(|done| self.add(&done, epoch_ns));
            }
            self.flush();
            if !goes_on {
                // Nobody adds any more: the end comes with the last service.
                break;
            }
        }
    }

    fn add(&mut self, done: &Done, epoch_ns: u64) {
        let last = match self.last {
            Some(last)
                if (last.connection, last.what, last.outcome)
                    == (done.connection, done.what, done.outcome) =>
            {
                last
            }
            _ => self.numbers(done),
        };
        self.block.add(&Row {
            start_ns: epoch_ns.saturating_add(done.began_ns),
            duration_ns: done.duration_ns,
            queue_ns: done.queue_ns,
            bytes_in: done.bytes_in,
            bytes_out: done.bytes_out,
            bytes_moved: done.bytes_moved,
            id: done.id,
            caller: last.caller,
            op: last.op,
            outcome: last.outcome_text,
        });
        if self.block.is_full() {
            self.flush();
        }
    }

    fn numbers(&mut self, done: &Done) -> Last {
        let (block, what) = (&mut self.block, done.what);
        let name = || match what.plugin.and_then(|function| self.names.get(&function)) {
            Some(name) => format!("plugins.{name}"),
            None => op_name(what.service, what.function).into_owned(),
        };
        let op = *self.ops.entry(what).or_insert_with(|| block.text(&name()));
        let outcome_text = match done.outcome {
            Outcome::Ok => block.text("ok"),
            Outcome::Status(status) => block.text(&format!("status {status}")),
            Outcome::Failed(kind) => block.text(&kind.to_string()),
        };
        let caller = block.caller(done.connection, || match &done.host {
            Some(host) => format!("{}:{}@{host}", done.uid, done.pid),
            None => format!("{}:{}", done.uid, done.pid),
        });
        let Done { connection, outcome, .. } = *done;
        *self.last.insert(Last { connection, what, outcome, caller, op, outcome_text })
    }

    /// Writes the block, in one piece. A full disk must not stop the daemon: it is told of once.
    fn flush(&mut self) {
        if self.block.is_empty() {
            return;
        }
        if self.has_failed {
            // A part of a block may have been written: nothing can be read behind it.
            self.block.take(|_| ());
        } else if let Err(error) = self.block.take(|bytes| self.file.write_all(bytes)) {
            self.has_failed = true;
            tracing::warn!("spans are lost from now on: {error}");
        }
        self.ops.clear();
        self.last = None;
    }
}

fn since_1970_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Makes the file of spans of a node, or of a plug-in's process of a node. A file that was there
/// stays as it is: the new one has the next free number in its name.
pub(crate) fn open(folder: &Path, name: &str) -> Result<File> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Error::io(format!("spans {}", folder.display()), error))?;
    let safe: String =
        name.chars().map(|letter| if letter == '/' || letter == '\0' { '_' } else { letter }).collect();
    for number in 1..=FILES_MAX {
        let path = match number {
            1 => folder.join(format!("{safe}{SUFFIX}")),
            _ => folder.join(format!("{safe}.{number}{SUFFIX}")),
        };
        match crate::told_files::make(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map_err(|error| Error::io(format!("spans {}", path.display()), error)),
        }
    }
    Err(Error::new(
        ErrorKind::TooLarge,
        format!("spans {}: has {FILES_MAX} files of {safe}; move them elsewhere", folder.display()),
    ))
}

/// Records the calls of a plug-in's process. What waits is written when the service is dropped.
/// Without a thread for them there are no spans, and a warning.
pub fn record_plugin(
    file: File,
    node: &str,
    service: Arc<dyn Service>,
    names: FunctionNames,
) -> Arc<dyn Service> {
    match Spans::writing_to(file, node, names) {
        Ok(spans) => spans.around(service),
        Err(error) => {
            tracing::warn!("no spans are recorded: {error}");
            service
        }
    }
}

struct Recorded {
    spans: Arc<Spans>,
    service: Arc<dyn Service>,
}

impl Recorded {
    /// What is called, and the call's ID.
    fn what(&self, function: u16, payload: &[u8]) -> (What, u64) {
        let own = What { service: self.service.id(), function, plugin: None };
        if !self.is_plugins(function) {
            return (own, 0);
        }
        match CallHead::take(payload) {
            Ok((head, ..)) => (What { plugin: Some((head.plugin, head.function)), ..own }, head.id),
            Err(_) => (own, 0),
        }
    }

    fn is_plugins(&self, function: u16) -> bool {
        (self.service.id(), function) == (service::PLUGINS, plugins_fn::CALL)
    }

    fn outcome(&self, function: u16, answer: &Result<Reply>) -> Outcome {
        match answer {
            Err(error) => Outcome::Failed(error.kind()),
            Ok(reply) if self.is_plugins(function) => match AnswerHead::take(&reply.payload) {
                Ok((head, ..)) if head.status != 0 => Outcome::Status(head.status),
                // Also where the plug-in's answer lies elsewhere: it was made where it goes.
                _ => Outcome::Ok,
            },
            Ok(_) => Outcome::Ok,
        }
    }
}

impl Service for Recorded {
    fn id(&self) -> u16 {
        self.service.id()
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let (function, bytes_in) = (call.function, call.bulk_bytes);
        let (what, id) = self.what(function, call.payload);
        let Call { payload, bulk_bytes, bulk, output, fds, line, began, .. } = call;
        let written_before = output.written();
        SO_FAR.set((0, 0));
        let (bulk, output) = (&mut *bulk, &mut *output);
        let inner = Call { function, payload, bulk_bytes, bulk, output: &mut *output, fds, line, began };
        let answer = self.service.call(caller, inner);
        let ended = answer.as_ref().ok().and_then(|reply| reply.ended).unwrap_or_else(Instant::now);
        let (queue_ns, bytes_moved) = SO_FAR.take();
        let replied = answer.as_ref().map_or(0, |reply| reply.bulk.len() as u64);
        let shared = &self.spans.shared;
        let ns = |from: Instant, to: Instant| to.saturating_duration_since(from).as_nanos() as u64;
        shared.add(Done {
            began_ns: ns(shared.epoch, began),
            duration_ns: ns(began, ended),
            queue_ns,
            bytes_in,
            bytes_out: output.written() - written_before + replied,
            bytes_moved,
            connection: caller.connection,
            uid: caller.credentials.uid,
            pid: caller.pid,
            host: caller.host.as_deref().map(Box::from),
            id,
            what,
            outcome: self.outcome(function, &answer),
        });
        answer
    }

    fn detach(&self, caller: &Caller) {
        self.service.detach(caller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use zazen_spans::{HEAD_BYTES, Head, Span};

    fn done(connection: u64, bytes_in: u64) -> Done {
        Done {
            began_ns: 0,
            duration_ns: 1,
            queue_ns: 0,
            bytes_in,
            bytes_out: 0,
            bytes_moved: 0,
            connection,
            uid: 1000,
            pid: 7,
            host: (connection == 1).then(|| "n3".into()),
            id: bytes_in,
            what: What { service: service::PLUGINS, function: 4, plugin: Some((2, connection as u32)) },
            outcome: if connection == 2 { Outcome::Status(5) } else { Outcome::Ok },
        }
    }

    /// `count` rows of each of 20 threads: more threads than shards, more rows than wait at once.
    fn add(spans: &Spans, count: u64) {
        std::thread::scope(|threads| {
            for connection in 0..20 {
                threads.spawn(move || (0..count).for_each(|n| spans.shared.add(done(connection, n))));
            }
        });
    }

    fn read(mut bytes: &[u8]) -> Vec<Span> {
        let mut spans = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() {
            let head = Head::read(head).unwrap();
            let (body, rest) = rest.split_at(head.body_bytes);
            head.body(body, &mut spans).unwrap();
            bytes = rest;
        }
        assert!(bytes.is_empty());
        spans
    }

    #[test]
    fn all_rows_are_written_in_each_callers_order() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let names = FunctionNames::from([((2, 1), "posix.px_open".to_owned())]);
        let before = since_1970_ns();
        let spans = Spans::writing_to(file.reopen().unwrap(), "n0", names).unwrap();
        let count = (CHUNK * CHUNKS_MAX / 10) as u64;
        add(&spans, count);
        drop(spans);
        let mut bytes = Vec::new();
        file.reopen().unwrap().read_to_end(&mut bytes).unwrap();
        let mut next = [0; 20];
        for span in read(&bytes) {
            let of = &mut next[span.connection as usize];
            assert_eq!((span.bytes_in, span.id), (*of, *of));
            *of += 1;
            let (op, peer, outcome) = match span.connection {
                1 => ("plugins.posix.px_open", "1000:7@n3", "ok"),
                2 => ("plugins.4", "1000:7", "status 5"),
                _ => ("plugins.4", "1000:7", "ok"),
            };
            let found = (span.node.as_str(), span.op.as_str(), span.peer.as_str(), span.outcome.as_str());
            assert_eq!(found, ("n0", op, peer, outcome));
            // A second: the clocks are looked at one after the other.
            assert!(span.start_ns + 1_000_000_000 > before && span.start_ns < before + 3_600_000_000_000);
        }
        assert_eq!(next, [count; 20]);
    }

    #[test]
    fn rows_are_written_without_more_of_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let spans = Spans::writing_to(file.reopen().unwrap(), "n0", FunctionNames::new()).unwrap();
        for count in 1..=2 {
            spans.shared.add(done(0, count));
            let until = Instant::now() + Duration::from_secs(120);
            while read(&std::fs::read(file.path()).unwrap()).len() < count as usize {
                assert!(Instant::now() < until, "row {count} is not written");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    #[test]
    fn a_full_disk_stops_nobody() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let spans = Spans::writing_to(full, "n0", FunctionNames::new()).unwrap();
        add(&spans, (CHUNK * CHUNKS_MAX / 10) as u64);
    }

    #[test]
    fn each_process_makes_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("spans");
        for _ in 0..3 {
            open(&below, "a/b").unwrap();
        }
        let mut names: Vec<_> =
            std::fs::read_dir(&below).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a_b.2.spans", "a_b.3.spans", "a_b.spans"]);
    }
}
