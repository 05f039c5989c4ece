//! Index files of visualizations: which files a time step consists of, and how they form a tree.
//!
//! *Pure.* [`read_index`] takes the bytes of index files through a callback. It reads `.series`,
//! `.pvd`, `.vtm`, `.vtpd`, `.vtpc`, `.pvtu` and the other parallel formats, and tables of files
//! (`.csv`). Decoders read bytes from outside: they never panic, and an error names the file.
//!
//! Paths in an [`Index`] are relative to the index file's directory, or absolute.

mod extent;
mod index;
mod path;
mod series;
mod tree;
mod xml;

pub use index::{Index, STEPS_MAX, Step, is_index, read_index};
pub use path::{IndexFiles, place};
pub use tree::{FILES_MAX, Tree};
