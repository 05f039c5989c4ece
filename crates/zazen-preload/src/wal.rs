//! SQLite's WAL mode, where mappings can't be shared with the far side.
//!
//! A database in WAL mode needs memory that its processes share. With a daemon of another node
//! there is none. SQLite finds that out only when it has marked the database, which then nobody can
//! open here. So the write that marks it fails instead: SQLite takes its change back, and the
//! database goes on in the mode that it had.
//!
//! Invariants: refused is only a write that changes the mark, by a process that has locked the
//! bytes that SQLite locks to write. Programs that copy a database do not lock them. A daemon of
//! this machine hands over descriptors, with which mappings are shared: there nothing is refused.

use crate::far::{Lock, OFFSET, far};
use crate::real::system_call;
use crate::table::{self, FarFile};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// A database begins so.
const BEGINNING: &[u8; 16] = b"SQLite format 3\0";
/// The bytes behind it that say how it is written and read: 1 in the usual modes, 2 in WAL mode.
const MODES: std::ops::Range<usize> = 18..20;
const WAL: u8 = 2;
/// The bytes of a database that SQLite locks.
const LOCKED: std::ops::Range<i64> = 0x4000_0000..0x4000_0200;

/// Whether this process has locked a file as SQLite does to write.
static WRITES_DATABASES: AtomicBool = AtomicBool::new(false);
static SAID: AtomicBool = AtomicBool::new(false);

/// A lock that the program has got.
pub(crate) fn note_lock(lock: &Lock) {
    if lock.kind == libc::F_WRLCK && LOCKED.contains(&lock.start) {
        WRITES_DATABASES.store(true, Ordering::Relaxed);
    }
}

/// EOPNOTSUPP for a write that would put a database into WAL mode that can't work.
#[inline]
pub(crate) fn look(entry: FarFile, data: *const u8, bytes: usize, offset: i64) -> Result<(), c_int> {
    if !WRITES_DATABASES.load(Ordering::Relaxed) || bytes < MODES.end || !matches!(offset, 0 | OFFSET) {
        return Ok(());
    }
    if crate::fault::backed(data, MODES.end, false)? < MODES.end {
        return Ok(());
    }
    // SAFETY: the program has these bytes.
    let head = unsafe { std::slice::from_raw_parts(data, MODES.end) };
    if marked(head) && marks(entry, offset) { Err(refuse()) } else { Ok(()) }
}

fn marked(head: &[u8]) -> bool {
    head.starts_with(BEGINNING) && head[MODES].contains(&WAL)
}

/// Whether a file has no such mark yet, and mappings of it are copies.
#[cold]
fn marks(entry: FarFile, offset: i64) -> bool {
    let id = entry.id();
    if offset == OFFSET && far!(px_seek(id, 0, libc::SEEK_CUR)) != Ok(0) {
        return false;
    }
    let mut real = -1;
    if far!(px_give(id, &raw mut real)).is_ok() {
        table::close_kernel(real);
        return false;
    }
    let mut head = [0_u8; MODES.end];
    let mut room = head.len() as u64;
    let got = far!(px_read(id, 0, 0, head.as_mut_ptr().cast(), &raw mut room));
    got.is_ok() && !marked(&head)
}

#[cold]
fn refuse() -> c_int {
    if !SAID.swap(true, Ordering::Relaxed) {
        let words = b"zazen: SQLite's WAL mode needs memory that is shared with the far side, which another \
                      node's files do not have; the database keeps its journal mode\n";
        match table::entry(2) {
            None => {
                let _ = system_call(libc::SYS_write, [2, words.as_ptr() as usize, words.len(), 0, 0, 0]);
            }
            Some(entry) => {
                let (id, bytes) = (entry.id(), words.len() as u64);
                let _ = far!(px_write(id, OFFSET, 0, words.as_ptr().cast(), bytes));
            }
        }
    }
    libc::EOPNOTSUPP
}
