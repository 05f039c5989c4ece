//! The memory that the daemon grants to a call, cut into pieces that go round.
//!
//! Pieces are filled in order and come back in order (the daemon takes them first in, first out),
//! so a position and a count describe all of them.

use crate::Broken;
use zazen_wire::shm::Span;

const PAGE: u64 = 4096;

/// One grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    span: Span,
    /// Bytes of each piece; the last may be shorter.
    piece: u64,
    pieces: u64,
    /// The piece that is filled next.
    next: u64,
    in_flight: u64,
}

impl Granted {
    /// `span` in pieces of at most `chunk_bytes`, and in two at least, so that both ends are busy
    /// at the same time.
    pub(crate) fn new(span: Span, chunk_bytes: u64) -> Granted {
        let half = (span.bytes / 2).next_multiple_of(PAGE).max(PAGE);
        let piece = chunk_bytes.clamp(1, half);
        Granted { span, piece, pieces: span.bytes.div_ceil(piece), next: 0, in_flight: 0 }
    }

    /// The next free piece, which is in flight from now on.
    pub(crate) fn take(&mut self) -> Option<Span> {
        if self.in_flight == self.pieces {
            return None;
        }
        let skipped = self.next * self.piece;
        let piece = Span { at: self.span.at + skipped, bytes: self.piece.min(self.span.bytes - skipped) };
        self.next = (self.next + 1) % self.pieces;
        self.in_flight += 1;
        Some(piece)
    }

    /// The oldest piece in flight is free again.
    pub(crate) fn credit(&mut self) -> Result<(), Broken> {
        self.in_flight = self.in_flight.checked_sub(1).ok_or(Broken("it gives credit for no piece"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Against two queues of pieces.
    #[test]
    fn pieces_go_round_as_two_queues_would_move_them() {
        for (bytes, chunk) in [(0, 4096), (4096, 4096), (10_000, 4096), (65_536, 262_144), (1 << 20, 262_144)]
        {
            let span = Span { at: 1 << 21, bytes };
            let mut granted = Granted::new(span, chunk);
            let mut free = VecDeque::new();
            let mut rest = span;
            while rest.bytes > 0 {
                let bytes = rest.bytes.min(granted.piece);
                free.push_back(Span { at: rest.at, bytes });
                rest = Span { at: rest.at + bytes, bytes: rest.bytes - bytes };
            }
            let mut in_flight = VecDeque::new();
            for step in 0..1000_u32 {
                if step.wrapping_mul(2_654_435_761) >> 30 == 0 {
                    assert_eq!(granted.credit().is_ok(), !in_flight.is_empty());
                    free.extend(in_flight.pop_front());
                } else {
                    let expected: Option<Span> = free.pop_front();
                    assert_eq!(granted.take(), expected, "{bytes} in pieces of {chunk}");
                    in_flight.extend(expected);
                }
            }
        }
    }
}
