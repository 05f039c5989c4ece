//! What a seed makes of a run: how large the world is, and which faults there are.
//!
//! Each kind of fault is there in some seeds only: a fault that is always there hides what others
//! do.

use crate::scheduler::MS;
use zazen_env::SeededRandom;

/// Faults of the network, each in 1/1000 of the messages (of the pieces, for damage).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NetFaults {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) reset: u64,
    pub(crate) flipped: u64,
    /// The longest delay of a piece, which one in 20 may come near to.
    pub(crate) delay_max_ns: u64,
}

/// A run's size and faults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    pub(crate) nodes: usize,
    pub(crate) writers: usize,
    pub(crate) datasets: usize,
    /// Frames of each dataset.
    pub(crate) frames: u64,
    pub(crate) jobs: usize,
    /// Byte budget of each cache.
    pub(crate) budget: u64,
    pub(crate) net: NetFaults,
    pub(crate) partitions: bool,
    pub(crate) kills: bool,
    pub(crate) power_failures: bool,
    /// Daemons that stop in good order, of which some lose power afterwards.
    pub(crate) stops: bool,
    pub(crate) disk_errors: bool,
    /// Bits that go bad on disks.
    pub(crate) rot: bool,
    pub(crate) outages: bool,
    /// Frames that are written again.
    pub(crate) rewrites: bool,
    /// Nodes' clocks differ by up to this, and run up to 1/1000 faster or slower.
    pub(crate) skew_ns: u64,
    /// Faults end then.
    pub(crate) calm_ns: u64,
}

/// A budget that holds all frames of a run.
const ROOMY_BYTES: u64 = 64 << 20;

impl Profile {
    /// Whether caches are too small for all frames, so that they evict.
    pub(crate) fn is_tight(&self) -> bool {
        self.budget < ROOMY_BYTES
    }

    pub(crate) fn of(random: &mut SeededRandom) -> Profile {
        let mut some = |percent: u64, of_1000: u64| match random.percent(percent) {
            true => 1 + random.below(of_1000),
            false => 0,
        };
        let net = NetFaults {
            lost: some(40, 100),
            doubled: some(40, 300),
            reset: some(40, 100),
            flipped: some(30, 80),
            delay_max_ns: 0,
        };
        let delay_max_ns = [5, 50, 1_500][random.below(3) as usize] * MS;
        let tight = random.percent(35);
        Profile {
            nodes: 1 + random.below(4) as usize,
            writers: 1 + random.below(2) as usize,
            datasets: 1 + random.below(3) as usize,
            frames: 6 + random.below(26),
            jobs: 2 + random.below(3) as usize,
            budget: if tight { 250_000 + random.below(400_000) } else { ROOMY_BYTES },
            net: NetFaults { delay_max_ns, ..net },
            partitions: random.percent(35),
            kills: random.percent(45),
            power_failures: random.percent(25),
            stops: random.percent(30),
            disk_errors: random.percent(25),
            rot: random.percent(20),
            outages: random.percent(35),
            rewrites: random.percent(50),
            skew_ns: if random.percent(50) { random.below(5_000) * MS } else { 0 },
            calm_ns: (1_500 + random.below(2_500)) * MS,
        }
    }
}
