//! A reader's threads end with it. Alone in its process, so that no other test's threads are
//! counted.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Running, Script, content, write_frames};
use std::time::{Duration, Instant};
use zazen_client::{FrameReader, ReadOptions};
use zazen_core::RunSet;

fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("zazen-read") || name.starts_with("zazen-feed")).count()
}

#[test]
fn frames_outlive_their_reader_and_dropping_it_ends_its_threads() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("sim");
    write_frames(&root, 0..200, 70_000);
    let running = Running::start(&root, Script::default());
    let mut dataset = running.open();
    // There is room for only a few frames. So when the reader is dropped, its threads wait for
    // room, for work, or for tasks to run low.
    let options = ReadOptions { memory_max: 300_000, ..ReadOptions::default() };
    let mut reader = dataset.frames(RunSet::range(0, 199), &options).unwrap();
    let kept: Vec<_> = reader.by_ref().take(10).map(|item| item.unwrap()).collect();
    assert!(threads() > 0);
    drop(reader);
    let begun = Instant::now();
    while threads() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{} threads are left", threads());
        std::thread::sleep(Duration::from_millis(1));
    }
    for frame in kept {
        assert_eq!(frame.bytes(), content(frame.number, 70_000));
    }
    fn shared<T: Send + Sync>() {}
    shared::<zazen_client::Frame>();
    fn sent<T: Send>() {}
    sent::<FrameReader>();
}
