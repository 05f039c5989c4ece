//! A host: a daemon with its disk and clocks. It does what a driver of
//! [`zazen_namespace::node`] has to do.

use std::collections::{BTreeMap, VecDeque};
use zazen_core::{RelPath, Result};
use zazen_env::{Disk, DiskFile, DiskPath, SimDisk};
use zazen_namespace::NodeNo;
use zazen_namespace::node::{Action, Config, File, Files, Node, Start};

/// A host.
pub(crate) struct Host {
    pub(crate) address: String,
    pub(crate) disk: SimDisk,
    /// `None` while the daemon is dead.
    pub(crate) node: Option<Node>,
    /// Counts processes: what belongs to an earlier one is dropped.
    pub(crate) process: u64,
    /// Disk actions that wait, in their order.
    pub(crate) queue: VecDeque<Action>,
    pub(crate) works: bool,
    /// The process is stopped until then.
    pub(crate) paused_ns: u64,
    /// How much faster its clock runs, in millionths, and where it began.
    pub(crate) drift_ppm: i64,
    pub(crate) offset_ns: u64,
    pub(crate) wall_offset_ns: i64,
    /// The timer that is set, in world time.
    pub(crate) timer_ns: u64,
    /// An earlier state of the disk.
    pub(crate) backup: Option<SimDisk>,
    /// Whom requests are for, and whether their node's life had ended, by token.
    pub(crate) tokens: BTreeMap<u64, (usize, bool)>,
    pub(crate) next_token: u64,
    /// It is lost for good.
    pub(crate) is_gone: bool,
    /// The node that it was.
    pub(crate) gone_as: Option<NodeNo>,
    /// Whether its disk ever had a node's name.
    pub(crate) was_named: bool,
}

/// The folder of the node's files.
fn root() -> DiskPath {
    DiskPath::of(&RelPath::default())
}

/// Its file of this name.
fn path(name: &str) -> Result<DiskPath> {
    Ok(DiskPath::of(&RelPath::new(name)?))
}

impl Host {
    pub(crate) fn new(address: String, disk: SimDisk, drift_ppm: i64, offset_ns: u64) -> Host {
        Host {
            address,
            disk,
            node: None,
            process: 0,
            queue: VecDeque::new(),
            works: false,
            paused_ns: 0,
            drift_ppm,
            offset_ns,
            wall_offset_ns: 0,
            timer_ns: u64::MAX,
            backup: None,
            tokens: BTreeMap::new(),
            next_token: 0,
            is_gone: false,
            gone_as: None,
            was_named: false,
        }
    }

    /// The host's clock at this time of the world.
    pub(crate) fn clock_ns(&self, world_ns: u64) -> u64 {
        let drift = i128::from(world_ns) * i128::from(self.drift_ppm) / 1_000_000;
        self.offset_ns + (i128::from(world_ns) + drift) as u64
    }

    /// The world's time when the host's clock shows this.
    pub(crate) fn world_ns(&self, clock_ns: u64) -> u64 {
        let passed = i128::from(clock_ns.saturating_sub(self.offset_ns)) * 1_000_000;
        (passed / i128::from(1_000_000 + self.drift_ppm)) as u64 + 1
    }

    pub(crate) fn wall_ns(&self, world_ns: u64) -> i64 {
        1_700_000_000_000_000_000 + self.clock_ns(world_ns) as i64 + self.wall_offset_ns
    }

    /// Starts the daemon.
    pub(crate) fn start(&mut self, config: Config, start: Start, world_ns: u64) -> Result<()> {
        let files = read_all(&self.disk)?;
        self.node = Some(Node::open(config, &files, start, self.clock_ns(world_ns))?);
        Ok(())
    }

    /// Ends the process; what it had not given to the kernel is lost.
    pub(crate) fn stop(&mut self, power: bool) {
        self.node = None;
        self.process += 1;
        self.queue.clear();
        self.works = false;
        self.timer_ns = u64::MAX;
        self.tokens.clear();
        self.disk = if power { self.disk.power_fail() } else { self.disk.kill() };
    }
}

pub(super) fn read_all(disk: &impl Disk) -> Result<Files> {
    let mut files = Files::default();
    let mut names: Vec<String> = disk.list(&root())?.into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    for name in names {
        let Some(file) = File::named(&name) else { continue };
        let open = disk.open(&path(&name)?, false)?;
        let mut bytes = vec![0; open.len()? as usize];
        let read = open.read_full_at(&mut bytes, 0)?;
        bytes.truncate(read);
        files.files.insert(file, bytes);
    }
    Ok(files)
}

/// Does a disk action.
pub(crate) fn act(disk: &impl Disk, action: &Action) -> Result<()> {
    match action {
        Action::Append { segment, bytes, .. } => {
            let file = disk.open_append(&path(&File::Segment(*segment).name())?)?;
            file.write_all_at(bytes, file.len()?)
        }
        Action::Sync { segment, .. } => {
            let path = path(&File::Segment(*segment).name())?;
            disk.open_append(&path)?.sync_data()?;
            disk.sync_dir(&root())
        }
        Action::Put { file, bytes, .. } => {
            let (name, temporary) = (path(&file.name())?, path("temporary")?);
            if disk.stat(&temporary)?.is_some() {
                disk.remove(&temporary)?;
            }
            let new = disk.create(&temporary)?;
            new.write_all_at(bytes, 0)?;
            new.sync()?;
            disk.rename(&temporary, &name)?;
            disk.sync_dir(&root())
        }
        Action::Remove { file } => {
            let name = path(&file.name())?;
            if disk.stat(&name)?.is_some() { disk.remove(&name) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}
