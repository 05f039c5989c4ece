//! Memory of `zazen_alloc`: by its address, so that C can give it back.

use crate::link::{Failure, Link};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};
use zazen_call::PoolBuffer;
use zazen_env::fork::PerProcess;
use zazen_wire::plugins::status;

static BUFFERS: PerProcess<Mutex<HashMap<usize, PoolBuffer>>> = PerProcess::new();

/// A buffer for calls to `plugin`.
pub(crate) fn allocate(link: &Link, plugin: u32, bytes: u64) -> Result<*mut c_void, Failure> {
    let too_large = |_| Failure::new(status::TOO_LARGE, format!("{bytes} bytes are more than there can be"));
    let bytes = usize::try_from(bytes).map_err(too_large)?;
    if bytes > isize::MAX as usize - (1 << 20) {
        return Err(Failure::new(status::NO_MEMORY, format!("{bytes} bytes are more than there can be")));
    }
    let pool = link.pool_of(plugin)?;
    let mut lane = pool.take().map_err(|error| Failure::new(status::DISCONNECTED, error.to_string()))?;
    let buffer = lane.connection.try_allocate(bytes.max(1));
    pool.give_back(lane);
    let none = || Failure::new(status::NO_MEMORY, format!("{bytes} bytes are not to be had"));
    let mut buffer = buffer.ok_or_else(none)?;
    let start = buffer.as_mut_ptr();
    let mut all = BUFFERS.get().lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(start.addr(), buffer);
    Ok(start.cast())
}

/// Gives back a buffer; one that is none is left alone.
pub(crate) fn free(start: *mut c_void) {
    let buffer = BUFFERS.get().lock().unwrap_or_else(PoisonError::into_inner).remove(&start.addr());
    debug_assert!(buffer.is_some() || start.is_null(), "what is freed was allocated here");
    drop(buffer);
}
