//! Round 0: which rank is on which node, whether all ranks ask for the same, and whether a rank
//! cannot take part.
//!
//! All ranks check the same headers in the same order. So all of them get the same error, or none,
//! and no rank waits in a later round.

use crate::blocks::violation;
use crate::fingerprint::{Draws, Fingerprinter, words_of};
use crate::{Input, Protocol, Rules};
use zazen_core::{Error, ErrorKind, Request, Result, RunSet};
use zazen_wire::codec::{Reader, Writer};

/// Increase this with every change of the rounds or of a block's bytes.
const VERSION: u8 = 2;
/// The longest reason for not taking part that is sent to the others, in bytes.
const REASON_BYTES_MAX: usize = 1024;

/// One rank's header.
pub(crate) enum Header {
    /// The rank takes part.
    Ready(Ready),
    /// The rank does not take part, for this reason.
    Declined(ErrorKind, String),
}

/// The data of a rank that takes part.
pub(crate) struct Ready {
    pub(crate) node: u128,
    mode: u8,
    request: u64,
    target: u64,
    /// Natives of this rank's node within the target.
    pub(crate) native: u64,
    /// About how many bytes this rank would offer if it leads its node.
    pub(crate) offer_bytes: u64,
    pub(crate) seed: [u8; 16],
}

/// The result of round 0.
pub(crate) struct Opening {
    /// Node ids by rank.
    pub(crate) nodes: Vec<u128>,
    /// Natives and offered bytes by rank.
    pub(crate) held: Vec<(u64, u64)>,
    pub(crate) seed: [u8; 16],
}

impl Ready {
    pub(crate) fn of(input: &Input) -> Ready {
        let bits = [input.rules == Rules::Paper, input.protocol == Protocol::Bitmaps, input.verify_exact];
        let mode = bits.iter().enumerate().map(|(at, set)| u8::from(*set) << at).sum();
        let (request, target) = (request_digest(&input.request), target_digest(input.target.as_ref()));
        let (native, offer_bytes) = (0, 0);
        Ready { node: input.node, mode, request, target, native, offer_bytes, seed: input.seed }
    }
}

/// The header of `rank`. Only rank 0's seed is used, so only rank 0 sends one.
pub(crate) fn encode(header: &Header, rank: usize) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.u8(VERSION);
    match header {
        Header::Ready(ready) => {
            writer.u8(1);
            writer.u8(ready.mode);
            writer.u128(ready.node);
            writer.u64(ready.request);
            writer.u64(ready.target);
            writer.u64(ready.native);
            writer.u64(ready.offer_bytes);
            if rank == 0 {
                writer.raw(&ready.seed);
            }
        }
        Header::Declined(kind, reason) => {
            writer.u8(0);
            writer.u32(*kind as u32);
            writer.text(zazen_wire::codec::clip(reason, REASON_BYTES_MAX));
        }
    }
    writer.into_bytes()
}

fn decode(bytes: &[u8], rank: usize) -> Result<Header> {
    let mut reader = Reader::new("assignment header", bytes);
    let version = reader.u8()?;
    if version != VERSION {
        return Err(reader.malformed(format!("protocol version {version}, this build speaks {VERSION}")));
    }
    if !reader.bool()? {
        let kind = ErrorKind::from_code(reader.u32()?).unwrap_or(ErrorKind::Protocol);
        return Ok(Header::Declined(kind, reader.text(REASON_BYTES_MAX)?));
    }
    let mode = reader.u8()?;
    let (node, request, target) = (reader.u128()?, reader.u64()?, reader.u64()?);
    let (native, offer_bytes) = (reader.u64()?, reader.u64()?);
    let mut seed = [0; 16];
    if rank == 0 {
        seed.copy_from_slice(reader.raw(16)?);
    }
    Ok(Header::Ready(Ready { node, mode, request, target, native, offer_bytes, seed }))
}

/// Checks the headers of all ranks. Every rank that gets the same headers gets the same error.
pub(crate) fn judge(headers: &[Vec<u8>]) -> Result<Opening> {
    let mut all = Vec::with_capacity(headers.len());
    for (rank, bytes) in headers.iter().enumerate() {
        let broken = |error| violation("header", rank, "it does not decode").caused_by(error);
        match decode(bytes, rank).map_err(broken)? {
            Header::Ready(ready) => all.push(ready),
            Header::Declined(kind, reason) => {
                let alone = headers.len() == 1;
                let told = if alone { reason } else { format!("rank {rank} cannot take part: {reason}") };
                return Err(Error::new(kind, told));
            }
        }
    }
    let Some(root) = all.first() else {
        return Err(Error::new(ErrorKind::Protocol, "the first round of the assignment brought no headers"));
    };
    for (rank, other) in all.iter().enumerate() {
        let differs = if other.request != root.request {
            "begin, end or stride"
        } else if other.target != root.target {
            "the target (the frames that exist)"
        } else if other.mode != root.mode {
            "rules, protocol or verify"
        } else {
            continue;
        };
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "rank {rank} calls assign with another value of {differs} than rank 0; give all ranks the same"
            ),
        ));
    }
    Ok(Opening {
        seed: root.seed,
        nodes: all.iter().map(|ready| ready.node).collect(),
        held: all.iter().map(|ready| (ready.native, ready.offer_bytes)).collect(),
    })
}

fn request_digest(request: &Request) -> u64 {
    [request.begin(), request.end(), request.stride()]
        .iter()
        .fold(0, |digest, value| Draws::from_word(digest ^ value).next())
}

/// 0 without a target; otherwise a value from the target's size and its fingerprint at a fixed
/// point. Ranks of one job do not forge targets, so a chance of 2⁻⁶⁴ that two different targets
/// look equal is small enough.
fn target_digest(target: Option<&RunSet>) -> u64 {
    target.map_or(0, |target| {
        let [low, high] = words_of(Fingerprinter::fixed().of(target));
        [target.len(), low, high].iter().fold(1, |digest, value| Draws::from_word(digest ^ value).next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let ready = |native| Ready {
            node: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
            mode: 5,
            request: 0x11,
            target: 0x22,
            native,
            offer_bytes: 0x44,
            seed: *b"0123456789abcdef",
        };
        let mut expected = vec![2, 1, 5];
        expected.extend((1..=16u8).rev());
        for word in [0x11u64, 0x22, 0x33, 0x44] {
            expected.extend(word.to_le_bytes());
        }
        assert_eq!(encode(&Header::Ready(ready(0x33)), 1), expected);
        expected.extend(b"0123456789abcdef");
        assert_eq!(encode(&Header::Ready(ready(0x33)), 0), expected);
        let opening = judge(&[expected.clone(), encode(&Header::Ready(ready(7)), 1)]).unwrap();
        assert_eq!((opening.held, opening.seed), (vec![(0x33, 0x44), (7, 0x44)], *b"0123456789abcdef"));
        let declined = encode(&Header::Declined(ErrorKind::Unavailable, "no".into()), 3);
        assert_eq!(declined[..2], [2, 0]);
        assert_eq!(judge(&[expected.clone(), declined]).err().unwrap().kind(), ErrorKind::Unavailable);
        expected[0] = 1;
        assert_eq!(judge(&[expected]).err().unwrap().kind(), ErrorKind::Protocol);
    }
}
