use super::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use tempfile::TempDir;

fn disk(with_next: bool) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("zazend.sock");
    assert!(Turns::at(&socket).is_none(), "no lock file, no turns");
    std::fs::write(folder.path().join("zazend.sock.turn"), "").unwrap();
    if with_next {
        std::fs::write(folder.path().join("zazend.sock.turn.next"), "").unwrap();
    }
    (folder, socket)
}

/// The turns of another process, as the locks see it. It waits long enough for a busy machine.
fn turns(socket: &Path, patience: Duration) -> Turns {
    Turns { patience, ..Turns::at(socket).unwrap() }
}

const FOR_EVER: Duration = Duration::from_secs(50);
const IN_VAIN: Duration = Duration::from_millis(1);

#[test]
fn a_turn_is_kept_until_it_is_spent_and_wanted() {
    let never = || -> bool { panic!("asked in vain") };
    assert!(PATIENCE >= 50 * TURN_TIME, "fifty readers wait for each other");
    let tenure = |bytes, millis| Tenure { bytes, time: Duration::from_millis(millis) };
    for (bytes, millis, spent) in [
        (0, 0, false),
        (TURN_BYTES - 1, 349, false),
        (TURN_BYTES, 0, true),
        (0, 350, true),
        (1 << 40, 1, true),
    ] {
        let tenure = tenure(bytes, millis);
        assert_eq!(tenure.is_spent(), spent, "{tenure:?}");
        if spent {
            assert_eq!((tenure.decide(|| true), tenure.decide(|| false)), (Fate::Over, Fate::Renewed));
        } else {
            assert_eq!(tenure.decide(never), Fate::Kept);
        }
    }
}

#[test]
fn one_process_at_a_time_and_each_comes_to_its_turn() {
    for with_next in [true, false] {
        let (_folder, socket) = disk(with_next);
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for process in 0..4 {
                let (socket, inside) = (&socket, &inside);
                scope.spawn(move || {
                    let turns = turns(socket, FOR_EVER);
                    for frame in 0..30 {
                        let turn = turns.take(TURN_BYTES / 3).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at the disk");
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                        if frame % 10 == process {
                            turns.rest();
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_turn_goes_on_from_frame_to_frame_and_is_passed_on_to_who_waits() {
    let (_folder, socket) = disk(true);
    let (greedy, patient) = (turns(&socket, FOR_EVER), turns(&socket, FOR_EVER));
    // Frames that the greedy process read since the patient one began to wait.
    let (frames, served) = (AtomicU64::new(0), AtomicBool::new(false));
    drop(greedy.take(1).unwrap());
    assert!(greedy.lock().held.is_some(), "kept after the frame");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let turn = patient.take(1).unwrap();
            served.store(true, Ordering::SeqCst);
            drop(turn);
            patient.rest();
        });
        while !greedy.is_wanted() && !served.load(Ordering::SeqCst) {
            drop(greedy.take(TURN_BYTES / 4).unwrap());
            std::thread::yield_now();
        }
        while !served.load(Ordering::SeqCst) {
            drop(greedy.take(TURN_BYTES / 4).unwrap());
            frames.fetch_add(1, Ordering::SeqCst);
            assert!(
                frames.load(Ordering::SeqCst) <= 8,
                "passed over: a turn is at most four of these frames"
            );
        }
    });
}

#[test]
fn who_has_nothing_to_read_gives_its_turn_back() {
    let (_folder, socket) = disk(true);
    let (one, other) = (turns(&socket, IN_VAIN), turns(&socket, IN_VAIN));
    let reading = one.take(1).unwrap();
    one.rest();
    assert!(other.take(1).is_none(), "a turn in use is no idle one");
    drop(reading);
    assert!(other.take(1).is_none(), "kept for the next frame");
    one.rest();
    assert!(other.take(1).is_some());
}

#[test]
fn a_kept_turn_is_done_without_and_asked_for_again() {
    let (_folder, socket) = disk(true);
    let (hung, patient) = (turns(&socket, FOR_EVER), turns(&socket, IN_VAIN));
    let kept = hung.take(1).unwrap();
    assert!(patient.take(1).is_none() && patient.gave_up.load(Ordering::Relaxed));
    // From now on it costs one attempt, not a wait.
    let quick = Turns { patience: FOR_EVER, ..patient };
    assert!(quick.take(1).is_none());
    drop(kept);
    hung.rest();
    assert!(quick.take(1).is_some() && !quick.gave_up.load(Ordering::Relaxed));
}

#[test]
fn threads_of_one_process_share_its_turn() {
    let (_folder, socket) = disk(true);
    let (mine, others) = (turns(&socket, FOR_EVER), turns(&socket, FOR_EVER));
    std::thread::scope(|scope| {
        for turns in [&mine, &mine, &mine, &others, &others] {
            scope.spawn(move || {
                for _ in 0..50 {
                    drop(turns.take(TURN_BYTES / 5).unwrap());
                    std::thread::yield_now();
                }
                turns.rest();
            });
        }
    });
    assert!(mine.lock().held.is_none() && others.lock().held.is_none());
}

#[test]
fn each_of_several_disks_has_turns_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("zazend.sock");
    let file = File::create(folder.path().join("frame")).unwrap();
    let device = file.metadata().unwrap().dev();
    let file = OwnedFd::from(file);
    assert!(AllTurns::at(&socket).is_empty());
    for device in [device, device + 1] {
        for suffix in turn_suffixes(Some(device)) {
            std::fs::write(folder.path().join(format!("zazend.sock{suffix}")), "").unwrap();
        }
    }
    std::fs::write(folder.path().join("zazend.sock.turn-none"), "").unwrap();
    let (one, other) = (AllTurns::at(&socket), AllTurns::at(&socket));
    assert_eq!(one.disks.len(), 2);
    let held = one.of(&file).unwrap().take(1).unwrap();
    // The other disk's turn is free; that of this disk is not.
    let of_other_disk = other.disks.iter().find(|(of, _)| *of == Some(device + 1)).unwrap();
    assert!(of_other_disk.1.take(1).is_some());
    assert!(!lock(&other.of(&file).unwrap().turn, PAUSE, Instant::now()));
    drop(held);
    one.rest();
    assert!(lock(&other.of(&file).unwrap().turn, PAUSE, Instant::now() + FOR_EVER));
}

/// The process has a turn in which nobody reads, and its time is over while a thread asks for it.
#[test]
fn a_thread_never_waits_for_a_turn_that_nobody_uses() {
    let (_folder, socket) = disk(true);
    let (ended, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let turns = turns(&socket, FOR_EVER);
        for tried in 0..200_000 {
            // The time ends within the next microseconds.
            let left = Duration::from_nanos(tried % 2_000);
            turns.lock().held = Instant::now().checked_sub(TURN_TIME).and_then(|at| at.checked_add(left));
            drop(turns.take(1).unwrap());
        }
        ended.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(300)).expect("a thread waits for nobody");
}
