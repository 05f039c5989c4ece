//! Whether one file system could have shown what clients saw: is there an order of their calls in
//! which each saw what the calls before it had made (Wing and Gong's search, with a memory).
//!
//! A call that was answered took effect between its beginning and its answer. One without an answer
//! may take effect at any time after its beginning, or never.

use std::collections::BTreeSet;

/// States that one search may look at: one that needs more has gone astray.
const STATES_MAX: usize = 3_000_000;
/// Answered calls that may overlap one that is under way: one call may wait for a fail-over while
/// other clients make hundreds.
const WINDOW: usize = 64 * WINDOW_WORDS;
const WINDOW_WORDS: usize = 8;
/// Calls without an answer that one search can keep apart.
const OPEN_MAX: usize = 64 * WORDS;
const WORDS: usize = 16;

/// A set of the numbers below 64 × `N`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Mask<const N: usize>([u64; N]);

impl<const N: usize> Mask<N> {
    const NONE: Self = Self([0; N]);

    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn with(mut self, at: usize) -> Self {
        self.0[at / 64] |= 1 << (at % 64);
        self
    }

    /// How many numbers from 0 on it has without a gap.
    fn first_gap(&self) -> usize {
        let full = self.0.iter().take_while(|word| **word == u64::MAX).count();
        64 * full + self.0.get(full).map_or(0, |word| word.trailing_ones() as usize)
    }

    /// With every number less `by`; numbers below 0 are gone.
    fn less(self, by: usize) -> Self {
        let (words, bits) = (by / 64, by % 64);
        let word = |at: usize| self.0.get(at).copied().unwrap_or(0);
        Self(std::array::from_fn(|at| {
            let low = word(at + words) >> bits;
            if bits == 0 { low } else { low | word(at + words + 1) << (64 - bits) }
        }))
    }
}

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
    /// The search looked at too many states, or there are too many calls without an answer, or so
    /// many calls overlap one that it did not try all of them.
    Undecided,
}

/// How far the search is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Spot<S> {
    /// Answered calls before this one have taken effect,
    base: usize,
    /// and those of the mask behind it,
    mask: Mask<WINDOW_WORDS>,
    /// and these unanswered ones.
    opened: Mask<WORDS>,
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
    let mut stack = vec![Spot { base: 0, mask: Mask::NONE, opened: Mask::NONE, state: initial }];
    let mut known = BTreeSet::new();
    let mut is_cut = false;
    while let Some(mut spot) = stack.pop() {
        let over = spot.mask.first_gap();
        spot.base += over;
        spot.mask = spot.mask.less(over);
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
            (base..done.len().min(base + WINDOW)).filter(|at| !mask.has(at - base)).collect();
        let end_ns = window.iter().map(|at| done[*at].2).min().unwrap_or(u64::MAX);
        is_cut |= done.get(base + WINDOW).is_some_and(|(_, call, _)| call.at_ns <= end_ns);
        // Later on the stack is looked at first: unanswered calls only where nothing else helps.
        for (bit, (number, call)) in open.iter().enumerate() {
            if !opened.has(bit) && call.at_ns <= end_ns {
                let opened = opened.with(bit);
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
                stack.push(Spot { base, mask: mask.with(at - base), opened, state });
            }
        }
    }
    if is_cut { Verdict::Undecided } else { Verdict::NoOrder }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that calls write and read.
    struct Register;

    #[derive(Clone, Debug)]
    enum Asked {
        Write(u64),
        Read,
    }

    impl Model for Register {
        type Asked = Asked;
        type Seen = u64;
        type State = u64;

        fn apply(state: &u64, asked: &Asked, seen: Option<&u64>, _: usize) -> Vec<u64> {
            match asked {
                Asked::Write(to) => vec![*to],
                Asked::Read if seen.is_none_or(|seen| seen == state) => vec![*state],
                Asked::Read => vec![],
            }
        }

        fn only_looks(asked: &Asked) -> bool {
            matches!(asked, Asked::Read)
        }
    }

    /// A write that lasts while another client writes `others` numbers one after the other, and a
    /// read behind them all that sees `seen`.
    fn beside_one_that_lasts(others: u64, seen: u64) -> Verdict {
        let last_ns = 10 * others + 100;
        let mut calls = vec![Recorded { asked: Asked::Write(7), at_ns: 0, answer: Some((last_ns, 0)) }];
        calls.extend((0..others).map(|at| {
            let answer = Some((10 * at + 5, 0));
            Recorded { asked: Asked::Write(1000 + at), at_ns: 10 * at + 1, answer }
        }));
        calls.push(Recorded { asked: Asked::Read, at_ns: last_ns + 1, answer: Some((last_ns + 2, seen)) });
        order::<Register>(0, &calls)
    }

    #[test]
    fn a_call_may_last_while_others_make_hundreds() {
        assert_eq!(beside_one_that_lasts(400, 7), Verdict::Order);
        assert_eq!(beside_one_that_lasts(400, 1399), Verdict::Order);
        assert_eq!(beside_one_that_lasts(400, 1398), Verdict::NoOrder);
    }

    #[test]
    fn more_than_the_window_is_no_verdict_against_them() {
        assert_eq!(beside_one_that_lasts(3 * WINDOW as u64, 1), Verdict::Undecided);
    }

    #[test]
    fn a_mask_is_a_set_of_numbers() {
        let mask = [0, 1, 63, 64, 65, 130, 511].into_iter().fold(Mask::<8>::NONE, Mask::with);
        for by in 0..513 {
            let less = mask.less(by);
            for at in 0..512 {
                assert_eq!(less.has(at), at + by < 512 && mask.has(at + by), "{at} less {by}");
            }
        }
        assert_eq!((mask.first_gap(), Mask::<2>([u64::MAX, 7]).first_gap()), (2, 67));
        assert_eq!(Mask::<2>([u64::MAX; 2]).first_gap(), 128);
    }
}
