//! Files of which several nodes hold parts.
//!
//! The bytes of such a file are in chunks. A chunk is an inode of its own in the file's partition,
//! without a name, and of root without permission bits: so it has a holder and a generation, is
//! opened, committed, copied and taken over as any file is, and nobody but a daemon reaches it. The
//! file has no place. Its row has the length that truncation and appends gave it: the file ends
//! there, or where its last chunk with bytes ends, whichever is later.
//!
//! - A chunk that some node has open stays when the file is cut before it, as the object of a file
//!   stays that is open when somebody truncates it: an old handle never writes into an object that
//!   is nobody's. Its holder cuts it, after that.
//! - The time of the last change of bytes is in the file's row, and follows the commits of chunks.
//! - Chunks that are gone are buried some at a time, with each event: their rows are removed then,
//!   and the nodes that have their objects are told. A file may have millions of chunks, and other
//!   operations on the partition shall not wait for that.

use super::change::Change;
use super::chunk_table::{Chunks as ChunksOf, Grave, bytes_of_mib};
use super::directories::check_mode;
use super::event::Action;
use super::inode::Inode;
use super::machine::{Asking, Partition, Stop};
use super::mutant::Mutant;
use super::permission;
use super::row::Opens;
use crate::attributes::{ARCHIVE, Attributes, ChunkOf, Chunked, Kind};
use crate::operation::{
    ARCHIVE_WANTED, Answer, Append, CHUNKS_WANTED, COPIES_WANTED, ChunkList, Chunks, Grant, MANY_MAX, Offset,
    OpenChunk, SetXattr, chunk_mib_of,
};
use crate::{Errno, InodeId, Planted};

type Answered = Result<Answer, Stop>;

/// How many chunks one event buries.
const BURIED_MAX: usize = 256;
/// Stands for an explicit time of change that no write under way was before.
pub(super) const LONG_AGO_NS: i64 = i64::MIN;

impl Partition {
    /// The file's row, and its chunks.
    fn chunked(&self, id: InodeId) -> Result<(Inode, &ChunksOf), Errno> {
        let inode = self.tables.row(id.serial()).copied().ok_or(Errno::ESTALE)?;
        let chunks = self.tables.chunks.of_file(id.serial()).ok_or(Errno::EINVAL)?;
        Ok((inode, chunks))
    }

    pub(super) fn is_chunked(&self, serial: u64) -> bool {
        self.tables.chunks.of_file(serial).is_some()
    }

    /// What is open of the file by this life of the node.
    fn has_open(&self, call: &Asking<'_>, serial: u64) -> Opens {
        self.tables.opens.get(&(serial, call.node, call.incarnation)).copied().unwrap_or_default()
    }

    /// What `stat` shows of a file's chunks.
    pub(super) fn shown_chunks(&self, serial: u64) -> Option<Chunked> {
        let chunks = self.tables.chunks.of_file(serial)?;
        let (chunk_bytes, count, writing) = (chunks.chunk_bytes, chunks.count(), chunks.is_written());
        Some(Chunked { chunk_bytes, count, writing })
    }

    /// What an inode is a chunk of.
    pub(super) fn shown_chunk_of(&self, serial: u64) -> Option<ChunkOf> {
        let (file, index) = self.tables.chunks.file_of(serial)?;
        let chunk_bytes = self.tables.chunks.of_file(file)?.chunk_bytes;
        Some(ChunkOf { file: InodeId::new(self.number(), file), index, chunk_bytes })
    }

    /// `EFBIG` if the inode is a chunk, and a chunk has not so many bytes.
    pub(super) fn fits_chunk(&self, serial: u64, bytes: u64) -> Result<(), Errno> {
        let is_beyond = |of: ChunkOf| bytes > of.chunk_bytes;
        if self.shown_chunk_of(serial).is_some_and(is_beyond) { Err(Errno::EFBIG) } else { Ok(()) }
    }

    /// A new file gets its bytes in chunks, if that is wished.
    pub(super) fn wish_chunks(&mut self, serial: u64, mib: Option<u32>) {
        if let Some((chunk_bytes, mib)) = mib.and_then(|mib| Some((bytes_of_mib(mib)?, mib))) {
            self.change(&Change::Chunked { serial, chunk_bytes });
            let value = mib.to_string();
            let (name, value) = (CHUNKS_WANTED, Some(value.as_bytes()));
            self.change(&Change::Xattr { serial, name, value });
        }
    }

    /// Opens a chunk of a file that the asking node has open.
    pub(super) fn open_chunk(&mut self, call: &Asking<'_>, open: &OpenChunk) -> Answered {
        check_mode(&open.mode)?;
        if open.mode.truncate || open.make && !open.mode.write {
            return Err(Errno::EINVAL.into());
        }
        let (_, chunks) = self.chunked(open.file)?;
        let opens = self.has_open(call, open.file.serial());
        let (index_max, found) = (chunks.index_max(), chunks.get(open.index));
        let may = if open.mode.write { opens.writers > 0 } else { opens != Opens::default() };
        if !may {
            return Err(Errno::EBADF.into());
        }
        if open.index > index_max {
            return Err(if open.make { Errno::EFBIG } else { Errno::ENOENT }.into());
        }
        let created = found.is_none();
        let serial = match found {
            Some(serial) => serial,
            None if open.make => self.make_chunk(call, open),
            None => return Err(Errno::ENOENT.into()),
        };
        if open.mode.write && !created {
            // A copy that is being made counts no more: see `copied`.
            self.touch(serial, |_| {});
        }
        self.add_open(call, serial, &open.mode);
        let id = InodeId::new(self.number(), serial);
        let attributes = self.attributes(id).ok_or(Errno::ESTALE)?;
        Ok(Answer::Grant(Grant { attributes, created }))
    }

    fn make_chunk(&mut self, call: &Asking<'_>, open: &OpenChunk) -> u64 {
        let serial = self.tables.next_serial;
        self.change(&Change::Make {
            serial,
            kind: Kind::File,
            mode: 0,
            uid: 0,
            gid: 0,
            holder_or_device: call.place.0,
            generation: self.next_generation(0),
            bytes: 0,
            now_ns: call.now_ns,
        });
        self.change(&Change::Chunk { serial, file: open.file.serial(), index: open.index });
        serial
    }

    /// Changes a row, and its version.
    fn touch(&mut self, serial: u64, change: impl FnOnce(&mut Inode)) {
        if let Some(mut inode) = self.tables.row(serial).copied() {
            change(&mut inode);
            inode.version = inode.version.wrapping_add(1);
            self.change(&Change::Put { serial, inode });
        }
    }

    /// Lists chunks of a file.
    pub(super) fn list_chunks(&self, list: &Chunks) -> Answered {
        let (_, chunks) = self.chunked(list.file)?;
        let max = (list.max as usize).clamp(1, MANY_MAX);
        let attributes = |(_, serial)| self.attributes(InodeId::new(self.number(), serial));
        let mut found: Vec<Attributes> = match list.writing {
            true => chunks.written_from(list.from).filter_map(attributes).take(max + 1).collect(),
            false => chunks.from(list.from).filter_map(attributes).take(max + 1).collect(),
        };
        let end = found.len() <= max;
        found.truncate(max);
        Ok(Answer::Chunks(ChunkList { chunks: found, end }))
    }

    /// Gives out a range at the end of a file.
    pub(super) fn append(&mut self, call: &Asking<'_>, append: &Append) -> Answered {
        let serial = append.file.serial();
        let (inode, _) = self.chunked(append.file)?;
        if self.has_open(call, serial).writers == 0 {
            return Err(Errno::EBADF.into());
        }
        let offset = self.tables.length_of(serial, &inode);
        let end = offset.checked_add(append.bytes).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        if append.bytes > 0 && !self.plants(Mutant::AppendsOverlap) {
            let now_ns = call.now_ns;
            self.touch(serial, |inode| (inode.bytes, inode.changed_ns) = (end, now_ns));
        }
        Ok(Answer::Offset(Offset { offset }))
    }

    /// Ends the chunks of a file behind its new length, but for those that some node has open.
    pub(super) fn cut_chunks(&mut self, serial: u64, bytes: u64) {
        let Some(chunks) = self.tables.chunks.of_file(serial) else { return };
        let mut first = bytes.div_ceil(chunks.chunk_bytes);
        if self.plants(Mutant::CutsLess) || self.has(Planted::CutLess) {
            first += 1;
        }
        let drops_open = self.plants(Mutant::CutsOpenChunks);
        let kept: Vec<u64> = if drops_open { Vec::new() } else { chunks.open_from(first).collect() };
        if chunks.from(first).nth(kept.len()).is_some() {
            self.change(&Change::Cut { file: serial, first, kept });
        }
    }

    /// Ends all chunks of a file that is about to go.
    pub(super) fn drop_chunks(&mut self, serial: u64) {
        if self.tables.chunks.of_file(serial).is_some_and(|chunks| chunks.count() > 0) {
            self.change(&Change::Cut { file: serial, first: 0, kept: Vec::new() });
        }
    }

    /// Removes the rows of some chunks that are gone, and tells nodes of their objects.
    pub(super) fn bury(&mut self) {
        for serial in self.tables.chunks.unburied().take(BURIED_MAX).collect::<Vec<_>>() {
            let Some(Grave { generation, nodes }) = self.tables.grave(serial) else { continue };
            self.change(&Change::Buried { serial });
            let id = InodeId::new(self.number(), serial);
            let nodes = nodes.into_iter().filter(|node| *node != ARCHIVE);
            self.leaving.extend(nodes.map(|holder| Action::DropObject { holder, id, generation }));
        }
    }

    /// The bytes of an inode have changed. If it is a chunk, its file has, too.
    pub(super) fn chunk_changed(&mut self, call: &Asking<'_>, serial: u64, modified_ns: i64) {
        let Some((file, _)) = self.tables.chunks.file_of(serial) else { return };
        let set_at = self.tables.times_set.get(&file).copied();
        let (now_ns, caller) = (call.now_ns, call.caller);
        self.touch(file, |inode| {
            inode.modified_ns = match set_at {
                // Somebody set the time after the write.
                Some(set_ns) if set_ns >= modified_ns => inode.modified_ns,
                Some(_) => modified_ns,
                None => inode.modified_ns.max(modified_ns),
            };
            if caller.uid != 0 {
                inode.mode = permission::without_privileges(caller, inode);
            }
            inode.changed_ns = now_ns;
        });
        if set_at.is_some_and(|set_ns| set_ns < modified_ns) {
            self.change(&Change::TimeSet { serial: file, until_ns: None });
        }
    }

    /// Whether an attribute may be set that has to do with chunks; the new size of them, if the
    /// attribute says that a file gets some.
    pub(super) fn check_chunk_wish(&self, inode: &Inode, set: &SetXattr) -> Result<Option<u64>, Errno> {
        let serial = set.id.serial();
        if self.tables.chunks.file_of(serial).is_some() {
            return Err(Errno::EPERM);
        }
        let chunk_bytes = self.tables.chunks.of_file(serial).map(|chunks| chunks.chunk_bytes);
        match set.name.as_bytes() {
            CHUNKS_WANTED if inode.kind == Kind::File => {
                let value = set.value.as_deref().unwrap_or(b"0");
                let wanted = bytes_of_mib(chunk_mib_of(value).ok_or(Errno::EINVAL)?);
                if wanted == chunk_bytes {
                    return Ok(None);
                }
                if self.tables.opens_of(serial).next().is_some() {
                    return Err(Errno::EBUSY);
                }
                // It has bytes, or had some, whose object keeps its name.
                let is_fresh = chunk_bytes.is_none() && inode.place().is_none() && inode.bytes == 0;
                if is_fresh { Ok(wanted) } else { Err(Errno::EOPNOTSUPP) }
            }
            _ => Ok(None),
        }
    }

    /// The attribute of a chunk, which is its file's: `None` if it has none.
    pub(super) fn wish_of_chunk(&self, file: u64, name: &[u8]) -> Option<Vec<u8>> {
        match name {
            ARCHIVE_WANTED | COPIES_WANTED => {
                let value = self.tables.xattrs.get(&(file, Box::from(name)))?;
                Some(value.to_vec())
            }
            _ => None,
        }
    }
}
