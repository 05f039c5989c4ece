//! A row for each inode, and the table of them.
//!
//! Inodes are numbered in the order in which they are made, and a number is never used twice. So
//! the table has pages of 64 numbers, and a page holds the rows that exist, one after the other. A
//! row takes 88 bytes, and its place in the table about one more.

use crate::attributes::Kind;
use crate::{InodeId, NodeNo};
use std::collections::BTreeMap;

/// What is known of an inode, apart from its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    pub(super) kind: Kind,
    /// The lower twelve bits of a mode.
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) links: u32,
    /// The holder of a file's bytes, or the number of a device.
    pub(super) holder_or_device: u32,
    /// Length of a file or of a link's target; entries of a directory.
    pub(super) bytes: u64,
    /// Blocks of a file; the parent of a directory.
    pub(super) blocks_or_parent: u64,
    pub(super) accessed_ns: i64,
    pub(super) modified_ns: i64,
    pub(super) changed_ns: i64,
    pub(super) created_ns: i64,
    pub(super) version: u64,
    /// Of a file's bytes; 0 for a file that never had any.
    pub(super) generation: u64,
}

impl Inode {
    /// The row of an inode of root without rights and bytes, with one name, that is made now.
    pub(super) fn new(kind: Kind, now_ns: i64) -> Inode {
        Inode {
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            links: 1,
            holder_or_device: 0,
            bytes: 0,
            blocks_or_parent: 0,
            accessed_ns: now_ns,
            modified_ns: now_ns,
            changed_ns: now_ns,
            created_ns: now_ns,
            version: 1,
            generation: 0,
        }
    }

    /// Whether it is a directory.
    pub(super) fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// The directory that a directory is in.
    pub(super) fn parent(&self) -> InodeId {
        InodeId(self.blocks_or_parent)
    }

    /// Who holds a file's bytes, and in which generation.
    pub(super) fn place(&self) -> Option<(NodeNo, u64)> {
        let placed = self.kind == Kind::File && self.generation != 0;
        placed.then_some((NodeNo(self.holder_or_device), self.generation))
    }
}

/// The rows of 64 numbers.
#[derive(Clone, Default)]
struct Page {
    /// Which of them exist.
    present: u64,
    /// Their rows.
    rows: Vec<Inode>,
}

const PAGE_BITS: u32 = 6;
const PAGE_ROWS: usize = 1 << PAGE_BITS;

fn bit_of(serial: u64) -> u64 {
    1 << (serial % PAGE_ROWS as u64)
}

impl Page {
    fn index(&self, bit: u64) -> usize {
        (self.present & (bit - 1)).count_ones() as usize
    }
}

/// All inodes of a partition, by their serial number.
#[derive(Clone, Default)]
pub(super) struct Inodes {
    pages: BTreeMap<u64, Page>,
    count: u64,
}

impl Inodes {
    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The row of an inode.
    pub(super) fn get(&self, serial: u64) -> Option<&Inode> {
        let (page, bit) = (self.pages.get(&(serial >> PAGE_BITS))?, bit_of(serial));
        (page.present & bit != 0).then(|| &page.rows[page.index(bit)])
    }

    /// The row of an inode, to change it.
    pub(super) fn get_mut(&mut self, serial: u64) -> Option<&mut Inode> {
        let (page, bit) = (self.pages.get_mut(&(serial >> PAGE_BITS))?, bit_of(serial));
        let index = page.index(bit);
        (page.present & bit != 0).then(|| &mut page.rows[index])
    }

    /// Adds or replaces a row.
    pub(super) fn put(&mut self, serial: u64, inode: Inode) {
        let (page, bit) = (self.pages.entry(serial >> PAGE_BITS).or_default(), bit_of(serial));
        let index = page.index(bit);
        if page.present & bit != 0 {
            page.rows[index] = inode;
            return;
        }
        if page.rows.len() == page.rows.capacity() {
            let more = page.rows.len().clamp(4, PAGE_ROWS - page.rows.len());
            page.rows.reserve_exact(more);
        }
        page.rows.insert(index, inode);
        page.present |= bit;
        self.count += 1;
    }

    /// Removes a row; whether there was one.
    pub(super) fn remove(&mut self, serial: u64) -> bool {
        let bit = bit_of(serial);
        let Some(page) = self.pages.get_mut(&(serial >> PAGE_BITS)) else { return false };
        if page.present & bit == 0 {
            return false;
        }
        page.rows.remove(page.index(bit));
        page.present &= !bit;
        self.count -= 1;
        if page.rows.is_empty() {
            self.pages.remove(&(serial >> PAGE_BITS));
        } else if page.rows.len() * 2 < page.rows.capacity() {
            page.rows.shrink_to_fit();
        }
        true
    }

    /// All rows, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Inode)> {
        self.pages.iter().flat_map(|(number, page)| {
            let serials = (0..PAGE_ROWS as u64).filter(|at| page.present & (1 << at) != 0);
            serials.map(move |at| (number << PAGE_BITS) | at).zip(&page.rows)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(links: u32) -> Inode {
        Inode { links, ..Inode::new(Kind::File, 0) }
    }

    #[test]
    fn the_table_keeps_what_a_map_keeps() {
        assert_eq!(size_of::<Inode>(), 88);
        let (mut table, mut map) = (Inodes::default(), BTreeMap::new());
        let mut state = 7u64;
        for round in 0..20_000u32 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let serial = (state >> 33) % 500;
            if state >> 63 == 0 {
                table.put(serial, inode(round));
                map.insert(serial, round);
            } else {
                assert_eq!(table.remove(serial), map.remove(&serial).is_some());
            }
            assert_eq!(table.count(), map.len() as u64);
            assert_eq!(table.get(serial).map(|row| row.links), map.get(&serial).copied());
        }
        let rows: Vec<_> = table.iter().map(|(serial, row)| (serial, row.links)).collect();
        assert_eq!(rows, map.into_iter().collect::<Vec<_>>());
    }
}
