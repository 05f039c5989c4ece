//! Pushes the files of a simulation whose code cannot be changed. It watches a directory with
//! inotify and takes files that were closed after writing or renamed into place, and files that
//! existed before.
//!
//! The watch begins before the directory is listed, so no file is missed. A file that both find is
//! pushed once. A file that is hard-linked into the directory without being written there is found
//! only at the next listing. Trajectory files are pushed frame by frame as they grow (`growing`).

mod events;
mod growing;
mod inbox;
mod open;

pub use events::{Submit, WatchEvent};
pub(crate) use open::open_found;

use crate::Pusher;
use crate::push::FrameSource;
use events::look_of;
use growing::Growing;
use inbox::{Arrival, Inbox};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zazen_backing::trajectory::Finder;
use zazen_backing::{Backing, DirectoryBacking, by_name, dataset};
use zazen_core::{Credentials, Error, ErrorKind, FrameNo, Layout, NameTemplate, RelPath, Result, Validator};
use zazen_env::plain_file::open_plain;

/// How often `stop` is checked.
const LOOK: Duration = Duration::from_millis(100);
/// First pause before a file that was changing is checked again; it doubles.
const RETRY: Duration = Duration::from_millis(100);
/// A listed file younger than this may still be open for writing. It is left for this time, so that
/// the event of its close can arrive.
const FRESH: Duration = Duration::from_secs(1);
/// How often a changing file is checked before it is left until its next close.
const RETRIES: u32 = 8;
/// How often a file that the user named is read, if it changes meanwhile: 3 s in all.
const LOOKS_AT_FILE: u32 = 5;

/// How to watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// File-name template; `None`: manifest, or detected from the names seen.
    pub pattern: Option<String>,
    /// Also push files that are there at the start.
    pub existing: bool,
    /// Stop if no file came for this time; `None`: never.
    pub idle_exit: Option<Duration>,
    /// Stop when a file with this name appears in the directory.
    pub until: Option<String>,
}

impl Default for WatchOptions {
    /// Existing files too, for ever.
    fn default() -> WatchOptions {
        WatchOptions { pattern: None, existing: true, idle_exit: None, until: None }
    }
}

/// Watches `directory` and pushes until `stop` is set or the options end it. Runs on the caller's
/// thread.
///
/// `NotFound` if there is no such directory. A file that cannot be read or pushed is reported and
/// skipped; the watch continues.
pub fn watch(
    directory: &Path,
    pusher: &Pusher,
    options: &WatchOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(WatchEvent),
) -> Result<()> {
    watch_into(
        directory,
        &mut |number, bytes, source| pusher.push(number, bytes, source),
        options,
        stop,
        tell,
    )
}

/// As [`watch`], for frames that go to `submit`.
pub fn watch_into(
    directory: &Path,
    submit: &mut Submit<'_>,
    options: &WatchOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(WatchEvent),
) -> Result<()> {
    let mut watcher = Watch::new(directory, options)?;
    let deep = watcher.deep();
    let inbox = Inbox::open(directory, deep)?;
    watcher.list(options.existing)?;
    let mut last = Instant::now();
    watcher.work_off(stop, submit, tell);
    watcher.growing.work_off(submit, tell);
    let mut catching_up = options.existing;
    let (mut ended, mut pushed_again) = (watcher.until_seen, false);
    loop {
        if catching_up && watcher.caught_up() {
            catching_up = false;
            tell(WatchEvent::CaughtUp);
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let arrivals = inbox.wait(if ended { Duration::ZERO } else { LOOK })?;
        let quiet = arrivals.is_empty();
        for arrival in arrivals {
            match arrival {
                Arrival::File(name) => watcher.note(name),
                // A trajectory is read while its writer has it open, maybe beyond the watch's end.
                Arrival::Begun(name) => _ = watcher.takes(&name),
                Arrival::NotUtf8(name) => watcher.refuse(&name),
                Arrival::Folder | Arrival::Overflow => watcher.list(true)?,
                Arrival::Gone => {
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        format!(
                            "directory {}: is gone; files in it are no longer watched",
                            directory.display()
                        ),
                    ));
                }
            }
        }
        let grown = watcher.growing.work_off(submit, tell);
        let submitted = watcher.work_off(stop, submit, tell) + grown;
        if submitted > 0 {
            last = Instant::now();
        }
        // Of a long trajectory, a part was pushed in this round.
        if quiet && submitted == 0 && watcher.nothing_due() {
            let idle = options.idle_exit.is_some_and(|bound| last.elapsed() >= bound);
            if idle || ended {
                let again = !pushed_again && watcher.growing.push_touched_again();
                if !again {
                    return Ok(());
                }
                pushed_again = true;
            }
        }
        ended |= watcher.until_seen;
    }
}

/// A file to check.
struct Due {
    at: Instant,
    looks: u32,
    /// Found in a listing, not by an event.
    listed: bool,
}

struct Watch {
    directory: PathBuf,
    layout: Option<Layout>,
    until: Option<String>,
    until_seen: bool,
    /// Names to check, in alphabetical order. For padded numbers this is the order of frames.
    due: BTreeMap<String, Due>,
    /// What was pushed last under each number, so that a file that is found twice is pushed once.
    pushed: HashMap<u64, Validator>,
    strangers: BTreeSet<String>,
    /// Names that are not UTF-8, each told once. No frame can have one.
    refused: BTreeSet<PathBuf>,
    /// Those that are not told yet.
    untold: Vec<String>,
    growing: Growing,
}

impl Watch {
    fn new(directory: &Path, options: &WatchOptions) -> Result<Watch> {
        match std::fs::metadata(directory) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let why = format!(
                    "{}: is not a directory; give the one the simulation writes to",
                    directory.display()
                );
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let why = format!(
                    "directory {}: there is none; make it before the watch begins",
                    directory.display()
                );
                return Err(Error::new(ErrorKind::NotFound, why));
            }
            Err(error) => return Err(Error::io(format!("directory {}", directory.display()), error)),
        }
        let backing = DirectoryBacking::new(crate::direct::absolute(directory)?)?;
        let (indexes, store) = (crate::indexes::indexes(), directory.to_string_lossy());
        let finder = Finder { indexes: &indexes, store: &store, stops: None };
        let (root, pattern) = (RelPath::default(), options.pattern.as_deref());
        let named = dataset::named_trajectories(&backing, &root, pattern)?;
        let layout = match &named {
            Some(_) => None,
            None => layout_now(finder, &backing, pattern)?,
        };
        let (files, joined) = named.unwrap_or_default();
        Ok(Watch {
            growing: Growing::new(directory, files, joined)?,
            directory: directory.to_owned(),
            layout,
            until: options.until.clone(),
            until_seen: false,
            due: BTreeMap::new(),
            pushed: HashMap::new(),
            strangers: BTreeSet::new(),
            refused: BTreeSet::new(),
            untold: Vec::new(),
        })
    }

    /// Whether frames are in folders of the directory.
    fn deep(&self) -> bool {
        if self.growing.is_deep() {
            return true;
        }
        match &self.layout {
            Some(Layout::Files(template)) => template.to_string().contains('/'),
            Some(Layout::Pieces(pieces)) => pieces.iter().any(|piece| piece.path.as_str().contains('/')),
            Some(Layout::List(files)) => files.iter().any(|file| file.as_str().contains('/')),
            Some(Layout::Blocks(blocks)) => blocks.path.as_str().contains('/'),
            Some(Layout::Trajectory(_)) | None => false,
        }
    }

    /// Lists the directory. If `all`, every file is noted; otherwise every file is remembered as
    /// one that is not pushed.
    fn list(&mut self, all: bool) -> Result<()> {
        let mut folders = vec![(self.directory.clone(), String::new())];
        let deep = self.deep();
        while let Some((folder, prefix)) = folders.pop() {
            let named = |error| Error::io(format!("list {}", folder.display()), error);
            let entries = match std::fs::read_dir(&folder) {
                // The folder is gone again, so it holds no frames.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && !prefix.is_empty() => continue,
                entries => entries.map_err(named)?,
            };
            for entry in entries {
                let entry = entry.map_err(named)?;
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                let name = match entry.file_name().into_string() {
                    Ok(name) => format!("{prefix}{name}"),
                    Err(name) => {
                        if all && (deep || !is_folder) {
                            self.refuse(&Path::new(&prefix).join(name));
                        }
                        continue;
                    }
                };
                if is_folder {
                    if deep {
                        folders.push((entry.path(), format!("{name}/")));
                    }
                } else if self.until.as_deref() == Some(&name) {
                    self.until_seen = true;
                } else if all {
                    // An earlier event is better: it says that the file was closed.
                    self.due.entry(name).or_insert(Due { at: Instant::now(), looks: 0, listed: true });
                } else {
                    self.remember(&name);
                }
            }
        }
        Ok(())
    }

    /// Something whose name is not UTF-8 is left alone. The user is told of the first part of
    /// `name` that is no text: of a folder, and not of each file in it.
    fn refuse(&mut self, name: &Path) {
        let parts: Vec<_> = name.iter().collect();
        let text = parts.iter().take_while(|part| part.to_str().is_some()).count();
        let culprit: PathBuf = parts.iter().take(text + 1).collect();
        let shown = culprit.to_string_lossy().into_owned();
        if !by_name::is_temporary_name(&shown) && self.refused.insert(culprit) {
            self.untold.push(shown);
        }
    }

    /// The file in its present state is not pushed.
    fn remember(&mut self, name: &str) {
        if self.takes(name) {
            return self.growing.skip_existing(name);
        }
        if let Ok(found) = open_found(&self.directory, name).and_then(|file| look_of(&file)) {
            let parts = frames_in(self.layout.as_ref(), name).into_iter();
            self.pushed.extend(parts.map(|part| (part.number.get(), found.0)));
        }
    }

    /// Whether the file is a trajectory that is pushed frame by frame.
    fn takes(&mut self, name: &str) -> bool {
        !by_name::is_temporary_name(name) && self.layout.is_none() && self.growing.takes(name)
    }

    fn note(&mut self, name: String) {
        if self.until.as_deref() == Some(&name) {
            self.until_seen = true;
            return;
        }
        self.due.insert(name, Due { at: Instant::now(), looks: 0, listed: false });
    }

    /// Whether every file that was listed has been dealt with.
    fn caught_up(&self) -> bool {
        self.due.values().all(|due| !due.listed) && self.growing.caught_up()
    }

    fn nothing_due(&self) -> bool {
        self.due.is_empty()
    }

    /// Checks every file that is due. Returns how many frames were submitted.
    fn work_off(
        &mut self,
        stop: &AtomicBool,
        submit: &mut Submit<'_>,
        tell: &mut dyn FnMut(WatchEvent),
    ) -> u64 {
        for name in self.untold.drain(..) {
            let reason = "its name is not UTF-8, so it is not pushed; rename it".to_owned();
            tell(WatchEvent::Failed { name, reason });
        }
        let mut submitted = 0;
        let now = Instant::now();
        let names: Vec<String> =
            self.due.iter().filter(|(_, due)| due.at <= now).map(|(name, _)| name.clone()).collect();
        for name in names {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let Some(due) = self.due.remove(&name) else { continue };
            match self.look(&name, due.listed && due.looks == 0, submit, tell) {
                Ok(frames) => submitted += frames,
                Err(Trouble::Fresh) => {
                    self.due.insert(name, Due { at: Instant::now() + FRESH, looks: 1, listed: true });
                }
                Err(Trouble::Changing) if due.looks < RETRIES => {
                    let at = Instant::now() + RETRY * (1 << due.looks);
                    self.due.insert(name, Due { at, looks: due.looks + 1, listed: due.listed });
                }
                Err(Trouble::Changing) => {
                    let reason = "is still being changed; it is pushed when it is closed".to_owned();
                    tell(WatchEvent::Failed { name, reason });
                }
                Err(Trouble::Failed(error)) => tell(WatchEvent::Failed { name, reason: error.to_string() }),
            }
        }
        submitted
    }

    fn look(
        &mut self,
        name: &str,
        patient: bool,
        submit: &mut Submit<'_>,
        tell: &mut dyn FnMut(WatchEvent),
    ) -> std::result::Result<u64, Trouble> {
        if by_name::is_temporary_name(name) || name == zazen_core::limits::MANIFEST_NAME {
            return Ok(0);
        }
        if self.takes(name) {
            return Ok(0);
        }
        if self.layout.is_none() {
            self.layout = NameTemplate::detect([name]).map(Layout::Files);
        }
        let frames = frames_in(self.layout.as_ref(), name);
        if frames.is_empty() {
            if self.strangers.insert(name.to_owned()) {
                tell(WatchEvent::NotAFrame(name.to_owned()));
            }
            return Ok(0);
        }
        let mut submitted = 0;
        for part in frames {
            let Some((bytes, validator, owner)) = self.read(name, &part, patient)? else { continue };
            let length = bytes.len() as u64;
            let source = FrameSource {
                name: Some(name.to_owned()),
                offset: part.offset,
                piece: part.bytes.is_some(),
                validator: Some(validator),
                owner: Some(owner),
                series: None,
            };
            submit(part.number, bytes, source).map_err(Trouble::Failed)?;
            self.pushed.insert(part.number.get(), validator);
            submitted += 1;
            tell(WatchEvent::Submitted { number: part.number.get(), name: name.to_owned(), bytes: length });
        }
        Ok(submitted)
    }

    /// The frame's bytes and what its file looked like, unless it was pushed already. Owner and
    /// validator are those of the open file, because the name may lead to another file by now.
    fn read(&self, name: &str, part: &Part, patient: bool) -> std::result::Result<Option<Found>, Trouble> {
        let path = self.directory.join(name);
        let failed = |error| Trouble::Failed(Error::io(path.display().to_string(), error));
        let mut file = match open_found(&self.directory, name) {
            Ok(file) => file,
            // The file was renamed or removed. If it has a new name, another event reports it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let before = look_of(&file).map_err(failed)?;
        if self.pushed.get(&part.number.get()).is_some_and(|pushed| pushed.looks_like(&before.0)) {
            return Ok(None);
        }
        if patient && is_fresh(&before.0) {
            return Err(Trouble::Fresh);
        }
        let place = match part.bytes {
            // The file is not complete yet. The rest comes with its next close.
            Some(length) if part.offset + length > before.0.size => return Ok(None),
            bytes => bytes.map(|length| (part.offset, length)),
        };
        read_steady(&mut file, &before.0, place).map_err(failed)?.map(Some).ok_or(Trouble::Changing)
    }
}

/// Bytes of a file, what it looked like when they were read, and whose it is.
pub type Found = (Vec<u8>, Validator, (Credentials, u32));

/// All of a file, or what lies at an offset. `None` if the file has not stayed as it looked
/// `before`.
fn read_steady(
    file: &mut File,
    before: &Validator,
    place: Option<(u64, u64)>,
) -> std::io::Result<Option<Found>> {
    let mut bytes = Vec::new();
    let length = place.map_or(before.size, |(_, length)| length);
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))?;
    match place {
        None => _ = file.take(length + 1).read_to_end(&mut bytes)?,
        Some((offset, length)) => {
            bytes.resize(length as usize, 0);
            file.read_exact_at(&mut bytes, offset)?;
        }
    }
    let (after, owner) = look_of(file)?;
    let is_steady = before.looks_like(&after) && bytes.len() as u64 == length;
    Ok(is_steady.then_some((bytes, after, owner)))
}

/// All of a file that is to be pushed. Waits some seconds for one that is being changed.
pub fn read_file(path: &Path) -> Result<Found> {
    let failed = |error| Error::io(path.display().to_string(), error);
    for look in 0..LOOKS_AT_FILE {
        if look > 0 {
            std::thread::sleep(RETRY * (1 << look));
        }
        let mut file = open_plain(path).map_err(failed)?;
        let (before, _) = look_of(&file).map_err(failed)?;
        if let Some(found) = read_steady(&mut file, &before, None).map_err(failed)? {
            return Ok(found);
        }
    }
    let why = format!("{}: is being changed; push it when it is complete", path.display());
    Err(Error::new(ErrorKind::Busy, why))
}

enum Trouble {
    /// It may still be open for writing.
    Fresh,
    Changing,
    Failed(Error),
}

/// A frame of a file.
struct Part {
    number: FrameNo,
    offset: u64,
    /// `None`: the whole file.
    bytes: Option<u64>,
}

/// The layout as far as it shows before the simulation has begun. A trajectory that grows is no
/// layout here, also one that was made between two listings.
fn layout_now(finder: Finder<'_>, backing: &dyn Backing, pattern: Option<&str>) -> Result<Option<Layout>> {
    let root = RelPath::default();
    if let Some(pattern) = pattern.filter(|pattern| by_name::is_by_name(pattern)) {
        return dataset::layout_of_pattern(pattern).map(Some);
    }
    match pattern.is_none() && dataset::lone_trajectory(backing, &root)?.is_some() {
        true => Ok(None),
        false => {
            let found = dataset::layout(finder, backing, &root, pattern)?;
            Ok(found.filter(|found| !matches!(found, Layout::Trajectory(_))))
        }
    }
}

/// Whether a file was written a moment ago, or has a time ahead of this machine's clock.
fn is_fresh(found: &Validator) -> bool {
    let modified = UNIX_EPOCH + Duration::from_nanos(u64::try_from(found.mtime_ns).unwrap_or(0));
    SystemTime::now().duration_since(modified).map_or(true, |age| age < FRESH)
}

/// The frames whose bytes the file `name` holds.
fn frames_in(layout: Option<&Layout>, name: &str) -> Vec<Part> {
    match layout {
        None => Vec::new(),
        Some(Layout::Files(template)) => {
            template.number(name).map(|number| Part { number, offset: 0, bytes: None }).into_iter().collect()
        }
        Some(Layout::Pieces(pieces)) => {
            let of_file = pieces.iter().filter(|piece| piece.path.as_str() == name);
            let parts = of_file.flat_map(|piece| {
                (0..piece.count).filter_map(|index| {
                    let number = FrameNo::new(piece.first + index * piece.step).ok()?;
                    let offset = piece.offset + index * piece.frame_bytes;
                    Some(Part { number, offset, bytes: Some(piece.frame_bytes) })
                })
            });
            parts.collect()
        }
        Some(Layout::List(files)) => {
            let index = files.iter().position(|file| file.as_str() == name);
            let number = index.and_then(|index| FrameNo::new(index as u64).ok());
            number.map(|number| Part { number, offset: 0, bytes: None }).into_iter().collect()
        }
        // Trajectories are pushed as they grow; blocks come to a cache by misses alone.
        Some(Layout::Trajectory(_) | Layout::Blocks(_)) => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
