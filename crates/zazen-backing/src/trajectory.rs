//! Trajectory files on a backing store: their indexes, and the layouts made of them.
//!
//! Invariants: whoever asks for an index has just opened the file with its own rights. An index is
//! used only for the file as it looked, or for a file that grew since then and whose earlier part
//! is unchanged as far as samples show ([`zazen_trajectory::Anchors`]). Nothing is written to the
//! backing store.

mod build;
mod keep;

pub use build::Stops;
pub(crate) use build::check;
pub use keep::Indexes;

use crate::{Backing, SourceFile};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_core::trajectory::{Format, SampleSums};
use zazen_core::{Error, ErrorKind, Layout, RelPath, Result, Source, Trajectory, TrajectoryFile, Validator};
use zazen_trajectory::{FileIndex, Grown, Scanner, hide_counters};

/// What is known of the files of one dataset may have so many bytes. How many files a manifest may
/// name follows from its own limit.
const BYTES_MAX: usize = 1 << 30;
/// After so many files it is asked whether somebody still waits.
const FILES_BETWEEN_CHECKS: usize = 64;

/// Where a dataset's layout is looked for: the indexes, and the name of the store that they are of.
#[derive(Clone, Copy)]
pub struct Finder<'a> {
    /// The indexes of trajectory files.
    pub indexes: &'a Indexes,
    /// The store's root as users spell it.
    pub store: &'a str,
    /// Finding frames can take long. It ends with `ShuttingDown` once this says so: it is asked now
    /// and then. `None`: it goes on to its end.
    pub stops: Stops<'a>,
}

/// What opened files of a dataset looked like when they were found to have only grown, so that each
/// look is compared once. Shared by threads.
#[derive(Debug, Default)]
pub struct Confirmed(Mutex<BTreeMap<u64, Validator>>);

impl Confirmed {
    fn looks(&self) -> MutexGuard<'_, BTreeMap<u64, Validator>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the file that holds frame `number`, and looks like `now`, is known to be the one of
    /// `trajectory`, perhaps with more frames.
    pub fn knows(&self, trajectory: &Trajectory, number: u64, now: &Validator) -> bool {
        trajectory.file_of(number).is_some_and(|held| {
            let confirmed = || self.looks().get(&held.first).is_some_and(|look| look.agrees_with(now));
            held.seen.looks_like(now) || confirmed()
        })
    }
}

/// The layout of the trajectory `files` in `directory`. `single`: the one file that the user named
/// or that is alone.
///
/// `InvalidArgument` for a file that is no trajectory, or for files of several kinds; `NotFound` if
/// there is no whole frame in any.
pub fn layout(
    finder: Finder<'_>,
    backing: &dyn Backing,
    directory: &RelPath,
    files: &[RelPath],
    single: bool,
) -> Result<Layout> {
    let mut trajectory: Option<Trajectory> = None;
    let mut first_kind: Option<Scanner> = None;
    let (mut next, mut bytes) = (0, 0usize);
    for (nth, path) in files.iter().enumerate() {
        if nth.is_multiple_of(FILES_BETWEEN_CHECKS) {
            check(finder.stops)?;
        }
        let named = |error: Error| of_file(error, path, single.then_some(directory));
        let beneath = directory.join(path.as_str())?;
        let index = finder.indexes.of(backing, finder.store, &beneath, finder.stops).map_err(named)?;
        // Most files of a dataset have the same header; one of them is enough.
        let first = trajectory.as_ref().and_then(|known| known.files.first());
        let shared = first.map(|first| first.header.clone()).filter(|header| *header == index.header);
        bytes += index.table.memory_bytes() + if shared.is_none() { index.header.len() } else { 0 };
        bytes += size_of::<TrajectoryFile>() + path.as_str().len() + 8 * index.anchors.sums.len();
        if bytes > BYTES_MAX {
            let what = format!("its first {nth} files take more than {BYTES_MAX} bytes of memory");
            return Err(too_large(&what));
        }
        let file = TrajectoryFile {
            path: path.clone(),
            first: next,
            count: index.table.count(),
            table: Some(index.table.clone()),
            header: shared.unwrap_or_else(|| index.header.clone()),
            seen: index.seen,
            trouble: index.trouble.clone(),
            samples: Some(SampleSums {
                seed: index.anchors.seed,
                sums: index.anchors.sums.as_slice().into(),
            }),
        };
        next = file.first + file.numbers();
        let known = trajectory.get_or_insert_with(|| Trajectory {
            format: index.format,
            n_atoms: index.n_atoms,
            single,
            files: Vec::new(),
        });
        check_alike(known, &index, path, &mut first_kind)?;
        known.n_atoms = known.n_atoms.max(index.n_atoms);
        known.files.push(file);
    }
    let whole = trajectory.filter(|trajectory| trajectory.files.iter().any(|file| file.numbers() > 0));
    let Some(trajectory) = whole else {
        let names: Vec<&str> = files.iter().take(3).map(RelPath::as_str).collect();
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("trajectory {}: holds no whole frame yet; open it when one is written", names.join(", ")),
        ));
    };
    trajectory.validate()?;
    Ok(Layout::Trajectory(Arc::new(trajectory)))
}

/// An error of one file. `named_in`: the folder of a file that the user named. If the name has a
/// number, it may be a frame of that folder.
fn of_file(error: Error, path: &RelPath, named_in: Option<&RelPath>) -> Error {
    let error = error.within(format!("trajectory {path}"));
    let is_numbered = path.as_str().bytes().any(|byte| byte.is_ascii_digit());
    match named_in {
        Some(folder) if is_numbered && error.kind() == ErrorKind::InvalidArgument => {
            let which = if folder.is_root() { String::new() } else { format!(": {folder}") };
            let why = format!("{error}; for a folder of frames, give the folder{which}");
            Error::new(ErrorKind::InvalidArgument, why)
        }
        _ => error,
    }
}

fn too_large(what: &str) -> Error {
    Error::new(ErrorKind::TooLarge, format!("trajectories: {what}; make several datasets of them"))
}

/// All files of a dataset are of one kind, so that one decoder reads them.
fn check_alike(
    known: &Trajectory,
    index: &FileIndex,
    path: &RelPath,
    first: &mut Option<Scanner>,
) -> Result<()> {
    let (Some(one), false) = (known.files.first(), index.n_atoms == 0) else { return Ok(()) };
    let differ = |what: String| {
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("trajectory {path}: {what}; the files of a dataset must be of one kind"),
        ))
    };
    if known.format != index.format {
        return differ(format!("is {}, but {} is {}", index.format, one.path, known.format));
    }
    if known.n_atoms != 0 && known.n_atoms != index.n_atoms {
        return differ(format!("has {} atoms, but {} has {}", index.n_atoms, one.path, known.n_atoms));
    }
    if known.format == Format::H5md {
        return match one.header == index.header {
            true => Ok(()),
            false => differ(format!("its array of positions is not like that of {}", one.path)),
        };
    }
    let this = scanner_of(index.format, &index.header);
    let first = first.get_or_insert_with(|| scanner_of(known.format, &one.header));
    match this.unlike(first) {
        None => Ok(()),
        Some(why) => differ(format!("{why} of {}", one.path)),
    }
}

/// A scanner that has read this header.
fn scanner_of(format: Format, header: &[u8]) -> Scanner {
    let mut scanner = Scanner::new(format);
    // What is wrong with a header was told when the file was indexed.
    let _ = scanner.step(header, header.len() as u64);
    scanner
}

/// Checks that frame `number` is still at `source` in its opened file, if the file changed since
/// its frames were found. `Stale` if the file was replaced, cut or rewritten.
///
/// A file that looks as if it had grown must still have its header, at `source` a frame as long as
/// that one, and some of the samples that its index knows: a longer file that was written in its
/// place differs in them. `confirmed` remembers the look, so that samples are compared once for it.
pub fn confirm(
    file: &dyn SourceFile,
    trajectory: &Trajectory,
    number: u64,
    source: &Source,
    confirmed: &Confirmed,
) -> Result<()> {
    let (Some(held), Some(length)) = (trajectory.file_of(number), source.length) else { return Ok(()) };
    let now = file.stat_now()?.validator;
    if held.seen.looks_like(&now) {
        return Ok(());
    }
    let stale = |what: &str| {
        let (path, offset) = (&source.path, source.offset);
        let text =
            format!("frame {number}, {length} bytes at byte {offset} of {path}: {what}; open it again");
        Err(Error::new(ErrorKind::Stale, text))
    };
    if held.seen.inode != 0 && now.inode != 0 && held.seen.inode != now.inode {
        return stale("the file was replaced since the dataset was opened");
    }
    if source.offset.checked_add(length).is_none_or(|end| end > now.size) {
        return stale(&format!("the file was cut to {} bytes since the dataset was opened", now.size));
    }
    if trajectory.format == Format::H5md {
        // HDF5 files are not only appended to, so there is nothing to compare.
        return stale("the file was changed since the dataset was opened");
    }
    let mut scanner = scanner_of(trajectory.format, &held.header);
    scanner.resume(number.saturating_sub(held.first), source.offset, trajectory.n_atoms);
    let unchanged = Grown::between(&held.seen, &now) != Grown::Other
        && build::has_header(file, trajectory.format, &held.header)?
        && build::is_frame(file, scanner, length)?
        && (confirmed.knows(trajectory, number, &now) || build::has_samples(file, trajectory.format, held)?);
    match unchanged {
        true => {
            confirmed.looks().insert(held.first, now);
            Ok(())
        }
        false => stale("the file was rewritten since the dataset was opened"),
    }
}

/// Whether `later` may be the file of the same dataset that was `before`, perhaps with more frames,
/// as far as looks, headers and places tell.
pub fn goes_on(format: Format, before: &TrajectoryFile, later: &TrajectoryFile) -> bool {
    let unknown = [before, later].iter().any(|file| file.seen == Validator::default());
    let (mut headers, mut places) = ([before.header.to_vec(), later.header.to_vec()], [None, None]);
    for (header, (file, place)) in headers.iter_mut().zip([before, later].into_iter().zip(&mut places)) {
        hide_counters(format, 0, header);
        let last = before.count.checked_sub(1);
        *place = file.table.as_ref().zip(last).map(|(table, last)| table.get(last));
    }
    let may_grow = format != Format::H5md || before.seen.looks_like(&later.seen);
    let same_header = headers[0] == headers[1] || headers.iter().any(Vec::is_empty);
    let same_place = places[0] == places[1] || places.iter().any(Option::is_none);
    (&before.path, before.first) == (&later.path, later.first)
        && before.count <= later.count
        && (unknown || may_grow && Grown::between(&before.seen, &later.seen) != Grown::Other)
        && same_header
        && same_place
}
