//! Datasets of releases that knew no series: their frames can't be told from those of another
//! layout of the same directory, so they are dropped, and fetched again.

use crate::own_file::ignore_absent;
use crate::types::RecoveryReport;
use zazen_core::limits::OWN_DIR;
use zazen_core::limits::SERIES_MARK;
use zazen_core::{RelPath, Result};
use zazen_env::{Disk, DiskPath};

/// Takes the paths that name no series out of `paths`, and removes what Zazen keeps beneath them.
pub(crate) fn drop_datasets<D: Disk>(
    disk: &D,
    paths: &mut Vec<RelPath>,
    report: &mut RecoveryReport,
) -> Result<()> {
    let (series, old): (Vec<_>, Vec<_>) = std::mem::take(paths).into_iter().partition(RelPath::is_series);
    *paths = series;
    for path in &old {
        remove_own(disk, path)?;
        remove_marked(disk, &DiskPath::of(path))?;
    }
    if !old.is_empty() {
        let text = format!(
            "cache root {}: dropped {} datasets of an earlier release, which could take one series of frames \
             for another; they are fetched again",
            disk.root().display(),
            old.len()
        );
        tracing::info!("{text}");
        report.problems.push(text);
    }
    Ok(())
}

/// The dataset's own files; the root's folder has the store's, too, which stay.
fn remove_own<D: Disk>(disk: &D, dataset: &RelPath) -> Result<()> {
    for name in ["native.log", "alien.log", "names", "state"] {
        ignore_absent(disk.remove(&DiskPath::own(dataset, name)))?;
    }
    for name in ["pieces", "segments"] {
        let folder = DiskPath::own(dataset, name);
        for (file, is_dir) in disk.list(&folder)? {
            if !is_dir {
                ignore_absent(disk.remove(&folder.child(&file)))?;
            }
        }
        disk.remove_dir_if_empty(&folder)?;
    }
    if !dataset.is_root() {
        disk.remove_dir_if_empty(&DiskPath::own_dir(dataset))?;
    }
    Ok(())
}

/// Frames, which carry Zazen's mark; what somebody else put there stays.
fn remove_marked<D: Disk>(disk: &D, root: &DiskPath) -> Result<()> {
    let mut folders = vec![root.clone()];
    let mut at = 0;
    while let Some(folder) = folders.get(at).cloned() {
        at += 1;
        for (name, is_dir) in disk.list(&folder)? {
            let path = folder.child(&name);
            if is_dir && name != OWN_DIR && !name.starts_with(SERIES_MARK) {
                folders.push(path);
            } else if !is_dir && disk.stat(&path)?.is_some_and(|stat| stat.is_file && stat.marked) {
                ignore_absent(disk.remove(&path))?;
            }
        }
    }
    for folder in folders.iter().rev().filter(|folder| !folder.as_str().is_empty()) {
        disk.remove_dir_if_empty(folder)?;
    }
    Ok(())
}
