//! Files of chunks as one file system has them: the length that cuts and appends gave, and the
//! chunks with theirs. A chunk that some node has open stays when the file is cut before it.

use super::order::Model;
use std::collections::BTreeMap;
use zazen_namespace::InodeId;

/// MiB of a chunk.
pub(super) const CHUNK_MIB: u32 = 1;
/// Bytes of a chunk.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;
/// Chunks that clients use.
pub(super) const CHUNKS: u64 = 3;

/// What a client asked of a file of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A range at the end.
    Append {
        bytes: u64,
    },
    /// Another length.
    Cut {
        bytes: u64,
    },
    /// A chunk; to make it, if it is not there.
    Chunk {
        index: u64,
        make: bool,
    },
    /// The length of a chunk is told.
    Commit {
        chunk: InodeId,
        bytes: u64,
    },
    Look,
}

/// What it saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The range begins here.
    Range { offset: u64 },
    /// It is cut. The bits stand for chunks that somebody may have had open then.
    Cut { may_stay: u64 },
    /// The chunk, old or new.
    Chunk(InodeId),
    /// `ENOENT`.
    Missing,
    /// Committed.
    Done,
    /// `ESTALE`: the chunk is gone.
    Stale,
    /// So many bytes.
    Length { bytes: u64 },
}

/// Which inode a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    Known(InodeId),
    /// Made by this call, whose answer nobody saw.
    MadeBy(usize),
}

/// The file: the length that it was given, and its chunks with theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct File {
    own: u64,
    chunks: BTreeMap<u64, (Which, u64)>,
}

impl File {
    fn length(&self) -> u64 {
        let ends = self.chunks.iter().filter(|(_, (_, bytes))| *bytes > 0);
        ends.map(|(index, (_, bytes))| index * CHUNK_BYTES + bytes).fold(self.own, u64::max)
    }

    /// With these chunks behind the length in all ways in which they may stay.
    fn cut(&self, bytes: u64, may_stay: u64) -> Vec<File> {
        let mut after = vec![File { own: bytes, ..self.clone() }];
        for index in self.chunks.keys().filter(|index| *index * CHUNK_BYTES >= bytes) {
            let gone = |file: &File| {
                let mut file = file.clone();
                file.chunks.remove(index);
                file
            };
            let without: Vec<_> = after.iter().map(gone).collect();
            if may_stay >> index & 1 == 0 {
                after.clear();
            }
            after.extend(without);
        }
        after
    }

    fn with_chunk(&self, index: u64, chunk: Which) -> File {
        let mut file = self.clone();
        file.chunks.entry(index).or_insert((chunk, 0)).0 = chunk;
        file
    }
}

/// See the module.
pub(crate) struct Chunks;

impl Model for Chunks {
    type Asked = Asked;
    type Seen = Seen;
    type State = File;

    fn only_looks(asked: &Asked) -> bool {
        matches!(asked, Asked::Look)
    }

    fn apply(file: &File, asked: &Asked, seen: Option<&Seen>, call: usize) -> Vec<File> {
        match (asked, seen) {
            (Asked::Append { bytes }, None | Some(Seen::Range { .. })) => {
                let offset = file.length();
                let after = File { own: offset + bytes, ..file.clone() };
                let is_it = seen.is_none_or(|seen| *seen == Seen::Range { offset });
                if is_it { vec![after] } else { Vec::new() }
            }
            (Asked::Cut { bytes }, None) => file.cut(*bytes, u64::MAX),
            (Asked::Cut { bytes }, Some(Seen::Cut { may_stay })) => file.cut(*bytes, *may_stay),
            (Asked::Chunk { index, make }, seen) => match (file.chunks.get(index), seen) {
                (Some(_), None) => vec![file.clone()],
                (None, None) if *make => vec![file.with_chunk(*index, Which::MadeBy(call))],
                (None, None) => vec![file.clone()],
                (Some((Which::Known(known), _)), Some(Seen::Chunk(id))) if known != id => Vec::new(),
                (Some(_), Some(Seen::Chunk(id))) => vec![file.with_chunk(*index, Which::Known(*id))],
                (None, Some(Seen::Chunk(id))) if *make => vec![file.with_chunk(*index, Which::Known(*id))],
                (None, Some(Seen::Missing)) if !make => vec![file.clone()],
                _ => Vec::new(),
            },
            (Asked::Commit { chunk, bytes }, seen) => {
                let found = file.chunks.iter().find(|(_, (which, _))| *which == Which::Known(*chunk));
                match (found.map(|(index, _)| *index), seen) {
                    (Some(index), None | Some(Seen::Done)) => {
                        let mut file = file.clone();
                        file.chunks.insert(index, (Which::Known(*chunk), *bytes));
                        vec![file]
                    }
                    (None, None | Some(Seen::Stale)) => vec![file.clone()],
                    _ => Vec::new(),
                }
            }
            (Asked::Look, Some(Seen::Length { bytes })) if *bytes == file.length() => vec![file.clone()],
            _ => Vec::new(),
        }
    }
}

/// Whether somebody may have a chunk open.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Use {
    /// Opens that were asked for and not ended: those of lives that have ended, too, because nobody
    /// knows when the partition heard of that.
    pub(crate) open: u64,
    /// When the last one ended.
    pub(crate) until_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::super::order::{Recorded, Verdict, order};
    use super::*;

    fn may_be(calls: &[(Asked, Option<Seen>)]) -> bool {
        // Each is answered before the next begins; one without an answer stays open.
        let recorded = |(at, (asked, seen)): (usize, &(Asked, Option<Seen>))| {
            let at_ns = 10 * at as u64;
            Recorded { asked: *asked, at_ns, answer: seen.map(|seen| (at_ns + 5, seen)) }
        };
        let calls: Vec<_> = calls.iter().enumerate().map(recorded).collect();
        let verdict = order::<Chunks>(File::default(), &calls);
        assert!(verdict != Verdict::Undecided);
        verdict == Verdict::Order
    }

    #[test]
    fn cuts_end_what_is_behind_them_and_appends_never_overlap() {
        let (one, two) = (InodeId(7), InodeId(8));
        let chunk = |index, id| (Asked::Chunk { index, make: true }, Some(Seen::Chunk(id)));
        let commit = |chunk, bytes, seen| (Asked::Commit { chunk, bytes }, Some(seen));
        let look = |bytes| (Asked::Look, Some(Seen::Length { bytes }));
        let cut = |bytes, may_stay| (Asked::Cut { bytes }, Some(Seen::Cut { may_stay }));
        let append = |bytes, offset| (Asked::Append { bytes }, Some(Seen::Range { offset }));
        let written = [chunk(1, one), commit(one, 5, Seen::Done)];
        let then = |more: &[(Asked, Option<Seen>)]| [&written[..], more].concat();
        assert!(may_be(&then(&[look(CHUNK_BYTES + 5), cut(3, 0), look(3)])));
        assert!(!may_be(&then(&[cut(3, 0), look(CHUNK_BYTES + 5)])), "the cut left a chunk");
        assert!(may_be(&then(&[cut(3, 2), look(CHUNK_BYTES + 5)])), "somebody had it open");
        assert!(may_be(&then(&[cut(3, 0), commit(one, 6, Seen::Stale), chunk(1, two)])));
        assert!(!may_be(&then(&[cut(3, 0), commit(one, 6, Seen::Done)])), "it is gone");
        assert!(!may_be(&then(&[chunk(1, two)])), "two chunks in one place");
        assert!(!may_be(&then(&[cut(3, 0), chunk(1, one), look(CHUNK_BYTES + 5)])), "bytes come back");
        assert!(may_be(&[append(4, 0), append(2, 4), look(6)]));
        assert!(!may_be(&[append(4, 0), append(2, 0)]), "they overlap");
        assert!(!may_be(&[append(4, 0), append(2, 8)]), "one was executed twice");
        let unknown = (Asked::Append { bytes: 4 }, None);
        assert!(may_be(&[unknown, append(2, 4), look(6)]) && may_be(&[unknown, append(2, 0)]));
        let unknown = (Asked::Cut { bytes: 0 }, None);
        assert!(may_be(&then(&[unknown, look(0)])) && may_be(&then(&[unknown, look(CHUNK_BYTES + 5)])));
    }
}
