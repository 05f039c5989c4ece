//! Collectives among the ranks of one process: what MPI would do with the steps of all ranks.

use zazen_assign::{Answer, Step, two_bit};
use zazen_core::{Error, ErrorKind, Result};

fn mixed() -> Error {
    Error::new(ErrorKind::Protocol, "the ranks ask for different collectives")
}

/// The answers to the steps of all ranks, by rank; an error where the ranks do not ask for the
/// same.
pub(crate) fn exchange(steps: Vec<Step>) -> Result<Vec<Answer>> {
    let size = steps.len();
    let kind = steps.first().map(std::mem::discriminant);
    if steps.iter().any(|step| Some(std::mem::discriminant(step)) != kind) {
        return Err(mixed());
    }
    let mut words: Vec<Vec<u64>> = Vec::new();
    let mut blocks: Vec<Vec<Vec<u8>>> = Vec::new();
    let mut combine: fn(u64, u64) -> u64 = u64::wrapping_add;
    for step in steps {
        match step {
            Step::Sum(mine) => words.push(mine),
            Step::Xor(mine) => {
                combine = |a, b| a ^ b;
                words.push(mine);
            }
            Step::Or(mine) => {
                combine = |a, b| a | b;
                words.push(mine);
            }
            Step::TwoBit(mine) => {
                combine = two_bit;
                words.push(mine);
            }
            // To everybody the same block.
            Step::Allgatherv(mine) => blocks.push(vec![mine; size]),
            Step::Alltoallv(mine) if mine.len() == size => blocks.push(mine),
            Step::Alltoallv(_) | Step::Done(_) => return Err(mixed()),
        }
    }
    if words.is_empty() {
        let of = |rank: usize| blocks.iter().map(|from| from[rank].clone()).collect();
        return Ok((0..size).map(|rank| Answer::Blocks(of(rank))).collect());
    }
    let mut reduced = words[0].clone();
    for other in &words[1..] {
        if other.len() != reduced.len() {
            return Err(mixed());
        }
        reduced.iter_mut().zip(other).for_each(|(word, other)| *word = combine(*word, *other));
    }
    Ok(vec![reduced; size].into_iter().map(Answer::Words).collect())
}
