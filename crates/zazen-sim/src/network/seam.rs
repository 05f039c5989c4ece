//! The seam between a world and the network between its nodes. The simulator's worlds and those of
//! the fault simulation (`zazen-vopr`) all send through it; what differs is the carrier.
//!
//! A carrier only decides when a message arrives, and whether. It holds no clock and no queue: what
//! it decides it schedules in the world. [`super::Network`] simulates links and their contention.
//! The carriers of `zazen-vopr` add faults: they lose, double, damage and delay messages, by draws
//! of the world's own random numbers.

use crate::queue::Queue;

/// Where events wait for their time: a world, or its queue.
pub trait Schedule<E> {
    /// `event` happens on `node` at `time`, in the unit of the world's clock.
    ///
    /// The caller guarantees that `time` is not before the present.
    fn schedule(&mut self, time: u64, node: u32, event: E);
}

impl<E: Copy> Schedule<E> for Queue<E> {
    #[inline]
    fn schedule(&mut self, time: u64, node: u32, event: E) {
        self.push(time, node, event);
    }
}

/// A message's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// The present, in the unit of the world's clock.
    pub now: u64,
    /// The node that sends.
    pub from: u32,
    /// The node that it is for.
    pub to: u32,
    /// The message's length.
    pub bytes: u64,
}

/// Carries messages between the nodes of a world `W`: its queue, or all of it for carriers that
/// draw random numbers or keep a record of faults there.
pub trait Carrier<W> {
    /// What is carried.
    type Message;

    /// Sends a message: schedules its arrival, or none, or several.
    fn send(&mut self, world: &mut W, sending: Sending, message: Self::Message);
}
