//! Ranks as threads of one process: the collectives of tests, scenarios and benches.
//!
//! A rank that returns an error, panics or leaves early never hangs the others: each rank that
//! waits for it gets an error that names it. If two ranks call different collectives, every rank
//! gets an error.
//!
//! At most as many ranks compute at a time as there are cores, so thousands of ranks need only the
//! working memory of a few. A rank that waits in a collective lets another rank run.

use crate::collectives::{Blocks, Collectives, check_blocks, two_bit};
use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use zazen_core::{Error, ErrorKind, Result};

/// Stack of a rank's thread in bytes; nothing here recurses or keeps planes on the stack.
const STACK_BYTES: usize = 1 << 20;
/// Vectors of fewer words are short, as are those of fewer words than ranks.
const SHORT_WORDS: usize = 1024;

/// Runs `body` once per rank, each on a thread of its own, and returns the results by rank. A panic
/// of a rank is returned as `Unavailable`.
pub fn run<T: Send>(size: usize, body: impl Fn(&ThreadRank) -> Result<T> + Sync) -> Vec<Result<T>> {
    let hub = Arc::new(Hub::new(size));
    let body = &body;
    std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..size)
            .map(|rank| {
                let member =
                    ThreadRank { hub: hub.clone(), rank, round: Cell::new(0), computing: Cell::new(false) };
                let spawned = std::thread::Builder::new()
                    .name(format!("rank-{rank}"))
                    .stack_size(STACK_BYTES)
                    .spawn_scoped(scope, move || {
                        member.begin();
                        body(&member)
                    });
                // If no thread could be started, the closure is dropped with its rank, so the other
                // ranks learn of it.
                spawned
                    .map_err(|source| Error::io(format!("start a thread for rank {rank} of {size}"), source))
            })
            .collect();
        spawned
            .into_iter()
            .enumerate()
            .map(|(rank, handle)| match handle?.join() {
                Ok(result) => result,
                Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("rank {rank} panicked"))),
            })
            .collect()
    })
}

/// One rank of [`run`].
pub struct ThreadRank {
    hub: Arc<Hub>,
    rank: usize,
    round: Cell<u64>,
    computing: Cell<bool>,
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        state.departed.get_or_insert(self.rank);
        self.pause(&mut state);
        self.hub.changed.notify_all();
    }
}

struct Hub {
    size: usize,
    cores: usize,
    state: Mutex<State>,
    /// A round is complete, or a rank has departed.
    changed: Condvar,
    /// A rank has stopped computing.
    idle: Condvar,
}

struct State {
    /// Contributions to the round that is being collected.
    slots: Vec<Option<Deposit>>,
    arrived: usize,
    computing: usize,
    /// The last complete round. It may be overwritten only after all ranks have read it. A round is
    /// complete when every rank has entered it, so every rank has left the round before.
    complete: (u64, Arc<Round>),
    departed: Option<usize>,
}

/// What all ranks brought to a round.
#[derive(Default)]
struct Round {
    deposits: Vec<Deposit>,
    /// By receiver; each is taken once.
    inboxes: Vec<Mutex<Blocks>>,
    /// All words combined, for short vectors; by the rank that comes first.
    reduced: OnceLock<Vec<u64>>,
}

struct Deposit {
    call: &'static str,
    words: Vec<u64>,
    /// To all (all-gather, broadcast).
    bytes: Vec<u8>,
    /// To some (all-to-all).
    blocks: Blocks,
}

impl Round {
    /// Brings each block to its receiver.
    fn of(mut deposits: Vec<Deposit>) -> Round {
        let mut inboxes: Vec<Blocks> = Vec::new();
        for (from, deposit) in deposits.iter_mut().enumerate() {
            for (to, block) in std::mem::take(&mut deposit.blocks) {
                if inboxes.len() <= to {
                    inboxes.resize_with(to + 1, Vec::new);
                }
                inboxes[to].push((from, block));
            }
        }
        Round { deposits, inboxes: inboxes.into_iter().map(Mutex::new).collect(), reduced: OnceLock::new() }
    }
}

impl Hub {
    fn new(size: usize) -> Hub {
        let state = State {
            slots: (0..size).map(|_| None).collect(),
            arrived: 0,
            computing: 0,
            complete: (0, Arc::new(Round::default())),
            departed: None,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Hub { size, cores, state: Mutex::new(state), changed: Condvar::new(), idle: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent at every point where a holder of the lock could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThreadRank {
    /// Waits for a core.
    fn begin(&self) {
        let mut state = self.hub.lock();
        while state.computing == self.hub.cores {
            state = self.hub.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.computing += 1;
        self.computing.set(true);
    }

    /// Gives its core to another rank.
    fn pause(&self, state: &mut State) {
        if self.computing.replace(false) {
            state.computing -= 1;
            self.hub.idle.notify_one();
        }
    }

    /// The contributions of all ranks to the next round.
    fn exchange(&self, mine: Deposit) -> Result<Arc<Round>> {
        let (call, length) = (mine.call, mine.words.len());
        let round = self.round.get() + 1;
        self.round.set(round);
        let mut state = self.hub.lock();
        state.slots[self.rank] = Some(mine);
        state.arrived += 1;
        if state.arrived == self.hub.size {
            let all = state.slots.iter_mut().filter_map(Option::take).collect();
            state.complete = (round, Arc::new(Round::of(all)));
            state.arrived = 0;
            self.hub.changed.notify_all();
        }
        self.pause(&mut state);
        while state.complete.0 < round {
            if let Some(rank) = state.departed {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("rank {rank} left before round {round} ({call}); see its own error"),
                ));
            }
            state = self.hub.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let all = state.complete.1.clone();
        drop(state);
        self.begin();
        let deposits = &all.deposits;
        if let Some(rank) =
            deposits.iter().position(|other| other.call != call || other.words.len() != length)
        {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!(
                    "in round {round} rank {} calls {call} with {length} words, rank {rank} calls {} with {}",
                    self.rank,
                    deposits[rank].call,
                    deposits[rank].words.len()
                ),
            ));
        }
        Ok(all)
    }

    /// Long vectors are reduced one piece per rank, then the pieces are gathered: each word is
    /// combined by one rank only. Short ones are combined by the first rank that comes to it.
    fn allreduce(
        &self,
        call: &'static str,
        values: &mut [u64],
        combine: impl Fn(u64, u64) -> u64,
    ) -> Result<()> {
        let size = self.hub.size;
        let bounds = |rank: usize| values.len() * rank / size;
        let all = self.exchange(Deposit::words(call, values.to_vec()))?;
        let combined = |first: usize, end: usize| {
            let mut piece = all.deposits[0].words[first..end].to_vec();
            for other in &all.deposits[1..] {
                for (into, from) in piece.iter_mut().zip(&other.words[first..end]) {
                    *into = combine(*into, *from);
                }
            }
            piece
        };
        if values.len() < SHORT_WORDS.max(size) {
            values.copy_from_slice(all.reduced.get_or_init(|| combined(0, values.len())));
            return Ok(());
        }
        let piece = combined(bounds(self.rank), bounds(self.rank + 1));
        drop(all);
        let encoded = piece.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let pieces = self.exchange(Deposit::bytes(call, encoded))?;
        let mut at = 0;
        for other in &pieces.deposits {
            for word in other.bytes.chunks_exact(8) {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                values[at] = u64::from_ne_bytes(bytes);
                at += 1;
            }
        }
        Ok(())
    }
}

impl Deposit {
    fn words(call: &'static str, words: Vec<u64>) -> Deposit {
        Deposit { call, words, bytes: Vec::new(), blocks: Blocks::new() }
    }

    fn bytes(call: &'static str, bytes: Vec<u8>) -> Deposit {
        Deposit { call, words: Vec::new(), bytes, blocks: Blocks::new() }
    }
}

impl Collectives for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.hub.size
    }
    fn allreduce_sum(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce("allreduce_sum", values, u64::wrapping_add)
    }
    fn allreduce_xor(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce("allreduce_xor", values, |a, b| a ^ b)
    }
    fn allreduce_or(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce("allreduce_or", values, |a, b| a | b)
    }
    fn allreduce_two_bit(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce("allreduce_two_bit", values, two_bit)
    }
    fn alltoallv(&self, send: Blocks) -> Result<Blocks> {
        check_blocks(&send, self.hub.size)?;
        let all = self.exchange(Deposit { blocks: send, ..Deposit::words("alltoallv", Vec::new()) })?;
        let inbox = all.inboxes.get(self.rank);
        let take = |inbox: &Mutex<Blocks>| {
            std::mem::take(&mut *inbox.lock().unwrap_or_else(PoisonError::into_inner))
        };
        Ok(inbox.map(take).unwrap_or_default())
    }
    fn allgatherv(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.exchange(Deposit::bytes("allgatherv", mine.to_vec()))?;
        Ok(all.deposits.iter().map(|from| from.bytes.clone()).collect())
    }
    fn broadcast(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let mine = if self.rank == 0 { mine.to_vec() } else { Vec::new() };
        let all = self.exchange(Deposit::bytes("broadcast", mine))?;
        Ok(all.deposits[0].bytes.clone())
    }
}
