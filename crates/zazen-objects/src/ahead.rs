//! Bytes that are fetched before they are asked for: the beginning of an object that was just
//! opened, and what follows a read of an object that is read from front to back.
//!
//! Invariants: at most [`PARTS_MAX`] parts of at most `READ_BYTES_MAX` bytes are held or under way.
//! The part that was asked for first gives way to a new one.

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, Shared};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_core::{Error, RelPath, Validator};

/// Parts of all objects together.
const PARTS_MAX: usize = 32;
/// Parts of one object that are under way, at most.
const WINDOW_MAX: u64 = 4;
/// Objects whose reads are followed.
const FOLLOWED_MAX: usize = 4096;

/// Shorter pieces are joined: a server that sends byte by byte must not cost a piece for each.
const PIECE_BYTES_MIN: usize = 8 << 10;
/// How long such a joined piece becomes.
const JOINED_BYTES: usize = 64 << 10;

/// Bytes as they came from the network, in their order: nobody copies them into one piece.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces(Vec<Bytes>);

/// Pieces that are coming.
#[derive(Default)]
pub(crate) struct Gathered {
    pieces: Pieces,
    /// Short ones, which come behind the others.
    short: Vec<u8>,
}

impl Gathered {
    pub(crate) fn add(&mut self, piece: Bytes) {
        if piece.len() < PIECE_BYTES_MIN {
            self.short.extend_from_slice(&piece);
            if self.short.len() < JOINED_BYTES {
                return;
            }
        }
        self.pieces.push(std::mem::take(&mut self.short).into());
        if piece.len() >= PIECE_BYTES_MIN {
            self.pieces.push(piece);
        }
    }

    pub(crate) fn end(mut self) -> Pieces {
        self.pieces.push(self.short.into());
        self.pieces
    }
}

impl Pieces {
    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.0.push(piece);
        }
    }

    pub(crate) fn length(&self) -> u64 {
        self.0.iter().map(|piece| piece.len() as u64).sum()
    }

    pub(crate) fn into_vec(self) -> Vec<Bytes> {
        self.0
    }

    /// The first `count` bytes, or all, and the rest.
    pub(crate) fn split(self, count: u64) -> (Pieces, Pieces) {
        let (mut first, mut rest, mut left) = (Pieces::default(), Pieces::default(), count);
        for mut piece in self.0 {
            let here = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= here as u64;
            first.push(piece.split_to(here));
            rest.push(piece);
        }
        (first, rest)
    }
}

/// A part that is here or on its way.
#[derive(Clone)]
pub(crate) struct Part {
    /// So many bytes it has, or will have.
    pub(crate) length: u64,
    /// The bytes.
    pub(crate) bytes: Shared<BoxFuture<'static, Result<Pieces, Arc<Error>>>>,
}

impl Part {
    /// A part of `length` bytes that `bytes` brings.
    pub(crate) fn coming(
        length: u64,
        bytes: impl Future<Output = Result<Pieces, Arc<Error>>> + Send + 'static,
    ) -> Part {
        Part { length, bytes: bytes.boxed().shared() }
    }

    /// A part that is here.
    pub(crate) fn here(bytes: Pieces) -> Part {
        Part::coming(bytes.length(), std::future::ready(Ok(bytes)))
    }
}

/// One version of an object.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Version {
    pub(crate) path: RelPath,
    size: u64,
    mtime_ns: i64,
    tag: (u64, i64),
}

impl Version {
    pub(crate) fn of(path: &RelPath, seen: &Validator) -> Version {
        let Validator { size, mtime_ns, ctime_ns, inode, .. } = *seen;
        Version { path: path.clone(), size, mtime_ns, tag: (inode, ctime_ns) }
    }
}

/// What is fetched ahead. Threads share it.
#[derive(Default)]
pub(crate) struct Ahead(Mutex<State>);

#[derive(Default)]
struct State {
    parts: HashMap<(Version, u64), Part>,
    /// In the order in which they were asked for; some may be taken by now.
    order: VecDeque<(Version, u64)>,
    followed: HashMap<Version, Followed>,
    /// How far the objects of a folder are read from their beginning on.
    habits: HashMap<RelPath, u64>,
}

/// The reads of one object.
#[derive(Clone, Copy)]
struct Followed {
    /// Where the first one of those in order began.
    begin: u64,
    /// Where the last one ended.
    end: u64,
    /// How many parts are fetched ahead of it.
    window: u64,
    /// To where parts were fetched.
    fetched: u64,
}

impl Ahead {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the part that begins at `offset`.
    pub(crate) fn take(&self, version: &Version, offset: u64) -> Option<Part> {
        self.state().parts.remove(&(version.clone(), offset))
    }

    /// Keeps a part.
    pub(crate) fn keep(&self, version: &Version, offset: u64, part: Part) {
        let mut state = self.state();
        let key = (version.clone(), offset);
        if state.parts.insert(key.clone(), part).is_none() {
            state.order.push_back(key);
        }
        while state.parts.len() > PARTS_MAX || state.order.len() > 4 * PARTS_MAX {
            let Some(oldest) = state.order.pop_front() else { break };
            state.parts.remove(&oldest);
        }
    }

    /// Notes a read of `bytes` at `offset`. Says what to fetch now, in parts of `part_bytes`.
    pub(crate) fn after_read(
        &self,
        version: &Version,
        offset: u64,
        bytes: u64,
        part_bytes: u64,
    ) -> Vec<Range<u64>> {
        let mut state = self.state();
        let end = offset + bytes;
        let (begin, window, mut fetched) = match state.followed.get(version) {
            Some(last) if last.end == offset => {
                (last.begin, (last.window * 2).clamp(1, WINDOW_MAX), last.fetched.max(end))
            }
            // An object that is one of many alike is read as they were.
            _ if offset == 0 && end < state.habit(&version.path) => (0, 1, end),
            _ => (offset, 0, end),
        };
        let wanted = version.size.min(end + window * part_bytes);
        let mut parts = Vec::new();
        while fetched < wanted {
            let next = version.size.min(fetched + part_bytes);
            parts.push(fetched..next);
            fetched = next;
        }
        if state.followed.len() >= FOLLOWED_MAX {
            state.followed.clear();
        }
        state.followed.insert(version.clone(), Followed { begin, end, window, fetched });
        state.learn(&version.path, if begin == 0 { end } else { 0 });
        parts
    }

    /// How many bytes from its beginning on are likely to be read of an object: as many as of
    /// others in its folder. 0: nothing is known, or they are not read from the beginning.
    pub(crate) fn habit(&self, path: &RelPath) -> u64 {
        self.state().habit(path)
    }
}

impl State {
    fn habit(&self, path: &RelPath) -> u64 {
        let folder = path.split().map(|(folder, _)| folder).unwrap_or_default();
        self.habits.get(&folder).copied().unwrap_or(0)
    }

    /// One object was read from its beginning to `end`, or elsewhere (0).
    fn learn(&mut self, path: &RelPath, end: u64) {
        let folder = path.split().map(|(folder, _)| folder).unwrap_or_default();
        if self.habits.len() >= FOLLOWED_MAX {
            self.habits.clear();
        }
        let habit = self.habits.entry(folder).or_default();
        *habit = if end == 0 { 0 } else { end.max(*habit) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str) -> Version {
        let seen = Validator { size: 1000, mtime_ns: 1, ctime_ns: 2, inode: 3, unsettled: false };
        Version::of(&RelPath::new(name).unwrap(), &seen)
    }

    fn part(bytes: &'static [u8]) -> Part {
        let mut pieces = Pieces::default();
        pieces.push(Bytes::from_static(bytes));
        Part::here(pieces)
    }

    #[test]
    fn reads_in_order_fetch_ahead_and_others_do_not() {
        let (ahead, version) = (Ahead::default(), version("a"));
        let read = |offset, bytes| ahead.after_read(&version, offset, bytes, 100);
        assert!(read(0, 50).is_empty(), "one read shows no order");
        assert_eq!(read(50, 100), vec![150..250; 1]);
        assert_eq!(read(150, 100), [250..350, 350..450]);
        assert_eq!(read(250, 10), [450..550, 550..650, 650..750], "each byte once");
        assert_eq!(read(260, 300), [750..850, 850..950, 950..1000]);
        assert!(read(560, 340).is_empty(), "nothing lies beyond the end");
        assert!(read(50, 100).is_empty() && read(900, 100).is_empty());
    }

    #[test]
    fn objects_of_a_folder_are_read_as_their_like_until_one_is_not() {
        let ahead = Ahead::default();
        let read = |name, offset, bytes| ahead.after_read(&version(name), offset, bytes, 100);
        let habit = |name| ahead.habit(&RelPath::new(name).unwrap());
        assert_eq!(habit("d/a"), 0);
        assert!(read("d/a", 0, 50).is_empty());
        read("d/a", 50, 250);
        assert_eq!((habit("d/b"), habit("e/b")), (300, 0), "that of its own folder");
        assert_eq!(read("d/b", 0, 100), vec![100..200; 1], "more is wanted, as of a");
        assert!(read("d/c", 0, 300).is_empty(), "that was all, as of a");
        assert_eq!(habit("d/d"), 300, "one that is still read says nothing less");
        assert!(read("d/b", 500, 10).is_empty());
        assert_eq!(habit("d/d"), 0);
    }

    #[test]
    fn pieces_are_split_at_any_byte() {
        let mut all = Pieces::default();
        for piece in [&b"abc"[..], b"", b"d", b"efgh"] {
            all.push(Bytes::from_static(piece));
        }
        assert_eq!(all.length(), 8);
        for count in 0..10 {
            let (first, rest) = all.clone().split(count);
            let joined = |pieces: Pieces| pieces.into_vec().concat();
            assert_eq!(first.length(), count.min(8));
            assert_eq!([joined(first), joined(rest)].concat(), b"abcdefgh", "at {count}");
        }
    }

    #[test]
    fn short_pieces_are_joined_in_their_order() {
        let bytes: Vec<u8> = (0..400_000u32).map(|at| (at % 251) as u8).collect();
        for lengths in [&[1][..], &[3, 9000], &[PIECE_BYTES_MIN], &[100_000, 1, 5000]] {
            let (mut gathered, mut left) = (Gathered::default(), Bytes::from(bytes.clone()));
            for length in lengths.iter().cycle() {
                gathered.add(left.split_to((*length).min(left.len())));
                if left.is_empty() {
                    break;
                }
            }
            let pieces = gathered.end().into_vec();
            assert!(pieces.len() <= 2 * bytes.len() / PIECE_BYTES_MIN, "{lengths:?}: {}", pieces.len());
            assert!(pieces.concat() == bytes, "{lengths:?}");
        }
    }

    #[test]
    fn parts_are_bounded_and_the_oldest_gives_way() {
        let ahead = Ahead::default();
        for at in 0..10_000u64 {
            ahead.keep(&version("a"), at, part(b"x"));
            if at % 3 == 0 {
                assert!(ahead.take(&version("a"), at).is_some());
            }
            let state = ahead.state();
            assert!(state.parts.len() <= PARTS_MAX && state.order.len() <= 4 * PARTS_MAX);
        }
        assert!(ahead.take(&version("a"), 10).is_none() && ahead.take(&version("b"), 9998).is_none());
        assert!(ahead.take(&version("a"), 9998).is_some());
    }
}
