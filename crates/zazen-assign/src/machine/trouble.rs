//! The rounds after a header that does not add up. All ranks end with the same error, that of the
//! lowest rank that has a complaint.

use super::{Machine, Stage, Step, expect};
use crate::header::{Complaint, Header, Search};
use zazen_core::{Error, Result};

impl Machine {
    /// Rank 0 tells what it asks for. `declined`: some rank cannot take part.
    pub(super) fn trouble(&mut self, declined: bool) -> Result<Step> {
        let words = match &self.header {
            Header::Ready(ready) if self.rank == 0 => ready.asked.words(),
            _ => [0; 3],
        };
        self.stage = Stage::Root { declined };
        Ok(Step::Or(words.to_vec()))
    }

    pub(super) fn on_root(&mut self, declined: bool, words: &[u64]) -> Result<Step> {
        expect(words, 3)?;
        let root = [words[0], words[1], words[2]];
        let complaint = Complaint::of(&self.header, self.rank, self.size, root, declined);
        self.search(Search::among(self.size), complaint)
    }

    fn search(&mut self, search: Search, complaint: Option<Complaint>) -> Result<Step> {
        let words = search.words(self.rank, complaint.is_some());
        self.stage = Stage::Search { search, complaint };
        Ok(Step::Or(words))
    }

    pub(super) fn on_search(
        &mut self,
        search: Search,
        complaint: Option<Complaint>,
        words: &[u64],
    ) -> Result<Step> {
        let search = search.narrowed(words)?;
        let Some(rank) = search.found() else { return self.search(search, complaint) };
        self.stage = Stage::Complaint;
        Ok(Step::Or(Complaint::words(complaint.as_ref().filter(|_| rank == self.rank))))
    }

    pub(super) fn on_complaint(&mut self, words: &[u64]) -> Error {
        Complaint::error(words)
    }
}
