//! The bulk part of a request, as the service reads it and as the server discards the rest.

use crate::stream::{Fault, Stream};
use std::io::{self, Read};

/// What of the bulk part is discarded in one receive.
const DISCARD_BYTES: usize = 64 << 10;

/// Exactly the announced bytes. A peer that ends or stalls early is an error, never an early end of file: a
/// service can't take half a frame for a whole one.
pub(crate) struct Bulk<'a> {
    stream: &'a mut Stream,
    left: u64,
    fault: Option<Fault>,
}

impl<'a> Bulk<'a> {
    pub(crate) fn new(stream: &'a mut Stream, bytes: u64) -> Bulk<'a> {
        Bulk { stream, left: bytes, fault: None }
    }

    /// Reads and drops what the service left, so that the connection is at the next message.
    pub(crate) fn discard(mut self) -> Result<(), Fault> {
        let mut scratch = Vec::new();
        while self.left > 0 {
            scratch.resize(DISCARD_BYTES, 0);
            self.receive(&mut scratch)?;
        }
        self.fault.map_or(Ok(()), Err)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<usize, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        match self.stream.read_some(&mut into[..want]) {
            Ok(count) => {
                self.left -= count as u64;
                Ok(count)
            }
            Err(fault) => {
                self.fault = Some(fault);
                Err(fault)
            }
        }
    }
}

impl Read for Bulk<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into).map_err(|fault| match fault {
            Fault::Closed => io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the caller was gone with {} bulk bytes still to come", self.left),
            ),
            Fault::Stalled => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the caller stalled with {} bulk bytes still to come", self.left),
            ),
            Fault::Kernel(errno) => errno.into(),
        })
    }
}
