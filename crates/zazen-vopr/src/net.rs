//! The simulated network: connections that carry bytes in order, and what may become of them. To
//! the world it is a [`Carrier`], as the simulator's networks are.
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
use zazen_sim::network::{Carrier, Schedule, Sending};

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

/// What is sent: bytes over a connection, to the daemon's end or to the caller's.
pub(crate) struct Message {
    pub(crate) conn: u64,
    pub(crate) to_server: bool,
    pub(crate) bytes: Vec<u8>,
}

/// What becomes of it: bytes come in; `None` is a reset.
pub(crate) struct Arrival {
    pub(crate) conn: u64,
    pub(crate) to_server: bool,
    pub(crate) bytes: Option<Vec<u8>>,
}

/// A world whose messages meet faults.
pub(crate) trait Rough: Schedule<Arrival> {
    /// Which, and how often.
    fn faults(&self) -> NetFaults;
    /// The world's random numbers.
    fn random(&mut self) -> &mut SeededRandom;
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

    /// Between which hosts a connection's bytes go.
    pub(crate) fn way(&self, conn: u64, to_server: bool) -> Option<(usize, usize)> {
        let end = self.conns.get(&conn)?;
        Some(if to_server { (end.host, end.node) } else { (end.node, end.host) })
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

    fn send_once(&mut self, world: &mut impl Rough, sending: Sending, message: &Message) {
        let Sending { now: now_ns, from, to, .. } = sending;
        let Message { conn, to_server, ref bytes } = *message;
        let (faults, way) = (world.faults(), (from as usize, to as usize));
        let may_fail = from != to && !self.calm;
        let parted_until = self.parted.get(&way).copied().filter(|until| may_fail && *until > now_ns);
        let Some(end) = self.conns.get_mut(&conn) else { return };
        let direction = usize::from(to_server);
        if may_fail && world.random().below(1000) < faults.lost
            || parted_until.is_some() && world.random().percent(50)
        {
            end.silent[direction] = true;
            self.faults += 1;
        }
        if end.silent[direction] {
            return;
        }
        let pieces = if from == to { 1 } else { 1 + world.random().below(3) as usize };
        let reset_after = (may_fail && world.random().below(1000) < faults.reset)
            .then(|| world.random().below(pieces as u64));
        let piece_bytes = bytes.len().div_ceil(pieces).max(1);
        for (at, piece) in bytes.chunks(piece_bytes).enumerate() {
            let delay = match (from == to, world.random().below(20)) {
                (true, _) => 20_000 + world.random().below(100_000),
                (false, 0) => world.random().below(faults.delay_max_ns),
                (false, _) => MS / 10 + world.random().below(2 * MS),
            };
            let start = now_ns.max(parted_until.unwrap_or(0));
            let at_ns = (start + delay).max(end.ready_ns[direction] + 1);
            end.ready_ns[direction] = at_ns;
            if reset_after == Some(at as u64) {
                self.faults += 1;
                for to_server in [true, false] {
                    world.schedule(at_ns, to, Arrival { conn, to_server, bytes: None });
                }
                return;
            }
            let mut piece = piece.to_vec();
            if may_fail && world.random().below(1000) < faults.flipped {
                self.faults += 1;
                let bit = world.random().below(piece.len() as u64 * 8);
                piece[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
            world.schedule(at_ns, to, Arrival { conn, to_server, bytes: Some(piece) });
        }
    }
}

impl<W: Rough> Carrier<W> for Net {
    type Message = Message;

    /// The faults are drawn from the world's random numbers.
    fn send(&mut self, world: &mut W, sending: Sending, message: Message) {
        let Sending { now: now_ns, from, to, .. } = sending;
        let doubled = world.faults().doubled;
        let may_fail = from != to && !self.calm;
        let doubles = may_fail && world.random().below(1000) < doubled;
        if message.to_server {
            if doubles {
                let (host, node) = (from as usize, to as usize);
                self.faults += 1;
                let conn = self.connect(Caller::Ghost, host, node);
                let at_ns = now_ns + world.random().below(200 * MS);
                let bytes = Some(message.bytes.clone());
                world.schedule(at_ns, to, Arrival { conn, to_server: true, bytes });
            }
            self.send_once(world, sending, &message);
            return;
        }
        self.faults += u64::from(doubles);
        self.send_once(world, sending, &message);
        if doubles {
            let again_ns = now_ns + world.random().below(400 * MS);
            self.send_once(world, Sending { now: again_ns, ..sending }, &message);
        }
    }
}
