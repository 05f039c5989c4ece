//! What clients saw of a name, and whether one file system could have shown it: linearizability,
//! one name at a time (Wing and Gong's search, with a memory).

use std::collections::{BTreeMap, BTreeSet};
use zazen_namespace::InodeId;

/// A name: its directory, and which name there.
pub(crate) type Key = (InodeId, u8);

/// What a client asked about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Create,
    Remove,
    Lookup,
}

/// What it saw: the inode, if there was one. For a creation that was refused: nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Created, or found.
    There(InodeId),
    /// Removed.
    Removed,
    /// `EEXIST`.
    Exists,
    /// `ENOENT`.
    Missing,
}

/// A call. Without an answer it may happen at any time after it was made, or never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedCall {
    asked: Asked,
    at_ns: u64,
    answer: Option<(u64, Seen)>,
}

/// All calls, by name.
#[derive(Default)]
pub(crate) struct History {
    calls: BTreeMap<Key, Vec<RecordedCall>>,
    pub(crate) answered: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Free,
    Taken(InodeId),
    /// By a creation whose answer nobody saw.
    TakenBySomebody,
}

impl History {
    pub(crate) fn begin(&mut self, key: Key, asked: Asked, at_ns: u64) -> usize {
        let calls = self.calls.entry(key).or_default();
        calls.push(RecordedCall { asked, at_ns, answer: None });
        calls.len() - 1
    }

    pub(crate) fn end(&mut self, key: Key, call: usize, at_ns: u64, seen: Seen) {
        self.answered += 1;
        if let Some(call) = self.calls.get_mut(&key).and_then(|calls| calls.get_mut(call)) {
            call.answer = Some((at_ns, seen));
        }
    }

    /// The first name that shows more than one file system could have shown.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let bad = self.calls.iter().find(|(_, calls)| !is_linearizable(calls));
        bad.map(|((directory, name), calls)| {
            let lines: Vec<String> = calls.iter().map(|call| format!("\n  {call:?}")).collect();
            format!("not linearizable: name {name} of directory {directory}:{}", lines.concat())
        })
    }
}

/// The name after the call, if the call could see what it saw.
fn apply(name: Name, asked: Asked, seen: Option<Seen>) -> Option<Name> {
    match (asked, seen, name) {
        (Asked::Create, Some(Seen::There(id)), Name::Free) => Some(Name::Taken(id)),
        (Asked::Create, None, Name::Free) => Some(Name::TakenBySomebody),
        (Asked::Create, Some(Seen::Exists) | None, Name::Taken(_) | Name::TakenBySomebody) => Some(name),
        (Asked::Remove, Some(Seen::Removed) | None, Name::Taken(_) | Name::TakenBySomebody) => {
            Some(Name::Free)
        }
        (Asked::Remove, Some(Seen::Missing) | None, Name::Free) => Some(name),
        (Asked::Lookup, Some(Seen::Missing), Name::Free) => Some(name),
        (Asked::Lookup, Some(Seen::There(id)), Name::TakenBySomebody) => Some(Name::Taken(id)),
        (Asked::Lookup, Some(Seen::There(id)), Name::Taken(other)) if id == other => Some(name),
        _ => None,
    }
}

fn is_linearizable(calls: &[RecordedCall]) -> bool {
    let done: Vec<&RecordedCall> = calls.iter().filter(|call| call.answer.is_some()).collect();
    let open: Vec<&RecordedCall> =
        calls.iter().filter(|call| call.answer.is_none() && call.asked != Asked::Lookup).take(64).collect();
    // Calls before `base` have happened, and those of the mask behind it; and open ones.
    let mut stack = vec![(0usize, 0u64, 0u64, Name::Free)];
    let mut known = BTreeSet::new();
    while let Some((mut base, mut mask, opened, name)) = stack.pop() {
        while mask & 1 == 1 {
            base += 1;
            mask >>= 1;
        }
        if base >= done.len() {
            return true;
        }
        if !known.insert((base, mask, opened, name)) {
            continue;
        }
        let window = || (base..done.len().min(base + 64)).filter(move |at| mask >> (at - base) & 1 == 0);
        let end_ns =
            window().filter_map(|at| done[at].answer).map(|(end_ns, _)| end_ns).min().unwrap_or(u64::MAX);
        for (bit, call) in open.iter().enumerate() {
            if opened >> bit & 1 == 0
                && call.at_ns <= end_ns
                && let Some(next) = apply(name, call.asked, None)
                && next != name
            {
                stack.push((base, mask, opened | 1 << bit, next));
            }
        }
        for at in window().take_while(|at| done[*at].at_ns <= end_ns) {
            let seen = done[at].answer.map(|(_, seen)| seen);
            if let Some(next) = apply(name, done[at].asked, seen) {
                stack.push((base, mask | 1 << (at - base), opened, next));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(asked: Asked, at_ns: u64, answer: Option<(u64, Seen)>) -> RecordedCall {
        RecordedCall { asked, at_ns, answer }
    }

    #[test]
    fn what_one_file_system_shows_is_accepted_and_other_things_are_not() {
        let (one, two) = (InodeId(1), InodeId(2));
        let created = call(Asked::Create, 0, Some((10, Seen::There(one))));
        let lost = call(Asked::Lookup, 20, Some((30, Seen::Missing)));
        assert!(!is_linearizable(&[created, lost]), "an acknowledged creation is lost");
        let early = call(Asked::Lookup, 5, Some((30, Seen::Missing)));
        assert!(is_linearizable(&[created, early]), "at the same time");
        let other = call(Asked::Lookup, 20, Some((30, Seen::There(two))));
        assert!(!is_linearizable(&[created, other]));
        let removed = call(Asked::Remove, 12, None);
        assert!(is_linearizable(&[created, removed, lost]), "removed by a call without an answer");
        let later = call(Asked::Remove, 31, None);
        assert!(!is_linearizable(&[created, lost, later]), "removed before it was asked for");
        let unseen = call(Asked::Create, 11, None);
        let again = call(Asked::Lookup, 40, Some((50, Seen::There(two))));
        assert!(is_linearizable(&[created, removed, unseen, lost, again]));
        let exists = call(Asked::Create, 0, Some((1, Seen::Exists)));
        assert!(!is_linearizable(&[exists]));
    }
}
