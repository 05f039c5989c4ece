//! Paths of frames, without their bytes.

use crate::dataset::{live, zazen_dataset_t};
use crate::frames::{boxed, text, zazen_frame_t};
use crate::runset::zazen_runset_t;
use crate::status::{ask, guard, invalid};
use std::ffi::{CString, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zazen_client::{FrameLocation, Mine, PlaceReader};
use zazen_core::{Error, ErrorKind, Result};

/// An iteration over the paths of frames. One thread at a time. In a forked child it fails; begin
/// another iteration there.
pub struct zazen_paths_t {
    /// In a forked child, a thread that does not exist there may hold the lock.
    mine: Mine,
    inner: Mutex<Inner>,
}

struct Inner {
    places: PlaceReader,
    /// The path that was given last.
    shown: CString,
}

impl zazen_paths_t {
    fn lock(&self) -> Result<MutexGuard<'_, Inner>> {
        self.mine.check("this iteration over paths", "call zazen_paths in this one")?;
        Ok(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Begins to find the files of the frames of `set`, in storage order, without reading them: for
/// programs that map large files, or hand their paths on. The caller closes `*paths`, which stays
/// valid after `set` and `dataset` are freed.
///
/// # Safety
/// `dataset` and `set` are NULL or live; `paths` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_paths(
    dataset: *mut zazen_dataset_t,
    set: *const zazen_runset_t,
    paths: *mut *mut zazen_paths_t,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let (dataset, set) = unsafe { (live(dataset)?, set.as_ref()) };
        let Some(set) = set.filter(|_| !paths.is_null()) else {
            return Err(invalid("zazen_paths: set or paths is NULL"));
        };
        let places = dataset.inner.with(|dataset| dataset.places((*set.0).clone()))?;
        let inner = Mutex::new(Inner { places, shown: CString::default() });
        let begun = zazen_paths_t { mine: Mine::of_this_process(), inner };
        // SAFETY: by the caller's word.
        unsafe { *paths = Box::into_raw(Box::new(begun)) };
        Ok(())
    })
}

/// The next frame's number and the absolute path of a file with exactly its bytes; `*path` is NULL
/// at the end. The path is valid until the next call for `paths`, or until that is closed. A
/// failure concerns one frame; the iteration can continue.
///
/// `*frame` is NULL if the frame is a whole file: the cached one, or its source if it is not cached
/// and cannot be. Its bytes were neither read nor checked. The cache may evict the file later; an
/// open file stays readable. A frame that is a part of a larger file, or whose file this user may
/// not open, is read, and its file lives as long as `*frame`, which the caller frees.
///
/// # Safety
/// `paths` is NULL or live; `number`, `path` and `frame` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_paths_next(
    paths: *mut zazen_paths_t,
    number: *mut u64,
    path: *mut *const c_char,
    frame: *mut *mut zazen_frame_t,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let paths =
            unsafe { paths.as_ref() }.ok_or_else(|| invalid("paths is NULL; begin with zazen_paths"))?;
        if number.is_null() || path.is_null() || frame.is_null() {
            return Err(invalid("zazen_paths_next: number, path or frame is NULL"));
        }
        let mut inner = paths.lock()?;
        let (at, shown, read) = match inner.places.next() {
            None => (0, None, None),
            Some((at, place)) => match place? {
                FrameLocation::File(file) => (at, Some(text(&file)), None),
                FrameLocation::Read(read) => (at, Some(read.path().and_then(text)), Some(read)),
            },
        };
        let shown = match shown {
            None => None,
            Some(Some(found)) => Some(found),
            Some(None) => {
                let text = format!("frame {at}: no file can be made of its bytes; read it with zazen_read");
                return Err(Error::new(ErrorKind::Io, text));
            }
        };
        let is_end = shown.is_none();
        inner.shown = shown.unwrap_or_default();
        // SAFETY: by the caller's word.
        unsafe {
            *number = at;
            *path = if is_end { std::ptr::null() } else { inner.shown.as_ptr() };
            *frame = read.map_or(std::ptr::null_mut(), boxed);
        }
        Ok(())
    })
}

/// Frames whose paths were not given yet; 0 for NULL.
///
/// # Safety
/// `paths` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_paths_remaining(paths: *const zazen_paths_t) -> u64 {
    ask(0, || {
        // SAFETY: by the caller's word.
        let paths = unsafe { paths.as_ref() }?;
        Some(paths.lock().ok()?.places.remaining())
    })
}

/// Ends an iteration over paths. NULL is ignored.
///
/// # Safety
/// `paths` is NULL or live, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_paths_close(paths: *mut zazen_paths_t) {
    // SAFETY: made by Box::into_raw, by the caller's word not closed before.
    ask((), || (!paths.is_null()).then(|| drop(unsafe { Box::from_raw(paths) })))
}
