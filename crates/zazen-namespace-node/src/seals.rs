//! Checksums of objects, and which objects are damaged.
//!
//! A *seal* says what the bytes of an object were when nobody wrote it any more: length, time of
//! the last change, and a checksum for each block. It counts while length and time are still those
//! of the object: a program's write changes the time, a disk that returns other bytes does not.
//!
//! Only an object that nobody has open for writing is sealed, and only some time after its last
//! change: a change that follows has another time. [The
//! format](../../../docs/formats/namespace-data.md).

use crate::folder::{replace, sub};
use crate::handles::lock;
use crate::objects::{self, ObjectName, ObjectStat};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno as Kernel;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace::Errno;
use zazen_wire::checksum::{crc32c, frame_checksum};
use zazen_wire::codec::{Reader, Writer};

/// Bytes under one checksum.
pub const BLOCK_BYTES: u64 = 64 << 10;
/// How long an object must have been left alone before it is sealed. More than a tick of the coarse
/// clock of any file system: a later change has another time.
pub const QUIET_NS: i64 = 250_000_000;
/// Seals that are kept open.
const OPEN_MAX: usize = 256;
/// Blocks that are read at a time.
const BLOCKS_AT_ONCE: u64 = 16;
/// `ZZNS`.
const MAGIC: u32 = 0x534e_5a5a;
const VERSION: u32 = 1;
/// Bytes of a seal before its checksums.
const HEAD_BYTES: usize = 56;
/// The list of damaged objects.
const DAMAGED: &str = "damaged";
/// The longest list that is read.
const DAMAGED_BYTES_MAX: u64 = 256 << 20;

/// What the bytes of an object were.
pub struct Seal {
    /// Length.
    pub bytes: u64,
    /// When it was changed last.
    pub modified_ns: i64,
    file: File,
}

impl Seal {
    /// The checksums of `count` blocks from the block `first` on.
    pub fn sums(&self, first: u64, count: u64) -> std::io::Result<Vec<u64>> {
        let mut bytes = vec![0; count as usize * 8];
        self.file.read_exact_at(&mut bytes, HEAD_BYTES as u64 + first * 8)?;
        let mut reader = Reader::new("Seal", &bytes);
        (0..count).map(|_| reader.u64().map_err(std::io::Error::other)).collect()
    }

    /// Copies it, whole, to an empty file.
    pub(crate) fn copy_to(&self, into: &File) -> std::io::Result<()> {
        let length = HEAD_BYTES as u64 + self.blocks() * 8;
        let mut bytes = vec![0; length.min(1 << 20) as usize];
        let mut at = 0;
        while at < length {
            let some = &mut bytes[..(length - at).min(1 << 20) as usize];
            self.file.read_exact_at(some, at)?;
            into.write_all_at(some, at)?;
            at += some.len() as u64;
        }
        Ok(())
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.bytes.div_ceil(BLOCK_BYTES)
    }

    fn matches(&self, stat: &ObjectStat) -> bool {
        (self.bytes, self.modified_ns) == (stat.bytes, stat.modified_ns)
    }
}

fn head(name: ObjectName, stat: &ObjectStat) -> Vec<u8> {
    let mut head = Writer::new();
    head.u32(MAGIC);
    head.u32(VERSION);
    head.u64(name.id.0);
    head.u64(name.generation);
    head.u64(stat.bytes);
    head.i64(stat.modified_ns);
    head.u64(BLOCK_BYTES);
    let sealed = head.into_bytes();
    let mut head = Writer::new();
    head.raw(&sealed);
    head.u32(crc32c(&sealed));
    head.u32(0);
    head.into_bytes()
}

/// Length and time that the head of a seal of `name` says.
fn read_head(name: ObjectName, bytes: &[u8]) -> Result<(u64, i64)> {
    let corrupt = |why: &str| {
        Error::new(
            ErrorKind::Corrupt,
            format!("the checksums of inode {}: {why}; they are made anew", name.id),
        )
    };
    let sealed = bytes.get(..48).ok_or_else(|| corrupt("cut"))?;
    let mut reader = Reader::new("Seal", bytes);
    let (magic, version) = (reader.u32()?, reader.u32()?);
    let of = (reader.u64()?, reader.u64()?);
    let (length, modified_ns, block) = (reader.u64()?, reader.i64()?, reader.u64()?);
    if magic != MAGIC || reader.u32()? != crc32c(sealed) {
        return Err(corrupt("damaged"));
    }
    if version != VERSION || block != BLOCK_BYTES {
        return Err(corrupt("of another version"));
    }
    if of != (name.id.0, name.generation) {
        return Err(corrupt("of another object"));
    }
    Ok((length, modified_ns))
}

/// The seal of `name` in a file. None: it is cut.
pub(crate) fn read(name: ObjectName, file: File) -> Result<Option<Seal>> {
    let within = |error| Error::io(format!("the checksums of inode {}", name.id), error);
    let mut bytes = [0; HEAD_BYTES];
    let length = file.metadata().map_err(within)?.len();
    if file.read_exact_at(&mut bytes, 0).is_err() {
        return Ok(None);
    }
    let (object_bytes, modified_ns) = read_head(name, &bytes)?;
    let seal = Seal { bytes: object_bytes, modified_ns, file };
    // One that a crash cut never counted.
    Ok((seal.blocks().checked_mul(8) == length.checked_sub(HEAD_BYTES as u64)).then_some(seal))
}

/// Seals that are kept open, the oldest first.
#[derive(Default)]
struct Kept {
    seals: HashMap<ObjectName, Arc<Seal>>,
    order: VecDeque<ObjectName>,
}

/// The seals of a node. For any thread.
pub struct Seals {
    root: OwnedFd,
    kept: Mutex<Kept>,
    /// Objects and their blocks that are damaged.
    damaged: Mutex<BTreeMap<ObjectName, BTreeSet<u64>>>,
}

impl Seals {
    /// The seals in the folder `root`.
    pub fn open(root: OwnedFd) -> Result<Seals> {
        let within = |error| Error::io("the list of damaged files", error);
        let damaged =
            match rustix::fs::openat(&root, DAMAGED, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
                Err(Kernel::NOENT) => BTreeMap::new(),
                Err(errno) => return Err(within(errno.into())),
                Ok(fd) => {
                    let mut text = String::new();
                    File::from(fd).take(DAMAGED_BYTES_MAX).read_to_string(&mut text).map_err(within)?;
                    text.lines().filter_map(parse_damaged).collect()
                }
            };
        Ok(Seals { root, kept: Mutex::default(), damaged: Mutex::new(damaged) })
    }

    /// The seal of the object, if it still counts.
    pub fn get(&self, name: ObjectName, stat: &ObjectStat) -> Option<Arc<Seal>> {
        let kept = lock(&self.kept).seals.get(&name).map(Arc::clone);
        if let Some(seal) = kept.filter(|seal| seal.matches(stat)) {
            return Some(seal);
        }
        let seal = match self.load(name) {
            Ok(seal) => Arc::new(seal?),
            Err(error) => {
                tracing::warn!("namespace: {error}");
                return None;
            }
        };
        if !seal.matches(stat) {
            return None;
        }
        let mut kept = lock(&self.kept);
        while kept.order.len() >= OPEN_MAX {
            if let Some(oldest) = kept.order.pop_front() {
                kept.seals.remove(&oldest);
            }
        }
        if kept.seals.insert(name, Arc::clone(&seal)).is_none() {
            kept.order.push_back(name);
        }
        Some(seal)
    }

    /// The seal of an object that is not here: it was sealed when it went.
    pub(crate) fn of_absent(&self, name: ObjectName) -> Option<Seal> {
        self.load(name).unwrap_or_else(|error| {
            tracing::warn!("namespace: {error}");
            None
        })
    }

    /// Brings the object's seal to the disk: its bytes are about to go.
    pub(crate) fn sync(&self, name: ObjectName) -> std::io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        for path in [name.path(), name.folder()] {
            let opened = rustix::fs::openat(&self.root, path, flags, Mode::empty())?;
            rustix::fs::fsync(opened)?;
        }
        Ok(rustix::fs::fsync(&self.root)?)
    }

    fn load(&self, name: ObjectName) -> Result<Option<Seal>> {
        let within = |error| Error::io(format!("the checksums of inode {}", name.id), error);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = match rustix::fs::openat(&self.root, name.path(), flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Kernel::NOENT) => return Ok(None),
            Err(errno) => return Err(within(errno.into())),
        };
        read(name, opened)
    }

    /// Takes the seal of an object whose bytes are in the archive alone. The disk has it when this
    /// returns.
    pub(crate) fn take(&self, name: ObjectName, seal: &Seal) -> std::io::Result<()> {
        let folder = sub(self.root.as_fd(), &name.folder())?;
        let fresh = format!("{}.new", name.file());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let into = File::from(rustix::fs::openat(&folder, &fresh, flags, Mode::from_raw_mode(0o600))?);
        seal.copy_to(&into)?;
        rustix::fs::renameat(&folder, &fresh, &folder, name.file())?;
        self.forget(name);
        self.mark_whole(name);
        self.sync(name)
    }

    /// Seals the object as it is. False if it changed meanwhile, or too short a time ago. Nobody
    /// has it mapped.
    pub fn seal(&self, name: ObjectName, object: &File, now_ns: i64) -> std::result::Result<bool, Errno> {
        self.seal_synced(name, object, now_ns, || Ok(()))
    }

    /// Seals the object as [`Seals::seal`] does, after `sync`, which brings it to the disk if a
    /// program may have it mapped. A mapping outlives the close. The first store to a page that the
    /// disk has changes the time; a store to a page that waits for the disk does not.
    pub fn seal_synced(
        &self,
        name: ObjectName,
        object: &File,
        now_ns: i64,
        sync: impl FnOnce() -> std::result::Result<(), Errno>,
    ) -> std::result::Result<bool, Errno> {
        let before = objects::stat(object)?;
        sync()?;
        let stat = objects::stat(object)?;
        if (stat.bytes, stat.modified_ns) != (before.bytes, before.modified_ns) {
            return Ok(false);
        }
        if now_ns.saturating_sub(stat.modified_ns) < QUIET_NS && stat.modified_ns <= now_ns {
            return Ok(false);
        }
        let within = |error: std::io::Error| {
            tracing::warn!("namespace: checksums of inode {}: {error}", name.id);
            error.raw_os_error().and_then(|errno| u16::try_from(errno).ok()).map_or(Errno::EIO, Errno::of)
        };
        let folder = sub(self.root.as_fd(), &name.folder()).map_err(within)?;
        let fresh = format!("{}.new", name.file());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let made = rustix::fs::openat(&folder, &fresh, flags, Mode::from_raw_mode(0o600));
        let mut file = std::io::BufWriter::new(File::from(made.map_err(|errno| within(errno.into()))?));
        let written = (|| {
            file.write_all(&head(name, &stat))?;
            let mut blocks = vec![0; (BLOCKS_AT_ONCE * BLOCK_BYTES) as usize];
            let mut at = 0;
            while at < stat.bytes {
                let wanted = (stat.bytes - at).min(blocks.len() as u64) as usize;
                let got = objects::read(object, &mut blocks[..wanted], at).map_err(disk)?;
                let mut sums = Writer::new();
                blocks[..got].chunks(BLOCK_BYTES as usize).for_each(|block| sums.u64(frame_checksum(block)));
                file.write_all(&sums.into_bytes())?;
                if got < wanted {
                    break;
                }
                at += got as u64;
            }
            file.flush()
        })();
        let same = written.is_ok() && objects::stat(object)? == stat;
        if !same {
            rustix::fs::unlinkat(&folder, &fresh, AtFlags::empty()).ok();
            return written.map(|()| false).map_err(within);
        }
        rustix::fs::renameat(&folder, &fresh, &folder, name.file()).map_err(|errno| within(errno.into()))?;
        self.forget(name);
        Ok(true)
    }

    fn forget(&self, name: ObjectName) {
        let mut kept = lock(&self.kept);
        if kept.seals.remove(&name).is_some() {
            kept.order.retain(|other| *other != name);
        }
    }

    /// The object is gone, or has no byte any more.
    pub fn remove(&self, name: ObjectName) {
        self.forget(name);
        rustix::fs::unlinkat(&self.root, name.path(), AtFlags::empty()).ok();
        let mut damaged = lock(&self.damaged);
        if damaged.remove(&name).is_some() {
            self.keep_damaged(&damaged);
        }
    }

    /// Bytes of the object's blocks are not what they were.
    pub fn mark_damaged(&self, name: ObjectName, blocks: &[u64]) {
        let mut damaged = lock(&self.damaged);
        let known = damaged.entry(name).or_default();
        let before = known.len();
        known.extend(blocks);
        if known.len() > before {
            tracing::error!(
                "namespace: inode {} (generation {}): {} blocks of {BLOCK_BYTES} bytes are not what was \
                 written, block {} first; reading them fails; remove the file, or write it anew",
                name.id,
                name.generation,
                known.len(),
                known.first().copied().unwrap_or_default(),
            );
            self.keep_damaged(&damaged);
        }
    }

    /// The blocks have their bytes again.
    pub fn mark_whole(&self, name: ObjectName) {
        let mut damaged = lock(&self.damaged);
        if damaged.remove(&name).is_some() {
            self.keep_damaged(&damaged);
        }
    }

    /// How many objects are damaged.
    pub fn damaged_count(&self) -> usize {
        lock(&self.damaged).len()
    }

    /// Whether the object has damaged blocks.
    pub fn is_damaged(&self, name: ObjectName) -> bool {
        lock(&self.damaged).contains_key(&name)
    }

    /// Whether one of `count` blocks from the block `first` on is damaged.
    pub fn any_damaged(&self, name: ObjectName, first: u64, count: u64) -> bool {
        let damaged = lock(&self.damaged);
        damaged
            .get(&name)
            .is_some_and(|blocks| blocks.range(first..first.saturating_add(count)).next().is_some())
    }

    fn keep_damaged(&self, damaged: &BTreeMap<ObjectName, BTreeSet<u64>>) {
        let lines = damaged.iter().map(|(name, blocks)| {
            let blocks: Vec<String> = blocks.iter().map(u64::to_string).collect();
            format!("{} {}\n", name.file(), blocks.join(","))
        });
        let text: String = lines.collect();
        if let Err(error) = replace(self.root.as_fd(), DAMAGED, text.as_bytes()) {
            tracing::error!("namespace: the list of damaged files: {error}; it counts until the daemon ends");
        }
    }

    /// Reads at `offset`, checked where the object is sealed: fewer bytes only where it ends. `EIO`
    /// for bytes that are not what was written.
    pub fn read(
        &self,
        name: ObjectName,
        object: &File,
        offset: u64,
        bytes: usize,
    ) -> std::result::Result<Vec<u8>, Errno> {
        let first = offset / BLOCK_BYTES;
        let last = (offset + bytes as u64).div_ceil(BLOCK_BYTES);
        if self.any_damaged(name, first, last - first) {
            return Err(Errno::EIO);
        }
        let stat = objects::stat(object)?;
        let Some(seal) = self.get(name, &stat) else { return plain(object, offset, bytes) };
        let end = (offset + bytes as u64).min(seal.bytes);
        if offset >= end {
            return plain(object, offset, bytes);
        }
        let start = first * BLOCK_BYTES;
        let stop = end.next_multiple_of(BLOCK_BYTES).min(seal.bytes);
        let Ok((mut got, bad)) = check(object, &seal, start, stop) else { return Err(Errno::EIO) };
        if !bad.is_empty() {
            // Written since: then other bytes are right.
            if objects::stat(object)? != stat {
                return plain(object, offset, bytes);
            }
            self.mark_damaged(name, &bad);
            if !bad.iter().all(|block| block * BLOCK_BYTES >= end || (block + 1) * BLOCK_BYTES <= offset) {
                return Err(Errno::EIO);
            }
        }
        got.truncate((end - start) as usize);
        got.drain(..(offset - start) as usize);
        Ok(got)
    }

    /// Checks blocks of the object from the block `from` on, as long as `goes_on`. The block to
    /// continue with, or `None` at the end; and whether the object is sealed at all.
    pub fn verify(
        &self,
        name: ObjectName,
        object: &File,
        from: u64,
        goes_on: impl Fn() -> bool,
    ) -> std::result::Result<Verified, Errno> {
        let stat = objects::stat(object)?;
        let Some(seal) = self.get(name, &stat) else {
            return Ok(Verified { sealed: false, next: None, bytes: 0 });
        };
        let mut at = from;
        let mut bytes = 0;
        while at < seal.blocks() {
            if !goes_on() {
                return Ok(Verified { sealed: true, next: Some(at), bytes });
            }
            let stop = ((at + BLOCKS_AT_ONCE) * BLOCK_BYTES).min(seal.bytes);
            let (_, bad) = check(object, &seal, at * BLOCK_BYTES, stop)?;
            bytes += stop - at * BLOCK_BYTES;
            if !bad.is_empty() {
                if objects::stat(object)? != stat {
                    return Ok(Verified { sealed: false, next: None, bytes });
                }
                self.mark_damaged(name, &bad);
            }
            at += BLOCKS_AT_ONCE;
        }
        Ok(Verified { sealed: true, next: None, bytes })
    }
}

/// What [`Seals::verify`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Whether there was a seal that counts.
    pub sealed: bool,
    /// The block to continue with.
    pub next: Option<u64>,
    /// Bytes that were checked.
    pub bytes: u64,
}

fn disk(errno: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(i32::from(errno as u16))
}

fn plain(object: &File, offset: u64, bytes: usize) -> std::result::Result<Vec<u8>, Errno> {
    let mut into = vec![0; bytes];
    let count = objects::read(object, &mut into, offset)?;
    into.truncate(count);
    Ok(into)
}

/// The bytes from `start`, the beginning of a block, to `stop`, the end of one; and the blocks that
/// are not as the seal says. What the disk cannot read is not as the seal says.
fn check(
    object: &File,
    seal: &Seal,
    start: u64,
    stop: u64,
) -> std::result::Result<(Vec<u8>, Vec<u64>), Errno> {
    let mut bytes = vec![0; (stop - start) as usize];
    let first = start / BLOCK_BYTES;
    let count = (stop - start).div_ceil(BLOCK_BYTES);
    let sums = seal.sums(first, count).map_err(|_| Errno::EIO)?;
    let mut bad = Vec::new();
    if objects::read(object, &mut bytes, start).is_ok_and(|got| got == bytes.len()) {
        for ((block, got), sum) in (first..).zip(bytes.chunks(BLOCK_BYTES as usize)).zip(sums) {
            if frame_checksum(got) != sum {
                bad.push(block);
            }
        }
    } else {
        for (block, (got, sum)) in (first..).zip(bytes.chunks_mut(BLOCK_BYTES as usize).zip(sums)) {
            let read = objects::read(object, got, block * BLOCK_BYTES);
            if read != Ok(got.len()) || frame_checksum(got) != sum {
                bad.push(block);
            }
        }
    }
    Ok((bytes, bad))
}

fn parse_damaged(line: &str) -> Option<(ObjectName, BTreeSet<u64>)> {
    let (name, blocks) = line.split_once(' ')?;
    let blocks = blocks.split(',').map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
    Some((ObjectName::parse(name)?, blocks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::wall_ns;
    use zazen_namespace::InodeId;

    const LATER: i64 = 3_600_000_000_000;

    fn with_object(bytes: &[u8]) -> (tempfile::TempDir, Seals, ObjectName, File) {
        let dir = tempfile::tempdir().unwrap();
        let root = sub(File::open(dir.path()).unwrap().as_fd(), "sums").unwrap();
        let path = dir.path().join("object");
        std::fs::write(&path, bytes).unwrap();
        let object = File::options().read(true).write(true).open(path).unwrap();
        (dir, Seals::open(root).unwrap(), ObjectName { id: InodeId(7), generation: 9 }, object)
    }

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
    }

    /// Changes a byte as a bad disk would: no time changes.
    fn flip(object: &File, at: u64) {
        let meta = object.metadata().unwrap();
        let mut byte = [0];
        object.read_exact_at(&mut byte, at).unwrap();
        object.write_all_at(&[byte[0] ^ 4], at).unwrap();
        object.set_times(std::fs::FileTimes::new().set_modified(meta.modified().unwrap())).unwrap();
    }

    #[test]
    fn a_flipped_bit_is_an_error_wherever_it_is_and_other_blocks_stay_readable() {
        let data = pattern(3 * BLOCK_BYTES as usize + 77);
        for at in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 5, 3 * BLOCK_BYTES + 76] {
            let (_dir, seals, name, object) = with_object(&data);
            assert_eq!(seals.seal(name, &object, wall_ns() + LATER), Ok(true));
            assert_eq!(seals.read(name, &object, 0, data.len() + 9).unwrap(), data);
            flip(&object, at);
            for (offset, bytes) in [(0, data.len()), (at as usize, 1), (at as usize / 2, data.len())] {
                assert_eq!(seals.read(name, &object, offset as u64, bytes), Err(Errno::EIO), "flipped {at}");
            }
            let other = (at / BLOCK_BYTES + 1) % 3 * BLOCK_BYTES + 3;
            let expected = &data[other as usize..other as usize + 20];
            assert_eq!(seals.read(name, &object, other, 20).unwrap(), expected);
            assert!(seals.is_damaged(name));
            // It is known after a restart too, and after the rest was written.
            let again = Seals::open(seals.root.try_clone().unwrap()).unwrap();
            object.write_all_at(b"x", other).unwrap();
            assert_eq!(again.read(name, &object, at, 1), Err(Errno::EIO));
            again.remove(name);
            let last = Seals::open(seals.root.try_clone().unwrap()).unwrap();
            assert_eq!(last.damaged_count(), 0);
            assert_eq!(last.read(name, &object, other, 1).unwrap(), b"x");
        }
    }

    #[test]
    fn a_write_ends_a_seal_and_a_new_one_counts() {
        let (_dir, seals, name, object) = with_object(&pattern(100_000));
        assert_eq!(seals.seal(name, &object, wall_ns()), Ok(false), "it was changed a moment ago");
        assert_eq!(seals.seal(name, &object, wall_ns() + LATER), Ok(true));
        std::thread::sleep(std::time::Duration::from_millis(20));
        object.write_all_at(b"other bytes", 70_000).unwrap();
        let stat = objects::stat(&object).unwrap();
        assert!(seals.get(name, &stat).is_none());
        assert_eq!(seals.read(name, &object, 70_000, 11).unwrap(), b"other bytes");
        assert_eq!(seals.seal(name, &object, wall_ns() + LATER), Ok(true));
        assert!(seals.get(name, &stat).is_some());
        assert_eq!(seals.read(name, &object, 70_000, 11).unwrap(), b"other bytes");
        object.set_len(10).unwrap();
        assert_eq!(seals.read(name, &object, 0, 100).unwrap(), pattern(10));
    }

    #[test]
    fn a_store_through_a_mapping_that_outlived_the_close_is_no_damage() {
        use rustix::mm::{MapFlags, ProtFlags};
        let (dir, seals, name, object) = with_object(&pattern(3 * 4096));
        if rustix::fs::fstatfs(&object).unwrap().f_type == 0x0102_1994 {
            println!("not run: {} is a tmpfs, where a store never changes the time", dir.path().display());
            return;
        }
        let (protection, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a fresh mapping of a file of that length, unmapped below; it is used as raw
        // bytes.
        let map = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, shared, &object, 0) };
        let map = map.unwrap();
        // SAFETY: within the mapping, which nothing else refers to.
        let store = |byte: u8| unsafe { map.cast::<u8>().write_volatile(byte) };
        store(1);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let sync = || object.sync_data().map_err(|_| Errno::EIO);
        assert_eq!(seals.seal_synced(name, &object, wall_ns() + LATER, sync), Ok(true));
        let sealed = objects::stat(&object).unwrap();
        assert_eq!(seals.read(name, &object, 0, 1).unwrap(), [1]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        store(2);
        assert_eq!(seals.read(name, &object, 0, 1).unwrap(), [2]);
        assert!(seals.get(name, &sealed).is_some() && !seals.is_damaged(name));
        // SAFETY: as above.
        unsafe { rustix::mm::munmap(map, 4096) }.unwrap();
    }

    #[test]
    fn verification_goes_on_where_it_stopped_and_finds_all() {
        let blocks = 3 * BLOCKS_AT_ONCE;
        let (_dir, seals, name, object) = with_object(&pattern((blocks * BLOCK_BYTES) as usize));
        assert!(!seals.verify(name, &object, 0, || true).unwrap().sealed);
        seals.seal(name, &object, wall_ns() + LATER).unwrap();
        flip(&object, 5);
        flip(&object, (blocks - 1) * BLOCK_BYTES);
        let asked = std::cell::Cell::new(0);
        let one = || asked.replace(asked.get() + 1) == 0;
        let first = seals.verify(name, &object, 0, one).unwrap();
        assert_eq!(first.next, Some(BLOCKS_AT_ONCE));
        assert!(seals.any_damaged(name, 0, 1) && !seals.any_damaged(name, 1, blocks));
        let rest = seals.verify(name, &object, BLOCKS_AT_ONCE, || true).unwrap();
        assert_eq!((rest.next, first.bytes + rest.bytes), (None, blocks * BLOCK_BYTES));
        assert!(seals.any_damaged(name, blocks - 1, 1));
    }

    #[test]
    fn a_damaged_or_cut_seal_counts_for_nothing() {
        let (dir, seals, name, object) = with_object(&pattern(200_000));
        seals.seal(name, &object, wall_ns() + LATER).unwrap();
        let path = dir.path().join("sums").join(name.path());
        let whole = std::fs::read(&path).unwrap();
        let stat = objects::stat(&object).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            seals.forget(name);
            assert!(seals.get(name, &stat).is_none(), "cut to {length} bytes");
        }
        for at in 0..52 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            seals.forget(name);
            assert!(seals.get(name, &stat).is_none(), "byte {at} changed");
        }
        std::fs::write(&path, &whole).unwrap();
        seals.forget(name);
        assert!(seals.get(name, &stat).is_some());
    }
}
