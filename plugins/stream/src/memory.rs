//! Memory: the buffer of a stream, and the buffers for arriving results. All of it is within the
//! host's limit.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The default of `ZAZEN_STREAM_BYTES_MAX`.
const BYTES_MAX_DEFAULT: u64 = 2 << 30;
static USED: AtomicU64 = AtomicU64::new(0);

fn bytes_max() -> u64 {
    static MAX: OnceLock<u64> = OnceLock::new();
    *MAX.get_or_init(|| {
        let said = std::env::var("ZAZEN_STREAM_BYTES_MAX").ok();
        said.and_then(|text| text.parse().ok()).unwrap_or(BYTES_MAX_DEFAULT)
    })
}

/// Bytes from the limit of all streams of the host. Given back when dropped.
struct Share(u64);

impl Share {
    fn take(bytes: u64) -> Option<Share> {
        let before = USED.fetch_add(bytes, Ordering::Relaxed);
        // Make this first, so that the bytes are given back if they are too many.
        let share = Share(bytes);
        (before.saturating_add(bytes) <= bytes_max()).then_some(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        USED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Zeroed pages, all allocated, so that the first packets do not wait for page faults. Others can
/// read them through a descriptor, which allows no change of size or contents.
pub(crate) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
    _share: Share,
}

// SAFETY: plain memory; who may touch which part of it, and when, is the ring's to say.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// `None` if the host's bound or the machine doesn't allow it.
    pub(crate) fn map(bytes: usize) -> Option<Pages> {
        let share = Share::take(bytes as u64)?;
        // SAFETY: a name; the result is checked.
        let file = unsafe {
            libc::memfd_create(c"zazen-stream".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if file < 0 {
            return None;
        }
        // SAFETY: just made, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let length = libc::off_t::try_from(bytes).ok()?;
        let (reach, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: our file; a new mapping of all of it, nowhere in particular.
        let start = unsafe {
            if libc::ftruncate(file.as_raw_fd(), length) != 0 {
                return None;
            }
            libc::mmap(std::ptr::null_mut(), bytes, reach, flags, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        let pages = Pages { start: NonNull::new(start.cast::<u8>())?, bytes, file, _share: share };
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: our file. From now on only this mapping can write.
        if unsafe { libc::fcntl(pages.file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return None;
        }
        // SAFETY: our mapping. Huge pages are a wish; without memory for a page, populating says
        // so, where touching it would kill the process.
        let populated = unsafe {
            libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
            libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE)
        };
        if populated != 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
            return None;
        }
        Some(pages)
    }

    /// A descriptor to look at the pages through.
    pub(crate) fn share(&self) -> std::io::Result<OwnedFd> {
        self.file.try_clone()
    }

    /// The address of a byte.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes, "beyond the buffer");
        // SAFETY: within the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody has it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Of a landing buffer, in front of its bytes.
const HEAD: usize = 64;
/// Buffers that are kept for the next results, at most.
const SPARE_MAX: usize = 16;
static SPARE: Mutex<Vec<Landing>> = Mutex::new(Vec::new());

/// A buffer for an arriving result. It becomes the sum if the result is the first of its group. C
/// identifies it by the address of its bytes.
pub(crate) struct Landing {
    start: NonNull<u8>,
    room: usize,
    length: usize,
    _share: Share,
}

// SAFETY: owns its memory.
unsafe impl Send for Landing {}

impl Landing {
    /// A spare buffer, else a new one; `None` beyond the host's limit.
    pub(crate) fn new(length: usize) -> Option<Landing> {
        let spare = {
            let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |landing: &Landing| landing.room >= length && landing.room / 2 <= length.max(4096);
            let at = spare.iter().position(fits);
            at.map(|at| spare.swap_remove(at))
        };
        if let Some(mut landing) = spare {
            landing.length = length;
            return Some(landing);
        }
        let room = length.max(1).checked_next_multiple_of(4096)?;
        let share = Share::take((room + HEAD) as u64)?;
        let layout = Layout::from_size_align(room + HEAD, HEAD).ok()?;
        // SAFETY: not of size 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Landing { start, room, length, _share: share })
    }

    /// Its address, as C has it; [`Landing::from_address`] takes it back.
    pub(crate) fn into_address(self) -> *mut u8 {
        let start = self.start.as_ptr();
        let boxed = Box::into_raw(Box::new(self));
        // SAFETY: the head is ours and large enough for a pointer; the bytes come behind it.
        unsafe {
            start.cast::<*mut Landing>().write(boxed);
            start.add(HEAD)
        }
    }

    /// The buffer with this address.
    ///
    /// # Safety
    ///
    /// The address is one of `into_address`, and is given back for the first time.
    pub(crate) unsafe fn from_address(address: *mut u8) -> Landing {
        // SAFETY: as promised; the head holds what `into_address` put there.
        unsafe { *Box::from_raw(address.sub(HEAD).cast::<*mut Landing>().read()) }
    }

    /// Its bytes: written by the host before the function ran.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `length` bytes behind the head, which the host has filled.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(HEAD), self.length) }
    }

    /// Its bytes, to be changed.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the reference is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(HEAD), self.length) }
    }

    /// Keeps it for the next result.
    pub(crate) fn recycle(self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_MAX {
            spare.push(self);
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let Ok(layout) = Layout::from_size_align(self.room + HEAD, HEAD) {
            // SAFETY: allocated with this layout; C has given it back.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

/// Frees the spare buffers.
pub(crate) fn drop_spare() {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
