//! Spans: what a daemon records of each call that it served (docs/formats/spans.md).
//!
//! A file of spans has a line of JSON for each call, in the order in which the calls ended.
//! *Pure*: the daemon writes the files, and the command line reads them.

mod perfetto;
mod span;

pub use perfetto::perfetto;
pub use span::{SUFFIX, Span, VERSION, op_name, read};
