//! A whole cache root in which one file is damaged. The store opens, and every frame that it hands
//! out as good has the bytes that were put in.
//!
//! The first byte of the input names the file. The second says whether the checksums are corrected,
//! so that the code behind them is reached. The rest is the file.

use std::sync::{Arc, OnceLock};
use zazen_core::{FrameMeta, FrameNo, Layout, NameTemplate, Origin, RelPath, Series, Source};
use zazen_env::SimDisk;
use zazen_store::record::{FILE_HEADER_BYTES, RECORD_BYTES};
use zazen_store::{Store, StoreConfig};
use zazen_wire::checksum::{crc32c, frame_checksum};

const CONFIG: StoreConfig =
    StoreConfig { budget_bytes: 1 << 30, free_floor_bytes: 0, packed_bytes_max: 16 << 10 };
const FRAMES: u64 = 6;

fn path(text: &str) -> RelPath {
    RelPath::new(text).expect("a good path")
}

/// The only series of the directory `name`.
fn series(name: &str) -> RelPath {
    let template = NameTemplate::parse("f{n}").expect("a good template");
    path(name).series(&Series::of(&Layout::Files(template))).expect("a short path")
}

fn frame(number: u64) -> Vec<u8> {
    vec![number as u8 + 1; if number.is_multiple_of(2) { 300 } else { 20_000 }]
}

/// A root with small and large frames, plain ones and pieces, named by templates and by names.
fn root() -> &'static SimDisk {
    static ROOT: OnceLock<SimDisk> = OnceLock::new();
    ROOT.get_or_init(|| {
        let disk = SimDisk::new(1, 64 << 20);
        let (store, _) = Store::open(disk.clone(), CONFIG).expect("an empty disk opens");
        for (name, pieces) in [("a", false), ("b", true)] {
            for number in 0..FRAMES {
                put(&store, name, number, pieces);
            }
        }
        store.sync().expect("a good disk syncs");
        disk
    })
}

fn put(store: &Arc<Store<SimDisk>>, dataset: &str, number: u64, piece: bool) {
    let bytes = frame(number);
    let file = if piece { "all.dcd".to_owned() } else { format!("f{number}") };
    let length = bytes.len() as u64;
    let source = Source {
        path: path(&file),
        offset: if piece { number * 20_000 } else { 0 },
        length: piece.then_some(length),
    };
    let meta = FrameMeta {
        number: FrameNo::new(number).expect("a small number"),
        length,
        checksum: frame_checksum(&bytes),
        validator: None,
        uid: 0,
        gid: 0,
        mode: 0o644,
    };
    let origin = if number < 3 { Origin::Native } else { Origin::Alien };
    let mut put = store.put(&series(dataset), &source, &meta, origin).expect("there is room");
    put.write(&bytes).and_then(|()| put.commit()).expect("a good disk stores");
}

/// The files that a store reads and trusts, by name.
fn believed() -> &'static [String] {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let files = root().files().into_iter().map(|(name, _)| name);
        files.filter(|name| name.contains(".zazen/") && !name.ends_with("/lock")).collect()
    })
}

pub(crate) fn files() -> Vec<Vec<u8>> {
    let contents = |(at, name): (usize, &String)| {
        let mut bytes = vec![at as u8, 1];
        root().fork(1).tamper(name, |file| bytes.extend_from_slice(file));
        bytes
    };
    believed().iter().enumerate().map(contents).collect()
}

pub(crate) fn store(input: &[u8]) {
    let [which, reseal, contents @ ..] = input else { return };
    let names = believed();
    let name = &names[usize::from(*which) % names.len()];
    let disk = root().fork(2);
    let mut contents = contents.to_vec();
    if reseal & 1 == 1 {
        seal(name, &mut contents);
    }
    disk.tamper(name, |file| *file = contents);
    // It may refuse to open, with an error; it must not panic.
    let Ok((store, _)) = Store::open(disk, CONFIG) else { return };
    for dataset in store.datasets() {
        let (native, alien) = store.holdings(&dataset.dataset);
        for number in native.union(&alien).iter().take(64) {
            if store.verify(&dataset.dataset, number).ok() != Some(Some(true)) {
                continue;
            }
            let known = [series("a"), series("b")].contains(&dataset.dataset) && number < FRAMES;
            if let (true, Ok(Some(opened))) =
                (known && reseal & 1 == 0, store.open_frame(&dataset.dataset, number))
            {
                let mut bytes = vec![0; opened.meta.length as usize];
                let read = std::os::unix::fs::FileExt::read_exact_at(&opened.file, &mut bytes, opened.offset);
                assert!(
                    read.is_ok() && bytes == frame(number),
                    "frame {number} of {} is another",
                    dataset.dataset
                );
            }
        }
    }
    let _ = store.dump();
    let _ = store.sync();
}

/// Makes the checksums of a damaged file right.
fn seal(name: &str, contents: &mut Vec<u8>) {
    if name.ends_with(".log") && contents.len() >= FILE_HEADER_BYTES {
        // A record's checksum covers the file's id and its own index: only the header can be sealed
        // from outside.
        let crc = crc32c(&contents[..FILE_HEADER_BYTES - 4]);
        contents[FILE_HEADER_BYTES - 4..FILE_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        let whole = FILE_HEADER_BYTES + (contents.len() - FILE_HEADER_BYTES) / RECORD_BYTES * RECORD_BYTES;
        contents.truncate(whole);
    } else if let Some(at) = contents.windows(4).rposition(|window| window == b"crc ") {
        let line = format!("crc {:08x}\n", crc32c(&contents[..at]));
        contents.truncate(at);
        contents.extend_from_slice(line.as_bytes());
    }
}
