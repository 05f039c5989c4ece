//! Files of chunks, operation by operation.

use super::super::{Action, Event, Partition, Restore};
use super::semantics::{Bed, READ, ROOT, TRUNCATE, WRITE, at, name, new_file, open, release, rename, set};
use crate::operation::*;
use crate::{Attributes, Errno, Incarnation, InodeId, Kind, NodeNo};

const MIB: u64 = 1 << 20;

/// Makes a file of chunks of a MiB, open for writing by node 1.
fn chunked(bed: &mut Bed, text: &str) -> InodeId {
    let create = Create { open: Some(WRITE), chunk_mib: Some(1), ..new_file(ROOT, text, 0o644) };
    let grant = bed.grant(Operation::Create(create));
    let chunks = grant.attributes.chunks.expect("chunks");
    assert_eq!((chunks.chunk_bytes, chunks.count, chunks.writing), (MIB, 0, false));
    assert_eq!(grant.attributes.place, None);
    grant.attributes.id
}

fn open_chunk(file: InodeId, index: u64) -> Operation {
    Operation::OpenChunk(OpenChunk { file, index, mode: WRITE, make: true })
}

fn look_at_chunk(file: InodeId, index: u64) -> Operation {
    Operation::OpenChunk(OpenChunk { file, index, mode: READ, make: false })
}

fn commit(chunk: &Attributes, bytes: u64, modified_ns: i64) -> Operation {
    let generation = chunk.place.as_ref().expect("a chunk has a place").generation;
    Operation::Commit(Commit { id: chunk.id, generation, bytes, blocks: bytes.div_ceil(512), modified_ns })
}

/// Makes a chunk, which the node has open then, with bytes.
fn write(bed: &mut Bed, file: InodeId, index: u64, bytes: u64) -> Attributes {
    let chunk = bed.grant(open_chunk(file, index)).attributes;
    let now_ns = bed.now_ns;
    bed.done(commit(&chunk, bytes, now_ns));
    chunk
}

/// The same, and closes it.
fn store(bed: &mut Bed, file: InodeId, index: u64, bytes: u64) -> Attributes {
    let chunk = write(bed, file, index, bytes);
    bed.done(release(chunk.id, 1, 0));
    chunk
}

fn cut(bed: &mut Bed, file: InodeId, bytes: u64) -> Attributes {
    match bed.ask(Operation::SetAttributes(SetAttributes { bytes: Some(bytes), ..set(file) })) {
        Answer::Found(found) => found.attributes,
        other => panic!("{other:?}"),
    }
}

fn indices(bed: &mut Bed, file: InodeId, from: u64, writing: bool) -> Vec<u64> {
    let list = Chunks { file, from, max: 99, writing };
    match bed.ask(Operation::Chunks(list)) {
        Answer::Chunks(list) if list.end => {
            list.chunks.iter().map(|chunk| chunk.chunk_of.expect("a chunk").index).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn append(bed: &mut Bed, file: InodeId, bytes: u64) -> u64 {
    match bed.ask(Operation::Append(Append { file, bytes })) {
        Answer::Offset(range) => range.offset,
        other => panic!("{other:?}"),
    }
}

/// How many rows there are, also of chunks that are gone.
fn rows(bed: &Bed) -> usize {
    bed.partition.tables.inodes.iter().count()
}

/// The partition as it comes back from a snapshot.
fn restored(bed: &Bed) -> Partition {
    let mut restore = Restore::new(bed.partition.number(), bed.partition.settings().clone());
    bed.partition.snapshot().for_each(|piece| restore.piece(&piece).expect("fits"));
    restore.finish().expect("whole")
}

#[test]
fn nodes_hold_parts_and_the_file_is_as_long_as_the_last_of_them() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    let first = bed.grant(open_chunk(file, 0));
    assert!(first.created);
    let first = first.attributes;
    let of = first.chunk_of.expect("a chunk");
    assert_eq!((of.file, of.index, of.chunk_bytes, of.offset()), (file, 0, MIB, 0));
    let place = first.place.clone().expect("a place");
    assert_eq!((place.holder, place.writing, first.links), (NodeNo(1), true, 1));
    bed.node = NodeNo(2);
    bed.refused(open_chunk(file, 3), Errno::EBADF);
    bed.grant(open(file, READ));
    bed.refused(open_chunk(file, 3), Errno::EBADF);
    bed.refused(look_at_chunk(file, 3), Errno::ENOENT);
    bed.grant(open(file, WRITE));
    let fourth = bed.grant(open_chunk(file, 3)).attributes;
    assert_eq!(fourth.place.clone().expect("a place").holder, NodeNo(2));
    let again = bed.grant(look_at_chunk(file, 0));
    assert_eq!((again.created, again.attributes.id), (false, first.id));

    assert_eq!(bed.stat(file).bytes, 0, "nobody has told of a byte");
    let before = bed.stat(file);
    bed.done(commit(&fourth, 100, 5_000));
    let found = bed.stat(file);
    assert_eq!((found.bytes, found.blocks, found.modified_ns), (3 * MIB + 100, 1, 5_000));
    assert!(found.version > before.version && found.changed_ns > before.changed_ns);
    bed.refused(commit(&first, MIB, 4_000), Errno::ESTALE);
    bed.node = NodeNo(1);
    bed.refused(commit(&first, MIB + 1, 4_000), Errno::EFBIG);
    bed.done(commit(&first, MIB, 4_000));
    let found = bed.stat(file);
    assert_eq!((found.bytes, found.blocks, found.modified_ns), (3 * MIB + 100, 2049, 5_000));
    assert_eq!(found.chunks.expect("chunks").count, 2);

    // Who writes is asked, and only they.
    bed.node = NodeNo(2);
    let last = Commit { id: fourth.id, generation: 1, bytes: 50, blocks: 1, modified_ns: 6_000 };
    bed.done(Operation::Release(Release { id: fourth.id, writers: 1, readers: 0, commit: Some(last) }));
    assert_eq!(bed.stat(file).bytes, 3 * MIB + 50, "a chunk became shorter");
    assert_eq!(indices(&mut bed, file, 0, true), [0]);
    assert_eq!(indices(&mut bed, file, 0, false), [0, 3]);
    assert_eq!(indices(&mut bed, file, 1, false), [3]);
    assert!(bed.stat(file).chunks.expect("chunks").writing);
    bed.node = NodeNo(1);
    bed.done(release(first.id, 1, 0));
    assert!(!bed.stat(file).chunks.expect("chunks").writing);
    let Answer::Chunks(page) = bed.ask(Operation::Chunks(Chunks { file, from: 0, max: 1, writing: false }))
    else {
        panic!("no list")
    };
    assert!(page.chunks.len() == 1 && !page.end);
    assert_eq!(
        restored(&bed).attributes(file),
        bed.partition.attributes(file),
        "a replica has the same sums"
    );
}

#[test]
fn what_cannot_be_asked_of_chunks_is_refused() {
    let mut bed = Bed::new();
    let (file, plain) = (chunked(&mut bed, "f"), bed.file(ROOT, "plain", 0o644));
    bed.grant(open(plain, WRITE));
    let asks = |index, mode, make| Operation::OpenChunk(OpenChunk { file, index, mode, make });
    bed.refused(asks(0, READ, true), Errno::EINVAL);
    bed.refused(asks(0, TRUNCATE, true), Errno::EINVAL);
    let last = i64::MAX as u64 / MIB - 1;
    bed.refused(asks(last + 1, WRITE, true), Errno::EFBIG);
    bed.refused(asks(u64::MAX, WRITE, true), Errno::EFBIG);
    bed.refused(asks(last + 1, READ, false), Errno::ENOENT);
    bed.refused(open_chunk(plain, 0), Errno::EINVAL);
    bed.refused(Operation::Append(Append { file: plain, bytes: 1 }), Errno::EINVAL);
    bed.refused(open_chunk(InodeId(999), 0), Errno::ESTALE);
    for mib in [1025, u32::MAX] {
        let create = Create { chunk_mib: Some(mib), ..new_file(ROOT, "g", 0o644) };
        bed.refused(Operation::Create(create), Errno::EINVAL);
    }
    let pipe = Create { kind: Kind::Fifo, chunk_mib: Some(1), ..new_file(ROOT, "p", 0o644) };
    bed.refused(Operation::Create(pipe), Errno::EINVAL);
    // The largest file.
    let chunk = write(&mut bed, file, last, MIB);
    assert_eq!(bed.stat(file).bytes, (last + 1) * MIB);
    bed.refused(Operation::Append(Append { file, bytes: MIB }), Errno::EFBIG);

    // A chunk is root's, and nobody reaches it by its number.
    bed.as_user(10, 100, &[]);
    bed.refused(open(chunk.id, READ), Errno::EACCES);
    let mode = SetAttributes { mode: Some(0o777), ..set(chunk.id) };
    bed.refused(Operation::SetAttributes(mode), Errno::EPERM);
    bed.as_user(0, 0, &[]);
    bed.refused(Operation::Link(Link { id: chunk.id, directory: ROOT, name: name("x") }), Errno::ENOENT);
    let longer = SetAttributes { bytes: Some(MIB + 1), ..set(chunk.id) };
    bed.refused(Operation::SetAttributes(longer), Errno::EFBIG);
}

#[test]
fn a_node_that_knows_no_chunks_is_refused() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    store(&mut bed, file, 0, 10);
    bed.knows_chunks = None;
    bed.refused(open(file, READ), Errno::EOPNOTSUPP);
    bed.refused(open(file, TRUNCATE), Errno::EOPNOTSUPP);
    let create = Create { open: Some(WRITE), exclusive: false, ..new_file(ROOT, "f", 0o644) };
    bed.refused(Operation::Create(create), Errno::EOPNOTSUPP);
    bed.refused(Operation::SetAttributes(SetAttributes { bytes: Some(0), ..set(file) }), Errno::EOPNOTSUPP);
    assert_eq!(bed.stat(file).bytes, 10);
    // Names and rights are everybody's.
    bed.ask(Operation::SetAttributes(SetAttributes { mode: Some(0o600), ..set(file) }));
    bed.done(Operation::Rename(rename((ROOT, "f"), (ROOT, "g"))));
    bed.done(Operation::Unlink(at(ROOT, "g")));
}

#[test]
fn a_cut_ends_chunks_behind_it_and_leaves_those_that_are_open() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    let chunks: Vec<_> = (0..5).map(|index| store(&mut bed, file, index, MIB)).collect();
    bed.node = NodeNo(2);
    bed.grant(open(file, READ));
    bed.grant(look_at_chunk(file, 3));
    bed.node = NodeNo(1);
    let found = cut(&mut bed, file, MIB + 7);
    // The metadata cannot cut bytes: the holders do, and tell. Until then the file ends there.
    assert_eq!(found.bytes, 4 * MIB);
    assert_eq!(indices(&mut bed, file, 1, false), [1, 3]);
    assert_eq!(bed.dropped, [(NodeNo(1), chunks[2].id, 1), (NodeNo(1), chunks[4].id, 1)]);
    bed.refused(Operation::GetAttributes(Inode { id: chunks[2].id }), Errno::ESTALE);
    bed.refused(commit(&chunks[4], 9, 9), Errno::ESTALE);
    let now_ns = bed.now_ns;
    bed.done(commit(&chunks[1], 7, now_ns));
    bed.done(commit(&chunks[3], 0, now_ns));
    assert_eq!(bed.stat(file).bytes, MIB + 7);
    // What comes behind again is new, and what was cut is not there.
    bed.refused(look_at_chunk(file, 2), Errno::ENOENT);
    assert_eq!(cut(&mut bed, file, 5 * MIB + 1).bytes, 5 * MIB + 1);
    let again = bed.grant(open_chunk(file, 2));
    assert!(again.created && again.attributes.id != chunks[2].id);
    bed.done(release(again.attributes.id, 1, 0));
    // A length at the end of a chunk leaves that chunk whole, and none behind it.
    assert_eq!(cut(&mut bed, file, MIB).bytes, MIB);
    assert_eq!(indices(&mut bed, file, 0, false), [0, 3], "the one behind is empty, and open");
    bed.node = NodeNo(2);
    bed.done(release(chunks[3].id, 0, 1));
    bed.node = NodeNo(1);
    assert_eq!(cut(&mut bed, file, MIB).bytes, MIB);
    assert_eq!(indices(&mut bed, file, 0, false), [0]);
    assert_eq!(restored(&bed).digest(), bed.partition.digest());
}

#[test]
fn an_open_that_truncates_is_a_cut_to_nothing() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    bed.done(release(file, 1, 0));
    bed.grant(open(file, WRITE));
    let (kept, gone) = (write(&mut bed, file, 0, MIB), store(&mut bed, file, 1, MIB));
    assert_eq!(append(&mut bed, file, 10), 2 * MIB);
    bed.as_user(10, 100, &[]);
    bed.refused(open(file, TRUNCATE), Errno::EACCES);
    bed.as_user(0, 0, &[]);
    let grant = bed.grant(open(file, TRUNCATE));
    assert_eq!((grant.attributes.bytes, grant.attributes.place), (MIB, None));
    assert_eq!(bed.dropped, [(NodeNo(1), gone.id, 1)]);
    let now_ns = bed.now_ns;
    bed.done(commit(&kept, 0, now_ns));
    assert_eq!((bed.stat(file).bytes, bed.stat(file).blocks), (0, 0));
    bed.done(release(kept.id, 1, 0));
    bed.done(release(file, 2, 0));
    let create = Create { open: Some(TRUNCATE), exclusive: false, ..new_file(ROOT, "f", 0o644) };
    let grant = bed.grant(Operation::Create(create));
    assert_eq!((grant.created, grant.attributes.chunks.expect("chunks").count), (false, 0));
}

#[test]
fn appends_get_ranges_of_their_own() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "log");
    assert_eq!((append(&mut bed, file, 100), append(&mut bed, file, 0)), (0, 100));
    bed.node = NodeNo(2);
    bed.refused(Operation::Append(Append { file, bytes: 5 }), Errno::EBADF);
    bed.grant(open(file, WRITE));
    assert_eq!(append(&mut bed, file, 2 * MIB), 100);
    let number = bed.number;
    bed.node = NodeNo(1);
    assert_eq!(append(&mut bed, file, 1), 2 * MIB + 100);
    bed.node = NodeNo(2);
    let again = bed.request(number, Operation::Append(Append { file, bytes: 2 * MIB }));
    assert_eq!(bed.step(again), Some(Answer::Offset(Offset { offset: 100 })), "the same range");
    // Behind what others wrote, if they told.
    write(&mut bed, file, 7, 20);
    assert_eq!(append(&mut bed, file, 1), 7 * MIB + 20);
    // What nobody wrote is zeros: the file is so long all the same.
    assert_eq!(bed.stat(file).bytes, 7 * MIB + 21);
    bed.done(release(file, 1, 0));
    bed.refused(Operation::Append(Append { file, bytes: 5 }), Errno::EBADF);
}

#[test]
fn a_repeated_request_makes_one_chunk() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    let first = bed.grant(open_chunk(file, 0)).attributes;
    let again = bed.request(bed.number, open_chunk(file, 0));
    let Some(Answer::Grant(grant)) = bed.step(again.clone()) else { panic!("no grant") };
    assert_eq!((grant.attributes.id, grant.created), (first.id, false));
    bed.done(release(first.id, 1, 0));
    bed.refused(release(first.id, 1, 0), Errno::EBADF);
    cut(&mut bed, file, 0);
    assert_eq!(bed.step(again), Some(Answer::refused(Errno::ESTALE)), "it may be asked for anew");
    // A look at what is not there is in nobody's log, however often it comes.
    let records = bed.records.len();
    bed.refused(look_at_chunk(file, 5), Errno::ENOENT);
    assert_eq!(bed.records.len(), records);
}

#[test]
fn a_file_that_goes_takes_its_chunks_along_some_at_a_time() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    let count = 1000;
    for index in 0..count {
        let chunk = bed.grant(open_chunk(file, index)).attributes;
        bed.done(release(chunk.id, 1, 0));
    }
    bed.entry(Operation::Link(Link { id: file, directory: ROOT, name: name("second") }));
    bed.done(Operation::Unlink(at(ROOT, "f")));
    let other = bed.file(ROOT, "other", 0o644);
    bed.done(Operation::Rename(rename((ROOT, "other"), (ROOT, "second"))));
    assert_eq!((bed.stat(file).links, bed.stat(file).chunks.expect("chunks").count), (0, count));
    assert!(bed.dropped.is_empty(), "it is open");
    // A chunk that is open does not keep the file.
    bed.grant(open_chunk(file, 3));
    bed.done(release(file, 1, 0));
    bed.refused(Operation::GetAttributes(Inode { id: file }), Errno::ESTALE);
    assert_eq!(bed.partition.inodes(), 2, "the root and {other}");
    assert_eq!(bed.dropped.len(), 512, "the release, and the look after it");
    assert_eq!(rows(&bed), 2 + count as usize - 512, "others wait for some at a time");
    // What was not told yet is in snapshots.
    let mut fresh = restored(&bed);
    assert_eq!(fresh.digest(), bed.partition.digest());
    let mut actions = Vec::new();
    fresh.step(1, Event::Resumed { epoch: crate::Epoch(9) }, &mut actions);
    assert_eq!(actions.len(), 1 + 256, "a record, and objects");
    for _ in 0..4 {
        bed.step(Event::Tick);
    }
    let mut ids: Vec<_> = bed.dropped.iter().map(|(_, id, _)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), bed.dropped.len()), (1000, 1000));
    assert_eq!(bed.stat(other).links, 1);
    let records = bed.records.len();
    bed.step(Event::Tick);
    assert_eq!(bed.records.len(), records, "nothing is left");
}

/// A cut is one moment for all chunks, however many there are. Their rows go afterwards.
#[test]
fn a_cut_of_many_chunks_is_done_at_once_and_their_rows_go_some_at_a_time() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    let mut last = None;
    for index in 0..1400 {
        let chunk = bed.grant(open_chunk(file, index)).attributes;
        bed.done(release(chunk.id, 1, 0));
        last = Some(chunk);
    }
    let last = last.expect("the last one");
    [50, 600, 1300].into_iter().for_each(|index| drop(store(&mut bed, file, index, MIB)));
    let blocks = bed.stat(file).blocks / 3;
    let open_one = bed.grant(look_at_chunk(file, 600)).attributes;
    let found = cut(&mut bed, file, 100 * MIB);
    assert_eq!((found.bytes, found.blocks), (601 * MIB, 2 * blocks), "somebody reads one of them");
    assert_eq!(bed.partition.inodes(), 2 + 101);
    // The row of the last one is still there, and nobody finds it.
    bed.refused(Operation::GetAttributes(Inode { id: last.id }), Errno::ESTALE);
    bed.refused(commit(&last, 5, 5), Errno::ESTALE);
    // Another one comes in its place.
    let again = bed.grant(open_chunk(file, 1399)).attributes;
    assert!(again.id != last.id);
    assert_eq!(rows(&bed), 2 + 102 + 1299 - 4 * 256, "some at a time");
    let mut fresh = restored(&bed);
    bed.refused(open(last.id, READ), Errno::ESTALE);
    bed.refused(release(last.id, 1, 0), Errno::EBADF);
    assert_eq!(indices(&mut bed, file, 90, false), (90..100).chain([600, 1399]).collect::<Vec<_>>());
    assert_eq!((rows(&bed), bed.dropped.len()), (2 + 102, 1299));
    let now_ns = bed.now_ns;
    bed.done(commit(&again, 7, now_ns));
    assert_eq!((bed.stat(file).bytes, bed.stat(open_one.id).bytes), (1399 * MIB + 7, MIB));
    // A replica that a snapshot made goes on with them.
    let mut actions = Vec::new();
    fresh.step(now_ns, Event::Tick, &mut actions);
    fresh.step(now_ns, Event::Tick, &mut actions);
    assert_eq!(fresh.inodes(), 2 + 102);
    assert!(actions.iter().any(|action| matches!(action, Action::DropObject { id, .. } if *id == last.id)));
}

#[test]
fn what_a_life_has_open_of_chunks_ends_with_it() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    bed.node = NodeNo(2);
    bed.grant(open(file, WRITE));
    let theirs = write(&mut bed, file, 1, 10);
    bed.node = NodeNo(1);
    write(&mut bed, file, 0, 10);
    bed.done(Operation::Unlink(at(ROOT, "f")));
    bed.step(Event::NodeGone { node: NodeNo(1), incarnation: Incarnation(1) });
    bed.node = NodeNo(2);
    assert_eq!(indices(&mut bed, file, 0, true), [1]);
    assert_eq!(bed.partition.inodes(), 4);
    bed.step(Event::NodeGone { node: NodeNo(2), incarnation: Incarnation(1) });
    assert_eq!((bed.partition.inodes(), bed.dropped.len()), (1, 2));
    bed.node = NodeNo(3);
    bed.refused(Operation::GetAttributes(Inode { id: theirs.id }), Errno::ESTALE);
}

#[test]
fn a_chunk_is_copied_and_taken_over_as_a_file_is() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    let chunk = store(&mut bed, file, 0, MIB);
    let copied = |version| {
        Operation::Copied(Copied {
            id: chunk.id,
            generation: 1,
            version,
            copies: vec![NodeNo(2)],
            more: None,
        })
    };
    let copies = |bed: &mut Bed| bed.stat(chunk.id).place.expect("a place").copies;
    let version = bed.stat(chunk.id).version;
    bed.done(copied(version));
    // Who opens it to write makes copies that are under way worthless.
    bed.grant(open_chunk(file, 0));
    bed.done(release(chunk.id, 1, 0));
    bed.refused(copied(version), Errno::ESTALE);
    let take = Operation::TakeOver(TakeOver { id: chunk.id, generation: 1, idle: false });
    bed.node = NodeNo(2);
    bed.done(take);
    assert_eq!(bed.stat(chunk.id).place.expect("a place").holder, NodeNo(2));
    bed.node = NodeNo(1);
    bed.refused(commit(&chunk, 5, 5), Errno::ESTALE);
    bed.node = NodeNo(2);
    let version = bed.stat(chunk.id).version;
    bed.done(Operation::Copied(Copied {
        id: chunk.id,
        generation: 1,
        version,
        copies: vec![NodeNo(3)],
        more: None,
    }));
    assert_eq!(copies(&mut bed), [NodeNo(3)]);
    // A copy has what was before a cut: it counts no more.
    cut(&mut bed, chunk.id, 5);
    assert!(copies(&mut bed).is_empty());
    assert_eq!(bed.stat(file).bytes, 5);
    bed.node = NodeNo(1);
    bed.done(Operation::Unlink(at(ROOT, "f")));
    bed.done(release(file, 1, 0));
    assert_eq!(bed.dropped, [(NodeNo(2), chunk.id, 1)]);
}

#[test]
fn wishes_of_a_file_are_those_of_its_chunks() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    let chunk = store(&mut bed, file, 0, 10);
    let get =
        |id, of: &[u8]| Operation::GetXattr(GetXattr { id, name: crate::Name::new(of).expect("a name") });
    let wish = |id, of: &[u8], value: Option<&[u8]>| {
        let (name, value) = (crate::Name::new(of).expect("a name"), value.map(<[u8]>::to_vec));
        Operation::SetXattr(SetXattr { id, name, value, create: false, replace: false })
    };
    let says = |text: &[u8]| Answer::Bytes(Bytes { bytes: text.to_vec() });
    assert_eq!(bed.ask(get(file, CHUNKS_WANTED)), says(b"1"));
    bed.refused(get(chunk.id, COPIES_WANTED), Errno::ENODATA);
    bed.done(wish(file, COPIES_WANTED, Some(b"2")));
    assert_eq!(bed.ask(get(chunk.id, COPIES_WANTED)), says(b"2"));
    bed.refused(get(chunk.id, ARCHIVE_WANTED), Errno::ENODATA);
    bed.refused(wish(chunk.id, COPIES_WANTED, Some(b"3")), Errno::EPERM);
    bed.done(wish(file, ARCHIVE_WANTED, Some(b"yes")));
    bed.done(wish(file, ARCHIVE_WANTED, Some(b"no")));
    assert_eq!(bed.ask(get(chunk.id, ARCHIVE_WANTED)), says(b"no"));
    // The size of chunks stays.
    bed.done(wish(file, CHUNKS_WANTED, Some(b"1\n")));
    bed.refused(wish(file, CHUNKS_WANTED, Some(b"2")), Errno::EBUSY);
    bed.done(release(file, 1, 0));
    bed.refused(wish(file, CHUNKS_WANTED, Some(b"2")), Errno::EOPNOTSUPP);
    bed.refused(wish(file, CHUNKS_WANTED, None), Errno::EOPNOTSUPP);
    bed.refused(wish(file, CHUNKS_WANTED, Some(b"many")), Errno::EINVAL);
    // A file that never had a byte may get them.
    let fresh = bed.file(ROOT, "fresh", 0o644);
    bed.done(wish(fresh, CHUNKS_WANTED, Some(b"0")));
    assert_eq!(bed.stat(fresh).chunks, None);
    bed.done(wish(fresh, CHUNKS_WANTED, Some(b"4")));
    assert_eq!(bed.stat(fresh).chunks.expect("chunks").chunk_bytes, 4 * MIB);
    let used = bed.file(ROOT, "used", 0o644);
    bed.grant(open(used, WRITE));
    bed.refused(wish(used, CHUNKS_WANTED, Some(b"4")), Errno::EBUSY);
    bed.done(release(used, 1, 0));
    bed.refused(wish(used, CHUNKS_WANTED, Some(b"4")), Errno::EOPNOTSUPP);
    bed.done(wish(ROOT, CHUNKS_WANTED, Some(b"4")));
    let many = CreateMany {
        directory: ROOT,
        names: vec![name("m1"), name("m2")],
        mode: 0o644,
        copies: 0,
        archived: None,
        chunk_mib: Some(2),
    };
    let Answer::Created(made) = bed.ask(Operation::CreateMany(many)) else { panic!("not made") };
    assert_eq!(bed.stat(made.results[1].0).chunks.expect("chunks").chunk_bytes, 2 * MIB);
}

#[test]
fn the_time_of_change_follows_writes_and_what_was_set() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    let (one, two) = (write(&mut bed, file, 0, 1), write(&mut bed, file, 1, 1));
    let base_ns = bed.now_ns + 1000;
    let time = |bed: &mut Bed| bed.stat(file).modified_ns;
    bed.done(commit(&one, 2, base_ns + 20));
    bed.done(commit(&two, 2, base_ns + 10));
    assert_eq!(time(&mut bed), base_ns + 20, "holders may tell in any order");
    // Somebody sets it, to the past or the future: writes before that do not count, later ones do.
    for set_ns in [5, i64::MAX] {
        bed.now_ns = base_ns + 100;
        bed.ask(Operation::SetAttributes(SetAttributes { modified_ns: Some(set_ns), ..set(file) }));
        bed.done(commit(&two, 3, base_ns + 99));
        bed.done(commit(&two, 4, base_ns + 98));
        assert_eq!(time(&mut bed), set_ns);
        bed.done(commit(&two, 5, base_ns + 200));
        bed.done(commit(&one, 5, base_ns + 150));
        assert_eq!(time(&mut bed), base_ns + 200);
        bed.done(commit(&one, 6, base_ns + 150));
    }
    // What was set while nobody writes holds until somebody does.
    bed.done(release(one.id, 1, 0));
    bed.done(release(two.id, 1, 0));
    bed.ask(Operation::SetAttributes(SetAttributes { modified_ns: Some(i64::MAX), ..set(file) }));
    bed.done(release(file, 1, 0));
    bed.ask(Operation::SetAttributes(SetAttributes { modified_ns: Some(i64::MAX), ..set(file) }));
    bed.grant(open(file, WRITE));
    assert_eq!(time(&mut bed), i64::MAX);
    bed.grant(open_chunk(file, 1));
    bed.done(commit(&two, 9, base_ns + 70));
    assert_eq!(time(&mut bed), base_ns + 70);
    // A cut is now.
    let now_ns = bed.now_ns;
    assert!(cut(&mut bed, file, 0).modified_ns > now_ns);
}

#[test]
fn whoever_is_not_root_takes_privileges_off_by_writing() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    let chunk = bed.grant(open_chunk(file, 0)).attributes;
    bed.ask(Operation::SetAttributes(SetAttributes { mode: Some(0o4755), ..set(file) }));
    bed.done(commit(&chunk, 1, 1));
    assert_eq!(bed.stat(file).mode, 0o4755);
    bed.as_user(10, 100, &[]);
    bed.done(commit(&chunk, 2, 2));
    assert_eq!((bed.stat(file).mode, bed.stat(chunk.id).mode), (0o755, 0));
}

/// docs/formats/namespace-partition.md: a change of these is a new format.
#[test]
fn records_of_chunks_keep_their_bytes() {
    let mut bed = Bed::new();
    let file = chunked(&mut bed, "f");
    let chunk = store(&mut bed, file, 2, 5);
    bed.done(Operation::Copied(Copied {
        id: chunk.id,
        generation: 1,
        version: bed.partition.attributes(chunk.id).expect("it is there").version,
        copies: vec![NodeNo(7)],
        more: None,
    }));
    let last = |bed: &Bed| -> String {
        bed.records.last().expect("a record").iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let holds = |record: &str, change: &str| {
        let change: String = change.split_whitespace().collect();
        assert!(record.contains(&change), "{change} is not in {record}");
    };
    let made: Vec<String> =
        bed.records.iter().map(|record| record.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    holds(&made[0], "29 0200000000000000 0000100000000000");
    holds(&made[1], "2a 0300000000000000 0200000000000000 0200000000000000");
    bed.grant(open_chunk(file, 4));
    cut(&mut bed, file, MIB);
    // The chunk's row is not in the record: what it was is on each replica.
    holds(&last(&bed), "2b 0200000000000000 0100000000000000 01000000 0400000000000000");
    assert!(last(&bed).ends_with("2d0300000000000000"), "{}", last(&bed));
    let mut piece = String::new();
    for index in 10..400 {
        let chunk = bed.grant(open_chunk(file, index)).attributes;
        bed.done(release(chunk.id, 1, 0));
    }
    cut(&mut bed, file, MIB);
    for bytes in bed.partition.snapshot() {
        piece.extend(bytes.iter().map(|byte| format!("{byte:02x}")));
    }
    holds(
        &piece,
        "29 0200000000000000 0000100000000000 2a 0400000000000000 0200000000000000 0400000000000000",
    );
    holds(&piece, "2c 0501000000000000 0100000000000000 01000000 01000000");
}
