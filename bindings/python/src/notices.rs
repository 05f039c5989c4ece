//! Turns each warning of the client library into a Python warning (`zazen.ZazenWarning`), once per
//! process.
//!
//! Warnings arise on any thread but must be issued on the interpreter's thread. So they wait until
//! the next call returns.

use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use std::ffi::CString;
use zazen_core::shown::shown;

static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Makes `ZazenWarning`.
pub(crate) fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let class = CLASS.get_or_try_init(py, || {
        let attributes = PyDict::new(py);
        attributes.set_item("__module__", "zazen")?;
        attributes.set_item(
            "__doc__",
            "Something that costs time but no results, such as a daemon that is not there.",
        )?;
        let bases = (py.get_type::<PyUserWarning>(),);
        let made = py.get_type::<PyType>().call1(("ZazenWarning", bases, attributes))?;
        Ok::<_, PyErr>(made.cast_into::<PyType>()?.unbind())
    })?;
    module.add("ZazenWarning", class)
}

/// Issues the waiting warnings. Fails if the user turned warnings into errors.
pub(crate) fn show(py: Python<'_>) -> PyResult<()> {
    let Some(class) = CLASS.get(py) else { return Ok(()) };
    for text in zazen_client::warnings() {
        let text = CString::new(shown(&text)).unwrap_or_default();
        PyErr::warn(py, class.bind(py), &text, 1)?;
    }
    Ok(())
}
