//! Collectives among the ranks of one process: what MPI would do with the steps of all ranks.

use crate::mutant::Mutant;
use zazen_assign::{Answer, Assignment, Blocks, Input, Machine, Shared, Step, check_blocks, two_bit};
use zazen_core::{Error, ErrorKind, Result};

/// Lets ranks agree on who reads what, with the collectives that jobs of the fault simulation use.
pub fn assign(inputs: Vec<Input>) -> Result<Vec<Assignment>> {
    let size = inputs.len();
    let ranks = inputs.into_iter().enumerate();
    let mut machines: Vec<Machine> =
        ranks.map(|(rank, input)| Machine::new(input, rank, size)).collect::<Result<_>>()?;
    let mut answers: Vec<Answer> = (0..size).map(|_| Answer::Start).collect();
    loop {
        let steps = machines.iter_mut().zip(answers).map(|(machine, answer)| machine.step(answer));
        let steps: Vec<Step> = steps.collect::<Result<_>>()?;
        if steps.iter().all(|step| matches!(step, Step::Done(_))) {
            let assigned = steps.into_iter().filter_map(|step| match step {
                Step::Done(assignment) => Some(*assignment),
                _ => None,
            });
            return Ok(assigned.collect());
        }
        answers = exchange(steps, None)?;
    }
}

fn mixed() -> Error {
    Error::new(ErrorKind::Protocol, "the ranks ask for different collectives")
}

/// The answers to the steps of all ranks, by rank; an error where the ranks do not ask for the
/// same.
pub(crate) fn exchange(steps: Vec<Step>, mutant: Option<Mutant>) -> Result<Vec<Answer>> {
    let size = steps.len();
    let kind = steps.first().map(std::mem::discriminant);
    if steps.iter().any(|step| Some(std::mem::discriminant(step)) != kind) {
        return Err(mixed());
    }
    let mut words: Vec<Vec<u64>> = Vec::new();
    let mut gathered: Vec<Vec<u8>> = Vec::new();
    let mut inboxes: Vec<Blocks> = vec![Blocks::new(); size];
    let mut slow = 0;
    let mut combine: fn(u64, u64) -> u64 = u64::wrapping_add;
    for (from, step) in steps.into_iter().enumerate() {
        match step {
            Step::Sum(mine) => words.push(mine),
            Step::Xor(mine) => {
                let believes = mutant == Some(Mutant::BelieveCounts);
                combine = if believes { |_, _| 0 } else { |a, b| a ^ b };
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
            Step::Allgatherv(mine) => gathered.push(mine),
            Step::Alltoallv(mine) => {
                check_blocks(&mine, size)?;
                mine.into_iter().for_each(|(to, block)| inboxes[to].push((from, block)));
            }
            Step::IsSlow => slow += 1,
            Step::Done(_) => return Err(mixed()),
        }
    }
    if slow > 0 {
        return Ok((0..size).map(|rank| Answer::Slow(rank % 2 == 0)).collect());
    }
    if !gathered.is_empty() {
        let gathered = Shared::from(gathered);
        return Ok((0..size).map(|_| Answer::Gathered(gathered.clone())).collect());
    }
    if mutant == Some(Mutant::LoseBlock)
        && let Some(inbox) = inboxes.iter_mut().find(|inbox| !inbox.is_empty())
    {
        inbox.pop();
    }
    let Some(mut reduced) = words.pop() else { return Ok(inboxes.into_iter().map(Answer::Blocks).collect()) };
    for other in &words {
        if other.len() != reduced.len() {
            return Err(mixed());
        }
        reduced.iter_mut().zip(other).for_each(|(word, other)| *word = combine(*word, *other));
    }
    let reduced = Shared::from(reduced);
    Ok((0..size).map(|_| Answer::Words(reduced.clone())).collect())
}
