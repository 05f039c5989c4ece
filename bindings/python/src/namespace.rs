//! `zazen.namespace`'s native half: paths and open files, with the interpreter's lock released.
//!
//! `zazen/namespace.py` makes of it what Python programs expect of files.

use crate::errors::{lift, of_file, raise_kind};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use zazen_client::testbed_env::find_socket_path;
use zazen_core::{Error, ErrorKind};
use zazen_namespace_client::core::operation::{Mode, SetAttributes, SetXattr};
use zazen_namespace_client::core::{Attributes, Errno, InodeId, Name};
use zazen_namespace_client::{ClusterKey, File, Identity, Namespace};

/// Bytes that one call moves between Python's memory and a file.
const BYTES_MAX: usize = 1 << 30;

type Done<T> = std::result::Result<T, Errno>;

fn files<T>(py: Python<'_>, done: Done<T>, path: &[u8]) -> PyResult<T> {
    done.map_err(|errno| of_file(py, errno as u16, errno.meaning(), path))
}

/// `(mode with the kind, inode, links, uid, gid, bytes, blocks, times in ns: read, bytes changed,
/// anything changed; holder's node or -1)`.
type StatFields = (u32, u64, u32, u32, u32, u64, u64, i64, i64, i64, i64);

fn stat_of(found: &Attributes) -> StatFields {
    let mode = (found.kind as u32) << 12 | found.mode;
    let holder = found.place.as_ref().map_or(-1, |place| i64::from(place.holder.0));
    (
        mode,
        found.id.0,
        found.links,
        found.uid,
        found.gid,
        found.bytes,
        found.blocks,
        found.accessed_ns,
        found.modified_ns,
        found.changed_ns,
        holder,
    )
}

/// Results as a list; errors as exceptions in their places.
fn listed<'py, T>(
    py: Python<'py>,
    paths: impl Iterator<Item = Vec<u8>>,
    results: Vec<Done<T>>,
    value: impl Fn(T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let mut items = Vec::with_capacity(results.len());
    for (path, result) in paths.zip(results) {
        items.push(match result {
            Ok(found) => value(found)?,
            Err(errno) => {
                of_file(py, errno as u16, errno.meaning(), &path).into_value(py).into_bound(py).into_any()
            }
        });
    }
    PyList::new(py, items)
}

fn slices(paths: &[Vec<u8>]) -> Vec<&[u8]> {
    paths.iter().map(Vec::as_slice).collect()
}

/// A connection to the namespace, through a daemon. `zazen.namespace.Namespace` is its front.
#[pyclass(name = "NamespaceLink", module = "zazen", frozen)]
pub(crate) struct PyNamespaceLink(Namespace);

#[pymethods]
impl PyNamespaceLink {
    /// Connects to the daemon at `socket`, or to the daemon `node` ("host:port") with the cluster
    /// key in the file `key`.
    #[new]
    #[pyo3(signature = (socket = None, node = None, key = None))]
    fn new(
        py: Python<'_>,
        socket: Option<PathBuf>,
        node: Option<String>,
        key: Option<PathBuf>,
    ) -> PyResult<PyNamespaceLink> {
        let connect = || match (node, key) {
            (Some(node), Some(key)) => {
                Namespace::remote(&node, &ClusterKey::from_file(&key)?, &Identity::of_this_process())
            }
            (Some(node), None) => Err(Error::new(
                ErrorKind::Config,
                format!("node {node}: give the file of the cluster key as key="),
            )),
            (None, _) => Namespace::local_when_joined(&socket.unwrap_or_else(find_socket_path)),
        };
        Ok(PyNamespaceLink(lift(py, py.detach(connect))?))
    }

    /// Opens a file.
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)]
    fn open(
        &self,
        py: Python<'_>,
        path: Vec<u8>,
        read: bool,
        write: bool,
        truncate: bool,
        create: bool,
        exclusive: bool,
        mode: u32,
    ) -> PyResult<PyNamespaceFile> {
        let how = Mode { read, write, truncate };
        let opened = py.detach(|| match create {
            true => self.0.open_or_create(None, &path, mode, how, exclusive),
            false => self.0.open(None, &path, how),
        });
        Ok(PyNamespaceFile { file: RwLock::new(Some(files(py, opened, &path)?)), path })
    }

    /// Name and stat (None where the entry went away) of each entry.
    fn list<'py>(
        &self,
        py: Python<'py>,
        path: Vec<u8>,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Option<StatFields>)>> {
        let found = py.detach(|| self.0.list(None, &path, true));
        let entry = |listed: zazen_namespace_client::Listed| {
            (PyBytes::new(py, listed.name.as_bytes()), listed.attributes.as_ref().map(stat_of))
        };
        Ok(files(py, found, &path)?.into_iter().map(entry).collect())
    }

    /// Name and kind (the upper four bits of a mode) of each entry.
    fn names<'py>(&self, py: Python<'py>, path: Vec<u8>) -> PyResult<Vec<(Bound<'py, PyBytes>, u8)>> {
        let found = py.detach(|| self.0.list(None, &path, false));
        let entry = |listed: zazen_namespace_client::Listed| {
            (PyBytes::new(py, listed.name.as_bytes()), listed.kind as u8)
        };
        Ok(files(py, found, &path)?.into_iter().map(entry).collect())
    }

    /// stat or lstat.
    fn stat(&self, py: Python<'_>, path: Vec<u8>, follow: bool) -> PyResult<StatFields> {
        let found = py.detach(|| self.0.stat(None, &path, follow));
        files(py, found, &path).map(|found| stat_of(&found))
    }

    /// The same of many paths; exceptions in the places of paths that cannot be had.
    fn stat_many<'py>(
        &self,
        py: Python<'py>,
        paths: Vec<Vec<u8>>,
        follow: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let found = py.detach(|| self.0.stat_many(None, &slices(&paths), follow));
        listed(py, paths.into_iter(), found, |found| Ok(stat_of(&found).into_pyobject(py)?.into_any()))
    }

    /// Makes empty files; for each None, or the exception.
    fn create_many<'py>(
        &self,
        py: Python<'py>,
        directory: Vec<u8>,
        names: Vec<Vec<u8>>,
        mode: u32,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut checked = Vec::with_capacity(names.len());
        for name in &names {
            checked.push(files(py, Name::new(name), name)?);
        }
        let made = py.detach(|| self.0.create_many_at(None, &directory, &checked, mode));
        let made = files(py, made, &directory)?;
        let path = |name: Vec<u8>| [directory.as_slice(), b"/", &name].concat();
        listed(py, names.into_iter().map(path), made, |_: InodeId| Ok(py.None().into_bound(py)))
    }

    /// Removes files; for each None, or the exception.
    fn remove_many<'py>(&self, py: Python<'py>, paths: Vec<Vec<u8>>) -> PyResult<Bound<'py, PyList>> {
        let done = py.detach(|| self.0.remove_many(None, &slices(&paths)));
        listed(py, paths.into_iter(), done, |()| Ok(py.None().into_bound(py)))
    }

    /// For each file `(node or None, name, host, bytes, holders)`, or the exception. A holder is
    /// `(node, name, host, bytes)`.
    fn locate<'py>(&self, py: Python<'py>, paths: Vec<Vec<u8>>) -> PyResult<Bound<'py, PyList>> {
        let found = py.detach(|| self.0.locate(None, &slices(&paths)));
        let found = files(py, found, b"")?;
        listed(py, paths.into_iter(), found, |found| {
            let node = found.node.map(|node| node.0);
            let holders = found.holders.into_iter();
            let holders: Vec<_> = holders.map(|one| (one.node.0, one.name, one.host, one.bytes)).collect();
            Ok((node, found.name, found.host, found.bytes, holders).into_pyobject(py)?.into_any())
        })
    }

    fn mkdir(&self, py: Python<'_>, path: Vec<u8>, mode: u32) -> PyResult<()> {
        let done = py.detach(|| self.0.mkdir(None, &path, mode));
        files(py, done, &path).map(drop)
    }

    fn mkdir_all(&self, py: Python<'_>, path: Vec<u8>, mode: u32) -> PyResult<()> {
        let done = py.detach(|| self.0.mkdir_all(None, &path, mode));
        files(py, done, &path).map(drop)
    }

    fn remove(&self, py: Python<'_>, path: Vec<u8>) -> PyResult<()> {
        let done = py.detach(|| self.0.remove(None, &path));
        files(py, done, &path)
    }

    fn rmdir(&self, py: Python<'_>, path: Vec<u8>) -> PyResult<()> {
        let done = py.detach(|| self.0.rmdir(None, &path));
        files(py, done, &path)
    }

    fn rename(&self, py: Python<'_>, source: Vec<u8>, target: Vec<u8>) -> PyResult<()> {
        let done = py.detach(|| self.0.rename_path(None, &source, &target));
        files(py, done, &source)
    }

    fn symlink(&self, py: Python<'_>, target: Vec<u8>, path: Vec<u8>) -> PyResult<()> {
        let done = py.detach(|| {
            let (directory, name) = self.0.place(None, &path)?;
            self.0.symlink(None, directory, &name, &target)
        });
        files(py, done, &path).map(drop)
    }

    fn link(&self, py: Python<'_>, path: Vec<u8>, fresh: Vec<u8>) -> PyResult<()> {
        let done = py.detach(|| {
            let id = self.0.stat(None, &path, false)?.id;
            let (directory, name) = self.0.place(None, &fresh)?;
            self.0.link(None, id, directory, &name)
        });
        files(py, done, &fresh).map(drop)
    }

    fn read_link<'py>(&self, py: Python<'py>, path: Vec<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let found = py.detach(|| self.0.read_link(None, self.0.stat(None, &path, false)?.id));
        files(py, found, &path).map(|target| PyBytes::new(py, &target))
    }

    /// Changes mode, owner, group and times; what is None stays.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (path, follow, mode = None, uid = None, gid = None,
        accessed_ns = None, modified_ns = None))]
    fn set_attributes(
        &self,
        py: Python<'_>,
        path: Vec<u8>,
        follow: bool,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        accessed_ns: Option<i64>,
        modified_ns: Option<i64>,
    ) -> PyResult<()> {
        let done = py.detach(|| {
            let id = self.0.stat(None, &path, follow)?.id;
            let set = SetAttributes { id, mode, uid, gid, bytes: None, accessed_ns, modified_ns };
            self.0.set_attributes(None, set)
        });
        files(py, done, &path).map(drop)
    }

    fn get_xattr<'py>(&self, py: Python<'py>, path: Vec<u8>, name: Vec<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let found = py.detach(|| {
            let id = self.0.stat(None, &path, true)?.id;
            self.0.get_xattr(None, id, &Name::new(&name)?)
        });
        files(py, found, &path).map(|value| PyBytes::new(py, &value))
    }

    /// Sets an extended attribute; None removes it.
    #[pyo3(signature = (path, name, value))]
    fn set_xattr(
        &self,
        py: Python<'_>,
        path: Vec<u8>,
        name: Vec<u8>,
        value: Option<Vec<u8>>,
    ) -> PyResult<()> {
        let done = py.detach(|| {
            let id = self.0.stat(None, &path, true)?.id;
            let name = Name::new(&name)?;
            self.0.set_xattr(None, SetXattr { id, name, value, create: false, replace: false })
        });
        files(py, done, &path)
    }

    fn list_xattr<'py>(&self, py: Python<'py>, path: Vec<u8>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let found = py.detach(|| self.0.list_xattr(None, self.0.stat(None, &path, true)?.id));
        let names = files(py, found, &path)?;
        Ok(names.iter().map(|name| PyBytes::new(py, name.as_bytes())).collect())
    }

    /// The nodes: `(number, name, address, whether the map counts on it)`.
    fn nodes(&self, py: Python<'_>) -> PyResult<Vec<(u32, String, String, bool)>> {
        let map = lift(py, py.detach(|| self.0.map()))?;
        Ok(map.nodes.into_iter().map(|node| (node.node.0, node.name, node.addr, node.up)).collect())
    }

    /// The state of the namespace as the daemon sees it, as JSON.
    fn status_json(&self, py: Python<'_>) -> PyResult<String> {
        lift(py, py.detach(|| self.0.status()))
    }

    /// The number of the node whose daemon this is.
    fn node(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(lift(py, py.detach(|| self.0.hello()))?.node.0)
    }
}

/// An open file of the namespace. Any thread may use it.
#[pyclass(name = "NamespaceFile", module = "zazen", frozen)]
pub(crate) struct PyNamespaceFile {
    file: RwLock<Option<File>>,
    path: Vec<u8>,
}

impl PyNamespaceFile {
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&File) -> Done<T> + Send) -> PyResult<T> {
        let done = py.detach(|| {
            let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
            file.as_ref().ok_or(Errno::EBADF).and_then(work)
        });
        files(py, done, &self.path)
    }
}

#[pymethods]
impl PyNamespaceFile {
    /// Reads into `buffer` at `offset`; how many bytes: fewer only where the file ends.
    fn read_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let buffer = PyBuffer::<u8>::get(buffer)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            let text = "the buffer is read-only or not contiguous; give a bytearray or a contiguous array";
            return Err(raise_kind(py, ErrorKind::InvalidArgument, text));
        }
        let bytes = buffer.len_bytes().min(BYTES_MAX);
        let start = buffer.buf_ptr() as usize;
        self.with(py, |file| {
            // SAFETY: the buffer is writable, contiguous and as long, and is held here.
            let into = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, bytes) };
            if into.is_empty() { Ok(0) } else { file.read_at(into, offset) }
        })
    }

    /// Writes `data` at `offset`, or at the file's end if `offset` is None. How many bytes.
    #[pyo3(signature = (data, offset))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: Option<u64>) -> PyResult<usize> {
        let buffer = PyBuffer::<u8>::get(data)?;
        if !buffer.is_c_contiguous() {
            let text = "the data is not contiguous; copy it first";
            return Err(raise_kind(py, ErrorKind::InvalidArgument, text));
        }
        let bytes = buffer.len_bytes().min(BYTES_MAX);
        let start = buffer.buf_ptr() as usize;
        self.with(py, |file| {
            if bytes == 0 {
                return Ok(0);
            }
            // SAFETY: the buffer is contiguous and as long, and stays while it is held here.
            let from = unsafe { std::slice::from_raw_parts(start as *const u8, bytes) };
            match offset {
                Some(offset) => file.write_at(from, offset),
                None => file.append(from),
            }
        })
    }

    /// Cuts or extends the file.
    fn truncate(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        self.with(py, |file| file.set_length(bytes))
    }

    /// Syncs the bytes to the holder's disk, and tells the metadata their length.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, File::sync)
    }

    /// The inode, the holder's node (-1: none) and the length when it was opened, and whether the
    /// open made it.
    fn opened(&self, py: Python<'_>) -> PyResult<(u64, i64, u64, bool)> {
        self.with(py, |file| {
            let of = file.attributes();
            let holder = of.place.as_ref().map_or(-1, |place| i64::from(place.holder.0));
            Ok((of.id.0, holder, of.bytes, file.created()))
        })
    }

    /// Closes the file. What was written is known to all when it returns.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let done = py.detach(|| {
            let file = self.file.write().unwrap_or_else(PoisonError::into_inner).take();
            file.map_or(Ok(()), File::close)
        });
        files(py, done, &self.path)
    }
}

/// The classes of refused operations, for `zazen.namespace`.
#[pyfunction]
pub(crate) fn namespace_errors(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, crate::errors::of_files_once(py)?)
}
