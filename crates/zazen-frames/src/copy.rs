//! Copying one frame from its opened source into the cache: what the leader of a flight does.
//!
//! Invariants: a copy that is committed is what its source was at one moment (the opened file and
//! what its name leads to look the same before and after the bytes are read, or only grew, if the
//! frame is one of a trajectory); the whole is tried at most [`TRIES`] times; a fault of the cache
//! is never a fault of the source, so the reader still gets the frame.

use crate::flight::Outcome;
use crate::stale::{Held, Validate, has_grown, is_current};
use zazen_core::{Error, ErrorKind, FrameMeta, FrameNo, Origin, Result, Source, SourceStat, Validator};

/// Bytes copied at a time.
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Times that a copy is begun before it is given up, because the source changed under each.
pub const TRIES: u32 = 3;
/// The largest frame that passes through the daemon's memory when the cache cannot take it.
pub const INLINE_BYTES_MAX: u64 = 1 << 30;

/// A frame to copy.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The frame.
    pub number: FrameNo,
    /// Its source beneath the dataset.
    pub source: Source,
    /// What the copy becomes.
    pub origin: Origin,
    /// Whether a copy that is here is compared with the source.
    pub validate: Validate,
    /// The daemon's own user asks; it can read the cache's files anyway.
    pub own: bool,
    /// The frame is one of a trajectory, whose file may grow behind it.
    pub grows: bool,
    /// The dataset as users spell it, for messages.
    pub spelled: String,
}

/// Whose fault it is that bytes were not copied.
#[derive(Debug)]
pub enum Failure {
    /// The source's.
    Source(Error),
    /// The cache's.
    Cache(Error),
}

/// What happened: the answer to the last action.
#[derive(Debug)]
pub enum Event {
    /// The beginning; the source is open.
    Begin,
    /// Answer to [`Action::LookUp`]: what the cache holds of this number. A cache that cannot be
    /// asked holds nothing.
    Held(Option<Held>),
    /// Answer to [`Action::Reopen`]: what the newly opened file looks like.
    Reopened(Result<SourceStat>),
    /// Answer to [`Action::BeginPut`].
    Begun(Result<()>),
    /// Answer to [`Action::Copy`]: bytes copied; 0 at the end of the file.
    Copied(std::result::Result<u64, Failure>),
    /// Answer to [`Action::LookAgain`]: what the opened file and what its name leads to look like
    /// now.
    Looked(Result<[Validator; 2]>),
    /// Answer to [`Action::Commit`].
    Committed(Result<()>),
}

/// What to do next.
#[derive(Debug)]
pub enum Action {
    /// Ask the cache what it holds of this frame number.
    LookUp,
    /// Open the source again, with the rights of the user who asks.
    Reopen,
    /// Begin a put of this frame; its checksum is computed on the way.
    BeginPut {
        /// As the cache will know it.
        meta: FrameMeta,
    },
    /// Read at most `bytes` of the opened source at `offset`, append them to the put.
    Copy {
        /// In the source file.
        offset: u64,
        /// At least one.
        bytes: u64,
    },
    /// Look at the opened file and at what its name leads to.
    LookAgain,
    /// Make the frame visible.
    Commit,
    /// Drop the put. No answer is awaited: another action follows.
    Abandon,
    /// Count and log that the cache could not take the frame. No answer is awaited.
    CacheFailed(Error),
    /// The end.
    Done(Result<Outcome>),
}

/// One copy. Sequential.
#[derive(Debug)]
pub struct Copying {
    ask: Ask,
    stat: SourceStat,
    tries: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    LookingUp,
    Reopening,
    Beginning(Piece),
    Reading(Piece),
    Looking(Piece),
    Committing(Piece),
    /// Something is in the frame's place; is it the frame itself?
    Conflicting(Error),
    Done,
}

/// Which bytes of the file the frame is, and how many of them are copied.
#[derive(Clone, Copy, Debug)]
struct Piece {
    offset: u64,
    length: u64,
    copied: u64,
}

impl Copying {
    /// Copies what `ask` says; the source is open and looked like `stat` when it was opened.
    pub fn new(ask: Ask, stat: SourceStat) -> Copying {
        Copying { ask, stat, tries: 1, state: State::LookingUp }
    }

    /// What the source looked like when it was last opened.
    pub fn stat(&self) -> SourceStat {
        self.stat
    }

    /// Takes the answer to the last action, appends what to do to `actions`.
    pub fn step(&mut self, event: Event, actions: &mut Vec<Action>) {
        let state = std::mem::replace(&mut self.state, State::Done);
        self.state = match (state, event) {
            (State::LookingUp, Event::Begin) => {
                actions.push(Action::LookUp);
                State::LookingUp
            }
            (State::LookingUp, Event::Held(held)) => self.begin(held, actions),
            (State::Reopening, Event::Reopened(Ok(stat))) => {
                self.stat = stat;
                actions.push(Action::LookUp);
                State::LookingUp
            }
            (State::Reopening, Event::Reopened(Err(error))) => done(Err(error), actions),
            (State::Beginning(piece), Event::Begun(Ok(()))) => go_on(piece, actions),
            (State::Beginning(_), Event::Begun(Err(error))) => self.cache_failed(error, actions),
            (State::Reading(piece), Event::Copied(copied)) => self.copied(piece, copied, actions),
            (State::Looking(piece), Event::Looked(looked)) => self.looked(piece, looked, actions),
            (State::Committing(piece), Event::Committed(Ok(()))) => {
                done(Ok(Outcome::Stored(piece.length)), actions)
            }
            (State::Committing(_), Event::Committed(Err(error))) => self.cache_failed(error, actions),
            (State::Conflicting(_), Event::Held(Some(_))) => done(Ok(Outcome::Present), actions),
            (State::Conflicting(error), Event::Held(None)) => {
                actions.push(Action::CacheFailed(self.within(error)));
                done(Ok(Outcome::CacheFailed), actions)
            }
            (state, event) => {
                debug_assert!(false, "{event:?} in {state:?}");
                state
            }
        };
    }

    fn begin(&self, held: Option<Held>, actions: &mut Vec<Action>) -> State {
        if held.is_some_and(|held| self.is_enough(&held)) {
            return done(Ok(Outcome::Present), actions);
        }
        let Ask { number, source, spelled, .. } = &self.ask;
        let (offset, length) = match extent_in(self.stat.validator.size, source, number.get(), spelled) {
            Ok(extent) => extent,
            Err(error) => return done(Err(error), actions),
        };
        let meta = FrameMeta {
            number: *number,
            length,
            checksum: 0,
            validator: Some(self.stat.validator),
            uid: self.stat.uid,
            gid: self.stat.gid,
            mode: self.stat.mode,
        };
        actions.push(Action::BeginPut { meta });
        State::Beginning(Piece { offset, length, copied: 0 })
    }

    /// Whether the copy that is here serves: it is of this source as it is now, and a native if one
    /// is asked for.
    fn is_enough(&self, held: &Held) -> bool {
        let Ask { source, origin, validate, own, .. } = &self.ask;
        let is_of_kind = held.origin == Origin::Native || *origin == Origin::Alien;
        is_of_kind && is_current(*validate, *own, (&held.meta, &held.source), source, &self.stat)
    }

    fn copied(
        &mut self,
        mut piece: Piece,
        copied: std::result::Result<u64, Failure>,
        actions: &mut Vec<Action>,
    ) -> State {
        match copied {
            Ok(0) => self.source_failed(Error::new(ErrorKind::Stale, "the source became shorter"), actions),
            Ok(bytes) => {
                piece.copied += bytes;
                go_on(piece, actions)
            }
            Err(Failure::Source(error)) => self.source_failed(error, actions),
            Err(Failure::Cache(error)) => self.cache_failed(error, actions),
        }
    }

    fn looked(&mut self, piece: Piece, looked: Result<[Validator; 2]>, actions: &mut Vec<Action>) -> State {
        match looked {
            Ok(now) if now.iter().all(|now| self.is_still(now)) => {
                actions.push(Action::Commit);
                State::Committing(piece)
            }
            Ok(_) => self.source_failed(Error::new(ErrorKind::Stale, "the source changed"), actions),
            Err(error) => self.source_failed(error, actions),
        }
    }

    /// Whether the source is what it was, or only grew behind the frame. The copy keeps the
    /// validator from before, so it is compared with the source again before it is handed out.
    fn is_still(&self, now: &Validator) -> bool {
        let then = &self.stat.validator;
        then.looks_like(now) || self.ask.grows && has_grown(then, now)
    }

    fn source_failed(&mut self, error: Error, actions: &mut Vec<Action>) -> State {
        actions.push(Action::Abandon);
        if error.kind() != ErrorKind::Stale {
            return done(Err(self.within(error)), actions);
        }
        if self.tries == TRIES {
            let text = format!(
                "frame {} of {}: its source kept changing while it was copied; read it when it is written",
                self.ask.number, self.ask.spelled
            );
            return done(Err(Error::new(ErrorKind::Stale, text)), actions);
        }
        self.tries += 1;
        actions.push(Action::Reopen);
        State::Reopening
    }

    fn cache_failed(&self, error: Error, actions: &mut Vec<Action>) -> State {
        actions.push(Action::Abandon);
        match error.kind() {
            ErrorKind::NoSpace => done(Ok(Outcome::NoRoom), actions),
            // Somebody may have pushed the frame here while it was fetched.
            ErrorKind::Conflict => {
                actions.push(Action::LookUp);
                State::Conflicting(error)
            }
            // The cache failed, but the source can still be read.
            _ => {
                actions.push(Action::CacheFailed(self.within(error)));
                done(Ok(Outcome::CacheFailed), actions)
            }
        }
    }

    fn within(&self, error: Error) -> Error {
        error.within(format!("frame {} of {}", self.ask.number, self.ask.spelled))
    }
}

fn done(result: Result<Outcome>, actions: &mut Vec<Action>) -> State {
    actions.push(Action::Done(result));
    State::Done
}

fn go_on(piece: Piece, actions: &mut Vec<Action>) -> State {
    if piece.copied >= piece.length {
        actions.push(Action::LookAgain);
        return State::Looking(piece);
    }
    let bytes = (piece.length - piece.copied).min(CHUNK_BYTES);
    actions.push(Action::Copy { offset: piece.offset + piece.copied, bytes });
    State::Reading(piece)
}

/// Where a frame is in its source file of `size` bytes: (offset, length).
pub fn extent_in(size: u64, source: &Source, number: u64, spelled: &str) -> Result<(u64, u64)> {
    let length = source.length.unwrap_or(size.saturating_sub(source.offset));
    match source.offset.checked_add(length) {
        Some(end) if end <= size => Ok((source.offset, length)),
        _ => Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "frame {number} of {spelled}: its file {} has {size} bytes, the frame should be {length} \
                 bytes at {}; it is not written yet, or zazen.toml is wrong",
                source.path, source.offset
            ),
        )),
    }
}

/// Whether a frame of `length` bytes that the cache can neither take nor give may pass through the
/// daemon's memory. Only asked of sources that have no descriptor to hand out.
pub fn check_inline(length: u64, number: u64, spelled: &str) -> Result<()> {
    if length <= INLINE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::NoSpace,
        format!(
            "frame {number} of {spelled}: {length} bytes find no room in the cache and are beyond the limit \
             of {INLINE_BYTES_MAX} for passing through; raise --budget or evict a dataset"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zazen_core::RelPath;

    /// A source whose every version has other bytes, and a cache, as far as one copy meets them.
    struct World {
        versions: Vec<Vec<u8>>,
        now: usize,
        opened: usize,
        put: Option<Vec<u8>>,
        cached: Option<Vec<u8>>,
        /// At which steps the source changes.
        changes: Vec<usize>,
        steps: usize,
        opens: u32,
    }

    impl World {
        fn new(versions: Vec<Vec<u8>>, changes: Vec<usize>) -> World {
            let (put, cached) = (None, None);
            World { versions, now: 0, opened: 0, put, cached, changes, steps: 0, opens: 1 }
        }

        fn stat(&self, version: usize) -> SourceStat {
            let size = self.versions[version].len() as u64;
            let validator = Validator { size, mtime_ns: 1 + version as i64, ..Validator::default() };
            SourceStat { validator, uid: 1, gid: 1, mode: 0o644, is_dir: false }
        }

        fn changes(&mut self) {
            self.steps += 1;
            if self.changes.contains(&self.steps) && self.now + 1 < self.versions.len() {
                self.now += 1;
            }
        }

        /// A file that is replaced: the opened one keeps its bytes, its name leads to the new one.
        fn answer(&mut self, action: &Action) -> Option<Event> {
            self.changes();
            Some(match action {
                Action::LookUp => Event::Held(None),
                Action::Reopen => {
                    (self.opened, self.opens) = (self.now, self.opens + 1);
                    Event::Reopened(Ok(self.stat(self.opened)))
                }
                Action::BeginPut { .. } => {
                    self.put = Some(Vec::new());
                    Event::Begun(Ok(()))
                }
                Action::Copy { offset, bytes } => {
                    // At most three bytes at a time, so that the source can change in between.
                    let from = &self.versions[self.opened][*offset as usize..];
                    let read = from.len().min(3).min(*bytes as usize);
                    self.put.as_mut().expect("a put is begun").extend_from_slice(&from[..read]);
                    Event::Copied(Ok(read as u64))
                }
                Action::LookAgain => {
                    Event::Looked(Ok([self.stat(self.opened).validator, self.stat(self.now).validator]))
                }
                Action::Commit => {
                    self.cached = self.put.take();
                    Event::Committed(Ok(()))
                }
                Action::Abandon => {
                    self.put = None;
                    return None;
                }
                Action::CacheFailed(_) | Action::Done(_) => return None,
            })
        }
    }

    fn ask(origin: Origin) -> Ask {
        let source = Source { path: RelPath::new("f").unwrap(), offset: 0, length: None };
        let number = FrameNo::new(3).unwrap();
        let (validate, own, spelled) = (Validate::Always, false, "/b/d".to_owned());
        Ask { number, source, origin, validate, own, grows: false, spelled }
    }

    fn run(
        world: &mut World,
        mut answer: impl FnMut(&mut World, &Action) -> Option<Event>,
    ) -> Result<Outcome> {
        let mut copying = Copying::new(ask(Origin::Alien), world.stat(world.opened));
        let mut event = Event::Begin;
        for _ in 0..10_000 {
            let mut actions = Vec::new();
            copying.step(event, &mut actions);
            let mut next = None;
            for action in actions {
                if let Action::Done(result) = action {
                    assert!(world.put.is_none(), "no put is left open");
                    return result;
                }
                let answered = answer(world, &action);
                assert!(answered.is_none() || next.is_none(), "one question at a time");
                next = next.or(answered);
            }
            event = next.expect("a question, or the end");
        }
        panic!("no end")
    }

    #[test]
    fn a_quiet_source_is_copied_once() {
        let mut world = World::new(vec![b"0123456789".to_vec()], vec![]);
        assert_eq!(run(&mut world, World::answer).unwrap(), Outcome::Stored(10));
        assert_eq!(world.cached.as_deref(), Some(&b"0123456789"[..]));
    }

    #[test]
    fn an_empty_frame_is_a_frame() {
        let mut world = World::new(vec![vec![]], vec![]);
        assert_eq!(run(&mut world, World::answer).unwrap(), Outcome::Stored(0));
    }

    #[test]
    fn the_caches_faults_are_not_the_sources() {
        let check = |kind: ErrorKind, expected: Outcome| {
            let mut world = World::new(vec![vec![1, 2]], vec![]);
            let outcome = run(&mut world, |world, action| match action {
                Action::BeginPut { .. } => Some(Event::Begun(Err(Error::new(kind, "the cache's")))),
                other => world.answer(other),
            });
            assert_eq!(outcome.unwrap(), expected, "{kind:?}");
        };
        check(ErrorKind::NoSpace, Outcome::NoRoom);
        check(ErrorKind::Io, Outcome::CacheFailed);
        check(ErrorKind::Conflict, Outcome::CacheFailed);
        let mut world = World::new(vec![vec![1, 2]], vec![]);
        let mut pushed = false;
        let outcome = run(&mut world, |world, action| match action {
            Action::LookUp if pushed => {
                let source = ask(Origin::Alien).source;
                let meta = FrameMeta {
                    number: FrameNo::new(3).unwrap(),
                    length: 2,
                    checksum: 1,
                    validator: None,
                    uid: 1,
                    gid: 1,
                    mode: 0,
                };
                Some(Event::Held(Some(Held { meta, origin: Origin::Native, source })))
            }
            Action::Commit => {
                pushed = true;
                world.put = None;
                Some(Event::Committed(Err(Error::new(ErrorKind::Conflict, "pushed meanwhile"))))
            }
            other => world.answer(other),
        });
        assert_eq!(outcome.unwrap(), Outcome::Present);
    }

    #[test]
    fn a_copy_that_is_here_must_be_current_and_of_its_kind() {
        let world = World::new(vec![vec![0; 10]], vec![]);
        let stat = world.stat(0);
        let check = |asked: Origin, change: fn(&mut Held), expected: bool| {
            let ask = ask(asked);
            let (uid, gid, mode) = (stat.uid, stat.gid, stat.mode);
            let validator = Some(stat.validator);
            let meta = FrameMeta { number: ask.number, length: 10, checksum: 5, validator, uid, gid, mode };
            let mut held = Held { meta, origin: Origin::Alien, source: ask.source.clone() };
            change(&mut held);
            let mut actions = Vec::new();
            Copying::new(ask, stat).step(Event::Held(Some(held.clone())), &mut actions);
            let present = matches!(actions.as_slice(), [Action::Done(Ok(Outcome::Present))]);
            assert_eq!(present, expected, "{asked:?} {held:?}");
        };
        check(Origin::Alien, |_| {}, true);
        check(Origin::Native, |_| {}, false);
        check(Origin::Native, |held| held.origin = Origin::Native, true);
        check(Origin::Alien, |held| held.meta.length = 9, false);
        check(Origin::Alien, |held| held.meta.uid = 2, false);
        check(Origin::Alien, |held| held.source.path = RelPath::new("g").unwrap(), false);
        let young = |held: &mut Held| {
            held.meta.validator = held.meta.validator.map(|it| Validator { unsettled: true, ..it })
        };
        check(Origin::Alien, young, false);
    }

    proptest! {
        /// A source that is replaced at any moments: what is stored is one version of it, the one
        /// that its name led to at the end; after three changes the copy is given up.
        #[test]
        fn what_is_stored_is_one_version(
            sizes in prop::collection::vec(0usize..20, 1..6),
            changes in prop::collection::vec(1usize..60, 0..6),
        ) {
            let version = |(at, size): (usize, &usize)| vec![at as u8; *size];
            let versions: Vec<Vec<u8>> = sizes.iter().enumerate().map(version).collect();
            let mut world = World::new(versions.clone(), changes);
            match run(&mut world, World::answer) {
                Ok(outcome) => {
                    let cached = world.cached.expect("stored");
                    prop_assert_eq!(&cached, &versions[world.opened]);
                    prop_assert_eq!(outcome, Outcome::Stored(cached.len() as u64));
                }
                Err(error) => {
                    prop_assert_eq!(error.kind(), ErrorKind::Stale);
                    prop_assert_eq!(world.opens, TRIES);
                    prop_assert!(world.cached.is_none());
                }
            }
        }
    }
}
