//! `zazen_runset_t`: a set of frame numbers.

use crate::status::{ask, guard, invalid};
use std::sync::Arc;
use zazen_core::{Run, RunSet};

/// The numbers first, first + step, … (count of them); count and step are at least 1.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct zazen_run_t {
    /// The first number.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// The distance between neighbours.
    pub step: u64,
}

/// An immutable set of frame numbers, held as runs. Threads may share it.
pub struct zazen_runset_t(pub(crate) Arc<RunSet>);

/// An iteration over the runs of a set. One thread at a time.
pub struct zazen_runs_t(Box<dyn Iterator<Item = Run> + Send>);

impl zazen_runset_t {
    pub(crate) fn boxed(set: RunSet) -> *mut zazen_runset_t {
        Box::into_raw(Box::new(zazen_runset_t(Arc::new(set))))
    }
}

/// Makes the union of `count` runs, in any order, overlapping or not. The caller frees `*set`.
///
/// # Safety
/// `runs` points to `count` runs (or `count` is 0); `set` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_runset_from_runs(
    runs: *const zazen_run_t,
    count: usize,
    set: *mut *mut zazen_runset_t,
) -> i32 {
    guard(|| {
        if set.is_null() || (runs.is_null() && count > 0) {
            return Err(invalid("zazen_runset_from_runs: runs or set is NULL"));
        }
        // SAFETY: by the caller's word; a null pointer is not made into a slice.
        let runs = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(runs, count) } };
        let checked: zazen_core::Result<Vec<Run>> =
            runs.iter().map(|run| Run::new(run.first, run.count, run.step)).collect();
        // SAFETY: by the caller's word.
        unsafe { *set = zazen_runset_t::boxed(RunSet::checked_from_runs(checked?)?) };
        Ok(())
    })
}

/// How many numbers are in `set`; 0 for NULL.
///
/// # Safety
/// `set` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_runset_len(set: *const zazen_runset_t) -> u64 {
    // SAFETY: by the caller's word.
    ask(0, || Some(unsafe { set.as_ref() }?.0.len()))
}

/// Whether `number` is in `set`: 1 or 0.
///
/// # Safety
/// `set` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_runset_contains(set: *const zazen_runset_t, number: u64) -> i32 {
    // SAFETY: by the caller's word.
    ask(0, || Some(i32::from(unsafe { set.as_ref() }?.0.contains(number))))
}

/// Writes the numbers from the `rank`-th smallest on (0 is the smallest) to `numbers`, at most
/// `capacity` of them. Returns how many; fewer than `capacity` means that the set ends there.
///
/// # Safety
/// `set` is NULL or live; `numbers` has room for `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_runset_numbers(
    set: *const zazen_runset_t,
    rank: u64,
    numbers: *mut u64,
    capacity: usize,
) -> usize {
    ask(0, || {
        // SAFETY: by the caller's word.
        let set = unsafe { set.as_ref() }?;
        if numbers.is_null() {
            return None;
        }
        let block = set.0.block(rank, capacity as u64);
        let mut written = 0;
        for number in block.iter().take(capacity) {
            // SAFETY: `written < capacity`, for which there is room.
            unsafe { numbers.add(written).write(number) };
            written += 1;
        }
        Some(written)
    })
}

/// Makes the union of two sets. The caller frees `*set`.
///
/// # Safety
/// `one` and `other` are NULL or live; `set` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_runset_union(
    one: *const zazen_runset_t,
    other: *const zazen_runset_t,
    set: *mut *mut zazen_runset_t,
) -> i32 {
    // SAFETY: by the caller's word.
    unsafe { combine("zazen_runset_union", one, other, set, RunSet::union) }
}

/// Makes the set of the numbers that are in both sets. The caller frees `*set`.
///
/// # Safety
/// `one` and `other` are NULL or live; `set` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_runset_intersection(
    one: *const zazen_runset_t,
    other: *const zazen_runset_t,
    set: *mut *mut zazen_runset_t,
) -> i32 {
    // SAFETY: by the caller's word.
    unsafe { combine("zazen_runset_intersection", one, other, set, RunSet::intersection) }
}

/// Makes the set of the numbers of `one` that are not in `other`. The caller frees `*set`.
///
/// # Safety
/// `one` and `other` are NULL or live; `set` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_runset_difference(
    one: *const zazen_runset_t,
    other: *const zazen_runset_t,
    set: *mut *mut zazen_runset_t,
) -> i32 {
    // SAFETY: by the caller's word.
    unsafe { combine("zazen_runset_difference", one, other, set, RunSet::difference) }
}

/// # Safety
/// `one` and `other` are NULL or live; `set` is writable.
unsafe fn combine(
    call: &str,
    one: *const zazen_runset_t,
    other: *const zazen_runset_t,
    set: *mut *mut zazen_runset_t,
    how: fn(&RunSet, &RunSet) -> RunSet,
) -> i32 {
    guard(|| {
        // SAFETY: by the caller's word.
        let (one, other) = unsafe { (one.as_ref(), other.as_ref()) };
        let (Some(one), Some(other), false) = (one, other, set.is_null()) else {
            return Err(invalid(format!("{call}: a set is NULL")));
        };
        let made = zazen_runset_t::boxed(how(&one.0, &other.0));
        // SAFETY: by the caller's word.
        unsafe { *set = made };
        Ok(())
    })
}

/// Begins an iteration over the disjoint runs of `set`, ascending by first number; NULL for NULL.
/// The caller frees the iteration, which stays valid after `set` is freed.
///
/// # Safety
/// `set` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_runset_runs(set: *const zazen_runset_t) -> *mut zazen_runs_t {
    ask(std::ptr::null_mut(), || {
        // SAFETY: by the caller's word.
        let runs = RunSet::clone(&unsafe { set.as_ref() }?.0).into_runs();
        Some(Box::into_raw(Box::new(zazen_runs_t(Box::new(runs)))))
    })
}

/// Writes the next run to `*run` and returns 1, or returns 0 at the end.
///
/// # Safety
/// `runs` is NULL or live; `run` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_runs_next(runs: *mut zazen_runs_t, run: *mut zazen_run_t) -> i32 {
    ask(0, || {
        if run.is_null() {
            return None;
        }
        // SAFETY: by the caller's word.
        let next = unsafe { runs.as_mut() }?.0.next()?;
        // SAFETY: by the caller's word.
        unsafe { run.write(zazen_run_t { first: next.first, count: next.count, step: next.step }) };
        Some(1)
    })
}

/// Ends an iteration over runs; NULL is ignored.
///
/// # Safety
/// `runs` is NULL or live, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_runs_free(runs: *mut zazen_runs_t) {
    // SAFETY: made by Box::into_raw, by the caller's word not freed before.
    ask((), || (!runs.is_null()).then(|| drop(unsafe { Box::from_raw(runs) })))
}

/// Frees a set; NULL is ignored.
///
/// # Safety
/// `set` is NULL or live, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_runset_free(set: *mut zazen_runset_t) {
    // SAFETY: made by Box::into_raw, by the caller's word not freed before.
    ask((), || (!set.is_null()).then(|| drop(unsafe { Box::from_raw(set) })))
}
