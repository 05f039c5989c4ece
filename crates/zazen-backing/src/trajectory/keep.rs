//! Keeps indexes: in memory, and in a folder of this process's user.
//!
//! Each file's index is built by one thread at a time; others that want it wait.

use super::build::{Stops, build, check};
use crate::Backing;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use zazen_core::{RelPath, Result};
use zazen_trajectory::FileIndex;
use zazen_wire::checksum::{crc32c, frame_checksum};

/// Bytes of indexes in memory; beyond, those that were not used for longest are forgotten. A
/// dataset may have many small files.
const MEMORY_BYTES_MAX: usize = 256 << 20;
/// What an index takes in memory beside its own bytes: the slot, the key, and their places in maps.
const SLOT_BYTES: usize = 512;
/// Bytes of indexes in the folder, and what a file takes at least; beyond, the oldest go.
const FOLDER_BYTES_MAX: u64 = 1 << 30;
const FILE_BYTES_MIN: u64 = 4096;
/// After so many bytes were written, the folder is looked through: other processes write there,
/// too.
const LOOK_BYTES: u64 = FOLDER_BYTES_MAX / 16;
/// The largest index that is kept in the folder.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// How often a thread that waits for another one's index looks whether its caller still waits.
const LOOK: Duration = Duration::from_millis(5);

/// The index of one file, once it is known.
type Slot = Arc<Mutex<Option<Arc<FileIndex>>>>;

/// The indexes in memory.
#[derive(Default)]
struct Known {
    slots: HashMap<String, Used>,
    /// Grows with each use.
    clock: u64,
    /// Bytes of all slots.
    held: usize,
}

/// A slot, when it was used last, and how many bytes its index has.
struct Used {
    slot: Slot,
    at: u64,
    bytes: usize,
}

impl Known {
    /// The slot of `key`, which is used now.
    fn slot(&mut self, key: &str) -> Slot {
        self.clock += 1;
        let at = self.clock;
        let used = self.slots.entry(key.to_owned()).or_insert_with(|| {
            self.held += SLOT_BYTES;
            Used { slot: Slot::default(), at, bytes: SLOT_BYTES }
        });
        used.at = at;
        used.slot.clone()
    }

    /// Notes that the index in the slot of `key` has so many bytes, and forgets what was not used
    /// for longest if all have more than `most`.
    fn count(&mut self, key: &str, bytes: usize, most: usize) {
        if let Some(used) = self.slots.get_mut(key) {
            self.held = self.held - used.bytes + bytes;
            used.bytes = bytes;
        }
        if self.held <= most {
            return;
        }
        // More than needed goes, so that the next slots need not look through all of them.
        let keep = most - most / 8;
        let mut oldest: Vec<(u64, String)> =
            self.slots.iter().map(|(key, used)| (used.at, key.clone())).collect();
        oldest.sort_unstable();
        for (_, key) in oldest {
            if self.held <= keep {
                return;
            }
            self.held -= self.slots.remove(&key).map_or(0, |used| used.bytes);
        }
    }
}

/// The indexes that a process knows. Shared by threads.
#[derive(Default)]
pub struct Indexes {
    known: Mutex<Known>,
    folder: Option<PathBuf>,
    /// Bytes that were written to the folder since it was looked through; 0: never.
    written: AtomicU64,
}

impl Indexes {
    /// Indexes that are kept in memory only.
    pub fn in_memory() -> Indexes {
        Indexes::default()
    }

    /// Indexes that are also kept in `folder`, for later processes of this user. The folder is made
    /// when the first index is kept. If it belongs to somebody else, or others may write there,
    /// nothing is kept.
    pub fn in_folder(folder: PathBuf) -> Indexes {
        Indexes { folder: Some(folder), ..Indexes::default() }
    }

    /// Indexes in the cache folder of this process's user: `$XDG_CACHE_HOME/zazen/trajectories`, or
    /// `~/.cache/zazen/trajectories`.
    pub fn of_this_user() -> Indexes {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        Indexes { folder: cache.map(|cache| cache.join("zazen/trajectories")), ..Indexes::default() }
    }

    /// The index of the file at `path` of `backing`, whose root users spell `store`. The file is
    /// opened for it, with the rights of the view.
    ///
    /// Fails if it cannot be opened, is no trajectory, or none of its frames is good; also if
    /// `stops` says so while the frames are looked for, or while another thread looks for them.
    pub fn of(
        &self,
        backing: &dyn Backing,
        store: &str,
        path: &RelPath,
        stops: Stops<'_>,
    ) -> Result<Arc<FileIndex>> {
        let file = backing.open(path)?;
        let key = format!("{}/{path}", store.trim_end_matches('/'));
        let slot = self.slot(&key);
        let mut known = wait_for(&slot, stops)?;
        let before = known.take().or_else(|| self.load(&key));
        let name = path.split().map_or("", |(_, name)| name);
        let built = build(stops, &*file, name, &key, before.clone());
        // What was known stays, also if it cannot be extended now: it is compared at each use.
        *known = built.as_ref().ok().cloned().or_else(|| before.clone());
        let index = built?;
        if !before.is_some_and(|before| Arc::ptr_eq(&before, &index)) {
            self.save(&index);
        }
        drop(known);
        self.count(&key, &index);
        Ok(index)
    }

    fn slot(&self, key: &str) -> Slot {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).slot(key)
    }

    /// Counts the bytes of the index in the slot of `key`.
    fn count(&self, key: &str, index: &FileIndex) {
        let bytes = index.header.len() + index.table.memory_bytes() + 8 * index.anchors.sums.len();
        let bytes = SLOT_BYTES + 2 * key.len() + bytes;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.count(key, bytes, MEMORY_BYTES_MAX);
    }

    /// Where the index of a file is kept. The file's name is within; a clash costs only time.
    fn place(folder: &Path, key: &str) -> PathBuf {
        folder.join(format!("{:016x}{:08x}", frame_checksum(key.as_bytes()), crc32c(key.as_bytes())))
    }

    fn load(&self, key: &str) -> Option<Arc<FileIndex>> {
        let folder = self.folder.as_ref().filter(|folder| is_ours(folder))?;
        let place = Indexes::place(folder, key);
        let mut open = std::fs::OpenOptions::new();
        let file = open.read(true).custom_flags(libc::O_NOFOLLOW).open(&place).ok()?;
        let mut bytes = Vec::new();
        file.take(INDEX_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        match FileIndex::decode(&bytes) {
            Ok(index) => Some(Arc::new(index)).filter(|index| index.key == key),
            Err(error) => {
                tracing::debug!("{}: {error}; it is built anew", place.display());
                None
            }
        }
    }

    /// Keeps an index. A failure costs only time, so it is only logged.
    fn save(&self, index: &FileIndex) {
        let Some(folder) = &self.folder else { return };
        match write(folder, index) {
            Ok(bytes) => self.make_room(folder, bytes.max(FILE_BYTES_MIN)),
            Err(error) => tracing::debug!("keep a trajectory index in {}: {error}", folder.display()),
        }
    }

    /// Sees now and then to it that the folder is not too large. Looking through it takes long
    /// where it has many files.
    fn make_room(&self, folder: &Path, bytes: u64) {
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        if before == 0 || before + bytes > LOOK_BYTES {
            self.written.store(bytes, Ordering::Relaxed);
            make_room(folder, FOLDER_BYTES_MAX - LOOK_BYTES);
        }
    }
}

/// Waits for the thread that builds the index, for as long as somebody waits for this one.
fn wait_for<'a>(
    slot: &'a Mutex<Option<Arc<FileIndex>>>,
    stops: Stops<'_>,
) -> Result<MutexGuard<'a, Option<Arc<FileIndex>>>> {
    loop {
        match slot.try_lock() {
            Ok(known) => return Ok(known),
            Err(TryLockError::Poisoned(known)) => return Ok(known.into_inner()),
            Err(TryLockError::WouldBlock) if stops.is_none() => {
                return Ok(slot.lock().unwrap_or_else(PoisonError::into_inner));
            }
            Err(TryLockError::WouldBlock) => {
                check(stops)?;
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// Writes an index to the folder; how many bytes it has.
fn write(folder: &Path, index: &FileIndex) -> std::io::Result<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    if !is_ours(folder) {
        return Err(std::io::Error::other("belongs to another user, or others may write there"));
    }
    let bytes = index.encode();
    if bytes.len() as u64 > INDEX_BYTES_MAX {
        return Err(std::io::Error::other("it is too large to be kept"));
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let new = folder.join(format!("new-{}-{number}", std::process::id()));
    let mut open = std::fs::OpenOptions::new();
    let mut file = open.write(true).create_new(true).mode(0o600).open(&new)?;
    let kept =
        file.write_all(&bytes).and_then(|()| std::fs::rename(&new, Indexes::place(folder, &index.key)));
    if kept.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    kept.map(|()| bytes.len() as u64)
}

/// Whether nobody else can put files into the folder.
fn is_ours(folder: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0)
}

/// Removes the oldest indexes beyond so many bytes.
fn make_room(folder: &Path, bytes: u64) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let look = |entry: std::fs::DirEntry| {
        let found = entry.metadata().ok()?;
        Some((found.modified().ok()?, entry.path(), found.len().max(FILE_BYTES_MIN)))
    };
    let mut files: Vec<_> = entries.flatten().filter_map(look).collect();
    files.sort();
    let mut held = files.iter().map(|(_, _, length)| length).sum::<u64>();
    for (_, path, length) in &files {
        if held <= bytes {
            return;
        }
        let _ = std::fs::remove_file(path);
        held -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_longest_is_forgotten() {
        let mut known = Known::default();
        for key in ["a", "b", "c", "a"] {
            known.slot(key);
        }
        for key in ["a", "b", "c"] {
            known.count(key, 1000, 10_000);
        }
        assert_eq!(known.held, 3000);
        known.count("c", 1000, 2800);
        assert_eq!(known.held, 2000);
        assert!(known.slots.contains_key("a") && known.slots.contains_key("c"));
        known.count("gone", 9000, 1200);
        assert!(known.slots.len() == 1 && known.slots.contains_key("a"));
        known.count("a", 1300, 1200);
        assert!(known.slots.is_empty() && known.held == 0);
    }

    #[test]
    fn the_folder_has_a_budget_of_bytes() {
        let folder = tempfile::tempdir().unwrap();
        for (nth, name) in ["a", "b", "c"].into_iter().enumerate() {
            let file = std::fs::File::create(folder.path().join(name)).unwrap();
            file.set_len(if nth == 2 { 10 } else { 10_000 }).unwrap();
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(nth as u64);
            file.set_modified(at).unwrap();
        }
        let left = |name| folder.path().join(name).exists();
        // The last one takes a block of the disk.
        make_room(folder.path(), 24_096);
        assert_eq!(["a", "b", "c"].map(left), [true, true, true]);
        make_room(folder.path(), 24_095);
        assert_eq!(["a", "b", "c"].map(left), [false, true, true]);
        make_room(folder.path(), 5000);
        assert_eq!(["a", "b", "c"].map(left), [false, false, true]);
    }
}
