//! `zazen.RunSet`: a set of frame numbers, described by runs and blocks.

use crate::errors::lift;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;
use pyo3::types::PyType;
use std::fmt::Write;
use std::sync::Arc;
use zazen_core::{Run, RunSet};

/// Numbers expanded at a time while iterating.
const BLOCK: u64 = 1024;
/// Runs that a repr shows.
const REPR_RUNS: usize = 4;

/// An immutable set of frame numbers, held as runs: a billion regular numbers cost a few bytes.
///
/// `RunSet(numbers)` takes any iterable of non-negative integers. Supports `len`, `in`, lazy
/// iteration in ascending order, `|`, `&`, `-`, `<=` (subset) and `==`. Threads may share it.
#[pyclass(name = "RunSet", module = "zazen", frozen)]
#[derive(Clone)]
pub(crate) struct PyRunSet(pub(crate) Arc<RunSet>);

impl From<RunSet> for PyRunSet {
    fn from(set: RunSet) -> PyRunSet {
        PyRunSet(Arc::new(set))
    }
}

#[pymethods]
impl PyRunSet {
    #[new]
    #[pyo3(signature = (numbers = None))]
    fn new(numbers: Option<&Bound<'_, PyAny>>) -> PyResult<PyRunSet> {
        let mut set = RunSet::new();
        if let Some(numbers) = numbers {
            if let Ok(other) = numbers.cast::<PyRunSet>() {
                return Ok(other.get().clone());
            }
            for number in numbers.try_iter()? {
                set.insert(number?.extract()?);
            }
        }
        Ok(set.into())
    }

    /// All numbers of `first ..= last` (both inclusive); empty if `first > last`.
    #[classmethod]
    fn range(_class: &Bound<'_, PyType>, first: u64, last: u64) -> PyRunSet {
        RunSet::range(first, last).into()
    }

    /// The union of runs `(first, count, step)`, in any order, overlapping or not.
    ///
    /// Raises InvalidArgumentError for a count or step of 0, TooLargeError beyond 64 bits, and if
    /// runs with different steps interleave over more than 2**32 numbers.
    #[classmethod]
    fn from_runs(class: &Bound<'_, PyType>, runs: &Bound<'_, PyAny>) -> PyResult<PyRunSet> {
        let mut checked = Vec::new();
        for run in runs.try_iter()? {
            let [first, count, step] = run?.extract()?;
            checked.push(lift(class.py(), Run::new(first, count, step))?);
        }
        Ok(lift(class.py(), RunSet::checked_from_runs(checked))?.into())
    }

    /// The set as disjoint runs `(first, count, step)`, ascending by first number.
    fn runs(&self) -> Vec<(u64, u64, u64)> {
        self.0.runs().map(|run| (run.first, run.count, run.step)).collect()
    }

    /// The smallest number; None if empty.
    #[getter]
    fn first(&self) -> Option<u64> {
        self.0.first()
    }

    /// The largest number; None if empty.
    #[getter]
    fn last(&self) -> Option<u64> {
        self.0.last()
    }

    fn __len__(&self) -> PyResult<usize> {
        usize::try_from(self.0.len()).ok().filter(|len| isize::try_from(*len).is_ok()).ok_or_else(|| {
            PyOverflowError::new_err(format!("{} numbers are beyond sys.maxsize", self.0.len()))
        })
    }

    fn __bool__(&self) -> bool {
        !self.0.is_empty()
    }

    fn __contains__(&self, number: &Bound<'_, PyAny>) -> bool {
        number.extract::<u64>().is_ok_and(|number| self.0.contains(number))
    }

    fn __iter__(&self) -> Numbers {
        Numbers { set: self.0.clone(), next_rank: 0, block: Vec::new().into_iter() }
    }

    fn __or__(&self, other: PyRef<'_, PyRunSet>) -> PyRunSet {
        self.0.union(&other.0).into()
    }

    fn __and__(&self, other: PyRef<'_, PyRunSet>) -> PyRunSet {
        self.0.intersection(&other.0).into()
    }

    fn __sub__(&self, other: PyRef<'_, PyRunSet>) -> PyRunSet {
        self.0.difference(&other.0).into()
    }

    /// The union of both sets; the same as `|`.
    fn union(&self, other: PyRef<'_, PyRunSet>) -> PyRunSet {
        self.0.union(&other.0).into()
    }

    /// The numbers in both sets; the same as `&`.
    fn intersection(&self, other: PyRef<'_, PyRunSet>) -> PyRunSet {
        self.0.intersection(&other.0).into()
    }

    /// The numbers of this set that are not in `other`; the same as `-`.
    fn difference(&self, other: PyRef<'_, PyRunSet>) -> PyRunSet {
        self.0.difference(&other.0).into()
    }

    fn __richcmp__(&self, py: Python<'_>, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let Ok(other) = other.cast::<PyRunSet>() else { return Ok(py.NotImplemented()) };
        let (mine, other) = (&*self.0, &*other.get().0);
        let holds = match op {
            CompareOp::Eq => mine == other,
            CompareOp::Ne => mine != other,
            CompareOp::Le => mine.is_subset(other),
            CompareOp::Ge => other.is_subset(mine),
            CompareOp::Lt => mine != other && mine.is_subset(other),
            CompareOp::Gt => mine != other && other.is_subset(mine),
        };
        Ok(holds.into_pyobject(py)?.to_owned().into_any().unbind())
    }

    fn __repr__(&self) -> String {
        let mut text = format!("<RunSet of {}{}", self.0.len(), if self.0.is_empty() { "" } else { ":" });
        for (at, run) in self.0.runs().take(REPR_RUNS + 1).enumerate() {
            // Writing to a String cannot fail.
            let _ = match run {
                _ if at == REPR_RUNS => write!(text, " …"),
                Run { first, count: 1, .. } => write!(text, " {first}"),
                Run { first, step: 1, .. } => write!(text, " {first}..{}", run.last()),
                Run { first, step, .. } => write!(text, " {first}..{}:{step}", run.last()),
            };
        }
        text.push('>');
        text
    }
}

/// Ascending numbers of a RunSet, expanded block by block.
#[pyclass(module = "zazen")]
pub(crate) struct Numbers {
    set: Arc<RunSet>,
    next_rank: u64,
    block: std::vec::IntoIter<u64>,
}

#[pymethods]
impl Numbers {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&mut self) -> Option<u64> {
        if let Some(number) = self.block.next() {
            return Some(number);
        }
        let block: Vec<u64> = self.set.block(self.next_rank, BLOCK).iter().collect();
        self.next_rank += block.len() as u64;
        self.block = block.into_iter();
        self.block.next()
    }
}
