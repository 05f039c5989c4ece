//! For plug-ins in Rust: what stands between the generated dispatcher and the plug-in's own code.
//!
//! A plug-in's crate is a `cdylib`. Its `build.rs` calls
//! `zazen_stubs_build::Stubs::compile_dispatcher`, its `lib.rs` has one [`export_entry_table!`],
//! and each function of its header is an `extern "C"` function whose body runs in [`guarded`].
//!
//! Invariants: a field of the host's table is read only if the host is new enough to have it; no
//! panic reaches C.

mod host;
mod outcome;
mod table;

pub use host::{Caller, caller, exported, is_cancelled, is_confined, mounted, register_userbuf};
pub use outcome::{Answer, Outcome, checked, errno, guarded, text};
#[doc(hidden)]
pub use table::{TableBytes, copy_table};
pub use zazen_plugin_abi as abi;
