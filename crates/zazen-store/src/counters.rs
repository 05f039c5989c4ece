//! What a store counts since its start.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident: $what:literal,)*) => {
        /// Counters since the start.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(#[doc = $what] pub(crate) $name: AtomicU64,)*
        }
        impl Counters {
            pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    stored_frames: "Frames stored.",
    stored_bytes: "Their bytes.",
    already_here: "Puts of a frame that was here.",
    promoted: "Aliens that became natives.",
    conflicts: "Puts refused because another frame has the number or the place.",
    refused_no_space: "Puts refused because no room could be made.",
    evicted_datasets: "Datasets evicted to make room.",
    evicted_frames: "Frames evicted, to make room or by hand.",
    evicted_bytes: "Their bytes on disk.",
    dropped_stale: "Frames replaced because their source changed.",
    dropped_corrupt: "Frames dropped because their bytes did not match.",
    dropped_unreadable: "Frames dropped because the disk could not read them.",
    dropped_missing: "Frames dropped because their file was gone or short, or their record damaged.",
    dropped_asked: "Frames dropped by a caller.",
    rewritten_logs: "Logs rewritten to shed dead records or to be sorted.",
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
