//! A list that only grows. It has no lock, so a fork leaves none locked, and a signal's handler
//! waits for none of its own thread.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

pub(crate) struct List<T: 'static>(AtomicPtr<Link<T>>);

struct Link<T: 'static> {
    value: T,
    next: Option<&'static Link<T>>,
}

impl<T: Sync> List<T> {
    pub(crate) const fn new() -> List<T> {
        List(AtomicPtr::new(null_mut()))
    }

    fn newest(&self) -> Option<&'static Link<T>> {
        // SAFETY: NULL, or a link that lives for ever.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// The newest value for which `is_it` holds.
    pub(crate) fn find(&self, mut is_it: impl FnMut(&T) -> bool) -> Option<&'static T> {
        let mut at = self.newest();
        while let Some(link) = at {
            if is_it(&link.value) {
                return Some(&link.value);
            }
            at = link.next;
        }
        None
    }

    /// Adds a value, whatever is there.
    pub(crate) fn add(&self, value: T) {
        self.find_or_add(|_| false, || value);
    }

    /// Adds what `make` gives, unless there is a value for which `is_it` holds. Returns the one
    /// that is there then, and whether it was added.
    pub(crate) fn find_or_add(
        &self,
        is_it: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> (&'static T, bool) {
        if let Some(found) = self.find(&is_it) {
            return (found, false);
        }
        let link = Box::into_raw(Box::new(Link { value: make(), next: None }));
        loop {
            let newest = self.0.load(Ordering::Acquire);
            // Another thread may have added it meanwhile.
            if let Some(found) = self.find(&is_it) {
                // SAFETY: nobody else has it.
                drop(unsafe { Box::from_raw(link) });
                return (found, false);
            }
            // SAFETY: nobody else has `link`; `newest` is NULL or lives for ever.
            unsafe { (*link).next = newest.as_ref() };
            if self.0.compare_exchange(newest, link, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // SAFETY: it lives for ever from now on.
                return (unsafe { &(*link).value }, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_added_once_by_all_threads() {
        static LIST: List<(u32, u32)> = List::new();
        let added = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|threads| {
            for thread in 0..8 {
                let added = &added;
                threads.spawn(move || {
                    for key in 0..500 {
                        let (found, is_new) = LIST.find_or_add(|(known, _)| *known == key, || (key, thread));
                        assert_eq!(found.0, key);
                        added.fetch_add(u32::from(is_new), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(added.into_inner(), 500);
        let mut seen = 0;
        assert!(
            LIST.find(|_| {
                seen += 1;
                false
            })
            .is_none()
        );
        assert_eq!(seen, 500);
        assert!((0..500).all(|key| LIST.find(|(known, _)| *known == key).is_some()));
    }

    #[test]
    fn the_newest_is_found_first() {
        static LIST: List<(u32, u32)> = List::new();
        (0..3).for_each(|value| LIST.add((7, value)));
        assert_eq!(LIST.find(|(key, _)| *key == 7), Some(&(7, 2)));
    }
}
