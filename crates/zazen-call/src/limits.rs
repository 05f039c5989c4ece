//! The limits of a server: what its callers may have at a time.

use crate::carriers::shm::cpus::cpus_online;
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};

/// Limits of each identity that calls a server: a user of this machine, or a key holder's address
/// and user. Root and the server's own user have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerLimits {
    /// Connections at once; one more is answered `Busy` and closed.
    pub connections_max: usize,
    /// Calls at once; further ones wait, each in its own connection's thread.
    pub calls_max: usize,
    /// How long a call waits for a place before it is `Busy`.
    pub queue_max: Duration,
    /// Bytes of payloads and answers that the server holds at once. A message for which there is no
    /// room is `Busy`. Messages of up to 64 KiB do not count.
    pub bytes_max: u64,
    /// Descriptors that are on their way, in either direction.
    pub descriptors_max: usize,
}

impl Default for CallerLimits {
    /// 512 connections and calls, 30 seconds, 256 MiB, 16,384 descriptors.
    fn default() -> CallerLimits {
        CallerLimits {
            connections_max: 512,
            calls_max: 512,
            queue_max: Duration::from_secs(30),
            bytes_max: 256 << 20,
            descriptors_max: 16_384,
        }
    }
}

/// Bounds of a server.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Connections at once; one more is answered `Busy` and closed. Strangers do not count.
    pub connections_max: usize,
    /// Each identity's share.
    pub caller: CallerLimits,
    /// TCP peers that have not proven the cluster key yet (strangers), at once. For a new one the
    /// oldest is closed.
    pub strangers_max: usize,
    /// How long such a peer may take for the whole proof.
    pub proof_timeout: Duration,
    /// A connection that sends nothing for this long in the middle of a message or of the handshake
    /// is closed. Between calls a connection may be idle for ever.
    pub stall_timeout: Duration,
}

impl Default for ServerLimits {
    /// 1024 connections, 30 seconds; 64 strangers, 5 seconds for each.
    fn default() -> ServerLimits {
        ServerLimits {
            connections_max: 1024,
            caller: CallerLimits::default(),
            strangers_max: 64,
            proof_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// Bounds of a server's shared memory; clients are told the thresholds when they connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmLimits {
    /// Whether callers of the unix socket are offered shared memory at all.
    pub enabled: bool,
    /// Lanes in a caller's region; further ones stay on the socket.
    pub lanes_max: usize,
    /// Payload and data up to this many bytes travel in the ring's slots (at most 8,064).
    pub inline_bytes: u32,
    /// What is longer, but at most this many bytes, travels in the lane's own buffers (whole
    /// pages).
    pub eager_bytes: u32,
    /// What is longer still is streamed through granted memory, in pieces of this many bytes.
    pub chunk_bytes: u32,
    /// Pool bytes in a caller's region (whole MiB): the most that one caller can hold.
    pub pool_bytes: u64,
    /// Bytes granted at any time, to all callers together.
    pub budget_bytes: u64,
    /// Calls that stream at a time. Others wait for their turn: first come first served, and in
    /// turn between callers.
    pub transfers_max: usize,
}

impl Default for ShmLimits {
    /// 8 lanes, 4 KiB inline, 64 KiB eager, pieces of 256 KiB, 32 MiB of pool for each caller, 256
    /// MiB for all. Twice as many streams as CPUs, so that one moves bytes while another waits to
    /// be woken.
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
    /// The most that is granted to one call: enough pieces to keep both ends busy.
    pub(crate) fn staging_bytes_max(&self) -> u64 {
        (4 * u64::from(self.chunk_bytes)).min(self.pool_bytes)
    }

    /// Whether the limits fit together; `Config` names the one that does not.
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
