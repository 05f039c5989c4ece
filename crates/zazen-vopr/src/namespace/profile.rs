//! What a seed makes of a run: how many hosts and clients, and which faults.

use crate::scheduler::MS;
use zazen_env::SeededRandom;
use zazen_namespace::node::Level;

/// What a seed makes of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    pub(crate) hosts: usize,
    pub(crate) replicas: u8,
    pub(crate) partitions: u32,
    pub(crate) clients: usize,
    pub(crate) level: Level,
    /// Of 1000 packets.
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    /// Of 1000 packets, those that come seconds late.
    pub(crate) late: u64,
    /// Daemons come back at once.
    pub(crate) quick: bool,
    /// Faults come just when the map or the stewards' leader changes.
    pub(crate) aimed: bool,
    pub(crate) delay_max_ns: u64,
    pub(crate) kills: bool,
    pub(crate) power: bool,
    pub(crate) parts: bool,
    pub(crate) pauses: bool,
    pub(crate) failed_syncs: bool,
    pub(crate) rot: bool,
    pub(crate) old_disks: bool,
    pub(crate) alone: bool,
    pub(crate) full_disks: bool,
    /// The stewards' leader dies again and again.
    pub(crate) elections: bool,
    /// A host is lost for good.
    pub(crate) gone: bool,
    /// Hosts that come when the namespace is in use.
    pub(crate) joins: usize,
    /// A host leaves, and perhaps its operator takes that back.
    pub(crate) leaves: bool,
    /// Clients also rename, link, commit and lock.
    pub(crate) works: bool,
    /// And use a file of chunks.
    pub(crate) chunks: bool,
    /// Directories of so many names are split.
    pub(crate) split_entries: u32,
    pub(crate) calm_ns: u64,
    pub(crate) end_ns: u64,
}

impl Profile {
    pub(crate) fn draw(random: &mut SeededRandom) -> Profile {
        let hosts = [1, 2, 3, 3, 4, 5][random.below(6) as usize];
        let replicas = if hosts == 1 { 1 } else { [1, 2, 2, 2, 3][random.below(5) as usize] };
        let level = [Level::Memory, Level::Written, Level::Synced][random.below(3) as usize];
        let synced = level == Level::Synced;
        let slowest = if random.percent(25) { 80 } else { 5 };
        // Where a disk may be spoiled, one node at a time is away: nobody else has what it had.
        let rot =
            random.percent(if replicas > 1 { 25 } else { 40 }) && (replicas > 1 || level != Level::Memory);
        let old_disks = replicas > 1 && hosts > 3 && random.percent(40);
        let alone = rot || old_disks;
        let mut profile = Profile {
            hosts,
            replicas,
            partitions: [1, 4, 8][random.below(3) as usize],
            clients: 2 + random.below(4) as usize,
            level,
            lost: if random.percent(40) { random.below(60) } else { 0 },
            doubled: if random.percent(40) { random.below(60) } else { 0 },
            late: if random.percent(30) { 1 + random.below(10) } else { 0 },
            quick: random.percent(30),
            aimed: random.percent(50) && !alone,
            delay_max_ns: MS / 2 + random.below(slowest) * MS,
            kills: random.percent(70),
            power: synced && random.percent(70),
            parts: hosts > 1 && random.percent(50) && !alone,
            pauses: random.percent(40) && !alone,
            failed_syncs: synced && random.percent(40) && !alone,
            rot,
            old_disks,
            alone,
            full_disks: random.percent(20) && !alone,
            elections: false,
            gone: hosts > 3 && replicas > 1 && !alone && random.percent(40),
            joins: if random.percent(25) { 1 + random.below(2) as usize } else { 0 },
            leaves: false,
            works: false,
            chunks: false,
            split_entries: if random.percent(50) { 3 } else { u32::MAX },
            calm_ns: 15_000 * MS,
            end_ns: 32_000 * MS,
        };
        match random.below(8) {
            // One disk that fails, and the power with it.
            0 => {
                (profile.hosts, profile.replicas, profile.level) =
                    (1 + random.below(2) as usize, 1, Level::Synced);
                (profile.power, profile.failed_syncs, profile.kills) = (true, true, true);
                (profile.rot, profile.old_disks, profile.alone, profile.joins) = (false, false, false, 0);
                (profile.gone, profile.full_disks) = (false, false);
            }
            // Elections, and stewards that restart meanwhile.
            1 => {
                (profile.hosts, profile.replicas) = (3 + 2 * random.below(2) as usize, 2);
                // What was only written does not survive that, where one node alone has it.
                let needs_sync = profile.power || profile.failed_syncs;
                profile.level = if needs_sync { Level::Synced } else { Level::Written };
                (profile.kills, profile.quick, profile.aimed, profile.parts) = (true, true, true, true);
                (profile.rot, profile.old_disks, profile.alone, profile.joins) = (false, false, false, 0);
                (profile.gone, profile.delay_max_ns, profile.elections) = (false, 60 * MS, true);
            }
            _ => {}
        }
        profile
    }
}
