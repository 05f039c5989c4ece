//! The format of a file: by its first bytes. The name decides only between the text formats, which
//! have no magic number, and where HDF5's first bytes may stand further behind.

use crate::gromacs::{TRR_MAGIC, TRR_VERSION, XTC_LARGE_MAGIC, XTC_MAGIC};
use crate::{bytes, dcd, hdf5, lines, ncdf};
use zazen_core::trajectory::Format;

/// Bytes at the beginning of a file that show its format.
pub const SNIFF_BYTES: usize = 4096;

/// The format of the file called `name` that begins with `head` (up to [`SNIFF_BYTES`]). `None` if
/// it is none of them.
pub fn sniff(head: &[u8], name: &str) -> Option<Format> {
    match bytes::be_i32(head, 0) {
        Some(XTC_MAGIC | XTC_LARGE_MAGIC) => return Some(Format::Xtc),
        Some(TRR_MAGIC) if head.get(12..24) == Some(TRR_VERSION) => return Some(Format::Trr),
        _ => {}
    }
    if dcd::Dcd::is_one(head) {
        return Some(Format::Dcd);
    }
    if ncdf::is_one(head) {
        return Some(Format::Ncdf);
    }
    if hdf5::is_one(head) {
        return Some(Format::H5md);
    }
    // A long user block stands before what HDF5 wrote.
    if !head.is_empty() && is_named(name, &[".h5md", ".h5", ".hdf5"]) {
        return Some(Format::H5md);
    }
    text(head, name)
}

fn is_named(name: &str, endings: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    endings.iter().any(|ending| name.ends_with(ending))
}

fn text(head: &[u8], name: &str) -> Option<Format> {
    let (first, length) = lines::first(head)?;
    if [&b"ITEM: TIMESTEP"[..], b"ITEM: UNITS", b"ITEM: TIME"].contains(&first) {
        return Some(Format::Lammps);
    }
    let second = lines::first(&head[length..]).and_then(|(line, _)| lines::number(line));
    match (lines::number(first), second) {
        (_, Some(_)) if is_named(name, &[".gro"]) => Some(Format::Gro),
        (Some(_), _) if is_named(name, &[".xyz", ".extxyz"]) => Some(Format::Xyz),
        _ => None,
    }
}
