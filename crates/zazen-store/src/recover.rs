//! Makes usable what a crash, a flipped bit or a person left.
//!
//! Opening a dataset reads its logs once and stats only its segments: a frame's file is looked at
//! when it is opened. After a stop without [`crate::Store::sync`] the dataset's tree is walked too,
//! because frames whose record was lost would take room that nobody counts.

use crate::dataset::{Dataset, Index, Lookup, Side, Writer};
use crate::log::Log;
use crate::names::Names;
use crate::open_files::OpenFiles;
use crate::own_file::set_aside;
use crate::record::{FileKind, Record, RecordOp, SourceRef, Storage};
use crate::room::Room;
use crate::segments::{self, SegmentWriter};
use crate::state::State;
use crate::types::{EntriesCursor, RecoveryReport};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};
use zazen_core::limits::OWN_DIR;
use zazen_core::{ErrorKind, Origin, RelPath, Result, RunSet};
use zazen_env::{Disk, DiskPath};

/// Blocks read at once where a whole log is read.
const WALK_BLOCKS: u64 = 1024;

/// The file is damaged, rather than unreadable at the moment.
fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt | ErrorKind::Unsupported)
}

impl<D: Disk> Dataset<D> {
    /// Opens a dataset. What can't be read is set aside and reported; the frames it spoke of become
    /// misses. The second result says that frames were lost, so that the tree must be walked.
    pub(crate) fn open(
        path: RelPath,
        disk: Arc<D>,
        files: Arc<OpenFiles<D::File>>,
        room: Arc<Room>,
        temporaries: Arc<AtomicU64>,
        report: &mut RecoveryReport,
    ) -> Result<(Dataset<D>, bool)> {
        let mut dataset = Dataset::empty(path, disk, files, room, temporaries);
        for folder in ["pieces", "segments"] {
            dataset.disk.check_folders(&DiskPath::own(&dataset.path, folder))?;
        }
        let mut index = Index::empty();
        let mut damaged = false;
        index.state = match State::load(&*dataset.disk, &dataset.path) {
            Err(error) if is_damage(error.kind()) => {
                report.problems.push(set_aside(&*dataset.disk, &State::path(&dataset.path), &error)?);
                damaged = true;
                Arc::default()
            }
            other => Arc::new(other?),
        };
        index.state_bytes = dataset.disk.file_len(&State::path(&dataset.path))?.unwrap_or(0);
        index.names = match Names::open(&*dataset.disk, &dataset.files, &dataset.names_path()) {
            Err(error) if is_damage(error.kind()) => {
                report.problems.push(set_aside(&*dataset.disk, &dataset.names_path(), &error)?);
                damaged = true;
                Names::empty()
            }
            other => other?,
        };
        let mut twice = Vec::new();
        for origin in [Origin::Native, Origin::Alien] {
            let opened = match dataset.open_log(&mut index, origin) {
                Err(error) if is_damage(error.kind()) => {
                    report.problems.push(set_aside(&*dataset.disk, &dataset.log_path(origin), &error)?);
                    index.forget(origin);
                    damaged = true;
                    (0, false)
                }
                other => other?,
            };
            damaged |= opened.0 > 0;
            report.log_bytes_cut += opened.0;
            if opened.1 {
                twice.push(origin);
            }
        }
        if !twice.is_empty() {
            // The counts of these frames are wrong. A rewritten log has each number once.
            let owed = index.take_owed();
            dataset.room.settle(&dataset.path, 0, index.footprint(), &owed);
            dataset.index = RwLock::new(index);
            for origin in twice {
                dataset.rewrite(&mut dataset.lock_writer(), origin)?;
            }
            let (bytes, owned) = {
                let index = dataset.read_index();
                (index.footprint(), index.owners_gone())
            };
            dataset.room.settle(&dataset.path, bytes, 0, &owned);
            let Dataset { path, disk, files, room, temporaries, .. } = dataset;
            let (dataset, _) = Dataset::open(path, disk, files, room, temporaries, report)?;
            return Ok((dataset, true));
        }
        dataset.last_use = AtomicU64::new(index.state.last_use);
        let next_segment = dataset.open_segments(&mut index)?;
        dataset.writer =
            Mutex::new(Writer { segments: SegmentWriter::new(next_segment, dataset.files.clone()) });
        let owed = index.take_owed();
        dataset.room.settle(&dataset.path, 0, index.footprint(), &owed);
        dataset.index = RwLock::new(index);
        let mut writer = dataset.lock_writer();
        report.frames_dropped += dataset.natives_win(&mut writer)?;
        drop(writer);
        let index = dataset.read_index();
        report.frames += index.native.live.len() + index.alien.live.len();
        drop(index);
        Ok((dataset, damaged))
    }

    /// Opens one log into the index: (bytes cut, whether a number was put twice).
    fn open_log(&self, index: &mut Index<D::File>, origin: Origin) -> Result<(u64, bool)> {
        let kind = if origin == Origin::Native { FileKind::NativeLog } else { FileKind::AlienLog };
        let mut twice = false;
        let (log, cut) = Log::open(&*self.disk, &self.files, &self.log_path(origin), kind, |record| {
            let frames = match record.op {
                RecordOp::Put => {
                    twice |= !index.enter(origin, record);
                    1
                }
                RecordOp::Remove => {
                    twice |= !index.leave(origin, record);
                    -1
                }
            };
            if let Storage::Packed(address) = record.storage {
                index.segment_changed(segments::locate(address).0, None, frames);
            }
        })?;
        if cut > 0 {
            tracing::warn!(
                "{}: cut {cut} bytes behind its last good record; the frames they spoke of are fetched again",
                self.log_path(origin)
            );
        }
        index.side_mut(origin).log = log;
        Ok((cut, twice))
    }

    /// Takes stock of the segment files, and removes those without a live frame. Returns the next
    /// free number.
    fn open_segments(&self, index: &mut Index<D::File>) -> Result<u64> {
        let folder = segments::dir(&self.path);
        let mut next = index.segments.last_key_value().map_or(0, |(last, _)| last + 1);
        for (name, is_dir) in self.disk.list(&folder)? {
            let Some(number) = name.parse().ok().filter(|_| !is_dir) else { continue };
            next = next.max(number + 1);
            let path = folder.child(&name);
            if index.segments.get(&number).is_some_and(|segment| segment.frames > 0) {
                let len = self.disk.file_len(&path)?.unwrap_or(0);
                index.segment_changed(number, Some(len), 0);
            } else {
                self.disk.remove(&path)?;
            }
        }
        let empty: Vec<u64> =
            index.segments.iter().filter(|(_, used)| used.frames == 0).map(|(n, _)| *n).collect();
        empty.into_iter().for_each(|number| index.segment_gone(number));
        Ok(next)
    }

    /// Drops aliens that are natives too: what a crash in the middle of a promotion leaves. Returns
    /// how many.
    fn natives_win(&self, writer: &mut Writer<D::File>) -> Result<u64> {
        let both = {
            let index = self.read_index();
            if index.native.live.is_disjoint(&index.alien.live) {
                return Ok(0);
            }
            index.native.live.intersection(&index.alien.live)
        };
        let mut cursor = EntriesCursor { in_aliens: true, ..EntriesCursor::default() };
        let mut twice: Vec<Record> = Vec::new();
        while let Some(page) = self.page(&both, &mut cursor, WALK_BLOCKS)? {
            twice.extend(page.into_iter().map(|found| found.record));
        }
        for record in &mut twice {
            self.update(|index| index.leave(Origin::Alien, record));
            let native = self.find(record.meta.number.get())?;
            let shared = matches!(&native, Lookup::Here(native) if self.same_place(&native.record, record)?);
            match record.storage {
                // The promotion counted the frame twice in its segment.
                Storage::Packed(address) if shared => {
                    self.update(|index| index.segment_changed(segments::locate(address).0, None, -1));
                }
                _ if shared => {}
                _ => self.remove_storage(writer, record)?,
            }
            record.op = RecordOp::Remove;
        }
        self.append(writer, Origin::Alien, &twice, |_| {})?;
        Ok(both.len())
    }

    /// Whether two records of a frame name the same bytes on disk.
    fn same_place(&self, one: &Record, other: &Record) -> Result<bool> {
        Ok(one.storage == other.storage
            && (one.storage != Storage::Plain || self.source(one)? == self.source(other)?))
    }

    /// Walks the dataset's folders: removes what carries Zazen's mark and has no record, counts
    /// what doesn't carry it.
    pub(crate) fn sweep(&self, report: &mut RecoveryReport) -> Result<()> {
        let kept = self.own_paths()?;
        let mut folders = vec![DiskPath::of(&self.path)];
        while let Some(folder) = folders.pop() {
            for (name, is_dir) in self.disk.list(&folder)? {
                let path = folder.child(&name);
                if is_dir {
                    if name != OWN_DIR {
                        folders.push(path);
                    }
                } else if !kept.has(self, path.as_str()) {
                    self.sweep_file(&path, report)?;
                }
            }
        }
        let folder = DiskPath::own(&self.path, "pieces");
        for (name, _) in self.disk.list(&folder)? {
            if !name.parse().is_ok_and(|number| kept.pieces.contains(number)) {
                self.sweep_file(&folder.child(&name), report)?;
            }
        }
        Ok(())
    }

    fn sweep_file(&self, path: &DiskPath, report: &mut RecoveryReport) -> Result<()> {
        match self.disk.stat(path)? {
            Some(stat) if stat.is_file && stat.marked => {
                self.disk.remove(path)?;
                report.temporaries_removed += 1;
            }
            Some(_) => {
                tracing::warn!("{path} is not Zazen's; left alone. Keep other files out of the cache");
                report.foreign_files += 1;
            }
            None => {}
        }
        Ok(())
    }

    /// The files that live records speak of.
    fn own_paths(&self) -> Result<OwnPaths> {
        let mut own = OwnPaths::default();
        let (state, mut names, views) = {
            let index = self.read_index();
            let views = [index.native.log.view(), index.alien.log.view()];
            (index.state.clone(), index.names.reader(), views)
        };
        for view in views.into_iter().flatten() {
            // The tombstones of one log say nothing about the frames of the other.
            let mut by_template = vec![RunSet::new(); state.templates.len()];
            let (mut pieces, mut named) = (RunSet::new(), BTreeMap::new());
            view.read_all(|record| {
                let (number, here) = (record.meta.number.get(), record.op == RecordOp::Put);
                match (record.storage, record.source) {
                    (Storage::Packed(_), _) => {}
                    (Storage::Piece, _) => put_or_remove(&mut pieces, number, here),
                    (Storage::Plain, SourceRef::Template(template)) => {
                        let set = by_template.get_mut(template as usize);
                        set.into_iter().for_each(|set| put_or_remove(set, number, here));
                    }
                    (Storage::Plain, SourceRef::Name(offset)) if here => _ = named.insert(number, offset),
                    (Storage::Plain, SourceRef::Name(_)) => _ = named.remove(&number),
                }
            })?;
            own.pieces = own.pieces.union(&pieces);
            own.by_template.resize_with(by_template.len(), RunSet::new);
            for (own, of_log) in own.by_template.iter_mut().zip(&by_template) {
                *own = own.union(of_log);
            }
            // In the order in which they lie in the file, because reads go through a window of it.
            let mut offsets: Vec<u64> = named.into_values().collect();
            offsets.sort_unstable();
            for offset in offsets {
                if let Some(source) = names.read(offset)? {
                    own.by_name.insert(self.plain_path(&source)?.as_str().to_owned());
                }
            }
        }
        Ok(own)
    }
}

fn put_or_remove(set: &mut RunSet, number: u64, here: bool) {
    if here {
        set.insert(number);
    } else {
        set.remove(number);
    }
}

impl<F: zazen_env::DiskFile> Index<F> {
    /// Forgets all frames of `origin`, whose log can't be read.
    fn forget(&mut self, origin: Origin) {
        *self.side_mut(origin) = Side::empty();
        // The header of a log that is set aside was refused, so none of its records was counted.
    }
}

#[derive(Default)]
struct OwnPaths {
    by_template: Vec<RunSet>,
    by_name: BTreeSet<String>,
    pieces: RunSet,
}

impl OwnPaths {
    fn has<D: Disk>(&self, dataset: &Dataset<D>, path: &str) -> bool {
        if self.by_name.contains(path) {
            return true;
        }
        let prefix = dataset.path.as_str();
        let Some(name) = path.strip_prefix(prefix).map(|rest| rest.trim_start_matches('/')) else {
            return false;
        };
        let state = dataset.read_index().state.clone();
        state.templates.iter().zip(&self.by_template).any(|(template, numbers)| {
            template.number(name).is_some_and(|number| numbers.contains(number.get()))
        })
    }
}
