//! What this node knows of archived objects: one empty file for each, whose name says all.
//!
//! ```text
//! archived/FOLDER/INODE-GENERATION.BYTES.MODIFIED.STATE     STATE: `here` or `away`
//! ```
//!
//! A record that says `here` counts while the object has still this length and time. One that says
//! `away` means that the archive alone has the bytes: it is on the disk before the object goes.

use crate::folder::{replace, sub};
use crate::handles::lock;
use crate::objects::{FOLDERS, ObjectName};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use zazen_core::{Error, Result};
use zazen_namespace::archive::Looks;

/// The file with the name of the namespace's part of the archive.
const ID: &str = "id";
/// Bytes of such a name.
const ID_BYTES: usize = 32;

/// Whether this names a namespace's part of the archive.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == ID_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What is known of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Length and time of the last change when it was archived.
    pub(crate) looks: Looks,
    /// Whether the bytes are in the archive alone.
    pub(crate) away: bool,
}

/// All of them. For any thread.
pub(crate) struct Records {
    root: OwnedFd,
    known: Mutex<HashMap<ObjectName, Record>>,
}

/// Files and bytes that are archived, and those of them whose bytes are not here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) away_files: u64,
    pub(crate) away_bytes: u64,
}

fn file_of(name: ObjectName, record: &Record) -> String {
    let (bytes, modified_ns) = record.looks;
    let state = if record.away { "away" } else { "here" };
    format!("{}.{bytes:x}.{modified_ns}.{state}", name.file())
}

fn parse(text: &str) -> Option<(ObjectName, Record)> {
    let mut words = text.split('.');
    let name = ObjectName::parse(words.next()?)?;
    let bytes = u64::from_str_radix(words.next()?, 16).ok()?;
    let modified_ns = words.next()?.parse().ok()?;
    let away = match words.next()? {
        "away" => true,
        "here" => false,
        _ => return None,
    };
    words.next().is_none().then_some((name, Record { looks: (bytes, modified_ns), away }))
}

impl Records {
    /// The records in the folder `root`.
    pub(crate) fn open(root: OwnedFd) -> Result<Records> {
        let within = |errno: rustix::io::Errno| Error::io("the records of archived files", errno.into());
        let mut known = HashMap::new();
        for folder in 0..FOLDERS {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let fd = match rustix::fs::openat(&root, format!("{folder:03x}"), flags, Mode::empty()) {
                Err(rustix::io::Errno::NOENT) => continue,
                opened => opened.map_err(within)?,
            };
            for entry in rustix::fs::Dir::new(fd).map_err(within)? {
                let entry = entry.map_err(within)?;
                known.extend(entry.file_name().to_str().ok().and_then(parse));
            }
        }
        Ok(Records { root, known: Mutex::new(known) })
    }

    /// The namespace's part of the archive, as an earlier life of the daemon learned it.
    pub(crate) fn id(&self) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = File::from(rustix::fs::openat(&self.root, ID, flags, Mode::empty()).ok()?);
        std::io::read_to_string(file.take(ID_BYTES as u64 + 1)).ok().filter(|id| is_id(id))
    }

    /// Remembers it: bytes come back before the metadata answers.
    pub(crate) fn keep_id(&self, id: &str) {
        if let Err(error) = replace(self.root.as_fd(), ID, id.as_bytes()) {
            tracing::warn!("namespace: the name of its part of the archive: {error}");
        }
    }

    pub(crate) fn get(&self, name: ObjectName) -> Option<Record> {
        lock(&self.known).get(&name).copied()
    }

    /// Keeps a record. With `away` it is on the disk when this returns.
    pub(crate) fn set(&self, name: ObjectName, record: Record) -> std::io::Result<()> {
        let mut known = lock(&self.known);
        let folder = sub(self.root.as_fd(), &name.folder())?;
        let file = file_of(name, &record);
        match known.get(&name) {
            Some(before) if *before == record => {}
            Some(before) => rustix::fs::renameat(&folder, file_of(name, before), &folder, &file)?,
            None => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                rustix::fs::openat(&folder, &file, flags, Mode::from_raw_mode(0o600)).map(drop)?;
            }
        }
        known.insert(name, record);
        // Others need not wait for the disk.
        drop(known);
        if record.away {
            rustix::fs::fsync(&folder)?;
            rustix::fs::fsync(&self.root)?;
        }
        Ok(())
    }

    /// The file is gone, or its bytes are elsewhere.
    pub(crate) fn remove(&self, name: ObjectName) {
        let mut known = lock(&self.known);
        if let Some(before) = known.remove(&name) {
            let path = format!("{}/{}", name.folder(), file_of(name, &before));
            rustix::fs::unlinkat(&self.root, path, AtFlags::empty()).ok();
        }
    }

    /// Objects of a folder whose bytes are in the archive alone.
    pub(crate) fn away_in(&self, folder: u64) -> Vec<ObjectName> {
        let folder = format!("{folder:03x}");
        self.away().into_iter().filter(|name| name.folder() == folder).collect()
    }

    /// All objects whose bytes are in the archive alone.
    pub(crate) fn away(&self) -> Vec<ObjectName> {
        let known = lock(&self.known);
        known.iter().filter(|(_, record)| record.away).map(|(name, _)| *name).collect()
    }

    /// Some of the objects whose bytes are here and in the archive, other ones each time.
    pub(crate) fn here(&self, most: usize, at: &mut usize) -> Vec<(ObjectName, Record)> {
        let known = lock(&self.known);
        let here = || known.iter().filter(|(_, record)| !record.away).map(|(name, record)| (*name, *record));
        let count = here().count();
        let skip = if count > most { *at % count } else { 0 };
        *at = skip + most;
        here().skip(skip).chain(here().take(skip)).take(most).collect()
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for record in lock(&self.known).values() {
            totals.files += 1;
            totals.bytes = totals.bytes.saturating_add(record.looks.0);
            if record.away {
                totals.away_files += 1;
                totals.away_bytes = totals.away_bytes.saturating_add(record.looks.0);
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_namespace::InodeId;

    #[test]
    fn records_come_back_as_they_were_and_there_is_one_of_each() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Records::open(File::open(dir.path()).unwrap().into()).unwrap();
        let name = |id| ObjectName { id: InodeId(id), generation: 3 };
        let here = Record { looks: (5, -7), away: false };
        let away = Record { looks: (u64::MAX, i64::MAX), away: true };
        let records = open();
        records.set(name(1), here).unwrap();
        records.set(name(2), here).unwrap();
        records.set(name(2), away).unwrap();
        records.set(name(3), away).unwrap();
        records.remove(name(3));
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(records.id(), None);
        records.keep_id(id);
        let again = open();
        assert_eq!(
            (again.get(name(1)), again.get(name(2)), again.get(name(3))),
            (Some(here), Some(away), None)
        );
        assert_eq!(again.id().as_deref(), Some(id));
        let totals = again.totals();
        assert_eq!((totals.files, totals.away_files, totals.away_bytes), (2, 1, u64::MAX));
        let away: Vec<_> = (0..FOLDERS).flat_map(|folder| again.away_in(folder)).collect();
        assert_eq!((away, again.away()), (vec![name(2)], vec![name(2)]));
        assert_eq!(again.here(8, &mut 0), [(name(1), here)]);
    }

    #[test]
    fn other_files_are_no_records() {
        for bad in ["", "0-1", "0000000000000001-3.5.0", "0000000000000001-3.5.0.gone", "x.5.0.here"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let name = ObjectName { id: InodeId(1), generation: 3 };
        let record = Record { looks: (5, 0), away: true };
        assert_eq!(parse("0000000000000001-3.5.0.away"), Some((name, record)));
        assert_eq!(parse("0000000000000001-3.5.0.away.x"), None);
    }
}
