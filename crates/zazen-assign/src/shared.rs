//! The result of a collective that is equal on all ranks, and what follows from it alone.
//!
//! A driver with several ranks in one process gives all of them the same [`Shared`]. What their
//! machines derive from it is then computed once and held once. A driver with one rank loses
//! nothing.

use std::any::Any;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use zazen_core::Result;

/// A value that all ranks were given by one collective. Clones share it.
#[derive(Debug)]
pub struct Shared<T>(Arc<Held<T>>);

#[derive(Debug)]
struct Held<T> {
    value: T,
    memo: OnceLock<Memo>,
}

/// What was derived first, and from what beside the value.
#[derive(Debug)]
struct Memo {
    before: Option<Arc<dyn Any + Send + Sync>>,
    derived: Arc<dyn Any + Send + Sync>,
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared(self.0.clone())
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Shared<T> {
        Shared(Arc::new(Held { value, memo: OnceLock::new() }))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Shared<T> {
    /// The value itself, without a copy if nobody else holds it.
    pub(crate) fn into_value(self) -> T
    where
        T: Clone,
    {
        Arc::try_unwrap(self.0).map_or_else(|held| held.value.clone(), |held| held.value)
    }

    /// What `make` gives for the value, from the memo if it is there. `make` may use only the
    /// value, what is in `before`, and what all ranks have agreed on. A rank whose `before` is
    /// another object makes its own.
    pub(crate) fn derive<B: Send + Sync + 'static, D: Send + Sync + 'static>(
        &self,
        before: Option<&Arc<B>>,
        make: impl FnOnce(&T) -> Result<D>,
    ) -> Result<Arc<D>> {
        if let Some(derived) = self.memo_of(before) {
            return Ok(derived);
        }
        let derived = Arc::new(make(&self.0.value)?);
        let kept: Option<Arc<dyn Any + Send + Sync>> = match before {
            Some(before) => Some(before.clone()),
            None => None,
        };
        // Another thread may have been faster. Then its memo stays, and both are equal.
        let _ = self.0.memo.set(Memo { before: kept, derived: derived.clone() });
        Ok(self.memo_of(before).unwrap_or(derived))
    }

    fn memo_of<B: Send + Sync + 'static, D: Send + Sync + 'static>(
        &self,
        before: Option<&Arc<B>>,
    ) -> Option<Arc<D>> {
        let memo = self.0.memo.get()?;
        let same = match (&memo.before, before) {
            (None, None) => true,
            (Some(held), Some(given)) => std::ptr::addr_eq(Arc::as_ptr(held), Arc::as_ptr(given)),
            _ => false,
        };
        memo.derived.clone().downcast().ok().filter(|_| same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_made_once_for_those_who_share_the_same_past() {
        let shared = Shared::from(20u64);
        let (past, other) = (Arc::new(1u64), Arc::new(1u64));
        let derive = |from: &Shared<u64>, before: &Arc<u64>| {
            from.derive(Some(before), |value| Ok(value + **before)).unwrap()
        };
        let first = derive(&shared, &past);
        assert_eq!(*first, 21);
        assert!(Arc::ptr_eq(&first, &derive(&shared.clone(), &past)));
        assert!(!Arc::ptr_eq(&first, &derive(&shared, &other)), "another past");
        assert!(!Arc::ptr_eq(&first, &derive(&Shared::from(20), &past)), "another collective");
        let typed: Arc<String> = shared.derive(Some(&past), |value| Ok(value.to_string())).unwrap();
        assert_eq!(*typed, "20", "another type");
    }
}
