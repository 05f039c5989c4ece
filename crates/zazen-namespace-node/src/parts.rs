//! What a handle of a file in chunks has open of its chunks, and how a range is read of them.
//!
//! Each chunk that is read or written gets a handle of its own, which stays open for a while: the
//! one that was used longest ago goes when there are many. One that a thread works with never goes:
//! the metadata must count it as open until the work has ended. *Pure.*

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_namespace::Errno;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Chunks that one handle keeps open.
pub(crate) const OPEN_MAX: usize = 64;

/// A part of a range of bytes that lies in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The chunk's number.
    pub(crate) index: u64,
    /// The first byte, from the chunk's start.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The first byte, from the start of the range.
    pub(crate) at: u64,
}

/// Cuts a range at the chunks.
pub(crate) fn pieces(chunk_bytes: u64, offset: u64, bytes: u64) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= bytes {
            return None;
        }
        let start = offset.saturating_add(at);
        let within = start % chunk_bytes;
        let piece = Piece {
            index: start / chunk_bytes,
            offset: within,
            bytes: (chunk_bytes - within).min(bytes - at),
            at,
        };
        at += piece.bytes;
        Some(piece)
    })
}

/// A file in chunks that is read.
pub(crate) trait Source {
    /// Reads a piece to its place in `into`. How many bytes the chunk has there.
    fn read_piece(&mut self, piece: Piece, into: &mut [u8]) -> Result<u64, Errno>;
    /// Where the file ends now, if it may be before `needed`.
    fn end(&mut self, needed: u64) -> Result<u64, Errno>;
}

/// Reads `bytes` at `offset`: fewer only where the file ends.
///
/// The bytes behind the end of a short chunk are zeros, up to the end of the file. The end is asked
/// for first, and then the chunks that were short are read once more: what was written before the
/// end was told is read, and no zeros in its place.
pub(crate) fn read_range(
    source: &mut impl Source,
    chunk_bytes: u64,
    offset: u64,
    bytes: usize,
) -> Result<Vec<u8>, Errno> {
    let mut got = vec![0; bytes];
    let mut short = Vec::new();
    let mut reached = 0;
    for piece in pieces(chunk_bytes, offset, bytes as u64) {
        let count = source.read_piece(piece, &mut got)?;
        if count > 0 {
            reached = piece.at + count;
        }
        if count < piece.bytes {
            short.push((piece, count));
        }
    }
    if short.is_empty() {
        return Ok(got);
    }
    let end = source.end(offset.saturating_add(bytes as u64))?;
    let length = end.saturating_sub(offset).min(bytes as u64).max(reached);
    for (piece, count) in short {
        // What lies behind the end may have been written since: it is not read.
        if piece.at + count < length {
            let rest = Piece {
                offset: piece.offset + count,
                bytes: piece.bytes - count,
                at: piece.at + count,
                ..piece
            };
            source.read_piece(rest, &mut got)?;
        }
    }
    got.truncate(length as usize);
    Ok(got)
}

/// The chunks that a handle has open, as handles of type `T`. For any thread.
pub(crate) struct Parts<T> {
    pub(crate) chunk_bytes: u64,
    open: Mutex<Open<T>>,
    written: Mutex<Written>,
    syncing: Mutex<()>,
}

/// What was done to chunks, open or not.
#[derive(Default)]
struct Written {
    /// May have been written since the last sync.
    unsynced: BTreeSet<u64>,
    /// Were written to their end, and the metadata knows that.
    full: HashSet<u64>,
    /// What closing a chunk failed with, for the next call that tells of such things.
    failure: Option<Errno>,
}

/// Open chunks by their number, and whether they are open for writing.
struct Open<T> {
    by_index: HashMap<(u64, bool), (Arc<T>, u64)>,
    /// Counts uses.
    uses: u64,
    /// The handle was closed: nothing is kept any more.
    closed: bool,
}

impl<T> Open<T> {
    fn new() -> Open<T> {
        Open { by_index: HashMap::new(), uses: 0, closed: false }
    }

    /// What is open of a chunk: what may be written can be read, too.
    fn get(&mut self, index: u64, write: bool) -> Option<Arc<T>> {
        self.uses += 1;
        let key =
            if write || self.by_index.contains_key(&(index, true)) { (index, true) } else { (index, false) };
        let (part, used) = self.by_index.get_mut(&key)?;
        *used = self.uses;
        Some(Arc::clone(part))
    }

    /// Keeps what was opened, or gives what another thread has opened meanwhile; and what is to be
    /// closed, so that `most` stay.
    fn keep(&mut self, index: u64, write: bool, fresh: Arc<T>, most: usize) -> (Arc<T>, Vec<Arc<T>>) {
        if let Some(there) = self.get(index, write) {
            return (there, vec![fresh]);
        }
        if self.closed {
            return (Arc::clone(&fresh), vec![fresh]);
        }
        self.by_index.insert((index, write), (Arc::clone(&fresh), self.uses));
        let mut close = Vec::new();
        if write {
            close.extend(self.take_idle((index, false)));
        }
        while self.by_index.len() > most {
            let idle = self.by_index.iter().filter(|(_, (part, _))| Arc::strong_count(part) == 1);
            let Some(oldest) = idle.min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key) else { break };
            close.extend(self.take_idle(oldest));
        }
        (fresh, close)
    }

    /// Takes one with which nobody works just now.
    fn take_idle(&mut self, key: (u64, bool)) -> Option<Arc<T>> {
        let idle = self.by_index.get(&key).is_some_and(|(part, _)| Arc::strong_count(part) == 1);
        if idle { self.by_index.remove(&key).map(|(part, _)| part) } else { None }
    }

    fn take_idle_from(&mut self, index: u64) -> Vec<Arc<T>> {
        let behind: Vec<_> = self.by_index.keys().copied().filter(|(at, _)| *at >= index).collect();
        behind.into_iter().filter_map(|key| self.take_idle(key)).collect()
    }

    fn forget(&mut self, part: &Arc<T>) {
        self.by_index.retain(|_, (kept, _)| !Arc::ptr_eq(kept, part));
    }
}

impl<T> Parts<T> {
    pub(crate) fn new(chunk_bytes: u64) -> Parts<T> {
        let (open, written) = (Mutex::new(Open::new()), Mutex::default());
        // Never 0, whatever another node says.
        Parts { chunk_bytes: chunk_bytes.max(1), open, written, syncing: Mutex::new(()) }
    }

    pub(crate) fn get(&self, index: u64, write: bool) -> Option<Arc<T>> {
        lock(&self.open).get(index, write)
    }

    /// Keeps what was opened, or gives what another thread has opened meanwhile; and what the
    /// caller must close, so that `most` stay.
    pub(crate) fn keep(&self, index: u64, write: bool, fresh: Arc<T>, most: usize) -> (Arc<T>, Vec<Arc<T>>) {
        lock(&self.open).keep(index, write, fresh, most)
    }

    pub(crate) fn forget(&self, part: &Arc<T>) {
        lock(&self.open).forget(part);
    }

    /// Takes the chunks from a number on with which nobody works just now.
    pub(crate) fn take_idle_from(&self, index: u64) -> Vec<Arc<T>> {
        lock(&self.open).take_idle_from(index)
    }

    /// Takes all; the handle is being closed. What a thread opens afterwards is to be closed at
    /// once.
    pub(crate) fn take_all(&self) -> Vec<Arc<T>> {
        let mut open = lock(&self.open);
        open.closed = true;
        std::mem::take(&mut open.by_index).into_values().map(|(part, _)| part).collect()
    }

    /// What is open for writing.
    pub(crate) fn writers(&self) -> Vec<Arc<T>> {
        let open = lock(&self.open);
        let writers = open.by_index.iter().filter(|((_, write), _)| *write);
        writers.map(|(_, (part, _))| Arc::clone(part)).collect()
    }

    /// The right to sync: who waits for it finds done what was taken to be synced.
    pub(crate) fn syncing(&self) -> MutexGuard<'_, ()> {
        lock(&self.syncing)
    }

    /// The chunk is to be synced.
    pub(crate) fn note_write(&self, index: u64) {
        lock(&self.written).unsynced.insert(index);
    }

    /// Changes a chunk. A sync that comes between does not count for it.
    pub(crate) fn writing<R>(&self, index: u64, change: impl FnOnce() -> R) -> R {
        self.note_write(index);
        let changed = change();
        self.note_write(index);
        changed
    }

    /// The chunk was written to its end. Whether that was not so before.
    pub(crate) fn note_full(&self, index: u64) -> bool {
        lock(&self.written).full.insert(index)
    }

    /// Chunks from this one on were cut.
    pub(crate) fn note_cut(&self, index: u64) {
        let mut written = lock(&self.written);
        written.full.retain(|full| *full < index);
        // What is not there any more needs no sync.
        written.unsynced.retain(|unsynced| *unsynced <= index);
    }

    /// The chunks that were written since this was asked last.
    pub(crate) fn take_unsynced(&self) -> BTreeSet<u64> {
        std::mem::take(&mut lock(&self.written).unsynced)
    }

    /// What cannot be told to the program now.
    pub(crate) fn note_failure(&self, errno: Errno) {
        lock(&self.written).failure.get_or_insert(errno);
    }

    /// What could not be told before.
    pub(crate) fn take_failure(&self) -> Result<(), Errno> {
        lock(&self.written).failure.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_opened_after_the_end_is_closed_at_once() {
        let parts = Parts::new(8);
        let (kept, close) = parts.keep(0, true, Arc::new(1), 64);
        assert!(close.is_empty() && *kept == 1);
        assert_eq!(parts.take_all().len(), 1);
        let (part, close) = parts.keep(1, true, Arc::new(2), 64);
        assert!(Arc::ptr_eq(&part, &close[0]) && parts.take_all().is_empty());
    }

    #[test]
    fn a_sync_during_a_write_is_not_one_of_it() {
        let parts = Parts::<()>::new(8);
        parts.writing(5, || assert_eq!(parts.take_unsynced().len(), 1));
        assert_eq!(parts.take_unsynced().into_iter().collect::<Vec<_>>(), [5]);
        assert!(parts.take_unsynced().is_empty());
    }

    #[test]
    fn pieces_are_the_range_cut_at_chunks() {
        for (chunk, offset, bytes) in
            [(8, 0, 0), (8, 0, 8), (8, 3, 5), (8, 3, 6), (8, 7, 30), (1 << 20, 5, 3)]
        {
            let all: Vec<Piece> = pieces(chunk, offset, bytes).collect();
            let mut at = 0;
            for piece in &all {
                assert_eq!(piece.at, at);
                assert_eq!(piece.index * chunk + piece.offset, offset + at);
                assert!(piece.bytes > 0 && piece.offset + piece.bytes <= chunk);
                at += piece.bytes;
            }
            assert_eq!(at, bytes);
            let ends_in = all.iter().filter(|piece| piece.offset + piece.bytes < chunk).count();
            assert!(ends_in <= 1, "only the last piece ends within a chunk");
        }
        let last = pieces(1 << 20, i64::MAX as u64 - 3, 3).last().map(|piece| piece.bytes);
        assert_eq!(last, Some(3));
    }

    /// A file that somebody else writes at the moment at which it is asked for its end.
    struct Growing {
        chunk_bytes: u64,
        /// Bytes of chunks; none of one that there is not.
        chunks: Vec<Vec<u8>>,
        /// What is written then, and how long the file is said to be.
        written: Vec<(u64, &'static [u8])>,
        end: u64,
        asked: Vec<u64>,
    }

    impl Source for Growing {
        fn read_piece(&mut self, piece: Piece, into: &mut [u8]) -> Result<u64, Errno> {
            let chunk = self.chunks.get(piece.index as usize).map_or(&[][..], |chunk| chunk);
            let from = chunk.len().min(piece.offset as usize);
            let to = chunk.len().min((piece.offset + piece.bytes) as usize);
            let at = piece.at as usize;
            into[at..at + to - from].copy_from_slice(&chunk[from..to]);
            Ok((to - from) as u64)
        }

        fn end(&mut self, needed: u64) -> Result<u64, Errno> {
            self.asked.push(needed);
            for (offset, bytes) in std::mem::take(&mut self.written) {
                for piece in pieces(self.chunk_bytes, offset, bytes.len() as u64) {
                    let chunk = &mut self.chunks[piece.index as usize];
                    chunk.resize(chunk.len().max((piece.offset + piece.bytes) as usize), 0);
                    let data = &bytes[piece.at as usize..(piece.at + piece.bytes) as usize];
                    chunk[piece.offset as usize..][..data.len()].copy_from_slice(data);
                }
            }
            Ok(self.end)
        }
    }

    fn read_while_it_grows(
        chunks: &[&[u8]],
        written: &[(u64, &'static [u8])],
        end: u64,
        (offset, bytes): (u64, usize),
    ) -> (Vec<u8>, Vec<u64>) {
        let chunks = chunks.iter().map(|chunk| chunk.to_vec()).collect();
        let written = written.to_vec();
        let mut file = Growing { chunk_bytes: 4, chunks, written, end, asked: Vec::new() };
        let got = read_range(&mut file, 4, offset, bytes).expect("it is read");
        (got, file.asked)
    }

    #[test]
    fn what_was_written_before_the_end_was_told_is_read_and_no_zeros() {
        // The chunk was short, and is whole before the next one gets the file's end.
        let grows = |all| read_while_it_grows(&[b"ab", b""], &[(2, b"cd"), (4, b"ef")], 6, all);
        assert_eq!(grows((0, 8)), (b"abcdef".to_vec(), vec![8]));
        assert_eq!(grows((1, 3)), (b"bcd".to_vec(), vec![4]));
        assert_eq!(grows((3, 1)), (b"d".to_vec(), vec![4]));
        // What was written after the end was told is behind it: it comes another time.
        let (got, _) = read_while_it_grows(&[b"ab", b""], &[(2, b"cd"), (4, b"ef")], 3, (0, 8));
        assert_eq!(got, b"abc");
        // A hole is zeros up to the end, and nobody is asked if the range is there.
        assert_eq!(read_while_it_grows(&[b"ab", b"", b"x"], &[], 9, (0, 20)).0, b"ab\0\0\0\0\0\0x");
        assert_eq!(read_while_it_grows(&[b"abcd", b"ef"], &[], 0, (1, 5)), (b"bcdef".to_vec(), vec![]));
        // What has been read stays, whatever the end is said to be.
        assert_eq!(read_while_it_grows(&[b"", b"ef"], &[], 0, (0, 9)).0, b"\0\0\0\0ef");
    }

    fn filled(count: u64) -> Open<u64> {
        let mut open = Open::new();
        for index in 0..count {
            let (_, close) = open.keep(index, true, Arc::new(index), OPEN_MAX);
            assert!(close.is_empty());
        }
        open
    }

    #[test]
    fn the_one_that_was_used_longest_ago_goes_but_none_that_is_in_use() {
        let mut open = filled(OPEN_MAX as u64);
        let in_use = open.get(0, true).unwrap();
        open.get(1, false).unwrap();
        let (_, close) = open.keep(100, false, Arc::new(100), OPEN_MAX);
        assert_eq!(close.iter().map(|part| **part).collect::<Vec<_>>(), [2]);
        assert!(open.get(0, true).is_some_and(|part| Arc::ptr_eq(&part, &in_use)));
        drop(in_use);
        assert_eq!(open.take_idle_from(60).len(), OPEN_MAX - 60 + 1);
        assert!(open.get(100, false).is_none() && open.get(59, true).is_some());
    }

    #[test]
    fn all_in_use_stay_even_if_they_are_many() {
        let mut open = Open::new();
        let all: Vec<_> =
            (0..OPEN_MAX as u64 + 5).map(|at| open.keep(at, false, Arc::new(at), OPEN_MAX).0).collect();
        assert_eq!(open.by_index.len(), all.len());
        assert!(open.take_idle_from(0).is_empty());
        drop(all);
        let (_, close) = open.keep(999, false, Arc::new(999), OPEN_MAX);
        assert_eq!((open.by_index.len(), close.len()), (OPEN_MAX, 6));
        // Of a user who has many, one stays: the one that is wanted now.
        let (last, close) = open.keep(1000, true, Arc::new(1000), 1);
        assert_eq!((open.by_index.len(), close.len(), *last), (1, OPEN_MAX, 1000));
    }

    #[test]
    fn one_for_writing_takes_the_place_of_one_for_reading_and_the_first_opened_stays() {
        let mut open = Open::new();
        let (reads, _) = open.keep(7, false, Arc::new(1), OPEN_MAX);
        let (writes, close) = open.keep(7, true, Arc::new(2), OPEN_MAX);
        assert!(close.is_empty(), "somebody reads by it");
        assert!(open.get(7, false).is_some_and(|part| Arc::ptr_eq(&part, &writes)));
        drop(reads);
        let (there, close) = open.keep(7, true, Arc::new(3), OPEN_MAX);
        assert!(Arc::ptr_eq(&there, &writes));
        assert_eq!(close.iter().map(|part| **part).collect::<Vec<_>>(), [3]);
        open.forget(&writes);
        assert!(open.get(7, true).is_none());
        assert_eq!(open.get(7, false).map(|part| *part), Some(1));
    }
}
