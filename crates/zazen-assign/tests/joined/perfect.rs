//! Perfect and almost perfect hits: fingerprints over the whole request and by chunk.

// A test may unwrap; clippy knows that of test functions only.

use crate::common::{Draw, lockstep};
use std::collections::BTreeSet;
use zazen_assign::{Answer, Assignment, Input, Machine, Path, Protocol, Rules, Tuning};
use zazen_core::{Request, Run, RunSet};

/// Chunks of `words` words are always compared, even if little is gained.
fn fine(words: u64) -> Tuning {
    Tuning { chunk_words_min: words, offer_bytes_per_chunk: 0, weighed_bytes: 0, packed_bytes_min: 1 }
}

fn run(inputs: &[Input], tuning: Tuning) -> Vec<Assignment> {
    let machine = |(rank, input): (usize, &Input)| {
        Machine::new(input.clone(), rank, inputs.len()).unwrap().tuned(tuning)
    };
    let machines = inputs.iter().enumerate().map(machine).collect();
    lockstep(machines, |_, _, _| ()).into_iter().map(Result::unwrap).collect()
}

/// One rank per node; `begin` is where the request begins and the holdings do.
fn inputs(native: &[RunSet], begin: u64, frames: u64) -> Vec<Input> {
    let input = |(node, native): (usize, &RunSet)| Input {
        node: node as u128,
        native: native.clone(),
        alien: RunSet::new(),
        request: Request::new(begin, begin + frames - 1, 1).unwrap(),
        target: None,
        rules: Rules::Full,
        protocol: Protocol::Owner,
        verify_exact: false,
        seed: [5; 16],
    };
    native.iter().enumerate().map(input).collect()
}

/// Each frame on one node: a placement for each kind of segment.
fn placements(begin: u64, frames: u64) -> Vec<(&'static str, Vec<RunSet>)> {
    let by = |nodes: usize, home: &mut dyn FnMut(u64) -> u64| -> Vec<RunSet> {
        let mut lists = vec![Vec::new(); nodes];
        (0..frames).for_each(|frame| lists[home(frame) as usize].push(begin + frame));
        lists.into_iter().map(RunSet::from_ascending).collect()
    };
    let mut draw = Draw::new(frames);
    let mut more = Draw::new(frames + 1);
    vec![
        ("contiguous", by(4, &mut |frame| frame * 4 / frames)),
        ("round robin", by(7, &mut |frame| frame % 7)),
        ("blocks of 100", by(5, &mut |frame| frame / 100 % 5)),
        ("bitmaps", by(3, &mut |_| draw.below(3))),
        ("sparse", by(40, &mut |_| more.below(40))),
        ("mixed", by(6, &mut |frame| [frame % 3, more.below(6), 5][(frame * 3 / frames) as usize])),
    ]
}

#[test]
fn one_missing_doubled_or_swapped_frame_is_always_caught() {
    for (begin, frames) in [(0, 200_000), (77, 140_003)] {
        for (name, native) in placements(begin, frames) {
            let mut draw = Draw::new(begin + native.len() as u64);
            for tuning in [Tuning::default(), fine(16)] {
                let perfect = run(&inputs(&native, begin, frames), tuning);
                assert!(perfect.iter().all(|share| share.path == Path::Fingerprint), "{name}: perfect");
            }
            for round in 0..12 {
                let (gone, again) = (begin + draw.below(frames), begin + draw.below(frames));
                let other = draw.below(native.len() as u64) as usize;
                for defect in ["missing", "doubled", "swapped"] {
                    let mut changed = native.clone();
                    let (mut lost, mut extra) = (0, 0);
                    if defect != "doubled" {
                        lost = u64::from(changed.iter_mut().any(|set| set.remove(gone)));
                    }
                    if defect != "missing" {
                        extra = u64::from(changed[other].insert(again));
                    }
                    let hole = lost == 1 && !changed.iter().any(|set| set.contains(gone));
                    let what =
                        format!("{name}, {defect}, round {round}: {gone} from its node, {again} to {other}");
                    let tuning = if round % 2 == 0 { Tuning::default() } else { fine(1 << (round % 5)) };
                    let shares = run(&inputs(&changed, begin, frames), tuning);
                    let caught = shares[0].path == Path::Exchange;
                    assert_eq!(caught, hole || extra == 1 && !(lost == 1 && gone == again), "{what}");
                    assert_eq!(shares[0].total.residue, u64::from(hole), "{what}");
                    let read: u64 = shares.iter().map(|share| share.set.len()).sum();
                    assert_eq!(read, frames, "{what}");
                    let all = RunSet::union_all(shares.into_iter().map(|share| share.set));
                    assert!(all == RunSet::range(begin, begin + frames - 1), "{what}");
                }
            }
        }
    }
}

/// Random holdings with a few defects here and there: most chunks are settled, and the shares are
/// those of the bitmap protocol, frame by frame.
fn few_defects(seed: u64) -> Vec<Input> {
    let mut draw = Draw::new(seed);
    let nodes = 1 + draw.below(6) as usize;
    let ranks = nodes + draw.below(5) as usize;
    let frames = 20_000 + draw.below(200_000);
    let begin = [0, draw.below(1 << 20), 65_536 * draw.below(99)][draw.below(3) as usize];
    let stride = [1, 1, 1 + draw.below(5)][draw.below(3) as usize];
    let request = Request::new(begin, begin + (frames - 1) * stride, stride).unwrap();
    let (mut native, mut alien) = (vec![Vec::new(); nodes], vec![BTreeSet::new(); nodes]);
    let random = draw.below(3) > 0;
    for frame in begin..=request.end() {
        let home = if random { draw.below(nodes as u64) } else { frame / 333 % nodes as u64 };
        native[home as usize].push(frame);
        if draw.below(50) == 0 {
            alien[draw.below(nodes as u64) as usize].insert(frame);
        }
    }
    let mut native: Vec<RunSet> = native.into_iter().map(RunSet::from_ascending).collect();
    for _ in 0..draw.below(6) {
        // A hole of some frames, with aliens for a few of them.
        let first = begin + draw.below(frames * stride);
        for frame in first..first + 1 + draw.below(40) {
            for set in &mut native {
                set.remove(frame);
            }
            for _ in 0..draw.below(3) {
                alien[draw.below(nodes as u64) as usize].insert(frame);
            }
        }
    }
    for _ in 0..draw.below(6) {
        native[draw.below(nodes as u64) as usize].insert(begin + draw.below(frames * stride));
    }
    let target = (draw.below(3) == 0).then(|| {
        let mut target = RunSet::range(begin + draw.below(500), request.end());
        for _ in 0..20 {
            target.remove(begin + draw.below(frames * stride));
        }
        target
    });
    let rules = if draw.below(3) == 0 { Rules::Paper } else { Rules::Full };
    let input = |rank: usize| Input {
        node: (rank % nodes) as u128,
        native: native[rank % nodes].clone(),
        alien: alien[rank % nodes].iter().copied().collect(),
        request,
        target: target.clone(),
        rules,
        protocol: Protocol::Owner,
        verify_exact: false,
        seed: (u128::from(seed) << 64 | 9).to_le_bytes(),
    };
    (0..ranks).map(input).collect()
}

#[test]
fn settled_chunks_leave_the_assignment_as_it_is() {
    let mut saved = 0;
    for seed in 0..60 {
        let inputs = few_defects(seed);
        let bitmaps: Vec<Input> =
            inputs.iter().map(|input| Input { protocol: Protocol::Bitmaps, ..input.clone() }).collect();
        let exact: Vec<Input> =
            inputs.iter().map(|input| Input { verify_exact: true, ..input.clone() }).collect();
        let expected = run(&bitmaps, Tuning::default());
        let whole = run(&exact, Tuning::default());
        for words in [1, 8, 64, 1024] {
            let found = run(&inputs, fine(words));
            for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!(found.set == expected.set, "seed {seed}, {words} words, rank {rank}");
                assert_eq!(found.mine, expected.mine, "seed {seed}, {words} words, rank {rank}");
                assert_eq!(found.total, expected.total, "seed {seed}, {words} words");
            }
            let sum = |shares: &[Assignment]| shares.iter().map(|share| share.bytes_sent).sum::<u64>();
            saved += u64::from(sum(&found) < sum(&whole));
        }
        assert!(whole.iter().zip(&expected).all(|(a, b)| a.set == b.set), "seed {seed}: exact");
    }
    assert!(saved > 60, "chunks were settled so that fewer bytes were sent in {saved} of 240 runs");
}

#[test]
fn a_hole_in_a_random_placement_costs_little_and_settles_the_rest() {
    let frames = 30 << 20;
    let mut draw = Draw::new(3);
    let drawn: Vec<(u64, u64)> = (0..frames / 64).map(|_| (draw.next(), draw.next())).collect();
    let node = |pick: fn(u64, u64) -> u64| drawn.iter().map(|(a, b)| pick(*a, *b)).collect::<Vec<u64>>();
    let words = [node(|a, b| a & b), node(|a, b| a & !b), node(|a, b| !a & b), node(|a, b| !a & !b)];
    let mut native: Vec<RunSet> = words.iter().map(|words| RunSet::from_words(0, words)).collect();
    assert!(native.iter_mut().any(|set| set.remove(12_345_678)));
    let inputs = inputs(&native, 0, frames as u64);
    let mut rounds = Vec::new();
    let machines = (0..4).map(|rank| Machine::new(inputs[rank].clone(), rank, 4).unwrap()).collect();
    let shares = lockstep(machines, |_, rank, answer| {
        if rank == 0 {
            rounds.push(matches!(answer, Answer::Words(_)));
        }
    });
    for share in shares {
        let share = share.unwrap();
        assert_eq!((share.path, share.total.residue), (Path::Exchange, 1));
        // One chunk of 65 536 frames was exchanged: 8 KiB from each rank at most.
        assert!(share.bytes_sent < 40_000, "{}", share.bytes_sent);
    }
    // Start, header; node ids, members, held; chunk counts, chunk fingerprints; offer, tally,
    // answer.
    let words = [false, true, false, false, true, true, true, false, false, false];
    assert_eq!(rounds, words);
}

/// A node of eight is dead: what the others hold is a bitmap with one bit of eight set.
#[test]
fn a_dead_node_in_a_random_placement_costs_about_the_entropy() {
    let frames = 20 << 20;
    let mut draw = Draw::new(4);
    let mut words = vec![Vec::new(); 8];
    for _ in 0..frames / 64 {
        let bits = [draw.next(), draw.next(), draw.next()];
        for (node, words) in words.iter_mut().enumerate() {
            let pick = |bit: usize| if node >> bit & 1 == 1 { bits[bit] } else { !bits[bit] };
            words.push(pick(0) & pick(1) & pick(2));
        }
    }
    let mut native: Vec<RunSet> = words.iter().map(|words| RunSet::from_words(0, words)).collect();
    native[7] = RunSet::new();
    let inputs = inputs(&native, 0, frames);
    let weighed = Tuning { weighed_bytes: 0, ..Tuning::default() };
    let (plain, packed) = (run(&inputs, Tuning::default()), run(&inputs, weighed));
    // The lockstep driver lets every other rank pack.
    for (rank, (plain, packed)) in plain.iter().zip(&packed).enumerate() {
        assert!(plain.set == packed.set && plain.mine == packed.mine, "rank {rank}");
    }
    // Seven eighths of its holdings to others, an eighth of the residue to the dead node's rank.
    let bitmap = frames as f64 / 8.0;
    let share = |sent: u64| sent as f64 / bitmap;
    assert!(share(plain[0].bytes_sent) > 0.99, "{}", share(plain[0].bytes_sent));
    assert!((0.543..0.565).contains(&share(packed[0].bytes_sent)), "{}", share(packed[0].bytes_sent));
}

#[test]
fn a_run_of_a_billion_and_random_holdings_agree_about_the_same_set() {
    // The closed form on one side, blocks on the other: their fingerprints must cancel.
    let frames: u64 = 3_000_000;
    let mut draw = Draw::new(8);
    let mut own = Vec::new();
    let strided = Run::new(1, frames / 3, 3).unwrap();
    for frame in 0..frames {
        if !strided.contains(frame) && draw.below(2) == 0 {
            own.push(frame);
        }
    }
    let own = RunSet::from_ascending(own);
    let rest = RunSet::range(0, frames - 1).difference(&own).difference(&RunSet::from_run(strided));
    let shares = run(&inputs(&[own, RunSet::from_run(strided), rest], 0, frames), fine(1));
    assert!(shares.iter().all(|share| share.path == Path::Fingerprint));
}
