//! The arithmetic of the rules: which node gets a contested frame, and how residue and shares are
//! cut into blocks.
//!
//! All arithmetic is on integers and in a fixed order, so all ranks get the same result.

use crate::Rules;
use crate::plane::{Builder, Plane, Reader, WINDOW, WORDS, new_plane};
use zazen_core::RunSet;

/// Up to this many contested frames (2²⁴) are decided in one place, in order. More are decided
/// slice by slice, each slice against its share of the base loads. The loads are then level if the
/// slices are alike, but this is not promised.
pub const DECIDED_TOGETHER_MAX: u64 = 1 << 24;

/// The decisions about contested frames.
pub(crate) struct Decision {
    /// By node: the claims that went to others.
    pub(crate) lost: Vec<RunSet>,
    /// By node: frames won.
    pub(crate) wins: Vec<u64>,
}

/// The loads that contested frames are decided against.
pub(crate) struct Scale<'a> {
    /// Base load by node, in frames.
    pub(crate) loads: &'a [u64],
    /// Ranks by node.
    pub(crate) ranks: &'a [u64],
    /// The contested frames that are decided here. They are decided against `part`/`whole` of the
    /// base loads.
    pub(crate) part: u64,
    pub(crate) whole: u64,
}

/// Decides every claimed frame, ascending. `claims` are by node; each frame goes to one that claims
/// it.
pub(crate) fn decide(rules: Rules, claims: &[RunSet], scale: &Scale<'_>) -> Decision {
    let mut picker = Picker::new(rules, scale);
    let mut lost: Vec<Builder> = claims.iter().map(|_| Builder::default()).collect();
    let mut readers: Vec<Reader<'_>> = claims.iter().map(Reader::new).collect();
    let mut planes: Vec<Box<Plane>> = Vec::new();
    let mut active: Vec<usize> = Vec::new();
    let mut base = 0;
    loop {
        readers.iter_mut().for_each(|reader| reader.advance(base));
        let Some(next) = readers.iter().filter_map(|reader| reader.next()).map(|next| next.1.max(base)).min()
        else {
            break;
        };
        base = next - next % WINDOW;
        active.clear();
        for (node, reader) in readers.iter_mut().enumerate() {
            if reader.touches(base) {
                if planes.len() == active.len() {
                    planes.push(new_plane());
                }
                let plane = &mut planes[active.len()];
                plane.fill(0);
                reader.fill(base, plane);
                active.push(node);
            }
        }
        picker.pick(&active, &mut planes);
        for (node, plane) in active.iter().zip(&planes) {
            lost[*node].push_plane(base, plane);
        }
        base += WINDOW;
    }
    Decision { lost: lost.into_iter().map(Builder::finish).collect(), wins: picker.wins }
}

/// Picks a holder per frame and keeps the loads.
struct Picker<'a> {
    rules: Rules,
    ranks: &'a [u64],
    /// Base load and wins by node, in units of 1/`whole` frame.
    scaled: Vec<u128>,
    unit: u128,
    wins: Vec<u64>,
}

impl<'a> Picker<'a> {
    fn new(rules: Rules, scale: &Scale<'a>) -> Picker<'a> {
        let (part, whole) = if scale.part == scale.whole { (1, 1) } else { (scale.part, scale.whole) };
        let scaled = scale.loads.iter().map(|load| u128::from(*load) * u128::from(part)).collect();
        Picker {
            rules,
            ranks: scale.ranks,
            scaled,
            unit: u128::from(whole),
            wins: vec![0; scale.loads.len()],
        }
    }

    /// `planes` are the claims of the `active` nodes (ascending). Won bits are cleared in each, so
    /// the lost bits remain.
    fn pick(&mut self, active: &[usize], planes: &mut [Box<Plane>]) {
        let mut holders = Vec::with_capacity(active.len());
        for at in 0..WORDS {
            let mut rest = planes[..active.len()].iter().fold(0, |all, plane| all | plane[at]);
            while rest != 0 {
                let bit = rest & rest.wrapping_neg();
                rest &= rest - 1;
                holders.clear();
                holders.extend((0..active.len()).filter(|slot| planes[*slot][at] & bit != 0));
                let winner = self.winner(active, &holders);
                planes[winner][at] &= !bit;
                self.scaled[active[winner]] += self.unit;
                self.wins[active[winner]] += 1;
            }
        }
    }

    /// The slot of `active` that gets a frame claimed by the slots `holders`, which are not empty.
    fn winner(&self, active: &[usize], holders: &[usize]) -> usize {
        let mut best = holders[0];
        if self.rules == Rules::Full {
            for slot in &holders[1..] {
                let (node, than) = (active[*slot], active[best]);
                // Loads per rank, compared without dividing.
                let (load, least) = (self.scaled[node], self.scaled[than]);
                if load * u128::from(self.ranks[than]) < least * u128::from(self.ranks[node]) {
                    best = *slot;
                }
            }
        }
        best
    }
}

/// Sizes of `parts` blocks of `total`: equal, the first getting one more.
pub(crate) fn even(parts: usize, total: u64) -> Vec<u64> {
    let (each, more) = (total / parts as u64, total % parts as u64);
    (0..parts as u64).map(|part| each + u64::from(part < more)).collect()
}

/// Block `at` of such `parts` blocks: where it begins, and its size.
pub(crate) fn part(parts: usize, total: u64, at: usize) -> (u64, u64) {
    let (each, more, at) = (total / parts as u64, total % parts as u64, at as u64);
    (each * at + more.min(at), each + u64::from(at < more))
}

/// Sizes of blocks of `total` that raise the lowest `loads` to a common level. The remainder goes
/// to the lowest ranks at that level, one frame each.
pub(crate) fn level(loads: &[u64], total: u64) -> Vec<u64> {
    let missing = |level: u64| loads.iter().map(|load| u128::from(level.saturating_sub(*load))).sum::<u128>();
    // The highest level that `total` can reach: missing(low) <= total < missing(high).
    let mut low = loads.iter().copied().min().unwrap_or(0);
    let mut high = low.saturating_add(total).saturating_add(1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if missing(middle) <= u128::from(total) { low = middle } else { high = middle }
    }
    let mut left = total - missing(low) as u64;
    let sizes = loads.iter().map(|load| {
        let one = u64::from(left > 0 && *load <= low);
        left -= one;
        low.saturating_sub(*load) + one
    });
    sizes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn levelling_equals_dealing_one_at_a_time_to_the_least(
            loads in proptest::collection::vec(0u64..60, 1..12), total in 0u64..300,
        ) {
            let mut now = loads.clone();
            for _ in 0..total {
                let least = now.iter().copied().min().unwrap();
                let at = now.iter().position(|load| *load == least).unwrap();
                now[at] += 1;
            }
            let expected: Vec<u64> = now.iter().zip(&loads).map(|(after, before)| after - before).collect();
            prop_assert_eq!(level(&loads, total), expected);
        }
    }

    #[test]
    fn blocks_add_up_and_the_first_get_one_more() {
        assert_eq!(even(4, 10), [3, 3, 2, 2]);
        assert_eq!(even(3, 0), [0, 0, 0]);
        for (parts, total) in [(1, 5), (4, 10), (7, 3), (3, 0)] {
            let mut start = 0;
            for (at, size) in even(parts, total).into_iter().enumerate() {
                assert_eq!(part(parts, total, at), (start, size));
                start += size;
            }
        }
        assert_eq!(level(&[u64::MAX / 2, 0], 1 << 40), [0, 1 << 40]);
    }

    #[test]
    fn contested_frames_go_to_the_least_loaded_per_rank() {
        let claims = [RunSet::range(0, 9), RunSet::range(0, 9)];
        let decided = |rules, loads: &[u64], ranks: &[u64]| {
            decide(rules, &claims, &Scale { loads, ranks, part: 10, whole: 10 }).wins
        };
        assert_eq!(decided(Rules::Full, &[0, 0], &[1, 1]), [5, 5]);
        assert_eq!(decided(Rules::Full, &[100, 0], &[1, 1]), [0, 10]);
        assert_eq!(decided(Rules::Full, &[4, 0], &[1, 1]), [3, 7]);
        assert_eq!(decided(Rules::Full, &[0, 0], &[4, 1]), [8, 2]);
        assert_eq!(decided(Rules::Paper, &[100, 0], &[1, 1]), [10, 0]);
    }
}
