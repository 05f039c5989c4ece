//! Calls as bytes on a connection: what `zazen-call` writes, without its sockets.

use crate::scheduler::Trace;
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::is_trouble;
use zazen_wire::Message;
use zazen_wire::checksum::crc32c;
use zazen_wire::header::{ErrorReply, HEADER_BYTES, Header, Kind};

/// Payload and bulk of a message.
pub(crate) type Body = (Vec<u8>, Vec<u8>);

/// A request as bytes.
pub(crate) fn request(service: u16, function: u16, call: u64, payload: &[u8], bulk: &[u8]) -> Vec<u8> {
    encode(Kind::Request, (service, function), 0, call, payload, bulk)
}

/// The reply to `header` as bytes.
pub(crate) fn reply(header: &Header, result: Result<Body>) -> Vec<u8> {
    let function = (header.service, header.function);
    match result {
        Ok((payload, bulk)) => encode(Kind::Reply, function, 0, header.call, &payload, &bulk),
        Err(error) => {
            let payload = ErrorReply { message: error.to_string() }.encode();
            encode(Kind::Reply, function, error.kind() as u32, header.call, &payload, &[])
        }
    }
}

fn encode(kind: Kind, function: (u16, u16), status: u32, call: u64, payload: &[u8], bulk: &[u8]) -> Vec<u8> {
    let header = Header {
        kind,
        service: function.0,
        function: function.1,
        status,
        call,
        payload_bytes: payload.len() as u32,
        fd_count: 0,
        bulk_bytes: bulk.len() as u64,
        payload_crc: crc32c(payload),
        flags: 0,
        room: None,
    };
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(bulk);
    bytes
}

/// A part of a message, as it comes in.
pub(crate) enum Part {
    /// Header and payload are here.
    Head(Header, Vec<u8>),
    /// Some bulk bytes.
    Bulk(Vec<u8>),
    /// The message is complete.
    End,
}

/// One direction of a connection: bytes in, parts of messages out.
#[derive(Default)]
pub(crate) struct Incoming {
    buffer: Vec<u8>,
    header: Option<Header>,
    bulk_left: Option<u64>,
}

impl Incoming {
    /// Takes the next bytes; an error means that the connection is of no more use.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Part>> {
        self.buffer.extend_from_slice(bytes);
        let mut parts = Vec::new();
        loop {
            if let Some(left) = self.bulk_left {
                let count = left.min(self.buffer.len() as u64);
                if count > 0 {
                    parts.push(Part::Bulk(self.buffer.drain(..count as usize).collect()));
                }
                self.bulk_left = Some(left - count);
                if left > count {
                    return Ok(parts);
                }
                parts.push(Part::End);
                (self.bulk_left, self.header) = (None, None);
            }
            let header = match self.header {
                Some(header) => header,
                None => {
                    let Some(head) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(parts) };
                    let header = Header::decode(head)?;
                    self.buffer.drain(..HEADER_BYTES);
                    self.header = Some(header);
                    header
                }
            };
            let payload_bytes = header.payload_bytes as usize;
            if self.buffer.len() < payload_bytes {
                return Ok(parts);
            }
            let payload: Vec<u8> = self.buffer.drain(..payload_bytes).collect();
            header.check_payload(&payload)?;
            parts.push(Part::Head(header, payload));
            self.bulk_left = Some(header.bulk_bytes);
        }
    }
}

/// A whole reply, put together from its parts.
#[derive(Default)]
pub(crate) struct Reply {
    head: Option<(Header, Vec<u8>)>,
    bulk: Vec<u8>,
}

impl Reply {
    /// Takes a part; once complete: (call id, payload and bulk or the error that travelled).
    pub(crate) fn take(&mut self, part: Part) -> Option<(u64, Result<Body>)> {
        match part {
            Part::Head(header, payload) => self.head = Some((header, payload)),
            Part::Bulk(bytes) => self.bulk.extend_from_slice(&bytes),
            Part::End => {
                let (header, payload) = self.head.take()?;
                let bulk = std::mem::take(&mut self.bulk);
                let result = match header.status {
                    0 => Ok((payload, bulk)),
                    status => Err(ErrorReply::decode(&payload)
                        .map_or_else(|error| error, |reply| reply.into_error(status))),
                };
                return Some((header.call, result));
            }
        }
        None
    }
}

/// What a connection that ended tells its caller.
pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection was reset")
}

/// A node whose disk fails has no room, as far as the writer is concerned.
pub(crate) fn of_the_disk(error: Error) -> Error {
    match is_trouble(&error) {
        true => Error::new(ErrorKind::NoSpace, error.to_string()),
        false => error,
    }
}

pub(crate) fn refused(what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, what.to_owned())
}

/// Notes bytes of a message in a trace.
pub(crate) fn note(trace: &mut Trace, conn: u64, to_server: bool, bytes: &[u8]) {
    trace.word(conn << 1 | u64::from(to_server));
    trace.bytes(bytes);
}
