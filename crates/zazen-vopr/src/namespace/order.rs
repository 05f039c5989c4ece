//! Whether one file system could have shown what clients saw: is there an order of their calls in
//! which each saw what the calls before it had made (Wing and Gong's search, with a memory).
//!
//! A call that was answered took effect between its beginning and its answer. One without an answer
//! may take effect at any time after its beginning, or never.

use std::collections::BTreeSet;

/// States that one search may look at: one that needs more has gone astray.
const STATES_MAX: usize = 3_000_000;
/// Calls that may overlap one that is under way.
const WINDOW: usize = 64;
/// Calls without an answer that one search can keep apart.
const OPEN_MAX: usize = 64 * WORDS;
const WORDS: usize = 16;

/// A call: what was asked, when, and what was answered when.
#[derive(Clone, Debug)]
pub(crate) struct Recorded<A, S> {
    pub(crate) asked: A,
    pub(crate) at_ns: u64,
    pub(crate) answer: Option<(u64, S)>,
}

/// What calls do to a state.
pub(crate) trait Model {
    type Asked: Clone + std::fmt::Debug;
    type Seen: Clone + std::fmt::Debug;
    type State: Clone + Ord;
    /// The states that the call may leave, if it could see that in this one; with `None`: all that
    /// an unanswered call may leave. `call` numbers it.
    fn apply(
        state: &Self::State,
        asked: &Self::Asked,
        seen: Option<&Self::Seen>,
        call: usize,
    ) -> Vec<Self::State>;
    /// Whether the call changes nothing.
    fn only_looks(asked: &Self::Asked) -> bool;
}

/// What the search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is such an order.
    Order,
    /// There is none.
    NoOrder,
    /// The search looked at too many states, or there are too many calls without an answer.
    Undecided,
}

/// How far the search is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Spot<S> {
    /// Answered calls before this one have taken effect,
    base: usize,
    /// and those of the mask behind it,
    mask: u64,
    /// and these unanswered ones.
    opened: [u64; WORDS],
    state: S,
}

/// Looks for an order.
pub(crate) fn order<M: Model>(initial: M::State, calls: &[Recorded<M::Asked, M::Seen>]) -> Verdict {
    let numbered = || calls.iter().enumerate();
    let done: Vec<_> =
        numbered().filter_map(|(at, call)| Some((at, call, call.answer.as_ref()?.0))).collect();
    let open: Vec<_> =
        numbered().filter(|(_, call)| call.answer.is_none() && !M::only_looks(&call.asked)).collect();
    if open.len() > OPEN_MAX {
        return Verdict::Undecided;
    }
    let mut stack = vec![Spot { base: 0, mask: 0, opened: [0; WORDS], state: initial }];
    let mut known = BTreeSet::new();
    while let Some(mut spot) = stack.pop() {
        while spot.mask & 1 == 1 {
            spot.base += 1;
            spot.mask >>= 1;
        }
        let Spot { base, mask, opened, .. } = spot;
        if base >= done.len() {
            return Verdict::Order;
        }
        if known.len() >= STATES_MAX {
            return Verdict::Undecided;
        }
        if !known.insert(spot.clone()) {
            continue;
        }
        let window: Vec<usize> =
            (base..done.len().min(base + WINDOW)).filter(|at| mask >> (at - base) & 1 == 0).collect();
        let end_ns = window.iter().map(|at| done[*at].2).min().unwrap_or(u64::MAX);
        // Later on the stack is looked at first: unanswered calls only where nothing else helps.
        for (bit, (number, call)) in open.iter().enumerate() {
            let (word, flag) = (bit / 64, 1 << (bit % 64));
            if opened[word] & flag == 0 && call.at_ns <= end_ns {
                let mut opened = opened;
                opened[word] |= flag;
                for state in M::apply(&spot.state, &call.asked, None, *number) {
                    if state != spot.state {
                        stack.push(Spot { base, mask, opened, state });
                    }
                }
            }
        }
        let mut next: Vec<usize> = window.into_iter().filter(|at| done[*at].1.at_ns <= end_ns).collect();
        next.sort_by_key(|at| std::cmp::Reverse(done[*at].2));
        for at in next {
            let (number, call, _) = done[at];
            let seen = call.answer.as_ref().map(|(_, seen)| seen);
            for state in M::apply(&spot.state, &call.asked, seen, number) {
                stack.push(Spot { base, mask: mask | 1 << (at - base), opened, state });
            }
        }
    }
    Verdict::NoOrder
}
