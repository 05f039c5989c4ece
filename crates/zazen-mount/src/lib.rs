//! Mounts a file tree by FUSE.
//!
//! - `tree`: what can be mounted, as a trait; its implementations: `namespace`,
//!   `local`.
//! - `adapter`: the kernel's requests, as calls of the tree; `convert`, `opens`, `locks`, `caller`,
//!   `local_io`: its parts; `squashed`: what root may name.
//! - `contract`: random work that every tree must pass.
//! - `mount`: mounting, replacing what a killed process left, unmounting.

mod adapter;
mod caller;
pub mod contract;
mod convert;
pub mod local;
mod local_io;
mod lock_table;
mod locks;
pub mod mount;
pub mod namespace;
mod opens;
mod squashed;
pub mod tree;

pub use mount::{Mounted, Options};
pub use tree::Tree;
