//! What users and datasets may take of this node's disks, and what they have.

use crate::backing_roots::BackingRoots;
use crate::node::Node;
use crate::quota_settings::QuotaSettings;
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::quota::{Quotas, Scope};

/// Users and folders that are told of, those with most bytes.
const ROWS_MAX: usize = 64;

/// A user or a folder, and what it has of its bound, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose.
    pub whose: Whose,
    /// In use, on all disks.
    pub used: u64,
    /// The bound, on all disks; `None`: none.
    pub budget: Option<u64>,
}

/// Who has a bound.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// A user.
    User(u32),
    /// All datasets at and beneath this path.
    Folder(String),
}

/// The bounds of `settings`, with paths as the cache has them.
pub fn of(settings: &QuotaSettings, roots: &BackingRoots) -> Result<Quotas> {
    let mut folders = BTreeMap::new();
    for (path, bytes) in &settings.folders {
        let located = roots
            .locate(path)
            .map_err(|error| Error::new(ErrorKind::Config, error.to_string()).within("dataset_budget"))?;
        folders.insert(located.dataset, *bytes);
    }
    Ok(Quotas { user: settings.user, users: settings.users.clone(), dataset: settings.dataset, folders })
}

/// Gives the disks the bounds of `settings`.
pub fn apply(node: &Node, settings: &QuotaSettings) -> Result<()> {
    let quotas = of(settings, &node.roots)?;
    node.disks.serving.iter().for_each(|disk| disk.store.set_quotas(quotas.clone()));
    Ok(())
}

/// What users and bounded folders have, those first that have most; nothing where nothing is
/// bounded.
pub fn report(node: &Node) -> Vec<Row> {
    let config = node.config();
    let settings = &config.quotas;
    if *settings == QuotaSettings::default() {
        return Vec::new();
    }
    let disks = node.disks.serving.len() as u64;
    let whole = |bytes: u64| (bytes != u64::MAX).then(|| bytes.saturating_mul(disks));
    let mut used: BTreeMap<Whose, u64> = BTreeMap::new();
    for disk in &node.disks.serving {
        for (uid, taken) in disk.store.users() {
            *used.entry(Whose::User(uid)).or_default() += taken.used;
        }
        for path in settings.folders.keys() {
            let Ok(located) = node.roots.locate(path) else { continue };
            let taken = disk.store.taken(&Scope::Folder(located.dataset));
            *used.entry(Whose::Folder(path.clone())).or_default() += taken.used;
        }
    }
    let budget = |whose: &Whose| match whose {
        Whose::User(uid) => settings.users.get(uid).copied().or(settings.user),
        Whose::Folder(path) => settings.folders.get(path).copied(),
    };
    let row = |(whose, used): (Whose, u64)| {
        let budget = budget(&whose).and_then(whole);
        Row { whose, used, budget }
    };
    let mut rows: Vec<Row> = used.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.used));
    rows.truncate(ROWS_MAX);
    rows
}
