//! What a scan decides beside [`crate::look`] and [`crate::misses`]: how cached frames are grouped,
//! and what becomes of one that cannot be handed out as it is.
//!
//! Invariants: memory does not grow with the set (cached frames come from the store page by page);
//! each frame comes out of the pages once, or is told to be gone.

use crate::look::Cached;
use crate::stale::{Validate, is_same_file};
use std::collections::VecDeque;
use std::ops::Range;
use zazen_core::{FrameMeta, Origin, RunSet, Source, SourceStat};

/// How long an answer about somebody's rights counts.
pub const LEASE_NS: u64 = 1_000_000_000;

/// A cached frame as a scan needs to know it.
pub trait Stored: Cached {
    /// Whether both lie in one file, so that one descriptor shows both.
    fn shares_file_with(&self, other: &Self) -> bool;
    /// How it came here.
    fn origin(&self) -> Origin;
}

/// The cached frames of a scan that were not handed out yet.
#[derive(Debug)]
pub struct Pages<E> {
    /// Frames that the store has not described.
    left: RunSet,
    page: VecDeque<E>,
    /// So many of the page's first frames were announced.
    announced: usize,
}

impl<E: Stored> Pages<E> {
    /// The cached frames of a scan.
    pub fn new(cached: RunSet) -> Pages<E> {
        Pages { left: cached, page: VecDeque::new(), announced: 0 }
    }

    /// What the store is to describe next, if a page is needed now.
    pub fn wanted(&self) -> Option<&RunSet> {
        (self.page.is_empty() && !self.left.is_empty()).then_some(&self.left)
    }

    /// The store described these, in storage order. A page may repeat frames if the store rewrote
    /// its log meanwhile.
    pub fn add(&mut self, entries: Vec<E>) {
        let number = |entry: &E| entry.meta().number.get();
        let seen: RunSet = entries.iter().map(number).collect();
        let news = seen.intersection(&self.left);
        self.left = self.left.difference(&seen);
        self.page.extend(entries.into_iter().filter(|entry| news.contains(number(entry))));
    }

    /// The store has no more, or cannot say: what it did not describe.
    pub fn give_up(&mut self) -> RunSet {
        std::mem::take(&mut self.left)
    }

    /// Up to `frames_max` frames of together `bytes_max` bytes in at most `files_max` files, at
    /// least one; none when the page is through.
    pub(crate) fn next_group(&mut self, frames_max: usize, bytes_max: u64, files_max: usize) -> Vec<E> {
        let mut group: Vec<E> = Vec::new();
        let (mut bytes, mut files) = (0u64, 0);
        while let Some(entry) = self.page.pop_front() {
            bytes = bytes.saturating_add(entry.meta().length);
            let shares = group.last().is_some_and(|last| last.shares_file_with(&entry));
            files += usize::from(!shares);
            let full = bytes > bytes_max || group.len() >= frames_max || files > files_max;
            if !group.is_empty() && full {
                self.page.push_front(entry);
                break;
            }
            group.push(entry);
        }
        self.announced = self.announced.saturating_sub(group.len());
        group
    }

    /// The frames of the page that are in no group yet.
    pub(crate) fn left_of_page(&self) -> impl ExactSizeIterator<Item = &E> {
        self.page.iter()
    }

    /// The places of frames to announce now, so that the next `ahead` are announced: none if they
    /// are fewer than `step`. Each frame is announced once.
    pub(crate) fn announce(&mut self, ahead: usize, step: usize) -> Range<usize> {
        let (from, until) = (self.announced, ahead.min(self.page.len()));
        if until < from + step {
            return from..from;
        }
        self.announced = until;
        from..until
    }
}

/// What a frame whose stale copy was dropped becomes when it is fetched again. What was loaded
/// while its source was young is loaded again; else it is an alien as any miss.
pub fn refetched_as(meta: &FrameMeta, origin: Origin) -> Origin {
    match meta.validator.is_some_and(|validator| validator.unsettled) {
        true => origin,
        false => Origin::Alien,
    }
}

/// What follows when a copy's bytes were wrong as they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCheck {
    /// It was wrong and is dropped, or is gone: bring the frame again.
    Bring,
    /// It is good now: it is not tried again in this scan, the source is handed out.
    Around,
}

/// What follows from checking a copy again: `good` is `None` if it is not there any more.
pub fn after_check(good: Option<bool>) -> AfterCheck {
    match good {
        Some(true) => AfterCheck::Around,
        Some(false) | None => AfterCheck::Bring,
    }
}

/// What of a source somebody's rights have opened, and when.
#[derive(Clone, Debug)]
pub struct Proof {
    /// Which bytes of which file. Two names can lead to one file, and number its blocks otherwise.
    pub source: Source,
    /// What it looked like.
    pub stat: SourceStat,
    /// When it was opened.
    pub at_ns: u64,
}

impl Proof {
    /// Whether a copy of `of` is one of what was opened.
    pub fn covers(&self, validate: Validate, (meta, of): (&FrameMeta, &Source)) -> bool {
        let alike = match (validate, meta.validator) {
            (Validate::Always, Some(validator)) => validator.looks_like(&self.stat.validator),
            _ => true,
        };
        *of == self.source && alike && is_same_file(meta, &self.stat)
    }

    /// Whether the rights may have changed since: the reader took its time.
    pub fn is_lapsed(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) > LEASE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zazen_core::{FrameNo, RelPath, Validator};

    #[derive(Clone, Debug, PartialEq)]
    struct TestFrame {
        meta: FrameMeta,
        source: Source,
        file: u64,
    }

    impl Cached for TestFrame {
        fn meta(&self) -> &FrameMeta {
            &self.meta
        }
        fn source(&self) -> &Source {
            &self.source
        }
    }

    impl Stored for TestFrame {
        fn shares_file_with(&self, other: &TestFrame) -> bool {
            self.file == other.file
        }
        fn origin(&self) -> Origin {
            Origin::Alien
        }
    }

    fn meta(number: u64, length: u64) -> FrameMeta {
        let number = FrameNo::new(number).unwrap();
        FrameMeta { number, length, checksum: 0, validator: None, uid: 0, gid: 0, mode: 0 }
    }

    fn entry(number: u64, length: u64, file: u64) -> TestFrame {
        let source = Source { path: RelPath::new("f").unwrap(), offset: 0, length: None };
        TestFrame { meta: meta(number, length), source, file }
    }

    proptest! {
        /// Pages that repeat, reorder and omit frames: each comes out once, in groups within the
        /// bounds, and the rest is told.
        #[test]
        fn each_frame_comes_out_once(
            count in 1u64..200,
            pages in prop::collection::vec(
                prop::collection::vec((0u64..200, 0u64..100, 0u64..9), 0..90),
                0..6),
            frames_max in 1usize..40, bytes_max in 0u64..600, files_max in 1usize..80,
        ) {
            let mut left: Pages<TestFrame> = Pages::new(RunSet::range(0, count - 1));
            let mut out = RunSet::new();
            for page in pages {
                if left.wanted().is_none() {
                    break;
                }
                let mut page: Vec<TestFrame> =
                    page.into_iter().map(|(number, length, file)| entry(number, length, file)).collect();
                page.sort_by_key(|entry| entry.meta.number);
                page.dedup_by_key(|entry| entry.meta.number);
                left.add(page);
                loop {
                    let group = left.next_group(frames_max, bytes_max, files_max);
                    if group.is_empty() {
                        break;
                    }
                    let bytes: u64 = group.iter().map(|entry| entry.meta.length).sum();
                    let files = 1 + group.windows(2).filter(|pair| pair[0].file != pair[1].file).count();
                    prop_assert!(group.len() <= frames_max && files <= files_max);
                    prop_assert!(bytes <= bytes_max || group.len() == 1);
                    for entry in group {
                        prop_assert!(out.insert(entry.meta.number.get()), "twice");
                    }
                }
            }
            let gone = left.give_up();
            prop_assert!(gone.intersection(&out).is_empty());
            prop_assert_eq!(gone.union(&out), RunSet::range(0, count - 1));
        }
    }

    #[test]
    fn young_sources_are_loaded_again() {
        let young = |unsettled| FrameMeta {
            validator: Some(Validator { unsettled, ..Validator::default() }),
            ..meta(1, 1)
        };
        assert_eq!(refetched_as(&young(true), Origin::Native), Origin::Native);
        assert_eq!(refetched_as(&young(false), Origin::Native), Origin::Alien);
        assert_eq!(refetched_as(&meta(1, 1), Origin::Native), Origin::Alien);
    }

    #[test]
    fn a_proof_covers_what_was_opened_for_a_lease() {
        let validator = Validator { size: 4, mtime_ns: 5, inode: 6, ..Validator::default() };
        let stat = SourceStat { validator, uid: 7, gid: 7, mode: 0o600, is_dir: false };
        let block =
            |path: &str, offset| Source { path: RelPath::new(path).unwrap(), offset, length: Some(4) };
        let of = block("a", 8);
        let proof = Proof { source: of.clone(), stat, at_ns: 10 };
        let copy = |mtime_ns, inode, uid| FrameMeta {
            validator: Some(Validator { mtime_ns, inode, ..validator }),
            uid,
            ..meta(1, 4)
        };
        let check = |validate, mtime_ns, inode, uid, expected| {
            assert_eq!(proof.covers(validate, (&copy(mtime_ns, inode, uid), &of)), expected);
        };
        check(Validate::Always, 5, 6, 7, true);
        check(Validate::Always, 4, 6, 7, false);
        check(Validate::Never, 4, 6, 7, true);
        check(Validate::Never, 5, 8, 7, false);
        check(Validate::Never, 5, 6, 8, false);
        for other in [block("alias", 8), block("a", 4), Source { length: None, ..of.clone() }] {
            for validate in [Validate::Always, Validate::Never] {
                assert!(!proof.covers(validate, (&copy(5, 6, 7), &other)), "{other:?}");
            }
        }
        assert!(!proof.is_lapsed(10 + LEASE_NS) && proof.is_lapsed(11 + LEASE_NS));
    }
}
