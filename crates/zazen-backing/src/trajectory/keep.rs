//! Keeps indexes: in memory, and in a folder of this process's user.
//!
//! Each file's index is built by one thread at a time; others that want it wait.

use super::build::build;
use crate::Backing;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use zazen_core::{RelPath, Result};
use zazen_trajectory::FileIndex;
use zazen_wire::checksum::{crc32c, frame_checksum};

/// Indexes in memory; beyond, all are forgotten.
const INDEXES_MAX: usize = 4096;
/// Indexes in the folder; beyond, the oldest go.
const FILES_MAX: usize = 16_384;
/// The largest index that is read back.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// The index of one file, once it is known.
type Slot = Arc<Mutex<Option<Arc<FileIndex>>>>;

/// The indexes that a process knows. Shared by threads.
#[derive(Default)]
pub struct Indexes {
    known: Mutex<HashMap<String, Slot>>,
    folder: Option<PathBuf>,
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
        Indexes { known: Mutex::default(), folder: Some(folder) }
    }

    /// Indexes in the cache folder of this process's user: `$XDG_CACHE_HOME/zazen/trajectories`, or
    /// `~/.cache/zazen/trajectories`.
    pub fn of_this_user() -> Indexes {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        Indexes { known: Mutex::default(), folder: cache.map(|cache| cache.join("zazen/trajectories")) }
    }

    /// The index of the file at `path` of `backing`, whose root users spell `store`. The file is
    /// opened for it, with the rights of the view.
    ///
    /// Fails if it cannot be opened, is no trajectory, or none of its frames is good.
    pub fn of(&self, backing: &dyn Backing, store: &str, path: &RelPath) -> Result<Arc<FileIndex>> {
        let file = backing.open(path)?;
        let key = format!("{}/{path}", store.trim_end_matches('/'));
        let slot = self.slot(&key);
        let mut known = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.take().or_else(|| self.load(&key));
        let name = path.split().map_or("", |(_, name)| name);
        let index = build(&*file, name, &key, before.clone())?;
        if !before.is_some_and(|before| Arc::ptr_eq(&before, &index)) {
            self.save(&index);
        }
        *known = Some(index.clone());
        Ok(index)
    }

    fn slot(&self, key: &str) -> Slot {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= INDEXES_MAX {
            known.clear();
        }
        known.entry(key.to_owned()).or_default().clone()
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
        if let Err(error) = write(folder, index) {
            tracing::debug!("keep a trajectory index in {}: {error}", folder.display());
        }
    }
}

fn write(folder: &Path, index: &FileIndex) -> std::io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    if !is_ours(folder) {
        return Err(std::io::Error::other("belongs to another user, or others may write there"));
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let new = folder.join(format!("new-{}-{number}", std::process::id()));
    let mut open = std::fs::OpenOptions::new();
    let mut file = open.write(true).create_new(true).mode(0o600).open(&new)?;
    let kept = file
        .write_all(&index.encode())
        .and_then(|()| std::fs::rename(&new, Indexes::place(folder, &index.key)));
    if kept.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    make_room(folder);
    kept
}

/// Whether nobody else can put files into the folder.
fn is_ours(folder: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0)
}

/// Removes the oldest indexes beyond the limit.
fn make_room(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let age = |entry: std::fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
    let names: Vec<_> = entries.flatten().collect();
    if names.len() <= FILES_MAX {
        return;
    }
    let mut files: Vec<_> = names.into_iter().filter_map(age).collect();
    files.sort();
    for (_, path) in files.iter().take(files.len() - FILES_MAX) {
        let _ = std::fs::remove_file(path);
    }
}
