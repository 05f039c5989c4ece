//! What one partition answers, operation by operation.

use super::super::{Action, Event, Partition, Restore, Settings};
use crate::operation::*;
use crate::{ARCHIVE, Attributes, Epoch, Errno, Incarnation, InodeId, Kind, Name, NodeNo, PartitionNo};
use zazen_core::Credentials;

pub(super) const ROOT: InodeId = InodeId::ROOT;

pub(super) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

pub(super) fn at(directory: InodeId, text: &str) -> At {
    At { directory, name: name(text) }
}

/// One partition, its backup, and a client.
pub(super) struct Bed {
    pub(super) partition: Partition,
    backup: Partition,
    pub(super) number: u64,
    pub(super) now_ns: i64,
    pub(super) node: NodeNo,
    /// The life of all nodes.
    pub(super) life: u64,
    caller: Credentials,
    pub(super) dropped: Vec<(NodeNo, InodeId, u64)>,
    pub(super) records: Vec<Vec<u8>>,
    /// Whether the asking nodes say so.
    pub(super) knows_chunks: Option<bool>,
}

impl Bed {
    pub(super) fn new() -> Bed {
        let settings = Settings { root_mode: 0o777, ..Settings::default() };
        Bed {
            partition: Partition::new(PartitionNo(0), settings.clone()),
            backup: Partition::new(PartitionNo(0), settings),
            number: 0,
            now_ns: 1000,
            node: NodeNo(1),
            life: 1,
            caller: Credentials { uid: 0, gid: 0, groups: vec![] },
            dropped: Vec::new(),
            records: Vec::new(),
            knows_chunks: Some(true),
        }
    }

    pub(super) fn as_user(&mut self, uid: u32, gid: u32, groups: &[u32]) -> &mut Bed {
        self.caller = Credentials { uid, gid, groups: groups.to_vec() };
        self
    }

    pub(super) fn step(&mut self, event: Event) -> Option<Answer> {
        self.now_ns += 1;
        let mut actions = Vec::new();
        self.partition.step(self.now_ns, event, &mut actions);
        let mut answer = None;
        for action in actions {
            match action {
                Action::Log(record) => {
                    self.backup.apply(&record).expect("applies");
                    self.records.push(record);
                }
                Action::Reply { response, .. } => answer = Some(response.answer),
                Action::DropObject { holder, id, generation } => {
                    self.dropped.push((holder, id, generation));
                }
                Action::Send { .. } => panic!("one partition tells nobody"),
            }
        }
        assert_eq!(self.partition.digest(), self.backup.digest(), "step and apply differ");
        answer
    }

    pub(super) fn request(&self, number: u64, operation: Operation) -> Event {
        let request = Request {
            client: u64::from(self.node.0) + 100 * self.life,
            number,
            oldest: 1,
            node: self.node,
            incarnation: Incarnation(self.life),
            epoch: Epoch(1),
            credentials: self.caller.clone(),
            operation,
            place: None,
            knows_chunks: self.knows_chunks,
        };
        Event::Request { token: number, request }
    }

    pub(super) fn ask(&mut self, operation: Operation) -> Answer {
        self.number += 1;
        let request = self.request(self.number, operation);
        self.step(request).expect("an answer")
    }

    pub(super) fn refused(&mut self, operation: Operation, errno: Errno) {
        let shown = format!("{operation:?}");
        assert_eq!(self.ask(operation), Answer::refused(errno), "{shown}");
    }

    pub(super) fn done(&mut self, operation: Operation) {
        let shown = format!("{operation:?}");
        assert_eq!(self.ask(operation), Answer::Done, "{shown}");
    }

    pub(super) fn entry(&mut self, operation: Operation) -> InodeId {
        match self.ask(operation) {
            Answer::Entry(entry) => entry.id,
            other => panic!("{other:?}"),
        }
    }

    fn mkdir(&mut self, directory: InodeId, text: &str, mode: u32) -> InodeId {
        self.entry(Operation::MakeDirectory(MakeDirectory { directory, name: name(text), mode }))
    }

    pub(super) fn file(&mut self, directory: InodeId, text: &str, mode: u32) -> InodeId {
        self.entry(create(directory, text, mode))
    }

    /// How many rows of locks an inode has.
    pub(super) fn lock_rows(&self, id: InodeId) -> usize {
        self.partition.tables.locks.get(&id.serial()).map_or(0, Vec::len)
    }

    pub(super) fn stat(&mut self, id: InodeId) -> Attributes {
        match self.ask(Operation::GetAttributes(Inode { id })) {
            Answer::Found(found) => found.attributes,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn grant(&mut self, operation: Operation) -> Grant {
        match self.ask(operation) {
            Answer::Grant(grant) => grant,
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn new_file(directory: InodeId, text: &str, mode: u32) -> Create {
    let (kind, device, target) = (Kind::File, 0, Vec::new());
    Create { kind, mode, device, target, ..Create::file(directory, name(text)) }
}

fn create(directory: InodeId, text: &str, mode: u32) -> Operation {
    Operation::Create(new_file(directory, text, mode))
}

pub(super) fn rename(from: (InodeId, &str), to: (InodeId, &str)) -> Rename {
    Rename {
        directory: from.0,
        name: name(from.1),
        new_directory: to.0,
        new_name: name(to.1),
        no_replace: false,
        exchange: false,
    }
}

pub(super) const READ: Mode = Mode { read: true, write: false, truncate: false };
pub(super) const WRITE: Mode = Mode { read: false, write: true, truncate: false };
pub(super) const TRUNCATE: Mode = Mode { read: false, write: true, truncate: true };

pub(super) fn open(id: InodeId, mode: Mode) -> Operation {
    Operation::Open(Open { id, mode })
}

pub(super) fn release(id: InodeId, writers: u32, readers: u32) -> Operation {
    Operation::Release(Release { id, writers, readers, commit: None })
}

pub(super) fn set(id: InodeId) -> SetAttributes {
    SetAttributes::of(id)
}

#[test]
fn a_file_is_made_found_and_removed_with_its_links_and_times() {
    let mut bed = Bed::new();
    let before = bed.stat(ROOT);
    let id = bed.file(ROOT, "a", 0o640);
    let (file, root) = (bed.stat(id), bed.stat(ROOT));
    assert_eq!((file.links, file.mode, file.kind, file.place.clone()), (1, 0o640, Kind::File, None));
    assert!(root.modified_ns > before.modified_ns && root.changed_ns == root.modified_ns);
    assert_eq!((root.bytes, root.accessed_ns), (1, before.accessed_ns));
    bed.refused(create(ROOT, "a", 0o640), Errno::EEXIST);
    let linked = Operation::Link(Link { id, directory: ROOT, name: name("b") });
    assert_eq!(bed.entry(linked), id);
    let two = bed.stat(id);
    assert_eq!((two.links, two.modified_ns), (2, file.modified_ns));
    assert!(two.changed_ns > file.changed_ns && two.version > file.version);
    bed.done(Operation::Unlink(at(ROOT, "a")));
    assert_eq!(bed.stat(id).links, 1);
    bed.refused(Operation::Lookup(at(ROOT, "a")), Errno::ENOENT);
    bed.done(Operation::Unlink(at(ROOT, "b")));
    bed.refused(Operation::GetAttributes(Inode { id }), Errno::ESTALE);
    assert!(bed.dropped.is_empty(), "a file without bytes has no object");
    assert_eq!((bed.partition.inodes(), bed.partition.entries()), (1, 0));
}

#[test]
fn directories_count_their_children_and_go_only_when_empty() {
    let mut bed = Bed::new();
    let (a, b) = (bed.mkdir(ROOT, "a", 0o755), bed.mkdir(ROOT, "b", 0o755));
    let deep = bed.mkdir(a, "deep", 0o755);
    assert_eq!((bed.stat(ROOT).links, bed.stat(a).links, bed.stat(deep).links), (4, 3, 2));
    bed.refused(Operation::RemoveDirectory(at(ROOT, "a")), Errno::ENOTEMPTY);
    bed.refused(Operation::Unlink(at(ROOT, "a")), Errno::EISDIR);
    let file = bed.file(deep, "f", 0o644);
    bed.refused(Operation::RemoveDirectory(at(deep, "f")), Errno::ENOTDIR);
    bed.refused(Operation::Lookup(at(file, "x")), Errno::ENOTDIR);
    // No directory becomes its own ancestor, and one that is not empty is not replaced.
    bed.refused(Operation::Rename(rename((ROOT, "a"), (deep, "x"))), Errno::EINVAL);
    bed.refused(Operation::Rename(rename((ROOT, "a"), (a, "x"))), Errno::EINVAL);
    bed.refused(Operation::Rename(rename((ROOT, "b"), (ROOT, "a"))), Errno::ENOTEMPTY);
    bed.refused(Operation::Rename(rename((deep, "f"), (ROOT, "b"))), Errno::EISDIR);
    bed.refused(Operation::Rename(rename((ROOT, "b"), (deep, "f"))), Errno::ENOTDIR);
    bed.refused(Operation::Rename(rename((a, "deep"), (ROOT, "a"))), Errno::ENOTEMPTY);
    bed.done(Operation::Rename(rename((a, "deep"), (ROOT, "b"))));
    bed.refused(Operation::GetAttributes(Inode { id: b }), Errno::ESTALE);
    assert_eq!((bed.stat(ROOT).links, bed.stat(a).links), (4, 2));
    assert_eq!(bed.entry(Operation::Parent(Inode { id: deep })), ROOT);
    bed.done(Operation::RemoveDirectory(at(ROOT, "a")));
    bed.refused(create(a, "late", 0o644), Errno::ENOENT);
}

#[test]
fn renames_replace_refuse_and_exchange() {
    let mut bed = Bed::new();
    let (a, d) = (bed.file(ROOT, "a", 0o644), bed.mkdir(ROOT, "d", 0o755));
    let inner = bed.mkdir(d, "inner", 0o755);
    bed.refused(Operation::Rename(rename((ROOT, "no"), (ROOT, "a"))), Errno::ENOENT);
    let keep = Rename { no_replace: true, ..rename((ROOT, "a"), (ROOT, "d")) };
    bed.refused(Operation::Rename(keep), Errno::EEXIST);
    let exchange = |from, to| Operation::Rename(Rename { exchange: true, ..rename(from, to) });
    bed.refused(exchange((ROOT, "a"), (ROOT, "no")), Errno::ENOENT);
    bed.refused(exchange((ROOT, "d"), (d, "inner")), Errno::EINVAL);
    bed.refused(exchange((d, "inner"), (ROOT, "d")), Errno::EINVAL);
    bed.done(exchange((ROOT, "a"), (d, "inner")));
    assert_eq!(bed.entry(Operation::Lookup(at(d, "inner"))), a);
    assert_eq!(bed.entry(Operation::Lookup(at(ROOT, "a"))), inner);
    assert_eq!(bed.entry(Operation::Parent(Inode { id: inner })), ROOT);
    assert_eq!((bed.stat(ROOT).links, bed.stat(d).links), (4, 2));
    // Two names of one inode: nothing happens.
    bed.entry(Operation::Link(Link { id: a, directory: ROOT, name: name("twin") }));
    bed.done(Operation::Rename(rename((ROOT, "twin"), (d, "inner"))));
    assert_eq!(bed.stat(a).links, 2);
    let victim = bed.file(ROOT, "victim", 0o644);
    let grant = bed.grant(open(victim, WRITE));
    assert_eq!(grant.attributes.place.expect("a place").holder, NodeNo(1));
    let before = bed.stat(a).changed_ns;
    bed.done(Operation::Rename(rename((ROOT, "twin"), (ROOT, "victim"))));
    assert!(bed.stat(a).changed_ns > before);
    assert_eq!(bed.stat(victim).links, 0, "it is open, so it stays");
    bed.done(release(victim, 1, 0));
    assert_eq!(bed.dropped, [(NodeNo(1), victim, 1)]);
}

#[test]
fn of_several_reasons_to_refuse_a_rename_the_answer_is_linuxs_first() {
    let mut bed = Bed::new();
    // Both orders of the names: which one is held first depends on them.
    for (missing, there) in [("m", "z"), ("z0", "a0")] {
        bed.file(ROOT, there, 0o644);
        let keep = |from, to| Rename { no_replace: true, ..rename((ROOT, from), (ROOT, to)) };
        bed.refused(Operation::Rename(keep(missing, there)), Errno::ENOENT);
        bed.refused(Operation::Rename(keep(there, there)), Errno::EEXIST);
    }
    let (closed, open) = (bed.mkdir(ROOT, "closed", 0o700), bed.mkdir(ROOT, "open", 0o777));
    let (fixed, d) = (bed.mkdir(ROOT, "fixed", 0o755), bed.mkdir(ROOT, "d", 0o777));
    for (directory, text) in [(open, "f"), (fixed, "f"), (fixed, "g"), (closed, "f"), (d, "f")] {
        bed.file(directory, text, 0o666);
    }
    let sub = bed.mkdir(d, "sub", 0o777);
    bed.file(sub, "f", 0o666);
    bed.as_user(10, 100, &[]);
    let keep = |from, to| Operation::Rename(Rename { no_replace: true, ..rename(from, to) });
    let swap = |from, to| Operation::Rename(Rename { exchange: true, ..rename(from, to) });
    let plain = |from, to| Operation::Rename(rename(from, to));
    for (operation, errno) in [
        // A directory that the caller may not search comes first, whichever it is.
        (plain((open, "none"), (closed, "f")), Errno::EACCES),
        (keep((closed, "none"), (open, "f")), Errno::EACCES),
        // Then the names: the source, and what is at the destination.
        (plain((fixed, "none"), (open, "x")), Errno::ENOENT),
        (plain((open, "none"), (fixed, "x")), Errno::ENOENT),
        (keep((fixed, "f"), (open, "f")), Errno::EEXIST),
        (keep((open, "f"), (fixed, "f")), Errno::EEXIST),
        (keep((open, "none"), (fixed, "f")), Errno::ENOENT),
        (swap((fixed, "f"), (open, "none")), Errno::ENOENT),
        (swap((open, "none"), (open, "f")), Errno::ENOENT),
        // Then whether the caller may change the directories.
        (plain((fixed, "f"), (open, "x")), Errno::EACCES),
        (plain((open, "f"), (fixed, "x")), Errno::EACCES),
        // A directory onto a file in it, and a file onto a directory above it.
        (plain((ROOT, "d"), (d, "f")), Errno::EINVAL),
        (plain((ROOT, "d"), (sub, "f")), Errno::EINVAL),
        (plain((d, "f"), (ROOT, "d")), Errno::ENOTEMPTY),
        (plain((sub, "f"), (ROOT, "d")), Errno::ENOTEMPTY),
        (plain((sub, "f"), (ROOT, "open")), Errno::EISDIR),
    ] {
        bed.refused(operation, errno);
    }
    // In a sticky directory, what the caller may not take away comes before what it is.
    bed.as_user(0, 0, &[]);
    let sticky = bed.mkdir(ROOT, "sticky", 0o1777);
    bed.mkdir(sticky, "theirs", 0o777);
    bed.file(sticky, "their-file", 0o666);
    bed.as_user(10, 100, &[]);
    bed.file(sticky, "mine", 0o666);
    bed.mkdir(sticky, "my-directory", 0o777);
    for (operation, errno) in [
        (plain((sticky, "mine"), (sticky, "theirs")), Errno::EPERM),
        (plain((sticky, "my-directory"), (sticky, "their-file")), Errno::EPERM),
        (plain((sticky, "mine"), (sticky, "my-directory")), Errno::EISDIR),
        (keep((sticky, "mine"), (sticky, "theirs")), Errno::EEXIST),
    ] {
        bed.refused(operation, errno);
    }
    bed.done(plain((sticky, "mine"), (sticky, "mine-too")));
}

#[test]
fn permissions_are_the_kernels() {
    let mut bed = Bed::new();
    let d = bed.mkdir(ROOT, "d", 0o1777);
    bed.as_user(10, 100, &[200]);
    let mine = bed.file(d, "mine", 0o600);
    let group = bed.mkdir(d, "group", 0o770);
    bed.as_user(11, 100, &[]);
    bed.refused(open(mine, READ), Errno::EACCES);
    bed.refused(Operation::Unlink(at(d, "mine")), Errno::EPERM);
    bed.refused(Operation::Rename(rename((d, "mine"), (d, "x"))), Errno::EPERM);
    bed.refused(Operation::RemoveDirectory(at(d, "group")), Errno::EPERM);
    bed.file(group, "theirs", 0o644);
    bed.refused(Operation::SetAttributes(SetAttributes { mode: Some(0o666), ..set(mine) }), Errno::EPERM);
    bed.as_user(12, 101, &[]);
    bed.refused(create(group, "x", 0o644), Errno::EACCES);
    bed.refused(Operation::Lookup(at(group, "theirs")), Errno::EACCES);
    bed.refused(Operation::ReadDirectory(list(group, 0)), Errno::EACCES);
    bed.as_user(10, 100, &[200]);
    bed.refused(Operation::SetAttributes(SetAttributes { uid: Some(11), ..set(mine) }), Errno::EPERM);
    bed.refused(Operation::SetAttributes(SetAttributes { gid: Some(300), ..set(mine) }), Errno::EPERM);
    bed.ask(Operation::SetAttributes(SetAttributes { mode: Some(0o6755), ..set(mine) }));
    assert_eq!(bed.stat(mine).mode, 0o6755);
    bed.ask(Operation::SetAttributes(SetAttributes { gid: Some(200), ..set(mine) }));
    assert_eq!((bed.stat(mine).mode, bed.stat(mine).gid), (0o755, 200), "set-id bits go with the owner");
    bed.as_user(10, 100, &[]);
    bed.ask(Operation::SetAttributes(SetAttributes { mode: Some(0o2755), ..set(mine) }));
    assert_eq!(bed.stat(mine).mode, 0o755, "no set-group-id of a foreign group");
    // A set-group-id directory hands on its group, and to directories also the bit.
    bed.as_user(0, 0, &[]);
    let shared = bed.mkdir(ROOT, "shared", 0o2777);
    bed.ask(Operation::SetAttributes(SetAttributes { gid: Some(500), mode: Some(0o2777), ..set(shared) }));
    bed.as_user(10, 100, &[]);
    let (file, child) = (bed.file(shared, "f", 0o2755), bed.mkdir(shared, "c", 0o755));
    assert_eq!((bed.stat(file).gid, bed.stat(file).mode), (500, 0o755));
    assert_eq!((bed.stat(child).gid, bed.stat(child).mode), (500, 0o2755));
}

fn list(directory: InodeId, cookie: u64) -> ReadDirectory {
    ReadDirectory { directory, cookie, bytes_max: 200, attributes: false }
}

#[test]
fn a_listing_goes_on_while_entries_come_and_go() {
    let mut bed = Bed::new();
    for number in 0..100 {
        bed.file(ROOT, &format!("old{number}"), 0o644);
    }
    let (mut cookie, mut seen, mut round) = (0, Vec::new(), 0);
    loop {
        let Answer::Listing(listing) = bed.ask(Operation::ReadDirectory(list(ROOT, cookie))) else {
            panic!("no listing")
        };
        assert!(listing.entries.iter().all(|listed| listed.cookie >= 256 && listed.cookie < 1 << 63));
        seen.extend(listing.entries.iter().map(|listed| listed.name.clone()));
        if listing.end {
            break;
        }
        cookie = listing.entries.last().expect("some").cookie;
        bed.file(ROOT, &format!("new{round}"), 0o644);
        bed.done(Operation::Unlink(At { directory: ROOT, name: seen[round].clone() }));
        round += 1;
    }
    for number in 0..100 {
        let count = seen.iter().filter(|of| **of == name(&format!("old{number}"))).count();
        assert_eq!(count, 1, "old{number}");
    }
}

#[test]
fn opens_hold_an_inode_and_a_truncating_open_moves_the_file() {
    let mut bed = Bed::new();
    let grant = bed.grant(Operation::Create(Create { open: Some(WRITE), ..new_file(ROOT, "f", 0o644) }));
    let id = grant.attributes.id;
    let place = grant.attributes.place.expect("a place");
    assert_eq!((place.holder, place.generation, place.writing), (NodeNo(1), 1, true));
    let commit = Commit { id, generation: 1, bytes: 10, blocks: 8, modified_ns: 77 };
    bed.done(Operation::Release(Release { id, writers: 1, readers: 0, commit: Some(commit.clone()) }));
    let file = bed.stat(id);
    assert_eq!((file.bytes, file.blocks, file.modified_ns), (10, 8, 77));
    bed.node = NodeNo(2);
    bed.refused(Operation::Commit(commit.clone()), Errno::ESTALE);
    let place = bed.grant(open(id, WRITE)).attributes.place.expect("a place");
    assert_eq!((place.holder, place.generation), (NodeNo(1), 1), "a partial write stays at the holder");
    let place = bed.grant(open(id, TRUNCATE)).attributes.place.expect("a place");
    assert_eq!((place.holder, place.generation), (NodeNo(1), 1), "it is open");
    assert_eq!(bed.stat(id).bytes, 0);
    bed.done(release(id, 2, 0));
    bed.refused(release(id, 1, 0), Errno::EBADF);
    let place = bed.grant(open(id, TRUNCATE)).attributes.place.expect("a place");
    assert_eq!((place.holder, place.generation), (NodeNo(2), 2));
    assert_eq!(bed.dropped, [(NodeNo(1), id, 1)]);
    bed.done(Operation::Unlink(at(ROOT, "f")));
    assert_eq!(bed.stat(id).links, 0);
    bed.refused(Operation::Link(Link { id, directory: ROOT, name: name("g") }), Errno::ENOENT);
    bed.step(Event::NodeGone { node: NodeNo(2), incarnation: Incarnation(1) });
    assert_eq!(bed.dropped.last(), Some(&(NodeNo(2), id, 2)));
    assert_eq!(bed.partition.inodes(), 1);
    assert_eq!(bed.ask(create(ROOT, "ghost", 0o644)), Answer::Ended);
}

#[test]
fn any_node_takes_over_a_file_that_the_archive_has_until_it_is_written() {
    let mut bed = Bed::new();
    let grant = bed.grant(Operation::Create(Create { open: Some(WRITE), ..new_file(ROOT, "f", 0o644) }));
    let id = grant.attributes.id;
    let commit = |bytes| Commit { id, generation: 1, bytes, blocks: 8, modified_ns: 70 };
    bed.done(Operation::Release(Release { id, writers: 1, readers: 0, commit: Some(commit(10)) }));
    let version = bed.stat(id).version;
    let told = |copies: &[NodeNo], more| {
        let copies = copies.to_vec();
        Operation::Copied(Copied { id, generation: 1, version, copies, more })
    };
    let copies = |bed: &mut Bed| bed.stat(id).place.expect("a place").copies;
    let take = |idle| Operation::TakeOver(TakeOver { id, generation: 1, idle });
    // Whoever tells of nodes does not know of the archive, and the other way round.
    bed.done(told(&[NodeNo(2)], None));
    bed.done(told(&[ARCHIVE], Some(true)));
    assert_eq!(copies(&mut bed), [NodeNo(2), ARCHIVE]);
    bed.done(told(&[NodeNo(3)], None));
    assert_eq!(copies(&mut bed), [ARCHIVE, NodeNo(3)]);
    bed.done(told(&[ARCHIVE], Some(true)));
    bed.done(told(&[], None));
    assert_eq!(copies(&mut bed), [ARCHIVE]);

    bed.node = NodeNo(4);
    bed.refused(take(true), Errno::ESTALE);
    bed.done(take(false));
    let place = bed.stat(id).place.expect("a place");
    assert!(place.holder == NodeNo(4) && place.is_archived() && place.nodes_with_copy().next().is_none());
    bed.node = NodeNo(5);
    bed.grant(open(id, WRITE));
    bed.refused(take(false), Errno::EBUSY);
    bed.done(release(id, 1, 0));
    bed.node = NodeNo(4);
    bed.done(Operation::Commit(commit(11)));
    assert_eq!(copies(&mut bed), [], "the archive has other bytes");
    bed.node = NodeNo(5);
    bed.refused(take(false), Errno::ESTALE);
    // The end of the file is told to nodes only.
    bed.node = NodeNo(4);
    let version = bed.stat(id).version;
    let (copies, more) = (vec![ARCHIVE], Some(true));
    bed.done(Operation::Copied(Copied { id, generation: 1, version, copies, more }));
    bed.done(Operation::Unlink(at(ROOT, "f")));
    assert_eq!(bed.dropped, [(NodeNo(4), id, 1)]);
}

#[test]
fn copies_count_until_the_file_is_written_and_one_of_them_takes_over() {
    let mut bed = Bed::new();
    let grant = bed.grant(Operation::Create(Create { open: Some(WRITE), ..new_file(ROOT, "f", 0o644) }));
    let id = grant.attributes.id;
    let commit = |bytes, modified_ns| Commit { id, generation: 1, bytes, blocks: 8, modified_ns };
    let copied = |version, copies: &[u32]| {
        let copies = copies.iter().map(|node| NodeNo(*node)).collect();
        Operation::Copied(Copied { id, generation: 1, version, copies, more: None })
    };
    let copies = |bed: &mut Bed| bed.stat(id).place.expect("a place").copies;
    let take = Operation::TakeOver(TakeOver { id, generation: 1, idle: false });
    let version = bed.stat(id).version;
    bed.refused(copied(version, &[2]), Errno::ESTALE);
    bed.done(Operation::Release(Release { id, writers: 1, readers: 0, commit: Some(commit(10, 77)) }));
    bed.refused(copied(version, &[2]), Errno::ESTALE);
    let version = bed.stat(id).version;
    bed.node = NodeNo(2);
    bed.refused(copied(version, &[3]), Errno::ESTALE);
    bed.refused(take.clone(), Errno::ESTALE);
    bed.node = NodeNo(1);
    bed.done(copied(version, &[2, 3]));
    assert_eq!(copies(&mut bed), [NodeNo(2), NodeNo(3)]);

    // A copy that was read before somebody opened the file for writing does not count.
    bed.grant(open(id, WRITE));
    assert_eq!(copies(&mut bed), [NodeNo(2), NodeNo(3)], "nothing was written yet");
    bed.node = NodeNo(2);
    bed.refused(take.clone(), Errno::EBUSY);
    bed.node = NodeNo(1);
    bed.done(release(id, 1, 0));
    bed.refused(copied(version, &[2]), Errno::ESTALE);
    bed.grant(open(id, WRITE));
    bed.done(Operation::Release(Release { id, writers: 1, readers: 0, commit: Some(commit(10, 78)) }));
    assert_eq!(copies(&mut bed), [], "the copies have other bytes");

    let version = bed.stat(id).version;
    bed.done(copied(version, &[2, 3]));
    bed.grant(open(id, READ));
    bed.node = NodeNo(2);
    bed.refused(Operation::TakeOver(TakeOver { id, generation: 1, idle: true }), Errno::EBUSY);
    bed.done(take.clone());
    bed.done(take.clone());
    let place = bed.stat(id).place.expect("a place");
    assert_eq!((place.holder, place.generation, place.copies), (NodeNo(2), 1, vec![NodeNo(3)]));
    bed.node = NodeNo(1);
    bed.refused(take, Errno::ESTALE);
    bed.refused(Operation::Commit(commit(1, 80)), Errno::ESTALE);
    assert!(bed.dropped.is_empty());
    bed.done(release(id, 0, 1));
    // The snapshot has them, and the end of the file is told to all.
    let pieces: Vec<_> = bed.partition.snapshot().collect();
    let mut restore = Restore::new(PartitionNo(0), bed.partition.settings().clone());
    pieces.iter().for_each(|piece| restore.piece(piece).expect("fits"));
    assert_eq!(restore.finish().expect("whole").digest(), bed.partition.digest());
    bed.done(Operation::Unlink(at(ROOT, "f")));
    assert_eq!(bed.dropped, [(NodeNo(3), id, 1), (NodeNo(2), id, 1)]);
}

#[test]
fn an_explicit_time_holds_against_the_writes_before_it() {
    let mut bed = Bed::new();
    let grant = bed.grant(Operation::Create(Create { open: Some(WRITE), ..new_file(ROOT, "f", 0o644) }));
    let id = grant.attributes.id;
    let commit =
        |bytes, modified_ns| Operation::Commit(Commit { id, generation: 1, bytes, blocks: 8, modified_ns });
    let wrote_ns = bed.now_ns;
    bed.ask(Operation::SetAttributes(SetAttributes { modified_ns: Some(5), ..set(id) }));
    bed.done(commit(10, wrote_ns));
    assert_eq!((bed.stat(id).bytes, bed.stat(id).modified_ns), (10, 5));
    let wrote_ns = bed.now_ns + 100;
    bed.done(commit(11, wrote_ns));
    assert_eq!(bed.stat(id).modified_ns, wrote_ns, "a later write counts");
    bed.ask(Operation::SetAttributes(SetAttributes { modified_ns: Some(5), ..set(id) }));
    bed.done(release(id, 1, 0));
    bed.grant(open(id, WRITE));
    bed.done(commit(12, 70));
    assert_eq!(bed.stat(id).modified_ns, 70, "what was set counts while the file is open");
}

#[test]
fn a_repeated_request_is_executed_once() {
    let mut bed = Bed::new();
    let id = bed.file(ROOT, "a", 0o644);
    let again = bed.request(bed.number, create(ROOT, "a", 0o644));
    let Some(Answer::Entry(entry)) = bed.step(again) else { panic!("no entry") };
    assert_eq!(entry.id, id);
    let first = bed.number + 1;
    bed.done(Operation::Unlink(at(ROOT, "a")));
    let other = bed.file(ROOT, "a", 0o644);
    let late = bed.request(first, Operation::Unlink(at(ROOT, "a")));
    assert_eq!(bed.step(late), Some(Answer::Done));
    assert_eq!(bed.entry(Operation::Lookup(at(ROOT, "a"))), other);
    // What was refused stays refused.
    bed.refused(create(ROOT, "a", 0o644), Errno::EEXIST);
    let refused = bed.number;
    bed.done(Operation::Unlink(at(ROOT, "a")));
    let late = bed.request(refused, create(ROOT, "a", 0o644));
    assert_eq!(bed.step(late), Some(Answer::refused(Errno::EEXIST)));
    bed.refused(Operation::Lookup(at(ROOT, "a")), Errno::ENOENT);
}

#[test]
fn a_snapshot_gives_the_same_tables_and_damage_is_found() {
    let mut bed = Bed::new();
    let d = bed.mkdir(ROOT, "d", 0o755);
    for number in 0..3000 {
        bed.number += 1;
        let text = format!("a-name-that-is-too-long-for-a-row-{number}");
        let request = bed.request(bed.number, create(d, &text, 0o644));
        bed.now_ns += 1;
        bed.partition.step(bed.now_ns, request, &mut Vec::new());
    }
    let settings = bed.partition.settings().clone();
    let pieces: Vec<_> = bed.partition.snapshot().collect();
    assert!(pieces.len() > 3, "{} pieces", pieces.len());
    let mut restore = Restore::new(PartitionNo(0), settings.clone());
    pieces.iter().for_each(|piece| restore.piece(piece).expect("fits"));
    assert_eq!(restore.finish().expect("whole").digest(), bed.partition.digest());
    let mut cut = Restore::new(PartitionNo(0), settings.clone());
    cut.piece(&pieces[0]).expect("fits");
    assert!(cut.piece(&pieces[2]).is_err(), "out of order");
    assert!(cut.finish().is_err(), "cut short");
    for at in (0..pieces[1].len()).step_by(997) {
        let mut damaged = pieces[1].clone();
        damaged[at] ^= 4;
        let mut restore = Restore::new(PartitionNo(0), settings.clone());
        restore.piece(&pieces[0]).expect("fits");
        assert!(restore.piece(&damaged).is_err(), "byte {at}");
    }
    assert!(Restore::new(PartitionNo(1), settings).piece(&pieces[0]).is_err(), "another partition's");
}

#[test]
fn damaged_records_and_messages_are_errors_or_harmless() {
    use zazen_wire::Message;
    let mut bed = Bed::new();
    let d = bed.mkdir(ROOT, "d", 0o755);
    let id = bed.file(d, "f", 0o644);
    bed.grant(open(id, WRITE));
    bed.done(Operation::Rename(rename((d, "f"), (ROOT, "g"))));
    let settings = Settings { partitions: 3, root_mode: 0o777, ..Settings::default() };
    // A transaction that waits for another partition: its row and its message.
    let (mut asking, mut actions) = (Partition::new(PartitionNo(0), settings.clone()), Vec::new());
    for number in 1..=20 {
        let make = MakeDirectory { directory: ROOT, name: name(&format!("d{number}")), mode: 0o755 };
        asking.step(1, bed.request(number, Operation::MakeDirectory(make)), &mut actions);
    }
    let mut messages = Vec::new();
    for action in actions {
        match action {
            Action::Log(record) => bed.records.push(record),
            Action::Send { message, .. } => messages.push(message.encode()),
            _ => {}
        }
    }
    assert!(messages.len() > 5, "{} messages", messages.len());
    let mut random = super::world::Random(7);
    let mut damage = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            bytes[at] = [0, 1, 0xff, random.next() as u8][random.below(4)];
        }
        bytes
    };
    let (mut applied, mut taken) = (0, 0);
    for round in 0..4000 {
        let mut partition = Partition::new(PartitionNo(0), settings.clone());
        let bytes = damage(&bed.records[round % bed.records.len()]);
        applied += u32::from(partition.apply(&bytes).is_ok());
        partition.step(2, Event::Resumed { epoch: Epoch(1) }, &mut Vec::new());
        let bytes = damage(&messages[round % messages.len()]);
        if let Ok(message) = super::super::PeerMessage::decode(&bytes) {
            taken += 1;
            partition.step(2, Event::Peer { from: PartitionNo(1), message }, &mut Vec::new());
            partition.step(3, Event::Tick, &mut Vec::new());
        }
    }
    assert!(applied > 100 && taken > 100, "{applied} applied, {taken} taken");
}

#[test]
fn records_places_and_snapshots_keep_their_bytes() {
    use zazen_wire::checksum::crc32c;
    let mut bed = Bed::new();
    let d = bed.mkdir(ROOT, "d", 0o755);
    let id = bed.file(d, "step-17.vtu", 0o644);
    bed.entry(Operation::Link(Link { id, directory: ROOT, name: name("second") }));
    bed.done(Operation::Unlink(at(d, "step-17.vtu")));
    let sums: Vec<_> = bed.records.iter().map(|record| (record.len(), crc32c(record))).collect();
    let place = super::super::entry::place_of(b"step-17.vtu");
    // docs/formats/namespace-partition.md: a change of these is a new format.
    assert_eq!(place, 7_295_870_209_501_932_032);
    let records = [(216, 2346612095), (182, 1030654598), (271, 3005325091), (189, 471605447)];
    assert_eq!(sums, records);
    assert_eq!(bed.partition.digest(), 5_449_074_208_221_042_093);
}
