//! `zazen.Frame`: a frame's number, its bytes without a copy, and a path.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyString, PyTuple};
use std::ffi::{c_int, c_void};
use zazen_client::Frame;
use zazen_wire::frames::Delivery;

/// A frame in memory; unpacks as `number, data, path`.
///
/// `data` is a read-only memoryview of the reader's own buffer, which lives as long as any view of it does. Keeping
/// many frames keeps their memory, beyond the iterator's bound.
#[pyclass(name = "Frame", module = "zazen", frozen)]
pub(crate) struct PyFrame {
    /// The frame's number.
    #[pyo3(get)]
    number: u64,
    /// Its bytes: a read-only memoryview, which numpy.frombuffer takes as it is.
    #[pyo3(get)]
    data: Py<PyMemoryView>,
    buffer: Py<FrameBuffer>,
    /// How it came: "native", "alien", "backing" (fetched or read through by the daemon) or "direct" (no daemon).
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
        (self.number, self.data.bind(py), self.path(py)?).into_pyobject(py)
    }
}

#[pymethods]
impl PyFrame {
    /// Absolute path by which the bytes can be opened: in the cache if cached, else on the backing store.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let path = &self.buffer.get().0.path;
        match path.to_str() {
            Some(path) => Ok(PyString::new(py, path)),
            None => Ok(path.as_os_str().into_pyobject(py)?),
        }
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
        let path = self.buffer.get().0.path.display();
        Ok(format!("<Frame {}: {bytes} bytes, {}, {path}>", self.number, self.source))
    }
}

/// Exports a frame's bytes; the memoryview on it keeps it, and thereby the buffer, alive.
#[pyclass(module = "zazen", frozen)]
struct FrameBuffer(Frame);

#[pymethods]
impl FrameBuffer {
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = this.get().0.bytes();
        let (start, length) = (bytes.as_ptr() as *mut c_void, bytes.len() as ffi::Py_ssize_t);
        let read_only = 1;
        // SAFETY: `view` is the interpreter's; the bytes neither move nor change while the frame lives, and the
        // view holds a reference to this object, which owns the frame.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), start, length, read_only, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(this.py())) }
    }
}
