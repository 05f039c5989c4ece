//! Random access: many frames at once, frames by name, and whose node holds each frame.

use crate::collectives::zazen_collectives_t;
use crate::dataset::{carrier, live, zazen_dataset_t};
use crate::frames::{boxed, zazen_frame_t};
use crate::runset::zazen_runset_t;
use crate::status::{guard, invalid, needed_text};
use std::ffi::c_char;
use zazen_client::READ_MANY_MAX;
use zazen_core::{Error, ErrorKind};

/// Reads the `count` frames `numbers` in one call, in any order, each as often as it is asked for.
/// `frames[i]` is the frame `numbers[i]`; the caller frees each of them. At most 2^20 numbers.
///
/// `statuses`: NULL, or the status of each frame; where it is not ZAZEN_OK, `frames[i]` is NULL. If
/// `statuses` is NULL and a frame cannot be read, the call fails, names the frame and gives none.
///
/// # Safety
/// `dataset` is NULL or live; `numbers` has `count` readable elements; `frames`, and `statuses` if
/// it is not NULL, have `count` writable ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_read_many(
    dataset: *mut zazen_dataset_t,
    numbers: *const u64,
    count: u64,
    frames: *mut *mut zazen_frame_t,
    statuses: *mut i32,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let dataset = unsafe { live(dataset) }?;
        if count == 0 {
            return Ok(());
        }
        if numbers.is_null() || frames.is_null() {
            return Err(invalid("zazen_read_many: numbers or frames is NULL"));
        }
        let count = usize::try_from(count).ok().filter(|count| *count <= READ_MANY_MAX).ok_or_else(|| {
            let text = format!("zazen_read_many: {count} frames at once; the limit is {READ_MANY_MAX}");
            Error::new(ErrorKind::TooLarge, text)
        })?;
        // SAFETY: by the caller's word; an array of this length fits into memory.
        let numbers = unsafe { std::slice::from_raw_parts(numbers, count) };
        let mut outcomes = dataset.inner.with(|dataset| dataset.read_many(numbers))?;
        if statuses.is_null()
            && let Some(at) = outcomes.iter().position(Result::is_err)
        {
            return outcomes.swap_remove(at).map(drop);
        }
        for (at, outcome) in outcomes.into_iter().enumerate() {
            let (frame, status) = match outcome {
                Ok(frame) => (boxed(frame), 0),
                Err(error) => (std::ptr::null_mut(), -(error.kind() as i32)),
            };
            // SAFETY: by the caller's word, both have `count` elements.
            unsafe {
                *frames.add(at) = frame;
                if !statuses.is_null() {
                    *statuses.add(at) = status;
                }
            }
        }
        Ok(())
    })
}

/// The number of the frame whose file is `name`: a path relative to the dataset, or an absolute
/// path. ZAZEN_NOT_FOUND if no frame has this name, ZAZEN_INVALID_ARGUMENT if the file holds
/// several frames.
///
/// # Safety
/// `dataset` is NULL or live; `name` is NUL-terminated; `number` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_number_of(
    dataset: *mut zazen_dataset_t,
    name: *const c_char,
    number: *mut u64,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let (dataset, name) = unsafe { (live(dataset)?, needed_text(name, "name")?) };
        if number.is_null() {
            return Err(invalid("zazen_number_of: number is NULL"));
        }
        let found = dataset.inner.with(|dataset| dataset.number_of(name))?;
        // SAFETY: by the caller's word.
        unsafe { *number = found };
        Ok(())
    })
}

/// Which node holds which of the frames that exist, at one moment. Collective; alike on all ranks.
/// Nothing is read. A node whose daemon does not answer holds nothing.
///
/// `ranks`: how many ranks there are, and how many elements the arrays have. `node_of_rank[r]`: the
/// index of rank r's node. `held[i]`: the frames that node i holds, which the caller frees; NULL
/// where there are fewer nodes than ranks. `collectives`: as for zazen_assign; NULL: this process
/// alone, with one rank.
///
/// # Safety
/// `dataset` is NULL or live; `collectives` is NULL or as large as it says; the arrays have `ranks`
/// writable elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_holders(
    dataset: *mut zazen_dataset_t,
    collectives: *const zazen_collectives_t,
    ranks: u64,
    node_of_rank: *mut u64,
    held: *mut *mut zazen_runset_t,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let dataset = unsafe { live(dataset) }?;
        if node_of_rank.is_null() || held.is_null() {
            return Err(invalid("zazen_holders: node_of_rank or held is NULL"));
        }
        // SAFETY: by the caller's word.
        let carrier = unsafe { carrier("zazen_holders", collectives, true) }?;
        if carrier.size() as u64 != ranks {
            let text = format!("zazen_holders: there are {} ranks, room is for {ranks}", carrier.size());
            return Err(invalid(text));
        }
        let found = dataset.inner.with(|dataset| dataset.holders(&*carrier))?;
        let mut sets = found.held.into_iter();
        for (rank, node) in found.node_of_rank.iter().enumerate() {
            let set = sets.next().map_or(std::ptr::null_mut(), zazen_runset_t::boxed);
            // SAFETY: by the caller's word there are as many elements as ranks.
            unsafe {
                node_of_rank.add(rank).write(*node as u64);
                held.add(rank).write(set);
            }
        }
        Ok(())
    })
}

/// For each frame that exists, in ascending order (see zazen_extent), the rank whose node holds it,
/// and -1 if no node does. Collective. Nothing is read. A native counts before an alien. If several
/// nodes hold a frame alike, the node with the fewest frames per rank so far owns it; ties go to
/// the node of the lowest rank. The ranks of a node own its frames in contiguous blocks.
///
/// `count`: how many frames exist, and how many elements `owners` has; ZAZEN_TOO_LARGE if there are
/// others. `collectives`: as for zazen_assign; NULL: this process alone.
///
/// # Safety
/// `dataset` is NULL or live; `collectives` is NULL or as large as it says; `owners` has `count`
/// writable elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_owners(
    dataset: *mut zazen_dataset_t,
    collectives: *const zazen_collectives_t,
    owners: *mut i32,
    count: u64,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let dataset = unsafe { live(dataset) }?;
        if owners.is_null() && count > 0 {
            return Err(invalid("zazen_owners: owners is NULL"));
        }
        // SAFETY: by the caller's word.
        let carrier = unsafe { carrier("zazen_owners", collectives, true) }?;
        let (_, found) = dataset.inner.with(|dataset| dataset.owners(&*carrier))?;
        if found.len() as u64 != count {
            let text =
                format!("zazen_owners: {} frames exist, room is for {count}; see zazen_extent", found.len());
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        // SAFETY: by the caller's word, `owners` has as many elements.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), owners, found.len()) };
        Ok(())
    })
}
