//! Brings operations to the primaries of their partitions, and repeats them until they are
//! answered.
//!
//! A request keeps its number when it is repeated, so it is executed once, whatever is lost on the
//! way. After [`PATIENCE`] its outcome is unknown, and the caller is told so.

use crate::handles::{Session, lock};
use crate::node::NamespaceNode;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use zazen_core::Credentials;
use zazen_namespace::operation::{Answer, GetMany, MANY_MAX, Operation, Request, Response};
use zazen_namespace::service::{ASKS_MAX, Requests, Responses, namespace_fn};
use zazen_namespace::split::{Errand, Next};
use zazen_namespace::{Attributes, Errno, InodeId, NodeNo, PartitionNo};
use zazen_wire::Message;

/// How long an operation may take, repeats and all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How long a primary may take for a batch before it is asked again.
const ROUND: Duration = Duration::from_secs(6);
/// Between two tries, at first and at most.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Root, for what the daemon itself asks.
pub(crate) fn root() -> Credentials {
    Credentials { uid: 0, gid: 0, groups: Vec::new() }
}

/// Whether the operation may give a file the node that holds its bytes.
fn gives_place(operation: &Operation) -> bool {
    match operation {
        Operation::Create(create) => create.open.is_some(),
        Operation::Open(open) => open.mode.write || open.mode.truncate,
        _ => false,
    }
}

impl NamespaceNode {
    /// Asks operations; one answer for each, in order. Those on one partition are executed in this
    /// order. [`Answer::Moved`] and [`Answer::Split`] do not come back.
    pub(crate) fn route(&self, asks: Vec<(Credentials, Operation)>) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = vec![None; asks.len()];
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
            let mut given = self.route_to_partitions(asks.into_iter().flatten().collect()).into_iter();
            let mut layouts = lock(&self.layouts);
            let mut left = Vec::new();
            for ((at, credentials, mut errand, _), count) in errands.into_iter().zip(counts) {
                match errand.take(given.by_ref().take(count).collect(), &mut layouts) {
                    Next::Ask(asks) => left.push((at, credentials, errand, asks)),
                    Next::Done(answer) => answers[at] = Some(answer),
                }
            }
            errands = left;
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Answer::refused(Errno::EIO))).collect()
    }

    /// Asks the partitions; one answer for each, in order.
    fn route_to_partitions(&self, asks: Vec<(Credentials, Operation)>) -> Vec<Answer> {
        if asks.is_empty() {
            return Vec::new();
        }
        let Ok((node, incarnation)) = self.identity() else {
            return asks.iter().map(|_| Answer::refused(Errno::ETIMEDOUT)).collect();
        };
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
                operation,
            })
            .collect();
        slot.number += requests.len() as u64;
        let (answers, known) = self.until_answered(node, requests);
        // A request whose outcome is unknown may still come: its slot is not used again.
        if known {
            self.slots.give(slot);
        }
        answers
    }

    fn until_answered(&self, me: NodeNo, mut requests: Vec<Request>) -> (Vec<Answer>, bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
        let mut pause = PAUSE;
        loop {
            let map = self.map();
            let mut groups: BTreeMap<NodeNo, Vec<usize>> = BTreeMap::new();
            for (at, request) in requests.iter_mut().enumerate() {
                if answers[at].is_some() {
                    continue;
                }
                request.epoch = map.epoch;
                match map.partitions.get(request.operation.partition().0 as usize) {
                    Some(seat) => groups.entry(seat.primary).or_default().push(at),
                    // No such partition: an inode's number that was never given out.
                    None if !map.partitions.is_empty() => answers[at] = Some(Answer::refused(Errno::ESTALE)),
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
                    self.execute(batch, left)
                } else {
                    let address = map.nodes.iter().find(|node| node.node == primary);
                    address.map(|node| self.forward(&node.addr, batch, left)).unwrap_or_default()
                };
                for (at, response) in group.iter().zip(responses) {
                    let again = match &response.answer {
                        Answer::Moved(_) => true,
                        Answer::Refused(refused) => refused.errno == Errno::ETIMEDOUT,
                        _ => false,
                    };
                    if !again && response.number == requests[*at].number {
                        answers[*at] = Some(response.answer);
                    }
                }
            }
            let open = answers.iter().any(Option::is_none);
            let late = Instant::now() >= deadline || self.stopping.load(std::sync::atomic::Ordering::Relaxed);
            if !open || late || self.driver.broken().is_some() {
                let unknown = || Answer::refused(Errno::ETIMEDOUT);
                return (answers.into_iter().map(|answer| answer.unwrap_or_else(unknown)).collect(), !open);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Asks another daemon. No responses if it does not answer.
    fn forward(&self, address: &str, requests: Vec<Request>, patience: Duration) -> Vec<Response> {
        let asked = requests.len();
        let payload = Requests { requests }.encode();
        let reply = self.links.call(address, namespace_fn::REQUEST, &payload, &[], patience);
        let responses = reply.and_then(|reply| Responses::decode(&reply.payload));
        match responses {
            Ok(responses) if responses.responses.len() == asked => responses.responses,
            Ok(_) => Vec::new(),
            Err(error) => {
                tracing::debug!("namespace: requests to {address}: {error}");
                Vec::new()
            }
        }
    }

    /// Asks one operation.
    pub(crate) fn route_one(&self, credentials: Credentials, operation: Operation) -> Result<Answer, Errno> {
        match self.route(vec![(credentials, operation)]).pop() {
            Some(Answer::Refused(refused)) => Err(refused.errno),
            Some(answer) => Ok(answer),
            None => Err(Errno::EIO),
        }
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
