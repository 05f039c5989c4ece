//! The shared-memory carrier's bytes: what daemon and client agree on, where things are in the
//! region, and the records in the rings. `docs/formats/shm.md` is the page for people.
//!
//! Invariants: whatever another process wrote is copied out before it is decoded here, and every
//! offset and length is checked against the region in arithmetic that can't wrap.

use crate::codec::{Message, Reader, Writer};
use crate::header::HEADER_BYTES;
use zazen_core::{Error, ErrorKind, Result};

/// Function of service 0: nothing → [`Offer`], with the region's descriptor. The connection stays
/// where it is.
pub const ASK: u16 = 5;
/// Function of service 0: nothing → nothing: the offer is taken, calls go through the rings from
/// now on.
pub const MOVE: u16 = 10;
/// Function of service 0, on the socket, unanswered: descriptors of the call with this message's
/// call id.
pub const FDS: u16 = 6;
/// Function of service 0, on the socket, unanswered: look into your ring.
pub const BELL: u16 = 7;
/// Function of service 0: u64 bytes → [`Span`] of pool memory for the client's own use.
pub const POOL_TAKE: u16 = 8;
/// Function of service 0: [`Span`] → nothing: pool memory given back.
pub const POOL_GIVE: u16 = 9;

/// The version of the region's layout that this build speaks.
pub const REGION_VERSION: u16 = 1;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 128;
/// Slots that a ring may have at most.
pub const SLOTS_MAX: u32 = 4096;
/// Entries that a request's table of input, or of output, may have.
pub const ENTRIES_MAX: usize = 64;
/// Bytes of a table's entry.
pub const ENTRY_BYTES: usize = 16;
/// Where a table's entry says that its bytes are not in the pool.
pub const NOT_IN_POOL: u64 = u64::MAX;

/// Bytes before a lane's rings: its counters and the two ends' lines.
pub const LANE_HEAD_BYTES: u64 = 4096;

crate::messages! {
    /// A range of the region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    Span {
        /// Bytes from the region's beginning.
        at: u64,
        /// How many bytes.
        bytes: u64,
    }
}

impl Span {
    /// The first byte behind it; `None` if there is no such number.
    pub fn end(&self) -> Option<u64> {
        self.at.checked_add(self.bytes)
    }

    /// Whether `inner` lies wholly within.
    pub fn holds(&self, inner: Span) -> bool {
        match (self.end(), inner.end()) {
            (Some(end), Some(inner_end)) => inner.at >= self.at && inner_end <= end,
            _ => false,
        }
    }
}

/// What the daemon offers with the region's descriptor: where this lane is, and the thresholds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Of the region's layout.
    pub version: u16,
    /// Tells regions of one daemon apart.
    pub region: u64,
    /// The region's length.
    pub region_bytes: u64,
    /// Where this lane begins.
    pub lane_at: u64,
    /// Slots of each of its two rings: a power of two.
    pub slots: u32,
    /// Bytes of each of its two eager buffers.
    pub eager_bytes: u32,
    /// What is at most this long travels in the slots.
    pub inline_bytes: u32,
    /// What is streamed goes in pieces of at most so many bytes.
    pub chunk_bytes: u32,
    /// Where the pool is.
    pub pool: Span,
}

impl Message for Offer {
    const NAME: &'static str = "Offer";

    fn write(&self, writer: &mut Writer) {
        writer.u16(self.version);
        writer.u64(self.region);
        writer.u64(self.region_bytes);
        writer.u64(self.lane_at);
        writer.u32(self.slots);
        writer.u32(self.eager_bytes);
        writer.u32(self.inline_bytes);
        writer.u32(self.chunk_bytes);
        self.pool.write(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Offer> {
        let offer = Offer {
            version: reader.u16()?,
            region: reader.u64()?,
            region_bytes: reader.u64()?,
            lane_at: reader.u64()?,
            slots: reader.u32()?,
            eager_bytes: reader.u32()?,
            inline_bytes: reader.u32()?,
            chunk_bytes: reader.u32()?,
            pool: Span::read(reader)?,
        };
        offer.check()?;
        Ok(offer)
    }
}

impl Offer {
    /// Whether the lane and the pool lie in the region, apart, and can be used.
    pub fn check(&self) -> Result<()> {
        if self.version != REGION_VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("the daemon's shared region has layout {}, not {REGION_VERSION}", self.version),
            ));
        }
        let whole = Span { at: 0, bytes: self.region_bytes };
        let lane = self.lane().span();
        let apart = self.pool.end().is_some_and(|end| end <= lane.at)
            || lane.end().is_some_and(|end| end <= self.pool.at);
        let room = u64::from(self.slots.saturating_sub(1)) * SLOT_BYTES as u64;
        let good = self.slots.is_power_of_two()
            && (8..=SLOTS_MAX).contains(&self.slots)
            && self.lane_at.is_multiple_of(4096)
            && self.pool.at.is_multiple_of(4096)
            && self.eager_bytes.is_multiple_of(4096)
            && self.eager_bytes >= 4096
            && self.chunk_bytes >= 4096
            && u64::from(self.inline_bytes) <= room
            && self.region_bytes <= i64::MAX as u64
            && whole.holds(lane)
            && whole.holds(self.pool)
            && apart;
        if good {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Protocol, format!("the offer of a shared region makes no sense: {self:?}")))
    }

    /// The places of this lane.
    pub fn lane(&self) -> LanePlaces {
        LanePlaces { at: self.lane_at, slots: self.slots, eager_bytes: self.eager_bytes }
    }
}

/// Where the parts of a lane are, in bytes from the region's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePlaces {
    /// The lane's beginning, on a page.
    pub at: u64,
    /// Slots of each ring.
    pub slots: u32,
    /// Bytes of each eager buffer.
    pub eager_bytes: u32,
}

impl LanePlaces {
    /// The whole lane.
    pub fn span(&self) -> Span {
        let bytes = LANE_HEAD_BYTES + 2 * self.ring_bytes() + 2 * u64::from(self.eager_bytes);
        Span { at: self.at, bytes }
    }

    fn ring_bytes(&self) -> u64 {
        u64::from(self.slots) * SLOT_BYTES as u64
    }

    /// What every call uses: the head and the rings.
    pub fn working(&self) -> Span {
        Span { at: self.at, bytes: self.eager_in().at - self.at }
    }

    /// u32: slots of requests ever published; the client's.
    pub fn requests_tail(&self) -> u64 {
        self.at
    }

    /// u32: slots of requests ever taken; the daemon's.
    pub fn requests_head(&self) -> u64 {
        self.at + 64
    }

    /// u32: slots of replies ever published; the daemon's.
    pub fn replies_tail(&self) -> u64 {
        self.at + 128
    }

    /// u32: slots of replies ever taken; the client's.
    pub fn replies_head(&self) -> u64 {
        self.at + 192
    }

    /// The client's line: how it waits (u32), its CPU (u32).
    pub fn client_line(&self) -> u64 {
        self.at + 256
    }

    /// The daemon's line: how it waits (u32), its CPU (u32), whether it has closed the lane (u32).
    pub fn daemon_line(&self) -> u64 {
        self.at + 320
    }

    /// The ring of requests.
    pub fn requests(&self) -> u64 {
        self.at + LANE_HEAD_BYTES
    }

    /// The ring of replies.
    pub fn replies(&self) -> u64 {
        self.requests() + self.ring_bytes()
    }

    /// The eager buffer that the client fills.
    pub fn eager_in(&self) -> Span {
        Span { at: self.replies() + self.ring_bytes(), bytes: u64::from(self.eager_bytes) }
    }

    /// The eager buffer that the daemon fills.
    pub fn eager_out(&self) -> Span {
        let bytes = u64::from(self.eager_bytes);
        Span { at: self.eager_in().at + bytes, bytes }
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A request or a reply: the slot's first half is the call header.
    Message,
    /// A piece of streamed bytes is ready at `at`.
    Chunk,
    /// The oldest piece is used up; its memory may be filled again.
    Credit,
    /// Daemon to client: fill pieces of `at`, `bytes`.
    Grant,
    /// Client to daemon: nothing of the call's granted memory is in use any more.
    Done,
}

/// Where a part of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartPlace {
    /// In the slots that follow.
    Inline,
    /// In the lane's eager buffer.
    Eager,
    /// In pieces that come as [`Op::Chunk`].
    Streamed,
}

/// The second half of a record's first slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub op: Op,
    /// Where tables and payload are.
    pub head: PartPlace,
    /// Where the bulk bytes are that are not in the pool: after the head if at the same place.
    pub data: PartPlace,
    /// Of a piece: payload rather than bulk.
    pub is_payload: bool,
    /// Slots of this record, the first included.
    pub slots: u16,
    /// The low half of the call's id.
    pub call_number: u32,
    /// Entries of the table of input.
    pub inputs: u16,
    /// Entries of the table of output.
    pub outputs: u16,
    /// The piece, the grant, or a reply's last bulk bytes.
    pub span: Span,
}

impl Record {
    /// A record of one slot with nothing in it.
    pub fn of(op: Op, call_number: u32) -> Record {
        Record {
            op,
            head: PartPlace::Inline,
            data: PartPlace::Inline,
            is_payload: false,
            slots: 1,
            call_number,
            inputs: 0,
            outputs: 0,
            span: Span { at: 0, bytes: 0 },
        }
    }

    /// The slot: `header` (zeros but for [`Op::Message`]) and this.
    pub fn encode(&self, header: &[u8; HEADER_BYTES]) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        slot[..HEADER_BYTES].copy_from_slice(header);
        let half = &mut slot[HEADER_BYTES..];
        half[0] = match self.op {
            Op::Message => 1,
            Op::Chunk => 2,
            Op::Credit => 3,
            Op::Grant => 4,
            Op::Done => 5,
        };
        half[1] = place_code(self.head);
        half[2] = place_code(self.data);
        half[3] = u8::from(self.is_payload);
        half[4..6].copy_from_slice(&self.slots.to_le_bytes());
        half[8..12].copy_from_slice(&self.call_number.to_le_bytes());
        half[12..14].copy_from_slice(&self.inputs.to_le_bytes());
        half[14..16].copy_from_slice(&self.outputs.to_le_bytes());
        half[16..24].copy_from_slice(&self.span.at.to_le_bytes());
        half[24..32].copy_from_slice(&self.span.bytes.to_le_bytes());
        slot
    }

    /// The record in a slot of a ring of `ring_slots`, and its header half. Fails with `Protocol`.
    pub fn decode(slot: &[u8; SLOT_BYTES], ring_slots: u32) -> Result<(Record, [u8; HEADER_BYTES])> {
        let malformed = |why: String| Error::new(ErrorKind::Protocol, format!("a record in a ring {why}"));
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&slot[..HEADER_BYTES]);
        let u16_at = |at: usize| u16::from_le_bytes([slot[at], slot[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let op = match slot[64] {
            1 => Op::Message,
            2 => Op::Chunk,
            3 => Op::Credit,
            4 => Op::Grant,
            5 => Op::Done,
            other => return Err(malformed(format!("is of unknown kind {other}"))),
        };
        let place = |at: usize| match slot[at] {
            0 => Ok(PartPlace::Inline),
            1 => Ok(PartPlace::Eager),
            2 => Ok(PartPlace::Streamed),
            other => Err(malformed(format!("has its bytes in unknown place {other}"))),
        };
        let (head, data) = (place(65)?, place(66)?);
        let is_payload = slot[67] != 0;
        let (slots, call_number) = (u16_at(68), u32_at(72));
        let (inputs, outputs) = (u16_at(76), u16_at(78));
        let span = Span { at: u64_at(80), bytes: u64_at(88) };
        if slots == 0 || u32::from(slots) > ring_slots {
            return Err(malformed(format!("claims {slots} slots, of {ring_slots} that there are")));
        }
        if usize::from(inputs) > ENTRIES_MAX || usize::from(outputs) > ENTRIES_MAX {
            return Err(malformed(format!(
                "has tables of {inputs} and {outputs} entries, beyond the limit of {ENTRIES_MAX}"
            )));
        }
        Ok((Record { op, head, data, is_payload, slots, call_number, inputs, outputs, span }, header))
    }

    /// Bytes of its tables.
    pub fn table_bytes(&self) -> usize {
        (usize::from(self.inputs) + usize::from(self.outputs)) * ENTRY_BYTES
    }
}

fn place_code(place: PartPlace) -> u8 {
    match place {
        PartPlace::Inline => 0,
        PartPlace::Eager => 1,
        PartPlace::Streamed => 2,
    }
}

/// An entry of a table: bytes in the pool, or so many in the message's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableEntry {
    /// Where they lie.
    Pool(Span),
    /// How many come with the message.
    Data(u64),
}

impl TableEntry {
    /// As bytes.
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        let (at, bytes) = match self {
            TableEntry::Pool(span) => (span.at, span.bytes),
            TableEntry::Data(bytes) => (NOT_IN_POOL, *bytes),
        };
        let mut entry = [0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&at.to_le_bytes());
        entry[8..].copy_from_slice(&bytes.to_le_bytes());
        entry
    }

    /// The entries of a table whose bytes make `total` in all, those in the pool within `pool`.
    /// Fails with `Protocol`.
    pub fn decode_table(bytes: &[u8], pool: Span, total: u64) -> Result<Vec<TableEntry>> {
        let lies = |why: String| Error::new(ErrorKind::Protocol, format!("a table of buffers {why}"));
        let mut entries = Vec::with_capacity(bytes.len() / ENTRY_BYTES);
        let mut reader = Reader::new("table", bytes);
        let mut sum = 0u64;
        for _ in 0..bytes.len() / ENTRY_BYTES {
            let span = Span { at: reader.u64()?, bytes: reader.u64()? };
            sum = sum.checked_add(span.bytes).ok_or_else(|| lies("overflows".to_owned()))?;
            if span.at == NOT_IN_POOL {
                entries.push(TableEntry::Data(span.bytes));
            } else if pool.holds(span) {
                entries.push(TableEntry::Pool(span));
            } else {
                return Err(lies(format!(
                    "names {} bytes at {}, outside the pool ({} bytes at {})",
                    span.bytes, span.at, pool.bytes, pool.at
                )));
            }
        }
        if sum != total {
            return Err(lies(format!("has {sum} bytes, its message says {total}")));
        }
        Ok(entries)
    }
}
