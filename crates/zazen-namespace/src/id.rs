//! Numbers of inodes, partitions and nodes.

use zazen_core::Result;
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::field::Field;

/// Bits of an inode's number that say which inode of its partition it is.
const SERIAL_BITS: u32 = 40;
/// Set in the serial number of a bucket: a part of a directory that was split. Nobody but the
/// partitions and those who route to them see such a number.
pub(crate) const BUCKET: u64 = 1 << (SERIAL_BITS - 1);
/// The most partitions that a namespace can have.
pub const PARTITIONS_MAX: u32 = 1 << 23;

/// Declares a number with its own type, which is encoded as its integer.
macro_rules! numbers {
    ($($(#[$about:meta])* $name:ident: $integer:ident;)+) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $integer);

        impl Field for $name {
            type Value = $name;
            const BYTES_MIN: usize = <$integer as Field>::BYTES_MIN;
            fn write(value: &$name, writer: &mut Writer) {
                writer.$integer(value.0);
            }
            fn read(reader: &mut Reader<'_>) -> Result<$name> {
                Ok($name(reader.$integer()?))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

numbers! {
    /// An inode of the namespace. The upper bits name the partition that keeps the inode, for good;
    /// the lower ones number it there. Never used twice.
    InodeId: u64;
    /// A partition: a part of all metadata that has one primary at a time. Partitions are numbered
    /// from 0; their number is fixed when the namespace is made.
    PartitionNo: u32;
    /// A node of the namespace. Given out once when a node joins, and never used again.
    NodeNo: u32;
    /// One life of a node's daemon: larger after each start.
    Incarnation: u64;
    /// The number of a version of the map; larger for each change of the map.
    Epoch: u64;
}

impl InodeId {
    /// The root directory: inode 1 of partition 0, as FUSE has it.
    pub const ROOT: InodeId = InodeId(1);

    /// Inode number `serial` of `partition`.
    pub fn new(partition: PartitionNo, serial: u64) -> InodeId {
        InodeId((u64::from(partition.0) << SERIAL_BITS) | (serial & ((1 << SERIAL_BITS) - 1)))
    }

    /// The partition that keeps the inode.
    pub fn partition(self) -> PartitionNo {
        PartitionNo((self.0 >> SERIAL_BITS) as u32)
    }

    /// Which inode of its partition it is.
    pub fn serial(self) -> u64 {
        self.0 & ((1 << SERIAL_BITS) - 1)
    }

    /// Whether it is a bucket of a directory that was split.
    pub fn is_bucket(self) -> bool {
        self.0 & BUCKET != 0
    }
}
