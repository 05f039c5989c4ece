//! Against a `BTreeSet` oracle on small ranges, against closed forms on huge runs.

use super::*;
use crate::request::Request;
use proptest::prelude::*;
use std::collections::BTreeSet;

type Oracle = BTreeSet<u64>;

/// Every stated invariant of the representation, and that all views agree.
fn check(set: &RunSet, expected: &Oracle) {
    let mut before = None;
    let mut count = 0;
    for seg in &set.segs {
        assert!(seg.len() > 0, "empty segment in {set:?}");
        assert!(before < Some(seg.first()), "segments out of order in {set:?}");
        assert!(seg.first() <= seg.last());
        match seg {
            Seg::Run(run) => assert!(run.is_valid() && (run.count > 1 || run.step == 1), "{run:?}"),
            Seg::Sparse(block) => {
                assert!(block.base.is_multiple_of(65_536));
                assert!(block.offsets.len() <= segment::SPARSE_MAX);
                assert!(block.offsets.is_sorted_by(|a, b| a < b));
            }
            Seg::Bits(block) => {
                assert!(block.base.is_multiple_of(65_536) && block.words.len() <= segment::WORDS);
                let again = segment::Bits::new(block.base, &block.words);
                assert_eq!((block.count, block.first, block.last), (again.count, again.first, again.last));
            }
        }
        before = Some(seg.last());
        count += seg.len();
    }
    assert_eq!(count, set.len());
    assert_eq!(set.len(), expected.len() as u64);
    assert!(set.iter().eq(expected.iter().copied()), "numbers differ");
    assert!(set.runs().flat_map(numbers_of).eq(expected.iter().copied()), "runs differ");
    assert_eq!((set.first(), set.last()), (expected.first().copied(), expected.last().copied()));
    let canonical = RunSet::from_ascending(expected.iter().copied());
    assert!(set.runs().eq(canonical.runs()), "runs depend on segments");
    assert_eq!(set, &canonical);
}

fn numbers_of(run: Run) -> impl Iterator<Item = u64> {
    (0..run.count).map(move |at| run.first + at * run.step)
}

/// A set and its oracle from the same recipe: runs, strides, clusters, dense and sparse noise, at a
/// base that may lie near the top of the number space.
#[derive(Clone, Debug)]
enum Part {
    Run(u64, u64, u64),
    Noise { from: u64, span: u64, keep_in_1024: u64, seed: u64 },
}

fn part() -> impl Strategy<Value = Part> {
    let place = prop_oneof![0u64..400, 0u64..70_000, 60_000u64..200_000];
    let step = prop_oneof![Just(1u64), 1u64..6, Just(8u64), 1u64..200, 500u64..3000, 30_000u64..90_000];
    let count = prop_oneof![1u64..4, 1u64..40, 1u64..3000, Just(150_000u64)];
    prop_oneof![
        (place.clone(), count, step)
            .prop_map(|(first, count, step)| { Part::Run(first, count.min(1 + 300_000 / step), step) }),
        (
            place,
            prop_oneof![1u64..300, 1u64..150_000],
            prop_oneof![Just(10u64), Just(512), Just(1000)],
            any::<u64>()
        )
            .prop_map(|(from, span, keep_in_1024, seed)| Part::Noise {
                from,
                span,
                keep_in_1024,
                seed
            }),
    ]
}

fn mix(seed: u64, at: u64) -> u64 {
    let mut x = seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn numbers_of_part(part: &Part, base: u64) -> Vec<u64> {
    match *part {
        Part::Run(first, count, step) => (0..count).map(|at| base + first + at * step).collect(),
        Part::Noise { from, span, keep_in_1024, seed } => (from..from + span)
            .filter(|at| mix(seed, *at) % 1024 < keep_in_1024)
            .map(|at| base + at)
            .collect(),
    }
}

const BASES: [u64; 3] = [0, 1 << 40, u64::MAX - 1 - 1_000_000];

/// A set made by one of several ways, and its oracle.
fn recipe() -> impl Strategy<Value = (Vec<Part>, u8)> {
    (prop::collection::vec(part(), 0..5), 0u8..4)
}

fn build(parts: &[Part], way: u8, base: u64) -> (RunSet, Oracle) {
    let oracle: Oracle = parts.iter().flat_map(|part| numbers_of_part(part, base)).collect();
    let set = match way {
        0 => RunSet::from_ascending(oracle.iter().copied()),
        1 => parts.iter().flat_map(|part| numbers_of_part(part, base)).collect(),
        2 => RunSet::union_all(parts.iter().map(|part| match part {
            Part::Run(first, count, step) => RunSet::from_run(Run::new(base + first, *count, *step).unwrap()),
            noise => RunSet::from_ascending(numbers_of_part(noise, base)),
        })),
        _ => {
            let mut set = RunSet::new();
            for number in parts.iter().flat_map(|part| numbers_of_part(part, base)) {
                set.insert(number);
            }
            set
        }
    };
    (set, oracle)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn every_way_of_building_gives_the_same_set((parts, _) in recipe(), base in 0usize..3) {
        for way in 0..4 {
            let (set, oracle) = build(&parts, way, BASES[base]);
            check(&set, &oracle);
        }
    }

    #[test]
    fn operations_match_the_oracle((a, way_a) in recipe(), (b, way_b) in recipe(), base in 0usize..3) {
        let (a, oracle_a) = build(&a, way_a, BASES[base]);
        let (b, oracle_b) = build(&b, way_b, BASES[base]);
        check(&a.union(&b), &(&oracle_a | &oracle_b));
        check(&a.intersection(&b), &(&oracle_a & &oracle_b));
        check(&a.difference(&b), &(&oracle_a - &oracle_b));
        check(&b.difference(&a), &(&oracle_b - &oracle_a));
        prop_assert_eq!(a.is_subset(&b), oracle_a.is_subset(&oracle_b));
        prop_assert_eq!(a.is_disjoint(&b), oracle_a.is_disjoint(&oracle_b));
        prop_assert!(a.is_subset(&a.union(&b)));
        prop_assert!(a.intersection(&b).is_subset(&b));
        prop_assert_eq!(a == b, oracle_a == oracle_b);
    }

    #[test]
    fn edits_match_the_oracle(
        (parts, way) in recipe(),
        edits in prop::collection::vec(
            (any::<bool>(), prop_oneof![0u64..500, 0u64..70_000, 0u64..250_000]),
            0..800
        ),
        base in 0usize..3,
    ) {
        let (mut set, mut oracle) = build(&parts, way, BASES[base]);
        for (add, number) in edits {
            let number = BASES[base] + number;
            if add {
                prop_assert_eq!(set.insert(number), oracle.insert(number));
            } else {
                // Half of the removals should hit: take the next number that is there.
                let number = oracle.range(number..).next().copied().unwrap_or(number);
                prop_assert_eq!(set.remove(number), oracle.remove(&number));
            }
            prop_assert_eq!(set.len(), oracle.len() as u64);
            if number.is_multiple_of(16) {
                prop_assert_eq!(set.rank(number), oracle.range(..number).count() as u64);
                prop_assert_eq!(set.select(set.len() / 2), oracle.iter().nth(oracle.len() / 2).copied());
            }
        }
        check(&set, &oracle);
    }

    #[test]
    fn positions_match_the_oracle(
        (parts, way) in recipe(),
        probes in prop::collection::vec((0u64..300_000, 0u64..300_000), 1..8),
        base in 0usize..3,
    ) {
        let (set, oracle) = build(&parts, way, BASES[base]);
        let listed: Vec<u64> = oracle.iter().copied().collect();
        for (x, y) in probes {
            let (low, high) = (BASES[base] + x.min(y), BASES[base] + x.max(y));
            prop_assert_eq!(set.contains(low), oracle.contains(&low));
            prop_assert_eq!(set.rank(low), oracle.range(..low).count() as u64);
            check(&set.slice(low, high), &oracle.range(low..=high).copied().collect());
            let (start, count) = (x % (listed.len() as u64 + 2), y % (listed.len() as u64 + 2));
            prop_assert_eq!(set.select(start), listed.get(start as usize).copied());
            check(&set.block(start, count),
                &listed.iter().skip(start as usize).take(count as usize).copied().collect()
            );
        }
        for (rank, number) in listed.iter().enumerate().step_by(1 + listed.len() / 50) {
            prop_assert_eq!(set.select(rank as u64), Some(*number));
            prop_assert_eq!(set.rank(*number), rank as u64);
        }
    }

    #[test]
    fn cut_and_uncut_match_the_oracle(
        (parts, way) in recipe(),
        begin in prop_oneof![Just(0u64), 0u64..300, 0u64..100_000, Just(64u64), Just(65_536u64)],
        span in prop_oneof![0u64..50, 0u64..300_000],
        stride in prop_oneof![Just(1u64), 1u64..9, 1u64..5000],
    ) {
        let (set, oracle) = build(&parts, way, 0);
        let request = Request::new(begin, begin + span, stride).unwrap();
        let cut = set.cut(&request);
        check(&cut, &oracle.iter().filter_map(|number| request.index_of(*number)).collect());
        let back = cut.uncut(&request);
        check(&back, &oracle.iter().copied().filter(|number| request.index_of(*number).is_some()).collect());
        let indices = set.uncut(&request);
        let expected = oracle.iter()
            .filter(|index| **index < request.count())
            .map(|index| request.frame_at(*index));
        check(&indices, &expected.collect());
    }

    #[test]
    fn run_intersection_matches_the_oracle(
        (a, b, c) in (0u64..90, 1u64..60, 1u64..40),
        (d, e, f) in (0u64..90, 1u64..60, 1u64..40),
        lift in prop_oneof![Just(0u64), Just(u64::MAX - 1 - 5000)],
    ) {
        let (x, y) = (Run::new(lift + a, b, c).unwrap(), Run::new(lift + d, e, f).unwrap());
        let expected: Vec<u64> =
            numbers_of(x).filter(|number| numbers_of(y).any(|other| other == *number)).collect();
        let found: Vec<u64> = x.intersection(&y).into_iter().flat_map(numbers_of).collect();
        prop_assert_eq!(found, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn runs_in_any_order_match_the_oracle(
        runs in prop::collection::vec((0u64..3000, 1u64..400,
            prop_oneof![Just(1u64), Just(8), 1u64..50]), 0..12),
        deal in (1u64..9, 1u64..5, 0u64..200, 0u64..500),
        base in 0usize..3,
    ) {
        // A round-robin deal, whole or with a share missing, among other runs.
        let (ways, stride, begin, total) = deal;
        let share = |at: u64| {
            let count = (total + ways - 1 - at) / ways;
            Run::new(BASES[base] + begin + at * stride, count, stride * ways).ok()
        };
        let mut all: Vec<Run> =
            runs.iter()
                .map(|(first, count, step)| Run::new(BASES[base] + first, *count, *step).unwrap())
                .collect();
        all.extend((0..ways).rev().filter_map(share));
        let oracle: Oracle = all.iter().copied().flat_map(numbers_of).collect();
        check(&RunSet::from_runs(all.iter().copied()), &oracle);
        let mut grown = RunSet::new();
        for run in all {
            grown.insert_run(run);
        }
        check(&grown, &oracle);
        let whole = RunSet::from_runs((0..ways).filter_map(share));
        prop_assert!(whole.segs.len() <= 1, "a round-robin deal is one run, not {:?}", whole);
    }

    #[test]
    fn blocks_of_decoders_match_the_oracle(
        parts in prop::collection::vec(
            (0u64..6, prop::collection::btree_set(any::<u16>(), 0..300),
             prop_oneof![Just(1u16), Just(40)], any::<bool>()),
            0..8,
        ),
    ) {
        let (mut set, mut oracle) = (RunSet::new(), Oracle::new());
        for (window, offsets, shrink, as_bits) in parts {
            let base = window << 16;
            let offsets: BTreeSet<u16> = offsets.iter().map(|offset| offset / shrink).collect();
            let numbers: Oracle = offsets.iter().map(|offset| base + u64::from(*offset)).collect();
            let behind = numbers.first().is_none_or(|first| oracle.last().is_none_or(|last| last < first));
            let mut words = vec![0u64; 1024];
            for offset in &offsets {
                words[usize::from(offset / 64)] |= 1 << (offset % 64);
            }
            let listed: Vec<u16> = offsets.into_iter().collect();
            let taken =
                if as_bits { set.extend_bits(base, &words) } else { set.extend_sparse(base, &listed) };
            prop_assert_eq!(taken, behind);
            if behind {
                oracle.extend(numbers);
            }
        }
        check(&set, &oracle);
    }
}

fn stride(first: u64, count: u64, step: u64) -> RunSet {
    RunSet::from_run(Run::new(first, count, step).unwrap())
}

/// The set is this one run and is stored as such.
fn check_run(set: &RunSet, first: u64, count: u64, step: u64) {
    assert_eq!(set.runs().collect::<Vec<_>>(), [Run::new(first, count, step).unwrap()], "{set:?}");
    assert_eq!((set.segs.len(), set.len()), (1, count));
    assert!(set.heap_bytes() < 1024, "{} bytes", set.heap_bytes());
}

const GIGA: u64 = 1_000_000_000;

#[test]
fn huge_runs_combine_in_closed_form() {
    let (even, odd) = (stride(0, GIGA, 2), stride(1, GIGA, 2));
    check_run(&even.union(&odd), 0, 2 * GIGA, 1);
    check_run(&odd.union(&even), 0, 2 * GIGA, 1);
    check_run(&even.union(&RunSet::range(0, 2 * GIGA)), 0, 2 * GIGA + 1, 1);
    check_run(&even.union(&stride(0, GIGA / 2, 4)), 0, GIGA, 2);
    check_run(&even.intersection(&RunSet::range(11, GIGA)), 12, GIGA / 2 - 5, 2);
    check_run(&even.intersection(&stride(0, GIGA, 3)), 0, GIGA / 3 + 1, 6);
    check_run(&stride(7, GIGA, 35).intersection(&stride(0, GIGA, 21)), 42, GIGA * 21 / 105, 105);
    assert!(even.intersection(&odd).is_empty() && even.is_disjoint(&odd));
    check_run(&RunSet::range(0, 2 * GIGA - 1).difference(&even), 1, GIGA, 2);
    check_run(&even.difference(&odd), 0, GIGA, 2);
    check_run(&even.difference(&stride(0, GIGA / 2, 4)), 2, GIGA / 2, 4);
    assert!(even.is_subset(&RunSet::range(0, 2 * GIGA)) && !even.is_subset(&stride(0, GIGA, 4)));
    let whole = RunSet::range(0, NUMBER_MAX);
    assert_eq!(whole.len(), u64::MAX);
    check_run(&whole.difference(&stride(0, 1 << 63, 2)), 1, (1 << 63) - 1, 2);
    check_run(&whole.difference(&RunSet::range(10, NUMBER_MAX)), 0, 10, 1);
}

#[test]
fn thin_runs_cut_huge_ones_in_pieces() {
    let (all, thin) = (RunSet::range(0, GIGA - 1), stride(5, 1000, 1_000_000));
    let rest = all.difference(&thin);
    assert_eq!((rest.len(), rest.segs.len()), (GIGA - 1000, 1001));
    check_run(&rest.union(&thin), 0, GIGA, 1);
    let even = stride(0, GIGA, 2);
    let more = even.union(&thin);
    assert_eq!(more.len(), GIGA + 1000);
    assert!(more.segs.len() <= 2001);
    assert_eq!(more.difference(&even), thin);
    let (a, b) = (stride(0, 10_000, 1 << 20), stride(1, 10_000, 3 << 19));
    assert_eq!(a.union(&b).len(), a.len() + b.len() - a.intersection(&b).len());
    assert_eq!(a.union(&b).difference(&b), a.difference(&b));
}

#[test]
fn huge_runs_answer_positions_at_once() {
    let set = stride(3, GIGA, 8);
    assert!(set.contains(3 + 8 * 999_999_999) && !set.contains(4));
    assert_eq!((set.rank(3 + 8 * 77), set.rank(4 + 8 * 77)), (77, 78));
    assert_eq!((set.select(GIGA - 1), set.select(GIGA)), (Some(3 + 8 * (GIGA - 1)), None));
    check_run(&set.block(GIGA / 2, 1000), 3 + 4 * GIGA, 1000, 8);
    check_run(&set.slice(100, 8 * GIGA), 107, GIGA - 13, 8);
    let request = Request::new(11, 8 * GIGA, 4).unwrap();
    check_run(&set.cut(&request), 0, GIGA - 1, 2);
    check_run(&set.cut(&request).uncut(&request), 11, GIGA - 1, 8);
    let whole = Request::new(0, 1 << 40, 1).unwrap();
    check_run(&RunSet::range(0, u64::MAX).cut(&whole), 0, (1 << 40) + 1, 1);
    check_run(&RunSet::range(0, u64::MAX).uncut(&whole), 0, (1 << 40) + 1, 1);
}

#[test]
fn edits_split_huge_runs_and_heal() {
    let mut set = RunSet::range(0, GIGA - 1);
    for at in 1..=3000 {
        assert!(set.remove(at * 333_333) && !set.remove(at * 333_333));
    }
    assert_eq!((set.len(), set.segs.len()), (GIGA - 3000, 3001));
    for at in 1..=3000 {
        assert!(set.insert(at * 333_333) && !set.insert(at * 333_333));
    }
    assert_eq!((set.segs.len(), set.len()), (1, GIGA));
    assert_eq!(set, RunSet::range(0, GIGA - 1));
    let mut set = stride(0, GIGA, 2);
    assert!(set.insert(1001) && set.remove(1001));
    assert_eq!((set.len(), set.segs.len()), (GIGA, 2));
    assert_eq!(set, stride(0, GIGA, 2), "equality looks through segments");
}

#[test]
fn ascending_arrivals_stay_small() {
    let mut regular = RunSet::new();
    for at in 0..1_000_000 {
        assert!(regular.insert(17 + at * 40));
    }
    check_run(&regular, 17, 1_000_000, 40);
    // An irregular beginning costs one block; the rest is a run again.
    let mut late = RunSet::new();
    (0..50).for_each(|at| assert!(late.insert(at * at)));
    (0..1_000_000).for_each(|at| assert!(late.insert(3000 + at * 8)));
    assert!(late.heap_bytes() < 20_000, "{} bytes", late.heap_bytes());
    let noise = RunSet::from_ascending((0..20_000_000).filter(|at| mix(5, *at).is_multiple_of(100)));
    assert!(
        noise.heap_bytes() as u64 <= 2 * noise.len() + 32 * (20_000_000 / 65_536) * 3,
        "{}",
        noise.heap_bytes()
    );
}

#[test]
fn windows_rejoin_to_one_segment() {
    // Runs hidden in bitmaps come back as runs once an operation has passed over them.
    let noise = RunSet::from_ascending((0..1_000_000).filter(|at| mix(9, *at).is_multiple_of(2)));
    let all = RunSet::range(0, 999_999);
    check_run(&noise.union(&all.difference(&noise)), 0, 1_000_000, 1);
    let thirds = stride(1, 333_333, 3);
    check_run(&noise.union(&thirds).difference(&noise.difference(&thirds)).slice(0, 999_999), 1, 333_333, 3);
}

#[test]
fn bad_runs_and_numbers_are_refused() {
    assert!(Run::new(0, 0, 1).is_err() && Run::new(0, 1, 0).is_err());
    assert!(Run::new(0, u64::MAX, 1).is_ok() && Run::new(1, u64::MAX, 1).is_err());
    assert!(Run::new(u64::MAX, 1, 1).is_err() && Run::new(5, 1 << 33, 1 << 33).is_err());
    assert_eq!(Run::new(5, 1, 9).unwrap(), Run { first: 5, count: 1, step: 1 });
    let mut set = RunSet::range(0, 70_000);
    assert!(
        !set.extend_bits(65_536, &[1])
            && !set.extend_bits(65_537, &[0])
            && !set.extend_bits(1 << 17, &[1; 1025])
    );
    assert!(!set.extend_sparse(65_536, &[7]) && !set.extend_sparse(1 << 17, &[7, 7]));
    let mut top = vec![0; 1024];
    top[1023] = 1 << 63;
    assert!(!set.extend_bits(u64::MAX - 65_535, &top) && !set.extend_sparse(u64::MAX - 65_535, &[65_535]));
    top[1023] = 1 << 62;
    assert!(set.extend_bits(u64::MAX - 65_535, &top));
    assert_eq!((set.last(), set.len()), (Some(NUMBER_MAX), 70_002));
}

#[test]
fn words_of_any_length_become_the_set_of_their_bits() {
    // Empty, full, regular and irregular windows.
    let word = |at: u64| match at / 1024 {
        0 => 0,
        1 => u64::MAX,
        2 => 0x1111_1111_1111_1111,
        _ => (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    };
    let words: Vec<u64> = (0..5000).map(word).collect();
    let bits = |bit: &u64| words[(*bit / 64) as usize] >> (bit % 64) & 1 == 1;
    for first in [0, 65_536, 7 * 65_536] {
        let set = RunSet::from_words(first, &words);
        let expected: Vec<u64> = (0..64 * words.len() as u64).filter(bits).map(|bit| first + bit).collect();
        assert_eq!(set.len(), expected.len() as u64);
        assert!(set.iter().eq(expected.iter().copied()));
        assert!(set == RunSet::from_ascending(expected));
        assert!(set.clone().into_runs().eq(set.runs()));
    }
    assert!(RunSet::from_words(0, &[]).is_empty());
}

#[test]
fn copies_share_blocks_until_one_is_changed() {
    let words: Vec<u64> = (1..3000u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let set = RunSet::from_words(0, &words);
    let before: Vec<u64> = set.iter().collect();
    let mut copy = set.clone();
    let slice = set.slice(65_536, u64::MAX);
    for number in [0, 70_000, 70_001, 140_000] {
        if !copy.insert(number) {
            copy.remove(number);
        }
        assert_ne!(copy.contains(number), set.contains(number));
        assert_eq!(slice.contains(number), number >= 65_536 && set.contains(number));
    }
    assert!(set.iter().eq(before));
}
