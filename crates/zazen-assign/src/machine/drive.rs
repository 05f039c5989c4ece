//! Drives a machine over collectives, with or without an observer.

use super::{Answer, Machine, Step};
use crate::collectives::Collectives;
use crate::{Assignment, Input};
use zazen_core::{Error, Result};

/// Learns what [`assign_observed`] does, in order. It measures time and bytes, which this pure
/// crate cannot do.
pub trait Observer {
    /// The machine has computed its next step. The collective of round `round` is about to start.
    /// This rank contributes `bytes` to it (for an all-to-all, the bytes that go to others). At the
    /// end this is called once more, with "done" and 0.
    fn local_done(&mut self, round: &'static str, bytes: u64);
    /// That collective has ended.
    fn collective_done(&mut self, round: &'static str);
}

struct Unobserved;

impl Observer for Unobserved {
    fn local_done(&mut self, _round: &'static str, _bytes: u64) {}
    fn collective_done(&mut self, _round: &'static str) {}
}

/// Runs the protocol over `collectives` and returns this rank's share. Collective: every rank calls
/// it.
///
/// Fails with `InvalidArgument` on every rank if the ranks do not ask for the same; with the reason
/// of a rank that [`decline`]d; with `TooLarge` beyond
/// [`BITMAP_FRAMES_MAX`](super::BITMAP_FRAMES_MAX); with `Protocol` if a peer's message is
/// malformed; and with the errors of the collectives.
pub fn assign(input: Input, collectives: &dyn Collectives) -> Result<Assignment> {
    assign_observed(input, collectives, &mut Unobserved)
}

/// As [`assign`]. `observer` is called at every step, on the calling thread.
pub fn assign_observed(
    input: Input,
    collectives: &dyn Collectives,
    observer: &mut dyn Observer,
) -> Result<Assignment> {
    drive(Machine::new(input, collectives.rank(), collectives.size())?, collectives, observer)
}

/// A rank that cannot take part calls this in place of [`assign`], for example because its daemon
/// gave no holdings. All ranks then end with `reason` and do not wait for this rank. Returns that
/// error. Collective, like `assign`.
pub fn decline(reason: Error, collectives: &dyn Collectives) -> Error {
    let machine = Machine::declining(&reason, collectives.rank(), collectives.size());
    match machine.and_then(|machine| drive(machine, collectives, &mut Unobserved)) {
        Ok(_) => reason,
        Err(error) => error,
    }
}

fn drive(
    mut machine: Machine,
    collectives: &dyn Collectives,
    observer: &mut dyn Observer,
) -> Result<Assignment> {
    let mut answer = Answer::Start;
    loop {
        let step = machine.step(answer)?;
        let round = machine.round();
        observer.local_done(round, machine.contribution(&step));
        answer = match step {
            Step::Sum(mut words) => {
                collectives.allreduce_sum(&mut words)?;
                Answer::Words(words.into())
            }
            Step::Xor(mut words) => {
                collectives.allreduce_xor(&mut words)?;
                Answer::Words(words.into())
            }
            Step::Or(mut words) => {
                collectives.allreduce_or(&mut words)?;
                Answer::Words(words.into())
            }
            Step::TwoBit(mut words) => {
                collectives.allreduce_two_bit(&mut words)?;
                Answer::Words(words.into())
            }
            Step::Alltoallv(blocks) => Answer::Blocks(collectives.alltoallv(blocks)?),
            Step::Allgatherv(mine) => Answer::Gathered(collectives.allgatherv(&mine)?.into()),
            Step::IsSlow => Answer::Slow(collectives.is_slow()?),
            Step::Done(assignment) => return Ok(*assignment),
        };
        observer.collective_done(round);
    }
}
