//! Files of each format, made by hand from the formats' descriptions, and a driver.

// The exemption for tests does not reach their helpers.
#![allow(clippy::unwrap_used, unreachable_pub)]

use zazen_core::trajectory::{Format, FrameTable, Trouble};
use zazen_trajectory::{Scanner, Step};

/// A file and where its frames are.
#[derive(Clone, Debug)]
pub struct Sample {
    pub name: String,
    pub format: Format,
    pub n_atoms: u64,
    pub bytes: Vec<u8>,
    /// (offset, length) of each frame.
    pub frames: Vec<(u64, u64)>,
}

impl Sample {
    fn new(name: &str, format: Format, n_atoms: u64, header: Vec<u8>) -> Sample {
        Sample { name: name.to_owned(), format, n_atoms, bytes: header, frames: Vec::new() }
    }

    fn add(&mut self, frame: &[u8]) {
        self.frames.push((self.bytes.len() as u64, frame.len() as u64));
        self.bytes.extend_from_slice(frame);
    }
}

/// What a scan found.
#[derive(Debug)]
pub struct Scanned {
    pub frames: Vec<(u64, u64)>,
    pub trouble: Option<Trouble>,
    pub n_atoms: u64,
    /// Bytes that were handed to the parser.
    pub looked_at: u64,
}

/// Scans `bytes`; each look shows at most `look` bytes, or as many as are asked for.
pub fn scan(format: Format, bytes: &[u8], look: usize) -> Scanned {
    let mut scanner = Scanner::new(format);
    let mut table = FrameTable::new(0, 1);
    let (mut least, mut looked_at, mut calm) = (0, 0u64, 0);
    let trouble = loop {
        let position = scanner.position() as usize;
        let rest = &bytes[position.min(bytes.len())..];
        let shown = &rest[..rest.len().min(look.max(least))];
        looked_at += shown.len() as u64;
        match scanner.step(shown, bytes.len() as u64) {
            Ok(Step::More(wanted)) => {
                calm += 1;
                assert!(calm < 64, "no progress at {position}");
                least = wanted;
                continue;
            }
            Ok(Step::Header) => table = FrameTable::new(scanner.begin(), 1),
            Ok(Step::Frame(length)) => table.push(length).unwrap(),
            Ok(Step::Moved) => {}
            Ok(Step::End) => break None,
            Err(trouble) => break Some(trouble),
        }
        (least, calm) = (0, 0);
    };
    let frames = (0..table.count()).map(|index| table.get(index).unwrap()).collect();
    Scanned { frames, trouble, n_atoms: scanner.n_atoms(), looked_at }
}

fn be(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

/// XTC frames whose compressed parts have these lengths.
pub fn xtc(n_atoms: i32, packed: &[usize], large: bool) -> Sample {
    let name = format!("md-{n_atoms}-{large}.xtc");
    let mut sample = Sample::new(&name, Format::Xtc, n_atoms as u64, Vec::new());
    for (step, packed) in packed.iter().enumerate() {
        let mut frame = be(&[if large { 2023 } else { 1995 }, n_atoms, step as i32, 0]);
        frame.extend(be(&[0x3f80_0000; 9]));
        frame.extend(be(&[n_atoms]));
        if n_atoms <= 9 {
            frame.extend(vec![1; 12 * n_atoms as usize]);
        } else {
            frame.extend(be(&[0x447a_0000, 0, 0, 0, 9, 9, 9, 30]));
            match large {
                true => frame.extend((*packed as i64).to_be_bytes()),
                false => frame.extend(be(&[*packed as i32])),
            }
            frame.extend(vec![7; packed.next_multiple_of(4)]);
        }
        sample.add(&frame);
    }
    sample
}

/// TRR frames: each with coordinates, every second with velocities, every third with forces.
pub fn trr(n_atoms: i32, count: usize, real: i32) -> Sample {
    let mut sample = Sample::new(&format!("md-{real}.trr"), Format::Trr, n_atoms as u64, Vec::new());
    for step in 0..count {
        let vectors = 3 * n_atoms * real;
        let (v, f) = (if step % 2 == 0 { vectors } else { 0 }, if step % 3 == 0 { vectors } else { 0 });
        let mut frame = be(&[1993, 13, 12]);
        frame.extend(b"GMX_trn_file");
        frame.extend(be(&[0, 0, 9 * real, 0, 0, 0, 0, vectors, v, f, n_atoms, step as i32, 0]));
        frame.extend(vec![0; (2 * real + 9 * real + vectors + v + f) as usize]);
        sample.add(&frame);
    }
    sample
}

/// How a DCD file is built.
#[derive(Clone, Copy, Debug)]
pub struct DcdKind {
    pub big: bool,
    pub wide: bool,
    pub charmm: bool,
    pub cell: bool,
    pub four: bool,
    pub fixed: i32,
}

pub fn dcd(n_atoms: i32, count: usize, kind: DcdKind) -> Sample {
    let int = |value: i32| if kind.big { value.to_be_bytes() } else { value.to_le_bytes() };
    let mark = |value: i32| match (kind.wide, kind.big) {
        (false, _) => int(value).to_vec(),
        (true, true) => i64::from(value).to_be_bytes().to_vec(),
        (true, false) => i64::from(value).to_le_bytes().to_vec(),
    };
    let record = |bytes: &[u8]| [mark(bytes.len() as i32), bytes.to_vec(), mark(bytes.len() as i32)].concat();
    let mut control = [0i32; 20];
    (control[0], control[8]) = (count as i32, kind.fixed);
    (control[10], control[11]) = (i32::from(kind.cell), i32::from(kind.four));
    control[19] = if kind.charmm { 24 } else { 0 };
    let mut first = b"CORD".to_vec();
    control.iter().for_each(|value| first.extend(int(*value)));
    let mut title = int(2).to_vec();
    title.extend([b'x'; 160]);
    let mut header = [record(&first), record(&title), record(&int(n_atoms))].concat();
    if kind.fixed > 0 {
        header.extend(record(&vec![1; 4 * (n_atoms - kind.fixed) as usize]));
    }
    let mut sample = Sample::new(&format!("{kind:?}.dcd"), Format::Dcd, n_atoms as u64, header);
    for step in 0..count {
        let atoms = if step == 0 { n_atoms } else { n_atoms - kind.fixed } as usize;
        let mut frame = Vec::new();
        if kind.charmm && kind.cell {
            frame.extend(record(&[2; 48]));
        }
        for _ in 0..if kind.charmm && kind.four { 4 } else { 3 } {
            frame.extend(record(&vec![step as u8; 4 * atoms]));
        }
        sample.add(&frame);
    }
    sample
}

/// An AMBER file with time, coordinates, and a cell that is padded.
pub fn ncdf(version: u8, n_atoms: u64, count: u64) -> Sample {
    let wide = version == 5;
    let size =
        |value: u64| if wide { value.to_be_bytes().to_vec() } else { (value as u32).to_be_bytes().to_vec() };
    let offset = |value: u64| match version {
        1 => (value as u32).to_be_bytes().to_vec(),
        _ => value.to_be_bytes().to_vec(),
    };
    let text = |text: &str| {
        let mut bytes = size(text.len() as u64);
        bytes.extend(text.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let dimensions = [("frame", 0), ("spatial", 3), ("atom", n_atoms), ("odd", 3)];
    // Name, dimensions, kind, bytes of one record.
    let variables: [(&str, &[u64], i32, u64); 4] = [
        ("spatial", &[1], 2, 3),
        ("time", &[0], 5, 4),
        ("odd", &[0, 3], 3, 6),
        ("coordinates", &[0, 2, 1], 5, 12 * n_atoms),
    ];
    let head = |begins: [u64; 4]| {
        let mut bytes = vec![b'C', b'D', b'F', version];
        bytes.extend(size(count));
        bytes.extend(be(&[10]));
        bytes.extend(size(4));
        for (name, length) in dimensions {
            bytes.extend([text(name), size(length)].concat());
        }
        bytes.extend(be(&[12]));
        bytes.extend([size(1), text("Conventions"), be(&[2]), text("AMBER")].concat());
        bytes.extend(be(&[11]));
        bytes.extend(size(4));
        for ((name, of, kind, bytes_each), begin) in variables.iter().zip(begins) {
            bytes.extend([text(name), size(of.len() as u64)].concat());
            of.iter().for_each(|dimension| bytes.extend(size(*dimension)));
            // No attributes: a tag and a count of 0.
            bytes.extend([be(&[0]), size(0), be(&[*kind]), size(bytes_each.next_multiple_of(4))].concat());
            bytes.extend(offset(begin));
        }
        bytes
    };
    let end = head([0; 4]).len() as u64;
    let mut header = head([end, end + 4, end + 8, end + 16]);
    header.extend(b"xyz\0");
    let mut sample = Sample::new(&format!("v{version}.nc"), Format::Ncdf, n_atoms, header);
    (0..count).for_each(|step| sample.add(&vec![step as u8; 12 + 12 * n_atoms as usize]));
    sample
}

pub fn text(format: Format, n_atoms: usize, count: usize) -> Sample {
    let mut sample = Sample::new(&format!("t.{}", format.name()), format, n_atoms as u64, Vec::new());
    for step in 0..count {
        let atoms: String = (0..n_atoms).map(|atom| format!("C {}.5 {step} 1\n", atom * 7)).collect();
        let frame = match format {
            Format::Xyz => format!("  {n_atoms}\nLattice=\"1 0 0\" step={step}\n{atoms}"),
            Format::Gro => format!("12 waters, t= {step}\n {n_atoms}\n{atoms}   1.0 1.0 1.0\n"),
            _ => {
                let units = if step == 0 { "ITEM: UNITS\nlj\n" } else { "" };
                format!(
                    "{units}ITEM: TIMESTEP\n{step}\nITEM: NUMBER OF ATOMS\n{n_atoms}\nITEM: BOX BOUNDS pp pp \
                     pp\n0 1\n0 1\n0 1\nITEM: ATOMS id x y z\n{atoms}"
                )
            }
        };
        sample.add(frame.as_bytes());
    }
    sample
}

/// A file of every kind.
pub fn samples() -> Vec<Sample> {
    let mut all = vec![
        xtc(57, &[200, 201, 198, 333, 1], false),
        xtc(57, &[200, 201], true),
        xtc(9, &[0, 0, 0], false),
        trr(5, 7, 4),
        trr(5, 4, 8),
    ];
    let plain = DcdKind { big: false, wide: false, charmm: true, cell: false, four: false, fixed: 0 };
    for big in [false, true] {
        for wide in [false, true] {
            for (cell, four, fixed, charmm) in [
                (true, false, 0, true),
                (false, false, 0, true),
                (true, true, 0, true),
                (true, false, 2, true),
                (false, false, 3, false),
            ] {
                all.push(dcd(5, 4, DcdKind { big, wide, charmm, cell, four, fixed }));
            }
        }
    }
    all.push(dcd(1, 1, plain));
    all.extend([1, 2, 5].map(|version| ncdf(version, 6, 5)));
    all.extend([Format::Xyz, Format::Gro, Format::Lammps].map(|format| text(format, 4, 6)));
    all
}
