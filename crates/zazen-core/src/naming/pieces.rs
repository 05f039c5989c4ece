//! Pieces of larger files. All pieces of a layout together: checks that no number appears twice,
//! and computes their numbers.
//!
//! Invariant: the work is bounded, because any user can write a manifest. For n pieces it is n log
//! n steps, [`PAIRS_MAX`] comparisons of pieces with different steps, and [`SPREAD_MAX`] bits for
//! the numbers of pieces that interleave so that no run describes them.

use crate::error::{Error, ErrorKind, Result};
use crate::frame::FrameNo;
use crate::limits::check_frame_bytes;
use crate::path::RelPath;
use crate::runset::{Cluster, Run, RunSet, clusters, mesh};
use std::collections::BTreeMap;

/// The most comparisons of pieces with different steps whose spans overlap.
const PAIRS_MAX: usize = 1 << 22;
/// The most numbers in the spans of pieces that interleave unevenly; each takes a bit of memory.
const SPREAD_MAX: u64 = 1 << 27;
/// Numbers in a window of a bitmap. A window begins at a multiple of this.
const WINDOW: u64 = 1 << 16;

/// A run of frames inside one file: frame `first + i·step` is at `offset + i·frame_bytes`, i <
/// `count`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The file, relative to the dataset.
    pub path: RelPath,
    /// The first frame number in it.
    pub first: u64,
    /// Frames in it.
    pub count: u64,
    /// Distance between consecutive frame numbers in it.
    pub step: u64,
    /// Where the first frame begins, in bytes.
    pub offset: u64,
    /// Bytes of each frame.
    pub frame_bytes: u64,
}

impl Piece {
    /// Its frame numbers; fails where [`crate::Layout::validate`] would.
    pub fn numbers(&self) -> Result<Run> {
        let run = Run::new(self.first, self.count, self.step).map_err(|error| self.named(error))?;
        FrameNo::new(run.last()).map_err(|error| self.named(error))?;
        Ok(run)
    }

    fn named(&self, error: Error) -> Error {
        error.within(format!("piece {} (frames from {})", self.path, self.first))
    }

    /// Where frame `number` begins in the file; `None` if it is not in this piece.
    pub(super) fn offset_of(&self, number: u64) -> Option<u64> {
        let distance = number.checked_sub(self.first)?;
        let index = distance.checked_div(self.step.max(1))?;
        let held = index < self.count && distance == index * self.step;
        if !held {
            return None;
        }
        index.checked_mul(self.frame_bytes)?.checked_add(self.offset)
    }

    fn check(&self) -> Result<Run> {
        let run = self.numbers()?;
        let refuse = |kind, why: String| Err(self.named(Error::new(kind, why)));
        if self.path.is_root() {
            return refuse(
                ErrorKind::InvalidArgument,
                "names no file; give the file's path in the dataset".into(),
            );
        }
        if self.frame_bytes == 0 {
            return refuse(ErrorKind::InvalidArgument, "frame_bytes is 0; give the size of one frame".into());
        }
        check_frame_bytes(self.frame_bytes).map_err(|error| self.named(error))?;
        // File offsets are signed in the kernel.
        let end = self.count.checked_mul(self.frame_bytes).and_then(|bytes| bytes.checked_add(self.offset));
        if end.is_none_or(|end| i64::try_from(end).is_err()) {
            return refuse(ErrorKind::TooLarge, "its frames end beyond the largest file, 2^63 bytes".into());
        }
        Ok(run)
    }
}

/// Checks each piece, and that no number is given twice.
pub(super) fn validate(pieces: &[Piece]) -> Result<()> {
    let mut runs = pieces.iter().map(|piece| Ok((piece.check()?, piece))).collect::<Result<Vec<_>>>()?;
    runs.sort_by_key(|(run, _)| run.first);
    check_disjoint(&runs)?;
    let spread = RunSet::interleaved(&runs.iter().map(|(run, _)| *run).collect::<Vec<_>>());
    if spread > SPREAD_MAX {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "pieces with unlike steps interleave over {spread} frame numbers, the limit is {SPREAD_MAX}; \
                 number the frames of each file one after the other"
            ),
        ));
    }
    Ok(())
}

/// The numbers of all pieces that are valid, each considered alone.
pub(super) fn extent(pieces: &[Piece]) -> RunSet {
    let runs = pieces.iter().filter_map(|piece| piece.numbers().ok()).collect();
    let (mut plain, mut sets) = (Vec::new(), Vec::new());
    for cluster in clusters(mesh(runs)) {
        match cluster.runs[..] {
            [run] => plain.push(run),
            _ if cluster.last - cluster.first < SPREAD_MAX => sets.push(numbers(&cluster)),
            _ => plain.extend(cluster.runs),
        }
    }
    sets.push(RunSet::from_runs(plain));
    RunSet::union_all(sets)
}

/// Fails if two of `runs`, which ascend by their first numbers, share a number.
///
/// Runs with the same step can share a number only within a residue class; there it is enough to
/// compare each run with the one before. Runs with different steps are compared pair by pair.
fn check_disjoint(runs: &[(Run, &Piece)]) -> Result<()> {
    let mut classes: BTreeMap<(u64, u64), (u64, &Piece)> = BTreeMap::new();
    // By step: the runs that may reach this far.
    let mut near: BTreeMap<u64, Vec<(Run, &Piece)>> = BTreeMap::new();
    let mut compared = 0;
    for (run, piece) in runs {
        let twice = |number: u64, earlier: &Piece| {
            Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "frame {number} is in both {} and {}: a frame number has one source; \
                     renumber one of the pieces",
                    earlier.path, piece.path
                ),
            ))
        };
        let step = run.step.max(1);
        match classes.insert((step, run.first % step), (run.last(), piece)) {
            Some((last, earlier)) if last >= run.first => return twice(run.first, earlier),
            _ => {}
        }
        let mut empty = Vec::new();
        for (other_step, others) in &mut near {
            if *other_step == step {
                continue;
            }
            compared += others.len();
            if compared > PAIRS_MAX {
                return Err(Error::new(
                    ErrorKind::TooLarge,
                    format!(
                        "more than {PAIRS_MAX} pairs of pieces with unlike steps overlap, at {} and \
                         elsewhere; number the frames of each file one after the other",
                        piece.path
                    ),
                ));
            }
            others.retain(|(other, _)| other.last() >= run.first);
            if let Some((shared, earlier)) =
                others.iter().find_map(|(other, earlier)| Some((run.intersection(other)?, earlier)))
            {
                return twice(shared.first, earlier);
            }
            if others.is_empty() {
                empty.push(*other_step);
            }
        }
        empty.iter().for_each(|step| drop(near.remove(step)));
        let own = near.entry(step).or_default();
        // If the runs follow each other, none is kept for long.
        let ended = own.last().is_some_and(|(last, _)| last.last() < run.first);
        if ended && compared + own.len() <= PAIRS_MAX {
            compared += own.len();
            own.retain(|(other, _)| other.last() >= run.first);
        }
        own.push((*run, piece));
    }
    Ok(())
}

/// The numbers of a cluster, with one bit for each number in its span.
fn numbers(cluster: &Cluster) -> RunSet {
    let base = cluster.first / WINDOW * WINDOW;
    let mut words = vec![0u64; ((cluster.last - base) / 64 + 1) as usize];
    for run in &cluster.runs {
        for index in 0..run.count {
            let bit = run.first + index * run.step - base;
            words[(bit / 64) as usize] |= 1 << (bit % 64);
        }
    }
    RunSet::from_words(base, &words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use crate::path::RelPath;

    fn piece(first: u64, count: u64, step: u64) -> Piece {
        let path = RelPath::new("part.dcd").unwrap();
        Piece { path, first, count, step, offset: 0, frame_bytes: 8 }
    }

    fn check(pieces: &[Piece], kind: ErrorKind, words: &str) {
        let error = validate(pieces).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }

    #[test]
    fn a_few_words_do_not_make_gigabytes() {
        check(&[piece(0, 1 << 38, 2), piece(1, 1 << 37, 4)], ErrorKind::TooLarge, "interleave");
        check(&[piece(0, 1 << 30, 1000), piece(7, 1 << 30, 1000)], ErrorKind::TooLarge, "interleave");
        check(&[piece(0, 2, 1 << 39), piece(3, 2, 1 << 38)], ErrorKind::TooLarge, "interleave");
    }

    #[test]
    fn a_trajectory_of_a_million_frames_fits() {
        // One after the other, each frame its own piece.
        let each: Vec<_> = (0..100_000).rev().map(|number| piece(number, 1, 1)).collect();
        validate(&each).unwrap();
        assert_eq!(extent(&each), RunSet::range(0, 99_999));
        // Dealt out to the files of 5,000 ranks, and the same with one of the files missing.
        let mut dealt: Vec<_> = (0..5000).map(|rank| piece(rank, 200, 5000)).collect();
        validate(&dealt).unwrap();
        assert_eq!(extent(&dealt), RunSet::range(0, 999_999));
        dealt.remove(17);
        validate(&dealt).unwrap();
        let extent = extent(&dealt);
        assert!(extent.len() == 999_800 && !extent.contains(5017) && extent.contains(5018));
    }

    #[test]
    fn pieces_that_all_overlap_are_compared_within_bounds() {
        // Shares of one deal: no pairs at all.
        let shares: Vec<_> = (0..60_000).map(|nth| piece(nth, 1000, 60_000)).collect();
        validate(&shares).unwrap();
        // Steps that are all unlike: their pairs are counted.
        let unlike: Vec<_> = (1..5000).map(|nth| piece(nth, 1 << 12, (1 << 12) + 2 * nth)).collect();
        let error = validate(&unlike).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Conflict), "{error}");
    }

    #[test]
    fn the_numbers_are_those_of_each_piece() {
        let sets = [
            vec![piece(0, 10, 3), piece(1, 10, 3)],
            vec![piece(5, 1, 1), piece(0, 3, 2), piece(100_000, 70_000, 2), piece(100_001, 5, 4)],
            vec![piece(70_000, 4, 65_536), piece(70_001, 9, 2)],
        ];
        for pieces in sets {
            let each =
                pieces.iter().flat_map(|piece| (0..piece.count).map(|at| piece.first + at * piece.step));
            let expected: RunSet = each.collect();
            let layout = Layout::Pieces(pieces.clone());
            layout.validate().unwrap();
            assert_eq!(layout.declared_extent().unwrap(), expected, "{pieces:?}");
        }
    }

    #[test]
    fn a_number_given_twice_is_found() {
        for (one, two) in [
            ((0, 10, 3), (9, 4, 3)),
            ((0, 10, 3), (1, 10, 4)),
            ((5, 1, 1), (0, 10, 5)),
            ((0, 100, 1), (50, 1, 1)),
            ((0, 100, 2), (50, 2, 9)),
        ] {
            let pieces = [one, two].map(|(first, count, step)| piece(first, count, step));
            check(&pieces, ErrorKind::Conflict, "is in both");
            let [one, two] = pieces;
            check(&[two, one], ErrorKind::Conflict, "is in both");
        }
    }
}
