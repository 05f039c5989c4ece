//! The programs' sessions: which descriptions each has, and by which path. Pure.
//!
//! A shared file's description is a number of the go-between's, above all that the far side gives.
//! The far side hears of it only when a program asks for what cannot be shared: then the file is
//! opened there too, and stays.
//!
//! Invariant: no number means two descriptions of one session, nor one of an earlier session that
//! the same program may still hold.

use super::tree::{File, Path};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Numbers from here on are the go-between's. The preload library counts up to twice as many.
pub(super) const FIRST: u32 = 1 << 19;
const LAST: u32 = (1 << 20) - 1;
/// A child that has not said hello after this time never will.
const FORK_WITHIN: Duration = Duration::from_secs(60);

/// A description.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) path: Path,
    /// What it was opened with.
    pub(super) flags: i32,
    /// Its number at the far side, once that has it open.
    pub(super) real: Option<u32>,
    /// What is shared, as long as the far side does not have it open.
    pub(super) file: Option<Arc<File>>,
    /// Where it is read next: a byte of the file, or of its listing.
    pub(super) position: u64,
}

pub(super) type Entries = HashMap<u32, Held>;

pub(super) struct Session {
    pub(super) entries: Entries,
    /// The number to look from for a free one.
    next: u32,
    free: Vec<u32>,
}

impl Session {
    /// `lowest`: a number that no description of the program had, nor any above it.
    pub(super) fn new(entries: Entries, lowest: u32) -> Session {
        let highest = entries.keys().copied().max().map_or(0, |highest| highest + 1);
        Session { entries, next: lowest.max(highest).max(FIRST), free: Vec::new() }
    }

    /// Enters a shared file; `None` where there is no number.
    pub(super) fn enter(&mut self, entry: Held) -> Option<u32> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.next > LAST => return None,
            None => {
                self.next += 1;
                self.next - 1
            }
        };
        self.entries.insert(id, entry);
        Some(id)
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Held> {
        let entry = self.entries.remove(&id)?;
        if id >= FIRST {
            self.free.push(id);
        }
        Some(entry)
    }

    /// Keeps what is listed.
    pub(super) fn retain(&mut self, keep: &[u32]) {
        let gone: Vec<u32> = self.entries.keys().copied().filter(|id| !keep.contains(id)).collect();
        for id in gone {
            self.remove(id);
        }
    }
}

/// The far side's number of a description.
pub(super) fn translated(entries: &Entries, id: u32) -> u32 {
    match entries.get(&id) {
        Some(entry) => entry.real.unwrap_or(NOBODY),
        None => id,
    }
}

/// A description that nobody has.
pub(super) const NOBODY: u32 = i32::MAX as u32;

struct Joined {
    session: Arc<Mutex<Session>>,
    connections: usize,
    execs: bool,
}

/// All of them.
#[derive(Default)]
pub(super) struct Sessions {
    by_key: HashMap<u64, Joined>,
    of_connection: HashMap<u64, u64>,
    /// What children of a fork take over, by token.
    forks: HashMap<u64, (Instant, Entries)>,
    /// The far side's highest number so far.
    pub(super) highest: u32,
}

impl Sessions {
    pub(super) fn of(&self, connection: u64) -> Option<Arc<Mutex<Session>>> {
        let key = self.of_connection.get(&connection)?;
        self.by_key.get(key).map(|joined| joined.session.clone())
    }

    pub(super) fn with_key(&self, key: u64) -> Option<Arc<Mutex<Session>>> {
        self.by_key.get(&key).map(|joined| joined.session.clone())
    }

    /// A connection has said hello. `session`: a new one, where it did not join.
    pub(super) fn join(&mut self, connection: u64, key: u64, session: Option<Session>) {
        self.leave(connection);
        if let Some(session) = session {
            let joined = Joined { session: Arc::new(Mutex::new(session)), connections: 0, execs: false };
            self.by_key.insert(key, joined);
        }
        if let Some(joined) = self.by_key.get_mut(&key) {
            joined.connections += 1;
            self.of_connection.insert(connection, key);
        }
    }

    /// The session's program is about to become another one, or is not, or has become it.
    pub(super) fn announce_exec(&mut self, connection: u64, coming: bool) {
        if let Some(joined) = self.of_connection.get(&connection).and_then(|key| self.by_key.get_mut(key)) {
            joined.execs = coming;
        }
    }

    pub(super) fn leave(&mut self, connection: u64) {
        let Some(key) = self.of_connection.remove(&connection) else { return };
        let Some(joined) = self.by_key.get_mut(&key) else { return };
        joined.connections -= 1;
        if joined.connections == 0 && !joined.execs {
            self.by_key.remove(&key);
        }
    }

    /// Keeps a copy of a session's descriptions for a child.
    pub(super) fn fork(&mut self, token: u64, entries: Entries, now: Instant) {
        self.forks.retain(|_, (made, _)| now.duration_since(*made) < FORK_WITHIN);
        self.forks.insert(token, (now, entries));
    }

    pub(super) fn take_fork(&mut self, token: u64) -> Option<Entries> {
        self.forks.remove(&token).map(|(_, entries)| entries)
    }
}

/// What a path of a call names, as far as its words say: no link is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedPath {
    /// Absolute, without `.`, doubled or trailing slashes. Where the path climbs: what precedes the
    /// first `..`.
    pub(super) path: Vec<u8>,
    /// The path has a `..`: where that leads depends on links.
    pub(super) climbs: bool,
    /// Only a directory is meant: the path ends in a slash.
    pub(super) slash: bool,
    /// The description itself.
    pub(super) itself: bool,
}

impl NamedPath {
    pub(super) fn new(base: &[u8], path: &[u8]) -> NamedPath {
        let mut place = NamedPath {
            path: base.to_vec(),
            climbs: false,
            slash: path.ends_with(b"/") || path.ends_with(b"/."),
            itself: path.is_empty(),
        };
        if path.first() == Some(&b'/') {
            place.path.clear();
        }
        for part in path.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    place.climbs = true;
                    break;
                }
                _ => {
                    if place.path.last() != Some(&b'/') {
                        place.path.push(b'/');
                    }
                    place.path.extend_from_slice(part);
                }
            }
        }
        if place.path.is_empty() {
            place.path.push(b'/');
        }
        place
    }

    /// The path to ask the far side about.
    pub(super) fn asked(&self) -> Vec<u8> {
        let slash: &[u8] = if self.slash && self.path != b"/" { b"/" } else { b"" };
        [&self.path, slash].concat()
    }

    /// The folder that the name is in.
    pub(super) fn parent(&self) -> &[u8] {
        match self.path.iter().rposition(|byte| *byte == b'/') {
            None | Some(0) => b"/",
            Some(slash) => &self.path[..slash],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, real: Option<u32>) -> Held {
        Held { path: path.as_bytes().into(), flags: 0, real, file: None, position: 0 }
    }

    fn check(base: &str, path: &str, expected: &str, climbs: bool, slash: bool) {
        let place = NamedPath::new(base.as_bytes(), path.as_bytes());
        let found = (String::from_utf8_lossy(&place.path).into_owned(), place.climbs, place.slash);
        assert_eq!(found, (expected.to_owned(), climbs, slash), "{base} {path}");
    }

    #[test]
    fn places_follow_the_words_of_paths() {
        check("/a", "b/./c", "/a/b/c", false, false);
        check("/a", "/b//c", "/b/c", false, false);
        check("/a", "b/", "/a/b", false, true);
        check("/a", ".", "/a", false, false);
        check("/a", "", "/a", false, false);
        check("/a", "b/../c", "/a/b", true, false);
        check("/", "b", "/b", false, false);
        check("/a", "/", "/", false, true);
        assert_eq!(NamedPath::new(b"/a", b"b/").asked(), b"/a/b/");
        assert_eq!(NamedPath::new(b"/a", b"b").parent(), b"/a");
        assert_eq!(NamedPath::new(b"/", b"b").parent(), b"/");
    }

    #[test]
    fn numbers_are_never_those_of_an_earlier_session() {
        let mut session = Session::new(Entries::new(), 0);
        let first = session.enter(entry("/a", None)).unwrap();
        let second = session.enter(entry("/b", None)).unwrap();
        assert_eq!((first, second), (FIRST, FIRST + 1));
        session.remove(first);
        assert_eq!(session.enter(entry("/c", None)), Some(first));
        let mut next = Session::new(Entries::new(), second + 1);
        assert_eq!(next.enter(entry("/d", None)), Some(second + 1));
    }

    #[test]
    fn a_child_has_what_its_parent_had() {
        let mut sessions = Sessions::default();
        let mut session = Session::new(Entries::new(), 0);
        session.entries.insert(5, entry("/far", Some(5)));
        let id = session.enter(entry("/a", Some(9))).unwrap();
        sessions.join(1, 100, Some(session));
        let entries = sessions.of(1).unwrap().lock().unwrap().entries.clone();
        sessions.fork(77, entries, Instant::now());
        let mut child = Session::new(sessions.take_fork(77).unwrap(), 0);
        assert_eq!(translated(&child.entries, id), 9);
        assert_eq!((translated(&child.entries, 6), translated(&child.entries, 5)), (6, 5));
        child.retain(&[id]);
        assert_eq!(child.entries.keys().copied().collect::<Vec<_>>(), [id]);
        assert!(child.enter(entry("/b", None)).unwrap() > id);
        assert!(sessions.take_fork(77).is_none());
    }

    #[test]
    fn a_session_ends_with_its_last_connection_unless_an_exec_comes() {
        let mut sessions = Sessions::default();
        sessions.join(1, 100, Some(Session::new(Entries::new(), 0)));
        sessions.join(2, 100, None);
        sessions.leave(1);
        assert!(sessions.with_key(100).is_some());
        sessions.announce_exec(2, true);
        sessions.leave(2);
        assert!(sessions.with_key(100).is_some());
        sessions.join(3, 100, None);
        sessions.announce_exec(3, false);
        sessions.leave(3);
        assert!(sessions.with_key(100).is_none());
    }
}
