//! One simulated file: its pages as programs see them, and where they differ, as the platter has
//! them.
//!
//! Invariant: a page is clean (the platter has the same bytes), dirty (the platter has what `dirty`
//! says) or lost (a sync of it failed: the platter has what `lost` says, and no later sync writes
//! the page unless it is changed again). The cost of every operation follows the pages that it
//! touches, never the length of the file.

use crate::disk::FileStat;
use crate::random::SeededRandom;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that a file system gives out at a time.
pub(crate) const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// The bytes of one page; shared by copies of a disk until one of them changes it.
type Page = Arc<[u8; PAGE]>;
/// Pages as the platter has them; `None` is a hole.
type Platter = BTreeMap<u64, Option<Page>>;

/// What is known of a file beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Attributes {
    marked: bool,
    accessed_ns: i64,
    modified_ns: i64,
}

/// A file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inode {
    pages: BTreeMap<u64, Page>,
    len: u64,
    dirty: Platter,
    lost: Platter,
    durable_len: u64,
    attributes: Attributes,
    durable_attributes: Attributes,
    /// Names that programs see.
    pub(crate) links: u32,
    /// Names on the platter, and changes in the journal that speak of the file.
    pub(crate) pins: u32,
    /// Open handles.
    pub(crate) handles: u32,
}

/// The pages that the bytes `offset .. end` touch.
fn touched(offset: u64, end: u64) -> std::ops::Range<u64> {
    if end <= offset {
        return 0..0;
    }
    offset / PAGE as u64..end.div_ceil(PAGE as u64)
}

/// The part of page `at` that lies within `offset .. end`.
fn within(at: u64, offset: u64, end: u64) -> std::ops::Range<usize> {
    let base = at * PAGE as u64;
    let from = offset.saturating_sub(base).min(PAGE as u64) as usize;
    from..(end.saturating_sub(base).min(PAGE as u64) as usize).max(from)
}

impl Inode {
    pub(crate) fn new(now_ns: i64) -> Inode {
        let attributes = Attributes { accessed_ns: now_ns, modified_ns: now_ns, ..Attributes::default() };
        Inode { attributes, ..Inode::default() }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Pages that take room on the disk.
    pub(crate) fn allocated(&self) -> u64 {
        self.pages.len() as u64
    }

    pub(crate) fn stat(&self) -> FileStat {
        FileStat {
            is_file: true,
            is_dir: false,
            len: self.len,
            marked: self.attributes.marked,
            allocated_bytes: self.allocated() * PAGE as u64,
            accessed_ns: self.attributes.accessed_ns,
            modified_ns: self.attributes.modified_ns,
        }
    }

    /// Whether a power failure could change it.
    pub(crate) fn is_settled(&self) -> bool {
        let same_attributes = self.attributes == self.durable_attributes;
        self.dirty.is_empty() && self.lost.is_empty() && self.len == self.durable_len && same_attributes
    }

    /// Notes that page `at` is about to differ from the platter.
    fn touch(&mut self, at: u64) {
        if !self.dirty.contains_key(&at) {
            let platter = self.lost.remove(&at).unwrap_or_else(|| self.pages.get(&at).cloned());
            self.dirty.insert(at, platter);
        }
    }

    fn page_mut(&mut self, at: u64) -> &mut [u8; PAGE] {
        self.touch(at);
        Arc::make_mut(self.pages.entry(at).or_insert_with(|| Arc::new([0; PAGE])))
    }

    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let end = self.len.min(offset.saturating_add(buffer.len() as u64));
        if end <= offset {
            return 0;
        }
        for at in touched(offset, end) {
            let part = within(at, offset, end);
            let to = (at * PAGE as u64 + part.start as u64 - offset) as usize;
            let target = &mut buffer[to..to + part.len()];
            match self.pages.get(&at) {
                Some(page) => target.copy_from_slice(&page[part]),
                None => target.fill(0),
            }
        }
        (end - offset) as usize
    }

    /// How many of `bytes` at `offset` fit where the disk has room for `room` more pages.
    pub(crate) fn fitting(&self, offset: u64, bytes: usize, mut room: u64) -> usize {
        let end = offset + bytes as u64;
        for at in touched(offset, end) {
            if self.pages.contains_key(&at) {
                continue;
            }
            if room == 0 {
                return (at * PAGE as u64).saturating_sub(offset) as usize;
            }
            room -= 1;
        }
        bytes
    }

    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64, now_ns: i64) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len() as u64;
        for at in touched(offset, end) {
            let part = within(at, offset, end);
            let from = (at * PAGE as u64 + part.start as u64 - offset) as usize;
            let length = part.len();
            self.page_mut(at)[part].copy_from_slice(&bytes[from..from + length]);
        }
        self.len = self.len.max(end);
        self.attributes.modified_ns = now_ns;
    }

    pub(crate) fn set_len(&mut self, len: u64, now_ns: i64) {
        if len < self.len {
            self.clear(len, u64::MAX);
        }
        self.len = len;
        self.attributes.modified_ns = now_ns;
    }

    /// Makes `offset .. end` read as zeros and gives back the pages that lie in it entirely.
    pub(crate) fn clear(&mut self, offset: u64, end: u64) {
        let pages: Vec<u64> = self.pages.range(offset / PAGE as u64..).map(|(at, _)| *at).collect();
        for at in pages {
            if at * PAGE as u64 >= end {
                break;
            }
            let part = within(at, offset, end);
            if part.len() == PAGE {
                self.touch(at);
                self.pages.remove(&at);
            } else if !part.is_empty() {
                self.page_mut(at)[part].fill(0);
            }
        }
    }

    /// Pages that [`Inode::allocate`] would add.
    pub(crate) fn missing(&self, offset: u64, end: u64) -> u64 {
        let wanted = touched(offset, end);
        (wanted.end - wanted.start) - self.pages.range(wanted).count() as u64
    }

    /// Gives room to `offset .. end`; what had none reads as zeros.
    pub(crate) fn allocate(&mut self, offset: u64, end: u64, now_ns: i64) {
        touched(offset, end).for_each(|at| _ = self.page_mut(at));
        if end > offset {
            self.len = self.len.max(end);
        }
        self.attributes.modified_ns = now_ns;
    }

    /// Takes the bytes of `source`, page by page without copying them.
    pub(crate) fn share(&mut self, source: &Inode, now_ns: i64) {
        let before: Vec<u64> = self.pages.keys().chain(source.pages.keys()).copied().collect();
        before.into_iter().for_each(|at| self.touch(at));
        self.pages.clone_from(&source.pages);
        self.len = source.len;
        self.attributes.modified_ns = now_ns;
    }

    pub(crate) fn set_times(&mut self, accessed_ns: i64, modified_ns: i64) {
        (self.attributes.accessed_ns, self.attributes.modified_ns) = (accessed_ns, modified_ns);
    }

    pub(crate) fn mark(&mut self) {
        self.attributes.marked = true;
    }

    /// The journal has the mark.
    pub(crate) fn mark_is_durable(&mut self) {
        self.durable_attributes.marked = true;
    }

    /// Data and length reach the platter.
    pub(crate) fn sync_data(&mut self) {
        self.dirty.clear();
        self.durable_len = self.len;
    }

    /// Data, length and attributes reach the platter.
    pub(crate) fn sync(&mut self) {
        self.sync_data();
        self.durable_attributes = self.attributes;
    }

    /// A sync fails as Linux lets it fail: some dirty pages reached the platter, the others are
    /// lost, all count as clean from now on. Programs go on seeing the lost pages until the kernel
    /// drops them, which may be at once.
    pub(crate) fn sync_fails(&mut self, random: &mut SeededRandom) {
        for (at, platter) in std::mem::take(&mut self.dirty) {
            if random.percent(50) {
                self.lost.insert(at, platter);
            }
        }
        if random.percent(50) {
            self.drop_lost();
        }
    }

    /// The kernel drops its copies of pages that it could not write.
    pub(crate) fn drop_lost(&mut self) {
        for (at, platter) in std::mem::take(&mut self.lost) {
            match platter {
                Some(page) => _ = self.pages.insert(at, page),
                None => _ = self.pages.remove(&at),
            }
        }
    }

    /// Fails power: each sector of a dirty page is new or old; the length is that of the old or the
    /// new file, or in between. Clean pages stay as they are.
    pub(crate) fn power_fails(&mut self, random: &mut SeededRandom) {
        if self.is_settled() {
            return;
        }
        self.drop_lost();
        let (old, new) = (self.durable_len, self.len);
        let between = old.min(new) + random.below(old.max(new) - old.min(new) + 1);
        let fate = random.below(8);
        let len = match fate {
            0 | 1 => new,
            2 => old,
            _ => *[old, new, new, between].get(random.below(4) as usize).unwrap_or(&new),
        };
        for (at, platter) in std::mem::take(&mut self.dirty) {
            let zeros = || Arc::new([0; PAGE]);
            let written = self.pages.remove(&at).unwrap_or_else(zeros);
            let mut page = platter.unwrap_or_else(zeros);
            for start in (0..PAGE).step_by(SECTOR) {
                let is_new = match fate {
                    0 => true,
                    1 => false,
                    2 => random.percent(50),
                    _ => random.percent(80),
                };
                if is_new {
                    Arc::make_mut(&mut page)[start..start + SECTOR]
                        .copy_from_slice(&written[start..start + SECTOR]);
                }
            }
            self.pages.insert(at, page);
        }
        self.len = len;
        self.clear(len, u64::MAX);
        let durable = self.durable_attributes;
        let (accessed_ns, modified_ns) = match random.percent(50) {
            true => (self.attributes.accessed_ns, self.attributes.modified_ns),
            false => (durable.accessed_ns, durable.modified_ns),
        };
        self.attributes = Attributes { marked: durable.marked, accessed_ns, modified_ns };
        self.sync();
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.read(&mut bytes, 0);
        bytes
    }

    /// Puts other bytes in the place of all, on the platter too.
    pub(crate) fn replace(&mut self, bytes: &[u8]) {
        let now_ns = self.attributes.modified_ns;
        self.set_len(0, now_ns);
        self.write(bytes, 0, now_ns);
        self.sync();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of whole bytes, changed in the obvious way.
    #[derive(Default)]
    struct Plain(Vec<u8>);

    impl Plain {
        fn write(&mut self, bytes: &[u8], offset: usize) {
            if bytes.is_empty() {
                return;
            }
            self.0.resize(self.0.len().max(offset + bytes.len()), 0);
            self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    #[test]
    fn pages_are_like_one_row_of_bytes() {
        for seed in 0..40 {
            let mut random = SeededRandom::new(seed);
            let (mut inode, mut plain) = (Inode::new(0), Plain::default());
            let mut synced = Vec::new();
            for step in 0..120 {
                let offset = random.below(30_000);
                let end = offset + random.below(9_000);
                match random.below(8) {
                    0..4 => {
                        let bytes = vec![step as u8 + 1; (end - offset) as usize];
                        inode.write(&bytes, offset, 0);
                        plain.write(&bytes, offset as usize);
                    }
                    4 => {
                        inode.set_len(offset, 0);
                        plain.0.resize(offset as usize, 0);
                    }
                    5 => {
                        inode.clear(offset, end);
                        let to = plain.0.len().min(end as usize);
                        plain.0[(offset as usize).min(to)..to].fill(0);
                    }
                    6 => {
                        inode.allocate(offset, end, 0);
                        if end > offset {
                            plain.0.resize(plain.0.len().max(end as usize), 0);
                        }
                    }
                    _ => {
                        inode.sync();
                        synced.clone_from(&plain.0);
                    }
                }
                assert_eq!(inode.len(), plain.0.len() as u64, "seed {seed}, step {step}");
                assert!(inode.bytes() == plain.0, "seed {seed}, step {step}");
            }
            // Each byte that a power failure leaves is the last or the synced one.
            inode.power_fails(&mut random);
            for (at, byte) in inode.bytes().into_iter().enumerate() {
                let of = |bytes: &[u8]| bytes.get(at).copied().unwrap_or(0);
                assert!([of(&plain.0), of(&synced)].contains(&byte), "seed {seed}, byte {at}");
            }
            assert!(inode.is_settled());
        }
    }

    #[test]
    fn what_a_failed_sync_lost_no_later_sync_brings_back() {
        let (mut lost, mut kept, mut seen) = (0, 0, 0);
        for seed in 0..100 {
            let mut random = SeededRandom::new(seed);
            let mut inode = Inode::new(0);
            inode.write(&[1; PAGE], 0, 0);
            inode.sync();
            inode.write(&[2; PAGE], 0, 0);
            inode.sync_fails(&mut random);
            seen += u32::from(inode.bytes()[0] == 2);
            inode.sync();
            inode.power_fails(&mut random);
            match inode.bytes()[0] {
                1 => lost += 1,
                _ => kept += 1,
            }
            // Written again, it is safe.
            inode.write(&[3; 1], 0, 0);
            inode.sync();
            inode.power_fails(&mut random);
            assert_eq!(inode.bytes()[0], 3);
        }
        assert!(lost > 30 && kept > 30, "{lost} {kept}");
        assert!(seen > kept + 10, "some lost pages are seen until the cache is dropped: {seen} {kept}");
    }
}
