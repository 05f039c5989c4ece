//! The C API: libzazen and zazen.h.
//!
//! `include/zazen.h` is generated from this crate (`tests/header.rs` compares,
//! `ZAZEN_UPDATE_HEADER=1` rewrites).
//!
//! Invariants: no panic crosses into C. A call that fails changes nothing, neither its out
//! parameters nor its object. Every struct that C allocates begins with its size, so fields can be
//! added at the end.

// C names are the names of the ABI.
#![allow(non_camel_case_types)]

pub mod collectives;
pub mod dataset;
pub mod frames;
pub mod matching;
pub mod namespace;
pub mod paths;
pub mod random;
pub mod runset;
pub mod status;
mod structs;
pub mod told_trajectory;
pub mod trajectory;
pub mod writer;

/// The promises of zazen.h about threads. A field that breaks them stops the build.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<dataset::zazen_dataset_t>();
    shared::<frames::zazen_frame_t>();
    shared::<frames::zazen_frames_t>();
    shared::<paths::zazen_paths_t>();
    shared::<runset::zazen_runset_t>();
    shared::<namespace::zazen_namespace_t>();
    shared::<namespace::zazen_file_t>();
    shared::<writer::zazen_writer_t>();
};
