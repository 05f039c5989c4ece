//! Files in chunks on a node that is alone, and what their users keep open.

use super::*;
use crate::handles::Session;
use crate::node::{Admit, Durability, Told};
use crate::per_user::{OfUsers, PerUser};
use std::time::Duration;
use zazen_call::Caller;
use zazen_core::Credentials;
use zazen_namespace::Name;
use zazen_namespace::operation::{CHUNKS_WANTED, Create, Open, SetXattr};
use zazen_namespace::service::Ask;

const MIB: u64 = 1 << 20;

/// A node alone, whose users may have so much.
fn alone(folder: &std::path::Path, of_users: OfUsers) -> Arc<NamespaceNode> {
    let told = Told {
        data: folder.join("data"),
        name: "n0".to_owned(),
        key: None,
        nodes: None,
        format: true,
        replicas: 1,
        partitions: Some(1),
        durability: Durability::Memory,
        verify_always: false,
        repair_after: Duration::from_secs(60),
        admit: Admit::Key,
        trusts_root: false,
        archive: None,
    };
    let mut node = NamespaceNode::start(&told).unwrap();
    Arc::get_mut(&mut node).expect("nobody else has it").of_users = of_users;
    node.form(None).unwrap();
    node
}

/// A program of a user.
struct Program<'a> {
    node: &'a NamespaceNode,
    caller: Caller,
    session: Arc<Session>,
}

impl Program<'_> {
    fn begin(node: &NamespaceNode, uid: u32) -> Program<'_> {
        let credentials = Credentials { uid, gid: uid, groups: Vec::new() };
        let connection = u64::from(uid);
        let caller = Caller { credentials, pid: 1, host: None, connection };
        Program { node, caller, session: node.session(connection) }
    }

    fn ask(&self, operation: Operation) -> (Answer, u64) {
        let asks = vec![Ask { credentials: None, operation }];
        let answered = self.node.ask(&self.caller, &self.session, asks).remove(0);
        (answered.answer, answered.handle)
    }

    /// Makes a file in chunks of a MiB, and opens it.
    fn open(&self, text: &str) -> Arc<Handle> {
        let create =
            Create { mode: 0o600, ..Create::file(InodeId::ROOT, Name::new(text.as_bytes()).unwrap()) };
        let (Answer::Entry(made), _) = self.ask(Operation::Create(create)) else { panic!("no entry") };
        let (id, name) = (made.id, Name::new(CHUNKS_WANTED).unwrap());
        let wish = SetXattr { id, name, value: Some(b"1".to_vec()), create: false, replace: false };
        assert_eq!(self.ask(Operation::SetXattr(wish)).0, Answer::Done);
        let mode = Mode { read: true, write: true, truncate: false };
        let (_, handle) = self.ask(Operation::Open(Open { id, mode }));
        self.session.handle(handle).unwrap()
    }
}

/// Chunks that the metadata counts as open.
fn open_chunks(node: &NamespaceNode, files: &[Arc<Handle>]) -> usize {
    let mut count = 0;
    for file in files {
        let each = &mut |chunks: &[Attributes]| {
            count += chunks.len();
            Ok(ControlFlow::Continue(()))
        };
        node.each_chunk(file.id, 0, true, each).unwrap();
    }
    count
}

#[test]
fn the_open_files_of_a_user_keep_so_many_chunks_open_together_and_others_do_not_notice() {
    let folder = tempfile::tempdir().unwrap();
    let (most, chunks) = (10, 6);
    let node = alone(folder.path(), OfUsers { chunks: PerUser::new(most), ..OfUsers::default() });
    let (one, other) = (Program::begin(&node, 70_001), Program::begin(&node, 70_002));
    let files: Vec<_> = (0..5).map(|at| one.open(&format!("f{at}"))).collect();
    for chunk in 0..chunks {
        for (at, file) in files.iter().enumerate() {
            let data = [at as u8 + 1, chunk as u8];
            assert_eq!(node.write(file, chunk * MIB, &data, 0), Ok(2));
            // One stays with each file, whatever the others have.
            assert!(node.of_users.chunks.count(70_001) <= most + files.len());
        }
    }
    let kept = node.of_users.chunks.count(70_001);
    assert!((files.len()..=most + files.len()).contains(&kept), "{kept} chunks");
    assert_eq!(open_chunks(&node, &files), kept, "what is closed is closed for the metadata");
    let theirs = other.open("theirs");
    (0..chunks).for_each(|chunk| assert_eq!(node.write(&theirs, chunk * MIB, b"x", 0), Ok(1)));
    assert_eq!(node.of_users.chunks.count(70_002), chunks as usize);
    // All can be read and written as before.
    for (at, file) in files.iter().enumerate() {
        for chunk in 0..chunks {
            assert_eq!(node.read(file, chunk * MIB, 2), Ok(vec![at as u8 + 1, chunk as u8]));
        }
    }
    files.iter().for_each(|file| node.sync(file, 0).unwrap());
    node.end_session(&one.session);
    assert_eq!(node.attributes(files[0].id).unwrap().bytes, (chunks - 1) * MIB + 2);
    drop(files);
    assert_eq!(node.of_users.chunks.count(70_001), 0);
    node.stop();
}

#[test]
fn a_look_for_data_asks_few_holders() {
    let folder = tempfile::tempdir().unwrap();
    let node = alone(folder.path(), OfUsers::default());
    let one = Program::begin(&node, 70_001);
    // Several have it open: what each keeps open is written.
    let (each, chunks) = (50, 151);
    let mut files = vec![one.open("holes")];
    let id = files[0].id;
    let open = |program: &Program<'_>, write| {
        let mode = Mode { read: true, write, truncate: false };
        let (_, handle) = program.ask(Operation::Open(Open { id, mode }));
        program.session.handle(handle).unwrap()
    };
    files.extend([(); 2].map(|()| open(&one, true)));
    for chunk in 0..chunks {
        let file = &files[(chunk / each).min(2) as usize];
        assert_eq!(node.write(file, chunk * MIB, b"x", 0), Ok(1));
    }
    for (file, from) in files.iter().zip((0..).step_by(each as usize)) {
        let punch = PUNCH_HOLE | KEEP_SIZE;
        assert_eq!(node.act(file, namespace_fn::ALLOCATE, from * MIB, each * MIB, punch), Ok(0));
    }
    let seek = |file: &Handle, offset, flags| node.act(file, namespace_fn::SEEK, offset, 0, flags);
    // Only their holders know. What would take too long counts as data.
    assert_eq!(seek(&files[0], 0, 0), Ok(SEEKS_MAX as u64 * MIB));
    assert_eq!(seek(&files[0], SEEKS_MAX as u64 * MIB, 0), Ok((chunks - 1) * MIB));
    assert_eq!(seek(&files[0], 5 * MIB + 3, 1), Ok(5 * MIB + 3));
    node.end_session(&one.session);
    drop(files);
    // Nobody writes them: the metadata knows it.
    let again = Program::begin(&node, 70_001);
    let file = open(&again, false);
    assert_eq!(seek(&file, 0, 0), Ok((chunks - 1) * MIB));
    assert_eq!(seek(&file, 7 * MIB + 3, 1), Ok(7 * MIB + 3));
    assert!(node.of_users.chunks.count(70_001) <= 1, "the one with data, at most");
    assert_eq!(node.read(&file, (chunks - 1) * MIB, 9), Ok(b"x".to_vec()));
    node.stop();
}

#[test]
fn a_users_calls_have_so_many_threads_beside_their_own_and_are_done_without() {
    let folder = tempfile::tempdir().unwrap();
    let (most, uid) = (3, 70_001);
    let node = alone(folder.path(), OfUsers { helpers: PerUser::new(most), ..OfUsers::default() });
    let (all, seen) = ((0..40).collect::<Vec<u64>>(), Mutex::new(Vec::new()));
    let look = |at: &u64| {
        assert!(node.of_users.helpers.count(uid) <= most);
        lock(&seen).push(*at);
        Ok(false)
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(|| assert_eq!(node.with_each(uid, &all, look), Ok(false)))));
    });
    assert_eq!(node.of_users.helpers.count(uid), 0);
    let mut seen = std::mem::take(&mut *lock(&seen));
    seen.sort_unstable();
    assert_eq!(seen, all.iter().flat_map(|at| [*at; 4]).collect::<Vec<_>>());
    // Others have theirs, and a user who has none.
    let held: Vec<_> = (0..most).map(|_| node.of_users.helpers.add(uid)).collect();
    assert!(node.of_users.helpers.has_room(uid + 1));
    assert_eq!(
        node.with_each(uid, &all, |at| if *at == 7 { Err(Errno::EFBIG) } else { Ok(true) }),
        Err(Errno::EFBIG)
    );
    drop(held);
    node.stop();
}
