//! `zazen.assign_scenario`: the assignment protocol with in-process ranks.

use crate::errors::{lift, raise_kind};
use pyo3::prelude::*;
use zazen_assign::scenario::{Scenario, run_scenario};
use zazen_core::ErrorKind;

/// Takes the scenario as JSON and returns the outcome as JSON.
#[pyfunction]
pub(crate) fn scenario_json(py: Python<'_>, scenario: &str) -> PyResult<String> {
    let outcome = lift(py, py.detach(|| run_scenario(&Scenario::from_json(scenario)?)))?;
    serde_json::to_string(&outcome)
        .map_err(|error| raise_kind(py, ErrorKind::InvalidArgument, &error.to_string()))
}
