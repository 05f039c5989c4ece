//! The shared-memory carrier: a region per caller with a pair of rings per lane, beside the unix socket that vouches
//! for the caller, carries descriptors and bells, and tells of either end's death. `docs/formats/shm.md` is its page.
//!
//! - `zazen_lane`: both ends' rings, waits and the client's calls;
//! - `region`: makes and maps shared memory, waits and wakes with the kernel;
//! - `grants`: who gets how much of it, pure;
//! - `memory`, `core`, `lane`, `parking`: the daemon's side; `client`: the client's.

pub(crate) mod client;
pub(crate) mod core;
mod fault;
mod grants;
pub(crate) mod lane;
pub(crate) mod memory;
pub(crate) mod parking;
pub(crate) mod region;

pub use fault::die_at_fault_point;
pub(crate) use fault::point as fault_point;

use std::sync::OnceLock;
use zazen_core::{Error, ErrorKind, Result};

/// Bounds of a server's shared memory; clients are told the thresholds when they connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmLimits {
    /// Whether callers of the unix socket are offered shared memory at all.
    pub enabled: bool,
    /// Lanes in a caller's region; further ones stay on the socket.
    pub lanes_max: usize,
    /// What is at most so many bytes long travels in the ring's slots (at most 8,064).
    pub inline_bytes: u32,
    /// What is at most so many bytes long travels in the lane's own buffers (whole pages).
    pub eager_bytes: u32,
    /// What is longer is streamed through granted memory in pieces of so many bytes.
    pub chunk_bytes: u32,
    /// Pool bytes in a caller's region (whole MiB): the most that one caller can hold.
    pub pool_bytes: u64,
    /// Bytes granted at any time, to all callers together.
    pub budget_bytes: u64,
    /// Calls that stream at a time; others wait for their turn, first come first served and in turn between callers.
    pub transfers_max: usize,
}

impl Default for ShmLimits {
    /// 8 lanes, 4 KiB inline, 64 KiB eager, pieces of 256 KiB, 32 MiB of pool for each caller, 256 MiB for all; twice as
    /// many streams as CPUs, so that one moves bytes while another waits to be woken.
    fn default() -> ShmLimits {
        ShmLimits {
            enabled: true,
            lanes_max: 8,
            inline_bytes: 4 << 10,
            eager_bytes: 64 << 10,
            chunk_bytes: 256 << 10,
            pool_bytes: 32 << 20,
            budget_bytes: 256 << 20,
            transfers_max: 2 * cpus_online(),
        }
    }
}

impl ShmLimits {
    /// What is granted to one call at most: enough pieces to keep both ends busy.
    pub(crate) fn staging_bytes_max(&self) -> u64 {
        (4 * u64::from(self.chunk_bytes)).min(self.pool_bytes)
    }

    /// Whether they fit together; `Config` names the one that does not.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::new(ErrorKind::Config, format!("shared memory: {what}")));
        if self.lanes_max == 0 || self.lanes_max > 64 {
            return refuse("a caller's lanes must be 1 to 64");
        }
        if self.transfers_max == 0 {
            return refuse("at least one call must be able to stream");
        }
        if self.inline_bytes > 8064 {
            return refuse("inline bytes are at most 8064, a ring's slots");
        }
        if self.eager_bytes == 0 || !self.eager_bytes.is_multiple_of(4096) || self.eager_bytes > 16 << 20 {
            return refuse("eager bytes must be whole pages (4096), at most 16 MiB");
        }
        if self.chunk_bytes < 64 << 10
            || !self.chunk_bytes.is_multiple_of(4096)
            || self.chunk_bytes > 16 << 20
        {
            return refuse("a piece must be whole pages (4096), 64 KiB to 16 MiB");
        }
        if self.pool_bytes < 1 << 20 || !self.pool_bytes.is_multiple_of(1 << 20) || self.pool_bytes > 1 << 40
        {
            return refuse("a caller's pool must be whole MiB, at least one");
        }
        Ok(())
    }
}

/// CPUs of this machine that are online. Not those that this thread may use: a rank that is bound to one core may well
/// spin for a daemon on another.
fn cpus_online() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| {
        // SAFETY: takes a number and only asks.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        usize::try_from(online).unwrap_or(1).max(1)
    })
}

/// Whether a thread may spin at all: not on a machine of one CPU.
pub(crate) fn has_cpus_to_spin() -> bool {
    cpus_online() > 1
}

/// How many threads of a daemon may spin at a time: clients are to find a CPU to run on.
pub(crate) fn spinners_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| {
        let mine = std::thread::available_parallelism().map_or(1, usize::from);
        mine.min(cpus_online() - 1)
    })
}
