//! Opening a cache root.

use crate::activity::Activity;
use crate::dataset::Dataset;
use crate::open_files::OpenFiles;
use crate::own_file::temporary_dir;
use crate::registry;
use crate::room::{Room, on_disk};
use crate::store::{DatasetMap, Store};
use crate::types::{RecoveryReport, StoreConfig};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zazen_core::limits::OWN_DIR;
use zazen_core::{ErrorKind, RelPath, Result};
use zazen_env::{Disk, DiskPath, Environment, is_trouble};
use zazen_frames::make_room::MakeRoom;
use zazen_frames::quota::{Quotas, Scope, Taken};

/// Blocks of the root's own small files: lock, node, mark of a clean stop, two copies of the
/// daemon's own text.
const ROOT_OVERHEAD: u64 = 5 * 4096;

impl<D: Disk> Store<D> {
    /// Opens the cache root of `disk`, recovering whatever state a crash left. `Busy` if another
    /// process has it open.
    pub fn open(disk: D, config: StoreConfig) -> Result<(Arc<Store<D>>, RecoveryReport)> {
        Store::open_in(Environment::real(), disk, config)
    }

    /// As [`Store::open`], with time and identities from `environment`: the same environment, disk
    /// and calls give the same operations on the disk, in the same order.
    pub fn open_in(
        environment: Environment,
        disk: D,
        config: StoreConfig,
    ) -> Result<(Arc<Store<D>>, RecoveryReport)> {
        let root = disk.root().display().to_string();
        disk.lock().map_err(|error| error.within(format!("open cache root {root}")))?;
        disk.check_folders(&temporary_dir())?;
        let disk = Arc::new(disk);
        let mut report = RecoveryReport { clean: registry::is_clean(&*disk)?, ..RecoveryReport::default() };
        let temporaries = Arc::new(AtomicU64::new(0));
        empty_temporaries(&*disk, &mut report)?;
        let serial = temporaries.fetch_add(1, Ordering::Relaxed);
        let node = registry::node(&*disk, &*environment.identities, serial, &mut report)?;
        let (mut paths, rediscovered) = registry::datasets(&*disk, &mut report)?;
        let listed = paths.len();
        crate::old_layout::drop_datasets(&*disk, &mut paths, &mut report)?;
        let room = Arc::new(Room::new(config.budget_bytes, config.free_floor_bytes));
        room.settle_own(0, ROOT_OVERHEAD);
        let files = OpenFiles::new(disk.clone(), environment.identities);
        let mut datasets = DatasetMap::new();
        let mut to_walk = BTreeSet::new();
        let mut left_out = BTreeSet::new();
        for path in &paths {
            let opened = Dataset::open(
                path.clone(),
                disk.clone(),
                files.clone(),
                room.clone(),
                temporaries.clone(),
                &mut report,
            );
            let (dataset, damaged) = match opened {
                // Something else is where its files should be, or the disk cannot read them: the
                // others are none the worse for it.
                Err(error)
                    if is_trouble(&error)
                        || matches!(
                            error.kind(),
                            ErrorKind::PermissionDenied
                                | ErrorKind::Conflict
                                | ErrorKind::NotFound
                                | ErrorKind::Config
                        ) =>
                {
                    let error = error.within(format!("dataset {path} cannot be opened and is left out"));
                    tracing::error!("{error}");
                    report.problems.push(error.to_string());
                    if is_trouble(&error) {
                        left_out.insert(path.as_str().to_owned());
                    }
                    continue;
                }
                other => other?,
            };
            if damaged || !report.clean || rediscovered {
                to_walk.insert(path.as_str().to_owned());
            }
            datasets.insert(path.as_str().to_owned(), Arc::new(dataset));
        }
        let activity = Arc::new(Activity::new(environment.clock));
        let store = Arc::new(Store::new(disk, files, config, node, room, activity, temporaries, datasets));
        store.clean.store(report.clean, Ordering::Release);
        let kept = store.map().len() + left_out.len();
        *store.left_out.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = left_out;
        store.walk(&to_walk, &mut report)?;
        store.end_empty(rediscovered || kept != listed)?;
        store.shrink_to_budget(&mut report)?;
        report.datasets = store.map().len() as u64;
        Ok((store, report))
    }

    fn walk(&self, datasets: &BTreeSet<String>, report: &mut RecoveryReport) -> Result<()> {
        if datasets.is_empty() {
            return Ok(());
        }
        let _changing = self.changing()?;
        for path in datasets {
            let Some(dataset) = self.dataset(path) else { continue };
            let swept = dataset.sweep(report);
            if let Err(error) = self.room().removed(swept) {
                let error = error.within(format!("look for lost files of dataset {path}"));
                tracing::error!("{error}; the next start looks again");
                report.problems.push(error.to_string());
            }
        }
        Ok(())
    }

    /// Ends datasets of which nothing is left, and writes the list of the others if it changed.
    fn end_empty(&self, changed: bool) -> Result<()> {
        let is_empty = |dataset: &Arc<Dataset<D>>| {
            let index = dataset.read_index();
            let state = &index.state;
            index.native.live.is_empty()
                && index.alien.live.is_empty()
                && !state.pinned
                && state.layout.is_none()
        };
        let empty: Vec<Arc<Dataset<D>>> = self.map().values().filter(|it| is_empty(it)).cloned().collect();
        let bytes = self.disk().file_len(&DiskPath::own(&RelPath::default(), "datasets"))?.unwrap_or(0);
        self.registry_bytes.store(bytes, Ordering::Relaxed);
        self.room().settle_own(0, on_disk(bytes));
        if empty.is_empty() && !changed {
            return Ok(());
        }
        for dataset in empty {
            if let Err(error) = self.evict_whole(&dataset, None) {
                tracing::warn!("end dataset {}, of which nothing is left: {error}", dataset.path);
            }
        }
        let _changing = self.changing()?;
        let _alone = self.creation();
        let names: Vec<String> = self.map().keys().cloned().collect();
        self.save_registry(names.iter().map(String::as_str))
    }

    /// Bounds the cache by this budget and floor from now on, in bytes. If more is in use than the
    /// new budget, evicts at once what nobody uses; puts evict the rest later. Returns the bytes
    /// that are still in use beyond the budget.
    pub fn set_limits(&self, budget_bytes: u64, free_floor_bytes: u64) -> Result<u64> {
        self.room().set_limits(budget_bytes, free_floor_bytes);
        let _alone = self.evicting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let over = || self.room().account().used.saturating_sub(budget_bytes);
        if over() > 0 {
            // What stays is what the caller is told.
            let _ = self.carry_out(MakeRoom::shrink(over(), budget_bytes), 0, None)?;
        }
        Ok(over())
    }

    /// Bounds users and folders by these from now on. Who has more keeps it until a new frame of
    /// theirs needs room.
    pub fn set_quotas(&self, quotas: Quotas) {
        self.room().set_quotas(quotas);
    }

    /// What a user or a folder has of this disk.
    pub fn taken(&self, scope: &Scope) -> Taken {
        self.room().taken(scope)
    }

    /// What each user owns of this disk.
    pub fn users(&self) -> Vec<(u32, Taken)> {
        self.room().users()
    }

    /// A budget smaller than what is there: evicts at once.
    fn shrink_to_budget(&self, report: &mut RecoveryReport) -> Result<()> {
        let account = self.room().account();
        let over = account.used.saturating_sub(account.budget);
        if over > 0 && self.carry_out(MakeRoom::shrink(over, account.budget), 0, None)?.is_err() {
            let text = format!(
                "cache root {}: {} bytes are in use, {over} more than the budget, and all of it is pinned; \
                 unpin a dataset or raise the budget",
                self.disk().root().display(),
                account.used
            );
            tracing::error!("{text}");
            report.problems.push(text);
        }
        Ok(())
    }
}

/// Removes what unfinished puts left.
fn empty_temporaries<D: Disk>(disk: &D, report: &mut RecoveryReport) -> Result<()> {
    debug_assert!(temporary_dir().as_str().starts_with(OWN_DIR));
    for (name, is_dir) in disk.list(&temporary_dir())? {
        if !is_dir {
            disk.remove(&temporary_dir().child(&name))?;
            report.temporaries_removed += 1;
        }
    }
    Ok(())
}
