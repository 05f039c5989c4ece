//! The format of a file: by its first bytes. The name decides only between the text formats, which
//! have no magic number.

use crate::gromacs::{TRR_MAGIC, TRR_VERSION, XTC_LARGE_MAGIC, XTC_MAGIC};
use crate::{bytes, dcd, lines, ncdf};
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
    if head.starts_with(b"\x89HDF\r\n\x1a\n") {
        return Some(Format::H5md);
    }
    text(head, name)
}

fn text(head: &[u8], name: &str) -> Option<Format> {
    let (first, length) = lines::first(head)?;
    if [&b"ITEM: TIMESTEP"[..], b"ITEM: UNITS", b"ITEM: TIME"].contains(&first) {
        return Some(Format::Lammps);
    }
    let second = lines::first(&head[length..]).and_then(|(line, _)| lines::number(line));
    let is_named = |ending: &str| name.to_ascii_lowercase().ends_with(ending);
    match (lines::number(first), second) {
        (_, Some(_)) if is_named(".gro") => Some(Format::Gro),
        (Some(_), _) if is_named(".xyz") || is_named(".extxyz") => Some(Format::Xyz),
        _ => None,
    }
}
