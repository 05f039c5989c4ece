//! One simulated node: its disk, its clock, and the daemon that may run on it.

use crate::batch::Batch;
use crate::calls::Incoming;
use crate::content::FrameId;
use crate::disk::{Disk, HeldWrites, NodeDisk, NodeStore};
use crate::intake::Receiving;
use crate::mutant::Mutant;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use zazen_core::{Error, Origin, Result};
use zazen_env::{Clock, Environment, ManualClock, SimDisk, WatchedDisk};
use zazen_frames::copy::{self, Copying};
use zazen_frames::flight::{Flights, Ticket};
use zazen_frames::hand_out::HandOut;
use zazen_frames::misses::Misses;
use zazen_frames::outage::Health;
use zazen_frames::scan::Proof;
use zazen_frames::shares::Shares;
use zazen_store::{CachedFrame, EntriesCursor, Put, ScanGuard, Store, StoreConfig};
use zazen_wire::header::Header;

/// A clock that is off by some time and runs at a rate of its own.
pub(crate) struct Skewed {
    pub(crate) clock: Arc<ManualClock>,
    offset_ns: u64,
    /// Nanoseconds that it gains (or loses) in a millisecond.
    drift: i64,
}

impl Skewed {
    pub(crate) fn new(offset_ns: u64, drift: i64) -> Skewed {
        let clock = Arc::new(ManualClock::new(crate::content::EPOCH_NS));
        Skewed { clock, offset_ns, drift }
    }

    /// Moves it to where it is at `now_ns` of the world.
    pub(crate) fn set(&self, now_ns: u64) {
        let gained = (now_ns as i64 / 1_000_000) * self.drift;
        self.clock.set_ns(self.offset_ns.saturating_add(now_ns).saturating_add_signed(gained));
    }

    pub(crate) fn jump(&mut self, by_ns: u64) {
        self.offset_ns += by_ns;
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    pub(crate) fn wall_ns(&self) -> i64 {
        self.clock.wall_ns()
    }
}

/// One share of what a user may have under way, until it is dropped.
pub(crate) struct Share {
    shares: Users,
    user: u64,
}

/// What each user of a node may have under way.
type Users = Rc<RefCell<Shares<u64>>>;

impl Share {
    pub(crate) fn take(shares: &Users, user: u64) -> Option<Share> {
        shares.borrow_mut().take(&user, 1).then(|| Share { shares: shares.clone(), user })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.borrow_mut().give(&self.user, 1);
    }
}

/// How a miss can be handed out.
pub(crate) enum Way {
    /// It is in the cache now, and its user's rights have opened its source.
    Cached(Proof),
    /// As bytes.
    Inline(Vec<u8>),
}

/// A miss that was dealt with.
pub(crate) struct Arrived {
    pub(crate) result: Result<Way>,
    /// What it costs its user to be held until the reader comes.
    pub(crate) _share: Option<Share>,
}

/// A SCAN_NEXT without its reply.
pub(crate) struct Pending {
    pub(crate) header: Header,
    pub(crate) batch: Batch,
    /// Why frames of the group are refused.
    pub(crate) refusals: Vec<Option<Error>>,
    /// It waits for misses, at most this many.
    pub(crate) taking: Option<usize>,
}

/// A scan of one connection.
pub(crate) struct Scan {
    pub(crate) dataset: usize,
    pub(crate) order: HandOut<CachedFrame>,
    pub(crate) cursor: EntriesCursor,
    pub(crate) misses: Misses<Arrived>,
    /// Its workers, with what they cost their user.
    pub(crate) workers: Vec<Option<Share>>,
    /// Workers that rest until the next wake.
    pub(crate) resting: usize,
    pub(crate) pending: Option<Pending>,
    /// Keeps the dataset from eviction.
    pub(crate) guard: Option<ScanGuard>,
}

/// What the daemon knows of one connection.
#[derive(Default)]
pub(crate) struct Session {
    pub(crate) incoming: Incoming,
    pub(crate) pending: Option<(Header, Vec<u8>)>,
    pub(crate) receiving: Option<Box<Receiving>>,
    /// Datasets by handle.
    pub(crate) opened: Vec<usize>,
    pub(crate) scans: BTreeMap<u32, Scan>,
}

/// Something that the daemon is about to go on with.
pub(crate) enum Task {
    /// Commits a push whose bytes are all here; replies unless that was done.
    Commit { conn: u64, receiving: Box<Receiving>, replied: bool },
    /// Looks at the sources of the group that a scan hands out.
    Look { conn: u64, scan: u32 },
    /// A worker of a scan's misses asks what to do.
    Work { conn: u64, scan: u32 },
    /// Does what a copy from the backing store asked for.
    Copy(Box<Copy>),
    /// One who waits for another's copy has waited long enough.
    Impatient(Ticket),
}

/// A copy that a flight's leader makes.
pub(crate) struct Copy {
    pub(crate) ticket: Ticket,
    pub(crate) frame: FrameId,
    pub(crate) origin: Origin,
    pub(crate) machine: Copying,
    /// What the machine waits for.
    pub(crate) action: copy::Action,
    pub(crate) put: Option<Put<Disk>>,
}

/// A miss of a scan that waits for a copy from the backing store.
pub(crate) struct Waiting {
    pub(crate) conn: u64,
    pub(crate) scan: u32,
    pub(crate) frame: FrameId,
    pub(crate) origin: Origin,
    /// What its user's rights have opened.
    pub(crate) proof: Proof,
    pub(crate) share: Option<Share>,
}

/// Workers beyond each scan's first that a user of a node may have.
const FETCHERS: usize = 2;
/// Frames beyond each scan's first that a user of a node may have ahead of its readers.
const AHEAD: usize = 4;
/// Copies from the backing store that each user of a node may have at a time.
const SLOTS: usize = 2;

/// One node.
pub(crate) struct Node {
    pub(crate) disk: SimDisk,
    pub(crate) time: Skewed,
    pub(crate) store: Option<Arc<NodeStore>>,
    pub(crate) held: Option<HeldWrites>,
    /// Counts starts of the daemon: events for an earlier one are void.
    pub(crate) incarnation: u64,
    pub(crate) sessions: BTreeMap<u64, Session>,
    pub(crate) tasks: BTreeMap<u64, Task>,
    pub(crate) next_task: u64,
    pub(crate) flights: Flights<FrameId, u64>,
    pub(crate) waiting: BTreeMap<Ticket, Waiting>,
    pub(crate) next_ticket: u64,
    pub(crate) fetchers: Users,
    pub(crate) ahead: Users,
    /// What it knows of the backing store's health.
    pub(crate) health: Health,
    /// A fault has happened that may cost frames or room in ways that are not foreseen: errors of
    /// the disk, bad bits.
    pub(crate) tainted: bool,
    /// When something last happened that may make the node forget frames, in the world's time.
    pub(crate) forgot_ns: u64,
    /// Power has failed without a stop: copies of before may be bad, and nobody has looked.
    pub(crate) has_lost_power: bool,
    /// A crash of the disk at a step to come is a power failure, not a kill.
    pub(crate) crash_is_power: bool,
    /// Frames evicted so far, by the store's count of this start.
    pub(crate) evicted: u64,
    budget: u64,
    seed: u64,
}

fn users(max: usize) -> Users {
    Rc::new(RefCell::new(Shares::new(max)))
}

impl Node {
    pub(crate) fn new(seed: u64, budget: u64, time: Skewed) -> Node {
        Node {
            disk: SimDisk::new(seed, 1 << 32).with_clock(time.clock.clone()),
            time,
            store: None,
            held: None,
            incarnation: 0,
            sessions: BTreeMap::new(),
            tasks: BTreeMap::new(),
            next_task: 0,
            flights: Flights::new(SLOTS),
            waiting: BTreeMap::new(),
            next_ticket: 0,
            fetchers: users(FETCHERS),
            ahead: users(AHEAD),
            health: Health::default(),
            tainted: false,
            forgot_ns: 0,
            has_lost_power: false,
            crash_is_power: false,
            evicted: 0,
            budget,
            seed,
        }
    }

    /// The byte budget that it was given.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// Starts the daemon.
    pub(crate) fn start(&mut self, mutant: Option<Mutant>) -> Result<Arc<NodeStore>> {
        self.incarnation += 1;
        let factor = if mutant == Some(Mutant::IgnoreBudget) { 2 } else { 1 };
        let config = StoreConfig {
            budget_bytes: self.budget * factor,
            free_floor_bytes: 0,
            packed_bytes_max: 16 << 10,
        };
        let clock = self.time.clock.clone();
        let environment = Environment::simulated(clock.clone(), self.seed ^ self.incarnation << 32);
        let (disk, held) = NodeDisk::new(self.disk.clone(), mutant);
        let (store, _) = Store::open_in(environment, WatchedDisk::with_clock(disk, clock), config)?;
        (self.store, self.held, self.evicted) = (Some(store.clone()), Some(held), 0);
        Ok(store)
    }

    /// The daemon is gone; the disk is what `survive` leaves of it.
    pub(crate) fn end(&mut self, survive: impl FnOnce(&SimDisk) -> SimDisk) {
        let next = survive(&self.disk);
        self.tasks.clear();
        self.sessions.clear();
        self.waiting.clear();
        (self.flights, self.health) = (Flights::new(SLOTS), Health::default());
        (self.store, self.held) = (None, None);
        self.disk = next;
        self.incarnation += 1;
    }

    pub(crate) fn new_task(&mut self, task: Task) -> u64 {
        self.next_task += 1;
        self.tasks.insert(self.next_task, task);
        self.next_task
    }
}
