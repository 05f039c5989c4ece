//! Names as one file system has them: what a call does to names that are renamed to each other.
//! Clients rename only within such a family of names, so each family has an order of its own.

use super::order::Model;
use std::collections::BTreeMap;
use zazen_namespace::InodeId;

/// How many names clients use in each directory.
pub(crate) const NAMES: u64 = 6;

/// A name: its directory, and which name there.
pub(crate) type Key = (InodeId, u8);

/// What a client asked about names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Create(Key),
    Remove(Key),
    Lookup(Key),
    Rename { from: Key, to: Key, no_replace: bool, exchange: bool },
    Link { id: InodeId, to: Key },
}

impl Asked {
    /// The name that it is about: with two, the new one.
    pub(crate) fn key(self) -> Key {
        let (Asked::Create(key)
        | Asked::Remove(key)
        | Asked::Lookup(key)
        | Asked::Rename { to: key, .. }
        | Asked::Link { to: key, .. }) = self;
        key
    }
}

/// What it saw: the inode, if there was one. For a creation that was refused: nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Created, found, or linked.
    There(InodeId),
    /// Removed or renamed.
    Done,
    /// `EEXIST`.
    Exists,
    /// `ENOENT`, or `ESTALE` for an inode.
    Missing,
}

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Known(InodeId),
    /// Made by this call, whose answer nobody saw.
    MadeBy(usize),
}

/// The names that are taken, and what they lead to.
pub(crate) type Entries = BTreeMap<Key, Target>;

/// See the module.
pub(crate) struct Names;

/// A state in which a call left some names as they are here.
fn with(state: &Entries, names: impl IntoIterator<Item = (Key, Option<Target>)>) -> Vec<Entries> {
    let mut state = state.clone();
    for (key, target) in names {
        match target {
            Some(target) => drop(state.insert(key, target)),
            None => drop(state.remove(&key)),
        }
    }
    vec![state]
}

fn if_right(right: bool, state: &Entries) -> Vec<Entries> {
    if right { vec![state.clone()] } else { Vec::new() }
}

/// A client finds this inode under a name.
fn found(state: &Entries, key: Key, id: InodeId) -> Vec<Entries> {
    match state.get(&key) {
        Some(Target::Known(known)) => if_right(*known == id, state),
        // Nobody else has its number.
        Some(by) if !state.values().any(|target| *target == Target::Known(id)) => {
            let bound = |target: &Target| if target == by { Target::Known(id) } else { *target };
            vec![state.iter().map(|(key, target)| (*key, bound(target))).collect()]
        }
        _ => Vec::new(),
    }
}

fn rename(state: &Entries, asked: &Asked, seen: Option<&Seen>) -> Vec<Entries> {
    let Asked::Rename { from, to, no_replace, exchange } = *asked else { return Vec::new() };
    let renamed = matches!(seen, None | Some(Seen::Done));
    match (state.get(&from), state.get(&to)) {
        // Whichever of two refusals is met first.
        (None, Some(_)) if no_replace && seen == Some(&Seen::Exists) => vec![state.clone()],
        (None, _) => if_right(matches!(seen, None | Some(Seen::Missing)), state),
        (Some(_), None) if exchange => if_right(matches!(seen, None | Some(Seen::Missing)), state),
        (Some(_), Some(_)) if no_replace => if_right(matches!(seen, None | Some(Seen::Exists)), state),
        (Some(source), dest) if renamed => match dest {
            // Two names of one inode: both stay.
            Some(dest) if dest == source => vec![state.clone()],
            Some(dest) if exchange => with(state, [(from, Some(*dest)), (to, Some(*source))]),
            _ => with(state, [(from, None), (to, Some(*source))]),
        },
        _ => Vec::new(),
    }
}

impl Model for Names {
    type Asked = Asked;
    type Seen = Seen;
    type State = Entries;

    fn only_looks(asked: &Asked) -> bool {
        matches!(asked, Asked::Lookup(_))
    }

    fn apply(state: &Entries, asked: &Asked, seen: Option<&Seen>, call: usize) -> Vec<Entries> {
        match (asked, seen) {
            (Asked::Create(key), seen) => match (state.contains_key(key), seen) {
                (false, Some(Seen::There(id))) => with(state, [(*key, Some(Target::Known(*id)))]),
                (false, None) => with(state, [(*key, Some(Target::MadeBy(call)))]),
                (taken, seen) => if_right(taken && matches!(seen, None | Some(Seen::Exists)), state),
            },
            (Asked::Remove(key), seen) => match (state.contains_key(key), seen) {
                (true, None | Some(Seen::Done)) => with(state, [(*key, None)]),
                (taken, seen) => if_right(!taken && matches!(seen, None | Some(Seen::Missing)), state),
            },
            (Asked::Lookup(key), Some(Seen::There(id))) => found(state, *key, *id),
            (Asked::Lookup(key), Some(Seen::Missing)) => if_right(!state.contains_key(key), state),
            (Asked::Lookup(_), _) => Vec::new(),
            (Asked::Rename { .. }, seen) => rename(state, asked, seen),
            (Asked::Link { id, to }, seen) => {
                let has_name = state.values().any(|target| *target == Target::Known(*id));
                match (has_name, state.contains_key(to), seen) {
                    (true, false, None) => with(state, [(*to, Some(Target::Known(*id)))]),
                    (true, false, Some(Seen::There(found))) if found == id => {
                        with(state, [(*to, Some(Target::Known(*id)))])
                    }
                    (_, true, None | Some(Seen::Exists)) => vec![state.clone()],
                    (false, _, None | Some(Seen::Missing)) => vec![state.clone()],
                    _ => Vec::new(),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::{Recorded, Verdict, order};
    use super::*;

    const A: Key = (InodeId(1), 0);
    const B: Key = (InodeId(7), 1);
    const ONE: InodeId = InodeId(11);
    const TWO: InodeId = InodeId(12);

    fn call(asked: Asked, at_ns: u64, answer: Option<(u64, Seen)>) -> Recorded<Asked, Seen> {
        Recorded { asked, at_ns, answer }
    }

    fn may_be(calls: &[Recorded<Asked, Seen>]) -> bool {
        let verdict = order::<Names>(Entries::new(), calls);
        assert!(verdict != Verdict::Undecided);
        verdict == Verdict::Order
    }

    /// A call that is answered 5 ns after it began.
    fn saw(at_ns: u64, asked: Asked, seen: Seen) -> Recorded<Asked, Seen> {
        call(asked, at_ns, Some((at_ns + 5, seen)))
    }

    fn moves(from: Key, to: Key) -> Asked {
        Asked::Rename { from, to, no_replace: false, exchange: false }
    }

    #[test]
    fn what_one_file_system_shows_is_accepted_and_other_things_are_not() {
        let created = call(Asked::Create(A), 0, Some((10, Seen::There(ONE))));
        let lost = call(Asked::Lookup(A), 20, Some((30, Seen::Missing)));
        assert!(!may_be(&[created.clone(), lost.clone()]), "an acknowledged creation is lost");
        let early = call(Asked::Lookup(A), 5, Some((30, Seen::Missing)));
        assert!(may_be(&[created.clone(), early]), "at the same time");
        let other = call(Asked::Lookup(A), 20, Some((30, Seen::There(TWO))));
        assert!(!may_be(&[created.clone(), other]));
        let removed = call(Asked::Remove(A), 12, None);
        assert!(may_be(&[created.clone(), removed.clone(), lost.clone()]), "removed without an answer");
        let later = call(Asked::Remove(A), 31, None);
        assert!(!may_be(&[created.clone(), lost.clone(), later]), "removed before it was asked for");
        let unseen = call(Asked::Create(A), 11, None);
        let again = call(Asked::Lookup(A), 40, Some((50, Seen::There(TWO))));
        assert!(may_be(&[created, removed, unseen, lost, again]));
        let exists = call(Asked::Create(A), 0, Some((1, Seen::Exists)));
        assert!(!may_be(&[exists]));
    }

    #[test]
    fn a_rename_is_seen_on_both_names_or_on_none() {
        let made = saw(0, Asked::Create(A), Seen::There(ONE));
        let at = |at_ns, key, id| saw(at_ns, Asked::Lookup(key), Seen::There(id));
        let none = |at_ns, key| saw(at_ns, Asked::Lookup(key), Seen::Missing);
        let moved = saw(10, moves(A, B), Seen::Done);
        assert!(may_be(&[made.clone(), moved.clone(), none(20, A), at(30, B, ONE)]));
        assert!(!may_be(&[made.clone(), moved.clone(), at(20, A, ONE)]), "the old name stays");
        assert!(!may_be(&[made.clone(), moved, none(20, B)]), "the new name is missing");
        let unknown = call(moves(A, B), 10, None);
        assert!(may_be(&[made.clone(), unknown.clone(), at(20, A, ONE), none(30, B)]), "not yet");
        assert!(may_be(&[made.clone(), unknown.clone(), at(20, B, ONE), none(30, A)]));
        assert!(!may_be(&[made.clone(), unknown.clone(), at(20, B, ONE), at(30, A, ONE)]), "half of it");
        assert!(!may_be(&[made, unknown, none(20, A), none(30, B)]), "lost on the way");
        assert!(!may_be(&[saw(0, moves(A, B), Seen::Done)]), "of nothing");
    }

    #[test]
    fn replacing_exchanging_and_refusing_renames() {
        let both = [saw(0, Asked::Create(A), Seen::There(ONE)), saw(6, Asked::Create(B), Seen::There(TWO))];
        let then = |asked: Asked, seen: Seen, a: Seen, b: Seen| {
            let after = [saw(20, asked, seen), saw(30, Asked::Lookup(A), a), saw(40, Asked::Lookup(B), b)];
            may_be(&[&both[..], &after[..]].concat())
        };
        let (one, two) = (Seen::There(ONE), Seen::There(TWO));
        assert!(then(moves(A, B), Seen::Done, Seen::Missing, one));
        assert!(!then(moves(A, B), Seen::Done, Seen::Missing, two));
        let exchange = Asked::Rename { from: A, to: B, no_replace: false, exchange: true };
        assert!(then(exchange, Seen::Done, two, one));
        assert!(!then(exchange, Seen::Done, Seen::Missing, one));
        let careful = Asked::Rename { from: A, to: B, no_replace: true, exchange: false };
        assert!(then(careful, Seen::Exists, one, two));
        assert!(!then(careful, Seen::Done, Seen::Missing, one));
    }

    #[test]
    fn links_are_names_of_an_inode_that_has_one() {
        let made = saw(0, Asked::Create(A), Seen::There(ONE));
        let link = Asked::Link { id: ONE, to: B };
        let linked = saw(10, link, Seen::There(ONE));
        let gone = saw(20, Asked::Remove(A), Seen::Done);
        let at_b = |id| saw(30, Asked::Lookup(B), Seen::There(id));
        assert!(may_be(&[made.clone(), linked.clone(), gone.clone(), at_b(ONE)]));
        assert!(!may_be(&[made.clone(), linked.clone(), gone.clone(), at_b(TWO)]));
        assert!(!may_be(&[made.clone(), gone.clone(), saw(30, link, Seen::There(ONE))]), "it is gone");
        assert!(may_be(&[made.clone(), gone, saw(30, link, Seen::Missing)]));
        // A rename of one name of an inode onto another leaves both.
        let onto = saw(12, moves(A, B), Seen::Done);
        let still = saw(40, Asked::Lookup(A), Seen::There(ONE));
        assert!(may_be(&[made, linked, onto, at_b(ONE), still]));
    }
}
