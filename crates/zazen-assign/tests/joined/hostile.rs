//! Peers that break the protocol, and ranks that differ, fail or leave: every rank gets an error,
//! and none panics or waits for ever.

// A test may unwrap; clippy knows that of test functions only.

use crate::common::{Case, Draw, lockstep};
use std::panic::{AssertUnwindSafe, catch_unwind};
use zazen_assign::{
    Answer, Collectives, Counting, Input, Machine, Protocol, Rules, Shared, assign, decline, dense, sparse,
    threads,
};
use zazen_core::{Error, ErrorKind, Request, RunSet};

fn machines(inputs: &[Input]) -> Vec<Machine> {
    let size = inputs.len();
    let machine = |(rank, input): (usize, &Input)| Machine::new(input.clone(), rank, size).unwrap();
    inputs.iter().enumerate().map(machine).collect()
}

/// Changes one answer: cuts, flips, grows or swaps bytes, or changes a word.
fn spoil(draw: &mut Draw, answer: &mut Answer) {
    match answer {
        Answer::Start => (),
        Answer::Slow(slow) => *slow = !*slow,
        Answer::Words(shared) => {
            let mut words = shared.to_vec();
            let at = draw.below(words.len() as u64 + 1) as usize;
            match draw.below(4) {
                0 => words.truncate(at),
                1 => words.push(draw.next()),
                2 => words.iter_mut().skip(at).take(1).for_each(|word| *word = draw.next()),
                _ => words.iter_mut().skip(at).take(1).for_each(|word| *word ^= 1 << draw.below(64)),
            }
            *shared = Shared::from(words);
        }
        Answer::Gathered(shared) => {
            let mut blocks = shared.to_vec();
            let other = blocks[draw.below(blocks.len() as u64) as usize].clone();
            if draw.below(7) == 0 {
                blocks.pop();
            } else {
                let from = draw.below(blocks.len() as u64) as usize;
                spoil_block(draw, &mut blocks[from], other);
            }
            *shared = Shared::from(blocks);
        }
        Answer::Blocks(blocks) if blocks.is_empty() => {
            blocks.push((draw.below(9) as usize, (0..draw.below(60)).map(|_| draw.next() as u8).collect()));
        }
        Answer::Blocks(blocks) => {
            let other = blocks[draw.below(blocks.len() as u64) as usize].1.clone();
            let from = draw.below(blocks.len() as u64) as usize;
            match draw.below(9) {
                0 => drop(blocks.pop()),
                1 => blocks[from].0 = draw.below(9) as usize,
                _ => spoil_block(draw, &mut blocks[from].1, other),
            }
        }
    }
}

fn spoil_block(draw: &mut Draw, block: &mut Vec<u8>, other: Vec<u8>) {
    let at = draw.below(block.len() as u64 + 1) as usize;
    match draw.below(6) {
        0 => block.truncate(at),
        1 => block.insert(at, draw.next() as u8),
        2 => *block = other,
        3 => *block = (0..draw.below(60)).map(|_| draw.next() as u8).collect(),
        4 => block.extend_from_slice(&other),
        _ => block.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << draw.below(8)),
    }
}

#[test]
fn whatever_the_peers_send_there_is_an_error_or_a_share() {
    let (mut errors, mut shares) = (0, 0);
    for seed in 0..3000u64 {
        let mut draw = Draw::new(seed);
        let case = Case::drawn(draw.next(), 200);
        let rules = if draw.below(2) == 0 { Rules::Full } else { Rules::Paper };
        let protocol = if draw.below(2) == 0 { Protocol::Owner } else { Protocol::Bitmaps };
        let inputs = case.inputs(rules, protocol, draw.below(2) == 0);
        let victim = draw.below(inputs.len() as u64) as usize;
        let spoiled_round = 1 + draw.below(11) as u32;
        let run = || {
            lockstep(machines(&inputs), |round, rank, answer| {
                if round == spoiled_round && rank == victim {
                    spoil(&mut draw, answer);
                }
            })
        };
        let results = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| panic!("seed {seed} panicked"));
        match &results[victim] {
            Ok(_) => shares += 1,
            Err(error) => {
                let known = [
                    ErrorKind::Protocol,
                    ErrorKind::InvalidArgument,
                    ErrorKind::Unavailable,
                    ErrorKind::TooLarge,
                ];
                assert!(known.contains(&error.kind()), "seed {seed}: {:?} {error}", error.kind());
                errors += 1;
            }
        }
    }
    assert!(errors > 500 && shares > 500, "{errors} errors, {shares} shares: the fuzz tests nothing");
}

#[test]
fn malformed_blocks_are_protocol_errors() {
    let mut case = Case::drawn(5, 200);
    case.nodes_of_ranks = vec![0, 0];
    case.request = Request::new(0, 99, 1).unwrap();
    case.target = None;
    case.native = vec![(0..50).collect()];
    case.alien = vec![(40..60).collect()];
    let inputs = case.inputs(Rules::Full, Protocol::Owner, true);
    let rounds = 1..lockstep(machines(&inputs), |_, _, _| ())[0].as_ref().unwrap().rounds + 1;
    for round in rounds {
        for garbage in [&[0xff; 40][..], &[1], &[9, 0, 0, 0, 1]] {
            let results = lockstep(machines(&inputs), |at, rank, answer| match answer {
                _ if at != round || rank != 1 => (),
                Answer::Blocks(blocks) => *blocks = vec![(0, garbage.to_vec())],
                Answer::Gathered(blocks) => *blocks = vec![garbage.to_vec(); blocks.len()].into(),
                Answer::Words(_) | Answer::Slow(_) | Answer::Start => (),
            });
            if let Err(error) = &results[1] {
                assert_eq!(error.kind(), ErrorKind::Protocol, "round {round}: {error}");
            }
        }
    }
    // A rank that does not lead its node may not offer.
    let results = lockstep(machines(&inputs), |at, rank, answer| {
        if let (5, 0, Answer::Blocks(blocks)) = (at, rank, answer) {
            blocks[0].0 = 1;
        }
    });
    let error = results[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains("rank 1"), "{error}");
}

#[test]
fn answers_out_of_turn_are_refused() {
    let input = Case::drawn(1, 10).inputs(Rules::Full, Protocol::Owner, false).remove(0);
    assert_eq!(Machine::new(input.clone(), 3, 3).err().unwrap().kind(), ErrorKind::InvalidArgument);
    let mut machine = Machine::new(input.clone(), 0, 1).unwrap();
    assert_eq!(machine.step(Answer::Words(vec![1].into())).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(machine.step(Answer::Start).unwrap_err().kind(), ErrorKind::InvalidArgument, "it is over");
    let mut machine = Machine::new(input, 0, 1).unwrap();
    machine.step(Answer::Start).unwrap();
    assert_eq!(machine.step(Answer::Blocks(vec![])).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn ranks_that_differ_all_get_the_same_error() {
    let mut case = Case::drawn(11, 200);
    case.nodes_of_ranks = vec![0, 0, 0, 0];
    case.target = None;
    let other = Request::new(case.request.begin(), case.request.end() + 1, case.request.stride()).unwrap();
    type Edit = Box<dyn Fn(&mut Input)>;
    let edits: Vec<(&str, Edit)> = vec![
        ("stride", Box::new(move |input| input.request = other)),
        ("target", Box::new(|input| input.target = Some(RunSet::range(0, 5)))),
        ("target", Box::new(|input| input.target = Some(RunSet::new()))),
        ("rules", Box::new(|input| input.rules = Rules::Paper)),
        ("protocol", Box::new(|input| input.protocol = Protocol::Bitmaps)),
        ("verify", Box::new(|input| input.verify_exact = true)),
    ];
    for (names, edit) in &edits {
        for odd in 0..4 {
            let mut inputs = case.inputs(Rules::Full, Protocol::Owner, false);
            edit(&mut inputs[odd]);
            let results = threads::run(4, |carrier| assign(inputs[carrier.rank()].clone(), carrier));
            let errors: Vec<Error> = results.into_iter().map(Result::unwrap_err).collect();
            for error in &errors {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert_eq!(error.to_string(), errors[0].to_string());
                assert!(error.to_string().contains(names), "{error}");
            }
        }
    }
}

#[test]
fn a_rank_that_declines_ends_all_with_its_reason() {
    let inputs = Case::drawn(3, 200).inputs(Rules::Full, Protocol::Owner, false);
    let size = inputs.len().max(2);
    let results = threads::run(size, |carrier| {
        if carrier.rank() == 1 {
            let reason = Error::new(ErrorKind::Unavailable, "no daemon at /run/zazen");
            return Err(decline(reason, carrier));
        }
        assign(inputs[0].clone(), carrier)
    });
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("rank 1 cannot take part: no daemon at /run/zazen"), "{error}");
    }
}

#[test]
fn a_bitmap_request_beyond_the_limit_is_refused_by_all() {
    let mut case = Case::drawn(3, 200);
    case.request = Request::new(0, zazen_assign::BITMAP_FRAMES_MAX, 1).unwrap();
    let inputs = case.inputs(Rules::Full, Protocol::Bitmaps, false);
    for result in threads::run(inputs.len(), |carrier| assign(inputs[carrier.rank()].clone(), carrier)) {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::TooLarge);
    }
}

#[test]
fn a_rank_that_fails_panics_or_differs_does_not_hang_the_others() {
    let lost =
        |result: &zazen_core::Result<()>| result.as_ref().is_err_and(|e| e.kind() == ErrorKind::Unavailable);
    let results = threads::run(4, |carrier| {
        carrier.allgatherv(b"all are here")?;
        if carrier.rank() == 2 {
            return Err(Error::new(ErrorKind::Io, "own trouble"));
        }
        carrier.allreduce_sum(&mut [1]).map(|_| ())
    });
    assert_eq!(results[2].as_ref().unwrap_err().kind(), ErrorKind::Io);
    assert!([0, 1, 3].iter().all(|rank| lost(&results[*rank])));
    assert!(results[0].as_ref().unwrap_err().to_string().contains("rank 2"));

    let results = threads::run(3, |carrier| {
        assert!(carrier.rank() != 1, "this panic is part of the test");
        carrier.broadcast(b"x").map(|_| ())
    });
    assert!(results.iter().all(lost));

    let results = threads::run(2, |carrier| match carrier.rank() {
        0 => carrier.allreduce_or(&mut [1, 2]).map(|_| ()),
        _ => carrier.alltoallv(Vec::new()).map(|_| ()),
    });
    assert!(results.iter().any(|result| result.as_ref().is_err_and(|e| e.kind() == ErrorKind::Protocol)));
    assert!(results.iter().all(Result::is_err));
}

#[test]
fn threads_carry_every_collective() {
    let size = 5;
    let results = threads::run(size, |carrier| {
        let counting = Counting::new(carrier);
        let rank = counting.rank();
        let mut sum: Vec<u64> = (0..13).map(|at| at + rank as u64).collect();
        counting.allreduce_sum(&mut sum)?;
        assert_eq!(sum, (0..13).map(|at| 5 * at + 10).collect::<Vec<u64>>());
        let mut few = [1 << rank, 0];
        counting.allreduce_or(&mut few)?;
        assert_eq!(few, [0b11111, 0]);
        let mut entries = [0b01 << (2 * (rank / 2))];
        counting.allreduce_two_bit(&mut entries)?;
        assert_eq!(entries, [0b01_10_10]);
        counting.allreduce_sum(&mut [])?;
        let sent = sparse((0..size).map(|to| vec![rank as u8; to]).collect());
        let got = counting.alltoallv(sent)?;
        assert_eq!(dense(got, size), (0..size).map(|from| vec![from as u8; rank]).collect::<Vec<_>>());
        let all = counting.allgatherv(&vec![9; rank])?;
        assert_eq!(all, (0..size).map(|from| vec![9; from]).collect::<Vec<_>>());
        assert_eq!(counting.broadcast(&[rank as u8])?, [0]);
        let blocks = 10 - rank as u64;
        let root = u64::from(rank == 0);
        assert_eq!(counting.bytes_sent(), 8 * (13 + 2 + 1) + blocks + rank as u64 + root);
        assert_eq!(counting.calls(), 7);
        Ok(())
    });
    results.into_iter().for_each(|result| result.unwrap());
}

#[test]
fn the_machine_counts_bytes_and_rounds_as_the_carrier_does() {
    for seed in 0..30 {
        let inputs = Case::drawn(seed, 300).inputs(Rules::Full, Protocol::Owner, false);
        let results = threads::run(inputs.len(), |carrier| {
            let counting = Counting::new(carrier);
            let share = assign(inputs[counting.rank()].clone(), &counting)?;
            assert_eq!(
                (share.bytes_sent, share.rounds),
                (counting.bytes_sent(), counting.calls()),
                "seed {seed}"
            );
            Ok(())
        });
        results.into_iter().for_each(|result| result.unwrap());
    }
}
