//! What will happen, and when: the simulator's own queue ([`zazen_sim::queue`]), with times in
//! nanoseconds. Events are in one total order: by time, then by the order of scheduling.

use zazen_sim::queue::Queue;
pub(crate) use zazen_sim::trace::Trace;

/// Nanoseconds of a millisecond.
pub(crate) const MS: u64 = 1_000_000;
/// All events are of one cluster: only time and order count.
const CLUSTER: u32 = 0;

/// What will happen, and when.
pub(crate) struct Scheduler<E> {
    now_ns: u64,
    queue: Queue<u32>,
    /// Events that are due, at the places that the queue names.
    events: Vec<Option<E>>,
    free: Vec<u32>,
}

impl<E> Scheduler<E> {
    pub(crate) fn new() -> Scheduler<E> {
        Scheduler { now_ns: 0, queue: Queue::new(), events: Vec::new(), free: Vec::new() }
    }

    /// The time of the event under way.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Schedules `event`; never before now.
    pub(crate) fn at(&mut self, time_ns: u64, event: E) {
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place as usize] = Some(event);
                place
            }
            None => {
                self.events.push(Some(event));
                self.events.len() as u32 - 1
            }
        };
        // The queue's times end one before the last number.
        self.queue.push(time_ns.clamp(self.now_ns, u64::MAX - 1), CLUSTER, place);
    }

    /// Schedules `event` in `delay_ns`.
    pub(crate) fn after(&mut self, delay_ns: u64, event: E) {
        self.at(self.now_ns.saturating_add(delay_ns), event);
    }

    /// The next event; time moves on to it.
    pub(crate) fn pop(&mut self) -> Option<E> {
        let due = self.queue.pop()?;
        self.now_ns = due.time_ps;
        self.free.push(due.event);
        self.events[due.event as usize].take()
    }
}

#[cfg(test)]
mod tests {
    use super::Scheduler;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_scheduling() {
        let mut schedule = Scheduler::new();
        for (time_ns, event) in [(5, "c"), (3, "a"), (5, "d"), (3, "b")] {
            schedule.at(time_ns, event);
        }
        assert_eq!((schedule.pop(), schedule.now_ns()), (Some("a"), 3));
        schedule.after(0, "b2");
        schedule.at(1, "b3");
        schedule.at(u64::MAX, "z");
        let rest: Vec<&str> = std::iter::from_fn(|| schedule.pop()).collect();
        assert_eq!(rest, ["b", "b2", "b3", "c", "d", "z"]);
    }
}
