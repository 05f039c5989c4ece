//! Layouts that were read from the names in a directory. Opening a large dataset again takes one
//! look at its directory, not a listing.
//!
//! Invariant: a remembered layout is the one that a listing would give now. If a name comes or
//! goes, the directory's modification time changes. `zazen_frames::stale` says which listings may
//! be remembered.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use zazen_backing::trajectory::Finder;
use zazen_backing::{Backing, Rights, dataset};
use zazen_core::{Layout, RelPath, Result, Validator};
use zazen_frames::stale::may_remember_listing;

/// How many datasets are remembered. If one more comes, all are forgotten.
const DATASETS_MAX: usize = 1024;

/// Layouts by dataset, for a daemon. Shared by threads.
#[derive(Default)]
pub struct Layouts(Mutex<HashMap<RelPath, (Validator, Layout)>>);

impl Layouts {
    /// The layout of `dataset` in `directory` of `backing`; `None` if nothing there shows it.
    /// Unless `trusted`, the user of `backing` must be allowed to list the directory.
    pub fn of(
        &self,
        finder: Finder<'_>,
        backing: &dyn Backing,
        dataset: &RelPath,
        directory: &RelPath,
        pattern: Option<&str>,
        trusted: bool,
    ) -> Result<Option<Layout>> {
        self.at(SystemTime::now(), finder, backing, dataset, directory, pattern, trusted)
    }

    #[allow(clippy::too_many_arguments)]
    fn at(
        &self,
        now: SystemTime,
        finder: Finder<'_>,
        backing: &dyn Backing,
        dataset: &RelPath,
        directory: &RelPath,
        pattern: Option<&str>,
        trusted: bool,
    ) -> Result<Option<Layout>> {
        let unpatterned = pattern.is_none().then(|| backing.stat(directory));
        let Some(Ok(before)) = unpatterned else {
            return dataset::layout(finder, backing, directory, pattern);
        };
        let mut known = None;
        if let Some((of, layout)) = self.lock().get(dataset)
            && *of == before.validator
        {
            known = Some(layout.clone());
        }
        // Somebody else listed the names; only users who may list them too get the layout.
        if known.is_some() && (trusted || backing.allows(directory, Rights::READ.and(Rights::SEARCH))?) {
            return Ok(known);
        }
        if let Some(told) = dataset::told_layout(finder, backing, directory, pattern)? {
            return Ok(Some(told));
        }
        let found = dataset::layout_by_names(finder, backing, directory)?;
        // A trajectory grows without a change of its directory.
        let by_names = found.as_ref().filter(|layout| layout.trajectory().is_none());
        if let Some(layout) = by_names.filter(|_| may_remember_listing(&before.validator, since_1970_ns(now)))
        {
            let mut known = self.lock();
            if known.len() >= DATASETS_MAX {
                known.clear();
            }
            known.insert(dataset.clone(), (before.validator, layout.clone()));
        }
        Ok(found)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RelPath, (Validator, Layout)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time of day, as validators tell it; 0 before 1970.
fn since_1970_ns(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::path::Path;
    use std::time::Duration;
    use zazen_backing::DirectoryBacking;

    fn touch(folder: &Path, names: &[&str]) {
        for name in names {
            File::create(folder.join(name)).unwrap();
        }
    }

    #[test]
    fn a_directory_is_listed_again_only_when_it_changed() {
        let folder = tempfile::tempdir().unwrap();
        let sim = folder.path().join("sim");
        std::fs::create_dir(&sim).unwrap();
        touch(&sim, &["a-01.bin", "a-02.bin"]);
        let backing = DirectoryBacking::with_deadline(folder.path(), None).unwrap();
        let (layouts, at) = (Layouts::default(), RelPath::new("sim").unwrap());
        let later = SystemTime::now() + Duration::from_nanos(2 * zazen_frames::stale::LISTING_SETTLES_NS);
        let indexes = zazen_backing::trajectory::Indexes::in_memory();
        let finder = Finder { indexes: &indexes, store: "/", stops: None };
        let told = |now, pattern: Option<&str>| {
            let layout = layouts.at(now, finder, &backing, &at, &at, pattern, false).unwrap();
            layout.map(|layout| match layout {
                Layout::Files(template) => template.to_string(),
                other => panic!("{other:?}"),
            })
        };
        let first = told(SystemTime::now(), None);
        assert!(first.as_ref().is_some_and(|name| name.starts_with("a-")) && layouts.lock().is_empty());
        assert_eq!((told(later, None), layouts.lock().len()), (first.clone(), 1));
        // Not listed: what is remembered is told.
        let wrong = Layout::Files(zazen_core::NameTemplate::parse("b{n}").unwrap());
        layouts.lock().get_mut(&at).unwrap().1 = wrong;
        assert_eq!(told(later, None).as_deref(), Some("b{n}"));
        assert_eq!(told(later, Some("c{n}")).as_deref(), Some("c{n}"), "a pattern goes first");
        // A change in the directory counts at once.
        std::thread::sleep(Duration::from_millis(20));
        touch(&sim, &["a-03.bin"]);
        assert_eq!(told(later, None), first);
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(sim.join("zazen.toml"), "pattern = \"d{n}\"\n").unwrap();
        assert_eq!(told(later, None).as_deref(), Some("d{n}"));
        std::fs::write(sim.join("zazen.toml"), "pattern = \"e{n}\"\n").unwrap();
        assert_eq!(told(later, None).as_deref(), Some("e{n}"), "manifests are not remembered");
    }
}
