//! The namespace against the contract, with real daemons in this process.

use clap::Parser;
use std::io::{Read, Seek};
use std::path::Path;
use std::time::{Duration, Instant};
use zazen_core::ErrorKind;
use zazen_locate::{InNamespace, Locator, contract, open_index_with};
use zazen_namespace_client::Namespace;
use zazen_namespace_client::core::operation::Mode;
use zazen_testbed::Site;
use zazend::Daemon;
use zazend::config::{Args, Config};

const NODES: usize = 3;
const WRITE: Mode = Mode { read: true, write: true, truncate: true };

struct Cluster {
    // Before their folder: a daemon that lives would make files there again.
    daemons: Vec<Daemon>,
    places: Site,
    _folder: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let places = Site::make(folder.path()).unwrap();
        let list = folder.path().join("nodes");
        let start = |node: usize| {
            let mut launch = places.node(node).launch();
            launch.name = Some(format!("n{node}"));
            let data = folder.path().join(format!("data{node}"));
            let launch = launch
                .with(["--namespace".as_ref(), data.as_os_str()])
                .with(["--namespace-nodes".as_ref(), list.as_os_str()])
                .with(["--namespace-format", "--namespace-replicas", "1", "--namespace-root", "trust"]);
            let args = Args::parse_from(std::iter::once("zazend".into()).chain(launch.flags()));
            Daemon::start(Config::assemble(&args).unwrap()).unwrap()
        };
        let daemons: Vec<Daemon> = (0..NODES).map(start).collect();
        let lines = daemons.iter().map(|daemon| format!("{}\n", daemon.listen_addr().unwrap()));
        std::fs::write(list.with_extension("new"), lines.collect::<String>()).unwrap();
        std::fs::rename(list.with_extension("new"), &list).unwrap();
        Cluster { daemons, places, _folder: folder }
    }

    fn client(&self, node: usize) -> Namespace {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            match Namespace::local(&self.places.node(node).socket) {
                Ok(namespace) => return namespace,
                Err(error) => assert!(Instant::now() < until, "node {node}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn write(namespace: &Namespace, path: &str, bytes: &[u8]) {
    let file = namespace.open_or_create(None, path.as_bytes(), 0o644, WRITE, false).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.close().unwrap();
}

#[test]
fn the_namespace_keeps_the_contract() {
    let cluster = Cluster::start();
    let nodes: Vec<Namespace> = (0..NODES).map(|node| cluster.client(node)).collect();
    nodes[0].mkdir_all(None, b"/ocean/s 0", 0o755).unwrap();
    // A file is where it was written.
    write(&nodes[0], "/ocean/s 0/a.vtu", &[1; 10]);
    write(&nodes[1], "/ocean/s 0/b.vtu", &vec![2; 5_000_000]);
    write(&nodes[2], "/ocean/c.vtu", &[3; 9]);
    write(&nodes[2], "/ocean/empty.vtu", &[]);
    let held: [(&str, u64, &[&str]); 4] = [
        ("s 0/a.vtu", 10, &["n0"]),
        ("s 0/b.vtu", 5_000_000, &["n1"]),
        ("c.vtu", 9, &["n2"]),
        ("/ocean/c.vtu", 9, &["n2"]),
    ];
    for namespace in &nodes {
        contract::holds(&mut InNamespace::new(namespace.clone(), "/ocean"), &held, &[]);
        contract::holds(&mut InNamespace::new(namespace.clone(), "namespace:/ocean/"), &held, &[]);
    }
    let mut odd = InNamespace::new(nodes[0].clone(), "/ocean");
    let found = odd.locate(&["s 0".to_owned(), "c.vtu/x".to_owned()]).unwrap();
    assert!(found.files.iter().all(|file| file.replicas.is_empty()), "a folder is on no node");

    // Bytes come from the holder; the holder itself has the file.
    for (node, namespace) in nodes.iter().enumerate() {
        let files = InNamespace::new(namespace.clone(), "/ocean");
        let mut got = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut got, &[9; 99]).unwrap();
        assert_eq!(files.fetch("s 0/b.vtu", 5_000_000, &mut got).unwrap(), 5_000_000);
        let mut bytes = Vec::new();
        got.rewind().unwrap();
        got.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, vec![2; 5_000_000]);
        for other in [4_999_999, 5_000_001] {
            let error = files.fetch("s 0/b.vtu", other, &mut got).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
        }
        let here = files.descriptor("s 0/b.vtu").unwrap();
        assert_eq!(here.is_some(), node == 1, "node {node}");
        if let Some(here) = here {
            assert_eq!(std::fs::File::from(here).metadata().unwrap().len(), 5_000_000);
        }
        let gone = files.fetch("gone.vtu", 1, &mut got).unwrap_err();
        assert!(gone.to_string().contains("namespace:/ocean/gone.vtu"), "{gone}");
    }

    // An index without a mount.
    write(&nodes[1], "/ocean/ts.csv", b"time,file\n0,s 0/a.vtu\n0.5,c.vtu\n");
    let connect = || Ok(nodes[2].clone());
    let opened = open_index_with(Path::new("namespace:/ocean/ts.csv"), &connect).unwrap();
    assert_eq!(opened.place.steps, [vec!["s 0/a.vtu"], vec!["c.vtu"]]);
    assert_eq!((opened.directory().as_str(), opened.index_files.len()), ("namespace:/ocean", 1));
    assert_eq!(opened.in_namespace().unwrap().as_deref(), Some("/ocean"));
    for (path, words) in [
        ("namespace:/ocean/gone.csv", "gone.csv"),
        ("namespace:ocean/ts.csv", "from the namespace's root"),
        ("namespace:/ocean/s{t}.vtu", "mount"),
    ] {
        let error = open_index_with(Path::new(path), &connect).unwrap_err();
        assert!(error.to_string().contains(words), "{path}: {error}");
    }
    drop((nodes, cluster.daemons));
}
