//! The iterator over the paths of frames.

use crate::errors::{lift, raise};
use crate::frame::{FramePath, PyFrame};
use crate::notices;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Mutex;
use zazen_client::{FrameLocation, Mine, PlaceReader};

/// An iterator over `(number, path)`. `len` is the number of frames at its start.
///
/// A frame that cannot be found raises an exception. The iteration can continue after it.
#[pyclass(name = "Paths", module = "zazen", frozen)]
pub(crate) struct PyPaths {
    total: u64,
    /// In a forked child, a thread that does not exist there may hold the lock.
    mine: Mine,
    places: Mutex<PlaceReader>,
}

impl PyPaths {
    pub(crate) fn new(places: PlaceReader) -> PyPaths {
        PyPaths { total: places.remaining(), mine: Mine::of_this_process(), places: Mutex::new(places) }
    }
}

#[pymethods]
impl PyPaths {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        lift(py, self.mine.check("this iterator over paths", "call paths() in this one"))?;
        let next = py.detach(|| self.places.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next());
        notices::show(py)?;
        match next {
            None => Ok(None),
            Some((_, Err(error))) => Err(raise(py, &error)),
            Some((number, Ok(FrameLocation::File(path)))) => {
                Ok(Some((number, path.as_os_str()).into_pyobject(py)?))
            }
            Some((number, Ok(FrameLocation::Read(frame)))) => {
                let path = FramePath::of(PyFrame::new(py, frame)?, py);
                Ok(Some((number, Bound::new(py, path)?).into_pyobject(py)?))
            }
        }
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.total).unwrap_or(usize::MAX)
    }
}
