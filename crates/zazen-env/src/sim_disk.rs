//! A disk in memory that fails on demand, the same way for the same seed.
//!
//! Fault model. *Power failure*: names are a prefix of the changes made since they were last synced; each
//! file on its own keeps all it was given, falls back to what was synced, or ends as a mixture of new, old and
//! zeroed sectors of any length in between. *Kill*: all that was written stays. *Crash at step k*: the k-th changing
//! operation happens or doesn't, and nothing after it does. *Errors*: EIO of the k-th changing operation or read,
//! ENOSPC after so many bytes (with a short write before it), a read-only root.

use crate::disk::{Disk, DiskFile, DiskPath, Stat};
use crate::random::SeededRandom;
use crate::sim_tree::{Node, Tree};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use zazen_core::{Error, ErrorKind, Result};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;

struct Sim {
    tree: Tree,
    random: SeededRandom,
    steps: u64,
    reads: u64,
    crash_at: Option<u64>,
    fail_at: Option<(u64, i32)>,
    fail_read_at: Option<u64>,
    capacity: u64,
    /// What `free_bytes` goes by, where it differs.
    told_capacity: u64,
    read_only: bool,
    dead: bool,
    locked: bool,
}

/// A simulated disk. Clones are handles of the same disk, so that a test can keep one while a store owns another.
pub struct SimDisk {
    sim: Arc<Mutex<Sim>>,
    root: PathBuf,
    holds_lock: Mutex<bool>,
}

/// An open file of a [`SimDisk`].
pub struct SimFile {
    sim: Arc<Mutex<Sim>>,
    inode: usize,
    path: DiskPath,
}

fn guard(sim: &Mutex<Sim>) -> MutexGuard<'_, Sim> {
    sim.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn fault(errno: i32, what: &str, path: &DiskPath) -> Error {
    Error::io(format!("simulated {what} of {path}"), std::io::Error::from_raw_os_error(errno))
}

impl Sim {
    /// Counts a changing operation. `Ok(false)`: it must not happen, but nobody is left to be told.
    fn step(&mut self, what: &str, path: &DiskPath) -> Result<bool> {
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
        match self.fail_at {
            Some((step, errno)) if step == self.steps => Err(fault(errno, what, path)),
            _ => Ok(true),
        }
    }

    /// Ends a changing operation: after the crash step the caller sees an error even if the change happened.
    fn finish(&self, what: &str, path: &DiskPath) -> Result<()> {
        if self.dead { Err(fault(EIO, what, path)) } else { Ok(()) }
    }

    fn read_step(&mut self, path: &DiskPath) -> Result<()> {
        self.reads += 1;
        if self.dead || self.fail_read_at == Some(self.reads) {
            return Err(fault(EIO, "read", path));
        }
        Ok(())
    }

    fn used(&self) -> u64 {
        let files = self.tree.current.values();
        let bytes = files.map(|node| match node {
            Node::File(inode) => (self.tree.inodes[*inode].bytes.len() as u64).next_multiple_of(4096),
            Node::Dir => 0,
        });
        bytes.sum()
    }

    fn make_parents(&mut self, path: &DiskPath) -> Result<()> {
        let text = path.as_str();
        for (at, _) in text.match_indices('/') {
            match self.tree.current.get(&text[..at]) {
                Some(Node::Dir) => {}
                Some(Node::File(_)) => return Err(in_the_way(path)),
                None => self.tree.set(&text[..at], Node::Dir),
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
        SimDisk::of(Tree::default(), SeededRandom::new(seed), capacity)
    }

    fn of(tree: Tree, random: SeededRandom, capacity: u64) -> SimDisk {
        let sim = Sim {
            tree,
            random,
            steps: 0,
            reads: 0,
            crash_at: None,
            fail_at: None,
            fail_read_at: None,
            capacity,
            told_capacity: capacity,
            read_only: false,
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

    /// Bytes of all files, each rounded up to 4 KiB.
    pub fn used_bytes(&self) -> u64 {
        guard(&self.sim).used()
    }

    /// Dies at changing operation number `step` (from 1): it happens or not, and all later calls fail.
    pub fn crash_at(&self, step: u64) {
        guard(&self.sim).crash_at = Some(step);
    }

    /// Whether the crash step was reached.
    pub fn is_dead(&self) -> bool {
        guard(&self.sim).dead
    }

    /// Changing operation number `step` fails with EIO, once.
    pub fn fail_at(&self, step: u64) {
        guard(&self.sim).fail_at = Some((step, EIO));
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

    /// As [`SimDisk::set_capacity`], but `free_bytes` goes on telling the old figure: somebody else is filling
    /// the file system.
    pub fn set_lying_capacity(&self, bytes: u64) {
        guard(&self.sim).capacity = bytes;
    }

    /// A copy of the disk that goes its own way, with a seed of its own.
    pub fn fork(&self, seed: u64) -> SimDisk {
        let sim = guard(&self.sim);
        SimDisk::of(sim.tree.clone(), SeededRandom::new(seed), sim.capacity)
    }

    /// Whether all changes are refused with EROFS.
    pub fn set_read_only(&self, read_only: bool) {
        guard(&self.sim).read_only = read_only;
    }

    /// The disk as the next boot finds it. The old handles stay with the old disk, which is dead.
    pub fn power_fail(&self) -> SimDisk {
        let mut sim = guard(&self.sim);
        sim.dead = true;
        let mut random = sim.random.clone();
        let tree = sim.tree.after_power_failure(&mut random);
        SimDisk::of(tree, random, sim.capacity)
    }

    /// The disk as the next process finds it after the last one was killed.
    pub fn kill(&self) -> SimDisk {
        let mut sim = guard(&self.sim);
        sim.dead = true;
        SimDisk::of(sim.tree.after_kill(), sim.random.clone(), sim.capacity)
    }

    /// Paths and lengths of all files, sorted: for assertions.
    pub fn files(&self) -> Vec<(String, u64)> {
        let sim = guard(&self.sim);
        let file = |(path, node): (&String, &Node)| match node {
            Node::File(inode) => Some((path.clone(), sim.tree.inodes[*inode].bytes.len() as u64)),
            Node::Dir => None,
        };
        sim.tree.current.iter().filter_map(file).collect()
    }

    /// Changes a file's bytes behind everybody's back; false if there is no such file.
    pub fn tamper(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut sim = guard(&self.sim);
        let Some(Node::File(inode)) = sim.tree.current.get(path).copied() else { return false };
        change(&mut sim.tree.inodes[inode].bytes);
        sim.tree.inodes[inode].sync();
        true
    }

    fn file(&self, inode: usize, path: &DiskPath) -> SimFile {
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
        let mut inode = 0;
        if happens {
            sim.make_parents(path)?;
            inode = sim.tree.new_file(path.as_str());
        }
        sim.finish("create", path)?;
        Ok(self.file(inode, path))
    }

    fn open(&self, path: &DiskPath, _write: bool) -> Result<SimFile> {
        let mut sim = guard(&self.sim);
        sim.read_step(path)?;
        match sim.tree.current.get(path.as_str()) {
            Some(Node::File(inode)) => Ok(self.file(*inode, path)),
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
        sim.read_step(path)?;
        Ok(sim.tree.entries(path.as_str()).map(|(name, node)| (name.to_owned(), node == Node::Dir)).collect())
    }

    fn stat(&self, path: &DiskPath) -> Result<Option<Stat>> {
        let mut sim = guard(&self.sim);
        sim.read_step(path)?;
        Ok(sim.tree.current.get(path.as_str()).map(|node| match node {
            Node::Dir => Stat { is_file: false, is_dir: true, len: 0, marked: false },
            Node::File(inode) => {
                let inode = &sim.tree.inodes[*inode];
                Stat { is_file: true, is_dir: false, len: inode.bytes.len() as u64, marked: inode.marked }
            }
        }))
    }

    fn free_bytes(&self) -> Result<u64> {
        let sim = guard(&self.sim);
        Ok(sim.told_capacity.saturating_sub(sim.used()))
    }

    fn sync_dir(&self, path: &DiskPath) -> Result<()> {
        let mut sim = guard(&self.sim);
        if sim.step("sync", path)? {
            sim.tree.sync_dir(path.as_str());
        }
        sim.finish("sync", path)
    }

    fn sync_all(&self) -> Result<()> {
        let mut sim = guard(&self.sim);
        let path = DiskPath::own_dir(&zazen_core::RelPath::default());
        if sim.step("sync", &path)? {
            sim.tree.sync_all();
        }
        sim.finish("sync", &path)
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut sim = guard(&self.sim);
        sim.read_step(&self.path)?;
        let bytes = &sim.tree.inodes[self.inode].bytes;
        let start = bytes.len().min(offset as usize);
        let count = buffer.len().min(bytes.len() - start);
        buffer[..count].copy_from_slice(&bytes[start..start + count]);
        Ok(count)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let mut sim = guard(&self.sim);
        let happens = sim.step("write", &self.path)?;
        let end = offset as usize + bytes.len();
        let have = sim.tree.inodes[self.inode].bytes.len();
        let grows = (end.next_multiple_of(4096) as u64).saturating_sub(have.next_multiple_of(4096) as u64);
        let room = sim.capacity.saturating_sub(sim.used());
        // The kernel writes what fits before it says that the disk is full.
        let fits =
            if grows > room { bytes.len().saturating_sub((grows - room) as usize) } else { bytes.len() };
        if happens && fits > 0 {
            let target = &mut sim.tree.inodes[self.inode].bytes;
            let (start, end) = (offset as usize, offset as usize + fits);
            target.resize(target.len().max(end), 0);
            target[start..end].copy_from_slice(&bytes[..fits]);
        }
        if fits < bytes.len() {
            return Err(fault(ENOSPC, "write", &self.path));
        }
        sim.finish("write", &self.path)
    }

    fn len(&self) -> Result<u64> {
        let mut sim = guard(&self.sim);
        sim.read_step(&self.path)?;
        Ok(sim.tree.inodes[self.inode].bytes.len() as u64)
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        let mut sim = guard(&self.sim);
        if sim.step("truncate", &self.path)? {
            sim.tree.inodes[self.inode].bytes.resize(bytes as usize, 0);
        }
        sim.finish("truncate", &self.path)
    }

    fn sync(&self) -> Result<()> {
        let mut sim = guard(&self.sim);
        if sim.step("sync", &self.path)? {
            sim.tree.inodes[self.inode].sync();
        }
        sim.finish("sync", &self.path)
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
        sim.read_step(&self.path)?;
        copy.write_all_at(&sim.tree.inodes[self.inode].bytes, 0).map_err(fail)?;
        Ok(copy)
    }
}
