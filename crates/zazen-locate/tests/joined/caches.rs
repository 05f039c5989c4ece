//! The nodes' frame caches against the contract, with real daemons in this process.

use clap::Parser;
use std::path::Path;
use zazen_client::Target;
use zazen_client::cluster::Remote;
use zazen_core::{FrameNo, NameTemplate, Origin, PARTS_PER_STEP_MAX, RunSet};
use zazen_locate::{FrameCaches, Locator, contract};
use zazen_testbed::Site;
use zazend::Daemon;
use zazend::config::{Args, Config};

const PATTERN: &str = "s{t}/b{b}.vtu";

fn start(places: &Site, node: usize) -> Daemon {
    let launch = places.node(node).launch();
    let args = Args::parse_from(std::iter::once("zazend".into()).chain(launch.flags()));
    Daemon::start(Config::assemble(&args).unwrap()).unwrap()
}

fn fetch(places: &Site, node: usize, root: &Path, pattern: Option<&str>, numbers: &[u64]) {
    let mut remote = Remote::connect(&Target::Local(places.node(node).socket), None).unwrap();
    let handle = remote.open(root, pattern, false).unwrap().handle;
    let set: RunSet = numbers.iter().copied().collect();
    let fetched = remote.fetch(handle, set, Origin::Native).unwrap();
    assert_eq!(fetched.fetched, numbers.len() as u64, "{fetched:?}");
}

fn caches(places: &Site, root: &Path, pattern: Option<&str>) -> FrameCaches {
    let node = |node: usize| (format!("n{node}"), Target::Local(places.node(node).socket), None);
    let template = pattern.map(|pattern| NameTemplate::parse(pattern).unwrap());
    FrameCaches { nodes: (0..3).map(node).collect(), directory: root.to_owned(), template }
}

#[test]
fn the_caches_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let places = Site::make(folder.path()).unwrap();
    let root = places.backing.join("ocean");
    for (file, bytes) in [("s0/b0.vtu", 500), ("s0/b1.vtu", 200_000), ("s1/b0.vtu", 9)] {
        std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        std::fs::write(root.join(file), vec![7; bytes]).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    let daemons: Vec<Daemon> = (0..2).map(|node| start(&places, node)).collect();
    let later = PARTS_PER_STEP_MAX;
    fetch(&places, 0, &root, Some(PATTERN), &[0, 1]);
    fetch(&places, 1, &root, Some(PATTERN), &[1, later]);
    // No daemon runs on n2: what it may hold is remote, and that is no error.
    let held: [(&str, u64, &[&str]); 3] =
        [("s0/b0.vtu", 500, &["n0"]), ("s0/b1.vtu", 200_000, &["n0", "n1"]), ("s1/b0.vtu", 9, &["n1"])];
    contract::holds(&mut caches(&places, &root, Some(PATTERN)), &held, &["n2"]);

    // The same files by a list.
    let files: Vec<&str> = held.iter().map(|(file, _, _)| *file).collect();
    std::fs::write(root.join("zazen.toml"), format!("files = {files:?}\n")).unwrap();
    fetch(&places, 1, &root, None, &[2]);
    let listed: [(&str, u64, &[&str]); 3] =
        [("s0/b0.vtu", 500, &[]), ("s0/b1.vtu", 200_000, &[]), ("s1/b0.vtu", 9, &["n1"])];
    contract::holds(&mut caches(&places, &root, None), &listed, &["n2"]);
    assert_eq!(NameTemplate::parse(PATTERN).unwrap().name(FrameNo::new(later).unwrap()), "s1/b0.vtu");
    drop(daemons);
    let found = caches(&places, &root, None).locate(&["s1/b0.vtu".to_owned()]).unwrap();
    assert_eq!((found.silent.len(), found.files[0].replicas.len()), (3, 0));
}
