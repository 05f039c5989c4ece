//! Looking at sources before copies of them are handed out: does each copy still stand for its
//! source, and may this user read that source now?
//!
//! A copy stands for its source if the layout that the reader's side told names just this source
//! for its number, and the source looks as it did when it was copied ([`stands_for`]).
//!
//! Invariants: a user other than the daemon's own gets a copy only if its own rights have just
//! opened the source; one question to the store for a whole group. The daemon's own user is not
//! asked about each frame: it can read the cache's files. While the store does not answer, copies
//! go out unchecked, to other users only if they owned the source when it was cached and the
//! daemon's own view of the store has no answer either. A source that is gone while its directory
//! is there was deleted: its frame is refused, though the copy stays.

use crate::outage::is_outage;
use crate::stale::{Held, Validate, is_same_file, may_have_grown, stands_for};
use std::collections::BTreeMap;
use zazen_core::trajectory::Format;
use zazen_core::{
    Credentials, Error, ErrorKind, FrameMeta, Layout, RelPath, Result, Source, SourceStat, Validator,
};

/// A cached frame, as this module needs to know it.
pub trait Cached {
    /// What is known of it.
    fn meta(&self) -> &FrameMeta;
    /// Its source beneath the dataset.
    fn source(&self) -> &Source;
}

impl Cached for Held {
    fn meta(&self) -> &FrameMeta {
        &self.meta
    }
    fn source(&self) -> &Source {
        &self.source
    }
}

/// For whom, and how.
#[derive(Clone, Debug)]
pub struct Rules<'a> {
    /// When copies are compared.
    pub validate: Validate,
    /// The view of the store is the daemon's own, not the user's.
    pub own: bool,
    /// The user.
    pub who: &'a Credentials,
    /// What the user or the backing store told of the layout.
    pub layout: Option<&'a Layout>,
}

/// What happened: the answer to the last action.
#[derive(Debug)]
pub enum Event {
    /// The beginning.
    Begin,
    /// Answer to [`Action::StatAll`] and [`Action::ProbeAll`], in the order of the paths.
    Stats(Result<Vec<Result<SourceStat>>>),
    /// Answer to [`Action::StatFolder`].
    Folder(Result<()>),
    /// Answer to [`Action::IsStoreAway`].
    StoreAway(bool),
    /// Answer to [`Action::Open`].
    Opened(Result<()>),
}

/// What to do next.
#[derive(Debug)]
pub enum Action {
    /// What do these look like? Paths beneath the dataset.
    StatAll(Vec<RelPath>),
    /// Open these for reading with the user's rights: what do they look like?
    ProbeAll(Vec<RelPath>),
    /// Is the dataset's directory there, as the user sees it?
    StatFolder,
    /// Does the daemon's own view of the dataset have no answer either?
    IsStoreAway,
    /// Open the source of the frame at this index with the user's rights.
    Open(usize),
    /// The end: a verdict for each frame, and frames that take over what their source looks like.
    Done(Vec<Verdict>, Vec<(usize, Validator)>),
}

/// What looking at a copy's source says.
#[derive(Debug)]
pub enum Verdict {
    /// The copy may be handed out.
    Fresh,
    /// It may be handed out if samples of it equal its source, which has grown and looks like this
    /// now. Whoever compares opens the source with the user's rights.
    Grown(Validator),
    /// The copy does not stand for its source any more.
    Stale,
    /// The copy may not be handed out.
    Refused(Refusal),
}

/// Why a copy is not handed out.
#[derive(Debug)]
pub enum Refusal {
    /// Its source was deleted.
    Deleted,
    /// The user may not read its source.
    Denied(Error),
    /// Nobody can be asked whether the user may.
    Unknowable(Error),
    /// Its source cannot be looked at.
    Failed(Error),
    /// Its source could not be opened with the user's rights; the error says all.
    NotOpened(Error),
}

/// One look at a group of frames. Sequential.
pub struct Looking<'a, F> {
    rules: Rules<'a>,
    frames: &'a [F],
    /// For each frame, which of the paths asked for is its source's.
    asked: Vec<usize>,
    adopted: Vec<(usize, Validator)>,
    state: State,
}

enum State {
    Beginning,
    Asking,
    /// All paths failed; is the directory there?
    AskingFolder(Vec<Result<SourceStat>>),
    /// Verdicts so far; these frames have none, since the store did not answer.
    AskingDaemon(Vec<Verdict>, Vec<(usize, Error)>),
    /// Verdicts so far; the frame at this index is being opened.
    Opening(Vec<(Verdict, Access)>, usize),
    Done,
}

/// Owner, group and mode: the source's where it is known, else what was recorded.
type Access = (u32, u32, u32);

impl<'a, F: Cached> Looking<'a, F> {
    /// Looks at the sources of `frames`.
    pub fn new(rules: Rules<'a>, frames: &'a [F]) -> Looking<'a, F> {
        Looking { rules, frames, asked: Vec::new(), adopted: Vec::new(), state: State::Beginning }
    }

    /// Takes the answer to the last action, appends the next one to `actions`.
    pub fn step(&mut self, event: Event, actions: &mut Vec<Action>) {
        let action = match (std::mem::replace(&mut self.state, State::Done), event) {
            (State::Beginning, Event::Begin) => self.begin(),
            (State::Asking, Event::Stats(Ok(stats)))
                if !stats.is_empty() && stats.iter().all(Result::is_err) =>
            {
                self.state = State::AskingFolder(stats);
                Action::StatFolder
            }
            (State::Asking, Event::Stats(Ok(stats))) => self.judge(stats),
            (State::Asking, Event::Stats(Err(error))) => self.judge_unanswered(&error),
            (State::AskingFolder(stats), Event::Folder(folder)) => match folder {
                // A missing directory shows that the store answers. Whoever pushed such a frame may
                // have meant another file than the one that comes.
                Err(error) if self.is_away(&error) => self.judge_unanswered(&error),
                _ => self.judge(stats),
            },
            (State::AskingDaemon(verdicts, unasked), Event::StoreAway(away)) => {
                self.judge_unasked(verdicts, unasked, away)
            }
            (State::Opening(mut verdicts, at), Event::Opened(opened)) => {
                if let Err(error) = opened {
                    verdicts[at].0 = Verdict::Refused(Refusal::NotOpened(error));
                }
                self.open_closed(verdicts, at + 1)
            }
            _ => unreachable!("an answer that nobody asked for"),
        };
        actions.push(action);
    }

    fn begin(&mut self) -> Action {
        if self.rules.own && (self.rules.validate == Validate::Never || self.frames.is_empty()) {
            return self.unchecked();
        }
        let (asked, paths) = sources_of(self.frames);
        self.asked = asked;
        self.state = State::Asking;
        match self.rules.own {
            true => Action::StatAll(paths),
            false => Action::ProbeAll(paths),
        }
    }

    fn is_away(&self, error: &Error) -> bool {
        match self.rules.own {
            true => error.kind() != ErrorKind::NotFound,
            false => is_outage(error),
        }
    }

    /// The store does not answer for any of the sources.
    fn judge_unanswered(&mut self, error: &Error) -> Action {
        if self.rules.own {
            return self.unchecked();
        }
        let unasked = (0..self.frames.len()).map(|at| (at, copy_of(error))).collect();
        let verdicts = self.frames.iter().map(|_| Verdict::Stale).collect();
        self.ask_daemon(verdicts, unasked)
    }

    fn unchecked(&mut self) -> Action {
        let recorded = |frame: &F| (Verdict::Fresh, recorded(frame.meta()));
        let verdicts = self.frames.iter().map(recorded).collect();
        self.open_closed(verdicts, 0)
    }

    fn judge(&mut self, stats: Vec<Result<SourceStat>>) -> Action {
        match self.rules.own {
            true => self.judge_as_own(&stats),
            false => self.judge_as_other(&stats),
        }
    }

    fn judge_as_own(&mut self, stats: &[Result<SourceStat>]) -> Action {
        let mut verdicts = Vec::with_capacity(self.frames.len());
        for (at, frame) in self.frames.iter().enumerate() {
            verdicts.push(match stats.get(self.asked[at]) {
                Some(Ok(stat)) => (self.compare(at, frame, stat), (stat.uid, stat.gid, stat.mode)),
                Some(Err(error)) if error.kind() == ErrorKind::NotFound => {
                    (Verdict::Refused(Refusal::Deleted), recorded(frame.meta()))
                }
                _ => (Verdict::Fresh, recorded(frame.meta())),
            });
        }
        self.open_closed(verdicts, 0)
    }

    /// Mode bits do not show access lists, but opening the file does. Opens each fresh frame from
    /// `from` on whose mode bits forbid it to the user.
    fn open_closed(&mut self, verdicts: Vec<(Verdict, Access)>, from: usize) -> Action {
        let is_closed = |(verdict, (uid, gid, mode)): &(Verdict, Access)| {
            matches!(verdict, Verdict::Fresh) && !self.rules.who.may_read(*uid, *gid, *mode)
        };
        match verdicts[from..].iter().position(is_closed) {
            Some(behind) => {
                self.state = State::Opening(verdicts, from + behind);
                Action::Open(from + behind)
            }
            None => self.done(verdicts.into_iter().map(|(verdict, _)| verdict).collect()),
        }
    }

    fn judge_as_other(&mut self, stats: &[Result<SourceStat>]) -> Action {
        let mut verdicts = Vec::with_capacity(self.frames.len());
        let mut unasked = Vec::new();
        for (at, frame) in self.frames.iter().enumerate() {
            verdicts.push(match stats.get(self.asked[at]) {
                Some(Ok(stat)) => match self.rules.validate {
                    Validate::Always => self.compare(at, frame, stat),
                    Validate::Never if is_same_file(frame.meta(), stat) => Verdict::Fresh,
                    Validate::Never => Verdict::Stale,
                },
                Some(Err(error)) if error.kind() == ErrorKind::NotFound => Verdict::Refused(Refusal::Deleted),
                Some(Err(error)) if error.kind() == ErrorKind::PermissionDenied => {
                    Verdict::Refused(Refusal::Denied(copy_of(error)))
                }
                Some(Err(error)) if is_outage(error) => {
                    unasked.push((at, copy_of(error)));
                    Verdict::Stale
                }
                Some(Err(error)) => Verdict::Refused(Refusal::Failed(copy_of(error))),
                None => {
                    let what = format!("frame {} was not looked at", frame.meta().number);
                    Verdict::Refused(Refusal::NotOpened(Error::new(ErrorKind::Io, what)))
                }
            });
        }
        self.ask_daemon(verdicts, unasked)
    }

    /// Whether a cached frame is this user's own: its source belonged to the user when it was
    /// cached. Recorded mode bits allow nobody anything, since access lists and folders may forbid
    /// what they allow.
    fn owns(&self, at: usize) -> bool {
        self.frames[at].meta().uid == self.rules.who.uid
    }

    /// A user can keep its own view of the store busy until it times out. The daemon's view shows
    /// whether the store itself is away.
    fn ask_daemon(&mut self, verdicts: Vec<Verdict>, unasked: Vec<(usize, Error)>) -> Action {
        match unasked.iter().any(|(at, _)| self.owns(*at)) {
            true => {
                self.state = State::AskingDaemon(verdicts, unasked);
                Action::IsStoreAway
            }
            false => self.judge_unasked(verdicts, unasked, false),
        }
    }

    fn judge_unasked(
        &mut self,
        mut verdicts: Vec<Verdict>,
        unasked: Vec<(usize, Error)>,
        away: bool,
    ) -> Action {
        for (at, why) in unasked {
            verdicts[at] = match away && self.owns(at) {
                true => Verdict::Fresh,
                false => Verdict::Refused(Refusal::Unknowable(why)),
            };
        }
        self.done(verdicts)
    }

    /// Whatever the source looks like, a copy of a source that the layout does not name is stale.
    fn done(&mut self, mut verdicts: Vec<Verdict>) -> Action {
        let mut adopted = std::mem::take(&mut self.adopted);
        if let Some(layout) = self.rules.layout {
            let is_named = |frame: &F| layout.gives(frame.meta().number, frame.source());
            for (verdict, frame) in verdicts.iter_mut().zip(self.frames) {
                if !is_named(frame) {
                    *verdict = Verdict::Stale;
                }
            }
            adopted.retain(|(at, _)| is_named(&self.frames[*at]));
        }
        Action::Done(verdicts, adopted)
    }

    fn compare(&mut self, at: usize, frame: &F, stat: &SourceStat) -> Verdict {
        if !stands_for(frame.meta(), frame.source(), stat) {
            // Only trajectories grow behind their frames. Other files are also changed in the
            // middle, and so is HDF5.
            let trajectory = self.rules.layout.and_then(|layout| layout.trajectory());
            let grows = trajectory.is_some_and(|known| known.format != Format::H5md);
            return match grows && may_have_grown(frame.meta(), frame.source(), stat) {
                true => Verdict::Grown(stat.validator),
                false => Verdict::Stale,
            };
        }
        if frame.meta().validator.is_none() && !stat.validator.unsettled {
            self.adopted.push((at, stat.validator));
        }
        Verdict::Fresh
    }
}

fn recorded(meta: &FrameMeta) -> Access {
    (meta.uid, meta.gid, meta.mode)
}

fn copy_of(error: &Error) -> Error {
    Error::new(error.kind(), error.to_string())
}

/// The source files of `frames`, each once, and for each frame which of them is its own.
fn sources_of<F: Cached>(frames: &[F]) -> (Vec<usize>, Vec<RelPath>) {
    let mut paths: Vec<RelPath> = Vec::with_capacity(frames.len());
    let mut shared: BTreeMap<&RelPath, usize> = BTreeMap::new();
    let mut asked = Vec::with_capacity(frames.len());
    for frame in frames {
        let Source { path, offset, length } = frame.source();
        // A frame that is a whole file shares it with no other frame.
        let is_whole = *offset == 0 && length.is_none();
        let at = match shared.get(path) {
            Some(at) if !is_whole => *at,
            _ => {
                paths.push(path.clone());
                if !is_whole {
                    shared.insert(path, paths.len() - 1);
                }
                paths.len() - 1
            }
        };
        asked.push(at);
    }
    (asked, paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zazen_core::trajectory::{FrameTable, Trajectory, TrajectoryFile};
    use zazen_core::{FrameNo, NameTemplate, Origin, Piece};

    /// What the store says of one source.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Said {
        Same,
        Changed,
        Error(ErrorKind),
    }

    #[derive(Clone, Copy, Debug)]
    struct Frame {
        said: Said,
        uid: u32,
        mode: u32,
        has_validator: bool,
        /// The layout names another source for its number.
        misnamed: bool,
        /// Opening its source fails.
        closed: bool,
    }

    #[derive(Clone, Copy, Debug)]
    struct World {
        validate: Validate,
        own: bool,
        /// The question about all sources fails so.
        fails: Option<ErrorKind>,
        /// So does one about the directory.
        folder: Option<ErrorKind>,
        daemon_away: bool,
    }

    const ME: u32 = 7;

    fn held(at: usize, frame: &Frame) -> Held {
        let number = at as u64 + u64::from(frame.misnamed) * 100;
        let validator = Validator { size: 10, mtime_ns: 5, inode: 1, ..Validator::default() };
        let meta = FrameMeta {
            number: FrameNo::new(number).unwrap(),
            length: 10,
            checksum: 1,
            validator: frame.has_validator.then_some(validator),
            uid: frame.uid,
            gid: 9,
            mode: frame.mode,
        };
        let source = Source { path: RelPath::new(&format!("f{at}")).unwrap(), offset: 0, length: None };
        Held { meta, origin: Origin::Native, source }
    }

    fn answer(frame: &Frame) -> Result<SourceStat> {
        let mtime_ns = if frame.said == Said::Changed { 6 } else { 5 };
        let validator = Validator { size: 10, mtime_ns, inode: 1, ..Validator::default() };
        match frame.said {
            Said::Error(kind) => Err(Error::new(kind, "no")),
            _ => Ok(SourceStat { validator, uid: frame.uid, gid: 9, mode: frame.mode, is_dir: false }),
        }
    }

    fn failing<T>(kind: Option<ErrorKind>, value: T) -> Result<T> {
        kind.map_or(Ok(value), |kind| Err(Error::new(kind, "no")))
    }

    fn name(verdict: &Verdict) -> &'static str {
        match verdict {
            Verdict::Fresh => "fresh",
            Verdict::Grown(_) => "grown",
            Verdict::Stale => "stale",
            Verdict::Refused(Refusal::Deleted) => "deleted",
            Verdict::Refused(Refusal::Denied(_)) => "denied",
            Verdict::Refused(Refusal::Unknowable(_)) => "unknowable",
            Verdict::Refused(Refusal::Failed(_)) => "failed",
            Verdict::Refused(Refusal::NotOpened(_)) => "not opened",
        }
    }

    fn run(world: &World, frames: &[Frame], layout: &Layout) -> (Vec<&'static str>, Vec<usize>) {
        let all: Vec<Held> = frames.iter().enumerate().map(|(at, frame)| held(at, frame)).collect();
        let who = Credentials { uid: ME, gid: 1, groups: vec![] };
        let World { validate, own, .. } = *world;
        let mut looking = Looking::new(Rules { validate, own, who: &who, layout: Some(layout) }, &all);
        let mut event = Event::Begin;
        loop {
            let mut actions = Vec::new();
            looking.step(event, &mut actions);
            let [action] = <[Action; 1]>::try_from(actions).expect("one action at a time");
            event = match action {
                Action::StatAll(paths) | Action::ProbeAll(paths) => {
                    assert_eq!(paths.len(), frames.len());
                    Event::Stats(failing(world.fails, frames.iter().map(answer).collect()))
                }
                Action::StatFolder => Event::Folder(failing(world.folder, ())),
                Action::IsStoreAway => Event::StoreAway(world.daemon_away),
                Action::Open(at) => {
                    Event::Opened(failing(frames[at].closed.then_some(ErrorKind::PermissionDenied), ()))
                }
                Action::Done(verdicts, adopted) => {
                    let adopted = adopted.into_iter().map(|(at, _)| at).collect();
                    return (verdicts.iter().map(name).collect(), adopted);
                }
            };
        }
    }

    /// The rule as written, frame by frame.
    fn expected(world: &World, frames: &[Frame], at: usize) -> &'static str {
        let frame = &frames[at];
        if frame.misnamed {
            return "stale";
        }
        let outage = |kind: ErrorKind| matches!(kind, ErrorKind::Unavailable | ErrorKind::TimedOut);
        let all_failed = frames.iter().all(|frame| matches!(frame.said, Said::Error(_)));
        let is_changed = frame.said == Said::Changed && frame.has_validator;
        let may_read = frame.mode & if frame.uid == ME { 0o400 } else { 0o4 } != 0;
        let opened = |verdict| match verdict {
            "fresh" if !may_read && frame.closed => "not opened",
            other => other,
        };
        if world.own {
            let away = world.fails.is_some()
                || (all_failed && world.folder.is_some_and(|kind| kind != ErrorKind::NotFound));
            return opened(match frame.said {
                _ if world.validate == Validate::Never || away => "fresh",
                Said::Error(ErrorKind::NotFound) => "deleted",
                _ if is_changed => "stale",
                _ => "fresh",
            });
        }
        let unasked = match frame.uid == ME && world.daemon_away {
            true => "fresh",
            false => "unknowable",
        };
        if world.fails.is_some() || (all_failed && world.folder.is_some_and(outage)) {
            return unasked;
        }
        match frame.said {
            Said::Error(ErrorKind::NotFound) => "deleted",
            Said::Error(ErrorKind::PermissionDenied) => "denied",
            Said::Error(kind) if outage(kind) => unasked,
            Said::Error(_) => "failed",
            _ if is_changed && world.validate == Validate::Always => "stale",
            _ => "fresh",
        }
    }

    fn kind() -> impl Strategy<Value = ErrorKind> {
        use ErrorKind::{Io, NotFound, PermissionDenied, TimedOut, Unavailable};
        prop::sample::select(vec![Io, NotFound, PermissionDenied, TimedOut, Unavailable])
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let said = prop_oneof![
            3 => Just(Said::Same),
            1 => Just(Said::Changed),
            3 => kind().prop_map(Said::Error),
        ];
        let uid = prop::sample::select(vec![ME, 8]);
        let mode = prop::sample::select(vec![0o644, 0o600, 0o040]);
        (said, uid, mode, any::<bool>(), prop::bool::weighted(0.1), any::<bool>()).prop_map(
            |(said, uid, mode, has_validator, misnamed, closed)| Frame {
                said,
                uid,
                mode,
                has_validator,
                misnamed,
                closed,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn each_verdict_is_the_rules(
            frames in prop::collection::vec(frame(), 1..6),
            never: bool, own: bool, daemon_away: bool,
            fails in prop::option::weighted(0.2, kind()), folder in prop::option::of(kind()),
        ) {
            let validate = if never { Validate::Never } else { Validate::Always };
            let world = World { validate, own, fails, folder, daemon_away };
            let layout = Layout::Files(NameTemplate::parse("f{n}").unwrap());
            let (verdicts, adopted) = run(&world, &frames, &layout);
            for (at, frame) in frames.iter().enumerate() {
                prop_assert_eq!(verdicts[at], expected(&world, &frames, at), "{}", at);
                let compared = world.fails.is_none() && matches!(frame.said, Said::Same | Said::Changed);
                let adopts = compared && !frame.has_validator && !frame.misnamed && !never;
                prop_assert_eq!(adopted.contains(&at), adopts, "{}", at);
            }
        }
    }

    #[test]
    fn pieces_of_one_file_are_one_question() {
        let piece = |path: &str, offset: u64| {
            let mut held = held(
                1,
                &Frame {
                    said: Said::Same,
                    uid: ME,
                    mode: 0o644,
                    has_validator: true,
                    misnamed: false,
                    closed: false,
                },
            );
            held.source = Source { path: RelPath::new(path).unwrap(), offset, length: Some(10) };
            held
        };
        let (asked, paths) = sources_of(&[piece("a", 0), piece("b", 0), piece("a", 10)]);
        assert_eq!(asked, [0, 1, 0]);
        assert_eq!(paths.len(), 2);
    }

    #[test]
    fn a_trajectorys_frame_is_compared_if_its_file_grew() {
        let whole = held(
            0,
            &Frame {
                said: Said::Same,
                uid: ME,
                mode: 0o644,
                has_validator: true,
                misnamed: false,
                closed: false,
            },
        );
        let part = Held { source: Source { length: Some(10), ..whole.source.clone() }, ..whole.clone() };
        let judge = |frame: &Held, size: u64, own: bool, layout: &Layout| {
            let who = Credentials { uid: ME, gid: 9, groups: vec![] };
            let frames = [frame.clone()];
            let rules = Rules { validate: Validate::Always, own, who: &who, layout: Some(layout) };
            let mut looking = Looking::new(rules, &frames);
            let mut actions = Vec::new();
            looking.step(Event::Begin, &mut actions);
            let validator = Validator { size, mtime_ns: 6, inode: 1, ..Validator::default() };
            let stat = SourceStat { validator, uid: ME, gid: 9, mode: 0o644, is_dir: false };
            looking.step(Event::Stats(Ok(vec![Ok(stat)])), &mut actions);
            match actions.pop() {
                Some(Action::Done(verdicts, adopted)) if adopted.is_empty() => name(&verdicts[0]),
                other => panic!("{other:?}"),
            }
        };
        let path = part.source.path.clone();
        let mut table = FrameTable::new(0, 1);
        table.push(10).unwrap();
        let file = TrajectoryFile {
            path: path.clone(),
            first: 0,
            count: 1,
            table: Some(table.into()),
            header: Default::default(),
            seen: Validator::default(),
            trouble: None,
            samples: None,
        };
        let of = |format| Trajectory { format, n_atoms: 1, single: true, files: vec![file.clone()] };
        let [trajectory, hdf5] =
            [Format::Xtc, Format::H5md].map(|format| Layout::Trajectory(of(format).into()));
        // Programs also change other files in the middle while they grow.
        let piece = Piece { path, first: 0, count: 1, step: 1, offset: 0, frame_bytes: 10 };
        let pieces = Layout::Pieces(vec![piece]);
        for own in [true, false] {
            assert_eq!(judge(&part, 12, own, &trajectory), "grown");
            assert_eq!(judge(&part, 10, own, &trajectory), "stale");
            assert_eq!(judge(&part, 9, own, &trajectory), "stale");
            assert_eq!(judge(&whole, 12, own, &trajectory), "stale");
            assert_eq!(judge(&part, 12, own, &pieces), "stale");
            assert_eq!(judge(&part, 12, own, &hdf5), "stale");
        }
    }
}
