//! Loading: what filling a cache on purpose does with one frame, and what its caller is told.

use crate::flight::Outcome;
use crate::stale::{Held, Validate, is_current};
use zazen_core::{Error, ErrorKind, Origin, Result, Source, SourceStat};

/// What to do with a frame that is to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it is in the cache as it should be.
    Present,
    /// Make a native of the alien that is in the cache, from its own bytes; if they are bad, fetch.
    Promote,
    /// Fetch it from the backing store.
    Fetch,
}

/// What to do with a frame of `source`, which looks like `stat` now, that is to become `origin`.
/// `held` is what the cache has of its number; `own`: the daemon's own user asks.
pub fn plan(
    held: Option<&Held>,
    origin: Origin,
    (validate, own): (Validate, bool),
    source: &Source,
    stat: &SourceStat,
) -> Step {
    match held {
        Some(held) if is_current(validate, own, (&held.meta, &held.source), source, stat) => {
            match held.origin == Origin::Native || origin == Origin::Alien {
                true => Step::Present,
                false => Step::Promote,
            }
        }
        _ => Step::Fetch,
    }
}

/// What one loaded frame adds to the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// It was fetched; this many bytes were read.
    Fetched(u64),
    /// It was in the cache before.
    Present,
}

/// What the caller is told of a fetch by the daemon of `node`: reading around the cache is no help
/// to somebody who fills it.
pub fn result_of(outcome: Outcome, node: &str) -> Result<Loaded> {
    let failed = |kind, what: String| Err(Error::new(kind, what));
    match outcome {
        Outcome::Stored(bytes) | Outcome::Given(bytes) => Ok(Loaded::Fetched(bytes)),
        Outcome::Present => Ok(Loaded::Present),
        Outcome::NoRoom => {
            let what = "finds no room in the cache; raise --budget or evict a dataset";
            failed(ErrorKind::NoSpace, what.into())
        }
        Outcome::CacheFailed => {
            let what = format!("the cache of {node} cannot take it; see the log of its daemon");
            failed(ErrorKind::Io, what)
        }
        Outcome::Contended => {
            let what = "another user is copying it just now; run the command again";
            failed(ErrorKind::Busy, what.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_core::{FrameMeta, FrameNo, RelPath, Validator};

    #[test]
    fn an_alien_becomes_a_native_without_the_backing_store() {
        let source = Source { path: RelPath::new("f").unwrap(), offset: 0, length: None };
        let validator = Validator { size: 4, mtime_ns: 1, ..Validator::default() };
        let stat = SourceStat { validator, uid: 1, gid: 1, mode: 0o644, is_dir: false };
        let meta = FrameMeta {
            number: FrameNo::new(1).unwrap(),
            length: 4,
            checksum: 1,
            validator: Some(validator),
            uid: 1,
            gid: 1,
            mode: 0o644,
        };
        let held = |origin| Held { meta: meta.clone(), origin, source: source.clone() };
        let (alien, native) = (held(Origin::Alien), held(Origin::Native));
        let check = |held: Option<&Held>, origin, expected| {
            let how = (Validate::Always, false);
            assert_eq!(plan(held, origin, how, &source, &stat), expected, "{held:?} {origin:?}");
        };
        check(Some(&alien), Origin::Alien, Step::Present);
        check(Some(&alien), Origin::Native, Step::Promote);
        check(Some(&native), Origin::Native, Step::Present);
        check(Some(&native), Origin::Alien, Step::Present);
        check(None, Origin::Alien, Step::Fetch);
        let mut stale = native.clone();
        stale.meta.uid = 2;
        check(Some(&stale), Origin::Native, Step::Fetch);
    }

    #[test]
    fn what_goes_around_the_cache_does_not_fill_it() {
        let kind = |outcome| result_of(outcome, "n1").map_err(|error| error.kind());
        assert_eq!(kind(Outcome::Stored(7)), Ok(Loaded::Fetched(7)));
        assert_eq!(kind(Outcome::Present), Ok(Loaded::Present));
        assert_eq!(kind(Outcome::NoRoom), Err(ErrorKind::NoSpace));
        assert_eq!(kind(Outcome::CacheFailed), Err(ErrorKind::Io));
        assert_eq!(kind(Outcome::Contended), Err(ErrorKind::Busy));
    }
}
