//! What clients do with files: open, cut, commit and close them, and lock them. Programs die in
//! between, and with a node's life all ends that it had.
//!
//! Checked at once: no lock is given while another one is held that excludes it, and a file that
//! somebody has open keeps its generation. What is seen of versions is checked at the end
//! (`versions`).

use super::caller::{Has, LockAsks, Thing};
use super::check::Record;
use super::client::Taken;
use super::versions::{Asked, Seen};
use super::world::World;
use crate::scheduler::MS;
use zazen_namespace::operation::{Answer, Commit, Inode, Lock, LockWanted, Mode, Open, Operation, Release};
use zazen_namespace::{Errno, Incarnation, InodeId, NodeNo};

type Life = (NodeNo, Incarnation);
/// A call on a file, and where it is recorded.
type Work = (Option<Record>, Operation);

/// A while after the faults have ended, somebody gets a lock that so many ask for in vain.
const IN_VAIN_MAX: u64 = 4;
const A_WHILE_NS: u64 = 5_000 * MS;

impl World {
    /// The end of something that a client has: its program has died, or the faults have ended and
    /// everybody shall get a lock.
    pub(super) fn end_something(&mut self, at: usize, life: Life) -> Option<Work> {
        let dies = self.random.percent(2);
        let client = &mut self.clients[at];
        client.dies |= dies && !client.has.is_empty();
        let ends = client.dies || self.calm && self.random.percent(50);
        if !ends {
            return None;
        }
        let client = &mut self.clients[at];
        let is_lock = |thing: &&Thing| matches!(thing.kind, Has::Lock { .. });
        // Locks first: the last close of a node would end them, and only that one.
        let Some(thing) = client.has.iter().find(is_lock).or(client.has.first()).copied() else {
            if std::mem::take(&mut client.dies) {
                // Another program. Numbers go on, as with a life that ended.
                client.id += 1000;
            }
            return None;
        };
        Some(self.end_of(at, thing, life))
    }

    /// Closes or unlocks.
    pub(super) fn end_of(&mut self, at: usize, thing: Thing, life: Life) -> Work {
        let file = thing.file;
        for other in &mut self.clients[at].has {
            other.ends |= other.file == file && other.kind == thing.kind;
        }
        match thing.kind {
            Has::Lock { .. } => (None, lock(at, file, LockWanted::Unlock)),
            Has::Chunked => {
                (None, Operation::Release(Release { id: file, writers: 1, readers: 0, commit: None }))
            }
            Has::Chunk { writes, .. } => {
                let (writers, readers) = (u32::from(writes), u32::from(!writes));
                (None, Operation::Release(Release { id: file, writers, readers, commit: None }))
            }
            Has::Open { generation, holds } => {
                let commits = holds && thing.since_ns.is_some() && self.random.percent(70);
                let commit = commits.then(|| self.commit_of(file, generation));
                let record = commit.as_ref().map(|commit| self.committing(commit));
                if holds {
                    self.clients[at].held = Some((file, generation, life));
                }
                (record, Operation::Release(Release { id: file, writers: 1, readers: 0, commit }))
            }
        }
    }

    fn commit_of(&mut self, file: InodeId, generation: u64) -> Commit {
        // Each length is committed once.
        self.lengths += 1;
        Commit { id: file, generation, bytes: self.lengths, blocks: 1, modified_ns: self.lengths as i64 }
    }

    fn committing(&mut self, commit: &Commit) -> Record {
        let asked = Asked::Commit { generation: commit.generation, bytes: commit.bytes };
        self.history.begin_version(commit.id, asked, self.schedule.now_ns())
    }

    /// Something about a file, if there is one.
    pub(super) fn some_file_work(&mut self, at: usize, life: Life) -> Option<Work> {
        let count = self.files.len() as u64;
        let file = *self.files.get(self.random.below(count.max(1)) as usize)?;
        let of = |kind: fn(&Has) -> bool| {
            let has = &self.clients[at].has;
            has.iter().copied().find(|thing| thing.file == file && kind(&thing.kind))
        };
        let opened = of(|kind| matches!(kind, Has::Open { .. }));
        let locked = of(|kind| matches!(kind, Has::Lock { .. }));
        let late = self.clients[at].held.filter(|held| held.2 == life);
        let now_ns = self.schedule.now_ns();
        // When the faults have ended, it is looked whether every lock can be had.
        let draw = match self.calm && self.random.percent(60) {
            true => 4 * u64::from(opened.is_some()),
            false => self.random.below(10),
        };
        Some(match (draw, opened, locked, late) {
            (0..3, None, ..) => {
                let truncate = self.random.percent(40);
                let record = self.history.begin_version(file, Asked::Open { truncate }, now_ns);
                let mode = Mode { read: true, write: true, truncate };
                (Some(record), Operation::Open(Open { id: file, mode }))
            }
            (0..2, Some(Thing { kind: Has::Open { generation, holds: true }, .. }), ..) => {
                let commit = self.commit_of(file, generation);
                (Some(self.committing(&commit)), Operation::Commit(commit))
            }
            (2..4, Some(opened), ..) => self.end_of(at, locked.unwrap_or(opened), life),
            // What it has closed: another holder may have the file by now.
            (3, None, _, Some((file, generation, _))) => {
                let commit = self.commit_of(file, generation);
                (Some(self.committing(&commit)), Operation::Commit(commit))
            }
            (4..7, Some(_), None, _) => {
                let exclusive = self.random.percent(60);
                let wanted = if exclusive { LockWanted::Exclusive } else { LockWanted::Shared };
                (None, lock(at, file, wanted))
            }
            (4..6, _, Some(thing), _) => self.end_of(at, thing, life),
            _ => {
                let record = self.history.begin_version(file, Asked::Look, now_ns);
                (Some(record), Operation::GetAttributes(Inode { id: file }))
            }
        })
    }

    /// A call on a file is answered.
    pub(super) fn take_file(
        &mut self,
        at: usize,
        record: Option<Record>,
        operation: &Operation,
        answer: &Answer,
        now_ns: u64,
    ) -> Taken {
        let refused = match answer {
            Answer::Refused(refused) => Some(refused.errno),
            _ => None,
        };
        match operation {
            Operation::Lock(lock) => return self.take_lock(at, lock, answer, now_ns),
            Operation::Release(release) => {
                // It was open in this life, so it is there to be closed.
                match refused {
                    None => {}
                    Some(Errno::EBADF) if self.spoiled => {}
                    Some(Errno::ESTALE) if release.commit.is_some() => {}
                    Some(Errno::EBADF | Errno::ESTALE) => return Taken::Wrong,
                    Some(_) => return Taken::Unknown,
                }
                let is_it = |thing: &Thing| matches!(thing.kind, Has::Open { .. }) && thing.ends;
                self.clients[at].has.retain(|thing| !(thing.file == release.id && is_it(thing)));
            }
            Operation::Open(open) => {
                if let Answer::Grant(grant) = answer {
                    let Some(place) = &grant.attributes.place else { return Taken::Wrong };
                    let generation = place.generation;
                    if let Some(what) = self.replaced(at, open.id, generation) {
                        self.fail(what);
                        return Taken::Right;
                    }
                    let holds = self.holds(at, place.holder);
                    self.gain(at, open.id, Has::Open { generation, holds }, Some(now_ns));
                }
            }
            _ => {}
        }
        let Some(record) = record else { return Taken::Right };
        let seen = match (operation, answer, refused) {
            (Operation::Open(_), Answer::Grant(grant), _) => {
                let generation = grant.attributes.place.as_ref().map_or(0, |place| place.generation);
                // A repeated open shows the length of the moment of the repetition.
                Seen::As { generation, bytes: None }
            }
            (Operation::GetAttributes(_), Answer::Found(found), _) => {
                let generation = found.attributes.place.as_ref().map_or(0, |place| place.generation);
                Seen::As { generation, bytes: Some(found.attributes.bytes) }
            }
            (Operation::Commit(_) | Operation::Release(_), Answer::Done, _) => Seen::Done,
            (Operation::Commit(_) | Operation::Release(_), _, Some(Errno::ESTALE)) => Seen::Stale,
            (_, _, Some(Errno::ESTALE | Errno::ENOENT)) => Seen::Gone,
            (_, _, Some(_)) => return Taken::Unknown,
            _ => return Taken::Wrong,
        };
        self.tell(|| format!("{record:?}: {seen:?}"));
        self.history.end_version(record, now_ns, seen);
        Taken::Right
    }

    /// Whether a file with this holder is on the client's own node.
    pub(super) fn holds(&self, at: usize, holder: NodeNo) -> bool {
        let node = self.hosts[self.clients[at].host].node.as_ref();
        node.is_some_and(|node| node.number() == holder)
    }

    pub(super) fn gain(&mut self, at: usize, file: InodeId, kind: Has, since_ns: Option<u64>) {
        let requests = self.clients[at].call.as_ref().map(|call| &call.requests);
        let life = requests.and_then(|requests| requests.first()).map(|(ask, _)| (ask.node, ask.incarnation));
        if let Some(life) = life {
            self.clients[at].has.push(Thing { file, kind, life, since_ns, ends: false });
        }
    }

    fn take_lock(&mut self, at: usize, lock: &Lock, answer: &Answer, now_ns: u64) -> Taken {
        let exclusive = lock.wanted == LockWanted::Exclusive;
        match (lock.wanted, answer) {
            (LockWanted::Unlock, Answer::Done) => {
                let is_it = |thing: &Thing| matches!(thing.kind, Has::Lock { .. });
                self.clients[at].has.retain(|thing| !(thing.file == lock.id && is_it(thing)));
            }
            (LockWanted::Exclusive | LockWanted::Shared, Answer::Done) => {
                if let Some(what) = self.excluded(at, lock.id, exclusive) {
                    self.fail(what);
                    return Taken::Right;
                }
                self.gain(at, lock.id, Has::Lock { exclusive }, Some(now_ns));
                self.count_lock(lock.id, now_ns).given += 1;
            }
            (LockWanted::Exclusive | LockWanted::Shared, Answer::Blocking(_)) => {
                self.count_lock(lock.id, now_ns).in_vain += 1;
            }
            (_, Answer::Refused(refused)) if refused.errno != Errno::ESTALE => {
                if lock.wanted != LockWanted::Unlock {
                    // It may be held: it is given back some time.
                    self.gain(at, lock.id, Has::Lock { exclusive }, None);
                }
                return Taken::Unknown;
            }
            _ => return Taken::Wrong,
        }
        self.history.answered += 1;
        Taken::Right
    }

    /// What others certainly have of a file since before the client's call began, and until now.
    fn others_have(&self, at: usize, file: InodeId) -> Vec<(usize, Thing)> {
        let Some(began_ns) = self.clients[at].call.as_ref().map(|call| call.began_ns) else {
            return Vec::new();
        };
        let lives = |(node, life): Life| self.ended.get(&node).is_none_or(|last| life > *last);
        let had = |thing: &Thing| thing.since_ns.is_some_and(|since_ns| since_ns < began_ns) && !thing.ends;
        let others = self.clients.iter().enumerate().filter(|(other, _)| *other != at);
        let things = others.flat_map(|(other, client)| client.has.iter().map(move |thing| (other, *thing)));
        things.filter(|(_, thing)| thing.file == file && had(thing) && lives(thing.life)).collect()
    }

    /// A lock is given: does somebody else hold one that excludes it.
    fn excluded(&self, at: usize, file: InodeId, exclusive: bool) -> Option<String> {
        let stands =
            |thing: &Thing| matches!(thing.kind, Has::Lock { exclusive: other } if other || exclusive);
        let (other, thing) = self.others_have(at, file).into_iter().find(|(_, thing)| stands(thing))?;
        Some(format!("two locks: client {at} gets a lock of {file}, and client {other} holds {thing:?}"))
    }

    /// A file is opened: does somebody have it open with another generation.
    fn replaced(&self, at: usize, file: InodeId, generation: u64) -> Option<String> {
        let differs =
            |thing: &Thing| matches!(thing.kind, Has::Open { generation: of, .. } if of != generation);
        let (other, thing) = self.others_have(at, file).into_iter().find(|(_, thing)| differs(thing))?;
        Some(format!(
            "replaced: client {at} opens {file} with generation {generation}, and client {other} has it \
             open: {thing:?}"
        ))
    }

    fn count_lock(&mut self, file: InodeId, now_ns: u64) -> &mut LockAsks {
        let counts = self.calm && now_ns >= self.profile.calm_ns + A_WHILE_NS;
        let (asks, other) = (&mut self.lock_asks, &mut self.early_lock_asks);
        if counts { asks.entry(file).or_default() } else { other }
    }

    /// A lock that nobody got since the faults have ended: whoever has it is gone.
    pub(super) fn lock_of_nobody(&self) -> Option<String> {
        let (file, asks) =
            self.lock_asks.iter().find(|(_, asks)| asks.in_vain >= IN_VAIN_MAX && asks.given == 0)?;
        Some(format!("no progress: a lock of {file} was asked for {} times in vain", asks.in_vain))
    }
}

fn lock(at: usize, file: InodeId, wanted: LockWanted) -> Operation {
    let (owner, pid, whole, start, end) = (at as u64, at as u32, true, 0, u64::MAX);
    Operation::Lock(Lock { id: file, owner, pid, whole, start, end, wanted })
}
