//! One dataset's frames: what is in memory, and the ways to change it.
//!
//! Locks: `writer` is held by whoever changes the dataset, over its disk operations; `index` only
//! for changes of memory, so that readers never wait for a disk. Order: `writer`, then `index`,
//! then the room's account. Invariant: what the index shows is on disk, data first, then name, then
//! record.

use crate::fences::Fences;
use crate::log::{Log, LogView};
use crate::names::{Names, NamesReader};
use crate::open_files::OpenFiles;
use crate::own_file::{ignore_absent, temporary};
use crate::record::{FileKind, Record, RecordOp, SourceRef, Storage};
use crate::room::{Room, on_disk};
use crate::segments::{self, SegmentTable, SegmentWriter};
use crate::state::State;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard};
use zazen_core::{FrameNo, Origin, RelPath, Result, RunSet, Source};
use zazen_env::{Disk, DiskPath};
use zazen_frames::quota::Owners;

/// The frames of one origin.
pub(crate) struct Side<F> {
    pub(crate) live: Arc<RunSet>,
    pub(crate) log: Log<F>,
    /// Bytes on disk of frames in files of their own.
    pub(crate) file_bytes: u64,
    /// Bytes of packed frames.
    pub(crate) packed_bytes: u64,
}

impl<F: zazen_env::DiskFile> Side<F> {
    pub(crate) fn empty() -> Side<F> {
        Side { live: Arc::default(), log: Log::empty(1), file_bytes: 0, packed_bytes: 0 }
    }

    /// Dead records: those of frames that were dropped or replaced.
    pub(crate) fn dead(&self) -> u64 {
        self.log.records() - self.live.len()
    }
}

/// What is in memory of a dataset.
pub(crate) struct Index<F> {
    pub(crate) native: Side<F>,
    pub(crate) alien: Side<F>,
    pub(crate) names: Names<F>,
    pub(crate) segments: SegmentTable,
    pub(crate) segment_bytes: u64,
    pub(crate) state: Arc<State>,
    pub(crate) state_bytes: u64,
    /// Who owns how much of the frames.
    pub(crate) owners: Owners,
    /// Changes of `owners` that the ledger has not got yet.
    owed: Vec<(u32, i64)>,
}

impl<F: zazen_env::DiskFile> Index<F> {
    pub(crate) fn empty() -> Index<F> {
        Index {
            native: Side::empty(),
            alien: Side::empty(),
            names: Names::empty(),
            segments: SegmentTable::new(),
            segment_bytes: 0,
            state: Arc::default(),
            state_bytes: 0,
            owners: Owners::default(),
            owed: Vec::new(),
        }
    }

    pub(crate) fn side(&self, origin: Origin) -> &Side<F> {
        match origin {
            Origin::Native => &self.native,
            Origin::Alien => &self.alien,
        }
    }

    pub(crate) fn side_mut(&mut self, origin: Origin) -> &mut Side<F> {
        match origin {
            Origin::Native => &mut self.native,
            Origin::Alien => &mut self.alien,
        }
    }

    /// Bytes on disk.
    pub(crate) fn footprint(&self) -> u64 {
        let files = self.native.file_bytes + self.alien.file_bytes + self.segment_bytes;
        let logs = on_disk(self.native.log.bytes()) + on_disk(self.alien.log.bytes());
        files + logs + on_disk(self.names.bytes()) + on_disk(self.state_bytes)
    }

    /// Adds the frame of a record: enters its number and counts its bytes.
    pub(crate) fn enter(&mut self, origin: Origin, record: &Record) -> bool {
        let side = self.side_mut(origin);
        let entered = Arc::make_mut(&mut side.live).insert(record.meta.number.get());
        if entered {
            let bytes = bytes_of(record);
            match record.storage {
                Storage::Packed(_) => side.packed_bytes += bytes,
                Storage::Plain | Storage::Piece => side.file_bytes += bytes,
            }
            self.owe(record.meta.uid, i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        entered
    }

    /// Removes the frame of a record. The caller accounts for its segment.
    pub(crate) fn leave(&mut self, origin: Origin, record: &Record) -> bool {
        let side = self.side_mut(origin);
        let left = Arc::make_mut(&mut side.live).remove(record.meta.number.get());
        if left {
            let taken = match record.storage {
                Storage::Packed(_) => &mut side.packed_bytes,
                Storage::Plain | Storage::Piece => &mut side.file_bytes,
            };
            let bytes = bytes_of(record);
            *taken = taken.saturating_sub(bytes);
            self.owe(record.meta.uid, -i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        left
    }

    fn owe(&mut self, uid: u32, bytes: i64) {
        self.owners.change(uid, bytes);
        match self.owed.iter_mut().find(|(owner, _)| *owner == uid) {
            Some((_, owed)) => *owed += bytes,
            None => self.owed.push((uid, bytes)),
        }
    }

    /// What the ledger has to hear of owners.
    pub(crate) fn take_owed(&mut self) -> Vec<(u32, i64)> {
        std::mem::take(&mut self.owed)
    }

    /// What the ledger has to hear if all of this is gone.
    pub(crate) fn owners_gone(&self) -> Vec<(u32, i64)> {
        let gone = |&(uid, bytes): &(u32, u64)| (uid, -i64::try_from(bytes).unwrap_or(i64::MAX));
        self.owners.all().iter().map(gone).collect()
    }

    /// Adds the frame of a record that was removed with its storage.
    fn enter_again(&mut self, origin: Origin, record: &Record) {
        self.enter(origin, record);
        if let Storage::Packed(address) = record.storage {
            let segment = segments::locate(address).0;
            if self.segments.contains_key(&segment) {
                self.segment_changed(segment, None, 1);
            }
        }
    }

    /// Notes that segment `number` is `len` bytes long now and holds `frames` more (or fewer)
    /// frames.
    pub(crate) fn segment_changed(&mut self, number: u64, len: Option<u64>, frames: i64) {
        let entry = self.segments.entry(number).or_default();
        let before = on_disk(entry.len);
        entry.len = len.unwrap_or(entry.len);
        entry.frames = entry.frames.saturating_add_signed(frames);
        self.segment_bytes = self.segment_bytes + on_disk(entry.len) - before;
    }

    pub(crate) fn segment_gone(&mut self, number: u64) {
        if let Some(gone) = self.segments.remove(&number) {
            self.segment_bytes -= on_disk(gone.len);
        }
    }

    /// Keeps its files open for their readers: they are about to be removed.
    pub(crate) fn pin(&self) -> Result<()> {
        self.native.log.pin()?;
        self.alien.log.pin()?;
        self.names.pin()
    }

    pub(crate) fn fence_bytes(&self) -> usize {
        [&self.native, &self.alien].iter().map(|side| Fences::heap_bytes(&side.log.fences)).sum()
    }
}

/// Bytes that the frame of a record takes: on disk, or of its segment.
fn bytes_of(record: &Record) -> u64 {
    match record.storage {
        Storage::Packed(_) => record.meta.length,
        Storage::Plain | Storage::Piece => on_disk(record.meta.length),
    }
}

/// What only the writer needs.
pub(crate) struct Writer<F> {
    pub(crate) segments: SegmentWriter<F>,
}

/// A frame's record and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) origin: Origin,
    pub(crate) index: u64,
    pub(crate) record: Record,
}

/// What a look-up says.
pub(crate) enum Lookup {
    Absent,
    Here(Found),
    /// The index has the number, but its record can't be read.
    Damaged(Origin),
}

/// One dataset of a store; see the module.
pub(crate) struct Dataset<D: Disk> {
    pub(crate) path: RelPath,
    pub(crate) disk: Arc<D>,
    pub(crate) files: Arc<OpenFiles<D::File>>,
    pub(crate) room: Arc<Room>,
    pub(crate) temporaries: Arc<AtomicU64>,
    pub(crate) last_use: AtomicU64,
    /// Blocks that look-ups read in vain since the logs were last rewritten.
    pub(crate) wasted_reads: AtomicU64,
    pub(crate) index: RwLock<Index<D::File>>,
    pub(crate) writer: Mutex<Writer<D::File>>,
}

impl<D: Disk> Dataset<D> {
    /// A dataset without frames, in memory only.
    pub(crate) fn empty(
        path: RelPath,
        disk: Arc<D>,
        files: Arc<OpenFiles<D::File>>,
        room: Arc<Room>,
        temporaries: Arc<AtomicU64>,
    ) -> Dataset<D> {
        Dataset {
            path,
            disk,
            files: files.clone(),
            room,
            temporaries,
            last_use: AtomicU64::new(0),
            wasted_reads: AtomicU64::new(0),
            index: RwLock::new(Index::empty()),
            writer: Mutex::new(Writer { segments: SegmentWriter::new(0, files) }),
        }
    }

    pub(crate) fn read_index(&self) -> RwLockReadGuard<'_, Index<D::File>> {
        self.index.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes the index and adjusts the account to match.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut Index<D::File>) -> R) -> R {
        let mut index = self.index.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = index.footprint();
        let result = change(&mut index);
        let owed = index.take_owed();
        self.room.settle(&self.path, before, index.footprint(), &owed);
        result
    }

    pub(crate) fn lock_writer(&self) -> MutexGuard<'_, Writer<D::File>> {
        self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn new_temporary(&self) -> DiskPath {
        temporary(self.temporaries.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn own_dir(&self) -> DiskPath {
        DiskPath::own_dir(&self.path)
    }

    pub(crate) fn log_path(&self, origin: Origin) -> DiskPath {
        DiskPath::own(&self.path, if origin == Origin::Native { "native.log" } else { "alien.log" })
    }

    pub(crate) fn names_path(&self) -> DiskPath {
        DiskPath::own(&self.path, "names")
    }

    pub(crate) fn piece_path(&self, number: FrameNo) -> DiskPath {
        DiskPath::own(&self.path, "pieces").child(&number.to_string())
    }

    /// The path that the source would have in the cache.
    pub(crate) fn plain_path(&self, source: &Source) -> Result<DiskPath> {
        Ok(DiskPath::of(&self.path.join(source.path.as_str())?))
    }

    /// The file that holds a frame, and where the frame begins in it.
    pub(crate) fn file_of(&self, record: &Record, source: &Source) -> Result<(DiskPath, u64)> {
        Ok(match record.storage {
            Storage::Plain => (self.plain_path(source)?, 0),
            Storage::Piece => (self.piece_path(record.meta.number), 0),
            Storage::Packed(address) => {
                let (segment, offset) = segments::locate(address);
                (segments::path(&self.path, segment), offset)
            }
        })
    }

    pub(crate) fn absolute(&self, path: &DiskPath) -> PathBuf {
        self.disk.root().join(path.as_str())
    }

    /// Appends records to the log of `origin`, then makes them visible: `show` changes the index
    /// together with the log's length.
    pub(crate) fn append(
        &self,
        _writer: &mut Writer<D::File>,
        origin: Origin,
        records: &[Record],
        show: impl FnOnce(&mut Index<D::File>),
    ) -> Result<()> {
        if !self.read_index().side(origin).log.is_made() {
            let kind = if origin == Origin::Native { FileKind::NativeLog } else { FileKind::AlienLog };
            let made = Log::make(&*self.disk, &self.files, &self.log_path(origin), &self.own_dir(), kind)?;
            self.update(|index| index.side_mut(origin).log.adopt(made));
        }
        let view: Option<LogView<D::File>> = self.read_index().side(origin).log.view();
        if let Some(view) = view {
            view.append(records)?;
        }
        self.update(|index| {
            let numbers = records.iter().map(|record| record.meta.number.get());
            index.side_mut(origin).log.appended(numbers);
            show(index);
        });
        Ok(())
    }

    /// How a record names `source`. Adds a template or an entry of the names file if needed.
    pub(crate) fn source_ref(&self, source: &Source, number: FrameNo) -> Result<SourceRef> {
        let (state, names) = {
            let index = self.read_index();
            (index.state.clone(), index.names.clone())
        };
        if let Some(template) = state.template_of(source, number) {
            return Ok(SourceRef::Template(template));
        }
        if let Some(template) = state.new_template(source, number) {
            let added = state.templates.len() as u32;
            self.change_state(|state| state.templates.push(template))?;
            return Ok(SourceRef::Template(added));
        }
        let (names, offset) =
            names.append(&*self.disk, &self.files, &self.names_path(), &self.own_dir(), source)?;
        self.update(|index| index.names = names);
        Ok(SourceRef::Name(offset))
    }

    /// Changes the state, durably; the caller holds the writer.
    pub(crate) fn change_state(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = State::clone(&self.read_index().state);
        change(&mut state);
        let bytes = state.save(&*self.disk, &self.path, &self.new_temporary())?;
        self.update(|index| (index.state, index.state_bytes) = (Arc::new(state), bytes));
        Ok(())
    }

    /// The source of a record; `None` if it can't be read any more.
    pub(crate) fn source_of(
        state: &State,
        names: &mut NamesReader<D::File>,
        record: &Record,
    ) -> Result<Option<Source>> {
        match record.source {
            SourceRef::Name(offset) => names.read(offset),
            SourceRef::Template(number) => Ok(state.templates.get(number as usize).and_then(|template| {
                let path = RelPath::new(&template.name(record.meta.number)).ok()?;
                Some(Source { path, offset: 0, length: None })
            })),
        }
    }

    /// The source of one record.
    pub(crate) fn source(&self, record: &Record) -> Result<Option<Source>> {
        let (state, mut names) = {
            let index = self.read_index();
            (index.state.clone(), index.names.reader())
        };
        Dataset::<D>::source_of(&state, &mut names, record)
    }

    /// Removes frames: first from the index, so that nobody asks for them, then their files, then
    /// by tombstones. A crash or an error on the way leaves records without files, which are
    /// misses. If the log does not take the tombstones, the frames are in the index again, as they
    /// will be after the next start.
    pub(crate) fn remove(
        &self,
        writer: &mut Writer<D::File>,
        origin: Origin,
        records: &[Record],
    ) -> Result<()> {
        let mut gone = Vec::with_capacity(records.len());
        self.update(|index| {
            gone.extend(records.iter().filter(|record| index.leave(origin, record)).cloned());
        });
        let mut removed = Ok(());
        for record in &gone {
            removed = removed.and(self.remove_storage(writer, record));
        }
        if gone.is_empty() {
            return removed;
        }
        let tombstone = |record: &Record| Record { op: RecordOp::Remove, ..record.clone() };
        let tombstones: Vec<Record> = gone.iter().map(tombstone).collect();
        let appended = self.append(writer, origin, &tombstones, |_| {});
        if appended.is_err() {
            self.update(|index| gone.iter().for_each(|record| index.enter_again(origin, record)));
        }
        appended.and(removed)
    }

    /// Removes a frame's bytes; the caller removes or replaces its record.
    pub(crate) fn remove_storage(&self, writer: &mut Writer<D::File>, record: &Record) -> Result<()> {
        let path = match record.storage {
            Storage::Packed(address) => {
                let (segment, _) = segments::locate(address);
                let empty = self.update(|index| {
                    index.segment_changed(segment, None, -1);
                    index.segments.get(&segment).is_some_and(|segment| segment.frames == 0)
                });
                return if empty { self.remove_segment(writer, segment) } else { Ok(()) };
            }
            Storage::Piece => self.piece_path(record.meta.number),
            Storage::Plain => match self.source(record)? {
                Some(source) => self.plain_path(&source)?,
                None => return Ok(()),
            },
        };
        self.room.removed(ignore_absent(self.disk.remove(&path)))
    }

    fn remove_segment(&self, writer: &mut Writer<D::File>, segment: u64) -> Result<()> {
        writer.segments.close(segment);
        self.update(|index| index.segment_gone(segment));
        self.room.removed(ignore_absent(self.disk.remove(&segments::path(&self.path, segment))))
    }
}

/// A dataset as people know it: its directory, and its files where it is a series.
pub(crate) fn shown(dataset: &RelPath) -> String {
    match dataset.series_parts() {
        Some((directory, files)) => format!("{directory} ({files})"),
        None => dataset.to_string(),
    }
}
