//! Pushes frames to the nodes' caches.

use crate::status::{ask, guard, invalid, needed_text, optional_text};
use crate::structs::Sized0;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zazen_client::{FrameSource, NodeList, Pusher, PusherOptions};
use zazen_core::{Error, ErrorKind, FrameNo, Result};
use zazen_push::{Counters, OnSlow};

/// A writer into the caches of many nodes. Threads may share it.
pub struct zazen_writer_t(Pusher);

const WINDOW_FRAMES: usize = 64;
const WINDOW_BYTES: u64 = 256 << 20;
const TIMEOUT_MS: u64 = 10_000;

/// How to push; zero in a field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_writer_options_t {
    /// sizeof(zazen_writer_options_t).
    pub struct_size: usize,
    /// "host[:port],host[:port]…", or the path of a file with one node a line. Required.
    pub nodes: *const c_char,
    /// The cluster key file; NULL: $ZAZEN_KEY.
    pub key: *const c_char,
    /// The pattern for frames without a name, such as "frame-{n:07}.dcd".
    pub pattern: *const c_char,
    /// When the window is full: 0: skip the frame (the backing store has it). 1: wait.
    pub block: u64,
    /// The most frames in flight; 0: 64.
    pub window_frames: u64,
    /// The most bytes in flight; 0: 256 MiB.
    pub window_bytes: u64,
    /// Milliseconds that a node may take for a frame before it counts as dead; 0: 10 000.
    pub timeout_ms: u64,
    /// How many nodes get each frame; 0: one. The counters count each copy.
    pub copies: u64,
}

// SAFETY: repr(C), size first, zeroes are NULL and 0, no padding.
unsafe impl Sized0 for zazen_writer_options_t {
    const NAME: &'static str = "zazen_writer_options_t";
}

/// The number of frames with each fate. After zazen_writer_close, every submitted frame counts in
/// exactly one of pushed, already_there, skipped_slow, skipped_no_node and refused.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_counters_t {
    /// sizeof(zazen_counters_t), set by the caller.
    pub struct_size: usize,
    /// Frames handed over.
    pub submitted: u64,
    /// Stored by some node.
    pub pushed: u64,
    /// Some node already had exactly this frame.
    pub already_there: u64,
    /// The window was full, and the writer does not wait.
    pub skipped_slow: u64,
    /// Every node was dead or full.
    pub skipped_no_node: u64,
    /// A node refused the frame for good.
    pub refused: u64,
    /// Sends repeated on another node.
    pub resent: u64,
    /// Times a node was marked dead.
    pub node_deaths: u64,
    /// Bytes of pushed frames.
    pub bytes_pushed: u64,
}

// SAFETY: repr(C), size first, plain integers, no padding.
unsafe impl Sized0 for zazen_counters_t {
    const NAME: &'static str = "zazen_counters_t";
}

impl From<Counters> for zazen_counters_t {
    fn from(counters: Counters) -> zazen_counters_t {
        zazen_counters_t {
            struct_size: 0,
            submitted: counters.submitted,
            pushed: counters.pushed,
            already_there: counters.already_there,
            skipped_slow: counters.skipped_slow,
            skipped_no_node: counters.skipped_no_node,
            refused: counters.refused,
            resent: counters.resent,
            node_deaths: counters.node_deaths,
            bytes_pushed: counters.bytes_pushed,
        }
    }
}

/// Opens a writer for the dataset at `dataset`, its absolute path as the readers write it. The
/// writer connects when there is something to send. The caller closes `*writer`.
///
/// # Safety
/// Strings are NUL-terminated; `options` is as large as it says; `writer` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_writer_open(
    dataset: *const c_char,
    options: *const zazen_writer_options_t,
    writer: *mut *mut zazen_writer_t,
) -> i32 {
    guard(|| {
        if writer.is_null() {
            return Err(invalid("zazen_writer_open: writer is NULL"));
        }
        // SAFETY: by the caller's word.
        let opened = unsafe {
            let (dataset, given) = (needed_text(dataset, "dataset")?, zazen_writer_options_t::take(options)?);
            let pattern = optional_text(given.pattern, "pattern")?;
            Pusher::new(Path::new(dataset), pattern, pusher_options(&given)?)?
        };
        // SAFETY: by the caller's word.
        unsafe { *writer = Box::into_raw(Box::new(zazen_writer_t(opened))) };
        Ok(())
    })
}

/// # Safety
/// As for [`zazen_writer_open`].
unsafe fn pusher_options(given: &zazen_writer_options_t) -> Result<PusherOptions> {
    // SAFETY: by the caller's word.
    let (nodes, key) = unsafe { (needed_text(given.nodes, "nodes")?, optional_text(given.key, "key")?) };
    let key = key.map(PathBuf::from).or_else(|| std::env::var_os("ZAZEN_KEY").map(PathBuf::from));
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    Ok(PusherOptions {
        nodes: NodeList::read(nodes)?,
        key: key.ok_or_else(|| {
            Error::new(
                ErrorKind::Config,
                "no cluster key; set the option key or ZAZEN_KEY to the daemons' key file",
            )
        })?,
        window_frames: or(given.window_frames, WINDOW_FRAMES as u64) as usize,
        window_bytes: or(given.window_bytes, WINDOW_BYTES),
        on_slow: if given.block != 0 { OnSlow::Block } else { OnSlow::Skip },
        timeout: Duration::from_millis(or(given.timeout_ms, TIMEOUT_MS)),
        seed: None,
        copies: or(given.copies, 1).try_into().unwrap_or(usize::MAX),
    })
}

/// Hands over frame `number`; its bytes are copied before the call returns. `name`: the file
/// beneath the dataset that holds the frame; NULL: the name by the pattern.
///
/// Returns at once, unless the window is full and the writer is set to wait. The counters show what
/// happened to the frame.
///
/// # Safety
/// `writer` is NULL or live; `data` has `bytes` readable bytes; `name` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_write(
    writer: *mut zazen_writer_t,
    number: u64,
    data: *const c_void,
    bytes: u64,
    name: *const c_char,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let writer = unsafe { live(writer) }?;
        let length = usize::try_from(bytes).ok().filter(|length| *length <= isize::MAX as usize);
        let Some(length) = length.filter(|length| *length == 0 || !data.is_null()) else {
            return Err(invalid(format!("zazen_write: frame {number} has {bytes} bytes at {data:?}")));
        };
        let number = FrameNo::new(number)?;
        // SAFETY: by the caller's word.
        let name = unsafe { optional_text(name, "name") }?.map(str::to_owned);
        let taken = match length {
            0 => &[][..],
            // SAFETY: by the caller's word.
            _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) },
        };
        writer.0.push(number, taken.to_vec(), FrameSource { name, ..FrameSource::default() })
    })
}

/// Waits until every frame that was handed over has its fate. The writer stays usable.
///
/// # Safety
/// `writer` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_writer_drain(writer: *mut zazen_writer_t) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let writer = unsafe { live(writer) }?;
        writer.0.check()?;
        writer.0.drain();
        Ok(())
    })
}

/// One of the last few failures, from 0 on: node, frame, reason; NULL if there are no more. Valid
/// until this thread's next call for any writer. Ask before zazen_writer_close, behind
/// zazen_writer_drain if all frames are meant.
///
/// # Safety
/// `writer` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_writer_problem(writer: *const zazen_writer_t, at: u64) -> *const c_char {
    thread_local! {
        static SHOWN: RefCell<CString> = RefCell::default();
    }
    ask(std::ptr::null(), || {
        // SAFETY: by the caller's word.
        let problems = unsafe { writer.as_ref() }?.0.problems();
        let text = problems.get(usize::try_from(at).ok()?)?.replace('\0', " ");
        let text = CString::new(text).ok()?;
        SHOWN.with_borrow_mut(|shown| {
            *shown = text;
            Some(shown.as_ptr())
        })
    })
}

/// Fates so far.
///
/// # Safety
/// `writer` is NULL or live; `counters` is as large as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_writer_counters(
    writer: *const zazen_writer_t,
    counters: *mut zazen_counters_t,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let writer = unsafe { live(writer.cast_mut()) }?;
        if counters.is_null() {
            return Err(invalid("zazen_writer_counters: counters is NULL"));
        }
        // SAFETY: by the caller's word.
        unsafe { zazen_counters_t::from(writer.0.counters()).give(counters) }
    })
}

/// Waits until every frame has its fate, fills `counters` if not NULL, and frees the writer. The
/// writer must not be used afterwards. If `counters->struct_size` is wrong or the writer is NULL,
/// the call fails and frees nothing. Any other failure frees the writer too.
///
/// # Safety
/// `writer` is NULL or live; `counters` is NULL or as large as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_writer_close(
    writer: *mut zazen_writer_t,
    counters: *mut zazen_counters_t,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        unsafe {
            live(writer)?;
            zazen_counters_t::check(counters)?;
        }
        // SAFETY: made by Box::into_raw, by the caller's word not closed before.
        let writer = unsafe { Box::from_raw(writer) };
        let settled = writer.0.finish()?;
        // SAFETY: by the caller's word.
        unsafe { zazen_counters_t::from(settled).give(counters) }
    })
}

/// Drops a writer without waiting: frames in flight may or may not arrive. NULL is ignored.
///
/// # Safety
/// `writer` is NULL or live, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_writer_abandon(writer: *mut zazen_writer_t) {
    // SAFETY: made by Box::into_raw, by the caller's word not closed before.
    ask((), || (!writer.is_null()).then(|| drop(unsafe { Box::from_raw(writer) })))
}

/// # Safety
/// `writer` is NULL or live for as long as the result.
unsafe fn live<'a>(writer: *mut zazen_writer_t) -> Result<&'a zazen_writer_t> {
    // SAFETY: by the caller's word.
    unsafe { writer.as_ref() }.ok_or_else(|| invalid("writer is NULL; open one with zazen_writer_open"))
}
