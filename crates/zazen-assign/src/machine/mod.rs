//! The protocol as a state machine: the answer of one collective goes in, the next collective comes
//! out.
//!
//! The rounds. A round that has nothing to exchange is left out; all ranks know which rounds these
//! are.
//!
//! | round | collective | what |
//! |---|---|---|
//! | header | all-gather | node ids, sameness of the call, natives held, size of the offer, rank 0's seed |
//! | fingerprint | xor | *owner*, if as many natives as frames: natives against target, see `fingerprint.rs`; on a perfect hit all is known |
//! | chunk counts | sum | *owner*, if the offers would be large: natives against target by chunk, see `chunks.rs` |
//! | chunk fingerprints | xor | the same of those chunks whose counts match; where both do, the chunk is settled |
//! | offer | all-to-all | *owner*: leaders' natives and aliens in chunks that are not settled, cut by slice |
//! | native count | sum | *bitmaps*: whether any frame is native twice |
//! | natives, native entries, alien entries | or, two-bit, two-bit | *bitmaps*: the paper's steps 2 and 5 |
//! | claims | all-to-all | *bitmaps*: leaders' contested frames, cut by slice |
//! | tally | sum | base loads by node; contested and residue by slice; totals |
//! | forward | all-to-all | contested frames of all slices, to the one that decides them |
//! | wins | sum | contested frames won, by node |
//! | answer | all-to-all | what a leader does not read of its offer; residue blocks |
//! | deal | all-to-all | leaders' shares, to the other ranks of their node |
//!
//! Invariants: every rank asks for the same collective in the same round. Whatever the peers send,
//! a rank ends with an error or with a share whose size fits the agreed tally, and never panics.

mod bitmap_rounds;
mod drive;
mod perfect;
mod settle;

pub use drive::{Observer, assign, assign_observed, decline};

use crate::bitmaps::Global;
use crate::blocks::{Pair, decode_offer, decode_pair, encode_pair, violation};
use crate::chunks::{Chunks, Tuning, offer_bytes};
use crate::fingerprint::Fingerprinter;
use crate::header::{self, Header, Ready};
use crate::owner::{Offer, resolve};
use crate::rules::even;
use crate::{Assignment, Counts, Input, Path, Protocol};
use zazen_core::{Error, ErrorKind, Result, RunSet};

/// The most frames for the bitmap protocol: 2³³, which takes a bitmap of 1 GiB and entries of 2 GiB
/// on each rank.
pub const BITMAP_FRAMES_MAX: u64 = 1 << 33;

/// What the machine wants done next.
#[derive(Debug)]
pub enum Step {
    /// [`Collectives::allreduce_sum`]; answer with [`Answer::Words`].
    Sum(Vec<u64>),
    /// [`Collectives::allreduce_xor`]; answer with [`Answer::Words`].
    Xor(Vec<u64>),
    /// [`Collectives::allreduce_or`]; answer with [`Answer::Words`].
    Or(Vec<u64>),
    /// [`Collectives::allreduce_two_bit`]; answer with [`Answer::Words`].
    TwoBit(Vec<u64>),
    /// [`Collectives::alltoallv`]; answer with [`Answer::Blocks`].
    Alltoallv(Vec<Vec<u8>>),
    /// [`Collectives::allgatherv`]; answer with [`Answer::Blocks`].
    Allgatherv(Vec<u8>),
    /// The end: this rank's share.
    Done(Box<Assignment>),
}

/// The result of the last [`Step`].
#[derive(Debug)]
pub enum Answer {
    /// There was no step yet.
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
    Fingerprint { survey: Option<Survey> },
    ChunkCounts { survey: Survey },
    ChunkFingerprints { survey: Survey, matching: Vec<usize> },
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

/// Which ranks run on which node. Nodes are numbered in the order of their leaders' ranks.
struct Nodes {
    of_rank: Vec<usize>,
    /// Ranks by node, ascending; the first leads.
    members: Vec<Vec<usize>>,
}

/// What this rank knows of its own slice before the tally.
struct Slice {
    /// By node: offered frames without contest, in the slice that this rank counts.
    loads: Vec<u64>,
    /// By node; no entries at all if there are none.
    claims: Vec<RunSet>,
    /// By node: what the node does not read, whoever wins the contested frames. Empty if there is
    /// nothing.
    knocked: Vec<RunSet>,
    residue: RunSet,
    /// Natives, aliens, contested.
    counts: [u64; 3],
}

/// The state for comparing chunks, if this is done.
struct Survey {
    chunks: Chunks,
    fingerprinter: Fingerprinter,
    /// Fingerprints of this node's natives by chunk; computed when first needed.
    held: Option<Vec<u128>>,
}

/// What all ranks know about all slices.
struct Tally {
    /// By node: frames that the node reads. Contested frames are added with the wins.
    loads: Vec<u64>,
    contested: Vec<u64>,
    residue: Vec<u64>,
    native: u64,
    alien: u64,
    knocked: u64,
}

/// One rank's part in an assignment; see the module. Pure: [`assign`] and the tests drive it.
/// [`Answer::Start`] asks for the first step.
pub struct Machine {
    rank: usize,
    size: usize,
    header: Header,
    input: Option<Input>,
    stage: Stage,
    tuning: Tuning,
    plan: Plan,
    bytes_sent: u64,
    rounds: u32,
}

/// What a rank has decided so far, in indices.
struct Plan {
    nodes: Nodes,
    /// Indices of the request.
    count: u64,
    /// Indices that exist; `None`: all of them.
    target: Option<RunSet>,
    target_len: u64,
    /// The indices of chunks that are not settled; `None`: all are open.
    open: Option<RunSet>,
    /// This node's natives; later, those natives that this rank reads.
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

    /// Loads by rank, when each node's load is dealt to its ranks.
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

    /// The machine of a rank that cannot take part, for example because its daemon gave no answer.
    /// It sends the reason to the others, so all ranks end with that error and none waits.
    pub fn declining(reason: &Error, rank: usize, size: usize) -> Result<Machine> {
        Machine::with(Header::Declined(reason.kind(), reason.to_string()), None, rank, size)
    }

    /// With other limits for comparing chunks than the default. All ranks must use the same limits.
    #[doc(hidden)]
    pub fn tuned(self, tuning: Tuning) -> Machine {
        Machine { tuning, ..self }
    }

    fn with(header: Header, input: Option<Input>, rank: usize, size: usize) -> Result<Machine> {
        if rank >= size {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "rank {rank} does not exist in a communicator of {size}; give the rank and size of the collectives"
                ),
            ));
        }
        let plan = Plan {
            nodes: Nodes { of_rank: Vec::new(), members: Vec::new() },
            count: 0,
            target: None,
            target_len: 0,
            open: None,
            native: RunSet::new(),
            alien: RunSet::new(),
            residue: RunSet::new(),
            total: Counts::default(),
            path: Path::Exchange,
        };
        Ok(Machine {
            rank,
            size,
            header,
            input,
            stage: Stage::Start,
            tuning: Tuning::default(),
            plan,
            bytes_sent: 0,
            rounds: 0,
        })
    }

    /// Takes the answer to the last step and returns the next step. After an error or `Done` the
    /// machine has ended, and every further call is an `InvalidArgument`.
    pub fn step(&mut self, answer: Answer) -> Result<Step> {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        let step = match (stage, answer) {
            (Stage::Start, Answer::Start) => {
                self.prepare();
                self.stage = Stage::Header;
                Step::Allgatherv(header::encode(&self.header, self.rank))
            }
            (stage, Answer::Words(words)) => self.words(stage, words)?,
            (stage, Answer::Blocks(blocks)) => {
                if blocks.len() != self.size {
                    let context =
                        format!("collectives of {} ranks returned {} blocks", self.size, blocks.len());
                    return Err(Error::new(ErrorKind::Protocol, context));
                }
                self.blocks(stage, blocks)?
            }
            (_, Answer::Start) => return Err(out_of_turn()),
        };
        self.count(&step);
        Ok(step)
    }

    /// The round whose collective the machine waits for, as in the table above; "done" once it is
    /// over.
    pub fn round(&self) -> &'static str {
        match self.stage {
            Stage::Start => "start",
            Stage::Header => "header",
            Stage::Fingerprint { .. } => "fingerprint",
            Stage::ChunkCounts { .. } => "chunk counts",
            Stage::ChunkFingerprints { .. } => "chunk fingerprints",
            Stage::Offer => "offer",
            Stage::NativeCount => "native count",
            Stage::Natives { .. } => "natives",
            Stage::NativeEntries { .. } => "native entries",
            Stage::AlienEntries { .. } => "alien entries",
            Stage::Claims { .. } => "claims",
            Stage::Tally { .. } => "tally",
            Stage::Forward { .. } => "forward",
            Stage::Wins { .. } => "wins",
            Stage::Answer { .. } => "answer",
            Stage::Deal => "deal",
            Stage::Over => "done",
        }
    }

    /// The bytes that this rank contributes to the collective of `step`; for an all-to-all, the
    /// bytes that go to others.
    pub fn contribution(&self, step: &Step) -> u64 {
        let bytes = match step {
            Step::Sum(words) | Step::Xor(words) | Step::Or(words) | Step::TwoBit(words) => {
                size_of_val(words.as_slice())
            }
            Step::Allgatherv(block) => block.len(),
            Step::Alltoallv(blocks) => blocks.iter().map(Vec::len).sum::<usize>() - blocks[self.rank].len(),
            Step::Done(_) => 0,
        };
        bytes as u64
    }

    fn count(&mut self, step: &Step) {
        if matches!(step, Step::Done(_)) {
            return;
        }
        self.rounds += 1;
        if self.size > 1 {
            self.bytes_sent += self.contribution(step);
        }
    }

    fn words(&mut self, stage: Stage, words: Vec<u64>) -> Result<Step> {
        match stage {
            Stage::Fingerprint { survey } => self.on_fingerprint(survey, &words),
            Stage::ChunkCounts { survey } => self.on_chunk_counts(survey, &words),
            Stage::ChunkFingerprints { survey, matching } => {
                self.on_chunk_fingerprints(&survey, &matching, &words)
            }
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

    /// Cuts this rank's natives to the request and puts their number into the header.
    fn prepare(&mut self) {
        let Some(input) = &self.input else { return };
        let (request, count) = (input.request, input.request.count());
        let target = input.target.as_ref().map(|target| target.cut(&request));
        let native = input.native.cut(&request);
        self.plan.count = count;
        self.plan.target_len = target.as_ref().map_or(count, RunSet::len);
        self.plan.target = target.filter(|target| target.len() < count);
        self.plan.native = self.within_target(native);
        if let Header::Ready(ready) = &mut self.header {
            ready.native = self.plan.native.len();
            ready.offer_bytes = offer_bytes(&self.plan.native) + offer_bytes(&input.alien);
        }
    }

    fn on_header(&mut self, headers: &[Vec<u8>]) -> Result<Step> {
        let opening = header::judge(headers)?;
        self.plan.nodes = Nodes::of(&opening.nodes);
        let input = self.input()?;
        let (owner, exact) = (input.protocol == Protocol::Owner, input.verify_exact);
        if owner && !exact { self.compare(&opening) } else { self.exchange() }
    }

    fn within_target(&self, set: RunSet) -> RunSet {
        match &self.plan.target {
            Some(target) => set.intersection(target),
            None => set,
        }
    }

    /// Begins the exchange of holdings: from here on only leaders hold anything.
    fn exchange(&mut self) -> Result<Step> {
        if self.plan.nodes.leader(self.rank) {
            let input = self.input()?;
            let alien = self.within_target(input.alien.cut(&input.request));
            // If every frame is native, no alien is read.
            let alien =
                self.plan.open.as_ref().map_or_else(|| alien.clone(), |open| alien.intersection(open));
            self.plan.alien = alien.difference(&self.plan.native);
        } else {
            self.plan.native = RunSet::new();
        }
        if self.input()?.protocol == Protocol::Owner {
            self.stage = Stage::Offer;
            let blocks = match &self.plan.open {
                Some(open) => self.by_slice(&self.plan.native.intersection(open), &self.plan.alien),
                None => self.by_slice(&self.plan.native, &self.plan.alien),
            };
            return Ok(Step::Alltoallv(blocks));
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
        let mut offers: Vec<Offer<'_>> = self.plan.nodes.members.iter().map(|_| Offer::default()).collect();
        for (node, rank, block) in self.leaders_blocks("offer", blocks)? {
            offers[node] = decode_offer(rank, block, first, end)?;
        }
        let rules = self.input()?.rules;
        let plan = &self.plan;
        let both = plan.target.as_ref().zip(plan.open.as_ref());
        let both = both.map(|(target, open)| target.intersection(open));
        let wanted = both.as_ref().or(plan.open.as_ref()).or(plan.target.as_ref());
        let mut resolved = resolve(rules, first, end, wanted, &offers);
        // In settled chunks this node reads what it holds; no other node needs to know it.
        let settled = match &plan.open {
            Some(open) => plan.native.len() - plan.native.intersection(open).len(),
            None => 0,
        };
        resolved.loads[self.node()] += settled;
        self.tally(Slice {
            loads: resolved.loads,
            claims: resolved.claims,
            knocked: resolved.knocked,
            residue: resolved.residue,
            counts: [resolved.native + settled, resolved.alien, resolved.contested],
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
        let blocks = self.leaders_blocks(name, blocks)?.into_iter();
        blocks.map(|(node, rank, block)| Ok((node, decode_pair(name, rank, block, first, end)?))).collect()
    }

    /// The blocks that are not empty, with their nodes and ranks; only leaders may send any.
    fn leaders_blocks<'a>(
        &self,
        name: &'static str,
        blocks: &'a [Vec<u8>],
    ) -> Result<Vec<(usize, usize, &'a [u8])>> {
        let mut sent = Vec::new();
        for (rank, block) in blocks.iter().enumerate().filter(|(_, block)| !block.is_empty()) {
            if !self.plan.nodes.leader(rank) {
                return Err(violation(name, rank, "it does not lead its node"));
            }
            sent.push((self.plan.nodes.of_rank[rank], rank, block.as_slice()));
        }
        Ok(sent)
    }
}

/// A reduction must bring as many words as were given.
fn expect(words: &[u64], count: u64) -> Result<()> {
    if words.len() as u64 == count {
        return Ok(());
    }
    let context = format!("the collectives reduced {count} words to {}", words.len());
    Err(Error::new(ErrorKind::Protocol, context))
}

fn out_of_turn() -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "the assignment machine was given an answer that it did not ask for; answer each step once, in order",
    )
}
