//! The loop of a run, for all worlds: events come out of the queue in their total order, each is
//! added to the run's trace, and the world handles it.

use crate::queue::Queue;
use crate::time::TIME_MAX_PS;
use crate::trace::Trace;
use std::ops::ControlFlow;
use zazen_core::{Error, ErrorKind, Result};

/// Events between two looks at the control.
const EVENTS_BETWEEN_LOOKS: u64 = 1 << 17;

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Steps done: of ranks, or frames, or operations on names.
    pub steps: u64,
    /// Steps that there will be.
    pub steps_all: u64,
    /// Events so far.
    pub events: u64,
}

/// Asked from time to time whether a run goes on.
pub type Control<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// What happens in a world.
pub(crate) trait Happening: Copy {
    /// A number of its own, for the trace.
    fn code(self) -> u64;
}

/// What events happen to.
pub(crate) trait Events {
    /// What happens.
    type Event: Happening;

    /// What is to happen.
    fn queue(&mut self) -> &mut Queue<Self::Event>;

    /// Whether the run is over though events are left.
    fn is_over(&self) -> bool {
        false
    }

    /// Has the memory of events to come fetched.
    fn expect(&self) {}

    /// Handles an event.
    fn handle(&mut self, now_ps: u64, node: u32, event: Self::Event) -> Result<()>;

    /// Steps done, for [`Progress`].
    fn steps(&self) -> u64;
}

/// A run that came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) events: u64,
    /// Digest of all events, in their order.
    pub(crate) trace_hash: u64,
}

/// Runs a world to its end; `None` if `control` broke it off. `TooLarge` if it passes 106 days of
/// simulated time.
pub(crate) fn drive<W: Events>(world: &mut W, steps_all: u64, control: Control<'_>) -> Result<Option<Ran>> {
    let mut trace = Trace::default();
    let mut events = 0_u64;
    while !world.is_over()
        && let Some(due) = world.queue().pop()
    {
        if due.time_ps >= TIME_MAX_PS {
            let why = "the run passes 106 days of simulated time; give it less to do";
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        events += 1;
        world.expect();
        trace.word(due.time_ps);
        trace.word(u64::from(due.node) << 36 ^ due.event.code());
        world.handle(due.time_ps, due.node, due.event)?;
        if events.is_multiple_of(EVENTS_BETWEEN_LOOKS)
            && control(Progress { steps: world.steps(), steps_all, events }).is_break()
        {
            return Ok(None);
        }
    }
    Ok(Some(Ran { events, trace_hash: trace.digest() }))
}
