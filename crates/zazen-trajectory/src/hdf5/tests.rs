//! Damage that checksums do not show: bytes of newer structures change, and their checksums with
//! them. Reads are counted, so that a circle or an allocation by a hostile length fails the test.

use super::checksum;
use crate::find_h5md;
use proptest::prelude::*;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

/// A file's bytes, and where its sealed structures are without their checksums.
type Sample = (Vec<u8>, Vec<Range<usize>>);

static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(samples);

/// The files that h5py wrote.
fn samples() -> Vec<Sample> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/h5md"));
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "h5md")).collect();
    paths.sort();
    assert_eq!(paths.len(), 13);
    let read = |path| {
        let bytes = std::fs::read(path).unwrap();
        let sealed = sealed(&bytes);
        (bytes, sealed)
    };
    paths.into_iter().map(read).collect()
}

/// Structures begin with letters, and end where the checksum of their bytes stands.
fn sealed(bytes: &[u8]) -> Vec<Range<usize>> {
    let letters = ["OHDR", "OCHK", "FAHD", "FADB", "EAHD", "EAIB", "EASB", "EADB"];
    let begins = |at: &usize| letters.iter().any(|word| bytes[*at..].starts_with(word.as_bytes()));
    let mut begun: Vec<usize> = (0..bytes.len()).filter(begins).collect();
    if bytes[8] >= 2 {
        begun.push(0);
    }
    let end_of = |at: usize| {
        let is_end = |end: &usize| bytes[*end..*end + 4] == checksum(&bytes[at..*end]).to_le_bytes();
        (at + 8..bytes.len().min(at + 4096) - 4).find(is_end)
    };
    begun.into_iter().filter_map(|at| Some(at..end_of(at)?)).collect()
}

/// Looks for the frames of a file that is `bytes`, and a hole up to `size`.
fn check(bytes: &[u8], size: u64) {
    let (mut reads, mut read_bytes) = (0u64, 0u64);
    let mut read = |offset: u64, count: usize| {
        (reads, read_bytes) = (reads + 1, read_bytes + count as u64);
        assert!(count <= 64 << 20, "{count} bytes at once");
        assert!(reads < 100_000 && read_bytes < 1 << 30, "{reads} reads of {read_bytes} bytes");
        let count = count.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        let mut part = vec![0; count];
        if let Some(there) = usize::try_from(offset).ok().and_then(|from| bytes.get(from..)) {
            let there = &there[..there.len().min(count)];
            part[..there.len()].copy_from_slice(there);
        }
        Ok(part)
    };
    let Ok(found) = find_h5md(&mut read, size) else { return };
    assert!(found.table.memory_bytes() < 64 << 20, "{} bytes of memory", found.table.memory_bytes());
    let count = found.table.count();
    for index in (0..count.min(100)).chain(count.checked_sub(1)) {
        let (offset, length) = found.table.get(index).unwrap();
        assert!(length > 0 && offset + length <= size, "frame {index} at {offset}, {length} bytes");
    }
}

#[test]
fn the_samples_have_sealed_structures() {
    let counts: Vec<usize> = SAMPLES.iter().map(|(_, sealed)| sealed.len()).collect();
    assert!(counts.iter().filter(|count| **count >= 7).count() >= 8, "{counts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn damage_that_checksums_do_not_show(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), change()), 1..6),
        in_sealed in any::<bool>(),
        hole in prop::sample::select(vec![0, 1 << 20, 1 << 41, u64::MAX >> 1])
    ) {
        let (bytes, sealed) = which.get(&SAMPLES);
        let mut bytes = bytes.clone();
        for (place, change) in changes {
            let at = match in_sealed && !sealed.is_empty() {
                true => {
                    let all: Vec<usize> = sealed.iter().cloned().flatten().collect();
                    *place.get(&all)
                }
                false => place.index(bytes.len()),
            };
            for (byte, new) in bytes[at..].iter_mut().zip(change) {
                *byte = new;
            }
        }
        // An outer structure comes behind those that are in it.
        for structure in sealed.iter().rev().chain(sealed) {
            let seal = checksum(&bytes[structure.clone()]).to_le_bytes();
            bytes[structure.end..structure.end + 4].copy_from_slice(&seal);
        }
        check(&bytes, bytes.len() as u64 + hole);
    }
}

/// One byte, or a number of 8 bytes that is likely to do harm.
fn change() -> impl Strategy<Value = Vec<u8>> {
    let numbers =
        prop::sample::select(vec![0u64, 1, 24, 96, 1 << 31, 1 << 40, 1 << 62, u64::MAX - 1, u64::MAX]);
    prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        prop::sample::select(vec![0u8, 1, 0x7f, 0x80, 0xff]).prop_map(|byte| vec![byte]),
        any::<u64>().prop_map(|number| (number % (1 << 14)).to_le_bytes().to_vec()),
        numbers.prop_map(|number| number.to_le_bytes().to_vec()),
    ]
}
