//! Locks: whose they are, which kind, and waits for them.
//!
//! fuser passes neither the kernel's flag that tells `flock` from `fcntl`, nor its INTERRUPT
//! requests. The kind matters only when a lock of all bytes is taken: then the system call that the
//! asking thread is in tells it. A wait asks the tree again and again, on a thread of its own, and
//! looks whether a signal waits for the asking thread.

use crate::caller;
use crate::tree::{Errno, Handle, Lock, Node, Owner, Range, Result, Tree};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The most waits at a time; each has a thread.
const WAITS_MAX: usize = 512;
/// The most waits of one user: others can wait too, whatever one does.
const WAITS_OF_USER_MAX: usize = 128;
/// The longest pause between two tries, for one that waits alone. With many waits the pauses are
/// longer, so that all of them together ask no more often than [`TRIES_PER_SECOND`].
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// How often waits ask the tree in a second, all together, about.
const TRIES_PER_SECOND: u32 = 1000;
/// After so long, a signal ends a wait.
const LOOK: Duration = Duration::from_millis(50);

/// Who has taken locks, and who waits.
#[derive(Default)]
pub(crate) struct Locks {
    /// By inode and owner.
    owners: Mutex<BTreeMap<(Node, u64), Taken>>,
    /// User → how many waits.
    waits: Mutex<HashMap<u32, usize>>,
    stop: AtomicBool,
}

/// Which locks of a file an owner took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Taken {
    /// By `fcntl`.
    record: bool,
    /// By `flock`.
    whole: bool,
    /// The open files through which it took those by `fcntl`.
    through: Vec<Handle>,
}

/// A lock that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The inode.
    pub(crate) node: Node,
    /// The open file that asks.
    pub(crate) handle: Handle,
    /// Who asks; of which kind the lock is, is found here.
    pub(crate) owner: Owner,
    /// Which bytes.
    pub(crate) range: Range,
    /// What is wanted.
    pub(crate) lock: Lock,
    /// The asking thread.
    pub(crate) tid: u32,
}

/// All bytes of a file.
pub(crate) const ALL: Range = Range { start: 0, end: u64::MAX };

/// The kernel's range: the end of files is its largest offset.
pub(crate) fn range(start: u64, end: u64) -> Range {
    Range { start, end: if end >= i64::MAX as u64 { u64::MAX } else { end } }
}

/// The kernel's word for a lock.
pub(crate) fn lock_of(kind: i32) -> Result<Lock> {
    match kind {
        libc::F_RDLCK => Ok(Lock::Shared),
        libc::F_WRLCK => Ok(Lock::Exclusive),
        libc::F_UNLCK => Ok(Lock::Unlock),
        _ => Err(Errno::EINVAL),
    }
}

/// Whether thread `tid` asks by `flock`.
fn is_flock(tid: u32) -> bool {
    // 143: `flock` of 32-bit programs on x86-64 and aarch64.
    caller::system_call(tid).is_some_and(|number| number == libc::SYS_flock || number == 143)
}

impl Locks {
    /// Takes or ends a lock without waiting.
    pub(crate) fn set(&self, tree: &dyn Tree, asked: Asked) -> Result<()> {
        let Asked { node, handle, owner, range, lock, .. } = asked;
        if lock == Lock::Unlock {
            return self.unlock(tree, node, handle, owner, range);
        }
        tree.lock(handle, self.noted(&asked), range, lock)
    }

    /// As [`Locks::set`], but waits, and answers by `reply`. Fails with `ENOLCK` if too many wait,
    /// or too many of user `uid`.
    pub(crate) fn wait(
        self: &Arc<Self>,
        tree: &Arc<dyn Tree>,
        asked: Asked,
        uid: u32,
        reply: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let Asked { handle, range, lock, tid, .. } = asked;
        let owner = self.noted(&asked);
        match tree.lock(handle, owner, range, lock) {
            Err(Errno::EAGAIN) => {}
            done => return reply(done),
        }
        if !self.enter(uid) {
            return reply(Err(Errno::ENOLCK));
        }
        let (locks, tree) = (Arc::clone(self), Arc::clone(tree));
        let mut reply = Some(reply);
        let wait = move || {
            let mut pause = Duration::from_millis(1);
            let done = loop {
                let ended = locks.pause(pause, tid);
                let most = PAUSE_MAX.max(Duration::from_secs(1) * locks.waiting() / TRIES_PER_SECOND);
                pause = (pause * 2).min(most);
                match tree.lock(handle, owner, range, lock) {
                    Err(Errno::EAGAIN) => {
                        if let Some(errno) = ended {
                            break Err(errno);
                        }
                    }
                    done => break done,
                }
            };
            locks.leave(uid);
            if let Some(reply) = reply.take() {
                reply(done);
            }
        };
        // If the machine has no thread left, dropping the reply answers the kernel with EIO.
        if std::thread::Builder::new().name("lock-wait".into()).spawn(wait).is_err() {
            self.leave(uid);
        }
    }

    /// Counts a wait of the user; false if there are too many.
    fn enter(&self, uid: u32) -> bool {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, of_user) = (waits.values().sum::<usize>(), waits.get(&uid).copied().unwrap_or(0));
        let enters = all < WAITS_MAX && of_user < WAITS_OF_USER_MAX;
        if enters {
            waits.insert(uid, of_user + 1);
        }
        enters
    }

    fn leave(&self, uid: u32) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        match waits.get_mut(&uid) {
            Some(of_user) if *of_user > 1 => *of_user -= 1,
            _ => drop(waits.remove(&uid)),
        }
    }

    /// How many wait.
    fn waiting(&self) -> u32 {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.values().sum::<usize>() as u32
    }

    /// Sleeps for `pause`, or until the wait must end: then why.
    fn pause(&self, pause: Duration, tid: u32) -> Option<Errno> {
        let mut left = pause;
        loop {
            let now = left.min(LOOK);
            std::thread::sleep(now);
            left -= now;
            if self.stop.load(Ordering::Relaxed) {
                return Some(Errno::EIO);
            }
            if caller::is_interrupted(tid) {
                return Some(Errno::EINTR);
            }
            if left.is_zero() {
                return None;
            }
        }
    }

    /// The owner's descriptor was closed: its `fcntl` locks of the file end, as POSIX says.
    pub(crate) fn close(&self, tree: &dyn Tree, node: Node, handle: Handle, number: u64) {
        let took = match self.owners.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&(node, number)) {
            Some(taken) => {
                taken.through.clear();
                std::mem::take(&mut taken.record)
            }
            None => false,
        };
        if took {
            let owner = Owner { number, pid: 0, whole: false };
            _ = tree.lock(handle, owner, ALL, Lock::Unlock);
            self.forget(node, number);
        }
    }

    /// The open file was closed for good: locks of its own end. Those by `flock` are of `whole`.
    /// What owners still have by `fcntl` through it are its own, too (`F_OFD_SETLK`): those of
    /// processes ended when the processes closed their descriptors.
    pub(crate) fn release(&self, tree: &dyn Tree, node: Node, handle: Handle, whole: Option<u64>) {
        let numbers: Vec<u64> = {
            let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
            let of_node = owners.range((node, 0)..=(node, u64::MAX));
            let through = of_node.filter(|(_, taken)| taken.through.contains(&handle));
            through.map(|((_, number), _)| *number).collect()
        };
        numbers.into_iter().for_each(|number| self.close(tree, node, handle, number));
        if let Some(number) = whole {
            let owner = Owner { number, pid: 0, whole: true };
            _ = self.unlock(tree, node, handle, owner, ALL);
        }
    }

    /// Ends all waits.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends the owner's locks, of whichever kind it has.
    fn unlock(&self, tree: &dyn Tree, node: Node, handle: Handle, owner: Owner, range: Range) -> Result<()> {
        let taken =
            self.owners.lock().unwrap_or_else(PoisonError::into_inner).get(&(node, owner.number)).cloned();
        let Some(Taken { record, whole, .. }) = taken else { return Ok(()) };
        if record {
            tree.lock(handle, Owner { whole: false, ..owner }, range, Lock::Unlock)?;
        }
        if whole && range == ALL {
            tree.lock(handle, Owner { whole: true, ..owner }, range, Lock::Unlock)?;
        }
        if range == ALL {
            self.owners.lock().unwrap_or_else(PoisonError::into_inner).remove(&(node, owner.number));
        }
        Ok(())
    }

    /// The owner with the kind of its lock; remembers that it takes one.
    fn noted(&self, asked: &Asked) -> Owner {
        let owner = Owner { whole: asked.range == ALL && is_flock(asked.tid), ..asked.owner };
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = owners.entry((asked.node, owner.number)).or_default();
        if owner.whole {
            taken.whole = true;
        } else {
            taken.record = true;
            if !taken.through.contains(&asked.handle) {
                taken.through.push(asked.handle);
            }
        }
        owner
    }

    fn forget(&self, node: Node, number: u64) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if owners.get(&(node, number)) == Some(&Taken::default()) {
            owners.remove(&(node, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_all_waits() {
        let locks = Locks::default();
        let entered = (0..WAITS_MAX).filter(|_| locks.enter(7)).count();
        assert_eq!(entered, WAITS_OF_USER_MAX);
        assert!(locks.enter(8), "another user can wait");
        locks.leave(7);
        assert!(locks.enter(7) && !locks.enter(7));
        assert_eq!(locks.waiting() as usize, WAITS_OF_USER_MAX + 1);
        for uid in 9..20 {
            while locks.enter(uid) {}
        }
        assert_eq!(locks.waiting() as usize, WAITS_MAX);
    }
}
