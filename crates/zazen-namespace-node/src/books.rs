//! The books of quotas: limits, what is used, and what was made since that was added up.

use crate::handles::lock;
use crate::limit::{Amount, Limit, Of};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zazen_namespace::service::QuotaView;
use zazen_namespace::{Errno, InodeId};

/// What is made within this time is remembered together.
const GRAIN: Duration = Duration::from_millis(50);
/// What was made earlier is remembered together if it was made within this part of its age: so
/// there are few sums, however long no walk succeeds.
const PART_OF_AGE: u32 = 16;
/// Directories whose parent is remembered, and files whose directory is.
pub(crate) const REMEMBERED_MAX: usize = 1 << 20;

/// What a daemon knows of quotas.
#[derive(Default)]
pub(crate) struct Quotas {
    /// Whether there is any.
    any: AtomicBool,
    /// Counts how often other users or directories came to have limits; 0 before the first look.
    version: AtomicU64,
    pub(crate) books: Mutex<Books>,
    /// The parents of directories.
    pub(crate) above: Mutex<HashMap<InodeId, (InodeId, Instant)>>,
    /// The directories that files were found in.
    pub(crate) directory_of: Mutex<HashMap<InodeId, InodeId>>,
}

/// Limits and sums.
#[derive(Default)]
pub(crate) struct Books {
    pub(crate) limits: BTreeMap<Of, Limit>,
    pub(crate) used: HashMap<Of, Amount>,
    /// When the walk began that found `used`; `None` before the first.
    pub(crate) walked: Option<Instant>,
    pub(crate) took: Duration,
    /// What this node's callers made, oldest first.
    made: VecDeque<Made>,
    /// Inodes that operations under way may make.
    asked: HashMap<Of, u64>,
}

/// Inodes that an operation under way may make; they count until it ends.
pub(crate) struct Reserved<'a> {
    quotas: &'a Quotas,
    of: Vec<Of>,
    files: Cell<u64>,
}

impl Reserved<'_> {
    /// The operation has ended, and has made so many.
    pub(crate) fn made(&self, files: u64) {
        if !self.of.is_empty() {
            let mut books = lock(&self.quotas.books);
            books.end(&self.of, self.files.replace(0));
            books.note(Instant::now(), &self.of, Amount { bytes: 0, files });
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let files = self.files.replace(0);
        if files > 0 {
            lock(&self.quotas.books).end(&self.of, files);
        }
    }
}

/// What was made from one time to another.
struct Made {
    first: Instant,
    last: Instant,
    amounts: HashMap<Of, Amount>,
}

impl Made {
    /// What was made right after it.
    fn add(&mut self, later: Made) {
        self.last = later.last;
        for (of, amount) in later.amounts {
            self.amounts.entry(of).or_default().add(amount);
        }
    }
}

impl Books {
    /// Adds up what was made long ago: no walk has succeeded since. Nothing is forgotten.
    pub(crate) fn merge_old(&mut self, now: Instant) {
        let mut merged: VecDeque<Made> = VecDeque::with_capacity(self.made.len());
        for made in self.made.drain(..) {
            let together = |before: &&mut Made| {
                let age = now.saturating_duration_since(before.first);
                made.last.saturating_duration_since(before.first) <= age / PART_OF_AGE
            };
            match merged.back_mut().filter(together) {
                Some(before) => before.add(made),
                None => merged.push_back(made),
            }
        }
        self.made = merged;
    }

    /// What is used, as far as this node knows.
    pub(crate) fn used(&self, of: Of) -> Amount {
        let mut used = self.used.get(&of).copied().unwrap_or_default();
        used.add(Amount { bytes: 0, files: self.asked.get(&of).copied().unwrap_or(0) });
        self.made.iter().filter_map(|made| made.amounts.get(&of)).for_each(|made| used.add(*made));
        used
    }

    /// `EDQUOT` if so much more would be beyond a limit. Before the first walk nothing is refused.
    fn check(&self, of: &[Of], more: Amount) -> Result<(), Errno> {
        let goes_beyond =
            |most: u64, used: u64, more: u64| most > 0 && more > 0 && used.saturating_add(more) > most;
        let is_full = |of: &Of| {
            let Some(limit) = self.limits.get(of) else { return false };
            let used = self.used(*of);
            goes_beyond(limit.most.bytes, used.bytes, more.bytes)
                || goes_beyond(limit.most.files, used.files, more.files)
        };
        if self.walked.is_some() && of.iter().any(is_full) { Err(Errno::EDQUOT) } else { Ok(()) }
    }

    /// Operations that might have made so many inodes have ended.
    fn end(&mut self, of: &[Of], files: u64) {
        for of in of {
            if let Some(asked) = self.asked.get_mut(of) {
                *asked = asked.saturating_sub(files);
                if *asked == 0 {
                    self.asked.remove(of);
                }
            }
        }
    }

    /// There are no limits any more.
    fn clear(&mut self) {
        let asked = std::mem::take(&mut self.asked);
        *self = Books { asked, ..Books::default() };
    }

    fn note(&mut self, now: Instant, of: &[Of], more: Amount) {
        if of.is_empty() {
            return;
        }
        if self.made.back().is_none_or(|made| now.duration_since(made.first) > GRAIN) {
            self.made.push_back(Made { first: now, last: now, amounts: HashMap::new() });
        }
        if let Some(made) = self.made.back_mut() {
            made.last = now;
            of.iter().for_each(|of| made.amounts.entry(*of).or_default().add(more));
        }
    }

    /// A walk that began at `began` found this: what was made before is in it. What was made since
    /// may be in it, too, and counts: no limit is exceeded, but some of it may count twice until
    /// the next walk.
    pub(crate) fn found(&mut self, began: Instant, took: Duration, used: HashMap<Of, Amount>) {
        self.used = used;
        self.walked = Some(began);
        self.took = took;
        self.made.retain(|made| made.last >= began);
    }

    pub(crate) fn views(&self) -> Vec<QuotaView> {
        let view = |(of, limit): (&Of, &Limit)| {
            let used = self.used(*of);
            let (user, directory) = match of {
                Of::User(uid) => (Some(*uid), InodeId(0)),
                Of::Directory(id) => (None, *id),
            };
            QuotaView {
                user,
                directory,
                path: limit.path.clone(),
                bytes_max: limit.most.bytes,
                files_max: limit.most.files,
                bytes: used.bytes,
                files: used.files,
                counted: self.used.contains_key(of),
            }
        };
        self.limits.iter().map(view).collect()
    }
}

/// The sums that another node tells. What it has not counted yet is not 0.
pub(crate) fn sums(told: &[QuotaView]) -> HashMap<Of, Amount> {
    let of = |quota: &QuotaView| quota.user.map_or(Of::Directory(quota.directory), Of::User);
    let amount = |quota: &QuotaView| Amount { bytes: quota.bytes, files: quota.files };
    told.iter().filter(|quota| quota.counted).map(|quota| (of(quota), amount(quota))).collect()
}

impl Quotas {
    /// Whether there are quotas at all.
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Which users and directories have limits: another version, perhaps others. 0: not known yet.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The limits, as the metadata has them now.
    pub(crate) fn learn(&self, limits: &BTreeMap<Of, Limit>) {
        let mut books = lock(&self.books);
        let is_same = books.limits.keys().eq(limits.keys());
        books.limits.clone_from(limits);
        if limits.is_empty() {
            books.clear();
        }
        self.any.store(!limits.is_empty(), Ordering::Relaxed);
        // Last: whoever sees this version finds its limits.
        if !is_same || self.version() == 0 {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Files were found in a directory.
    pub(crate) fn found_in(&self, directory: InodeId, files: impl IntoIterator<Item = InodeId>) {
        if !self.is_any() {
            return;
        }
        let mut known = lock(&self.directory_of);
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.extend(files.into_iter().map(|file| (file, directory)));
    }

    /// The directory that the file was found in last, if one is remembered.
    pub(crate) fn found(&self, file: InodeId) -> Option<InodeId> {
        lock(&self.directory_of).get(&file).copied()
    }

    pub(crate) fn has_directories(&self) -> bool {
        lock(&self.books).limits.keys().any(|of| matches!(of, Of::Directory(_)))
    }

    /// Counts inodes that an operation may make. `EDQUOT` if so many more would be beyond a limit.
    pub(crate) fn reserve(&self, of: Vec<Of>, files: u64) -> Result<Reserved<'_>, (Errno, Vec<Of>)> {
        if !of.is_empty() {
            let mut books = lock(&self.books);
            if let Err(full) = books.check(&of, Amount { bytes: 0, files }) {
                return Err((full, of));
            }
            of.iter().for_each(|of| *books.asked.entry(*of).or_default() += files);
        }
        Ok(Reserved { quotas: self, files: Cell::new(if of.is_empty() { 0 } else { files }), of })
    }

    /// Counts what an operation makes, if it makes anything, without asking whether there is room.
    pub(crate) fn not_reserved(&self, of: Vec<Of>) -> Reserved<'_> {
        Reserved { quotas: self, of, files: Cell::new(0) }
    }

    /// Whether there is room.
    pub(crate) fn check(&self, of: &[Of], bytes: u64) -> Result<(), Errno> {
        if of.is_empty() { Ok(()) } else { lock(&self.books).check(of, Amount { bytes, files: 0 }) }
    }

    /// Checks, and counts if there is room.
    pub(crate) fn take(&self, of: &[Of], bytes: u64) -> Result<(), Errno> {
        if of.is_empty() || bytes == 0 {
            return Ok(());
        }
        let more = Amount { bytes, files: 0 };
        let mut books = lock(&self.books);
        books.check(of, more)?;
        books.note(Instant::now(), of, more);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Of = Of::User(7);
    const DIRECTORY: Of = Of::Directory(InodeId(99));

    fn amount(bytes: u64, files: u64) -> Amount {
        Amount { bytes, files }
    }

    fn books(limits: &[(Of, Amount)]) -> Books {
        let limit = |(of, most): &(Of, Amount)| (*of, Limit { most: *most, path: "/a b".into() });
        Books { limits: limits.iter().map(limit).collect(), ..Books::default() }
    }

    #[test]
    fn what_goes_beyond_a_limit_is_refused_and_0_is_no_limit() {
        let mut books = books(&[(USER, amount(100, 0)), (DIRECTORY, amount(0, 3))]);
        let both = [USER, DIRECTORY];
        assert_eq!(books.check(&both, amount(500, 500)), Ok(()), "nothing is known yet");
        let now = Instant::now();
        books.found(now, Duration::ZERO, HashMap::from([(USER, amount(60, 9)), (DIRECTORY, amount(1, 1))]));
        assert_eq!(books.check(&both, amount(40, 2)), Ok(()));
        assert_eq!(books.check(&both, amount(41, 0)), Err(Errno::EDQUOT));
        assert_eq!(books.check(&both, amount(0, 3)), Err(Errno::EDQUOT));
        assert_eq!(books.check(&[USER], amount(0, 1 << 40)), Ok(()));
        books.note(now, &both, amount(30, 2));
        assert_eq!(books.check(&both, amount(10, 0)), Ok(()));
        assert_eq!(books.check(&both, amount(11, 0)), Err(Errno::EDQUOT));
        assert_eq!(books.check(&[DIRECTORY], amount(0, 1)), Err(Errno::EDQUOT));
        // What is used already may be beyond a limit that was set later: what needs nothing goes
        // on.
        assert_eq!(books.check(&[DIRECTORY], amount(1 << 40, 0)), Ok(()));
        assert_eq!(books.check(&[Of::User(8)], amount(u64::MAX, u64::MAX)), Ok(()));
    }

    #[test]
    fn what_operations_under_way_may_make_counts_until_they_end() {
        let quotas = Quotas::default();
        *lock(&quotas.books) = books(&[(USER, amount(0, 10)), (DIRECTORY, amount(0, 100))]);
        lock(&quotas.books).found(Instant::now(), Duration::ZERO, HashMap::from([(USER, amount(0, 4))]));
        let both = || vec![USER, DIRECTORY];
        let four = quotas.reserve(both(), 4).unwrap();
        let two = quotas.reserve(both(), 2).unwrap();
        assert_eq!(quotas.reserve(both(), 1).err(), Some((Errno::EDQUOT, both())));
        assert!(quotas.reserve(vec![DIRECTORY], 94).is_ok(), "ended at once");
        // One of the four was made, and the two were not.
        four.made(1);
        drop(two);
        assert_eq!(lock(&quotas.books).used(USER), amount(0, 5));
        drop(four);
        assert_eq!(lock(&quotas.books).used(USER), amount(0, 5));
        let five = quotas.reserve(both(), 5).unwrap();
        // Quotas that end and begin again meanwhile.
        lock(&quotas.books).clear();
        assert_eq!(lock(&quotas.books).used(USER), amount(0, 5));
        drop(five);
        assert_eq!(lock(&quotas.books).used(USER), amount(0, 0));
        // What cannot be reserved counts all the same.
        quotas.not_reserved(both()).made(3);
        assert_eq!(lock(&quotas.books).used(DIRECTORY), amount(0, 3));
    }

    #[test]
    fn a_version_says_who_has_limits() {
        let quotas = Quotas::default();
        let limits = |of: &[(Of, Amount)]| books(of).limits;
        assert_eq!((quotas.version(), quotas.is_any()), (0, false));
        quotas.learn(&limits(&[]));
        assert_eq!((quotas.version(), quotas.is_any()), (1, false), "it is known that there are none");
        quotas.learn(&limits(&[]));
        assert_eq!(quotas.version(), 1);
        quotas.learn(&limits(&[(USER, amount(1, 0))]));
        assert_eq!((quotas.version(), quotas.is_any()), (2, true));
        quotas.learn(&limits(&[(USER, amount(2, 0))]));
        assert_eq!(quotas.version(), 2, "the same user has another limit");
        quotas.learn(&limits(&[(DIRECTORY, amount(2, 0))]));
        assert_eq!(quotas.version(), 3);
        quotas.learn(&limits(&[]));
        assert_eq!((quotas.version(), quotas.is_any()), (4, false));
    }

    #[test]
    fn what_was_made_before_a_walk_is_in_its_sum() {
        let mut books = books(&[(USER, amount(100, 0))]);
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        books.found(at(0), Duration::ZERO, HashMap::new());
        books.note(at(1000), &[USER], amount(10, 1));
        books.note(at(5000), &[USER], amount(20, 1));
        assert_eq!(books.used(USER), amount(30, 2));
        books.found(at(3000), Duration::ZERO, HashMap::from([(USER, amount(10, 1))]));
        assert_eq!(books.used(USER), amount(30, 2), "the first is in the sum, the second is not");
        books.found(at(9000), Duration::ZERO, HashMap::from([(USER, amount(30, 2))]));
        assert_eq!(books.used(USER), amount(30, 2));
        assert!(books.made.is_empty());
    }

    #[test]
    fn a_quota_that_is_set_during_a_walk_is_not_counted_before_the_next() {
        let now = Instant::now();
        let mut walker = books(&[(USER, amount(100, 0))]);
        let before = walker.views();
        assert!(!before[0].counted && sums(&before).is_empty());
        walker.limits.extend(books(&[(DIRECTORY, amount(100, 0))]).limits);
        // The walk began before there was the second limit.
        walker.found(now, Duration::ZERO, HashMap::from([(USER, amount(70, 3))]));
        walker.note(now, &[USER, DIRECTORY], amount(5, 0));
        let counted: Vec<_> = walker.views().iter().map(|view| view.counted).collect();
        assert_eq!(counted, [true, false]);
        let mut other = books(&[(USER, amount(100, 0)), (DIRECTORY, amount(100, 0))]);
        other.found(now, Duration::ZERO, sums(&walker.views()));
        assert_eq!(other.used, HashMap::from([(USER, amount(75, 3))]));
        assert!(other.views().iter().any(|view| !view.counted), "nor does the other node say so");
        walker.found(now, Duration::ZERO, HashMap::from([(USER, amount(75, 3)), (DIRECTORY, amount(9, 1))]));
        assert!(walker.views().iter().all(|view| view.counted));
    }

    #[test]
    fn what_was_made_counts_until_a_walk_finds_it_however_long_that_takes() {
        let mut books = books(&[(USER, amount(1 << 40, 0)), (DIRECTORY, amount(1 << 40, 0))]);
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        // A day of writing each second, in which no walk succeeds.
        let (day, morning) = (86_400, 40_000);
        for second in 0..day {
            books.note(at(second), if second % 2 == 0 { &[USER] } else { &[DIRECTORY] }, amount(1, 1));
            if second % 20 == 0 {
                books.merge_old(at(second));
                assert!(books.made.len() < 500, "{} sums in second {second}", books.made.len());
            }
        }
        assert_eq!(books.used(USER), amount(day / 2, day / 2));
        assert_eq!(books.used(DIRECTORY), amount(day / 2, day / 2));
        // What a walk that began in the morning has found counts once, or twice if it was made
        // about that time; what was made since counts.
        let found = HashMap::from([(USER, amount(morning / 2, 0)), (DIRECTORY, amount(0, 0))]);
        books.found(at(morning), Duration::ZERO, found);
        let used = books.used(USER).bytes;
        let most = day / 2 + u64::from(day as u32 / PART_OF_AGE) / 2;
        assert!((day / 2..=most).contains(&used), "{used} bytes");
    }
}
