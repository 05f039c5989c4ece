//! The protocol as a state machine: the answer of one collective in, the next collective out.
//!
//! Rounds, of which those that have nothing to say are left out (all ranks know which):
//!
//! | round | collective | what |
//! |---|---|---|
//! | header | all-gather | node ids, sameness of the call, rank 0's seed |
//! | fingerprint | sum | natives held minus target, see `fingerprint.rs`; on a perfect hit all is known |
//! | offer | all-to-all | *owner*: leaders' natives and aliens, cut by slice |
//! | natives, native entries, alien entries | or, two-bit, two-bit | *bitmaps*: the paper's steps 2 and 5 |
//! | claims | all-to-all | *bitmaps*: leaders' contested frames, cut by slice |
//! | tally | sum | base loads by node; contested and residue by slice; totals |
//! | forward | all-to-all | contested frames of all slices, to the one that decides them |
//! | wins | sum | contested frames won, by node |
//! | answer | all-to-all | what a leader does not read of its offer; residue blocks |
//! | deal | all-to-all | leaders' shares, to the other ranks of their node |
//!
//! Invariants: every rank asks for the same collective in the same round; whatever the peers send, a rank
//! ends with an error or with a share whose size fits the agreed tally, and never panics.

mod bitmap_rounds;
mod settle;

use crate::bitmaps::Global;
use crate::blocks::{Pair, decode_pair, encode_pair, violation};
use crate::collectives::Collectives;
use crate::fingerprint::{Draws, Fingerprint, Fingerprinter, PRIME, add, multiply, negate, reduce};
use crate::header::{self, Header, Ready};
use crate::owner::{Offer, resolve};
use crate::rules::even;
use crate::{Assignment, Counts, Input, Path, Protocol};
use zazen_core::{Error, ErrorKind, Result, RunSet};

/// The most frames that the bitmap protocol takes on: 2³³, a bitmap of 1 GiB and entries of 2 GiB per rank.
pub const BITMAP_FRAMES_MAX: u64 = 1 << 33;

/// What the machine wants done next.
#[derive(Debug)]
pub enum Step {
    /// [`Collectives::allreduce_sum`]; answer with [`Answer::Words`].
    Sum(Vec<u64>),
    /// [`Collectives::allreduce_or`]; answer with [`Answer::Words`].
    Or(Vec<u64>),
    /// [`Collectives::allreduce_two_bit`]; answer with [`Answer::Words`].
    TwoBit(Vec<u64>),
    /// [`Collectives::alltoallv`]; answer with [`Answer::Blocks`].
    Alltoallv(Vec<Vec<u8>>),
    /// [`Collectives::allgatherv`]; answer with [`Answer::Blocks`].
    Allgatherv(Vec<u8>),
    /// Nothing more: this rank's share.
    Done(Box<Assignment>),
}

/// What came of the last [`Step`].
#[derive(Debug)]
pub enum Answer {
    /// There was none yet.
    Start,
    /// The reduced words, as many as were given.
    Words(Vec<u64>),
    /// One block from each rank, by rank.
    Blocks(Vec<Vec<u8>>),
}

/// What the machine waits for.
enum Stage {
    Start,
    Header,
    Fingerprint,
    Offer,
    NativeCount,
    Natives { copies: u64 },
    NativeEntries { native: Vec<u64> },
    AlienEntries { native: Vec<u64>, native_entries: Option<Vec<u64>> },
    Claims { loads: u64, counts: [u64; 3] },
    Tally { slice: Slice },
    Forward { slice: Slice, tally: Tally },
    Wins { slice: Slice, tally: Tally, lost: Vec<RunSet> },
    Answer { tally: Tally, quota: u64 },
    Deal,
    Over,
}

/// Who runs where. Nodes are counted by their leaders' ranks.
struct Nodes {
    of_rank: Vec<usize>,
    /// Ranks by node, ascending; the first leads.
    members: Vec<Vec<usize>>,
}

/// What this rank knows of its own slice before the tally.
struct Slice {
    /// By node; offers without contest, as far as this rank counts them.
    loads: Vec<u64>,
    /// By node; no entries at all if there are none.
    claims: Vec<RunSet>,
    /// By node, what is lost whoever wins; no entries at all if there is nothing.
    knocked: Vec<RunSet>,
    residue: RunSet,
    /// Natives, aliens, contested.
    counts: [u64; 3],
}

/// What all ranks know of all slices.
struct Tally {
    /// By node: frames that are its own; contested ones come in with the wins.
    loads: Vec<u64>,
    contested: Vec<u64>,
    residue: Vec<u64>,
    native: u64,
    alien: u64,
    knocked: u64,
}

/// One rank's part in an assignment; see the module. Pure: it is driven by [`assign`], by tests and by the
/// simulator. Ask it for the first step with [`Answer::Start`].
pub struct Machine {
    rank: usize,
    size: usize,
    header: Header,
    input: Option<Input>,
    stage: Stage,
    plan: Plan,
    bytes_sent: u64,
    rounds: u32,
}

/// What a rank has settled so far, in indices.
struct Plan {
    nodes: Nodes,
    /// Indices of the request.
    count: u64,
    /// Indices that exist; none: all of them.
    target: Option<RunSet>,
    target_len: u64,
    /// This node's natives; later those of them that this rank reads.
    native: RunSet,
    /// This node's aliens, likewise.
    alien: RunSet,
    residue: RunSet,
    total: Counts,
    path: Path,
}

impl Nodes {
    fn of(ids: &[u128]) -> Nodes {
        let mut by_id = std::collections::BTreeMap::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut of_rank = Vec::with_capacity(ids.len());
        for (rank, id) in ids.iter().enumerate() {
            let node = *by_id.entry(*id).or_insert_with(|| {
                members.push(Vec::new());
                members.len() - 1
            });
            members[node].push(rank);
            of_rank.push(node);
        }
        Nodes { of_rank, members }
    }

    fn leader(&self, rank: usize) -> bool {
        self.members[self.of_rank[rank]][0] == rank
    }

    fn ranks(&self) -> Vec<u64> {
        self.members.iter().map(|members| members.len() as u64).collect()
    }

    fn shared(&self) -> bool {
        self.members.len() < self.of_rank.len()
    }

    /// Loads by rank where each node's load is dealt to its ranks.
    fn by_rank(&self, loads: &[u64]) -> Vec<u64> {
        let mut by_rank = vec![0; self.of_rank.len()];
        for (members, load) in self.members.iter().zip(loads) {
            for (rank, part) in members.iter().zip(even(members.len(), *load)) {
                by_rank[*rank] = part;
            }
        }
        by_rank
    }
}

impl Machine {
    /// `rank`'s machine among `size`; fails with `InvalidArgument` if there is no such rank.
    pub fn new(input: Input, rank: usize, size: usize) -> Result<Machine> {
        let header = Header::Ready(Ready::of(&input));
        Machine::with(header, Some(input), rank, size)
    }

    /// The machine of a rank that cannot take part, say because its daemon gave no answer: it tells the others
    /// why, so that all end with that error instead of waiting.
    pub fn declining(reason: &Error, rank: usize, size: usize) -> Result<Machine> {
        Machine::with(Header::Declined(reason.kind(), reason.to_string()), None, rank, size)
    }

    fn with(header: Header, input: Option<Input>, rank: usize, size: usize) -> Result<Machine> {
        if rank >= size {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "rank {rank} does not exist in a communicator of {size}; give the carrier's own rank and size"
                ),
            ));
        }
        let plan = Plan {
            nodes: Nodes { of_rank: Vec::new(), members: Vec::new() },
            count: 0,
            target: None,
            target_len: 0,
            native: RunSet::new(),
            alien: RunSet::new(),
            residue: RunSet::new(),
            total: Counts::default(),
            path: Path::Exchange,
        };
        Ok(Machine { rank, size, header, input, stage: Stage::Start, plan, bytes_sent: 0, rounds: 0 })
    }

    /// Takes the answer to the last step and gives the next one. After an error or `Done` the machine is
    /// over and every further call is an `InvalidArgument`.
    pub fn step(&mut self, answer: Answer) -> Result<Step> {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        let step = match (stage, answer) {
            (Stage::Start, Answer::Start) => {
                self.stage = Stage::Header;
                Step::Allgatherv(header::encode(&self.header, self.rank))
            }
            (stage, Answer::Words(words)) => self.words(stage, words)?,
            (stage, Answer::Blocks(blocks)) => {
                if blocks.len() != self.size {
                    let context = format!("a carrier of {} ranks brought {} blocks", self.size, blocks.len());
                    return Err(Error::new(ErrorKind::Protocol, context));
                }
                self.blocks(stage, blocks)?
            }
            (_, Answer::Start) => return Err(out_of_turn()),
        };
        self.count(&step);
        Ok(step)
    }

    fn count(&mut self, step: &Step) {
        let bytes = match step {
            Step::Sum(words) | Step::Or(words) | Step::TwoBit(words) => size_of_val(words.as_slice()),
            Step::Allgatherv(block) => block.len(),
            Step::Alltoallv(blocks) => blocks.iter().map(Vec::len).sum::<usize>() - blocks[self.rank].len(),
            Step::Done(_) => return,
        };
        self.rounds += 1;
        if self.size > 1 {
            self.bytes_sent += bytes as u64;
        }
    }

    fn words(&mut self, stage: Stage, words: Vec<u64>) -> Result<Step> {
        match stage {
            Stage::Fingerprint => self.on_fingerprint(&words),
            Stage::NativeCount => self.on_native_count(&words),
            Stage::Natives { copies } => self.on_natives(copies, words),
            Stage::NativeEntries { native } => self.on_native_entries(native, words),
            Stage::AlienEntries { native, native_entries } => {
                expect(&words, self.plan.count.div_ceil(32))?;
                self.survey(Global { native, native_entries, alien_entries: Some(words) })
            }
            Stage::Tally { slice } => self.on_tally(slice, &words),
            Stage::Wins { slice, tally, lost } => self.on_wins(slice, tally, &lost, &words),
            _ => Err(out_of_turn()),
        }
    }

    fn blocks(&mut self, stage: Stage, blocks: Vec<Vec<u8>>) -> Result<Step> {
        match stage {
            Stage::Header => self.on_header(&blocks),
            Stage::Offer => self.on_offer(&blocks),
            Stage::Claims { loads, counts } => self.on_claims(loads, counts, &blocks),
            Stage::Forward { slice, tally } => self.on_forward(slice, tally, &blocks),
            Stage::Answer { tally, quota } => self.on_answer(&tally, quota, &blocks),
            Stage::Deal => self.on_deal(&blocks),
            _ => Err(out_of_turn()),
        }
    }

    /// First index of `rank`'s slice.
    fn slice_first(&self, rank: usize) -> u64 {
        (u128::from(self.plan.count) * rank as u128 / self.size as u128) as u64
    }

    fn slice(&self, rank: usize) -> (u64, u64) {
        (self.slice_first(rank), self.slice_first(rank + 1))
    }

    fn input(&self) -> Result<&Input> {
        self.input.as_ref().ok_or_else(out_of_turn)
    }

    fn node(&self) -> usize {
        self.plan.nodes.of_rank[self.rank]
    }

    fn on_header(&mut self, headers: &[Vec<u8>]) -> Result<Step> {
        let opening = header::judge(headers)?;
        self.plan.nodes = Nodes::of(&opening.nodes);
        let input = self.input()?;
        let (request, count) = (input.request, input.request.count());
        let target = input.target.as_ref().map(|target| target.cut(&request));
        let native = input.native.cut(&request);
        let (owner, exact) = (input.protocol == Protocol::Owner, input.verify_exact);
        self.plan.count = count;
        self.plan.target_len = target.as_ref().map_or(count, RunSet::len);
        self.plan.target = target.filter(|target| target.len() < count);
        self.plan.native = self.within_target(native);
        if owner && !exact { self.fingerprint(&opening.seed) } else { self.exchange() }
    }

    fn within_target(&self, set: RunSet) -> RunSet {
        match &self.plan.target {
            Some(target) => set.intersection(target),
            None => set,
        }
    }

    /// Leaders add their natives, every rank takes its slice of the target away: a perfect hit sums to zero.
    /// With shared nodes a further sum is zero where all ranks of each node hold the leader's natives.
    fn fingerprint(&mut self, seed: &[u8; 16]) -> Result<Step> {
        let fingerprinter = Fingerprinter::new(seed);
        let (first, end) = self.slice(self.rank);
        let slice = match &self.plan.target {
            _ if first == end => RunSet::new(),
            Some(target) => target.slice(first, end - 1),
            None => RunSet::range(first, end - 1),
        };
        let (expected, held) = (fingerprinter.of(&slice), fingerprinter.of(&self.plan.native));
        let nodes = &self.plan.nodes;
        let led = if nodes.leader(self.rank) { held } else { Fingerprint::default() };
        let mut words = vec![led.count.wrapping_sub(expected.count)];
        let sums = led.sums.iter().zip(&expected.sums).map(|(led, gone)| add(*led, negate(*gone)));
        words.extend(sums.flat_map(halves));
        if nodes.shared() {
            let weight = |rank: usize| {
                let drawn = Draws::new(seed, 0).next() ^ Draws::new(seed, 1).next().rotate_left(32);
                reduce(Draws::from_word(drawn ^ rank as u64).next())
            };
            let members = &nodes.members[self.node()];
            let factor = if nodes.leader(self.rank) {
                members[1..].iter().fold(0, |sum, rank| add(sum, negate(weight(*rank))))
            } else {
                weight(self.rank)
            };
            words.extend(halves(multiply(factor, held.sums[0])));
        }
        self.stage = Stage::Fingerprint;
        Ok(Step::Sum(words))
    }

    fn on_fingerprint(&mut self, words: &[u64]) -> Result<Step> {
        let shared = self.plan.nodes.shared();
        expect(words, if shared { 7 } else { 5 })?;
        let zero =
            |pair: &[u64]| (u128::from(pair[0]) + (u128::from(pair[1]) << 32)) % u128::from(PRIME) == 0;
        if words[0] != 0 || !zero(&words[1..3]) || !zero(&words[3..5]) {
            return self.exchange();
        }
        self.plan.path = Path::Fingerprint;
        self.plan.total = Counts { native: self.plan.target_len, ..Counts::default() };
        if !shared {
            return self.done();
        }
        if !zero(&words[5..7]) {
            return self.deal();
        }
        // Each rank cuts its own block from what all ranks of the node know.
        let members = &self.plan.nodes.members[self.node()];
        let sizes = even(members.len(), self.plan.native.len());
        let at = members.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        self.plan.native = self.plan.native.block(sizes[..at].iter().sum(), sizes[at]);
        self.done()
    }

    /// Begins the exchange of holdings: from here on only leaders hold anything.
    fn exchange(&mut self) -> Result<Step> {
        if self.plan.nodes.leader(self.rank) {
            let input = self.input()?;
            let alien = input.alien.cut(&input.request);
            self.plan.alien = self.within_target(alien).difference(&self.plan.native);
        } else {
            self.plan.native = RunSet::new();
        }
        if self.input()?.protocol == Protocol::Owner {
            self.stage = Stage::Offer;
            return Ok(Step::Alltoallv(self.by_slice(&self.plan.native, &self.plan.alien)));
        }
        if self.plan.count > BITMAP_FRAMES_MAX {
            let context = format!(
                "{} frames are beyond the limit of {BITMAP_FRAMES_MAX} of the bitmap protocol; use protocol owner",
                self.plan.count
            );
            return Err(Error::new(ErrorKind::TooLarge, context));
        }
        self.stage = Stage::NativeCount;
        Ok(Step::Sum(vec![self.plan.native.len()]))
    }

    fn by_slice(&self, first: &RunSet, second: &RunSet) -> Vec<Vec<u8>> {
        let cut = |rank| match self.slice(rank) {
            (first, end) if first == end => Vec::new(),
            _ if first.is_empty() && second.is_empty() => Vec::new(),
            (low, end) => encode_pair(&first.slice(low, end - 1), &second.slice(low, end - 1)),
        };
        (0..self.size).map(cut).collect()
    }

    fn on_offer(&mut self, blocks: &[Vec<u8>]) -> Result<Step> {
        let (first, end) = self.slice(self.rank);
        let mut offers: Vec<Offer> = self.plan.nodes.members.iter().map(|_| Offer::default()).collect();
        for (node, (native, alien)) in self.leaders_pairs("offer", blocks, first, end)? {
            offers[node] = Offer { alien: alien.difference(&native), native };
        }
        let rules = self.input()?.rules;
        let resolved = resolve(rules, first, end, self.plan.target.as_ref(), &offers);
        self.tally(Slice {
            loads: resolved.loads,
            claims: resolved.claims,
            knocked: resolved.knocked,
            residue: resolved.residue,
            counts: [resolved.native, resolved.alien, resolved.contested],
        })
    }

    /// The pairs in `blocks` by node, all within `first .. end`; only leaders may send any.
    fn leaders_pairs(
        &self,
        name: &'static str,
        blocks: &[Vec<u8>],
        first: u64,
        end: u64,
    ) -> Result<Vec<(usize, Pair)>> {
        let mut pairs = Vec::new();
        for (rank, block) in blocks.iter().enumerate() {
            if block.is_empty() {
                continue;
            }
            if !self.plan.nodes.leader(rank) {
                return Err(violation(name, rank, "it does not lead its node"));
            }
            pairs.push((self.plan.nodes.of_rank[rank], decode_pair(name, rank, block, first, end)?));
        }
        Ok(pairs)
    }
}

/// A field element as two words that can be summed over all ranks without overflow.
fn halves(value: u64) -> [u64; 2] {
    [value & 0xffff_ffff, value >> 32]
}

/// A reduction must bring as many words as were given.
fn expect(words: &[u64], count: u64) -> Result<()> {
    if words.len() as u64 == count {
        return Ok(());
    }
    let context = format!("a carrier reduced {count} words to {}", words.len());
    Err(Error::new(ErrorKind::Protocol, context))
}

fn out_of_turn() -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "the assignment machine was given an answer that it did not ask for; answer each step once, in order",
    )
}

/// Runs the protocol over `collectives` and returns this rank's share. Collective: every rank calls it.
///
/// Fails with `InvalidArgument` on every rank if the ranks do not ask for the same, with the reason of a rank
/// that [`decline`]d, with `TooLarge` beyond [`BITMAP_FRAMES_MAX`], with `Protocol` if a peer's message is
/// malformed, and with whatever the carrier reports.
pub fn assign(input: Input, collectives: &dyn Collectives) -> Result<Assignment> {
    drive(Machine::new(input, collectives.rank(), collectives.size())?, collectives)
}

/// Takes the place of [`assign`] on a rank that cannot take part (its daemon gave no holdings, say): all ranks
/// end with `reason` instead of waiting for this one. Returns that error. Collective like `assign`.
pub fn decline(reason: Error, collectives: &dyn Collectives) -> Error {
    let machine = Machine::declining(&reason, collectives.rank(), collectives.size());
    match machine.and_then(|machine| drive(machine, collectives)) {
        Ok(_) => reason,
        Err(error) => error,
    }
}

fn drive(mut machine: Machine, collectives: &dyn Collectives) -> Result<Assignment> {
    let mut answer = Answer::Start;
    loop {
        answer = match machine.step(answer)? {
            Step::Sum(mut words) => {
                collectives.allreduce_sum(&mut words)?;
                Answer::Words(words)
            }
            Step::Or(mut words) => {
                collectives.allreduce_or(&mut words)?;
                Answer::Words(words)
            }
            Step::TwoBit(mut words) => {
                collectives.allreduce_two_bit(&mut words)?;
                Answer::Words(words)
            }
            Step::Alltoallv(blocks) => Answer::Blocks(collectives.alltoallv(blocks)?),
            Step::Allgatherv(mine) => Answer::Blocks(collectives.allgatherv(&mine)?),
            Step::Done(assignment) => return Ok(*assignment),
        };
    }
}
