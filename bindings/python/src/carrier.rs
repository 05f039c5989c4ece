//! Turns a Python communicator into [`Collectives`].

use crate::errors::{lift, raise};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyString};
use std::sync::Mutex;
use zazen_assign::{Blocks, Collectives, Solo, check_blocks, dense, sparse};
use zazen_core::{Error, ErrorKind, Result};
use zazen_mpi::{MpiCollectives, slow_by_exchange, two_bit_by_exchange, xor_by_exchange};

/// The implementation of an assignment's collectives.
pub(crate) enum Carrier {
    /// One process.
    Solo,
    /// MPI bound at run time; the user's MPI_Comm.
    Mpi(usize),
    /// A Python object with the methods of `zazen.Collectives`.
    Python(PythonCarrier),
}

/// The argument `comm`.
pub(crate) enum Comm {
    /// Left out.
    Unsaid,
    /// None, or "self".
    Alone,
    /// A communicator.
    Of(Py<PyAny>),
}

impl<'py> FromPyObject<'_, 'py> for Comm {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Comm> {
        let is_self = given.cast::<PyString>().is_ok_and(|text| text == "self");
        match () {
            _ if given.is_none() || is_self => Ok(Comm::Alone),
            _ if given.is(given.py().Ellipsis()) => Ok(Comm::Unsaid),
            _ => Ok(Comm::Of(given.to_owned().unbind())),
        }
    }
}

impl Comm {
    /// The implementation of its collectives. A forgotten communicator is an error, because every
    /// rank would read everything.
    pub(crate) fn carrier(&self, py: Python<'_>, choice: &str) -> PyResult<Carrier> {
        match self {
            Comm::Of(comm) => Carrier::resolve(py, Some(comm.bind(py)), choice),
            Comm::Alone => Ok(Carrier::Solo),
            Comm::Unsaid => match zazen_mpi::launched_ranks() {
                Some(ranks) if ranks > 1 => {
                    let what = format!(
                        "a launcher started {ranks} ranks and `comm` is left out: each would read every \
                         frame. Give comm=MPI.COMM_WORLD to share them, or comm=None to read all of them on \
                         every rank"
                    );
                    Err(raise(py, &Error::new(ErrorKind::InvalidArgument, what)))
                }
                _ => Ok(Carrier::Solo),
            },
        }
    }
}

impl Carrier {
    /// `comm` as the user gave it; `choice` is "auto", "mpi" or "mpi4py". Collective over an mpi4py
    /// communicator.
    pub(crate) fn resolve(
        py: Python<'_>,
        comm: Option<&Bound<'_, PyAny>>,
        choice: &str,
    ) -> PyResult<Carrier> {
        let Some(comm) = comm else { return Ok(Carrier::Solo) };
        let resolved = py.import("zazen._mpi4py")?.getattr("resolve")?.call1((comm, choice))?;
        match resolved.extract::<usize>() {
            Ok(handle) => Ok(Carrier::Mpi(handle)),
            Err(_) => Ok(Carrier::Python(PythonCarrier::new(&resolved)?)),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Carrier::Solo => "solo",
            Carrier::Mpi(_) => "mpi",
            Carrier::Python(_) => "python",
        }
    }

    /// Runs `body` with the interpreter's lock released. An exception from Python's collectives is
    /// raised unchanged.
    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&dyn Collectives) -> Result<T> + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| match self {
            Carrier::Solo => body(&Solo),
            // SAFETY: `zazen._mpi4py.resolve` took the handle from a live mpi4py communicator whose
            // library it has compared with the bound one; the caller holds that communicator during
            // the call.
            Carrier::Mpi(handle) => body(&unsafe { MpiCollectives::from_handle(*handle) }?),
            Carrier::Python(carrier) => body(carrier),
        });
        result.map_err(|error| match self {
            Carrier::Python(carrier) => carrier.take_raised().unwrap_or_else(|| raise(py, &error)),
            _ => raise(py, &error),
        })
    }
}

/// A Python object with the methods of `zazen.Collectives`, which move words and bytes as buffers.
pub(crate) struct PythonCarrier {
    object: Py<PyAny>,
    rank: usize,
    size: usize,
    /// It has an allreduce_xor of its own.
    has_xor: bool,
    raised: Mutex<Option<PyErr>>,
}

impl PythonCarrier {
    fn new(object: &Bound<'_, PyAny>) -> PyResult<PythonCarrier> {
        let rank: usize = object.getattr("rank")?.extract()?;
        let size: usize = object.getattr("size")?.extract()?;
        if rank >= size {
            let error = Error::new(
                ErrorKind::InvalidArgument,
                format!("communicator of size {size} has rank {rank}"),
            );
            return Err(raise(object.py(), &error));
        }
        let has_xor = object.hasattr("allreduce_xor")?;
        Ok(PythonCarrier { object: object.clone().unbind(), rank, size, has_xor, raised: Mutex::new(None) })
    }

    fn take_raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }

    /// Calls into Python. An exception is kept for [`Carrier::run`]; the protocol gets an error of
    /// kind `Mpi`.
    fn call<T>(&self, name: &str, body: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        Python::attach(|py| body(self.object.bind(py))).map_err(|raised| {
            let error = Error::new(ErrorKind::Mpi, format!("the communicator's {name} raised {raised}"));
            *self.raised.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(raised);
            error
        })
    }

    fn allreduce(&self, name: &str, values: &mut [u64]) -> Result<()> {
        self.call(name, |object| {
            let bytes: Vec<u8> = values.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let buffer = PyByteArray::new(object.py(), &bytes);
            object.call_method1(name, (&buffer,))?;
            let reduced = buffer.to_vec();
            if reduced.len() != bytes.len() {
                return Err(pyo3::exceptions::PyValueError::new_err(format!(
                    "{name} changed its buffer's length"
                )));
            }
            for (into, word) in values.iter_mut().zip(reduced.chunks_exact(8)) {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                *into = u64::from_ne_bytes(bytes);
            }
            Ok(())
        })
    }

    fn blocks(&self, name: &str, returned: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<u8>>> {
        let blocks: Vec<Vec<u8>> =
            returned.try_iter()?.map(|block| bytes_of(&block?)).collect::<PyResult<_>>()?;
        if blocks.len() != self.size {
            let text =
                format!("{name} returned {} blocks, not one for each of {} ranks", blocks.len(), self.size);
            return Err(pyo3::exceptions::PyValueError::new_err(text));
        }
        Ok(blocks)
    }
}

fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    pyo3::buffer::PyBuffer::<u8>::get(object)?.to_vec(object.py())
}

impl Collectives for PythonCarrier {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.size
    }
    fn allreduce_sum(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce("allreduce_sum", values)
    }
    fn allreduce_xor(&self, values: &mut [u64]) -> Result<()> {
        if self.has_xor { self.allreduce("allreduce_xor", values) } else { xor_by_exchange(self, values) }
    }
    fn allreduce_or(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce("allreduce_or", values)
    }
    fn allreduce_two_bit(&self, values: &mut [u64]) -> Result<()> {
        two_bit_by_exchange(self, values)
    }
    fn alltoallv(&self, send: Blocks) -> Result<Blocks> {
        check_blocks(&send, self.size)?;
        let received = self.call("alltoallv", |object| {
            let py = object.py();
            let send = dense(send, self.size);
            let blocks = PyList::new(py, send.iter().map(|block| PyBytes::new(py, block)))?;
            self.blocks("alltoallv", &object.call_method1("alltoallv", (blocks,))?)
        })?;
        Ok(sparse(received))
    }
    fn allgatherv(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.call("allgatherv", |object| {
            let mine = PyBytes::new(object.py(), mine);
            self.blocks("allgatherv", &object.call_method1("allgatherv", (mine,))?)
        })
    }
    fn broadcast(&self, mine: &[u8]) -> Result<Vec<u8>> {
        self.call("broadcast", |object| {
            bytes_of(&object.call_method1("broadcast", (PyBytes::new(object.py(), mine),))?)
        })
    }
    fn is_slow(&self) -> Result<bool> {
        slow_by_exchange(self)
    }
}

/// Raises MpiError if a world of `world_size` ranks contradicts the launcher's environment.
#[pyfunction]
pub(crate) fn check_launcher(py: Python<'_>, world_size: usize) -> PyResult<()> {
    lift(py, zazen_mpi::check_launcher(world_size))
}

/// Whether a launcher of MPI programs started this process.
#[pyfunction]
pub(crate) fn is_launched() -> bool {
    zazen_mpi::is_launched()
}

/// Raises MpiError unless the MPI library found in this process has MPI_COMM_WORLD = `world`.
#[pyfunction]
pub(crate) fn check_world(py: Python<'_>, world: usize) -> PyResult<()> {
    lift(py, zazen_mpi::check_world(world))
}

/// (file, ABI) of the MPI library of this process; raises MpiError if there is none or it is not
/// initialised.
#[pyfunction]
pub(crate) fn mpi_library(py: Python<'_>) -> PyResult<(String, String)> {
    lift(py, zazen_mpi::loaded_library()).map(|(file, abi)| (file, format!("{abi:?}")))
}

/// One implementation of the collectives, for their contract tests. Not public.
#[pyclass(module = "zazen._zazen", frozen)]
pub(crate) struct CarrierProbe {
    carrier: Carrier,
    /// The longest message of a bound MPI, in bytes; `None`: the default.
    chunk_bytes: Option<usize>,
    /// Whether a bound MPI exchanges as among many ranks.
    sparse: bool,
    /// Keeps the communicator alive.
    _comm: Option<Py<PyAny>>,
}

impl CarrierProbe {
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&dyn Collectives) -> Result<T> + Send,
    ) -> PyResult<T> {
        let Carrier::Mpi(handle) = &self.carrier else { return self.carrier.run(py, body) };
        let result = py.detach(|| {
            // SAFETY: as in `Carrier::run`; the probe keeps the communicator alive.
            let carrier = unsafe { MpiCollectives::from_handle(*handle) }?;
            let carrier = carrier.chunked(self.chunk_bytes.unwrap_or(usize::MAX));
            body(&if self.sparse { carrier.sparse() } else { carrier })
        });
        lift(py, result)
    }
}

#[pymethods]
impl CarrierProbe {
    #[new]
    #[pyo3(signature = (comm = None, carrier = "auto", chunk_bytes = None, sparse = false))]
    fn new(
        py: Python<'_>,
        comm: Option<Bound<'_, PyAny>>,
        carrier: &str,
        chunk_bytes: Option<usize>,
        sparse: bool,
    ) -> PyResult<CarrierProbe> {
        let resolved = Carrier::resolve(py, comm.as_ref(), carrier)?;
        Ok(CarrierProbe { carrier: resolved, chunk_bytes, sparse, _comm: comm.map(Bound::unbind) })
    }

    fn name(&self) -> &'static str {
        self.carrier.name()
    }

    fn rank_and_size(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        self.run(py, |collectives| Ok((collectives.rank(), collectives.size())))
    }

    /// `operator` is "sum", "xor", "or" or "two_bit".
    fn allreduce(&self, py: Python<'_>, operator: &str, mut values: Vec<u64>) -> PyResult<Vec<u64>> {
        self.run(py, |collectives| {
            match operator {
                "sum" => collectives.allreduce_sum(&mut values),
                "xor" => collectives.allreduce_xor(&mut values),
                "or" => collectives.allreduce_or(&mut values),
                _ => collectives.allreduce_two_bit(&mut values),
            }?;
            Ok(values)
        })
    }

    fn alltoallv<'py>(&self, py: Python<'py>, send: Vec<Vec<u8>>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let got = self.run(py, |collectives| {
            let got = collectives.alltoallv(sparse(send))?;
            Ok(dense(got, collectives.size()))
        })?;
        Ok(got.iter().map(|block| PyBytes::new(py, block)).collect())
    }

    fn allgatherv<'py>(&self, py: Python<'py>, mine: Vec<u8>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let got = self.run(py, |collectives| collectives.allgatherv(&mine))?;
        Ok(got.iter().map(|block| PyBytes::new(py, block)).collect())
    }

    fn broadcast<'py>(&self, py: Python<'py>, mine: Vec<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let got = self.run(py, |collectives| collectives.broadcast(&mine))?;
        Ok(PyBytes::new(py, &got))
    }
}
