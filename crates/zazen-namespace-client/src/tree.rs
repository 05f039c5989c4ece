//! Operations on inodes, as a mount needs them.
//!
//! Each is done on behalf of [`Who`]: `None` is this program itself, as the kernel told the daemon.
//! A program that may vouch (root, or the daemon's user: a mount) gives the credentials of its own
//! caller instead.

use crate::file::File;
use crate::link::{Namespace, Repeat};
use zazen_core::Credentials;
use zazen_namespace::operation::{
    Answer, At, Blocking, Chunks, Create, CreateMany, Entry, GetMany, GetXattr, Inode, Link, Listing, Lock,
    MANY_MAX, MakeDirectory, Mode, Open, Operation, ReadDirectory, Rename, SetAttributes, SetXattr,
};
use zazen_namespace::service::{ASKS_MAX, Answered, Ask};
use zazen_namespace::{Attributes, Errno, InodeId, Kind, Name};

/// On whose behalf: `None` for this program itself.
pub type Who<'a> = Option<&'a Credentials>;

type Result<T> = std::result::Result<T, Errno>;

/// What is under a name: the inode with its attributes.
pub type Found = Attributes;

fn ask(who: Who<'_>, operation: Operation) -> Ask {
    Ask { credentials: who.cloned(), operation }
}

/// Whether an operation may be asked twice without a second effect.
fn repeat(operation: &Operation) -> Repeat {
    if operation.only_reads() { Repeat::Yes } else { Repeat::No }
}

/// The most names and inodes that one call asks for; a daemon refuses twice as many.
const NAMES_MAX: usize = 1 << 15;

fn names_of(operation: &Operation) -> usize {
    match operation {
        Operation::GetMany(many) => many.ids.len(),
        Operation::CreateMany(create) => create.names.len(),
        Operation::Chunks(chunks) => chunks.max as usize,
        _ => 0,
    }
}

impl Namespace {
    /// Asks one operation.
    pub fn ask(&self, who: Who<'_>, operation: Operation) -> Result<Answered> {
        let repeat = repeat(&operation);
        let mut answers = self.ask_all(vec![ask(who, operation)], repeat)?;
        let answered = answers.pop().ok_or(Errno::EIO)?;
        match answered.answer {
            Answer::Refused(refused) => Err(refused.errno),
            _ => Ok(answered),
        }
    }

    /// Asks many operations in as few calls as the limits allow; one result for each, in order.
    pub fn ask_many(&self, who: Who<'_>, operations: Vec<Operation>) -> Vec<Result<Answered>> {
        let mut results = Vec::with_capacity(operations.len());
        let mut operations = operations.into_iter().peekable();
        while operations.peek().is_some() {
            let mut asks: Vec<Ask> = Vec::new();
            let mut names = 0;
            while asks.len() < ASKS_MAX
                && let Some(operation) =
                    operations.next_if(|next| asks.is_empty() || names + names_of(next) <= NAMES_MAX)
            {
                names += names_of(&operation);
                asks.push(ask(who, operation));
            }
            let all = asks.iter().all(|ask| repeat(&ask.operation) == Repeat::Yes);
            let asked = asks.len();
            match self.ask_all(asks, if all { Repeat::Yes } else { Repeat::No }) {
                Err(errno) => results.extend(std::iter::repeat_n(Err(errno), asked)),
                Ok(answers) => results.extend(answers.into_iter().map(|answered| match answered.answer {
                    Answer::Refused(refused) => Err(refused.errno),
                    _ => Ok(answered),
                })),
            }
        }
        results
    }

    /// The chunks of a file in chunks, in their order.
    pub fn chunks(&self, who: Who<'_>, file: InodeId) -> Result<Vec<Found>> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let chunks = Chunks { file, from, max: MANY_MAX as u32, writing: false };
            let Answer::Chunks(list) = self.ask(who, Operation::Chunks(chunks))?.answer else {
                return Err(Errno::EIO);
            };
            let last = list.chunks.last().and_then(|last| last.chunk_of.as_ref()).map(|of| of.index);
            all.extend(list.chunks);
            match last {
                Some(last) if !list.end => from = last + 1,
                _ => return Ok(all),
            }
        }
    }

    fn found(&self, who: Who<'_>, entry: Entry) -> Result<Found> {
        match entry.attributes {
            Some(attributes) => Ok(attributes),
            None => self.attributes(who, entry.id),
        }
    }

    fn entry(&self, who: Who<'_>, operation: Operation) -> Result<Found> {
        match self.ask(who, operation)?.answer {
            Answer::Entry(entry) => self.found(who, entry),
            _ => Err(Errno::EIO),
        }
    }

    /// The same for an operation that makes the name: it is not asked for again, even if what it
    /// made is gone by the time of the look.
    fn made(&self, who: Who<'_>, operation: Operation) -> Result<Found> {
        match self.ask(who, operation)?.answer {
            Answer::Entry(entry) => self.found(who, entry).map_err(Errno::after_change),
            _ => Err(Errno::EIO),
        }
    }

    fn done(&self, who: Who<'_>, operation: Operation) -> Result<()> {
        match self.ask(who, operation)?.answer {
            Answer::Done => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    fn opened(&self, answered: Answered) -> Result<File> {
        match answered.answer {
            Answer::Grant(grant) => {
                Ok(File::new(self.clone(), answered.handle, grant.attributes, grant.created))
            }
            _ => Err(Errno::EIO),
        }
    }

    /// What is under `name` in `directory`.
    pub fn lookup(&self, who: Who<'_>, directory: InodeId, name: &Name) -> Result<Found> {
        self.entry(who, Operation::Lookup(At { directory, name: name.clone() }))
    }

    /// An inode's attributes. For a file that is being written, its length and times as its holder
    /// knows them now.
    pub fn attributes(&self, who: Who<'_>, id: InodeId) -> Result<Attributes> {
        match self.ask(who, Operation::GetAttributes(Inode { id }))?.answer {
            Answer::Found(found) => Ok(found.attributes),
            _ => Err(Errno::EIO),
        }
    }

    /// The attributes of many inodes, in order; `None` for one that is gone.
    pub fn attributes_many(&self, who: Who<'_>, ids: &[InodeId]) -> Result<Vec<Option<Attributes>>> {
        let mut places: Vec<usize> = (0..ids.len()).collect();
        places.sort_by_key(|at| ids[*at].partition());
        let same = |a: &usize, b: &usize| ids[*a].partition() == ids[*b].partition();
        let groups: Vec<&[usize]> = places.chunk_by(same).flat_map(|group| group.chunks(MANY_MAX)).collect();
        let many =
            |group: &&[usize]| Operation::GetMany(GetMany { ids: group.iter().map(|at| ids[*at]).collect() });
        let answers = self.ask_many(who, groups.iter().map(many).collect());
        let mut found = vec![None; ids.len()];
        for (group, answer) in groups.iter().zip(answers) {
            match answer?.answer {
                Answer::Many(many) if many.attributes.len() == group.len() => {
                    for (at, attributes) in group.iter().zip(many.attributes) {
                        found[*at] = attributes;
                    }
                }
                _ => return Err(Errno::EIO),
            }
        }
        Ok(found)
    }

    /// Changes mode, owner, group or times. A length is changed through an open file only
    /// ([`File::set_length`]).
    pub fn set_attributes(&self, who: Who<'_>, set: SetAttributes) -> Result<Attributes> {
        match self.ask(who, Operation::SetAttributes(set))?.answer {
            Answer::Found(found) => Ok(found.attributes),
            _ => Err(Errno::EIO),
        }
    }

    /// Makes (unless it is there and `exclusive` is false) and opens a file. `mode` is after the
    /// umask.
    pub fn create(
        &self,
        who: Who<'_>,
        directory: InodeId,
        name: &Name,
        mode: u32,
        open: Mode,
        exclusive: bool,
    ) -> Result<File> {
        let create = Create { mode, open: Some(open), exclusive, ..Create::file(directory, name.clone()) };
        self.opened(self.ask(who, Operation::Create(create))?)
    }

    /// Makes an inode that is neither a directory nor opened: an empty file, a pipe, a socket, a
    /// device.
    pub fn make_node(
        &self,
        who: Who<'_>,
        directory: InodeId,
        name: &Name,
        kind: Kind,
        mode: u32,
        device: u32,
    ) -> Result<Found> {
        let target = Vec::new();
        let name = name.clone();
        let create = Create { kind, mode, device, target, ..Create::file(directory, name) };
        self.made(who, Operation::Create(create))
    }

    /// Makes a symbolic link to `target`.
    pub fn symlink(&self, who: Who<'_>, directory: InodeId, name: &Name, target: &[u8]) -> Result<Found> {
        let create = Create {
            kind: Kind::Symlink,
            mode: 0o777,
            target: target.to_vec(),
            ..Create::file(directory, name.clone())
        };
        self.made(who, Operation::Create(create))
    }

    /// Makes many empty files; one result for each name, in order.
    pub fn create_many(
        &self,
        who: Who<'_>,
        directory: InodeId,
        names: &[Name],
        mode: u32,
    ) -> Result<Vec<Result<InodeId>>> {
        let many = |names: &[Name]| {
            Operation::CreateMany(CreateMany {
                directory,
                names: names.to_vec(),
                mode,
                copies: 0,
                archived: None,
                chunk_mib: None,
            })
        };
        let mut all = Vec::with_capacity(names.len());
        for names in names.chunks(MANY_MAX) {
            match self.ask(who, many(names))?.answer {
                Answer::Created(created) if created.results.len() == names.len() => {
                    all.extend(created.results.into_iter().map(|(id, errno)| errno.map_or(Ok(id), Err)));
                }
                _ => return Err(Errno::EIO),
            }
        }
        Ok(all)
    }

    /// Makes a directory.
    pub fn make_directory(&self, who: Who<'_>, directory: InodeId, name: &Name, mode: u32) -> Result<Found> {
        self.made(who, Operation::MakeDirectory(MakeDirectory { directory, name: name.clone(), mode }))
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&self, who: Who<'_>, directory: InodeId, name: &Name) -> Result<()> {
        self.done(who, Operation::Unlink(At { directory, name: name.clone() }))
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, who: Who<'_>, directory: InodeId, name: &Name) -> Result<()> {
        self.done(who, Operation::RemoveDirectory(At { directory, name: name.clone() }))
    }

    /// Gives an entry another name, atomically.
    pub fn rename(&self, who: Who<'_>, rename: Rename) -> Result<()> {
        self.done(who, Operation::Rename(rename))
    }

    /// Gives an inode another name.
    pub fn link(&self, who: Who<'_>, id: InodeId, directory: InodeId, name: &Name) -> Result<Found> {
        self.made(who, Operation::Link(Link { id, directory, name: name.clone() }))
    }

    /// A part of a directory behind `cookie` (0: from its beginning), about `bytes_max` bytes long.
    pub fn read_directory(
        &self,
        who: Who<'_>,
        directory: InodeId,
        cookie: u64,
        bytes_max: u32,
        attributes: bool,
    ) -> Result<Listing> {
        let read = ReadDirectory { directory, cookie, bytes_max, attributes };
        match self.ask(who, Operation::ReadDirectory(read))?.answer {
            Answer::Listing(listing) => Ok(listing),
            _ => Err(Errno::EIO),
        }
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, who: Who<'_>, id: InodeId) -> Result<Vec<u8>> {
        match self.ask(who, Operation::ReadLink(Inode { id }))?.answer {
            Answer::Bytes(bytes) => Ok(bytes.bytes),
            _ => Err(Errno::EIO),
        }
    }

    /// Opens a file.
    pub fn open_inode(&self, who: Who<'_>, id: InodeId, mode: Mode) -> Result<File> {
        self.opened(self.ask(who, Operation::Open(Open { id, mode }))?)
    }

    /// The directory that a directory is in.
    pub fn parent(&self, who: Who<'_>, directory: InodeId) -> Result<Found> {
        self.entry(who, Operation::Parent(Inode { id: directory }))
    }

    /// Sets or (`value` is `None`) removes an extended attribute.
    pub fn set_xattr(&self, who: Who<'_>, set: SetXattr) -> Result<()> {
        self.done(who, Operation::SetXattr(set))
    }

    /// The value of an extended attribute.
    pub fn get_xattr(&self, who: Who<'_>, id: InodeId, name: &Name) -> Result<Vec<u8>> {
        match self.ask(who, Operation::GetXattr(GetXattr { id, name: name.clone() }))?.answer {
            Answer::Bytes(bytes) => Ok(bytes.bytes),
            _ => Err(Errno::EIO),
        }
    }

    /// The names of the extended attributes.
    pub fn list_xattr(&self, who: Who<'_>, id: InodeId) -> Result<Vec<Name>> {
        match self.ask(who, Operation::ListXattr(Inode { id }))?.answer {
            Answer::Names(names) => Ok(names.names),
            _ => Err(Errno::EIO),
        }
    }

    /// Takes, tests or ends a lock; the lock that stands in the way, if there is one. Never waits.
    pub fn lock(&self, who: Who<'_>, lock: Lock) -> Result<Option<Blocking>> {
        match self.ask(who, Operation::Lock(lock))?.answer {
            Answer::Done => Ok(None),
            Answer::Blocking(blocking) => Ok(Some(blocking)),
            _ => Err(Errno::EIO),
        }
    }
}
