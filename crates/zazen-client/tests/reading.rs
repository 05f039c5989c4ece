//! Reading through a daemon that may misbehave, and without a daemon: every frame exactly once,
//! never a wrong byte.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Running, Script, content, name, write_frames};
use std::collections::BTreeSet;
use std::path::PathBuf;
use zazen_assign::{Protocol, Rules, Solo};
use zazen_client::{Dataset, FrameReader, OpenOptions, ReadOptions, ReadStats};
use zazen_core::{Error, ErrorKind, RunSet};
use zazen_frames::messages::{Delivery, frames_fn};

const BYTES: usize = 70_000;

struct Site {
    _folder: tempfile::TempDir,
    root: PathBuf,
}

fn place(frames: u64, bytes: usize) -> Site {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("sim");
    write_frames(&root, 0..frames, bytes);
    Site { _folder: folder, root }
}

/// Reads to the end: the numbers with right bytes, and the errors.
fn read_all(reader: &mut FrameReader, bytes: usize) -> (BTreeSet<u64>, Vec<Error>) {
    let (mut seen, mut errors) = (BTreeSet::new(), Vec::new());
    for item in reader {
        match item {
            Ok(frame) => {
                assert_eq!(frame.bytes(), content(frame.number, bytes), "frame {}", frame.number);
                assert!(seen.insert(frame.number), "frame {} came twice", frame.number);
            }
            Err(error) => errors.push(error),
        }
    }
    (seen, errors)
}

fn check(frames: u64, script: Script, options: &ReadOptions, expected_errors: usize) -> ReadStats {
    let place = place(frames, BYTES);
    let running = Running::start(&place.root, script);
    let mut dataset = running.open();
    assert!(dataset.has_daemon());
    let set = dataset.extent().unwrap();
    assert_eq!(set.len(), frames);
    let mut reader = dataset.frames(set, options).unwrap();
    assert_eq!(reader.remaining(), frames);
    let (seen, errors) = read_all(&mut reader, BYTES);
    assert_eq!(errors.len(), expected_errors, "{errors:?}");
    assert_eq!(seen.len() + errors.len(), frames as usize);
    assert_eq!(reader.remaining(), 0);
    assert!(reader.next().is_none());
    let stats = reader.stats();
    assert_eq!(stats.bytes, seen.len() as u64 * BYTES as u64);
    stats
}

#[test]
fn every_frame_once_through_a_daemon() {
    let stats = check(300, Script::default(), &ReadOptions::default(), 0);
    assert_eq!((stats.native, stats.backing_reads, stats.mended), (300, 0, 0));
}

#[test]
fn one_reader_and_a_tiny_memory_bound_still_get_through() {
    let options = ReadOptions { memory_max: 1, readers: Some(1), check: true };
    check(50, Script::default(), &options, 0);
    let options = ReadOptions { memory_max: 3 * BYTES as u64, readers: Some(8), check: true };
    check(50, Script::default(), &options, 0);
}

#[test]
fn bad_bytes_are_mended_and_never_seen() {
    let script = Script { bad_once: [3, 99].into(), ..Script::default() };
    let stats = check(100, script, &ReadOptions::default(), 0);
    assert_eq!(stats.mended, 2);
}

#[test]
fn bytes_that_stay_bad_come_from_the_backing_store_or_are_an_error_that_names_the_frame() {
    let place = place(20, BYTES);
    let running = Running::start(&place.root, Script { bad_always: [7].into(), ..Script::default() });
    let mut dataset = running.open();
    let mut reader = dataset.frames(RunSet::range(0, 19), &ReadOptions::default()).unwrap();
    let (seen, errors) = read_all(&mut reader, BYTES);
    assert_eq!((seen.len(), errors.len()), (20, 0), "{errors:?}");
    assert_eq!(*running.fake.reported.lock().unwrap(), [7].into());
    assert_eq!(dataset.read(7).unwrap().bytes(), content(7, BYTES));
    std::fs::remove_file(place.root.join(name(7))).unwrap();
    let error = dataset.read(7).unwrap_err();
    assert!(error.to_string().contains("frame 7"), "{error}");
    assert_eq!(dataset.read(8).unwrap().bytes(), content(8, BYTES));
}

#[test]
fn frames_that_fail_are_errors_and_the_rest_goes_on() {
    let script = Script { failing: [0, 5, 49].into(), ..Script::default() };
    check(50, script, &ReadOptions::default(), 3);
}

#[test]
fn inline_frames_are_frames() {
    let script = Script { inline: (0..100).filter(|number| number % 3 == 0).collect(), ..Script::default() };
    let stats = check(100, script, &ReadOptions::default(), 0);
    assert_eq!((stats.native, stats.backing_reads), (66, 34));
}

#[test]
fn a_daemon_that_dies_in_mid_scan_costs_no_frame() {
    for after in [0, 1, 64, 130, 199] {
        let script = Script { dies_after: Some(after), ..Script::default() };
        let stats = check(200, script, &ReadOptions::default(), 0);
        assert_eq!(stats.native + stats.backing_reads, 200);
        assert!(stats.native <= after && stats.backing_reads >= 200 - after, "{stats:?} after {after}");
    }
    // One warning for each daemon (another test of this process may have drained some).
    let warnings = zazen_client::warnings();
    let lost: Vec<_> = warnings.iter().filter(|text| text.contains("stopped answering")).collect();
    let distinct: BTreeSet<_> = lost.iter().collect();
    assert_eq!(distinct.len(), lost.len(), "{warnings:?}");
    assert!(lost.iter().all(|text| text.contains("node fake") && text.contains("fake.sock")), "{warnings:?}");
}

#[test]
fn a_daemon_that_drains_in_mid_scan_costs_no_frame() {
    let script = Script { drains_after: Some(70), ..Script::default() };
    let stats = check(200, script, &ReadOptions::default(), 0);
    assert_eq!((stats.native, stats.backing_reads), (70, 130));
}

#[test]
fn a_daemon_that_counts_wrongly_is_put_right() {
    check(100, Script { twice: true, ..Script::default() }, &ReadOptions::default(), 0);
    let stats = check(100, Script { ends_after: Some(40), ..Script::default() }, &ReadOptions::default(), 0);
    assert_eq!((stats.native, stats.backing_reads), (40, 60));
}

#[test]
fn without_a_daemon_the_result_is_the_same_with_one_warning() {
    let place = place(150, BYTES);
    let nowhere = place.root.join("no.sock");
    let options = OpenOptions { socket: Some(nowhere), ..OpenOptions::default() };
    for _ in 0..2 {
        let mut dataset = Dataset::open(&place.root, &options).unwrap();
        assert!(!dataset.has_daemon());
        assert_eq!(dataset.query(0, 149, 1).unwrap(), (RunSet::new(), RunSet::new()));
        let set = dataset.extent().unwrap();
        let mut reader = dataset.frames(set, &ReadOptions::default()).unwrap();
        let (seen, errors) = read_all(&mut reader, BYTES);
        assert_eq!((seen.len(), errors.len()), (150, 0));
        assert_eq!(reader.stats().backing_reads, 150);
        let frame = dataset.read(3).unwrap();
        assert_eq!(
            (frame.delivery, frame.path()),
            (None::<Delivery>, Some(place.root.join(name(3)).as_path()))
        );
        assert_eq!(frame.container(), None);
    }
    let warnings = zazen_client::warnings();
    assert!(warnings.iter().filter(|text| text.contains("no Zazen daemon")).count() <= 1, "{warnings:?}");
}

#[test]
fn direct_reading_needs_no_daemon_and_says_what_is_missing() {
    let place = place(10, 100);
    let options = OpenOptions { direct: true, ..OpenOptions::default() };
    let mut dataset = Dataset::open(&place.root, &options).unwrap();
    let mut reader = dataset.frames(RunSet::range(5, 14), &ReadOptions::default()).unwrap();
    let (seen, errors) = read_all(&mut reader, 100);
    assert_eq!((seen.len(), errors.len()), (5, 5));
    assert!(errors.iter().all(|error| error.kind() == ErrorKind::NotFound), "{errors:?}");
    let missing = Dataset::open(&place.root.join("no"), &options).err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let file = Dataset::open(&place.root.join(name(1)), &options).err().unwrap();
    assert_eq!(file.kind(), ErrorKind::InvalidArgument);
    assert_eq!(dataset.query(5, 4, 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(dataset.query(0, 4, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(dataset.read(1 << 41).unwrap_err().kind(), ErrorKind::TooLarge);
}

#[test]
fn a_daemon_killed_between_calls_is_done_without() {
    let place = place(30, 1000);
    let running = Running::start(&place.root, Script::default());
    let mut dataset = running.open();
    assert_eq!(dataset.query(0, 29, 1).unwrap().0.len(), 30);
    running.kill();
    // The killer works on a thread of its own.
    while running.server.connections() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(dataset.extent().unwrap().len(), 30);
    assert!(!dataset.has_daemon());
    assert_eq!(dataset.node(), 77, "the identity stays what the other ranks were told");
    assert_eq!(dataset.read(4).unwrap().bytes(), content(4, 1000));
}

#[test]
fn a_daemon_killed_between_assignment_and_reading_is_done_without() {
    let place = place(30, 1000);
    let running = Running::start(&place.root, Script::default());
    let mut dataset = running.open();
    let assignment = dataset.assign(None, Rules::Full, Protocol::Owner, &Solo).unwrap();
    running.kill();
    while running.server.connections() > 0 {
        std::thread::yield_now();
    }
    let mut reader = dataset.frames(assignment.set, &ReadOptions::default()).unwrap();
    let (seen, errors) = read_all(&mut reader, 1000);
    assert_eq!((seen.len(), errors.len(), reader.stats().backing_reads), (30, 0, 30));
    assert!(!dataset.has_daemon());
}

#[test]
fn a_path_outside_of_the_daemons_roots_is_read_straight() {
    let (inside, outside) = (place(3, 100), place(3, 100));
    let running = Running::start(&inside.root, Script::default());
    let dataset = Dataset::open(&outside.root, &running.options()).unwrap();
    assert!(!dataset.has_daemon());
    let warnings = zazen_client::warnings();
    let root = inside.root.parent().unwrap().to_str().unwrap();
    // Another test of this process may have taken the warning. Then that test saw it.
    if let Some(text) = warnings.iter().find(|text| text.contains("not beneath")) {
        assert!(text.contains(root), "{text}");
    }
}

#[test]
fn when_the_backing_store_does_not_list_the_cache_is_not_taken_for_the_whole() {
    let place = place(12, 100);
    let running = Running::start(&place.root, Script::default());
    running.fake.listing_fails.store(true, std::sync::atomic::Ordering::SeqCst);
    let mut dataset = running.open();
    let error = dataset.extent().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // With a range nothing has changed.
    let assignment = dataset.assign(Some((0, 11, 1)), Rules::Full, Protocol::Owner, &Solo).unwrap();
    assert_eq!(assignment.set, RunSet::range(0, 11));
}

#[test]
fn assignment_of_the_whole_dataset_by_one_rank() {
    let place = place(25, 100);
    let running = Running::start(&place.root, Script::default());
    let mut dataset = running.open();
    let assignment = dataset.assign(None, Rules::Full, Protocol::Owner, &Solo).unwrap();
    assert_eq!(assignment.set, RunSet::range(0, 24));
    assert_eq!((assignment.total.native, assignment.total.residue), (25, 0));
    let assignment = dataset.assign(Some((0, 24, 5)), Rules::Full, Protocol::Owner, &Solo).unwrap();
    assert_eq!(assignment.set.iter().collect::<Vec<_>>(), [0, 5, 10, 15, 20]);
}

#[test]
fn an_error_of_one_rank_reaches_all() {
    let place = place(10, 100);
    let empty = place.root.parent().unwrap().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let direct = OpenOptions { direct: true, ..OpenOptions::default() };
    for whose in 0..3 {
        let results = zazen_assign::threads::run(3, |rank| {
            use zazen_assign::Collectives;
            let path = if rank.rank() == whose { &empty } else { &place.root };
            let mut dataset = Dataset::open(path, &direct).unwrap();
            dataset.assign(None, Rules::Full, Protocol::Owner, rank)
        });
        // Rank 0's extent counts for all ranks. If it is empty, all ranks fail. An empty extent of
        // another rank has no effect.
        assert!(results.iter().all(|result| result.is_err() == (whose == 0)), "rank {whose}: {results:?}");
        if whose == 0 {
            assert!(
                results.iter().all(|result| result.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound))
            );
        }
        let results = zazen_assign::threads::run(3, |rank| {
            use zazen_assign::Collectives;
            let mut dataset = Dataset::open(&place.root, &direct).unwrap();
            let range = if rank.rank() == whose { (5, 4, 1) } else { (0, 9, 1) };
            dataset.assign(Some(range), Rules::Full, Protocol::Owner, rank)
        });
        assert!(results.iter().all(Result::is_err), "rank {whose}: {results:?}");
    }
}

#[test]
fn ranks_share_a_dataset_without_daemons() {
    let place = place(100, 64);
    let direct = OpenOptions { direct: true, ..OpenOptions::default() };
    let results = zazen_assign::threads::run(4, |rank| {
        let mut dataset = Dataset::open(&place.root, &direct)?;
        let assignment = dataset.assign(None, Rules::Full, Protocol::Owner, rank)?;
        let mut reader = dataset.frames(assignment.set, &ReadOptions::default())?;
        Ok(read_all(&mut reader, 64).0)
    });
    let mut all = BTreeSet::new();
    for seen in results {
        for number in seen.unwrap() {
            assert!(all.insert(number), "frame {number} was read by two ranks");
        }
    }
    assert_eq!(all.len(), 100);
}

/// To connect costs more than the record.
#[test]
fn a_scans_record_goes_over_the_scans_own_connection() {
    let place = place(8, BYTES);
    let running = Running::start(&place.root, Script::default());
    let mut dataset = running.open();
    let calls = || running.fake.calls.lock().unwrap().clone();
    let of = |function| calls().into_iter().filter(move |(called, _)| *called == function);
    for whole in [true, false] {
        running.fake.calls.lock().unwrap().clear();
        let mut reader = dataset.frames(RunSet::range(0, 7), &ReadOptions::default()).unwrap();
        for frame in (&mut reader).take(if whole { 9 } else { 7 }) {
            frame.unwrap();
            // A shorter scan leaves no record.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        drop(reader);
        let kept: Vec<u64> = of(frames_fn::KEEP_RECORD).map(|(_, connection)| connection).collect();
        assert_eq!(kept.len(), 1, "whole: {whole}");
        if whole {
            let scans: BTreeSet<u64> = of(frames_fn::SCAN_NEXT).map(|(_, connection)| connection).collect();
            assert_eq!(BTreeSet::from_iter(kept), scans);
        }
    }
}

/// As a node that was suspended, or a daemon that got no processor: it was silent for longer than
/// allowed, and answers when it is asked whether it lives.
#[test]
fn a_daemon_that_answers_again_is_asked_for_the_scan_again() {
    for paths in [false, true] {
        let place = place(8, BYTES);
        let running = Running::start(&place.root, Script { stopped: 2, ..Script::default() });
        let silence = Some(std::time::Duration::from_secs(1));
        let mut dataset =
            Dataset::open(&running.fake.root, &OpenOptions { silence, ..running.options() }).unwrap();
        let set = RunSet::range(0, 7);
        let count = match paths {
            false => dataset.frames(set, &ReadOptions::default()).unwrap().filter(Result::is_ok).count(),
            true => dataset.places(set).unwrap().filter(|(_, place)| place.is_ok()).count(),
        };
        assert_eq!(count, 8);
        assert_eq!(running.fake.script.lock().unwrap().stopped, 0);
        assert_eq!(running.fake.frames_out.load(std::sync::atomic::Ordering::SeqCst), 8, "from the daemon");
    }
}
