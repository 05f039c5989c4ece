//! One rank's part: it builds its holdings, runs the protocols in turns, and times each step.
//!
//! Invariant: the clock runs between two barriers; what is built before and checked afterwards is
//! not in it, on no rank.

use super::memory;
use super::placement::Plan;
use super::rates::{Rates, barrier};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::time::Instant;
use zazen_assign::{Collectives, Counts, Input, Observer, Path, Protocol, Rules, assign_observed};
use zazen_core::runset::Segment;
use zazen_core::{Error, ErrorKind, Request, Result, RunSet};

/// What all ranks are to do.
pub(crate) struct Task {
    pub(crate) plan: Plan,
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) rules: Rules,
    pub(crate) verify_exact: bool,
    pub(crate) repeats: usize,
    /// Whether alpha, beta and gamma are wanted.
    pub(crate) rates: bool,
    /// The ranks are threads: memory is the process's and not each rank's.
    pub(crate) one_process: bool,
}

/// A round: the local work before it, and its collective.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Phase {
    pub(crate) round: String,
    pub(crate) local_s: f64,
    pub(crate) collective_s: f64,
    pub(crate) bytes: u64,
}

/// One run of a protocol on one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Between the two barriers.
    pub(crate) total_s: f64,
    pub(crate) phases: Vec<Phase>,
    /// Processor time of all local work, which does not count waiting for a core.
    pub(crate) local_cpu_s: f64,
    pub(crate) rounds: u32,
    pub(crate) bytes_sent: u64,
    pub(crate) fingerprint: bool,
    /// Native, alien, residue over all ranks.
    pub(crate) total: [u64; 3],
    /// How many frames this rank reads, and the sum of their numbers modulo 2^64.
    pub(crate) frames: u64,
    pub(crate) sum: u64,
    /// The peak of the memory, beyond what was there when the clock started.
    pub(crate) peak_growth_bytes: u64,
}

/// All that one rank has to say.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RankReport {
    pub(crate) sets_heap_bytes: u64,
    pub(crate) natives: u64,
    pub(crate) build_s: f64,
    /// In memory before the sets were built and after; 0 on all ranks of a process but the first.
    pub(crate) memory_before_bytes: u64,
    pub(crate) memory_with_sets_bytes: u64,
    pub(crate) rates: Option<Rates>,
    /// By protocol, by repeat.
    pub(crate) samples: Vec<Vec<Sample>>,
}

/// Does `task` as one rank; returns everyone's reports, by rank, on rank 0 and nothing elsewhere.
/// Collective.
pub(crate) fn run_rank(task: &Task, collectives: &dyn Collectives) -> Result<Vec<RankReport>> {
    let speaks = !task.one_process || collectives.rank() == 0;
    let memory = || if speaks { memory::resident_bytes() } else { 0 };
    barrier(collectives)?;
    let memory_before_bytes = memory();
    barrier(collectives)?;
    let begin = Instant::now();
    let node = collectives.rank() as u64 % task.plan.nodes;
    let holdings = task.plan.holdings(node);
    let build_s = begin.elapsed().as_secs_f64();
    barrier(collectives)?;
    let mut report = RankReport {
        sets_heap_bytes: (holdings.native.heap_bytes() + holdings.alien.heap_bytes()) as u64,
        natives: holdings.native.len(),
        build_s,
        memory_before_bytes,
        memory_with_sets_bytes: memory(),
        rates: None,
        samples: vec![Vec::new(); task.protocols.len()],
    };
    if task.rates {
        report.rates = Some(Rates::measure(collectives, task.plan.frames)?);
    }
    let mut input = Input {
        node: u128::from(node) + 1,
        native: holdings.native,
        alien: holdings.alien,
        request: Request::new(0, task.plan.frames - 1, 1)?,
        target: None,
        rules: task.rules,
        protocol: Protocol::Owner,
        verify_exact: task.verify_exact,
        seed: [0; 16],
    };
    for repeat in 0..task.repeats {
        input.seed = seed(task.plan.seed, repeat);
        for turn in 0..task.protocols.len() {
            // There and back, so that a drift of the machine meets all alike.
            let at = if repeat % 2 == 0 { turn } else { task.protocols.len() - 1 - turn };
            input.protocol = task.protocols[at];
            report.samples[at].push(run_once(input.clone(), speaks, collectives)?);
        }
    }
    gather(&report, collectives)
}

fn run_once(input: Input, speaks: bool, collectives: &dyn Collectives) -> Result<Sample> {
    barrier(collectives)?;
    if speaks {
        memory::reset_peak();
    }
    let before = memory::resident_bytes();
    barrier(collectives)?;
    let mut stopwatch = Stopwatch::start();
    let begin = stopwatch.last;
    let assignment = assign_observed(input, collectives, &mut stopwatch)?;
    barrier(collectives)?;
    let total_s = begin.elapsed().as_secs_f64();
    // Nobody checks while another one's clock still runs: ranks may share cores.
    barrier(collectives)?;
    let peak = if speaks { memory::peak_bytes().saturating_sub(before) } else { 0 };
    let Counts { native, alien, residue } = assignment.total;
    Ok(Sample {
        total_s,
        phases: stopwatch.phases,
        local_cpu_s: stopwatch.local_cpu_s,
        rounds: assignment.rounds,
        bytes_sent: assignment.bytes_sent,
        fingerprint: assignment.path == Path::Fingerprint,
        total: [native, alien, residue],
        frames: assignment.set.len(),
        sum: sum(&assignment.set),
        peak_growth_bytes: peak,
    })
}

fn seed(seed: u64, repeat: usize) -> [u8; 16] {
    let mut stream = super::placement::Stream::new(!seed, repeat as u64);
    let mut bytes = [0; 16];
    bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&stream.next().to_le_bytes()));
    bytes
}

fn gather(report: &RankReport, collectives: &dyn Collectives) -> Result<Vec<RankReport>> {
    let own = serde_json::to_vec(report).map_err(|error| odd(collectives.rank(), error))?;
    let all = collectives.allgatherv(&own)?;
    if collectives.rank() != 0 {
        return Ok(Vec::new());
    }
    let decode =
        |(rank, bytes): (usize, &Vec<u8>)| serde_json::from_slice(bytes).map_err(|error| odd(rank, error));
    all.iter().enumerate().map(decode).collect()
}

fn odd(rank: usize, error: serde_json::Error) -> Error {
    Error::new(
        ErrorKind::Protocol,
        format!("measurements of rank {rank}: {error}; do all ranks run one zazen?"),
    )
}

/// Holds the clock for the pure protocol.
struct Stopwatch {
    last: Instant,
    last_cpu_s: f64,
    local_cpu_s: f64,
    phases: Vec<Phase>,
}

impl Stopwatch {
    fn start() -> Stopwatch {
        // Room for every round, so that the clock never pays for its own notes.
        let phases = Vec::with_capacity(16);
        Stopwatch { last_cpu_s: thread_cpu_s(), local_cpu_s: 0.0, last: Instant::now(), phases }
    }

    fn lap_s(&mut self) -> f64 {
        let now = Instant::now();
        (now - std::mem::replace(&mut self.last, now)).as_secs_f64()
    }
}

impl Observer for Stopwatch {
    fn local_done(&mut self, round: &'static str, bytes: u64) {
        let local_s = self.lap_s();
        self.local_cpu_s += thread_cpu_s() - self.last_cpu_s;
        self.phases.push(Phase { round: round.to_owned(), local_s, collective_s: 0.0, bytes });
    }

    fn collective_done(&mut self, _round: &'static str) {
        let collective_s = self.lap_s();
        if let Some(phase) = self.phases.last_mut() {
            phase.collective_s = collective_s;
        }
        self.last_cpu_s = thread_cpu_s();
    }
}

fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The sum of the set's numbers modulo 2^64, without walking them.
fn sum(set: &RunSet) -> u64 {
    let part = |segment: Segment<'_>| match segment {
        Segment::Run(run) => ascending_sum(run.first, run.count, run.step),
        Segment::Sparse { base, offsets } => {
            let offsets: u64 = offsets
                .iter()
                .map(|offset| u64::from(*offset))
                .sum::<u64>()
                .wrapping_add(base.wrapping_mul(offsets.len() as u64));
            offsets
        }
        Segment::Bits { base, words, count } => {
            let word_sum = |(at, word): (usize, &u64)| {
                let (count, positions) = count_and_positions(*word);
                64 * at as u64 * count + positions
            };
            let offsets: u64 = words.iter().enumerate().map(word_sum).sum();
            offsets.wrapping_add(base.wrapping_mul(u64::from(count)))
        }
    };
    set.segments().map(part).fold(0, u64::wrapping_add)
}

/// How many bits are set, and the sum of their positions: by pairs, fours and bytes, all of a word
/// at once.
fn count_and_positions(word: u64) -> (u64, u64) {
    const PAIRS: u64 = 0x5555_5555_5555_5555;
    const FOURS: u64 = 0x3333_3333_3333_3333;
    const BYTES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    const ALL: u64 = 0x0101_0101_0101_0101;
    // Within a byte's eight positions a count takes four bits and a sum five.
    let (low, high) = (word & PAIRS, word >> 1 & PAIRS);
    let (counts, sums) = (low + high, high);
    let high = counts >> 2 & FOURS;
    let (counts, sums) = ((counts & FOURS) + high, (sums & FOURS) + (sums >> 2 & FOURS) + 2 * high);
    let high = counts >> 4 & BYTES;
    let (counts, sums) = ((counts & BYTES) + high, (sums & BYTES) + (sums >> 4 & BYTES) + 4 * high);
    // The top byte of a product with these is the sum of the bytes, and that of the bytes times
    // their places.
    let places = counts.wrapping_mul(0x0001_0203_0405_0607) >> 56;
    (counts.wrapping_mul(ALL) >> 56, (sums.wrapping_mul(ALL) >> 56) + 8 * places)
}

/// `first + (first + step) + …` modulo 2^64.
pub(crate) fn ascending_sum(first: u64, count: u64, step: u64) -> u64 {
    let pairs = u128::from(count) * u128::from(count.saturating_sub(1)) / 2;
    first.wrapping_mul(count).wrapping_add(step.wrapping_mul(pairs as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_numbers() {
        let check = |numbers: &[u64]| {
            let set: RunSet = numbers.iter().copied().collect();
            assert_eq!(sum(&set), numbers.iter().copied().fold(0, u64::wrapping_add), "{set:?}");
        };
        check(&[]);
        check(&[0]);
        check(&[5, 8, 11, 1 << 40]);
        let mut stream = super::super::placement::Stream::new(3, 0);
        for density in [2, 5, 100] {
            let numbers: Vec<u64> = (0..200_000).filter(|_| stream.next().is_multiple_of(density)).collect();
            check(&numbers);
        }
        for word in [0, 1, 1 << 63, u64::MAX, 0x8000_0001_0180_0100]
            .into_iter()
            .chain((0..1000).map(|_| stream.next()))
        {
            let bits = (0..64).filter(|bit| word >> bit & 1 == 1);
            let expected = (u64::from(word.count_ones()), bits.sum());
            assert_eq!(count_and_positions(word), expected, "{word:#x}");
        }
        assert_eq!(ascending_sum(0, 1 << 40, 1), (1u64 << 39).wrapping_mul((1 << 40) - 1));
    }
}
