//! The assignment of frames to ranks at any number of ranks.
//!
//! Up to [`MACHINES_MAX`] ranks, the shipped machines (`zazen-assign`) run in lockstep, and each of
//! their collectives costs what LogGP says for its bytes. Beyond, the closed form of a perfect hit
//! takes over: two reductions of a constant number of bytes. A test runs both and finds the same
//! bytes, rounds and picoseconds.

use crate::cluster::Cluster;
use crate::job::Job;
use crate::measure::{Histogram, Slowest};
use crate::network::Fidelity;
use crate::outcome::{Outcome, Phase};
use crate::time::{Rate, ps};
use crate::trace::Trace;
use crate::work::Assign;
use zazen_assign::{Answer, Assignment, Blocks, Input, Machine, Protocol, Rules, Shared, Step, two_bit};
use zazen_core::{Error, ErrorKind, Request, Result, Run, RunSet};

/// The most ranks whose machines run.
pub const MACHINES_MAX: u32 = 4096;

/// What an assignment took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Time of all collectives.
    pub time_ps: u64,
    /// Collective rounds.
    pub rounds: u32,
    /// Bytes that all ranks send.
    pub bytes: u64,
    /// Frames that all ranks read.
    pub frames: u64,
    /// Digest of who reads what; of the counts alone where the closed form was used.
    pub digest: u64,
    /// Whether the shipped machines ran.
    pub is_real: bool,
}

/// A collective as the ranks ask for it: its kind, and what each rank sends.
enum Kind {
    Reduce(u64),
    Gather(u64),
    Exchange(u64),
}

/// The time of a collective by LogGP. Reductions and gathers double their reach in each round.
fn cost_ps(cluster: &Cluster, ranks: u64, kind: &Kind) -> u64 {
    let network = &cluster.network;
    let rounds = u64::from(ranks.next_power_of_two().trailing_zeros());
    let round_ps = ps((network.latency_us + 2.0 * network.overhead_us) * 1e-6);
    let rate = Rate::per_second(network.interface_bytes_per_s);
    match kind {
        Kind::Reduce(bytes) => rounds * (round_ps + rate.time_ps(*bytes)),
        Kind::Gather(all) => rounds * round_ps + rate.time_ps(*all),
        // Pairwise: the fullest rank decides.
        Kind::Exchange(most) => rounds * round_ps + rate.time_ps(*most),
    }
}

/// Runs an assignment among `ranks` ranks, one a node. `InvalidArgument` if the job is beyond what
/// can be: dead nodes with more than [`MACHINES_MAX`] ranks, or too many frames.
pub fn run(cluster: &Cluster, plan: &Assign, ranks: u32) -> Result<Assigned> {
    if ranks <= MACHINES_MAX {
        return machines(cluster, plan, ranks);
    }
    if plan.dead_nodes > 0 {
        let why = format!(
            "assignment with dead nodes: the machines run to {MACHINES_MAX} ranks, \
             and beyond there is no closed form"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    Ok(closed_form(cluster, plan, ranks))
}

/// The assignment of a job's ranks as a run's outcome.
pub fn outcome(job: &Job, plan: &Assign, network: String) -> Result<Outcome> {
    let ranks = (job.nodes * job.ranks_per_node).max(1);
    let found = run(&job.cluster, plan, ranks)?;
    let mut times = Histogram::new();
    (0..ranks).for_each(|_| times.add(found.time_ps));
    let mut slowest = Slowest::default();
    slowest.add(found.time_ps, 0);
    let phase = Phase {
        name: "assign".to_owned(),
        is_metadata: false,
        bytes: 0,
        first_ps: 0,
        last_ps: found.time_ps,
        times: times.clone(),
    };
    let mut trace = Trace::default();
    [found.time_ps, found.bytes, found.digest].into_iter().for_each(|word| trace.word(word));
    Ok(Outcome {
        workload: job.name.clone(),
        cluster: job.cluster.name.clone(),
        network,
        nodes: job.nodes,
        ranks,
        seed: job.seed,
        fidelity: Fidelity::LogGp,
        makespan_ps: found.time_ps,
        bytes: 0,
        metadata_ops: 0,
        messages: u64::from(found.rounds) * u64::from(ranks),
        message_bytes: found.bytes,
        ideal_bytes_per_s: 0.0,
        retries: 0,
        unfinished: 0,
        events: u64::from(found.rounds) * u64::from(ranks),
        trace_hash: trace.digest(),
        phases: vec![phase],
        ends: times,
        slowest,
        slowest_stretch: vec![1.0],
        busy: Vec::new(),
        extra: vec![
            ("frames".to_owned(), found.frames as f64),
            ("rounds".to_owned(), f64::from(found.rounds)),
            ("bytes_sent".to_owned(), found.bytes as f64),
            ("is_real".to_owned(), f64::from(u8::from(found.is_real))),
        ],
    })
}

/// Bytes of the two rounds of a perfect hit: the header's six words, and a fingerprint.
const HEADER_BYTES: u64 = 48;
const FINGERPRINT_BYTES: u64 = 16;

/// A perfect hit: a sum of the headers, and one of the fingerprints.
pub fn closed_form(cluster: &Cluster, plan: &Assign, ranks: u32) -> Assigned {
    let all = u64::from(ranks);
    let time = |bytes| cost_ps(cluster, all, &Kind::Reduce(bytes));
    let frames = all * plan.frames_each;
    let mut digest = Trace::default();
    digest.word(frames);
    Assigned {
        time_ps: time(HEADER_BYTES) + time(FINGERPRINT_BYTES),
        rounds: 2,
        bytes: all * (HEADER_BYTES + FINGERPRINT_BYTES),
        frames,
        digest: digest.digest(),
        is_real: false,
    }
}

/// What each rank brings to the assignment of a plan.
pub fn inputs(plan: &Assign, ranks: u32) -> Result<Vec<Input>> {
    let all = u64::from(ranks);
    let frames = all.checked_mul(plan.frames_each).filter(|frames| *frames > 0);
    let frames =
        frames.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "assignment: no frames, or too many"))?;
    let request = Request::new(0, frames - 1, 1)?;
    let input = |rank: u64| -> Result<Input> {
        let is_dead = (rank + 1) * u64::from(plan.dead_nodes) / all > rank * u64::from(plan.dead_nodes) / all;
        let native = match (is_dead, plan.in_turns) {
            (true, _) => RunSet::new(),
            (false, true) => RunSet::from_run(Run::new(rank, plan.frames_each, all)?),
            (false, false) => RunSet::range(rank * plan.frames_each, (rank + 1) * plan.frames_each - 1),
        };
        Ok(Input {
            node: u128::from(rank),
            native,
            alien: RunSet::new(),
            request,
            target: None,
            rules: Rules::Full,
            protocol: Protocol::Owner,
            verify_exact: false,
            seed: [3; 16],
        })
    };
    (0..all).map(input).collect()
}

fn machines(cluster: &Cluster, plan: &Assign, ranks: u32) -> Result<Assigned> {
    let size = ranks as usize;
    let inputs = inputs(plan, ranks)?.into_iter().enumerate();
    let mut machines =
        inputs.map(|(rank, input)| Machine::new(input, rank, size)).collect::<Result<Vec<Machine>>>()?;
    let mut answers: Vec<Answer> = (0..size).map(|_| Answer::Start).collect();
    let mut time_ps = 0;
    loop {
        let steps = machines.iter_mut().zip(answers).map(|(machine, answer)| machine.step(answer));
        let steps = steps.collect::<Result<Vec<Step>>>()?;
        if let Step::Done(_) = steps[0] {
            let shares = steps.into_iter().filter_map(|step| match step {
                Step::Done(share) => Some(*share),
                _ => None,
            });
            return Ok(summary(time_ps, &shares.collect::<Vec<Assignment>>()));
        }
        let (next, kind) = exchange(steps)?;
        time_ps += kind.map_or(0, |kind| cost_ps(cluster, u64::from(ranks), &kind));
        answers = next;
    }
}

/// Digest of who reads what, by rank.
pub fn digest(shares: &[Assignment]) -> u64 {
    let mut digest = Trace::default();
    for share in shares {
        digest.word(share.set.len());
        share.set.iter().take(64).for_each(|frame| digest.word(frame));
    }
    digest.digest()
}

fn summary(time_ps: u64, shares: &[Assignment]) -> Assigned {
    Assigned {
        time_ps,
        rounds: shares.iter().map(|share| share.rounds).max().unwrap_or(0),
        bytes: shares.iter().map(|share| share.bytes_sent).sum(),
        frames: shares.iter().map(|share| share.set.len()).sum(),
        digest: digest(shares),
        is_real: true,
    }
}

/// What the collective gives each rank, and what it costs.
fn exchange(steps: Vec<Step>) -> Result<(Vec<Answer>, Option<Kind>)> {
    let size = steps.len();
    let kind = std::mem::discriminant(&steps[0]);
    if steps.iter().any(|step| std::mem::discriminant(step) != kind) {
        return Err(Error::new(ErrorKind::Protocol, "assignment: ranks ask for different collectives"));
    }
    let combine: fn(u64, u64) -> u64 = match steps[0] {
        Step::Sum(_) => u64::wrapping_add,
        Step::Xor(_) => |one, other| one ^ other,
        Step::Or(_) => |one, other| one | other,
        _ => two_bit,
    };
    let mut words: Option<Vec<u64>> = None;
    let mut gathered = Vec::new();
    let mut received: Vec<Blocks> = Vec::new();
    let mut most = 0;
    let mut is_links = false;
    for (from, step) in steps.into_iter().enumerate() {
        match step {
            Step::Sum(mine) | Step::Xor(mine) | Step::Or(mine) | Step::TwoBit(mine) => match &mut words {
                None => words = Some(mine),
                Some(sum) => sum.iter_mut().zip(mine).for_each(|(sum, word)| *sum = combine(*sum, word)),
            },
            Step::Allgatherv(mine) => gathered.push(mine),
            Step::Alltoallv(blocks) => {
                received.resize(size, Vec::new());
                most = most.max(blocks.iter().map(|(_, block)| block.len() as u64).sum::<u64>());
                blocks.into_iter().for_each(|(to, block)| received[to].push((from, block)));
            }
            Step::IsSlow => is_links = true,
            Step::Done(_) => {}
        }
    }
    if let Some(words) = words {
        let bytes = 8 * words.len() as u64;
        let words = Shared::from(words);
        return Ok(((0..size).map(|_| Answer::Words(words.clone())).collect(), Some(Kind::Reduce(bytes))));
    }
    if is_links {
        return Ok(((0..size).map(|_| Answer::Slow(false)).collect(), None));
    }
    if !received.is_empty() {
        return Ok((received.into_iter().map(Answer::Blocks).collect(), Some(Kind::Exchange(most))));
    }
    let bytes = gathered.iter().map(|block| block.len() as u64).sum();
    let gathered = Shared::from(gathered);
    Ok(((0..size).map(|_| Answer::Gathered(gathered.clone())).collect(), Some(Kind::Gather(bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(in_turns: bool, dead_nodes: u32) -> Assign {
        Assign { frames_each: 100, in_turns, dead_nodes }
    }

    /// The closed form against the shipped machines: the same time, rounds, bytes and frames.
    #[test]
    fn the_closed_form_is_what_the_machines_do() {
        let cluster = Cluster::intrepid();
        for ranks in [2, 3, 64, 1000, 4096] {
            for in_turns in [false, true] {
                let real = run(&cluster, &plan(in_turns, 0), ranks).unwrap();
                let closed = closed_form(&cluster, &plan(in_turns, 0), ranks);
                assert!(real.is_real && !closed.is_real);
                assert_eq!(
                    (real.time_ps, real.rounds, real.bytes, real.frames),
                    (closed.time_ps, closed.rounds, closed.bytes, closed.frames),
                    "{ranks} ranks"
                );
            }
        }
        assert!(!run(&cluster, &plan(true, 0), 2_000_376).unwrap().is_real);
    }

    /// Frames of dead nodes are read by others: every frame once, in more rounds.
    #[test]
    fn dead_nodes_cost_rounds() {
        let cluster = Cluster::intrepid();
        let whole = run(&cluster, &plan(false, 0), 64).unwrap();
        let found = run(&cluster, &plan(false, 3), 64).unwrap();
        assert_eq!(found.frames, 6_400);
        assert!(found.rounds > whole.rounds && found.bytes > whole.bytes && found.time_ps > whole.time_ps);
        assert!(run(&cluster, &plan(false, 3), 5_000).is_err());
    }
}
