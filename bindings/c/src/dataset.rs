//! Opens datasets, and queries and assigns their frames.

use crate::collectives::{Table, zazen_collectives_t};
use crate::runset::zazen_runset_t;
use crate::status::{ask, guard, invalid, needed_text, optional_text};
use crate::structs::Sized0;
use crate::told_trajectory::Told;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use zazen_assign::{Collectives, Path as Found, Protocol, Rules, Solo};
use zazen_client::{Dataset, OpenOptions, SharedDataset};
use zazen_core::{Error, ErrorKind, Result};

/// An opened dataset. Threads may share it; calls run one after the other. A forked child may use
/// it, over connections of its own.
pub struct zazen_dataset_t {
    pub(crate) inner: SharedDataset,
    path: CString,
    /// What zazen_trajectory gave, whose pointers live as long as the dataset.
    pub(crate) trajectory: OnceLock<Option<Told>>,
}

/// How to open a dataset; zero in a field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_open_options_t {
    /// sizeof(zazen_open_options_t).
    pub struct_size: usize,
    /// The daemon's socket; NULL: $ZAZEN_SOCKET or the default.
    pub socket: *const c_char,
    /// The pattern of file names, such as "frame-{n:07}.dcd"; NULL: from the manifest or the file
    /// names.
    pub pattern: *const c_char,
    /// "tcp://host:port" of a served backing store to read when no daemon answers; NULL:
    /// $ZAZEN_BACKING, or the dataset's directory itself.
    pub backing: *const c_char,
    /// Not 0: ask no daemon at all.
    pub direct: u64,
    /// Milliseconds of silence after which a daemon is asked whether it is alive; 0:
    /// $ZAZEN_TIMEOUT, or 10 000.
    pub timeout_ms: u64,
}

// SAFETY: repr(C), size first, zeroes are NULL and 0, no padding.
unsafe impl Sized0 for zazen_open_options_t {
    const NAME: &'static str = "zazen_open_options_t";
}

/// Frames begin, begin + stride, … up to end, inclusive.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_range_t {
    /// The first frame number.
    pub begin: u64,
    /// The bound, inclusive.
    pub end: u64,
    /// The distance between frame numbers; at least 1.
    pub stride: u64,
}

/// How to assign; zero in a field means the default. Equal on all ranks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_assign_options_t {
    /// sizeof(zazen_assign_options_t).
    pub struct_size: usize,
    /// 0: the full rules. 1: exactly the paper's (Zazen, FAST'10, section 4).
    pub paper_rules: u64,
    /// 0: the owner-resolved protocol. 1: two all-reduces over bitmaps, as in the paper.
    pub bitmap_protocol: u64,
    /// Not 0: assign all frames to this process, although a launcher has started several ranks.
    pub alone: u64,
}

// SAFETY: repr(C), size first, plain integers, no padding.
unsafe impl Sized0 for zazen_assign_options_t {
    const NAME: &'static str = "zazen_assign_options_t";
}

/// How the frames were assigned.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_assignment_t {
    /// sizeof(zazen_assignment_t), set by the caller.
    pub struct_size: usize,
    /// Frames of this rank that its node holds as natives,
    pub native: u64,
    /// as aliens,
    pub alien: u64,
    /// and that no node holds.
    pub residue: u64,
    /// The same over all ranks.
    pub total_native: u64,
    /// Aliens over all ranks.
    pub total_alien: u64,
    /// Residue over all ranks.
    pub total_residue: u64,
    /// Payload bytes that this rank sent.
    pub bytes_sent: u64,
    /// Collective rounds.
    pub rounds: u64,
    /// 1 if the fingerprint showed a perfect hit, 0 if holdings were exchanged.
    pub perfect_hit: u64,
}

// SAFETY: repr(C), size first, plain integers, no padding.
unsafe impl Sized0 for zazen_assignment_t {
    const NAME: &'static str = "zazen_assignment_t";
}

/// Opens the dataset whose directory is `path`. `options` may be NULL. The caller closes
/// `*dataset`.
///
/// If no daemon answers, frames come from the backing store; see zazen_has_daemon. ZAZEN_NOT_FOUND
/// if there is no such directory.
///
/// # Safety
/// Strings are NUL-terminated; `options` is NULL or as large as it says; `dataset` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_open(
    path: *const c_char,
    options: *const zazen_open_options_t,
    dataset: *mut *mut zazen_dataset_t,
) -> i32 {
    guard(|| {
        if dataset.is_null() {
            return Err(invalid("zazen_open: dataset is NULL"));
        }
        // SAFETY: by the caller's word.
        let (path, options) = unsafe { (needed_text(path, "path")?, open_options(options)?) };
        let inner = SharedDataset::open(Path::new(path), options)?;
        let path = CString::new(inner.path().to_string_lossy().into_owned()).unwrap_or_default();
        let opened = zazen_dataset_t { path, inner, trajectory: OnceLock::new() };
        // SAFETY: by the caller's word.
        unsafe { *dataset = Box::into_raw(Box::new(opened)) };
        Ok(())
    })
}

/// # Safety
/// As for [`zazen_open`].
unsafe fn open_options(given: *const zazen_open_options_t) -> Result<OpenOptions> {
    // SAFETY: by the caller's word.
    unsafe {
        let given = zazen_open_options_t::take(given)?;
        Ok(OpenOptions {
            socket: optional_text(given.socket, "socket")?.map(PathBuf::from),
            pattern: optional_text(given.pattern, "pattern")?.map(str::to_owned),
            backing: optional_text(given.backing, "backing")?.map(str::to_owned),
            direct: given.direct != 0,
            silence: (given.timeout_ms != 0).then(|| Duration::from_millis(given.timeout_ms)),
        })
    }
}

/// Closes a dataset. Frames and iterations obtained from it stay valid. NULL is ignored.
///
/// # Safety
/// `dataset` is NULL or live, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_close(dataset: *mut zazen_dataset_t) {
    // SAFETY: made by Box::into_raw, by the caller's word not closed before.
    ask((), || (!dataset.is_null()).then(|| drop(unsafe { Box::from_raw(dataset) })))
}

/// How the dataset's numbers map to files: "frame-{n:07}.dcd", "pieces of N files", "list of N
/// files" or "xtc trajectory of N files". Writes at most `capacity` bytes to `text`, with a NUL at
/// the end, and the length without it to `*length`; 0 if the layout is not known. ZAZEN_TOO_LARGE
/// if it does not fit; `*length` is set.
///
/// # Safety
/// `dataset` is NULL or live; `text` has room for `capacity` bytes, or is NULL if that is 0;
/// `length` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_layout(
    dataset: *mut zazen_dataset_t,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let dataset = unsafe { live(dataset) }?;
        if length.is_null() || (text.is_null() && capacity > 0) {
            return Err(invalid("zazen_layout: text or length is NULL"));
        }
        let shown = dataset.inner.with(|dataset| Ok(dataset.layout_in_words().unwrap_or_default()))?;
        // SAFETY: by the caller's word.
        unsafe { *length = shown.len() };
        if shown.len() >= capacity {
            let why = format!("zazen_layout: {} bytes; there is room for {capacity}", shown.len() + 1);
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        // SAFETY: there is room for the text and its NUL, as was just compared.
        unsafe {
            std::ptr::copy_nonoverlapping(shown.as_ptr(), text.cast::<u8>(), shown.len());
            text.add(shown.len()).write(0);
        }
        Ok(())
    })
}

/// Takes this process's oldest warning that was not taken: something that costs time but no
/// results, such as a daemon that does not answer. The string is valid until this thread's next
/// call. NULL if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn zazen_next_warning() -> *const c_char {
    thread_local! {
        static SHOWN: RefCell<CString> = RefCell::default();
    }
    static WAITING: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
    ask(std::ptr::null(), || {
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend(zazen_client::warnings());
        let text = CString::new(waiting.pop_front()?.replace('\0', " ")).ok()?;
        SHOWN.with_borrow_mut(|shown| {
            *shown = text;
            Some(shown.as_ptr())
        })
    })
}

/// Whether a daemon answered when the dataset was opened: 1 or 0.
///
/// # Safety
/// `dataset` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_has_daemon(dataset: *const zazen_dataset_t) -> i32 {
    // SAFETY: by the caller's word.
    ask(0, || Some(i32::from(unsafe { dataset.as_ref() }?.inner.has_daemon())))
}

/// The identity of the node whose daemon answered, a number of 128 bits that is the same in all
/// processes of the node: `node[0]` has its low 64 bits, `node[1]` the high ones. Without a daemon:
/// a random one, fixed for this dataset.
///
/// # Safety
/// `dataset` is NULL or live; `node` has two writable elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_node(dataset: *mut zazen_dataset_t, node: *mut u64) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let dataset = unsafe { live(dataset) }?;
        if node.is_null() {
            return Err(invalid("zazen_node: node is NULL"));
        }
        let found = dataset.inner.with(|dataset| Ok(dataset.node()))?;
        // SAFETY: by the caller's word, there is room for two.
        unsafe {
            node.write(found as u64);
            node.add(1).write((found >> 64) as u64);
        }
        Ok(())
    })
}

/// The dataset's absolute path; NULL for NULL. Lives as long as the dataset.
///
/// # Safety
/// `dataset` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_path(dataset: *const zazen_dataset_t) -> *const c_char {
    // SAFETY: by the caller's word.
    ask(std::ptr::null(), || Some(unsafe { dataset.as_ref() }?.path.as_ptr()))
}

/// The frames that exist on the backing store; ZAZEN_UNAVAILABLE if it does not answer. The
/// caller frees `*set`.
///
/// # Safety
/// `dataset` is NULL or live; `set` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_extent(dataset: *mut zazen_dataset_t, set: *mut *mut zazen_runset_t) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let dataset = unsafe { live(dataset) }?;
        if set.is_null() {
            return Err(invalid("zazen_extent: set is NULL"));
        }
        let extent = dataset.inner.with(Dataset::extent)?;
        // SAFETY: by the caller's word.
        unsafe { *set = zazen_runset_t::boxed(extent) };
        Ok(())
    })
}

/// What this node's cache holds of `range` as natives and aliens (paper section 4: query). The
/// caller frees both sets.
///
/// # Safety
/// `dataset` is NULL or live; `range` is readable; `native` and `alien` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_query(
    dataset: *mut zazen_dataset_t,
    range: *const zazen_range_t,
    native: *mut *mut zazen_runset_t,
    alien: *mut *mut zazen_runset_t,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let (dataset, range) = unsafe { (live(dataset)?, range.as_ref()) };
        let Some(range) = range.filter(|_| !native.is_null() && !alien.is_null()) else {
            return Err(invalid("zazen_query: range, native or alien is NULL"));
        };
        let held = dataset.inner.with(|dataset| dataset.query(range.begin, range.end, range.stride))?;
        // SAFETY: by the caller's word.
        unsafe {
            *native = zazen_runset_t::boxed(held.0);
            *alien = zazen_runset_t::boxed(held.1);
        }
        Ok(())
    })
}

/// Agrees with the other ranks on which rank reads which frame (paper section 4: zazen).
/// Collective: every rank calls it with equal range and options.
///
/// `range`: NULL for all frames that exist, as rank 0 sees them. `options`: NULL for the defaults.
/// `collectives`: NULL assigns all frames to this process; if a launcher has started several ranks,
/// options.alone must then be set. `assignment`: filled if not NULL. `*set`: the frame numbers that
/// this rank reads. Every requested frame is in exactly one rank's set. The caller frees `*set`.
///
/// # Safety
/// `dataset` is NULL or live; structs are NULL or as large as they say; `set` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_assign(
    dataset: *mut zazen_dataset_t,
    range: *const zazen_range_t,
    options: *const zazen_assign_options_t,
    collectives: *const zazen_collectives_t,
    assignment: *mut zazen_assignment_t,
    set: *mut *mut zazen_runset_t,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let (dataset, range, options) =
            unsafe { (live(dataset)?, range.as_ref(), zazen_assign_options_t::take(options)?) };
        // SAFETY: by the caller's word.
        unsafe { zazen_assignment_t::check(assignment) }?;
        if set.is_null() {
            return Err(invalid("zazen_assign: set is NULL"));
        }
        let rules = if options.paper_rules != 0 { Rules::Paper } else { Rules::Full };
        let protocol = if options.bitmap_protocol != 0 { Protocol::Bitmaps } else { Protocol::Owner };
        // SAFETY: by the caller's word.
        let carrier = unsafe { carrier("zazen_assign", collectives, options.alone != 0) }?;
        let range = range.map(|range| (range.begin, range.end, range.stride));
        let found =
            dataset.inner.with(|dataset| dataset.assign_to_read(range, rules, protocol, &*carrier))?;
        // SAFETY: by the caller's word; the size was checked above.
        unsafe {
            described(&found).give(assignment)?;
            *set = zazen_runset_t::boxed(found.set);
        }
        Ok(())
    })
}

/// The collectives of a call; for NULL, those of this process alone.
///
/// # Safety
/// `collectives` is NULL or as large as it says.
pub(crate) unsafe fn carrier(
    call: &str,
    collectives: *const zazen_collectives_t,
    alone: bool,
) -> Result<Box<dyn Collectives>> {
    if !collectives.is_null() {
        // SAFETY: by the caller's word.
        return Ok(Box::new(Table::new(unsafe { zazen_collectives_t::take(collectives) }?)?));
    }
    if let Some(ranks) = zazen_mpi::launched_ranks().filter(|ranks| *ranks > 1 && !alone) {
        return Err(invalid(format!(
            "{call}: a launcher started {ranks} ranks and collectives is NULL: each would read every frame; \
             fill one with zazen_collectives_from_mpi, or set options.alone to read all of them on every rank"
        )));
    }
    Ok(Box::new(Solo))
}

fn described(found: &zazen_assign::Assignment) -> zazen_assignment_t {
    zazen_assignment_t {
        struct_size: 0,
        native: found.mine.native,
        alien: found.mine.alien,
        residue: found.mine.residue,
        total_native: found.total.native,
        total_alien: found.total.alien,
        total_residue: found.total.residue,
        bytes_sent: found.bytes_sent,
        rounds: u64::from(found.rounds),
        perfect_hit: u64::from(found.path == Found::Fingerprint),
    }
}

/// # Safety
/// `dataset` is NULL or live for as long as the result.
pub(crate) unsafe fn live<'a>(dataset: *mut zazen_dataset_t) -> Result<&'a zazen_dataset_t> {
    // SAFETY: by the caller's word.
    unsafe { dataset.as_ref() }.ok_or_else(|| invalid("dataset is NULL; open one with zazen_open"))
}
