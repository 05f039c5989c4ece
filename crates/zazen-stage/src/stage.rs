//! Copies a tree: directories, then files by several threads, then further names, then the times of
//! directories.

use crate::copy::{Copied, Way, is_same};
use crate::scan::{TreeEntry, join, scan};
use crate::side::{Kind, Meta, Side, link_error};
use std::collections::{HashMap, HashSet};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zazen_wire::checksum::frame_checksum;

/// How to stage.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Files that are copied at a time.
    pub jobs: usize,
    /// Compare bytes where length and time are equal.
    pub compare: bool,
    /// Read what was written, and compare its checksum.
    pub verify: bool,
}

/// What a run has done so far. For any thread.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of all files.
    pub bytes_total: AtomicU64,
    /// Bytes of files that are done or were there.
    pub bytes_done: AtomicU64,
    /// All files.
    pub files_total: AtomicU64,
    /// Files that are done or were there.
    pub files_done: AtomicU64,
    /// Set it to end the run after the chunks that are under way.
    pub stop: AtomicBool,
}

/// What could not be copied.
#[derive(Debug)]
pub struct Failure {
    /// The source.
    pub path: PathBuf,
    /// Why.
    pub error: Error,
}

/// What a run did.
#[derive(Debug, Default)]
pub struct Report {
    /// Files that were copied.
    pub copied: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Files that were there already.
    pub there: u64,
    /// Directories, symbolic links and further names of files.
    pub others: u64,
    /// Files that other processes are copying.
    pub elsewhere: u64,
    /// Empty directories, and extended attributes, of which the target has none.
    pub left_out: u64,
    /// What could not be copied.
    pub failures: Vec<Failure>,
    /// Whether the run was stopped.
    pub stopped: bool,
}

/// A file with more than one name: those after the first.
struct Names<'a> {
    first: &'a Path,
    others: Vec<&'a Path>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies the tree or file `source` to `target`: afterwards `target` has what `source` has. Nothing
/// at the target is removed, except what stands where a file of the source goes.
///
/// Fails only if the source cannot be looked at, or the target not be made. What cannot be copied
/// is in the report.
pub fn stage(
    from: &dyn Side,
    source: &Path,
    to: &dyn Side,
    target: &Path,
    options: &Options,
    progress: &Progress,
) -> Result<Report> {
    let report = Mutex::new(Report::default());
    let run = Run { from, source, to, target, options, progress, report: &report };
    let stopped = || progress.stop.load(Ordering::Relaxed);
    let entries = scan(from, source, &stopped, &mut |path, error| run.fail(&path, error))?;
    run.check_kinds(&entries)?;
    run.make_directories(&entries)?;
    let (files, names) = run.plan(&entries);
    let bytes: u64 = files.iter().map(|entry| entry.meta.bytes).sum();
    progress.bytes_total.store(bytes, Ordering::Relaxed);
    progress.files_total.store(files.len() as u64, Ordering::Relaxed);
    run.copy_all(&files);
    run.make_links(&entries, &names);
    match to.whole_files() {
        None => run.finish_directories(&entries),
        Some(_) => run.leave_out(&entries),
    }
    if !stopped() {
        to.sync(if entries[0].meta.kind == Kind::Directory { target } else { parent(target) })?;
    }
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.stopped = stopped();
    report.failures.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(report)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

struct Run<'a> {
    from: &'a dyn Side,
    source: &'a Path,
    to: &'a dyn Side,
    target: &'a Path,
    options: &'a Options,
    progress: &'a Progress,
    report: &'a Mutex<Report>,
}

impl Run<'_> {
    fn stopped(&self) -> bool {
        self.progress.stop.load(Ordering::Relaxed)
    }

    fn fail(&self, path: &Path, error: Error) {
        lock(self.report).failures.push(Failure { path: join(self.source, path), error });
    }

    /// A tree must not go into a file, nor a file onto a directory.
    fn check_kinds(&self, entries: &[TreeEntry]) -> Result<()> {
        let is_directory = entries[0].meta.kind == Kind::Directory;
        match self.to.meta(self.target)? {
            Some(there) if is_directory && there.kind == Kind::Symlink => Err(link_error(self.target)),
            Some(there) if is_directory && there.kind != Kind::Directory => {
                Err(Error::from_raw_os_error(libc::ENOTDIR))
            }
            Some(there) if !is_directory && there.kind == Kind::Directory => {
                Err(Error::from_raw_os_error(libc::EISDIR))
            }
            _ => Ok(()),
        }
    }

    fn make_directories(&self, entries: &[TreeEntry]) -> Result<()> {
        for entry in entries.iter().filter(|entry| entry.meta.kind == Kind::Directory) {
            if self.stopped() {
                return Ok(());
            }
            let target = join(self.target, &entry.path);
            match self.to.make_directory(&target) {
                Ok(()) => self.open_up(&target),
                Err(error) if entry.path.as_os_str().is_empty() => return Err(error),
                Err(error) => self.fail(&entry.path, error),
            }
        }
        Ok(())
    }

    /// A directory of an earlier run has its last mode, which may not let its owner write.
    fn open_up(&self, target: &Path) {
        if let Ok(Some(there)) = self.to.meta(target)
            && there.mode & 0o700 != 0o700
        {
            // If it is not the caller's, making files in it says so.
            self.to.set_meta(target, &Meta { mode: there.mode | 0o700, ..there }).ok();
        }
    }

    /// The files to copy, in this process's order: first those that its node holds, then all in an
    /// order that differs between processes, so that they do not meet. And further names.
    fn plan<'a>(&self, entries: &'a [TreeEntry]) -> (Vec<&'a TreeEntry>, Vec<Names<'a>>) {
        let mut files = Vec::new();
        let mut by_identity: HashMap<(u64, u64), Names<'a>> = HashMap::new();
        for entry in entries.iter().filter(|entry| entry.meta.kind == Kind::File) {
            // Where files are taken as a whole, each name is a file of its own.
            if entry.meta.links > 1 && self.to.whole_files().is_none() {
                if let Some(names) = by_identity.get_mut(&entry.meta.identity) {
                    names.others.push(&entry.path);
                    continue;
                }
                let names = Names { first: &entry.path, others: Vec::new() };
                by_identity.insert(entry.meta.identity, names);
            }
            files.push(entry);
        }
        let own = self.from.own_node().or(self.to.own_node());
        let salt = format!("{own:?}-{}", std::process::id());
        let order = |entry: &&TreeEntry| {
            let held = own.is_some() && entry.meta.holder == own;
            let name = entry.path.as_os_str().as_encoded_bytes();
            (!held, frame_checksum(&[salt.as_bytes(), name].concat()))
        };
        files.sort_by_cached_key(order);
        let mut names: Vec<_> = by_identity.into_values().filter(|names| !names.others.is_empty()).collect();
        names.sort_by_key(|names| names.first);
        (files, names)
    }

    fn copy_all(&self, files: &[&TreeEntry]) {
        let next = AtomicUsize::new(0);
        let more = |bytes| {
            self.progress.bytes_done.fetch_add(bytes, Ordering::Relaxed);
            self.stopped()
        };
        let way = Way {
            from: self.from,
            to: self.to,
            compare: self.options.compare,
            verify: self.options.verify,
            progress: &more,
        };
        let work = || {
            while !self.stopped()
                && let Some(entry) = files.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let (source, target) = (join(self.source, &entry.path), join(self.target, &entry.path));
                let copied =
                    self.clear(&target, &entry.meta).and_then(|()| way.copy(&source, &target, &entry.meta));
                self.count(entry, copied);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.options.jobs.clamp(1, files.len().max(1)) {
                scope.spawn(work);
            }
            work();
        });
    }

    fn count(&self, entry: &TreeEntry, copied: Result<Copied>) {
        match copied {
            Err(error) => return self.fail(&entry.path, error),
            Ok(Copied::Stopped) => return,
            Ok(Copied::Elsewhere) => lock(self.report).elsewhere += 1,
            Ok(Copied::Before) => lock(self.report).there += 1,
            Ok(Copied::Now) => {
                let mut report = lock(self.report);
                report.copied += 1;
                report.copied_bytes += entry.meta.bytes;
            }
        }
        self.progress.files_done.fetch_add(1, Ordering::Relaxed);
    }

    /// What stands where an entry goes makes room, unless it is a directory or of the same kind.
    fn clear(&self, target: &Path, meta: &Meta) -> Result<()> {
        if self.to.whole_files().is_some() {
            return Ok(());
        }
        match self.to.meta(target)? {
            Some(there) if there.kind == Kind::Directory => Err(Error::from_raw_os_error(libc::EISDIR)),
            Some(there) if there.kind != meta.kind => self.to.remove(target),
            _ => Ok(()),
        }
    }

    fn make_links(&self, entries: &[TreeEntry], names: &[Names<'_>]) {
        let failed: HashSet<PathBuf> =
            lock(self.report).failures.iter().map(|failure| failure.path.clone()).collect();
        for names in names {
            let first = join(self.target, names.first);
            if self.stopped() {
                return;
            }
            for other in &names.others {
                if failed.contains(&join(self.source, names.first)) {
                    let why = format!("it is the file {}, which could not be copied", names.first.display());
                    self.fail(other, Error::other(why));
                    continue;
                }
                match self.link(&first, &join(self.target, other)) {
                    Ok(()) => lock(self.report).others += 1,
                    Err(error) => self.fail(other, error),
                }
            }
        }
        for entry in entries {
            if self.stopped() {
                return;
            }
            let done = match entry.meta.kind {
                Kind::Symlink => self.symlink(entry),
                Kind::Special => {
                    Err(Error::new(ErrorKind::Unsupported, "pipes, sockets and devices are not copied"))
                }
                _ => continue,
            };
            match done {
                Ok(()) => lock(self.report).others += 1,
                Err(error) => self.fail(&entry.path, error),
            }
        }
    }

    fn link(&self, first: &Path, other: &Path) -> Result<()> {
        let Some(meta) = self.to.meta(first)? else {
            // Another process has not finished it.
            lock(self.report).elsewhere += 1;
            return Ok(());
        };
        match self.to.meta(other)? {
            Some(there) if there.identity == meta.identity => return Ok(()),
            Some(there) if there.kind == Kind::Directory => {
                return Err(Error::from_raw_os_error(libc::EISDIR));
            }
            Some(_) => self.to.remove(other)?,
            None => {}
        }
        match self.to.link(first, other) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    }

    fn symlink(&self, entry: &TreeEntry) -> Result<()> {
        if self.to.whole_files().is_some() {
            return Err(Error::new(ErrorKind::Unsupported, "an object store has no symbolic links"));
        }
        let target = join(self.target, &entry.path);
        let leads_to = self.from.read_link(&join(self.source, &entry.path))?;
        if let Some(there) = self.to.meta(&target)? {
            if there.kind == Kind::Symlink && self.to.read_link(&target)? == leads_to {
                return if is_same(&entry.meta, &there) {
                    Ok(())
                } else {
                    self.to.set_meta(&target, &entry.meta)
                };
            }
            if there.kind == Kind::Directory {
                return Err(Error::from_raw_os_error(libc::EISDIR));
            }
            self.to.remove(&target)?;
        }
        match self.to.symlink(&leads_to, &target) {
            // Another process was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => made?,
        }
        self.to.set_meta(&target, &entry.meta)
    }

    /// Counts what the target has none of.
    fn leave_out(&self, entries: &[TreeEntry]) {
        let above: HashSet<&Path> = entries.iter().filter_map(|entry| entry.path.parent()).collect();
        for entry in entries {
            let source = join(self.source, &entry.path);
            let found = match entry.meta.kind {
                Kind::File => self.from.open(&source).and_then(|file| file.xattrs()),
                Kind::Directory => self.from.xattrs(&source),
                _ => continue,
            };
            let is_empty = entry.meta.kind == Kind::Directory && !above.contains(&*entry.path);
            match found {
                Ok(attributes) => lock(self.report).left_out += attributes.len() as u64 + u64::from(is_empty),
                Err(error) => self.fail(&entry.path, error),
            }
        }
    }

    /// Modes and times, the innermost first: what is in a directory changes its times.
    fn finish_directories(&self, entries: &[TreeEntry]) {
        let failed: HashSet<PathBuf> =
            lock(self.report).failures.iter().map(|failure| failure.path.clone()).collect();
        for entry in entries.iter().rev().filter(|entry| entry.meta.kind == Kind::Directory) {
            let target = join(self.target, &entry.path);
            let done = (|| {
                for (name, value) in self.from.xattrs(&join(self.source, &entry.path))? {
                    self.to.set_xattr(&target, &name, &value)?;
                }
                self.to.set_meta(&target, &entry.meta)
            })();
            match done {
                Ok(()) => lock(self.report).others += 1,
                // It, or one above it, could not be made, which was told.
                Err(_) if entry.path.ancestors().any(|above| failed.contains(&join(self.source, above))) => {}
                Err(error) => self.fail(&entry.path, error),
            }
        }
    }
}

#[cfg(test)]
mod tests;
