//! A dataset on a backing store: its layout and extent, from a manifest (`zazen.toml`), a given
//! pattern, or the names in its directory.
//!
//! A manifest holds either a pattern, for one file per frame (the number may stand in a folder's
//! name):
//!
//! ```toml
//! pattern = "step{n}/data.vtu"
//! ```
//!
//! or pieces, for frames of equal size inside trajectory files:
//!
//! ```toml
//! [[pieces]]
//! path = "part-0.dcd"   # beneath the dataset
//! first = 0             # number of the first frame in this file
//! count = 1000          # frames in it
//! step = 1              # distance between their numbers; 1 if left out
//! offset = 276          # where the first one begins, in bytes
//! frame_bytes = 65592   # bytes of each
//! ```
//!
//! or a list, for files whose names hold no frame number: frame i is file i.
//!
//! ```toml
//! files = ["cat.jpg", "dog.jpg"]
//! ```
//!
//! or trajectories, for files that hold many frames, one after the other. They are indexed.
//!
//! ```toml
//! trajectories = ["run-0.xtc", "run-1.xtc"]
//! ```
//!
//! A pattern without braces is the name of one trajectory file, or, with `*` or `?`, means files
//! that are numbered by their names ([`crate::by_name`]). A pattern `FILE{n*BYTES}` means the
//! blocks of one file ([`zazen_core::Blocks`]). A manifest cannot say so.
//!
//! A given pattern overrides the manifest. [`zazen_core::survey`] says how frames are found by
//! their names, and when that is an error.

use crate::by_name::{self, is_by_name, is_temporary_name};
use crate::names::{bytes_of, check_utf8};
use crate::trajectory::{self, Finder};
use crate::{Backing, DirectoryNames};
use serde::Deserialize;
use std::sync::Arc;
use zazen_core::limits::MANIFEST_NAME;
use zazen_core::{
    Blocks, Error, ErrorKind, FrameNo, Layout, Level, NameTemplate, Piece, RelPath, Result, RunSet, Series,
    survey,
};

/// What the names of a pattern's folders may take in memory.
const FOLDERS_BYTES_MAX: u64 = 32 << 20;

/// The largest manifest, in bytes.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// How a dataset's frames are named, and which exist.
#[derive(Clone, Debug)]
pub struct DatasetDescription {
    /// The layout; `None` for an empty directory without a manifest.
    pub layout: Option<Layout>,
    /// The frame numbers that exist.
    pub extent: RunSet,
}

/// Describes the dataset in `directory` of `backing`: by `pattern` if given, else by its manifest
/// if it has one, else by the file names. `NotFound` if there is no such directory.
pub fn describe(
    finder: Finder<'_>,
    backing: &dyn Backing,
    directory: &RelPath,
    pattern: Option<&str>,
) -> Result<DatasetDescription> {
    let described = match told_layout(finder, backing, directory, pattern)? {
        Some(Layout::Files(template)) => {
            let extent = files_extent(backing, directory, &template)?;
            DatasetDescription { layout: Some(Layout::Files(template)), extent }
        }
        Some(pieces) => {
            let extent = pieces.declared_extent().unwrap_or_default();
            DatasetDescription { layout: Some(pieces), extent }
        }
        None => {
            let names = list_dataset(backing, directory)?;
            let layout = choose(finder, backing, directory, &names)?;
            let extent = match &layout {
                Some(Layout::Files(template)) => {
                    let numbers = names.iter().filter_map(|name| template.number(name));
                    numbers.map(FrameNo::get).collect()
                }
                other => other.as_ref().and_then(Layout::declared_extent).unwrap_or_default(),
            };
            DatasetDescription { layout, extent }
        }
    };
    Ok(described)
}

/// The layout alone. It lists the directory only if neither a pattern nor a manifest gives the
/// layout.
pub fn layout(
    finder: Finder<'_>,
    backing: &dyn Backing,
    directory: &RelPath,
    pattern: Option<&str>,
) -> Result<Option<Layout>> {
    match told_layout(finder, backing, directory, pattern)? {
        Some(layout) => Ok(Some(layout)),
        None => layout_by_names(finder, backing, directory),
    }
}

/// The layout, from the names in `directory`. A single trajectory file without other numbered files
/// is the dataset.
pub fn layout_by_names(
    finder: Finder<'_>,
    backing: &dyn Backing,
    directory: &RelPath,
) -> Result<Option<Layout>> {
    let names = list_dataset(backing, directory)?;
    choose(finder, backing, directory, &names)
}

/// The names in a dataset's directory. `NotFound` if there is none; only then is the store asked a
/// second time, for the reason.
fn list_dataset(backing: &dyn Backing, directory: &RelPath) -> Result<DirectoryNames> {
    let listed = backing.list_files(directory);
    let is_outage = |error: &Error| matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut);
    if listed.as_ref().is_err_and(|error| !is_outage(error)) {
        check_is_directory(backing, directory)?;
    }
    listed
}

fn choose(
    finder: Finder<'_>,
    backing: &dyn Backing,
    directory: &RelPath,
    names: &[String],
) -> Result<Option<Layout>> {
    if let Some(alone) = survey::lone_trajectory(frame_names(names)) {
        check_utf8(alone)?;
        return trajectory::layout(finder, backing, directory, &[RelPath::new(alone)?], true).map(Some);
    }
    let chosen = survey::choose(frame_names(names))
        .map_err(|error| error.within(format!("directory {directory} of {}", backing.describe())))?;
    Ok(chosen.map(Layout::Files))
}

/// The trajectory file in `directory`, if it has exactly one, without a number in its name, and no
/// series.
pub fn lone_trajectory(backing: &dyn Backing, directory: &RelPath) -> Result<Option<String>> {
    let names = backing.list_files(directory)?;
    Ok(survey::lone_trajectory(frame_names(&names)).map(str::to_owned))
}

/// The directory of the dataset that users call `path`, and the pattern that stands for it: a
/// dataset may also be one trajectory file. Asks the store what `path` is.
///
/// `InvalidArgument` for a file whose name is a pattern.
pub fn place(backing: &dyn Backing, path: &RelPath) -> Result<(RelPath, Option<String>)> {
    let is_file = backing.stat(path).is_ok_and(|stat| !stat.is_dir);
    match path.split().filter(|_| is_file) {
        None => Ok((path.clone(), None)),
        Some((_, name)) if !is_file_name(name) => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{path}: a trajectory file whose name has a brace, * or ? cannot be opened; rename it"),
        )),
        Some((directory, name)) => Ok((directory, Some(name.to_owned()))),
    }
}

/// Whether a pattern is the name of a trajectory file.
pub fn is_file_name(pattern: &str) -> bool {
    !pattern.contains(['{', '}', '*', '?'])
}

/// The trajectory file that a user's pattern names.
fn file_of_pattern(pattern: &str) -> Result<RelPath> {
    let file = RelPath::new(pattern).map_err(|error| error.within("pattern"))?;
    match file.is_root() {
        false => Ok(file),
        true => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "pattern {pattern:?} names no file; write it like frame-{{n:07}}.dcd, *.jpg or md.xtc, or \
                 leave it out"
            ),
        )),
    }
}

/// The series that a user's pattern means.
pub fn series_of_pattern(pattern: &str) -> Result<Series> {
    match is_file_name(pattern) {
        true => file_of_pattern(pattern).map(Series::Trajectory),
        false if is_by_name(pattern) => Ok(Series::List),
        false => layout_of_pattern(pattern).map(|layout| Series::of(&layout)),
    }
}

/// Reads a manifest's text; `named` is its path, for messages.
pub fn parse_manifest(text: &str, named: &str) -> Result<Layout> {
    match parse_any_manifest(text, named)? {
        Told::Layout(layout) => Ok(layout),
        Told::Trajectories(_) => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("dataset manifest {named}: names trajectories, which are found in their files only"),
        )),
    }
}

/// What a manifest tells.
enum Told {
    Layout(Layout),
    /// Files that are indexed.
    Trajectories(Vec<RelPath>),
}

fn parse_any_manifest(text: &str, named: &str) -> Result<Told> {
    let refuse = |why: String| Error::new(ErrorKind::Config, format!("dataset manifest {named}: {why}"));
    let manifest = read_toml(text).map_err(refuse)?;
    let layout = match (manifest.pattern, manifest.pieces, manifest.files, manifest.trajectories) {
        (None, None, None, Some(files)) => {
            let files = files.iter().map(|file| RelPath::new(file)).collect::<Result<Vec<RelPath>>>();
            // A list has the same rules: each file is named, and once.
            let list =
                Layout::List(Arc::new(files.map_err(|error| refuse(format!("trajectories: {error}")))?));
            list.validate().map_err(|error| refuse(format!("trajectories: {error}")))?;
            let Layout::List(files) = list else { return Err(refuse("names no files".into())) };
            if files.is_empty() {
                return Err(refuse("`trajectories` is empty; name the files".into()));
            }
            return Ok(Told::Trajectories(Arc::unwrap_or_clone(files)));
        }
        (Some(pattern), None, None, None) => {
            Layout::Files(NameTemplate::parse(&pattern).map_err(|error| refuse(format!("pattern: {error}")))?)
        }
        (None, None, Some(files), None) => {
            let files = files.iter().map(|file| RelPath::new(file)).collect::<Result<Vec<RelPath>>>();
            Layout::List(Arc::new(files.map_err(|error| refuse(format!("files: {error}")))?))
        }
        (None, Some(pieces), None, None) => {
            let pieces = pieces.into_iter().map(ManifestPiece::check).collect::<Result<Vec<Piece>>>();
            Layout::Pieces(pieces.map_err(|error| refuse(error.to_string()))?)
        }
        (None, None, None, None) => {
            return Err(refuse(
                "has none of `pattern`, `files`, `trajectories` and [[pieces]]; give one".into(),
            ));
        }
        _ => {
            return Err(refuse(
                "has two of `pattern`, `files`, `trajectories` and [[pieces]]; keep one".into(),
            ));
        }
    };
    layout.validate().map_err(|error| refuse(error.to_string()))?;
    Ok(Told::Layout(layout))
}

/// Bytes of a manifest that are parsed at a time. The parser needs about thirty times as much
/// memory.
const GROUP_BYTES: usize = 256 << 10;

/// The manifest in `text`. A long one is read in groups of whole [[pieces]].
fn read_toml(text: &str) -> std::result::Result<Manifest, String> {
    let parse = |part: &str| -> std::result::Result<Manifest, String> {
        toml::from_str(part).map_err(|error| error.to_string().trim_end().to_owned())
    };
    let mut whole: Option<Manifest> = None;
    let mut rest = text;
    while !rest.is_empty() || whole.is_none() {
        let from = rest.floor_char_boundary(GROUP_BYTES.min(rest.len()));
        let end = rest[from..].find("\n[[pieces]]").map_or(rest.len(), |at| from + at + 1);
        let (part, later) = rest.split_at(end);
        let manifest = parse(part).map_err(|error| match part.len() == text.len() {
            true => error,
            false => format!("{error} (lines counted from byte {})", text.len() - rest.len()),
        })?;
        match &mut whole {
            None => whole = Some(manifest),
            // After the first [[pieces]], only pieces can follow.
            Some(whole) => {
                whole.pieces.get_or_insert_default().extend(manifest.pieces.unwrap_or_default());
            }
        }
        rest = later;
    }
    whole.ok_or_else(|| "is empty".to_owned())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    pattern: Option<String>,
    pieces: Option<Vec<ManifestPiece>>,
    files: Option<Vec<String>>,
    trajectories: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestPiece {
    path: String,
    first: u64,
    count: u64,
    #[serde(default = "one")]
    step: u64,
    #[serde(default)]
    offset: u64,
    frame_bytes: u64,
}

fn one() -> u64 {
    1
}

impl ManifestPiece {
    fn check(self) -> Result<Piece> {
        let path = RelPath::new(&self.path)?;
        if path.is_root() {
            return Err(Error::new(ErrorKind::Config, "a piece has an empty path; name its file"));
        }
        let ManifestPiece { first, count, step, offset, frame_bytes, .. } = self;
        Ok(Piece { path, first, count, step, offset, frame_bytes })
    }
}

/// The layout by the pattern or the manifest; `None` if there is neither, and then perhaps no
/// directory either: whoever lists it learns that. `NotFound` if a pattern is given and there is no
/// such directory.
///
/// A pattern overrides the manifest: a user who gives one has said which files are meant.
pub fn told_layout(
    finder: Finder<'_>,
    backing: &dyn Backing,
    directory: &RelPath,
    pattern: Option<&str>,
) -> Result<Option<Layout>> {
    if let Some(pattern) = pattern {
        if is_file_name(pattern) {
            let file = file_of_pattern(pattern)?;
            return trajectory::layout(finder, backing, directory, &[file], true).map(Some);
        }
        if let Some(parsed) = Blocks::parse_pattern(pattern) {
            let (path, block_bytes) = parsed?;
            return blocks(backing, directory, path, block_bytes).map(Some);
        }
        if is_by_name(pattern) {
            let files = by_name::files(finder.stops, backing, directory, pattern)?;
            return Ok(Some(Layout::List(Arc::new(files))));
        }
        let layout = layout_of_pattern(pattern)?;
        check_is_directory(backing, directory)?;
        return Ok(Some(layout));
    }
    let Some(text) = read_manifest(backing, directory)? else { return Ok(None) };
    let named = format!("{directory}/{MANIFEST_NAME} on {}", backing.describe());
    match parse_any_manifest(&text, &named)? {
        Told::Layout(layout) => Ok(Some(layout)),
        Told::Trajectories(files) => trajectory::layout(finder, backing, directory, &files, false)
            .map_err(|error| error.within(named))
            .map(Some),
    }
}

/// The trajectory files that a dataset is said to have: those of its manifest (and `true`), or the
/// one that `pattern` names. They need not exist yet. `None` if neither names any.
pub fn named_trajectories(
    backing: &dyn Backing,
    directory: &RelPath,
    pattern: Option<&str>,
) -> Result<Option<(Vec<RelPath>, bool)>> {
    if let Some(pattern) = pattern {
        return match is_file_name(pattern) {
            true => Ok(Some((vec![file_of_pattern(pattern)?], false))),
            false => Ok(None),
        };
    }
    let Some(text) = read_manifest(backing, directory)? else {
        return check_is_directory(backing, directory).map(|()| None);
    };
    let named = format!("{directory}/{MANIFEST_NAME} on {}", backing.describe());
    match parse_any_manifest(&text, &named)? {
        Told::Trajectories(files) => Ok(Some((files, true))),
        Told::Layout(_) => Ok(None),
    }
}

/// The blocks of the file `path` as it is now. `NotFound` if there is no such file.
fn blocks(backing: &dyn Backing, directory: &RelPath, path: RelPath, block_bytes: u64) -> Result<Layout> {
    let found = backing.stat(&directory.join(path.as_str())?)?;
    if found.is_dir {
        let what = format!("{directory}/{path} on {} is a directory; name a file", backing.describe());
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    let layout = Layout::Blocks(Blocks { path, block_bytes, version: found.validator.settled() });
    layout.validate()?;
    Ok(layout)
}

/// The layout of a user's pattern, which tells it without a look at the store. A pattern that
/// numbers files by their names tells none, and an error says what does.
pub fn layout_of_pattern(pattern: &str) -> Result<Layout> {
    if is_by_name(pattern) {
        let what = format!(
            "pattern {pattern:?}: numbers by names are for reading files that exist, because the numbers of \
             files that come later are not known; write the numbers down with `zazen number DIR`, and leave \
             out the pattern",
        );
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    NameTemplate::parse(pattern).map(Layout::Files)
}

fn check_is_directory(backing: &dyn Backing, directory: &RelPath) -> Result<()> {
    match backing.stat(directory)?.is_dir {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::NotFound,
            format!("{directory} on {} is a file; a dataset is a directory", backing.describe()),
        )),
    }
}

/// The manifest's text; `None` if there is no manifest, or no directory.
fn read_manifest(backing: &dyn Backing, directory: &RelPath) -> Result<Option<String>> {
    let file = match backing.open(&directory.join(MANIFEST_NAME)?) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let refuse = |kind, why: &str| {
        let named = format!("dataset manifest {directory}/{MANIFEST_NAME} on {}", backing.describe());
        Err(Error::new(kind, format!("{named}: {why}")))
    };
    let size = file.stat().validator.size;
    if size > MANIFEST_BYTES_MAX {
        return refuse(ErrorKind::TooLarge, "larger than 16 MiB; merge its pieces into longer runs");
    }
    let mut bytes = vec![0; size as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(_) => refuse(ErrorKind::Config, "is not UTF-8 text"),
    }
}

fn frame_names(names: &[String]) -> impl Iterator<Item = &str> {
    names.iter().map(String::as_str).filter(|name| !is_temporary_name(name) && *name != MANIFEST_NAME)
}

/// The numbers whose files exist. If the number is in a folder's name, the folders are listed, and
/// the file is looked up in each.
fn files_extent(backing: &dyn Backing, directory: &RelPath, template: &NameTemplate) -> Result<RunSet> {
    if template.has_parts() {
        return parts_extent(backing, directory, template);
    }
    let text = template.to_string();
    let place = text.find("{n").unwrap_or(0);
    let (folder, from) = text[..place].rsplit_once('/').map_or(("", 0), |(head, _)| (head, head.len() + 1));
    let tail = text[place..].find('/').map(|at| place + at);
    let component = NameTemplate::parse(&text[from..tail.unwrap_or(text.len())])?;
    let listed = if folder.is_empty() { directory.clone() } else { directory.join(folder)? };
    let names = match tail {
        Some(_) => backing.list(&listed),
        None => backing.list_files(&listed),
    };
    let names = match names {
        // The dataset exists, because its manifest was looked up. The frames' own folder may be
        // created later.
        Err(error) if error.kind() == ErrorKind::NotFound && !folder.is_empty() => return Ok(RunSet::new()),
        names => names?,
    };
    let numbers: RunSet = names.iter().filter_map(|name| component.number(name)).map(FrameNo::get).collect();
    match tail {
        None => Ok(numbers),
        Some(_) => existing(backing, directory, template, &numbers),
    }
}

/// The numbers of the files of a template with a time step and a block. Folders whose names have a
/// number are listed; a folder or file that is gone meanwhile has no frames.
fn parts_extent(backing: &dyn Backing, directory: &RelPath, template: &NameTemplate) -> Result<RunSet> {
    let levels = template.levels();
    let Some((last, above)) = levels.split_last() else { return Ok(RunSet::new()) };
    let listed = |folder: &str, files: bool| {
        let at = if folder.is_empty() { directory.clone() } else { directory.join(folder)? };
        let names = if files { backing.list_files(&at) } else { backing.list(&at) };
        match names {
            Err(error) if error.kind() == ErrorKind::NotFound && !folder.is_empty() => {
                Ok(DirectoryNames::default())
            }
            names => names,
        }
    };
    let within = |folder: &str, name: &str| match folder {
        "" => name.to_owned(),
        _ => format!("{folder}/{name}"),
    };
    let mut folders = vec![String::new()];
    for level in above {
        let mut below = Vec::new();
        let mut bytes = 0;
        for folder in &folders {
            match level {
                Level::Fixed(name) => below.push(within(folder, name)),
                Level::Numbered(component) => {
                    let names = listed(folder, false)?;
                    for name in names.iter().filter(|name| component.may_be(name)) {
                        below.push(within(folder, name));
                        bytes += below.last().map_or(0, |folder| bytes_of(folder));
                    }
                }
            }
            if bytes > FOLDERS_BYTES_MAX {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "{directory} on {}: the folders of pattern {template} come to more than \
                         {FOLDERS_BYTES_MAX} bytes of names; open parts of them as datasets of their own",
                        backing.describe()
                    ),
                ));
            }
        }
        folders = below;
    }
    let mut numbers = Vec::new();
    for folder in &folders {
        let names = match last {
            Level::Fixed(name) => DirectoryNames::from(vec![name.clone()]),
            Level::Numbered(_) => listed(folder, true)?,
        };
        let found = names.iter().filter_map(|name| template.number(&within(folder, name)));
        numbers.extend(found.map(FrameNo::get));
    }
    let numbers: RunSet = numbers.into_iter().collect();
    match last {
        Level::Fixed(_) => existing(backing, directory, template, &numbers),
        Level::Numbered(_) => Ok(numbers),
    }
}

fn existing(
    backing: &dyn Backing,
    directory: &RelPath,
    template: &NameTemplate,
    numbers: &RunSet,
) -> Result<RunSet> {
    const AT_ONCE: u64 = 4096;
    let mut found = RunSet::new();
    let mut start = 0;
    while start < numbers.len() {
        let block: Vec<u64> = numbers.block(start, AT_ONCE).iter().collect();
        let paths = block.iter().map(|number| directory.join(&template.name(FrameNo::new(*number)?)));
        let stats = backing.stat_many(&paths.collect::<Result<Vec<_>>>()?)?;
        for (number, stat) in block.iter().zip(stats) {
            if stat.is_ok_and(|stat| !stat.is_dir) {
                found.insert(*number);
            }
        }
        start += AT_ONCE;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_manifest_is_read_in_groups() {
        let piece = |nth: u64| {
            format!("[[pieces]]\npath = \"part-{nth}\"\nfirst = {nth}\ncount = 1\nframe_bytes = 8\n\n")
        };
        let text: String = (0..20_000).map(piece).collect();
        assert!(text.len() > 4 * GROUP_BYTES);
        let layout = parse_manifest(&format!("# a comment first\n{text}"), "x").unwrap();
        let pieces = layout.pieces().unwrap();
        assert_eq!(pieces.len(), 20_000);
        assert_eq!((pieces[19_999].path.as_str(), pieces[19_999].first), ("part-19999", 19_999));
        for (bad, words) in [
            (format!("{text}[[pieces]]\npath = 7\n"), "lines counted from byte"),
            (format!("pattern = \"f{{n}}\"\n{text}"), "keep one"),
            (String::new(), "has none of"),
            ("x = 1".to_owned(), "unknown field"),
        ] {
            let error = parse_manifest(&bad, "x").unwrap_err();
            assert!(error.kind() == ErrorKind::Config && error.to_string().contains(words), "{error}");
        }
    }
}
