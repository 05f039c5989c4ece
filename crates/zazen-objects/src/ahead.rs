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

/// A part that is here or on its way.
pub(crate) type Part = Shared<BoxFuture<'static, Result<Bytes, Arc<Error>>>>;

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
}

/// The reads of one object.
#[derive(Clone, Copy)]
struct Followed {
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
        let (window, mut fetched) = match state.followed.get(version) {
            Some(last) if last.end == offset => {
                ((last.window * 2).clamp(1, WINDOW_MAX), last.fetched.max(end))
            }
            _ => (0, end),
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
        state.followed.insert(version.clone(), Followed { end, window, fetched });
        parts
    }
}

/// A part that is here.
pub(crate) fn here(bytes: Bytes) -> Part {
    std::future::ready(Ok(bytes)).boxed().shared()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str) -> Version {
        let seen = Validator { size: 1000, mtime_ns: 1, ctime_ns: 2, inode: 3, unsettled: false };
        Version::of(&RelPath::new(name).unwrap(), &seen)
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
    fn parts_are_bounded_and_the_oldest_gives_way() {
        let ahead = Ahead::default();
        for at in 0..10_000u64 {
            ahead.keep(&version("a"), at, here(Bytes::from_static(b"x")));
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
