//! Brings operations to the primaries of their partitions, and repeats them until they are
//! answered.
//!
//! A request keeps its number when it is repeated, so it is executed once, whatever is lost on the
//! way. After [`PATIENCE`] its outcome is unknown, and the caller is told so. A node that could not
//! be reached for so long is tried for a moment only from then on (`away`).
//!
//! The life of this node may end meanwhile: its lease ran out while it was paused, or while the
//! others did not hear it. It then begins a new life, and what was not executed is asked anew in
//! it.

use crate::handles::{Session, lock};
use crate::links::Failed;
use crate::node::NamespaceNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zazen_core::{Credentials, Error, ErrorKind};
use zazen_namespace::operation::{Answer, GetMany, MANY_MAX, Operation, Request, Response};
use zazen_namespace::service::{ASKS_MAX, Requests, Responses, namespace_fn};
use zazen_namespace::split::{Errand, Next};
use zazen_namespace::{Attributes, Errno, Incarnation, InodeId, NodeNo, PartitionNo};
use zazen_wire::Message;

/// How long an operation may take, repeats and all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How long a primary may take for a batch before it is asked again.
const ROUND: Duration = Duration::from_secs(6);
/// Between two tries, at first and at most.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// How often it is looked whether this node has joined.
const JOIN_LOOK: Duration = Duration::from_millis(20);

/// An answer, and the life of this node in which it was asked.
pub(crate) type Routed = (Answer, Incarnation);

/// What came of a request.
#[derive(Clone)]
enum Outcome {
    Answered(Answer),
    /// The node's life has ended, and the request was not executed, or may be executed twice.
    Again,
}

/// Root, for what the daemon itself asks.
pub(crate) fn root() -> Credentials {
    Credentials { uid: 0, gid: 0, groups: Vec::new() }
}

/// Whether the operation may give a file the node that holds its bytes.
fn gives_place(operation: &Operation) -> bool {
    match operation {
        Operation::Create(create) => create.open.is_some(),
        Operation::Open(open) => open.mode.write || open.mode.truncate,
        Operation::OpenChunk(open) => open.make,
        _ => false,
    }
}

/// Whether nothing is lost or seen twice if the operation is executed in a life that has ended, and
/// again in the next one.
fn may_come_twice(operation: &Operation) -> bool {
    match operation {
        // The first open ended with its life.
        Operation::Open(_)
        | Operation::OpenChunk(_)
        | Operation::Commit(_)
        | Operation::Recommit(_)
        | Operation::SetAttributes(_)
        | Operation::Lock(_)
        | Operation::Copied(_)
        | Operation::TakeOver(_) => true,
        Operation::Create(create) => create.open.is_some() && !create.exclusive,
        Operation::SetXattr(set) => set.value.is_some() && !set.create && !set.replace,
        other => other.only_reads(),
    }
}

/// The answer to one operation.
fn only_of(mut answers: Vec<Routed>) -> Result<Answer, Errno> {
    match answers.pop() {
        Some((Answer::Refused(refused), _)) => Err(refused.errno),
        Some((answer, _)) => Ok(answer),
        None => Err(Errno::EIO),
    }
}

impl NamespaceNode {
    /// Who this node is, as soon as it has joined the others, and has begun another life than
    /// `ended`. Waits until `deadline`: a life that has ended is followed by the next one within
    /// moments. Fails at once if the node answers nobody any more.
    pub(crate) fn joined(
        &self,
        deadline: Instant,
        ended: Option<Incarnation>,
    ) -> zazen_core::Result<(NodeNo, Incarnation)> {
        loop {
            let identity = self.identity();
            if identity.as_ref().is_ok_and(|(_, life)| Some(*life) != ended) {
                return identity;
            }
            let is_over = || self.driver.broken().is_some() || self.is_gone();
            let gives_up = self.stopping.load(Ordering::Relaxed) || is_over();
            if gives_up || Instant::now() >= deadline {
                let why = "the others count this node as lost, and it has not joined them again";
                let ended = |_| Error::new(ErrorKind::Unavailable, format!("{}: {why}", self.told.name));
                return Err(identity.map_or_else(|error| error, ended));
            }
            std::thread::sleep(JOIN_LOOK);
        }
    }

    /// The same, for as long as an operation may take.
    pub(crate) fn joined_soon(&self) -> Result<(NodeNo, Incarnation), Errno> {
        self.joined(Instant::now() + PATIENCE, None).map_err(|_| Errno::ETIMEDOUT)
    }

    /// Asks operations; one answer for each, in order. Those on one partition are executed in this
    /// order. [`Answer::Moved`], [`Answer::Split`] and [`Answer::Ended`] do not come back.
    pub(crate) fn route(&self, asks: Vec<(Credentials, Operation)>) -> Vec<Answer> {
        self.route_in_lives(asks).into_iter().map(|(answer, _)| answer).collect()
    }

    /// The same, with the life in which each was answered: what is opened is open for this life.
    pub(crate) fn route_in_lives(&self, asks: Vec<(Credentials, Operation)>) -> Vec<Routed> {
        self.route_until(asks, None)
    }

    /// The same. Until `deadline`, or for as long as each step of an operation may take.
    fn route_until(&self, asks: Vec<(Credentials, Operation)>, deadline: Option<Instant>) -> Vec<Routed> {
        let mut answers: Vec<Option<Routed>> = vec![None; asks.len()];
        let mut errands = Vec::with_capacity(asks.len());
        let layouts = lock(&self.layouts);
        for (at, (credentials, operation)) in asks.into_iter().enumerate() {
            let (errand, first) = Errand::new(operation, &layouts);
            errands.push((at, credentials, errand, first));
        }
        drop(layouts);
        while !errands.is_empty() {
            let of_one = |(_, credentials, _, asks): &mut (usize, Credentials, Errand, Vec<Operation>)| {
                let asks = std::mem::take(asks);
                let count = asks.len();
                (asks.into_iter().map(|ask| (credentials.clone(), ask)).collect::<Vec<_>>(), count)
            };
            let (asks, counts): (Vec<_>, Vec<_>) = errands.iter_mut().map(of_one).unzip();
            let asks = asks.into_iter().flatten().collect();
            let until = deadline.unwrap_or_else(|| Instant::now() + PATIENCE);
            let mut given = self.route_to_partitions(asks, None, until).into_iter();
            let mut layouts = lock(&self.layouts);
            let mut left = Vec::new();
            for ((at, credentials, mut errand, _), count) in errands.into_iter().zip(counts) {
                let (given, lives): (Vec<_>, Vec<_>) = given.by_ref().take(count).unzip();
                // What is granted is the last answer of an errand.
                let life = lives.first().copied().unwrap_or_default();
                match errand.take(given, &mut layouts) {
                    Next::Ask(asks) => left.push((at, credentials, errand, asks)),
                    Next::Done(answer) => answers[at] = Some((answer, life)),
                }
            }
            errands = left;
        }
        let none = || (Answer::refused(Errno::EIO), Incarnation::default());
        answers.into_iter().map(|answer| answer.unwrap_or_else(none)).collect()
    }

    /// Asks an operation that is about what one life of this node has; done if that life has ended.
    pub(crate) fn route_of_life(&self, life: Incarnation, operation: Operation) -> Answer {
        let deadline = Instant::now() + PATIENCE;
        let mut answers = self.route_to_partitions(vec![(root(), operation)], Some(life), deadline);
        answers.pop().map_or_else(|| Answer::refused(Errno::EIO), |(answer, _)| answer)
    }

    /// Asks the partitions; one answer for each, in order. With `only`, all count as done when this
    /// life has ended.
    fn route_to_partitions(
        &self,
        asks: Vec<(Credentials, Operation)>,
        only: Option<Incarnation>,
        deadline: Instant,
    ) -> Vec<Routed> {
        let mut answers: Vec<Option<Routed>> = vec![None; asks.len()];
        let mut open: Vec<(usize, (Credentials, Operation))> = asks.into_iter().enumerate().collect();
        let mut ended = None;
        while !open.is_empty() {
            let Ok((node, life)) = self.joined(deadline, ended) else { break };
            if only.is_some_and(|only| only != life) {
                open.iter().for_each(|(at, _)| answers[*at] = Some((Answer::Done, life)));
                break;
            }
            let asks = open.iter().map(|(_, ask)| ask.clone()).collect();
            let outcomes = self.route_in_life(node, life, asks, deadline);
            let mut again = Vec::new();
            for ((at, ask), outcome) in open.into_iter().zip(outcomes) {
                match outcome {
                    Outcome::Answered(answer) => answers[at] = Some((answer, life)),
                    Outcome::Again => again.push((at, ask)),
                }
            }
            open = again;
            ended = Some(life);
        }
        let unknown = || (Answer::refused(Errno::ETIMEDOUT), Incarnation::default());
        answers.into_iter().map(|answer| answer.unwrap_or_else(unknown)).collect()
    }

    fn route_in_life(
        &self,
        node: NodeNo,
        incarnation: Incarnation,
        asks: Vec<(Credentials, Operation)>,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let epoch = self.map().epoch;
        let mut slot = self.slots.take(node, incarnation);
        let oldest = slot.number;
        let requests: Vec<Request> = (oldest..)
            .zip(asks)
            .map(|(number, (credentials, operation))| Request {
                client: slot.client,
                number,
                oldest,
                node,
                incarnation,
                epoch,
                credentials,
                place: if gives_place(&operation) { self.place() } else { None },
                knows_chunks: Some(true),
                operation,
            })
            .collect();
        slot.number += requests.len() as u64;
        let (answers, known) = self.until_answered(node, requests, deadline);
        // A request whose outcome is unknown may still come: its slot is not used again.
        if known {
            self.slots.give(slot);
        }
        answers
    }

    fn until_answered(
        &self,
        me: NodeNo,
        mut requests: Vec<Request>,
        deadline: Instant,
    ) -> (Vec<Outcome>, bool) {
        let mut answers: Vec<Option<Outcome>> = vec![None; requests.len()];
        // Which may have been executed by a try that was not answered.
        let mut perhaps = vec![false; requests.len()];
        let mut pause = PAUSE;
        let begun = Instant::now();
        let mut is_known = true;
        loop {
            let map = self.map();
            // To whom no connection could be made just now.
            let mut unreached = BTreeSet::new();
            let mut groups: BTreeMap<NodeNo, Vec<usize>> = BTreeMap::new();
            for (at, request) in requests.iter_mut().enumerate() {
                if answers[at].is_some() {
                    continue;
                }
                request.epoch = map.epoch;
                match map.partitions.get(request.operation.partition().0 as usize) {
                    Some(seat) => groups.entry(seat.primary).or_default().push(at),
                    // No such partition: an inode's number that was never given out.
                    None if !map.partitions.is_empty() => {
                        answers[at] = Some(Outcome::Answered(Answer::refused(Errno::ESTALE)));
                    }
                    None => {}
                }
            }
            // The buckets of some directories are more than one call may ask.
            let parts = groups
                .iter()
                .flat_map(|(primary, group)| group.chunks(ASKS_MAX).map(|part| (*primary, part)));
            for (primary, group) in parts {
                let batch: Vec<Request> = group.iter().map(|at| requests[*at].clone()).collect();
                let left = deadline.saturating_duration_since(Instant::now()).min(ROUND);
                let responses = if primary == me {
                    self.execute(batch, left).into_iter().map(Some).collect()
                } else {
                    let address = map.nodes.iter().find(|node| node.node == primary);
                    match address.and_then(|node| self.forward(&node.addr, batch, left)) {
                        Some(responses) => {
                            self.away.is_reached(primary);
                            responses
                        }
                        None => {
                            unreached.insert(primary);
                            if self.away.gives_up(primary, begun.elapsed()) {
                                for at in group {
                                    let unknown = Answer::refused(Errno::ETIMEDOUT);
                                    answers[*at] = Some(Outcome::Answered(unknown));
                                    is_known &= !perhaps[*at];
                                }
                            }
                            Vec::new()
                        }
                    }
                };
                for (at, response) in group.iter().zip(responses) {
                    let answer = response.filter(|response| response.number == requests[*at].number);
                    match answer.map(|response| response.answer) {
                        None => perhaps[*at] = true,
                        Some(Answer::Moved(moved)) => perhaps[*at] |= moved.perhaps,
                        Some(Answer::Refused(refused)) if refused.errno == Errno::ETIMEDOUT => {
                            perhaps[*at] = true;
                        }
                        Some(Answer::Ended) => {
                            let operation = &requests[*at].operation;
                            answers[*at] = Some(match operation {
                                // What the life had open ended with it.
                                Operation::Release(_) => Outcome::Answered(Answer::Done),
                                _ if perhaps[*at] && !may_come_twice(operation) => {
                                    Outcome::Answered(Answer::refused(Errno::ETIMEDOUT))
                                }
                                _ => Outcome::Again,
                            });
                        }
                        Some(answer) => answers[*at] = Some(Outcome::Answered(answer)),
                    }
                }
            }
            let open = answers.iter().any(Option::is_none);
            let late = Instant::now() >= deadline || self.stopping.load(Ordering::Relaxed);
            if !open || late || self.driver.broken().is_some() {
                if open && begun.elapsed() >= PATIENCE / 2 {
                    unreached.into_iter().for_each(|node| self.away.waited_in_vain(node));
                }
                let unknown = || Outcome::Answered(Answer::refused(Errno::ETIMEDOUT));
                return (
                    answers.into_iter().map(|answer| answer.unwrap_or_else(unknown)).collect(),
                    is_known && !open,
                );
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Asks another daemon. `None` if there is no connection to it, so that no request came there;
    /// `None` for each request that may have come there and was not answered.
    fn forward(
        &self,
        address: &str,
        requests: Vec<Request>,
        patience: Duration,
    ) -> Option<Vec<Option<Response>>> {
        let asked = requests.len();
        let payload = Requests { requests }.encode();
        let called = self.links.try_call(address, namespace_fn::REQUEST, &payload, &[], patience);
        let reply = match called {
            Err(Failed::Before(error)) => {
                tracing::debug!("namespace: requests to {address}: {error}");
                return None;
            }
            Err(Failed::Meanwhile(error)) => Err(error),
            Ok(reply) => Ok(reply),
        };
        Some(match reply.and_then(|reply| Responses::decode(&reply.payload)) {
            Ok(responses) if responses.responses.len() == asked => {
                responses.responses.into_iter().map(Some).collect()
            }
            Ok(_) => vec![None; asked],
            Err(error) => {
                tracing::debug!("namespace: requests to {address}: {error}");
                vec![None; asked]
            }
        })
    }

    /// Asks one operation.
    pub(crate) fn route_one(&self, credentials: Credentials, operation: Operation) -> Result<Answer, Errno> {
        only_of(self.route_in_lives(vec![(credentials, operation)]))
    }

    /// The same, until `deadline`.
    pub(crate) fn route_one_until(
        &self,
        credentials: Credentials,
        operation: Operation,
        deadline: Instant,
    ) -> Result<Answer, Errno> {
        only_of(self.route_until(vec![(credentials, operation)], Some(deadline)))
    }

    /// An inode's attributes as the metadata has them.
    pub(crate) fn attributes(&self, id: InodeId) -> Result<Attributes, Errno> {
        let ask = Operation::GetAttributes(zazen_namespace::operation::Inode { id });
        match self.route_one(root(), ask)? {
            Answer::Found(found) => Ok(found.attributes),
            _ => Err(Errno::EIO),
        }
    }

    /// The attributes of many inodes, in their order: `None` for one that is gone, for certain.
    pub(crate) fn attributes_of(&self, ids: &[InodeId]) -> Vec<Result<Option<Attributes>, Errno>> {
        let mut groups: BTreeMap<PartitionNo, Vec<usize>> = BTreeMap::new();
        for (at, id) in ids.iter().enumerate() {
            groups.entry(id.partition()).or_default().push(at);
        }
        let parts: Vec<&[usize]> = groups.values().flat_map(|group| group.chunks(MANY_MAX)).collect();
        let ask = |part: &&[usize]| {
            let ids = part.iter().map(|at| ids[*at]).collect();
            (root(), Operation::GetMany(GetMany { ids }))
        };
        let answers = self.route(parts.iter().map(ask).collect());
        let mut found = vec![Err(Errno::EIO); ids.len()];
        for (part, answer) in parts.iter().zip(answers) {
            match answer {
                Answer::Many(many) if many.attributes.len() == part.len() => {
                    part.iter().zip(many.attributes).for_each(|(at, one)| found[*at] = Ok(one));
                }
                Answer::Refused(refused) => part.iter().for_each(|at| found[*at] = Err(refused.errno)),
                _ => {}
            }
        }
        found
    }

    /// `host:port` of a node's daemon.
    pub(crate) fn address(&self, node: NodeNo) -> Option<String> {
        self.map().nodes.iter().find(|view| view.node == node).map(|view| view.addr.clone())
    }

    /// How many files other programs of this node have open.
    pub(crate) fn session(&self, number: u64) -> std::sync::Arc<Session> {
        std::sync::Arc::clone(lock(&self.sessions).entry(number).or_default())
    }
}
