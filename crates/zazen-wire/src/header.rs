//! The 64-byte header of every message, request or reply, on every carrier.
//!
//! ```text
//!  byte  0        4        6     7     8        10       12        16
//!       +--------+--------+-----+-----+--------+--------+---------+------------------+
//!       | "ZZNC" | version| kind|  0  | service|function| status  | call id          |
//!       +--------+--------+-----+-----+--------+--------+---------+------------------+
//!       24        28       30    32                 40         44                60
//!       +---------+--------+-----+------------------+----------+-----------+-----+------------+
//!       | payload | fd     |flags| bulk bytes       | payload  | room + 1  |  0  | header     |
//!       | bytes   | count  |     |                  | CRC-32C  | 8 bytes   |     | CRC-32C    |
//!       +---------+--------+-----+------------------+----------+-----------+-----+------------+
//! ```
//!
//! All little endian. After it come the payload, then the bulk bytes. `status` is 0, or in a reply
//! the code of an [`zazen_core::ErrorKind`]; the payload is then an [`ErrorReply`]. Descriptors
//! travel with the header's first byte. `flags` of a reply say what the server offers
//! ([`OFFERS_SHM`]); the room of a request is how many bulk bytes its reply may have, 0 where
//! nothing is said. Releases that know neither write 0.
//!
//! Invariants for all versions to come: the length, magic, version, call id and header CRC stay
//! where they are, so that any two versions can refuse each other in words. Reserved bytes are
//! written as 0 and not looked at.

use crate::checksum::crc32c;
use crate::field::ClippedText;
use zazen_core::limits::{FDS_PER_MESSAGE_MAX, FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX};
use zazen_core::{Error, ErrorKind, Result};

/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 64;
/// The first four bytes of every message.
pub const MAGIC: [u8; 4] = *b"ZZNC";
/// The oldest protocol version that this build speaks.
pub const VERSION_MIN: u16 = 1;
/// The newest protocol version that this build speaks, and the one that it writes.
pub const VERSION: u16 = 1;

/// Flag of a reply: this server would serve the connection through shared memory ([`crate::shm`]).
pub const OFFERS_SHM: u16 = 1;

const CRC_AT: usize = HEADER_BYTES - 4;

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From a client.
    Request,
    /// From a server.
    Reply,
}

/// A message's header, without what is the same in all (magic, version) or computed (header CRC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Request or reply.
    pub kind: Kind,
    /// The service called.
    pub service: u16,
    /// The function called.
    pub function: u16,
    /// 0, or the code of an error's kind; always 0 in a request.
    pub status: u32,
    /// Chosen by the client, repeated in the reply; 0 in a reply to no call in particular.
    pub call: u64,
    /// Bytes of payload that follow the header.
    pub payload_bytes: u32,
    /// Descriptors that came with the header.
    pub fd_count: u16,
    /// Bulk bytes that follow the payload.
    pub bulk_bytes: u64,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
    /// What a server offers; bits that this build does not know are kept as they are.
    pub flags: u16,
    /// In a request: bulk bytes that the reply may have; `None` where the caller takes any.
    pub room: Option<u64>,
}

impl Header {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = self.encode_unsealed();
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header as bytes whose own CRC is 0: for carriers that damage nothing.
    pub fn encode_unsealed(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(4, &VERSION.to_le_bytes());
        put(6, &[if self.kind == Kind::Request { 1 } else { 2 }]);
        put(8, &self.service.to_le_bytes());
        put(10, &self.function.to_le_bytes());
        put(12, &self.status.to_le_bytes());
        put(16, &self.call.to_le_bytes());
        put(24, &self.payload_bytes.to_le_bytes());
        put(28, &self.fd_count.to_le_bytes());
        put(30, &self.flags.to_le_bytes());
        put(32, &self.bulk_bytes.to_le_bytes());
        put(40, &self.payload_crc.to_le_bytes());
        put(44, &self.room.map_or(0, |room| room.saturating_add(1)).to_le_bytes());
        bytes
    }

    /// The header in `bytes`.
    ///
    /// Fails with `Protocol` if these bytes are no header (magic), damaged (CRC) or malformed,
    /// `Unsupported` if the peer's version is not spoken here, `TooLarge` beyond the limits of
    /// payload, bulk and descriptors.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header> {
        if bytes[..4] == MAGIC && crc32c(&bytes[..CRC_AT]).to_le_bytes() != bytes[CRC_AT..] {
            return Err(Error::new(
                ErrorKind::Protocol,
                "a message header was damaged on its way (its CRC-32C does not match)",
            ));
        }
        Header::decode_unsealed(bytes)
    }

    /// [`Header::decode`] of what [`Header::encode_unsealed`] made: the header's CRC is not looked
    /// at.
    pub fn decode_unsealed(bytes: &[u8; HEADER_BYTES]) -> Result<Header> {
        let protocol = |why: String| Err(Error::new(ErrorKind::Protocol, why));
        if bytes[..4] != MAGIC {
            return protocol(format!(
                "the peer does not speak Zazen's call protocol (message begins with {:02x?}); \
                 check the address",
                &bytes[..4]
            ));
        }
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let version = u16_at(4);
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(version_refusal(version, version));
        }
        let kind = match bytes[6] {
            1 => Kind::Request,
            2 => Kind::Reply,
            other => return protocol(format!("a message is of unknown kind {other}")),
        };
        let header = Header {
            kind,
            service: u16_at(8),
            function: u16_at(10),
            status: u32_at(12),
            call: u64_at(16),
            payload_bytes: u32_at(24),
            fd_count: u16_at(28),
            bulk_bytes: u64_at(32),
            payload_crc: u32_at(40),
            flags: u16_at(30),
            room: u64_at(44).checked_sub(1),
        };
        header.check_limits()?;
        Ok(header)
    }

    /// The call id of a header that [`Header::decode`] refuses for its version or its sizes; 0 if
    /// the bytes are no header at all. With it, a refusal can name the call.
    pub fn call_of(bytes: &[u8; HEADER_BYTES]) -> u64 {
        let intact = bytes[..4] == MAGIC && crc32c(&bytes[..CRC_AT]).to_le_bytes() == bytes[CRC_AT..];
        let mut call = [0; 8];
        call.copy_from_slice(&bytes[16..24]);
        if intact { u64::from_le_bytes(call) } else { 0 }
    }

    /// The call id in the bytes of a header that nothing is known of.
    pub fn call_of_unsealed(bytes: &[u8; HEADER_BYTES]) -> u64 {
        let mut call = [0; 8];
        call.copy_from_slice(&bytes[16..24]);
        u64::from_le_bytes(call)
    }

    /// Whether sizes and counts are within what any message may have; `TooLarge` names the one that
    /// is not.
    pub fn check_limits(&self) -> Result<()> {
        let within = self.payload_bytes as usize <= PAYLOAD_BYTES_MAX
            && self.bulk_bytes <= FRAME_BYTES_MAX
            && usize::from(self.fd_count) <= FDS_PER_MESSAGE_MAX;
        if within {
            return Ok(());
        }
        for (what, found, max) in [
            ("payload bytes", u64::from(self.payload_bytes), PAYLOAD_BYTES_MAX as u64),
            ("bulk bytes", self.bulk_bytes, FRAME_BYTES_MAX),
            ("descriptors", u64::from(self.fd_count), FDS_PER_MESSAGE_MAX as u64),
        ] {
            if found > max {
                return Err(Error::new(
                    ErrorKind::TooLarge,
                    format!("a message announces {found} {what}, beyond the limit of {max}"),
                ));
            }
        }
        Ok(())
    }

    /// Whether `payload` is what this header announced; `Protocol` if it was damaged.
    pub fn check_payload(&self, payload: &[u8]) -> Result<()> {
        if payload.len() as u64 != u64::from(self.payload_bytes) || crc32c(payload) != self.payload_crc {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!(
                    "the payload of a message ({} bytes, service {}, function {}) was damaged on its way \
                     (its CRC-32C does not match)",
                    payload.len(),
                    self.service,
                    self.function
                ),
            ));
        }
        Ok(())
    }
}

/// The words in which a peer that speaks only `min ..= max` is refused.
pub fn version_refusal(min: u16, max: u16) -> Error {
    let theirs = if min == max { format!("{min}") } else { format!("{min} to {max}") };
    let ours =
        if VERSION_MIN == VERSION { format!("{VERSION}") } else { format!("{VERSION_MIN} to {VERSION}") };
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "the peer speaks version {theirs} of the call protocol, this build speaks {ours}; \
             install the same release of Zazen on both sides"
        ),
    )
}

crate::messages! {
    /// The payload of a reply whose status is not 0.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ErrorReply {
        /// What went wrong, for a person; clipped to [`crate::codec::TEXT_BYTES_MAX`].
        message: String = ClippedText,
    }
}

impl ErrorReply {
    /// The error that travelled as `status` and this message. A kind that this build does not know
    /// (a newer peer's) becomes `Unsupported`.
    pub fn into_error(self, status: u32) -> Error {
        match ErrorKind::from_code(status) {
            Some(kind) => Error::new(kind, self.message),
            None => Error::new(
                ErrorKind::Unsupported,
                format!("{} (error kind {status} of a newer release)", self.message),
            ),
        }
    }
}
