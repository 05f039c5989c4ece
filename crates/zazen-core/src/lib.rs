//! The types that all other crates share: frame numbers, run sets, requests, dataset paths, frame
//! naming, limits and errors.
//!
//! Invariant: this crate is pure. No I/O, no clock, no thread, no randomness, no global state.

pub mod byte_size;
pub mod cred;
pub mod error;
pub mod fnv;
pub mod frame;
pub mod launcher;
pub mod limits;
pub mod naming;
pub mod path;
pub mod request;
pub mod runset;
pub mod series;
pub mod shown;
pub mod source;
pub mod source_stat;
pub mod survey;
pub mod trajectory;
pub mod varint;

/// The TCP port of a daemon where none is written.
pub const DEFAULT_PORT: u16 = 7345;

pub use cred::Credentials;
pub use error::{Error, ErrorKind, Result};
pub use frame::{FrameMeta, FrameNo, Origin, Validator};
pub use naming::{Blocks, Component, Layout, Level, NameTemplate, PARTS_PER_STEP_MAX, Piece};
pub use path::RelPath;
pub use request::Request;
pub use runset::{Run, RunSet};
pub use series::Series;
pub use source::Source;
pub use source_stat::{Rights, SourceStat};
pub use trajectory::{FrameTable, Trajectory, TrajectoryFile};
