//! Rows of calls, from the threads that serve these to the thread that writes.
//!
//! Each thread that serves calls puts its rows into a chunk that is its own, as they lie in a file.
//! It takes no lock for them, and writes to no cache line that another thread writes to. The
//! writing thread reads a chunk while it is filled, and has it alone once it was left. Most chunks
//! are of one kind of calls: then it copies the rows behind the first one as they are.

use std::cell::{RefCell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use zazen_core::ErrorKind;
use zazen_spans::{ROW_BYTES_MAX, Words, put_row, take_row};

/// Bytes of rows in a chunk; a row has one at least, and about six where calls are alike.
pub(super) const BYTES: usize = 4 << 10;
/// Kinds of calls in a chunk, at most. A connection that makes more of them begins chunks sooner.
pub(super) const KINDS: usize = 16;
/// When so many chunks were begun, their rows are written.
const CHUNKS_ENOUGH: usize = 64;
/// As many chunks that were left wait at most; further calls wait for the disk. 22 MB.
pub(super) const CHUNKS_MAX: usize = 1 << 12;
/// Written chunks that are kept for further rows, at most.
const SPARE_MAX: usize = 2 * CHUNKS_ENOUGH;
/// How long a call waits at most until it is written.
const HELD_FOR: Duration = Duration::from_secs(1);
/// Bytes of a cache line.
const LINE: usize = 64;

thread_local! {
    /// Where this thread's rows go.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Between those who serve calls and the thread that writes.
pub(super) struct Shared {
    /// Calls' times count from here.
    pub(super) epoch: Instant,
    pub(super) lists: Mutex<Lists>,
    /// Chunks were written.
    room: Condvar,
    /// There are rows enough, or the end has come.
    pub(super) to_write: Condvar,
}

#[derive(Default)]
pub(super) struct Lists {
    /// Chunks that the writing thread has not seen yet.
    begun: Vec<Arc<Chunk>>,
    /// Empty ones.
    spare: Vec<Arc<Chunk>>,
    /// Chunks that were begun, and of which not all is written.
    pub(super) out: usize,
    /// Threads that hold a chunk.
    pub(super) holders: usize,
    pub(super) is_ending: bool,
}

/// Rows of one thread. On cache lines of its own.
#[repr(align(128))]
pub(super) struct Chunk {
    /// Bytes of rows that are whole. Only its thread writes it, after the row and what it names.
    filled: AtomicUsize,
    /// Nothing is added any more.
    is_left: AtomicBool,
    kinds: [OnceLock<Kind>; KINDS],
    end: UnsafeCell<End>,
    rows: UnsafeCell<Rows>,
}

// SAFETY: of `rows`, bytes from `filled` on are used by the chunk's thread alone, and those before
// it are not written any more; `end` is written before `is_left` is set, and read after it.
unsafe impl Sync for Chunk {}

/// Rows, each behind the one before. Their words are the fields of [`Done`]; the last one is the
/// number of the row's kind.
#[repr(align(64))]
struct Rows([u8; BYTES]);

/// What is known of a chunk's rows when it was left.
#[derive(Clone, Copy, Default)]
struct End {
    rows: usize,
    last: Words,
}

/// What many calls have in common.
pub(super) struct Kind {
    pub(super) connection: u64,
    pub(super) uid: u32,
    pub(super) pid: u32,
    pub(super) host: Option<Box<str>>,
    pub(super) what: What,
    pub(super) outcome: Outcome,
}

/// A thread's chunk. When the thread ends, the chunk is left.
struct Held {
    shared: Arc<Shared>,
    chunk: Arc<Chunk>,
    filled: usize,
    end: End,
    kinds: usize,
    /// The last row's kind.
    last: usize,
}

/// A call that was served.
pub(super) struct Done<'a> {
    /// Since the epoch.
    pub(super) began_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) queue_ns: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) bytes_moved: u64,
    /// 0 for calls that have none.
    pub(super) id: u64,
    pub(super) connection: u64,
    pub(super) uid: u32,
    pub(super) pid: u32,
    pub(super) host: Option<&'a str>,
    pub(super) what: What,
    pub(super) outcome: Outcome,
}

/// What was called.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct What {
    pub(super) service: u16,
    pub(super) function: u16,
    /// A plug-in's ID and its function's index.
    pub(super) plugin: Option<(u16, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Ok,
    /// A plug-in's.
    Status(u32),
    Failed(ErrorKind),
}

pub(super) fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds one of these locks.
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Chunk {
    fn default() -> Chunk {
        Chunk {
            filled: AtomicUsize::new(0),
            is_left: AtomicBool::new(false),
            kinds: std::array::from_fn(|_| OnceLock::new()),
            end: UnsafeCell::default(),
            rows: UnsafeCell::new(Rows([0; BYTES])),
        }
    }
}

impl Chunk {
    /// Rows that are not read are not cleared.
    fn empty(&mut self) {
        *self.filled.get_mut() = 0;
        *self.is_left.get_mut() = false;
        self.kinds.iter_mut().for_each(|kind| drop(kind.take()));
    }

    /// Where the rows' bytes begin.
    fn bytes(&self) -> *mut u8 {
        // SAFETY: the address of a field of what is there.
        unsafe { (&raw mut (*self.rows.get()).0).cast() }
    }

    /// Called by its thread, which then adds no more.
    fn leave(&self, end: End) {
        // SAFETY: nobody reads it before `is_left`, and only this thread writes it.
        unsafe { *self.end.get() = end };
        self.is_left.store(true, Ordering::Release);
    }

    /// Asks for the cache line of a byte, which another processor may have: the writing thread read
    /// it there. It comes while the next calls are served. Otherwise the answer of one of them,
    /// whose rings order all stores before them, would wait for it.
    #[cfg(target_arch = "x86_64")]
    fn fetch_to_write(&self, at: usize) {
        let byte = self.bytes().wrapping_add(at);
        // SAFETY: a hint, which changes nothing; processors that do not know it do nothing.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) byte, options(nostack, preserves_flags, readonly));
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn fetch_to_write(&self, _at: usize) {}
}

impl Done<'_> {
    fn is_of(&self, kind: &Kind) -> bool {
        (self.connection, self.what, self.outcome) == (kind.connection, kind.what, kind.outcome)
    }

    fn kind(&self) -> Kind {
        Kind {
            connection: self.connection,
            uid: self.uid,
            pid: self.pid,
            host: self.host.map(Box::from),
            what: self.what,
            outcome: self.outcome,
        }
    }
}

impl Held {
    fn new(shared: &Arc<Shared>) -> Held {
        lock(&shared.lists).holders += 1;
        let (chunk, end) = (shared.begin(true), End::default());
        Held { shared: shared.clone(), chunk, filled: 0, end, kinds: 0, last: 0 }
    }

    fn add(&mut self, done: &Done<'_>) {
        if BYTES - self.filled < ROW_BYTES_MAX {
            self.go_on();
        }
        let kind = self.number(done);
        let words = [
            done.began_ns,
            done.duration_ns,
            done.queue_ns,
            done.bytes_in,
            done.bytes_out,
            done.bytes_moved,
            done.id,
            kind as u64,
        ];
        // SAFETY: there is room for a row behind `filled`, and nobody else uses what lies there.
        let row = unsafe { &mut *self.chunk.bytes().add(self.filled).cast::<[u8; ROW_BYTES_MAX]>() };
        let filled = self.filled + put_row(row, &self.end.last, &words);
        self.end = End { rows: self.end.rows + 1, last: words };
        self.chunk.filled.store(filled, Ordering::Release);
        if filled / LINE != self.filled / LINE {
            self.chunk.fetch_to_write(filled + LINE);
        }
        self.filled = filled;
    }

    /// The number of the call's kind.
    fn number(&mut self, done: &Done<'_>) -> usize {
        let is_it = |kind: &OnceLock<Kind>| kind.get().is_some_and(|kind| done.is_of(kind));
        if is_it(&self.chunk.kinds[self.last]) {
            return self.last;
        }
        if let Some(number) = self.chunk.kinds.iter().position(is_it) {
            self.last = number;
            return number;
        }
        if self.kinds == KINDS {
            self.go_on();
        }
        let kind = &self.chunk.kinds[self.kinds];
        kind.get_or_init(|| done.kind());
        self.last = self.kinds;
        self.kinds += 1;
        self.last
    }

    /// Begins another chunk.
    fn go_on(&mut self) {
        self.chunk.leave(self.end);
        self.chunk = self.shared.begin(false);
        (self.filled, self.end, self.kinds, self.last) = (0, End::default(), 0, 0);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.chunk.leave(self.end);
        lock(&self.shared.lists).holders -= 1;
    }
}

impl Shared {
    pub(super) fn new() -> Shared {
        Shared {
            epoch: Instant::now(),
            lists: Mutex::default(),
            room: Condvar::new(),
            to_write: Condvar::new(),
        }
    }

    pub(super) fn add(self: &Arc<Shared>, done: &Done<'_>) {
        HELD.with_borrow_mut(|held| match held {
            Some(held) if Arc::ptr_eq(&held.shared, self) => held.add(done),
            _ => held.insert(Held::new(self)).add(done),
        });
    }

    /// An empty chunk. A thread's first one is there at once, or many threads would wait for each
    /// other; before a further one, others may have to be written.
    fn begin(&self, is_first: bool) -> Arc<Chunk> {
        let mut lists = lock(&self.lists);
        if !is_first {
            let is_full = |lists: &mut Lists| lists.out >= CHUNKS_MAX + lists.holders && !lists.is_ending;
            lists = self.room.wait_while(lists, is_full).unwrap_or_else(PoisonError::into_inner);
        }
        if lists.is_ending {
            // Nobody writes it.
            return Arc::default();
        }
        lists.out += 1;
        let chunk = lists.spare.pop().unwrap_or_default();
        lists.begun.push(chunk.clone());
        if lists.begun.len() == CHUNKS_ENOUGH {
            self.to_write.notify_one();
        }
        chunk
    }

    /// From now on nothing is added to what is written.
    pub(super) fn end(&self) {
        lock(&self.lists).is_ending = true;
        self.to_write.notify_one();
        self.room.notify_all();
    }

    /// Waits until there is something to write, or for a second. Adds the chunks that were begun
    /// to `open`; false at the end.
    pub(super) fn wait(&self, open: &mut Vec<Open>) -> bool {
        let waits_on = |lists: &mut Lists| lists.begun.len() < CHUNKS_ENOUGH && !lists.is_ending;
        let (mut lists, _) = self
            .to_write
            .wait_timeout_while(lock(&self.lists), HELD_FOR, waits_on)
            .unwrap_or_else(PoisonError::into_inner);
        open.extend(lists.begun.drain(..).map(Open::new));
        !lists.is_ending
    }

    /// Takes back a chunk that was left, and of which all rows are taken.
    pub(super) fn give_back(&self, chunk: &mut Arc<Chunk>) {
        // Its thread may be about to let go of it: then it is freed.
        let emptied = Arc::get_mut(chunk).map(Chunk::empty);
        let mut lists = lock(&self.lists);
        lists.out -= 1;
        if emptied.is_some() && lists.spare.len() < SPARE_MAX {
            lists.spare.push(chunk.clone());
        }
        drop(lists);
        self.room.notify_all();
    }
}

/// A chunk as the writing thread sees it.
pub(super) struct Open {
    pub(super) chunk: Arc<Chunk>,
    /// Bytes of rows that are in blocks.
    taken: usize,
    /// What is known of these.
    so_far: End,
}

/// What is in a chunk.
pub(super) enum Part<'a> {
    /// A row, whose last word is the number of its kind, and this kind.
    Row(Words, &'a Kind),
    /// So many rows as they lie in a block, of the kind of the row before them, and the words of
    /// the last one.
    Alike(&'a [u8], usize, Words),
}

impl Open {
    fn new(chunk: Arc<Chunk>) -> Open {
        Open { chunk, taken: 0, so_far: End::default() }
    }

    /// Hands the chunk's further rows to `add`; whether there will be no more of them.
    pub(super) fn take(&mut self, mut add: impl FnMut(Part<'_>)) -> bool {
        // In this order: what was added before it was left is taken.
        let is_left = self.chunk.is_left.load(Ordering::Acquire);
        let filled = self.chunk.filled.load(Ordering::Acquire);
        // SAFETY: these bytes are not written any more before the chunk is emptied, which this
        // thread does.
        let bytes = unsafe { std::slice::from_raw_parts(self.chunk.bytes(), filled) };
        let is_of_one_kind = is_left && self.chunk.kinds[1].get().is_none();
        while self.taken < filled {
            let Some(words) = take_row(bytes, &mut self.taken, self.so_far.last) else {
                debug_assert!(false, "a row is cut");
                self.taken = filled;
                break;
            };
            self.so_far = End { rows: self.so_far.rows + 1, last: words };
            // A row's kind is there before the row.
            if let Some(kind) = self.chunk.kinds[words[7] as usize].get() {
                add(Part::Row(words, kind));
            }
            if is_of_one_kind && self.taken < filled {
                // SAFETY: the chunk was left.
                let end = unsafe { *self.chunk.end.get() };
                add(Part::Alike(&bytes[self.taken..], end.rows - self.so_far.rows, end.last));
                (self.taken, self.so_far) = (filled, end);
            }
        }
        is_left
    }
}
