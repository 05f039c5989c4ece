//! Bytes that are fetched before they are asked for: the beginning of an object that was just
//! opened, and what follows a read of an object that is read from front to back.
//!
//! Invariants: at most [`PARTS_MAX`] parts of at most `READ_BYTES_MAX` bytes are held or under way.
//! The part that was asked for first gives way to a new one. The last bytes of a part are handed on
//! only when its answer has ended as it should.

use bytes::Bytes;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, RelPath, Result, Validator};

/// Parts of all objects together.
const PARTS_MAX: usize = 32;
/// Parts of one object that are under way, at most.
const WINDOW_MAX: u64 = 4;
/// A part that nobody has taken from for so long leaves room for others.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(20);
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
#[derive(Debug, Default)]
struct Gathered {
    pieces: Pieces,
    /// Short ones, which come behind the others.
    short: Vec<u8>,
    bytes: u64,
}

impl Gathered {
    fn add(&mut self, piece: Bytes) {
        self.bytes += piece.len() as u64;
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

    /// Takes out the first `bytes_max` bytes, or all.
    fn take(&mut self, bytes_max: u64) -> Pieces {
        self.pieces.push(std::mem::take(&mut self.short).into());
        let (first, rest) = std::mem::take(&mut self.pieces).split(bytes_max);
        self.pieces = rest;
        self.bytes -= first.length();
        first
    }
}

impl Pieces {
    fn push(&mut self, piece: Bytes) {
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
    fn split(self, count: u64) -> (Pieces, Pieces) {
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

/// A range of an object that is here or on its way. It is read from front to back, while its end
/// may still be coming. Once it is dropped, its [`Filler`] is told to stop.
pub(crate) struct Part {
    flow: Arc<Flow>,
    /// So many bytes nobody has taken yet.
    left: u64,
}

struct Flow {
    state: Mutex<Flowing>,
    changed: Condvar,
}

struct Flowing {
    here: Gathered,
    /// So many bytes are still to come.
    missing: u64,
    ended: Option<std::result::Result<(), Arc<Error>>>,
    /// The reader sleeps until so many bytes are here; 0: it does not sleep.
    awaited: u64,
}

impl Flowing {
    fn has(&self, bytes: u64) -> bool {
        self.ended.is_some() || (self.here.bytes >= bytes && self.missing > 0)
    }
}

impl Flow {
    fn state(&self) -> MutexGuard<'_, Flowing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Brings the bytes of a [`Part`].
pub(crate) struct Filler(Weak<Flow>);

impl Filler {
    /// Adds what came next; false if nobody wants more. No more may come than the part has.
    pub(crate) fn add(&self, piece: Bytes) -> bool {
        self.change(|state| {
            state.missing = state.missing.saturating_sub(piece.len() as u64);
            state.here.add(piece);
        })
    }

    /// Ends the part: all bytes are here, or they cannot be had.
    pub(crate) fn end(&self, result: Result<()>) {
        self.change(|state| {
            state.ended.get_or_insert(result.map_err(Arc::new));
        });
    }

    fn change(&self, change: impl FnOnce(&mut Flowing)) -> bool {
        let Some(flow) = self.0.upgrade() else { return false };
        let mut state = flow.state();
        change(&mut state);
        if state.awaited > 0 && state.has(state.awaited) {
            flow.changed.notify_all();
        }
        true
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.end(Err(Error::new(ErrorKind::Unavailable, "the read was ended")));
    }
}

impl Part {
    /// A part of `length` bytes, and who brings them.
    pub(crate) fn coming(length: u64) -> (Part, Filler) {
        let state = Flowing { here: Gathered::default(), missing: length, ended: None, awaited: 0 };
        let flow = Arc::new(Flow { state: Mutex::new(state), changed: Condvar::new() });
        let filler = Filler(Arc::downgrade(&flow));
        (Part { flow, left: length }, filler)
    }

    /// So many bytes are left in it.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Takes the next bytes out, at most `bytes_max`. Waits until there are `bytes_min`, or the
    /// part's last ones; `None` if that takes longer than `patience`.
    pub(crate) fn take(
        &mut self,
        bytes_min: u64,
        bytes_max: u64,
        patience: Duration,
    ) -> Option<std::result::Result<Pieces, Arc<Error>>> {
        let mut state = self.flow.state();
        state.awaited = bytes_min.min(self.left).max(1);
        let waits = |state: &mut Flowing| !state.has(state.awaited);
        let waited = self.flow.changed.wait_timeout_while(state, patience, waits);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        state.awaited = 0;
        if waited.timed_out() {
            return None;
        }
        if let Some(Err(error)) = &state.ended {
            return Some(Err(error.clone()));
        }
        let taken = state.here.take(bytes_max);
        self.left -= taken.length();
        Some(Ok(taken))
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

/// One read of an object.
#[derive(Clone, Copy)]
pub(crate) struct Read {
    /// Where it began.
    pub(crate) start: u64,
    /// Where it ended.
    pub(crate) end: u64,
    /// Where the reader asked to end; the rest is to come with the next read.
    pub(crate) asked: u64,
    /// To where bytes are here or coming.
    pub(crate) begun: u64,
}

/// What is fetched ahead. Threads share it.
#[derive(Default)]
pub(crate) struct Ahead(Mutex<State>);

#[derive(Default)]
struct State {
    parts: HashMap<(Version, u64), (Part, Instant)>,
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
    /// To where it would have gone.
    asked: u64,
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
        self.state().parts.remove(&(version.clone(), offset)).map(|(part, _)| part)
    }

    /// Keeps a part.
    pub(crate) fn keep(&self, version: &Version, offset: u64, part: Part) {
        let mut guard = self.state();
        let State { parts, order, .. } = &mut *guard;
        let key = (version.clone(), offset);
        if parts.insert(key.clone(), (part, Instant::now())).is_none() {
            order.push_back(key);
        }
        if order.len() > 4 * PARTS_MAX {
            // Those that were taken; one that was taken and kept again counts from its first time.
            let mut seen = HashSet::new();
            order.retain(|key| parts.contains_key(key) && seen.insert(key.clone()));
        }
        while parts.len() > PARTS_MAX {
            let Some(oldest) = order.pop_front() else { break };
            parts.remove(&oldest);
        }
    }

    /// Notes a read. Says what to fetch now, in parts of `part_bytes`.
    pub(crate) fn after_read(&self, version: &Version, read: Read, part_bytes: u64) -> Vec<Range<u64>> {
        let mut state = self.state();
        let Read { start, end, asked, begun } = read;
        let (begin, window, fetched) = match state.followed.get(version) {
            // The rest of what was asked for shows no more than its beginning.
            Some(last) if last.end == start && asked <= last.asked => (last.begin, last.window, last.fetched),
            Some(last) if last.end == start => {
                let window = ((end - last.begin) / part_bytes).clamp(1, WINDOW_MAX).max(last.window);
                (last.begin, window, last.fetched)
            }
            // An object that is one of many alike is read as they were.
            _ if start == 0 && end < state.habit(&version.path) => {
                let more = state.habit(&version.path) - end;
                (0, more.div_ceil(part_bytes).min(WINDOW_MAX), 0)
            }
            _ => (start, 0, 0),
        };
        let mut fetched = fetched.max(end).max(begun);
        let wanted = version.size.min((end + window * part_bytes).max(asked));
        let mut parts = Vec::new();
        let mut room = PARTS_MAX.saturating_sub(state.parts_in_use());
        while fetched < wanted && room > 0 {
            let next = version.size.min(fetched + part_bytes);
            parts.push(fetched..next);
            (fetched, room) = (next, room - 1);
        }
        if state.followed.len() >= FOLLOWED_MAX {
            state.followed.clear();
        }
        state.followed.insert(version.clone(), Followed { begin, end, asked, window, fetched });
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
    /// Parts that somebody is likely to take soon. They are not driven out by others' read-ahead.
    fn parts_in_use(&self) -> usize {
        self.parts.values().filter(|(_, since)| since.elapsed() < FORGOTTEN_AFTER).count()
    }

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

    /// A read that brought all that it asked for.
    fn whole(start: u64, bytes: u64) -> Read {
        let end = start + bytes;
        Read { start, end, asked: end, begun: end }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn part(bytes: &'static [u8]) -> Part {
        let (part, filler) = Part::coming(bytes.len() as u64);
        assert!(filler.add(Bytes::from_static(bytes)));
        filler.end(Ok(()));
        part
    }

    /// What a part has next.
    fn taken(part: &mut Part, bytes_min: u64, bytes_max: u64) -> Vec<u8> {
        part.take(bytes_min, bytes_max, LONG).unwrap().unwrap().into_vec().concat()
    }

    #[test]
    fn reads_in_order_fetch_ahead_and_others_do_not() {
        let (ahead, version) = (Ahead::default(), version("a"));
        let read = |start, bytes| ahead.after_read(&version, whole(start, bytes), 100);
        assert!(read(0, 50).is_empty(), "one read shows no order");
        assert_eq!(read(50, 100), vec![150..250; 1]);
        assert_eq!(read(150, 100), [250..350, 350..450]);
        assert_eq!(read(250, 10), vec![450..550; 1], "each byte once");
        assert!(read(260, 10).is_empty(), "many short reads fetch no more than a long one");
        assert_eq!(read(270, 280), [550..650, 650..750, 750..850, 850..950]);
        assert_eq!(read(550, 340), vec![950..1000; 1]);
        assert!(read(890, 110).is_empty(), "nothing lies beyond the end");
        assert!(read(50, 100).is_empty() && read(900, 100).is_empty());
    }

    #[test]
    fn what_comes_in_several_steps_is_one_read() {
        let (ahead, version) = (Ahead::default(), version("a"));
        let read =
            |start, end, asked| ahead.after_read(&version, Read { start, end, asked, begun: asked }, 100);
        for (start, end) in [(300, 330), (330, 390), (390, 400)] {
            assert!(read(start, end, 400).is_empty(), "to {end}");
        }
        assert_eq!(read(400, 430, 500), vec![500..600; 1], "more is wanted than was asked for first");
        let first = Read { start: 700, end: 710, asked: 760, begun: 720 };
        assert_eq!(ahead.after_read(&version, first, 100), vec![720..820; 1], "what the reader waits for");
    }

    #[test]
    fn objects_of_a_folder_are_read_as_their_like_until_one_is_not() {
        let ahead = Ahead::default();
        let read = |name, start, bytes| ahead.after_read(&version(name), whole(start, bytes), 100);
        let habit = |name| ahead.habit(&RelPath::new(name).unwrap());
        assert_eq!(habit("d/a"), 0);
        assert!(read("d/a", 0, 50).is_empty());
        read("d/a", 50, 250);
        assert_eq!((habit("d/b"), habit("e/b")), (300, 0), "that of its own folder");
        assert_eq!(read("d/b", 0, 100), [100..200, 200..300], "more is wanted, as of a");
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
            let (first, rest) = (gathered.take(150_001).into_vec(), gathered.take(u64::MAX).into_vec());
            let pieces = first.len() + rest.len();
            assert!(pieces <= 2 * bytes.len() / PIECE_BYTES_MIN, "{lengths:?}: {pieces}");
            assert!([first.concat(), rest.concat()].concat() == bytes, "{lengths:?}");
            assert_eq!((first.concat().len(), gathered.bytes), (150_001, 0));
        }
    }

    #[test]
    fn bytes_are_handed_on_while_others_come_and_the_last_ones_at_the_end() {
        let (mut part, filler) = Part::coming(10);
        assert!(part.take(1, 10, Duration::ZERO).is_none(), "nothing came");
        assert!(filler.add(Bytes::from_static(b"abcd")));
        assert!(part.take(5, 10, Duration::ZERO).is_none(), "less came than is asked for");
        assert_eq!((taken(&mut part, 3, 3), taken(&mut part, 1, 9)), (b"abc".to_vec(), b"d".to_vec()));
        filler.add(Bytes::from_static(b"efghij"));
        assert!(part.take(1, 10, Duration::ZERO).is_none(), "who says that nothing wrong follows?");
        std::thread::scope(|scope| {
            let waits = scope.spawn(move || (taken(&mut part, 6, 4), taken(&mut part, 6, 6), part.left()));
            filler.end(Ok(()));
            assert_eq!(waits.join().unwrap(), (b"efgh".to_vec(), b"ij".to_vec(), 0));
        });
    }

    #[test]
    fn a_part_that_cannot_be_had_is_an_error_also_for_who_waits() {
        let (mut part, filler) = Part::coming(10);
        filler.add(Bytes::from_static(b"abcd"));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| part.take(9, 10, LONG).unwrap().unwrap_err().kind());
            filler.end(Err(Error::new(ErrorKind::Stale, "replaced")));
            assert_eq!(waits.join().unwrap(), ErrorKind::Stale);
        });
        let (mut part, filler) = Part::coming(10);
        drop(filler);
        assert_eq!(part.take(1, 1, LONG).unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        let (part, filler) = Part::coming(10);
        drop(part);
        assert!(!filler.add(Bytes::from_static(b"a")), "nobody wants it any more");
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

    #[test]
    fn who_reads_in_short_steps_drives_nobody_out() {
        let ahead = Ahead::default();
        ahead.keep(&version("other"), 0, part(b"x"));
        for at in 0..10_000u64 {
            ahead.keep(&version("a"), at, part(b"x"));
            assert!(ahead.take(&version("a"), at).is_some());
        }
        assert!(ahead.take(&version("other"), 0).is_some());
    }

    #[test]
    fn what_is_fetched_ahead_drives_nothing_out_that_is_in_use() {
        let ahead = Ahead::default();
        for at in 0..PARTS_MAX as u64 - 1 {
            ahead.keep(&version("other"), at, part(b"x"));
        }
        let read = |start| ahead.after_read(&version("a"), whole(start, 200), 100);
        assert!(read(0).is_empty());
        assert_eq!(read(200), vec![400..500; 1], "there is room for one");
        ahead.keep(&version("a"), 400, part(b"x"));
        assert!(read(400).is_empty());
        for (_, since) in ahead.state().parts.values_mut() {
            *since = since.checked_sub(FORGOTTEN_AFTER).unwrap();
        }
        assert_eq!(read(600), [800..900, 900..1000], "nobody has come for them");
    }
}
