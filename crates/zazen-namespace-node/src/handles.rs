//! What a caller has: its open files, its locks, and the inodes that it was led to.

use crate::limit::Of;
use crate::parts::Parts;
use crate::per_user::Counted;
use crate::repeats::Repeats;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use zazen_namespace::{Errno, Incarnation, InodeId, NodeNo};

/// Takes a lock. What a thread that panicked left behind is whole: nothing here panics half way.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Inodes that a session remembers; the oldest are forgotten. Whoever needs one again walks there.
const KNOWN_MAX: usize = 1 << 17;

/// Whose lock: the inode, the owner, and whether it is `flock`'s.
pub(crate) type LockKey = (InodeId, u64, bool);

/// A caller's open files and locks.
#[derive(Default)]
pub(crate) struct Session {
    opened: Mutex<OpenFiles>,
    /// Keys of locks that may be held, and the life of the node in which each was given last.
    locks: Mutex<HashMap<LockKey, (Counted, Incarnation)>>,
    known: Mutex<Known>,
    /// Calls of the caller that come again.
    pub(crate) repeats: Repeats,
}

/// Open files, by number and by inode.
#[derive(Default)]
struct OpenFiles {
    by_number: HashMap<u64, Arc<Handle>>,
    by_inode: HashMap<InodeId, Vec<u64>>,
}

/// Inodes that answers to the session named.
#[derive(Default)]
struct Known {
    ids: HashSet<InodeId>,
    order: VecDeque<InodeId>,
}

/// An open file of a caller.
pub(crate) struct Handle {
    pub(crate) id: InodeId,
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// The user who opened it. Root's writes leave set-user-id as it is.
    pub(crate) uid: u32,
    /// The life of the node in which the metadata knows that it is open; `None` once it is closed.
    pub(crate) life: Mutex<Option<Incarnation>>,
    /// Whose it is.
    pub(crate) session: Weak<Session>,
    /// The holder and the generation; `None` for a file that had no bytes yet.
    pub(crate) place: Mutex<Option<(NodeNo, u64)>>,
    /// Whether anything may have been written by it.
    pub(crate) wrote: AtomicBool,
    /// The epoch of the map in which the place was asked for.
    pub(crate) asked_in: AtomicU64,
    /// The directory that it was found in or made in, if it was opened by a name.
    pub(crate) found_in: Option<InodeId>,
    /// What bounds what is written.
    pub(crate) bounds: Mutex<Bounds>,
    /// Where the file ends, as far as this handle knows.
    pub(crate) end: AtomicU64,
    /// What it has open of the chunks, if it is a file in chunks.
    pub(crate) parts: Option<Parts<Handle>>,
    /// The file of which it is a chunk.
    pub(crate) chunk_of: Option<InodeId>,
    /// It counts for its user; `None` for one that is closed at once.
    pub(crate) _counted: Option<Counted>,
}

/// What bounds a handle, as of a version of the quotas.
#[derive(Default)]
pub(crate) struct Bounds {
    pub(crate) version: u64,
    pub(crate) of: Arc<[Of]>,
}

impl Handle {
    pub(crate) fn by_root(&self) -> bool {
        self.uid == 0
    }
}

impl Session {
    /// How many files are open.
    pub(crate) fn handles(&self) -> usize {
        lock(&self.opened).by_number.len()
    }

    pub(crate) fn add(&self, number: u64, handle: Arc<Handle>) {
        let mut opened = lock(&self.opened);
        opened.by_inode.entry(handle.id).or_default().push(number);
        opened.by_number.insert(number, handle);
    }

    /// The open file with this number.
    pub(crate) fn handle(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        lock(&self.opened).by_number.get(&number).map(Arc::clone).ok_or(Errno::EBADF)
    }

    pub(crate) fn take(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        let mut opened = lock(&self.opened);
        let handle = opened.by_number.remove(&number).ok_or(Errno::EBADF)?;
        if let Some(numbers) = opened.by_inode.get_mut(&handle.id) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                opened.by_inode.remove(&handle.id);
            }
        }
        Ok(handle)
    }

    /// All open files; none is open afterwards.
    pub(crate) fn take_all(&self) -> Vec<Arc<Handle>> {
        std::mem::take(&mut *lock(&self.opened)).by_number.into_values().collect()
    }

    /// The open files of an inode.
    pub(crate) fn open_files(&self, id: InodeId) -> Vec<Arc<Handle>> {
        let opened = lock(&self.opened);
        let numbers = opened.by_inode.get(&id).into_iter().flatten();
        numbers.filter_map(|number| opened.by_number.get(number).map(Arc::clone)).collect()
    }

    pub(crate) fn writers(&self, id: InodeId) -> Option<Arc<Handle>> {
        self.open_files(id).into_iter().find(|handle| handle.write)
    }

    /// Whether the caller may hold this lock.
    pub(crate) fn has_lock(&self, key: LockKey) -> bool {
        lock(&self.locks).contains_key(&key)
    }

    /// The caller may hold this lock from now on. It counts for the user who asked first.
    pub(crate) fn add_lock(&self, key: LockKey, counted: Counted, life: Incarnation) {
        let mut locks = lock(&self.locks);
        let (_, given) = locks.entry(key).or_insert((counted, life));
        // What was lost with an earlier life is lost, whatever is locked now.
        *given = life.min(*given);
    }

    /// Whether there were locks of the inode in an earlier life than `life`: they ended with it.
    pub(crate) fn has_lost_locks(&self, id: InodeId, life: Incarnation) -> bool {
        lock(&self.locks).iter().any(|((of, ..), (_, given))| *of == id && *given < life)
    }

    pub(crate) fn end_lock(&self, key: LockKey) {
        lock(&self.locks).remove(&key);
    }

    /// All keys of locks; there is none afterwards.
    pub(crate) fn take_locks(&self) -> Vec<LockKey> {
        std::mem::take(&mut *lock(&self.locks)).into_keys().collect()
    }

    /// Remembers that an answer led the caller to the inode.
    pub(crate) fn learn(&self, id: InodeId) {
        let mut known = lock(&self.known);
        if known.ids.insert(id) {
            known.order.push_back(id);
            if known.order.len() > KNOWN_MAX
                && let Some(oldest) = known.order.pop_front()
            {
                known.ids.remove(&oldest);
            }
        }
    }

    /// Whether the caller was led to the inode, or has it open.
    pub(crate) fn knows(&self, id: InodeId) -> bool {
        id == InodeId::ROOT
            || lock(&self.known).ids.contains(&id)
            || lock(&self.opened).by_inode.contains_key(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::per_user::PerUser;

    #[test]
    fn a_session_remembers_the_last_inodes_only() {
        let session = Session::default();
        assert!(session.knows(InodeId::ROOT));
        (10..KNOWN_MAX as u64 + 20).for_each(|id| session.learn(InodeId(id)));
        assert!(!session.knows(InodeId(10)));
        assert!(session.knows(InodeId(KNOWN_MAX as u64 + 19)));
        assert_eq!(lock(&session.known).ids.len(), KNOWN_MAX);
    }

    #[test]
    fn locks_that_ended_leave_room_and_those_of_an_earlier_life_are_lost() {
        let (session, locks) = (Session::default(), PerUser::new(2));
        let key = |owner: u64| (InodeId(7), owner, true);
        for (owner, life) in [(1, 1), (2, 1), (2, 2)] {
            session.add_lock(key(owner), locks.add(9), Incarnation(life));
        }
        assert!(session.has_lock(key(2)) && !session.has_lock(key(3)));
        assert!(!locks.has_room(9));
        session.end_lock(key(1));
        assert!(locks.has_room(9), "the second one counts once");
        assert!(!session.has_lost_locks(InodeId(7), Incarnation(1)));
        assert!(session.has_lost_locks(InodeId(7), Incarnation(2)), "it was lost, and taken again");
        assert!(!session.has_lost_locks(InodeId(8), Incarnation(2)));
        assert_eq!(session.take_locks(), [key(2)]);
    }

    #[test]
    fn files_are_found_by_their_number_and_by_their_inode() {
        let (session, files) = (Session::default(), PerUser::new(3));
        let file = |id| {
            Arc::new(Handle {
                id: InodeId(id),
                read: true,
                write: false,
                uid: 1,
                life: Mutex::new(Some(Incarnation(1))),
                session: Weak::new(),
                place: Mutex::new(None),
                wrote: AtomicBool::new(false),
                asked_in: AtomicU64::new(0),
                found_in: None,
                bounds: Mutex::default(),
                end: AtomicU64::new(0),
                parts: None,
                chunk_of: None,
                _counted: files.take(1),
            })
        };
        [(6, 3), (7, 3), (8, 4)].into_iter().for_each(|(number, id)| session.add(number, file(id)));
        assert!(!files.has_room(1));
        assert_eq!(session.open_files(InodeId(3)).len(), 2);
        session.take(6).unwrap();
        assert!(files.has_room(1) && session.knows(InodeId(3)));
        session.take(7).unwrap();
        assert!(!session.knows(InodeId(3)));
        assert_eq!(session.take_all().len(), 1);
        assert_eq!(session.handles(), 0);
    }
}
