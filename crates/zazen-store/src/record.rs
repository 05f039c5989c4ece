//! What a store writes to disk: the header of its files, the records of its sequence logs, the
//! entries of its names file. All little endian; all lengths and offsets in bytes.
//!
//! A file begins with a header of 64 bytes:
//!
//! ```text
//!  0      8        10     11        16            32               60      64
//!  ┌──────┬────────┬──────┬─────────┬─────────────┬────────────────┬───────┐
//!  │magic │version │kind  │0 (5)    │file id      │0 (28)          │CRC-32C│
//!  └──────┴────────┴──────┴─────────┴─────────────┴────────────────┴───────┘
//! ```
//!
//! A sequence log goes on with records of 80 bytes each, record `i` at `64 + 80·i`:
//!
//! ```text
//!  0       4  5     6    8      14     20       28     36
//!  ┌───────┬──┬─────┬────┬──────┬──────┬────────┬──────┐
//!  │CRC-32C│op│flags│mode│number│length│checksum│v.size│
//!  │u32    │u8│u8   │u16 │u48   │u48   │u64     │u64   │
//!  └───────┴──┴─────┴────┴──────┴──────┴────────┴──────┘
//!  36      44  48  52     58      64      72      80
//!  ┌───────┬───┬───┬──────┬───────┬───────┬───────┐
//!  │v.mtime│uid│gid│source│address│v.ctime│v.inode│
//!  │i64    │u32│u32│u48   │u48    │i64    │u64    │
//!  └───────┴───┴───┴──────┴───────┴───────┴───────┘
//! ```
//!
//! *flags*: bit 0: there is a validator; bits 1–2: storage (0 plain file, 1 piece file, 2 packed);
//! bit 3: the source is an offset into the names file (else a template's number); bit 4: the source
//! was too young to tell whether it changed after the copy. A record's CRC also covers the log's id
//! and the record's index, so that a record of another log, or one at another place, is a bad
//! record; so are zeros.

use zazen_core::{Error, ErrorKind, FrameMeta, FrameNo, Result, Validator};
use zazen_wire::checksum::crc32c;

/// Bytes of a file header.
pub const FILE_HEADER_BYTES: usize = 64;
/// Bytes of a log record.
pub const RECORD_BYTES: usize = 80;
/// The version of these formats that this build writes, and the only one that it reads.
pub const STORE_VERSION: u16 = 2;

const MAGIC: [u8; 8] = *b"ZAZENSTO";
const U48_MAX: u64 = (1 << 48) - 1;
const NAME_FIXED_BYTES: usize = 24;

/// What a file of the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FileKind {
    /// The sequence log of native frames.
    NativeLog = 1,
    /// The sequence log of alien frames.
    AlienLog = 2,
    /// The names file.
    Names = 3,
}

/// The first 64 bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// What the file is.
    pub kind: FileKind,
    /// Random; records of this file are bound to it.
    pub id: u128,
}

impl FileHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&STORE_VERSION.to_le_bytes());
        bytes[10] = self.kind as u8;
        bytes[16..32].copy_from_slice(&self.id.to_le_bytes());
        let crc = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header that should be of `kind`. `Unsupported` for another version, `Corrupt` for
    /// anything that no version wrote.
    pub fn decode(bytes: &[u8], kind: FileKind) -> Result<FileHeader> {
        let corrupt = |why: String| Err(Error::new(ErrorKind::Corrupt, format!("file header: {why}")));
        if bytes.len() < FILE_HEADER_BYTES {
            return corrupt(format!("{} bytes where 64 are needed", bytes.len()));
        }
        if bytes[..8] != MAGIC {
            return corrupt("wrong magic; not a file of Zazen's store".to_owned());
        }
        if le(&bytes[60..64]) != u64::from(crc32c(&bytes[..60])) {
            return corrupt("its CRC-32C does not match".to_owned());
        }
        let version = le(&bytes[8..10]);
        if version != u64::from(STORE_VERSION) {
            let text = format!("file version {version}; this build reads version {STORE_VERSION} only");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if bytes[10] != kind as u8 {
            return corrupt(format!("kind {} where {} is expected", bytes[10], kind as u8));
        }
        let id = u128::from(le(&bytes[16..24])) | u128::from(le(&bytes[24..32])) << 64;
        Ok(FileHeader { kind, id })
    }
}

/// What a record does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordOp {
    /// The frame is here.
    Put = 1,
    /// The frame that an earlier record put is gone; all other fields repeat that record's.
    Remove = 2,
}

/// Where a frame's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In a file of its own at the source's path.
    Plain,
    /// In a file of its own, named by the frame number.
    Piece,
    /// In a segment file, at this address of the segments' common address space; below 2⁴⁸.
    Packed(u64),
}

/// How a record names the frame's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRef {
    /// By this template of the dataset, applied to the frame number; the whole file.
    Template(u32),
    /// By the entry at this offset of the names file; below 2⁴⁸.
    Name(u64),
}

/// One record of a sequence log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it does.
    pub op: RecordOp,
    /// The frame.
    pub meta: FrameMeta,
    /// Where its bytes are.
    pub storage: Storage,
    /// What its source is.
    pub source: SourceRef,
}

impl Record {
    /// The bytes of this record at `index` of the log with `log_id`.
    pub fn encode(&self, log_id: u128, index: u64) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let validator = self.meta.validator.unwrap_or_default();
        let (storage, address) = match self.storage {
            Storage::Plain => (0, 0),
            Storage::Piece => (1, 0),
            Storage::Packed(address) => (2, address),
        };
        let (by_name, source) = match self.source {
            SourceRef::Template(number) => (0, u64::from(number)),
            SourceRef::Name(offset) => (1, offset),
        };
        debug_assert!(address <= U48_MAX && source <= U48_MAX, "address or source beyond 48 bits");
        bytes[4] = self.op as u8;
        let unsettled = u8::from(validator.unsettled);
        bytes[5] = u8::from(self.meta.validator.is_some()) | storage << 1 | by_name << 3 | unsettled << 4;
        bytes[6..8].copy_from_slice(&(self.meta.mode as u16).to_le_bytes());
        put48(&mut bytes[8..14], self.meta.number.get());
        put48(&mut bytes[14..20], self.meta.length);
        bytes[20..28].copy_from_slice(&self.meta.checksum.to_le_bytes());
        bytes[28..36].copy_from_slice(&validator.size.to_le_bytes());
        bytes[36..44].copy_from_slice(&validator.mtime_ns.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.meta.uid.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.meta.gid.to_le_bytes());
        put48(&mut bytes[52..58], source);
        put48(&mut bytes[58..64], address);
        bytes[64..72].copy_from_slice(&validator.ctime_ns.to_le_bytes());
        bytes[72..80].copy_from_slice(&validator.inode.to_le_bytes());
        let crc = bound_crc(&bytes, log_id, index);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The frame number that the bytes of a record claim, unchecked: to skip the records of others
    /// cheaply.
    pub(crate) fn claimed_number(bytes: &[u8; RECORD_BYTES]) -> u64 {
        le(&bytes[8..14])
    }

    /// Reads the record at `index` of the log with `log_id`; `None` for anything that
    /// [`Record::encode`] did not write there.
    pub fn decode(bytes: &[u8; RECORD_BYTES], log_id: u128, index: u64) -> Option<Record> {
        if le(&bytes[..4]) != u64::from(bound_crc(bytes, log_id, index)) {
            return None;
        }
        let op = match bytes[4] {
            1 => RecordOp::Put,
            2 => RecordOp::Remove,
            _ => return None,
        };
        let flags = bytes[5];
        let (source, address) = (le(&bytes[52..58]), le(&bytes[58..64]));
        let storage = match (flags >> 1) & 3 {
            0 => Storage::Plain,
            1 => Storage::Piece,
            2 => Storage::Packed(address),
            _ => return None,
        };
        if flags >> 5 != 0 {
            return None;
        }
        let source = match (flags >> 3) & 1 {
            0 => SourceRef::Template(u32::try_from(source).ok()?),
            _ => SourceRef::Name(source),
        };
        let time = |at: std::ops::Range<usize>| i64::from_le_bytes(le(&bytes[at]).to_le_bytes());
        let validator = Validator {
            size: le(&bytes[28..36]),
            mtime_ns: time(36..44),
            ctime_ns: time(64..72),
            inode: le(&bytes[72..80]),
            unsettled: (flags >> 4) & 1 == 1,
        };
        let meta = FrameMeta {
            number: FrameNo::new(le(&bytes[8..14])).ok()?,
            length: le(&bytes[14..20]),
            checksum: le(&bytes[20..28]),
            validator: (flags & 1 == 1).then_some(validator),
            uid: le(&bytes[44..48]) as u32,
            gid: le(&bytes[48..52]) as u32,
            mode: le(&bytes[6..8]) as u32,
        };
        Some(Record { op, meta, storage, source })
    }
}

/// One entry of a names file: a source that no template describes. Entries lie end to end behind
/// the header: CRC-32C (u32), path bytes (u16), flags (u16; bit 0: there is a length), offset
/// (u64), length (u64), path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameEntry {
    /// The source's path beneath the dataset.
    pub path: String,
    /// Where the frame begins in it.
    pub offset: u64,
    /// Its length; `None`: to the end of the file.
    pub length: Option<u64>,
}

impl NameEntry {
    /// Bytes that [`NameEntry::encode`] of a path of `path_bytes` gives.
    pub(crate) const fn encoded_bytes(path_bytes: usize) -> usize {
        NAME_FIXED_BYTES + path_bytes
    }

    /// The entry's bytes in the names file with `file_id`; the path is at most 65 535 bytes long.
    pub fn encode(&self, file_id: u128) -> Vec<u8> {
        debug_assert!(self.path.len() <= usize::from(u16::MAX), "path longer than a names entry can say");
        let mut bytes = vec![0; NAME_FIXED_BYTES];
        bytes[4..6].copy_from_slice(&(self.path.len() as u16).to_le_bytes());
        bytes[6..8].copy_from_slice(&u16::from(self.length.is_some()).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(self.path.as_bytes());
        let crc = names_crc(&bytes, file_id);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the entry at the front of `bytes`, which may go on; `None` for anything that is none.
    pub fn decode(bytes: &[u8], file_id: u128) -> Option<NameEntry> {
        let path_bytes = le(bytes.get(4..6)?) as usize;
        let bytes = bytes.get(..NAME_FIXED_BYTES + path_bytes)?;
        if le(&bytes[..4]) != u64::from(names_crc(bytes, file_id)) {
            return None;
        }
        let has_length = match le(&bytes[6..8]) {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(NameEntry {
            path: String::from_utf8(bytes[NAME_FIXED_BYTES..].to_vec()).ok()?,
            offset: le(&bytes[8..16]),
            length: has_length.then_some(le(&bytes[16..24])),
        })
    }
}

fn bound_crc(record: &[u8; RECORD_BYTES], log_id: u128, index: u64) -> u32 {
    let mut bound = [0; RECORD_BYTES - 4 + 24];
    const FIELDS: usize = RECORD_BYTES - 4;
    bound[..FIELDS].copy_from_slice(&record[4..]);
    bound[FIELDS..FIELDS + 16].copy_from_slice(&log_id.to_le_bytes());
    bound[FIELDS + 16..].copy_from_slice(&index.to_le_bytes());
    crc32c(&bound)
}

fn names_crc(entry: &[u8], file_id: u128) -> u32 {
    let mut bound = Vec::with_capacity(entry.len() + 12);
    bound.extend_from_slice(&entry[4..]);
    bound.extend_from_slice(&file_id.to_le_bytes());
    crc32c(&bound)
}

fn put48(into: &mut [u8], value: u64) {
    debug_assert!(value <= U48_MAX, "{value} beyond 48 bits");
    into.copy_from_slice(&value.to_le_bytes()[..6]);
}

/// At most eight bytes, little endian.
fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Record {
        Record {
            op: RecordOp::Put,
            meta: FrameMeta {
                number: FrameNo::new(0x01_0203_0405).unwrap(),
                length: 440_320,
                checksum: 0x1122_3344_5566_7788,
                validator: Some(Validator {
                    size: 0xAABB,
                    mtime_ns: -2,
                    ctime_ns: 0x0708,
                    inode: 0x0909,
                    unsettled: true,
                }),
                uid: 1000,
                gid: 100,
                mode: 0o644,
            },
            storage: Storage::Packed(0x0A0B_0C0D_0E0F),
            source: SourceRef::Name(0x0102_0304_0506),
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn bytes_on_disk_are_golden() {
        let header = FileHeader { kind: FileKind::NativeLog, id: 0x0102 };
        assert_eq!(hex(&header.encode()), GOLDEN_HEADER);
        assert_eq!(hex(&sample().encode(0x0102, 5)), GOLDEN_RECORD);
        let name = NameEntry { path: "traj/a.xtc".into(), offset: 4096, length: Some(430_000) };
        assert_eq!(hex(&name.encode(0x0102)), GOLDEN_NAME);
    }

    const GOLDEN_HEADER: &str = concat!(
        "5a415a454e53544f020001000000000002010000000000000000000000000000",
        "00000000000000000000000000000000000000000000000000000000bacf7ce5",
    );
    const GOLDEN_RECORD: &str = concat!(
        "a23c4084011da40105040302010000b8060000008877665544332211bbaa0000",
        "00000000feffffffffffffffe8030000640000000605040302010f0e0d0c0b0a",
        "08070000000000000909000000000000",
    );
    const GOLDEN_NAME: &str =
        concat!("1dc4a9050a0001000010000000000000b08f0600000000007472616a2f612e78", "7463",);

    #[test]
    fn every_flipped_bit_makes_a_bad_record() {
        let good = sample().encode(9, 3);
        assert_eq!(Record::decode(&good, 9, 3), Some(sample()));
        assert_eq!(Record::claimed_number(&good), sample().meta.number.get());
        assert_eq!(Record::decode(&good, 9, 4), None, "at another place");
        assert_eq!(Record::decode(&good, 8, 3), None, "of another log");
        assert_eq!(Record::decode(&[0; RECORD_BYTES], 9, 3), None, "zeros");
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&bad, 9, 3), None, "bit {bit}");
        }
    }

    #[test]
    fn a_header_says_what_is_wrong_with_it() {
        let good = FileHeader { kind: FileKind::AlienLog, id: u128::MAX - 7 };
        assert_eq!(FileHeader::decode(&good.encode(), FileKind::AlienLog).unwrap(), good);
        let kind_of =
            |bytes: &[u8]| FileHeader::decode(bytes, FileKind::AlienLog).map_err(|error| error.kind());
        for bit in 0..64 * 8 {
            let mut bad = good.encode();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(kind_of(&bad), Err(ErrorKind::Corrupt), "bit {bit}");
        }
        let mut newer = good.encode();
        newer[8] = 3;
        let crc = crc32c(&newer[..60]);
        newer[60..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(kind_of(&newer), Err(ErrorKind::Unsupported));
        assert_eq!(kind_of(&good.encode()[..63]), Err(ErrorKind::Corrupt));
        assert_eq!(
            FileHeader::decode(&good.encode(), FileKind::NativeLog).map_err(|error| error.kind()),
            Err(ErrorKind::Corrupt)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

        #[test]
        fn records_round_trip(
            remove: bool, number in 0u64..=1 << 40, length in 0u64..=1 << 40, checksum: u64,
            validator in proptest::option::of(any::<(u64, i64, i64, u64, bool)>()),
            uid: u32, gid: u32, mode in 0u32..0o10000,
            storage in 0u8..3, address in 0u64..1 << 48, by_name: bool,
            source in 0u64..1 << 48, id: u128, index: u64,
        ) {
            let record = Record {
                op: if remove { RecordOp::Remove } else { RecordOp::Put },
                meta: FrameMeta {
                    number: FrameNo::new(number).unwrap(), length, checksum, uid, gid, mode,
                    validator: validator.map(|(size, mtime_ns, ctime_ns, inode, unsettled)| Validator {
                        size, mtime_ns, ctime_ns, inode, unsettled,
                    }),
                },
                storage: [Storage::Plain, Storage::Piece, Storage::Packed(address)][usize::from(storage)],
                source: if by_name { SourceRef::Name(source) } else { SourceRef::Template(source as u32) },
            };
            prop_assert_eq!(Record::decode(&record.encode(id, index), id, index), Some(record));
        }

        #[test]
        fn names_round_trip_and_their_prefixes_do_not(
            path in "[a-zé/ \n]{0,40}", offset: u64, length in proptest::option::of(any::<u64>()), id: u128,
        ) {
            let entry = NameEntry { path, offset, length };
            let bytes = entry.encode(id);
            prop_assert_eq!(bytes.len(), NameEntry::encoded_bytes(entry.path.len()));
            for cut in 0..bytes.len() {
                prop_assert_eq!(NameEntry::decode(&bytes[..cut], id), None);
            }
            prop_assert_eq!(NameEntry::decode(&bytes, id), Some(entry));
        }

        #[test]
        fn decoders_survive_anything(bytes in proptest::collection::vec(any::<u8>(), 0..200), id: u128) {
            let _ = NameEntry::decode(&bytes, id);
            let _ = FileHeader::decode(&bytes, FileKind::Names);
        }
    }
}
