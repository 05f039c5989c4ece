//! The bytes of a file as its metadata has them: which generation, and how long. A holder commits
//! by comparing the generation that it wrote with the file's.

use super::order::Model;

/// What a client asked of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Open { truncate: bool },
    Commit { generation: u64, bytes: u64 },
    Look,
}

/// What it saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The file as it is: or, of a repeated open, with the length of a later moment.
    As { generation: u64, bytes: Option<u64> },
    /// Committed.
    Done,
    /// `ESTALE`: it has another generation.
    Stale,
    /// The file is not there.
    Gone,
}

/// The file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    /// At least this; `is_known` if it is this. 0: it never had bytes.
    generation: u64,
    is_new: bool,
    bytes: u64,
}

/// See the module.
pub(crate) struct Versions;

impl Version {
    /// The version, if a client may see this generation.
    fn seen_as(self, generation: u64) -> Option<Version> {
        let fits = if self.is_new { generation > self.generation } else { generation == self.generation };
        fits.then_some(Version { generation, is_new: false, ..self })
    }

    fn shows(self, generation: u64, bytes: Option<u64>) -> Vec<Version> {
        let fits = bytes.is_none_or(|bytes| bytes == self.bytes);
        self.seen_as(generation).filter(|_| fits).into_iter().collect()
    }
}

impl Model for Versions {
    type Asked = Asked;
    type Seen = Seen;
    type State = Version;

    fn only_looks(asked: &Asked) -> bool {
        matches!(asked, Asked::Look)
    }

    fn apply(state: &Version, asked: &Asked, seen: Option<&Seen>, _call: usize) -> Vec<Version> {
        let now = *state;
        let fresh = Version { is_new: true, ..now };
        match (asked, seen) {
            (_, Some(Seen::Gone)) => Vec::new(),
            (Asked::Look, Some(Seen::As { generation, bytes })) => now.shows(*generation, *bytes),
            (Asked::Open { truncate }, seen) => {
                let after = match (truncate, now.generation == 0 && !now.is_new) {
                    (true, _) => vec![Version { bytes: 0, ..now }, Version { bytes: 0, ..fresh }],
                    (false, true) => vec![fresh],
                    (false, false) => vec![now],
                };
                match seen {
                    None => after,
                    Some(Seen::As { generation, bytes }) => {
                        after.into_iter().flat_map(|after| after.shows(*generation, *bytes)).collect()
                    }
                    Some(_) => Vec::new(),
                }
            }
            (Asked::Commit { generation, bytes }, seen) => {
                let committed = Version { bytes: *bytes, ..now };
                match (now.seen_as(*generation).is_some_and(|_| !now.is_new), seen) {
                    (true, None | Some(Seen::Done)) => vec![committed],
                    (false, None | Some(Seen::Stale)) => vec![now],
                    _ => Vec::new(),
                }
            }
            (Asked::Look, _) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::{Recorded, Verdict, order};
    use super::*;

    fn may_be(calls: &[(Asked, Option<Seen>)]) -> bool {
        // Each is answered before the next begins; one without an answer stays open.
        let recorded = |(at, (asked, seen)): (usize, &(Asked, Option<Seen>))| {
            let at_ns = 10 * at as u64;
            Recorded { asked: *asked, at_ns, answer: seen.map(|seen| (at_ns + 5, seen)) }
        };
        let calls: Vec<_> = calls.iter().enumerate().map(recorded).collect();
        let verdict = order::<Versions>(Version::default(), &calls);
        assert!(verdict != Verdict::Undecided);
        verdict == Verdict::Order
    }

    fn shows(generation: u64, bytes: u64) -> Option<Seen> {
        Some(Seen::As { generation, bytes: Some(bytes) })
    }

    #[test]
    fn only_the_generation_of_now_is_committed() {
        let open = |truncate, generation, bytes| (Asked::Open { truncate }, shows(generation, bytes));
        let commit = |generation, bytes, seen| (Asked::Commit { generation, bytes }, Some(seen));
        let look = |generation, bytes| (Asked::Look, shows(generation, bytes));
        assert!(may_be(&[look(0, 0), open(false, 7, 0), commit(7, 100, Seen::Done), look(7, 100)]));
        assert!(!may_be(&[open(false, 7, 0), commit(7, 100, Seen::Done), look(7, 0)]), "lost");
        let written = [open(false, 7, 0), commit(7, 100, Seen::Done), open(true, 9, 0)];
        assert!(may_be(&[&written[..], &[commit(7, 50, Seen::Stale), look(9, 0)]].concat()));
        assert!(!may_be(&[&written[..], &[commit(7, 50, Seen::Done)]].concat()), "of a replaced holder");
        assert!(!may_be(&[&written[..], &[commit(9, 50, Seen::Stale)]].concat()));
        assert!(!may_be(&[&written[..], &[look(7, 100)]].concat()), "the cut is undone");
        assert!(!may_be(&[open(false, 7, 0), open(true, 5, 0)]), "an old generation comes back");
        // A cut without an answer may have happened, with a new generation or without.
        let cut = (Asked::Open { truncate: true }, None);
        for after in [look(7, 100), look(7, 0), look(8, 0)] {
            assert!(may_be(&[&written[..2], &[cut, after]].concat()), "{after:?}");
        }
        assert!(!may_be(&[&written[..2], &[cut, look(8, 100)]].concat()));
    }
}
