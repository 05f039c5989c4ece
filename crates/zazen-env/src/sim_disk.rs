//! A disk in memory that fails on demand, the same way for the same seed.
//!
//! Fault model. *Power failure*: names are a prefix of the changes made since they were last
//! synced; each file on its own keeps all that it was given, falls back to what was synced, or ends
//! as a mixture of new and old sectors of any length in between. *Kill*: all that was written
//! stays. *Crash at step k*: the k-th changing operation happens or does not, and nothing after it
//! does. *Errors*: EIO of the k-th changing operation or read, ENOSPC after so many bytes (with a
//! short write before it), a read-only root. *A failed sync* of files loses data as on Linux: each
//! dirty page may have missed the platter, all count as clean from then on, and the next sync
//! succeeds without them; programs see the lost pages until the kernel drops its copies, which may
//! be at once. A failed sync of a folder loses nothing.

use crate::clock::{Clock, ManualClock};
use crate::disk::{Disk, DiskFile, DiskPath, FileStat};
use crate::random::SeededRandom;
use crate::sim_inode::{Inode, PAGE};
use crate::sim_trace::Trace;
use crate::sim_tree::{Node, Tree};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use zazen_core::{Error, ErrorKind, Result};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EOPNOTSUPP: i32 = 95;

struct Sim {
    tree: Tree,
    random: SeededRandom,
    clock: Arc<dyn Clock>,
    trace: Trace,
    steps: u64,
    reads: u64,
    crash_at: Option<u64>,
    fail_at: Option<u64>,
    fail_read_at: Option<u64>,
    fail_next_sync: bool,
    capacity: u64,
    /// The capacity that `free_bytes` reports, if it differs.
    told_capacity: u64,
    read_only: bool,
    has_reflinks: bool,
    dead: bool,
    locked: bool,
}

/// A simulated disk. Clones are handles of the same disk, so that a test can keep one while a store
/// owns another.
pub struct SimDisk {
    sim: Arc<Mutex<Sim>>,
    root: PathBuf,
    holds_lock: Mutex<bool>,
}

/// An open file of a [`SimDisk`].
pub struct SimFile {
    sim: Arc<Mutex<Sim>>,
    inode: u64,
    path: DiskPath,
}

fn guard(sim: &Mutex<Sim>) -> MutexGuard<'_, Sim> {
    sim.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn fault(errno: i32, what: &str, path: &DiskPath) -> Error {
    Error::io(format!("simulated {what} of {path}"), std::io::Error::from_raw_os_error(errno))
}

impl Sim {
    /// Counts a changing operation. `Ok(false)`: the operation must not happen, and its caller has
    /// already crashed.
    fn step(&mut self, what: &str, path: &DiskPath) -> Result<bool> {
        self.trace.note(what, path.as_str());
        if self.dead {
            return Err(fault(EIO, what, path));
        }
        if self.read_only {
            return Err(fault(EROFS, what, path));
        }
        self.steps += 1;
        if self.crash_at == Some(self.steps) {
            self.dead = true;
            return Ok(self.random.percent(50));
        }
        if self.fails_now() { Err(fault(EIO, what, path)) } else { Ok(true) }
    }

    fn fails_now(&self) -> bool {
        self.fail_at == Some(self.steps)
    }

    /// As [`Sim::step`], for a sync of data.
    fn sync_step(&mut self, what: &str, path: &DiskPath) -> Result<bool> {
        let happens = self.step(what, path)?;
        match std::mem::take(&mut self.fail_next_sync) && !self.dead {
            true => Err(fault(EIO, what, path)),
            false => Ok(happens),
        }
    }

    /// Ends a changing operation: after the crash step the caller sees an error even if the change
    /// happened.
    fn finish(&self, what: &str, path: &DiskPath) -> Result<()> {
        if self.dead { Err(fault(EIO, what, path)) } else { Ok(()) }
    }

    fn read_step(&mut self, what: &str, path: &DiskPath) -> Result<()> {
        self.trace.note(what, path.as_str());
        self.reads += 1;
        if self.dead || self.fail_read_at == Some(self.reads) {
            return Err(fault(EIO, "read", path));
        }
        Ok(())
    }

    fn used(&self) -> u64 {
        self.tree.pages() * PAGE as u64
    }

    /// The number of pages for which the disk has space.
    fn room(&self) -> u64 {
        self.capacity.saturating_sub(self.used()) / PAGE as u64
    }

    fn now_ns(&self) -> i64 {
        self.clock.wall_ns()
    }

    fn make_parents(&mut self, path: &DiskPath) -> Result<()> {
        let text = path.as_str();
        for (at, _) in text.match_indices('/') {
            match self.tree.current.get(&text[..at]) {
                Some(Node::Dir) => {}
                Some(Node::File(_)) => return Err(in_the_way(path)),
                None => self.tree.set_dir(&text[..at]),
            }
        }
        Ok(())
    }
}

fn in_the_way(path: &DiskPath) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("{path}: another file, directory or link is in the way; move it out of the cache"),
    )
}

fn absent(path: &DiskPath) -> Error {
    Error::new(ErrorKind::NotFound, format!("no file {path}"))
}

impl SimDisk {
    /// An empty disk of `capacity` bytes; `seed` decides what its crashes leave.
    pub fn new(seed: u64, capacity: u64) -> SimDisk {
        let clock = Arc::new(ManualClock::default());
        SimDisk::of(Tree::default(), SeededRandom::new(seed), clock, capacity)
    }

    /// The same disk, on which files are dated by `clock`. Without it their time stands still at 0.
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> SimDisk {
        guard(&self.sim).clock = clock;
        self
    }

    fn of(tree: Tree, random: SeededRandom, clock: Arc<dyn Clock>, capacity: u64) -> SimDisk {
        let sim = Sim {
            tree,
            random,
            clock,
            trace: Trace::default(),
            steps: 0,
            reads: 0,
            crash_at: None,
            fail_at: None,
            fail_read_at: None,
            fail_next_sync: false,
            capacity,
            told_capacity: capacity,
            read_only: false,
            has_reflinks: true,
            dead: false,
            locked: false,
        };
        SimDisk {
            sim: Arc::new(Mutex::new(sim)),
            root: PathBuf::from("/simulated"),
            holds_lock: Mutex::default(),
        }
    }

    /// Changing operations so far.
    pub fn steps(&self) -> u64 {
        guard(&self.sim).steps
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        guard(&self.sim).reads
    }

    /// A digest of all operations so far, in order, with what was written: equal for equal
    /// histories.
    pub fn trace(&self) -> u64 {
        guard(&self.sim).trace.digest()
    }

    /// Files that the simulation holds in memory: those with a name, and those that something else
    /// still needs.
    pub fn inode_count(&self) -> usize {
        guard(&self.sim).tree.inode_count()
    }

    /// Bytes that all files with a name take, in pages of 4 KiB; holes take none.
    pub fn used_bytes(&self) -> u64 {
        guard(&self.sim).used()
    }

    /// Dies at changing operation number `step` (from 1): it happens or not, and all later calls
    /// fail.
    pub fn crash_at(&self, step: u64) {
        guard(&self.sim).crash_at = Some(step);
    }

    /// Whether the crash step was reached.
    pub fn is_dead(&self) -> bool {
        guard(&self.sim).dead
    }

    /// Changing operation number `step` fails with EIO, once; a sync then loses data, as the fault
    /// model says.
    pub fn fail_at(&self, step: u64) {
        guard(&self.sim).fail_at = Some(step);
    }

    /// The kernel drops its copies of the pages that failed syncs could not write: reads show the
    /// platter.
    pub fn drop_lost_pages(&self) {
        guard(&self.sim).tree.update_unsettled(Inode::drop_lost);
    }

    /// Whether files can share their blocks.
    pub fn set_reflinks(&self, has_reflinks: bool) {
        guard(&self.sim).has_reflinks = has_reflinks;
    }

    /// The next sync of a file or of the whole disk fails with EIO and loses data, as the fault
    /// model says.
    pub fn fail_next_sync(&self) {
        guard(&self.sim).fail_next_sync = true;
    }

    /// Read number `read` (from 1) fails with EIO, once.
    pub fn fail_read_at(&self, read: u64) {
        guard(&self.sim).fail_read_at = Some(read);
    }

    /// Bytes that the disk can hold from now on; beyond them writes end short with ENOSPC.
    pub fn set_capacity(&self, bytes: u64) {
        let mut sim = guard(&self.sim);
        (sim.capacity, sim.told_capacity) = (bytes, bytes);
    }

    /// As [`SimDisk::set_capacity`], but `free_bytes` still reports the old figure, as if another
    /// program filled the file system.
    pub fn set_lying_capacity(&self, bytes: u64) {
        guard(&self.sim).capacity = bytes;
    }

    /// An independent copy of the disk, with a seed of its own.
    pub fn fork(&self, seed: u64) -> SimDisk {
        let sim = guard(&self.sim);
        SimDisk::of(sim.tree.after_kill(), SeededRandom::new(seed), sim.clock.clone(), sim.capacity)
    }

    /// Whether all changes are refused with EROFS.
    pub fn set_read_only(&self, read_only: bool) {
        guard(&self.sim).read_only = read_only;
    }

    /// The disk as the next boot finds it. The old handles stay with the old disk, which is dead.
    pub fn power_fail(&self) -> SimDisk {
        self.next("power failure", Tree::after_power_failure)
    }

    /// The disk as the next process finds it after the last one was killed.
    pub fn kill(&self) -> SimDisk {
        self.next("kill", |tree, _| tree.after_kill())
    }

    fn next(&self, what: &str, survive: impl FnOnce(&Tree, &mut SeededRandom) -> Tree) -> SimDisk {
        let mut sim = guard(&self.sim);
        sim.dead = true;
        let mut random = sim.random.clone();
        let tree = survive(&sim.tree, &mut random);
        let next = SimDisk::of(tree, random, sim.clock.clone(), sim.capacity);
        {
            let mut after = guard(&next.sim);
            (after.trace, after.has_reflinks) = (sim.trace, sim.has_reflinks);
            after.trace.note(what, "");
        }
        next
    }

    /// Paths and lengths of all files, sorted: for assertions.
    pub fn files(&self) -> Vec<(String, u64)> {
        let sim = guard(&self.sim);
        let file = |(path, node): (&String, &Node)| match node {
            Node::File(inode) => Some((path.clone(), sim.tree.file(*inode).map_or(0, Inode::len))),
            Node::Dir => None,
        };
        sim.tree.current.iter().filter_map(file).collect()
    }

    /// Changes a file's bytes without an operation, as damage does; false if there is no such file.
    pub fn tamper(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut sim = guard(&self.sim);
        let Some(Node::File(inode)) = sim.tree.current.get(path).copied() else { return false };
        let mut bytes = sim.tree.file(inode).map_or_else(Vec::new, Inode::bytes);
        change(&mut bytes);
        sim.trace.note("tamper", path);
        sim.trace.bytes(0, &bytes);
        sim.tree.update(inode, |file| file.replace(&bytes));
        true
    }

    fn file(&self, sim: &mut Sim, inode: u64, path: &DiskPath) -> SimFile {
        sim.tree.opened(inode);
        SimFile { sim: self.sim.clone(), inode, path: path.clone() }
    }

    fn rename_with(&self, from: &DiskPath, to: &DiskPath, replace: bool) -> Result<()> {
        let mut sim = guard(&self.sim);
        let happens = sim.step("rename", to)?;
        if !sim.tree.current.contains_key(from.as_str()) {
            return Err(absent(from));
        }
        match sim.tree.current.get(to.as_str()) {
            Some(Node::File(_)) if replace => {}
            None => {}
            Some(_) => return Err(in_the_way(to)),
        }
        if happens {
            sim.make_parents(to)?;
            sim.tree.rename(from.as_str(), to.as_str());
        }
        sim.finish("rename", to)
    }
}

impl Clone for SimDisk {
    fn clone(&self) -> SimDisk {
        SimDisk { sim: self.sim.clone(), root: self.root.clone(), holds_lock: Mutex::default() }
    }
}

impl Drop for SimDisk {
    fn drop(&mut self) {
        if *self.holds_lock.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            guard(&self.sim).locked = false;
        }
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn root(&self) -> &Path {
        &self.root
    }

    fn lock(&self) -> Result<()> {
        let mut sim = guard(&self.sim);
        if sim.read_only {
            let path = DiskPath::own(&zazen_core::RelPath::default(), "lock");
            return Err(fault(EROFS, "lock", &path));
        }
        if sim.locked {
            return Err(Error::new(
                ErrorKind::Busy,
                "the simulated cache root is in use; drop the other store",
            ));
        }
        sim.locked = true;
        *self.holds_lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        Ok(())
    }

    fn create(&self, path: &DiskPath) -> Result<SimFile> {
        let mut sim = guard(&self.sim);
        let happens = sim.step("create", path)?;
        if sim.tree.current.contains_key(path.as_str()) {
            return Err(in_the_way(path));
        }
        if happens {
            sim.make_parents(path)?;
            let now_ns = sim.now_ns();
            sim.tree.new_file(path.as_str(), now_ns);
        }
        sim.finish("create", path)?;
        match sim.tree.current.get(path.as_str()).copied() {
            Some(Node::File(inode)) => Ok(self.file(&mut sim, inode, path)),
            _ => Err(absent(path)),
        }
    }

    fn open(&self, path: &DiskPath, _write: bool) -> Result<SimFile> {
        let mut sim = guard(&self.sim);
        sim.read_step("open", path)?;
        match sim.tree.current.get(path.as_str()).copied() {
            Some(Node::File(inode)) => Ok(self.file(&mut sim, inode, path)),
            Some(Node::Dir) => Err(in_the_way(path)),
            None => Err(absent(path)),
        }
    }

    fn open_append(&self, path: &DiskPath) -> Result<SimFile> {
        match self.open(path, true) {
            Err(error) if error.kind() == ErrorKind::NotFound => self.create(path),
            other => other,
        }
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        self.rename_with(from, to, true)
    }

    fn rename_new(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        self.rename_with(from, to, false)
    }

    fn remove(&self, path: &DiskPath) -> Result<()> {
        let mut sim = guard(&self.sim);
        let happens = sim.step("remove", path)?;
        match sim.tree.current.get(path.as_str()) {
            Some(Node::File(_)) => {}
            Some(Node::Dir) => return Err(in_the_way(path)),
            None => return Err(absent(path)),
        }
        if happens {
            sim.tree.unset(path.as_str());
        }
        sim.finish("remove", path)
    }

    fn remove_dir_if_empty(&self, path: &DiskPath) -> Result<()> {
        let mut sim = guard(&self.sim);
        let happens = sim.step("remove", path)?;
        let is_dir = sim.tree.current.get(path.as_str()) == Some(&Node::Dir);
        if happens && is_dir && sim.tree.entries(path.as_str()).next().is_none() {
            sim.tree.unset(path.as_str());
        }
        sim.finish("remove", path)
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<(String, bool)>> {
        let mut sim = guard(&self.sim);
        sim.read_step("list", path)?;
        Ok(sim.tree.entries(path.as_str()).map(|(name, node)| (name.to_owned(), node == Node::Dir)).collect())
    }

    fn stat(&self, path: &DiskPath) -> Result<Option<FileStat>> {
        let mut sim = guard(&self.sim);
        sim.read_step("stat", path)?;
        let node = sim.tree.current.get(path.as_str()).copied();
        Ok(node.map(|node| match node {
            Node::Dir => FileStat { is_dir: true, ..FileStat::default() },
            Node::File(inode) => sim.tree.file(inode).map(Inode::stat).unwrap_or_default(),
        }))
    }

    fn free_bytes(&self) -> Result<u64> {
        let sim = guard(&self.sim);
        Ok(sim.told_capacity.saturating_sub(sim.used()))
    }

    fn sync_dir(&self, path: &DiskPath) -> Result<()> {
        let mut sim = guard(&self.sim);
        if sim.step("sync folder", path)? {
            sim.tree.sync_dir(path.as_str());
        }
        sim.finish("sync", path)
    }

    fn sync_all(&self) -> Result<()> {
        let mut sim = guard(&self.sim);
        let path = DiskPath::own_dir(&zazen_core::RelPath::default());
        let stepped = sim.sync_step("sync", &path);
        if stepped.is_err() && !sim.dead && !sim.read_only {
            let Sim { tree, random, .. } = &mut *sim;
            tree.update_unsettled(|file| file.sync_fails(random));
        }
        if stepped? {
            sim.tree.sync_all();
        }
        sim.finish("sync", &path)
    }
}

impl SimFile {
    /// A changing operation on the file.
    fn change(&self, what: &str, change: impl FnOnce(&mut Inode, i64)) -> Result<()> {
        let mut sim = guard(&self.sim);
        if sim.step(what, &self.path)? {
            let now_ns = sim.now_ns();
            sim.tree.update(self.inode, |file| change(file, now_ns));
        }
        sim.finish(what, &self.path)
    }

    fn sync_with(&self, what: &str, sync: impl FnOnce(&mut Inode)) -> Result<()> {
        let mut sim = guard(&self.sim);
        let stepped = sim.sync_step(what, &self.path);
        if stepped.is_err() && !sim.dead && !sim.read_only {
            let Sim { tree, random, .. } = &mut *sim;
            tree.update(self.inode, |file| file.sync_fails(random));
        }
        if stepped? {
            sim.tree.update(self.inode, sync);
        }
        sim.finish(what, &self.path)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        guard(&self.sim).tree.closed(self.inode);
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut sim = guard(&self.sim);
        sim.read_step("read", &self.path)?;
        Ok(sim.tree.file(self.inode).map_or(0, |file| file.read(buffer, offset)))
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let mut sim = guard(&self.sim);
        let happens = sim.step("write", &self.path)?;
        sim.trace.bytes(offset, bytes);
        let (room, now_ns) = (sim.room(), sim.now_ns());
        // The kernel writes what fits before it says that the disk is full.
        let fits = sim.tree.file(self.inode).map_or(0, |file| file.fitting(offset, bytes.len(), room));
        if happens {
            sim.tree.update(self.inode, |file| file.write(&bytes[..fits], offset, now_ns));
        }
        if fits < bytes.len() {
            return Err(fault(ENOSPC, "write", &self.path));
        }
        sim.finish("write", &self.path)
    }

    fn stat(&self) -> Result<FileStat> {
        let mut sim = guard(&self.sim);
        sim.read_step("stat", &self.path)?;
        Ok(sim.tree.file(self.inode).map(Inode::stat).unwrap_or_default())
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        self.change("truncate", |file, now_ns| file.set_len(bytes, now_ns))
    }

    fn sync(&self) -> Result<()> {
        self.sync_with("sync", Inode::sync)
    }

    fn sync_data(&self) -> Result<()> {
        self.sync_with("sync data", Inode::sync_data)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        let end = offset.saturating_add(bytes);
        let mut sim = guard(&self.sim);
        let happens = sim.step("allocate", &self.path)?;
        if sim.tree.file(self.inode).map_or(0, |file| file.missing(offset, end)) > sim.room() {
            return Err(fault(ENOSPC, "allocate", &self.path));
        }
        let now_ns = sim.now_ns();
        if happens {
            sim.tree.update(self.inode, |file| file.allocate(offset, end, now_ns));
        }
        sim.finish("allocate", &self.path)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.change("punch hole", |file, _| file.clear(offset, offset.saturating_add(bytes)))
    }

    fn set_times(&self, accessed_ns: i64, modified_ns: i64) -> Result<()> {
        self.change("set times", |file, _| file.set_times(accessed_ns, modified_ns))
    }

    fn reflink_from(&self, source: &SimFile) -> Result<()> {
        let mut sim = guard(&self.sim);
        let happens = sim.step("reflink", &self.path)?;
        if !sim.has_reflinks || !Arc::ptr_eq(&self.sim, &source.sim) {
            return Err(fault(EOPNOTSUPP, "reflink", &self.path));
        }
        let Some(shared) = sim.tree.file(source.inode).cloned() else { return Err(absent(&source.path)) };
        let now_ns = sim.now_ns();
        if happens {
            sim.tree.update(self.inode, |file| file.share(&shared, now_ns));
        }
        sim.finish("reflink", &self.path)
    }

    fn mark(&self, _handed_out: bool) -> Result<()> {
        let mut sim = guard(&self.sim);
        if sim.step("mark", &self.path)? {
            sim.tree.mark(self.inode);
        }
        sim.finish("mark", &self.path)
    }

    fn to_std(&self) -> Result<File> {
        let fail = |cause| Error::io("make a temporary copy of a simulated file", cause);
        let copy = rustix::fs::memfd_create("zazen-simulated", rustix::fs::MemfdFlags::CLOEXEC)
            .map(File::from)
            .map_err(|errno| fail(errno.into()))?;
        let mut sim = guard(&self.sim);
        sim.read_step("copy", &self.path)?;
        let bytes = sim.tree.file(self.inode).map_or_else(Vec::new, Inode::bytes);
        copy.write_all_at(&bytes, 0).map_err(fail)?;
        Ok(copy)
    }
}
