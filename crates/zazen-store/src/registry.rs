//! What the cache root keeps for the whole store: its identity, the list of datasets, and the mark
//! of a clean stop.

use crate::own_file::{quote, read_text, set_aside, temporary, unquote, write_text};
use crate::types::RecoveryReport;
use zazen_core::limits::OWN_DIR;
use zazen_core::{ErrorKind, RelPath, Result};
use zazen_env::{Disk, DiskPath, Identities};

fn own(name: &str) -> DiskPath {
    DiskPath::own(&RelPath::default(), name)
}

fn folder() -> DiskPath {
    DiskPath::own_dir(&RelPath::default())
}

/// A text file of the root; `None` if there is none. One that can't be read is set aside and
/// reported.
fn load<D: Disk>(disk: &D, name: &str, report: &mut RecoveryReport) -> Result<(Option<String>, bool)> {
    match read_text(disk, &own(name)) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            report.problems.push(set_aside(disk, &own(name), &error)?);
            Ok((None, true))
        }
        other => Ok((other?, false)),
    }
}

/// The identity of the cache, made if there is none.
pub(crate) fn node<D: Disk>(
    disk: &D,
    identities: &dyn Identities,
    serial: u64,
    report: &mut RecoveryReport,
) -> Result<u128> {
    let (text, _) = load(disk, "node", report)?;
    let known = text.as_deref().and_then(|text| text.strip_prefix("zazen node 1\n"));
    if let Some(node) = known.and_then(|rest| u128::from_str_radix(rest.trim_end(), 16).ok()) {
        return Ok(node);
    }
    let node = identities.draw()?;
    write_text(disk, &own("node"), &folder(), &temporary(serial), &format!("zazen node 1\n{node:032x}\n"))?;
    Ok(node)
}

/// The datasets of the root. Where the list is damaged, the tree is walked for them; the second
/// result says so.
pub(crate) fn datasets<D: Disk>(disk: &D, report: &mut RecoveryReport) -> Result<(Vec<RelPath>, bool)> {
    let (text, damaged) = load(disk, "datasets", report)?;
    let Some(text) = text else {
        return if damaged { Ok((discover(disk)?, true)) } else { Ok((Vec::new(), false)) };
    };
    let lines = text.lines().skip(1);
    Ok((lines.filter_map(|line| RelPath::stored(&unquote(line)?).ok()).collect(), false))
}

/// Replaces the list of datasets; returns its bytes.
pub(crate) fn save_datasets<'a, D: Disk>(
    disk: &D,
    serial: u64,
    datasets: impl Iterator<Item = &'a str>,
) -> Result<u64> {
    let mut text = "zazen datasets 1\n".to_owned();
    for dataset in datasets {
        text.push_str(&quote(dataset));
        text.push('\n');
    }
    write_text(disk, &own("datasets"), &folder(), &temporary(serial), &text)?;
    Ok(text.len() as u64)
}

fn discover<D: Disk>(disk: &D) -> Result<Vec<RelPath>> {
    let mut found = Vec::new();
    let mut folders = vec![RelPath::default()];
    while let Some(folder) = folders.pop() {
        for (name, is_dir) in disk.list(&DiskPath::of(&folder))? {
            if name == OWN_DIR && is_dir {
                let own = disk.list(&DiskPath::own_dir(&folder))?;
                let is_dataset = |name: &str| ["native.log", "alien.log", "state"].contains(&name);
                if own.iter().any(|(name, _)| is_dataset(name)) {
                    found.push(folder.clone());
                }
            } else if is_dir {
                let path = DiskPath::of(&folder).child(&name);
                folders.extend(RelPath::stored(path.as_str()));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether the last process stopped cleanly.
pub(crate) fn is_clean<D: Disk>(disk: &D) -> Result<bool> {
    Ok(matches!(read_text(disk, &own("clean")), Ok(Some(_))))
}

/// Marks a clean stop, durably.
pub(crate) fn mark_clean<D: Disk>(disk: &D, serial: u64) -> Result<()> {
    write_text(disk, &own("clean"), &folder(), &temporary(serial), "zazen clean 1\n")
}

/// Removes the mark, durably, before the first change.
pub(crate) fn unmark_clean<D: Disk>(disk: &D) -> Result<()> {
    crate::own_file::ignore_absent(disk.remove(&own("clean")))?;
    disk.sync_dir(&folder())
}
