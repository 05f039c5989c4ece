//! The collectives that the protocols need, and the implementations that need no other rank.
//!
//! An implementation moves words and bytes and knows nothing about frames.

use std::cell::Cell;
use zazen_core::{Error, ErrorKind, Result};

/// What a rank sends to others, or what others sent to it: each block with the rank at the other
/// end. Ascending by rank, each rank at most once. Empty blocks are left out, so that a rank which
/// has little to say holds and sends little, whatever the number of ranks.
pub type Blocks = Vec<(usize, Vec<u8>)>;

/// Fails with `InvalidArgument` unless `blocks` are as [`Blocks`] says, for `size` ranks.
pub fn check_blocks(blocks: &[(usize, Vec<u8>)], size: usize) -> Result<()> {
    let ascend = blocks.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let last = blocks.last().map_or(0, |(rank, _)| *rank);
    if ascend && last < size && blocks.iter().all(|(_, block)| !block.is_empty()) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!(
            "an all-to-all among {size} ranks with {} blocks, the last for rank {last}; give blocks that are \
             not empty, ascending by rank, one per rank",
            blocks.len()
        ),
    ))
}

/// One block per rank: an empty one for each rank that `blocks` leave out.
pub fn dense(blocks: Blocks, size: usize) -> Vec<Vec<u8>> {
    let mut by_rank = vec![Vec::new(); size];
    for (rank, block) in blocks {
        by_rank[rank] = block;
    }
    by_rank
}

/// The inverse of [`dense`].
pub fn sparse(by_rank: Vec<Vec<u8>>) -> Blocks {
    by_rank.into_iter().enumerate().filter(|(_, block)| !block.is_empty()).collect()
}

/// The collectives that the protocols need; all are collective over the same ranks in the same
/// order, and blocking. Implementations: MPI bound at run time, a C table, mpi4py, threads, one
/// rank alone. After an error the communicator is in an unknown state and the job should end.
pub trait Collectives {
    /// This rank, 0 .. size.
    fn rank(&self) -> usize;
    /// Ranks.
    fn size(&self) -> usize;
    /// Element-wise sum (wrapping) of `values` over all ranks, in place; equal lengths.
    fn allreduce_sum(&self, values: &mut [u64]) -> Result<()>;
    /// Element-wise exclusive OR over all ranks, in place; equal lengths.
    fn allreduce_xor(&self, values: &mut [u64]) -> Result<()>;
    /// Element-wise bitwise OR over all ranks, in place; equal lengths.
    fn allreduce_or(&self, values: &mut [u64]) -> Result<()>;
    /// The paper's two-bit operator ([`two_bit`]) over all ranks, in place, 32 entries a word:
    /// 00∘x = x, 10∘x = 10, 01∘01 = 10.
    fn allreduce_two_bit(&self, values: &mut [u64]) -> Result<()>;
    /// Sends each block to its rank; returns the blocks that were sent here, with their senders. A
    /// rank may send to itself. Blocks may exceed 2³¹ bytes. Implementations that many ranks use
    /// should take no memory and send no message for a rank without a block.
    fn alltoallv(&self, send: Blocks) -> Result<Blocks>;
    /// The `mine` of each rank, by rank. Most are tens of bytes.
    fn allgatherv(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Root 0's bytes on every rank.
    fn broadcast(&self, mine: &[u8]) -> Result<Vec<u8>>;
    /// Whether a byte takes longer to another rank than packing and unpacking take, which is about
    /// 4 ns. Then large blocks are packed. May send 2 MB to find out. The ranks need not agree.
    fn is_slow(&self) -> Result<bool> {
        Ok(false)
    }
}

/// The paper's commutative operator (§4 step 5) on 32 two-bit entries at once: 00 no holder, 01
/// one, 10 several; an entry is never 11.
#[inline]
pub fn two_bit(a: u64, b: u64) -> u64 {
    const LOW: u64 = 0x5555_5555_5555_5555;
    let several = ((a | b) & !LOW) | ((a & b & LOW) << 1);
    let one = (a ^ b) & LOW & !(several >> 1);
    several | one
}

/// A communicator of one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Solo;

impl Collectives for Solo {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn allreduce_sum(&self, _values: &mut [u64]) -> Result<()> {
        Ok(())
    }
    fn allreduce_xor(&self, _values: &mut [u64]) -> Result<()> {
        Ok(())
    }
    fn allreduce_or(&self, _values: &mut [u64]) -> Result<()> {
        Ok(())
    }
    fn allreduce_two_bit(&self, _values: &mut [u64]) -> Result<()> {
        Ok(())
    }
    fn alltoallv(&self, send: Blocks) -> Result<Blocks> {
        check_blocks(&send, 1)?;
        Ok(send)
    }
    fn allgatherv(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine.to_vec()])
    }
    fn broadcast(&self, mine: &[u8]) -> Result<Vec<u8>> {
        Ok(mine.to_vec())
    }
}

/// Collectives that count calls and bytes, by the same measure as `Assignment::bytes_sent`.
pub struct Counting<'a> {
    inner: &'a dyn Collectives,
    bytes: Cell<u64>,
    calls: Cell<u32>,
}

impl<'a> Counting<'a> {
    /// Counts the calls made through `inner`.
    pub fn new(inner: &'a dyn Collectives) -> Counting<'a> {
        Counting { inner, bytes: Cell::new(0), calls: Cell::new(0) }
    }

    /// Payload bytes sent to other ranks so far.
    pub fn bytes_sent(&self) -> u64 {
        self.bytes.get()
    }

    /// Collective calls so far.
    pub fn calls(&self) -> u32 {
        self.calls.get()
    }

    fn count(&self, bytes: usize) {
        self.calls.set(self.calls.get() + 1);
        if self.inner.size() > 1 {
            self.bytes.set(self.bytes.get() + bytes as u64);
        }
    }
}

impl Collectives for Counting<'_> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn allreduce_sum(&self, values: &mut [u64]) -> Result<()> {
        self.count(size_of_val(values));
        self.inner.allreduce_sum(values)
    }
    fn allreduce_xor(&self, values: &mut [u64]) -> Result<()> {
        self.count(size_of_val(values));
        self.inner.allreduce_xor(values)
    }
    fn allreduce_or(&self, values: &mut [u64]) -> Result<()> {
        self.count(size_of_val(values));
        self.inner.allreduce_or(values)
    }
    fn allreduce_two_bit(&self, values: &mut [u64]) -> Result<()> {
        self.count(size_of_val(values));
        self.inner.allreduce_two_bit(values)
    }
    fn alltoallv(&self, send: Blocks) -> Result<Blocks> {
        self.count(send.iter().filter(|(to, _)| *to != self.rank()).map(|(_, block)| block.len()).sum());
        self.inner.alltoallv(send)
    }
    fn allgatherv(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.count(mine.len());
        self.inner.allgatherv(mine)
    }
    fn broadcast(&self, mine: &[u8]) -> Result<Vec<u8>> {
        self.count(if self.inner.rank() == 0 { mine.len() } else { 0 });
        self.inner.broadcast(mine)
    }
    fn is_slow(&self) -> Result<bool> {
        self.inner.is_slow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_bit_is_the_papers_table() {
        let (none, one, several) = (0b00u64, 0b01, 0b10);
        let table = [
            (none, none, none),
            (none, one, one),
            (none, several, several),
            (one, one, several),
            (one, several, several),
            (several, several, several),
        ];
        for (a, b, expected) in table {
            for at in [0, 2, 30, 62] {
                assert_eq!(two_bit(a << at, b << at), expected << at, "{a:02b} and {b:02b} at bit {at}");
                assert_eq!(two_bit(b << at, a << at), expected << at, "{b:02b} and {a:02b} at bit {at}");
            }
        }
    }
}
