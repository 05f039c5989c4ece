//! Round 0: whether all ranks ask for the same, and whether a rank cannot take part. One sum of
//! six words, whatever the number of ranks.
//!
//! Each rank adds a digest of what it asks for. If all ask for the same, the sum is the number of
//! ranks times each rank's own digest. Otherwise no rank finds that it is (but for a chance below
//! 2⁻¹⁰⁰), so all of them look for the lowest rank that has a complaint, and end with its text.

use crate::fingerprint::{Draws, Elements, Fingerprinter, seed_of, words_of};
use crate::{Input, Protocol, Rules};
use zazen_core::{Error, ErrorKind, Request, Result, RunSet};

/// Increase this with every change of the rounds or of a block's bytes.
const VERSION: u64 = 3;
/// The longest complaint that is sent to the others, in bytes.
const COMPLAINT_BYTES_MAX: usize = 1024;
/// Words of a complaint: kind, length, text.
const COMPLAINT_WORDS: usize = 2 + COMPLAINT_BYTES_MAX / 8;
/// Words by which the rank with a complaint is looked for.
const SEARCH_WORDS: usize = 64;

/// One rank's header.
pub(crate) enum Header {
    /// The rank takes part.
    Ready(Ready),
    /// The rank does not take part, for this reason.
    Declined(ErrorKind, String),
}

/// What a rank asks for; the same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The version and the options.
    mode: u64,
    request: u64,
    target: u64,
}

/// The data of a rank that takes part.
pub(crate) struct Ready {
    pub(crate) asked: Asked,
    /// Natives of this rank's node within the target.
    pub(crate) native: u64,
    /// About how many bytes this rank would offer if it leads its node.
    pub(crate) offer_bytes: u64,
    pub(crate) seed: u128,
}

/// The result of round 0.
pub(crate) struct Opening {
    pub(crate) seed: u128,
    /// Natives of all ranks together.
    pub(crate) native: u64,
}

impl Ready {
    pub(crate) fn of(input: &Input) -> Ready {
        let bits = [input.rules == Rules::Paper, input.protocol == Protocol::Bitmaps, input.verify_exact];
        let mode: u64 = bits.iter().enumerate().map(|(at, set)| u64::from(*set) << at).sum();
        let asked = Asked {
            mode: VERSION << 8 | mode,
            request: request_digest(&input.request),
            target: target_digest(input.target.as_ref()),
        };
        Ready { asked, native: 0, offer_bytes: 0, seed: seed_of(input.seed) }
    }
}

impl Opening {
    /// The elements that all ranks draw.
    pub(crate) fn elements(&self) -> Elements {
        Elements::new(self.seed)
    }
}

impl Asked {
    fn digest(&self) -> [u64; 2] {
        [1, 2].map(|start| {
            self.words().iter().fold(start, |digest, value| Draws::from_word(digest ^ value).next())
        })
    }

    pub(crate) fn words(&self) -> [u64; 3] {
        [self.mode, self.request, self.target]
    }
}

/// The words that `rank` adds. Only rank 0's seed is used, so only rank 0 adds one.
pub(crate) fn words(header: &Header, rank: usize) -> Vec<u64> {
    match header {
        Header::Ready(ready) => {
            let [low, high] = ready.asked.digest();
            let seed = if rank == 0 { words_of(ready.seed) } else { [0; 2] };
            vec![low, high, 0, seed[0], seed[1], ready.native]
        }
        Header::Declined(..) => vec![0, 0, 1, 0, 0, 0],
    }
}

/// The result, from the sums over `size` ranks; `None` if some rank has a complaint.
pub(crate) fn judge(header: &Header, sums: &[u64], size: usize) -> Result<Option<Opening>> {
    let &[low, high, declined, seed_low, seed_high, native] = sums else {
        let context = format!("the first round of the assignment brought {} words, not 6", sums.len());
        return Err(Error::new(ErrorKind::Protocol, context));
    };
    let agree = |ready: &Ready| ready.asked.digest().map(|own| own.wrapping_mul(size as u64)) == [low, high];
    Ok(match header {
        Header::Ready(ready) if declined == 0 && agree(ready) => {
            let seed = u128::from(seed_low) | u128::from(seed_high) << 64;
            Some(Opening { seed, native })
        }
        _ => None,
    })
}

/// Why a rank cannot take part, or how it differs from rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    kind: ErrorKind,
    text: String,
}

impl Complaint {
    /// `rank`'s complaint, if it has one. `root` is what rank 0 asks for. If any rank declined,
    /// only those that did complain.
    pub(crate) fn of(
        header: &Header,
        rank: usize,
        size: usize,
        root: [u64; 3],
        declined: bool,
    ) -> Option<Complaint> {
        let asked = match header {
            Header::Declined(kind, reason) if size == 1 => {
                return Some(Complaint { kind: *kind, text: reason.clone() });
            }
            Header::Declined(kind, reason) => {
                return Some(Complaint {
                    kind: *kind,
                    text: format!("rank {rank} cannot take part: {reason}"),
                });
            }
            Header::Ready(_) if declined => return None,
            Header::Ready(ready) => ready.asked,
        };
        let differs = if asked.request != root[1] {
            "begin, end or stride"
        } else if asked.target != root[2] {
            "the target (the frames that exist)"
        } else if asked.mode >> 8 != root[0] >> 8 {
            "the protocol's version"
        } else if asked.mode != root[0] {
            "rules, protocol or verify"
        } else {
            return None;
        };
        let text = format!(
            "rank {rank} calls assign with another value of {differs} than rank 0; give all ranks the same"
        );
        Some(Complaint { kind: ErrorKind::InvalidArgument, text })
    }

    /// The words of `complaint`. Ranks that do not speak give zeros, which an OR leaves out.
    pub(crate) fn words(complaint: Option<&Complaint>) -> Vec<u64> {
        let mut words = vec![0; COMPLAINT_WORDS];
        let Some(complaint) = complaint else { return words };
        let text = zazen_wire::codec::clip(&complaint.text, COMPLAINT_BYTES_MAX);
        (words[0], words[1]) = (complaint.kind as u64, text.len() as u64);
        for (at, byte) in text.bytes().enumerate() {
            words[2 + at / 8] |= u64::from(byte) << (at % 8 * 8);
        }
        words
    }

    /// The error that such words tell.
    pub(crate) fn error(words: &[u64]) -> Error {
        let malformed =
            || Error::new(ErrorKind::Protocol, "a rank's complaint is malformed; run one version");
        let length = words.get(1).copied().unwrap_or(0);
        if words.len() != COMPLAINT_WORDS || length > COMPLAINT_BYTES_MAX as u64 {
            return malformed();
        }
        let byte = |at: usize| (words[2 + at / 8] >> (at % 8 * 8)) as u8;
        let bytes: Vec<u8> = (0..length as usize).map(byte).collect();
        let kind = u32::try_from(words[0]).ok().and_then(ErrorKind::from_code);
        match (kind, String::from_utf8(bytes)) {
            (Some(kind), Ok(text)) => Error::new(kind, text),
            _ => malformed(),
        }
    }
}

/// The search for the lowest rank with a complaint: in each round an OR of 4096 bits, one for each
/// part of the ranks that are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    first: usize,
    end: usize,
}

impl Search {
    pub(crate) fn among(size: usize) -> Search {
        Search { first: 0, end: size }
    }

    /// Ranks in one part.
    fn part(&self) -> usize {
        (self.end - self.first).div_ceil(64 * SEARCH_WORDS).max(1)
    }

    /// The words of `rank`.
    pub(crate) fn words(&self, rank: usize, complains: bool) -> Vec<u64> {
        let mut words = vec![0; SEARCH_WORDS];
        if complains && (self.first..self.end).contains(&rank) {
            let bit = (rank - self.first) / self.part();
            words[bit / 64] |= 1 << (bit % 64);
        }
        words
    }

    /// The lowest part with a complaint, from the words of all ranks.
    pub(crate) fn narrowed(&self, words: &[u64]) -> Result<Search> {
        let word = words.iter().position(|word| *word != 0).filter(|_| words.len() == SEARCH_WORDS);
        let first = word.map(|at| self.first + (64 * at + words[at].trailing_zeros() as usize) * self.part());
        match first.filter(|first| *first < self.end) {
            Some(first) => Ok(Search { first, end: (first + self.part()).min(self.end) }),
            None => Err(Error::new(
                ErrorKind::Protocol,
                "the ranks do not agree on what to assign, but none says why; run one version on all ranks",
            )),
        }
    }

    /// The rank, if one only is left.
    pub(crate) fn found(&self) -> Option<usize> {
        (self.end - self.first == 1).then_some(self.first)
    }
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

    fn ready(mode: u64, native: u64) -> Header {
        let asked = Asked { mode: VERSION << 8 | mode, request: 0x11, target: 0x22 };
        Header::Ready(Ready { asked, native, offer_bytes: 0x44, seed: seed_of(*b"0123456789abcdef") })
    }

    fn summed(headers: &[Header]) -> Vec<u64> {
        let all = headers.iter().enumerate().map(|(rank, header)| words(header, rank));
        all.reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect()).unwrap()
    }

    #[test]
    fn golden_words() {
        let seed = [u64::from_le_bytes(*b"01234567"), u64::from_le_bytes(*b"89abcdef")];
        let digest = [16_329_873_137_962_939_140, 10_489_603_803_936_872_922];
        let root = words(&ready(5, 0x33), 0);
        assert_eq!(root, [digest[0], digest[1], 0, seed[0], seed[1], 0x33]);
        assert_eq!(words(&ready(5, 7), 1), [digest[0], digest[1], 0, 0, 0, 7]);
        assert_eq!(words(&Header::Declined(ErrorKind::Unavailable, "no".into()), 3), [0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn sums_tell_whether_all_ask_for_the_same() {
        for size in [1usize, 2, 64, 4096] {
            let mut headers: Vec<Header> = (0..size).map(|rank| ready(5, rank as u64)).collect();
            let opening = judge(&headers[0], &summed(&headers), size).unwrap().unwrap();
            let natives: u64 = (0..size as u64).sum();
            assert_eq!(opening.native, natives);
            assert_eq!(opening.seed, seed_of(*b"0123456789abcdef"));
            if size == 1 {
                continue;
            }
            for odd in [ready(4, 0), Header::Declined(ErrorKind::Io, "no".into())] {
                for half in [1, size / 2] {
                    for header in &mut headers[size - half..] {
                        *header = match &odd {
                            Header::Ready(ready) => Header::Ready(Ready { ..*ready }),
                            Header::Declined(kind, why) => Header::Declined(*kind, why.clone()),
                        };
                    }
                    let sums = summed(&headers);
                    for header in &headers {
                        assert!(judge(header, &sums, size).unwrap().is_none());
                    }
                }
            }
        }
        assert_eq!(judge(&ready(5, 1), &[0; 5], 1).err().unwrap().kind(), ErrorKind::Protocol);
    }

    #[test]
    fn the_lowest_rank_that_complains_is_found_in_few_rounds() {
        for (size, rounds) in [(1, 1), (2, 1), (4096, 1), (4097, 2), (1 << 24, 2), ((1 << 24) + 5, 3)] {
            for lowest in [0, 1, size / 3, size - 1] {
                let lowest = lowest.min(size - 1);
                let (mut search, mut taken) = (Search::among(size), 0);
                while search.found().is_none() || taken == 0 {
                    let mut all = search.words(lowest, true);
                    for other in [size - 1, (lowest + 1).min(size - 1), (lowest + 5000).min(size - 1)] {
                        all.iter_mut().zip(search.words(other, true)).for_each(|(a, b)| *a |= b);
                    }
                    search = search.narrowed(&all).unwrap();
                    taken += 1;
                }
                assert_eq!(search.found(), Some(lowest), "{lowest} of {size}");
                assert!(taken <= rounds, "{lowest} of {size}");
            }
        }
        assert!(Search::among(9).narrowed(&[0; SEARCH_WORDS]).is_err());
        assert!(Search::among(9).narrowed(&[u64::MAX]).is_err());
        assert!(Search::among(9).narrowed(&[1 << 9; SEARCH_WORDS]).is_err());
    }

    #[test]
    fn complaints_come_back_and_damage_is_an_error() {
        let complaint = Complaint { kind: ErrorKind::NotFound, text: "é".repeat(2000) };
        let words = Complaint::words(Some(&complaint));
        let error = Complaint::error(&words);
        assert_eq!((error.kind(), error.to_string().len()), (ErrorKind::NotFound, COMPLAINT_BYTES_MAX));
        assert_eq!(Complaint::words(None), vec![0; COMPLAINT_WORDS]);
        for damage in [(0, 1 << 40), (1, 1025), (2, 0xff)] {
            let mut words = words.clone();
            words[damage.0] = damage.1;
            assert_eq!(Complaint::error(&words).kind(), ErrorKind::Protocol);
        }
        assert_eq!(Complaint::error(&[]).kind(), ErrorKind::Protocol);
    }
}
