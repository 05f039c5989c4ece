//! `zazen.Trajectory`: what is known of a dataset's trajectory files.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zazen_client::OpenedTrajectory;

/// The trajectory files of a dataset, as they were when it was opened. Frame n of the dataset has
/// exactly the bytes of the n-th frame of the files, in their order.
#[pyclass(name = "Trajectory", module = "zazen", frozen)]
pub(crate) struct PyTrajectory(pub(crate) OpenedTrajectory);

#[pymethods]
impl PyTrajectory {
    /// "xtc", "trr", "dcd", "ncdf", "gro", "lammpstrj" or "xyz".
    #[getter]
    fn format(&self) -> &'static str {
        self.0.trajectory.format.name()
    }

    /// Atoms in each frame.
    #[getter]
    fn n_atoms(&self) -> u64 {
        self.0.trajectory.n_atoms
    }

    /// Whole frames in all files.
    #[getter]
    fn n_frames(&self) -> u64 {
        self.0.trajectory.files.iter().map(|file| file.count).sum()
    }

    /// The bytes before the first frame of the first file, where a decoder needs them (DCD, AMBER
    /// NetCDF); else empty.
    #[getter]
    fn header<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.trajectory.header())
    }

    /// Absolute paths of the files.
    #[getter]
    fn files(&self) -> Vec<String> {
        let spelled = |file: &zazen_core::TrajectoryFile| self.0.directory.join(file.path.as_str());
        self.0.trajectory.files.iter().map(|file| spelled(file).to_string_lossy().into_owned()).collect()
    }

    /// What is wrong with the files, each with its file, frame and byte offset: a frame that is cut
    /// or still being written, or that is damaged. The frames before it are good.
    #[getter]
    fn troubles(&self) -> Vec<String> {
        self.0.troubles()
    }

    fn __repr__(&self) -> String {
        format!(
            "<Trajectory {} of {} atoms, {} frames in {} files>",
            self.format(),
            self.n_atoms(),
            self.n_frames(),
            self.0.trajectory.files.len()
        )
    }
}
