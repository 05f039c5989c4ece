//! Where lanes and pool lie in a region, and whether a mapping is safe to use.

use crate::Broken;
use zazen_wire::shm::{LanePlaces, Span};

/// The pool begins on a boundary of the processor's large pages.
const POOL_ALIGN: u64 = 2 << 20;
/// The memfd can't shrink and can't grow: `F_SEAL_SHRINK` and `F_SEAL_GROW` of the kernel's.
const SEALS: u32 = 0x2 | 0x4;

/// How a region is cut up: `lanes` lanes of one size, then the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Lanes in the region.
    pub lanes: u64,
    /// Slots of each ring: a power of two.
    pub slots: u32,
    /// Bytes of each eager buffer: whole pages.
    pub eager_bytes: u32,
    /// Bytes of the pool.
    pub pool_bytes: u64,
}

impl Geometry {
    /// Where the parts of lane `nth` are.
    pub fn lane(&self, nth: u64) -> LanePlaces {
        let first = LanePlaces { at: 0, slots: self.slots, eager_bytes: self.eager_bytes };
        LanePlaces { at: nth * first.span().bytes, ..first }
    }

    /// Where the pool is.
    pub fn pool(&self) -> Span {
        let at = (self.lanes * self.lane(0).span().bytes).next_multiple_of(POOL_ALIGN);
        Span { at, bytes: self.pool_bytes }
    }

    /// Bytes of the whole region.
    pub fn region_bytes(&self) -> u64 {
        self.pool().at + self.pool_bytes
    }
}

/// Whether a memfd with these seals and this length can be mapped as a region of `region_bytes`: an
/// access beyond the end of a file that shrinks would kill the process.
pub fn check_mapping(seals: u32, length: i64, region_bytes: u64) -> Result<(), Broken> {
    if seals & SEALS != SEALS {
        return Err(Broken("the region that it offers is not sealed"));
    }
    if u64::try_from(length) != Ok(region_bytes) {
        return Err(Broken("the region that it offers has another length than it says"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_and_pool_lie_apart_and_fill_the_region() {
        for (lanes, eager_bytes, pool_bytes) in
            [(1, 4096, 1 << 20), (8, 64 << 10, 32 << 20), (64, 16 << 20, 1 << 30)]
        {
            let region = Geometry { lanes, slots: 64, eager_bytes, pool_bytes };
            let mut end = 0;
            for nth in 0..lanes {
                let lane = region.lane(nth).span();
                assert_eq!((lane.at, lane.at % 4096), (end, 0));
                end = lane.end().unwrap();
            }
            let pool = region.pool();
            assert!(pool.at >= end && pool.at - end < POOL_ALIGN && pool.at.is_multiple_of(POOL_ALIGN));
            assert_eq!(pool.end(), Some(region.region_bytes()));
        }
    }

    #[test]
    fn a_region_that_could_shrink_is_not_mapped() {
        assert_eq!(check_mapping(0x7, 4096, 4096), Ok(()));
        for (seals, length) in [(0, 4096), (0x2, 4096), (0x4, 4096), (0x6, 4095), (0x6, -1)] {
            assert!(check_mapping(seals, length, 4096).is_err(), "{seals} {length}");
        }
    }
}
