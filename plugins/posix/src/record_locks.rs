//! `fcntl` record locks of sessions: the table, the calls that wait, and the mirror that other
//! programs see.
//!
//! The mirror: the daemon also holds what all sessions hold of a file, by `F_OFD_SETLK`, on one
//! descriptor of its own. So locks of forwarded programs conflict with those of other programs
//! here.
//!
//! Invariants: the mirror holds at least what the table holds, if the file can be opened for that.
//! Every release wakes all waiting calls. No call waits while it holds the table.

use crate::blocking::{SLICE, Waiting};
use crate::locks::{HeldLock, LockTable, Range};
use crate::session::{Description, Session};
use std::collections::HashMap;
use std::ffi::{c_int, c_short};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zazen_forward_api::structures::Lock;
use zazen_plugin_sdk::{Outcome, checked};

type File = (u64, u64);

/// A session as a lock's owner: its key, and the pid that others are told.
type Owner = (u64, u32);

#[derive(Default)]
struct Locks {
    table: LockTable<File, Owner>,
    mirrors: HashMap<File, Mirror>,
}

struct Mirror {
    fd: OwnedFd,
    reads: bool,
    writes: bool,
}

static LOCKS: LazyLock<Mutex<Locks>> = LazyLock::new(Mutex::default);
static RELEASED: Condvar = Condvar::new();

fn locks() -> MutexGuard<'static, Locks> {
    LOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets all waiters look again.
pub(crate) fn wake() {
    drop(locks());
    RELEASED.notify_all();
}

/// A descriptor of the session for this file was closed: its locks on the file go.
pub(crate) fn closed(session: &Session, description: &Description) {
    if !session.locked.load(Ordering::Acquire) {
        return;
    }
    let file = (description.dev, description.ino);
    let mut locks = locks();
    if locks.table.release(file, owner(session)) {
        locks.mirror_down(file);
        drop(locks);
        RELEASED.notify_all();
    }
}

/// The session ended: all its locks go.
pub(crate) fn session_ended(session: &Session) {
    let mut locks = locks();
    for file in locks.table.release_owner(owner(session)) {
        locks.mirror_down(file);
    }
    drop(locks);
    RELEASED.notify_all();
}

fn owner(session: &Session) -> Owner {
    // The pid stays that of the first hello across exec: a process keeps its number.
    (session.key, session.pid.load(Ordering::Relaxed))
}

impl Locks {
    /// Sets a lock if nothing stands in the way, else says what does.
    fn try_set(
        &mut self,
        session: &Session,
        description: &Description,
        range: Range,
        write: Option<bool>,
    ) -> Outcome<Option<Option<HeldLock<Owner>>>> {
        let (file, owner) = ((description.dev, description.ino), owner(session));
        if let Some(write) = write
            && let Some(held) = self.table.conflict(file, owner, range, write)
        {
            return Ok(Some(Some(held)));
        }
        let before = self.table.held(file).to_vec();
        self.table.set(file, owner, range, write);
        match self.mirror(file, description, range) {
            Ok(()) => Ok(None),
            Err(error) => {
                self.table.restore(file, before);
                self.mirror_range(file, range).ok();
                self.forget_idle(file);
                if error == libc::EAGAIN || error == libc::EACCES { Ok(Some(None)) } else { Err(error) }
            }
        }
    }

    /// Brings the mirror to what the table says.
    fn mirror(&mut self, file: File, description: &Description, range: Range) -> Outcome<()> {
        if !self.table.held(file).is_empty() && !self.mirrors.contains_key(&file) {
            let Some(mirror) = open_mirror(description) else { return Ok(()) };
            self.mirrors.insert(file, mirror);
        }
        self.mirror_range(file, range)?;
        self.forget_idle(file);
        Ok(())
    }

    fn mirror_range(&mut self, file: File, range: Range) -> Outcome<()> {
        let Some(mirror) = self.mirrors.get(&file) else { return Ok(()) };
        for (part, kind) in self.table.strongest(file, range) {
            let kind = match kind {
                Some(true) if mirror.writes => libc::F_WRLCK,
                Some(_) if mirror.reads => libc::F_RDLCK,
                Some(_) => continue,
                None => libc::F_UNLCK,
            };
            let lock = flock(kind, part);
            // SAFETY: a descriptor of ours and a lock that lives for the call.
            checked(unsafe { libc::fcntl(mirror.fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) })?;
        }
        Ok(())
    }

    /// After releases, which can't fail.
    fn mirror_down(&mut self, file: File) {
        self.mirror_range(file, Range { first: 0, last: i64::MAX }).ok();
        self.forget_idle(file);
    }

    fn forget_idle(&mut self, file: File) {
        if self.table.held(file).is_empty() {
            self.mirrors.remove(&file);
        }
    }
}

fn flock(kind: c_int, range: Range) -> libc::flock64 {
    libc::flock64 {
        l_type: kind as c_short,
        l_whence: libc::SEEK_SET as c_short,
        l_start: range.first,
        l_len: range.length(),
        l_pid: 0,
    }
}

/// A description of the daemon's own of the same file, with as many rights as can be had.
fn open_mirror(description: &Description) -> Option<Mirror> {
    let path = std::ffi::CString::new(format!("/proc/self/fd/{}", description.fd())).ok()?;
    for (flags, reads, writes) in
        [(libc::O_RDWR, true, true), (libc::O_RDONLY, true, false), (libc::O_WRONLY, false, true)]
    {
        let flags = flags | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: a path that lives for the call; the descriptor is new.
        let fd = unsafe { libc::open64(path.as_ptr(), flags) };
        if fd >= 0 {
            // SAFETY: as above.
            return Some(Mirror { fd: unsafe { OwnedFd::from_raw_fd(fd) }, reads, writes });
        }
    }
    None
}

/// The range that a lock names, its start counted from where `whence` says.
fn range_of(description: &Description, lock: &Lock) -> Outcome<Range> {
    let base = match lock.whence {
        libc::SEEK_SET => 0,
        // SAFETY: numbers only.
        libc::SEEK_CUR => checked(unsafe { libc::lseek64(description.fd(), 0, libc::SEEK_CUR) })?,
        libc::SEEK_END => {
            // SAFETY: all zeros is a valid stat; fstat fills it.
            let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
            // SAFETY: a descriptor of ours and room for the answer.
            checked(unsafe { libc::fstat64(description.fd(), &raw mut stat) })?;
            stat.st_size
        }
        _ => return Err(libc::EINVAL),
    };
    let start = base.checked_add(lock.start).ok_or(libc::EOVERFLOW)?;
    Range::new(start, lock.length).ok_or(if start.checked_add(lock.length).is_none() {
        libc::EOVERFLOW
    } else {
        libc::EINVAL
    })
}

/// Whether a lock is for writing or for reading; `None`: it releases. Checks how the file was
/// opened, as fcntl(2) does.
fn kind_of(description: &Description, lock: &Lock) -> Outcome<Option<bool>> {
    // SAFETY: numbers only.
    let flags = checked(unsafe { libc::fcntl(description.fd(), libc::F_GETFL) })?;
    let access = flags & libc::O_ACCMODE;
    if flags & libc::O_PATH != 0 {
        return Err(libc::EBADF);
    }
    match lock.kind {
        libc::F_RDLCK if access == libc::O_WRONLY => Err(libc::EBADF),
        libc::F_WRLCK if access == libc::O_RDONLY => Err(libc::EBADF),
        libc::F_RDLCK => Ok(Some(false)),
        libc::F_WRLCK => Ok(Some(true)),
        libc::F_UNLCK => Ok(None),
        _ => Err(libc::EINVAL),
    }
}

/// A lock of the open file description behind `fd`. The kernel's own answer is right, because each
/// description of a program is one here too.
pub(crate) fn description_lock(fd: RawFd, command: c_int, lock: &Lock) -> Outcome<Lock> {
    if lock.pid != 0 {
        return Err(libc::EINVAL);
    }
    let mut asked = libc::flock64 {
        l_type: lock.kind as c_short,
        l_whence: lock.whence as c_short,
        l_start: lock.start,
        l_len: lock.length,
        l_pid: 0,
    };
    // SAFETY: a descriptor of ours and a lock that lives for the call.
    checked(unsafe { libc::fcntl(fd, command, &raw mut asked) })?;
    Ok(Lock {
        start: asked.l_start,
        length: asked.l_len,
        kind: asked.l_type.into(),
        whence: asked.l_whence.into(),
        pid: asked.l_pid,
        reserved: 0,
    })
}

/// `F_GETLK`: changes `lock` to one that stands in its way, or to `F_UNLCK`.
pub(crate) fn get(session: &Session, description: &Description, lock: &mut Lock) -> Outcome<()> {
    let range = range_of(description, lock)?;
    let write = match lock.kind {
        libc::F_RDLCK => false,
        libc::F_WRLCK => true,
        _ => return Err(libc::EINVAL),
    };
    let locks = locks();
    let file = (description.dev, description.ino);
    if let Some(held) = locks.table.conflict(file, owner(session), range, write) {
        *lock = Lock {
            start: held.range.first,
            length: held.range.length(),
            kind: if held.write { libc::F_WRLCK } else { libc::F_RDLCK },
            whence: libc::SEEK_SET,
            pid: held.owner.1 as i32,
            reserved: 0,
        };
        return Ok(());
    }
    // A program that is not forwarded may hold one. Ask through the mirror if there is one, because
    // a description does not conflict with itself.
    let fd = locks.mirrors.get(&file).map_or(description.fd(), |mirror| mirror.fd.as_raw_fd());
    let asked = Lock { start: range.first, length: range.length(), whence: libc::SEEK_SET, pid: 0, ..*lock };
    let outside = description_lock(fd, libc::F_OFD_GETLK, &asked)?;
    if outside.kind == libc::F_UNLCK {
        lock.kind = libc::F_UNLCK;
    } else {
        *lock = outside;
    }
    Ok(())
}

/// `F_SETLK`: sets or releases a lock; EAGAIN if another one stands in its way.
pub(crate) fn set(session: &Session, description: &Description, lock: &Lock) -> Outcome<()> {
    let (kind, range) = (kind_of(description, lock)?, range_of(description, lock)?);
    session.locked.store(true, Ordering::Release);
    if locks().try_set(session, description, range, kind)?.is_some() {
        return Err(libc::EAGAIN);
    }
    if kind != Some(true) {
        RELEASED.notify_all();
    }
    Ok(())
}

/// `F_SETLKW`: as [`set`], but waits for what stands in its way.
pub(crate) fn set_waiting(
    session: &Session,
    description: &Description,
    lock: &Lock,
    waiting: &Waiting<'_>,
) -> Outcome<()> {
    let (kind, range) = (kind_of(description, lock)?, range_of(description, lock)?);
    session.locked.store(true, Ordering::Release);
    wait(session, description, range, kind, waiting)?;
    RELEASED.notify_all();
    Ok(())
}

fn wait(
    session: &Session,
    description: &Description,
    range: Range,
    kind: Option<bool>,
    waiting: &Waiting<'_>,
) -> Outcome<()> {
    let mut patience = Duration::from_millis(1);
    let mut locks = locks();
    loop {
        waiting.check()?;
        let Some(standing) = locks.try_set(session, description, range, kind)? else { return Ok(()) };
        let Some(held) = standing else {
            // A program that is not forwarded: the kernel does not report its release.
            patience = (patience * 2).min(Duration::from_millis(50));
            locks = RELEASED.wait_timeout(locks, patience).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        };
        let owner = owner(session);
        if !locks.table.wait(owner, held.owner) {
            return Err(libc::EDEADLK);
        }
        locks = RELEASED.wait_timeout(locks, SLICE).unwrap_or_else(PoisonError::into_inner).0;
        locks.table.unwait(owner, held.owner);
    }
}
