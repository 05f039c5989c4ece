//! The decoders of the namespace: messages of programs and of other nodes, a node's files, and the
//! records and snapshots of partitions.

use crate::targets::{check, pick, take};
use std::collections::BTreeMap;
use zazen_core::Credentials;
use zazen_namespace::map::{Genesis, Map};
use zazen_namespace::node::{Action, Config, Envelope, Event, File, Files, Identity, Node, Snapshot, Start};
use zazen_namespace::operation::{
    Answer, Append, Chunks, Commit, Create, Layout, Lock, LockWanted, MakeDirectory, Mode, Nameless,
    OpenChunk, Operation, ReadDirectory, Release, Rename, Request, Response, SetAttributes,
};
use zazen_namespace::partition::{self, Partition, PeerMessage, Restore, Settings};
use zazen_namespace::service::{
    Answered, Answers, Ask, Asks, Changes, Done, HandleCall, Hello, Introduced, Introduction, MapView,
    Noticed, ObjectCall, Proof, Requests, Responses, Watch, Watched,
};
use zazen_namespace::{Epoch, Incarnation, InodeId, Name, NodeNo, PartitionNo};
use zazen_wire::Message;
use zazen_wire::checksum::frame_checksum;

const CHECKS: &[fn(&[u8])] = &[
    check::<Request>,
    check::<Response>,
    check::<Envelope>,
    check::<PeerMessage>,
    check::<Map>,
    check::<Snapshot>,
    check::<Identity>,
    check::<Asks>,
    check::<Answers>,
    check::<Requests>,
    check::<Responses>,
    check::<HandleCall>,
    check::<Done>,
    check::<Watch>,
    check::<Changes>,
    check::<Hello>,
    check::<MapView>,
    check::<ObjectCall>,
    check::<Noticed>,
    check::<Watched>,
    check::<Introduction>,
    check::<Introduced>,
    check::<Proof>,
];

/// What programs and other daemons send. A decoded request is also brought to a node.
pub(crate) fn messages(input: &[u8]) {
    pick(CHECKS, input);
}

/// The files of a node's folder, one of which is the input: the node starts, or says what is wrong.
pub(crate) fn files(mut input: &[u8]) {
    let [which, reseal] = take(&mut input);
    let mut run = run();
    let names: Vec<File> = run.files.keys().copied().collect();
    let file = names[usize::from(which) % names.len()];
    let mut bytes = input.to_vec();
    if reseal & 1 == 1 && !matches!(file, File::Segment(_)) && bytes.len() > 8 {
        let end = bytes.len() - 8;
        let sum = frame_checksum(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&sum);
    }
    run.files.insert(file, bytes);
    let files = Files { files: run.files };
    if let Ok(mut node) = Node::<Partition>::open(Config::new("a:1"), &files, Start::Open { key: 9 }, 5) {
        node.flush(&mut Vec::new());
        node.step(6, 6, Event::Timer);
        node.flush(&mut Vec::new());
    }
}

/// A record or a piece of a snapshot, for a partition with some tables; then it goes on.
pub(crate) fn records(mut input: &[u8]) {
    let [kind] = take(&mut input);
    let settings = settings();
    let mut partition = Partition::new(PartitionNo(0), settings.clone());
    match kind % 3 {
        0 => drop(partition.apply(input)),
        1 => {
            let mut restore = Restore::new(PartitionNo(0), settings);
            if restore.piece(input).is_ok()
                && let Ok(restored) = restore.finish()
            {
                partition = restored;
            }
        }
        _ => {
            if let Ok(message) = PeerMessage::decode(input) {
                partition.step(1, partition::Event::Peer { from: PartitionNo(1), message }, &mut Vec::new());
            }
        }
    }
    let mut actions = Vec::new();
    partition.step(2, partition::Event::Resumed { epoch: Epoch(2) }, &mut actions);
    partition.step(3, partition::Event::Tick, &mut actions);
    partition.snapshot().for_each(drop);
}

fn settings() -> Settings {
    Settings { partitions: 4, root_mode: 0o777, split_entries: 4, buckets_max: 4, ..Settings::default() }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

fn request(number: u64, operation: Operation) -> Request {
    Request {
        client: 7,
        number,
        oldest: 1,
        node: NodeNo(1),
        incarnation: Incarnation(1),
        epoch: Epoch(1),
        credentials: Credentials { uid: 0, gid: 0, groups: vec![4] },
        operation,
        place: None,
        knows_chunks: Some(true),
    }
}

fn operations() -> Vec<Operation> {
    let directory = InodeId::ROOT;
    let create = |of: &str| Operation::Create(Create::file(directory, name(of)));
    let make = MakeDirectory { directory, name: name("d"), mode: 0o755 };
    let rename = Rename {
        directory,
        name: name("a"),
        new_directory: directory,
        new_name: name("b"),
        no_replace: false,
        exchange: false,
    };
    let lock =
        Lock { id: directory, owner: 1, pid: 2, whole: true, start: 0, end: 9, wanted: LockWanted::Shared };
    let list = ReadDirectory { directory, cookie: 0, bytes_max: 9999, attributes: true };
    let mut all = operations_of_chunks();
    all.extend([create("a"), Operation::Rename(rename), Operation::Lock(lock)]);
    all.push(Operation::ReadDirectory(list));
    all.push(Operation::MakeDirectory(make));
    all.extend(["c", "e", "f", "g"].map(create));
    all
}

/// Those on the first file of the partition, whose bytes are in chunks.
fn operations_of_chunks() -> Vec<Operation> {
    let file = InodeId::new(PartitionNo(0), 2);
    let mode = Mode { read: false, write: true, truncate: false };
    let create = Create {
        open: Some(mode.clone()),
        copies: 2,
        chunk_mib: Some(1),
        ..Create::file(InodeId::ROOT, name("chunks"))
    };
    let chunk = |index| Operation::OpenChunk(OpenChunk { file, index, mode: mode.clone(), make: true });
    let of_first = InodeId::new(PartitionNo(0), 3);
    let commit = Commit { id: of_first, generation: (1 << 32) | 1, bytes: 9, blocks: 8, modified_ns: 7 };
    let release = Release { id: of_first, writers: 1, readers: 0, commit: Some(commit) };
    let cut = SetAttributes { bytes: Some(5), modified_ns: Some(3), ..SetAttributes::of(file) };
    vec![
        Operation::Create(create),
        chunk(1),
        chunk(0),
        Operation::Chunks(Chunks { file, from: 0, max: 9, writing: true }),
        Operation::Append(Append { file, bytes: 77 }),
        Operation::Nameless(Nameless { from: file, max: 9 }),
        Operation::Release(release),
        Operation::SetAttributes(cut),
    ]
}

/// What a short run of a node leaves: its files, and all that it sent.
struct Run {
    files: BTreeMap<File, Vec<u8>>,
    sent: Vec<Vec<u8>>,
    responses: Vec<Response>,
    map: Map,
}

fn run() -> Run {
    let genesis = Genesis {
        namespace: 77,
        settings: settings(),
        replicas: 2,
        synchronous: 0,
        addresses: vec!["a:1".into(), "b:1".into()],
        stewards: 1,
    };
    let start = Start::Format { key: 5, genesis };
    let mut node: Node = Node::open(Config::new("a:1"), &Files::default(), start, 1).expect("formats");
    let (mut files, mut sent, mut responses) = (BTreeMap::<File, Vec<u8>>::new(), Vec::new(), Vec::new());
    let mut asks = operations().into_iter().enumerate();
    for round in 0..200u64 {
        let now_ns = 1 + round * 50_000_000;
        let mut actions = Vec::new();
        node.flush(&mut actions);
        for action in actions {
            let token = match action {
                Action::Append { segment, token, bytes } => {
                    files.entry(File::Segment(segment)).or_default().extend(bytes);
                    token
                }
                Action::Put { file, token, bytes } => {
                    files.insert(file, bytes);
                    token
                }
                Action::Sync { token, .. } => token,
                Action::Send { bytes, .. } => {
                    sent.push(bytes);
                    continue;
                }
                Action::Reply { response, .. } => {
                    responses.push(response);
                    continue;
                }
                _ => continue,
            };
            node.step(now_ns, 1, Event::Done { token, ok: true });
        }
        node.step(now_ns, 1, Event::Timer);
        if node.status().has_lease
            && let Some((at, operation)) = asks.next()
        {
            let request = request(at as u64 + 1, operation);
            node.step(now_ns, 1, Event::Request { token: at as u64 + 1, request });
        }
    }
    Run { files, sent, responses, map: node.map().clone() }
}

fn with(pick: usize, bytes: Vec<u8>) -> Vec<u8> {
    [&[pick as u8], &bytes[..]].concat()
}

/// Messages of all kinds, of a node's own making.
pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    let run = run();
    let requests: Vec<Request> = (1..).zip(operations()).map(|(at, of)| request(at, of)).collect();
    let answers: Vec<Answer> = run.responses.iter().map(|response| response.answer.clone()).collect();
    let ask = |operation| Ask { credentials: None, operation };
    let layout = Layout { directory: InodeId::ROOT, buckets: vec![InodeId(9), InodeId(10)] };
    let split = Response { number: 3, answer: Answer::Split(layout) };
    let answered = |answer: &Answer| Answered { answer: answer.clone(), handle: 3 };
    let mut seeds: Vec<Vec<u8>> = requests.iter().map(|one| with(0, one.encode())).collect();
    seeds.extend(run.responses.iter().chain([&split]).map(|one| with(1, one.encode())));
    seeds.extend(run.sent.iter().take(40).map(|bytes| with(2, bytes.clone())));
    seeds.extend(peer_messages().into_iter().map(|one| with(3, one.encode())));
    seeds.push(with(4, run.map.encode()));
    let plain = |bytes: &[u8]| bytes.get(24..bytes.len().saturating_sub(8)).unwrap_or_default().to_vec();
    for (file, bytes) in &run.files {
        match file {
            File::Snapshot(_) => seeds.push(with(5, plain(bytes))),
            File::Identity => seeds.push(with(6, plain(bytes))),
            _ => {}
        }
    }
    seeds.push(with(7, Asks { asks: operations().into_iter().map(ask).collect() }.encode()));
    seeds.push(with(8, Answers { answers: answers.iter().map(answered).collect() }.encode()));
    seeds.push(with(9, Requests { requests }.encode()));
    seeds.push(with(10, Responses { responses: run.responses }.encode()));
    seeds.push(with(11, HandleCall { handle: 1, offset: 2, bytes: 3, flags: 4, call: 5, again: 6 }.encode()));
    seeds.push(with(12, Done::with(3).encode()));
    seeds.push(with(
        14,
        Changes { next: 1, all: false, inodes: vec![InodeId(3)], entries: Vec::new() }.encode(),
    ));
    seeds.push(vec![16; 120]);
    let noticed =
        Noticed { by: NodeNo(1), passes_on: true, inodes: vec![InodeId(3), InodeId(4)], entries: Vec::new() };
    seeds.push(with(18, noticed.encode()));
    seeds.push(with(19, Watched { watched: true }.encode()));
    seeds.push(with(20, Introduction { nonce: [1; 32], key: [2; 32] }.encode()));
    seeds.push(with(21, Introduced { nonce: [1; 32], key: [2; 32], signature: [3; 64] }.encode()));
    seeds.push(with(22, Proof { signature: [3; 64] }.encode()));
    seeds
}

/// Each file of a folder.
pub(crate) fn file_seeds() -> Vec<Vec<u8>> {
    let files = run().files.into_values().enumerate();
    files.map(|(at, bytes)| [&[at as u8, 1], &bytes[..]].concat()).collect()
}

/// What a partition that drives transactions logs, and what it sends.
fn partition_run() -> (Vec<Vec<u8>>, Vec<PeerMessage>, Vec<Vec<u8>>) {
    let mut partition = Partition::new(PartitionNo(0), settings());
    let (mut records, mut messages) = (Vec::new(), Vec::new());
    let mut actions = Vec::new();
    for (number, operation) in (1..).zip(operations()) {
        let event = partition::Event::Request { token: number, request: request(number, operation) };
        partition.step(1, event, &mut actions);
    }
    for number in 100..140 {
        let name = name(&format!("d{number}"));
        let make = Operation::MakeDirectory(MakeDirectory { directory: InodeId::ROOT, name, mode: 0o755 });
        let event = partition::Event::Request { token: number, request: request(number, make) };
        partition.step(1, event, &mut actions);
    }
    for action in actions {
        match action {
            partition::Action::Log(record) => records.push(record),
            partition::Action::Send { message, .. } => messages.push(message),
            _ => {}
        }
    }
    (records, messages, partition.snapshot().collect())
}

fn peer_messages() -> Vec<PeerMessage> {
    partition_run().1
}

/// Records, pieces and messages, behind a byte that says which.
pub(crate) fn record_seeds() -> Vec<Vec<u8>> {
    let (records, messages, pieces) = partition_run();
    let records = records.into_iter().map(|bytes| with(0, bytes));
    let pieces = pieces.into_iter().map(|bytes| with(1, bytes));
    let messages = messages.into_iter().map(|message| with(2, message.encode()));
    let seeds: Vec<Vec<u8>> = records.chain(pieces).chain(messages).collect();
    assert!(seeds.len() > 20, "{} seeds", seeds.len());
    seeds
}
