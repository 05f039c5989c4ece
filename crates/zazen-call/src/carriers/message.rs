//! One message on a stream: header, payload, bulk bytes, descriptors.

use crate::carriers::seam::{Ask, check_message};
use crate::carriers::stream::{Fault, Stream};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use zazen_core::{Error, Result};
use zazen_wire::Message;
use zazen_wire::checksum::crc32c;
use zazen_wire::header::{ErrorReply, Header, Kind};

/// A message to send.
pub(crate) struct Outgoing<'a> {
    pub(crate) kind: Kind,
    pub(crate) service: u16,
    pub(crate) function: u16,
    pub(crate) call: u64,
    pub(crate) status: u32,
    pub(crate) payload: &'a [u8],
    pub(crate) bulk: &'a [IoSlice<'a>],
    pub(crate) fds: &'a [BorrowedFd<'a>],
    /// In a reply: what the server offers.
    pub(crate) flags: u16,
    /// In a request: bulk bytes that the reply may have.
    pub(crate) room: Option<u64>,
}

impl<'a> Outgoing<'a> {
    /// The request of `ask`, whose reply may have `room` bulk bytes.
    pub(crate) fn request(ask: &'a Ask<'a>, room: Option<u64>) -> Outgoing<'a> {
        Outgoing {
            kind: Kind::Request,
            service: ask.service,
            function: ask.function,
            call: ask.call,
            status: 0,
            payload: ask.payload,
            bulk: ask.input,
            fds: ask.fds,
            flags: 0,
            room,
        }
    }

    /// An empty reply to `call` of (service, function, call).
    pub(crate) fn reply((service, function, call): (u16, u16, u64)) -> Outgoing<'a> {
        let (payload, bulk, fds): (&[u8], &[IoSlice<'_>], &[BorrowedFd<'_>]) = (&[], &[], &[]);
        Outgoing {
            kind: Kind::Reply,
            service,
            function,
            call,
            status: 0,
            payload,
            bulk,
            fds,
            flags: 0,
            room: None,
        }
    }

    /// Whether a peer would take it: `TooLarge` names the limit, `Unsupported` descriptors over
    /// TCP.
    pub(crate) fn check(&self, passes_fds: bool) -> Result<()> {
        let about = (self.service, self.function);
        check_message(about, self.payload, self.bulk_bytes(), self.fds.len(), passes_fds)
    }

    fn bulk_bytes(&self) -> u64 {
        self.bulk.iter().map(|part| part.len() as u64).sum()
    }

    /// Sends it; [`Outgoing::check`] has passed.
    pub(crate) fn send(&self, stream: &Stream) -> std::result::Result<(), Fault> {
        let header = Header { payload_crc: crc32c(self.payload), ..self.header_unsealed() }.encode();
        let mut parts = Vec::with_capacity(2 + self.bulk.len());
        parts.push(IoSlice::new(&header));
        parts.push(IoSlice::new(self.payload));
        parts.extend(self.bulk.iter().map(|part| IoSlice::new(part)));
        stream.send(&mut parts, self.fds)
    }

    /// Its header, without the payload's CRC.
    pub(crate) fn header_unsealed(&self) -> Header {
        Header {
            kind: self.kind,
            service: self.service,
            function: self.function,
            status: self.status,
            call: self.call,
            payload_bytes: self.payload.len() as u32,
            fd_count: self.fds.len() as u16,
            bulk_bytes: self.bulk_bytes(),
            payload_crc: 0,
            flags: self.flags,
            room: self.room,
        }
    }
}

/// Sends `error` as the reply to `call` (0: to none in particular).
pub(crate) fn send_error(
    stream: &Stream,
    (service, function, call): (u16, u16, u64),
    error: &Error,
) -> std::result::Result<(), Fault> {
    let payload = ErrorReply { message: error.to_string() }.encode();
    let status = error.kind() as u32;
    Outgoing { status, payload: &payload, ..Outgoing::reply((service, function, call)) }.send(stream)
}
