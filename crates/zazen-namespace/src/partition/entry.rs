//! Entries of directories, in the order of the hash of their names.
//!
//! An entry's place is 55 bits of its name's hash and 8 bits that tell names of equal hash apart.
//! The place is the cookie of a listing: it stays while other entries come and go. A place is never
//! below 256 and fits into 63 bits, so a mount has room for its own cookies below.

use crate::attributes::Kind;
use crate::{InodeId, Name};
use std::collections::BTreeMap;

/// Bits of a place that tell names of equal hash apart.
const COLLISION_BITS: u32 = 8;

/// The lowest place that `name` may have. The next 255 belong to names of the same hash too.
///
/// Changing the hash changes the order of every directory: never do it within a format.
pub(crate) fn place_of(name: &[u8]) -> u64 {
    // FNV-1a, then a finalizer: FNV's upper bits depend too little on the last bytes.
    let mut hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 29;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 32;
    (hash >> (1 + COLLISION_BITS)).max(1) << COLLISION_BITS
}

/// A name's bytes and the kind of its inode; names of up to 21 bytes take no memory elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Label {
    Short { kind: Kind, length: u8, bytes: [u8; 21] },
    Long { kind: Kind, bytes: Box<[u8]> },
}

/// What a name of a directory leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dentry {
    pub(super) id: InodeId,
    label: Label,
}

impl Dentry {
    pub(super) fn new(id: InodeId, kind: Kind, name: &[u8]) -> Dentry {
        let mut bytes = [0; 21];
        let label = match bytes.get_mut(..name.len()) {
            Some(short) => {
                short.copy_from_slice(name);
                Label::Short { kind, length: name.len() as u8, bytes }
            }
            None => Label::Long { kind, bytes: name.into() },
        };
        Dentry { id, label }
    }

    pub(super) fn kind(&self) -> Kind {
        match &self.label {
            Label::Short { kind, .. } | Label::Long { kind, .. } => *kind,
        }
    }

    pub(super) fn name(&self) -> &[u8] {
        match &self.label {
            Label::Short { length, bytes, .. } => &bytes[..usize::from(*length)],
            Label::Long { bytes, .. } => bytes,
        }
    }
}

/// The entries of all directories of a partition.
#[derive(Clone, Default)]
pub(super) struct Entries {
    rows: BTreeMap<(u64, u64), Dentry>,
}

impl Entries {
    /// The entry called `name`, and its place.
    pub(super) fn find(&self, directory: InodeId, name: &[u8]) -> Option<(u64, &Dentry)> {
        self.look(directory, name).ok()
    }

    /// The entry called `name` and its place, or else the place for an entry of that name.
    /// `Err(None)` if names of the same hash have taken all places.
    pub(super) fn look(&self, directory: InodeId, name: &[u8]) -> Result<(u64, &Dentry), Option<u64>> {
        let first = place_of(name);
        let last = first | ((1 << COLLISION_BITS) - 1);
        let mut free = Some(first);
        for ((_, place), entry) in self.rows.range((directory.0, first)..=(directory.0, last)) {
            if entry.name() == name {
                return Ok((*place, entry));
            }
            if free == Some(*place) {
                free = (*place < last).then_some(place + 1);
            }
        }
        Err(free)
    }

    /// How many of the places for names of one hash are free.
    pub(super) fn room(&self, directory: InodeId, first: u64) -> usize {
        let last = first | ((1 << COLLISION_BITS) - 1);
        (1 << COLLISION_BITS) - self.rows.range((directory.0, first)..=(directory.0, last)).count()
    }

    /// Adds or replaces the entry at a place.
    pub(super) fn put(&mut self, directory: u64, place: u64, entry: Dentry) {
        self.rows.insert((directory, place), entry);
    }

    /// Removes the entry at a place; whether there was one.
    pub(super) fn remove(&mut self, directory: u64, place: u64) -> bool {
        self.rows.remove(&(directory, place)).is_some()
    }

    /// Removes all entries of a directory.
    pub(super) fn clear(&mut self, directory: InodeId) {
        let rows = self.rows.range((directory.0, 0)..=(directory.0, u64::MAX));
        for row in rows.map(|(row, _)| *row).collect::<Vec<_>>() {
            self.rows.remove(&row);
        }
    }

    /// The entries of a directory behind a place.
    pub(super) fn behind(&self, directory: InodeId, place: u64) -> impl Iterator<Item = (u64, &Dentry)> {
        use std::ops::Bound::{Excluded, Included};
        let range = (Excluded((directory.0, place)), Included((directory.0, u64::MAX)));
        self.rows.range(range).map(|((_, place), entry)| (*place, entry))
    }

    /// All entries: directory, place, entry.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64, &Dentry)> {
        self.rows.iter().map(|((directory, place), entry)| (*directory, *place, entry))
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.rows.len()
    }
}

/// The name of an entry as clients get it.
pub(super) fn name_of(bytes: &[u8]) -> Option<Name> {
    Name::new(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_small_and_keeps_its_name() {
        assert_eq!(size_of::<Dentry>(), 32);
        for length in [1, 20, 21, 22, 255] {
            let name: Vec<u8> = (1..=length).collect();
            let entry = Dentry::new(InodeId(9), Kind::Fifo, &name);
            assert_eq!((entry.name(), entry.kind(), entry.id), (&name[..], Kind::Fifo, InodeId(9)));
        }
    }

    #[test]
    fn places_of_equal_hashes_are_the_lowest_free_ones() {
        let (mut entries, directory) = (Entries::default(), InodeId(1));
        let first = place_of(b"a");
        assert!((256..1 << 63).contains(&first));
        // Entries of other names at the places of "a": as if their hashes were equal.
        for at in [0, 1, 3] {
            entries.put(1, first + at, Dentry::new(InodeId(at), Kind::File, &[b'b', at as u8 + 1]));
        }
        assert_eq!(entries.look(directory, b"a"), Err(Some(first + 2)));
        for at in 0..256 {
            entries.put(1, first + at, Dentry::new(InodeId(at), Kind::File, b"b"));
        }
        assert_eq!(entries.look(directory, b"a"), Err(None));
        entries.put(1, first + 77, Dentry::new(InodeId(77), Kind::File, b"a"));
        assert_eq!(entries.look(directory, b"a").map(|(place, _)| place), Ok(first + 77));
    }
}
