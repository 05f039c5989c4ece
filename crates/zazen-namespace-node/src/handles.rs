//! What a caller has: its open files, its locks, and the inodes that it was led to.

use crate::limit::Of;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use zazen_namespace::{Errno, Incarnation, InodeId, NodeNo};

/// Takes a lock. What a thread that panicked left behind is whole: nothing here panics half way.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files that one user may have open in a session. A mount is one session for all its users.
pub(crate) const HANDLES_MAX: usize = 65_536;
/// Keys of locks that one user may have in a session.
pub(crate) const LOCKS_MAX: usize = 65_536;
/// Inodes that a session remembers; the oldest are forgotten. Whoever needs one again walks there.
const KNOWN_MAX: usize = 1 << 17;

/// Whose lock: the inode, the owner, and whether it is `flock`'s.
pub(crate) type LockKey = (InodeId, u64, bool);

/// A caller's open files and locks.
#[derive(Default)]
pub(crate) struct Session {
    opened: Mutex<OpenFiles>,
    locks: Mutex<Locks>,
    known: Mutex<Known>,
}

/// Open files, by number, by inode, and counted by user.
#[derive(Default)]
struct OpenFiles {
    by_number: HashMap<u64, Arc<Handle>>,
    by_inode: HashMap<InodeId, Vec<u64>>,
    of_user: HashMap<u32, usize>,
}

/// Keys of locks that may be held, with the user who asked first, and the life of the node in which
/// each was given last; and their number for each user.
#[derive(Default)]
struct Locks {
    keys: HashMap<LockKey, (u32, Incarnation)>,
    of_user: HashMap<u32, usize>,
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
    /// What bounds what is written.
    pub(crate) quotas: Vec<Of>,
    /// Where the file ends, as far as this handle knows.
    pub(crate) end: AtomicU64,
}

impl Handle {
    pub(crate) fn by_root(&self) -> bool {
        self.uid == 0
    }
}

/// One fewer of a user's things.
fn less(of_user: &mut HashMap<u32, usize>, uid: u32) {
    if let Some(count) = of_user.get_mut(&uid) {
        *count -= 1;
        if *count == 0 {
            of_user.remove(&uid);
        }
    }
}

impl Session {
    /// How many files are open.
    pub(crate) fn handles(&self) -> usize {
        lock(&self.opened).by_number.len()
    }

    /// Whether the user may open one more file.
    pub(crate) fn has_room(&self, uid: u32) -> bool {
        lock(&self.opened).of_user.get(&uid).is_none_or(|count| *count < HANDLES_MAX)
    }

    pub(crate) fn add(&self, number: u64, handle: Arc<Handle>) {
        let mut opened = lock(&self.opened);
        opened.by_inode.entry(handle.id).or_default().push(number);
        *opened.of_user.entry(handle.uid).or_default() += 1;
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
        less(&mut opened.of_user, handle.uid);
        Ok(handle)
    }

    /// All open files; none is open afterwards.
    pub(crate) fn take_all(&self) -> Vec<Arc<Handle>> {
        let mut opened = lock(&self.opened);
        std::mem::take(&mut *opened).by_number.into_values().collect()
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

    /// Whether the user may have one more lock, or has this one.
    pub(crate) fn has_room_for_lock(&self, key: LockKey, uid: u32) -> bool {
        let locks = lock(&self.locks);
        locks.keys.contains_key(&key) || locks.of_user.get(&uid).is_none_or(|count| *count < LOCKS_MAX)
    }

    pub(crate) fn add_lock(&self, key: LockKey, uid: u32, life: Incarnation) {
        let mut locks = lock(&self.locks);
        match locks.keys.entry(key) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert((uid, life));
                *locks.of_user.entry(uid).or_default() += 1;
            }
            std::collections::hash_map::Entry::Occupied(mut entry) => {
                // What was lost with an earlier life is lost, whatever is locked now.
                let first = entry.get().1.min(life);
                entry.get_mut().1 = first;
            }
        }
    }

    /// Whether there were locks of the inode in an earlier life than `life`: they ended with it.
    pub(crate) fn has_lost_locks(&self, id: InodeId, life: Incarnation) -> bool {
        lock(&self.locks).keys.iter().any(|((of, ..), (_, given))| *of == id && *given < life)
    }

    pub(crate) fn end_lock(&self, key: LockKey) {
        let mut locks = lock(&self.locks);
        if let Some((uid, _)) = locks.keys.remove(&key) {
            less(&mut locks.of_user, uid);
        }
    }

    /// All keys of locks; there is none afterwards.
    pub(crate) fn take_locks(&self) -> Vec<LockKey> {
        std::mem::take(&mut *lock(&self.locks)).keys.into_keys().collect()
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
    fn locks_that_ended_leave_room_and_users_do_not_share_it() {
        let session = Session::default();
        for round in 0..LOCKS_MAX as u64 + 10 {
            session.add_lock((InodeId(7), round, true), 1, Incarnation(1));
            session.end_lock((InodeId(7), round, true));
        }
        (0..LOCKS_MAX as u64)
            .for_each(|owner| session.add_lock((InodeId(7), owner, true), 1, Incarnation(1)));
        assert!(!session.has_room_for_lock((InodeId(8), 0, true), 1));
        assert!(session.has_room_for_lock((InodeId(7), 5, true), 1), "it is there already");
        assert!(session.has_room_for_lock((InodeId(8), 0, true), 2));
        assert!(!session.has_lost_locks(InodeId(7), Incarnation(1)));
        assert!(session.has_lost_locks(InodeId(7), Incarnation(2)));
        assert!(!session.has_lost_locks(InodeId(8), Incarnation(2)));
        assert_eq!(session.take_locks().len(), LOCKS_MAX);
        assert!(session.has_room_for_lock((InodeId(8), 0, true), 1));
    }

    #[test]
    fn files_are_counted_for_each_user() {
        let session = Session::default();
        let file = |uid, id| {
            let (read, write, place) = (true, false, Mutex::new(None));
            let (life, session) = (Mutex::new(Some(Incarnation(1))), Weak::new());
            let (wrote, asked_in) = (AtomicBool::new(false), AtomicU64::new(0));
            let (quotas, end) = (Vec::new(), AtomicU64::new(0));
            let id = InodeId(id);
            Arc::new(Handle { id, read, write, uid, life, session, place, wrote, asked_in, quotas, end })
        };
        (0..HANDLES_MAX as u64).for_each(|number| session.add(number, file(1, number / 2)));
        assert!(!session.has_room(1));
        assert!(session.has_room(2));
        assert_eq!(session.open_files(InodeId(3)).len(), 2);
        session.take(6).unwrap();
        assert!(session.has_room(1));
        assert!(session.knows(InodeId(3)));
        session.take(7).unwrap();
        assert!(!session.knows(InodeId(3)));
        assert_eq!(session.take_all().len(), HANDLES_MAX - 2);
        assert!(session.has_room(1));
    }
}
