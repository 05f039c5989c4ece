//! Datasets whose files are numbered by their names: all ranks must have found the same files,
//! because a file that one rank did not see changes the numbers of others.

use super::Dataset;
use crate::agree::{Names, told_by_rank_0};
use zazen_assign::Collectives;
use zazen_backing::by_name::is_by_name;
use zazen_core::{Error, ErrorKind, Layout, Result};
use zazen_wire::checksum::FrameDigest;

impl Dataset {
    /// Whether the user's pattern numbers files by their names.
    pub(super) fn is_by_name(&self) -> bool {
        self.direct_spec.pattern.as_deref().is_some_and(is_by_name)
    }

    /// Where files are numbered by their names: how many there are, and a checksum of their paths.
    /// Another process that opens the dataset finds the same frames if it gets the same.
    pub fn names(&self) -> Option<(u64, u64)> {
        self.is_by_name().then(|| self.names_found()).map(|Names { files, sum }| (files, sum))
    }

    /// Compares this rank's files with those of rank 0, if they are numbered by their names
    /// (collective). The inner error is this rank's alone: the other ranks wait for it in the
    /// protocol that follows.
    pub(super) fn agree_on_names(&self, collectives: &dyn Collectives) -> Result<Result<()>> {
        if !self.is_by_name() {
            return Ok(Ok(()));
        }
        let mine = self.names_found();
        let theirs = told_by_rank_0(collectives, || Ok(mine.clone()))?;
        if mine == theirs {
            return Ok(Ok(()));
        }
        let what = format!(
            "dataset {}: rank {} found {} files of {}, rank 0 found {}, and they are not the same; files \
             came or went while the ranks opened it: open it again",
            self.path.display(),
            collectives.rank(),
            mine.files,
            self.direct_spec.pattern.as_deref().unwrap_or_default(),
            theirs.files,
        );
        Ok(Err(Error::new(ErrorKind::Stale, what)))
    }

    fn names_found(&self) -> Names {
        let Some(Layout::List(files)) = self.layout() else { return Names { files: 0, sum: 0 } };
        let mut digest = FrameDigest::default();
        for file in files.iter() {
            digest.update(file.as_str().as_bytes());
            digest.update(b"\0");
        }
        Names { files: files.len() as u64, sum: digest.finish() }
    }
}
