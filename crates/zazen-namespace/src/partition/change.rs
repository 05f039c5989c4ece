//! What a record says: one change of the tables after the other.
//!
//! All changes of the tables go through here, on a primary too: so a backup has the same tables.

use super::inode::Inode;
use super::peer::PeerBody;
use super::row::{LockRow, Saved};
use super::transaction::Transaction;
use crate::attributes::Kind;
use crate::{Incarnation, InodeId, NodeNo, PartitionNo};
use zazen_core::Result;
use zazen_wire::Message;
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::field::Field;

/// A value of a change.
pub(super) trait Column<'a>: Sized {
    fn write(&self, writer: &mut Writer);
    fn read(reader: &mut Reader<'a>) -> Result<Self>;
}

/// The longest value of a change in bytes: more than any name, target or attribute.
const BYTES_MAX: usize = 1 << 20;

macro_rules! columns {
    (fields $($field:ty),+) => {$(
        impl<'a> Column<'a> for $field {
            fn write(&self, writer: &mut Writer) {
                <$field as Field>::write(self, writer);
            }
            fn read(reader: &mut Reader<'a>) -> Result<$field> {
                <$field as Field>::read(reader)
            }
        }
    )+};
}
columns!(fields u16, u32, u64, i64, Kind, InodeId, NodeNo, PartitionNo, Incarnation, PeerBody, Saved);

impl<'a> Column<'a> for &'a [u8] {
    fn write(&self, writer: &mut Writer) {
        writer.blob(self);
    }
    fn read(reader: &mut Reader<'a>) -> Result<&'a [u8]> {
        reader.blob(BYTES_MAX)
    }
}

impl<'a, C: Column<'a>> Column<'a> for Option<C> {
    fn write(&self, writer: &mut Writer) {
        writer.option(self, |writer, value| value.write(writer));
    }
    fn read(reader: &mut Reader<'a>) -> Result<Option<C>> {
        reader.option(C::read)
    }
}

impl<'a, C: Column<'a>> Column<'a> for Vec<C> {
    fn write(&self, writer: &mut Writer) {
        writer.list(self, |writer, value| value.write(writer));
    }
    fn read(reader: &mut Reader<'a>) -> Result<Vec<C>> {
        reader.list(1, C::read)
    }
}

impl<'a, A: Column<'a>, B: Column<'a>> Column<'a> for (A, B) {
    fn write(&self, writer: &mut Writer) {
        self.0.write(writer);
        self.1.write(writer);
    }
    fn read(reader: &mut Reader<'a>) -> Result<(A, B)> {
        Ok((A::read(reader)?, B::read(reader)?))
    }
}

impl<'a> Column<'a> for LockRow {
    fn write(&self, writer: &mut Writer) {
        Message::write(self, writer);
    }
    fn read(reader: &mut Reader<'a>) -> Result<LockRow> {
        Message::read(reader)
    }
}

impl<'a> Column<'a> for Box<Transaction> {
    fn write(&self, writer: &mut Writer) {
        Message::write(&**self, writer);
    }
    fn read(reader: &mut Reader<'a>) -> Result<Box<Transaction>> {
        let transaction: Transaction = Message::read(reader)?;
        match transaction.is_one() {
            true => Ok(Box::new(transaction)),
            false => Err(reader.malformed("an operation that is no transaction")),
        }
    }
}

impl<'a> Column<'a> for Inode {
    fn write(&self, writer: &mut Writer) {
        Column::write(&self.kind, writer);
        writer.u16(self.mode);
        for value in [self.uid, self.gid, self.links, self.holder_or_device] {
            writer.u32(value);
        }
        for value in [self.bytes, self.blocks_or_parent, self.version, self.generation] {
            writer.u64(value);
        }
        for value in [self.accessed_ns, self.modified_ns, self.changed_ns, self.created_ns] {
            writer.i64(value);
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Inode> {
        let kind = Column::read(reader)?;
        let mode = reader.u16()?;
        let (uid, gid, links) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let holder_or_device = reader.u32()?;
        let (bytes, blocks_or_parent) = (reader.u64()?, reader.u64()?);
        let (version, generation) = (reader.u64()?, reader.u64()?);
        let (accessed_ns, modified_ns) = (reader.i64()?, reader.i64()?);
        let (changed_ns, created_ns) = (reader.i64()?, reader.i64()?);
        Ok(Inode {
            kind,
            mode,
            uid,
            gid,
            links,
            holder_or_device,
            bytes,
            blocks_or_parent,
            accessed_ns,
            modified_ns,
            changed_ns,
            created_ns,
            version,
            generation,
        })
    }
}

macro_rules! changes {
    ($($(#[$about:meta])* $variant:ident = $tag:literal { $($field:ident: $type:ty),+ $(,)? })+) => {
        /// One change of the tables.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(super) enum Change<'a> {
            $($(#[$about])* $variant { $($field: $type),+ },)+
        }

        impl<'a> Change<'a> {
            /// Appends the change to a record.
            pub(super) fn write(&self, writer: &mut Writer) {
                match self {
                    $(Change::$variant { $($field),+ } => {
                        writer.u8($tag);
                        $(Column::write($field, writer);)+
                    })+
                }
            }

            /// The next change of a record.
            pub(super) fn read(reader: &mut Reader<'a>) -> Result<Change<'a>> {
                Ok(match reader.u8()? {
                    $($tag => Change::$variant { $($field: Column::read(reader)?),+ },)+
                    tag => return Err(reader.malformed(format_args!("change {tag} is not known"))),
                })
            }
        }
    };
}

changes! {
    /// A new inode that is no directory, with one link.
    Make = 1 {
        serial: u64, kind: Kind, mode: u16, uid: u32, gid: u32, holder_or_device: u32, generation: u64,
        bytes: u64, now_ns: i64,
    }
    /// An inode, whole.
    Put = 2 { serial: u64, inode: Inode }
    /// An inode is gone, with all that belongs to it.
    Drop = 3 { serial: u64 }
    /// An entry.
    Enter = 4 { directory: u64, place: u64, id: InodeId, kind: Kind, name: &'a [u8] }
    /// An entry is gone.
    Leave = 5 { directory: u64, place: u64 }
    /// A directory's entries changed: by how many, and how many of them are directories.
    Touch = 6 { serial: u64, now_ns: i64, entries: i64, links: i64 }
    /// A symbolic link's target.
    LinkTarget = 7 { serial: u64, target: &'a [u8] }
    /// An extended attribute; `None` removes it.
    Xattr = 8 { serial: u64, name: &'a [u8], value: Option<&'a [u8]> }
    /// What a node has open; nothing if both are 0.
    Opens = 9 { serial: u64, node: NodeNo, incarnation: Incarnation, readers: u32, writers: u32 }
    /// The locks of an inode.
    Locks = 10 { serial: u64, locks: Vec<LockRow> }
    /// Until when a holder's writes do not change the modification time, which was set explicitly.
    TimeSet = 11 { serial: u64, until_ns: Option<i64> }
    /// What a client was answered, and which answers it needs no more.
    Answered = 12 {
        client: u64, oldest: u64, node: NodeNo, incarnation: Incarnation, now_ns: i64,
        answer: Option<(u64, Saved)>,
    }
    /// A client is gone.
    ForgetClient = 13 { client: u64 }
    /// The last life of a node that has ended.
    Gone = 14 { node: NodeNo, incarnation: Incarnation }
    /// A name is held by a transaction.
    Hold = 15 { directory: u64, name: &'a [u8], driver: PartitionNo, transaction: u64 }
    /// A name is free.
    Free = 16 { directory: u64, name: &'a [u8] }
    /// A transaction that this partition drives.
    Drive = 17 { number: u64, transaction: Box<Transaction> }
    /// A transaction has ended.
    Ended = 18 { number: u64 }
    /// The newest part of another partition's transaction that was executed here.
    Executed = 19 { driver: PartitionNo, transaction: u64, step: u32, body: PeerBody }
    /// Older transactions of a partition have ended.
    Floor = 20 { driver: PartitionNo, oldest: u64 }
    /// Which transaction may move directories.
    MoveLock = 21 { holder: Option<(PartitionNo, u64)> }
    /// How a directory is split: its own entries are gone. Not split any more if there are none.
    Split = 23 { serial: u64, buckets: Vec<InodeId> }
    /// The numbers that come next.
    Next = 22 { serial: u64, transaction: u64 }
    /// The nodes that have a full copy of a file's bytes.
    Copies = 40 { serial: u64, nodes: Vec<NodeNo> }
    /// A file has its bytes in chunks.
    Chunked = 41 { serial: u64, chunk_bytes: u64 }
    /// An inode is a chunk of a file.
    Chunk = 42 { serial: u64, file: u64, index: u64 }
    /// The chunks of a file from one on are gone, with all that belongs to them, but for those
    /// kept, which are in order. Their objects are in graves.
    Cut = 43 { file: u64, first: u64, kept: Vec<u64> }
    /// Objects of a chunk that is gone, of which these nodes were not told yet.
    Grave = 44 { serial: u64, generation: u64, nodes: Vec<NodeNo> }
    /// They are told.
    Buried = 45 { serial: u64 }
}
