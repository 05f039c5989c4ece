//! The rounds that compare natives with the target by fingerprints: all at once, then by chunk.

use super::{Machine, Stage, Step, Survey, expect};
use crate::chunks::Chunks;
use crate::fingerprint::{Elements, Fingerprinter, words_of};
use crate::header::Opening;
use crate::rules::even;
use crate::{Counts, Path};
use zazen_core::{Result, RunSet};

impl Machine {
    /// Begins with the cheapest useful comparison. All ranks choose the same one, because they have
    /// the same headers.
    pub(super) fn compare(&mut self, opening: &Opening) -> Result<Step> {
        let nodes = &self.plan.nodes;
        let leaders = || opening.held.iter().enumerate().filter(|(rank, _)| nodes.leader(*rank));
        let held: u128 = leaders().map(|(_, held)| u128::from(held.0)).sum();
        let offered: u128 = leaders().map(|(_, held)| u128::from(held.1)).sum();
        let chunks = Chunks::of(self.plan.count, self.tuning.chunk_words_min);
        let pays = u128::from(self.tuning.offer_bytes_per_chunk) * (chunks.count() * self.size) as u128;
        let large = offered > pays;
        let all = held == u128::from(self.plan.target_len);
        if !all && !large {
            return self.exchange();
        }
        let mut elements = Elements::new(&opening.seed);
        let fingerprinter = Fingerprinter::new(elements.next());
        let survey = Survey { chunks, fingerprinter, held: None };
        if all { self.fingerprint(survey, large, elements) } else { self.chunk_counts(survey) }
    }

    /// Leaders add their natives, and every rank adds its slice of the target. On a perfect hit the
    /// sum is zero. If nodes are shared, a further sum is zero if all ranks of each node hold the
    /// leader's natives.
    fn fingerprint(&mut self, mut survey: Survey, large: bool, mut elements: Elements) -> Result<Step> {
        let (first, end) = self.slice(self.rank);
        let expected = survey.fingerprinter.of(&self.expected(first, end));
        let leads = self.plan.nodes.leader(self.rank);
        let held = if large && leads {
            survey.held(&self.plan.native).iter().fold(0, |sum, part| sum ^ part)
        } else {
            survey.fingerprinter.of(&self.plan.native)
        };
        let mut words = words_of(if leads { held ^ expected } else { expected }).to_vec();
        if self.plan.nodes.shared() {
            let weights: Vec<u128> = (0..self.size).map(|_| elements.next()).collect();
            let members = &self.plan.nodes.members[self.node()];
            let factor = if leads {
                members[1..].iter().fold(0, |sum, rank| sum ^ weights[*rank])
            } else {
                weights[self.rank]
            };
            words.extend(words_of(survey.fingerprinter.multiply(factor, held)));
        }
        self.stage = Stage::Fingerprint { survey: large.then_some(survey) };
        Ok(Step::Xor(words))
    }

    /// The existing indices within `first .. end`.
    fn expected(&self, first: u64, end: u64) -> RunSet {
        match &self.plan.target {
            _ if first == end => RunSet::new(),
            Some(target) => target.slice(first, end - 1),
            None => RunSet::range(first, end - 1),
        }
    }

    pub(super) fn on_fingerprint(&mut self, survey: Option<Survey>, words: &[u64]) -> Result<Step> {
        let shared = self.plan.nodes.shared();
        expect(words, if shared { 4 } else { 2 })?;
        if words[..2] != [0, 0] {
            return match survey {
                Some(survey) => self.chunk_counts(survey),
                None => self.exchange(),
            };
        }
        self.plan.path = Path::Fingerprint;
        self.plan.total = Counts { native: self.plan.target_len, ..Counts::default() };
        if !shared {
            return self.done();
        }
        if words[2..] != [0, 0] {
            return self.deal();
        }
        // Each rank cuts its own block from what all ranks of the node know.
        let members = &self.plan.nodes.members[self.node()];
        let sizes = even(members.len(), self.plan.native.len());
        let at = members.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        self.plan.native = self.plan.native.block(sizes[..at].iter().sum(), sizes[at]);
        self.done()
    }

    /// The chunks of the target whose counts and fingerprints this rank computes, and their
    /// indices.
    fn own_chunks(&self, chunks: &Chunks) -> (usize, usize, RunSet) {
        let bound = |rank: usize| (chunks.count() as u128 * rank as u128 / self.size as u128) as usize;
        let (first, end) = (bound(self.rank), bound(self.rank + 1));
        if first == end {
            return (first, end, RunSet::new());
        }
        (first, end, self.expected(chunks.bounds(first).0, chunks.bounds(end - 1).1))
    }

    /// Leaders add how many natives they have in each chunk. Every rank subtracts its chunks of the
    /// target.
    fn chunk_counts(&mut self, survey: Survey) -> Result<Step> {
        let chunks = &survey.chunks;
        let mut words = if self.plan.nodes.leader(self.rank) {
            chunks.counts(&self.plan.native)
        } else {
            vec![0; chunks.count()]
        };
        let (_, _, expected) = self.own_chunks(chunks);
        words
            .iter_mut()
            .zip(chunks.counts(&expected))
            .for_each(|(word, gone)| *word = word.wrapping_sub(gone));
        self.stage = Stage::ChunkCounts { survey };
        Ok(Step::Sum(words))
    }

    pub(super) fn on_chunk_counts(&mut self, mut survey: Survey, words: &[u64]) -> Result<Step> {
        expect(words, survey.chunks.count() as u64)?;
        let matching: Vec<usize> = (0..words.len()).filter(|chunk| words[*chunk] == 0).collect();
        if matching.is_empty() {
            return self.exchange();
        }
        let mut sums = if self.plan.nodes.leader(self.rank) {
            survey.held(&self.plan.native).to_vec()
        } else {
            vec![0; survey.chunks.count()]
        };
        let (_, _, expected) = self.own_chunks(&survey.chunks);
        let expected = survey.fingerprinter.by_chunk(&expected, &survey.chunks);
        sums.iter_mut().zip(expected).for_each(|(sum, expected)| *sum ^= expected);
        let words = matching.iter().flat_map(|chunk| words_of(sums[*chunk])).collect();
        self.stage = Stage::ChunkFingerprints { survey, matching };
        Ok(Step::Xor(words))
    }

    /// Chunks whose count and fingerprint match are settled.
    pub(super) fn on_chunk_fingerprints(
        &mut self,
        survey: &Survey,
        matching: &[usize],
        words: &[u64],
    ) -> Result<Step> {
        expect(words, 2 * matching.len() as u64)?;
        let mut settled = vec![false; survey.chunks.count()];
        for (chunk, sum) in matching.iter().zip(words.chunks(2)) {
            settled[*chunk] = sum == [0, 0];
        }
        if settled.contains(&true) {
            self.plan.open = Some(survey.chunks.others(&settled));
        }
        self.exchange()
    }
}

impl Survey {
    /// The fingerprints of `native` by chunk.
    fn held(&mut self, native: &RunSet) -> &[u128] {
        self.held.get_or_insert_with(|| self.fingerprinter.by_chunk(native, &self.chunks))
    }
}
