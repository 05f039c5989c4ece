//! What `zazen.viz` asks the native part: index files, where files are, and the matching.

use crate::errors::{lift, raise_kind};
use pyo3::prelude::*;
use serde_json::json;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use zazen_client::testbed_env::find_socket_path;
use zazen_core::{Error, ErrorKind, NameTemplate, Result};
use zazen_locate::{
    Block, Hdfs, HdfsUrl, HostsTable, InNamespace, Locator, data_dirs_of_environment, open_index_with,
    within_namespace,
};
use zazen_match::scenario::{Scenario, run_scenario};
use zazen_match::{FileAt, Matched, Problem};
use zazen_namespace_client::Namespace;

fn json_text(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value)
        .map_err(|error| raise_kind(py, ErrorKind::InvalidArgument, &error.to_string()))
}

/// Takes the scenario as JSON and returns the outcome as JSON.
#[pyfunction]
pub(crate) fn match_json(py: Python<'_>, scenario: &str) -> PyResult<String> {
    let outcome = lift(py, py.detach(|| run_scenario(&Scenario::from_json(scenario)?)))?;
    json_text(py, &outcome)
}

/// By rank its files; then remote, bound, bytes_max, bytes_mean and bytes_bound.
type MatchedFiles = (Vec<Vec<u32>>, u64, u64, u64, u64, u64);

/// Matches files to ranks. `ranks`: the node of each rank. File `i` has `lengths[i]` bytes, and its
/// holders are `holders[ends[i - 1]..ends[i]]`.
#[pyfunction]
pub(crate) fn match_files(
    py: Python<'_>,
    ranks: Vec<u64>,
    lengths: Vec<u64>,
    ends: Vec<usize>,
    holders: Vec<u64>,
    strategy: &str,
    seed: u64,
) -> PyResult<MatchedFiles> {
    let found = || -> Result<MatchedFiles> {
        let uneven = || Error::new(ErrorKind::InvalidArgument, "ends: they do not fit the holders");
        let mut files = Vec::with_capacity(lengths.len());
        if ends.len() != lengths.len() || ends.last().copied().unwrap_or(0) != holders.len() {
            return Err(uneven());
        }
        let mut begin = 0;
        for (end, bytes) in ends.iter().zip(&lengths) {
            let holders = holders.get(begin..*end).ok_or_else(uneven)?.to_vec();
            files.push(FileAt { bytes: *bytes, holders });
            begin = *end;
        }
        let problem = Problem::new(&ranks, &files)?;
        let found = zazen_match::match_files(&problem, strategy.parse()?, seed);
        let Matched { remote, bound, bytes_max, bytes_mean, bytes_bound, .. } = found;
        Ok((found.files_by_rank(ranks.len()), remote, bound, bytes_max, bytes_mean, bytes_bound))
    };
    lift(py, py.detach(found))
}

/// The namespace of the daemon at `socket`, or of this machine's.
fn namespace(socket: Option<&PathBuf>) -> Result<Namespace> {
    Namespace::local_when_joined(&socket.cloned().unwrap_or_else(find_socket_path))
}

/// Reads an index file, or the files of a pattern: JSON with `directory`, `template`, `steps`,
/// `namespace`, the directory's path in the namespace, if it is there, and `note`, what a user must
/// know of them. The daemon at `socket` is asked for a `namespace:` path.
#[pyfunction]
#[pyo3(signature = (path, socket = None))]
pub(crate) fn index_json(py: Python<'_>, path: PathBuf, socket: Option<PathBuf>) -> PyResult<String> {
    let open = || {
        let opened = open_index_with(&path, &|| namespace(socket.as_ref()))?;
        let within = opened.in_namespace()?;
        Ok((opened, within))
    };
    let (opened, within) = lift(py, py.detach(open))?;
    let steps = opened.index.steps.iter().zip(&opened.place.steps);
    let steps: Vec<_> = steps
        .map(|(step, files)| {
            json!({"time": step.time, "files": files, "tree": step.tree, "covered": step.covered,
                "field_data": step.field_data, "trouble": step.trouble,
                "blocks": step.tree.blocks_of_files(files.len())})
        })
        .collect();
    let template = opened.place.template.as_ref().map(NameTemplate::to_string);
    let directory = opened.directory();
    let told = json!({"directory": directory, "template": template, "steps": steps, "namespace": within,
        "note": opened.note});
    json_text(py, &told)
}

/// Where files that an index in `directory` names lie, by step: JSON with their common `directory`,
/// `steps` with the files beneath it, and the `template` of their names, if there is one.
#[pyfunction]
pub(crate) fn place_json(py: Python<'_>, directory: &str, steps: Vec<Vec<String>>) -> PyResult<String> {
    let place = zazen_locate::place(directory, &steps);
    let template = place.template.as_ref().map(NameTemplate::to_string);
    json_text(py, &json!({"directory": place.directory, "template": template, "steps": place.steps}))
}

/// Where files beneath `directory` are, as `locator` says: JSON with (bytes, holders, blocks) of
/// each file. `socket`: the daemon that is asked of the namespace.
#[pyfunction]
#[pyo3(signature = (locator, directory, files, socket = None))]
pub(crate) fn locate_json(
    py: Python<'_>,
    locator: &str,
    directory: PathBuf,
    files: Vec<String>,
    socket: Option<PathBuf>,
) -> PyResult<String> {
    let found = || locator_of(locator, &directory, socket.as_ref())?.locate(&files);
    let found = lift(py, py.detach(found))?;
    let files: Vec<_> = found.files.iter().map(|file| (file.bytes, file.holders(), file.blocks)).collect();
    json_text(py, &files)
}

/// Writes the bytes of a file beneath `directory`, `hdfs://…` or `namespace:/…`, into the file
/// `into`; fails if they are not `bytes`. `is_here`: this host has them, too.
#[pyfunction]
#[pyo3(signature = (directory, file, bytes, into, socket = None, is_here = false))]
pub(crate) fn fetch_remote(
    py: Python<'_>,
    directory: &str,
    file: &str,
    bytes: u64,
    into: PathBuf,
    socket: Option<PathBuf>,
    is_here: bool,
) -> PyResult<u64> {
    let fetch = || {
        let shown = into.display().to_string();
        let mut sink = std::fs::OpenOptions::new().write(true).open(&into);
        let sink = sink.as_mut().map_err(|error| Error::io(shown, std::io::Error::from(error.kind())))?;
        if directory.starts_with("namespace:") {
            return InNamespace::new(namespace(socket.as_ref())?, directory).fetch(file, bytes, sink);
        }
        let hdfs = Hdfs::of_environment(HdfsUrl::parse(directory)?);
        if is_here { hdfs.fetch(file, bytes, sink) } else { hdfs.fetch_from_all(file, bytes, sink) }
    };
    lift(py, py.detach(fetch))
}

/// A descriptor of a file beneath `directory` (`namespace:/…`) for reading, which the caller
/// closes, if the node of the daemon at `socket` holds the file; otherwise None.
#[pyfunction]
#[pyo3(signature = (directory, file, socket = None))]
pub(crate) fn namespace_descriptor(
    py: Python<'_>,
    directory: &str,
    file: &str,
    socket: Option<PathBuf>,
) -> PyResult<Option<i32>> {
    let open = || InNamespace::new(namespace(socket.as_ref())?, directory).descriptor(file);
    Ok(lift(py, py.detach(open))?.map(IntoRawFd::into_raw_fd))
}

/// The blocks that files beneath `directory` (`hdfs://…`) are, as JSON for `hdfs_descriptor`: null
/// for a file that can't be read as a block. None if this host has no settings of a data node.
#[pyfunction]
pub(crate) fn hdfs_blocks_json(
    py: Python<'_>,
    directory: &str,
    files: Vec<String>,
) -> PyResult<Option<String>> {
    if data_dirs_of_environment().is_empty() {
        return Ok(None);
    }
    let find = || Hdfs::of_environment(HdfsUrl::parse(directory)?).blocks(&files);
    let blocks = lift(py, py.detach(find))?;
    json_text(py, &blocks).map(Some)
}

/// A descriptor for reading of the replica that this host's data node has of a block (JSON), which
/// the caller closes; None if this process can read none.
#[pyfunction]
pub(crate) fn hdfs_descriptor(py: Python<'_>, block: &str) -> PyResult<Option<i32>> {
    let open = || -> Result<Option<i32>> {
        let block: Block = serde_json::from_str(block)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, format!("block: {error}")))?;
        Ok(block.open(&data_dirs_of_environment()).map(IntoRawFd::into_raw_fd))
    };
    lift(py, py.detach(open))
}

fn locator_of(text: &str, directory: &Path, socket: Option<&PathBuf>) -> Result<Box<dyn Locator>> {
    if text.starts_with("namespace:") {
        return Ok(Box::new(InNamespace::new(namespace(socket)?, text)));
    }
    if text == "namespace" {
        return match within_namespace(directory)? {
            Some(within) => Ok(Box::new(InNamespace::new(namespace(socket)?, &within))),
            None => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "locator \"namespace\": {} is in no mount of the namespace; give a path in the mount, \
                     or namespace:/PATH",
                    directory.display()
                ),
            )),
        };
    }
    if text.starts_with("hdfs://") {
        return Ok(Box::new(Hdfs::of_environment(HdfsUrl::parse(text)?)));
    }
    match text.strip_prefix("table:") {
        Some(file) => Ok(Box::new(HostsTable::read(Path::new(file), directory)?)),
        None => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "locator {text:?}: give \"cache\", \"none\", \"namespace\", \"table:FILE\" or \
                 \"hdfs://HOST:PORT/DIRECTORY\""
            ),
        )),
    }
}
