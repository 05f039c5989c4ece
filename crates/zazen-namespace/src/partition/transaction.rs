//! A transaction, as the partition that drives it keeps it: which part comes next.
//!
//! `MakeDirectory`, `RemoveDirectory`, `Unlink` and `Link` of an inode elsewhere hold one name,
//! have one part executed elsewhere, and then set the name. `Rename` holds two names, in the order
//! of directory and name, so that two renames never wait for each other. What may refuse comes
//! before the part that removes a replaced inode; from there on nothing is refused. Of several
//! reasons to refuse, the answer is the one that Linux meets first: so if the first name cannot be
//! held, the second one is asked for all the same.
//!
//! Who moves a directory into another one also has the one lock of all such moves, which is taken
//! before any name is held: so no parent changes while the directories above the new place are
//! walked.

use super::peer::{
    AddLink, Changed, Check, Free, Hold, Install, MakeBucket, MakeChild, Moved, NotDone, NotHeld,
    OfDirectory, Part, PeerBody, Remove, SetEntry, SetRights, Target,
};
use crate::operation::{Answer, Entry, Found, Operation, Rename, Request};
use crate::tagged::tagged;
use crate::{Errno, InodeId, Name, PartitionNo};
use zazen_core::Result;
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::field::{Field, List, Nested, Opt};

mod rename;

/// In [`Transaction::walk`]: no directory becomes its own ancestor.
const WALKED: InodeId = InodeId(0);

/// What a transaction waits for, or does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
// A field of a message, which is public in its module.
#[allow(unreachable_pub)]
pub enum Stage {
    /// The one part of an operation on one name.
    Act = 1,
    /// Setting that one name.
    SetName = 2,
    /// The lock of all moves of directories.
    TakeMoveLock = 3,
    /// Holding the name that is taken away.
    HoldSource = 4,
    /// Holding the name that is given.
    HoldDest = 5,
    /// May the inode be moved.
    CheckSource = 6,
    /// May the inode be moved that comes in exchange.
    CheckDest = 7,
    /// Is the new place below the moved directory.
    Walk = 8,
    /// The same for what comes in exchange.
    WalkBack = 9,
    /// Removing what is replaced: from here on, nothing is refused.
    RemoveDest = 10,
    /// Telling the inode.
    MoveSource = 11,
    /// Telling the inode that comes in exchange.
    MoveDest = 12,
    /// Setting the new name.
    SetDest = 13,
    /// Setting or removing the old name.
    SetSource = 14,
    /// Giving free what is still held.
    Cleanup = 15,
    /// One bucket of a directory after the other: [`Spread`].
    Buckets = 16,
    /// Opening the buckets that were closed.
    OpenBuckets = 17,
    /// Making the names of the directory those of its buckets, or its own again.
    Install = 18,
    /// Removing buckets that are closed.
    DropBuckets = 19,
    /// Letting the directory be changed again.
    Thaw = 20,
}

impl Stage {
    const ALL: [Stage; 20] = [
        Stage::Act,
        Stage::SetName,
        Stage::TakeMoveLock,
        Stage::HoldSource,
        Stage::HoldDest,
        Stage::CheckSource,
        Stage::CheckDest,
        Stage::Walk,
        Stage::WalkBack,
        Stage::RemoveDest,
        Stage::MoveSource,
        Stage::MoveDest,
        Stage::SetDest,
        Stage::SetSource,
        Stage::Cleanup,
        Stage::Buckets,
        Stage::OpenBuckets,
        Stage::Install,
        Stage::DropBuckets,
        Stage::Thaw,
    ];
}

impl Field for Stage {
    type Value = Stage;
    const BYTES_MIN: usize = 1;
    fn write(value: &Stage, writer: &mut Writer) {
        writer.u8(*value as u8);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Stage> {
        let number = reader.u8()?;
        let found = Stage::ALL.into_iter().find(|stage| *stage as u8 == number);
        found.ok_or_else(|| reader.malformed(format_args!("stage {number}")))
    }
}

tagged! {
    /// How a transaction ends, when what it holds is free.
    After {
        /// It is done.
        Done = 1,
        /// It is refused.
        Refused = 2 (NotDone),
        /// It begins anew, later: another transaction was in the way.
        Again = 3,
        /// It begins anew with the lock of all moves of directories.
        Lock = 4,
        /// It is done; the answer is an entry.
        Entry = 5 (Changed),
        /// It is done; the answer is attributes.
        Found = 6 (Changed),
        /// It is refused, because a name was not held.
        NotHeld = 7 (NotHeld),
    }

    /// What is done with the buckets of a directory.
    Spreading {
        /// They are made.
        Split = 1,
        /// They get the directory's rights.
        Rights = 2 (SetRights),
        /// They are removed, if there is nothing in them.
        Merge = 3,
    }
}

zazen_wire::messages! {
    /// A transaction that is under way.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Transaction {
        /// What was asked.
        request: Request = Nested<Request>,
        /// What is done now.
        stage: Stage,
        /// The number of the newest part that was asked of another partition.
        step: u32,
        /// How it ends.
        after: After,
        /// The directory that `MakeDirectory` makes.
        child: Option<MakeChild> = Opt<Nested<MakeChild>>,
        /// Refuse unless this is the owner of what `Unlink` or `RemoveDirectory` removes.
        owner: Option<u32> = Opt<u32>,
        /// What the name that is taken away leads to.
        source: Option<Target> = Opt<Nested<Target>>,
        /// What the name that is given, or the one name, leads to.
        dest: Option<Target> = Opt<Nested<Target>>,
        /// Whether the first of both is held.
        source_held: bool,
        /// Whether the second of both is held.
        dest_held: bool,
        /// Whether only its owner may take away the source.
        source_owner_only: bool,
        /// Whether only its owner may take away the destination.
        dest_owner_only: bool,
        /// Whether the directory of the destination has all links that it may have.
        dest_full: bool,
        /// Whether it has the lock of all moves of directories.
        move_lock: bool,
        /// The directory that the walk has reached; [`WALKED`] after it.
        walk: InodeId,
        /// The directories of the two names, whatever buckets the names are in.
        source_of: InodeId,
        /// The same for the name that is given.
        dest_of: InodeId,
        /// For a transaction on the buckets of a directory.
        spread: Option<Spread> = Opt<Nested<Spread>>,
    }

    /// A transaction on the buckets of a directory, which nobody else changes meanwhile: the empty
    /// name of the directory is held.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Spread {
        /// The directory.
        directory: InodeId,
        /// What is done.
        what: Spreading,
        /// Its buckets; those that were made so far.
        buckets: Vec<InodeId> = List<InodeId>,
        /// How many buckets there are, or will be.
        count: u32,
        /// Which is next.
        at: u32,
        /// Something in a bucket is in the way of a merge.
        stopped: Option<Stopped> = Opt<Nested<Stopped>>,
    }

    /// What is in the way of a merge.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Stopped {
        /// A refusal; `None` for another transaction.
        errno: Option<Errno> = Opt<Errno>,
    }
}

/// What a driver does with a transaction now.
pub(super) enum Next {
    /// Have a part executed, and give its answer to [`Transaction::take`].
    Ask(Part),
    /// End it.
    Finish,
}

impl Transaction {
    /// A transaction whose one name, which leads to `dest`, is held already.
    pub(super) fn of_name(request: Request, dest: Option<Target>) -> Transaction {
        Transaction { dest_held: true, dest, ..Transaction::new(request, Stage::Act) }
    }

    /// A rename that holds nothing yet.
    pub(super) fn of_rename(request: Request) -> Transaction {
        let mut transaction = Transaction::new(request, Stage::HoldSource);
        transaction.stage = transaction.first_hold();
        transaction
    }

    fn new(request: Request, stage: Stage) -> Transaction {
        Transaction {
            request,
            stage,
            step: 0,
            after: After::Done,
            child: None,
            owner: None,
            source: None,
            dest: None,
            source_held: false,
            dest_held: false,
            source_owner_only: false,
            dest_owner_only: false,
            dest_full: false,
            move_lock: false,
            walk: InodeId::ROOT,
            source_of: InodeId(0),
            dest_of: InodeId(0),
            spread: None,
        }
    }

    /// A transaction on the buckets of a directory whose empty name is held already. The request is
    /// answered at its end with these attributes, if there are any.
    pub(super) fn of_buckets(request: Request, spread: Spread, found: Option<Changed>) -> Transaction {
        let after = found.map_or(After::Done, After::Found);
        Transaction { spread: Some(spread), after, ..Transaction::new(request, Stage::Buckets) }
    }

    /// Whether its operation may be a transaction at all.
    pub(super) fn is_one(&self) -> bool {
        use Operation::{Link, MakeDirectory, RemoveDirectory, Rename, Unlink};
        use Stage::{Buckets, DropBuckets, Install, OpenBuckets, Thaw};
        let of_buckets = matches!(self.stage, Buckets | DropBuckets | Install | OpenBuckets | Thaw);
        if let Some(spread) = &self.spread {
            let made = match spread.what {
                Spreading::Split => spread.at as usize == spread.buckets.len(),
                _ => spread.count as usize == spread.buckets.len(),
            };
            return made && spread.at <= spread.count && (of_buckets || self.stage == Stage::Cleanup);
        }
        let operation = &self.request.operation;
        !of_buckets
            && matches!(operation, MakeDirectory(_) | Link(_) | Unlink(_) | RemoveDirectory(_) | Rename(_))
    }

    fn rename(&self) -> Option<&Rename> {
        match &self.request.operation {
            Operation::Rename(rename) => Some(rename),
            _ => None,
        }
    }

    fn exchange(&self) -> bool {
        self.rename().is_some_and(|rename| rename.exchange)
    }

    fn across(&self) -> bool {
        self.rename().is_some_and(|rename| rename.directory != rename.new_directory)
    }

    fn moves_source(&self) -> bool {
        self.across() && self.source.is_some_and(|source| source.is_directory())
    }

    fn moves_dest(&self) -> bool {
        self.across() && self.exchange() && self.dest.is_some_and(|dest| dest.is_directory())
    }

    /// The name that is taken away, and the name that is given.
    fn source_name(&self) -> (InodeId, Name) {
        match &self.request.operation {
            Operation::Rename(rename) => (rename.directory, rename.name.clone()),
            _ => self.dest_name(),
        }
    }

    fn dest_name(&self) -> (InodeId, Name) {
        match &self.request.operation {
            Operation::Rename(rename) => (rename.new_directory, rename.new_name.clone()),
            Operation::MakeDirectory(make) => (make.directory, make.name.clone()),
            Operation::Link(link) => (link.directory, link.name.clone()),
            Operation::Unlink(at) | Operation::RemoveDirectory(at) => (at.directory, at.name.clone()),
            other => unreachable!("{other:?} is no transaction"),
        }
    }

    fn source_first(&self) -> bool {
        let ((directory, name), (new_directory, new_name)) = (self.source_name(), self.dest_name());
        (directory, name.as_bytes()) < (new_directory, new_name.as_bytes())
    }

    fn first_hold(&self) -> Stage {
        if self.source_first() { Stage::HoldSource } else { Stage::HoldDest }
    }

    fn caller(&self) -> u32 {
        self.request.credentials.uid
    }

    /// What comes next.
    pub(super) fn next(&self) -> Next {
        match self.part() {
            Some(part) => Next::Ask(part),
            None => Next::Finish,
        }
    }

    /// The part of the stage; `None` at the end.
    fn part(&self) -> Option<Part> {
        let id_of = |target: Option<Target>| target.map_or(InodeId(0), |target| target.id);
        Some(match self.stage {
            Stage::Act => match &self.request.operation {
                Operation::MakeDirectory(_) => Part::MakeChild(self.child.clone()?),
                Operation::Link(link) => Part::AddLink(AddLink { id: link.id }),
                _ => Part::Remove(Remove { id: id_of(self.dest), owner: self.owner }),
            },
            Stage::SetName => {
                let (directory, name) = self.dest_name();
                Part::SetEntry(SetEntry { directory, name, target: self.source })
            }
            Stage::TakeMoveLock => Part::TakeMoveLock,
            Stage::HoldSource => {
                let (directory, name) = self.source_name();
                self.hold(directory, name, true, false)
            }
            Stage::HoldDest => {
                let (directory, name) = self.dest_name();
                let no_replace = self.rename().is_some_and(|rename| rename.no_replace);
                self.hold(directory, name, self.exchange(), no_replace)
            }
            // A directory that only gets another bucket of the same directory needs no right.
            Stage::CheckSource => {
                let other_kind = self.other_kind().is_some();
                let writes = self.moves_source() && self.source_of != self.dest_of && !other_kind;
                self.check(id_of(self.source), self.source_owner_only, writes)
            }
            Stage::CheckDest => {
                let writes = self.moves_dest() && self.source_of != self.dest_of;
                self.check(id_of(self.dest), self.dest_owner_only, writes)
            }
            Stage::Walk | Stage::WalkBack => Part::Parent(OfDirectory { id: self.walk }),
            Stage::RemoveDest => {
                let owner = self.dest_owner_only.then(|| self.caller());
                Part::Remove(Remove { id: id_of(self.dest), owner })
            }
            Stage::MoveSource => {
                let parent = self.moves_source().then(|| self.dest_name().0);
                Part::Moved(Moved { id: id_of(self.source), parent })
            }
            Stage::MoveDest => {
                let parent = self.moves_dest().then(|| self.source_name().0);
                Part::Moved(Moved { id: id_of(self.dest), parent })
            }
            Stage::SetDest => {
                let (directory, name) = self.dest_name();
                Part::SetEntry(SetEntry { directory, name, target: self.source })
            }
            Stage::SetSource => {
                let (directory, name) = self.source_name();
                let target = self.dest.filter(|_| self.exchange());
                Part::SetEntry(SetEntry { directory, name, target })
            }
            Stage::Buckets | Stage::OpenBuckets | Stage::Install | Stage::DropBuckets | Stage::Thaw => {
                self.spread.as_ref()?.part(self.stage)?
            }
            Stage::Cleanup if self.source_held => {
                let (directory, name) = self.source_name();
                Part::Free(Free { directory, name })
            }
            Stage::Cleanup if self.dest_held => {
                let (directory, name) = self.dest_name();
                Part::Free(Free { directory, name })
            }
            Stage::Cleanup if self.move_lock => Part::FreeMoveLock,
            Stage::Cleanup => return None,
        })
    }

    fn hold(&self, directory: InodeId, name: Name, existing: bool, missing: bool) -> Part {
        let credentials = self.request.credentials.clone();
        Part::Hold(Hold { directory, name, credentials, existing, missing, tells_where: Some(true) })
    }

    fn check(&self, id: InodeId, owner_only: bool, write: bool) -> Part {
        let owner = owner_only.then(|| self.caller());
        Part::Check(Check { id, owner, writer: write.then(|| self.request.credentials.clone()) })
    }

    /// Takes the answer to the part of [`Transaction::next`].
    pub(super) fn take(&mut self, body: PeerBody) {
        if let Some(spread) = &mut self.spread {
            return self.stage = spread.take(self.stage, body);
        }
        match (self.stage, body) {
            (stage, PeerBody::Refused(NotDone { errno })) if stage.may_refuse() => self.fail(errno),
            (stage, PeerBody::Busy) if stage.may_refuse() => self.end(After::Again),
            (Stage::Act, PeerBody::Changed(Changed { attributes })) => {
                self.source = Some(Target { id: attributes.id, kind: attributes.kind });
                self.after = After::Entry(Changed { attributes });
                self.stage = Stage::SetName;
            }
            (Stage::Act, _) => self.stage = Stage::SetName,
            (Stage::SetName, _) => {
                self.dest_held = false;
                self.stage = Stage::Cleanup;
            }
            (Stage::TakeMoveLock, _) => {
                self.move_lock = true;
                self.stage = self.first_hold();
            }
            (Stage::HoldSource, PeerBody::Held(held)) => {
                (self.source_held, self.source) = (true, held.target);
                self.source_of = held.directory;
                self.source_owner_only = held.owner_only;
                match self.after {
                    _ if self.dest_held => self.judge(),
                    After::NotHeld(_) => self.stage = Stage::Cleanup,
                    _ => self.stage = Stage::HoldDest,
                }
            }
            (Stage::HoldDest, PeerBody::Held(held)) => {
                (self.dest_held, self.dest) = (true, held.target);
                self.dest_of = held.directory;
                (self.dest_owner_only, self.dest_full) = (held.owner_only, held.full);
                match self.after {
                    _ if self.source_held => self.judge(),
                    After::NotHeld(_) => self.stage = Stage::Cleanup,
                    _ => self.stage = Stage::HoldSource,
                }
            }
            (Stage::HoldSource, PeerBody::NotHeld(source)) => match self.after.clone() {
                // What is wrong with the source comes first, if both are wrong at the same point.
                After::NotHeld(dest) if dest.at < source.at => self.stage = Stage::Cleanup,
                After::NotHeld(_) => self.end(After::NotHeld(source)),
                _ if self.dest_held => self.end(After::NotHeld(source)),
                _ => (self.stage, self.after) = (Stage::HoldDest, After::NotHeld(source)),
            },
            (Stage::HoldDest, PeerBody::NotHeld(dest)) => match self.after.clone() {
                After::NotHeld(source) if source.at <= dest.at => self.stage = Stage::Cleanup,
                After::NotHeld(_) => self.end(After::NotHeld(dest)),
                _ if self.source_held => self.end(After::NotHeld(dest)),
                _ => (self.stage, self.after) = (Stage::HoldSource, After::NotHeld(dest)),
            },
            (Stage::Walk | Stage::WalkBack, PeerBody::Parent(parent)) => self.walk_to(parent.id),
            (Stage::CheckSource, _) => self.after_check_source(),
            (Stage::CheckDest, _) => self.commit(),
            (Stage::RemoveDest, _) => self.stage = Stage::MoveSource,
            (Stage::MoveSource, _) => {
                self.stage = if self.exchange() { Stage::MoveDest } else { Stage::SetDest };
            }
            (Stage::MoveDest, _) => self.stage = Stage::SetDest,
            (Stage::SetDest, _) => {
                self.dest_held = false;
                self.stage = Stage::SetSource;
            }
            (Stage::SetSource, _) => {
                self.source_held = false;
                self.stage = Stage::Cleanup;
            }
            (Stage::Cleanup, _) if self.source_held => self.source_held = false,
            (Stage::Cleanup, _) if self.dest_held => self.dest_held = false,
            (Stage::Cleanup, _) => self.move_lock = false,
            (
                Stage::HoldSource
                | Stage::HoldDest
                | Stage::Walk
                | Stage::WalkBack
                | Stage::Buckets
                | Stage::OpenBuckets
                | Stage::Install
                | Stage::DropBuckets
                | Stage::Thaw,
                _,
            ) => {
                // No partition of ours answers so.
                self.fail(Errno::EIO);
            }
        }
        self.begin_anew_with_lock();
    }

    fn begin_anew_with_lock(&mut self) {
        let free = !self.source_held && !self.dest_held && !self.move_lock;
        if self.stage == Stage::Cleanup && free && self.after == After::Lock {
            self.after = After::Done;
            self.stage = Stage::TakeMoveLock;
        }
    }

    fn end(&mut self, after: After) {
        (self.stage, self.after) = (Stage::Cleanup, after);
    }

    fn fail(&mut self, errno: Errno) {
        self.end(After::Refused(NotDone { errno }));
    }

    /// The answer at the end; `None` if it begins anew.
    pub(super) fn answer(&self) -> Option<Answer> {
        match &self.after {
            After::Done => Some(Answer::Done),
            After::Refused(NotDone { errno }) | After::NotHeld(NotHeld { errno, .. }) => {
                Some(Answer::refused(*errno))
            }
            After::Entry(Changed { attributes }) => {
                let (id, kind) = (attributes.id, attributes.kind);
                Some(Answer::Entry(Entry { id, kind, attributes: Some(attributes.clone()) }))
            }
            After::Found(Changed { attributes }) => {
                Some(Answer::Found(Found { attributes: attributes.clone() }))
            }
            After::Again | After::Lock => None,
        }
    }
}

impl Spread {
    /// The part of the stage; `None` at its end. Entries that go to a bucket come from the tables.
    fn part(&self, stage: Stage) -> Option<Part> {
        let bucket = match (stage, &self.what) {
            // Those of a split that is given up go from the last to the first.
            (Stage::DropBuckets, Spreading::Split) => self.buckets.last().copied(),
            _ => self.buckets.get(self.at as usize).copied(),
        };
        let of = |id| OfDirectory { id };
        Some(match (stage, &self.what) {
            (Stage::Buckets, Spreading::Split) => Part::MakeBucket(MakeBucket {
                partition: PartitionNo(0),
                directory: self.directory,
                mode: 0,
                uid: 0,
                gid: 0,
                modified_ns: 0,
                entries: Vec::new(),
            }),
            (Stage::Buckets, Spreading::Rights(rights)) => {
                Part::SetRights(SetRights { id: bucket?, ..rights.clone() })
            }
            (Stage::Buckets, Spreading::Merge) => Part::CloseBucket(of(bucket?)),
            (Stage::OpenBuckets, _) => Part::OpenBucket(of(bucket?)),
            (Stage::DropBuckets, _) => Part::DropBucket(of(bucket?)),
            (Stage::Install, what) => {
                let buckets = if *what == Spreading::Split { self.buckets.clone() } else { Vec::new() };
                Part::Install(Install { directory: self.directory, buckets })
            }
            (Stage::Thaw, _) => Part::Thaw(of(self.directory)),
            _ => return None,
        })
    }

    /// Takes the answer to the part of the stage; the next stage.
    fn take(&mut self, stage: Stage, body: PeerBody) -> Stage {
        match (stage, body) {
            (Stage::Buckets, PeerBody::Changed(made)) if self.what == Spreading::Split => {
                self.buckets.push(made.attributes.id);
                self.at += 1;
                if self.at < self.count { Stage::Buckets } else { Stage::Install }
            }
            // A bucket was not made: with the others alone, its names would be lost.
            (Stage::Buckets, _) if self.what == Spreading::Split => self.give_up(),
            (Stage::DropBuckets, _) if self.what == Spreading::Split => {
                self.buckets.pop();
                self.at = self.buckets.len() as u32;
                self.give_up()
            }
            (Stage::Buckets, body @ (PeerBody::Refused(_) | PeerBody::Busy))
                if self.what == Spreading::Merge =>
            {
                let errno = match body {
                    PeerBody::Refused(refused) => Some(refused.errno),
                    _ => None,
                };
                self.stopped = Some(Stopped { errno });
                self.open_next()
            }
            (Stage::Buckets, _) => {
                self.at += 1;
                match self.what {
                    _ if self.at < self.count => Stage::Buckets,
                    Spreading::Rights(_) => Stage::Thaw,
                    _ => Stage::Install,
                }
            }
            (Stage::OpenBuckets, _) => self.open_next(),
            (Stage::Install, _) if self.what == Spreading::Merge => {
                self.at = 0;
                Stage::DropBuckets
            }
            (Stage::DropBuckets, _) if self.at + 1 < self.count => {
                self.at += 1;
                Stage::DropBuckets
            }
            _ => Stage::Cleanup,
        }
    }

    /// Removes the buckets that a split has made; the directory keeps its names.
    fn give_up(&self) -> Stage {
        if self.buckets.is_empty() { Stage::Thaw } else { Stage::DropBuckets }
    }

    fn open_next(&mut self) -> Stage {
        match self.at.checked_sub(1) {
            Some(before) => {
                self.at = before;
                Stage::OpenBuckets
            }
            None => Stage::Thaw,
        }
    }
}

impl Stage {
    /// Whether a refusal of the stage's part ends the transaction.
    fn may_refuse(self) -> bool {
        use Stage::{Act, CheckDest, CheckSource, HoldDest, HoldSource, RemoveDest, Walk, WalkBack};
        matches!(self, Act | HoldSource | HoldDest | CheckSource | CheckDest | Walk | WalkBack | RemoveDest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attributes, Kind};

    fn made(id: InodeId) -> PeerBody {
        PeerBody::Changed(Changed { attributes: Attributes::new(id, Kind::Directory) })
    }

    #[test]
    fn a_split_whose_bucket_is_not_made_drops_the_others_and_keeps_the_names() {
        let directory = InodeId(1000);
        let refused = PeerBody::Refused(NotDone { errno: Errno::ENOSPC });
        for (before, not_made) in [(0, refused.clone()), (1, PeerBody::Busy), (3, refused)] {
            let mut spread =
                Spread { directory, what: Spreading::Split, buckets: vec![], count: 4, at: 0, stopped: None };
            let mut stage = Stage::Buckets;
            for bucket in 1..=before {
                stage = spread.take(stage, made(InodeId(bucket)));
                assert_eq!(stage, Stage::Buckets);
            }
            stage = spread.take(stage, not_made);
            let mut dropped = Vec::new();
            while let Some(Part::DropBucket(of)) = spread.part(stage) {
                dropped.push(of.id);
                assert_eq!(spread.at as usize, spread.buckets.len(), "a snapshot of it can be read");
                stage = spread.take(stage, PeerBody::Done);
            }
            dropped.sort();
            assert_eq!(dropped, (1..=before).map(InodeId).collect::<Vec<_>>());
            assert_eq!(spread.part(stage), Some(Part::Thaw(OfDirectory { id: directory })));
            assert_eq!(spread.take(stage, PeerBody::Done), Stage::Cleanup);
        }
    }

    #[test]
    fn a_split_with_all_its_buckets_is_installed() {
        let directory = InodeId(1000);
        let mut spread =
            Spread { directory, what: Spreading::Split, buckets: vec![], count: 2, at: 0, stopped: None };
        assert_eq!(spread.take(Stage::Buckets, made(InodeId(1))), Stage::Buckets);
        assert_eq!(spread.take(Stage::Buckets, made(InodeId(2))), Stage::Install);
        let buckets = vec![InodeId(1), InodeId(2)];
        assert_eq!(spread.part(Stage::Install), Some(Part::Install(Install { directory, buckets })));
    }
}
