//! The network: when a message arrives, at one of four fidelities.
//!
//! | fidelity | what it knows | what it leaves out |
//! |---|---|---|
//! | `loggp` | overhead, gap, bandwidth of the sender's interface, latency by distance | contention |
//! | `path` | each link of the route is busy for the message's length | the order of arrival at inner links: a message takes its whole route when it is sent |
//! | `flow` | long messages share links max-min fairly; short ones as `loggp` | packets, queues, slow start |
//! | `hop` | an event at each router, links served in order of arrival | packets, back-pressure, adaptive routes |
//!
//! `path` and `hop` use virtual cut-through: the head goes on at once, and a link is busy while the
//! whole message passes.

mod flows;
mod seam;

pub use seam::{Carrier, Schedule, Sending};

use crate::prefetch::soon;
use crate::slots::Slots;
use crate::time::Rate;
use crate::topology::{Class, Topology};
use flows::Flows;
use std::str::FromStr;
use zazen_core::{Error, ErrorKind};

/// How closely the network is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fidelity {
    /// LogGP (Alexandrov et al., SPAA'95): no contention but at the sender's interface.
    LogGp,
    /// Each link of a route is reserved when the message is sent.
    Path,
    /// Long messages are flows with max-min fair rates.
    Flow,
    /// An event at each hop.
    Hop,
}

impl Fidelity {
    /// All, in the order of the events that they cost.
    pub const ALL: [Fidelity; 4] = [Fidelity::LogGp, Fidelity::Path, Fidelity::Flow, Fidelity::Hop];

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Fidelity::LogGp => "loggp",
            Fidelity::Path => "path",
            Fidelity::Flow => "flow",
            Fidelity::Hop => "hop",
        }
    }
}

impl FromStr for Fidelity {
    type Err = Error;

    fn from_str(name: &str) -> Result<Fidelity, Error> {
        Fidelity::ALL.into_iter().find(|fidelity| fidelity.name() == name).ok_or_else(|| {
            let context = format!("fidelity: there is no {name:?}; there are loggp, path, flow and hop");
            Error::new(ErrorKind::InvalidArgument, context)
        })
    }
}

/// What the network costs.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// LogGP's o: a processor's time for sending or receiving a message.
    pub overhead_ps: u64,
    /// LogGP's g: the least time between two messages of an interface.
    pub gap_ps: u64,
    /// The part of LogGP's L that does not depend on the distance.
    pub latency_ps: u64,
    /// The part for each link between routers.
    pub hop_ps: u64,
    /// The same for a global link of a dragonfly.
    pub global_hop_ps: u64,
    /// Interfaces.
    pub interface: Rate,
    /// Links between routers.
    pub fabric: Rate,
    /// Global links of a dragonfly.
    pub global: Rate,
    /// At fidelity `flow`, shorter messages take no part in sharing.
    pub flow_bytes_min: u64,
}

impl Costs {
    fn of(&self, class: Class) -> (Rate, u64) {
        match class {
            Class::Interface => (self.interface, 0),
            Class::Fabric => (self.fabric, self.hop_ps),
            Class::Global => (self.global, self.global_hop_ps),
        }
    }
}

/// An event of the network's own: the world hands it back to [`Network::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A message reaches a router.
    Hop(u32),
    /// A flow ends, unless its rate changed since.
    FlowEnd(u32),
    /// Flows began or ended at this time: the rates follow, after all other events of the time.
    Settle,
}

impl Step {
    /// A number of its own, for a run's trace.
    pub fn code(self) -> u64 {
        let (kind, number) = match self {
            Step::Hop(message) => (6, message),
            Step::FlowEnd(flow) => (7, flow),
            Step::Settle => (8, 0),
        };
        kind << 32 | u64::from(number)
    }
}

/// A message on its way, at fidelity `hop`. Half a cache line, since each hop touches another one.
#[derive(Clone, Copy)]
struct Message<E> {
    to: u32,
    /// The router behind the links that are known.
    router: u32,
    bytes: u64,
    token: E,
    /// The next link's place in [`Network::free_ps`]: the first of those that are known.
    link: u32,
    /// How many are known, and which links the message crossed: see the constants.
    known: u32,
}

/// Of [`Message::known`]: the links' numbers fall.
const FALLING: u32 = 1 << 31;
/// It crossed links between routers, of this class.
const CROSSED_FABRIC: u32 = 1 << 30;
const CROSSED_GLOBAL: u32 = 1 << 29;
/// How many links are known; 0: the next one is the receiver's interface.
const KNOWN: u32 = CROSSED_GLOBAL - 1;

/// A network between the nodes `0 .. nodes`.
pub struct Network<E> {
    fidelity: Fidelity,
    topology: Topology,
    nodes: u32,
    costs: Costs,
    /// When each link is free: transmitting interfaces, receiving ones, then links between routers.
    free_ps: Vec<u64>,
    messages: Slots<Message<E>>,
    flows: Flows<E>,
    messages_sent: u64,
    bytes_sent: u64,
    busy_ps: u64,
}

impl<E: Copy + From<Step>> Network<E> {
    /// An idle network.
    pub fn new(fidelity: Fidelity, topology: Topology, nodes: u32, costs: Costs) -> Network<E> {
        let interfaces = 2 * u64::from(nodes);
        let links = interfaces + topology.fabric_links();
        let reserved = match fidelity {
            Fidelity::LogGp | Fidelity::Flow => interfaces,
            Fidelity::Path | Fidelity::Hop => links,
        };
        let flow_links = if fidelity == Fidelity::Flow { links } else { 0 };
        Network {
            fidelity,
            topology,
            nodes,
            costs,
            free_ps: vec![0; reserved as usize],
            messages: Slots::default(),
            flows: Flows::new(flow_links as usize),
            messages_sent: 0,
            bytes_sent: 0,
            busy_ps: 0,
        }
    }

    /// Memory that a network takes for each node, in bytes, without messages on their way.
    pub fn bytes_per_node(fidelity: Fidelity, topology: &Topology, nodes: u32) -> u64 {
        let links = 2 + topology.fabric_links().div_ceil(u64::from(nodes).max(1));
        match fidelity {
            Fidelity::LogGp => 16,
            Fidelity::Path | Fidelity::Hop => 8 * links,
            Fidelity::Flow => 16 + 4 * links,
        }
    }

    /// The network's shape.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Messages sent so far, and their bytes.
    pub fn sent(&self) -> (u64, u64) {
        (self.messages_sent, self.bytes_sent)
    }

    /// Time that transmitting interfaces were busy so far, in all.
    pub fn busy_ps(&self) -> u64 {
        self.busy_ps
    }

    /// Sends a message to any node; the sender itself has it at once.
    pub fn bring(&mut self, queue: &mut impl Schedule<E>, sending: Sending, token: E) {
        match sending.from == sending.to {
            true => queue.schedule(sending.now, sending.to, token),
            false => self.carry(queue, sending, token),
        }
    }

    fn carry(&mut self, queue: &mut impl Schedule<E>, sending: Sending, token: E) {
        let Sending { now: now_ps, from, to, bytes } = sending;
        debug_assert!(from != to && from < self.nodes && to < self.nodes);
        self.messages_sent += 1;
        self.bytes_sent += bytes;
        self.busy_ps = self.busy_ps.saturating_add(self.costs.interface.time_ps(bytes));
        match self.fidelity {
            Fidelity::LogGp => {
                let arrival = self.alone(now_ps, from, to, bytes);
                queue.schedule(arrival, to, token);
            }
            Fidelity::Path => {
                let arrival = self.reserve_path(now_ps, from, to, bytes);
                queue.schedule(arrival, to, token);
            }
            Fidelity::Hop => self.inject(queue, sending, token),
            Fidelity::Flow if bytes < self.costs.flow_bytes_min => {
                let arrival = self.alone(now_ps, from, to, bytes);
                queue.schedule(arrival, to, token);
            }
            Fidelity::Flow => {
                let mut links = vec![from, self.nodes + to];
                let first = 2 * self.nodes;
                self.topology.walk(from, to, |link| links.push(first + link));
                let after_ps = 2 * self.costs.overhead_ps + self.latency_ps(from, to);
                self.flows.begin(now_ps, to, bytes, after_ps, &links, token);
                if self.flows.wants_settling() {
                    queue.schedule(now_ps, crate::queue::LAST, Step::Settle.into());
                }
            }
        }
    }

    /// LogGP: o + (k - 1) G + L + o, and the next message of this interface max(g, o + (k - 1) G)
    /// later.
    fn alone(&mut self, now_ps: u64, from: u32, to: u32, bytes: u64) -> u64 {
        let Costs { overhead_ps, gap_ps, interface, .. } = self.costs;
        let latency = self.latency_ps(from, to);
        let free = &mut self.free_ps[from as usize];
        let start = now_ps.max(*free);
        let length = interface.time_ps(bytes.saturating_sub(1));
        *free = start.saturating_add(gap_ps.max(overhead_ps + length));
        start.saturating_add(length).saturating_add(2 * overhead_ps + latency)
    }

    fn latency_ps(&self, from: u32, to: u32) -> u64 {
        let mut latency = self.costs.latency_ps;
        if let Topology::Dragonfly(_) = self.topology {
            let (costs, topology) = (&self.costs, &self.topology);
            topology.walk(from, to, |link| latency += costs.of(topology.class(link)).1);
        } else {
            latency += self.costs.hop_ps * u64::from(self.topology.hops(from, to));
        }
        latency
    }

    fn reserve_path(&mut self, now_ps: u64, from: u32, to: u32, bytes: u64) -> u64 {
        let Costs { overhead_ps, gap_ps, latency_ps, .. } = self.costs;
        let free = &mut self.free_ps;
        let (rate, _) = self.costs.of(Class::Interface);
        let length = rate.time_ps(bytes);
        let mut tail = length;
        let sending = &mut free[from as usize];
        let mut head = (now_ps + overhead_ps).max(*sending);
        *sending = head.saturating_add(length.max(gap_ps));
        head = head.saturating_add(latency_ps);
        let first = 2 * self.nodes;
        let (topology, costs) = (&self.topology, &self.costs);
        let fabric = (costs.fabric.time_ps(bytes), costs.hop_ps);
        let is_dragonfly = matches!(topology, Topology::Dragonfly(_));
        topology.walk(from, to, |link| {
            let (length, hop_ps) = if is_dragonfly {
                let (rate, hop_ps) = costs.of(topology.class(link));
                (rate.time_ps(bytes), hop_ps)
            } else {
                fabric
            };
            let free = &mut free[(first + link) as usize];
            let start = head.max(*free);
            *free = start.saturating_add(length);
            head = start.saturating_add(hop_ps);
            tail = tail.max(length);
        });
        let receiving = &mut free[(self.nodes + to) as usize];
        let start = head.max(*receiving);
        *receiving = start.saturating_add(length);
        start.saturating_add(tail).saturating_add(overhead_ps)
    }

    fn inject(&mut self, queue: &mut impl Schedule<E>, sending: Sending, token: E) {
        let Sending { now: now_ps, from, to, bytes } = sending;
        let Costs { overhead_ps, gap_ps, latency_ps, interface, .. } = self.costs;
        let length = interface.time_ps(bytes);
        let sending = &mut self.free_ps[from as usize];
        let head = (now_ps + overhead_ps).max(*sending);
        *sending = head.saturating_add(length.max(gap_ps));
        let router = self.topology.home(from);
        let message = self.ahead(Message { to, router, bytes, token, link: 0, known: 0 });
        let number = self.messages.put(message);
        queue.schedule(head.saturating_add(latency_ps), to, Step::Hop(number).into());
    }

    /// The message with the links that come after those that it knew.
    fn ahead(&self, mut message: Message<E>) -> Message<E> {
        message.known &= CROSSED_FABRIC | CROSSED_GLOBAL;
        match self.topology.run(message.router, message.to) {
            Some(run) => {
                message.link = 2 * self.nodes + run.link;
                // Fewer than nodes, and those have 26 bits.
                message.known |= run.links | if run.rises { 0 } else { FALLING };
                message.router = run.router;
            }
            None => message.link = self.nodes + message.to,
        }
        message
    }

    /// A [`Step::Hop`] of this message is some events ahead.
    #[inline]
    pub fn expect_hop(&self, number: u32) {
        soon(self.messages.get(number));
    }

    /// The same, in a few events: now the message is near, and the link can be told.
    #[inline]
    pub fn expect_link(&self, number: u32) {
        let Some(message) = self.messages.get(number) else { return };
        soon(self.free_ps.get(message.link as usize));
    }

    /// An event of the network's own came out of the queue.
    #[inline]
    pub fn step(&mut self, queue: &mut impl Schedule<E>, now_ps: u64, step: Step) {
        match step {
            Step::Hop(message) => self.on_hop(queue, now_ps, message),
            Step::FlowEnd(flow) => self.on_flow_end(queue, now_ps, flow),
            Step::Settle => self.on_settle(queue, now_ps),
        }
    }

    /// A message reached a router: it goes on, or into the receiver's interface.
    fn on_hop(&mut self, queue: &mut impl Schedule<E>, now_ps: u64, number: u32) {
        let mut message = self.messages[number];
        let free = &mut self.free_ps[message.link as usize];
        let start = now_ps.max(*free);
        if message.known & KNOWN == 0 {
            let length = self.costs.interface.time_ps(message.bytes);
            *free = start.saturating_add(length);
            self.messages.give_up(number);
            let arrival = start.saturating_add(self.tail_ps(&message)).saturating_add(self.costs.overhead_ps);
            queue.schedule(arrival, message.to, message.token);
            return;
        }
        let class = self.topology.class(message.link - 2 * self.nodes);
        let (rate, hop_ps) = self.costs.of(class);
        *free = start.saturating_add(rate.time_ps(message.bytes));
        message.known |= if class == Class::Global { CROSSED_GLOBAL } else { CROSSED_FABRIC };
        message.known -= 1;
        if message.known & KNOWN == 0 {
            message = self.ahead(message);
        } else if message.known & FALLING == 0 {
            message.link += 1;
        } else {
            message.link -= 1;
        }
        self.messages[number] = message;
        queue.schedule(start.saturating_add(hop_ps), message.to, Step::Hop(number).into());
    }

    /// The longest time that a message occupied a link: its tail arrives so much later than its
    /// head.
    fn tail_ps(&self, message: &Message<E>) -> u64 {
        let Costs { interface, fabric, global, .. } = self.costs;
        let mut slowest = interface;
        if message.known & CROSSED_FABRIC != 0 {
            slowest = slowest.slower(fabric);
        }
        if message.known & CROSSED_GLOBAL != 0 {
            slowest = slowest.slower(global);
        }
        slowest.time_ps(message.bytes)
    }

    /// A flow may have ended.
    fn on_flow_end(&mut self, queue: &mut impl Schedule<E>, now_ps: u64, flow: u32) {
        let Some(ended) = self.flows.end(now_ps, flow) else { return };
        queue.schedule(now_ps + ended.after_ps, ended.to, ended.token);
        if self.flows.wants_settling() {
            queue.schedule(now_ps, crate::queue::LAST, Step::Settle.into());
        }
    }

    /// Computes the rates of the flows that share links with what began or ended.
    fn on_settle(&mut self, queue: &mut impl Schedule<E>, now_ps: u64) {
        let (nodes, topology, costs) = (self.nodes, &self.topology, &self.costs);
        let capacity = |link: u32| {
            let class = match link.checked_sub(2 * nodes) {
                None => Class::Interface,
                Some(fabric) => topology.class(fabric),
            };
            costs.of(class).0.bytes_per_s()
        };
        self.flows.settle(now_ps, capacity, |end_ps, to, flow| {
            queue.schedule(end_ps, to, Step::FlowEnd(flow).into());
        });
    }
}

impl<E: Copy + From<Step>, Q: Schedule<E>> Carrier<Q> for Network<E> {
    /// What comes out of the queue, for the receiver, when the message has arrived.
    type Message = E;

    /// The nodes differ: what stays on a node crosses no network.
    fn send(&mut self, queue: &mut Q, sending: Sending, token: E) {
        self.carry(queue, sending, token);
    }
}

#[cfg(test)]
mod tests;
