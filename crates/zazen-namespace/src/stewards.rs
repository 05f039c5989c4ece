//! The stewards: 1, 3 or 5 nodes that agree on the map, and that give nodes their leases.
//!
//! They replicate one value, the map, and not a log: each new map holds all that earlier ones did,
//! so a steward keeps only the newest. Apart from that the rules are Raft's. A leader is elected
//! for a term by a majority; a candidate needs a value at least as new as the voter's; a value
//! holds once a majority has it on disk and its term is the leader's; a new leader first stores the
//! value it has under its own term. A trial vote comes first, and a steward that hears a leader
//! votes for nobody, so a steward that is cut off and returns disturbs nobody.
//!
//! **Leases.** A node asks all stewards; the leader answers after a majority has answered a sign of
//! life that the leader sent after it was asked. So no later leader was elected before the node
//! asked. A leader ends a life only when it has granted nothing to it for a whole lease, and has
//! led for a whole lease itself: what leaders before it granted has ended too. Leases are longer
//! for stewards than for nodes, by more than clocks may drift apart meanwhile. After a pause a
//! leader waits for a whole lease again.

use crate::map::{Appoint, Change, Enter, Map, STEWARDS_MAX, State, Stop, mix};
use crate::node::{Timing, has};
use crate::peer::{Ballot, Envelope, Granted, Message, News, Renew, Store, Stored, Vote, Voted};
use crate::planted::Planted;
use crate::{Incarnation, NodeNo};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The term and the number of a value.
type LogPosition = (u64, u64);

/// What a steward wants done. Lives for a moment.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Wish {
    /// Send a message.
    Send(NodeNo, Message),
    /// Write the ballot, durably; then call [`Steward::saved`] with the number.
    Save(u64, Box<Ballot>),
    /// A map that holds.
    Holds(Box<Map>),
}

/// One steward.
pub(crate) struct Steward {
    me: NodeNo,
    timing: Timing,
    planted: Option<Planted>,
    ballot: Ballot,
    /// The newest value that holds, as far as is known here.
    committed: LogPosition,
    /// Numbers writes of the ballot.
    saves: u64,
    saved: u64,
    /// The value that is on disk.
    stored: LogPosition,
    /// What must not be said before a write is done.
    gated: VecDeque<(u64, NodeNo, Message)>,
    role: Role,
    /// When a leader was heard of last, or the last election began.
    heard_ns: u64,
    ticked_ns: u64,
    elections: u64,
}

enum Role {
    Follower,
    Candidate { trial: bool, votes: BTreeSet<NodeNo> },
    Leader(Box<Leader>),
}

struct Leader {
    /// Since when a whole lease must pass before a life is ended.
    since_ns: u64,
    round: u64,
    round_ns: u64,
    /// The last round that a majority answered, and when it was sent.
    confirmed_ns: u64,
    /// When recent rounds were sent.
    sent: VecDeque<(u64, u64)>,
    followers: BTreeMap<NodeNo, Heard>,
    queue: Vec<Change>,
    asks: Vec<Ask>,
    granted_ns: BTreeMap<NodeNo, u64>,
    /// Since when stewards have been away, as this leader knows.
    away_ns: BTreeMap<NodeNo, u64>,
    /// The node that is to be appointed, once it has a map on disk.
    learner: Option<Learner>,
}

impl Leader {
    /// Whether a majority of the stewards, but for `gone`, has answered a sign of life that was
    /// sent since then. `me` leads.
    fn has_majority_without(&self, me: NodeNo, gone: NodeNo, stewards: &[NodeNo], since_ns: u64) -> bool {
        let left = || stewards.iter().filter(|node| **node != gone);
        let is_new = |heard: &Heard| {
            self.sent.iter().any(|(round, sent_ns)| *round == heard.round && *sent_ns >= since_ns)
        };
        let answers = |node: &&NodeNo| **node == me || self.followers.get(node).is_some_and(is_new);
        left().filter(answers).count() > left().count() / 2
    }
}

struct Learner {
    node: NodeNo,
    has_map: bool,
}

#[derive(Clone, Copy, Default)]
struct Heard {
    round: u64,
    stored: LogPosition,
}

struct Ask {
    node: NodeNo,
    incarnation: Incarnation,
    sent_ns: u64,
    /// The grant needs the answers to this round.
    round: u64,
}

impl Steward {
    pub(crate) fn new(
        me: NodeNo,
        timing: Timing,
        planted: Option<Planted>,
        mut ballot: Ballot,
        now_ns: u64,
    ) -> Steward {
        if has(planted, Planted::ForgetVote) {
            ballot.voted = NodeNo(0);
        }
        let stored = (ballot.value.term, ballot.value.index);
        Steward {
            me,
            timing,
            planted,
            ballot,
            committed: (0, 0),
            saves: 0,
            saved: 0,
            stored,
            gated: VecDeque::new(),
            role: Role::Follower,
            heard_ns: now_ns,
            ticked_ns: now_ns,
            elections: 0,
        }
    }

    /// Whether it leads, by its own knowledge.
    pub(crate) fn leads(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// Whether the newest map that it stored names it: others do not lead, and count for nothing.
    fn is_one(&self) -> bool {
        self.counts(self.me)
    }

    /// Whether the newest map that it stored names this node as a steward.
    pub(crate) fn counts(&self, node: NodeNo) -> bool {
        self.stewards().contains(&node)
    }

    /// Whether this leader gives the node a map before it appoints it.
    pub(crate) fn teaches(&self, node: NodeNo) -> bool {
        matches!(&self.role, Role::Leader(leader) if leader.learner.iter().any(|one| one.node == node))
    }

    fn stewards(&self) -> &[NodeNo] {
        &self.ballot.value.map.stewards
    }

    fn quorum(&self) -> usize {
        self.stewards().len() / 2 + 1
    }

    fn others(&self) -> Vec<NodeNo> {
        self.stewards().iter().copied().filter(|node| *node != self.me).collect()
    }

    fn place(&self) -> LogPosition {
        (self.ballot.value.term, self.ballot.value.index)
    }

    fn save(&mut self, wishes: &mut Vec<Wish>) -> u64 {
        self.saves += 1;
        wishes.push(Wish::Save(self.saves, Box::new(self.ballot.clone())));
        self.saves
    }

    /// Says it once all that was asked to be written is.
    fn say_saved(&mut self, to: NodeNo, message: Message, wishes: &mut Vec<Wish>) {
        if self.saved == self.saves {
            wishes.push(Wish::Send(to, message));
        } else {
            self.gated.push_back((self.saves, to, message));
        }
    }

    /// A write is done.
    pub(crate) fn saved(&mut self, number: u64, ballot: &Ballot, now_ns: u64, wishes: &mut Vec<Wish>) {
        self.saved = self.saved.max(number);
        self.stored = self.stored.max((ballot.value.term, ballot.value.index));
        while let Some((_, to, message)) = self.gated.pop_front_if(|(wanted, ..)| *wanted <= number) {
            wishes.push(Wish::Send(to, message));
        }
        if let Role::Candidate { trial: false, votes } = &mut self.role
            && ballot.term == self.ballot.term
        {
            votes.insert(self.me);
            self.count_votes(now_ns, wishes);
        }
        self.count_stores(now_ns, wishes);
    }

    /// How long to wait for a leader: different for each steward and election. One that leaves lets
    /// the others try first.
    fn patience_ns(&self) -> u64 {
        let draw = mix((u64::from(self.me.0) << 40) ^ (self.ballot.term << 16) ^ self.elections);
        let first_ns = self.timing.election_ns * if self.is_leaving(self.me) { 3 } else { 1 };
        first_ns + draw % self.timing.election_ns.max(1)
    }

    /// Whether the node shall go, by the newest map that this steward stored.
    fn is_leaving(&self, node: NodeNo) -> bool {
        self.ballot.value.map.member(node).is_some_and(|member| member.state == State::Leaving)
    }

    /// Whether this leader leaves, and another steward that stays has all that it has. Then that
    /// one shall lead: nobody takes itself out of the stewards.
    fn shall_follow(&self) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let can_lead = |(node, heard): (&NodeNo, &Heard)| {
            let stays = self.ballot.value.map.member(*node).is_some_and(|one| one.state == State::Up);
            stays && heard.stored == self.place() && heard.round + 1 >= leader.round
        };
        self.is_leaving(self.me) && self.committed == self.place() && leader.followers.iter().any(can_lead)
    }

    /// When to call [`Steward::tick`] next.
    pub(crate) fn wakes_ns(&self) -> u64 {
        match &self.role {
            _ if !self.is_one() => u64::MAX,
            // Changes move the rounds on: silent nodes must be looked for nevertheless.
            Role::Leader(leader) => leader.round_ns.min(self.ticked_ns) + self.timing.heartbeat_ns,
            Role::Follower if self.quorum() == 1 => self.ticked_ns,
            _ => self.heard_ns + self.patience_ns(),
        }
    }

    /// Time has passed.
    pub(crate) fn tick_if_due(&mut self, now_ns: u64, wishes: &mut Vec<Wish>) {
        if now_ns >= self.wakes_ns() {
            self.tick(now_ns, wishes);
        }
    }

    fn tick(&mut self, now_ns: u64, wishes: &mut Vec<Wish>) {
        let was_away = now_ns.saturating_sub(self.ticked_ns) > self.timing.lease_ns / 4;
        self.ticked_ns = now_ns;
        let patience_ns = self.patience_ns();
        let (lease_ns, heartbeat_ns) = (self.timing.lease_of_stewards_ns(), self.timing.heartbeat_ns);
        let (quorum, election_ns) = (self.quorum(), self.timing.election_ns);
        let Role::Leader(leader) = &mut self.role else {
            let alone = quorum == 1 && matches!(self.role, Role::Follower);
            if alone || now_ns.saturating_sub(self.heard_ns) > patience_ns {
                self.stand(now_ns, wishes);
            }
            return;
        };
        if was_away {
            leader.since_ns = now_ns;
        }
        if quorum > 1 && now_ns.saturating_sub(leader.confirmed_ns) > 2 * election_ns {
            self.follow(now_ns);
            return;
        }
        if self.shall_follow() {
            self.follow(now_ns);
            return;
        }
        let Role::Leader(leader) = &mut self.role else { return };
        let waits = !has(self.planted, Planted::EndLivesAtOnce);
        // A life is ended at once or not at all: until an earlier map holds, the node may be heard
        // of and get a lease.
        let holds = self.committed == (self.ballot.value.term, self.ballot.value.index);
        let members = self.ballot.value.map.nodes.iter().filter(|member| member.is_in() && holds);
        for member in members {
            let never = member.incarnation.0 == 0;
            let heard_ns = leader.granted_ns.get(&member.node).copied().unwrap_or(0);
            let since_ns = if waits { leader.since_ns } else { 0 };
            let is_silent = now_ns > heard_ns.max(since_ns) + lease_ns;
            if is_silent && !never {
                leader.queue.push(Change::Stop(Stop { node: member.node, incarnation: member.incarnation }));
            }
        }
        if now_ns >= leader.round_ns + heartbeat_ns {
            self.round(now_ns, wishes);
        }
        self.appoint(now_ns);
        self.change(now_ns, wishes);
    }

    /// Replaces a steward that has been away for long, and appoints more when there are more nodes.
    ///
    /// A lost steward goes before another comes: of three of which one is lost, the two that are
    /// left decide alone, and the new one counts for nothing until it has the map. It has a map on
    /// disk before it is appointed: if all stop just then, the others may need its vote, and a node
    /// that has stored no map knows nobody whom it may vote for.
    ///
    /// In the place of a steward that leaves another comes first, unless there are as many as may
    /// be: so the loss of one is survived all the time. It goes also if nobody can replace it,
    /// unless it is the only one. Of an even number that is more than the nodes need, one goes.
    ///
    /// Nobody goes unless a majority of those who are left has just answered. They decide alone
    /// once one of them has stored that: without a majority nobody would be elected again, neither
    /// by them, nor by the others, who have an older map.
    fn appoint(&mut self, now_ns: u64) {
        let (me, replace_ns) = (self.me, self.timing.replace_ns);
        let map = &self.ballot.value.map;
        let Role::Leader(leader) = &mut self.role else { return };
        if self.committed != (self.ballot.value.term, self.ballot.value.index) {
            return;
        }
        let is_in = |node: &NodeNo| map.member(*node).is_some_and(|member| member.is_in());
        leader.away_ns.retain(|node, _| map.stewards.contains(node) && !is_in(node));
        for node in map.stewards.iter().filter(|node| !is_in(node)) {
            leader.away_ns.entry(*node).or_insert(now_ns);
        }
        let is_free = |member: &&crate::map::Member| {
            let lives = member.state == State::Up && member.incarnation.0 > 0;
            lives && !map.stewards.contains(&member.node)
        };
        let free: Vec<NodeNo> = map.nodes.iter().filter(is_free).map(|member| member.node).collect();
        let stays = |member: &&crate::map::Member| member.state == State::Up && member.incarnation.0 > 0;
        let up = map.nodes.iter().filter(stays).count();
        let wanted = usize::from(crate::map::Genesis::stewards_of(up));
        let count = map.stewards.len();
        let lost = leader.away_ns.iter().find(|(_, since_ns)| now_ns >= **since_ns + replace_ns);
        let lost = lost.map(|(node, _)| *node).filter(|node| *node != me && !free.is_empty());
        let is_leaving =
            |node: &&NodeNo| map.member(**node).is_some_and(|member| member.state == State::Leaving);
        let leaving: Vec<NodeNo> = map.stewards.iter().filter(is_leaving).copied().collect();
        let leaves = leaving.iter().copied().find(|node| *node != me && count > 1);
        let is_even = count.is_multiple_of(2) && count > wanted && leaving.is_empty();
        let spare = || map.stewards.iter().copied().rfind(|node| *node != me && is_even);
        // Two are worse than one: a second comes only with a third, or in the place of the first.
        let replaces = !leaving.is_empty() && !count.is_multiple_of(2) && count < STEWARDS_MAX;
        let grows = replaces || count < wanted && free.len() > count % 2;
        let leaves = leaves.filter(|_| !replaces || free.is_empty());
        let goes = lost.or(leaves).or_else(spare);
        let since_ns = now_ns.saturating_sub(self.timing.election_ns);
        if goes.is_some_and(|node| !leader.has_majority_without(me, node, &map.stewards, since_ns)) {
            return;
        }
        let appoint = match (goes, free.first()) {
            (Some(node), _) => Appoint { node, is_one: false },
            (None, Some(node)) if grows => Appoint { node: *node, is_one: true },
            _ => return,
        };
        if appoint.is_one {
            let learner = leader.learner.take().filter(|learner| learner.node == appoint.node);
            let learner = learner.unwrap_or(Learner { node: appoint.node, has_map: false });
            let has_map = learner.has_map;
            leader.learner = Some(learner).filter(|learner| !learner.has_map);
            if !has_map {
                return;
            }
        }
        leader.queue.push(Change::Appoint(appoint));
    }

    fn follow(&mut self, now_ns: u64) {
        self.role = Role::Follower;
        self.heard_ns = now_ns;
    }

    /// Asks whether it would be elected.
    fn stand(&mut self, now_ns: u64, wishes: &mut Vec<Wish>) {
        self.elections += 1;
        self.heard_ns = now_ns;
        self.role = Role::Candidate { trial: true, votes: BTreeSet::from([self.me]) };
        let term = self.ballot.term + 1;
        for other in self.others() {
            wishes.push(Wish::Send(other, self.vote(term, true)));
        }
        self.count_votes(now_ns, wishes);
    }

    fn vote(&self, term: u64, trial: bool) -> Message {
        let (value_term, value_index) = self.place();
        Message::Vote(Vote { term, trial, value_term, value_index })
    }

    fn count_votes(&mut self, now_ns: u64, wishes: &mut Vec<Wish>) {
        let Role::Candidate { trial, votes } = &self.role else { return };
        if votes.len() < self.quorum() {
            return;
        }
        if *trial {
            self.ballot.term += 1;
            self.ballot.voted = self.me;
            self.role = Role::Candidate { trial: false, votes: BTreeSet::new() };
            let term = self.ballot.term;
            self.save(wishes);
            for other in self.others() {
                let vote = self.vote(term, false);
                self.say_saved(other, vote, wishes);
            }
            return;
        }
        self.role = Role::Leader(Box::new(Leader {
            since_ns: now_ns,
            round: 0,
            round_ns: 0,
            confirmed_ns: now_ns,
            sent: VecDeque::new(),
            followers: self.others().into_iter().map(|node| (node, Heard::default())).collect(),
            queue: Vec::new(),
            asks: Vec::new(),
            granted_ns: BTreeMap::new(),
            away_ns: BTreeMap::new(),
            learner: None,
        }));
        // What an earlier leader stored holds once it is stored under this term.
        self.ballot.value.term = self.ballot.term;
        self.ballot.value.index += 1;
        self.save(wishes);
        self.round(now_ns, wishes);
    }

    /// Sends a sign of life, with the value to those who lack it.
    fn round(&mut self, now_ns: u64, wishes: &mut Vec<Wish>) {
        let (place, others) = (self.place(), self.others());
        let Role::Leader(leader) = &mut self.role else { return };
        leader.followers.retain(|node, _| others.contains(node));
        for node in others {
            leader.followers.entry(node).or_default();
        }
        leader.round += 1;
        leader.round_ns = now_ns;
        leader.sent.push_back((leader.round, now_ns));
        if leader.sent.len() > 64 {
            leader.sent.pop_front();
        }
        let followers = leader.followers.iter().map(|(node, heard)| (*node, heard.stored != place));
        let learner = leader.learner.iter().filter(|learner| !learner.has_map);
        for (node, lacks_it) in followers.chain(learner.map(|learner| (learner.node, true))) {
            let store = Store {
                term: self.ballot.term,
                round: leader.round,
                value: lacks_it.then(|| self.ballot.value.clone()),
                committed_term: self.committed.0,
                committed_index: self.committed.1,
            };
            wishes.push(Wish::Send(node, Message::Store(store)));
        }
        self.count_rounds(now_ns, wishes);
    }

    /// Grants what was asked before a round that a majority has answered.
    fn count_rounds(&mut self, now_ns: u64, wishes: &mut Vec<Wish>) {
        let quorum = self.quorum();
        let Role::Leader(leader) = &mut self.role else { return };
        let mut rounds: Vec<u64> = leader.followers.values().map(|heard| heard.round).collect();
        rounds.push(leader.round);
        rounds.sort_unstable_by(|left, right| right.cmp(left));
        let Some(round) = rounds.get(quorum - 1).copied() else { return };
        if let Some((_, sent_ns)) = leader.sent.iter().find(|(number, _)| *number == round) {
            leader.confirmed_ns = leader.confirmed_ns.max(*sent_ns);
        }
        let map = &self.ballot.value.map;
        leader.asks.retain(|ask| {
            if ask.round > round {
                return true;
            }
            if map.lives(ask.node, ask.incarnation) {
                leader.granted_ns.insert(ask.node, now_ns);
                let granted = Granted { incarnation: ask.incarnation, sent_ns: ask.sent_ns };
                wishes.push(Wish::Send(ask.node, Message::Granted(granted)));
            }
            false
        });
    }

    /// Counts who has the value, and says when it holds.
    fn count_stores(&mut self, now_ns: u64, wishes: &mut Vec<Wish>) {
        let (place, quorum) = (self.place(), self.quorum());
        let Role::Leader(leader) = &mut self.role else { return };
        if self.committed == place || place.0 != self.ballot.term {
            return;
        }
        let have = leader.followers.values().filter(|heard| heard.stored == place).count();
        if have + usize::from(self.stored == place) < quorum {
            return;
        }
        self.committed = place;
        self.tell(wishes);
        self.round(now_ns, wishes);
        self.change(now_ns, wishes);
    }

    /// Tells all nodes the map that holds.
    fn tell(&mut self, wishes: &mut Vec<Wish>) {
        let map = &self.ballot.value.map;
        wishes.push(Wish::Holds(Box::new(map.clone())));
        for member in map.nodes.iter().filter(|member| member.node != self.me && member.is_in()) {
            wishes.push(Wish::Send(member.node, Message::News(News { map: map.clone() })));
        }
    }

    /// Makes the changes that wait, if the last value holds.
    fn change(&mut self, now_ns: u64, wishes: &mut Vec<Wish>) {
        if self.committed != self.place() {
            return;
        }
        let Role::Leader(leader) = &mut self.role else { return };
        let mut map = self.ballot.value.map.clone();
        // Who is silent at the same time stops at the same time.
        let stops: Vec<Stop> = leader.queue.iter().filter_map(Change::as_stop).cloned().collect();
        let mut changed = map.stop_all(&stops);
        for change in leader.queue.drain(..).filter(|change| change.as_stop().is_none()) {
            let keeps_backups =
                has(self.planted, Planted::KeepBackupsOfOldLives) && matches!(change, Change::Enter(_));
            let before = keeps_backups.then(|| map.partitions.clone());
            changed |= map.change(&change);
            map.partitions = before.unwrap_or_else(|| std::mem::take(&mut map.partitions));
        }
        if changed {
            self.ballot.value.map = map;
            self.ballot.value.index += 1;
            self.save(wishes);
            self.round(now_ns, wishes);
        }
    }

    /// A node wants a change.
    pub(crate) fn propose(&mut self, change: Change, now_ns: u64, wishes: &mut Vec<Wish>) {
        if let Role::Leader(leader) = &mut self.role
            && !leader.queue.contains(&change)
        {
            leader.queue.push(change);
            self.change(now_ns, wishes);
        }
    }

    /// A node asks for its lease.
    pub(crate) fn renew(&mut self, from: &Envelope, renew: &Renew, now_ns: u64, wishes: &mut Vec<Wish>) {
        let holds = self.committed == self.place();
        let Role::Leader(leader) = &mut self.role else { return };
        let map = &self.ballot.value.map;
        let known = map.by_key(from.key);
        if let Some(gone) = known.filter(|member| member.state == State::Gone) {
            // It comes with the folder that it had. The map tells it that it is no node any more.
            if from.epoch < map.epoch && holds {
                wishes.push(Wish::Send(gone.node, Message::News(News { map: map.clone() })));
            }
            return;
        }
        let is_new = known.is_none_or(|member| member.incarnation < from.incarnation);
        if is_new {
            let enter = Change::Enter(Enter {
                key: from.key,
                incarnation: from.incarnation,
                address: from.address.clone(),
                weight: renew.weight,
            });
            return self.propose(enter, now_ns, wishes);
        }
        let Some(member) = known else { return };
        if from.epoch < map.epoch && holds {
            wishes.push(Wish::Send(member.node, Message::News(News { map: map.clone() })));
        }
        if member.incarnation != from.incarnation || !member.is_in() {
            return;
        }
        let (node, incarnation, sent_ns) = (member.node, from.incarnation, renew.sent_ns);
        leader.asks.retain(|ask| ask.node != node || ask.round <= leader.round);
        leader.asks.push(Ask { node, incarnation, sent_ns, round: leader.round + 1 });
        // Signs of life may follow each other at a fifth of their usual distance.
        if now_ns >= leader.round_ns + self.timing.heartbeat_ns / 5 {
            self.round(now_ns, wishes);
        }
    }

    /// Another steward says something.
    pub(crate) fn receive(&mut self, from: NodeNo, message: Message, now_ns: u64, wishes: &mut Vec<Wish>) {
        // Stewards change: one that was appointed since may ask for a vote, and may lead.
        let counts = self.counts(from);
        match message {
            Message::Vote(vote) => self.asked_to_vote(from, &vote, now_ns, wishes),
            Message::Store(store) => self.store(from, store, now_ns, wishes),
            Message::Voted(voted) if counts => self.voted(from, &voted, now_ns, wishes),
            Message::Stored(stored) if counts => self.is_stored(from, &stored, now_ns, wishes),
            Message::Stored(stored) => self.has_learnt(from, &stored, now_ns, wishes),
            _ => {}
        }
    }

    /// A message of a later term ends what this steward was.
    fn see_term(&mut self, term: u64, now_ns: u64, wishes: &mut Vec<Wish>) {
        if term > self.ballot.term {
            self.ballot.term = term;
            self.ballot.voted = NodeNo(0);
            self.follow(now_ns);
            self.save(wishes);
        }
    }

    fn asked_to_vote(&mut self, from: NodeNo, vote: &Vote, now_ns: u64, wishes: &mut Vec<Wish>) {
        let hears_leader = match &self.role {
            Role::Leader(_) => true,
            Role::Follower => now_ns.saturating_sub(self.heard_ns) < self.timing.election_ns,
            Role::Candidate { .. } => false,
        };
        let is_new_enough = (vote.value_term, vote.value_index) >= self.place();
        if vote.trial {
            let granted = vote.term > self.ballot.term && is_new_enough && !hears_leader;
            let voted =
                Voted { term: if granted { vote.term } else { self.ballot.term }, trial: true, granted };
            wishes.push(Wish::Send(from, Message::Voted(voted)));
            return;
        }
        if vote.term > self.ballot.term && !hears_leader {
            self.see_term(vote.term, now_ns, wishes);
        }
        let is_free = self.ballot.voted == NodeNo(0) || self.ballot.voted == from;
        let granted = vote.term == self.ballot.term && is_free && is_new_enough;
        if granted && self.ballot.voted != from {
            self.ballot.voted = from;
            self.heard_ns = now_ns;
            self.save(wishes);
        }
        let voted = Voted { term: self.ballot.term, trial: false, granted };
        self.say_saved(from, Message::Voted(voted), wishes);
    }

    fn voted(&mut self, from: NodeNo, voted: &Voted, now_ns: u64, wishes: &mut Vec<Wish>) {
        if !voted.granted {
            self.see_term(voted.term, now_ns, wishes);
            return;
        }
        let wanted = self.ballot.term + u64::from(voted.trial);
        if let Role::Candidate { trial, votes } = &mut self.role
            && *trial == voted.trial
            && voted.term == wanted
        {
            votes.insert(from);
            self.count_votes(now_ns, wishes);
        }
    }

    fn store(&mut self, from: NodeNo, store: Store, now_ns: u64, wishes: &mut Vec<Wish>) {
        if store.term < self.ballot.term {
            let (value_term, value_index) = self.stored;
            let stored = Stored { term: self.ballot.term, round: 0, value_term, value_index };
            wishes.push(Wish::Send(from, Message::Stored(stored)));
            return;
        }
        self.see_term(store.term, now_ns, wishes);
        self.role = Role::Follower;
        self.heard_ns = now_ns;
        if let Some(value) = store.value
            && (value.term, value.index) > self.place()
            && value.map.check().is_ok()
        {
            self.ballot.value = value;
            if has(self.planted, Planted::StoreWithoutWriting) {
                self.stored = self.place();
            } else {
                self.save(wishes);
            }
        }
        let committed = (store.committed_term, store.committed_index);
        if committed == self.place() && committed > self.committed {
            self.committed = committed;
            wishes.push(Wish::Holds(Box::new(self.ballot.value.map.clone())));
        }
        let (value_term, value_index) = self.place();
        let stored = Stored { term: self.ballot.term, round: store.round, value_term, value_index };
        self.say_saved(from, Message::Stored(stored), wishes);
    }

    /// A node that is no steward has stored something.
    fn has_learnt(&mut self, from: NodeNo, stored: &Stored, now_ns: u64, wishes: &mut Vec<Wish>) {
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(learner) = leader.learner.as_mut().filter(|learner| learner.node == from) else { return };
        if stored.term == self.ballot.term {
            learner.has_map |= stored.value_term > 0;
        }
        // It was a steward once, and knows a later term: this leader could never lead it.
        self.see_term(stored.term, now_ns, wishes);
    }

    fn is_stored(&mut self, from: NodeNo, stored: &Stored, now_ns: u64, wishes: &mut Vec<Wish>) {
        self.see_term(stored.term, now_ns, wishes);
        if stored.term != self.ballot.term {
            return;
        }
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(heard) = leader.followers.get_mut(&from) else { return };
        heard.round = heard.round.max(stored.round);
        heard.stored = (stored.value_term, stored.value_index);
        self.count_rounds(now_ns, wishes);
        self.count_stores(now_ns, wishes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Genesis;
    use crate::partition::Settings;
    use crate::peer::Value;

    const SECOND: u64 = 1_000_000_000;

    fn ballot() -> Ballot {
        let genesis = Genesis {
            namespace: 7,
            settings: Settings::default(),
            replicas: 1,
            synchronous: 0,
            addresses: ["a", "b", "c"].map(str::to_owned).to_vec(),
            stewards: 3,
        };
        let map = genesis.map().expect("a map");
        Ballot { term: 0, voted: NodeNo(0), value: Value { term: 0, index: 0, map } }
    }

    /// Asks for a vote, and writes what the steward wants written: its answer, and what is on its
    /// disk then.
    fn vote(one: &mut Steward, from: u32, now_ns: u64) -> (bool, Option<Ballot>) {
        let mut wishes = Vec::new();
        let vote = Message::Vote(Vote { term: 1, trial: false, value_term: 0, value_index: 0 });
        one.receive(NodeNo(from), vote, now_ns, &mut wishes);
        let (mut stored, mut granted) = (None, None);
        while !wishes.is_empty() {
            match wishes.remove(0) {
                Wish::Save(number, ballot) => {
                    assert!(granted.is_none(), "a vote is said before it is written");
                    one.saved(number, &ballot, now_ns, &mut wishes);
                    stored = Some(*ballot);
                }
                Wish::Send(to, Message::Voted(voted)) if to == NodeNo(from) => granted = Some(voted.granted),
                _ => {}
            }
        }
        (granted.expect("an answer"), stored)
    }

    #[test]
    fn a_steward_votes_once_in_a_term_also_when_it_has_restarted() {
        let timing = Timing::default();
        let mut one = Steward::new(NodeNo(1), timing, None, ballot(), 0);
        let (granted, stored) = vote(&mut one, 2, 10 * SECOND);
        assert!(granted);
        let stored = stored.expect("the vote is written");
        let mut again = Steward::new(NodeNo(1), timing, None, stored, 11 * SECOND);
        assert!(!vote(&mut again, 3, 20 * SECOND).0, "a second vote in term 1");
        assert!(vote(&mut again, 2, 20 * SECOND).0, "the vote that it gave");
    }
}
