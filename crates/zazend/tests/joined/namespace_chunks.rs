//! Files in chunks of real daemons, and users who look for a way around what is theirs.

use crate::namespaces::*;
use zazen_namespace_client::core::operation::{
    Append, CHUNKS_WANTED, Chunks, Commit, GetMany, Inode, Link, Lock, LockWanted, Mode, Open, OpenChunk,
    Operation, Release, SetAttributes, SetXattr,
};
use zazen_namespace_client::core::service::Quota;
use zazen_namespace_client::core::{Errno, InodeId, Name};
use zazen_namespace_client::{File, Namespace};

const READ: Mode = Mode { read: true, write: false, truncate: false };
const WRITE: Mode = Mode { read: true, write: true, truncate: false };
const MIB: u64 = 1 << 20;
const USER: u32 = 65_533;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// Makes a file in chunks of a MiB in the root directory.
fn make(ns: &Namespace, text: &str, mode: u32) -> InodeId {
    let made = ns.create_many(None, InodeId::ROOT, &[name(text)], mode).unwrap();
    let id = *made[0].as_ref().unwrap();
    let wish = Name::new(CHUNKS_WANTED).unwrap();
    let value = Some(b"1".to_vec());
    ns.set_xattr(None, SetXattr { id, name: wish, value, create: false, replace: false }).unwrap();
    id
}

/// The same, with bytes in three chunks; open for writing.
fn filled(ns: &Namespace, text: &str, mode: u32) -> File {
    let file = ns.open_inode(None, make(ns, text, mode), WRITE).unwrap();
    (0..3).for_each(|at| file.write_all_at(b"theirs", at * MIB).unwrap());
    file.flush().unwrap();
    file
}

/// Whether this process can act for several users.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn is_root() -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        eprintln!("skipped: needs root to become another user");
    }
    is
}

/// Does `work` as an ordinary user with a connection of its own.
fn as_user<T: Send>(cluster: &Cluster, work: impl FnOnce(&Namespace) -> T + Send) -> T {
    std::thread::scope(|scope| {
        let run = || {
            become_user(USER);
            work(&cluster.client(0))
        };
        scope.spawn(run).join().unwrap()
    })
}

fn refused(ns: &Namespace, operation: Operation) -> Option<Errno> {
    ns.ask(None, operation).err()
}

#[test]
fn numbers_of_chunks_and_handles_for_reading_lead_no_further_than_names() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    let (shared, closed) = (filled(&ns, "shared", 0o644), filled(&ns, "closed", 0o600));
    let of_shared = shared.attributes().id;
    let chunks: Vec<_> = [of_shared, closed.attributes().id]
        .into_iter()
        .flat_map(|file| ns.chunks(None, file).unwrap())
        .collect();
    assert_eq!(chunks.len(), 6);
    as_user(&cluster, |ns| {
        let file = ns.open(None, b"/shared", READ).unwrap();
        assert_eq!(ns.chunks(None, of_shared).unwrap().len(), 3, "as stat, which shows the length");
        for chunk in &chunks {
            let id = chunk.id;
            let place = chunk.place.clone().unwrap();
            let lock = |wanted| Lock { id, owner: 1, pid: 1, whole: true, start: 0, end: u64::MAX, wanted };
            let set = SetAttributes { mode: Some(0o666), ..SetAttributes::of(id) };
            let operations = [
                Operation::GetAttributes(Inode { id }),
                Operation::GetMany(GetMany { ids: vec![id] }),
                Operation::Open(Open { id, mode: READ }),
                Operation::Open(Open { id, mode: WRITE }),
                Operation::Open(Open { id, mode: Mode { truncate: true, ..WRITE } }),
                Operation::SetAttributes(set),
                Operation::SetAttributes(SetAttributes { bytes: Some(0), ..SetAttributes::of(id) }),
                Operation::ListXattr(Inode { id }),
                Operation::Link(Link { id, directory: InodeId::ROOT, name: name("mine") }),
                Operation::Lock(lock(LockWanted::Exclusive)),
                Operation::Lock(lock(LockWanted::TestShared)),
                Operation::Lock(lock(LockWanted::Unlock)),
                Operation::Release(Release { id, writers: 1, readers: 0, commit: None }),
                Operation::Commit(Commit {
                    id,
                    generation: place.generation,
                    bytes: 0,
                    blocks: 0,
                    modified_ns: 0,
                }),
                Operation::Chunks(Chunks { file: id, from: 0, max: 9, writing: false }),
            ];
            for operation in operations {
                let shown = format!("{operation:?}");
                let errno = refused(ns, operation).expect(&shown);
                let expected = [Errno::EACCES, Errno::EPERM, Errno::EBADF, Errno::EOPNOTSUPP];
                assert!(expected.contains(&errno), "{shown}: {errno}");
            }
        }
        // What a daemon asks for its callers, on a file that this caller has open.
        for (mode, make) in [(READ, false), (WRITE, false), (WRITE, true)] {
            let open = OpenChunk { file: of_shared, index: 1, mode, make };
            assert_eq!(refused(ns, Operation::OpenChunk(open)), Some(Errno::EPERM));
        }
        let append = Append { file: of_shared, bytes: 1 };
        assert_eq!(refused(ns, Operation::Append(append)), Some(Errno::EPERM));
        let list = Chunks { file: closed.attributes().id, from: 0, max: 9, writing: false };
        assert_eq!(refused(ns, Operation::Chunks(list)), Some(Errno::EACCES), "nothing led there");
        // By a handle for reading.
        let tries: [(&str, std::result::Result<(), Errno>); 6] = [
            ("write", file.write_at(b"mine", 0).map(drop)),
            ("make a chunk", file.write_at(b"mine", 9 * MIB).map(drop)),
            ("append", file.append(b"mine").map(drop)),
            ("cut", file.set_length(0)),
            ("make longer", file.set_length(i64::MAX as u64)),
            ("allocate", file.allocate(0, 0, 5 * MIB)),
        ];
        for (what, tried) in tries {
            assert!(matches!(tried, Err(Errno::EBADF | Errno::ESTALE)), "{what}: {tried:?}");
        }
        let descriptor = file.descriptor();
        assert!(matches!(descriptor, Ok(None) | Err(_)), "no descriptor shows a file of several objects");
        let mut got = [0; 6];
        assert_eq!(file.read_at(&mut got, 2 * MIB), Ok(6));
        assert_eq!(&got, b"theirs");
    });
    for file in [&shared, &closed] {
        let found = ns.attributes(None, file.attributes().id).unwrap();
        assert_eq!((found.bytes, found.chunks.unwrap().count), (2 * MIB + 6, 3));
    }
}

#[test]
fn the_largest_file_is_read_to_its_end_and_goes_no_further() {
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    let file = filled(&ns, "f", 0o644);
    let most = i64::MAX as u64;
    assert_eq!(file.set_length(most + 1), Err(Errno::EFBIG));
    file.set_length(most).unwrap();
    assert_eq!(ns.stat(None, b"/f", true).unwrap().bytes, most);
    let mut got = [7; 100];
    for at in [most - 200, most - 100, most / MIB * MIB - 50] {
        assert_eq!(file.read_at(&mut got, at), Ok(100), "at {at}");
        assert_eq!(got, [0; 100]);
    }
    assert_eq!(file.write_at(b"x", most), Err(Errno::EFBIG));
    assert_eq!(file.append(b"x"), Err(Errno::EFBIG));
    assert_eq!(file.allocate(0, most - 5, 9), Err(Errno::EFBIG));
    assert_eq!((file.seek_data(3 * MIB), file.seek_hole(3 * MIB)), (Err(Errno::ENXIO), Ok(3 * MIB)));
    file.set_length(6).unwrap();
    assert_eq!(file.read_at(&mut got, 0), Ok(6));
    let found = ns.stat(None, b"/f", true).unwrap();
    assert_eq!((found.bytes, found.chunks.unwrap().count), (6, 1));
}

/// Sets a quota of the user, and waits until what there is was added up.
fn set_quota(ns: &Namespace, bytes: u64, files: u64) {
    let quota = Quota { user: Some(USER), path: String::new(), bytes: Some(bytes), files: Some(files) };
    ns.set_quota(&quota).unwrap();
    eventually("the files are added up", || {
        let told = ns.quotas().unwrap();
        told.quotas.iter().any(|quota| quota.counted && quota.files_max == files)
    });
}

#[test]
fn what_a_quota_refuses_leaves_no_empty_chunks_and_chunks_are_inodes_of_their_user() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    let count = |text: &str| ns.stat(None, text.as_bytes(), true).unwrap().chunks.unwrap().count;
    set_quota(&ns, 256 << 10, 0);
    as_user(&cluster, |ns| {
        let file = ns.open_inode(None, make(ns, "full", 0o600), WRITE).unwrap();
        let room = (256 << 10) - 100;
        assert_eq!(file.write_at(&noise(room, 1), 0), Ok(room));
        // In 100 bytes there is room for none of these, wherever they are written.
        for at in 1..40 {
            assert_eq!(file.write_at(&noise(4096, 1), at * MIB), Err(Errno::EDQUOT));
        }
        assert_eq!(file.allocate(0, 50 * MIB, 4096), Err(Errno::EDQUOT));
        assert_eq!(file.allocate(1, 60 * MIB, 4096), Err(Errno::EOPNOTSUPP));
        // What is there may be written again.
        assert_eq!(file.write_at(&noise(room, 2), 0), Ok(room));
        file.close().unwrap();
    });
    assert_eq!(count("/full"), 1);
    set_quota(&ns, 0, 6);
    as_user(&cluster, |ns| {
        // The file before, with its chunk, and this one.
        let file = ns.open_inode(None, make(ns, "many", 0o600), WRITE).unwrap();
        let mut made = 0;
        while made < 40 && file.write_at(b"x", made * MIB).is_ok() {
            made += 1;
        }
        // Near a walk, what was just made may count twice for a while.
        assert!((1..=3).contains(&made), "{made} chunks");
        assert_eq!(file.write_at(b"x", 99 * MIB), Err(Errno::EDQUOT));
        // Refused before it has a range, which would stay as zeros.
        file.flush().unwrap();
        let bytes = ns.stat(None, b"/many", true).unwrap().bytes;
        assert_eq!(file.append(&noise(2 << 20, 3)), Err(Errno::EDQUOT));
        assert_eq!(ns.stat(None, b"/many", true).unwrap().bytes, bytes);
        file.close().unwrap();
    });
    assert!(count("/many") <= 3);
    eventually("the chunks are counted", || {
        let told = ns.quotas().unwrap();
        told.quotas.iter().any(|quota| quota.files == 3 + count("/many"))
    });
}

/// A user's open files count together, whatever connections they were opened by.
#[test]
fn a_user_has_so_many_open_files_at_a_node_and_others_do_not_notice() {
    if !is_root() {
        return;
    }
    const MOST: usize = 65_536;
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    let id = make(&ns, "f", 0o666);
    let open = |ns: &Namespace, count: usize| -> Vec<Option<Errno>> {
        let mut refusals = Vec::new();
        while refusals.len() < count {
            let part = (count - refusals.len()).min(1000);
            let asks = vec![Operation::Open(Open { id, mode: READ }); part];
            refusals.extend(ns.ask_many(None, asks).into_iter().map(|answered| match answered {
                Ok(answered) if answered.handle != 0 => None,
                Ok(answered) => panic!("{answered:?}"),
                Err(errno) => Some(errno),
            }));
        }
        refusals
    };
    as_user(&cluster, |first| {
        assert_eq!(first.stat(None, b"/f", true).unwrap().id, id);
        assert!(open(first, 60_000).iter().all(Option::is_none));
        let second = cluster.client(0);
        assert_eq!(second.stat(None, b"/f", true).unwrap().id, id);
        let refusals = open(&second, MOST - 60_000 + 100);
        assert_eq!(refusals.iter().filter(|refusal| refusal.is_none()).count(), MOST - 60_000);
        assert_eq!(refusals.last(), Some(&Some(Errno::EMFILE)));
        assert_eq!(first.open(None, b"/f", READ).err(), Some(Errno::EMFILE));
        // Others do not notice.
        assert!(open(&ns, 100).iter().all(Option::is_none));
        cluster.cut(second);
        eventually("what a connection had open ends with it", || first.open(None, b"/f", READ).is_ok());
    });
}

#[test]
fn a_file_of_many_chunks_leaves_nothing_behind() {
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    let file = ns.open_inode(None, make(&ns, "many", 0o644), WRITE).unwrap();
    // More than a partition buries with the events of the removal.
    (0..1500).for_each(|at| file.write_all_at(b"x", at * MIB).unwrap());
    file.close().unwrap();
    assert_eq!(cluster.objects(0), 1500);
    ns.unlink(None, InodeId::ROOT, &name("many")).unwrap();
    eventually("its objects go", || cluster.objects(0) == 0);
}

/// What has no name any more, and is open, takes space.
#[test]
fn files_without_a_name_count_for_their_user() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::alone();
    let ns = cluster.client(0);
    set_quota(&ns, 2 * MIB, 0);
    let data = noise(MIB as usize + 5, 1);
    for in_chunks in [false, true] {
        as_user(&cluster, |ns| {
            let made = |text: &str| match in_chunks {
                true => ns.open_inode(None, make(ns, text, 0o600), WRITE).unwrap(),
                false => ns.open_or_create(None, text.as_bytes(), 0o600, WRITE, false).unwrap(),
            };
            let file = made("held");
            file.write_all_at(&data, 0).unwrap();
            ns.unlink(None, InodeId::ROOT, &name("held")).unwrap();
            // Several times the files are added up anew.
            std::thread::sleep(std::time::Duration::from_secs(4));
            let more = made("more");
            assert_eq!(more.write_all_at(&data, 0), Err(Errno::EDQUOT), "in chunks: {in_chunks}");
            ns.unlink(None, InodeId::ROOT, &name("more")).unwrap();
            file.close().unwrap();
            more.close().unwrap();
        });
        eventually("nothing is left", || ns.quotas().unwrap().quotas.iter().all(|quota| quota.bytes == 0));
    }
}

/// The end of a chunk, as far as the metadata knows it, is no hole where the node is lost that
/// wrote more and told nobody.
#[test]
fn what_a_lost_node_has_told_nobody_is_an_error_and_no_zeros() {
    let mut cluster = Cluster::with(2, &["--namespace-replicas", "2"]);
    let (stays, lost) = (cluster.client(0), cluster.client(1));
    let backed = || stays.map().unwrap().partitions.iter().all(|seat| !seat.backups.is_empty());
    eventually("each partition has a backup", backed);
    let id = make(&stays, "f", 0o644);
    let file = stays.open_inode(None, id, WRITE).unwrap();
    file.write_all_at(&noise(MIB as usize, 1), MIB).unwrap();
    file.close().unwrap();
    let untold = lost.open_inode(None, id, WRITE).unwrap();
    untold.write_all_at(&noise(600_000, 2), 0).unwrap();
    cluster.kill(1);
    let is_over = || {
        let chunks = stays.chunks(None, id).unwrap_or_default();
        chunks.len() == 2 && chunks.iter().all(|chunk| !chunk.place.as_ref().unwrap().writing)
    };
    eventually("the node's opens end", is_over);
    let reads = stays.open(None, b"/f", READ).unwrap();
    let mut got = vec![0; MIB as usize];
    assert!(reads.read_at(&mut got, 0).is_err(), "these bytes are nowhere");
    assert_eq!(reads.read_at(&mut got, MIB), Ok(MIB as usize));
    drop(untold);
    cluster.start(1);
    eventually("the node has them", || reads.read_at(&mut got, 0) == Ok(MIB as usize));
    assert!(got[..600_000] == noise(600_000, 2) && got[600_000..].iter().all(|byte| *byte == 0));
}
