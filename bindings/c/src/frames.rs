//! Reads frames.

use crate::dataset::{live, zazen_dataset_t};
use crate::runset::zazen_runset_t;
use crate::status::{ask, guard, invalid};
use crate::structs::Sized0;
use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock};
use zazen_client::{AnyReader, Frame, Mine, ReadOptions};
use zazen_core::Result;
use zazen_frames::messages::Delivery;

/// A frame in memory. Threads may share it; its bytes live until zazen_frame_free.
pub struct zazen_frame_t {
    frame: Frame,
    path: OnceLock<Option<CString>>,
    container: Option<(CString, u64)>,
}

/// An iteration over frames with read-ahead. Threads may share it; calls run one after the other.
/// In a forked child it fails; begin another iteration there.
pub struct zazen_frames_t {
    /// In a forked child, a thread that does not exist there may hold the lock.
    mine: Mine,
    reader: Mutex<AnyReader>,
}

impl zazen_frames_t {
    fn lock(&self) -> Result<MutexGuard<'_, AnyReader>> {
        self.mine.check("this iteration over frames", "call zazen_frames in this one")?;
        Ok(self.reader.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// How to read; zero in a field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_read_options_t {
    /// sizeof(zazen_read_options_t).
    pub struct_size: usize,
    /// The most bytes that are read ahead (a single larger frame is still read); 0: 256 MiB.
    pub memory_max: u64,
    /// Files in flight; 0: chosen for the node's disk.
    pub readers: u64,
    /// Not 0: do not compare checksums.
    pub unchecked: u64,
    /// Not 0: by ascending number, in about memory_max bytes. 0: in storage order, which is faster.
    pub ordered: u64,
}

// SAFETY: repr(C), size first, plain integers, no padding.
unsafe impl Sized0 for zazen_read_options_t {
    const NAME: &'static str = "zazen_read_options_t";
}

/// Where the frames taken so far came from.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_read_stats_t {
    /// sizeof(zazen_read_stats_t), set by the caller.
    pub struct_size: usize,
    /// From the cache as natives.
    pub native: u64,
    /// From the cache as aliens that were there before.
    pub alien: u64,
    /// Read from the backing store, by the daemon or directly.
    pub backing_reads: u64,
    /// Bytes of all frames.
    pub bytes: u64,
    /// Bad checksums that were found and repaired.
    pub mended: u64,
}

// SAFETY: repr(C), size first, plain integers, no padding.
unsafe impl Sized0 for zazen_read_stats_t {
    const NAME: &'static str = "zazen_read_stats_t";
}

/// Where a frame came from.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum zazen_source_t {
    /// From the node's cache, pushed there by a writer.
    ZAZEN_NATIVE = 0,
    /// From the node's cache, brought there by an earlier miss.
    ZAZEN_ALIEN = 1,
    /// From the backing store, through the daemon.
    ZAZEN_BACKING = 2,
    /// From the backing store, without a daemon.
    ZAZEN_DIRECT = 3,
}

pub(crate) fn text(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}

pub(crate) fn boxed(frame: Frame) -> *mut zazen_frame_t {
    let container = frame.container().and_then(|(path, offset)| Some((text(path)?, offset)));
    Box::into_raw(Box::new(zazen_frame_t { frame, path: OnceLock::new(), container }))
}

/// Reads frame `number`, checked against its checksum. The caller frees `*frame`.
///
/// # Safety
/// `dataset` is NULL or live; `frame` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_read(
    dataset: *mut zazen_dataset_t,
    number: u64,
    frame: *mut *mut zazen_frame_t,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let dataset = unsafe { live(dataset) }?;
        if frame.is_null() {
            return Err(invalid("zazen_read: frame is NULL"));
        }
        let read = dataset.inner.with(|dataset| dataset.read(number))?;
        // SAFETY: by the caller's word.
        unsafe { *frame = boxed(read) };
        Ok(())
    })
}

/// Begins to read the frames of `set` in storage order. `options` may be NULL. The caller closes
/// `*frames`, which stays valid after `set` and `dataset` are freed.
///
/// # Safety
/// `dataset` and `set` are NULL or live; `options` is NULL or as large as it says; `frames` is
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_frames(
    dataset: *mut zazen_dataset_t,
    set: *const zazen_runset_t,
    options: *const zazen_read_options_t,
    frames: *mut *mut zazen_frames_t,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let (dataset, set, options) =
            unsafe { (live(dataset)?, set.as_ref(), zazen_read_options_t::take(options)?) };
        let Some(set) = set.filter(|_| !frames.is_null()) else {
            return Err(invalid("zazen_frames: set or frames is NULL"));
        };
        let (defaults, ordered) = (ReadOptions::default(), options.ordered != 0);
        let options = ReadOptions {
            memory_max: if options.memory_max == 0 { defaults.memory_max } else { options.memory_max },
            readers: (options.readers != 0).then_some(options.readers as usize),
            check: options.unchecked == 0,
        };
        let reader = dataset.inner.with(|dataset| dataset.frames_in((*set.0).clone(), &options, ordered))?;
        // SAFETY: by the caller's word.
        unsafe {
            *frames = Box::into_raw(Box::new(zazen_frames_t {
                mine: Mine::of_this_process(),
                reader: Mutex::new(reader),
            }))
        };
        Ok(())
    })
}

/// The next frame, which the caller frees; `*frame` is NULL at the end. A failure concerns one
/// frame; the iteration can continue.
///
/// # Safety
/// `frames` is NULL or live; `frame` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_next(frames: *mut zazen_frames_t, frame: *mut *mut zazen_frame_t) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let frames = unsafe { reading(frames) }?;
        if frame.is_null() {
            return Err(invalid("zazen_next: frame is NULL"));
        }
        let next = frames.lock()?.next().transpose()?;
        // SAFETY: by the caller's word.
        unsafe { *frame = next.map_or(std::ptr::null_mut(), boxed) };
        Ok(())
    })
}

/// Frames not yet taken; 0 for NULL.
///
/// # Safety
/// `frames` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_frames_remaining(frames: *const zazen_frames_t) -> u64 {
    ask(0, || {
        // SAFETY: by the caller's word.
        let frames = unsafe { frames.as_ref() }?;
        Some(frames.lock().ok()?.remaining())
    })
}

/// Where the frames taken so far came from.
///
/// # Safety
/// `frames` is NULL or live; `stats` is as large as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_frames_stats(
    frames: *const zazen_frames_t,
    stats: *mut zazen_read_stats_t,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let frames = unsafe { reading(frames.cast_mut()) }?;
        if stats.is_null() {
            return Err(invalid("zazen_frames_stats: stats is NULL"));
        }
        let now = frames.lock()?.stats();
        let described = zazen_read_stats_t {
            struct_size: 0,
            native: now.native,
            alien: now.alien,
            backing_reads: now.backing_reads,
            bytes: now.bytes,
            mended: now.mended,
        };
        // SAFETY: by the caller's word.
        unsafe { described.give(stats) }
    })
}

/// Ends an iteration and its read-ahead. Frames taken from it stay valid. NULL is ignored.
///
/// # Safety
/// `frames` is NULL or live, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_frames_close(frames: *mut zazen_frames_t) {
    // SAFETY: made by Box::into_raw, by the caller's word not closed before.
    ask((), || (!frames.is_null()).then(|| drop(unsafe { Box::from_raw(frames) })))
}

/// The frame's number.
///
/// # Safety
/// `frame` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_frame_number(frame: *const zazen_frame_t) -> u64 {
    // SAFETY: by the caller's word.
    ask(0, || Some(unsafe { frame.as_ref() }?.frame.number))
}

/// The frame's bytes, read-only; NULL for NULL.
///
/// # Safety
/// `frame` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_frame_data(frame: *const zazen_frame_t) -> *const c_void {
    // SAFETY: by the caller's word.
    ask(std::ptr::null(), || Some(unsafe { frame.as_ref() }?.frame.bytes().as_ptr().cast()))
}

/// How many bytes the frame has.
///
/// # Safety
/// `frame` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_frame_bytes(frame: *const zazen_frame_t) -> u64 {
    // SAFETY: by the caller's word.
    ask(0, || Some(unsafe { frame.as_ref() }?.frame.bytes().len() as u64))
}

/// Absolute path of a file with exactly the frame's bytes: in the cache if cached, else on the
/// backing store. NULL only if there is none and none can be made. A frame that is a part of a
/// larger file (see zazen_frame_container), or whose file this user may not open, gets a file at
/// the first call. Path and file live as long as the frame.
///
/// # Safety
/// `frame` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_frame_path(frame: *const zazen_frame_t) -> *const c_char {
    ask(std::ptr::null(), || {
        // SAFETY: by the caller's word.
        let frame = unsafe { frame.as_ref() }?;
        let path = frame.path.get_or_init(|| frame.frame.path().and_then(text));
        path.as_ref().map(|path| path.as_ptr())
    })
}

/// Absolute path of the larger file that the frame is a part of. The frame's offset in it goes to
/// `*offset`; `offset` may be NULL. Returns NULL if the frame has a file of its own, or is in no
/// file that this process may open. Lives as long as the frame.
///
/// # Safety
/// `frame` is NULL or live; `offset` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_frame_container(
    frame: *const zazen_frame_t,
    offset: *mut u64,
) -> *const c_char {
    ask(std::ptr::null(), || {
        // SAFETY: by the caller's word.
        let (path, at) = unsafe { frame.as_ref() }?.container.as_ref()?;
        // SAFETY: by the caller's word.
        if let Some(offset) = unsafe { offset.as_mut() } {
            *offset = *at;
        }
        Some(path.as_ptr())
    })
}

/// Where the frame came from.
///
/// # Safety
/// `frame` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_frame_source(frame: *const zazen_frame_t) -> zazen_source_t {
    ask(zazen_source_t::ZAZEN_DIRECT, || {
        // SAFETY: by the caller's word.
        Some(match unsafe { frame.as_ref() }?.frame.delivery {
            Some(Delivery::Native) => zazen_source_t::ZAZEN_NATIVE,
            Some(Delivery::Alien) => zazen_source_t::ZAZEN_ALIEN,
            Some(_) => zazen_source_t::ZAZEN_BACKING,
            None => zazen_source_t::ZAZEN_DIRECT,
        })
    })
}

/// Frees a frame and its bytes; NULL is ignored.
///
/// # Safety
/// `frame` is NULL or live, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_frame_free(frame: *mut zazen_frame_t) {
    // SAFETY: made by Box::into_raw, by the caller's word not freed before.
    ask((), || (!frame.is_null()).then(|| drop(unsafe { Box::from_raw(frame) })))
}

/// # Safety
/// `frames` is NULL or live for as long as the result.
unsafe fn reading<'a>(frames: *mut zazen_frames_t) -> Result<&'a zazen_frames_t> {
    // SAFETY: by the caller's word.
    unsafe { frames.as_ref() }.ok_or_else(|| invalid("frames is NULL; begin with zazen_frames"))
}
