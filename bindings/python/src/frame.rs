//! `zazen.Frame`: a frame's number, its bytes without a copy, and a path.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyString, PyTuple};
use std::ffi::{c_int, c_void};
use std::path::Path;
use zazen_client::Frame;
use zazen_frames::messages::Delivery;

/// A frame in memory; unpacks as `number, data, path`.
///
/// `data` is a read-only memoryview of the reader's own buffer, which lives as long as any view of
/// it does. Keeping many frames keeps their memory, beyond the iterator's bound.
#[pyclass(name = "Frame", module = "zazen", frozen)]
pub(crate) struct PyFrame {
    /// The frame's number.
    #[pyo3(get)]
    number: u64,
    /// Its bytes: a read-only memoryview, which numpy.frombuffer accepts.
    #[pyo3(get)]
    data: Py<PyMemoryView>,
    buffer: Py<FrameBuffer>,
    /// Where it came from: "native", "alien", "backing" (fetched or read through by the daemon) or
    /// "direct" (no daemon).
    #[pyo3(get)]
    source: &'static str,
}

impl PyFrame {
    pub(crate) fn new(py: Python<'_>, frame: Frame) -> PyResult<PyFrame> {
        let number = frame.number;
        let source = match frame.delivery {
            Some(Delivery::Native) => "native",
            Some(Delivery::Alien) => "alien",
            Some(_) => "backing",
            None => "direct",
        };
        let buffer = Bound::new(py, FrameBuffer(frame))?;
        let data = PyMemoryView::from(buffer.as_any())?.unbind();
        Ok(PyFrame { number, data, buffer: buffer.unbind(), source })
    }

    fn tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        // Make the file only when the path is used, because it has a cost.
        let path = match self.buffer.get().0.path_is_to_be_made() {
            true => Bound::new(py, FramePath(self.buffer.clone_ref(py)))?.into_any(),
            false => self.path(py)?.into_pyobject(py)?,
        };
        (self.number, self.data.bind(py), path).into_pyobject(py)
    }
}

#[pymethods]
impl PyFrame {
    /// Absolute path of a file with exactly the frame's bytes: in the cache if cached, else on the
    /// backing store. None only if there is none and none can be made.
    ///
    /// A frame that is a part of a larger file (see container), or whose file this user may not
    /// open, gets a file when its path is used. The file lives as long as the frame.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        let frame = &self.buffer.get().0;
        py.detach(|| frame.path()).map(|path| text(py, path)).transpose()
    }

    /// Absolute path of the larger file that the frame is a part of, at `offset`. None if the frame
    /// has a file of its own, or is in no file that this process may open.
    #[getter]
    fn container<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        self.buffer.get().0.container().map(|(path, _)| text(py, path)).transpose()
    }

    /// The frame's offset in its container, in bytes; None without a container.
    #[getter]
    fn offset(&self) -> Option<u64> {
        self.buffer.get().0.container().map(|(_, offset)| offset)
    }

    /// Its length in bytes.
    #[getter]
    fn length(&self) -> usize {
        self.buffer.get().0.bytes().len()
    }

    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("number", "data", "path")
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.tuple(py)?.try_iter()?.into_any())
    }

    fn __len__(&self) -> usize {
        3
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.tuple(py)?.as_any().get_item(at)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let bytes: usize = self.data.bind(py).getattr("nbytes")?.extract()?;
        let frame = &self.buffer.get().0;
        let place = match frame.container() {
            Some((path, offset)) => format!("at {offset} of {}", path.display()),
            None if frame.path_is_to_be_made() => "path on request".to_owned(),
            None => frame.path().map_or("in no file".to_owned(), |path| path.display().to_string()),
        };
        Ok(format!("<Frame {}: {bytes} bytes, {}, {place}>", self.number, self.source))
    }
}

fn text<'py>(py: Python<'py>, path: &Path) -> PyResult<Bound<'py, PyString>> {
    match path.to_str() {
        Some(path) => Ok(PyString::new(py, path)),
        None => Ok(path.as_os_str().into_pyobject(py)?),
    }
}

/// The path of a frame whose file is made when the path is used: os.fspath(), open(), str().
#[pyclass(name = "FramePath", module = "zazen", frozen)]
pub(crate) struct FramePath(Py<FrameBuffer>);

impl FramePath {
    pub(crate) fn of(frame: PyFrame, py: Python<'_>) -> FramePath {
        FramePath(frame.buffer.clone_ref(py))
    }
}

#[pymethods]
impl FramePath {
    fn __fspath__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let frame = &self.0.get().0;
        let path = py.detach(|| frame.path());
        let what = "the frame's file can't be made; use its data";
        text(py, path.ok_or_else(|| pyo3::exceptions::PyOSError::new_err(what))?)
    }

    fn __str__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        self.__fspath__(py)
    }

    fn __repr__(&self) -> String {
        format!("<FramePath of frame {}>", self.0.get().0.number)
    }
}

/// Removes the files that were made for frames' paths, at the interpreter's end.
#[pyfunction]
#[pyo3(name = "_remove_frame_files")]
pub(crate) fn remove_frame_files() {
    zazen_client::remove_frame_files();
}

/// Exports a frame's bytes; the memoryview on it keeps it, and thereby the buffer, alive.
#[pyclass(module = "zazen", frozen)]
pub(crate) struct FrameBuffer(Frame);

#[pymethods]
impl FrameBuffer {
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = this.get().0.bytes();
        let (start, length) = (bytes.as_ptr() as *mut c_void, bytes.len() as ffi::Py_ssize_t);
        let read_only = 1;
        // SAFETY: `view` is the interpreter's; the bytes neither move nor change while the frame
        // lives, and the view holds a reference to this object, which owns the frame.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), start, length, read_only, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(this.py())) }
    }
}
