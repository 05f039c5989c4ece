//! Trajectory files that grow while they are watched: their whole frames are pushed as they appear.
//!
//! A program keeps its trajectory open for days, so nothing tells that a frame is complete but the
//! frame itself. The files are looked at in intervals.
//!
//! Invariant: a frame that is pushed was whole, and lay in the file at that place, when its bytes
//! were read. If the file was cut or replaced, its frames are pushed anew.

use super::events::{Submit, WatchEvent, look_of};
use super::open::open_found;
use crate::push::FrameSource;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zazen_backing::DirectoryBacking;
use zazen_backing::trajectory::Indexes;
use zazen_core::survey::{has_number, is_container};
use zazen_core::trajectory::Format;
use zazen_core::{Error, ErrorKind, FrameNo, RelPath, Result, Series, Validator};

/// A file that was not changed for so long may be complete.
const QUIET: Duration = Duration::from_secs(2);
/// Frames of one file that are pushed before others get their turn.
const TURN_FRAMES: u64 = 4096;

/// The trajectory files of a watched directory.
pub(super) struct Growing {
    directory: PathBuf,
    backing: DirectoryBacking,
    indexes: Indexes,
    /// The files of the manifest, in their order, or the one that the user named.
    named: Vec<RelPath>,
    /// The files are one dataset; else each is one of its own.
    joined: bool,
    files: BTreeMap<String, Progress>,
}

/// How far a file is pushed.
#[derive(Default)]
struct Progress {
    /// What it looked like when it was last looked at.
    seen: Option<Validator>,
    /// The seed of the index whose frames were pushed: another one is of a file that was rewritten.
    seed: u64,
    pushed: u64,
    frames: u64,
    /// The frames from this one on were pushed when the file had its present length, and looked
    /// like this at first.
    last: Option<(u64, Validator)>,
    /// What was last said of it.
    told: Option<String>,
}

impl Progress {
    /// Whether the file was changed without growing after its last frames were pushed: some
    /// programs count the frames in the header behind the last one. Copies from before that are
    /// stale, so they must take over what the file looks like now.
    fn is_touched(&self, now: &Validator) -> bool {
        let touched = |(_, then): (u64, Validator)| then.size == now.size && !then.looks_like(now);
        self.pushed == self.frames && self.last.is_some_and(touched)
    }

    /// Pushes the last frames once more.
    fn push_again(&mut self) {
        self.pushed = self.last.take().map_or(self.pushed, |(from, _)| from);
    }
}

impl Growing {
    /// `named`: the files of the manifest, or the one that the user named; and whether they are one
    /// dataset.
    pub(super) fn new(directory: &Path, named: Vec<RelPath>, joined: bool) -> Result<Growing> {
        let backing = DirectoryBacking::with_deadline(crate::direct::absolute(directory)?, None)?;
        let files = named.iter().map(|file| (file.to_string(), Progress::default())).collect();
        let indexes = Indexes::in_memory();
        Ok(Growing { directory: directory.to_owned(), backing, indexes, named, joined, files })
    }

    /// Whether the file is one of these. One that is not named is, if its name is a trajectory's
    /// and has no number.
    pub(super) fn takes(&mut self, name: &str) -> bool {
        if self.files.contains_key(name) {
            return true;
        }
        let new = self.named.is_empty() && is_container(name) && !has_number(name);
        if new {
            self.files.insert(name.to_owned(), Progress::default());
        }
        new
    }

    /// What the file holds now is not pushed.
    pub(super) fn skip_existing(&mut self, name: &str) {
        let found = self.indexes.of(&self.backing, "", &RelPath::new(name).unwrap_or_default(), None);
        if let (Ok(index), Some(progress)) = (found, self.files.get_mut(name)) {
            progress.frames = index.table.count();
            (progress.pushed, progress.seed) = (progress.frames, index.anchors.seed);
        }
    }

    /// Whether frames are in folders of the directory.
    pub(super) fn is_deep(&self) -> bool {
        self.named.iter().any(|file| file.as_str().contains('/'))
    }

    /// Pushes the new whole frames of all files; how many.
    pub(super) fn work_off(&mut self, submit: &mut Submit<'_>, tell: &mut dyn FnMut(WatchEvent)) -> u64 {
        let names: Vec<String> = match self.joined {
            true => self.named.iter().map(RelPath::to_string).collect(),
            false => self.files.keys().cloned().collect(),
        };
        let (mut submitted, mut first) = (0, 0);
        for name in names {
            match self.look(&name, first, submit, tell) {
                Ok(frames) => submitted += frames,
                Err(error) => self.tell_once(&name, &error, tell),
            }
            if self.joined {
                first += self.files.get(&name).map_or(0, |progress| progress.frames);
            }
        }
        submitted
    }

    fn tell_once(&mut self, name: &str, error: &Error, tell: &mut dyn FnMut(WatchEvent)) {
        // A file that is not there yet, or has no whole frame yet, will come.
        if error.kind() == ErrorKind::NotFound {
            return;
        }
        let reason = error.to_string();
        let Some(progress) = self.files.get_mut(name) else { return };
        if progress.told.as_ref() != Some(&reason) {
            progress.told = Some(reason.clone());
            tell(WatchEvent::Failed { name: name.to_owned(), reason });
        }
    }

    /// The numbers of the file's frames begin at `first`.
    fn look(
        &mut self,
        name: &str,
        first: u64,
        submit: &mut Submit<'_>,
        tell: &mut dyn FnMut(WatchEvent),
    ) -> Result<u64> {
        let path = RelPath::new(name)?;
        let Some(progress) = self.files.get_mut(name) else { return Ok(0) };
        let now = zazen_backing::directory::stat_local(&self.directory.join(name))?.validator;
        if progress.is_touched(&now) && is_quiet(&now) {
            progress.push_again();
        }
        let is_calm = progress.seen.is_some_and(|seen| seen.agrees_with(&now));
        if is_calm && progress.pushed == progress.frames {
            return Ok(0);
        }
        // What HDF5 has written so far may be a part of what describes the frames.
        if is_h5md(name) && !is_quiet(&now) {
            return Ok(0);
        }
        let index = self.indexes.of(&self.backing, "", &path, None)?;
        progress.seen = Some(index.seen);
        progress.frames = index.table.count();
        if progress.seed != index.anchors.seed {
            (progress.seed, progress.pushed, progress.last) = (index.anchors.seed, 0, None);
        }
        let failed = |error| Error::io(self.directory.join(name).display().to_string(), error);
        let file = open_found(&self.directory, name).map_err(failed)?;
        let (validator, owner) = look_of(&file).map_err(failed)?;
        let is_other = match index.format {
            Format::H5md => !index.seen.looks_like(&validator),
            _ => validator.inode != index.seen.inode,
        };
        if is_other {
            // Replaced in between: the next look indexes the new file.
            return Ok(0);
        }
        let series = match self.joined {
            true => Series::Trajectories,
            false => Series::Trajectory(path.clone()),
        };
        let end = progress.frames.min(progress.pushed + TURN_FRAMES);
        let begun = progress.pushed;
        if begun < end && progress.last.is_none_or(|(_, then)| then.size != validator.size) {
            progress.last = Some((begun, validator));
        }
        while progress.pushed < end {
            let Some((offset, length)) = index.table.get(progress.pushed) else { break };
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, offset).map_err(failed)?;
            let source = FrameSource {
                name: Some(name.to_owned()),
                offset,
                piece: true,
                validator: Some(validator),
                owner: Some(owner.clone()),
                series: Some(series.clone()),
            };
            let number = FrameNo::new(first + progress.pushed)?;
            submit(number, bytes, source)?;
            progress.pushed += 1;
            tell(WatchEvent::Submitted { number: number.get(), name: name.to_owned(), bytes: length });
        }
        let pushed = progress.pushed - begun;
        if let Some(trouble) = index.trouble.as_ref().filter(|trouble| !trouble.unfinished) {
            let what =
                format!("frame {}, at byte {}, is damaged: {}", progress.frames, trouble.offset, trouble.why);
            let error = Error::new(ErrorKind::Corrupt, what);
            self.tell_once(name, &error, tell);
        }
        Ok(pushed)
    }

    /// The watch ends: the last frames of files that were changed behind them are pushed once more.
    /// Whether there are any.
    pub(super) fn push_touched_again(&mut self) -> bool {
        let mut any = false;
        for (name, progress) in &mut self.files {
            let now = zazen_backing::directory::stat_local(&self.directory.join(name));
            if now.is_ok_and(|now| progress.is_touched(&now.validator)) {
                progress.push_again();
                any = true;
            }
        }
        any
    }

    /// Whether all whole frames that were seen are pushed.
    pub(super) fn caught_up(&self) -> bool {
        self.files.values().all(|progress| progress.pushed == progress.frames)
    }
}

/// Whether the file is HDF5, as far as its name tells.
fn is_h5md(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".h5md", ".h5", ".hdf5"].iter().any(|ending| name.ends_with(ending))
}

fn is_quiet(now: &Validator) -> bool {
    let changed = UNIX_EPOCH + Duration::from_nanos(u64::try_from(now.mtime_ns).unwrap_or(0));
    SystemTime::now().duration_since(changed).is_ok_and(|age| age > QUIET)
}
