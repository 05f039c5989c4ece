//! Records a span for each call, if the daemon was started with `--spans DIR`.
//!
//! A span costs its thread a row in memory, which it makes when the call's answer is on its way;
//! the call is timed anyhow. A thread of its own makes blocks of the rows and writes them: when
//! some ten thousand have come, or after a second. Without the flag the services are called
//! directly.
//!
//! [`chunks`] brings the rows from the threads that serve calls to the one that writes.

mod chunks;

use chunks::{BYTES, Done, KINDS, Kind, Open, Outcome, Part, Shared, What, lock};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use zazen_call::{Call, Caller, Reply, Service};
use zazen_core::{Error, ErrorKind, Result};
use zazen_plugins::FunctionNames;
use zazen_spans::{Block, Row, SUFFIX, op_name};
use zazen_wire::plugins::{AnswerHead, CallHead, plugins_fn};
use zazen_wire::service;

/// The writing thread's: calls come first, but it gets a tenth of a processor that they fill.
const NICE: i32 = 10;
/// A process does not look for a free name beyond this number.
const FILES_MAX: u32 = 100_000;
/// An answer with no more bytes is on its way at once, so the clock is looked at after that: a look
/// costs as much as a fiftieth of the shortest call.
const SHORT_BYTES_MAX: u64 = 64 << 10;

thread_local! {
    /// Of the call that this thread serves: nanoseconds that it waited, and bytes moved for it.
    static SO_FAR: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// The call that this thread has served, while its answer goes.
    static SERVED: Cell<Option<Served>> = const { Cell::new(None) };
}

/// A call that was served.
struct Served {
    began: Instant,
    /// `None`: when its short answer is on its way.
    ended: Option<Instant>,
    queue_ns: u64,
    bytes_in: u64,
    bytes_out: u64,
    bytes_moved: u64,
    id: u64,
    what: What,
    outcome: Outcome,
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

/// The spans of one process. What waits is written when it ends, or is dropped.
pub(crate) struct Spans {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
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
        Ok(Arc::new(Spans { shared, writer: Mutex::new(Some(writer)) }))
    }

    /// `service`, with a span for each of its calls.
    pub(crate) fn around(self: &Arc<Spans>, service: Arc<dyn Service>) -> Arc<dyn Service> {
        Arc::new(Recorded { spans: self.clone(), id: service.id(), service })
    }

    /// Writes what waits; calls that end from now on are not recorded. Whoever ends the process
    /// must not wait for the drop instead: a thread that served a connection may hold its services
    /// until the process is gone.
    pub(crate) fn end(&self) {
        self.shared.end();
        if let Some(writer) = lock(&self.writer).take() {
            // It has warned if it failed.
            let _ = writer.join();
        }
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        self.end();
    }
}

/// The writing thread's part.
struct Blocks {
    file: File,
    names: FunctionNames,
    block: Block,
    /// The block's numbers of what was called.
    ops: HashMap<What, u16>,
    has_failed: bool,
}

impl Blocks {
    fn new(file: File, node: &str, names: FunctionNames) -> Blocks {
        let block = Block::new(node);
        Blocks { file, names, block, ops: HashMap::new(), has_failed: false }
    }

    fn write_all_of(&mut self, shared: &Shared) {
        // Of this thread only. Where it may not, it writes all the same.
        let _ = rustix::process::setpriority_process(None, NICE);
        // In the order in which they were begun, so that each thread's rows stay in order.
        let mut open = Vec::new();
        loop {
            let goes_on = shared.wait(&mut open);
            // Between the two clocks, as they are now: the node's may have been set.
            let epoch_ns = since_1970_ns().saturating_sub(shared.epoch.elapsed().as_nanos() as u64);
            open.retain_mut(|open| {
                let is_left = self.take(open, epoch_ns);
                if is_left {
                    shared.give_back(&mut open.chunk);
                }
                !is_left
            });
            self.flush();
            if !goes_on {
                break;
            }
        }
    }

    /// Puts a chunk's further rows into the block; whether there will be no more of them.
    fn take(&mut self, open: &mut Open, epoch_ns: u64) -> bool {
        // A row has a byte at least.
        if !self.block.has_room(BYTES) {
            self.flush();
        }
        // A chunk's rows are of few kinds.
        let (mut numbers, mut last) = ([None; KINDS], 0);
        open.take(|part| match part {
            Part::Row(mut words, kind) => {
                last = *numbers[words[7] as usize].get_or_insert_with(|| self.numbers(kind));
                words[0] = words[0].saturating_add(epoch_ns);
                words[7] = last;
                self.block.add_words(words);
            }
            Part::Alike(bytes, rows, mut words) => {
                words[0] = words[0].saturating_add(epoch_ns);
                words[7] = last;
                self.block.add_rows(bytes, rows, words);
            }
        })
    }

    /// The last word of rows of this kind.
    fn numbers(&mut self, kind: &Kind) -> u64 {
        let (block, what) = (&mut self.block, kind.what);
        let name = || match what.plugin.and_then(|function| self.names.get(&function)) {
            Some(name) => format!("plugins.{name}"),
            None => op_name(what.service, what.function).into_owned(),
        };
        let op = *self.ops.entry(what).or_insert_with(|| block.text(&name()));
        let outcome = match kind.outcome {
            Outcome::Ok => block.text("ok"),
            Outcome::Status(status) => block.text(&format!("status {status}")),
            Outcome::Failed(kind) => block.text(&kind.to_string()),
        };
        let caller = block.caller(kind.connection, || match &kind.host {
            Some(host) => format!("{}:{}@{host}", kind.uid, kind.pid),
            None => format!("{}:{}", kind.uid, kind.pid),
        });
        Row::numbers(caller, op, outcome)
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
    /// Its number.
    id: u16,
}

impl Recorded {
    /// What is called, and the call's ID.
    fn what(&self, function: u16, payload: &[u8]) -> (What, u64) {
        let own = What { service: self.id, function, plugin: None };
        if !self.is_plugins(function) {
            return (own, 0);
        }
        match CallHead::take(payload) {
            Ok((head, ..)) => (What { plugin: Some((head.plugin, head.function)), ..own }, head.id),
            Err(_) => (own, 0),
        }
    }

    fn is_plugins(&self, function: u16) -> bool {
        (self.id, function) == (service::PLUGINS, plugins_fn::CALL)
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
        self.id
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
        let (queue_ns, bytes_moved) = SO_FAR.take();
        let replied = answer.as_ref().map_or(0, |reply| reply.bulk.len() as u64);
        let bytes_out = output.written() - written_before + replied;
        let looked = answer.as_ref().ok().and_then(|reply| reply.ended);
        let ended = looked.or_else(|| (bytes_out > SHORT_BYTES_MAX).then(Instant::now));
        SERVED.set(Some(Served {
            began,
            ended,
            queue_ns,
            bytes_in,
            bytes_out,
            bytes_moved,
            id,
            what,
            outcome: self.outcome(function, &answer),
        }));
        answer
    }

    /// The caller has its answer meanwhile: it does not wait for the row.
    fn answered(&self, caller: &Caller) {
        self.service.answered(caller);
        let Some(served) = SERVED.take() else { return };
        let ended = served.ended.unwrap_or_else(Instant::now);
        let shared = &self.spans.shared;
        let ns = |from: Instant, to: Instant| to.saturating_duration_since(from).as_nanos() as u64;
        shared.add(&Done {
            began_ns: ns(shared.epoch, served.began),
            duration_ns: ns(served.began, ended),
            queue_ns: served.queue_ns,
            bytes_in: served.bytes_in,
            bytes_out: served.bytes_out,
            bytes_moved: served.bytes_moved,
            id: served.id,
            connection: caller.connection,
            uid: caller.credentials.uid,
            pid: caller.pid,
            host: caller.host.as_deref(),
            what: served.what,
            outcome: served.outcome,
        });
    }

    fn detach(&self, caller: &Caller) {
        self.service.detach(caller);
    }
}

#[cfg(test)]
mod tests {
    use super::chunks::CHUNKS_MAX;
    use super::*;
    use std::io::Read as _;
    use std::time::Duration;
    use zazen_spans::{HEAD_BYTES, Head, Span};

    /// A call with this number; its row is as long as rows are.
    fn done(connection: u64, bytes_in: u64) -> Done<'static> {
        let long = if bytes_in.is_multiple_of(2) { 1 << 62 } else { 0 };
        Done {
            began_ns: 0,
            duration_ns: long,
            queue_ns: long,
            bytes_in,
            bytes_out: long,
            bytes_moved: long,
            id: bytes_in,
            connection,
            uid: 1000,
            pid: 7,
            host: (connection == 1).then_some("n3"),
            what: What { service: service::PLUGINS, function: 4, plugin: Some((2, connection as u32)) },
            outcome: if connection == 2 { Outcome::Status(5) } else { Outcome::Ok },
        }
    }

    /// Bytes of a row of [`done`], about: which words differ, four of ten bytes, two of one.
    const ROW_BYTES: usize = 1 + 4 * 10 + 2;
    /// Rows of a chunk, at most.
    const ROWS: usize = BYTES / ROW_BYTES;
    /// Rows of each of 20 threads: in all, more than may wait at once.
    const MANY: u64 = (ROWS * CHUNKS_MAX / 10) as u64;

    /// `count` rows of each of 20 threads.
    fn add(spans: &Spans, count: u64) {
        std::thread::scope(|threads| {
            for connection in 0..20 {
                threads.spawn(move || (0..count).for_each(|n| spans.shared.add(&done(connection, n))));
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
        let count = MANY;
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
            spans.shared.add(&done(0, count));
            let until = Instant::now() + Duration::from_secs(120);
            while read(&std::fs::read(file.path()).unwrap()).len() < count as usize {
                assert!(Instant::now() < until, "row {count} is not written");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Rows of one kind, of which the writing thread sees some before their chunk is left.
    #[test]
    fn rows_are_written_before_and_after_their_chunk_is_left() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let spans = Spans::writing_to(file.reopen().unwrap(), "n0", FunctionNames::new()).unwrap();
        let mut count = 0;
        for more in [1, 30, 5 * ROWS as u64, 2, 3 * ROWS as u64] {
            (count..count + more).for_each(|n| spans.shared.add(&done(0, n)));
            count += more;
            let until = Instant::now() + Duration::from_secs(120);
            while read(&std::fs::read(file.path()).unwrap()).len() < count as usize {
                assert!(Instant::now() < until, "{count} rows are not written");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        drop(spans);
        let found = read(&std::fs::read(file.path()).unwrap());
        assert_eq!(found.len() as u64, count);
        for (number, span) in (0..).zip(found) {
            let long = done(0, number).duration_ns;
            let numbers = (span.bytes_in, span.id, span.duration_ns, span.queue_ns, span.bytes_out);
            assert_eq!(numbers, (number, number, long, long, long));
        }
    }

    #[test]
    fn calls_wait_for_a_disk_that_is_slow() {
        let (mut from, to) = std::io::pipe().unwrap();
        let to = File::from(std::os::fd::OwnedFd::from(to));
        let spans = Spans::writing_to(to, "n0", FunctionNames::new()).unwrap();
        let out = || lock(&spans.shared.lists).out;
        std::thread::scope(|threads| {
            let adding = threads.spawn(|| add(&spans, MANY));
            // A pipe that nobody reads takes a few rows.
            let until = Instant::now() + Duration::from_secs(120);
            while out() < CHUNKS_MAX {
                assert!(Instant::now() < until && !adding.is_finished(), "{} chunks wait", out());
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(out() <= CHUNKS_MAX + 2 * 20, "{} chunks wait", out());
            let mut rows = Vec::new();
            while rows.len() < 20 * MANY as usize {
                let mut head = [0; HEAD_BYTES];
                from.read_exact(&mut head).unwrap();
                let head = Head::read(&head).unwrap();
                let mut body = vec![0; head.body_bytes];
                from.read_exact(&mut body).unwrap();
                head.body(&body, &mut rows).unwrap();
            }
            assert_eq!(rows.len(), 20 * MANY as usize);
        });
    }

    #[test]
    fn a_thread_that_ends_leaves_its_chunk() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let spans = Spans::writing_to(file.reopen().unwrap(), "n0", FunctionNames::new()).unwrap();
        let until = Instant::now() + Duration::from_secs(120);
        add(&spans, 1);
        loop {
            let lists = lock(&spans.shared.lists);
            if (lists.out, lists.holders) == (0, 0) {
                break;
            }
            assert!(Instant::now() < until, "{} chunks of {} threads", lists.out, lists.holders);
            drop(lists);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(read(&std::fs::read(file.path()).unwrap()).len(), 20);
    }

    #[test]
    fn more_kinds_of_calls_than_a_chunk_has_room_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let spans = Spans::writing_to(file.reopen().unwrap(), "n0", FunctionNames::new()).unwrap();
        let count = 5 * (ROWS as u64);
        for number in 0..count {
            // All of them in turns, then one after the other.
            let connection = if number < count / 2 { number % 23 } else { number };
            spans.shared.add(&done(connection, number));
        }
        drop(spans);
        let found = read(&std::fs::read(file.path()).unwrap());
        assert_eq!(found.len() as u64, count);
        for (number, span) in (0..).zip(found) {
            let connection = if number < count / 2 { number % 23 } else { number };
            assert_eq!((span.bytes_in, span.connection), (number, connection));
            assert_eq!(span.outcome, if connection == 2 { "status 5" } else { "ok" });
        }
    }

    /// At a process's end a thread may still hold the services: what they served is written.
    #[test]
    fn the_end_waits_for_no_thread() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let spans = Spans::writing_to(file.reopen().unwrap(), "n0", FunctionNames::new()).unwrap();
        let (added, is_added) = std::sync::mpsc::channel();
        let (ended, is_ended) = std::sync::mpsc::channel();
        let held = spans.clone();
        let thread = std::thread::spawn(move || {
            held.shared.add(&done(0, 1));
            added.send(()).unwrap();
            is_ended.recv().unwrap();
            // Nobody writes them, and nobody waits for room.
            (0..MANY * 20).for_each(|n| held.shared.add(&done(0, n)));
        });
        is_added.recv().unwrap();
        spans.end();
        assert_eq!(read(&std::fs::read(file.path()).unwrap()).len(), 1);
        ended.send(()).unwrap();
        thread.join().unwrap();
        spans.end();
    }

    #[test]
    fn a_full_disk_stops_nobody() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let spans = Spans::writing_to(full, "n0", FunctionNames::new()).unwrap();
        add(&spans, MANY);
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
