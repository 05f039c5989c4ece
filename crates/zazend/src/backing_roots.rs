//! The backing stores of a daemon, and the names that their datasets have in the cache.
//!
//! A dataset's cache name is its path beneath its backing root. With several roots two datasets could get the
//! same name; so the first root that a cache ever saw names its datasets plainly, and each further one puts them
//! under `@` and its own last component (`@scratch/sim1`; `@scratch-2/…` if that is taken).
//!
//! Invariant: a root keeps its prefix for the life of the cache (it is written down in the cache's own folder), so
//! that adding, removing or reordering roots never takes one dataset's frames for another's.

use crate::config::BackingSpec;
use crate::guarded_backing::GuardedBacking;
use crate::viewer::Viewer;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use zazen_backing::{Backing, DirectoryBacking, ServedBacking};
use zazen_core::limits::OWN_DIR;
use zazen_core::{Error, ErrorKind, RelPath, Result};
use zazen_env::Identity;

/// Users whose views are kept warm though nobody uses them.
const WARM_MAX: usize = 64;
const STATE_FILE: &str = "zazend.json";

/// What a daemon remembers about its cache from one start to the next.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CacheState {
    /// Backing directory → prefix of its datasets' names.
    pub prefixes: BTreeMap<String, String>,
    /// The budget that was chosen at the first start, where none was given.
    pub default_budget_bytes: Option<u64>,
}

impl CacheState {
    /// What the cache at `root` remembers; nothing for a new one.
    pub fn read(root: &Path) -> Result<CacheState> {
        let path = root.join(OWN_DIR).join(STATE_FILE);
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                let what =
                    format!("{}: is damaged; remove it if this cache has one backing root", path.display());
                Error::new(ErrorKind::Corrupt, what).caused_by(error)
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(CacheState::default()),
            Err(error) => Err(Error::io(path.display().to_string(), error)),
        }
    }

    /// Writes it down, atomically.
    pub fn write(&self, root: &Path) -> Result<()> {
        let own = root.join(OWN_DIR);
        let (path, fresh) = (own.join(STATE_FILE), own.join(format!("{STATE_FILE}.new")));
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        let written = std::fs::create_dir_all(&own).and_then(|()| std::fs::write(&fresh, text));
        let placed = written.and_then(|()| std::fs::rename(&fresh, &path));
        placed.map_err(|error| Error::io(format!("write {}", path.display()), error))
    }

    /// The prefix of `directory`'s datasets, chosen now if it has none yet.
    pub fn prefix(&mut self, directory: &str) -> String {
        if let Some(prefix) = self.prefixes.get(directory) {
            return prefix.clone();
        }
        let taken = |name: &str| self.prefixes.values().any(|prefix| prefix == name);
        let last = directory.rsplit('/').next().filter(|last| !last.is_empty()).unwrap_or("root");
        let candidates = (1..).map(|n| if n == 1 { format!("@{last}") } else { format!("@{last}-{n}") });
        let fresh = std::iter::once(String::new()).chain(candidates).find(|name| !taken(name));
        let prefix = fresh.unwrap_or_default();
        self.prefixes.insert(directory.to_owned(), prefix.clone());
        prefix
    }
}

/// One backing store under the directory that users spell.
pub struct BackingRoot {
    /// Absolute directory as users spell it, without a trailing slash.
    pub directory: String,
    /// Prefix of its datasets' names in the cache.
    pub prefix: RelPath,
    /// The store, as the daemon itself sees it.
    pub backing: Arc<GuardedBacking>,
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
    /// The store that `spec` names, with the prefix that the cache gave it.
    pub fn new(spec: &BackingSpec, prefix: &str) -> Result<BackingRoot> {
        let backing: Arc<dyn Backing> = match &spec.server {
            Some(server) => Arc::new(ServedBacking::connect(server)?),
            None => Arc::new(DirectoryBacking::new(&spec.directory)?),
        };
        let prefix =
            RelPath::new(prefix).map_err(|error| error.within(format!("backing {}", spec.directory)))?;
        let backing = Arc::new(GuardedBacking::new(backing));
        Ok(BackingRoot { directory: spec.directory.clone(), prefix, backing, views: Mutex::default() })
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
    /// The cache's name for it.
    pub dataset: RelPath,
}

/// All backing stores of a daemon.
pub struct BackingRoots {
    /// In the configured order.
    pub roots: Vec<Arc<BackingRoot>>,
}

impl BackingRoots {
    /// The stores of `specs`; prefixes come from `state`, which is extended by those chosen now.
    pub fn new(specs: &[BackingSpec], state: &mut CacheState) -> Result<BackingRoots> {
        let roots =
            specs.iter().map(|spec| BackingRoot::new(spec, &state.prefix(&spec.directory)).map(Arc::new));
        Ok(BackingRoots { roots: roots.collect::<Result<_>>()? })
    }

    /// Finds the dataset that a user spells as the absolute `path`; of nested roots the innermost counts.
    pub fn locate(&self, path: &str) -> Result<Located> {
        if !path.starts_with('/') {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("dataset {path:?}: give the absolute path of its directory"),
            ));
        }
        let inside = self.roots.iter().filter_map(|root| Some((root, root.beneath(path)?)));
        let Some((root, rest)) = inside.max_by_key(|(root, _)| root.directory.len()) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{path} is beneath none of this node's backing directories ({})", self.listed()),
            ));
        };
        let beneath = RelPath::new(rest).map_err(|error| error.within(format!("dataset {path:?}")))?;
        if root.prefix.is_root() && rest.starts_with('@') {
            let first = rest.split('/').next().unwrap_or(rest);
            if self.roots.iter().any(|other| other.prefix.as_str() == first) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "{path}: the name {first} stands for another backing directory in this cache; rename it"
                    ),
                ));
            }
        }
        let dataset = root.prefix.join(beneath.as_str())?;
        Ok(Located { root: root.clone(), beneath, dataset })
    }

    /// The path by which users know the cached `dataset`; `None` if its root is no longer configured.
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

    fn roots(directories: &[&str], state: &mut CacheState) -> BackingRoots {
        let specs = directories.iter().map(|d| BackingSpec { directory: (*d).into(), server: None });
        BackingRoots::new(&specs.collect::<Vec<_>>(), state).unwrap()
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
    fn what_a_cache_remembers_is_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = CacheState::read(dir.path()).unwrap();
        state.prefix("/a");
        state.default_budget_bytes = Some(7);
        state.write(dir.path()).unwrap();
        let again = CacheState::read(dir.path()).unwrap();
        assert_eq!((again.prefixes.len(), again.default_budget_bytes), (1, Some(7)));
        std::fs::write(dir.path().join(OWN_DIR).join(STATE_FILE), "{").unwrap();
        assert_eq!(CacheState::read(dir.path()).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
