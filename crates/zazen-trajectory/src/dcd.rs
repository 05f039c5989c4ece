//! DCD of CHARMM, NAMD, X-PLOR, LAMMPS and OpenMM: Fortran records, each between two copies of its
//! length. Either byte order; lengths of 4 bytes, or of 8.
//!
//! The file's header is three records: 84 bytes (`CORD` and 20 integers: the number of frames, …,
//! steps between frames@2, fixed atoms@8, …, unit cell@10, fourth dimension@11, …, CHARMM
//! version@19), the title, the number of atoms. With fixed atoms, a fourth record lists the free
//! ones. A frame is a record for the unit cell (48 bytes) where there is one, and one record for
//! each dimension. Frames behind the first leave out the fixed atoms.

use crate::bytes::Order;

/// Bytes of the header that must be there to know how long the header is.
pub(crate) const HEAD: usize = 512;
/// Bytes at the beginning of a frame that are checked.
pub(crate) const FRAME_HEAD: usize = 16 + 48 + 8;

/// What a DCD file's header tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dcd {
    order: Order,
    /// Bytes of a record's length: 4 or 8.
    mark: usize,
    has_cell: bool,
    dimensions: u64,
    pub(crate) n_atoms: u64,
    fixed: u64,
    /// Steps between frames, and the bytes of a step's time: decoders take frames' times from them.
    steps: i32,
    step_time: [i32; 2],
    /// Where the first frame begins.
    pub(crate) begin: u64,
}

/// What the first bytes of a file tell; `Ok(None)` if more of them are needed.
pub(crate) type Found<T> = Result<Option<T>, String>;

impl Dcd {
    /// The order and the width of record lengths of a file that begins with `bytes`.
    fn kind(bytes: &[u8]) -> Option<(Order, usize)> {
        let kinds = [(Order::Little, 4), (Order::Big, 4), (Order::Little, 8), (Order::Big, 8)];
        kinds.into_iter().find(|(order, mark)| {
            let length = match mark {
                4 => order.i32(bytes, 0).map(i64::from),
                _ => order.i64(bytes, 0),
            };
            length == Some(84) && matches!(bytes.get(*mark..mark + 4), Some(b"CORD" | b"VELD"))
        })
    }

    /// Whether a file that begins with `bytes` is a DCD file.
    pub(crate) fn is_one(bytes: &[u8]) -> bool {
        Dcd::kind(bytes).is_some()
    }

    /// The header of a file that begins with `bytes`. Of a long record only the length is needed.
    pub(crate) fn parse(bytes: &[u8]) -> Found<Dcd> {
        if bytes.len() < 12 {
            return Ok(None);
        }
        let Some((order, mark)) = Dcd::kind(bytes) else {
            return Err("a DCD file begins with a record of 84 bytes, CORD".to_owned());
        };
        let Some(field) = bytes.get(mark + 4..mark + 84) else { return Ok(None) };
        let control = |nth: usize| order.i32(field, 4 * nth).unwrap_or(0);
        let charmm = control(19) != 0;
        let has_cell = charmm && control(10) != 0;
        let dimensions = if charmm && control(11) == 1 { 4 } else { 3 };
        let fixed = control(8);
        // X-PLOR's is a double.
        let step_time = [control(9), if charmm { 0 } else { control(10) }];

        let mut at = mark as u64 + 84;
        match record(bytes, order, mark, at) {
            Some(84) => at += mark as u64,
            Some(other) => return Err(format!("its first record ends with length {other}, not 84")),
            None => return Ok(None),
        }
        let Some(title) = record(bytes, order, mark, at) else { return Ok(None) };
        let Some(title) = u64::try_from(title).ok().filter(|bytes| *bytes < 1 << 20) else {
            return Err(format!("its title has {title} bytes"));
        };
        // Some writers, such as MDAnalysis, state the wrong length. The number of lines is right,
        // and other readers go by it.
        let lines = order.i32(bytes, at as usize + mark).and_then(|lines| u64::try_from(lines).ok());
        let by_lines = lines.map(|lines| 4 + 80 * lines).filter(|length| *length < 1 << 20);
        let begin = at + mark as u64;
        at = begin + title;
        match record(bytes, order, mark, at) {
            Some(end) if end as u64 == title => {}
            Some(end) => {
                let wrong = || Err(format!("its title begins with length {title} and ends with {end}"));
                let Some(length) = by_lines.filter(|length| *length != title) else { return wrong() };
                at = begin + length;
                match record(bytes, order, mark, at) {
                    Some(end) if end as u64 == title => {}
                    Some(_) => return wrong(),
                    None => return Ok(None),
                }
            }
            None => return Ok(None),
        }
        at += mark as u64;
        let Some(length) = record(bytes, order, mark, at) else { return Ok(None) };
        let Some(n_atoms) = order.i32(bytes, at as usize + mark) else { return Ok(None) };
        if length != 4 || n_atoms <= 0 || fixed < 0 || fixed >= n_atoms {
            return Err(format!(
                "it has {n_atoms} atoms, {fixed} of them fixed, in a record of {length} bytes"
            ));
        }
        at += 2 * mark as u64 + 4;
        let (n_atoms, fixed) = (n_atoms as u64, fixed as u64);
        if fixed > 0 {
            at += 2 * mark as u64 + 4 * (n_atoms - fixed);
        }
        Ok(Some(Dcd {
            order,
            mark,
            has_cell,
            dimensions,
            n_atoms,
            fixed,
            steps: control(2),
            step_time,
            begin: at,
        }))
    }

    /// What keeps a decoder that knows only the header of `first` from reading this file's frames.
    pub(crate) fn unlike(&self, first: &Dcd) -> Option<&'static str> {
        let alike = |dcd: &Dcd| Dcd { begin: 0, steps: 0, step_time: [0; 2], ..*dcd };
        if alike(self) != alike(first) {
            return Some("its frames are built unlike those");
        }
        if self.fixed > 0 {
            return Some("its fixed atoms are told by its own header and first frame only, as are those");
        }
        let times = |dcd: &Dcd| (dcd.steps, dcd.step_time);
        (times(self) != times(first)).then_some("the time between its frames is another than that")
    }

    /// The length of frame `index`, in bytes.
    pub(crate) fn frame_bytes(&self, index: u64) -> u64 {
        let atoms = if index == 0 { self.n_atoms } else { self.n_atoms - self.fixed };
        let marks = 2 * self.mark as u64;
        let cell = if self.has_cell { 48 + marks } else { 0 };
        cell + self.dimensions * (marks + 4 * atoms)
    }

    /// Checks the records' lengths in the first bytes of frame `index`; `None` if more are needed.
    pub(crate) fn check(&self, bytes: &[u8], index: u64) -> Option<Result<(), String>> {
        let atoms = if index == 0 { self.n_atoms } else { self.n_atoms - self.fixed };
        let mark = self.mark as u64;
        let cell = self.has_cell.then_some([0, mark + 48]);
        for at in cell.iter().flatten() {
            let found = record(bytes, self.order, self.mark, *at)?;
            if found != 48 {
                return Some(Err(format!("its unit cell has {found} bytes where 48 belong")));
            }
        }
        let behind = if self.has_cell { 2 * mark + 48 } else { 0 };
        let found = record(bytes, self.order, self.mark, behind)?;
        Some(match u64::try_from(found) == Ok(4 * atoms) {
            true => Ok(()),
            false => Err(format!("its x coordinates have {found} bytes where {} belong", 4 * atoms)),
        })
    }
}

/// The length that stands at `at`.
fn record(bytes: &[u8], order: Order, mark: usize, at: u64) -> Option<i64> {
    let at = usize::try_from(at).ok()?;
    match mark {
        4 => order.i32(bytes, at).map(i64::from),
        _ => order.i64(bytes, at),
    }
}
