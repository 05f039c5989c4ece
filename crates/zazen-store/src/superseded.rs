//! Copies on a disk that took no changes when a newer copy went to another disk.
//!
//! Such a disk still has the old copy in its log. The newer copy may be evicted, and the daemon may
//! restart, before that disk takes changes again. Then the old copy would be the only one.
//!
//! Invariants: before a newer copy is committed, its own disk says durably, in the text
//! `superseded` of its root, of which cache and dataset old copies may be left. From then on the
//! old copy counts nowhere. A disk that comes back loses its old copies before the texts forget
//! them. A cache of one disk has no such text.
//!
//! A text that cannot be read may have named any copy on any other disk, so none of them counts.
//! Its file is kept aside before anything is written in its place. From then on, also over
//! restarts, the disk's text is taken to name every cache that it does not know.

use crate::own_file::{ignore_absent, quote, read_text, set_aside, temporary, unquote, write_text};
use crate::room::on_disk;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_core::{Error, ErrorKind, RelPath, Result, RunSet};
use zazen_env::{Disk, DiskPath};

/// Datasets of one cache that a text names. Beyond this, it names the whole cache.
const DATASETS_MAX: usize = 1024;
/// Old copies that one call drops; others wait for the lock of the texts meanwhile.
const DROPS_MAX: usize = 1000;

/// See the module.
pub(crate) struct Superseded<D: Disk> {
    all: Vec<Arc<Store<D>>>,
    /// By disk and dataset: numbers whose copies there are old.
    void: Mutex<BTreeMap<(usize, RelPath), RunSet>>,
    /// Changes with `void`; 0: nothing was ever superseded.
    version: AtomicU64,
    /// Caches that served with one of these before, and do not now. They may have old copies of
    /// anything.
    away: BTreeSet<u128>,
    texts: Mutex<Texts>,
    /// A bit for each disk whose text may be [`Text::unread`].
    unread: AtomicU64,
}

struct Texts {
    /// What each disk's text says.
    of: Vec<Text>,
}

/// The text of one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Text {
    /// The caches that serve together with this one, or once did.
    with: BTreeSet<u128>,
    /// Of which caches and datasets old copies may be left. The root stands for all datasets.
    void: BTreeSet<(u128, RelPath)>,
    /// The disk's file could not be read, and is still in its place.
    unread: bool,
}

fn place() -> DiskPath {
    DiskPath::own(&RelPath::default(), "superseded")
}

impl Text {
    fn says(&self, node: u128, dataset: &RelPath) -> bool {
        self.void.contains(&(node, RelPath::default())) || self.void.contains(&(node, dataset.clone()))
    }

    fn add(&mut self, node: u128, dataset: &RelPath) {
        if self.void.iter().filter(|(of, _)| *of == node).count() >= DATASETS_MAX {
            self.void.retain(|(of, _)| *of != node);
            self.void.insert((node, RelPath::default()));
        } else {
            self.void.insert((node, dataset.clone()));
        }
    }

    fn print(&self) -> String {
        let with = self.with.iter().map(|node| format!("with {node:032x}\n"));
        let void = self.void.iter().map(|(node, of)| format!("void {node:032x} {}\n", quote(of.as_str())));
        format!("zazen superseded 1\n{}{}", with.collect::<String>(), void.collect::<String>())
    }

    fn parse(text: &str) -> Option<Text> {
        let mut parsed = Text::default();
        for line in text.strip_prefix("zazen superseded 1\n")?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let node = || u128::from_str_radix(words.get(1)?, 16).ok();
            match words[..] {
                ["with", _] => drop(parsed.with.insert(node()?)),
                ["void", _, of] => {
                    let of = unquote(of)?;
                    let of = if of.is_empty() { RelPath::default() } else { RelPath::stored(&of).ok()? };
                    parsed.void.insert((node()?, of));
                }
                _ => return None,
            }
        }
        Some(parsed)
    }

    /// The text of a disk; an empty one if there is none.
    fn read<D: Disk>(store: &Store<D>) -> Result<Text> {
        let Some(text) = read_text(store.disk(), &place())? else { return Ok(Text::default()) };
        let what = "superseded: its lines are not those of this release";
        let parsed = Text::parse(&text).ok_or_else(|| Error::new(ErrorKind::Corrupt, what))?;
        store.room().settle_own(0, on_disk(Text::bytes_of(&text)));
        Ok(parsed)
    }

    /// Whether a text of this disk could not be read, now or at an earlier start.
    fn was_lost<D: Disk>(&self, store: &Store<D>) -> bool {
        let aside = place().with_suffix(".aside-1");
        self.unread || store.disk().stat(&aside).map_or(true, |found| found.is_some())
    }

    fn bytes_of(printed: &str) -> u64 {
        crate::own_file::seal(printed).len() as u64
    }

    /// Puts this in the place of `old`, durably; what is there then.
    fn replace<D: Disk>(self, store: &Store<D>, old: &Text) -> Result<Text> {
        let _changing = store.changing()?;
        let (text, folder) = (self.print(), DiskPath::own_dir(&RelPath::default()));
        if old.unread {
            let why = Error::new(ErrorKind::Corrupt, "superseded: it could not be read");
            ignore_absent(set_aside(store.disk(), &place(), &why).map(drop))?;
            store.disk().sync_dir(&folder)?;
        }
        write_text(store.disk(), &place(), &folder, &temporary(store.serial()), &text)?;
        let is_counted = *old != Text::default() && !old.unread;
        let before = if is_counted { on_disk(Text::bytes_of(&old.print())) } else { 0 };
        store.room().settle_own(before, on_disk(Text::bytes_of(&text)));
        Ok(Text { unread: false, ..self })
    }
}

impl<D: Disk> Superseded<D> {
    /// Reads the texts of all disks and drops the old copies that they name.
    pub(crate) fn open(all: &[Arc<Store<D>>]) -> Superseded<D> {
        let here: BTreeSet<u128> = all.iter().map(|store| store.node()).collect();
        let (mut of, mut unread) = (Vec::new(), 0);
        for (at, store) in all.iter().enumerate() {
            of.push(Text::read(store).unwrap_or_else(|error| {
                tracing::error!("cache root {}: {error}", store.disk().root().display());
                unread |= 1 << at;
                Text { unread: true, ..Text::default() }
            }));
        }
        let away: BTreeSet<u128> =
            of.iter().flat_map(|text| &text.with).filter(|node| !here.contains(node)).copied().collect();
        for (text, store) in of.iter_mut().zip(all) {
            if text.was_lost(store) {
                let is_unknown = |node: &&u128| **node != store.node() && !text.with.contains(*node);
                let unknown: Vec<u128> = here.union(&away).filter(is_unknown).copied().collect();
                text.void.extend(unknown.into_iter().map(|node| (node, RelPath::default())));
            }
        }
        let this = Superseded {
            all: all.to_vec(),
            void: Mutex::default(),
            version: AtomicU64::new(0),
            away,
            texts: Mutex::new(Texts { of }),
            unread: AtomicU64::new(unread),
        };
        this.begin();
        this
    }

    fn begin(&self) {
        let named: BTreeSet<(u128, RelPath)> =
            self.texts().of.iter().flat_map(|text| text.void.clone()).collect();
        for (at, store) in self.all.iter().enumerate() {
            let of_this = named.iter().filter(|(node, _)| *node == store.node());
            let mut datasets: BTreeSet<RelPath> = BTreeSet::new();
            for (_, dataset) in of_this {
                match dataset.is_root() {
                    true => datasets.extend(store.datasets().into_iter().map(|one| one.dataset)),
                    false => drop(datasets.insert(dataset.clone())),
                }
            }
            for dataset in datasets {
                let (native, alien) = store.holdings(&dataset);
                let numbers = native.union(&alien);
                if !numbers.is_empty() {
                    tracing::info!(
                        "cache root {}: {} frames of dataset {dataset} may be older than what came to the \
                         other disks while this one took no changes; they are fetched again",
                        store.disk().root().display(),
                        numbers.len()
                    );
                    self.note(at, &dataset, &numbers);
                }
            }
        }
        self.drop_old_copies();
        // From now on each disk knows the others.
        let mut texts = self.texts();
        let together: BTreeSet<u128> = self.all.iter().map(|store| store.node()).collect();
        for (at, store) in self.all.iter().enumerate() {
            let mut with = self.away.clone();
            with.extend(together.iter().filter(|node| **node != store.node()));
            if texts.of[at].with != with {
                let new = Text { with, ..texts.of[at].clone() };
                texts.write(at, store, new);
            }
        }
    }

    fn texts(&self) -> MutexGuard<'_, Texts> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn void(&self) -> MutexGuard<'_, BTreeMap<(usize, RelPath), RunSet>> {
        self.void.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever other copies count; 0 if all do.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn note(&self, at: usize, dataset: &RelPath, numbers: &RunSet) {
        let mut void = self.void();
        let known = void.entry((at, dataset.clone())).or_default();
        *known = known.union(numbers);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the copy on disk `at` does not count.
    pub(crate) fn is_void(&self, at: usize, dataset: &RelPath, number: u64) -> bool {
        self.version() > 0
            && self.void().get(&(at, dataset.clone())).is_some_and(|numbers| numbers.contains(number))
    }

    /// The numbers of `dataset` whose copies on disk `at` do not count.
    pub(crate) fn void_numbers(&self, at: usize, dataset: &RelPath) -> Option<RunSet> {
        if self.version() == 0 {
            return None;
        }
        self.void().get(&(at, dataset.clone())).cloned()
    }

    /// From now on no copy of the frame counts that is on another disk than `at`. Fails if disk
    /// `at` cannot say so durably: then no newer copy may be committed there.
    pub(crate) fn supersede(&self, at: usize, dataset: &RelPath, number: u64) -> Result<()> {
        // Also copies that do not count already: perhaps only the texts of other disks say so.
        let is_old = |other: &usize| {
            *other != at && (self.all[*other].has(dataset, number) || self.is_void(*other, dataset, number))
        };
        let old: Vec<usize> = (0..self.all.len()).filter(is_old).collect();
        let is_unread = self.unread.load(Ordering::Acquire) & (1 << at) != 0;
        if old.is_empty() && self.away.is_empty() && !is_unread {
            return Ok(());
        }
        let mut texts = self.texts();
        let mut nodes = self.away.clone();
        nodes.extend(old.iter().map(|other| self.all[*other].node()));
        if let Some(new) = texts.with_void(at, &nodes, dataset) {
            texts.of[at] = new.replace(&self.all[at], &texts.of[at])?;
            // This disk may be lost, too. The others know as well, as far as they take changes.
            self.tell_others(&mut texts, at, &nodes, dataset);
        }
        self.unread.fetch_and(!(1 << at), Ordering::AcqRel);
        // Under the lock of the texts: nobody takes the lines away before.
        for other in old.into_iter().filter(|other| !self.is_void(*other, dataset, number)) {
            self.note(other, dataset, &RunSet::range(number, number));
        }
        Ok(())
    }

    /// The copy on disk `at` was to be dropped, and the disk did not take the change.
    pub(crate) fn could_not_drop(&self, at: usize, dataset: &RelPath, number: u64) {
        self.note(at, dataset, &RunSet::range(number, number));
        let nodes = BTreeSet::from([self.all[at].node()]);
        self.tell_others(&mut self.texts(), at, &nodes, dataset);
    }

    /// Writes down on all disks but `at` that these caches may have old copies of `dataset`.
    fn tell_others(&self, texts: &mut Texts, at: usize, nodes: &BTreeSet<u128>, dataset: &RelPath) {
        for (other, store) in self.all.iter().enumerate().filter(|(other, _)| *other != at) {
            let more = texts.with_void(other, nodes, dataset);
            if let Some(more) = more.filter(|_| store.takes_changes()) {
                texts.write(other, store, more);
            }
        }
    }

    /// Drops old copies from disks that take changes again. Once they are gone for good, the texts
    /// forget them.
    pub(crate) fn give_back(&self) {
        if self.version() > 0 {
            self.drop_old_copies();
        }
    }

    /// Drops [`DROPS_MAX`] of them at most.
    fn drop_old_copies(&self) {
        // One thread does it. Meanwhile the copies do not count, so nobody waits for it.
        let Ok(mut texts) = self.texts.try_lock() else { return };
        let mut more = DROPS_MAX;
        for (at, store) in self.all.iter().enumerate().filter(|(_, store)| store.takes_changes()) {
            let here: Vec<(RelPath, RunSet)> = {
                let void = self.void();
                let of_this = void.range((at, RelPath::default())..).take_while(|((disk, _), _)| *disk == at);
                of_this.map(|((_, dataset), numbers)| (dataset.clone(), numbers.clone())).collect()
            };
            for (dataset, numbers) in here {
                let mut dropped = RunSet::new();
                for number in numbers.iter().take(more) {
                    if let Err(error) = store.drop_frame(&dataset, number) {
                        tracing::debug!("old copies of dataset {dataset} stay where they are: {error}");
                        break;
                    }
                    dropped.insert(number);
                    more -= 1;
                }
                if !dropped.is_empty() {
                    self.forget(at, &dataset, &dropped);
                }
            }
            let is_left = |dataset: &RelPath| self.void_numbers(at, dataset).is_some();
            let node = store.node();
            let is_over = |(of, dataset): &(u128, RelPath)| {
                *of == node
                    && match dataset.is_root() {
                        true => !self.void().keys().any(|(disk, _)| *disk == at),
                        false => !is_left(dataset),
                    }
            };
            if !texts.of.iter().any(|text| text.void.iter().any(is_over)) || store.disk().sync_all().is_err()
            {
                continue;
            }
            for (other, of) in self.all.iter().enumerate() {
                let mut new = texts.of[other].clone();
                new.void.retain(|line| !is_over(line));
                if new != texts.of[other] {
                    texts.write(other, of, new);
                }
            }
        }
    }

    /// These numbers have no copy on disk `at` any more.
    fn forget(&self, at: usize, dataset: &RelPath, numbers: &RunSet) {
        let mut void = self.void();
        let key = (at, dataset.clone());
        if let Some(known) = void.get_mut(&key) {
            *known = known.difference(numbers);
            if known.is_empty() {
                void.remove(&key);
            }
        }
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

impl Texts {
    /// The text of disk `at` with `dataset` of these caches; `None` if it says so already.
    fn with_void(&self, at: usize, nodes: &BTreeSet<u128>, dataset: &RelPath) -> Option<Text> {
        let missing: Vec<u128> =
            nodes.iter().copied().filter(|node| !self.of[at].says(*node, dataset)).collect();
        if missing.is_empty() && !self.of[at].unread {
            return None;
        }
        let mut new = self.of[at].clone();
        missing.iter().for_each(|node| new.add(*node, dataset));
        Some(new)
    }

    /// Replaces the text of disk `at`. If that fails, the old one stays, which names more.
    fn write<D: Disk>(&mut self, at: usize, store: &Store<D>, new: Text) {
        match new.replace(store, &self.of[at]) {
            Ok(new) => self.of[at] = new,
            Err(error) => tracing::warn!(
                "cache root {}: it cannot be noted which copies on other disks are old: {error}",
                store.disk().root().display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_prints_and_parses_back() {
        let path = |text: &str| RelPath::stored(text).unwrap();
        let text = Text {
            with: BTreeSet::from([7, u128::MAX]),
            void: BTreeSet::from([(7, RelPath::default()), (8, path("a b/.zazen@f-{n}"))]),
            unread: false,
        };
        let printed = "zazen superseded 1\n\
                       with 00000000000000000000000000000007\n\
                       with ffffffffffffffffffffffffffffffff\n\
                       void 00000000000000000000000000000007 %\n\
                       void 00000000000000000000000000000008 a%20b/.zazen@f-{n}\n";
        assert_eq!(text.print(), printed);
        assert_eq!(Text::parse(printed), Some(text));
        for wrong in
            ["", "zazen superseded 2\n", "zazen superseded 1\nvoid 7\n", "zazen superseded 1\nwith x\n"]
        {
            assert_eq!(Text::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_text_of_too_many_datasets_names_the_whole_cache() {
        let mut text = Text::default();
        for number in 0..DATASETS_MAX + 1 {
            text.add(7, &RelPath::new(&format!("d{number}")).unwrap());
        }
        assert_eq!(text.void, BTreeSet::from([(7, RelPath::default())]));
        assert!(text.says(7, &RelPath::new("any").unwrap()) && !text.says(8, &RelPath::new("any").unwrap()));
    }
}
