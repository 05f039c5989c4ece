//! Every format: good files, files that are cut anywhere, damaged files, hostile bytes.

use crate::common;
use crate::common::{samples, scan};
use proptest::prelude::*;
use zazen_core::Validator;
use zazen_core::trajectory::Format;
use zazen_trajectory::{Anchors, Scanner, Step, foreign, sniff};

#[test]
fn frames_of_good_files_are_found() {
    for sample in samples() {
        assert_eq!(sniff(&sample.bytes, &sample.name), Some(sample.format), "{}", sample.name);
        for look in [1, 100, 1 << 20] {
            let found = scan(sample.format, &sample.bytes, look);
            assert_eq!(found.trouble, None, "{}", sample.name);
            assert_eq!(found.frames, sample.frames, "{}", sample.name);
            assert_eq!(found.n_atoms, sample.n_atoms, "{}", sample.name);
        }
    }
}

/// Files that MDAnalysis wrote, with the places that other programs found.
#[test]
fn frames_of_golden_files_are_found() {
    let golden = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt")).unwrap();
    let mut checked = 0;
    for (words, hex) in golden.lines().filter_map(|line| line.split_once(" = ")) {
        let words: Vec<&str> = words.split(' ').collect();
        let [name, atoms, places] = words[..] else { panic!("{words:?}") };
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let places: Vec<u64> = places.split(',').map(|place| place.parse().unwrap()).collect();
        let expected: Vec<(u64, u64)> = places.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect();
        let format = sniff(&bytes, name).unwrap();
        let found = scan(format, &bytes, 4096);
        assert_eq!(
            (found.trouble, found.frames, found.n_atoms.to_string()),
            (None, expected, atoms.into()),
            "{name}"
        );
        checked += 1;
    }
    assert!(checked >= 6);
}

#[test]
fn a_file_that_is_cut_anywhere_gives_the_frames_before() {
    for sample in samples() {
        let (first, _) = sample.frames[0];
        for cut in 0..sample.bytes.len() {
            let found = scan(sample.format, &sample.bytes[..cut], 1 << 20);
            let whole = sample.frames.iter().filter(|(offset, length)| offset + length <= cut as u64).count();
            assert_eq!(found.frames, sample.frames[..whole], "{} cut to {cut}", sample.name);
            let at_border = sample.frames.iter().any(|(offset, _)| *offset == cut as u64);
            // A NetCDF file says how many frames it has, and a file without a byte has no header.
            let last = sample.frames[..whole].last().map_or(0, |(offset, length)| offset + length) as usize;
            let is_blank = sample.bytes[last..cut].trim_ascii().is_empty();
            let silent = at_border && sample.format != Format::Ncdf
                || first == 0 && is_blank && (cut == 0 || sample.format == Format::Xyz);
            match found.trouble {
                None => assert!(silent, "{} cut to {cut}", sample.name),
                Some(trouble) => {
                    let begin = sample.frames.get(whole).map_or(0, |(offset, _)| *offset);
                    let in_header = whole == 0 && (cut as u64) < first;
                    assert!(
                        !silent && (trouble.offset == begin || in_header),
                        "{}: {trouble:?}",
                        sample.name
                    );
                    // Of a magic number that is cut, nobody can say that it is whole.
                    assert!(trouble.unfinished || cut < 12, "{} cut to {cut}: {trouble:?}", sample.name);
                }
            }
        }
    }
}

#[test]
fn garbage_between_frames_is_told_with_its_place() {
    for sample in samples().into_iter().filter(|sample| sample.format != Format::Ncdf) {
        let Some((second, _)) = sample.frames.get(1).copied() else { continue };
        let mut bytes = sample.bytes.clone();
        let at = second as usize;
        // A GRO title may be anything; the second line may not.
        let garbage: &[u8] = if sample.format == Format::Gro { b"x\nx\nx\n" } else { b"garbage\n" };
        bytes.splice(at..at, garbage.iter().copied());
        let found = scan(sample.format, &bytes, 64);
        assert_eq!(found.frames, sample.frames[..1], "{}", sample.name);
        let trouble = found.trouble.unwrap();
        assert!(trouble.offset == second && !trouble.unfinished, "{}: {trouble:?}", sample.name);
    }
}

#[test]
fn atoms_that_change_are_told() {
    let joined = |one: common::Sample, other: common::Sample| [one.bytes, other.bytes].concat();
    let files = [
        (Format::Xtc, joined(common::xtc(57, &[9, 9], false), common::xtc(58, &[9], false))),
        (Format::Trr, joined(common::trr(5, 2, 4), common::trr(6, 2, 4))),
        (Format::Xyz, joined(common::text(Format::Xyz, 4, 2), common::text(Format::Xyz, 3, 2))),
        (Format::Gro, joined(common::text(Format::Gro, 4, 2), common::text(Format::Gro, 5, 2))),
        (Format::Lammps, joined(common::text(Format::Lammps, 4, 2), common::text(Format::Lammps, 5, 2))),
    ];
    for (format, bytes) in files {
        let found = scan(format, &bytes, 1 << 20);
        assert_eq!(found.frames.len(), 2, "{format}");
        assert!(found.trouble.unwrap().why.contains("atoms, the frames before it"), "{format}");
    }
}

/// A program that ended within a frame and went on with the next one.
#[test]
fn a_frame_that_lost_lines_is_no_frame() {
    for format in [Format::Xyz, Format::Gro, Format::Lammps] {
        let sample = common::text(format, 5, 4);
        let (begin, length) = (sample.frames[1].0 as usize, sample.frames[1].1 as usize);
        let lines: Vec<&[u8]> =
            sample.bytes[begin..begin + length].split_inclusive(|byte| *byte == b'\n').collect();
        let first = lines.len() - 5 - usize::from(format == Format::Gro);
        for from in first..first + 5 {
            for to in from + 1..=first + 5 {
                let kept: Vec<u8> = [&lines[..from], &lines[to..]].concat().concat();
                let bytes = [&sample.bytes[..begin], &kept, &sample.bytes[begin + length..]].concat();
                for look in [1, 17, 1 << 20] {
                    let found = scan(format, &bytes, look);
                    assert_eq!(found.frames, sample.frames[..1], "{format}: without {from}..{to}");
                    let trouble = found.trouble.unwrap();
                    assert!(trouble.offset == begin as u64 && !trouble.unfinished, "{format}: {trouble:?}");
                }
            }
        }
    }
}

/// Lines as programs write them, which must not be refused.
#[test]
fn odd_lines_of_atoms_are_good() {
    let xyz = "2\n\nC 0 0 0\nFe2 -1.5E+01 1.0D-3 nan 7 8 9\n\
               2\nLattice=\"1 0 0 0 1 0 0 0 1\" a=b\n1 2 3\n   8\t1. 2. -.5 # note\n";
    let gro = "x\n2\n    1SOL     OW    1   0.0   0.0   0.0\n    1SOL    HW1    2   0.0   0.0   0.0\n\n\
               x\n2\n    1SOL     OW    1   0.0   0.0   0.0\n    1SOL    HW1    2   0.0   0.0   0.0\n\
               1 1 1 0 0 0 0 0 -0.5\n";
    for (format, text) in [(Format::Xyz, xyz), (Format::Gro, gro)] {
        let found = scan(format, text.as_bytes(), 64);
        assert_eq!((found.frames.len(), found.trouble), (2, None), "{format}");
    }
}

#[test]
fn lengths_of_terabytes_allocate_nothing() {
    // A frame that says that it has 2^45 bytes, in a file that seems to be as large.
    let mut frame = common::xtc(57, &[8], true).bytes;
    frame[88..96].copy_from_slice(&(1i64 << 39).to_be_bytes());
    let mut scanner = Scanner::new(Format::Xtc);
    assert_eq!(scanner.step(&[], 1 << 50), Ok(Step::Header));
    assert_eq!(scanner.step(&frame, 1 << 50), Ok(Step::Frame(96 + (1 << 39))));
    assert_eq!(scanner.position(), 96 + (1 << 39));
    frame[88..96].copy_from_slice(&(1i64 << 45).to_be_bytes());
    let refused = scanner.step(&frame, 1 << 50).unwrap_err();
    assert!(refused.offset == 96 + (1 << 39) && refused.why.contains("beyond the limit"), "{refused:?}");
}

#[test]
fn an_xtc_frame_of_atoms_far_from_each_other_is_whole() {
    // GROMACS takes the size index beyond its table for it.
    let mut bytes = common::xtc(57, &[8, 8], false).bytes;
    for (index, whole) in [(9, 2), (72, 2), (73, 2), (74, 0), (-1, 0)] {
        bytes[84..88].copy_from_slice(&i32::to_be_bytes(index));
        assert_eq!(scan(Format::Xtc, &bytes, 64).frames.len(), whole, "{index}");
    }
}

#[test]
fn hdf5_is_refused_with_a_way_out() {
    let head = b"\x89HDF\r\n\x1a\n\0\0\0\0";
    assert_eq!(sniff(head, "x.h5"), Some(Format::H5md));
    assert!(scan(Format::H5md, head, 64).trouble.unwrap().why.contains("h5md"));
}

#[test]
fn formats_are_told_by_their_bytes_not_their_names() {
    let xtc = common::xtc(57, &[8], false).bytes;
    assert_eq!(sniff(&xtc, "x.dcd"), Some(Format::Xtc));
    assert_eq!(sniff(b"5\ncomment\n", "x.txt"), None);
    assert_eq!(sniff(b"5\n6\n", "x.gro"), Some(Format::Gro));
    assert_eq!(sniff(b"HEADER\nATOM\n", "x.pdb"), None);
    assert_eq!(sniff(b"", "x.xtc"), None);
}

#[test]
fn files_of_other_formats_are_told_with_a_way_out() {
    let mut tng = vec![0; 64];
    tng.extend_from_slice(b"GENERAL INFO\0");
    let others: [(&[u8], &[&str]); 8] = [
        (b"\x1f\x8b\x08\0", &["compressed (gzip)", "gunzip -k FILE"]),
        (b"BZh91AY", &["compressed (bzip2)", "bunzip2 -k FILE"]),
        (b"\xfd7zXZ\0\0", &["compressed (xz)"]),
        (b"\x28\xb5\x2f\xfd\0", &["compressed (zstd)"]),
        (&tng, &["TNG", "gmx trjconv"]),
        (b"CRYST1   50.000\n", &["PDB", "several models"]),
        (b"ATOM      1  CA\n", &["PDB"]),
        (b"hello\n", &["none of XTC", "named .xyz"]),
    ];
    for (head, words) in others {
        assert_eq!(sniff(head, "x.xyz"), None);
        let told = foreign(head);
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
    }
}

/// As scipy writes it before the first record: the variables' places are not those that they get.
#[test]
fn a_netcdf_file_without_records_is_no_damaged_one() {
    let sample = common::ncdf(2, 6, 1);
    let mut bytes = sample.bytes[..sample.frames[0].0 as usize].to_vec();
    bytes[4..8].fill(0);
    // The place of the last variable, before the four bytes of the one that is no record.
    let end = bytes.len() - 4;
    bytes[end - 8..end].copy_from_slice(&1u64.to_be_bytes());
    let found = scan(Format::Ncdf, &bytes, 0);
    assert!(found.frames.is_empty() && found.trouble.is_none(), "{:?}", found.trouble);
    bytes[4..8].copy_from_slice(&1u32.to_be_bytes());
    assert!(!scan(Format::Ncdf, &bytes, 0).trouble.unwrap().unfinished);
}

/// A scanner that has read the header of this file.
fn begun(format: Format, bytes: &[u8]) -> Scanner {
    let mut scanner = Scanner::new(format);
    assert_eq!(scanner.step(bytes, bytes.len() as u64), Ok(Step::Header));
    scanner
}

#[test]
fn files_that_another_header_would_misread_are_told() {
    let plain = common::DcdKind { big: false, wide: false, charmm: true, cell: true, four: false, fixed: 0 };
    let dcd = |kind| common::dcd(5, 3, kind).bytes;
    let is_like =
        |format, one: &[u8], other: &[u8]| begun(format, one).unlike(&begun(format, other)).is_none();
    let good = dcd(plain);
    assert!(is_like(Format::Dcd, &good, &common::dcd(5, 2, plain).bytes));
    let fixed = dcd(common::DcdKind { fixed: 2, ..plain });
    assert!(!is_like(Format::Dcd, &fixed, &fixed) && !is_like(Format::Dcd, &fixed, &good));
    assert!(!is_like(Format::Dcd, &good, &dcd(common::DcdKind { big: true, ..plain })));
    // Steps between frames, and the time of a step.
    for at in [8 + 4 * 2, 8 + 4 * 9] {
        let mut other = good.clone();
        other[at] = 7;
        assert!(!is_like(Format::Dcd, &other, &good), "byte {at}");
    }
    let good = common::ncdf(2, 6, 3).bytes;
    assert!(is_like(Format::Ncdf, &common::ncdf(2, 6, 5).bytes, &good));
    // Files of the same length for each record: other names, other types.
    let changed = |from: &[u8], to: &[u8]| {
        let at = good.windows(from.len()).position(|window| window == from).unwrap();
        let mut other = good.clone();
        other[at..at + to.len()].copy_from_slice(to);
        other
    };
    for (from, to) in [(&b"coordinates"[..], &b"velocitieso"[..]), (b"time", b"timf")] {
        assert!(!is_like(Format::Ncdf, &changed(from, to), &good));
    }
    let kind_of_time = [&b"time"[..], &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]].concat();
    let as_integer = [&kind_of_time[..kind_of_time.len() - 1], &[4]].concat();
    assert!(!is_like(Format::Ncdf, &changed(&kind_of_time, &as_integer), &good));
}

#[test]
fn a_hole_is_no_line() {
    let zeros = vec![0; 1 << 20];
    for (format, head) in [(Format::Xyz, "4294967295\nx\n"), (Format::Gro, "title\n4294967295\n")] {
        let mut scanner = begun(format, &[]);
        let mut looks = 0;
        let trouble = loop {
            let shown = head.as_bytes().get(scanner.position() as usize..).unwrap_or_default();
            let shown = if shown.is_empty() { &zeros[..] } else { shown };
            match scanner.step(shown, 1 << 44) {
                Ok(step) => assert_eq!(step, Step::Moved),
                Err(trouble) => break trouble,
            }
            looks += 1;
            assert!(looks < 10, "reads the hole");
        };
        assert!(trouble.why.contains("longer than 1 MiB") && !trouble.unfinished, "{trouble:?}");
    }
}

#[test]
fn large_frames_are_skipped() {
    let sample = common::xtc(57, &[1 << 20; 20], false);
    let found = scan(Format::Xtc, &sample.bytes, 0);
    assert_eq!(found.frames, sample.frames);
    assert!(found.looked_at < 20 * 200, "{} bytes", found.looked_at);
}

#[test]
fn samples_cover_head_and_tail() {
    for end in [0, 5, 256 << 10, (256 << 10) + 1, 1 << 45] {
        let samples = Anchors::samples(7, end);
        assert!(samples.iter().all(|sample| sample.offset + sample.bytes <= end));
        assert!(samples.iter().any(|sample| sample.offset == 0));
        assert!(samples.iter().any(|sample| sample.offset + sample.bytes == end));
    }
    assert_ne!(Anchors::samples(7, 1 << 30), Anchors::samples(8, 1 << 30));
}

mod index {
    use super::*;
    use std::sync::Arc;
    use zazen_core::trajectory::{FrameTable, Trouble};
    use zazen_trajectory::{FileIndex, Grown};

    fn index() -> FileIndex {
        let mut table = FrameTable::new(8, 4);
        [400, 404, 396].iter().for_each(|length| table.push(*length).unwrap());
        FileIndex {
            key: "/lustre/a/md.xtc".into(),
            format: Format::Xtc,
            n_atoms: 57,
            header: Arc::from(&b"header"[..]),
            table: Arc::new(table),
            trouble: Some(Trouble { offset: 1208, unfinished: true, why: "cut".into() }),
            seen: Validator { size: 1300, mtime_ns: 5, ctime_ns: 6, inode: 7, unsettled: false },
            anchors: Anchors { seed: 9, sums: vec![1, 2, 3] },
        }
    }

    #[test]
    fn an_index_comes_back_and_damage_is_found() {
        let bytes = index().encode();
        assert_eq!(FileIndex::decode(&bytes).unwrap(), index());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(FileIndex::decode(&damaged).is_err(), "bit {bit}");
        }
        (0..bytes.len()).for_each(|cut| assert!(FileIndex::decode(&bytes[..cut]).is_err(), "cut to {cut}"));
    }

    #[test]
    fn a_file_grows_or_is_another() {
        let seen = index().seen;
        let check = |now, expected| assert_eq!(index().compare(&now), expected, "{now:?}");
        check(seen, Grown::Same);
        check(Validator { size: 1400, mtime_ns: 9, ctime_ns: 9, ..seen }, Grown::Perhaps);
        check(Validator { size: 1400, mtime_ns: 9, inode: 8, ..seen }, Grown::Other);
        check(Validator { size: 1400, mtime_ns: 4, ..seen }, Grown::Other);
        // Counters in the header may change before the file grows; the samples tell.
        let touched = Validator { size: 1300, mtime_ns: 9, ..seen };
        check(touched, Grown::Perhaps);
        assert_eq!(Grown::between(&seen, &touched), Grown::Other);
        check(Validator { size: 1300, mtime_ns: 4, ..seen }, Grown::Other);
        check(Validator { size: 1300, mtime_ns: 9, inode: 8, ..seen }, Grown::Other);
        check(Validator { size: 1200, mtime_ns: 9, ..seen }, Grown::Other);
        let young = FileIndex { seen: Validator { unsettled: true, ..seen }, ..index() };
        assert_eq!(young.compare(&seen), Grown::Perhaps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is done to a file: no panic, and every frame that is told lies in the file.
    #[test]
    fn hostile_bytes_make_no_panic(
        which in 0usize..64,
        edits in prop::collection::vec((any::<u16>(), any::<u8>()), 0..9),
        cut in any::<u16>(), look in 1usize..300) {
        let all = samples();
        let sample = &all[which % all.len()];
        let mut bytes = sample.bytes.clone();
        for (at, value) in edits {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(usize::from(cut) % (bytes.len() + 1));
        for format in Format::ALL {
            let found = scan(format, &bytes, look);
            let end = found.frames.last().map_or(0, |(offset, length)| offset + length);
            prop_assert!(end <= bytes.len() as u64);
        }
        let _ = sniff(&bytes, &sample.name);
    }
}
