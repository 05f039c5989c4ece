//! `zazen.viz.match`: which rank reads which file.

use crate::errors::{lift, raise_kind};
use pyo3::prelude::*;
use zazen_core::ErrorKind;
use zazen_match::scenario::{Scenario, run_scenario};

/// Takes the scenario as JSON and returns the outcome as JSON.
#[pyfunction]
pub(crate) fn match_json(py: Python<'_>, scenario: &str) -> PyResult<String> {
    let outcome = lift(py, py.detach(|| run_scenario(&Scenario::from_json(scenario)?)))?;
    serde_json::to_string(&outcome)
        .map_err(|error| raise_kind(py, ErrorKind::InvalidArgument, &error.to_string()))
}
