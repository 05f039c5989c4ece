//! What callers ask, open and lock. All that a caller has ends with it.

use crate::handles::{HANDLES_MAX, Handle, LOCKS_MAX, Session, lock};
use crate::node::NamespaceNode;
use crate::objects::{self, ObjectName};
use crate::route::root;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use zazen_call::Caller;
use zazen_core::Credentials;
use zazen_core::fnv::mixed;
use zazen_namespace::operation::{Answer, Entry, Grant, Lock, LockWanted, Mode, Open, Operation, Release};
use zazen_namespace::service::{Answered, Ask, namespace_fn};
use zazen_namespace::{Attributes, Errno, Kind};

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
    pub(crate) fn ask(&self, caller: &Caller, session: &Session, asks: Vec<Ask>) -> Vec<Answered> {
        let mut answers: Vec<Option<Answer>> = Vec::with_capacity(asks.len());
        let mut routed = Vec::with_capacity(asks.len());
        let mut opens = Vec::with_capacity(asks.len());
        for ask in asks {
            match self.vet(caller, session, ask) {
                Ok((credentials, operation)) => {
                    opens.push((mode_of(&operation), credentials.clone()));
                    routed.push((credentials, operation));
                    answers.push(None);
                }
                Err(errno) => answers.push(Some(Answer::refused(errno))),
            }
        }
        let mut given = self.route(routed).into_iter().zip(opens);
        let finish = |answer: Option<Answer>| match answer {
            Some(answer) => Answered { answer, handle: 0 },
            None => match given.next() {
                Some((answer, (mode, credentials))) => self.finish(session, answer, mode, &credentials),
                None => Answered { answer: Answer::refused(Errno::EIO), handle: 0 },
            },
        };
        answers.into_iter().map(finish).collect()
    }

    /// What may be asked, and for whom.
    fn vet(&self, caller: &Caller, session: &Session, ask: Ask) -> Result<(Credentials, Operation), Errno> {
        let vouches = self.vouches(caller);
        let credentials = match ask.credentials {
            None => caller.credentials.clone(),
            Some(of) if vouches || of == caller.credentials => of,
            Some(_) => return Err(Errno::EPERM),
        };
        let mut operation = ask.operation;
        match &mut operation {
            Operation::Commit(_) | Operation::Release(_) => return Err(Errno::EPERM),
            Operation::SetAttributes(set) => {
                if set.bytes.is_some() {
                    return Err(Errno::EOPNOTSUPP);
                }
                // What was written before must not undo the times and bits that are set now.
                if let Some(handle) = session.writers(set.id) {
                    self.commit(&handle).ok();
                }
            }
            Operation::Create(_)
            | Operation::CreateMany(_)
            | Operation::MakeDirectory(_)
            | Operation::Link(_)
            | Operation::SetXattr(_)
                if self.driver.is_full() =>
            {
                return Err(Errno::ENOSPC);
            }
            Operation::Lock(lock) => self.vet_lock(caller, session, lock)?,
            _ => {}
        }
        Ok((credentials, operation))
    }

    /// Owners of locks are numbered by the callers; here they must differ between callers, too.
    fn vet_lock(&self, caller: &Caller, session: &Session, asked: &mut Lock) -> Result<(), Errno> {
        if !session.has_open(asked.id) {
            return Err(Errno::EBADF);
        }
        if !self.vouches(caller) {
            asked.pid = caller.pid;
        }
        asked.owner = mixed(caller.connection).wrapping_add(asked.owner);
        if matches!(asked.wanted, LockWanted::Shared | LockWanted::Exclusive) {
            let mut locks = lock(&session.locks);
            if locks.len() >= LOCKS_MAX {
                return Err(Errno::ENOLCK);
            }
            locks.insert((asked.id, asked.owner, asked.whole));
        }
        Ok(())
    }

    /// Makes a handle of a grant, and brings attributes up to date.
    fn finish(
        &self,
        session: &Session,
        answer: Answer,
        mode: Option<Mode>,
        credentials: &Credentials,
    ) -> Answered {
        let mut answer = match (answer, mode) {
            (Answer::Grant(grant), Some(mode)) => return self.opened(session, grant, &mode, credentials),
            // The name leads to an inode of another partition: it is opened there.
            (Answer::Entry(entry), Some(mode)) if entry.attributes.is_none() => {
                let open = Operation::Open(Open { id: entry.id, mode: mode.clone() });
                return match self.route_one(credentials.clone(), open) {
                    Ok(Answer::Grant(grant)) => self.opened(session, grant, &mode, credentials),
                    Ok(_) => Answered { answer: Answer::refused(Errno::EIO), handle: 0 },
                    Err(errno) => Answered { answer: Answer::refused(errno), handle: 0 },
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
        session: &Session,
        mut grant: Grant,
        mode: &Mode,
        credentials: &Credentials,
    ) -> Answered {
        let handle = Arc::new(Handle {
            id: grant.attributes.id,
            read: mode.read,
            write: mode.write,
            by_root: credentials.uid == 0,
            place: Mutex::new(grant.attributes.place.as_ref().map(|place| (place.holder, place.generation))),
            wrote: AtomicBool::new(false),
        });
        let ready = self.make_ready(session, &handle, &grant, mode);
        if let Err(errno) = ready {
            self.release(&handle);
            return Answered { answer: Answer::refused(errno), handle: 0 };
        }
        if mode.truncate {
            grant.attributes.bytes = 0;
        }
        self.refresh(&mut grant.attributes);
        let number = self.fresh_handle();
        lock(&session.handles).insert(number, handle);
        Answered { answer: Answer::Grant(grant), handle: number }
    }

    /// Makes the object of a file that this node holds, or makes sure that it is there.
    fn make_ready(
        &self,
        session: &Session,
        handle: &Handle,
        grant: &Grant,
        mode: &Mode,
    ) -> Result<(), Errno> {
        if session.handles() >= HANDLES_MAX {
            return Err(Errno::ENOMEM);
        }
        let attributes = &grant.attributes;
        let (Kind::File, Some(place)) = (attributes.kind, &attributes.place) else { return Ok(()) };
        let (me, _) = self.identity().map_err(|_| Errno::ETIMEDOUT)?;
        if place.holder == me {
            let name = ObjectName { id: attributes.id, generation: place.generation };
            let object = match self.objects.open(name) {
                // It never had a byte: the metadata says so.
                Err(Errno::ESTALE) if mode.write && attributes.bytes == 0 => self.objects.make(name)?,
                Err(Errno::ESTALE) if attributes.bytes == 0 => return Ok(()),
                Err(Errno::ESTALE) => {
                    tracing::error!(
                        "namespace: the bytes of inode {} (generation {}) are not on this disk any more",
                        attributes.id,
                        place.generation
                    );
                    return Err(Errno::EIO);
                }
                opened => opened?,
            };
            let stat = objects::stat(&object)?;
            if stat.bytes < attributes.bytes && !place.writing {
                tracing::error!(
                    "namespace: inode {} has {} bytes on this disk, and {} by the metadata",
                    attributes.id,
                    stat.bytes,
                    attributes.bytes
                );
                return Err(Errno::EIO);
            }
            if stat.bytes == attributes.bytes {
                let seen = (stat.bytes, stat.blocks, stat.modified_ns);
                self.note_committed(name, seen, false);
            }
        }
        if mode.truncate && !grant.created {
            self.act(handle, namespace_fn::TRUNCATE, 0, 0, 0)?;
        }
        Ok(())
    }

    /// Brings the length and times of a file that is being written up to date.
    pub(crate) fn refresh(&self, attributes: &mut Attributes) {
        let Some(place) = attributes.place.clone().filter(|place| place.writing) else { return };
        let name = ObjectName { id: attributes.id, generation: place.generation };
        let told = match self.identity() {
            Ok((me, _)) if me == place.holder => self.commit_object(name, true),
            _ => self.commit_there(place.holder, name, true),
        };
        // If the holder does not answer, the last commit is what is known.
        if told == Ok(true)
            && let Ok(fresh) = self.attributes(attributes.id)
        {
            *attributes = fresh;
        }
    }

    /// Ends an open file: tells the metadata what was written, then that it is closed.
    pub(crate) fn close(&self, handle: &Handle) -> Result<(), Errno> {
        let committed = if handle.write { self.commit(handle) } else { Ok(false) };
        self.release(handle);
        committed.map(drop)
    }

    fn release(&self, handle: &Handle) {
        let (writers, readers) = (u32::from(handle.write), u32::from(!handle.write));
        let release = Release { id: handle.id, writers, readers, commit: None };
        if let Err(errno) = self.route_one(root(), Operation::Release(release)) {
            tracing::debug!("namespace: release of inode {}: {errno}", handle.id);
        }
    }

    /// The caller is gone: what it had open is closed, what it had locked is free.
    pub(crate) fn end_session(&self, session: &Session) {
        let handles: Vec<_> = lock(&session.handles).drain().collect();
        for (_, handle) in handles {
            if handle.write {
                self.commit(&handle).ok();
            }
            self.release(&handle);
        }
        let locks: Vec<_> = lock(&session.locks).drain().collect();
        let unlock = |(id, owner, whole)| {
            let (start, end, wanted) = (0, u64::MAX, LockWanted::Unlock);
            (root(), Operation::Lock(Lock { id, owner, pid: 0, whole, start, end, wanted }))
        };
        self.route(locks.into_iter().map(unlock).collect());
    }

    /// Tells the metadata what was written through a handle. Whether there was something to tell.
    pub(crate) fn commit(&self, handle: &Handle) -> Result<bool, Errno> {
        if !handle.wrote.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some((holder, generation)) = *lock(&handle.place) else { return Ok(false) };
        let name = ObjectName { id: handle.id, generation };
        match self.identity() {
            Ok((me, _)) if me == holder => self.commit_object(name, handle.by_root),
            _ => self.commit_there(holder, name, handle.by_root),
        }
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
