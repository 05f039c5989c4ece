//! What keeps the metadata: the seam between the driver and the pure machine.

use zazen_core::Result;
use zazen_namespace::map::{Keepers, Member, State};
use zazen_namespace::node::{self, Files, Node, Start};
use zazen_namespace::operation::{Request, Response};
use zazen_namespace::service::{MapView, NodeView, SeatView};
use zazen_namespace::{Epoch, Incarnation, InodeId, NodeNo};

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
    /// The operator wants this node to go, to stay, or to be forgotten.
    Wish(State),
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
    fn flush(&mut self, actions: &mut Vec<Action>);
    /// When it wants [`Event::Timer`].
    fn wakes_ns(&self) -> u64;
    /// The node's number, also after its life has ended; `None` while it has none.
    fn number(&self) -> Option<NodeNo>;
    /// Whether it takes part, by its map; `None` while it has no number.
    fn state(&self) -> Option<State>;
    /// Whether it is one of the stewards, by its map.
    fn is_steward(&self) -> bool;
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
    fn flush(&mut self, _actions: &mut Vec<Action>) {}
    fn wakes_ns(&self) -> u64 {
        u64::MAX
    }
    fn number(&self) -> Option<NodeNo> {
        None
    }
    fn state(&self) -> Option<State> {
        None
    }
    fn is_steward(&self) -> bool {
        false
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

/// The machine of `zazen_namespace::node`: replicated partitions with a log.
pub struct Replicated {
    node: Node,
    actions: Vec<node::Action>,
}

impl Replicated {
    /// Begins a life from the files of the node's folder.
    pub fn open(config: node::Config, files: &Files, start: Start, now_ns: u64) -> Result<Replicated> {
        Ok(Replicated { node: Node::open(config, files, start, now_ns)?, actions: Vec::new() })
    }
}

impl Engine for Replicated {
    fn step(&mut self, now_ns: u64, wall_ns: i64, event: Event) {
        let event = match event {
            Event::Request { token, request } => node::Event::Request { token, request },
            Event::Peer(bytes) => node::Event::Peer { bytes },
            Event::Done { token, ok } => node::Event::Done { token, ok },
            Event::Timer => node::Event::Timer,
            Event::Wish(state) => node::Event::Wish { state },
        };
        self.node.step(now_ns, wall_ns, event);
    }

    fn flush(&mut self, actions: &mut Vec<Action>) {
        self.node.flush(&mut self.actions);
        actions.extend(self.actions.drain(..).map(|action| match action {
            node::Action::Reply { token, response } => Action::Reply(token, response),
            node::Action::Send { address, bytes } => Action::Send { address, bytes },
            node::Action::Append { segment, token, bytes } => {
                Action::Disk(DiskAction::Append { file: node::File::Segment(segment).name(), token, bytes })
            }
            node::Action::Sync { segment, token } => {
                Action::Disk(DiskAction::Sync { file: node::File::Segment(segment).name(), token })
            }
            node::Action::Put { file, token, bytes } => {
                Action::Disk(DiskAction::Put { file: file.name(), token, bytes })
            }
            node::Action::Remove { file } => Action::Disk(DiskAction::Remove { file: file.name() }),
            node::Action::DropObject { id, generation } => Action::DropObject(id, generation),
            node::Action::Broken { why } => Action::Broken(why),
        }));
    }

    fn wakes_ns(&self) -> u64 {
        self.node.wakes_ns()
    }

    fn number(&self) -> Option<NodeNo> {
        Some(self.node.number()).filter(|number| number.0 > 0)
    }

    fn state(&self) -> Option<State> {
        self.node.state()
    }

    fn is_steward(&self) -> bool {
        self.node.map().stewards.contains(&self.node.number())
    }

    fn identity(&self) -> (Option<NodeNo>, Incarnation) {
        let number = self.node.number();
        let known = self.node.map().lives(number, self.node.incarnation());
        (Some(number).filter(|_| known), self.node.incarnation())
    }

    fn epoch(&self) -> Epoch {
        self.node.map().epoch
    }

    fn map(&self) -> MapView {
        let map = self.node.map();
        let node = |member: &Member| NodeView {
            node: member.node,
            key: if member.state == State::Gone { 0 } else { member.key },
            // The metadata does not know it.
            name: String::new(),
            addr: member.address.clone(),
            up: member.is_in() && member.incarnation.0 != 0,
            state: member.state,
        };
        let seat =
            |keepers: &Keepers| SeatView { primary: keepers.primary, backups: keepers.backups.clone() };
        MapView {
            epoch: map.epoch,
            nodes: map.nodes.iter().map(node).collect(),
            partitions: map.partitions.iter().map(seat).collect(),
        }
    }

    fn status(&self) -> serde_json::Value {
        let status = self.node.status();
        let map = self.node.map();
        serde_json::json!({
            "namespace": format!("{:032x}", map.namespace),
            "has_lease": status.has_lease,
            "leads_stewards": status.leads,
            "stewards": map.stewards.iter().map(|node| node.0).collect::<Vec<_>>(),
            "replicas": map.replicas,
            "primary_of": status.primary_of,
            "backup_of": status.backup_of,
            "damaged_partitions": status.damaged.iter().map(|number| number.0).collect::<Vec<_>>(),
        })
    }
}
