//! Spans: what a daemon records of each call that it served (docs/formats/spans.md).
//!
//! A daemon writes blocks of rows (`rows`). A line of JSON for each call is what they are exported
//! as, and what daemons of earlier releases wrote (`span`). *Pure*: the daemon writes the files,
//! and the command line reads them.

mod perfetto;
mod rows;
mod span;
mod text;

pub use perfetto::perfetto;
pub use rows::{Block, HEAD_BYTES, Head, ROW_BYTES_MAX, Row, SUFFIX, Words, put_row, take_row};
pub use span::{LINES_SUFFIX, Span, VERSION, op_name, read_lines};
pub use text::Text;
