//! Decodes one frame of a GROMACS XTC trajectory from memory.
//!
//! The bytes come from files that others wrote. For any input the decoder ends, does not panic and
//! allocates nothing: the caller brings the memory. A frame that is cut off, is longer than it
//! says, or has a position outside its own bounds is an error and not a wrong position.
//!
//! The format is that of `xdrfile` (the compression is by Frans van Hoesel). All numbers are big
//! endian:
//!
//! ```text
//! magic 1995 or 2023 · atoms · step · time f32 · box 9 × f32 · atoms again
//! up to 9 atoms:  positions, 3 × f32 each
//! more:           precision f32 · minint 3 × i32 · maxint 3 × i32 · smallidx
//!                 · bytes (i32; i64 if the magic is 2023) · that many bytes, padded to 4
//! ```

mod bits;

use bits::{Bits, Triple};
use zazen_core::{Error, ErrorKind, Result};

/// The sizes of the small differences between atoms that follow each other; the index is also the
/// number of bits of three of them.
#[rustfmt::skip]
const SIZES: [u32; 73] = [
    0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 10, 12, 16, 20, 25, 32, 40, 50, 64, 80, 101, 128, 161, 203, 256,
    322, 406, 512, 645, 812, 1024, 1290, 1625, 2048, 2580, 3250, 4096, 5060, 6501, 8192, 10321,
    13003, 16384, 20642, 26007, 32768, 41285, 52015, 65536, 82570, 104031, 131072, 165140, 208063,
    262144, 330280, 416127, 524287, 660561, 832255, 1048576, 1321122, 1664510, 2097152, 2642245,
    3329021, 4194304, 5284491, 6658042, 8388607, 10568983, 13316085, 16777216,
];
/// The first index with a size.
const SMALLEST: usize = 9;
/// The last index. It has no size: GROMACS's writer takes it where all atoms that follow each other
/// are farther apart than the largest size, so that there is no small difference to store. A writer
/// that takes what lies behind its table for a size, and stores differences so, writes what nobody
/// else can read: that is an error.
const NO_SIZE: usize = SIZES.len();
/// A frame of no more atoms is not compressed.
const PLAIN_ATOMS_MAX: usize = 9;

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// 1995, or 2023 (frames whose compressed positions may exceed 2 GiB).
    pub magic: i32,
    /// The number of atoms.
    pub atoms: usize,
    /// The step of the simulation.
    pub step: i32,
    /// In picoseconds.
    pub time: f32,
    /// The three box vectors, in nanometres.
    pub box_vectors: [f32; 9],
}

/// The header at the start of `bytes`. Fails with `Corrupt` if there is none.
pub fn header(bytes: &[u8]) -> Result<Header> {
    Fields(bytes).header().ok_or_else(|| cut_off(bytes))?
}

/// Decodes the frame that `bytes` are, from the first byte to the last, and returns its header.
///
/// `positions` has room for exactly three coordinates of each atom, x, y and z in turn; they are in
/// nanometres times `factor`. If the call fails, it may have been written to.
///
/// Fails with `Corrupt` if the bytes are not one whole frame, and with `InvalidArgument` if
/// `positions` has another length.
pub fn decode(bytes: &[u8], positions: &mut [f32], factor: f32) -> Result<Header> {
    let mut fields = Fields(bytes);
    let header = fields.header().ok_or_else(|| cut_off(bytes))??;
    if positions.len() != 3 * header.atoms {
        let context =
            format!("room for {} coordinates, but the frame has {} atoms", positions.len(), header.atoms);
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    }
    if header.atoms <= PLAIN_ATOMS_MAX {
        for coordinate in &mut *positions {
            *coordinate = fields.float().ok_or_else(|| cut_off(bytes))? * factor;
        }
        return fields.end(header);
    }
    let (compressed, stream) = fields.compressed(header.magic).ok_or_else(|| cut_off(bytes))??;
    let header = fields.end(header)?;
    compressed.positions(stream, positions, factor)?;
    Ok(header)
}

fn damaged(what: String) -> Error {
    Error::new(ErrorKind::Corrupt, format!("damaged XTC frame: {what}"))
}

fn cut_off(bytes: &[u8]) -> Error {
    damaged(format!("it is cut off after {} bytes", bytes.len()))
}

/// The bytes that are not decoded yet. `None` stands for a frame that is cut off.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn word(&mut self) -> Option<[u8; 4]> {
        self.take(4)?.try_into().ok()
    }

    fn int(&mut self) -> Option<i32> {
        self.word().map(i32::from_be_bytes)
    }

    fn float(&mut self) -> Option<f32> {
        self.word().map(f32::from_be_bytes)
    }

    fn ints(&mut self) -> Option<[i32; 3]> {
        Some([self.int()?, self.int()?, self.int()?])
    }

    fn header(&mut self) -> Option<Result<Header>> {
        let magic = self.int()?;
        if magic != 1995 && magic != 2023 {
            return Some(Err(damaged(format!("it begins with {magic}, not with 1995 or 2023"))));
        }
        let (atoms, step, time) = (self.int()?, self.int()?, self.float()?);
        let mut box_vectors = [0.0; 9];
        for component in &mut box_vectors {
            *component = self.float()?;
        }
        let again = self.int()?;
        if atoms < 0 || again != atoms {
            return Some(Err(damaged(format!("it says {atoms} atoms and then {again}"))));
        }
        Some(Ok(Header { magic, atoms: atoms as usize, step, time, box_vectors }))
    }

    fn compressed(&mut self, magic: i32) -> Option<Result<(Compressed, &'a [u8])>> {
        let precision = self.float()?;
        let (minimum, maximum) = (self.ints()?, self.ints()?);
        let small = self.int()?;
        let length = match magic {
            2023 => i64::from_be_bytes(self.take(8)?.try_into().ok()?),
            _ => i64::from(self.int()?),
        };
        let made = match Compressed::new(precision, minimum, maximum, small) {
            Ok(made) => made,
            Err(error) => return Some(Err(error)),
        };
        let Ok(length) = usize::try_from(length) else {
            return Some(Err(damaged(format!("it says {length} compressed bytes"))));
        };
        let stream = self.take(length)?;
        self.take(length.wrapping_neg() % 4)?;
        Some(Ok((made, stream)))
    }

    fn end(&self, header: Header) -> Result<Header> {
        match self.0.len() {
            0 => Ok(header),
            rest => Err(damaged(format!("{rest} bytes are left over behind it"))),
        }
    }
}

/// How a frame's positions are compressed.
struct Compressed {
    /// Nanometres per unit.
    unit: f32,
    minimum: [i32; 3],
    /// Of the ranges of the coordinates.
    sizes: [u32; 3],
    small: usize,
}

impl Compressed {
    fn new(precision: f32, minimum: [i32; 3], maximum: [i32; 3], small: i32) -> Result<Compressed> {
        if !(precision > 0.0 && precision.is_finite()) {
            return Err(damaged(format!("its precision is {precision}")));
        }
        let mut sizes = [0; 3];
        for axis in 0..3 {
            let span = i64::from(maximum[axis]) - i64::from(minimum[axis]) + 1;
            sizes[axis] = u32::try_from(span).ok().filter(|size| *size > 0).ok_or_else(|| {
                damaged(format!("its coordinates range from {} to {}", minimum[axis], maximum[axis]))
            })?;
        }
        let small = usize::try_from(small)
            .ok()
            .filter(|small| (SMALLEST..=NO_SIZE).contains(small))
            .ok_or_else(|| damaged(format!("its size index is {small}")))?;
        Ok(Compressed { unit: 1.0 / precision, minimum, sizes, small })
    }

    /// Decompresses `stream`.
    fn positions(&self, stream: &[u8], positions: &mut [f32], factor: f32) -> Result<()> {
        let (atoms, _) = positions.as_chunks_mut::<3>();
        let count = atoms.len();
        let mut out = Out { atoms: atoms.iter_mut(), by: self, factor, outside: false };
        let decoded = self.decompress(&mut Bits::new(stream), &mut out);
        let done = count - out.atoms.len();
        match decoded {
            Some(()) if !out.outside => Ok(()),
            Some(()) => Err(damaged("a position is outside the range that the frame states".into())),
            None => Err(damaged(format!("the compressed positions are wrong at atom {done} of {count}"))),
        }
    }

    /// `None` if the stream ends too early or has what no writer writes.
    fn decompress(&self, bits: &mut Bits<'_>, out: &mut Out<'_>) -> Option<()> {
        let large = Triple::new(self.sizes);
        let mut index = self.small;
        let mut small = Small::at(index)?;
        // How many atoms follow as differences. It holds until the stream changes it.
        let mut run = 0;
        while !out.is_full() {
            let first = add(large.read(bits)?.map(|number| number as i32), self.minimum);
            let mut change = 0;
            if bits.number(1)? == 1 {
                let code = bits.number(5)?;
                (run, change) = (code / 3, code as i32 % 3 - 1);
            }
            let mut before = first;
            for at in 0..run {
                let difference = small.read(bits)?;
                let this = add(difference, before);
                out.write(this)?;
                if at == 0 {
                    // The first two are swapped: in water the oxygen is stored between its
                    // hydrogens, so that both differences are small.
                    out.write(first)?;
                }
                before = this;
            }
            if run == 0 {
                out.write(first)?;
            }
            if change != 0 {
                index = index.checked_add_signed(change as isize)?;
                small = Small::at(index)?;
            }
        }
        Some(())
    }
}

/// For each size index how small differences are stored; `None` if no writer uses it.
static SMALL: [Option<Small>; NO_SIZE + 1] = {
    let mut all = [const { None }; NO_SIZE + 1];
    let mut index = SMALLEST;
    while index < NO_SIZE {
        let size = SIZES[index];
        let triple = Some(Triple::with_width([size; 3], index as u32));
        all[index] = Some(Small { triple, middle: size as i32 / 2 });
        index += 1;
    }
    all[NO_SIZE] = Some(Small { triple: None, middle: 0 });
    all
};

/// How small differences are stored.
struct Small {
    /// `None`: they cannot be stored.
    triple: Option<Triple>,
    /// Differences around 0 are stored as numbers from 0 on.
    middle: i32,
}

impl Small {
    /// `None` if no writer uses the index.
    fn at(index: usize) -> Option<&'static Small> {
        SMALL.get(index)?.as_ref()
    }

    /// The next difference.
    #[inline(always)]
    fn read(&self, bits: &mut Bits<'_>) -> Option<[i32; 3]> {
        let numbers = self.triple.as_ref()?.read(bits)?;
        Some(numbers.map(|number| (number as i32).wrapping_sub(self.middle)))
    }
}

#[inline(always)]
fn add(a: [i32; 3], b: [i32; 3]) -> [i32; 3] {
    [a[0].wrapping_add(b[0]), a[1].wrapping_add(b[1]), a[2].wrapping_add(b[2])]
}

/// Where positions go.
struct Out<'a> {
    atoms: std::slice::IterMut<'a, [f32; 3]>,
    by: &'a Compressed,
    factor: f32,
    /// Whether a position was outside the frame's range.
    outside: bool,
}

impl Out<'_> {
    fn is_full(&self) -> bool {
        self.atoms.len() == 0
    }

    /// `None` if all positions are written.
    #[inline(always)]
    fn write(&mut self, position: [i32; 3]) -> Option<()> {
        let place = self.atoms.next()?;
        for axis in 0..3 {
            let above = position[axis].wrapping_sub(self.by.minimum[axis]) as u32;
            self.outside |= above >= self.by.sizes[axis];
            // In the order and precision of all other readers, so that results are equal bit for
            // bit.
            place[axis] = position[axis] as f32 * self.by.unit * self.factor;
        }
        Some(())
    }
}
