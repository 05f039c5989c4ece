//! Which chunks a file has, and what they come to: the length of the file, and its blocks.
//!
//! The sums are not in records: each replica makes them from the rows of the chunks, with every
//! change of such a row. So `stat` walks no chunks.
//!
//! A cut takes chunks from their file at once, and leaves their rows: a file may have millions of
//! chunks, and others wait meanwhile. The chunks are *gone*: nobody finds their rows any more. The
//! rows go one by one, as chunks are buried.

use super::inode::Inode;
use crate::NodeNo;
use crate::operation::CHUNK_MIB_MAX;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// Bytes of a chunk, if there may be chunks of so many MiB.
pub(super) fn bytes_of_mib(mib: u32) -> Option<u64> {
    (1..=CHUNK_MIB_MAX).contains(&mib).then(|| u64::from(mib) * MIB)
}

/// A chunk in the list of its file.
#[derive(Clone, Copy, Debug)]
struct Part {
    serial: u64,
    /// As in its row.
    blocks: u64,
}

/// The chunks of a file.
#[derive(Clone, Debug)]
pub(super) struct Chunks {
    /// Bytes of a chunk: whole MiB, never 0.
    pub(super) chunk_bytes: u64,
    by_index: BTreeMap<u64, Part>,
    /// Those with bytes.
    filled: BTreeSet<u64>,
    /// Those that some node has open.
    open: BTreeSet<u64>,
    /// Those that some node has open for writing.
    written: BTreeSet<u64>,
    /// Blocks of all of them.
    blocks: u64,
}

impl Chunks {
    /// The largest index that a chunk may have: no offset in it is beyond what a file may have.
    pub(super) fn index_max(&self) -> u64 {
        (i64::MAX as u64) / self.chunk_bytes - 1
    }

    /// The chunk with this index.
    pub(super) fn get(&self, index: u64) -> Option<u64> {
        self.by_index.get(&index).map(|part| part.serial)
    }

    /// Index and serial number of the chunks from `index` on.
    pub(super) fn from(&self, index: u64) -> impl Iterator<Item = (u64, u64)> {
        self.by_index.range(index..).map(|(index, part)| (*index, part.serial))
    }

    /// The index of those from `index` on that some node has open.
    pub(super) fn open_from(&self, index: u64) -> impl Iterator<Item = u64> {
        self.open.range(index..).copied()
    }

    /// Index and serial number of those that some node has open for writing.
    pub(super) fn written_from(&self, index: u64) -> impl Iterator<Item = (u64, u64)> {
        self.written.range(index..).filter_map(|index| Some((*index, self.get(*index)?)))
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.by_index.len() as u64
    }

    /// Whether some node has one of them open for writing.
    pub(super) fn is_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// Blocks of all of them.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The last one with bytes: no other ends behind it.
    pub(super) fn last_filled(&self) -> Option<(u64, u64)> {
        let index = *self.filled.last()?;
        Some((index, self.get(index)?))
    }

    /// The row of a chunk is this one from now on.
    fn count_in(&mut self, index: u64, row: &Inode) {
        let Some(part) = self.by_index.get_mut(&index) else { return };
        let before = std::mem::replace(&mut part.blocks, row.blocks_or_parent);
        self.blocks = self.blocks.wrapping_sub(before).wrapping_add(row.blocks_or_parent);
        put_if(row.bytes > 0, &mut self.filled, index);
    }

    /// What nodes have open of a chunk.
    fn opened(&mut self, index: u64, is_open: bool, is_written: bool) {
        put_if(is_open, &mut self.open, index);
        put_if(is_written, &mut self.written, index);
    }

    /// Takes out the chunks from `first` on, but for those in `kept`.
    fn split_off(&mut self, first: u64, kept: &[u64]) -> BTreeMap<u64, Part> {
        let mut gone = self.by_index.split_off(&first);
        self.by_index.extend(kept.iter().filter_map(|index| gone.remove_entry(index)));
        for set in [&mut self.filled, &mut self.open, &mut self.written] {
            let behind = set.split_off(&first);
            set.extend(kept.iter().filter(|index| behind.contains(*index)));
        }
        let blocks = gone.values().fold(0u64, |sum, part| sum.wrapping_add(part.blocks));
        self.blocks = self.blocks.wrapping_sub(blocks);
        gone
    }
}

fn put_if(is_in: bool, set: &mut BTreeSet<u64>, index: u64) {
    match is_in {
        true => set.insert(index),
        false => set.remove(&index),
    };
}

/// The object of a chunk that is gone, and which nodes have it: they were not told yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grave {
    pub(super) generation: u64,
    pub(super) nodes: Vec<NodeNo>,
}

/// All files of chunks of a partition.
#[derive(Clone, Default)]
pub(super) struct ChunkTable {
    files: BTreeMap<u64, Chunks>,
    /// File and index of each chunk, and of those that are gone.
    of: BTreeMap<u64, (u64, u64)>,
    /// The chunks that each cut took from its file, and whose rows are still there.
    gone: VecDeque<BTreeMap<u64, Part>>,
    gone_count: u64,
    /// Of chunks whose rows are not there, by the chunk that it was: a snapshot brought them.
    pub(super) graves: BTreeMap<u64, Grave>,
}

impl ChunkTable {
    /// The chunks of a file; `None` for a file that has none.
    pub(super) fn of_file(&self, file: u64) -> Option<&Chunks> {
        self.files.get(&file)
    }

    /// The file that a chunk is a part of, and the chunk's index.
    pub(super) fn file_of(&self, chunk: u64) -> Option<(u64, u64)> {
        let (file, index) = self.of.get(&chunk).copied()?;
        let is_there = || self.of_file(file)?.get(index).filter(|there| *there == chunk);
        (self.gone.is_empty() || is_there().is_some()).then_some((file, index))
    }

    /// Whether the inode is a chunk that was cut from its file.
    pub(super) fn is_gone(&self, chunk: u64) -> bool {
        !self.gone.is_empty() && self.of.contains_key(&chunk) && self.file_of(chunk).is_none()
    }

    /// How many rows there are of chunks that are gone.
    pub(super) fn gone_count(&self) -> u64 {
        self.gone_count
    }

    /// The chunks that were not buried yet, in the order in which they are.
    pub(super) fn unburied(&self) -> impl Iterator<Item = u64> {
        let gone = self.gone.iter().flat_map(|cut| cut.values());
        self.graves.keys().copied().chain(gone.map(|part| part.serial))
    }

    /// All files of chunks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Chunks)> {
        self.files.iter().map(|(file, chunks)| (*file, chunks))
    }

    /// A file gets its bytes in chunks from now on; whether there may be chunks of that size, and
    /// it had none.
    pub(super) fn begin(&mut self, file: u64, chunk_bytes: u64) -> bool {
        let mib = u32::try_from(chunk_bytes / MIB).unwrap_or(u32::MAX);
        let fits = bytes_of_mib(mib) == Some(chunk_bytes) && !self.of.contains_key(&file);
        let chunks = Chunks {
            chunk_bytes,
            by_index: BTreeMap::new(),
            filled: BTreeSet::new(),
            open: BTreeSet::new(),
            written: BTreeSet::new(),
            blocks: 0,
        };
        fits && self.files.insert(file, chunks).is_none()
    }

    /// A file is gone; whether its chunks went before.
    pub(super) fn end(&mut self, file: u64) -> bool {
        self.files.remove(&file).is_none_or(|chunks| chunks.by_index.is_empty())
    }

    /// An inode that nobody has open becomes a chunk; whether it can.
    pub(super) fn add(&mut self, file: u64, index: u64, chunk: u64, row: &Inode) -> bool {
        let is_other = self.files.contains_key(&chunk) || self.of.contains_key(&chunk);
        let Some(chunks) = self.files.get_mut(&file).filter(|chunks| index <= chunks.index_max()) else {
            return false;
        };
        if is_other || row.place().is_none() || chunks.by_index.contains_key(&index) {
            return false;
        }
        chunks.by_index.insert(index, Part { serial: chunk, blocks: 0 });
        chunks.count_in(index, row);
        self.of.insert(chunk, (file, index));
        true
    }

    /// The chunks of the file of an inode, if it is a chunk, and its index.
    fn list_of(&mut self, chunk: u64) -> Option<(&mut Chunks, u64)> {
        let (file, index) = self.file_of(chunk)?;
        Some((self.files.get_mut(&file)?, index))
    }

    /// The row of an inode, which may be a chunk, becomes another one.
    pub(super) fn changed(&mut self, chunk: u64, row: &Inode) {
        if let Some((chunks, index)) = self.list_of(chunk) {
            chunks.count_in(index, row);
        }
    }

    /// What nodes have open of an inode, which may be a chunk, has changed.
    pub(super) fn opened(&mut self, chunk: u64, is_open: bool, is_written: bool) {
        if let Some((chunks, index)) = self.list_of(chunk) {
            chunks.opened(index, is_open, is_written);
        }
    }

    /// Takes the chunks from `first` on from a file, but for those in `kept`, which is in order:
    /// they are gone. Whether the file has chunks.
    pub(super) fn cut(&mut self, file: u64, first: u64, kept: &[u64]) -> bool {
        let Some(chunks) = self.files.get_mut(&file) else { return false };
        let gone = chunks.split_off(first, kept);
        self.gone_count += gone.len() as u64;
        if !gone.is_empty() {
            self.gone.push_back(gone);
        }
        true
    }

    /// A chunk that is gone is buried: its row is about to go. Whether it was there.
    pub(super) fn bury(&mut self, chunk: u64) -> bool {
        let Some((_, index)) = self.of.get(&chunk).copied() else { return false };
        let is_it = |cut: &BTreeMap<u64, Part>| cut.get(&index).is_some_and(|part| part.serial == chunk);
        // It is in the first one, unless another primary begins in the middle.
        let Some(at) = self.gone.iter().position(is_it) else { return false };
        self.gone[at].remove(&index);
        if self.gone[at].is_empty() {
            self.gone.remove(at);
        }
        self.gone_count -= 1;
        self.of.remove(&chunk);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn row(bytes: u64, blocks: u64) -> Inode {
        Inode {
            bytes,
            blocks_or_parent: blocks,
            holder_or_device: 1,
            generation: 1,
            ..Inode::new(Kind::File, 0)
        }
    }

    /// A chunk: its number, its row, and whether nodes have it open, and for writing.
    type Row = (u64, Inode, bool, bool);

    /// What the sums must be, from the rows, and which chunks are gone.
    fn check(table: &ChunkTable, rows: &BTreeMap<u64, Row>, gone: &BTreeSet<u64>) {
        let chunks = table.of_file(1).expect("the file has chunks");
        let filled = rows.iter().rfind(|(_, (_, row, ..))| row.bytes > 0);
        assert_eq!(chunks.last_filled(), filled.map(|(index, (serial, ..))| (*index, *serial)));
        assert_eq!(chunks.blocks(), rows.values().map(|(_, row, ..)| row.blocks_or_parent).sum::<u64>());
        assert_eq!(chunks.count(), rows.len() as u64);
        let which = |is: fn(&Row) -> bool| -> Vec<u64> {
            rows.iter().filter(|(_, row)| is(row)).map(|(index, _)| *index).collect()
        };
        let written: Vec<_> = chunks.written_from(0).map(|(index, _)| index).collect();
        assert_eq!(written, which(|(.., is_written)| *is_written));
        assert_eq!(chunks.open_from(0).collect::<Vec<_>>(), which(|(_, _, is_open, _)| *is_open));
        assert_eq!(chunks.is_written(), !written.is_empty());
        for (index, (serial, ..)) in rows {
            assert_eq!((chunks.get(*index), table.file_of(*serial)), (Some(*serial), Some((1, *index))));
            assert!(!table.is_gone(*serial));
        }
        assert_eq!(
            (table.unburied().collect::<BTreeSet<_>>(), table.gone_count()),
            (gone.clone(), gone.len() as u64)
        );
        assert!(gone.iter().all(|serial| table.is_gone(*serial) && table.file_of(*serial).is_none()));
    }

    #[test]
    fn the_sums_are_those_of_the_rows() {
        let mut table = ChunkTable::default();
        assert!(table.begin(1, 4 * MIB));
        let (mut rows, mut gone, mut serial) = (BTreeMap::<u64, Row>::new(), BTreeSet::new(), 100);
        let mut state = 7u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..5_000 {
            let index = draw(12);
            match (draw(7), rows.get_mut(&index)) {
                (0, _) => {
                    let kept: Vec<u64> = rows.range(index..).map(|(index, _)| *index).collect();
                    let kept: Vec<u64> = kept.into_iter().filter(|_| draw(4) == 0).collect();
                    assert!(table.cut(1, index, &kept));
                    let goes = |at: &u64| *at >= index && !kept.contains(at);
                    gone.extend(rows.extract_if(.., |at, _| goes(at)).map(|(_, (serial, ..))| serial));
                }
                (1..3, None) => {
                    serial += 1;
                    let row = row(draw(3), draw(9));
                    assert!(table.add(1, index, serial, &row));
                    rows.insert(index, (serial, row, false, false));
                }
                (3, Some((serial, _, is_open, is_written))) => {
                    *is_open = draw(2) == 0;
                    *is_written = *is_open && draw(2) == 0;
                    table.opened(*serial, *is_open, *is_written);
                }
                // In any order: a primary may have them in another one than its backup.
                (4, _) if !gone.is_empty() => {
                    let at = draw(gone.len() as u64) as usize;
                    let serial = gone.iter().nth(at).copied().expect("one of them");
                    gone.remove(&serial);
                    assert!(table.bury(serial) && !table.bury(serial));
                }
                (_, Some((serial, before, ..))) => {
                    let after = row(draw(3), draw(9));
                    table.changed(*serial, &after);
                    *before = after;
                }
                _ => {}
            }
            check(&table, &rows, &gone);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut table = ChunkTable::default();
        for bytes in [0, 1, MIB + 1, 1025 * MIB, u64::MAX] {
            assert!(!table.begin(1, bytes), "{bytes}");
        }
        assert!(table.begin(1, MIB) && !table.begin(1, MIB));
        let (row, placeless) = (row(1, 1), Inode { generation: 0, ..row(1, 1) });
        let last = table.of_file(1).expect("it has chunks").index_max();
        assert!(!table.add(1, last + 1, 2, &row), "beyond the largest file");
        assert!(!table.add(3, 0, 2, &row), "no such file");
        assert!(!table.add(1, 0, 2, &placeless), "it has no place");
        assert!(!table.add(1, 0, 1, &row), "a file is no chunk of itself");
        assert!(table.add(1, last, 2, &row));
        assert!(!table.add(1, last, 3, &row) && !table.add(1, 0, 2, &row), "twice");
        assert!(!table.begin(2, MIB), "a chunk has no chunks");
        assert!(!table.end(1), "it has a chunk");
    }
}
