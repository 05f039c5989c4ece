//! The namespace of real daemons: files and directories on one node, callers that lie.

use crate::namespaces::*;
use std::collections::BTreeSet;
use zazen_namespace_client::core::operation::{
    Answer, CHUNKS_WANTED, Chunks, Create, GetMany, Lock, LockWanted, Mode, NOW_NS, Operation, ReadDirectory,
    Release, SetAttributes, SetXattr,
};
use zazen_namespace_client::core::service::{Answers, Ask, Asks, Done, HandleCall, Quota, namespace_fn};
use zazen_namespace_client::core::{Errno, InodeId, Kind, Name};
use zazen_wire::{Message, service};

const READ: Mode = Mode { read: true, write: false, truncate: false };
const WRITE: Mode = Mode { read: true, write: true, truncate: false };

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

#[test]
fn what_is_written_is_read_and_listed() {
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    ns.mkdir_all(None, b"/a/b/c", 0o755).unwrap();
    let bytes = noise(9 << 20, 1);
    let file = ns.open_or_create(None, b"/a/b/c/f", 0o644, WRITE, true).unwrap();
    assert!(file.created());
    file.write_all_at(&bytes, 0).unwrap();
    let found = ns.stat(None, b"/a/b/c/f", true).unwrap();
    assert_eq!(found.bytes, bytes.len() as u64, "stat asks the holder while the file is being written");
    file.close().unwrap();
    let file = ns.open(None, b"/a/./b//c/../c/f", READ).unwrap();
    let mut got = vec![0; bytes.len() + 10];
    assert_eq!(file.read_at(&mut got, 0), Ok(bytes.len()));
    assert_eq!(got[..bytes.len()], bytes);
    assert_eq!(file.read_at(&mut got[..7], 4_000_000), Ok(7));
    assert_eq!(got[..7], bytes[4_000_000..4_000_007]);
    assert_eq!(file.write_at(b"x", 0), Err(Errno::ESTALE), "a file opened for reading");
    for at in 0..300 {
        ns.open_or_create(None, format!("/a/b/n{at}").as_bytes(), 0o600, WRITE, true)
            .unwrap()
            .close()
            .unwrap();
    }
    let listed: BTreeSet<Vec<u8>> =
        ns.list(None, b"/a/b", true).unwrap().iter().map(|entry| entry.name.as_bytes().to_vec()).collect();
    let mut expected: BTreeSet<Vec<u8>> = (0..300).map(|at| format!("n{at}").into_bytes()).collect();
    expected.insert(b"c".to_vec());
    assert_eq!(listed, expected);
}

#[test]
fn names_move_and_end_and_links_lead() {
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    ns.mkdir(None, b"/d", 0o755).unwrap();
    ns.mkdir(None, b"/e", 0o755).unwrap();
    let file = ns.open_or_create(None, b"/d/f", 0o644, WRITE, true).unwrap();
    file.write_all_at(b"hello", 0).unwrap();
    ns.rename_path(None, b"/d/f", b"/e/g").unwrap();
    assert_eq!(ns.stat(None, b"/d/f", true).unwrap_err(), Errno::ENOENT);
    let (directory, link) = ns.place(None, b"/d/s").unwrap();
    ns.symlink(None, directory, &link, b"../e/./g").unwrap();
    assert_eq!(ns.stat(None, b"/d/s", true).unwrap().id, file.attributes().id);
    assert_eq!(ns.stat(None, b"/d/s", false).unwrap().kind, Kind::Symlink);
    let (directory, turn) = ns.place(None, b"/d/loop").unwrap();
    ns.symlink(None, directory, &turn, b"/d/loop").unwrap();
    assert_eq!(ns.stat(None, b"/d/loop", true).unwrap_err(), Errno::ELOOP);
    assert_eq!(ns.rmdir(None, b"/e").unwrap_err(), Errno::ENOTEMPTY);
    assert_eq!(ns.open(None, b"/d", WRITE).unwrap_err(), Errno::EISDIR);
    assert_eq!(ns.stat(None, b"/e/g/", true).unwrap_err(), Errno::ENOTDIR);
    assert_eq!(ns.stat(None, b"/../../e/g", true).unwrap().bytes, 5);
    ns.remove(None, b"/e/g").unwrap();
    let mut got = [0; 5];
    assert_eq!(file.read_at(&mut got, 0), Ok(5), "an open file without a name keeps its bytes");
    assert_eq!(&got, b"hello");
    assert_eq!(cluster.objects(0), 1);
    file.close().unwrap();
    assert_eq!(cluster.objects(0), 0, "the last close ends the object");
    ns.rmdir(None, b"/e").unwrap();
}

#[test]
fn truncate_holes_and_times() {
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    let file = ns.open_or_create(None, b"/f", 0o644, WRITE, false).unwrap();
    file.write_all_at(b"end", 1 << 20).unwrap();
    assert_eq!(file.seek_data(0), Ok(1 << 20));
    assert_eq!(file.seek_hole(0), Ok(0));
    file.set_length(5).unwrap();
    assert_eq!(file.seek_data(0), Err(Errno::ENXIO));
    file.allocate(0, 0, 4096).unwrap();
    assert_eq!(file.allocate(0x08, 0, 4096), Err(Errno::EOPNOTSUPP));
    let set = SetAttributes {
        mode: Some(0o4755),
        accessed_ns: Some(NOW_NS),
        modified_ns: Some(1_000_000_007),
        ..SetAttributes::of(file.attributes().id)
    };
    ns.set_attributes(None, set.clone()).unwrap();
    file.close().unwrap();
    let found = ns.stat(None, b"/f", true).unwrap();
    assert_eq!((found.bytes, found.modified_ns, found.mode), (4096, 1_000_000_007, 0o4755));
    let shorter = SetAttributes { bytes: Some(0), ..set };
    assert_eq!(ns.set_attributes(None, shorter).unwrap_err(), Errno::EOPNOTSUPP);
    let empty = ns.open(None, b"/f", Mode { truncate: true, ..WRITE }).unwrap();
    assert_eq!(empty.attributes().bytes, 0);
    assert_eq!(empty.read_at(&mut [0; 9], 0), Ok(0));
    empty.sync().unwrap();
    assert_eq!(ns.stat(None, b"/f", true).unwrap().bytes, 0);
}

#[test]
fn many_clients_create_in_one_directory_and_none_is_lost() {
    let cluster = Cluster::alone();
    let made: usize = std::thread::scope(|scope| {
        let create = |client: usize| {
            let ns = cluster.client(0);
            let names: Vec<Name> = (0..200).map(|at| name(&format!("c{client}-{at}"))).collect();
            let many = ns.create_many(None, InodeId::ROOT, &names[..100], 0o644).unwrap();
            let one = |name: &Name| ns.create(None, InodeId::ROOT, name, 0o644, WRITE, true).is_ok();
            let both = ns.create_many(None, InodeId::ROOT, &[name("same")], 0o644).unwrap();
            many.iter().filter(|made| made.is_ok()).count()
                + names[100..].iter().filter(|name| one(name)).count()
                + both.iter().filter(|made| made.is_ok()).count()
        };
        let threads: Vec<_> = (0..8).map(|client| scope.spawn(move || create(client))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(made, 8 * 200 + 1, "one of eight makes the same name");
    assert_eq!(cluster.client(0).list(None, b"/", false).unwrap().len(), made);
}

#[test]
fn one_call_cannot_ask_for_more_than_the_daemon_can_hold() {
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    let names: Vec<Name> = (0..1000).map(|at| name(&format!("{at:0>200}"))).collect();
    let file = ns.create_many(None, InodeId::ROOT, &[name("chunks")], 0o644).unwrap().remove(0).unwrap();
    let (wish, value) = (Name::new(CHUNKS_WANTED).unwrap(), Some(b"1".to_vec()));
    ns.set_xattr(None, SetXattr { id: file, name: wish, value, create: false, replace: false }).unwrap();
    ns.create_many(None, InodeId::ROOT, &names, 0o644).unwrap();
    let read = ReadDirectory { directory: InodeId::ROOT, cookie: 0, bytes_max: u32::MAX, attributes: true };
    let many = GetMany { ids: vec![InodeId::ROOT; 1024] };
    let chunks = Chunks { file, from: 0, max: u32::MAX, writing: false };
    let mut raw = cluster.raw(0);
    for bounded in [Operation::GetMany(many), Operation::Chunks(chunks)] {
        let mut operations = vec![Operation::ReadDirectory(read.clone()); 100];
        operations.extend(vec![bounded; 100]);
        let asks = operations.into_iter().map(|operation| Ask { credentials: None, operation }).collect();
        let asks = Asks { asks }.encode();
        let answered = raw.exchange(service::NAMESPACE, namespace_fn::ASK, &asks, &[], &mut []);
        let payload = answered.unwrap().payload;
        assert!(payload.len() < 20 << 20, "{} bytes", payload.len());
        let answers = Answers::decode(&payload).unwrap().answers;
        assert_eq!(answers.len(), 200);
        let refused = answers[100..].iter().filter(|given| matches!(given.answer, Answer::Refused(_)));
        let given = 100 - refused.count();
        assert!((1..=64).contains(&given), "{given} answers; the rest is refused");
    }
    let same = vec![InodeId::ROOT; 200_000];
    assert_eq!(ns.attributes_many(None, &same).unwrap().len(), same.len(), "the library asks in parts");
}

#[test]
fn a_caller_that_dies_leaves_nothing_open() {
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    {
        let dying = cluster.client(0);
        let file = dying.open_or_create(None, b"/f", 0o644, WRITE, true).unwrap();
        file.write_all_at(b"12345", 0).unwrap();
        ns.remove(None, b"/f").unwrap();
        let other = dying.open_or_create(None, b"/g", 0o644, WRITE, true).unwrap();
        other.write_all_at(b"123", 0).unwrap();
        // No close reaches the daemon.
        std::mem::forget(file);
        std::mem::forget(other);
        assert_eq!(cluster.objects(0), 2);
        cluster.cut(dying);
    }
    eventually("the file without a name ends", || cluster.objects(0) == 1);
    eventually("what was written is told", || ns.stat(None, b"/g", true).is_ok_and(|found| found.bytes == 3));
}

#[test]
fn what_was_written_before_a_crash_is_told_at_the_next_open() {
    let mut cluster = Cluster::alone();
    let ns = cluster.client(0);
    let file = ns.open_or_create(None, b"/f", 0o644, WRITE, true).unwrap();
    file.write_all_at(b"12345", 0).unwrap();
    std::mem::forget((file, ns));
    cluster.kill(0);
    cluster.start(0);
    let ns = cluster.client(0);
    let file = ns.open(None, b"/f", READ).unwrap();
    assert_eq!(file.attributes().bytes, 5);
    assert_eq!(ns.stat(None, b"/f", true).unwrap().bytes, 5);
}

#[test]
fn a_file_that_is_rewritten_at_once_keeps_its_length() {
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    ns.open_or_create(None, b"/f", 0o644, WRITE, true).unwrap().close().unwrap();
    let reader = ns.open(None, b"/f", READ).unwrap();
    for round in 0..200 {
        let file = ns.open(None, b"/f", Mode { truncate: true, ..WRITE }).unwrap();
        file.write_all_at(b"again", 0).unwrap();
        file.close().unwrap();
        assert_eq!(ns.stat(None, b"/f", true).unwrap().bytes, 5, "round {round}");
    }
    let cut = ns.open(None, b"/f", Mode { truncate: true, ..READ });
    if let Ok(cut) = cut {
        cut.close().unwrap();
        assert_eq!(ns.stat(None, b"/f", true).unwrap().bytes, 0);
        assert_eq!(reader.read_at(&mut [0; 9], 0), Ok(0));
    }
}

#[test]
fn an_ordinary_user_gets_what_permissions_give_and_no_more() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to become another user");
        return;
    }
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    ns.mkdir(None, b"/private", 0o700).unwrap();
    let secret = ns.open_or_create(None, b"/private/secret", 0o600, WRITE, true).unwrap();
    secret.write_all_at(b"secret", 0).unwrap();
    secret.flush().unwrap();
    let open = ns.open_or_create(None, b"/readable", 0o644, WRITE, true).unwrap();
    open.write_all_at(b"for all", 0).unwrap();
    open.flush().unwrap();
    let id = secret.attributes().id;
    ns.mkdir(None, b"/private/open", 0o755).unwrap();
    let inner = ns.open_or_create(None, b"/private/open/f", 0o666, WRITE, true).unwrap();
    let hidden = [inner.attributes().id, ns.stat(None, b"/private/open", true).unwrap().id];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            become_user(65534);
            let ns = cluster.client(0);
            assert!(!ns.hello().unwrap().vouches);
            assert_eq!(ns.stat(None, b"/private/secret", true).unwrap_err(), Errno::EACCES);
            assert_eq!(ns.open_inode(None, id, READ).unwrap_err(), Errno::EACCES);
            let root = zazen_core::Credentials { uid: 0, gid: 0, groups: vec![] };
            assert_eq!(ns.open_inode(Some(&root), id, READ).unwrap_err(), Errno::EPERM);
            assert_eq!(ns.open(None, b"/readable", WRITE).unwrap_err(), Errno::EACCES);
            let file = ns.open(None, b"/readable", READ).unwrap();
            let mut got = [0; 7];
            assert_eq!(file.read_at(&mut got, 0), Ok(7));
            let fd = std::fs::File::from(file.descriptor().unwrap().unwrap());
            std::os::unix::fs::FileExt::write_at(&fd, b"x", 0).expect_err("a descriptor for reading");
            let own = ns.open_or_create(None, b"/own", 0o600, WRITE, true).unwrap();
            assert_eq!((own.attributes().uid, own.attributes().gid), (65534, 65534));
            own.write_all_at(b"own", 0).unwrap();
            // Numbers of inodes lead nobody past a directory that is closed to them.
            for id in hidden {
                assert_eq!(ns.attributes(None, id).unwrap_err(), Errno::EACCES);
                assert_eq!(ns.attributes_many(None, &[id]).unwrap_err(), Errno::EACCES);
                assert_eq!(ns.open_inode(None, id, READ).unwrap_err(), Errno::EACCES);
                assert_eq!(ns.lookup(None, id, &name("f")).unwrap_err(), Errno::EACCES);
                assert_eq!(ns.link(None, id, InodeId::ROOT, &name("l")).unwrap_err(), Errno::EACCES);
            }
            let readable = ns.stat(None, b"/readable", true).unwrap().id;
            assert_eq!(ns.link(None, readable, InodeId::ROOT, &name("l")).unwrap_err(), Errno::EPERM);
            assert!(ns.list(None, b"/", true).unwrap().iter().all(|entry| entry.attributes.is_some()));
            let exclusive = |whole| Lock {
                id: readable,
                owner: 1,
                pid: 1,
                whole,
                start: 0,
                end: u64::MAX,
                wanted: LockWanted::Exclusive,
            };
            assert!(ns.lock(None, exclusive(true)).unwrap().is_none());
            assert_eq!(ns.lock(None, exclusive(false)).unwrap_err(), Errno::EBADF, "it is open for reading");
            hostile_calls(&cluster, id);
        });
    });
    let mut got = [0; 6];
    assert_eq!(secret.read_at(&mut got, 0), Ok(6));
    assert_eq!(&got, b"secret");
    assert_eq!(ns.list(None, b"/", false).unwrap().len(), 3);
}

#[test]
fn a_write_that_comes_late_undoes_no_later_one() {
    let cluster = Cluster::alone();
    let mut raw = cluster.raw(0);
    let create = Create { open: Some(WRITE), ..Create::file(InodeId::ROOT, name("f")) };
    let asks = Asks { asks: vec![Ask { credentials: None, operation: Operation::Create(create) }] };
    eventually("the namespace has begun", || {
        raw.call(service::NAMESPACE, namespace_fn::HELLO, &[], &[]).is_ok()
    });
    let answers = raw.call(service::NAMESPACE, namespace_fn::ASK, &asks.encode(), &[]).unwrap();
    let handle = Answers::decode(&answers.payload).unwrap().answers[0].handle;
    let mut call = |function, call, again, offset, bytes: &[u8]| {
        let asked = HandleCall { handle, offset, bytes: bytes.len() as u64, flags: 0, call, again };
        let bulk: &[&[u8]] = if bytes.is_empty() { &[] } else { &[bytes] };
        let reply = raw.call(service::NAMESPACE, function, &asked.encode(), bulk).unwrap();
        Done::decode(&reply.payload).unwrap().result()
    };
    let (write, cut) = (namespace_fn::WRITE, namespace_fn::TRUNCATE);
    // The second try of call 7 comes first; its caller goes on.
    assert_eq!(call(write, 7, 1, 0, b"seven"), Ok(5));
    assert_eq!(call(write, 8, 0, 0, b"eight"), Ok(5));
    assert_eq!(call(write, 7, 0, 0, b"seven"), Err(Errno::ETIMEDOUT));
    assert_eq!(call(cut, 9, 1, 2, b""), Ok(2));
    assert_eq!(call(write, 10, 0, 2, b"g and more"), Ok(10));
    assert_eq!(call(cut, 9, 0, 2, b""), Err(Errno::ETIMEDOUT));
    // Another program may have the same numbers.
    let ns = cluster.client(0);
    let file = ns.open(None, b"/f", WRITE).unwrap();
    (0..20).for_each(|_| file.write_all_at(b"E", 0).unwrap());
    let mut got = [0; 20];
    assert_eq!(file.read_at(&mut got, 0), Ok(12));
    assert_eq!(&got[..12], b"Eig and more");
}

#[test]
fn a_file_that_was_open_before_a_quota_was_set_is_bounded_by_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to become another user");
        return;
    }
    const USER: u32 = 65_534;
    const CHUNK: u64 = 64 << 10;
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    let limit = 1 << 20;
    let (opened, is_open) = std::sync::mpsc::channel();
    let (set, is_set) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let nodes = &cluster;
        let writer = scope.spawn(move || {
            become_user(USER);
            let ns = nodes.client(0);
            let file = ns.open_or_create(None, b"/f", 0o600, WRITE, true).unwrap();
            file.write_all_at(&noise(CHUNK as usize, 1), 0).unwrap();
            opened.send(()).unwrap();
            is_set.recv().unwrap();
            let mut end = CHUNK;
            loop {
                match file.write_at(&noise(CHUNK as usize, end), end) {
                    Ok(count) => end += count as u64,
                    Err(errno) => break (end, errno),
                }
                assert!(end < 4 * limit, "{end} bytes were written");
            }
        });
        is_open.recv().unwrap();
        let quota = Quota { user: Some(USER), path: String::new(), bytes: Some(limit), files: None };
        ns.set_quota(&quota).unwrap();
        eventually("the files are added up", || {
            let told = ns.quotas().unwrap();
            told.quotas.iter().any(|quota| quota.counted && quota.bytes >= CHUNK)
        });
        set.send(()).unwrap();
        let (end, errno) = writer.join().unwrap();
        assert_eq!(errno, Errno::EDQUOT);
        // Near a walk, what is written may count twice for a while.
        assert!((CHUNK..=limit).contains(&end), "{end} bytes");
    });
}

/// Calls that no library makes.
fn hostile_calls(cluster: &Cluster, foreign: InodeId) {
    let mut raw = cluster.raw(0);
    let mut call = |function, payload: &[u8]| {
        let mut into = vec![0; 64 << 10];
        let mut output = [std::io::IoSliceMut::new(&mut into)];
        raw.exchange(service::NAMESPACE, function, payload, &[], &mut output).map(|done| done.payload)
    };
    let refusal = |payload: Vec<u8>| {
        zazen_namespace_client::core::service::Done::decode(&payload).unwrap().result().unwrap_err()
    };
    // Handles of others: numbers near those that were given out, and absurd ones.
    for handle in (0..200).chain([u64::MAX, 1 << 63]) {
        for function in namespace_fn::READ..=namespace_fn::DESCRIPTOR {
            let asked = HandleCall { handle, offset: u64::MAX, bytes: 0, flags: 0, call: 1, again: 0 };
            let payload = call(function, &asked.encode());
            assert!(payload.map_or(true, |payload| refusal(payload) == Errno::EBADF), "{function}");
        }
    }
    // What daemons ask of each other.
    for function in namespace_fn::REQUEST..=namespace_fn::OBJECT + 3 {
        let error = call(function, &[0; 64]).unwrap_err();
        let refused = [zazen_core::ErrorKind::PermissionDenied, zazen_core::ErrorKind::Unsupported];
        assert!(refused.contains(&error.kind()), "{function}: {error}");
    }
    // Ends of what somebody else opened.
    let release = Release { id: foreign, writers: 1, readers: 0, commit: None };
    let asks = Asks { asks: vec![Ask { credentials: None, operation: Operation::Release(release) }] };
    let answers = call(namespace_fn::ASK, &asks.encode()).unwrap();
    let answers = zazen_namespace_client::core::service::Answers::decode(&answers).unwrap();
    assert_eq!(answers.answers[0].answer, Answer::refused(Errno::EPERM));
    // Bytes that are no message.
    for length in 0..64 {
        call(namespace_fn::ASK, &vec![0xff; length]).unwrap_err();
    }
}
