//! One scan: hands out a set of frames, each once, cached ones first and in storage order, misses
//! as they arrive.
//!
//! Invariants: memory does not grow with the set (cached frames come from the store page by page,
//! natives first, each page in storage order); the dataset is not evicted for want of room while
//! the scan goes on; a copy that differs from its source is dropped and fetched anew; while the
//! backing store does not answer, copies are handed out unchecked (to other users than the daemon's
//! own only within what [`Opened::may_have_unasked`] says).
//!
//! A source that is gone while the store answers and its dataset's directory is there was deleted:
//! its frame is `NotFound`, though the copy stays until it is evicted (should the file come back
//! unchanged, it counts again).

use crate::batch::Batch;
use crate::clock::now_ns;
use crate::grown::Comparison;
use crate::look::{Look, look};
use crate::misses::{Brought, Misses, Way};
use crate::node::Node;
use crate::notes::Notes;
use crate::opened::Opened;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use zazen_call::{Caller, Reply, may_say};
use zazen_core::limits::{BATCH_FRAMES_MAX, FDS_PER_MESSAGE_MAX, READ_MANY_FRAMES_MAX, READ_MANY_SENT_MAX};
use zazen_core::{Credentials, Error, ErrorKind, Origin, RelPath, Result, RunSet};
use zazen_frames::absence::Absence;
use zazen_frames::messages::{Delivery, ScanNext};
use zazen_frames::scan::{AfterCheck, Pages, after_check, refetched_as};
use zazen_frames::scan_record::ScanNotes;
use zazen_frames::stale::may_have_grown;
use zazen_store::{EntriesCursor, Entry, ScanGuard};

/// Bytes of packed frames that an answer copies at most, beside its first frame.
const COPIED_BYTES_MAX: u64 = 16 << 20;
/// A call of random access answers what it has after this time.
const READ_MANY_PATIENCE: Duration = Duration::from_secs(5);

/// A scan under way, of one connection.
pub struct Scan {
    opened: Arc<Opened>,
    /// The cache's name for what is scanned.
    series: RelPath,
    who: Credentials,
    privileged: bool,
    cursor: Mutex<Cursor>,
    misses: Misses,
    notes: Arc<Notes>,
    guard: ScanGuard,
}

/// Where the scan is in the cached frames.
struct Cursor {
    pages: Pages<Entry>,
    at: EntriesCursor,
}

/// What one reply can still take.
struct Room {
    frames: usize,
    bytes: u64,
    files: usize,
}

impl Room {
    /// What the answer to a call of random access can take beside `batch`; `None` if it is full.
    fn left(batch: &Batch, bytes_max: u64) -> Option<Room> {
        let frames = READ_MANY_FRAMES_MAX.saturating_sub(batch.frames());
        let files = FDS_PER_MESSAGE_MAX.saturating_sub(batch.files());
        let sent = (READ_MANY_SENT_MAX as u64).saturating_sub(batch.sent_bytes());
        let bytes = bytes_max.saturating_sub(batch.bytes());
        if batch.is_empty() {
            return Some(Room { frames, bytes, files });
        }
        let bytes = if batch.sends_packed() { bytes.min(sent) } else { bytes };
        (frames > 0 && files > 0 && sent > 0 && bytes > 0).then_some(Room { frames, bytes, files })
    }
}

impl Scan {
    /// Begins a scan of `set`; also how many of it are cached now.
    pub fn begin(node: &Arc<Node>, opened: &Arc<Opened>, caller: &Caller, set: &RunSet) -> (Scan, u64) {
        // A dataset that was empty when it was opened may have files by now. If it can't be asked,
        // its frames tell.
        opened.layout().ok();
        let series = opened.series();
        let guard = node.store.scan(&series);
        let (native, alien) = node.store.holdings(&series);
        let cached = set.intersection(&native).union(&set.intersection(&alien));
        let missing = set.difference(&cached);
        let notes = Arc::new(Notes::begin(node, &series, &missing));
        let misses = Misses::new(node, opened, caller, missing, notes.clone());
        let count = cached.len();
        let cursor = Cursor { pages: Pages::new(cached), at: EntriesCursor::default() };
        let scan = Scan {
            opened: opened.clone(),
            series,
            who: caller.credentials.clone(),
            privileged: node.is_privileged(caller),
            cursor: Mutex::new(cursor),
            misses,
            notes,
            guard,
        };
        (scan, count)
    }

    /// The next batch. Empty exactly when everything has been handed out.
    pub fn next(&self, node: &Arc<Node>, ask: &ScanNext) -> Result<Reply> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let frames_max = usize::from(ask.frames_max).clamp(1, BATCH_FRAMES_MAX);
        let mut batch = Batch::new(self.privileged);
        // Users who get copies of packed frames get them in answers of a bounded length.
        let bytes_max = if self.privileged { ask.bytes_max } else { ask.bytes_max.min(COPIED_BYTES_MAX) };
        while batch.is_empty() {
            let room = Room { frames: frames_max, bytes: bytes_max, files: FDS_PER_MESSAGE_MAX };
            let group = self.next_cached(node, &mut cursor, &room);
            if group.is_empty() {
                break;
            }
            self.hand_out_cached(node, group, &mut batch);
        }
        while batch.is_empty() {
            let brought = self.misses.take(frames_max.min(FDS_PER_MESSAGE_MAX));
            if brought.is_empty() {
                break;
            }
            self.hand_out_brought(node, brought, ask.bytes_max, &mut batch);
        }
        if !batch.is_empty() {
            self.guard.goes_on();
        }
        Ok(batch.into_reply())
    }

    /// The whole scan in one reply, as far as it fits: for a call of random access. Empty exactly
    /// when everything has been handed out.
    pub fn all(&self, node: &Arc<Node>, bytes_max: u64) -> Reply {
        let begun = Instant::now();
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch = Batch::new(self.privileged);
        while let Some(room) = Room::left(&batch, bytes_max) {
            let group = self.next_cached(node, &mut cursor, &room);
            if group.is_empty() {
                break;
            }
            self.hand_out_cached(node, group, &mut batch);
        }
        while let Some(room) = Room::left(&batch, bytes_max) {
            if !batch.is_empty() && begun.elapsed() > READ_MANY_PATIENCE {
                break;
            }
            let brought = self.misses.take(room.frames.min(room.files));
            if brought.is_empty() {
                break;
            }
            self.hand_out_brought(node, brought, bytes_max, &mut batch);
        }
        batch.into_reply()
    }

    /// The next cached frames, as many as fit into a reply; none when all are through.
    fn next_cached(&self, node: &Node, cursor: &mut Cursor, room: &Room) -> Vec<Entry> {
        let Cursor { pages, at } = cursor;
        while let Some(wanted) = pages.wanted() {
            match node.store.entries_page(&self.series, wanted, at) {
                Ok(Some(entries)) => pages.add(entries),
                // Held when the scan began, and gone since.
                Ok(None) => pages.give_up().iter().for_each(|number| {
                    self.notes.add_gone(node, &self.series, number);
                    self.misses.add(number, Origin::Alien);
                }),
                Err(error) => {
                    node.cache_failed(&error.within(format!("look up frames of {}", self.opened.spelled())));
                    pages.give_up().iter().for_each(|number| self.add_around(number));
                }
            }
        }
        pages.next_group(room.frames, room.bytes, room.files)
    }

    fn hand_out_cached(&self, node: &Node, group: Vec<Entry>, batch: &mut Batch) {
        let looks = look(node, &self.opened, &self.who, &group);
        for (entry, look) in group.iter().zip(looks) {
            let number = entry.meta.number.get();
            match look {
                Look::Stale => self.drop_stale(node, entry),
                Look::Refused(error) => self.fail(node, number, &error, batch),
                Look::Fresh => self.hand_out_entry(node, entry, batch),
            }
        }
    }

    /// A copy that is not its source's any more is fetched anew.
    fn drop_stale(&self, node: &Node, entry: &Entry) {
        let number = entry.meta.number.get();
        self.notes.add(number, Absence::Stale);
        match node.store.drop_stale(&self.series, entry) {
            Ok(true) => node.counters.stale_dropped.add(1),
            Ok(false) => {}
            Err(error) => {
                if let Some(left_out) = may_say("drop stale", &self.opened.spelled()) {
                    tracing::warn!("drop the stale copy of frame {number}: {error}{left_out}");
                }
            }
        }
        self.misses.add(number, refetched_as(&entry.meta, entry.origin));
    }

    fn hand_out_entry(&self, node: &Node, entry: &Entry, batch: &mut Batch) {
        let number = entry.meta.number.get();
        let delivery = |origin| match origin {
            Origin::Native => Delivery::Native,
            Origin::Alien => Delivery::Alien,
        };
        if batch.cached_beside(node, entry, delivery(entry.origin)) {
            return;
        }
        match node.store.open_entry(&self.series, entry) {
            Ok(Some(frame)) => {
                // The slow way may have found the frame in another place.
                let in_place = frame.path == entry.path && frame.offset == entry.offset;
                let origin = delivery(frame.origin);
                let added = batch.cached(node, frame, in_place.then_some(entry), origin);
                if added.is_err() {
                    self.check_copy(node, number);
                }
            }
            Ok(None) => {
                self.notes.add_gone(node, &self.series, number);
                self.misses.add(number, Origin::Alien);
            }
            Err(error) => self.go_around(node, number, error),
        }
    }

    /// A frame that its caller does not get.
    fn fail(&self, node: &Node, number: u64, error: &Error, batch: &mut Batch) {
        if error.kind() == ErrorKind::PermissionDenied {
            self.notes.add(number, Absence::Denied);
        }
        batch.fail(node, number, error);
    }

    /// Why frames of the scan were not in the cache, so far.
    pub fn notes(&self, node: &Node, caller: &Caller) -> ScanNotes {
        self.notes.told(node, caller)
    }

    fn add_around(&self, number: u64) {
        self.notes.add(number, Absence::CacheFails);
        self.misses.add_around(number);
    }

    /// The cache has the frame and cannot give it: its source can.
    fn go_around(&self, node: &Node, number: u64, error: Error) {
        node.cache_failed(&error.within(format!("frame {number} of {}", self.opened.spelled())));
        self.add_around(number);
    }

    /// A copy's bytes were wrong when they were read: it goes if they still are, and the frame is
    /// brought again.
    fn check_copy(&self, node: &Node, number: u64) {
        let good = match node.store.verify(&self.series, number) {
            Ok(good) => good,
            Err(error) => return self.go_around(node, number, error),
        };
        if good != Some(true) {
            self.notes.add(number, Absence::Corrupt);
        }
        if good == Some(false) {
            node.counters.corrupt_dropped.add(1);
            if let Some(left_out) = may_say("dropped bad", &self.opened.spelled()) {
                tracing::warn!(
                    "frame {number} of {}: its copy does not match its checksum and was dropped; check the disk under {}{left_out}",
                    self.opened.spelled(),
                    node.cache_root
                );
            }
        }
        match after_check(good) {
            AfterCheck::Bring => self.misses.add(number, Origin::Alien),
            AfterCheck::Around => self.add_around(number),
        }
    }

    fn hand_out_brought(&self, node: &Node, brought: Vec<Brought>, bytes_max: u64, batch: &mut Batch) {
        let mut left = brought.into_iter();
        while let Some(next) = left.next() {
            if !batch.is_empty() && batch.bytes() >= bytes_max {
                self.misses.give_back(std::iter::once(next).chain(left).collect());
                return;
            }
            let number = next.number;
            let handed = next.what.result.and_then(|way| self.hand_out_way(node, number, way, batch));
            if let Err(error) = handed {
                self.fail(node, number, &error, batch);
            }
        }
    }

    fn hand_out_way(&self, node: &Node, number: u64, way: Way, batch: &mut Batch) -> Result<()> {
        let opened = &self.opened;
        match way {
            Way::Cached(proof) => {
                if proof.is_lapsed(now_ns()) && !opened.viewer.is_own() {
                    // The reader took its time; its rights may have changed meanwhile.
                    opened.open_source(&opened.source(number)?, number)?;
                }
                let copy = node.store.open_frame(&self.series, number).unwrap_or_else(|error| {
                    node.cache_failed(&error.within(format!("frame {number} of {}", opened.spelled())));
                    None
                });
                match copy {
                    Some(frame) if proof.covers(node.config.validate, &frame.meta) => {
                        if batch.cached(node, frame, None, Delivery::Fetched).is_err() {
                            self.check_copy(node, number);
                        }
                        Ok(())
                    }
                    // Another version than the user's rights have opened.
                    Some(_) => {
                        match node.store.entry(&self.series, number)? {
                            Some(entry) if !proof.covers(node.config.validate, &entry.meta) => {
                                // Another reader brought it, and its source grew in between.
                                let is_frame =
                                    opened.told_layout().is_some_and(|layout| layout.trajectory().is_some());
                                let grew =
                                    is_frame && may_have_grown(&entry.meta, &entry.source, &proof.stat);
                                match grew && Comparison::new(node, opened).is_same(&entry)? {
                                    true => self.hand_out_entry(node, &entry, batch),
                                    false => self.drop_stale(node, &entry),
                                }
                            }
                            _ => self.misses.add(number, Origin::Alien),
                        }
                        Ok(())
                    }
                    // Dropped between its fetch and now, by hand or by a disk that lost it.
                    None => {
                        let source = opened.source(number)?;
                        let file = opened.open_source(&source, number)?;
                        let way = crate::misses::without_room(opened, source, number, file)?;
                        self.hand_out_way(node, number, way, batch)
                    }
                }
            }
            Way::ReadThrough(source, file) => batch.read_through(node, opened, &source, number, &*file),
            Way::Inline(source, bytes) => {
                batch.inline(node, opened, &source, number, bytes);
                Ok(())
            }
        }
    }
}
