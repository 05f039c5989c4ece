//! Clients: each asks one thing at a time about a few names, repeats what is not answered, and
//! gives up what its node's life ended with.

use super::caller::Ongoing;
use super::check::{Asked, Seen};
use super::net::Packet;
use super::world::{Event, World};
use crate::scheduler::MS;
use zazen_core::Credentials;
use zazen_namespace::operation::{Answer, At, Create, MakeDirectory, Operation, Request, Response};
use zazen_namespace::split::{Errand, Next};
use zazen_namespace::{Errno, Incarnation, InodeId, Kind, Name, NodeNo};
use zazen_wire::Message;

/// Names of directories begin here; those of files are below.
const DIRECTORY: u8 = 4;
const NAMES: u64 = 6;
/// Directories that clients work in, and the first name of such a one.
const DIRECTORIES: usize = 3;
const WORKPLACE: u8 = 100;

fn name(of: u8) -> Option<Name> {
    let text = if of >= DIRECTORY { format!("d{of}") } else { format!("f{of}") };
    Name::new(text.as_bytes()).ok()
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
        let directory = self.directories[self.random.below(self.directories.len() as u64) as usize];
        let mut of = self.random.below(NAMES) as u8;
        let mut directory = directory;
        let mut asked = match self.random.below(10) {
            0..4 => Asked::Create,
            4..7 => Asked::Remove,
            _ => Asked::Lookup,
        };
        // The first client makes the directories that all work in; nobody removes them.
        if at == 0 && self.directories.len() < DIRECTORIES {
            (directory, of, asked) = (InodeId::ROOT, WORKPLACE + self.directories.len() as u8, Asked::Create);
            if self.made.contains(&of) {
                asked = Asked::Lookup;
            }
            self.made.insert(of);
        }
        let key = (directory, of);
        let Some(name) = name(of) else { return };
        let at_name = At { directory, name: name.clone() };
        let operation = match (asked, of >= DIRECTORY) {
            (Asked::Create, true) => Operation::MakeDirectory(MakeDirectory { directory, name, mode: 0o755 }),
            (Asked::Create, false) => Operation::Create(Create {
                directory,
                name,
                kind: Kind::File,
                mode: 0o644,
                device: 0,
                target: Vec::new(),
                open: None,
                exclusive: true,
                copies: 0,
            }),
            (Asked::Remove, true) => Operation::RemoveDirectory(at_name),
            (Asked::Remove, false) => Operation::Unlink(at_name),
            (Asked::Lookup, _) => Operation::Lookup(at_name),
        };
        let now_ns = self.schedule.now_ns();
        let call = self.history.begin(key, asked, now_ns);
        let (errand, asks) = Errand::new(operation, &self.clients[at].layouts);
        let requests = self.pose(at, (node, incarnation), asks);
        self.clients[at].call = Some(Ongoing { key, call, errand, requests, repeats_ns: 0 });
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
        let (key, index) = (call.key, call.call);
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
        let Some(call) = &self.clients[at].call else { return };
        let seen = match answer {
            Answer::Entry(entry) => Seen::There(entry.id),
            Answer::Done => Seen::Removed,
            Answer::Refused(refused) => match refused.errno {
                Errno::EEXIST => Seen::Exists,
                Errno::ENOENT => Seen::Missing,
                Errno::EIO if !self.spoiled => {
                    let what = format!("damaged: {:?}, though no disk went bad", call.errand.operation());
                    return self.fail(what);
                }
                other => {
                    self.tell(|| format!("client {at} is refused: {other}"));
                    self.give_up(at);
                    return;
                }
            },
            Answer::Ended => {
                self.give_up(at);
                return;
            }
            other => {
                let what = format!("answer: {other:?} to {:?}", call.errand.operation());
                return self.fail(what);
            }
        };
        self.tell(|| format!("client {at}: {key:?} call {index}: {seen:?}"));
        self.history.end(key, index, now_ns, seen);
        if seen == Seen::Missing {
            self.made.remove(&key.1);
        }
        let calm = self.calm;
        let client = &mut self.clients[at];
        client.call = None;
        client.calm_answers += u64::from(calm);
        // A directory becomes a place to work in; what is in it shows whether it was ever lost.
        if let Seen::There(id) = seen
            && key.1 >= WORKPLACE
            && !self.directories.contains(&id)
        {
            self.directories.push(id);
        }
    }
}
