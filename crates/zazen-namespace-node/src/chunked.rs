//! Files in chunks: files that many nodes write.
//!
//! Each chunk is an inode of its own, with a holder of its own, and a handle of the file has
//! handles of its chunks (`parts`). They are ordinary ones: reads, writes, copies and checksums
//! of a chunk are those of a file.
//!
//! - A chunk that there is not, and the bytes behind the end of a short one, read as zeros, up to
//!   the end of the file.
//! - A chunk whose holder does not answer is an error. So is an end that a holder may know better
//!   and does not tell.
//! - The metadata drops no chunk that a node has open. What is cut while somebody has it open is
//!   cut at its holder.

use crate::data::{CHUNK, LOOK, Tries};
use crate::driver::wall_ns;
use crate::handles::{Bounds, Handle, lock};
use crate::node::NamespaceNode;
use crate::objects::ObjectName;
use crate::opened::place_of;
use crate::parts::{self, OPEN_MAX, Piece, Source, pieces, read_range};
use crate::per_user::ANYBODY;
use crate::route::root;
use crate::session::COARSE_NS;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use zazen_namespace::operation::{
    Answer, Append, Chunks, Grant, MANY_MAX, Mode, OpenChunk, Operation, SetAttributes,
};
use zazen_namespace::service::{ObjectCall, namespace_fn};
use zazen_namespace::{Attributes, Errno, Incarnation, InodeId, NodeNo};
use zazen_wire::codec::{Reader, Writer};

type Parts = parts::Parts<Handle>;
/// Whether more of a list is wanted.
type Listed = Result<ControlFlow<()>, Errno>;

/// Flags of `fallocate`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// Chunks that one `fallocate` may make.
const ALLOCATED_MAX: u64 = 1 << 16;
/// Chunks of one handle with which something is done at the same time.
const AT_ONCE: usize = 8;
/// Bytes of an object's name in a call of [`namespace_fn::TELL`].
const NAME_BYTES: usize = 16;
/// Objects that one such call names.
const NAMES_MAX: usize = 4096;
/// The same of a wish for them, which is told to the end whatever a node answers.
const NOTED_AT_ONCE: usize = 512;
/// How often a chunk is asked for that is gone again.
const TRIES: usize = 3;

/// Chunks of which one SEEK asks the holders, one after the other.
const SEEKS_MAX: usize = 128;

/// What is known of a chunk without its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// It has no hole.
    Data,
    /// It is nothing else.
    Hole,
    Unknown,
}

/// How a chunk is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Read,
    /// For writing, if there is one.
    Change,
    /// For writing; one that there is not is made, for so many bytes.
    Make(u64),
}

impl How {
    fn writes(self) -> bool {
        self != How::Read
    }

    fn makes(self) -> bool {
        matches!(self, How::Make(_))
    }
}

/// A file that is read through a handle.
struct ReadOf<'a> {
    node: &'a NamespaceNode,
    handle: &'a Handle,
    parts: &'a Parts,
}

impl Source for ReadOf<'_> {
    fn read_piece(&mut self, piece: Piece, into: &mut [u8]) -> Result<u64, Errno> {
        self.node.read_piece(self.handle, self.parts, piece, into)
    }

    fn end(&mut self, needed: u64) -> Result<u64, Errno> {
        self.node.end_of(self.handle, self.parts, needed)
    }
}

impl NamespaceNode {
    /// The handle of a chunk; `None` if there is no such chunk. `EDQUOT` if it would have to be
    /// made, and a quota has no room for it or for the bytes that it is made for: what is refused
    /// leaves no empty chunk behind.
    fn part(
        &self,
        handle: &Handle,
        parts: &Parts,
        index: u64,
        how: How,
    ) -> Result<Option<Arc<Handle>>, Errno> {
        let How::Make(bytes) = how else { return self.part_as(handle, parts, index, how) };
        let bounds = self.bounds(handle)?;
        if bounds.is_empty() {
            return self.part_as(handle, parts, index, how);
        }
        if let Some(part) = self.part_as(handle, parts, index, How::Change)? {
            return Ok(Some(part));
        }
        self.quotas.check(&bounds, bytes)?;
        let reserved = self.quotas.reserve(bounds.to_vec(), 1).map_err(|(full, _)| full)?;
        let made = self.part_as(handle, parts, index, how);
        if made.is_ok() {
            reserved.made(1);
        }
        made
    }

    /// The same, whatever the quotas are.
    fn part_as(
        &self,
        handle: &Handle,
        parts: &Parts,
        index: u64,
        how: How,
    ) -> Result<Option<Arc<Handle>>, Errno> {
        for _ in 0..TRIES {
            let (_, life) = self.joined_soon()?;
            self.bring_into(life, handle)?;
            if let Some(part) = parts.get(index, how.writes()) {
                return Ok(Some(part));
            }
            let since_ns = wall_ns() - COARSE_NS;
            let mode = Mode { read: true, write: how.writes(), truncate: false };
            // As for new files: the log's reserve is for what is here.
            let is_full = self.driver.is_full();
            let no_room = is_full && (self.place().is_none() || self.driver.is_nearly_out());
            let make = how.makes() && !no_room;
            let open = OpenChunk { file: handle.id, index, mode: mode.clone(), make };
            match self.route_in_lives(vec![(root(), Operation::OpenChunk(open))]).pop() {
                Some((Answer::Grant(grant), life)) => {
                    let part = self.part_opened(handle, &grant, life, &mode, since_ns)?;
                    let most = if self.of_users.chunks.has_room(handle.uid) { OPEN_MAX } else { 1 };
                    let (part, close) = parts.keep(index, how.writes(), part, most);
                    close.into_iter().for_each(|old| self.close_part(parts, &old));
                    return Ok(Some(part));
                }
                Some((Answer::Refused(refused), _)) => match refused.errno {
                    Errno::ENOENT if !how.makes() => return Ok(None),
                    Errno::ENOENT => return Err(Errno::ENOSPC),
                    // The node has begun another life, in which the file is not open yet.
                    Errno::EBADF => {}
                    Errno::ESTALE => return Err(Errno::EIO),
                    errno => return Err(errno),
                },
                _ => return Err(Errno::EIO),
            }
        }
        Err(Errno::EIO)
    }

    fn part_opened(
        &self,
        handle: &Handle,
        grant: &Grant,
        life: Incarnation,
        mode: &Mode,
        since_ns: i64,
    ) -> Result<Arc<Handle>, Errno> {
        let attributes = &grant.attributes;
        let part = Arc::new(Handle {
            id: attributes.id,
            read: mode.read,
            write: mode.write,
            uid: handle.uid,
            life: Mutex::new(Some(life)),
            session: handle.session.clone(),
            place: Mutex::new(place_of(attributes)),
            wrote: AtomicBool::new(false),
            asked_in: AtomicU64::new(self.map().epoch.0),
            found_in: handle.found_in.or_else(|| self.quotas.found(handle.id)),
            bounds: Mutex::new(Bounds::default()),
            end: AtomicU64::new(attributes.bytes),
            parts: None,
            chunk_of: Some(handle.id),
            _counted: Some(self.of_users.chunks.add(handle.uid)),
        });
        match self.make_ready(&part, grant, mode, since_ns) {
            Ok(_) => Ok(part),
            Err(errno) => {
                self.release(&part);
                Err(errno)
            }
        }
    }

    /// Closes a chunk that was not used for a while. What fails is told later.
    fn close_part(&self, parts: &Parts, part: &Handle) {
        if let Err(errno) = self.close(part) {
            parts.note_failure(errno);
        }
    }

    /// Does `act` with a chunk; `None` if there is no such chunk.
    fn at_part<T>(
        &self,
        handle: &Handle,
        parts: &Parts,
        (index, how): (u64, How),
        act: impl Fn(&Handle) -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        for _ in 0..TRIES {
            let Some(part) = self.part(handle, parts, index, how)? else { return Ok(None) };
            match act(&part) {
                Err(Errno::ESTALE | Errno::EBADF | Errno::EIO) if self.is_dropped(&part) => {
                    // An earlier life of the node had it open, and it was cut since. Nobody knows
                    // whether what was written meanwhile was before the cut.
                    parts.forget(&part);
                    lock(&part.life).take();
                    if part.wrote.load(Ordering::Relaxed) {
                        return Err(Errno::EIO);
                    }
                }
                done => return done.map(Some),
            }
        }
        Err(Errno::EIO)
    }

    /// Whether the metadata has dropped the chunk.
    fn is_dropped(&self, part: &Handle) -> bool {
        matches!(self.attributes(part.id), Err(Errno::ESTALE))
    }

    /// Does the same with several chunks, some at a time, for a user. The first error.
    fn with_each<T: Sync>(
        &self,
        uid: u32,
        of: &[T],
        work: impl Fn(&T) -> Result<bool, Errno> + Sync,
    ) -> Result<bool, Errno> {
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Ok(false)));
        let run = || {
            while let Some(one) = of.get(next.fetch_add(1, Ordering::Relaxed)) {
                let done = work(one);
                let mut found = lock(&found);
                *found = match (*found, done) {
                    (Ok(before), Ok(now)) => Ok(before || now),
                    (Err(errno), _) | (_, Err(errno)) => Err(errno),
                };
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..of.len().min(AT_ONCE) {
                // Without another thread, this one does it all.
                let Some(counted) = self.of_users.helpers.take(uid) else { break };
                let help = move || {
                    run();
                    drop(counted);
                };
                std::thread::Builder::new().spawn_scoped(scope, help).ok();
            }
            run();
        });
        *lock(&found)
    }

    /// Reads `bytes` at `offset`: fewer only where the file ends.
    pub(crate) fn read_parts(
        &self,
        handle: &Handle,
        parts: &Parts,
        offset: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, Errno> {
        read_range(&mut ReadOf { node: self, handle, parts }, parts.chunk_bytes, offset, bytes)
    }

    /// Reads a piece of a range to its place in `into`. How many bytes the chunk has there.
    fn read_piece(
        &self,
        handle: &Handle,
        parts: &Parts,
        piece: Piece,
        into: &mut [u8],
    ) -> Result<u64, Errno> {
        let read = |part: &Handle| self.read(part, piece.offset, piece.bytes as usize);
        let Some(got) = self.at_part(handle, parts, (piece.index, How::Read), read)? else { return Ok(0) };
        let start = piece.at as usize;
        into.get_mut(start..start + got.len()).ok_or(Errno::EIO)?.copy_from_slice(&got);
        Ok(got.len() as u64)
    }

    /// Where the file ends now. Nodes that write it are asked if it may be longer than `needed`
    /// only by what they know.
    fn end_of(&self, handle: &Handle, parts: &Parts, needed: u64) -> Result<u64, Errno> {
        let known = self.attributes(handle.id)?;
        let is_written = known.chunks.as_ref().is_some_and(|chunks| chunks.writing);
        if known.bytes >= needed || !is_written {
            return Ok(known.bytes);
        }
        self.have_told(handle.id, known.bytes / parts.chunk_bytes, true, Tries::Many)?;
        // Another caller may have had them told just before.
        Ok(self.attributes(handle.id)?.bytes)
    }

    /// Writes all at `offset`; how many bytes were written before an error, or the error.
    pub(crate) fn write_parts(
        &self,
        handle: &Handle,
        parts: &Parts,
        offset: u64,
        bytes: &[u8],
    ) -> Result<u64, Errno> {
        parts.take_failure()?;
        handle.wrote.store(true, Ordering::Relaxed);
        let mut put = 0;
        for piece in pieces(parts.chunk_bytes, offset, bytes.len() as u64) {
            let data = bytes.get(piece.at as usize..(piece.at + piece.bytes) as usize).ok_or(Errno::EIO)?;
            match self.write_piece(handle, parts, piece, data) {
                Ok(count) => put += count,
                Err(_) if put > 0 => return Ok(put),
                Err(errno) => return Err(errno),
            }
            if put < piece.at + piece.bytes {
                break;
            }
        }
        Ok(put)
    }

    fn write_piece(&self, handle: &Handle, parts: &Parts, piece: Piece, data: &[u8]) -> Result<u64, Errno> {
        let (chunk_bytes, end) = (parts.chunk_bytes, piece.offset + piece.bytes);
        let write = |part: &Handle| {
            let count = parts.writing(piece.index, || self.write(part, piece.offset, data, 0))?;
            // The others need not ask how long a full chunk is.
            if count == piece.bytes && end == chunk_bytes && parts.note_full(piece.index) {
                self.commit(part).ok();
            }
            Ok(count)
        };
        self.at_part(handle, parts, (piece.index, How::Make(piece.bytes)), write)?.ok_or(Errno::EIO)
    }

    /// Writes all at the file's end. The metadata says where that is, and gives the range to nobody
    /// else.
    pub(crate) fn append_parts(&self, handle: &Handle, parts: &Parts, bytes: &[u8]) -> Result<u64, Errno> {
        if bytes.is_empty() {
            return Ok(0);
        }
        // A range that is not written then stays, as zeros.
        self.quotas.check(&self.bounds(handle)?, bytes.len() as u64)?;
        for _ in 0..TRIES {
            let (_, life) = self.joined_soon()?;
            self.bring_into(life, handle)?;
            // What was written before counts.
            let end = self.end_of(handle, parts, u64::MAX)?;
            self.has_room_for_chunks(handle, parts, end, bytes.len() as u64)?;
            let append = Append { file: handle.id, bytes: bytes.len() as u64 };
            match self.route_one(root(), Operation::Append(append)) {
                Ok(Answer::Offset(start)) => return self.write_parts(handle, parts, start.offset, bytes),
                Ok(_) => return Err(Errno::EIO),
                // The node has begun another life, in which the file is not open yet.
                Err(Errno::EBADF) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EIO)
    }

    /// `EDQUOT` if a quota has no room for the chunks that an append at `end` makes.
    fn has_room_for_chunks(&self, handle: &Handle, parts: &Parts, end: u64, bytes: u64) -> Result<(), Errno> {
        let chunks = |bytes: u64| bytes.div_ceil(parts.chunk_bytes);
        let fresh = chunks(end.saturating_add(bytes)) - chunks(end);
        if fresh == 0 {
            return Ok(());
        }
        let bounds = self.bounds(handle)?;
        self.quotas.reserve(bounds.to_vec(), fresh).map(drop).map_err(|(full, _)| full)
    }

    /// Gives the file a length.
    ///
    /// The metadata drops what lies behind and nobody has open. What somebody has open is cut at
    /// its holder, and so is the chunk in which the file ends.
    pub(crate) fn cut_parts(&self, handle: &Handle, parts: &Parts, bytes: u64) -> Result<u64, Errno> {
        if bytes > i64::MAX as u64 {
            return Err(Errno::EFBIG);
        }
        let (_, life) = self.joined_soon()?;
        self.bring_into(life, handle)?;
        handle.wrote.store(true, Ordering::Relaxed);
        let (last, within) = (bytes / parts.chunk_bytes, bytes % parts.chunk_bytes);
        let first_gone = if within == 0 { last } else { last + 1 };
        // What this handle alone has open can go. It is told first: the cut may fail.
        let behind = parts.take_idle_from(first_gone);
        self.with_each(handle.uid, &behind, |part| self.close(part).map(|()| false)).ok();
        let set = SetAttributes { bytes: Some(bytes), ..SetAttributes::of(handle.id) };
        self.route_one(root(), Operation::SetAttributes(set))?;
        self.cut_at_holders(handle, parts, bytes)?;
        Ok(bytes)
    }

    /// Has holders cut what the metadata has not dropped.
    pub(crate) fn cut_at_holders(&self, handle: &Handle, parts: &Parts, bytes: u64) -> Result<(), Errno> {
        let (last, within) = (bytes / parts.chunk_bytes, bytes % parts.chunk_bytes);
        parts.note_cut(last);
        self.each_chunk(handle.id, last, false, &mut |found| {
            if !handle.write && !found.is_empty() {
                // Opened to be cut, and not to be written, while others have it open.
                return Err(Errno::EBUSY);
            }
            let indexes: Vec<u64> = found.iter().map(index_of).collect::<Result<_, _>>()?;
            self.with_each(handle.uid, &indexes, |index| {
                let length = if *index == last { within } else { 0 };
                let cut = |part: &Handle| {
                    parts.writing(*index, || self.act(part, namespace_fn::TRUNCATE, length, 0, 0))?;
                    self.commit(part)
                };
                self.at_part(handle, parts, (*index, How::Change), cut).map(|_| true)
            })?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Brings chunks, from one on, to `each`: a page of them at a time, until that breaks off.
    /// `written`: only those that somebody has open for writing.
    pub(crate) fn each_chunk(
        &self,
        file: InodeId,
        from: u64,
        written: bool,
        each: &mut dyn FnMut(&[Attributes]) -> Listed,
    ) -> Result<(), Errno> {
        let mut from = from;
        loop {
            let asked = Chunks { file, from, max: MANY_MAX as u32, writing: written };
            let Answer::Chunks(list) = self.route_one(root(), Operation::Chunks(asked))? else {
                return Err(Errno::EIO);
            };
            if each(&list.chunks)?.is_break() {
                return Ok(());
            }
            match list.chunks.last() {
                Some(last) if !list.end => from = index_of(last)?.saturating_add(1),
                _ => return Ok(()),
            }
        }
    }

    /// `fallocate`.
    pub(crate) fn allocate_parts(
        &self,
        handle: &Handle,
        parts: &Parts,
        offset: u64,
        bytes: u64,
        flags: u32,
    ) -> Result<u64, Errno> {
        if bytes == 0 {
            return Err(Errno::EINVAL);
        }
        if offset > i64::MAX as u64 || bytes > i64::MAX as u64 - offset {
            return Err(Errno::EFBIG);
        }
        let piece = |index: u64| {
            let start = index * parts.chunk_bytes;
            let first = offset.max(start);
            let end = (offset + bytes).min(start.saturating_add(parts.chunk_bytes));
            (first - start, end.saturating_sub(first))
        };
        let (first, last) = (offset / parts.chunk_bytes, (offset + bytes - 1) / parts.chunk_bytes);
        let allocate = |index: u64, how: How| {
            let (start, count) = piece(index);
            let act = |part: &Handle| {
                parts.writing(index, || self.act(part, namespace_fn::ALLOCATE, start, count, flags))
            };
            self.at_part(handle, parts, (index, how), act).map(drop)
        };
        if flags & PUNCH_HOLE != 0 {
            // Where there is no chunk, there is a hole.
            self.each_chunk(handle.id, first, false, &mut |found| {
                for chunk in found {
                    let index = index_of(chunk)?;
                    if index > last {
                        return Ok(ControlFlow::Break(()));
                    }
                    allocate(index, How::Change)?;
                }
                Ok(ControlFlow::Continue(()))
            })?;
            return Ok(0);
        }
        // Before a chunk is made for it.
        if flags & !(KEEP_SIZE | ZERO_RANGE) != 0
            || flags & KEEP_SIZE != 0 && !self.bounds(handle)?.is_empty()
        {
            return Err(Errno::EOPNOTSUPP);
        }
        let free = self.spaces().iter().fold(0u64, |sum, space| sum.saturating_add(space.bytes_free));
        if bytes > free && flags & KEEP_SIZE == 0 {
            return Err(Errno::ENOSPC);
        }
        if last - first >= ALLOCATED_MAX {
            return Err(Errno::EFBIG);
        }
        for index in first..=last {
            allocate(index, How::Make(piece(index).1))?;
        }
        Ok(0)
    }

    /// The next data, or the next hole, at or behind `offset`. It asks the holders of at most
    /// [`SEEKS_MAX`] chunks: what it would have to ask of others counts as data, as it may.
    pub(crate) fn seek_parts(
        &self,
        handle: &Handle,
        parts: &Parts,
        offset: u64,
        flags: u32,
    ) -> Result<u64, Errno> {
        let to_hole = match flags {
            0 => false,
            1 => true,
            _ => return Err(Errno::EINVAL),
        };
        let end = self.end_of(handle, parts, u64::MAX)?;
        if offset >= end {
            return Err(Errno::ENXIO);
        }
        let (mut at, mut found, mut asked) = (offset, None, 0);
        self.each_chunk(handle.id, offset / parts.chunk_bytes, false, &mut |chunks| {
            for chunk in chunks {
                let index = index_of(chunk)?;
                let start = index.saturating_mul(parts.chunk_bytes);
                if start >= end {
                    return Ok(ControlFlow::Break(()));
                }
                if start > at && to_hole {
                    found = Some(at);
                    return Ok(ControlFlow::Break(()));
                }
                at = at.max(start);
                let within = at - start;
                let mut shape = self.shape_of(chunk, parts.chunk_bytes);
                if shape == Shape::Unknown && asked == SEEKS_MAX {
                    shape = Shape::Data;
                }
                let next = match shape {
                    Shape::Data => Some(if to_hole { parts.chunk_bytes } else { within }),
                    Shape::Hole => to_hole.then_some(within),
                    Shape::Unknown => {
                        asked += 1;
                        self.seek_in(handle, parts, index, within, flags)?
                    }
                };
                match next {
                    Some(next) if next < parts.chunk_bytes => found = Some(start + next),
                    // Behind its end there is a hole.
                    None if to_hole => found = Some(at),
                    _ => at = start + parts.chunk_bytes,
                }
                if found.is_some() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        match found {
            Some(found) if found < end => Ok(found),
            // Behind the last chunk there is nothing but a hole, to the end.
            _ if to_hole => Ok(found.unwrap_or(at).min(end)),
            _ => Err(Errno::ENXIO),
        }
    }

    /// What the metadata knows of a chunk's holes. A node that was lost may have written bytes and
    /// told nobody. So a chunk is a hole only if somebody told that it has bytes, and its holder is
    /// there.
    fn shape_of(&self, chunk: &Attributes, chunk_bytes: u64) -> Shape {
        let Some(place) = chunk.place.as_ref().filter(|place| !place.writing) else { return Shape::Unknown };
        let on_disk = crate::quota::on_disk(chunk);
        if chunk.bytes == chunk_bytes && on_disk >= chunk_bytes {
            return Shape::Data;
        }
        let is_up = || self.map().nodes.iter().any(|node| node.node == place.holder && node.up);
        if on_disk == 0 && chunk.bytes > 0 && is_up() { Shape::Hole } else { Shape::Unknown }
    }

    /// The next data or hole in a chunk, from its start; `None` behind the chunk's end.
    fn seek_in(
        &self,
        handle: &Handle,
        parts: &Parts,
        index: u64,
        offset: u64,
        flags: u32,
    ) -> Result<Option<u64>, Errno> {
        let seek = |part: &Handle| match self.act(part, namespace_fn::SEEK, offset, 0, flags) {
            Err(Errno::ENXIO) => Ok(None),
            found => found.map(Some),
        };
        self.at_part(handle, parts, (index, How::Read), seek).map(Option::flatten)
    }

    /// Tells the metadata what was written through the handle. Whether there was something to tell.
    pub(crate) fn commit_parts(&self, handle: &Handle, parts: &Parts) -> Result<bool, Errno> {
        let failed = parts.take_failure();
        let told = self.with_each(handle.uid, &parts.writers(), |part| self.commit(part));
        failed.and(told)
    }

    /// Syncs what was written through the handle since the last sync; with `every`, all chunks.
    pub(crate) fn sync_parts(&self, handle: &Handle, parts: &Parts, every: bool) -> Result<(), Errno> {
        let _syncing = parts.syncing();
        if every {
            self.each_chunk(handle.id, 0, false, &mut |found| {
                found.iter().try_for_each(|chunk| index_of(chunk).map(|index| parts.note_write(index)))?;
                Ok(ControlFlow::Continue(()))
            })?;
        }
        let indexes: Vec<u64> = parts.take_unsynced().into_iter().collect();
        let synced = self.with_each(handle.uid, &indexes, |index| {
            let sync = |part: &Handle| self.sync(part, 0);
            let synced = self.at_part(handle, parts, (*index, How::Read), sync).map(|_| false);
            if synced.is_err() {
                parts.note_write(*index);
            }
            synced
        });
        let told = self.commit_parts(handle, parts);
        synced.and(told).map(drop)
    }

    /// Closes all chunks of a handle that is being closed.
    pub(crate) fn close_parts(&self, handle: &Handle, parts: &Parts) -> Result<(), Errno> {
        let failed = parts.take_failure();
        let closed = self.with_each(handle.uid, &parts.take_all(), |part| self.close(part).map(|()| false));
        failed.and(closed.map(drop))
    }

    /// Brings the length and times of a file in chunks up to date that is being written.
    pub(crate) fn refresh_chunked(&self, attributes: &mut Attributes) {
        // If a holder does not answer, the last commit is what is known.
        if let Err(errno) = self.have_told(attributes.id, 0, true, Tries::One) {
            tracing::debug!("namespace: the length of inode {}: {errno}", attributes.id);
        }
        if let Ok(fresh) = self.attributes(attributes.id) {
            *attributes = fresh;
        }
    }

    /// Has the holders of chunks, from one on, tell the metadata how long these are. `written`:
    /// only of those that somebody has open for writing. The first error ends it.
    fn have_told(&self, file: InodeId, from: u64, written: bool, tries: Tries) -> Result<(), Errno> {
        let held = self.held(file, from, written)?;
        let tell = |(holder, names): &(NodeNo, Vec<ObjectName>)| {
            let told = names.chunks(NAMES_MAX).map(|names| self.have_told_by(file, *holder, names, tries));
            told.collect::<Result<Vec<()>, Errno>>().map(|_| true)
        };
        self.with_each(ANYBODY, &held, tell).map(drop)
    }

    /// The objects of chunks, from one on, by their holders.
    fn held(&self, file: InodeId, from: u64, written: bool) -> Result<Vec<(NodeNo, Vec<ObjectName>)>, Errno> {
        let mut held: BTreeMap<NodeNo, Vec<ObjectName>> = BTreeMap::new();
        self.each_chunk(file, from, written, &mut |chunks| {
            for chunk in chunks {
                let Some(place) = &chunk.place else { continue };
                let name = ObjectName { id: chunk.id, generation: place.generation };
                held.entry(place.holder).or_default().push(name);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(held.into_iter().collect())
    }

    /// Has a holder tell the metadata of so many objects as one call names.
    fn have_told_by(
        &self,
        file: InodeId,
        holder: NodeNo,
        names: &[ObjectName],
        tries: Tries,
    ) -> Result<(), Errno> {
        let (me, _) = self.joined_soon()?;
        if holder == me {
            return self.tell_lengths(names).map(drop);
        }
        let address = self.address(holder).ok_or(Errno::EIO)?;
        let mut bulk = Writer::new();
        for name in names {
            bulk.u64(name.id.0);
            bulk.u64(name.generation);
        }
        let bulk = bulk.into_bytes();
        let of = ObjectName { id: file, generation: 0 };
        let call = of.call(namespace_fn::TELL, 0, bulk.len() as u64, 0);
        let within = if tries == Tries::One { LOOK } else { CHUNK };
        self.there_within(&address, &call, &bulk, within, tries).map(drop)
    }

    /// Tells the metadata the length of objects of this node. How many it did not know. An object
    /// that cannot be told keeps no other one from it.
    fn tell_lengths(&self, names: &[ObjectName]) -> Result<u64, Errno> {
        let (mut told, mut failed) = (0, None);
        for name in names {
            match self.commit_object(*name, true) {
                Ok(fresh) => told += u64::from(fresh),
                // It has not been made yet, or is not the chunk's any more.
                Err(Errno::ESTALE) => {}
                // Its partition does not answer, and each further one would wait as long.
                Err(Errno::ETIMEDOUT) => return Err(Errno::ETIMEDOUT),
                Err(errno) => failed = Some(errno),
            }
        }
        failed.map_or(Ok(told), Err)
    }

    /// Another node asks for [`namespace_fn::TELL`].
    pub(crate) fn tell_for_other(&self, call: &ObjectCall, bulk: &[u8]) -> Result<u64, Errno> {
        if call.bytes != bulk.len() as u64
            || !bulk.len().is_multiple_of(NAME_BYTES)
            || bulk.len() > NAMES_MAX * NAME_BYTES
        {
            return Err(Errno::EINVAL);
        }
        let mut reader = Reader::new("names of objects", bulk);
        let mut names = Vec::with_capacity(bulk.len() / NAME_BYTES);
        while reader.remaining() > 0 {
            let id = InodeId(reader.u64().map_err(|_| Errno::EINVAL)?);
            let generation = reader.u64().map_err(|_| Errno::EINVAL)?;
            names.push(ObjectName { id, generation });
        }
        self.tell_lengths(&names)
    }

    /// The holder of each chunk of a file looks at it: it got another wish.
    pub(crate) fn note_wanted_chunks(&self, file: InodeId) {
        let held = match self.held(file, 0, false) {
            Ok(held) => held,
            Err(errno) => {
                tracing::warn!("namespace: the holders of inode {file} were not told of its wish: {errno}");
                return;
            }
        };
        // Calls of few objects: a holder that tells the metadata of many takes its time.
        let calls: Vec<_> = held
            .iter()
            .flat_map(|(holder, names)| names.chunks(NOTED_AT_ONCE).map(|names| (*holder, names)))
            .collect();
        let tell = |(holder, names): &(NodeNo, &[ObjectName])| {
            if let Err(errno) = self.have_told_by(file, *holder, names, Tries::Many) {
                tracing::warn!("namespace: node {holder} was not told of the wish of inode {file}: {errno}");
            }
            Ok(true)
        };
        self.with_each(ANYBODY, &calls, tell).ok();
    }
}

/// The number of a chunk.
fn index_of(chunk: &Attributes) -> Result<u64, Errno> {
    chunk.chunk_of.as_ref().map(|of| of.index).ok_or(Errno::EIO)
}

#[cfg(test)]
mod tests;
