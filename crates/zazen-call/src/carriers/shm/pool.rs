//! Memory for bulk bytes that a client fills or reads in place: from its connection's shared region
//! if there is one, else from the heap.

use crate::carriers::shm::region::Region;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_wire::shm::{Offer, Span};

/// Alignment of every buffer.
pub const POOL_ALIGN: usize = 4096;

/// A buffer, aligned to a page, given back when dropped. [`crate::Connection::exchange`] does not
/// copy it on the connection (or lane) that it came from. Elsewhere it is memory like any other.
pub struct PoolBuffer {
    start: NonNull<u8>,
    length: usize,
    home: Home,
}

enum Home {
    Heap(Layout),
    Pool(Arc<ClientPool>, Span),
}

/// The smallest piece of the pool.
const CLASS_BYTES_MIN: u64 = 4096;
/// Smaller pieces are cut from slabs of this size.
const SLAB_BYTES: u64 = 1 << 20;
/// Free bytes, in slabs and larger, that a client keeps for its next buffers; the rest goes back to
/// the daemon.
const KEPT_BYTES_MAX: u64 = 8 << 20;

/// A caller's region as the client has it: shared by its lanes and buffers.
pub(crate) struct ClientPool {
    pub(crate) region: Arc<Region>,
    pub(crate) region_bytes: u64,
    /// Tells the regions of one daemon apart.
    pub(crate) number: u64,
    pub(crate) span: Span,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Free pieces by size class (a power of two).
    free: BTreeMap<u64, Vec<u64>>,
    /// Sizes of the daemon's grants, by place. Pieces of a slab are not in it.
    grants: BTreeMap<u64, u64>,
}

impl ClientPool {
    pub(crate) fn new(offer: &Offer, region: Region) -> Arc<ClientPool> {
        Arc::new(ClientPool {
            region: Arc::new(region),
            region_bytes: offer.region_bytes,
            number: offer.region,
            span: offer.pool,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn class(length: usize) -> u64 {
        (length as u64).max(CLASS_BYTES_MIN).next_power_of_two()
    }

    /// A buffer from earlier grants, if one is free.
    pub(crate) fn take(self: &Arc<ClientPool>, length: usize) -> Option<PoolBuffer> {
        if length as u64 > self.span.bytes {
            return None;
        }
        let class = ClientPool::class(length);
        let at = self.state().free.get_mut(&class)?.pop()?;
        let span = Span { at, bytes: class };
        let start = NonNull::new(self.region.pointer(span))?;
        Some(PoolBuffer { start, length, home: Home::Pool(Arc::clone(self), span) })
    }

    /// How many bytes to ask the daemon for, if a buffer of `length` is wanted and none is free.
    pub(crate) fn wants(length: usize) -> u64 {
        ClientPool::class(length).max(SLAB_BYTES)
    }

    /// Adds the daemon's grant for a buffer of `length`.
    pub(crate) fn stock(&self, grant: Span, length: usize) -> bool {
        let class = ClientPool::class(length);
        if !self.span.holds(grant) || grant.bytes < class {
            return false;
        }
        let piece = if class < SLAB_BYTES { class } else { grant.bytes };
        let mut state = self.state();
        if piece >= SLAB_BYTES {
            state.grants.insert(grant.at, grant.bytes);
            state.free.entry(class).or_default().push(grant.at);
        } else {
            let pieces = (0..grant.bytes / piece).rev().map(|nth| grant.at + nth * piece);
            state.free.entry(piece).or_default().extend(pieces);
        }
        drop(state);
        self.region.populate(grant);
        true
    }

    /// A free span to give back to the daemon, if the client keeps more than it should.
    pub(crate) fn surplus(&self) -> Option<Span> {
        let mut state = self.state();
        let large = state.free.range(SLAB_BYTES..);
        let kept: u64 = large.map(|(class, free)| class * free.len() as u64).sum();
        if kept <= KEPT_BYTES_MAX {
            return None;
        }
        let at = state.free.range_mut(SLAB_BYTES..).rev().find_map(|(_, free)| free.pop())?;
        let bytes = state.grants.remove(&at)?;
        Some(Span { at, bytes })
    }

    fn put_back(&self, span: Span) {
        self.state().free.entry(span.bytes).or_default().push(span.at);
    }
}

// SAFETY: a buffer owns its bytes alone, wherever they are.
unsafe impl Send for PoolBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for PoolBuffer {}

impl PoolBuffer {
    /// `length` zeroed bytes from the heap; `None` if they are not to be had.
    pub(crate) fn try_on_heap(length: usize) -> Option<PoolBuffer> {
        let layout = Layout::from_size_align(length.max(1), POOL_ALIGN).ok()?;
        // SAFETY: the layout's size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(PoolBuffer { start, length, home: Home::Heap(layout) })
    }

    /// [`PoolBuffer::try_on_heap`] for lengths that the program itself chose: ends the program if
    /// there is no memory.
    pub(crate) fn on_heap(length: usize) -> PoolBuffer {
        let Some(buffer) = PoolBuffer::try_on_heap(length) else {
            match Layout::from_size_align(length.max(1), POOL_ALIGN) {
                Ok(layout) => handle_alloc_error(layout),
                Err(_) => panic!("a buffer of {length} bytes is larger than the address space"),
            }
        };
        buffer
    }

    /// Whether it lies in a region shared with the daemon, so that it travels without a copy.
    pub fn is_shared(&self) -> bool {
        match self.home {
            Home::Heap(_) => false,
            Home::Pool(..) => true,
        }
    }
}

impl Deref for PoolBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer owns `length` initialised bytes from `start`; of a shared one the
        // daemon, which the client trusts, writes only what it was given as output in a call, and
        // then `exchange` holds it mutably.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for PoolBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the reference to `self` is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        match &self.home {
            // SAFETY: allocated with this layout, and nobody has it any more.
            Home::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), *layout) },
            Home::Pool(pool, span) => pool.put_back(*span),
        }
    }
}

impl std::fmt::Debug for PoolBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolBuffer({} bytes, shared: {})", self.length, self.is_shared())
    }
}
