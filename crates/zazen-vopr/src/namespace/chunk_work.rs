//! What clients do with a file of chunks: open chunks, commit and close them, cut the file and
//! append to it. Programs die in between, and with a node's life all ends that it had.
//!
//! Checked at once: what is open is there to be closed and committed. What is seen of lengths and
//! chunks is checked at the end (`chunks`).

use super::caller::{Has, Thing};
use super::check::Record;
use super::chunks::{Asked, CHUNK_BYTES, CHUNKS, Seen, Use};
use super::client::Taken;
use super::world::World;
use zazen_namespace::operation::{
    Answer, Append, Commit, Inode, Mode, Open, OpenChunk, Operation, Release, SetAttributes,
};
use zazen_namespace::{Errno, Incarnation, InodeId, NodeNo};

type Life = (NodeNo, Incarnation);

impl World {
    fn of_chunk(&mut self, file: InodeId, index: u64) -> &mut Use {
        self.chunk_uses.entry((file, index)).or_default()
    }

    /// Something with a file of chunks, if there is one.
    pub(super) fn some_chunk_work(&mut self, at: usize, life: Life) -> Option<(Option<Record>, Operation)> {
        let file = *self.chunked.first()?;
        let now_ns = self.schedule.now_ns();
        let has = &self.clients[at].has;
        let opened = has.iter().any(|thing| thing.file == file && thing.kind == Has::Chunked && !thing.ends);
        let chunk = has.iter().copied().find(|thing| matches!(thing.kind, Has::Chunk { .. }));
        let late = self.clients[at].held_chunk.filter(|held| held.2 == life);
        if !opened {
            let mode = Mode { read: true, write: true, truncate: false };
            return Some((None, Operation::Open(Open { id: file, mode })));
        }
        let (draw, index) = (self.random.below(12), self.random.below(CHUNKS));
        Some(match (draw, chunk) {
            (0..4, None) => {
                let make = self.random.percent(80);
                let mode = Mode { read: !make, write: make, truncate: false };
                let asked = Asked::Chunk { index, make };
                self.of_chunk(file, index).open += 1;
                let record = self.history.begin_chunks(file, asked, now_ns);
                (Some(record), Operation::OpenChunk(OpenChunk { file, index, mode, make }))
            }
            (0..3, Some(Thing { file: id, kind: Has::Chunk { generation, holds: true, .. }, .. })) => {
                self.commit_chunk(file, id, generation)
            }
            (0..5, Some(thing)) => self.end_of(at, thing, life),
            (4, None) if late.is_some() => {
                let (id, generation, _) = late?;
                self.commit_chunk(file, id, generation)
            }
            (5 | 6, _) => {
                self.lengths += 1;
                let bytes = self.lengths;
                let record = self.history.begin_chunks(file, Asked::Append { bytes }, now_ns);
                (Some(record), Operation::Append(Append { file, bytes }))
            }
            (7 | 8, _) => {
                self.lengths += 1;
                let bytes = self.random.below(CHUNKS + 1) * CHUNK_BYTES;
                let bytes = if self.random.percent(50) { bytes } else { bytes + self.lengths };
                let record = self.history.begin_chunks(file, Asked::Cut { bytes }, now_ns);
                let set = SetAttributes { bytes: Some(bytes), ..SetAttributes::of(file) };
                (Some(record), Operation::SetAttributes(set))
            }
            _ => {
                let record = self.history.begin_chunks(file, Asked::Look, now_ns);
                (Some(record), Operation::GetAttributes(Inode { id: file }))
            }
        })
    }

    fn commit_chunk(
        &mut self,
        file: InodeId,
        chunk: InodeId,
        generation: u64,
    ) -> (Option<Record>, Operation) {
        // Each length is committed once.
        self.lengths += 1;
        let (bytes, now_ns) = (self.lengths, self.schedule.now_ns());
        let record = self.history.begin_chunks(file, Asked::Commit { chunk, bytes }, now_ns);
        let modified_ns = self.lengths as i64;
        let commit = Commit { id: chunk, generation, bytes, blocks: 1, modified_ns };
        (Some(record), Operation::Commit(commit))
    }

    /// Whether the operation, which is not recorded, is about a file of chunks.
    pub(super) fn is_of_chunks(&self, at: usize, operation: &Operation) -> bool {
        let is_chunk = |thing: &Thing| matches!(thing.kind, Has::Chunk { .. } | Has::Chunked);
        match operation {
            Operation::Open(open) => self.chunked.contains(&open.id),
            Operation::Release(release) => {
                let mut has = self.clients[at].has.iter();
                has.any(|thing| thing.file == release.id && is_chunk(thing))
            }
            _ => false,
        }
    }

    /// A call on a file of chunks is answered.
    pub(super) fn take_chunks(
        &mut self,
        at: usize,
        record: Option<Record>,
        operation: &Operation,
        answer: &Answer,
        now_ns: u64,
    ) -> Taken {
        let refused = match answer {
            Answer::Refused(refused) => Some(refused.errno),
            _ => None,
        };
        match operation {
            Operation::Open(open) => {
                match answer {
                    Answer::Grant(grant) if grant.attributes.place.is_none() => {}
                    Answer::Grant(_) => return Taken::Wrong,
                    _ => return Taken::Unknown,
                }
                self.gain(at, open.id, Has::Chunked, Some(now_ns));
                self.history.answered += 1;
                return Taken::Right;
            }
            Operation::Release(release) => {
                // What is open stays, and is there to be closed.
                match refused {
                    None => {}
                    Some(Errno::EBADF) if self.spoiled => {}
                    Some(Errno::EBADF | Errno::ESTALE) => return Taken::Wrong,
                    Some(_) => return Taken::Unknown,
                }
                self.closed(at, release, now_ns);
                self.history.answered += 1;
                return Taken::Right;
            }
            _ => {}
        }
        let Some(record) = record else { return Taken::Wrong };
        let seen = match (operation, answer, refused) {
            (Operation::OpenChunk(open), Answer::Grant(grant), _) => {
                let Some(place) = &grant.attributes.place else { return Taken::Wrong };
                let holds = self.holds(at, place.holder);
                let (index, generation, writes) = (open.index, place.generation, open.mode.write);
                let id = grant.attributes.id;
                self.gain(at, id, Has::Chunk { index, generation, holds, writes }, Some(now_ns));
                Seen::Chunk(id)
            }
            (Operation::OpenChunk(open), _, Some(Errno::ENOENT)) => {
                let used = self.of_chunk(open.file, open.index);
                (used.open, used.until_ns) = (used.open - 1, now_ns);
                Seen::Missing
            }
            (Operation::Append(_), Answer::Offset(range), _) => Seen::Range { offset: range.offset },
            (Operation::SetAttributes(set), Answer::Found(_), _) => {
                let began_ns = self.clients[at].call.as_ref().map_or(0, |call| call.began_ns);
                let may_stay = |index: &u64| {
                    let used = self.chunk_uses.get(&(set.id, *index)).copied().unwrap_or_default();
                    used.open > 0 || used.until_ns >= began_ns
                };
                Seen::Cut { may_stay: (0..CHUNKS).filter(may_stay).map(|index| 1 << index).sum() }
            }
            (Operation::GetAttributes(_), Answer::Found(found), _) => {
                Seen::Length { bytes: found.attributes.bytes }
            }
            (Operation::Commit(_), Answer::Done, _) => Seen::Done,
            (Operation::Commit(commit), _, Some(Errno::ESTALE)) => {
                let has = self.clients[at].has.iter().any(|thing| thing.file == commit.id);
                if has && !self.spoiled {
                    return Taken::Wrong;
                }
                Seen::Stale
            }
            (_, _, Some(Errno::ENOENT | Errno::EBADF)) if !self.spoiled => return Taken::Wrong,
            (_, _, Some(_)) => return Taken::Unknown,
            _ => return Taken::Wrong,
        };
        self.tell(|| format!("{record:?}: {seen:?}"));
        self.history.end_chunks(record, now_ns, seen);
        Taken::Right
    }

    /// Something of a file of chunks was closed.
    fn closed(&mut self, at: usize, release: &Release, now_ns: u64) {
        let is_it = |thing: &&Thing| thing.file == release.id && thing.ends;
        let Some(thing) = self.clients[at].has.iter().find(is_it).copied() else { return };
        self.clients[at].has.retain(|thing| !is_it(&thing));
        let Has::Chunk { index, generation, holds, .. } = thing.kind else { return };
        if holds {
            self.clients[at].held_chunk = Some((thing.file, generation, thing.life));
        }
        if let Some(file) = self.chunked.first().copied() {
            let used = self.of_chunk(file, index);
            (used.open, used.until_ns) = (used.open.saturating_sub(1), now_ns);
        }
    }
}
