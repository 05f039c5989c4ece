//! Who may say what: each message of another node is heard only from a node whose part it is.
//!
//! The driver has seen a proof of the sender's key and address. Everything else that an envelope
//! says is checked against the newest map that this node knows. A refused message is as good as a
//! lost one, which every sender allows for: so a node whose map is old misses messages of new
//! primaries and new stewards until it has the newer map, for which it asks at once.
//!
//! | message | heard from |
//! |---|---|
//! | `Renew` | every node: it asks for its lease by its key, and for its place in the map |
//! | `News` | stewards; while this node has no lease, also its seeds, which it asks then |
//! | `Granted` | stewards |
//! | `Propose` | a member, for itself: its own end, the backups of its partitions |
//! | `Unneeded` | the primary of the inode's partition |
//! | `Append`, `Piece` | the partition's primary |
//! | `Appended`, `Behind`, `Taken` | members; the primary takes them from its followers only |
//! | `Between` | the primary of the partition that tells |
//! | `Vote`, `Voted`, `Store`, `Stored` | stewards; while this node has no lease, all members |
//! | `Stored` | also the node that the leader is about to appoint |
//!
//! Without a lease a node hears more, because it must find the others again: stewards may have been
//! replaced while it was away.

use super::Shared;
use crate::map::{Change, Member, State};
use crate::peer::{Envelope, Message};
use crate::{Epoch, Incarnation, NodeNo, PartitionNo};

/// Who a message is from.
pub(crate) struct Sender {
    pub(crate) node: NodeNo,
    pub(crate) life: Incarnation,
    /// Whether it is the member of the map that it says to be.
    is_member: bool,
    /// Whether the operator named it as one to ask for the map.
    is_seed: bool,
}

impl Shared {
    /// Who sent an envelope.
    ///
    /// A number belongs to one key for good. A first node whose disk was replaced thinks that it
    /// has the number of the node before it: it is a stranger until it is told its own number.
    pub(crate) fn sender(&self, envelope: &Envelope) -> Sender {
        let is_it = |member: &Member| match member.key {
            // A first node of a new namespace is known by its address until it comes.
            0 => member.address == envelope.address,
            key => key == envelope.key && member.state != State::Gone,
        };
        let is_member = self.map.member(envelope.from).is_some_and(is_it);
        Sender {
            node: envelope.from,
            life: envelope.incarnation,
            is_member,
            is_seed: self.config.seeds.contains(&envelope.address),
        }
    }

    /// This node, for what it tells itself.
    pub(crate) fn self_as_sender(&self) -> Sender {
        let (node, life) = (self.me, self.incarnation);
        Sender { node, life, is_member: true, is_seed: false }
    }

    fn is_primary(&self, node: NodeNo, partition: PartitionNo) -> bool {
        self.map.keepers(partition).is_some_and(|keepers| keepers.primary == node)
    }

    /// Whether the sender may say a message that is not of a primary to its backup. `is_steward`:
    /// by the map that this node stored as a steward.
    pub(crate) fn may_say(&self, sender: &Sender, message: &Message, is_steward: bool) -> bool {
        let is_member = sender.is_member;
        let is_steward = is_steward || self.map.stewards.contains(&sender.node);
        let is_lost = !self.may_answer();
        match message {
            Message::News(_) => is_member && is_steward || is_lost && sender.is_seed,
            _ if !is_member => false,
            Message::Granted(_) => is_steward,
            Message::Propose(propose) => is_of(&propose.change, sender.node),
            Message::Unneeded(unneeded) => self.is_primary(sender.node, unneeded.id.partition()),
            Message::Between(between) => self.is_primary(sender.node, between.from),
            Message::Appended(_) | Message::Behind(_) | Message::Taken(_) => true,
            Message::Vote(_) | Message::Voted(_) | Message::Store(_) | Message::Stored(_) => {
                is_steward || is_lost
            }
            Message::Append(_) | Message::Piece(_) | Message::Renew(_) => false,
        }
    }

    /// Whether the sender may send records of this epoch of a partition. `follows`: whether this
    /// node takes its records of this epoch already.
    pub(crate) fn may_lead(
        &self,
        sender: &Sender,
        partition: PartitionNo,
        epoch: Epoch,
        follows: bool,
    ) -> bool {
        let Some(keepers) = self.map.keepers(partition) else { return false };
        let is_primary = keepers.primary == sender.node;
        // The map of the sender may be the older one: then its records still count.
        sender.is_member
            && (epoch == keepers.epoch && is_primary || epoch < keepers.epoch && (is_primary || follows))
    }
}

/// Whether a node may ask for this change of the map. It enters by its `Renew`, and the stewards'
/// leader alone appoints stewards.
fn is_of(change: &Change, node: NodeNo) -> bool {
    match change {
        Change::Stop(stop) => stop.node == node,
        Change::Add(keep) | Change::Drop(keep) | Change::Hand(keep) => keep.primary == node,
        Change::Leave(leave) => leave.node == node,
        Change::Enter(_) | Change::Appoint(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InodeId;
    use crate::map::{Appoint, Enter, Genesis, Keep, Leave, Map, Stop};
    use crate::node::{Action, Config, Event, Files, Node, Position, Start};
    use crate::partition::{PeerMessage, Settings};
    use crate::peer::{
        Append, Between, Granted, News, Piece, Propose, Renew, Store, Unneeded, Value, Vote, Voted,
    };
    use zazen_wire::Message as _;

    const MS: u64 = 1_000_000;
    const NAMESPACE: u128 = 77;
    const PARTITIONS: u32 = 16;

    /// A node, and a disk that does all at once.
    struct Host {
        node: Node,
        now_ns: u64,
        dropped: Vec<(InodeId, u64)>,
        sent: Vec<(String, Message)>,
    }

    /// Who says something: number, key, address.
    #[derive(Clone, Copy, Debug)]
    struct Who(u32, u128, &'static str);

    /// The first node, and what the others of [`genesis`] may be.
    const FIRST: Who = Who(1, 5, "a:1");
    const SECOND: Who = Who(2, 6, "b:1");

    fn genesis() -> Genesis {
        Genesis {
            namespace: NAMESPACE,
            settings: Settings { partitions: PARTITIONS, ..Settings::default() },
            replicas: 1,
            synchronous: 0,
            addresses: ["a:1", "b:1", "c:1"].map(str::to_owned).to_vec(),
            stewards: 1,
        }
    }

    impl Host {
        /// The first node of [`genesis`], which is the only steward.
        fn first() -> Host {
            let start = Start::Format { key: FIRST.1, genesis: genesis() };
            Host::open(FIRST.2, start, &[])
        }

        fn open(address: &str, start: Start, seeds: &[&str]) -> Host {
            let seeds = seeds.iter().map(|seed| (*seed).to_owned()).collect();
            let config = Config { seeds, ..Config::new(address) };
            let node = Node::open(config, &Files::default(), start, 1).expect("opens");
            let mut host = Host { node, now_ns: 1, dropped: Vec::new(), sent: Vec::new() };
            host.pass(1_000 * MS);
            host
        }

        fn settle(&mut self) {
            loop {
                let mut actions = Vec::new();
                self.node.flush(&mut actions);
                if actions.is_empty() {
                    return;
                }
                for action in actions {
                    match action {
                        Action::Append { token, .. }
                        | Action::Sync { token, .. }
                        | Action::Put { token, .. } => {
                            self.node.step(self.now_ns, 1, Event::Done { token, ok: true });
                        }
                        Action::Send { address, bytes } => {
                            let envelope = Envelope::decode(&bytes).expect("an envelope");
                            let messages = envelope.messages.into_iter();
                            self.sent.extend(messages.map(|message| (address.clone(), message)));
                        }
                        Action::DropObject { id, generation } => self.dropped.push((id, generation)),
                        Action::Broken { why } => panic!("{why}"),
                        Action::Reply { .. } | Action::Remove { .. } => {}
                    }
                }
            }
        }

        fn pass(&mut self, for_ns: u64) {
            let until_ns = self.now_ns + for_ns;
            self.settle();
            while self.now_ns < until_ns {
                self.now_ns = (self.now_ns + 10 * MS).min(until_ns);
                self.node.step(self.now_ns, 1, Event::Timer);
                self.settle();
            }
        }

        fn hears(&mut self, who: Who, epoch: Epoch, message: Message) {
            let Who(number, key, address) = who;
            let envelope = Envelope {
                namespace: NAMESPACE,
                from: NodeNo(number),
                key,
                incarnation: Incarnation(1),
                address: address.to_owned(),
                epoch,
                messages: vec![message],
            };
            self.node.step(self.now_ns, 1, Event::Peer { bytes: envelope.encode() });
            self.settle();
        }

        fn says(&mut self, who: Who, message: Message) {
            self.hears(who, Epoch(1), message);
        }

        fn map(&self) -> Map {
            self.node.map().clone()
        }

        /// A partition whose primary is this node.
        fn partition_of(&self, node: u32) -> PartitionNo {
            let is_its = |number: &u32| self.map().partitions[*number as usize].primary == NodeNo(node);
            PartitionNo((0..PARTITIONS).find(is_its).expect("each node has some"))
        }

        /// The first time it comes in, the second time it has its lease.
        fn renews(&mut self, who: Who) {
            for _ in 0..2 {
                self.says(who, Message::Renew(Renew { sent_ns: 1, weight: 1 }));
                self.pass(100 * MS);
            }
        }
    }

    fn later(mut map: Map) -> Map {
        map.epoch = Epoch(map.epoch.0 + 100);
        map
    }

    fn unneeded(partition: PartitionNo) -> Message {
        Message::Unneeded(Unneeded { id: InodeId::new(partition, 9), generation: 1 })
    }

    fn propose(change: Change) -> Message {
        Message::Propose(Propose { change })
    }

    /// What would harm the first node if it were heard.
    fn harm(host: &Host) -> Vec<Message> {
        let (map, life) = (host.map(), host.node.incarnation());
        let (partition, epoch) = (host.partition_of(1), Epoch(1 << 40));
        let map_of_mine = Map { stewards: vec![NodeNo(2)], ..later(map.clone()) };
        let value = Value { term: 1 << 40, index: 1 << 40, map: map_of_mine };
        let (term, round, committed_term, committed_index) = (1 << 40, 1, 1 << 40, 1 << 40);
        let (key, address) = (99, "z:1".to_owned());
        let keep = |node| Keep {
            partition,
            epoch: map.partitions[partition.0 as usize].epoch,
            primary: NodeNo(1),
            node: NodeNo(node),
            incarnation: Incarnation(1),
        };
        let position = Position { epoch: Epoch(1), index: 1 };
        let (previous, records, bytes) = (position, Vec::new(), vec![1]);
        vec![
            unneeded(partition),
            Message::News(News { map: later(map.clone()) }),
            Message::Granted(Granted { incarnation: life, sent_ns: u64::MAX / 2 }),
            Message::Store(Store { term, round, value: Some(value), committed_term, committed_index }),
            Message::Vote(Vote { term, trial: false, value_term: term, value_index: term }),
            Message::Voted(Voted { term, trial: false, granted: false }),
            Message::Append(Append { partition, epoch, previous, records }),
            Message::Piece(Piece { partition, epoch, position, offset: 0, total: 1, bytes }),
            propose(Change::Enter(Enter { key, incarnation: Incarnation(1), address, weight: 1 })),
            propose(Change::Stop(Stop { node: NodeNo(1), incarnation: life })),
            propose(Change::Add(keep(2))),
            propose(Change::Drop(keep(2))),
            propose(Change::Leave(Leave { node: NodeNo(1), state: State::Leaving })),
            propose(Change::Appoint(Appoint { node: NodeNo(2), is_one: true })),
        ]
    }

    /// Says all that does harm, and sees that none was done.
    fn check_harmless(host: &mut Host, who: Who) {
        for message in harm(host) {
            let what = format!("{who:?}: {message:?}");
            let (map, life) = (host.map(), host.node.incarnation());
            let partition = host.partition_of(1);
            let fence = host.node.fence(partition);
            host.says(who, message);
            host.pass(100 * MS);
            assert_eq!(host.dropped, [], "{what}");
            assert_eq!(host.map().epoch, map.epoch, "{what}");
            assert_eq!(host.node.incarnation(), life, "{what}");
            assert_eq!(host.node.fence(partition), fence, "{what}");
            assert!(host.node.status().leads, "{what}");
            assert!(host.node.leads(partition, host.now_ns).is_some(), "{what}");
            assert_eq!(host.node.leads(partition, host.now_ns + 3_600_000 * MS), None, "{what}");
        }
    }

    #[test]
    fn a_stranger_is_heard_only_when_it_asks_to_come_in() {
        let mut host = Host::first();
        // Numbers that nobody has, that nobody has yet, that another has; and nobody in particular.
        for who in [Who(0, 9, "x:1"), Who(77, 9, "x:1"), Who(2, 9, "x:1"), Who(1, 9, "a:1")] {
            check_harmless(&mut host, who);
        }
        host.renews(SECOND);
        assert_eq!(host.map().member(NodeNo(2)).map(|member| member.key), Some(SECOND.1));
        // The address of a member, and another key.
        check_harmless(&mut host, Who(2, 9, SECOND.2));
        host.renews(Who(0, 9, "x:1"));
        assert_eq!(host.map().by_key(9).map(|member| member.node), Some(NodeNo(4)));
    }

    #[test]
    fn a_member_says_what_is_its_own_part() {
        let mut host = Host::first();
        host.renews(SECOND);
        check_harmless(&mut host, SECOND);
        host.renews(SECOND);
        let (own, third) = (host.partition_of(2), host.partition_of(3));
        host.says(SECOND, unneeded(third));
        assert_eq!(host.dropped, []);
        host.says(SECOND, unneeded(own));
        assert_eq!(host.dropped.len(), 1, "the primary knows what is not needed");
        let lives = |host: &Host| host.map().lives(NodeNo(2), Incarnation(1));
        assert!(lives(&host));
        let stop = Stop { node: NodeNo(2), incarnation: Incarnation(1) };
        host.says(SECOND, propose(Change::Stop(stop)));
        host.pass(100 * MS);
        assert!(!lives(&host), "it said so itself");
    }

    #[test]
    fn a_part_of_a_transaction_comes_from_the_partition_that_says_it() {
        let mut host = Host::first();
        host.renews(SECOND);
        let (own, first) = (host.partition_of(2), host.partition_of(1));
        // Transaction 0, step 0, `Done`.
        let message = PeerMessage::decode(&[&[0; 12][..], &[2]].concat()).expect("a message");
        let between = |from| Message::Between(Between { from, to: first, message: message.clone() });
        let shared = &host.node.shared;
        let sender = |is_member| Sender { node: NodeNo(2), life: Incarnation(1), is_member, is_seed: false };
        assert!(shared.may_say(&sender(true), &between(own), false));
        assert!(!shared.may_say(&sender(true), &between(first), false));
        assert!(!shared.may_say(&sender(false), &between(own), false));
    }

    #[test]
    fn a_node_without_a_map_believes_the_nodes_that_its_operator_named() {
        let map = Host::first().map();
        let mut host = Host::open("d:1", Start::Open { key: 8 }, &["a:1"]);
        let news = || Message::News(News { map: later(map.clone()) });
        host.says(Who(1, 9, "x:1"), news());
        assert_eq!(host.map().epoch, Epoch(0));
        host.says(FIRST, news());
        assert_eq!(host.map().epoch, later(map.clone()).epoch);
        // It is no steward, and tells those who ask what it knows.
        host.sent.clear();
        let renew = || Message::Renew(Renew { sent_ns: 1, weight: 1 });
        host.hears(Who(0, 9, "x:1"), Epoch(1), renew());
        assert!(matches!(&host.sent[..], [(to, Message::News(_))] if to == "x:1"), "{:?}", host.sent);
        host.sent.clear();
        host.hears(Who(0, 9, "x:1"), host.map().epoch, renew());
        assert_eq!(host.sent, []);
    }
}
