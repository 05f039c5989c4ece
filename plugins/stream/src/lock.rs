//! Locking.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. After a panic elsewhere the counters are still consistent enough to continue.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
