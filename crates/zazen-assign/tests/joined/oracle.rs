//! Every protocol, rule set and implementation of collectives against the rules as written, frame
//! by frame.

// A test may unwrap; clippy knows that of test functions only.

use crate::common::{Case, Draw, lockstep};
use proptest::prelude::*;
use std::collections::BTreeSet;
use zazen_assign::{
    Assignment, Collectives, Input, Machine, Path, Protocol, Rules, Solo, Tuning, assign, threads,
};
use zazen_core::{Request, Run, RunSet};

type Carrier = fn(&[Input]) -> Vec<Assignment>;

fn by_threads(inputs: &[Input]) -> Vec<Assignment> {
    threads::run(inputs.len(), |carrier| assign(inputs[carrier.rank()].clone(), carrier))
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

fn by_lockstep(inputs: &[Input]) -> Vec<Assignment> {
    let size = inputs.len();
    let machine = |(rank, input): (usize, &Input)| Machine::new(input.clone(), rank, size).unwrap();
    let machines = inputs.iter().enumerate().map(machine).collect();
    lockstep(machines, |_, _, _| ()).into_iter().map(Result::unwrap).collect()
}

/// Chunks are always compared, even if little is gained, and are as small as possible.
const FINE: Tuning =
    Tuning { chunk_words_min: 1, offer_bytes_per_chunk: 0, weighed_bytes: 0, packed_bytes_min: 1 };

fn by_chunks(inputs: &[Input]) -> Vec<Assignment> {
    let size = inputs.len();
    let machine =
        |(rank, input): (usize, &Input)| Machine::new(input.clone(), rank, size).unwrap().tuned(FINE);
    let machines = inputs.iter().enumerate().map(machine).collect();
    lockstep(machines, |_, _, _| ()).into_iter().map(Result::unwrap).collect()
}

/// All variants of `case` against the oracle.
fn check(case: &Case, carriers: &[Carrier]) {
    for rules in [Rules::Full, Rules::Paper] {
        let (expected, totals) = case.solved(rules);
        for protocol in [Protocol::Owner, Protocol::Bitmaps] {
            for (at, carrier) in carriers.iter().enumerate() {
                for exact in [false, true] {
                    let found = carrier(&case.inputs(rules, protocol, exact));
                    let what = format!("{rules:?} {protocol:?} carrier {at} exact {exact}");
                    compare(case, &found, &expected, totals, &what);
                    let perfect = totals == [case.wanted().len() as u64, 0, 0] && sole_natives(case);
                    let fingerprint = protocol == Protocol::Owner && !exact && perfect;
                    let path = if fingerprint { Path::Fingerprint } else { Path::Exchange };
                    assert!(found.iter().all(|share| share.path == path), "{what}: path");
                }
            }
        }
    }
}

fn sole_natives(case: &Case) -> bool {
    let alive: BTreeSet<usize> = case.nodes_of_ranks.iter().copied().collect();
    case.wanted()
        .iter()
        .all(|frame| alive.iter().filter(|node| case.native[**node].contains(frame)).count() == 1)
}

fn compare(case: &Case, found: &[Assignment], expected: &[BTreeSet<u64>], totals: [u64; 3], what: &str) {
    let mut seen = BTreeSet::new();
    for (rank, (share, expected)) in found.iter().zip(expected).enumerate() {
        let set: BTreeSet<u64> = share.set.iter().collect();
        assert_eq!(&set, expected, "{what}: rank {rank}");
        assert!(set.iter().all(|frame| seen.insert(*frame)), "{what}: a frame is read twice");
        assert_eq!([share.total.native, share.total.alien, share.total.residue], totals, "{what}: totals");
        let (mine, parts) = (share.mine, &share.parts);
        assert!(parts.native.union(&parts.alien).union(&parts.residue) == share.set, "{what}: parts");
        let lengths = [parts.native.len(), parts.alien.len(), parts.residue.len()];
        assert_eq!(lengths, [mine.native, mine.alien, mine.residue], "{what}: rank {rank}'s parts");
        assert_eq!(
            mine.native + mine.alien + mine.residue,
            set.len() as u64,
            "{what}: rank {rank}'s own counts"
        );
    }
    assert_eq!(seen, case.wanted(), "{what}: every wanted frame is read");
    let sum = |part: fn(&Assignment) -> u64| found.iter().map(part).sum::<u64>();
    let counted = [sum(|s| s.mine.native), sum(|s| s.mine.alien), sum(|s| s.mine.residue)];
    assert_eq!(counted, totals, "{what}: the ranks' counts add up");
    assert!(found.iter().all(|share| share.rounds == found[0].rounds), "{what}: rounds");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn small_cases_agree_with_the_rules(seed in any::<u64>()) {
        check(&Case::drawn(seed, 300), &[by_lockstep, by_threads, by_chunks]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]
    #[test]
    fn cases_of_several_windows_agree_with_the_rules(seed in any::<u64>()) {
        check(&Case::drawn(seed, 150_000), &[by_lockstep, by_chunks]);
    }
}

/// Holdings made of long runs with a few odd frames, over many windows: the owners take stretches
/// in closed form here, the bitmap protocol never does.
fn long_runs(seed: u64, protocol: Protocol) -> Vec<Input> {
    let mut draw = Draw::new(seed);
    let frames = 1_000_000 + draw.below(3_000_000);
    let nodes = 1 + draw.below(9);
    let begin = draw.below(1 << 30);
    let mut native = vec![RunSet::new(); nodes as usize];
    let mut alien = native.clone();
    let mut at = begin.saturating_sub(5);
    while at < begin + frames {
        let length = 1 + draw.below(2_000_000);
        let step = [1, 1, nodes, nodes, 1 + draw.below(200)][draw.below(5) as usize];
        for first in 0..step.min(nodes) {
            let home = [first, first, draw.below(nodes)][draw.below(3) as usize] as usize;
            let kind = draw.below(20);
            let run = Run::new(at + first, 1 + length / step, step).unwrap();
            let sets = if kind == 0 { &mut alien } else { &mut native };
            if kind != 1 {
                sets[home].insert_run(run);
            }
        }
        for _ in 0..draw.below(4) {
            native[draw.below(nodes) as usize].remove(at + draw.below(length));
            native[draw.below(nodes) as usize].insert(at + draw.below(length));
            alien[draw.below(nodes) as usize].insert(at + draw.below(length));
        }
        at += length + draw.below(3) * draw.below(400_000);
    }
    let target = (draw.below(3) == 0)
        .then(|| RunSet::range(begin + draw.below(1000), begin + frames - draw.below(1000)));
    let ranks = nodes + draw.below(3);
    let input = |rank: u64| Input {
        node: u128::from(rank % nodes),
        native: native[(rank % nodes) as usize].clone(),
        alien: alien[(rank % nodes) as usize].clone(),
        request: Request::new(begin, begin + frames - 1, 1).unwrap(),
        target: target.clone(),
        rules: if seed.is_multiple_of(2) { Rules::Full } else { Rules::Paper },
        protocol,
        verify_exact: false,
        seed: [3; 16],
    };
    (0..ranks).map(input).collect()
}

#[test]
fn long_runs_give_the_same_in_both_protocols() {
    for seed in 0..30 {
        let inputs = long_runs(seed, Protocol::Owner);
        let owner = by_lockstep(&inputs);
        let bitmaps = by_lockstep(&long_runs(seed, Protocol::Bitmaps));
        for (rank, (a, b)) in owner.iter().zip(&bitmaps).enumerate() {
            assert!(a.set == b.set, "seed {seed} rank {rank}");
            assert_eq!((a.mine, a.total), (b.mine, b.total), "seed {seed} rank {rank}");
        }
        let request = inputs[0].request;
        let whole = RunSet::range(request.begin(), request.end());
        let wanted = inputs[0].target.as_ref().map_or(whole.clone(), |target| target.intersection(&whole));
        assert_eq!(owner.iter().map(|share| share.set.len()).sum::<u64>(), wanted.len(), "seed {seed}");
        assert!(RunSet::union_all(owner.into_iter().map(|share| share.set)) == wanted, "seed {seed}");
    }
}

#[test]
fn one_rank_alone_reads_everything() {
    for seed in 0..40 {
        let mut case = Case::drawn(seed, 200);
        case.nodes_of_ranks.truncate(1);
        check(&case, &[|inputs| vec![assign(inputs[0].clone(), &Solo).unwrap()]]);
        let share = assign(case.inputs(Rules::Full, Protocol::Owner, false).remove(0), &Solo).unwrap();
        assert_eq!(share.bytes_sent, 0);
    }
}

#[test]
fn where_ranks_of_a_node_differ_the_leaders_sets_count() {
    let mut raced = 0;
    for seed in 0..60 {
        let case = Case::drawn(seed, 200);
        let mut draw = Draw::new(seed);
        for (rules, protocol) in [(Rules::Full, Protocol::Owner), (Rules::Full, Protocol::Bitmaps)] {
            let (expected, totals) = case.solved(rules);
            let mut inputs = case.inputs(rules, protocol, false);
            for (rank, input) in inputs.iter_mut().enumerate() {
                let follows = case.nodes_of_ranks[..rank].contains(&case.nodes_of_ranks[rank]);
                if follows && draw.below(2) == 0 {
                    let late = case.request.frame_at(draw.below(case.request.count()));
                    raced += 1;
                    if !input.native.insert(late) {
                        input.native.remove(late);
                    }
                }
            }
            compare(&case, &by_lockstep(&inputs), &expected, totals, &format!("seed {seed} {protocol:?}"));
        }
    }
    assert!(raced > 20);
}

/// More contested frames than are decided in one place: still one reader each, the same in both
/// protocols, and level within each slice.
#[test]
fn many_duplicates_are_read_once_and_level_by_slice() {
    let frames = zazen_assign::DECIDED_TOGETHER_MAX + 200_000;
    let request = Request::new(0, frames - 1, 1).unwrap();
    // Node 2 begins with frames of its own; all hold the rest.
    let held = [(1 << 20, frames - 1), (1 << 20, frames - 1), (0, frames - 1)];
    let inputs = |protocol| -> Vec<Input> {
        let input = |(node, (first, last)): (usize, &(u64, u64))| Input {
            node: node as u128,
            native: RunSet::range(*first, *last),
            alien: RunSet::new(),
            request,
            target: None,
            rules: Rules::Full,
            protocol,
            verify_exact: true,
            seed: [1; 16],
        };
        held.iter().enumerate().map(input).collect()
    };
    let shares = by_lockstep(&inputs(Protocol::Owner));
    assert_eq!(shares.iter().map(|share| share.set.len()).sum::<u64>(), frames);
    assert!(RunSet::union_all(shares.iter().map(|share| share.set.clone())) == RunSet::range(0, frames - 1));
    for (share, (first, last)) in shares.iter().zip(&held) {
        assert!(share.set.is_subset(&RunSet::range(*first, *last)));
        // Each of the three owners gives node 2 less, because of its share of the loads. Each is
        // off by one frame.
        assert!(share.set.len().abs_diff(frames / 3) <= 3, "{} of {frames}", share.set.len());
    }
    let bitmaps = by_lockstep(&inputs(Protocol::Bitmaps));
    assert!(shares.iter().zip(&bitmaps).all(|(a, b)| a.set == b.set));
}
