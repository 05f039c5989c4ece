//! Blocks of files whose numbers overlap: files of one directory share a series, and whoever may
//! write there can choose a name that gives a block of its own the number of another's.

use crate::common::*;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zazen_core::{Blocks, Origin, RunSet, Validator};
use zazen_frames::messages::*;
use zazen_wire::checksum::frame_checksum;
use zazen_wire::{Message, service};

const BLOCK: u64 = 4096;
/// Blocks of the file: so many that a name for an overlap is soon found.
const COUNT: u64 = 1 << 24;

fn pattern(name: &str) -> String {
    format!("{name}{{n*{BLOCK}}}")
}

fn first(name: &str) -> u64 {
    let (path, block_bytes) = Blocks::parse_pattern(&pattern(name)).unwrap().unwrap();
    Blocks { path, block_bytes, version: Validator::default() }.first()
}

/// A sparse file, and another name for which block `at.1` of it has the number of block `at.0`
/// under its own name. Both blocks have data.
struct Overlap {
    directory: String,
    file: std::fs::File,
    alias: String,
    number: u64,
    at: (u64, u64),
}

impl Overlap {
    /// The other name is a symbolic link to the file, or that of a file of its own, `is_link`.
    fn make(site: &Site, is_link: bool) -> Overlap {
        let folder = site.backing.join("fields");
        std::fs::create_dir_all(&folder).unwrap();
        let found = (0..).find_map(|salt| {
            let alias = format!("alias-{salt}");
            let ahead = first(&alias).checked_sub(first("field"))?;
            (1..COUNT).contains(&ahead).then_some((alias, ahead))
        });
        let (alias, ahead) = found.unwrap();
        let make = |name: &str, seed: u64| {
            let path = folder.join(name);
            let file = std::fs::File::options().create_new(true).read(true).write(true).open(path).unwrap();
            file.set_len(COUNT * BLOCK).unwrap();
            for block in [0, ahead] {
                file.write_all_at(&frame_bytes(seed + block, BLOCK as usize), block * BLOCK).unwrap();
            }
            file
        };
        let file = make("field", 1);
        match is_link {
            true => std::os::unix::fs::symlink("field", folder.join(&alias)).unwrap(),
            false => drop(make(&alias, 5)),
        }
        settle();
        let directory = folder.to_str().unwrap().to_owned();
        Overlap { directory, file, alias, number: first("field") + ahead, at: (ahead, 0) }
    }

    fn open(&self, client: &mut Client, name: &str) -> u32 {
        let ask = OpenDataset {
            path: self.directory.clone(),
            want_extent: true,
            pattern: Some(pattern(name)),
            only_cached: false,
        };
        let info: DatasetInfo = client.ask(frames_fn::OPEN, &ask).unwrap();
        info.handle
    }

    fn numbers(&self) -> RunSet {
        set([self.number])
    }

    /// Has `name`'s block read by somebody.
    fn read(&self, client: &mut Client, handle: u32) -> Vec<u8> {
        let mut got = client.scan(handle, &self.numbers(), 1);
        assert_eq!((got.len(), &got[0].entry.error), (1, &None));
        got.pop().unwrap().bytes
    }

    /// The file's bytes, from the file itself.
    fn block(&self, index: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK as usize];
        self.file.read_exact_at(&mut bytes, index * BLOCK).unwrap();
        bytes
    }
}

fn wait_for(client: &mut Client, counter: &str, value: u64) {
    let begun = Instant::now();
    while client.counter(counter) < value {
        assert!(begun.elapsed() < Duration::from_secs(90), "{counter} stays below {value}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The victim's block is in the cache, checked and ready; before the victim comes for it, a block
/// under another name takes its number.
#[test]
fn a_block_that_takes_anothers_number_is_not_handed_out_for_it() {
    for is_link in [true, false] {
        let site = Site::default();
        let overlap = Overlap::make(&site, is_link);
        assert_ne!(overlap.block(overlap.at.0), overlap.block(overlap.at.1));
        let _daemon = site.start();
        let (mut victim, mut other) = (site.client(), site.client());
        let handle = overlap.open(&mut victim, "field");
        let ask = ScanOpen { handle, set: overlap.numbers() };
        let scan: ScanOpened = victim.ask(frames_fn::SCAN_OPEN, &ask).unwrap();
        wait_for(&mut other, "fetched", 1);
        let alias = overlap.open(&mut other, &overlap.alias);
        let theirs = overlap.read(&mut other, alias);
        assert_eq!(theirs == overlap.block(overlap.at.1), is_link, "the other block is in the cache");
        let got = victim.next(scan.scan, 1).unwrap();
        assert_eq!((got.len(), &got[0].entry.error), (1, &None));
        assert!(got[0].bytes == overlap.block(overlap.at.0), "the bytes of another block (link: {is_link})");
        // The scan ends: the two do not drive each other out of the cache for ever.
        assert!(victim.next(scan.scan, 1).unwrap().is_empty());
    }
}

/// All paths by which blocks leave the cache, while a reader of the other name drives the block out
/// again and again: scans, blocks for other nodes, and loads that keep what is here.
#[test]
fn blocks_that_drive_each_other_out_stay_apart() {
    let site = Site::default();
    let overlap = Overlap::make(&site, true);
    let daemon = site.start();
    let (right, wrong) = (overlap.block(overlap.at.0), overlap.block(overlap.at.1));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut other = site.client();
                let alias = overlap.open(&mut other, &overlap.alias);
                while !ends.load(Ordering::Relaxed) {
                    assert!(overlap.read(&mut other, alias) == wrong, "the alias got other bytes");
                }
            });
        }
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (mut local, mut node) = (site.client(), site.remote(&daemon, 0));
            let handle = overlap.open(&mut local, "field");
            let version = zazen_backing::directory::stat_local(&site.backing.join("fields/field"));
            let ask = GetBlock {
                dataset: overlap.directory.clone(),
                pattern: pattern("field"),
                number: overlap.number,
                version: version.unwrap().validator,
            };
            for turn in 0..400 {
                assert!(overlap.read(&mut local, handle) == right, "turn {turn}: scan");
                let reply = node.raw(service::FRAMES, frames_fn::GET_BLOCK, &ask.encode(), &[]).unwrap();
                let given = GivenBlock::decode(&reply.payload).unwrap();
                assert!(reply.bulk == right, "turn {turn}: a block for another node");
                assert_eq!(given.checksum, frame_checksum(&right));
                // Promotes the copy, whose place another may have taken.
                local.fetch(handle, overlap.numbers(), Origin::Native);
            }
        }));
        ends.store(true, Ordering::Relaxed);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// The node that asks for a block gives up; the rest of the block is not read.
#[test]
fn a_block_that_nobody_waits_for_is_not_read_on() {
    const LENGTH: u64 = 16 << 20;
    let site = Site::default();
    let folder = site.backing.join("fields");
    std::fs::create_dir(&folder).unwrap();
    std::fs::File::create(folder.join("field")).unwrap().set_len(LENGTH).unwrap();
    settle();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = zazen_backing::served::serve(listener, &site.backing, Some(3_000_000)).unwrap();
    let spec = format!("{}=tcp://{}", site.backing.display(), server.addr());
    let daemon = site.start_with(|args| args.backing = vec![spec]);
    let mut local = site.client();
    let pattern = format!("field{{n*{LENGTH}}}");
    let ask = OpenDataset {
        path: folder.to_str().unwrap().into(),
        want_extent: false,
        pattern: Some(pattern.clone()),
        only_cached: false,
    };
    let info: DatasetInfo = local.ask(frames_fn::OPEN, &ask).unwrap();
    let layout = info.layout.unwrap();
    let blocks = layout.blocks().unwrap();
    let ask = GetBlock { dataset: ask.path, pattern, number: blocks.first(), version: blocks.version };
    let before = server.traffic().bytes;
    let asks = std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let mut node = site.remote(&daemon, 0);
            node.0.set_timeout(Some(Duration::from_secs(1)));
            node.raw(service::FRAMES, frames_fn::GET_BLOCK, &ask.encode(), &[]).map(drop)
        });
        let begun = Instant::now();
        while local.status()["fetches"] == 0 && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        asks.join().unwrap()
    });
    asks.unwrap_err();
    let begun = Instant::now();
    while local.status()["fetches"] != 0 {
        assert!(begun.elapsed() < Duration::from_secs(90), "it is still read");
        std::thread::sleep(Duration::from_millis(20));
    }
    let read = server.traffic().bytes - before;
    assert!(read < LENGTH, "all of the block was read: {read} bytes");
}

/// A short file that is cached comes with the call that opens it; nothing is brought for that.
#[test]
fn a_short_file_that_is_cached_is_read_as_it_is_opened() {
    let site = Site::default();
    let folder = site.backing.join("small");
    std::fs::create_dir(&folder).unwrap();
    let contents = [frame_bytes(1, 100), frame_bytes(2, 3 * BLOCK as usize + 9), frame_bytes(3, 0)];
    for (name, bytes) in ["one", "four", "none"].into_iter().zip(&contents) {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    settle();
    let daemon = site.start();
    let mut client = site.client();
    let ask = |name: &str, closes, blocks_max| OpenRead {
        open: OpenDataset {
            path: folder.to_str().unwrap().into(),
            want_extent: false,
            pattern: Some(pattern(name)),
            only_cached: false,
        },
        closes,
        blocks_max,
        bytes_max: 1 << 20,
    };
    let mut open = |ask: &OpenRead| {
        let reply = client.raw(service::FRAMES, frames_fn::OPEN_READ, &ask.encode(), &[]).unwrap();
        let OpenedRead { info, batch } = OpenedRead::decode(&reply.payload).unwrap();
        let files: Vec<std::fs::File> = reply.fds.into_iter().map(Into::into).collect();
        // They come in storage order.
        let (mut blocks, mut sent) = (std::collections::BTreeMap::new(), &reply.bulk[..]);
        for entry in batch.entries {
            assert_eq!(entry.error, None);
            let mut block = vec![0; entry.length as usize];
            match entry.fd {
                Some(fd) => files[usize::from(fd)].read_exact_at(&mut block, entry.offset).unwrap(),
                None => std::io::Read::read_exact(&mut sent, &mut block).unwrap(),
            }
            blocks.insert(entry.number, block);
        }
        (info, blocks.into_values().collect::<Vec<_>>().concat())
    };
    // Who opens a cold file may not want it here.
    let (info, bytes) = open(&ask("one", None, 4));
    assert!(bytes.is_empty() && daemon.node().counters.fetched.get() == 0);
    let blocks = info.layout.unwrap().blocks().unwrap().extent();
    let mut other = site.client();
    let cold: DatasetInfo = other.ask(frames_fn::OPEN, &ask("one", None, 0).open).unwrap();
    other.scan(cold.handle, &blocks, 1);
    let four: DatasetInfo = other.ask(frames_fn::OPEN, &ask("four", None, 0).open).unwrap();
    let of_four = four.layout.unwrap().blocks().unwrap().extent();
    let rest = RunSet::range(of_four.first().unwrap() + 1, of_four.last().unwrap());
    other.scan(four.handle, &rest, 4);

    let (info, bytes) = open(&ask("one", Some(info.handle), 1));
    assert!(bytes == contents[0], "{} bytes", bytes.len());
    assert!(open(&ask("one", None, 0)).1.is_empty(), "nobody asked for blocks");
    assert!(open(&ask("four", None, 4)).1.is_empty(), "a block is cold");
    other.scan(four.handle, &of_four, 4);
    let (four, bytes) = open(&ask("four", Some(info.handle), 4));
    assert!(bytes == contents[1], "{} bytes", bytes.len());
    assert!(open(&ask("four", None, 3)).1.is_empty(), "it is too long");
    assert!(open(&ask("none", None, 4)).1.is_empty());
    // The handle was given back, and the new one is good.
    let query = |handle| Query { handle, begin: 0, end: 1 << 40, stride: 1 };
    let closed = client.ask::<Holdings>(frames_fn::QUERY, &query(info.handle));
    assert_eq!(closed.unwrap_err().kind(), zazen_core::ErrorKind::InvalidArgument);
    let held: Holdings = client.ask(frames_fn::QUERY, &query(four.handle)).unwrap();
    assert!(of_four.difference(&held.alien).is_empty(), "{held:?}");
    // Bytes of a changed file do not come.
    std::fs::write(folder.join("one"), frame_bytes(9, 100)).unwrap();
    settle();
    let reply =
        client.raw(service::FRAMES, frames_fn::OPEN_READ, &ask("one", None, 1).encode(), &[]).unwrap();
    let entries = OpenedRead::decode(&reply.payload).unwrap().batch.entries;
    assert!(entries.iter().all(|entry| entry.delivery != Delivery::Alien), "{entries:?}");
}
