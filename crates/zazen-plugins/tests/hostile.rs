//! Clients that lie, against a plug-in in this process: whatever they send, the host answers or
//! refuses, nothing is left behind, and the next client is served. The plug-in is compiled by the
//! machine's C compiler.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use zazen_call::{Carrier, Connection, Server, ServerLimits};
use zazen_plugins::{HostOptions, PluginConfig, Plugins};
use zazen_wire::Message;
use zazen_wire::plugins::{About, AnswerHead, CallHead, OpenPlugin, PluginOpened, plugins_fn, status};
use zazen_wire::service;

const HEADER: &str = "\
#include <stdint.h>
#include <stddef.h>
struct zazen_caller;
void victim_detach(const struct zazen_caller *caller, int32_t reason);
/* START-ZAZEN-SCANNER ID=9 INIT=NULL FINI=NULL DETACH=victim_detach */
int victim_add(int a /* in:obj */, int b /* in:obj */);
int victim_echo(const void *from /* in:arr:size=+2:zerocopy */, void *to /* out:arr:size=+1:zerocopy */,
                size_t bytes /* in:obj */);
int victim_text(const char *text /* in:str:max=100 */, char *copy /* out:str:max=100 */);
/* handle=thing */
int victim_open(int value /* in:obj */);
int victim_close(int thing /* in:obj:handle=thing:close */);
int victim_gone(int reason /* in:obj */);
";
const SOURCE: &str = "\
#include \"victim.h\"
#include <string.h>
int victim_add(int a, int b) { return a + b; }
int victim_echo(const void *from, void *to, size_t bytes) { memcpy(to, from, bytes); return 0; }
int victim_text(const char *text, char *copy) { strcpy(copy, text); return 0; }
int victim_open(int value) { return value; }
int victim_close(int thing) { return thing; }
static int gone[4];
void victim_detach(const struct zazen_caller *caller, int32_t reason) { (void)caller; gone[reason & 3]++; }
int victim_gone(int reason) { return gone[reason & 3]; }
";

struct Site {
    folder: tempfile::TempDir,
    plugins: Option<Arc<Plugins>>,
    server: Option<Server>,
    open: OpenPlugin,
}

impl Site {
    fn new() -> Site {
        let folder = tempfile::tempdir().unwrap();
        let object = build(folder.path());
        let options = HostOptions {
            exports: Vec::new(),
            mounted: Vec::new(),
            socket: folder.path().join("s"),
            worker: "/nowhere".into(),
            connections_max: 64,
            start_timeout: Duration::from_secs(20),
            drain: Duration::from_secs(5),
            recording: None,
        };
        let config = PluginConfig { isolate: false, ..PluginConfig::new(object) };
        let plugins = Plugins::start(&[config], &options).unwrap();
        let server = Server::new(vec![plugins.clone()], None, ServerLimits::default());
        server.listen_unix(&options.socket).unwrap();
        let schema = std::fs::read_to_string(folder.path().join("victim_schema.json")).unwrap();
        let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
        let schema_hash = u64::from_str_radix(schema["schema_hash"].as_str().unwrap(), 16).unwrap();
        // No opaque types: the layout adds nothing.
        let open = OpenPlugin {
            plugin: 9,
            name: "victim".into(),
            schema_hash,
            layout_hash: schema_hash,
            rank: u32::MAX,
            ranks: u32::MAX,
            stay: false,
        };
        Site { folder, plugins: Some(plugins), server: Some(server), open }
    }

    fn connect(&self, carrier: Carrier) -> Connection {
        let mut connection =
            Connection::local(&self.folder.path().join("s"), carrier, Duration::from_secs(10)).unwrap();
        connection.set_timeout(Some(Duration::from_secs(20)));
        connection
    }

    fn opened(&self, carrier: Carrier) -> Connection {
        let mut connection = self.connect(carrier);
        let reply = connection.call(service::PLUGINS, plugins_fn::OPEN, &self.open.encode(), &[]).unwrap();
        let opened = PluginOpened::decode(&reply.payload).unwrap();
        assert_eq!((opened.status, opened.elsewhere.as_str()), (0, ""));
        connection
    }

    fn is_well(&self) {
        assert_eq!(self.asked(0, [2, 3]), 5);
    }

    /// What a function says to a new client.
    fn asked(&self, function: u32, arguments: [i32; 2]) -> i32 {
        let mut connection = self.opened(Carrier::Unix);
        let head = CallHead { plugin: 9, function, reply_bytes_max: 64, ..CallHead::default() };
        let mut payload = Vec::new();
        head.put(std::iter::empty(), &mut payload);
        payload.extend(arguments.iter().flat_map(|argument| argument.to_le_bytes()));
        let reply = connection.call(service::PLUGINS, plugins_fn::CALL, &payload, &[]).unwrap();
        let (head, _, at) = AnswerHead::take(&reply.payload).unwrap();
        assert_eq!(head.status, 0);
        i32::from_le_bytes(reply.payload[at..at + 4].try_into().unwrap())
    }

    fn wait_until_nobody_is_left(&self) {
        let plugins = self.plugins.as_ref().unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let report = &plugins.reports()[0];
            if (report.clients, report.handles, report.running) == (0, 0, 0) {
                return;
            }
            assert!(std::time::Instant::now() < until, "left behind: {report:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.plugins.as_ref().unwrap().begin_stop();
        drop(self.server.take());
        self.plugins.take().unwrap().stop();
    }
}

fn build(folder: &Path) -> PathBuf {
    std::fs::write(folder.join("victim.h"), HEADER).unwrap();
    std::fs::write(folder.join("victim.c"), SOURCE).unwrap();
    for file in zazen_stubs::generate("victim.h", HEADER).unwrap().files {
        std::fs::write(folder.join(file.name), file.text).unwrap();
    }
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/plugin/include");
    let built = Command::new("cc")
        .args([
            "-shared",
            "-fPIC",
            "-I",
            include,
            "-I",
            ".",
            "victim.c",
            "victim_dispatch.c",
            "-o",
            "victim.so",
        ])
        .current_dir(folder)
        .status();
    assert!(built.unwrap().success());
    folder.join("victim.so")
}

/// A call as a liar makes it: nearly right.
#[derive(Clone, Debug)]
struct Lie {
    function: u32,
    in_sizes: Vec<u64>,
    out_sizes: Vec<u64>,
    counts: Option<(u32, u32)>,
    reply_bytes_max: u64,
    message: Vec<u8>,
    bulk: usize,
    room: usize,
    cut: Option<usize>,
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..200u64,
        1 => Just(u64::MAX),
        1 => Just(1 << 40),
        1 => Just(1 << 63),
        1 => 0..200_000u64,
    ]
}

/// A right call of one of the functions.
fn honest(function: u32, bytes: u64) -> Lie {
    let segments = if function == 1 { vec![bytes] } else { Vec::new() };
    let room = if function == 1 { bytes as usize } else { 0 };
    Lie {
        function,
        in_sizes: segments.clone(),
        out_sizes: segments,
        counts: None,
        reply_bytes_max: 128,
        message: bytes.to_le_bytes().to_vec(),
        bulk: room,
        room,
        cut: None,
    }
}

/// What is wrong with a call.
#[derive(Clone, Debug)]
enum Wrong {
    In(usize, u64),
    Out(usize, u64),
    Counts(u32, u32),
    Function(u32),
    ReplyMax(u64),
    Message(usize, u8),
    Longer(Vec<u8>),
    Bulk(usize),
    Room(usize),
    Cut(usize),
}

impl Wrong {
    fn spoil(self, lie: &mut Lie) {
        let put = |sizes: &mut Vec<u64>, at: usize, bytes: u64| match sizes.get_mut(at) {
            Some(place) => *place = bytes,
            None => sizes.push(bytes),
        };
        match self {
            Wrong::In(at, bytes) => put(&mut lie.in_sizes, at, bytes),
            Wrong::Out(at, bytes) => put(&mut lie.out_sizes, at, bytes),
            Wrong::Counts(input, output) => lie.counts = Some((input, output)),
            Wrong::Function(function) => lie.function = function,
            Wrong::ReplyMax(bytes) => lie.reply_bytes_max = bytes,
            Wrong::Message(at, byte) => {
                if let Some(place) = lie.message.get_mut(at) {
                    *place = byte;
                }
            }
            Wrong::Longer(bytes) => lie.message.extend(bytes),
            Wrong::Bulk(bytes) => lie.bulk = bytes,
            Wrong::Room(bytes) => lie.room = bytes,
            Wrong::Cut(bytes) => lie.cut = Some(bytes),
        }
    }
}

fn wrong() -> impl Strategy<Value = Wrong> {
    prop_oneof![
        (0..3usize, size()).prop_map(|(at, bytes)| Wrong::In(at, bytes)),
        (0..3usize, size()).prop_map(|(at, bytes)| Wrong::Out(at, bytes)),
        (0..6u32, 0..6u32).prop_map(|(input, output)| Wrong::Counts(input, output)),
        Just(Wrong::Counts(u32::MAX, 1)),
        Just(Wrong::Counts(4096, 4096)),
        (0..7u32).prop_map(Wrong::Function),
        size().prop_map(Wrong::ReplyMax),
        (0..8usize, any::<u8>()).prop_map(|(at, byte)| Wrong::Message(at, byte)),
        prop::collection::vec(any::<u8>(), 0..60).prop_map(Wrong::Longer),
        (0..300usize).prop_map(Wrong::Bulk),
        (0..300usize).prop_map(Wrong::Room),
        (0..100usize).prop_map(Wrong::Cut),
    ]
}

fn lie() -> impl Strategy<Value = Lie> {
    let wrongs = prop::collection::vec(wrong(), 0..4);
    (0..5u32, 0..300u64, wrongs).prop_map(|(function, bytes, wrongs)| {
        let mut lie = honest(function, bytes);
        wrongs.into_iter().for_each(|wrong| wrong.spoil(&mut lie));
        lie
    })
}

fn tell(connection: &mut Connection, lie: &Lie) -> Option<i32> {
    let (in_count, out_count) = lie.counts.unwrap_or((lie.in_sizes.len() as u32, lie.out_sizes.len() as u32));
    let head = CallHead {
        plugin: 9,
        function: lie.function,
        in_count,
        out_count,
        reply_bytes_max: lie.reply_bytes_max,
        tag: 1,
        id: 0,
    };
    let mut payload = Vec::new();
    head.put(lie.in_sizes.iter().chain(&lie.out_sizes).copied(), &mut payload);
    payload.extend_from_slice(&lie.message);
    payload.truncate(lie.cut.unwrap_or(usize::MAX));
    let input = vec![7; lie.bulk];
    let mut output = vec![0; lie.room];
    let exchanged = connection.exchange(
        service::PLUGINS,
        plugins_fn::CALL,
        &payload,
        &[IoSlice::new(&input)],
        &mut [IoSliceMut::new(&mut output)],
    );
    let answer = exchanged.ok()?;
    let (head, _, _) = AnswerHead::take(&answer.payload).unwrap();
    Some(head.status.cast_signed())
}

#[test]
fn lies_are_answered_and_cost_only_the_liar() {
    let site = Site::new();
    let mut verdicts = std::collections::BTreeMap::new();
    let mut runner = TestRunner::deterministic();
    let strategy = lie();
    for carrier in [Carrier::Unix, Carrier::Shm] {
        let mut connection = site.opened(carrier);
        for _ in 0..1500 {
            let lie = strategy.new_tree(&mut runner).unwrap().current();
            let verdict = tell(&mut connection, &lie);
            *verdicts.entry(verdict).or_insert(0) += 1;
            assert!(connection.is_alive(), "{lie:?}");
            // A malformed head has the client expelled: a new one goes on.
            if verdict == Some(status::NO_SERVICE) || lie.counts.is_some() || lie.cut.is_some() {
                connection = site.opened(carrier);
            }
        }
        drop(connection);
        site.is_well();
    }
    site.wait_until_nobody_is_left();
    let seen = |status| verdicts.get(&Some(status)).copied().unwrap_or(0);
    for wanted in [status::OK, status::MALFORMED, status::TOO_LARGE, status::NO_FUNCTION] {
        assert!(seen(wanted) > 0, "no lie came to {wanted}: {verdicts:?}");
    }
}

#[test]
fn who_breaks_the_protocol_is_expelled_and_the_plug_in_told_once() {
    const EXPELLED: i32 = 2;
    let site = Site::new();
    let mut liar = site.opened(Carrier::Unix);
    assert_eq!(tell(&mut liar, &honest(0, 0)), Some(status::OK));
    assert_eq!(site.asked(5, [EXPELLED, 0]), 0);
    let counts = Some((u32::MAX, 1));
    assert_ne!(tell(&mut liar, &Lie { counts, ..honest(0, 0) }), Some(status::OK));
    assert_eq!(tell(&mut liar, &honest(0, 0)), Some(status::NO_SERVICE));
    drop(liar);
    site.wait_until_nobody_is_left();
    assert_eq!(site.asked(5, [EXPELLED, 0]), 1);
}

#[test]
fn garbage_in_any_function_is_refused() {
    let site = Site::new();
    let mut runner = TestRunner::deterministic();
    let strategy = (0..12u16, prop::collection::vec(any::<u8>(), 0..120));
    let mut connection = site.connect(Carrier::Unix);
    for _ in 0..1000 {
        let (function, payload) = strategy.new_tree(&mut runner).unwrap().current();
        let _ = connection.call(service::PLUGINS, function, &payload, &[]);
        assert!(connection.is_alive());
    }
    drop(connection);
    site.is_well();
    site.wait_until_nobody_is_left();
}

#[test]
fn what_is_not_open_is_not_served() {
    let site = Site::new();
    let mut connection = site.connect(Carrier::Unix);
    let honest = honest(0, 0);
    assert_eq!(tell(&mut connection, &honest), Some(status::NO_SERVICE));
    for (change, expected) in [
        (OpenPlugin { schema_hash: 1, ..site.open.clone() }, status::SCHEMA),
        (OpenPlugin { layout_hash: 1, ..site.open.clone() }, status::SCHEMA),
        (OpenPlugin { name: "other".into(), ..site.open.clone() }, status::NO_SERVICE),
        (OpenPlugin { plugin: 10, ..site.open.clone() }, status::NO_SERVICE),
        (site.open.clone(), status::OK),
    ] {
        let reply = connection.call(service::PLUGINS, plugins_fn::OPEN, &change.encode(), &[]).unwrap();
        assert_eq!(PluginOpened::decode(&reply.payload).unwrap().status.cast_signed(), expected);
    }
    assert_eq!(tell(&mut connection, &honest), Some(status::OK));
    let unknown = About { plugin: 10, generation: 0 }.encode();
    let refused = connection.call(service::PLUGINS, plugins_fn::PING, &unknown, &[]).unwrap_err();
    assert!(refused.to_string().contains("no plug-in 10; it has 9 (victim)"), "{refused}");
    // Handles end with their client.
    for _ in 0..3 {
        let open = Lie { function: 3, ..honest.clone() };
        assert_eq!(tell(&mut connection, &open), Some(status::OK));
    }
    assert_eq!(site.plugins.as_ref().unwrap().reports()[0].handles, 3);
    drop(connection);
    site.wait_until_nobody_is_left();
}
