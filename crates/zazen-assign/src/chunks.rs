//! The index space in equal chunks. Each chunk can be settled separately.
//!
//! A chunk is *settled* if counts and fingerprints show that every index of its target is native
//! exactly once. In a settled chunk each node reads its own natives, and the chunk takes no part in
//! the exchange of holdings.
//!
//! Invariant: chunks are cut at multiples of 64, so no word of a bitmap is in two chunks.

use zazen_core::{Run, RunSet, runset::Segment};

/// The most chunks: their counts and fingerprints take 96 KiB.
const COUNT_MAX: u64 = 4096;

/// When chunks are compared. All ranks must use the same limits. Only tests change the default.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// The least number of words (64 indices each) in a chunk; a power of two.
    pub chunk_words_min: u64,
    /// Chunks are compared if a rank would offer at least this many bytes per chunk on average.
    pub offer_bytes_per_chunk: u64,
    /// Links are weighed if a rank would offer at least this many bytes on average.
    pub weighed_bytes: u64,
    /// Blocks of fewer bytes are not packed.
    pub packed_bytes_min: usize,
}

impl Default for Tuning {
    /// A window; eight times what a chunk's count and fingerprint take; four times what weighing
    /// sends; a tenth of a chunk of packed bytes.
    fn default() -> Tuning {
        Tuning {
            chunk_words_min: 1024,
            offer_bytes_per_chunk: 8 * 24,
            weighed_bytes: 8 << 20,
            packed_bytes_min: 64 << 10,
        }
    }
}

/// `0 .. indices` cut into chunks.
#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    indices: u64,
    /// A power of two.
    words: u64,
}

impl Chunks {
    pub(crate) fn of(indices: u64, words_min: u64) -> Chunks {
        let mut words = words_min.next_power_of_two();
        while indices.div_ceil(64 * words) > COUNT_MAX {
            words *= 2;
        }
        Chunks { indices, words }
    }

    pub(crate) fn count(&self) -> usize {
        self.indices.div_ceil(64 * self.words) as usize
    }

    /// Words of a chunk; the last one may be shorter.
    pub(crate) fn words(&self) -> u64 {
        self.words
    }

    /// The chunk of an index.
    pub(crate) fn holding(&self, index: u64) -> usize {
        (index / (64 * self.words)) as usize
    }

    /// The chunk's indices `first .. end`.
    pub(crate) fn bounds(&self, chunk: usize) -> (u64, u64) {
        let first = chunk as u64 * 64 * self.words;
        (first, (first + 64 * self.words).min(self.indices))
    }

    /// How many numbers of `set` each chunk holds.
    pub(crate) fn counts(&self, set: &RunSet) -> Vec<u64> {
        let mut before = 0;
        let count = |chunk: usize| {
            let until = set.rank(self.bounds(chunk).1);
            until - std::mem::replace(&mut before, until)
        };
        (0..self.count()).map(count).collect()
    }

    /// The indices of the chunks that are not in `settled`.
    pub(crate) fn others(&self, settled: &[bool]) -> RunSet {
        let open = settled.iter().enumerate().filter(|(_, settled)| !**settled);
        open.fold(RunSet::new(), |mut set, (chunk, _)| {
            let (first, end) = self.bounds(chunk);
            set.insert_run(Run { first, count: end - first, step: 1 });
            set
        })
    }
}

/// About how many bytes `set` takes in an offer.
pub(crate) fn offer_bytes(set: &RunSet) -> u64 {
    let bytes = |segment: Segment<'_>| match segment {
        Segment::Run(_) => 8,
        Segment::Sparse { offsets, .. } => (offsets.len() + offsets.len() / 4) as u64,
        Segment::Bits { words, count, .. } => match (8 * words.len() as u64, u64::from(count)) {
            (bitmap, count) if 4 * count <= bitmap => count + count / 4,
            (bitmap, _) => bitmap + 8,
        },
    };
    set.segments().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_index_space_once() {
        for (indices, words_min) in
            [(1, 1), (64, 1), (65, 1), (1 << 20, 1), (1 << 40, 1024), (999_999_937, 1024)]
        {
            let chunks = Chunks::of(indices, words_min);
            assert!(chunks.count() as u64 <= COUNT_MAX && chunks.words() >= words_min, "{chunks:?}");
            let mut next = 0;
            for chunk in 0..chunks.count() {
                let (first, end) = chunks.bounds(chunk);
                assert_eq!(first, next, "{chunks:?}");
                assert!(first < end && chunks.holding(first) == chunk && chunks.holding(end - 1) == chunk);
                next = end;
            }
            assert_eq!(next, indices);
        }
    }

    #[test]
    fn counts_and_the_open_rest_are_those_of_the_parts() {
        let chunks = Chunks::of(1000, 2);
        let set = RunSet::from_ascending((0..1000).filter(|index| index % 7 < 3));
        for (chunk, count) in chunks.counts(&set).into_iter().enumerate() {
            let (first, end) = chunks.bounds(chunk);
            assert_eq!(count, set.slice(first, end - 1).len());
        }
        let settled: Vec<bool> = (0..chunks.count()).map(|chunk| chunk % 3 != 0).collect();
        let expected = (0..1000).filter(|index| !settled[chunks.holding(*index)]);
        assert!(chunks.others(&settled) == RunSet::from_ascending(expected));
    }
}
