//! A daemon that holds millions of frames: memory, start and query. The frames are real, of eight
//! bytes each, put by the store itself; their placement is that of one node of eight.

use crate::measure::{Row, Spread, seconds};
use crate::rig::{Daemon, Folder};
use std::path::Path;
use zazen_core::{Error, FrameMeta, FrameNo, Origin, RelPath, Result, Source};
use zazen_env::RealDisk;
use zazen_store::{PACKED_BYTES_MAX, Store, StoreConfig};
use zazen_wire::checksum::frame_checksum;

const NODES: u64 = 8;

/// Which of all frames a node holds.
#[derive(Clone, Copy)]
enum Placement {
    /// Every eighth frame.
    Regular,
    /// Each frame with a chance of one in eight.
    Random,
}

impl Placement {
    fn numbers(self, count: u64) -> impl Iterator<Item = u64> {
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        let mut last = 0;
        (0..count).map(move |index| match self {
            Placement::Regular => index * NODES + 3,
            Placement::Random => {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                last += 1 + state % (2 * NODES - 1);
                last
            }
        })
    }
}

fn fill(cache: &Path, placement: Placement, count: u64) -> Result<u64> {
    std::fs::create_dir_all(cache).map_err(|error| Error::io("make the cache", error))?;
    let config =
        StoreConfig { budget_bytes: 16 << 30, free_floor_bytes: 1 << 30, packed_bytes_max: PACKED_BYTES_MAX };
    let (store, _) = Store::open(RealDisk::new(cache)?, config)?;
    let dataset = RelPath::new("sim")?;
    let mut last = 0;
    for number in placement.numbers(count) {
        let bytes = number.to_le_bytes();
        let meta = FrameMeta {
            number: FrameNo::new(number)?,
            length: 8,
            checksum: frame_checksum(&bytes),
            validator: None,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            mode: 0o644,
        };
        let source =
            Source { path: RelPath::new(&format!("frame-{number:010}.bin"))?, offset: 0, length: None };
        let mut put = store.put(&dataset, &source, &meta, Origin::Native)?;
        put.write(&bytes)?;
        put.commit()?;
        last = number;
    }
    store.sync()?;
    Ok(last)
}

pub(crate) fn holdings(folder: &Folder, repeats: usize) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let place = folder.fresh("holdings")?;
    let backing = place.join("backing");
    std::fs::create_dir_all(backing.join("sim")).map_err(|error| Error::io("make the dataset", error))?;
    let empty = Daemon::start(&made(place.join("empty"))?, &backing)?.memory_mib()?;
    let cases = [
        ("1 million, regular", 1_000_000, Placement::Regular),
        ("10 million, regular", 10_000_000, Placement::Regular),
        ("10 million, random", 10_000_000, Placement::Random),
    ];
    for (name, count, placement) in cases {
        let home = made(place.join("node"))?;
        let last = fill(&home.join("cache"), placement, count)?;
        let (mut starts, mut memory, mut queries) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..repeats {
            let daemon = Daemon::start(&home, &backing)?;
            starts.push(daemon.start_time.as_secs_f64() * 1e3);
            let mut dataset = daemon.open(&backing.join("sim"))?;
            for _ in 0..3 {
                let time = seconds(|| {
                    let (native, _) = dataset.query(0, last, 1)?;
                    assert_eq!(native.len(), count, "the daemon lost frames");
                    Ok(())
                })?;
                queries.push(time * 1e3);
            }
            memory.push(daemon.memory_mib()? - empty);
        }
        let row = |what: &str, values: &[f64], unit, note: &str| Row {
            name: format!("{what}, {name} frames"),
            value: Spread::of(values),
            unit,
            goal: "-",
            note: note.to_owned(),
        };
        rows.push(row("daemon start", &starts, "ms", "spawn to serving"));
        rows.push(row("daemon memory", &memory, "MiB", "RssAnon beyond an empty daemon's, after queries"));
        rows.push(row("query of the whole dataset", &queries, "ms", "at the client, decoded"));
        let _ = std::fs::remove_dir_all(&home);
    }
    Ok(rows)
}

fn made(path: std::path::PathBuf) -> Result<std::path::PathBuf> {
    std::fs::create_dir_all(&path).map_err(|error| Error::io(format!("make {}", path.display()), error))?;
    Ok(path)
}
