//! The seam between a connection and what carries its calls.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;
use zazen_core::limits::{FDS_PER_MESSAGE_MAX, FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX};
use zazen_core::{Error, ErrorKind, Result};

/// A request.
pub struct Ask<'a> {
    /// The service called.
    pub service: u16,
    /// Its function.
    pub function: u16,
    /// A number for this call, which no other call of the connection has.
    pub call: u64,
    /// Encoded arguments.
    pub payload: &'a [u8],
    /// Bulk bytes, in order.
    pub input: &'a [IoSlice<'a>],
    /// Descriptors; they stay the caller's.
    pub fds: &'a [BorrowedFd<'a>],
}

/// Where a reply's bulk bytes go.
pub enum Sink<'a, 'b> {
    /// Into memory that grows, as many as come.
    Grow(Vec<u8>),
    /// Into the caller's buffers, in order; more do not fit.
    Fill(&'a mut [IoSliceMut<'b>]),
}

/// What came of an exchange.
#[derive(Debug, Default)]
pub struct Exchanged {
    /// Encoded results.
    pub payload: Vec<u8>,
    /// Bulk bytes that the reply had; they fill the output from its beginning on.
    pub bulk_bytes: u64,
    /// Descriptors that came with it (local connections only).
    pub fds: Vec<OwnedFd>,
}

/// An answer.
pub struct Answered {
    /// What the service, or the server, says.
    pub outcome: Result<Exchanged>,
    /// Whether the connection is at the beginning of a message, so that it can carry the next call.
    pub goes_on: bool,
}

/// The client's end of one connection, whatever carries it.
///
/// The caller ([`crate::Connection`]) makes one call at a time, with an [`Ask`] that has passed
/// [`Ask::check`], and none after one that failed (`Err`, or `goes_on` false).
///
/// The implementer
///
/// - brings payload, bulk bytes and descriptors to the service as they are, in order, each call at
///   most once;
/// - gives the service's error back as its kind and message, with `goes_on`;
/// - fails with `Unavailable` if the server is gone, `TimedOut` if it is too slow, `Protocol` if
///   what came makes no sense;
/// - never takes one call's reply for another's.
///
/// [`crate::contract`] checks this.
pub trait ClientEnd: Send {
    /// Carries one call and waits for its reply. An `Err` leaves the connection dead.
    fn exchange(&mut self, ask: &Ask<'_>, sink: &mut Sink<'_, '_>) -> Result<Answered>;

    /// Whether descriptors can travel.
    fn passes_fds(&self) -> bool;

    /// The time allowed for each reply from now on; `None`: no bound.
    fn set_timeout(&mut self, timeout: Option<Duration>);

    /// From now on, whenever a reply is due and nothing has come for `every`, `still_there` is
    /// asked; the call is `TimedOut` at once if it says no. A carrier that notices a silent peer by
    /// itself may ignore this.
    fn watch(&mut self, every: Duration, still_there: Box<dyn FnMut() -> bool + Send>);
}

impl Sink<'_, '_> {
    /// Bulk bytes that there is room for; `None`: as many as come.
    pub fn room(&self) -> Option<u64> {
        match self {
            Sink::Grow(_) => None,
            Sink::Fill(output) => Some(output.iter().map(|part| part.len() as u64).sum()),
        }
    }
}

impl Ask<'_> {
    /// Whether a server would take it: `TooLarge` names the limit, `Unsupported` descriptors that
    /// can't travel.
    pub fn check(&self, passes_fds: bool) -> Result<()> {
        let bulk_bytes = self.input.iter().map(|part| part.len() as u64).sum();
        check_message((self.service, self.function), self.payload, bulk_bytes, self.fds.len(), passes_fds)
    }
}

/// Whether a peer would take a message of so much.
pub(crate) fn check_message(
    (service, function): (u16, u16),
    payload: &[u8],
    bulk_bytes: u64,
    fds: usize,
    passes_fds: bool,
) -> Result<()> {
    for (what, found, max) in [
        ("bytes of payload", payload.len() as u64, PAYLOAD_BYTES_MAX as u64),
        ("bytes of bulk data", bulk_bytes, FRAME_BYTES_MAX),
        ("descriptors", fds as u64, FDS_PER_MESSAGE_MAX as u64),
    ] {
        if found > max {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "a message of service {service}, function {function} would have {found} {what}, beyond \
                     the limit of {max}; ask for less at a time"
                ),
            ));
        }
    }
    if fds > 0 && !passes_fds {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "descriptors can't travel over TCP; use the unix socket",
        ));
    }
    Ok(())
}
