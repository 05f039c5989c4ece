//! The exception tree, made from the error table: `zazen.Error`, and for each kind a subclass that
//! is also the builtin exception for such an error.

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use zazen_core::error::ERROR_TABLE;
use zazen_core::shown::shown;
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
            PyErr::from_type(class.bind(py).clone(), (errno, shown(&error.to_string())))
        }
        _ => raise(py, error),
    }
}

/// The exception for `error`.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    raise_kind(py, error.kind(), &error.to_string())
}

/// The exception of `kind` with `message`, in which names of files cannot speak to a terminal.
pub(crate) fn raise_kind(py: Python<'_>, kind: ErrorKind, message: &str) -> PyErr {
    let message = &shown(message);
    let Ok(tree) = tree(py) else { return PyRuntimeError::new_err(message.to_string()) };
    let class = tree[kind as usize].bind(py);
    if class.is_subclass_of::<pyo3::exceptions::PyOSError>().unwrap_or(false) {
        PyErr::from_type(class.clone(), (kind.row().2, message.to_string()))
    } else {
        PyErr::from_type(class.clone(), (message.to_string(),))
    }
}

/// Errors of the namespace whose builtin class no row of the table has: `zazen.Error` and the
/// builtin. By the name of the builtin.
static OF_FILES: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();

/// The exception for a refused operation on the file `path` of the namespace: an OSError with the
/// kernel's number, also a `zazen.Error`.
pub(crate) fn of_file(py: Python<'_>, errno: u16, meaning: &str, path: &[u8]) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let arguments = (errno, meaning.trim_end_matches('.').to_owned(), shown);
        let builtin = py.get_type::<pyo3::exceptions::PyOSError>().call1(arguments.clone())?.get_type();
        let kind = ErrorKind::from_errno(i32::from(errno));
        let tree = tree(py)?;
        let class = tree[kind as usize].bind(py);
        if kind != ErrorKind::Io
            && class.is_subclass(&builtin)?
            && !builtin.is(py.get_type::<pyo3::exceptions::PyOSError>())
        {
            return Ok(PyErr::from_type(class.clone(), arguments));
        }
        let classes = of_files_once(py)?;
        let class = classes
            .iter()
            .map(|class| class.bind(py))
            .find(|class| class.is_subclass(&builtin).unwrap_or(false));
        let class = class.unwrap_or_else(|| classes[0].bind(py));
        Ok(PyErr::from_type(class.clone(), arguments))
    };
    made().unwrap_or_else(|error| error)
}

/// `zazen.namespace.Error`, and its subclasses for other builtins.
pub(crate) fn of_files_once(py: Python<'_>) -> PyResult<&'static [Py<PyType>]> {
    OF_FILES.get_or_try_init(py, || of_files(py)).map(Vec::as_slice)
}

fn of_files(py: Python<'_>) -> PyResult<Vec<Py<PyType>>> {
    let classes = tree(py)?;
    let base = classes[0].bind(py);
    let builtins = py.import("builtins")?;
    let make = |name: &str, bases: Vec<Bound<'_, PyAny>>| -> PyResult<Py<PyType>> {
        let attributes = PyDict::new(py);
        attributes.set_item("__module__", "zazen.namespace")?;
        attributes
            .set_item("__doc__", "A refused operation of the namespace; `errno` is the kernel's number.")?;
        let made = py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, attributes))?;
        Ok(made.cast_into::<PyType>()?.unbind())
    };
    let general = make("Error", vec![base.clone().into_any(), builtins.getattr("OSError")?])?;
    let mut all = vec![];
    for builtin in ["IsADirectoryError", "NotADirectoryError", "BlockingIOError", "InterruptedError"] {
        all.push(make(builtin, vec![general.bind(py).clone().into_any(), builtins.getattr(builtin)?])?);
    }
    all.insert(0, general);
    Ok(all)
}

/// `result` with its error raised.
pub(crate) fn lift<T>(py: Python<'_>, result: zazen_core::Result<T>) -> PyResult<T> {
    result.map_err(|error| raise(py, &error))
}
