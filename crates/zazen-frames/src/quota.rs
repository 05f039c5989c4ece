//! What one user, and the datasets beneath one folder, may take of a disk of the cache.
//!
//! Invariant: a put that would take a user or a folder beyond its bound makes room among the
//! datasets of that user or folder only, or it is refused; others lose nothing by it.

use crate::room::Account;
use std::collections::BTreeMap;
use zazen_core::RelPath;

/// Whose bytes a bound is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole disk of the cache.
    Cache,
    /// Frames whose sources this user owns.
    User(u32),
    /// All datasets at and beneath this path of the cache.
    Folder(RelPath),
}

/// The bounds that an operator has set, in bytes. None: no bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Of each user that has no bound of its own.
    pub user: Option<u64>,
    /// Of these users.
    pub users: BTreeMap<u32, u64>,
    /// Of each dataset's directory that has no bound of its own.
    pub dataset: Option<u64>,
    /// Of all datasets at and beneath these paths of the cache, together.
    pub folders: BTreeMap<RelPath, u64>,
}

/// Why bytes cannot be reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Short {
    /// So many bytes are missing.
    pub bytes: u64,
    /// Whose bound that is.
    pub scope: Scope,
    /// The bound.
    pub limit: u64,
}

impl Short {
    /// `bytes` are missing in a cache of `budget` bytes.
    pub fn of_cache(bytes: u64, budget: u64) -> Short {
        Short { bytes, scope: Scope::Cache, limit: budget }
    }
}

/// Who asks for room: the owner of a frame's source, and its series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who owns the source.
    pub uid: u32,
    /// The path of the series.
    pub series: RelPath,
}

impl Quotas {
    /// Whether there are no bounds.
    pub fn is_none(&self) -> bool {
        *self == Quotas::default()
    }

    /// The bounds that hold for a frame, the narrow ones first: of datasets, then of users.
    pub fn bounds(&self, claim: &Claim) -> Vec<(Scope, u64)> {
        let directory = directory_of(&claim.series);
        let mut bounds = Vec::new();
        if let Some(bytes) = self.dataset.filter(|_| !self.folders.contains_key(&directory)) {
            bounds.push((Scope::Folder(directory), bytes));
        }
        let named = self.folders.iter().filter(|(folder, _)| is_beneath(claim.series.as_str(), folder));
        bounds.extend(named.map(|(folder, bytes)| (Scope::Folder(folder.clone()), *bytes)));
        if let Some(bytes) = self.users.get(&claim.uid).copied().or(self.user) {
            bounds.push((Scope::User(claim.uid), bytes));
        }
        bounds
    }
}

/// The directory of a series.
fn directory_of(series: &RelPath) -> RelPath {
    series.series_parts().map_or_else(|| series.clone(), |(directory, _)| directory)
}

/// Whether `path` is `folder` or lies beneath it.
pub fn is_beneath(path: &str, folder: &RelPath) -> bool {
    folder.is_root()
        || path.strip_prefix(folder.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Bytes in use, and bytes promised to puts under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// In use.
    pub used: u64,
    /// Promised.
    pub promised: u64,
}

/// The account of one disk, and what users and series have of it.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// The account of the whole.
    pub whole: Account,
    /// The bounds of users and folders.
    pub quotas: Quotas,
    users: BTreeMap<u32, Taken>,
    series: BTreeMap<String, Taken>,
}

impl Ledger {
    /// Of a disk with this account, without bounds of users and folders.
    pub fn new(whole: Account) -> Ledger {
        Ledger { whole, ..Ledger::default() }
    }

    /// Reserves `bytes` for `claim` where the file system has `free`; else says what is missing,
    /// and by whose bound. `None`: room of nobody's, within the whole only.
    pub fn reserve(&mut self, bytes: u64, free: u64, claim: Option<&Claim>) -> Result<(), Short> {
        if let Some(claim) = claim.filter(|_| !self.quotas.is_none()) {
            for (scope, limit) in self.quotas.bounds(claim) {
                let Taken { used, promised } = self.taken(&scope);
                let wanted = used.saturating_add(promised).saturating_add(bytes);
                if wanted > limit {
                    return Err(Short { bytes: wanted - limit, scope, limit });
                }
            }
        }
        let budget = self.whole.budget;
        self.whole.reserve(bytes, free).map_err(|short| Short::of_cache(short, budget))?;
        if let Some(claim) = claim {
            self.users.entry(claim.uid).or_default().promised += bytes;
            self.series.entry(claim.series.as_str().to_owned()).or_default().promised += bytes;
        }
        Ok(())
    }

    /// Gives back `bytes` that were reserved for `claim`, `landed` of them in an unfinished file.
    pub fn release(&mut self, bytes: u64, landed: u64, claim: Option<&Claim>) {
        self.whole.release(bytes, landed);
        let Some(claim) = claim else { return };
        let less = |taken: &mut Taken| {
            taken.promised = taken.promised.saturating_sub(bytes);
            *taken == Taken::default()
        };
        if self.users.get_mut(&claim.uid).is_some_and(less) {
            self.users.remove(&claim.uid);
        }
        if self.series.get_mut(claim.series.as_str()).is_some_and(less) {
            self.series.remove(claim.series.as_str());
        }
    }

    /// A series that took `before` bytes takes `after` now; of that, the users own `owned` more or
    /// fewer bytes.
    pub fn settle(&mut self, series: &RelPath, before: u64, after: u64, owned: &[(u32, i64)]) {
        self.whole.settle(before, after);
        if before != after {
            let taken = self.series.entry(series.as_str().to_owned()).or_default();
            taken.used = taken.used.saturating_add(after).saturating_sub(before);
            if *taken == Taken::default() {
                self.series.remove(series.as_str());
            }
        }
        for &(uid, bytes) in owned.iter().filter(|(_, bytes)| *bytes != 0) {
            let taken = self.users.entry(uid).or_default();
            taken.used = taken.used.saturating_add_signed(bytes);
            if *taken == Taken::default() {
                self.users.remove(&uid);
            }
        }
    }

    /// What a scope has now.
    pub fn taken(&self, scope: &Scope) -> Taken {
        match scope {
            Scope::Cache => Taken { used: self.whole.used, promised: self.whole.reserved },
            Scope::User(uid) => self.users.get(uid).copied().unwrap_or_default(),
            Scope::Folder(folder) => {
                let beneath = self.series.range(folder.as_str().to_owned()..);
                let beneath = beneath.take_while(|(path, _)| path.starts_with(folder.as_str()));
                beneath.filter(|(path, _)| is_beneath(path, folder)).fold(
                    Taken::default(),
                    |sum, (_, taken)| Taken {
                        used: sum.used + taken.used,
                        promised: sum.promised + taken.promised,
                    },
                )
            }
        }
    }

    /// Users that have something, with it.
    pub fn users(&self) -> impl Iterator<Item = (u32, Taken)> + '_ {
        self.users.iter().map(|(uid, taken)| (*uid, *taken))
    }
}

/// Who owns how many bytes of a series' frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners(Vec<(u32, u64)>);

impl Owners {
    /// `uid` owns `bytes` more, or fewer.
    pub fn change(&mut self, uid: u32, bytes: i64) {
        match self.0.iter_mut().find(|(owner, _)| *owner == uid) {
            Some((_, owned)) => *owned = owned.saturating_add_signed(bytes),
            None => self.0.push((uid, 0_u64.saturating_add_signed(bytes))),
        }
        self.0.retain(|(_, owned)| *owned > 0);
    }

    /// Who owns most of it, and how much; the first of several.
    pub fn main(&self) -> Option<(u32, u64)> {
        self.0.iter().copied().max_by_key(|(uid, bytes)| (*bytes, std::cmp::Reverse(*uid)))
    }

    /// All owners, with their bytes.
    pub fn all(&self) -> &[(u32, u64)] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    fn claim(uid: u32, directory: &str) -> Claim {
        let number = zazen_core::FrameNo::new(7).unwrap();
        let series = zazen_core::Series::of_file("f-7.bin", number).unwrap();
        Claim { uid, series: path(directory).series(&series).unwrap() }
    }

    fn quotas() -> Quotas {
        Quotas {
            user: Some(100),
            users: [(7, 30)].into(),
            dataset: Some(50),
            folders: [(path("hot"), 90), (path("hot/a"), 80)].into(),
        }
    }

    #[test]
    fn the_narrow_bound_stands_for_the_general_one() {
        let bounds = |uid, directory: &str| quotas().bounds(&claim(uid, directory));
        let folder = |text: &str, bytes| (Scope::Folder(path(text)), bytes);
        assert_eq!(bounds(1, "cold"), [folder("cold", 50), (Scope::User(1), 100)]);
        assert_eq!(bounds(7, "hot/a"), [folder("hot", 90), folder("hot/a", 80), (Scope::User(7), 30)]);
        assert_eq!(bounds(7, "hot/b"), [folder("hot/b", 50), folder("hot", 90), (Scope::User(7), 30)]);
        assert_eq!(bounds(1, "hotter")[0], folder("hotter", 50));
        assert_eq!(Quotas::default().bounds(&claim(1, "cold")), []);
    }

    #[test]
    fn bounds_are_kept_with_what_is_promised() {
        let whole = Account { budget: 1000, ..Account::default() };
        let mut ledger = Ledger { whole, quotas: quotas(), ..Ledger::default() };
        let (one, other) = (claim(1, "x"), claim(2, "x"));
        assert_eq!(ledger.reserve(40, 1000, Some(&one)), Ok(()));
        let short = Short { bytes: 10, scope: Scope::Folder(path("x")), limit: 50 };
        assert_eq!(ledger.reserve(20, 1000, Some(&other)), Err(short), "the dataset, whoever asks");
        ledger.settle(&one.series, 0, 40, &[(1, 40)]);
        ledger.release(40, 0, Some(&one));
        assert_eq!(ledger.taken(&Scope::User(1)), Taken { used: 40, promised: 0 });
        assert_eq!(ledger.reserve(10, 1000, Some(&other)), Ok(()));
        ledger.release(10, 0, Some(&other));
        let short = Short { bytes: 5, scope: Scope::User(7), limit: 30 };
        assert_eq!(ledger.reserve(35, 1000, Some(&claim(7, "y"))), Err(short));
        let short = Short { bytes: 1, scope: Scope::Cache, limit: 1000 };
        assert_eq!(ledger.reserve(961, 1000, None), Err(short), "the whole holds for all");
        ledger.settle(&one.series, 40, 0, &[(1, -40)]);
        assert_eq!((ledger.users().count(), ledger.series.len()), (0, 0), "nothing is remembered");
    }

    #[test]
    fn most_bytes_make_an_owner() {
        let mut owners = Owners::default();
        assert_eq!(owners.main(), None);
        owners.change(5, 10);
        owners.change(6, 11);
        assert_eq!(owners.main(), Some((6, 11)));
        owners.change(6, -11);
        assert_eq!(owners.all(), [(5, 10)]);
    }

    proptest! {
        /// However puts come and go, no bound is exceeded, and the sums are those of the frames.
        #[test]
        fn no_bound_is_exceeded(steps in prop::collection::vec(
            (0u8..3, 0u32..3, 0usize..4, 1u64..60, any::<prop::sample::Index>()), 0..80,
        )) {
            let directories = ["hot", "hot/a", "hot/a/b", "cold"];
            let quotas = Quotas { users: [(1, 30)].into(), ..quotas() };
            let whole = Account { budget: 150, ..Account::default() };
            let mut ledger = Ledger { whole, quotas: quotas.clone(), ..Ledger::default() };
            let mut promised: Vec<(Claim, u64)> = Vec::new();
            let mut frames: Vec<(Claim, u64)> = Vec::new();
            for (what, uid, at, bytes, index) in steps {
                match what {
                    0 => {
                        let claim = claim(uid, directories[at]);
                        if ledger.reserve(bytes, 1000, Some(&claim)).is_ok() {
                            promised.push((claim, bytes));
                        }
                    }
                    1 if !promised.is_empty() => {
                        let (claim, bytes) = promised.remove(index.index(promised.len()));
                        ledger.release(bytes, 0, Some(&claim));
                        let before = ledger.series.get(claim.series.as_str()).map_or(0, |taken| taken.used);
                        ledger.settle(&claim.series, before, before + bytes, &[(claim.uid, bytes as i64)]);
                        frames.push((claim, bytes));
                    }
                    2 if !frames.is_empty() => {
                        let (claim, bytes) = frames.remove(index.index(frames.len()));
                        let before = ledger.series[claim.series.as_str()].used;
                        ledger.settle(&claim.series, before, before - bytes, &[(claim.uid, -(bytes as i64))]);
                    }
                    _ => {}
                }
                let sum = |of: &[(Claim, u64)], is: &dyn Fn(&Claim) -> bool| -> u64 {
                    of.iter().filter(|(claim, _)| is(claim)).map(|(_, bytes)| bytes).sum()
                };
                for uid in 0..3 {
                    let is = |claim: &Claim| claim.uid == uid;
                    let taken = ledger.taken(&Scope::User(uid));
                    prop_assert_eq!((taken.used, taken.promised), (sum(&frames, &is), sum(&promised, &is)));
                    let bound = if uid == 1 { 30 } else { 100 };
                    prop_assert!(taken.used + taken.promised <= bound);
                }
                for (folder, bytes) in &quotas.folders {
                    let is = |claim: &Claim| is_beneath(claim.series.as_str(), folder);
                    let taken = ledger.taken(&Scope::Folder(folder.clone()));
                    prop_assert_eq!((taken.used, taken.promised), (sum(&frames, &is), sum(&promised, &is)));
                    prop_assert!(taken.used + taken.promised <= *bytes);
                }
                prop_assert!(ledger.whole.used + ledger.whole.reserved <= 150);
            }
        }
    }
}
