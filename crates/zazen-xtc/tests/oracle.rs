//! Frames that another library writes and decodes, damaged frames, and a frame that GROMACS's own
//! code wrote.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use molly::{Frame, Magic, XTCReader, XTCWriter};
use proptest::prelude::*;
use zazen_core::ErrorKind;

fn written(frame: &Frame, magic: Magic) -> Vec<u8> {
    let mut bytes = Vec::new();
    XTCWriter::new_with_magic(&mut bytes, magic).write_frame(frame).unwrap();
    bytes
}

fn check_against_molly(bytes: &[u8]) {
    let mut expected = Frame::default();
    XTCReader::new(bytes).read_frame(&mut expected).unwrap();
    let mut positions = vec![f32::NAN; expected.positions.len()];
    let header = zazen_xtc::decode(bytes, &mut positions, 1.0).unwrap();
    assert_eq!(header, zazen_xtc::header(bytes).unwrap());
    assert_eq!(header.step, expected.step as i32);
    assert_eq!((header.time, header.box_vectors), (expected.time, expected.boxvec));
    let bits = |positions: &[f32]| positions.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&positions), bits(&expected.positions));
    let mut scaled = vec![f32::NAN; expected.positions.len()];
    zazen_xtc::decode(bytes, &mut scaled, 10.0).unwrap();
    let expected: Vec<f32> = expected.positions.iter().map(|value| value * 10.0).collect();
    assert_eq!(bits(&scaled), bits(&expected));
}

/// Atoms in clusters of some size: this decides how many are stored as small differences.
fn clusters() -> impl Strategy<Value = Vec<f32>> {
    let cluster = |spread: f32| {
        (
            prop::array::uniform3(-9.0f32..9.0),
            prop::collection::vec(prop::array::uniform3(-spread..spread), 1..9),
        )
            .prop_map(|(centre, offsets)| {
                offsets
                    .iter()
                    .flat_map(|offset| [0, 1, 2].map(|axis| centre[axis] + offset[axis]))
                    .collect::<Vec<_>>()
            })
    };
    let spread = prop_oneof![Just(0.01f32), Just(0.1), Just(1.0)];
    spread
        .prop_flat_map(move |spread| prop::collection::vec(cluster(spread), 0..60))
        .prop_map(|clusters| clusters.concat())
}

fn frames() -> impl Strategy<Value = Frame> {
    // molly writes wrong bytes if the product of three ranges needs more than 64 bits. The Python
    // tests decode such frames, which libxdrfile writes.
    let scale = prop_oneof![4 => Just(1.0f32), 1 => Just(0.0), 1 => Just(20.0), 1 => Just(100.0)];
    (clusters(), scale, any::<u32>(), -1e6f32..1e6, prop_oneof![Just(1000.0f32), Just(10.0), Just(123.4)])
        .prop_map(|(positions, scale, step, time, precision)| Frame {
            step,
            time,
            boxvec: [5.0, 0.0, 0.0, 0.5, 6.0, 0.0, 0.25, 0.125, 7.0],
            precision,
            positions: positions.iter().map(|value| value * scale).collect(),
        })
}

proptest! {
    #[test]
    fn decodes_what_molly_writes(frame in frames(), new in any::<bool>()) {
        check_against_molly(&written(&frame, if new { Magic::Xtc2023 } else { Magic::Xtc1995 }));
    }

    #[test]
    fn damage_ends_in_an_error_or_in_positions(
        frame in frames(), new in any::<bool>(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut bytes = written(&frame, if new { Magic::Xtc2023 } else { Magic::Xtc1995 });
        let mut positions = vec![0.0; frame.positions.len()];
        let cut = at.index(bytes.len());
        prop_assert_eq!(
            zazen_xtc::decode(&bytes[..cut], &mut positions, 1.0).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
        bytes[cut] = byte;
        let _ = zazen_xtc::decode(&bytes, &mut positions, 1.0);
        bytes.push(0);
        prop_assert!(zazen_xtc::decode(&bytes, &mut positions, 1.0).is_err());
    }
}

/// Changes one 4-byte field of a good frame and expects an error that has `text`.
fn check_refused(at: usize, field: [u8; 4], text: &str) {
    let positions: Vec<f32> = (0..90).map(|value| value as f32 / 7.0).collect();
    let frame = Frame { precision: 1000.0, positions, ..Frame::default() };
    let mut bytes = written(&frame, Magic::Xtc1995);
    bytes[at..at + 4].copy_from_slice(&field);
    let error = zazen_xtc::decode(&bytes, &mut [0.0; 90], 1.0).unwrap_err();
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn what_no_writer_writes_is_refused() {
    check_refused(0, 1996i32.to_be_bytes(), "1996");
    check_refused(4, (-1i32).to_be_bytes(), "-1 atoms");
    check_refused(4, 31i32.to_be_bytes(), "31 atoms and then 30");
    check_refused(56, 0f32.to_be_bytes(), "precision is 0");
    check_refused(56, f32::NAN.to_be_bytes(), "precision is NaN");
    check_refused(60, i32::MAX.to_be_bytes(), "range from 2147483647");
    check_refused(84, 8i32.to_be_bytes(), "size index is 8");
    // 73 is a size index, but no difference can be stored with it, and this frame has some.
    check_refused(84, 73i32.to_be_bytes(), "wrong at atom");
    check_refused(84, 74i32.to_be_bytes(), "size index is 74");
    check_refused(84, (-1i32).to_be_bytes(), "size index is -1");
    check_refused(88, (-1i32).to_be_bytes(), "-1 compressed bytes");
    check_refused(88, i32::MAX.to_be_bytes(), "cut off");
    check_refused(88, 8i32.to_be_bytes(), "left over");
}

#[test]
fn the_index_beyond_the_table_of_sizes_is_that_of_atoms_far_from_each_other() {
    // molly takes the last index of the table for them, and GROMACS the one beyond it.
    let positions: Vec<f32> =
        (0..36).map(|value| if value % 3 == 0 { value as f32 * 8e3 } else { 1.0 }).collect();
    for magic in [Magic::Xtc1995, Magic::Xtc2023] {
        let frame = Frame { precision: 1000.0, positions: positions.clone(), ..Frame::default() };
        let mut bytes = written(&frame, magic);
        assert_eq!(bytes[84..88], 72i32.to_be_bytes());
        let (mut expected, mut found) = (vec![0.0; 36], vec![0.0; 36]);
        zazen_xtc::decode(&bytes, &mut expected, 1.0).unwrap();
        bytes[84..88].copy_from_slice(&73i32.to_be_bytes());
        zazen_xtc::decode(&bytes, &mut found, 1.0).unwrap();
        assert_eq!(found, expected);
    }
}

#[test]
fn room_for_another_number_of_atoms_is_an_error() {
    let frame = Frame { positions: vec![0.5; 30], ..Frame::default() };
    let bytes = written(&frame, Magic::Xtc1995);
    for room in [0, 27, 33] {
        let error = zazen_xtc::decode(&bytes, &mut vec![0.0; room], 1.0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

/// The frame called `name` of `golden.txt`: step 7, time 1.5.
fn check_golden(name: &str, thousandths: &[i32]) {
    let line = include_str!("golden.txt").lines().find_map(|line| line.strip_prefix(&format!("{name} = ")));
    let hex = line.unwrap();
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    let mut positions = vec![0.0; thousandths.len()];
    let header = zazen_xtc::decode(&bytes, &mut positions, 1.0).unwrap();
    assert_eq!((header.atoms, header.step, header.time), (thousandths.len() / 3, 7, 1.5));
    assert_eq!(header.box_vectors, [3.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 5.0]);
    let found: Vec<i32> = positions.iter().map(|value| (value * 1000.0).round() as i32).collect();
    assert_eq!(found, thousandths, "{name}");
}

#[test]
fn golden_frames_of_libxdrfile() {
    check_golden("waters", &GOLDEN_THOUSANDTHS);
    check_golden("waters-2023", &GOLDEN_THOUSANDTHS);
    check_golden("three-atoms", &GOLDEN_THOUSANDTHS[..9]);
}

#[rustfmt::skip]
const GOLDEN_THOUSANDTHS: [i32; 36] = [
    257, 710, 2404, 353, 710, 2404, 233, 803, 2404, 1746, 282, 1299, 1842, 282, 1299, 1722, 375, 1299,
    1437, 479, 2204, 1533, 479, 2204, 1413, 572, 2204, 341, 1174, 1550, 437, 1174, 1550, 317, 1266, 1550,
];
