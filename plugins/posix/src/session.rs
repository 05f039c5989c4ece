//! A session: one process, and the open file descriptions that it holds.
//!
//! Invariants: a description's kernel descriptor is closed when no session and no fork token holds
//! it. From a session's end on its table is empty, whoever still has the session.

use crate::interrupt::Interrupt;
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use zazen_plugin_sdk::Outcome;

/// Open file descriptions of one session, at most.
const DESCRIPTIONS_MAX: usize = 1 << 20;
/// FIFOs whose openings threads of one program have begun and not gone on with.
const READERS_MAX: usize = 64;
/// A session may have the process's descriptors divided by this, so that no program takes all from
/// the others of its user.
const SHARE: u64 = 4;

/// How many descriptions a session may have here.
fn descriptions_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| {
        // SAFETY: all zeros is a valid limit; the kernel fills it.
        let mut limit: libc::rlimit64 = unsafe { std::mem::zeroed() };
        // SAFETY: room for the answer.
        unsafe { libc::getrlimit64(libc::RLIMIT_NOFILE, &raw mut limit) };
        usize::try_from(limit.rlim_cur / SHARE).unwrap_or(DESCRIPTIONS_MAX).clamp(64, DESCRIPTIONS_MAX)
    })
}

/// Whether a new descriptor is among so many that one session could have them all: the kernel gives
/// the lowest number that is free.
pub(crate) fn is_among_the_first(fd: RawFd) -> bool {
    usize::try_from(fd).is_ok_and(|fd| fd < descriptions_max())
}

/// One open file description.
pub(crate) struct Description {
    fd: OwnedFd,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    /// st_mode.
    pub(crate) mode: u32,
}

impl Description {
    pub(crate) fn new(fd: OwnedFd) -> Outcome<Description> {
        // SAFETY: all zeros is a valid stat; fstat fills it.
        let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
        // SAFETY: a descriptor of ours and room for the answer.
        zazen_plugin_sdk::checked(unsafe { libc::fstat64(fd.as_raw_fd(), &raw mut stat) })?;
        Ok(Description { fd, dev: stat.st_dev, ino: stat.st_ino, mode: stat.st_mode })
    }

    /// The kernel's number.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Closes the descriptor, and reports what close(2) says of delayed writes.
    pub(crate) fn close(self) -> Outcome<c_int> {
        let fd = self.fd.into_raw_fd();
        // SAFETY: ours, and no longer anybody else's.
        zazen_plugin_sdk::checked(unsafe { libc::close(fd) })
    }
}

/// Descriptions by their numbers.
pub(crate) type Table = Vec<Option<Arc<Description>>>;

/// What an open was asked: the directory, the path, the flags.
pub(crate) type Asked = (c_int, CString, c_int);

/// One process's view.
pub(crate) struct Session {
    /// The client's secret, and the owner of its locks.
    pub(crate) key: u64,
    /// As `F_GETLK` tells others.
    pub(crate) pid: AtomicU32,
    table: RwLock<Table>,
    /// Descriptions have this number or a higher one.
    first: usize,
    /// Numbers that were given back; some may be taken.
    free: Mutex<Vec<u32>>,
    ended: AtomicBool,
    /// Whether the session ever set a record lock.
    pub(crate) locked: AtomicBool,
    /// Tags of calls to be interrupted.
    pub(crate) interrupted: Mutex<HashMap<u32, Arc<Interrupt>>>,
    /// FIFOs that were opened for reading without waiting, until the calls that wait take them.
    readers: Mutex<Vec<(Asked, Description)>>,
}

impl Session {
    /// `first`: numbers below it are given to no new description.
    pub(crate) fn new(key: u64, pid: u32, mut table: Table, first: u64) -> Arc<Session> {
        let first = usize::try_from(first).unwrap_or(0).min(DESCRIPTIONS_MAX);
        let length = table.len().max(first);
        table.resize_with(length, || None);
        Arc::new(Session {
            first,
            key,
            pid: pid.into(),
            table: RwLock::new(table),
            free: Mutex::default(),
            ended: false.into(),
            locked: false.into(),
            interrupted: Mutex::default(),
            readers: Mutex::default(),
        })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The description of that number.
    pub(crate) fn description(&self, id: u32) -> Outcome<Arc<Description>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(id as usize).and_then(Option::clone).ok_or(libc::EBADF)
    }

    /// Whether the session has less than half of what it may have: then there is room for what it
    /// may not need.
    pub(crate) fn has_room_to_spare(&self) -> bool {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).len();
        table.len().saturating_sub(self.first + free) < descriptions_max() / 2
    }

    /// A number for a new description.
    pub(crate) fn enter(&self, description: Description) -> Outcome<u32> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if self.has_ended() {
            return Err(libc::EBADFD);
        }
        let returned = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let returned = returned.filter(|id| table.get(*id as usize).is_some_and(Option::is_none));
        let id = match returned {
            Some(id) => id as usize,
            None => {
                // 0 is nobody's.
                let length = (table.len() + 1).max(2);
                table.resize_with(length, || None);
                table.len() - 1
            }
        };
        if id > self.first + descriptions_max() {
            table.pop();
            return Err(libc::EMFILE);
        }
        table[id] = Some(Arc::new(description));
        Ok(id as u32)
    }

    /// Enters a description under a number that is free.
    pub(crate) fn enter_as(&self, id: u32, description: Description) -> Outcome<()> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let at = id as usize;
        if self.has_ended() {
            return Err(libc::EBADFD);
        }
        if at == 0 || at >= DESCRIPTIONS_MAX || table.get(at).is_some_and(Option::is_some) {
            return Err(libc::EINVAL);
        }
        let length = table.len().max(at + 1);
        table.resize_with(length, || None);
        table[at] = Some(Arc::new(description));
        Ok(())
    }

    /// Keeps a FIFO that was opened for reading, for the call that waits for a writer.
    pub(crate) fn keep_reader(&self, asked: Asked, fifo: Description) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        // The oldest is of a call that was given up.
        if readers.len() >= READERS_MAX {
            readers.remove(0);
        }
        readers.push((asked, fifo));
    }

    /// The FIFO that the same question has opened.
    pub(crate) fn take_reader(&self, asked: &Asked) -> Option<Description> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let at = readers.iter().position(|(of, _)| of == asked)?;
        Some(readers.remove(at).1)
    }

    /// Gives a number back.
    pub(crate) fn remove(&self, id: u32) -> Outcome<Arc<Description>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let taken = table.get_mut(id as usize).and_then(Option::take).ok_or(libc::EBADF)?;
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        Ok(taken)
    }

    /// Drops all but `keep`; returns what was dropped.
    pub(crate) fn retain(&self, keep: &[u32]) -> Vec<Arc<Description>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let mut kept: Table = (0..table.len()).map(|_| None).collect();
        for id in keep {
            if let Some(slot) = table.get_mut(*id as usize) {
                kept[*id as usize] = slot.take();
            }
        }
        std::mem::replace(&mut *table, kept).into_iter().flatten().collect()
    }

    /// A copy of the table, for a forked child.
    pub(crate) fn copy_table(&self) -> Table {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Interrupts all calls of the session that wait.
    pub(crate) fn interrupt_all(&self) {
        let waiting: Vec<_> = {
            let waiting = self.interrupted.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.values().cloned().collect()
        };
        waiting.iter().for_each(|interrupt| interrupt.raise());
    }

    /// Ends the session: its table is empty from now on. Returns what it held.
    pub(crate) fn end(&self) -> Table {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        self.ended.store(true, Ordering::Release);
        std::mem::take(&mut *table)
    }
}
