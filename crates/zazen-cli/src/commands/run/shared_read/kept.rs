//! Answers that are kept for all who ask the same: each is fetched once, and those used longest ago
//! make room.
//!
//! Invariant: while one caller fetches an answer, others who want it wait. If the fetch fails, one
//! of those who waited tries again. No lock is held during a fetch.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(super) struct Kept<K, V> {
    state: Mutex<State<K, V>>,
    changed: Condvar,
    bytes_max: usize,
    bytes_of: fn(&K, &V) -> usize,
}

struct State<K, V> {
    /// With the time of the last use.
    answers: HashMap<K, (V, u64)>,
    by_use: BTreeMap<u64, K>,
    under_way: HashSet<K>,
    bytes: usize,
    clock: u64,
}

impl<K: Clone + Eq + Hash, V: Clone> Kept<K, V> {
    pub(super) fn new(bytes_max: usize, bytes_of: fn(&K, &V) -> usize) -> Kept<K, V> {
        let state = State {
            answers: HashMap::new(),
            by_use: BTreeMap::new(),
            under_way: HashSet::new(),
            bytes: 0,
            clock: 0,
        };
        Kept { state: Mutex::new(state), changed: Condvar::new(), bytes_max, bytes_of }
    }

    /// The answer to `key`, by `fetch` if nobody has asked yet. `fetch` also says whether the
    /// answer is to be kept.
    pub(super) fn get<E>(&self, key: &K, fetch: impl FnOnce() -> Result<(V, bool), E>) -> Result<V, E> {
        let mut state = self.state();
        loop {
            if let Some(found) = state.take(key) {
                return Ok(found);
            }
            if state.under_way.insert(key.clone()) {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        // Others go on even if `fetch` panics.
        let _flight = Flight { kept: self, key };
        let (answer, keep) = fetch()?;
        if keep {
            self.put(key.clone(), answer.clone());
        }
        Ok(answer)
    }

    /// Keeps an answer that came by itself.
    pub(super) fn put(&self, key: K, answer: V) {
        let bytes = (self.bytes_of)(&key, &answer);
        if bytes > self.bytes_max {
            return;
        }
        let mut state = self.state();
        state.remove(&key, self.bytes_of);
        while state.bytes + bytes > self.bytes_max {
            let Some((_, oldest)) = state.by_use.first_key_value() else { break };
            let oldest = oldest.clone();
            state.remove(&oldest, self.bytes_of);
        }
        let now = state.tick();
        state.bytes += bytes;
        state.by_use.insert(now, key.clone());
        state.answers.insert(key, (answer, now));
    }

    fn state(&self) -> MutexGuard<'_, State<K, V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash, V: Clone> State<K, V> {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn take(&mut self, key: &K) -> Option<V> {
        let now = self.tick();
        let (answer, used) = self.answers.get_mut(key)?;
        let before = std::mem::replace(used, now);
        let answer = answer.clone();
        if let Some(key) = self.by_use.remove(&before) {
            self.by_use.insert(now, key);
        }
        Some(answer)
    }

    fn remove(&mut self, key: &K, bytes_of: fn(&K, &V) -> usize) {
        if let Some((answer, used)) = self.answers.remove(key) {
            self.by_use.remove(&used);
            self.bytes -= bytes_of(key, &answer);
        }
    }
}

/// An answer that is being fetched.
struct Flight<'a, K: Clone + Eq + Hash, V: Clone> {
    kept: &'a Kept<K, V>,
    key: &'a K,
}

impl<K: Clone + Eq + Hash, V: Clone> Drop for Flight<'_, K, V> {
    fn drop(&mut self) {
        self.kept.state().under_way.remove(self.key);
        self.kept.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn kept(bytes_max: usize) -> Kept<u32, u32> {
        Kept::new(bytes_max, |_, _| 1)
    }

    #[test]
    fn all_who_ask_at_once_get_one_answer() {
        let (kept, asked, together) = (kept(10), AtomicU32::new(0), Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    together.wait();
                    let fetch = || Ok::<_, ()>((asked.fetch_add(1, Ordering::Relaxed) + 7, true));
                    assert_eq!(kept.get(&1, fetch), Ok(7));
                });
            }
        });
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_failure_is_not_kept() {
        let kept = kept(10);
        assert_eq!(kept.get(&1, || Err(5)), Err(5));
        assert_eq!(kept.get(&1, || Ok::<_, i32>((1, false))), Ok(1));
        assert_eq!(kept.get(&1, || Ok::<_, i32>((2, true))), Ok(2));
        assert_eq!(kept.get(&1, || Err(5)), Ok(2));
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let kept = kept(2);
        for key in [1, 2] {
            kept.put(key, key);
        }
        assert_eq!(kept.get(&1, || Err(())), Ok(1));
        kept.put(3, 3);
        assert_eq!([1, 2, 3].map(|key| kept.get(&key, || Err(())).is_ok()), [true, false, true]);
        kept.put(3, 4);
        assert_eq!(kept.state().bytes, 2);
    }
}
