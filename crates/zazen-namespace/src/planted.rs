//! Bugs that the simulation plants, to show that it finds them. Without the feature `planted` none
//! of them can be had.

/// Declares the bugs: name, what it leaves out.
macro_rules! planted {
    ($($(#[$about:meta])* $name:ident,)+) => {
        /// A bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Planted {
            $($(#[$about])* $name,)+
        }

        impl Planted {
            /// All of them.
            pub const ALL: &[Planted] = &[$(Planted::$name,)+];
        }
    };
}

planted! {
    /// A primary answers before its backups have the records.
    AcknowledgeBeforeReplicate,
    /// A primary answers although its lease ended.
    IgnoreLease,
    /// A new epoch does not open with a record.
    SkipBarrier,
    /// Level `synced`: an answer goes out when the records are written.
    AcknowledgeBeforeSync,
    /// A failed sync counts as a success.
    IgnoreFailedSync,
    /// A primary does not wait for a backup while it has the stewards add it.
    AddWithoutWaiting,
    /// A new life of a node counts as a backup that has everything.
    KeepBackupsOfOldLives,
    /// New leaders of the stewards end lives without waiting for leases that others granted.
    EndLivesAtOnce,
    /// A steward forgets its vote in a restart.
    ForgetVote,
    /// An answer to a read goes out before what it saw is replicated.
    ReadUncommitted,
    /// A primary goes on answering while it hands its partition over.
    AnswerWhileHanding,
    /// Partitions are not told that a node's life ended: its late requests are executed.
    SkipFence,
    /// A backup takes records that do not follow on its last.
    SkipPositionCheck,
    /// Recovery serves a partition although records in its middle are missing.
    ServeDamaged,
    /// A steward counts a map as stored that it has not written.
    StoreWithoutWriting,
    /// A transaction is not in the record when its first part is asked for: with the primary, a
    /// rename under way is lost.
    LoseIntent,
    /// The locks of a life that has ended stay.
    KeepDeadLocks,
    /// A commit is taken whatever generation was written.
    CommitAnyGeneration,
    /// A cut of a file of chunks leaves a chunk behind the new length.
    CutLess,
    /// An append is executed again when it is repeated.
    AppendTwice,
}
