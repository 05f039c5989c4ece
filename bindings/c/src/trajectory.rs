//! What is known of the files that a dataset's frames lie in.

use crate::dataset::{live, zazen_dataset_t};
use crate::status::{ask, guard, invalid};
use crate::structs::Sized0;
use crate::told_trajectory::{Told, zazen_trajectory_t};
use std::ffi::{CString, c_char};
use std::ptr;
use zazen_core::{Error, ErrorKind, Result};

/// The version of a file; times are nanoseconds since the epoch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_blocks_t {
    /// sizeof(zazen_blocks_t), set by the caller.
    pub struct_size: usize,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// When its bytes changed last.
    pub modified_ns: i64,
    /// When anything of it changed last.
    pub changed_ns: i64,
    /// Its inode.
    pub inode: u64,
}

// SAFETY: repr(C), size first, plain integers, no padding.
unsafe impl Sized0 for zazen_blocks_t {
    const NAME: &'static str = "zazen_blocks_t";
}

/// `None`: the frames are not those of trajectory files.
fn kept(dataset: &zazen_dataset_t) -> Result<Option<&Told>> {
    if let Some(kept) = dataset.trajectory.get() {
        return Ok(kept.as_ref());
    }
    let found = dataset.inner.with(|dataset| Ok(dataset.trajectory()))?;
    Ok(dataset.trajectory.get_or_init(|| found.map(Told::new)).as_ref())
}

/// Describes the trajectory files that hold the dataset's frames. ZAZEN_NOT_FOUND if its frames are
/// not those of trajectory files.
///
/// # Safety
/// `dataset` is NULL or live; `trajectory` is as large as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_trajectory(
    dataset: *mut zazen_dataset_t,
    trajectory: *mut zazen_trajectory_t,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let dataset = unsafe { live(dataset) }?;
        if trajectory.is_null() {
            return Err(invalid("zazen_trajectory: trajectory is NULL"));
        }
        let found = kept(dataset)?.ok_or_else(|| {
            let path = dataset.inner.path().display();
            let text = format!("dataset {path}: its frames are not those of trajectory files");
            Error::new(ErrorKind::NotFound, text)
        })?;
        // SAFETY: by the caller's word.
        unsafe { found.described().give(trajectory) }
    })
}

/// The absolute path of trajectory file `at`, from 0 on; NULL if there is none. Lives as long as
/// the dataset.
///
/// # Safety
/// `dataset` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_trajectory_file(dataset: *mut zazen_dataset_t, at: u64) -> *const c_char {
    // SAFETY: by the caller's word.
    unsafe { nth(dataset, at, |kept| &kept.files) }
}

/// What is wrong with the trajectory files, from 0 on, each with its file, frame and byte offset: a
/// frame that is cut or still being written, or that is damaged. The frames before it are good.
/// NULL if there is no more. Lives as long as the dataset.
///
/// # Safety
/// `dataset` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_trajectory_trouble(dataset: *mut zazen_dataset_t, at: u64) -> *const c_char {
    // SAFETY: by the caller's word.
    unsafe { nth(dataset, at, |kept| &kept.troubles) }
}

/// # Safety
/// `dataset` is NULL or live.
unsafe fn nth(dataset: *mut zazen_dataset_t, at: u64, of: fn(&Told) -> &Vec<CString>) -> *const c_char {
    ask(ptr::null(), || {
        // SAFETY: by the caller's word.
        let kept = kept(unsafe { dataset.as_ref() }?).ok()??;
        Some(of(kept).get(usize::try_from(at).ok()?)?.as_ptr())
    })
}

/// Describes the version of the file whose blocks the dataset's frames are. Reads give ZAZEN_STALE
/// once the file looks different. ZAZEN_NOT_FOUND if the frames are not the blocks of a file.
///
/// # Safety
/// `dataset` is NULL or live; `blocks` is as large as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_blocks(dataset: *mut zazen_dataset_t, blocks: *mut zazen_blocks_t) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let dataset = unsafe { live(dataset) }?;
        if blocks.is_null() {
            return Err(invalid("zazen_blocks: blocks is NULL"));
        }
        let found = dataset.inner.blocks().ok_or_else(|| {
            let path = dataset.inner.path().display();
            Error::new(
                ErrorKind::NotFound,
                format!("dataset {path}: its frames are not the blocks of a file"),
            )
        })?;
        let described = zazen_blocks_t {
            struct_size: 0,
            file_bytes: found.version.size,
            modified_ns: found.version.mtime_ns,
            changed_ns: found.version.ctime_ns,
            inode: found.version.inode,
        };
        // SAFETY: by the caller's word.
        unsafe { described.give(blocks) }
    })
}
