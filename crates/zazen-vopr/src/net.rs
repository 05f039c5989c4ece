//! The simulated network: connections that carry bytes in order, and what may become of them.
//!
//! Fault model. Between hosts each piece of a message takes a time of its own, so that messages of
//! different connections overtake each other. A connection may go silent for good in one direction
//! (loss), be reset in the middle of a message, damage a bit, or carry a message twice: a request
//! as a second connection's whose replies nobody reads, a reply once more some time later. Hosts
//! may be parted, in one direction or both; what is sent meanwhile comes late or never. Within a
//! host bytes come in order and whole, until a process dies.

use crate::profile::NetFaults;
use crate::scheduler::MS;
use std::collections::{BTreeMap, BTreeSet};
use zazen_env::SeededRandom;

/// Who called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Writer(usize),
    Rank {
        job: usize,
        rank: usize,
    },
    /// Nobody: a request that came twice.
    Ghost,
}

/// A connection.
pub(crate) struct Conn {
    pub(crate) caller: Caller,
    /// The caller's host.
    host: usize,
    /// The daemon's node, which is also its host.
    pub(crate) node: usize,
    /// When the last bytes sent will have come, by direction.
    ready_ns: [u64; 2],
    silent: [bool; 2],
}

/// What the network decided to deliver: after a delay, on a connection, bytes or (`None`) a reset.
pub(crate) struct Delivery {
    pub(crate) at_ns: u64,
    pub(crate) conn: u64,
    pub(crate) to_server: bool,
    pub(crate) bytes: Option<Vec<u8>>,
}

/// All connections.
#[derive(Default)]
pub(crate) struct Net {
    conns: BTreeMap<u64, Conn>,
    next: u64,
    /// (from, to) hosts that do not reach each other, and until when.
    parted: BTreeMap<(usize, usize), u64>,
    calm: bool,
    /// Messages that met a fault, for the statistics.
    pub(crate) faults: u64,
}

impl Net {
    pub(crate) fn connect(&mut self, caller: Caller, host: usize, node: usize) -> u64 {
        self.next += 1;
        let conn = Conn { caller, host, node, ready_ns: [0; 2], silent: [false; 2] };
        self.conns.insert(self.next, conn);
        self.next
    }

    pub(crate) fn get(&self, conn: u64) -> Option<&Conn> {
        self.conns.get(&conn)
    }

    /// One end is gone; the other learns it by the reset that is returned, if it can be reached.
    pub(crate) fn close(&mut self, conn: u64) {
        self.conns.remove(&conn);
    }

    /// Connections to a node, in order.
    pub(crate) fn of_node(&self, node: usize) -> BTreeSet<u64> {
        self.conns.iter().filter(|(_, conn)| conn.node == node).map(|(id, _)| *id).collect()
    }

    pub(crate) fn part(&mut self, from: usize, to: usize, until_ns: u64) {
        self.parted.insert((from, to), until_ns);
    }

    /// No more faults from now on; what was parted is whole again.
    pub(crate) fn calm_down(&mut self) {
        self.calm = true;
        self.parted.clear();
    }

    /// Sends a message over `conn` at `now_ns`.
    pub(crate) fn send(
        &mut self,
        conn: u64,
        to_server: bool,
        bytes: Vec<u8>,
        now_ns: u64,
        faults: &NetFaults,
        random: &mut SeededRandom,
    ) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        let Some(end) = self.conns.get(&conn) else { return deliveries };
        let (from, to) = if to_server { (end.host, end.node) } else { (end.node, end.host) };
        let is_local = from == to;
        let may_fail = !is_local && !self.calm;
        if may_fail && to_server && random.below(1000) < faults.doubled {
            let (host, node) = (end.host, end.node);
            self.faults += 1;
            let ghost = self.connect(Caller::Ghost, host, node);
            let at_ns = now_ns + random.below(200 * MS);
            deliveries.push(Delivery { at_ns, conn: ghost, to_server, bytes: Some(bytes.clone()) });
        }
        let twice = may_fail && !to_server && random.below(1000) < faults.doubled;
        self.faults += u64::from(twice);
        self.send_once(conn, to_server, &bytes, now_ns, (from, to), faults, random, &mut deliveries);
        if twice {
            let again_ns = now_ns + random.below(400 * MS);
            self.send_once(conn, to_server, &bytes, again_ns, (from, to), faults, random, &mut deliveries);
        }
        deliveries
    }

    #[allow(clippy::too_many_arguments)] // one message's way, cut out of `send` for its length
    fn send_once(
        &mut self,
        conn: u64,
        to_server: bool,
        bytes: &[u8],
        now_ns: u64,
        way: (usize, usize),
        faults: &NetFaults,
        random: &mut SeededRandom,
        deliveries: &mut Vec<Delivery>,
    ) {
        let may_fail = way.0 != way.1 && !self.calm;
        let parted_until = self.parted.get(&way).copied().filter(|until| may_fail && *until > now_ns);
        let Some(end) = self.conns.get_mut(&conn) else { return };
        let direction = usize::from(to_server);
        if may_fail && random.below(1000) < faults.lost || parted_until.is_some() && random.percent(50) {
            end.silent[direction] = true;
            self.faults += 1;
        }
        if end.silent[direction] {
            return;
        }
        let pieces = if way.0 == way.1 { 1 } else { 1 + random.below(3) as usize };
        let reset_after =
            (may_fail && random.below(1000) < faults.reset).then(|| random.below(pieces as u64));
        let piece_bytes = bytes.len().div_ceil(pieces).max(1);
        for (at, piece) in bytes.chunks(piece_bytes).enumerate() {
            let delay = match (way.0 == way.1, random.below(20)) {
                (true, _) => 20_000 + random.below(100_000),
                (false, 0) => random.below(faults.delay_max_ns),
                (false, _) => MS / 10 + random.below(2 * MS),
            };
            let start = now_ns.max(parted_until.unwrap_or(0));
            let at_ns = (start + delay).max(end.ready_ns[direction] + 1);
            end.ready_ns[direction] = at_ns;
            if reset_after == Some(at as u64) {
                self.faults += 1;
                let reset = |to_server| Delivery { at_ns, conn, to_server, bytes: None };
                deliveries.extend([reset(true), reset(false)]);
                return;
            }
            let mut piece = piece.to_vec();
            if may_fail && random.below(1000) < faults.flipped {
                self.faults += 1;
                let bit = random.below(piece.len() as u64 * 8);
                piece[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
            deliveries.push(Delivery { at_ns, conn, to_server, bytes: Some(piece) });
        }
    }
}
