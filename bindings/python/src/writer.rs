//! `zazen.Writer`: pushes frames to the nodes' caches.

use crate::errors::{lift, raise, raise_kind};
use crate::notices;
use crate::numbers::{Count, FrameNumber};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use zazen_client::{FrameSource, Mine, NodeList, Pusher, PusherOptions};
use zazen_core::{Error, ErrorKind, FrameNo};
use zazen_push::{Counters, OnSlow};

/// The number of frames with each fate. After `finish`, every submitted frame counts in exactly one
/// of pushed, already_there, skipped_slow, skipped_no_node and refused.
#[pyclass(name = "Counters", module = "zazen", frozen, get_all, eq)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PyCounters {
    /// Frames handed over.
    submitted: u64,
    /// Stored by some node.
    pushed: u64,
    /// Some node already had exactly this frame.
    already_there: u64,
    /// The window was full and on_slow="skip".
    skipped_slow: u64,
    /// Every node was dead or full.
    skipped_no_node: u64,
    /// A node refused the frame for good.
    refused: u64,
    /// Sends repeated on another node.
    resent: u64,
    /// Times a node was marked dead.
    node_deaths: u64,
    /// Bytes of pushed frames.
    bytes_pushed: u64,
}

impl From<Counters> for PyCounters {
    fn from(counters: Counters) -> PyCounters {
        let Counters {
            submitted,
            pushed,
            already_there,
            skipped_slow,
            skipped_no_node,
            refused,
            resent,
            node_deaths,
            bytes_pushed,
        } = counters;
        PyCounters {
            submitted,
            pushed,
            already_there,
            skipped_slow,
            skipped_no_node,
            refused,
            resent,
            node_deaths,
            bytes_pushed,
        }
    }
}

#[pymethods]
impl PyCounters {
    fn __repr__(&self) -> String {
        format!(
            "<Counters submitted={} pushed={} already_there={} skipped_slow={} skipped_no_node={} refused={} \
             resent={} node_deaths={} bytes_pushed={}>",
            self.submitted,
            self.pushed,
            self.already_there,
            self.skipped_slow,
            self.skipped_no_node,
            self.refused,
            self.resent,
            self.node_deaths,
            self.bytes_pushed
        )
    }
}

/// Pushes frames into the caches of many nodes while they are written; use it as a context manager.
///
/// `dataset`: absolute path of the dataset as its readers write it. `nodes`: a list of
/// "host[:port]", the same joined by commas, or the path of a file with one node a line. `key`: the
/// cluster key file; None: $ZAZEN_KEY. `pattern`: the pattern for frames without a name, such as
/// "frame-{n:07}.dcd". `on_slow`: "skip" (never wait) or "block" when the window (`window_frames`,
/// `window_bytes`) is full. `timeout`: seconds that a node may take for a frame. `copies`: nodes
/// that get each frame; the counters count each copy.
///
/// Raises ConfigError for bad nodes or a missing key. Threads may share it.
#[pyclass(name = "Writer", module = "zazen", frozen)]
pub(crate) struct PyWriter {
    /// In a forked child, a thread that does not exist there may hold the lock.
    mine: Mine,
    state: RwLock<State>,
}

enum State {
    Open(Arc<Pusher>),
    Finished(Counters, Vec<String>),
    Failed,
}

#[pymethods]
impl PyWriter {
    #[new]
    #[pyo3(signature = (dataset, nodes, *, key = None, pattern = None,
        on_slow = "skip", window_frames = Count(64),
        window_bytes = Count(268_435_456), timeout = 10.0, copies = Count(1)),
        text_signature = "(dataset, nodes, *, key=None, pattern=None, \
        on_slow='skip', window_frames=64, window_bytes=268435456, timeout=10.0, copies=1)")]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        dataset: PathBuf,
        nodes: &Bound<'_, PyAny>,
        key: Option<PathBuf>,
        pattern: Option<String>,
        on_slow: &str,
        window_frames: Count,
        window_bytes: Count,
        timeout: f64,
        copies: Count,
    ) -> PyResult<PyWriter> {
        let on_slow = match on_slow {
            "skip" => OnSlow::Skip,
            "block" => OnSlow::Block,
            other => {
                let text = format!("on_slow is {other:?}; give \"skip\" or \"block\"");
                return Err(raise_kind(py, ErrorKind::InvalidArgument, &text));
            }
        };
        let seconds = timeout;
        let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
        let Some(timeout) = timeout else {
            let text = format!(
                "timeout is {seconds}; give the seconds that a node may take for a frame, more than 0"
            );
            return Err(raise_kind(py, ErrorKind::InvalidArgument, &text));
        };
        let key = key.or_else(|| std::env::var_os("ZAZEN_KEY").map(PathBuf::from));
        let Some(key) = key else {
            let text = "no cluster key; give key=PATH or set ZAZEN_KEY to the file that the daemons use";
            return Err(raise_kind(py, ErrorKind::Config, text));
        };
        let spec: String = match nodes.extract::<Vec<String>>() {
            Ok(list) => list.join(","),
            Err(_) => nodes.extract::<PathBuf>()?.to_string_lossy().into_owned(),
        };
        let pusher = py.detach(|| {
            let nodes = NodeList::read(&spec)?;
            let (window_frames, window_bytes) = (window_frames.as_usize(), window_bytes.0);
            let options = PusherOptions {
                nodes,
                key,
                window_frames,
                window_bytes,
                on_slow,
                timeout,
                seed: None,
                copies: copies.as_usize(),
            };
            Pusher::new(&dataset, pattern.as_deref(), options)
        });
        Ok(PyWriter {
            mine: Mine::of_this_process(),
            state: RwLock::new(State::Open(Arc::new(lift(py, pusher)?))),
        })
    }

    /// Hands over frame `number`; its bytes (any bytes-like object) are copied. `name`: the file
    /// beneath the dataset that holds the frame; None: the name by the pattern.
    ///
    /// Returns at once unless the window is full and on_slow is "block". Raises
    /// InvalidArgumentError or TooLargeError for a bad number or name; `counters` shows what
    /// happened to the frame.
    #[pyo3(signature = (number, data, name = None))]
    fn push(
        &self,
        py: Python<'_>,
        number: FrameNumber,
        data: &Bound<'_, PyAny>,
        name: Option<String>,
    ) -> PyResult<()> {
        lift(py, self.check())?;
        let bytes = contiguous_bytes(data)?;
        let pusher = self.pusher(py)?;
        let pushed = py.detach(|| {
            let source = FrameSource { name, ..FrameSource::default() };
            let pushed = pusher.push(FrameNo::new(*number)?, bytes, source);
            drop(pusher);
            pushed
        });
        lift(py, pushed)?;
        notices::show(py)
    }

    /// Fates so far.
    #[getter]
    fn counters(&self, py: Python<'_>) -> PyResult<PyCounters> {
        lift(py, self.check())?;
        let counters = self.look(py, |state| match state {
            State::Open(pusher) => pusher.counters(),
            State::Finished(counters, _) => *counters,
            State::Failed => Counters::default(),
        });
        Ok(counters.into())
    }

    /// The last few failures as text: node, frame, reason.
    #[getter]
    fn problems(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        lift(py, self.check())?;
        Ok(self.look(py, |state| match state {
            State::Open(pusher) => pusher.problems(),
            State::Finished(_, problems) => problems.clone(),
            State::Failed => Vec::new(),
        }))
    }

    /// Waits until every frame has its fate, closes the connections, and returns the counters. A
    /// second call returns the same.
    fn finish(&self, py: Python<'_>) -> PyResult<PyCounters> {
        lift(py, self.check())?;
        let finished = py.detach(|| {
            let mut state = self.state.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            let (counters, problems) = match std::mem::replace(&mut *state, State::Failed) {
                State::Open(pusher) => {
                    let pusher = sole(pusher);
                    pusher.drain();
                    let problems = pusher.problems();
                    (pusher.finish()?, problems)
                }
                State::Finished(counters, problems) => (counters, problems),
                State::Failed => {
                    return Err(Error::new(
                        ErrorKind::Io,
                        "finishing this writer failed before; make a new one",
                    ));
                }
            };
            *state = State::Finished(counters, problems);
            Ok(counters)
        });
        let counters = lift(py, finished)?;
        notices::show(py)?;
        Ok(counters.into())
    }

    /// A writer cannot be pickled, because its frames in flight cannot move to another process.
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a Writer can't be pickled; make one in each process that pushes"))
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.finish(py).map(drop)
    }
}

impl PyWriter {
    fn check(&self) -> zazen_core::Result<()> {
        self.mine.check("this Writer", "make one in each process that pushes")
    }

    /// Reads the state; the interpreter's lock is released, since a `finish` may hold the state for
    /// long.
    fn look<T: Send>(&self, py: Python<'_>, body: impl FnOnce(&State) -> T + Send) -> T {
        py.detach(|| body(&self.state.read().unwrap_or_else(|poisoned| poisoned.into_inner())))
    }

    fn pusher(&self, py: Python<'_>) -> PyResult<Arc<Pusher>> {
        let pusher = self.look(py, |state| match state {
            State::Open(pusher) => Some(pusher.clone()),
            _ => None,
        });
        pusher.ok_or_else(|| {
            raise(
                py,
                &Error::new(
                    ErrorKind::InvalidArgument,
                    "the writer is finished; make a new one to push more",
                ),
            )
        })
    }
}

/// The pusher, once no `push` uses it. The caller's lock prevents new ones.
fn sole(mut pusher: Arc<Pusher>) -> Pusher {
    loop {
        match Arc::try_unwrap(pusher) {
            Ok(sole) => return sole,
            Err(shared) => pusher = shared,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The bytes of any C-contiguous buffer, whatever the type of its items.
fn contiguous_bytes(data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match PyBuffer::<u8>::get(data) {
        Ok(buffer) => buffer.to_vec(data.py()),
        Err(_) => {
            let view = pyo3::types::PyMemoryView::from(data)?;
            let bytes = view.call_method1("cast", ("B",))?;
            PyBuffer::<u8>::get(&bytes)?.to_vec(data.py())
        }
    }
}
