//! What callers ask, open and lock. All that a caller has ends with it.

use crate::books::Reserved;
use crate::driver::wall_ns;
use crate::handles::{Bounds, Handle, LockKey, Session};
use crate::looks::Looks;
use crate::node::NamespaceNode;
use crate::opened::place_of;
use crate::parts::Parts;
use crate::route::Routed;
use crate::squash::squash;
use crate::wish;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use zazen_call::Caller;
use zazen_core::Credentials;
use zazen_namespace::operation::{
    Answer, At, Entry, Grant, Lock, LockWanted, MANY_MAX, Mode, Open, Operation,
};
use zazen_namespace::service::{Answered, Ask};
use zazen_namespace::{Attributes, Errno, Incarnation, InodeId, Kind};

/// What the listings of one call may take together; a listing beyond gets one entry or a few.
const LISTINGS_BYTES_MAX: u32 = 4 << 20;
/// Names and inodes of [`Operation::CreateMany`], [`Operation::GetMany`] and [`Operation::Chunks`]
/// in one call; operations beyond are `ENOMEM`.
const NAMES_MAX: usize = 1 << 16;
/// About how many names and listed bytes the metadata is asked for at once.
const PORTION: usize = 1 << 20;
/// How much older than the call an object may seem by the coarse clock of the disk.
pub(crate) const COARSE_NS: i64 = 100_000_000;
/// May read.
const READ: u32 = 4;
/// May write.
const WRITE: u32 = 2;
/// May search a directory.
const SEARCH: u32 = 1;

/// An operation of a call, and what its answer needs to be finished.
struct Asked<'a> {
    credentials: Credentials,
    /// How it opens a file.
    mode: Option<Mode>,
    /// The lock, what is wanted, and whether of the whole range.
    lock: Option<(LockKey, LockWanted, bool)>,
    /// Whether the inodes in the answer become known to the session.
    leads: bool,
    /// When the call came.
    since_ns: i64,
    /// The inode of which it sets how many nodes shall have it.
    wishes: Option<InodeId>,
    /// What bounds what it makes.
    quotas: Reserved<'a>,
    /// The directory that it looks into.
    directory: Option<InodeId>,
}

/// An operation that may be asked, for whom, whether its answer leads the caller further, and what
/// bounds what it makes.
struct Vetted<'a> {
    credentials: Credentials,
    operation: Operation,
    leads: bool,
    quotas: Reserved<'a>,
}

/// The inodes that an operation names by their numbers.
pub(crate) fn inodes_of(operation: &Operation) -> Vec<InodeId> {
    match operation {
        Operation::Lookup(at) | Operation::Unlink(at) | Operation::RemoveDirectory(at) => vec![at.directory],
        Operation::GetAttributes(of)
        | Operation::ReadLink(of)
        | Operation::ListXattr(of)
        | Operation::Parent(of)
        | Operation::Buckets(of) => vec![of.id],
        Operation::GetMany(many) => many.ids.clone(),
        Operation::SetAttributes(set) => vec![set.id],
        Operation::Create(create) => vec![create.directory],
        Operation::CreateMany(create) => vec![create.directory],
        Operation::MakeDirectory(make) => vec![make.directory],
        Operation::Rename(rename) => vec![rename.directory, rename.new_directory],
        Operation::Link(link) => vec![link.id, link.directory],
        Operation::ReadDirectory(read) => vec![read.directory],
        Operation::Open(open) => vec![open.id],
        Operation::Commit(commit) | Operation::Recommit(commit) => vec![commit.id],
        Operation::Release(release) => vec![release.id],
        Operation::SetXattr(set) => vec![set.id],
        Operation::GetXattr(get) => vec![get.id],
        Operation::Lock(lock) => vec![lock.id],
        Operation::Copied(copied) => vec![copied.id],
        Operation::TakeOver(take) => vec![take.id],
        Operation::OpenChunk(open) => vec![open.file],
        Operation::Chunks(list) => vec![list.file],
        Operation::Append(append) => vec![append.file],
        Operation::Nameless(_) => Vec::new(),
    }
}

/// The inodes that an answer leads to.
pub(crate) fn inodes_in(answer: &Answer) -> Vec<InodeId> {
    match answer {
        Answer::Entry(entry) => vec![entry.id],
        Answer::Grant(grant) => vec![grant.attributes.id],
        Answer::Created(many) => {
            many.results.iter().filter(|made| made.1.is_none()).map(|made| made.0).collect()
        }
        Answer::Listing(listing) => listing.entries.iter().map(|listed| listed.entry.id).collect(),
        _ => Vec::new(),
    }
}

/// Whether the caller may do all that `bits` name, by the kernel's rules.
fn may(caller: &Credentials, of: &Attributes, bits: u32) -> bool {
    let shift = match () {
        () if caller.uid == 0 => return true,
        () if caller.uid == of.uid => 6,
        () if caller.gid == of.gid || caller.groups.contains(&of.gid) => 3,
        () => 0,
    };
    (of.mode >> shift) & bits == bits
}

fn names_of(operation: &Operation) -> usize {
    match operation {
        Operation::GetMany(many) => many.ids.len(),
        Operation::CreateMany(create) => create.names.len(),
        // An answer has so many attributes.
        Operation::Chunks(chunks) => (chunks.max as usize).clamp(1, MANY_MAX),
        _ => 0,
    }
}

/// About how much an operation asks of the metadata.
fn weight(operation: &Operation) -> usize {
    match operation {
        Operation::ReadDirectory(read) => read.bytes_max as usize + 1024,
        Operation::GetMany(many) => 256 * many.ids.len() + 1024,
        Operation::CreateMany(create) => 1024 * create.names.len() + 1024,
        Operation::Chunks(chunks) => 256 * (chunks.max as usize).min(MANY_MAX) + 1024,
        _ => 1024,
    }
}

/// The attributes in an answer, to be brought up to date.
fn attributes_in(answer: &mut Answer) -> Vec<&mut Attributes> {
    match answer {
        Answer::Entry(Entry { attributes: Some(attributes), .. }) => vec![attributes],
        Answer::Found(found) => vec![&mut found.attributes],
        Answer::Many(many) => many.attributes.iter_mut().flatten().collect(),
        Answer::Listing(listing) => {
            listing.entries.iter_mut().filter_map(|listed| listed.entry.attributes.as_mut()).collect()
        }
        _ => Vec::new(),
    }
}

impl NamespaceNode {
    /// Answers what a caller asks.
    pub(crate) fn ask(&self, caller: &Caller, session: &Arc<Session>, asks: Vec<Ask>) -> Vec<Answered> {
        let mut answers = Vec::with_capacity(asks.len());
        let mut asks = asks.into_iter().peekable();
        let mut listings = LISTINGS_BYTES_MAX;
        let mut names = 0;
        let mut looks = Looks::new();
        // In portions: the engine serves others, too, between them.
        while asks.peek().is_some() {
            let mut portion = Vec::new();
            let mut weighs = 0;
            while let Some(mut ask) =
                asks.next_if(|ask| weighs == 0 || weighs + weight(&ask.operation) <= PORTION)
            {
                if let Operation::ReadDirectory(read) = &mut ask.operation {
                    read.bytes_max = read.bytes_max.min(PORTION as u32).min(listings);
                    listings -= read.bytes_max;
                }
                weighs += weight(&ask.operation);
                names += names_of(&ask.operation);
                portion.push(ask);
            }
            if names > NAMES_MAX {
                let refused = || Answered { answer: Answer::refused(Errno::ENOMEM), handle: 0 };
                answers.extend(portion.iter().map(|_| refused()));
                continue;
            }
            answers.extend(self.ask_portion(caller, session, portion, &mut looks));
        }
        answers
    }

    fn ask_portion(
        &self,
        caller: &Caller,
        session: &Arc<Session>,
        asks: Vec<Ask>,
        looks: &mut Looks,
    ) -> Vec<Answered> {
        let _under_way = self.leave.begin();
        let Ok((_, life)) = self.joined_soon() else {
            let unknown = || Answered { answer: Answer::refused(Errno::ETIMEDOUT), handle: 0 };
            return asks.iter().map(|_| unknown()).collect();
        };
        let since_ns = wall_ns() - COARSE_NS;
        let mut answers: Vec<Option<Answer>> = Vec::with_capacity(asks.len());
        let mut routed = Vec::with_capacity(asks.len());
        let mut kept = Vec::with_capacity(asks.len());
        for ask in asks {
            match self.vet(caller, session, ask, life, looks) {
                Ok(Vetted { credentials, operation, leads, quotas }) => {
                    let lock = match &operation {
                        Operation::Lock(lock) => {
                            let all = lock.whole || (lock.start == 0 && lock.end >= i64::MAX as u64);
                            Some(((lock.id, lock.owner, lock.whole), lock.wanted, all))
                        }
                        _ => None,
                    };
                    let (credentials_of, mode) = (credentials.clone(), mode_of(&operation));
                    let (wishes, directory) = (wishes_of(&operation), directory_of(&operation));
                    kept.push(Asked {
                        credentials: credentials_of,
                        mode,
                        lock,
                        leads,
                        since_ns,
                        wishes,
                        quotas,
                        directory,
                    });
                    routed.push((credentials, operation));
                    answers.push(None);
                }
                Err(errno) => answers.push(Some(Answer::refused(errno))),
            }
        }
        let touched = self.touched(caller.connection, routed.iter().map(|(_, operation)| operation));
        let routed = self.route_in_lives(routed);
        self.asked(caller.connection, touched, routed.iter().map(|(answer, _)| answer));
        let mut given = routed.into_iter().zip(kept);
        let finish = |answer: Option<Answer>| match answer {
            Some(answer) => Answered { answer, handle: 0 },
            None => match given.next() {
                Some((routed, asked)) => self.finish(session, routed, &asked, looks),
                None => Answered { answer: Answer::refused(Errno::EIO), handle: 0 },
            },
        };
        answers.into_iter().map(finish).collect()
    }

    /// A caller for whom the daemon does not vouch names only inodes that it was led to: the number
    /// of an inode says nothing of the directories above it. Whether the answer leads further.
    fn vet_inodes(
        &self,
        credentials: &Credentials,
        session: &Session,
        operation: &mut Operation,
    ) -> Result<bool, Errno> {
        if inodes_of(operation).into_iter().any(|id| !session.knows(id)) {
            return Err(Errno::EACCES);
        }
        // Names need the right to read a directory, inodes the right to search it.
        if let Operation::ReadDirectory(read) = operation {
            let searches = may(credentials, &self.attributes(read.directory)?, SEARCH);
            read.attributes &= searches;
            return Ok(searches);
        }
        Ok(true)
    }

    /// As the kernel's protected_hardlinks.
    fn vet_link(&self, credentials: &Credentials, id: InodeId) -> Result<(), Errno> {
        let of = self.attributes(id)?;
        let plain = of.kind == Kind::File && may(credentials, &of, READ | WRITE);
        if of.uid == credentials.uid || plain { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// What may be asked, and for whom.
    fn vet(
        &self,
        caller: &Caller,
        session: &Session,
        ask: Ask,
        life: Incarnation,
        looks: &mut Looks,
    ) -> Result<Vetted<'_>, Errno> {
        let vouches = self.vouches(caller);
        let credentials = match ask.credentials {
            None => caller.credentials.clone(),
            Some(of) if vouches || of == caller.credentials => of,
            Some(_) => return Err(Errno::EPERM),
        };
        let asked_as = credentials.uid;
        let credentials = if self.told.trusts_root { credentials } else { squash(credentials) };
        let mut operation = ask.operation;
        // New files may go to another node; the log's reserve is for what is here.
        let no_room = || self.driver.is_full() && (self.place().is_none() || self.driver.is_nearly_out());
        // Buckets of split directories are the daemons' own business.
        if inodes_of(&operation).into_iter().any(InodeId::is_bucket) {
            return Err(Errno::ESTALE);
        }
        match &mut operation {
            Operation::Commit(_)
            | Operation::Recommit(_)
            | Operation::Release(_)
            | Operation::Buckets(_)
            | Operation::Copied(_)
            | Operation::TakeOver(_)
            | Operation::OpenChunk(_)
            | Operation::Append(_)
            | Operation::Nameless(_) => return Err(Errno::EPERM),
            Operation::SetXattr(set) if wish::sets_nonsense(set) => return Err(Errno::EINVAL),
            Operation::SetAttributes(set) => {
                if set.bytes.is_some() {
                    return Err(Errno::EOPNOTSUPP);
                }
                // What was written before must not undo the times and bits that are set now.
                if let Some(handle) = session.writers(set.id) {
                    self.commit(&handle).ok();
                }
            }
            // An existing file is opened, which needs no room.
            Operation::Create(create) if no_room() && create.open.is_some() && !create.exclusive => {
                let at = At { directory: create.directory, name: create.name.clone() };
                match self.route_one(credentials.clone(), Operation::Lookup(at)) {
                    Err(Errno::ENOENT) => return Err(Errno::ENOSPC),
                    found => drop(found?),
                }
            }
            Operation::Create(_)
            | Operation::CreateMany(_)
            | Operation::MakeDirectory(_)
            | Operation::Link(_)
            | Operation::SetXattr(_)
                if no_room() =>
            {
                return Err(Errno::ENOSPC);
            }
            Operation::Lock(lock) => self.vet_lock(caller, session, lock, credentials.uid, life)?,
            _ => {}
        }
        let leads = !vouches && self.vet_inodes(&credentials, session, &mut operation)?;
        // The kernel of a mount has looked at that, for the user that it knows.
        if let Operation::Link(link) = &operation
            && (!vouches || credentials.uid != asked_as)
        {
            self.vet_link(&credentials, link.id)?;
        }
        // The wish is part of the operation: a file is never made without it.
        match &mut operation {
            Operation::Create(create) if create.kind == Kind::File => {
                let wishes = self.wishes_of_new(create.directory, looks)?;
                (create.copies, create.archived) = (wishes.copies, wishes.archived);
                create.chunk_mib = wishes.chunk_mib;
            }
            Operation::CreateMany(many) => {
                let wishes = self.wishes_of_new(many.directory, looks)?;
                (many.copies, many.archived) = (wishes.copies, wishes.archived);
                many.chunk_mib = wishes.chunk_mib;
            }
            _ => {}
        }
        self.vet_move(&credentials, &operation, looks)?;
        let quotas = self.vet_quotas(&credentials, &operation, looks)?;
        Ok(Vetted { credentials, operation, leads, quotas })
    }

    /// Counts the inodes that an operation may make. `EDQUOT` if it may make none.
    fn vet_quotas(
        &self,
        credentials: &Credentials,
        operation: &Operation,
        looks: &mut Looks,
    ) -> Result<Reserved<'_>, Errno> {
        let (directory, count) = match operation {
            Operation::Create(create) => (create.directory, 1),
            Operation::CreateMany(create) => (create.directory, create.names.len() as u64),
            Operation::MakeDirectory(make) => (make.directory, 1),
            _ => return Ok(self.quotas.not_reserved(Vec::new())),
        };
        let quotas = self.quotas_of(credentials.uid, Some(directory), looks)?;
        match (self.quotas.reserve(quotas, count), operation) {
            (Ok(reserved), _) => Ok(reserved),
            // An existing file is opened, which makes nothing.
            (Err((full, quotas)), Operation::Create(create))
                if create.open.is_some() && !create.exclusive =>
            {
                let at = At { directory, name: create.name.clone() };
                match self.route_one(credentials.clone(), Operation::Lookup(at)) {
                    Err(Errno::ENOENT) => Err(full),
                    found => found.map(|_| self.quotas.not_reserved(quotas)),
                }
            }
            (Err((full, _)), _) => Err(full),
        }
    }

    /// Owners of locks are numbered by the callers; here they must differ between callers, too.
    fn vet_lock(
        &self,
        caller: &Caller,
        session: &Session,
        asked: &mut Lock,
        uid: u32,
        life: Incarnation,
    ) -> Result<(), Errno> {
        let open = session.open_files(asked.id);
        if open.is_empty() {
            return Err(Errno::EBADF);
        }
        // A lock of an earlier life of the node ended with it. Nobody may think that it holds.
        if asked.wanted != LockWanted::Unlock && session.has_lost_locks(asked.id, life) {
            return Err(Errno::EIO);
        }
        let mut open = open.iter();
        let allowed = match asked.wanted {
            LockWanted::Exclusive if !asked.whole => open.any(|handle| handle.write),
            LockWanted::Shared if !asked.whole => open.any(|handle| handle.read),
            _ => true,
        };
        if !allowed {
            return Err(Errno::EBADF);
        }
        if !self.vouches(caller) {
            asked.pid = caller.pid;
        }
        asked.owner = self.owners.hash_one((caller.connection, asked.owner));
        let takes = matches!(asked.wanted, LockWanted::Shared | LockWanted::Exclusive);
        let has_it = || session.has_lock((asked.id, asked.owner, asked.whole));
        if takes && !self.of_users.locks.has_room(uid) && !has_it() {
            return Err(Errno::ENOLCK);
        }
        Ok(())
    }

    /// Makes a handle of a grant, and brings attributes up to date.
    fn finish(
        &self,
        session: &Arc<Session>,
        (answer, life): Routed,
        asked: &Asked<'_>,
        looks: &mut Looks,
    ) -> Answered {
        if asked.leads {
            inodes_in(&answer).into_iter().for_each(|id| session.learn(id));
        }
        asked.quotas.made(made_by(&answer).len() as u64);
        if let Some(directory) = asked.directory {
            self.quotas.found_in(directory, inodes_in(&answer));
        }
        if let Some(id) = asked.wishes.filter(|_| answer == Answer::Done) {
            self.note_wanted(id);
        }
        if let Some((key, wanted, all)) = asked.lock {
            let late = Answer::refused(Errno::ETIMEDOUT);
            match wanted {
                // One that nobody answered may be held, too.
                LockWanted::Shared | LockWanted::Exclusive
                    if answer == Answer::Done || answer == late && life != Incarnation::default() =>
                {
                    session.add_lock(key, self.of_users.locks.add(asked.credentials.uid), life);
                }
                LockWanted::Unlock if all && answer == Answer::Done => session.end_lock(key),
                _ => {}
            }
        }
        let mut answer = match (answer, &asked.mode) {
            (Answer::Grant(grant), Some(mode)) => {
                return self.opened(session, grant, life, mode, asked, looks);
            }
            // The name leads to an inode of another partition: it is opened there.
            (Answer::Entry(entry), Some(mode)) if entry.attributes.is_none() => {
                let open = Operation::Open(Open { id: entry.id, mode: mode.clone() });
                return match self.route_in_lives(vec![(asked.credentials.clone(), open)]).pop() {
                    Some((Answer::Grant(grant), life)) => {
                        self.opened(session, grant, life, mode, asked, looks)
                    }
                    Some((Answer::Refused(refused), _)) => {
                        Answered { answer: Answer::Refused(refused), handle: 0 }
                    }
                    _ => Answered { answer: Answer::refused(Errno::EIO), handle: 0 },
                };
            }
            (answer, _) => answer,
        };
        for attributes in attributes_in(&mut answer) {
            self.refresh(attributes);
        }
        Answered { answer, handle: 0 }
    }

    fn opened(
        &self,
        session: &Arc<Session>,
        mut grant: Grant,
        life: Incarnation,
        mode: &Mode,
        asked: &Asked<'_>,
        looks: &mut Looks,
    ) -> Answered {
        let mut refusal = None;
        // Before the look at them: what they become meanwhile is another version.
        let version = self.quotas.version();
        let quotas = match mode.write && asked.credentials.uid != 0 {
            true => self.quotas_of_file(&grant.attributes, asked.directory, looks).unwrap_or_else(|errno| {
                refusal = Some(errno);
                Vec::new()
            }),
            false => Vec::new(),
        };
        let end = if mode.truncate { 0 } else { grant.attributes.bytes };
        let counted = self.of_users.files.take(asked.credentials.uid);
        if counted.is_none() {
            refusal = Some(Errno::EMFILE);
        }
        let handle = Arc::new(Handle {
            id: grant.attributes.id,
            read: mode.read,
            write: mode.write,
            uid: asked.credentials.uid,
            life: Mutex::new(Some(life)),
            session: Arc::downgrade(session),
            place: Mutex::new(place_of(&grant.attributes)),
            wrote: AtomicBool::new(false),
            asked_in: AtomicU64::new(self.map().epoch.0),
            found_in: asked.directory,
            bounds: Mutex::new(Bounds { version, of: quotas.into() }),
            end: AtomicU64::new(end),
            parts: grant.attributes.chunks.as_ref().map(|chunks| Parts::new(chunks.chunk_bytes)),
            chunk_of: None,
            _counted: counted,
        });
        if let Some(errno) = refusal {
            self.release(&handle);
            let errno = if grant.created { errno.after_change() } else { errno };
            return Answered { answer: Answer::refused(errno), handle: 0 };
        }
        match self.make_ready(&handle, &grant, mode, asked.since_ns) {
            Ok(None) => {}
            Ok(Some(fresh)) => grant.attributes = fresh,
            Err(errno) => {
                if let Some(parts) = &handle.parts {
                    // Chunks that were to be cut.
                    self.close_parts(&handle, parts).ok();
                }
                self.release(&handle);
                let errno = if grant.created { errno.after_change() } else { errno };
                return Answered { answer: Answer::refused(errno), handle: 0 };
            }
        }
        if mode.truncate {
            grant.attributes.bytes = 0;
        }
        self.refresh(&mut grant.attributes);
        let number = self.fresh_handle();
        session.add(number, handle);
        Answered { answer: Answer::Grant(grant), handle: number }
    }
}

/// The directory that an operation finds or makes inodes in.
fn directory_of(operation: &Operation) -> Option<InodeId> {
    match operation {
        Operation::Lookup(at) => Some(at.directory),
        Operation::Create(create) => Some(create.directory),
        Operation::CreateMany(create) => Some(create.directory),
        Operation::ReadDirectory(read) => Some(read.directory),
        _ => None,
    }
}

/// The inode of which the operation sets what shall become of it.
fn wishes_of(operation: &Operation) -> Option<InodeId> {
    match operation {
        Operation::SetXattr(set) if wish::sets_one(set) => Some(set.id),
        _ => None,
    }
}

/// The inodes that an operation that makes inodes has made.
fn made_by(answer: &Answer) -> Vec<InodeId> {
    match answer {
        Answer::Grant(grant) if grant.created => vec![grant.attributes.id],
        Answer::Entry(entry) => vec![entry.id],
        Answer::Created(many) => {
            many.results.iter().filter(|made| made.1.is_none()).map(|made| made.0).collect()
        }
        _ => Vec::new(),
    }
}

/// How an operation opens a file.
fn mode_of(operation: &Operation) -> Option<Mode> {
    match operation {
        Operation::Open(open) => Some(open.mode.clone()),
        Operation::Create(create) => create.open.clone(),
        _ => None,
    }
}
