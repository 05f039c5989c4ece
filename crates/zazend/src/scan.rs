//! One scan: hands out a set of frames, each once. `zazen_frames::hand_out` decides the order, and
//! what becomes of a copy that cannot be handed out.
//!
//! Invariants:
//! - Memory does not grow with the set: descriptions of cached frames come from the store page by
//!   page.
//! - The store does not evict the dataset for want of room while the scan goes on.
//! - While the backing store does not answer, copies are handed out unchecked; to other users than
//!   the daemon's own as `zazen_frames::look` allows.
//! - If a source is gone although its dataset's directory is there, it was deleted: its frame is
//!   `NotFound`. The copy stays until it is evicted. If the same file comes back, the copy counts
//!   again.

use crate::batch::Batch;
use crate::clock::now_ns;
use crate::grown::Comparison;
use crate::look::{Look, look};
use crate::misses::{Brought, Misses, Way};
use crate::node::Node;
use crate::notes::Notes;
use crate::opened::OpenedDataset;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use zazen_call::{Caller, Line, Reply, may_say};
use zazen_core::limits::{BATCH_FRAMES_MAX, FDS_PER_MESSAGE_MAX, READ_MANY_FRAMES_MAX, READ_MANY_SENT_MAX};
use zazen_core::{Credentials, Error, ErrorKind, Origin, RelPath, Result, RunSet};
use zazen_frames::absence::Absence;
use zazen_frames::hand_out::{self, Action, Described, Event, HandOut, Handed};
use zazen_frames::messages::{Delivery, ScanNext};
use zazen_frames::misses::Wanted;
use zazen_frames::scan::{AfterCheck, Proof, after_check, refetched_as};
use zazen_frames::scan_record::ScanNotes;
use zazen_frames::stale::may_have_grown;
use zazen_store::{CachedFrame, PageCursor, ScanGuards};

/// Bytes of packed frames that an answer copies at most, beside its first frame.
const COPIED_BYTES_MAX: u64 = 16 << 20;
/// Up to so many frames of a call of random access, the bytes of small ones are sent.
const FEW_FRAMES: u64 = 4;
/// A look at a group of frames that takes longer than this, and than this for each of them, waits
/// for the disk of the backing store.
const LONG_LOOK: Duration = Duration::from_micros(50);
const LONG_LOOK_OF_ONE: Duration = Duration::from_micros(3);
/// A call of random access answers what it has after this time.
const READ_MANY_PATIENCE: Duration = Duration::from_secs(5);

/// A scan under way, of one connection.
pub struct Scan {
    opened: Arc<OpenedDataset>,
    /// The cache's name for what is scanned.
    series: RelPath,
    who: Credentials,
    privileged: bool,
    cursor: Mutex<Cursor>,
    misses: Misses,
    /// Frames that were brought again, because their copies were replaced meanwhile.
    again: Mutex<RunSet>,
    notes: Arc<Notes>,
    guard: ScanGuards,
}

/// Where the scan is in the cached frames.
struct Cursor {
    order: HandOut<CachedFrame>,
    at: PageCursor,
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
    /// Begins a scan of `set`; also how many of it are cached now. The caller has looked for the
    /// dataset's layout; if it can't be had, its frames tell.
    pub fn begin(
        node: &Arc<Node>,
        opened: &Arc<OpenedDataset>,
        caller: &Caller,
        set: &RunSet,
    ) -> (Scan, u64) {
        Scan::begin_noting(node, opened, caller, set, Arc::default())
    }

    /// As [`Scan::begin`]; `notes` takes the reasons why frames are not handed out from the cache.
    pub fn begin_noting(
        node: &Arc<Node>,
        opened: &Arc<OpenedDataset>,
        caller: &Caller,
        set: &RunSet,
        notes: Arc<Notes>,
    ) -> (Scan, u64) {
        let series = opened.series();
        let guard = node.store.scan(&series);
        let (native, alien) = node.store.holdings(&series);
        let cached = set.intersection(&native).union(&set.intersection(&alien));
        let missing = set.difference(&cached);
        notes.more(node, &series, &missing);
        let misses = Misses::new(node, opened, caller, missing, notes.clone());
        let count = cached.len();
        let cursor = Cursor { order: HandOut::new(cached), at: PageCursor::default() };
        let scan = Scan {
            opened: opened.clone(),
            series,
            who: caller.credentials.clone(),
            privileged: node.is_privileged(caller),
            cursor: Mutex::new(cursor),
            misses,
            again: Mutex::default(),
            notes,
            guard,
        };
        (scan, count)
    }

    /// The next batch. Empty exactly when everything has been handed out, or when the caller, at
    /// the other end of `line`, is gone.
    pub fn next(&self, node: &Arc<Node>, ask: &ScanNext, line: &Line) -> Result<Reply> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let frames_max = usize::from(ask.frames_max).clamp(1, BATCH_FRAMES_MAX);
        let mut batch = Batch::new(self.privileged);
        // Users who get copies of packed frames get them in answers of a bounded length.
        let bytes = if self.privileged { ask.bytes_max } else { ask.bytes_max.min(COPIED_BYTES_MAX) };
        let room = Room { frames: frames_max, bytes, files: FDS_PER_MESSAGE_MAX };
        self.fill(node, &mut cursor, &room, (ask.bytes_max, line), &mut batch);
        if !batch.is_empty() {
            self.guard.goes_on();
        }
        Ok(batch.into_reply())
    }

    /// The whole scan, of `frames` frames, in one batch, as far as it fits: for a call of random
    /// access. Empty exactly when everything has been handed out, or when the caller is gone.
    pub(crate) fn all(&self, node: &Arc<Node>, frames: u64, bytes_max: u64, line: &Line) -> Batch {
        let begun = Instant::now();
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch = match frames <= FEW_FRAMES {
            true => Batch::of_few(self.privileged),
            false => Batch::new(self.privileged),
        };
        while let Some(room) = Room::left(&batch, bytes_max) {
            if !batch.is_empty() && begun.elapsed() > READ_MANY_PATIENCE {
                break;
            }
            if !self.fill(node, &mut cursor, &room, (bytes_max, line), &mut batch) {
                break;
            }
        }
        batch
    }

    /// Adds the next frames to `batch`, as many as `room` has room for; whether there were any.
    fn fill(
        &self,
        node: &Arc<Node>,
        cursor: &mut Cursor,
        room: &Room,
        (bytes_max, line): (u64, &Line),
        batch: &mut Batch,
    ) -> bool {
        let before = batch.frames();
        let mut refusals = Vec::new();
        let mut actions = Vec::new();
        let mut event = Event::Next { frames_max: room.frames, bytes_max: room.bytes, files_max: room.files };
        loop {
            cursor.order.step(event, &mut actions);
            let mut answer = None;
            for action in actions.drain(..) {
                let entry = |at: usize| &cursor.order.group()[at];
                match action {
                    Action::Describe => answer = Some(Event::Described(self.describe(node, cursor))),
                    Action::Look => {
                        let begun = Instant::now();
                        let looks = look(node, &self.opened, &self.who, cursor.order.group());
                        let took_long = begun.elapsed() > LONG_LOOK + LONG_LOOK_OF_ONE * looks.len() as u32;
                        let (seen, why) = looks.into_iter().map(seen).unzip();
                        refusals = why;
                        answer = Some(match took_long {
                            true => Event::LookedLong(seen),
                            false => Event::Looked(seen),
                        });
                    }
                    Action::Announce { from, until } => {
                        let soon = cursor.order.behind().skip(from).take(until - from);
                        self.announce(soon);
                    }
                    Action::HandOut(at) => {
                        answer = Some(Event::Handed(self.hand_out(node, entry(at), batch)));
                    }
                    Action::Refuse(at) => {
                        if let Some(error) = refusals.get_mut(at).and_then(Option::take) {
                            self.fail(node, entry(at).meta.number.get(), &error, batch);
                        }
                        answer = Some(Event::Refused);
                    }
                    Action::DropStale(at) => {
                        self.drop_stale(node, entry(at));
                        answer = Some(Event::Dropped);
                    }
                    Action::Check(at) => {
                        answer = Some(match self.check_copy(node, entry(at).meta.number.get()) {
                            Ok(good) => Event::Checked(good),
                            Err(_) => Event::NotChecked,
                        });
                    }
                    Action::Want(wanted) => self.want(wanted),
                    Action::Take { frames_max } => {
                        let brought = self.misses.take(frames_max, &|| line.is_cut());
                        let any = !brought.is_empty();
                        self.hand_out_brought(node, brought, bytes_max, batch);
                        answer = Some(Event::Took { any, added: batch.frames() > before });
                    }
                    Action::Reply => return batch.frames() > before,
                }
            }
            event = answer.unwrap_or_else(|| unreachable!("a hand-out asks something or replies"));
        }
    }

    /// Tells the backing store of sources that will be looked at soon.
    fn announce<'a>(&self, soon: impl Iterator<Item = &'a CachedFrame>) {
        // Frames of one file need one look, which brings in little.
        let is_whole = |entry: &&CachedFrame| entry.source.offset == 0 && entry.source.length.is_none();
        let paths: Vec<_> = soon.filter(is_whole).map(|entry| entry.source.path.clone()).collect();
        self.opened.backing().will_look_beneath(&self.opened.at.beneath, &paths.into());
    }

    fn describe(&self, node: &Node, cursor: &mut Cursor) -> Described<CachedFrame> {
        let Cursor { order, at } = cursor;
        let Some(wanted) = order.wanted() else { return Described::Gone };
        match node.store.entries_page(&self.series, wanted, at) {
            Ok(Some(entries)) => Described::Page(entries),
            // They were there when the scan began.
            Ok(None) => {
                wanted.iter().for_each(|number| self.notes.add_gone(node, &self.series, number));
                Described::Gone
            }
            Err(error) => {
                node.cache_failed(&error.within(format!("look up frames of {}", self.opened.spelled())));
                Described::Failed
            }
        }
    }

    fn want(&self, wanted: Wanted) {
        if wanted.around {
            self.notes.add(wanted.number, Absence::CacheFails);
        }
        self.misses.add(wanted);
    }

    /// Brings a frame once more, whose copy was replaced while it was brought. The second time, its
    /// reader gets the source: others could replace the copy again and again.
    fn want_again(&self, number: u64, origin: Origin) {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        let around = !again.insert(number);
        self.want(Wanted { number, origin, around });
    }

    /// Drops a copy that does not stand for its source any more.
    fn drop_stale(&self, node: &Node, entry: &CachedFrame) {
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
    }

    fn hand_out(&self, node: &Node, entry: &CachedFrame, batch: &mut Batch) -> Handed {
        let delivery = |origin| match origin {
            Origin::Native => Delivery::Native,
            Origin::Alien => Delivery::Alien,
        };
        if batch.cached_beside(node, entry, delivery(entry.origin)) {
            return Handed::Added;
        }
        let number = entry.meta.number.get();
        match node.store.open_entry(&self.series, entry) {
            Ok(Some(frame)) => {
                // The slow way may have found the frame in another place.
                let in_place = frame.path == entry.path && frame.offset == entry.offset;
                let origin = delivery(frame.origin);
                let added = batch.cached(node, frame, in_place.then_some(entry), origin);
                if added.is_ok() { Handed::Added } else { Handed::Bad }
            }
            Ok(None) => {
                self.notes.add_gone(node, &self.series, number);
                Handed::Gone
            }
            Err(error) => {
                node.cache_failed(&error.within(format!("frame {number} of {}", self.opened.spelled())));
                Handed::Failed
            }
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

    /// Checks the bytes of a copy that were wrong when they were read; drops it if they still are.
    fn check_copy(&self, node: &Node, number: u64) -> Result<Option<bool>> {
        let good = node.store.verify(&self.series, number).inspect_err(|error| {
            let what = format!("frame {number} of {}: {error}", self.opened.spelled());
            node.cache_failed(&Error::new(error.kind(), what));
        })?;
        if good != Some(true) {
            self.notes.add(number, Absence::Corrupt);
        }
        if good == Some(false) {
            node.counters.corrupt_dropped.add(1);
            if let Some(left_out) = may_say("dropped bad", &self.opened.spelled()) {
                tracing::warn!(
                    "frame {number} of {}: its copy does not match its checksum and was dropped; \
                     check the disk under {}{left_out}",
                    self.opened.spelled(),
                    node.cache_root
                );
            }
        }
        Ok(good)
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
                    Some(frame) if proof.covers(node.config().validate, (&frame.meta, &frame.source)) => {
                        if batch.cached(node, frame, None, Delivery::Fetched).is_err() {
                            let good = self.check_copy(node, number);
                            let around = good.map_or(true, |good| after_check(good) == AfterCheck::Around);
                            self.want(Wanted { number, origin: Origin::Alien, around });
                        }
                        Ok(())
                    }
                    Some(_) => self.hand_out_another(node, number, batch),
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
    /// A copy was brought, but another one is in its place now: of another version than the user's
    /// rights have opened, or of another source with the same number.
    fn hand_out_another(&self, node: &Node, number: u64, batch: &mut Batch) -> Result<()> {
        let opened = &self.opened;
        // It may be newer: a push, or the copy of somebody who asked later. Only the source as it
        // is now tells.
        let source = opened.source(number)?;
        let file = opened.open_source(&source, number)?;
        let proof = Proof { source: source.clone(), stat: file.stat(), at_ns: now_ns() };
        let entry = match node.store.entry(&self.series, number)? {
            // Two sources that drive each other out of the cache would do so without end.
            Some(entry) if entry.source != source => {
                let way = crate::misses::without_room(opened, source, number, file)?;
                return self.hand_out_way(node, number, way, batch);
            }
            Some(entry) if !proof.covers(node.config().validate, (&entry.meta, &entry.source)) => entry,
            _ => {
                self.want_again(number, Origin::Alien);
                return Ok(());
            }
        };
        // Another reader brought it, and its source grew in between.
        let is_frame = opened.told_layout().is_some_and(|layout| layout.trajectory().is_some());
        let grew = is_frame && may_have_grown(&entry.meta, &entry.source, &proof.stat);
        let same = grew && Comparison::new(node, opened).is_same(&entry)?;
        match if same { self.hand_out(node, &entry, batch) } else { Handed::Gone } {
            Handed::Added => {}
            Handed::Gone if !same => {
                self.drop_stale(node, &entry);
                self.want_again(number, refetched_as(&entry.meta, entry.origin));
            }
            Handed::Gone => self.want_again(number, Origin::Alien),
            Handed::Bad | Handed::Failed => {
                self.want(Wanted { number, origin: Origin::Alien, around: true });
            }
        }
        Ok(())
    }
}

/// What a look says, for the order of the scan; and why the frame is refused, for its caller.
fn seen(look: Look) -> (hand_out::Look, Option<Error>) {
    match look {
        Look::Fresh => (hand_out::Look::Fresh, None),
        Look::Stale => (hand_out::Look::Stale, None),
        Look::Refused(error) => (hand_out::Look::Refused, Some(error)),
    }
}
