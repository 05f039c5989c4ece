//! What `Dataset` takes as an index, and what `read_many` returns.

use crate::errors::{raise_kind, raise_of_frame};
use crate::frame::PyFrame;
use crate::numbers::FrameNumber;
use crate::runset::PyRunSet;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PySlice, PyString};
use std::path::PathBuf;
use zazen_client::{Frame, READ_MANY_MAX};
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{Error, ErrorKind, RunSet};

/// How many failed frames an error lists.
const NAMED_MAX: usize = 8;

/// One frame, as a user names it.
#[derive(Clone)]
pub(crate) enum Named {
    /// By its number.
    Number(u64),
    /// From the end: 1 is the last frame.
    FromEnd(u64),
    /// By its file's name.
    File(String),
}

/// What stands in brackets.
pub(crate) enum Index<'py> {
    One(Named),
    Slice(Bound<'py, PySlice>),
}

impl<'py> Index<'py> {
    pub(crate) fn of(given: &Bound<'py, PyAny>) -> PyResult<Index<'py>> {
        match given.cast::<PySlice>() {
            Ok(slice) => Ok(Index::Slice(slice.clone())),
            Err(_) => Named::of(given).map(Index::One),
        }
    }
}

impl Named {
    pub(crate) fn of(given: &Bound<'_, PyAny>) -> PyResult<Named> {
        let number = match given.extract::<i64>() {
            Ok(number) => number,
            Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => {
                return Err(beyond(given));
            }
            Err(error) => return Named::of_file(given).ok_or(error)?,
        };
        match u64::try_from(number) {
            Ok(number) if number <= FRAME_NO_MAX => Ok(Named::Number(number)),
            Ok(_) => Err(beyond(given)),
            Err(_) => Ok(Named::FromEnd(number.unsigned_abs())),
        }
    }

    fn of_file(given: &Bound<'_, PyAny>) -> Option<PyResult<Named>> {
        let is_path = given.is_instance_of::<PyString>() || given.hasattr("__fspath__").unwrap_or(false);
        is_path.then(|| {
            let path: PathBuf = given.extract()?;
            match path.into_os_string().into_string() {
                Ok(name) => Ok(Named::File(name)),
                Err(name) => {
                    let text =
                        format!("file {}: its name is not UTF-8; give the frame's number", name.display());
                    Err(raise_kind(given.py(), ErrorKind::InvalidArgument, &text))
                }
            }
        })
    }
}

fn beyond(given: &Bound<'_, PyAny>) -> PyErr {
    let text = format!("there is no frame {given}: the largest number is {FRAME_NO_MAX}");
    raise_of_frame(given.py(), &Error::new(ErrorKind::NotFound, text))
}

/// The numbers of `extent` that a slice of frame numbers means, in its order. A negative bound -k
/// stands for the number of the k-th frame from the end.
pub(crate) fn numbers_of(slice: &Bound<'_, PySlice>, extent: &RunSet) -> PyResult<Vec<u64>> {
    let part = |name: &str| -> PyResult<Option<i64>> {
        let given = slice.getattr(name)?;
        match given.extract::<Option<i64>>() {
            Ok(part) => Ok(part),
            // As in Python, a bound beyond all numbers is no error.
            Err(error) if error.is_instance_of::<PyOverflowError>(slice.py()) => {
                Ok(Some(if given.lt(0)? { i64::MIN } else { i64::MAX }))
            }
            Err(error) => Err(error),
        }
    };
    let (start, stop, step) = (part("start")?, part("stop")?, part("step")?.unwrap_or(1));
    if step == 0 {
        return Err(raise_kind(
            slice.py(),
            ErrorKind::InvalidArgument,
            "the step of a slice is 0; give 1 or more",
        ));
    }
    // Bounds as numbers; what is before the first frame is -1.
    let bound = |given: i64| -> i128 {
        match u64::try_from(given) {
            Ok(number) => i128::from(number),
            Err(_) => {
                let at = extent.len().checked_sub(given.unsigned_abs());
                at.and_then(|at| extent.select(at)).map_or(-1, i128::from)
            }
        }
    };
    let (first, last) = match step > 0 {
        true => {
            (start.map_or(0, bound).max(0), stop.map_or(i128::from(FRAME_NO_MAX), |stop| bound(stop) - 1))
        }
        false => {
            let top = extent.last().map_or(-1, i128::from);
            let high = start.map_or(top, bound).min(top);
            (stop.map_or(0, |stop| bound(stop) + 1).max(0), high)
        }
    };
    if last < first {
        return Ok(Vec::new());
    }
    let (first, last) = (first as u64, last.min(i128::from(FRAME_NO_MAX)) as u64);
    let held = extent.slice(first, last);
    check_count(slice.py(), held.len() / step.unsigned_abs().max(1))?;
    let origin = if step > 0 { first } else { last };
    let mut numbers: Vec<u64> =
        held.iter().filter(|number| number.abs_diff(origin).is_multiple_of(step.unsigned_abs())).collect();
    if step < 0 {
        numbers.reverse();
    }
    Ok(numbers)
}

fn check_count(py: Python<'_>, count: u64) -> PyResult<()> {
    if count <= READ_MANY_MAX as u64 {
        return Ok(());
    }
    let text = format!(
        "{count} frames are asked for at once, the limit is {READ_MANY_MAX}; iterate over frames() instead"
    );
    Err(raise_kind(py, ErrorKind::TooLarge, &text))
}

/// The frames that `read_many` is asked for.
pub(crate) fn many(given: &Bound<'_, PyAny>) -> PyResult<Vec<Named>> {
    let py = given.py();
    if let Ok(set) = given.cast::<PyRunSet>() {
        check_count(py, set.get().0.len())?;
        return Ok(set.get().0.iter().map(Named::Number).collect());
    }
    if given.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "read_many takes several frames; give a list, or index the dataset",
        ));
    }
    let mut all = Vec::new();
    for (at, item) in given.try_iter()?.enumerate() {
        let item = item?;
        check_count(py, at as u64 + 1)?;
        all.push(match Named::of_file(&item) {
            Some(file) => file?,
            None => Named::Number(*item.extract::<FrameNumber>()?),
        });
    }
    Ok(all)
}

type Outcome = std::result::Result<Frame, Error>;

/// The frames as a list; with `keeps_errors`, exceptions stand in the places of frames that could
/// not be read, else the first of them is raised.
pub(crate) fn listed<'py>(
    py: Python<'py>,
    numbers: &[u64],
    outcomes: Vec<Outcome>,
    keeps_errors: bool,
) -> PyResult<Bound<'py, PyList>> {
    if !keeps_errors && outcomes.iter().any(Result::is_err) {
        return Err(first_of(py, numbers, outcomes));
    }
    let mut items = Vec::with_capacity(outcomes.len());
    for outcome in outcomes {
        items.push(match outcome {
            Ok(frame) => Bound::new(py, PyFrame::new(py, frame)?)?.into_any(),
            Err(error) => raise_of_frame(py, &error).into_value(py).into_bound(py).into_any(),
        });
    }
    PyList::new(py, items)
}

/// The first error, and the numbers of the others.
fn first_of(py: Python<'_>, numbers: &[u64], outcomes: Vec<Outcome>) -> PyErr {
    let mut failed: Vec<u64> = Vec::new();
    let mut first = None;
    for (number, outcome) in numbers.iter().zip(outcomes) {
        if let Err(error) = outcome {
            failed.push(*number);
            first.get_or_insert(error);
        }
    }
    let first = first.unwrap_or_else(|| Error::new(ErrorKind::Io, "no frame failed"));
    failed.sort_unstable();
    failed.dedup();
    if failed.len() < 2 {
        return raise_of_frame(py, &first);
    }
    let named: Vec<String> = failed.iter().take(NAMED_MAX).map(u64::to_string).collect();
    let more = if failed.len() > NAMED_MAX { ", …" } else { "" };
    let text =
        format!("{first} ({} of the frames asked for failed: {}{more})", failed.len(), named.join(", "));
    raise_of_frame(py, &Error::new(first.kind(), text))
}
