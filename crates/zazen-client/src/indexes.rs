//! The trajectory indexes of this process: kept in memory, and in its user's cache folder.

use std::sync::Arc;
use zazen_backing::trajectory::Indexes;
use zazen_env::fork::PerProcess;

/// The indexes. A forked child has its own, since a thread of the parent may hold a lock of the
/// parent's.
pub(crate) fn indexes() -> Arc<Indexes> {
    static KNOWN: PerProcess<Arc<Indexes>> = PerProcess::new();
    KNOWN.get_or(|_| Arc::new(Indexes::of_this_user())).clone()
}
