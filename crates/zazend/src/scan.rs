//! One scan: hands out a set of frames, each once, cached ones first and in storage order, misses as they arrive.
//!
//! Invariants: memory does not grow with the set (cached frames come from the store page by page, natives first,
//! each page in storage order); the dataset is not evicted while the scan lives; a copy that differs from its source
//! is dropped and fetched anew; while the backing store does not answer, copies are handed out unchecked.
//!
//! A source that is gone while the store answers and its dataset's directory is there was deleted: its frame is
//! `NotFound`, though the copy stays until it is evicted (should the file come back unchanged, it counts again).

use crate::config::Validate;
use crate::misses::{Brought, Misses, Way, denied};
use crate::node::{Node, Opened};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use zazen_backing::SourceStat;
use zazen_call::{Caller, Reply};
use zazen_core::limits::{BATCH_FRAMES_MAX, FDS_PER_MESSAGE_MAX};
use zazen_core::{Credentials, Error, ErrorKind, FrameMeta, Origin, RelPath, Result, RunSet, Source};
use zazen_store::{EntriesCursor, Entry, ScanGuard};
use zazen_wire::Message;
use zazen_wire::frames::{BatchEntry, Delivery, ScanBatch, ScanNext};

/// Folders whose permissions a scan remembers.
const FOLDERS_MAX: usize = 8192;

/// A scan under way, of one connection.
pub struct Scan {
    opened: Arc<Opened>,
    series: RelPath,
    who: Credentials,
    cursor: Mutex<Cursor>,
    misses: Misses,
    _guard: ScanGuard,
}

/// Where the scan is in the cached frames.
struct Cursor {
    /// Cached frames that the store has not described yet.
    left: RunSet,
    pages: EntriesCursor,
    page: VecDeque<Entry>,
    folders: HashMap<RelPath, bool>,
}

impl Scan {
    /// Begins a scan of `set`; also how many of it are cached now.
    pub fn begin(node: &Arc<Node>, opened: &Arc<Opened>, caller: &Caller, set: &RunSet) -> (Scan, u64) {
        // A dataset that was empty when it was opened may have files by now. If it can't be asked, its frames tell.
        opened.layout().ok();
        let series = opened.series();
        let guard = node.store.scan(&series);
        let (native, alien) = node.store.holdings(&series);
        let cached = set.intersection(&native).union(&set.intersection(&alien));
        let misses = Misses::new(node, opened, &caller.credentials, set.difference(&cached));
        let count = cached.len();
        let cursor = Cursor {
            left: cached,
            pages: EntriesCursor::default(),
            page: VecDeque::new(),
            folders: HashMap::new(),
        };
        let scan = Scan {
            opened: opened.clone(),
            series,
            who: caller.credentials.clone(),
            cursor: Mutex::new(cursor),
            misses,
            _guard: guard,
        };
        (scan, count)
    }

    /// The next batch. Empty exactly when everything has been handed out.
    pub fn next(&self, node: &Arc<Node>, ask: &ScanNext) -> Result<Reply> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let frames_max = usize::from(ask.frames_max).clamp(1, BATCH_FRAMES_MAX);
        let mut batch = Batch::default();
        while batch.entries.is_empty() {
            let group = self.next_cached(node, &mut cursor, frames_max, ask.bytes_max)?;
            if group.is_empty() {
                break;
            }
            self.hand_out_cached(node, &mut cursor, group, &mut batch);
        }
        while batch.entries.is_empty() {
            let brought = self.misses.take(frames_max.min(FDS_PER_MESSAGE_MAX));
            if brought.is_empty() {
                break;
            }
            self.hand_out_brought(node, brought, ask.bytes_max, &mut batch);
        }
        Ok(batch.into_reply())
    }

    /// Up to `frames_max` cached frames of together `bytes_max` bytes in as many files as a reply has room for, at least
    /// one; none when all are through.
    fn next_cached(
        &self,
        node: &Node,
        cursor: &mut Cursor,
        frames_max: usize,
        bytes_max: u64,
    ) -> Result<Vec<Entry>> {
        while cursor.page.is_empty() && !cursor.left.is_empty() {
            self.next_page(node, cursor)?;
        }
        let mut group: Vec<Entry> = Vec::new();
        let (mut bytes, mut files) = (0, 0);
        while let Some(entry) = cursor.page.pop_front() {
            bytes += entry.meta.length;
            let shares = group.last().is_some_and(|last| last.is_packed_with(&entry));
            files += usize::from(!shares);
            let full = bytes > bytes_max || group.len() >= frames_max || files > FDS_PER_MESSAGE_MAX;
            if !group.is_empty() && full {
                cursor.page.push_front(entry);
                break;
            }
            group.push(entry);
        }
        Ok(group)
    }

    fn next_page(&self, node: &Node, cursor: &mut Cursor) -> Result<()> {
        let dataset = &self.series;
        match node.store.entries_page(dataset, &cursor.left, &mut cursor.pages)? {
            Some(entries) => {
                let seen: RunSet = entries.iter().map(|entry| entry.meta.number.get()).collect();
                // A page may repeat frames when the store has rewritten its log meanwhile.
                let news = seen.intersection(&cursor.left);
                cursor.left = cursor.left.difference(&seen);
                cursor
                    .page
                    .extend(entries.into_iter().filter(|entry| news.contains(entry.meta.number.get())));
            }
            None => {
                // Held when the scan began, and gone since.
                let gone = std::mem::take(&mut cursor.left);
                gone.iter().for_each(|number| self.misses.add(node.config.fetchers, number));
            }
        }
        Ok(())
    }

    fn hand_out_cached(&self, node: &Node, cursor: &mut Cursor, group: Vec<Entry>, batch: &mut Batch) {
        let looks = self.look(node, &group);
        for (entry, look) in group.iter().zip(looks) {
            let number = entry.meta.number.get();
            match look {
                Look::Stale => {
                    let dropped = node.store.drop_frame(&self.series, number);
                    match dropped {
                        Ok(true) => node.counters.stale_dropped.add(1),
                        Ok(false) => {}
                        Err(error) => tracing::warn!("drop the stale copy of frame {number}: {error}"),
                    }
                    self.misses.add(node.config.fetchers, number);
                }
                Look::Deleted(error) => batch.fail(node, number, &error),
                Look::Fresh(stat) => self.hand_out_entry(node, cursor, entry, stat, batch),
            }
        }
    }

    fn hand_out_entry(
        &self,
        node: &Node,
        cursor: &mut Cursor,
        entry: &Entry,
        stat: Option<SourceStat>,
        batch: &mut Batch,
    ) {
        let number = entry.meta.number.get();
        // The source's present owner and mode count; the recorded ones where it can't be asked.
        let (uid, gid, mode) = match stat {
            Some(stat) => (stat.uid, stat.gid, stat.mode),
            None => (entry.meta.uid, entry.meta.gid, entry.meta.mode),
        };
        if !self.who.may_read(uid, gid, mode) || !self.may_enter(cursor, &entry.source) {
            node.counters.permission_denied.add(1);
            return batch.fail(node, number, &denied(&self.opened, number, &self.who));
        }
        let delivery = |origin| match origin {
            Origin::Native => Delivery::Native,
            Origin::Alien => Delivery::Alien,
        };
        if let Some(fd) = batch.shared_fd(entry) {
            let origin = delivery(entry.origin);
            return batch.cached_in(node, &entry.meta, entry.offset, &entry.path, fd, origin, true);
        }
        match node.store.open_entry(&self.series, entry) {
            Ok(Some(frame)) => {
                // The slow way may have found the frame in another place.
                let in_place = frame.path == entry.path && frame.offset == entry.offset;
                let origin = delivery(frame.origin);
                batch.cached(node, frame, origin);
                batch.last_entry = (in_place && entry.is_packed()).then(|| entry.clone());
            }
            Ok(None) => self.misses.add(node.config.fetchers, number),
            Err(error) => batch.fail(node, number, &error),
        }
    }

    /// A frame in a folder of its own may be read only by those who may search that folder.
    fn may_enter(&self, cursor: &mut Cursor, source: &Source) -> bool {
        let Some((folder, _)) = source.path.split().filter(|(folder, _)| !folder.is_root()) else {
            return true;
        };
        if let Some(known) = cursor.folders.get(&folder) {
            return *known;
        }
        let asked = self.opened.at.beneath.join(folder.as_str());
        let allowed = asked.and_then(|folder| self.opened.backing().may_search(&self.who, &folder));
        // Without an answer the frame's own owner and mode decide.
        let allowed = allowed.unwrap_or(true);
        if cursor.folders.len() < FOLDERS_MAX {
            cursor.folders.insert(folder, allowed);
        }
        allowed
    }

    /// Compares copies with their sources; one question to the store for the whole group.
    fn look(&self, node: &Node, group: &[Entry]) -> Vec<Look> {
        let unchecked = || group.iter().map(|_| Look::Fresh(None)).collect();
        if node.config.validate == Validate::Never {
            return unchecked();
        }
        let (asked, paths) = sources_of(group);
        if paths.is_empty() {
            return unchecked();
        }
        let beneath = &self.opened.at.beneath;
        let Ok(mut stats) = self.opened.backing().stat_beneath(beneath, &paths.into()) else {
            return unchecked();
        };
        if stats.iter().all(Result::is_err) && self.opened.backing().stat(beneath).is_err() {
            // Not a frame's but the dataset's directory is gone: rather a mount's trouble than deleted frames.
            return unchecked();
        }
        let verdict = |(entry, at): (&Entry, Option<usize>)| {
            let Some(stat) = at.and_then(|at| stats.get_mut(at)) else { return Look::Fresh(None) };
            match (stat, entry.meta.validator) {
                (Ok(stat), Some(validator)) if !validator.agrees_with(&stat.validator) => Look::Stale,
                // The copy's file is readable by path; it must not stay open to those whom the source now refuses.
                (Ok(stat), _) if entry.meta.mode & !stat.mode & 0o444 != 0 => Look::Stale,
                (Ok(stat), _) => Look::Fresh(Some(*stat)),
                (Err(error), _) if error.kind() == ErrorKind::NotFound => Look::Deleted(Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "frame {} of {}: its source {} was deleted",
                        entry.meta.number,
                        self.opened.spelled(),
                        entry.source.path
                    ),
                )),
                (Err(_), _) => Look::Fresh(None),
            }
        };
        group.iter().zip(asked).map(verdict).collect()
    }

    fn hand_out_brought(&self, node: &Node, brought: Vec<Brought>, bytes_max: u64, batch: &mut Batch) {
        let mut left = brought.into_iter();
        while let Some(next) = left.next() {
            if !batch.entries.is_empty() && batch.bytes >= bytes_max {
                self.misses.give_back(std::iter::once(next).chain(left).collect());
                return;
            }
            let number = next.number;
            let handed = next.result.and_then(|way| self.hand_out_way(node, number, way, batch));
            if let Err(error) = handed {
                batch.fail(node, number, &error);
            }
        }
    }

    fn hand_out_way(&self, node: &Node, number: u64, way: Way, batch: &mut Batch) -> Result<()> {
        let opened = &self.opened;
        match way {
            Way::Cached => match node.store.open_frame(&self.series, number)? {
                Some(frame) => {
                    let meta = &frame.meta;
                    if !self.who.may_read(meta.uid, meta.gid, meta.mode) {
                        return Err(denied(opened, number, &self.who));
                    }
                    batch.cached(node, frame, Delivery::Fetched);
                    Ok(())
                }
                // Dropped between its fetch and now, by hand or by a disk that lost it.
                None => {
                    let way = crate::misses::without_room(opened, opened.source(number)?, number)?;
                    match way {
                        Way::Cached => Err(Error::new(ErrorKind::Busy, "the frame was evicted; try again")),
                        way => self.hand_out_way(node, number, way, batch),
                    }
                }
            },
            Way::ReadThrough(source) => batch.read_through(node, opened, &source, number),
            Way::Inline(source, bytes) => {
                batch.inline(node, opened, &source, number, bytes);
                Ok(())
            }
        }
    }
}

/// The source files of `group`, each once, and for each frame which of them is its own; `None` for a frame that has
/// nothing to compare.
fn sources_of(group: &[Entry]) -> (Vec<Option<usize>>, Vec<RelPath>) {
    let mut paths: Vec<RelPath> = Vec::with_capacity(group.len());
    let mut shared: HashMap<&RelPath, usize> = HashMap::new();
    let mut add = |path: &RelPath| {
        paths.push(path.clone());
        paths.len() - 1
    };
    let is_whole = |source: &Source| source.offset == 0 && source.length.is_none();
    let asked = group.iter().map(|entry| {
        entry.meta.validator.as_ref()?;
        let path = &entry.source.path;
        // A frame that is all of its file has no other to share it with.
        Some(if is_whole(&entry.source) {
            add(path)
        } else {
            *shared.entry(path).or_insert_with(|| add(path))
        })
    });
    (asked.collect(), paths)
}

/// What comparing a copy with its source says.
enum Look {
    /// Equal, or it can't be asked (then without the source's stat).
    Fresh(Option<SourceStat>),
    /// The source changed.
    Stale,
    /// The source is gone.
    Deleted(Error),
}

/// A reply in the making.
#[derive(Default)]
struct Batch {
    entries: Vec<BatchEntry>,
    fds: Vec<OwnedFd>,
    bulk: Vec<u8>,
    bytes: u64,
    /// The entry whose file is the last of `fds`.
    last_entry: Option<Entry>,
}

impl Batch {
    fn into_reply(self) -> Reply {
        Reply { payload: ScanBatch { entries: self.entries }.encode(), fds: self.fds, bulk: self.bulk }
    }

    fn push_fd(&mut self, fd: OwnedFd) -> Option<u16> {
        self.last_entry = None;
        self.fds.push(fd);
        Some(self.fds.len() as u16 - 1)
    }

    /// The descriptor of the last file, if `entry` is packed in it too.
    fn shared_fd(&self, entry: &Entry) -> Option<u16> {
        let last = self.last_entry.as_ref().filter(|last| last.is_packed_with(entry))?;
        let at = self.fds.len().checked_sub(1)? as u16;
        (last.meta.uid, last.meta.gid, last.meta.mode)
            .eq(&(entry.meta.uid, entry.meta.gid, entry.meta.mode))
            .then_some(at)
    }

    fn fail(&mut self, node: &Node, number: u64, error: &Error) {
        node.counters.failed.add(1);
        self.entries.push(BatchEntry {
            number,
            delivery: Delivery::Failed,
            fd: None,
            offset: 0,
            length: 0,
            checksum: None,
            path: String::new(),
            error: Some((error.kind() as u32, error.to_string())),
            whole: false,
        });
    }

    fn cached(&mut self, node: &Node, frame: zazen_store::OpenFrame, delivery: Delivery) {
        let fd = self.fds.len() as u16;
        self.fds.push(frame.file.into());
        self.last_entry = None;
        self.cached_in(node, &frame.meta, frame.offset, &frame.path, fd, delivery, frame.packed);
    }

    fn cached_in(
        &mut self,
        node: &Node,
        meta: &FrameMeta,
        offset: u64,
        path: &Path,
        fd: u16,
        delivery: Delivery,
        packed: bool,
    ) {
        let counters = &node.counters;
        match delivery {
            Delivery::Native => {
                counters.native_reads.add(1);
                counters.native_bytes.add(meta.length);
            }
            Delivery::Alien => {
                counters.alien_reads.add(1);
                counters.alien_bytes.add(meta.length);
            }
            _ => counters.fetched_reads.add(1),
        }
        self.bytes += meta.length;
        self.entries.push(BatchEntry {
            number: meta.number.get(),
            delivery,
            fd: Some(fd),
            offset,
            length: meta.length,
            checksum: Some(meta.checksum),
            path: text(path),
            error: None,
            whole: !packed,
        });
    }

    fn read_through(&mut self, node: &Node, opened: &Opened, source: &Source, number: u64) -> Result<()> {
        let path = opened.at.beneath.join(source.path.as_str())?;
        let file = opened.backing().open(&path)?;
        let (offset, length) = crate::fetcher::extent_in(&*file, source, number, &opened.spelled())?;
        let fd = file.descriptor().ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("frame {number} of {}: no descriptor left", opened.spelled()))
        })?;
        node.counters.read_through.add(1);
        self.bytes += length;
        let fd = self.push_fd(fd);
        self.entries.push(BatchEntry {
            number,
            delivery: Delivery::ReadThrough,
            fd,
            offset,
            length,
            checksum: None,
            path: opened.at.root.spelled(&path),
            error: None,
            whole: source.offset == 0 && source.length.is_none(),
        });
        Ok(())
    }

    /// The bytes of inline frames follow each other in the bulk part in the order of the entries; `offset` is the
    /// place in the bulk part.
    fn inline(&mut self, node: &Node, opened: &Opened, source: &Source, number: u64, bytes: Vec<u8>) {
        node.counters.inline.add(1);
        self.bytes += bytes.len() as u64;
        let path = opened.at.beneath.join(source.path.as_str()).unwrap_or_default();
        self.entries.push(BatchEntry {
            number,
            delivery: Delivery::Inline,
            fd: None,
            offset: self.bulk.len() as u64,
            length: bytes.len() as u64,
            checksum: Some(zazen_wire::checksum::frame_checksum(&bytes)),
            path: opened.at.root.spelled(&path),
            error: None,
            whole: false,
        });
        self.bulk.extend_from_slice(&bytes);
    }
}

fn text(path: &Path) -> String {
    path.to_str().map_or_else(|| path.to_string_lossy().into_owned(), str::to_owned)
}
