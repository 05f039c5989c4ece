//! Snapshots: the tables in pieces.
//!
//! ```text
//! piece = u32 index | u8 last | blob body | u32 CRC-32C of all before
//! body of piece 0 = u32 format version | u32 partition | Settings
//! body of the others = changes, as in records
//! ```

use super::machine::Partition;
use super::settings::Settings;
use super::tables::Tables;
use crate::PartitionNo;
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::checksum::{FrameDigest, crc32c};
use zazen_wire::codec::{Reader, Writer};

/// The version of pieces and records.
const VERSION: u32 = 1;
/// A piece ends when its body has so many bytes.
const PIECE_BYTES: usize = 256 << 10;
/// No piece is longer: a change takes at most about a megabyte.
const PIECE_BYTES_MAX: usize = 64 << 20;

/// The tables in pieces.
fn pieces<'a>(tables: &'a Tables, settings: &'a Settings) -> impl Iterator<Item = Vec<u8>> + 'a {
    let mut head = Writer::new();
    head.u32(VERSION);
    head.u32(tables.number.0);
    settings.write(&mut head);
    let mut changes = tables.changes().peekable();
    let mut index = 0;
    let mut head = Some(head.into_bytes());
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let body = head.take().unwrap_or_else(|| {
            let (mut body, mut bytes) = (Writer::new(), Vec::new());
            while bytes.len() < PIECE_BYTES
                && let Some(change) = changes.next()
            {
                change.write(&mut body);
                bytes.append(&mut std::mem::take(&mut body).into_bytes());
            }
            bytes
        });
        ended = changes.peek().is_none();
        let piece = piece_of(index, ended, &body);
        index += 1;
        Some(piece)
    })
}

fn piece_of(index: u32, last: bool, body: &[u8]) -> Vec<u8> {
    let mut piece = Writer::new();
    piece.u32(index);
    piece.bool(last);
    piece.blob(body);
    let bytes = piece.into_bytes();
    let mut piece = Writer::new();
    piece.raw(&bytes);
    piece.u32(crc32c(&bytes));
    piece.into_bytes()
}

impl Partition {
    /// The tables, in pieces of about 256 KiB, for [`Restore`].
    pub fn snapshot(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        pieces(&self.tables, &self.settings)
    }

    /// A digest of the tables: equal for equal tables. Takes as long as a snapshot.
    pub fn digest(&self) -> u64 {
        let mut digest = FrameDigest::default();
        self.snapshot().for_each(|piece| digest.update(&piece));
        digest.finish()
    }
}

/// Builds a partition from the pieces of a snapshot.
pub struct Restore {
    tables: Tables,
    settings: Settings,
    index: u32,
    ended: bool,
}

fn corrupt(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("a snapshot of a partition: {why}; take another replica's"))
}

impl Restore {
    /// Begins with nothing.
    pub fn new(number: PartitionNo, settings: Settings) -> Restore {
        let mut tables = Tables::new(number, &settings);
        tables.inodes = Default::default();
        Restore { tables, settings, index: 0, ended: false }
    }

    /// Takes the next piece.
    ///
    /// Fails with [`ErrorKind::Corrupt`] for a damaged piece, one out of order, and one of another
    /// partition or of other settings. [`ErrorKind::Unsupported`]: the snapshot is of another
    /// version.
    pub fn piece(&mut self, bytes: &[u8]) -> Result<()> {
        let (sealed, crc) = bytes.split_at(bytes.len().saturating_sub(4));
        if Reader::new("Piece", crc).u32()? != crc32c(sealed) {
            return Err(corrupt(format_args!("piece {} is damaged", self.index)));
        }
        let mut piece = Reader::new("Piece", sealed);
        let (index, last) = (piece.u32()?, piece.bool()?);
        let body = piece.blob(PIECE_BYTES_MAX)?;
        if index != self.index || self.ended {
            return Err(corrupt(format_args!("piece {index} came, {} was due", self.index)));
        }
        if index == 0 {
            self.head(body)?
        } else {
            self.tables.apply_record(body)?
        }
        self.index += 1;
        self.ended = last;
        Ok(())
    }

    fn head(&self, body: &[u8]) -> Result<()> {
        let mut head = Reader::new("Snapshot", body);
        let (version, number) = (head.u32()?, PartitionNo(head.u32()?));
        if version != VERSION {
            let why = format!("a snapshot of a partition has format {version}; this build reads {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        if number != self.tables.number || Settings::read(&mut head)? != self.settings {
            return Err(corrupt(format_args!("it is of partition {number}, or of other settings")));
        }
        Ok(())
    }

    /// The partition, after the last piece.
    ///
    /// Fails with [`ErrorKind::Corrupt`] if pieces are missing.
    pub fn finish(self) -> Result<Partition> {
        if !self.ended {
            return Err(corrupt(format_args!("it ends before piece {}", self.index)));
        }
        Ok(Partition::restored(self.settings, self.tables))
    }
}
