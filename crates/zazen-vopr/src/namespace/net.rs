//! The network between hosts: packets, and what may become of them. [`Faulty`] loses, doubles and
//! delays them over whatever network lies below: none, whose way takes no time, or one of the
//! simulator's, with links that packets share.

use crate::scheduler::MS;
use zazen_core::Result;
use zazen_env::SeededRandom;
use zazen_sim::network::{Carrier, Fidelity, Network, Schedule, Sending, Step};
use zazen_sim::{Cluster, topology};

/// Picoseconds, the time of the simulator's networks, of a nanosecond.
const PS: u64 = 1000;

/// Bytes on their way.
#[derive(Clone)]
pub(crate) enum Packet {
    Peer(Vec<u8>),
    Ask { client: usize, bytes: Vec<u8> },
    Answer { client: usize, bytes: Vec<u8> },
}

impl Packet {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Packet::Peer(bytes) | Packet::Ask { bytes, .. } | Packet::Answer { bytes, .. } => bytes,
        }
    }
}

/// What happens to packets.
pub(crate) enum Travel {
    /// One reaches its host.
    Arrive(Packet),
    /// Something happens in the network below.
    Below(OnWay),
}

/// What a packet between two hosts may meet.
pub(crate) struct Faults {
    /// Nothing reaches the other host.
    pub(crate) parted: bool,
    /// Of 1000 packets; `None` while there are no such faults, and no draw for them.
    pub(crate) lost: Option<u64>,
    pub(crate) doubled: Option<u64>,
    pub(crate) late: Option<u64>,
    pub(crate) delay_max_ns: u64,
}

/// A world whose packets meet faults.
pub(crate) trait Rough: Schedule<Travel> {
    /// What there is between these hosts now; nothing but delays where faults are over.
    fn faults(&self, from: usize, to: usize) -> Faults;
    /// The world's random numbers.
    fn random(&mut self) -> &mut SeededRandom;
    /// Brings about faults that are aimed at this packet; how much later it comes for them.
    fn aim(&mut self, from: usize, to: usize, packet: &Packet) -> u64;
}

/// A packet, and how much later it comes than its way takes.
pub(crate) struct Late {
    late_ns: u64,
    packet: Packet,
}

/// What a packet goes over.
#[derive(Default)]
pub(crate) enum Below {
    /// Nothing: it is there at once.
    #[default]
    Nothing,
    /// The simulator's network.
    Simulated(Box<Simulated>),
}

/// A network of the simulator, and the packets on their way.
pub(crate) struct Simulated {
    network: Network<OnWay>,
    packets: Vec<Option<Late>>,
    free: Vec<u32>,
}

/// What happens in the network below.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OnWay {
    /// The packet of this number reached its host.
    Arrived(u32),
    /// An event of the network's own.
    Network(Step),
}

impl From<Step> for OnWay {
    fn from(step: Step) -> OnWay {
        OnWay::Network(step)
    }
}

impl Below {
    /// A network of so many hosts at one switch.
    pub(crate) fn simulated(hosts: usize, fidelity: Fidelity) -> Result<Below> {
        let hosts = hosts as u32;
        let network = Network::new(
            fidelity,
            topology::parse("star")?.of(hosts)?,
            hosts,
            Cluster::commodity().network_costs(),
        );
        Ok(Below::Simulated(Box::new(Simulated { network, packets: Vec::new(), free: Vec::new() })))
    }

    /// Something happened in the network below.
    pub(crate) fn happen(&mut self, world: &mut impl Schedule<Travel>, now_ns: u64, host: u32, event: OnWay) {
        let Below::Simulated(simulated) = self else { return };
        match event {
            OnWay::Network(step) => simulated.network.step(&mut InPs(world), now_ns * PS, step),
            OnWay::Arrived(number) => {
                simulated.free.push(number);
                if let Some(Late { late_ns, packet }) = simulated.packets[number as usize].take() {
                    world.schedule(now_ns + late_ns, host, Travel::Arrive(packet));
                }
            }
        }
    }
}

/// The world's queue for a network whose times are picoseconds.
struct InPs<'a, W>(&'a mut W);

impl<W: Schedule<Travel>> Schedule<OnWay> for InPs<'_, W> {
    fn schedule(&mut self, time_ps: u64, host: u32, event: OnWay) {
        self.0.schedule(time_ps.div_ceil(PS), host, Travel::Below(event));
    }
}

impl<W: Schedule<Travel>> Carrier<W> for Below {
    type Message = Late;

    fn send(&mut self, world: &mut W, sending: Sending, late: Late) {
        let Sending { now, from, to, .. } = sending;
        match self {
            Below::Simulated(simulated) if from != to => {
                let number = match simulated.free.pop() {
                    Some(number) => {
                        simulated.packets[number as usize] = Some(late);
                        number
                    }
                    None => {
                        simulated.packets.push(Some(late));
                        simulated.packets.len() as u32 - 1
                    }
                };
                let sending = Sending { now: now * PS, ..sending };
                simulated.network.send(&mut InPs(world), sending, OnWay::Arrived(number));
            }
            _ => {
                let Late { late_ns, packet } = late;
                world.schedule(now + late_ns, to, Travel::Arrive(packet));
            }
        }
    }
}

/// The faults, drawn from the world's random numbers as its profile has them.
#[derive(Default)]
pub(crate) struct Faulty<C> {
    pub(crate) below: C,
}

impl<W: Rough, C: Carrier<W, Message = Late>> Carrier<W> for Faulty<C> {
    type Message = Packet;

    fn send(&mut self, world: &mut W, sending: Sending, packet: Packet) {
        let (from, to) = (sending.from as usize, sending.to as usize);
        let is_far = from != to;
        let faults = world.faults(from, to);
        let meets = |world: &mut W, of_1000: Option<u64>| {
            of_1000.is_some_and(|of_1000| is_far && world.random().below(1000) < of_1000)
        };
        if faults.parted || meets(world, faults.lost) {
            return;
        }
        let copies = 1 + u64::from(meets(world, faults.doubled));
        for _ in 0..copies {
            let most = if is_far { faults.delay_max_ns } else { MS / 20 };
            let most = if world.random().percent(90) { most / 4 } else { most };
            let most = if meets(world, faults.late) { 4_000 * MS } else { most };
            let late_ns = MS / 50 + world.random().below(most + 1) + world.aim(from, to, &packet);
            self.below.send(world, sending, Late { late_ns, packet: packet.clone() });
        }
    }
}
