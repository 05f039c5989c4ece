//! Random access: frames by number and by name, in any order, compared with the files themselves.

#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

mod common;

use clap::Parser;
use common::{PATTERN, Running, Script, content, name, write_frames};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use zazen_client::{Dataset, OpenOptions, READ_MANY_MAX};
use zazen_core::{Error, ErrorKind};
use zazend::Daemon;
use zazend::config::{Args, Config};

struct Site {
    _folder: tempfile::TempDir,
    root: PathBuf,
    places: zazen_testbed::Site,
}

impl Site {
    fn new() -> Site {
        let folder = tempfile::tempdir().unwrap();
        let places = zazen_testbed::Site::make(folder.path()).unwrap();
        let root = places.backing.join("sim");
        std::fs::create_dir_all(&root).unwrap();
        Site { root, places, _folder: folder }
    }

    fn start(&self) -> Daemon {
        let mut launch = self.places.node(0).launch();
        launch.budget = Some("256M".into());
        let args = Args::parse_from(std::iter::once("zazend".into()).chain(launch.flags()));
        Daemon::start(Config::assemble(&args).unwrap()).unwrap()
    }

    fn open(&self) -> Dataset {
        let options = OpenOptions { socket: Some(self.places.node(0).socket), ..OpenOptions::default() };
        let dataset = Dataset::open(&self.root, &options).unwrap();
        assert!(dataset.has_daemon(), "{:?}", zazen_client::warnings());
        dataset
    }
}

fn kind(outcome: &Result<zazen_client::Frame, Error>) -> Option<ErrorKind> {
    outcome.as_ref().err().map(Error::kind)
}

/// Reads `numbers` and compares each with its file.
fn check(dataset: &mut Dataset, root: &Path, numbers: &[u64]) {
    let outcomes = dataset.read_many(numbers).unwrap();
    assert_eq!(outcomes.len(), numbers.len());
    for (number, outcome) in numbers.iter().zip(outcomes) {
        match (std::fs::read(root.join(name(*number))), outcome) {
            (Ok(expected), Ok(frame)) => {
                assert_eq!(frame.number, *number);
                assert!(frame.bytes() == expected, "frame {number}");
            }
            (Err(_), Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                assert!(error.to_string().contains(&number.to_string()), "{error}");
            }
            (file, outcome) => panic!("frame {number}: {:?}, {outcome:?}", file.map(|bytes| bytes.len())),
        }
    }
}

/// Lengths on both sides of what the store packs, and an empty frame.
fn length(number: u64) -> usize {
    match number % 7 {
        0 => 0,
        1 => 16 << 10,
        2 => (16 << 10) + 1,
        3 => 200_000,
        _ => 3000 + number as usize,
    }
}

#[test]
fn any_order_any_number_of_times_with_and_without_a_daemon() {
    let site = Site::new();
    for number in (0..400).filter(|number| number % 5 != 4) {
        std::fs::write(site.root.join(name(number)), content(number, length(number))).unwrap();
    }
    let daemon = site.start();
    let mut cached = site.open();
    let options = OpenOptions { direct: true, ..OpenOptions::default() };
    let direct = Dataset::open(&site.root, &options).unwrap();
    check(&mut cached, &site.root, &[]);
    let both = RefCell::new((cached, direct));
    let config = ProptestConfig { cases: 40, ..ProptestConfig::default() };
    proptest!(config, |(numbers in prop::collection::vec(0u64..410, 0..90))| {
        check(&mut both.borrow_mut().0, &site.root, &numbers);
        check(&mut both.borrow_mut().1, &site.root, &numbers);
    });
    let (mut cached, _) = both.into_inner();
    // Every frame has been asked for by now, in one go as well.
    let all: Vec<u64> = (0..410).rev().chain(0..410).collect();
    check(&mut cached, &site.root, &all);
    assert!(cached.has_daemon());
    drop(daemon);
}

#[test]
fn more_than_fits_into_one_answer() {
    let site = Site::new();
    write_frames(&site.root, 0..9000, 300);
    // More files of their own than a message has descriptors.
    write_frames(&site.root, 9000..9300, 17_000);
    let daemon = site.start();
    let mut dataset = site.open();
    let numbers: Vec<u64> = (0..9300).map(|at| at * 7919 % 9300).collect();
    for _ in 0..2 {
        check(&mut dataset, &site.root, &numbers);
    }
    drop(daemon);
}

/// Where the frames lie, as read in one call.
fn places(dataset: &mut Dataset, numbers: &[u64]) -> Vec<Option<(PathBuf, u64)>> {
    let place = |frame: zazen_client::Frame| frame.container().map(|(path, at)| (path.to_owned(), at));
    dataset.read_many(numbers).unwrap().into_iter().map(|frame| place(frame.unwrap())).collect()
}

#[test]
fn a_few_small_frames_come_as_bytes_that_are_still_compared_and_checked() {
    let site = Site::new();
    write_frames(&site.root, 0..20, 3000);
    write_frames(&site.root, 20..22, (16 << 10) + 1);
    let daemon = site.start();
    let mut dataset = site.open();
    let all: Vec<u64> = (0..22).collect();
    check(&mut dataset, &site.root, &all);
    assert_eq!(places(&mut dataset, &[3]), [None]);
    assert_eq!(places(&mut dataset, &[7, 3, 3, 5, 0]), [None, None, None, None, None], "four frames");
    assert!(places(&mut dataset, &[20])[0].is_some(), "a longer one");
    let many = places(&mut dataset, &[0, 1, 2, 3, 4, 5]);
    assert!(many.iter().all(Option::is_some), "{many:?}");
    check(&mut dataset, &site.root, &[20, 3, 5]);

    // A source that was rewritten at the same length.
    std::fs::write(site.root.join(name(3)), content(103, 3000)).unwrap();
    check(&mut dataset, &site.root, &[3]);
    std::fs::remove_file(site.root.join(name(4))).unwrap();
    check(&mut dataset, &site.root, &[4, 3]);

    // A copy whose bytes went bad.
    let (segment, at) = places(&mut dataset, &[0, 1, 2, 5, 6, 7])[3].clone().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&segment).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 100], at + 50).unwrap();
    check(&mut dataset, &site.root, &[5]);
    check(&mut dataset, &site.root, &[5, 6]);
    assert!(dataset.has_daemon());
    drop(daemon);
}

#[test]
fn what_cannot_be_asked_for() {
    let site = Site::new();
    write_frames(&site.root, 0..3, 100);
    let daemon = site.start();
    let mut dataset = site.open();
    let refused = |dataset: &mut Dataset, numbers: &[u64]| dataset.read_many(numbers).unwrap_err();
    for number in [u64::MAX, 1 << 63, (1 << 40) + 1] {
        let error = refused(&mut dataset, &[0, number]);
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        assert!(error.to_string().contains(&number.to_string()), "{error}");
    }
    let error = refused(&mut dataset, &vec![0; READ_MANY_MAX + 1]);
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    check(&mut dataset, &site.root, &[1 << 40, 2, 3]);
    drop(daemon);
}

#[test]
fn a_source_that_changes_or_goes_is_noticed_each_time() {
    let site = Site::new();
    write_frames(&site.root, 0..20, 3000);
    let daemon = site.start();
    let mut dataset = site.open();
    let numbers: Vec<u64> = (0..20).collect();
    check(&mut dataset, &site.root, &numbers);
    for round in 1..5 {
        std::fs::write(site.root.join(name(3)), content(1000 + round, 3000 + round as usize)).unwrap();
        check(&mut dataset, &site.root, &numbers);
        check(&mut dataset, &site.root, &[3]);
    }
    std::fs::remove_file(site.root.join(name(3))).unwrap();
    check(&mut dataset, &site.root, &numbers);
    std::fs::write(site.root.join(name(3)), content(7, 10)).unwrap();
    check(&mut dataset, &site.root, &numbers);
    drop(daemon);
}

#[test]
fn a_daemon_that_dies_or_drains_or_lies_costs_no_frame() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("sim");
    write_frames(&root, 0..30, 2000);
    let numbers: Vec<u64> = (0..30).chain(5..9).rev().collect();
    let some = BTreeSet::from([3, 4, 17]);
    let scripts = [
        Script::default(),
        Script { dies_after: Some(0), ..Script::default() },
        Script { dies_after: Some(7), ..Script::default() },
        Script { drains_after: Some(0), ..Script::default() },
        Script { drains_after: Some(7), ..Script::default() },
        Script { ends_after: Some(7), ..Script::default() },
        Script { ends_after: Some(0), ..Script::default() },
        Script { twice: true, ..Script::default() },
        Script { bad_once: some.clone(), ..Script::default() },
        Script { bad_always: some.clone(), ..Script::default() },
        Script { inline: some.clone(), ..Script::default() },
    ];
    for (at, script) in scripts.into_iter().enumerate() {
        println!("script {at}");
        let running = Running::start(&root, script);
        let mut dataset = running.open();
        check(&mut dataset, &root, &numbers);
        check(&mut dataset, &root, &[7, 7, 3]);
    }
    let running = Running::start(&root, Script { failing: some.clone(), ..Script::default() });
    let outcomes = running.open().read_many(&numbers).unwrap();
    for (number, outcome) in numbers.iter().zip(&outcomes) {
        assert_eq!(kind(outcome), some.contains(number).then_some(ErrorKind::NotFound), "{number}");
    }
}

#[test]
fn frames_have_the_names_of_their_files() {
    let site = Site::new();
    write_frames(&site.root, 0..3, 100);
    let daemon = site.start();
    let mut dataset = site.open();
    let by_name = |dataset: &mut Dataset, name: &str| dataset.number_of(name).map_err(|error| error.kind());
    for number in 0..3 {
        assert_eq!(by_name(&mut dataset, &name(number)), Ok(number));
        let absolute = site.root.join(name(number)).to_str().unwrap().to_owned();
        assert_eq!(by_name(&mut dataset, &absolute), Ok(number));
    }
    for bad in ["frame-7.bin", "other", "", "/etc/passwd", "sub/frame-000001.bin"] {
        assert_eq!(by_name(&mut dataset, bad), Err(ErrorKind::NotFound), "{bad}");
    }
    assert_eq!(by_name(&mut dataset, "../sim/frame-000001.bin"), Err(ErrorKind::InvalidArgument));
    assert_eq!(dataset.layout().and_then(|layout| layout.template()).unwrap().to_string(), PATTERN);
    drop(daemon);
}

#[test]
fn files_of_class_folders_have_stable_numbers() {
    let site = Site::new();
    let mut names: Vec<String> = Vec::new();
    for class in ["cat", "dog_2", "10"] {
        std::fs::create_dir(site.root.join(class)).unwrap();
        names.extend((0..40).map(|at| format!("{class}/img_{at}_v2.jpg")));
        names.push(format!("{class}/plain.jpg"));
    }
    names.sort();
    for file in &names {
        std::fs::write(site.root.join(file), file.repeat(50)).unwrap();
    }
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    std::fs::write(site.root.join("zazen.toml"), format!("files = [{}]", quoted.join(","))).unwrap();
    let daemon = site.start();
    let mut dataset = site.open();
    for (number, file) in (0..).zip(&names) {
        assert_eq!(dataset.number_of(file).unwrap(), number);
    }
    assert_eq!(dataset.number_of("cat/none.jpg").unwrap_err().kind(), ErrorKind::NotFound);
    let numbers: Vec<u64> = (0..names.len() as u64).rev().collect();
    for (number, outcome) in numbers.iter().zip(dataset.read_many(&numbers).unwrap()) {
        assert_eq!(outcome.unwrap().bytes(), names[*number as usize].repeat(50).as_bytes());
    }
    drop(daemon);
}

/// Frames of one read each, compared with a plain read of the file; how many came from places that
/// the daemon gave ahead, which alone are parts of the cache's files.
fn check_each(dataset: &mut Dataset, root: &Path, numbers: impl IntoIterator<Item = u64>) -> usize {
    let mut placed = 0;
    for number in numbers {
        match (std::fs::read(root.join(name(number))), dataset.read(number)) {
            (Ok(expected), Ok(frame)) => {
                assert!(frame.number == number && frame.bytes() == expected, "frame {number}");
                placed += usize::from(frame.container().is_some());
            }
            (Err(plain), Err(error)) => {
                let expected = Error::io("plain", plain).kind();
                assert_eq!(error.kind(), expected, "frame {number}: {error}");
            }
            (file, frame) => panic!("frame {number}: {:?}, {frame:?}", file.map(|bytes| bytes.len())),
        }
    }
    placed
}

/// Files that no look takes for young: their copies can be compared again later.
fn write_settled(root: &Path, numbers: impl IntoIterator<Item = u64>, bytes: usize) {
    write_frames(root, numbers, bytes);
    // Several ticks of a file system's clock.
    std::thread::sleep(std::time::Duration::from_millis(100));
}

/// Reads until frames come from their places.
fn warm(dataset: &mut Dataset, root: &Path, count: u64) {
    let begun = std::time::Instant::now();
    while check_each(dataset, root, 0..count) == 0 {
        assert!(begun.elapsed().as_secs() < 60, "no frame is read from its place");
    }
}

/// Places are given only where sources are on a disk of this machine.
#[allow(clippy::print_stdout, reason = "a helper of tests says why they skip")]
fn has_places(root: &Path) -> bool {
    use zazen_backing::{Backing, DirectoryBacking};
    let backing = DirectoryBacking::new(root).unwrap();
    let here: std::sync::Arc<[zazen_core::RelPath]> = vec![Default::default()].into();
    let near = backing.near_folders(&Default::default(), &here).unwrap()[0];
    if !near {
        println!("skipped: temporary files are on a file system that is not known to be local");
    }
    near
}

#[test]
fn a_frame_read_from_its_place_is_as_a_plain_read_of_its_file() {
    const COUNT: u64 = 300;
    let site = Site::new();
    write_settled(&site.root, 0..COUNT, 3000);
    let daemon = site.start();
    let mut dataset = site.open();
    let holds_places = has_places(&site.root);
    let root = site.root.clone();
    if holds_places {
        warm(&mut dataset, &root, COUNT);
    }
    let mut direct =
        zazen_client::Remote::connect(&zazen_client::Target::Local(site.places.node(0).socket), None)
            .unwrap();
    let handle = direct.open(&root, None, false).unwrap().handle;
    let dataset = RefCell::new(dataset);
    let remote = RefCell::new(direct);
    let placed = std::cell::Cell::new(0);
    let change = (0u8..8, 0..COUNT, prop::collection::vec(0..COUNT, 1..40));
    let config = ProptestConfig { cases: 60, ..ProptestConfig::default() };
    proptest!(config, |(changes in prop::collection::vec(change, 1..6))| {
        for (what, number, reads) in changes {
            let file = root.join(name(number));
            match what {
                // At the same length, in place; and another file under the same name.
                0 => drop(std::fs::write(&file, content(number + 5000, 3000))),
                1 => {
                    let other = root.join("other");
                    std::fs::write(&other, content(number + 9000, 3000)).unwrap();
                    std::fs::rename(&other, &file).unwrap();
                }
                2 => drop(std::fs::write(&file, content(number, 2999))),
                3 => drop(std::fs::remove_file(&file)),
                // For root, the file stays readable.
                4 => {
                    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o000);
                    drop(std::fs::set_permissions(&file, closed));
                }
                5 => {
                    let away = root.with_extension("away");
                    std::fs::rename(&root, &away).unwrap();
                    std::fs::create_dir(&root).unwrap();
                    for entry in std::fs::read_dir(&away).unwrap() {
                        let entry = entry.unwrap();
                        if let Ok(bytes) = std::fs::read(entry.path()) {
                            let bytes: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
                            std::fs::write(root.join(entry.file_name()), bytes).unwrap();
                        }
                    }
                    std::fs::remove_dir_all(&away).unwrap();
                }
                6 => drop(remote.borrow_mut().evict(handle, None).unwrap()),
                _ => {}
            }
            let reads = std::iter::once(number).chain(reads).chain([number]);
            placed.set(placed.get() + check_each(&mut dataset.borrow_mut(), &root, reads));
        }
    });
    assert!(dataset.borrow().has_daemon());
    println!("{} frames were read from their places", placed.get());
    drop(daemon);
}

#[test]
fn a_replaced_source_is_noticed_between_two_reads_of_a_place() {
    let site = Site::new();
    write_settled(&site.root, 0..200, 3000);
    if !has_places(&site.root) {
        return;
    }
    let daemon = site.start();
    let mut dataset = site.open();
    warm(&mut dataset, &site.root, 200);
    for round in 1..200u64 {
        let number = round * 7 % 200;
        check_each(&mut dataset, &site.root, [number]);
        std::fs::write(site.root.join(name(number)), content(1000 + round, 3000)).unwrap();
        check_each(&mut dataset, &site.root, [number, number]);
    }
    drop(daemon);
}

#[test]
fn places_outlive_their_daemon_and_their_copies_as_long_as_their_sources_are_as_they_were() {
    let site = Site::new();
    write_settled(&site.root, 0..200, 3000);
    if !has_places(&site.root) {
        return;
    }
    let daemon = site.start();
    let mut dataset = site.open();
    warm(&mut dataset, &site.root, 200);
    let mut remote =
        zazen_client::Remote::connect(&zazen_client::Target::Local(site.places.node(0).socket), None)
            .unwrap();
    let handle = remote.open(&site.root, None, false).unwrap().handle;
    assert!(remote.evict(handle, None).unwrap().frames > 0);
    check_each(&mut dataset, &site.root, 0..200);
    warm(&mut dataset, &site.root, 200);
    drop(remote);
    drop(daemon);
    check_each(&mut dataset, &site.root, 0..100);
    std::fs::write(site.root.join(name(3)), content(7, 3000)).unwrap();
    std::fs::remove_file(site.root.join(name(4))).unwrap();
    check_each(&mut dataset, &site.root, 0..200);
    assert!(!dataset.has_daemon(), "a frame that changed is asked for");
    let daemon = site.start();
    check_each(&mut dataset, &site.root, 0..200);
    drop(daemon);
}

#[test]
fn threads_that_share_a_dataset_see_their_own_changes() {
    let site = Site::new();
    write_settled(&site.root, 0..400, 2000);
    let daemon = site.start();
    let options = OpenOptions { socket: Some(site.places.node(0).socket), ..OpenOptions::default() };
    let shared = zazen_client::SharedDataset::open(&site.root, options).unwrap();
    std::thread::scope(|scope| {
        for own in 0..4u64 {
            let (shared, root) = (&shared, &site.root);
            scope.spawn(move || {
                for round in 0..300u64 {
                    let number = own * 100 + round * 37 % 100;
                    if round % 5 == 4 {
                        std::fs::write(root.join(name(number)), content(round + 7000, 2000)).unwrap();
                    }
                    let frame = shared.with(|dataset| dataset.read(number)).unwrap();
                    assert!(frame.bytes() == std::fs::read(root.join(name(number))).unwrap(), "{number}");
                }
            });
        }
    });
    shared.close();
    drop(daemon);
}

#[test]
fn sources_of_links_and_young_files_and_other_ends_are_read_by_the_daemon() {
    // A link is not looked at by its name alone.
    let site = Site::new();
    let real = site.root.with_extension("real");
    write_settled(&real, 0..100, 3000);
    for number in 0..100 {
        let link = site.root.join(name(number));
        std::os::unix::fs::symlink(format!("../sim.real/{}", name(number)), &link).unwrap();
    }
    let daemon = site.start();
    let mut dataset = site.open();
    for _ in 0..5 {
        assert_eq!(check_each(&mut dataset, &site.root, 0..100), 0);
    }
    drop((dataset, daemon));
    // A daemon of an older release knows no places.
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("sim");
    write_frames(&root, 0..100, 2000);
    let running = Running::start(&root, Script::default());
    let mut dataset = running.open();
    for _ in 0..3 {
        assert_eq!(check_each(&mut dataset, &root, 0..100), 0);
    }
    assert!(dataset.has_daemon());
}
