//! A trajectory in the words of C.

use crate::structs::Sized0;
use std::ffi::{CString, c_char, c_void};
use std::ptr;
use zazen_client::OpenedTrajectory;

/// What is known of the trajectory files that hold a dataset's frames, as they were when it was
/// opened. Frame n of the dataset has exactly the bytes of the n-th frame of the files, in their
/// order. What the pointers lead to lives as long as the dataset.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_trajectory_t {
    /// sizeof(zazen_trajectory_t), set by the caller.
    pub struct_size: usize,
    /// "xtc", "trr", "dcd", "ncdf", "gro", "lammpstrj" or "xyz".
    pub format: *const c_char,
    /// Atoms in each frame.
    pub atoms: u64,
    /// Whole frames in all files.
    pub frames: u64,
    /// How many files there are; zazen_trajectory_file names each.
    pub files: u64,
    /// How many things are wrong with them; zazen_trajectory_trouble names each.
    pub troubles: u64,
    /// The bytes before the first frame of the first file, where a decoder needs them (DCD, AMBER
    /// NetCDF); else NULL.
    pub header: *const c_void,
    /// How many bytes the header has.
    pub header_bytes: u64,
}

// SAFETY: repr(C), size first, zeroes are NULL and 0, no padding.
unsafe impl Sized0 for zazen_trajectory_t {
    const NAME: &'static str = "zazen_trajectory_t";
}

/// A trajectory in the words of C. It stays with its dataset.
pub(crate) struct Told {
    opened: OpenedTrajectory,
    format: CString,
    pub(crate) files: Vec<CString>,
    pub(crate) troubles: Vec<CString>,
}

impl Told {
    pub(crate) fn new(opened: OpenedTrajectory) -> Told {
        let c_text = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let path = |file: &zazen_core::TrajectoryFile| opened.directory.join(file.path.as_str());
        let files = opened.trajectory.files.iter().map(path);
        Told {
            format: c_text(opened.trajectory.format.name().to_owned()),
            files: files.map(|path| c_text(path.to_string_lossy().into_owned())).collect(),
            troubles: opened.troubles().into_iter().map(c_text).collect(),
            opened,
        }
    }

    pub(crate) fn described(&self) -> zazen_trajectory_t {
        let header = self.opened.trajectory.header();
        zazen_trajectory_t {
            struct_size: 0,
            format: self.format.as_ptr(),
            atoms: self.opened.trajectory.n_atoms,
            frames: self.opened.trajectory.files.iter().map(|file| file.count).sum(),
            files: self.files.len() as u64,
            troubles: self.troubles.len() as u64,
            header: if header.is_empty() { ptr::null() } else { header.as_ptr().cast() },
            header_bytes: header.len() as u64,
        }
    }
}
