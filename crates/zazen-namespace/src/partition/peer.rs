//! What the primaries of partitions tell each other: the parts of a transaction.
//!
//! The partition that drives a transaction asks one partition after the other to execute a part,
//! and never gives up a part that it has asked for. So at most one part of a transaction is under
//! way, and a partition that remembers the newest part of each transaction can tell a repeated
//! message.

use crate::attributes::{Attributes, Kind};
use crate::last::Last;
use crate::tagged::tagged;
use crate::{Errno, InodeId, Name, PartitionNo};
use zazen_core::Credentials;
use zazen_wire::field::{List, Nested, Opt};

zazen_wire::messages! {
    /// A message from one partition to another.
    #[derive(Clone, Debug, PartialEq, Eq)]
    PeerMessage {
        /// The transaction: which of its driver's.
        transaction: u64,
        /// Which part of the transaction this is about; parts are numbered in the order they are
        /// asked for.
        step: u32,
        /// What is asked or answered.
        body: PeerBody,
    }

    /// A part that a partition is asked to execute.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Ask {
        /// The driver's oldest transaction that is not finished. What is remembered of older ones
        /// may be forgotten.
        oldest: u64,
        /// What to do.
        part: Part,
    }

    /// Keeps a name of a directory for the transaction, if the caller may write there.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Hold {
        /// The directory.
        directory: InodeId,
        /// The name.
        name: Name,
        /// Who asks.
        credentials: Credentials,
        /// Refuse a name that leads nowhere.
        existing: bool,
        /// Refuse a name that leads somewhere.
        missing: bool,
        /// Answer with `NotHeld`, not with `Refused`. An older driver does not ask for it.
        tells_where: Option<bool> = Last<bool>,
    }

    /// Changes or removes an entry whose name is held, and gives the name free.
    #[derive(Clone, Debug, PartialEq, Eq)]
    SetEntry {
        /// The directory.
        directory: InodeId,
        /// The name.
        name: Name,
        /// What the name leads to from now on.
        target: Option<Target> = Opt<Nested<Target>>,
    }

    /// Gives a name free.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Free {
        /// The directory.
        directory: InodeId,
        /// The name.
        name: Name,
    }

    /// What an entry leads to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Target {
        /// The inode.
        id: InodeId,
        /// What it is.
        kind: Kind,
    }

    /// Makes an empty directory that has no name yet.
    #[derive(Clone, Debug, PartialEq, Eq)]
    MakeChild {
        /// The partition that keeps it.
        partition: PartitionNo,
        /// The directory that it will be in.
        parent: InodeId,
        /// Permission bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
    }

    /// Takes a link away from an inode that is not a directory, or removes an empty directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Remove {
        /// The inode.
        id: InodeId,
        /// Refuse unless this is its owner: the entry is in a sticky directory.
        owner: Option<u32> = Opt<u32>,
    }

    /// Adds a link to an inode that is not a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    AddLink {
        /// The inode.
        id: InodeId,
    }

    /// Asks whether an inode may be moved.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Check {
        /// The inode.
        id: InodeId,
        /// Refuse unless this is its owner: the entry is in a sticky directory.
        owner: Option<u32> = Opt<u32>,
        /// Refuse unless this caller may write to it: a directory that gets another parent.
        writer: Option<Credentials> = Opt<Credentials>,
    }

    /// Tells an inode that its entry has moved.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Moved {
        /// The inode.
        id: InodeId,
        /// A directory's new parent.
        parent: Option<InodeId> = Opt<InodeId>,
    }

    /// An entry that goes to a bucket.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Moving {
        /// Its place.
        place: u64,
        /// Its name.
        name: Name,
        /// What the name leads to.
        target: Target = Nested<Target>,
    }

    /// Makes a bucket of a directory, with the entries that belong there.
    #[derive(Clone, Debug, PartialEq, Eq)]
    MakeBucket {
        /// The partition that keeps it.
        partition: PartitionNo,
        /// The directory.
        directory: InodeId,
        /// Permission bits of the directory.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// When the directory's entries changed last.
        modified_ns: i64,
        /// The entries.
        entries: Vec<Moving> = List<Nested<Moving>>,
    }

    /// Gives a bucket the rights of its directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    SetRights {
        /// The bucket.
        id: InodeId,
        /// Permission bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// The time of the last change of entries, if somebody set it.
        modified_ns: Option<i64> = Opt<i64>,
    }

    /// Makes the names of a directory those of its buckets; without buckets, its own again.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Install {
        /// The directory.
        directory: InodeId,
        /// Its buckets.
        buckets: Vec<InodeId> = List<InodeId>,
    }

    /// Names a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    OfDirectory {
        /// Which.
        id: InodeId,
    }

    /// What a held name leads to.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Held {
        /// Nothing for a name that is free.
        target: Option<Target> = Opt<Nested<Target>>,
        /// Whether only the owner of the entry's inode may take it away (sticky bit).
        owner_only: bool,
        /// Whether the directory has as many links as it may have.
        full: bool,
        /// The directory, if the name is in one of its buckets; otherwise as asked.
        directory: InodeId,
    }

    /// Why a part was not executed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    NotDone {
        /// The error number.
        errno: Errno,
    }

    /// Why a name is not held. Of two names, the kernel tells what it meets first.
    #[derive(Clone, Debug, PartialEq, Eq)]
    NotHeld {
        /// The error number.
        errno: Errno,
        /// Where it was met: lower numbers come first, of whichever name. [`IN_DIRECTORY`],
        /// [`AT_NAME`] or [`TO_WRITE`].
        at: u8,
    }

    /// The attributes of an inode that a part made or changed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Changed {
        /// The attributes.
        attributes: Attributes = Nested<Attributes>,
    }
}

tagged! {
    /// What a message is.
    PeerBody {
        /// A part to execute.
        Ask = 1 (Ask),
        /// It is done, or was not.
        Done = 2,
        /// Refused.
        Refused = 3 (NotDone),
        /// Another transaction is in the way: the driver gives free what it holds, and tries again.
        Busy = 4,
        /// A name is held.
        Held = 5 (Held),
        /// An inode was made or changed.
        Changed = 6 (Changed),
        /// The directory that a directory is in.
        Parent = 7 (OfDirectory),
        /// A name is not held.
        NotHeld = 8 (NotHeld),
    }

    /// A part of a transaction.
    Part {
        /// → `Held`, or `NotHeld`.
        Hold = 1 (Hold),
        /// → `Done`.
        SetEntry = 2 (SetEntry),
        /// → `Done`.
        Free = 3 (Free),
        /// → `Changed`.
        MakeChild = 4 (MakeChild),
        /// → `Done`, or `Busy`.
        Remove = 5 (Remove),
        /// → `Changed`.
        AddLink = 6 (AddLink),
        /// → `Done`. Changes nothing.
        Check = 7 (Check),
        /// → `Done`.
        Moved = 8 (Moved),
        /// → `Parent`. Changes nothing.
        Parent = 9 (OfDirectory),
        /// → `Done`, when no other transaction moves directories.
        TakeMoveLock = 10,
        /// → `Done`.
        FreeMoveLock = 11,
        /// → `Changed`.
        MakeBucket = 12 (MakeBucket),
        /// → `Done`.
        SetRights = 13 (SetRights),
        /// → `Done`: nobody reads or changes the bucket any more. `Busy` or a refusal if there is
        /// something in it.
        CloseBucket = 14 (OfDirectory),
        /// → `Done`: the bucket is as it was.
        OpenBucket = 15 (OfDirectory),
        /// → `Done`: the bucket is gone.
        DropBucket = 16 (OfDirectory),
        /// → `Done`.
        Install = 17 (Install),
        /// → `Done`: the directory may be changed again.
        Thaw = 18 (OfDirectory),
    }
}

/// [`NotHeld`]: the directory is not there, or the caller may not search it.
pub(super) const IN_DIRECTORY: u8 = 0;
/// [`NotHeld`]: the name leads nowhere, or somewhere.
pub(super) const AT_NAME: u8 = 1;
/// [`NotHeld`]: the caller may not write there, or there is no room.
pub(super) const TO_WRITE: u8 = 2;

impl Part {
    /// The partition that executes the part.
    pub(super) fn partition(&self) -> PartitionNo {
        match self {
            Part::Hold(hold) => hold.directory.partition(),
            Part::SetEntry(set) => set.directory.partition(),
            Part::Free(free) => free.directory.partition(),
            Part::Remove(remove) => remove.id.partition(),
            Part::AddLink(link) => link.id.partition(),
            Part::Check(check) => check.id.partition(),
            Part::Moved(moved) => moved.id.partition(),
            Part::Parent(of) => of.id.partition(),
            Part::TakeMoveLock | Part::FreeMoveLock => InodeId::ROOT.partition(),
            Part::MakeChild(make) => make.partition,
            Part::MakeBucket(make) => make.partition,
            Part::SetRights(set) => set.id.partition(),
            Part::CloseBucket(of) | Part::OpenBucket(of) | Part::DropBucket(of) | Part::Thaw(of) => {
                of.id.partition()
            }
            Part::Install(install) => install.directory.partition(),
        }
    }

    /// Whether the part changes nothing, so that it may be executed again.
    pub(super) fn reads(&self) -> bool {
        matches!(self, Part::Check(_) | Part::Parent(_))
    }
}

impl Target {
    /// Whether it is a directory.
    pub(super) fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }
}
