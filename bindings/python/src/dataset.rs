//! `zazen.Dataset` and the iterator over its frames.

use crate::carrier::{Carrier, Comm};
use crate::errors::{lift, raise, raise_kind, raise_of_frame};
use crate::frame::PyFrame;
use crate::notices;
use crate::numbers::{Count, FrameNumber};
use crate::paths::PyPaths;
use crate::random::{Index, Named, listed, many, numbers_of};
use crate::runset::PyRunSet;
use crate::trajectory::PyTrajectory;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;
use zazen_assign::{Assignment, Path, Protocol, Rules};
use zazen_client::{AnyReader, Dataset, Frame, Mine, OpenOptions, ReadOptions, ReadStats, SharedDataset};
use zazen_core::{Error, ErrorKind, Result};

/// Opens the dataset whose directory is `path`, or the trajectory file `path` (XTC, TRR, DCD, AMBER
/// NetCDF, GRO, LAMMPS dump, XYZ): its n-th frame is frame n.
///
/// `socket`: the daemon's socket; None: $ZAZEN_SOCKET or the default. `pattern`: the pattern of
/// file names, such as "frame-{n:07}.dcd", or "**/*.jpg": all files with such names, numbered from
/// 0 on in the order of their paths; None: from the manifest or the file names. `backing`:
/// "tcp://host:port" of a served backing store to read when no daemon answers ($ZAZEN_BACKING).
/// `direct`: ask no daemon at all. `timeout`: seconds that a daemon may be silent before Zazen
/// tests whether it still works; None: $ZAZEN_TIMEOUT, or 10.
///
/// Without a daemon it warns once (ZazenWarning) and reads from the backing store. Raises
/// NotFoundError if there is no such directory.
#[pyfunction]
#[pyo3(signature = (path, *, socket = None, pattern = None, backing = None, direct = false, timeout = None))]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    socket: Option<PathBuf>,
    pattern: Option<String>,
    backing: Option<String>,
    direct: bool,
    timeout: Option<f64>,
) -> PyResult<PyDataset> {
    let silence = timeout.map(|seconds| lift(py, seconds_of(seconds))).transpose()?;
    let options = OpenOptions { socket, pattern, backing, direct, silence };
    let dataset = lift(py, py.detach(|| SharedDataset::open(&path, options)))?;
    notices::show(py)?;
    Ok(PyDataset(dataset))
}

/// As `open`, for an unpickled dataset. Raises StaleError if files that are numbered by their names
/// are not those of `names`, or if a trajectory is not the one of which a process has `seen`.
#[pyfunction]
#[pyo3(signature = (path, *, names, seen, socket, pattern, backing, direct, timeout))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn _open_same(
    py: Python<'_>,
    path: PathBuf,
    names: Option<(u64, u64)>,
    seen: Option<Vec<u8>>,
    socket: Option<PathBuf>,
    pattern: Option<String>,
    backing: Option<String>,
    direct: bool,
    timeout: Option<f64>,
) -> PyResult<PyDataset> {
    let opened = open(py, path, socket, pattern, backing, direct, timeout)?;
    if names.is_some() {
        lift(py, opened.0.check_names(names))?;
    }
    if let Some(seen) = seen {
        lift(py, opened.0.check_seen(&seen))?;
    }
    Ok(opened)
}

/// The number of a frame that a user named. `NotFound` if there is none.
fn number_of(dataset: &mut Dataset, named: &Named) -> Result<u64> {
    match named {
        Named::Number(number) => Ok(*number),
        Named::File(name) => dataset.number_of(name),
        Named::FromEnd(back) => {
            let extent = dataset.extent()?;
            let at = extent.len().checked_sub(*back);
            at.and_then(|at| extent.select(at)).ok_or_else(|| {
                let text = format!(
                    "there is no frame -{back}: dataset {} has {} frames",
                    dataset.path().display(),
                    extent.len()
                );
                Error::new(ErrorKind::NotFound, text)
            })
        }
    }
}

fn seconds_of(seconds: f64) -> Result<Duration> {
    let positive = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
    positive.ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, format!("timeout is {seconds}; give seconds, more than 0"))
    })
}

/// An opened dataset, and a context manager that closes it. Threads may share it; calls run one
/// after the other.
///
/// A forked child may use it, over connections of its own. Unpickling opens the dataset again with
/// the same arguments. A closed dataset cannot be pickled.
#[pyclass(name = "Dataset", module = "zazen", frozen)]
pub(crate) struct PyDataset(SharedDataset);

impl PyDataset {
    /// Runs `body` on the dataset with the interpreter's lock released, then issues its warnings.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut Dataset) -> Result<T> + Send,
    ) -> PyResult<T> {
        let done = lift(py, py.detach(|| self.0.with(body)))?;
        notices::show(py)?;
        Ok(done)
    }

    /// As [`PyDataset::with`], for frames that a user named.
    fn with_frames<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut Dataset) -> Result<T> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| self.0.with(body)).map_err(|error| raise_of_frame(py, &error))?;
        notices::show(py)?;
        Ok(done)
    }

    fn read_listed<'py>(
        &self,
        py: Python<'py>,
        numbers: Vec<u64>,
        keeps_errors: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let outcomes = self.with(py, |dataset| dataset.read_many(&numbers))?;
        listed(py, &numbers, outcomes, keeps_errors)
    }

    /// `reads`: the frames are read next.
    fn assign_with(
        &self,
        py: Python<'_>,
        wish: &Wish,
        carrier: &Carrier,
        reads: bool,
        began: Instant,
    ) -> PyResult<PyAssignment> {
        let assignment = carrier.run(py, |collectives| {
            self.0.with(|dataset| {
                dataset.begins(began);
                let range = dataset.range(wish.begin, wish.end, wish.stride, collectives)?;
                match reads {
                    true => dataset.assign_to_read(range, wish.rules, wish.protocol, collectives),
                    false => dataset.assign(range, wish.rules, wish.protocol, collectives),
                }
            })
        })?;
        notices::show(py)?;
        Ok(PyAssignment::new(assignment, carrier.name()))
    }
}

/// What a call of `assign` or `frames` asks for.
struct Wish {
    begin: Option<u64>,
    end: Option<u64>,
    stride: u64,
    rules: Rules,
    protocol: Protocol,
}

impl Wish {
    fn new(
        py: Python<'_>,
        range: (Option<FrameNumber>, Option<FrameNumber>, FrameNumber),
        rules: &str,
        protocol: &str,
    ) -> PyResult<Wish> {
        let invalid = |text: String| raise_kind(py, ErrorKind::InvalidArgument, &text);
        let rules = match rules {
            "full" => Rules::Full,
            "paper" => Rules::Paper,
            other => return Err(invalid(format!("rules is {other:?}; give \"full\" or \"paper\""))),
        };
        let protocol = match protocol {
            "owner" => Protocol::Owner,
            "bitmaps" => Protocol::Bitmaps,
            other => return Err(invalid(format!("protocol is {other:?}; give \"owner\" or \"bitmaps\""))),
        };
        let (begin, end, stride) = (range.0.as_deref().copied(), range.1.as_deref().copied(), range.2.0);
        Ok(Wish { begin, end, stride, rules, protocol })
    }
}

#[pymethods]
impl PyDataset {
    /// Absolute path as opened.
    #[getter]
    fn path(&self) -> String {
        self.0.path().to_string_lossy().into_owned()
    }

    /// Whether a daemon answered when the dataset was opened.
    #[getter]
    fn has_daemon(&self) -> bool {
        self.0.has_daemon()
    }

    /// The identity of the node whose daemon answered, a 128-bit number that is the same in all
    /// processes of the node. Without a daemon: a random one, fixed for this Dataset.
    #[getter]
    fn node(&self, py: Python<'_>) -> PyResult<u128> {
        self.with(py, |dataset| Ok(dataset.node()))
    }

    /// The version of the file whose blocks these are, as (size, mtime_ns, ctime_ns, inode); None
    /// if the dataset is not the blocks of a file.
    ///
    /// Reads raise StaleError once the file looks different.
    #[getter]
    fn version(&self) -> Option<(u64, i64, i64, u64)> {
        let version = self.0.blocks()?.version;
        Some((version.size, version.mtime_ns, version.ctime_ns, version.inode))
    }

    /// Pickles by the arguments of `open`.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (PathBuf,))> {
        let path = self.0.path();
        if self.0.is_closed() {
            let text = format!("dataset {} is closed; pickle it while it is open", path.display());
            return Err(raise_kind(py, ErrorKind::InvalidArgument, &text));
        }
        let OpenOptions { socket, pattern, backing, direct, silence } = self.0.options().clone();
        let arguments = PyDict::new(py);
        arguments.set_item("socket", socket)?;
        arguments.set_item("pattern", pattern)?;
        arguments.set_item("backing", backing)?;
        arguments.set_item("direct", direct)?;
        arguments.set_item("timeout", silence.map(|silence| silence.as_secs_f64()))?;
        let open = match (self.0.names(), self.0.seen()) {
            (None, None) => py.import("zazen")?.getattr("open")?,
            // The numbers must mean the same frames in the other process.
            (names, seen) => {
                arguments.set_item("names", names)?;
                arguments.set_item("seen", seen.map(|seen| PyBytes::new(py, &seen)))?;
                py.import("zazen._zazen")?.getattr("_open_same")?
            }
        };
        let partial = py.import("functools")?.getattr("partial")?.call((open,), Some(&arguments))?;
        Ok((partial, (path.to_path_buf(),)))
    }

    /// How numbers map to files: "frame-{n:07}.dcd", "pieces of N files", "list of N files", "xtc
    /// trajectory of N files", or None if unknown.
    #[getter]
    fn layout(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |dataset| Ok(dataset.layout_in_words()))
    }

    /// What is known of the trajectory files that hold the frames; None for a dataset that is not
    /// made of trajectory files.
    #[getter]
    fn trajectory(&self, py: Python<'_>) -> PyResult<Option<PyTrajectory>> {
        self.with(py, |dataset| Ok(dataset.trajectory().map(PyTrajectory)))
    }

    /// The frames that exist on the backing store. Listed on the first call, then remembered.
    /// `UnavailableError` if the store does not answer.
    fn extent(&self, py: Python<'_>) -> PyResult<PyRunSet> {
        self.with(py, |dataset| dataset.extent()).map(PyRunSet::from)
    }

    /// What this node's cache holds of `begin ..= end` at `stride`, as (natives, aliens). Empty
    /// without a daemon.
    ///
    /// Raises InvalidArgumentError if begin > end or stride is 0, TooLargeError beyond frame number
    /// 2**40.
    #[pyo3(signature = (begin, end, stride = FrameNumber(1)),
        text_signature = "($self, begin, end, stride=1)")]
    fn query(
        &self,
        py: Python<'_>,
        begin: FrameNumber,
        end: FrameNumber,
        stride: FrameNumber,
    ) -> PyResult<(PyRunSet, PyRunSet)> {
        let (native, alien) = self.with(py, |dataset| dataset.query(*begin, *end, *stride))?;
        Ok((native.into(), alien.into()))
    }

    /// Reads frame `number`; its bytes are checked against their checksum.
    fn read(&self, py: Python<'_>, number: FrameNumber) -> PyResult<PyFrame> {
        let frame = self.with(py, |dataset| dataset.read(*number))?;
        PyFrame::new(py, frame)
    }

    /// Reads the frames `numbers` in one call: a list of `Frame`s in the order asked, each as often
    /// as it is asked for.
    ///
    /// `numbers`: an iterable of frame numbers or file names, or a RunSet; at most 2**20. Unlike
    /// `frames`, it holds all frames in memory. If a frame cannot be read: `on_error="raise"`
    /// raises its error, which names the frame and how many others failed; `on_error="return"`
    /// puts the exception in the frame's place. Raises NoSuchFrameError for a frame that does not
    /// exist, TooLargeError for too many numbers.
    #[pyo3(signature = (numbers, *, on_error = "raise"))]
    fn read_many<'py>(
        &self,
        py: Python<'py>,
        numbers: &Bound<'py, PyAny>,
        on_error: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let keeps_errors = match on_error {
            "raise" => false,
            "return" => true,
            other => {
                let text = format!("on_error is {other:?}; give \"raise\" or \"return\"");
                return Err(raise_kind(py, ErrorKind::InvalidArgument, &text));
            }
        };
        let named = many(numbers)?;
        let numbers =
            self.with_frames(py, |dataset| named.iter().map(|name| number_of(dataset, name)).collect())?;
        self.read_listed(py, numbers, keeps_errors)
    }

    /// The number of the frame whose file is `name`: a path relative to the dataset, or an absolute
    /// one.
    ///
    /// Raises NoSuchFrameError if no frame has a file of that name, InvalidArgumentError if the
    /// file holds several frames.
    fn number_of(&self, py: Python<'_>, name: PathBuf) -> PyResult<u64> {
        let name = Named::File(name.to_string_lossy().into_owned());
        self.with_frames(py, |dataset| number_of(dataset, &name))
    }

    /// For each frame that exists, in ascending order (as in `extent()`), the rank of `comm` whose
    /// node holds it, and -1 if no node does: an `array.array("i")`, which numpy.asarray takes
    /// without a copy. Collective. Nothing is read.
    ///
    /// A pushed frame (native) counts before a fetched one (alien). If several nodes hold a frame
    /// alike, the node with the fewest frames per rank so far owns it; ties go to the node of the
    /// lowest rank. The ranks of a node own its frames in contiguous blocks. `comm` and `carrier`
    /// are those of `assign`.
    #[pyo3(signature = (comm = Comm::Unsaid, *, carrier = "auto"),
        text_signature = "($self, comm=..., *, carrier='auto')")]
    fn owners<'py>(&self, py: Python<'py>, comm: Comm, carrier: &str) -> PyResult<Bound<'py, PyAny>> {
        let carrier = comm.carrier(py, carrier)?;
        let (_, owners) =
            carrier.run(py, |collectives| self.0.with(|dataset| dataset.owners(collectives)))?;
        notices::show(py)?;
        // SAFETY: the bytes of integers that live as long as this call.
        let bytes =
            unsafe { std::slice::from_raw_parts(owners.as_ptr().cast::<u8>(), size_of_val(&owners[..])) };
        py.import("array")?.getattr("array")?.call1(("i", PyBytes::new(py, bytes)))
    }

    /// Which node holds which of the frames that exist, at one moment: `(nodes, held)`. `nodes` has
    /// the index of each rank's node, `held` the RunSet of each node's frames. Collective; alike on
    /// all ranks. Nothing is read. Each node's first rank asks its own daemon; a node whose daemon
    /// does not answer holds nothing. `comm` and `carrier` are those of `assign`.
    #[pyo3(signature = (comm = Comm::Unsaid, *, carrier = "auto"),
        text_signature = "($self, comm=..., *, carrier='auto')")]
    fn holders(&self, py: Python<'_>, comm: Comm, carrier: &str) -> PyResult<(Vec<usize>, Vec<PyRunSet>)> {
        let carrier = comm.carrier(py, carrier)?;
        let holders = carrier.run(py, |collectives| self.0.with(|dataset| dataset.holders(collectives)))?;
        notices::show(py)?;
        Ok((holders.node_of_rank, holders.held.into_iter().map(PyRunSet::from).collect()))
    }

    /// Brings frames that the node `holder` (its `Dataset.node`) holds into this node's cache, from
    /// that node and not from the backing store; how many of them are here then.
    ///
    /// `numbers`: as for `read_many`. A frame that the holder lacks, or whose source has changed,
    /// is left out: it comes from the backing store when it is read. Raises UnsupportedError if
    /// this node's daemon knows no other nodes (`zazend --peers`).
    fn bring(&self, py: Python<'_>, numbers: &Bound<'_, PyAny>, holder: u128) -> PyResult<u64> {
        let named = many(numbers)?;
        self.with_frames(py, |dataset| {
            let numbers = named.iter().map(|name| number_of(dataset, name)).collect::<Result<_>>()?;
            dataset.bring(numbers, holder)
        })
    }

    /// The number of frames that exist.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let count = self.with(py, |dataset| Ok(dataset.extent()?.len()))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// A dataset is true, also if it has no frames.
    fn __bool__(&self) -> bool {
        true
    }

    /// The frame with this number, or of this file name; with a slice, a list of frames.
    ///
    /// An index is a frame number, as everywhere in Zazen, not a position: in a dataset whose files
    /// are numbered from 1 on, the first frame is `dataset[1]`. A negative index counts from the
    /// end: `dataset[-1]` is the last frame. A slice has the existing frames whose numbers are in
    /// `range(start, stop, step)`. Raises NoSuchFrameError, which is an IndexError and a KeyError.
    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match Index::of(index)? {
            Index::One(named) => {
                let frame = self.with_frames(py, |dataset| {
                    let number = number_of(dataset, &named)?;
                    dataset.read(number)
                })?;
                Ok(Bound::new(py, PyFrame::new(py, frame)?)?.into_any())
            }
            Index::Slice(slice) => {
                let extent = self.with(py, |dataset| dataset.extent())?;
                let numbers = numbers_of(&slice, &extent)?;
                Ok(self.read_listed(py, numbers, false)?.into_any())
            }
        }
    }

    /// Whether a frame with this number, or of this file name, exists.
    fn __contains__(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(named) = Named::of(index) else { return Ok(false) };
        let held = self.with(py, |dataset| {
            let extent = dataset.extent()?;
            Ok(number_of(dataset, &named).is_ok_and(|number| extent.contains(number)))
        })?;
        Ok(held)
    }

    /// Not defined: `frames()` iterates with read-ahead, and shares the frames among ranks.
    fn __iter__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a Dataset is not iterated over itself: dataset.frames() reads ahead, \
             and shares the frames among ranks",
        ))
    }

    /// Not defined. Python would take positions for frame numbers, and end without a word at the
    /// first number that does not exist.
    fn __reversed__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a Dataset is not reversed itself, because its frames have numbers and no positions: \
             dataset[::-1] is a list of all frames from the last one on",
        ))
    }

    /// Agrees with the other ranks on which rank reads which frames of `begin ..= end` at `stride`.
    /// A bound that is left out is the dataset's own. Collective: all ranks of `comm` call it with
    /// equal arguments.
    ///
    /// `comm`: an mpi4py communicator, or an object with the methods of `zazen.Collectives`; None
    /// or "self": this process alone, whatever a launcher started. It may be left out if a launcher
    /// has not started several ranks. `rules`: "full", or "paper" (Zazen paper, section 4).
    /// `protocol`: "owner", or "bitmaps" (the paper's). `carrier`: "auto", or one way of using MPI:
    /// "mpi" (MPI bound at run time) or "mpi4py". Raises MpiError if each rank is an MPI world of
    /// its own.
    #[pyo3(signature = (begin = None, end = None, stride = FrameNumber(1), *,
        comm = Comm::Unsaid, rules = "full", protocol = "owner", carrier = "auto"),
        text_signature = "($self, begin=None, end=None, stride=1, *, comm=..., \
        rules='full', protocol='owner', carrier='auto')")]
    #[allow(clippy::too_many_arguments)]
    fn assign(
        &self,
        py: Python<'_>,
        begin: Option<FrameNumber>,
        end: Option<FrameNumber>,
        stride: FrameNumber,
        comm: Comm,
        rules: &str,
        protocol: &str,
        carrier: &str,
    ) -> PyResult<PyAssignment> {
        let began = Instant::now();
        let wish = Wish::new(py, (begin, end, stride), rules, protocol)?;
        self.assign_with(py, &wish, &comm.carrier(py, carrier)?, false, began)
    }

    /// Iterates over this rank's frames of `begin ..= end` at `stride` in storage order, as
    /// `Frame`s.
    ///
    /// Arguments are those of `assign`, and: `memory`: the most bytes that are read ahead (a single
    /// larger frame is still read); `readers`: files in flight, None: chosen for the disk; `check`:
    /// compare checksums; `ordered`: by ascending number instead, in about `memory` bytes. That is
    /// slower where numbers are not the storage order: the disk seeks, and a frame that has to be
    /// fetched holds up those behind it. Without `comm` this process reads all frames; if a
    /// launcher has started several ranks, say so with `comm=None`. The assignment is collective,
    /// the iteration is not.
    #[pyo3(signature = (begin = None, end = None, stride = FrameNumber(1), *,
        comm = Comm::Unsaid, rules = "full", protocol = "owner", memory = Count(268_435_456),
        readers = None, check = true, carrier = "auto",
        ordered = false),
        text_signature = "($self, begin=None, end=None, stride=1, *, comm=..., \
        rules='full', protocol='owner', memory=268435456, readers=None, \
        check=True, carrier='auto', ordered=False)")]
    #[allow(clippy::too_many_arguments)]
    fn frames(
        &self,
        py: Python<'_>,
        begin: Option<FrameNumber>,
        end: Option<FrameNumber>,
        stride: FrameNumber,
        comm: Comm,
        rules: &str,
        protocol: &str,
        memory: Count,
        readers: Option<Count>,
        check: bool,
        carrier: &str,
        ordered: bool,
    ) -> PyResult<PyFrames> {
        let began = Instant::now();
        let wish = Wish::new(py, (begin, end, stride), rules, protocol)?;
        let assignment = self.assign_with(py, &wish, &comm.carrier(py, carrier)?, true, began)?;
        let set = (*assignment.set.0).clone();
        let total = set.len();
        let options = ReadOptions { memory_max: memory.0, readers: readers.map(Count::as_usize), check };
        let reader = self.with(py, |dataset| {
            dataset.reads_at_once();
            dataset.frames_in(set, &options, ordered)
        })?;
        let assignment = Py::new(py, assignment)?;
        Ok(PyFrames {
            total,
            assignment,
            mine: Mine::of_this_process(),
            reader: Mutex::new(Reading { reader: Some(reader), last: ReadStats::default() }),
        })
    }

    /// Iterates over `(number, path)` of this rank's frames of `begin ..= end` at `stride`, in
    /// storage order, without reading them: for programs that map large files, or hand their paths
    /// on. Arguments are those of `assign`.
    ///
    /// A frame that is a whole file has the path of its cached file, or of its source if it is not
    /// cached; its bytes are neither read nor checked. A cold frame is brought to the cache first.
    /// A frame that is a part of a larger file, or whose file this user may not open, is read, and
    /// its path is an `os.PathLike` that makes a file when it is used, which lives as long as the
    /// path object. A cached file may be evicted later; an open file stays readable.
    #[pyo3(signature = (begin = None, end = None, stride = FrameNumber(1), *,
        comm = Comm::Unsaid, rules = "full", protocol = "owner", carrier = "auto"),
        text_signature = "($self, begin=None, end=None, stride=1, *, comm=..., \
        rules='full', protocol='owner', carrier='auto')")]
    #[allow(clippy::too_many_arguments)]
    fn paths(
        &self,
        py: Python<'_>,
        begin: Option<FrameNumber>,
        end: Option<FrameNumber>,
        stride: FrameNumber,
        comm: Comm,
        rules: &str,
        protocol: &str,
        carrier: &str,
    ) -> PyResult<PyPaths> {
        let began = Instant::now();
        let wish = Wish::new(py, (begin, end, stride), rules, protocol)?;
        let assignment = self.assign_with(py, &wish, &comm.carrier(py, carrier)?, false, began)?;
        let set = (*assignment.set.0).clone();
        let places = self.with(py, |dataset| dataset.places(set))?;
        Ok(PyPaths::new(places))
    }

    /// Closes the dataset. Iterators over its frames continue. It may be closed twice.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let daemon = if self.0.has_daemon() { "through the daemon" } else { "from the backing store" };
        format!("<Dataset {} {daemon}>", self.0.path().display())
    }
}

/// An iterator over frames. `len` is the number of frames at its start. Dropping it stops the
/// read-ahead.
///
/// A frame that cannot be read raises an exception. The iteration can continue after it.
#[pyclass(name = "Frames", module = "zazen", frozen)]
pub(crate) struct PyFrames {
    total: u64,
    /// How the frames were assigned to this rank.
    #[pyo3(get)]
    assignment: Py<PyAssignment>,
    /// In a forked child, a thread that does not exist there may hold the lock.
    mine: Mine,
    reader: Mutex<Reading>,
}

struct Reading {
    reader: Option<AnyReader>,
    /// The counters when the reader was closed.
    last: ReadStats,
}

impl PyFrames {
    /// A frame that is ready. The interpreter's lock is kept, because getting it back from a busy
    /// thread takes milliseconds and there is nothing to wait for.
    fn next_ready(&self) -> Option<Result<Frame>> {
        self.reader.try_lock().ok()?.reader.as_mut()?.next_ready()
    }

    fn check(&self) -> Result<()> {
        self.mine.check("this iterator over frames", "call frames() in this one")
    }

    /// Only where [`PyFrames::check`] passes.
    fn locked<T>(&self, body: impl FnOnce(&mut Reading) -> T) -> T {
        body(&mut self.reader.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

#[pymethods]
impl PyFrames {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyFrame>> {
        lift(py, self.check())?;
        let next = match self.next_ready() {
            Some(ready) => Some(ready),
            None => {
                let next =
                    py.detach(|| self.locked(|reading| reading.reader.as_mut().and_then(Iterator::next)));
                notices::show(py)?;
                next
            }
        };
        match next {
            None => Ok(None),
            Some(Ok(frame)) => PyFrame::new(py, frame).map(Some),
            Some(Err(error)) => Err(raise(py, &error)),
        }
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.total).unwrap_or(usize::MAX)
    }

    /// Frames not yet taken.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<u64> {
        lift(py, self.check())?;
        Ok(py.detach(|| self.locked(|reading| reading.reader.as_ref().map_or(0, AnyReader::remaining))))
    }

    /// Where the frames taken so far came from.
    #[getter]
    fn stats(&self, py: Python<'_>) -> PyResult<PyReadStats> {
        lift(py, self.check())?;
        Ok(PyReadStats(py.detach(|| {
            self.locked(|reading| reading.reader.as_ref().map_or(reading.last, AnyReader::stats))
        })))
    }

    /// Stops the read-ahead, frees its buffers and ends the iteration. It may be closed twice.
    fn close(&self, py: Python<'_>) {
        // The parent closes its own iterator, because its threads are there.
        if !self.mine.is_mine() {
            return;
        }
        py.detach(|| {
            self.locked(|reading| {
                if let Some(reader) = reading.reader.take() {
                    reading.last = reader.stats();
                }
            });
        });
    }
}

/// Where frames came from.
#[pyclass(name = "ReadStats", module = "zazen", frozen)]
pub(crate) struct PyReadStats(ReadStats);

#[pymethods]
impl PyReadStats {
    /// Frames from the node's cache that a writer had pushed there.
    #[getter]
    fn native(&self) -> u64 {
        self.0.native
    }
    /// Frames from the node's cache that an earlier miss had brought there.
    #[getter]
    fn alien(&self) -> u64 {
        self.0.alien
    }
    /// Frames read from the backing store, by the daemon or directly.
    #[getter]
    fn backing_reads(&self) -> u64 {
        self.0.backing_reads
    }
    /// Bytes of all frames.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }
    /// Bad checksums that were found and repaired.
    #[getter]
    fn mended(&self) -> u64 {
        self.0.mended
    }
    /// Frames taken.
    #[getter]
    fn frames(&self) -> u64 {
        self.0.native + self.0.alien + self.0.backing_reads
    }
    /// Share of the frames that came from the node's own cache, 0 to 1; 1 if none were read.
    #[getter]
    fn local_share(&self) -> f64 {
        let local = self.0.native + self.0.alien;
        if self.frames() == 0 { 1.0 } else { local as f64 / self.frames() as f64 }
    }
    fn __repr__(&self) -> String {
        format!(
            "<ReadStats native={} alien={} backing_reads={} bytes={} mended={}>",
            self.0.native, self.0.alien, self.0.backing_reads, self.0.bytes, self.0.mended
        )
    }
}

/// The frames that this rank reads, and how they were assigned.
#[pyclass(name = "Assignment", module = "zazen", frozen, get_all)]
pub(crate) struct PyAssignment {
    /// The frame numbers that this rank reads.
    pub(crate) set: PyRunSet,
    /// Frames of this rank read as natives (rule 1),
    natives: u64,
    /// as aliens (rule 2),
    aliens: u64,
    /// as residue (rule 3): held by no node.
    residue: u64,
    /// The same over all ranks.
    total_natives: u64,
    /// Aliens over all ranks.
    total_aliens: u64,
    /// Residue over all ranks.
    total_residue: u64,
    /// "fingerprint" (a perfect hit) or "exchange".
    path: &'static str,
    /// Payload bytes that this rank sent.
    bytes_sent: u64,
    /// Collective rounds.
    rounds: u32,
    /// The implementation of the collectives: "solo", "mpi" (bound at run time) or "python".
    carrier: &'static str,
}

impl PyAssignment {
    fn new(assignment: Assignment, carrier: &'static str) -> PyAssignment {
        let path = match assignment.path {
            Path::Fingerprint => "fingerprint",
            Path::Exchange => "exchange",
        };
        PyAssignment {
            set: assignment.set.into(),
            natives: assignment.mine.native,
            aliens: assignment.mine.alien,
            residue: assignment.mine.residue,
            total_natives: assignment.total.native,
            total_aliens: assignment.total.alien,
            total_residue: assignment.total.residue,
            path,
            bytes_sent: assignment.bytes_sent,
            rounds: assignment.rounds,
            carrier,
        }
    }
}

#[pymethods]
impl PyAssignment {
    fn __repr__(&self) -> String {
        format!(
            "<Assignment natives={} aliens={} residue={} path={} bytes_sent={} rounds={}>",
            self.natives, self.aliens, self.residue, self.path, self.bytes_sent, self.rounds
        )
    }
}
