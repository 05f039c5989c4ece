//! Numbers as arguments. The error for a bad number names the argument, not a conversion between
//! integer types.

use crate::errors::raise_kind;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use std::ops::Deref;
use zazen_core::ErrorKind;
use zazen_core::limits::FRAME_NO_MAX;

/// A frame number, or a stride between frame numbers.
#[derive(Clone, Copy)]
pub(crate) struct FrameNumber(pub(crate) u64);

/// A size or a count.
#[derive(Clone, Copy)]
pub(crate) struct Count(pub(crate) u64);

impl Deref for FrameNumber {
    type Target = u64;

    fn deref(&self) -> &u64 {
        &self.0
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for FrameNumber {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<FrameNumber> {
        let object = &*given;
        let refuse = |kind, why: String| raise_kind(object.py(), kind, &why);
        whole(object).map(FrameNumber).map_err(|trouble| match trouble {
            Trouble::Negative => refuse(
                ErrorKind::InvalidArgument,
                format!(
                    "{object} is no frame number: frames are numbered from 0 on, and a negative number does \
                     not count from the end; see extent().last"
                ),
            ),
            Trouble::Large => refuse(
                ErrorKind::TooLarge,
                format!("{object} is no frame number: the largest is {FRAME_NO_MAX}"),
            ),
            Trouble::Other(error) => error,
        })
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Count {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Count> {
        let object = &*given;
        let refuse = |kind, why: String| raise_kind(object.py(), kind, &why);
        whole(object).map(Count).map_err(|trouble| match trouble {
            Trouble::Negative => refuse(
                ErrorKind::InvalidArgument,
                format!("{object} is negative; sizes and counts are 0 or more"),
            ),
            Trouble::Large => {
                refuse(ErrorKind::TooLarge, format!("{object} is too large; the limit is {}", u64::MAX))
            }
            Trouble::Other(error) => error,
        })
    }
}

impl Count {
    /// For limits on memory: a value that is larger than any memory means no limit.
    pub(crate) fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

enum Trouble {
    Negative,
    Large,
    Other(PyErr),
}

fn whole(object: &Bound<'_, PyAny>) -> Result<u64, Trouble> {
    object.extract::<u64>().map_err(|error| {
        if !error.is_instance_of::<PyOverflowError>(object.py()) {
            return Trouble::Other(error);
        }
        match object.lt(0) {
            Ok(true) => Trouble::Negative,
            _ => Trouble::Large,
        }
    })
}
