//! The lobby: TCP peers that were accepted and have no place yet. A peer gets a place, and a
//! thread, after it has sent something. Groups take turns; within one, who spoke first is first.
//!
//! Invariants: the lobby holds at most as many peers as it was made for, and of each group at most
//! half as many. If a peer is too many, one of its own group goes, or one of the group that has
//! most. Silent peers go before those that spoke. So nobody who floods the port takes the turn of
//! another group.

use crate::server::peer_group::PeerGroup;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// The peers of one group.
#[derive(Default)]
struct Group {
    /// Those that have sent nothing, oldest first.
    silent: BTreeSet<u64>,
    /// Those that have, in the order in which they did.
    ready: VecDeque<u64>,
}

impl Group {
    fn len(&self) -> usize {
        self.silent.len() + self.ready.len()
    }

    /// Who goes if one is too many: the oldest that is silent, else who spoke last.
    fn least(&self) -> Option<u64> {
        self.silent.first().or(self.ready.back()).copied()
    }
}

struct Peer<T> {
    peer_group: PeerGroup,
    since: Instant,
    it: T,
}

/// See the module. `T` is what stands for a peer.
pub(crate) struct Lobby<T> {
    peers: BTreeMap<u64, Peer<T>>,
    groups: BTreeMap<PeerGroup, Group>,
    peers_max: usize,
    /// The last number given.
    last: u64,
    /// The group that had its turn last.
    turn: Option<PeerGroup>,
}

impl<T> Lobby<T> {
    /// A lobby for at most `peers_max` peers, and for at least two.
    pub(crate) fn new(peers_max: usize) -> Lobby<T> {
        let peers_max = peers_max.max(2);
        Lobby { peers: BTreeMap::new(), groups: BTreeMap::new(), peers_max, last: 0, turn: None }
    }

    /// Takes a peer in. Returns its number, and the peer that had to go for it.
    pub(crate) fn enter(
        &mut self,
        peer_group: PeerGroup,
        it: T,
        now: Instant,
    ) -> (u64, Option<(PeerGroup, T)>) {
        let own = self.groups.get(&peer_group).map_or(0, Group::len);
        let crowded = if own >= self.peers_max / 2 {
            Some(peer_group)
        } else if self.peers.len() >= self.peers_max {
            self.groups.iter().max_by_key(|(_, group)| group.len()).map(|(peer_group, _)| *peer_group)
        } else {
            None
        };
        let least = crowded.and_then(|crowded| self.groups.get(&crowded)?.least());
        let gone = least.and_then(|least| self.take(least));
        self.last += 1;
        self.peers.insert(self.last, Peer { peer_group, since: now, it });
        self.groups.entry(peer_group).or_default().silent.insert(self.last);
        (self.last, gone)
    }

    /// The peer of that number.
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.peers.get(&number).map(|peer| &peer.it)
    }

    /// The peer has sent something.
    pub(crate) fn spoke(&mut self, number: u64) {
        let Some(peer) = self.peers.get(&number) else { return };
        let Some(group) = self.groups.get_mut(&peer.peer_group) else { return };
        if group.silent.remove(&number) {
            group.ready.push_back(number);
        }
    }

    /// Takes a peer out: it left, or it goes.
    pub(crate) fn take(&mut self, number: u64) -> Option<(PeerGroup, T)> {
        let peer = self.peers.remove(&number)?;
        if let Some(group) = self.groups.get_mut(&peer.peer_group) {
            if !group.silent.remove(&number) {
                group.ready.retain(|ready| *ready != number);
            }
            if group.len() == 0 {
                self.groups.remove(&peer.peer_group);
            }
        }
        Some((peer.peer_group, peer.it))
    }

    /// Takes out the peer whose turn it is, among those that spoke.
    pub(crate) fn next(&mut self) -> Option<(PeerGroup, T)> {
        let is_ready = |(peer_group, group): (&PeerGroup, &Group)| Some((*peer_group, *group.ready.front()?));
        let after = self.turn.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let found = self.groups.range((after, std::ops::Bound::Unbounded)).find_map(is_ready);
        let (peer_group, number) = found.or_else(|| self.groups.iter().find_map(is_ready))?;
        self.turn = Some(peer_group);
        self.take(number)
    }

    /// Whether a peer that spoke is here.
    pub(crate) fn is_anyone_ready(&self) -> bool {
        self.groups.values().any(|group| !group.ready.is_empty())
    }

    /// Takes out a peer that came before `past`, if there is one.
    pub(crate) fn overdue(&mut self, past: Instant) -> Option<(PeerGroup, T)> {
        let (number, first) = self.peers.first_key_value()?;
        let number = *number;
        if first.since >= past { None } else { self.take(number) }
    }

    /// When the peer came that has been here for longest.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.peers.first_key_value().map(|(_, peer)| peer.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const B: PeerGroup = PeerGroup::Here(Some(7));
    const A: PeerGroup = PeerGroup::Here(Some(8));

    fn full_of(peer_group: PeerGroup, lobby: &mut Lobby<u32>, count: u32) -> Vec<u32> {
        let now = Instant::now();
        (0..count).filter_map(|nth| lobby.enter(peer_group, nth, now).1).map(|(_, gone)| gone).collect()
    }

    #[test]
    fn a_flood_displaces_its_own() {
        let mut lobby = Lobby::new(8);
        let (mine, gone) = lobby.enter(A, 100, Instant::now());
        assert!(gone.is_none());
        assert_eq!(full_of(B, &mut lobby, 10), [0, 1, 2, 3, 4, 5], "the oldest go, at half of the places");
        lobby.spoke(mine);
        assert_eq!(lobby.next(), Some((A, 100)));
        assert_eq!(lobby.next(), None, "the others have said nothing");
        assert_eq!(lobby.groups.len(), 1);
    }

    #[test]
    fn many_origins_displace_the_largest() {
        let mut lobby = Lobby::new(6);
        assert_eq!(full_of(B, &mut lobby, 3), []);
        for uid in 10..13 {
            assert!(lobby.enter(PeerGroup::Here(Some(uid)), uid, Instant::now()).1.is_none());
        }
        assert_eq!(lobby.enter(A, 100, Instant::now()).1, Some((B, 0)));
        assert_eq!(lobby.peers.len(), 6);
    }

    #[test]
    fn who_spoke_last_goes_where_nobody_is_silent() {
        let mut lobby = Lobby::new(4);
        let now = Instant::now();
        let numbers = [1, 2].map(|it| lobby.enter(B, it, now).0);
        numbers.iter().rev().for_each(|number| lobby.spoke(*number));
        assert_eq!(lobby.enter(B, 3, now).1, Some((B, 1)));
        assert_eq!(lobby.next(), Some((B, 2)));
    }

    #[test]
    fn origins_take_turns_and_their_peers_come_in_order() {
        let mut lobby = Lobby::new(100);
        let now = Instant::now();
        for it in 0..6 {
            let (number, _) = lobby.enter(B, it, now);
            lobby.spoke(number);
            lobby.spoke(number);
        }
        for it in [100, 101] {
            let (number, _) = lobby.enter(A, it, now);
            lobby.spoke(number);
        }
        assert!(lobby.is_anyone_ready());
        let order: Vec<u32> = std::iter::from_fn(|| lobby.next()).map(|(_, it)| it).collect();
        assert_eq!(order, [0, 100, 1, 101, 2, 3, 4, 5]);
        assert!(!lobby.is_anyone_ready() && lobby.peers.is_empty() && lobby.groups.is_empty());
    }

    #[test]
    fn who_stays_too_long_goes_and_a_number_that_left_is_nothing() {
        let mut lobby = Lobby::new(4);
        let now = Instant::now();
        let (first, _) = lobby.enter(A, 1, now);
        lobby.enter(B, 2, now + Duration::from_secs(2));
        assert_eq!(lobby.oldest(), Some(now));
        lobby.spoke(first);
        assert_eq!(lobby.overdue(now), None);
        assert_eq!(lobby.overdue(now + Duration::from_secs(1)), Some((A, 1)));
        assert_eq!(lobby.overdue(now + Duration::from_secs(1)), None);
        lobby.spoke(first);
        assert_eq!((lobby.take(first), lobby.next()), (None, None));
    }
}
