//! An index file and its time steps, from the disk.

use crate::namespace::SCHEME;
use crate::{Hdfs, HdfsUrl, InNamespace, within_namespace};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use zazen_backing::trajectory::{Finder, Indexes};
use zazen_backing::{DirectoryBacking, dataset};
use zazen_client::testbed_env::find_socket_path;
use zazen_core::{Error, ErrorKind, FrameNo, NameTemplate, PARTS_PER_STEP_MAX, RelPath, Result};
use zazen_env::plain_file::{open_given, read_within};
use zazen_namespace_client::Namespace;
use zazen_vtk::{Index, IndexFiles, Step, Tree, place, read_index};

/// The largest index file.
const INDEX_BYTES_MAX: u64 = 256 << 20;
/// The most places of blocks, over all steps of a pattern.
const PLACES_MAX: usize = 1 << 22;

/// An index that was read, with the place of its files.
#[derive(Clone, Debug)]
pub struct OpenedIndex {
    /// The time steps. Files count by their position in `place.steps`.
    pub index: Index,
    /// Where the files are.
    pub place: IndexFiles,
    /// The index files, relative to the index's directory, or absolute; the index first.
    pub index_files: Vec<String>,
    /// What keeps the files.
    pub storage: Storage,
    /// What a user must know before believing a picture of them, if there is something.
    pub note: Option<String>,
}

/// What keeps the files of a visualization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A directory of this machine.
    Mounted,
    /// HDFS: its name node and the directory of the index's `place`.
    Hdfs(HdfsUrl),
    /// The namespace, without a mount.
    Namespace,
}

impl OpenedIndex {
    /// The files' directory in the namespace, if they are there: with or without a mount.
    pub fn in_namespace(&self) -> Result<Option<String>> {
        match self.storage {
            Storage::Namespace => Ok(Some(self.place.directory.clone())),
            Storage::Hdfs(_) => Ok(None),
            Storage::Mounted => within_namespace(Path::new(&self.place.directory)),
        }
    }

    /// The files' directory, as an index's path may name it again.
    pub fn directory(&self) -> String {
        match &self.storage {
            Storage::Mounted => self.place.directory.clone(),
            Storage::Hdfs(url) => url.to_string(),
            Storage::Namespace => format!("{SCHEME}{}", self.place.directory),
        }
    }
}

/// Opens the index file `path`, or the files that a pattern in `path` names:
/// `/lustre/ocean/step{t}/block{b}.vtu`.
///
/// `hdfs://HOST[:WEB PORT]/ocean/ts.vtm.series` is an index in HDFS, and
/// `namespace:/ocean/ts.vtm.series` one in the namespace of this machine's daemon.
///
/// A link in the path is kept: data files lie where the user's path leads.
pub fn open_index(path: &Path) -> Result<OpenedIndex> {
    open_index_with(path, &|| Namespace::local_when_joined(&find_socket_path()))
}

/// The same, where `connect` gives the namespace for `namespace:` paths.
pub fn open_index_with(path: &Path, connect: &dyn Fn() -> Result<Namespace>) -> Result<OpenedIndex> {
    if let Some(within) = path.to_str().and_then(|text| text.strip_prefix(SCHEME)) {
        return in_namespace(within, connect);
    }
    if let Some(url) = path.to_str().filter(|text| text.starts_with("hdfs://")) {
        return in_hdfs(&HdfsUrl::parse(url)?);
    }
    let shown = path.display().to_string();
    let absolute = std::path::absolute(path).map_err(|error| Error::io(shown.clone(), error))?;
    let text = absolute
        .to_str()
        .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, format!("{shown}: is not UTF-8; rename it")))?;
    // A file that is there is an index, whatever letters its path has.
    if let Some(brace) = text.find('{').filter(|_| !absolute.is_file()) {
        return by_pattern(text, brace);
    }
    let (directory, name) = text.rsplit_once('/').unwrap_or(("", text));
    let directory = if directory.is_empty() { "/" } else { directory };
    let folder = PathBuf::from(directory);
    opened(directory, name, &mut |file| read(&folder.join(file)), Storage::Mounted)
}

fn in_hdfs(url: &HdfsUrl) -> Result<OpenedIndex> {
    let (directory, name) = url.path.rsplit_once('/').unwrap_or(("", &url.path));
    let directory = if directory.is_empty() { "/" } else { directory };
    let beneath = HdfsUrl { authority: url.authority.clone(), path: directory.to_owned() };
    let hdfs = Hdfs::of_environment(beneath.clone());
    opened(directory, name, &mut |file| hdfs.read(file, INDEX_BYTES_MAX), Storage::Hdfs(beneath))
}

fn in_namespace(path: &str, connect: &dyn Fn() -> Result<Namespace>) -> Result<OpenedIndex> {
    let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidArgument, format!("{SCHEME}{path}: {why}")));
    if path.contains('{') {
        return refuse("patterns need a mount of the namespace; give an index, or a path in the mount");
    }
    let Some((directory, name)) = path.rsplit_once('/').filter(|_| path.starts_with('/')) else {
        return refuse("give the path from the namespace's root, as in namespace:/run1/ts.vtm.series");
    };
    let files = InNamespace::new(connect()?, directory);
    let directory = if directory.is_empty() { "/" } else { directory };
    opened(directory, name, &mut |file| files.read(file, INDEX_BYTES_MAX), Storage::Namespace)
}

fn opened(
    directory: &str,
    name: &str,
    read: &mut dyn FnMut(&str) -> Result<Vec<u8>>,
    storage: Storage,
) -> Result<OpenedIndex> {
    let mut index_files = Vec::new();
    let mut noted = |file: &str| {
        index_files.push(file.to_owned());
        read(file)
    };
    let index = read_index(name, &mut noted).map_err(|error| error.within(format!("in {directory}")))?;
    let place = place(directory, &index.files());
    let storage = match storage {
        Storage::Hdfs(url) => Storage::Hdfs(HdfsUrl { path: place.directory.clone(), ..url }),
        storage => storage,
    };
    Ok(OpenedIndex { index, place, index_files, storage, note: None })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |error| Error::io(path.display().to_string(), error);
    let file = open_given(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    if bytes > INDEX_BYTES_MAX {
        let why = format!("{}: {bytes} bytes, an index has at most {INDEX_BYTES_MAX}", path.display());
        return Err(Error::new(ErrorKind::TooLarge, why));
    }
    read_within(file, INDEX_BYTES_MAX).map_err(failed)
}

/// Time steps by a pattern: the time is the step's number.
fn by_pattern(text: &str, brace: usize) -> Result<OpenedIndex> {
    let cut = text[..brace].rfind('/').map_or(0, |at| at + 1);
    let (directory, pattern) = text.split_at(cut);
    let directory = if directory.len() > 1 { directory.trim_end_matches('/') } else { directory };
    let template = NameTemplate::parse(pattern)?;
    let backing = DirectoryBacking::new(Path::new(directory))?;
    let (indexes, store) = (Indexes::of_this_user(), directory.to_owned());
    let finder = Finder { indexes: &indexes, store: &store, stops: None };
    let found = dataset::describe(finder, &backing, &RelPath::default(), Some(pattern))?;
    let mut listed: BTreeMap<u64, BTreeMap<u64, String>> = BTreeMap::new();
    for number in found.extent.iter() {
        let (step, block) = match template.has_parts() {
            true => (number / PARTS_PER_STEP_MAX, number % PARTS_PER_STEP_MAX),
            false => (number, 0),
        };
        listed.entry(step).or_default().insert(block, template.name(FrameNo::new(number)?));
    }
    let (steps, note) = match template.has_parts() {
        true => in_blocks(listed),
        false => (listed.into_iter().map(|(step, files)| alone(step, files)).collect(), None),
    };
    if steps.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, format!("{text}: no file has such a name")));
    }
    let index = Index { steps };
    let place =
        IndexFiles { directory: directory.to_owned(), steps: index.files(), template: Some(template) };
    Ok(OpenedIndex { index, place, index_files: Vec::new(), storage: Storage::Mounted, note })
}

/// A step of one file.
fn alone(step: u64, files: BTreeMap<u64, String>) -> Step {
    Step::new(step as f64, files.into_values().collect(), Tree::File(0))
}

/// Steps of several files each, by their blocks' numbers. A block has one place in all steps. What
/// a step lacks is empty there; nobody but the other steps tells that it is missing, so a note says
/// so.
fn in_blocks(listed: BTreeMap<u64, BTreeMap<u64, String>>) -> (Vec<Step>, Option<String>) {
    let all: BTreeSet<u64> = listed.values().flat_map(BTreeMap::keys).copied().collect();
    let lacking = |files: &BTreeMap<u64, String>| {
        let mut missing = all.iter().filter(|block| !files.contains_key(block));
        missing.next().copied()
    };
    let mut holes = listed.iter().filter_map(|(step, files)| Some((*step, lacking(files)?)));
    let note = holes.next().map(|(step, block)| {
        let (count, steps) = (1 + holes.count(), listed.len());
        format!(
            "{count} of {steps} time steps lack blocks that others have, such as step {step} block {block}; \
             they are shown without these"
        )
    });
    // Where each step has blocks of its own, places for all of them would be too many.
    let places = if all.len().saturating_mul(listed.len()) <= PLACES_MAX { all } else { BTreeSet::new() };
    let step = |(step, files): (u64, BTreeMap<u64, String>)| {
        let own: Vec<u64> = files.keys().copied().collect();
        let blocks: Vec<u64> = if places.is_empty() { own.clone() } else { places.iter().copied().collect() };
        let leaf = |block: u64| {
            let tree = own.binary_search(&block).map_or(Tree::Empty, Tree::File);
            (Some(format!("block {block}")), tree)
        };
        let tree = Tree::Blocks(blocks.into_iter().map(leaf).collect());
        Step::new(step as f64, files.into_values().collect(), tree)
    };
    (listed.into_iter().map(step).collect(), note)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_a_step_lacks_leaves_its_place_empty() {
        let listed = |steps: &[(u64, &[u64])]| -> BTreeMap<u64, BTreeMap<u64, String>> {
            let files = |step: u64, blocks: &[u64]| {
                blocks.iter().map(|block| (*block, format!("{step}/{block}.vtu"))).collect()
            };
            steps.iter().map(|(step, blocks)| (*step, files(*step, blocks))).collect()
        };
        let (steps, note) = in_blocks(listed(&[(0, &[0, 1, 7]), (3, &[0, 7])]));
        let name = |block: u64| Some(format!("block {block}"));
        let tree = vec![(name(0), Tree::File(0)), (name(1), Tree::Empty), (name(7), Tree::File(1))];
        assert_eq!((steps[1].time, &steps[1].tree), (3.0, &Tree::Blocks(tree)));
        assert_eq!(steps[1].files, ["3/0.vtu", "3/7.vtu"]);
        let note = note.unwrap();
        assert!(note.contains("1 of 2 time steps") && note.contains("step 3 block 1"), "{note}");
        assert_eq!(in_blocks(listed(&[(0, &[0, 1]), (1, &[0, 1])])).1, None);
    }
}
