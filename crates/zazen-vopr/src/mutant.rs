//! Planted bugs. Each makes one promise of the system false; the checks must notice.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The reader hands frames on without comparing their checksums.
    SkipFrameChecksum,
    /// The daemon commits what came without comparing it with the announced checksum.
    SkipPushChecksum,
    /// The daemon's disk brings data to a file only after its name and its record are there.
    DataAfterRecord,
    /// A copy whose source changed is handed out as if it were fresh.
    ForgetStale,
    /// A scan does not keep its dataset from eviction.
    EvictInUse,
    /// One frame is assigned to two ranks.
    AssignTwice,
    /// One frame is assigned to nobody.
    AssignNobody,
    /// The ranks believe that natives that are as many as the frames are the frames.
    BelieveCounts,
    /// An all-to-all loses a block.
    LoseBlock,
    /// The store takes twice the room that it was given.
    IgnoreBudget,
    /// The daemon acknowledges a frame and drops it.
    AckWithoutCommit,
    /// The daemon acknowledges a frame before it commits it.
    AckBeforeCommit,
    /// The client takes any reply for that of its last call.
    AcceptDoubled,
    /// The client takes a connection that ends for success.
    ResetIsSuccess,
    /// Syncs of the disk return at once and do nothing.
    SkipSync,
    /// A sync of the disk that failed is tried again, and the second answer believed.
    RetrySync,
    /// The writer's driver loses outcomes of sendings.
    LoseOutcome,
    /// A frame copied from the backing store is believed without a second look at its source.
    SkipSecondLook,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 18] = [
        Mutant::SkipFrameChecksum,
        Mutant::SkipPushChecksum,
        Mutant::DataAfterRecord,
        Mutant::ForgetStale,
        Mutant::EvictInUse,
        Mutant::AssignTwice,
        Mutant::AssignNobody,
        Mutant::BelieveCounts,
        Mutant::LoseBlock,
        Mutant::IgnoreBudget,
        Mutant::AckWithoutCommit,
        Mutant::AckBeforeCommit,
        Mutant::AcceptDoubled,
        Mutant::ResetIsSuccess,
        Mutant::SkipSync,
        Mutant::RetrySync,
        Mutant::LoseOutcome,
        Mutant::SkipSecondLook,
    ];

    /// How violations that this bug causes may begin.
    pub fn breaks(self) -> &'static [&'static str] {
        match self {
            Mutant::SkipFrameChecksum => &["wrong bytes"],
            // A copy is compared with the frame as the writer meant it, too.
            Mutant::SkipPushChecksum => &["wrong bytes", "mixed copy"],
            Mutant::SkipSecondLook => &["mixed copy"],
            Mutant::ForgetStale => &["stale bytes"],
            Mutant::EvictInUse => &["evicted in use"],
            Mutant::AssignTwice => &["read twice"],
            Mutant::AssignNobody => &["read by nobody"],
            Mutant::BelieveCounts => &["read twice", "read by nobody"],
            Mutant::LoseBlock => &["no assignment"],
            Mutant::IgnoreBudget => &["budget"],
            Mutant::LoseOutcome => &["no progress"],
            Mutant::DataAfterRecord
            | Mutant::AckWithoutCommit
            | Mutant::AckBeforeCommit
            | Mutant::AcceptDoubled
            | Mutant::ResetIsSuccess
            | Mutant::SkipSync
            | Mutant::RetrySync => &["forgotten"],
        }
    }

    /// The mutant of this name, as `Debug` prints it.
    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}").eq_ignore_ascii_case(name))
    }
}
