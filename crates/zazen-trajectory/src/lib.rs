//! Finds the frames of trajectory files. Each format has an incremental parser. Whoever drives it
//! reads the file, and may skip what the parser does not ask for: for binary formats it asks only
//! for each frame's header. H5MD, whose frames may lie anywhere, has a function of its own.
//!
//! Invariants: this crate is pure. Files are hostile input: a parser never panics, and allocates
//! nothing by a length that it read. A frame is reported only if all of it lies within the file and
//! its header agrees with the file's first frame.

mod bytes;
mod dcd;
mod foreign;
mod gromacs;
mod h5md;
mod hdf5;
mod index;
mod lines;
mod ncdf;
mod scan;
mod sniff;
mod text;

pub use foreign::foreign;
pub use h5md::{H5md, find_h5md};
pub use hdf5::ReadAt;
pub use index::{Anchors, FileIndex, Grown, INDEX_VERSION, Sample, hide_counters};
pub use scan::{Scanner, Step};
pub use sniff::{SNIFF_BYTES, sniff};
