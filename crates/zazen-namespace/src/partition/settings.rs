//! What is fixed when a namespace is made.

zazen_wire::messages! {
    /// What all partitions of a namespace, and all replicas of a partition, agree on.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Settings {
        /// How many partitions the namespace has.
        partitions: u32,
        /// Permission bits of the root directory.
        root_mode: u32,
        /// Owner of the root directory.
        root_uid: u32,
        /// Group of the root directory.
        root_gid: u32,
        /// How many answers a partition keeps for a client. A request that is repeated after
        /// that many later ones is refused with `EIO`.
        answers_max: u32,
        /// After this long without a request, by the primary's ticks, a client's answers are
        /// forgotten. A client must not repeat a request for so long.
        client_idle_ns: i64,
        /// After this long without an answer, a message to another partition is sent again.
        resend_ns: i64,
        /// The most links of an inode.
        links_max: u32,
        /// The most record locks of an inode.
        locks_max: u32,
        /// The most bytes of the names and values of an inode's extended attributes.
        xattrs_bytes_max: u32,
        /// A directory with so many entries is split into buckets.
        split_entries: u32,
        /// The most buckets of a directory.
        buckets_max: u32,
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            partitions: 1,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            answers_max: 4096,
            client_idle_ns: 600_000_000_000,
            resend_ns: 200_000_000,
            links_max: 1 << 30,
            locks_max: 4096,
            xattrs_bytes_max: 128 << 10,
            split_entries: 1 << 14,
            buckets_max: 64,
        }
    }
}
