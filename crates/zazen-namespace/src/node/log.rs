//! Files of a node, as bytes: the log's segments, snapshots of partitions, its identity.
//!
//! One log holds the records of all partitions of a node, because each sync of a file costs the
//! same for one record and for hundreds: so requests to different partitions share one. The
//! checksum of a record's head covers the namespace and the segment, so bytes of another file are
//! not taken for a record. See `docs/formats/namespace.md`.

use crate::partition::Settings;
use crate::{Epoch, Incarnation, PartitionNo};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::checksum::{crc32c, frame_checksum};
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::field::{Blob, List, Nested};

/// The first bytes of a segment, a snapshot and an identity.
const SEGMENT_MAGIC: u32 = 0x4c4e_5a5a;
const FILE_MAGIC: u32 = 0x464e_5a5a;
const VERSION: u32 = 1;
/// Magic, version, namespace, segment, oldest segment, checksum.
const SEGMENT_HEAD_BYTES: usize = 4 + 4 + 16 + 8 + 8 + 4;
/// Checksum of the head, length, partition, epoch, index, the place up to which the log was synced,
/// checksum of the body.
const RECORD_HEAD_BYTES: usize = 4 + 4 + 4 + 8 + 8 + 8 + 8 + 4;
/// The longest record of a partition.
pub const RECORD_BYTES_MAX: usize = 16 << 20;
/// The longest piece of a partition's tables within a snapshot.
const PIECE_BYTES_MAX: usize = 64 << 20;

zazen_wire::messages! {
    /// A place in a partition's log: the epoch and the number of a record. There is one record at a
    /// place, whatever replica has it, and what is before it is the same everywhere.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    Position {
        /// The epoch in which the record was made.
        epoch: Epoch,
        /// Its number in the partition, from 1 on.
        index: u64,
    }

    /// A partition as of a record.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Snapshot {
        /// The partition.
        partition: PartitionNo,
        /// What all partitions of the namespace agree on.
        settings: Settings = Nested<Settings>,
        /// The last record that it holds.
        position: Position = Nested<Position>,
        /// The first record of each of the last epochs, oldest first.
        turns: Vec<Position> = List<Nested<Position>>,
        /// The tables.
        pieces: Vec<Vec<u8>> = List<Blob<PIECE_BYTES_MAX>>,
    }

    /// Who a node is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Identity {
        /// The namespace.
        namespace: u128,
        /// What the node drew when its disk was first used.
        key: u128,
        /// Its last life.
        incarnation: Incarnation,
    }
}

/// A record of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Its partition.
    pub(super) partition: PartitionNo,
    /// Its place in the partition's log.
    pub(super) position: Position,
    /// What the tables logged; empty for the record that opens an epoch.
    pub(super) body: Vec<u8>,
    /// Up to here the log was synced when the record was written.
    pub(super) synced: Mark,
}

/// A place in the log: a segment, and bytes from its beginning on.
pub(super) type Mark = (u64, u64);

/// What a segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A sound record.
    Record(Record),
    /// A record of this partition, at this place, whose body is damaged.
    BadBody(PartitionNo, u64),
    /// From this place on there are bytes that no record is found in.
    BadBytes(u64),
}

/// The life after `last`. Its lower bits are drawn: a folder that was put back to an earlier state
/// does not begin a life that was lived before.
pub(super) fn next_life(last: Incarnation, key: u128) -> Incarnation {
    Incarnation((((last.0 >> DRAWN_BITS) + 1) << DRAWN_BITS) | (key as u64 & ((1 << DRAWN_BITS) - 1)))
}

/// Bits of an incarnation that are drawn at a start.
const DRAWN_BITS: u32 = 20;

/// The head of a segment.
pub(super) fn segment_head(namespace: u128, segment: u64, oldest: u64) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.u32(SEGMENT_MAGIC);
    writer.u32(VERSION);
    writer.u128(namespace);
    writer.u64(segment);
    writer.u64(oldest);
    let mut bytes = writer.into_bytes();
    let checksum = crc32c(&bytes);
    let mut writer = Writer::new();
    writer.u32(checksum);
    bytes.extend_from_slice(&writer.into_bytes());
    bytes
}

/// The oldest segment that was needed when this segment began; `None` if its head is damaged.
pub(super) fn oldest_of(namespace: u128, segment: u64, bytes: &[u8]) -> Option<u64> {
    let head = bytes.get(..SEGMENT_HEAD_BYTES)?;
    let (covered, checksum) = head.split_at(SEGMENT_HEAD_BYTES - 4);
    let mut reader = Reader::new("segment", covered);
    let fits = reader.u32().ok()? == SEGMENT_MAGIC
        && reader.u32().ok()? == VERSION
        && reader.u128().ok()? == namespace
        && reader.u64().ok()? == segment
        && Reader::new("segment", checksum).u32().ok()? == crc32c(covered);
    let oldest = reader.u64().ok()?;
    fits.then_some(oldest)
}

fn head_checksum(namespace: u128, segment: u64, head: &[u8]) -> u32 {
    let mut writer = Writer::new();
    writer.u128(namespace);
    writer.u64(segment);
    writer.raw(head);
    crc32c(&writer.into_bytes())
}

/// Appends a record to the bytes of a segment.
pub(super) fn write_record(bytes: &mut Vec<u8>, namespace: u128, segment: u64, record: &Record) {
    let Record { partition, position, body, synced } = record;
    let mut writer = Writer::new();
    writer.u32(body.len() as u32);
    writer.u32(partition.0);
    writer.u64(position.epoch.0);
    writer.u64(position.index);
    writer.u64(synced.0);
    writer.u64(synced.1);
    writer.u32(crc32c(body));
    let head = writer.into_bytes();
    let mut writer = Writer::new();
    writer.u32(head_checksum(namespace, segment, &head));
    bytes.extend_from_slice(&writer.into_bytes());
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(body);
}

/// Reads the segment's records. A torn end is [`Found::BadBytes`], with nothing behind it.
pub(super) fn read_segment(namespace: u128, segment: u64, bytes: &[u8], mut found: impl FnMut(Found)) {
    let mut at = SEGMENT_HEAD_BYTES;
    if oldest_of(namespace, segment, bytes).is_none() {
        found(Found::BadBytes(0));
        at = 0;
    }
    let mut lost = false;
    while at < bytes.len() {
        match record_at(namespace, segment, bytes, at) {
            Some((what, length)) => {
                found(what);
                at += length;
                lost = false;
            }
            None => {
                if !std::mem::replace(&mut lost, true) {
                    found(Found::BadBytes(at as u64));
                }
                at += 1;
            }
        }
    }
}

/// The record at `at`, and its length there.
fn record_at(namespace: u128, segment: u64, bytes: &[u8], at: usize) -> Option<(Found, usize)> {
    let (bytes, at) = (&bytes[at..], at as u64);
    let (checksum, head) = bytes.get(..RECORD_HEAD_BYTES)?.split_at(4);
    if Reader::new("record", checksum).u32().ok()? != head_checksum(namespace, segment, head) {
        return None;
    }
    let mut reader = Reader::new("record", head);
    let length = reader.u32().ok()? as usize;
    let partition = PartitionNo(reader.u32().ok()?);
    let position = Position { epoch: Epoch(reader.u64().ok()?), index: reader.u64().ok()? };
    let synced = (reader.u64().ok()?, reader.u64().ok()?);
    let checksum = reader.u32().ok()?;
    let end = RECORD_HEAD_BYTES + length;
    let Some(body) = bytes.get(RECORD_HEAD_BYTES..end) else {
        // The head is sound and the body is cut: nothing can be behind it.
        return Some((Found::BadBytes(at), bytes.len()));
    };
    if crc32c(body) != checksum {
        return Some((Found::BadBody(partition, at), end));
    }
    Some((Found::Record(Record { partition, position, body: body.to_vec(), synced }), end))
}

/// A message as a file of its own.
pub(crate) fn write_file<M: Message>(namespace: u128, message: &M) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.u32(FILE_MAGIC);
    writer.u32(VERSION);
    writer.u128(namespace);
    message.write(&mut writer);
    let mut bytes = writer.into_bytes();
    let checksum = frame_checksum(&bytes);
    let mut writer = Writer::new();
    writer.u64(checksum);
    bytes.extend_from_slice(&writer.into_bytes());
    bytes
}

/// The node's key in the bytes of [`super::File::Identity`].
pub fn key_in(identity: &[u8]) -> Result<u128> {
    read_file::<Identity>(identity).map(|(_, identity)| identity.key)
}

/// The namespace and the message of a file. `Corrupt` for one that is damaged.
pub(crate) fn read_file<M: Message>(bytes: &[u8]) -> Result<(u128, M)> {
    let corrupt = || Error::new(ErrorKind::Corrupt, format!("the file with the {} is damaged", M::NAME));
    let (covered, checksum) = bytes.split_at_checked(bytes.len().saturating_sub(8)).ok_or_else(corrupt)?;
    if Reader::new("file", checksum).u64()? != frame_checksum(covered) {
        return Err(corrupt());
    }
    let mut reader = Reader::new("file", covered);
    if reader.u32()? != FILE_MAGIC || reader.u32()? != VERSION {
        return Err(corrupt());
    }
    Ok((reader.u128()?, M::read(&mut reader)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let record = |partition, epoch, index, body: &[u8]| Record {
            partition: PartitionNo(partition),
            position: Position { epoch: Epoch(epoch), index },
            body: body.to_vec(),
            synced: (3, 40),
        };
        vec![record(1, 1, 1, b""), record(2, 1, 9, b"two"), record(1, 1, 2, &[7; 300]), record(3, 2, 1, b"x")]
    }

    fn segment(number: u64) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = segment_head(5, number, 3);
        let mut ends = vec![bytes.len()];
        for record in records() {
            write_record(&mut bytes, 5, number, &record);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn read(bytes: &[u8]) -> Vec<Found> {
        let mut found = Vec::new();
        read_segment(5, 4, bytes, |what| found.push(what));
        found
    }

    #[test]
    fn a_cut_leaves_the_records_before_it() {
        let (bytes, ends) = segment(4);
        assert_eq!(oldest_of(5, 4, &bytes), Some(3));
        let all: Vec<Found> = records().into_iter().map(Found::Record).collect();
        for cut in 0..=bytes.len() {
            let found = read(&bytes[..cut]);
            let whole = ends.iter().skip(1).filter(|end| **end <= cut).count();
            assert_eq!(found.iter().filter(|what| matches!(what, Found::Record(_))).count(), whole, "{cut}");
            assert!(found.iter().zip(&all).take(whole).all(|(left, right)| left == right));
            assert_eq!(found.len() > whole, !ends.contains(&cut), "{cut}: a torn end is told");
        }
    }

    #[test]
    fn no_flipped_bit_gives_another_record() {
        let (bytes, _) = segment(4);
        let all: Vec<Found> = records().into_iter().map(Found::Record).collect();
        for at in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[at / 8] ^= 1 << (at % 8);
            let found = read(&bad);
            let is_known = |what: &Found| !matches!(what, Found::Record(_)) || all.contains(what);
            assert!(found.iter().all(is_known), "bit {at}");
            let sound = found.iter().filter(|what| matches!(what, Found::Record(_))).count();
            let lost = all.len() - sound;
            assert!(lost == 1 || at < SEGMENT_HEAD_BYTES * 8 && lost == 0, "bit {at} loses {lost} records");
            assert!(found.len() > sound, "bit {at} is not told");
        }
    }

    #[test]
    fn another_segments_bytes_are_no_records() {
        let (bytes, _) = segment(9);
        assert_eq!(read(&bytes), [Found::BadBytes(0), Found::BadBytes(0)]);
    }

    #[test]
    fn a_file_comes_back_or_is_refused() {
        let snapshot = Snapshot {
            partition: PartitionNo(3),
            settings: Settings::default(),
            position: Position { epoch: Epoch(2), index: 8 },
            turns: vec![Position { epoch: Epoch(1), index: 1 }],
            pieces: vec![b"tables".to_vec()],
        };
        let bytes = write_file(5, &snapshot);
        assert_eq!(read_file::<Snapshot>(&bytes).expect("sound"), (5, snapshot));
        for at in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[at / 8] ^= 1 << (at % 8);
            assert!(read_file::<Snapshot>(&bad).is_err(), "bit {at}");
        }
        for cut in 0..bytes.len() {
            assert!(read_file::<Snapshot>(&bytes[..cut]).is_err(), "cut {cut}");
        }
    }
}
