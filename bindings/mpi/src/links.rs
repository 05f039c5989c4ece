//! Whether links are slower than packing.

use std::time::Instant;
use zazen_assign::Collectives;
use zazen_core::Result;

/// Bytes to the next rank. The first time they use up what a shaped link lets through at once.
const BYTES: usize = 1 << 20;
/// Packing a bitmap and unpacking it take about 2 ns a byte on a core, and save half of the bytes.
const SLOW_NS_PER_BYTE: f64 = 4.0;

/// [`Collectives::is_slow`] by two all-to-alls, the second of which is timed: every rank sends 1
/// MiB to the next one, as in the rounds that follow.
pub fn slow_by_exchange(collectives: &dyn Collectives) -> Result<bool> {
    let (rank, size) = (collectives.rank(), collectives.size());
    if size == 1 {
        return Ok(false);
    }
    let mut spent_ns = 0;
    for _ in 0..2 {
        let block = vec![(((rank + 1) % size), vec![1; BYTES])];
        let begin = Instant::now();
        collectives.alltoallv(block)?;
        spent_ns = begin.elapsed().as_nanos();
    }
    Ok(spent_ns as f64 / BYTES as f64 > SLOW_NS_PER_BYTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_an_answer() {
        for size in [1, 3] {
            let slow = zazen_assign::threads::run(size, |rank| slow_by_exchange(rank));
            assert!(slow.into_iter().all(|slow| slow.is_ok()));
        }
    }
}
