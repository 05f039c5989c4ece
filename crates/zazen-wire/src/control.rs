//! Functions and messages of the control service (service 1), which every daemon has.

use crate::field::{AbsolutePath, Blob, FreeText, List};

/// Function numbers of the control service.
pub mod control_fn {
    /// () → [`super::NodeInfo`].
    pub const HELLO: u16 = 1;
    /// () → UTF-8 JSON: the daemon's status (counters, space, datasets).
    pub const STATUS: u16 = 2;
    /// () → UTF-8 text: the whole state, for a person.
    pub const DUMP: u16 = 3;
    /// () → (): liveness.
    pub const PING: u16 = 4;
    /// [`super::Examine`] → UTF-8 JSON: what `zazen doctor` judges of a node (kernel, limits,
    /// clock, network, cache disk), with [`super::Examine::answer_bytes`] bulk bytes. Root, the
    /// daemon's user and key holders only.
    pub const EXAMINE: u16 = 5;
}

/// Bytes that a daemon sends or takes to show that large messages pass the network.
pub const BALLAST_BYTES_MAX: usize = 64 << 10;

crate::messages! {
    /// Who a daemon is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    NodeInfo {
        /// Identity of the node's cache: random, made with the cache root and stored in it.
        node: u128,
        /// Human name (host name or configured).
        name: String = FreeText,
        /// Software version.
        version: String = FreeText,
        /// Absolute directories that this daemon backs, as users spell them; a dataset must be
        /// beneath one.
        backing_roots: Vec<String> = List<AbsolutePath>,
        /// The cache root.
        cache_root: String = AbsolutePath,
        /// Readers that a client should have in flight on this node's disk (1 for a spinning one).
        readers: u16,
    }

    /// How thoroughly a daemon looks at its node.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Examine {
        /// Bytes that are written to the cache's disk, and read again, to measure it; 0: none. The
        /// daemon bounds it.
        disk_bytes: u64,
        /// Bulk bytes of the answer, at most [`BALLAST_BYTES_MAX`].
        answer_bytes: u32,
        /// Bytes without a meaning. They show that messages that need several packets arrive.
        ballast: Vec<u8> = Blob<BALLAST_BYTES_MAX>,
    }
}
