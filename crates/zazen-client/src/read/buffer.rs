//! Frame buffers that are allocated once and reused.
//!
//! A new buffer costs a page fault and zeroing for each 4 KiB, which is more than the copy from the
//! page cache. So a buffer goes back to its pool when its last holder drops it. The buffer that was
//! returned last is used first, because its bytes are still in the processor's cache. Large buffers
//! ask for huge pages.

use std::alloc::{Layout, alloc_zeroed};
use std::sync::{Arc, Mutex, PoisonError};
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::fork::Mine;

/// Frames begin at a multiple of this in a buffer, because the kernel copies fastest between whole
/// pages.
const ALIGN: usize = 4096;
/// The size of a huge page. Larger buffers begin at the start of one.
const HUGE: usize = 2 << 20;
/// How many buffers are tried for one that fits.
const LOOKED_AT: usize = 16;

/// Memory with an aligned start.
struct Storage {
    bytes: Vec<u8>,
    start: usize,
}

impl Storage {
    /// `None` if there is no memory for it.
    fn new(length: usize) -> Option<Storage> {
        let granule = if length >= 1 << 16 { 1 << 16 } else { ALIGN };
        let align = if length >= HUGE { HUGE } else { ALIGN };
        let mut bytes = zeroed(length.checked_next_multiple_of(granule)?.checked_add(align)?)?;
        let start = bytes.as_ptr().align_offset(align).min(align);
        if length >= HUGE {
            ask_for_huge_pages(&mut bytes[start..start + length / HUGE * HUGE]);
        }
        Some(Storage { bytes, start })
    }

    fn capacity(&self) -> usize {
        self.bytes.len() - self.start
    }
}

/// `length` zeros, which is more than 0; `None` if there is no memory for them.
fn zeroed(length: usize) -> Option<Vec<u8>> {
    let layout = Layout::array::<u8>(length).ok()?;
    // SAFETY: the layout's size is not 0.
    let start = unsafe { alloc_zeroed(layout) };
    // SAFETY: allocated by the global allocator with the layout of this many bytes, all of them
    // initialised.
    (!start.is_null()).then(|| unsafe { Vec::from_raw_parts(start, length, length) })
}

/// Asks the kernel to back `region` with huge pages. The region begins at the start of a huge page.
fn ask_for_huge_pages(region: &mut [u8]) {
    let advice = rustix::mm::Advice::LinuxHugepage;
    // SAFETY: the region is ours alone and stays mapped; this advice changes no content.
    let asked = unsafe { rustix::mm::madvise(region.as_mut_ptr().cast(), region.len(), advice) };
    if let Err(errno) = asked {
        tracing::trace!("no huge pages for a frame buffer: {errno}");
    }
}

/// Buffers that nobody holds.
pub(crate) struct Pool {
    free: Mutex<Free>,
    mine: Mine,
}

struct Free {
    /// The last one returned is at the end.
    storages: Vec<Storage>,
    bytes: usize,
    bytes_max: usize,
}

impl Pool {
    /// A pool that keeps at most `bytes_max` bytes of free buffers.
    pub(crate) fn new(bytes_max: u64) -> Arc<Pool> {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let free = Mutex::new(Free { storages: Vec::new(), bytes: 0, bytes_max });
        Arc::new(Pool { free, mine: Mine::of_this_process() })
    }

    /// A buffer of `length` bytes with its previous content. `TooLarge` if there is no memory for
    /// it.
    pub(crate) fn take(self: &Arc<Pool>, length: usize) -> Result<Buffer> {
        let fits =
            |storage: &Storage| storage.capacity() >= length && storage.capacity() / 2 <= length + (1 << 16);
        let mut free = self.lock();
        let newest = free.storages.iter().rev().take(LOOKED_AT).position(fits);
        let storage = match newest {
            Some(from_end) => {
                let at = free.storages.len() - 1 - from_end;
                let storage = free.storages.remove(at);
                free.bytes -= storage.bytes.len();
                drop(free);
                storage
            }
            None => {
                drop(free);
                Storage::new(length).ok_or_else(|| {
                    Error::new(
                        ErrorKind::TooLarge,
                        format!(
                            "there is no memory for its {length} bytes; cut it into smaller frames, or read \
                             the file in parts"
                        ),
                    )
                })?
            }
        };
        Ok(Buffer { storage, length, pool: self.clone() })
    }

    /// Frees all buffers that nobody holds, now and when they are returned later.
    pub(crate) fn close(&self) {
        // As in `give_back`.
        if !self.mine.is_mine() {
            return;
        }
        let mut free = self.lock();
        free.bytes_max = 0;
        free.bytes = 0;
        let storages = std::mem::take(&mut free.storages);
        drop(free);
        drop(storages);
    }

    fn give_back(&self, storage: Storage) {
        // In a forked child, a thread that does not exist there may hold the pool's lock.
        if !self.mine.is_mine() {
            return;
        }
        let mut dropped = Vec::new();
        let mut free = self.lock();
        free.bytes += storage.bytes.len();
        free.storages.push(storage);
        // Free the oldest: they are of another size, or cold.
        while free.bytes > free.bytes_max && !free.storages.is_empty() {
            let oldest = free.storages.remove(0);
            free.bytes -= oldest.bytes.len();
            dropped.push(oldest);
        }
        drop(free);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer that goes back to its pool when dropped.
pub(crate) struct Buffer {
    storage: Storage,
    length: usize,
    pool: Arc<Pool>,
}

impl Buffer {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.storage.bytes[self.storage.start..self.storage.start + self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage.bytes[self.storage.start..self.storage.start + self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let storage = std::mem::replace(&mut self.storage, Storage { bytes: Vec::new(), start: 0 });
        self.pool.give_back(storage);
    }
}

/// A part of a buffer, which goes back to its pool when the last part of it is dropped.
#[derive(Clone)]
pub(crate) struct Slice {
    buffer: Arc<Buffer>,
    start: usize,
    length: usize,
}

impl Slice {
    /// All of `buffer`.
    pub(crate) fn all(buffer: Buffer) -> Slice {
        let length = buffer.length;
        Slice { buffer: Arc::new(buffer), start: 0, length }
    }

    /// `length` bytes of this from byte `start` on; `None` if there are fewer.
    pub(crate) fn part(&self, start: usize, length: usize) -> Option<Slice> {
        let fits = start.checked_add(length)? <= self.length;
        fits.then(|| Slice { buffer: self.buffer.clone(), start: self.start + start, length })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[self.start..self.start + self.length]
    }

    /// How many bytes they are, without a look at the buffer.
    pub(crate) fn len(&self) -> usize {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_returned_last_is_used_first() {
        let pool = Pool::new(1 << 20);
        let (first, second) = (pool.take(100_000).unwrap(), pool.take(100_000).unwrap());
        let address = second.bytes().as_ptr();
        assert_eq!(address as usize % ALIGN, 0);
        drop(first);
        drop(second);
        assert_eq!(pool.take(99_000).unwrap().bytes().as_ptr(), address);
        let small = pool.take(10).unwrap();
        assert_eq!(small.bytes().len(), 10);
    }

    #[test]
    fn free_buffers_are_bounded() {
        let pool = Pool::new(300_000);
        let buffers: Vec<_> = (0..10).map(|_| pool.take(100_000).unwrap()).collect();
        drop(buffers);
        let held = pool.lock().bytes;
        assert!(held <= 300_000 && held > 100_000, "{held}");
        pool.close();
        assert_eq!(pool.lock().bytes, 0);
        drop(pool.take(5).unwrap());
        assert!(pool.lock().storages.is_empty());
    }

    #[test]
    fn parts_keep_their_buffer() {
        let pool = Pool::new(1 << 20);
        let mut buffer = pool.take(100).unwrap();
        buffer.bytes_mut().iter_mut().zip(0..).for_each(|(byte, index)| *byte = index);
        let all = Slice::all(buffer);
        let part = all.part(10, 20).and_then(|part| part.part(5, 15)).unwrap();
        assert!(
            all.part(90, 11).is_none() && all.part(usize::MAX, 2).is_none() && part.part(1, 15).is_none()
        );
        drop(all);
        assert_eq!(pool.lock().storages.len(), 0);
        assert_eq!(part.bytes(), (15..30).collect::<Vec<u8>>());
        drop(part);
        assert_eq!(pool.lock().storages.len(), 1);
    }

    #[test]
    fn empty_frames_have_buffers_too() {
        let pool = Pool::new(1 << 20);
        assert_eq!(pool.take(0).unwrap().bytes(), b"");
    }

    #[test]
    fn what_finds_no_room_is_an_error() {
        let pool = Pool::new(1 << 20);
        for length in [1 << 62, usize::MAX / 2, usize::MAX - 4096, usize::MAX] {
            let error = pool.take(length).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::TooLarge);
            assert!(error.to_string().contains(&length.to_string()), "{error}");
        }
        assert!(pool.take(1).is_ok());
    }
}
