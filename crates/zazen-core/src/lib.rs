//! The words that every other crate speaks: frame numbers, run sets, requests, dataset paths, frame
//! naming, limits and errors.
//!
//! Invariant: this crate is pure. No I/O, no clock, no thread, no randomness, no global state.

pub mod cred;
pub mod error;
pub mod frame;
pub mod limits;
pub mod naming;
pub mod path;
pub mod request;
pub mod runset;
pub mod series;
pub mod source_stat;
pub mod survey;

pub use cred::Credentials;
pub use error::{Error, ErrorKind, Result};
pub use frame::{FrameMeta, FrameNo, Origin, Validator};
pub use naming::{Layout, NameTemplate, Piece, Source};
pub use path::RelPath;
pub use request::Request;
pub use runset::{Run, RunSet};
pub use series::Series;
pub use source_stat::{Rights, SourceStat};
