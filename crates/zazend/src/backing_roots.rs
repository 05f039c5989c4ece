//! The backing stores of a daemon, and the names that their datasets have in the cache.
//!
//! A dataset's cache name is its path beneath its backing root. Two roots could give two datasets
//! the same name. Therefore only the first root that a cache ever saw uses plain names. Each
//! further root puts its datasets under `@` and its own last component (`@scratch/sim1`;
//! `@scratch-2/…` if that is taken).
//!
//! Invariant: a root keeps its prefix for the life of the cache, because the prefix is written into
//! the cache's own folder. So nobody who adds, removes or reorders roots makes the daemon take one
//! dataset's frames for another's.

use crate::config::{BackingSpec, own_objects};
use crate::guarded_backing::GuardedBacking;
use crate::viewer::Viewer;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use zazen_backing::objects::{self, ObjectLocation, Owner};
use zazen_backing::trajectory::{Finder, Indexes};
use zazen_backing::{Backing, DirectoryBacking, ObjectBacking, ServedBacking};
use zazen_core::limits::OWN_DIR;
use zazen_core::{Error, ErrorKind, RelPath, Result, Series};
use zazen_env::{Disk, Identity};
use zazen_store::{read_root_text, write_root_text};

/// How many views are kept though nobody uses them now.
const WARM_MAX: usize = 64;
const STATE_FILE: &str = "zazend";
const TITLE: &str = "zazend 1\n";

/// What a daemon remembers about its cache from one start to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheState {
    /// Backing directory → prefix of its datasets' names.
    pub prefixes: BTreeMap<String, String>,
    /// The budget that was chosen at the first start, where none was given.
    pub default_budget_bytes: Option<u64>,
    /// What was remembered is lost.
    #[serde(skip)]
    damaged: bool,
    /// First components of the names of datasets whose backing directory is not remembered.
    #[serde(skip)]
    taken: BTreeSet<String>,
}

impl CacheState {
    /// What the cache on `disk` remembers; nothing for a new cache. There are two copies, each with
    /// a checksum. If both are damaged, nothing is remembered, and [`CacheState::keep_apart`] is
    /// needed.
    pub fn read<D: Disk>(disk: &D) -> Result<CacheState> {
        let lost = |error: &Error| {
            tracing::error!("{error}, nor is its other copy good: this cache starts without what they said");
            CacheState { damaged: true, ..CacheState::default() }
        };
        let text = match read_root_text(disk, STATE_FILE) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(CacheState::default()),
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(lost(&error)),
            Err(error) => return Err(error),
        };
        let parsed = text.strip_prefix(TITLE).and_then(|rest| serde_json::from_str(rest).ok());
        parsed.map_or_else(
            || {
                let path = disk.root().join(OWN_DIR).join(STATE_FILE);
                let text = format!(
                    "{} is of another version of zazend; use that one, or empty the cache root",
                    path.display()
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            },
            Ok,
        )
    }

    /// For a cache that lost what it remembered: gives the names of the `datasets` that the cache
    /// holds. Their backing directories are unknown. So no directory gets a name that one of them
    /// may have, and nobody takes their frames for another directory's. Nobody reads these frames
    /// any more; they are evicted when room is needed.
    pub fn keep_apart<'a>(&mut self, datasets: impl Iterator<Item = &'a str>) {
        if self.damaged {
            self.taken = datasets.map(|name| prefix_in(name).to_owned()).collect();
        }
    }

    /// What the disks of one cache remember together. Fails with `Config` if two of them name one
    /// backing directory's datasets differently: they were parts of different caches.
    pub fn of_all(all: &[(std::path::PathBuf, CacheState)]) -> Result<CacheState> {
        let mut whole = CacheState::default();
        for (root, state) in all {
            whole.damaged |= state.damaged;
            for (directory, prefix) in &state.prefixes {
                let known = whole.prefixes.entry(directory.clone()).or_insert_with(|| prefix.clone());
                if known != prefix {
                    let text = format!(
                        "cache {} was part of another cache, where datasets of {directory} had other names; \
                         empty it, or leave it out",
                        root.display()
                    );
                    return Err(Error::new(ErrorKind::Config, text));
                }
            }
        }
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for (directory, prefix) in &whole.prefixes {
            if let Some(other) = owners.insert(prefix, directory) {
                let text = format!(
                    "the cache disks give datasets of {other} and of {directory} the same names; some of \
                     these disks were part of another cache, or absent when a backing directory was added: \
                     empty those, or leave them out"
                );
                return Err(Error::new(ErrorKind::Config, text));
            }
        }
        Ok(whole)
    }

    /// Writes the state durably, in two copies. A full disk that has this state is no error.
    pub fn write<D: Disk>(&self, disk: &D) -> Result<()> {
        let json = serde_json::to_string_pretty(self).unwrap_or_default();
        let text = format!("{TITLE}{json}\n");
        let is_there = || read_root_text(disk, STATE_FILE).is_ok_and(|kept| kept.as_ref() == Some(&text));
        match write_root_text(disk, STATE_FILE, &text) {
            Err(error) if error.kind() == ErrorKind::NoSpace && is_there() => {
                tracing::warn!("the disk of cache {} is full: {error}", disk.root().display());
                Ok(())
            }
            written => written,
        }
    }

    /// The prefix of `directory`'s datasets, chosen now if it has none yet.
    pub fn prefix(&mut self, directory: &str) -> String {
        if let Some(prefix) = self.prefixes.get(directory) {
            return prefix.clone();
        }
        let taken =
            |name: &str| self.taken.contains(name) || self.prefixes.values().any(|prefix| prefix == name);
        let last = directory.rsplit('/').next().filter(|last| !last.is_empty()).unwrap_or("root");
        let candidates = (1..).map(|n| if n == 1 { format!("@{last}") } else { format!("@{last}-{n}") });
        let fresh = std::iter::once(String::new()).chain(candidates).find(|name| !taken(name));
        let prefix = fresh.unwrap_or_default();
        self.prefixes.insert(directory.to_owned(), prefix.clone());
        prefix
    }
}

/// The prefix that a dataset's name may have.
fn prefix_in(dataset: &str) -> &str {
    dataset.split('/').next().filter(|first| first.starts_with('@')).unwrap_or("")
}

/// One backing store under the directory that users spell.
pub struct BackingRoot {
    /// Absolute directory or `s3://BUCKET/PREFIX`, as users spell it, without a trailing slash.
    pub directory: String,
    /// Prefix of its datasets' names in the cache.
    pub prefix: RelPath,
    /// The store, as the daemon itself sees it.
    pub backing: Arc<GuardedBacking>,
    /// Of an object store: whose all its files are.
    pub owner: Option<Owner>,
    indexes: Arc<Indexes>,
    views: Mutex<Views>,
}

/// The store as other users see it: one view for each, however many ask.
#[derive(Default)]
struct Views {
    all: HashMap<Arc<Identity>, Weak<GuardedBacking>>,
    /// The views used last.
    warm: VecDeque<Arc<GuardedBacking>>,
}

impl BackingRoot {
    /// The store that `spec` names, with the prefix that the cache gave it. `indexes`: of its
    /// trajectory files.
    pub fn new(spec: &BackingSpec, prefix: &str, indexes: Arc<Indexes>) -> Result<BackingRoot> {
        let mut owner = None;
        let backing: Arc<dyn Backing> = match &spec.server {
            Some(store) if store.starts_with(objects::SCHEME) => {
                let location = ObjectLocation::parse(store, own_objects())?;
                owner = Some(location.owner);
                Arc::new(ObjectBacking::new(&location, objects::program()?))
            }
            Some(server) => Arc::new(ServedBacking::connect(server)?),
            None => Arc::new(DirectoryBacking::new(&spec.directory)?),
        };
        let prefix =
            RelPath::new(prefix).map_err(|error| error.within(format!("backing {}", spec.directory)))?;
        let backing = Arc::new(GuardedBacking::new(backing));
        Ok(BackingRoot {
            directory: spec.directory.clone(),
            prefix,
            backing,
            owner,
            indexes,
            views: Mutex::default(),
        })
    }

    /// The store as `viewer` sees it.
    pub fn seen_by(&self, viewer: &Viewer) -> Result<Arc<GuardedBacking>> {
        let Viewer::Other(identity) = viewer else { return Ok(self.backing.clone()) };
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        let view = match views.all.get(identity).and_then(Weak::upgrade) {
            Some(view) => view,
            None => {
                let view = Arc::new(self.backing.view(&identity.credentials())?);
                views.all.retain(|_, view| view.strong_count() > 0);
                views.all.insert(identity.clone(), Arc::downgrade(&view));
                view
            }
        };
        views.warm.retain(|warm| !Arc::ptr_eq(warm, &view));
        views.warm.push_front(view.clone());
        views.warm.truncate(WARM_MAX);
        Ok(view)
    }

    /// Where the layouts of its datasets are looked for, until `stops` says so.
    pub fn finder<'a>(&'a self, stops: &'a dyn Fn() -> bool) -> Finder<'a> {
        Finder { indexes: &self.indexes, store: &self.directory, stops: Some(stops) }
    }

    /// `path` beneath this root, as users spell it.
    pub fn spelled(&self, path: &RelPath) -> String {
        match (self.directory.as_str(), path.is_root()) {
            (directory, true) => directory.to_owned(),
            ("/", false) => format!("/{path}"),
            (directory, false) => format!("{directory}/{path}"),
        }
    }

    fn beneath<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(self.directory.trim_end_matches('/'))?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_start_matches('/'))
    }
}

/// Where a dataset is: its store, its path there, its name in the cache.
#[derive(Clone)]
pub struct Located {
    /// The store.
    pub root: Arc<BackingRoot>,
    /// The dataset's directory beneath the root.
    pub beneath: RelPath,
    /// The cache's name for its directory.
    pub dataset: RelPath,
}

impl Located {
    /// The cache's name for one of its series.
    pub fn series(&self, series: &Series) -> Result<RelPath> {
        self.dataset.series(series)
    }
}

/// All backing stores of a daemon.
pub struct BackingRoots {
    /// In the configured order.
    pub roots: Vec<Arc<BackingRoot>>,
}

impl BackingRoots {
    /// The stores of `specs`. Prefixes come from `state`; prefixes that are chosen now are added to
    /// it.
    pub fn new(
        specs: &[BackingSpec],
        state: &mut CacheState,
        indexes: &Arc<Indexes>,
    ) -> Result<BackingRoots> {
        let roots = specs.iter().map(|spec| {
            BackingRoot::new(spec, &state.prefix(&spec.directory), indexes.clone()).map(Arc::new)
        });
        Ok(BackingRoots { roots: roots.collect::<Result<_>>()? })
    }

    /// Finds the dataset that a user spells as the absolute `path`. If roots are nested, the
    /// innermost counts.
    pub fn locate(&self, path: &str) -> Result<Located> {
        if !path.starts_with('/') && !path.starts_with(objects::SCHEME) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("dataset {path:?}: give the absolute path of its directory"),
            ));
        }
        let inside = self.roots.iter().filter_map(|root| Some((root, root.beneath(path)?)));
        let Some((root, rest)) = inside.max_by_key(|(root, _)| root.directory.len()) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{path} is beneath none of this node's backing stores ({})", self.listed()),
            ));
        };
        let beneath = RelPath::new(rest).map_err(|error| error.within(format!("dataset {path:?}")))?;
        if root.prefix.is_root() && rest.starts_with('@') {
            let first = rest.split('/').next().unwrap_or(rest);
            if self.roots.iter().any(|other| other.prefix.as_str() == first) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "{path}: the name {first} stands for another backing directory in this cache; rename \
                         it"
                    ),
                ));
            }
        }
        let dataset = root.prefix.join(beneath.as_str())?;
        Ok(Located { root: root.clone(), beneath, dataset })
    }

    /// The path by which users know the cached `dataset`; `None` if its root is no longer
    /// configured.
    pub fn spelled(&self, dataset: &RelPath) -> Option<String> {
        let beneath = |root: &&Arc<BackingRoot>| match dataset.as_str().strip_prefix(root.prefix.as_str()) {
            Some(rest) if root.prefix.is_root() || rest.is_empty() || rest.starts_with('/') => {
                RelPath::new(rest.trim_start_matches('/')).ok().map(|path| root.spelled(&path))
            }
            _ => None,
        };
        let prefixed =
            self.roots.iter().filter(|root| !root.prefix.is_root()).find_map(|root| beneath(&root));
        let plain = || {
            let ours = !dataset.as_str().starts_with('@');
            self.roots.iter().find(|root| ours && root.prefix.is_root()).and_then(|root| beneath(&root))
        };
        prefixed.or_else(plain)
    }

    /// The backing directories, for messages.
    pub fn listed(&self) -> String {
        self.roots.iter().map(|root| root.directory.as_str()).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_env::SimDisk;

    fn roots(directories: &[&str], state: &mut CacheState) -> BackingRoots {
        let specs = directories.iter().map(|d| BackingSpec { directory: (*d).into(), server: None });
        BackingRoots::new(&specs.collect::<Vec<_>>(), state, &Arc::default()).unwrap()
    }

    #[test]
    fn names_are_injective_and_survive_a_change_of_the_list() {
        let mut state = CacheState::default();
        let check = |roots: &BackingRoots, path: &str, expected: Option<&str>| {
            let found = roots.locate(path).ok().map(|located| located.dataset.as_str().to_owned());
            assert_eq!(found.as_deref(), expected, "{path}");
            if let Some(name) = found {
                let back = roots.spelled(&RelPath::new(&name).unwrap()).unwrap();
                assert_eq!(back, path.trim_end_matches('/'));
            }
        };
        let one = roots(&["/lustre"], &mut state);
        check(&one, "/lustre/sim1", Some("sim1"));
        check(&one, "/lustre/a/b/", Some("a/b"));
        check(&one, "/lustre", Some(""));
        check(&one, "/lustre2/sim1", None);
        check(&one, "/lustre/../etc", None);
        check(&one, "lustre/sim1", None);
        let many = roots(&["/x/scratch", "/y/scratch", "/lustre", "/lustre/inner"], &mut state);
        check(&many, "/lustre/sim1", Some("sim1"));
        check(&many, "/x/scratch/sim1", Some("@scratch/sim1"));
        check(&many, "/y/scratch/sim1", Some("@scratch-2/sim1"));
        check(&many, "/lustre/inner/sim1", Some("@inner/sim1"));
        check(&many, "/lustre/@scratch/sim1", None);
        let everything = roots(&["/"], &mut CacheState::default());
        check(&everything, "/data/sim1", Some("data/sim1"));
    }

    #[test]
    fn disks_that_give_two_directories_one_name_are_refused() {
        let of = |directory: &str| {
            let mut state = CacheState::default();
            state.prefix(directory);
            (std::path::PathBuf::from("/cache"), state)
        };
        CacheState::of_all(&[of("/a"), of("/a")]).unwrap();
        let error = CacheState::of_all(&[of("/a"), of("/b")]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("/a") && error.to_string().contains("/b"), "{error}");
    }

    #[test]
    fn what_a_cache_remembers_survives_damage_of_one_copy() {
        let disk = SimDisk::new(1, 1 << 20);
        let mut state = CacheState::read(&disk).unwrap();
        state.prefix("/a");
        state.prefix("/b");
        state.default_budget_bytes = Some(7);
        state.write(&disk).unwrap();
        assert_eq!(CacheState::read(&disk).unwrap(), state);
        for copy in [".zazen/zazend", ".zazen/zazend.copy"] {
            let bytes = disk.files().iter().find(|file| file.0 == copy).unwrap().1;
            for bit in 0..bytes * 8 {
                let damaged = disk.fork(2);
                damaged.tamper(copy, |bytes| bytes[bit as usize / 8] ^= 1 << (bit % 8));
                assert_eq!(CacheState::read(&damaged).unwrap(), state, "bit {bit} of {copy}");
            }
            for cut in 0..bytes {
                let damaged = disk.fork(2);
                damaged.tamper(copy, |bytes| bytes.truncate(cut as usize));
                assert_eq!(CacheState::read(&damaged).unwrap(), state, "{copy} cut to {cut}");
            }
        }
    }

    #[test]
    fn a_full_disk_keeps_what_a_cache_remembers() {
        let disk = SimDisk::new(1, 1 << 20);
        let mut state = CacheState::default();
        state.prefix("/a");
        state.write(&disk).unwrap();
        disk.set_capacity(0);
        state.write(&disk).unwrap();
        assert_eq!(CacheState::read(&disk).unwrap(), state);
        state.prefix("/b");
        assert_eq!(state.write(&disk).unwrap_err().kind(), ErrorKind::NoSpace);
    }

    #[test]
    fn with_both_copies_damaged_no_directory_gets_the_name_of_a_cached_dataset() {
        let disk = SimDisk::new(1, 1 << 20);
        let mut state = CacheState::default();
        for directory in ["/a/scratch", "/b/scratch", "/c/scratch"] {
            state.prefix(directory);
        }
        state.write(&disk).unwrap();
        for copy in [".zazen/zazend", ".zazen/zazend.copy"] {
            disk.tamper(copy, |bytes| bytes[3] ^= 1);
        }
        let mut lost = CacheState::read(&disk).unwrap();
        lost.keep_apart(["sim1", "@scratch-2/sim1"].into_iter());
        assert_eq!(lost.prefix("/b/scratch"), "@scratch");
        assert_eq!(lost.prefix("/a/scratch"), "@scratch-3");
        lost.write(&disk).unwrap();
        assert_eq!(CacheState::read(&disk).unwrap().prefixes, lost.prefixes);
        // In an empty cache no two datasets can be mixed up.
        disk.tamper(".zazen/zazend", Vec::clear);
        disk.tamper(".zazen/zazend.copy", Vec::clear);
        let mut lost = CacheState::read(&disk).unwrap();
        lost.keep_apart(std::iter::empty());
        assert_eq!(lost.prefix("/b/scratch"), "");
    }

    #[test]
    fn what_a_cache_remembers_is_the_old_or_the_new_after_any_crash() {
        let (mut old, mut new) = (CacheState::default(), CacheState::default());
        old.prefix("/a");
        new.prefix("/a");
        new.prefix("/b");
        for step in 1..24 {
            for seed in 0..10 {
                let disk = SimDisk::new(seed, 1 << 20);
                old.write(&disk).unwrap();
                disk.crash_at(disk.steps() + step);
                let ended = new.write(&disk).is_ok();
                let found = CacheState::read(&disk.power_fail()).unwrap();
                assert!(found == new || found == old && !ended, "step {step}, seed {seed}: {found:?}");
            }
        }
    }
}
