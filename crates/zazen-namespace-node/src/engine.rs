//! What keeps the metadata: the seam between the driver and the pure machines.
//!
//! `Solo` has all partitions of a namespace of one node in memory, and loses them with the daemon.

use std::collections::VecDeque;
use zazen_namespace::operation::{Request, Response};
use zazen_namespace::partition::{self, Partition, Settings};
use zazen_namespace::service::{MapView, NodeView, SeatView};
use zazen_namespace::{Epoch, Incarnation, InodeId, NodeNo, PartitionNo};

/// What the engine is told.
#[derive(Debug)]
pub enum Event {
    /// A client asks.
    Request {
        /// Names the request in its reply.
        token: u64,
        /// What is asked.
        request: Request,
    },
    /// Bytes of another node's engine came.
    Peer(Vec<u8>),
    /// A disk action is done, or failed.
    Done {
        /// The action's token.
        token: u64,
        /// Whether it succeeded.
        ok: bool,
    },
    /// Time has passed.
    Timer,
}

/// What the engine wants done.
#[derive(Debug)]
pub enum Action {
    /// Answer a request.
    Reply(u64, Response),
    /// Bytes for another node's engine. May be lost.
    Send {
        /// `host:port` of its daemon.
        address: String,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Something for the node's disk, in order.
    Disk(DiskAction),
    /// An object of this node is not needed any more.
    DropObject(InodeId, u64),
    /// The engine answers nobody any more.
    Broken(String),
}

/// Something for the files of the node. Each with a token is answered by [`Event::Done`].
#[derive(Debug)]
pub enum DiskAction {
    /// Append to a file, which is made if it is missing.
    Append {
        /// The file's name.
        file: String,
        /// For [`Event::Done`].
        token: u64,
        /// What to append.
        bytes: Vec<u8>,
    },
    /// Sync a file and its name.
    Sync {
        /// The file's name.
        file: String,
        /// For [`Event::Done`].
        token: u64,
    },
    /// Write a whole file, atomically and durably.
    Put {
        /// The file's name.
        file: String,
        /// For [`Event::Done`].
        token: u64,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Remove a file.
    Remove {
        /// The file's name.
        file: String,
    },
}

/// What keeps the metadata of a node.
pub trait Engine: Send {
    /// Takes an event. Times in nanoseconds: a clock that never goes back, and the time of day.
    fn step(&mut self, now_ns: u64, wall_ns: i64, event: Event);
    /// Appends what is to be done, after the last of some events.
    fn flush(&mut self, now_ns: u64, wall_ns: i64, actions: &mut Vec<Action>);
    /// When it wants [`Event::Timer`].
    fn wakes_ns(&self) -> u64;
    /// Who this node is: its number (`None` while it has none) and its life.
    fn identity(&self) -> (Option<NodeNo>, Incarnation);
    /// The map's epoch.
    fn epoch(&self) -> Epoch;
    /// The map.
    fn map(&self) -> MapView;
    /// What it tells of itself, for people.
    fn status(&self) -> serde_json::Value;
}

/// No engine yet: the node waits for what it needs to begin.
pub struct Forming {
    /// What it waits for, for people.
    pub waits_for: String,
}

impl Engine for Forming {
    fn step(&mut self, _now_ns: u64, _wall_ns: i64, _event: Event) {}
    fn flush(&mut self, _now_ns: u64, _wall_ns: i64, _actions: &mut Vec<Action>) {}
    fn wakes_ns(&self) -> u64 {
        u64::MAX
    }
    fn identity(&self) -> (Option<NodeNo>, Incarnation) {
        (None, Incarnation(0))
    }
    fn epoch(&self) -> Epoch {
        Epoch(0)
    }
    fn map(&self) -> MapView {
        MapView { epoch: Epoch(0), nodes: Vec::new(), partitions: Vec::new() }
    }
    fn status(&self) -> serde_json::Value {
        serde_json::json!({"waits_for": self.waits_for})
    }
}

/// All partitions, on one node, in memory.
pub struct Solo {
    partitions: Vec<Partition>,
    actions: Vec<partition::Action>,
    replies: Vec<Action>,
    name: String,
    address: String,
    incarnation: Incarnation,
    next_tick_ns: u64,
}

/// How often partitions hear that time has passed.
const TICK_NS: u64 = 250_000_000;

impl Solo {
    /// The number of the only node.
    const NODE: NodeNo = NodeNo(1);

    /// An empty namespace.
    pub fn new(settings: &Settings, name: &str, address: &str, incarnation: Incarnation) -> Solo {
        let partition = |number| Partition::new(PartitionNo(number), settings.clone());
        Solo {
            partitions: (0..settings.partitions).map(partition).collect(),
            actions: Vec::new(),
            replies: Vec::new(),
            name: name.to_owned(),
            address: address.to_owned(),
            incarnation,
            next_tick_ns: 0,
        }
    }

    /// Brings an event to a partition, and what follows from it to the others.
    fn bring(&mut self, wall_ns: i64, to: PartitionNo, event: partition::Event) {
        let mut events = VecDeque::from([(to, event)]);
        while let Some((to, event)) = events.pop_front() {
            let Some(partition) = self.partitions.get_mut(to.0 as usize) else { continue };
            partition.step(wall_ns, event, &mut self.actions);
            for action in self.actions.drain(..) {
                match action {
                    partition::Action::Log(_) => {}
                    partition::Action::Reply { token, response } => {
                        self.replies.push(Action::Reply(token, response));
                    }
                    partition::Action::Send { to: other, message } => {
                        events.push_back((other, partition::Event::Peer { from: to, message }));
                    }
                    partition::Action::DropObject { id, generation, .. } => {
                        self.replies.push(Action::DropObject(id, generation));
                    }
                }
            }
        }
    }
}

impl Engine for Solo {
    fn step(&mut self, now_ns: u64, wall_ns: i64, event: Event) {
        match event {
            Event::Request { token, request } => {
                let to = request.operation.partition();
                self.bring(wall_ns, to, partition::Event::Request { token, request });
            }
            Event::Timer if now_ns >= self.next_tick_ns => {
                self.next_tick_ns = now_ns + TICK_NS;
                for number in 0..self.partitions.len() as u32 {
                    self.bring(wall_ns, PartitionNo(number), partition::Event::Tick);
                }
            }
            Event::Timer | Event::Peer(_) | Event::Done { .. } => {}
        }
    }

    fn flush(&mut self, _now_ns: u64, _wall_ns: i64, actions: &mut Vec<Action>) {
        actions.append(&mut self.replies);
    }

    fn wakes_ns(&self) -> u64 {
        self.next_tick_ns
    }

    fn identity(&self) -> (Option<NodeNo>, Incarnation) {
        (Some(Solo::NODE), self.incarnation)
    }

    fn epoch(&self) -> Epoch {
        Epoch(1)
    }

    fn map(&self) -> MapView {
        let node =
            NodeView { node: Solo::NODE, name: self.name.clone(), addr: self.address.clone(), up: true };
        let seat = SeatView { primary: Solo::NODE, backups: Vec::new() };
        MapView { epoch: Epoch(1), nodes: vec![node], partitions: vec![seat; self.partitions.len()] }
    }

    fn status(&self) -> serde_json::Value {
        serde_json::json!({
            "engine": "solo",
            "partitions": self.partitions.len(),
            "durability": "none: the metadata is lost with the daemon",
        })
    }
}
