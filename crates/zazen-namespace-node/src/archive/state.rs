//! What a node knows of the archive, and how it begins.

use crate::archive::folders::{Folders, open_root};
use crate::archive::records::{Record, Records};
use crate::archive::wholes::Wholes;
use crate::folder::DataFolder;
use crate::handles::lock;
use crate::objects::{FOLDERS, ObjectName, Objects};
use crate::waiting::Table;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use zazen_core::fnv::mixed;
use zazen_core::{Error, Result};
use zazen_namespace::Errno;
use zazen_namespace::archive::KeepFree;

/// Objects whose bytes go or come back share locks.
const LOCKS: usize = 256;
/// Failures that are remembered.
const FAILED_MAX: usize = 1 << 16;
/// While fewer objects wait, those that there was no room for are looked for.
const NOTED_MAX: usize = 1024;

/// What a node is told of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveTold {
    /// Its folder, on a file system that all nodes have.
    pub root: PathBuf,
    /// The most bytes that this node copies there in a second; 0 for as many as go.
    pub bytes_per_s: u64,
    /// A file is archived so long after its last change.
    pub after: Duration,
    /// How much of this node's disk is kept free, as far as archived files go.
    pub keep_free: KeepFree,
}

/// What a node knows of the archive. For any thread.
pub(crate) struct Archive {
    told: Option<ArchiveTold>,
    pub(super) records: Records,
    /// Objects that wait to be archived.
    pub(super) waiting: Table,
    /// Whether some could not wait, and the next folder to look for them.
    pub(super) missed: Mutex<Option<u64>>,
    pub(super) failed: Mutex<BTreeMap<ObjectName, Errno>>,
    pub(super) trouble: Mutex<Option<String>>,
    /// The namespace's part of the archive, once it is known.
    id: Mutex<Option<String>>,
    locks: Vec<Mutex<()>>,
    /// The folder of objects whose bytes are about to go.
    pub(super) aside: OwnedFd,
    pub(super) evict_at: AtomicUsize,
    /// Files that came back since the daemon's start.
    pub(super) brought: AtomicU64,
    /// Files in chunks, on the node that makes the names.
    pub(super) wholes: Wholes,
    /// What the last look at names found, on the node that makes them.
    pub(super) named: Mutex<Option<Named>>,
}

pub(super) fn os(error: std::io::Error) -> Errno {
    error.raw_os_error().and_then(|errno| u16::try_from(errno).ok()).map_or(Errno::EIO, Errno::of)
}

impl Archive {
    /// Reads what an earlier life knew.
    pub(crate) fn open(
        told: Option<&ArchiveTold>,
        folder: &DataFolder,
        objects: &Objects,
    ) -> Result<Archive> {
        let records = Records::open(folder.sub("archived")?)?;
        let id = Mutex::new(records.id());
        let aside = folder.sub("aside")?;
        settle(objects, &records, &aside)?;
        Ok(Archive {
            told: told.cloned(),
            records,
            waiting: Table::default(),
            missed: Mutex::new(told.map(|_| 0)),
            failed: Mutex::default(),
            trouble: Mutex::default(),
            id,
            locks: std::iter::repeat_with(Mutex::default).take(LOCKS).collect(),
            aside,
            evict_at: AtomicUsize::new(0),
            brought: AtomicU64::new(0),
            wholes: Wholes::default(),
            named: Mutex::default(),
        })
    }

    /// A file of this node has checksums: it goes to the archive.
    pub(crate) fn note(&self, name: ObjectName) {
        let Some(told) = &self.told else { return };
        if !self.waiting.note(name, told.after) {
            lock(&self.missed).get_or_insert(0);
        }
    }

    /// The namespace's part of the archive is this.
    pub(super) fn learned(&self, id: String) {
        self.records.keep_id(&id);
        *lock(&self.id) = Some(id);
    }

    /// Whether that is known.
    pub(super) fn is_learned(&self) -> bool {
        lock(&self.id).is_some()
    }

    /// The next folder to look for objects that do not wait and should.
    pub(super) fn next_folder(&self) -> Option<u64> {
        let mut missed = lock(&self.missed);
        let folder = missed.filter(|_| self.waiting.len() < NOTED_MAX)?;
        *missed = (folder + 1 < FOLDERS).then_some(folder + 1);
        Some(folder)
    }

    /// The right to let an object's bytes go, or to bring them back.
    pub(super) fn one(&self, name: ObjectName) -> MutexGuard<'_, ()> {
        lock(&self.locks[(mixed(name.id.0) % LOCKS as u64) as usize])
    }

    /// Objects of a folder whose bytes are in the archive alone.
    pub(crate) fn away_in(&self, folder: u64) -> Vec<ObjectName> {
        self.records.away_in(folder)
    }

    pub(super) fn failed(&self, name: ObjectName, why: Option<Errno>) {
        let mut failed = lock(&self.failed);
        match why {
            Some(errno) if failed.len() < FAILED_MAX => drop(failed.insert(name, errno)),
            Some(_) => {}
            None => drop(failed.remove(&name)),
        }
    }

    /// What keeps the archive from working; logged when it changes.
    pub(super) fn trouble(&self, why: Option<String>) {
        let mut trouble = lock(&self.trouble);
        if *trouble != why {
            match &why {
                Some(why) => tracing::error!("namespace: nothing is archived or comes back: {why}"),
                None => tracing::info!("namespace: the archive is there again"),
            }
            *trouble = why;
        }
    }

    /// The archive, without a question to the metadata.
    pub(super) fn known_folders(&self) -> std::result::Result<Folders, String> {
        let told = self.told.as_ref();
        let told = told.ok_or("files are in an archive, and this daemon is told none: set archive")?;
        let id = lock(&self.id).clone().ok_or("the namespace has not told its part of the archive yet")?;
        Folders::open(open_root(&told.root)?, &id, false)
    }

    /// For `zazen namespace status`.
    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        let totals = self.records.totals();
        if self.told.is_none() && totals.files == 0 {
            return None;
        }
        let failed = lock(&self.failed);
        let example = failed.iter().next().map(|(name, errno)| format!("inode {}: {errno}", name.id));
        let named = lock(&self.named).clone();
        Some(serde_json::json!({
            "root": self.told.as_ref().map(|told| &told.root),
            "files": totals.files,
            "bytes": totals.bytes,
            "only_there_files": totals.away_files,
            "only_there_bytes": totals.away_bytes,
            "brought_back": self.brought.load(Ordering::Relaxed),
            "waiting": self.waiting.len() + usize::from(lock(&self.missed).is_some()),
            "failed": failed.len(),
            "failure": example,
            "trouble": *lock(&self.trouble),
            "names": named.map(|named| named.shown()),
        }))
    }
}

/// What a walk found.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(super) began: Instant,
    /// Names of files, links and directories.
    pub(super) names: u64,
    /// Files that have no name yet, because they are not archived yet; of files in chunks, also
    /// those whose name is that of older bytes.
    pub(super) lacking: u64,
    pub(super) failed: u64,
    pub(super) failure: Option<String>,
}

impl Named {
    pub(crate) fn shown(&self) -> serde_json::Value {
        serde_json::json!({
            "age_s": self.began.elapsed().as_secs(),
            "names": self.names,
            "lacking": self.lacking,
            "failed": self.failed,
            "failure": self.failure,
        })
    }
}

/// Puts objects back that a crash left aside, and looks which bytes are here after all.
fn settle(objects: &Objects, records: &Records, aside: &OwnedFd) -> Result<()> {
    let within = |errno: rustix::io::Errno| Error::io("files set aside", errno.into());
    for entry in rustix::fs::Dir::read_from(aside).map_err(within)? {
        let entry = entry.map_err(within)?;
        let Some(name) = entry.file_name().to_str().ok().and_then(ObjectName::parse) else { continue };
        // Somebody may have written to it before the crash.
        objects.put_back(name, aside.as_fd()).map_err(|errno| {
            Error::io("files set aside", std::io::Error::from_raw_os_error(i32::from(errno as u16)))
        })?;
    }
    for name in records.away() {
        if objects.is_there(name)
            && let Some(record) = records.get(name)
        {
            let kept = records.set(name, Record { away: false, ..record });
            kept.map_err(|error| Error::io("the records of archived files", error))?;
        }
    }
    Ok(())
}
