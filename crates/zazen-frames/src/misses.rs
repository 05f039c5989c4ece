//! The misses of one scan: brought by workers in the background, a bounded number ahead of the
//! reader.
//!
//! Invariants: every frame added comes out exactly once; at most [`AHEAD_FRAMES`] frames, and about
//! [`INLINE_AHEAD_BYTES`] bytes of frames that pass through memory, are ahead of the reader;
//! workers end with the scan, or when nothing is left to begin. The first worker and one frame at a
//! time are each scan's own; more of either is what its user shares among scans.

use std::collections::VecDeque;
use zazen_core::{Origin, RunSet};

/// Frames brought, or on their way, that the reader has not taken.
pub const AHEAD_FRAMES: usize = 64;
/// Bytes held in memory for frames that the cache can neither take nor give.
pub const INLINE_AHEAD_BYTES: u64 = 64 << 20;
/// A scan that may not read ahead now asks again after this.
pub const LOOK_NS: u64 = 100_000_000;

/// A frame to bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The frame.
    pub number: u64,
    /// What its copy becomes.
    pub origin: Origin,
    /// The cache has the frame and cannot give it: it is handed out from its source.
    pub around: bool,
}

/// A frame that was dealt with; `T` is how it came, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brought<T> {
    /// The frame.
    pub number: u64,
    /// Bytes of it that are in memory.
    pub inline_bytes: u64,
    /// What the driver brought.
    pub what: T,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// The scan begins.
    Begin,
    /// A frame that was thought to be in the cache turns out to be a miss.
    Add(Wanted),
    /// Answer to [`Action::Hire`]: the worker works, and will report [`Event::Idle`].
    Hired,
    /// Answer to [`Action::Hire`]: no worker can be had.
    NotHired,
    /// A worker has nothing to do.
    Idle,
    /// Answer to an [`Action::Bring`] that reads ahead: its user has no share left. The frame stays
    /// wanted.
    Denied(Wanted),
    /// A worker has dealt with a frame. [`Event::Idle`] of the same worker follows, or
    /// [`Event::Lost`].
    Brought(Brought<T>),
    /// A worker is gone without having been told to leave.
    Lost,
    /// The scan ends.
    Close,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a worker, and answer [`Event::Hired`] or [`Event::NotHired`].
    Hire {
        /// It is the scan's own. Others need a share of their user's workers.
        first: bool,
    },
    /// Answer to [`Event::Idle`]: bring this frame, then report [`Event::Brought`].
    Bring {
        /// The frame.
        wanted: Wanted,
        /// It is beyond the one frame that each scan may have: it needs a share of its user's, or
        /// [`Event::Denied`].
        ahead: bool,
    },
    /// Answer to [`Event::Idle`] and [`Event::Denied`]: report `Idle` again after the next
    /// [`Action::Wake`], or at this time.
    Rest {
        /// `None`: after the next wake only.
        until_ns: Option<u64>,
    },
    /// Answer to [`Event::Idle`]: this worker ends.
    Leave,
    /// Nobody will ever bring these: take what [`Misses::abandon`] gives, and report it as brought,
    /// with the reason.
    Abandon,
    /// Resting workers and the waiting reader look again.
    Wake,
}

/// What a reader gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Take<T> {
    /// At least one frame.
    Frames(Vec<Brought<T>>),
    /// None yet; look again after the next [`Action::Wake`].
    Wait,
    /// All have come out.
    End,
}

/// The misses of one scan.
#[derive(Debug)]
pub struct Misses<T> {
    todo: RunSet,
    /// How many of `todo` were begun.
    at: u64,
    /// Frames that come before the rest of `todo`.
    extra: VecDeque<Wanted>,
    ready: VecDeque<Brought<T>>,
    inline_bytes: u64,
    under_way: usize,
    workers: usize,
    workers_max: usize,
    /// A [`Action::Hire`] awaits its answer.
    hiring: bool,
    closed: bool,
}

impl<T> Misses<T> {
    /// Brings `todo`, as aliens, with at most `workers_max` workers (at least one).
    pub fn new(todo: RunSet, workers_max: usize) -> Misses<T> {
        Misses {
            todo,
            at: 0,
            extra: VecDeque::new(),
            ready: VecDeque::new(),
            inline_bytes: 0,
            under_way: 0,
            workers: 0,
            workers_max: workers_max.max(1),
            hiring: false,
            closed: false,
        }
    }

    /// Takes one event at `now_ns`, appends what to do to `actions`.
    pub fn step(&mut self, now_ns: u64, event: Event<T>, actions: &mut Vec<Action>) {
        match event {
            Event::Begin => self.hire(actions),
            Event::Add(wanted) => {
                self.extra.push_back(wanted);
                self.hire(actions);
                actions.push(Action::Wake);
            }
            Event::Hired => {
                (self.hiring, self.workers) = (false, self.workers + 1);
                self.hire(actions);
            }
            Event::NotHired => {
                self.hiring = false;
                if self.workers == 0 {
                    actions.push(Action::Abandon);
                }
            }
            Event::Idle => self.idle(actions),
            Event::Denied(wanted) => {
                self.under_way -= 1;
                self.extra.push_front(wanted);
                actions.push(Action::Rest { until_ns: Some(now_ns.saturating_add(LOOK_NS)) });
            }
            Event::Brought(brought) => {
                self.under_way -= 1;
                self.inline_bytes += brought.inline_bytes;
                self.ready.push_back(brought);
                actions.push(Action::Wake);
            }
            Event::Lost => {
                self.workers -= 1;
                actions.push(Action::Wake);
            }
            Event::Close => {
                self.closed = true;
                actions.push(Action::Wake);
            }
        }
    }

    /// The next frames dealt with, at most `frames_max` (at least one). Where it gives some,
    /// resting workers look again.
    pub fn take(&mut self, frames_max: usize) -> Take<T> {
        if self.ready.is_empty() {
            let is_end = self.waiting() == 0 && self.under_way == 0;
            return if is_end { Take::End } else { Take::Wait };
        }
        let count = frames_max.max(1).min(self.ready.len());
        let frames: Vec<Brought<T>> = self.ready.drain(..count).collect();
        self.inline_bytes -= frames.iter().map(|brought| brought.inline_bytes).sum::<u64>();
        Take::Frames(frames)
    }

    /// Gives back frames that did not fit into a reply; they come out first next time.
    pub fn give_back(&mut self, frames: Vec<Brought<T>>) {
        for brought in frames.into_iter().rev() {
            self.inline_bytes += brought.inline_bytes;
            self.ready.push_front(brought);
        }
    }

    /// The next frame that was not begun, for [`Action::Abandon`]; the driver reports each as
    /// [`Event::Brought`].
    pub fn abandon(&mut self) -> Option<u64> {
        let next = self.next()?;
        self.under_way += 1;
        Some(next.number)
    }

    /// Frames that nobody has begun.
    fn waiting(&self) -> u64 {
        self.todo.len() - self.at + self.extra.len() as u64
    }

    fn hire(&mut self, actions: &mut Vec<Action>) {
        let wanted = self.waiting().min(self.workers_max as u64) as usize;
        if !self.hiring && !self.closed && self.workers < wanted {
            self.hiring = true;
            actions.push(Action::Hire { first: self.workers == 0 });
        }
    }

    fn idle(&mut self, actions: &mut Vec<Action>) {
        if self.closed {
            return self.leave(actions);
        }
        let ahead = self.ready.len() + self.under_way;
        if ahead >= AHEAD_FRAMES || self.inline_bytes >= INLINE_AHEAD_BYTES {
            actions.push(Action::Rest { until_ns: None });
            return;
        }
        match self.next() {
            Some(wanted) => {
                self.under_way += 1;
                actions.push(Action::Bring { wanted, ahead: ahead > 0 });
            }
            None => self.leave(actions),
        }
    }

    fn leave(&mut self, actions: &mut Vec<Action>) {
        self.workers -= 1;
        actions.extend([Action::Leave, Action::Wake]);
    }

    fn next(&mut self) -> Option<Wanted> {
        if let Some(extra) = self.extra.pop_front() {
            return Some(extra);
        }
        let number = self.todo.select(self.at)?;
        self.at += 1;
        Some(Wanted { number, origin: Origin::Alien, around: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Workers and a reader, played by hand.
    struct World {
        misses: Misses<()>,
        /// Workers that work on a frame.
        bringing: Vec<(Wanted, bool)>,
        resting: usize,
        hires: usize,
        /// Workers that can be hired in all.
        hireable: usize,
        /// Shares of frames ahead that are free.
        shares: usize,
        out: Vec<u64>,
    }

    impl World {
        fn new(todo: RunSet, workers_max: usize, hireable: usize, shares: usize) -> World {
            let misses = Misses::new(todo, workers_max);
            let mut world =
                World { misses, bringing: vec![], resting: 0, hires: 0, hireable, shares, out: vec![] };
            world.step(Event::Begin);
            world
        }

        fn step(&mut self, event: Event<()>) {
            let mut actions = Vec::new();
            self.misses.step(0, event, &mut actions);
            for action in actions {
                match action {
                    Action::Hire { first } => {
                        assert_eq!(first, self.misses.workers == 0);
                        let answer = if self.hires < self.hireable { Event::Hired } else { Event::NotHired };
                        let is_hired = answer == Event::Hired;
                        self.hires += usize::from(is_hired);
                        self.step(answer);
                        if is_hired {
                            self.step(Event::Idle);
                        }
                    }
                    Action::Bring { wanted, ahead } if ahead && self.shares == 0 => {
                        self.step(Event::Denied(wanted));
                    }
                    Action::Bring { wanted, ahead } => {
                        self.shares -= usize::from(ahead);
                        self.bringing.push((wanted, ahead));
                    }
                    Action::Rest { .. } => self.resting += 1,
                    Action::Leave => {}
                    Action::Abandon => {
                        while let Some(number) = self.misses.abandon() {
                            let brought = Brought { number, inline_bytes: 0, what: () };
                            self.step(Event::Brought(brought));
                        }
                    }
                    Action::Wake => {}
                }
            }
            self.check();
        }

        fn check(&self) {
            let ahead = self.misses.ready.len() + self.misses.under_way;
            assert!(ahead <= AHEAD_FRAMES.max(self.misses.ready.len()), "{ahead}");
            assert!(self.misses.workers <= self.misses.workers_max);
        }

        fn wake(&mut self) {
            for _ in 0..std::mem::take(&mut self.resting) {
                self.step(Event::Idle);
            }
        }

        fn finish_one(&mut self, at: usize, inline_bytes: u64) {
            let (wanted, ahead) = self.bringing.remove(at);
            // Shares count what is held until the reader comes. Here they are released at once.
            self.shares += usize::from(ahead);
            let brought = Brought { number: wanted.number, inline_bytes, what: () };
            self.step(Event::Brought(brought));
            self.step(Event::Idle);
        }

        fn take(&mut self, frames_max: usize) -> bool {
            match self.misses.take(frames_max) {
                Take::Frames(frames) => {
                    self.out.extend(frames.iter().map(|brought| brought.number));
                    self.wake();
                    true
                }
                Take::Wait => true,
                Take::End => false,
            }
        }
    }

    #[test]
    fn the_window_bounds_what_is_ahead() {
        let mut world = World::new(RunSet::range(0, 999), 100, 100, 1000);
        assert_eq!(world.bringing.len(), AHEAD_FRAMES);
        while !world.bringing.is_empty() {
            world.finish_one(0, 0);
        }
        assert_eq!(world.misses.ready.len(), AHEAD_FRAMES);
        assert!(world.take(10));
        assert_eq!(world.bringing.len(), 10);
    }

    #[test]
    fn bytes_in_memory_bound_what_is_ahead() {
        let mut world = World::new(RunSet::range(0, 99), 4, 4, 1000);
        while !world.bringing.is_empty() {
            world.finish_one(0, INLINE_AHEAD_BYTES / 4);
        }
        assert!((4..8).contains(&world.misses.ready.len()), "{}", world.misses.ready.len());
        let Take::Frames(frames) = world.misses.take(9) else { panic!("some are ready") };
        assert_eq!(world.misses.inline_bytes, 0);
        world.misses.give_back(frames);
        assert!(world.misses.inline_bytes >= INLINE_AHEAD_BYTES);
        assert!(world.take(1) && world.out == [0]);
    }

    #[test]
    fn without_workers_all_are_told() {
        let mut world = World::new(RunSet::range(5, 7), 4, 0, 0);
        while world.take(2) {}
        assert_eq!(world.out, [5, 6, 7]);
    }

    #[test]
    fn one_frame_goes_without_a_share() {
        let mut world = World::new(RunSet::range(0, 9), 4, 4, 0);
        assert_eq!((world.bringing.len(), world.resting), (1, 3));
        world.finish_one(0, 0);
        assert_eq!(world.bringing.len(), 0, "one is ready and not taken");
        assert!(world.take(1));
        assert_eq!(world.bringing.len(), 1);
    }

    #[test]
    fn a_closed_scan_begins_nothing() {
        let mut world = World::new(RunSet::range(0, 9), 2, 2, 9);
        world.step(Event::Close);
        while !world.bringing.is_empty() {
            world.finish_one(0, 0);
        }
        assert_eq!(world.misses.workers, 0);
    }

    proptest! {
        /// Frames are added, brought, taken and given back in any order: each comes out once, and
        /// the scan ends.
        #[test]
        fn each_frame_comes_out_once(
            todo in 0u64..200, workers_max in 1usize..6, hireable in 0usize..6, shares in 0usize..70,
            steps in prop::collection::vec((0u8..5, any::<prop::sample::Index>()), 0..200),
        ) {
            let todo = if todo == 0 { RunSet::new() } else { RunSet::range(0, todo - 1) };
            let mut expected: BTreeMap<u64, usize> = todo.iter().map(|number| (number, 1)).collect();
            let mut world = World::new(todo, workers_max, hireable, shares);
            for (what, at) in steps {
                match what {
                    0 => {
                        let number = at.index(300) as u64;
                        *expected.entry(number).or_default() += 1;
                        let around = number.is_multiple_of(3);
                        world.step(Event::Add(Wanted { number, origin: Origin::Native, around }));
                        world.wake();
                    }
                    1 | 2 if !world.bringing.is_empty() => {
                        let at = at.index(world.bringing.len());
                        world.finish_one(at, at as u64);
                    }
                    3 => {
                        if let Take::Frames(frames) = world.misses.take(at.index(9) + 1) {
                            world.misses.give_back(frames);
                        }
                    }
                    _ => {
                        world.take(at.index(9) + 1);
                    }
                }
            }
            for _ in 0..10_000 {
                if !world.take(7) {
                    break;
                }
                world.wake();
                if !world.bringing.is_empty() {
                    world.finish_one(0, 0);
                }
            }
            let mut got: BTreeMap<u64, usize> = BTreeMap::new();
            world.out.iter().for_each(|number| *got.entry(*number).or_default() += 1);
            prop_assert_eq!(got, expected);
            prop_assert_eq!((world.misses.inline_bytes, world.misses.under_way), (0, 0));
        }
    }
}
