//! The arithmetic of a cache's byte budget.
//!
//! Invariant: used + reserved never exceeds the budget by a put: what a put uses is reserved before
//! it is written, for the whole frame at once or step by step. All sizes are counted in blocks of 4
//! KiB, as a file system gives them.

/// Bytes that a file of `bytes` takes.
pub fn on_disk(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

/// What a put may add beside its frame: a page each of a log, the names file, the dataset's state
/// and the registry, and the tails of a segment.
pub const PUT_OVERHEAD: u64 = 8 * 4096;
/// Room that a frame whose bytes come from elsewhere gets at a time, once bytes for it are there.
pub const STEP_BYTES: u64 = 4 << 20;

/// The account of one cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes that the cache may use.
    pub budget: u64,
    /// Bytes of the file system that stay free.
    pub floor: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes promised to puts under way.
    pub reserved: u64,
    /// Of the reserved bytes, those that lie in unfinished files: the file system counts them
    /// already.
    pub landed: u64,
}

impl Account {
    /// Reserves `bytes` where the file system has `free`; else says how many bytes are missing.
    pub fn reserve(&mut self, bytes: u64, free: u64) -> Result<(), u64> {
        let wanted = self.used.saturating_add(self.reserved).saturating_add(bytes);
        let budget_short = wanted.saturating_sub(self.budget);
        let not_landed = self.reserved.saturating_sub(self.landed);
        let floor_short = self.floor.saturating_add(not_landed).saturating_add(bytes).saturating_sub(free);
        match budget_short.max(floor_short) {
            0 => {
                self.reserved += bytes;
                Ok(())
            }
            short => Err(short),
        }
    }

    /// So many of the reserved bytes have been written to an unfinished file.
    pub fn land(&mut self, bytes: u64) {
        self.landed += bytes;
    }

    /// Gives back `bytes` of what is reserved, `landed` of them in an unfinished file.
    pub fn release(&mut self, bytes: u64, landed: u64) {
        self.reserved = self.reserved.saturating_sub(bytes);
        self.landed = self.landed.saturating_sub(landed);
    }

    /// Something that took `before` takes `after` now.
    pub fn settle(&mut self, before: u64, after: u64) {
        self.used = self.used.saturating_add(after).saturating_sub(before);
    }
}

/// What a put of `length` bytes reserves before its first byte: all that it needs, or nothing yet
/// where the bytes come from elsewhere (`gradually`) and are many. What can never have room is
/// asked for at once, so that it is refused at once.
pub fn first_step(length: u64, gradually: bool, budget: u64) -> u64 {
    let whole = on_disk(length) + PUT_OVERHEAD;
    match gradually && length > STEP_BYTES && whole <= budget {
        true => 0,
        false => whole,
    }
}

/// What a put of `length` bytes that has `reserved` bytes must reserve in addition before it is
/// `written` bytes long.
pub fn next_step(length: u64, written: u64, reserved: u64) -> u64 {
    let whole = on_disk(length) + PUT_OVERHEAD;
    let needed = on_disk(written) + PUT_OVERHEAD;
    match needed > reserved {
        true => needed.max(reserved + STEP_BYTES).min(whole) - reserved,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn budget_and_floor_both_bound() {
        let mut account = Account { budget: 100, floor: 10, ..Account::default() };
        assert_eq!(account.reserve(60, 1000), Ok(()));
        assert_eq!(account.reserve(60, 1000), Err(20), "the budget");
        assert_eq!(account.reserve(30, 75), Err(25), "the floor, beside what is reserved");
        account.land(60);
        assert_eq!(account.reserve(30, 40), Ok(()), "what has landed is in the free bytes already");
        account.release(60, 60);
        account.settle(0, 60);
        assert_eq!((account.used, account.reserved, account.landed), (60, 30, 0));
        assert!(account.reserve(u64::MAX, 40).is_err(), "nothing overflows");
    }

    proptest! {
        /// However the bytes of a put come, what is written is reserved, and never more than the
        /// whole needs.
        #[test]
        fn what_is_written_is_reserved(
            length in 0u64..64 << 20, gradually: bool, budget in 0u64..128 << 20,
            chunks in prop::collection::vec(1u64..3 << 20, 0..40),
        ) {
            let whole = on_disk(length) + PUT_OVERHEAD;
            let mut reserved = first_step(length, gradually, budget);
            prop_assert!(reserved == whole || (gradually && reserved == 0));
            let mut written = 0;
            for chunk in chunks {
                written = (written + chunk).min(length);
                let step = next_step(length, written, reserved);
                prop_assert!(step == 0 || step >= STEP_BYTES || reserved + step == whole || reserved == 0);
                reserved += step;
                prop_assert!(on_disk(written) + PUT_OVERHEAD <= reserved && reserved <= whole);
            }
        }

        /// Puts come, land and end in any order: a put never takes used + reserved beyond the
        /// budget, nor the file system below its floor.
        #[test]
        fn no_put_exceeds_the_bounds(
            budget in 0u64..200, floor in 0u64..50, disk in 0u64..300,
            steps in prop::collection::vec((0u8..4, 0u64..60, any::<prop::sample::Index>()), 0..80)
        ) {
            let mut account = Account { budget, floor, ..Account::default() };
            // (reserved, landed) of puts under way; bytes of files that are whole.
            let mut puts: Vec<(u64, u64)> = Vec::new();
            let mut files: Vec<u64> = Vec::new();
            for (what, bytes, at) in steps {
                let on_disk = files.iter().sum::<u64>() + puts.iter().map(|put| put.1).sum::<u64>();
                let free = disk.saturating_sub(on_disk);
                match what {
                    0 if account.reserve(bytes, free).is_ok() => {
                        puts.push((bytes, 0));
                        prop_assert!(account.used + account.reserved <= budget || bytes == 0);
                        let to_come: u64 = puts.iter().map(|put| put.0 - put.1).sum();
                        prop_assert!(free >= floor + to_come || to_come == 0);
                    }
                    1 if !puts.is_empty() => {
                        let at = at.index(puts.len());
                        let landing = bytes.min(puts[at].0 - puts[at].1);
                        puts[at].1 += landing;
                        account.land(landing);
                    }
                    2 if !puts.is_empty() => {
                        let (reserved, landed) = puts.remove(at.index(puts.len()));
                        account.settle(0, landed);
                        account.release(reserved, landed);
                        files.push(landed);
                    }
                    3 if !files.is_empty() => {
                        let gone = files.remove(at.index(files.len()));
                        account.settle(gone, 0);
                    }
                    _ => {}
                }
                prop_assert_eq!(account.used, files.iter().sum::<u64>());
                prop_assert_eq!(account.reserved, puts.iter().map(|put| put.0).sum::<u64>());
                prop_assert_eq!(account.landed, puts.iter().map(|put| put.1).sum::<u64>());
            }
        }
    }
}
