//! Bugs that the tests plant, one at a time: the simulation must find each.

/// Declares the planted bugs, and the list of all of them, so that no test can leave one out.
macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A planted bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Mutant {
            $($(#[$doc])* $name,)*
        }

        #[cfg(test)]
        impl Mutant {
            pub(super) const ALL: &[Mutant] = &[$(Mutant::$name),*];
        }
    };
}

mutants! {
    /// Answers are not kept: a repeated request is executed twice.
    ForgetsAnswers,
    /// Executed parts are not kept: a repeated message is executed twice.
    ForgetsParts,
    /// Names that are held are looked up and used.
    IgnoresHolds,
    /// A directory is removed while a transaction makes something in it.
    RemovesWhileHeld,
    /// Directories are moved without the lock of all moves.
    MovesWithoutLock,
    /// Directories are moved without a look at what is above.
    MovesWithoutWalk,
    /// The two names of a rename are held in the order of the request.
    HoldsInAnyOrder,
    /// A transaction is not in the record when its first part is asked for.
    LosesIntent,
    /// A part is executed though its transaction has ended.
    TakesLateParts,
    /// An answer to an older part is taken for that of the newest.
    TakesAnyStep,
    /// An inode goes with its last name, though it is open.
    DropsOpenInodes,
    /// What a dead node has open stays.
    KeepsDeadOpens,
    /// A transaction that is refused keeps its names.
    KeepsNames,
    /// A change is made and not recorded.
    RecordsLess,
    /// Messages are not sent again.
    NeverRepeats,
    /// A directory is used while it is split or merged.
    IgnoresFreeze,
    /// A bucket is removed though there are names in it.
    DropsFullBuckets,
    /// A bucket keeps the rights that it was made with.
    ForgetsRights,
    /// A cut leaves a chunk behind the new length.
    CutsLess,
    /// A cut ends chunks that nodes have open.
    CutsOpenChunks,
    /// Two appends get the same range.
    AppendsOverlap,
}
