//! What an assignment costs a rank at 8, 64 and 4096 ranks, in bytes, and what 65 536 machines of
//! one process hold.

// A test may unwrap; clippy knows that of test functions only.
#![allow(clippy::unwrap_used)]

mod common;

use common::lockstep;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use zazen_assign::{Answer, Assignment, Input, Machine, Path, Protocol, Rules, Shared, Step};
use zazen_core::{Request, Run, RunSet};

/// Counts the bytes that are allocated now.
struct Counted;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// One test at a time counts.
static COUNTING: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Frames per node.
const EACH: u64 = 1000;

/// `ranks` ranks, `per_node` of them on each node.
fn inputs(ranks: usize, per_node: usize, native: impl Fn(u64, u64) -> RunSet) -> Vec<Input> {
    let nodes = (ranks / per_node) as u64;
    let input = |rank: usize| Input {
        node: u128::from(rank as u64 % nodes),
        native: native(rank as u64 % nodes, nodes),
        alien: RunSet::new(),
        request: Request::new(0, nodes * EACH - 1, 1).unwrap(),
        target: None,
        rules: Rules::Full,
        protocol: Protocol::Owner,
        verify_exact: false,
        seed: [3; 16],
    };
    (0..ranks).map(input).collect()
}

fn round_robin(node: u64, nodes: u64) -> RunSet {
    RunSet::from_run(Run::new(node, EACH, nodes).unwrap())
}

fn contiguous(node: u64, _nodes: u64) -> RunSet {
    RunSet::range(node * EACH, (node + 1) * EACH - 1)
}

fn run(inputs: Vec<Input>) -> Vec<Assignment> {
    let size = inputs.len();
    let machines = inputs.into_iter().enumerate();
    let machines = machines.map(|(rank, input)| Machine::new(input, rank, size).unwrap()).collect();
    let shares: Vec<Assignment> = lockstep(machines, |_, _, _| ()).into_iter().map(Result::unwrap).collect();
    let frames = shares[0].total.native + shares[0].total.alien + shares[0].total.residue;
    assert_eq!(shares.iter().map(|share| share.set.len()).sum::<u64>(), frames);
    shares
}

/// The most and the mean of the bytes that a rank sends.
fn bytes(shares: &[Assignment]) -> (u64, u64) {
    let sent = || shares.iter().map(|share| share.bytes_sent);
    (sent().max().unwrap(), sent().sum::<u64>().div_ceil(shares.len() as u64))
}

#[test]
fn a_perfect_hit_costs_tens_of_bytes_at_any_size() {
    let _alone = COUNTING.lock();
    for ranks in [8, 64, 4096] {
        for native in [round_robin, contiguous] {
            let shares = run(inputs(ranks, 1, native));
            assert!(shares.iter().all(|share| (share.path, share.rounds) == (Path::Fingerprint, 2)));
            assert_eq!(bytes(&shares), (64, 64), "{ranks} ranks");
            for per_node in [2, 8] {
                let shares = run(inputs(ranks, per_node, native));
                assert!(shares.iter().all(|share| (share.path, share.rounds) == (Path::Fingerprint, 5)));
                let (most, mean) = bytes(&shares);
                // A registrar answers the ranks of each of its nodes, and has few nodes.
                println!("{ranks} ranks, {per_node} a node: {mean} bytes, at most {most}");
                assert!(mean <= 140 && most <= 140 + 6 * 16 * per_node as u64, "{most} {mean}");
            }
        }
    }
}

#[test]
fn a_miss_costs_what_has_to_be_told() {
    let _alone = COUNTING.lock();
    let hole = |set: RunSet, at: u64| set.difference(&RunSet::range(at, at));
    for ranks in [8, 64, 4096] {
        let frames = ranks as u64 * EACH;
        // One frame is on no node.
        let shares = run(inputs(ranks, 1, |node, nodes| hole(contiguous(node, nodes), frames / 3)));
        assert_eq!((shares[0].path, shares[0].total.residue), (Path::Exchange, 1));
        let (most, mean) = bytes(&shares);
        println!("{ranks} ranks, contiguous, a hole: {mean} bytes, at most {most}");
        assert!(most <= 220 && mean <= 180, "{most} {mean}");
        // One node is dead: its frames are shared out.
        let dead = |node, nodes| if node + 1 == nodes { RunSet::new() } else { contiguous(node, nodes) };
        let shares = run(inputs(ranks, 1, dead));
        assert_eq!((shares[0].path, shares[0].total.residue), (Path::Exchange, EACH));
        let (most, mean) = bytes(&shares);
        println!("{ranks} ranks, contiguous, a node dead: {mean} bytes, at most {most}");
        assert!(most <= 220 && mean <= 180, "{most} {mean}");
        // Round robin, a hole: every rank has frames in every slice; only those of one chunk are
        // told.
        let shares = run(inputs(ranks, 1, |node, nodes| hole(round_robin(node, nodes), frames / 3)));
        assert_eq!((shares[0].path, shares[0].total.residue), (Path::Exchange, 1));
        let (most, mean) = bytes(&shares);
        println!("{ranks} ranks, round robin, a hole: {mean} bytes, at most {most}");
        assert!(mean <= 200 + 14 * ranks.min(64) as u64 + 24 * frames.div_ceil(1 << 16), "{most} {mean}");
        // Every frame of one node is on another one too.
        let twice = |node: u64, nodes| match node {
            0 => contiguous(0, nodes).union(&contiguous(1, nodes)),
            _ => contiguous(node, nodes),
        };
        let shares = run(inputs(ranks, 1, twice));
        assert_eq!((shares[0].path, shares[0].total.residue), (Path::Exchange, 0));
        let (most, mean) = bytes(&shares);
        println!("{ranks} ranks, contiguous, a node's frames twice: {mean} bytes, at most {most}");
        // Two sums of a word per rank: what each node lost, and what it won.
        assert!(mean <= 220 + 16 * ranks as u64, "{most} {mean}");
    }
}

/// Bytes that each machine holds while it waits for a collective, at most.
fn held(ranks: usize, per_node: usize, native: fn(u64, u64) -> RunSet) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    let input = |rank| inputs(per_node, per_node, |_, _| RunSet::new()).swap_remove(rank % per_node);
    let nodes = (ranks / per_node) as u64;
    let machine = |rank: usize| {
        let node = rank as u64 % nodes;
        let request = Request::new(0, nodes * EACH - 1, 1).unwrap();
        let input = Input { node: u128::from(node), native: native(node, nodes), request, ..input(rank) };
        Machine::new(input, rank, ranks).unwrap()
    };
    let mut machines: Vec<Machine> = (0..ranks).map(machine).collect();
    let mut answers: Vec<Answer> = (0..ranks).map(|_| Answer::Start).collect();
    let mut most = 0;
    loop {
        let mut sums: Option<Vec<u64>> = None;
        let mut xor;
        let mut inboxes: Vec<Vec<(usize, Vec<u8>)>> = vec![Vec::new(); ranks];
        let mut gathered: Vec<Vec<u8>> = Vec::new();
        let mut done = 0;
        for (rank, machine) in machines.iter_mut().enumerate() {
            let step = machine.step(std::mem::replace(&mut answers[rank], Answer::Start)).unwrap();
            xor = matches!(step, Step::Xor(_));
            match step {
                Step::Sum(words) | Step::Xor(words) => match &mut sums {
                    None => sums = Some(words),
                    Some(sums) if xor => sums.iter_mut().zip(words).for_each(|(sum, word)| *sum ^= word),
                    Some(sums) => {
                        sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(word));
                    }
                },
                Step::Alltoallv(blocks) => {
                    blocks.into_iter().for_each(|(to, block)| inboxes[to].push((rank, block)));
                }
                Step::Allgatherv(block) => gathered.push(block),
                Step::Done(share) => {
                    done += 1;
                    drop(share);
                }
                Step::Or(_) | Step::TwoBit(_) | Step::IsSlow => unreachable!(),
            }
        }
        if done > 0 {
            assert_eq!(done, ranks);
            return most / ranks;
        }
        // What the driver holds for the ranks is not the machines'.
        if let Some(sums) = sums {
            let sums = Shared::from(sums);
            answers = (0..ranks).map(|_| Answer::Words(sums.clone())).collect();
        } else if !gathered.is_empty() {
            let gathered = Shared::from(gathered);
            answers = (0..ranks).map(|_| Answer::Gathered(gathered.clone())).collect();
        } else {
            answers = inboxes.into_iter().map(Answer::Blocks).collect();
        }
        most = most.max(LIVE.load(Ordering::Relaxed) - before);
    }
}

#[test]
fn machines_of_one_process_hold_what_is_equal_once() {
    let _alone = COUNTING.lock();
    println!("a machine alone: {} bytes", size_of::<Machine>());
    for ranks in [4096, 65_536] {
        let perfect = held(ranks, 1, contiguous);
        println!("{ranks} ranks, a perfect hit: {perfect} bytes each");
        assert!(perfect <= 2048, "{ranks} ranks: {perfect} bytes");
        let shared = held(ranks, 8, contiguous);
        println!("{ranks} ranks, 8 a node, a perfect hit: {shared} bytes each");
        assert!(shared <= 2048, "{ranks} ranks: {shared} bytes");
        let dead = |node, nodes| if node + 1 == nodes { RunSet::new() } else { contiguous(node, nodes) };
        let dead = held(ranks, 1, dead);
        println!("{ranks} ranks, a node dead: {dead} bytes each");
        assert!(dead <= 2560, "{ranks} ranks: {dead} bytes");
    }
}
