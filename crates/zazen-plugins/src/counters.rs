//! A plug-in's counters, in memory that its process shares with the daemon: the daemon reads them
//! without asking.
//!
//! Invariants: all of it is atomic, so whatever an isolated plug-in writes there makes its own
//! numbers wrong and nothing else; the file behind shared counters is sealed, so that nobody can
//! shrink it under the other's feet.

use crate::object::Description;
use crate::stats::{FunctionStats, PluginReport};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::mem::size_of;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use zazen_core::{Error, Result};

/// What there is at the moment.
#[repr(C, align(64))]
pub(crate) struct Gauges {
    pub(crate) clients: AtomicU64,
    pub(crate) handles: AtomicU64,
    running: AtomicU64,
}

/// Gauges, and behind them the counters of each function. All zeros at first, which is a valid
/// value of both.
pub(crate) struct Counters {
    at: NonNull<Gauges>,
    function_count: usize,
}

// SAFETY: atomics in memory that lives as long as this.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

/// A call in progress, while this lives.
pub(crate) struct Running<'a>(&'a AtomicU64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn bytes(function_count: usize) -> usize {
    size_of::<Gauges>() + function_count * size_of::<FunctionStats>()
}

fn failed(errno: Errno) -> Error {
    Error::io("make memory for a plug-in's counters", errno.into())
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Counters {
    /// Counters of a plug-in in this process.
    pub(crate) fn private(function_count: usize) -> Result<Counters> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes(function_count), protection, flags) };
        Counters::at(at.map_err(failed)?, function_count)
    }

    /// Counters that another process shares, and the file by which it does.
    pub(crate) fn shared(function_count: usize) -> Result<(Counters, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"zazen-plugin-counters", flags).map_err(failed)?;
        rustix::fs::ftruncate(&file, bytes(function_count) as u64).map_err(failed)?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(failed)?;
        Ok((Counters::map(&file, function_count)?, file))
    }

    /// The other side of [`Counters::shared`]; `None` if the file is not of that size.
    pub(crate) fn of_file(file: &OwnedFd, function_count: usize) -> Option<Counters> {
        let size = rustix::fs::fstat(file).ok()?.st_size;
        let fits = u64::try_from(size).is_ok_and(|size| size == bytes(function_count) as u64);
        if fits { Counters::map(file, function_count).ok() } else { None }
    }

    fn map(file: &OwnedFd, function_count: usize) -> Result<Counters> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the kernel's choice; the file has as many bytes,
        // and keeps them.
        let at = unsafe { rustix::mm::mmap(null_mut(), bytes(function_count), protection, flags, file, 0) };
        Counters::at(at.map_err(failed)?, function_count)
    }

    fn at(mapped: *mut std::ffi::c_void, function_count: usize) -> Result<Counters> {
        let at = NonNull::new(mapped.cast()).ok_or_else(|| failed(Errno::NOMEM))?;
        Ok(Counters { at, function_count })
    }

    pub(crate) fn gauges(&self) -> &Gauges {
        // SAFETY: mapped as long as this lives, and page-aligned; all values are valid.
        unsafe { self.at.as_ref() }
    }

    /// The counters of function `index`, if there is one.
    pub(crate) fn function(&self, index: usize) -> Option<&FunctionStats> {
        // SAFETY: the functions' counters are behind the gauges, and `index` is below their number.
        (index < self.function_count)
            .then(|| unsafe { self.at.add(1).cast::<FunctionStats>().add(index).as_ref() })
    }

    /// Counts a call as running until the result is dropped.
    pub(crate) fn running(&self) -> Running<'_> {
        let running = &self.gauges().running;
        running.fetch_add(1, Ordering::Relaxed);
        Running(running)
    }

    /// All of it, under the functions' names.
    pub(crate) fn read(&self, description: &Description) -> PluginReport {
        let gauges = self.gauges();
        let get = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
        let named = description.functions.iter().enumerate();
        let functions = named.filter_map(|(index, named)| Some(self.function(index)?.read(&named.name)));
        PluginReport {
            clients: get(&gauges.clients),
            handles: get(&gauges.handles),
            running: get(&gauges.running),
            functions: functions.collect(),
            ..PluginReport::of(description)
        }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: mapped by this, and nobody borrows from it any more. It fails for no mapping of
        // ours.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), bytes(self.function_count)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::FunctionDescription;
    use crate::stats::Sample;
    use std::time::Duration;

    #[test]
    fn what_one_side_counts_the_other_reads_while_the_first_does_nothing() {
        let (ours, file) = Counters::shared(2).unwrap();
        let theirs = Counters::of_file(&file, 2).unwrap();
        theirs.gauges().clients.store(3, Ordering::Relaxed);
        let sample = Sample { failed: true, bytes_in: 5, bytes_out: 7, took: Duration::from_micros(3) };
        theirs.function(1).unwrap().add(&sample);
        let function = |name: &str| FunctionDescription { name: name.to_owned(), flags: 0 };
        let description = Description {
            id: 1,
            name: "two".to_owned(),
            schema_hash: 0,
            layout_hash: 0,
            acts_as_caller: false,
            functions: vec![function("a"), function("b")],
        };
        let running = theirs.running();
        let report = ours.read(&description);
        assert_eq!((report.clients, report.handles, report.running), (3, 0, 1));
        let calls: Vec<_> = report.functions.iter().map(|f| (f.name.as_str(), f.calls, f.errors)).collect();
        assert_eq!(calls, [("a", 0, 0), ("b", 1, 1)]);
        drop(running);
        assert_eq!(ours.read(&description).running, 0);
    }

    #[test]
    fn a_file_keeps_its_size_and_fits_only_its_own_functions() {
        let (_ours, file) = Counters::shared(2).unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(Counters::of_file(&file, 3).is_none() && Counters::of_file(&file, 1).is_none());
        assert!(Counters::private(0).unwrap().function(0).is_none());
    }
}
