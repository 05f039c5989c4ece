//! The blocks that ranks send each other in all-to-alls: pairs of index sets.
//!
//! A peer's block is input from outside. It is decoded with limits and checked against what its
//! sender may send.

use crate::chunks::offer_bytes;
use crate::owner::{Held, Offer};
use std::borrow::Cow;
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_wire::pack;
use zazen_wire::runset_codec::{self, View};

/// Begins a packed block. Run sets begin with their version, which is not 0.
const PACKED: u8 = 0;

/// Two index sets; an empty block is two empty sets. Their meaning depends on the round: (native,
/// alien) of an offer or of a leader's deal, (lost, residue) of an answer.
pub(crate) type Pair = (RunSet, RunSet);

pub(crate) fn encode_pair(first: &RunSet, second: &RunSet) -> Vec<u8> {
    if first.is_empty() && second.is_empty() {
        return Vec::new();
    }
    let mut bytes = Vec::with_capacity((offer_bytes(first) + offer_bytes(second)) as usize + 32);
    runset_codec::encode(first, &mut bytes);
    runset_codec::encode(second, &mut bytes);
    bytes
}

/// `block` made shorter, if that is possible; for links that are slower than packing.
pub(crate) fn packed(block: Vec<u8>) -> Vec<u8> {
    let mut shorter = Vec::with_capacity(block.len());
    shorter.push(PACKED);
    pack::pack(&block, &mut shorter);
    if shorter.len() < block.len() { shorter } else { block }
}

/// A block as it was before [`packed`].
pub(crate) fn unpacked<'a>(name: &str, from: usize, block: &'a [u8]) -> Result<Cow<'a, [u8]>> {
    match block {
        [PACKED, packed @ ..] => {
            let whole = pack::unpack(packed);
            whole
                .map(Cow::Owned)
                .map_err(|error| violation(name, from, "it does not unpack").caused_by(error))
        }
        _ => Ok(Cow::Borrowed(block)),
    }
}

/// The pair in a block of `name` that rank `from` sent; both sets must lie within `first .. end`.
pub(crate) fn decode_pair(
    name: &'static str,
    from: usize,
    block: &[u8],
    first: u64,
    end: u64,
) -> Result<Pair> {
    let block = &*unpacked(name, from, block)?;
    if block.is_empty() {
        return Ok(Pair::default());
    }
    let (a, used) = runset_codec::decode_prefix(block).map_err(|error| broken(name, from, error))?;
    check_within(name, from, a.first().zip(a.last()), (first, end))?;
    Ok((a, decode_last(name, from, &block[used..], first, end)?))
}

/// An offer in `block`, which is [`unpacked`], as from [`decode_pair`]. A block with natives only
/// is used in place.
pub(crate) fn decode_offer(from: usize, block: &[u8], first: u64, end: u64) -> Result<Offer<'_>> {
    const NAME: &str = "offer";
    let (native, used) = View::prefix(block).map_err(|error| broken(NAME, from, error))?;
    check_within(NAME, from, native.bounds(), (first, end))?;
    let alien = decode_last(NAME, from, &block[used..], first, end)?;
    if alien.is_empty() {
        return Ok(Offer { native: Held::Received(native), alien });
    }
    let native = decode_pair(NAME, from, block, first, end)?.0;
    Ok(Offer { alien: alien.difference(&native), native: Held::Built(native) })
}

/// The last set of a block.
fn decode_last(name: &'static str, from: usize, block: &[u8], first: u64, end: u64) -> Result<RunSet> {
    let set = runset_codec::decode(block).map_err(|error| broken(name, from, error))?;
    check_within(name, from, set.first().zip(set.last()), (first, end))?;
    Ok(set)
}

fn check_within(name: &str, from: usize, bounds: Option<(u64, u64)>, (first, end): (u64, u64)) -> Result<()> {
    match bounds {
        Some((low, high)) if low < first || high >= end => {
            Err(violation(name, from, format!("indices {low} to {high} are outside {first} .. {end}")))
        }
        _ => Ok(()),
    }
}

/// The error for a block that its sender may not send.
pub(crate) fn violation(name: &str, from: usize, why: impl std::fmt::Display) -> Error {
    let context = format!(
        "{name} from rank {from} breaks the assignment protocol: {why}; run one version on all ranks"
    );
    Error::new(ErrorKind::Protocol, context)
}

fn broken(name: &str, from: usize, error: Error) -> Error {
    violation(name, from, "its set does not decode").caused_by(error)
}
