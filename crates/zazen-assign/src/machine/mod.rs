//! The protocol as a state machine: the answer of one collective goes in, the next collective comes
//! out.
//!
//! The rounds. A round that has nothing to exchange is left out; all ranks know which rounds these
//! are.
//!
//! | round | collective | what |
//! |---|---|---|
//! | header | sum | sameness of the call, natives held, rank 0's seed; see `header.rs` |
//! | rank 0, search, complaint | or | only if the header does not add up: which rank differs or declines, and why |
//! | fingerprint | xor | *owner*, if the ranks hold as many natives as frames: natives against target, see `fingerprint.rs`; on a perfect hit all is known |
//! | node ids, members | all-to-all | who shares a node, see `nodes.rs` |
//! | held | sum | nodes, and what their leaders hold |
//! | node fingerprint | xor | *owner*, if ranks share nodes and the leaders hold as many natives as frames: as above |
//! | chunk counts | sum | *owner*, if the offers would be large: natives against target by chunk, see `chunks.rs` |
//! | chunk fingerprints | xor | the same of those chunks whose counts match; where both do, the chunk is settled |
//! | links | – | *owner*, if the offers are large: whether packing them pays |
//! | offer | all-to-all | *owner*: leaders' natives and aliens in chunks that are not settled, cut by slice |
//! | native count | sum | *bitmaps*: whether any frame is native twice |
//! | natives, native entries, alien entries | or, two-bit, two-bit | *bitmaps*: the paper's steps 2 and 5 |
//! | claims | all-to-all | *bitmaps*: leaders' contested frames, cut by slice |
//! | tally | all-gather | each rank's leader, what the leader offered; contested and residue by slice; totals |
//! | conflicts | sum | if any frame is contested or an alien knocked out: how many, by node |
//! | forward | all-to-all | contested frames of all slices, to the one that decides them |
//! | wins | sum | contested frames won, by node |
//! | answer | all-to-all | what a leader does not read of its offer; residue blocks |
//! | deal | all-to-all | leaders' shares, to the other ranks of their node |
//!
//! Invariants: every rank asks for the same collective in the same round. Whatever the peers send,
//! a rank ends with an error or with a share whose size fits the agreed tally, and never panics.

mod bitmap_rounds;
mod drive;
mod nodes;
mod perfect;
mod settle;
mod tally;
mod trouble;

pub use drive::{Observer, assign, assign_observed, decline};

use crate::bitmaps::Global;
use crate::blocks::{Pair, decode_offer, decode_pair, encode_pair, packed, unpacked};
use crate::chunks::{Chunks, Tuning, offer_bytes};
use crate::collectives::{Blocks, check_blocks};
use crate::fingerprint::Fingerprinter;
use crate::header::{self, Complaint, Header, Opening, Ready, Search};
use crate::node::Node;
use crate::owner::{Offer, resolve};
use crate::shared::Shared;
use crate::tally::{Dealt, Tally};
use crate::{Assignment, Counts, Input, Path, Protocol};
use std::borrow::Cow;
use std::sync::Arc;
use zazen_core::{Error, ErrorKind, Result, RunSet};

/// The most frames for the bitmap protocol: 2³³, which takes a bitmap of 1 GiB and entries of 2 GiB
/// on each rank.
pub const BITMAP_FRAMES_MAX: u64 = 1 << 33;

/// About how many bytes a block takes beside its numbers, with the message that carries it.
const BLOCK_BYTES: u64 = 32;

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
    Alltoallv(Blocks),
    /// [`Collectives::allgatherv`]; answer with [`Answer::Gathered`].
    Allgatherv(Vec<u8>),
    /// [`Collectives::is_slow`]; answer with [`Answer::Slow`].
    IsSlow,
    /// The end: this rank's share.
    Done(Box<Assignment>),
}

/// The result of the last [`Step`]. Where it is equal on all ranks, a driver of several machines
/// gives all of them clones of one [`Shared`], so that what follows from it is held once.
#[derive(Debug)]
pub enum Answer {
    /// There was no step yet.
    Start,
    /// The reduced words, as many as were given.
    Words(Shared<Vec<u64>>),
    /// What was sent to this rank.
    Blocks(Blocks),
    /// One block from each rank, by rank.
    Gathered(Shared<Vec<Vec<u8>>>),
    /// Whether links are slower than packing.
    Slow(bool),
}

/// What the machine waits for.
enum Stage {
    Start,
    Header,
    Root { declined: bool },
    Search { search: Search, complaint: Option<Complaint> },
    Complaint,
    Fingerprint,
    Ids,
    Members,
    Held,
    NodeFingerprint { survey: Option<Survey> },
    ChunkCounts { survey: Survey },
    ChunkFingerprints { survey: Survey, matching: Vec<usize> },
    Links,
    Offer,
    NativeCount,
    Natives { copies: u64 },
    NativeEntries { native: Vec<u64> },
    AlienEntries { native: Vec<u64>, native_entries: Option<Vec<u64>> },
    Claims { counts: [u64; 3] },
    Tally { slice: Slice },
    Conflicts { slice: Slice, tally: Arc<Tally> },
    Forward { slice: Slice, tally: Arc<Tally>, loads: Arc<Vec<u64>> },
    Wins { slice: Slice, tally: Arc<Tally>, loads: Arc<Vec<u64>>, lost: Vec<RunSet> },
    Answer { dealt: Arc<Dealt> },
    Deal,
    Over,
}

/// What this rank knows of its own slice before the tally.
struct Slice {
    /// The leaders that `claims` and `knocked` are of, ascending.
    leaders: Vec<usize>,
    /// By leader: contested frames that its node holds; no entries at all if there are none.
    claims: Vec<RunSet>,
    /// By leader: what the node does not read, whoever wins the contested frames. Empty if there is
    /// nothing.
    knocked: Vec<RunSet>,
    residue: RunSet,
    /// Natives, aliens, contested.
    counts: [u64; 3],
}

/// The state for comparing chunks, if this is done.
struct Survey {
    chunks: Chunks,
    fingerprinter: Arc<Fingerprinter>,
    /// Fingerprints of this node's natives by chunk; computed when first needed.
    held: Option<Vec<u128>>,
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
    /// What follows from the header; the same object for all machines of a process.
    opened: Option<Arc<AfterHeader>>,
    bytes_sent: u64,
    rounds: u32,
}

/// What follows from the header on all ranks.
struct AfterHeader {
    opening: Opening,
    fingerprinter: Arc<Fingerprinter>,
    /// The indices that exist; `None`: all of them.
    target: Option<Arc<RunSet>>,
}

/// What a rank has decided so far, in indices.
struct Plan {
    node: Node,
    /// Whether any node has several ranks.
    shared: bool,
    /// Indices of the request.
    count: u64,
    /// Indices that exist; `None`: all of them.
    target: Option<Arc<RunSet>>,
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
    /// About how many bytes all leaders offer together.
    offered: u64,
    /// Whether this rank packs large blocks.
    packs: bool,
}

impl Machine {
    /// `rank`'s machine among `size`; fails with `InvalidArgument` if there is no such rank.
    pub fn new(input: Input, rank: usize, size: usize) -> Result<Machine> {
        let header = Header::Ready(Ready::of(&input));
        Machine::with(header, Some(input), rank, size)
    }

    /// The machine of a rank that cannot take part, for example because its daemon gave no answer.
    /// It sends the reason to the others, so all ranks end with that error and none waits.
    pub(crate) fn declining(reason: &Error, rank: usize, size: usize) -> Result<Machine> {
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
                    "rank {rank} does not exist in a communicator of {size}; give the rank and size of the \
                     collectives"
                ),
            ));
        }
        let plan = Plan {
            node: Node::alone(rank),
            shared: false,
            count: 0,
            target: None,
            target_len: 0,
            open: None,
            native: RunSet::new(),
            alien: RunSet::new(),
            residue: RunSet::new(),
            total: Counts::default(),
            path: Path::Exchange,
            offered: 0,
            packs: false,
        };
        Ok(Machine {
            rank,
            size,
            header,
            input,
            stage: Stage::Start,
            tuning: Tuning::default(),
            plan,
            opened: None,
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
                Step::Sum(header::words(&self.header, self.rank))
            }
            (stage, Answer::Words(words)) => self.words(stage, words)?,
            (Stage::Tally { slice }, Answer::Gathered(blocks)) => {
                if blocks.len() != self.size {
                    let context =
                        format!("collectives of {} ranks gathered {} blocks", self.size, blocks.len());
                    return Err(Error::new(ErrorKind::Protocol, context));
                }
                self.on_tally(slice, &blocks)?
            }
            (stage, Answer::Blocks(blocks)) => {
                check_blocks(&blocks, self.size).map_err(|error| {
                    Error::new(ErrorKind::Protocol, "the collectives returned what is no result")
                        .caused_by(error)
                })?;
                self.blocks(stage, blocks)?
            }
            (Stage::Links, Answer::Slow(slow)) => {
                self.plan.packs = slow;
                self.offer()
            }
            (_, Answer::Gathered(_) | Answer::Slow(_)) => return Err(out_of_turn()),
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
            Stage::Root { .. } => "rank 0",
            Stage::Search { .. } => "search",
            Stage::Complaint => "complaint",
            Stage::Fingerprint => "fingerprint",
            Stage::Ids => "node ids",
            Stage::Members => "members",
            Stage::Held => "held",
            Stage::NodeFingerprint { .. } => "node fingerprint",
            Stage::ChunkCounts { .. } => "chunk counts",
            Stage::ChunkFingerprints { .. } => "chunk fingerprints",
            Stage::Links => "links",
            Stage::Offer => "offer",
            Stage::NativeCount => "native count",
            Stage::Natives { .. } => "natives",
            Stage::NativeEntries { .. } => "native entries",
            Stage::AlienEntries { .. } => "alien entries",
            Stage::Claims { .. } => "claims",
            Stage::Tally { .. } => "tally",
            Stage::Conflicts { .. } => "conflicts",
            Stage::Forward { .. } => "forward",
            Stage::Wins { .. } => "wins",
            Stage::Answer { .. } => "answer",
            Stage::Deal => "deal",
            Stage::Over => "done",
        }
    }

    /// The bytes that this rank contributes to the collective of `step`; for an all-to-all, the
    /// bytes that go to others.
    pub(crate) fn contribution(&self, step: &Step) -> u64 {
        let bytes = match step {
            Step::Sum(words) | Step::Xor(words) | Step::Or(words) | Step::TwoBit(words) => {
                size_of_val(words.as_slice())
            }
            Step::Allgatherv(block) => block.len(),
            Step::Alltoallv(blocks) => {
                let others = blocks.iter().filter(|(to, _)| *to != self.rank);
                others.map(|(_, block)| block.len()).sum()
            }
            Step::IsSlow | Step::Done(_) => 0,
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

    fn words(&mut self, stage: Stage, words: Shared<Vec<u64>>) -> Result<Step> {
        match stage {
            Stage::Header => self.on_header(&words),
            Stage::Root { declined } => self.on_root(declined, &words),
            Stage::Search { search, complaint } => self.on_search(search, complaint, &words),
            Stage::Complaint => Err(self.on_complaint(&words)),
            Stage::Fingerprint => self.on_fingerprint(&words),
            Stage::Held => self.on_held(&words),
            Stage::NodeFingerprint { survey } => self.on_node_fingerprint(survey, &words),
            Stage::ChunkCounts { survey } => self.on_chunk_counts(survey, &words),
            Stage::ChunkFingerprints { survey, matching } => {
                self.on_chunk_fingerprints(&survey, &matching, &words)
            }
            Stage::NativeCount => self.on_native_count(&words),
            Stage::Natives { copies } => self.on_natives(copies, words.into_value()),
            Stage::NativeEntries { native } => self.on_native_entries(native, words.into_value()),
            Stage::AlienEntries { native, native_entries } => {
                expect(&words, self.plan.count.div_ceil(32))?;
                self.survey(Global { native, native_entries, alien_entries: Some(words.into_value()) })
            }
            Stage::Conflicts { slice, tally } => self.on_conflicts(slice, tally, &words),
            Stage::Wins { slice, tally, loads, lost } => self.on_wins(slice, tally, &loads, &lost, &words),
            _ => Err(out_of_turn()),
        }
    }

    fn blocks(&mut self, stage: Stage, blocks: Blocks) -> Result<Step> {
        match stage {
            Stage::Ids => self.on_ids(&blocks),
            Stage::Members => self.on_members(&blocks),
            Stage::Offer => self.on_offer(&blocks),
            Stage::Claims { counts } => self.on_claims(counts, &blocks),
            Stage::Forward { slice, tally, loads } => self.on_forward(slice, tally, loads, &blocks),
            Stage::Answer { dealt } => self.on_answer(&dealt, &blocks),
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

    /// The rank whose slice has `index`.
    fn owner_of(&self, index: u64) -> usize {
        (((u128::from(index) + 1) * self.size as u128 - 1) / u128::from(self.plan.count)) as usize
    }

    /// Cuts this rank's natives to the request and puts their number into the header.
    fn prepare(&mut self) {
        let Some(input) = &mut self.input else { return };
        let (request, count) = (input.request, input.request.count());
        let target = input.target.take().map(|target| target.cut(&request));
        let native = input.native.cut(&request);
        self.plan.count = count;
        self.plan.target_len = target.as_ref().map_or(count, RunSet::len);
        self.plan.target = target.filter(|target| target.len() < count).map(Arc::new);
        self.plan.native = self.within_target(native);
        let blocks = self.slices_touched(&self.plan.native);
        if let (Header::Ready(ready), Some(input)) = (&mut self.header, &self.input) {
            let sets = offer_bytes(&self.plan.native) + offer_bytes(&input.alien);
            ready.native = self.plan.native.len();
            ready.offer_bytes = sets + BLOCK_BYTES * blocks;
        }
    }

    /// The most slices that a set with these ends and so many numbers touches.
    fn slices_touched(&self, set: &RunSet) -> u64 {
        let spanned = |(low, high)| (self.owner_of(high) - self.owner_of(low)) as u64 + 1;
        set.first().zip(set.last()).map_or(0, spanned).min(set.len())
    }

    /// What this rank would bring if it leads its node: natives, and about how many bytes it
    /// offers.
    fn held(&self) -> (u64, u64) {
        match &self.header {
            Header::Ready(ready) => (ready.native, ready.offer_bytes),
            Header::Declined(..) => (0, 0),
        }
    }

    fn on_header(&mut self, sums: &Shared<Vec<u64>>) -> Result<Step> {
        let Some(opening) = header::judge(&self.header, sums, self.size)? else {
            return self.trouble(sums[2] != 0);
        };
        let native = opening.native;
        let opened = sums.derive(None::<&Arc<()>>, |_| {
            let fingerprinter = Arc::new(Fingerprinter::new(opening.elements().next()));
            Ok(AfterHeader { opening, fingerprinter, target: self.plan.target.clone() })
        })?;
        // All ranks have the same target: keep one of them.
        self.plan.target = opened.target.clone();
        self.opened = Some(opened);
        let input = self.input()?;
        let fits = native == self.plan.target_len && self.counts_exactly();
        let owner = input.protocol == Protocol::Owner;
        if owner && !input.verify_exact && fits { self.fingerprint() } else { self.ask_for_node() }
    }

    /// Whether sums of all ranks' natives cannot wrap.
    fn counts_exactly(&self) -> bool {
        u128::from(self.plan.target_len) * self.size as u128 <= u128::from(u64::MAX)
    }

    fn opened(&self) -> Result<&AfterHeader> {
        self.opened.as_deref().ok_or_else(out_of_turn)
    }

    fn within_target(&self, set: RunSet) -> RunSet {
        match &self.plan.target {
            Some(target) => set.intersection(target),
            None => set,
        }
    }

    /// Begins the exchange of holdings: from here on only leaders hold anything.
    fn exchange(&mut self) -> Result<Step> {
        if self.plan.node.leads() {
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
            let open = self.plan.open.as_ref().map_or(self.plan.count, RunSet::len);
            let each = u128::from(self.plan.offered / self.size as u64) * u128::from(open);
            if each / u128::from(self.plan.count) < u128::from(self.tuning.weighed_bytes) {
                return Ok(self.offer());
            }
            self.stage = Stage::Links;
            return Ok(Step::IsSlow);
        }
        if self.plan.count > BITMAP_FRAMES_MAX {
            let context = format!(
                "{} frames are beyond the limit of {BITMAP_FRAMES_MAX} of the bitmap protocol; use protocol \
                 owner",
                self.plan.count
            );
            return Err(Error::new(ErrorKind::TooLarge, context));
        }
        self.stage = Stage::NativeCount;
        Ok(Step::Sum(vec![self.plan.native.len()]))
    }

    fn offer(&mut self) -> Step {
        self.stage = Stage::Offer;
        Step::Alltoallv(match &self.plan.open {
            Some(open) => self.by_slice(&self.plan.native.intersection(open), &self.plan.alien),
            None => self.by_slice(&self.plan.native, &self.plan.alien),
        })
    }

    /// A block that holds two sets.
    fn block(&self, first: &RunSet, second: &RunSet) -> Vec<u8> {
        let block = encode_pair(first, second);
        let long = block.len() >= self.tuning.packed_bytes_min;
        if self.plan.packs && long { packed(block) } else { block }
    }

    /// The sets cut by slice. Visits only slices that they touch.
    fn by_slice(&self, first: &RunSet, second: &RunSet) -> Blocks {
        let next = |set: &RunSet, from: u64| set.select(set.rank(from));
        let (mut blocks, mut at) = (Vec::new(), 0);
        while let Some(index) = [next(first, at), next(second, at)].into_iter().flatten().min() {
            let owner = self.owner_of(index);
            let (low, end) = self.slice(owner);
            blocks.push((owner, self.block(&first.slice(low, end - 1), &second.slice(low, end - 1))));
            at = end;
        }
        blocks
    }

    fn on_offer(&mut self, blocks: &Blocks) -> Result<Step> {
        let (first, end) = self.slice(self.rank);
        let whole = blocks.iter().map(|(rank, block)| Ok((*rank, unpacked("offer", *rank, block)?)));
        let whole: Vec<(usize, Cow<'_, [u8]>)> = whole.collect::<Result<_>>()?;
        let offers = whole.iter().map(|(rank, block)| decode_offer(*rank, block, first, end));
        let offers: Vec<Offer<'_>> = offers.collect::<Result<_>>()?;
        let rules = self.input()?.rules;
        let plan = &self.plan;
        let both = plan.target.as_ref().zip(plan.open.as_ref());
        let both = both.map(|(target, open)| target.intersection(open));
        let wanted = both.as_ref().or(plan.open.as_ref()).or(plan.target.as_deref());
        let resolved = resolve(rules, first, end, wanted, &offers);
        // In settled chunks this node reads what it holds; no other node needs to know it.
        let settled = match &plan.open {
            Some(open) => plan.native.len() - plan.native.intersection(open).len(),
            None => 0,
        };
        self.tally(Slice {
            leaders: blocks.iter().map(|(rank, _)| *rank).collect(),
            claims: resolved.claims,
            knocked: resolved.knocked,
            residue: resolved.residue,
            counts: [resolved.native + settled, resolved.alien, resolved.contested],
        })
    }

    /// The pairs in `blocks` by sender, all within `first .. end`.
    fn pairs(&self, name: &'static str, blocks: &Blocks, first: u64, end: u64) -> Result<Vec<(usize, Pair)>> {
        let pair =
            |(rank, block): &(usize, Vec<u8>)| Ok((*rank, decode_pair(name, *rank, block, first, end)?));
        blocks.iter().map(pair).collect()
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
