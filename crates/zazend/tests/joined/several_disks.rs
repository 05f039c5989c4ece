//! One daemon over several disks.

use crate::common::*;
use std::path::{Path, PathBuf};
use zazen_frames::messages::Delivery;
use zazend::Daemon;
use zazend::config::{Args, Config, check_budget};

const LENGTH: usize = 140_000;

fn other(site: &Site) -> PathBuf {
    site.dir.path().join("second")
}

fn args(site: &Site) -> Args {
    let mut args = site.args();
    args.cache.push(other(site));
    args
}

fn start(site: &Site) -> Daemon {
    Daemon::start(Config::assemble(&args(site)).unwrap()).unwrap()
}

fn files(root: &Path) -> usize {
    let named =
        |path: PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("frame-"));
    let mut folders = vec![root.to_owned()];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => count += usize::from(named(path)),
            }
        }
    }
    count
}

#[test]
fn frames_lie_on_both_disks_and_are_one_cache() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..20, LENGTH);
    let daemon = start(&site);
    let mut client = site.client();
    (0..10).for_each(|number| assert!(client.push_valid(&sim, number).is_ok()));
    let handle = client.open(&sim).unwrap().handle;
    check_scan(&client.scan(handle, &set(0..20), 7), &set(0..20), LENGTH, |number| match number {
        0..10 => Delivery::Native,
        _ => Delivery::Fetched,
    });
    assert_eq!((files(&site.cache), files(&other(&site))), (10, 10));
    let status = client.status();
    let disks = status["disks"].as_array().unwrap();
    assert_eq!(disks.len(), 2, "{status}");
    let sum = |key: &str| disks.iter().map(|disk| disk[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (sum("used"), sum("budget")),
        (status["space"]["used"].as_u64().unwrap(), status["space"]["budget"].as_u64().unwrap())
    );
    assert_eq!(status["datasets"].as_array().unwrap().len(), 1);
    daemon.stop().unwrap();

    // In the other order, too: a frame is where it is.
    let mut turned = args(&site);
    turned.cache.reverse();
    let daemon = Daemon::start(Config::assemble(&turned).unwrap()).unwrap();
    let mut client = site.client();
    let handle = client.open(&sim).unwrap().handle;
    check_scan(&client.scan(handle, &set(0..20), 7), &set(0..20), LENGTH, |number| match number {
        0..10 => Delivery::Native,
        _ => Delivery::Alien,
    });
    daemon.stop().unwrap();
}

/// A disk that cannot be opened costs its frames, and is named.
#[test]
fn a_daemon_starts_without_a_disk_that_fails() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..8, LENGTH);
    let daemon = start(&site);
    let mut client = site.client();
    (0..8).for_each(|number| assert!(client.push_valid(&sim, number).is_ok()));
    daemon.stop().unwrap();
    // One disk is left out: what was on it is a miss, and its frames come to the other one.
    let mut alone = site.args();
    alone.cache = vec![other(&site)];
    let daemon = Daemon::start(Config::assemble(&alone).unwrap()).unwrap();
    let mut client = site.client();
    let handle = client.open(&sim).unwrap().handle;
    check_scan(&client.scan(handle, &set(0..8), 50), &set(0..8), LENGTH, |number| match number % 2 {
        0 => Delivery::Fetched,
        _ => Delivery::Native,
    });
    daemon.stop().unwrap();
    // Back again, some numbers are on both disks. The copies that came meanwhile are the newer
    // ones.
    let daemon = start(&site);
    let mut client = site.client();
    let handle = client.open(&sim).unwrap().handle;
    check_scan(&client.scan(handle, &set(0..8), 50), &set(0..8), LENGTH, |number| match number % 2 {
        0 => Delivery::Alien,
        _ => Delivery::Native,
    });
    daemon.stop().unwrap();
}

#[test]
fn settings_of_several_disks_are_checked() {
    let site = Site::default();
    let refused = |change: &dyn Fn(&mut Args), words: &str| {
        let mut args = args(&site);
        change(&mut args);
        let config = Config::assemble(&args).and_then(|config| check_budget(&config).map(|()| config));
        let error = config.and_then(Daemon::start).err().unwrap().to_string();
        assert!(error.contains(words), "{words:?} is not in {error}");
    };
    refused(&|args| args.cache.push(site.cache.clone()), "is given twice");
    refused(&|args| args.cache.push(site.cache.join("inner")), "one lies within the other");
    refused(&|args| args.budget = vec!["1M".into(), "2M".into(), "3M".into()], "3 are given for 2 caches");
    refused(&|args| args.budget = vec!["8M".into(), "1K".into()], "holds next to nothing");
    let mut args = args(&site);
    args.budget = vec!["8M".into(), "16M".into()];
    let daemon = Daemon::start(Config::assemble(&args).unwrap()).unwrap();
    let status = site.client().status();
    let budgets: Vec<u64> =
        status["disks"].as_array().unwrap().iter().map(|disk| disk["budget"].as_u64().unwrap()).collect();
    assert_eq!(budgets, [8 << 20, 16 << 20]);
    daemon.stop().unwrap();
    // A file says the same.
    let file = site.dir.path().join("zazend.toml");
    let text = format!(
        "cache = [{:?}, {:?}]\nbudget = [\"8M\", \"16M\"]\nbacking = [{:?}]\n",
        site.cache,
        other(&site),
        site.backing
    );
    std::fs::write(&file, text).unwrap();
    let config = Config::assemble(&Args { config: Some(file), ..Args::default() }).unwrap();
    let caches: Vec<_> = config.caches.iter().map(|spec| (spec.root.clone(), spec.budget_bytes)).collect();
    assert_eq!(caches, [(site.cache.clone(), Some(8 << 20)), (other(&site), Some(16 << 20))]);
}
