//! Why an analysis was slow: from the records of its ranks, and what the nodes say now, to a
//! verdict.
//!
//! Pure: no I/O, clock, thread or randomness. `zazen explain` collects the records, calls
//! [`explain`], and shows the [`Explanation`].
//!
//! Invariants: the parts of a rank's time add up to its wall time; each frame that was not read
//! locally has exactly one [`Cause`]; the findings of a rank together take no longer than its wall
//! time.

mod cause;
mod find;
mod job;
mod words;

pub use cause::{Cause, CauseFound, NodeSeen};
pub use find::{Explanation, Finding, What, explain};
pub use job::jobs;
pub use words::{is_order, quoted, rate, seconds, shown, span};

#[cfg(test)]
mod tests;
