//! A daemon that is killed and started again between two calls of one operation: no change that was
//! made is answered as if nothing had been done, because the kernel would ask for it once more.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zazen_call::{Call, Caller, Reply, Server, ServerLimits, Service};
use zazen_core::{Credentials, Error, ErrorKind, Result};
use zazen_mount::namespace::NamespaceTree;
use zazen_mount::tree::{self, Errno, How, Io, Kind, Lock, Name, Owner, Range, Tree};
use zazen_namespace::operation::{Answer, Entry, Grant, Mode, Operation};
use zazen_namespace::service::{Answered, Answers, Asks, Changes, Done, HandleCall, Hello, namespace_fn};
use zazen_namespace::{Attributes, Epoch, Incarnation, InodeId, NodeNo, Place};
use zazen_namespace_client::Namespace;
use zazen_wire::{Message, service};

const FILE: InodeId = InodeId(77);

/// A daemon that answers each operation and then forgets what is open, `lives` times.
#[derive(Default)]
struct Forgetful(Mutex<Life>);

#[derive(Default)]
struct Life {
    /// How often it will forget what was just opened.
    lives: u32,
    /// What opens by inode are answered, if they are refused.
    refuses: Option<Errno>,
    /// What is open.
    handles: HashSet<u64>,
    next: u64,
    /// How often something was made.
    made: u32,
    /// The bytes of the file, if this node has them.
    local: Option<std::fs::File>,
    /// How often it was told of a close or a sync.
    syncs: u32,
}

fn attributes(kind: Kind) -> Attributes {
    let place = Place { holder: NodeNo(2), generation: 1, writing: true, copies: Vec::new() };
    Attributes { mode: 0o644, place: (kind == Kind::File).then_some(place), ..Attributes::new(FILE, kind) }
}

impl Life {
    fn open(&mut self, created: bool) -> Answered {
        self.next += 1;
        if self.lives > 0 {
            self.lives -= 1;
            self.handles.clear();
        } else {
            self.handles.insert(self.next);
        }
        let grant = Grant { attributes: attributes(Kind::File), created };
        Answered { answer: Answer::Grant(grant), handle: self.next }
    }

    fn ask(&mut self, operation: &Operation) -> Answered {
        let plain = |answer| Answered { answer, handle: 0 };
        match operation {
            Operation::Create(create) if create.open.is_some() => {
                self.made += 1;
                self.open(true)
            }
            // What is made is in another partition, and removed at once.
            Operation::Create(_) | Operation::MakeDirectory(_) | Operation::Link(_) => {
                self.made += 1;
                let entry = Entry { id: FILE, kind: Kind::Fifo, attributes: None };
                plain(Answer::Entry(entry))
            }
            Operation::GetAttributes(_) => plain(Answer::refused(Errno::ESTALE)),
            Operation::Open(_) => match self.refuses {
                Some(errno) => plain(Answer::refused(errno)),
                None => self.open(false),
            },
            Operation::Lock(_) if self.handles.is_empty() => plain(Answer::refused(Errno::EBADF)),
            _ => plain(Answer::Done),
        }
    }
}

impl Service for Forgetful {
    fn id(&self) -> u16 {
        service::NAMESPACE
    }

    fn call(&self, _caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let mut life = self.0.lock().unwrap();
        let payload = match call.function {
            namespace_fn::HELLO => Hello {
                node: NodeNo(1),
                incarnation: Incarnation(1),
                epoch: Epoch(1),
                partition_bits: 0,
                vouches: true,
                squashes_root: false,
            }
            .encode(),
            namespace_fn::ASK => {
                let asks = Asks::decode(call.payload)?.asks;
                let answers = asks.iter().map(|ask| life.ask(&ask.operation)).collect();
                Answers { answers }.encode()
            }
            namespace_fn::WATCH => {
                let (next, all, inodes, entries) = (1, false, Vec::new(), Vec::new());
                Changes { next, all, inodes, entries }.encode()
            }
            namespace_fn::READ..=namespace_fn::DESCRIPTOR => {
                let known = life.handles.contains(&HandleCall::decode(call.payload)?.handle);
                life.syncs += u32::from(call.function == namespace_fn::SYNC);
                if let (namespace_fn::DESCRIPTOR, true, Some(local)) = (call.function, known, &life.local) {
                    let fds = vec![local.try_clone().unwrap().into()];
                    return Ok(Reply { payload: Done::with(0).encode(), fds, ..Reply::default() });
                }
                let done = match call.function {
                    _ if !known => Done::refused(Errno::EBADF),
                    namespace_fn::DESCRIPTOR => Done::refused(Errno::EXDEV),
                    _ => Done::with(0),
                };
                done.encode()
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, "not this daemon")),
        };
        Ok(Reply { payload, ..Reply::default() })
    }

    fn detach(&self, _caller: &Caller) {}
}

/// What `act` gives with a daemon that forgets, and how often something was made.
fn with<T>(
    lives: u32,
    refuses: Option<Errno>,
    act: impl FnOnce(&NamespaceTree, &Forgetful, &Namespace) -> T,
) -> (T, u32) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let daemon = Arc::new(Forgetful::default());
    {
        let mut life = daemon.0.lock().unwrap();
        (life.lives, life.refuses) = (lives, refuses);
    }
    let service: Arc<dyn Service> = Arc::clone(&daemon) as _;
    let server = Server::new(vec![service], None, ServerLimits::default());
    server.listen_unix(&socket).unwrap();
    let namespace = Namespace::local(&socket).unwrap();
    let done = act(&NamespaceTree::new(namespace.clone()).unwrap(), &daemon, &namespace);
    drop(namespace);
    server.drain(Duration::from_secs(5));
    let made = daemon.0.lock().unwrap().made;
    (done, made)
}

fn root() -> Credentials {
    Credentials { uid: 0, gid: 0, groups: Vec::new() }
}

fn create(tree: &NamespaceTree) -> std::result::Result<Io, Errno> {
    let how = How { read: true, write: true, exclusive: true, ..How::default() };
    let name = Name::new(b"new").unwrap();
    tree.create(&root(), InodeId::ROOT.0, &name, 0o644, how).map(|(_, opened)| opened.io)
}

#[test]
fn a_file_that_was_made_is_open_although_the_daemon_was_restarted_meanwhile() {
    let (opened, made) = with(1, None, |tree, _, _| create(tree));
    assert!(matches!(opened, Ok(Io::Direct)), "{:?}", opened.err());
    assert_eq!(made, 1);
}

/// What makes something by a tree.
type Makes<'a> = &'a dyn Fn(&NamespaceTree) -> std::result::Result<(), Errno>;

#[test]
fn no_change_that_was_made_is_answered_with_estale() {
    for refuses in [Errno::ESTALE, Errno::EACCES, Errno::ENOENT] {
        let (opened, made) = with(1, Some(refuses), |tree, _, _| create(tree));
        assert_eq!((opened.err(), made), (Some(Errno::EIO), 1), "{refuses:?}");
    }
    // Forgotten twice.
    assert_eq!(with(2, None, |tree, _, _| create(tree)).0.err(), Some(Errno::EIO));
    let name = Name::new(b"new").unwrap();
    let above = InodeId::ROOT.0;
    let makes: [Makes<'_>; 4] = [
        &|tree| tree.make_directory(&root(), above, &name, 0o755).map(drop),
        &|tree| tree.make_node(&root(), above, &name, Kind::Fifo, 0o644, 0).map(drop),
        &|tree| tree.make_link(&root(), above, &name, b"target").map(drop),
        &|tree| tree.link(&root(), FILE.0, above, &name).map(drop),
    ];
    for (at, make) in makes.iter().enumerate() {
        assert_eq!(with(0, None, |tree, _, _| make(tree)), (Err(Errno::EIO), 1), "{at}");
    }
}

#[test]
fn locks_after_a_restart_are_the_new_daemons_or_lost_and_never_a_bad_descriptor() {
    let whole = Range { start: 0, end: u64::MAX };
    let owner = Owner { number: 5, pid: 9, whole: true };
    let forget = |daemon: &Forgetful| daemon.0.lock().unwrap().handles.clear();
    let how = How { read: true, write: true, ..How::default() };
    with(0, None, |tree, daemon, _| {
        let file = tree.open(&root(), FILE.0, how).unwrap().handle;
        forget(daemon);
        assert_eq!(tree.test_lock(file, owner, whole, Lock::Exclusive), Ok(None));
        forget(daemon);
        assert_eq!(tree.lock(file, owner, whole, Lock::Exclusive), Ok(()));
        forget(daemon);
        // Others may have had the lock meanwhile.
        assert_eq!(tree.lock(file, owner, whole, Lock::Exclusive), Err(Errno::EIO));
        assert_eq!(tree.read(file, 0, &mut [0; 4]), Err(Errno::EIO));
        assert_eq!(tree.lock(file, owner, whole, Lock::Unlock), Ok(()));
        assert_eq!(tree.read(file, 0, &mut [0; 4]), Ok(0));
        tree.release(file);
    });
}

#[test]
fn a_close_by_which_nothing_is_to_be_told_asks_the_daemon_nothing() {
    with(0, None, |tree, daemon, _| {
        let bytes = tempfile::tempfile().unwrap();
        daemon.0.lock().unwrap().local = Some(bytes.try_clone().unwrap());
        let syncs = || daemon.0.lock().unwrap().syncs;
        let name = Name::new(b"new").unwrap();
        let how = How { read: true, write: true, exclusive: true, ..How::default() };
        let (_, opened) = tree.create(&root(), InodeId::ROOT.0, &name, 0o644, how).unwrap();
        assert!(matches!(opened.io, Io::Local(_)));
        let file = opened.handle;
        assert_eq!((tree.flush(file), syncs()), (Ok(()), 0), "nothing was written");
        // As the kernel writes it.
        bytes.set_len(10).unwrap();
        assert_eq!((tree.flush(file), syncs()), (Ok(()), 1));
        assert_eq!((tree.flush(file), syncs()), (Ok(()), 1), "it was told");
        // A cut loses what the metadata knows, even if the file comes to look as before.
        let cut = tree::Changes { bytes: Some(10), ..tree::Changes::default() };
        assert_eq!(tree.set(&root(), FILE.0, Some(file), &cut).err(), Some(Errno::ESTALE), "no attributes");
        assert_eq!((tree.flush(file), syncs()), (Ok(()), 2));
        // What was not told is told with the next close.
        bytes.set_len(20).unwrap();
        daemon.0.lock().unwrap().refuses = Some(Errno::ENOENT);
        daemon.0.lock().unwrap().handles.clear();
        assert_eq!(tree.flush(file), Err(Errno::EIO));
        daemon.0.lock().unwrap().refuses = None;
        let before = syncs();
        assert_eq!(tree.flush(file), Ok(()));
        assert!(syncs() > before);
        tree.release(file);
    });
}

#[test]
fn a_file_by_which_nothing_was_written_closes_although_the_daemon_has_forgotten_it() {
    with(0, None, |_, daemon, namespace| {
        let mode = Mode { read: true, write: true, truncate: false };
        let open = || namespace.open_inode(None, FILE, mode.clone()).unwrap();
        let (read, written) = (open(), open());
        _ = written.write_at(b"x", 0);
        daemon.0.lock().unwrap().handles.clear();
        assert_eq!(read.close(), Ok(()));
        assert_eq!(written.close(), Err(Errno::ESTALE));
    });
}
