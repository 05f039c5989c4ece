//! What the daemon has done since it started, as counters that only grow.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),* $(,)?) => {
        /// The daemon's counters. Shared by threads; each is independent of the others.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: Counter,)*
        }

        impl Counters {
            /// All of them: (name, help, value).
            pub fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name.get())),*]
            }
        }
    };
}

counters! {
    /// Frames pushed here and stored.
    pushes,
    /// Bytes of them.
    push_bytes,
    /// Pushes of frames that were here already.
    pushes_already_here,
    /// Pushes refused or failed.
    push_failures,
    /// Natives handed to readers.
    native_reads,
    /// Bytes of them.
    native_bytes,
    /// Aliens handed to readers that were here before.
    alien_reads,
    /// Bytes of them.
    alien_bytes,
    /// Frames copied from the backing store into the cache.
    fetched,
    /// Bytes of them.
    fetched_bytes,
    /// Frames and blocks of files copied from another node into the cache.
    peer_blocks,
    /// Bytes of them.
    peer_bytes,
    /// Blocks of files given to other nodes.
    peer_blocks_given,
    /// Parts of frames given to other nodes.
    peer_pieces_given,
    /// Frames handed out that had to be fetched for the reader.
    fetched_reads,
    /// Frames read straight from the backing store because the cache had no room, by descriptor.
    read_through,
    /// The same, sent as bytes.
    inline,
    /// Frames read from their source because the cache's disk failed.
    cache_failures,
    /// Frames that a reader could not be given.
    failed,
    /// Frames dropped because their bytes did not match their checksum.
    corrupt_dropped,
    /// Frames dropped because their source had changed.
    stale_dropped,
    /// Frames refused to callers that may not read their source.
    permission_denied,
    /// Fetches that failed.
    fetch_failures,
    /// How often a reader joined a fetch that was under way instead of starting one.
    fetches_shared,
    /// Datasets opened.
    opens,
    /// Scans begun.
    scans,
    /// Queries answered.
    queries,
}

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `by`.
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    /// The share of frames that came from this node's disk without a fetch; `None` before the first
    /// frame.
    pub fn hit_rate(&self) -> Option<f64> {
        let hits = self.native_reads.get() + self.alien_reads.get();
        let misses = self.fetched_reads.get() + self.read_through.get() + self.inline.get();
        (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
    }
}
