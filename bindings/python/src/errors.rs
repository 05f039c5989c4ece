//! The exception tree, made from the error table: `zazen.Error`, and for each kind a subclass that
//! is also the builtin exception for such an error.

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use zazen_core::error::ERROR_TABLE;
use zazen_core::{Error, ErrorKind};

/// The base, then one class per row of the table, in its order; last, that of missing frames.
static TREE: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();

/// All exception classes, the base first.
pub(crate) fn tree(py: Python<'_>) -> PyResult<Vec<Py<PyType>>> {
    let tree = TREE.get_or_try_init(py, || make_tree(py))?;
    Ok(tree.iter().map(|class| class.clone_ref(py)).collect())
}

fn make_tree(py: Python<'_>) -> PyResult<Vec<Py<PyType>>> {
    let class = |name: &str, bases: Vec<Bound<'_, PyAny>>, attributes: Bound<'_, PyDict>| -> PyResult<_> {
        attributes.set_item("__module__", "zazen")?;
        let made = py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, attributes))?;
        Ok(made.cast_into::<PyType>()?.unbind())
    };
    let attributes = PyDict::new(py);
    attributes.set_item(
        "__doc__",
        "Base of all errors of Zazen. `kind` names the remedy, `code` is the C status negated.",
    )?;
    attributes.set_item("kind", py.None())?;
    attributes.set_item("code", 0)?;
    let base = class("Error", vec![py.get_type::<PyException>().into_any()], attributes)?;
    let mut tree = vec![base.clone_ref(py)];
    for &(kind, text, errno, name, builtin) in ERROR_TABLE {
        let builtin = py.import("builtins")?.getattr(builtin)?;
        let is_os_error = builtin.cast::<PyType>()?.is_subclass_of::<pyo3::exceptions::PyOSError>()?;
        let attributes = PyDict::new(py);
        attributes.set_item(
            "__doc__",
            format!("A fault of kind “{text}”; also a {}.", builtin.getattr("__name__")?),
        )?;
        attributes.set_item("kind", text)?;
        attributes.set_item("code", kind as u32)?;
        if !is_os_error {
            attributes.set_item("errno", errno)?;
        }
        tree.push(class(name, vec![base.bind(py).clone().into_any(), builtin], attributes)?);
    }
    let attributes = PyDict::new(py);
    attributes.set_item("__doc__", "The dataset has no such frame; also an IndexError and a KeyError.")?;
    let bases = [ErrorKind::NotFound as usize].map(|at| tree[at].bind(py).clone().into_any());
    let lookups =
        ["IndexError", "KeyError"].map(|name| py.import("builtins").and_then(|all| all.getattr(name)));
    let bases = bases.into_iter().map(Ok).chain(lookups).collect::<PyResult<Vec<_>>>()?;
    tree.push(class("NoSuchFrameError", bases, attributes)?);
    Ok(tree)
}

/// The exception of random access for `error`: what is not there is a frame.
pub(crate) fn raise_of_frame(py: Python<'_>, error: &Error) -> PyErr {
    match (error.kind(), tree(py).ok().and_then(|tree| tree.into_iter().last())) {
        (ErrorKind::NotFound, Some(class)) => {
            let errno = ErrorKind::NotFound.row().2;
            PyErr::from_type(class.bind(py).clone(), (errno, error.to_string()))
        }
        _ => raise(py, error),
    }
}

/// The exception for `error`.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    raise_kind(py, error.kind(), &error.to_string())
}

/// The exception of `kind` with `message`.
pub(crate) fn raise_kind(py: Python<'_>, kind: ErrorKind, message: &str) -> PyErr {
    let Ok(tree) = tree(py) else { return PyRuntimeError::new_err(message.to_string()) };
    let class = tree[kind as usize].bind(py);
    if class.is_subclass_of::<pyo3::exceptions::PyOSError>().unwrap_or(false) {
        PyErr::from_type(class.clone(), (kind.row().2, message.to_string()))
    } else {
        PyErr::from_type(class.clone(), (message.to_string(),))
    }
}

/// `result` with its error raised.
pub(crate) fn lift<T>(py: Python<'_>, result: zazen_core::Result<T>) -> PyResult<T> {
    result.map_err(|error| raise(py, &error))
}
