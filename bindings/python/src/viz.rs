//! What `zazen.viz` asks the native part: index files, where files are, and the matching.

use crate::errors::{lift, raise_kind};
use pyo3::prelude::*;
use serde_json::json;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, NameTemplate, Result};
use zazen_locate::{Hdfs, HdfsUrl, HostsTable, Locator, open_index};
use zazen_match::scenario::{Scenario, run_scenario};

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

/// Reads an index file, or the files of a pattern: JSON with `directory`,
/// `template` and `steps`.
#[pyfunction]
pub(crate) fn index_json(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let opened = lift(py, py.detach(|| open_index(&path)))?;
    let steps = opened.index.steps.iter().zip(&opened.place.steps);
    let steps: Vec<_> = steps
        .map(|(step, files)| {
            json!({"time": step.time, "files": files, "tree": step.tree, "covered": step.covered,
                "field_data": step.field_data, "trouble": step.trouble})
        })
        .collect();
    let template = opened.place.template.as_ref().map(NameTemplate::to_string);
    let directory = match &opened.hdfs {
        Some(url) => url.to_string(),
        None => opened.place.directory.clone(),
    };
    json_text(py, &json!({"directory": directory, "template": template, "steps": steps}))
}

/// Where files beneath `directory` are, as `locator` says (`hdfs://…` or the path of a table of
/// hosts): JSON with (bytes, holders, blocks) of each file.
#[pyfunction]
pub(crate) fn locate_json(
    py: Python<'_>,
    locator: &str,
    directory: PathBuf,
    files: Vec<String>,
) -> PyResult<String> {
    let found = lift(py, py.detach(|| locator_of(locator, &directory)?.locate(&files)))?;
    let files: Vec<_> = found.files.iter().map(|file| (file.bytes, file.holders(), file.blocks)).collect();
    json_text(py, &files)
}

/// Writes the bytes of a file in HDFS into the file `into`; fails if they are not `bytes`.
#[pyfunction]
pub(crate) fn fetch_hdfs(
    py: Python<'_>,
    directory: &str,
    file: &str,
    bytes: u64,
    into: PathBuf,
) -> PyResult<u64> {
    let fetch = || {
        let shown = into.display().to_string();
        let mut sink = std::fs::OpenOptions::new().write(true).open(&into);
        let sink = sink.as_mut().map_err(|error| Error::io(shown, std::io::Error::from(error.kind())))?;
        Hdfs::of_environment(HdfsUrl::parse(directory)?).fetch(file, bytes, sink)
    };
    lift(py, py.detach(fetch))
}

fn locator_of(text: &str, directory: &Path) -> Result<Box<dyn Locator>> {
    if text.starts_with("hdfs://") {
        return Ok(Box::new(Hdfs::of_environment(HdfsUrl::parse(text)?)));
    }
    match text.strip_prefix("table:") {
        Some(file) => Ok(Box::new(HostsTable::read(Path::new(file), directory)?)),
        None => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "locator {text:?}: give \"cache\", \"none\", \"table:FILE\" or \"hdfs://HOST:PORT/DIRECTORY\""
            ),
        )),
    }
}
