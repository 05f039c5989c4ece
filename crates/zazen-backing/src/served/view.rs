//! A served directory as one user sees it.
//!
//! A file server has no kernel that knows the user. So the owner and mode bits that it reports
//! decide here. Access control lists and a network file system's own rules are not seen. Use this
//! server only for testbeds. If several users share a node, use a mounted directory.

use crate::{Backing, DirectoryNames, Rights, SourceFile, SourceStat};
use std::collections::HashMap;
use std::sync::Arc;
use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result};

pub(super) struct ServedView {
    /// The directory as the server sees it.
    pub(super) inner: Arc<dyn Backing>,
    pub(super) who: Credentials,
}

impl ServedView {
    fn denied(&self, path: &RelPath) -> Error {
        let text = format!("{path} on {}: user {} may not use it so", self.inner.describe(), self.who.uid);
        Error::new(ErrorKind::PermissionDenied, text)
    }

    /// Stats of `paths`, each only if the directories above it may be searched.
    fn stats(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        let mut folders: Vec<RelPath> = paths.iter().flat_map(above).collect();
        folders.sort();
        folders.dedup();
        let stats = self.inner.stat_many(&folders)?;
        let open: HashMap<RelPath, bool> = folders
            .into_iter()
            .zip(stats)
            .map(|(folder, stat)| {
                // A folder without a stat is missing. The path's own stat reports that.
                let open = stat.map_or(true, |stat| self.who.may_search(stat.uid, stat.gid, stat.mode));
                (folder, open)
            })
            .collect();
        let found = self.inner.stat_many(paths)?;
        let checked = paths.iter().zip(found).map(|(path, stat)| {
            match above(path).iter().all(|folder| open.get(folder).is_some_and(|open| *open)) {
                true => stat,
                false => Err(self.denied(path)),
            }
        });
        Ok(checked.collect())
    }

    fn stat_allowing(&self, path: &RelPath, rights: Rights) -> Result<SourceStat> {
        let stat = self.stat(path)?;
        if self.may(&stat, rights) { Ok(stat) } else { Err(self.denied(path)) }
    }

    fn may(&self, stat: &SourceStat, rights: Rights) -> bool {
        let SourceStat { uid, gid, mode, .. } = *stat;
        let who = &self.who;
        (!rights.contains(Rights::READ) || who.may_read(uid, gid, mode))
            // The write bits, moved to the position of the read bits.
            && (!rights.contains(Rights::WRITE) || who.may_read(uid, gid, (mode & 0o222) << 1))
            && (!rights.contains(Rights::SEARCH) || who.may_search(uid, gid, mode))
    }
}

/// The directories above `path`, the root among them.
fn above(path: &RelPath) -> Vec<RelPath> {
    let mut folders = Vec::new();
    let mut at = path.split().map(|(folder, _)| folder);
    while let Some(folder) = at {
        at = folder.split().map(|(above, _)| above);
        folders.push(folder);
    }
    folders
}

impl Backing for ServedView {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        let mut stats = self.stats(std::slice::from_ref(path))?;
        stats.pop().unwrap_or_else(|| Err(self.denied(path)))
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        self.stat_allowing(path, Rights::READ)?;
        let file = self.inner.open(path)?;
        // The opened file counts, not the path that was checked before.
        if self.may(&file.stat(), Rights::READ) { Ok(file) } else { Err(self.denied(path)) }
    }

    fn list(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.stat_allowing(path, Rights::READ)?;
        self.inner.list(path)
    }

    fn list_files(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.stat_allowing(path, Rights::READ)?;
        self.inner.list_files(path)
    }

    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        match self.stat_allowing(path, rights) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn seen_by(&self, who: &Credentials) -> Result<Arc<dyn Backing>> {
        self.inner.seen_by(who)
    }

    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        self.stats(paths)
    }

    fn probe_beneath(&self, folder: &RelPath, paths: &Arc<[RelPath]>) -> Result<Vec<Result<SourceStat>>> {
        let paths: Vec<_> = paths.iter().map(|path| folder.join(path.as_str())).collect::<Result<_>>()?;
        let checked = paths.iter().zip(self.stats(&paths)?).map(|(path, stat)| {
            let stat = stat?;
            if self.may(&stat, Rights::READ) { Ok(stat) } else { Err(self.denied(path)) }
        });
        Ok(checked.collect())
    }

    fn traffic(&self) -> (u64, u64) {
        self.inner.traffic()
    }
}
