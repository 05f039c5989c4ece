//! A frame on its way from the backing store into a cache.

use crate::backing::Seen;
use crate::node::Disk;
use zazen_core::Origin;
use zazen_store::Put;

/// Times that a source which changes is copied anew.
pub(crate) const TRIES: u32 = 3;
/// Bytes read at once.
pub(crate) const PIECE: usize = 16 << 10;

/// One frame being copied.
pub(crate) struct Fetch {
    pub(crate) number: u64,
    pub(crate) origin: Origin,
    pub(crate) tries: u32,
    /// Once begun: what the source looked like, the put, and how much was copied.
    pub(crate) copying: Option<(Seen, Put<Disk>, usize)>,
}

impl Fetch {
    pub(crate) fn new(number: u64, origin: Origin) -> Fetch {
        Fetch { number, origin, tries: 0, copying: None }
    }
}
