//! What of the byte budget one user may take in ways that eviction cannot undo: frames that it is
//! still sending.
//!
//! Invariant: operators have no bounds here; a share is given back when it is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_core::Result;
use zazen_frames::shares;

/// The bytes that each user's unfinished pushes announce.
#[derive(Default)]
pub struct Unfinished(Mutex<shares::Unfinished>);

/// A push's part of them, until dropped.
pub struct UnfinishedShare {
    all: Arc<Unfinished>,
    uid: u32,
    bytes: u64,
}

impl Unfinished {
    fn held(&self) -> MutexGuard<'_, shares::Unfinished> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A share for a push of `bytes` of user `uid`; `NoSpace` where its pushes come to more than
    /// its part of `budget`.
    pub fn take(self: &Arc<Unfinished>, uid: u32, bytes: u64, budget: u64) -> Result<UnfinishedShare> {
        self.held().take(uid, bytes, budget)?;
        Ok(UnfinishedShare { all: self.clone(), uid, bytes })
    }
}

impl Drop for UnfinishedShare {
    fn drop(&mut self) {
        self.all.held().give(self.uid, self.bytes);
    }
}
