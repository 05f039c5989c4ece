//! What is evicted when room is needed. Pure.
//!
//! First whole cold datasets, the least recently used before others; then aliens, oldest first, of
//! datasets that nobody scans. Never anything pinned or being scanned, and never aliens of the
//! dataset that an alien comes for: a cyclic scan larger than the cache would otherwise push out
//! each frame just before it is wanted again (LRU has no hits there). Refusing instead keeps a
//! stable set, which is hit in every cycle.

/// A dataset that could give room.
#[derive(Clone, Debug, Default)]
pub struct Candidate {
    /// Bytes on disk.
    pub bytes: u64,
    /// Bytes of its aliens.
    pub alien_bytes: u64,
    /// Larger is later.
    pub last_use: u64,
    /// Never evicted to make room.
    pub pinned: bool,
    /// A scan of it is under way.
    pub scanned: bool,
    /// A put into it is under way.
    pub written: bool,
    /// It is the dataset that room is needed for.
    pub wanted: bool,
}

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The whole dataset at this index of the candidates.
    Dataset(usize),
    /// Aliens of the dataset at this index, oldest first, until so many bytes are free.
    Aliens(usize, u64),
}

/// What to evict so that `shortfall` bytes become free, or `None` (and nothing is evicted) if that
/// is impossible. `for_alien`: an alien is to be stored. Aliens give `slack` bytes more, so that
/// not every frame needs a plan of its own.
pub fn plan(candidates: &[Candidate], shortfall: u64, for_alien: bool, slack: u64) -> Option<Vec<Victim>> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|&at| (candidates[at].last_use, at));
    let free = |candidate: &Candidate| !candidate.pinned && !candidate.scanned;
    let mut victims = Vec::new();
    let mut freed = 0;
    let whole = |candidate: &Candidate| free(candidate) && !candidate.written && !candidate.wanted;
    for &at in order.iter().filter(|&&at| whole(&candidates[at]) && candidates[at].bytes > 0) {
        if freed >= shortfall {
            break;
        }
        victims.push(Victim::Dataset(at));
        freed += candidates[at].bytes;
    }
    let alien = |candidate: &Candidate| {
        free(candidate) && !whole(candidate) && candidate.alien_bytes > 0 && !(for_alien && candidate.wanted)
    };
    for &at in order.iter().filter(|&&at| alien(&candidates[at])) {
        if freed >= shortfall {
            break;
        }
        let bytes = candidates[at].alien_bytes.min(shortfall - freed + slack);
        victims.push(Victim::Aliens(at, bytes));
        freed += bytes;
    }
    (freed >= shortfall).then_some(victims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Victim::{Aliens, Dataset};

    fn cold(bytes: u64, last_use: u64) -> Candidate {
        Candidate { bytes, last_use, ..Candidate::default() }
    }

    fn check(candidates: &[Candidate], shortfall: u64, for_alien: bool, expected: Option<&[Victim]>) {
        assert_eq!(plan(candidates, shortfall, for_alien, 5).as_deref(), expected, "{candidates:?}");
    }

    #[test]
    fn cold_datasets_go_first_and_least_recent_before_others() {
        let all = [cold(10, 3), cold(10, 1), cold(10, 2)];
        check(&all, 5, false, Some(&[Dataset(1)]));
        check(&all, 15, true, Some(&[Dataset(1), Dataset(2)]));
        check(&all, 31, false, None);
        check(&all, 0, false, Some(&[]));
    }

    #[test]
    fn pinned_scanned_and_written_datasets_stay() {
        let pinned = Candidate { pinned: true, alien_bytes: 100, ..cold(100, 1) };
        let scanned = Candidate { scanned: true, alien_bytes: 100, ..cold(100, 2) };
        let written = Candidate { written: true, alien_bytes: 30, ..cold(100, 3) };
        check(&[pinned.clone(), scanned.clone()], 1, false, None);
        check(&[pinned.clone(), scanned.clone(), written.clone()], 10, true, Some(&[Aliens(2, 15)]));
        check(&[pinned.clone(), scanned.clone(), written.clone()], 28, true, Some(&[Aliens(2, 30)]));
        check(&[pinned, scanned, written], 31, false, None);
    }

    #[test]
    fn aliens_never_push_out_aliens_of_their_own_dataset() {
        let wanted = Candidate { wanted: true, alien_bytes: 50, ..cold(100, 1) };
        check(std::slice::from_ref(&wanted), 10, true, None);
        check(std::slice::from_ref(&wanted), 10, false, Some(&[Aliens(0, 15)]));
        check(&[wanted, cold(10, 9)], 10, true, Some(&[Dataset(1)]));
    }
}
