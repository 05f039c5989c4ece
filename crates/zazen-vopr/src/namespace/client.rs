//! Clients: each asks one thing at a time about a few names and files, repeats what is not
//! answered, and gives up what its node's life ended with.

use super::caller::Ongoing;
use super::check::Record;
use super::chunks::CHUNK_MIB;
use super::names::{Asked, Key, NAMES, Seen};
use super::net::Packet;
use super::world::{Event, World};
use crate::scheduler::MS;
use zazen_core::Credentials;
use zazen_namespace::operation::{
    Answer, At, Create, Link, MakeDirectory, Operation, Rename, Request, Response,
};
use zazen_namespace::split::{Errand, Next};
use zazen_namespace::{Errno, Incarnation, InodeId, Name, NodeNo};
use zazen_wire::Message;

/// Names of directories begin here; those of files are below.
const DIRECTORY: u8 = 4;
/// Directories that clients work in, and the first name of such a one.
const DIRECTORIES: usize = 3;
const WORKPLACE: u8 = 100;
/// Files whose bytes and locks clients use, and the first name of such a one.
const FILES: usize = 2;
const FILE: u8 = 150;
/// The first name of a file of chunks, and how many there are.
const CHUNKED: u8 = 200;
const CHUNKED_FILES: usize = 1;
/// Inodes that are remembered of each family, to be linked.
const LINKED_MAX: usize = 4;

fn is_directory(of: u8) -> bool {
    (DIRECTORY..FILE).contains(&of)
}

fn name(of: u8) -> Option<Name> {
    let text = if is_directory(of) { format!("d{of}") } else { format!("f{of}") };
    Name::new(text.as_bytes()).ok()
}

/// What asks this.
fn operation(asked: Asked) -> Option<Operation> {
    let (directory, of) = asked.key();
    let name = name(of)?;
    Some(match asked {
        Asked::Create(_) if is_directory(of) => {
            Operation::MakeDirectory(MakeDirectory { directory, name, mode: 0o755 })
        }
        Asked::Create(_) => Operation::Create(Create {
            chunk_mib: (of >= CHUNKED).then_some(CHUNK_MIB),
            ..Create::file(directory, name)
        }),
        Asked::Remove(_) if is_directory(of) => Operation::RemoveDirectory(At { directory, name }),
        Asked::Remove(_) => Operation::Unlink(At { directory, name }),
        Asked::Lookup(_) => Operation::Lookup(At { directory, name }),
        Asked::Rename { from, no_replace, exchange, .. } => Operation::Rename(Rename {
            directory: from.0,
            name: self::name(from.1)?,
            new_directory: directory,
            new_name: name,
            no_replace,
            exchange,
        }),
        Asked::Link { id, .. } => Operation::Link(Link { id, directory, name }),
    })
}

/// What a client asks next: about names, or about a file.
enum Wish {
    Names(Asked),
    File(Option<Record>, Operation),
}

/// What an answer is.
pub(super) enum Taken {
    /// One that the check can use.
    Right,
    /// One that does not say what became of the call.
    Unknown,
    /// One that never comes.
    Wrong,
}

impl World {
    /// A client goes on.
    pub(crate) fn client(&mut self, at: usize) {
        let now_ns = self.schedule.now_ns();
        // When the faults have ended, it is enough that clients get answers at all.
        let pause = if self.calm { 20 + self.random.below(300) } else { 4 + self.random.below(80) } * MS;
        self.schedule.after(pause, Event::Client { client: at });
        let host = self.clients[at].host;
        let life = self.hosts[host].node.as_ref().map(|node| (node.number(), node.incarnation()));
        let is_up = now_ns >= self.hosts[host].paused_ns;
        let Some((node, incarnation)) = life.filter(|(node, _)| node.0 > 0 && is_up) else {
            return;
        };
        let is_old = |call: &Ongoing| call.requests.iter().any(|(ask, _)| ask.incarnation != incarnation);
        if self.clients[at].call.as_ref().is_some_and(is_old) {
            self.give_up(at);
        }
        if self.clients[at].call.is_none() {
            self.begin(at, node, incarnation);
        }
        let Some(call) = &mut self.clients[at].call else { return };
        if now_ns < call.repeats_ns {
            return;
        }
        call.repeats_ns = now_ns + 400 * MS;
        let Some(map) = self.hosts[host].node.as_ref().map(|node| node.map()) else { return };
        let mut packets = Vec::new();
        for (request, answer) in &mut call.requests {
            request.epoch = map.epoch;
            let partition = request.operation.partition();
            let address = map.primary(partition).map(|member| &member.address);
            let to = self.hosts.iter().position(|host| Some(&host.address) == address);
            if let (Some(to), None) = (to, answer) {
                packets.push((to, Packet::Ask { client: at, bytes: request.encode() }));
            }
        }
        for (to, packet) in packets {
            self.send(host, to, &packet);
        }
    }

    /// Nobody will ever know what became of the call.
    fn give_up(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.call = None;
        // A client ends with its node's life. Numbers go on: a late answer is not taken for
        // another.
        client.id += 1000;
    }

    fn begin(&mut self, at: usize, node: NodeNo, incarnation: Incarnation) {
        let life = (node, incarnation);
        // What a life had ended with it.
        self.clients[at].has.retain(|thing| thing.life == life);
        let now_ns = self.schedule.now_ns();
        let (record, operation) = match self.wish(at, life) {
            Wish::Names(asked) => {
                let Some(operation) = operation(asked) else { return };
                (Some(self.history.begin(asked, now_ns)), operation)
            }
            Wish::File(record, operation) => (record, operation),
        };
        let (errand, asks) = Errand::new(operation, &self.clients[at].layouts);
        let requests = self.pose(at, life, asks);
        self.clients[at].call = Some(Ongoing { record, began_ns: now_ns, errand, requests, repeats_ns: 0 });
    }

    /// What a client asks next.
    fn wish(&mut self, at: usize, life: (NodeNo, Incarnation)) -> Wish {
        if self.profile.works
            && let Some((record, operation)) = self.end_something(at, life)
        {
            return Wish::File(record, operation);
        }
        let directory = self.some_directory();
        let key = (directory, self.random.below(NAMES) as u8);
        let plain = (!self.profile.works).then(|| self.random.below(10));
        // The first client makes what all work in and with; nobody removes it.
        if at == 0
            && let Some(missing) = self.missing()
        {
            let was_asked_for = !self.made.insert(missing.1);
            return Wish::Names(if was_asked_for { Asked::Lookup(missing) } else { Asked::Create(missing) });
        }
        if let Some(plain) = plain {
            return Wish::Names(match plain {
                0..4 => Asked::Create(key),
                4..7 => Asked::Remove(key),
                _ => Asked::Lookup(key),
            });
        }
        if self.profile.chunks
            && self.random.percent(40)
            && let Some((record, operation)) = self.some_chunk_work(at, life)
        {
            return Wish::File(record, operation);
        }
        Wish::Names(match self.random.below(20) {
            0..4 => Asked::Create(key),
            4..6 => Asked::Remove(key),
            6..10 => Asked::Lookup(key),
            10..14 => self.some_rename(key),
            14 => self.some_link(key).unwrap_or(Asked::Lookup(key)),
            _ => match self.some_file_work(at, life) {
                Some((record, operation)) => return Wish::File(record, operation),
                None => Asked::Lookup(key),
            },
        })
    }

    fn some_directory(&mut self) -> InodeId {
        self.directories[self.random.below(self.directories.len() as u64) as usize]
    }

    /// A directory or a file that all use, and that is not known yet.
    fn missing(&self) -> Option<Key> {
        if self.directories.len() < DIRECTORIES {
            return Some((InodeId::ROOT, WORKPLACE + self.directories.len() as u8));
        }
        if self.profile.works && self.files.len() < FILES {
            return Some((InodeId::ROOT, FILE + self.files.len() as u8));
        }
        let wants = self.profile.chunks && self.chunked.len() < CHUNKED_FILES;
        wants.then(|| (InodeId::ROOT, CHUNKED + self.chunked.len() as u8))
    }

    /// Renames the name to another one of its family, mostly in another directory.
    fn some_rename(&mut self, from: Key) -> Asked {
        let to = (self.some_directory(), from.1 ^ self.random.below(2) as u8);
        if to == from {
            return Asked::Lookup(from);
        }
        let (no_replace, exchange) = match self.random.below(6) {
            0 => (true, false),
            1 => (false, true),
            _ => (false, false),
        };
        Asked::Rename { from, to, no_replace, exchange }
    }

    /// Links an inode that was seen lately in the family of the name.
    fn some_link(&mut self, to: Key) -> Option<Asked> {
        let seen = self.linked.get(&(to.1 / 2)).filter(|_| !is_directory(to.1))?;
        let id = *seen.get(self.random.below(seen.len() as u64) as usize)?;
        Some(Asked::Link { id, to })
    }

    /// Operations as requests of a client.
    fn pose(
        &mut self,
        at: usize,
        (node, incarnation): (NodeNo, Incarnation),
        asks: Vec<Operation>,
    ) -> Vec<(Request, Option<Answer>)> {
        let client = &mut self.clients[at];
        let oldest = client.number + 1;
        let pose = |operation| {
            client.number += 1;
            let request = Request {
                client: client.id,
                number: client.number,
                oldest,
                node,
                incarnation,
                epoch: zazen_namespace::Epoch(0),
                credentials: Credentials { uid: 0, gid: 0, groups: Vec::new() },
                operation,
                place: None,
                knows_chunks: Some(true),
            };
            (request, None)
        };
        asks.into_iter().map(pose).collect()
    }

    /// An answer comes.
    pub(crate) fn answered(&mut self, at: usize, response: Response) {
        let now_ns = self.schedule.now_ns();
        let client = &mut self.clients[at];
        let Some(call) = &mut client.call else { return };
        let asked = call.requests.iter_mut().find(|(request, _)| request.number == response.number);
        let Some((_, answer)) = asked else { return };
        if let Answer::Moved(_) = response.answer {
            call.repeats_ns = call.repeats_ns.min(now_ns + 30 * MS);
            return;
        }
        answer.get_or_insert(response.answer);
        if call.requests.iter().any(|(_, answer)| answer.is_none()) {
            return;
        }
        let answers = call.requests.iter_mut().filter_map(|(_, answer)| answer.take()).collect();
        let life = call.requests.first().map(|(request, _)| (request.node, request.incarnation));
        let answer = match (call.errand.take(answers, &mut client.layouts), life) {
            (Next::Done(answer), _) => answer,
            (Next::Ask(asks), Some(life)) => {
                let requests = self.pose(at, life, asks);
                if let Some(call) = &mut self.clients[at].call {
                    (call.requests, call.repeats_ns) = (requests, now_ns);
                }
                return;
            }
            (Next::Ask(_), None) => return,
        };
        self.take(at, answer, now_ns);
    }

    /// A call is answered.
    fn take(&mut self, at: usize, answer: Answer, now_ns: u64) {
        let Some(call) = &self.clients[at].call else { return };
        let (record, operation) = (call.record, call.errand.operation().clone());
        match &answer {
            Answer::Ended => return self.give_up(at),
            Answer::Refused(refused) if refused.errno == Errno::EIO && !self.spoiled => {
                return self.fail(format!("damaged: {operation:?}, though no disk went bad"));
            }
            _ => {}
        }
        let is_taken = match record {
            Some(record @ Record::Names(..)) => self.take_names(record, &operation, &answer, now_ns),
            Some(Record::Chunks(..)) => self.take_chunks(at, record, &operation, &answer, now_ns),
            None if self.is_of_chunks(at, &operation) => {
                self.take_chunks(at, record, &operation, &answer, now_ns)
            }
            record => self.take_file(at, record, &operation, &answer, now_ns),
        };
        match is_taken {
            Taken::Right => {
                let calm = self.calm;
                let client = &mut self.clients[at];
                client.call = None;
                client.calm_answers += u64::from(calm);
            }
            Taken::Unknown => {
                self.tell(|| format!("client {at} is refused: {answer:?}"));
                self.give_up(at);
            }
            Taken::Wrong => self.fail(format!("answer: {answer:?} to {operation:?}")),
        }
    }

    fn take_names(&mut self, record: Record, operation: &Operation, answer: &Answer, now_ns: u64) -> Taken {
        let seen = match answer {
            Answer::Entry(entry) => Seen::There(entry.id),
            Answer::Done => Seen::Done,
            Answer::Refused(refused) => match (refused.errno, operation) {
                (Errno::EEXIST, _) => Seen::Exists,
                (Errno::ENOENT, _) | (Errno::ESTALE, Operation::Link(_)) => Seen::Missing,
                // All directories that are renamed or removed are empty, and files are no
                // directories.
                (Errno::ENOTEMPTY | Errno::EISDIR | Errno::ENOTDIR | Errno::EINVAL, _) => {
                    return Taken::Wrong;
                }
                _ => return Taken::Unknown,
            },
            _ => return Taken::Wrong,
        };
        self.tell(|| format!("{record:?}: {seen:?}"));
        let Some(key) = self.history.asked(record).map(Asked::key) else { return Taken::Wrong };
        self.history.end(record, now_ns, seen);
        if seen == Seen::Missing {
            self.made.remove(&key.1);
        }
        let Seen::There(id) = seen else { return Taken::Right };
        // A directory becomes a place to work in; what is in it shows whether it was ever lost.
        let known = match key.1 {
            CHUNKED.. => &mut self.chunked,
            FILE.. => &mut self.files,
            _ => &mut self.directories,
        };
        if key.1 >= WORKPLACE && !known.contains(&id) {
            known.push(id);
        } else if key.1 < DIRECTORY && self.profile.works {
            let seen = self.linked.entry(key.1 / 2).or_default();
            seen.retain(|other| *other != id);
            seen.push(id);
            seen.drain(..seen.len().saturating_sub(LINKED_MAX));
        }
        Taken::Right
    }
}
