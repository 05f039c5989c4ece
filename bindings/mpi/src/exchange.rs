//! All-reduces for collectives that have no operator of their own for them.

use zazen_assign::{Collectives, dense, sparse, two_bit};
use zazen_core::{Error, ErrorKind, Result};

/// [`Collectives::allreduce_two_bit`] by an all-to-all and an all-gather; see [`xor_by_exchange`].
pub fn two_bit_by_exchange(collectives: &dyn Collectives, values: &mut [u64]) -> Result<()> {
    by_exchange(collectives, values, two_bit)
}

/// [`Collectives::allreduce_xor`] by an all-to-all and an all-gather: each rank combines one slice.
///
/// Sends 2·(p − 1)/p of the words per rank, as a ring all-reduce does. Fails with `Protocol` on
/// every rank if the ranks pass unequal lengths.
pub fn xor_by_exchange(collectives: &dyn Collectives, values: &mut [u64]) -> Result<()> {
    by_exchange(collectives, values, |a, b| a ^ b)
}

fn by_exchange(
    collectives: &dyn Collectives,
    values: &mut [u64],
    combine: impl Fn(u64, u64) -> u64,
) -> Result<()> {
    let size = collectives.size();
    let words = values.len() as u128;
    let bounds = |rank: usize| (words * rank as u128 / size as u128) as usize;
    let slices = (0..size).map(|rank| encode(&values[bounds(rank)..bounds(rank + 1)])).collect();
    let offered = dense(collectives.alltoallv(sparse(slices))?, size);
    let own = bounds(collectives.rank())..bounds(collectives.rank() + 1);
    let mut combined = vec![0u64; own.len()];
    for (from, block) in offered.iter().enumerate() {
        for (into, word) in combined.iter_mut().zip(decode(block, own.len(), from)?) {
            *into = combine(*into, word);
        }
    }
    let pieces = collectives.allgatherv(&encode(&combined))?;
    for (from, block) in pieces.iter().enumerate() {
        let slice = bounds(from)..bounds(from + 1);
        for (into, word) in values[slice.clone()].iter_mut().zip(decode(block, slice.len(), from)?) {
            *into = word;
        }
    }
    Ok(())
}

fn encode(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn decode(block: &[u8], words: usize, from: usize) -> Result<impl Iterator<Item = u64>> {
    if block.len() != words * 8 {
        return Err(Error::new(
            ErrorKind::Protocol,
            format!(
                "all-reduce: rank {from} sent {} bytes where {} belong; all ranks must pass equal lengths",
                block.len(),
                words * 8
            ),
        ));
    }
    Ok(block.chunks_exact(8).map(|bytes| {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_carriers_own_operator() {
        for size in [1, 2, 3, 5] {
            for words in [0usize, 1, 4, 37] {
                let results = zazen_assign::threads::run(size, |rank| {
                    // Entries of 00, 01 and 10 only.
                    let seed = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(rank.rank() as u64 + 1);
                    let mine: Vec<u64> = (0..words as u64)
                        .map(|at| {
                            let noise = seed.wrapping_mul(at * 2 + 1);
                            let high = noise & 0xaaaa_aaaa_aaaa_aaaa;
                            high | ((noise.rotate_left(7) & 0x5555_5555_5555_5555) & !(high >> 1))
                        })
                        .collect();
                    let (mut own, mut exchanged) = (mine.clone(), mine);
                    rank.allreduce_two_bit(&mut own)?;
                    two_bit_by_exchange(rank, &mut exchanged)?;
                    assert_eq!(own, exchanged, "two-bit, {size} ranks, {words} words");
                    rank.allreduce_xor(&mut own)?;
                    xor_by_exchange(rank, &mut exchanged)?;
                    Ok((own, exchanged))
                });
                for result in results {
                    let (own, exchanged) = result.unwrap();
                    assert_eq!(own, exchanged, "{size} ranks, {words} words");
                }
            }
        }
    }

    #[test]
    fn unequal_lengths_are_an_error_on_every_rank() {
        let results = zazen_assign::threads::run(2, |rank| {
            two_bit_by_exchange(rank, &mut vec![0; 4 + 4 * rank.rank()])
        });
        for result in results {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Protocol);
        }
    }
}
