//! Frames of HDF5 files. `h5md/make.py` wrote the files with h5py, and where h5py says that the
//! frames are.

use std::path::Path;
use zazen_core::ErrorKind;
use zazen_trajectory::{H5md, find_h5md};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/h5md");

/// A file's name, its bytes, and where h5py says that its frames are.
type Sample = (String, Vec<u8>, Vec<(u64, u64)>);

fn samples() -> Vec<Sample> {
    let places = std::fs::read_to_string(Path::new(FOLDER).join("places.txt")).unwrap();
    let mut samples: Vec<Sample> = Vec::new();
    for line in places.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields[at].parse::<u64>().unwrap();
        if samples.last().is_none_or(|(name, _, _)| name != fields[0]) {
            let bytes = std::fs::read(Path::new(FOLDER).join(format!("{}.h5md", fields[0]))).unwrap();
            samples.push((fields[0].to_owned(), bytes, Vec::new()));
        }
        let frames = &mut samples.last_mut().unwrap().2;
        assert_eq!(frames.len() as u64, number(1));
        frames.push((number(2), number(3)));
    }
    assert_eq!(samples.len(), 13);
    samples
}

fn find(bytes: &[u8]) -> zazen_core::Result<H5md> {
    let mut read = |offset: u64, count: usize| {
        let rest = usize::try_from(offset).ok().and_then(|from| bytes.get(from..)).unwrap_or_default();
        Ok(rest[..rest.len().min(count)].to_vec())
    };
    find_h5md(&mut read, bytes.len() as u64)
}

fn places(found: &H5md) -> Vec<(u64, u64)> {
    (0..found.table.count()).map(|index| found.table.get(index).unwrap()).collect()
}

fn sample(name: &str) -> Sample {
    samples().into_iter().find(|(known, _, _)| known == name).unwrap()
}

#[test]
fn frames_are_where_h5py_says() {
    for (name, bytes, frames) in samples() {
        let found = find(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(places(&found), frames, "{name}");
        assert_eq!(found.n_atoms, 5, "{name}");
        let header = String::from_utf8(found.header).unwrap();
        let filters = match name.as_str() {
            "tree-filtered" | "extensible-array-filtered" => {
                "[{\"id\": 2, \"values\": [4]}, {\"id\": 3, \"values\": []}]"
            }
            name if name.ends_with("filtered") => "[{\"id\": 3, \"values\": []}]",
            _ => "[]",
        };
        assert_eq!(
            header,
            format!(
                "{{\"array\": \"particles/all/position/value\", \"dtype\": \"<f4\", \"shape\": [5, 3], \
                 \"filters\": {filters}}}"
            ),
            "{name}"
        );
        match (name.as_str(), &found.trouble) {
            ("tree-cut-off", Some(trouble)) => {
                assert!(trouble.unfinished && trouble.why.contains("frame 4 was never written"));
            }
            (_, trouble) => assert_eq!(*trouble, None, "{name}"),
        }
        if filters == "[]" {
            let at = frames[2].0 as usize;
            assert_eq!(bytes[at..at + 4], 200f32.to_le_bytes(), "{name}");
        }
    }
}

/// A user block stands before the file: everything lies further behind, and errors say where.
#[test]
fn files_behind_a_user_block() {
    for (name, bytes, frames) in samples() {
        let without = find(&bytes).unwrap();
        for block in [512usize, 1024, 1 << 16] {
            let behind = [&vec![7u8; block][..], &bytes].concat();
            let found = find(&behind).unwrap_or_else(|error| panic!("{name}: {error}"));
            let moved: Vec<_> = frames.iter().map(|(at, length)| (at + block as u64, *length)).collect();
            assert_eq!(places(&found), moved, "{name} behind {block}");
            assert_eq!(found.header, without.header, "{name} behind {block}");
            let at = |found: &H5md| found.trouble.as_ref().map(|trouble| trouble.offset);
            assert_eq!(at(&found), at(&without).map(|at| at + block as u64), "{name} behind {block}");
        }
        // HDF5 looks for it behind 512 bytes, and twice as many, and so on.
        assert!(find(&[&vec![7u8; 1536][..], &bytes].concat()).is_err());
    }
    let (_, bytes, _) = sample("extensible-array");
    let mut behind = [&vec![7u8; 1024][..], &bytes].concat();
    let block = behind.windows(4).position(|part| part == b"EADB").unwrap();
    behind[block + 20] ^= 1;
    assert_eq!(find(&behind).unwrap().trouble.unwrap().offset, block as u64);
    let root = behind.windows(4).position(|part| part == b"OHDR").unwrap();
    behind[root + 20] ^= 1;
    let error = find(&behind).unwrap_err().to_string();
    assert!(error.contains(&format!("at byte {root}: its checksum is wrong")), "{error}");
}

/// Wherever a file is cut, each frame that is told is the right one, and it is said that some lack.
#[test]
fn files_that_were_cut() {
    for (name, bytes, frames) in samples() {
        for end in (0..bytes.len()).step_by(3) {
            let Ok(found) = find(&bytes[..end]) else { continue };
            let told = places(&found);
            assert_eq!(told[..], frames[..told.len()], "{name} cut to {end}");
            assert!(told.iter().all(|(offset, length)| offset + length <= end as u64), "{name} cut to {end}");
            let trouble = found.trouble.unwrap_or_else(|| panic!("{name} cut to {end} is no trouble"));
            assert!(trouble.unfinished, "{name} cut to {end}: {}", trouble.why);
        }
    }
}

/// Whatever a byte becomes, nothing panics, and each frame lies in the file.
#[test]
fn bytes_that_change() {
    for (name, bytes, _) in samples() {
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= [0xff, 0x01, 0x80][at % 3];
            let Ok(found) = find(&changed) else { continue };
            for (offset, length) in places(&found) {
                let end = offset.checked_add(length);
                assert!(end.is_some_and(|end| end <= bytes.len() as u64), "{name}, byte {at}");
            }
        }
    }
}

#[test]
fn newer_structures_have_checksums() {
    let (_, mut bytes, _) = sample("extensible-array");
    let block = bytes.windows(4).position(|part| part == b"EADB").unwrap();
    bytes[block + 20] ^= 1;
    let found = find(&bytes).unwrap();
    let trouble = found.trouble.clone().unwrap();
    assert!(!trouble.unfinished && trouble.why.contains("checksum"), "{}", trouble.why);
    assert_eq!((trouble.offset, found.table.count()), (block as u64, 4));
    let root = bytes.windows(4).position(|part| part == b"OHDR").unwrap();
    bytes[root + 20] ^= 1;
    assert_eq!(find(&bytes).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn nodes_in_a_circle_end() {
    let (_, bytes, frames) = sample("tree");
    let node = |bytes: &[u8]| {
        let head = [b'T', b'R', b'E', b'E', 1];
        bytes.windows(5).position(|part| part == head).unwrap()
    };
    // A root of level 1 whose only child is itself.
    let at = node(&bytes);
    let mut changed = bytes.clone();
    changed[at + 5] = 1;
    let child = at + 24 + 40;
    changed[child..child + 8].copy_from_slice(&(at as u64).to_le_bytes());
    let error = find(&changed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("of another tree"), "{error}");
    // A chunk that is missing in the middle: the frames before it are good.
    let mut changed = bytes.clone();
    let key = at + 24 + 48 * 3 + 8;
    assert_eq!(changed[key..key + 8], 3u64.to_le_bytes());
    changed[key..key + 8].copy_from_slice(&4u64.to_le_bytes());
    let found = find(&changed).unwrap();
    let trouble = found.trouble.clone().unwrap();
    assert!(!trouble.unfinished && trouble.why.contains("frame 3 was never written"), "{}", trouble.why);
    assert_eq!(places(&found), frames[..3]);
}

#[test]
fn what_is_no_h5md() {
    assert_eq!(find(b"").unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(find(&[0; 4096]).unwrap_err().kind(), ErrorKind::Corrupt);
    let (_, mut bytes, _) = sample("tree");
    let name = bytes.windows(9).position(|part| part == b"particles").unwrap();
    bytes[name] = b'P';
    let error = find(&bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("no H5MD"), "{error}");
}

/// Numbers that have the fields of IEEE numbers, and mean something else by them.
#[test]
fn numbers_that_are_not_ieee() {
    let (_, bytes, _) = sample("one-piece");
    let float = [0x11, 0x20, 31, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0];
    // No bit of the mantissa is left out; it is always set; the order of VAX; the sign elsewhere;
    // another bias; an exponent of 7 bits.
    for (field, value) in [(1, 0), (1, 0x10), (1, 0x60), (2, 30), (16, 126), (13, 7)] {
        let mut changed = bytes.clone();
        let places: Vec<usize> =
            (0..bytes.len() - float.len()).filter(|at| bytes[*at..].starts_with(&float)).collect();
        assert!(!places.is_empty());
        for at in places {
            changed[at + field] = value;
        }
        let error = find(&changed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{field} {value}: {error}");
        assert!(error.to_string().contains("no IEEE numbers"), "{field} {value}: {error}");
    }
}
