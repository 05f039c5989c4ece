//! The rounds that compare natives with the target by fingerprints: all at once, then by chunk.

use super::{Machine, Stage, Step, Survey, expect};
use crate::chunks::Chunks;
use crate::fingerprint::{Elements, words_of};
use crate::rules::part;
use crate::{Counts, Path, Protocol};
use zazen_core::{Result, RunSet};

impl Machine {
    /// Every rank adds its node's natives and its slice of the target. If the sum is zero, each
    /// frame is native on exactly one rank's node: no two ranks of a node hold any then. So nobody
    /// needs to know who shares a node.
    pub(super) fn fingerprint(&mut self) -> Result<Step> {
        let sum = self.fingerprint_of_slice()? ^ self.opened()?.fingerprinter.of(&self.plan.native);
        self.stage = Stage::Fingerprint;
        Ok(Step::Xor(words_of(sum).to_vec()))
    }

    pub(super) fn on_fingerprint(&mut self, words: &[u64]) -> Result<Step> {
        expect(words, 2)?;
        if words == [0, 0] {
            self.perfect();
            return self.done();
        }
        self.ask_for_node()
    }

    fn fingerprint_of_slice(&self) -> Result<u128> {
        let (first, end) = self.slice(self.rank);
        Ok(self.opened()?.fingerprinter.of(&self.expected(first, end)))
    }

    fn perfect(&mut self) {
        self.plan.path = Path::Fingerprint;
        self.plan.total = Counts { native: self.plan.target_len, ..Counts::default() };
    }

    /// Begins with the cheapest useful comparison of what the leaders hold: `held` natives, which
    /// would take `offered` bytes. All ranks choose the same one.
    pub(super) fn compare(&mut self, held: u64, offered: u64) -> Result<Step> {
        let input = self.input()?;
        if input.protocol != Protocol::Owner || input.verify_exact {
            return self.exchange();
        }
        let chunks = Chunks::of(self.plan.count, self.tuning.chunk_words_min);
        let pays = u128::from(self.tuning.offer_bytes_per_chunk) * (chunks.count() * self.size) as u128;
        let large = u128::from(offered) > pays;
        // Where no node is shared, all natives were compared before.
        let all = self.plan.shared && held == self.plan.target_len && self.counts_exactly();
        if !all && !large {
            return self.exchange();
        }
        let fingerprinter = self.opened()?.fingerprinter.clone();
        let survey = Survey { chunks, fingerprinter, held: None };
        if all { self.node_fingerprint(survey, large) } else { self.chunk_counts(survey) }
    }

    /// Leaders add their natives, and every rank adds its slice of the target. On a perfect hit the
    /// sum is zero. A further sum is zero if all ranks of each node hold the leader's natives: the
    /// leader adds them times the others' weights, each other rank times its own.
    fn node_fingerprint(&mut self, mut survey: Survey, large: bool) -> Result<Step> {
        let expected = self.fingerprint_of_slice()?;
        let leads = self.plan.node.leads();
        let held = if large && leads {
            survey.held(&self.plan.native).iter().fold(0, |sum, part| sum ^ part)
        } else {
            survey.fingerprinter.of(&self.plan.native)
        };
        let mut words = words_of(if leads { held ^ expected } else { expected }).to_vec();
        let seed = self.opened()?.opening.seed;
        let weight = |rank: usize| Elements::of_rank(seed, rank).next();
        let factor = if leads {
            self.plan.node.others.iter().fold(0, |sum, rank| sum ^ weight(*rank))
        } else {
            weight(self.rank)
        };
        words.extend(words_of(survey.fingerprinter.multiply(factor, held)));
        self.stage = Stage::NodeFingerprint { survey: large.then_some(survey) };
        Ok(Step::Xor(words))
    }

    pub(super) fn on_node_fingerprint(&mut self, survey: Option<Survey>, words: &[u64]) -> Result<Step> {
        expect(words, 4)?;
        if words[..2] != [0, 0] {
            return match survey {
                Some(survey) => self.chunk_counts(survey),
                None => self.exchange(),
            };
        }
        self.perfect();
        if words[2..] != [0, 0] {
            return self.deal();
        }
        // Each rank cuts its own block from what all ranks of the node know.
        let node = &self.plan.node;
        let (start, count) = part(node.ranks, self.plan.native.len(), node.position);
        self.plan.native = self.plan.native.block(start, count);
        self.done()
    }

    /// The existing indices within `first .. end`.
    fn expected(&self, first: u64, end: u64) -> RunSet {
        match &self.plan.target {
            _ if first == end => RunSet::new(),
            Some(target) => target.slice(first, end - 1),
            None => RunSet::range(first, end - 1),
        }
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
        let mut words =
            if self.plan.node.leads() { chunks.counts(&self.plan.native) } else { vec![0; chunks.count()] };
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
        let mut sums = if self.plan.node.leads() {
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
