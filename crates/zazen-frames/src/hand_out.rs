//! The order in which a scan hands out its frames: cached ones first, in storage order, then misses
//! as they arrive; and what becomes of a copy that cannot be handed out.
//!
//! Invariants: a reply is empty exactly when every frame of the scan has come out. Each frame comes
//! out once: in a reply, or as a refusal. A copy that is stale, bad or gone becomes a miss. A copy
//! that the cache has and cannot give is handed out from its source. Sequential.
//!
//! A look at a file that is not in memory waits for the disk of the backing store. Once a look has
//! waited, the frames behind the group are announced to the store, so that it can bring in what it
//! knows of their files. Each of them is still looked at before it is handed out.

use crate::misses::Wanted;
use crate::scan::{AfterCheck, Pages, Stored, after_check, refetched_as};
use zazen_core::{Origin, RunSet};

/// What the store says of the cached frames that it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Described<E> {
    /// A page of them, in storage order.
    Page(Vec<E>),
    /// It has none of them any more.
    Gone,
    /// It cannot be read.
    Failed,
}

/// What a look at a copy's source says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The copy may be handed out.
    Fresh,
    /// The copy does not stand for its source any more.
    Stale,
    /// The user does not get this frame. The driver knows why.
    Refused,
}

/// What came of handing out a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// It is in the reply.
    Added,
    /// It is not in the cache any more.
    Gone,
    /// Its bytes do not match its checksum.
    Bad,
    /// The cache cannot give it.
    Failed,
}

/// What happens: a call, or the answer to the last action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<E> {
    /// The reader asks for the next reply.
    Next {
        /// At most this many frames, at least one.
        frames_max: usize,
        /// At most this many bytes, unless one frame has more.
        bytes_max: u64,
        /// In at most this many files.
        files_max: usize,
    },
    /// Answer to [`Action::Describe`].
    Described(Described<E>),
    /// Answer to [`Action::Look`]: one for each frame of the group.
    Looked(Vec<Look>),
    /// The same, and the backing store took long for it: its files are not in memory.
    LookedLong(Vec<Look>),
    /// Answer to [`Action::HandOut`].
    Handed(Handed),
    /// Answer to [`Action::Check`]: whether the copy is good; `None` if it is not there any more.
    Checked(Option<bool>),
    /// Answer to [`Action::Check`]: the copy cannot be read.
    NotChecked,
    /// Answer to [`Action::Refuse`].
    Refused,
    /// Answer to [`Action::DropStale`].
    Dropped,
    /// Answer to [`Action::Take`].
    Took {
        /// Whether any miss came out. If none did, all have come out.
        any: bool,
        /// Whether the reply has a frame now.
        added: bool,
    },
}

/// What to do. Frames are told by their place in [`HandOut::group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the store for a page of [`HandOut::wanted`].
    Describe,
    /// Look at the sources of the group.
    Look,
    /// These of [`HandOut::behind`] will be looked at soon: tell the backing store. No answer.
    Announce {
        /// The place of the first of them.
        from: usize,
        /// The place behind the last of them.
        until: usize,
    },
    /// Put this copy into the reply.
    HandOut(usize),
    /// Put the refusal of this frame into the reply.
    Refuse(usize),
    /// Drop this copy, which is stale.
    DropStale(usize),
    /// Check the bytes of this copy, and drop it if they are bad.
    Check(usize),
    /// Add this to the scan's misses. No answer.
    Want(Wanted),
    /// Take frames from the misses, wait for the first of them, and put them into the reply.
    Take {
        /// At most this many.
        frames_max: usize,
    },
    /// Send the reply. No answer.
    Reply,
}

/// The hand-out of one scan.
#[derive(Debug)]
pub struct HandOut<E> {
    pages: Pages<E>,
    group: Vec<E>,
    looks: Vec<Look>,
    frames_max: usize,
    bytes_max: u64,
    files_max: usize,
    /// Whether the reply has a frame or a refusal.
    has_some: bool,
    /// The backing store has kept a look waiting.
    looks_wait: bool,
}

/// While looks wait for the backing store, so many frames behind the group are announced to it.
const ANNOUNCED: usize = 4096;
/// Fewer new ones are announced later, together with others.
const ANNOUNCED_STEP: usize = 512;

impl<E: Stored> HandOut<E> {
    /// Hands out `cached`; what is not cached is in the scan's misses.
    pub fn new(cached: RunSet) -> HandOut<E> {
        let (group, looks) = (Vec::new(), Vec::new());
        let pages = Pages::new(cached);
        HandOut {
            pages,
            group,
            looks,
            frames_max: 1,
            bytes_max: 0,
            files_max: 1,
            has_some: false,
            looks_wait: false,
        }
    }

    /// The cached frames that [`Action::Describe`] is about.
    pub fn wanted(&self) -> Option<&RunSet> {
        self.pages.wanted()
    }

    /// The frames that are being handed out.
    pub fn group(&self) -> &[E] {
        &self.group
    }

    /// The frames behind the group, as far as the store has described them.
    pub fn behind(&self) -> impl ExactSizeIterator<Item = &E> {
        self.pages.left_of_page()
    }

    /// Takes what happened, and appends what to do to `actions`. Only the last action has an
    /// answer, and only the last action is about the group.
    pub fn step(&mut self, event: Event<E>, actions: &mut Vec<Action>) {
        match event {
            Event::Next { frames_max, bytes_max, files_max } => {
                (self.frames_max, self.bytes_max, self.files_max) = (frames_max, bytes_max, files_max);
                self.has_some = false;
                self.next_group(actions);
            }
            Event::Described(Described::Page(entries)) => {
                self.pages.add(entries);
                self.next_group(actions);
            }
            // They were there when the scan began.
            Event::Described(Described::Gone) => self.give_up(false, actions),
            Event::Described(Described::Failed) => self.give_up(true, actions),
            Event::Looked(looks) => self.looked(looks, actions),
            Event::LookedLong(looks) => {
                self.looks_wait = true;
                self.looked(looks, actions);
            }
            Event::Handed(handed) => self.handed(handed, actions),
            Event::Checked(good) => {
                let around = after_check(good) == AfterCheck::Around;
                self.want(self.at(), Origin::Alien, around, actions);
                self.next_of_group(actions);
            }
            Event::NotChecked => {
                self.want(self.at(), Origin::Alien, true, actions);
                self.next_of_group(actions);
            }
            Event::Refused => {
                self.has_some = true;
                self.next_of_group(actions);
            }
            Event::Dropped => {
                let entry = &self.group[self.at()];
                let origin = refetched_as(entry.meta(), entry.origin());
                self.want(self.at(), origin, false, actions);
                self.next_of_group(actions);
            }
            Event::Took { any, added } => {
                self.has_some |= added;
                if any && !self.has_some { self.take(actions) } else { actions.push(Action::Reply) }
            }
        }
    }

    /// The place of the frame whose look is the last of `looks`.
    fn at(&self) -> usize {
        self.group.len() - self.looks.len()
    }

    fn next_group(&mut self, actions: &mut Vec<Action>) {
        if self.pages.wanted().is_some() {
            return actions.push(Action::Describe);
        }
        self.group = self.pages.next_group(self.frames_max, self.bytes_max, self.files_max);
        if self.group.is_empty() { self.take(actions) } else { actions.push(Action::Look) }
    }

    fn looked(&mut self, mut looks: Vec<Look>, actions: &mut Vec<Action>) {
        // The next frame of the group has the last look.
        looks.reverse();
        self.looks = looks;
        let news = if self.looks_wait { self.pages.announce(ANNOUNCED, ANNOUNCED_STEP) } else { 0..0 };
        if !news.is_empty() {
            actions.push(Action::Announce { from: news.start, until: news.end });
        }
        self.hand_out(actions);
    }

    fn take(&self, actions: &mut Vec<Action>) {
        actions.push(Action::Take { frames_max: self.frames_max.min(self.files_max) });
    }

    fn give_up(&mut self, around: bool, actions: &mut Vec<Action>) {
        let missed = self.pages.give_up();
        let wanted = |number| Action::Want(Wanted { number, origin: Origin::Alien, around });
        actions.extend(missed.iter().map(wanted));
        self.next_group(actions);
    }

    fn want(&self, at: usize, origin: Origin, around: bool, actions: &mut Vec<Action>) {
        let number = self.group[at].meta().number.get();
        actions.push(Action::Want(Wanted { number, origin, around }));
    }

    /// Goes on with the group.
    fn hand_out(&mut self, actions: &mut Vec<Action>) {
        let at = self.at();
        match self.looks.last() {
            Some(Look::Fresh) => actions.push(Action::HandOut(at)),
            Some(Look::Refused) => actions.push(Action::Refuse(at)),
            Some(Look::Stale) => actions.push(Action::DropStale(at)),
            None if self.has_some => actions.push(Action::Reply),
            None => self.next_group(actions),
        }
    }

    fn handed(&mut self, handed: Handed, actions: &mut Vec<Action>) {
        match handed {
            Handed::Added => self.has_some = true,
            Handed::Bad => return actions.push(Action::Check(self.at())),
            Handed::Gone => self.want(self.at(), Origin::Alien, false, actions),
            Handed::Failed => self.want(self.at(), Origin::Alien, true, actions),
        }
        self.next_of_group(actions);
    }

    fn next_of_group(&mut self, actions: &mut Vec<Action>) {
        self.looks.pop();
        self.hand_out(actions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::Cached;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use zazen_core::{FrameMeta, FrameNo, RelPath, Source};

    #[derive(Clone, Debug, PartialEq)]
    struct TestFrame {
        meta: FrameMeta,
        source: Source,
    }

    impl Cached for TestFrame {
        fn meta(&self) -> &FrameMeta {
            &self.meta
        }
        fn source(&self) -> &Source {
            &self.source
        }
    }

    impl Stored for TestFrame {
        fn shares_file_with(&self, _: &TestFrame) -> bool {
            false
        }
        fn origin(&self) -> Origin {
            Origin::Native
        }
    }

    fn entry(number: u64) -> TestFrame {
        let meta = FrameMeta {
            number: FrameNo::new(number).unwrap(),
            length: 10,
            checksum: 0,
            validator: None,
            uid: 0,
            gid: 0,
            mode: 0,
        };
        TestFrame { meta, source: Source { path: RelPath::new("f").unwrap(), offset: 0, length: None } }
    }

    /// A store, its sources and a reader, in which everything that may happen to a copy does. The
    /// oracle is what a reader is promised, not the machine's own rules.
    struct World {
        machine: HandOut<TestFrame>,
        misses: Vec<Wanted>,
        out: BTreeSet<u64>,
        draws: Vec<u8>,
    }

    impl World {
        fn draw(&mut self) -> u8 {
            let draw = self.draws.pop().unwrap_or(7);
            draw % 8
        }

        /// One reply; how many frames it has.
        fn next(&mut self, frames_max: usize) -> usize {
            let mut event = Event::Next { frames_max, bytes_max: 45, files_max: 9 };
            let mut in_reply = 0;
            loop {
                let mut actions = Vec::new();
                self.machine.step(event, &mut actions);
                let last = actions.pop().expect("something to do");
                for action in actions {
                    match action {
                        Action::Want(wanted) => self.misses.push(wanted),
                        other => panic!("{other:?} has an answer and is not the last"),
                    }
                }
                event = match last {
                    Action::Describe => {
                        let wanted = self.machine.wanted().unwrap().clone();
                        let count = 1 + u64::from(self.draw());
                        Event::Described(match self.draw() {
                            0 => Described::Gone,
                            1 => Described::Failed,
                            _ => Described::Page(wanted.block(0, count).iter().map(entry).collect()),
                        })
                    }
                    Action::Look => {
                        let count = self.machine.group().len();
                        let looks = (0..count).map(|_| match self.draw() {
                            0 => Look::Stale,
                            1 => Look::Refused,
                            _ => Look::Fresh,
                        });
                        let looks = looks.collect();
                        if self.draw() == 0 { Event::LookedLong(looks) } else { Event::Looked(looks) }
                    }
                    Action::HandOut(at) => match self.draw() {
                        0 => Event::Handed(Handed::Gone),
                        1 => Event::Handed(Handed::Failed),
                        2 => Event::Handed(Handed::Bad),
                        _ => {
                            assert!(self.out.insert(self.machine.group()[at].meta.number.get()));
                            in_reply += 1;
                            Event::Handed(Handed::Added)
                        }
                    },
                    Action::Refuse(at) => {
                        assert!(self.out.insert(self.machine.group()[at].meta.number.get()));
                        in_reply += 1;
                        Event::Refused
                    }
                    Action::DropStale(at) => {
                        assert!(!self.out.contains(&self.machine.group()[at].meta.number.get()));
                        Event::Dropped
                    }
                    Action::Check(_) => match self.draw() {
                        0 => Event::NotChecked,
                        1 => Event::Checked(None),
                        2 => Event::Checked(Some(true)),
                        _ => Event::Checked(Some(false)),
                    },
                    Action::Take { frames_max } => {
                        let count = frames_max.min(self.misses.len());
                        let any = count > 0;
                        let mut added = false;
                        for wanted in self.misses.drain(..count).collect::<Vec<_>>() {
                            if self.draw() == 0 {
                                // Lost again between its fetch and now.
                                self.misses.push(wanted);
                                continue;
                            }
                            assert!(self.out.insert(wanted.number));
                            (in_reply, added) = (in_reply + 1, true);
                        }
                        Event::Took { any, added }
                    }
                    Action::Reply => return in_reply,
                    other => panic!("{other:?} has no answer and is the last"),
                };
            }
        }
    }

    proptest! {
        #[test]
        fn every_frame_comes_out_once_and_only_the_last_reply_is_empty(
            cached in 0u64..60, missing in 0u64..20,
            frames_max in 1usize..12,
            draws in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let set = if cached == 0 { RunSet::new() } else { RunSet::range(0, cached - 1) };
            let wanted = |number| Wanted { number, origin: Origin::Alien, around: false };
            let misses = (cached..cached + missing).map(wanted).collect();

            let mut world =
                World { machine: HandOut::new(set), misses, out: BTreeSet::new(), draws };
            loop {
                let count = world.next(frames_max);
                prop_assert!(count <= frames_max);
                if count == 0 {
                    break;
                }
            }
            prop_assert_eq!(world.out.len() as u64, cached + missing);
            prop_assert_eq!(world.next(frames_max), 0);
        }
    }

    #[test]
    fn once_a_look_has_waited_frames_are_announced_before_they_are_looked_at() {
        const FRAMES: u64 = 10_000;
        const WAITS: u64 = 500;
        let mut machine: HandOut<TestFrame> = HandOut::new(RunSet::range(0, FRAMES - 1));
        let (mut announced, mut looked) = (BTreeSet::new(), 0);
        let next = || Event::Next { frames_max: 100, bytes_max: u64::MAX, files_max: 1000 };
        let (mut event, mut actions) = (next(), Vec::new());
        while looked < FRAMES || !matches!(actions.last(), Some(Action::Reply)) {
            actions.clear();
            machine.step(event, &mut actions);
            let (last, before) = actions.split_last().unwrap();
            for action in before {
                let Action::Announce { from, until } = action else { panic!("{action:?}") };
                let behind = machine.behind().map(|entry| entry.meta.number.get());
                for number in behind.skip(*from).take(until - from) {
                    assert!(announced.insert(number), "{number} is announced twice");
                    assert!((looked..looked + ANNOUNCED as u64).contains(&number), "{number} at {looked}");
                }
            }
            event = match last {
                Action::Describe => Event::Described(Described::Page((0..FRAMES).map(entry).collect())),
                Action::Look => {
                    let numbers = machine.group().iter().map(|entry| entry.meta.number.get());
                    // The last few of a page are not worth a call.
                    let worth = 0..FRAMES - ANNOUNCED_STEP as u64;
                    for number in numbers.filter(|number| worth.contains(number)) {
                        assert_eq!(announced.contains(&number), number >= WAITS + 100, "{number}");
                    }
                    let looks = vec![Look::Fresh; machine.group().len()];
                    let waits = looked == WAITS;
                    looked += looks.len() as u64;
                    if waits { Event::LookedLong(looks) } else { Event::Looked(looks) }
                }
                Action::HandOut(_) => Event::Handed(Handed::Added),
                Action::Reply => next(),
                other => panic!("{other:?}"),
            };
        }
    }

    #[test]
    fn what_cannot_be_given_becomes_the_right_miss() {
        let check = |answer: Vec<Event<TestFrame>>, expected: Wanted| {
            let mut machine: HandOut<TestFrame> = HandOut::new(RunSet::range(4, 4));
            let mut actions = Vec::new();
            machine.step(Event::Next { frames_max: 1, bytes_max: 1, files_max: 9 }, &mut actions);
            assert_eq!(actions, [Action::Describe]);
            machine.step(Event::Described(Described::Page(vec![entry(4)])), &mut actions);
            for event in answer {
                actions.clear();
                machine.step(event, &mut actions);
            }
            let wants: Vec<_> = actions.iter().filter(|action| matches!(action, Action::Want(_))).collect();
            assert_eq!(wants, [&Action::Want(expected)]);
            assert_eq!(actions.last(), Some(&Action::Take { frames_max: 1 }));
        };
        let wanted = |around| Wanted { number: 4, origin: Origin::Alien, around };
        let fresh = || Event::Looked(vec![Look::Fresh]);
        check(vec![Event::Looked(vec![Look::Stale]), Event::Dropped], wanted(false));
        check(vec![fresh(), Event::Handed(Handed::Gone)], wanted(false));
        check(vec![fresh(), Event::Handed(Handed::Failed)], wanted(true));
        let bad = || Event::Handed(Handed::Bad);
        check(vec![fresh(), bad(), Event::Checked(Some(false))], wanted(false));
        check(vec![fresh(), bad(), Event::Checked(None)], wanted(false));
        check(vec![fresh(), bad(), Event::Checked(Some(true))], wanted(true));
        check(vec![fresh(), bad(), Event::NotChecked], wanted(true));
    }
}
