//! Answers that came along with an earlier one, where the far side is another machine: a file's
//! attributes and bytes with its open (`opened.rs`), attributes of the names that follow in a
//! listing (`looks.rs`, `listings.rs`), opens of them (`opens.rs`). A message there and back takes
//! longer than all that the far kernel does. `heard.rs` says how long they are good.
//!
//! Invariants: what is kept is in memory of a fixed size. Where a program is in a file is the
//! program's own, and outlasts all answers: the far side is told before it could matter. What is
//! open at the far side for an answer is closed with it.

mod kept;
mod listings;
mod looks;
mod opened;
mod opens;

pub(crate) use listings::listed;
pub(crate) use looks::{lacks, look};
pub(crate) use opened::{entries, has, open, read, seek, stat};
pub(crate) use opens::close_later;

use crate::far::PxOpened;
use crate::heard::Told;
use crate::table::FarFile;
use kept::may_keep;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use zazen_forward_api::structures::CLOSE_READ;

/// What the calls to the far side tell.
pub(crate) fn hear_of_calls(told: Told) -> bool {
    match told {
        Told::Settle => {
            opens::let_go();
            opened::settle_all();
        }
        Told::Over => opens::let_go(),
        Told::Ages => opens::ages(),
        Told::Writes(id) => {
            let Some((ino, device)) = inode_of(id) else { return false };
            looks::touched(ino, device, None);
            opened::touched(ino, device);
            opens::touched(ino, device);
        }
        Told::Left => {
            looks::left();
            opens::left();
            opened::left();
        }
        Told::Forget | Told::Forked => {
            if matches!(told, Told::Forked) {
                kept::unlock();
                listings::forget_all();
                looks::forget_all();
            }
            opens::forget_all();
            opened::forget_all();
            OPENED.iter().for_each(|[id, ..]| id.store(0, Ordering::Relaxed));
        }
    }
    true
}

/// A description is closed, here too. What px_close() is told besides.
pub(crate) fn closed(entry: FarFile) -> c_int {
    let id = entry.id();
    forget_opened(id);
    // Names are below folders alone.
    if !matches!(entry.kind(), libc::S_IFREG) {
        listings::closed(id);
        looks::closed(id);
        opens::closed(id);
    }
    if opened::closed(id) { CLOSE_READ } else { 0 }
}

/// Files that were opened for writing: their descriptions, inodes and devices.
static OPENED: [[AtomicU64; 3]; 8] = [const { [const { AtomicU64::new(0) }; 3] }; 8];
static NEXT_OPENED: AtomicU64 = AtomicU64::new(0);
/// A file was opened for writing.
pub(crate) fn note_opened(opened: &PxOpened) {
    if !may_keep() {
        return;
    }
    let [id, ino, device] = &OPENED[NEXT_OPENED.fetch_add(1, Ordering::Relaxed) as usize % OPENED.len()];
    id.store(0, Ordering::Relaxed);
    ino.store(opened.ino, Ordering::Relaxed);
    device.store(opened.dev, Ordering::Relaxed);
    id.store(opened.id.into(), Ordering::Release);
}

fn inode_of(id: u32) -> Option<(u64, (u32, u32))> {
    let [_, ino, device] = OPENED.iter().find(|[known, ..]| known.load(Ordering::Acquire) == id.into())?;
    let device = device.load(Ordering::Relaxed);
    Some((ino.load(Ordering::Relaxed), (libc::major(device), libc::minor(device))))
}

/// No description has that number any more.
fn forget_opened(id: u32) {
    for [known, ..] in OPENED.iter().filter(|[known, ..]| known.load(Ordering::Relaxed) == id.into()) {
        known.store(0, Ordering::Relaxed);
    }
}
