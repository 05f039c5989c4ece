//! Taking a frame in: its bytes to an unfinished file (or to memory, if it will be packed), then
//! its name, then its record.
//!
//! Invariant: whatever fails, and wherever the process dies, nothing that counts is left of an
//! unfinished put.

use crate::counters::count;
use crate::dataset::{Dataset, Found, Lookup, Writer, shown};
use crate::record::{Record, RecordOp, Storage};
use crate::segments;
use crate::store::Store;
use crate::types::{EntriesCursor, Stored};
use std::sync::Arc;
use zazen_core::limits::check_frame_bytes;
use zazen_core::{Error, ErrorKind, FrameMeta, Origin, RelPath, Result, RunSet, Source};
use zazen_env::{Disk, DiskFile, DiskPath};
use zazen_frames::admit::{Admission, admit};
use zazen_frames::quota::Claim;
use zazen_frames::room::{first_step, next_step};
use zazen_wire::checksum::FrameDigest;

/// A frame being written. Dropping it without `commit` leaves nothing behind.
pub struct Put<D: Disk> {
    store: Arc<Store<D>>,
    dataset: RelPath,
    /// Whose room it takes.
    claim: Claim,
    source: Source,
    meta: FrameMeta,
    origin: Origin,
    target: Target<D>,
    written: u64,
    digest: FrameDigest,
    reserved: u64,
    /// Of the reserved bytes, those that are in the unfinished file.
    landed: u64,
}

/// Where the bytes go until the frame is committed.
enum Target<D: Disk> {
    /// To a file that will be renamed.
    File { file: D::File, path: DiskPath },
    /// To memory; they will be packed.
    Memory(Vec<u8>),
    /// Nowhere: the same frame is here. They are only checked.
    Nowhere,
}

impl<D: Disk> Store<D> {
    /// Begins to write a frame of `meta.length` bytes; makes room by evicting if it must.
    ///
    /// `dataset` is the path of a series. `NoSpace` if no room can be made; `Conflict` if the
    /// number is there from the same source with another checksum and the same validator (two
    /// frames with one number), or if something else lies at the frame's path; a differing source
    /// or validator replaces the stale copy at commit. For `Origin::Native` with an equal frame
    /// present: the put succeeds and `commit` says `AlreadyHere`. A checksum of 0 means that it is
    /// not known yet ([`Put::commit_computed`]); then frames are compared at commit.
    pub fn put(
        self: &Arc<Self>,
        dataset: &RelPath,
        source: &Source,
        meta: &FrameMeta,
        origin: Origin,
    ) -> Result<Put<D>> {
        self.begin_put(dataset, source, meta, origin, false)
    }

    /// As [`Store::put`], for a frame whose bytes somebody else has yet to send: more than the
    /// first few MiB get their room, and evict for it, only as bytes arrive ([`Put::write`] says
    /// `NoSpace` then). Who announces much and sends little takes no room from others.
    pub fn put_gradually(
        self: &Arc<Self>,
        dataset: &RelPath,
        source: &Source,
        meta: &FrameMeta,
        origin: Origin,
    ) -> Result<Put<D>> {
        self.begin_put(dataset, source, meta, origin, true)
    }

    fn begin_put(
        self: &Arc<Self>,
        dataset: &RelPath,
        source: &Source,
        meta: &FrameMeta,
        origin: Origin,
        gradually: bool,
    ) -> Result<Put<D>> {
        self.check_put(dataset, source, meta)?;
        self.activity().put_begins(dataset);
        let mut put = Put {
            store: self.clone(),
            dataset: dataset.clone(),
            claim: Claim { uid: meta.uid, series: dataset.clone() },
            source: source.clone(),
            meta: meta.clone(),
            origin,
            target: Target::Nowhere,
            written: 0,
            digest: FrameDigest::default(),
            reserved: 0,
            landed: 0,
        };
        if let Some(here) = self.dataset(dataset.as_str()) {
            self.touch(&here);
            if let Lookup::Here(found) = here.find(meta.number.get())?
                && meta.checksum != 0
            {
                let same_source = here.source(&found.record)?.as_ref() == Some(source);
                match admit((&found.record.meta, found.origin), (meta, origin), same_source) {
                    Admission::Conflict => return Err(self.two_frames(dataset, meta, &found)),
                    Admission::Keep { refresh: false, .. } => return Ok(put),
                    Admission::Keep { .. } | Admission::Replace => {}
                }
            }
        }
        self.disk().admit_change()?;
        let first = first_step(meta.length, gradually, self.room().budget());
        if first > 0 {
            put.reserved = self.make_room(&put.claim, first, origin)?;
        }
        put.target = if meta.length <= self.config.packed_bytes_max {
            Target::Memory(Vec::new())
        } else {
            let path = self.new_temporary();
            Target::File { file: self.disk().create(&path)?, path }
        };
        Ok(put)
    }

    fn check_put(&self, dataset: &RelPath, source: &Source, meta: &FrameMeta) -> Result<()> {
        let refuse = |kind, why: String| {
            Err(Error::new(kind, format!("frame {} of dataset {}: {why}", meta.number, shown(dataset))))
        };
        check_frame_bytes(meta.length)
            .map_err(|error| error.within(format!("frame {} of dataset {}", meta.number, shown(dataset))))?;
        if source.path.is_root() {
            return refuse(ErrorKind::InvalidArgument, "its source has no file name".to_owned());
        }
        if source.length.is_some_and(|length| length != meta.length) {
            let text = format!("its length is {}, but its source says {:?}", meta.length, source.length);
            return refuse(ErrorKind::InvalidArgument, text);
        }
        if !dataset.is_series() {
            return refuse(ErrorKind::InvalidArgument, "its dataset's path names no series".to_owned());
        }
        dataset.join(source.path.as_str()).map(|_| ())
    }

    fn two_frames(&self, dataset: &RelPath, meta: &FrameMeta, here: &Found) -> Error {
        count(&self.tally().conflicts, 1);
        let old = &here.record.meta;
        Error::new(
            ErrorKind::Conflict,
            format!(
                "frame {} of dataset {} is here already with other bytes ({} bytes, checksum {:016x}; \
                 now {} bytes, {:016x}) and no sign that its source changed; the first one is kept. Number \
                 frames uniquely, or evict it if it is wrong",
                meta.number,
                shown(dataset),
                old.length,
                old.checksum,
                meta.length,
                meta.checksum
            ),
        )
    }
}

impl<D: Disk> Put<D> {
    /// As [`Put::write`], of bytes that the caller gives away: if they are all of a frame that will
    /// be packed, they are not copied.
    pub fn write_vec(&mut self, bytes: Vec<u8>) -> Result<()> {
        if let Target::Memory(memory) = &mut self.target
            && memory.is_empty()
            && bytes.len() as u64 == self.meta.length
        {
            self.digest.update(&bytes);
            self.written = self.meta.length;
            *memory = bytes;
            return Ok(());
        }
        self.write(&bytes)
    }

    /// Appends bytes; beyond the announced length is `InvalidArgument`. A full disk is `NoSpace`.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 > self.meta.length - self.written {
            let text = format!("more than the {} bytes announced", self.meta.length);
            return Err(self.error(ErrorKind::InvalidArgument, text));
        }
        self.reserve(bytes.len() as u64)?;
        match &mut self.target {
            Target::File { file, .. } => {
                file.write_all_at(bytes, self.written)?;
                self.store.room().land(bytes.len() as u64);
                self.landed += bytes.len() as u64;
            }
            Target::Memory(memory) => {
                memory.reserve_exact((self.meta.length as usize).saturating_sub(memory.len()));
                memory.extend_from_slice(bytes);
            }
            Target::Nowhere => {}
        }
        self.digest.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Makes room for the next `bytes`, where that has not been done.
    fn reserve(&mut self, bytes: u64) -> Result<()> {
        let step = next_step(self.meta.length, self.written + bytes, self.reserved);
        if step > 0 && matches!(self.target, Target::File { .. }) {
            self.reserved += self.store.make_room(&self.claim, step, self.origin)?;
        }
        Ok(())
    }

    /// Checks length and checksum (computed from what was written; `Corrupt` if it differs from
    /// `meta.checksum`) and makes the frame visible.
    pub fn commit(self) -> Result<Stored> {
        self.check()?;
        Ok(self.commit_computed()?.0)
    }

    /// As [`Put::commit`], for a frame whose checksum was not known beforehand: the computed one is
    /// recorded.
    pub fn commit_computed(mut self) -> Result<(Stored, u64)> {
        self.check_length()?;
        self.meta.checksum = self.digest.finish();
        let store = self.store.clone();
        let _changing = store.changing()?;
        if let Target::File { file, .. } = &self.target {
            file.mark(true)?;
        }
        let dataset = store.dataset_or_new(&self.dataset)?;
        let mut writer = dataset.lock_writer();
        let stored = self.admit(&dataset, &mut writer);
        if let Ok(Stored::Stored) = stored {
            count(&store.tally().stored_frames, 1);
            count(&store.tally().stored_bytes, self.meta.length);
        }
        let stored = stored?;
        store.tidy(&dataset, &mut writer);
        Ok((stored, self.meta.checksum))
    }

    /// Whether what was written is what was announced; `Corrupt` if not.
    pub(crate) fn check(&self) -> Result<()> {
        if self.digest.finish() != self.meta.checksum {
            let text = format!(
                "its bytes have checksum {:016x}, announced was {:016x}; send it again",
                self.digest.finish(),
                self.meta.checksum
            );
            return Err(self.error(ErrorKind::Corrupt, text));
        }
        self.check_length()
    }

    /// As [`Put::check`], where no checksum was announced.
    pub(crate) fn check_length(&self) -> Result<()> {
        if self.written != self.meta.length {
            let text = format!("{} of {} bytes came; send it again", self.written, self.meta.length);
            return Err(self.error(ErrorKind::Corrupt, text));
        }
        Ok(())
    }

    fn error(&self, kind: ErrorKind, why: String) -> Error {
        Error::new(kind, format!("frame {} of dataset {}: {why}", self.meta.number, shown(&self.dataset)))
    }

    fn admit(&mut self, dataset: &Dataset<D>, writer: &mut Writer<D::File>) -> Result<Stored> {
        let store = self.store.clone();
        let found = match dataset.find(self.meta.number.get())? {
            Lookup::Here(found) => found,
            Lookup::Absent => return self.store_new(dataset, writer, None),
            Lookup::Damaged(origin) => {
                store.forget_damaged(dataset, origin, self.meta.number.get());
                return self.store_new(dataset, writer, None);
            }
        };
        let same_source = dataset.source(&found.record)?.as_ref() == Some(&self.source);
        match admit((&found.record.meta, found.origin), (&self.meta, self.origin), same_source) {
            Admission::Conflict => Err(store.two_frames(&self.dataset, &self.meta, &found)),
            Admission::Replace => {
                count(&store.tally().dropped_stale, 1);
                self.store_new(dataset, writer, Some(found))
            }
            Admission::Keep { promote, refresh } => {
                count(&store.tally().already_here, 1);
                self.keep(dataset, writer, found, promote, refresh)?;
                Ok(Stored::AlreadyHere)
            }
        }
    }

    /// Leaves the copy that is here, and writes its record anew where it must say something else.
    fn keep(
        &mut self,
        dataset: &Dataset<D>,
        writer: &mut Writer<D::File>,
        found: Found,
        promote: bool,
        refresh: bool,
    ) -> Result<()> {
        let old = &found.record.meta;
        let access = |meta: &FrameMeta| (meta.uid, meta.gid, meta.mode);
        let new_access = refresh && access(old) != access(&self.meta);
        if new_access && !matches!(self.target, Target::Nowhere) {
            // Its segment, or its file, is open to others than may read it now: the bytes move.
            let origin = if promote { Origin::Native } else { found.origin };
            let asked = std::mem::replace(&mut self.origin, origin);
            let stored = self.store_new(dataset, writer, Some(found));
            self.origin = asked;
            return stored.map(|_| ());
        }
        if !promote && !refresh {
            return Ok(());
        }
        let mut new = found.record.clone();
        if refresh && !new_access {
            new.meta.validator = self.meta.validator;
        }
        let mut old = found.record;
        old.op = RecordOp::Remove;
        if promote {
            count(&self.store.tally().promoted, 1);
            dataset.append(writer, Origin::Native, std::slice::from_ref(&new), |index| {
                index.leave(Origin::Alien, &old);
                index.enter(Origin::Native, &new);
            })?;
            dataset.append(writer, Origin::Alien, &[old], |_| {})
        } else {
            dataset.append(writer, found.origin, &[old, new], |_| {})
        }
    }

    /// Names and records the frame, in the place of `old` if there is one.
    ///
    /// The old copy goes first: it is of no use any more, and a crash then leaves a miss rather
    /// than a record of the old bytes over a file with the new ones.
    fn store_new(
        &mut self,
        dataset: &Dataset<D>,
        writer: &mut Writer<D::File>,
        old: Option<Found>,
    ) -> Result<Stored> {
        if matches!(self.target, Target::Nowhere) {
            let text = "the copy here was evicted or replaced while it came a second time; send it again";
            return Err(self.error(ErrorKind::Busy, text.to_owned()));
        }
        let mut named_before = None;
        if let Some(old) = old {
            if dataset.source(&old.record)?.as_ref() == Some(&self.source) {
                named_before = Some(old.record.source);
            }
            if let Err(error) = dataset.remove(writer, old.origin, &[old.record]) {
                if dataset.read_index().side(old.origin).live.contains(self.meta.number.get()) {
                    return Err(error);
                }
                tracing::warn!("{error}; the old copy of a frame may take room until the next start");
            }
        }
        let source = match named_before {
            Some(source) => source,
            None => dataset.source_ref(&self.source, self.meta.number)?,
        };
        let (storage, segment_len) = self.place(dataset, writer)?;
        let record = Record { op: RecordOp::Put, meta: self.meta.clone(), storage, source };
        if let Storage::Packed(address) = storage {
            let segment = segments::locate(address).0;
            dataset.update(|index| index.segment_changed(segment, segment_len, 1));
        }
        let recorded = dataset.append(writer, self.origin, std::slice::from_ref(&record), |index| {
            index.enter(self.origin, &record);
        });
        if let Err(error) = recorded {
            let _ = dataset.remove_storage(writer, &record);
            return Err(error);
        }
        Ok(Stored::Stored)
    }

    /// Brings the bytes to their place: where that is, and the length of the segment if it is one.
    fn place(
        &mut self,
        dataset: &Dataset<D>,
        writer: &mut Writer<D::File>,
    ) -> Result<(Storage, Option<u64>)> {
        match &self.target {
            Target::Memory(bytes) => {
                let disk = &*dataset.disk;
                let (address, len) =
                    writer.segments.append(disk, &dataset.path, &self.meta, self.origin, bytes)?;
                Ok((Storage::Packed(address), Some(len)))
            }
            Target::File { path, .. } => {
                let is_piece = self.source.offset > 0 || self.source.length.is_some();
                if is_piece {
                    dataset.disk.rename(path, &dataset.piece_path(self.meta.number))?;
                } else {
                    self.name(dataset, path)?;
                }
                // From here on there is no unfinished file to remove.
                self.target = Target::Nowhere;
                Ok((if is_piece { Storage::Piece } else { Storage::Plain }, None))
            }
            Target::Nowhere => Err(self.error(ErrorKind::Busy, "it has no bytes; send it again".to_owned())),
        }
    }

    /// Renames the finished file to the dataset's own path of it.
    fn name(&self, dataset: &Dataset<D>, from: &DiskPath) -> Result<()> {
        let to = dataset.plain_path(&self.source)?;
        let Err(error) = dataset.disk.rename_new(from, &to) else { return Ok(()) };
        // Zazen's mark and no record: what a crash or a failed removal left.
        let left_over = error.kind() == ErrorKind::Conflict
            && dataset.disk.stat(&to)?.is_some_and(|stat| stat.is_file && stat.marked);
        if left_over && dataset.number_at(&self.source)?.is_none() {
            return dataset.disk.rename(from, &to);
        }
        if error.kind() == ErrorKind::Conflict {
            count(&self.store.tally().conflicts, 1);
        }
        if left_over {
            let text = format!("its file {} is another frame's already; give each its own", self.source.path);
            return Err(self.error(ErrorKind::Conflict, text));
        }
        Err(error.within(format!("frame {} of dataset {}", self.meta.number, shown(&self.dataset))))
    }
}

impl<D: Disk> Drop for Put<D> {
    fn drop(&mut self) {
        if let Target::File { path, .. } = &self.target
            && let Err(error) = self.store.disk().remove(path)
        {
            tracing::debug!("{error}; it goes at the next start");
        }
        self.store.room().release(self.reserved, self.landed, Some(&self.claim));
        self.store.activity().put_ends(&self.dataset);
    }
}

impl<D: Disk> Dataset<D> {
    /// The frame whose plain file is that of `source`, if there is one. Slow; for the rare clash
    /// only.
    fn number_at(&self, source: &Source) -> Result<Option<u64>> {
        let everything = RunSet::range(0, zazen_core::limits::FRAME_NO_MAX);
        let mut cursor = EntriesCursor::default();
        while let Some(page) = self.page(&everything, &mut cursor, 1024)? {
            for found in page {
                let plain = found.record.storage == Storage::Plain;
                if plain && self.source(&found.record)?.is_some_and(|other| other.path == source.path) {
                    return Ok(Some(found.record.meta.number.get()));
                }
            }
        }
        Ok(None)
    }
}
