//! The program itself: readiness, signals, kill -9 in mid-push, `--check`.

use crate::common::*;
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use zazen_call::{ClusterKey, Connection, Identity};
use zazen_core::RunSet;
use zazen_frames::messages::*;
use zazen_testbed::{Daemon as Process, Launch, Ready};
use zazen_wire::{Message, service};

const LENGTH: usize = 140_000;

const PROGRAM: &str = env!("CARGO_BIN_EXE_zazend");

/// A daemon that listens to nothing but its socket.
fn local(site: &Site) -> Launch {
    Launch { listen: None, key: None, budget: None, ..site.launch() }
}

fn start(site: &Site, launch: &Launch) -> Process {
    Process::start(Path::new(PROGRAM), launch, site.dir.path()).unwrap()
}

#[test]
fn it_serves_tells_so_and_drains() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..3, LENGTH);
    let launch = Launch { budget: Some("10M".into()), ..site.launch() };
    let process = start(&site, &launch.with(["--metrics", "127.0.0.1:0"]));
    let ready = process.ready().clone();
    assert_eq!((&ready.socket, ready.pid), (&site.socket, process.pid()));
    for addr in [&ready.listen, &ready.metrics] {
        let addr = addr.as_deref().unwrap();
        assert!(addr.starts_with("127.0.0.1:") && !addr.ends_with(":0"), "{addr}");
    }
    let mut client = site.client();
    assert_eq!(client.status()["node"], ready.node.as_str());
    client.push_valid(&sim, 1).unwrap();
    process.signal(Signal::USR1).unwrap();
    process.signal(Signal::TERM).unwrap();
    let (code, log) = process.wait().unwrap();
    assert_eq!(code, Some(0), "{log}");
    for line in
        ["zazend 0.1.0 on testnode: cache", "SIGTERM: stopping", "stopped", "state as asked for by SIGUSR1"]
    {
        assert!(log.contains(line), "{line:?} is not in {log}");
    }
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    assert!(!site.socket.exists());

    let process = start(&site, &local(&site));
    let mut client = site.client();
    let handle = client.open(&sim).unwrap().handle;
    assert_eq!(client.query(handle).0, set([1]));
    assert!(process.ready().listen.is_none());
}

#[test]
fn it_tells_readiness_to_a_descriptor() {
    use std::os::fd::AsRawFd;
    let site = Site::default();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let launch = local(&site).with(["--ready-fd".into(), writer.as_raw_fd().to_string()]);
    let mut child = launch.command(Path::new(PROGRAM)).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(std::fs::File::from(reader)).read_line(&mut line).unwrap();
    assert_eq!(Ready::parse(&line).unwrap().pid, child.id());
    site.client().status();
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn killed_in_mid_push_it_keeps_whole_frames_only() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..200, LENGTH);
    let mut kept = RunSet::new();
    for round in 0..4u64 {
        let mut process = start(&site, &local(&site));
        let mut client = site.client();
        let handle = client.open(&sim).unwrap().handle;
        let held = client.query(handle).0;
        assert!(kept.is_subset(&held), "round {round}: acknowledged frames {kept:?} are not all in {held:?}");
        let mut pushed = 0;
        let killer = std::thread::scope(|scope| {
            let pusher = scope.spawn(|| {
                let mut acknowledged = Vec::new();
                for number in (0..200).filter(|number| !kept.contains(*number)) {
                    match client.push_valid(&sim, number) {
                        Ok(_) => acknowledged.push(number),
                        Err(_) => break,
                    }
                }
                acknowledged
            });
            // Wherever the writer is then; each round a little later.
            std::thread::sleep(Duration::from_millis(2 + 7 * round));
            process.kill();
            pusher.join().unwrap()
        });
        for number in killer {
            kept.insert(number);
            pushed += 1;
        }
        println!("round {round}: {pushed} frames acknowledged before the kill");
    }
    let process = start(&site, &local(&site));
    let mut client = site.client();
    let handle = client.open(&sim).unwrap().handle;
    let held = client.query(handle).0;
    assert!(kept.is_subset(&held));
    let got = client.scan(handle, &set(0..200), 50);
    let deliver = |number| if held.contains(number) { Delivery::Native } else { Delivery::Fetched };
    check_scan(&got, &set(0..200), LENGTH, deliver);
    let verify = Verify { handle, from: 0, frames_max: 1000 };
    let verified: Verified = client.ask(frames_fn::VERIFY, &verify).unwrap();
    assert_eq!((verified.checked, verified.bad.len()), (200, 0));
    drop(process);
}

#[test]
fn a_second_signal_stops_at_once() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..1, LENGTH);
    let mut process = start(&site, &local(&site));
    // A writer that announced a frame and never sends its bytes keeps the daemon draining.
    let bytes = frame_bytes(0, LENGTH);
    let series = zazen_core::Series::of_file(source(0).path.as_str(), meta(0, &bytes, None).number).unwrap();
    let push = Push { dataset: sim, source: source(0), meta: meta(0, &bytes, None), series };
    let payload = push.encode();
    let header = zazen_wire::header::Header {
        kind: zazen_wire::header::Kind::Request,
        service: service::FRAMES,
        function: frames_fn::PUSH,
        status: 0,
        call: 1,
        payload_bytes: payload.len() as u32,
        fd_count: 0,
        bulk_bytes: LENGTH as u64,
        payload_crc: zazen_wire::checksum::crc32c(&payload),
        flags: 0,
        room: None,
    };
    let mut stream = std::os::unix::net::UnixStream::connect(&site.socket).unwrap();
    let message = [&header.encode()[..], &payload, &bytes[..100]].concat();
    std::io::Write::write_all(&mut stream, &message).unwrap();
    let mut client = site.client();
    while client.status()["space"]["reserved"] == 0 {
        std::thread::yield_now();
    }
    process.signal(Signal::TERM).unwrap();
    while !process.log().contains("SIGTERM: stopping") {
        assert!(process.is_alive(), "it ended without draining");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(process.is_alive(), "it waits for the writer");
    process.signal(Signal::INT).unwrap();
    let begun = Instant::now();
    assert_eq!(process.wait().unwrap().0, Some(128 + 2));
    assert!(begun.elapsed() < Duration::from_secs(90));
}

/// Waits until the log has `words` for the `count`th time.
fn wait_for_log(process: &mut Process, words: &str, count: usize) {
    let begun = Instant::now();
    while process.log().matches(words).count() < count {
        assert!(process.is_alive(), "it ended: {}", process.log());
        assert!(begun.elapsed() < Duration::from_secs(60), "{words:?} is not in {}", process.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A daemon with these settings in a file; its socket, cache and backing store are flags.
fn start_with_file(site: &Site, settings: &str) -> (Process, std::path::PathBuf) {
    let file = site.dir.path().join("zazend.toml");
    std::fs::write(&file, settings).unwrap();
    let launch = Launch { budget: None, free_floor: None, ..site.launch() };
    (start(site, &launch.with(["--config".as_ref(), file.as_os_str()])), file)
}

#[test]
fn sighup_takes_what_can_change_and_names_the_rest() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..8, LENGTH);
    let (mut process, file) =
        start_with_file(&site, "budget = \"8M\"\nfree_floor = \"1K\"\nmetrics = \"127.0.0.1:0\"\n");
    let mut client = site.client();
    for number in 0..8 {
        client.push_valid(&sim, number).unwrap();
    }
    assert_eq!(client.status()["space"]["budget"], 8 << 20);

    let settings = "budget = \"1M\"\nfree_floor = \"1K\"\nlog = \"debug\"\nreaders = 1\nfetchers = \
                    3\nvalidate = \"never\"\n\
                    drain_seconds = 7\ncaller_calls_max = 9\nspans = \"/nowhere\"\n";
    std::fs::write(&file, settings).unwrap();
    process.signal(Signal::HUP).unwrap();
    wait_for_log(&mut process, "SIGHUP: took", 1);
    wait_for_log(&mut process, "SIGHUP: restart zazend", 1);
    let log = process.log();
    for words in [
        "budget 1.0 MiB (it was 8.0 MiB)",
        "log debug (it was info)",
        "readers 1 (it was auto)",
        "fetchers 3 (it was 8)",
        "validate never (it was always)",
        "drain_seconds 7 (it was 30)",
        "9 calls",
        "metrics off (it was 127.0.0.1:0)",
        "spans /nowhere (it was none)",
    ] {
        assert!(log.contains(words), "{words:?} is not in {log}");
    }
    let status = client.status();
    assert_eq!((&status["space"]["budget"], &status["readers"]), (&(1 << 20).into(), &1.into()));
    let used = status["space"]["used"].as_u64().unwrap();
    assert!(used <= 1 << 20, "{used} bytes are left; the new budget was made true at once");
    let waiting = status["left_undone"]["needs_restart"].as_array().unwrap();
    assert_eq!(waiting.len(), 2, "{status}");
    let turn = |suffix: &str| std::path::PathBuf::from(format!("{}{suffix}", site.socket.display()));
    assert!(turn(".turn").exists(), "one reader: programs take turns from now on");
    // What it caches from now on is handed out as before.
    client.push_valid(&sim, 1).unwrap();

    // Back again, in one step; what waited for a restart no longer does.
    std::fs::write(&file, "budget = \"8M\"\nfree_floor = \"1K\"\nmetrics = \"127.0.0.1:0\"\n").unwrap();
    process.signal(Signal::HUP).unwrap();
    wait_for_log(&mut process, "SIGHUP: took", 2);
    let status = client.status();
    assert_eq!(status["space"]["budget"], 8 << 20);
    assert_eq!(status["left_undone"]["needs_restart"].as_array().unwrap().len(), 0);
    process.signal(Signal::HUP).unwrap();
    wait_for_log(&mut process, "SIGHUP: no setting changed", 1);
    process.signal(Signal::TERM).unwrap();
    assert_eq!(process.wait().unwrap().0, Some(0));
}

#[test]
fn sighup_with_bad_settings_changes_nothing() {
    let site = Site::default();
    let good = "budget = \"8M\"\nfree_floor = \"1K\"\n";
    let (mut process, file) = start_with_file(&site, good);
    let before = site.client().status();
    let bad = [
        "budget = \"4M\"\nfetchers = 0\n",
        "budget = \"4M\"\nbudgett = \"8M\"\n",
        "budget = \"1K\"\n",
        "budget = \"900P\"\n",
        "budget = \"4M\"\nlog = \"verbose\"\n",
        "budget = \"4M\"\nreaders = 1\nlog = \"zazend=loud\"\n",
        "budget = \"4M\"\nkey = [\n",
    ];
    for (at, settings) in bad.iter().enumerate() {
        std::fs::write(&file, settings).unwrap();
        process.signal(Signal::HUP).unwrap();
        wait_for_log(&mut process, "no setting was changed", at + 1);
    }
    let turn = std::path::PathBuf::from(format!("{}.turn", site.socket.display()));
    assert!(!turn.exists(), "no lock file of the readers that were refused");
    set_mode(&site.key, 0o644);
    std::fs::write(&file, good).unwrap();
    process.signal(Signal::HUP).unwrap();
    wait_for_log(&mut process, "everybody can read or write it", 1);
    let after = site.client().status();
    assert_eq!((&after["space"]["budget"], &after["pid"]), (&before["space"]["budget"], &before["pid"]));
    assert_eq!(after["left_undone"]["refused"], true);
    set_mode(&site.key, 0o600);
    std::fs::remove_file(&file).unwrap();
    process.signal(Signal::HUP).unwrap();
    wait_for_log(&mut process, "cannot be read; check --config", 1);
    // Nobody waits for a FIFO's writer, and what has no end does not take the memory.
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RUSR).unwrap();
    process.signal(Signal::HUP).unwrap();
    wait_for_log(&mut process, "cannot be read; check --config: it is not a plain file", 1);
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
    process.signal(Signal::HUP).unwrap();
    wait_for_log(&mut process, "cannot be read; check --config: it is not a plain file", 2);
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, good).unwrap();
    process.signal(Signal::HUP).unwrap();
    wait_for_log(&mut process, "SIGHUP: no setting changed", 1);
    assert_eq!(site.client().status()["left_undone"]["refused"], false);
    assert!(process.log().contains("ERROR SIGHUP"), "{}", process.log());
}

/// A new key shuts out who has the old one, those who are connected too.
#[test]
fn sighup_reads_the_key_again() {
    let site = Site::default();
    let (mut process, _) = start_with_file(&site, "budget = \"8M\"\nfree_floor = \"1K\"\n");
    let addr = process.ready().listen.clone().unwrap();
    let old = ClusterKey::from_file(&site.key).unwrap();
    let identity = Identity {
        credentials: zazen_core::Credentials { uid: 1, gid: 1, groups: vec![] },
        host: "elsewhere".into(),
        pid: 1,
    };
    let within = Duration::from_secs(60);
    let mut connected = Connection::tcp(&addr, &old, &identity, within).unwrap();
    connected.set_timeout(Some(within));
    connected.call(service::CONTROL, 4, &[], &[]).unwrap();

    std::fs::write(&site.key, "another key of good length").unwrap();
    process.signal(Signal::HUP).unwrap();
    wait_for_log(&mut process, "took the key (1 connections", 1);
    connected.call(service::CONTROL, 4, &[], &[]).unwrap_err();
    let refused = Connection::tcp(&addr, &old, &identity, within).unwrap_err();
    assert_eq!(refused.kind(), zazen_core::ErrorKind::Authentication, "{refused}");
    let new = ClusterKey::from_file(&site.key).unwrap();
    let mut again = Connection::tcp(&addr, &new, &identity, within).unwrap();
    again.call(service::CONTROL, 4, &[], &[]).unwrap();
    // This machine's programs never needed a key.
    assert_eq!(site.client().status()["pid"], process.pid());
}

#[test]
fn a_cache_in_a_backing_store_and_a_tiny_budget_are_refused_by_check_and_start() {
    let site = Site::default();
    let inside = site.backing.join("cache");
    let small = ["--budget", "1K"].map(std::ffi::OsStr::new);
    let within = ["--cache".as_ref(), inside.as_os_str()];
    let around = ["--cache".as_ref(), site.dir.path().as_os_str()];
    for (flags, why) in [
        (small, "holds next to nothing"),
        (within, "lies within the backing store"),
        (around, "holds the backing store"),
    ] {
        let mut command = Command::new(PROGRAM);
        command.env("ZAZEN_SOCKET", &site.socket).arg("--backing").arg(&site.backing).args(flags);
        if flags[0] != "--cache" {
            command.arg("--cache").arg(&site.cache);
        }
        let started = command.output().unwrap();
        let said = String::from_utf8(started.stderr).unwrap();
        assert!(started.status.code() == Some(1) && said.contains(why), "{said}");
        let checked = command.arg("--check").output().unwrap();
        let said = String::from_utf8(checked.stdout).unwrap();
        assert!(checked.status.code() == Some(1) && said.contains(why), "{said}");
        assert!(!inside.exists() && !site.dir.path().join(".zazen").exists(), "nothing is made");
    }
}

#[test]
fn a_second_daemon_on_the_cache_or_the_socket_is_refused() {
    let site = Site::default();
    let process = start(&site, &local(&site));
    let other = Site::default();
    let same_cache = Launch { socket: other.socket.clone(), ..local(&site) };
    let same_socket = Launch { cache: other.cache.clone(), ..local(&site) };
    for (launch, named) in [(same_cache, &site.cache), (same_socket, &site.socket)] {
        let Output { status, stderr, .. } = launch.command(PROGRAM.as_ref()).output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains("ERROR") && said.contains(named.to_str().unwrap()), "{said}");
    }
    assert_eq!(site.client().status()["pid"], process.pid());
}

/// `--check` with these flags: whether it is good, and what it says with the site's own paths cut
/// out.
fn check(site: &Site, flags: &[&str]) -> (bool, String) {
    let mut command = Command::new(PROGRAM);
    command.env_clear().env("ZAZEN_SOCKET", &site.socket).arg("--check").args(flags);
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    let text = String::from_utf8(stdout).unwrap();
    let cut = text.replace(site.dir.path().to_str().unwrap(), "DIR");
    (status.success(), cut)
}

#[test]
fn check_tells_what_a_start_would_do() {
    let site = Site::default();
    site.dataset("sim", 0..1, 1);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (cache, backing, key) = (text(&site.cache), text(&site.backing), text(&site.key));
    let base = ["--cache", &cache, "--backing", &backing, "--name", "testnode", "--readers", "4"];
    let with = |more: &[&str]| check(&site, &[&base[..], more].concat());
    let (good, said) =
        with(&["--budget", "1M", "--free-floor", "1K", "--listen", "127.0.0.1:0", "--key", &key]);
    assert!(good, "{said}");
    let kind = zazend::disk_readers::disk_kind(site.dir.path());
    let users = zazend::viewer::Powers::of_this_process().describe();
    let expected = format!(
        "ok: name: testnode\n\
         ok: users: {users}\n\
         ok: cache: DIR/cache (would be made): budget 1.0 MiB, floor 1.0 KiB of free space, {kind}, 4 \
         readers\n\
         ok: backing DIR/backing: 1 entries by directory DIR/backing\n\
         ok: socket: DIR/run/s\n\
         ok: key: DIR/key\n\
         ok: listen: 127.0.0.1:0\n\
         ok: validate: always; a copy is compared with its source before it is handed out\n\
         zazend would start\n"
    );
    assert_eq!(said, expected);
    assert!(!site.cache.exists(), "a check changes nothing");
    let (good, said) = with(&["--cache", &format!("{cache}2")]);
    assert!(good && said.contains("shares the disk of DIR/cache, give one folder for each disk"), "{said}");
    // A start would close an empty folder to other users.
    std::fs::create_dir(&site.cache).unwrap();
    std::fs::set_permissions(&site.cache, PermissionsExt::from_mode(0o755)).unwrap();
    assert!(with(&[]).0);
    let mode = std::fs::metadata(&site.cache).unwrap().mode() & 0o777;
    assert_eq!(
        (mode, std::fs::read_dir(&site.cache).unwrap().count()),
        (0o755, 0),
        "a check changes nothing"
    );
}

#[test]
fn check_looks_at_the_namespace_and_at_exports() {
    let site = Site::default();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    std::fs::create_dir_all(&site.backing).unwrap();
    let (cache, backing, key) = (text(&site.cache), text(&site.backing), text(&site.key));
    let dir = text(site.dir.path());
    let (data, nodes, none) = (format!("{dir}/ns"), format!("{dir}/nodes"), format!("{dir}/none"));
    let base = ["--cache", &cache, "--backing", &backing, "--listen", "127.0.0.1:7399", "--key", &key];
    let base = [&base[..], &["--namespace", &data]].concat();
    let has = |flags: &[&str], good: bool, line: &str| {
        let (found, said) = check(&site, &[&base[..], flags].concat());
        assert_eq!(found, good, "{said}");
        assert!(said.lines().any(|found| found.starts_with(line)), "{line:?} begins no line of\n{said}");
    };
    has(&[], true, "ok: namespace: DIR/ns (would be made)");
    has(&[], true, "ok: namespace nodes: this node alone");
    has(&["--namespace-nodes", &nodes], false, "error: namespace nodes: DIR/nodes is not there");
    for (listed, good, line) in [
        ("127.0.0.1:7399\n# old\nother:7345\n", true, "ok: namespace nodes: 2, this one among them"),
        ("localhost:7399\n", true, "ok: namespace nodes: 1, this one among them"),
        ("# none\n", false, "error: namespace nodes: the list is empty"),
        ("n1\n", false, "error: namespace nodes: DIR/nodes: \"n1\" is not host:port"),
        ("127.0.0.1:7\n", true, "ok: namespace nodes: 127.0.0.1:7399 is none of the 1 nodes (127.0.0.1:7): "),
    ] {
        std::fs::write(&nodes, listed).unwrap();
        has(&["--namespace-nodes", &nodes], good, line);
    }
    let none_of = "error: namespace nodes: 127.0.0.1:7399 is none of the 1 nodes";
    has(&["--namespace-nodes", &nodes, "--namespace-format"], false, none_of);
    has(&["--namespace-nodes", &nodes, "--namespace-admit", "listed"], false, none_of);
    has(&["--namespace-archive", &none], false, "error: namespace archive: DIR/none: mount its file system");
    set_mode(Path::new(&backing), 0o777);
    has(&["--namespace-archive", &backing], false, "error: namespace archive: DIR/backing must belong to");
    has(&["--export", &none], false, "error: export DIR/none: make the folder");
    has(&["--export", &dir], true, "note: export: no plug-in uses it; for `zazen run`, add --plugin posix");
    std::fs::create_dir_all(format!("{data}/node")).unwrap();
    has(&[], true, "ok: namespace: DIR/ns, which has no node's files yet");
    std::fs::write(format!("{data}/node/identity"), "").unwrap();
    let begun = "ok: namespace: DIR/ns, which has a node's files: --namespace-format does nothing";
    has(&["--namespace-nodes", &nodes, "--namespace-format"], true, begun);
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::write(&data, "a file").unwrap();
    has(&[], false, "error: namespace: DIR/ns is not a directory");
}

#[test]
fn a_file_of_settings_takes_one_value_where_a_list_may_stand() {
    let site = Site::default();
    let file = site.dir.path().join("zazend.toml");
    let said = |more: &str| {
        std::fs::write(&file, format!("cache = {:?}\n{more}", site.cache)).unwrap();
        check(&site, &["--config", file.to_str().unwrap()])
    };
    std::fs::create_dir_all(&site.backing).unwrap();
    let one = format!("backing = {:?}\nexport = \"/home\"\nuser_budget = \"1G\"\n", site.backing);
    let (good, text) = said(&one);
    assert!(good && text.contains("ok: backing DIR/backing: 0 entries"), "{text}");
    let (good, text) = said(&format!("backing = [{:?}]\nbudget = 800\n", site.backing));
    assert!(!good && text.contains("give one value in quotes"), "{text}");
}

#[test]
fn check_names_what_is_wrong() {
    let site = Site::default();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (cache, backing, key) = (text(&site.cache), text(&site.backing), text(&site.key));
    let file = site.dir.path().join("zazend.toml");
    let config = text(&file);
    let wrong = |flags: &[&str], line: &str| {
        let (good, said) = check(&site, flags);
        assert!(!good, "{said}");
        assert!(said.lines().any(|found| found == line), "{line:?} is not a line of\n{said}");
    };
    let base = ["--cache", &cache, "--backing", &backing];
    let more = |more: &[&'static str]| {
        [
            &base.map(|flag| flag.to_owned())[..],
            &more.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>(),
        ]
        .concat()
    };
    let wrong_more = |flags: &[&'static str], line: &str| {
        let flags = more(flags);
        wrong(&flags.iter().map(String::as_str).collect::<Vec<_>>(), line);
    };
    wrong(
        &["--backing", &backing],
        "error: settings: no cache directory: give --cache DIR (or cache = \"DIR\" in the file of --config)",
    );
    wrong(
        &["--cache", &cache],
        "error: settings: no backing store: give --backing DIR (or backing = [\"DIR\"] in the file of \
         --config)",
    );
    wrong(
        &["--cache", &cache, "--backing", "relative"],
        "error: settings: backing \"relative\": give an absolute directory without `..`, \
         s3://BUCKET/PREFIX, or DIR=tcp://HOST:PORT",
    );
    wrong(
        &["--cache", &cache, "--backing", &backing, "--backing", &format!("{backing}/")],
        "error: settings: backing DIR/backing is given twice; keep one",
    );
    wrong_more(
        &["--listen", "127.0.0.1"],
        "error: settings: listen is set but no cluster key: give --key FILE (`zazen key new FILE` makes one; \
         the same on all nodes)",
    );
    wrong_more(
        &["--budget", "lots"],
        "error: settings: budget: size \"lots\": give a number of bytes with an optional unit, such as 200G \
         or 1.5TB",
    );
    wrong_more(&["--readers", "0"], "error: settings: readers \"0\": give auto or a number from 1 to 256");
    wrong_more(&["--validate", "maybe"], "error: settings: validate \"maybe\": give always or never");
    wrong_more(&["--fetchers", "999"], "error: settings: fetchers 999: give a number from 1 to 256");
    wrong_more(
        &["--metrics", "here"],
        "error: settings: metrics \"here\": give HOST:PORT, such as 0.0.0.0:7345",
    );
    std::fs::write(&file, "cachee = \"/x\"\n").unwrap();
    let (good, said) = check(&site, &["--config", &config]);
    assert!(
        !good
            && said.contains("error: settings: config file DIR/zazend.toml: ")
            && said.contains("unknown field `cachee`"),
        "{said}"
    );
    std::fs::write(&file, format!("cache = {cache:?}\nbacking = [\"{backing}/none\"]\nbudget = \"900P\"\n"))
        .unwrap();
    let (good, said) = check(&site, &["--config", &config]);
    assert!(!good, "{said}");
    assert!(
        said.contains(
            "error: backing DIR/backing/none: backing directory DIR/backing/none is not there; \
                           check its mount"
        ),
        "{said}"
    );
    assert!(said.contains("error: cache: the budget of 900 PiB is more than the disk's"), "{said}");
    assert!(said.ends_with("zazend would not do its work; mend the errors above\n"), "{said}");
    set_mode(&site.key, 0o644);
    let (good, said) = check(&site, &[&base[..], &["--key", &key, "--listen", "127.0.0.1:0"]].concat());
    assert!(!good && said.contains("error: key: key file DIR/key: everybody can read or write it"), "{said}");
    std::fs::write(&site.cache, "a file").unwrap();
    wrong(&base, "error: cache: DIR/cache is not a directory; choose another --cache");
    assert!(std::fs::read_dir(site.dir.path()).unwrap().count() == 4, "a check leaves nothing behind");
}

#[test]
fn the_example_settings_are_complete_and_valid() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/zazend.toml");
    let text = std::fs::read_to_string(example).unwrap();
    // Every commented setting is one that the daemon takes.
    let all: String = text
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if setting.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => {
                format!("{setting}\n")
            }
            _ => format!("{line}\n"),
        })
        .collect();
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("as it is", &text), ("with all", &all)] {
        let path = dir.path().join("zazend.toml");
        std::fs::write(&path, text).unwrap();
        let args = zazend::config::Args { config: Some(path), ..Default::default() };
        let config = zazend::Config::assemble(&args).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(config.listen.as_deref(), Some("0.0.0.0:7345"));
    }
    let settings = all.lines().filter(|line| line.contains(" = ")).count();
    assert_eq!(settings, 53, "a new setting belongs into packaging/zazend.toml");
}

/// Cores and nice value of each thread of a process and of those that it started.
fn cores_of(pid: u32) -> Vec<(String, String)> {
    let status = |task: &Path| {
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        let cores =
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned();
        let stat = std::fs::read_to_string(task.join("stat")).ok()?;
        let nice = stat.rsplit_once(')')?.1.split_whitespace().nth(16)?.to_owned();
        Some((cores, nice))
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    let mut found = Vec::new();
    for task in tasks {
        found.extend(status(&task));
        let children = std::fs::read_to_string(task.join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().flat_map(|child| cores_of(child.parse().unwrap())));
    }
    found
}

#[test]
fn it_keeps_to_its_cores_and_to_its_share() {
    let site = Site::default();
    let first = rustix::thread::sched_getaffinity(None).unwrap();
    let core = (0..1024).find(|core| first.is_set(*core)).unwrap().to_string();
    let launch = local(&site).with(["--cpu-share", "2", "--cpus"]).with([core.as_str()]);
    let process = start(&site, &launch);
    site.client().status();
    let nice = rustix::process::getpriority_process(None).unwrap().max(18).to_string();
    let found = cores_of(process.pid());
    assert!(found.len() > 1 && found.iter().all(|one| *one == (core.clone(), nice.clone())), "{found:?}");

    // In a container its session began outside: the kernel gives it the number 0.
    let contained = launch.command(Path::new(PROGRAM));
    let user = if rustix::process::geteuid().is_root() { "" } else { "--user" };
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child"].into_iter().chain((!user.is_empty()).then_some(user)));
    let output = unshare.arg(contained.get_program()).args(contained.get_args()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is in use by") || said.contains("unshare"), "{said}");
    drop(process);

    let refused = |flags: [&str; 2]| {
        let output = local(&site).with(flags).command(Path::new(PROGRAM)).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(["--cpus", "1023"]).contains("has no core 1023"));
    assert!(refused(["--cpu-share", "51"]).contains("from 1 to 50"));
}
