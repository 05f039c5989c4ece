//! Decodes XTC frames into numpy arrays, for `zazen.mdanalysis` and `zazen.mdtraj`.

use crate::errors::{lift, raise_kind};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use zazen_core::ErrorKind;

/// A frame's step, its time in picoseconds and its box vectors in nanometres, row by row.
type XtcHeader = (i32, f32, [f32; 9]);

/// Returns the number of atoms of the XTC frame that `data` is. Raises CorruptError if so many do
/// not fit into a frame of its length.
#[pyfunction]
#[pyo3(name = "_xtc_atoms")]
pub(crate) fn xtc_atoms(py: Python<'_>, data: PyBuffer<u8>) -> PyResult<usize> {
    let atoms = lift(py, zazen_xtc::header(bytes_of(py, &data)?))?.atoms;
    // The least that a writer spends on an atom is two bits.
    if atoms > 8 * data.item_count() {
        let text = format!("damaged XTC frame: it says {atoms} atoms in {} bytes", data.item_count());
        return Err(raise_kind(py, ErrorKind::Corrupt, &text));
    }
    Ok(atoms)
}

/// Decodes the XTC frame that `data` is into `positions`, a writable C-contiguous float32 array of
/// three coordinates per atom, in nanometres times `factor`. Returns (step, time, box vectors).
///
/// The interpreter's lock is released meanwhile: no other thread may change `data` or use
/// `positions`. Raises
/// CorruptError if `data` is not one whole frame; `positions` may have been written to.
#[pyfunction]
#[pyo3(name = "_xtc_decode")]
pub(crate) fn xtc_decode(
    py: Python<'_>,
    data: PyBuffer<u8>,
    positions: PyBuffer<f32>,
    factor: f32,
) -> PyResult<XtcHeader> {
    let bytes = bytes_of(py, &data)?;
    if positions.readonly() || !positions.is_c_contiguous() {
        let text = "positions is not a writable C-contiguous float32 array";
        return Err(raise_kind(py, ErrorKind::InvalidArgument, text));
    }
    let room: &mut [f32] = match positions.item_count() {
        0 => &mut [],
        // SAFETY: the buffer is exported as long as `positions` lives. PyBuffer has checked its
        // type and alignment; the lines above, that it is contiguous and writable. The caller
        // says that no other thread uses it.
        count => unsafe { std::slice::from_raw_parts_mut(positions.buf_ptr().cast(), count) },
    };
    let header = py.detach(|| zazen_xtc::decode(bytes, room, factor));
    let header = lift(py, header)?;
    Ok((header.step, header.time, header.box_vectors))
}

/// The bytes of a buffer, which nobody may change meanwhile. A frame's never change.
fn bytes_of<'a>(py: Python<'_>, data: &'a PyBuffer<u8>) -> PyResult<&'a [u8]> {
    if !data.is_c_contiguous() {
        return Err(raise_kind(py, ErrorKind::InvalidArgument, "the bytes of a frame are not contiguous"));
    }
    match data.item_count() {
        0 => Ok(&[]),
        // SAFETY: the buffer is exported as long as `data` lives, and contiguous. The caller says
        // that nobody changes it.
        count => Ok(unsafe { std::slice::from_raw_parts(data.buf_ptr().cast(), count) }),
    }
}
