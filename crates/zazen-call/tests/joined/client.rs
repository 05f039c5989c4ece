//! What a client is told when the daemon is missing, wrong, or dies.

use crate::common::*;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;
use zazen_call::{ClusterKey, Connection, Server, ServerLimits};
use zazen_core::{Error, ErrorKind};
use zazen_wire::checksum::crc32c;
use zazen_wire::header::{Header, Kind};

fn check(error: Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
}

fn limits() -> ServerLimits {
    ServerLimits { connections_max: 8, stall_timeout: PATIENCE, ..ServerLimits::default() }
}

#[test]
fn a_missing_daemon_is_named_with_what_starts_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("zazend.sock");
    let name = socket.to_str().unwrap();
    let missing = Connection::unix(&socket, PATIENCE).unwrap_err();
    check(missing, ErrorKind::Unavailable, &["no daemon runs here", name, "zazend --cache"]);
    let nowhere = Connection::unix(&folder.path().join("no/such.sock"), PATIENCE).unwrap_err();
    check(nowhere, ErrorKind::Unavailable, &["no daemon runs here"]);
    drop(UnixListener::bind(&socket).unwrap());
    let stale = Connection::unix(&socket, PATIENCE).unwrap_err();
    check(stale, ErrorKind::Unavailable, &["nobody listens", name, "zazend --cache"]);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = Connection::tcp(&port, &key(KEY), &identity(), PATIENCE).unwrap_err();
    check(refused, ErrorKind::Unavailable, &["no daemon answers at", &port, "zazend"]);
    let malformed = Connection::tcp("no port here", &key(KEY), &identity(), PATIENCE).unwrap_err();
    check(malformed, ErrorKind::InvalidArgument, &["host:port"]);
}

#[test]
fn a_wrong_key_says_which_file_to_look_at() {
    let bench = Bench::new();
    let address = bench.address.to_string();
    let other = key(b"another key of good length");
    let error = Connection::tcp(&address, &other, &identity(), PATIENCE).unwrap_err();
    check(error, ErrorKind::Authentication, &[&address, "--key FILE", "zazen key new"]);
}

/// A daemon that waves every proof through does not get past the client.
#[test]
fn an_impostor_is_found_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let impostor = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut server_hello = vec![1, 0];
        server_hello.extend([9; 32]);
        server_hello.extend([3, 0, 0, 0]);
        server_hello.extend(b"imp");
        for (call, payload) in [(1, server_hello), (2, vec![0; 32])] {
            let mut header = [0; 64];
            stream.read_exact(&mut header).unwrap();
            let length = Header::decode(&header).unwrap().payload_bytes;
            stream.read_exact(&mut vec![0; length as usize]).unwrap();
            stream.write_all(&reply(call, 0, &payload)).unwrap();
        }
    });
    let error = Connection::tcp(&address, &key(KEY), &identity(), PATIENCE).unwrap_err();
    check(error, ErrorKind::Authentication, &["host imp", "does not know this cluster's key"]);
    impostor.join().unwrap();
}

fn reply(call: u64, status: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        kind: Kind::Reply,
        service: SERVICE,
        function: ECHO,
        status,
        call,
        payload_bytes: payload.len() as u32,
        fd_count: 0,
        bulk_bytes: 0,
        payload_crc: crc32c(payload),
        flags: 0,
        room: None,
    };
    [&header.encode()[..], payload].concat()
}

/// Calls a daemon that answers its first request with `answer` and closes; returns what the client
/// is told.
fn told(answer: &[u8]) -> (Error, bool) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 64]).unwrap();
            stream.write_all(answer).unwrap();
        });
        let mut connection = Connection::unix(&socket, PATIENCE).unwrap();
        connection.set_timeout(Some(PATIENCE));
        let error = connection.call(SERVICE, ECHO, b"", &[]).unwrap_err();
        (error, connection.is_alive())
    })
}

#[test]
fn a_daemon_may_die_at_any_byte_of_its_reply() {
    let whole = reply(1, 0, b"some payload");
    for cut in 0..whole.len() {
        let (error, alive) = told(&whole[..cut]);
        check(error, ErrorKind::Unavailable, &["closed the connection", "reconnect"]);
        assert!(!alive);
    }
}

/// Calls a daemon that answers the first `cut` bytes of `reply(1, 0, b"some payload")`, and the
/// rest when `go_on` says so; silence is looked into by `still_there`.
fn told_by_a_slow_one(
    cut: usize,
    go_on: std::sync::mpsc::Receiver<()>,
    timeout: Duration,
    still_there: impl FnMut() -> bool + Send + 'static,
) -> (zazen_core::Result<Vec<u8>>, bool) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let whole = reply(1, 0, b"some payload");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 64]).unwrap();
            // On a busy machine the client may have lost its patience by now, and hung up.
            if stream.write_all(&whole[..cut]).is_ok() && go_on.recv().is_ok() {
                stream.write_all(&whole[cut..]).unwrap();
            }
            // Until the client hangs up.
            let _ = stream.read(&mut [0]);
        });
        let mut connection = Connection::unix(&socket, PATIENCE).unwrap();
        connection.set_timeout(Some(timeout));
        connection.watch(Duration::from_millis(15), still_there);
        let answer = connection.call(SERVICE, ECHO, b"", &[]).map(|reply| reply.payload);
        (answer, connection.is_alive())
    })
}

#[test]
fn silence_is_looked_into() {
    for cut in [0, 1, 63, 64, 70] {
        // It is there, and answers in the end.
        let (go, gone) = std::sync::mpsc::channel();
        let mut asked = 0;
        let (answer, alive) = told_by_a_slow_one(cut, gone, PATIENCE, move || {
            asked += 1;
            if asked == 2 {
                go.send(()).unwrap();
            }
            true
        });
        assert_eq!((answer.unwrap().as_slice(), alive), (&b"some payload"[..], true));
        // It is not: given up at the third look.
        let (go, gone) = std::sync::mpsc::channel();
        let mut asked = 0;
        let (answer, alive) = told_by_a_slow_one(cut, gone, PATIENCE, move || {
            asked += 1;
            assert!(asked <= 3, "asked once more after a no");
            let _held_until_now = &go;
            asked < 3
        });
        check(answer.unwrap_err(), ErrorKind::TimedOut, &["fell silent before its reply was complete"]);
        assert!(!alive);
        // It is there for ever and says nothing: the whole call is bounded.
        let (go, gone) = std::sync::mpsc::channel();
        let bound = Duration::from_millis(80);
        let (answer, alive) = told_by_a_slow_one(cut, gone, bound, move || {
            let _held_until_now = &go;
            true
        });
        check(answer.unwrap_err(), ErrorKind::TimedOut, &["fell silent before its reply was complete"]);
        assert!(!alive);
    }
}

#[test]
fn a_reply_that_breaks_the_protocol_is_refused() {
    let good = reply(1, 0, b"some payload");
    let mut damaged = good.clone();
    damaged[70] ^= 1;
    check(told(&damaged).0, ErrorKind::Protocol, &["damaged"]);
    let mut header = good.clone();
    header[20] ^= 1;
    check(told(&header).0, ErrorKind::Protocol, &["damaged"]);
    check(told(&reply(2, 0, b"")).0, ErrorKind::Protocol, &["answered call 2 where call 1 was asked"]);
    check(told(&reply(0, 0, b"")).0, ErrorKind::Protocol, &["answered call 0"]);
    check(told(&request(ECHO, 1, b"", b"")).0, ErrorKind::Protocol, &["answered"]);
    let mut newer = good;
    newer[4] = 3;
    check(told(&resealed(newer)).0, ErrorKind::Unsupported, &["version 3", "same release"]);
    check(told(&[b'x'; 64]).0, ErrorKind::Protocol, &["does not speak"]);
    // An error of a kind that a newer release has.
    let (error, alive) = told(&reply(1, 999, b"\x03\0\0\0why"));
    check(error, ErrorKind::Unsupported, &["why", "999"]);
    assert!(alive);
    let (error, alive) = told(&reply(0, 12, b"\x04\0\0\0full"));
    check(error, ErrorKind::Busy, &["full"]);
    assert!(!alive);
    check(told(&reply(1, 12, b"\xff\0\0\0full")).0, ErrorKind::Protocol, &["ErrorReply"]);
}

/// The daemon says why and closes while the client is still sending: the client hears the words,
/// not a reset.
#[test]
fn last_words_are_heard_while_sending() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&reply(0, 15, b"\x03\0\0\0bye")).unwrap();
            stream.read_exact(&mut [0; 100_000]).unwrap();
        });
        let mut connection = Connection::unix(&socket, PATIENCE).unwrap();
        let bulk = vec![0; 16 << 20];
        let error = connection.call(SERVICE, SINK, b"", &[&bulk]).unwrap_err();
        check(error, ErrorKind::ShuttingDown, &["bye"]);
        assert!(!connection.is_alive());
    });
}

#[test]
fn a_listener_that_never_speaks_is_timed_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let error = Connection::tcp(&address, &key(KEY), &identity(), Duration::from_millis(50)).unwrap_err();
    check(error, ErrorKind::TimedOut, &[&address]);
}

#[test]
fn sockets_are_bound_with_care() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("zazend.sock");
    let first = Server::new(Vec::new(), None, limits());
    // A stale socket is replaced.
    drop(UnixListener::bind(&socket).unwrap());
    first.listen_unix(&socket).unwrap();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
    // A live one is not.
    let second = Server::new(Vec::new(), None, limits());
    check(second.listen_unix(&socket).unwrap_err(), ErrorKind::Busy, &["already listens", "zazend.sock"]);
    Connection::unix(&socket, PATIENCE).unwrap();
    // Nor is anything else.
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    check(second.listen_unix(&file).unwrap_err(), ErrorKind::Conflict, &["not a socket"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let nowhere = second.listen_unix(&folder.path().join("no/such/s")).unwrap_err();
    check(nowhere, ErrorKind::NotFound, &["create it"]);
    // A daemon removes its own socket only.
    std::fs::remove_file(&socket).unwrap();
    let third = Server::new(Vec::new(), None, limits());
    third.listen_unix(&socket).unwrap();
    first.drain(Duration::ZERO);
    Connection::unix(&socket, PATIENCE).unwrap();
    drop(third);
    assert!(!socket.exists());
}

#[test]
fn a_socket_path_may_be_longer_than_the_kernel_likes() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("d".repeat(100)).join("e".repeat(100));
    std::fs::create_dir_all(&deep).unwrap();
    let socket = deep.join("zazend.sock");
    let server = Server::new(Vec::new(), None, limits());
    server.listen_unix(&socket).unwrap();
    let again = Server::new(Vec::new(), None, limits());
    check(again.listen_unix(&socket).unwrap_err(), ErrorKind::Busy, &["already listens"]);
    Connection::unix(&socket, PATIENCE).unwrap();
    let hopeless = deep.join("f".repeat(108));
    check(server.listen_unix(&hopeless).unwrap_err(), ErrorKind::Config, &["too long"]);
}

#[test]
fn tcp_needs_a_key_and_a_free_address() {
    let keyless = Server::new(Vec::new(), None, limits());
    check(keyless.listen_tcp("127.0.0.1:0").unwrap_err(), ErrorKind::Config, &["zazen key new"]);
    let server = Server::new(Vec::new(), Some(key(KEY)), limits());
    let taken = server.listen_tcp("127.0.0.1:0").unwrap();
    check(server.listen_tcp(&taken.to_string()).unwrap_err(), ErrorKind::Busy, &["in use"]);
    check(server.listen_tcp("192.0.2.1:0").unwrap_err(), ErrorKind::Config, &["no address"]);
}

#[test]
fn key_files_are_checked_and_keys_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster.key");
    let write = |text: &str, mode: u32| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let read = || ClusterKey::from_file(Path::new(&path));
    let name = path.to_str().unwrap();
    check(read().unwrap_err(), ErrorKind::Config, &[name, "zazen key new"]);
    write("  fifteen bytes!!\n\n", 0o600);
    check(read().unwrap_err(), ErrorKind::Config, &[name, "holds 15 bytes", "zazen key new"]);
    write("  sixteen bytes!!!\n\n", 0o604);
    check(read().unwrap_err(), ErrorKind::Config, &[name, "mode 604", &format!("chmod 600 {name}")]);
    write("  sixteen bytes!!!\n\n", 0o640);
    assert!(!format!("{:?}", read().unwrap()).contains("sixteen"));
    write(&"k".repeat(70_000), 0o600);
    check(read().unwrap_err(), ErrorKind::Config, &["larger than 65536 bytes"]);
    check(ClusterKey::from_file(folder.path()).unwrap_err(), ErrorKind::Config, &["not a regular file"]);
    // A generated key is fresh, printable, and white space around it does not count.
    let (one, two) = (ClusterKey::generate().unwrap(), ClusterKey::generate().unwrap());
    assert!(one != two && one.len() == 64 && one.chars().all(|digit| digit.is_ascii_hexdigit()));
    write(&format!("\n{one}\n"), 0o600);
    let server = Server::new(Vec::new(), Some(key(one.as_bytes())), limits());
    let address = server.listen_tcp("127.0.0.1:0").unwrap().to_string();
    Connection::tcp(&address, &read().unwrap(), &identity(), PATIENCE).unwrap();
}
