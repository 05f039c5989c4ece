//! What the ranks send each other in all-to-alls: pairs of index sets.
//!
//! A peer's block is the world: it is decoded with bounds and checked against what its sender may say.

use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_wire::codec::{Reader, Writer};

/// Two index sets; an empty block is two empty sets. Their meaning depends on the round: (native, alien) of
/// an offer or of a leader's deal, (lost, residue) of an answer.
pub(crate) type Pair = (RunSet, RunSet);

pub(crate) fn encode_pair(first: &RunSet, second: &RunSet) -> Vec<u8> {
    if first.is_empty() && second.is_empty() {
        return Vec::new();
    }
    let mut writer = Writer::new();
    writer.runset(first);
    writer.runset(second);
    writer.into_bytes()
}

/// The pair in a block of `name` that rank `from` sent; both sets must lie within `first .. end`.
pub(crate) fn decode_pair(
    name: &'static str,
    from: usize,
    block: &[u8],
    first: u64,
    end: u64,
) -> Result<Pair> {
    if block.is_empty() {
        return Ok(Pair::default());
    }
    let mut reader = Reader::new(name, block);
    let sets = [reader.runset(), reader.runset()];
    let [a, b] = sets;
    let pair = (a.map_err(|error| broken(name, from, error))?, b.map_err(|error| broken(name, from, error))?);
    if reader.remaining() > 0 {
        return Err(violation(name, from, format!("{} bytes are left over", reader.remaining())));
    }
    for set in [&pair.0, &pair.1] {
        if let (Some(low), Some(high)) = (set.first(), set.last())
            && (low < first || high >= end)
        {
            return Err(violation(
                name,
                from,
                format!("indices {low} to {high} are outside {first} .. {end}"),
            ));
        }
    }
    Ok(pair)
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
