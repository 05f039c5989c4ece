//! One client's table of handles: a small number of the client's stands for a value of the
//! plug-in's.
//!
//! Invariant: a number given out is looked up only with the kind that it was entered with. Numbers
//! begin at 1 and the lowest free one is next, as in the kernel's table of descriptors.

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zazen_wire::plugins::status;

/// Handles of one client, at most.
const HANDLES_MAX: usize = 65_536;
/// The longest kind, in bytes.
const KIND_BYTES_MAX: usize = 31;

#[derive(Default)]
pub(crate) struct Handles(Mutex<Table>);

#[derive(Default)]
struct Table {
    slots: Vec<Option<Handle>>,
    /// No slot before this one is free.
    first_free: usize,
    count: usize,
}

struct Handle {
    kind: [u8; KIND_BYTES_MAX],
    value: i64,
}

fn padded(kind: &CStr) -> Option<[u8; KIND_BYTES_MAX]> {
    let bytes = kind.to_bytes();
    let mut padded = [0; KIND_BYTES_MAX];
    padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(padded)
}

impl Handles {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for `value`; `TOO_LARGE` if the table is full or the kind too long.
    pub(crate) fn enter(&self, kind: &CStr, value: i64) -> Result<i64, i32> {
        let kind = padded(kind).ok_or(status::TOO_LARGE)?;
        let mut table = self.table();
        let first = table.first_free;
        let free = table.slots[first..].iter().position(Option::is_none);
        let at = free.map_or(table.slots.len(), |offset| first + offset);
        if at >= HANDLES_MAX {
            return Err(status::TOO_LARGE);
        }
        if at == table.slots.len() {
            table.slots.push(None);
        }
        table.slots[at] = Some(Handle { kind, value });
        table.first_free = at + 1;
        table.count += 1;
        Ok(at as i64 + 1)
    }

    /// The value of `number`.
    pub(crate) fn get(&self, kind: &CStr, number: i64) -> Result<i64, i32> {
        self.table().find(kind, number).map(|(_, value)| value).ok_or(status::BAD_HANDLE)
    }

    /// The value of `number`, which is free again.
    pub(crate) fn remove(&self, kind: &CStr, number: i64) -> Result<i64, i32> {
        let mut table = self.table();
        let (at, value) = table.find(kind, number).ok_or(status::BAD_HANDLE)?;
        table.slots[at] = None;
        table.first_free = table.first_free.min(at);
        table.count -= 1;
        Ok(value)
    }

    /// Forgets all; how many there were.
    pub(crate) fn clear(&self) -> usize {
        std::mem::take(&mut *self.table()).count
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.table().count
    }
}

impl Table {
    fn find(&self, kind: &CStr, number: i64) -> Option<(usize, i64)> {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        let handle = self.slots.get(at)?.as_ref()?;
        (padded(kind)? == handle.kind).then_some((at, handle.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const KINDS: [&CStr; 2] = [c"file", c"window"];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Against a map that is searched from 1 upwards.
        #[test]
        fn handles_do_what_a_map_does(steps in prop::collection::vec((0..3u8, 0..2usize, 0..12i64), 0..200)) {
            let handles = Handles::default();
            let mut model: BTreeMap<i64, (usize, i64)> = BTreeMap::new();
            for (step, (what, kind, number)) in steps.into_iter().enumerate() {
                let known = model.get(&number).filter(|entry| entry.0 == kind).map(|entry| entry.1);
                match what {
                    0 => {
                        let next = (1..).find(|number| !model.contains_key(number)).unwrap();
                        prop_assert_eq!(handles.enter(KINDS[kind], step as i64), Ok(next));
                        model.insert(next, (kind, step as i64));
                    }
                    1 => prop_assert_eq!(handles.get(KINDS[kind], number), known.ok_or(status::BAD_HANDLE)),
                    _ => {
                        prop_assert_eq!(handles.remove(KINDS[kind], number), known.ok_or(status::BAD_HANDLE));
                        if known.is_some() {
                            model.remove(&number);
                        }
                    }
                }
                prop_assert_eq!(handles.len(), model.len());
            }
        }
    }

    #[test]
    fn the_table_is_bounded_and_kinds_too() {
        let handles = Handles::default();
        for number in 1..=HANDLES_MAX as i64 {
            assert_eq!(handles.enter(c"a", -number), Ok(number));
        }
        assert_eq!(handles.enter(c"a", 0), Err(status::TOO_LARGE));
        assert_eq!(handles.remove(c"a", 77), Ok(-77));
        assert_eq!(handles.enter(c"a", 1), Ok(77));
        assert_eq!(handles.get(c"a", i64::MIN), Err(status::BAD_HANDLE));
        let long = c"a kind of more than thirty-one bytes";
        assert_eq!(Handles::default().enter(long, 0), Err(status::TOO_LARGE));
    }
}
