//! Taking in one pushed frame, from the check of its form to its commit as a native.
//!
//! Invariants: a local pusher can push only what it could have written to the backing store itself,
//! as its own view of the store says at that moment: it claims no owner but itself, and it owns or
//! may write the frame's source, or may make it if it does not exist. Otherwise one user could
//! plant false frames in another's dataset. An operator (root, the daemon's own user, a holder of
//! the cluster key) is believed. Whoever announces bytes and does not send them is cut off.

use crate::messages::{Push, Pushed};
use crate::stale::Held;
use zazen_core::{Credentials, Error, ErrorKind, FrameMeta, RelPath, Result, Rights, SourceStat, Validator};

/// Bytes taken from the connection at a time.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// A user's push brings at least this many bytes ...
pub const PACE_BYTES: u64 = 1 << 20;
/// ... in each period of this length, or it is cut off.
pub const PACE_NS: u64 = 30_000_000_000;

/// Who pushes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pusher {
    /// As the kernel or the key holder says.
    pub who: Credentials,
    /// Root, the daemon's own user, or a holder of the cluster key: believed, and without bounds.
    pub operator: bool,
}

/// What happened: the answer to the last action.
#[derive(Debug)]
pub enum Event {
    /// The beginning.
    Begin,
    /// Answer to [`Action::Stat`].
    Stat(Result<SourceStat>),
    /// Answer to [`Action::Allows`].
    Allows(Result<bool>),
    /// Answer to [`Action::LookUp`].
    Held(Result<Option<Held>>),
    /// Answer to [`Action::DropHeld`].
    Dropped(Result<()>),
    /// Answer to [`Action::TakeShare`].
    Shared(Result<()>),
    /// Answer to [`Action::BeginPut`].
    Begun(Result<()>),
    /// Answer to [`Action::Receive`]: so many bytes came; 0 at the end of what the pusher sends.
    Came(Result<u64>),
    /// Answer to [`Action::Write`].
    Written(Result<()>),
    /// Answer to [`Action::Commit`].
    Committed(Result<Pushed>),
}

/// What to do next. Paths are beneath the root of the backing store; questions are asked with the
/// pusher's own rights.
#[derive(Debug)]
pub enum Action {
    /// What does this look like?
    Stat(RelPath),
    /// May the pusher use it so?
    Allows(RelPath, Rights),
    /// What does the cache hold of the frame's number?
    LookUp,
    /// Drop the frame that the last [`Action::LookUp`] found, as stale.
    DropHeld,
    /// Count the frame's bytes among those that its user is still sending, until the end.
    TakeShare,
    /// Begin a put that gets its room as its bytes come.
    BeginPut {
        /// As the cache will know the frame.
        meta: FrameMeta,
    },
    /// Receive at most so many bytes.
    Receive {
        /// At least one.
        bytes_max: u64,
    },
    /// Append to the put what was received since the last write.
    Write {
        /// So many bytes.
        bytes: u64,
    },
    /// Make the frame visible.
    Commit,
    /// The end. An error ends the put, too.
    Done(Result<Pushed>),
}

/// One push. Sequential.
#[derive(Debug)]
pub struct Intake {
    push: Push,
    bulk_bytes: u64,
    pusher: Pusher,
    directory: RelPath,
    state: State,
}

#[derive(Debug)]
enum State {
    Beginning,
    /// May the pusher write the source? What does it look like?
    SourceStat,
    /// It is somebody else's: of this user.
    SourceWrite {
        owner: u32,
    },
    /// It does not exist: may the nearest folder that exists be written to?
    FolderWrite {
        folder: RelPath,
    },
    LookingUp,
    /// The number is another user's. Who owns the pushed frame's source?
    OwnSource(Held),
    /// The pusher does. Who owns the source of the frame that is here?
    HeldSource(Held),
    /// Nobody does, since it is gone. Who owns the directory?
    Directory(Held),
    /// The number rightly belongs to another user. May the pusher know to whom?
    Naming(Held),
    Dropping,
    Sharing,
    BeginningPut,
    Receiving {
        left: u64,
        wanted: u64,
        came: u64,
        pace: Pace,
    },
    Writing {
        left: u64,
    },
    Committing,
    Done,
}

type Next = Result<(State, Action)>;

impl Intake {
    /// Takes in `push`, of which `bulk_bytes` follow, for the dataset in `directory` beneath the
    /// backing store's root.
    pub fn new(push: Push, bulk_bytes: u64, pusher: Pusher, directory: RelPath) -> Intake {
        Intake { push, bulk_bytes, pusher, directory, state: State::Beginning }
    }

    /// Takes the answer to the last action at `now_ns`, appends the next one to `actions`.
    pub fn step(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) {
        let state = std::mem::replace(&mut self.state, State::Done);
        let (state, action) = match (state, event) {
            (State::Committing, Event::Committed(Ok(pushed))) => (State::Done, Action::Done(Ok(pushed))),
            (state, event) => self
                .next(now_ns, state, event)
                .unwrap_or_else(|error| (State::Done, Action::Done(Err(error)))),
        };
        self.state = state;
        actions.push(action);
    }

    fn next(&self, now_ns: u64, state: State, event: Event) -> Next {
        match (state, event) {
            (State::Beginning, Event::Begin) => self.begin(),
            (State::SourceStat, Event::Stat(stat)) => self.judge_source(stat),
            (State::SourceWrite { owner }, Event::Allows(allows)) => match allows? {
                true => Ok(look_up()),
                false => self.refuse(format!(
                    "its file {} belongs to user {owner} and user {} may not write it",
                    self.push.source.path, self.pusher.who.uid
                )),
            },
            (State::FolderWrite { folder }, Event::Allows(allows)) => self.judge_folder(folder, allows),
            (State::LookingUp, Event::Held(held)) => self.judge_held(held?),
            (State::OwnSource(held), Event::Stat(stat)) => self.judge_own_source(held, stat),
            (State::HeldSource(held), Event::Stat(stat)) => match owner(stat)? {
                Some(uid) => self.settle_squatter(uid != held.meta.uid, held),
                None => Ok((State::Directory(held), Action::Stat(self.directory.clone()))),
            },
            // A user may push a frame before writing its file, so a missing file does not make
            // the user a squatter, except in the folder of the one who pushes now.
            (State::Directory(held), Event::Stat(stat)) => {
                self.settle_squatter(stat?.uid == self.push.meta.uid, held)
            }
            (State::Naming(held), Event::Allows(allows)) => Err(conflict(&held, allows.unwrap_or(false))),
            (State::Dropping, Event::Dropped(dropped)) => dropped.map(|()| self.take_share()),
            (State::Sharing, Event::Shared(shared)) => shared.map(|()| self.begin_put()),
            (State::BeginningPut, Event::Begun(begun)) => {
                begun.map(|()| receive(self.push.meta.length, now_ns))
            }
            (State::Receiving { left, wanted, came, pace }, Event::Came(count)) => {
                self.received(now_ns, (left, wanted, came, pace), count?)
            }
            (State::Writing { left }, Event::Written(written)) => written.map(|()| receive(left, now_ns)),
            (State::Committing, Event::Committed(Err(error))) => Err(error),
            (state, event) => unreachable!("{event:?} in {state:?}"),
        }
    }

    fn begin(&self) -> Next {
        self.check_form()?;
        if self.pusher.operator {
            return Ok(look_up());
        }
        let (meta, who) = (&self.push.meta, &self.pusher.who);
        if meta.uid != who.uid || !(meta.gid == who.gid || who.groups.contains(&meta.gid)) {
            return self.refuse(format!(
                "it claims to belong to user {} and group {}; user {} may push only its own frames",
                meta.uid, meta.gid, who.uid
            ));
        }
        Ok((State::SourceStat, Action::Stat(self.beneath(&self.push.source.path)?)))
    }

    /// What the frame says of itself must agree. Its length was checked when the message was read.
    fn check_form(&self) -> Result<()> {
        let refuse = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why));
        let Push { source, meta, series, .. } = &self.push;
        if meta.length != self.bulk_bytes {
            return refuse(format!("{} bytes are announced, {} follow", meta.length, self.bulk_bytes));
        }
        if source.path.is_root() {
            return refuse("its file name is empty; name its file beneath the dataset".into());
        }
        if source.length.is_some_and(|length| length != meta.length) {
            return refuse("its source's length is not its own".into());
        }
        let is_part = source.offset != 0 || source.length.is_some();
        if !series.may_hold(source.path.as_str(), meta.number, is_part) {
            let file = &source.path;
            return refuse(format!(
                "its file {file} is none of {series}; push it with the pattern that its readers use"
            ));
        }
        Ok(())
    }

    fn beneath(&self, path: &RelPath) -> Result<RelPath> {
        self.directory.join(path.as_str())
    }

    fn refuse(&self, why: String) -> Next {
        Err(Error::new(ErrorKind::PermissionDenied, why))
    }

    fn judge_source(&self, stat: Result<SourceStat>) -> Next {
        let source = || self.beneath(&self.push.source.path);
        match stat {
            Ok(stat) if stat.is_dir => {
                self.refuse(format!("its file {} is a directory", self.push.source.path))
            }
            Ok(stat) if stat.uid == self.pusher.who.uid => Ok(look_up()),
            Ok(stat) => {
                Ok((State::SourceWrite { owner: stat.uid }, Action::Allows(source()?, Rights::WRITE)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(may_create_in(source()?.split().map(|(folder, _)| folder).unwrap_or_default()))
            }
            Err(error) => Err(error),
        }
    }

    fn judge_folder(&self, folder: RelPath, allows: Result<bool>) -> Next {
        match allows {
            Ok(true) => Ok(look_up()),
            Ok(false) => self.refuse(format!(
                "user {} may not write to the dataset's directory on the backing store",
                self.pusher.who.uid
            )),
            Err(error) if error.kind() == ErrorKind::NotFound => match folder.split() {
                Some((above, _)) => Ok(may_create_in(above)),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    fn judge_held(&self, held: Option<Held>) -> Next {
        match held.filter(|held| held.meta.uid != self.push.meta.uid && !self.pusher.operator) {
            Some(held) => {
                let source = self.beneath(&self.push.source.path)?;
                Ok((State::OwnSource(held), Action::Stat(source)))
            }
            None => Ok(self.take_share()),
        }
    }

    /// Whether the frame that is here squats: another user pushed it in the place of a file that
    /// the pusher owns by right, and its own file is somebody else's, or is not there in the
    /// pusher's own folder. All as the pusher sees it.
    fn judge_own_source(&self, held: Held, stat: Result<SourceStat>) -> Next {
        if owner(stat)? != Some(self.push.meta.uid) {
            return self.settle_squatter(false, held);
        }
        if held.source.path == self.push.source.path {
            return self.settle_squatter(true, held);
        }
        let source = self.beneath(&held.source.path)?;
        Ok((State::HeldSource(held), Action::Stat(source)))
    }

    fn settle_squatter(&self, is_squatter: bool, held: Held) -> Next {
        if is_squatter {
            return Ok((State::Dropping, Action::DropHeld));
        }
        if held.source != self.push.source {
            let may_list = Action::Allows(self.directory.clone(), Rights::READ);
            return Ok((State::Naming(held), may_list));
        }
        Ok(self.take_share())
    }

    fn take_share(&self) -> (State, Action) {
        match self.pusher.operator {
            true => self.begin_put(),
            false => (State::Sharing, Action::TakeShare),
        }
    }

    fn begin_put(&self) -> (State, Action) {
        // The writer says that the file is complete, so there is no need to wait until it is older.
        let validator = self.push.meta.validator.map(Validator::settled);
        let meta = FrameMeta { validator, ..self.push.meta.clone() };
        (State::BeginningPut, Action::BeginPut { meta })
    }

    fn received(&self, now_ns: u64, at: (u64, u64, u64, Pace), count: u64) -> Next {
        let (left, wanted, came, mut pace) = at;
        if count == 0 {
            let end = std::io::ErrorKind::UnexpectedEof.into();
            return Err(Error::io("the writer went away in mid-frame", end));
        }
        let came = came + count;
        if !self.pusher.operator && left > came {
            pace.came(count, now_ns)?;
        }
        if came < wanted {
            let state = State::Receiving { left, wanted, came, pace };
            return Ok((state, Action::Receive { bytes_max: wanted - came }));
        }
        Ok((State::Writing { left: left - wanted }, Action::Write { bytes: wanted }))
    }
}

fn look_up() -> (State, Action) {
    (State::LookingUp, Action::LookUp)
}

/// A file that does not exist could be made if the nearest directory above it that exists may be
/// written to.
fn may_create_in(folder: RelPath) -> (State, Action) {
    let ask = Action::Allows(folder.clone(), Rights::WRITE.and(Rights::SEARCH));
    (State::FolderWrite { folder }, ask)
}

fn receive(left: u64, now_ns: u64) -> (State, Action) {
    if left == 0 {
        return (State::Committing, Action::Commit);
    }
    let wanted = left.min(CHUNK_BYTES);
    let state = State::Receiving { left, wanted, came: 0, pace: Pace::new(now_ns) };
    (state, Action::Receive { bytes_max: wanted })
}

fn owner(stat: Result<SourceStat>) -> Result<Option<u32>> {
    match stat {
        Ok(stat) => Ok(Some(stat.uid)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn conflict(held: &Held, may_know: bool) -> Error {
    let what = match may_know {
        true => format!("file {} of user {}", held.source.path, held.meta.uid),
        false => "another user's file".to_owned(),
    };
    Error::new(ErrorKind::Conflict, format!("its number is that of {what}; number frames uniquely"))
}

/// Whether a push brings its bytes fast enough to keep the room that it has.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    since_ns: u64,
    bytes: u64,
}

impl Pace {
    /// A push that begins at `now_ns`.
    pub fn new(now_ns: u64) -> Pace {
        Pace { since_ns: now_ns, bytes: 0 }
    }

    /// `bytes` more have come by `now_ns`, and more are to come; an error if that was too slow.
    pub fn came(&mut self, bytes: u64, now_ns: u64) -> Result<()> {
        self.bytes += bytes;
        if self.bytes >= PACE_BYTES {
            (self.since_ns, self.bytes) = (now_ns, 0);
            return Ok(());
        }
        if now_ns.saturating_sub(self.since_ns) < PACE_NS {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TimedOut,
            format!(
                "{} bytes came in {} s, a push must bring {PACE_BYTES} in that time while it takes room from \
                 others; push when the bytes are there",
                self.bytes,
                PACE_NS / 1_000_000_000
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use zazen_core::{FrameNo, NameTemplate, Origin, Series, Source};

    /// A directory tree with owners and one right to write for all others; and a cache of one
    /// frame.
    #[derive(Clone, Debug, Default)]
    struct World {
        /// Path: (owner, whether everybody may write it, whether it is a directory).
        tree: BTreeMap<String, (u32, bool, bool)>,
        held: Option<Held>,
        dropped: bool,
        cached: bool,
        shares: u32,
        /// Bytes that come at a time, and how long each takes.
        comes: (u64, u64),
        silent: bool,
    }

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    fn push(file: &str, uid: u32, length: u64) -> Push {
        let meta = FrameMeta {
            number: FrameNo::new(3).unwrap(),
            length,
            checksum: 9,
            validator: None,
            uid,
            gid: 1,
            mode: 0o644,
        };
        let source = Source { path: path(file), offset: 0, length: None };
        let series = Series::Files(NameTemplate::parse("sub/f{n}").unwrap());
        Push { dataset: "/b/d".into(), source, meta, series }
    }

    fn held(file: &str, uid: u32) -> Held {
        let push = push(file, uid, 5);
        Held { meta: push.meta, origin: Origin::Native, source: push.source }
    }

    impl World {
        fn new(tree: &[(&str, u32, bool, bool)]) -> World {
            let tree = tree.iter().map(|(at, uid, open, dir)| ((*at).to_owned(), (*uid, *open, *dir)));
            World { tree: tree.collect(), comes: (u64::MAX, 0), ..World::default() }
        }

        fn stat(&self, at: &RelPath) -> Result<SourceStat> {
            let gone = || Error::new(ErrorKind::NotFound, "gone");
            let (uid, _, is_dir) = *self.tree.get(at.as_str()).ok_or_else(gone)?;
            Ok(SourceStat { validator: Validator::default(), uid, gid: 1, mode: 0, is_dir })
        }

        fn allows(&self, at: &RelPath, who: u32, rights: Rights) -> Result<bool> {
            let gone = || Error::new(ErrorKind::NotFound, "gone");
            let (uid, open, _) = *self.tree.get(at.as_str()).ok_or_else(gone)?;
            Ok(uid == who || open || !rights.contains(Rights::WRITE))
        }

        fn run(&mut self, push: Push, pusher: Pusher) -> Result<Pushed> {
            let (length, who) = (push.meta.length, pusher.who.uid);
            let mut intake = Intake::new(push, length, pusher, path("d"));
            let (mut now_ns, mut sent, mut written, mut received) = (0, 0, 0, 0);
            let mut event = Event::Begin;
            for _ in 0..100_000 {
                let mut actions = Vec::new();
                intake.step(now_ns, event, &mut actions);
                let [action] = <[Action; 1]>::try_from(actions).expect("one action at a time");
                event = match action {
                    Action::Stat(at) => Event::Stat(self.stat(&at)),
                    Action::Allows(at, rights) => Event::Allows(self.allows(&at, who, rights)),
                    Action::LookUp => Event::Held(Ok(self.held.clone())),
                    Action::DropHeld => {
                        (self.dropped, self.held) = (true, None);
                        Event::Dropped(Ok(()))
                    }
                    Action::TakeShare => {
                        self.shares += 1;
                        Event::Shared(Ok(()))
                    }
                    Action::BeginPut { meta } => {
                        assert_eq!(meta.length, length);
                        Event::Begun(Ok(()))
                    }
                    Action::Receive { bytes_max } => {
                        now_ns += self.comes.1;
                        let count = if self.silent { 0 } else { bytes_max.min(self.comes.0) };
                        (sent, received) = (sent + count, received + count);
                        Event::Came(Ok(count))
                    }
                    Action::Write { bytes } => {
                        assert!(bytes == received && bytes <= CHUNK_BYTES);
                        (written, received) = (written + bytes, 0);
                        Event::Written(Ok(()))
                    }
                    Action::Commit => {
                        assert!(written == length && sent == length);
                        self.cached = true;
                        Event::Committed(Ok(Pushed::Stored))
                    }
                    Action::Done(result) => return result,
                };
            }
            panic!("no end")
        }
    }

    fn user(uid: u32) -> Pusher {
        Pusher { who: Credentials { uid, gid: 1, groups: vec![] }, operator: false }
    }

    fn kind(result: Result<Pushed>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind())
    }

    #[test]
    fn the_form_must_agree_with_itself() {
        let check = |change: fn(&mut Push), bulk_bytes: u64, words: &str| {
            let mut push = push("sub/f3", 7, 10);
            change(&mut push);
            let mut intake = Intake::new(push, bulk_bytes, user(7), path("d"));
            let mut actions = Vec::new();
            intake.step(0, Event::Begin, &mut actions);
            let [Action::Done(Err(error))] = actions.as_slice() else { panic!("{actions:?}") };
            assert!(
                error.kind() == ErrorKind::InvalidArgument && error.to_string().contains(words),
                "{error}"
            );
        };
        check(|_| {}, 11, "10 bytes are announced, 11 follow");
        check(|push| push.source.path = RelPath::default(), 10, "file name is empty");
        check(|push| push.source.length = Some(9), 10, "length is not its own");
        check(|push| push.source.path = path("sub/f4"), 10, "is none of");
    }

    #[test]
    fn squatters_go_and_rightful_frames_stay() {
        let check =
            |tree: &[(&str, u32, bool, bool)], here: Held, expected: Option<ErrorKind>, dropped: bool| {
                let mut world = World::new(tree);
                world.held = Some(here.clone());
                let result = world.run(push("sub/f3", 7, 4), user(7));
                assert_eq!((kind(result), world.dropped), (expected, dropped), "{tree:?} {here:?}");
                // An operator is believed.
                let mut world = World::new(tree);
                world.held = Some(here);
                let operator = Pusher { operator: true, ..user(0) };
                assert!(world.run(push("sub/f3", 7, 4), operator).is_ok() && !world.dropped);
                assert_eq!(world.shares, 0);
            };
        let mine = [("d", 7, false, true), ("d/sub", 7, false, true), ("d/sub/f3", 7, false, false)];
        check(&mine, held("sub/f3", 7), None, false);
        check(&mine, held("sub/f3", 8), None, true);
        check(&mine, held("other", 8), None, true);
        let theirs = [&mine[..], &[("d/other", 8, false, false)]].concat();
        check(&theirs, held("other", 8), Some(ErrorKind::Conflict), false);
        let another = [&mine[..], &[("d/other", 9, false, false)]].concat();
        check(&another, held("other", 8), None, true);
        let shared = [("d", 0, true, true), ("d/sub", 0, true, true), ("d/sub/f3", 7, false, false)];
        check(&shared, held("other", 8), Some(ErrorKind::Conflict), false);
        let not_yet = [("d", 7, false, true), ("d/sub", 7, false, true)];
        check(&not_yet, held("sub/f3", 8), None, false);
        check(&not_yet, held("other", 8), Some(ErrorKind::Conflict), false);
    }

    #[test]
    fn bytes_that_do_not_come_end_a_push() {
        let tree = [("d", 7, false, true)];
        let mut world = World { silent: true, ..World::new(&tree) };
        assert_eq!(kind(world.run(push("sub/f3", 7, 4), user(7))), Some(ErrorKind::Unavailable));
        let mut trickle = World { comes: (1, PACE_NS / 10), ..World::new(&tree) };
        assert_eq!(kind(trickle.run(push("sub/f3", 7, 100), user(7))), Some(ErrorKind::TimedOut));
        assert!(!world.cached && !trickle.cached);
        let operator = Pusher { operator: true, ..user(0) };
        assert_eq!(kind(trickle.run(push("sub/f3", 7, 100), operator)), None);
        let mut slow = World { comes: (40_000, 1_000_000_000), ..World::new(&tree) };
        assert_eq!(kind(slow.run(push("sub/f3", 7, 10 << 20), user(7))), None);
    }

    #[test]
    fn a_trickle_is_cut_off_and_a_slow_push_is_not() {
        let second = 1_000_000_000;
        let mut trickle = Pace::new(5);
        assert!((1..30).all(|at| trickle.came(1, 5 + at * second).is_ok()));
        let error = trickle.came(1, 5 + 30 * second).unwrap_err();
        assert!(error.kind() == ErrorKind::TimedOut && error.to_string().contains("30 bytes"), "{error}");
        let mut slow = Pace::new(5);
        assert!((1..300).all(|at| slow.came(40_000, 5 + at * second).is_ok()));
    }

    proptest! {
        /// Against the rule as written: who may write the file, or make it, may push it, and nobody
        /// else.
        #[test]
        fn a_user_pushes_what_it_could_write(
            owners in prop::array::uniform4(0u32..3), open in prop::array::uniform4(any::<bool>()),
            exists in prop::array::uniform3(any::<bool>()), is_dir: bool,
            claims in 0u32..3, gid in 0u32..3, groups in prop::collection::vec(0u32..3, 0..2),
        ) {
            let names = ["", "d", "d/sub", "d/sub/f3"];
            let mut world = World::new(&[]);
            world.tree.insert(String::new(), (owners[0], open[0], true));
            for at in 1..4 {
                if !exists[at - 1] {
                    break;
                }
                world.tree.insert(names[at].into(), (owners[at], open[at], at < 3 || is_dir));
            }
            let me = 1;
            let writes = |at: &str| world.tree.get(at).map(|(uid, open, _)| *uid == me || *open);
            let nearest = names.iter().rev().skip(1).find_map(|folder| writes(folder));
            let own = claims == me && (gid == 1 || groups.contains(&gid));
            let may = match world.tree.get(names[3]) {
                Some((_, _, true)) => false,
                Some(_) => writes(names[3]) == Some(true),
                None => nearest == Some(true),
            };
            let mut push = push("sub/f3", claims, 6);
            push.meta.gid = gid;
            let pusher = Pusher { who: Credentials { uid: me, gid: 1, groups }, operator: false };
            let result = world.run(push, pusher);
            let expected = if own && may { None } else { Some(ErrorKind::PermissionDenied) };
            prop_assert_eq!(kind(result), expected);
            prop_assert_eq!(world.cached, expected.is_none());
        }
    }
}
