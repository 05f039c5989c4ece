//! The tables of a request, on the stack: which of its buffers lie in the pool.

use crate::parts::Source;
use crate::view::PoolView;
use std::mem::MaybeUninit;
use zazen_wire::shm::{ENTRIES_MAX, ENTRY_BYTES, TableEntry};

/// Bytes that both tables take at most.
pub(crate) const TABLES_BYTES_MAX: usize = 2 * ENTRIES_MAX * ENTRY_BYTES;

/// The table of input, then that of output.
pub(crate) struct Tables {
    entries: [MaybeUninit<[u8; ENTRY_BYTES]>; 2 * ENTRIES_MAX],
    count: usize,
}

impl Tables {
    pub(crate) fn new() -> Tables {
        Tables { entries: [const { MaybeUninit::uninit() }; 2 * ENTRIES_MAX], count: 0 }
    }

    /// Appends a table of `parts` and says how many entries it has: 0, and no table, if no part
    /// lies in the pool or they need too many entries.
    pub(crate) fn name(
        &mut self,
        pool: PoolView,
        parts: impl Iterator<Item = (*const u8, usize)> + Clone,
    ) -> u16 {
        if !parts.clone().any(|(start, bytes)| pool.place(start, bytes).is_some()) {
            return 0;
        }
        let first = self.count;
        let mut carried = 0_u64;
        for (start, bytes) in parts {
            let fits = match pool.place(start, bytes) {
                Some(span) => {
                    let before = std::mem::take(&mut carried);
                    (before == 0 || self.push(first, TableEntry::Data(before)))
                        && self.push(first, TableEntry::Pool(span))
                }
                None => {
                    carried += bytes as u64;
                    true
                }
            };
            if !fits {
                self.count = first;
                return 0;
            }
        }
        if carried > 0 && !self.push(first, TableEntry::Data(carried)) {
            self.count = first;
            return 0;
        }
        (self.count - first) as u16
    }

    /// False: the table that begins at `first` is full.
    fn push(&mut self, first: usize, entry: TableEntry) -> bool {
        if self.count - first == ENTRIES_MAX {
            return false;
        }
        self.entries[self.count].write(entry.encode());
        self.count += 1;
        true
    }

    /// Both, as bytes.
    pub(crate) fn source(&self) -> Source<'_> {
        // SAFETY: the first `count` entries have been written.
        unsafe { Source::from_raw(self.entries.as_ptr().cast(), self.count * ENTRY_BYTES) }
    }
}
