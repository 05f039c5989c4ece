//! Mounts a file tree by FUSE.
//!
//! - `tree`: what can be mounted, as a trait; its implementations: `namespace`, `forwarded`,
//!   `local`.
//! - `adapter`: the kernel's requests, as calls of the tree; `turns`: which thread serves them;
//!   `serving`, `listing`, `convert`, `opens`, `locks`, `caller`, `local_io`, `bytes`, `pages`: its
//!   parts; `squashed`: what root may name; `locked`: who has locks.
//! - `contract`: random work that every tree must pass.
//! - `mount`: mounting, replacing what a killed process left, unmounting; `detached`: a mount that
//!   is in no table of mounts.

mod adapter;
mod bytes;
mod caller;
pub mod contract;
mod convert;
pub mod detached;
pub mod forwarded;
mod listing;
pub mod local;
mod local_io;
mod lock_table;
mod locked;
mod locks;
pub mod mount;
pub mod namespace;
mod opens;
mod pages;
mod place;
mod serving;
mod squashed;
pub mod tree;
mod turns;

pub use detached::Detached;
pub use mount::{Mounted, Options};
pub use tree::Tree;
