//! Structs that C allocates. Each begins with its size as of the caller's compilation.

use crate::status::invalid;
use zazen_core::Result;

/// A C struct whose first field is `struct_size: usize`, all of whose fields may be zero.
///
/// # Safety
/// The implementor is `repr(C)`, begins with a `usize`, is valid for all-zero bytes, and has no
/// padding whose value could matter.
pub(crate) unsafe trait Sized0: Copy {
    /// Its C name.
    const NAME: &'static str;

    /// The struct that the caller passed. Missing fields are zero, which means the default. NULL:
    /// all zero.
    ///
    /// # Safety
    /// `given` is NULL or points to `struct_size` readable bytes.
    unsafe fn take(given: *const Self) -> Result<Self> {
        // SAFETY: zeroes are valid by the trait's contract.
        let mut taken: Self = unsafe { std::mem::zeroed() };
        if given.is_null() {
            return Ok(taken);
        }
        // SAFETY: a struct has its size field at least; it comes first.
        let size = unsafe { given.cast::<usize>().read() };
        check_size::<Self>(size)?;
        let known = size.min(size_of::<Self>());
        // SAFETY: `size` bytes are readable by the caller's word; `known` fits both.
        unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut taken).cast::<u8>(), known) };
        // SAFETY: as above; these are bytes that a newer caller knows and this library does not.
        let unknown = unsafe { std::slice::from_raw_parts(given.cast::<u8>().add(known), size - known) };
        if unknown.iter().any(|byte| *byte != 0) {
            return Err(invalid(format!(
                "{} sets fields that this libzazen does not know; use a newer libzazen",
                Self::NAME
            )));
        }
        Ok(taken)
    }

    /// Fills the caller's struct up to its size; NULL is skipped. Fails without effect if the size
    /// is wrong.
    ///
    /// # Safety
    /// `into` is NULL or points to `struct_size` writable bytes.
    unsafe fn give(mut self, into: *mut Self) -> Result<()> {
        // SAFETY: by the caller's word.
        unsafe { Self::check(into) }?;
        if into.is_null() {
            return Ok(());
        }
        // SAFETY: the size field comes first in both.
        let known = unsafe {
            let size = into.cast::<usize>().read();
            (&raw mut self).cast::<usize>().write(size);
            size.min(size_of::<Self>())
        };
        // SAFETY: `known` bytes are there in both.
        unsafe { std::ptr::copy_nonoverlapping((&raw const self).cast::<u8>(), into.cast::<u8>(), known) };
        Ok(())
    }

    /// Whether [`Sized0::give`] will accept `into`. Call this before anything has an effect.
    ///
    /// # Safety
    /// As for `give`.
    unsafe fn check(into: *mut Self) -> Result<()> {
        // SAFETY: a struct has its size field at least; it comes first.
        if into.is_null() { Ok(()) } else { check_size::<Self>(unsafe { into.cast::<usize>().read() }) }
    }
}

/// Far above any struct here: a larger size is an uninitialised field.
const SIZE_MAX: usize = 4096;

fn check_size<T: Sized0>(size: usize) -> Result<()> {
    if (size_of::<usize>()..=SIZE_MAX).contains(&size) {
        return Ok(());
    }
    Err(invalid(format!("{0}.struct_size is {size}; set it to sizeof({0})", T::NAME)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::zazen_read_options_t as Options;

    #[test]
    fn older_and_newer_callers_are_understood() {
        #[repr(C)]
        #[derive(Default)]
        struct Newer {
            known: [u64; size_of::<Options>() / 8],
            added: u64,
        }
        // SAFETY: each pointer is to as many bytes as its first word says.
        unsafe {
            let mut newer = Newer::default();
            newer.known[0] = size_of::<Newer>() as u64;
            newer.known[1] = 77;
            let pointer = (&raw const newer).cast::<Options>();
            assert_eq!(Options::take(pointer).unwrap().memory_max, 77);
            newer.added = 1;
            assert!(Options::take((&raw const newer).cast()).is_err());
            let older = [8usize];
            assert_eq!(Options::take(older.as_ptr().cast()).unwrap().memory_max, 0);
            for wrong in [0usize, 7, usize::MAX] {
                assert!(Options::take([wrong].as_ptr().cast()).is_err(), "{wrong}");
            }
            assert_eq!(Options::take(std::ptr::null()).unwrap().memory_max, 0);
        }
    }
}
