//! Which small frames of a file are read from the backing store at once, in a part of the file: a
//! frame of a few KiB costs a store as much as one of a hundred.
//!
//! Invariants:
//! - A part was read from a source that its reader's own rights opened. Only readers with the same
//!   rights use it, for [`LEASE_NS`] from then on, and only those that began before it was opened:
//!   who begins later gets what the source is then.
//! - Only frames that somebody wants, and that are not in the cache, are in a part.
//! - At most [`HELD_MAX`] parts are held, and none is longer than [`MOST_BYTES`].

use std::collections::VecDeque;
use zazen_core::{RelPath, Source};

pub use crate::scan::LEASE_NS;

/// Frames up to this length are read with their neighbours.
pub const SMALL_BYTES: u64 = 64 << 10;
/// Neighbours may lie so far apart: HDF5 writes a node of an index, or a box, between frames.
pub const GAP_BYTES: u64 = 8 << 10;
/// The first part that is read is at most this long.
pub const FIRST_BYTES: u64 = 256 << 10;
/// However slow the store is, parts may be this long.
pub const LEAST_BYTES: u64 = 64 << 10;
/// However quick it is, none is longer.
pub const MOST_BYTES: u64 = 4 << 20;
/// A part that came more quickly is followed by one of up to twice the length.
pub const QUICK_NS: u64 = 50_000_000;
/// One that took longer is followed by one of up to half the length.
pub const SLOW_NS: u64 = 200_000_000;
/// Parts that are held for readers of one series.
pub const HELD_MAX: usize = 2;

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The file.
    pub path: RelPath,
    /// Where it begins, in bytes.
    pub begin: u64,
    /// Where it ends, in bytes.
    pub end: u64,
    /// The file was opened after this.
    pub opened_ns: u64,
}

impl Part {
    /// Whether the whole of `source` is in it.
    pub fn holds(&self, source: &Source) -> bool {
        self.path == source.path
            && self.begin <= source.offset
            && end_of(source).is_some_and(|end| end <= self.end)
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.end - self.begin
    }
}

fn end_of(source: &Source) -> Option<u64> {
    source.length.and_then(|length| source.offset.checked_add(length))
}

/// Whether a frame is short enough to be read with its neighbours.
pub fn is_small(source: &Source) -> bool {
    source.length.is_some_and(|length| length <= SMALL_BYTES)
}

/// What happens to the parts of a series.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Somebody who began at `since_ns` wants a small frame. Exactly one action follows.
    Ask {
        /// The frame's source.
        source: &'a Source,
        /// When the reader began.
        since_ns: u64,
    },
    /// The reader whom [`Action::Choose`] was for reads this part.
    Begin {
        /// The part.
        part: &'a Part,
    },
    /// It was read, in this time. [`Event::End`] follows.
    Read {
        /// The part.
        part: &'a Part,
        /// How long it took.
        took_ns: u64,
    },
    /// The reader is done with the part, whether it was read or not.
    End {
        /// The part.
        part: &'a Part,
        /// Whether the driver holds its bytes.
        held: bool,
    },
}

/// What the driver does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take the frame from this part, whose bytes are held.
    Use(Part),
    /// Ask again when a part that is being read has ended.
    Wait,
    /// Read the frame: in the part that [`Neighbours::choose`] gives, or alone.
    Choose,
    /// Forget the bytes of this part.
    Forget(Part),
}

/// The parts of the files of one series that were read lately, for readers with the same rights.
#[derive(Debug)]
pub struct Neighbours {
    held: VecDeque<Part>,
    reading: Vec<Part>,
    /// How long the next part may be.
    bytes: u64,
}

impl Default for Neighbours {
    fn default() -> Neighbours {
        Neighbours { held: VecDeque::new(), reading: Vec::new(), bytes: FIRST_BYTES }
    }
}

impl Neighbours {
    /// Takes one event at `now_ns`, appends what to do to `actions`.
    pub fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Ask { source, since_ns } => {
                let old = |part: &Part| now_ns.saturating_sub(part.opened_ns) >= LEASE_NS;
                actions.extend(self.held.iter().filter(|part| old(part)).cloned().map(Action::Forget));
                self.held.retain(|part| !old(part));
                let fits = |part: &&Part| part.opened_ns >= since_ns && part.holds(source);
                actions.push(match self.held.iter().find(fits) {
                    Some(part) => Action::Use(part.clone()),
                    None if self.reading.iter().any(|part| fits(&part)) => Action::Wait,
                    None => Action::Choose,
                });
            }
            Event::Begin { part } => self.reading.push(part.clone()),
            Event::Read { took_ns, .. } if took_ns < QUICK_NS => {
                self.bytes = (2 * self.bytes).min(MOST_BYTES);
            }
            Event::Read { took_ns, .. } if took_ns > SLOW_NS => {
                self.bytes = (self.bytes / 2).max(LEAST_BYTES);
            }
            Event::Read { .. } => {}
            Event::End { part, held } => {
                if let Some(at) = self.reading.iter().position(|other| other == part) {
                    self.reading.swap_remove(at);
                }
                if held {
                    self.held.push_back(part.clone());
                    if self.held.len() > HELD_MAX {
                        actions.extend(self.held.pop_front().map(Action::Forget));
                    }
                }
            }
        }
    }

    /// The part to read for `source`, with those of the frames behind it that are wanted and not
    /// cached: `behind`, in order. `None`: the frame is to be read alone. Parts that others have or
    /// read are left out, unless the reader, who began at `since_ns`, may not use them.
    pub fn choose(
        &self,
        now_ns: u64,
        source: &Source,
        since_ns: u64,
        behind: impl Iterator<Item = Source>,
    ) -> Option<Part> {
        let begin = source.offset;
        let mut part = Part { path: source.path.clone(), begin, end: end_of(source)?, opened_ns: now_ns };
        let alone = part.end;
        for next in behind {
            let Some(end) = end_of(&next) else { break };
            let mut others = self.held.iter().chain(&self.reading).filter(|of| of.opened_ns >= since_ns);
            let gap = next.offset.checked_sub(part.end);
            let is_next = next.path == part.path && gap.is_some_and(|gap| gap <= GAP_BYTES);
            if !is_next || end - begin > self.bytes || others.any(|other| other.holds(&next)) {
                break;
            }
            part.end = end;
        }
        (part.end > alone).then_some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(number: u64, bytes: u64) -> Source {
        let path = RelPath::new("run.xtc").unwrap();
        Source { path, offset: number * bytes, length: Some(bytes) }
    }

    fn step(parts: &mut Neighbours, now_ns: u64, event: Event<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        parts.step(now_ns, event, &mut actions);
        actions
    }

    fn ask(parts: &mut Neighbours, now_ns: u64, source: &Source, since_ns: u64) -> Vec<Action> {
        step(parts, now_ns, Event::Ask { source, since_ns })
    }

    /// Reads the part that begins with frame `number`, and how many frames it has.
    fn read(parts: &mut Neighbours, now_ns: u64, number: u64, bytes: u64, took_ns: u64) -> (Part, u64) {
        let behind = (number + 1..10_000).map(|number| frame(number, bytes));
        let part = parts.choose(now_ns, &frame(number, bytes), 0, behind).unwrap();
        assert_eq!(step(parts, now_ns, Event::Begin { part: &part }), []);
        assert_eq!(step(parts, now_ns, Event::Read { part: &part, took_ns }), []);
        (part.clone(), part.bytes() / bytes)
    }

    #[test]
    fn a_part_serves_those_who_began_before_it_until_its_lease_ends() {
        let mut parts = Neighbours::default();
        let small = frame(3, 1 << 10);
        assert_eq!(ask(&mut parts, 100, &small, 100), [Action::Choose]);
        let (part, frames) = read(&mut parts, 100, 3, 1 << 10, QUICK_NS);
        assert_eq!(frames, FIRST_BYTES >> 10);
        assert_eq!(ask(&mut parts, 110, &frame(4, 1 << 10), 50), [Action::Wait]);
        assert_eq!(ask(&mut parts, 110, &frame(4, 1 << 10), 101), [Action::Choose], "it began later");
        assert_eq!(step(&mut parts, 120, Event::End { part: &part, held: true }), []);
        assert_eq!(ask(&mut parts, 130, &frame(4, 1 << 10), 50), [Action::Use(part.clone())]);
        assert_eq!(ask(&mut parts, 130, &frame(4, 1 << 10), 101), [Action::Choose], "it began later");
        assert_eq!(ask(&mut parts, 130, &frame(2, 1 << 10), 50), [Action::Choose], "it lies before");
        let over = 100 + LEASE_NS;
        assert_eq!(ask(&mut parts, over, &small, 50), [Action::Forget(part), Action::Choose]);
    }

    #[test]
    fn what_failed_is_read_again() {
        let mut parts = Neighbours::default();
        let (part, _) = read(&mut parts, 7, 0, 1 << 10, QUICK_NS);
        assert_eq!(ask(&mut parts, 8, &frame(0, 1 << 10), 0), [Action::Wait]);
        assert_eq!(step(&mut parts, 9, Event::End { part: &part, held: false }), []);
        assert_eq!(ask(&mut parts, 9, &frame(0, 1 << 10), 0), [Action::Choose]);
    }

    #[test]
    fn lengths_follow_the_store() {
        let mut parts = Neighbours::default();
        let mut length = |took_ns| {
            let (part, frames) = read(&mut parts, 0, 0, 1 << 10, took_ns);
            step(&mut parts, 0, Event::End { part: &part, held: false });
            frames << 10
        };
        assert_eq!(
            [(); 6].map(|()| length(QUICK_NS - 1)),
            [256, 512, 1024, 2048, 4096, 4096].map(|k| k << 10)
        );
        assert_eq!([length(QUICK_NS), length(SLOW_NS)], [MOST_BYTES; 2], "neither quick nor slow");
        (0..10).for_each(|_| {
            length(SLOW_NS + 1);
        });
        assert_eq!(length(QUICK_NS), LEAST_BYTES);
    }

    #[test]
    fn a_part_ends_where_frames_are_not_wanted_or_elsewhere() {
        let parts = Neighbours::default();
        let source = frame(5, 1 << 10);
        let ends = |behind: Vec<Source>| {
            parts.choose(0, &source, 0, behind.into_iter()).map(|part| (part.end - part.begin) >> 10)
        };
        assert_eq!(ends(vec![]), None, "alone");
        let far = GAP_BYTES >> 10;
        assert_eq!(ends(vec![frame(6 + far, 1 << 10)]), Some(far + 2), "a small gap");
        assert_eq!(ends(vec![frame(7 + far, 1 << 10)]), None, "a wide gap");
        assert_eq!(ends(vec![frame(6, 1 << 10), frame(8 + far, 1 << 10)]), Some(2));
        assert_eq!(ends(vec![frame(4, 1 << 10)]), None, "it lies before");
        let whole = Source { length: None, ..frame(6, 1 << 10) };
        assert_eq!(ends(vec![whole]), None);
        let other = Source { path: RelPath::new("other.xtc").unwrap(), ..frame(6, 1 << 10) };
        assert_eq!(ends(vec![other]), None);
        let far = Source { offset: 6 << 10, length: Some(u64::MAX), ..frame(6, 1 << 10) };
        assert_eq!(ends(vec![far]), None, "no sum overflows");
        assert!(is_small(&frame(0, SMALL_BYTES)) && !is_small(&frame(0, SMALL_BYTES + 1)));
    }

    proptest! {
        /// Whatever readers do: a part that is used is held, whole, young enough, and opened after
        /// its reader began; nothing is read twice at once for the same readers; and what the
        /// machine holds is what the driver holds.
        #[test]
        fn holds_its_promises(
            steps in prop::collection::vec((0u64..60, 0u64..3, 1u64..70, 0u64..300_000_000), 1..80)
        ) {
            let mut parts = Neighbours::default();
            let (mut held, mut reading): (Vec<Part>, Vec<Part>) = (Vec::new(), Vec::new());
            let mut now_ns = 1_000_000_000;
            for (number, what, kib, passes) in steps {
                now_ns += passes;
                if what == 0 && !reading.is_empty() {
                    let part = reading.remove(number as usize % reading.len());
                    let keeps = kib % 3 > 0;
                    for action in step(&mut parts, now_ns, Event::End { part: &part, held: keeps }) {
                        let Action::Forget(old) = action else { panic!("{action:?}") };
                        held.retain(|part| *part != old);
                    }
                    held.extend(keeps.then_some(part));
                    prop_assert!(held.len() <= HELD_MAX);
                    continue;
                }
                let (source, since_ns) = (frame(number, kib << 10), now_ns - passes);
                let mut actions = ask(&mut parts, now_ns, &source, since_ns);
                let last = actions.pop();
                for action in actions {
                    let Action::Forget(old) = action else { panic!("{action:?}") };
                    prop_assert!(now_ns - old.opened_ns >= LEASE_NS);
                    held.retain(|part| *part != old);
                }
                match last {
                    Some(Action::Use(part)) => {
                        prop_assert!(part.holds(&source) && part.opened_ns >= since_ns);
                        prop_assert!(now_ns - part.opened_ns < LEASE_NS && held.contains(&part));
                    }
                    Some(Action::Wait) => {
                        prop_assert!(reading.iter().any(|part| part.holds(&source)));
                    }
                    Some(Action::Choose) => {
                        let behind = (number + 1..number + 40).map(|number| frame(number, kib << 10));
                        if let Some(part) = parts.choose(now_ns, &source, since_ns, behind) {
                            prop_assert!(part.holds(&source) && part.bytes() <= MOST_BYTES);
                            step(&mut parts, now_ns, Event::Begin { part: &part });
                            step(&mut parts, now_ns, Event::Read { part: &part, took_ns: passes });
                            reading.push(part);
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}
